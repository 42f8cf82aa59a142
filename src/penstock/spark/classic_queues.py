"""ClassicQueues: what the driver asks a broker about classic queues, which it reads by leases.

A classic queue gives each message to one taker. A query takes its own durably: the broker leases
them to a named reader, numbers them in the order of delivery, and keeps them for it, whatever
crashes, until they are committed, which acknowledges them (docs/classic-queue-sources.md). So to
all that plans and reads, a lease is a stream with one partition: first is what is committed, head
is what is leased, and what is ready could be leased beyond that.

    described   what the reader has; nothing is leased
    leased      the same after up to so many more were
    commit      all before an ordinal is done with

The broker finds out by itself which queues are classic: it refuses to describe them as streams
(409, not_a_stream). A queue that was deleted and declared as the other kind is found out the same
way.

Leasing is the one thing that must not be done twice because an answer was lost: so it is asked for
again only after a look at what the reader has (`leased`).

Not here: whose reader it is and how much of a batch is leased (query_leases.py).

ReaderOwner: this program owns the readers of classic queues that it uses, as long as it runs.

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

from penstock.errors import OptionError, PenstockError, ReaderTakenError
from penstock.spark.http_link import CONFLICT, LEASES, RefusedError
from penstock.spark.offsets import PartitionHead

NOT_A_STREAM: Final = "not_a_stream"
IS_A_STREAM: Final = "is_a_stream"
MESSAGES_MAX: Final = 1 << 18  # of one question: the broker answers within a second or two

# method, names below /api/<api>/<vhost>/, body, api -> the answer
AskOnce = Callable[[str, tuple[str, ...], object, str], Any]
# the same, as often as the options say while the broker is away
Retry = Callable[[Callable[[], Any]], Any]


def is_classic_refusal(error: RefusedError) -> bool:
    """Whether it was asked about a classic queue as about a stream."""
    return error.status == CONFLICT and error.answer.get("error") == NOT_A_STREAM


def is_stream_refusal(error: RefusedError) -> bool:
    """The other way round."""
    return error.status == CONFLICT and error.answer.get("error") == IS_A_STREAM


def refuse_batch(queue: str) -> OptionError:
    """Why a classic queue is not read by spark.read."""
    return OptionError(
        "subscribe", queue,
        "a stream: a classic queue gives each message away once, and a batch read would not know "
        "when they are done with. Use spark.readStream with trigger(availableNow=True), which "
        "acknowledges what its sink has; or box.browse, which takes nothing",
    )  # fmt: skip


class ClassicQueues:
    """See the head of this module. `ask` asks once, `retry` asks until the broker is there. owner:
    the token that owns the readers, "" for none."""

    def __init__(self, ask: AskOnce, retry: Retry) -> None:
        self._ask = ask
        self._retry = retry
        self.owner = ""

    def described(self, queue: str, reader: str) -> PartitionHead:
        """What that reader has of it, nothing if it is not known. RefusedError, LinkError."""
        return _head(self._retry(lambda: self._row(queue, reader)), reader)

    def leased(
        self, queue: str, reader: str, head: int, messages: int, size_bytes: int | None
    ) -> PartitionHead:
        """What it has after up to so many messages and bytes more were leased. head: how many it
        had. RefusedError, LinkError, ReaderTakenError."""
        goal = head + messages
        most = size_bytes
        found: PartitionHead | None = None
        while head < goal and (most is None or most > 0):
            row = self._once_more(queue, reader, head, min(goal - head, MESSAGES_MAX), most)
            before = 0 if found is None else found.bytes
            found = _head(row, reader)
            if found.head == head:
                break
            if most is not None:
                most -= found.bytes - before
            head = found.head
            if not found.ready:
                break
        return self.described(queue, reader) if found is None else found

    def commit(self, queue: str, reader: str, offset: int) -> None:
        """Acknowledge all before it. RefusedError, LinkError, ReaderTakenError."""
        body = self._owned({"committed": offset})
        try:
            self._retry(lambda: self._ask("PUT", (queue, reader), body, LEASES))
        except RefusedError as error:
            raise taken_error(error) or error from None

    def _owned(self, body: dict[str, Any]) -> dict[str, Any]:
        return body | {"owner": self.owner} if self.owner else body

    def _row(self, queue: str, reader: str) -> Any:
        return self._ask("GET", (queue, reader), None, LEASES)

    def _once_more(
        self, queue: str, reader: str, head: int, messages: int, size_bytes: int | None
    ) -> Any:
        """The answer to one question to lease; if that was lost, what came of it."""
        is_asked = False

        def take() -> Any:
            nonlocal is_asked
            if is_asked:
                row = self._row(queue, reader)
                if row["head"] > head:
                    return row
            is_asked = True
            body = self._owned({"messages": messages, "bytes": size_bytes})
            return self._ask("POST", (queue, reader), body, LEASES)

        try:
            return self._retry(take)
        except RefusedError as error:
            raise taken_error(error) or error from None


def _head(row: dict[str, Any], reader: str) -> PartitionHead:
    """What the broker tells of a reader."""
    return PartitionHead(
        first=row["first"],
        head=row["head"],
        last_time_us=row.get("last_time_us") or 0,
        bytes=row["bytes"],
        stream_id=str(row.get("stream_id") or ""),
        path=str(row.get("path") or ""),
        reader=reader,
        ready=row["ready"],
        ready_bytes=row.get("ready_bytes") or 0,
    )


READER_TAKEN: Final = "reader_taken"
OWNER: Final = "owner"

QueueReader = tuple[str, str]  # queue, reader
# method, names below /api/leases/<vhost>/, query, body -> the answer
Ask = Callable[[str, tuple[str, ...], dict[str, Any] | None, object], Any]

logger = logging.getLogger(__name__)


def taken_error(error: RefusedError) -> ReaderTakenError | None:
    """What it means that the broker refused, if it is that another query owns the reader."""
    return ReaderTakenError(str(error)) if error.answer.get("error") == READER_TAKEN else None


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
        self._owned: set[QueueReader] = set()
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

    def _say(self, key: QueueReader, *, is_held: bool) -> Any:
        body = {OWNER: self.token, "seconds": self._seconds, "is_held": is_held}
        return self._ask("PUT", (*key, OWNER), None, body)
