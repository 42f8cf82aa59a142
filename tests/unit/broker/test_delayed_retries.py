"""x-delayed-retry-*: what is requeued comes back after a delay that grows with its attempts."""

from typing import Any

import pytest

from penstock.codec.spec import (
    BasicConsume,
    BasicConsumeOk,
    BasicGet,
    BasicNack,
    BasicReject,
    ChannelClose,
    QueueDeclare,
    QueueDeclareOk,
)
from tests.helpers.broker_rig import BrokerRig, RigClient

RETRY = {"x-delayed-retry-type": "all", "x-delayed-retry-min": 1000, "x-delayed-retry-max": 2500}


def queue(rig: BrokerRig, arguments: dict[str, Any], *bodies: bytes) -> RigClient:
    c = rig.client().open()
    c.call(1, QueueDeclare(queue="q", durable=True, arguments=arguments), QueueDeclareOk)
    for body in bodies:
        c.publish(1, "", "q", body, delivery_mode=2)
    rig.turn()
    return c


def get(c: RigClient) -> tuple[int, bool] | None:
    """(tag, is redelivered) of the next message."""
    c.send(1, BasicGet(queue="q"))
    c.rig.turn()
    for message in c.messages():
        method: Any = message.method
        return method.delivery_tag, method.redelivered
    return None


def got(c: RigClient) -> tuple[int, bool]:
    found = get(c)
    assert found is not None
    return found


def wait(rig: BrokerRig, ms: int) -> None:
    rig.tick(ms / 1000)
    rig.tick(0.001)


@pytest.mark.parametrize("kind", ["classic", "quorum"])
@pytest.mark.parametrize("is_nack", [True, False])
def test_it_waits_longer_each_time(kind: str, is_nack: bool) -> None:
    rig = BrokerRig()
    c = queue(rig, {**RETRY, "x-queue-type": kind}, b"m")
    for ms in (1000, 2000, 2500, 2500):
        tag, _ = got(c)
        failed = BasicNack(delivery_tag=tag) if is_nack else BasicReject(delivery_tag=tag)
        failed.requeue = True
        c.send(1, failed)
        rig.turn()
        assert get(c) is None
        wait(rig, ms - 10)
        assert get(c) is None
        wait(rig, 20)
    assert got(c)[1]


def test_others_come_meanwhile() -> None:
    rig = BrokerRig()
    c = queue(rig, RETRY, b"a", b"b")
    c.call(1, BasicConsume(queue="q", consumer_tag="c"), BasicConsumeOk)
    assert len(c.messages()) == 2
    c.send(1, BasicNack(delivery_tag=0, multiple=True, requeue=True))
    rig.turn()
    assert c.messages() == []
    c.publish(1, "", "q", b"c")
    rig.turn()
    assert c.bodies() == [b"c"]
    wait(rig, 1010)
    assert c.bodies() == [b"a", b"b"]


def test_the_delivery_limit_counts_them() -> None:
    rig = BrokerRig()
    c = queue(rig, {**RETRY, "x-delivery-limit": 1}, b"m")
    c.send(1, BasicNack(delivery_tag=got(c)[0], requeue=True))
    wait(rig, 1010)
    c.send(1, BasicNack(delivery_tag=got(c)[0], requeue=True))
    wait(rig, 10_000)
    assert get(c) is None


def test_a_delay_outlives_a_restart() -> None:
    rig = BrokerRig()
    c = queue(rig, RETRY, b"m")
    c.send(1, BasicNack(delivery_tag=got(c)[0], requeue=True))
    rig.turn()
    rig.restart()
    c = rig.client().open()
    assert get(c) is None
    wait(rig, 1010)
    assert got(c)[1]


@pytest.mark.parametrize(
    "arguments",
    [{}, {"x-delayed-retry-type": "disabled"}, {**RETRY, "x-delayed-retry-type": "disabled"}],
)
def test_without_it_a_message_comes_back_at_once(arguments: dict[str, Any]) -> None:
    rig = BrokerRig()
    c = queue(rig, arguments, b"m")
    c.send(1, BasicNack(delivery_tag=got(c)[0], requeue=True))
    assert got(c)[1]


def test_a_maximum_alone_is_refused() -> None:
    rig = BrokerRig()
    c = rig.client().open()
    close = c.call(1, QueueDeclare(queue="q", arguments={"x-delayed-retry-max": 5}), ChannelClose)
    assert close.reply_text == (
        "PRECONDITION_FAILED - invalid arg 'x-delayed-retry-max' for queue 'q' in vhost '/': "
        "x-delayed-retry-min is not given"
    )
