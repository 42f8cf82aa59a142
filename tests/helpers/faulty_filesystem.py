"""``FaultyFileSystem``: a FileSystem in memory that can crash, fail, lie and rot.

What is durable when, and what a crash may leave, is told in ``simulated_disk``; this
module is the ``FileSystem`` in front of it. In short:

* Every primitive that changes something is one numbered **operation**: create, pwrite,
  allocate, truncate, sync, sync_dir, rename, link, unlink, mkdir, rmdir. ``operations``
  counts them from 1. What has no effect (mkdir of what is there, a call that is refused)
  is none. Reads are counted apart, in ``reads``. ``lock`` is the operations it is made of.
* ``crash_at = n``: operation n is not done and raises ``CrashNow``, and so does every
  later one, so that no ``finally`` changes the disk after its process is dead.
* ``crash(mode, rng)`` gives the file system that the next process finds. This one is
  unchanged: one moment can crash in many ways.
* ``fail(...)`` plans a fault; ``capacity`` is the size of the disk.
* ``damage_...`` spoil what is stored, in both images; they are no operations.
* A **journal** holds every operation; ``Journal.images()`` gives the file system as it was
  after each. One run of a workload so serves all its crash points.

Submitted operations run inside ``completed``, on the caller's thread: in order, or with
``completion_rng`` in seeded order and possibly later. A sync in such an operation covers
only what was written up to its ``submit``: the real one may have begun at once. All is
deterministic for a seed.
"""

import errno
import functools
import os
import random
from collections.abc import Callable, Iterable, Mapping

from penstock.errors import NO_DESCRIPTORS, LockedError, is_shortage
from penstock.storage.files.filesystem import Completions, File, FileSystem, Lock, Names
from tests.helpers.faults import DAMAGES, OPERATION_KINDS, CrashNow, Damage, Fault, flipped
from tests.helpers.faulty_file import FaultyFile, FaultyLock, with_file
from tests.helpers.journal import Entry, Journal
from tests.helpers.simulated_disk import (
    ROOT,
    SECTOR_BYTES,
    Change,
    DirectoryNode,
    Disk,
    FileNode,
    Node,
    some_writes,
    zeros,
)

__all__ = [
    "DAMAGES",
    "OPERATION_KINDS",
    "SECTOR_BYTES",
    "CrashNow",
    "Entry",
    "Fault",
    "FaultyFileSystem",
    "Journal",
]

UNLIMITED_BYTES = 1 << 50
WAITS = 20


