import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from penstock.access.users import KnownUsers
from penstock.http import node_link
from penstock.http.node_link import NodeLink
from penstock.http.requests import HttpError, JsonAnswer
from penstock.server.control import ControlError
from penstock.server.process_link import Facts


def with_link(scenario: Callable[[NodeLink, list[Facts]], Awaitable[None]]) -> None:
    async def live() -> None:
        sent: list[Facts] = []
        users = KnownUsers(rng=random.Random(1), log2_n=1)
        await scenario(NodeLink(users, sent.append), sent)

    asyncio.run(live())


def test_answers_may_come_in_another_order() -> None:
    async def scenario(link: NodeLink, sent: list[Facts]) -> None:
        one = asyncio.ensure_future(link.call("a", "/", body=b"\xff"))
        two = asyncio.ensure_future(link.call("b"))
        await asyncio.sleep(0)
        assert sent[0] == {
            "do": "call", "n": 1, "op": "a", "vhost": "/", "args": {"body": {"b64": "/w=="}},
        }  # fmt: skip
        link.result({"id": 2, "error": {"code": 404, "text": "no"}})
        link.result({"id": 1, "result": {"body": {"b64": "/w=="}}})
        link.result({"id": 1, "result": "again"})
        assert await one == {"body": b"\xff"}
        with pytest.raises(ControlError, match="no"):
            await two

    with_link(scenario)


def test_a_long_answer_is_passed_on_unread() -> None:
    """To read 10 MB of JSON takes half a second, in which nobody else is answered."""

    async def scenario(link: NodeLink, sent: list[Facts]) -> None:
        asked = asyncio.ensure_future(link.call("list_streams", "/"))
        await asyncio.sleep(0)
        data = b'[{"name": not looked at'
        link.text({"id": 1}, data)
        link.text({"id": 1}, b"again")
        assert JsonAnswer(await asked).body == data

    with_link(scenario)


def test_a_vhost_that_ended_meanwhile_is_asked_again() -> None:
    async def scenario(link: NodeLink, sent: list[Facts]) -> None:
        asked = asyncio.ensure_future(link.call("a"))
        await asyncio.sleep(0)
        link.result({"id": 1, "error": {"code": 541, "text": "its process has ended"}})
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert [facts["n"] for facts in sent] == [1, 2]
        link.result({"id": 2, "error": {"code": 541, "text": "it is down"}})
        with pytest.raises(ControlError, match="it is down"):
            await asked
        assert len(sent) == 2

    with_link(scenario)


def test_what_would_do_more_the_second_time_is_asked_once() -> None:
    async def scenario(link: NodeLink, sent: list[Facts]) -> None:
        asked = asyncio.ensure_future(link.call_once("a", "/", n=1))
        await asyncio.sleep(0)
        link.result({"id": 1, "error": {"code": 541, "text": "its process has ended"}})
        with pytest.raises(ControlError, match="has ended"):
            await asked
        assert len(sent) == 1

    with_link(scenario)


def test_without_the_broker_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(link: NodeLink, sent: list[Facts]) -> None:
        waiting = asyncio.ensure_future(link.call("a"))
        await asyncio.sleep(0)
        link.gone()
        with pytest.raises(HttpError, match="the broker stops") as caught:
            await waiting
        assert caught.value.status == 503
        monkeypatch.setattr(node_link, "CALL_S", 0.0)
        with pytest.raises(HttpError, match="has not answered"):
            await link.call("b")

    with_link(scenario)
