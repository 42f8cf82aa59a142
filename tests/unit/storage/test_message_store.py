"""The store of shared bodies: RabbitMQ's `msg_store` behaviours, cuts, recovery and damage."""

import errno
import random
import sys
from pathlib import Path

import pytest

from penstock.errors import (
    CorruptionError,
    NotAStoreError,
    OptionError,
    StoppedError,
    StorageError,
    SyncFailedError,
    VersionError,
)
from penstock.storage.filesystem import OsFileSystem
from penstock.storage.message_store import OWN_FILE, FileState, MessageStore
from penstock.storage.store_file import HEADER_BYTES
from tests.contracts.queue_backing import QueueBackingContract
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.stores import PATH, VHOST, Saved, check, checkpoint, new_store, reopened


@pytest.fixture
def fs() -> FaultyFileSystem:
    return FaultyFileSystem(seed=1)


@pytest.fixture
def store(fs: FaultyFileSystem) -> MessageStore:
    found = new_store(fs)
    fs.sync_dir("/")
    return found


def body(id: int, size: int = 300) -> bytes:
    return random.Random(id).randbytes(size)


def fill(store: MessageStore, ids: range, refs: int = 1) -> dict[int, int]:
    """id -> file."""
    return {id: store.write(id, body(id), refs) for id in ids}


class TestMessageStore(QueueBackingContract):
    @pytest.fixture
    def backing(self, store: MessageStore) -> MessageStore:
        return store


class TestMessageStoreOfOwnFiles(QueueBackingContract):
    @pytest.fixture
    def backing(self, fs: FaultyFileSystem) -> MessageStore:
        return new_store(fs, own_file_from=1)


# ---- writing and reading -----------------------------------------------------------------------


def test_options_are_checked(fs: FaultyFileSystem) -> None:
    with pytest.raises(OptionError):
        new_store(fs, own_file_from=0)
    with pytest.raises(OptionError):
        new_store(fs, own_file_from=(16 << 20) + 1)
    with pytest.raises(OptionError):
        new_store(fs, file_bytes_max=1 << 32)
    fs.open(PATH, create=True).close()
    with pytest.raises(NotAStoreError):
        new_store(fs)


def test_nothing_is_there_at_the_start(store: MessageStore) -> None:
    assert not store.has(1, 1)
    assert not store.has(OWN_FILE, 1)
    assert store.refs(1, 1) == 0
    assert store.live_count == store.file_count == store.total_bytes == 0
    assert store.garbage_ratio() == 0.0
    assert not store.has_unsynced()


def test_written_bodies_are_there_before_and_after_sealing(store: MessageStore) -> None:
    files = fill(store, range(1, 101))
    assert len(set(files.values())) > 5
    for _ in range(2):  # from the disk, then from cached blocks
        for id, file in files.items():
            assert store.has(file, id)
            assert store.read(file, id) == body(id)
            assert store.size(file, id) == 300
            assert store.refs(file, id) == 1
            assert not store.has(file, id + 1000)
    assert store.live_bytes == store.total_bytes == 100 * 316
    assert store.written_bytes == 100 * 300
    check(store)


def test_the_format(store: MessageStore, fs: FaultyFileSystem) -> None:
    for id in (7, 9):
        store.write(id, b"body", 1)
    store.write(3, b"x" * 4096, 1)  # does not fit: seals
    data = fs.read(f"{PATH}/1.rdq")
    assert data[:16] == b"PRDQ" + bytes.fromhex("0001 0000 0123456789abcdef")
    assert data[16:28] == bytes.fromhex("00000001 00000001 00000001")
    assert data[32:44] == bytes.fromhex("00000004 0000000000000007")
    assert data[48:52] == b"body"
    assert len(data) == 32 + 2 * 20
    hint = fs.read(f"{PATH}/1.hint")
    assert hint[:4] == b"PHNT"
    assert hint[16:40] == bytes.fromhex("00000001 00000001 00000001 00000002 0000000000000028")
    assert hint[44:76] == bytes.fromhex(
        "0000000000000007 00000020 00000004 0000000000000009 00000034 00000004"
    )
    assert len(hint) == 44 + 32 + 4 + 8 + 4


def test_ids_need_not_ascend(store: MessageStore) -> None:
    ids = list(range(1, 61))
    random.Random(3).shuffle(ids)
    files = {id: store.write(id, body(id), id % 4) for id in ids}
    for id, file in files.items():
        assert store.refs(file, id) == id % 4
        assert store.read(file, id) == body(id)
    check(store)


