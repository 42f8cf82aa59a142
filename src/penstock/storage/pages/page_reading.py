"""Reading the pages of a stream: PageReader one page, PageTable which pages there are, PagedReading
records and times across them.

**One page.** Only what verifies is trusted. A row of the index is a hint that saves a scan: the
checksum of the frame that it leads to is good only at that frame's own place, so a wrong row is
noticed. If the hints fail, the page is scanned from the nearest place that verifies. Times are
proved the same way: record i is the first of a time if its frame and the frame before say so. The
page may grow while it is read, and its index may be short: `limit` and `count` say how much of it
the reader may see. If the page is deleted, opening it raises FileNotFoundError; once open it stays
readable. Reads are of at most a MiB, or one larger record. A bad frame is a CorruptionError with
the page's path and the byte where the frame begins.

**Which pages.** A page's base offset is its name; the next page's base says how many records it
has. Times and bytes of a page are read when they are first needed, from the index header if that is
sealed and matches, otherwise from the frames. So a start costs a directory listing, whatever the
number of pages: a stream of ten million records has some dozens of them. An owner (can_heal) writes
an index that does not match again, from the page. The last used few pages stay open.

**Across pages.** The owner of a stream and a reader beside it use the same code; they differ in how
they know which pages there are and where the last one ends. The byte where a read ended is kept for
a few hundred offsets, so that reading in order uses no index. `find` takes the last page that
begins *strictly* before the time, and continues with the next page if no record of it is late
enough: records of that time may stand at the end of the page before one that begins with it.
"""

from bisect import bisect_right
from typing import TYPE_CHECKING, Final

from penstock.errors import CorruptionError
from penstock.fast_crc import crc32
from penstock.storage.files.filesystem import File, FileSystem
from penstock.storage.pages.adoption import make_index
from penstock.storage.pages.page import (
    BLOCK_BYTES,
    FRAME_BYTES,
    INDEX_HEADER_BYTES,
    INDEX_ROW_BYTES,
    PAGE_HEADER_BYTES,
    UNLIMITED,
    IndexHeader,
    PageHeader,
    PageRecord,
    check_header,
    decode_frames,
    decode_index_header,
    decode_row,
    frame_facts,
    page_id,
    page_name,
    page_seed,
    scan_frames,
)
from penstock.storage.pages.stream_meta import StreamHead

if TYPE_CHECKING:
    from penstock.storage.pages.page_writer import PageWriter
    from penstock.storage.store.store_file import StoredBody


SMALL_READ_BYTES: Final = 4096
READ_BYTES: Final = BLOCK_BYTES


