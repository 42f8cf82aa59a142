"""Channels on a real vhost: confirms, transactions, errors, and publishers that must wait."""

from penstock.codec.frames import method_frame
from penstock.codec.spec import (
    BasicAck,
    BasicCancel,
    BasicGet,
    BasicGetEmpty,
    BasicGetOk,
    BasicNack,
    BasicQos,
    BasicQosOk,
    ChannelClose,
    ChannelCloseOk,
    ConfirmSelect,
    ConfirmSelectOk,
    ConnectionBlocked,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionUnblocked,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
    TxCommit,
    TxCommitOk,
    TxRollback,
    TxRollbackOk,
    TxSelect,
    TxSelectOk,
)
from penstock.protocol.connection import MessageReceived
from penstock.storage.files.durability import DISK
from tests.helpers.broker_rig import BrokerRig, RigClient
from tests.helpers.broker_steps import consuming, declared, deliveries
from tests.helpers.vhost_rig import classic

# ---- confirms ------------------------------------------------------------------------------------


def test_nothing_is_confirmed_before_its_sync(rig: BrokerRig) -> None:
    c = rig.client().open()
    declared(c)
    c.call(1, ConfirmSelect(), ConfirmSelectOk)
    c.publish(1, "", "q", b"1", delivery_mode=2)
    c.publish(1, "", "q", b"2", delivery_mode=2)
    rig.vhost.turn()
    assert c.methods(BasicAck) == []
    rig.turn()
    (ack,) = c.methods(BasicAck)
    assert (ack.delivery_tag, ack.multiple) == (2, True)
    assert rig.vhost.engine.log.settled(DISK) >= 3


def test_transient_messages_are_confirmed_at_once(rig: BrokerRig) -> None:
    c = rig.client().open()
    declared(c, durable=False)
    c.call(1, ConfirmSelect(), ConfirmSelectOk)
    c.publish(1, "", "q", b"1")
    rig.vhost.turn()
    (ack,) = c.methods(BasicAck)
    assert (ack.delivery_tag, ack.multiple) == (1, False)


def test_a_full_queue_answers_nack(rig: BrokerRig) -> None:
    c = rig.client().open()
    declared(c, x_max_length=2, x_overflow="reject-publish")
    c.call(1, ConfirmSelect(), ConfirmSelectOk)
    for _ in range(4):
        c.publish(1, "", "q", b"x", delivery_mode=2)
    rig.turn()
    acks, nacks = c.methods(BasicAck), c.methods(BasicNack)
    assert [(a.delivery_tag, a.multiple) for a in acks] == [(2, True)]
    assert [n.delivery_tag for n in nacks] == [3, 4]


def test_a_queue_counts_the_publishes_that_it_refuses(rig: BrokerRig) -> None:
    c = rig.client().open()
    declared(c, "other")
    declared(c, x_max_length=1, x_overflow="reject-publish")
    c.call(1, ConfirmSelect(), ConfirmSelectOk)
    for name in ("q", "other"):
        rig.vhost.bind_queue(name, "amq.fanout", "")
    for _ in range(3):
        c.publish(1, "", "q", b"alone")
    for _ in range(2):
        c.publish(1, "amq.fanout", "", b"beside another queue")
    rig.turn()
    refused = [classic(rig.vhost.queues[name]).refused for name in ("q", "other")]
    assert refused == [4, 0]


# ---- transactions --------------------------------------------------------------------------------


def test_a_transaction_is_seen_when_it_commits(rig: BrokerRig) -> None:
    c, other = rig.client().open(), rig.client().open()
    declared(c, "a")
    declared(c, "b")
    c.publish(1, "", "a", b"in", delivery_mode=2)
    c.send(1, BasicGet(queue="a"))
    rig.turn()
    assert c.bodies() == [b"in"]
    c.call(1, TxSelect(), TxSelectOk)
    c.publish(1, "", "b", b"out", delivery_mode=2)
    c.publish(1, "", "b", b"transient")
    c.send(1, BasicAck(delivery_tag=1))
    rig.turn()
    assert classic(rig.vhost.queues["b"]).amq.len() == 0
    c.call(1, TxCommit(), TxCommitOk)
    assert classic(rig.vhost.queues["a"]).amq.depth() == 0
    consuming(other, "b", no_ack=True)
    assert [body for _, _, body in deliveries(other)] == [b"out", b"transient"]


def test_commit_is_answered_after_its_sync(rig: BrokerRig) -> None:
    c = rig.client().open()
    declared(c)
    c.call(1, TxSelect(), TxSelectOk)
    c.publish(1, "", "q", b"x", delivery_mode=2)
    c.send(1, TxCommit())
    rig.vhost.turn()
    assert c.methods(TxCommitOk) == []
    rig.turn()
    assert len(c.methods(TxCommitOk)) == 1


def test_rolled_back_acks_are_unacked_again(rig: BrokerRig) -> None:
    c = rig.client().open()
    declared(c)
    c.publish(1, "", "q", b"x", delivery_mode=2)
    c.send(1, BasicGet(queue="q"))
    c.call(1, TxSelect(), TxSelectOk)
    c.publish(1, "", "q", b"never", delivery_mode=2)
    c.send(1, BasicAck(delivery_tag=1))
    c.call(1, TxRollback(), TxRollbackOk)
    assert classic(rig.vhost.queues["q"]).amq.depth() == 1
    c.send(1, BasicAck(delivery_tag=1))
    c.call(1, TxCommit(), TxCommitOk)
    assert classic(rig.vhost.queues["q"]).amq.depth() == 0


