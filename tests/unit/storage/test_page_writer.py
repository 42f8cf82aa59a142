"""The page that is written: what goes where and when, and pages of before a start."""

import errno

import pytest

from penstock.errors import CorruptionError
from penstock.storage.pages.page import PAGE_HEADER_BYTES, check_index, scan_frames
from penstock.storage.pages.page_writer import ROWS_KEPT, STEP_BYTES, PageWriter
from tests.helpers.faulty_filesystem import FaultyFileSystem

ID = b"s" * 16
PAGE = "/d/00000000000000000005.page"
INDEX = "/d/00000000000000000005.idx"


def made() -> FaultyFileSystem:
    fs = FaultyFileSystem()
    fs.mkdir("/d")
    return fs


def writer(fs: FaultyFileSystem) -> PageWriter:
    return PageWriter(fs, "/d", ID, 7, 5)


def fill(page: PageWriter, count: int, size: int = 10) -> None:
    for _ in range(count):
        page.append(page.count + 100, b"x" * size, b"m")


def sealed_bytes(count: int, size: int = 10) -> bytes:
    """The index that a page of these records must have."""
    fs = made()
    page = writer(fs)
    fill(page, count, size)
    page.write()
    page.seal()
    check_index(INDEX, fs.read(INDEX))
    return fs.read(INDEX)


def test_one_write_per_call_and_rows_by_the_hundred() -> None:
    fs = made()
    page = writer(fs)
    journal = fs.start_journal()
    for _ in range(ROWS_KEPT):
        fill(page, 1)
        page.write()
    kinds = [(entry.kind, entry.path) for entry in journal.entries]
    assert kinds.count(("pwrite", PAGE)) == ROWS_KEPT
    assert kinds.count(("pwrite", INDEX)) == 2  # header, rows
    page.write()
    assert len(journal.entries) == len(kinds)


@pytest.mark.parametrize("size", [10, 5000])
def test_sealing_is_the_same_however_it_was_written(size: int) -> None:
    count = 300
    wanted = sealed_bytes(count, size)
    fs = made()
    page = writer(fs)
    for n in range(count):
        fill(page, 1, size)
        if n % 7 == 0:
            page.write()
        if n % 50 == 0:
            page.flush_rows()
    page.write()
    page.seal()
    assert fs.read(INDEX) == wanted


@pytest.mark.parametrize("most", [0, 1, 100_000, 1 << 20])
def test_large_records_are_written_in_pieces_of_any_size(most: int) -> None:
    """Small ones before, between and after them come with them, in order."""
    fs = made()
    page, other = writer(fs), writer(made())
    for n in range(40):
        for one in (page, other):
            fill(one, 1, 10)
            fill(one, n % 3, 300_000)
        assert page.written_count <= page.count
        before = page.written
        page.write(most)
        assert page.written - before <= most + (1 << 20)
        assert page.base + page.written_count == scanned(fs, page)
    page.write()
    other.write()
    for one in (page, other):
        assert (one.written, one.written_count) == (one.position, one.count)
        one.seal()
    assert page.open_page().pread(page.position, 0) == other.open_page().pread(page.position, 0)
    check_index(INDEX, fs.read(INDEX))


def scanned(fs: FaultyFileSystem, page: PageWriter) -> int:
    """The offset after the last whole record of the page file."""
    data = fs.read(PAGE)[: page.written] if page.written else b""
    found = scan_frames(data[PAGE_HEADER_BYTES:], PAGE_HEADER_BYTES, page.seed, 0, 0, page.written)
    return page.base + len(found.rows)


def test_a_failed_write_of_a_piece_is_repeated() -> None:
    fs = made()
    page = writer(fs)
    fill(page, 1, 3 << 20)
    page.write(1 << 20)
    fs.fail(errno.ENOSPC, kinds=["pwrite"], nth=2)
    with pytest.raises(OSError, match=PAGE):
        page.write()
    fs.clear_faults()
    page.write()
    assert (page.written, page.written_count) == (page.position, 1)
    assert scanned(fs, page) == page.base + 1


@pytest.mark.parametrize("size", [10, 5000, 300_000])
@pytest.mark.parametrize("known", [1, 20, 39])
@pytest.mark.parametrize("is_index_lost", [False, True])
def test_a_resumed_page_gets_the_same_index(size: int, known: int, is_index_lost: bool) -> None:
    wanted = sealed_bytes(45, size)
    fs = made()
    page = writer(fs)
    fill(page, known, size)
    position = page.position
    fill(page, 40 - known, size)
    page.write()
    page.flush_rows()
    if is_index_lost:
        fs.unlink(INDEX)
    else:
        fs.damage(INDEX, lambda data: data[:64] + b"\xee" * (len(data) - 60))
    page = writer(fs)
    page.resume(position, known, 99 + known)
    assert page.extend(fs.size(PAGE)) == ""
    assert (page.count, page.last_time_us, page.first_time_us) == (40, 139, 100)
    fill(page, 3, size)
    page.write()
    fill(page, 2, size)
    page.write()
    page.seal()
    assert fs.read(INDEX) == wanted


def test_a_page_that_lost_its_end_says_where_it_ends() -> None:
    fs = made()
    page = writer(fs)
    fill(page, 9)
    page.write()
    size = fs.size(PAGE)
    for cut in range(65, size):
        shorter = fs.fork()
        shorter.damage_cut(PAGE, cut)
        found = writer(shorter)
        found.resume(64, 0, 0)
        fault = found.extend(cut)
        assert found.written == 64 + (cut - 64) // 35 * 35
        assert bool(fault) == (found.written != cut)


