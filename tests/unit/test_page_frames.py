"""Frames from pages and chunks: the same records, and never a damaged byte."""

import zlib
from pathlib import Path

import pytest

pytest.importorskip("numpy", reason="pages are read by columns with NumPy")

from penstock.errors import CorruptionError
from penstock.page_frames import Frames, PageMap, decode_chunk
from penstock.storage.files.filesystem import OsFileSystem
from penstock.storage.pages.page import active_header, decode_chunk_head, page_seed
from tests.helpers.tiny_batches import adopt_page, rows_of
from tests.helpers.tiny_pages import Record, TinyPage, page_of

SMALL = [Record(1000 + i, b"payload %d" % i * (i % 4), b"meta%d" % i) for i in range(50)]


def records_of(frames: Frames) -> list[tuple[int, bytes]]:
    """(time, payload) of each."""
    view = memoryview(frames.data)
    found = []
    for row in frames.rows:
        at = int(row["start"]) - frames.data_start + 24
        found.append((int(row["time"]), bytes(view[at : at + int(row["size"])])))
    return found


def expected(records: list[Record]) -> list[tuple[int, bytes]]:
    return [(record.time_us, record.payload) for record in records]


@pytest.mark.parametrize("is_sealed", [True, False])
@pytest.mark.parametrize("has_index", [True, False])
def test_a_page_gives_its_records(tmp_path: Path, is_sealed: bool, has_index: bool) -> None:
    path = page_of(SMALL, 700, is_sealed=is_sealed).write(tmp_path, has_index=has_index)
    page = PageMap(str(path), 700, len(SMALL))
    assert records_of(page.frames(700, 750)) == expected(SMALL)
    part = page.frames(710, 720)
    assert (part.first_offset, part.count) == (710, 10)
    assert records_of(part) == expected(SMALL[10:20])
    assert page.frames(720, 720).count == 0


def test_only_settled_records_of_an_active_page_are_seen(tmp_path: Path) -> None:
    tiny = page_of(SMALL, is_sealed=False)
    path = tiny.write(tmp_path)
    with path.open("ab") as file:
        file.write(b"half a frame that is being written")
    page = PageMap(str(path), 0, 30, tiny.position(30))
    assert records_of(page.frames(0, 30)) == expected(SMALL[:30])
    assert page.frames(0, 30).end == tiny.position(30)
    with pytest.raises(ValueError, match="offsets 0 to 31, expected within 0 to 30"):
        page.frames(0, 31)


@pytest.mark.parametrize("kept", [0, 1, 64, 65, 64 + 16 * 7, 64 + 16 * 7 + 5])
def test_an_index_that_is_short_is_completed_from_the_page(tmp_path: Path, kept: int) -> None:
    path = page_of(SMALL, is_sealed=False).write(tmp_path)
    index = path.with_suffix(".idx")
    index.write_bytes(index.read_bytes()[:kept])
    assert records_of(PageMap(str(path), 0, 50).frames(0, 50)) == expected(SMALL)


@pytest.mark.parametrize("is_sealed", [True, False])
@pytest.mark.parametrize(
    "at", [3, 10, 20, 30, 64, 64 + 16 * 20, 64 + 16 * 20 + 4, 64 + 16 * 49 + 8]
)
def test_a_damaged_index_is_found_out(tmp_path: Path, at: int, is_sealed: bool) -> None:
    path = page_of(SMALL, is_sealed=is_sealed).write(tmp_path)
    index = path.with_suffix(".idx")
    raw = bytearray(index.read_bytes())
    raw[at] ^= 0x40
    index.write_bytes(raw)
    assert records_of(PageMap(str(path), 0, 50).frames(0, 50)) == expected(SMALL)


@pytest.mark.parametrize("kept", [0, 64, 64 + 16 * 7 + 5, 64 + 16 * 31])
@pytest.mark.parametrize("damaged", [None, 5, 30])
def test_any_range_of_an_active_page_is_found(
    tmp_path: Path, kept: int, damaged: int | None
) -> None:
    """With an index that has some of the rows, one of which may be wrong."""
    path = page_of(SMALL, is_sealed=False).write(tmp_path)
    index = path.with_suffix(".idx")
    raw = bytearray(index.read_bytes())
    if damaged is not None:
        raw[64 + 16 * damaged] ^= 0x40
    index.write_bytes(raw[:kept])
    page = PageMap(str(path), 0, 50)
    for first, last in [(0, 3), (4, 6), (5, 50), (6, 7), (29, 32), (31, 33), (49, 50), (0, 50)]:
        found = page.frames(first, last)
        assert (found.first_offset, records_of(found)) == (first, expected(SMALL[first:last]))


