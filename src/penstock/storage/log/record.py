"""Records of the transaction log: one operation, or a list of them, as checksummed bytes.

RabbitMQ's persister and Qpid's TransactionLog write one record per operation and a marker per
transaction, so their replay must remember open transactions. Here each record is atomic: a single
operation has its own type, and a transaction is one record of type TX, which lists operations. Only
a transaction beyond one record is cut into TX_PARTs, which one TX_COMMIT decides, or, if they take
effect one by one, the first of the TX_SLICEs. The frequent operations have encoders of their own:
STREAM, which packs header and fixed data at once, and in record_writer.py PUBLISH to one queue and
DEQUEUE of one run.

    Record    length 4 | crc 4 | lsn 8 | type 1 | flags 1 | count 2 | data
              `length` counts the whole record. `crc` is the CRC-32 of all after it, seeded with
              the seed of the segment (log_file.py): a record of another segment, vhost or
              earlier life of the file never verifies [11].
    Operation type 1 | flags 1 | count 2 | length of data 4 | data         (inside TX and TX_PART)

Data by type; "n x" repeats `count` times, "s x" repeats s times:

    PUBLISH      id 8 | time (s) 4 | header length 4 | body size 4 |
                 [expiry (ms) 8, if HAS_EXPIRY] | [store file 4, if IN_STORE] |
                 n x (queue 4, seq 8) | header | [body, unless IN_STORE]
    run          first seq 8 | how many 4 | bytes of their bodies 8 | how many of them IN_STORE 4
    DEQUEUE      queue 4 | n x run | s 4 | s x (id 8, store file 4, bytes 4)
    MOVE         queue 4 | seq 8 | bytes 4 | data of a PUBLISH, whose flags and count are the MOVE's
    REQUEUE      queue 4 | n x (seq 8, attempts 4)
    MARK         queue 4 | mark 8
    PURGE        queue 4 | upper seq 8 | n x run, those that are kept
    DELETE_QUEUE queue 4
    TOPOLOGY     bytes of the routing table
    TX           n operations
    TX_PART      transaction 8 | n operations; the seq of a place is its ordinal within
                 (transaction, queue): 0, 1, 2 ...
    TX_COMMIT    transaction 8 | n x (queue 4, first seq 8)
    TX_SLICE     transaction 8 | LSN of one of its TX_PARTs 8 | n x (queue 4, first seq 8); the seq
                 of a place in a part that has a TX_SLICE is its ordinal within (part, queue)
    RELEASE      queue 4 | segment 4
    STREAM       stream 4 | offset 8 | time (us) 8 | meta length 4 | meta | payload
    READER_OFFSET  stream 4 | offset 8 | kept from 8 | time (ms) 8 | name of the reader
                 (kept from: all ones for none; flag READER_DELETED: the reader is forgotten)
    LEASE        queue 4 | ordinal 8 | time (ms) 8 | name length 2 | name of the reader |
                 n x (part 4, first seq 8, how many 4, bytes of their bodies 8, how many of them
                 IN_STORE 4, latest time (s) 4)
                 flags LEASED: the ordinal of its first message, and what it takes. COMMITTED,
                 RELEASED: all below the ordinal; the runs are those of a slice that it parts
    SEEN         until (ms) 8 | key 16 | name of the window (key_windows.py)
    BATCH        batch 8 | length of the query 2 | query | by its flags more (batches.py)

All big-endian. In a TX_PART a PUBLISH has ordinals where it has seqs elsewhere, and a STREAM where
it has its offset; streams and queues share one space of numbers, so TX_COMMIT has one list. A
DEQUEUE names the store body of every entry whose placement is the store, even if that body is in
RAM when it is logged; replay applies a (queue, seq) at most once. A record of an unknown type is
refused by name and not skipped: a store written by a newer Penstock must not lose data.

Failure. Encoders raise ValueError for what does not fit its field. Decoders raise RecordError, a
ValueError, for data that verifies and has no meaning: each length is checked before bytes are
taken, and bytes left over are an error too. The reader of the log (log_file.py) turns it into a
CorruptionError with path and position.
"""

import struct
from typing import Final, NamedTuple

