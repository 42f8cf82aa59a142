"""StreamView: reading a stream beside its owner, without a lock, during appends and deletions.

The owner guarantees that below the head no byte ever changes, that pages are deleted but never cut,
and that writeMeta has the head. So every call reads the head, and nothing beyond it. Meanwhile:

    writeMeta is being written     the checksum shows it; it is read again, a few times
    a page was deleted             the call begins again with the pages that there are: a caller who
                                   asked for an offset below the first gets the first one, and sees
                                   the gap by its offset
    the index is short or missing  rows are hints only (page_reading.py): the page is scanned, from
                                   the nearest row that proves true
    a page is sealed               no effect: the frames are where they were

A view makes and changes no file. Two calls may see two heads; the second is never below the first
unless a power cut lost what was not synced.

Failure: CorruptionError with file and position, NotAStoreError if it is not a stream, OSError.
"""

from dataclasses import dataclass
from typing import Final

from penstock.errors import CorruptionError, NotAStoreError
from penstock.storage.files.filesystem import File, FileSystem
from penstock.storage.pages import stream_meta
from penstock.storage.pages.page import PageRecord, page_name
from penstock.storage.pages.page_reading import PagedReading, PageTable, list_bases
from penstock.storage.pages.stream_meta import ALL_META, META_BYTES, WRITE_META, StreamHead

TRIES: Final = 100  # of a writeMeta that does not verify
RELISTS: Final = 10  # how often pages may be deleted during one call
NOTHING: Final = (-1, -1, False)

__all__ = ["StreamHead", "PageFiles", "StreamView"]


@dataclass(frozen=True, slots=True)
class PageFiles:
    """A page and its index. count: its records below the head; times of its first and last record
    in microseconds since 1970, the last None if the page is not sealed. bytes: of its content below
    the head."""

    base: int
    page_path: str
    index_path: str
    is_sealed: bool
    count: int
    bytes: int
    first_time_us: int
    last_time_us: int | None


