"""Reading the log: torn tails are cut, damage to what was durable is named. Rules [8] and [11]."""

import errno
import random
from zlib import crc32

import pytest

from penstock.errors import CorruptionError, SyncFailedError, VersionError
from penstock.storage.files.durability import DISK, OS
from penstock.storage.log import log_file, record
from penstock.storage.log.log_file import FIRST_GROUP_OFFSET, GROUP_HEADER_BYTES, LogReader
from penstock.storage.log.record import Record, RecordError
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.golden import golden, hexdump
from tests.helpers.logs import KIB, VHOST, WAL, Rig, assert_prefix, survey


def test_golden_segment() -> None:
    rig = Rig(bytes_min=KIB, bytes_max=KIB)
    rig.group(10, 20)
    rig.group(5)
    rig.log.prepare_ahead()
    rig.settle()
    rig.idle()
    first, second = rig.fs.read(rig.path(1)), rig.fs.read(rig.path(2))
    golden("log_segment", hexdump(first))
    golden("log_segment_vouch", hexdump(second[:256]))


def test_an_empty_log_has_an_end() -> None:
    rig = Rig()
    end, found = survey(rig.fs)
    assert (end.segment, end.offset, end.last_lsn, end.claim) == (1, FIRST_GROUP_OFFSET, 0, 0)
    assert (end.cut_records, end.next_number, end.aside, found) == (0, 2, [], [])


def test_no_log_at_all() -> None:
    fs = FaultyFileSystem()
    end, found = survey(fs, (0, 0, 1))
    assert (end.segment, end.last_lsn, end.next_number, end.files, found) == (0, 0, 1, [], [])


def test_first_segment_zero_reads_nothing_and_lists_all() -> None:
    rig = Rig()
    rig.group(10)
    end, found = survey(rig.fs, (0, 0, 51))
    assert (end.segment, end.last_lsn, end.next_number, found) == (0, 50, 2, [])
    assert end.files == [(1, rig.path())]
    assert end.aside == [rig.path()]


def test_everything_written_is_read_over_many_segments() -> None:
    rig = Rig()
    rng = random.Random(5)
    for _ in range(60):
        rig.group(*[rng.randrange(600) for _ in range(rng.randrange(1, 4))])
    end, found = survey(rig.fs)
    assert end.last_lsn == rig.log.last_lsn
    assert end.segment > 3
    assert (end.segment, end.offset, end.last_lsn) == rig.log.position()
    assert_prefix(rig, end, found)
    assert end.aside == []
    reader = LogReader(rig.fs, WAL, VHOST)
    reader.survey(1, 128, 1)
    for r in found:
        again = reader.read_record(r.segment, r.offset)
        assert (again.lsn, again.data) == (r.lsn, r.data)
    some: list[Record] = []
    reader.records(1, 128, 1, 50, some.append)
    assert [r.lsn for r in some] == list(range(1, 51))
    with pytest.raises(CorruptionError, match="cannot be read any more"):
        reader.records(1, 128, 1, end.last_lsn + 1, some.append)
    reader.close()
    assert not reader.segments


def test_reading_from_a_cut() -> None:
    rig = Rig()
    cuts = []
    for _ in range(40):
        rig.group(300)
        cuts.append(rig.log.position())
    for segment, offset, lsn in cuts:
        end, found = survey(rig.fs, (segment, offset, lsn + 1))
        assert end.last_lsn == 40
        assert_prefix(rig, end, found, lsn + 1)


def test_a_cut_at_the_full_end_of_a_segment() -> None:
    rig = Rig(bytes_min=KIB, bytes_max=KIB)
    left = KIB - FIRST_GROUP_OFFSET - GROUP_HEADER_BYTES - record.RECORD_HEADER_BYTES
    rig.group(left)
    cut = rig.log.position()
    assert cut == (1, KIB, 1)
    assert survey(rig.fs, (1, KIB, 2))[0].last_lsn == 1
    rig.group(50)
    end, found = survey(rig.fs, (1, KIB, 2))
    assert (end.segment, end.last_lsn, len(found)) == (2, 2, 1)


def torn(rig: Rig, start: int, stop: int, kept: int) -> FaultyFileSystem:
    """A copy in which bytes from start + kept to stop of segment 1 are zeros."""
    fs = rig.fs.fork()
    fs.damage(
        rig.path(),
        lambda data: data[: start + kept] + bytes(stop - start - kept) + data[stop:],
    )
    return fs


