"""DirectoryStream: the methods of a stream of a directory's box, in steps under the box's lock.

    append    StreamEngine.append for each record, one wait for the last
    commit    a READER_OFFSET record, written like an acknowledgement, or waited for

In a transaction records are collected (`transaction`) and have no offsets yet. `local_stream` reads
chunks and follows, `stream_reading` does order, gaps and limits, `core` names and retention.
"""

from penstock.embedded.core import StreamState
from penstock.embedded.driver import Driver
from penstock.embedded.local_stream import LocalStream
from penstock.embedded.option_parsing import mode_of
from penstock.embedded.sources import Call, PartitionInfo, StreamInfo
from penstock.embedded.stream_record import NewRecord
from penstock.embedded.waiting import Waiter
from penstock.queues.stream_options import partition_of
from penstock.storage.files.durability import DISK, OS
from penstock.storage.pages.persistent_queue import PersistentQueue


class DirectoryStream(LocalStream):
    """See the head of this module. mode: the durability of appends that name none."""

    def __init__(self, driver: Driver, state: StreamState, mode: int) -> None:
        super().__init__(driver, state.followers)
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
                engine.streams.append(parts[partition_of(new.key, count)], new.meta, new.body, mode)
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

    def check(self) -> None:
        self._state.check()

    def pages(self, partition: int) -> PersistentQueue:
        return self._state.parts[partition].queue

    # ---- readers and the whole -----------------------------------------------------------------

    def commit(self, reader: str, offsets: dict[int, int], *, is_safe: bool) -> Call[None]:
        driver, state = self._driver, self._state
        confirm: Waiter | None = None
        with driver.gate, driver.guard:
            state.check()
            engine = driver.core.engine
            mode = DISK if is_safe else OS
            for partition, offset in offsets.items():
                engine.streams.set_reader(state.parts[partition], reader, offset, mode)
            if is_safe:
                lsn = engine.last_lsn
                if engine.settled(DISK) < lsn:
                    confirm = driver.settle_held(lsn, DISK)
            else:
                driver.acked()
        if confirm is not None:
            yield confirm

    def delete_reader(self, reader: str) -> Call[None]:
        yield from ()
        driver, state = self._driver, self._state
        with driver.gate, driver.guard:
            state.check()
            for part in state.parts:
                driver.core.engine.streams.delete_reader(part, reader, OS)
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