class PageReader:
    """One page. Its file is opened, and its header checked, by the first read: FileNotFoundError if
    it is missing, CorruptionError if it is another page than its name says."""

    def __init__(self, fs: FileSystem, directory: str, stream_id: bytes, base: int) -> None:
        self._fs: FileSystem = fs
        self.base: int = base
        self.path: str = f"{directory}/{page_name(base)}.page"
        self.index_path: str = f"{directory}/{page_name(base)}.idx"
        self.id: int = page_id(stream_id, base)
        self.seed: int = page_seed(self.id)
        self.base_time_us: int = 0
        self.is_adopted: bool = False  # a staged page: all its records have the base time
        self.rest_bytes: int = 0  # what the last `read` left of its max_bytes
        self._is_known: bool = False  # the header need not be checked
        self._page: File | None = None
        self._index: File | None = None
        self.writer: PageWriter | None = None  # of this page, which has its last rows

    @classmethod
    def staged(cls, fs: FileSystem, path: str, id: int) -> "PageReader":
        """Return a reader of the staged page at `path`, which has this id; records count from 0.
        Does not read its header, because a crash may have left the header of an adoption that was
        lost."""
        found = cls(fs, "", b"", 0)
        found.path = path
        found.index_path = path.removesuffix(".page") + ".idx"
        found.id = id
        found.seed = page_seed(id)
        found._is_known = True
        return found

    def open(self) -> File:
        """Return the page's file, after checking its header."""
        file = self._page
        if file is None:
            file = self._fs.open(self.path)
            if self._is_known:
                self._page = file
                return file
            try:
                header = self._header(file)
            except BaseException:
                file.close()
                raise
            self.base_time_us = header.base_time_us
            if header.is_staged:
                self.is_adopted = True
                self.id = header.id
                self.seed = page_seed(header.id)
            self._page = file
        return file

    def _header(self, file: File) -> PageHeader:
        try:
            return check_header(self.path, file.pread(PAGE_HEADER_BYTES, 0), self.id, self.base)
        except CorruptionError:  # it may have been read wrongly once
            return check_header(self.path, file.pread(PAGE_HEADER_BYTES, 0), self.id, self.base)

    def size(self) -> int:
        """Return the length of the page file in bytes."""
        return self.open().size()

    def row(self, rel: int) -> tuple[int, int, int]:
        """Return (frame start, payload bytes, time) from the index, unproved; zeros if it has no
        such row."""
        if self.writer is not None:
            return self.writer.row(rel)
        file = self._index
        if file is None:
            try:
                file = self._index = self._fs.open(self.index_path)
            except FileNotFoundError:
                return 0, 0, 0
        data = file.pread(INDEX_ROW_BYTES, INDEX_HEADER_BYTES + rel * INDEX_ROW_BYTES)
        if len(data) < INDEX_ROW_BYTES:
            return 0, 0, 0
        return decode_row(data, 0)

    def forget_index(self) -> None:
        """Open the index again at the next use, because it was written again."""
        if self._index is not None:
            self._index.close()
        self._index = None

    # ---- records -------------------------------------------------------------------------------

    def read(
        self, rel: int, count: int, limit: int, hint: int, max_bytes: int, out: list[PageRecord],
        whole_max: int = UNLIMITED,
    ) -> int:  # fmt: skip
        """Append up to `count` records from record `rel` on to `out`; return the position after the
        last.

        limit: where the page's content ends. hint: where record `rel` begins, 0 if unknown. Stops
        before a bad frame; if the first frame is bad, raises. Stops before a record of more than
        whole_max bytes, READ_BYTES at least.
        """
        had = len(out)
        try:
            return self._read(rel, count, limit, hint, max_bytes, out, whole_max)
        finally:
            if self.is_adopted:
                for record in out[had:]:
                    record.time_us = self.base_time_us

    def _read(
        self, rel: int, count: int, limit: int, hint: int, max_bytes: int, out: list[PageRecord],
        whole_max: int,
    ) -> int:  # fmt: skip
        file = self.open()
        at = hint
        is_sure = False
        if not at:
            at = self.row(rel)[0]
        need = min(READ_BYTES, max(SMALL_READ_BYTES, max_bytes))
        if count < 64:
            need = min(need, SMALL_READ_BYTES * count)
        taken = 0
        had = len(out)
        while taken < count:
            if at < PAGE_HEADER_BYTES or at + FRAME_BYTES > limit:
                fault = f"no frame can begin here, the page has {limit} bytes"
                done, wants = 0, 0
            else:
                data = file.pread(min(need, limit - at), at)
                done, wants, fault = decode_frames(
                    data, 0, self.seed, self.base, rel + taken, count - taken, max_bytes, out
                )  # fmt: skip
                if wants and at + done + wants > limit:
                    fault = f"a frame of {wants} bytes reaches beyond byte {limit}"
                elif wants and len(data) < min(need, limit - at):
                    fault = f"the file ends at byte {at + len(data)}, expected {limit}"
            got = len(out) - had - taken
            if fault and not got and not taken:
                if is_sure:
                    raise self.bad(at, rel, fault)
                at = self.search(rel, limit)
                is_sure = True
                continue
            max_bytes -= done - FRAME_BYTES * got
            taken += got
            at += done
            if fault or max_bytes <= 0 or not wants:
                break
            if wants > whole_max or (wants > max_bytes + FRAME_BYTES and out):
                break
            need = max(wants, min(READ_BYTES, max(SMALL_READ_BYTES, max_bytes)))
        self.rest_bytes = max_bytes
        return at

    def open_large(self, rel: int, start: int, limit: int) -> "tuple[PageRecord, StoredBody]":
        """Return record `rel` without its payload, and the payload, to be read in pieces, which
        proves it. start: where it begins; 0: where the index says, or a scan finds it.
        CorruptionError, OSError."""
        # Imported here: a reader may be an executor of Spark without librt.
        from penstock.storage.store.store_file import StoredBody

        file = self.open()
        if not start:
            start, wanted_bytes, wanted_us = self.row(rel)
            payload_bytes, _, time_us = frame_facts(file.pread(FRAME_BYTES, start))
            if (payload_bytes, time_us) != (wanted_bytes, wanted_us) or start < PAGE_HEADER_BYTES:
                start = self.search(rel, limit)
        at = start + FRAME_BYTES
        front = b""
        payload_bytes, meta_bytes, time_us = -1, 0, 0
        for _ in range(2):  # it may be read wrongly once
            front = file.pread(FRAME_BYTES, start)
            payload_bytes, meta_bytes, time_us = frame_facts(front)
            if payload_bytes >= 0 and at + payload_bytes + meta_bytes <= limit:
                break
        else:
            raise self.bad(start, rel, f"the frame reaches beyond byte {limit}")
        meta = file.pread(meta_bytes, at + payload_bytes)
        if self.is_adopted:
            time_us = self.base_time_us
        body = StoredBody(
            self._fs.open(self.path), self.base + rel, at, payload_bytes,
            crc=crc32(front[4:], self.seed ^ (rel & 0xFFFFFFFF)), suffix=meta,
            expected=int.from_bytes(front[:4], "little"),
        )  # fmt: skip
        return PageRecord(self.base + rel, time_us, b"", meta), body

    def bad(self, position: int, rel: int, fault: str) -> CorruptionError:
        """Return the error for a frame that does not verify."""
        return CorruptionError(
            self.path, position, f"the record of offset {self.base + rel}: {fault}"
        )

    def search(self, rel: int, limit: int) -> int:
        """Find where record `rel` begins, by scanning. CorruptionError if a frame before it is bad,
        unless a row leads to a good frame after that."""
        file = self.open()
        start, found = self._sure_row(rel, limit)
        while found < rel:
            data = file.pread(min(READ_BYTES, limit - start), start)
            scan = scan_frames(data, start, self.seed, found, 0, limit)
            if scan.need and not scan.rows:
                data = file.pread(scan.need, start)
                scan = scan_frames(data, start, self.seed, found, 0, limit)
            if found + len(scan.rows) > rel:
                return decode_row(scan.rows[rel - found], 0)[0]
            found += len(scan.rows)
            start = scan.end
            if found < rel and (scan.fault or not scan.rows):
                raise self.bad(start, found, scan.fault or f"the file ends here, expected {limit}")
        return start

    def _sure_row(self, rel: int, limit: int) -> tuple[int, int]:
        """Return (position, record number) of a record at or before `rel` that the index leads to
        and that verifies; the first record of the page if there is none."""
        step = 1
        at = rel
        while at > 0:
            if self.frame_at(self.row(at)[0], at, limit) is not None:
                return self.row(at)[0], at
            at = rel - step
            step *= 4
        return PAGE_HEADER_BYTES, 0

    def frame_at(self, start: int, rel: int, limit: int) -> PageRecord | None:
        """Return record `rel` if it begins at byte `start` and verifies, otherwise None."""
        if start < PAGE_HEADER_BYTES or start + FRAME_BYTES > limit:
            return None
        file = self.open()
        data = file.pread(min(SMALL_READ_BYTES, limit - start), start)
        out: list[PageRecord] = []
        _, wants, _ = decode_frames(data, 0, self.seed, self.base, rel, 1, 0, out)
        if wants and start + wants <= limit:
            decode_frames(
                file.pread(wants, start), 0, self.seed, self.base, rel, 1, 0, out
            )  # fmt: skip
        if self.is_adopted and out:
            out[0].time_us = self.base_time_us
        return out[0] if out else None

    # ---- times ---------------------------------------------------------------------------------

    def time(self, rel: int, limit: int) -> int:
        """Return the proved time of record `rel`. CorruptionError, OSError."""
        start = self.row(rel)[0]
        record = self.frame_at(start, rel, limit)
        if record is None:
            start = self.search(rel, limit)
            record = self.frame_at(start, rel, limit)
            if record is None:
                raise self.bad(start, rel, "the frame does not verify")
        return record.time_us

    def find(self, time_us: int, count: int, limit: int) -> int:
        """Return the first of `count` records whose time is at least `time_us`; `count` if there is
        none."""
        low, high = 0, count
        while low < high:
            middle = (low + high) // 2
            if self.row(middle)[2] < time_us:
                low = middle + 1
            else:
                high = middle
        if (not low or self.time(low - 1, limit) < time_us) and (
            low == count or self.time(low, limit) >= time_us
        ):
            return low
        low, high = 0, count  # the rows are wrong: by the frames
        while low < high:
            middle = (low + high) // 2
            if self.time(middle, limit) < time_us:
                low = middle + 1
            else:
                high = middle
        return low

    def close(self) -> None:
        """Close the files; they are opened again when needed."""
        for file in (self._page, self._index):
            if file is not None:
                file.close()
        self._page = self._index = None


