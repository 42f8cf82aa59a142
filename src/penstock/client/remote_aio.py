"""The box on a broker for asyncio: the same names, with await; `penstock.aio.open("amqp://...")`.

Calls are those of the blocking box (remote_calls.py): they run on the loop's thread as far as they
get without waiting, and wait with a future that the connection's thread completes. Nothing that
awaits holds up the loop: sending never waits, connecting has a thread of its own.

What is counted (`len(q)`, `q.unacked`, `box.queues()`) needs no await, as in the embedded library,
and does hold up the loop, until the broker has answered.

A box belongs to the loop that it was opened in, a transaction to the task that opened it.
"""

import asyncio
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Iterable,
)
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, Unpack

from penstock import errors
from penstock.client import remote_calls
from penstock.client.amqp_url import AmqpUrl
from penstock.client.client_errors import ConnectionLostError
from penstock.client.remote_asking import operate, operate_on
from penstock.client.remote_box import OnEvent, RemoteBoxView, RemoteScopeView, driver_of
from penstock.client.remote_driver import Call, RemoteDriver, Wait
from penstock.client.remote_job import RemoteJobView
from penstock.client.remote_message import RemoteMessage
from penstock.client.remote_queue import Bodies, RemoteQueueView
from penstock.client.remote_stream import open_stream
from penstock.client.taken import Taken
from penstock.embedded.awaited import AwaitedSettling, Opening
from penstock.embedded.awaited_stream import AwaitedStream
from penstock.embedded.new_body import Body, Headers, NewBody, bodies_of
from penstock.embedded.spellings import Given, Time, time_ms
from penstock.embedded.stream_spellings import StreamGiven
from penstock.errors import AMQPError

T = TypeVar("T")


class RemoteLoopDriver(RemoteDriver):
    """A RemoteDriver whose calls wait in a loop."""

    def __init__(self, url: AmqpUrl, mode: int, tell: Callable[[str, str], None]) -> None:
        super().__init__(url, mode, tell)
        self._loop = asyncio.get_running_loop()

    def caller(self) -> object:
        return asyncio.current_task()

    async def run_async(self, call: Call[T]) -> T:
        """Run a call in this task. RuntimeError in another loop than that of the box."""
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError(f"the box {self.path} was opened in another loop")
        try:
            wait = next(call)
            while True:
                try:
                    await self._wait_async(wait)
                except BaseException as error:  # noqa: BLE001  # the call cleans up, and raises it
                    wait = call.throw(error)
                else:
                    wait = next(call)
        except StopIteration as stop:
            result: T = stop.value
            return result
        except (ConnectionLostError, AMQPError):
            self.check()
            raise

    async def _wait_async(self, wait: Wait) -> None:
        done = self._loop.create_future()

        def finish() -> None:
            if not done.done():
                done.set_result(None)

        def completed(_: object) -> None:
            try:
                self._loop.call_soon_threadsafe(finish)
            except RuntimeError:
                pass  # the loop is closed, and with it all that waited in it

        wait.future.add_done_callback(completed)
        if wait.deadline is None:
            await done
            return
        try:
            async with asyncio.timeout(max(wait.deadline - time.monotonic(), 0.0)):
                await done
        except TimeoutError:
            pass


class RemoteAioJob(AwaitedSettling, RemoteJobView):
    """A message in somebody's hands; see remote_job.py. It settles itself in `async with`."""

    __slots__ = ("_queue",)

    def __init__(self, queue: "RemoteAioQueue", taken: Taken) -> None:
        super().__init__(taken)
        self._queue: RemoteAioQueue = queue


