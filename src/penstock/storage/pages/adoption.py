"""Adoption: a staged page becomes a page of a stream, and none of its frames is written again.

A sink of Spark stages its rows as whole pages (staging.py). When their batch is decided for a
stream, a page of some MiB is not copied through the log: one record, BATCH ADOPTED, says from which
offset on it is the stream's. What remains is work on files, in a worker:

    index    read, verified; written again under the stream's name, with the base offset and, in
             every row, the time; synced
    header   64 bytes in place in the staged file: stream number, base offset, base time; synced
    name     the staged file is linked to <base>.page, in place of a stale one; directory synced

Then the page counts as written (PageWriter.placed), and the stream's head may pass it. Until then
no checkpoint makes its cut, so a checkpoint with the stream after the page finds the page on the
disk. The staged name is deleted only after such a checkpoint [6]: as long as the record is in a log
that may be replayed, all of it can be done again.

All steps are idempotent, because a crash may leave any part of them. Only the header is changed in
place, and it may be torn. It is never trusted, because all of it follows from the record. The
frames are not changed. The first block's CRC, which covers the header, is made again, and only if
the block verifies with the header that it was staged with. A block that does not verify gets a
wrong CRC, so that readers check its frames one by one.

An index that is lost or wrong is made again from the frames (`make_index`). A damaged page is
adopted as it is, and a reader of the bad record gets the error, as in any page. A page that is
missing becomes a header without a frame, and an event.

Failure: OSError, to be tried again; SyncFailedError [10].
"""

from contextlib import closing
from typing import TYPE_CHECKING, Final

from penstock.errors import CorruptionError, SyncFailedError
from penstock.fast_crc import crc32
from penstock.storage.files.data_directory import sync_dir
from penstock.storage.files.filesystem import File, FileSystem
from penstock.storage.pages.batches import StagedPage
from penstock.storage.pages.page import (
    BLOCK_BYTES,
    INDEX_HEADER_BYTES,
    INDEX_ROW_BYTES,
    KIND_STAGED,
    PAGE_HEADER_BYTES,
    IndexHeader,
    check_index,
    decode_blocks,
    decode_header,
    decode_index_header,
    encode_header,
    scan_frames,
)

if TYPE_CHECKING:
    from penstock.storage.pages.page_writer import PageWriter

PIECE_BYTES: Final = 256 << 10  # of rows
_TIME_AT: Final = 8  # in a row
_TIME_BYTES: Final = 8


class Adoption:
    """The work on the files of one page. staged: the path of its page file. page: as it was
    decided. writer: the stream's PageWriter for it. damage: what was found, or ""."""

    def __init__(self, fs: FileSystem, staged: str, page: StagedPage, writer: "PageWriter") -> None:
        self._fs: FileSystem = fs
        self.staged: str = staged
        self.page: StagedPage = page
        self.writer: PageWriter = writer
        self.damage: str = ""

    def run(self, *, is_recovery: bool = False) -> None:
        """Do all steps, perhaps again, in any thread. is_recovery: what is in the cache may be on
        no disk [8]. OSError, SyncFailedError."""
        fs, writer = self._fs, self.writer
        path = writer.stem + ".page"
        is_staged = fs.exists(self.staged)
        source = self.staged if is_staged else path
        if not is_staged and not fs.exists(path):
            self.damage = f"{self.staged}: the staged page is missing, its records are lost"
        with closing(fs.open(source, create=True)) as file:
            if is_recovery:
                _sync(file)
                file.drop_cache()
            has_index = self._write_index(file, is_staged=is_staged)
            file.pwrite(_header_of(writer), 0)
            _sync(file)
        if is_staged:
            if fs.exists(path):
                fs.unlink(path)
            fs.link(self.staged, path)
        if not has_index:
            make_index(fs, writer.stem, writer)
        sync_dir(fs, path.rpartition("/")[0])

    def _write_index(self, file: File, *, is_staged: bool) -> bool:
        """Write the index under the stream's name. False, and no index, if the staged one is not
        good."""
        path = self.writer.stem + ".idx"
        old = _staged_index(self._fs, self.staged, self.page) if is_staged else b""
        if not old:
            if self._fs.exists(path):
                self._fs.unlink(path)
            return False
        writer = self.writer
        crcs = decode_blocks(old, decode_index_header(self.staged, old))
        block = file.pread(BLOCK_BYTES, 0)[PAGE_HEADER_BYTES:]
        before = crc32(encode_header(0, writer.id, 0, 0, KIND_STAGED), writer.seed)
        if crc32(block, before) != crcs[0]:  # it may have been read wrongly once
            block = file.pread(BLOCK_BYTES, 0)[PAGE_HEADER_BYTES:]
        after = crc32(block, crc32(_header_of(writer), writer.seed))
        if crc32(block, before) == crcs[0]:
            crcs[0] = after
        else:
            crcs[0] = after ^ 1
            self.damage = f"{self.staged}: its first MiB does not verify"
        _put_index(self._fs, path, writer, old, INDEX_HEADER_BYTES, crcs)
        return True


