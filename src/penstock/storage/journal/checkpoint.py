"""Checkpoints: the file with the state of a vhost at one instant, and how it is made.

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
      9 WINDOW       the keys that a queue or an exchange has seen (key_windows.py)
      0 END          number of sections before it 4
    CURRENT          "checkpoint-<n> <crc of that text, 8 hex digits>"

flags: CLEAN 1, an orderly stop: nothing follows in the log, marks are exact. log segment 0: no log
follows (a backup, or salvage). Each section's checksum is seeded with vhost, number,
kind and place, so that no section of another checkpoint verifies. Big-endian.

A checkpoint is made durable in the order of rule [5]: first what it names, then the file, then
CURRENT by a rename and a sync of the directory. Only then is anything older deleted. So CURRENT
always names a whole checkpoint, and anything wrong in it is damage: a CorruptionError with file and
position.

The Checkpointer makes a checkpoint beside the traffic:

    begin     the cut: the open group is closed and the epoch rises. From now on each part keeps its
              state as of this LSN at its first change (O(1), [3]), and each stream its position
    slices    the topology, in pieces; then queue by queue: what is only in RAM or log is written to
              slots and .qs, or, for a small queue, into a section of the checkpoint with its bodies
              in one new store file;
              at most `slice_ms` at a time. `Listing` first lists all that may have to be written,
              in pieces (holder.py says what may happen between two pieces); then `Writing` writes
              it in chunks
    sync      data files, pages, the store and their directories, in a worker; and the log must be
              durable up to the cut, because counts and bitmaps rely on it [4]
    write     checkpoint-<n> and CURRENT
    deleting  what no checkpoint names any more [6]: segment files, store files, log segments, queue
              directories, the checkpoint before

The slices may leave out only what a durable dequeue took since the cut [4]: `departed` of each
queue has what left RAM meanwhile. A purged entry is written all the same, because its slot will be
read for its references. The checkpoint of a backup is whole: it leaves nothing out, because the
backup has no log that says what was dequeued after the cut.

Failure. A checkpoint that runs out of space is given up: no file names what it wrote, the one
before stays CURRENT, and the log stays. It is tried again when there is space. A failed sync stops
the engine [10].
"""

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from penstock.counts import LONG_S, Histogram
from penstock.errors import CorruptionError, SyncFailedError, VersionError, is_shortage
from penstock.fast_crc import crc32
from penstock.message import Entry, QueuedMessage, seq_of
from penstock.storage.files.data_directory import sync_dir, write_small
from penstock.storage.files.filesystem import FileSystem, sync_closed
from penstock.storage.index.key_windows import KeyWindow
from penstock.storage.index.queue_index import (
    IndexSegment,
    QueueIndex,
    Section,
    SectionRow,
    unwritten,
)
from penstock.storage.journal.journal import Journal
from penstock.storage.log.record import NOT_KEPT
from penstock.storage.pages import streams
from penstock.storage.pages.staging import staged_files
from penstock.storage.pages.stream_meta import Position, ReaderOffset
from penstock.storage.pages.streams import StoredStream, StreamSection
from penstock.storage.store.message_store import MessageStore
from penstock.storage.store.store_file import FileState

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
WINDOW: Final = 9
KINDS_MAX: Final = WINDOW
IDLE: Final = "idle"
SLICES: Final = "slices"
SYNC: Final = "sync"
WRITE: Final = "write"
DELETING: Final = "deleting"
CHUNK: Final = 256  # entries written between two looks at the clock
ROW_BYTES: Final = 64  # counted for an entry of a section, beside its header


# ---- the file -----------------------------------------------------------------------------------

