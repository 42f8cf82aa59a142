"""A PersistentQueue under a log: the head, nothing synced, recovery byte for byte."""

from collections.abc import Callable

import pytest

from penstock.errors import (
    CorruptionError,
)
from penstock.storage.pages import stream_meta
from penstock.storage.pages.page import check_index
from penstock.storage.pages.stream_meta import Position
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.page_queue_rig import PATH, content, files, fill, logged, offsets


def test_the_head_follows_what_is_settled() -> None:
    queue = logged(FaultyFileSystem(), 300)
    for offset in range(20):
        queue.append(*content(offset), 1000 + offset)
    assert queue.written_offset == 0
    queue.publish_head(7)
    assert queue.head_offset == 7
    assert offsets(queue.read(0, 99, 9999)) == list(range(7))
    queue.publish_head(3)
    assert queue.head_offset == 7
    head = stream_meta.decode_head("h", files(queue.fs)["writeMeta"])
    assert (head.next_offset, head.last_time_us) == (7, 1006)
    assert head.page_base == queue.pages.base_of(7)
    queue.publish_head(20)
    assert offsets(queue.read(5, 99, 9999)) == list(range(5, 20))


def test_times_by_the_index() -> None:
    """Of pages that are written, sealed, in RAM, or without an index."""
    fs = FaultyFileSystem()
    queue = logged(fs, 300)
    for offset in range(40):
        queue.append(*content(offset), 1000 + offset)
        assert [queue.indexed_time(o) for o in range(offset + 1)] == [*range(1000, 1001 + offset)]
    queue.publish_head(40)
    assert [queue.indexed_time(o) for o in range(40)] == [*range(1000, 1040)]
    first, second = queue.pages.bases[:2]
    queue.pages.forget(first)
    fs.unlink(f"{PATH}/{first:020}.idx")
    assert queue.indexed_time(second - 1) == 1000  # when its page began
    assert queue.indexed_time(second) == 1000 + second


def test_nothing_is_synced_in_a_vhost() -> None:
    fs = FaultyFileSystem(journal=True)
    queue = logged(fs, 300)
    journal = fs.start_journal()
    fill(queue, 40)
    queue.close()
    assert {entry.kind for entry in journal.entries} == {"create", "pwrite"}
    paths, directories = queue.take_dirty()
    assert directories == [PATH]
    assert {path.rpartition("/")[2] for path in paths} >= {f"{0:020}.page", f"{0:020}.idx"}
    assert queue.take_dirty() == ([], [])


def test_recovery_writes_the_same_bytes_at_the_same_places() -> None:
    fs = FaultyFileSystem()
    queue = logged(fs, 300)
    fill(queue, 13)
    position = queue.position()
    assert position.next_offset == 13
    for path in queue.take_dirty()[0]:
        file = fs.open(path)
        file.sync()
        file.close()
    fs.sync_dir(PATH)
    fs.sync_dir("/")
    fill(queue, 40)
    wanted = {name: data for name, data in files(fs).items() if name.endswith(".page")}
    crashed = fs.crash("lost")
    again = logged(crashed, 300, create=False)
    before = crashed.operations
    again.restore(position)
    for offset in range(13, 53):
        again.append(*content(offset), 1000 + offset)
    # No write: only the sync of what is believed.
    assert crashed.operations == before + 1
    again.finish_restore()
    found = {name: data for name, data in files(crashed).items() if name.endswith(".page")}
    assert found == wanted
    assert again.head_offset == 53
    assert offsets(again.read(0, 99, 9999)) == list(range(53))


def test_what_the_log_does_not_have_is_cut() -> None:
    fs = FaultyFileSystem()
    queue = logged(fs, 300)
    fill(queue, 40)
    again = logged(fs.crash("kept"), 300)
    for offset in range(11):
        again.append(*content(offset), 1000 + offset)
    again.finish_restore()
    assert (again.next_offset, again.head_offset) == (11, 11)
    base = again.pages.bases[-1]
    pages = [name for name in files(again.fs) if name.endswith(".page")]
    assert len(pages) == len(again.pages)
    assert again.fs.size(f"{PATH}/{base:020}.page") == again.position().page_bytes
    fill(again, 20)
    assert offsets(again.read(0, 99, 9999)) == list(range(31))


