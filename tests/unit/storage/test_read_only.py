"""ReadOnlyFileSystem: everything works, and nothing reaches the file system below."""

import pytest

from penstock.errors import StorageError
from penstock.storage.files.offline import ReadOnlyFileSystem
from tests.helpers.faulty_filesystem import FaultyFileSystem


@pytest.fixture
def below() -> FaultyFileSystem:
    fs = FaultyFileSystem()
    fs.mkdir("/d")
    file = fs.open("/d/a", create=True)
    file.pwrite(b"as it was", 0)
    file.close()
    fs.open("/d/b", create=True).close()
    fs.sync_all()
    return fs


def test_changes_are_seen_here_and_not_below(below: FaultyFileSystem) -> None:
    before, operations = below.names(), below.operations
    fs = ReadOnlyFileSystem(below)
    reader = fs.open("/d/a")
    file = fs.open("/d/a")
    assert file.pread(9, 0) == b"as it was"
    file.pwrite(b"isn't", 3)
    assert fs.read("/d/a") == reader.pread(20, 0) == b"as isn't"[:8] + b"s"
    file.truncate(4)
    file.truncate(6)
    assert (fs.read("/d/a"), fs.size("/d/a"), reader.size()) == (b"as i\0\0", 6, 6)
    file.pwrite(b"!", 8)
    assert reader.pread(9, 0) == b"as i\0\0\0\0!"
    file.close()
    fs.mkdir("/d/e")
    fs.open("/d/e/f", create=True).allocate(3)
    fs.rename("/d/a", "/d/c")
    fs.link("/d/c", "/d/l")
    fs.unlink("/d/b")
    assert fs.list("/d") == ["c", "e", "l"]
    assert fs.list("/d/e") == ["f"]
    assert [fs.exists(f"/d/{name}") for name in "abcel"] == [False, False, True, True, True]
    assert fs.is_dir("/d/e")
    assert not fs.is_dir("/d/c")
    assert fs.is_dir("/d")
    fs.unlink("/d/e/f")
    fs.rmdir("/d/e")
    fs.sync_dir("/d")
    assert below.names() == before
    assert below.read("/d/a") == b"as it was"
    assert below.operations == operations


def test_what_is_gone_is_gone(below: FaultyFileSystem) -> None:
    fs = ReadOnlyFileSystem(below)
    fs.unlink("/d/a")
    for use in (fs.open, fs.read, fs.size, fs.unlink):
        with pytest.raises(FileNotFoundError):
            use("/d/a")
    with pytest.raises(FileExistsError):
        fs.link("/d/b", "/d/b")
    fs.open("/d/a", create=True).pwrite(b"new", 0)
    assert fs.read("/d/a") == b"new"


def test_syncs_pass_for_files_on_disk(below: FaultyFileSystem) -> None:
    fs = ReadOnlyFileSystem(below)
    operations = below.operations
    file = fs.open("/d/a")
    file.sync()
    file.drop_cache()
    assert below.operations == operations + 1
    file.truncate(0)
    file.sync()
    file.drop_cache()
    assert below.operations == operations + 1


def test_work_runs_at_once(below: FaultyFileSystem) -> None:
    fs = ReadOnlyFileSystem(below)
    one = fs.submit(lambda: 1)
    two = fs.submit(lambda: fs.read("/missing"))
    (first, second) = fs.completed(True)
    assert first == (one, 1)
    assert second[0] == two
    assert isinstance(second[1], FileNotFoundError)
    assert fs.completed(True) == []
    assert (fs.kind("/"), fs.free_bytes("/")) == (below.kind("/"), below.free_bytes("/"))
    with pytest.raises(StorageError):
        fs.lock("/d/LOCK")
    fs.close()
