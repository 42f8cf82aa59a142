"""Files of a MessageStore: their formats on disk, in RAM and in a checkpoint; writing and scanning.

RabbitMQ's message store appends the bodies of all queues to shared files and keeps an index row in
RAM for each body, which makes a long backlog expensive. Here, as in Bitcask, a full file is
*sealed*: its table (id -> place) is written beside it as a hint and leaves RAM.

On disk (big-endian)::

    <n>.rdq   magic "PRDQ" 4 | version 2 | flags 2 | vhost 8 | number 4 | lo 4 | hi 4 | crc 4
              record: length of body 4 | id 8 | crc 4 | body          ... back to back, no padding

    <n>.hint  magic "PHNT" 4 | version 2 | flags 2 | vhost 8 | number 4 | lo 4 | hi 4 |
              count 4 | total bytes 8 | crc 4
              block: up to 256 x (id 8 | offset 4 | size of body 4), ascending by id | crc 4   ...
              ids: first id 8 of each block | crc 4

``lo..hi`` are the file numbers that the file answers for: n..n; for a combined file, those of the
files that it replaces, and its own number is higher.

Checksums are CRC-32 and seeded. The seed of a record is vhost, length and id, not the file, because
combining moves records; the header shows a file that is in the place of another. The seed of a
hint's block is vhost, file number and number of the block.

In a checkpoint. Reference counts come from checkpoint and log alone [1], so a checkpoint holds all
of them as of its cut. To hold those of ten million bodies, a *state* is one bit for each body in
the order of the sealed table, which never changes, and counts only where a body is shared. The
checkpoint's own checksum covers it::

    kind 1 | flags 1 | number 4 | lo 4 | hi 4 | count 4 | total bytes 8 | valid bytes 8 | live 4
    kind 1, sealed      [bitmap (count + 7) / 8, unless ALL]            bit i: entry i of the table
    kind 2, unsealed    live x id 8                                     its table is not final
    then                [DENSE: count x extra 1]  [SPARSE: n 4, n x (entry 4 | extra 4)]

    kind 3, own files   kind 1 | flags 1 | next number 4 | base 4 | bitmap bytes 4 | live 4 |
                        live bytes 8 | n 4 | bitmap | n x (number 4 | references 4)

flags: ALL 1 (every entry is alive), DENSE 2, SPARSE 4. *extra* is references - 1. In the dense form
255 refers to the sparse list, which then holds only these entries. An unsealed state lists only its
live ids, and its count is theirs.

Measures: *total bytes* are all records of the file with their headers, without the file's header;
*valid bytes* are those of live bodies.

Scans. The table comes from the records themselves for the file that was written when the process
ended, for files made after the checkpoint's cut, and for a missing or damaged hint. A record has no
marker; its checksum identifies it, and each record's length leads to the next. Up to
``durable_end`` (what a checkpoint counted and therefore synced) every byte was right once. A record
there that does not verify is *damage*. It keeps an entry in the table, under the id that it claims
if that fits between its neighbours, so that the places of all others stay the same; reading it
fails its checksum. If even its length is damaged, the scan searches byte by byte for the next
record that verifies. After ``durable_end`` the first bad record is a torn tail and ends the scan;
recovery decides by the log about bodies that are named there [11].

Invariants: a record is written before anything names it. A sealed file and its hint never change.
*total bytes* ends at a record's end. A hint can be made again from its file, entry by entry the
same. Entries of one file have different ids.

Failure: a failed write raises its OSError; the next write goes to the same place. A hint appears by
rename, so only a hint that was not synced can be torn. Bytes that are not a state are a ValueError;
the checkpoint's reader adds path and position. A count below zero is a StorageError, because log
and checkpoint disagree, and freeing a body too often is worse than stopping.
"""

import struct
from array import array
from bisect import bisect_left
from collections.abc import Callable
from typing import Final

from penstock.errors import CorruptionError, NotAStoreError, StorageError, VersionError
from penstock.fast_crc import crc32
from penstock.native import mypyc_attr
from penstock.storage.files.filesystem import File, FileSystem
from penstock.storage.store.store_sync import Unsynced, UnsyncedFile

OWN_FILE: Final = 0x80000000
"""Bit 31 of a file number: the file holds one body; the other bits are its number."""

RECORD_BYTES: Final = 16
"""Bytes of a record in an append file before its body."""

KIND_SEALED: Final = 1
KIND_UNSEALED: Final = 2
KIND_OWN: Final = 3

FLAG_ALL: Final = 1
FLAG_DENSE: Final = 2
FLAG_SPARSE: Final = 4

EXTRA_MANY: Final = 255  # this extra and above stand in BodyCounts.many
SPARSE_BYTES: Final = 8

_STATE: Final = struct.Struct(">BBIIIIQQI")
_OWN: Final = struct.Struct(">BBIIIIQI")
_PAIR: Final = struct.Struct(">II")
_U32: Final = struct.Struct(">I")


