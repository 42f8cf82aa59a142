"""Rights that a server of auth_http decides: what waits for its answers, and that nothing passes
without one."""

from typing import Any

import pytest

from penstock.access.permissions import Identity
from penstock.broker import asked_rights
from penstock.broker.asked_rights import AskedRights, Question, RightsUnknown
from penstock.clock import ManualClock
from penstock.codec.spec import (
    BasicConsume,
    BasicConsumeOk,
    ChannelClose,
    ConfirmSelect,
    ConfirmSelectOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    PenstockCall,
    PenstockCallOk,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
)
from tests.helpers.broker_rig import RigClient
from tests.helpers.operation_rig import OperationRig

VALID_S = 20.0


class Server:
    """A rig with a queue "q" and a topic exchange "x", and the questions that were asked."""

    def __init__(self) -> None:
        self.rig = OperationRig()
        self.asked: list[Question] = []
        self.rig.vhost.rights.send = self.asked.append
        owner = self.rig.client().open()
        owner.call(1, QueueDeclare(queue="q"), QueueDeclareOk)
        owner.call(1, ExchangeDeclare(exchange="x", type="topic"), ExchangeDeclareOk)
        owner.call(1, QueueBind(queue="q", exchange="x", routing_key="#"), QueueBindOk)

    def client(self, *, resources: bool = True, topics: bool = False) -> RigClient:
        return self.rig.client(identity(resources=resources, topics=topics)).open()

    def answer(self, *expected: str, is_allowed: bool = True) -> None:
        """Answer the one question, which is about `expected`: verb, kind, name and key."""
        self.rig.turn()
        (question,) = self.asked
        self.asked.clear()
        assert question == ("ann", "10.0.0.1", *expected, *[""] * (4 - len(expected)))
        self.rig.vhost.rights.answered(question, VALID_S, is_allowed=is_allowed)
        self.rig.turn()

    def depth(self) -> int:
        queue = self.rig.vhost.table.usable("q")
        assert queue is not None
        return queue.len()


def identity(*, resources: bool = True, topics: bool = False) -> Identity:
    plain = Identity("ann", frozenset(), ".*", ".*", "^[^s]")
    return plain.asking("10.0.0.1", resources=resources, topics=topics)


def test_a_publish_waits_for_its_answer_and_is_asked_about_once() -> None:
    server = Server()
    c = server.client()
    c.call(1, ConfirmSelect(), ConfirmSelectOk)
    for body in (b"1", b"2"):
        c.publish(1, "", "q", body)
    server.rig.turn()
    assert server.depth() == 0
    server.answer("write", "exchange", "amq.default")
    assert server.depth() == 2
    c.publish(1, "", "q", b"3")
    server.rig.turn()
    assert (server.depth(), server.asked) == (3, [])
    server.rig.clock.advance(VALID_S)
    server.rig.vhost.rights.tick(server.rig.clock.monotonic())
    c.publish(1, "", "q", b"4")
    server.answer("write", "exchange", "amq.default", is_allowed=False)
    assert server.depth() == 3
    (closed,) = c.methods(ChannelClose)
    assert (closed.reply_code, closed.reply_text) == (
        403, "ACCESS_REFUSED - write access to exchange 'amq.default' in vhost '/' refused for "
        "user 'ann'",
    )  # fmt: skip


def test_what_comes_behind_waits_and_others_do_not() -> None:
    server = Server()
    c, other = server.client(), server.rig.client().open()
    c.send(1, QueueDeclare(queue="new"))
    c.publish(1, "", "q", b"behind")
    other.publish(1, "", "q", b"before")
    server.rig.turn()
    assert server.depth() == 1
    server.answer("configure", "queue", "new")
    (declared,) = c.methods(QueueDeclareOk)
    assert declared.queue == "new"
    server.answer("write", "exchange", "amq.default")
    assert server.depth() == 2


def test_all_that_a_method_needs_is_asked_for_before_it_is_done() -> None:
    server = Server()
    c = server.client(topics=True)
    c.send(1, QueueBind(queue="q", exchange="x", routing_key="k"))
    before = server.rig.vhost.router.binding_count
    server.answer("write", "queue", "q")
    server.answer("read", "exchange", "x")
    assert server.rig.vhost.router.binding_count == before
    server.answer("read", "topic", "x", "k")
    assert server.rig.vhost.router.binding_count == before + 1
    c.publish(1, "x", "k.1", b"")
    server.answer("write", "exchange", "x")
    assert server.depth() == 0
    server.answer("write", "topic", "x", "k.1", is_allowed=False)
    (closed,) = c.methods(ChannelClose)
    assert "write access to topic 'k.1' in exchange 'x'" in closed.reply_text


