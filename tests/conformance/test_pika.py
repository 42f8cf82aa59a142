"""pika, blocking: what applications do with a broker, one promise a test.

Confirms and returns, routing, transactions, large bodies, consumers and their ends, prefetch,
recover, and what redelivered means. All of it holds on RabbitMQ 3.10, too.
Lives of queues, and errors: test_pika_queues.py. Time to live, dead letters, priorities, limits:
test_pika_policies.py.
"""

import random
from collections.abc import Callable

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import (
    ChannelClosedByBroker,
    UnroutableError,
)

from tests.conformance.pika_calls import PERSISTENT, QueueTarget, depth, drain, get, settle
from tests.helpers.live_broker import wait_until

pytestmark = pytest.mark.real

# --- publishing ---


def test_confirmed_messages_come_in_order_with_all_properties(
    channel: BlockingChannel, name: str
) -> None:
    channel.queue_declare(name, durable=True)
    channel.confirm_delivery()
    sent = pika.BasicProperties(
        content_type="text/plain", content_encoding="utf-8", delivery_mode=2,
        headers={"n": 1, "deep": {"a": [1, 2]}}, priority=3, correlation_id="c",
        reply_to="r", message_id="m",
        timestamp=1_700_000_000, type="t", user_id="guest", app_id="a", cluster_id="x",
    )  # fmt: skip
    for i in range(50):
        channel.basic_publish("", name, b"%d" % i, sent)
    method, found, data = get(channel, name)
    channel.basic_ack(method.delivery_tag)
    assert vars(found) == vars(sent)
    assert not method.redelivered
    assert method.message_count == 49
    assert [data, *drain(channel, name, 49)] == [b"%d" % i for i in range(50)]
    channel.queue_delete(name)


def test_unroutable_is_told(channel: BlockingChannel) -> None:
    channel.confirm_delivery()
    with pytest.raises(UnroutableError) as told:
        channel.basic_publish("", "no such queue", b"x", mandatory=True)
    assert told.value.messages[0].method.reply_code == 312
    channel.basic_publish("", "no such queue", b"x")


