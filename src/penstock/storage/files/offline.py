"""Offline: a store that is not running, locked and read without a change.

`verify`, `salvage` and `stats` share this: which directory was meant (a whole data directory, or
one vhost's), its locks, and the vhosts in it with the numbers that seed their checksums. They read
damaged stores too. So what is wrong with `VERSION` or a `.vhost` is a fault, which is noted and not
raised. A vhost's number is in its directory's name, or, if that is damaged, in the headers of its
files. If `.vhost` is lost, the vhost's name is the one with that hash among those that are given
and `/`, which every box and every new broker has.

The tools use recovery's own code, which also repairs: it makes a lost hint again and seals a file
that was left open. A tool must change nothing, least of all a damaged store. So it gives recovery a
ReadOnlyFileSystem: reads are from the disk, changes stay in RAM.

    open, read        the file as changed here, else the one on disk
    pwrite, truncate  the file's bytes are copied to RAM first; only small files meet that (hints)
    mkdir, rename, link, unlink, rmdir      change which names are seen here
    sync, drop_cache  passed on for a file on disk: after a crash its cached pages may hold what
                      no disk holds [8], and a sync changes no byte; nothing for one in RAM
    lock              refused: the caller has the lock of the real directory

Directories on disk cannot be renamed here. Submitted work runs at once.

The locks are real: LOCK of the data directory and of each vhost. Only the text in these lock files
is written. Failure: NotAStoreError, LockedError, OSError. A VERSION that is whole and of another
version is a VersionError.
"""

import errno
import struct
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

from penstock.errors import CorruptionError, NotAStoreError, StorageError
from penstock.storage.files.data_directory import (
    check_version,
    name_fault,
    place_locks,
    placed,
    vhost_number,
)
from penstock.storage.files.filesystem import Completions, File, FileSystem, Lock, Names


class _Content:
    """The bytes of a file in RAM, shared by its handles."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = bytearray(data)


class _ShadowFile(File):
    """A file on disk until its first change, and in RAM afterwards."""

    def __init__(self, fs: "ReadOnlyFileSystem", path: str, below: File | None) -> None:
        self.path = path
        self._fs = fs
        self._below = below

    def _content(self) -> _Content | None:
        return self._fs.contents.get(self.path)

    def _changed(self) -> bytearray:
        content = self._content()
        if content is None:
            content = _Content(self._fs.below.read(self.path))
            self._fs.contents[self.path] = content
        return content.data

    def pread(self, length: int, offset: int) -> bytes:
        content = self._content()
        if content is not None:
            return bytes(memoryview(content.data)[offset : offset + length])
        assert self._below is not None
        return self._below.pread(length, offset)

    def pwrite(self, data: bytes, offset: int) -> None:
        content = self._changed()
        if offset > len(content):
            content.extend(bytes(offset - len(content)))
        content[offset : offset + len(data)] = data

    def size(self) -> int:
        content = self._content()
        if content is not None:
            return len(content.data)
        assert self._below is not None
        return self._below.size()

    def truncate(self, size: int) -> None:
        if not size:
            self._fs.contents[self.path] = _Content(b"")
            return
        content = self._changed()
        del content[size:]
        content.extend(bytes(size - len(content)))

    def allocate(self, size: int) -> None:
        self._fs.contents[self.path] = _Content(bytes(size))

    def sync(self) -> None:
        if self._content() is None and self._below is not None:
            self._below.sync()

    def drop_cache(self) -> None:
        if self._content() is None and self._below is not None:
            self._below.drop_cache()

    def close(self) -> None:
        if self._below is not None:
            self._below.close()


class ReadOnlyFileSystem(FileSystem):
    """The file system `below`, with changes that are kept in RAM."""

    def __init__(self, below: FileSystem) -> None:
        self.below = below
        self.on_complete = None
        self.contents: dict[str, _Content] = {}
        self._directories: set[str] = set()
        self._gone: set[str] = set()
        self._finished: Completions = []
        self._token = 0

    def _is_below(self, path: str) -> bool:
        return path not in self._gone and self.below.exists(path)

    def open(self, path: str, *, create: bool = False) -> File:
        if path in self.contents:
            return _ShadowFile(self, path, None)
        if self._is_below(path):
            return _ShadowFile(self, path, self.below.open(path))
        if not create:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        self.contents[path] = _Content(b"")
        return _ShadowFile(self, path, None)

    def read(self, path: str) -> bytes:
        content = self.contents.get(path)
        if content is not None:
            return bytes(content.data)
        if path in self._gone:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return self.below.read(path)

    def exists(self, path: str) -> bool:
        return path in self.contents or path in self._directories or self._is_below(path)

    def is_dir(self, path: str) -> bool:
        if path in self._directories:
            return True
        return path not in self.contents and path not in self._gone and self.below.is_dir(path)

    def list(self, path: str) -> Names:
        names: set[str] = set()
        if path not in self._directories:
            names.update(self.below.list(path))
        start = path.rstrip("/") + "/"
        names = {name for name in names if start + name not in self._gone}
        for here in (*self.contents, *self._directories):
            if here.startswith(start) and "/" not in here[len(start) :]:
                names.add(here[len(start) :])
        return sorted(names)

    def size(self, path: str) -> int:
        content = self.contents.get(path)
        if content is not None:
            return len(content.data)
        if path in self._gone:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return self.below.size(path)

    def mkdir(self, path: str) -> None:
        if not self.exists(path):
            self._directories.add(path)

    def rename(self, old: str, new: str) -> None:
        content = self.contents.pop(old, None)
        self.contents[new] = _Content(self.read(old)) if content is None else content
        self._hide(old)

    def link(self, old: str, new: str) -> None:
        if self.exists(new):
            raise FileExistsError(errno.EEXIST, "File exists", new)
        self.contents[new] = _Content(self.read(old))

    def unlink(self, path: str) -> None:
        if not self.exists(path):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        self.contents.pop(path, None)
        self._hide(path)

    def rmdir(self, path: str) -> None:
        self._directories.discard(path)
        self._hide(path)

    def _hide(self, path: str) -> None:
        if self.below.exists(path):
            self._gone.add(path)

    def sync_dir(self, path: str) -> None:
        pass

    def free_bytes(self, path: str) -> int:
        return self.below.free_bytes(path)

    def kind(self, path: str) -> str:
        return self.below.kind(path)

    def real_path(self, path: str) -> str:
        return self.below.real_path(path)

    def place(self, path: str) -> str:
        return self.below.place(path)

    def disks(self, path: str) -> Names:
        return self.below.disks(path)

    def lock(self, path: str) -> Lock:
        raise StorageError(f"{path}: a read-only view takes no lock")

    def submit(self, op: Callable[[], object]) -> int:
        self._token += 1
        try:
            result: object = op()
        except Exception as error:  # noqa: BLE001 - a result, as in every FileSystem
            result = error
        self._finished.append((self._token, result))
        return self._token

    def completed(self, wait: bool) -> Completions:
        finished, self._finished = self._finished, []
        return finished

    def close(self) -> None:
        pass


USUAL_NAMES = (b"/",)
_HEADER = struct.Struct(">4sHHQ")  # how checkpoints, log segments and store files begin


@dataclass(frozen=True, slots=True)
class Vhost:
    """One vhost's directory. name: b"" if it is lost."""

    path: str
    name: bytes
    number: int

    def title(self) -> str:
        """Return the name for people, or the number in hex."""
        return self.name.decode("utf-8", "replace") or f"{self.number:016x}"


