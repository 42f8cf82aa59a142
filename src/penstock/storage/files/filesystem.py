"""The file system: every file operation of Penstock goes through a FileSystem.

A storage engine is right only if it survives a crash between any two of its operations. The
affordable way to try them all is a disk in RAM that keeps what was written apart from what was
synced. So the engine is given a `FileSystem`: `OsFileSystem` in production, a simulated one in the
crash tests. No other module calls `os` about files. Calls are made per batch and not per message,
so this module is not compiled.

Every implementation promises the following; `tests/contracts/filesystem.py` checks it.

* **Content** is durable only after `File.sync`. A crash may keep any part of what was written
  since, in any order, in pieces of a sector.
* **Names** (create, rename, link, unlink, mkdir, rmdir) are durable only after `sync_dir` of the
  directory that contains them. A new file needs both syncs. `rename` is atomic: after a crash the
  new name has its old or its new inode.
* **A write is whole or an error.** A short write is not continued: the bytes written may be the
  last that the disk had room for, and the engine decides what follows. In the log it is as bad as
  a failed sync [10]. The error says how many bytes were written of how many.
* **A failed sync is final** [10]. Linux marks the pages clean although they never reached the disk.
  A second sync would succeed and prove nothing, and reads would still return the lost bytes.
  Recovery calls `drop_cache` before it trusts what it reads [8]. That drops only clean pages, so it
  is called after `sync`.
* **One owner.** `lock` keeps out every second opener, in the same process too. The lock ends with
  the process, however that ends.

Slow calls are handed to `submit`, and their results come back from `completed`, in any order. Only
the owner's thread calls these two. The operations run on a few threads of the file system, which
end at `close`. A file is closed only when no operation that was submitted for it is outstanding.

* **No descriptor left** to open a file with (EMFILE, ENFILE): an operation that was submitted waits
  for one, up to WAIT_S. The owner's thread does not wait. It has a reserve of descriptors, and gets
  the error only when that is used up; while it is not whole, `is_short` is set, and files that are
  open for later use should be closed.

Failures are OSErrors with the path as `filename`. Nothing else is retried and nothing is logged;
Python retries EINTR. The only format of this module is the text of a lock file, for people and for
the message of LockedError:

    pid <process number> host <host name>\\n         empty: the lock was released
"""

import errno
import fcntl
import os
import queue
import stat
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import closing
from typing import Final, TypeAlias

from penstock.errors import LockedError, has_no_descriptor, is_shortage

Names: TypeAlias = list[str]  # named because inside a FileSystem "list" is its method
Completions: TypeAlias = list[tuple[int, object]]  # (token, result or the exception raised)


class File(ABC):
    """An open file. Every call names its position; there is no current position."""

    path: str

    @abstractmethod
    def pread(self, length: int, offset: int) -> bytes:
        """Return up to `length` bytes from byte `offset`; fewer only where the file ends."""

    @abstractmethod
    def pwrite(self, data: bytes, offset: int) -> None:
        """Write all of `data` at byte `offset`; the file grows, with zeros, if it must.

        Raises OSError: ENOSPC when the disk is full, EIO and others. Part of `data` may have been
        written then; the error says how much if that is known.
        """

    @abstractmethod
    def size(self) -> int:
        """Return the length in bytes."""

    @abstractmethod
    def truncate(self, size: int) -> None:
        """Make the file `size` bytes long. New bytes are zeros and take no room on the disk yet."""

    @abstractmethod
    def allocate(self, size: int) -> None:
        """Make the file `size` bytes of zeros, written, so that it has its room on the disk.

        Later writes into it need no new block and no change of its size. A sync then costs about
        half, and cannot meet a full disk. The content of before is lost.
        """

    @abstractmethod
    def sync(self) -> None:
        """Make all content written so far durable. An OSError is never retried [10]."""

    @abstractmethod
    def drop_cache(self) -> None:
        """Ask the system to drop clean cached pages, so that the next read is from the disk.

        Does nothing where the platform has no such request. Raises nothing.
        """

    @abstractmethod
    def close(self) -> None:
        """Close without a sync. A second call does nothing; other calls raise OSError EBADF."""


class Lock(ABC):
    """A lock that was taken. pid: the process that took it."""

    path: str
    pid: int

    @abstractmethod
    def is_held(self) -> bool:
        """Return False after `release`, and in a process forked from the one that took it."""

    @abstractmethod
    def release(self) -> None:
        """Release the lock; a second call does nothing. In a forked child the parent keeps it."""


