"""pika: what a queue does by itself - time to live, dead letters, priorities, limits, restarts.

x-death and its neighbours are compared field by field, as RabbitMQ writes them. The tests of a
restart are of Penstock alone: they stop and kill a broker of their own.
"""

import contextlib
import time
from collections.abc import Callable
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import AMQPError, ChannelClosedByBroker

from tests.conformance.pika_calls import PERSISTENT, QueueTarget, depth, drain, get, settle
from tests.helpers.live_broker import LiveBroker, wait_until

pytestmark = pytest.mark.real


def dead_letters_to(queue: str, **arguments: Any) -> dict[str, Any]:
    """Arguments of a queue whose dead letters go to `queue` by the default exchange."""
    given = {key.replace("_", "-"): value for key, value in arguments.items()}
    return {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue, **given}


def hang_up(connection: BlockingConnection) -> None:
    """The client's side of a connection whose broker is gone."""
    with contextlib.suppress(AMQPError):
        connection.close()


# --- time to live, dead letters ---


def test_a_message_expires_by_its_queue(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True, arguments={"x-message-ttl": 50})
    channel.basic_publish("", name, b"x")
    wait_until(lambda: depth(channel, name) == 0, "expiry")


def test_a_message_with_no_time_at_all_is_only_for_who_waits(
    channel: BlockingChannel, name: str
) -> None:
    channel.queue_declare(name, exclusive=True, arguments={"x-message-ttl": 0})
    channel.basic_publish("", name, b"for nobody")
    settle(channel)
    assert channel.basic_get(name)[0] is None
    taker = QueueTarget(channel, name, auto_ack=True)
    settle(channel)
    channel.basic_publish("", name, b"for the consumer")
    assert taker.wait_for(1).bodies() == [b"for the consumer"]


def test_an_expired_message_goes_to_the_dead_letters_with_its_history(
    channel: BlockingChannel, name: str
) -> None:
    dead = f"{name}.dead"
    channel.queue_declare(dead, exclusive=True)
    channel.queue_declare(name, exclusive=True, arguments=dead_letters_to(dead))
    before = int(time.time())
    sent = pika.BasicProperties(expiration="50", headers={"mine": 1}, priority=4)
    channel.basic_publish("", name, b"x", sent)
    method, properties, data = get(channel, dead)
    assert data == b"x"
    assert (method.exchange, method.routing_key, method.redelivered) == ("", dead, False)
    assert properties.expiration is None
    assert properties.priority == 4
    headers = properties.headers
    assert headers["mine"] == 1
    assert headers["x-first-death-queue"] == name
    assert headers["x-first-death-reason"] == "expired"
    assert headers["x-first-death-exchange"] == ""
    (death,) = headers["x-death"]
    assert before - 1 <= death.pop("time").timestamp() <= time.time() + 1
    assert death == {
        "queue": name, "reason": "expired", "count": 1, "exchange": "", "routing-keys": [name],
        "original-expiration": "50",
    }  # fmt: skip


def test_a_rejected_message_counts_its_deaths(channel: BlockingChannel, name: str) -> None:
    """Rejected, waits in a queue with a time to live, and comes back: the pattern of retries."""
    wait = f"{name}.wait"
    channel.queue_declare(name, exclusive=True, arguments=dead_letters_to(wait))
    channel.queue_declare(wait, exclusive=True, arguments=dead_letters_to(name, x_message_ttl=30))
    channel.basic_publish("", name, b"x", PERSISTENT)
    for round_number in range(4):
        method, properties, _ = get(channel, name)
        deaths = (properties.headers or {}).get("x-death", [])
        found = {(d["queue"], d["reason"]): d["count"] for d in deaths}
        expected = {(wait, "expired"): round_number, (name, "rejected"): round_number}
        assert found == (expected if round_number else {})
        assert [d["queue"] for d in deaths] == ([wait, name] if round_number else [])
        channel.basic_reject(method.delivery_tag, requeue=False)
    wait_until(lambda: depth(channel, name) == 1, "the last way round")


def test_what_only_expires_round_a_cycle_is_dropped(channel: BlockingChannel, name: str) -> None:
    queues = [f"{name}.{n}" for n in range(2)]
    for queue, other in (queues, reversed(queues)):
        arguments = dead_letters_to(other, x_message_ttl=20)
        channel.queue_declare(queue, exclusive=True, arguments=arguments)
    channel.basic_publish("", queues[0], b"x")
    wait_until(lambda: sum(depth(channel, queue) for queue in queues) == 0, "the drop")


