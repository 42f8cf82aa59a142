"""Records out of frame chunks, decoded as simply as can be: what was sent, seen otherwise."""

import struct
import zlib
from typing import NamedTuple

HEADER = struct.Struct("<8sHHIQQQIIII")


class Record(NamedTuple):
    offset: int
    time_us: int
    payload: bytes
    meta: bytes


def records(data: bytes) -> list[Record]:
    """All records of a body. AssertionError: it is not what the format says."""
    found: list[Record] = []
    while data:
        chunk, rest = records_of_chunk(data)
        assert not found or chunk[0].offset == found[-1].offset + 1
        found += chunk
        data = rest
    return found


def chunk_sizes(data: bytes) -> list[int]:
    """Bytes of pages in each chunk."""
    sizes: list[int] = []
    while data:
        sizes.append(HEADER.unpack_from(data)[8])
        data = records_of_chunk(data)[1]
    return sizes


def records_of_chunk(data: bytes) -> tuple[list[Record], bytes]:
    """(records of the first chunk, what is behind it)."""
    magic, version, zeros, count, page_id, base, first, start, size, rows_size, crc = (
        HEADER.unpack_from(data)
    )
    assert (magic, version, zeros) == (b"PNSTFRMS", 1, 0)
    assert not any(data[HEADER.size : 64])
    rows, frames = data[64 : 64 + rows_size], data[64 + rows_size : 64 + rows_size + size]
    assert len(frames) == size
    assert rows_size == 16 * count
    assert zlib.crc32(frames, zlib.crc32(rows)) == crc
    seed = zlib.crc32(struct.pack("<Q", page_id))
    found: list[Record] = []
    at = 0
    for n in range(count):
        row = struct.unpack_from("<IIq", rows, 16 * n)
        frame_crc, payload, meta, flags, frame_time_us = struct.unpack_from("<IIIIq", frames, at)
        end = at + 24 + payload + meta
        time_us = row[2]
        assert frame_time_us in (time_us, 0)  # 0: of a batch, whose time all its records have
        assert (row[:2], flags) == ((start + at, payload), 0)
        assert zlib.crc32(frames[at + 4 : end], seed ^ (first + n - base)) == frame_crc
        body = frames[at + 24 : end]
        found.append(Record(first + n, time_us, body[:payload], body[payload:]))
        at = end
    assert at == size
    return found, data[64 + rows_size + size :]
