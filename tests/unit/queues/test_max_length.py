"""Max length: what is refused, what goes to make room, and that it goes in slices."""

import pytest

from penstock.errors import QueueFullError
from penstock.queues.amq_queue import MaxLength
from penstock.queues.backing_queue import BackingQueue
from penstock.queues.queue_options import QueueOptions
from penstock.storage.files.durability import NONE, OS
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
    assert limits(max_length=1).trim(queue, 256, seen.extend) == 2
    assert len(queue.ack(seen, OS)) == 2
    assert queue.depth() == 1


def test_the_three_ways_are_told_apart() -> None:
    assert limits().drops_head
    assert not limits(overflow="reject-publish").dead_letters_refused
    assert limits(overflow="reject-publish-dlx").dead_letters_refused


# ---- strict: what was delivered is never dropped, nor room made behind it -----------------------


def test_a_strict_ring_drops_its_oldest_while_nothing_is_delivered() -> None:
    queue = queue_of(b"a", b"b")
    strict = limits(max_length=2, overflow="drop-head-strict")
    assert (strict.drops_head, strict.may_refuse) == (True, True)
    strict.check(queue, 1, 1)
    queue.publish(b"", b"c", OS)
    assert strict.trim(queue, 256, None) == 1
    assert queue.len() == 2


def test_a_strict_ring_refuses_while_its_oldest_is_not_acknowledged() -> None:
    queue = queue_of()
    for body in (b"aa", b"b"):
        queue.publish(b"", body, NONE)
    taken = queue.fetch()
    assert taken is not None
    for given in ({"max_length": 2}, {"max_length_bytes": 3}):
        strict = limits(overflow="drop-head-strict", **given)
        with pytest.raises(QueueFullError) as caught:
            strict.check(queue, 1, 1)
        assert (caught.value.given, caught.value.allowed) in ((3, 2), (4, 3))
    limits(max_length=3, max_length_bytes=4, overflow="drop-head-strict").check(queue, 1, 1)
    queue.ack([taken.tag], OS)
    limits(max_length=1, overflow="drop-head-strict").check(queue, 1, 1)


def test_what_is_larger_than_a_strict_ring_is_refused() -> None:
    strict = limits(max_length=2, max_length_bytes=4, overflow="drop-head-strict")
    with pytest.raises(QueueFullError):
        strict.check(queue_of(), 1, 5)
    with pytest.raises(QueueFullError):
        strict.check(queue_of(), 3, 3)
