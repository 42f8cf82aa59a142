"""ReaderOwner: this program owns the readers of classic queues that it uses, as long as it runs.

Two queries with one readerId would read the same leased messages, and write them twice. So a query
owns its reader at the broker (docs/classic-queue-sources.md): it asks with a token that it drew,
and a thread asks again all the while, for a batch may take hours and Spark asks nothing meanwhile.
The second query finds that somebody else owns the reader:

    the owner was heard of again since      it runs: ReaderTakenError
    it was not, until its seconds are over  it has gone (killed, say): this query owns the reader

A query that lost its reader, because it was cut off for longer than these seconds, is refused by
the broker with its next question, and fails.

Not here: leasing (classic_queues.py).
"""

import logging
import secrets
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from penstock.errors import PenstockError, ReaderTakenError
from penstock.spark.http_link import RefusedError

READER_TAKEN: Final = "reader_taken"
OWNER: Final = "owner"

Key = tuple[str, str]  # queue, reader
# method, names below /api/leases/<vhost>/, query, body -> the answer
Ask = Callable[[str, tuple[str, ...], dict[str, Any] | None, object], Any]

logger = logging.getLogger(__name__)


def taken_error(error: RefusedError) -> ReaderTakenError | None:
    """What it means that the broker refused, if it is that another query owns the reader."""
    return ReaderTakenError(str(error)) if error.told.get("error") == READER_TAKEN else None


class ReaderOwner:
    """See the head of this module. seconds: for which an owner that is not heard of stays one.
    sleep, now: of `time`, but for tests."""

    def __init__(
        self, ask: Ask, seconds: int, *, sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.token = secrets.token_hex(16)
        self._ask = ask
        self._seconds = seconds
        self._sleep = sleep
        self._now = now
        self._owned: set[Key] = set()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def own(self, queue: str, reader: str) -> None:
        """This program owns the reader from here on. ReaderTakenError: another one does, and runs.
        RefusedError, LinkError."""
        key = queue, reader
        if key in self._owned:
            return
        until = self._now() + 1.5 * self._seconds + 1
        heard: int | None = None
        while True:
            row = self._say(key, is_held=False)
            if row["is_owner"]:
                break
            if heard is None:
                heard = row["renewals"]
            if row["renewals"] != heard or self._now() >= until:
                raise ReaderTakenError(
                    f"reader {reader!r} of queue {queue!r} belongs to another query, which runs: "
                    "give each query a readerId of its own, or stop the other one"
                )
            self._sleep(min(row["expires_s"], self._seconds / 4) + 0.05)
        self._owned.add(key)
        if self._thread is None:
            self._thread = threading.Thread(target=self._renew, name="penstock-owner", daemon=True)
            self._thread.start()

    def end(self) -> None:
        """The query ends: others may own its readers. Never an error."""
        self._ended.set()
        owned, self._owned = self._owned, set()
        for queue, reader in owned:
            try:
                self._ask("DELETE", (queue, reader, OWNER), {OWNER: self.token}, None)
            except PenstockError as error:
                logger.warning("reader %s of queue %s is still owned: %s", reader, queue, error)

    def renew(self) -> None:
        """Say once that all readers are used."""
        for key in sorted(self._owned):
            try:
                row = self._say(key, is_held=True)
            except PenstockError as error:  # the next time, or Spark's own question, may go better
                logger.warning("reader %s of queue %s was not renewed: %s", key[1], key[0], error)
                continue
            if not row["is_owner"] and key in self._owned:
                logger.error("reader %s of queue %s was lost to another query", key[1], key[0])

    def _renew(self) -> None:
        while not self._ended.wait(self._seconds / 3):
            self.renew()

    def _say(self, key: Key, *, is_held: bool) -> Any:
        body = {OWNER: self.token, "seconds": self._seconds, "is_held": is_held}
        return self._ask("PUT", (*key, OWNER), None, body)
