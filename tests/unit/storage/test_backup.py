"""backup: exact as of its checkpoint, whatever goes on beside it; the source is never harmed."""

import errno
import random

import pytest

from penstock.clock import ManualClock
from penstock.errors import DiskFullError, NotAStoreError, PathNotFreeError, SyncFailedError
from penstock.storage.engine import StorageEngine
from penstock.storage.files.data_directory import DataDirectory, FreshDirectory
from penstock.storage.files.durability import DISK
from penstock.storage.journal.checkpoint import IDLE
from penstock.storage.tools.backup import Backup, backup
from penstock.storage.tools.verify import verify
from tests.helpers.faulty_filesystem import CrashNow, FaultyFileSystem
from tests.helpers.inside import live_seqs
from tests.helpers.tool_stores import (
    DATA,
    VHOST,
    Content,
    content,
    engine_content,
    entries,
    fill,
    open_vhost,
    vhost_path,
)

COPY = "/backup"


def running() -> StorageEngine:
    """An engine with a bit of everything, in use."""
    fs = FaultyFileSystem()
    engine = open_vhost(fs, DataDirectory(fs, DATA).vhost_path(VHOST))
    fill(engine)
    return engine


def disk(engine: StorageEngine) -> FaultyFileSystem:
    assert isinstance(engine.fs, FaultyFileSystem)
    return engine.fs


def sibling(engine: StorageEngine) -> FaultyFileSystem:
    """Another file system over the same disk: what is submitted to it is its own."""
    return disk(engine).with_disk(disk(engine).disk)


def check_copy(engine: StorageEngine, wanted: Content) -> None:
    """The copy verifies, also after a power cut, and is a store with this content."""
    for mode in ("killed", "lost"):
        fs = disk(engine).crash(mode)
        report = verify(fs, COPY)
        assert report.is_fine, report.problems
        assert not report.notes
        assert report.records == 0
        assert content(fs, COPY) == wanted
        assert not fs.exists(COPY + "/UNFINISHED")


def traffic(engine: StorageEngine, i: int) -> None:
    """A bit of everything that may go on beside a backup."""
    big, pair = engine.queue(b"big"), engine.queue(b"pair")
    engine.publish([big, pair], b"", b"beside the backup %d " % i * 12, DISK)
    engine.publish([big], b"", b"own beside %d " % i * 100, DISK)
    if big.count > 4:
        engine.dequeue(big, entries(engine, big, live_seqs(big)[0]), DISK)
    if i % 7 == 3:
        engine.purge(pair, [], DISK)
    engine.sync()
    engine.tick()
    if i > 8 and i % 3 == 0 and engine.checkpoints.phase == IDLE:
        engine.checkpoint()
    engine.upkeep.combine()
    engine.poll()


def test_the_copy_is_the_store(request: pytest.FixtureRequest) -> None:
    engine = running()
    wanted = engine_content(engine)
    (part,) = backup([engine], COPY)
    assert part.checkpoint_number == engine.checkpoints.number
    assert part.linked
    assert part.copied
    check_copy(engine, wanted)
    engine.close()
    assert verify(disk(engine).fork(), DATA + "/vhosts/" + vhost_path(disk(engine))[-16:]).is_fine


def test_what_comes_after_its_cut_is_not_in_it() -> None:
    """Traffic at every step; the state is noted at the cut."""
    engine = running()
    fresh = FreshDirectory(engine.fs, COPY, "a backup")
    work = Backup(engine, fresh)
    assert work.step()
    assert engine.checkpoints.phase != IDLE  # the cut was just now
    wanted = engine_content(engine)
    steps = 0
    while work.step():
        traffic(engine, steps)
        steps += 1
    fresh.finish()
    assert steps > 10
    assert engine_content(engine) != wanted
    check_copy(engine, wanted)
    engine.close()
    assert verify(disk(engine).crash("lost"), vhost_path(disk(engine))).is_fine


def test_what_died_meanwhile_is_deleted_in_the_end() -> None:
    engine = running()
    fresh = FreshDirectory(engine.fs, COPY, "a backup")
    work = Backup(engine, fresh)
    work.step()
    queue = engine.queue(b"big")
    engine.delete_queue(queue)
    engine.sync()
    while engine.upkeep.reap():
        engine.sync()
    while not work.checkpoint_number:
        work.step()
        engine.poll()
    engine.checkpoint()
    engine.checkpoint()
    assert engine.fs.exists(queue.path)
    while work.step():
        engine.poll()
    engine.poll(wait=True)
    assert not engine.fs.exists(queue.path)
    assert engine.journal.pins.count == 0
    assert engine.journal.pins.paths == engine.journal.pins.trees == []
    fresh.finish()
    assert b"big" in content(disk(engine), COPY)


def test_abandoned_it_leaves_the_source_alone() -> None:
    engine = running()
    wanted = engine_content(engine)
    fresh = FreshDirectory(engine.fs, COPY, "a backup")
    work = Backup(engine, fresh)
    for _ in range(8):
        work.step()
        engine.flush()
        engine.poll()
    work.abandon()
    fresh.abandon()
    assert engine.journal.pins.count == 0
    assert not work.step()
    with pytest.raises(NotAStoreError, match="UNFINISHED"):
        DataDirectory(engine.fs, COPY)
    backup([engine], COPY)
    check_copy(engine, wanted)


