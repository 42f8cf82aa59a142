"""Verify a stream: is every record that it promises really there? Looks, and changes nothing.

    allMeta, readMeta, readers/    their checksums
    writeMeta                      its checksum; a bad one is a note, for a start makes it again
    pages                          that each is there from the first to the last, that it has the
                                   records which the names promise, and every frame's checksum
    an index                       against its page: header, rows, block CRCs. What is wrong there
                                   is a note: it is made again from the page
    names in the directory         leftovers of a crash are notes

How far a stream goes is said by the `position` of a vhost's checkpoint, behind which the log has
the records, or, for a queue that stands alone, by writeMeta. What lies behind it is no evidence of
anything, and is not looked at.

A *problem* means that something is lost or wrong; a *note* is worth a line. RAM: a MiB or one
record, and the index of one page.
"""

from dataclasses import dataclass, field
from typing import Final

from penstock.errors import CorruptionError
from penstock.storage import stream_meta
from penstock.storage.filesystem import File, FileSystem
from penstock.storage.page import (
    BLOCK_BYTES,
    PAGE_HEADER_BYTES,
    block_crc,
    check_header,
    page_id,
    page_name,
    page_seed,
    scan_frames,
)
from penstock.storage.page_index import (
    INDEX_HEADER_BYTES,
    INDEX_ROW_BYTES,
    check_index,
    decode_blocks,
    decode_index_header,
    decode_row,
)
from penstock.storage.page_table import list_bases
from penstock.storage.queue_name import QUEUE_NAME
from penstock.storage.stream_meta import ALL_META, WRITE_META, Head, Position

KNOWN: Final = frozenset({"allMeta", "readMeta", "writeMeta", "readers", "LOCK", QUEUE_NAME})


@dataclass(slots=True)
class Findings:
    """What was found. damaged: records that are lost; bytes: of pages, up to the end."""

    pages: int = 0
    records: int = 0
    bytes: int = 0
    damaged: int = 0
    problems: list[CorruptionError] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def verify_stream(fs: FileSystem, path: str) -> Findings:
    """Verify a queue that stands alone, and that nobody writes to. OSError."""
    found = Findings()
    file = f"{path}/{ALL_META}"
    try:
        meta = stream_meta.decode_all(file, fs.read(file))
        first = stream_meta.read_tail(fs, path)
    except FileNotFoundError:
        found.problems.append(CorruptionError(file, 0, "it is missing"))
        return found
    except CorruptionError as error:
        found.problems.append(error)
        return found
    try:
        stream_meta.load_readers(fs, path)
    except CorruptionError as error:
        found.problems.append(error)
    head = _head(fs, path, found)
    if head is None:
        _check_all(fs, path, meta.id, first, found)
    else:
        _check(fs, path, meta.id, first, head, found)
    return found


def check_stream(
    fs: FileSystem, path: str, stream_id: bytes, number: int, first_base: int, position: Position
) -> Findings:
    """Verify a stream of a vhost up to the position of its checkpoint. OSError."""
    found = Findings()
    file = f"{path}/{ALL_META}"
    try:
        meta = stream_meta.decode_all(file, fs.read(file))
        if (meta.number, meta.id) != (number, stream_id):
            text = f"it is of stream {meta.number}, {meta.id.hex()}"
            found.problems.append(CorruptionError(file, 12, text))
        stream_meta.read_tail(fs, path)
    except FileNotFoundError:
        found.problems.append(CorruptionError(file, 0, "it is missing"))
    except CorruptionError as error:
        found.problems.append(error)
    _head(fs, path, found)
    head = Head(
        position.next_offset, position.page_base, position.page_bytes, position.last_time_us
    )
    _check(fs, path, stream_id, first_base, head, found)
    return found


def _head(fs: FileSystem, path: str, found: Findings) -> Head | None:
    """What writeMeta says; None, and a note, if it cannot be read."""
    file = f"{path}/{WRITE_META}"
    try:
        return stream_meta.decode_head(file, fs.read(file))
    except FileNotFoundError:
        found.notes.append(f"{file}: it is missing; a start makes it again")
    except CorruptionError as error:
        found.notes.append(f"{error}; a start makes it again")
    return None


def _check_all(
    fs: FileSystem, path: str, stream_id: bytes, first: int, found: Findings
) -> None:  # fmt: skip
    """Nothing says where it ends: every page must lead to the next, the last one to itself."""
    _check_names(fs, path, first, found)
    bases = [base for base in list_bases(fs, path) if base >= first]
    if bases and bases[0] != first:
        _missing(path, first, found)
    for i, base in enumerate(bases):
        count = bases[i + 1] - base if i + 1 < len(bases) else -1
        _Page(fs, path, stream_id, base, found).check(count, -1)


def _check(
    fs: FileSystem, path: str, stream_id: bytes, first: int, head: Head, found: Findings
) -> None:
    """Every page from the first one to that of the head."""
    _check_names(fs, path, first, found)
    if not head.page_bytes or head.page_base < first:
        return  # there is none, or deleting came further than this head
    bases = [base for base in list_bases(fs, path) if first <= base <= head.page_base]
    if not bases or bases[0] != first:
        _missing(path, first, found)
    if head.page_base != first and (not bases or bases[-1] != head.page_base):
        _missing(path, head.page_base, found)
    for i, base in enumerate(bases):
        page = _Page(fs, path, stream_id, base, found)
        if base == head.page_base:
            page.check(head.next_offset - base, head.page_bytes)
        else:
            after = bases[i + 1] if i + 1 < len(bases) else head.page_base
            page.check(after - base, -1)


