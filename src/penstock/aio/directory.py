"""A box in a directory, for asyncio: its driver, and what opens it.

A call runs on the loop's thread, not one of its own, as far as it gets without waiting, and waits
with a future. The loop never waits for the disk: the puts of one turn of the loop are
written to the log together at its end, syncs run in the threads of the box, and their completion
wakes the loop, which wakes the tasks. Opening, closing, checkpoints and backups are long and run in
a thread.
"""

import asyncio
from pathlib import Path

from penstock import errors
from penstock.aio.box import AsyncBox, FutureWaiter, LoopRunner, Opening
from penstock.embedded.box import tracing_of
from penstock.embedded.core import settings_of
from penstock.embedded.directory_box import DirectoryBox, core_opener
from penstock.embedded.driver import Driver, OpenCore
from penstock.embedded.events import OnAlert, OnEvent
from penstock.embedded.option_parsing import Size
from penstock.embedded.waiting import FAILED, WOKEN, Waiter
from penstock.errors import StoppedError

BUSY_RETRY_S = 0.001  # when another thread has the lock as the loop wants to bring in completions


class LoopDriver(LoopRunner, Driver):
    """A Driver whose calls wait in a loop. The loop itself leads: each completion wakes it."""

    def __init__(self, path: str, open_core: OpenCore, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._is_turning: bool = False  # a turn is scheduled
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
        """Bring in completions, write what was appended, and wake the calls that are settled."""
        if self.lock.locked():  # the box is being reopened after an interrupt, perhaps
            self.loop.call_later(BUSY_RETRY_S, self._turn)
            return
        try:
            with self.lock:
                if not self.is_closed and self.gate is self.lock:
                    self.turn()
        except errors.StorageError:
            pass  # each waiting call raises it

    def fail(self) -> None:
        super().fail()
        self.leader = Waiter()

    def _wake_next(self) -> None:
        while self._settled:
            self._settled.popleft().wake(WOKEN)

    async def wait_async(self, waiter: Waiter) -> None:
        """Wait as Driver.wait does."""
        assert isinstance(waiter, FutureWaiter)
        if not waiter.lsn:
            await self.wait_future(waiter.future, self.seconds_left(waiter.deadline))
            return
        try:
            await waiter.future
        except BaseException:
            with self.lock:
                self._leave(waiter)
            raise
        if waiter.state == FAILED:
            self.core.engine.journal.check()
            raise StoppedError(f"a call on the box {self.path} was interrupted")


def open_directory(
    path: str | Path, *, durability: str = "disk", memory: Size = "32 MiB",
    strict: bool = False, on_event: OnEvent | None = None, on_alert: OnAlert | None = None,
    tracing: object = False, **storage: object,
) -> Opening[AsyncBox]:  # fmt: skip
    """Open a box as penstock.open does: `box = await open(...)`, or `async with open(...) as
    box:`."""

    async def make() -> AsyncBox:
        loop = asyncio.get_running_loop()

        def in_thread() -> AsyncBox:
            directory, settings = settings_of(path, durability, memory, strict, storage)
            spans = tracing_of(tracing)
            open_core = core_opener(directory, settings, on_event, on_alert)
            driver = LoopDriver(directory, open_core, loop)
            return AsyncBox(driver, DirectoryBox(driver, settings), spans)

        return await asyncio.to_thread(in_thread)

    return Opening(make)
