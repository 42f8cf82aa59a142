"""LocalStream: what streams whose pages this process writes share: reading and following.

A stream of a directory's box and a stream without a box are PersistentQueues under a lock. Both
read records below the head in chunks, and both keep a list of followers: calls that wait until a
head moves.
"""

from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Final

from penstock.embedded.sources import Call, Feed, StreamSource
from penstock.embedded.stream_record import StreamRecord
from penstock.embedded.waiting import OpenDriver, Waiter, is_free_soon
from penstock.errors import PenstockError
from penstock.storage.pages.persistent_queue import PersistentQueue

CHUNK_RECORDS: Final = 256
CHUNK_BYTES: Final = 256 << 10


class LocalStream(StreamSource):
    """A stream whose pages this process writes. followers: the waiters of the calls that wait for
    more records."""

    def __init__(self, driver: OpenDriver, followers: deque[Waiter]) -> None:
        self._locked = driver
        self._followers = followers

    @abstractmethod
    def check(self) -> None:
        """Under the lock: raise an error if the stream is closed, deleted or stopped."""

    @abstractmethod
    def pages(self, partition: int) -> PersistentQueue:
        """Return the pages of a partition."""

    @property
    def is_ended(self) -> bool:
        """Whether nothing more will be appended, so that followers need not wait."""
        return False

    def feed(self, partition: int, offset: int) -> "LocalFeed":
        return LocalFeed(self, partition, offset)

    def chunk(self, partition: int, offset: int) -> list[StreamRecord]:
        """Return up to CHUNK_RECORDS records and about CHUNK_BYTES from this offset on, below the
        head."""
        with self._locked.gate, self._locked.guard:
            self.check()
            pages = self.pages(partition)
            if offset >= pages.head_offset:
                return []
            found = pages.read(offset, CHUNK_RECORDS, CHUNK_BYTES)
        return [
            StreamRecord(one.payload, one.offset, partition, one.time_us, one.meta) for one in found
        ]

    def wait(self, feeds: Sequence[Feed], deadline: float | None) -> Call[None]:
        driver, followers = self._locked, self._followers
        with driver.gate, driver.guard:
            self.check()
            if self.is_ended:
                return
            for feed in feeds:
                assert isinstance(feed, LocalFeed)
                if feed.offset < self.pages(feed.partition).head_offset:
                    return
            waiter = driver.new_waiter(deadline=deadline)
            followers.append(waiter)
        try:
            yield waiter
        finally:
            with driver.lock:
                if waiter in followers:
                    followers.remove(waiter)

    def commit_soon(self, reader: str, offsets: dict[int, int]) -> None:
        if not is_free_soon(self._locked.lock, self.monotonic):
            return
        try:
            for _ in self.commit(reader, offsets, is_safe=False):
                raise AssertionError("commit waits for nothing")
        except PenstockError:
            pass  # it was closed, for example: the records are read again


class LocalFeed(Feed):
    """A position in a partition of a LocalStream."""

    __slots__ = ("_stream", "offset", "partition")

    def __init__(self, stream: LocalStream, partition: int, offset: int) -> None:
        self._stream = stream
        self.partition = partition
        self.offset = offset

    def chunk(self) -> Call[list[StreamRecord]]:
        yield from ()
        records = self._stream.chunk(self.partition, self.offset)
        if records:
            self.offset = records[-1].offset + 1
        return records

    def close(self) -> None:
        """Do nothing: nothing is open."""
