"""Streams of the box on a broker, for asyncio: the contract, and what only asyncio has."""

import asyncio
import contextlib

import pytest

from penstock import aio
from tests.contracts.box import Opens
from tests.contracts.stream import StreamContract
from tests.contracts.stream_life import StreamLifeContract
from tests.helpers.live_broker import LiveBroker

pytestmark = pytest.mark.real


@pytest.fixture
def opens(aio_opens: Opens) -> Opens:
    return aio_opens


class TestStreams(StreamContract):
    pass


class TestLife(StreamLifeContract):
    is_shared = True


def test_appending_and_following_in_one_loop(broker: LiveBroker) -> None:
    async def main() -> None:
        async with aio.open(broker.url) as box:
            if "s" in box.streams():
                await box.delete("s")
            s = await box.stream("s")

            async def follow() -> list[int]:
                return [r.offset async for r in s.read(follow=True, max_records=100)]

            followers = [asyncio.create_task(follow()) for _ in range(3)]
            found = await asyncio.gather(*[s.append(b"%d" % i) for i in range(100)])
            assert sorted(found) == list(range(100))
            for follower in followers:
                assert await follower == list(range(100))
            async with contextlib.aclosing(s.read(reader="r")) as records:
                async for record in records:
                    if record.offset == 50:
                        break
            assert (await s.reader("r")).offset == 50
            await s.delete()

    asyncio.run(main())
