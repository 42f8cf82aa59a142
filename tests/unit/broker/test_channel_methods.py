"""Channels on a real vhost: publish, deliver, settle, prefetch."""

import pytest

from penstock.codec.properties import BasicProperties
from penstock.codec.spec import (
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicDeliver,
    BasicGet,
    BasicNack,
    BasicQos,
    BasicQosOk,
    BasicRecover,
    BasicRecoverOk,
    BasicReject,
    BasicReturn,
    ChannelClose,
    ConfirmSelect,
    ConfirmSelectOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    QueueBind,
    QueueBindOk,
)
from tests.helpers.broker_rig import BrokerRig
from tests.helpers.broker_steps import consuming, declared, deliveries
from tests.helpers.vhost_rig import classic

# ---- publish and deliver -------------------------------------------------------------------------


def test_what_is_published_is_delivered_as_it_was_sent(rig: BrokerRig) -> None:
    c = rig.client().open()
    declared(c)
    consuming(c)
    c.publish(1, "", "q", b"body", content_type="text/plain", headers={"a": 1}, delivery_mode=2)
    rig.turn()
    (message,) = c.messages()
    assert isinstance(message.method, BasicDeliver)
    assert (message.method.exchange, message.method.routing_key) == ("", "q")
    assert message.method.consumer_tag == "t"
    assert not message.method.redelivered
    props = BasicProperties.decode(message.header)
    assert (props.content_type, props.headers, props.delivery_mode) == ("text/plain", {"a": 1}, 2)
    assert message.body == b"body"


@pytest.mark.parametrize("size", [0, 1, 131064, 131065, 300_000])
def test_bodies_of_any_size_are_cut_into_frames(rig: BrokerRig, size: int) -> None:
    c = rig.client().open()
    declared(c)
    c.publish(1, "", "q", b"x" * size)
    c.send(1, BasicGet(queue="q", no_ack=True))
    rig.turn()
    assert c.bodies() == [b"x" * size]


def test_consumers_take_turns(rig: BrokerRig) -> None:
    c = rig.client().open()
    declared(c)
    for tag in ("a", "b", "c"):
        consuming(c, tag=tag, no_ack=True)
    for i in range(9):
        c.publish(1, "", "q", b"%d" % i)
    rig.turn()
    tags = [m.method.consumer_tag for m in c.messages() if isinstance(m.method, BasicDeliver)]
    assert tags == ["a", "b", "c"] * 3


def test_a_higher_consumer_priority_is_served_first(rig: BrokerRig) -> None:
    c = rig.client().open()
    declared(c)
    c.call(1, BasicQos(prefetch_count=1), BasicQosOk)
    consuming(c, tag="low")
    consuming(c, tag="high", arguments={"x-priority": 5})
    c.publish(1, "", "q", b"1")
    c.publish(1, "", "q", b"2")
    rig.turn()
    tags = [m.method.consumer_tag for m in c.messages() if isinstance(m.method, BasicDeliver)]
    assert tags == ["high", "low"]


def test_a_single_active_consumer_gets_all_until_it_goes(rig: BrokerRig) -> None:
    c = rig.client().open()
    declared(c, x_single_active_consumer=True)
    consuming(c, tag="first", no_ack=True)
    consuming(c, tag="second", no_ack=True)
    for _ in range(3):
        c.publish(1, "", "q", b"x")
    rig.turn()
    tags = {m.method.consumer_tag for m in c.messages() if isinstance(m.method, BasicDeliver)}
    assert tags == {"first"}
    c.call(1, BasicCancel(consumer_tag="first"), BasicCancelOk)
    c.publish(1, "", "q", b"x")
    rig.turn()
    tags = {m.method.consumer_tag for m in c.messages() if isinstance(m.method, BasicDeliver)}
    assert tags == {"second"}


def test_fan_out_keeps_one_body_and_gives_it_to_all(rig: BrokerRig) -> None:
    c = rig.client().open()
    c.call(1, ExchangeDeclare(exchange="x", type="fanout", durable=True), ExchangeDeclareOk)
    for i in range(10):
        declared(c, f"q{i}")
        c.call(1, QueueBind(queue=f"q{i}", exchange="x"), QueueBindOk)
    before = rig.vhost.engine.log.last_lsn
    c.publish(1, "x", "", b"shared" * 100, delivery_mode=2)
    rig.turn()
    assert rig.vhost.engine.log.last_lsn == before + 1
    for i in range(10):
        c.send(1, BasicGet(queue=f"q{i}"))
    rig.turn()
    assert c.bodies() == [b"shared" * 100] * 10