from penstock.fast_crc import BodyPieces, crc32, joined
from penstock.native import mypyc_attr

RECORD_HEADER_BYTES: Final = 20
OP_HEADER_BYTES: Final = 8
COUNT_MAX: Final = 0xFFFF
RECORD_BYTES_MAX: Final = 0xFFFFFFFF
LARGE_BYTES: Final = 64 << 10  # a payload from which on a copy costs more than what avoids it

NOP: Final = 0
PUBLISH: Final = 1
DEQUEUE: Final = 2
MOVE: Final = 3
REQUEUE: Final = 4
MARK: Final = 5
PURGE: Final = 6
DELETE_QUEUE: Final = 7
TOPOLOGY: Final = 8
TX: Final = 9
TX_PART: Final = 10
TX_COMMIT: Final = 11
RELEASE: Final = 12
LEASE: Final = 13
READER_OFFSET: Final = 14
STREAM: Final = 15
BATCH: Final = 16
TX_SLICE: Final = 17
SEEN: Final = 18

TYPE_NAMES: Final[dict[int, str]] = {
    NOP: "NOP", PUBLISH: "PUBLISH", DEQUEUE: "DEQUEUE", MOVE: "MOVE", REQUEUE: "REQUEUE",
    MARK: "MARK", PURGE: "PURGE", DELETE_QUEUE: "DELETE_QUEUE", TOPOLOGY: "TOPOLOGY", TX: "TX",
    TX_PART: "TX_PART", TX_COMMIT: "TX_COMMIT", RELEASE: "RELEASE", LEASE: "LEASE",
    READER_OFFSET: "READER_OFFSET", STREAM: "STREAM", BATCH: "BATCH",
    TX_SLICE: "TX_SLICE", SEEN: "SEEN",
}  # fmt: skip
KNOWN_TYPES_MAX: Final = SEEN  # types above it are reserved; record_types.py has the table

# Flags of PUBLISH and MOVE.
IN_STORE: Final = 1  # the body is in the MessageStore, not in the record
HAS_EXPIRY: Final = 2
# Flag of READER_OFFSET.
READER_DELETED: Final = 1
NOT_KEPT: Final = 0xFFFFFFFFFFFFFFFF  # kept from, of a reader that keeps nothing
# Flags of LEASE: what happens to the messages.
LEASED: Final = 0
COMMITTED: Final = 1
RELEASED: Final = 2

_HEADER: Final = struct.Struct(">IIQBBH")
_LENGTH_CRC: Final = struct.Struct(">II")
# A record from its LSN on; the length and the checksum before it are known last.
_HEAD: Final = struct.Struct(">QBBH")
_STREAM_HEAD: Final = struct.Struct(">QBBHIQQI")
STREAM_FIXED_BYTES: Final = _LENGTH_CRC.size + _STREAM_HEAD.size  # before meta and payload

_OP: Final = struct.Struct(">BBHI")
_PUBLISH: Final = struct.Struct(">QIII")
PUBLISH_FIXED_BYTES: Final = 20  # of the data of a PUBLISH, before places, header and body
PLACE_BYTES: Final = 12
_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")
_QUEUE_SEQ: Final = struct.Struct(">IQ")  # a place; also (queue, mark), (queue, first seq)
_RUN: Final = struct.Struct(">QIQI")
_ATTEMPTS: Final = struct.Struct(">QI")
_STORE: Final = struct.Struct(">QII")
_MOVE: Final = struct.Struct(">IQI")
_RELEASE: Final = struct.Struct(">II")
_STREAM: Final = struct.Struct(">IQQI")
_READER: Final = struct.Struct(">IQQQ")
_LEASE: Final = struct.Struct(">IQQH")
_SEEN: Final = struct.Struct(">Q16s")
_LEASE_RUN: Final = struct.Struct(">IQIQII")
LEASE_RUN_BYTES: Final = 32

_stream_head: Final = _STREAM_HEAD.pack
_length_crc: Final = _LENGTH_CRC.pack

