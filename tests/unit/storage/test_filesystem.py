"""The operating system's files: the contract, and what only they do."""

import contextlib
import errno
import fcntl
import os
import resource
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import LockedError
from penstock.storage.files import filesystem
from penstock.storage.files.filesystem import NETWORK_KINDS, File, FileSystem, OsFileSystem
from tests.contracts.filesystem import FileSystemContract, fails_with, put


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path)


@pytest.fixture(params=[0, 1, 3])
def fs(request: pytest.FixtureRequest) -> Iterator[FileSystem]:
    system = OsFileSystem(workers=request.param)
    yield system
    system.close()


class TestOsFileSystem(FileSystemContract):
    pass


@pytest.fixture
def local() -> OsFileSystem:
    return OsFileSystem()


def test_modes_keep_others_out(local: OsFileSystem, root: str) -> None:
    local.mkdir(f"{root}/d")
    put(local, f"{root}/d/f", b"")
    local.lock(f"{root}/d/LOCK").release()
    assert stat.S_IMODE(os.stat(f"{root}/d").st_mode) == 0o700
    assert stat.S_IMODE(os.stat(f"{root}/d/f").st_mode) == 0o600
    assert stat.S_IMODE(os.stat(f"{root}/d/LOCK").st_mode) == 0o600


def test_files_are_not_inherited_by_programs(local: OsFileSystem, root: str) -> None:
    file = local.open(f"{root}/f", create=True)
    assert isinstance(file, filesystem.OsFile)
    assert not os.get_inheritable(file._descriptor)


@pytest.mark.parametrize(("free_blocks", "code"), [(0, errno.ENOSPC), (1 << 20, errno.EIO)])
def test_a_short_write_is_an_error_that_says_how_much(
    local: OsFileSystem,
    root: str,
    monkeypatch: pytest.MonkeyPatch,
    free_blocks: int,
    code: int,
) -> None:
    file = local.open(f"{root}/f", create=True)
    real, calls = os.pwrite, list[int]()

    def short(descriptor: int, data: bytes, offset: int) -> int:
        calls.append(offset)
        return real(descriptor, data[:3], offset)

    class State:
        f_bavail = free_blocks
        f_frsize = 4096

    monkeypatch.setattr(os, "pwrite", short)
    monkeypatch.setattr(os, "fstatvfs", lambda descriptor: State)
    with pytest.raises(OSError, match="3 of 10 bytes at byte 7") as caught:
        file.pwrite(b"0123456789", 7)
    assert caught.value.errno == code
    assert caught.value.filename == f"{root}/f"
    assert calls == [7], "a short write is not continued"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_device_is_enospc(local: OsFileSystem) -> None:
    with fails_with(errno.ENOSPC) as caught:
        local.open("/dev/full").pwrite(b"x", 0)
    assert caught.value.filename == "/dev/full"