FILE: Final = struct.Struct(">4sHHQQI")
SECTION: Final = struct.Struct(">III")
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
class CheckpointHead:
    """The scalars of a checkpoint. The log is read from (log_segment, log_position) on; its first
    record is cut_lsn + 1. segment_slots is fixed for the directory."""

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
    """A checkpoint that was read. reaping: (queue, segment) -> bitmap of the purged slots whose
    references are not released yet."""

    number: int = 0
    is_clean: bool = True
    head: CheckpointHead = field(default_factory=CheckpointHead)
    topology: list[bytes] = field(default_factory=list)
    queues: dict[int, Section] = field(default_factory=dict)
    store: list[bytes] = field(default_factory=list)
    reaping: dict[tuple[int, int], bytearray] = field(default_factory=dict)
    streams: dict[int, StreamSection] = field(default_factory=dict)
    leases: list[bytes] = field(default_factory=list)
    batches: list[bytes] = field(default_factory=list)
    windows: list[bytes] = field(default_factory=list)


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


def encode_sections(
    head: CheckpointHead, topology: list[bytes], queues: list[bytes], store: list[bytes],
    reaping: dict[tuple[int, int], bytearray], streams: Iterable[tuple[int, StreamSection]],
    leases: list[bytes], batches: list[bytes], windows: list[bytes],
) -> list[tuple[int, bytes]]:  # fmt: skip
    """Return the sections (kind, data) of a checkpoint, in their order. queues: see
    `encode_queue`."""
    return [
        (HEAD, head.encode()),
        (TOPOLOGY, encode_topology(topology)),
        *((QUEUE, data) for data in queues),
        *((STORE, data) for data in store),
        (REAPING, encode_reaping(reaping)),
        *((STREAM, encode_stream(*stream)) for stream in streams),
        *((LEASE, data) for data in leases),
        *((BATCH, data) for data in batches),
        *((WINDOW, data) for data in windows),
    ]


def encode_file(
    vhost: int, number: int, sections: list[tuple[int, bytes]], *, is_clean: bool
) -> bytes:
    """Encode the whole file from its sections (kind, data), and add END."""
    header = FILE.pack(MAGIC, VERSION, CLEAN if is_clean else 0, vhost, number, 0)[:-4]
    parts = [header, _U32.pack(crc32(header))]
    for i, (kind, data) in enumerate([*sections, (END, _U32.pack(len(sections)))]):
        crc = crc32(data, section_seed(vhost, number, kind, i))
        parts += (SECTION.pack(kind, len(data), crc), data)
    return b"".join(parts)


def file_bytes(sections: list[tuple[int, bytes]]) -> int:
    """Return the size of the file that `encode_file` makes of these sections."""
    ends = FILE.size + SECTION.size + 4
    return ends + sum([SECTION.size + len(data) for _, data in sections])


def section_seed(vhost: int, number: int, kind: int, place: int) -> int:
    return crc32(struct.pack(">QQII", vhost, number, kind, place))


def write(fs: FileSystem, path: str, number: int, data: bytes) -> None:
    """Write and sync checkpoint-<number>, make it CURRENT, sync the directory [5].

    OSError: it is not CURRENT, and another may be tried. SyncFailedError: that is unknown [10]."""
    name = f"checkpoint-{number}"
    write_small(fs, f"{path}/{name}", data)
    sync_dir(fs, path)
    write_small(fs, path + "/CURRENT.new", f"{name} {crc32(name.encode()):08x}\n".encode())
    fs.rename(path + "/CURRENT.new", path + "/CURRENT")
    try:
        fs.sync_dir(path)
    except OSError as error:
        raise SyncFailedError(path, error) from error


def current(fs: FileSystem, path: str) -> int:
    """Return the number of the checkpoint that CURRENT names, 0 if there is no CURRENT."""
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
    """Read checkpoint-<number>. CorruptionError, VersionError."""
    at = f"{path}/checkpoint-{number}"
    if not fs.exists(at):
        raise CorruptionError(at, 0, "CURRENT names this checkpoint, and it is missing")
    data = fs.read(at)
    if len(data) < FILE.size:
        raise CorruptionError(at, len(data), "the checkpoint's header is cut off")
    magic, version, flags, found_vhost, found_number, crc = FILE.unpack_from(data)
    if crc32(data[: FILE.size - 4]) != crc or magic != MAGIC:
        raise CorruptionError(at, 0, "the checkpoint's header does not verify")
    if version != VERSION:
        raise VersionError(at, str(VERSION), str(version))
    if (found_vhost, found_number) != (vhost, number):
        raise CorruptionError(
            at, 0, f"it is checkpoint {found_number} of vhost {found_vhost:016x}, "
            f"expected {number} of {vhost:016x}"
        )  # fmt: skip
    manifest = Manifest(number, bool(flags & CLEAN))
    position = FILE.size
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
        position += SECTION.size + len(section)
        place += 1


