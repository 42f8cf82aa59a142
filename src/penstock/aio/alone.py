"""Streams without a box, for asyncio: `penstock.aio.open_stream` and `penstock.aio.persist`.

    async with aio.open_stream("events.d") as s:
        await s.append(b"order 1 came in")

    async for event in aio.persist(events(), "events.d"):
        ...

The core and its thread are those of `penstock.embedded.alone_stream`. Calls run on the loop's
thread as far as they get without waiting, and wait with a future. The stream's thread syncs the
disk, without the lock except where a page ends.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable
from pathlib import Path
from typing import Any, Self, TypeVar

from penstock.aio.box import AsyncStream, FutureWaiter, LoopRunner, Opening
from penstock.embedded.alone_stream import (
    AloneDriver,
    AloneSettings,
    AloneStreamSource,
    ForceEvery,
    driver_of,
    settings_of,
)
from penstock.embedded.events import OnEvent
from penstock.embedded.option_parsing import Size, Time
from penstock.embedded.persist import (
    Decode,
    Encode,
    PersistedConsumer,
    persist_settings,
)
from penstock.embedded.waiting import Waiter
from penstock.options import check_callable

T = TypeVar("T")


class LoopAloneDriver(LoopRunner, AloneDriver):
    """An AloneDriver whose calls wait in a loop."""

    loop: asyncio.AbstractEventLoop

    def new_waiter(self, lsn: int = 0, deadline: float | None = None) -> Waiter:
        return FutureWaiter(self.loop, lsn, 0, deadline)

    async def wait_async(self, waiter: Waiter) -> None:
        assert isinstance(waiter, FutureWaiter)
        if waiter.lsn:
            await waiter.future
        else:
            deadline = waiter.deadline
            now = self.core.clock.monotonic()
            await self.wait_future(waiter.future, None if deadline is None else deadline - now)


class AsyncAloneStream(AsyncStream):
    """A stream without a box, as penstock.AloneStream; the methods that wait are coroutines."""

    def __init__(self, driver: LoopAloneDriver, source: AloneStreamSource) -> None:
        super().__init__(driver, source)
        self._alone = driver
        self._calls = source

    @property
    def path(self) -> str:
        """The directory."""
        return self._alone.path

    async def force(self) -> None:
        """Wait until all that was appended is on disk; see penstock.AloneStream.force."""
        await self._alone.run_async(self._calls.force())

    async def close(self) -> None:
        """Close the stream; see penstock.AloneStream.close. If the task is cancelled, closing goes
        on."""
        await asyncio.shield(asyncio.to_thread(self._alone.close))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def _opened(
    directory: str | Path, settings: AloneSettings, on_event: OnEvent | None
) -> AsyncAloneStream:
    loop = asyncio.get_running_loop()

    def in_thread() -> LoopAloneDriver:
        driver = driver_of(LoopAloneDriver, directory, settings, on_event)
        driver.loop = loop
        return driver

    driver = await asyncio.to_thread(in_thread)
    return AsyncAloneStream(driver, AloneStreamSource(driver))


def open_stream(
    directory: str | Path, *, page_bytes: Size = "64 MiB", force_every: ForceEvery = 1,
    max_age: Time | None = None, max_bytes: Size | None = None, max_records: int | None = None,
    on_event: OnEvent | None = None,
) -> Opening[AsyncAloneStream]:  # fmt: skip
    """Open a stream as penstock.open_stream does: `s = await open_stream(...)`, or `async with
    open_stream(...) as s:`."""

    async def make() -> AsyncAloneStream:
        settings = settings_of(force_every, page_bytes, max_age, max_bytes, max_records)
        return await _opened(directory, settings, on_event)

    return Opening(make)


async def persist(
    iterable: AsyncIterable[T], directory: str | Path, *, encode: Encode[T] | None = None,
    decode: Decode[T] | None = None, force_every: ForceEvery = 1, page_bytes: Size = "64 MiB",
    on_event: OnEvent | None = None,
) -> AsyncGenerator[T, None]:  # fmt: skip
    """Yield the items of an async iterable by way of the disk, as penstock.persist does. A task
    takes items from the iterable. All errors are raised in the loop. A loop that is left early
    should close the iterator, as `contextlib.aclosing` does: this cancels the task where it waits
    for the iterable; an item that the iterable has given is on disk."""
    check_callable("encode", encode)
    check_callable("decode", decode)
    settings = persist_settings(force_every, page_bytes)
    stream = await _opened(directory, settings, on_event)
    producer = asyncio.create_task(_produce(iterable, stream, encode))
    try:
        consumer = PersistedConsumer(stream._calls)
        while (body := await stream._alone.run_async(consumer.next())) is not None:
            item: Any = body if decode is None else decode(body)
            yield item
        await producer  # raises what it raised
    finally:
        producer.cancel()
        await asyncio.gather(producer, return_exceptions=True)
        await stream.close()


async def _produce(
    iterable: AsyncIterable[T], stream: AsyncAloneStream, encode: Encode[T] | None
) -> None:
    try:
        async for item in iterable:
            body: Any = item if encode is None else encode(item)
            await stream.append(body)
        await stream.force()
    finally:
        stream._calls.end()


__all__ = ["AsyncAloneStream", "open_stream", "persist"]
