"""Messages for more streams than one record of the log has room for."""

from dataclasses import replace

import pytest

from penstock.codec.spec import (
    BasicReject,
    ChannelClose,
    ExchangeDeclare,
    ExchangeDeclareOk,
    QueueBind,
    QueueBindOk,
)
from tests.helpers.broker_rig import RigClient
from tests.helpers.broker_steps import consuming, declared
from tests.helpers.operation_rig import OperationRig
from tests.helpers.tiny_engine import OPTIONS
from tests.helpers.vhost_rig import classic

STREAMS = 6
BODY = b"x" * 1000


@pytest.fixture
def rig() -> OperationRig:
    return OperationRig(storage=replace(OPTIONS, tx_bytes_max=5000))


def bound(client: RigClient, **arguments: object) -> None:
    """Streams, and a queue that is bound after them."""
    method = ExchangeDeclare(exchange="all", type="fanout", arguments=arguments)
    client.call(1, method, ExchangeDeclareOk)
    for name in [f"s{n}" for n in range(STREAMS)] + ["t"]:
        declared(client, name, x_queue_type="classic" if name == "t" else "stream")
        client.call(1, QueueBind(queue=name, exchange="all"), QueueBindOk)


@pytest.mark.parametrize("reason", ["rejected", "expired", "maxlen"])
def test_some_streams_do_not_get_it_and_the_queue_goes_on(rig: OperationRig, reason: str) -> None:
    c = rig.client().open()
    bound(c)
    limits = {"expired": {"x_message_ttl": 10}, "maxlen": {"x_max_length": 1}}.get(reason, {})
    declared(c, x_dead_letter_exchange="all", **limits)
    c.publish(1, "", "q", BODY, delivery_mode=2)
    rig.turn()
    if reason == "rejected":
        consuming(c)
        rig.turn()
        c.send(1, BasicReject(delivery_tag=1, requeue=False))
    elif reason == "expired":
        rig.tick(1.0)
    else:
        c.publish(1, "", "q", b"next", delivery_mode=2)
    rig.turn()
    rig.vhost.engine.sync()
    assert [stream.len() for stream in rig.vhost.streams.all()] == [1, 1, 0, 0, 0, 0]
    assert classic(rig.vhost.queues["t"]).amq.len() == 1
    amq = classic(rig.vhost.queues["q"]).amq
    assert amq.depth() == (1 if reason == "maxlen" else 0)
    assert [text for kind, text in rig.events if kind == "dead_letter_full"] == [
        "queue 'q': a dead letter is too large for so many streams: some do not get it"
    ]


def test_a_publish_with_a_key_of_duplicates_is_refused(rig: OperationRig) -> None:
    """The key and all copies are in one record."""
    c = rig.client().open()
    bound(c, **{"x-message-deduplication": True, "x-cache-size": 10})
    headers = {"x-deduplication-header": "k"}
    c.publish(1, "all", "", BODY, headers=headers, delivery_mode=2)
    rig.turn()
    (closed,) = c.methods(ChannelClose)
    assert (closed.reply_code, closed.class_id, closed.method_id) == (506, 60, 40)
    assert "a message of 1000 bytes for 6 streams: transaction of " in closed.reply_text
    c = rig.client().open()
    c.publish(1, "all", "", b"small", headers=headers, delivery_mode=2)
    rig.turn()
    assert classic(rig.vhost.queues["t"]).amq.len() == 1, "its key was not seen"


def test_so_is_the_operation(rig: OperationRig) -> None:
    bound(rig.client().open())
    error = rig.refusal("publish", exchange="all", bodies=[BODY], properties={"delivery_mode": 2})
    assert str(error).startswith("RESOURCE_ERROR - a message of 1000 bytes for 6 streams: ")
