"""Consumer timeouts: what is not acknowledged in time goes back, and the consumer goes on."""

from collections import OrderedDict
from dataclasses import replace
from typing import Any

import pytest

from penstock.broker.channel import EXPIRED_SLICE, LATE_MAX, TIMES_MAX, Unacked
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
    ChannelClose,
    QueueDeclare,
    QueueDeclareOk,
    TxCommit,
    TxCommitOk,
    TxSelect,
    TxSelectOk,
)
from tests.helpers.broker_rig import BrokerRig, RigClient


def consuming(
    rig: BrokerRig, *, prefetch: int = 1, queue: dict[str, Any] | None = None,
    consumer: dict[str, Any] | None = None, no_ack: bool = False,
) -> RigClient:  # fmt: skip
    """A client that consumes from "q"."""
    c = rig.client().open()
    c.call(1, QueueDeclare(queue="q", durable=True, arguments=queue or {}), QueueDeclareOk)
    c.call(1, BasicQos(prefetch_count=prefetch), BasicQosOk)
    consume = BasicConsume(queue="q", consumer_tag="c", no_ack=no_ack, arguments=consumer or {})
    c.call(1, consume, BasicConsumeOk)
    return c


def pass_time(rig: BrokerRig, seconds: int) -> None:
    """A look each second."""
    for _ in range(seconds):
        rig.tick(1.0)


def got(c: RigClient) -> list[tuple[int, bool, bytes]]:
    """(tag, is redelivered, body) of what came."""
    c.rig.turn()
    found = []
    for message in c.messages():
        method: Any = message.method
        found.append((method.delivery_tag, method.redelivered, message.body))
    return found


def with_settings(**given: Any) -> BrokerRig:
    rig = BrokerRig()
    rig.settings = replace(rig.settings, **given)
    rig.restart()
    return rig


@pytest.mark.parametrize(
    ("queue", "consumer", "broker"),
    [
        ({"x-consumer-timeout": 10_000}, {}, None),
        ({}, {"x-consumer-timeout": 10_000}, None),
        ({}, {}, 10.0),
        ({"x-consumer-timeout": 99_000}, {"x-consumer-timeout": 10_000}, 500.0),
        ({"x-consumer-timeout": 10_000}, {}, 1.0),
    ],
)
def test_what_is_not_acknowledged_in_time_goes_back_and_the_consumer_goes_on(
    queue: dict[str, Any], consumer: dict[str, Any], broker: float | None
) -> None:
    rig = with_settings(consumer_timeout_s=broker)
    c = consuming(rig, queue=queue, consumer=consumer)
    c.publish(1, "", "q", b"m", delivery_mode=2)
    assert got(c) == [(1, False, b"m")]
    pass_time(rig, 9)
    assert got(c) == []
    pass_time(rig, 3)
    assert got(c) == [(2, True, b"m")]
    assert [text for kind, text in rig.events if kind == "consumer_timeout"] == [
        "connection c0: consumer 'c' of queue 'q' in vhost '/' has not acknowledged for 10 s: "
        "1 deliveries of channel 1 go back"
    ]


@pytest.mark.parametrize(
    ("queue", "consumer"),
    [
        ({}, {}),
        ({"x-consumer-timeout": 0}, {}),
        ({"x-consumer-timeout": 1}, {"x-consumer-timeout": 0}),
    ],
)
def test_without_a_timeout_it_stays(queue: dict[str, Any], consumer: dict[str, Any]) -> None:
    rig = BrokerRig()
    c = consuming(rig, queue=queue, consumer=consumer)
    c.publish(1, "", "q", b"m")
    assert len(got(c)) == 1
    rig.tick(1.0)
    rig.tick(1e6)
    rig.tick(1.0)
    assert got(c) == []


@pytest.mark.parametrize("is_multiple", [False, True])
def test_settling_a_late_delivery_does_nothing(is_multiple: bool) -> None:
    rig = BrokerRig()
    c = consuming(rig, queue={"x-consumer-timeout": 5000})
    c.publish(1, "", "q", b"m")
    pass_time(rig, 7)
    assert [tag for tag, _, _ in got(c)] == [1, 2]
    c.send(1, BasicAck(delivery_tag=1, multiple=is_multiple))
    c.send(1, BasicNack(delivery_tag=1, multiple=is_multiple))
    rig.turn()
    assert c.methods(ChannelClose) == []
    assert rig.vhost.handlers
    c.send(1, BasicAck(delivery_tag=2))
    rig.turn()
    assert c.call(1, QueueDeclare(queue="q", passive=True), QueueDeclareOk).message_count == 0


