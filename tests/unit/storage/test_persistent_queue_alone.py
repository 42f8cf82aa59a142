"""A PersistentQueue that stands alone: forcing, starting again, damage, retention, readers."""

import errno
import random

import pytest

from penstock.errors import (
    CorruptionError,
    LockedError,
    NetworkFileSystemError,
    NotAStoreError,
    StoppedError,
    SyncFailedError,
)
from penstock.storage.files.filesystem import OsFileSystem
from penstock.storage.pages import stream_meta
from penstock.storage.pages.stream_meta import ReaderOffset
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.page_queue_rig import PATH, alone, content, fill, offsets


def test_what_was_forced_is_there_after_a_stop_and_after_a_power_cut() -> None:
    fs = FaultyFileSystem()
    queue = alone(fs)
    fill(queue, 25)
    queue.append(b"not forced", b"")
    again = alone(fs.crash("lost"))
    assert again.next_offset == again.head_offset == 25
    queue.close()
    queue.close()
    again = alone(fs)
    assert offsets(again.read(0, 99, 9999)) == list(range(26))
    fill(again, 10)
    assert again.next_offset == 36


def test_a_second_owner_is_kept_out() -> None:
    fs = FaultyFileSystem()
    queue = alone(fs)
    with pytest.raises(LockedError):
        alone(fs)
    queue.close()
    alone(fs).close()


def test_the_page_size_of_the_files_wins_and_is_told() -> None:
    fs = FaultyFileSystem()
    alone(fs, 512).close()
    events: list[tuple[str, str]] = []
    queue = alone(fs, 1024, on_event=lambda kind, text: events.append((kind, text)))
    assert queue.page_bytes == 512
    assert events == [("page_bytes", "/q: pages have 512 bytes, not 1024")]


def test_what_is_no_queue_is_left_alone() -> None:
    fs = FaultyFileSystem()
    fs.mkdir("/other")
    fs.open("/other/file", create=True).close()
    with pytest.raises(NotAStoreError, match="not a stream"):
        alone(fs, path="/other")
    with pytest.raises(NotAStoreError, match="it is a file"):
        alone(fs, path="/other/file")
    with pytest.raises(CorruptionError, match="it is missing"):
        alone(fs, path="/other", create=False)
    fs.kind_name = "nfs"
    with pytest.raises(NetworkFileSystemError):
        alone(fs)
    fs.kind_name = "ext4"
    alone(fs)  # no lock was left behind


def test_a_queue_without_its_allmeta_is_refused() -> None:
    fs = FaultyFileSystem()
    queue = alone(fs)
    fill(queue, 3)
    queue.close()
    fs.unlink(f"{PATH}/allMeta")
    with pytest.raises(CorruptionError, match="the directory has pages"):
        alone(fs)


def test_a_torn_tail_is_cut_and_told() -> None:
    fs = FaultyFileSystem()
    queue = alone(fs, 5000)
    fill(queue, 5)
    queue.append(b"torn" * 50, b"", 2000)
    queue.write()
    crashed = fs.crash("torn", cut=100, variant="prefix")
    events: list[tuple[str, str]] = []
    again = alone(crashed, 5000, on_event=lambda kind, text: events.append((kind, text)))
    assert again.next_offset == 5
    assert [kind for kind, _ in events] == ["cut"]
    assert "100 bytes cut at byte" in events[0][1]
    fill(again, 3)
    assert offsets(again.read(0, 99, 9999)) == list(range(8))


def test_a_page_behind_proves_that_the_one_before_was_whole() -> None:
    """What is missing there is damage, not a torn tail; what is behind stays."""
    fs = FaultyFileSystem()
    queue = alone(fs, 300)
    fill(queue, 30)
    first, second = queue.pages.bases[:2]
    queue.close()
    for is_head_lost in (False, True):
        spoilt = fs.fork()
        spoilt.damage_cut(f"{PATH}/{first:020}.page", 200)
        if is_head_lost:
            spoilt.unlink(f"{PATH}/writeMeta")
        again = alone(spoilt, 300)
        assert again.next_offset == 30
        assert offsets(again.read(second, 99, 9999)) == list(range(second, 30))
        assert offsets(again.read(0, 99, 9999)) == [0, 1]
        with pytest.raises(CorruptionError, match="offset 2:"):
            again.read(2, 99, 9999)