class StreamView:
    """The stream in the directory `path`. stream_id: 16 bytes; number: in its vhost, 0 alone;
    page_bytes: the size that its pages may reach."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._fs: FileSystem = fs
        self.path: str = path
        file = f"{path}/{ALL_META}"
        try:
            meta = stream_meta.decode_all(file, fs.read(file))
        except (FileNotFoundError, NotADirectoryError):
            raise NotAStoreError(path, f"it has no {ALL_META}, so it is not a stream") from None
        self.stream_id: bytes = meta.id
        self.number: int = meta.number
        self.page_bytes: int = meta.page_bytes
        self._pages: PageTable = PageTable(fs, path, meta.id, can_heal=False)
        self._reading: PagedReading = PagedReading(self._pages)
        self._head_file: File | None = None
        self._seen: tuple[int, int, bool] = NOTHING  # the state for which pages were listed

    # ---- what there is -------------------------------------------------------------------------

    def head(self) -> StreamHead:
        """Return where the stream ends for readers now. CorruptionError, OSError."""
        path = f"{self.path}/{WRITE_META}"
        error: CorruptionError | None = None
        for _ in range(TRIES):
            try:
                if self._head_file is None:
                    self._head_file = self._fs.open(path)
                return stream_meta.decode_head(path, self._head_file.pread(META_BYTES, 0))
            except FileNotFoundError:
                if not list_bases(self._fs, self.path):
                    return StreamHead(0, 0, 0, 0)  # it is being made
                error = CorruptionError(path, 0, "it is missing, and there are pages")
            except CorruptionError as found:
                error = found
                self._close_head()
        assert error is not None
        raise error

    def first_offset(self) -> int:
        """Return the first offset; that of the head without records. CorruptionError, OSError."""
        head = self._look()
        bases = self._pages.bases
        return bases[0] if bases else head.next_offset

    def _look(self) -> StreamHead:
        """Read the head, and list the pages up to it if they may have changed."""
        for _ in range(RELISTS):
            first = stream_meta.read_tail(self._fs, self.path)
            head = self.head()
            seen = (first, head.page_base, head.page_bytes > 0)
            if seen != self._seen:
                missing = self._list(first, head)
                if missing >= 0:
                    if stream_meta.read_tail(self._fs, self.path) > first:
                        continue
                    page = f"{self.path}/{page_name(missing)}.page"
                    raise CorruptionError(page, 0, "the page is missing")
                self._seen = seen
            self._reading.last_base = head.page_base
            self._reading.last_bytes = head.page_bytes
            return head
        raise self._gave_up()

    def _list(self, first: int, head: StreamHead) -> int:
        """List the pages from the first to that of the head; return the base of a missing one,
        otherwise -1."""
        if not head.page_bytes:
            self._pages.keep_bases([])
            return -1
        if head.page_base < first and head.next_offset <= first:
            self._pages.keep_bases([])  # its owner died while it deleted the last page
            return -1
        if head.page_base < first:
            file = f"{self.path}/{WRITE_META}"
            text = f"the head is in page {head.page_base}, the first is {first}: start its owner"
            raise CorruptionError(file, 16, text)
        bases = [x for x in list_bases(self._fs, self.path) if first <= x <= head.page_base]
        if not bases or bases[0] != first:
            return first
        if bases[-1] != head.page_base:
            return head.page_base
        if head.next_offset == head.page_base:
            bases.pop()  # nothing of it is below the head
        self._pages.keep_bases(bases)
        return -1

    def pages(self) -> list[PageFiles]:
        """Return the pages that have something below the head, in order. CorruptionError,
        OSError."""
        for _ in range(RELISTS):
            head = self._look()
            try:
                return [self._page(base, head) for base in self._pages.bases]
            except FileNotFoundError:
                self._seen = NOTHING
        raise self._gave_up()

    def _page(self, base: int, head: StreamHead) -> PageFiles:
        pages = self._pages
        count = pages.end_of(base, head.next_offset) - base
        reader = pages.reader(base)
        size = reader.size()
        header = pages.sealed_header(base, count, size)
        if base == head.page_base:
            size = head.page_bytes
        last: int | None = None
        if header is not None:
            last = header.last_time_us
        elif base == head.page_base:
            last = head.last_time_us
        return PageFiles(
            base, reader.path, reader.index_path, header is not None, count, size,
            reader.base_time_us, last,
        )  # fmt: skip

    # ---- records -------------------------------------------------------------------------------

    def read(self, offset: int, max_records: int, max_bytes: int) -> list[PageRecord]:
        """Return records as `PersistentQueue.read` does. CorruptionError, OSError."""
        for _ in range(RELISTS):
            head = self._look()
            bases = self._pages.bases
            if not bases:
                return []
            try:
                return self._reading.read(
                    max(offset, bases[0]), head.next_offset, max_records, max_bytes
                )
            except CorruptionError as error:
                if not self._is_deleted(error):
                    raise
        raise self._gave_up()

    def find(self, time_us: int) -> int:
        """Return the first offset below the head whose time is at least `time_us` (microseconds
        since 1970); that of the head if there is none. CorruptionError, OSError."""
        for _ in range(RELISTS):
            head = self._look()
            if time_us > head.last_time_us:
                return head.next_offset
            try:
                return self._reading.find(time_us, len(self._pages), head.next_offset)
            except CorruptionError as error:
                if not self._is_deleted(error):
                    raise
        raise self._gave_up()

    def _is_deleted(self, error: CorruptionError) -> bool:
        """Return whether the damage is a page that was deleted meanwhile."""
        first = stream_meta.read_tail(self._fs, self.path)
        stem = error.path.rpartition("/")[2].partition(".")[0]
        return stem.isdecimal() and int(stem) < first

    def _gave_up(self) -> CorruptionError:
        return CorruptionError(
            self.path, 0, f"pages were deleted {RELISTS} times while it was read"
        )

    # ---- the end -------------------------------------------------------------------------------

    def _close_head(self) -> None:
        if self._head_file is not None:
            self._head_file.close()
            self._head_file = None

    def close(self) -> None:
        """Close all files; they are opened again when needed."""
        self._close_head()
        self._pages.close()
