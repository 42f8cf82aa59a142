"""A box on a broker, for asyncio: its driver, and what opens it.

Calls run on the loop's thread as far as they get without waiting, and wait with a future that the
connection's thread completes. Nothing that awaits blocks the loop: sending never waits, connecting
has a thread of its own. Only what needs no await, as `len(q)`, blocks the loop until the broker has
answered.
"""

import asyncio
from typing import TypeVar

from penstock.aio.box import AsyncBox, LoopRunner, Opening
from penstock.amqp_url import AmqpUrl
from penstock.client.box import RemoteBox, driver_of
from penstock.client.driver import RemoteDriver, Wait
from penstock.embedded.box import tracing_of
from penstock.embedded.events import OnEvent
from penstock.embedded.sources import Call
from penstock.errors import AMQPError, ConnectionLostError

T = TypeVar("T")


class RemoteLoopDriver(LoopRunner, RemoteDriver):
    """A RemoteDriver whose calls wait in a loop."""

    def __init__(self, url: AmqpUrl, mode: int, on_event: OnEvent) -> None:
        super().__init__(url, mode, on_event)
        self.loop = asyncio.get_running_loop()

    def caller(self) -> object:
        return asyncio.current_task()

    async def run_async(self, call: Call[T]) -> T:
        try:
            return await super().run_async(call)
        except (ConnectionLostError, AMQPError):
            self.check()
            raise

    async def wait_async(self, wait: Wait) -> None:
        """Wait as RemoteDriver.wait does."""
        done = self.loop.create_future()

        def finish() -> None:
            if not done.done():
                done.set_result(None)

        def completed(_: object) -> None:
            try:
                self.loop.call_soon_threadsafe(finish)
            except RuntimeError:
                pass  # the loop is closed, and with it all that waited in it

        wait.future.add_done_callback(completed)
        await self.wait_future(done, wait.seconds_left())


def open_remote_async(
    url: str,
    *,
    durability: str = "disk",
    on_event: OnEvent | None = None,
    cacerts: str | None = None,
    certfile: str | None = None,
    keyfile: str | None = None,
    verify: bool | None = None,
    tracing: object = False,
    **others: object,
) -> Opening[AsyncBox]:
    """Open the box of a broker as penstock.open does: `box = await open(...)`, or `async with
    open(...) as box:`."""

    async def make() -> AsyncBox:
        trust = {"cacerts": cacerts, "certfile": certfile, "keyfile": keyfile, "verify": verify}
        spans = await asyncio.to_thread(tracing_of, tracing)
        driver = driver_of(url, durability, on_event, others, trust, RemoteLoopDriver)
        assert isinstance(driver, RemoteLoopDriver)
        try:
            await driver.run_async(driver.linked())
        except BaseException:
            driver.close()
            raise
        return AsyncBox(driver, RemoteBox(driver), spans)

    return Opening(make)
