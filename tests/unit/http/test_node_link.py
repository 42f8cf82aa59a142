import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from penstock.access.users import KnownUsers
from penstock.http import node_link
from penstock.http.node_link import NodeLink
from penstock.http.requests import HttpError, JsonAnswer
from penstock.operation_json import dumps, read
from penstock.server import control
from penstock.server.control import OPEN, ControlError
from penstock.server.polling_loop import run
from penstock.server.process_link import AskedCall, ProcessLink

DOWN = ControlError(541, "INTERNAL_ERROR - vhost '/' is down: it failed")


class Broker:
    """A supervisor and a vhost's process, as far as the HTTP process sees them.

    open: what becomes of each request for a link: "good", "lost" (it ends before the vhost has
    it), "no descriptor", or an error. answers: of operations; bytes are a
    long one, "ends": the process ends instead.
    """

    def __init__(self) -> None:
        ours, theirs = control.pair()
        self.link = ProcessLink(ours, lambda _: None, on_call=self._called)
        self.supervisor = ProcessLink(theirs, lambda _: None)
        self.node = NodeLink(KnownUsers(rng=random.Random(1), log2_n=1), self.supervisor)
        self.open: list[object] = []
        self.opened = 0
        self.answers: dict[str, list[object]] = {}
        self.asked: list[tuple[str, object]] = []
        self.vhost: ProcessLink | None = None

    def _called(self, asked: AskedCall) -> None:
        if asked.op != OPEN:
            self._answer(asked)
            return
        self.opened += 1
        how = self.open.pop(0) if self.open else "good"
        if isinstance(how, BaseException):
            asked.refuse(how)
            return
        ours, theirs = control.pair()
        asked.answer((), None if how == "no descriptor" else theirs)
        if how == "lost":
            ours.close()
        elif how == "no descriptor":
            ours.close()
            theirs.close()
        elif how == "good":
            self.vhost = ProcessLink(ours, lambda _: None, on_call=self._answer)
            self.vhost.send({"do": "ready"})

    def _answer(self, asked: AskedCall) -> None:
        self.asked.append((asked.op, read(asked.args)))
        answer = self.answers[asked.op].pop(0)
        if answer == "ends":
            assert self.vhost is not None
            self.vhost.close()
        elif isinstance(answer, BaseException):
            asked.refuse(answer)
        elif isinstance(answer, bytes):
            asked.answer([answer], is_long=True)
        elif answer != "nothing":
            asked.answer([dumps(answer, is_exact=True)])


def with_broker(scenario: Callable[[Broker], Awaitable[None]]) -> None:
    async def live() -> None:
        broker = Broker()
        async with asyncio.timeout(240):
            await scenario(broker)
        broker.node.gone()
        for link in (broker.link, broker.supervisor, broker.vhost):
            if link is not None:
                link.close()

    run(live())


def test_a_vhost_is_asked_on_a_link_of_its_own() -> None:
    async def scenario(broker: Broker) -> None:
        broker.answers = {"a": [{"body": b"\xff"}, 2], "status": [{"is_ready": True}]}
        found = await asyncio.gather(
            broker.node.call("a", "/", body=b"\xff"), broker.node.call("a", "/")
        )
        assert found == [{"body": b"\xff"}, 2]
        assert broker.asked == [("a", {"body": b"\xff"}), ("a", {})]
        assert broker.opened == 1
        assert len(broker.node.links()) == 1
        assert await broker.node.call("status") == {"is_ready": True}

    with_broker(scenario)


def test_many_who_ask_for_the_status_cost_the_broker_one_question() -> None:
    async def scenario(broker: Broker) -> None:
        broker.answers = {"status": [{"is_ready": True}]}
        found = await asyncio.gather(*(broker.node.status() for _ in range(50)))
        assert found == [{"is_ready": True}] * 50
        assert broker.asked == [("status", {})]

    with_broker(scenario)