def test_a_refused_commit_changes_nothing(rig: BrokerRig) -> None:
    c = rig.client().open()
    declared(c, "full", x_max_length=1, x_overflow="reject-publish")
    declared(c, "other")
    c.call(1, TxSelect(), TxSelectOk)
    c.publish(1, "", "other", b"x", delivery_mode=2)
    c.publish(1, "", "full", b"1", delivery_mode=2)
    c.publish(1, "", "full", b"2", delivery_mode=2)
    c.send(1, TxCommit())
    rig.turn()
    (close,) = c.methods(ChannelClose)
    assert close.reply_code == 406
    assert "full" in close.reply_text
    assert [classic(rig.vhost.queues[name]).amq.depth() for name in ("full", "other")] == [0, 0]


# ---- errors --------------------------------------------------------------------------------------


def test_a_missing_exchange_closes_the_channel_and_not_the_connection(rig: BrokerRig) -> None:
    c = rig.client().open().open(2)
    c.publish(1, "missing", "k", b"x")
    rig.turn()
    (close,) = c.methods(ChannelClose)
    assert close.reply_text == "NOT_FOUND - no exchange 'missing' in vhost '/'"
    assert (close.reply_code, close.class_id, close.method_id) == (404, 60, 40)
    c.send(1, ChannelCloseOk())
    assert c.call(2, BasicGet(queue=declared2(c)), BasicGetEmpty)


def declared2(client: RigClient) -> str:
    return client.call(2, QueueDeclare(queue="q2"), QueueDeclareOk).queue


def test_a_bad_frame_closes_the_connection_after_what_came_before_it(rig: BrokerRig) -> None:
    c = rig.client().open()
    declared(c)
    c.publish(1, "", "q", b"before", delivery_mode=2)
    c.raw(b"\x01\x00\x01\x00\x00\x00\x04\x00\x0a\x00\x0aX")
    rig.turn()
    (close,) = c.methods(ConnectionClose)
    assert close.reply_code == 501
    assert classic(rig.vhost.queues["q"]).amq.len() == 1


def test_whoever_got_close_ok_closes_the_socket(rig: BrokerRig) -> None:
    leaves, fails = rig.client().open(), rig.client().open()
    leaves.send(0, ConnectionClose(reply_code=200, reply_text="bye"))
    rig.turn()
    assert len(leaves.methods(ConnectionCloseOk)) == 1
    assert (leaves.outlet.is_closed, leaves.outlet.client_first) == (True, True)
    fails.raw(method_frame(7, BasicGet(queue="q").encode()))
    rig.turn()
    assert len(fails.methods(ConnectionClose)) == 1
    assert not fails.outlet.is_closed
    fails.send(0, ConnectionCloseOk())
    rig.turn()
    assert (fails.outlet.is_closed, fails.outlet.client_first) == (True, False)


def test_a_consumer_is_told_that_its_queue_is_gone(rig: BrokerRig) -> None:
    c, other = rig.client(consumer_cancel_notify=True).open(), rig.client().open()
    declared(c)
    consuming(c)
    other.call(1, QueueDelete(queue="q"), QueueDeleteOk)
    (cancel,) = c.methods(BasicCancel)
    assert (cancel.consumer_tag, cancel.nowait) == ("t", True)


# ---- blocked, and stopped ------------------------------------------------------------------------


def test_publishes_wait_while_memory_is_short(rig: BrokerRig) -> None:
    c = rig.client(**{"connection.blocked": True}).open()
    declared(c)
    c.call(1, ConfirmSelect(), ConfirmSelectOk)
    rig.vhost.monitor.is_alarmed = True
    rig.vhost.update_alarms()
    c.publish(1, "", "q", b"x", delivery_mode=2)
    rig.turn()
    (told,) = c.methods(ConnectionBlocked)
    assert told.reason.startswith("low on memory: queues, exchanges, bindings and readers take ")
    assert c.outlet.is_paused
    assert classic(rig.vhost.queues["q"]).amq.len() == 0
    rig.vhost.monitor.is_alarmed = False
    rig.vhost.update_alarms()
    rig.turn()
    assert len(c.methods(ConnectionUnblocked)) == 1
    assert len(c.methods(BasicAck)) == 1
    assert not c.outlet.is_paused
    assert rig.vhost.queues["q"].amq.len() == 1


def test_redelivered_is_exact_after_an_orderly_stop(rig: BrokerRig) -> None:
    c = rig.client().open()
    declared(c)
    c.call(1, BasicQos(prefetch_count=2), BasicQosOk)
    consuming(c)
    for i in range(4):
        c.publish(1, "", "q", b"%d" % i, delivery_mode=2)
    assert len(deliveries(c)) == 2
    rig.restart()
    c = rig.client().open()
    consuming(c)
    assert [(again, body) for _, again, body in deliveries(c)] == [
        (True, b"0"), (True, b"1"), (False, b"2"), (False, b"3")
    ]  # fmt: skip


def test_large_bodies_are_spooled_and_published_whole(rig: BrokerRig) -> None:
    c = rig.client().open()
    declared(c)
    declared(c, "t", durable=False)
    c.call(1, ConfirmSelect(), ConfirmSelectOk)
    body = bytes(range(256)) * (3 << 12)  # 3 MiB
    c.publish(1, "", "q", body, delivery_mode=2)
    c.publish(1, "", "t", body)
    rig.turn()
    assert [ack.delivery_tag for ack in c.methods(BasicAck)] == [2]
    for queue in ("q", "t"):
        c.send(1, BasicGet(queue=queue, no_ack=True))
        rig.turn()
        (message,) = c.messages()
        assert isinstance(message, MessageReceived)
        assert isinstance(message.method, BasicGetOk)
        assert message.body == body
