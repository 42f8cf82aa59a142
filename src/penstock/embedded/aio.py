"""The library for asyncio: the same names, with await; `penstock.aio.open`.

    async with penstock.aio.open("jobs.d") as box:
        q = await box.queue("resize", max_attempts=5)
        await q.put(b"picture 7")
        async with q.get(timeout=5) as job:
            await work(job.body)

No thread per call: a call runs on the loop's thread, as far as it gets without waiting, and waits
with a future. The disk is never waited for on the loop: puts of one turn of the loop go to the log
together at its end, syncs run in the box's threads, and their completion wakes the loop, which
wakes the tasks (`LoopDriver`). Opening, closing, checkpoints and backups, which are long, run in a
thread.

What a box waits for belongs to the loop it was opened in, and a transaction to the task that opened
it. What calls do is in `calls`, for both; how they wait in a loop, in `loop_waiting`.
"""

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Iterable,
    Mapping,
)
from pathlib import Path
from types import TracebackType
from typing import Unpack

from penstock import errors
from penstock.embedded import calls, upkeep_calls
from penstock.embedded.awaited import AwaitedSettling, Opening
from penstock.embedded.awaited_stream import AwaitedStream
from penstock.embedded.box import BoxView, OnAlert, OnEvent, ScopeView
from penstock.embedded.box_thread import BoxThread
from penstock.embedded.core import Core, Settings
from penstock.embedded.driver import Driver
from penstock.embedded.job import JobView, Message
from penstock.embedded.loop_waiting import FutureWaiter, LoopCalls
from penstock.embedded.new_body import Body, Headers, NewBody, bodies_of
from penstock.embedded.queue import Bodies, QueueView, SlowWay
from penstock.embedded.queue_state import QueueState
from penstock.embedded.settings import settings_of
from penstock.embedded.spellings import Given, Size, Time
from penstock.embedded.stream_spellings import StreamGiven
from penstock.embedded.waiting import FAILED, WOKEN, Waiter
from penstock.errors import StoppedError
from penstock.queues.backing_queue import Delivery

BUSY_RETRY_S = 0.001  # when another thread has the lock as the loop wants to bring in completions


