"""Leases as log and checkpoint know them: ordinals, slices, what is left of them."""

import struct

import pytest

from penstock.storage.index import leases
from penstock.storage.index.leases import Lease, LeaseTable
from penstock.storage.log import record
from penstock.storage.log.record import LeaseData, LeaseRun
from tests.helpers.golden import golden, hexdump

QUEUE = 3
A: LeaseRun = (3, 10, 4, 400, 1, 1000)
B: LeaseRun = (4, 20, 6, 60, 0, 900)
C: LeaseRun = (3, 40, 5, 50, 5, 1100)


def told(ordinal: int, *runs: LeaseRun, reader: bytes = b"r", time_ms: int = 7) -> LeaseData:
    return LeaseData(QUEUE, ordinal, time_ms, reader, list(runs))


def table(*slices: list[LeaseRun]) -> LeaseTable:
    """A table in which reader "r" has leased these slices."""
    found = LeaseTable()
    at = 0
    for i, runs in enumerate(slices):
        found.apply(told(at, *runs, time_ms=7 + i), record.LEASED, 100 + i)
        at += sum(run[2] for run in runs)
    return found


def lease_of(found: LeaseTable, reader: str = "r") -> Lease:
    return found.of(QUEUE)[reader]


def test_ordinals_count_over_all_leases() -> None:
    found = lease_of(table([A, B], [C]))
    assert (found.committed, found.next, found.count, found.bytes) == (0, 15, 15, 510)
    assert [(one.ordinal, one.n, one.bytes) for one in found.slices] == [(0, 10, 460), (10, 5, 50)]
    assert found.since_ms == 7
    assert found.slice_of(9).runs() == [A, B]
    assert found.slice_of(10).runs() == [C]


def test_each_slice_knows_the_latest_time_before_it() -> None:
    found = lease_of(table([A], [B], [C]))
    assert [one.floor_s for one in found.slices] == [0, 1000, 1000]
    assert (found.floor_s, found.last_s) == (0, 1100)


def test_a_lease_from_another_ordinal_is_refused() -> None:
    found = table([A])
    for ordinal in (0, 3, 5):
        with pytest.raises(ValueError, match="it is at 4"):
            found.apply(told(ordinal, B), record.LEASED, 1)
    with pytest.raises(ValueError, match="no message"):
        found.apply(told(4), record.LEASED, 1)


def test_whole_slices_are_committed() -> None:
    found = table([A], [B], [C])
    assert found.apply(told(10), record.COMMITTED, 1) == ([A, B], False)
    lease = lease_of(found)
    assert (lease.committed, lease.next, lease.bytes, lease.floor_s) == (10, 15, 50, 1000)
    assert found.apply(told(15), record.COMMITTED, 1) == ([C], False)
    assert (lease.committed, lease.next, lease.bytes, lease.since_ms) == (15, 15, 0, 0)
    assert (lease.floor_s, lease.slices) == (1100, [])


def test_a_slice_is_parted() -> None:
    found = table([A, B])
    parted: list[LeaseRun] = [A, (4, 20, 2, 25, 0, 1200)]
    assert found.apply(told(6, *parted), record.COMMITTED, 1) == (parted, False)
    lease = lease_of(found)
    assert lease.slices[0].runs() == [(4, 22, 4, 35, 0, 900)]
    assert (lease.committed, lease.next, lease.bytes, lease.floor_s) == (6, 10, 35, 1200)
    found.apply(told(8, (4, 22, 2, 5, 0, 1)), record.COMMITTED, 1)
    found.apply(told(10), record.COMMITTED, 1)
    assert (lease.committed, lease.bytes) == (10, 0)


def test_a_slice_is_parted_between_its_runs() -> None:
    found = table([A, B])
    assert found.apply(told(4, A), record.COMMITTED, 1) == ([A], False)
    assert lease_of(found).slices[0].runs() == [B]


@pytest.mark.parametrize(
    ("ordinal", "parted", "text"),
    [
        (0, [], "ends what is below"),
        (11, [], "ends what is below"),
        (6, [], "do not end at 6"),
        (6, [A], "do not end at 6"),
        (6, [B], "were not leased so"),
        (6, [A, (4, 20, 7, 1, 0, 1)], "were not leased so"),
        (6, [(3, 10, 2, 1, 0, 1), (4, 20, 4, 1, 0, 1)], "not the last one"),
        (10, [A], "divides no slice"),
    ],
)
def test_what_was_not_leased_so_is_not_committed(
    ordinal: int, parted: list[LeaseRun], text: str
) -> None:
    found = table([A, B])
    with pytest.raises(ValueError, match=text):
        found.apply(told(ordinal, *parted), record.COMMITTED, 1)