def test_a_tail_torn_at_any_byte_is_cut() -> None:
    rig = Rig()
    rig.group(30, 40)
    _, start, lsn = rig.log.position()
    rig.put(20, OS)
    rig.put(90, OS)
    rig.log.flush()
    stop = rig.log.position()[1]
    size = GROUP_HEADER_BYTES + 2 * record.RECORD_HEADER_BYTES + 110
    for kept in range(size):
        end, found = survey(torn(rig, start, stop, kept))
        assert_prefix(rig, end, found)
        whole = max(0, kept - GROUP_HEADER_BYTES)
        assert end.last_lsn == lsn + (whole >= 40)
        assert end.cut_records == (0 if kept < GROUP_HEADER_BYTES else 2 - (whole >= 40))
        assert end.claim == (0 if kept < GROUP_HEADER_BYTES else lsn)
    end, _ = survey(torn(rig, start, stop, size))
    assert (end.last_lsn, end.cut_records) == (lsn + 2, 0)


def durable_bytes(rig: Rig) -> list[tuple[int, int]]:
    """(start, end) of each group of segment 1: header and records, without the padding."""
    data = rig.fs.read(rig.path())
    salt = int.from_bytes(data[32:40], "big")
    seed = log_file.segment_seed(VHOST, 1, salt)
    found = []
    offset = FIRST_GROUP_OFFSET
    while (group := log_file.decode_group_header(data, offset, seed)) and group.count:
        end = offset + GROUP_HEADER_BYTES + group.length
        found.append((offset, end))
        offset = log_file.aligned(end)
    return found


@pytest.mark.parametrize("behind", ["group", "idle header", "vouch", "next segment"])
def test_damage_at_any_byte_of_what_was_durable_is_named(behind: str) -> None:
    rig = Rig(bytes_min=KIB)
    if behind != "idle header":
        rig.log.prepare_ahead()
        rig.settle()
    rig.group(30, 40)
    rig.group(25)
    groups = durable_bytes(rig)
    if behind == "group":
        rig.group(10, mode=OS)
    elif behind == "next segment":
        rig.group(700)
        assert rig.log.position()[0] == 2
    end = rig.log.position()[1]
    is_idle = "PGRP" in rig.fs.read(rig.path())[end : end + 4].decode("latin-1")
    assert is_idle == (behind == "idle header")
    clean, _ = survey(rig.fs.fork())
    assert clean.last_lsn == rig.log.last_lsn
    assert clean.claim >= 3
    for start, stop in groups:
        for position in range(start, stop):
            fs = rig.fs.fork()
            fs.damage_flip(rig.path(), position, position % 8)
            with pytest.raises(CorruptionError, match="was on the disk") as caught:
                survey(fs)
            assert caught.value.path == rig.path()
            assert start <= caught.value.position <= position


def test_damage_to_what_was_just_confirmed_is_named() -> None:
    """Killed at once after a sync: groups that were written during that sync say nothing of it, the
    header that was written after it does."""
    for later in (0, 1, 3):
        rig = Rig()
        rig.put(30)
        rig.log.flush()
        for _ in range(later):
            rig.put(20, OS)
            rig.log.flush()
        rig.settle()
        assert rig.log.durable_lsn == 1
        for position in range(*durable_bytes(rig)[0]):
            fs = rig.fs.fork()
            fs.damage_flip(rig.path(), position)
            with pytest.raises(CorruptionError, match="was on the disk"):
                survey(fs)


def test_without_anything_behind_the_last_group_damage_passes_for_a_torn_tail() -> None:
    """The limit of what a log alone can tell: a power cut that came before the header that vouches
    for the last sync was on the disk, and damage to that very group."""
    rig = Rig()
    rig.group(30)
    end = rig.log.position()[1]
    rig.fs.damage(rig.path(), lambda data: data[:end] + bytes(len(data) - end))
    rig.fs.damage_flip(rig.path(), FIRST_GROUP_OFFSET + 40)
    found, _ = survey(rig.fs)
    assert (found.last_lsn, found.cut_records) == (0, 1)


