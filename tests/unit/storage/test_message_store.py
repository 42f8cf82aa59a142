"""The store of shared bodies: both size classes behind one address, on RAM and on disk."""

import errno
import random
import sys
from pathlib import Path

import pytest

from penstock.errors import (
    CorruptionError,
    NotAStoreError,
    OptionError,
    StorageError,
)
from penstock.storage.files.filesystem import OsFileSystem
from penstock.storage.store.message_store import MessageStore
from penstock.storage.store.store_file import HEADER_BYTES, OWN_FILE
from tests.contracts.queue_backing import QueueBackingContract, load
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.inside import sync_now
from tests.helpers.stores import (
    PATH,
    VHOST,
    body,
    check,
    fill,
    new_store,
)


@pytest.fixture
def fs() -> FaultyFileSystem:
    return FaultyFileSystem(seed=1)


@pytest.fixture
def store(fs: FaultyFileSystem) -> MessageStore:
    found = new_store(fs)
    fs.sync_dir("/")
    return found


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
    assert store.live_count == len(store.files) == store.total_bytes == 0
    assert not store.has_unsynced()


def test_written_bodies_are_there_before_and_after_sealing(store: MessageStore) -> None:
    files = fill(store, range(1, 101))
    assert len(set(files.values())) > 5
    for _ in range(2):  # from the disk, then from cached blocks
        for id, file in files.items():
            assert store.has(file, id)
            assert store.read(file, id) == body(id)
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
    assert len(store.files) == 1
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
    assert load(store, (file, 5)) == b"piece " * 10


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


@pytest.mark.large
def test_ram_per_body_is_about_a_bit(fs: FaultyFileSystem) -> None:
    store = new_store(fs, file_bytes_max=1 << 20)
    files = fill(store, range(1, 40_001))
    sealed = [file for file in store.files if file.is_sealed]
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
    assert sum(map(len, store.tables._blocks.values())) <= 16 << 10


def ram_bytes(store: MessageStore) -> int:
    """Of all sealed files, measured object by object."""
    total = 0
    for file in store.files:
        if file.is_sealed:
            counts = file.counts
            parts = [file, counts, counts.live, counts.extra, counts.many, file.first_ids]
            parts += [file.ids, file.entries]
            total += sum(sys.getsizeof(part) for part in parts if part is not None)
    return total


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
    sync_now(store)
    for name in dead:
        fs.unlink(name)
    store.close()
    after = opened()
    after.restore(states, store.next_file, store.next_own_file)
    for id, file in files.items():
        if id >= 200:
            assert load(after, (file, id)) == body(id, 50 * (id % 500))
        else:
            assert after.refs(file, id) == 0
    assert after.forget_unknown() == []
    after.close()
    fs.close()
