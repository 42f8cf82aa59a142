"""The index of a page: where each record begins, and when it came; and, sealed, the page's CRCs.

    <base offset, 20 digits>.idx

    header, 64 B  magic "PNSTPIDX" 8 | version u16 | flags u16 (1: sealed) | count u32 |
                  page id u64 | base offset u64 | page bytes u32 (length of the page file) |
                  rows crc u32 | first time i64 | last time i64 | zeros to 60 | crc u32
    rows, 16 B    frame start in the page u32 | payload bytes u32 | time i64
    sealed too    crc u32 of each MiB of the page file: block k is its bytes from k << 20, seeded
                  with the page's seed ^ k

Little-endian. The rows crc is of the rows and the block CRCs, unseeded: the page id beside it is
sealed by the header's own. The meta bytes of row i are the start of row i + 1 (or the page's end)
less this row's start, the 24 bytes of the frame's header and the payload's.

An index is never needed: everything in it is in the page too. While the page is being written its
header has flags 0 and count 0, rows are appended when it suits and never synced for a record's
sake, so they may be short, or garbage after a crash. Hence the rule for who reads: a row is a hint,
and the frame that it leads to proves it, for a frame verifies at its own place only. Bulk readers
that do not check frames one by one use sealed indexes alone, whose rows and blocks have checksums.
"""

import struct
from typing import Final

from penstock.errors import CorruptionError
from penstock.fast_crc import crc32
from penstock.storage.page import BLOCK_BYTES

VERSION: Final = 1
MAGIC: Final = b"PNSTPIDX"
INDEX_HEADER_BYTES: Final = 64
INDEX_ROW_BYTES: Final = 16
SEALED: Final = 1

_HEADER: Final = struct.Struct("<8sHHIQQIIqq")
_U32: Final = struct.Struct("<I")
_ROW: Final = struct.Struct("<IIq")


class IndexHeader:
    """A decoded header. Of an index that is not sealed only the id and the base say anything."""

    __slots__ = (
        "base", "count", "first_time_us", "id", "is_sealed", "last_time_us", "page_bytes",
        "rows_crc",
    )  # fmt: skip

    def __init__(
        self, id: int, base: int, is_sealed: bool, count: int, page_bytes: int, rows_crc: int,
        first_time_us: int, last_time_us: int,
    ) -> None:  # fmt: skip
        self.id: int = id
        self.base: int = base
        self.is_sealed: bool = is_sealed
        self.count: int = count
        self.page_bytes: int = page_bytes
        self.rows_crc: int = rows_crc
        self.first_time_us: int = first_time_us
        self.last_time_us: int = last_time_us

    def encode(self) -> bytes:
        """The 64 bytes."""
        data: bytes = _HEADER.pack(
            MAGIC, VERSION, SEALED if self.is_sealed else 0, self.count, self.id, self.base,
            self.page_bytes, self.rows_crc, self.first_time_us, self.last_time_us,
        )  # fmt: skip
        data = data.ljust(60, b"\0")
        tail: bytes = _U32.pack(crc32(data))
        return data + tail

    def file_bytes(self) -> int:
        """How long the file of a sealed index is."""
        return INDEX_HEADER_BYTES + INDEX_ROW_BYTES * self.count + 4 * blocks(self.page_bytes)


def active_header(id: int, base: int) -> bytes:
    """The header while the page is being written."""
    return IndexHeader(id, base, False, 0, 0, 0, 0, 0).encode()


def decode_index_header(path: str, data: bytes) -> IndexHeader:
    """The header of an index. CorruptionError says what is wrong with it."""
    if len(data) < INDEX_HEADER_BYTES:
        raise CorruptionError(path, len(data), "the index' header is cut off")
    if crc32(data[:60]) != _U32.unpack_from(data, 60)[0]:
        raise CorruptionError(path, 0, "the index' header does not verify")
    magic, version, flags, count, id, base, page_bytes, crc, first, last = _HEADER.unpack_from(data)
    if magic != MAGIC or version != VERSION or flags & ~SEALED:
        text = f"expected {MAGIC!r} version {VERSION}, found {magic!r} {version} flags {flags:#x}"
        raise CorruptionError(path, 0, text)
    return IndexHeader(id, base, flags == SEALED, count, page_bytes, crc, first, last)


def decode_row(data: bytes, at: int) -> tuple[int, int, int]:
    """(frame start, payload bytes, time) of the row at data[at]."""
    start, payload_bytes, time_us = _ROW.unpack_from(data, at)
    return start, payload_bytes, time_us


def blocks(page_bytes: int) -> int:
    """How many blocks a page of that many bytes has."""
    return (page_bytes + BLOCK_BYTES - 1) // BLOCK_BYTES


def decode_blocks(data: bytes, header: IndexHeader) -> list[int]:
    """The block CRCs of a sealed index, given its whole file."""
    count = blocks(header.page_bytes)
    at = INDEX_HEADER_BYTES + INDEX_ROW_BYTES * header.count
    return list(struct.unpack_from(f"<{count}I", data, at))


def check_index(path: str, data: bytes) -> IndexHeader:
    """The header of a sealed index given as a whole file, rows and CRCs verified.
    CorruptionError."""
    header = decode_index_header(path, data)
    if not header.is_sealed:
        raise CorruptionError(path, 8, "the index is not sealed")
    if len(data) != header.file_bytes():
        text = f"the index has {len(data)} bytes, expected {header.file_bytes()}"
        raise CorruptionError(path, min(len(data), header.file_bytes()), text)
    if crc32(memoryview(data)[INDEX_HEADER_BYTES:]) != header.rows_crc:
        raise CorruptionError(path, INDEX_HEADER_BYTES, "the index' rows do not verify")
    return header
