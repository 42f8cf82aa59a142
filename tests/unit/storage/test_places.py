"""log_directory and spill_directory: what is made, what is refused, and that nothing is half made.

Moving them is in test_move.py, crashes are in tests/crash/test_two_disks.py.
"""

import errno
import random
from pathlib import Path

import pytest

from penstock.errors import CorruptionError, LockedError, OptionError, VersionError
from penstock.storage.files.data_directory import (
    LOG,
    OWNER,
    PLACES,
    SPILL,
    DataDirectory,
    PlacedFileSystem,
    hash_name,
    placed,
    read_places,
)
from penstock.storage.files.filesystem import OsFileSystem
from penstock.storage.files.offline import Offline
from tests.helpers.faulty_filesystem import FaultyFileSystem

LOG_AT, SPILL_AT = "/fast/log", "/big/spill"
BOTH = {LOG: LOG_AT, SPILL: SPILL_AT}


def disks() -> FaultyFileSystem:
    fs = FaultyFileSystem()
    for path in ("/fast", "/big", "/srv"):
        fs.mkdir(path)
    fs.sync_all()
    return fs


def opened(
    fs: FaultyFileSystem, log: str = "", spill: str = "", path: str = "/data"
) -> DataDirectory:
    return DataDirectory(
        fs, path, log_directory=log, spill_directory=spill, rng=random.Random(hash(path) & 0xFF)
    )


def made(path: str = "/data") -> FaultyFileSystem:
    fs = disks()
    data = opened(fs, LOG_AT, SPILL_AT, path)
    data.vhost_path(b"/")
    data.close()
    fs.sync_all()
    return fs


def test_a_new_store_has_its_parts_elsewhere() -> None:
    fs = made()
    assert fs.list("/data") == ["LOCK", PLACES, "VERSION", "vhosts"]
    assert fs.read("/data/VERSION") == b"penstock 2\n"
    for root in (LOG_AT, SPILL_AT):
        assert fs.list(root) == [hash_name(b"/"), "LOCK", OWNER]
    assert b"data /data\n" in fs.read(f"{LOG_AT}/{OWNER}")
    places = read_places(fs, "/data")
    assert places is not None
    assert places.roots == BOTH
    assert len(places.id) == 32


def test_without_options_it_is_where_it_is() -> None:
    fs = made()
    for log, spill in (("", ""), (LOG_AT, ""), ("", SPILL_AT), (LOG_AT + "/", SPILL_AT)):
        data = opened(fs, log, spill)
        assert data.places == BOTH
        data.close()


def test_a_store_in_one_directory_has_nothing_of_all_this() -> None:
    fs = disks()
    data = opened(fs, "/data", "/data")  # the data directory itself: there
    assert data.places == {}
    assert data.fs is fs
    assert fs.list("/data") == ["LOCK", "VERSION", "vhosts"]
    assert placed(fs, data.vhost_path(b"/")) is fs


def test_all_directories_are_locked() -> None:
    fs = made()
    data = opened(fs)
    for root in ("/data", LOG_AT, SPILL_AT):
        with pytest.raises(LockedError):
            fs.lock(f"{root}/LOCK")
    data.close()
    with Offline(fs, "/data") as store:
        assert isinstance(store.fs, PlacedFileSystem)
        with pytest.raises(LockedError, match=SPILL_AT):
            fs.lock(f"{SPILL_AT}/LOCK")
    fs.lock(f"{SPILL_AT}/LOCK").release()


# ---- refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("log", "spill", "option", "why"),
    [
        ("/none/log", "", "log_directory", "whose parent exists, there is no /none"),
        ("", "/none/spill", "spill_directory", "whose parent exists, there is no /none"),
        ("/data/log", "", "log_directory", "outside the data directory /data"),
        ("", "/", "spill_directory", "outside the data directory /data, and not one above it"),
        ("/fast/x", "/fast/x", "spill_directory", "apart from log_directory, which is /fast/x"),
        ("/fast/x/y", "/fast/x", "spill_directory", "apart from log_directory"),
        ("/fast/x", "/fast/x/y", "spill_directory", "apart from log_directory"),
        ("/file", "", "log_directory", "a directory, it is a file"),
        ("/full", "", "log_directory", "an empty directory, it has 'report.txt' in it"),
    ],
)
def test_what_is_no_place_is_refused_before_anything_is_made(
    log: str, spill: str, option: str, why: str
) -> None:
    fs = disks()
    fs.open("/file", create=True).close()
    for path in ("/full", "/fast/x"):
        fs.mkdir(path)
    fs.open("/full/report.txt", create=True).close()
    before = fs.names()
    given = log if option == "log_directory" else spill
    with pytest.raises(OptionError, match=f"option {option}: given '{given}', expected") as e:
        opened(fs, log, spill)
    assert why in str(e.value)
    assert fs.names() == before