def test_a_body_larger_than_a_file_has_one_for_itself(store: MessageStore) -> None:
    first = store.write(1, b"a", 1)
    large = store.write(2, b"b" * 10_000, 1)
    last = store.write(3, b"c", 1)
    assert len({first, large, last}) == 3
    assert store.read(large, 2) == b"b" * 10_000


def test_an_id_in_the_current_file_is_written_once(store: MessageStore) -> None:
    file = store.write(1, b"body", 1)
    total = store.total_bytes
    assert store.unref(file, 1)
    assert store.write(1, b"body", 2) == file
    assert store.total_bytes == total
    assert store.refs(file, 1) == 2


def test_size_decides_between_the_two_size_classes(fs: FaultyFileSystem) -> None:
    store = new_store(fs, own_file_from=1000)
    small, large = store.write(1, b"s" * 999, 1), store.write(2, b"l" * 1000, 1)
    assert not small & OWN_FILE
    assert large & OWN_FILE
    assert store.read(large, 2) == b"l" * 1000
    assert store.file_path(large) == f"{PATH}/00/0.msg"
    assert store.file_path(small) == f"{PATH}/1.rdq"
    assert store.file_count == 2
    assert store.live_count == 2


def test_spooling_ends_in_an_own_file(store: MessageStore) -> None:
    spool = store.spool(5)
    for _ in range(10):
        spool.write(b"piece ")
    file = spool.finish()
    store.own(file, 5)
    assert store.refs(file, 5) == 0
    store.ref(file, 5, 2)
    store.disown(file, 5)
    assert store.load((file, 5)) == b"piece " * 10


def test_references(store: MessageStore) -> None:
    files = fill(store, range(1, 31), refs=2)
    for id, file in files.items():
        assert not store.unref(file, id)
        store.ref(file, id, 299)
        assert store.refs(file, id) == 300
    check(store)
    for id, file in files.items():
        assert not store.unref(file, id, 44)
        assert store.refs(file, id) == 256
        assert not store.unref(file, id, 255)
        assert store.unref(file, id)
    assert store.live_bytes == 0
    assert store.released_bytes == 30 * 300
    check(store)
    with pytest.raises(StorageError, match=r"1\.rdq: body 1: .*disagree"):
        store.unref(files[1], 1)
    with pytest.raises(CorruptionError, match="not in it"):
        store.ref(files[1], 999)
    with pytest.raises(CorruptionError, match="no file"):
        store.ref(999, 1)


def test_a_failed_seal_changes_nothing(store: MessageStore, fs: FaultyFileSystem) -> None:
    files = fill(store, range(1, 13))
    assert set(files.values()) == {1}
    fs.fail(errno.ENOSPC, path=".hint", times=2)
    for _ in range(2):
        with pytest.raises(OSError):  # noqa: PT011
            store.write(13, body(13), 1)
    files[13] = store.write(13, body(13), 1)
    assert files[13] == 2
    assert all(store.read(file, id) == body(id) for id, file in files.items())
    check(store)


def test_what_a_failed_write_left_is_cut(store: MessageStore, fs: FaultyFileSystem) -> None:
    store.write(1, b"one", 1)
    fs.fail("short", kinds=["pwrite"])
    with pytest.raises(OSError):  # noqa: PT011
        store.write(2, b"two" * 100, 1)
    assert fs.size(f"{PATH}/1.rdq") == HEADER_BYTES + 19


def test_ram_per_body_is_about_a_bit(fs: FaultyFileSystem) -> None:
    store = new_store(fs, file_bytes_max=1 << 20)
    files = fill(store, range(1, 40_001))
    sealed = [file for file in store.append_files.files if file.is_sealed]
    bodies = sum(file.counts.count for file in sealed)
    assert bodies > 30_000
    assert ram_bytes(store) / bodies < 0.5
    for id in range(1, 40_001, 7):
        store.read(files[id], id)
    assert ram_bytes(store) / bodies < 0.6
    for file in sealed:  # one shared body each: a byte per body
        id = next(id for id, number in files.items() if number == file.number)
        store.ref(file.number, id)
    assert ram_bytes(store) / bodies < 1.6
    assert sum(map(len, store.append_files.tables._blocks.values())) <= 16 << 10


def ram_bytes(store: MessageStore) -> int:
    """Of all sealed files, measured object by object."""
    total = 0
    for file in store.append_files.files:
        if file.is_sealed:
            counts = file.counts
            parts = [file, counts, counts.live, counts.extra, counts.many, file.first_ids]
            parts += [file.ids, file.entries]
            total += sum(sys.getsizeof(part) for part in parts if part is not None)
    return total


# ---- syncs -------------------------------------------------------------------------------------


