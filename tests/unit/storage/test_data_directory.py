"""The data directory: what is ours, what is not, and that a crash while it is made does no harm."""

import errno

import pytest

from penstock.errors import (
    CorruptionError,
    LockedError,
    NetworkFileSystemError,
    NotAStoreError,
    VersionError,
)
from penstock.storage.files.data_directory import (
    DataDirectory,
    FreshDirectory,
    check_version,
    hash_name,
    vhost_number,
)
from penstock.storage.files.filesystem import OsFileSystem
from tests.helpers.faulty_filesystem import CrashNow, FaultyFileSystem


def made(path: str = "/data") -> FaultyFileSystem:
    fs = FaultyFileSystem()
    DataDirectory(fs, path).close()
    return fs


def test_a_missing_directory_is_made_and_whole() -> None:
    fs = made()
    assert fs.list("/data") == ["LOCK", "VERSION", "vhosts"]
    assert fs.read("/data/VERSION") == b"penstock 1\n"
    assert fs.crash("lost").list("/data") == fs.list("/data")


def test_an_empty_directory_is_taken() -> None:
    fs = FaultyFileSystem()
    fs.mkdir("/data")
    DataDirectory(fs, "/data/").close()
    assert fs.exists("/data/VERSION")


def test_it_is_opened_again() -> None:
    fs = made()
    directory = DataDirectory(fs, "/data", create=False)
    assert directory.vhost_names() == []
    directory.close()


def test_missing_and_not_to_be_made_is_no_store() -> None:
    fs = FaultyFileSystem()
    with pytest.raises(NotAStoreError, match="there is no such directory"):
        DataDirectory(fs, "/data", create=False)
    assert not fs.exists("/data")


def test_a_wrong_path_is_told_from_a_store() -> None:
    fs = FaultyFileSystem()
    fs.open("/file", create=True).close()
    fs.mkdir("/other")
    for create in (True, False):
        with pytest.raises(NotAStoreError, match="it is a file"):
            DataDirectory(fs, "/file", create=create)
    with pytest.raises(NotAStoreError, match="no VERSION file"):
        DataDirectory(fs, "/other", create=False)


def test_a_directory_of_somebody_else_is_left_alone() -> None:
    fs = FaultyFileSystem()
    fs.mkdir("/home")
    fs.open("/home/thesis.txt", create=True).close()
    before = fs.names()
    with pytest.raises(NotAStoreError, match=r"not ours \(it has 'thesis.txt'\)"):
        DataDirectory(fs, "/home")
    assert fs.names() == before


VOLUMES = [
    "lost+found",
    "..data",
    "..2026_01_02",
    ".snapshot",
    ".zfs",
    ".Trash-1000",
    "aquota.user",
]


@pytest.mark.parametrize("name", VOLUMES)
def test_a_fresh_volume_is_taken_and_what_it_brings_stays(name: str) -> None:
    fs = FaultyFileSystem()
    for path in ("/data", f"/data/{name}", "/copy", f"/copy/{name}"):
        fs.mkdir(path)
    DataDirectory(fs, "/data").close()
    DataDirectory(fs, "/data", create=False).close()
    FreshDirectory(fs, "/copy", "a backup").finish()
    DataDirectory(fs, "/copy").close()
    assert fs.exists(f"/data/{name}")
    assert fs.exists(f"/copy/{name}")


def test_what_lies_beside_a_whole_store_is_no_hindrance() -> None:
    fs = made()
    fs.open("/data/notes", create=True).close()
    DataDirectory(fs, "/data").close()


def test_two_owners_are_one_too_many_and_the_second_is_told_who_the_first_is() -> None:
    fs = FaultyFileSystem()
    first = DataDirectory(fs, "/data")
    with pytest.raises(LockedError, match="pid"):
        DataDirectory(fs, "/data")
    first.close()
    DataDirectory(fs, "/data").close()


@pytest.mark.parametrize("text", [b"penstock 3\n", b"penstock 0"])
def test_another_version_is_refused_by_name(text: bytes) -> None:
    fs = made()
    fs.damage("/data/VERSION", lambda _: text)
    with pytest.raises(VersionError, match=r"expected version penstock 1 or 2, found penstock \d"):
        DataDirectory(fs, "/data")
    with pytest.raises(VersionError):
        check_version(fs, "/data")


@pytest.mark.parametrize("text", [b"", b"penstock", b"penstock x", b"\xff\x00", b"rabbit 1"])
def test_a_damaged_version_is_damage(text: bytes) -> None:
    fs = made()
    fs.damage("/data/VERSION", lambda _: text)
    with pytest.raises(CorruptionError, match="expected 'penstock 1'") as caught:
        DataDirectory(fs, "/data")
    assert (caught.value.path, caught.value.position) == ("/data/VERSION", 0)


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs"])
def test_a_network_file_system_is_refused(kind: str) -> None:
    fs = FaultyFileSystem()
    fs.kind_name = kind
    with pytest.raises(NetworkFileSystemError, match=kind):
        DataDirectory(fs, "/data")
    assert not fs.exists("/data")


def test_names_never_become_paths() -> None:
    fs = FaultyFileSystem()
    directory = DataDirectory(fs, "/data")
    path = directory.vhost_path(b"../../etc")
    assert path == "/data/vhosts/" + hash_name(b"../../etc")
    assert fs.read(path + "/.vhost") == b"../../etc\n"
    assert int(hash_name(b"/"), 16) == vhost_number(b"/")


def test_vhosts_are_found_by_their_names_and_survive_a_power_cut() -> None:
    fs = FaultyFileSystem()
    directory = DataDirectory(fs, "/data")
    paths = {directory.vhost_path(name) for name in (b"/", b"other", b"with\nline", b"/")}
    assert len(paths) == 3
    after = DataDirectory(fs.crash("lost"), "/data")
    assert sorted(after.vhost_names()) == [b"/", b"other", b"with\nline"]


@pytest.mark.parametrize("mode", ["lost", "kept"])
def test_a_crash_anywhere_while_it_is_made_leaves_what_can_be_begun_again(mode: str) -> None:
    point = 0
    while True:
        point += 1
        fs = FaultyFileSystem()
        fs.crash_at = point
        try:
            DataDirectory(fs, "/data").vhost_path(b"/")
        except CrashNow:
            pass
        else:
            break
        after = fs.crash(mode)
        directory = DataDirectory(after, "/data")
        directory.vhost_path(b"/")
        assert directory.vhost_names() == [b"/"]
    assert point > 10


def test_a_failure_while_it_is_made_gives_the_lock_back() -> None:
    fs = FaultyFileSystem()
    fs.fail(errno.ENOSPC, kinds={"mkdir"}, path="vhosts")
    with pytest.raises(OSError, match="No space"):
        DataDirectory(fs, "/data")
    DataDirectory(fs, "/data").close()


@pytest.mark.real
def test_the_real_file_system_gives_the_same(tmp_path: object) -> None:
    fs = OsFileSystem(workers=0)
    path = f"{tmp_path}/data"
    first = DataDirectory(fs, path)
    assert first.vhost_path(b"/") == f"{path}/vhosts/{hash_name(b'/')}"
    with pytest.raises(LockedError):
        DataDirectory(fs, path)
    first.close()
    again = DataDirectory(fs, path, create=False)
    assert again.vhost_names() == [b"/"]
    again.close()
    fs.close()