@mypyc_attr(acyclic=True)
class BodyCounts:
    """References of the bodies of one file, by the place of their entries in its table."""

    __slots__ = ("count", "extra", "live", "live_count", "many", "valid_bytes")

    def __init__(self) -> None:
        self.count: int = 0  # entries, alive or not
        self.live_count: int = 0  # entries with a reference
        self.valid_bytes: int = 0  # of their records
        self.live: bytearray = bytearray()  # bit i & 7 of byte i >> 3: entry i has a reference
        self.extra: bytearray | None = None  # references - 1 of each entry, once one is shared
        self.many: dict[int, int] | None = None  # extras of EXTRA_MANY and more

    def refs(self, i: int) -> int:
        """Return the references of entry ``i``, 0 if it is dead."""
        if not self.live[i >> 3] & (1 << (i & 7)):
            return 0
        extra = self.extra
        if extra is None:
            return 1
        n = extra[i]
        if n == EXTRA_MANY and self.many is not None:
            n = self.many[i]
        return n + 1

    def grow(self) -> int:
        """Add an entry without references. Return its place."""
        i = self.count
        self.count = i + 1
        if not i & 7:
            self.live.append(0)
        if self.extra is not None:
            self.extra.append(0)
        return i

    def ref(self, i: int, record_bytes: int, n: int) -> None:
        """Add ``n`` references, n >= 1."""
        had = self.refs(i)
        if not had:
            self.live[i >> 3] |= 1 << (i & 7)
            self.live_count += 1
            self.valid_bytes += record_bytes
        if had + n > 1:
            self._set_extra(i, had + n - 1)

    def unref(self, i: int, record_bytes: int, n: int) -> bool:
        """Remove ``n`` references, n >= 1. Return True if none is left. Raises StorageError."""
        left = self.refs(i) - n
        if left < 0:
            raise StorageError(
                f"entry {i}: {n} references dropped, it had {left + n}; counts and log disagree"
            )
        if self.extra is not None:
            self._set_extra(i, left - 1 if left else 0)
        if left:
            return False
        self.live[i >> 3] &= ~(1 << (i & 7)) & 0xFF
        self.live_count -= 1
        self.valid_bytes -= record_bytes
        return True

    def copy(self) -> "BodyCounts":
        other = BodyCounts()
        other.count = self.count
        other.live_count = self.live_count
        other.valid_bytes = self.valid_bytes
        other.live = bytearray(self.live)
        if self.extra is not None:
            other.extra = bytearray(self.extra)
        if self.many is not None:
            other.many = dict(self.many)
        return other

    def set_size(self, count: int) -> None:
        """Make it ``count`` entries, all dead."""
        self.count = count
        self.live_count = 0
        self.valid_bytes = 0
        self.live = bytearray((count + 7) >> 3)
        self.extra = None
        self.many = None

    def permuted(self, order: "array[int]") -> "BodyCounts":
        """Return the same counts with entry order[i] at place i."""
        other = BodyCounts()
        other.set_size(self.count)
        for i in range(self.count):
            n = self.refs(order[i])
            if n:
                other.live[i >> 3] |= 1 << (i & 7)
                if n > 1:
                    other._set_extra(i, n - 1)
        other.live_count = self.live_count
        other.valid_bytes = self.valid_bytes
        return other

    def _set_extra(self, i: int, n: int) -> None:
        extra = self.extra
        if extra is None:
            if not n:
                return
            extra = bytearray(self.count)
            self.extra = extra
        many = self.many
        if n >= EXTRA_MANY:
            if many is None:
                many = {}
                self.many = many
            many[i] = n
            extra[i] = EXTRA_MANY
            return
        if many is not None and extra[i] == EXTRA_MANY:
            del many[i]
        extra[i] = n


class OwnState:
    """The files of one body each, as of a cut. Bit i of the bitmap is number ``base`` + i."""

    def __init__(self) -> None:
        self.next_number: int = 0
        self.base: int = 0  # a multiple of 8; all numbers below it are dead
        self.live: bytearray = bytearray()
        self.live_count: int = 0
        self.live_bytes: int = 0  # of their bodies
        self.shared: dict[int, int] = {}  # number -> references, where there are two or more

    def refs(self, number: int) -> int:
        """Return the references of the body in own file ``number``, 0 if it is dead."""
        i = number - self.base
        if i < 0 or i >> 3 >= len(self.live) or not self.live[i >> 3] & (1 << (i & 7)):
            return 0
        return self.shared.get(number, 1)

    def set_refs(self, number: int, n: int, body_bytes: int) -> None:
        """Set the references to ``n``; ``number`` must not be below ``base``."""
        i = number - self.base
        assert i >= 0, "a number below the base is dead for good"
        had = self.refs(number)
        if n and i >> 3 >= len(self.live):
            self.live.extend(bytes((i >> 3) + 1 - len(self.live)))
        if n > 1:
            self.shared[number] = n
        elif had > 1:
            del self.shared[number]
        if n and not had:
            self.live[i >> 3] |= 1 << (i & 7)
            self.live_count += 1
            self.live_bytes += body_bytes
        elif had and not n:
            self.live[i >> 3] &= ~(1 << (i & 7)) & 0xFF
            self.live_count -= 1
            self.live_bytes = max(self.live_bytes - body_bytes, 0)

    def trim(self, floor: int) -> None:
        """Remove the bits of dead numbers below ``floor``, the lowest that may come alive."""
        dead = 0
        while dead < len(self.live) and not self.live[dead] and self.base + 8 * dead + 8 <= floor:
            dead += 1
        if dead:
            del self.live[:dead]
            self.base += 8 * dead

    def numbers(self) -> list[int]:
        """Return the numbers with a reference, ascending."""
        found: list[int] = []
        for at in range(len(self.live)):
            byte = self.live[at]
            if byte:
                first = self.base + 8 * at
                found += [first + bit for bit in range(8) if byte & (1 << bit)]
        return found

    def copy(self) -> "OwnState":
        other = OwnState()
        other.next_number = self.next_number
        other.base = self.base
        other.live = bytearray(self.live)
        other.live_count = self.live_count
        other.live_bytes = self.live_bytes
        other.shared = dict(self.shared)
        return other

    def encode(self) -> bytes:
        """Return the state as bytes, in the format at the head of this module."""
        head = _OWN.pack(
            KIND_OWN, 0, self.next_number, self.base, len(self.live), self.live_count,
            self.live_bytes, len(self.shared),
        )  # fmt: skip
        pairs = [_PAIR.pack(number, n) for number, n in self.shared.items()]
        return b"".join([head, bytes(self.live), *pairs])


