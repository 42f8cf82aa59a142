"""What comes back to a queue that may keep nothing leaves it again, undelivered, as in RabbitMQ."""

from collections.abc import Callable
from typing import Any

import pytest

from penstock.codec.spec import (
    BasicNack,
    BasicQos,
    BasicQosOk,
    BasicRecover,
    BasicReject,
    ChannelClose,
)
from tests.helpers.broker_rig import BrokerRig, RigClient
from tests.helpers.broker_steps import consuming, declared, deliveries
from tests.helpers.vhost_rig import classic


def reject(client: RigClient) -> None:
    client.send(1, BasicReject(delivery_tag=1, requeue=True))


def nack(client: RigClient) -> None:
    client.send(1, BasicNack(delivery_tag=0, multiple=True, requeue=True))


def recover(client: RigClient) -> None:
    client.send(1, BasicRecover(requeue=True))


def close(client: RigClient) -> None:
    client.send(1, ChannelClose(reply_code=200, reply_text="", class_id=0, method_id=0))


def lose(client: RigClient) -> None:
    client.lose()


LIMITS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "length": ({"x_max_length": 0}, {}),
    "bytes": ({"x_max_length_bytes": 0}, {}),
    "ttl": ({"x_message_ttl": 0}, {}),
    "expiration": ({}, {"expiration": "0"}),
}


@pytest.mark.parametrize("end", [reject, nack, recover, close, lose])
@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("delivery_mode", [1, 2])
@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
def test_it_is_delivered_once_and_a_dead_letter_then(
    rig: BrokerRig, limit: str, end: Callable[[RigClient], None], delivery_mode: int,
    queue_type: str,
) -> None:  # fmt: skip
    arguments, properties = LIMITS[limit]
    c, other, watcher = (rig.client().open() for _ in range(3))
    declared(c, "dead")
    declared(
        c, x_queue_type=queue_type, x_dead_letter_exchange="", x_dead_letter_routing_key="dead",
        **arguments,
    )  # fmt: skip
    consuming(watcher, "dead", no_ack=True)
    c.call(1, BasicQos(prefetch_count=1), BasicQosOk)
    consuming(c)
    c.publish(1, "", "q", b"x", delivery_mode=delivery_mode, **properties)
    rig.turn()
    assert c.bodies() == [b"x"]
    consuming(other)
    end(c)
    rig.turn()
    assert (c.bodies(), other.bodies()) == ([], [])
    assert classic(rig.vhost.queues["q"]).amq.depth() == 0
    assert [body for _, _, body in deliveries(watcher)] == [b"x"]


@pytest.mark.parametrize("limit", LIMITS)
def test_a_delay_of_what_is_requeued_changes_nothing(rig: BrokerRig, limit: str) -> None:
    arguments, properties = LIMITS[limit]
    c = rig.client().open()
    declared(c, x_delayed_retry_min=100, **arguments)
    consuming(c)
    c.publish(1, "", "q", b"x", delivery_mode=2, **properties)
    rig.turn()
    assert c.bodies() == [b"x"]
    nack(c)
    rig.turn()
    amq = classic(rig.vhost.queues["q"]).amq
    assert (amq.depth(), amq.delayed()) == (0, 0)


@pytest.mark.parametrize("limit", LIMITS)
def test_without_dead_letters_it_is_dropped(rig: BrokerRig, limit: str) -> None:
    arguments, properties = LIMITS[limit]
    c = rig.client().open()
    declared(c, **arguments)
    consuming(c)
    for body in (b"1", b"2", b"3"):
        c.publish(1, "", "q", body, delivery_mode=2, **properties)
    rig.turn()
    assert c.bodies() == [b"1", b"2", b"3"]
    nack(c)
    rig.turn()
    assert c.bodies() == []
    assert classic(rig.vhost.queues["q"]).amq.depth() == 0


def test_more_than_a_slice_leaves_at_once(rig: BrokerRig) -> None:
    c = rig.client().open()
    declared(c, x_max_length=0)
    consuming(c)
    for _ in range(600):
        c.publish(1, "", "q", b"x", delivery_mode=2)
    rig.turn()
    assert len(c.bodies()) == 600
    nack(c)
    rig.turn()
    assert c.bodies() == []
    assert classic(rig.vhost.queues["q"]).amq.info()["maxlen"] == 600


def test_the_limit_counts_what_is_ready_besides(rig: BrokerRig) -> None:
    """The message that comes back is the head, so it is dropped; the next is delivered."""
    c = rig.client().open()
    declared(c, x_max_length=1)
    c.call(1, BasicQos(prefetch_count=1), BasicQosOk)
    consuming(c)
    c.publish(1, "", "q", b"1", delivery_mode=2)
    rig.turn()
    c.publish(1, "", "q", b"2", delivery_mode=2)
    reject(c)
    assert [body for _, _, body in deliveries(c)] == [b"1", b"2"]
    assert classic(rig.vhost.queues["q"]).amq.depth() == 1


def test_those_that_wait_take_theirs_before_it_comes_back(rig: BrokerRig) -> None:
    c, other = rig.client().open(), rig.client().open()
    declared(c, x_max_length=1)
    c.call(1, BasicQos(prefetch_count=1), BasicQosOk)
    consuming(c)
    c.publish(1, "", "q", b"1", delivery_mode=2)
    rig.turn()
    consuming(other)
    c.publish(1, "", "q", b"2", delivery_mode=2)
    reject(c)
    rig.turn()
    assert sorted(c.bodies() + other.bodies()) == [b"1", b"1", b"2"]
    assert classic(rig.vhost.queues["q"]).amq.depth() == 2
