"""Spans of every kind of page: all records once, whatever the range; damage is never handed out."""

import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.clock import ManualClock
from penstock.errors import CorruptionError
from penstock.http import pages
from penstock.http.pages import (
    ByteCache,
    OpenPage,
    Page,
    SealedPage,
    Span,
    encode_chunk,
    open_page,
)
from penstock.storage.files.filesystem import OsFileSystem
from penstock.storage.pages.page import active_header, scan_frames
from penstock.storage.pages.persistent_queue import PersistentQueue
from tests.helpers.chunk_records import records
from tests.helpers.tiny_batches import adopt_page, rows_of

pytestmark = pytest.mark.real


class World:
    """A stream: one sealed page, and one that is being written."""

    def __init__(self, directory: Path) -> None:
        self.fs = OsFileSystem(0)
        self.path = str(directory / "stream")
        self.cache = ByteCache(1 << 20)
        self.sizes: list[int] = []
        rng = random.Random(1)
        with closing(self._queue(rng)) as queue:
            while queue.position().page_base == 0:
                self._append(queue, rng.randrange(200))
            self.second = queue.position().page_base
            for _ in range(50):
                self._append(queue, rng.randrange(200))
            queue.force()
            self.count = queue.next_offset
            self.end = queue.position().page_bytes
            self.stream_id = queue.stream_id

    def _queue(self, rng: random.Random) -> PersistentQueue:
        return PersistentQueue(
            self.fs, self.path, page_bytes=8192, clock=ManualClock(), rng=rng
        )  # fmt: skip

    def _append(self, queue: PersistentQueue, size: int) -> None:
        queue.append(self.body(len(self.sizes), size), b"m", 1000 + len(self.sizes))
        self.sizes.append(size)

    def body(self, offset: int, size: int) -> bytes:
        return (b"%d." % offset * 100)[:size]

    def file(self, base: int, ending: str) -> Path:
        return Path(self.path) / f"{base:020}.{ending}"

    def index_active(self) -> None:
        """The rows of the active page are written when it suits: now they are."""
        with closing(self.page(self.second)) as page:
            spans = list(page.spans(0, self.count - self.second))
        head = active_header(spans[0].page_id, self.second)
        self.file(self.second, "idx").write_bytes(head + b"".join(s.rows for s in spans))

    def page(self, base: int) -> Page:
        limit = self.end if base == self.second else None
        return open_page(self.fs, self.path, self.stream_id, base, limit, self.cache)

    def read(self, base: int, first: int, last: int) -> list[int]:
        """The offsets of the records; each is what was appended."""
        with closing(self.page(base)) as page:
            data = b"".join(chunk(page.spans(first - base, last - base)))
        found = records(data)
        for record in found:
            assert record.payload == self.body(record.offset, self.sizes[record.offset])
            assert (record.time_us, record.meta) == (1000 + record.offset, b"m")
        return [record.offset for record in found]


def chunk(spans: Iterator[Span]) -> Iterator[bytes]:
    for span in spans:
        yield from encode_chunk(span)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """With spans so short that a page has many."""
    monkeypatch.setattr(pages, "SPAN_BYTES", 512)
    return World(tmp_path)


def test_a_sealed_page_by_its_index(world: World) -> None:
    with closing(world.page(0)) as page:
        assert isinstance(page, SealedPage)
    for first in range(0, world.second, 7):
        for last in (first, first + 1, world.second):
            assert world.read(0, first, last) == list(range(first, last))


@pytest.mark.parametrize("is_indexed", [True, False])
def test_the_active_page_by_its_frames(world: World, is_indexed: bool) -> None:
    if is_indexed:
        world.index_active()
    with closing(world.page(world.second)) as page:
        assert isinstance(page, OpenPage)
        assert len(list(page.spans(0, world.count - world.second))) > 5
    for first in range(world.second, world.count):
        for last in (first, first + 1, world.count):
            assert world.read(world.second, first, last) == list(range(first, last))


