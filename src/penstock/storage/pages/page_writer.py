"""PageWriter: the page of a stream that is being written: frames, index rows and checksums.

A record costs no file operation: `append` adds its frame and its row to two buffers. `write` writes
all frames in RAM to the page file with one pwrite, and adds them to the CRC of their MiB block, so
that sealing a full page is one small write however large the page is. The payload of a large record
is not copied to a buffer; it is written in pieces, by several calls if each is to write only some
of them. Rows go to the index file in groups of a few hundred, because durability does not need
them; until then they are in RAM.

    append -> pending -> write -> page file        (synced by the caller)
           -> rows    -> flush_rows -> index file
    full   -> seal: the last rows, the block CRCs, and the header that says so

A page that an earlier process began is *resumed*: the position is known, rows and CRCs are not.
They are made from the page itself, a part with each `write`, or all at once where they are needed
(`catch_up`); every frame is verified on the way. If one does not verify, the page gets no sealed
index and `damage` says where. Readers then find what is readable by the rows that there are.

Failure: after an OSError of a write everything is as before, and the write can be repeated: a frame
always goes to the same place.
"""

from collections import deque
from typing import Final

from librt.strings import BytesWriter, write_i32_le, write_i64_le

from penstock.errors import CorruptionError
from penstock.fast_crc import BodyPieces, crc32, joined, pieces_of
from penstock.storage.files.filesystem import File, FileSystem
from penstock.storage.log.record import LARGE_BYTES
from penstock.storage.pages.page import (
    BLOCK_BYTES,
    FRAME_BYTES,
    INDEX_HEADER_BYTES,
    INDEX_ROW_BYTES,
    PAGE_HEADER_BYTES,
    UNLIMITED,
    IndexHeader,
    Scan,
    active_header,
    check_header,
    decode_row,
    encode_header,
    frame_facts,
    pack_row,
    page_id,
    page_name,
    page_seed,
    scan_frames,
)

ROWS_KEPT: Final = 256  # rows in RAM from which on they are written
STEP_BYTES: Final = 128 << 10  # of a resumed page that each `write` looks at


class _LargeFrame:
    """A frame of before this start that is looked at in steps. crc: of what was read, from `start`
    on. before: where that begins, and the CRC and the number of its block, to look at it again."""

    __slots__ = ("before", "crc", "end", "expected", "flags", "row", "start", "time_us")

    def __init__(
        self, start: int, size: int, front: bytes, seed: int, before: tuple[int, int, int]
    ) -> None:
        self.before: tuple[int, int, int] = before
        self.start: int = start
        self.end: int = start + size
        payload_bytes, _, self.time_us = frame_facts(front)
        self.expected: int = int.from_bytes(front[:4], "little")
        self.flags: int = int.from_bytes(front[12:16], "little")
        self.crc: int = crc32(front[4:], seed)
        self.row: bytes = pack_row(start, payload_bytes, self.time_us)