def test_a_file_size_limit_shows_as_an_error(root: str) -> None:
    """The kernel itself cuts a write short at RLIMIT_FSIZE."""
    code = f"""
import resource, signal
from penstock.storage.files.filesystem import OsFileSystem
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
file = OsFileSystem().open({root!r} + "/f", create=True)
try:
    file.pwrite(bytes(1500), 0)
except OSError as error:
    print(error.errno, error.strerror)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"{errno.EIO} short write: 1000 of 1500 bytes at byte 0\n"


def test_large_writes_are_cut_into_what_the_kernel_takes(
    local: OsFileSystem, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filesystem, "WRITE_BYTES_MAX", 4)
    file = local.open(f"{root}/f", create=True)
    file.pwrite(b"0123456789", 1)
    assert file.pread(20, 0) == b"\x000123456789"


def test_reads_go_on_until_the_end(
    local: OsFileSystem, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(local, f"{root}/f", b"0123456789")
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, length, at: real(fd, min(length, 3), at))
    assert local.open(f"{root}/f").pread(8, 1) == b"12345678"
    assert local.read(f"{root}/f") == b"0123456789"


def test_allocate_takes_the_room(local: OsFileSystem, root: str) -> None:
    file = local.open(f"{root}/f", create=True)
    file.allocate(3 << 20)
    assert os.stat(f"{root}/f").st_blocks * 512 >= 3 << 20


def test_sync_goes_to_the_kernel(
    local: OsFileSystem, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    monkeypatch.setattr(filesystem, "_sync_content", lambda fd: calls.append("content"))
    monkeypatch.setattr(filesystem, "_sync_all", lambda fd: calls.append("all"))
    local.open(f"{root}/f", create=True).sync()
    local.sync_dir(root)
    assert calls == ["content", "all"]


def test_a_failed_sync_is_tried_once_and_names_the_path(
    local: OsFileSystem, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def fail(descriptor: int) -> None:
        calls.append(descriptor)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(filesystem, "_sync_content", fail)
    monkeypatch.setattr(filesystem, "_sync_all", fail)
    file = local.open(f"{root}/f", create=True)
    for call, path in ((file.sync, f"{root}/f"), (lambda: local.sync_dir(root), root)):
        with fails_with(errno.EIO) as caught:
            call()
        assert caught.value.filename == path
    assert len(calls) == 2


def test_a_failing_disk_is_not_a_missing_file(
    local: OsFileSystem, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: str) -> os.stat_result:
        raise OSError(errno.EIO, "Input/output error", path)

    monkeypatch.setattr(os, "stat", fail)
    for call in (local.exists, local.is_dir):
        with fails_with(errno.EIO):
            call(f"{root}/f")


def test_kind_of_this_machine(local: OsFileSystem, root: str) -> None:
    assert local.kind("/proc") == "proc"
    assert local.kind(f"{root}/not/there/yet") == local.kind(root)
    assert local.kind(root) not in NETWORK_KINDS


# ---- The lock -------------------------------------------------------------------------

HOLD = """
import sys
from penstock.storage.files.filesystem import OsFileSystem
lock = OsFileSystem().lock(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


def test_the_lock_holds_across_processes_and_ends_with_kill(local: OsFileSystem, root: str) -> None:
    path = f"{root}/LOCK"
    command = [sys.executable, "-c", HOLD, path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(LockedError) as caught:
            local.lock(path)
        assert caught.value.holder.startswith(f"pid {holder.pid} host ")
        holder.send_signal(signal.SIGKILL)
    local.lock(path).release()


def test_two_file_systems_of_one_process_collide(local: OsFileSystem, root: str) -> None:
    lock = local.lock(f"{root}/LOCK")
    with pytest.raises(LockedError):
        OsFileSystem().lock(f"{root}/LOCK")
    lock.release()


def test_a_lock_file_that_is_replaced_meanwhile_is_locked_anew(
    local: OsFileSystem, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"{root}/LOCK"
    put(local, path, b"")
    real, calls = fcntl.flock, list[int]()

    def replaced(descriptor: int, operation: int) -> None:
        if not calls:
            os.unlink(path)
        calls.append(operation)
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", replaced)
    lock = local.lock(path)
    assert len(calls) == 2
    assert local.read(path) != b""
    lock.release()


def in_a_child(work: "object") -> str:
    """What ``work()`` returns in a forked child, as text."""
    assert callable(work)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            text = str(work())
        except BaseException as error:
            text = repr(error)
        os.write(writer, text.encode())
        os._exit(0)
    os.close(writer)
    text = os.read(reader, 4096).decode()
    os.close(reader)
    os.waitpid(child, 0)
    return text


def test_a_forked_child_does_not_hold_or_release_the_lock(local: OsFileSystem, root: str) -> None:
    lock = local.lock(f"{root}/LOCK")

    def child() -> object:
        was_held = lock.is_held()
        lock.release()
        return was_held

    assert in_a_child(child) == "False"
    assert lock.is_held()
    assert local.read(f"{root}/LOCK").startswith(f"pid {os.getpid()} ".encode())
    with pytest.raises(LockedError):
        local.lock(f"{root}/LOCK")
    lock.release()


def test_a_forked_child_may_not_submit(root: str) -> None:
    fs = OsFileSystem(workers=0)
    assert "belongs to process" in in_a_child(lambda: fs.submit(lambda: None))
    assert in_a_child(fs.close) == "None"
    fs.close()


# ---- Submitted operations ---------------------------------------------------------------


def test_operations_run_on_a_thread_of_the_file_system() -> None:
    fs = OsFileSystem()
    fs.submit(lambda: threading.current_thread().name)
    [(_, name)] = fs.completed(wait=True)
    assert name == "penstock-disk-0"
    fs.close()
    assert all(not t.name.startswith("penstock-disk") for t in threading.enumerate())


@pytest.mark.parametrize("workers", [0, 1])
def test_a_submitted_operation_waits_for_a_descriptor(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system_open = os.open
    waits: list[float] = []

    def short(*args: Any, **options: Any) -> int:
        if len(waits) < 3:
            raise OSError(errno.EMFILE, "Too many open files")
        return system_open(*args, **options)

    fs = OsFileSystem(workers, pause=waits.append)
    monkeypatch.setattr(os, "open", short)
    with pytest.raises(OSError, match="Too many open files"):
        fs.sync_dir(str(tmp_path))
    assert not waits, "the owner's thread does not wait"
    fs.submit(lambda: fs.sync_dir(str(tmp_path)))
    ((_, result),) = fs.completed(True)
    assert result is None
    assert len(waits) == 3
    fs.close()


def test_open_files_are_counted(tmp_path: Path) -> None:
    fs = OsFileSystem(0)
    files = [fs.open(f"{tmp_path}/{n}", create=True) for n in range(3)]
    assert fs.open_files() == 3
    fs.read(f"{tmp_path}/0")
    for file in files:
        file.close()
        file.close()
    assert fs.open_files() == 0
    fs.close()


def test_the_owners_thread_has_a_reserve_of_descriptors(tmp_path: Path) -> None:
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    fs = OsFileSystem(0, reserve=3)
    paths = [f"{tmp_path}/{n}" for n in range(4)]
    taken: list[int] = []
    files: list[File] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, most))
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        for path in paths[:3]:
            assert fs.restore_reserve() == (path == paths[0])
            files.append(fs.open(path, create=True))
        with pytest.raises(OSError, match="Too many open files"):
            fs.open(paths[3], create=True)
        files.pop().close()
        assert not fs.restore_reserve()
        os.close(taken.pop())
        os.close(taken.pop())
        assert fs.restore_reserve(), "it is whole again as soon as there are descriptors"
    finally:
        for descriptor in taken:
            os.close(descriptor)
        for file in files:
            file.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))
        fs.close()
