"""One prefetch for the consumers of several queues: each queue gets its share."""

from collections import Counter

import pytest

from penstock.codec.spec import (
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicConsumeOk,
    BasicQos,
    BasicQosOk,
    QueueDeclare,
    QueueDeclareOk,
)
from tests.helpers.broker_rig import BrokerRig, RigClient

QUEUES = ("a", "b", "c")


@pytest.fixture
def rig() -> BrokerRig:
    return BrokerRig()


def prepared(rig: BrokerRig, prefetch: int, n: int, queues: tuple[str, ...] = QUEUES) -> RigClient:
    """A client whose channel 1 consumes these queues, n messages in each, with one prefetch. Their
    bodies are the queues' names."""
    client = rig.client().open().open(2)
    for queue in queues:
        client.call(2, QueueDeclare(queue=queue), QueueDeclareOk)
        for _ in range(n):
            client.publish(2, "", queue, queue.encode())
    rig.turn()
    client.call(1, BasicQos(prefetch_count=prefetch, global_=True), BasicQosOk)
    for queue in queues:
        client.send(1, BasicConsume(queue=queue, consumer_tag=queue))
    rig.turn()
    assert len(client.methods(BasicConsumeOk)) == len(queues)
    return client


def counts(client: RigClient) -> Counter[bytes]:
    return Counter(client.bodies())


@pytest.mark.parametrize("prefetch", [3, 9, 300])
def test_the_queues_share_the_places(rig: BrokerRig, prefetch: int) -> None:
    client = prepared(rig, prefetch, 200)
    assert counts(client) == dict.fromkeys((b"a", b"b", b"c"), prefetch // 3)
    for tag in range(3):
        client.send(1, BasicAck(delivery_tag=(tag + 1) * prefetch // 3, multiple=True))
        rig.turn()
    found = counts(client)
    assert max(found.values()) - min(found.values()) <= 1
    assert sum(found.values()) == min(prefetch, 600 - prefetch)


@pytest.mark.parametrize("prefetch", [1, 2])
def test_with_fewer_places_than_queues_none_starves(rig: BrokerRig, prefetch: int) -> None:
    """Also when the first queue is published to before each acknowledgement."""
    client = prepared(rig, prefetch, 30)
    found = counts(client)
    for tag in range(1, 31):
        client.publish(2, "", "a", b"a")
        client.send(1, BasicAck(delivery_tag=tag))
        rig.turn()
        found += counts(client)
    assert min(found[queue] for queue in (b"a", b"b", b"c")) >= 10


def test_what_others_do_not_need_is_for_one(rig: BrokerRig) -> None:
    client = prepared(rig, 10, 0)
    for _ in range(20):
        client.publish(2, "", "b", b"b")
    rig.turn()
    assert counts(client) == {b"b": 10}
    client.send(1, BasicAck(delivery_tag=10, multiple=True))
    rig.turn()
    assert counts(client) == {b"b": 10}


def test_one_that_is_cancelled_waits_no_more(rig: BrokerRig) -> None:
    client = prepared(rig, 2, 10)
    assert sum(counts(client).values()) == 2
    client.call(1, BasicCancel(consumer_tag="c"), BasicCancelOk)
    client.send(1, BasicAck(delivery_tag=2, multiple=True))
    rig.turn()
    assert counts(client) == {b"a": 1, b"b": 1}
    client.call(1, BasicCancel(consumer_tag="b"), BasicCancelOk)
    client.send(1, BasicAck(delivery_tag=4, multiple=True))
    rig.turn()
    assert counts(client) == {b"a": 2}


def test_a_limit_that_comes_later_is_shared_too(rig: BrokerRig) -> None:
    client = prepared(rig, 0, 0)
    client.call(1, BasicQos(prefetch_count=6, global_=True), BasicQosOk)
    client.call(1, BasicConsume(queue="a", consumer_tag="no ack", no_ack=True), BasicConsumeOk)
    client.call(1, BasicCancel(consumer_tag="no ack"), BasicCancelOk)
    for queue in QUEUES:
        for _ in range(6):
            client.publish(2, "", queue, queue.encode())
    rig.turn()
    assert counts(client) == {b"a": 2, b"b": 2, b"c": 2}


def test_many_idle_queues_cost_a_delivery_a_few_looks(rig: BrokerRig) -> None:
    queues = tuple(f"q{i}" for i in range(100))
    client = prepared(rig, 5, 0, queues)
    for _ in range(20):
        client.publish(2, "", "q99", b"q99")
    rig.turn()
    assert counts(client) == {b"q99": 5}
