"""Pages of a stream written by hand: what tests of their readers read.

The formats are those of storage/pages/page.py, written here once more and apart from
the engine, so that a test sees where the two would disagree.
"""

import hashlib
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HEADER = struct.Struct("<8sHHIQQq20x")
INDEX = struct.Struct("<8sHHIQQIIqq4x")
FRAME = struct.Struct("<IIIq")
ROW = struct.Struct("<IIq")
CHUNK = struct.Struct("<8sHHIQQQIIII8x")
BLOCK = 1 << 20
STREAM_ID = bytes(range(16))


@dataclass(frozen=True)
class Record:
    """What stands in a stream. time_us: since 1970."""

    time_us: int
    payload: bytes
    meta: bytes = b""


@dataclass(frozen=True)
class TinyPage:
    """A page as bytes: the page file, its index, its rows as bytes."""

    base: int
    records: tuple[Record, ...]
    page: bytes
    index: bytes
    rows: bytes
    page_id: int

    def write(self, directory: Path, *, has_index: bool = True) -> Path:
        """Its files in the directory; the path of the page."""
        path = directory / f"{self.base:020}.page"
        path.write_bytes(self.page)
        if has_index:
            path.with_suffix(".idx").write_bytes(self.index)
        return path

    def position(self, index: int) -> int:
        """Where record `index` of the page begins; for the one behind the last, where it ends."""
        if index == len(self.records):
            return len(self.page)
        return int(ROW.unpack_from(self.rows, index * ROW.size)[0])

    def chunk(self, first: int, last: int) -> bytes:
        """The records of these offsets as HTTP sends them."""
        a, b = first - self.base, last - self.base
        rows = self.rows[a * ROW.size : b * ROW.size]
        data = self.page[self.position(a) : self.position(b)]
        crc = zlib.crc32(data, zlib.crc32(rows))
        head = CHUNK.pack(
            b"PNSTFRMS", 1, 0, b - a, self.page_id, self.base, first, self.position(a), len(data),
            len(rows), crc,
        )  # fmt: skip
        return head + rows + data


def page_of(records: Sequence[Record], base: int = 0, *, is_sealed: bool = True) -> TinyPage:
    """A page of these records from that offset on."""
    page_id = int.from_bytes(
        hashlib.blake2b(STREAM_ID + base.to_bytes(8, "little")).digest()[:8], "little"
    )
    seed = zlib.crc32(page_id.to_bytes(8, "little"))
    first_us = records[0].time_us if records else 0
    header = HEADER.pack(b"PNSTPAGE", 1, 1, 0, page_id, base, first_us)
    page = bytearray(header + zlib.crc32(header).to_bytes(4, "little"))
    rows = b""
    for index, record in enumerate(records):
        rows += ROW.pack(len(page), len(record.payload), record.time_us)
        rest = FRAME.pack(len(record.payload), len(record.meta), 0, record.time_us)
        rest += record.payload + record.meta
        page += zlib.crc32(rest, seed ^ index).to_bytes(4, "little") + rest
    whole = bytes(page)
    blocks = b"".join(
        zlib.crc32(whole[at : at + BLOCK], seed ^ (at // BLOCK)).to_bytes(4, "little")
        for at in range(0, len(whole), BLOCK)
    )
    last_us = records[-1].time_us if records else 0
    if is_sealed:
        numbers = (1, len(records), page_id, base, len(whole), zlib.crc32(rows + blocks))
        head = INDEX.pack(b"PNSTPIDX", 1, *numbers, first_us, last_us)
    else:
        head = INDEX.pack(b"PNSTPIDX", 1, 0, 0, page_id, base, 0, 0, 0, 0)
        blocks = b""
    whole_index = head + zlib.crc32(head).to_bytes(4, "little") + rows + blocks
    return TinyPage(base, tuple(records), whole, whole_index, rows, page_id)
