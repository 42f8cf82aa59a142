"""The small files of a stream: what it is, where it ends, where it begins, who reads it.

The three that the PersistentQueue design of rxjava2-extras names, 64 bytes each, little-endian,
with the crc32 of bytes 0..60 at 60:

    allMeta    magic "PNSTALLM" 8 | version u16 | zeros u16 | stream number u32 | stream id 16 B |
               page bytes u32 | zeros
               written once, and synced with its directory, before any other file
    writeMeta  magic "PNSTHEAD" 8 | version u16 | zeros u16 | page bytes (position in that page)
               u32 | page base u64 | next offset u64 | last time i64 | zeros
               the head. Written in place: a reader beside the owner may find it half written,
               notices that by the checksum, and reads again
    readMeta   magic "PNSTTAIL" 8 | version u16 | zeros u16 | zeros u32 | first page base u64 |
               zeros
               replaced atomically (new file, synced, renamed, directory synced) before the pages
               below it are deleted. Missing: no page was ever deleted

and for each named reader of a queue that stands alone

    readers/<hash of the name>
               magic "PNSTREAD" 8 | version u16 | zeros u16 | name bytes u32 | offset u64 |
               kept from u64 (2^64 - 1: none) | zeros | crc u32 of bytes 0..60 and the name | name
               replaced atomically, as readMeta

A file that does not verify is a CorruptionError that names it.
"""

import struct
from typing import Final, NamedTuple

from penstock.errors import CorruptionError
from penstock.fast_crc import crc32
from penstock.storage.files.data_directory import hash_name, sync_dir, write_small
from penstock.storage.files.filesystem import FileSystem

VERSION: Final = 1
META_BYTES: Final = 64
ALL_META: Final = "allMeta"
WRITE_META: Final = "writeMeta"
READ_META: Final = "readMeta"
READERS: Final = "readers"
NEW: Final = ".new"  # ending of a file that will be renamed
NONE: Final = (1 << 64) - 1

_ALL: Final = struct.Struct("<8sHHI16sI")
_HEAD: Final = struct.Struct("<8sHHIQQq")
_TAIL: Final = struct.Struct("<8sHHIQ")
_READER: Final = struct.Struct("<8sHHIQQ")
_U32: Final = struct.Struct("<I")


class AllMeta(NamedTuple):
    """What a stream is. number: 0 if it stands alone; id: 16 random bytes; page_bytes: the size
    that a page may reach before the next one begins."""

    number: int
    id: bytes
    page_bytes: int


class StreamHead(NamedTuple):
    """Where a stream ends for readers: the offset of the next record, the page that it ends in and
    the byte there, and the time of the last record."""

    next_offset: int
    page_base: int
    page_bytes: int
    last_time_us: int


class Position(NamedTuple):
    """Where a stream is, for a checkpoint: the page that is being written, the bytes in it, the
    next offset, the time of the last record (us), and the first offset. page_bytes 0: there is no
    page yet."""

    page_base: int
    page_bytes: int
    next_offset: int
    last_time_us: int
    first_offset: int


class ReaderOffset(NamedTuple):
    """The position of a named reader: it has read all below `offset`. kept_from: retention keeps
    the records from there on, None: it asks for none. time_ms: when it reported that (since 1970),
    0 for a stream that stands alone, which does not store it."""

    offset: int
    kept_from: int | None
    time_ms: int = 0


def _closed(data: bytes, more: bytes = b"") -> bytes:
    data = data.ljust(60, b"\0")
    tail: bytes = _U32.pack(crc32(more, crc32(data)))
    return data + tail + more


def _check(path: str, data: bytes, magic: bytes) -> None:
    if len(data) < META_BYTES:
        raise CorruptionError(path, len(data), f"it ends here, expected {META_BYTES} bytes")
    if crc32(data[META_BYTES:], crc32(data[:60])) != _U32.unpack_from(data, 60)[0]:
        raise CorruptionError(path, 0, "its checksum does not verify")
    version = int.from_bytes(data[8:10], "little")
    if data[:8] != magic or version != VERSION:
        text = f"expected {magic!r} version {VERSION}, found {data[:8]!r} {version}"
        raise CorruptionError(path, 0, text)


def encode_all(meta: AllMeta) -> bytes:
    """Return the bytes of allMeta."""
    return _closed(_ALL.pack(b"PNSTALLM", VERSION, 0, meta.number, meta.id, meta.page_bytes))


