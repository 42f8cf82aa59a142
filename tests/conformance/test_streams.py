"""Streams over AMQP with pika and aio-pika: declare, publish, read from anywhere, what is refused.

What is not marked ``penstock_only`` holds on RabbitMQ 3.10, too. Its streams answer a count of
messages seconds later, and take no basic.nack, so neither is asked of it.
"""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import aio_pika
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker

from tests.conformance.pika_calls import QueueTarget, depth, drain, settle
from tests.helpers.live_broker import Broker, LiveBroker, wait_until

pytestmark = pytest.mark.real

STREAM = {"x-queue-type": "stream"}


def declare(channel: BlockingChannel, name: str, **arguments: Any) -> str:
    """A stream; its arguments with _ for -."""
    given = {key.replace("_", "-"): value for key, value in arguments.items()}
    channel.queue_declare(name, durable=True, arguments={**STREAM, **given})
    return name


def publish(channel: BlockingChannel, name: str, *bodies: bytes) -> None:
    """Published and confirmed, on a channel of its own."""
    confirmed = channel.connection.channel()
    confirmed.confirm_delivery()
    for body in bodies:
        confirmed.basic_publish("", name, body, mandatory=True)
    confirmed.close()


def numbers(n: int, start: int = 0) -> list[bytes]:
    return [b"%d" % i for i in range(start, start + n)]


def reader(channel: BlockingChannel, name: str, offset: Any = "first", **given: Any) -> QueueTarget:
    """A consumer that begins there; given: x-stream-<name>."""
    arguments = {f"x-stream-{key}": value for key, value in given.items()}
    if offset is not None:
        arguments["x-stream-offset"] = offset
    channel.basic_qos(prefetch_count=100)
    return QueueTarget(channel, name, arguments=arguments)


def offsets(taker: QueueTarget) -> list[int]:
    return [props.headers["x-stream-offset"] for _, props, _ in taker.taken]


def quiet(taker: QueueTarget, n: int) -> None:
    """That many have come, and no more are on their way."""
    taker.wait_for(n)
    settle(taker.channel.connection.channel())
    assert len(taker.taken) == n


# --- declaring ---


def test_a_stream_declared_again_is_the_same(channel: BlockingChannel, name: str) -> None:
    arguments: dict[str, Any] = {
        "x_max_age": "7D", "x_max_length_bytes": 10**9, "x_stream_max_segment_size_bytes": 10**6,
        "x_initial_cluster_size": 1, "x_queue_leader_locator": "client-local",
    }  # fmt: skip
    declare(channel, name, **arguments)
    declare(channel, name, **arguments)
    channel.queue_declare(name, passive=True)


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ({"durable": False}, "invalid property 'non-durable' for queue"),
        ({"exclusive": True}, "invalid property 'exclusive-owner' for queue"),
        ({"auto_delete": True}, "invalid property 'auto-delete' for queue"),
        ({"queue": ""}, "Cannot declare a server-named queue for type rabbit_stream_queue"),
        ({"x-message-ttl": 1000}, "of queue type rabbit_stream_queue"),
        ({"x-max-priority": 5}, "of queue type rabbit_stream_queue"),
        ({"x-dead-letter-exchange": "x"}, "of queue type rabbit_stream_queue"),
        ({"x-expires": 1000}, "of queue type rabbit_stream_queue"),
        ({"x-single-active-consumer": True}, "of queue type rabbit_stream_queue"),
        ({"x-overflow": "drop-head"}, "of queue type rabbit_stream_queue"),
        ({"x-max-age": "7X"}, "invalid arg 'x-max-age' for queue"),
        ({"x-max-age": 7}, "invalid arg 'x-max-age' for queue"),
        ({"x-max-length-bytes": -1}, "invalid arg 'x-max-length-bytes' for queue"),
        ({"x-initial-cluster-size": 0}, "invalid arg 'x-initial-cluster-size' for queue"),
        ({"x-stream-max-segment-size-bytes": 3_000_000_001}, "Exceeded max value for"),
    ],
)
def test_what_a_stream_cannot_be(
    channel: BlockingChannel, name: str, how: dict[str, Any], text: str
) -> None:
    given: dict[str, Any] = {"queue": name, "durable": True}
    given |= {key: value for key, value in how.items() if not key.startswith("x-")}
    arguments = {key: value for key, value in how.items() if key.startswith("x-")}
    with pytest.raises(ChannelClosedByBroker) as told:
        channel.queue_declare(**given, arguments={**STREAM, **arguments})
    assert told.value.reply_code == 406
    assert text in told.value.reply_text


