"""One file per body: what Qpid's FileQueueBackingStoreTest asks, and what the design adds."""

import errno
from pathlib import Path

import pytest

from penstock.errors import (
    CorruptionError,
    NotAStoreError,
    StoppedError,
    StorageError,
    SyncFailedError,
)
from penstock.storage.files.filesystem import OsFileSystem
from penstock.storage.store.file_queue_backing import HEADER_BYTES, FileQueueBacking
from penstock.storage.store.store_file import OWN_FILE, FileState, OwnState
from tests.contracts.queue_backing import QueueBackingContract, delete, load, unload
from tests.helpers.faulty_filesystem import FaultyFileSystem

ROOT = "/own"
VHOST = 42


@pytest.fixture
def fs() -> FaultyFileSystem:
    return FaultyFileSystem(seed=1)


@pytest.fixture
def backing(fs: FaultyFileSystem) -> FileQueueBacking:
    return FileQueueBacking(fs, ROOT, VHOST)


def has(backing: FileQueueBacking, file: int, id: int) -> bool:
    """Return whether the body can be read."""
    try:
        backing.read(file, id)
    except CorruptionError:
        return False
    return True


class TestFileQueueBacking(QueueBackingContract):
    pass


# ---- Qpid's FileQueueBackingStoreTest ----------------------------------------------------------


def test_the_root_is_a_file(fs: FaultyFileSystem) -> None:
    fs.open(ROOT, create=True).close()
    with pytest.raises(NotAStoreError, match="expected a directory"):
        FileQueueBacking(fs, ROOT, VHOST)


def test_the_root_is_not_writable(fs: FaultyFileSystem) -> None:
    fs.fail(errno.EACCES, kinds=["mkdir"], times=None)
    with pytest.raises(PermissionError):
        FileQueueBacking(fs, ROOT, VHOST)


def test_the_root_becomes_unwritable(backing: FileQueueBacking, fs: FaultyFileSystem) -> None:
    fs.fail(errno.EACCES, kinds=["mkdir", "create"])
    with pytest.raises(PermissionError):
        unload(backing, 1, b"body")
    assert not [path for path in fs.names() if path.endswith(".msg")]
    assert load(backing, unload(backing, 1, b"body")) == b"body"


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("body", [b"", b"not empty" * 1000])
def test_a_round_trip_on_the_real_disk(tmp_path: Path, body: bytes, persistent: bool) -> None:
    fs = OsFileSystem(workers=0)
    backing = FileQueueBacking(fs, str(tmp_path / "own"), VHOST, persistent=persistent)
    address = unload(backing, 3, body)
    assert load(backing, address) == body
    assert backing.unsynced.has_any() == persistent
    delete(backing, address)
    backing.cut()
    for path in backing.take_dead():
        fs.unlink(path)
    assert not list((tmp_path / "own").glob("*/*"))
    backing.close()


# ---- bins and numbers --------------------------------------------------------------------------


def test_files_are_spread_over_256_bins(backing: FileQueueBacking, fs: FaultyFileSystem) -> None:
    addresses = [unload(backing, id, b"b") for id in range(600)]
    directories = {path for path in fs.names() if path.endswith("/") and path != ROOT + "/"}
    assert len({path for path in directories if path.startswith(ROOT)}) == 256
    assert backing.file_path(addresses[0x1FF][0]) == f"{ROOT}/ff/511.msg"
    assert all(file & OWN_FILE for file, _ in addresses)


def test_the_format(backing: FileQueueBacking, fs: FaultyFileSystem) -> None:
    unload(backing, 0x1122334455667788, b"the body")
    data = fs.read(f"{ROOT}/00/0.msg")
    assert data[:20] == b"POWN" + bytes.fromhex("0001 0000 000000000000002a 00000000")
    assert data[20:36] == bytes.fromhex("1122334455667788 0000000000000008")
    assert data[HEADER_BYTES:] == b"the body"


# ---- spooling ----------------------------------------------------------------------------------


def test_a_spooled_body_costs_bounded_ram(backing: FileQueueBacking, fs: FaultyFileSystem) -> None:
    spool = backing.spool(9)
    body = b""
    for n in range(100):
        chunk = bytes([n]) * 10_000
        spool.write(chunk)
        body += chunk
        assert sum(len(piece) for piece in spool._pieces) < 270_000
    file = spool.finish()
    assert backing.refs(file, 9) == 0
    backing.ref(file, 9)
    assert load(backing, (file, 9)) == body
    assert spool.size == len(body)
    assert backing.live_bytes == len(body)