def test_a_late_ack_of_all_before_leaves_what_came_after() -> None:
    rig = BrokerRig()
    c = consuming(rig, prefetch=3, queue={"x-consumer-timeout": 5000})
    c.publish(1, "", "q", b"a")
    pass_time(rig, 4)
    c.publish(1, "", "q", b"b")
    pass_time(rig, 3)
    assert [(tag, body) for tag, _, body in got(c)] == [(1, b"a"), (2, b"b"), (3, b"a")]
    c.send(1, BasicAck(delivery_tag=1, multiple=True))
    rig.turn()
    c.lose()
    d = rig.client().open()
    assert d.call(1, QueueDeclare(queue="q", passive=True), QueueDeclareOk).message_count == 2


def test_a_tag_that_never_was_is_an_error_still() -> None:
    rig = BrokerRig()
    c = consuming(rig, queue={"x-consumer-timeout": 5000})
    c.publish(1, "", "q", b"m")
    pass_time(rig, 7)
    got(c)
    c.send(1, BasicAck(delivery_tag=9))
    rig.turn()
    assert c.methods(ChannelClose)[0].reply_text == "PRECONDITION_FAILED - unknown delivery tag 9"


def test_each_time_out_counts_as_an_attempt() -> None:
    rig = BrokerRig()
    arguments = {"x-consumer-timeout": 2000, "x-delivery-limit": 2}
    c = consuming(rig, queue=arguments)
    c.publish(1, "", "q", b"m", delivery_mode=2)
    pass_time(rig, 20)
    assert [tag for tag, _, _ in got(c)] == [1, 2, 3]
    assert c.call(1, QueueDeclare(queue="q", passive=True), QueueDeclareOk).message_count == 0


def test_the_channel_is_closed_if_the_broker_says_so() -> None:
    rig = with_settings(consumer_timeout_closes=True)
    c = consuming(rig, queue={"x-consumer-timeout": 5000})
    c.publish(1, "", "q", b"m")
    pass_time(rig, 7)
    close = c.methods(ChannelClose)[0]
    assert (close.reply_code, close.class_id, close.method_id) == (406, 0, 0)
    assert close.reply_text == (
        "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. Timeout value "
        "used: 5000 ms. This timeout value can be configured, see consumers doc guide to learn more"
    )
    d = rig.client().open()
    assert d.call(1, QueueDeclare(queue="q", passive=True), QueueDeclareOk).message_count == 1


def test_what_a_cancelled_consumer_has_goes_back_too() -> None:
    rig = BrokerRig()
    c = consuming(rig, consumer={"x-consumer-timeout": 5000})
    c.publish(1, "", "q", b"m")
    pass_time(rig, 2)
    c.call(1, BasicCancel(consumer_tag="c"), BasicCancelOk)
    pass_time(rig, 5)
    assert c.call(1, QueueDeclare(queue="q", passive=True), QueueDeclareOk).message_count == 1


def test_what_was_got_or_acknowledged_in_a_transaction_stays() -> None:
    rig = with_settings(consumer_timeout_s=5.0)
    c = consuming(rig)
    c.publish(1, "", "q", b"m")
    c.call(1, TxSelect(), TxSelectOk)
    c.send(1, BasicAck(delivery_tag=1))
    c.send(1, BasicGet(queue="q"))
    pass_time(rig, 20)
    c.call(1, TxCommit(), TxCommitOk)
    assert len(got(c)) == 1
    assert c.call(1, QueueDeclare(queue="q", passive=True), QueueDeclareOk).message_count == 0
    d = rig.client().open()
    d.publish(1, "", "r", b"")
    d.call(1, QueueDeclare(queue="r"), QueueDeclareOk)
    d.publish(1, "", "r", b"m")
    d.send(1, BasicGet(queue="r"))
    pass_time(rig, 20)
    assert d.call(1, QueueDeclare(queue="r", passive=True), QueueDeclareOk).message_count == 0