def test_many_sizes_come_back_whole(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    rng = random.Random(1)
    sizes = [0, 1, 255, 4087, 131_064, 131_065, 262_128, 1 << 20, (1 << 20) + 1, 10 << 20]
    for size in sizes:
        data = rng.randbytes(size)
        channel.basic_publish("", name, data, PERSISTENT)
        method, _, found = get(channel, name)
        channel.basic_ack(method.delivery_tag)
        assert found == data, size


def test_a_large_body_goes_to_many_queues(channel: BlockingChannel, name: str) -> None:
    channel.exchange_declare(name, "fanout", auto_delete=True)
    queues = [channel.queue_declare("", exclusive=True).method.queue for _ in range(5)]
    for queue in queues:
        channel.queue_bind(queue, name)
    data = random.Random(2).randbytes(3 << 20)
    channel.basic_publish(name, "", data, PERSISTENT)
    for queue in queues:
        assert drain(channel, queue, 1) == [data]


# --- exchanges ---


def test_direct_topic_and_headers_routing(channel: BlockingChannel, name: str) -> None:
    queues = {key: channel.queue_declare("", exclusive=True).method.queue for key in "abcd"}
    channel.queue_bind(queues["a"], "amq.topic", f"{name}.*.rain")
    channel.queue_bind(queues["b"], "amq.topic", f"{name}.#")
    channel.queue_bind(queues["c"], "amq.direct", name)
    channel.queue_bind(queues["d"], "amq.headers", "", {"x-match": "all", "n": name, "kind": 1})
    for key in (f"{name}.bergen.rain", f"{name}", f"{name}.oslo.sun"):
        channel.basic_publish("amq.topic", key, key.encode())
    channel.basic_publish("amq.direct", name, b"direct")
    for headers in ({"n": name, "kind": 1, "more": 2}, {"n": name}, {"n": name, "kind": 2}):
        channel.basic_publish("amq.headers", "", b"h", pika.BasicProperties(headers=headers))
    settle(channel)
    assert {key: depth(channel, queue) for key, queue in queues.items()} == {
        "a": 1, "b": 3, "c": 1, "d": 1,
    }  # fmt: skip


def test_exchange_to_exchange_and_once_per_queue(channel: BlockingChannel, name: str) -> None:
    for end in ("in", "out"):
        channel.exchange_declare(f"{name}.{end}", "topic", auto_delete=True)
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.exchange_bind(f"{name}.out", f"{name}.in", "a.#")
    channel.queue_bind(queue, f"{name}.out", "#.b")
    channel.queue_bind(queue, f"{name}.in", "a.*")
    channel.basic_publish(f"{name}.in", "a.b", b"by both ways")
    channel.basic_publish(f"{name}.in", "c.b", b"by none")
    settle(channel)
    assert drain(channel, queue, 1) == [b"by both ways"]
    assert depth(channel, queue) == 0


def test_what_an_exchange_cannot_route_goes_to_its_alternate(
    channel: BlockingChannel, name: str
) -> None:
    channel.exchange_declare(f"{name}.rest", "fanout", auto_delete=True)
    channel.exchange_declare(
        name, "direct", auto_delete=True, arguments={"alternate-exchange": f"{name}.rest"}
    )
    known, rest = (channel.queue_declare("", exclusive=True).method.queue for _ in range(2))
    channel.queue_bind(known, name, "known")
    channel.queue_bind(rest, f"{name}.rest")
    channel.confirm_delivery()
    channel.basic_publish(name, "known", b"1", mandatory=True)
    channel.basic_publish(name, "other", b"2", mandatory=True)
    assert drain(channel, known, 1) == [b"1"]
    assert drain(channel, rest, 1) == [b"2"]


def test_cc_and_bcc_are_more_routing_keys(channel: BlockingChannel, name: str) -> None:
    queues = [channel.queue_declare("", exclusive=True).method.queue for _ in range(3)]
    headers = {"CC": [queues[1]], "BCC": [queues[2]]}
    channel.basic_publish("", queues[0], b"x", pika.BasicProperties(headers=headers))
    for queue in queues:
        _, properties, _ = get(channel, queue)
        assert properties.headers == {"CC": [queues[1]]}


def test_an_unbound_queue_gets_nothing_more(channel: BlockingChannel, name: str) -> None:
    queue = channel.queue_declare("", exclusive=True).method.queue
    for key in ("a", "b"):
        channel.queue_bind(queue, "amq.direct", name + key)
    channel.queue_unbind(queue, "amq.direct", name + "a")
    for key in ("a", "b"):
        channel.basic_publish("amq.direct", name + key, key.encode())
    assert drain(channel, queue, 1) == [b"b"]
    assert depth(channel, queue) == 0


def test_an_auto_delete_exchange_goes_with_its_last_binding(
    channel: BlockingChannel, name: str
) -> None:
    channel.exchange_declare(name, "fanout", auto_delete=True)
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind(queue, name)
    channel.exchange_declare(name, passive=True)
    channel.queue_delete(queue)
    with pytest.raises(ChannelClosedByBroker) as told:
        channel.exchange_declare(name, passive=True)
    assert told.value.reply_code == 404


# --- transactions ---


def test_a_transaction_is_seen_at_its_commit_and_not_before(
    connect: Callable[[], BlockingConnection], name: str
) -> None:
    writer, reader = connect().channel(), connect().channel()
    queues = [f"{name}.{n}" for n in range(3)]
    for queue in queues:
        reader.queue_declare(queue, exclusive=False, auto_delete=True)
    writer.tx_select()
    for queue in queues:
        writer.basic_publish("", queue, b"x", PERSISTENT)
    writer.connection.process_data_events(0)
    assert [depth(reader, queue) for queue in queues] == [0, 0, 0]
    writer.tx_commit()
    assert [depth(reader, queue) for queue in queues] == [1, 1, 1]
    for queue in queues:
        writer.basic_publish("", queue, b"y", PERSISTENT)
    writer.tx_rollback()
    assert [depth(reader, queue) for queue in queues] == [1, 1, 1]
    for queue in queues:
        reader.queue_delete(queue)


def test_acks_of_a_transaction_that_rolls_back_are_not_done(
    connect: Callable[[], BlockingConnection], name: str
) -> None:
    first = connect().channel()
    first.queue_declare(name, durable=True)
    for i in range(4):
        first.basic_publish("", name, b"%d" % i, PERSISTENT)
    first.tx_select()
    tags = [get(first, name)[0].delivery_tag for _ in range(4)]
    first.basic_ack(tags[0])
    first.tx_commit()
    first.basic_ack(tags[1])
    first.tx_rollback()
    first.basic_nack(tags[2], requeue=False)
    first.tx_commit()
    first.connection.close()
    second = connect().channel()
    wait_until(lambda: depth(second, name) == 2, "what was not acked")
    method, _, data = get(second, name)
    assert (data, method.redelivered) == (b"1", True)
    method, _, data = get(second, name)
    assert (data, method.redelivered) == (b"3", True)
    second.queue_delete(name)


def test_an_unroutable_message_of_a_transaction_comes_back_at_commit(
    channel: BlockingChannel,
) -> None:
    returned: list[bytes] = []
    channel.add_on_return_callback(lambda _c, _m, _p, data: returned.append(data))
    channel.tx_select()
    channel.basic_publish("", "no such queue", b"x", mandatory=True)
    channel.connection.process_data_events(0)
    assert returned == []
    channel.tx_commit()
    channel.connection.process_data_events(0)
    assert returned == [b"x"]


# --- consuming ---


def test_prefetch_limits_what_is_in_hand(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    for i in range(10):
        channel.basic_publish("", name, b"%d" % i)
    channel.basic_qos(prefetch_count=3)
    taker = QueueTarget(channel, name).wait_for(3)
    settle(channel)
    assert taker.bodies() == [b"0", b"1", b"2"]
    channel.basic_ack(taker.taken[0][0].delivery_tag)
    taker.wait_for(4)
    settle(channel)
    assert len(taker.taken) == 4
    channel.basic_ack(taker.taken[3][0].delivery_tag, multiple=True)
    taker.wait_for(7)
    assert taker.bodies() == [b"%d" % i for i in range(7)]


def test_prefetch_of_the_channel_is_shared_by_its_consumers(
    channel: BlockingChannel, name: str
) -> None:
    queues = [f"{name}.{n}" for n in range(2)]
    for queue in queues:
        channel.queue_declare(queue, exclusive=True)
        for _ in range(5):
            channel.basic_publish("", queue, b"x")
    channel.basic_qos(prefetch_count=4, global_qos=True)
    takers = [QueueTarget(channel, queue) for queue in queues]
    takers[0].wait_for(1)
    wait_until(lambda: settle(channel) or sum(len(t.taken) for t in takers) >= 4, "four")
    settle(channel)
    assert sum(len(taker.taken) for taker in takers) == 4


@pytest.mark.parametrize("count", [0, 2])
def test_a_prefetch_for_consumers_to_come_lifts_that_of_the_channel(
    channel: BlockingChannel, name: str, count: int
) -> None:
    channel.queue_declare(name, exclusive=True)
    for _ in range(9):
        channel.basic_publish("", name, b"x")
    channel.basic_qos(prefetch_count=3, global_qos=True)
    taker = QueueTarget(channel, name).wait_for(3)
    settle(channel)
    assert len(taker.taken) == 3
    channel.basic_qos(prefetch_count=count)
    taker.wait_for(9)


def test_consumers_take_turns(connect: Callable[[], BlockingConnection], name: str) -> None:
    channels = [connect().channel() for _ in range(3)]
    channels[0].queue_declare(name, auto_delete=True)
    takers = []
    for one in channels:
        one.basic_qos(prefetch_count=10)
        takers.append(QueueTarget(one, name))
    for i in range(30):
        channels[0].basic_publish("", name, b"%d" % i)
    for taker in takers:
        taker.wait_for(10)
    assert sorted(int(d) for taker in takers for d in taker.bodies()) == list(range(30))


def test_a_slow_consumer_does_not_hold_the_others(
    connect: Callable[[], BlockingConnection], name: str
) -> None:
    slow, quick = connect().channel(), connect().channel()
    slow.queue_declare(name, auto_delete=True)
    slow.basic_qos(prefetch_count=1)
    idle = QueueTarget(slow, name)
    quick.basic_qos(prefetch_count=5)
    busy = QueueTarget(quick, name, auto_ack=False)
    for i in range(100):
        quick.basic_publish("", name, b"%d" % i)
    done = 0

    def all_done() -> bool:
        nonlocal done
        quick.connection.process_data_events(0.01)
        while done < len(busy.taken):
            quick.basic_ack(busy.taken[done][0].delivery_tag)
            done += 1
        return done == 99

    wait_until(all_done, "99 deliveries to the quick one")
    idle.wait_for(1)
    assert len(idle.taken) == 1


def test_priority_consumers_are_served_first(
    connect: Callable[[], BlockingConnection], name: str
) -> None:
    low, high = connect().channel(), connect().channel()
    low.queue_declare(name, auto_delete=True)
    low.basic_qos(prefetch_count=2)
    high.basic_qos(prefetch_count=2)
    second = QueueTarget(low, name)
    first = QueueTarget(high, name, arguments={"x-priority": 10})
    for i in range(4):
        low.basic_publish("", name, b"%d" % i)
    first.wait_for(2)
    second.wait_for(2)
    assert first.bodies() == [b"0", b"1"]
    assert second.bodies() == [b"2", b"3"]


def test_what_was_not_acked_comes_back_in_its_place_and_redelivered(
    connect: Callable[[], BlockingConnection], name: str
) -> None:
    first, second = connect().channel(), connect().channel()
    second.queue_declare(name, durable=True)
    for i in range(10):
        second.basic_publish("", name, b"%d" % i, PERSISTENT)
    first.basic_qos(prefetch_count=5)
    taker = QueueTarget(first, name).wait_for(5)
    first.basic_ack(taker.taken[2][0].delivery_tag)
    first.connection.close()
    wait_until(lambda: depth(second, name) == 9, "the requeued")
    found = [get(second, name) for _ in range(9)]
    assert [data for _, _, data in found] == [b"%d" % i for i in (0, 1, 3, 4, 5, 6, 7, 8, 9)]
    redelivered = [method.redelivered for method, _, _ in found]
    del redelivered[4]  # 5 was on its way to the first if the ack came well before the close
    assert redelivered == [True] * 4 + [False] * 4
    second.queue_delete(name)


def test_nack_and_reject(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    for i in range(4):
        channel.basic_publish("", name, b"%d" % i)
    tags = [get(channel, name)[0].delivery_tag for _ in range(4)]
    channel.basic_reject(tags[0], requeue=False)
    channel.basic_reject(tags[3], requeue=True)
    channel.basic_nack(tags[2], multiple=True, requeue=True)
    found = [get(channel, name) for _ in range(3)]
    assert [(data, method.redelivered) for method, _, data in found] == [
        (b"1", True), (b"2", True), (b"3", True),
    ]  # fmt: skip


def test_recover_gives_back_what_is_in_hand(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    for i in range(3):
        channel.basic_publish("", name, b"%d" % i)
    taker = QueueTarget(channel, name).wait_for(3)
    channel.basic_recover(requeue=True)
    taker.wait_for(6)
    assert [(d, m.redelivered) for m, _, d in taker.taken[3:]] == [
        (b"0", True), (b"1", True), (b"2", True),
    ]  # fmt: skip


def test_cancel_ends_deliveries_and_leaves_what_is_in_hand(
    channel: BlockingChannel, name: str
) -> None:
    channel.queue_declare(name, exclusive=True)
    for i in range(3):
        channel.basic_publish("", name, b"%d" % i)
    channel.basic_qos(prefetch_count=1)
    taker = QueueTarget(channel, name).wait_for(1)
    channel.basic_cancel(taker.tag)
    channel.basic_ack(taker.taken[0][0].delivery_tag)
    settle(channel)
    assert len(taker.taken) == 1
    assert depth(channel, name) == 2


def test_a_consumer_hears_that_its_queue_is_deleted(
    connect: Callable[[], BlockingConnection], name: str
) -> None:
    consumer, other = connect().channel(), connect().channel()
    consumer.queue_declare(name)
    cancelled: list[str] = []
    consumer.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    taker = QueueTarget(consumer, name)
    other.queue_delete(name)
    wait_until(lambda: consumer.connection.process_data_events(0.01) or cancelled, "basic.cancel")
    assert cancelled == [taker.tag]
    consumer.queue_declare("", exclusive=True)


def test_no_ack_consumers_settle_by_delivery(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    for i in range(200):
        channel.basic_publish("", name, b"%d" % i)
    channel.basic_qos(prefetch_count=1)
    taker = QueueTarget(channel, name, auto_ack=True).wait_for(200)
    assert taker.bodies() == [b"%d" % i for i in range(200)]


def test_one_consumer_is_active_at_a_time(
    connect: Callable[[], BlockingConnection], name: str
) -> None:
    first, second = connect().channel(), connect().channel()
    first.queue_declare(name, auto_delete=True, arguments={"x-single-active-consumer": True})
    active, waiting = (
        QueueTarget(first, name, auto_ack=True),
        QueueTarget(second, name, auto_ack=True),
    )
    for i in range(5):
        second.basic_publish("", name, b"%d" % i)
    active.wait_for(5)
    settle(second)
    assert waiting.taken == []
    first.connection.close()
    second.basic_publish("", name, b"5")
    assert waiting.wait_for(1).bodies() == [b"5"]