class FileSystem(ABC):
    """Files, names and slow work. Paths are strings with "/" between directories."""

    # Whether part of the reserve of descriptors is used.
    is_short: bool = False

    # Called in the worker's thread after each completion, to wake an event loop. It must not raise
    # and must not call the file system.
    on_complete: Callable[[], None] | None

    @abstractmethod
    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing. create: make a missing file (mode 0600).

        Raises FileNotFoundError, IsADirectoryError, PermissionError and other OSErrors.
        """

    @abstractmethod
    def read(self, path: str) -> bytes:
        """Return all bytes of the file."""

    @abstractmethod
    def exists(self, path: str) -> bool:
        """Return whether the name exists. A failing disk is an OSError, not False."""

    @abstractmethod
    def is_dir(self, path: str) -> bool:
        """Return whether the name is a directory. A failing disk is an OSError, not False."""

    @abstractmethod
    def list(self, path: str) -> Names:
        """Return the names in the directory, sorted. FileNotFoundError if it is missing."""

    @abstractmethod
    def size(self, path: str) -> int:
        """Return the length of the file in bytes."""

    @abstractmethod
    def mkdir(self, path: str) -> None:
        """Make one directory (mode 0700) if it does not exist."""

    @abstractmethod
    def rename(self, old: str, new: str) -> None:
        """Rename a file; a file of the new name is replaced atomically."""

    @abstractmethod
    def link(self, old: str, new: str) -> None:
        """Give a file a second name. FileExistsError if that name exists."""

    @abstractmethod
    def unlink(self, path: str) -> None:
        """Delete a file's name; open files of it stay readable."""

    @abstractmethod
    def rmdir(self, path: str) -> None:
        """Delete an empty directory. OSError ENOTEMPTY if it is not empty."""

    @abstractmethod
    def sync_dir(self, path: str) -> None:
        """Make the names in the directory durable. An OSError is never retried [10]."""

    @abstractmethod
    def free_bytes(self, path: str) -> int:
        """Return how many bytes this user may still write to the disk of `path`."""

    @abstractmethod
    def kind(self, path: str) -> str:
        """Return the kind of file system of `path`: "ext4", "tmpfs", "nfs" ... or "unknown"."""

    # These answers are for a store in one directory; PlacedFileSystem has others.

    def real_path(self, path: str) -> str:
        """Return `path`, absolute and without symbolic links. The file need not exist."""
        return path

    def place(self, path: str) -> str:
        """Return the path by which other processes and people find the file."""
        return path

    def disks(self, path: str) -> Names:
        """Return a directory on each disk that may contain files below the directory `path`."""
        return [path]

    def open_files(self) -> int:
        """Return how many files are open, 0 if they are not counted."""
        return 0

    def restore_reserve(self) -> bool:
        """Restore the reserve of descriptors. Returns False if it is not whole: there are none."""
        return True

    @abstractmethod
    def lock(self, path: str) -> Lock:
        """Take the exclusive lock on the file `path`, which is made if it is missing.

        Raises LockedError(path, holder) if any process has it, this one included.
        """

    @abstractmethod
    def submit(self, op: Callable[[], object]) -> int:
        """Run `op` in another thread, or later. Returns the token that names it in `completed`."""

    @abstractmethod
    def completed(self, wait: bool) -> Completions:
        """Return what has finished since the last call: (token, result or the exception raised).

        wait: wait for one at least, if any is outstanding.
        """

    @abstractmethod
    def close(self) -> None:
        """Finish what is outstanding and end the workers. `completed` may still be called."""


def sync_closed(fs: FileSystem, path: str) -> None:
    """Sync the content of a file whose handle was closed. OSError: the sync failed [10].

    An owner that keeps fewer handles than files may write a file, close it and sync it later
    through another handle. Linux reports a failed write-back, if nobody has seen it yet, to a
    handle that was opened after the failure too. Does nothing if the file was deleted.
    """
    try:
        file = fs.open(path)
    except FileNotFoundError:
        return
    try:
        file.sync()
    finally:
        file.close()


def whole_path(path: str) -> str:
    """Return `path`, absolute and without "." and ".."; symbolic links stay."""
    return os.path.abspath(path)


# ---- the operating system -----------------------------------------------------------------------


FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700


ALLOCATE_PIECE_BYTES: Final = 64 << 10


# Linux writes at most 2 GiB less a page per call; a larger request would look like a short write.
WRITE_BYTES_MAX: Final = 1 << 30