@pytest.mark.parametrize("argument", ["x-max-age", "x-stream-max-segment-size-bytes"])
def test_what_a_classic_queue_cannot_be(channel: BlockingChannel, name: str, argument: str) -> None:
    value = "7D" if argument == "x-max-age" else 1000
    with pytest.raises(ChannelClosedByBroker, match="of queue type rabbit_classic_queue"):
        channel.queue_declare(name, durable=True, arguments={argument: value})


def test_another_stream_of_the_name(connect: Callable[[], BlockingConnection], name: str) -> None:
    declare(connect().channel(), name)
    for arguments, text in (
        (None, "received none but current is the value 'stream' of type 'longstr'"),
        ({**STREAM, "x-max-age": "1D"}, "received the value '1D' of type 'longstr' but current is"),
    ):
        with pytest.raises(ChannelClosedByBroker) as told:
            connect().channel().queue_declare(name, durable=True, arguments=arguments)
        assert told.value.reply_code == 406
        assert text in told.value.reply_text


# --- what streams have not ---


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (lambda channel, name: channel.basic_get(name), "basic.get not supported by stream queues"),
        (lambda channel, name: channel.queue_purge(name),
         "queue.purge not supported by stream queues"),
        (lambda channel, name: (channel.basic_qos(prefetch_count=5),
                                channel.basic_consume(name, print, auto_ack=True)),
         "automatic acknowledgement not supported by stream queues"),
        (lambda channel, name: (channel.basic_qos(prefetch_count=5),
                                channel.basic_qos(prefetch_count=5, global_qos=True),
                                channel.basic_consume(name, print)),
         "does not support global qos"),
    ],
)  # fmt: skip
def test_not_implemented(
    connect: Callable[[], BlockingConnection], name: str, ask: Any, text: str
) -> None:
    declare(connect().channel(), name)
    with pytest.raises(ConnectionClosedByBroker) as told:
        ask(connect().channel(), name)
    assert told.value.reply_code == 540
    assert text in told.value.reply_text


@pytest.mark.parametrize(
    ("prefetch", "arguments", "text"),
    [
        (0, {}, "consumer prefetch count is not set for 'queue '"),
        (5, {"x-priority": 5}, "of queue type rabbit_stream_queue"),
        (5, {"x-stream-offset": "1X"}, "invalid arg 'x-stream-offset' for queue"),
    ],
)
def test_a_consumer_that_is_refused(
    channel: BlockingChannel, name: str, prefetch: int, arguments: dict[str, Any], text: str
) -> None:
    declare(channel, name)
    if prefetch:
        channel.basic_qos(prefetch_count=prefetch)
    with pytest.raises(ChannelClosedByBroker) as told:
        channel.basic_consume(name, print, arguments=arguments)
    assert told.value.reply_code == 406
    assert text in told.value.reply_text


# --- reading ---


@pytest.mark.parametrize(
    ("offset", "first"),
    [("first", 0), (0, 0), (3, 3), ("next", 10), (None, 10), (10, 10), ("1h", 0)],
)
def test_a_consumer_begins_where_it_wants(
    channel: BlockingChannel, name: str, offset: Any, first: int
) -> None:
    declare(channel, name)
    publish(channel, name, *numbers(10))
    taker = reader(channel, name, offset)
    publish(channel, name, *numbers(2, 10))
    quiet(taker, 12 - first)
    assert taker.bodies() == numbers(12 - first, first)
    assert offsets(taker) == list(range(first, 12))
    assert [method.delivery_tag for method, _, _ in taker.taken] == list(range(1, 13 - first))
    assert not any(method.redelivered for method, _, _ in taker.taken)


def test_last_is_near_the_end(channel: BlockingChannel, name: str) -> None:
    declare(channel, name)
    for body in numbers(5):
        publish(channel, name, body)
    taker = reader(channel, name, "last")
    publish(channel, name, b"5")
    taker.wait_for(2)
    wait_until(lambda: channel.connection.process_data_events(0.01) or b"5" in taker.bodies())
    assert taker.bodies()[-2:] == [b"4", b"5"]


@pytest.mark.penstock_only
def test_last_is_the_last_record(channel: BlockingChannel, name: str) -> None:
    declare(channel, name)
    publish(channel, name, *numbers(5))
    quiet(taker := reader(channel, name, "last"), 1)
    assert offsets(taker) == [4]


def test_a_time(channel: BlockingChannel, name: str) -> None:
    """RabbitMQ gives what is a bit older, too: the beginning of a chunk."""
    declare(channel, name)
    publish(channel, name, *numbers(3))
    past = reader(channel, name, datetime.now(UTC).replace(tzinfo=None) - timedelta(hours=1))
    quiet(past, 3)
    later = channel.connection.channel()
    future = reader(later, name, datetime.now(UTC).replace(tzinfo=None) + timedelta(hours=1))
    publish(channel, name, b"3")
    past.wait_for(4)
    future.wait_for(1)
    assert future.bodies() == [b"3"]