class FaultyFileSystem(Damage, FileSystem):
    """Give it a ``seed``; with ``journal`` it enters each operation in ``journal``."""

    def __init__(
        self, *, seed: int = 0, journal: bool = False, capacity: int | None = None
    ) -> None:
        self.disk = Disk()
        self.on_complete = None
        self.seed = seed
        self.rng = random.Random(seed)  # chance in faults only; crashes are given their own
        self.operations = 0
        self.reads = 0
        self.opens = 0
        self.crash_at: int | None = None
        self.capacity = capacity  # bytes of all files; None: no limit
        self.kind_name = "ext4"
        # Called before each operation with its number, kind and path; may raise.
        self.before_operation: Callable[[int, str, str], None] | None = None
        self.completion_rng: random.Random | None = None
        self.is_dead = False
        self.has_readers = False  # other processes live on that read what the last one wrote
        self.handles: dict[int, int] = {}  # node -> open files of it
        self.locks: set[tuple[str, ...]] = set()
        self._faults: list[Fault] = []
        self._submitted: list[tuple[int, Callable[[], object], int]] = []
        self._finished: Completions = []
        self._closed = False
        self._next_token = 0
        self._horizon: int | None = None  # operations at the submit of the one that runs
        self._began = 0  # operations when it began to run
        self.journal: Journal | None = None
        if journal:
            self.start_journal()

    # ---- Crashes, copies, the journal -----------------------------------------------------

    def start_journal(self) -> Journal:
        """Begin a journal here, in place of any other; also on a file system after a crash."""
        self.journal = Journal(self)
        return self.journal

    def fork(self) -> "FaultyFileSystem":
        """A copy in flight: both images, pending writes; no handles, locks, faults or journal."""
        return self.with_disk(self.disk.copy())

    def crash(
        self,
        mode: str,
        rng: random.Random | None = None,
        *,
        cut: int | None = None,
        variant: str | None = None,
        apart: Mapping[str, str] | None = None,
    ) -> "FaultyFileSystem":
        """The file system that the next process finds. This one does not change.

        lost    power cut: nothing that was not synced, contents and names
        kept    all of it landed just before
        subset  each name has its old or its new inode; each unsynced write survives, or not,
                or in some of its sectors
        torn    all landed, but of the last unsynced write (see ``last_write``) only part:
                cut at byte ``cut`` of it, 0 to its length, by default at random; ``variant``
                "prefix" keeps what is before, "suffix" what is behind, "zeros" what is before
                and zeros in place of the rest; by default one at random
        zeros   names and sizes landed, data did not: appended bytes read as zeros
        killed  kill -9: the kernel lives, so unsynced data stays readable, and unsynced

        apart: directories of the root that are disks of their own, and their modes instead.

        In all but "killed" nothing is pending afterwards, and numbers begin anew. ``rng`` is
        needed by subset and torn.
        """
        if rng is None:
            rng = random.Random(self.seed)
        return self.with_disk(self.disk.crashed(mode, rng, cut, variant, apart))

    def sync_all(self) -> None:
        """Make everything durable: a set-up before the test, no operation. A journal restarts."""
        self.disk.sync_all()
        if self.journal is not None:
            self.start_journal()

    def last_write(self) -> tuple[str, int] | None:
        """(path, length in bytes) of the write that "torn" would tear; None if all is synced."""
        found = self.disk.last_write()
        if found is None:
            return None
        data = found[1][2]
        assert data is not None
        for path in self.disk.names():
            if self._find(path) == found[0]:
                return path, len(data)
        raise AssertionError("a reachable node has no name")

    def names(self) -> list[str]:
        """Every path, sorted; directories end with "/"."""
        return self.disk.names()

    def with_disk(self, disk: Disk) -> "FaultyFileSystem":
        """A file system like this one over another disk; no handles, locks, faults, journal."""
        fs = FaultyFileSystem(seed=self.seed, capacity=self.capacity)
        fs.disk = disk
        fs.operations = disk.changes
        fs.kind_name = self.kind_name
        return fs

    # ---- Faults ---------------------------------------------------------------------------

    def fail(
        self,
        effect: int | str,
        *,
        kinds: Iterable[str] | None = None,
        path: str | Callable[[str], bool] | None = None,
        at: int | None = None,
        nth: int = 1,
        times: int | None = 1,
    ) -> Fault:
        """Plan a fault: from the ``nth`` matching operation on, or from number ``at`` on.

        It strikes ``times`` times in a row, None: for ever. It matches operations of the
        ``kinds`` given (all but reads and opens by default, which have numbers of their own; a
        sync_dir opens its directory) on paths
        that contain ``path``, or for which ``path(path)`` is true. Effects:

        an errno     the operation raises it and does nothing; a sync loses what was pending
        "short"      half of a write lands, then OSError ENOSPC; half of a read is returned
        "lie"        a sync (or sync_dir) returns and makes nothing durable
        "flip"       kind "read": one bit of what is returned is wrong, this time
        "misdirect"  kind "read": the bytes of another sector of the file are returned
        """
        fault = Fault(effect, kinds, path, at, nth, times)
        self._faults.append(fault)
        return fault

    def clear_faults(self) -> None:
        """No planned fault strikes any more."""
        self._faults.clear()

    def _struck(self, kind: str, path: str, number: int) -> int | str | None:
        for fault in self._faults:
            if fault.strikes(kind, path, number):
                return fault.effect
        return None

    def _begin(self, kind: str, path: str) -> int | str | None:
        """Count an operation; returns the effect of a fault that strikes it."""
        number = self.operations + 1
        if self.is_dead or (self.crash_at is not None and number >= self.crash_at):
            self.is_dead = True
            raise CrashNow(number, kind, path)
        if self.before_operation is not None:
            self.before_operation(number, kind, path)
        self.operations = number
        return self._struck(kind, path, number) if self._faults else None

    def _apply(self, kind: str, path: str, change: Change) -> None:
        if self.journal is not None:
            self.journal.entries.append(Entry(self.operations, kind, path, change))
        self.disk.apply(change)

    def operate(self, kind: str, path: str, change: Change) -> None:
        effect = self._begin(kind, path)
        self._apply(kind, path, change if effect is None else ("nothing",))
        if effect is not None:
            raise _error(effect, path)

    def on_write(self, kind: str, path: str, number: int, data: bytes | None, place: int) -> None:
        """pwrite of ``data`` at ``place``, or allocate (data None) of ``place`` bytes."""
        effect = self._begin(kind, path)
        wanted = place if data is None else len(data)
        destination = wanted
        code = errno.ENOSPC
        if effect == "short":
            destination = wanted // 2
        elif effect is not None:
            destination, code = 0, _error(effect, path).errno or errno.EIO
        if self.capacity is not None:
            size = len(self.disk.file(number).volatile)
            base = 0 if data is None else place
            room = max(self.capacity - self.used_bytes(), 0) + size - base
            destination = min(destination, max(room, 0))
        change: Change = ("nothing",)
        if data is not None and (destination or not wanted):
            change = ("pwrite", number, place, data[:destination])
        elif data is None and destination == wanted:
            change = ("allocate", number, wanted)
        elif destination:
            change = ("pwrite", number, 0, zeros(destination))
        self._apply(kind, path, change)
        if effect is not None or destination < wanted:
            text = (
                f"short write: {destination} of {wanted} bytes"
                if destination
                else os.strerror(code)
            )
            raise OSError(code, text, path)

    def on_sync(self, path: str, number: int) -> None:
        effect = self._begin("sync", path)
        if effect == "lie":
            self._apply("sync", path, ("nothing",))
        elif effect is None:
            low = high = self.operations
            if self._horizon is not None:
                low, high = self._horizon, self._began
            self._apply("sync", path, ("sync", number, low, high))
        else:
            landed = some_writes(self.disk.file(number).pending, self.rng)
            self._apply("sync", path, ("sync_failed", number, landed))
            raise _error(effect, path)

    def sync_dir(self, path: str) -> None:
        number = self._find(path)
        node = self.disk.nodes[number]
        if not isinstance(node, DirectoryNode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        self._open(path)
        effect = self._begin("sync_dir", path)
        if effect == "lie":
            self._apply("sync_dir", path, ("nothing",))
        elif effect is None:
            self._apply("sync_dir", path, ("sync_dir", number))
        else:
            names = sorted(node.volatile.keys() | node.durable.keys())
            landed = [name for name in names if self.rng.random() < 0.5]
            self._apply("sync_dir", path, ("sync_dir_failed", number, landed))
            raise _error(effect, path)

    def on_read(self, path: str, content: bytearray, start: int, stop: int) -> bytes:
        self.reads += 1
        effect = self._struck("read", path, self.reads) if self._faults else None
        if effect is None or effect in ("short", "flip", "misdirect"):
            if effect == "misdirect":
                start, stop = start + SECTOR_BYTES, stop + SECTOR_BYTES
            data = bytes(memoryview(content)[start:stop])
            if effect == "short":
                return data[: len(data) // 2]
            if effect == "flip" and data:
                return flipped(data, self.rng.randrange(len(data) * 8))
            return data
        raise _error(effect, path)

    # ---- Paths ----------------------------------------------------------------------------

    def _parent(self, path: str) -> tuple[int, DirectoryNode, str]:
        """(number and node of the directory that holds the name, the name)."""
        parts = split_path(path)
        if not parts:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), path)
        nodes = self.disk.nodes
        number, node = ROOT, nodes[ROOT]
        for part in parts[:-1]:
            if not isinstance(node, DirectoryNode):
                break
            if part not in node.volatile:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            number = node.volatile[part]
            node = nodes[number]
        if not isinstance(node, DirectoryNode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return number, node, parts[-1]

    def _find(self, path: str) -> int:
        if not split_path(path):
            return ROOT
        _, directory, name = self._parent(path)
        number = directory.volatile.get(name)
        if number is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return number

    def _lookup(self, path: str) -> Node | None:
        try:
            return self.disk.nodes[self._find(path)]
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _file(self, path: str) -> FileNode:
        node = self.disk.nodes[self._find(path)]
        if not isinstance(node, FileNode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return node

    # ---- FileSystem -----------------------------------------------------------------------

    def _open(self, path: str) -> None:
        """Raise the error of a fault of kind "open" that strikes; nothing has happened then. A
        submitted operation waits for a descriptor, as long as WAITS looks take."""
        for left in reversed(range(WAITS if self._horizon is not None else 1)):
            self.opens += 1
            effect = self._struck("open", path, self.opens) if self._faults else None
            if effect is None:
                return
            if not left or effect not in NO_DESCRIPTORS:
                raise _error(effect, path)

    def open(self, path: str, *, create: bool = False) -> File:
        self._open(path)
        parent, directory, name = self._parent(path)
        if create and name not in directory.volatile:
            self.operate("create", path, ("create", parent, name))
        number = self._find(path)
        self._file(path)
        return FaultyFile(self, path, number)

    def read(self, path: str) -> bytes:
        content = self._file(path).volatile
        return self.on_read(path, content, 0, len(content))

    def exists(self, path: str) -> bool:
        return self._lookup(path) is not None

    def is_dir(self, path: str) -> bool:
        return isinstance(self._lookup(path), DirectoryNode)

    def list(self, path: str) -> Names:
        self.on_read(path, bytearray(), 0, 0)
        node = self.disk.nodes[self._find(path)]
        if not isinstance(node, DirectoryNode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return sorted(node.volatile)

    def size(self, path: str) -> int:
        return len(self._file(path).volatile)

    def mkdir(self, path: str) -> None:
        if not split_path(path):
            return
        parent, directory, name = self._parent(path)
        if name not in directory.volatile:
            self.operate("mkdir", path, ("mkdir", parent, name))
        elif not self.is_dir(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)

    def rename(self, old: str, new: str) -> None:
        number = self._find(old)
        old_parent, _, old_name = self._parent(old)
        parent, directory, name = self._parent(new)
        target = directory.volatile.get(name)
        if target == number:
            return  # two names of one inode, or twice the same: POSIX says that nothing happens
        if target is not None:
            node, there = self.disk.nodes[number], self.disk.nodes[target]
            if isinstance(there, FileNode) and isinstance(node, DirectoryNode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), new)
            if isinstance(there, DirectoryNode) and isinstance(node, FileNode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), new)
            if isinstance(there, DirectoryNode) and there.volatile:
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), new)
        self.operate("rename", old, ("rename", old_parent, old_name, parent, name))

    def link(self, old: str, new: str) -> None:
        number = self._find(old)
        parent, directory, name = self._parent(new)
        if isinstance(self.disk.nodes[number], DirectoryNode):
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), old)
        if name in directory.volatile:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new)
        self.operate("link", new, ("link", number, parent, name))

    def unlink(self, path: str) -> None:
        self._file(path)
        parent, _, name = self._parent(path)
        self.operate("unlink", path, ("unlink", parent, name))

    def rmdir(self, path: str) -> None:
        node = self.disk.nodes[self._find(path)]
        parent, _, name = self._parent(path)
        if not isinstance(node, DirectoryNode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        if node.volatile:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        self.operate("rmdir", path, ("unlink", parent, name))

    def used_bytes(self) -> int:
        """Bytes of all files that have a name or a handle."""
        alive = self.disk.reachable()
        alive.update(number for number, count in self.handles.items() if count)
        nodes = [self.disk.nodes[number] for number in alive]
        return sum(len(node.volatile) for node in nodes if isinstance(node, FileNode))

    def free_bytes(self, path: str) -> int:
        self._find(path)
        if self.capacity is None:
            return UNLIMITED_BYTES
        return max(self.capacity - self.used_bytes(), 0)

    def kind(self, path: str) -> str:
        return self.kind_name

    def lock(self, path: str) -> Lock:
        key = split_path(path)
        if key in self.locks:
            holder = bytes(self._file(path).volatile).decode("utf-8", "replace").strip()
            raise LockedError(path, holder or "an unnamed process")
        with_file(self, path, _write_holder)
        return FaultyLock(self, path, key)

    # ---- Submitted operations -------------------------------------------------------------

    def submit(self, op: Callable[[], object]) -> int:
        if self._closed:
            raise RuntimeError("the file system is closed")
        token = self._next_token
        self._next_token += 1
        self._submitted.append((token, op, self.operations))
        return token

    def completed(self, wait: bool) -> Completions:
        rng = self.completion_rng
        count = len(self._submitted)
        if rng is not None and not self._closed:
            rng.shuffle(self._submitted)
            count = (
                rng.randrange(1 if wait and not self._finished else 0, count + 1) if count else 0
            )
        for _ in range(count):
            self._run(*self._submitted.pop(0))
        results, self._finished = self._finished, []
        return results

    def close(self) -> None:
        self._closed = True
        while self._submitted and not self.is_dead:
            self._run(*self._submitted.pop(0))

    def _run(self, token: int, op: Callable[[], object], horizon: int) -> None:
        """Run one operation as if a worker had begun it at ``horizon`` operations."""
        self._horizon, self._began = horizon, self.operations
        try:
            result: object = op()
        except Exception as error:
            result = error
        finally:
            self._horizon = None
        self._finished.append((token, result))
        if self.on_complete is not None:
            self.on_complete()


@functools.lru_cache(maxsize=4096)
def split_path(path: str) -> tuple[str, ...]:
    parts = tuple(part for part in path.split("/") if part not in ("", "."))
    if ".." in parts:
        raise ValueError(f"{path}: FaultyFileSystem knows no ..")
    return parts


def _write_holder(file: File) -> None:
    try:
        if file.size():
            file.truncate(0)
        file.pwrite(f"pid {os.getpid()} host simulated\n".encode(), 0)
    except OSError as error:
        if not is_shortage(error):
            raise


def _error(effect: int | str, path: str) -> OSError:
    """The error of a fault; a word that means nothing to the operation is EIO."""
    code = effect if isinstance(effect, int) else errno.EIO
    return OSError(code, os.strerror(code), path)