Place = tuple[int, int]  # queue, seq
Run = tuple[int, int, int, int]  # first seq, n, bytes of their bodies, how many in the store
StoreRef = tuple[int, int, int]  # id, store file, bytes
# part, first seq, n, bytes of their bodies, how many in the store, their latest time (s)
LeaseRun = tuple[int, int, int, int, int, int]


class RecordError(ValueError):
    """Bytes that have no meaning, although they verify or were never checked."""


@mypyc_attr(acyclic=True)
class Op:
    """One operation: what a record holds, or one of the list in a TX. tail: the end of its data, in
    pieces, if that is large and is to be logged, so that it is not copied."""

    __slots__ = ("count", "data", "flags", "tail", "type")

    def __init__(
        self, kind: int, flags: int, count: int, data: bytes, tail: list[bytes] | None = None
    ) -> None:
        self.type: int = kind
        self.flags: int = flags
        self.count: int = count
        self.data: bytes = data
        self.tail: list[bytes] = [] if tail is None else tail

    @property
    def size(self) -> int:
        """Bytes of its data."""
        return len(self.data) + sum([len(piece) for piece in self.tail])


@mypyc_attr(acyclic=True)
class Record:
    """One record as read, with its place: segment number and position in that file."""

    __slots__ = ("count", "data", "flags", "lsn", "offset", "segment", "type")

    def __init__(
        self, lsn: int, kind: int, flags: int, count: int, data: bytes, segment: int, offset: int
    ) -> None:
        self.lsn: int = lsn
        self.type: int = kind
        self.flags: int = flags
        self.count: int = count
        self.data: bytes = data
        self.segment: int = segment
        self.offset: int = offset


# ----------------------------------------------------------------------------------------
# Whole records


def encode(seed: int, lsn: int, kind: int, flags: int, count: int, data: bytes) -> bytes:
    """Encode a whole record. ValueError if count or data is too large."""
    check_op(kind, count, len(data))
    rest = _HEAD.pack(lsn, kind, flags, count) + data
    return _length_crc(len(rest) + 8, crc32(rest, seed)) + rest


def encode_stream(
    seed: int, lsn: int, stream: int, offset: int, time_us: int, meta: bytes, payload: bytes
) -> bytes:
    """Encode a whole STREAM record. struct.error for a number that is too large."""
    rest = _stream_head(lsn, STREAM, 0, 1, stream, offset, time_us, len(meta)) + meta + payload
    return _length_crc(len(rest) + 8, crc32(rest, seed)) + rest


def encode_front(
    seed: int, lsn: int, kind: int, flags: int, count: int, pieces: list[bytes]
) -> bytes:
    """Encode a record up to its data, which follows in these pieces: as `encode`, but they are not
    copied."""
    size = sum([len(piece) for piece in pieces])
    check_op(kind, count, size)
    head = _HEAD.pack(lsn, kind, flags, count)
    crc = crc32(head, seed)
    for piece in pieces:
        crc = crc32(piece, crc)
    return _length_crc(len(head) + size + 8, crc) + head


def encode_stream_front(
    seed: int, lsn: int, stream: int, offset: int, time_us: int, meta: bytes, payload: BodyPieces
) -> bytes:
    """Encode a STREAM record up to its payload, which follows: as `encode_stream`, but a large
    payload is not copied."""
    front = _stream_head(lsn, STREAM, 0, 1, stream, offset, time_us, len(meta)) + meta
    crc = joined(crc32(front, seed), payload.crc, payload.size)
    return _length_crc(len(front) + payload.size + 8, crc) + front


def is_known(kind: int) -> bool:
    """Return whether this version writes and reads records of this type."""
    return 0 <= kind <= KNOWN_TYPES_MAX


def publish_flags(store_file: int, expiry_ms: int) -> int:
    """Return the flags of a PUBLISH or MOVE. store_file 0: the body is in the record. expiry_ms 0:
    none."""
    return (IN_STORE if store_file else 0) | (HAS_EXPIRY if expiry_ms else 0)


