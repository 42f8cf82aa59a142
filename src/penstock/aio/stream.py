"""AsyncStream and AsyncReader: `penstock.Stream` and its readers for asyncio, with await.

    async for record in s.read(since="1h"):
        ...

What is counted, as `s.first` and `len(s)`, needs no await. A loop that is left early should close
its iterator, as `contextlib.aclosing` does: a reader that commits as it goes then commits at once.
"""

from collections.abc import AsyncGenerator, Iterable

from penstock.embedded.new_body import Body, Headers
from penstock.embedded.sources import AsyncRunner, StreamSource
from penstock.embedded.stream_face import ReaderFace, StreamFace
from penstock.embedded.stream_pass import TELL, Limits, StreamPass
from penstock.embedded.stream_place import Moment, Offset, Since, check_partition, moment_us
from penstock.embedded.stream_reader import ReaderCalls
from penstock.embedded.stream_record import NewRecord, Records, StreamRecord, records_of


class AsyncStream(StreamFace):
    """As penstock.Stream, whose methods it has; those that wait are coroutines."""

    _driver: AsyncRunner

    def __init__(self, driver: AsyncRunner, source: StreamSource) -> None:
        super().__init__(driver, source)

    async def append(
        self, body: Body, key: str = "", headers: Headers | None = None,
        durability: str | None = None,
    ) -> int:  # fmt: skip
        """As penstock.Stream.append. Cancelled while it waits: it may be there or not."""
        new = NewRecord(body, key, headers)
        return (await self._driver.run_async(self._source.append([new], durability)))[0]

    async def append_many(
        self, records: Iterable[Records], durability: str | None = None
    ) -> list[int]:
        """As penstock.Stream.append_many."""
        return await self._driver.run_async(self._source.append(records_of(records), durability))

    def read(
        self, since: Since = None, offset: Offset = None, partition: int | None = None,
        reader: str | None = None, *, follow: bool = False, timeout: float | None = None,
        max_records: int | None = None, on_gap: str = TELL,
    ) -> AsyncGenerator[StreamRecord, None]:  # fmt: skip
        """As penstock.Stream.read, for `async for`."""
        limits = Limits(follow=follow, timeout=timeout, max_records=max_records, on_gap=on_gap)
        return iterate(self._driver, self._reading(since, offset, partition, reader, limits))

    def __aiter__(self) -> AsyncGenerator[StreamRecord, None]:
        """All records that there are now, from the first."""
        return self.read()

    async def reader(self, name: str, since: Since = None, offset: Offset = None) -> "AsyncReader":
        """As penstock.Stream.reader."""
        calls = self._reader_calls(name, since, offset)
        await self._driver.run_async(calls.open())
        return AsyncReader(self._driver, calls)

    async def find(self, when: Moment, partition: int = 0) -> int:
        """As penstock.Stream.find."""
        check_partition(self._source, partition)
        time_us = moment_us(when, self._source.wall_us())
        return await self._driver.run_async(self._source.find(partition, time_us))

    async def retain(self) -> int:
        """As penstock.Stream.retain."""
        return await self._driver.run_async(self._source.retain())

    async def delete(self) -> None:
        """As penstock.Stream.delete."""
        await self._driver.run_async(self._source.delete())


class AsyncReader(ReaderFace):
    """As penstock's Reader, for asyncio."""

    _driver: AsyncRunner

    def __init__(self, driver: AsyncRunner, calls: ReaderCalls) -> None:
        super().__init__(driver, calls)

    def read(
        self, *, follow: bool = False, timeout: float | None = None,
        max_records: int | None = None, on_gap: str = TELL,
    ) -> AsyncGenerator[StreamRecord, None]:  # fmt: skip
        """Records from where it is; the options as Stream.read has them."""
        limits = Limits(follow=follow, timeout=timeout, max_records=max_records, on_gap=on_gap)
        return iterate(self._driver, self._calls.reading(limits))

    def __aiter__(self) -> AsyncGenerator[StreamRecord, None]:
        """Records from where it is to the last that there is now."""
        return self.read()

    async def commit(self, record: StreamRecord | None = None, *, wait: bool = False) -> None:
        """As Reader.commit."""
        await self._driver.run_async(self._calls.commit(record, is_safe=wait))

    async def delete(self) -> None:
        """As Reader.delete."""
        await self._driver.run_async(self._calls.delete())


async def iterate(driver: AsyncRunner, reading: StreamPass) -> AsyncGenerator[StreamRecord, None]:
    """The records of a pass, one by one."""
    try:
        while records := await driver.run_async(reading.next()):
            for reading.at, record in enumerate(records):
                yield record
    finally:
        await driver.run_async(reading.end())
