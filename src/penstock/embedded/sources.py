"""Sources: what boxes, queues and streams stand on, a directory of this process or a broker.

The library has one Box, Queue, Job and Stream for threads (`box`, `queue`, `messages`, `stream`)
and one for asyncio (`penstock.aio`). They call these interfaces, which have two implementations:

    BoxSource       DirectoryBox      RemoteBox (penstock.client)
    QueueSource     DirectoryQueue    RemoteQueue
    StreamSource    DirectoryStream   RemoteStream    AloneStreamSource, a stream without a box

A method that may wait is a call: a generator that does a step, yields what it waits for, and goes
on when that has happened. A driver runs calls: `run` waits in the caller's thread, `run_async` in a
task. Only the driver looks at what a call yields, so each call is written once for both.

Three methods of a queue are called for each message and are no generators, to save their cost:
`put_plain`, `take` and `ack_one`. They do the simplest case, and refuse all others.
"""

from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from penstock.embedded.option_parsing import NewBody
from penstock.embedded.stream_record import NewRecord, StreamRecord
from penstock.queues.stream_options import StreamOptions

T = TypeVar("T")
Call: TypeAlias = Generator[Any, None, T]


# ---- drivers -------------------------------------------------------------------------------------


class Runner(Protocol):
    """The driver of a box, as threads use it. path: the directory or the URL, for messages."""

    path: str

    def run(self, call: Call[T]) -> T:
        """Run a call in this thread and return its result."""

    def wait(self, waiter: Any) -> None:
        """Wait in this thread for what a call yielded or `put_plain` returned."""


class AsyncRunner(Runner, Protocol):
    """The driver of a box, as the tasks of one loop use it."""

    def check_loop(self) -> None:
        """Raise RuntimeError if the caller is in another loop than that of the box."""

    async def run_async(self, call: Call[T]) -> T:
        """Run a call in this task and return its result."""

    async def wait_async(self, waiter: Any) -> None:
        """Wait in this task for what a call yielded or `put_plain` returned."""


# ---- queues --------------------------------------------------------------------------------------


class SlowCase:
    """The answer of `put_plain` and `ack_one` when the caller must run the full call instead."""


SLOW: Final = SlowCase()


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """How many messages of a queue are ready, unacknowledged and delayed."""

    ready: int
    unacked: int
    delayed: int


