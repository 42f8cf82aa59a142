"""AsyncStream and AsyncReader: `penstock.Stream` and its readers for asyncio, with await.

    async for record in s.read(since="1h"):
        ...

What is counted, as `s.first` and `len(s)`, needs no await. A loop that is left early should close
its iterator, as `contextlib.aclosing` does: a reader that commits as it goes then commits at once.
"""

from collections.abc import AsyncGenerator, Iterable

from penstock.embedded.new_body import Body, Headers
from penstock.embedded.sources import AsyncRunner, StreamSource
from penstock.embedded.stream import ReaderBase, StreamBase
from penstock.embedded.stream_reading import (
    TELL,
    Moment,
    NamedReader,
    Offset,
    PassLimits,
    Since,
    StreamPass,
    check_partition,
    moment_us,
)
from penstock.embedded.stream_record import NewRecord, Records, StreamRecord, records_of


class AsyncStream(StreamBase):
    """A stream of records, as penstock.Stream; the methods that wait are coroutines."""

    _driver: AsyncRunner

    def __init__(self, driver: AsyncRunner, source: StreamSource) -> None:
        super().__init__(driver, source)

    async def append(
        self, body: Body, key: str = "", headers: Headers | None = None,
        durability: str | None = None,
    ) -> int:  # fmt: skip
        """Append one record; see penstock.Stream.append. If the task is cancelled while it waits,
        the record may or may not have been appended."""
        new = NewRecord(body, key, headers)
        return (await self._driver.run_async(self._source.append([new], durability)))[0]

    async def append_many(
        self, records: Iterable[Records], durability: str | None = None
    ) -> list[int]:
        """Append many records with one sync; see penstock.Stream.append_many."""
        return await self._driver.run_async(self._source.append(records_of(records), durability))

    def read(
        self, since: Since = None, offset: Offset = None, partition: int | None = None,
        reader: str | None = None, *, follow: bool = False, timeout: float | None = None,
        max_records: int | None = None, on_gap: str = TELL,
    ) -> AsyncGenerator[StreamRecord, None]:  # fmt: skip
        """Yield records from a place on, for `async for`; see penstock.Stream.read."""
        limits = PassLimits(follow=follow, timeout=timeout, max_records=max_records, on_gap=on_gap)
        return iterate(self._driver, self._reading(since, offset, partition, reader, limits))

    def __aiter__(self) -> AsyncGenerator[StreamRecord, None]:
        """Yield all records that are there now, from the first."""
        return self.read()

    async def reader(self, name: str, since: Since = None, offset: Offset = None) -> "AsyncReader":
        """Return the reader of this name; see penstock.Stream.reader."""
        calls = self._reader_calls(name, since, offset)
        await self._driver.run_async(calls.open())
        return AsyncReader(self._driver, calls)

    async def find(self, when: Moment, partition: int = 0) -> int:
        """Return the offset of the first record of a moment or later; see penstock.Stream.find."""
        check_partition(self._source, partition)
        time_us = moment_us(when, self._source.wall_us())
        return await self._driver.run_async(self._source.find(partition, time_us))

    async def retain(self) -> int:
        """Apply retention now; see penstock.Stream.retain."""
        return await self._driver.run_async(self._source.retain())

    async def delete(self) -> None:
        """Delete the stream with all that it holds."""
        await self._driver.run_async(self._source.delete())


class AsyncReader(ReaderBase):
    """A named reader of a stream, as `penstock.Stream.reader` returns one for threads."""

    _driver: AsyncRunner

    def __init__(self, driver: AsyncRunner, calls: NamedReader) -> None:
        super().__init__(driver, calls)

    def read(
        self, *, follow: bool = False, timeout: float | None = None,
        max_records: int | None = None, on_gap: str = TELL,
    ) -> AsyncGenerator[StreamRecord, None]:  # fmt: skip
        """Yield records from where the reader goes on; the options are those of Stream.read."""
        limits = PassLimits(follow=follow, timeout=timeout, max_records=max_records, on_gap=on_gap)
        return iterate(self._driver, self._calls.reading(limits))

    def __aiter__(self) -> AsyncGenerator[StreamRecord, None]:
        """Yield records from where the reader goes on to the last that is there now."""
        return self.read()

    async def commit(self, record: StreamRecord | None = None, *, wait: bool = False) -> None:
        """Commit all records up to this one, or to the last that was read. wait: until it is on
        disk."""
        await self._driver.run_async(self._calls.commit(record, is_safe=wait))

    async def delete(self) -> None:
        """Delete the reader; the next one of this name is new."""
        await self._driver.run_async(self._calls.delete())


async def iterate(driver: AsyncRunner, reading: StreamPass) -> AsyncGenerator[StreamRecord, None]:
    """Yield the records of a pass one by one."""
    try:
        while records := await driver.run_async(reading.next()):
            for reading.at, record in enumerate(records):
                yield record
    finally:
        await driver.run_async(reading.end())
