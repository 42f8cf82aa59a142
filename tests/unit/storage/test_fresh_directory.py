"""FreshDirectory: no store before it is finished, whatever happens."""

import random

import pytest

from penstock.errors import LockedError, NetworkFileSystemError, NotAStoreError
from penstock.storage.files.data_directory import DataDirectory, FreshDirectory, delete_tree
from tests.helpers.faulty_filesystem import CrashNow, FaultyFileSystem


def build(fs: FaultyFileSystem) -> None:
    fresh = FreshDirectory(fs, "/copy", "a test")
    path = fresh.vhost(b"name")
    file = fs.open(path + "/content", create=True)
    file.pwrite(b"whole", 0)
    file.sync()
    fs.sync_dir(path)
    fresh.finish()


def test_finished_it_is_a_data_directory() -> None:
    fs = FaultyFileSystem()
    build(fs)
    lost = fs.crash("lost")
    data = DataDirectory(lost, "/copy", create=False)
    assert data.vhost_names() == [b"name"]
    assert lost.list("/copy") == ["LOCK", "VERSION", "vhosts"]


def test_at_every_crash_it_is_whole_or_none() -> None:
    whole = FaultyFileSystem()
    build(whole)
    for at in range(1, whole.operations + 1):
        fs = FaultyFileSystem()
        fs.crash_at = at
        with pytest.raises(CrashNow):
            build(fs)
        for mode in ("lost", "subset", "kept", "torn"):
            after = fs.crash(mode, random.Random(at))
            if after.exists("/copy/VERSION") and after.read("/copy/VERSION") == b"penstock 1\n":
                data = DataDirectory(after, "/copy", create=False)
                path = data.vhost_path(data.vhost_names()[0])
                assert after.read(path + "/content") == b"whole", f"operation {at}, {mode}"
            else:
                if after.exists("/copy") and "vhosts" in after.list("/copy"):
                    with pytest.raises(NotAStoreError):
                        DataDirectory(after, "/copy")
                build(after)


def test_only_one_at_a_time() -> None:
    fs = FaultyFileSystem()
    first = FreshDirectory(fs, "/copy", "a test")
    with pytest.raises(LockedError):
        FreshDirectory(fs, "/copy", "a test")
    first.abandon()
    build(fs)


def test_what_is_not_free_stays_as_it_is() -> None:
    fs = FaultyFileSystem()
    fs.mkdir("/full")
    fs.open("/full/precious", create=True)
    fs.open("/file", create=True)
    fs.mkdir("/begun")
    fs.mkdir("/begun/vhosts")
    names = fs.names()
    for path in ("/full", "/file", "/begun", "/nowhere/copy"):
        with pytest.raises(NotAStoreError):
            FreshDirectory(fs, path, "a test")
    fs.kind_name = "cifs"
    with pytest.raises(NetworkFileSystemError):
        FreshDirectory(fs, "/copy", "a test")
    assert fs.names() == names


def test_delete_tree() -> None:
    fs = FaultyFileSystem()
    delete_tree(fs, "/missing")
    fs.mkdir("/a")
    fs.mkdir("/a/b")
    fs.open("/a/b/c", create=True)
    delete_tree(fs, "/a")
    assert not fs.exists("/a")