def test_valid_groups_behind_a_hole_prove_nothing() -> None:
    rig = Rig()
    rig.group(30)
    start = rig.log.position()[1]
    rig.group(40, mode=OS)
    stop = rig.log.position()[1]
    rig.group(50, mode=OS)
    end, found = survey(torn(rig, start, stop, 0))
    assert (end.last_lsn, end.cut_records, end.claim) == (1, 1, 1)
    assert_prefix(rig, end, found)


def test_a_damaged_chain_is_named() -> None:
    rig = Rig(bytes_min=KIB, bytes_max=KIB)
    rig.group(500)
    rig.group(500)
    rig.group(100)
    for position in range(64, 64 + 40):
        fs = rig.fs.fork()
        fs.damage_flip(rig.path(2), position)
        with pytest.raises(CorruptionError, match="chain") as caught:
            survey(fs)
        assert (caught.value.path, caught.value.position) == (rig.path(2), 64)


def test_a_missing_segment_is_named() -> None:
    rig = Rig(bytes_min=KIB, bytes_max=KIB)
    for _ in range(3):
        rig.group(500)
    for number in (1, 2):
        fs = rig.fs.fork()
        fs.damage_delete(rig.path(number))
        with pytest.raises(CorruptionError, match="missing") as caught:
            survey(fs)
        assert (caught.value.path, caught.value.position) == (rig.path(number), 0)


def test_a_damaged_segment_header_is_named() -> None:
    rig = Rig(bytes_min=KIB, bytes_max=KIB)
    rig.group(500)
    rig.group(500)
    for number in (1, 2):
        for position in range(44):
            fs = rig.fs.fork()
            fs.damage_flip(rig.path(number), position, 3)
            with pytest.raises(CorruptionError) as caught:
                survey(fs)
            assert (caught.value.path, caught.value.position) == (rig.path(number), 0)


def test_segments_of_others_are_refused() -> None:
    rig = Rig(bytes_min=KIB, bytes_max=KIB)
    rig.group(500)
    rig.group(500)
    with pytest.raises(CorruptionError, match="vhost"):
        LogReader(rig.fs, WAL, VHOST + 1).survey(1, 128, 1)
    swapped = rig.fs.fork()
    swapped.damage_swap(rig.path(1), rig.path(2))
    with pytest.raises(CorruptionError, match="its name 1"):
        survey(swapped)
    newer = rig.fs.fork()
    header = bytearray(log_file.encode_segment_header(VHOST, 1, KIB, 5))
    header[5] = log_file.VERSION + 1
    seed = log_file.segment_seed(VHOST, 1, 5)
    header[40:44] = crc32(bytes(header[:40]), seed).to_bytes(4, "big")
    newer.damage(rig.path(1), lambda data: bytes(header) + data[64:])
    with pytest.raises(VersionError, match="expected version 1, found 2"):
        survey(newer)


def test_a_short_file_is_named() -> None:
    rig = Rig(bytes_min=KIB, bytes_max=KIB)
    rig.group(500)
    for size in (0, 50, 127, 128, 700, KIB - 1):
        fs = rig.fs.fork()
        fs.damage_cut(rig.path(), size)
        with pytest.raises(CorruptionError, match="file ends") as caught:
            survey(fs)
        assert (caught.value.path, caught.value.position) == (rig.path(), size)


@pytest.mark.parametrize("first", [(1, 64, 1), (1, 130, 1), (1, 1 << 30, 1)])
def test_a_first_position_that_cannot_be(first: tuple[int, int, int]) -> None:
    rig = Rig()
    with pytest.raises(CorruptionError, match="no place for a group"):
        survey(rig.fs, first)


def test_bytes_of_an_earlier_life_are_nothing() -> None:
    """A recycled segment is full of groups that were valid, of the same LSNs even."""
    rig = Rig(bytes_min=2 * KIB, bytes_max=2 * KIB)
    rig.log.prepare_ahead()
    for _ in range(30):
        rig.group(200)
        rig.log.release_before(rig.log.position()[0])
        rig.settle()
    number, offset, _ = rig.log.position()
    data = rig.fs.read(rig.path(number))
    assert b"PGRP" in data[offset:], "this segment was never used before"
    first = rig.fs.list(WAL)[0]
    start = int(first.removesuffix(".wal"))
    lsn = rig.log.last_lsn
    for cut in range(lsn):
        try:
            end, _ = survey(rig.fs, (start, 128, lsn - cut))
        except CorruptionError:
            continue  # not the LSN that this segment begins with
        if end.last_lsn == lsn:
            break
    assert (end.segment, end.offset, end.last_lsn) == rig.log.position()
    assert end.cut_records == 0


