"""Streams as clients declare them, publish to them and delete them: what is a queue's, what not."""

import random
from collections.abc import Callable

import pytest

from penstock.access.permissions import Identity
from penstock.codec.method import Method
from penstock.codec.spec import (
    BasicAck,
    BasicGet,
    BasicNack,
    BasicReturn,
    ChannelClose,
    ConfirmSelect,
    ConfirmSelectOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
    QueuePurge,
    QueueUnbind,
    QueueUnbindOk,
    TxCommit,
    TxCommitOk,
    TxRollback,
    TxRollbackOk,
    TxSelect,
    TxSelectOk,
)
from penstock.storage.files.durability import DISK, OS
from tests.helpers.broker_rig import BrokerRig, RigClient
from tests.helpers.broker_steps import consuming, declared, deliveries
from tests.helpers.stream_steps import bodies, consume, count, declare, error_of, publish, records

STREAM: dict[str, object] = {"x-queue-type": "stream"}


@pytest.fixture
def c(rig: BrokerRig) -> RigClient:
    return rig.client().open()


def closed(client: RigClient, method: Method) -> tuple[int, str]:
    """The error that a method closes its channel, or the connection, with."""
    client.send(1, method)
    client.rig.turn()
    return error_of(client)


# ---- declaring -----------------------------------------------------------------------------------


def test_a_stream_is_declared_again_and_found(c: RigClient) -> None:
    declare(c, x_max_age="1D")
    declare(c, x_max_age="1D")
    ok = c.call(1, QueueDeclare(queue="s", passive=True), QueueDeclareOk)
    assert (ok.queue, ok.message_count, ok.consumer_count) == ("s", 0, 0)


@pytest.mark.parametrize(
    ("method", "code", "text"),
    [
        (QueueDeclare(queue="x", arguments=STREAM), 406,
         "invalid property 'non-durable' for queue 'x' in vhost '/'"),
        (QueueDeclare(queue="x", durable=True, exclusive=True, arguments=STREAM), 406,
         "invalid property 'exclusive-owner' for queue 'x' in vhost '/'"),
        (QueueDeclare(queue="x", durable=True, auto_delete=True, arguments=STREAM), 406,
         "invalid property 'auto-delete' for queue 'x' in vhost '/'"),
        (QueueDeclare(queue="", durable=True, arguments=STREAM), 406,
         "Cannot declare a server-named queue for type rabbit_stream_queue"),
        (QueueDeclare(queue="x", durable=True, arguments={**STREAM, "x-message-ttl": 1}), 406,
         "invalid arg 'x-message-ttl' for queue 'x' in vhost '/' of queue type rabbit_stream_"),
        (QueueDeclare(queue="s", durable=True), 406,
         "inequivalent arg 'x-queue-type' for queue 's' in vhost '/': received none but current is "
         "the value 'stream' of type 'longstr'"),
        (QueueDeclare(queue="s", durable=True, arguments={**STREAM, "x-max-age": "1D"}), 406,
         "inequivalent arg 'x-max-age' for queue 's' in vhost '/': received the value '1D'"),
        (QueueDeclare(queue="s", durable=False, arguments=STREAM), 406,
         "inequivalent arg 'durable' for queue 's' in vhost '/'"),
        (QueuePurge(queue="s"), 540,
         "queue.purge not supported by stream queues queue 's' in vhost '/'"),
        (BasicGet(queue="s"), 540,
         "basic.get not supported by stream queues queue 's' in vhost '/'"),
    ],
)  # fmt: skip
def test_what_rabbitmq_refuses_is_refused_with_its_texts(
    c: RigClient, method: Method, code: int, text: str
) -> None:
    declare(c)
    found = closed(c, method)
    assert found[0] == code
    assert text in found[1]


def test_a_declare_that_was_refused_leaves_nothing(rig: BrokerRig, c: RigClient) -> None:
    closed(c, QueueDeclare(queue="x", durable=True, arguments={**STREAM, "x-max-age": "1X"}))
    assert not rig.vhost.table.has("x")
    assert rig.vhost.engine.streams.by_number == {}


def test_a_queue_and_a_stream_do_not_have_one_name(rig: BrokerRig, c: RigClient) -> None:
    declared(c, "q")
    code, text = closed(c, QueueDeclare(queue="q", durable=True, arguments=STREAM))
    assert (code, "inequivalent arg 'x-queue-type'" in text) == (406, True)


# ---- publishing ----------------------------------------------------------------------------------


