import asyncio
from collections.abc import Awaitable, Callable

import pytest

from penstock.queues.amq_queue import IDLE_AGAIN_S
from penstock.server.hub import SOON_S, Hub
from tests.unit.server.test_session import FakeVhost, poller_here, run_polling


def with_hub(scenario: Callable[[Hub, FakeVhost, list[BaseException]], Awaitable[None]]) -> None:
    async def run() -> None:
        vhost = FakeVhost()
        failures: list[BaseException] = []
        hub = Hub(vhost, failures.append, poller_here())
        try:
            async with asyncio.timeout(240):
                await scenario(hub, vhost, failures)
        finally:
            hub.stop()

    run_polling(run())


def test_more_to_do_is_done_in_another_turn() -> None:
    async def scenario(hub: Hub, vhost: FakeVhost, _failures: list[BaseException]) -> None:
        done = asyncio.Event()

        class Busy(FakeVhost):
            def turn(self) -> bool:
                self.turns += 1
                if self.turns == 3:
                    done.set()
                return self.turns < 3

        hub.vhost = busy = Busy()
        hub.start()
        hub.wake()
        await done.wait()
        await asyncio.sleep(0)
        assert busy.turns == 3

    with_hub(scenario)


def test_a_worker_wakes_the_loop() -> None:
    async def scenario(hub: Hub, vhost: FakeVhost, _failures: list[BaseException]) -> None:
        woken = asyncio.Event()
        vhost.on_turn = woken.set
        hub.start()
        await asyncio.to_thread(hub.poller.wake_from_thread)
        await woken.wait()

    with_hub(scenario)


def test_after_a_turn_a_tick_is_soon() -> None:
    async def scenario(hub: Hub, vhost: FakeVhost, _failures: list[BaseException]) -> None:
        ticks = 0
        ticked = asyncio.Event()

        def tick() -> float:
            nonlocal ticks
            ticks += 1
            ticked.set()
            return IDLE_AGAIN_S / 2  # from there on a tick is at a multiple, which may be soon

        vhost.tick = tick  # type: ignore[method-assign]
        hub.start()
        assert ticks == 1
        ticked.clear()
        began = hub.loop.time()
        hub.wake()
        await ticked.wait()
        assert ticks == 2
        assert hub.loop.time() - began >= SOON_S / 2

    with_hub(scenario)


def test_a_turn_that_fails_ends_it_all_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(hub: Hub, vhost: FakeVhost, failures: list[BaseException]) -> None:
        def fail() -> None:
            raise ValueError("bad")

        vhost.on_turn = fail
        hub.start()
        hub.wake()
        await asyncio.sleep(0)
        assert [str(error) for error in failures] == ["bad"]
        hub.wake()
        hub.poller.wake_from_thread()
        await asyncio.sleep(0)
        assert vhost.turns == 1
        assert len(failures) == 1

    with_hub(scenario)
    assert "a turn of the vhost failed" in caplog.text
