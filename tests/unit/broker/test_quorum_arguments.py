"""Arguments of quorum queues, which are durable queues here."""

from typing import Any

import pytest

from penstock.codec.properties import BasicProperties
from penstock.codec.spec import (
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicConsumeOk,
    BasicGet,
    BasicNack,
    QueueDeclare,
    QueueDeclareOk,
)
from penstock.server.login import PRODUCT_VERSION
from tests.helpers.broker_rig import BrokerRig, RigClient


def quorum(rig: BrokerRig, **arguments: object) -> RigClient:
    named = {name.replace("_", "-"): value for name, value in arguments.items()}
    c = rig.client().open()
    declare = QueueDeclare(queue="q", durable=True, arguments={"x-queue-type": "quorum", **named})
    c.call(1, declare, QueueDeclareOk)
    return c


def get(c: RigClient) -> tuple[int, bytes, dict[str, Any]]:
    """(tag, body, headers) of the next message."""
    c.send(1, BasicGet(queue="q"))
    c.rig.turn()
    (message,) = c.messages()
    method: Any = message.method
    headers = BasicProperties.decode(message.header).headers
    return method.delivery_tag, message.body, headers or {}


def test_a_priority() -> None:
    rig = BrokerRig()
    c = quorum(rig, x_max_priority=5)
    for priority in (1, 4, 2):
        c.publish(1, "", "q", b"%d" % priority, priority=priority, delivery_mode=2)
    assert [get(c)[1] for _ in range(3)] == [b"4", b"2", b"1"]


def test_minus_one_is_no_delivery_limit() -> None:
    rig = BrokerRig()
    c = quorum(rig, x_delivery_limit=-1)
    c.publish(1, "", "q", b"m", delivery_mode=2)
    for attempts in range(30):
        tag, _, headers = get(c)
        assert headers == {"x-delivery-count": attempts}
        c.send(1, BasicNack(delivery_tag=tag, requeue=True))


@pytest.mark.parametrize("how", ["cancel", "lose"])
def test_the_next_consumer_becomes_the_single_active_one(how: str) -> None:
    rig = BrokerRig()
    first = quorum(rig, x_single_active_consumer=True)
    second = rig.client().open()
    for c in (first, second):
        c.call(1, BasicConsume(queue="q", consumer_tag="c"), BasicConsumeOk)
    first.publish(1, "", "q", b"1", delivery_mode=2)
    rig.turn()
    assert (first.bodies(), second.bodies()) == ([b"1"], [])
    if how == "cancel":
        first.call(1, BasicCancel(consumer_tag="c"), BasicCancelOk)
        first.publish(1, "", "q", b"2", delivery_mode=2)
        rig.turn()
        assert second.bodies() == [b"2"]  # what the first has unacked stays with it
    else:
        first.lose()
        assert second.bodies() == [b"1"]


def test_the_version_that_clients_go_by() -> None:
    """kombu takes `global` of basic.qos by it: below 3.3 and from 4.0 on as AMQP has it, between
    them as RabbitMQ 3 does, and so does Penstock."""
    assert PRODUCT_VERSION.startswith("3.13.")