def test_a_sync_op_covers_what_was_written_when_it_was_taken(
    store: MessageStore, fs: FaultyFileSystem
) -> None:
    first = store.write(1, b"first", 1)
    op = store.take_unsynced()
    token = fs.submit(op)
    store.write(2, b"second", 1)
    ((done, result),) = fs.completed(True)
    assert done == token
    assert store.has_unsynced(), "until it is told"
    store.synced(result)
    assert store.has_unsynced(), "the file was written again meanwhile"
    after = reopened(fs.crash("lost"), None)
    assert after.read(first, 1) == b"first"
    assert not after.has(first, 2)

    store.sync_now()
    assert not store.has_unsynced()
    assert reopened(fs.crash("lost"), None).read(first, 2) == b"second"


def test_two_ops_may_be_in_flight(store: MessageStore, fs: FaultyFileSystem) -> None:
    files = fill(store, range(1, 40))
    one = store.take_unsynced()
    files |= fill(store, range(40, 80))
    two = store.take_unsynced()
    store.synced(two())
    assert not store.has_unsynced()
    store.synced(one())
    assert not store.has_unsynced()
    after = reopened(fs.crash("lost"), None)
    assert all(after.read(file, id) == body(id) for id, file in files.items())


def test_new_names_are_synced(fs: FaultyFileSystem) -> None:
    store = new_store(fs, own_file_from=1000)
    fs.sync_dir("/")
    addresses = [(store.write(id, b"b" * 1000, 1), id) for id in range(5)]
    spool = store.spool(9)
    spool.write(b"spooled")
    addresses.append((spool.finish(), 9))
    store.sync_now()
    after = reopened(fs.crash("lost"), None)
    assert all(after.has(file, id) for file, id in addresses)


def test_many_finished_files_do_not_hold_handles(fs: FaultyFileSystem) -> None:
    store = new_store(fs, own_file_from=1)
    fs.sync_dir("/")
    addresses = [(store.write(id, b"b", 1), id) for id in range(200)]
    assert sum(fs.handles.values()) <= 70
    store.sync_now()
    assert sum(fs.handles.values()) == 0
    after = reopened(fs.crash("lost"), None)
    assert all(after.has(file, id) for file, id in addresses)


def test_a_file_deleted_before_its_sync_is_no_failure(fs: FaultyFileSystem) -> None:
    store = new_store(fs, own_file_from=1)
    addresses = [(store.write(id, b"b", 1), id) for id in range(100)]
    for file, id in addresses:
        store.unref(file, id)
    store.cut(1)
    for path in store.take_dead():
        fs.unlink(path)
    store.sync_now()
    assert not store.has_unsynced()


def test_a_failed_sync_stops_the_store(store: MessageStore, fs: FaultyFileSystem) -> None:
    file = store.write(1, b"body", 1)
    op = store.take_unsynced()
    fs.fail(errno.EIO, kinds=["sync"])
    with pytest.raises(SyncFailedError, match=r"1\.rdq"):
        op()
    for refused in (
        lambda: store.write(2, b"x", 1),
        lambda: store.write_sealed([(2, b"x", 1)]),
        lambda: store.spool(2),
        store.take_unsynced,
        store.sync_now,
    ):
        with pytest.raises(StoppedError):
            refused()
    assert store.read(file, 1) == b"body"


def test_a_transient_store_never_syncs(fs: FaultyFileSystem) -> None:
    store = new_store(fs, persistent=False, own_file_from=1000)
    fs.fail(errno.EIO, kinds=["sync", "sync_dir"], times=None)
    files = {id: store.write(id, body(id, 100 * (id % 14)), 1) for id in range(100)}
    assert not store.has_unsynced()
    store.sync_now()
    assert all(store.has(file, id) for id, file in files.items())
    for id, file in files.items():
        store.unref(file, id)
    store.cut(1)
    for path in store.take_dead():
        fs.unlink(path)
    assert len([path for path in fs.names() if not path.endswith("/")]) == 1, "the current file"
    assert sum(fs.handles.values()) == 2, "to write and to read the current file"
    store.close()
    assert sum(fs.handles.values()) == 0


# ---- checkpoints -------------------------------------------------------------------------------


def counts_of(store: MessageStore, files: dict[int, int]) -> dict[int, int]:
    return {id: store.refs(file, id) for id, file in files.items()}