def test_what_is_published_is_persistent_whatever_its_mode(rig: BrokerRig, c: RigClient) -> None:
    declare(c)
    publish(c, b"1", delivery_mode=1)
    publish(c, b"2", delivery_mode=2)
    publish(c, b"3")
    assert rig.vhost.table.find_queue("s").published == 3
    rig.restart()
    assert count(rig) == 3
    c = rig.client().open()
    consume(c, offset="first")
    found = records(c)
    assert [(r.body, r.offset) for r in found] == [(b"1", 0), (b"2", 1), (b"3", 2)]
    assert [r.props.delivery_mode for r in found] == [1, 2, None]
    assert not any(r.is_redelivered for r in found)


@pytest.mark.parametrize("mode", [OS, DISK])
def test_a_publish_is_confirmed_when_it_is_settled(mode: int) -> None:
    rig = BrokerRig(mode=mode)
    c = rig.client().open()
    declare(c)
    c.call(1, ConfirmSelect(), ConfirmSelectOk)
    for body in (b"1", b"2"):
        c.publish(1, "", "s", body)
    assert not c.methods(BasicAck)
    rig.turn()
    (told,) = c.methods(BasicAck)
    assert (told.delivery_tag, told.multiple) == (2, True)
    assert rig.vhost.engine.log.settled(mode) >= rig.vhost.engine.log.last_lsn


def test_nothing_is_read_before_it_is_settled(rig: BrokerRig, c: RigClient) -> None:
    declare(c)
    consume(c, offset="first")
    c.publish(1, "", "s", b"1")
    rig.vhost.turn()
    c.pump()
    assert not c.messages() or rig.vhost.engine.log.settled(DISK) >= rig.vhost.engine.log.last_lsn
    assert bodies(c) in ([b"1"], [])


def test_a_mandatory_message_for_a_stream_is_not_returned(c: RigClient) -> None:
    declare(c)
    c.publish(1, "", "s", b"1", mandatory=True)
    c.rig.turn()
    assert not c.methods(BasicReturn)
    assert count(c.rig) == 1


def test_expirations_do_nothing_and_wrong_ones_are_refused(rig: BrokerRig, c: RigClient) -> None:
    declare(c)
    publish(c, b"1", expiration="0", headers={"a": 1})
    rig.tick(5)
    assert count(rig) == 1
    c.publish(1, "", "s", b"2", expiration="soon")
    rig.turn()
    assert c.methods(ChannelClose)[0].reply_code == 406


def test_large_bodies_are_spooled_and_read_back(rig: BrokerRig, c: RigClient) -> None:
    declare(c)
    declared(c, "q")
    c.call(1, ExchangeDeclare(exchange="all", type="fanout"), ExchangeDeclareOk)
    for name in ("s", "q"):
        c.call(1, QueueBind(queue=name, exchange="all"), QueueBindOk)
    large = bytes(range(256)) * (3 << 12)
    publish(c, large)
    publish(c, b"alone", to="q")
    assert rig.vhost.table.find_queue("q").published == 1
    c.publish(1, "all", "", large[::-1], delivery_mode=2)
    rig.turn()
    consume(c, offset="first")
    assert bodies(c) == [large, large[::-1]]
    consuming(c, "q", tag="q", no_ack=True)
    assert [body for _, _, body in deliveries(c)] == [b"alone", large[::-1]]


def test_fan_out_to_queues_and_streams_is_one_record(rig: BrokerRig, c: RigClient) -> None:
    for name in ("s", "s2"):
        declare(c, name)
    declared(c, "q")
    declared(c, "q2")
    declared(c, "transient", durable=False)
    c.call(1, ExchangeDeclare(exchange="all", type="fanout"), ExchangeDeclareOk)
    for name in ("s", "s2", "q", "q2", "transient"):
        c.call(1, QueueBind(queue=name, exchange="all"), QueueBindOk)
    c.call(1, ConfirmSelect(), ConfirmSelectOk)
    before = rig.vhost.engine.log.last_lsn
    c.publish(1, "all", "k", b"x", delivery_mode=2)
    assert rig.vhost.engine.log.last_lsn == before + 1
    rig.turn()
    assert c.methods(BasicAck)[0].delivery_tag == 1
    targets = [rig.vhost.table.find_queue(n) for n in ("s", "s2", "q", "q2", "transient")]
    assert [(target.len(), target.published) for target in targets] == [(1, 1)] * 5
    before = rig.vhost.engine.log.last_lsn
    c.publish(1, "all", "k", b"y", delivery_mode=1)  # of the queues none is to keep it
    assert rig.vhost.engine.log.last_lsn == before + 1
    assert [target.published for target in targets] == [2] * 5
    rig.restart()
    lengths = [rig.vhost.table.find_queue(name).len() for name in ("s", "s2", "q", "q2")]
    assert lengths == [2, 2, 1, 1]


