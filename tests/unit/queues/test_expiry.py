"""Expiry: which date counts, and that heads go in slices and nothing behind a living one does."""

import pytest

from penstock.queues.amq_queue import expire, expiry_at, is_expired, sooner
from penstock.queues.backing_queue import BackingQueue
from penstock.storage.files.durability import OS
from tests.helpers.engine_rig import EngineRig
from tests.helpers.reference_queue import ReferenceQueue


@pytest.mark.parametrize(
    ("ttl_ms", "queue_ttl_ms", "expiry_ms"),
    [(None, None, 0), (5, None, 105), (None, 7, 107), (5, 7, 105), (7, 5, 105), (0, 5, 100)],
)
def test_the_shorter_life_counts(
    ttl_ms: int | None, queue_ttl_ms: int | None, expiry_ms: int
) -> None:
    assert expiry_at(100, ttl_ms, queue_ttl_ms) == expiry_ms


def test_never_is_later_than_any_date() -> None:
    assert [sooner(0, 0), sooner(0, 5), sooner(5, 0), sooner(5, 6), sooner(6, 5)] == [0, 5, 5, 5, 5]


def test_a_message_is_dead_at_its_expiry_and_not_before() -> None:
    assert [is_expired(100, 99), is_expired(100, 100), is_expired(0, 100)] == [False, True, False]


def queue_of(*expiries: int) -> BackingQueue:
    rig = EngineRig()
    queue = ReferenceQueue(rig.engine, rig.queue())
    for expiry_ms in expiries:
        queue.publish(b"", b"x", OS, expiry_ms=expiry_ms)
    return queue


def test_expired_heads_go_and_what_is_behind_a_living_one_stays() -> None:
    queue = queue_of(1, 2, 9, 1)
    assert expire(queue, 5, 10, None, OS) == (2, False)
    assert queue.len() == 2


def test_the_dead_are_handed_over_together() -> None:
    queue = queue_of(1, 2, 0)
    seen: list[int] = []
    assert expire(queue, 5, 10, seen.extend, OS) == (2, False)
    assert len(queue.ack(seen, OS)) == 2


def test_a_slice_says_that_there_is_more() -> None:
    for bury in (None, lambda tags: None):
        queue = queue_of(1, 1, 1, 1)
        assert expire(queue, 5, 3, bury, OS) == (3, True)
        assert expire(queue, 5, 3, bury, OS) == (1, False)


def test_an_empty_queue_has_nothing_to_expire() -> None:
    assert expire(queue_of(), 5, 3, None, OS) == (0, False)