def test_capture_is_exactly_as_of_the_cut(store: MessageStore, fs: FaultyFileSystem) -> None:
    files = fill(store, range(1, 80), refs=2)
    files |= {id: store.write(id, body(id), 0) for id in range(80, 90)}
    for id in range(80, 90):
        store.own(files[id], id)
    for id in range(1, 80, 3):
        store.unref(files[id], id)
    for id in range(2, 80, 3):
        store.unref(files[id], id, 2)
    before = counts_of(store, files)

    def traffic() -> None:
        files.update(fill(store, range(100, 140), refs=3))  # appends to the current file, seals it
        for id in range(1, 90):
            if store.refs(files[id], id):
                store.unref(files[id], id)
            else:
                store.ref(files[id], id, 7)
        for id in range(80, 90):
            store.disown(files[id], id)

    saved = checkpoint(store, 1, traffic, unlink=False)
    after = reopened(fs, saved)
    check(after)
    assert counts_of(after, {id: file for id, file in files.items() if id < 90}) == before
    assert all(after.refs(files[id], id) == 0 for id in range(100, 140))
    assert all(after.read(file, id) == body(id) for id, file in files.items())

    saved = checkpoint(store, 2, unlink=False)
    again = reopened(fs, saved)
    assert counts_of(again, files) == counts_of(store, files)
    check(again)


def test_the_cut_costs_no_copy_of_what_does_not_change(store: MessageStore) -> None:
    files = fill(store, range(1, 200))
    store.cut(1)
    store.unref(files[1], 1)
    store.unref(files[2], 2)
    assert len(store.append_files._captured) == 1
    store.capture()
    store.unref(files[150], 150)
    assert store.append_files._captured == []


def test_dead_files_leave_at_the_cut(store: MessageStore, fs: FaultyFileSystem) -> None:
    files = fill(store, range(1, 40))
    for id in range(1, 13):
        store.unref(files[id], id)
    assert files[12] != files[13]
    assert fs.exists(f"{PATH}/1.rdq"), "named by the manifest [6]"
    store.cut(1)
    for id in range(13, 25):
        store.unref(files[id], id)  # dead since the cut, not at it
    assert store.take_dead() == [f"{PATH}/1.rdq", f"{PATH}/1.hint"]
    assert not store.has(files[1], 1)
    numbers = [state.number for state in store.capture() if state.own is None]
    assert sorted(numbers) == [2, 3, 4]
    store.cut(2)
    assert store.take_dead() == [f"{PATH}/2.rdq", f"{PATH}/2.hint"]


def test_a_checkpoint_that_was_given_up_keeps_its_dead(store: MessageStore) -> None:
    files = fill(store, range(1, 40))
    for id in range(1, 13):
        store.unref(files[id], id)
    store.cut(1)
    dead = store.take_dead()
    store.put_back_dead(dead)
    store.cut(2)
    assert store.take_dead() == dead


def test_an_owned_body_keeps_its_file(store: MessageStore, fs: FaultyFileSystem) -> None:
    files = {id: store.write(id, body(id), 0) for id in range(1, 40)}
    store.own(files[1], 1)
    assert len(set(files.values())) == 4
    saved = checkpoint(store, 1)
    assert fs.exists(f"{PATH}/1.rdq")
    assert not fs.exists(f"{PATH}/2.rdq")
    assert fs.exists(f"{PATH}/4.rdq"), "the current one is never dead"
    # Committed after the cut: the record names it, and recovery finds it.
    after = reopened(fs.crash("lost"), saved)
    assert after.has(files[1], 1)
    after.ref(files[1], 1, 2)
    assert after.refs(files[1], 1) == 2
    assert after.read(files[1], 1) == body(1)
    store.disown(files[1], 1)
    checkpoint(store, 2)
    assert not fs.exists(f"{PATH}/1.rdq")


def test_the_file_of_a_checkpoints_sections(store: MessageStore, fs: FaultyFileSystem) -> None:
    fill(store, range(1, 5))
    store.cut(1)
    next_file, next_own_file = store.next_file, store.next_own_file
    file = store.write_sealed([(70, b"seventy", 2), (60, b"sixty", 1), (80, b"", 1)])
    states = store.capture()
    assert not any(state.answers_for(file) for state in states)
    states.append(store.state_of(file))
    store.unref(file, 60)  # dequeued since the cut, told only now
    store.sync_now()
    saved = Saved([state.encode() for state in states], next_file, next_own_file)
    after = reopened(fs.crash("lost"), saved)
    assert [after.refs(file, id) for id in (60, 70, 80)] == [1, 2, 1]
    assert after.read(file, 70) == b"seventy"
    assert after.read(file, 80) == b""
    assert [store.refs(file, id) for id in (60, 70, 80)] == [0, 2, 1]
    check(after)


