"""The checkpoint file: the state of a vhost at one instant, written whole.

    checkpoint-<n>   magic "PCKP" 4 | version 2 | flags 2 | vhost 8 | number 8 | crc 4
                     then sections: kind 4 | length 4 | crc 4 | data
      1 HEAD         cut LSN 8 | log segment 8 | log position 8 | start number 4 |
                     next queue number 4 | slots of a segment 4 | next store file 4 |
                     next own file 4
      2 TOPOLOGY     count 4, then records of the RoutingTable: length 4 | record
      3 QUEUE        number 4 | next seq 8 | mark 8 | count 8 | bytes 8 |
                     segments 4 | rows 4 | attempts 4
        segment      number 4 | first 2 | end 2 | count 2 | store entries 2 | bytes 8 |
                     latest expiry 8 | bitmap bytes 2 | bitmap
                     (first, end: slots; no bitmap: all of them alive)
        row          seq 8 | id 8 | size 4 | time 4 | expiry 8 | store file 4 | body file 4 |
                     header length 4 | header               (an entry of a small queue)
        attempts     seq 8 | attempts 4
      4 STORE        a file state of the MessageStore (its own format)
      5 REAPING      queue 4 | segment 4 | bitmap bytes 2 | bitmap
                     (purged entries whose store references are not released yet)
      6 STREAM       number 4 | stream id 16 | first offset 8 | page base 8 | page bytes 4 |
                     next offset 8 | last time (us) 8 | readers 4
        reader       offset 8 | kept from 8 (all ones: none) | time (ms) 8 | name length 2 | name
      7 LEASE        what one reader has leased of a queue (leases.py)
      8 BATCH        the last batch of one query (batches.py)
      0 END          number of sections before it 4
    CURRENT          "checkpoint-<n> <crc of that text, 8 hex digits>"

flags: CLEAN 1, a stop in order: nothing follows in the log, marks are exact. log segment 0: there
is no log behind it (a backup, or salvage). Each section's checksum is seeded with vhost, number,
kind and place, so that no section of another checkpoint verifies. Big-endian.

The order of writing is rule [5]: what it names is synced before, then the file, then CURRENT is
replaced by a rename and the directory synced; only then may anything older go. So CURRENT always
names a whole checkpoint, and anything wrong in it is damage: a CorruptionError with file and
position, never a guess.
"""

import struct
from dataclasses import dataclass, field
from typing import Final

from penstock.errors import CorruptionError, VersionError
from penstock.fast_crc import crc32
from penstock.message import Message
from penstock.storage.data_directory import sync_dir, write_small
from penstock.storage.filesystem import FileSystem
from penstock.storage.queue_index import IndexSegment, Row, Section
from penstock.storage.record import NOT_KEPT
from penstock.storage.stream_meta import Position
from penstock.storage.streams import ReaderOffset, StreamSection

VERSION: Final = 1
MAGIC: Final = b"PCKP"
CLEAN: Final = 1
END: Final = 0
HEAD: Final = 1
TOPOLOGY: Final = 2
QUEUE: Final = 3
STORE: Final = 4
REAPING: Final = 5
STREAM: Final = 6
LEASE: Final = 7
BATCH: Final = 8
KINDS_MAX: Final = BATCH

_FILE: Final = struct.Struct(">4sHHQQ")
_SECTION: Final = struct.Struct(">III")
_HEAD: Final = struct.Struct(">QQQIIIII")
_QUEUE: Final = struct.Struct(">IQQQQIII")
_SEGMENT: Final = struct.Struct(">IHHHHQQH")
_ROW: Final = struct.Struct(">QQIIQIII")
_ATTEMPTS: Final = struct.Struct(">QI")
_REAP: Final = struct.Struct(">IIH")
_STREAM: Final = struct.Struct(">I16sQQIQQI")
_READER: Final = struct.Struct(">QQQH")
_U32: Final = struct.Struct(">I")


@dataclass(slots=True)
class Head:
    """The scalars of a checkpoint. The log is read from (log_segment, log_position) on, its first
    record is cut_lsn + 1. segment_slots belongs to the directory and never changes."""

    cut_lsn: int = 0
    log_segment: int = 0
    log_position: int = 0
    start: int = 0
    next_queue: int = 1
    segment_slots: int = 4096
    next_store_file: int = 1
    next_own_file: int = 0

    def encode(self) -> bytes:
        return _HEAD.pack(
            self.cut_lsn, self.log_segment, self.log_position, self.start, self.next_queue,
            self.segment_slots, self.next_store_file, self.next_own_file,
        )  # fmt: skip


@dataclass(slots=True)
class Manifest:
    """A checkpoint that was read. reaping: (queue, segment) -> bitmap of the
    slots that are still read for references."""

    number: int = 0
    is_clean: bool = True
    head: Head = field(default_factory=Head)
    topology: list[bytes] = field(default_factory=list)
    queues: dict[int, Section] = field(default_factory=dict)
    store: list[bytes] = field(default_factory=list)
    reaping: dict[tuple[int, int], bytearray] = field(default_factory=dict)
    streams: dict[int, StreamSection] = field(default_factory=dict)
    leases: list[bytes] = field(default_factory=list)
    batches: list[bytes] = field(default_factory=list)