def test_consumers_read_independently_and_again(
    connect: Callable[[], BlockingConnection], name: str
) -> None:
    declare(connect().channel(), name)
    first = connect().channel()
    publish(first, name, *numbers(20))
    takers = [reader(connect().channel(), name) for _ in range(3)]
    for taker in takers:
        taker.wait_for(20)
        taker.channel.basic_ack(0, multiple=True)
    again = reader(first, name, 5)
    again.wait_for(15)
    assert [taker.bodies() for taker in takers] == [numbers(20)] * 3
    assert again.bodies() == numbers(15, 5)


def test_prefetch_holds_and_acks_give_room(channel: BlockingChannel, name: str) -> None:
    declare(channel, name)
    publish(channel, name, *numbers(9))
    channel.basic_qos(prefetch_count=4)
    taker = QueueTarget(channel, name, arguments={"x-stream-offset": "first"})
    quiet(taker, 4)
    channel.basic_ack(2, multiple=True)
    quiet(taker, 6)
    channel.basic_ack(4)
    quiet(taker, 7)
    channel.basic_ack(0, multiple=True)
    quiet(taker, 9)
    assert taker.bodies() == numbers(9)


def test_properties_come_back_with_the_offset(channel: BlockingChannel, name: str) -> None:
    declare(channel, name)
    properties = pika.BasicProperties(
        content_type="text/plain", headers={"a": 1, "x-stream-offset": "mine"}, delivery_mode=1,
        expiration="0", message_id="m", timestamp=5, app_id="me",
    )  # fmt: skip
    channel.basic_publish("", name, b"x", properties)
    channel.basic_publish("", name, b"y")
    taker = reader(channel, name).wait_for(2)
    method, found, body = taker.taken[0]
    assert (body, method.exchange, method.routing_key) == (b"x", "", name)
    assert (found.content_type, found.delivery_mode, found.message_id) == ("text/plain", 1, "m")
    assert (found.expiration, found.timestamp, found.app_id) == ("0", 5, "me")
    assert (found.headers["a"], found.headers["x-stream-offset"]) == (1, 0)
    assert taker.taken[1][1].headers["x-stream-offset"] == 1


@pytest.mark.parametrize("size", [0, 1, 131_064, 131_065, 1 << 20, 5 << 20])
def test_bodies_of_any_size(channel: BlockingChannel, name: str, size: int) -> None:
    declare(channel, name)
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    publish(channel, name, body, b"after")
    assert reader(channel, name).wait_for(2).bodies() == [body, b"after"]


def test_a_cancelled_consumer_and_one_more(channel: BlockingChannel, name: str) -> None:
    declare(channel, name)
    publish(channel, name, b"0")
    taker = reader(channel, name).wait_for(1)
    channel.basic_cancel(taker.tag)
    publish(channel, name, b"1")
    quiet(taker, 1)
    assert reader(channel, name).wait_for(2).bodies() == numbers(2)


# --- among queues ---


def test_a_stream_is_bound_as_a_queue_is(channel: BlockingChannel, name: str) -> None:
    declare(channel, name)
    channel.queue_declare(name + "-q", durable=True)
    channel.exchange_declare(name, "topic")
    for queue in (name, name + "-q"):
        channel.queue_bind(queue, name, "a.*")
    channel.confirm_delivery()
    channel.basic_publish(name, "a.b", b"both", pika.BasicProperties(delivery_mode=2))
    assert drain(channel, name + "-q", 1) == [b"both"]
    taker = reader(channel, name).wait_for(1)
    assert (taker.bodies(), taker.taken[0][0].routing_key) == ([b"both"], "a.b")
    channel.queue_unbind(name, name, "a.*")
    channel.basic_publish(name, "a.c", b"one")
    assert drain(channel, name + "-q", 1) == [b"one"]
    quiet(taker, 1)


def test_a_transaction(channel: BlockingChannel, name: str) -> None:
    declare(channel, name)
    tx = channel.connection.channel()
    tx.tx_select()
    tx.basic_publish("", name, b"no")
    tx.tx_rollback()
    for body in numbers(2):
        tx.basic_publish("", name, body)
    tx.tx_commit()
    quiet(taker := reader(channel, name), 2)
    assert taker.bodies() == numbers(2)


@pytest.mark.penstock_only
def test_dead_letters_go_to_a_stream(channel: BlockingChannel, name: str) -> None:
    declare(channel, name)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": name}
    channel.queue_declare(name + "-q", durable=True, arguments=arguments)
    channel.basic_publish("", name + "-q", b"dead", pika.BasicProperties(delivery_mode=2))
    worker = channel.connection.channel()
    worker.basic_qos(prefetch_count=1)
    taker = QueueTarget(worker, name + "-q").wait_for(1)
    worker.basic_reject(taker.taken[0][0].delivery_tag, requeue=False)
    found = reader(channel, name).wait_for(1)
    assert found.bodies() == [b"dead"]
    assert found.taken[0][1].headers["x-death"][0]["queue"] == name + "-q"


