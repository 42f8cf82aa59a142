"""One data directory whose files lie in several: the contract, and which file is where."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.storage.files.data_directory import LOG, SPILL, PlacedFileSystem, kind_of
from penstock.storage.files.filesystem import FileSystem, OsFileSystem
from penstock.storage.index.leases import DIRECTORY as LEASES
from penstock.storage.journal import journal, recovery
from penstock.storage.pages.staging import STAGING
from tests.contracts.filesystem import FileSystemContract, put
from tests.helpers.faulty_filesystem import FaultyFileSystem

HASH = "0123456789abcdef"
VHOST = f"/data/vhosts/{HASH}"
ROOTS = {LOG: "/fast/log", SPILL: "/big/spill"}


class TestPlacedFileSystem(FileSystemContract):
    @pytest.fixture(params=[0, 1])
    def fs(self, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[FileSystem]:
        data = tmp_path / "data"
        (data / "vhosts" / HASH).mkdir(parents=True)
        (tmp_path / "spill" / HASH / "queues").mkdir(parents=True)
        below = OsFileSystem(workers=request.param)
        yield PlacedFileSystem(
            below, str(data), os.path.realpath(data), {SPILL: str(tmp_path / "spill")}
        )
        below.close()

    @pytest.fixture
    def root(self, tmp_path: Path) -> str:
        return str(tmp_path / "data" / "vhosts" / HASH / "queues")


def simulated(roots: dict[str, str] = ROOTS) -> PlacedFileSystem:
    below = FaultyFileSystem()
    for path in ("/data", "/data/vhosts", "/fast", "/fast/log", "/big", "/big/spill"):
        below.mkdir(path)
    fs = PlacedFileSystem(below, "/data", "/data", roots)
    fs.mkdir(VHOST)
    return fs


def test_every_part_of_a_vhost_has_its_place() -> None:
    parts = [*recovery.PARTS, *journal.RESERVE_NAMES, LEASES, STAGING, "CURRENT", "CURRENT.new"]
    kinds = {part: kind_of(part) for part in [*parts, "checkpoint-7"]}
    log = {"wal", "reserve", "CURRENT", "CURRENT.new", "checkpoint-7"}
    assert {part for part, kind in kinds.items() if kind == LOG} == log
    assert {part for part, kind in kinds.items() if kind == SPILL} == kinds.keys() - log
    for name in (".vhost", ".vhost.new", "LOCK", "walx", "queues.old"):
        assert kind_of(name) == "", name


def test_files_are_where_they_belong() -> None:
    fs = simulated()
    put(fs, f"{VHOST}/.vhost", b"v")
    put(fs, f"{VHOST}/CURRENT.new", b"c")
    fs.rename(f"{VHOST}/CURRENT.new", f"{VHOST}/CURRENT")
    fs.mkdir(f"{VHOST}/queues")
    put(fs, f"{VHOST}/queues/1.qi", b"q")
    below = fs.below
    assert below.read(f"/fast/log/{HASH}/CURRENT") == b"c"
    assert below.read(f"/big/spill/{HASH}/queues/1.qi") == b"q"
    assert below.list(VHOST) == [".vhost"]
    assert fs.list(VHOST) == [".vhost", "CURRENT", "queues"]
    assert fs.place(f"{VHOST}/queues/1.qi") == f"/big/spill/{HASH}/queues/1.qi"
    assert fs.place("/elsewhere/wal") == "/elsewhere/wal"


def test_what_lies_in_the_wrong_directory_is_not_seen() -> None:
    """As an interrupted move leaves it."""
    fs = simulated()
    put(fs.below, f"{VHOST}/CURRENT", b"old")
    put(fs.below, f"/big/spill/{HASH}/checkpoint-3", b"old")
    put(fs.below, f"/fast/log/{HASH}/checkpoint-4", b"new")
    assert fs.list(VHOST) == ["checkpoint-4"]
    assert not fs.exists(f"{VHOST}/CURRENT")


@pytest.mark.parametrize("roots", [ROOTS, {LOG: "/fast/log"}, {SPILL: "/big/spill"}])
def test_one_kind_may_stay(roots: dict[str, str]) -> None:
    fs = simulated(roots)
    fs.mkdir(f"{VHOST}/wal")
    fs.mkdir(f"{VHOST}/streams")
    assert fs.list(VHOST) == ["streams", "wal"]
    assert fs.below.exists(f"{roots.get(LOG, '/data/vhosts')}/{HASH}/wal")
    assert fs.below.exists(f"{roots.get(SPILL, '/data/vhosts')}/{HASH}/streams")
    assert fs.disks(VHOST) == [roots.get(LOG, "/data/vhosts"), roots.get(SPILL, "/data/vhosts")]
    assert fs.disks(f"{VHOST}/wal") == [f"{roots.get(LOG, '/data/vhosts')}/{HASH}/wal"]


def test_a_vhost_is_removed_everywhere() -> None:
    fs = simulated()
    fs.rmdir(VHOST)
    for path in ("/fast/log", "/big/spill", "/data/vhosts"):
        assert fs.below.list(path) == []


def test_free_is_what_the_fullest_disk_has(monkeypatch: pytest.MonkeyPatch) -> None:
    fs = simulated()
    free = {"/data": 5, "/fast": 300, "/big": 70}
    monkeypatch.setattr(fs.below, "free_bytes", lambda path: free["/" + path.split("/")[1]])
    assert fs.free_bytes(VHOST) == fs.free_bytes("/data") == 70
    assert fs.free_bytes(f"{VHOST}/wal") == 300
    assert fs.free_bytes("/data/vhosts") == 5


def test_paths_are_known_however_they_are_spelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, spill = tmp_path / "data", tmp_path / "spill"
    vhost = data / "vhosts" / HASH
    vhost.mkdir(parents=True)
    (tmp_path / "link").symlink_to(vhost)
    place = f"{spill}/{HASH}/queues/1.qi"
    real = os.path.realpath(data)
    roots = {SPILL: str(spill)}
    monkeypatch.chdir(vhost)
    for given in (str(data), str(vhost), ".", "../..", str(tmp_path / "link")):
        fs = PlacedFileSystem(OsFileSystem(0), given, real, roots)
        inside = given if os.path.realpath(given) != real else f"{given}/vhosts/{HASH}"
        assert fs.place(f"{inside}/queues/1.qi") == place, given
        assert fs.place(f"{inside}/queues/../queues/1.qi") == place, given
