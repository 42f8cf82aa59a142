"""Reserve: a file that keeps room on the disk for the work that frees room.

Acks, purges and deletes only free space once a checkpoint has been written, and a checkpoint needs
space first. So a file of real zeros is kept that equals the log not yet materialised plus the last
manifest; when a checkpoint meets ENOSPC the file is cut to nothing and the checkpoint goes on.
Publishers stay blocked until it can be made again.
"""

from typing import Final

from penstock.storage.filesystem import FileSystem

STEP: Final = 1 << 20  # it grows and is counted in whole MiB


class Reserve:
    """The file `reserve` of a vhost directory. Nothing in it is ever read."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._fs = fs
        self._path = path + "/reserve"
        self._want = 0
        self.bytes: int = fs.size(self._path) if fs.exists(self._path) else 0

    def grow(self, want: int, available: int) -> None:
        """Make it at least `want` bytes, as far as `available` allows. A full disk is no error."""
        self._want = -(-want // STEP) * STEP
        if self.bytes >= self._want or available < self._want - self.bytes:
            return
        file = self._fs.open(self._path, create=True)
        try:
            file.allocate(self._want)
            self.bytes = self._want
        except OSError:
            self._cut()
        finally:
            file.close()

    def missing(self) -> int:
        """Bytes that it is smaller than it should be."""
        return max(0, self._want - self.bytes)

    def release(self) -> bool:
        """Give the room back; False if there was none."""
        if not self.bytes:
            return False
        self._cut()
        return True

    def _cut(self) -> None:
        file = self._fs.open(self._path, create=True)
        try:
            file.truncate(0)
        finally:
            file.close()
        self.bytes = 0