def check_op(kind: int, count: int, data_bytes: int) -> None:
    """Raise ValueError if an operation does not fit into a record."""
    if not is_known(kind):
        raise ValueError(f"record type {type_name(kind)} is not written by this version")
    if not 0 <= count <= COUNT_MAX:
        raise ValueError(f"{type_name(kind)}: {count} entries, a record has at most {COUNT_MAX}")
    if data_bytes > RECORD_BYTES_MAX - RECORD_HEADER_BYTES:
        raise ValueError(f"{type_name(kind)}: {data_bytes} bytes are too long for a record")


def decode_header(data: bytes, offset: int = 0) -> tuple[int, int, int, int, int, int]:
    """Return (length, crc, lsn, type, flags, count) of the record at `offset`, not verified."""
    if offset < 0 or len(data) - offset < RECORD_HEADER_BYTES:
        raise RecordError(f"a record header needs {RECORD_HEADER_BYTES} bytes")
    return _HEADER.unpack_from(data, offset)


def verifies(record: bytes, seed: int) -> bool:
    """Return whether these bytes are exactly one record of the segment with that seed."""
    if len(record) < RECORD_HEADER_BYTES:
        return False
    length, crc = _LENGTH_CRC.unpack_from(record)
    return bool(length == len(record) and crc == crc32(record[8:], seed))


def decode(record: bytes, seed: int, segment: int = 0, offset: int = 0) -> Record:
    """Decode a record. RecordError if it does not verify or its type is unknown."""
    if not verifies(record, seed):
        raise RecordError("the record's checksum does not match")
    _, _, lsn, kind, flags, count = _HEADER.unpack_from(record)
    if not is_known(kind):
        raise RecordError(refusal(kind))
    return Record(lsn, kind, flags, count, record[RECORD_HEADER_BYTES:], segment, offset)


def type_name(kind: int) -> str:
    """Return the name of a type for people, "number <n>" if it has none."""
    return TYPE_NAMES.get(kind, f"number {kind}")


def refusal(kind: int) -> str:
    """Return the text of the error for a record of an unknown type."""
    return f"record type {type_name(kind)} ({kind}) is not known to this version of Penstock"


# ----------------------------------------------------------------------------------------
# Data of each type: encoding


def publish_data(
    flags: int, message_id: int, time: int, expiry_ms: int, store_file: int, places: list[Place],
    header: bytes, body: bytes, body_size: int,
) -> bytes:  # fmt: skip
    """Data of a PUBLISH to any number of places; `flags` as in `encode_publish_one`."""
    parts = [_PUBLISH.pack(message_id, time, len(header), body_size)]
    if flags & HAS_EXPIRY:
        parts.append(_U64.pack(expiry_ms))
    if flags & IN_STORE:
        parts.append(_U32.pack(store_file))
    elif len(body) != body_size:
        raise ValueError(f"a body of {len(body)} bytes cannot be logged as one of {body_size}")
    for queue, seq in places:
        parts.append(_QUEUE_SEQ.pack(queue, seq))
    parts.append(header)
    if not flags & IN_STORE:
        parts.append(body)
    return b"".join(parts)


def dequeue_data(queue: int, runs: list[Run], stores: list[StoreRef]) -> bytes:
    """Data of a DEQUEUE; its count is len(runs)."""
    parts = [_U32.pack(queue)]
    for first, many, size, in_store in runs:
        parts.append(_RUN.pack(first, many, size, in_store))
    _append_stores(parts, stores)
    return b"".join(parts)


def move_data(queue: int, seq: int, size: int, publish: bytes) -> bytes:
    """Data of a MOVE out of (queue, seq), whose body has `size` bytes, by a PUBLISH's data."""
    return _MOVE.pack(queue, seq, size) + publish


def requeue_data(queue: int, attempts: list[tuple[int, int]]) -> bytes:
    """Data of a REQUEUE: (seq, attempts) each; its count is their number."""
    parts = [_U32.pack(queue)]
    for seq, tries in attempts:
        parts.append(_ATTEMPTS.pack(seq, tries))
    return b"".join(parts)


def mark_data(queue: int, mark: int) -> bytes:
    """Data of a MARK: deliveries below `mark` may have happened."""
    return _QUEUE_SEQ.pack(queue, mark)