def test_an_aborted_spool_leaves_nothing(backing: FileQueueBacking, fs: FaultyFileSystem) -> None:
    spool = backing.spool(9)
    spool.write(b"x" * 300_000)
    assert [path for path in fs.names() if path.endswith(".msg")]
    spool.abort()
    spool.abort()
    assert not [path for path in fs.names() if path.endswith(".msg")]
    other = backing.spool(10)
    other.write(b"never flushed")
    other.abort()
    backing.cut()
    assert backing.take_dead() == []
    assert backing.next_number == 2, "numbers are not used again"


def test_an_unfinished_spool_is_no_body(backing: FileQueueBacking) -> None:
    spool = backing.spool(9)
    spool.write(b"x" * 300_000)
    with pytest.raises(CorruptionError):
        backing.read(OWN_FILE, 9)


def test_a_full_disk_while_spooling(backing: FileQueueBacking, fs: FaultyFileSystem) -> None:
    spool = backing.spool(9)
    fs.fail("short", kinds=["pwrite"], nth=2)
    with pytest.raises(OSError) as caught:  # noqa: PT011 - asked below
        spool.write(b"x" * 300_000)
    assert caught.value.errno == errno.ENOSPC
    spool.abort()
    assert not [path for path in fs.names() if path.endswith(".msg")]


# ---- life and death ----------------------------------------------------------------------------


def test_references_are_counted(backing: FileQueueBacking) -> None:
    file = backing.write(1, b"shared", 3)
    assert backing.refs(file, 1) == 3
    assert not backing.unref(file, 1, 2)
    backing.ref(file, 1)
    assert not backing.unref(file, 1)
    assert backing.unref(file, 1)
    assert backing.released_bytes == 6
    with pytest.raises(StorageError, match="disagree"):
        backing.unref(file, 1)


def test_dead_files_go_at_the_next_cut_and_not_before(backing: FileQueueBacking) -> None:
    dead, alive = backing.write(1, b"a", 1), backing.write(2, b"b", 1)
    backing.unref(dead, 1)
    assert backing.take_dead() == []
    backing.cut()
    backing.unref(alive, 2)  # after the cut: the manifest will name it [6]
    assert backing.take_dead() == [backing.file_path(dead)]
    assert backing.take_dead() == []
    backing.cut()
    assert backing.take_dead() == [backing.file_path(alive)]


def test_an_owned_body_stays_without_a_reference(backing: FileQueueBacking) -> None:
    kept, dropped = backing.write(1, b"a", 0), backing.write(2, b"b", 0)
    for file, id in ((kept, 1), (dropped, 2)):
        backing.own(file, id)
    backing.cut()
    assert backing.take_dead() == []
    backing.ref(kept, 1, 2)
    backing.disown(kept, 1)
    backing.disown(dropped, 2)
    backing.cut()
    assert backing.take_dead() == [backing.file_path(dropped)]
    assert load(backing, (kept, 1)) == b"a"


def test_a_spooled_body_that_nobody_takes_is_garbage(backing: FileQueueBacking) -> None:
    file = backing.spool(1).finish()
    backing.cut()
    assert backing.take_dead() == [backing.file_path(file)]


def test_ram_is_one_bit_per_number_from_the_lowest_alive(backing: FileQueueBacking) -> None:
    files = [backing.write(id, b"b", 1) for id in range(200)]
    for id, file in enumerate(files[:160]):
        backing.unref(file, id)
    backing.cut()
    assert len(backing.take_dead()) == 160
    state = backing.capture()
    assert (state.base, len(state.live)) == (160, 5)
    assert state.numbers() == list(range(160, 200))
    with pytest.raises(CorruptionError, match="died before"):
        backing.ref(files[0], 0)


# ---- checkpoint and recovery -------------------------------------------------------------------


def captured(backing: FileQueueBacking) -> OwnState:
    """Through its bytes, as a checkpoint has it."""
    decoded = FileState.decode(backing.capture().encode()).own
    assert decoded is not None
    return decoded


def test_capture_is_as_of_the_cut(backing: FileQueueBacking, fs: FaultyFileSystem) -> None:
    kept, dying = backing.write(1, b"one", 3), backing.write(2, b"two", 1)
    backing.cut()
    backing.unref(kept, 1, 2)
    backing.unref(dying, 2)
    young = backing.write(3, b"three", 1)
    state = captured(backing)
    assert (state.refs(0), state.refs(1), state.refs(2)) == (3, 1, 0)
    assert (state.live_bytes, state.live_count, state.next_number) == (6, 2, 2)
    backing.cut()
    assert captured(backing).numbers() == [0, 2]

    again = FileQueueBacking(fs, ROOT, VHOST)
    again.restore(state, state.next_number)
    assert again.refs(kept, 1) == 3
    assert again.refs(young, 3) == 0
    assert has(again, young, 3)
    again.ref(young, 3)
    assert load(again, (young, 3)) == b"three"
    assert again.next_number == 3


