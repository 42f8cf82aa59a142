"""ReadOnlyFileSystem: another file system as it is, and changes that never reach it.

`verify`, `salvage` and `stats` look at a store with recovery's own code, because only that knows
what a store means. Recovery also repairs: it makes a lost hint again, it seals a file that was
left open. A tool that looks must change nothing, least of all a damaged store whose bytes are all
that is left. So the tools hand recovery this file system: reads go to the disk, changes are kept
in RAM and forgotten.

    open, read        the file as changed here, else the one on disk
    pwrite, truncate  the file's bytes are copied to RAM first; only small files meet that (hints)
    mkdir, rename, link, unlink, rmdir      change what names are seen here, and nothing below
    sync, drop_cache  passed on for a file on disk: after a crash its cached pages may hold what
                      no disk holds [8], and a sync changes no byte; nothing for one in RAM
    lock              refused: whoever uses this holds the lock of the real directory

Names of directories on disk cannot be renamed here. Submitted work runs at once.

Failure: what the disk's reads raise. A change cannot fail.
"""

import errno
from collections.abc import Callable

from penstock.errors import StorageError
from penstock.storage.filesystem import File, FileSystem, Lock, Names
from penstock.storage.worker_pool import Completions


class _Content:
    """Bytes of a file that is only here; shared by its handles."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = bytearray(data)


class _ShadowFile(File):
    """A file on disk until its first change, and in RAM from then on."""

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
    """See the head of this module. `below` is never changed."""

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
        except Exception as error:  # noqa: BLE001 - handed to whoever asks, as every FileSystem does
            result = error
        self._finished.append((self._token, result))
        return self._token

    def completed(self, wait: bool) -> Completions:
        finished, self._finished = self._finished, []
        return finished

    def close(self) -> None:
        pass