class FileState:
    """One append file as of a cut; or, if ``own`` is set, all files of one body each."""

    def __init__(self, number: int, lo: int, hi: int) -> None:
        self.number: int = number
        self.lo: int = lo
        self.hi: int = hi
        self.is_sealed: bool = True
        self.total_bytes: int = 0
        self.counts: BodyCounts = BodyCounts()
        self.ids: array[int] | None = None  # of each entry, if not sealed
        self.own: OwnState | None = None
        # The store sets it: id -> (place in the file's present table, position, bytes of body).
        self.find: Callable[[int], tuple[int, int, int]] | None = None

    def answers_for(self, file: int) -> bool:
        """Return whether an address with file number ``file`` means this file."""
        if self.own is not None:
            return file & OWN_FILE != 0
        return self.lo <= file <= self.hi

    def refs(self, id: int) -> int:
        """Return the references of body ``id`` in this state. Not for own files."""
        place, _ = self._place(id)
        return self.counts.refs(place)

    def unref(self, id: int, n: int = 1) -> bool:
        """Remove ``n`` references in this state, for a checkpoint that changes the state it writes.
        The store's own count stays. Not for own files. Return True if none is left."""
        place, record_bytes = self._place(id)
        return self.counts.unref(place, record_bytes, n)

    def _place(self, id: int) -> tuple[int, int]:
        """Return (place in this state's table, bytes of the record)."""
        find = self.find
        assert find is not None, "a decoded state has no table"
        place, _, size = find(id)
        if place >= 0 and self.ids is not None:
            # The file was not sealed at the cut; its table may have another order now.
            place = self.ids.index(id) if id in self.ids else -1
        if place < 0:
            raise StorageError(f"store file {self.number}: it has no body {id}")
        return place, RECORD_BYTES + size

    @staticmethod
    def decode(data: bytes) -> "FileState":
        """Return the state that ``encode`` wrote. Raises ValueError."""
        if data[:1] == bytes([KIND_OWN]):
            state = FileState(OWN_FILE, OWN_FILE, 0xFFFFFFFF)
            state.own = _decode_own(data)
            return state
        return _decode_file(data)

    def encode(self) -> bytes:
        """Return the state as bytes, in the format at the head of this module."""
        own = self.own
        if own is not None:
            return own.encode()
        ids = self.ids
        if self.is_sealed or ids is None:
            return self._encode(KIND_SEALED, self.counts, b"")
        counts = self.counts
        live: array[int] = array("Q")
        packed = BodyCounts()
        for i in range(counts.count):
            n = counts.refs(i)
            if n:
                live.append(ids[i])
                packed.ref(packed.grow(), 0, n)
        packed.valid_bytes = counts.valid_bytes
        return self._encode(KIND_UNSEALED, packed, struct.pack(f">{len(live)}Q", *live))

    def _encode(self, kind: int, counts: BodyCounts, ids: bytes) -> bytes:
        flags = FLAG_ALL if counts.live_count == counts.count else 0
        parts = [b"", ids]
        if not flags:
            parts.append(bytes(counts.live))
        extra = counts.extra
        if extra is not None:
            shared = counts.count - extra.count(0)
            sparse: dict[int, int] = counts.many or {}
            if shared * SPARSE_BYTES < counts.count:
                sparse = {i: counts.refs(i) - 1 for i in range(counts.count) if extra[i]}
            else:
                flags |= FLAG_DENSE
                parts.append(bytes(extra))
            if sparse:
                flags |= FLAG_SPARSE
                parts.append(_U32.pack(len(sparse)))
                parts += [_PAIR.pack(i, n) for i, n in sparse.items()]
        parts[0] = _STATE.pack(
            kind, flags, self.number, self.lo, self.hi, counts.count,
            self.total_bytes, counts.valid_bytes, counts.live_count,
        )  # fmt: skip
        return b"".join(parts)


def _decode_file(data: bytes) -> FileState:
    if len(data) < _STATE.size or data[0] not in (KIND_SEALED, KIND_UNSEALED):
        raise ValueError(f"not a file state: {len(data)} bytes, the first is {data[:1]!r}")
    kind, flags, number, lo, hi, count, total, valid, live_count = _STATE.unpack_from(data)
    state = FileState(number, lo, hi)
    state.total_bytes = total
    counts = state.counts
    counts.set_size(count)
    counts.live_count = live_count
    counts.valid_bytes = valid
    at = _STATE.size
    if kind == KIND_UNSEALED:
        state.is_sealed = False
        ids: array[int] = array("Q", struct.unpack(f">{count}Q", _take(data, at, 8 * count)))
        state.ids = ids
        at += 8 * count
    if flags & FLAG_ALL:
        counts.live = bytearray(b"\xff" * (count >> 3))
        if count & 7:
            counts.live.append((1 << (count & 7)) - 1)
    else:
        counts.live = bytearray(_take(data, at, (count + 7) >> 3))
        at += (count + 7) >> 3
    at = _decode_extras(data, at, flags, counts)
    alive = int.from_bytes(counts.live, "big").bit_count()
    if at != len(data) or alive != live_count or not lo <= hi:
        raise ValueError(
            f"state of store file {number}: expected {live_count} live bodies, found {alive}; "
            f"files {lo}..{hi}, {at} of {len(data)} bytes"
        )
    return state


