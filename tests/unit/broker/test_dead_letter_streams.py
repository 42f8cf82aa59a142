"""Dead letters for more streams than one record of the log has room for."""

from dataclasses import replace

import pytest

from penstock.codec.spec import (
    BasicReject,
    ExchangeDeclare,
    ExchangeDeclareOk,
    QueueBind,
    QueueBindOk,
)
from tests.helpers.broker_rig import BrokerRig, RigClient
from tests.helpers.broker_steps import consuming, declared
from tests.helpers.tiny_engine import OPTIONS
from tests.helpers.vhost_rig import classic

STREAMS = 6
BODY = b"x" * 1000


@pytest.fixture
def rig() -> BrokerRig:
    return BrokerRig(storage=replace(OPTIONS, tx_bytes_max=5000))


def bound(client: RigClient) -> None:
    """Streams, and a queue that is bound after them."""
    client.call(1, ExchangeDeclare(exchange="all", type="fanout"), ExchangeDeclareOk)
    for name in [f"s{n}" for n in range(STREAMS)] + ["t"]:
        declared(client, name, x_queue_type="classic" if name == "t" else "stream")
        client.call(1, QueueBind(queue=name, exchange="all"), QueueBindOk)


@pytest.mark.parametrize("reason", ["rejected", "expired", "maxlen"])
def test_some_streams_do_not_get_it_and_the_queue_goes_on(rig: BrokerRig, reason: str) -> None:
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