def test_a_failed_section_file_leaves_nothing(store: MessageStore, fs: FaultyFileSystem) -> None:
    for path in (".rdq", ".hint"):
        fs.fail(errno.ENOSPC, path=path)
        with pytest.raises(OSError):  # noqa: PT011
            store.write_sealed([(70, b"seventy", 2)])
    assert not [name for name in fs.names() if name.endswith((".rdq", ".hint", ".new"))]


def test_the_checkpoint_changes_the_state_it_writes(
    store: MessageStore, fs: FaultyFileSystem
) -> None:
    """A body that leaves a section for a slot is counted by the new manifest no more."""
    file = store.write_sealed([(id, body(id), 2) for id in range(1, 20)])
    current = store.write(50, body(50), 1)
    store.write(40, body(40), 1)
    store.cut(1)
    store.unref(file, 3)
    fill(store, range(60, 90))  # seals what was current at the cut, in another order
    states = store.capture()
    for number, id in ((file, 3), (file, 4), (current, 50)):
        state = next(state for state in states if state.answers_for(number))
        had = state.refs(id)
        assert state.unref(id) == (had == 1)
        assert state.refs(id) == had - 1
    state.ref(40, 4)
    with pytest.raises(StorageError, match="no body 99"):
        state.unref(99)
    store.sync_now()
    after = reopened(fs, Saved([state.encode() for state in states], 3, 0))
    assert [after.refs(file, id) for id in (3, 4, 5)] == [1, 1, 2]
    assert [after.refs(current, id) for id in (40, 50)] == [5, 0]
    check(after)


# ---- recovery ----------------------------------------------------------------------------------


def test_a_fresh_directory(fs: FaultyFileSystem) -> None:
    store = reopened(fs, None)
    assert store.file_count == 0
    assert store.forget_unknown() == []
    assert store.write(1, b"x", 1) == 1


@pytest.mark.parametrize("mode", ["lost", "kept", "killed"])
def test_after_a_crash_all_that_was_synced_is_there(mode: str) -> None:
    fs = FaultyFileSystem(seed=1)
    store = new_store(fs, own_file_from=900)
    fs.sync_dir("/")
    sizes = [100, 300, 950]
    files = {id: store.write(id, body(id, sizes[id % 3]), 1 + id % 2) for id in range(1, 60)}
    for id in range(1, 60, 5):
        store.unref(files[id], id)
    before = counts_of(store, files)
    saved = checkpoint(store, 1, unlink=False)
    later = {id: store.write(id, body(id, sizes[id % 3]), 1) for id in range(60, 120)}
    store.sync_now()
    store.write(200, body(200), 1)  # never synced

    after = reopened(fs.crash(mode), saved)
    assert after.take_damage() == []
    assert counts_of(after, files) == before
    for id, file in later.items():
        assert after.has(file, id)
        after.ref(file, id)
    for id, file in (files | later).items():
        assert after.read(file, id) == body(id, sizes[id % 3])
    check(after)
    assert after.next_file >= store.next_file or mode == "lost"
    young = after.write(300, b"new", 1)
    assert young not in set(files.values()) | set(later.values()), "never behind an old tail"
    saved = checkpoint(after, 1)
    third = reopened(after.fs.crash("lost"), saved)  # type: ignore[attr-defined]
    assert counts_of(third, files) == before
    assert all(third.refs(file, id) == 1 for id, file in later.items())


def test_bodies_after_the_cut_are_dead_until_a_record_names_them(
    store: MessageStore, fs: FaultyFileSystem
) -> None:
    saved = checkpoint(store, 1)
    files = fill(store, range(1, 40))
    after = reopened(fs, saved)
    assert after.live_count == 0
    after.ref(files[1], 1)
    after.cut(1)
    dead = after.take_dead()
    assert f"{PATH}/1.rdq" not in dead
    assert f"{PATH}/2.rdq" in dead
    assert after.read(files[1], 1) == body(1)


def test_leftovers_are_found(store: MessageStore, fs: FaultyFileSystem) -> None:
    files = fill(store, range(1, 40))
    for id in range(1, 13):
        store.unref(files[id], id)
    saved = checkpoint(store, 1, unlink=False)  # crashed before they were unlinked
    for name in ("99.hint", "2.hint.new", "foreign.txt", "notes"):
        fs.open(f"{PATH}/{name}", create=True).close()
    after = reopened(fs, saved)
    orphans = after.forget_unknown()
    assert sorted(orphans) == [f"{PATH}/{x}" for x in ("1.hint", "1.rdq", "2.hint.new", "99.hint")]
    assert after.next_file == 100
    assert after.forget_unknown() == []


