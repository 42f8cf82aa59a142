"""What people do wrong and disks go through: each has its error class, which says what was
expected, what was found and where; and the data is left as it was.
"""

import random
from dataclasses import replace
from zlib import crc32

import pytest

from penstock.clock import ManualClock
from penstock.errors import (
    CorruptionError,
    DiskFullError,
    LockedError,
    NetworkFileSystemError,
    NotAStoreError,
    OptionError,
    PenstockError,
    VersionError,
)
from penstock.storage.engine import StorageEngine
from penstock.storage.files.data_directory import DataDirectory
from penstock.storage.files.durability import DISK
from penstock.storage.files.options import StorageOptions
from penstock.storage.tools.salvage import salvage
from penstock.storage.tools.stats import stats
from penstock.storage.tools.verify import verify
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.inside import live_seqs
from tests.helpers.tool_stores import (
    DATA,
    OPTIONS,
    VHOST,
    content,
    engine_content,
    entries,
    image,
    make,
    open_vhost,
    vhost_path,
)


@pytest.fixture(scope="module")
def whole() -> FaultyFileSystem:
    return make()


def start(fs: FaultyFileSystem, path: str = DATA) -> list[StorageEngine]:
    """What a server does."""
    data = DataDirectory(fs, path, create=False)
    return [open_vhost(fs, data.vhost_path(name), name) for name in data.vhost_names()]


def tools(fs: FaultyFileSystem, path: str = DATA) -> None:
    """What the tools do; the first that objects."""
    verify(fs, path)
    stats(fs, path)
    salvage(fs, path, "/salvaged", clock=ManualClock(), rng=random.Random(1))


def refused(fs: FaultyFileSystem, kind: type[PenstockError], *words: str, path: str = DATA) -> None:
    """Server and tools refuse with this class and these words, and change nothing."""
    before = image(fs)
    for use in (start, tools):
        with pytest.raises(kind) as caught:
            use(fs.crash("killed"), path)
        for word in words:
            assert word in str(caught.value)
        copy = fs.crash("killed")
        with pytest.raises(kind):
            use(copy, path)
        assert image(copy) == before


def test_a_path_that_is_not_there(whole: FaultyFileSystem) -> None:
    refused(whole, NotAStoreError, "/nowhere", "no such directory", path="/nowhere")


def test_a_file(whole: FaultyFileSystem) -> None:
    fs = whole.fork()
    fs.open("/file", create=True)
    refused(fs, NotAStoreError, "/file", "it is a file", path="/file")


def test_somebody_elses_directory(whole: FaultyFileSystem) -> None:
    fs = whole.fork()
    fs.mkdir("/home")
    fs.open("/home/letter.txt", create=True).pwrite(b"dear", 0)
    refused(fs, NotAStoreError, "/home", "no VERSION", path="/home")
    before = image(fs)
    with pytest.raises(NotAStoreError, match=r"letter\.txt"):
        DataDirectory(fs, "/home")
    assert image(fs) == before


def test_another_version(whole: FaultyFileSystem) -> None:
    fs = whole.fork()
    fs.damage(DATA + "/VERSION", lambda _: b"penstock 7\n")
    refused(fs, VersionError, DATA + "/VERSION", "expected version penstock 1", "found penstock 7")


def test_a_version_that_is_no_version(whole: FaultyFileSystem) -> None:
    fs = whole.fork()
    fs.damage(DATA + "/VERSION", lambda _: b"\x00\x01\x02")
    with pytest.raises(CorruptionError, match="at byte 0: expected 'penstock 1'"):
        start(fs)
    (problem,) = verify(fs, DATA).problems
    assert problem.path == DATA + "/VERSION"


@pytest.mark.parametrize(
    ("name", "position"),
    [
        ("wal/0000000001.wal", 4),
        ("checkpoint-2", 4),
        ("msg_store_persistent/2.rdq", 4),
        ("msg_store_persistent/1.hint", 4),
    ],
)
def test_a_file_with_a_damaged_version(whole: FaultyFileSystem, name: str, position: int) -> None:
    """One file's version alone is damage first: its header does not verify."""
    fs = whole.fork()
    path = f"{vhost_path(fs)}/{name}"
    before = image(fs)
    fs.damage_flip(path, position + 1, 1)
    report = verify(fs, DATA)
    assert path in {problem.path for problem in report.problems}
    assert {at for at, data in image(fs).items() if before[at] != data} == {path}


def test_a_file_of_another_version(whole: FaultyFileSystem) -> None:
    """With a header that verifies: it was written so, by a newer Penstock."""

    def newer(data: bytes) -> bytes:
        head = data[:4] + b"\0\7" + data[6:24]
        return head + crc32(head).to_bytes(4, "big") + data[28:]

    fs = whole.fork()
    path = vhost_path(fs) + "/checkpoint-2"
    fs.damage(path, newer)
    before = image(fs)
    with pytest.raises(VersionError, match=f"{path}: expected version 1, found 7"):
        start(fs)
    assert image(fs) == before
    (problem,) = verify(fs.crash("killed"), DATA).problems
    assert (problem.path, problem.text) == (path, "expected version 1, found 7")


