"""LoopRunner: runs the calls of a box or a stream in the tasks of one loop.

A call runs on the loop's thread up to where it has to wait; the driver awaits what it yields there.
A FutureWaiter may be woken by any thread: it tells the loop. An Opening is what `open` and `get`
return, to be awaited or entered.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Generic, TypeVar

from penstock.embedded.sources import Call
from penstock.embedded.waiting import Waiter

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


class Opening(Generic[T]):
    """What can be awaited, or entered by `async with` without being awaited."""

    def __init__(self, make: Callable[[], Awaitable[T]]) -> None:
        self._make = make
        self._made: Any = None

    def __await__(self) -> Generator[object, None, T]:
        return self._make().__await__()

    async def __aenter__(self) -> T:
        made = self._made = await self._make()
        return made

    async def __aexit__(self, kind: object, error: BaseException | None, at: object) -> None:
        made, self._made = self._made, None
        await made.__aexit__(kind, error, at)