def _decode_extras(data: bytes, at: int, flags: int, counts: BodyCounts) -> int:
    """Read the DENSE and SPARSE parts. Return the position after them."""
    if flags & FLAG_DENSE:
        counts.extra = bytearray(_take(data, at, counts.count))
        at += counts.count
    if flags & FLAG_SPARSE:
        (pairs,) = _U32.unpack(_take(data, at, 4))
        at += 4
        for start in range(at, at + 8 * pairs, 8):
            i, n = _PAIR.unpack(_take(data, start, 8))
            if i >= counts.count:
                raise ValueError(f"extra of entry {i}, but the file has {counts.count} entries")
            if n >= EXTRA_MANY and counts.many is None:
                counts.many = {}
            counts._set_extra(i, n)
        at += 8 * pairs
    return at


def _decode_own(data: bytes) -> OwnState:
    if len(data) < _OWN.size or data[0] != KIND_OWN:
        raise ValueError(f"not a state of own files: {len(data)} bytes, the first is {data[:1]!r}")
    state = OwnState()
    _, _, state.next_number, state.base, length, state.live_count, state.live_bytes, pairs = (
        _OWN.unpack_from(data)
    )
    state.live = bytearray(_take(data, _OWN.size, length))
    at = _OWN.size + length
    for start in range(at, at + 8 * pairs, 8):
        number, n = _PAIR.unpack(_take(data, start, 8))
        state.shared[number] = n
    alive = int.from_bytes(state.live, "big").bit_count()
    if at + 8 * pairs != len(data) or alive != state.live_count or state.base & 7:
        raise ValueError(
            f"state of own files: expected {state.live_count} live bodies, found {alive}"
        )
    return state


def _take(data: bytes, at: int, length: int) -> bytes:
    piece = data[at : at + length]
    if len(piece) != length:
        raise ValueError(f"cut off: expected {at + length} bytes, found {len(data)}")
    return piece


class StoredBody:
    """One body that is read in pieces, so that a body of many MiB need not be in RAM while it is
    sent.

    The open file keeps the bytes: the message may be acknowledged, purged or moved and its file
    combined or deleted before the reader closes it. Files of a store never change once they are
    written. The checksum covers the whole body, so ``read`` compares it before it returns the last
    bytes: nobody gets a whole body that is damaged. A body that cannot be read is noted in
    ``faults``, so that the store refuses to open it again.

    size: bytes, from position ``start`` on. crc: the seed of the checksum; suffix: bytes that it
    covers after the body; expected: its value. left: bytes that were not read yet.
    """

    def __init__(
        self, file: File, id: int, start: int, size: int, *, crc: int, suffix: bytes, expected: int
    ) -> None:
        self.size: int = size
        self.left: int = size
        self.faults: dict[int, str] = {}  # id -> what and where; replaced by the store's own dict
        self._file: File | None = file
        self._id: int = id
        self.start: int = start
        self._crc: int = crc
        self._suffix: bytes = suffix
        self._expected: int = expected

    def read(self, length: int) -> bytes:
        """Return the next bytes, at most `length`; b"" when all were read. Raises CorruptionError
        if the body is cut off or its checksum does not match, OSError; then the body is lost."""
        length = min(length, self.left)
        if not length:
            return b""
        try:
            data = self._read(length)
        except (CorruptionError, OSError) as error:
            self.faults[self._id] = str(error)
            raise
        self.left -= length
        return data

    def _read(self, length: int) -> bytes:
        file = self._file
        assert file is not None, "it is open"
        at = self.start + self.size - self.left
        data = file.pread(length, at)
        if len(data) != length:
            what = f"body {self._id} of {self.size} bytes is cut off"
            raise CorruptionError(file.path, at + len(data), what)
        self._crc = crc32(data, self._crc)
        if length == self.left and crc32(self._suffix, self._crc) != self._expected:
            what = f"the checksum of body {self._id} does not match"
            raise CorruptionError(file.path, self.start, what)
        return data

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        file, self._file = self._file, None
        if file is not None:
            file.close()


class StoreRecord:
    """Where one body is in an append file, for a reader in another thread (`read_records`).

    header: of the file, as it must be. seed: of the vhost's checksums.
    """

    __slots__ = ("header", "id", "offset", "path", "seed", "size")

    def __init__(
        self, path: str, header: bytes, offset: int, id: int, size: int, seed: int
    ) -> None:
        self.path: str = path
        self.header: bytes = header
        self.offset: int = offset
        self.id: int = id
        self.size: int = size
        self.seed: int = seed

    def end(self) -> int:
        """Return the position after the record."""
        return self.offset + RECORD_BYTES + self.size


def read_records(fs: FileSystem, records: list[StoreRecord]) -> list[bytes | None]:
    """Return the bodies of these records, in their order, each verified; None for one that is not
    there or does not verify. Records that follow one another in a file are read at once. Raises
    OSError."""
    bodies: list[bytes | None] = []
    n = len(records)
    at = 0
    while at < n:
        first = records[at]
        end = first.end()
        stop = at + 1
        while stop < n and records[stop].path == first.path:
            if not end <= records[stop].offset <= end + GAP_BYTES:
                break
            end = records[stop].end()
            stop += 1
        data = _read_range(fs, first, end)
        while at < stop:
            one = records[at]
            start = one.offset - first.offset
            record = data[start : start + RECORD_BYTES + one.size]
            fault = record_fault(one.seed, record, one.id)
            is_good = not fault and len(record) == RECORD_BYTES + one.size
            bodies.append(record[RECORD_BYTES:] if is_good else None)
            at += 1
    return bodies