def test_a_locked_directory(whole: FaultyFileSystem) -> None:
    for path in (DATA + "/LOCK", vhost_path(whole) + "/LOCK"):
        fs = whole.crash("killed")
        lock = fs.lock(path)
        before = image(fs)
        with pytest.raises(LockedError, match=r"locked by pid [0-9]+"):
            start(fs)
        with pytest.raises(LockedError, match=r"locked by pid [0-9]+"):
            verify(fs, DATA)
        assert image(fs) == before
        lock.release()


def test_a_network_file_system(whole: FaultyFileSystem) -> None:
    fs = whole.fork()
    fs.kind_name = "nfs4"
    before = image(fs)
    with pytest.raises(NetworkFileSystemError, match=r"/data: .*\(nfs4\)"):
        start(fs)
    with pytest.raises(NetworkFileSystemError, match="nfs4"):
        DataDirectory(fs, "/fresh")
    with pytest.raises(NetworkFileSystemError, match="nfs4"):
        salvage(fs, DATA, "/salvaged", clock=ManualClock(), rng=random.Random(1))
    assert image(fs) == before


@pytest.mark.parametrize("name", ["CURRENT", "checkpoint-2", "wal/0000000001.wal"])
def test_a_damaged_file(whole: FaultyFileSystem, name: str) -> None:
    fs = whole.fork()
    path = f"{vhost_path(fs)}/{name}"
    fs.damage_flip(path, 5)
    before = image(fs)
    with pytest.raises(CorruptionError, match=f"{path}: at byte [0-9]+: ."):
        start(fs)
    assert image(fs) == before


@pytest.mark.parametrize("name", ["CURRENT", "checkpoint-2", "wal/0000000001.wal"])
def test_a_missing_file(whole: FaultyFileSystem, name: str) -> None:
    fs = whole.fork()
    fs.damage_delete(f"{vhost_path(fs)}/{name}")
    before = image(fs)
    with pytest.raises(CorruptionError, match=f"{name}: at byte 0: .*missing"):
        start(fs)
    assert image(fs) == before


@pytest.mark.parametrize("where", [".vhost", "VERSION"])
def test_a_missing_name(whole: FaultyFileSystem, where: str) -> None:
    fs = whole.fork()
    path = f"{DATA}/VERSION" if where == "VERSION" else f"{vhost_path(fs)}/.vhost"
    fs.damage_delete(path)
    before = image(fs)
    with pytest.raises((CorruptionError, NotAStoreError), match=where):
        start(fs)
    assert image(fs) == before
    (problem,) = verify(fs.crash("killed"), DATA).problems
    assert problem.path == path
    assert "it is missing" in problem.text


def test_a_full_disk_refuses_publishers_and_nothing_else() -> None:
    """And when there is space again it goes on, with no restart."""
    fs = make(is_clean=True)
    options = replace(OPTIONS, disk_free_limit=20_000)
    engine = StorageEngine(
        fs, vhost_path(fs), VHOST, clock=ManualClock(), rng=random.Random(2), options=options
    )
    clock = engine.clock
    assert isinstance(clock, ManualClock)
    big = engine.queue(b"big")
    wanted = engine_content(engine)
    fs.capacity = fs.used_bytes() + 10_000
    clock.advance(2)
    engine.tick()
    with pytest.raises(DiskFullError, match=r"[0-9]+ bytes free, 20000 needed"):
        engine.publish([big], b"", b"one more", DISK)
    assert engine_content(engine) == wanted
    seqs = live_seqs(big)
    engine.dequeue(big, entries(engine, big, seqs[0]), DISK)
    engine.sync()
    assert engine.checkpoint()
    fs.capacity = None
    clock.advance(2)
    engine.tick()
    engine.publish([big], b"", b"one more", DISK)
    engine.close()
    found = content(fs)
    assert found[b"big"][:-1] == wanted[b"big"][1:]
    assert verify(fs, DATA).is_fine


def test_an_unknown_option() -> None:
    with pytest.raises(OptionError, match=r"did you mean .*segment_slots"):
        StorageOptions.of({"segment_slot": 4})
    with pytest.raises(OptionError, match=r"segment_slots.*5.*power of two"):
        StorageOptions.of({"segment_slots": 5})
    with pytest.raises(OptionError, match=r"group_bytes_max.*1.*at least"):
        StorageOptions(group_bytes_max=1)


def test_a_disk_that_does_not_read(whole: FaultyFileSystem) -> None:
    fs = whole.crash("killed")
    fs.fail(5, kinds=["read"], path="checkpoint-2", times=None)
    before = image(whole)
    with pytest.raises(OSError, match=r"Input/output error: '.*checkpoint-2'"):
        start(fs)
    fs.clear_faults()
    assert image(fs) == before