@pytest.mark.parametrize("is_zeros", [False, True])
def test_a_page_that_has_no_record_yet_goes(is_zeros: bool) -> None:
    fs = FaultyFileSystem()
    queue = alone(fs, 300)
    fill(queue, 20)
    last = queue.pages.bases[-1]
    queue.close()
    fs.damage_cut(f"{PATH}/{last:020}.page", 64)  # its header only
    if is_zeros:
        fs.damage_zero_tail(f"{PATH}/{last:020}.page", 64)
    fs.unlink(f"{PATH}/writeMeta")
    events: list[str] = []
    again = alone(fs, 300, on_event=lambda kind, text: events.append(kind))
    assert events == ["cut", "healed"]
    assert again.next_offset == last
    index = fs.read(f"{PATH}/{again.pages.bases[-1]:020}.idx")
    assert index[10] == 0  # of the page that was full and is gone on with: not sealed any more
    fill(again, 20)
    assert offsets(again.read(0, 99, 9999)) == list(range(last + 20))


def test_a_lost_head_and_a_damaged_last_header_are_too_much() -> None:
    fs = FaultyFileSystem()
    queue = alone(fs, 300)
    fill(queue, 20)
    last = queue.pages.bases[-1]
    queue.close()
    fs.unlink(f"{PATH}/writeMeta")
    fs.damage_flip(f"{PATH}/{last:020}.page", 3)
    with pytest.raises(CorruptionError, match="header does not verify"):
        alone(fs, 300)
    assert fs.exists(f"{PATH}/{last:020}.page")


def test_damage_below_the_head_is_no_torn_tail() -> None:
    fs = FaultyFileSystem()
    queue = alone(fs, 5000)
    fill(queue, 9)
    start = queue.pages.reader(0).row(8)[0]
    queue.close()
    fs.damage_flip(f"{PATH}/{0:020}.page", start + 30)
    again = alone(fs, 5000)
    assert again.next_offset == 9  # not cut
    assert offsets(again.read(0, 99, 9999)) == list(range(8))
    with pytest.raises(CorruptionError, match="the record of offset 8: the frame does not") as e:
        again.read(8, 1, 1)
    assert (e.value.path, e.value.position) == (f"{PATH}/{0:020}.page", start)
    fill(again, 3)
    assert offsets(again.read(9, 99, 9999)) == [9, 10, 11]


def test_a_damaged_page_is_told_once_and_rolled_without_a_sealed_index() -> None:
    fs = FaultyFileSystem()
    queue = alone(fs, 1000)
    fill(queue, 9)
    start = queue.pages.reader(0).row(4)[0]
    queue.close()
    fs.damage_flip(f"{PATH}/{0:020}.page", start)
    events: list[str] = []
    again = alone(fs, 1000, on_event=lambda kind, text: events.append(kind))
    fill(again, 60)
    assert events == ["corruption"]
    index = fs.read(f"{PATH}/{0:020}.idx")
    assert index[10] == 0  # not sealed
    readable = [o for o in range(69) if o != 4 and again.read(o, 1, 1)[0].offset == o]
    assert len(readable) == 68
    with pytest.raises(CorruptionError):
        again.read(4, 1, 1)


