"""Reading one page: records from a place on, the place of a record, the record of a time.

Nothing is believed that does not verify. A row of the index is a hint, which saves a scan: the
frame that it leads to carries a checksum that is good at its own place only, so what a wrong row
leads to is told from the record that was asked for. Where the hints fail the page is scanned from
the nearest place that is sure. Times are proved the same way: record i is the first one of a time
if its frame and the frame before say so.

The page may grow while it is read, and its index may be short: `limit` and `count` say how much of
it there is for who asks. It may also be deleted, which is FileNotFoundError before it was opened
and nothing at all after.

Reads are of at most a MiB at a time, but for a record that is larger. A bad frame is a
CorruptionError with the page's path and the byte where the frame begins.
"""

from typing import TYPE_CHECKING, Final

from penstock.errors import CorruptionError
from penstock.storage.filesystem import File, FileSystem
from penstock.storage.page import (
    BLOCK_BYTES,
    FRAME_BYTES,
    PAGE_HEADER_BYTES,
    StreamRecord,
    check_header,
    decode_frames,
    page_id,
    page_name,
    page_seed,
    scan_frames,
)
from penstock.storage.page import INDEX_HEADER_BYTES, INDEX_ROW_BYTES, decode_row

if TYPE_CHECKING:
    from penstock.storage.page_writer import PageWriter

SMALL_READ_BYTES: Final = 4096
READ_BYTES: Final = BLOCK_BYTES


class PageReader:
    """One page, opened when it is first read. header checks: FileNotFoundError if it is gone,
    CorruptionError if it is not the page that its name says."""

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
        self._is_told: bool = False  # what page it is
        self._page: File | None = None
        self._index: File | None = None
        self.writer: PageWriter | None = None  # who writes this page, and has its last rows

    @classmethod
    def staged(cls, fs: FileSystem, path: str, id: int) -> "PageReader":
        """A reader of the staged page at `path`, which has this id; records count from 0. Its
        header is not asked: a crash may have left the one of an adoption that is forgotten."""
        found = cls(fs, "", b"", 0)
        found.path = path
        found.index_path = path.removesuffix(".page") + ".idx"
        found.id = id
        found.seed = page_seed(id)
        found._is_told = True
        return found

    def open(self) -> File:
        """The page's file, its header checked."""
        file = self._page
        if file is None:
            file = self._fs.open(self.path)
            if self._is_told:
                self._page = file
                return file
            try:
                header = check_header(
                    self.path, file.pread(PAGE_HEADER_BYTES, 0), self.id, self.base
                )
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

    def size(self) -> int:
        """Length of the page file in bytes."""
        return self.open().size()

    def row(self, rel: int) -> tuple[int, int, int]:
        """(frame start, payload bytes, time) as the index says, unproved; zeros if it does not."""
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
        """The index is to be opened anew: it was made again."""
        if self._index is not None:
            self._index.close()
        self._index = None

    # ---- records -------------------------------------------------------------------------------

    def read(
        self, rel: int, count: int, limit: int, hint: int, max_bytes: int, out: list[StreamRecord]
    ) -> int:
        """Append up to `count` records from record `rel` on to `out`; the byte behind the last.

        limit: where the page's content ends. hint: where record `rel` begins, if known, else 0.
        What is behind a bad frame is not looked for: good records before it are given first, and
        the next call raises.
        """
        had = len(out)
        try:
            return self._read(rel, count, limit, hint, max_bytes, out)
        finally:
            if self.is_adopted:
                for record in out[had:]:
                    record.time_us = self.base_time_us

    def _read(
        self, rel: int, count: int, limit: int, hint: int, max_bytes: int, out: list[StreamRecord]
    ) -> int:
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
            if wants > max_bytes + FRAME_BYTES and out:
                break
            need = max(wants, min(READ_BYTES, max(SMALL_READ_BYTES, max_bytes)))
        self.rest_bytes = max_bytes
        return at

    def bad(self, position: int, rel: int, fault: str) -> CorruptionError:
        """The error of a frame that does not verify."""
        return CorruptionError(
            self.path, position, f"the record of offset {self.base + rel}: {fault}"
        )

    def search(self, rel: int, limit: int) -> int:
        """Where record `rel` begins, by scanning. CorruptionError where a frame before it is bad:
        unless a row leads to a good one behind."""
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
        """(where it begins, a record at or before `rel`) that the index leads to and that
        verifies; the first record of the page if there is none."""
        step = 1
        at = rel
        while at > 0:
            if self.frame_at(self.row(at)[0], at, limit) is not None:
                return self.row(at)[0], at
            at = rel - step
            step *= 4
        return PAGE_HEADER_BYTES, 0

    def frame_at(self, start: int, rel: int, limit: int) -> StreamRecord | None:
        """Record `rel`, if it begins at byte `start` and verifies."""
        if start < PAGE_HEADER_BYTES or start + FRAME_BYTES > limit:
            return None
        file = self.open()
        data = file.pread(min(SMALL_READ_BYTES, limit - start), start)
        out: list[StreamRecord] = []
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
        """The time of record `rel`, proved. CorruptionError, OSError."""
        start = self.row(rel)[0]
        record = self.frame_at(start, rel, limit)
        if record is None:
            start = self.search(rel, limit)
            record = self.frame_at(start, rel, limit)
            if record is None:
                raise self.bad(start, rel, "the frame does not verify")
        return record.time_us

    def find(self, time_us: int, count: int, limit: int) -> int:
        """The first of `count` records whose time is at least `time_us`; `count` if none is."""
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
        """Close the handles; they are opened again when they are needed."""
        for file in (self._page, self._index):
            if file is not None:
                file.close()
        self._page = self._index = None
