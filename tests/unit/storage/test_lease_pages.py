"""The pages of a lease: a stream's files whose offsets are ordinals, made and thrown away."""

import errno

import pytest

from penstock.message import QueuedMessage
from penstock.storage.index.leases import Lease, LeasedSlice
from penstock.storage.pages.stream_view import StreamView
from penstock.storage.parts.lease_engine import LeasePages, pages_path
from tests.helpers.faulty_filesystem import FaultyFileSystem

PATH = "/v/leases/q.3.r"
PAGE_BYTES = 256


def lease(committed: int = 0, floor_s: int = 0) -> Lease:
    found = Lease(3, "r", b"0123456789abcdef")
    found.committed = committed
    found.next = committed + 100
    found.slices = [LeasedSlice(committed, 100, 0, 7, floor_s, b"")]
    return found


def message(i: int, time: int) -> QueuedMessage:
    return QueuedMessage(i, b"h%d" % i, None, 3, time)


@pytest.fixture
def fs() -> FaultyFileSystem:
    found = FaultyFileSystem(seed=1)
    found.mkdir("/v")
    return found


def filled(fs: FaultyFileSystem, first: int, count: int, floor_s: int = 0) -> LeasePages:
    pages = LeasePages(fs, PATH, lease(first, floor_s), PAGE_BYTES)
    for i in range(first, first + count):
        pages.append(message(i, i), b"m%d" % i)
    pages.publish()
    return pages


def seen(fs: FaultyFileSystem) -> list[tuple[int, bytes, bytes, int]]:
    found = StreamView(fs, PATH).read(0, 1000, 1 << 20)
    return [(r.offset, r.payload, r.meta, r.time_us) for r in found]


def test_offsets_are_ordinals_from_what_was_committed_on(fs: FaultyFileSystem) -> None:
    pages = filled(fs, 40, 12)
    assert seen(fs) == [
        (i, b"m%d" % i, b"h%d" % i, i * 1_000_000) for i in range(40, 52)
    ]  # fmt: skip
    assert (pages.next_ordinal, pages.last_time_us) == (52, 51_000_000)
    view = StreamView(fs, PATH)
    assert (view.first_offset(), view.head().next_offset) == (40, 52)
    assert (view.stream_id, view.number) == (b"0123456789abcdef", 3)
    assert len(view.pages()) > 1


def test_nothing_is_there_before_it_is_published(fs: FaultyFileSystem) -> None:
    pages = LeasePages(fs, PATH, lease(5), PAGE_BYTES)
    assert (seen(fs), StreamView(fs, PATH).head().next_offset) == ([], 5)
    pages.append(message(5, 1), b"m5")
    assert seen(fs) == []
    pages.publish()
    assert [offset for offset, _, _, _ in seen(fs)] == [5]


def test_times_never_decrease_also_before_the_first(fs: FaultyFileSystem) -> None:
    pages = LeasePages(fs, PATH, lease(0, floor_s=50), PAGE_BYTES)
    for i, time in enumerate((40, 60, 10)):
        pages.append(message(i, time), b"m")
    pages.publish()
    assert [time_us for _, _, _, time_us in seen(fs)] == [50_000_000, 60_000_000, 60_000_000]


def test_the_same_lease_makes_the_same_bytes(fs: FaultyFileSystem) -> None:
    filled(fs, 7, 9, floor_s=9).close()
    before = {name: fs.read(f"{PATH}/{name}") for name in fs.list(PATH)}
    filled(fs, 7, 9, floor_s=9).close()
    assert {name: fs.read(f"{PATH}/{name}") for name in fs.list(PATH)} == before


def test_pages_below_what_is_committed_go(fs: FaultyFileSystem) -> None:
    pages = filled(fs, 0, 30)
    bases = [page.base for page in StreamView(fs, PATH).pages()]
    assert pages.drop_below(bases[2] - 1) == bases[:1]
    assert seen(fs)[0][0] == bases[1]
    pages.unlink(bases[:1])
    assert pages.drop_below(bases[2]) == bases[1:2]
    pages.unlink(bases[1:2])
    assert [offset for offset, _, _, _ in seen(fs)] == list(range(bases[2], 30))
    assert pages.drop_below(30) == bases[2:-1], "the last page stays"
    pages.append(message(30, 31), b"m30")
    pages.publish()
    assert seen(fs)[-1][0] == 30


def test_a_reader_that_is_there_goes_on(fs: FaultyFileSystem) -> None:
    pages = filled(fs, 0, 20)
    view = StreamView(fs, PATH)
    view.read(0, 5, 1000)
    pages.unlink(pages.drop_below(12))
    pages.append(message(20, 21), b"m20")
    pages.publish()
    offsets = [record.offset for record in view.read(0, 100, 1 << 20)]
    assert offsets[0] <= 12
    assert offsets[-1] == 20


def test_nothing_is_synced(fs: FaultyFileSystem) -> None:
    journal = fs.start_journal()
    pages = filled(fs, 0, 30)
    pages.unlink(pages.drop_below(20))
    pages.delete()
    kinds = {entry.kind for entry in journal.entries}
    assert "pwrite" in kinds
    assert not kinds & {"sync", "sync_dir"}
    assert not fs.exists(PATH)


def test_an_error_leaves_something_that_can_be_thrown_away(fs: FaultyFileSystem) -> None:
    pages = filled(fs, 0, 3)
    pages.append(message(3, 4), b"m3")
    fs.fail(errno.EIO, kinds={"pwrite"})
    with pytest.raises(OSError, match=PATH):
        pages.publish()
    pages.delete()
    pages.delete()
    assert not fs.exists(PATH)


def test_files_that_are_not_used_are_closed(fs: FaultyFileSystem) -> None:
    pages = filled(fs, 0, 3)
    for i in range(3, 9):
        pages.rest()
        pages.rest()
        pages.append(message(i, i), b"m%d" % i)
        pages.publish()
    assert [offset for offset, _, _, _ in seen(fs)] == list(range(9))


def test_the_path_says_queue_number_and_reader() -> None:
    path = pages_path("/v", b"jobs", 3, "r")
    assert path.startswith("/v/leases/")
    assert path != pages_path("/v", b"jobs", 4, "r")
    assert path != pages_path("/v", b"jobs", 3, "s")
