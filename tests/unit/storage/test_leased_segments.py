"""LeasedSeqs: a bit for each leased seq, and nothing else."""

import pytest

from penstock.storage.index.leases import LeasedSeqs

SLOTS = 16


def leased(*runs: tuple[int, int]) -> LeasedSeqs:
    found = LeasedSeqs(SLOTS)
    for first, n in runs:
        found.add(first, n, 10 * n)
    return found


def test_what_is_added_is_there_and_counted() -> None:
    found = leased((3, 4), (16, 16), (40, 1))
    assert [seq for seq in range(64) if found.has(seq)] == [3, 4, 5, 6, *range(16, 32), 40]
    assert (found.count, found.bytes) == (21, 210)
    assert [found.in_segment(number) for number in range(4)] == [4, 16, 1, 0]


def test_what_is_removed_is_gone() -> None:
    found = leased((3, 4), (16, 16))
    found.remove(4, 2, 20)
    assert [seq for seq in range(16) if found.has(seq)] == [3, 6]
    found.remove(16, 16, 160)
    found.remove(3, 1, 10)
    found.remove(6, 1, 10)
    assert (found.count, found.bytes) == (0, 0)
    assert not found.has(3)
    assert found.in_segment(1) == 0


def test_the_others_are_left() -> None:
    found = leased((18, 3))
    assert found.without([16, 17, 18, 19, 20, 21]) == [16, 17, 21]
    assert found.without([1, 2, 3]) == [1, 2, 3]
    assert found.without([]) == []


def test_nothing_is_leased_twice() -> None:
    with pytest.raises(ValueError, match="seq 5 is leased already"):
        leased((3, 4), (5, 1))


def test_a_run_that_is_refused_changes_nothing() -> None:
    found = leased((20, 3))
    with pytest.raises(ValueError, match="seq 20 is leased already"):
        found.add(16, 16, 160)
    assert [seq for seq in range(64) if found.has(seq)] == [20, 21, 22]
    assert (found.count, found.bytes) == (3, 30)


@pytest.mark.parametrize(("first", "n"), [(0, 16), (1, 14), (7, 2), (8, 8), (15, 1)])
def test_a_run_may_begin_and_end_anywhere(first: int, n: int) -> None:
    found = leased((16 + first, n))
    assert [seq for seq in range(48) if found.has(seq)] == list(range(16 + first, 16 + first + n))
    found.add(0, 1, 10)
    found.remove(16 + first, n, 10 * n)
    assert [seq for seq in range(48) if found.has(seq)] == [0]


@pytest.mark.parametrize(("first", "n"), [(15, 2), (0, 17), (3, 0)])
def test_a_run_is_of_one_segment(first: int, n: int) -> None:
    with pytest.raises(ValueError, match="crosses a segment"):
        leased((first, n))


def test_what_is_not_leased_cannot_be_removed() -> None:
    with pytest.raises(ValueError, match="not leased"):
        leased((3, 1)).remove(3, 2, 20)
    with pytest.raises(ValueError, match="not leased"):
        leased().remove(3, 1, 10)