def test_dead_letters_keep_their_key_unless_the_queue_says_otherwise(
    channel: BlockingChannel, name: str
) -> None:
    channel.exchange_declare(name, "topic", auto_delete=True)
    dead = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind(dead, name, "#")
    queue = channel.queue_declare(
        "", exclusive=True, arguments={"x-dead-letter-exchange": name}
    ).method.queue
    channel.queue_bind(queue, "amq.direct", f"{name}.key")
    channel.basic_publish("amq.direct", f"{name}.key", b"x")
    method, _, _ = get(channel, queue)
    channel.basic_nack(method.delivery_tag, requeue=False)
    method, properties, _ = get(channel, dead)
    assert (method.exchange, method.routing_key) == (name, f"{name}.key")
    (death,) = properties.headers["x-death"]
    assert (death["reason"], death["exchange"], death["routing-keys"]) == (
        "rejected", "amq.direct", [f"{name}.key"],
    )  # fmt: skip


def test_expired_heads_do_not_wait_for_a_consumer(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    channel.confirm_delivery()
    channel.basic_publish("", name, b"short", pika.BasicProperties(expiration="30"))
    channel.basic_publish("", name, b"long", pika.BasicProperties(expiration="60000"))
    wait_until(lambda: depth(channel, name) == 1, "expiry of the head")
    assert drain(channel, name, 1) == [b"long"]


# --- limits of length ---


@pytest.mark.parametrize("limit", [{"x-max-length": 3}, {"x-max-length-bytes": 300}])
def test_a_full_queue_drops_its_head_to_the_dead_letters(
    channel: BlockingChannel, name: str, limit: dict[str, int]
) -> None:
    dead = f"{name}.dead"
    channel.queue_declare(dead, exclusive=True)
    channel.queue_declare(name, exclusive=True, arguments={**dead_letters_to(dead), **limit})
    for i in range(6):
        channel.basic_publish("", name, b"%d" % i * 100)
    first = get(channel, dead)
    assert first[1].headers["x-death"][0]["reason"] == "maxlen"
    assert [first[2][:1], *(d[:1] for d in drain(channel, dead, 2))] == [b"0", b"1", b"2"]
    assert [d[:1] for d in drain(channel, name, 3)] == [b"3", b"4", b"5"]


@pytest.mark.parametrize("overflow", ["reject-publish", "reject-publish-dlx"])
def test_a_full_queue_that_rejects(channel: BlockingChannel, name: str, overflow: str) -> None:
    dead = f"{name}.dead"
    channel.queue_declare(dead, exclusive=True)
    arguments = {**dead_letters_to(dead), "x-max-length": 2, "x-overflow": overflow}
    channel.queue_declare(name, exclusive=True, arguments=arguments)
    channel.confirm_delivery()
    refused = 0
    for i in range(4):
        try:
            channel.basic_publish("", name, b"%d" % i)
        except pika.exceptions.NackError:
            refused += 1
    assert refused == 2
    assert drain(channel, name, 2) == [b"0", b"1"]
    if overflow == "reject-publish-dlx":
        assert drain(channel, dead, 2) == [b"2", b"3"]
    assert depth(channel, dead) == 0


# --- priorities ---


def test_higher_priorities_come_first_and_each_in_order(
    channel: BlockingChannel, name: str
) -> None:
    channel.queue_declare(name, exclusive=True, arguments={"x-max-priority": 5})
    sent = [(n * 7) % 8 for n in range(40)]
    for i, priority in enumerate(sent):
        properties = pika.BasicProperties(priority=priority)
        channel.basic_publish("", name, b"%d" % i, properties)
    channel.basic_publish("", name, b"40")
    settle(channel)
    levels = {**{i: min(priority, 5) for i, priority in enumerate(sent)}, 40: 0}
    found = [int(data) for data in drain(channel, name, 41)]
    assert found == sorted(levels, key=lambda i: (-levels[i], i))


def test_a_requeued_message_keeps_its_priority(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True, arguments={"x-max-priority": 2})
    for priority in (0, 1, 2):
        channel.basic_publish("", name, b"%d" % priority, pika.BasicProperties(priority=priority))
    settle(channel)
    tags = [get(channel, name)[0].delivery_tag for _ in range(3)]
    channel.basic_nack(tags[2], multiple=True, requeue=True)
    assert drain(channel, name, 3) == [b"2", b"1", b"0"]


# --- delivery limit ---


@pytest.mark.penstock_only
def test_a_message_is_delivered_as_often_as_the_limit_says(
    channel: BlockingChannel, name: str
) -> None:
    """A quorum queue's argument in RabbitMQ; here of any queue."""
    dead = f"{name}.dead"
    channel.queue_declare(dead, exclusive=True)
    arguments = {**dead_letters_to(dead), "x-delivery-limit": 2}
    channel.queue_declare(name, exclusive=True, arguments=arguments)
    channel.basic_publish("", name, b"x")
    taken = 0
    while True:
        found = channel.basic_get(name)
        if found[0] is None:
            break
        taken += 1
        channel.basic_nack(found[0].delivery_tag, requeue=True)
    assert taken == 3
    _, properties, _ = get(channel, dead)
    assert properties.headers["x-death"][0]["reason"] == "delivery_limit"


# --- what a restart keeps ---


@pytest.mark.penstock_only
@pytest.mark.parametrize("is_orderly", [True, False])
def test_what_a_restart_keeps(tmp_path_factory: pytest.TempPathFactory, is_orderly: bool) -> None:
    """Durable things with persistent messages stay; redelivered is exact after a clean stop."""
    with LiveBroker(tmp_path_factory.mktemp("restart") / "data") as broker:
        connection = BlockingConnection(pika.URLParameters(broker.url))
        channel = connection.channel()
        channel.exchange_declare("kept", "topic", durable=True)
        channel.exchange_declare("lost", "topic")
        channel.queue_declare("kept", durable=True, arguments={"x-max-priority": 3})
        channel.queue_declare("lost")
        channel.queue_bind("kept", "kept", "a.#")
        channel.confirm_delivery()
        for i in range(10):
            channel.basic_publish("kept", "a.b", b"%d" % i, PERSISTENT)
        channel.basic_publish("kept", "a.b", b"transient")
        first = get(channel, "kept")
        channel.basic_ack(first[0].delivery_tag)
        get(channel, "kept")
        settle(channel)
        (broker.restart if is_orderly else broker.kill)()
        hang_up(connection)
        if not is_orderly:
            broker.start()
        channel = BlockingConnection(pika.URLParameters(broker.url)).channel()
        for declare in ("exchange_declare", "queue_declare"):
            with pytest.raises(ChannelClosedByBroker) as told:
                getattr(channel, declare)("lost", passive=True)
            assert told.value.reply_code == 404
            channel = channel.connection.channel()
        channel.exchange_declare("kept", "topic", durable=True)
        channel.queue_declare("kept", durable=True, arguments={"x-max-priority": 3})
        channel.basic_publish("kept", "a.c", b"new", PERSISTENT)
        found = []
        while not found or found[-1][2] != b"new":
            found.append(get(channel, "kept"))
        bodies = [data for _, _, data in found]
        told_again = {data: method.redelivered for method, _, data in found}
        assert told_again[b"1"]
        assert bodies[-10:] == [*(b"%d" % i for i in range(1, 10)), b"new"]
        if is_orderly:
            assert len(bodies) == 10
            assert [told_again[b"%d" % i] for i in range(2, 10)] == [False] * 8
        channel.connection.close()
        assert broker.stop() == 0


@pytest.mark.penstock_only
def test_expiry_goes_on_over_a_restart(tmp_path_factory: pytest.TempPathFactory) -> None:
    with LiveBroker(tmp_path_factory.mktemp("expiry") / "data") as broker:
        connect: Callable[[], BlockingChannel] = lambda: BlockingConnection(  # noqa: E731
            pika.URLParameters(broker.url)
        ).channel()
        channel = connect()
        channel.queue_declare("dead", durable=True)
        channel.queue_declare("short", durable=True, arguments=dead_letters_to("dead"))
        channel.confirm_delivery()
        sent = pika.BasicProperties(delivery_mode=2, expiration="1000")
        channel.basic_publish("", "short", b"x", sent)
        broker.kill()
        hang_up(channel.connection)
        broker.start()
        channel = connect()
        wait_until(lambda: depth(channel, "dead") == 1, "the dead letter")
        assert depth(channel, "short") == 0
        channel.connection.close()