def purge_data(queue: int, upper: int, kept: list[Run]) -> bytes:
    """Data of a PURGE of all below `upper` but the runs kept; its count is their number."""
    parts = [_QUEUE_SEQ.pack(queue, upper)]
    for first, many, size, in_store in kept:
        parts.append(_RUN.pack(first, many, size, in_store))
    return b"".join(parts)


def delete_queue_data(queue: int) -> bytes:
    """Data of a DELETE_QUEUE."""
    return _U32.pack(queue)


def release_data(queue: int, segment: int) -> bytes:
    """Data of a RELEASE of the store references of what was purged in a segment.

    It does not contain them: replay reads them from the slots, where a checkpoint or paging may
    have written other entries meanwhile than the live engine had read.
    """
    return _RELEASE.pack(queue, segment)


def stream_data(stream: int, offset: int, time_us: int, meta: bytes, payload: bytes) -> bytes:
    """Data of a STREAM: the record at `offset`, or its ordinal in a TX_PART; its count is 1. What
    has no payload here has it as its tail."""
    return _STREAM.pack(stream, offset, time_us, len(meta)) + meta + payload


def reader_data(stream: int, offset: int, kept_from: int, time_ms: int, reader: bytes) -> bytes:
    """Data of a READER_OFFSET: a named reader has read all below `offset`, and retention keeps all
    from `kept_from` on (NOT_KEPT: nothing). Its count is 0."""
    return _READER.pack(stream, offset, kept_from, time_ms) + reader


def seen_data(until_ms: int, key: bytes, name: bytes) -> bytes:
    """Data of a SEEN: the window of this name has seen the key. Its count is 0. ValueError: the key
    has not 16 bytes."""
    if len(key) != 16:
        raise ValueError(f"a key of {len(key)} bytes, expected 16")
    return _SEEN.pack(until_ms, key) + name


def lease_data(
    queue: int, ordinal: int, time_ms: int, reader: bytes, runs: list[LeaseRun]
) -> bytes:
    """Data of a LEASE; its count is len(runs). ValueError: the reader's name is too long."""
    if len(reader) > 0xFFFF:
        raise ValueError(f"a reader's name of {len(reader)} bytes, at most 65535")
    return _LEASE.pack(queue, ordinal, time_ms, len(reader)) + reader + pack_lease_runs(runs)


def pack_lease_runs(runs: list[LeaseRun]) -> bytes:
    """Runs of a LEASE, LEASE_RUN_BYTES each."""
    parts: list[bytes] = []
    for number, first, many, size, in_store, latest_s in runs:
        parts.append(_LEASE_RUN.pack(number, first, many, size, in_store, latest_s))
    return b"".join(parts)


def unpack_lease_runs(data: bytes) -> list[LeaseRun]:
    """Decode what `pack_lease_runs` packed."""
    runs: list[LeaseRun] = []
    for at in range(0, len(data), LEASE_RUN_BYTES):
        number, first, many, size, in_store, latest_s = _LEASE_RUN.unpack_from(data, at)
        runs.append((number, first, many, size, in_store, latest_s))
    return runs


def encode_ops(ops: list[Op]) -> bytes:
    """Data of a TX; its count is len(ops). ValueError if one of them cannot be in it."""
    return b"".join(tx_pieces(ops))


def tx_part_data(transaction: int, ops: list[Op]) -> bytes:
    """Data of a TX_PART; its count is len(ops)."""
    return b"".join(tx_part_pieces(transaction, ops))


def tx_part_pieces(transaction: int, ops: list[Op]) -> list[bytes]:
    """Return what `tx_part_data` does, in pieces: the tails are not copied."""
    return tx_pieces(ops, _U64.pack(transaction))


def tx_pieces(ops: list[Op], front: bytes = b"") -> list[bytes]:
    """Return the front and the list of operations, with each tail as a piece of its own, not
    copied."""
    pieces: list[bytes] = []
    parts = [front]
    for op in ops:
        size = op.size
        check_op(op.type, op.count, size)
        if op.type in (TX, TX_PART, TX_COMMIT, TX_SLICE):
            raise ValueError(f"{type_name(op.type)} inside a list of operations")
        parts.append(_OP.pack(op.type, op.flags, op.count, size))
        parts.append(op.data)
        if op.tail:
            pieces += [b"".join(parts), *op.tail]
            parts = []
    pieces.append(b"".join(parts))
    return pieces