def test_restoring_writes_nothing(store: MessageStore, fs: FaultyFileSystem) -> None:
    fill(store, range(1, 40))
    saved = checkpoint(store, 1)
    fill(store, range(40, 80))
    fs.damage_flip(f"{PATH}/2.hint", 60)
    names, operations = fs.names(), fs.operations
    after = reopened(fs, saved)
    assert all(after.has(number, id) for number, id in ((2, 13), (4, 40)))
    assert fs.names() == names
    changed = fs.operations - operations
    assert changed == 4, "the syncs of the files that may be unsynced [8]"


def test_a_tail_may_be_torn_anywhere(store: MessageStore, fs: FaultyFileSystem) -> None:
    store.write(1, b"one" * 20, 1)
    saved = checkpoint(store, 1)
    store.write(2, b"two" * 20, 1)
    store.write(3, b"three" * 20, 1)
    size = fs.size(f"{PATH}/1.rdq")
    for length in range(size - 116 - 76, size):
        cut = fs.fork()
        cut.damage_cut(f"{PATH}/1.rdq", length)
        after = reopened(cut, saved)
        assert after.take_damage() == []
        assert after.read(1, 1) == b"one" * 20
        assert after.has(1, 2) == (length >= size - 116)
        assert not after.has(1, 3)
        zeros = fs.fork()
        zeros.damage_zero_tail(f"{PATH}/1.rdq", size - length)
        assert reopened(zeros, saved).has(1, 2) == (length >= size - 116)


def test_a_torn_new_file_is_an_orphan(store: MessageStore, fs: FaultyFileSystem) -> None:
    saved = checkpoint(store, 1)
    store.write(1, b"one", 1)
    fs.damage_cut(f"{PATH}/1.rdq", 20)
    after = reopened(fs, saved)
    assert not after.has(1, 1)
    assert after.forget_unknown() == [f"{PATH}/1.rdq"]
    assert after.next_file == 2


def test_recovery_drops_what_the_cache_alone_has() -> None:
    outcomes = set()
    for seed in range(30):
        fs = FaultyFileSystem(seed=seed)
        store = new_store(fs, file_bytes_max=1 << 20)
        fs.sync_dir("/")
        store.write(1, b"one" * 300, 1)
        saved = checkpoint(store, 1)
        file = store.write(2, b"two" * 300, 1)
        op = store.take_unsynced()
        fs.fail(errno.EIO, kinds=["sync"])
        with pytest.raises(SyncFailedError):
            op()
        assert store.has(file, 2)
        killed = fs.crash("killed")
        after = reopened(killed, saved)
        found = after.has(file, 2)
        assert reopened(killed.crash("lost"), saved).has(file, 2) == found
        assert after.has(file, 1)
        outcomes.add(found)
    assert outcomes == {True, False}


def test_a_sync_that_fails_in_recovery_stops_it(store: MessageStore, fs: FaultyFileSystem) -> None:
    saved = checkpoint(store, 1)
    store.write(1, b"one", 1)
    fs.fail(errno.EIO, kinds=["sync"])
    with pytest.raises(SyncFailedError):
        reopened(fs, saved)


def test_states_that_are_none_are_refused(fs: FaultyFileSystem) -> None:
    with pytest.raises(CorruptionError, match="no file state"):
        reopened(fs, Saved([b"junk"], 1, 0))


# ---- damage ------------------------------------------------------------------------------------


@pytest.fixture
def sealed(store: MessageStore, fs: FaultyFileSystem) -> tuple[Saved, dict[int, int]]:
    """Three sealed files, every third body dead, some shared; all of it in a checkpoint."""
    files = fill(store, range(1, 40))
    for id in files:
        if id % 3 == 0:
            store.unref(files[id], id)
        elif id % 5 == 0:
            store.ref(files[id], id, id)
    return checkpoint(store, 1), files


def expected(files: dict[int, int]) -> dict[int, int]:
    return {id: 0 if id % 3 == 0 else 1 + (id if id % 5 == 0 else 0) for id in files}


def test_a_damaged_hint_is_replaced_by_a_scan(
    fs: FaultyFileSystem, sealed: tuple[Saved, dict[int, int]]
) -> None:
    saved, files = sealed
    path = f"{PATH}/2.hint"
    for position in range(0, fs.size(path), 3):
        spoiled = fs.fork()
        spoiled.damage_flip(path, position, position % 8)
        store = reopened(spoiled, saved)
        assert counts_of(store, files) == expected(files), position
        assert all(store.read(file, id) == body(id) for id, file in files.items())
        (error,) = store.take_damage()
        assert error.path == path
        check(store)
        # The next checkpoint has a good hint again.
        again = reopened(spoiled, checkpoint(store, 1, unlink=False))
        assert counts_of(again, files) == expected(files)
        assert again.take_damage() == []