@pytest.mark.parametrize("value", [-1, "1s", 1.5, True])
def test_a_wrong_timeout_is_refused(value: object) -> None:
    rig = BrokerRig()
    c = rig.client().open()
    c.call(1, QueueDeclare(queue="q"), QueueDeclareOk)
    consume = BasicConsume(queue="q", arguments={"x-consumer-timeout": value})
    close = c.call(1, consume, ChannelClose)
    assert close.reply_code == 406
    assert "invalid arg 'x-consumer-timeout' for queue 'q' in vhost '/'" in close.reply_text


def test_many_deliveries_go_back_in_slices() -> None:
    rig = BrokerRig()
    n = 3 * EXPIRED_SLICE
    c = consuming(rig, prefetch=0, queue={"x-consumer-timeout": 5000})
    for _ in range(n):
        c.publish(1, "", "q", b"m")
    rig.turn()
    c.call(1, BasicCancel(consumer_tag="c"), BasicCancelOk)
    pass_time(rig, 6)
    first = c.call(1, QueueDeclare(queue="q", passive=True), QueueDeclareOk).message_count
    assert 0 < first < n
    pass_time(rig, 5)
    assert c.call(1, QueueDeclare(queue="q", passive=True), QueueDeclareOk).message_count == n


def test_long_timeouts_do_not_hide_short_ones_behind_them() -> None:
    rig = BrokerRig()
    c = consuming(rig, prefetch=0, consumer={"x-consumer-timeout": 1_000_000})
    for _ in range(2 * EXPIRED_SLICE):
        c.publish(1, "", "q", b"m")
    rig.turn()
    c.call(1, QueueDeclare(queue="r"), QueueDeclareOk)
    consume = BasicConsume(queue="r", consumer_tag="s", arguments={"x-consumer-timeout": 5000})
    c.call(1, consume, BasicConsumeOk)
    c.publish(1, "", "r", b"short")
    pass_time(rig, 12)
    assert [one for one in got(c) if one[1]] == [(2 * EXPIRED_SLICE + 2, True, b"short")]


# ---- what is kept of times -----------------------------------------------------------------------


def test_ages_are_exact_to_a_fraction_and_take_little_room() -> None:
    rig = BrokerRig()
    queue, _ = rig.vhost.declare_queue("q")
    unacked = Unacked()
    for second in range(10_000):
        unacked.add(queue, second, None)
        unacked.mark_time(float(second))
    assert len(unacked._times) <= TIMES_MAX
    for age in (10, 100, 1000, 5000):
        tag = unacked.older_than(9_999.0 - age)
        assert 0 <= 10_000 - age - tag <= max(age / 30, 1)


def test_tags_that_are_late_are_bounded() -> None:
    rig = BrokerRig()
    c = consuming(rig, prefetch=0, queue={"x-consumer-timeout": 5000})
    unacked = c.handler.channels[1].unacked
    unacked.late = OrderedDict.fromkeys(range(-LATE_MAX, 0))
    c.publish(1, "", "q", b"m")
    pass_time(rig, 7)
    assert len(unacked.late) == LATE_MAX
    assert 1 in unacked.late


def looks(rig: BrokerRig, seconds: int) -> int:
    """How often the broker looks in so many seconds."""
    found = set()
    for _ in range(seconds):
        rig.tick(1.0)
        found.add(rig.vhost._timeouts_looked_s)
    return len(found)


def test_the_broker_looks_less_often_while_only_its_own_long_timeout_counts() -> None:
    rig = with_settings(consumer_timeout_s=1800.0)
    c = consuming(rig)
    c.publish(1, "", "q", b"x")
    assert got(c) == [(1, False, b"x")]
    assert looks(rig, 300) <= 61  # each 5 s, for the ages that people see
    pass_time(rig, 1600)
    assert got(c) == [(2, True, b"x")]
    c.call(1, BasicConsume(queue="q", arguments={"x-consumer-timeout": 2000}), BasicConsumeOk)
    assert looks(rig, 10) == 10
