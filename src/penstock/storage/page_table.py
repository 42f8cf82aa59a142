"""The pages of a stream: which there are, and what is known of each.

A page is known by its base offset, which is its name; how many records it has, the next page says.
Times and bytes of a page are read when they are first asked for, from the index' header if that is
sealed and fits, else from the page's own frames; so a start costs a directory listing, whatever the
number of pages. A stream of ten million records has some dozens of these objects.

An owner (can_heal) makes an index that does not fit again, from the page. A few pages are kept open
for reading, the latest used.
"""

from bisect import bisect_right
from typing import TYPE_CHECKING, Final

from penstock.errors import CorruptionError
from penstock.storage.adoption import make_index
from penstock.storage.filesystem import FileSystem
from penstock.storage.page import PAGE_HEADER_BYTES, page_name
from penstock.storage.page import (
    INDEX_HEADER_BYTES,
    IndexHeader,
    decode_index_header,
)
from penstock.storage.page_reader import PageReader

if TYPE_CHECKING:
    from penstock.storage.page_writer import PageWriter

READERS_KEPT: Final = 8


class PageInfo:
    """What is known of a page that is complete. Times in microseconds since 1970."""

    __slots__ = ("base", "bytes", "first_time_us", "is_known", "last_time_us")

    def __init__(self, base: int) -> None:
        self.base: int = base
        self.is_known: bool = False
        self.bytes: int = 0
        self.first_time_us: int = 0
        self.last_time_us: int = 0

    def learn(self, size: int, first_time_us: int, last_time_us: int) -> None:
        """Everything of it."""
        self.bytes = size
        self.first_time_us = first_time_us
        self.last_time_us = last_time_us
        self.is_known = True