def _read_section(
    path: str, data: bytes, position: int, vhost: int, number: int, place: int
) -> tuple[int, bytes]:
    if len(data) < position + SECTION.size:
        raise CorruptionError(path, len(data), "the checkpoint is cut off")
    kind, length, crc = SECTION.unpack_from(data, position)
    section = data[position + SECTION.size : position + SECTION.size + length]
    if len(section) != length or crc32(section, section_seed(vhost, number, kind, place)) != crc:
        raise CorruptionError(path, position, f"section {place} of the checkpoint does not verify")
    return kind, section


def apply_section(manifest: Manifest, kind: int, data: bytes) -> None:
    if kind == HEAD:
        manifest.head = CheckpointHead(*_HEAD.unpack(data))
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
    elif kind == WINDOW:
        manifest.windows.append(data)
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
        message = QueuedMessage(id, data[at : at + length], empty, size_, time, expiry, store)
        section.rows[seq] = SectionRow(message, body)
        at += length
    for _ in range(attempts):
        seq, n = _ATTEMPTS.unpack_from(data, at)
        section.attempts[seq] = n
        at += _ATTEMPTS.size
    return number, section


# ---- making one ---------------------------------------------------------------------------------


class Listing:
    """A queue that is being listed: its section, and the entries that may have to be written.

    pieces: entries in line, each piece descending, and each after the one before. others: seq ->
    entries beside those, see holder.py.
    """

    __slots__ = ("below", "is_small", "others", "pieces", "queue", "section")

    def __init__(self, queue: QueueIndex, section: Section, is_small: bool) -> None:
        self.queue: QueueIndex = queue
        self.section: Section = section
        self.is_small: bool = is_small
        self.below: int = queue.cut_seq
        self.pieces: list[list[Entry]] = []
        self.others: dict[int, Entry] = {}

    def add(self, piece: list[Entry]) -> None:
        """Add the next piece. Of a small queue only what is written is kept: it may have any number
        of transient entries."""
        if piece:
            self.below = piece[-1].seq
        some = unwritten(piece, self.queue.cut_seq) if self.is_small else piece
        if some:
            self.pieces.append(some)

    def add_unsettled(self) -> None:
        """Add the entries that are delivered now."""
        for entry in unwritten(self.queue.holder.unsettled(), self.queue.cut_seq):
            self.others[entry.seq] = entry

    def in_order(self) -> list[list[Entry]]:
        """Return all entries in pieces, descending, each once, with those that were in the section
        of the checkpoint before, and their bodies. Changes only pieces that reach down to the last
        of these: as a rule the oldest one."""
        others, rows, pieces = self.others, self.section.rows, self.pieces
        last = max(max(others, default=-1), max(rows, default=-1))
        some = {seq: Entry(seq, row.message) for seq, row in rows.items()}
        while pieces and pieces[-1][-1].seq <= last:
            some.update([(entry.seq, entry) for entry in pieces.pop() if not entry.on_slot])
        some.update(others)
        for seq, row in rows.items():
            message = some[seq].message
            if message.body is None:
                message.body = row.message.body
        if some:
            pieces.append(sorted(some.values(), key=seq_of, reverse=True))
        return pieces


@dataclass(slots=True, eq=False)
class Writing:
    """A queue whose entries are being written to slots, with those that are left, in pieces, the
    next one last. They are written and released in chunks, because they may be many, and the queue
    may have acknowledged them."""

    queue: QueueIndex
    pieces: list[list[Entry]]


