import random
from pathlib import Path

import pytest

from penstock.access.users import Users
from penstock.config import FIX, IGNORE, REFUSE
from penstock.server import vhost_directories
from penstock.storage.files.data_directory import DataDirectory, hash_name
from penstock.storage.files.filesystem import OsFileSystem
from penstock.storage.files.user_store import CREATING, DELETING, READY, UserStore
from penstock.storage.tools.verify import verify


class Crash(Exception):
    """The process ends here."""


class CrashingFileSystem(OsFileSystem):
    """Raises Crash at the n-th change of names."""

    def __init__(self, crash_at: int) -> None:
        super().__init__(0)
        self.left = crash_at

    def _count(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise Crash

    def unlink(self, path: str) -> None:
        self._count()
        super().unlink(path)

    def rmdir(self, path: str) -> None:
        self._count()
        super().rmdir(path)

    def mkdir(self, path: str) -> None:
        self._count()
        super().mkdir(path)

    def rename(self, old: str, new: str) -> None:
        self._count()
        super().rename(old, new)

    def sync_dir(self, path: str) -> None:
        self._count()
        super().sync_dir(path)


class Opened:
    """A data directory and its users, as a start of the node has them."""

    def __init__(self, path: Path, crash_at: int = 0) -> None:
        self.data = DataDirectory(OsFileSystem(0), str(path))
        self.data.fs = CrashingFileSystem(crash_at)
        self.store = UserStore(str(path / "node.db"))
        self.users = Users(self.store, rng=random.Random(1), log2_n=1)

    def __enter__(self) -> "Opened":
        return self

    def __exit__(self, *_: object) -> None:
        self.store.close()
        self.data.close()


def directory(path: Path, name: str) -> Path:
    return path / "vhosts" / hash_name(name.encode())


def fill(path: Path) -> None:
    (path / "wal").mkdir()
    for name in ("CURRENT", "checkpoint-1", "LOCK", "wal/1.wal", "wal/2.wal"):
        (path / name).write_bytes(b"x")


def test_a_first_start_makes_what_is_creating(tmp_path: Path) -> None:
    with Opened(tmp_path) as node:
        assert node.users.vhosts() == {"/": CREATING}
        vhost_directories.finish(node.data, node.users)
        assert node.users.vhosts() == {"/": READY}
        assert directory(tmp_path, "/").is_dir()


def test_adding_survives_a_crash_at_each_step(tmp_path: Path) -> None:
    for crash_at in range(1, 100):
        at = tmp_path / str(crash_at)
        with Opened(at) as node:
            vhost_directories.finish(node.data, node.users)
        try:
            with Opened(at, crash_at) as node:
                node.users.add_vhost("v")
                vhost_directories.make(node.data, node.users, "v")
                break
        except Crash:
            pass
        with Opened(at) as node:
            vhost_directories.finish(node.data, node.users)
            assert node.users.vhosts() == {"/": READY, "v": READY}
            assert sorted(node.data.vhost_names()) == [b"/", b"v"]
    assert crash_at > 3


def test_deleting_survives_a_crash_at_each_step(tmp_path: Path) -> None:
    for crash_at in range(1, 100):
        at = tmp_path / str(crash_at)
        with Opened(at) as node:
            vhost_directories.finish(node.data, node.users)
            node.users.add_vhost("v")
            vhost_directories.make(node.data, node.users, "v")
            fill(directory(at, "v"))
        try:
            with Opened(at, crash_at) as node:
                node.users.delete_vhost("v")
                vhost_directories.remove(node.data, "v")
                node.users.vhost_gone("v")
                assert not directory(at, "v").exists()
                break
        except Crash:
            pass
        with Opened(at) as node:
            assert node.users.vhosts()["v"] == DELETING
            vhost_directories.finish(node.data, node.users)
            assert node.users.vhosts() == {"/": READY}
            assert node.data.vhost_names() == [b"/"]
        assert not directory(at, "v").exists()
    assert crash_at > 8


def test_what_the_library_made_is_adopted(tmp_path: Path) -> None:
    with Opened(tmp_path) as node:
        node.data.vhost_path(b"box")
        vhost_directories.finish(node.data, node.users)
        assert node.users.vhosts() == {"/": READY, "box": READY}


@pytest.mark.parametrize("inside", ["", "/vhosts", "/node.db", "/vhosts/one"])
def test_a_directory_in_which_others_may_write(
    tmp_path: Path, inside: str, caplog: pytest.LogCaptureFixture
) -> None:
    data = tmp_path / "data"
    (data / "vhosts" / "one").mkdir(parents=True)
    (data / "node.db").touch()
    for path in (data / "vhosts", data / "vhosts" / "one"):
        path.chmod(0o755)
    data.chmod(0o700)
    (data / "node.db").chmod(0o600)
    fs, place = OsFileSystem(0), Path(f"{data}{inside}")
    for what in (REFUSE, FIX, IGNORE):
        vhost_directories.secure(fs, str(data), what)
    place.chmod(0o777)
    with pytest.raises(PermissionError, match="data_permissions") as caught:
        vhost_directories.secure(fs, str(data), REFUSE)
    assert caught.value.filename == str(place)
    assert not caplog.text
    vhost_directories.secure(fs, str(data), IGNORE)
    assert fs.permissions(str(place)) == 0o777
    assert "others than its owner may write in it (mode 0777)" in caplog.text
    vhost_directories.secure(fs, str(data), FIX)
    mode = 0o755 if "vhosts" in inside else 0o700
    assert fs.permissions(str(place)) == mode
    assert caplog.text.count(f"which is changed to {mode:04o}") == 1
    vhost_directories.secure(fs, str(data), FIX)
    assert caplog.text.count("which is changed") == 1
    fs.close()


@pytest.mark.parametrize(("mode", "fixed"), [(0o755, 0o700), (0o2750, 0o2700), (0o711, 0o700)])
def test_a_directory_that_others_may_read_is_closed(
    tmp_path: Path, mode: int, fixed: int, caplog: pytest.LogCaptureFixture
) -> None:
    """It does not keep a broker from starting, not even where the mode cannot be changed."""
    data, log = tmp_path / "data", tmp_path / "log"
    for path in (data, log):
        path.mkdir()
    (data / "node.db").touch(0o600)
    fs = OsFileSystem(0)
    for path in (data, log):
        path.chmod(mode)
        for what in (REFUSE, IGNORE):
            caplog.clear()
            vhost_directories.secure(fs, str(data), what, [str(log)])
            assert fs.permissions(str(path)) == mode
            assert f"{path}: others than its owner may read it (mode {mode:04o})" in caplog.text
        vhost_directories.secure(fs, str(data), FIX, [str(log)])
        assert fs.permissions(str(path)) == fixed
        assert f"which is changed to {fixed:04o}" in caplog.text
    (data / "node.db").chmod(0o644)
    vhost_directories.secure(fs, str(data), FIX)
    assert fs.permissions(f"{data}/node.db") == 0o600
    fs.close()


def test_a_directory_whose_mode_may_not_be_changed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o775)
    fs = OsFileSystem(0)

    def denied(path: str, bits: int) -> None:
        raise PermissionError(1, "Operation not permitted", path)

    monkeypatch.setattr(fs, "set_permissions", denied)
    with pytest.raises(PermissionError, match="cannot be changed: Operation not permitted"):
        vhost_directories.secure(fs, str(tmp_path), FIX)
    fs.close()


