"""Streams of a box for asyncio: the contract, and what only it does."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

from penstock import aio
from tests.contracts.box import LONG_S, Opens
from tests.contracts.stream import StreamContract
from tests.contracts.stream_life import StreamLifeContract


@pytest.fixture
def opens(aio_opens: Opens) -> Opens:
    return aio_opens


class TestStreams(StreamContract):
    pass


class TestLife(StreamLifeContract):
    pass


# ---- what only asyncio has -----------------------------------------------------------------------


def test_a_hundred_appends_at_a_time_share_their_syncs(tmp_path: Path) -> None:
    async def main() -> None:
        async with aio.open(tmp_path / "box.d") as box:
            s = await box.stream("s")
            before = box.info()["syncs"]
            found = await asyncio.gather(*[s.append(b"%d" % i) for i in range(100)])
            assert sorted(found) == list(range(100))
            assert int(box.info()["syncs"]) - int(before) < 50
            assert [r.offset async for r in s] == list(range(100))

    asyncio.run(main())


def test_one_loop_appends_and_follows(tmp_path: Path) -> None:
    async def main() -> None:
        async with aio.open(tmp_path / "box.d") as box:
            s = await box.stream("s", partitions=2)

            async def follow() -> list[bytes]:
                return [r.body async for r in s.read(follow=True, max_records=50)]

            followers = [asyncio.create_task(follow()) for _ in range(3)]
            for i in range(50):
                await s.append(b"%d" % i, key=str(i))
            for follower in followers:
                assert sorted(await follower, key=int) == [b"%d" % i for i in range(50)]

    asyncio.run(main())


def test_a_follower_that_is_cancelled(tmp_path: Path) -> None:
    async def main() -> None:
        async with aio.open(tmp_path / "box.d") as box:
            s = await box.stream("s")

            async def first() -> Any:
                return [record async for record in s.read(follow=True)]

            for _ in range(10):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(first(), 0.005)
            await s.append(b"a")
            async for record in s.read(follow=True, timeout=LONG_S):
                assert record.body == b"a"
                break

    asyncio.run(main())


def test_a_loop_that_is_closed_commits_what_it_went_past(tmp_path: Path) -> None:
    async def main() -> None:
        async with aio.open(tmp_path / "box.d") as box:
            s = await box.stream("s")
            await s.append_many([b"a", b"b", b"c"])
            async with contextlib.aclosing(s.read(reader="r")) as records:
                async for record in records:
                    if record.body == b"b":
                        break
            reader = await s.reader("r")
            assert reader.offset == 1
            with contextlib.suppress(ZeroDivisionError):
                async for _record in s.read(reader="r"):
                    _ = 1 / 0
            assert [r.body async for r in reader] == [b"b", b"c"]

    asyncio.run(main())
