"""StreamSource: what a stream of the library stands on: a directory of this process, or a broker.

The faces (`stream` for threads, `awaited_stream` for asyncio) and the reading (`stream_pass`)
are written once, against this. What may wait is a call, a generator that yields what it waits with:
a Waiter of the box's driver here, a future's Wait on a broker. Neither the faces nor the reading
look at what is yielded; the driver of the box knows, in a thread or in a loop.

    StreamCalls (stream_calls)               an engine in this process, under the box's lock
    AloneCalls (alone_calls)                 a queue that stands alone, under its own lock
    RemoteStream (client/remote_stream)      AMQP, and operations of Penstock's own

A feed is where one reading has got to in one partition: it gives what is there, from there on. What
a feed's chunk holds is all of the stream that a reading has in RAM.
"""

from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from penstock.embedded.stream_record import NewRecord, StreamRecord
from penstock.queues.stream_options import StreamOptions

T = TypeVar("T")
Call: TypeAlias = Generator[Any, None, T]


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """One partition as it is now.

    first: offset of the first record that is left. next: of the next one to come; what is below may
    be read. last_time_us: of the last record, 0 if there never was one. bytes: of its pages.
    """

    partition: int
    first: int
    next: int
    last_time_us: int
    bytes: int

    @property
    def records(self) -> int:
        """How many may be read."""
        return self.next - self.first


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """A stream as it is now. readers: the names of all that it knows, sorted. offsets: where the
    one that was asked for goes on, by partition; empty if it is not known."""

    partitions: list[PartitionInfo]
    readers: list[str] = field(default_factory=list)
    offsets: dict[int, int] = field(default_factory=dict)


class Feed(ABC):
    """A place in one partition."""

    @abstractmethod
    def chunk(self) -> Call[Sequence[StreamRecord]]:
        """What follows and is to be had at once, in order; nothing: nothing is there yet. What has
        been reclaimed is passed over."""

    @abstractmethod
    def close(self) -> None:
        """Nothing more is wanted. Again: nothing."""


class StreamSource(ABC):
    """See the head of this module. Errors of all calls: BoxClosedError, ForkedError,
    UnknownQueueError (the stream was deleted), and those of the box's storage or connection."""

    name: str
    options: StreamOptions

    @property
    def partitions(self) -> int:
        """How many partitions it has, 1 or more."""
        return max(self.options.partitions, 1)

    # ---- time ----------------------------------------------------------------------------------

    @abstractmethod
    def monotonic(self) -> float:
        """Seconds, for time-outs."""

    @abstractmethod
    def wall_us(self) -> int:
        """Us since 1970, for "so long ago"."""

    # ---- calls ---------------------------------------------------------------------------------

    @abstractmethod
    def info(self, reader: str = "") -> Call[StreamInfo]:
        """As it is now, with the offsets of this reader."""

    @abstractmethod
    def find(self, partition: int, time_us: int) -> Call[int]:
        """The offset of the first record of this time or later; that of the next if there is
        none."""

    @abstractmethod
    def append(self, news: list[NewRecord], durability: object) -> Call[list[int]]:
        """Append them with one sync; their offsets, -1 for each in a transaction. OptionError for
        what is no durability; DiskFullError."""

    @abstractmethod
    def feed(self, partition: int, offset: int) -> Feed:
        """From this record on."""

    @abstractmethod
    def wait(self, feeds: Sequence[Feed], deadline: float | None) -> Call[None]:
        """Until one of these may have more, or the time is up; it may also be for nothing."""

    @abstractmethod
    def commit(self, reader: str, offsets: dict[int, int], *, is_safe: bool) -> Call[None]:
        """Keep where a reader goes on, by partition; those not named stay as they are. is_safe:
        return when it is on disk."""

    @abstractmethod
    def commit_soon(self, reader: str, offsets: dict[int, int]) -> None:
        """As commit, by whoever must not wait: a loop that is left. It may come to nothing, without
        an error, when the box is closed or the connection lost."""

    @abstractmethod
    def delete_reader(self, reader: str) -> Call[None]:
        """Forget a reader; one that is not known too."""

    @abstractmethod
    def retain(self) -> Call[int]:
        """Apply retention now: how many pages went."""

    @abstractmethod
    def delete(self) -> Call[None]:
        """Delete the stream with all that it holds."""
