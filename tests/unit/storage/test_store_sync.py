"""What is synced when: the registry of unsynced files, as the store uses it."""

import errno

import pytest

from penstock.errors import (
    StoppedError,
    SyncFailedError,
)
from penstock.storage.store.message_store import MessageStore
from penstock.storage.store.store_sync import TRIES
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.inside import sync_now
from tests.helpers.stores import (
    PATH,
    body,
    fill,
    new_store,
    reopened,
)


@pytest.fixture
def fs() -> FaultyFileSystem:
    return FaultyFileSystem(seed=1)


@pytest.fixture
def store(fs: FaultyFileSystem) -> MessageStore:
    found = new_store(fs)
    fs.sync_dir("/")
    return found


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

    sync_now(store)
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
    sync_now(store)
    after = reopened(fs.crash("lost"), None)
    assert all(after.has(file, id) for file, id in addresses)


def test_many_finished_files_do_not_hold_handles(fs: FaultyFileSystem) -> None:
    store = new_store(fs, own_file_from=1)
    fs.sync_dir("/")
    addresses = [(store.write(id, b"b", 1), id) for id in range(200)]
    assert sum(fs.handles.values()) <= 70
    sync_now(store)
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
    sync_now(store)
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
        lambda: sync_now(store),
    ):
        with pytest.raises(StoppedError):
            refused()
    assert store.read(file, 1) == b"body"


def test_a_file_that_cannot_be_opened_for_want_of_a_descriptor_is_no_failed_sync(
    fs: FaultyFileSystem,
) -> None:
    """More files than stay open, and the directory: each is opened again for its sync."""
    store = new_store(fs, own_file_from=1)
    fs.sync_dir("/")
    addresses = [(store.write(id, b"b", 1), id) for id in range(100)]
    fault = fs.fail(errno.EMFILE, kinds=["open"], times=TRIES - 1)
    sync_now(store)
    assert fault.hits == TRIES - 1
    fs.fail(errno.ENFILE, kinds=["open"], path=lambda path: path == PATH)
    addresses.append((store.write(200, b"b", 1), 200))
    sync_now(store)
    after = reopened(fs.crash("lost"), None)
    assert all(after.has(file, id) for file, id in addresses)


def test_a_transient_store_never_syncs(fs: FaultyFileSystem) -> None:
    store = new_store(fs, persistent=False, own_file_from=1000)
    fs.fail(errno.EIO, kinds=["sync", "sync_dir"], times=None)
    files = {id: store.write(id, body(id, 100 * (id % 14)), 1) for id in range(100)}
    assert not store.has_unsynced()
    sync_now(store)
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