def test_a_release_is_from_the_oldest_on_and_then_the_reader_is_forgotten() -> None:
    found = table([A], [B])
    assert found.apply(told(4), record.RELEASED, 1) == ([A], False)
    lease = lease_of(found)
    assert lease.is_releasing
    with pytest.raises(ValueError, match="it is at 10"):
        found.apply(told(10, C), record.LEASED, 1)
    assert found.apply(told(10), record.RELEASED, 1) == ([B], False)
    assert found.by_queue == {}
    again = told(0, C)
    assert found.apply(again, record.LEASED, 50) == ([C], True)
    assert lease_of(found).id != lease.id, "it is another lease"


def test_a_reader_that_has_committed_all_is_released_too() -> None:
    found = table([A])
    found.apply(told(4), record.COMMITTED, 1)
    assert found.apply(told(4), record.RELEASED, 1) == ([], False)
    assert found.by_queue == {}


def test_unknown_readers_and_flags_are_refused() -> None:
    for flags in (record.COMMITTED, record.RELEASED):
        with pytest.raises(ValueError, match="has no lease"):
            table([A]).apply(told(4, reader=b"other"), flags, 1)
    with pytest.raises(ValueError, match="0x07"):
        table([A]).apply(told(4), 7, 1)


def test_what_a_purge_keeps_is_of_one_part_and_of_all_readers() -> None:
    found = table([A, B])
    found.apply(told(0, C, reader=b"other"), record.LEASED, 9)
    assert found.runs_of(3) == [A[1:5], C[1:5]]
    assert found.runs_of(4) == [B[1:5]]
    assert found.runs_of(5) == []


def test_a_queue_goes_with_its_leases() -> None:
    found = table([A, B])
    assert found.delete(QUEUE) == [A, B]
    assert (found.delete(QUEUE), found.capture()) == ([], [])


def test_the_same_record_begins_the_same_lease() -> None:
    first, again = lease_of(table([A])), lease_of(table([A]))
    assert first.id == again.id
    assert len(first.id) == 16
    assert leases.lease_id(told(0, A), 101) != first.id


# ---- sections ------------------------------------------------------------------------------------


def section() -> bytes:
    found = table([A, B], [C])
    found.apply(told(4, A), record.COMMITTED, 1)
    (data,) = found.capture()
    return data


def test_a_section_comes_back_and_has_these_bytes() -> None:
    data = section()
    golden("checkpoint_lease", hexdump(data))
    restored = LeaseTable()
    lease = restored.restore(data)
    assert restored.capture() == [data]
    assert (lease.committed, lease.next, lease.bytes, lease.last_s) == (4, 15, 110, 1100)
    assert lease.slices[0].floor_s == 1000
    assert restored.runs_of(4) == [B[1:5]]


def test_a_section_is_made_anew_when_the_lease_has_changed() -> None:
    found = table([A])
    (before,) = found.capture()
    assert found.capture()[0] is before
    found.apply(told(4, B), record.LEASED, 1)
    (after,) = found.capture()
    assert after != before
    found.apply(told(4), record.COMMITTED, 1)
    assert found.capture() != [after]
    found.apply(told(10), record.RELEASED, 1)
    assert found.capture() == []


def test_a_lease_that_is_being_released_stays_so() -> None:
    found = table([A], [B])
    found.apply(told(4), record.RELEASED, 1)
    lease = LeaseTable().restore(found.capture()[0])
    assert lease.is_releasing
    assert (lease.committed, lease.next) == (4, 10)


def test_a_reader_has_one_lease_of_a_queue() -> None:
    restored = LeaseTable()
    restored.restore(section())
    with pytest.raises(ValueError, match="two leases"):
        restored.restore(section())


def test_a_section_that_is_cut_off_or_too_long_is_refused() -> None:
    data = section()
    for length in range(len(data)):
        with pytest.raises((ValueError, struct.error)):
            leases.decode(data[:length])
    with pytest.raises(ValueError, match="ends at ordinal"):
        leases.decode(data + b"\0")


@pytest.mark.parametrize("at", [27, 35, 55, 59])  # committed, next, a slice's ordinal, its number
def test_a_section_with_a_wrong_number_is_refused(at: int) -> None:
    spoilt = bytearray(section())
    spoilt[at] ^= 1
    with pytest.raises(ValueError, match=r"slice|ends at"):
        LeaseTable().restore(bytes(spoilt))
