"""Offline: which directory was meant, and what can be told of it when it is damaged."""

import pytest

from penstock.errors import LockedError, NotAStoreError
from penstock.storage.files.data_directory import DataDirectory, queue_name, vhost_number
from penstock.storage.files.offline import Offline
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.tool_stores import DATA, VHOST, make, open_vhost, vhost_path


@pytest.fixture(scope="module")
def whole() -> FaultyFileSystem:
    return make(is_clean=True)


def test_a_data_directory_and_a_vhost(whole: FaultyFileSystem) -> None:
    for path in (DATA, DATA + "/", vhost_path(whole)):
        with Offline(whole.fork(), path) as store:
            (vhost,) = store.vhosts
            assert (vhost.name, vhost.number) == (VHOST, vhost_number(VHOST))
            assert vhost.title() == "/"
            assert not store.faults


def test_a_lost_name_is_found_among_the_usual_ones(whole: FaultyFileSystem) -> None:
    fs = whole.fork()
    fs.damage_flip(vhost_path(fs) + "/.vhost", 0)
    with Offline(fs, DATA) as store:
        (vhost,) = store.vhosts
        assert (vhost.name, vhost.number) == (VHOST, vhost_number(VHOST))
        assert [fault.path for fault in store.faults] == [vhost_path(fs) + "/.vhost"]


def test_a_lost_name_leaves_the_number() -> None:
    name = b"orders"
    fs = FaultyFileSystem()
    path = DataDirectory(fs, DATA).vhost_path(name)
    open_vhost(fs, path, name).close()
    fs = fs.crash("kept")
    fs.damage_flip(path + "/.vhost", 0)
    with Offline(fs, DATA) as store:
        (vhost,) = store.vhosts
        assert (vhost.name, vhost.number) == (b"", vhost_number(name))
        assert vhost.title() == f"{vhost_number(name):016x}"
        assert [fault.path for fault in store.faults] == [path + "/.vhost"]
    with Offline(fs, DATA, [b"others", name]) as store:
        assert [vhost.name for vhost in store.vhosts] == [name]


def test_a_moved_vhost_is_known_by_its_files(whole: FaultyFileSystem) -> None:
    fs = whole.fork()
    fs.rename(vhost_path(fs), "/moved")
    fs.unlink("/moved/.vhost")
    with Offline(fs, "/moved") as store:
        assert [vhost.number for vhost in store.vhosts] == [vhost_number(VHOST)]


def test_a_lost_version_is_a_fault_and_an_unfinished_copy_no_store(
    whole: FaultyFileSystem,
) -> None:
    fs = whole.fork()
    fs.unlink(DATA + "/VERSION")
    with Offline(fs, DATA) as store:
        assert [fault.path for fault in store.faults] == [DATA + "/VERSION"]
    fs.open(DATA + "/UNFINISHED", create=True)
    with pytest.raises(NotAStoreError):
        Offline(fs, DATA)


def test_all_locks_or_none(whole: FaultyFileSystem) -> None:
    fs = whole.fork()
    lock = fs.lock(vhost_path(fs) + "/LOCK")
    with pytest.raises(LockedError):
        Offline(fs, DATA)
    lock.release()
    store = Offline(fs, DATA)
    with pytest.raises(LockedError):
        Offline(fs, DATA)
    store.close()
    store.close()
    Offline(fs, DATA).close()


def test_a_queue_has_its_name(whole: FaultyFileSystem) -> None:
    fs = whole.fork()
    queues = vhost_path(fs) + "/queues"
    (big,) = [f"{queues}/{d}" for d in fs.list(queues) if d.endswith(".1")]
    assert queue_name(fs, big) == b"big"
    fs.damage_flip(big + "/.queue_name", 1)
    assert queue_name(fs, big) == b""
    fs.unlink(big + "/.queue_name")
    assert queue_name(fs, big) == b""