def tx_commit_data(transaction: int, first_seqs: list[Place]) -> bytes:
    """Data of a TX_COMMIT: the first seq of each queue; its count is their number."""
    parts = [_U64.pack(transaction)]
    for queue, seq in first_seqs:
        parts.append(_QUEUE_SEQ.pack(queue, seq))
    return b"".join(parts)


def tx_slice_data(transaction: int, part_lsn: int, first_seqs: list[Place]) -> bytes:
    """Data of a TX_SLICE: as that of a TX_COMMIT, for one part."""
    parts = [_U64.pack(transaction), _U64.pack(part_lsn)]
    for queue, seq in first_seqs:
        parts.append(_QUEUE_SEQ.pack(queue, seq))
    return b"".join(parts)


def _append_stores(parts: list[bytes], stores: list[StoreRef]) -> None:
    parts.append(_U32.pack(len(stores)))
    for message_id, file, size in stores:
        parts.append(_STORE.pack(message_id, file, size))


# ----------------------------------------------------------------------------------------
# Data of each type: decoding


@mypyc_attr(acyclic=True)
class PublishData:
    """A PUBLISH. expiry_ms 0: none. store_file counts if in_store; `body` is b"" then."""

    __slots__ = (
        "body", "body_size", "expiry_ms", "header", "id", "in_store", "places", "store_file",
        "time",
    )  # fmt: skip

    def __init__(
        self, message_id: int, time: int, expiry_ms: int, in_store: bool, store_file: int,
        body_size: int, places: list[Place], header: bytes, body: bytes,
    ) -> None:  # fmt: skip
        self.id: int = message_id
        self.time: int = time
        self.expiry_ms: int = expiry_ms
        self.in_store: bool = in_store
        self.store_file: int = store_file
        self.body_size: int = body_size
        self.places: list[Place] = places
        self.header: bytes = header
        self.body: bytes = body


class DequeueData(NamedTuple):
    """A DEQUEUE: runs of (first seq, how many), and (id, store file, bytes) of store bodies."""

    queue: int
    runs: list[Run]
    stores: list[StoreRef]


class MoveData(NamedTuple):
    """A MOVE: where the entry was, bytes of its body, and the publish that it became."""

    queue: int
    seq: int
    size: int
    publish: PublishData


class RequeueData(NamedTuple):
    """A REQUEUE: (seq, attempts) each."""

    queue: int
    attempts: list[tuple[int, int]]


class MarkData(NamedTuple):
    """A MARK: the delivered mark of a queue part."""

    queue: int
    mark: int


class PurgeData(NamedTuple):
    """A PURGE of all below `upper` but the runs `kept`."""

    queue: int
    upper: int
    kept: list[Run]


class ReleaseData(NamedTuple):
    """A RELEASE of a queue segment's store references."""

    queue: int
    segment: int


class StreamData(NamedTuple):
    """A STREAM: one record of a stream. pieces: its payload, if it is large and to be logged."""

    stream: int
    offset: int
    time_us: int
    meta: bytes
    payload: bytes
    pieces: BodyPieces | None = None


class ReaderData(NamedTuple):
    """A READER_OFFSET. kept_from: NOT_KEPT for none."""

    stream: int
    offset: int
    kept_from: int
    time_ms: int
    reader: bytes


class LeaseData(NamedTuple):
    """A LEASE; its flags say what happens to the messages."""

    queue: int
    ordinal: int
    time_ms: int
    reader: bytes
    runs: list[LeaseRun]


class TxPartData(NamedTuple):
    """A TX_PART: the transaction's number and some of its operations."""

    transaction: int
    ops: list[Op]


class TxCommitData(NamedTuple):
    """A TX_COMMIT: the transaction's number and (queue, first seq) of each queue in it."""

    transaction: int
    first_seqs: list[Place]


class TxSliceData(NamedTuple):
    """A TX_SLICE: the transaction's number, the LSN of the part, and (queue, first seq) of each
    queue in the part."""

    transaction: int
    part_lsn: int
    first_seqs: list[Place]