@pytest.mark.parametrize("ending", ["page", "idx"])
@pytest.mark.parametrize("which", ["first", "last"])
def test_a_missing_file(ending: str, which: str) -> None:
    fs = FaultyFileSystem()
    queue = alone(fs, 300)
    fill(queue, 20)
    base = queue.pages.bases[0 if which == "first" else -1]
    end = queue.pages.bases[1]
    queue.close()
    fs.unlink(f"{PATH}/{base:020}.{ending}")
    if ending == "idx":
        again = alone(fs, 300)
        assert offsets(again.read(0, 99, 9999)) == list(range(20))
        assert fs.exists(f"{PATH}/{base:020}.idx")
        return
    if which == "last":
        with pytest.raises(CorruptionError, match="the page is missing"):
            alone(fs, 300)
        return
    again = alone(fs, 300)
    with pytest.raises(CorruptionError, match="the page is missing"):
        again.read(0, 9, 999)
    assert offsets(again.read(end, 99, 9999)) == list(range(end, 20))
    assert again.retain(max_records=5, now_us=0) > 0  # damage is no reason to keep it


def test_a_lost_writemeta_is_made_again() -> None:
    for spoil in ("unlink", "flip"):
        fs = FaultyFileSystem()
        queue = alone(fs, 300)
        fill(queue, 20)
        queue.close()
        if spoil == "unlink":
            fs.unlink(f"{PATH}/writeMeta")
        else:
            fs.damage_flip(f"{PATH}/writeMeta", 20)
        events: list[str] = []
        again = alone(fs, 300, on_event=lambda kind, text: events.append(kind))  # noqa: B023
        assert events == ["healed"]
        assert offsets(again.read(0, 99, 9999)) == list(range(20))
        again.close()
        assert stream_meta.decode_head("h", fs.read(f"{PATH}/writeMeta")).next_offset == 20


def test_a_failed_sync_stops_the_queue() -> None:
    fs = FaultyFileSystem()
    queue = alone(fs)
    fill(queue, 3)
    queue.append(b"x", b"")
    fs.fail(errno.EIO, kinds=["sync"])
    with pytest.raises(SyncFailedError):
        queue.force()
    for call in (queue.force, queue.write, lambda: queue.append(b"", b"")):
        with pytest.raises(StoppedError):
            call()
    with pytest.raises(StoppedError):
        queue.read(0, 1, 1)
    with pytest.raises(StoppedError):
        queue.retain(max_records=1, now_us=0)
    queue.close()
    again = alone(fs)
    assert again.next_offset >= 3


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("page_bytes", "nth"), [(5000, 1), (300, 2)])
def test_after_a_failed_sync_the_cache_is_not_believed(
    seed: int, page_bytes: int, nth: int
) -> None:
    """It shows what is on no disk: who starts again sees only what a power cut would leave. In the
    page of the head, and in one that was begun behind it."""
    fs = FaultyFileSystem(seed=seed)
    queue = alone(fs, page_bytes)
    fill(queue, 3)
    for offset in range(3, 40):
        queue.append(*content(offset), 1000 + offset)
    fs.fail(errno.EIO, kinds=["sync"], path=".page", nth=nth)
    with pytest.raises(SyncFailedError):
        queue.force()
    queue.close()
    again = alone(fs, page_bytes)
    assert again.next_offset >= 3
    found = again.read(0, 99, 9999)
    third = alone(fs.crash("lost"), page_bytes)
    assert offsets(third.read(0, 99, 9999)) == offsets(found)


def test_names_are_durable_before_a_start_deletes_by_them() -> None:
    fs = FaultyFileSystem()
    queue = alone(fs, 300)
    fill(queue, 30)
    plan = queue.plan_retain(max_records=3, now_us=0)
    assert plan is not None
    plan.run(unlink=False)
    crashed = fs.crash("killed")
    journal = crashed.start_journal()
    alone(crashed, 300)
    kinds = [entry.kind for entry in journal.entries if entry.path.startswith(PATH)]
    assert kinds.index("sync_dir") < kinds.index("unlink")


@pytest.mark.parametrize("effect", [errno.ENOSPC, errno.EIO, "short"])
def test_a_failed_write_is_tried_again(effect: int | str) -> None:
    fs = FaultyFileSystem()
    queue = alone(fs, 300)
    fill(queue, 5)
    for offset in range(5, 30):
        queue.append(*content(offset), 1000 + offset)
    fs.fail(effect, kinds=["pwrite"], times=2)
    for _ in range(2):
        with pytest.raises(OSError, match="Errno"):
            queue.force()
    assert queue.head_offset == 5
    assert queue.written_offset <= 30
    queue.force()
    assert queue.head_offset == 30
    assert offsets(alone(fs.crash("lost"), 300).read(0, 99, 9999)) == list(range(30))


