"""What priorities and partitions take of a vhost's memory is counted, when they take it."""

import pytest

from penstock.broker.broker_queue import OPEN_PART_BYTES, PART_BYTES, QUEUE_BYTES
from penstock.broker.broker_stream import PARTITION_BYTES
from penstock.codec.spec import (
    ChannelClose,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
)
from penstock.queues.queue_set import STORED_BYTES
from tests.helpers.broker_rig import BrokerRig, RigClient

PRIORITIES = {"x-max-priority": 255}
PARTITIONS = {"x-queue-type": "stream", "x-partitions": 20}


@pytest.fixture
def c(rig: BrokerRig) -> RigClient:
    return rig.client().open()


def declare(c: RigClient, arguments: dict[str, object], name: str = "q") -> None:
    c.call(1, QueueDeclare(queue=name, durable=True, arguments=arguments), QueueDeclareOk)


def counted(rig: BrokerRig) -> int:
    return rig.vhost.topology_bytes


def test_each_priority_counts_when_it_is_declared(rig: BrokerRig, c: RigClient) -> None:
    before = counted(rig)
    declare(c, PRIORITIES)
    parts = 255 * PART_BYTES
    assert parts + QUEUE_BYTES < counted(rig) - before < parts + QUEUE_BYTES + 1024


def test_a_priority_counts_more_from_its_first_message_on(rig: BrokerRig, c: RigClient) -> None:
    declare(c, PRIORITIES)
    before = counted(rig)
    for priority in (0, 7, 7, 255):
        c.publish(1, "", "q", b"x", priority=priority)
    rig.turn()
    assert counted(rig) - before == 2 * OPEN_PART_BYTES  # that of 0 was open


def test_what_is_deleted_counts_no_more(rig: BrokerRig, c: RigClient) -> None:
    before = counted(rig)
    declare(c, PRIORITIES)
    declare(c, PARTITIONS, "s")
    c.publish(1, "", "q", b"x", priority=9)
    rig.turn()
    c.call(1, QueueDelete(queue="q"), QueueDeleteOk)
    c.call(1, QueueDelete(queue="s"), QueueDeleteOk)
    assert counted(rig) == before


def test_each_partition_counts(rig: BrokerRig, c: RigClient) -> None:
    before = counted(rig)
    declare(c, PARTITIONS)
    parts = 19 * PARTITION_BYTES
    assert parts + QUEUE_BYTES < counted(rig) - before < parts + QUEUE_BYTES + 1024


def test_each_priority_of_a_queue_that_nobody_has_opened_counts(
    rig: BrokerRig, c: RigClient
) -> None:
    before = counted(rig)
    declare(c, PRIORITIES)
    c.publish(1, "", "q", b"x", priority=9, delivery_mode=2)
    rig.turn()
    opened = counted(rig)
    rig.restart()
    assert list(rig.vhost.queue_set.stored) == ["q"]
    assert counted(rig) - before == 256 * STORED_BYTES
    rig.vhost.table.find_queue("q", None)
    assert counted(rig) == opened


def test_a_queue_that_restarts_counts_once(rig: BrokerRig, c: RigClient) -> None:
    empty = counted(rig)
    declare(c, PRIORITIES)
    c.publish(1, "", "q", b"x", priority=9, delivery_mode=2)
    rig.turn()
    before = counted(rig)
    rig.vhost.restarts.failed(rig.vhost.table.find_messages("q", None, "test"), KeyError("x"))
    assert counted(rig) == before
    c.call(1, QueueDelete(queue="q"), QueueDeleteOk)
    assert counted(rig) == empty


def test_topology_has_no_room_for_queues_of_many_priorities_without_end(rig: BrokerRig) -> None:
    rig = BrokerRig(memory_bytes=2 << 20)
    c = rig.client().open()
    declare(c, PRIORITIES, "one")
    declare(c, PRIORITIES, "two")
    c.send(1, QueueDeclare(queue="three", durable=True, arguments=PRIORITIES))
    rig.turn()
    (refused,) = c.methods(ChannelClose)
    assert "half of the vhost's memory" in refused.reply_text
