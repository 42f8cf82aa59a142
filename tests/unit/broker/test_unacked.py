"""Unacked: delivery tags, the ring, and what is set aside."""

from penstock.broker.broker_queue import QueueOrStream
from penstock.broker.channel import ASIDE_FROM, Unacked
from tests.helpers.broker_rig import BrokerRig


def some_queue() -> QueueOrStream:
    """Any queue: nothing is asked of it."""
    queue, _ = BrokerRig().vhost.declare_queue("q")
    return queue


def test_tags_count_from_one_and_skips_take_one() -> None:
    unacked, queue = Unacked(), some_queue()
    assert [unacked.add(queue, 0, None), unacked.skip(), unacked.add(queue, 1, None)] == [1, 2, 3]
    assert unacked.take(2) is None
    assert unacked.count == 2


def test_nothing_is_taken_twice_or_from_the_future() -> None:
    unacked, queue = Unacked(), some_queue()
    unacked.add(queue, 7, None)
    assert unacked.take(2) is None
    found = unacked.take(1)
    assert found is not None
    assert found.tag == 7
    assert unacked.take(1) is None


def test_old_stragglers_do_not_make_the_ring_grow() -> None:
    unacked, queue = Unacked(), some_queue()
    for i in range(3):
        unacked.add(queue, i, None)
    for i in range(50 * ASIDE_FROM):
        unacked.take(unacked.add(queue, i, None))
    assert len(unacked._ring) <= 2 * ASIDE_FROM
    assert [d.tag for d in unacked.take_up_to(2)] == [0, 1]
    assert [d.tag for d in unacked.take_up_to(0)] == [2]


def test_a_burst_gives_its_room_back() -> None:
    unacked, queue = Unacked(), some_queue()
    for i in range(10_000):
        unacked.add(queue, i, None)
    assert len(unacked.take_up_to(0)) == 10_000
    assert len(unacked._ring) < 100
