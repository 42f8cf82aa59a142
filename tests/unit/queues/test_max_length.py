"""Max length: what is refused, what goes to make room, and that it goes in slices."""

import pytest

from penstock.errors import QueueFullError
from penstock.queues.backing_queue import BackingQueue
from penstock.queues.max_length import MaxLength
from penstock.queues.queue_options import QueueOptions
from penstock.storage.durability import OS
from tests.helpers.engine_rig import EngineRig
from tests.helpers.reference_queue import ReferenceQueue


def queue_of(*bodies: bytes) -> BackingQueue:
    rig = EngineRig()
    queue = ReferenceQueue(rig.engine, rig.queue())
    for body in bodies:
        queue.publish(b"", body, OS)
    return queue


def limits(**options: object) -> MaxLength:
    return MaxLength("q", QueueOptions.of(options))


def test_without_limits_nothing_is_over_them() -> None:
    none = limits(overflow="reject-publish")
    assert not none.is_set
    none.check(queue_of(b"a"), 1 << 40, 1 << 50)
    assert not none.is_over(queue_of(b"a"))


def test_a_queue_that_drops_refuses_nothing() -> None:
    limits(max_length=1).check(queue_of(b"a", b"b"), 5, 5)


def test_a_limit_is_reached_before_it_is_passed() -> None:
    both = limits(max_length=2, max_length_bytes=4, overflow="reject-publish")
    both.check(queue_of(b"ab"), 1, 2)
    with pytest.raises(QueueFullError) as caught:
        both.check(queue_of(b"ab"), 2, 2)
    assert (caught.value.limit, caught.value.given, caught.value.allowed) == ("max_length", 3, 2)
    with pytest.raises(QueueFullError) as caught:
        both.check(queue_of(b"ab"), 1, 3)
    assert (caught.value.limit, caught.value.given) == ("max_length_bytes", 5)


def test_heads_go_until_both_limits_are_kept() -> None:
    queue = queue_of(b"aaaa", b"b", b"c", b"d")
    assert limits(max_length=3, max_length_bytes=2).trim(queue, 256, None) == 2
    assert queue.len() == 2


def test_a_slice_is_as_long_as_it_may_be() -> None:
    queue = queue_of(*[b"x"] * 5)
    none_left = limits(max_length=0)
    assert none_left.trim(queue, 3, None) == 3
    assert none_left.is_over(queue)
    assert none_left.trim(queue, 3, None) == 2
    assert none_left.trim(queue, 3, None) == 0


def test_whoever_wants_them_gets_their_tags() -> None:
    queue = queue_of(b"a", b"b", b"c")
    seen: list[int] = []
    assert limits(max_length=1).trim(queue, 256, seen.append) == 2
    assert len(queue.ack(seen, OS)) == 2
    assert queue.depth() == 1


def test_the_three_ways_are_told_apart() -> None:
    assert limits().drops_head
    assert not limits(overflow="reject-publish").buries_refused
    assert limits(overflow="reject-publish-dlx").buries_refused