class PageTable:
    """Pages by base. first_base: pages below it are gone, as readMeta says."""

    def __init__(self, fs: FileSystem, directory: str, stream_id: bytes, *, can_heal: bool) -> None:
        self._fs: FileSystem = fs
        self._directory: str = directory
        self._stream_id: bytes = stream_id
        self._can_heal: bool = can_heal
        self.number: int = 0
        self.writer: PageWriter | None = None  # of the last page, which knows its last rows
        self.first_base: int = 0
        self.bases: list[int] = []
        self._infos: dict[int, PageInfo] = {}
        self._times: dict[int, int] = {}  # base -> first time, of those that were looked at
        self._readers: dict[int, PageReader] = {}
        self._sum: int = -1  # bytes of all pages but the last; -1: not added up yet

    def __len__(self) -> int:
        return len(self.bases)

    # ---- which ---------------------------------------------------------------------------------

    def set_bases(self, bases: list[int]) -> None:
        """The pages that there are, ascending; forgets all that was known."""
        self.close()
        self.bases = bases
        self._infos = {}
        self._times = {}
        self._sum = -1

    def keep_bases(self, bases: list[int]) -> None:
        """The pages that there are, ascending; what is known of those that stay is kept."""
        kept = set(bases)
        for base in self.bases:
            if base not in kept:
                self.forget(base)
                self._infos.pop(base, None)
                self._times.pop(base, None)
        self.bases = bases
        self._sum = -1

    def add(self, base: int) -> None:
        """The next page."""
        self.bases.append(base)
        self._infos[base] = PageInfo(base)
        self.forget(base)

    def complete(self, writer: "PageWriter") -> None:
        """The last page is full: what is known of it."""
        info = self._infos.get(writer.base)
        if info is None:
            info = self._infos[writer.base] = PageInfo(writer.base)
        info.learn(writer.position, writer.first_time_us, writer.last_time_us)
        self._times[writer.base] = writer.first_time_us
        if self._sum >= 0:
            self._sum += writer.position

    def base_of(self, offset: int) -> int:
        """The page that has `offset`, which is not below the first."""
        return self.bases[bisect_right(self.bases, offset) - 1]

    def end_of(self, base: int, end: int) -> int:
        """The offset behind a page, no larger than `end`."""
        i = bisect_right(self.bases, base)
        return min(self.bases[i], end) if i < len(self.bases) else end

    def take_first(self, count: int) -> list[int]:
        """The first pages are gone: their bases."""
        gone = self.bases[:count]
        for base in gone:
            if self._sum >= 0:
                self._sum -= self.info(base).bytes
            self.forget(base)
            self._infos.pop(base, None)
            self._times.pop(base, None)
        del self.bases[:count]
        return gone

    # ---- what ----------------------------------------------------------------------------------

    def bytes_before_last(self) -> int:
        """Bytes of all pages but the last."""
        if self._sum < 0:
            self._sum = sum([self.info(base).bytes for base in self.bases[:-1]])
        return self._sum

    def info(self, base: int) -> PageInfo:
        """What there is to know of a page that is not the last. OSError; a page that is missing or
        damaged is known by what is left of it and its neighbours."""
        info = self._infos.get(base)
        if info is None:
            info = self._infos[base] = PageInfo(base)
        if not info.is_known:
            self._load(info)
        return info

    def first_time(self, base: int) -> int:
        """The time of a page's first record, from the page. CorruptionError, OSError."""
        found = self._times.get(base, -1)
        if found < 0:
            reader = self.reader(base)
            try:
                reader.open()
            except FileNotFoundError:
                raise CorruptionError(reader.path, 0, "the page is missing") from None
            found = self._times[base] = reader.base_time_us
        return found

    def page_before(self, time_us: int, count: int) -> int:
        """Of the first `count` pages the last one that begins strictly before `time_us`; -1 if none
        does. Strictly: records of that very time may stand at the end of the page before one that
        begins with it."""
        low, high = 0, count
        while low < high:
            middle = (low + high) // 2
            if self.first_time(self.bases[middle]) < time_us:
                low = middle + 1
            else:
                high = middle
        return self.bases[low - 1] if low else -1

    def sealed_header(self, base: int, count: int, size: int) -> IndexHeader | None:
        """The header of a page's index, if it is sealed and of a page of this count and size.
        CorruptionError of the page, OSError."""
        path = f"{self._directory}/{page_name(base)}.idx"
        try:
            file = self._fs.open(path)
        except FileNotFoundError:
            return None
        try:
            header = decode_index_header(path, file.pread(INDEX_HEADER_BYTES, 0))
            length = file.size()
        except CorruptionError:
            return None
        finally:
            file.close()
        reader = self.reader(base)
        reader.open()  # the id of a staged page stands in its header
        fits = header.is_sealed and header.base == base and header.id == reader.id
        fits = fits and header.count == count and header.page_bytes == size
        return header if fits and length == header.file_bytes() else None

    def _load(self, info: PageInfo) -> None:
        base = info.base
        i = bisect_right(self.bases, base)
        next_base = self.bases[i]
        reader = self.reader(base)
        try:
            size = reader.size()
            header = self.sealed_header(base, next_base - base, size)
            if header is None and self._can_heal and self.heal(base, next_base - base, size):
                header = self.sealed_header(base, next_base - base, size)
            if header is not None:
                info.learn(size, header.first_time_us, header.last_time_us)
                return
            info.learn(size, reader.base_time_us, reader.time(next_base - base - 1, size))
        except (CorruptionError, FileNotFoundError):
            try:
                size = self._fs.size(reader.path)
            except FileNotFoundError:
                size = 0
            # A page cannot end later than the next one begins.
            try:
                after = self.first_time(next_base)
            except CorruptionError:
                after = 0
            info.learn(size, self._times.get(base, after), after)

    def heal_all(self) -> None:
        """See to it that every page but the last has its index, if it is not damaged. OSError."""
        for base in self.bases[:-1]:
            self.info(base)

    def heal(self, base: int, count: int, size: int) -> bool:
        """Make the index of a complete page again; False if the page is damaged. OSError."""
        # Not at the top: who only reads may be an executor of Spark that has no librt.
        from penstock.storage.page_writer import PageWriter

        writer = PageWriter(self._fs, self._directory, self._stream_id, self.number, base)
        try:
            writer.resume(max(size, PAGE_HEADER_BYTES), count, 0)
            if writer.is_adopted:
                return self._heal_adopted(writer)
            writer.find_last_time()
            writer.seal()
        except CorruptionError:
            return False
        finally:
            writer.close()
        self.reader(base).forget_index()
        return writer.damage is None

    def _heal_adopted(self, writer: "PageWriter") -> bool:
        found = make_index(self._fs, writer.stem, writer)
        self.reader(writer.base).forget_index()
        return found

    # ---- readers -------------------------------------------------------------------------------

    def reader(self, base: int) -> PageReader:
        """A reader of the page; at most a few pages are kept open."""
        readers = self._readers
        found = readers.pop(base, None)
        if found is None:
            found = PageReader(self._fs, self._directory, self._stream_id, base)
            if len(readers) >= READERS_KEPT:
                readers.pop(next(iter(readers))).close()
            writer = self.writer
            if writer is not None and writer.base == base:
                found.writer = writer
        readers[base] = found
        return found

    def forget(self, base: int) -> None:
        """The page's files were changed or are gone."""
        reader = self._readers.pop(base, None)
        if reader is not None:
            reader.close()

    def close(self) -> None:
        """Close what is open; it is opened again when it is needed."""
        for reader in self._readers.values():
            reader.close()
        self._readers = {}


def list_bases(fs: FileSystem, directory: str) -> list[int]:
    """The bases of the page files in a directory, ascending. OSError."""
    found: list[int] = []
    for name in fs.list(directory):
        stem, _, ending = name.rpartition(".")
        if ending == "page" and len(stem) == 20 and stem.isdecimal():
            found.append(int(stem))
    found.sort()
    return found
