"""The format of a stream's pages: a page has a header and frames, its index has a row per frame.

A stream is a PersistentQueue of the design of rxjava2-extras: messages in pages of a fixed size,
read any number of times and deleted by whole pages. This module only encodes and decodes; it opens
no file. All numbers are little-endian, so that Arrow and NumPy read them in place.

    <base offset, 20 digits>.page

    header, 64 B  magic "PNSTPAGE" 8 | version u16 | kind u16 | stream number u32 | page id u64 |
                  base offset u64 | base time i64 | zeros to 60 | crc u32 of bytes 0..60
    frames        crc u32 | payload bytes u32 | meta bytes u32 | flags u32 | time i64 |
                  payload | meta

    page id   the first 8 bytes of the BLAKE2b of (stream id 16 B, base offset u64): the same
              stream makes the same page again, byte for byte
    seed      crc32 of the page id. A frame's crc covers everything after it, seeded with
              seed ^ (offset - base): a frame does not verify in another page, place or stream
    time      microseconds since 1970, never smaller than the one before
    flags     0; another value belongs to a later version and is refused
    kind      1: frames. 2: staged frames, which were made before their place in a stream was
              known: the page id is random, as the header says, the time in every frame is 0, and
              all records have the header's base time. Stream number, base offset and base time
              are 0 until a stream adopts the page (adoption.py)

A frame is never split: a record larger than a page has a page of its own, and no page reaches
2^31 bytes, so that every position in it fits Arrow's 32-bit offsets.

    <base offset, 20 digits>.idx

    header, 64 B  magic "PNSTPIDX" 8 | version u16 | flags u16 (1: sealed) | count u32 |
                  page id u64 | base offset u64 | page bytes u32 (length of the page file) |
                  rows crc u32 | first time i64 | last time i64 | zeros to 60 | crc u32
    rows, 16 B    frame start in the page u32 | payload bytes u32 | time i64
    sealed too    crc u32 of each MiB of the page file: block k is its bytes from k << 20, seeded
                  with the page's seed ^ k

The rows crc covers the rows and the block CRCs, unseeded: the page id in the same header is covered
by the header's own crc. The meta bytes of row i are the start of row i + 1 (or the page's end)
minus this row's start, the 24 bytes of the frame's header and the payload bytes.

An index is never needed: everything in it is in the page too. While the page is being written the
header has flags 0 and count 0, and rows are appended in batches without a sync, so after a crash
they may be missing or garbage. Hence the rule for readers: a row is a hint, and the frame that it
leads to proves it, because a frame verifies only at its own place. Bulk readers that do not check
each frame use only sealed indexes, whose rows and blocks have checksums.

Over the network runs of frames travel as chunks, with the rows of the index that they have; the
head of http/pages.py draws one. Its header has 64 B, too.
"""

import hashlib
import struct
from typing import Final, NamedTuple

from penstock.errors import CorruptionError
from penstock.fast_crc import crc32
from penstock.native import mypyc_attr

VERSION: Final = 1
KIND: Final = 1
KIND_STAGED: Final = 2
MAGIC: Final = b"PNSTPAGE"
FRAME_BYTES: Final = 24
UNLIMITED: Final = 1 << 62  # bytes
PAGE_HEADER_BYTES: Final = 64
PAGE_BYTES_MAX: Final = (1 << 31) - 1
BLOCK_BYTES: Final = 1 << 20

_HEADER: Final = struct.Struct("<8sHHIQQq")
_ID: Final = struct.Struct("<16sQ")
_U64: Final = struct.Struct("<Q")
_U32: Final = struct.Struct("<I")
FRAME: Final = struct.Struct("<IIIIq")
_ROW: Final = struct.Struct("<IIq")
pack_row: Final = _ROW.pack  # frame start, payload bytes, time
_unpack_frame: Final = FRAME.unpack_from


