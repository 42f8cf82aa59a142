"""Frame chunks as a sink sends them, made as simply as can be: what is staged, seen otherwise."""

import struct
import zlib
from collections.abc import Sequence

HEADER = struct.Struct("<8sHHIQQQIIII8x")
FIRST_BYTE = 64


class PageMaker:
    """One page that is sent in chunks. Wrong ones: whatever `chunk` is told otherwise."""

    def __init__(self, page_id: int) -> None:
        self.page_id = page_id
        self.count = 0
        self.position = FIRST_BYTE

    def chunk(
        self, records: Sequence[tuple[bytes, bytes]], *, time_us: int = 0, flags: int = 0,
        **header: int,
    ) -> bytes:  # fmt: skip
        """The next records, (payload, meta) each. header: fields that say something else."""
        seed = zlib.crc32(struct.pack("<Q", self.page_id))
        rows, data = [], []
        first, start = self.count, self.position
        for payload, meta in records:
            checked = struct.pack("<IIIq", len(payload), len(meta), flags, time_us)
            checked += payload + meta
            crc = zlib.crc32(checked, seed ^ self.count)
            rows.append(struct.pack("<IIq", self.position, len(payload), time_us))
            data.append(struct.pack("<I", crc) + checked)
            self.position += 4 + len(checked)
            self.count += 1
        return sealed(self.page_id, first, start, b"".join(rows), b"".join(data), **header)


def sealed(
    page_id: int, first: int, start: int, rows: bytes, data: bytes, /, **other: int
) -> bytes:
    """A chunk with its header, and the right checksum of whatever is in it."""
    said = {
        "version": 1, "zeros": 0, "count": len(rows) // 16, "page_id": page_id, "base": 0,
        "first": first, "start": start, "data_bytes": len(data), "rows_bytes": len(rows),
        "crc": zlib.crc32(data, zlib.crc32(rows)),
    } | other  # fmt: skip
    return HEADER.pack(b"PNSTFRMS", *said.values()) + rows + data
