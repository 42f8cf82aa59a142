"""StoredBody: one body of a MessageStore that is read in pieces, from its beginning to its end.

A body of many MiB must not be in RAM because somebody sends it. Whoever sends it opens it, reads a
piece whenever there is room for one, and closes it. The open file keeps the bytes: the message may
be acknowledged, purged or moved meanwhile, its file may be combined with others or deleted; the
disk gives the room back when the last reader has closed it. Files of a store are never changed
once they are written, so what is read is what was written.

The checksum is that of the whole body, so it is known to be right only at the end. `read` compares
it before it returns the last bytes: nobody gets a whole body that is damaged. What could not be
read, or is damaged, is noted in `faults`, so that the store refuses to open it again, and whoever
wants it next is told at once.

Not here: where a body is (append_files.py, file_queue_backing.py).
"""

from penstock.errors import CorruptionError
from penstock.fast_crc import crc32
from penstock.storage.filesystem import File


class StoredBody:
    """Reads `size` bytes from `start` on. crc: what the checksum starts from; suffix: what it
    covers behind the body; expected: what it must be. left: bytes that were not read yet."""

    def __init__(
        self, file: File, id: int, start: int, size: int, *, crc: int, suffix: bytes, expected: int
    ) -> None:
        self.size: int = size
        self.left: int = size
        self.faults: dict[int, str] = {}  # id -> what and where; the store's own from `keep_in` on
        self._file: File | None = file
        self._id: int = id
        self._start: int = start
        self._crc: int = crc
        self._suffix: bytes = suffix
        self._expected: int = expected

    def read(self, length: int) -> bytes:
        """The next bytes, at most `length`; b"" when all were read. CorruptionError (cut off, or
        the checksum does not match), OSError: nothing more is to be had."""
        length = min(length, self.left)
        if not length:
            return b""
        try:
            data = self._read(length)
        except (CorruptionError, OSError) as error:
            self.faults[self._id] = str(error)
            raise
        self.left -= length
        return data

    def _read(self, length: int) -> bytes:
        file = self._file
        assert file is not None, "it is closed"
        at = self._start + self.size - self.left
        data = file.pread(length, at)
        if len(data) != length:
            what = f"body {self._id} of {self.size} bytes is cut off"
            raise CorruptionError(file.path, at + len(data), what)
        self._crc = crc32(data, self._crc)
        if length == self.left and crc32(self._suffix, self._crc) != self._expected:
            what = f"the checksum of body {self._id} does not match"
            raise CorruptionError(file.path, self._start, what)
        return data

    def close(self) -> None:
        """Let the file go. A second call does nothing."""
        file, self._file = self._file, None
        if file is not None:
            file.close()