def decode_publish(data: bytes, flags: int, count: int, offset: int = 0) -> PublishData:
    """A PUBLISH whose data begins at `offset`. RecordError unless it is exactly that long."""
    need = _PUBLISH.size + (8 if flags & HAS_EXPIRY else 0) + (4 if flags & IN_STORE else 0)
    need += count * _QUEUE_SEQ.size
    _need("PUBLISH", data, offset, need)
    if flags & ~(IN_STORE | HAS_EXPIRY):
        raise RecordError(f"PUBLISH: unknown flags {flags:#04x}")
    message_id, time, header_len, body_size = _PUBLISH.unpack_from(data, offset)
    position = offset + _PUBLISH.size
    expiry_ms = 0
    if flags & HAS_EXPIRY:
        expiry_ms = _U64.unpack_from(data, position)[0]
        position += 8
    in_store = flags & IN_STORE != 0
    store_file = 0
    if in_store:
        store_file = _U32.unpack_from(data, position)[0]
        position += 4
    places = _pairs(_QUEUE_SEQ, data, position, count)
    position += count * _QUEUE_SEQ.size
    end = position + header_len
    _exact("PUBLISH", data, end + (0 if in_store else body_size))
    header = data[position:end]
    return PublishData(
        message_id, time, expiry_ms, in_store, store_file, body_size, places, header, data[end:]
    )


def decode_dequeue(data: bytes, count: int) -> DequeueData:
    """A DEQUEUE of `count` runs."""
    end = 4 + count * _RUN.size
    _need("DEQUEUE", data, 0, end + 4)
    queue: int = _U32.unpack_from(data)[0]
    return DequeueData(queue, _runs(data, 4, count), _stores("DEQUEUE", data, end))


def decode_move(data: bytes, flags: int, count: int) -> MoveData:
    """A MOVE; flags and count are those of the PUBLISH in it."""
    _need("MOVE", data, 0, _MOVE.size)
    queue, seq, size = _MOVE.unpack_from(data)
    return MoveData(queue, seq, size, decode_publish(data, flags, count, _MOVE.size))


def decode_requeue(data: bytes, count: int) -> RequeueData:
    """A REQUEUE of `count` entries."""
    _exact("REQUEUE", data, 4 + count * _ATTEMPTS.size)
    return RequeueData(_U32.unpack_from(data)[0], _pairs(_ATTEMPTS, data, 4, count))


def decode_mark(data: bytes) -> MarkData:
    """A MARK."""
    _exact("MARK", data, _QUEUE_SEQ.size)
    queue, mark = _QUEUE_SEQ.unpack_from(data)
    return MarkData(queue, mark)


def decode_purge(data: bytes, count: int) -> PurgeData:
    """A PURGE that keeps `count` runs."""
    _exact("PURGE", data, _QUEUE_SEQ.size + count * _RUN.size)
    queue, upper = _QUEUE_SEQ.unpack_from(data)
    return PurgeData(queue, upper, _runs(data, _QUEUE_SEQ.size, count))


def decode_delete_queue(data: bytes) -> int:
    """The queue number of a DELETE_QUEUE."""
    _exact("DELETE_QUEUE", data, 4)
    queue: int = _U32.unpack_from(data)[0]
    return queue


def decode_release(data: bytes) -> ReleaseData:
    """A RELEASE."""
    _exact("RELEASE", data, _RELEASE.size)
    queue, segment = _RELEASE.unpack_from(data)
    return ReleaseData(queue, segment)


def decode_stream(data: bytes) -> StreamData:
    """A STREAM."""
    _need("STREAM", data, 0, _STREAM.size)
    stream, offset, time_us, meta_bytes = _STREAM.unpack_from(data)
    end = _STREAM.size + meta_bytes
    _need("STREAM", data, 0, end)
    return StreamData(stream, offset, time_us, data[_STREAM.size : end], data[end:])


def decode_reader(data: bytes) -> ReaderData:
    """A READER_OFFSET."""
    _need("READER_OFFSET", data, 0, _READER.size)
    stream, offset, kept_from, time_ms = _READER.unpack_from(data)
    return ReaderData(stream, offset, kept_from, time_ms, data[_READER.size :])