@pytest.mark.parametrize("has_index", [True, False])
def test_damage_in_an_active_page_leaves_what_is_readable(tmp_path: Path, has_index: bool) -> None:
    """With an index all other records; without one those before it, for only their lengths say
    where the next one is."""
    tiny = page_of(SMALL, is_sealed=False)
    path = tiny.write(tmp_path, has_index=has_index)
    raw = bytearray(tiny.page)
    raw[tiny.position(33) + 25] ^= 1
    path.write_bytes(raw)
    page = PageMap(str(path), 0, 50)
    assert records_of(page.frames(0, 33)) == expected(SMALL[:33])
    for first, last in [(30, 40), (33, 34), (33, 34)]:
        with pytest.raises(CorruptionError, match="offset 33 is wrong"):
            page.frames(first, last)
    if has_index:
        assert records_of(page.frames(34, 50)) == expected(SMALL[34:])


def test_the_index_of_another_page_does_not_count(tmp_path: Path) -> None:
    path = page_of(SMALL, 5).write(tmp_path)
    other = page_of(list(reversed(SMALL)), 6)
    path.with_suffix(".idx").write_bytes(other.index)
    assert records_of(PageMap(str(path), 5, 50).frames(5, 55)) == expected(SMALL)


@pytest.mark.parametrize("is_sealed", [True, False])
def test_each_damaged_byte_of_a_page_is_found(tmp_path: Path, is_sealed: bool) -> None:
    tiny = page_of(SMALL[:6], is_sealed=is_sealed)
    path = tiny.write(tmp_path)
    for at in range(len(tiny.page)):
        raw = bytearray(tiny.page)
        raw[at] ^= 1
        path.write_bytes(raw)
        with pytest.raises(CorruptionError) as caught:
            PageMap(str(path), 0, 6).frames(0, 6)
        assert caught.value.path == str(path)
        assert caught.value.position <= at


def test_damage_is_named_by_its_record(tmp_path: Path) -> None:
    tiny = page_of(SMALL, 100)
    path = tiny.write(tmp_path)
    raw = bytearray(tiny.page)
    raw[tiny.position(33) + 25] ^= 1
    path.write_bytes(raw)
    with pytest.raises(CorruptionError, match="the CRC of the record at offset 133 is wrong") as e:
        PageMap(str(path), 100, 50).frames(100, 150)
    assert e.value.position == tiny.position(33)


def test_only_the_blocks_that_are_read_are_checked(tmp_path: Path) -> None:
    large = [Record(i, bytes([i]) * (300 << 10)) for i in range(12)]
    tiny = page_of(large)
    path = tiny.write(tmp_path)
    raw = bytearray(tiny.page)
    raw[tiny.position(11) + 1000] ^= 1
    path.write_bytes(raw)
    page = PageMap(str(path), 0, 12)
    assert records_of(page.frames(0, 3)) == expected(large[:3])
    with pytest.raises(CorruptionError, match="offset 11 is wrong"):
        page.frames(10, 12)


@pytest.mark.parametrize("cut", [1, 30, 2000])
def test_a_page_that_is_cut_is_damage(tmp_path: Path, cut: int) -> None:
    tiny = page_of([Record(i, b"x" * 500) for i in range(10)])
    path = tiny.write(tmp_path)
    path.write_bytes(tiny.page[:-cut])
    with pytest.raises(CorruptionError, match="the page ends"):
        PageMap(str(path), 0, 10).frames(0, 10)
    path.with_suffix(".idx").unlink()
    with pytest.raises(CorruptionError, match=r"the page ends|is wrong"):
        PageMap(str(path), 0, 10).frames(0, 10)


def test_a_page_of_another_base_or_no_page_is_refused(tmp_path: Path) -> None:
    path = page_of(SMALL, 5).write(tmp_path)
    with pytest.raises(CorruptionError, match="the page of offset 5, expected that of 6"):
        PageMap(str(path), 6, 50)
    path.write_bytes(b"")
    with pytest.raises(CorruptionError, match="the page's header is cut off"):
        PageMap(str(path), 5, 50)
    with pytest.raises(FileNotFoundError):
        PageMap(str(tmp_path / "9.page"), 9, 1)