def _missing(path: str, base: int, found: Findings) -> None:
    found.problems.append(
        CorruptionError(f"{path}/{page_name(base)}.page", 0, "the page is missing")
    )


def _check_names(fs: FileSystem, path: str, first: int, found: Findings) -> None:
    for name in fs.list(path):
        stem, _, ending = name.rpartition(".")
        if ending in ("page", "idx") and len(stem) == 20 and stem.isdecimal():
            if int(stem) < first:
                found.notes.append(f"{path}/{name}: it is below the first page, a leftover")
        elif name not in KNOWN:
            found.notes.append(f"{path}/{name}: it is not of a stream, or a leftover")


class _Page:
    """One page and its index."""

    def __init__(
        self, fs: FileSystem, path: str, stream_id: bytes, base: int, found: Findings
    ) -> None:
        self.fs = fs
        self.found = found
        self.stem = f"{path}/{page_name(base)}"
        self.base = base
        self.id = page_id(stream_id, base)
        self.seed = page_seed(self.id)
        self.is_staged = False  # all records have the header's time
        self.seen = 0  # good records
        self.has_bad_row = False

    def check(self, count: int, limit: int) -> None:
        """count: records that it has, -1: who knows; limit: where its content ends, -1: where the
        file does."""
        path = self.stem + ".page"
        try:
            file = self.fs.open(path)
        except FileNotFoundError:
            self.found.problems.append(CorruptionError(path, 0, "the page is missing"))
            self.found.damaged += max(count, 0)
            return
        self.found.pages += 1
        try:
            header = check_header(path, file.pread(PAGE_HEADER_BYTES, 0), self.id, self.base)
            self.id, self.seed = header.id, page_seed(header.id)
            self.is_staged = header.is_staged
            size = file.size()
            if size < limit:
                raise CorruptionError(path, size, f"the page ends here, expected {limit} bytes")
            end = size if limit < 0 else limit
            index = self._index(size, count if limit < 0 else -1, is_last=limit >= 0 or count < 0)
            self._frames(file, end, header.base_time_us, index)
            if count >= 0 and self.seen != count:
                raise CorruptionError(path, end, f"{self.seen} records, expected {count}")
            self.found.bytes += end
            if index:
                self._blocks(file, index)
        except CorruptionError as error:
            self.found.problems.append(error)
            self.found.damaged += max(count - self.seen, 1)
        finally:
            file.close()
            self.found.records += self.seen

    def _index(self, size: int, count: int, *, is_last: bool) -> bytes:
        """The whole file of a sealed index that fits, or nothing."""
        path = self.stem + ".idx"
        try:
            data = self.fs.read(path)
            header = decode_index_header(path, data)
            if is_last and not header.is_sealed:
                return b""
            header = check_index(path, data)
            fits = header.id == self.id and header.base == self.base and header.page_bytes == size
            if not fits or (count >= 0 and header.count != count):
                raise CorruptionError(path, 0, "the index is not of this page")
        except FileNotFoundError:
            if not is_last:
                self.found.notes.append(f"{path}: it is missing; it is made again from the page")
            return b""
        except CorruptionError as error:
            if not is_last:
                self.found.notes.append(f"{error}; it is made again from the page")
            return b""
        return data

    def _frames(self, file: File, end: int, last_time: int, index: bytes) -> None:
        """Verify every frame, and the index' rows against them."""
        at = PAGE_HEADER_BYTES
        while at < end:
            data = file.pread(min(BLOCK_BYTES, end - at), at)
            scan = scan_frames(data, at, self.seed, self.seen, last_time, end)
            if scan.need and not scan.rows:
                data = file.pread(scan.need, at)
                scan = scan_frames(data, at, self.seed, self.seen, last_time, end)
            if self.is_staged:
                time = last_time.to_bytes(8, "little", signed=True)
                scan.rows = [row[:8] + time for row in scan.rows]
            for row in scan.rows:
                time_us = decode_row(row, 0)[2]
                if time_us < last_time:
                    self.found.notes.append(f"{file.path}: time goes back at byte {at}")
                last_time = time_us
            rows = b"".join(scan.rows)
            place = INDEX_HEADER_BYTES + INDEX_ROW_BYTES * self.seen
            if index and not self.has_bad_row and index[place : place + len(rows)] != rows:
                self.has_bad_row = True
                self.found.notes.append(f"{self.stem}.idx: at byte {place}: its rows are not true")
            self.seen += len(scan.rows)
            at = scan.end
            if scan.fault or not scan.rows:
                text = scan.fault or "the page ends here"
                raise CorruptionError(file.path, at, f"record {self.base + self.seen}: {text}")

    def _blocks(self, file: File, index: bytes) -> None:
        header = decode_index_header(self.stem + ".idx", index)
        for block, crc in enumerate(decode_blocks(index, header)):
            data = file.pread(BLOCK_BYTES, block * BLOCK_BYTES)
            if block_crc(self.seed, block, data) != crc:
                self.found.notes.append(f"{self.stem}.idx: the CRC of block {block} is not true")
