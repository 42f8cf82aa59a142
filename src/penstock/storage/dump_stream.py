"""The files of a stream as text, a line for each thing in them, damaged or not (see dump.py).

    <base>.page           header, frames; what does not verify to the end of the file in one line
    <base>.idx            header, rows, block CRCs
    allMeta readMeta writeMeta, and readers/<hash>

A page's frames are verified with the page id in its own header, an index' block CRCs are shown and
not compared: that is verify's business.
"""

from collections.abc import Iterator

from penstock.errors import CorruptionError, NotAStoreError
from penstock.fast_crc import crc32
from penstock.storage import stream_meta
from penstock.storage.batches import is_name
from penstock.storage.dump_text import at, body_text
from penstock.storage.filesystem import FileSystem
from penstock.storage.page import (
    INDEX_HEADER_BYTES,
    INDEX_ROW_BYTES,
    PAGE_HEADER_BYTES,
    decode_frames,
    decode_header,
    decode_index_header,
    decode_row,
    page_seed,
)
from penstock.storage.page import StreamRecord as Record

METAS = ("allMeta", "readMeta", "writeMeta")


def is_of_stream(path: str) -> bool:
    """Whether `dump` knows such a name."""
    directory, _, name = path.rpartition("/")
    stem, _, ending = name.rpartition(".")
    is_page = ending in ("page", "idx") and len(stem) == 20 and stem.isdecimal()
    is_staged = ending in ("page", "idx") and is_name(stem + ".page")
    return is_page or is_staged or name in METAS or directory.rpartition("/")[2] == "readers"


def dump(fs: FileSystem, path: str) -> Iterator[str]:
    """The lines of one file. NotAStoreError for a name that says nothing, OSError."""
    if not is_of_stream(path):
        raise NotAStoreError(path, "its name is not that of a file of a stream")
    data = fs.read(path)
    if path.endswith(".page"):
        return dump_page(path, data)
    if path.endswith(".idx"):
        return dump_index(path, data)
    return dump_meta(path, data)


def dump_page(path: str, data: bytes) -> Iterator[str]:
    """A page, given its bytes."""
    try:
        header = decode_header(path, data)
    except CorruptionError as error:
        yield f"DAMAGED {at(error.position, error.reason)}"
        return
    yield at(
        0,
        f"{'staged ' if header.is_staged else ''}page {header.id:016x} of stream {header.number}, "
        f"from offset {header.base}, time {header.base_time_us}",
    )
    seed = page_seed(header.id)
    position, rel = PAGE_HEADER_BYTES, 0
    while position < len(data):
        out: list[Record] = []
        end, need, fault = decode_frames(data, position, seed, header.base, rel, 1, 0, out)
        if not out:
            text = fault or f"a frame of {need} bytes is cut off"
            yield f"DAMAGED {at(position, f'{text}; {len(data) - position} bytes are left')}"
            return
        found = out[0]
        time_us = header.base_time_us if header.is_staged else found.time_us
        yield at(
            position,
            f"record {found.offset}, time {time_us}, meta of {len(found.meta)} bytes, "
            f"crc {crc32(found.meta):08x}, {body_text(found.payload)}",
        )
        position, rel = end, rel + 1


def dump_index(path: str, data: bytes) -> Iterator[str]:
    """An index, given its bytes."""
    try:
        header = decode_index_header(path, data)
    except CorruptionError as error:
        yield f"DAMAGED {at(error.position, error.reason)}"
        return
    rest = data[INDEX_HEADER_BYTES:]
    text = f"index of page {header.id:016x}, from offset {header.base}"
    if not header.is_sealed:
        yield at(0, f"{text}, not sealed")
        count = len(rest) // INDEX_ROW_BYTES
    else:
        count = min(header.count, len(rest) // INDEX_ROW_BYTES)
        times = f"times {header.first_time_us} to {header.last_time_us}"
        yield at(0, f"{text}, {header.count} records, {header.page_bytes} bytes, {times}")
        if crc32(rest) != header.rows_crc or len(data) != header.file_bytes():
            yield f"DAMAGED {at(INDEX_HEADER_BYTES, 'the rows and CRCs do not verify')}"
    for i in range(count):
        start, size, time_us = decode_row(rest, i * INDEX_ROW_BYTES)
        place = INDEX_HEADER_BYTES + i * INDEX_ROW_BYTES
        yield at(place, f"record {header.base + i} at {start}, payload {size}, time {time_us}")
    position = INDEX_HEADER_BYTES + count * INDEX_ROW_BYTES
    crcs = (len(data) - position) // 4 if header.is_sealed else 0
    for block in range(crcs):
        crc = int.from_bytes(data[position : position + 4], "little")
        yield at(position, f"block {block}, crc {crc:08x}")
        position += 4
    if position < len(data):
        yield f"DAMAGED {at(position, f'{len(data) - position} bytes that are no row')}"


def dump_meta(path: str, data: bytes) -> Iterator[str]:
    """allMeta, readMeta, writeMeta, or a reader's file, given its bytes."""
    name = path.rpartition("/")[2]
    try:
        if name == "allMeta":
            meta = stream_meta.decode_all(path, data)
            text = f"stream {meta.number}, id {meta.id.hex()}, pages of {meta.page_bytes} bytes"
        elif name == "readMeta":
            text = f"the first page begins with offset {stream_meta.decode_tail(path, data)}"
        elif name == "writeMeta":
            head = stream_meta.decode_head(path, data)
            text = (
                f"head at offset {head.next_offset}, byte {head.page_bytes} of page "
                f"{head.page_base}, time {head.last_time_us}"
            )
        else:
            reader, place = stream_meta.decode_reader(path, data)
            kept = "nothing" if place.kept_from is None else f"from {place.kept_from} on"
            text = f"reader {reader!r} at offset {place.offset}, keeps {kept}"
    except CorruptionError as error:
        yield f"DAMAGED {at(error.position, error.reason)}"
        return
    yield at(0, text)
