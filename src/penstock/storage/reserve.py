"""Reserve: a file that keeps room on the disk for the work that frees room.

Acks, purges and deletes only free space once a checkpoint has been written, and a checkpoint needs
space first. So a file of real zeros is kept that is at least as large as the log not yet
materialised plus the last manifest; when a checkpoint meets ENOSPC the file is cut to nothing and
the checkpoint goes on. Publishers stay blocked until it can be made again.

Where log and messages are on two disks (placed_filesystem.py) there is a file on each, all of one
size: a checkpoint writes to both, and nobody knows which of them it will find full.

It grows by doubling where there is room for that, so that it costs few writes, and shrinks when it
is told to (`trim`), never by itself. Growing may run elsewhere: `take_growth` gives the operation,
`grown` or `not_grown` is told how it ended.
"""

from collections.abc import Callable
from typing import Final

from penstock.storage.filesystem import FileSystem

STEP: Final = 4096
NAMES: Final = ("reserve", "spill_reserve")


class Reserve:
    """The file `reserve` of a vhost directory, and `spill_reserve` on a second disk. Nothing in
    them is ever read. bytes: the size of each."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._fs = fs
        self._paths = [f"{path}/{name}" for name in NAMES[: len(fs.disks(path))]]
        self._want = 0
        self._is_growing = False
        self.bytes: int = self._found_bytes()
        self._even_out()

    def _even_out(self) -> None:
        """A crash may have left one of two files larger: nobody would give its room back."""
        if any(self._fs.exists(path) and self._fs.size(path) > self.bytes for path in self._paths):
            self._cut(self.bytes)

    def _found_bytes(self) -> int:
        fs = self._fs
        return min([fs.size(path) if fs.exists(path) else 0 for path in self._paths])

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
            is_made = True
            for path in self._paths:
                file = self._fs.open(path, create=True)
                try:
                    file.allocate(size)
                except OSError:
                    file.truncate(0)
                    is_made = False
                finally:
                    file.close()
            if not is_made:
                self._cut(0)
            return size if is_made else 0

        return op

    def _cut(self, size: int) -> None:
        """Make none of the files larger than that."""
        for path in self._paths:
            file = self._fs.open(path, create=True)
            try:
                if file.size() > size:
                    file.truncate(size)
            finally:
                file.close()

    def grown(self, size: object) -> None:
        """The operation has returned the size that the file has now, 0 if there was no room."""
        assert isinstance(size, int)
        self._is_growing = False
        self.bytes = size

    def not_grown(self) -> None:
        """The operation has failed: the file has whatever size it has, and that can be released."""
        self._is_growing = False
        try:
            self.bytes = self._found_bytes()
        except OSError:
            pass  # it has the size that it had, as far as anybody knows

    def trim(self, size: int) -> None:
        """Give back what it has beyond so many bytes, unless it is growing. A disk that does not
        let us keeps it as it is."""
        size = -(-size // STEP) * STEP
        if self._is_growing or self.bytes <= size:
            return
        try:
            self._cut(size)
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
        self._cut(0)
        self.bytes = 0
        return True