def test_a_page_that_retention_took_since_the_checkpoint_is_passed_over() -> None:
    fs = FaultyFileSystem()
    queue = logged(fs, 300)
    fill(queue, 5)
    position = queue.position()
    fill(queue, 40)
    queue.retain(max_records=5, now_us=0)
    first = queue.first_offset
    assert first > position.page_base
    again = logged(fs.crash("kept"), 300)
    again.restore(position)
    for offset in range(5, 45):
        again.append(*content(offset), 1000 + offset)
    again.finish_restore()
    assert (again.first_offset, again.next_offset) == (first, 45)
    assert offsets(again.read(0, 99, 9999)) == list(range(first, 45))
    # The log lost more than that: offsets that readers saw are not used again.
    events: list[str] = []
    third = logged(fs.crash("kept"), 300, on_event=lambda kind, text: events.append(kind))
    third.restore(position)
    third.finish_restore()
    assert events == ["lost"]
    assert (third.first_offset, third.next_offset) == (first, first)
    third.append(b"x", b"", 5000)
    third.publish_head(first + 1)
    assert offsets(third.read(0, 9, 999)) == [first]
    assert third.position().page_base == first


def test_restoring_finds_what_a_checkpoint_promised_to_be_missing() -> None:
    fs = FaultyFileSystem()
    queue = logged(fs, 300)
    fill(queue, 30)
    position = queue.position()
    page = f"{PATH}/{position.page_base:020}.page"
    damages: list[tuple[Callable[[FaultyFileSystem], None], str]] = [
        (lambda fs: fs.damage_cut(page, position.page_bytes - 1), "the page ends here"),
        (lambda fs: fs.unlink(page), "the page is missing"),
        (lambda fs: fs.damage_flip(page, 5), "header does not verify"),
        (lambda fs: fs.unlink(f"{PATH}/{0:020}.page"), "the page is missing"),
    ]
    for spoil, text in damages:
        spoilt = fs.crash("kept")
        spoil(spoilt)
        with pytest.raises(CorruptionError, match=text):
            logged(spoilt, 300).restore(position)
    with pytest.raises(CorruptionError, match="it is missing"):
        logged(FaultyFileSystem(), 300).restore(position)


def test_a_position_is_of_what_was_appended_written_or_not() -> None:
    fs = FaultyFileSystem()
    queue = logged(fs, 300)
    assert queue.position() == Position(0, 0, 0, 0, 0)
    before = fs.operations
    for offset in range(20):
        queue.append(*content(offset), 1000 + offset)
    position = queue.position()
    assert fs.operations == before
    queue.write()
    assert queue.position() == position
    assert fs.size(f"{PATH}/{position.page_base:020}.page") == position.page_bytes
    assert position[2:] == (20, 1019, 0)


def test_released_handles_are_opened_again() -> None:
    fs = FaultyFileSystem()
    queue = logged(fs, 300)
    for _ in range(10):
        fill(queue, 7)
        assert offsets(queue.read(0, 999, 1 << 20)) == list(range(queue.next_offset))
        assert queue.find(1003) == 3
        queue.release_handles()
        assert sum(fs.handles.values()) == 0
    queue.close()


def test_the_index_of_a_page_from_before_the_start_is_made_part_by_part() -> None:
    """A restart with a nearly full page of many records does not stand still at the next roll."""
    fs = FaultyFileSystem()
    queue = logged(fs, 1 << 20)
    fill(queue, 9000, 60)
    position = queue.position()
    path = f"{PATH}/{position.page_base:020}"
    fs.unlink(path + ".idx")
    again = logged(fs, 1 << 20)
    again.restore(position)
    again.finish_restore()
    reads = []
    while again.position().page_base == position.page_base:
        offset = again.next_offset
        again.append(*content(offset, 5000), 1000 + offset)
        before = fs.reads
        again.write()
        reads.append(fs.reads - before)
    for _ in range(20):
        again.append(b"", b"", 1 << 40)
        again.write()
        reads.append(fs.reads - before)
    assert max(reads[:-20]) <= 3
    header = check_index(path, fs.read(path + ".idx"))
    assert header.page_bytes == fs.size(path + ".page")
    assert fs.read(path + ".idx")[64:80] != bytes(16)


def test_a_full_page_from_before_the_start_is_sealed_part_by_part() -> None:
    """It rolls at the first record after a start: the next page goes on meanwhile."""
    fs = FaultyFileSystem()
    queue = logged(fs, 1 << 20)
    fill(queue, 9000, 60)
    position = queue.position()
    again = logged(fs, 1 << 20)
    again.restore(position)
    again.finish_restore()
    again.append(b"x" * 600_000, b"", 1 << 40)
    index = f"{PATH}/{0:020}.idx"
    writes = 0
    while fs.read(index)[10] == 0:
        before = fs.reads
        again.append(b"", b"", 1 << 40)
        again.write()
        assert fs.reads - before <= 2
        writes += 1
        again.publish_head(again.next_offset)
        assert again.read(again.next_offset - 1, 1, 1)
    assert writes >= 3
    assert check_index(index, fs.read(index)).count == 9000
    assert again.written_offset == again.next_offset
