"""Reserve: a file that keeps room on the disk for the work that frees room.

Acks, purges and deletes only free space once a checkpoint has been written, and a checkpoint needs
space first. So a file of real zeros is kept that is at least as large as the log not yet
materialised plus the last manifest; when a checkpoint meets ENOSPC the file is cut to nothing and
the checkpoint goes on. Publishers stay blocked until it can be made again.

It grows by doubling where there is room for that, so that it costs few writes, and shrinks when it
is told to (`trim`), never by itself. Growing may run elsewhere: `take_growth` gives the operation,
`grown` or `not_grown` is told how it ended.
"""

from collections.abc import Callable
from typing import Final

from penstock.storage.filesystem import FileSystem

STEP: Final = 4096


class Reserve:
    """The file `reserve` of a vhost directory. Nothing in it is ever read."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._fs = fs
        self._path = path + "/reserve"
        self._want = 0
        self._is_growing = False
        self.bytes: int = fs.size(self._path) if fs.exists(self._path) else 0

    def want(self, size: int) -> None:
        """It is to have at least so many bytes."""
        self._want = -(-size // STEP) * STEP

    def take_growth(self, available: int) -> Callable[[], object] | None:
        """The operation that makes it as large as is wanted; None if it is, if it is growing
        already, or if `available` does not allow it."""
        if self._is_growing or self.bytes >= self._want:
            return None
        size = max(self._want, 2 * self.bytes)
        if available < size - self.bytes:
            size = self._want
        if available < size - self.bytes:
            return None
        self._is_growing = True

        def op() -> object:
            file = self._fs.open(self._path, create=True)
            try:
                file.allocate(size)
            except OSError:
                file.truncate(0)
                return 0
            finally:
                file.close()
            return size

        return op

    def grown(self, size: object) -> None:
        """The operation has returned the size that the file has now, 0 if there was no room."""
        assert isinstance(size, int)
        self._is_growing = False
        self.bytes = size

    def not_grown(self) -> None:
        """The operation has failed: the file has whatever size it has, and that can be released."""
        self._is_growing = False
        try:
            self.bytes = self._fs.size(self._path) if self._fs.exists(self._path) else 0
        except OSError:
            pass  # it has the size that it had, as far as anybody knows

    def trim(self, size: int) -> None:
        """Give back what it has beyond so many bytes, unless it is growing. A disk that does not
        let us keeps it as it is."""
        size = -(-size // STEP) * STEP
        if self._is_growing or self.bytes <= size:
            return
        try:
            file = self._fs.open(self._path)
            try:
                file.truncate(size)
            finally:
                file.close()
        except OSError:
            return
        self.bytes = size

    def missing(self) -> int:
        """Bytes that it is smaller than it should be."""
        return max(0, self._want - self.bytes)

    def release(self) -> bool:
        """Give the room back; False if there was none, or it is just being made."""
        if not self.bytes or self._is_growing:
            return False
        file = self._fs.open(self._path, create=True)
        try:
            file.truncate(0)
        finally:
            file.close()
        self.bytes = 0
        return True