class QueueSource(ABC):
    """A queue. key: the same object for all sources of one queue of a box, and no other. is_traced:
    whether its deliveries are SpanDeliveries.

    A delivery is what a `penstock.embedded.messages.Message` can be made of; only the source that
    gave it settles it. Errors of all methods: BoxClosedError, ForkedError, UnknownQueueError (the
    queue was deleted), and those of the box's storage or connection.
    """

    name: str
    key: object
    is_traced: bool = False

    # ---- called for each message, if there is such a short form ---------------------------------

    def put_plain(self, body: bytes) -> Any:
        """Put a body without options, in the queue's durability. Returns what to wait for, None if
        the put is confirmed, SLOW if nothing was done: run `put`. QueueFullError."""
        return SLOW

    def take(self) -> Any:
        """Return the next delivery if that is possible at once; None: run `get`."""
        return None

    def ack_one(self, delivery: Any) -> bool | SlowCase:
        """Acknowledge one delivery outside of a transaction. Returns whether it was still pending;
        SLOW if nothing was done: run `ack`."""
        return SLOW

    # ---- calls -----------------------------------------------------------------------------------

    @abstractmethod
    def put(
        self, new: NewBody, durability: object, *, block: bool, timeout_s: float | None
    ) -> Call[None]:
        """Put one message, and return when it is confirmed. QueueFullError, DiskFullError."""

    @abstractmethod
    def put_many(
        self, news: list[NewBody] | list[bytes], durability: object, *, block: bool,
        timeout_s: float | None,
    ) -> Call[None]:  # fmt: skip
        """Put many messages with one wait; see `Queue.put_many`."""

    @abstractmethod
    def get(self, *, block: bool, timeout_s: float | None) -> Call[Any]:
        """Return the next delivery. QueueEmptyError if none came in time."""

    @abstractmethod
    def get_many(self, n: int, *, timeout_s: float | None) -> Call[list[Any]]:
        """Return up to n deliveries: wait for the first, take more if they are ready."""

    @abstractmethod
    def ack(self, deliveries: list[Any]) -> Call[None]:
        """Acknowledge all, or collect that in the caller's transaction. SettledError."""

    @abstractmethod
    def nack(self, delivery: Any, delay_ms: int | None) -> Call[None]:
        """Return a message to its queue, counted as an attempt. delay_ms: None for the queue's
        back-off. SettledError."""

    @abstractmethod
    def nack_soon(self, delivery: Any) -> None:
        """Return a message as `nack` does, without waiting. Raises no PenstockError: a message of a
        closed box or a lost connection is returned anyway."""

    @abstractmethod
    def reject(self, delivery: Any) -> Call[None]:
        """Dead-letter a message, or drop it if there is no dead-letter queue. SettledError."""

    @abstractmethod
    def peek(self) -> Call[Any]:
        """Return the first ready message as a delivery and leave it there; None if none is."""

    @abstractmethod
    def browse(self, after: Any) -> Call[tuple[list[Any], Any]]:
        """Return some ready messages in order, and the place to go on from. after: such a place,
        None for the first message. No messages: there are no more."""

    @abstractmethod
    def counts(self) -> Call[QueueCounts]:
        """Count the messages."""

    @abstractmethod
    def has_room(self) -> Call[bool]:
        """Return whether the queue would take an empty body now."""

    @abstractmethod
    def info(self) -> Call[dict[str, int | float | str]]:
        """Return the queue's counters."""

    @abstractmethod
    def purge(self, *, with_delayed: bool) -> Call[int]:
        """Drop all ready messages, or the delayed ones too. Returns how many."""

    @abstractmethod
    def delete(self) -> Call[None]:
        """Delete the queue with all that it holds."""

    @abstractmethod
    def join(self, *, timeout_s: float | None) -> Call[bool]:
        """Wait until no message is ready, unacknowledged or delayed. False: not in time."""


# ---- boxes ---------------------------------------------------------------------------------------


class BoxSource(ABC):
    """A box. path: the directory, or the URL without its password. Errors of all methods:
    BoxClosedError, ForkedError, and those of the box's storage or connection."""

    path: str

    @abstractmethod
    def queue(self, name: str, given: Mapping[str, object]) -> Call[QueueSource]:
        """Open the queue of this name, made if missing. given: options as users write them.
        OptionError."""

    @abstractmethod
    def stream(self, name: str, given: Mapping[str, object]) -> "Call[StreamSource]":
        """Open the stream of this name, made if missing. OptionError."""

    @abstractmethod
    def queues(self) -> Call[list[str]]:
        """Return the names of all queues, sorted."""

    @abstractmethod
    def streams(self) -> Call[list[str]]:
        """Return the names of all streams, sorted."""

    @abstractmethod
    def has(self, name: str) -> Call[bool]:
        """Return whether there is a queue of this name."""

    @abstractmethod
    def info(self) -> Call[dict[str, int | float | str]]:
        """Return the counters of the box."""

    @abstractmethod
    def delete(self, name: str) -> Call[None]:
        """Delete a queue or a stream with all that it holds. UnknownQueueError."""

    @abstractmethod
    def begin(self, durability: object) -> Call[Any]:
        """Open a transaction for the calling thread or task. TransactionError."""

    @abstractmethod
    def commit(self, transaction: Any) -> Call[None]:
        """Commit a transaction; an error rolls it back."""

    @abstractmethod
    def rollback(self, transaction: Any) -> Call[None]:
        """Undo a transaction."""

    @abstractmethod
    def sync(self) -> Call[None]:
        """Wait until everything so far is on disk."""

    # ---- these are no calls: they block, and asyncio runs them in a thread -----------------------

    @abstractmethod
    def checkpoint(self) -> bool:
        """Make a checkpoint. False: no room for it."""

    @abstractmethod
    def backup(self, path: str | Path) -> None:
        """Copy the box into a new directory."""

    @abstractmethod
    def refuse_calls(self) -> None:
        """Refuse new calls with a BoxClosedError: `close` will follow."""

    @abstractmethod
    def close(self) -> None:
        """Close the box. A second time: do nothing."""