def test_a_queue_that_the_server_names_keeps_the_name_that_was_asked_about() -> None:
    server = Server()
    c = server.client()
    arguments: dict[str, object] = {"x-dead-letter-exchange": "x"}
    c.send(1, QueueDeclare(exclusive=True, arguments=arguments))
    server.rig.turn()
    name = server.asked[0][4]
    assert name.startswith("amq.gen-")
    server.answer("configure", "queue", name)
    server.answer("read", "queue", name)
    server.answer("write", "exchange", "x")
    (declared,) = c.methods(QueueDeclareOk)
    assert declared.queue == name


def test_the_permissions_here_come_first() -> None:
    server = Server()
    c = server.client()
    c.send(1, BasicConsume(queue="secret"))
    server.rig.turn()
    (closed,) = c.methods(ChannelClose)
    assert "read access to queue 'secret'" in closed.reply_text
    assert server.asked == []


def test_a_client_that_leaves_while_it_waits() -> None:
    server = Server()
    c = server.client()
    c.publish(1, "", "q", b"")
    server.rig.turn()
    c.handler.lost()
    server.answer("write", "exchange", "amq.default")
    assert server.depth() == 0


def test_changed_permissions_leave_who_is_asked() -> None:
    server = Server()
    c = server.client()
    c.handler.set_identity(Identity("ann", frozenset(), ".*", ".*", ".*"))
    c.publish(1, "", "q", b"")
    server.answer("write", "exchange", "amq.default", is_allowed=False)
    assert server.depth() == 0


def test_consumers_go_on_when_an_answer_is_old() -> None:
    server = Server()
    c = server.client()
    c.send(1, BasicConsume(queue="q", consumer_tag="t", no_ack=True))
    server.answer("read", "queue", "q")
    assert c.methods(BasicConsumeOk)
    server.rig.clock.advance(2 * VALID_S)
    server.rig.vhost.rights.tick(server.rig.clock.monotonic())
    server.rig.client().open().publish(1, "", "q", b"m")
    server.rig.turn()
    assert [one.body for one in c.messages()] == [b"m"]


def test_operations_of_a_user_over_http_and_of_a_channel() -> None:
    server = Server()
    facts = {**identity().facts(), "from": "10.0.0.1"}
    asked: Any = server.rig.ask("purge_queue", queue="q", as_user=facts)
    assert not asked.has_come
    server.answer("read", "queue", "q")
    assert asked.result == {"messages": 0}
    published: Any = server.rig.ask(
        "publish", exchange="", routing_key="q", bodies=["x"], as_user=facts
    )
    server.answer("write", "exchange", "amq.default")
    assert published.result == {"published": 1}
    c = server.client()
    c.send(1, PenstockCall(op="delete_queue", arguments=b'{"queue": "q"}'))
    server.answer("configure", "queue", "q")
    assert c.methods(PenstockCallOk)
    assert server.rig.vhost.table.usable("q") is None


def test_without_a_server_everything_is_refused() -> None:
    server = Server()
    server.rig.vhost.rights.send = None
    c = server.client()
    c.publish(1, "", "q", b"")
    server.rig.turn()
    assert server.depth() == 0
    (closed,) = c.methods(ChannelClose)
    assert closed.reply_code == 403


def test_answers_are_bounded_and_denials_short() -> None:
    clock = ManualClock()
    rights = AskedRights("/", clock, lambda: None)
    asked: list[Question] = []
    rights.send = asked.append
    who = identity()
    for n in range(asked_rights.ANSWERS_MAX + 10):
        with pytest.raises(RightsUnknown):
            rights.check(who, "read", "queue", str(n))
        rights.answered(asked[-1], VALID_S, is_allowed=True)
        rights.check(who, "read", "queue", str(n))
    assert len(rights._answers) == asked_rights.ANSWERS_MAX
    with pytest.raises(RightsUnknown):
        rights.check(who, "read", "queue", "0")  # it was forgotten
    rights.answered(asked[-1], VALID_S, is_allowed=False)
    with pytest.raises(Exception, match=r"refused for user 'ann'$"):
        rights.check(who, "read", "queue", "0")
    clock.advance(asked_rights.DENIED_S)
    with pytest.raises(RightsUnknown):
        rights.check(who, "read", "queue", "0")