class Offline:
    """The locked store at `path`; `close`, or the end of a `with`, releases the locks. names: those
    that vhosts without a `.vhost` may have."""

    def __init__(self, fs: FileSystem, path: str, names: Sequence[bytes] = ()) -> None:
        self.fs = placed(fs, path)
        self._names = (*names, *USUAL_NAMES)
        self.path = path.rstrip("/") or "/"
        self.faults: list[CorruptionError] = []
        self.vhosts: list[Vhost] = []
        self._locks: list[Lock] = []
        self.is_data_directory = self._look()
        try:
            if self.is_data_directory:
                self._locks.append(fs.lock(self.path + "/LOCK"))
                self._locks += place_locks(fs, self.path)
                directories = [f"{self.path}/vhosts/{d}" for d in self._directories()]
            else:
                directories = [self.path]
            for directory in directories:
                self._add(directory)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Offline":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the locks; a second call does nothing."""
        for lock in self._locks:
            lock.release()
        self._locks = []

    def _look(self) -> bool:
        """Return whether it is a data directory, and not a vhost's. NotAStoreError if neither."""
        fs, path = self.fs, self.path
        if is_vhost(fs, path):
            return False
        try:
            check_version(fs, path)
        except CorruptionError as error:
            self.faults.append(error)
        except NotAStoreError:
            if not fs.is_dir(path) or fs.exists(path + "/UNFINISHED"):
                raise
            found = [d for d in self._directories() if is_vhost(fs, f"{path}/vhosts/{d}")]
            if not found:
                raise
            self.faults.append(CorruptionError(path + "/VERSION", 0, "it is missing"))
        return True

    def _directories(self) -> list[str]:
        parent = self.path + "/vhosts"
        return self.fs.list(parent) if self.fs.is_dir(parent) else []

    def _add(self, directory: str) -> None:
        fs = self.fs
        if not is_vhost(fs, directory):
            return
        self._locks.append(fs.lock(directory + "/LOCK"))
        stub = directory + "/.vhost"
        has_stub = fs.exists(stub)
        name = fs.read(stub).removesuffix(b"\n") if has_stub else b""
        number = _number_of(directory.rpartition("/")[2])
        is_named = number >= 0
        if number < 0:
            number = _number_in_headers(fs, directory)
        if number < 0:
            number = vhost_number(name)
        if not has_stub and is_named:
            self.faults.append(name_fault(stub, f"{number:016x}", None))
        elif has_stub and vhost_number(name) != number:
            self.faults.append(name_fault(stub, f"{number:016x}", name))
            name = b""
        if vhost_number(name) != number:
            name = next((one for one in self._names if vhost_number(one) == number), b"")
        self.vhosts.append(Vhost(directory, name, number))


def is_vhost(fs: FileSystem, path: str) -> bool:
    """Return whether it looks like a vhost's directory, damaged or not."""
    return any(fs.exists(f"{path}/{name}") for name in (".vhost", "CURRENT", "wal"))


def _number_of(name: str) -> int:
    """Return the number of a vhost whose directory has this name, or -1."""
    if len(name) != 16 or not all(digit in "0123456789abcdef" for digit in name):
        return -1
    return int(name, 16)


def _number_in_headers(fs: FileSystem, directory: str) -> int:
    """Return the vhost's number that most files' headers have, or -1."""
    votes: dict[int, int] = {}
    for part in ("", "/wal", "/msg_store_persistent"):
        at = directory + part
        for name in fs.list(at) if fs.is_dir(at) else []:
            path = f"{at}/{name}"
            if fs.is_dir(path):
                continue
            with closing(fs.open(path)) as file:
                head = file.pread(_HEADER.size, 0)
            if len(head) == _HEADER.size and head[:4] in (b"PCKP", b"PWAL", b"PRDQ", b"PHNT"):
                number: int = _HEADER.unpack(head)[3]
                votes[number] = votes.get(number, 0) + 1
    return max(votes, key=lambda number: votes[number]) if votes else -1