def decode_seen(data: bytes) -> tuple[int, bytes, bytes]:
    """A SEEN: (until, key, name of the window)."""
    _need("SEEN", data, 0, _SEEN.size)
    until_ms, key = _SEEN.unpack_from(data)
    return until_ms, key, data[_SEEN.size :]


def decode_lease(data: bytes, count: int) -> LeaseData:
    """A LEASE of `count` runs."""
    _need("LEASE", data, 0, _LEASE.size)
    queue, ordinal, time_ms, length = _LEASE.unpack_from(data)
    at = _LEASE.size + length
    _exact("LEASE", data, at + count * LEASE_RUN_BYTES)
    reader = data[_LEASE.size : at]
    return LeaseData(queue, ordinal, time_ms, reader, unpack_lease_runs(data[at:]))


def decode_ops(data: bytes, count: int, offset: int = 0) -> list[Op]:
    """The `count` operations that begin at `offset`, to the end of `data`."""
    ops: list[Op] = []
    position = offset
    for _ in range(count):
        _need("TX", data, position, OP_HEADER_BYTES)
        kind, flags, op_count, length = _OP.unpack_from(data, position)
        position += OP_HEADER_BYTES
        _need("TX", data, position, length)
        if not is_known(kind):
            raise RecordError(refusal(kind))
        if kind in (TX, TX_PART, TX_COMMIT, TX_SLICE):
            raise RecordError(f"{type_name(kind)} inside a list of operations")
        ops.append(Op(kind, flags, op_count, data[position : position + length]))
        position += length
    _exact("TX", data, position)
    return ops


def decode_tx_part(data: bytes, count: int) -> TxPartData:
    """A TX_PART of `count` operations."""
    _need("TX_PART", data, 0, 8)
    return TxPartData(_U64.unpack_from(data)[0], decode_ops(data, count, 8))


def decode_tx_commit(data: bytes, count: int) -> TxCommitData:
    """A TX_COMMIT for `count` queues."""
    _exact("TX_COMMIT", data, 8 + count * _QUEUE_SEQ.size)
    return TxCommitData(_U64.unpack_from(data)[0], _pairs(_QUEUE_SEQ, data, 8, count))


def decode_tx_slice(data: bytes, count: int) -> TxSliceData:
    """A TX_SLICE for `count` queues."""
    _exact("TX_SLICE", data, 16 + count * _QUEUE_SEQ.size)
    transaction, part_lsn = _U64.unpack_from(data)[0], _U64.unpack_from(data, 8)[0]
    return TxSliceData(transaction, part_lsn, _pairs(_QUEUE_SEQ, data, 16, count))


def _need(what: str, data: bytes, offset: int, length: int) -> None:
    if offset < 0 or len(data) - offset < length:
        raise RecordError(f"{what}: {length} bytes expected, {max(len(data) - offset, 0)} found")


def _exact(what: str, data: bytes, length: int) -> None:
    if len(data) != length:
        raise RecordError(f"{what}: data of {length} bytes expected, {len(data)} found")


def _pairs(form: struct.Struct, data: bytes, offset: int, count: int) -> list[tuple[int, int]]:
    pairs: list[tuple[int, int]] = []
    for i in range(count):
        a, b = form.unpack_from(data, offset + i * form.size)
        pairs.append((a, b))
    return pairs


def _runs(data: bytes, offset: int, count: int) -> list[Run]:
    runs: list[Run] = []
    for i in range(count):
        first, many, size, in_store = _RUN.unpack_from(data, offset + i * _RUN.size)
        runs.append((first, many, size, in_store))
    return runs


def _stores(what: str, data: bytes, offset: int) -> list[StoreRef]:
    """The store references that begin at `offset` with their number, to the end of `data`."""
    many = _U32.unpack_from(data, offset)[0]
    _exact(what, data, offset + 4 + many * _STORE.size)
    stores: list[StoreRef] = []
    for i in range(many):
        message_id, file, size = _STORE.unpack_from(data, offset + 4 + i * _STORE.size)
        stores.append((message_id, file, size))
    return stores