def test_what_no_record_named_dies_at_the_first_cut(
    backing: FileQueueBacking, fs: FaultyFileSystem
) -> None:
    backing.cut()
    state = captured(backing)
    orphan, named = backing.write(1, b"orphan", 1), backing.write(2, b"named", 1)
    backing.spool(3).write(b"x" * 300_000)
    again = FileQueueBacking(fs, ROOT, VHOST)
    again.restore(state, 0)
    again.ref(named, 2)
    assert not has(again, OWN_FILE | 2, 3), "unfinished"
    again.cut()
    assert again.take_dead() == [again.file_path(orphan), again.file_path(2)]


def test_recovery_believes_the_disk_and_not_the_cache() -> None:
    """After a failed sync the cache shows bytes that the disk may never have got [8]."""
    outcomes = set()
    for seed in range(30):
        fs = FaultyFileSystem(seed=seed)
        backing = FileQueueBacking(fs, ROOT, VHOST)
        fs.sync_dir("/")
        backing.cut()
        state = captured(backing)
        file = backing.write(1, b"body" * 1000, 1)
        op = backing.unsynced.take()
        fs.fail(errno.EIO, kinds=["sync"])
        with pytest.raises(SyncFailedError):
            op()
        with pytest.raises(StoppedError):
            backing.spool(2)
        assert backing.read(file, 1) == b"body" * 1000, "in the cache"

        again = FileQueueBacking(fs.crash("killed"), ROOT, VHOST)
        again.restore(state, 0)
        found = has(again, file, 1)
        again.unsynced.synced(again.unsynced.take()())
        assert isinstance(again.fs, FaultyFileSystem)
        third = FileQueueBacking(again.fs.crash("lost"), ROOT, VHOST)
        third.restore(state, 0)
        assert has(third, file, 1) == found
        outcomes.add(found)
    assert outcomes == {True, False}


def test_a_missing_file_is_named(backing: FileQueueBacking, fs: FaultyFileSystem) -> None:
    file = backing.write(1, b"body", 1)
    backing.write(2, b"body", 1)
    backing.cut()
    state = captured(backing)
    fs.damage_delete(backing.file_path(file))
    again = FileQueueBacking(fs, ROOT, VHOST)
    again.restore(state, 0)
    assert [error.path for error in again.damage] == [backing.file_path(file)]
    with pytest.raises(CorruptionError, match="missing"):
        again.read(file, 1)
    assert again.unref(file, 1), "and it can be forgotten"


# ---- damage ------------------------------------------------------------------------------------


def test_every_flipped_bit_is_found(fs: FaultyFileSystem) -> None:
    FileQueueBacking(fs, ROOT, VHOST).write(5, b"body", 1)
    path = f"{ROOT}/00/0.msg"
    for position in range(fs.size(path)):
        spoiled = fs.fork()
        spoiled.damage_flip(path, position, position % 8)
        backing = FileQueueBacking(spoiled, ROOT, VHOST)
        backing.restore(OwnState(), 0)
        with pytest.raises(CorruptionError) as caught:
            backing.read(OWN_FILE, 5)
        assert caught.value.path == path


def test_every_cut_is_found(fs: FaultyFileSystem) -> None:
    FileQueueBacking(fs, ROOT, VHOST).write(5, b"body", 1)
    path = f"{ROOT}/00/0.msg"
    for length in range(fs.size(path)):
        spoiled = fs.fork()
        spoiled.damage_cut(path, length)
        assert not has(FileQueueBacking(spoiled, ROOT, VHOST), OWN_FILE, 5)


def test_a_swapped_file_is_found(backing: FileQueueBacking, fs: FaultyFileSystem) -> None:
    a, b = backing.write(5, b"body", 1), backing.write(6, b"ydob", 1)
    fs.damage_swap(backing.file_path(a), backing.file_path(b))
    with pytest.raises(CorruptionError, match="expected file 0"):
        load(backing, (a, 5))
    stranger = FileQueueBacking(fs, ROOT, VHOST + 1)
    with pytest.raises(CorruptionError, match="of vhost"):
        stranger.read(a, 6)
