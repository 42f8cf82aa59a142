"""PersistentQueue: offsets, times, pages, reading, retention, named readers, and both owners."""

import pytest

from penstock.clock import ManualClock
from penstock.storage.pages import stream_meta
from penstock.storage.pages.page import (
    FRAME_BYTES,
    PAGE_BYTES_MAX,
    PAGE_HEADER_BYTES,
    check_index,
    decode_blocks,
)
from penstock.storage.pages.stream_meta import Position
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.page_queue_rig import PATH, alone, content, files, fill, logged, offsets


def test_offsets_count_from_zero_and_records_come_back() -> None:
    queue = alone(FaultyFileSystem())
    assert (queue.first_offset, queue.next_offset, queue.head_offset) == (0, 0, 0)
    assert queue.read(0, 10, 1000) == []
    assert [queue.append(b"a", b"m", 5), queue.append(b"", b"", 5)] == [0, 1]
    assert queue.read(0, 10, 1000) == []  # nothing is below the head yet
    queue.force()
    found = queue.read(0, 10, 1000)
    assert [(r.offset, r.time_us, r.payload, r.meta) for r in found] == [
        (0, 5, b"a", b"m"),
        (1, 5, b"", b""),
    ]
    assert queue.read(2, 10, 1000) == []
    assert queue.read(99, 10, 1000) == []


def test_times_come_from_the_clock_and_never_go_back() -> None:
    clock = ManualClock(wall_ms=1_000_000)
    queue = alone(FaultyFileSystem(), clock=clock)
    queue.append(b"", b"")
    clock.advance(0.000_5)
    queue.append(b"", b"")
    queue.append(b"", b"", 5)
    queue.append_many([(b"", b""), (b"", b"")])
    times = [record.time_us for record in queue.read(0, 9, 999)]
    assert times == [1_000_000_000] + [1_000_000_500] * 4
    assert queue.last_time_us == 1_000_000_500


def test_append_many_is_forced_alone() -> None:
    fs = FaultyFileSystem()
    queue = alone(fs)
    assert queue.append_many([content(0), content(1)], 7) == 0
    assert queue.head_offset == 2
    assert alone(fs.crash("lost")).next_offset == 2


def test_a_record_that_does_not_fit_begins_the_next_page() -> None:
    fs = FaultyFileSystem()
    queue = alone(fs, 200)
    queue.append(b"x" * (200 - 64 - 24), b"", 1)  # fills it to the last byte
    queue.append(b"y", b"", 2)
    queue.append(b"z" * 500, b"", 3)  # larger than a page: one of its own
    queue.append(b"", b"", 4)
    queue.force()
    assert queue.pages.bases == [0, 1, 2, 3]
    sizes = [fs.size(f"{PATH}/{base:020}.page") for base in range(4)]
    assert sizes == [200, 64 + 25, 64 + 524, 64 + 24]
    assert queue.bytes == sum(sizes)
    assert [len(r.payload) for r in queue.read(0, 9, 9999)] == [112, 1, 500, 0]


def test_a_record_too_large_for_any_page_is_refused() -> None:
    queue = alone(FaultyFileSystem())

    room = PAGE_BYTES_MAX - PAGE_HEADER_BYTES - FRAME_BYTES
    queue.check(room, b"")
    huge = bytes(room + 1)  # zeros that nobody touches take no RAM
    with pytest.raises(ValueError, match="has 2147483648 bytes, at most 2147483647"):
        queue.check(room + 1, b"")
    with pytest.raises(ValueError, match="at most 2147483647"):
        queue.append(huge, b"")
    assert queue.next_offset == 0


@pytest.mark.parametrize("page_bytes", [127, 1 << 31])
def test_a_page_size_out_of_range_is_refused(page_bytes: int) -> None:
    with pytest.raises(ValueError, match="expected 128 to 2147483647"):
        alone(FaultyFileSystem(), page_bytes)


def test_reading_stops_at_both_limits_and_goes_on_over_pages() -> None:
    queue = alone(FaultyFileSystem(), 300)
    fill(queue, 30)
    assert len(queue.pages) > 3
    assert offsets(queue.read(4, 7, 10_000)) == list(range(4, 11))
    assert offsets(queue.read(4, 0, 10_000)) == []
    body = sum(len(part) for part in content(5))
    assert offsets(queue.read(5, 99, body)) == [5]
    assert offsets(queue.read(5, 99, 1)) == [5]
    found = queue.read(5, 99, 5 * 40)
    assert 1 < len(found) <= 8
    assert sum(len(r.payload) + len(r.meta) for r in found) <= 200
    assert offsets(queue.read(0, 99, 10_000)) == list(range(30))


def test_reading_in_order_asks_no_index() -> None:
    fs = FaultyFileSystem()
    queue = alone(fs, 5000)
    fill(queue, 90)
    queue.read(0, 10, 9999)
    before = fs.reads
    assert offsets(queue.read(10, 10, 9999))[0] == 10
    assert fs.reads - before == 1


