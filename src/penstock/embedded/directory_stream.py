"""DirectoryStream: what the methods of a stream in a directory do, in steps under the box's lock.

    append    the engine's append_stream for each record, one wait for the last
    chunk     up to 256 records or 256 KiB of a partition, read from its pages under the lock
    wait      among the stream's followers, until a head moves
    commit    a READER_OFFSET record, written as an acknowledgement is, or waited for

In a transaction records are collected (`transaction`) and have no offsets yet. Reading in order,
gaps and limits are in `stream_reading`, names and retention in `core`.
"""

from collections.abc import Sequence
from typing import Final

from penstock.embedded.core import StreamState
from penstock.embedded.driver import Driver
from penstock.embedded.option_parsing import mode_of
from penstock.embedded.sources import Call, Feed, PartitionInfo, StreamInfo, StreamSource
from penstock.embedded.stream_record import NewRecord, StreamRecord
from penstock.embedded.waiting import Waiter, is_free_soon
from penstock.errors import PenstockError
from penstock.queues.stream_options import partition_of
from penstock.storage.durability import DISK, OS

CHUNK_RECORDS: Final = 256
CHUNK_BYTES: Final = 256 << 10


class DirectoryStream(StreamSource):
    """See the head of this module. mode: the durability of appends that name none."""

    def __init__(self, driver: Driver, state: StreamState, mode: int) -> None:
        self.name: str = state.name
        self.options = state.options
        self._driver = driver
        self._state = state
        self._mode = mode

    def monotonic(self) -> float:
        return self._driver.core.clock.monotonic()

    def wall_us(self) -> int:
        return self._driver.core.clock.wall_us()

    # ---- looking -------------------------------------------------------------------------------

    def info(self, reader: str = "") -> Call[StreamInfo]:
        yield from ()
        driver, state = self._driver, self._state
        readers: set[str] = set()
        offsets: dict[int, int] = {}
        with driver.gate, driver.guard:
            state.check()
            infos: list[PartitionInfo] = []
            for i, part in enumerate(state.parts):
                queue = part.queue
                infos.append(
                    PartitionInfo(
                        i, part.first_offset, part.head_offset, queue.last_time_us, queue.bytes
                    )
                )
                readers.update(part.readers)
                known = part.readers.get(reader)
                if known is not None:
                    offsets[i] = known.offset
        return StreamInfo(infos, sorted(readers), offsets)

    def find(self, partition: int, time_us: int) -> Call[int]:
        yield from ()
        driver, state = self._driver, self._state
        with driver.gate, driver.guard:
            state.check()
            part = state.parts[partition]
            return min(part.queue.find(time_us), part.head_offset)

    # ---- appending -----------------------------------------------------------------------------

    def append(self, news: list[NewRecord], durability: object) -> Call[list[int]]:
        driver, state = self._driver, self._state
        mode = self._mode if durability is None else mode_of("durability", durability)
        confirm: Waiter | None = None
        with driver.gate, driver.guard:
            state.check()
            transaction = driver.transaction()
            parts, count = state.parts, len(state.parts)
            if transaction is not None:
                for new in news:
                    part = parts[partition_of(new.key, count)]
                    transaction.append(part, new.meta, new.body)
                return [-1] * len(news)
            engine = driver.core.engine
            offsets = [
                engine.append_stream(parts[partition_of(new.key, count)], new.meta, new.body, mode)
                for new in news
            ]
            if offsets:
                confirm = driver.settle(engine.last_lsn, mode)
                if driver.is_idle:
                    driver.nudge()
        if confirm is not None:
            yield confirm
        return offsets

    # ---- reading -------------------------------------------------------------------------------

    def feed(self, partition: int, offset: int) -> "PageFeed":
        return PageFeed(self._driver, self._state, partition, offset)

    def wait(self, feeds: Sequence[Feed], deadline: float | None) -> Call[None]:
        driver, state = self._driver, self._state
        with driver.gate, driver.guard:
            state.check()
            for feed in feeds:
                assert isinstance(feed, PageFeed)
                if feed.has_more:
                    return
            waiter = driver.new_waiter(deadline=deadline)
            state.followers.append(waiter)
        try:
            yield waiter
        finally:
            with driver.lock:
                if waiter in state.followers:
                    state.followers.remove(waiter)

    # ---- readers and the whole -----------------------------------------------------------------

    def commit(self, reader: str, offsets: dict[int, int], *, is_safe: bool) -> Call[None]:
        driver, state = self._driver, self._state
        confirm: Waiter | None = None
        with driver.gate, driver.guard:
            state.check()
            engine = driver.core.engine
            for partition, offset in offsets.items():
                engine.set_reader(state.parts[partition], reader, offset, DISK if is_safe else OS)
            if is_safe:
                lsn = engine.last_lsn
                if engine.settled(DISK) < lsn:
                    confirm = driver.settle_held(lsn, DISK)
            else:
                driver.acked()
        if confirm is not None:
            yield confirm

    def commit_soon(self, reader: str, offsets: dict[int, int]) -> None:
        driver = self._driver
        if not is_free_soon(driver.lock, driver.core.clock.monotonic):
            return
        try:
            for _ in self.commit(reader, offsets, is_safe=False):
                raise AssertionError("commit waits for nothing")
        except PenstockError:
            pass  # the box was closed, for example: the records are read again

    def delete_reader(self, reader: str) -> Call[None]:
        yield from ()
        driver, state = self._driver, self._state
        with driver.gate, driver.guard:
            state.check()
            for part in state.parts:
                driver.core.engine.delete_reader(part, reader, OS)
            driver.acked()

    def retain(self) -> Call[int]:
        yield from ()
        driver, state = self._driver, self._state
        with driver.gate, driver.guard:
            state.check()
            return driver.core.streams.retain(state)

    def delete(self) -> Call[None]:
        driver, state = self._driver, self._state
        with driver.gate, driver.guard:
            state.check()
            confirm = driver.settle(driver.core.streams.delete(state), DISK)
        if confirm is not None:
            yield confirm


class PageFeed(Feed):
    """A position in the pages of a partition."""

    __slots__ = ("_driver", "_offset", "_partition", "_state")

    def __init__(self, driver: Driver, state: StreamState, partition: int, offset: int) -> None:
        self._driver = driver
        self._state = state
        self._partition = partition
        self._offset = offset

    @property
    def has_more(self) -> bool:
        """Under the lock: return whether there is something to read."""
        return self._offset < self._state.parts[self._partition].head_offset

    def chunk(self) -> Call[list[StreamRecord]]:
        yield from ()
        driver, state, partition = self._driver, self._state, self._partition
        with driver.gate, driver.guard:
            state.check()
            if not self.has_more:
                return []
            queue = state.parts[partition].queue
            found = queue.read(self._offset, CHUNK_RECORDS, CHUNK_BYTES)
        records = [
            StreamRecord(one.payload, one.offset, partition, one.time_us, one.meta) for one in found
        ]
        if records:
            self._offset = records[-1].offset + 1
        return records

    def close(self) -> None:
        """Do nothing: nothing is open."""
