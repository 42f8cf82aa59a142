"""Streams that stand alone, for asyncio: the contract, and what only asyncio has."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock import aio
from tests.contracts.box import LONG_S, Opens
from tests.contracts.stream_alone import AloneLifeContract, AloneStreamContract
from tests.helpers.alone_boxes import AloneAioBox
from tests.unit.embedded.conftest import opened


@pytest.fixture
def opens(tmp_path: Path) -> Iterator[Opens]:
    yield from opened(tmp_path, AloneAioBox, AloneAioBox.end)


class TestStreams(AloneStreamContract):
    pass


class TestLife(AloneLifeContract):
    pass


def test_one_loop_appends_and_follows(tmp_path: Path) -> None:
    async def main() -> None:
        async with aio.open_stream(tmp_path / "s") as s:

            async def follow() -> list[bytes]:
                return [r.body async for r in s.read(follow=True, max_records=50)]

            followers = [asyncio.create_task(follow()) for _ in range(3)]
            given = await asyncio.gather(*[s.append(b"%d" % i) for i in range(50)])
            assert given == list(range(50))
            for follower in followers:
                assert await follower == [b"%d" % i for i in range(50)]
            await s.force()
            assert s.path == str(tmp_path / "s")

    asyncio.run(main())


def test_a_follower_that_is_cancelled(tmp_path: Path) -> None:
    async def main() -> None:
        s = await aio.open_stream(tmp_path / "s")

        async def first() -> None:
            async for _ in s.read(follow=True):
                return

        for _ in range(10):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(first(), 0.005)
        await s.append(b"a")
        await asyncio.wait_for(first(), LONG_S)
        await s.close()
        with pytest.raises(penstock.BoxClosedError):
            await s.append(b"b")

    asyncio.run(main())


def test_it_belongs_to_its_loop(tmp_path: Path) -> None:
    s = asyncio.run(_opened(tmp_path / "s"))
    with pytest.raises(RuntimeError, match="was opened in another loop"):
        asyncio.run(s.append(b"a"))  # type: ignore[attr-defined]
    asyncio.run(s.close())  # type: ignore[attr-defined]


async def _opened(path: Path) -> object:
    return await aio.open_stream(path)
