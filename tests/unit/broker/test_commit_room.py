"""Room for what a transaction brings is decided at its commit: all of it happens, or nothing."""

import pytest

from penstock.codec.spec import (
    BasicAck,
    BasicGet,
    BasicQos,
    BasicQosOk,
    ChannelClose,
    ChannelCloseOk,
    QueueBind,
    QueueBindOk,
    QueuePurge,
    QueuePurgeOk,
    TxCommit,
    TxCommitOk,
    TxSelect,
    TxSelectOk,
)
from penstock.queues.queue_options import QueueOptions
from tests.helpers.broker_rig import BrokerRig, RigClient
from tests.helpers.broker_steps import consuming, declared, deliveries
from tests.helpers.vhost_rig import classic

REFUSING = ["reject-publish", "reject-publish-dlx", "drop-head-strict"]


def depth(rig: BrokerRig, name: str) -> int:
    return classic(rig.vhost.queues[name]).amq.depth()


def refused(client: RigClient) -> ChannelClose:
    """Commit; the answer, which closes the channel."""
    client.send(1, TxCommit())
    client.rig.turn()
    (close,) = client.methods(ChannelClose)
    assert client.methods(TxCommitOk) == []
    assert close.reply_code == 406
    client.send(1, ChannelCloseOk())
    return close


@pytest.mark.parametrize("overflow", REFUSING)
@pytest.mark.parametrize("durable", [True, False], ids=["durable", "gone-at-a-restart"])
@pytest.mark.parametrize("delivery_mode", [1, 2], ids=["transient", "persistent"])
def test_others_fill_the_queue_before_the_commit(
    rig: BrokerRig, overflow: str, durable: bool, delivery_mode: int
) -> None:
    c, other = rig.client().open(), rig.client().open()
    declared(c, "dead")
    declared(
        c, "full", durable=durable, x_max_length=2, x_overflow=overflow,
        x_dead_letter_exchange="", x_dead_letter_routing_key="dead",
    )  # fmt: skip
    declared(c, "beside")
    c.publish(1, "", "beside", b"work", delivery_mode=2)
    c.send(1, BasicGet(queue="beside"))
    c.call(1, TxSelect(), TxSelectOk)
    c.publish(1, "", "beside", b"result", delivery_mode=delivery_mode)
    for body in (b"1", b"2"):
        c.publish(1, "", "full", body, delivery_mode=delivery_mode)
    c.send(1, BasicAck(delivery_tag=1))
    rig.turn()
    c.bodies()
    other.publish(1, "", "full", b"a", delivery_mode=2)
    other.publish(1, "", "full", b"b", delivery_mode=2)
    consuming(other, "full")  # they are unacknowledged in a strict ring, else ready again
    if overflow != "drop-head-strict":
        other.lose()
    close = refused(c)
    assert "queue 'full' is full: max_length would be 4, allowed are 2" in close.reply_text
    assert [depth(rig, name) for name in ("full", "beside", "dead")] == [2, 1, 0]
    c.open()
    c.send(1, BasicGet(queue="beside"))
    rig.turn()
    assert c.bodies() == [b"work"]


@pytest.mark.parametrize("overflow", REFUSING[:2])
@pytest.mark.parametrize("delivery_mode", [1, 2])
def test_bytes_count_too(rig: BrokerRig, overflow: str, delivery_mode: int) -> None:
    c, other = rig.client().open(), rig.client().open()
    declared(c, "full", x_max_length_bytes=10, x_overflow=overflow)
    c.call(1, TxSelect(), TxSelectOk)
    c.publish(1, "", "full", bytes(6), delivery_mode=delivery_mode)
    rig.turn()
    other.publish(1, "", "full", bytes(5), delivery_mode=2)
    assert "max_length_bytes would be 11" in refused(c).reply_text
    assert depth(rig, "full") == 1


