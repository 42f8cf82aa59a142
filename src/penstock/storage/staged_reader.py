"""StagedReader: the records of one staged page, from any frame on, each proved by its checksum.

Rows that are moved into queues, or through the log into streams, are read from their page slice by
slice. What the page is, its decision says: id, records, length. Its header is not asked, and its
index only for where a frame begins, which the frame proves (page_reader.py).

One reader may be used by one thread at a time; where it stopped is kept, so that the next slice
asks no index.
"""

from penstock.errors import CorruptionError
from penstock.storage.batches import StagedPage
from penstock.storage.filesystem import FileSystem
from penstock.storage.page import PAGE_HEADER_BYTES, StreamRecord
from penstock.storage.page_reader import PageReader


class StagedReader:
    """The staged page at `path`."""

    def __init__(self, fs: FileSystem, path: str, page: StagedPage) -> None:
        self._page: StagedPage = page
        self._reader: PageReader = PageReader.staged(fs, path, page.page_id)
        self._next: tuple[int, int] = (0, PAGE_HEADER_BYTES)  # frame, and where it begins

    def read(self, frame: int, max_records: int, max_bytes: int) -> list[StreamRecord]:
        """Up to so many records from `frame` on, at least one; max_bytes: of payloads and meta.
        Their offset is the frame. CorruptionError (also: the page is missing), OSError."""
        page = self._page
        count = min(max_records, page.rows - frame)
        hint = self._next[1] if self._next[0] == frame else 0
        out: list[StreamRecord] = []
        try:
            place = self._reader.read(frame, count, page.bytes, hint, max_bytes, out)
        except FileNotFoundError:
            raise CorruptionError(self._reader.path, 0, "the staged page is missing") from None
        self._next = frame + len(out), place
        return out

    def close(self) -> None:
        """Close the files; they are opened again when they are needed."""
        self._reader.close()