def decode_all(path: str, data: bytes) -> AllMeta:
    """Return the content of allMeta. CorruptionError."""
    _check(path, data[:META_BYTES], b"PNSTALLM")
    _, _, _, number, id, page_bytes = _ALL.unpack_from(data)
    return AllMeta(number, id, page_bytes)


def encode_head(head: StreamHead) -> bytes:
    """Return the bytes of writeMeta."""
    return _closed(
        _HEAD.pack(
            b"PNSTHEAD",
            VERSION,
            0,
            head.page_bytes,
            head.page_base,
            head.next_offset,
            head.last_time_us,
        )
    )


def decode_head(path: str, data: bytes) -> StreamHead:
    """Return the content of writeMeta. CorruptionError."""
    _check(path, data[:META_BYTES], b"PNSTHEAD")
    _, _, _, page_bytes, base, next_offset, last_time = _HEAD.unpack_from(data)
    return StreamHead(next_offset, base, page_bytes, last_time)


def encode_tail(first: int) -> bytes:
    """Return the bytes of readMeta."""
    return _closed(_TAIL.pack(b"PNSTTAIL", VERSION, 0, 0, first))


def decode_tail(path: str, data: bytes) -> int:
    """Return the base of the first page from readMeta. CorruptionError."""
    _check(path, data[:META_BYTES], b"PNSTTAIL")
    first: int = _TAIL.unpack_from(data)[4]
    return first


def encode_reader(name: str, reader: ReaderOffset) -> bytes:
    """Return the bytes of a reader's file."""
    text = name.encode()
    kept = NONE if reader.kept_from is None else reader.kept_from
    fixed: bytes = _READER.pack(b"PNSTREAD", VERSION, 0, len(text), reader.offset, kept)
    return _closed(fixed, text)


def decode_reader(path: str, data: bytes) -> tuple[str, ReaderOffset]:
    """Return (name, position) from a reader's file. CorruptionError."""
    _check(path, data, b"PNSTREAD")
    _, _, _, length, offset, kept = _READER.unpack_from(data)
    if length != len(data) - META_BYTES:
        raise CorruptionError(path, 12, f"a name of {length} bytes, found {len(data) - META_BYTES}")
    name = data[META_BYTES:].decode("utf-8", "replace")
    return name, ReaderOffset(offset, None if kept == NONE else kept)


def read_tail(fs: FileSystem, path: str) -> int:
    """Return the base of the first page of the stream at `path`, 0 if readMeta is missing.
    CorruptionError, OSError."""
    file = f"{path}/{READ_META}"
    try:
        data = fs.read(file)
    except FileNotFoundError:
        return 0
    return decode_tail(file, data)


def replace_small(fs: FileSystem, directory: str, name: str, data: bytes) -> None:
    """Replace the content of a small file atomically and durably. SyncFailedError, OSError."""
    path = f"{directory}/{name}"
    write_small(fs, path + NEW, data)
    fs.rename(path + NEW, path)
    sync_dir(fs, directory)


def reader_file(name: str) -> str:
    """Return the file name for a reader's name."""
    return hash_name(name.encode())


def load_readers(fs: FileSystem, path: str) -> dict[str, ReaderOffset]:
    """Return the named readers of a queue that stands alone. CorruptionError, OSError."""
    directory = f"{path}/{READERS}"
    found: dict[str, ReaderOffset] = {}
    try:
        names = fs.list(directory)
    except FileNotFoundError:
        return found
    for file in names:
        if not file.endswith(NEW):
            name, reader = decode_reader(f"{directory}/{file}", fs.read(f"{directory}/{file}"))
            if reader_file(name) != file:
                text = f"it is of reader {name!r}, whose file is {reader_file(name)}"
                raise CorruptionError(f"{directory}/{file}", META_BYTES, text)
            found[name] = reader
    return found


def save_reader(fs: FileSystem, path: str, name: str, reader: ReaderOffset) -> None:
    """Store the position of a reader durably. SyncFailedError, OSError."""
    directory = f"{path}/{READERS}"
    if not fs.exists(directory):
        fs.mkdir(directory)
        sync_dir(fs, path)
    replace_small(fs, directory, reader_file(name), encode_reader(name, reader))


def remove_reader(fs: FileSystem, path: str, name: str) -> None:
    """Delete a reader durably. SyncFailedError, OSError."""
    directory = f"{path}/{READERS}"
    fs.unlink(f"{directory}/{reader_file(name)}")
    sync_dir(fs, directory)