def test_a_queue_that_refuses_does_not_keep_the_stream_from_having_it(
    rig: BrokerRig, c: RigClient
) -> None:
    declare(c)
    declared(c, "q", x_max_length=0, x_overflow="reject-publish")
    declared(c, "one", x_max_length=1, x_overflow="reject-publish")
    c.call(1, ExchangeDeclare(exchange="all", type="fanout"), ExchangeDeclareOk)
    for name in ("s", "q", "one"):
        c.call(1, QueueBind(queue=name, exchange="all"), QueueBindOk)
    c.call(1, ConfirmSelect(), ConfirmSelectOk)
    c.publish(1, "all", "", b"x", delivery_mode=2)
    rig.turn()
    assert len(c.methods(BasicNack)) == 1
    assert count(rig) == 1
    targets = [rig.vhost.table.find_queue(name) for name in ("s", "one", "q")]
    assert [target.published for target in targets] == [1, 1, 0]


def test_copies_and_headers_exchanges_lead_to_streams_too(rig: BrokerRig, c: RigClient) -> None:
    declare(c)
    c.call(1, ExchangeDeclare(exchange="h", type="headers"), ExchangeDeclareOk)
    bind = QueueBind(queue="s", exchange="h", arguments={"x-match": "all", "a": 1})
    c.call(1, bind, QueueBindOk)
    c.publish(1, "h", "", b"1", headers={"a": 1})
    c.publish(1, "h", "", b"2", headers={"a": 2})
    c.publish(1, "", "nowhere", b"3", headers={"CC": ["s"]})
    c.publish(1, "", "nowhere", b"4", headers={"BCC": ["s"]})
    rig.turn()
    consume(c, offset="first")
    found = records(c)
    assert [r.body for r in found] == [b"1", b"3", b"4"]
    assert "BCC" not in found[2].headers


def test_a_binding_goes_and_with_it_what_comes(rig: BrokerRig, c: RigClient) -> None:
    declare(c, x_partitions=2)
    c.call(1, QueueBind(queue="s", exchange="amq.topic", routing_key="a.#"), QueueBindOk)
    c.publish(1, "amq.topic", "a.b", b"1")
    rig.turn()
    c.call(1, QueueUnbind(queue="s", exchange="amq.topic", routing_key="a.#"), QueueUnbindOk)
    c.publish(1, "amq.topic", "a.b", b"2")
    rig.turn()
    assert count(rig) == 1


# ---- transactions --------------------------------------------------------------------------------


def test_a_transaction_has_streams_and_queues_in_one_record(rig: BrokerRig, c: RigClient) -> None:
    declare(c)
    declared(c, "q")
    c.call(1, TxSelect(), TxSelectOk)
    for body in (b"1", b"2"):
        c.publish(1, "", "s", body)
    c.publish(1, "", "q", b"q", delivery_mode=2)
    rig.turn()
    assert count(rig) == 0
    before = rig.vhost.engine.log.last_lsn
    c.call(1, TxCommit(), TxCommitOk)
    assert rig.vhost.engine.log.last_lsn - before <= 2  # and a delivered mark, perhaps
    assert (count(rig), count(rig, "q")) == (2, 1)
    c.publish(1, "", "s", b"3")
    c.call(1, TxRollback(), TxRollbackOk)
    rig.turn()
    assert count(rig) == 2


def test_acks_of_a_stream_in_a_transaction(rig: BrokerRig, c: RigClient) -> None:
    declare(c)
    publish(c, b"1", b"2")
    consume(c, offset="first", prefetch=1, reader="r")
    c.call(1, TxSelect(), TxSelectOk)
    (first,) = records(c)
    c.send(1, BasicAck(delivery_tag=first.tag))
    c.call(1, TxRollback(), TxRollbackOk)
    assert rig.vhost.engine.streams.get(b"s").readers["r"].offset == 0
    assert records(c) == []
    c.send(1, BasicAck(delivery_tag=first.tag))
    c.call(1, TxCommit(), TxCommitOk)
    assert bodies(c) == [b"2"]
    assert rig.vhost.engine.streams.get(b"s").readers["r"].offset == 1


# ---- deleting ------------------------------------------------------------------------------------