def _read_range(fs: FileSystem, first: StoreRecord, end: int) -> bytes:
    """Return the bytes of a file from a record on; b"" if it is gone or is another file."""
    try:
        file = fs.open(first.path)
    except FileNotFoundError:
        return b""
    try:
        if file.pread(HEADER_BYTES, 0) != first.header:
            return b""
        return file.pread(end - first.offset, first.offset)
    finally:
        file.close()


VERSION: Final = 1
HEADER_BYTES: Final = 32
HINT_HEADER_BYTES: Final = 44
ENTRY_BYTES: Final = 16
BLOCK_ENTRIES: Final = 256
BLOCK_BYTES: Final = BLOCK_ENTRIES * ENTRY_BYTES
BODY_BYTES_MAX: Final = (16 << 20) - 1  # in an append file: the first byte of a record is 0
WRITE_BYTES: Final = 1 << 20
GAP_BYTES: Final = 4096  # between two records that one read brings

MAGIC_RDQ: Final = b"PRDQ"
MAGIC_HINT: Final = b"PHNT"

RDQ_HEADER: Final = struct.Struct(">4sHHQIII")
HINT_HEADER: Final = struct.Struct(">4sHHQIIIIQ")
_RECORD_HEAD: Final = struct.Struct(">IQ")
ENTRY: Final = struct.Struct(">QII")
_BLOCK_SEED: Final = struct.Struct(">QII")
INDEX_BLOCK: Final = 0xFFFFFFFF  # block number of the list of first ids, for its seed

# Shared by all sealed files; never changed.
_NO_IDS: "Final[array[int]]" = array("Q")
_NO_ENTRIES: Final = bytearray()


@mypyc_attr(acyclic=True)
class StoreFile:
    """One append file in RAM: measures and counts, and the table until the file is sealed."""

    __slots__ = (
        "by_id", "counts", "entries", "epoch", "first_ids", "hi", "ids", "is_combining",
        "is_damaged", "is_sealed", "lo", "number", "owned", "total_bytes",
    )  # fmt: skip

    def __init__(self, number: int, lo: int, hi: int) -> None:
        self.number: int = number
        self.lo: int = lo
        self.hi: int = hi
        self.counts: BodyCounts = BodyCounts()
        self.total_bytes: int = 0  # of records, dead ones included
        self.is_sealed: bool = False  # its table is in its hint, not in RAM
        self.epoch: int = -1  # of the last cut before its last change
        self.owned: int = 0  # bodies of unfinished transactions; the file is not combined
        self.is_combining: bool = False
        self.is_damaged: bool = False  # not combined, so that salvage finds what is left
        # Sealed: the first id of each block of the hint, once a body was looked up.
        self.first_ids: array[int] | None = None
        # Until sealed: ids in the order of the file, their packed entries, and a dict if the ids
        # do not ascend, which is rare: bodies get their ids in the order in which they arrive.
        self.ids: array[int] = array("Q")
        self.entries: bytearray = bytearray()
        self.by_id: dict[int, int] | None = None

    def find(self, id: int) -> int:
        """Return the place of the entry of ``id`` in an unsealed file, or -1."""
        ids = self.ids
        by_id = self.by_id
        if by_id is not None:
            return by_id.get(id, -1)
        if not len(ids) or id > ids[-1]:
            return -1
        i = bisect_left(ids, id)
        return i if ids[i] == id else -1

    def append(self, id: int, size: int) -> int:
        """Add the entry of a record written at the end. Return its place."""
        ids = self.ids
        by_id = self.by_id
        if by_id is None and len(ids) and id <= ids[-1]:
            by_id = {old: i for i, old in enumerate(ids)}
            self.by_id = by_id
        i = self.counts.grow()
        if by_id is not None:
            by_id[id] = i
        ids.append(id)
        self.entries += ENTRY.pack(id, HEADER_BYTES + self.total_bytes, size)
        self.total_bytes += RECORD_BYTES + size
        return i

    def sorted_table(self) -> "tuple[bytes, array[int] | None]":
        """Return the entries by id, and the order that sorts them (None: they are in order)."""
        if self.by_id is None:
            return bytes(self.entries), None
        return sort_entries(bytes(self.entries))

    def seal(self, order: "array[int] | None") -> None:
        """Drop the table from RAM; its hint is written."""
        if order is not None:
            self.counts = self.counts.permuted(order)
        self.forget_table()

    def forget_table(self) -> None:
        """Make it sealed: it has no table in RAM."""
        self.is_sealed = True
        self.ids = _NO_IDS
        self.entries = _NO_ENTRIES
        self.by_id = None

    def unseal(self, scanned: "StoreFile") -> None:
        """Take the table of a scan, sorted by id so that each place stays; the hint is lost."""
        table, _ = scanned.sorted_table()
        self.is_sealed = False
        self.first_ids = None
        self.entries = bytearray(table)
        self.ids = array("Q", [key for key, _, _ in ENTRY.iter_unpack(table)])

    def is_dead(self) -> bool:
        """Return whether nothing needs its bodies; it may still be appended to."""
        return not self.counts.live_count and not self.owned and not self.is_combining

    def state(self) -> FileState:
        """Return a copy of what a checkpoint keeps."""
        state = FileState(self.number, self.lo, self.hi)
        state.is_sealed = self.is_sealed
        state.total_bytes = self.total_bytes
        state.counts = self.counts.copy()
        if not self.is_sealed:
            state.ids = array("Q", self.ids)
        return state