# How long a submitted operation waits for a descriptor, and how often it looks.
WAIT_S: Final = 600.0
WAIT_STEP_S: Final = 0.05


class OsFile(File):
    """A file descriptor. The path is added to errors, which descriptor calls leave without."""

    def __init__(self, path: str, descriptor: int, count: "OpenFiles") -> None:
        self.path = path
        self._descriptor = descriptor
        self._count = count
        count.add(1)

    def pread(self, length: int, offset: int) -> bytes:
        try:
            data = os.pread(self._descriptor, length, offset)
            if len(data) == length or not data:
                return data
            # The end of the file, or a read that the kernel cut at its own limit.
            pieces = [data]
            done = len(data)
            while done < length:
                data = os.pread(self._descriptor, length - done, offset + done)
                if not data:
                    break
                pieces.append(data)
                done += len(data)
            return b"".join(pieces)
        except OSError as error:
            raise _with_path(error, self.path) from error

    def pwrite(self, data: bytes, offset: int) -> None:
        try:
            if len(data) <= WRITE_BYTES_MAX:
                self._write(data, offset)
                return
            view = memoryview(data)
            for start in range(0, len(data), WRITE_BYTES_MAX):
                self._write(view[start : start + WRITE_BYTES_MAX], offset + start)
        except OSError as error:
            raise _with_path(error, self.path) from error

    def _write(self, data: bytes | memoryview, offset: int) -> None:
        """Write with one call. OSError with the number of bytes written if it was not all."""
        written = os.pwrite(self._descriptor, data, offset)
        if written == len(data):
            return
        # The kernel gives a short count and no reason. It is taken for a full disk if the rest has
        # no room now.
        state = os.fstatvfs(self._descriptor)
        is_full = state.f_bavail * state.f_frsize < len(data) - written
        raise OSError(
            errno.ENOSPC if is_full else errno.EIO,
            f"short write: {written} of {len(data)} bytes at byte {offset}",
        )

    def size(self) -> int:
        try:
            return os.fstat(self._descriptor).st_size
        except OSError as error:
            raise _with_path(error, self.path) from error

    def truncate(self, size: int) -> None:
        try:
            os.ftruncate(self._descriptor, size)
        except OSError as error:
            raise _with_path(error, self.path) from error

    def allocate(self, size: int) -> None:
        # Not posix_fallocate: it reserves blocks without writing them. The first write into each
        # would have to mark it as written, and a sync would wait for that.
        if self.size() > size:
            self.truncate(size)
        try:
            done = write_zeros(self._descriptor, size)
        except OSError as error:
            raise _with_path(error, self.path) from error
        zeros = bytes(min(size - done, ALLOCATE_PIECE_BYTES))
        for offset in range(done, size, ALLOCATE_PIECE_BYTES):
            self.pwrite(zeros[: size - offset], offset)

    def sync(self) -> None:
        try:
            if self._descriptor < 0:  # os.fdatasync would call it a ValueError
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            _sync_content(self._descriptor)
        except OSError as error:
            raise _with_path(error, self.path) from error

    def drop_cache(self) -> None:
        if hasattr(os, "posix_fadvise"):
            try:
                os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            except OSError as error:
                if error.errno == errno.EBADF:
                    raise _with_path(error, self.path) from error

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
            self._count.add(-1)


class OpenFiles:
    """Counts the open files of a file system. Any thread may change it."""

    def __init__(self) -> None:
        self.number = 0
        self._lock = threading.Lock()

    def add(self, n: int) -> None:
        with self._lock:
            self.number += n


