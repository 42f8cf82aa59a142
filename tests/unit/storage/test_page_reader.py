"""Reading a page by hints that may be wrong: what is found is what was asked for, or an error."""

import random

import pytest

from penstock.errors import CorruptionError
from penstock.storage.pages.page import PageRecord
from penstock.storage.pages.page_reading import PageReader
from penstock.storage.pages.page_writer import PageWriter
from tests.helpers.faulty_filesystem import FaultyFileSystem

ID = b"s" * 16
PAGE = "/d/00000000000000000005.page"
INDEX = "/d/00000000000000000005.idx"
COUNT = 120


def stored() -> FaultyFileSystem:
    fs = FaultyFileSystem()
    fs.mkdir("/d")
    page = PageWriter(fs, "/d", ID, 7, 5)
    for n in range(COUNT):
        page.append(1000 + n // 2, b"%d" % n + b"x" * (5000 if n % 40 == 7 else n), b"m")
    page.write()
    page.seal()
    page.close()
    return fs


STORED = stored()
SIZE = STORED.size(PAGE)


def reader(fs: FaultyFileSystem) -> PageReader:
    return PageReader(fs, "/d", ID, 5)


def one(page: PageReader, rel: int, hint: int = 0) -> PageRecord:
    out: list[PageRecord] = []
    page.read(rel, 1, SIZE, hint, 1, out)
    assert len(out) == 1
    return out[0]


def spoil_rows(kind: str) -> FaultyFileSystem:
    fs = STORED.fork()
    rng = random.Random(kind)
    if kind == "missing":
        fs.unlink(INDEX)
    elif kind == "shifted":  # every row leads to a good frame, of the next record
        fs.damage(INDEX, lambda data: data[:64] + data[80:])
    elif kind == "zeros":
        fs.damage(INDEX, lambda data: data[:64] + bytes(len(data) - 64))
    elif kind == "noise":
        fs.damage(INDEX, lambda data: data[:64] + rng.randbytes(len(data) - 64))
    elif kind == "short":
        fs.damage_cut(INDEX, 64 + 16 * 50)
    return fs


@pytest.mark.parametrize("kind", ["good", "missing", "shifted", "zeros", "noise", "short"])
def test_a_row_is_a_hint_and_no_more(kind: str) -> None:
    page = reader(spoil_rows(kind))
    for rel in range(COUNT):
        found = one(page, rel)
        assert (found.offset, found.time_us) == (5 + rel, 1000 + rel // 2)
        assert found.payload.startswith(b"%dx" % rel if rel else b"0")
        assert page.time(rel, SIZE) == 1000 + rel // 2
    for time_us in range(998, 1000 + COUNT // 2 + 2):
        wanted = min(max(0, (time_us - 1000) * 2), COUNT)
        assert page.find(time_us, COUNT, SIZE) == wanted


@pytest.mark.parametrize("hint", [1, 63, 64, 65, 500, SIZE - 1, SIZE, SIZE + 9])
def test_a_wrong_place_is_no_harm(hint: int) -> None:
    assert one(reader(STORED.fork()), 30, hint).offset == 35


def test_a_bad_frame_is_named_and_those_around_it_are_read() -> None:
    starts = [reader(STORED.fork()).row(rel)[0] for rel in range(COUNT)]
    for rel in (0, 1, 7, 60, COUNT - 1):
        for at in (0, 5, 9, 20, 24):
            fs = STORED.fork()
            fs.damage_flip(PAGE, starts[rel] + at, 6)
            for is_index_there in (True, False):
                if not is_index_there:
                    fs.unlink(INDEX)
                page = reader(fs)
                with pytest.raises(CorruptionError) as caught:
                    one(page, rel)
                assert (caught.value.path, caught.value.position) == (PAGE, starts[rel])
                assert f"offset {5 + rel}:" in caught.value.reason
                out: list[PageRecord] = []
                page.read(max(rel - 3, 0), 9, SIZE, 0, 1 << 20, out) if rel else None
                assert [r.offset - 5 for r in out] == list(range(max(rel - 3, 0), rel))
                if is_index_there and rel + 1 < COUNT:
                    assert one(page, rel + 1).offset == 6 + rel


def test_a_page_that_is_cut_is_told() -> None:
    fs = STORED.fork()
    fs.damage_cut(PAGE, SIZE - 10)
    page = reader(fs)
    with pytest.raises(CorruptionError, match="offset 124"):
        one(page, COUNT - 1)
    assert one(page, COUNT - 2).offset == 123


def test_a_page_of_another_base_or_stream_is_refused() -> None:
    fs = STORED.fork()
    with pytest.raises(CorruptionError, match="another stream"):
        PageReader(fs, "/d", b"o" * 16, 5).open()
    fs.rename(PAGE, PAGE.replace("5.page", "6.page"))
    with pytest.raises(CorruptionError, match="begins with offset 5, not 6"):
        PageReader(fs, "/d", ID, 6).open()
    with pytest.raises(FileNotFoundError):
        reader(fs).open()


def test_few_bytes_are_read_for_a_record() -> None:
    fs = STORED.fork()
    page = reader(fs)
    one(page, 3)
    before = fs.reads
    one(page, 60)
    assert fs.reads - before == 2  # its row, its frame
