"""The box of asyncio: the contract, and what only it does."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import aio
from penstock.errors import NotAStoreError, OptionError
from penstock.storage.files import filesystem
from tests.contracts.box import LONG_S, Opens, QueueContract
from tests.contracts.box_life import BoxContract


@pytest.fixture
def opens(aio_opens: Opens) -> Opens:
    return aio_opens


class TestQueues(QueueContract):
    pass


class TestBox(BoxContract):
    pass


# ---- what only asyncio has -----------------------------------------------------------------------


class Disk:
    """Stands before fdatasync: holds it back."""

    def __init__(self, sync: Callable[[int], None]) -> None:
        self._sync = sync
        self.count = 0
        self.may_pass = threading.Event()
        self.may_pass.set()

    def __call__(self, descriptor: int) -> None:
        self.count += 1
        assert self.may_pass.wait(LONG_S)
        self._sync(descriptor)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk(filesystem._sync_content)
    monkeypatch.setattr(filesystem, "_sync_content", disk)
    return disk


async def turns(n: int = 10) -> None:
    """Let the other tasks go on."""
    for _ in range(n):
        await asyncio.sleep(0)


def test_the_example_of_the_docs(tmp_path: Path) -> None:
    async def main() -> None:
        async with aio.open(tmp_path / "box.d") as box:
            q = await box.queue("resize", max_attempts=5, retry_delay="1h")
            await q.put(b"picture 7")
            async with q.get(timeout=5) as job:
                assert job.body == b"picture 7"
            assert len(q) == q.unacked == 0
            await q.put(b"picture 8")
            with pytest.raises(ZeroDivisionError):
                async with q.get() as job:
                    _ = 1 / 0
            assert (len(q), q.delayed) == (0, 1)

    asyncio.run(main())


def test_a_get_may_be_a_task(tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            box = await group.create_task(aio.open(tmp_path / "box.d"))
        q = await box.queue("q")
        waiting = [asyncio.create_task(q.get()) for _ in range(3)]
        await turns()
        waiting[0].cancel()
        unbegun = asyncio.create_task(q.get())
        unbegun.cancel()
        await q.put_many([b"a", b"b"])
        jobs = await asyncio.gather(*waiting[1:])
        assert [job.body for job in jobs] == [b"a", b"b"]
        assert waiting[0].cancelled()
        assert unbegun.cancelled()
        assert (len(q), q.unacked) == (0, 2)
        q.get().close()  # as a loop closes coroutines that never ran
        await box.close()

    asyncio.run(main())


def test_the_loop_goes_on_while_puts_wait_for_the_disk(tmp_path: Path, disk: Disk) -> None:
    async def main() -> None:
        box = await aio.open(tmp_path / "box.d")
        q = await box.queue("q")
        before = disk.count
        disk.may_pass.clear()
        puts = [asyncio.create_task(q.put(b"%d" % i)) for i in range(100)]
        await turns()
        assert len(q) == 100
        assert not any(put.done() for put in puts)
        await q.put(b"written", durability="os")
        job = await q.get()
        await job.ack()
        disk.may_pass.set()
        await asyncio.gather(*puts)
        # A few for the hundred, and those that prepare the next file of the log.
        assert disk.count - before <= 8
        await box.close()

    asyncio.run(main())


def test_a_get_that_is_cancelled_takes_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with aio.open(tmp_path / "box.d") as box:
            q = await box.queue("q")
            gets = [asyncio.ensure_future(q.get()) for _ in range(3)]
            await turns()
            gets[0].cancel()
            await q.put(b"a", durability="os")  # which wakes one that is cancelled
            gets[1].cancel()
            assert (await gets[2]).body == b"a"
            for get in gets[:2]:
                with pytest.raises(asyncio.CancelledError):
                    await get
            assert (len(q), q.unacked) == (0, 1)

    asyncio.run(main())


def test_a_put_that_is_cancelled_while_it_waits_for_room_puts_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with aio.open(tmp_path / "box.d") as box:
            q = await box.queue("q", maxsize=1)
            await q.put(b"a")
            puts = [asyncio.create_task(q.put(b"%d" % i)) for i in range(2)]
            await turns()
            puts[0].cancel()
            async with q.get() as job:
                assert job.body == b"a"
            await puts[1]
            assert [message.body async for message in q] == [b"1"]

    asyncio.run(main())


def test_a_transaction_belongs_to_its_task(tmp_path: Path) -> None:
    async def main() -> None:
        async with aio.open(tmp_path / "box.d") as box:
            q = await box.queue("q")
            async with box.transaction():
                await q.put(b"in it")
                await asyncio.create_task(q.put(b"beside it"))
                assert [message.body async for message in q] == [b"beside it"]
            assert [message.body async for message in q] == [b"beside it", b"in it"]

    asyncio.run(main())


def test_many_tasks_put_and_get_everything_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with aio.open(tmp_path / "box.d") as box:
            q = await box.queue("q", maxsize=20)
            seen: list[bytes] = []

            async def put(n: int) -> None:
                for i in range(20):
                    await q.put(b"%d.%d" % (n, i))

            async def work() -> None:
                async with contextlib.aclosing(q.consume(timeout=LONG_S)) as jobs:
                    async for job in jobs:
                        seen.append(job.body)  # noqa: PERF401

            workers = [asyncio.create_task(work()) for _ in range(5)]
            await asyncio.gather(*[put(n) for n in range(20)])
            assert await q.join(timeout=LONG_S)
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            assert sorted(seen) == sorted(b"%d.%d" % (n, i) for n in range(20) for i in range(20))

    asyncio.run(main())


def test_a_box_belongs_to_its_loop(tmp_path: Path) -> None:
    loop = asyncio.new_event_loop()
    box = loop.run_until_complete(_opened(tmp_path / "box.d"))
    q = loop.run_until_complete(box.queue("q"))

    async def put() -> None:
        await q.put(b"a")

    with pytest.raises(RuntimeError, match="opened in another loop"):
        asyncio.run(put())
    loop.run_until_complete(box.close())
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


async def _opened(path: Path) -> aio.Box:
    return await aio.open(path)


def test_what_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "box.d").write_text("")

    async def main() -> None:
        with pytest.raises(NotAStoreError, match="it is a file"):
            await aio.open(tmp_path / "box.d")
        with pytest.raises(OptionError, match=r"cacerts: given 'ca\.pem', expected amqps://"):
            await aio.open("amqp://localhost", cacerts="ca.pem")

    asyncio.run(main())