def test_an_unroutable_mandatory_message_comes_back_before_its_confirm(rig: BrokerRig) -> None:
    c = rig.client().open()
    c.call(1, ConfirmSelect(), ConfirmSelectOk)
    c.publish(1, "", "nowhere", b"lost", mandatory=True, message_id="m")
    c.publish(1, "", "nowhere", b"dropped")
    rig.turn()
    c.pump()
    kinds = [type(e.method).__name__ for e in c.events]  # type: ignore[attr-defined]
    assert kinds == ["BasicReturn", "BasicAck"]
    (message,) = c.messages()
    assert isinstance(message.method, BasicReturn)
    assert (message.method.reply_code, message.method.reply_text) == (312, "NO_ROUTE")
    assert message.body == b"lost"
    assert BasicProperties.decode(message.header).message_id == "m"


def test_direct_reply_to_reaches_the_channel_that_asked(rig: BrokerRig) -> None:
    asks, answers = rig.client().open(), rig.client().open()
    declared(asks, "rpc")
    consuming(asks, "amq.rabbitmq.reply-to", no_ack=True)
    asks.publish(1, "", "rpc", b"question", reply_to="amq.rabbitmq.reply-to")
    answers.send(1, BasicGet(queue="rpc", no_ack=True))
    rig.turn()
    (question,) = answers.messages()
    reply_to = BasicProperties.decode(question.header).reply_to
    assert reply_to is not None
    assert reply_to.startswith("amq.rabbitmq.reply-to.")
    answers.publish(1, "", reply_to, b"answer")
    rig.turn()
    assert asks.bodies() == [b"answer"]


# ---- settling ------------------------------------------------------------------------------------


def test_ack_single_and_multiple(rig: BrokerRig) -> None:
    c = rig.client().open()
    declared(c)
    consuming(c)
    for i in range(6):
        c.publish(1, "", "q", b"%d" % i, delivery_mode=2)
    assert [tag for tag, _, _ in deliveries(c)] == [1, 2, 3, 4, 5, 6]
    c.send(1, BasicAck(delivery_tag=2))
    c.send(1, BasicAck(delivery_tag=4, multiple=True))
    assert classic(rig.vhost.queues["q"]).amq.depth() == 2
    c.send(1, BasicAck(delivery_tag=0, multiple=True))
    assert classic(rig.vhost.queues["q"]).amq.depth() == 0


@pytest.mark.parametrize("tag", [2, 1 << 40, 0])
def test_an_unknown_delivery_tag_closes_the_channel(rig: BrokerRig, tag: int) -> None:
    c = rig.client().open()
    declared(c)
    consuming(c)
    c.publish(1, "", "q", b"x")
    deliveries(c)
    c.send(1, BasicAck(delivery_tag=tag))
    rig.turn()
    (close,) = c.methods(ChannelClose)
    assert (close.reply_code, close.class_id, close.method_id) == (406, 60, 80)
    assert f"unknown delivery tag {tag}" in close.reply_text
    assert classic(rig.vhost.queues["q"]).amq.len() == 1


def test_rejected_messages_come_back_to_their_place_redelivered(rig: BrokerRig) -> None:
    c = rig.client().open()
    declared(c)
    c.call(1, BasicQos(prefetch_count=2), BasicQosOk)
    consuming(c)
    for i in range(3):
        c.publish(1, "", "q", b"%d" % i)
    assert [body for _, _, body in deliveries(c)] == [b"0", b"1"]
    c.send(1, BasicReject(delivery_tag=1, requeue=True))
    assert deliveries(c) == [(3, True, b"0")]
    c.send(1, BasicNack(delivery_tag=3, multiple=True, requeue=False))
    assert deliveries(c) == [(4, False, b"2")]