def _staged_index(fs: FileSystem, staged: str, page: StagedPage) -> bytes:
    """Read the whole index of a staged page; b"" if it is not good. OSError."""
    path = staged.removesuffix(".page") + ".idx"
    try:
        data = fs.read(path)
        header = check_index(path, data)
    except (FileNotFoundError, CorruptionError):
        return b""
    there = (header.id, header.base, header.count, header.page_bytes)
    return data if there == (page.page_id, 0, page.rows, page.bytes) else b""


def _sync(file: File) -> None:
    try:
        file.sync()
    except OSError as error:
        raise SyncFailedError(file.path, error) from error


def _header_of(writer: "PageWriter") -> bytes:
    return encode_header(
        writer.number, writer.id, writer.base, writer.first_time_us, KIND_STAGED
    )  # fmt: skip


def _rows_at(rows: bytes, count: int, time_us: int) -> bytes:
    """Return the rows with this time in each."""
    changed = bytearray(rows)
    for i, value in enumerate(time_us.to_bytes(_TIME_BYTES, "little", signed=True)):
        changed[_TIME_AT + i :: INDEX_ROW_BYTES] = bytes((value,)) * count
    return bytes(changed)


def _put_index(
    fs: FileSystem, path: str, writer: "PageWriter", rows: bytes, at: int, crcs: list[int]
) -> None:
    """Write a new index file, in place of a stale one or one that a reader has open, with the rows
    in `rows` from `at` on. In pieces, so that no other thread waits long. OSError,
    SyncFailedError."""
    time_us = writer.first_time_us
    end = at + writer.count * INDEX_ROW_BYTES
    position, crc = INDEX_HEADER_BYTES, 0
    if fs.exists(path):
        fs.unlink(path)
    with closing(fs.open(path, create=True)) as file:
        for start in range(at, end, PIECE_BYTES):
            piece = rows[start : min(start + PIECE_BYTES, end)]
            piece = _rows_at(piece, len(piece) // INDEX_ROW_BYTES, time_us)
            file.pwrite(piece, position)
            crc = crc32(piece, crc)
            position += len(piece)
        tail = b"".join([block.to_bytes(4, "little") for block in crcs])
        file.pwrite(tail, position)
        header = IndexHeader(
            writer.id, writer.base, True, writer.count, writer.position, crc32(tail, crc),
            time_us, time_us,
        )  # fmt: skip
        file.pwrite(header.encode(), 0)
        _sync(file)


def make_index(fs: FileSystem, stem: str, writer: "PageWriter") -> bool:
    """Make the index of an adopted page from its frames. False, and no index, if a frame is
    damaged. OSError."""
    path = stem + ".idx"
    rows: list[bytes] = []
    crcs: list[int] = []
    with closing(fs.open(stem + ".page")) as page:
        at, need = PAGE_HEADER_BYTES, 0
        while at < writer.position:
            data = page.pread(max(need, BLOCK_BYTES), at)
            scan = scan_frames(data, at, writer.seed, len(rows), 0, writer.position)
            if scan.fault or (not scan.rows and (need or not scan.need)):
                return False
            rows += scan.rows
            need = 0 if scan.rows else scan.need
            at = scan.end
        for block in range(0, writer.position, BLOCK_BYTES):
            seed = writer.seed ^ (block // BLOCK_BYTES)
            crcs.append(crc32(page.pread(min(BLOCK_BYTES, writer.position - block), block), seed))
    if len(rows) != writer.count:
        return False
    _put_index(fs, path, writer, b"".join(rows), 0, crcs)
    return True


def is_adopted(fs: FileSystem, path: str) -> bool:
    """Return whether the page at `path` was staged; False if it cannot be read. OSError."""
    try:
        file = fs.open(path)
    except FileNotFoundError:
        return False
    try:
        return decode_header(path, file.pread(PAGE_HEADER_BYTES, 0)).is_staged
    except CorruptionError:
        return False
    finally:
        file.close()
