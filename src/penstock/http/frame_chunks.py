"""Frame chunks: a range of a stream as bytes, for readers that read pages.

The media type is application/x-penstock-frames: one chunk after the other, each of one page, about
a MiB, and never a part of a record:

    header, 64 B  magic "PNSTFRMS" 8 | version u16 | zeros u16 | count u32 | page id u64 |
                  base offset u64 (of the page) | first offset u64 (of the chunk) |
                  data start u32 (the position in the page of data's first byte) | data bytes u32 |
                  rows bytes u32 | crc u32 of rows and data, unseeded | zeros to 64
    rows          16 B each, as in the index of the page: frame start in the page u32 |
                  payload bytes u32 | time i64
    data          the bytes of the page from the first frame's start to the last one's end

Little-endian. The offsets of a chunk go on where those of the one before it ended; a page's end is
a chunk's end. What a frame is: penstock.storage.page. So whoever can read a page and its index, by
columns or one by one, can read a chunk with the same code.

Everything was verified (page_spans) in the copy that is sent, and can be verified again by the crc,
over network and proxies. A body that ends within a chunk, or without HTTP's own end, was cut: what
came before is good, and the next request goes on behind it.
"""

import struct
from collections.abc import Iterator
from typing import Final

from penstock.http.page_spans import PIECES_BYTES, Span, crc32

MEDIA_TYPE: Final = "application/x-penstock-frames"
MAGIC: Final = b"PNSTFRMS"
VERSION: Final = 1
CHUNK_HEADER_BYTES: Final = 64

_HEADER: Final = struct.Struct("<8sHHIQQQIIII8x")


def encode_chunk(span: Span) -> Iterator[bytes]:
    """The chunk of a span: at once, or, of a very large record, in pieces of a MiB."""
    data_bytes = span.end - span.start
    is_small = data_bytes <= PIECES_BYTES
    pieces = list(span.pieces()) if is_small else []
    crc = crc32(span.rows)
    for piece in pieces if is_small else span.pieces():
        crc = crc32(piece, crc)
    header = _HEADER.pack(
        MAGIC, VERSION, 0, span.count, span.page_id, span.base, span.first_offset, span.start,
        data_bytes, len(span.rows), crc,
    )  # fmt: skip
    if is_small:
        yield b"".join((header, span.rows, *pieces))
        return
    yield header + span.rows
    for piece in span.pieces():
        yield bytes(piece)
