"""The box of asyncio on a broker: the contract of all boxes, on a real broker."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock import aio
from tests.contracts.box import LONG_S, Opens, QueueContract
from tests.contracts.box_life import BoxContract
from tests.helpers.live_broker import LiveBroker

pytestmark = pytest.mark.real


@pytest.fixture
def opens(aio_opens: Opens) -> Opens:
    return aio_opens


class TestQueues(QueueContract):
    pass


class TestBox(BoxContract):
    is_shared = True


# ---- what only asyncio has -----------------------------------------------------------------------


def run(broker: LiveBroker, main: Callable[[Any], Awaitable[None]]) -> None:
    """Run it with a box whose queue "q" is new."""

    async def opened() -> None:
        async with aio.open(broker.url) as box:
            if "q" in box:
                await box.delete("q")
            await main(box)

    asyncio.run(opened())


def test_a_hundred_puts_at_a_time(broker: LiveBroker) -> None:
    async def main(box: Any) -> None:
        q = await box.queue("q")
        await asyncio.gather(*[q.put(b"%d" % i) for i in range(100)])
        assert len(q) == 100
        seen = [message.body async for message in q]
        assert sorted(seen, key=int) == [b"%d" % i for i in range(100)]
        jobs = await asyncio.gather(*[q.get() for _ in range(100)])
        await q.ack(jobs)
        assert await q.join()

    run(broker, main)


def test_a_get_that_is_cancelled_takes_nothing(broker: LiveBroker) -> None:
    async def main(box: Any) -> None:
        q = await box.queue("q")
        for _ in range(20):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await q.get()
            await q.put(b"a")
            async with q.get(timeout=LONG_S) as job:
                assert job.body == b"a"
        get = asyncio.create_task(q._get(None, True))
        while q.info()["takers"] < 1:
            await asyncio.sleep(0)
        get.cancel()
        with pytest.raises(asyncio.CancelledError):
            await get
        assert q.info()["takers"] == 0

    run(broker, main)


def test_a_box_belongs_to_its_loop(broker: LiveBroker) -> None:
    loop = asyncio.new_event_loop()

    async def main(box: Any) -> None:
        with pytest.raises(RuntimeError, match="opened in another loop"):
            await asyncio.to_thread(loop.run_until_complete, box.sync())

    try:
        run(broker, main)
    finally:
        loop.close()


def test_a_loop_that_is_left_returns_its_job_at_once(broker: LiveBroker) -> None:
    async def main(box: Any) -> None:
        q = await box.queue("q", retry_delay=0)
        await q.put_many([b"a", b"b"])
        async with contextlib.aclosing(q.consume()) as jobs:
            async for job in jobs:
                assert job.body == b"a"
                break
        again = await q.get()
        assert (again.body, again.attempts) == (b"a", 1)

    run(broker, main)
