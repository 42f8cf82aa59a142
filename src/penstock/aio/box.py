"""The box for asyncio: `penstock.Box`, `Queue`, `Job`, `Stream` and its readers, with await.

They have the methods of those for threads; the ones that wait are coroutines. The docstrings of the
methods for threads describe them; here stands only what differs. What stands behind a box, a
directory or a broker, is a BoxSource (`penstock.embedded.sources`), the same for threads and tasks.

    async for record in s.read(since="1h"):
        ...

What is counted of a stream, as `s.first` and `len(s)`, needs no await. A loop that is left early
should close its iterator, as `contextlib.aclosing` does: a reader that commits as it goes then
commits at once.

**LoopRunner.** A call runs on the loop's thread up to where it has to wait; the driver awaits what
it yields there. A FutureWaiter may be woken by any thread: it tells the loop. An Opening is what
`open` and `get` return, to be awaited or entered.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from penstock.embedded.box import BoxBase, ScopeBase
from penstock.embedded.messages import JobBase, Message, SpanDelivery
from penstock.embedded.option_parsing import (
    Body,
    Headers,
    NewBody,
    QueueGiven,
    StreamGiven,
    Time,
    bodies_of,
    time_ms,
)
from penstock.embedded.queue import Bodies, QueueBase
from penstock.embedded.sources import (
    AsyncRunner,
    BoxSource,
    Call,
    QueueSource,
    SlowCase,
    StreamSource,
)
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
from penstock.embedded.waiting import Waiter
from penstock.errors import PenstockError, QueueEmptyError, SettledError

if TYPE_CHECKING:
    from penstock.embedded.tracing import Tracing

T = TypeVar("T")


class FutureWaiter(Waiter):
    """A Waiter that waits with a future of the loop."""

    __slots__ = ("future", "loop")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, lsn: int, mode: int, deadline: float | None
    ) -> None:
        super().__init__(lsn, mode, deadline)
        self.loop = loop
        self.future: asyncio.Future[None] = loop.create_future()

    def wake(self, state: int) -> None:
        self.state = state
        if asyncio._get_running_loop() is self.loop:
            self._done()
        else:
            try:
                self.loop.call_soon_threadsafe(self._done)
            except RuntimeError:
                pass  # the loop is closed, and with it all that waited in it

    def _done(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


class LoopRunner(ABC):
    """The part of a driver that runs calls in a loop. loop: whose tasks may call. path: of the box,
    for messages."""

    loop: asyncio.AbstractEventLoop
    path: str

    def check_loop(self) -> None:
        """Raise RuntimeError if the caller is in another loop than that of the box."""
        if asyncio._get_running_loop() is not self.loop:
            raise RuntimeError(f"the box {self.path} was opened in another loop")

    async def run_async(self, call: Call[T]) -> T:
        """Run a call in this task and return its result. What a wait raises, as CancelledError, is
        raised in the call, which cleans up."""
        self.check_loop()
        try:
            waiter = next(call)
            while True:
                try:
                    await self.wait_async(waiter)
                except BaseException as error:  # noqa: BLE001  # the call cleans up, and raises it
                    waiter = call.throw(error)
                else:
                    waiter = next(call)
        except StopIteration as stop:
            result: T = stop.value
            return result

    @abstractmethod
    async def wait_async(self, waiter: Any) -> None:
        """Wait until the call may go on; what it waits for may have failed."""

    async def wait_future(self, future: "asyncio.Future[Any]", seconds: float | None) -> None:
        """Wait for a future of the loop, at most for so many seconds; None: no limit."""
        if seconds is None:
            await future
            return
        try:
            async with asyncio.timeout(seconds):
                await future
        except TimeoutError:
            pass


class Opening(Coroutine[Any, Any, T]):
    """What can be awaited, or entered by `async with` without being awaited. It is a coroutine, so
    that `asyncio.create_task` takes it."""

    def __init__(self, make: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._make = make
        self._made: Any = None
        self._begun: Coroutine[Any, Any, T] | None = None  # as a task

    def send(self, value: Any) -> Any:
        return self._coroutine().send(value)

    def throw(self, *error: Any) -> Any:
        return self._coroutine().throw(*error)

    def close(self) -> None:
        if self._begun is not None:
            self._begun.close()

    def _coroutine(self) -> Coroutine[Any, Any, T]:
        if self._begun is None:
            self._begun = self._make()
        return self._begun

    def __await__(self) -> Generator[object, None, T]:
        return self._make().__await__()

    async def __aenter__(self) -> T:
        made = self._made = await self._make()
        return made

    async def __aexit__(self, kind: object, error: BaseException | None, at: object) -> None:
        made, self._made = self._made, None
        await made.__aexit__(kind, error, at)


class AsyncJob(JobBase):
    """A message to be settled, as penstock.Job. It settles itself in `async with`."""

    __slots__ = ("_driver",)

    def __init__(self, driver: AsyncRunner, source: QueueSource, delivery: Any) -> None:
        super().__init__(source, delivery)
        self._driver = driver

    async def ack(self) -> None:
        """Acknowledge the job; see penstock.Job.ack."""
        if not self._ack_at_once():
            await self._driver.run_async(self._source.ack([self._delivery]))
            self.is_settled = True

    async def nack(self, delay: Time | None = None) -> None:
        """Return the job; see penstock.Job.nack."""
        self._check(self._source)
        delay_ms = None if delay is None else time_ms("delay", delay)
        await self._settle(self._source.nack(self._delivery, delay_ms))

    async def reject(self) -> None:
        """Reject the job; see penstock.Job.reject."""
        self._check(self._source)
        await self._settle(self._source.reject(self._delivery))

    async def _settle(self, call: Call[None]) -> None:
        self.is_settled = True
        try:
            await self._driver.run_async(call)
        except Exception as error:
            self.is_settled = isinstance(error, SettledError)
            raise

    async def __aenter__(self) -> Self:
        self._check(self._source)
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, at: object) -> None:
        if self.is_settled:
            return
        if error is None:
            await self.ack()
            return
        try:
            await self.nack()
        except PenstockError as second:  # as after closing the box, which returns the job anyway
            error.add_note(f"the job could not be returned: {second}")


class AsyncTracedJob(AsyncJob):
    """A job of a box with tracing: what its `async with` block does is part of its span."""

    __slots__ = ()

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        delivery = self._delivery
        assert isinstance(delivery, SpanDelivery), "a traced source gave it"
        delivery.enter()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, at: object) -> None:
        delivery = self._delivery
        assert isinstance(delivery, SpanDelivery), "a traced source gave it"
        delivery.leave(error)
        await super().__aexit__(kind, error, at)


class TracedOpening(Opening[AsyncJob]):
    """What `get` of a box with tracing returns: `async with` enters the job as well."""

    async def __aenter__(self) -> AsyncJob:
        return await (await super().__aenter__()).__aenter__()


class AsyncQueue(QueueBase):
    """A queue of a box, as penstock.Queue."""

    _driver: AsyncRunner

    def __init__(self, driver: AsyncRunner, source: QueueSource) -> None:
        super().__init__(driver, source)
        self._new_job = AsyncTracedJob if source.is_traced else AsyncJob
        self._opening = TracedOpening if source.is_traced else Opening[AsyncJob]

    async def put(
        self, body: Body, *, priority: int = 0, ttl: Time | None = None, delay: Time | None = None,
        headers: Headers | None = None, durability: str | None = None, block: bool = True,
        timeout: float | None = None,
    ) -> None:  # fmt: skip
        """Put one message, and return when it is confirmed; see penstock.Queue.put. If the task is
        cancelled while it waits, the message may or may not have been put."""
        if (
            type(body) is bytes and priority == 0 and ttl is None and delay is None
            and headers is None and durability is None
        ):  # fmt: skip
            self._driver.check_loop()
            waiter = self._source.put_plain(body)
            if not isinstance(waiter, SlowCase):
                if waiter is not None:
                    await self._driver.wait_async(waiter)
                return
        new = NewBody(body, priority, ttl, delay, headers)
        call = self._source.put(new, durability, block=block, timeout_s=timeout)
        await self._driver.run_async(call)

    async def put_nowait(self, body: Body, **options: Any) -> None:
        """Put one message as `put` does with block=False: a full queue is a QueueFullError."""
        await self.put(body, block=False, **options)

    async def put_many(
        self, bodies: Iterable[Bodies], *, durability: str | None = None, block: bool = True,
        timeout: float | None = None,
    ) -> None:  # fmt: skip
        """Put many messages with one wait; see penstock.Queue.put_many."""
        news = bodies_of(bodies)
        call = self._source.put_many(news, durability, block=block, timeout_s=timeout)
        await self._driver.run_async(call)

    def get(self, timeout: float | None = None, block: bool = True) -> Opening[AsyncJob]:
        """Return the next message as a job: `job = await q.get()`, or `async with q.get() as
        job:`. See penstock.Queue.get."""
        return self._opening(lambda: self._get(timeout, block))

    async def _get(self, timeout: float | None, block: bool) -> AsyncJob:
        driver, source = self._driver, self._source
        driver.check_loop()
        delivery = source.take()
        if delivery is None:
            delivery = await driver.run_async(source.get(block=block, timeout_s=timeout))
        return self._new_job(driver, source, delivery)

    async def get_nowait(self) -> AsyncJob:
        """Return a message that is ready as a job; see penstock.Queue.get_nowait."""
        return await self._get(None, False)

    async def get_many(self, n: int, timeout: float | None = None) -> list[AsyncJob]:
        """Return up to n messages as jobs; see penstock.Queue.get_many."""
        driver, source = self._driver, self._source
        found = await driver.run_async(source.get_many(n, timeout_s=timeout))
        return [self._new_job(driver, source, delivery) for delivery in found]

    async def consume(self, timeout: float | None = None) -> AsyncGenerator[AsyncJob, None]:
        """Yield jobs for `async for`; see penstock.Queue.consume. A loop that is left early should
        close the iterator, as `contextlib.aclosing` does: only then is the job that it was at
        returned at once."""
        while True:
            try:
                job = await self._get(timeout, True)
            except QueueEmptyError:
                return
            try:
                yield job
            except BaseException:
                self._give_back(job)
                raise
            if not job.is_settled:
                await job.ack()

    async def ack(self, job: AsyncJob | Iterable[AsyncJob]) -> None:
        """Acknowledge one job or many of this queue; see penstock.Queue.ack."""
        if isinstance(job, AsyncJob):
            job._check(self._source)
            await job.ack()
            return
        jobs = self._checked(job)
        if jobs:
            await self._driver.run_async(self._source.ack([one._delivery for one in jobs]))
        for one in jobs:
            one.is_settled = True

    async def nack(self, job: AsyncJob, delay: Time | None = None) -> None:
        """Return a job of this queue; see penstock.Job.nack."""
        self._check(job)
        await job.nack(delay)

    async def reject(self, job: AsyncJob) -> None:
        """Reject a job of this queue; see penstock.Job.reject."""
        self._check(job)
        await job.reject()

    async def peek(self) -> Message | None:
        """Return the message that is next, and leave it in the queue; None if none is ready."""
        delivery = await self._driver.run_async(self._source.peek())
        return None if delivery is None else Message(delivery)

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Yield all ready messages in order, and leave them in the queue."""
        after: Any = None
        while True:
            found, after = await self._driver.run_async(self._source.browse(after))
            if not found:
                return
            for delivery in found:
                yield Message(delivery)
            await asyncio.sleep(0)  # in a directory nothing else lets other tasks run

    async def purge(self, *, delayed: bool = False) -> int:
        """Drop all ready messages; see penstock.Queue.purge."""
        return await self._driver.run_async(self._source.purge(with_delayed=delayed))

    async def delete(self) -> None:
        """Delete the queue with all that it holds."""
        await self._driver.run_async(self._source.delete())

    async def join(self, timeout: float | None = None) -> bool:
        """Wait until every message is settled; see penstock.Queue.join."""
        return await self._driver.run_async(self._source.join(timeout_s=timeout))