# ---- streams -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """One partition as it is now.

    first: the offset of the first record that is left. next: that of the next one; all below may be
    read. last_time_us: the time of the last record in microseconds since 1970, 0 if there never was
    one. bytes: of its pages.
    """

    partition: int
    first: int
    next: int
    last_time_us: int
    bytes: int

    @property
    def records(self) -> int:
        """The number of records that may be read."""
        return self.next - self.first


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """A stream as it is now. readers: the names of all readers, sorted. offsets: where the reader
    that was asked for goes on, by partition; empty if it is not known."""

    partitions: list[PartitionInfo]
    readers: list[str] = field(default_factory=list)
    offsets: dict[int, int] = field(default_factory=dict)


class Feed(ABC):
    """The position of one reading in one partition; all of the stream that a reading has in RAM is
    a chunk of each."""

    @abstractmethod
    def chunk(self) -> Call[Sequence[StreamRecord]]:
        """Return the records that follow and are there, in order; none: nothing is there yet.
        Records that retention has deleted are skipped."""

    @abstractmethod
    def close(self) -> None:
        """End the feed. A second time does nothing."""


class StreamSource(ABC):
    """A stream. Errors of all calls: BoxClosedError, ForkedError, UnknownQueueError (the stream was
    deleted), and those of the box's storage or connection."""

    name: str
    options: StreamOptions

    @property
    def partitions(self) -> int:
        """The number of partitions, 1 or more."""
        return max(self.options.partitions, 1)

    # ---- time ----------------------------------------------------------------------------------

    @abstractmethod
    def monotonic(self) -> float:
        """Return the time for time-outs, in seconds."""

    @abstractmethod
    def wall_us(self) -> int:
        """Return the time in microseconds since 1970."""

    # ---- calls ---------------------------------------------------------------------------------

    @abstractmethod
    def info(self, reader: str = "") -> Call[StreamInfo]:
        """Return the stream as it is now, with the offsets of this reader."""

    @abstractmethod
    def find(self, partition: int, time_us: int) -> Call[int]:
        """Return the offset of the first record of this time or later; that of the next record if
        there is none."""

    @abstractmethod
    def append(self, news: list[NewRecord], durability: object) -> Call[list[int]]:
        """Append records with one sync. Returns their offsets, -1 for each in a transaction.
        OptionError for a wrong durability; DiskFullError."""

    @abstractmethod
    def feed(self, partition: int, offset: int) -> Feed:
        """Return a feed from this offset on."""

    @abstractmethod
    def wait(self, feeds: Sequence[Feed], deadline: float | None) -> Call[None]:
        """Wait until one of these feeds may have more, or the deadline has passed. May return for
        nothing."""

    @abstractmethod
    def commit(self, reader: str, offsets: dict[int, int], *, is_safe: bool) -> Call[None]:
        """Store where a reader goes on, by partition; others stay as they are. is_safe: return when
        that is on disk."""

    @abstractmethod
    def commit_soon(self, reader: str, offsets: dict[int, int]) -> None:
        """Commit without waiting, for a loop that is left. Does nothing, without an error, if the
        box is closed or the connection lost."""

    @abstractmethod
    def delete_reader(self, reader: str) -> Call[None]:
        """Delete a reader, also one that is not known."""

    @abstractmethod
    def retain(self) -> Call[int]:
        """Apply retention now. Returns how many pages were deleted."""

    @abstractmethod
    def delete(self) -> Call[None]:
        """Delete the stream with all that it holds."""