@mypyc_attr(acyclic=True)
class PageRecord:
    """A record that was read. time_us: microseconds since 1970."""

    __slots__ = ("meta", "offset", "payload", "time_us")

    def __init__(self, offset: int, time_us: int, payload: bytes, meta: bytes) -> None:
        self.offset: int = offset
        self.time_us: int = time_us
        self.payload: bytes = payload
        self.meta: bytes = meta

    def __repr__(self) -> str:
        return f"PageRecord({self.offset}, {self.time_us}, {self.payload!r}, {self.meta!r})"


def page_name(base: int) -> str:
    """Return the name of a page's files, without their endings."""
    return f"{base:020}"


def page_id(stream_id: bytes, base: int) -> int:
    """Return the id of the page that begins with offset `base`."""
    digest = hashlib.blake2b(_ID.pack(stream_id, base)).digest()
    return int.from_bytes(digest[:8], "little")


def page_seed(id: int) -> int:
    """Return the seed of all checksums of a page."""
    return crc32(_U64.pack(id))


def encode_header(number: int, id: int, base: int, base_time_us: int, kind: int = KIND) -> bytes:
    """Return the 64 bytes of a page's header."""
    data: bytes = _HEADER.pack(MAGIC, VERSION, kind, number, id, base, base_time_us)
    data = data.ljust(60, b"\0")
    tail: bytes = _U32.pack(crc32(data))
    return data + tail


class PageHeader(NamedTuple):
    """A decoded header of a page. is_staged: kind 2, all records have the base time."""

    number: int
    id: int
    base: int
    base_time_us: int
    is_staged: bool


def decode_header(path: str, data: bytes) -> PageHeader:
    """Return a page's header. CorruptionError says what is wrong with it."""
    if len(data) < PAGE_HEADER_BYTES:
        raise CorruptionError(path, len(data), "the page's header is cut off")
    if crc32(data[:60]) != _U32.unpack_from(data, 60)[0]:
        raise CorruptionError(path, 0, "the page's header does not verify")
    magic, version, kind, number, id, base, base_time = _HEADER.unpack_from(data)
    if magic != MAGIC or version != VERSION or kind not in (KIND, KIND_STAGED):
        text = f"expected {MAGIC!r} version {VERSION} kind {KIND} or {KIND_STAGED}"
        raise CorruptionError(path, 0, f"{text}, found {magic!r} {version} {kind}")
    return PageHeader(number, id, base, base_time, kind == KIND_STAGED)


def check_header(path: str, data: bytes, id: int, base: int, number: int = -1) -> PageHeader:
    """Return a page's header after checking that it belongs to this page. A staged page may have
    any id. number: the stream's number, -1 if it is not known. CorruptionError."""
    header = decode_header(path, data)
    if header.base != base:
        raise CorruptionError(path, 0, f"the page begins with offset {header.base}, not {base}")
    if header.is_staged:
        if number not in (-1, header.number):
            text = f"a staged page of stream {header.number}, expected {number}"
            raise CorruptionError(path, 12, text)
        return header
    if header.id != id:
        text = f"page id {header.id:016x}, expected {id:016x}: it is of another stream"
        raise CorruptionError(path, 0, text)
    return header


class Scan:
    """The result of `scan_frames`. end: position in the page after the last good frame. rows: the
    index rows of the frames. need: bytes of the frame at `end` if more data is needed to verify it.
    fault: what is wrong with the frame at `end`, or ""."""

    __slots__ = ("end", "fault", "last_time_us", "need", "rows")

    def __init__(self, end: int, last_time_us: int) -> None:
        self.end: int = end
        self.last_time_us: int = last_time_us
        self.rows: list[bytes] = []
        self.need: int = 0
        self.fault: str = ""