class LoopDriver(LoopCalls, Driver):
    """A Driver whose calls wait in a loop. The loop itself leads: it is told of completions."""

    def __init__(
        self,
        path: str,
        open_core: Callable[[BoxThread, Mapping[str, QueueState]], Core],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.loop = loop
        self._is_turning: bool = False  # a turn is on its way
        self._is_flushing: bool = False
        super().__init__(path, open_core)
        self.leader = Waiter()

    def new_waiter(self, lsn: int = 0, mode: int = 0, deadline: float | None = None) -> Waiter:
        return FutureWaiter(self.loop, lsn, mode, deadline)

    def caller(self) -> object:
        return asyncio.current_task()

    def flush_soon(self) -> None:
        if not self._is_flushing:
            self._is_flushing = True
            self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flushing = False
        self._turn()

    def on_complete(self) -> None:
        if not self._is_turning:
            self._is_turning = True
            try:
                self.loop.call_soon_threadsafe(self._complete)
            except RuntimeError:
                pass  # the loop is closed

    def _complete(self) -> None:
        self._is_turning = False
        self._turn()

    def _turn(self) -> None:
        """On the loop: what was completed, what was appended, and who is settled by it."""
        if self.lock.locked():  # the box is being mended, perhaps
            self.loop.call_later(BUSY_RETRY_S, self._turn)
            return
        try:
            with self.lock:
                if not self.is_closed and self.gate is self.lock:
                    self.turn()
        except errors.StorageError:
            pass  # those who wait were told

    def fail(self) -> None:
        super().fail()
        self.leader = Waiter()

    def _ring_next(self) -> None:
        while self._settled:
            self._settled.popleft().wake(WOKEN)

    def monotonic(self) -> float:
        return self.core.clock.monotonic()

    async def wait_async(self, waiter: Waiter) -> None:
        """As Driver.wait."""
        assert isinstance(waiter, FutureWaiter)
        if not waiter.lsn:
            await self.wait_turn(waiter)
            return
        try:
            await waiter.future
        except BaseException:
            with self.lock:
                self._leave(waiter)
            raise
        if waiter.state == FAILED:
            self.core.engine.check()
            raise StoppedError(f"a call on the box {self.path} was interrupted")


class Job(AwaitedSettling, JobView):
    """A message in somebody's hands; see penstock.embedded.job. It settles itself in `async
    with`."""

    __slots__ = ("_queue",)

    def __init__(self, queue: "Queue", delivery: Delivery) -> None:
        super().__init__(delivery)
        self._queue: Queue = queue


class Queue(QueueView):
    """As penstock.Queue, whose methods it has; those that wait are coroutines."""

    _driver: LoopDriver

    def __init__(self, driver: LoopDriver, state: QueueState) -> None:
        super().__init__(driver, state)

    async def put(
        self, body: Body, *, priority: int = 0, ttl: Time | None = None, delay: Time | None = None,
        headers: Headers | None = None, durability: str | None = None, block: bool = True,
        timeout: float | None = None,
    ) -> None:  # fmt: skip
        """As penstock.Queue.put. Cancelled while it waits for the disk: it may be there or not."""
        if (
            type(body) is bytes and priority == 0 and ttl is None and delay is None
            and headers is None and durability is None
        ):  # fmt: skip
            self._driver.check_loop()
            waiter = self._put_plain(body)
            if not isinstance(waiter, SlowWay):
                if waiter is not None:
                    await self._driver.wait_async(waiter)
                return
        new = NewBody(body, priority, ttl, delay, headers)
        call = calls.put(
            self._driver, self._state, new, self._mode(durability), block=block, timeout_s=timeout
        )
        await self._driver.run_async(call)

    async def put_nowait(self, body: Body, **options: object) -> None:
        """As put with block=False: QueueFullError at once."""
        await self.put(body, block=False, **options)  # type: ignore[arg-type]

    async def put_many(
        self, bodies: Iterable[Bodies], *, durability: str | None = None, block: bool = True,
        timeout: float | None = None,
    ) -> None:  # fmt: skip
        """As penstock.Queue.put_many."""
        call = calls.put_many(
            self._driver, self._state, bodies_of(bodies), self._mode(durability), block=block,
            timeout_s=timeout,
        )  # fmt: skip
        await self._driver.run_async(call)

    def get(self, timeout: float | None = None, block: bool = True) -> Opening[Job]:
        """As penstock.Queue.get: `job = await q.get()`, or `async with q.get() as job:`."""
        return Opening(lambda: self._get(timeout, block))

    async def _get(self, timeout: float | None, block: bool) -> Job:
        self._driver.check_loop()
        delivery = self._take()
        if delivery is None:
            call = calls.get(self._driver, self._state, block=block, timeout_s=timeout)
            delivery = await self._driver.run_async(call)
        return Job(self, delivery)

    async def get_nowait(self) -> Job:
        """A message that is there; QueueEmptyError. It waits for no other, at most for a sync."""
        return await self._get(None, False)

    async def get_many(self, n: int, timeout: float | None = None) -> list[Job]:
        """As penstock.Queue.get_many."""
        call = calls.get_many(self._driver, self._state, n, timeout_s=timeout)
        return [Job(self, delivery) for delivery in await self._driver.run_async(call)]

    async def consume(self, timeout: float | None = None) -> AsyncGenerator[Job, None]:
        """As penstock.Queue.consume, for `async for`. A loop that is left early should close it, as
        `contextlib.aclosing` does: only then is the job that it was at returned at once."""
        while True:
            try:
                job = await self._get(timeout, True)
            except errors.QueueEmptyError:
                return
            try:
                yield job
            except BaseException:
                self._give_back(job)
                raise
            if not job.is_settled:
                await job.ack()

    async def ack(self, job: Job | Iterable[Job]) -> None:
        """Acknowledge one job or many: they are done, and gone. Waits for no sync."""
        if isinstance(job, Job):
            self._check(job, job._queue._state)
            self._ack_one(job)
            return
        jobs = list(job)
        for one in jobs:
            self._check(one, one._queue._state)
        if jobs:
            calls.ack(self._driver, self._state, [one.tag for one in jobs])
        for one in jobs:
            one.is_settled = True

    async def nack(self, job: Job, delay: Time | None = None) -> None:
        """Return a job: see penstock.Job.nack."""
        self._check(job, job._queue._state)
        self._nack(job, delay)

    async def reject(self, job: Job) -> None:
        """Reject a job: see penstock.Job.reject."""
        self._check(job, job._queue._state)
        self._reject(job)

    async def peek(self) -> Message | None:
        """The message that would be next, and stays; None if none is ready."""
        return self._peek()

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Look at all messages that are ready, in order; they stay."""
        for some in self._browse():
            for message in some:
                yield message
            await asyncio.sleep(0)

    async def purge(self, *, delayed: bool = False) -> int:
        """As penstock.Queue.purge."""
        call = calls.purge(self._driver, self._state, with_delayed=delayed)
        return await self._driver.run_async(call)

    async def delete(self) -> None:
        """Delete the queue with all that it holds."""
        calls.locked(self._driver, lambda: calls.open_state(self._state))
        await self._driver.run_async(calls.delete(self._driver, self.name))

    async def join(self, timeout: float | None = None) -> bool:
        """As penstock.Queue.join."""
        call = calls.join(self._driver, self._state, timeout_s=timeout)
        return await self._driver.run_async(call)


# ---- boxes ---------------------------------------------------------------------------------------


class TransactionScope(ScopeView):
    """What `async with box.transaction():` enters."""

    _box: "Box"

    async def __aenter__(self) -> None:
        self._begin()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        driver = self._box._driver
        assert self._transaction is not None, "it was entered"
        if error is None:
            await driver.run_async(calls.commit(driver, self._transaction))
        else:
            calls.rollback(driver, self._transaction)


class Box(BoxView):
    """As penstock.Box, whose methods it has; those that wait are coroutines."""

    _driver: LoopDriver

    def __init__(
        self, path: str, settings: Settings, on_event: OnEvent | None, on_alert: OnAlert | None,
        loop: asyncio.AbstractEventLoop,
    ) -> None:  # fmt: skip
        self._loop = loop
        super().__init__(path, settings, on_event, on_alert)

    def _make_driver(self) -> Driver:
        return LoopDriver(self.path, self._open_core, self._loop)

    async def queue(self, name: str, **options: Unpack[Given]) -> Queue:
        """As penstock.Box.queue."""
        state, waiter = self._state(name, options)
        if waiter is not None:
            await self._driver.wait_async(waiter)
        return Queue(self._driver, state)

    async def stream(self, name: str, **options: Unpack[StreamGiven]) -> AwaitedStream:
        """As penstock.Box.stream."""
        source, waiter = self._source(name, options)
        if waiter is not None:
            await self._driver.wait_async(waiter)
        return AwaitedStream(self._driver, source)

    async def delete(self, name: str) -> None:
        """Delete a queue or a stream with all that it holds; UnknownQueueError."""
        await self._driver.run_async(calls.delete(self._driver, name))

    def transaction(self, *, durability: str | None = None) -> TransactionScope:
        """What this task puts and acknowledges in the `async with` block happens together, or not
        at all. TransactionError: one is open already."""
        return TransactionScope(self, durability)

    async def sync(self) -> None:
        """As penstock.Box.sync."""
        await self._driver.run_async(calls.sync(self._driver))

    async def checkpoint(self) -> bool:
        """As penstock.Box.checkpoint."""
        return await asyncio.to_thread(upkeep_calls.checkpoint, self._driver)

    async def backup(self, path: str | Path) -> None:
        """As penstock.Box.backup."""
        await asyncio.to_thread(upkeep_calls.backup, self._driver, path)

    async def close(self) -> None:
        """As penstock.Box.close."""
        self._driver.shut()
        await asyncio.shield(asyncio.to_thread(self._driver.close))

    async def __aenter__(self) -> "Box":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        await self.close()


def open(  # noqa: A001  # penstock.aio.open
    path: str | Path, *, durability: str = "disk", memory: Size = "32 MiB",
    strict: bool = False, on_event: OnEvent | None = None, on_alert: OnAlert | None = None,
    **storage: object,
) -> Opening[Box]:  # fmt: skip
    """As penstock.open: `box = await open(...)`, or `async with open(...) as box:`."""

    async def make() -> Box:
        loop = asyncio.get_running_loop()

        def in_thread() -> Box:
            directory, settings = settings_of(path, durability, memory, strict, storage)
            return Box(directory, settings, on_event, on_alert, loop)

        return await asyncio.to_thread(in_thread)

    return Opening(make)