def test_damage_below_leaves_the_index_unsealed_and_its_rows_alone() -> None:
    fs = made()
    page = writer(fs)
    fill(page, 40)
    page.write()
    page.flush_rows()
    rows = fs.read(INDEX)
    fs.damage_flip(PAGE, 64 + 35 * 20 + 5)
    page = writer(fs)
    page.resume(64 + 35 * 40, 40, 139)
    fill(page, 2)
    page.write()
    page.seal()
    assert isinstance(page.damage, CorruptionError)
    assert (page.damage.path, page.damage.position) == (PAGE, 64 + 35 * 20)
    assert "the record of offset 25" in page.damage.reason
    assert fs.read(INDEX)[: len(rows)] == rows
    assert len(fs.read(INDEX)) == len(rows) + 32
    with pytest.raises(CorruptionError, match="not sealed"):
        check_index(INDEX, fs.read(INDEX))


def test_a_step_of_catching_up_is_small() -> None:
    fs = made()
    page = writer(fs)
    fill(page, 1000, 2000)
    page.write()
    position = page.position
    page = writer(fs)
    page.resume(position, 1000, 1099)
    steps = 0
    while not page.is_caught_up():
        page.write()
        steps += 1
    assert steps >= position // STEP_BYTES
    page.seal()
    assert fs.read(INDEX) == sealed_bytes(1000, 2000)


@pytest.mark.parametrize("what", ["whole", "payload", "meta", "front", "cut off"])
@pytest.mark.parametrize("before", [0, 2])
def test_a_large_frame_is_looked_at_in_steps(
    what: str, before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs = made()
    page = writer(fs)
    fill(page, before)
    start = page.position
    page.append(200, bytes(range(256)) * 4000, b"meta")
    end = page.position
    page.append(201, b"small", b"")
    page.write()
    count, position = page.count, page.position
    page.seal()
    sealed = fs.read(INDEX)
    fs.unlink(INDEX)
    places = {"payload": start + 300_000, "meta": end - 2, "front": start + 3}
    if what in places:
        fs.damage_flip(PAGE, places[what])
    longest = 0
    plain = FaultyFileSystem.on_read

    def on_read(
        fs: FaultyFileSystem, path: str, data: bytearray, start: int, stop: int
    ) -> bytes:  # fmt: skip
        nonlocal longest
        longest = max(longest, min(stop, len(data)) - start)
        return plain(fs, path, data, start, stop)

    monkeypatch.setattr(FaultyFileSystem, "on_read", on_read)
    page = writer(fs)
    page.resume(position, count, 201)
    page.write()
    if what == "cut off":
        fs.damage_cut(PAGE, end - 1000)
    while not page.is_caught_up():
        page.write()
    page.seal()
    if what == "whole":
        assert fs.read(INDEX) == sealed
        assert longest <= STEP_BYTES
    else:
        assert page.damage is not None
        assert page.damage.position == start
        assert f"the record of offset {5 + before}" in page.damage.reason


def test_a_wrong_count_is_damage() -> None:
    fs = made()
    page = writer(fs)
    fill(page, 10)
    page.write()
    found = writer(fs)
    found.resume(page.position, 11, 0)
    found.catch_up()
    assert found.damage is not None
    assert "10 records before it, expected 11" in found.damage.reason


@pytest.mark.parametrize("nth", range(1, 6))
@pytest.mark.parametrize("effect", [errno.ENOSPC, "short"])
def test_a_failed_write_is_made_again(nth: int, effect: int | str) -> None:
    fs = made()
    page = writer(fs)
    fill(page, 500)
    fs.fail(effect, kinds=["pwrite"], nth=nth)
    for _ in range(3):
        try:
            page.write()
            page.seal()
            break
        except OSError:
            continue
    assert fs.read(INDEX) == sealed_bytes(500)


def test_a_page_of_another_stream_is_not_resumed() -> None:
    fs = made()
    page = writer(fs)
    fill(page, 5)
    page.write()
    with pytest.raises(CorruptionError, match="another stream"):
        PageWriter(fs, "/d", b"o" * 16, 7, 5).resume(page.position, 5, 0)
    with pytest.raises(CorruptionError, match="the page ends here"):
        writer(fs).resume(page.position + 1, 5, 0)
    fs.unlink(PAGE)
    with pytest.raises(CorruptionError, match="the page is missing"):
        writer(fs).resume(page.position, 5, 0)


def test_an_index_of_an_earlier_life_leaves_nothing_behind() -> None:
    fs = made()
    old = writer(fs)
    fill(old, 500)
    old.write()
    old.seal()
    page = writer(fs)
    fill(page, 30)
    page.write()
    page.seal()
    assert fs.read(INDEX) == sealed_bytes(30)


@pytest.mark.parametrize("effect", ["flip", "short"])
def test_what_is_read_wrongly_once_while_a_page_is_caught_up_is_read_again(effect: str) -> None:
    count, size = 12, STEP_BYTES + 100
    fs = made()
    page = writer(fs)
    for n in range(count):
        fill(page, 1, size if n % 5 == 2 else 3000)
    page.write()
    known = fs.fork()
    nth = hits = 0
    while hits == nth:
        nth += 1
        fs = known.fork()
        fault = fs.fail(effect, kinds=["read"], path=PAGE, nth=nth)
        found = writer(fs)
        found.resume(page.written, count, page.last_time_us)
        found.catch_up()
        assert found.damage is None, f"read {nth}"
        found.seal()
        hits += fault.hits
        fs.clear_faults()
        header = check_index(INDEX, fs.read(INDEX))
        assert header.count == count
    assert nth > 10