class AsyncTransactionScope(ScopeBase):
    """What `async with box.transaction():` enters; see penstock.Box.transaction."""

    def __init__(self, driver: AsyncRunner, source: BoxSource, durability: str | None) -> None:
        super().__init__(source, durability)
        self._driver = driver

    async def __aenter__(self) -> None:
        await self._driver.run_async(self._begin())

    async def __aexit__(self, kind: object, error: BaseException | None, at: object) -> None:
        await self._driver.run_async(self._end(is_failed=error is not None))


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


class AsyncBox(BoxBase):
    """A box of queues and streams, as penstock.Box; `penstock.aio.open` opens it."""

    _driver: AsyncRunner

    def __init__(
        self, driver: AsyncRunner, source: BoxSource, tracing: "Tracing | None" = None
    ) -> None:
        super().__init__(driver, source, tracing)

    async def queue(self, name: str, **options: Unpack[QueueGiven]) -> AsyncQueue:
        """Return the queue of this name, made if it is missing; see penstock.Box.queue."""
        driver = self._driver
        return AsyncQueue(driver, await driver.run_async(self._queue(name, options)))

    async def stream(self, name: str, **options: Unpack[StreamGiven]) -> AsyncStream:
        """Return the stream of this name, made if it is missing; see penstock.Box.stream."""
        driver = self._driver
        return AsyncStream(driver, await driver.run_async(self._source.stream(name, options)))

    async def delete(self, name: str) -> None:
        """Delete a queue or a stream with all that it holds. UnknownQueueError."""
        await self._driver.run_async(self._source.delete(name))

    def transaction(self, *, durability: str | None = None) -> AsyncTransactionScope:
        """Return a transaction for an `async with` block: what this task puts, appends and
        acknowledges in the block happens together, or not at all. Entering it raises
        TransactionError if this task has one open already."""
        return AsyncTransactionScope(self._driver, self._source, durability)

    async def sync(self) -> None:
        """Wait until everything so far is on disk; see penstock.Box.sync."""
        await self._driver.run_async(self._source.sync())

    async def checkpoint(self) -> bool:
        """Make a checkpoint now, in a thread; see penstock.Box.checkpoint."""
        return await asyncio.to_thread(self._source.checkpoint)

    async def backup(self, path: str | Path) -> None:
        """Copy the box into a new directory, in a thread; see penstock.Box.backup."""
        await asyncio.to_thread(self._source.backup, path)

    async def close(self) -> None:
        """Close the box; see penstock.Box.close. If the task is cancelled, closing goes on."""
        self._source.refuse_calls()
        await asyncio.shield(asyncio.to_thread(self._source.close))

    async def __aenter__(self) -> "AsyncBox":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