# ---- encoding ----------------------------------------------------------------------------------


def encode_topology(records: list[bytes]) -> bytes:
    parts = [_U32.pack(len(records))]
    for record in records:
        parts += (_U32.pack(len(record)), record)
    return b"".join(parts)


def encode_queue(number: int, section: Section, slots: int) -> bytes:
    segments = [s for s in section.segments.values() if s.count]
    parts = [
        _QUEUE.pack(
            number, section.next_seq, section.mark, section.count, section.bytes, len(segments),
            len(section.rows), len(section.attempts),
        )
    ]  # fmt: skip
    for s in segments:
        base = s.number * slots
        bits = bytes(s.bitmap) if s.bitmap is not None and s.count != s.hi - s.lo else b""
        parts.append(
            _SEGMENT.pack(
                s.number, s.lo - base, s.hi - base, s.count, s.stores, s.bytes, s.expiry_ms,
                len(bits),
            )
        )  # fmt: skip
        parts.append(bits)
    for seq, row in section.rows.items():
        m = row.message
        parts.append(
            _ROW.pack(
                seq, m.id, m.size, m.time, m.expiry_ms, m.store_file, row.body_file, len(m.header)
            )
        )
        parts.append(m.header)
    parts += [_ATTEMPTS.pack(seq, n) for seq, n in section.attempts.items()]
    return b"".join(parts)


def encode_reaping(reaping: dict[tuple[int, int], bytearray]) -> bytes:
    parts: list[bytes] = []
    for (queue, segment), bits in reaping.items():
        parts += (_REAP.pack(queue, segment, len(bits)), bytes(bits))
    return b"".join(parts)


def encode_stream(number: int, section: StreamSection) -> bytes:
    if section.encoded:
        return section.encoded
    p = section.position
    parts = [
        _STREAM.pack(
            number, section.stream_id, p.first_offset, p.page_base, p.page_bytes, p.next_offset,
            p.last_time_us, len(section.readers),
        )
    ]  # fmt: skip
    for name, reader in section.readers.items():
        kept = NOT_KEPT if reader.kept_from is None else reader.kept_from
        data = name.encode()
        parts += (_READER.pack(reader.offset, kept, reader.time_ms, len(data)), data)
    section.encoded = b"".join(parts)
    return section.encoded


def encode_file(
    vhost: int, number: int, sections: list[tuple[int, bytes]], *, is_clean: bool
) -> bytes:
    """The whole file from its sections (kind, data), END added."""
    header = _FILE.pack(MAGIC, VERSION, CLEAN if is_clean else 0, vhost, number)
    parts = [header, _U32.pack(crc32(header))]
    for i, (kind, data) in enumerate([*sections, (END, _U32.pack(len(sections)))]):
        crc = crc32(data, section_seed(vhost, number, kind, i))
        parts += (_SECTION.pack(kind, len(data), crc), data)
    return b"".join(parts)


def section_seed(vhost: int, number: int, kind: int, place: int) -> int:
    return crc32(struct.pack(">QQII", vhost, number, kind, place))


# ---- files -------------------------------------------------------------------------------------


def write(fs: FileSystem, path: str, number: int, data: bytes) -> None:
    """Write and sync checkpoint-<number>, make it CURRENT, sync the directory [5].

    OSError: it is not CURRENT, and another may be tried. SyncFailedError: nobody knows [10]."""
    name = f"checkpoint-{number}"
    write_small(fs, f"{path}/{name}", data)
    sync_dir(fs, path)
    write_small(fs, path + "/CURRENT.new", f"{name} {crc32(name.encode()):08x}\n".encode())
    fs.rename(path + "/CURRENT.new", path + "/CURRENT")
    sync_dir(fs, path)


def current(fs: FileSystem, path: str) -> int:
    """The number of the checkpoint that CURRENT names, 0 if there is no CURRENT."""
    at = path + "/CURRENT"
    if not fs.exists(at):
        return 0
    text = fs.read(at).decode("ascii", "replace").strip()
    name, _, crc = text.partition(" ")
    digits = name.removeprefix("checkpoint-")
    if not digits.isdigit() or crc != f"{crc32(name.encode()):08x}":
        raise CorruptionError(at, 0, f"expected the name of a checkpoint, found {text[:60]!r}")
    return int(digits)