# ---- formats -----------------------------------------------------------------------------------


def record_seed(vhost: int) -> int:
    """Return the seed of a vhost's record checksums."""
    return crc32(vhost.to_bytes(8, "big"))


def encode_record(seed: int, id: int, body: bytes) -> bytes:
    """Return one record."""
    head = _RECORD_HEAD.pack(len(body), id)
    return b"".join((head, _U32.pack(crc32(body, crc32(head, seed))), body))


def begin_record(seed: int, head: bytes, id: int, size: int) -> tuple[str, int, int]:
    """Check the first bytes of a record of body ``id`` with ``size`` bytes. Return what is wrong
    ("" if nothing), the seed of the body's checksum, and the expected checksum."""
    if len(head) < RECORD_BYTES:
        return f"expected the record of body {id}, found the end of the file", 0, 0
    length, found = _RECORD_HEAD.unpack_from(head)
    if found != id or length != size:
        return f"expected body {id} of {size} bytes, found {found} of {length} bytes", 0, 0
    expected: int = _U32.unpack_from(head, 12)[0]
    return "", crc32(head[:12], seed), expected


def record_fault(seed: int, record: bytes, id: int) -> str:
    """Return what is wrong with ``record`` as the whole record of ``id``; "" if nothing."""
    fault, crc, expected = begin_record(seed, record, id, len(record) - RECORD_BYTES)
    if not fault and crc32(memoryview(record)[RECORD_BYTES:], crc) != expected:
        fault = f"the checksum of body {id} does not match"
    return fault


def encode_header(vhost: int, number: int, lo: int, hi: int) -> bytes:
    """Return the header of an .rdq file."""
    head = RDQ_HEADER.pack(MAGIC_RDQ, VERSION, 0, vhost, number, lo, hi)
    return head + _U32.pack(crc32(head))


def decode_header(path: str, data: bytes, vhost: int, number: int) -> tuple[int, int]:
    """Return (lo, hi) of the .rdq file ``number``, whose first bytes are ``data``.

    Raises CorruptionError if it is damaged or of another file or vhost; VersionError.
    """
    _check_head(path, data, MAGIC_RDQ, HEADER_BYTES, vhost, number)
    _, _, _, _, _, lo, hi = RDQ_HEADER.unpack_from(data)
    return lo, hi


def encode_hint(vhost: int, number: int, lo: int, hi: int, table: bytes, total_bytes: int) -> bytes:
    """Return a whole hint file. table: sorted by id."""
    count = len(table) // ENTRY_BYTES
    head = HINT_HEADER.pack(MAGIC_HINT, VERSION, 0, vhost, number, lo, hi, count, total_bytes)
    parts = [head, _U32.pack(crc32(head))]
    first_ids: list[bytes] = []
    for block, at in enumerate(range(0, len(table), BLOCK_BYTES)):
        piece = table[at : at + BLOCK_BYTES]
        first_ids.append(piece[:8])
        parts.append(piece)
        parts.append(_U32.pack(crc32(piece, _block_seed(vhost, number, block))))
    index = b"".join(first_ids)
    parts.append(index)
    parts.append(_U32.pack(crc32(index, _block_seed(vhost, number, INDEX_BLOCK))))
    return b"".join(parts)


def decode_hint_header(
    path: str, data: bytes, vhost: int, number: int
) -> tuple[int, int, int, int]:
    """Return (lo, hi, count, total bytes) of a hint. Raises like decode_header."""
    _check_head(path, data, MAGIC_HINT, HINT_HEADER_BYTES, vhost, number)
    _, _, _, _, _, lo, hi, count, total_bytes = HINT_HEADER.unpack_from(data)
    return lo, hi, count, total_bytes


def hint_bytes(count: int) -> int:
    """Return the length of the hint of a file of ``count`` entries."""
    return HINT_HEADER_BYTES + count * ENTRY_BYTES + block_count(count) * 12 + 4


def block_count(count: int) -> int:
    """Return the blocks of a hint of ``count`` entries."""
    return (count + BLOCK_ENTRIES - 1) // BLOCK_ENTRIES


def block_offset(block: int) -> int:
    """Return where block ``block`` of a hint begins."""
    return HINT_HEADER_BYTES + block * (BLOCK_BYTES + 4)


def verified_block(data: bytes, length: int, vhost: int, number: int, block: int) -> bytes | None:
    """Return the first ``length`` of ``data``, which ends with their checksum; None if that does
    not match. block: its number in the hint of file ``number``, or INDEX_BLOCK."""
    piece = data[:length]
    seed = _block_seed(vhost, number, block)
    if len(data) != length + 4 or crc32(piece, seed) != _U32.unpack_from(data, length)[0]:
        return None
    return piece


def find_entry(table: bytes, id: int) -> int:
    """Return the position of the entry of ``id`` in entries sorted by id, or -1."""
    key = id.to_bytes(8, "big")
    low = 0
    high = len(table) // ENTRY_BYTES
    while low < high:
        middle = (low + high) >> 1
        at = middle * ENTRY_BYTES
        if table[at : at + 8] < key:
            low = middle + 1
        else:
            high = middle
    at = low * ENTRY_BYTES
    return at if table[at : at + 8] == key else -1