def test_rejects_of_one_read_go_back_in_one_record(rig: BrokerRig) -> None:
    """A get behind them in the same bytes sees them all."""
    c = rig.client().open()
    declared(c, durable=True)
    for i in range(60):
        c.publish(1, "", "q", b"%d" % i, delivery_mode=2)
    for _ in range(50):
        c.send(1, BasicGet(queue="q"))
    rig.turn()
    assert len(c.bodies()) == 50
    before = rig.vhost.engine.log.last_lsn
    rejects = [BasicReject(delivery_tag=tag, requeue=True) for tag in range(50, 0, -1)]
    methods = [*rejects, *[BasicGet(queue="q") for _ in range(3)]]
    c.raw(b"".join([c.protocol.send(1, method) for method in methods]))
    assert rig.vhost.engine.log.last_lsn == before + 1
    rig.turn()
    assert c.bodies() == [b"0", b"1", b"2"]
    assert classic(rig.vhost.queues["q"]).amq.depth() == 60


def test_a_reject_without_requeue_among_requeues(rig: BrokerRig) -> None:
    c = rig.client().open()
    declared(c)
    for i in range(3):
        c.publish(1, "", "q", b"%d" % i)
        c.send(1, BasicGet(queue="q"))
    rig.turn()
    assert len(c.bodies()) == 3
    methods = [
        BasicReject(delivery_tag=1, requeue=True), BasicReject(delivery_tag=2, requeue=False),
        BasicNack(delivery_tag=0, multiple=True, requeue=True),
    ]  # fmt: skip
    c.raw(b"".join([c.protocol.send(1, method) for method in methods]))
    for _ in range(2):
        c.send(1, BasicGet(queue="q"))
    rig.turn()
    assert c.bodies() == [b"0", b"2"]
    assert classic(rig.vhost.queues["q"]).amq.depth() == 2


def test_what_is_unacked_comes_back_when_its_client_goes(rig: BrokerRig) -> None:
    c, other = rig.client().open(), rig.client().open()
    declared(c)
    consuming(c)
    for i in range(3):
        c.publish(1, "", "q", b"%d" % i, delivery_mode=2)
    assert len(deliveries(c)) == 3
    c.send(1, BasicAck(delivery_tag=2))
    c.lose()
    consuming(other)
    assert [(again, body) for _, again, body in deliveries(other)] == [(True, b"0"), (True, b"2")]


def test_recover_brings_back_everything_unacked(rig: BrokerRig) -> None:
    c = rig.client().open()
    declared(c)
    consuming(c)
    c.publish(1, "", "q", b"x")
    deliveries(c)
    c.call(1, BasicRecover(requeue=True), BasicRecoverOk)
    assert [(again, body) for _, again, body in deliveries(c)] == [(True, b"x")]


def test_a_straggler_costs_no_room_for_what_came_after_it(rig: BrokerRig) -> None:
    c = rig.client().open()
    declared(c, durable=False)
    consuming(c)
    c.publish(1, "", "q", b"straggler")
    deliveries(c)
    for _ in range(40):
        for _ in range(100):
            c.publish(1, "", "q", b"x")
        for tag, _, _ in deliveries(c):
            c.send(1, BasicAck(delivery_tag=tag))
    unacked = c.handler.channels[1].unacked
    assert unacked.count == 1
    assert [d.tag for d in unacked.all()] == [0]
    c.send(1, BasicAck(delivery_tag=1))
    assert classic(rig.vhost.queues["q"]).amq.depth() == 0


# ---- prefetch and flow ---------------------------------------------------------------------------


def test_prefetch_of_a_consumer_and_of_the_channel(rig: BrokerRig) -> None:
    c = rig.client().open()
    declared(c)
    c.call(1, BasicQos(prefetch_count=2), BasicQosOk)
    consuming(c, tag="a")
    consuming(c, tag="b")
    for _ in range(10):
        c.publish(1, "", "q", b"x")
    assert len(deliveries(c)) == 4
    c.call(1, BasicQos(prefetch_count=5, global_=True), BasicQosOk)
    c.send(1, BasicAck(delivery_tag=4, multiple=True))
    assert len(deliveries(c)) == 4
    consuming(c, tag="c")
    assert len(deliveries(c)) == 1  # the channel's five


def test_a_client_that_does_not_read_is_given_nothing_more(rig: BrokerRig) -> None:
    c, other = rig.client().open(), rig.client().open()
    declared(c)
    consuming(c, no_ack=True)
    c.outlet.is_writable = False
    c.handler.writable(False)
    other.publish(1, "", "q", b"x")
    assert deliveries(c) == []
    c.outlet.is_writable = True
    c.handler.writable(True)
    assert len(deliveries(c)) == 1