class PageWriter:
    """The page that begins with offset `base`.

    count, position: records and bytes, including those in RAM. written, written_count: bytes and
    records in the file. first_time_us, last_time_us: of its records (microseconds since 1970); 0
    without records. damage: where a frame from before this start does not verify. is_adopted: the
    page was staged (page.py) and is complete; nothing is written here. is_placed: its files exist;
    those of an adopted page are placed by adoption.py.
    """

    def __init__(
        self, fs: FileSystem, directory: str, stream_id: bytes, number: int, base: int
    ) -> None:
        self._fs: FileSystem = fs
        self.stem: str = f"{directory}/{page_name(base)}"
        self.number: int = number
        self.base: int = base
        self.id: int = page_id(stream_id, base)
        self.seed: int = page_seed(self.id)
        self.count: int = 0
        self.position: int = PAGE_HEADER_BYTES
        self.written: int = 0
        self.written_count: int = 0
        self.first_time_us: int = 0
        self.last_time_us: int = 0
        self.damage: CorruptionError | None = None
        self.is_sealed: bool = False
        self.is_page_due: bool = True  # the page file needs a sync
        self.is_index_due: bool = False  # so does the index
        self.is_reported: bool = False  # the owner has reported the damage
        self.is_new: bool = True  # its files may not exist yet, and their names need a sync
        self.is_adopted: bool = False
        self.is_placed: bool = True
        self._pending: BytesWriter = BytesWriter()  # frames, after these pieces of others
        self._pieces: deque[tuple[bytes, int]] = deque()  # and the records complete with each
        self._piece_at: int = 0  # bytes of the first piece that are written
        self._rows: BytesWriter = BytesWriter()  # of the last records
        self._head: BytesWriter = BytesWriter()  # of the frame that is being made, behind its crc
        self._flushed: int = 0  # rows in the index file, or to come there by catching up
        self._rows_crc: int = 0
        self._block: int = self.seed  # running CRC of the block in progress
        self._blocks: list[int] = []
        self._summed: int = 0  # bytes of the file in those CRCs
        self._resumed_at: int = 0  # bytes whose rows are to be made from the page
        self._resumed_count: int = 0
        self._scanned: int = 0  # rows of them that are made
        self._scan_time: int = 0
        self._frame: _LargeFrame | None = None  # that is being looked at
        self._doubted: int = -1  # from where on something is read again that did not verify
        self._has_index_header: bool = False
        self._page: File | None = None
        self._index: File | None = None

    # ---- records -------------------------------------------------------------------------------

    def append(
        self, time_us: int, payload: bytes, meta: bytes, large: BodyPieces | None = None
    ) -> None:
        """Append the next record. The caller has checked that it fits. large: its payload, if that
        is in pieces; else they are none."""
        if large is None and len(payload) >= LARGE_BYTES:
            large = pieces_of(payload)
        payload_bytes = len(payload) if large is None else large.size
        head = self._head
        head.truncate(0)
        write_i32_le(head, payload_bytes)
        write_i32_le(head, len(meta))
        write_i32_le(head, 0)
        write_i64_le(head, time_us)
        count = self.count
        pending = self._pending
        if not count:
            self.first_time_us = time_us
            pending.write(encode_header(self.number, self.id, self.base, time_us))
        seed = self.seed ^ (count & 0xFFFFFFFF)
        if large is None:
            checked = b"%b%b%b" % (head.getvalue(), payload, meta)
            crc = crc32(checked, seed)
            write_i32_le(pending, crc if crc < 0x80000000 else crc - 0x100000000)
            pending.write(checked)
        else:
            front = head.getvalue()
            crc = crc32(meta, joined(crc32(front, seed), large.crc, large.size))
            write_i32_le(pending, crc if crc < 0x80000000 else crc - 0x100000000)
            pending.write(front)
            self._pieces.append((pending.getvalue(), count))
            for piece in large.pieces:
                self._pieces.append((piece, count))
            if not meta:
                self._pieces[-1] = (large.pieces[-1], count + 1)
            self._pending = BytesWriter()
            self._pending.write(meta)
        rows, position = self._rows, self.position
        write_i32_le(rows, position)
        write_i32_le(rows, payload_bytes)
        write_i64_le(rows, time_us)
        self.position = position + FRAME_BYTES + payload_bytes + len(meta)
        self.count = count + 1
        self.last_time_us = time_us

    def row(self, rel: int) -> tuple[int, int, int]:
        """Return (frame start, payload bytes, time) of record `rel`: exact while its row is in RAM,
        otherwise from the index file, (0, 0, 0) if that has no such row. OSError."""
        at = rel - self._flushed
        if at >= 0:
            start = at * INDEX_ROW_BYTES
            found = [self._rows[i] for i in range(start, start + INDEX_ROW_BYTES)]
            return decode_row(bytes(found), 0)
        data = self._open_index().pread(INDEX_ROW_BYTES, INDEX_HEADER_BYTES + rel * INDEX_ROW_BYTES)
        if len(data) < INDEX_ROW_BYTES:
            return 0, 0, 0
        return decode_row(data, 0)

    @property
    def exact_from(self) -> int:
        """The first record whose row is in RAM."""
        return self._flushed

    # ---- writing -------------------------------------------------------------------------------

    def write(self, most: int = UNLIMITED) -> None:
        """Write frames in RAM to the page file and, if there are many, rows to the index. most: of
        what large records leave, about so many bytes. OSError."""
        if self._pieces:
            self._write_pieces(most)
        elif len(self._pending):
            self._write(self._pending.getvalue())
            self._pending = BytesWriter()
            self.written_count = self.count
        if self._summed < self.written:
            self._catch_up_step()
        elif len(self._rows) >= ROWS_KEPT * INDEX_ROW_BYTES and not self._pieces:
            self.flush_rows()

    def _write(self, data: bytes) -> None:
        """Write the next bytes of the page. OSError."""
        self.open_page().pwrite(data, self.written)
        if self._summed == self.written:
            self._sum(data)
        self.is_page_due = True
        self.written += len(data)

    def _write_pieces(self, most: int) -> None:
        """Write pieces of frames, `most` bytes or a few more. OSError."""
        if len(self._pending):
            self._pieces.append((self._pending.getvalue(), self.count))
            self._pending = BytesWriter()
        pieces = self._pieces
        end = self.written + most
        while pieces and self.written < end:
            piece, whole = pieces[0]
            at = self._piece_at
            room = BLOCK_BYTES - (self.written & (BLOCK_BYTES - 1))
            data = piece if not at and len(piece) <= room else piece[at : at + room]
            self._write(data)
            self._piece_at = at + len(data)
            if self._piece_at == len(piece):
                self._piece_at = 0
                pieces.popleft()
                self.written_count = whole

    def _sum(self, data: bytes) -> None:
        """Add the next bytes of the page to the CRCs of their blocks."""
        summed = self._summed
        at = 0
        size = len(data)
        while at < size:
            room = BLOCK_BYTES - (summed & (BLOCK_BYTES - 1))
            piece = data if not at and size <= room else data[at : at + room]
            self._block = crc32(piece, self._block)
            at += len(piece)
            summed += len(piece)
            if not summed & (BLOCK_BYTES - 1):
                self._blocks.append(self._block)
                self._block = self.seed ^ len(self._blocks)
        self._summed = summed

    def flush_rows(self) -> None:
        """Write all rows of written records to the index file. OSError."""
        if self._summed < self.written and self.damage is None:
            return  # rows before them are not summed yet
        index = self._open_index()
        if not self._has_index_header:
            index.pwrite(active_header(self.id, self.base), 0)
            self._has_index_header = True
        data = self._rows.getvalue()
        if not data:
            return
        index.pwrite(data, INDEX_HEADER_BYTES + self._flushed * INDEX_ROW_BYTES)
        self._rows_crc = crc32(data, self._rows_crc)
        self._flushed += len(data) // INDEX_ROW_BYTES
        self._rows = BytesWriter()

    def begin_index(self) -> None:
        """Write an index header that says that the page is not sealed. OSError."""
        if self.is_adopted:
            return
        self._open_index().pwrite(active_header(self.id, self.base), 0)
        self._has_index_header = True
        self.is_index_due = True

    def seal(self) -> None:
        """Complete the index of the full page. Everything must be written. OSError."""
        if self.is_adopted:
            return
        self.catch_up()
        self.flush_rows()
        if self.damage is not None:
            self.is_sealed = True  # as far as possible
            return
        crcs = list(self._blocks)
        if self._summed & (BLOCK_BYTES - 1):
            crcs.append(self._block)
        data = b"".join([crc.to_bytes(4, "little") for crc in crcs])
        header = IndexHeader(
            self.id, self.base, True, self.count, self.written, crc32(data, self._rows_crc),
            self.first_time_us, self.last_time_us,
        )  # fmt: skip
        index = self._open_index()
        index.pwrite(data, INDEX_HEADER_BYTES + self.count * INDEX_ROW_BYTES)
        if index.size() > header.file_bytes():
            index.truncate(header.file_bytes())
        index.pwrite(header.encode(), 0)
        self.is_sealed = self.is_index_due = True

    def sync(self) -> None:
        """Sync the page's frames, and the index of a sealed page. OSError [10]."""
        if self.is_page_due:
            self.open_page().sync()
            self.is_page_due = False
        if self.is_index_due:
            self._open_index().sync()
            self.is_index_due = False

    # ---- resuming ------------------------------------------------------------------------------

    def resume(self, position: int, count: int, last_time_us: int) -> None:
        """Continue a page that has `count` records up to byte `position`. CorruptionError,
        OSError."""
        path = self.stem + ".page"
        try:
            self._page = self._fs.open(path)
        except FileNotFoundError:
            raise CorruptionError(path, 0, "the page is missing") from None
        try:
            head = self._page.pread(PAGE_HEADER_BYTES, 0)
            header = check_header(path, head, self.id, self.base, self.number)
        except CorruptionError:  # it may have been read wrongly once
            head = self._page.pread(PAGE_HEADER_BYTES, 0)
            header = check_header(path, head, self.id, self.base, self.number)
        if header.is_staged:  # whole, or lost and reported when it was adopted
            self.adopt(header.id, position, count, header.base_time_us)
            return
        size = self._page.size()
        if size < position:
            text = f"the page ends here, expected {position} bytes and {count} records"
            raise CorruptionError(path, size, text)
        self.first_time_us = self._scan_time = header.base_time_us
        self.last_time_us = last_time_us if count else header.base_time_us
        self.position = self.written = position
        self._resumed_at = position if count else 0
        self.count = self.written_count = count
        self._flushed = self._resumed_count = count
        self.is_new = False

    def extend(self, limit: int) -> str:
        """Take the frames that follow, up to byte `limit` of the file. Return what is wrong with
        the bytes after the last good one, "" if there are none. OSError."""
        assert self.written == self.position, "only a page that was just resumed"
        fault = ""
        need = 0
        doubted = -1  # where a frame was bad that may have been read wrongly once
        while not fault and self.written < limit:
            want = min(max(need, BLOCK_BYTES), limit - self.written)
            data = self.open_page().pread(want, self.written)
            if len(data) < want:
                limit = self.written + len(data)
            scan = scan_frames(
                data, self.written, self.seed, self.count, self.last_time_us, limit
            )  # fmt: skip
            self._rows.write(b"".join(scan.rows))
            self.count += len(scan.rows)
            self.written_count = self.count
            self.last_time_us = scan.last_time_us
            self.position = self.written = scan.end
            need = scan.need
            if scan.fault and scan.end == doubted:
                fault = scan.fault
            elif scan.fault:
                doubted = scan.end
        return fault

    def catch_up(self) -> None:
        """Make the rows and CRCs of what an earlier process wrote. OSError; damage is kept, not
        raised."""
        while self._summed < self.written and self.damage is None:
            self._catch_up_step()

    def _catch_up_step(self) -> None:
        """Make a part of them, or look at a part of a larger frame."""
        if self.damage is not None:
            if len(self._rows) >= ROWS_KEPT * INDEX_ROW_BYTES:
                self.flush_rows()
            return
        if self._frame is not None:
            self._sum_frame(self._frame)
            return
        at = self._summed
        page = self.open_page()
        if at >= self._resumed_at:  # written since: its rows are in RAM
            self._sum(page.pread(min(STEP_BYTES, self.written - at), at))
            return
        skip = 0 if at else PAGE_HEADER_BYTES
        want = min(STEP_BYTES, self._resumed_at - at)
        data = page.pread(want, at)
        scan = self._scan(data, at, skip)
        if not scan.fault and not scan.rows:
            front = page.pread(skip + FRAME_BYTES, at) if scan.need > STEP_BYTES else b""
            if len(front) == skip + FRAME_BYTES:
                self._begin_frame(front, at, skip, scan.need)
                return
            data = page.pread(skip + scan.need, at)
            scan = self._scan(data, at, skip)
        rel = self._scanned
        if scan.fault or not scan.rows:
            text = scan.fault or "the page ends here"
            if self._doubt(at, scan.end, rel + len(scan.rows), text):
                self._catch_up_step()
            return
        self._add_scanned(scan.rows, scan.last_time_us)
        self._sum(data[: scan.end - at])
        self._check_count()

    def _add_scanned(self, found: list[bytes], last_time_us: int) -> None:
        """Write rows of records that verify to the index."""
        rel = self._scanned
        rows = b"".join(found)
        index = self._open_index()
        if not rel:
            index.pwrite(active_header(self.id, self.base), 0)
            self._has_index_header = True
        index.pwrite(rows, INDEX_HEADER_BYTES + rel * INDEX_ROW_BYTES)
        self._rows_crc = crc32(rows, self._rows_crc)
        self._scanned = rel + len(found)
        self._scan_time = last_time_us

    def _check_count(self) -> None:
        if self._summed == self._resumed_at and self._scanned != self._resumed_count:
            text = f"{self._scanned} records before it, expected {self._resumed_count}"
            self._damaged(self._summed, self._scanned, text)

    def _begin_frame(self, front: bytes, at: int, skip: int, need: int) -> None:
        """Begin to look at a frame of `need` bytes. front: its front, after the page's header if it
        is the first."""
        seed = self.seed ^ (self._scanned & 0xFFFFFFFF)
        before = at, self._block, len(self._blocks)
        self._frame = _LargeFrame(at + skip, need, front[skip:], seed, before)
        self._sum(front)

    def _sum_frame(self, frame: _LargeFrame) -> None:
        """Look at some more of a large frame."""
        at = self._summed
        want = min(STEP_BYTES, frame.end - at)
        data = self.open_page().pread(want, at)
        crc = crc32(data, frame.crc)
        is_whole = at + want == frame.end
        if len(data) < want or (is_whole and (crc != frame.expected or frame.flags)):
            self._frame = None
            self._summed, self._block, blocks = frame.before
            del self._blocks[blocks:]
            self._doubt(self._summed, frame.start, self._scanned, "the frame does not verify")
            return
        if is_whole:
            self._add_scanned([frame.row], frame.time_us)
            self._frame = None
        frame.crc = crc
        self._sum(data)
        self._check_count()

    def _scan(self, data: bytes, at: int, skip: int) -> Scan:
        return scan_frames(
            data[skip:], at + skip, self.seed, self._scanned, self._scan_time, self._resumed_at
        )

    def _doubt(self, at: int, position: int, rel: int, text: str) -> bool:
        """Have the next step read from `at` on again: it may have been read wrongly once. If that
        was done, the record is damaged. Returns whether it is to be read again."""
        is_again = self._doubted == at
        if is_again:
            self._damaged(position, rel, text)
        self._doubted = at
        return not is_again

    def _damaged(self, position: int, rel: int, text: str) -> None:
        self.damage = CorruptionError(
            self.stem + ".page", position, f"the record of offset {self.base + rel}: {text}"
        )

    def has_rows_due(self) -> bool:
        """Return whether `write` has something to do although no frame is pending."""
        if self.is_adopted:
            return False
        return len(self._rows) >= ROWS_KEPT * INDEX_ROW_BYTES or not self.is_caught_up()

    def is_caught_up(self) -> bool:
        """Return whether sealing the page is quick."""
        return (
            self.is_placed
            and not self._pieces
            and (self._summed >= self.written or self.damage is not None)
        )

    def find_last_time(self) -> None:
        """Find the time of the last record of a complete page that was resumed with its count only,
        by verifying all records. OSError."""
        self.catch_up()
        self.last_time_us = self._scan_time

    def pass_over(self, position: int, count: int, last_time_us: int) -> None:
        """Stand for a deleted page, of which only the end is known."""
        self.position = self.written = self._summed = position
        self.count = self.written_count = self._flushed = count
        self.last_time_us = last_time_us

    def adopt(self, id: int, position: int, count: int, time_us: int) -> None:
        """Become a staged page with so many bytes and records, all of that time."""
        self.id = id
        self.seed = self._block = page_seed(id)
        self.first_time_us = self.last_time_us = time_us
        self.pass_over(position, count, time_us)
        self.is_adopted = self.is_sealed = self._has_index_header = True
        self.is_page_due = self.is_new = False

    def await_files(self) -> None:
        """Count nothing of an adopted page as written until `placed`."""
        self.is_placed = False
        self.written_count = 0

    def placed(self) -> None:
        """Note that the files of an adopted page exist and are synced."""
        self.is_placed = True
        self.written_count = self.count

    def drop(self) -> None:
        """Forget what would be written, because the page is deleted."""
        self._pending.truncate(0)
        self._pieces.clear()
        self._piece_at = 0
        self._rows.truncate(0)
        self._frame = None
        self._flushed = self.count
        self.written = self._summed = self.position
        self.placed()

    # ---- files ---------------------------------------------------------------------------------

    def open_page(self) -> File:
        """Return the page file, created if it is missing. OSError."""
        file = self._page
        if file is None:
            file = self._page = self._fs.open(self.stem + ".page", create=True)
        return file

    def _open_index(self) -> File:
        file = self._index
        if file is None:
            file = self._index = self._fs.open(self.stem + ".idx", create=True)
        return file

    def close(self) -> None:
        """Close the files; they are opened again when needed."""
        for file in (self._page, self._index):
            if file is not None:
                file.close()
        self._page = self._index = None
