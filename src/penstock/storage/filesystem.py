"""The one door to the disk: every file operation of Penstock goes through a FileSystem.

Why a seam and not ``os``: a storage engine is right only if it survives a crash
between any two of its operations, and the only affordable way to try them all is
a disk that keeps what was written and what was *synced* apart, in memory. So the
engine is handed a ``FileSystem``; production hands it ``OsFileSystem``, the crash
tests a simulated one. This is the only module that calls ``os`` about files. The
seam is crossed per batch, never per message, so it is not compiled.

What the engine may rely on, and what every implementation therefore must show
(``tests/contracts/filesystem.py`` asks):

* **Content** is durable only after ``File.sync``; a crash may keep any part of
  what was written since, in any order, in pieces of a sector.
* **Names** (create, rename, link, unlink, mkdir, rmdir) are durable only after
  ``sync_dir`` of the directory that holds them, and so a new file needs both.
  ``rename`` is atomic: after a crash the new name has its old or its new inode.
* **A write is whole or an error.** A short write is never continued behind the
  caller's back: the bytes that landed may be the last that the disk had room for,
  and the engine must decide (rule [10]: in the log that is as bad as a failed
  sync). The error says how much was written of how much.
* **A failed sync is final** (rule [10]). Linux marks the pages clean although they
  never reached the disk, so a second sync would succeed and prove nothing, and
  reads go on showing the lost bytes. ``drop_cache`` is what recovery calls before
  it believes what it reads (rule [8]); it can drop clean pages only, so it is
  called after ``sync``.
* **One owner**: ``lock`` keeps out every second opener, also one of the same
  process, and it ends with the process however that ends.

Slow calls leave the caller's thread by ``submit``; their results come back by
``completed``, in any order. Both belong to one thread, that of the file system's
owner; the operations themselves run on threads of the file system, which are its
own, few, and end at ``close``. A file is closed only when no operation that was
submitted for it is outstanding. The threads are in ``worker_pool``.

Failures are ``OSError`` with the path as ``filename``; nothing is retried, nothing
is logged. ``EINTR`` is retried by Python itself.

Nothing is written to disk in a format of this module's own, save the text of a
lock file, for people and for the message of ``LockedError``::

    pid <process number> host <host name>\\n          empty: not held, and released in order

Threads for what is slow: syncs, the preparing of log files, reads ahead of a queue.

A sync takes milliseconds in which the loop could do other work, and Python lets go
of its lock during it, so a thread is all that is needed. One pool belongs to one
``OsFileSystem`` and its owner: ``submit``, ``completed`` and ``close`` are called by
one thread, so the counters need no lock; what crosses the threads goes through two
``SimpleQueue``s.

Operations begin in the order in which they came; with more than one worker they may
end in any. An operation's exception is its result: nothing is retried and nothing is
lost, and the owner gets one answer for each token.

Threads start with the first operations, one for each, up to the number allowed. They
are daemons, because an interpreter that ends without ``close`` must not hang on them;
a sync cut off so is a crash like any other.

Which kind of file system a path lies on, by the kernel's table of mounts.

Asked once, when a data directory is opened: on a network file system a lock may be
granted twice and a sync may end at another machine's cache, so Penstock refuses to
run there unless told otherwise. The table is Linux's /proc/mounts, one mount a line:

    device  mount-point  kind  options  0  0        blank-separated; blank, tab, newline and
                                                    backslash in a field as \\ and 3 octal digits

Elsewhere nothing tells, and the kind is "unknown". Pure functions; the table is read
by ``filesystem``.

Zeros: a file's room filled in one system call, where the system has one for that.

A segment of the log is written with zeros before it is used, by a thread beside the one that
serves. Written piece by piece it needs the interpreter's lock between any two pieces, and gets it
only when the serving thread lets go: measured, 64 MiB in pieces of 64 KiB took a second and more
beside a busy broker, longer than the segment before it lasted, and publishers stood still until it
was done. One `sendfile` from a hole in memory needs the lock once. The kernel still writes in
pieces of a pipe, 64 KiB, which makes later small writes into the file cheaper (filesystem.py).

Not here: systems without memfd_create; there the caller writes piece by piece.

Syncing a file whose handle was closed: by whoever keeps fewer handles open than it has files.

Handles are bounded, so a file may be written, closed, and synced later through another handle. That
is as good: Linux reports an error of writing back, if nobody has seen it yet, to a handle that was
opened after it happened too. A file that is gone was deleted by its owner, and nothing needs it.
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
from typing import Final, TypeAlias

from penstock.errors import LockedError, is_disk_full

Completions: TypeAlias = list[tuple[int, object]]  # (token, result or the exception raised)


class WorkerPool:
    """At most ``workers`` threads; 0 means that each operation runs in ``submit`` itself.

    ``wake`` is called after each completion, from the worker's thread.
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
        self._waiting: queue.SimpleQueue[tuple[int, Callable[[], object]] | None]
        self._waiting = queue.SimpleQueue()
        self._finished: queue.SimpleQueue[tuple[int, object]] = queue.SimpleQueue()

    def submit(self, op: Callable[[], object]) -> int:
        """Queue the operation; returns its token. RuntimeError after ``close``."""
        if self._closed:
            raise RuntimeError("the file system is closed")
        token = self._next_token
        self._next_token += 1
        if self.workers == 0:
            # Only an Exception is a result here: an interrupt belongs to the caller's thread.
            try:
                result: object = op()
            except Exception as error:
                result = error
            self._outstanding += 1
            self._finished.put((token, result))
            self._call_wake()
            return token
        self._waiting.put((token, op))
        self._outstanding += 1
        if len(self._threads) < self.workers:
            self._start()
        return token

    def _start(self) -> None:
        """One thread more. An interrupt may come at any step of it: what was submitted waits then
        for a thread that runs, or for the next one to be started."""
        name = f"penstock-disk-{len(self._threads)}"
        thread = threading.Thread(target=self._work, name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    def completed(self, wait: bool) -> Completions:
        """What has finished since the last call; with ``wait`` at least one, if any is to come."""
        results: Completions = []
        try:
            while self._outstanding:
                results.append(self._finished.get(block=wait and not results))
                self._outstanding -= 1
        except queue.Empty:
            pass
        return results

    def close(self) -> None:
        """Let all operations finish and end the threads; a second call does nothing."""
        self._closed = True
        self._waiting.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def _work(self) -> None:
        """One worker: operations until the None of close(), which each leaves for the next."""
        while (item := self._waiting.get()) is not None:
            token, op = item
            try:
                result: object = op()
            except BaseException as error:  # whatever it was, the owner waits for an answer
                result = error
            self._finished.put((token, result))
            del item, op, result  # a worker that waits keeps nothing of the last one alive
            self._call_wake()
        self._waiting.put(None)

    def _call_wake(self) -> None:
        try:
            self._wake()
        except Exception:
            # Shown as any thread's uncaught exception; but the worker lives, for operations
            # that wait for it would otherwise never be answered.
            error_type, error, trace = sys.exc_info()
            assert error_type is not None
            threading.excepthook(
                threading.ExceptHookArgs((error_type, error, trace, threading.current_thread()))
            )


UNKNOWN_KIND: Final = "unknown"

# Kinds on which neither a lock nor a sync means what it means on a local disk. FUSE kinds
# are listed one by one: most FUSE mounts are local.
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
    """Kind of file system of an absolute path, by the text of /proc/mounts.

    The longest mount point that holds the path decides; of equal ones the last, which was
    mounted over the others. "unknown" when none does.
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
    """A field of the table as it is meant; a backslash always begins three octal digits."""
    head, *rest = field.split(b"\\")
    return head + b"".join(bytes((int(part[:3], 8),)) + part[3:] for part in rest)


def write_zeros(descriptor: int, size: int) -> int:
    """Write `size` bytes of zeros from the start of a file; how many were written (0 where there is
    no such call). OSError: ENOSPC and others; part of them may have been written."""
    if not hasattr(os, "memfd_create"):
        return 0
    done = 0
    source = os.memfd_create("zeros")
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


Names: TypeAlias = list[str]  # named because inside a FileSystem "list" is its method


FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700

ALLOCATE_PIECE_BYTES: Final = 64 << 10
# Linux writes at most 2 GiB less a page per call; a larger request would look like a short write.
WRITE_BYTES_MAX: Final = 1 << 30


class File(ABC):
    """An open file. Positions are explicit: there is no current position to disagree about."""

    path: str

    @abstractmethod
    def pread(self, length: int, offset: int) -> bytes:
        """Up to ``length`` bytes from byte ``offset``; fewer only where the file ends."""

    @abstractmethod
    def pwrite(self, data: bytes, offset: int) -> None:
        """Write all of ``data`` at byte ``offset``, growing the file (with zeros) if need be.

        Raises OSError: ENOSPC when the disk is full, EIO and others from below. Part of
        ``data`` may have been written then, and how much is said when it is known.
        """

    @abstractmethod
    def size(self) -> int:
        """Length in bytes."""

    @abstractmethod
    def truncate(self, size: int) -> None:
        """Make the file ``size`` bytes long; growth reads as zeros and takes no room yet."""

    @abstractmethod
    def allocate(self, size: int) -> None:
        """Make the file ``size`` bytes of zeros, really written, so that its room is taken.

        Writing into such a file later needs no new block and no change of its size: a sync
        then costs about half, and cannot meet a full disk. What the file held is gone.
        """

    @abstractmethod
    def sync(self) -> None:
        """Make all content written so far durable. Rule [10]: an OSError is never retried."""

    @abstractmethod
    def drop_cache(self) -> None:
        """Forget clean cached pages, so that the next read comes from the disk.

        A request where the platform knows it and nothing elsewhere; never an error.
        """

    @abstractmethod
    def close(self) -> None:
        """Close; does not sync. A second call does nothing; any other use raises OSError EBADF."""


class Lock(ABC):
    """A held lock. ``pid`` is the process that took it."""

    path: str
    pid: int

    @abstractmethod
    def is_held(self) -> bool:
        """False after ``release``, and in a process forked from the one that took the lock."""

    @abstractmethod
    def release(self) -> None:
        """Let go; a second call does nothing. In a forked child the parent keeps the lock."""


class FileSystem(ABC):
    """Files, names and slow work. Paths are strings; directories are joined with "/"."""

    # Called from the worker's thread after each completion, so that an event loop can be woken;
    # it must not raise and must not call back into the file system.
    on_complete: Callable[[], None] | None

    @abstractmethod
    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing. ``create`` makes a missing file (mode 0600).

        Raises FileNotFoundError, IsADirectoryError, PermissionError and other OSErrors.
        """

    @abstractmethod
    def read(self, path: str) -> bytes:
        """All bytes of the file."""

    @abstractmethod
    def exists(self, path: str) -> bool:
        """Whether the name exists. A failing disk is an OSError, not False."""

    @abstractmethod
    def is_dir(self, path: str) -> bool:
        """Whether the name is a directory. A failing disk is an OSError, not False."""

    @abstractmethod
    def list(self, path: str) -> Names:
        """Names in the directory, sorted; FileNotFoundError when it is missing."""

    @abstractmethod
    def size(self, path: str) -> int:
        """Length of the file in bytes."""

    @abstractmethod
    def mkdir(self, path: str) -> None:
        """Make one directory (mode 0700); nothing happens when it is there."""

    @abstractmethod
    def rename(self, old: str, new: str) -> None:
        """Give a file another name, replacing a file of that name at once."""

    @abstractmethod
    def link(self, old: str, new: str) -> None:
        """Give a file a second name; FileExistsError when it is taken."""

    @abstractmethod
    def unlink(self, path: str) -> None:
        """Delete a file's name; open files of it stay readable."""

    @abstractmethod
    def rmdir(self, path: str) -> None:
        """Delete an empty directory; OSError ENOTEMPTY when it is not."""

    @abstractmethod
    def sync_dir(self, path: str) -> None:
        """Make the names in the directory durable. Rule [10]: an OSError is never retried."""

    @abstractmethod
    def free_bytes(self, path: str) -> int:
        """Bytes that this user may still write to the disk of ``path``."""

    @abstractmethod
    def kind(self, path: str) -> str:
        """Kind of file system of ``path``: "ext4", "tmpfs", "nfs" ...; "unknown" if untold."""

    # Of a store that is in one directory, on one disk; PlacedFileSystem answers otherwise.

    def real_path(self, path: str) -> str:
        """``path``, absolute and without symbolic links; the file need not exist."""
        return path

    def place(self, path: str) -> str:
        """Where the file of this name really lies, for other processes and for people."""
        return path

    def disks(self, path: str) -> Names:
        """A directory on each disk that files below the directory ``path`` may lie on."""
        return [path]

    @abstractmethod
    def lock(self, path: str) -> Lock:
        """Take the exclusive lock on the file ``path``, made when missing.

        Raises LockedError(path, holder) when anybody holds it, this process included.
        """

    @abstractmethod
    def submit(self, op: Callable[[], object]) -> int:
        """Have ``op`` run, elsewhere or later; the token names it in ``completed``."""

    @abstractmethod
    def completed(self, wait: bool) -> Completions:
        """(token, result or the exception raised) of operations finished since the last call.

        With ``wait`` at least one, if any is outstanding. Empty when none is.
        """

    @abstractmethod
    def close(self) -> None:
        """Finish what is outstanding and end the workers; ``completed`` still answers after it."""


def whole_path(path: str) -> str:
    """``path``, absolute and without "." and ".."; symbolic links stay."""
    return os.path.abspath(path)


# ----------------------------------------------------------------------------------------
# The operating system's


class OsFile(File):
    """A file descriptor. Errors carry the path, which those of the descriptor calls lack."""

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    def pread(self, length: int, offset: int) -> bytes:
        try:
            data = os.pread(self._descriptor, length, offset)
            if len(data) == length or not data:
                return data
            # The end of the file, or a read that the kernel cut at its own limit: ask on.
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
        """One write, whole or an OSError that says how far it came."""
        written = os.pwrite(self._descriptor, data, offset)
        if written == len(data):
            return
        # The kernel gives a short count instead of the reason. The reason is a full disk if
        # the rest has no room now, else something that we cannot know.
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
        # Not posix_fallocate: it reserves blocks without writing them, so that the first
        # write into each has to mark it as written, which is what a sync would then wait for.
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


class OsLock(Lock):
    """An flock. It is the open file's, not the process's: two opens collide, and a child shares."""

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self.pid = os.getpid()
        self._descriptor = descriptor

    def is_held(self) -> bool:
        return self._descriptor >= 0 and self.pid == os.getpid()

    def release(self) -> None:
        # A forked child shares the open file with its parent: to unlock it, or to empty the
        # file, would be done to the parent. It only closes its own descriptor.
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor < 0:
            return
        try:
            if self.pid == os.getpid():
                # The file stays: to unlink it would let two owners lock two files of one name.
                os.ftruncate(descriptor, 0)
                fcntl.flock(descriptor, fcntl.LOCK_UN)
        finally:
            os.close(descriptor)


class OsFileSystem(FileSystem):
    """The operating system's files, with ``workers`` threads for submitted operations.

    Threads start with the first ``submit``; operations begin in the order in which they came.
    ``workers=0`` runs each in ``submit`` itself, for tools that have nothing else to do.
    """

    def __init__(self, workers: int = 1) -> None:
        self.on_complete = None
        self._pid = os.getpid()
        self._pool = WorkerPool(workers, self._wake)

    def open(self, path: str, *, create: bool = False) -> File:
        flags = os.O_RDWR | os.O_CREAT if create else os.O_RDWR
        return OsFile(path, os.open(path, flags, FILE_MODE))

    def read(self, path: str) -> bytes:
        file = OsFile(path, os.open(path, os.O_RDONLY))
        try:
            # One byte more than the size, so that a file that grew meanwhile is read to its end.
            pieces: list[bytes] = []
            done = 0
            while piece := file.pread(max(file.size() - done, 4095) + 1, done):
                pieces.append(piece)
                done += len(piece)
            return b"".join(pieces)
        finally:
            file.close()

    def exists(self, path: str) -> bool:
        # Not os.path.exists, for which every error means "no": on a failing disk recovery
        # would take a store for a new one.
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
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
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
        """The permission bits of a file or directory, 0 if there is none."""
        status = _status(path)
        return 0 if status is None else stat.S_IMODE(status.st_mode)

    def set_permissions(self, path: str, bits: int) -> None:
        """Others than these bits are taken away. OSError."""
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
                raise LockedError(path, holder or "an unnamed process") from None
            except OSError as error:
                os.close(descriptor)
                raise _with_path(error, path) from error
            # Somebody replaced the file between open and flock: this lock keeps nobody out.
            os.close(descriptor)

    def submit(self, op: Callable[[], object]) -> int:
        if self._pid != os.getpid():
            # Threads do not survive a fork: the operation would wait for ever.
            raise RuntimeError(f"the file system belongs to process {self._pid}, not to its child")
        return self._pool.submit(op)

    def completed(self, wait: bool) -> Completions:
        return self._pool.completed(wait)

    def close(self) -> None:
        if self._pid == os.getpid():
            self._pool.close()

    def _wake(self) -> None:
        wake = self.on_complete
        if wake is not None:
            wake()


def _write_holder(descriptor: int) -> None:
    """Say who has the lock, for people; on a full disk it goes unsaid."""
    holder = f"pid {os.getpid()} host {os.uname().nodename}\n"
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, holder.encode(), 0)
    except OSError as error:
        if not is_disk_full(error):
            raise


def _status(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _sync_content(descriptor: int) -> None:
    """Data and what is needed to find it again, as its size; not the times."""
    if sys.platform == "darwin":
        _sync_all(descriptor)
    else:
        os.fdatasync(descriptor)


def _sync_all(descriptor: int) -> None:
    if sys.platform == "darwin":
        # fsync of macOS stops at the drive's own cache.
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fsync(descriptor)


def _with_path(error: OSError, path: str) -> OSError:
    return OSError(error.errno, error.strerror, path)


def sync_closed(fs: FileSystem, path: str) -> None:
    """fdatasync of a file that is not open here. OSError: the sync failed [10]."""
    try:
        file = fs.open(path)
    except FileNotFoundError:
        return
    try:
        file.sync()
    finally:
        file.close()
