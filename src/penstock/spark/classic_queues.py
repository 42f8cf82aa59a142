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
"""

from collections.abc import Callable
from typing import Any, Final

from penstock.errors import OptionError
from penstock.spark.http_link import CONFLICT, LEASES, RefusedError
from penstock.spark.offsets import PartitionHead
from penstock.spark.reader_owner import taken_error

NOT_A_STREAM: Final = "not_a_stream"
IS_A_STREAM: Final = "is_a_stream"
MESSAGES_MAX: Final = 1 << 18  # of one question: the broker answers within a second or two

# method, names below /api/<api>/<vhost>/, body, api -> the answer
Ask = Callable[[str, tuple[str, ...], object, str], Any]
# the same, as often as the options say while the broker is away
Retry = Callable[[Callable[[], Any]], Any]


def is_classic_refusal(error: RefusedError) -> bool:
    """Whether it was asked about a classic queue as about a stream."""
    return error.status == CONFLICT and error.told.get("error") == NOT_A_STREAM


def is_stream_refusal(error: RefusedError) -> bool:
    """The other way round."""
    return error.status == CONFLICT and error.told.get("error") == IS_A_STREAM


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

    def __init__(self, ask: Ask, retry: Retry) -> None:
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