def test_a_body_that_quotes_a_log_is_not_a_log() -> None:
    other = Rig(seed=2)
    for _ in range(5):
        other.group(100)
    quoted = other.fs.read(other.path())[FIRST_GROUP_OFFSET : other.log.position()[1]]
    rig = Rig()
    pad = bytes(64 - GROUP_HEADER_BYTES - record.RECORD_HEADER_BYTES)
    rig.log.append(record.TOPOLOGY, 0, 0, pad + quoted, OS)
    rig.log.flush()
    fs = rig.fs.fork()
    fs.damage_flip(rig.path(), FIRST_GROUP_OFFSET + 40)
    end, _ = survey(fs)
    assert (end.last_lsn, end.cut_records) == (0, 1)


def test_what_lies_behind_the_end_that_recovery_found_is_cut() -> None:
    """[8] Here recovery cut for a missing body: the records behind are whole."""
    rig = Rig()
    rig.group(30, 40, 50)
    start = rig.log.position()[1]
    rig.put(30, OS)
    rig.put(31, OS)
    rig.log.flush()
    _, found = survey(rig.fs.fork())
    for last in (1, 2, 3, 4):
        fs = rig.fs.crash("killed")
        end, _ = survey(fs)
        assert end.last_lsn == 5
        if last == 3:
            end.offset = start
        else:
            end.offset = found[last].offset
        end.last_lsn = last
        second = Rig(fs, seed=9, prev=end)
        assert second.first == 2
        second.group(60)
        again, both = survey(fs)
        assert (again.segment, again.last_lsn, again.aside) == (2, last + 1, [])
        assert [r.data for r in both] == [rig.sent[n + 1] for n in range(last)] + [
            second.sent[last + 1]
        ]


def test_the_first_record_of_a_group_cut_for_its_body() -> None:
    rig = Rig()
    rig.group(30)
    rig.put(31, OS)
    rig.log.flush()
    fs = rig.fs.crash("killed")
    end, found = survey(fs)
    end.offset, end.last_lsn = found[1].offset, 1
    second = Rig(fs, seed=9, prev=end)
    second.group(60)
    assert survey(fs)[0].segment == 2


def test_segments_that_do_not_chain_are_set_aside() -> None:
    rig = Rig(bytes_min=KIB, bytes_max=KIB)
    rig.log.prepare_ahead()
    rig.group(500)
    rig.settle()
    end, _ = survey(rig.fs.fork())
    assert (end.segment, end.aside, end.next_number) == (1, [rig.path(2)], 3)
    fs = rig.fs.crash("kept")
    Rig(fs, seed=3, prev=end)  # crashes before it logs
    fs.open(f"{WAL}/0000000009.new", create=True).close()
    again, _ = survey(fs)
    assert (again.segment, again.last_lsn, again.next_number) == (1, 1, 10)
    assert again.aside == [rig.path(2), rig.path(3), f"{WAL}/0000000009.new"]


def test_an_unknown_type_is_refused_by_name() -> None:
    rig = Rig()
    rig.group(30)
    data = rig.fs.read(rig.path())
    seed = log_file.segment_seed(VHOST, 1, int.from_bytes(data[32:40], "big"))
    start = FIRST_GROUP_OFFSET + GROUP_HEADER_BYTES
    written = bytearray(data[start : start + 50])
    written[16] = 200
    written[4:8] = crc32(bytes(written[8:]), seed).to_bytes(4, "big")
    rig.fs.damage(rig.path(), lambda data: data[:start] + bytes(written) + data[start + 50 :])
    with pytest.raises(CorruptionError, match="number 200") as caught:
        survey(rig.fs)
    assert caught.value.position == start


def test_a_record_that_makes_no_sense_is_named() -> None:
    rig = Rig()
    rig.group(30, 40)

    def refuse(found: Record) -> None:
        if found.lsn == 2:
            raise RecordError("twelve bytes expected")

    reader = LogReader(rig.fs, WAL, VHOST)
    with pytest.raises(CorruptionError, match="twelve bytes") as caught:
        reader.survey(1, 128, 1, refuse)
    assert caught.value.position == FIRST_GROUP_OFFSET + GROUP_HEADER_BYTES + 50


