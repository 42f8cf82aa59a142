"""SharedBody: the parts that holders count always come to the whole body, and are fair."""

import random

import pytest

from penstock.message import SharedBodies, SharedBody, SharedMessage


def counted(shared: SharedBody, holders: list[SharedBodies]) -> list[int]:
    """What each counts of it, which is what `elsewhere_bytes` leaves; for who holds it once."""
    parts = [len(shared.body) - holder.elsewhere_bytes for holder in holders]
    assert parts == [shared.counted_bytes(holder) for holder in holders]
    return parts


def held_by(n: int, size: int) -> tuple[SharedBody, list[SharedBodies]]:
    """A body that was published to n queues."""
    shared = SharedBody(b"x" * size, n)
    holders = [SharedBodies() for _ in range(n)]
    for holder in holders:
        shared.join(holder)
    shared.complete()
    return shared, holders


def test_ten_holders_count_a_tenth_each() -> None:
    shared, holders = held_by(10, 1000)
    assert counted(shared, holders) == [100] * 10


def test_what_cannot_be_divided_the_first_counts() -> None:
    shared, holders = held_by(3, 11)
    assert counted(shared, holders) == [5, 3, 3]
    shared, holders = held_by(5, 2)
    assert counted(shared, holders) == [2, 0, 0, 0, 0]


def test_those_that_stay_count_for_those_that_left() -> None:
    shared, holders = held_by(8, 840)
    for n in range(7, 0, -1):
        shared.leave(holders.pop(n // 2))
        assert counted(shared, holders) == [840 // n] * n
    shared.leave(holders[0])
    assert holders[0].elsewhere_bytes == holders[0].count == 0


def test_the_first_of_many_does_not_count_the_whole_for_a_moment() -> None:
    shared = SharedBody(b"x" * 1000, 10)
    first, second = SharedBodies(), SharedBodies()
    shared.join(first)
    assert counted(shared, [first]) == [100]
    shared.join(second)
    assert counted(shared, [first, second]) == [100, 100]


def test_who_was_expected_and_never_came_counts_nothing() -> None:
    """Lazy queues have it on disk at once."""
    shared = SharedBody(b"x" * 1000, 10)
    holders = [SharedBodies() for _ in range(3)]
    for holder in holders:
        shared.join(holder)
    shared.leave(holders.pop())
    shared.complete()
    shared.complete()
    assert counted(shared, holders) == [500, 500]


def test_who_comes_later_counts_a_part_too() -> None:
    shared, holders = held_by(2, 1200)
    for n in range(3, 7):
        holders.append(SharedBodies())
        shared.join(holders[-1])
        assert counted(shared, holders) == [1200 // n] * n


def test_more_than_were_expected_before_it_is_complete() -> None:
    shared = SharedBody(b"x" * 1000, 2)
    holders = [SharedBodies() for _ in range(4)]
    for holder in holders:
        shared.join(holder)
    shared.complete()
    assert counted(shared, holders) == [250] * 4


def test_a_queue_that_has_it_twice_counts_two_parts() -> None:
    shared, (one, two) = held_by(2, 900)
    shared.join(one)
    assert one.count == 2
    assert 2 * 900 - one.elsewhere_bytes == shared.counted_bytes(one) == 600
    shared.leave(one)
    assert counted(shared, [one, two]) == [450, 450]


def test_it_comes_back_to_a_queue_after_all_have_left() -> None:
    shared, (one, two) = held_by(2, 900)
    shared.leave(one)
    shared.leave(two)
    shared.join(two)
    assert counted(shared, [two]) == [900]


def test_who_does_not_hold_it_cannot_leave_it() -> None:
    shared, holders = held_by(2, 900)
    with pytest.raises(ValueError, match="does not hold it"):
        shared.leave(SharedBodies())
    assert counted(shared, holders) == [450, 450]


@pytest.mark.parametrize("seed", range(20))
def test_whoever_comes_and_goes_the_sum_is_the_body(seed: int) -> None:
    """And of many holders everyone but the first counts its part but for an eighth."""
    rng = random.Random(seed)
    size = rng.choice([1, 7, 100, 12_345])
    shared, holders = held_by(rng.choice([2, 3, 10, 100]), size)
    gone: list[SharedBodies] = []
    for _ in range(300):
        if holders and rng.random() < 0.55:
            gone.append(holders.pop(rng.randrange(len(holders))))
            shared.leave(gone[-1])
        elif gone:
            holders.append(gone.pop(rng.randrange(len(gone))))
            shared.join(holders[-1])
        parts = counted(shared, holders)
        assert sum(parts) == (size if holders else 0)
        assert min(parts, default=0) >= 0
        assert all(holder.elsewhere_bytes == holder.count == 0 for holder in gone)
        n = len(holders)
        assert sum(1 for part in parts if not 7 * size // (8 * n) - 1 <= part <= size // n) <= 1
        assert max(parts, default=0) <= size // max(n, 1) + size // 7 + n + 1


def test_the_message_is_a_message() -> None:
    shared = SharedBody(b"body", 2)
    message = SharedMessage(shared, 7, b"header", 1000, 2000, 3, persistent=False)
    plain = message.copy()
    for each in (message, plain):
        assert each.body is shared.body
        assert (each.id, each.header, each.size, each.time) == (7, b"header", 4, 1000)
        assert (each.expiry_ms, each.store_file, each.persistent) == (2000, 3, False)
    assert not isinstance(plain, SharedMessage)