READERS_KEPT: Final = 8


class PageInfo:
    """Facts about a complete page. Times in microseconds since 1970."""

    __slots__ = ("base", "bytes", "first_time_us", "is_known", "last_time_us")

    def __init__(self, base: int) -> None:
        self.base: int = base
        self.is_known: bool = False
        self.bytes: int = 0
        self.first_time_us: int = 0
        self.last_time_us: int = 0

    def learn(self, size: int, first_time_us: int, last_time_us: int) -> None:
        """Set all facts."""
        self.bytes = size
        self.first_time_us = first_time_us
        self.last_time_us = last_time_us
        self.is_known = True


class PageTable:
    """The pages of a stream by base. first_base: the first page that readMeta keeps."""

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
        """Set the pages, ascending, and forget all facts."""
        self.close()
        self.bases = bases
        self._infos = {}
        self._times = {}
        self._sum = -1

    def keep_bases(self, bases: list[int]) -> None:
        """Set the pages, ascending, and keep the facts of those that stay."""
        kept = set(bases)
        for base in self.bases:
            if base not in kept:
                self.forget(base)
                self._infos.pop(base, None)
                self._times.pop(base, None)
        self.bases = bases
        self._sum = -1

    def add(self, base: int) -> None:
        """Add the next page."""
        self.bases.append(base)
        self._infos[base] = PageInfo(base)
        self.forget(base)

    def complete(self, writer: "PageWriter") -> None:
        """Note the facts of the last page, which is full."""
        info = self._infos.get(writer.base)
        if info is None:
            info = self._infos[writer.base] = PageInfo(writer.base)
        info.learn(writer.position, writer.first_time_us, writer.last_time_us)
        self._times[writer.base] = writer.first_time_us
        if self._sum >= 0:
            self._sum += writer.position

    def base_of(self, offset: int) -> int:
        """Return the base of the page that has `offset`, which is not below the first."""
        return self.bases[bisect_right(self.bases, offset) - 1]

    def end_of(self, base: int, end: int) -> int:
        """Return the offset after a page, at most `end`."""
        i = bisect_right(self.bases, base)
        return min(self.bases[i], end) if i < len(self.bases) else end

    def take_first(self, count: int) -> list[int]:
        """Remove the first `count` pages; return their bases."""
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
        """Return the bytes of all pages but the last."""
        if self._sum < 0:
            self._sum = sum([self.info(base).bytes for base in self.bases[:-1]])
        return self._sum

    def info(self, base: int) -> PageInfo:
        """Return the facts of a page that is not the last. For a missing or damaged page they come
        from what is left of it and from its neighbours. OSError."""
        info = self._infos.get(base)
        if info is None:
            info = self._infos[base] = PageInfo(base)
        if not info.is_known:
            self._load(info)
        return info

    def first_time(self, base: int) -> int:
        """Return the time of a page's first record, from the page. CorruptionError, OSError."""
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
        """Return the last of the first `count` pages that begins strictly before `time_us`, -1 if
        none does."""
        low, high = 0, count
        while low < high:
            middle = (low + high) // 2
            if self.first_time(self.bases[middle]) < time_us:
                low = middle + 1
            else:
                high = middle
        return self.bases[low - 1] if low else -1

    def sealed_header(self, base: int, count: int, size: int) -> IndexHeader | None:
        """Return the header of a page's index if it is sealed and matches this count and size.
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
        reader.open()  # reads the id of a staged page
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
        """Write missing indexes of all pages but the last, except of damaged pages. OSError."""
        for base in self.bases[:-1]:
            self.info(base)

    def heal(self, base: int, count: int, size: int) -> bool:
        """Write the index of a complete page again; return False if the page is damaged.
        OSError."""
        # Imported here: a reader may be an executor of Spark without librt.
        from penstock.storage.pages.page_writer import PageWriter

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
        """Return a reader of the page; at most a few pages are kept open."""
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
        """Close the reader of a page whose files were changed or deleted."""
        reader = self._readers.pop(base, None)
        if reader is not None:
            reader.close()

    def close(self) -> None:
        """Close all files; they are opened again when needed."""
        for reader in self._readers.values():
            reader.close()
        self._readers = {}


def list_bases(fs: FileSystem, directory: str) -> list[int]:
    """Return the bases of the page files in a directory, ascending. OSError."""
    found: list[int] = []
    for name in fs.list(directory):
        stem, _, ending = name.rpartition(".")
        if ending == "page" and len(stem) == 20 and stem.isdecimal():
            found.append(int(stem))
    found.sort()
    return found


PLACES_KEPT: Final = 256


class PagedReading:
    """Reads across the pages of a table. last_base, last_bytes: the page whose content ends before
    its file does, and where. If the table has a writer, its position is used instead."""

    def __init__(self, pages: PageTable) -> None:
        self._pages: PageTable = pages
        self._places: dict[int, int] = {}  # offset -> byte in its page, where a read stopped
        self.last_base: int = -1
        self.last_bytes: int = 0

    def read(
        self, offset: int, end: int, max_records: int, max_bytes: int, whole_max: int = UNLIMITED
    ) -> list[PageRecord]:  # fmt: skip
        """Return records of [offset, end), which the pages must have; see
        `PersistentQueue.read`."""
        out: list[PageRecord] = []
        pages = self._pages
        while offset < end and max_records > 0 and (max_bytes > 0 or not out):
            had = len(out)
            base = pages.base_of(offset)
            count = min(pages.end_of(base, end) - offset, max_records)
            try:
                place = self._read_page(base, offset, count, max_bytes, out, whole_max)
            except CorruptionError:
                if out:
                    break  # return the good ones; the next call raises
                raise
            got = len(out) - had
            offset += got
            max_records -= got
            max_bytes = pages.reader(base).rest_bytes
            places = self._places
            if len(places) >= PLACES_KEPT:
                places.clear()
            places[offset] = place  # not used if the next page begins with this offset
            if got < count:
                break
        return out

    def _read_page(
        self, base: int, offset: int, count: int, max_bytes: int, out: list[PageRecord],
        whole_max: int,
    ) -> int:  # fmt: skip
        reader = self._pages.reader(base)
        hint = PAGE_HEADER_BYTES if offset == base else self._places.get(offset, 0)
        return reader.read(
            offset - base, count, self.limit(reader), hint, max_bytes, out, whole_max
        )

    def open_large(self, offset: int) -> "tuple[PageRecord, StoredBody]":
        """Return what `PageReader.open_large` does; the pages must have the record."""
        base = self._pages.base_of(offset)
        reader = self._pages.reader(base)
        start = PAGE_HEADER_BYTES if offset == base else self._places.get(offset, 0)
        record, body = reader.open_large(offset - base, start, self.limit(reader))
        self._places[offset + 1] = body.start + body.size + len(record.meta)
        return record, body

    def limit(self, reader: PageReader) -> int:
        """Return where the content of a page ends. CorruptionError if the page is missing,
        OSError."""
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

    def head_at(self, offset: int) -> StreamHead:
        """Return the head directly before the record `offset`, which must exist."""
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
            return StreamHead(offset, base, start, 0)
        return StreamHead(offset, base, start, self._time(offset - 1))

    def _time(self, offset: int) -> int:
        """Return the time of a record, from an exact row or a frame."""
        base = self._pages.base_of(offset)
        writer = self._pages.writer
        if writer is not None and base == writer.base and offset - base >= writer.exact_from:
            return writer.row(offset - base)[2]
        reader = self._pages.reader(base)
        return reader.time(offset - base, self.limit(reader))

    def find(self, time_us: int, pages: int, end: int) -> int:
        """Return the first offset of the first `pages` pages whose time is at least `time_us`,
        below `end`; `end` if there is none."""
        table = self._pages
        if not pages:
            return end
        base = table.page_before(time_us, pages)
        if base < 0:
            return min(table.bases[0], end)
        reader = table.reader(base)
        count = table.end_of(base, end) - base
        return base + reader.find(time_us, count, self.limit(reader))
