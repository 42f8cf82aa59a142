"""SegmentPool: which file becomes which segment, and which ones go."""

import random

import pytest

from penstock.clock import ManualClock
from penstock.storage.log.transaction_log import SegmentPool
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.logs import KIB, VHOST, WAL


class PoolRig:
    def __init__(self, bytes_min: int = KIB, bytes_max: int = 8 * KIB) -> None:
        self.fs = FaultyFileSystem()
        self.fs.mkdir(WAL)
        self.pool = SegmentPool(
            self.fs, WAL, VHOST, ManualClock(), random.Random(1), bytes_min, bytes_max
        )
        self.pool.start(1, [])

    def settle(self) -> None:
        while done := self.fs.completed(True):
            for token, result in done:
                assert self.pool.complete(token, result)

    def numbers(self) -> list[int]:
        return [int(name[:10]) for name in self.fs.list(WAL)]


def test_sizes_double_up_to_the_limit() -> None:
    rig = PoolRig(bytes_max=5 * KIB)
    sizes = [rig.pool.next(64).size for _ in range(4)]
    assert [rig.pool.in_use[0].size, *sizes] == [KIB, 2 * KIB, 4 * KIB, 5 * KIB, 5 * KIB]


def test_a_segment_is_as_large_as_what_it_is_for() -> None:
    rig = PoolRig()
    assert rig.pool.next(20_000).size >= 20_000 + 128
    assert rig.pool.next(64).size == 8 * KIB, "and the next ones are as large as ever"


def test_one_is_prepared_ahead_and_then_always_the_next() -> None:
    rig = PoolRig()
    rig.pool.prepare_ahead()
    rig.pool.prepare_ahead()
    rig.settle()
    assert rig.numbers() == [1, 2]
    before = rig.fs.operations
    assert rig.pool.next(64).number == 2
    assert rig.fs.operations == before
    rig.settle()
    assert rig.numbers() == [1, 2, 3]


def test_one_that_comes_too_late_goes() -> None:
    rig = PoolRig()
    rig.pool.prepare_ahead()
    assert rig.pool.next(64).number == 3, "2 is on its way"
    rig.settle()
    assert rig.numbers() == [1, 3, 4]
    assert rig.pool.ahead is not None
    assert rig.pool.ahead.number == 4


def test_one_that_is_too_small_goes() -> None:
    rig = PoolRig()
    rig.pool.prepare_ahead()
    rig.settle()
    assert rig.pool.next(20_000).number == 3
    rig.settle()
    assert rig.numbers() == [1, 3, 4]


def test_at_most_two_spares_are_kept_and_small_ones_are_not_used() -> None:
    rig = PoolRig(bytes_max=4 * KIB)
    for _ in range(5):
        last = rig.pool.next(64)
    assert [s.size // KIB for s in rig.pool.in_use] == [1, 2, 4, 4, 4, 4]
    rig.pool.release_before(6, last)
    rig.settle()
    assert rig.numbers() == [1, 2, 6]
    assert rig.pool.next(64).number == 7
    rig.settle()
    assert rig.numbers() == [6, 7], "both were smaller than what is wanted now"
    rig.pool.next(64)
    rig.pool.release_before(8, rig.pool.in_use[-1])
    rig.settle()
    assert rig.numbers() == [6, 7, 8]
    assert rig.pool.next(64).number == 9
    assert rig.numbers() == [6, 8, 9]


def test_what_is_being_written_stays() -> None:
    rig = PoolRig()
    first = rig.pool.in_use[0]
    rig.pool.next(64)
    rig.pool.release_before(2, first)
    assert rig.pool.in_use[0] is first


def test_old_files_go_with_their_numbers() -> None:
    fs = FaultyFileSystem()
    fs.mkdir(WAL)
    names = ["0000000001.wal", "0000000002.new"]
    for name in names:
        fs.open(f"{WAL}/{name}", create=True).close()
    pool = SegmentPool(fs, WAL, VHOST, ManualClock(), random.Random(1), KIB, KIB)
    first = pool.start(3, [(int(name[:10]), f"{WAL}/{name}") for name in names])
    pool.release_before(2, first)
    assert [pool.complete(*done) for done in fs.completed(True)] == [True]
    assert fs.list(WAL) == ["0000000002.new", "0000000003.wal"]
    fs.unlink(f"{WAL}/0000000002.new")
    pool.release_before(3, first)
    assert [pool.complete(*done) for done in fs.completed(True)] == [True], "gone is gone"


def test_close_with_one_on_its_way() -> None:
    rig = PoolRig()
    rig.pool.prepare_ahead()
    rig.pool.close()
    rig.settle()
    assert not any(rig.fs.handles.values())
    rig.pool.prepare_ahead()
    assert not rig.fs.completed(True)


def test_at_the_end_only_the_segment_in_use_is_open() -> None:
    rig = PoolRig()
    for _ in range(3):
        rig.pool.prepare_ahead()
        rig.settle()
        rig.pool.next(64)
    rig.pool.prepare_ahead()
    rig.settle()
    assert sum(rig.fs.handles.values()) == len(rig.pool.in_use) + 1, "and the one ahead"
    rig.pool.release_before(rig.pool.in_use[-1].number, rig.pool.in_use[-1])
    rig.settle()
    rig.pool.end()
    rig.settle()
    assert sum(rig.fs.handles.values()) == len(rig.pool.in_use) == 1
    assert rig.numbers() == [rig.pool.in_use[0].number]
    rig.pool.close()
    assert not any(rig.fs.handles.values())


def test_it_starts_once() -> None:
    rig = PoolRig()
    with pytest.raises(AssertionError, match="once"):
        rig.pool.start(5, [])
