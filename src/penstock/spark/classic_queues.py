"""Classic queues at a broker: leasing their messages to a reader, and owning that reader.

**Leases.** A classic queue gives each message to one consumer. A query takes its messages durably:
the broker leases them to a named reader, numbers them in the order of delivery, and keeps them for
the reader across crashes until they are committed, which acknowledges them
(docs/guides/classic-queue-sources.md). So planning and reading treat a lease as a stream with one
partition: `first` is what is committed, `head` what is leased, and ready messages can be leased
beyond that.

    described   returns what the reader has, and leases nothing
    leased      leases up to so many messages more, and returns the same
    commit      acknowledges all messages before an ordinal

The broker decides which queues are classic: it refuses to describe them as streams (409,
not_a_stream). That also finds a queue that was deleted and declared as the other kind.

Leasing must not be done twice because an answer was lost, so `leased` looks at what the reader has
before it asks again.

**Owners.** Two queries with one readerId would read the same leased messages and write them twice.
So a query owns its reader at the broker, by a random token, which a thread renews: a batch may take
hours, and Spark asks nothing meanwhile. A second query finds another owner:

    the owner renewed since                     it runs: ReaderTakenError
    it did not, until its seconds were over     it is gone (killed, say): this query owns the reader

A query that was cut off for longer than those seconds and lost its reader fails at its next request
to the broker.

How much of a batch is leased, and to which reader: QueryLeases in progress.py.
"""

import logging
import secrets
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from penstock.errors import OptionError, PenstockError, ReaderTakenError
from penstock.spark.http_link import CONFLICT, RefusedError
from penstock.spark.offsets import PartitionHead

NOT_A_STREAM: Final = "not_a_stream"
IS_A_STREAM: Final = "is_a_stream"
READER_TAKEN: Final = "reader_taken"
OWNER: Final = "owner"
MESSAGES_MAX: Final = 1 << 18  # of one question: the broker answers within a second or two

# method, names below /api/leases/<vhost>/, query, body -> the answer
Ask = Callable[[str, tuple[str, ...], dict[str, Any] | None, object], Any]
# a call -> its result; repeated, as the options say, while the broker is away
Retry = Callable[[Callable[[], Any]], Any]
QueueReader = tuple[str, str]  # queue, reader

logger = logging.getLogger(__name__)


def is_classic_refusal(error: RefusedError) -> bool:
    """Return whether the broker refused because the queue is classic, not a stream."""
    return error.status == CONFLICT and error.answer.get("error") == NOT_A_STREAM


def is_stream_refusal(error: RefusedError) -> bool:
    """Return whether the broker refused because the queue is a stream, not classic."""
    return error.status == CONFLICT and error.answer.get("error") == IS_A_STREAM


def refuse_batch(queue: str) -> OptionError:
    """Return the error for reading a classic queue with spark.read."""
    return OptionError(
        "subscribe", queue,
        "a stream: a classic queue delivers each message once, and a batch read would not know "
        "when to acknowledge it. Use spark.readStream with trigger(availableNow=True), which "
        "acknowledges what its sink has committed; or box.browse, which removes nothing",
    )  # fmt: skip


class ClassicQueues:
    """The leases of a query. `ask` sends one request; `retry` repeats a call until the broker
    answers. owner: the token that owns the readers, "" for none."""

    def __init__(self, ask: Ask, retry: Retry) -> None:
        self._ask = ask
        self._retry = retry
        self.owner = ""

    def described(self, queue: str, reader: str) -> PartitionHead:
        """Return what that reader has of the queue, if anything. Raises RefusedError and
        LinkError."""
        return _head(self._retry(lambda: self._row(queue, reader)), reader)

    def leased(
        self, queue: str, reader: str, head: int, messages: int, size_bytes: int | None
    ) -> PartitionHead:
        """Lease up to so many messages and bytes, and return what the reader has then. head: how
        many messages it had. Raises RefusedError, LinkError and ReaderTakenError."""
        goal = head + messages
        most = size_bytes
        found: PartitionHead | None = None
        while head < goal and (most is None or most > 0):
            row = self._lease_once(queue, reader, head, min(goal - head, MESSAGES_MAX), most)
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
        """Acknowledge all messages before `offset`. Raises RefusedError, LinkError,
        ReaderTakenError."""
        body = self._owned({"committed": offset})
        try:
            self._retry(lambda: self._ask("PUT", (queue, reader), None, body))
        except RefusedError as error:
            raise taken_error(error) or error from None

    def _owned(self, body: dict[str, Any]) -> dict[str, Any]:
        return body | {"owner": self.owner} if self.owner else body

    def _row(self, queue: str, reader: str) -> Any:
        return self._ask("GET", (queue, reader), None, None)

    def _lease_once(
        self, queue: str, reader: str, head: int, messages: int, size_bytes: int | None
    ) -> Any:
        """Send one request to lease. If its answer was lost, return what the request did."""
        is_asked = False

        def lease() -> Any:
            nonlocal is_asked
            if is_asked:
                row = self._row(queue, reader)
                if row["head"] > head:
                    return row
            is_asked = True
            body = self._owned({"messages": messages, "bytes": size_bytes})
            return self._ask("POST", (queue, reader), None, body)

        try:
            return self._retry(lease)
        except RefusedError as error:
            raise taken_error(error) or error from None


def _head(row: dict[str, Any], reader: str) -> PartitionHead:
    """Return the broker's description of a reader as a PartitionHead."""
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


def taken_error(error: RefusedError) -> ReaderTakenError | None:
    """Return a ReaderTakenError if the broker refused because another query owns the reader."""
    return ReaderTakenError(str(error)) if error.answer.get("error") == READER_TAKEN else None


# ---- owners --------------------------------------------------------------------------------------


class ReaderOwner:
    """Owns the readers of a query. seconds: how long an owner that does not renew stays the owner.
    sleep, now: those of `time`, except in tests."""

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
        """Own the reader from now on. Raises ReaderTakenError if a running query owns it;
        RefusedError and LinkError."""
        key = queue, reader
        if key in self._owned:
            return
        until = self._now() + 1.5 * self._seconds + 1
        renewals_seen: int | None = None
        while True:
            row = self._say(key, is_held=False)
            if row["is_owner"]:
                break
            if renewals_seen is None:
                renewals_seen = row["renewals"]
            if row["renewals"] != renewals_seen or self._now() >= until:
                raise ReaderTakenError(
                    f"reader {reader!r} of queue {queue!r} belongs to another running query: "
                    "give each query a readerId of its own, or stop the other one"
                )
            self._sleep(min(row["expires_s"], self._seconds / 4) + 0.05)
        self._owned.add(key)
        if self._thread is None:
            self._thread = threading.Thread(target=self._renew, name="penstock-owner", daemon=True)
            self._thread.start()

    def end(self) -> None:
        """Release all readers when the query ends. Never raises."""
        self._ended.set()
        owned, self._owned = self._owned, set()
        for queue, reader in owned:
            try:
                self._ask("DELETE", (queue, reader, OWNER), {OWNER: self.token}, None)
            except PenstockError as error:
                logger.warning("reader %s of queue %s is still owned: %s", reader, queue, error)

    def renew(self) -> None:
        """Renew all readers once."""
        for key in sorted(self._owned):
            try:
                row = self._say(key, is_held=True)
            except PenstockError as error:  # the next attempt may succeed
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