def scan_frames(
    data: bytes, position: int, seed: int, rel: int, last_time_us: int, limit: int
) -> Scan:
    """Verify the frames in `data`, which begins at `position` of the page with frame `rel`.

    limit: where the page's content ends; a frame that reaches beyond it is a fault. Stops without a
    fault where data ends within a frame.
    """
    scan = Scan(position, last_time_us)
    at = 0
    size = len(data)
    start = position
    while start < limit:
        if size - at < FRAME_BYTES:
            if limit - start < FRAME_BYTES:
                scan.fault = "a frame's header is cut off"
            else:
                scan.need = FRAME_BYTES
            break
        crc, payload_bytes, meta_bytes, flags, time_us = _unpack_frame(data, at)
        need: int = FRAME_BYTES + payload_bytes + meta_bytes
        if start + need > limit:
            scan.fault = f"a frame of {need} bytes reaches beyond byte {limit}"
            break
        if size - at < need:
            scan.need = need
            break
        if crc32(data[at + 4 : at + need], seed ^ (rel & 0xFFFFFFFF)) != crc:
            scan.fault = "the frame does not verify"
            break
        if flags:
            scan.fault = f"the frame has flags {flags:#x}, expected 0"
            break
        scan.rows.append(pack_row(start, payload_bytes, time_us))
        scan.last_time_us = time_us
        at += need
        start += need
        rel += 1
    scan.end = start
    return scan


def decode_frames(
    data: bytes, at: int, seed: int, base: int, rel: int, count: int, budget: int,
    out: list[PageRecord],
) -> tuple[int, int, str]:  # fmt: skip
    """Append the records of up to `count` frames to `out`; the frame at data[at] is `rel`.

    budget: bytes of payload and meta to stop at; the first record of `out` is taken whatever its
    size. Returns (where it stopped, bytes needed for the frame there or 0, fault or "").
    """
    size = len(data)
    while count > 0:
        if size - at < FRAME_BYTES:
            return at, FRAME_BYTES, ""
        found: tuple[int, int, int, int, int] = _unpack_frame(data, at)
        crc, payload_bytes, meta_bytes, flags, time_us = found
        body = payload_bytes + meta_bytes
        if size - at < FRAME_BYTES + body:
            return at, FRAME_BYTES + body, ""
        middle = at + FRAME_BYTES + payload_bytes
        end = at + FRAME_BYTES + body
        if crc32(data[at + 4 : end], seed ^ (rel & 0xFFFFFFFF)) != crc:
            return at, 0, "the frame does not verify"
        if flags:
            return at, 0, f"the frame has flags {flags:#x}, expected 0"
        if body > budget and out:
            return at, 0, ""
        out.append(
            PageRecord(base + rel, time_us, data[at + FRAME_BYTES : middle], data[middle:end])
        )
        budget -= body
        at = end
        rel += 1
        count -= 1
        if budget <= 0:
            break
    return at, 0, ""


def frame_facts(front: bytes) -> tuple[int, int, int]:
    """Return the bytes of payload and meta, and the time, that the front of a frame says; -1 bytes
    if it is cut off."""
    if len(front) < FRAME_BYTES:
        return -1, 0, 0
    _, payload_bytes, meta_bytes, _, time_us = _unpack_frame(front, 0)
    return payload_bytes, meta_bytes, time_us


def block_crc(seed: int, block: int, data: bytes) -> int:
    """Return the CRC of one MiB of a page file (the last block may be shorter)."""
    return crc32(data, seed ^ block)


INDEX_VERSION: Final = 1
INDEX_MAGIC: Final = b"PNSTPIDX"
INDEX_HEADER_BYTES: Final = 64
INDEX_ROW_BYTES: Final = 16
SEALED: Final = 1

_INDEX_HEADER: Final = struct.Struct("<8sHHIQQIIqq")


class IndexHeader:
    """A decoded header of an index. While the index is not sealed only id and base are
    meaningful."""

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
        """Return the 64 bytes."""
        data: bytes = _INDEX_HEADER.pack(
            INDEX_MAGIC, INDEX_VERSION, SEALED if self.is_sealed else 0, self.count, self.id,
            self.base, self.page_bytes, self.rows_crc, self.first_time_us, self.last_time_us,
        )  # fmt: skip
        data = data.ljust(60, b"\0")
        tail: bytes = _U32.pack(crc32(data))
        return data + tail

    def file_bytes(self) -> int:
        """Return the length of the file of a sealed index."""
        return INDEX_HEADER_BYTES + INDEX_ROW_BYTES * self.count + 4 * blocks(self.page_bytes)


