"""StreamView: the same records from beside, whatever the owner does meanwhile, and no change."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from penstock.errors import CorruptionError, NotAStoreError
from penstock.storage.files.filesystem import File
from penstock.storage.pages.stream_meta import StreamHead
from penstock.storage.pages.stream_view import StreamView
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.page_queue_rig import PATH, alone, content, files, fill, logged, offsets


class Interrupted(FaultyFileSystem):
    """Runs `between` before the nth read, as an owner in another process might."""

    between: Callable[[], None] | None = None
    countdown = 0

    def strike_at(self, between: Callable[[], None], nth: int) -> None:
        self.between, self.countdown = between, nth

    def has_struck(self) -> bool:
        return self.between is None

    def on_read(self, path: str, content: bytearray, start: int, stop: int) -> bytes:
        if self.between is not None:
            self.countdown -= 1
            if self.countdown < 0:
                between, self.between = self.between, None
                between()
        return super().on_read(path, content, start, stop)


def test_a_view_sees_what_the_owner_published() -> None:
    fs = FaultyFileSystem()
    queue = logged(fs, 300)
    view = StreamView(fs, PATH)
    assert (view.stream_id, view.number, view.page_bytes) == (queue.stream_id, 7, 300)
    assert view.head() == StreamHead(0, 0, 0, 0)
    assert (view.first_offset(), view.pages(), view.read(0, 9, 99)) == (0, [], [])
    assert view.find(5) == 0
    for offset in range(30):
        queue.append(*content(offset), 1000 + offset)
    queue.write()
    assert view.read(0, 9, 999) == []
    for head in (1, 9, 10, 30):
        queue.publish_head(head)
        assert view.head().next_offset == head
        assert offsets(view.read(0, 99, 9999)) == list(range(head))
        assert view.find(1000 + head - 1) == head - 1
        assert view.find(1000 + head) == head
    assert offsets(view.read(28, 99, 9999)) == [28, 29]
    assert view.read(30, 9, 99) == view.read(99, 9, 99) == []


def test_a_view_changes_nothing() -> None:
    fs = FaultyFileSystem()
    queue = alone(fs, 300)
    fill(queue, 30)
    queue.close()
    for name in list(files(fs)):
        if name.endswith(".idx"):
            fs.unlink(f"{PATH}/{name}")
    before, operations = files(fs), fs.operations
    view = StreamView(fs, PATH)
    assert offsets(view.read(0, 99, 9999)) == list(range(30))
    assert [view.find(1000 + t) for t in range(31)] == list(range(31))
    assert len(view.pages()) > 3
    view.close()
    assert files(fs) == before
    assert fs.operations == operations
    assert sum(fs.handles.values()) == 0


def test_the_pages_of_a_view() -> None:
    fs = FaultyFileSystem()
    queue = logged(fs, 300)
    fill(queue, 30)
    queue.publish_head(30)
    pages = StreamView(fs, PATH).pages()
    assert [page.base for page in pages] == queue.pages.bases
    assert [page.is_sealed for page in pages] == [True] * (len(pages) - 1) + [False]
    assert sum(page.count for page in pages) == 30
    for page in pages:
        assert page.first_time_us == 1000 + page.base
        assert page.last_time_us == 1000 + page.base + page.count - 1
        assert fs.size(page.page_path) == page.bytes
        assert page.index_path == page.page_path.replace(".page", ".idx")


def test_the_head_ends_a_page_for_a_view() -> None:
    fs = FaultyFileSystem()
    queue = logged(fs, 300)
    for offset in range(30):
        queue.append(*content(offset), 1000 + offset)
    queue.write()
    for head in range(1, 30):
        queue.publish_head(head)
        view = StreamView(fs, PATH)
        pages = view.pages()
        assert sum(page.count for page in pages) == head
        assert pages[-1].base + pages[-1].count == head
        assert pages[-1].last_time_us == 1000 + head - 1
        assert view.head().last_time_us == 1000 + head - 1


def test_an_index_that_is_short_or_garbage_changes_nothing() -> None:
    fs = FaultyFileSystem()
    queue = alone(fs, 2000)
    fill(queue, 90)
    queue.close()
    rng = random.Random(1)
    for name in [name for name in files(fs) if name.endswith(".idx")]:
        for _ in range(30):
            spoilt = fs.fork()
            roll = rng.random()
            if roll < 0.3:
                spoilt.damage_cut(f"{PATH}/{name}", rng.randrange(fs.size(f"{PATH}/{name}")))
            elif roll < 0.6:
                spoilt.damage_zero_tail(f"{PATH}/{name}", rng.randrange(400))
            else:
                spoilt.damage(
                    f"{PATH}/{name}", lambda data: data[:64] + rng.randbytes(len(data) - 64)
                )
            view = StreamView(spoilt, PATH)
            for offset in rng.sample(range(90), 20):
                assert offsets(view.read(offset, 2, 9999))[0] == offset
                assert view.find(1000 + offset) == offset


def test_pages_that_go_while_they_are_read() -> None:
    """At every read of a call retention strikes, and the owner goes on."""
    for call in ("read", "find", "pages", "first"):
        for nth in range(40):
            fs = Interrupted()
            queue = logged(fs, 300)
            fill(queue, 40)
            view = StreamView(fs, PATH)
            if nth % 2:
                view.read(0, 5, 99)  # some of it is open already

            def strike(queue: Any = queue) -> None:
                queue.retain(max_records=6, now_us=0)
                fill(queue, 5)

            fs.strike_at(strike, nth)
            old_first = 0
            if call == "read":
                found = view.read(3, 10, 999)
                assert found
                assert found[0].offset in (3, queue.first_offset)
                for record in found:
                    assert (record.payload, record.meta) == content(record.offset)
                assert offsets(found) == list(range(found[0].offset, found[-1].offset + 1))
            elif call == "find":
                assert view.find(1012) in (12, queue.first_offset)
            elif call == "pages":
                assert view.pages()[0].base in (old_first, queue.first_offset)
            else:
                assert view.first_offset() in (old_first, queue.first_offset)
            if fs.has_struck():
                assert view.first_offset() == queue.first_offset > 0


def test_a_head_that_is_being_written_is_read_again() -> None:
    fs = Interrupted()
    queue = logged(fs, 300)
    fill(queue, 9)
    view = StreamView(fs, PATH)
    good = fs.read(f"{PATH}/writeMeta")
    write_in_place(fs, good[:20] + b"\xff" * 20 + good[40:])
    fs.strike_at(lambda: write_in_place(fs, good), 3)
    assert view.head().next_offset == 9
    assert fs.has_struck()


def write_in_place(fs: FaultyFileSystem, data: bytes) -> None:
    file: File = fs.open(f"{PATH}/writeMeta")
    file.pwrite(data, 0)
    file.close()


def test_a_head_that_stays_damaged_is_told() -> None:
    fs = FaultyFileSystem()
    queue = alone(fs)
    fill(queue, 9)
    queue.close()
    fs.damage_flip(f"{PATH}/writeMeta", 30)
    with pytest.raises(CorruptionError, match="writeMeta: at byte 0: its checksum"):
        StreamView(fs, PATH).read(0, 1, 1)
    fs.unlink(f"{PATH}/writeMeta")
    with pytest.raises(CorruptionError, match="it is missing, and there are pages"):
        StreamView(fs, PATH).head()
    alone(fs).close()  # made again
    assert StreamView(fs, PATH).head().next_offset == 9


def test_missing_pages_are_told() -> None:
    fs = FaultyFileSystem()
    queue = alone(fs, 300)
    fill(queue, 30)
    queue.close()
    for base in queue.pages.bases:
        spoilt = fs.fork()
        spoilt.unlink(f"{PATH}/{base:020}.page")
        view = StreamView(spoilt, PATH)
        with pytest.raises(CorruptionError) as caught:
            read_all(view, 30)
        assert caught.value.path.endswith(".page")


def read_all(view: StreamView, end: int) -> None:
    offset = 0
    while offset < end:
        offset = view.read(offset, 9, 999)[-1].offset + 1


def test_where_no_stream_is() -> None:
    fs = FaultyFileSystem()
    fs.mkdir("/empty")
    for path in ("/empty", "/nothing"):
        with pytest.raises(NotAStoreError, match="no allMeta"):
            StreamView(fs, path)
