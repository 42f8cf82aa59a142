"""Handles and locks of a ``FaultyFileSystem``."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.storage.files.filesystem import File, FileSystem, Lock
from tests.helpers.journal import Entry
from tests.helpers.simulated_disk import FileNode

if TYPE_CHECKING:
    from tests.helpers.faulty_filesystem import FaultyFileSystem


class FaultyFile(File):
    """A handle; it lives on when the name goes."""

    def __init__(self, fs: FaultyFileSystem, path: str, number: int) -> None:
        self.path = path
        self._fs = fs
        self._number = number
        self._open = True
        fs.handles[number] = fs.handles.get(number, 0) + 1

    def _node(self) -> FileNode:
        if not self._open:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self.path)
        return self._fs.disk.file(self._number)

    def pread(self, length: int, offset: int) -> bytes:
        if length < 0 or offset < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), self.path)
        return self._fs.on_read(self.path, self._node().volatile, offset, offset + length)

    def pwrite(self, data: bytes, offset: int) -> None:
        if offset < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), self.path)
        self._node()
        self._fs.on_write("pwrite", self.path, self._number, bytes(data), offset)

    def size(self) -> int:
        return len(self._node().volatile)

    def truncate(self, size: int) -> None:
        if size < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), self.path)
        self._node()
        self._fs.operate("truncate", self.path, ("truncate", self._number, size))

    def allocate(self, size: int) -> None:
        self._node()
        self._fs.on_write("allocate", self.path, self._number, None, size)

    def sync(self) -> None:
        self._node()
        self._fs.on_sync(self.path, self._number)

    def drop_cache(self) -> None:
        if self._node().diverged:
            self._fs.disk.drop_cache(self._number)
            journal = self._fs.journal
            if journal is not None:
                change = ("drop_cache", self._number)
                journal.entries.append(Entry(self._fs.operations, "drop_cache", self.path, change))

    def close(self) -> None:
        if self._open:
            self._open = False
            self._fs.handles[self._number] -= 1


class FaultyLock(Lock):
    """A lock of this one FaultyFileSystem; gone with it at a crash."""

    def __init__(self, fs: FaultyFileSystem, path: str, key: tuple[str, ...]) -> None:
        self.path = path
        self.pid = os.getpid()
        self._fs = fs
        self._key = key
        self._held = True
        fs.locks.add(key)

    def is_held(self) -> bool:
        return self._held

    def release(self) -> None:
        if self._held:
            self._held = False
            self._fs.locks.discard(self._key)
            if not self._fs.is_dead and self._fs.exists(self.path):
                with_file(self._fs, self.path, lambda file: file.truncate(0))


def with_file(fs: FileSystem, path: str, use: Callable[[File], object]) -> None:
    """Open (or create), use, close."""
    file = fs.open(path, create=True)
    try:
        use(file)
    finally:
        file.close()