@pytest.mark.parametrize("delivery_mode", [1, 2])
def test_one_of_many_queues_of_one_publish_is_full(rig: BrokerRig, delivery_mode: int) -> None:
    c, other = rig.client().open(), rig.client().open()
    limits = {"x_max_length": 1, "x_overflow": "reject-publish"}
    for name in ("free", "full"):
        declared(c, name, durable=name == "free", **limits)
        c.call(1, QueueBind(queue=name, exchange="amq.fanout"), QueueBindOk)
    c.call(1, TxSelect(), TxSelectOk)
    c.publish(1, "amq.fanout", "", b"x", delivery_mode=delivery_mode)
    rig.turn()
    other.publish(1, "", "full", b"a")
    assert "'full'" in refused(c).reply_text
    assert [depth(rig, name) for name in ("free", "full")] == [0, 1]


@pytest.mark.parametrize("delivery_mode", [1, 2])
def test_the_queue_has_room_again_at_the_commit(rig: BrokerRig, delivery_mode: int) -> None:
    c, other = rig.client().open(), rig.client().open()
    declared(c, "full", x_max_length=1, x_overflow="reject-publish")
    other.publish(1, "", "full", b"a", delivery_mode=2)
    c.call(1, TxSelect(), TxSelectOk)
    c.publish(1, "", "full", b"1", delivery_mode=delivery_mode)
    rig.turn()
    other.call(1, QueuePurge(queue="full"), QueuePurgeOk)
    c.call(1, TxCommit(), TxCommitOk)
    consuming(other, "full")
    assert [body for _, _, body in deliveries(other)] == [b"1"]


@pytest.mark.parametrize("delivery_mode", [1, 2])
def test_a_limit_that_came_in_between_counts(rig: BrokerRig, delivery_mode: int) -> None:
    c = rig.client().open()
    declared(c, "q")
    c.call(1, TxSelect(), TxSelectOk)
    for body in (b"1", b"2"):
        c.publish(1, "", "q", body, delivery_mode=delivery_mode)
    rig.turn()
    amq = classic(rig.vhost.queues["q"]).amq
    amq.set_options(QueueOptions(max_length=1, overflow="reject-publish"))
    assert "would be 2" in refused(c).reply_text
    assert depth(rig, "q") == 0


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("delivery_mode", [1, 2])
def test_what_waiting_consumers_take_needs_no_room(
    rig: BrokerRig, durable: bool, delivery_mode: int
) -> None:
    c, taker = rig.client().open(), rig.client().open()
    declared(c, "full", durable=durable, x_max_length_bytes=5, x_overflow="reject-publish")
    taker.call(1, BasicQos(prefetch_count=1), BasicQosOk)
    consuming(taker, "full")
    c.call(1, TxSelect(), TxSelectOk)
    bodies = [bytes(1), bytes(5)]
    for body in bodies:
        c.publish(1, "", "full", body, delivery_mode=delivery_mode)
    c.call(1, TxCommit(), TxCommitOk)
    assert [body for _, _, body in deliveries(taker)] == bodies[:1]
    assert depth(rig, "full") == 2


def test_a_full_disk_fails_a_commit_of_transient_messages_as_a_whole(rig: BrokerRig) -> None:
    c = rig.client().open()
    declared(c, "q")
    c.publish(1, "", "q", b"work", delivery_mode=2)
    c.send(1, BasicGet(queue="q"))
    c.call(1, TxSelect(), TxSelectOk)
    c.publish(1, "", "q", b"result")
    c.send(1, BasicAck(delivery_tag=1))
    rig.turn()
    c.bodies()
    rig.vhost.engine.journal.blocked = True
    c.send(1, TxCommit())
    rig.turn()
    rig.vhost.engine.journal.blocked = False
    (close,) = c.methods(ChannelClose)
    assert close.reply_code == 506
    c.send(1, ChannelCloseOk())
    c.open()
    c.send(1, BasicGet(queue="q"))
    rig.turn()
    assert c.bodies() == [b"work"]
    assert depth(rig, "q") == 1
