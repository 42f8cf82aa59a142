"""Reading over the pages of a stream: records from an offset on, the offset of a time.

The same for the owner of a stream and for who looks at it from beside: they differ in how they
know which pages there are and where the last one ends. Where readers left off is kept for a few
hundred offsets, so that reading in order asks no index.

Equal times: `find` takes the last page that begins *strictly* before the time asked for, and goes
on with the next page if none of its records is late enough. The page whose first record has that
very time would be one too far: the records before it may have it too.
"""

from typing import Final

from penstock.errors import CorruptionError
from penstock.storage.page import PAGE_HEADER_BYTES, StreamRecord
from penstock.storage.page_reader import PageReader
from penstock.storage.page_table import PageTable
from penstock.storage.stream_meta import Head

PLACES_KEPT: Final = 256


class PagedReading:
    """Reads the pages of a table. last_base, last_bytes: the page whose content ends before its
    file does, and where; the owner's own writer knows better, if there is one."""

    def __init__(self, pages: PageTable) -> None:
        self._pages: PageTable = pages
        self._places: dict[int, int] = {}  # offset -> byte in its page, where a read stopped
        self.last_base: int = -1
        self.last_bytes: int = 0

    def forget_places(self) -> None:
        """The pages were changed."""
        self._places = {}

    def read(
        self, offset: int, end: int, max_records: int, max_bytes: int
    ) -> list[StreamRecord]:  # fmt: skip
        """Records of [offset, end), which the pages must have; see `PersistentQueue.read`."""
        out: list[StreamRecord] = []
        pages = self._pages
        while offset < end and max_records > 0 and (max_bytes > 0 or not out):
            had = len(out)
            base = pages.base_of(offset)
            count = min(pages.end_of(base, end) - offset, max_records)
            try:
                place = self._read_page(base, offset, count, max_bytes, out)
            except CorruptionError:
                if out:
                    break  # first those that are good
                raise
            got = len(out) - had
            offset += got
            max_records -= got
            max_bytes = pages.reader(base).rest_bytes
            places = self._places
            if len(places) >= PLACES_KEPT:
                places.clear()
            places[offset] = place  # no place in the next page, if it begins with this offset
            if got < count:
                break
        return out

    def _read_page(
        self, base: int, offset: int, count: int, max_bytes: int, out: list[StreamRecord]
    ) -> int:
        reader = self._pages.reader(base)
        hint = PAGE_HEADER_BYTES if offset == base else self._places.get(offset, 0)
        return reader.read(offset - base, count, self.limit(reader), hint, max_bytes, out)

    def limit(self, reader: PageReader) -> int:
        """Where the content of a page ends. CorruptionError if it is gone, OSError."""
        if reader.writer is not None:
            return reader.writer.written
        try:
            size = reader.size()
        except FileNotFoundError:
            raise CorruptionError(reader.path, 0, "the page is missing") from None
        if reader.base != self.last_base:
            return size
        if size < self.last_bytes:
            text = f"the page ends here, expected {self.last_bytes} bytes"
            raise CorruptionError(reader.path, size, text)
        return self.last_bytes

    def head_at(self, offset: int) -> Head:
        """The head if the record `offset`, which there must be, is the first behind it."""
        pages = self._pages
        base = pages.base_of(offset)
        start = PAGE_HEADER_BYTES
        if offset > base:
            reader, writer = pages.reader(base), pages.writer
            if writer is not None and base == writer.base and offset - base >= writer.exact_from:
                start = writer.row(offset - base)[0]
            else:
                start = reader.search(offset - base, self.limit(reader))
        if offset == pages.bases[0]:
            return Head(offset, base, start, 0)
        return Head(offset, base, start, self._time(offset - 1))

    def _time(self, offset: int) -> int:
        """The time of a record, from a row that is exact or a frame."""
        base = self._pages.base_of(offset)
        writer = self._pages.writer
        if writer is not None and base == writer.base and offset - base >= writer.exact_from:
            return writer.row(offset - base)[2]
        reader = self._pages.reader(base)
        return reader.time(offset - base, self.limit(reader))

    def find(self, time_us: int, pages: int, end: int) -> int:
        """The first offset of the first `pages` pages whose time is at least `time_us`, below
        `end`; `end` if there is none."""
        table = self._pages
        if not pages:
            return end
        base = table.page_before(time_us, pages)
        if base < 0:
            return min(table.bases[0], end)
        reader = table.reader(base)
        count = table.end_of(base, end) - base
        return base + reader.find(time_us, count, self.limit(reader))
