"""The counters of channels, exchanges, queues and the vhost, compared with what was done."""

from typing import Any

import pytest

from penstock.access.permissions import everything
from penstock.broker.channel import Channel
from penstock.codec.spec import (
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicConsumeOk,
    BasicGet,
    BasicNack,
    BasicQos,
    BasicQosOk,
    BasicReject,
    ChannelClose,
    ChannelCloseOk,
    ConfirmSelect,
    ConfirmSelectOk,
    ExchangeBind,
    ExchangeBindOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    QueueBind,
    QueueBindOk,
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
from tests.helpers.broker_rig import BrokerRig, RigClient
from tests.helpers.operation_rig import OperationRig
from tests.helpers.staged_rig import StagedRig, header, plain


@pytest.fixture
def rig() -> OperationRig:
    return OperationRig()


@pytest.fixture
def c(rig: OperationRig) -> RigClient:
    return rig.client(everything("ann")).open(1)


def not_zero(counts: dict[str, Any]) -> dict[str, int]:
    """Without what is 0, and without rates."""
    return {name: n for name, n in counts.items() if n and not isinstance(n, dict)}


def of_vhost(rig: OperationRig) -> dict[str, int]:
    return not_zero(rig.result("vhost_totals")["message_stats"])


def of_channel(client: RigClient, number: int = 1) -> dict[str, int]:
    channel = client.handler.channels[number]
    assert isinstance(channel, Channel)
    return not_zero(channel.message_stats())


def of_queue(rig: BrokerRig, name: str) -> dict[str, int]:
    return not_zero(rig.vhost.table.served[name].counters())


def of_exchange(rig: BrokerRig, name: str) -> tuple[int, int, int]:
    counts = rig.vhost.exchanges[name].counts
    return counts.publish_in, counts.publish_out, counts.unroutable


def exchange(c: RigClient, name: str, kind: str = "direct", **arguments: Any) -> None:
    named = {key.replace("_", "-"): value for key, value in arguments.items()}
    c.call(1, ExchangeDeclare(exchange=name, type=kind, arguments=named), ExchangeDeclareOk)


def queue(c: RigClient, name: str, *exchanges: str, key: str = "k", **arguments: Any) -> None:
    named = {key.replace("_", "-"): value for key, value in arguments.items()}
    c.call(1, QueueDeclare(queue=name, durable=True, arguments=named), QueueDeclareOk)
    for one in exchanges:
        c.call(1, QueueBind(queue=name, exchange=one, routing_key=key), QueueBindOk)


def consume(
    c: RigClient, name: str, *, no_ack: bool = False, tag: str = "t", channel: int = 1
) -> None:
    asked = BasicConsume(queue=name, consumer_tag=tag, no_ack=no_ack)
    c.call(channel, asked, BasicConsumeOk)


def test_publishes_and_their_confirms(rig: OperationRig, c: RigClient) -> None:
    queue(c, "q")
    c.call(1, ConfirmSelect(), ConfirmSelectOk)
    for _ in range(5):
        c.publish(1, "", "q", b"1")
    c.publish(1, "", "q", b"1", headers={"n": 1})
    rig.turn()
    assert of_channel(c) == of_vhost(rig) == {"publish": 6, "confirm": 6}
    assert of_queue(rig, "q") == {"publish": 6}
    assert of_exchange(rig, "") == (6, 6, 0)


def test_what_no_queue_gets(rig: OperationRig, c: RigClient) -> None:
    queue(c, "q")
    c.publish(1, "", "nobody", b"1")
    c.publish(1, "", "nobody", b"1", mandatory=True)
    c.publish(1, "amq.topic", "nobody", b"1", mandatory=True)
    c.publish(1, "amq.headers", "", b"1", headers={"n": 1})
    c.publish(1, "", "q", b"1", mandatory=True)
    rig.turn()
    expected = {"publish": 5, "return_unroutable": 2, "drop_unroutable": 2}
    assert of_channel(c) == of_vhost(rig) == expected
    assert of_exchange(rig, "") == (3, 1, 2)
    assert of_exchange(rig, "amq.topic") == of_exchange(rig, "amq.headers") == (1, 0, 1)


def test_a_publish_that_a_queue_refuses_is_not_confirmed(rig: OperationRig, c: RigClient) -> None:
    queue(c, "q", x_max_length=1, x_overflow="reject-publish")
    c.call(1, ConfirmSelect(), ConfirmSelectOk)
    for _ in range(3):
        c.publish(1, "", "q", b"1")
    rig.turn()
    assert of_channel(c) == of_vhost(rig) == {"publish": 3, "confirm": 1}
    assert of_queue(rig, "q") == {"publish": 1}


def test_fan_out_and_exchanges_behind_exchanges(rig: OperationRig, c: RigClient) -> None:
    exchange(c, "front", "fanout")
    exchange(c, "back", "fanout")
    c.call(1, ExchangeBind(destination="back", source="front"), ExchangeBindOk)
    queue(c, "a", "front")
    queue(c, "b", "back")
    queue(c, "s", "back", x_queue_type="stream")
    for _ in range(4):
        c.publish(1, "front", "k", b"1", delivery_mode=2)
    rig.turn()
    assert of_exchange(rig, "front") == (4, 12, 0)
    assert of_exchange(rig, "back") == (0, 0, 0)  # as in RabbitMQ
    assert [of_queue(rig, name)["publish"] for name in "abs"] == [4, 4, 4]
    assert of_vhost(rig) == {"publish": 4}


def test_an_alternate_exchange(rig: OperationRig, c: RigClient) -> None:
    exchange(c, "other", "fanout")
    exchange(c, "x", alternate_exchange="other")
    queue(c, "q", "other")
    c.publish(1, "x", "none", b"1")
    assert of_exchange(rig, "x") == (1, 1, 0)
    assert of_exchange(rig, "other") == (0, 0, 0)


def test_messages_that_headers_and_cc_route(rig: OperationRig, c: RigClient) -> None:
    exchange(c, "h", "headers")
    c.call(1, QueueDeclare(queue="q", durable=True), QueueDeclareOk)
    c.call(1, QueueBind(queue="q", exchange="h", arguments={"n": 1}), QueueBindOk)
    queue(c, "other")
    for n in (1, 2, 1):
        c.publish(1, "h", "", b"1", headers={"n": n})
    c.publish(1, "", "q", b"1", headers={"CC": ["other"]})
    c.publish(1, "", "none", b"1", headers={"CC": ["other"]})
    c.publish(1, "", "none", b"1", headers={"CC": ["none too"]})
    assert of_exchange(rig, "h") == (3, 2, 1)
    assert of_exchange(rig, "") == (3, 3, 1)
    assert of_channel(c) == {"publish": 6, "drop_unroutable": 2}


def test_an_exchange_that_is_declared_again_begins_with_nothing(
    rig: OperationRig, c: RigClient
) -> None:
    exchange(c, "x")
    c.publish(1, "x", "k", b"1")
    rig.result("delete_exchange", exchange="x")
    exchange(c, "x")
    c.publish(1, "x", "k", b"1")
    assert of_exchange(rig, "x") == (1, 0, 1)


def test_deliveries_and_acks(rig: OperationRig, c: RigClient) -> None:
    queue(c, "q")
    queue(c, "fast")
    consume(c, "q")
    consume(c, "fast", no_ack=True, tag="fast")
    for _ in range(3):
        c.publish(1, "", "q", b"1")
        c.publish(1, "", "fast", b"1")
    rig.turn()
    c.send(1, BasicAck(delivery_tag=3, multiple=True))
    rig.turn()
    expected = {"deliver": 3, "deliver_no_ack": 3, "deliver_get": 6, "publish": 6}
    acked = of_queue(rig, "q").get("ack", 0)
    assert acked > 0
    assert of_channel(c) == of_vhost(rig) == expected | {"ack": acked}
    assert of_queue(rig, "q") == {"deliver": 3, "deliver_get": 3, "publish": 3, "ack": acked}
    assert of_queue(rig, "fast") == {"deliver_no_ack": 3, "deliver_get": 3, "publish": 3}
    c.call(1, BasicCancel(consumer_tag="t"), BasicCancelOk)
    assert of_channel(c) == expected | {"ack": acked}, (
        "the consumer is gone, its deliveries are not"
    )
    c.call(1, ChannelClose(), ChannelCloseOk)
    assert of_vhost(rig) == expected | {"ack": acked}


def test_what_comes_back_is_redelivered(rig: OperationRig, c: RigClient) -> None:
    queue(c, "q")
    c.call(1, BasicQos(prefetch_count=1), BasicQosOk)
    consume(c, "q")
    c.publish(1, "", "q", b"1")
    rig.turn()
    c.send(1, BasicNack(delivery_tag=1, requeue=True))
    rig.turn()
    c.send(1, BasicReject(delivery_tag=2, requeue=False))
    rig.turn()
    expected = {"publish": 1, "deliver": 2, "deliver_get": 2, "redeliver": 1}
    assert of_channel(c) == of_vhost(rig) == of_queue(rig, "q") == expected
    totals = rig.result("vhost_totals")
    assert totals["dead_lettered"]["rejected"] == 1
    assert totals["dead_letters_dropped"] == 0, "it has no route: it is not lost on its way"


@pytest.mark.parametrize("no_ack", [True, False])
def test_gets(rig: OperationRig, c: RigClient, no_ack: bool) -> None:
    queue(c, "q")
    c.publish(1, "", "q", b"1")
    for _ in range(3):
        c.send(1, BasicGet(queue="q", no_ack=no_ack))
    rig.turn()
    name = "get_no_ack" if no_ack else "get"
    expected = {"publish": 1, name: 1, "get_empty": 2, "deliver_get": 1}
    assert of_channel(c) == of_vhost(rig) == of_queue(rig, "q") == expected


def test_a_transaction_counts_when_it_commits(rig: OperationRig, c: RigClient) -> None:
    queue(c, "q")
    rig.put("q", b"0")
    consume(c, "q")
    c.call(1, TxSelect(), TxSelectOk)
    before = of_vhost(rig)
    c.publish(1, "", "q", b"1", delivery_mode=2)
    c.publish(1, "", "q", b"1")
    c.publish(1, "", "none", b"1")
    c.publish(1, "", "none", b"1", mandatory=True)
    c.send(1, BasicAck(delivery_tag=1))
    rig.turn()
    assert of_vhost(rig) == before
    c.call(1, TxRollback(), TxRollbackOk)
    assert of_vhost(rig) == before
    c.publish(1, "", "q", b"1", delivery_mode=2)
    c.publish(1, "", "none", b"1")
    c.publish(1, "", "none", b"1", mandatory=True)
    c.send(1, BasicAck(delivery_tag=1))
    c.call(1, TxCommit(), TxCommitOk)
    rig.turn()
    expected = {"publish": 3, "return_unroutable": 1, "drop_unroutable": 1, "ack": 1}
    expected |= {"deliver": 2, "deliver_get": 2}
    assert of_channel(c) == expected
    assert of_exchange(rig, "") == (4, 2, 2)
    assert of_vhost(rig) == expected | {"publish": 4}
    assert of_queue(rig, "q")["ack"] == 1


def test_streams(rig: OperationRig, c: RigClient) -> None:
    queue(c, "s", x_queue_type="stream")
    for _ in range(3):
        c.publish(1, "", "s", b"1")
    c.call(1, BasicQos(prefetch_count=10), BasicQosOk)
    asked = BasicConsume(queue="s", consumer_tag="t", arguments={"x-stream-offset": "first"})
    c.call(1, asked, BasicConsumeOk)
    rig.turn()
    c.send(1, BasicAck(delivery_tag=3, multiple=True))
    rig.turn()
    expected = {"publish": 3, "deliver": 3, "deliver_get": 3, "ack": 3}
    assert of_channel(c) == of_vhost(rig) == of_queue(rig, "s") == expected


def test_a_large_body(rig: OperationRig, c: RigClient) -> None:
    queue(c, "q")
    c.publish(1, "", "q", bytes(3 << 20))
    c.publish(1, "", "none", bytes(3 << 20))
    rig.turn()
    assert of_channel(c) == of_vhost(rig) == {"publish": 2, "drop_unroutable": 1}
    assert of_exchange(rig, "") == (2, 1, 1)


def test_operators_and_readers_with_leases(rig: OperationRig) -> None:
    rig.result("declare_queue", queue="q")
    rig.put("q", b"1", b"2", b"3")
    rig.result("lease_queue", queue="q", reader="r", messages=2)
    rig.result("commit_lease", queue="q", reader="r", offset=2)
    assert of_vhost(rig) == {"publish": 3, "get": 2, "deliver_get": 2, "ack": 2}
    (found,) = rig.result("get", queue="q", count=1, session="s", wait_ms=0)["messages"]
    rig.result("settle", queue="q", session="s", tags=[found["tag"]], requeue=False)
    rig.result("get", queue="q", count=1, session="s", wait_ms=0)
    expected = {"publish": 3, "get": 3, "deliver_get": 3, "ack": 3, "get_empty": 1}
    assert of_vhost(rig) == of_queue(rig, "q") == expected
    assert rig.refusal("publish", routing_key="none", bodies=[b"1"]).code == 312
    assert of_exchange(rig, "") == (4, 3, 1)


def test_batches() -> None:
    rig = StagedRig()
    rig.result("declare_queue", queue="q")
    rig.result("declare_queue", queue="other")
    target = {"exchanges": ["", "amq.topic"]}
    rows = plain("q", b"1", b"2") + plain("other", b"3")
    rig.committed(0, rig.stage(0, rows), target=target)
    assert of_vhost(rig) == {"publish": 3}
    assert of_queue(rig, "q") == {"publish": 2}
    assert of_exchange(rig, "") == (3, 3, 0)
    rig.result("bind_queue", queue="q", exchange="amq.topic", routing_key="a")
    rows = [(header(key, "amq.topic"), b"1") for key in ("a", "a", "b")]
    rig.committed(1, rig.stage(1, rows), target=target)
    assert of_exchange(rig, "amq.topic") == (3, 2, 1)
    rig.committed(2, rig.stage(2, plain("other", b"1", b"2")))  # to the queue "q"
    assert of_vhost(rig) == {"publish": 8, "drop_unroutable": 1}


def test_what_comes_and_goes(rig: OperationRig, c: RigClient) -> None:
    queue(c, "q")
    queue(c, "q")
    queue(c, "other")
    c.call(1, QueueDeclare(queue="q", passive=True), QueueDeclareOk)
    c.call(1, QueueDelete(queue="other"), QueueDeleteOk)
    consume(c, "q")
    consume(c, "q", tag="second")
    gone = rig.client().open(1).open(2)
    consume(gone, "q", tag="third", channel=2)
    totals = rig.result("vhost_totals")
    assert totals["object_totals"] == {
        "connections": 2, "channels": 3, "queues": 1, "consumers": 3,
        "exchanges": len(rig.vhost.exchanges),
    }  # fmt: skip
    gone.lose()
    c.call(1, BasicCancel(consumer_tag="t"), BasicCancelOk)
    totals = rig.result("vhost_totals")
    found = totals["object_totals"]
    assert [found[name] for name in ("connections", "channels", "consumers")] == [1, 1, 1]
    assert not_zero(totals["churn_rates"]) == {
        "connection_created": 2, "connection_closed": 1, "channel_created": 3,
        "channel_closed": 2, "queue_declared": 4, "queue_created": 2, "queue_deleted": 1,
    }  # fmt: skip
    assert totals["recv_oct"] > c.handler.received_bytes > 0
    assert totals["send_oct"] > c.handler.sent_bytes > 0
    c.call(1, QueueDelete(queue="q"), QueueDeleteOk)
    assert rig.result("vhost_totals")["object_totals"]["consumers"] == 0