@pytest.mark.parametrize("partitions", [0, 3])
def test_a_deleted_stream_is_gone_with_its_bindings(rig: BrokerRig, partitions: int) -> None:
    c = rig.client(consumer_cancel_notify=True).open()
    arguments = {"x_partitions": partitions} if partitions else {}
    declare(c, **arguments)
    c.call(1, QueueBind(queue="s", exchange="amq.fanout"), QueueBindOk)
    publish(c, b"1", b"2")
    consume(c, offset="first")
    assert len(records(c)) == 2
    ok = c.call(1, QueueDelete(queue="s"), QueueDeleteOk)
    assert ok.message_count == 2
    c.send(1, BasicAck(delivery_tag=0, multiple=True))
    rig.turn()
    assert not c.methods(ChannelClose)
    assert rig.vhost.engine.streams.by_number == {}
    assert rig.vhost.engine.state.routing.bindings == {}
    assert rig.vhost.streams.by_number == {}
    rig.restart()
    assert not rig.vhost.table.has("s")
    c = rig.client().open()
    declare(c, **arguments)
    assert count(rig) == 0


def test_if_unused_and_if_empty(rig: BrokerRig, c: RigClient) -> None:
    declare(c)
    publish(c, b"1")
    assert closed(c, QueueDelete(queue="s", if_empty=True))[0] == 406
    c = rig.client().open()
    consume(c)
    other = rig.client().open()
    assert closed(other, QueueDelete(queue="s", if_unused=True))[0] == 406


def test_a_route_to_a_stream_that_was_deleted_is_forgotten(rig: BrokerRig, c: RigClient) -> None:
    declare(c)
    publish(c, b"1")
    c.call(1, QueueDelete(queue="s"), QueueDeleteOk)
    publish(c, b"2")
    declare(c)
    publish(c, b"3")
    assert count(rig) == 1


# ---- dead letters --------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [1, 2])
def test_a_stream_takes_dead_letters(rig: BrokerRig, c: RigClient, mode: int) -> None:
    declare(c)
    declared(c, "dead")
    c.call(1, ExchangeDeclare(exchange="dlx", type="fanout"), ExchangeDeclareOk)
    for name in ("s", "dead"):
        c.call(1, QueueBind(queue=name, exchange="dlx"), QueueBindOk)
    declared(c, "q", x_dead_letter_exchange="dlx")
    consuming(c, "q")
    c.publish(1, "", "q", b"x", delivery_mode=mode)
    ((tag, _, _),) = deliveries(c)
    c.send(1, BasicNack(delivery_tag=tag, requeue=False))
    rig.turn()
    targets = [rig.vhost.table.find_queue(name) for name in ("s", "dead", "q")]
    assert [target.len() for target in targets] == [1, 1, 0]
    assert [target.published for target in targets] == [1, 0, 1]
    consume(c, offset="first", tag="s")
    (record,) = records(c)
    assert record.body == b"x"
    assert record.headers["x-death"][0]["queue"] == "q"


def test_what_overflows_into_a_stream(rig: BrokerRig, c: RigClient) -> None:
    declare(c)
    declared(
        c, "q", x_max_length=1, x_overflow="reject-publish-dlx", x_dead_letter_exchange="",
        x_dead_letter_routing_key="s",
    )  # fmt: skip
    publish(c, b"1", b"2", to="q", delivery_mode=2)
    consume(c, offset="first")
    assert bodies(c) == [b"2"]


# ---- after a start -------------------------------------------------------------------------------


def test_streams_are_there_after_a_restart(rig: BrokerRig, c: RigClient) -> None:
    declare(c, "one", x_max_age="1D")
    declare(c, "many", x_partitions=3)
    publish(c, *[b"%d" % i for i in range(20)], to="many")
    rig.restart()
    c = rig.client().open()
    declare(c, "one", x_max_age="1D")
    declare(c, "many", x_partitions=3)
    assert (count(rig, "one"), count(rig, "many")) == (0, 20)
    assert rig.vhost.table.names() == ["many", "one"]


def test_a_crash_keeps_what_was_confirmed(rig: BrokerRig, c: RigClient) -> None:
    declare(c)
    publish(c, b"1", b"2")
    rig = BrokerRig(fs=rig.fs.crash("lost", random.Random(1)))
    c = rig.client().open()
    consume(c, offset="first")
    assert bodies(c) == [b"1", b"2"]


# ---- permissions ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda c: closed(c, QueueDeclare(queue="x", durable=True, arguments=STREAM)),
        lambda c: closed(c, QueueDelete(queue="s")),
    ],
)
def test_streams_have_the_permissions_of_queues(
    rig: BrokerRig, c: RigClient, call: Callable[[RigClient], tuple[int, str]]
) -> None:
    declare(c)
    nobody = Identity("nobody", frozenset(), "^$", "^$", "^$")
    assert call(rig.client(nobody).open())[0] == 403