def test_a_backup_of_a_backup() -> None:
    engine = running()
    wanted = engine_content(engine)
    backup([engine], COPY)
    copied = open_vhost(sibling(engine), vhost_path(disk(engine), COPY), seed=4)
    backup([copied], "/again")
    copied.close()
    assert content(disk(engine), "/again") == wanted
    assert engine_content(engine) == wanted


def test_the_copy_goes_its_own_way() -> None:
    """Both are used, and neither sees the other, though they share files."""
    engine = running()
    backup([engine], COPY)
    wanted = engine_content(engine)
    other = open_vhost(sibling(engine), vhost_path(disk(engine), COPY), seed=4)
    for i in range(12):
        traffic(other, i)
    other.purge(other.queue(b"big"), [], DISK)
    other.close()
    assert engine_content(engine) == wanted
    engine.close()
    assert verify(disk(engine).crash("lost"), vhost_path(disk(engine))).is_fine
    assert verify(disk(engine).crash("lost"), COPY).is_fine


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EPERM])
def test_without_links_it_copies(code: int) -> None:
    engine = running()
    wanted = engine_content(engine)
    disk(engine).fail(code, kinds=["link"], times=None)
    (part,) = backup([engine], COPY)
    assert part.linked == 0
    check_copy(engine, wanted)


@pytest.mark.parametrize("kind", ["pwrite", "sync", "sync_dir", "create", "link", "mkdir"])
def test_a_disk_that_fails_under_the_copy(kind: str) -> None:
    engine = running()
    wanted = engine_content(engine)
    disk(engine).fail(errno.EIO, kinds=[kind], path=COPY)
    with pytest.raises((OSError, SyncFailedError), match="put/output"):
        backup([engine], COPY)
    assert engine.failed is None
    assert engine.journal.pins.count == 0
    backup([engine], COPY)
    check_copy(engine, wanted)
    traffic(engine, 3)
    engine.close()
    assert verify(disk(engine).crash("lost"), vhost_path(disk(engine))).is_fine


def test_no_room_for_its_checkpoint() -> None:
    engine = running()
    disk(engine).fail(
        errno.ENOSPC, kinds=["pwrite", "create"], path=lambda at: "checkpoint-" in at, times=None
    )
    with pytest.raises(DiskFullError):
        backup([engine], COPY)
    assert engine.failed is None
    assert engine.journal.pins.count == 0
    disk(engine).clear_faults()
    wanted = engine_content(engine)
    backup([engine], COPY)
    check_copy(engine, wanted)


def test_the_target_must_be_free() -> None:
    engine = running()
    with pytest.raises(NotAStoreError):
        backup([engine], DATA)
    assert engine.journal.pins.count == 0
    backup([engine], COPY)
    with pytest.raises(NotAStoreError):
        backup([engine], COPY)


def test_the_directory_of_the_target_must_be_there() -> None:
    with pytest.raises(PathNotFreeError, match="there is no /none; make it first") as caught:
        backup([running()], "/none/copy")
    assert str(caught.value).startswith("/none/copy: expected a path in a directory")


def test_two_vhosts() -> None:
    fs = FaultyFileSystem()
    data = DataDirectory(fs, DATA)
    engines = [
        open_vhost(fs.with_disk(fs.disk), data.vhost_path(name), name) for name in (b"one", b"two")
    ]
    for engine in engines:
        fill(engine)
    assert len(backup(engines, COPY)) == 2
    report = verify(fs, COPY)
    assert report.is_fine
    assert (report.vhosts, sum(queue.count for queue in report.queues)) == (2, 34)


@pytest.mark.crash
def test_a_crash_in_the_middle_harms_nothing() -> None:
    """At every fifth operation: the source starts with all that it had; the copy is whole with
    VERSION, and else no store and begun anew."""
    whole = running()
    start, wanted = disk(whole).crash("killed"), engine_content(whole)
    first = open_source(start.fork())
    low = disk(first).operations
    backup([first], COPY)
    for at in range(low + 1, disk(first).operations + 1, 5):
        engine = open_source(start.fork())
        disk(engine).crash_at = at
        with pytest.raises(CrashNow):
            backup([engine], COPY)
        for mode in ("lost", "subset", "kept"):
            fs = disk(engine).crash(mode, random.Random(at))
            assert content(fs) == wanted, f"operation {at}, {mode}"
            if fs.exists(COPY + "/VERSION"):
                assert verify(fs, COPY).is_fine, f"operation {at}, {mode}"
                assert content(fs, COPY) == wanted
                continue
            again = open_source(fs)
            backup([again], COPY)
            assert verify(fs, COPY).is_fine


def open_source(fs: FaultyFileSystem) -> StorageEngine:
    engine = open_vhost(fs, vhost_path(fs), seed=6)
    assert isinstance(engine.clock, ManualClock)
    return engine