def _block_seed(vhost: int, number: int, block: int) -> int:
    return crc32(_BLOCK_SEED.pack(vhost, number, block))


def sort_entries(table: bytes) -> "tuple[bytes, array[int] | None]":
    """Return entries sorted by id (stable) and their order (None: they were in order)."""
    count = len(table) // ENTRY_BYTES
    keys = [table[at : at + 8] for at in range(0, len(table), ENTRY_BYTES)]
    order = array("I", sorted(range(count), key=keys.__getitem__))
    for i in range(count):
        if order[i] != i:
            break
    else:
        return table, None
    pieces = [table[i * ENTRY_BYTES : (i + 1) * ENTRY_BYTES] for i in order]
    return b"".join(pieces), order


def _check_head(path: str, data: bytes, magic: bytes, length: int, vhost: int, number: int) -> None:
    """Check a header of either file: magic, version, flags, vhost, number ... checksum."""
    if len(data) < length:
        raise CorruptionError(path, len(data), f"cut off: expected a header of {length} bytes")
    if data[:4] != magic:
        raise CorruptionError(path, 0, f"expected magic {magic!r}, found {data[:4]!r}")
    if crc32(data[: length - 4]) != _U32.unpack_from(data, length - 4)[0]:
        raise CorruptionError(path, 0, "the checksum of the header does not match")
    _, version, _, found_vhost, found = struct.unpack_from(">4sHHQI", data)
    if version != VERSION:
        raise VersionError(path, VERSION, version)
    if found_vhost != vhost or found != number:
        raise CorruptionError(
            path, 8, f"expected file {number} of vhost {vhost:016x}, "
            f"found file {found} of vhost {found_vhost:016x}"
        )  # fmt: skip


# ---- writing -----------------------------------------------------------------------------------


def make_directory(fs: FileSystem, path: str) -> None:
    """Create the directory of a store. Raises NotAStoreError if it is a file, OSError."""
    if fs.exists(path) and not fs.is_dir(path):
        raise NotAStoreError(path, "expected a directory, found a file")
    fs.mkdir(path)


def create_file(fs: FileSystem, path: str, header: bytes) -> File:
    """Create a file with its header. Raises OSError, and leaves no file."""
    file = fs.open(path, create=True)
    try:
        file.truncate(0)
        file.pwrite(header, 0)
    except OSError:
        discard(fs, path, file)
        raise
    return file


def discard(fs: FileSystem, path: str, file: File) -> None:
    """Close and delete a file that nothing names. If the disk fails its name may stay."""
    file.close()
    try:
        fs.unlink(path)
    except OSError:
        pass  # an orphan: the next start finds and deletes it


def write_hint(fs: FileSystem, path: str, hint: bytes) -> UnsyncedFile:
    """Write the hint at ``path`` by rename, without sync. Raises OSError; the old one stays."""
    fresh = path + ".new"
    file = create_file(fs, fresh, hint)
    try:
        fs.rename(fresh, path)
    except OSError:
        discard(fs, fresh, file)
        raise
    return UnsyncedFile(path, file)