def read(fs: FileSystem, path: str, number: int, vhost: int) -> Manifest:
    """Read checkpoint-<number>; CorruptionError or VersionError with what is wrong and where."""
    at = f"{path}/checkpoint-{number}"
    if not fs.exists(at):
        raise CorruptionError(at, 0, "CURRENT names this checkpoint, and it is missing")
    data = fs.read(at)
    if len(data) < _FILE.size + 4:
        raise CorruptionError(at, len(data), "the checkpoint's header is cut off")
    magic, version, flags, found_vhost, found_number = _FILE.unpack_from(data)
    if crc32(data[: _FILE.size]) != _U32.unpack_from(data, _FILE.size)[0] or magic != MAGIC:
        raise CorruptionError(at, 0, "the checkpoint's header does not verify")
    if version != VERSION:
        raise VersionError(at, str(VERSION), str(version))
    if (found_vhost, found_number) != (vhost, number):
        raise CorruptionError(
            at, 0, f"it is checkpoint {found_number} of vhost {found_vhost:016x}, "
            f"expected {number} of {vhost:016x}"
        )  # fmt: skip
    manifest = Manifest(number, bool(flags & CLEAN))
    position = _FILE.size + 4
    place = 0
    while True:
        kind, section = _read_section(at, data, position, vhost, number, place)
        if kind == END:
            if _U32.unpack(section)[0] != place:
                raise CorruptionError(at, position, "sections are missing")
            return manifest
        try:
            apply_section(manifest, kind, section)
        except (ValueError, struct.error, IndexError) as error:
            raise CorruptionError(at, position, f"section of kind {kind}: {error}") from error
        position += _SECTION.size + len(section)
        place += 1


def _read_section(
    path: str, data: bytes, position: int, vhost: int, number: int, place: int
) -> tuple[int, bytes]:
    if len(data) < position + _SECTION.size:
        raise CorruptionError(path, len(data), "the checkpoint is cut off")
    kind, length, crc = _SECTION.unpack_from(data, position)
    section = data[position + _SECTION.size : position + _SECTION.size + length]
    if len(section) != length or crc32(section, section_seed(vhost, number, kind, place)) != crc:
        raise CorruptionError(path, position, f"section {place} of the checkpoint does not verify")
    return kind, section


def apply_section(manifest: Manifest, kind: int, data: bytes) -> None:
    if kind == HEAD:
        manifest.head = Head(*_HEAD.unpack(data))
    elif kind == TOPOLOGY:
        at = 4
        for _ in range(_U32.unpack_from(data)[0]):
            (length,) = _U32.unpack_from(data, at)
            manifest.topology.append(data[at + 4 : at + 4 + length])
            at += 4 + length
    elif kind == QUEUE:
        number, section = _decode_queue(data, manifest.head.segment_slots)
        manifest.queues[number] = section
    elif kind == STORE:
        manifest.store.append(data)
    elif kind == REAPING:
        at = 0
        while at < len(data):
            queue, segment, length = _REAP.unpack_from(data, at)
            at += _REAP.size
            manifest.reaping[queue, segment] = bytearray(data[at : at + length])
            at += length
    elif kind == STREAM:
        number, stream = _decode_stream(data)
        manifest.streams[number] = stream
    elif kind == LEASE:
        manifest.leases.append(data)
    elif kind == BATCH:
        manifest.batches.append(data)
    else:
        raise ValueError("unknown kind")


def _decode_stream(data: bytes) -> tuple[int, StreamSection]:
    number, id, first, base, size, next_offset, last_time, readers = _STREAM.unpack_from(data)
    section = StreamSection(id, Position(base, size, next_offset, last_time, first), {})
    at = _STREAM.size
    for _ in range(readers):
        offset, kept, time_ms, length = _READER.unpack_from(data, at)
        at += _READER.size
        kept_from = None if kept == NOT_KEPT else kept
        section.readers[data[at : at + length].decode()] = ReaderOffset(offset, kept_from, time_ms)
        at += length
    return number, section


def _decode_queue(data: bytes, slots: int) -> tuple[int, Section]:
    number, next_seq, mark, count, size, segments, rows, attempts = _QUEUE.unpack_from(data)
    section = Section(next_seq, mark, count, size, {}, {}, {})
    at = _QUEUE.size
    for _ in range(segments):
        n, lo, hi, live, stores, live_bytes, expiry, bits = _SEGMENT.unpack_from(data, at)
        at += _SEGMENT.size
        segment = IndexSegment(n, n * slots + lo, n * slots + hi, 0)
        segment.count, segment.stores = live, stores
        segment.bytes, segment.expiry_ms = live_bytes, expiry
        if bits:
            segment.bitmap = bytearray(data[at : at + bits])
            at += bits
        section.segments[n] = segment
    for _ in range(rows):
        seq, id, size_, time, expiry, store, body, length = _ROW.unpack_from(data, at)
        at += _ROW.size
        empty = b"" if not size_ and not store else None  # no file has a body of no bytes
        message = Message(id, data[at : at + length], empty, size_, time, expiry, store)
        section.rows[seq] = Row(message, body)
        at += length
    for _ in range(attempts):
        seq, n = _ATTEMPTS.unpack_from(data, at)
        section.attempts[seq] = n
        at += _ATTEMPTS.size
    return number, section