def test_a_network_file_system_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    fs = disks()
    before = fs.names()
    monkeypatch.setattr(fs, "kind", lambda path: "nfs4" if path.startswith("/big") else "ext4")
    with pytest.raises(OptionError, match=r"spill_directory: given '/big/x'.*local disk.*nfs4"):
        opened(fs, "", "/big/x")
    assert fs.names() == before


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EIO])
@pytest.mark.parametrize("kind", ["mkdir", "create", "pwrite"])
def test_a_directory_that_cannot_be_written_leaves_nothing(code: int, kind: str) -> None:
    fs = disks()
    before = fs.names()
    fs.fail(code, kinds=[kind], path="/big", times=None)
    with pytest.raises(OptionError, match=r"spill_directory: given '/big/spill'.*can be written"):
        opened(fs, LOG_AT, SPILL_AT)
    assert fs.names() == before
    fs.clear_faults()
    opened(fs, LOG_AT, SPILL_AT).close()


def test_a_file_system_without_locks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    fs = disks()
    before = fs.names()
    real = fs.lock

    def lock(path: str) -> object:
        if path.startswith("/fast"):
            raise OSError(errno.ENOLCK, "No locks available", path)
        return real(path)

    monkeypatch.setattr(fs, "lock", lock)
    with pytest.raises(OptionError, match=r"log_directory: given '/fast/log'.*No locks available"):
        opened(fs, LOG_AT, SPILL_AT)
    assert fs.names() == before


def test_the_directory_of_another_store_is_refused() -> None:
    fs = made()
    before = fs.names()
    with pytest.raises(OptionError, match="of no other store, it belongs to the store at /data"):
        opened(fs, LOG_AT, "", "/srv/other")
    with pytest.raises(OptionError, match="an empty directory, it has 'spill'"):
        opened(fs, "/big", "", "/srv/other")
    assert fs.names() == before


def test_another_directory_than_the_stores_is_refused_with_the_command_that_moves() -> None:
    fs = made()
    before = fs.names()
    with pytest.raises(OptionError) as caught:
        opened(fs, "/fast/new", SPILL_AT)
    assert str(caught.value) == (
        "option log_directory: given '/fast/new', expected /fast/log, where this store has its log "
        "files; leave the option out, or move them: "
        "penstock store move /data --log-directory /fast/new"
    )
    with pytest.raises(OptionError, match="expected /big/spill, where this store"):
        opened(fs, "", "/data")
    assert fs.names() == before


def test_a_store_with_messages_in_its_data_directory_is_not_begun_elsewhere() -> None:
    fs = disks()
    data = opened(fs)
    data.vhost_path(b"/")
    data.close()
    before = fs.names()
    with pytest.raises(OptionError, match="expected /data, where this store has its spill files"):
        opened(fs, "", SPILL_AT)
    assert fs.names() == before


def test_a_store_without_any_vhost_may_still_get_them() -> None:
    fs = disks()
    opened(fs).close()
    opened(fs, LOG_AT, SPILL_AT).close()
    assert fs.read("/data/VERSION") == b"penstock 2\n"
    assert opened(fs).places == BOTH


