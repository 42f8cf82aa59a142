"""LoopCalls: calls that run in a task of asyncio, and wait with a future.

What threads do with `Driver.run` tasks do with `run_async`: the call runs on the loop's thread up
to where it has to wait, and what it yields there is a FutureWaiter. Whoever wakes that one may be
in any thread: the loop is told. A box and a stream that stands alone wait alike.

Not here: what is waited for (`aio`, `alone_aio`).
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Generator
from typing import Any, TypeVar

from penstock.embedded.waiting import Waiter

T = TypeVar("T")


class FutureWaiter(Waiter):
    """Waits with a future of the loop."""

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


class LoopCalls(ABC):
    """Of a driver in a loop. loop: whose tasks may call; path: for messages."""

    loop: asyncio.AbstractEventLoop
    path: str

    def check_loop(self) -> None:
        """RuntimeError in another loop than that of the box."""
        if asyncio._get_running_loop() is not self.loop:
            raise RuntimeError(f"the box {self.path} was opened in another loop")

    async def run_async(self, call: Generator[Any, None, T]) -> T:
        """Run a call in this task."""
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
    async def wait_async(self, waiter: Waiter) -> None:
        """Until the call may go on; what it waits for may have failed."""

    @abstractmethod
    def monotonic(self) -> float:
        """The time of deadlines, in seconds."""

    async def wait_turn(self, waiter: FutureWaiter) -> None:
        """Until it is woken, or its deadline has come."""
        if waiter.deadline is None:
            await waiter.future
            return
        try:
            async with asyncio.timeout(waiter.deadline - self.monotonic()):
                await waiter.future
        except TimeoutError:
            pass
