"""Long answers: no user has all of them, and a client that takes little is cut."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.http import pages, ranges, requests
from penstock.http.api import Api
from penstock.http.requests import SendTime
from penstock.server.fair_turns import FairTurns
from tests.helpers.asgi_client import Reply, ask
from tests.helpers.http_rig import EVERYTHING, HttpRig, users_facts

pytestmark = pytest.mark.real

FRAMES = "/api/streams/%2F/events/frames"


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[HttpRig]:
    rig = HttpRig(tmp_path)
    rig.filled("events", 300)
    rig.users.take(users_facts(guest=EVERYTHING, ann=EVERYTHING))
    yield rig
    rig.close()


def test_slow_readers_of_one_user_leave_room_for_others(
    rig: HttpRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "ANSWERS_MAX", 4)
    monkeypatch.setattr(ranges, "USER_ANSWERS_MAX", 3)

    async def scenario(app: Api) -> Reply:
        go_on, begun = asyncio.Event(), 0

        async def stalled(scope: Any, receive: Any, send: Any) -> None:
            async def slow(message: Any) -> None:
                nonlocal begun
                begun += message["type"] == "http.response.start"
                await go_on.wait()
                await send(message)

            await app(scope, receive, slow)

        mine = [asyncio.create_task(ask(stalled, FRAMES)) for _ in range(8)]
        while begun < 3:
            await asyncio.sleep(0.001)
        for _ in range(3):
            assert (await ask(app, FRAMES, user="ann")).status == 200
        assert begun == 3
        go_on.set()
        replies = await asyncio.gather(*mine)
        assert [(reply.status, reply.is_cut) for reply in replies] == [(200, False)] * 8
        return replies[0]

    rig.run(scenario)


def test_turns_go_round_the_users() -> None:
    order: list[str] = []

    async def scenario() -> None:
        turns = FairTurns(2, 2)

        async def one(name: str) -> None:
            await turns.take(name[0])
            order.append(name)

        await one("a1")
        await one("a2")
        waiting = [asyncio.create_task(one(name)) for name in ("a3", "a4", "a5", "b1", "b2", "c1")]
        await asyncio.sleep(0)
        for user in "aaabca":
            turns.give_back(user)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        await asyncio.gather(*waiting)

    asyncio.run(scenario())
    assert order == ["a1", "a2", "a3", "b1", "c1", "a4", "b2", "a5"]


def test_who_leaves_while_waiting_takes_no_turn() -> None:
    async def scenario() -> None:
        turns = FairTurns(1, 1)
        await turns.take("a")
        waiting = [asyncio.create_task(turns.take(user)) for user in "abb"]
        await asyncio.sleep(0)
        waiting[0].cancel()
        waiting[1].cancel()
        turns.give_back("a")  # waiting[1] has it at the same moment
        await asyncio.wait_for(waiting[2], 5)
        turns.give_back("b")
        last = asyncio.create_task(turns.take("c"))
        await asyncio.wait_for(last, 5)
        granted = asyncio.create_task(turns.take("d"))
        await asyncio.sleep(0)
        turns.give_back("c")
        granted.cancel()  # after it was granted, before it ran
        await asyncio.wait([granted])
        await asyncio.wait_for(turns.take("e"), 5)
        turns.give_back("e")
        assert not turns._waiting
        assert turns._granted.total == 0

    asyncio.run(scenario())


def test_how_long_a_client_may_take() -> None:
    """A minute at a time, and as much in all as its pace allows."""
    stall_s, pace = requests.STALL_S, requests.PACE
    slow = SendTime()
    assert slow.left_s() == stall_s
    slow.took(stall_s - 1, 10)
    assert slow.left_s() == pytest.approx(1 + 10 / pace)
    slow.took(1, 10)
    assert slow.left_s() < 0.01
    right = SendTime()
    for _ in range(1000):  # a MiB in a minute is not too slow
        right.took(stall_s, 1 << 20)
        assert right.left_s() == stall_s


def test_a_client_that_takes_a_little_again_and_again_is_cut(
    rig: HttpRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pages, "SPAN_BYTES", 500)

    real = SendTime.took

    def took(time: SendTime, _seconds: float, size: int) -> None:
        real(time, requests.STALL_S * 0.4, size)

    monkeypatch.setattr(SendTime, "took", took)
    reply = rig.ask(FRAMES)
    assert (reply.status, reply.is_cut) == (200, True)
    assert len(reply.pieces) == 3
    assert "takes too little" in caplog.text
