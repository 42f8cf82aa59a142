"""Frames that a client sends to be staged: verified, each by its own checksum, and summed.

The process that serves HTTP does this for every frame of every upload, before anything of it is
written. It makes no objects for rows: it compares them where they are.

**The checksum of a batch.** Two commits with one number are the same batch if they have the same
rows, in whatever order and pages: a task that runs again stages its rows in other pages, and a
replay may have other partitions. So the checksum is a sum over rows, modulo 2^61. Of each row it
adds a mix of the CRC-32 of its frame behind the frame's own CRC: lengths, body and header. The mix
(two multiplications, as in MurmurHash's finalizer, by constants of 29 bits so that nothing exceeds
61 bits) is there because CRC-32 is linear: without it, rows that exchange parts with one another
would often have the same sum. Another row has the same CRC-32 by chance once in 2^32.

Beside page.py, because whoever only reads pages (an executor of Spark that was sent the package)
has that one, and no librt.
"""

from typing import Final

from librt.strings import read_i32_le, read_i64_le

from penstock.fast_crc import crc32
from penstock.storage.page import FRAME_BYTES
from penstock.storage.page import INDEX_ROW_BYTES

CHECKSUM_MASK: Final = (1 << 61) - 1
_U32_MASK: Final = 0xFFFFFFFF
_MIX_1: Final = 0x1B873593
_MIX_2: Final = 0x19D699A5


def staged_checksum(data: bytes, rows: bytes, position: int, seed: int, rel: int) -> int:
    """The checksum of `data` if these are whole frames of time 0, each verified, which begin at
    `position` of the page with frame `rel`, and `rows` exactly theirs; else -1. Why not: call
    `scan_frames`, which takes longer because it makes the rows. data: below 2^31 bytes."""
    at = 0
    size = len(data)
    row = 0
    end_of_rows = len(rows)
    total = 0
    while row < end_of_rows:
        if size - at < FRAME_BYTES or end_of_rows - row < INDEX_ROW_BYTES:
            return -1
        payload_bytes: int = read_i32_le(data, at + 4)
        meta_bytes: int = read_i32_le(data, at + 8)
        end: int = at + FRAME_BYTES + payload_bytes + meta_bytes
        if payload_bytes < 0 or meta_bytes < 0 or end > size:
            return -1
        if read_i32_le(data, at + 12) != 0 or read_i64_le(data, at + 16) != 0:
            return -1  # flags, time
        said: int = read_i64_le(rows, row)
        if said != position + at + (payload_bytes << 32) or read_i64_le(rows, row + 8) != 0:
            return -1
        crc: int = read_i32_le(data, at)
        content = data[at + 4 : end]
        if crc32(content, seed ^ (rel & _U32_MASK)) != crc & _U32_MASK:
            return -1
        total = (total + mixed(crc32(content))) & CHECKSUM_MASK
        at = end
        row += INDEX_ROW_BYTES
        rel += 1
    return total if at == size else -1


def mixed(crc: int) -> int:
    """What a row whose content has this CRC-32 adds to the checksum."""
    one = crc * _MIX_1
    one ^= one >> 29
    return (one & _U32_MASK) * _MIX_2
