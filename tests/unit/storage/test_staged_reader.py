"""Records of a staged page from any frame on, whatever its header and its index say."""

import pytest

from penstock.errors import CorruptionError
from penstock.storage.pages.batches import StagedPage
from penstock.storage.pages.staging import StagedReader, query_path
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.tiny_batches import rows_of, stage
from tests.helpers.tiny_engine import PATH, make_vhost

ROWS = rows_of(0, 40, 60)


@pytest.fixture
def fs() -> FaultyFileSystem:
    found = FaultyFileSystem()
    make_vhost(found)
    return found


def staged(fs: FaultyFileSystem) -> tuple[str, StagedPage]:
    page = stage(fs, PATH, "q", 0, ROWS)
    return f"{query_path(PATH, 'q')}/{page.name}", page


def read(reader: StagedReader, frame: int, count: int = 100, size: int = 1 << 20) -> (
    list[tuple[int, bytes, bytes]]
):  # fmt: skip
    return [(r.offset, r.payload, r.meta) for r in reader.read(frame, count, size)]


WANTED = [(n, *row) for n, row in enumerate(ROWS)]


@pytest.mark.parametrize("has_index", [True, False])
@pytest.mark.parametrize("has_header", [True, False])
def test_all_records_from_any_frame_on(
    fs: FaultyFileSystem, has_index: bool, has_header: bool
) -> None:
    path, page = staged(fs)
    if not has_index:
        fs.unlink(path[:-4] + "idx")
    if not has_header:  # a crash tore it, in an adoption that is forgotten
        fs.damage_garbage(path, 0, 64)
    reader = StagedReader(fs, path, page)
    for first in (0, 39, 7, 8, 20):
        assert read(reader, first) == WANTED[first:]
        assert read(reader, first, 3) == WANTED[first : first + 3]
    reader.close()
    assert read(reader, 5, 1) == WANTED[5:6]


def test_a_slice_has_at_least_one_record_and_no_more_bytes_than_asked(
    fs: FaultyFileSystem,
) -> None:
    reader = StagedReader(fs, *staged(fs))
    assert read(reader, 4, size=1) == WANTED[4:5]
    frame = 0
    while frame < 40:
        found = read(reader, frame, size=300)
        assert 1 <= len(found) <= 6
        frame += len(found)
    assert frame == 40


def test_damage_is_named_and_what_is_before_it_is_given(fs: FaultyFileSystem) -> None:
    path, page = staged(fs)
    start = 64 + sum([24 + len(payload) + len(meta) for payload, meta in ROWS[:10]])
    fs.damage_flip(path, start + 30)
    reader = StagedReader(fs, path, page)
    assert read(reader, 0) == WANTED[:10]
    with pytest.raises(CorruptionError, match="the record of offset 10") as caught:
        read(reader, 10)
    assert (caught.value.path, caught.value.position) == (path, start)
    assert read(reader, 11) == WANTED[11:]
    with pytest.raises(CorruptionError, match="the staged page is missing"):
        StagedReader(fs, path + "x", page).read(0, 1, 1)