class DescriptorReserve:
    """Descriptors that are kept open, so that there is one when the limit is reached. Used by the
    owner's thread."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: list[int] = []
        self.restore()

    def restore(self) -> bool:
        """Open what is missing. Returns whether all are there."""
        kept = self._kept
        while len(kept) < self._most:
            try:
                # Not dup: the machine's limit counts open files, of which copies share one.
                kept.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                return False
        return True

    def release_one(self) -> bool:
        """Close one. Returns False if none is left."""
        if not self._kept:
            return False
        os.close(self._kept.pop())
        return True

    def close(self) -> None:
        """Close all; none is opened again."""
        self._most = 0
        while self.release_one():
            pass


def write_zeros(descriptor: int, size: int) -> int:
    """Write `size` bytes of zeros from the start of a file, in one system call. Returns how many
    were written, 0 where there is no memfd_create. OSError: part may have been written.

    A worker thread fills the next segment of the log with zeros while the owner's thread serves.
    Written in pieces of 64 KiB it needs the interpreter's lock between any two: 64 MiB took more
    than a second beside a busy broker (measured), and publishers waited for it. One sendfile from
    an empty memory file needs the lock once. The kernel still writes in pieces of 64 KiB, which
    makes later small writes into the file cheaper.
    """
    if not hasattr(os, "memfd_create"):
        return 0
    done = 0
    try:
        source = os.memfd_create("zeros")
    except OSError as error:
        if not has_no_descriptor(error):
            raise
        return 0
    try:
        os.ftruncate(source, size)
        os.lseek(descriptor, 0, os.SEEK_SET)
        while done < size:
            n = os.sendfile(descriptor, source, done, size - done)
            if not n:
                break
            done += n
    finally:
        os.close(source)
    return done


class OsLock(Lock):
    """An flock. It belongs to the open file: a second open collides, a forked child shares it."""

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self.pid = os.getpid()
        self._descriptor = descriptor

    def is_held(self) -> bool:
        return self._descriptor >= 0 and self.pid == os.getpid()

    def release(self) -> None:
        # A forked child shares the open file with its parent, so it only closes its descriptor: to
        # unlock it or to empty the file would take the lock from the parent.
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor < 0:
            return
        try:
            if self.pid == os.getpid():
                # The file stays: after an unlink two owners could lock two files of one name.
                os.ftruncate(descriptor, 0)
                fcntl.flock(descriptor, fcntl.LOCK_UN)
        finally:
            os.close(descriptor)


def _own_name() -> str:
    """Return what names this process in a lock file."""
    return f"pid {os.getpid()} host {os.uname().nodename}"


def _write_holder(descriptor: int) -> None:
    """Write who has the lock, for people. On a full disk nothing is written."""
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{_own_name()}\n".encode(), 0)
    except OSError as error:
        if not is_shortage(error):
            raise


class OsFileSystem(FileSystem):
    """The operating system's files, with up to `workers` threads for submitted operations.

    workers=0 runs each operation in `submit` itself, for tools that have nothing else to do.
    reserve: descriptors for the owner's thread that are kept. pause(seconds): how a submitted
    operation waits for a descriptor.
    """

    def __init__(
        self, workers: int = 1, *, reserve: int = 0,
        pause: Callable[[float], object] | None = None,
    ) -> None:  # fmt: skip
        self.on_complete = None
        self._pid = os.getpid()
        self._pool = WorkerPool(workers, self._wake)
        self._files = OpenFiles()
        self._reserve = DescriptorReserve(reserve)
        self._pause: Callable[[float], object] = pause or threading.Event().wait

    def open_files(self) -> int:
        return self._files.number

    def restore_reserve(self) -> bool:
        if self.is_short:
            self.is_short = not self._reserve.restore()
        return not self.is_short

    def _opened(self, path: str, flags: int) -> int:
        """Return a new descriptor. If none is left, a submitted operation waits for one, up to
        WAIT_S, and the owner's thread takes one of the reserve."""
        is_worker = self._pool.is_worker()
        left_s = WAIT_S
        while True:
            try:
                return os.open(path, flags, FILE_MODE)
            except OSError as error:
                if not has_no_descriptor(error):
                    raise
                if is_worker:
                    if left_s <= 0:
                        raise
                else:
                    self.is_short = True
                    if not self._reserve.release_one():
                        raise
            if is_worker:
                self._pause(WAIT_STEP_S)
                left_s -= WAIT_STEP_S

    def open(self, path: str, *, create: bool = False) -> File:
        flags = os.O_RDWR | os.O_CREAT if create else os.O_RDWR
        return OsFile(path, self._opened(path, flags), self._files)

    def read(self, path: str) -> bytes:
        with closing(OsFile(path, self._opened(path, os.O_RDONLY), self._files)) as file:
            # One byte more than the size: a file that grew meanwhile is read to its end.
            pieces: list[bytes] = []
            done = asked = 0
            while done == asked:  # a read ends before only where the file does
                more = max(file.size() - done, 4095) + 1
                pieces.append(file.pread(more, done))
                asked += more
                done += len(pieces[-1])
            return b"".join(pieces)

    def exists(self, path: str) -> bool:
        # Not os.path.exists, which returns False for every error: on a failing disk recovery would
        # take a store for a new one.
        return _status(path) is not None

    def is_dir(self, path: str) -> bool:
        status = _status(path)
        return status is not None and stat.S_ISDIR(status.st_mode)

    def list(self, path: str) -> Names:
        return sorted(os.listdir(path))

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def mkdir(self, path: str) -> None:
        try:
            os.mkdir(path, DIRECTORY_MODE)
        except FileExistsError:
            if not self.is_dir(path):
                raise

    def rename(self, old: str, new: str) -> None:
        os.replace(old, new)

    def link(self, old: str, new: str) -> None:
        os.link(old, new)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def rmdir(self, path: str) -> None:
        os.rmdir(path)

    def sync_dir(self, path: str) -> None:
        descriptor = self._opened(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            _sync_all(descriptor)
        except OSError as error:
            raise _with_path(error, path) from error
        finally:
            os.close(descriptor)

    def free_bytes(self, path: str) -> int:
        state = os.statvfs(path)
        return state.f_bavail * state.f_frsize

    def kind(self, path: str) -> str:
        try:
            with open("/proc/self/mounts", "rb") as mounts:
                table = mounts.read()
        except OSError:
            return UNKNOWN_KIND
        return mounted_kind(table, os.path.realpath(path))

    def real_path(self, path: str) -> str:
        return os.path.realpath(path)

    def permissions(self, path: str) -> int:
        """Return the permission bits of a file or directory, 0 if it does not exist."""
        status = _status(path)
        return 0 if status is None else stat.S_IMODE(status.st_mode)

    def set_permissions(self, path: str, bits: int) -> None:
        """Set the permission bits of a file or directory. OSError."""
        try:
            os.chmod(path, bits)
        except OSError as error:
            raise _with_path(error, path) from error

    def lock(self, path: str) -> Lock:
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, FILE_MODE)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                status = _status(path)
                if status is not None and os.path.samestat(status, os.fstat(descriptor)):
                    _write_holder(descriptor)
                    return OsLock(path, descriptor)
            except BlockingIOError:
                holder = os.pread(descriptor, 512, 0).decode("utf-8", "replace").strip()
                os.close(descriptor)
                is_own = holder == _own_name()
                raise LockedError(path, holder or "an unnamed process", is_own=is_own) from None
            except OSError as error:
                os.close(descriptor)
                raise _with_path(error, path) from error
            # The file was replaced between open and flock, so this lock keeps nobody out.
            os.close(descriptor)

    def submit(self, op: Callable[[], object]) -> int:
        if self._pid != os.getpid():
            # Threads do not survive a fork: the operation would wait forever.
            raise RuntimeError(f"the file system belongs to process {self._pid}, not to its child")
        return self._pool.submit(op)

    def completed(self, wait: bool) -> Completions:
        return self._pool.completed(wait)

    def close(self) -> None:
        if self._pid == os.getpid():
            self._pool.close()
            self._reserve.close()

    def _wake(self) -> None:
        wake = self.on_complete
        if wake is not None:
            wake()