def chunk_frames(raw: bytes) -> Frames:
    head = decode_chunk_head("there", raw[:64])
    return decode_chunk(head, raw[64:], "there")


def test_a_chunk_gives_the_same_records_as_its_page(tmp_path: Path) -> None:
    tiny = page_of(SMALL, 1000)
    frames = chunk_frames(tiny.chunk(1007, 1031))
    assert records_of(frames) == expected(SMALL[7:31])
    assert frames.first_offset == 1007
    page = PageMap(str(tiny.write(tmp_path)), 1000, 50).frames(1007, 1031)
    assert records_of(page) == records_of(frames)
    assert page.end == frames.end


def test_each_damaged_byte_of_a_chunk_is_found() -> None:
    raw = page_of(SMALL, 3).chunk(4, 7)
    unused = set(range(10, 12)) | set(range(16, 40)) | set(range(56, 64))
    for at in range(len(raw)):
        damaged = bytearray(raw)
        damaged[at] ^= 1
        if at in unused or 40 <= at < 44:  # numbers that say where it belongs, not what it holds
            continue
        with pytest.raises(CorruptionError, match="there"):
            chunk_frames(bytes(damaged))


def test_a_chunk_that_ends_early_is_damage() -> None:
    raw = page_of(SMALL, 3).chunk(4, 7)
    with pytest.raises(CorruptionError, match="expected"):
        chunk_frames(raw[:-1])
    with pytest.raises(CorruptionError, match="a chunk's header of 10 bytes"):
        decode_chunk_head("there", raw[:10])


def test_the_seed_is_that_of_the_page_id() -> None:
    tiny: TinyPage = page_of(SMALL)
    assert page_seed(tiny.page_id) != page_seed(tiny.page_id + 1)


# ---- pages that were staged ----------------------------------------------------------------------

ROWS = rows_of(0, 50, 100)
TIME_US = 77_000_000


def staged_page(tmp_path: Path) -> Path:
    """A page of kind 2, as a stream has it that adopted it."""
    directory = tmp_path / "stream"
    directory.mkdir()
    return Path(adopt_page(OsFileSystem(0), str(directory), ROWS, base=700, time_us=TIME_US))


@pytest.mark.parametrize("has_index", [True, False])
def test_records_of_a_staged_page_have_its_time(tmp_path: Path, has_index: bool) -> None:
    path = staged_page(tmp_path)
    if not has_index:
        path.with_suffix(".idx").unlink()
    page = PageMap(str(path), 700, 50)
    assert records_of(page.frames(700, 750)) == [(TIME_US, payload) for payload, _ in ROWS]
    assert records_of(page.frames(731, 733)) == [(TIME_US, payload) for payload, _ in ROWS[31:33]]


@pytest.mark.parametrize("kept", [0, 64, 64 + 16 * 20])
def test_rows_of_a_staged_page_that_are_there_are_taken(tmp_path: Path, kept: int) -> None:
    """An index that is not sealed says where records begin, as far as it agrees."""
    path = staged_page(tmp_path)
    index = path.with_suffix(".idx")
    page_id = PageMap(str(path), 700, 50).page_id
    rows = index.read_bytes()[64 : 64 + 16 * 50]
    index.write_bytes((active_header(page_id, 700) + rows)[:kept])
    page = PageMap(str(path), 700, 50)
    assert records_of(page.frames(700, 750)) == [(TIME_US, payload) for payload, _ in ROWS]


@pytest.mark.parametrize("has_index", [True, False])
def test_damage_of_a_staged_page_is_named(tmp_path: Path, has_index: bool) -> None:
    path = staged_page(tmp_path)
    if not has_index:
        path.with_suffix(".idx").unlink()
    data = bytearray(path.read_bytes())
    data[64 + 150] ^= 8
    path.write_bytes(data)
    with pytest.raises(CorruptionError, match="the CRC of the record at offset 701 is wrong"):
        PageMap(str(path), 700, 50).frames(700, 750)


def test_a_page_of_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    path = staged_page(tmp_path)
    data = bytearray(path.read_bytes())
    data[10] = 3
    data[60:64] = zlib.crc32(data[:60]).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(CorruptionError, match="version 1 kind 1 or 2, found b'PNSTPAGE' 1 3"):
        PageMap(str(path), 700, 50)