@dataclass(slots=True, eq=False)
class Small:
    """A small queue of the checkpoint in progress: its section, and its new rows."""

    queue: QueueIndex
    section: Section
    fresh: list[tuple[int, SectionRow]]


class Checkpointer:
    """One per engine. phase: IDLE, or that of the checkpoint in progress.

    number: of the checkpoint that is CURRENT. bytes: of its file. count: checkpoints made. seconds:
    from the cut of each to its end. made_s: monotonic time when the last one became CURRENT.
    written_bytes: to .qi and .qs files, by all of them. dead_staged: staged pages that the one in
    progress deletes. on_given_up(error): called when one was given up because the disk was full.
    """

    def __init__(self, journal: Journal, transient: MessageStore, number: int) -> None:
        self._journal = journal
        self._transient = transient
        self.on_given_up: Callable[[OSError], None] = _ignore
        self.written_bytes: int = 0
        self.number: int = number
        self.bytes: int = 0
        self.count: int = 0
        self.seconds: Histogram = Histogram(LONG_S)
        self.made_s: float = journal.clock.monotonic()
        self._begun_s: float = 0.0
        self.phase: str = IDLE
        self._is_clean = False
        self._is_whole = False
        self._reset()

    def _reset(self) -> None:
        self._head = CheckpointHead()
        self._queues: list[QueueIndex] = []
        self._small: list[Small] = []
        self._small_bytes = 0
        self._listing: Listing | None = None
        self._writing: Writing | None = None
        self._sections: list[bytes] = []  # encoded QUEUE sections
        self._leaving: list[tuple[int, int]] = []  # (store file, id): bodies of rows that got slots
        self._capturing: Iterator[None] | None = None  # of the topology, until it is done
        self._states: list[FileState] | None = None  # of the store, once it is captured
        self._store: list[bytes] | None = None  # the same, encoded: small queues' bodies are stored
        self._encoded: list[tuple[int, bytes]] = []
        self._reaping: dict[tuple[int, int], bytearray] = {}
        self._dead: list[tuple[int, int]] = []
        self._dead_files: list[str] = []
        self._deleted: list[QueueIndex] = []
        self._streams: list[tuple[int, StreamSection]] = []
        self._leases: list[bytes] = []
        self._batches: list[bytes] = []
        self._windows: list[tuple[KeyWindow, int]] = []
        self.dead_staged: list[tuple[str, str]] = []
        self._deleted_streams: list[StoredStream] = []
        self._data_is_synced = False

    # ---- the cut -------------------------------------------------------------------------------

    def begin(self, *, is_clean: bool = False, is_whole: bool = False) -> None:
        """Make the cut. The caller makes sure that no checkpoint and no large commit is running.
        is_whole: for a backup; messages that are dequeued meanwhile are written too."""
        assert self.phase == IDLE
        journal = self._journal
        state, store = journal.state, journal.state.store
        segment, position, lsn = journal.log.position()
        self._reset()
        self._begun_s = journal.clock.monotonic()
        self._is_clean = is_clean
        self._is_whole = is_whole
        ticks = state.ticks
        ticks.epoch += 1
        store.cut(ticks.epoch)
        self._head = CheckpointHead(
            lsn, segment, position, state.factory.start, state.next_queue, state.slots,
            store.next_file, store.next_own_file,
        )  # fmt: skip
        self._capturing = state.routing.capture_in_slices()
        self._queues = [q for q in state.queues.values() if q.is_durable]
        self._queues.sort(key=lambda q: q.changed)  # popped from the end: see _is_small
        # As of the cut: this checkpoint names a segment that dies later [6].
        self._dead = [key for key in ticks.dead if not state.names_segment(*key)]
        ticks.dead = []
        self._dead_files = store.take_dead()
        self._deleted, state.deleted = state.deleted, []
        self._streams = state.streams.capture()
        self._leases = state.leases.capture()
        self._batches = state.batches.capture()
        self._windows = state.windows.capture()
        self.dead_staged, state.batches.dead = state.batches.dead, []
        self._deleted_streams, state.streams.deleted = state.streams.deleted, []
        self._reaping = dict(state.reaping)
        self.phase = SLICES

    # ---- slices --------------------------------------------------------------------------------

    def step(self, until: float) -> None:
        """Make slices until this monotonic time (seconds), one chunk at the least. OSError of a
        write: the caller gives the checkpoint up."""
        assert self.phase == SLICES
        clock = self._journal.clock
        while True:
            if self._writing is not None:
                self._write_chunk(self._writing)
            elif self._listing is not None:
                self._list(self._listing)
            elif self._capturing is not None:
                self._capture_topology(self._capturing)
            elif self._queues:
                self._begin_slice(self._queues.pop())
            elif self._store is None:
                self._store = self._store_bodies()
            elif self._small:
                self._encode_small()
            else:
                self._finish_slices(self._store)
                return
            if clock.monotonic() >= until:
                return

    def _capture_topology(self, left: Iterator[None]) -> None:
        for _ in left:
            return
        self._capturing = None

    def _begin_slice(self, queue: QueueIndex) -> None:
        """Begin to list what was alive at the cut."""
        section = queue.capture()
        listing = Listing(queue, section, self._is_small(section))
        if section.count:
            self._listing = listing
            listing.add_unsettled()
            self._list(listing)
        else:
            self._slice(listing)

    def _list(self, listing: Listing) -> None:
        """List the next piece; after the last one, begin to write."""
        queue, n = listing.queue, self._journal.options.slice_entries
        piece = queue.holder.candidates(listing.below, n)
        listing.add(piece)
        if len(piece) < n:
            self._listing = None
            listing.add_unsettled()
            self._slice(listing)

    def _slice(self, listing: Listing) -> None:
        """Decide what the queue's section will be. All entries are taken from its holder and its
        departed entries here, so no later change of the queue concerns this checkpoint."""
        queue, section, others = listing.queue, listing.section, listing.others
        durable = self._journal.log.durable_lsn
        for x in queue.departed or ():
            if self._is_whole or x.is_purged or x.lsn > durable:
                others[x.entry.seq] = x.entry
        if listing.is_small or not self._load_bodies(queue, section):
            for piece in listing.pieces:
                others.update([(e.seq, e) for e in unwritten(piece, queue.cut_seq)])
            seqs = [seq for seq in sorted(others) if seq not in section.rows]
            fresh = [(seq, SectionRow(others[seq].message, 0)) for seq in seqs]
            if fresh:
                self._small.append(Small(queue, section, fresh))
            else:
                self._sections.append(self._encoded_queue(queue, section))
            rows = [*section.rows.values(), *(row for _, row in fresh)]
            self._small_bytes += sum(ROW_BYTES + len(row.message.header) for row in rows)
        else:
            self._leaving += [(r.body_file, r.message.id) for r in section.rows.values()]
            pieces = listing.in_order()
            if pieces:
                self._writing = Writing(queue, pieces)
            rows_before, section.rows = section.rows, {}
            self._sections.append(self._encoded_queue(queue, section))
            section.rows = rows_before
        queue.sliced()

    def _is_small(self, section: Section) -> bool:
        """Return whether it has few entries and few bytes, and all small sections together are
        below their limit. Queues come latest changed first, so those over the limit are the longest
        unchanged."""
        options = self._journal.options
        return (
            section.count < options.small_queue_entries
            and section.bytes < options.small_queue_bytes
            and self._small_bytes < options.small_queues_bytes_max
        )

    def _load_bodies(self, queue: QueueIndex, section: Section) -> bool:
        """Read bodies that belong into .qs and are only in the store, because their queue was
        small. False if one is damaged or cannot be read: the queue stays in its section, and a
        reader of that message gets the error."""
        messages = [row.message for row in section.rows.values()]
        for m, row in zip(messages, section.rows.values(), strict=True):
            if m.body is None and not m.store_file:
                try:
                    m.body = self._journal.state.store.read(row.body_file, m.id)
                except (CorruptionError, OSError) as error:
                    kind = "corruption" if isinstance(error, CorruptionError) else "warning"
                    self._journal.event(kind, f"queue {queue.number}: {error}")
                    return False
        return True

    def _write_chunk(self, writing: Writing) -> None:
        """Write the next entries to their slots, except those that paging wrote meanwhile."""
        queue, piece = writing.queue, writing.pieces[-1]
        chunk = piece[-CHUNK:]
        chunk.reverse()
        fresh = unwritten(chunk, queue.cut_seq)
        if fresh:  # may fail for lack of space, and is tried again when there is some
            self.written_bytes += queue.write(fresh)
        del piece[-len(chunk) :]
        if not piece:
            writing.pieces.pop()
            if not writing.pieces:
                self._writing = None
        for entry in fresh:
            entry.on_slot = True
        queue.holder.materialised(fresh)
        for entry in chunk:
            row = queue.section.pop(entry.seq, None)
            if row is not None and row.body_file:
                self._journal.state.store.unref(row.body_file, row.message.id)

    def _encoded_queue(self, queue: QueueIndex, section: Section) -> bytes:
        return encode_queue(queue.number, section, self._journal.state.slots)

    def _store_bodies(self) -> list[bytes]:
        """Write the bodies of small queues into one store file; return the store's sections."""
        state = self._journal.state
        store = state.store
        state.streams.write()  # at least up to the captured positions
        if self._states is None:  # what may fail comes first: this may be called again
            self._states = self._store_states()
        bodies: dict[int, tuple[bytes, int]] = {}
        with_body: list[SectionRow] = []
        for small in self._small:
            for _, row in small.fresh:
                m = row.message
                if m.size and not m.store_file:
                    assert m.body is not None, "an entry that is only in RAM has its body"
                    bodies[m.id] = (m.body, bodies.get(m.id, (b"", 0))[1] + 1)
                    with_body.append(row)
        if bodies:
            file = store.write_sealed([(id, body, n) for id, (body, n) in sorted(bodies.items())])
            self._states.append(store.state_of(file))
            for row in with_body:
                row.body_file = file
        encoded = [s.encode() for s in self._states]
        for small in self._small:
            for seq, row in small.fresh:
                if small.queue.is_live(seq):
                    small.queue.section[seq] = row
                elif row.body_file:
                    store.unref(row.body_file, row.message.id)
        return encoded

    def _encode_small(self) -> None:
        """Encode the sections of some of the small queues."""
        for small in self._small[-CHUNK:]:
            small.section.rows.update(small.fresh)
            self._sections.append(self._encoded_queue(small.queue, small.section))
        del self._small[-CHUNK:]

    def _finish_slices(self, store: list[bytes]) -> None:
        self._encoded = encode_sections(
            self._head, self._journal.state.routing.capture(), self._sections, store, self._reaping,
            self._streams, self._leases, self._batches,
            [window.encode(added) for window, added in self._windows],
        )  # fmt: skip
        self._start_sync()

    def _store_states(self) -> list[FileState]:
        """Return the store's state as of the cut, without the references of rows that got slots."""
        states = self._journal.state.store.capture()
        for number, id in self._leaving:
            if number:
                next(s for s in states if s.answers_for(number)).unref(id)
        return states

    # ---- sync, write, clean --------------------------------------------------------------------

    def _start_sync(self) -> None:
        journal = self._journal
        ticks = journal.state.ticks
        files, ticks.dirty = list(ticks.dirty.values()), {}
        names, ticks.dirty_names = ticks.dirty_names, []
        directories, ticks.dirty_directories = list(ticks.dirty_directories), {}
        pages, page_directories = journal.state.streams.take_dirty()
        if self._is_clean:  # a reader by path must find all of it
            pages += [f"{s.path}/writeMeta" for s in journal.state.streams.by_number.values()]
        names, directories = names + pages, directories + page_directories
        for file in files:
            file.is_syncing = True
        sync_store = journal.state.store.take_unsynced()

        def op() -> object:
            for file in files:
                file.sync()
            for name in names:
                sync_closed(journal.fs, name)
            for directory in directories:
                journal.fs.sync_dir(directory)
            return sync_store()

        def done(result: object) -> None:
            for file in files:
                file.is_dirty = file.path in ticks.dirty
                file.is_syncing = False
            journal.state.store.synced(result)
            self._data_is_synced = True
            self.advance()

        self.phase = SYNC
        journal.submit(op, done, self._failed_sync)
        journal.request_sync()

    def _failed_sync(self, error: BaseException) -> None:
        self._journal.stop(error)

    def advance(self) -> None:
        """Write the checkpoint once data and log are durable [4] [5]. Called at each completion."""
        journal = self._journal
        if self.phase != SYNC or not self._data_is_synced or journal.failed is not None:
            return
        if journal.log.durable_lsn < self._head.cut_lsn:
            journal.request_sync()
            return
        number = self.number + 1
        encoded, self._encoded = self._encoded, []
        self.bytes = file_bytes(encoded)
        vhost, is_clean = journal.state.vhost, self._is_clean
        self.phase = WRITE

        def op() -> object:
            data = encode_file(vhost, number, encoded, is_clean=is_clean)
            write(journal.fs, journal.path, number, data)
            return None

        journal.submit(op, lambda _: self._written(number), self._failed_write)

    def _failed_write(self, error: BaseException) -> None:
        if isinstance(error, OSError) and is_shortage(error):
            self.give_up(error)
        else:
            self._journal.stop(error)

    def give_up(self, error: OSError) -> None:
        """Drop this checkpoint. The next one deletes what it would have deleted."""
        state = self._journal.state
        state.ticks.dead += self._dead
        state.deleted += self._deleted
        state.streams.deleted += self._deleted_streams
        state.batches.dead += self.dead_staged
        state.store.put_back_dead(self._dead_files)
        for queue in [*state.queues.values(), *state.dying.values(), *state.deleted]:
            queue.sliced()
        self._end()
        self.on_given_up(error)

    def _written(self, number: int) -> None:
        """Delete what no checkpoint names any more, now that this one is CURRENT [6]."""
        journal = self._journal
        if journal.failed is not None:
            return  # the next start may use either one; nothing is changed any more [10]
        state = journal.state
        old, self.number = self.number, number
        self.count += 1
        self.made_s = journal.clock.monotonic()
        self.seconds.record(self.made_s - self._begun_s)
        paths = [f"{journal.path}/checkpoint-{old}"] if old else []
        for queue_number, segment in self._dead:
            key = (queue_number, segment)
            queue = state.index_of(queue_number)
            if key in state.reaping or key in self._reaping or queue is None:
                continue
            if segment not in queue.segments and segment not in queue.transients:
                queue.forget_files(segment)
                paths += [f"{queue.path}/{segment}.qi", f"{queue.path}/{segment}.qs"]
        paths += self._dead_files
        paths += staged_files(journal.path, self.dead_staged)
        self._transient.cut(state.ticks.epoch)  # no checkpoint names its files
        paths += self._transient.take_dead()
        self._transient.capture()
        trees = [queue.path for queue in self._deleted]
        for queue in self._deleted:
            queue.close()
        trees += [stream.path for stream in self._deleted_streams]
        for stream in self._deleted_streams:
            streams.close(stream)
        state.streams.checkpointed(self._streams)
        if journal.pins.count:
            journal.pins.paths += paths
            journal.pins.trees += trees
            paths, trees = [], []
        else:
            journal.log.release_before(self._head.log_segment)
        self.phase = DELETING
        journal.delete_files(paths, trees, self._end)

    def _end(self) -> None:
        self._reset()
        self.phase = IDLE


def _ignore(_: OSError) -> None:
    pass