class SealedWriter:
    """Writes one file that is sealed from the start, for a section's bodies or combined ones.

    Call ``add`` or ``add_record`` for each body, then ``finish``; or ``abandon`` at any time. It
    uses nothing of the store, so combining may run in a worker.
    """

    def __init__(
        self, fs: FileSystem, directory: str, vhost: int, number: int, lo: int, hi: int
    ) -> None:
        """Create the file. Raises OSError."""
        self.fs: FileSystem = fs
        self.vhost: int = vhost
        self.number: int = number
        self.lo: int = lo
        self.hi: int = hi
        self.path: str = f"{directory}/{number}.rdq"
        self.hint_path: str = f"{directory}/{number}.hint"
        self.total_bytes: int = 0
        self.entries: bytearray = bytearray()
        self.order: array[int] | None = None  # set by finish: what sorted the entries
        self.rdq: UnsyncedFile
        self.hint: UnsyncedFile | None = None
        self._seed: int = record_seed(vhost)
        self._pieces: list[bytes] = [encode_header(vhost, number, lo, hi)]
        self._waiting: int = HEADER_BYTES
        self._written: int = 0
        self.rdq = UnsyncedFile(self.path, create_file(fs, self.path, b""))

    def add(self, id: int, body: bytes) -> None:
        """Write the next body. Raises OSError."""
        self.add_record(id, len(body), encode_record(self._seed, id, body))

    def add_record(self, id: int, size: int, record: bytes) -> None:
        """Write the next body, given as its record in another file. Raises OSError."""
        self.entries += ENTRY.pack(id, HEADER_BYTES + self.total_bytes, size)
        self.total_bytes += RECORD_BYTES + size
        self._pieces.append(record)
        self._waiting += len(record)
        if self._waiting >= WRITE_BYTES:
            self._flush()

    def finish(self) -> StoreFile:
        """Write the rest and the hint. Return the file, all dead, entries in order of id."""
        self._flush()
        table, self.order = sort_entries(bytes(self.entries))
        hint = encode_hint(
            self.vhost, self.number, self.lo, self.hi, table, self.total_bytes
        )  # fmt: skip
        self.hint = write_hint(self.fs, self.hint_path, hint)
        file = StoreFile(self.number, self.lo, self.hi)
        file.forget_table()
        file.total_bytes = self.total_bytes
        file.counts.set_size(len(table) // ENTRY_BYTES)
        return file

    def hand_over(self, unsynced: Unsynced) -> None:
        """Give both files to the registry; its next op syncs them."""
        assert self.hint is not None, "not finished"
        for written in (self.rdq, self.hint):
            unsynced.mark(written)
            unsynced.finish(written)

    def sync(self) -> None:
        """Sync both files here. Raises OSError."""
        for written in (self.rdq, self.hint):
            if written is not None and written.file is not None:
                written.file.sync()

    def close(self) -> None:
        for written in (self.rdq, self.hint):
            if written is not None and written.file is not None:
                written.file.close()
                written.file = None

    def abandon(self) -> None:
        """Close and delete both files. Nothing names them."""
        self.close()
        for path in (self.path, self.hint_path):
            try:
                self.fs.unlink(path)
            except OSError:
                pass  # never made, or an orphan that the next start finds

    def _flush(self) -> None:
        file = self.rdq.file
        assert file is not None, "written after close"
        data = b"".join(self._pieces)
        file.pwrite(data, self._written)
        self._written += len(data)
        self._pieces = []
        self._waiting = 0


WINDOW_BYTES: Final = 1 << 20
SEARCH_BYTES_MAX: Final = 1 << 28  # checksummed to find a record after a damaged length


class StoreScan:
    """One scan of one file: ``run`` fills a StoreFile. damage: what it found. RAM: one window of 1
    MiB or one record, if that is larger. Writes nothing; raises OSError."""

    def __init__(self, file: File, vhost: int, durable_end: int) -> None:
        """durable_end: position up to which every record was synced, 0 for none."""
        self.file: File = file
        self.durable_end: int = durable_end
        self.damage: list[CorruptionError] = []
        self._seed: int = record_seed(vhost)
        self._end: int = file.size()
        self._window: bytes = b""
        self._window_at: int = 0
        self._searched: int = 0

    def run(self, into: StoreFile, limit: int = 0) -> None:
        """Append an entry to ``into`` for each record, up to position ``limit`` (0: the end)."""
        if limit:
            self._end = min(self._end, limit)
        at = HEADER_BYTES
        while at < self._end or at < self.durable_end:
            size = self._verified(at, self._end)
            if size < 0:
                self._window = b""  # it may have been read wrongly once
                size = self._verified(at, self._end)
            if size >= 0:
                into.append(int.from_bytes(self._view(at + 4, 8), "big"), size)
            elif at >= self.durable_end:
                return
            else:
                size = self._next(at) - at - RECORD_BYTES
                self._append_damaged(into, at, size)
            at += RECORD_BYTES + size

    def _append_damaged(self, into: StoreFile, at: int, size: int) -> None:
        """Append an entry for a damaged record: its place matters, its id is a guess."""
        head = self._view(at, RECORD_BYTES)
        id = int.from_bytes(head[4:12], "big")
        last = into.ids[-1] if len(into.ids) else -1
        following = at + RECORD_BYTES + size
        limit = 1 << 64
        if self._verified(following, self._end) >= 0:
            limit = int.from_bytes(self._view(following + 4, 8), "big")
        if last + 1 < limit and not last < id < limit:
            id = last + 1  # ids ascend here, and the one in the file is damaged
        while into.find(id) >= 0:
            id = (id + 1) & 0xFFFFFFFFFFFFFFFF
        fault = record_fault(self._seed, self._view(at, RECORD_BYTES + size), id)
        self.damage.append(
            CorruptionError(self.file.path, at, f"{fault or 'damaged'}; {size} bytes of body")
        )
        into.append(id, size)

    def _next(self, at: int) -> int:
        """Return where the record after the damaged one begins, at most ``durable_end``."""
        end = self.durable_end
        length = int.from_bytes(self._view(at, 4), "big")
        following = at + RECORD_BYTES + length
        if following == end or (following < end and self._verified(following, end) >= 0):
            return following
        here = at + RECORD_BYTES
        while here < end and self._searched < SEARCH_BYTES_MAX:
            # The first byte of a record is 0, because its length is below 16 MiB.
            here = self._zero(here, end)
            if here < end and self._verified(here, end) >= 0:
                return here
            here += 1
        return max(end, at + RECORD_BYTES)

    def _zero(self, at: int, end: int) -> int:
        """Return the position of the first zero byte from ``at`` on, or ``end``."""
        while at < end:
            self._view(at, 1)
            found = self._window.find(b"\0", at - self._window_at)
            if found >= 0:
                return min(self._window_at + found, end)
            if not self._window:
                return end
            at = self._window_at + len(self._window)
        return end

    def _verified(self, at: int, end: int) -> int:
        """Return the bytes of the body of a record that verifies and ends by ``end``, or -1."""
        if at + RECORD_BYTES > end:
            return -1
        head = self._view(at, RECORD_BYTES)
        if len(head) < RECORD_BYTES:
            return -1
        length = int.from_bytes(head[:4], "big")
        if length > BODY_BYTES_MAX or at + RECORD_BYTES + length > end:
            return -1
        body = self._view(at + RECORD_BYTES, length)
        self._searched += length if at < self.durable_end else 0
        crc = crc32(body, crc32(head[:12], self._seed))
        return length if crc == int.from_bytes(head[12:], "big") and len(body) == length else -1

    def _view(self, at: int, length: int) -> bytes:
        """Return bytes at ``at``, fewer where the file ends."""
        start = at - self._window_at
        if start < 0 or start + length > len(self._window):
            self._window = self.file.pread(max(length, WINDOW_BYTES), at)
            self._window_at = at
            start = 0
        return self._window[start : start + length]