def test_the_page_cache_is_not_trusted() -> None:
    """[8] After a failed sync the pages are clean, look well and are not on the disk."""
    seen = set()
    for seed in range(40):
        rig = Rig(seed=seed)
        rig.group(30)
        rig.put(600)
        rig.fs.fail(errno.EIO, kinds=["sync"])
        rig.log.flush()
        rig.settle()
        assert rig.log.failed is not None
        fs = rig.fs.crash("killed")
        end, _ = survey(fs)
        power, _ = survey(fs.crash("lost"))
        assert end.last_lsn == power.last_lsn
        seen.add(end.last_lsn)
    assert seen == {1, 2}, "a failed sync should have lost the record in some runs"


def test_recovery_makes_durable_what_it_reads() -> None:
    rig = Rig()
    rig.group(30, mode=OS)
    fs = rig.fs.crash("killed")
    assert survey(fs)[0].last_lsn == 1
    assert survey(fs.crash("lost"))[0].last_lsn == 1


def test_a_log_that_cannot_be_synced_is_not_read() -> None:
    rig = Rig()
    rig.group(30)
    rig.fs.fail(errno.EIO, kinds=["sync"])
    with pytest.raises(SyncFailedError, match=r"0000000001\.wal"):
        survey(rig.fs)
    assert not any(rig.fs.crash("killed").handles.values())


def test_a_tool_may_look_without_a_sync() -> None:
    rig = Rig()
    rig.group(30, mode=OS)
    before = rig.fs.operations
    reader = LogReader(rig.fs, WAL, VHOST, trust_cache=True)
    assert reader.survey(1, 128, 1).last_lsn == 1
    assert rig.fs.operations == before


@pytest.mark.large
def test_headers_behind_are_found_across_windows_of_a_large_segment() -> None:
    rng = random.Random(3)
    rig = Rig(bytes_min=8 << 20, bytes_max=8 << 20)
    starts = []
    while rig.log.position()[1] < (5 << 20):
        starts.append(rig.log.position()[1])
        rig.group(rng.randrange(1, 300 * KIB))
    rig.group(10)
    for start in starts[:8]:
        fs = rig.fs.fork()
        fs.damage_flip(rig.path(), start + 35)
        # All headers but the last two are gone as well.
        for other in starts[starts.index(start) + 1 : -1]:
            fs.damage_flip(rig.path(), other + 9)
        with pytest.raises(CorruptionError) as caught:
            survey(fs)
        assert caught.value.position == start + GROUP_HEADER_BYTES


@pytest.mark.parametrize("edge", range((1 << 20) - 192, (1 << 20) + 193, 32))
def test_a_header_at_the_edge_of_the_window(edge: int) -> None:
    """The magic, or the header, may begin in one window and end in the next."""
    rig = Rig(bytes_min=4 << 20, bytes_max=4 << 20)
    rig.group(10)
    start = rig.log.position()[1]
    rig.group(edge - GROUP_HEADER_BYTES - record.RECORD_HEADER_BYTES)
    rig.group(10)
    fs = rig.fs.fork()
    fs.damage_flip(rig.path(), start + 9)
    with pytest.raises(CorruptionError) as caught:
        survey(fs)
    assert caught.value.position == start


def test_memory_is_bounded_by_a_window() -> None:
    rig = Rig(bytes_min=4 << 20, bytes_max=4 << 20)
    for _ in range(12):
        rig.group(300 * KIB)
    reader = LogReader(rig.fs, WAL, VHOST)
    sizes: list[int] = []
    reader.survey(1, 128, 1, lambda _: sizes.append(len(reader.segments[1].window)))
    assert max(sizes) <= 1 << 20
    reader.close()


def test_the_claim_tells_up_to_where_a_body_may_not_be_missing() -> None:
    rig = Rig()
    rig.group(30, 40)
    rig.group(50, mode=OS)
    end, _ = survey(rig.fs)
    assert (end.last_lsn, end.claim) == (3, 2)
    assert DISK > OS


def test_file_names() -> None:
    assert log_file.segment_path("/wal", 12) == "/wal/0000000012.wal"
    assert log_file.segment_number("0000000012.wal") == 12
    assert log_file.segment_number("0000000012.new") == 12
    for other in ("12.wal", "0000000012.tmp", "000000001x.wal", "LOCK", "00000000012.wal"):
        assert log_file.segment_number(other) == 0