def test_what_the_node_answers_about_a_vhost_goes_to_the_supervisor() -> None:
    async def scenario(broker: Broker) -> None:
        broker.answers = {"set_permissions": [{}]}
        await broker.node.call("set_permissions", "/", user="ann")
        assert broker.asked == [("set_permissions", {"user": "ann"})]
        assert not broker.opened

    with_broker(scenario)


def test_a_long_answer_is_passed_on_unread() -> None:
    """To read 10 MB of JSON takes half a second, in which nobody else is answered."""

    async def scenario(broker: Broker) -> None:
        data = b'[{"name": not looked at'
        broker.answers = {"list_streams": [data]}
        assert JsonAnswer(await broker.node.call("list_streams", "/")).body == data

    with_broker(scenario)


def test_a_vhost_that_ended_meanwhile_is_asked_again() -> None:
    async def scenario(broker: Broker) -> None:
        broker.answers = {"a": ["ends", "done"]}
        assert await broker.node.call("a", "/") == "done"
        assert broker.opened == 2
        broker.answers = {"a": ["ends", "ends"]}
        with pytest.raises(ControlError, match="vhost '/' is down: its process has ended") as ended:
            await broker.node.call("a", "/")
        assert ended.value.code == 541
        broker.answers = {"a": ["ends"]}
        broker.open = ["good", DOWN]
        with pytest.raises(ControlError, match="it failed"):
            await broker.node.call("a", "/")

    with_broker(scenario)


def test_what_would_do_more_the_second_time_is_asked_once() -> None:
    async def scenario(broker: Broker) -> None:
        broker.answers = {"a": ["ends"]}
        with pytest.raises(ControlError, match="has ended"):
            await broker.node.call_once("a", "/", n=1)
        assert broker.asked == [("a", {"n": 1})]

    with_broker(scenario)


def test_a_link_that_the_vhost_has_not_taken_is_opened_again() -> None:
    """Its process ended, and the supervisor did not know yet: nothing was asked."""

    async def scenario(broker: Broker) -> None:
        broker.open = ["lost", "lost"]
        broker.answers = {"a": [1]}
        assert await broker.node.call_once("a", "/") == 1
        assert broker.opened == 3

    with_broker(scenario)


def test_a_refused_link_is_asked_for_again_by_the_next_call() -> None:
    async def scenario(broker: Broker) -> None:
        broker.open = [DOWN, DOWN]
        broker.answers = {"a": [1]}
        with pytest.raises(ControlError, match="it failed"):
            await broker.node.call("a", "/")
        assert await broker.node.call("a", "/") == 1

    with_broker(scenario)


def test_a_link_without_its_descriptor_is_refused() -> None:
    async def scenario(broker: Broker) -> None:
        broker.open = ["no descriptor"]
        with pytest.raises(HttpError, match="ulimit -n"):
            await broker.node.call("a", "/")

    with_broker(scenario)


def test_without_the_broker_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(broker: Broker) -> None:
        broker.answers = {"a": ["nothing"] * 3}
        waiting = asyncio.ensure_future(broker.node.call("a", "/"))
        while not broker.asked:
            await asyncio.sleep(0)
        broker.node.gone()
        with pytest.raises(HttpError, match="the broker stops") as caught:
            await waiting
        assert caught.value.status == 503

    with_broker(scenario)

    async def too_late(broker: Broker) -> None:
        monkeypatch.setattr(node_link, "CALL_S", 0.0)
        with pytest.raises(HttpError, match="has not answered"):
            await broker.node.call("b")
        broker.answers = {"import_definitions": [{"queues": 1}]}  # which may take longer
        found = await broker.node.call_once("import_definitions", definitions="{}")
        assert found == {"queues": 1}

    with_broker(too_late)


def test_the_end_of_the_supervisor_ends_all_calls() -> None:
    async def scenario(broker: Broker) -> None:
        broker.answers = {"a": ["nothing"]}
        waiting = asyncio.ensure_future(broker.node.call("a"))
        while not broker.asked:
            await asyncio.sleep(0)
        broker.link.close()
        for call in (waiting, asyncio.ensure_future(broker.node.call("b", "/"))):
            with pytest.raises(HttpError, match="the broker stops"):
                await call

    with_broker(scenario)