def active_header(id: int, base: int) -> bytes:
    """Return the header of an index whose page is being written."""
    return IndexHeader(id, base, False, 0, 0, 0, 0, 0).encode()


def decode_index_header(path: str, data: bytes) -> IndexHeader:
    """Return the header of an index. CorruptionError says what is wrong with it."""
    if len(data) < INDEX_HEADER_BYTES:
        raise CorruptionError(path, len(data), "the index' header is cut off")
    if crc32(data[:60]) != _U32.unpack_from(data, 60)[0]:
        raise CorruptionError(path, 0, "the index' header does not verify")
    magic, version, flags, count, id, base, page_bytes, crc, first, last = (
        _INDEX_HEADER.unpack_from(data)
    )
    if magic != INDEX_MAGIC or version != INDEX_VERSION or flags & ~SEALED:
        text = f"expected {INDEX_MAGIC!r} version {INDEX_VERSION}, "
        text += f"found {magic!r} {version} flags {flags:#x}"
        raise CorruptionError(path, 0, text)
    return IndexHeader(id, base, flags == SEALED, count, page_bytes, crc, first, last)


def decode_row(data: bytes, at: int) -> tuple[int, int, int]:
    """Return (frame start, payload bytes, time) of the row at data[at]."""
    start, payload_bytes, time_us = _ROW.unpack_from(data, at)
    return start, payload_bytes, time_us


def blocks(page_bytes: int) -> int:
    """Return how many blocks a page of that many bytes has."""
    return (page_bytes + BLOCK_BYTES - 1) // BLOCK_BYTES


def decode_blocks(data: bytes, header: IndexHeader) -> list[int]:
    """Return the block CRCs of a sealed index, given its whole file."""
    count = blocks(header.page_bytes)
    at = INDEX_HEADER_BYTES + INDEX_ROW_BYTES * header.count
    return list(struct.unpack_from(f"<{count}I", data, at))


def check_index(path: str, data: bytes) -> IndexHeader:
    """Return the header of a sealed index given as a whole file, after verifying rows and CRCs.
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


# ---- chunks --------------------------------------------------------------------------------------

CHUNK_HEADER_BYTES: Final = 64
CHUNK_VERSION: Final = 1
CHUNK_MAGIC: Final = b"PNSTFRMS"
CHUNK_MEDIA_TYPE: Final = "application/x-penstock-frames"
_CHUNK: Final = struct.Struct("<8sHHIQQQIIII8x")


class ChunkHead(NamedTuple):
    """The header of a chunk. first_offset: of its first record. data_start: the position in the
    page of the first byte of data. crc: of rows and data."""

    record_count: int
    page_id: int
    base: int
    first_offset: int
    data_start: int
    data_bytes: int
    rows_bytes: int
    crc: int


def encode_chunk_head(head: ChunkHead) -> bytes:
    """Return the 64 bytes of a chunk's header."""
    data: bytes = _CHUNK.pack(CHUNK_MAGIC, CHUNK_VERSION, 0, *head)
    return data


def decode_chunk_head(source: str, data: bytes) -> ChunkHead:
    """Return a chunk's header. source: names it in a CorruptionError, which says what is wrong."""
    if len(data) != CHUNK_HEADER_BYTES:
        raise CorruptionError(source, 0, f"a chunk's header of {len(data)} bytes, expected 64")
    fields = _CHUNK.unpack(data)
    if fields[0] != CHUNK_MAGIC or fields[1] != CHUNK_VERSION:
        text = f"expected {CHUNK_MAGIC!r} version {CHUNK_VERSION}, found {fields[0]!r} {fields[1]}"
        raise CorruptionError(source, 0, text)
    head = ChunkHead(*fields[3:])
    if head.rows_bytes != head.record_count * INDEX_ROW_BYTES:
        text = f"{head.record_count} records with {head.rows_bytes} bytes of rows"
        raise CorruptionError(source, 0, f"{text}, expected {INDEX_ROW_BYTES} for each")
    return head