def test_delete_cancels_and_the_name_is_free(
    connect: Callable[[], BlockingConnection], name: str
) -> None:
    channel = connect().channel()
    declare(channel, name)
    publish(channel, name, *numbers(3))
    taker = reader(channel, name).wait_for(3)
    cancelled: list[Any] = []
    channel.add_on_cancel_callback(cancelled.append)
    other = connect().channel()
    other.queue_delete(name)
    wait_until(lambda: channel.connection.process_data_events(0.01) or cancelled, "the cancel")
    assert cancelled[0].method.consumer_tag == taker.tag
    declare(other, name)
    publish(other, name, b"new")
    assert reader(other, name).wait_for(1).bodies() == [b"new"]


# --- aio-pika ---


def test_aio_pika_reads_a_stream_from_the_beginning(broker: Broker, name: str) -> None:
    async def run() -> list[tuple[bytes, int]]:
        connection = await aio_pika.connect(broker.url)
        async with connection:
            channel = await connection.channel(publisher_confirms=True)
            await channel.set_qos(prefetch_count=7)
            queue = await channel.declare_queue(name, durable=True, arguments=dict(STREAM))
            for body in numbers(50):
                await channel.default_exchange.publish(aio_pika.Message(body), routing_key=name)
            found: list[tuple[bytes, int]] = []
            begin = {"x-stream-offset": "first"}
            async with queue.iterator(arguments=begin, timeout=120) as messages:
                async for message in messages:
                    async with message.process():
                        offset: Any = message.headers["x-stream-offset"]
                        found.append((message.body, offset))
                    if len(found) == 50:
                        return found
        raise AssertionError("the iterator ended")

    assert asyncio.run(run()) == [(b"%d" % i, i) for i in range(50)]


# --- ours ---


@pytest.mark.penstock_only
@pytest.mark.parametrize("requeue", [True, False])
def test_nack_and_reject_give_room(channel: BlockingChannel, name: str, requeue: bool) -> None:
    """As in RabbitMQ since 3.12."""
    declare(channel, name)
    publish(channel, name, *numbers(4))
    channel.basic_qos(prefetch_count=1)
    taker = QueueTarget(channel, name, arguments={"x-stream-offset": "first"})
    for tag in range(1, 4):
        quiet(taker, tag)
        if tag == 2:
            channel.basic_reject(tag, requeue=requeue)
        else:
            channel.basic_nack(tag, requeue=requeue)
    quiet(taker, 4)
    assert taker.bodies() == numbers(4)


@pytest.mark.penstock_only
def test_the_count_of_records(channel: BlockingChannel, name: str) -> None:
    declare(channel, name)
    publish(channel, name, *numbers(5))
    assert depth(channel, name) == 5
    assert channel.queue_delete(name).method.message_count == 5


@pytest.mark.penstock_only
def test_a_named_reader_goes_on_where_it_was(
    connect: Callable[[], BlockingConnection], name: str
) -> None:
    channel = connect().channel()
    declare(channel, name)
    publish(channel, name, *numbers(5))
    taker = reader(channel, name, "first", reader="r").wait_for(5)
    taker.channel.basic_ack(3, multiple=True)
    settle(channel)
    channel.connection.close()
    channel = connect().channel()
    again = reader(channel, name, None, reader="r")
    quiet(again, 2)
    assert again.bodies() == numbers(2, 3)
    other = connect().channel()
    with pytest.raises(ChannelClosedByBroker, match="in exclusive use"):
        reader(other, name, None, reader="r")


@pytest.mark.penstock_only
def test_partitions(broker: LiveBroker, channel: BlockingChannel, name: str) -> None:
    declare(channel, name, x_partitions=4)
    channel.exchange_declare(name, "fanout")
    channel.queue_bind(name, name)
    channel.confirm_delivery()
    for i in range(40):
        channel.basic_publish(name, f"key {i % 10}", b"%d" % i)
    taker = reader(channel, name).wait_for(40)
    places: dict[str, set[int]] = {}
    for method, props, _ in taker.taken:
        places.setdefault(method.routing_key, set()).add(props.headers["x-stream-partition"])
    assert all(len(partitions) == 1 for partitions in places.values())
    described = broker.control("describe_stream", "/", queue=name)
    assert sum(part["records"] for part in described["partitions"]) == 40
    only = connect_one(channel, name, partition=1)
    held = described["partitions"][1]["records"]
    quiet(only, held)


def connect_one(channel: BlockingChannel, name: str, **given: Any) -> QueueTarget:
    return reader(channel.connection.channel(), name, **given)