def test_a_missing_or_cut_hint_is_replaced_by_a_scan(
    fs: FaultyFileSystem, sealed: tuple[Saved, dict[int, int]]
) -> None:
    saved, files = sealed
    path = f"{PATH}/2.hint"
    for length in range(-1, fs.size(path), 5):
        spoiled = fs.fork()
        if length < 0:
            spoiled.damage_delete(path)
        else:
            spoiled.damage_cut(path, length)
        store = reopened(spoiled, saved)
        assert counts_of(store, files) == expected(files)
        assert len(store.take_damage()) == 1


def test_a_hint_of_another_file_is_not_believed(
    fs: FaultyFileSystem, sealed: tuple[Saved, dict[int, int]]
) -> None:
    saved, files = sealed
    fs.damage_swap(f"{PATH}/1.hint", f"{PATH}/2.hint")
    store = reopened(fs, saved)
    assert counts_of(store, files) == expected(files)
    assert all(store.read(file, id) == body(id) for id, file in files.items())
    assert len(store.take_damage()) == 2


def test_a_hint_that_rots_at_work(store: MessageStore, fs: FaultyFileSystem) -> None:
    files = fill(store, range(1, 40))
    fs.damage_flip(f"{PATH}/1.hint", 100)
    for id in files:
        if id % 2:
            store.unref(files[id], id)
    assert store.faults
    assert "hint lost" in store.faults[0]
    saved = checkpoint(store, 1, unlink=False)
    after = reopened(fs, saved)
    assert counts_of(after, files) == {id: 1 - id % 2 for id in files}
    assert after.faults == []


def test_a_damaged_byte_is_never_delivered(
    fs: FaultyFileSystem, sealed: tuple[Saved, dict[int, int]]
) -> None:
    saved, files = sealed
    path = f"{PATH}/2.rdq"
    in_it = [id for id, file in files.items() if file == 2]
    for position in range(fs.size(path)):
        spoiled = fs.fork()
        spoiled.damage_flip(path, position, position % 8)
        store = reopened(spoiled, saved)
        hit = (position - HEADER_BYTES) // 316
        for place, id in enumerate(in_it):
            if position < HEADER_BYTES or place == hit:
                with pytest.raises(CorruptionError) as caught:
                    store.read(2, id)
                assert caught.value.path == path
            else:
                assert store.read(2, id) == body(id)
        assert counts_of(store, files) == expected(files)


def test_a_damaged_record_and_a_lost_hint(
    fs: FaultyFileSystem, sealed: tuple[Saved, dict[int, int]]
) -> None:
    """Every byte of a record damaged in turn, while the table must come from a scan."""
    saved, files = sealed
    path = f"{PATH}/2.rdq"
    in_it = [id for id, file in files.items() if file == 2]
    record = HEADER_BYTES + 4 * 316
    for position in range(record, record + 40):
        spoiled = fs.fork()
        spoiled.damage_flip(path, position, position % 8)
        spoiled.damage_delete(f"{PATH}/2.hint")
        store = reopened(spoiled, saved)
        assert counts_of(store, files) == expected(files), position
        for place, id in enumerate(in_it):
            assert store.has(2, id) == (place != 4)
        assert [error.position for error in store.take_damage()] == [0, record]


def test_a_file_that_is_cut_off_is_reported(
    fs: FaultyFileSystem, sealed: tuple[Saved, dict[int, int]]
) -> None:
    saved, files = sealed
    fs.damage_cut(f"{PATH}/2.rdq", 1000)
    store = reopened(fs, saved)
    (error,) = store.take_damage()
    assert (error.path, error.position) == (f"{PATH}/2.rdq", 1000)
    assert counts_of(store, files) == expected(files)
    assert not store.has(2, 24)


@pytest.mark.parametrize("spoil", ["missing", "swapped", "no table"])
def test_a_file_whose_table_cannot_be_known_stops_recovery(
    fs: FaultyFileSystem, sealed: tuple[Saved, dict[int, int]], spoil: str
) -> None:
    saved, _ = sealed
    if spoil == "missing":
        fs.damage_delete(f"{PATH}/2.rdq")
    else:
        fs.damage_delete(f"{PATH}/2.hint")
        if spoil == "swapped":
            fs.damage_swap(f"{PATH}/1.rdq", f"{PATH}/2.rdq")
        else:
            fs.damage_garbage(f"{PATH}/2.rdq", HEADER_BYTES, 1000)
    with pytest.raises(CorruptionError, match=r"2\.rdq"):
        reopened(fs, saved)