class RemoteAioQueue(RemoteQueueView):
    """As RemoteQueue, whose methods it has; those that wait are coroutines."""

    _driver: RemoteLoopDriver

    def __init__(self, driver: RemoteLoopDriver, state: Any) -> None:
        super().__init__(driver, state)

    async def put(
        self, body: Body, *, priority: int = 0, ttl: Time | None = None, delay: Time | None = None,
        headers: Headers | None = None, durability: str | None = None, block: bool = True,
        timeout: float | None = None,
    ) -> None:  # fmt: skip
        """As RemoteQueue.put. Cancelled while it waits for its confirm: it may be there or not."""
        new = NewBody(body, priority, ttl, delay, headers)
        driver = self._driver
        mode = self._mode(durability)
        await driver.run_async(
            remote_calls.put(driver, self._state, new, mode, block=block, timeout_s=timeout)
        )

    async def put_nowait(self, body: Body, **options: Any) -> None:
        """As put with block=False: QueueFullError at once."""
        await self.put(body, block=False, **options)

    async def put_many(
        self, bodies: Iterable[Bodies], *, durability: str | None = None, block: bool = True,
        timeout: float | None = None,
    ) -> None:  # fmt: skip
        """As RemoteQueue.put_many."""
        news = bodies_of(bodies)
        driver = self._driver
        mode = self._mode(durability)
        await driver.run_async(
            remote_calls.put_many(driver, self._state, news, mode, block=block, timeout_s=timeout)
        )

    def get(self, timeout: float | None = None, block: bool = True) -> Opening[RemoteAioJob]:
        """As RemoteQueue.get: `job = await q.get()`, or `async with q.get() as job:`."""
        return Opening(lambda: self._get(timeout, block))

    async def _get(self, timeout: float | None, block: bool) -> RemoteAioJob:
        driver = self._driver
        call = remote_calls.get(driver, self._state, block=block, timeout_s=timeout)
        return RemoteAioJob(self, await driver.run_async(call))

    async def get_nowait(self) -> RemoteAioJob:
        """A message that is there; QueueEmptyError."""
        return await self._get(None, False)

    async def get_many(self, n: int, timeout: float | None = None) -> list[RemoteAioJob]:
        """As RemoteQueue.get_many."""
        driver = self._driver
        call = remote_calls.get_many(driver, self._state, n, timeout_s=timeout)
        return [RemoteAioJob(self, taken) for taken in await driver.run_async(call)]

    async def consume(self, timeout: float | None = None) -> AsyncGenerator[RemoteAioJob, None]:
        """As RemoteQueue.consume, for `async for`. A loop that is left early should close it, as
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

    async def ack(self, job: RemoteAioJob | Iterable[RemoteAioJob]) -> None:
        """Acknowledge one job or many: they are done, and gone."""
        jobs = [job] if isinstance(job, RemoteAioJob) else list(job)
        for one in jobs:
            self._check(one, one._queue._state)
        driver = self._driver
        taken = [one.taken for one in jobs]
        await driver.run_async(remote_calls.ack(driver, self._state, taken))
        for one in jobs:
            one.is_settled = True

    async def nack(self, job: RemoteAioJob, delay: Time | None = None) -> None:
        """Return a job: see RemoteJob.nack."""
        self._check(job, job._queue._state)
        delay_ms = None if delay is None else time_ms("delay", delay)
        job.is_settled = True
        driver = self._driver
        await driver.run_async(remote_calls.nack(driver, self._state, job.taken, delay_ms))

    async def reject(self, job: RemoteAioJob) -> None:
        """Reject a job: see RemoteJob.reject."""
        self._check(job, job._queue._state)
        job.is_settled = True
        driver = self._driver
        await driver.run_async(remote_calls.reject(driver, self._state, job.taken))

    async def peek(self) -> RemoteMessage | None:
        """The message that would be next, and stays; None if none is ready."""
        return await self._driver.run_async(remote_calls.peek(self._driver, self._state))

    async def __aiter__(self) -> AsyncIterator[RemoteMessage]:
        """Look at all messages that are ready, in order; they stay."""
        for call in remote_calls.pages(self._driver, self._state):
            messages = await self._driver.run_async(call)
            if not messages:
                return
            for message in messages:
                yield message

    async def purge(self, *, delayed: bool = False) -> int:
        """As RemoteQueue.purge."""
        call = operate_on(self._driver, self._state, "box.purge", with_delayed=delayed)
        return int(await self._driver.run_async(call))

    async def delete(self) -> None:
        """Delete the queue with all that it holds."""
        await self._driver.run_async(remote_calls.delete_state(self._driver, self._state))

    async def join(self, timeout: float | None = None) -> bool:
        """As RemoteQueue.join."""
        return await self._driver.run_async(
            remote_calls.join(self._driver, self._state, timeout_s=timeout)
        )


class RemoteAioScope(RemoteScopeView):
    """What `async with box.transaction():` enters."""

    _box: "RemoteAioBox"

    async def __aenter__(self) -> None:
        await self._box._driver.run_async(self._enter())

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        await self._box._driver.run_async(self._leave(is_failed=error is not None))


class RemoteAioBox(RemoteBoxView):
    """As RemoteBox, whose methods it has; those that wait are coroutines."""

    _driver: RemoteLoopDriver

    async def queue(self, name: str, **options: Unpack[Given]) -> RemoteAioQueue:
        """As RemoteBox.queue."""
        driver = self._driver
        state = await driver.run_async(remote_calls.declare(driver, name, options))
        return RemoteAioQueue(driver, state)

    async def stream(self, name: str, **options: Unpack[StreamGiven]) -> AwaitedStream:
        """As RemoteBox.stream."""
        driver = self._driver
        return AwaitedStream(driver, await driver.run_async(open_stream(driver, name, options)))

    async def delete(self, name: str) -> None:
        """Delete a queue or a stream with all that it holds; UnknownQueueError."""
        await self._driver.run_async(remote_calls.delete(self._driver, name))

    def transaction(self, *, durability: str | None = None) -> RemoteAioScope:
        """What this task puts and acknowledges in the `async with` block happens together, or not
        at all. TransactionError: one is open already."""
        return RemoteAioScope(self, durability)

    async def sync(self) -> None:
        """As RemoteBox.sync."""
        await self._driver.run_async(operate(self._driver, "box.sync", {}))

    async def checkpoint(self) -> bool:
        """As RemoteBox.checkpoint."""
        raise remote_calls.operators_only(self._driver, "checkpoint")

    async def backup(self, path: str | Path) -> None:
        """As RemoteBox.backup."""
        raise remote_calls.operators_only(self._driver, "backup")

    async def close(self) -> None:
        """As RemoteBox.close."""
        await asyncio.shield(asyncio.to_thread(self._driver.close))

    async def __aenter__(self) -> "RemoteAioBox":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        await self.close()


def open_remote_aio(
    url: str, *, durability: str = "disk", on_event: OnEvent | None = None, **others: object
) -> Opening[RemoteAioBox]:
    """As open_remote: `box = await open(...)`, or `async with open(...) as box:`."""

    async def make() -> RemoteAioBox:
        driver = driver_of(url, durability, on_event, others, RemoteLoopDriver)
        assert isinstance(driver, RemoteLoopDriver)
        try:
            await driver.run_async(driver.linked())
        except BaseException:
            driver.close()
            raise
        return RemoteAioBox(driver)

    return Opening(make)