def test_an_index_that_is_behind_saves_most_of_the_way(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who follows the head asks for what has no row yet."""
    world.index_active()
    index = world.file(world.second, "idx")
    rows = index.read_bytes()
    scanned: list[int] = []

    def counting(*args: Any) -> Any:
        scanned.append(args[3])
        return scan_frames(*args)

    monkeypatch.setattr(pages, "scan_frames", counting)
    index.write_bytes(rows[: 64 + 16 * 30 + 7])
    assert world.read(world.second, world.count - 1, world.count) == [world.count - 1]
    assert min(scanned) == 29
    # Two rows that no frame proves: the nearest one before them that may be tried.
    monkeypatch.setattr(pages, "BACKWARDS", (0, 5, 25))
    index.write_bytes(rows[: 64 + 16 * 20] + bytes(160))
    scanned.clear()
    assert world.read(world.second, world.count - 1, world.count) == [world.count - 1]
    assert min(scanned) == 4


@pytest.mark.parametrize("harm", ["gone", "cut", "rows", "wrong rows", "other"])
def test_an_index_that_is_lost_or_wrong_is_done_without(world: World, harm: str) -> None:
    world.index_active()
    for base, last in ((0, world.second), (world.second, world.count)):
        index = world.file(base, "idx")
        data = bytearray(index.read_bytes())
        if harm == "gone":
            index.unlink()
        elif harm == "cut":
            index.write_bytes(data[:70])
        elif harm == "rows":
            data[100] ^= 1
            index.write_bytes(data)
        elif harm == "wrong rows":
            rows = [data[at : at + 16] for at in range(64, len(data), 16)]
            index.write_bytes(data[:64] + b"".join(reversed(rows)))
        else:
            index.write_bytes(world.file(world.second - base, "idx").read_bytes())
        assert world.read(base, base, last) == list(range(base, last))
        assert world.read(base, last - 3, last) == list(range(last - 3, last))


def test_a_flipped_bit_anywhere_in_a_page_is_never_handed_out(world: World) -> None:
    """What comes before it may be; nothing of it or behind it in its block or frame."""
    rng = random.Random(2)
    for base, last, end in ((0, world.second, 8192), (world.second, world.count, world.end)):
        file = world.file(base, "page")
        good = file.read_bytes()
        for at in [0, 63, *rng.sample(range(64, min(end, len(good))), 60)]:
            bad = bytearray(good)
            bad[at] ^= 1 << rng.randrange(8)
            file.write_bytes(bad)
            world.cache = ByteCache(1 << 20)
            with pytest.raises(CorruptionError) as caught:
                world.read(base, base, last)
            assert caught.value.path == str(file)
            assert caught.value.position <= at
        file.write_bytes(good)
        assert len(world.read(base, base, last)) == last - base


def test_a_page_that_is_too_short_or_another(world: World) -> None:
    page, other = world.file(0, "page"), world.file(world.second, "page")
    good = page.read_bytes()
    page.write_bytes(good[:-1])
    with pytest.raises(CorruptionError):
        world.read(0, 0, world.second)
    page.write_bytes(other.read_bytes())
    with pytest.raises(CorruptionError, match="begins with offset"):
        world.read(0, 0, 1)
    page.unlink()
    with pytest.raises(FileNotFoundError):
        world.read(0, 0, 1)


def test_more_records_than_a_page_has(world: World) -> None:
    with pytest.raises(CorruptionError, match="records, expected"):
        world.read(0, 0, world.second + 1)
    with pytest.raises(CorruptionError, match="records, expected"):
        world.read(world.second, world.second, world.count + 1)


def test_a_page_stays_readable_when_it_is_deleted_behind_its_reader(world: World) -> None:
    with closing(world.page(0)) as page:
        spans = page.spans(0, world.second)
        world.file(0, "page").unlink()
        world.file(0, "idx").unlink()
        assert len(records(b"".join(chunk(spans)))) == world.second


def test_blocks_are_kept_by_what_they_are(world: World) -> None:
    world.read(0, 0, world.second)
    held = world.cache.held_bytes
    assert held > 8000
    world.read(0, 3, world.second)
    assert world.cache.held_bytes == held
    # The page's file may be damaged now: what was verified in memory is still right.
    world.file(0, "page").write_bytes(world.file(0, "page").read_bytes()[:64].ljust(8192, b"\0"))
    assert len(world.read(0, 0, world.second)) == world.second


# --- records that are larger than what is held of a page ---


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PersistentQueue]:
    """A small record, a large one, a small one; the page of the last is active."""
    monkeypatch.setattr(pages, "SPAN_BYTES", 1000)
    monkeypatch.setattr(pages, "PIECES_BYTES", 4000)
    with closing(
        PersistentQueue(
            OsFileSystem(0), str(tmp_path / "s"), page_bytes=20_000, clock=ManualClock(),
            rng=random.Random(1),
        )
    ) as queue:  # fmt: skip
        for body in (b"a", b"b" * 15_000, b"c"):
            queue.append(body, b"m", 5)
        queue.force()
        yield queue


def test_a_large_record_comes_in_pieces(large: PersistentQueue) -> None:
    with closing(
        open_page(
            large.fs, large.path, large.stream_id, 0, large.position().page_bytes, ByteCache(0)
        )
    ) as page:
        pieces = list(chunk(page.spans(0, 3)))
    assert max(len(piece) for piece in pieces) <= 1000 + 64 + 16
    found = records(b"".join(pieces))
    assert [record.payload for record in found] == [b"a", b"b" * 15_000, b"c"]


def test_a_large_record_that_changes_while_it_is_read_is_cut(large: PersistentQueue) -> None:
    file = Path(large.path) / f"{0:020}.page"
    good = file.read_bytes()
    with closing(
        open_page(large.fs, large.path, large.stream_id, 0, len(good), ByteCache(0))
    ) as page:
        pieces = chunk(page.spans(1, 2))
        next(pieces)  # its header: all of it has been verified
        file.write_bytes(good[:9000] + b"!" + good[9001:])
        with pytest.raises(CorruptionError, match="second read differs"):
            list(pieces)
    file.write_bytes(good[:9000] + b"!" + good[9001:])
    with closing(
        open_page(large.fs, large.path, large.stream_id, 0, len(good), ByteCache(0))
    ) as page, pytest.raises(CorruptionError, match="does not verify"):  # fmt: skip
        list(chunk(page.spans(1, 2)))


@pytest.mark.parametrize("is_sealed", [True, False])
@pytest.mark.parametrize("large", [0, 6 << 20])
def test_a_page_that_was_staged_has_one_time(
    world: World, tmp_path: Path, is_sealed: bool, large: int
) -> None:
    rows = [*rows_of(0, 40, 90), (b"L" * large, b"large"), *rows_of(41, 9)]
    path = adopt_page(world.fs, str(tmp_path / "stream"), rows, base=9000, time_us=123)
    if not is_sealed:
        Path(path).with_suffix(".idx").unlink()
    with closing(world.page(9000)) as page:
        assert isinstance(page, SealedPage if is_sealed else OpenPage)
        for first, last in ((0, 50), (3, 4), (39, 42), (45, 50)):
            found = records(b"".join(chunk(page.spans(first, last))))
            wanted = [(9000 + n, 123, *rows[n]) for n in range(first, last)]
            assert [(r.offset, r.time_us, r.payload, r.meta) for r in found] == wanted