def _status(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _sync_content(descriptor: int) -> None:
    """Sync data and the metadata that finds it, such as the size; not the times."""
    if sys.platform == "darwin":
        _sync_all(descriptor)
    else:
        os.fdatasync(descriptor)


def _sync_all(descriptor: int) -> None:
    if sys.platform == "darwin":
        # On macOS fsync does not flush the drive's own cache.
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fsync(descriptor)


def _with_path(error: OSError, path: str) -> OSError:
    return OSError(error.errno, error.strerror, path)


# ---- threads ------------------------------------------------------------------------------------


class WorkerPool:
    """Runs operations on at most `workers` daemon threads, started as they are needed; 0: each
    operation runs in `submit` itself. wake: called after each completion, in the worker's thread.

    A sync takes milliseconds, and Python releases its lock during it. `submit`, `completed` and
    `close` are called by one thread, so the counters need no lock. Operations begin in the order in
    which they were submitted, and with several workers may end in any. The exception of an
    operation is its result: each token gets exactly one answer. The threads are daemons, so that
    an interpreter that ends without `close` does not wait for them; a sync that is cut off so is
    like one in a crash.
    """

    def __init__(self, workers: int, wake: Callable[[], None]) -> None:
        if workers < 0:
            raise ValueError(f"workers must be 0 or more, not {workers}")
        self.workers = workers
        self._wake = wake
        self._next_token = 0
        self._outstanding = 0  # submitted and not yet handed out by completed()
        self._closed = False
        self._threads: list[threading.Thread] = []
        self._local = threading.local()  # is_worker: the thread runs an operation
        self._waiting: queue.SimpleQueue[tuple[int, Callable[[], object]] | None]
        self._waiting = queue.SimpleQueue()
        self._finished: queue.SimpleQueue[tuple[int, object]] = queue.SimpleQueue()

    def submit(self, op: Callable[[], object]) -> int:
        """Queue the operation and return its token. RuntimeError after `close`."""
        if self._closed:
            raise RuntimeError("the file system is closed")
        token = self._next_token
        self._next_token += 1
        if self.workers == 0:
            # Only an Exception is a result here: an interrupt is for the caller's thread.
            self._local.is_worker = True
            try:
                result: object = op()
            except Exception as error:
                result = error
            finally:
                self._local.is_worker = False
            self._outstanding += 1
            self._finished.put((token, result))
            self._call_wake()
            return token
        self._waiting.put((token, op))
        self._outstanding += 1
        if len(self._threads) < self.workers:
            self._start()
        return token

    def is_worker(self) -> bool:
        """Return whether the calling thread runs a submitted operation."""
        return bool(getattr(self._local, "is_worker", False))

    def _start(self) -> None:
        """Start one more thread. If an interrupt prevents that, what was submitted waits for a
        running thread or for the next one started."""
        name = f"penstock-disk-{len(self._threads)}"
        thread = threading.Thread(target=self._work, name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    def completed(self, wait: bool) -> Completions:
        """Return what has finished since the last call. wait: one at least, if any is to come."""
        results: Completions = []
        try:
            while self._outstanding:
                results.append(self._finished.get(block=wait and not results))
                self._outstanding -= 1
        except queue.Empty:
            pass
        return results

    def close(self) -> None:
        """Wait for all operations and end the threads; a second call does nothing."""
        self._closed = True
        self._waiting.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def _work(self) -> None:
        """Run operations until the None of `close`, which each worker leaves for the next."""
        self._local.is_worker = True
        while (item := self._waiting.get()) is not None:
            token, op = item
            try:
                result: object = op()
            except BaseException as error:  # the owner waits for an answer
                result = error
            self._finished.put((token, result))
            del item, op, result  # a waiting worker keeps no object alive
            self._call_wake()
        self._waiting.put(None)

    def _call_wake(self) -> None:
        try:
            self._wake()
        except Exception:
            # Reported like any thread's uncaught exception. The worker goes on, because operations
            # wait for it.
            error_type, error, trace = sys.exc_info()
            assert error_type is not None
            threading.excepthook(
                threading.ExceptHookArgs((error_type, error, trace, threading.current_thread()))
            )


# ---- kinds of file systems ----------------------------------------------------------------------


UNKNOWN_KIND: Final = "unknown"


# On these a lock may be granted twice, and a sync may end at another machine's cache. FUSE kinds
# are listed one by one, because most FUSE mounts are local.
# fmt: off
NETWORK_KINDS: Final = frozenset({
    "9p", "acfs", "afs", "autofs", "beegfs", "ceph", "cifs", "coda", "glusterfs", "gpfs",
    "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "smb2", "smb3",
    "smbfs", "virtiofs",
    "fuse.ceph", "fuse.ceph-fuse", "fuse.curlftpfs", "fuse.davfs", "fuse.gcsfuse",
    "fuse.glusterfs", "fuse.juicefs", "fuse.mfs", "fuse.moosefs", "fuse.rclone", "fuse.s3fs",
    "fuse.seaweedfs", "fuse.sshfs",
})
# fmt: on


def mounted_kind(table: bytes, path: str) -> str:
    """Return the kind of file system of an absolute path, by Linux's table /proc/mounts.

    A line of it is "device mount-point kind options 0 0". The longest mount point that contains the
    path counts, and of equal ones the last, which was mounted over the others. Returns "unknown"
    if there is none.
    """
    wanted = os.fsencode(path)
    best, kind = b"", UNKNOWN_KIND
    for line in table.splitlines():
        fields = line.split(b" ")
        if len(fields) < 3:
            continue
        point = _unescape(fields[1])
        is_inside = point == b"/" or wanted == point or wanted.startswith(point + b"/")
        if is_inside and len(point) >= len(best):
            best, kind = point, os.fsdecode(fields[2])
    return kind


def _unescape(field: bytes) -> bytes:
    """Decode a field of the table: blanks and backslashes are \\ and three octal digits."""
    head, *rest = field.split(b"\\")
    return head + b"".join(bytes((int(part[:3], 8),)) + part[3:] for part in rest)