# ---- disks that are not there --------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "root"), list(BOTH.items()))
@pytest.mark.parametrize("is_mount_point_left", [True, False])
def test_a_disk_that_is_not_mounted_is_told_and_nothing_begins(
    kind: str, root: str, is_mount_point_left: bool
) -> None:
    fs = made()
    fs.rename(root, "/srv/unmounted")
    if is_mount_point_left:
        fs.mkdir(root)
    before = fs.names()
    why = f"it has no file {OWNER}" if is_mount_point_left else "there is no such directory"
    expected = f"{kind}_directory: given '{root}'.*{why}; is its disk mounted"
    for call in (
        lambda: opened(fs),
        lambda: opened(fs, LOG_AT, SPILL_AT),
        lambda: placed(fs, f"/data/vhosts/{hash_name(b'/')}"),
        lambda: Offline(fs, "/data"),
    ):
        with pytest.raises(OptionError, match=expected):
            call()
        assert fs.names() == before
    if is_mount_point_left:
        fs.rmdir(root)
    fs.rename("/srv/unmounted", root)
    opened(fs).close()


def test_disks_that_were_exchanged_are_told() -> None:
    fs = made()
    fs.rename(LOG_AT, "/srv/x")
    fs.rename(SPILL_AT, LOG_AT)
    fs.rename("/srv/x", SPILL_AT)
    with pytest.raises(OptionError, match="it is the spill directory of the store at /data"):
        opened(fs)


def test_another_stores_disk_is_told() -> None:
    fs = made()
    opened(fs, "/fast/other", "", "/srv/other").close()
    fs.rename(LOG_AT, "/srv/x")
    fs.rename("/fast/other", LOG_AT)
    with pytest.raises(OptionError, match="belongs to another store, that at /srv/other"):
        opened(fs)


# ---- copies and new paths ------------------------------------------------------------------------


def copy_tree(fs: FaultyFileSystem, old: str, new: str) -> None:
    fs.mkdir(new)
    for name in fs.list(old):
        if fs.is_dir(f"{old}/{name}"):
            copy_tree(fs, f"{old}/{name}", f"{new}/{name}")
        elif name != "LOCK":
            file = fs.open(f"{new}/{name}", create=True)
            file.pwrite(fs.read(f"{old}/{name}"), 0)
            file.close()


def test_a_copy_of_the_data_directory_does_not_take_the_originals_messages() -> None:
    fs = made()
    copy_tree(fs, "/data", "/srv/copy")
    with pytest.raises(OptionError, match="at /srv/copy, which is a copy of the one at /data"):
        opened(fs, path="/srv/copy")
    opened(fs).close()


def test_a_data_directory_that_was_moved_is_opened() -> None:
    fs = made()
    fs.rename("/data", "/srv/moved")
    opened(fs, path="/srv/moved").close()
    assert b"data /srv/moved\n" in fs.read(f"{SPILL_AT}/{OWNER}")
    assert b"data /srv/moved\n" in fs.read(f"{LOG_AT}/{OWNER}")


# ---- PLACES --------------------------------------------------------------------------------------


def test_a_lost_places_file_is_damage_and_no_new_store() -> None:
    fs = made()
    fs.unlink(f"/data/{PLACES}")
    before = fs.names()
    with pytest.raises(CorruptionError, match="PLACES: at byte 0: it is missing"):
        opened(fs)
    assert fs.names() == before


@pytest.mark.parametrize(
    "text",
    [b"", b"penstock places 2\nid 1\n", b"penstock places 1\n", b"penstock places 1\nid 1\nlog x\n",
     b"penstock places 1\nid 1\nlog /fast/log", b"penstock places 1\nid 1\nmail /x\n"],
)  # fmt: skip
def test_a_damaged_places_file_is_told(text: bytes) -> None:
    fs = made()
    file = fs.open(f"/data/{PLACES}")
    file.truncate(0)
    file.pwrite(text, 0)
    file.close()
    with pytest.raises(CorruptionError, match=PLACES):
        opened(fs)


def test_a_name_in_other_letters_than_ours_is_kept(tmp_path: Path) -> None:
    root = tmp_path / "größer  disk\udcff"
    fs = OsFileSystem(0)
    DataDirectory(fs, str(tmp_path / "data"), spill_directory=str(root)).close()
    data = DataDirectory(fs, str(tmp_path / "data"), create=False)
    assert data.places == {SPILL: str(root)}
    data.close()


def test_versions_before_this_refuse_such_a_store() -> None:
    """They look for "penstock 1" and know no other."""
    fs = made()
    assert fs.read("/data/VERSION") != b"penstock 1\n"
    file = fs.open("/data/VERSION")
    file.pwrite(b"penstock 3\n", 0)
    file.close()
    with pytest.raises(VersionError):
        opened(fs)