# ---- retention, readers ------------------------------------------------------------------------


def test_a_reader_below_the_first_offset_is_moved_to_it() -> None:
    queue = alone(FaultyFileSystem(), 300)
    fill(queue, 30)
    gone = queue.retain(max_records=10, now_us=0)
    assert gone > 0
    assert 0 < queue.first_offset <= 20
    assert offsets(queue.read(0, 3, 999))[0] == queue.first_offset
    assert queue.find(0) == queue.first_offset


def test_named_readers_are_kept_and_hold_retention() -> None:
    fs = FaultyFileSystem()
    queue = alone(fs, 300)
    fill(queue, 30)
    queue.set_reader("slow", 7, 7)
    queue.set_reader("fast", 25)
    queue.retain(max_records=1, now_us=0)
    assert queue.first_offset <= 7
    queue.close()
    again = alone(fs, 300)
    assert again.readers == {"slow": ReaderOffset(7, 7), "fast": ReaderOffset(25, None)}
    assert again.delete_reader("slow")
    assert not again.delete_reader("slow")
    again.retain(max_records=1, now_us=0, keep_from=12)
    assert 7 < again.first_offset <= 12
    assert list(alone(fs.crash("lost"), 300).readers) == ["fast"]


def test_a_deleted_queue_leaves_nothing() -> None:
    fs = FaultyFileSystem()
    queue = alone(fs, 300)
    fill(queue, 30)
    queue.set_reader("r", 1)
    queue.delete()
    assert not fs.exists(PATH)
    with pytest.raises(StoppedError):
        queue.append(b"", b"")
    assert alone(fs, 300).next_offset == 0


def test_retention_in_two_halves() -> None:
    fs = FaultyFileSystem()
    queue = alone(fs, 300)
    fill(queue, 30)
    assert queue.plan_retain(max_records=99, now_us=0) is None
    plan = queue.plan_retain(max_records=10, now_us=0)
    assert plan is not None
    assert queue.first_offset > 0
    assert plan.pages == len(plan.bases) == len(plan.paths) // 2
    before = fs.operations
    assert offsets(queue.read(0, 1, 1)) == [queue.first_offset]
    assert fs.operations == before
    plan.run(unlink=False)
    assert all(fs.exists(path) for path in plan.paths)
    assert queue.leftovers() == sorted(plan.paths)
    plan.run()
    assert not any(fs.exists(path) for path in plan.paths)
    assert queue.leftovers() == []


def test_on_the_real_disk(tmp_path: object) -> None:
    fs = OsFileSystem()
    path = f"{tmp_path}/queue"
    queue = alone(fs, 4096, path=path, rng=random.Random())
    fill(queue, 500)
    queue.retain(max_records=100, now_us=0)
    first = queue.first_offset
    queue.close()
    again = alone(fs, 4096, path=path)
    assert offsets(again.read(0, 999, 1 << 20)) == list(range(first, 500))
    assert again.find(1450) == 450
    again.delete()
    fs.close()


def test_a_read_that_is_wrong_once_cuts_nothing_at_a_start() -> None:
    """After a power cut the head on the disk is older than what was forced."""
    fs = FaultyFileSystem()
    queue = alone(fs)
    for _ in range(25):
        fill(queue, 1)
    lost = fs.crash("lost")
    nth = 0
    while True:
        nth += 1
        again = lost.fork()
        fault = again.fail("flip", kinds=["read"], nth=nth)
        try:
            queue = alone(again)
        except CorruptionError:
            continue
        again.clear_faults()
        assert queue.next_offset == 25, f"read {nth}"
        assert offsets(queue.read(0, 99, 9999)) == list(range(25))
        if not fault.hits:
            break