@pytest.mark.parametrize("text", [None, b"", b"v", b"vw\n", b"\xff\n"])
def test_a_damaged_name_is_mended_if_the_vhost_is_known_and_reported_like_the_tools_do(
    tmp_path: Path, text: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    with Opened(tmp_path) as node:
        vhost_directories.finish(node.data, node.users)
        node.users.add_vhost("v")
        vhost_directories.make(node.data, node.users, "v")
        node.data.vhost_path(b"box")
    for name in ("v", "box"):
        (directory(tmp_path, name) / "CURRENT").write_bytes(b"x")
        stub = directory(tmp_path, name) / ".vhost"
        stub.unlink() if text is None else stub.write_bytes(text)
    if text == b"v":  # the newline is for people
        (directory(tmp_path, "v") / ".vhost").write_bytes(b"w")
    found = [
        problem.text for problem in verify(OsFileSystem(0), str(tmp_path)).problems
        if problem.path.endswith(".vhost")
    ]  # fmt: skip
    with Opened(tmp_path) as node:
        vhost_directories.finish(node.data, node.users)
        assert set(node.users.vhosts()) == {"/", "v"}
    logged = [record for record in caplog.records if ".vhost: " in record.getMessage()]
    assert [record.levelname for record in logged] == ["WARNING", "ERROR"]
    assert (directory(tmp_path, "v") / ".vhost").read_bytes() == b"v\n"
    for hashed in (hash_name(b"v"), hash_name(b"box")):
        (said,) = [one for one in found if hashed in one]
        assert len([one for one in logged if said in one.getMessage()]) == 1
    what = "it is missing" if text is None else "found b'"
    assert all(what in said and "write the name into it" in said for said in found)