def test_large_records_are_read_whole() -> None:
    queue = alone(FaultyFileSystem(), 10_000)
    sizes = [5, 4000, 4096, 9000, 3, 1_200_000, 0]
    for size in sizes:
        queue.append(bytes([size & 255]) * size, b"meta", 1)
    queue.force()
    assert [len(r.payload) for r in queue.read(0, 99, 1 << 30)] == sizes
    for offset, size in enumerate(sizes):
        assert [len(r.payload) for r in queue.read(offset, 1, 1)] == [size]


# ---- time --------------------------------------------------------------------------------------


def test_equal_times_on_both_sides_of_a_page_border_are_all_found() -> None:
    queue = alone(FaultyFileSystem(), 200)
    for _ in range(12):
        queue.append(b"x" * 20, b"", 1000)
    queue.force()
    assert len(queue.pages) > 2
    assert queue.find(1000) == 0
    assert queue.find(999) == 0
    assert queue.find(1001) == 12


def test_find_is_of_the_first_that_is_late_enough() -> None:
    queue = alone(FaultyFileSystem(), 300)
    times = [10, 10, 20, 20, 20, 30, 31, 31, 50, 50, 50, 50, 60]
    for time_us in times:
        queue.append(b"x" * 30, b"", time_us)
    queue.force()
    for time_us in range(5, 70):
        expected = [i for i, t in enumerate(times) if t >= time_us]
        assert queue.find(time_us) == (expected[0] if expected else len(times))


def test_find_sees_what_is_not_settled_and_an_empty_queue() -> None:
    queue = logged(FaultyFileSystem(), 300)
    queue.restore(Position(0, 0, 0, 0, 0))
    queue.finish_restore()
    assert queue.find(0) == 0
    queue.append(b"", b"", 10)
    queue.append(b"", b"", 20)
    assert queue.find(15) == 1
    assert queue.find(21) == 2


def test_alone_find_sees_what_is_forced_and_writes_nothing() -> None:
    fs = FaultyFileSystem()
    queue = alone(fs, 300)
    fill(queue, 5)
    before = files(fs)
    for n in range(20):
        queue.append(b"x" * 40, b"", 1005 + n)
    assert queue.find(1003) == 3
    assert queue.find(1005) == queue.find(1020) == queue.head_offset == 5
    assert files(fs) == before
    queue.force()
    assert queue.find(1020) == 20


def test_find_reads_little_of_a_long_queue() -> None:
    fs = FaultyFileSystem()
    queue = alone(fs, 4000)
    fill(queue, 3000, 5)
    assert len(queue.pages) > 20
    queue.find(2500)
    before = fs.reads
    assert queue.find(1000 + 1777) == 1777
    assert fs.reads - before < 40


# ---- pages and indexes -------------------------------------------------------------------------


def test_a_full_page_has_a_sealed_index_with_true_rows_and_crcs() -> None:
    fs = FaultyFileSystem()
    queue = alone(fs, 3 << 20)
    for size in (700_000, 900_000, 5, 1_200_000, 100):
        queue.append(b"p" * size, b"mm", size)
    queue.append(b"q" * 1_000_000, b"", 2_000_000)  # the next page
    queue.force()
    path = f"{PATH}/{0:020}"
    data = fs.read(path + ".idx")
    header = check_index(path, data)
    page = fs.read(path + ".page")
    assert (header.count, header.page_bytes) == (5, len(page))
    assert (header.first_time_us, header.last_time_us) == (700_000, 1_200_000)
    reader = queue.pages.reader(0)
    assert header.id == reader.id
    from zlib import crc32

    wanted = [
        crc32(page[k << 20 : (k + 1) << 20], reader.seed ^ k)
        for k in range(len(page) + 1048575 >> 20)
    ]
    assert decode_blocks(data, header) == wanted


def test_rows_reach_the_index_before_they_are_many() -> None:
    fs = FaultyFileSystem()
    queue = alone(fs, 1 << 20)
    for _ in range(3000):
        queue.append(b"", b"", 1)
        queue.write()
    assert fs.size(f"{PATH}/{0:020}.idx") >= 64 + 16 * 2744


def test_an_append_touches_no_file() -> None:
    fs = FaultyFileSystem()
    for queue in (alone(fs), logged(fs, path="/v")):
        before = fs.operations
        for _ in range(100):  # over many pages
            queue.append(b"x" * 100, b"", 1)
        assert fs.operations == before


def test_the_files_of_a_stream() -> None:
    fs = FaultyFileSystem()
    queue = alone(fs)
    fill(queue, 30)
    queue.set_reader("r", 3)
    queue.retain(max_records=2, now_us=0)
    queue.close()
    names = set(files(fs))
    base = queue.first_offset
    assert base > 0
    reader = stream_meta.reader_file("r")
    fixed = {"LOCK", "allMeta", "writeMeta", "readMeta", f"readers/{reader}"}
    assert names == fixed | {f"{base:020}.page", f"{base:020}.idx"}
    head = stream_meta.decode_head("h", files(fs)["writeMeta"])
    assert head == (30, base, fs.size(f"{PATH}/{base:020}.page"), 1029)
    assert stream_meta.decode_tail("t", files(fs)["readMeta"]) == base