def test_damage_in_the_counted_part_of_an_unsealed_file(
    store: MessageStore, fs: FaultyFileSystem
) -> None:
    files = fill(store, range(1, 11))
    saved = checkpoint(store, 1)
    later = store.write(11, b"later", 1)
    for position in range(HEADER_BYTES + 2 * 316, HEADER_BYTES + 2 * 316 + 30):
        spoiled = fs.fork()
        spoiled.damage_flip(f"{PATH}/1.rdq", position, position % 8)
        after = reopened(spoiled, saved)
        assert after.take_damage()
        assert after.has(later, 11), "the tail behind it is still read"
        for id, file in files.items():
            assert after.has(file, id) == (id != 3)
        assert after.live_count >= 9


def test_a_store_of_another_version_or_vhost(store: MessageStore, fs: FaultyFileSystem) -> None:
    store.write(1, b"one", 1)
    stranger = new_store(fs, vhost=VHOST + 1)
    stranger.restore([], 1, 0)
    assert not stranger.has(1, 1)
    path = f"{PATH}/1.rdq"

    def raised(content: bytes) -> bytes:
        import zlib

        head = content[:4] + b"\0\2" + content[6:28]
        return head + zlib.crc32(head).to_bytes(4, "big") + content[32:]

    fs.damage(path, raised)
    with pytest.raises(VersionError, match="expected version 1, found 2"):
        reopened(fs, None)


# ---- the states' bytes -------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [0, 1, 30, 300])
@pytest.mark.parametrize("is_sealed", [True, False])
def test_states_survive_their_bytes(fs: FaultyFileSystem, shared: int, is_sealed: bool) -> None:
    store = new_store(fs, file_bytes_max=1 << 20)
    ids = [id * 7 % 1009 for id in range(1, 900)]
    files = {id: store.write(id, b"%d" % id, 1) for id in ids}
    for n, id in enumerate(ids[: shared * 2]):
        store.ref(files[id], id, n if n % 2 else 1)
    for id in ids[::4]:
        store.unref(files[id], id, store.refs(files[id], id))
    if is_sealed:
        store.append_files._seal_current(store.append_files.files[0])
    (state, own) = (FileState.decode(s.encode()) for s in store_states(store))
    assert own.own is not None
    assert state.is_sealed == is_sealed
    assert FileState.decode(state.encode()).encode() == state.encode()
    after = reopened(fs, Saved([state.encode()], 2, 0), file_bytes_max=1 << 20)
    assert counts_of(after, files) == counts_of(store, files)
    data = state.encode()
    for length in range(len(data)):
        with pytest.raises(ValueError, match=r"cut off|state"):
            FileState.decode(data[:length])
    with pytest.raises(ValueError, match="bodies"):
        FileState.decode(data + b"x")


def store_states(store: MessageStore) -> list[FileState]:
    store.cut(1)
    return store.capture()


def test_a_checkpoint_of_a_sealed_file_is_a_bit_per_body(fs: FaultyFileSystem) -> None:
    store = new_store(fs, file_bytes_max=1 << 20)
    files = fill(store, range(1, 7001))
    for id in range(1, 7001, 3):
        store.unref(files[id], id)
    sealed = [state for state in store_states(store) if state.own is None and state.is_sealed]
    bodies = sum(state.counts.count for state in sealed)
    assert bodies > 6000
    assert sum(len(state.encode()) for state in sealed) < bodies / 7


# ---- on a real disk ----------------------------------------------------------------------------


def test_on_the_real_disk(tmp_path: Path) -> None:
    fs = OsFileSystem(workers=0)
    path = str(tmp_path / "store")

    def opened() -> MessageStore:
        return MessageStore(
            fs, path, VHOST, persistent=True, file_bytes_max=1 << 16, own_file_from=20_000
        )

    store = opened()
    files = {id: store.write(id, body(id, 50 * (id % 500)), 1) for id in range(1, 300)}
    for id in range(1, 200):
        store.unref(files[id], id)
    store.cut(1)
    dead = store.take_dead()
    states = [state.encode() for state in store.capture()]
    store.sync_now()
    for name in dead:
        fs.unlink(name)
    store.close()
    after = opened()
    after.restore(states, store.next_file, store.next_own_file)
    for id, file in files.items():
        if id >= 200:
            assert after.load((file, id)) == body(id, 50 * (id % 500))
        else:
            assert after.refs(file, id) == 0
    assert after.forget_unknown() == []
    after.close()
    fs.close()
