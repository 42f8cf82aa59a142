"""Frames that a client sends to be staged, proven: each by its own checksum, and its row with it.

The process that serves HTTP does this for every frame of every upload, before anything of it is
written. So it makes nothing: rows are compared where they are, not made and compared.

Beside page.py, for whoever only reads pages (an executor of Spark that was sent the package) has
that one, and no librt.
"""

from librt.strings import read_i32_le, read_i64_le

from penstock.fast_crc import crc32
from penstock.storage.page import FRAME_BYTES
from penstock.storage.page_index import INDEX_ROW_BYTES


def are_staged_frames(data: bytes, rows: bytes, position: int, seed: int, rel: int) -> bool:
    """Whether `data`, which begins at `position` of the page with frame `rel`, are whole frames of
    time 0, each verified, and `rows` exactly theirs. Why not: `scan_frames`, which takes longer,
    for it makes the rows. data: below 2^31 bytes."""
    at = 0
    size = len(data)
    row = 0
    end_of_rows = len(rows)
    while row < end_of_rows:
        if size - at < FRAME_BYTES or end_of_rows - row < INDEX_ROW_BYTES:
            return False
        payload_bytes: int = read_i32_le(data, at + 4)
        meta_bytes: int = read_i32_le(data, at + 8)
        end: int = at + FRAME_BYTES + payload_bytes + meta_bytes
        if payload_bytes < 0 or meta_bytes < 0 or end > size:
            return False
        if read_i32_le(data, at + 12) != 0 or read_i64_le(data, at + 16) != 0:
            return False  # flags, time
        said: int = read_i64_le(rows, row)
        if said != position + at + (payload_bytes << 32) or read_i64_le(rows, row + 8) != 0:
            return False
        crc: int = read_i32_le(data, at)
        if crc32(data[at + 4 : end], seed ^ (rel & 0xFFFFFFFF)) != crc & 0xFFFFFFFF:
            return False
        at = end
        row += INDEX_ROW_BYTES
        rel += 1
    return at == size
