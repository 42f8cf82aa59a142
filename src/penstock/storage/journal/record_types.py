"""The types of log records: what each one means, what it changes, and its text for people.

record.py has the bytes. Here each type has one class and one row in RECORD_TYPES. A new type needs
its bytes in record.py, a class and a row here, and what it does in the two states.

    row        number and name
               decode     bytes to operation
               stored     the store bodies that it names when it publishes; recovery, `verify`
                          and salvage check that they exist
    operation  encode     operation to bytes
               apply      what it changes; live work, replay and salvage call this
               contents   the messages and stream records that it brings; salvage takes those from
                          here whose slot or page is damaged
               text       what `penstock store dump` prints

`apply` makes its change by calls of a LogState. There are two: StorageState (state.py) for live
work and replay, and SalvagedVhost (salvage.py), for a store with missing pieces. A live
caller applies the operation that it has just logged; replay decodes the same operation from the log
and applies it. Publishing, acknowledging and appending to a stream are so frequent that the engine
calls the log's own encoders and then the same functions of StorageState that `apply` calls here.

Failure. `decode` raises RecordError for data without a meaning. `apply` raises ValueError, or
KeyError for a queue that a TX_COMMIT does not list, if a record cannot follow those before it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

from librt.strings import read_i32_be, read_i64_be

from penstock.fast_crc import crc32
from penstock.message import Entry, QueuedMessage
from penstock.native import mypyc_attr
from penstock.storage.index.routing_table import topology_text
from penstock.storage.log import record
from penstock.storage.log.record import (
    LARGE_BYTES,
    LeaseData,
    LeaseRun,
    Op,
    Place,
    ReaderData,
    Record,
    RecordError,
    Run,
    StoreRef,
    StreamData,
)
from penstock.storage.pages import batches
from penstock.storage.pages.batches import Batch, BatchFacts, BatchRecord, StagedPage

StoredBody = tuple[int, int]  # store file, id

SHOWN_BYTES: Final = 24  # of a body in a text
LEASE_TEXTS: Final = {
    record.LEASED: "leased", record.COMMITTED: "committed", record.RELEASED: "released",
}  # fmt: skip


@mypyc_attr(acyclic=True)
class AppliedRecord:
    """The record that is being applied.

    mode: the durability of live work; NONE in replay. first_seqs: of a transaction in parts: queue
    or stream number -> the seq or offset of its first message; empty for any other record. segment,
    offset: where the record is in the log; 0 in live work.
    """

    __slots__ = ("first_seqs", "lsn", "mode", "offset", "segment")

    def __init__(
        self, lsn: int, mode: int, first_seqs: dict[int, int], segment: int = 0, offset: int = 0
    ) -> None:
        self.lsn: int = lsn
        self.mode: int = mode
        self.first_seqs: dict[int, int] = first_seqs
        self.segment: int = segment
        self.offset: int = offset


@mypyc_attr(allow_interpreted_subclasses=True)
class LogState(ABC):
    """A state that the records of a log change: one call for each thing that a record can do.

    Queues and streams are given by number. A call for a deleted one does nothing.
    """

    @abstractmethod
    def apply_publish(
        self, message: QueuedMessage, places: list[Place], born: list[Entry] | None, is_held: bool
    ) -> None:
        """Add a persistent message to queues. A place below the next seq of its queue was applied
        already. born: the new entries are appended to it, in the order of the places. is_held:
        False for a message that is on its slot and does not stay in RAM."""

    @abstractmethod
    def apply_dequeue(
        self, lsn: int, number: int, runs: list[Run], stores: list[StoreRef], entries: list[Entry]
    ) -> None:
        """Remove acknowledged messages. entries: their entries, if the caller has them, else
        empty."""

    @abstractmethod
    def apply_requeue(self, number: int, attempts: list[tuple[int, int]]) -> None:
        """Set how often messages (seq, attempts) were delivered."""

    @abstractmethod
    def apply_mark(self, number: int, mark: int) -> None:
        """Raise the delivered mark of a queue part: messages below may have been delivered."""

    @abstractmethod
    def apply_purge(self, lsn: int, number: int, upper: int, kept: list[Run]) -> None:
        """Remove all messages below `upper` but those kept and those that are leased."""

    @abstractmethod
    def apply_delete(self, lsn: int, number: int) -> None:
        """Delete a queue or a stream with all that it holds."""

    @abstractmethod
    def apply_topology(self, data: bytes) -> None:
        """Apply a record of the RoutingTable; a declared queue or stream begins empty."""

    @abstractmethod
    def apply_release(self, number: int, segment: int, refs: list[StoreRef] | None) -> None:
        """Release the store references of what was purged in a queue segment. refs: None if they
        must be read from the slots."""

    @abstractmethod
    def apply_stream(self, lsn: int, mode: int, found: StreamData) -> None:
        """Append one record to a stream."""

    @abstractmethod
    def apply_reader(self, found: ReaderData, flags: int) -> None:
        """Set how far a named reader of a stream is, or forget it."""

    @abstractmethod
    def apply_seen(self, lsn: int, name: bytes, key: bytes, until_ms: int) -> None:
        """Note that the window of this name has seen a key."""

    @abstractmethod
    def apply_lease(self, lsn: int, found: LeaseData, flags: int) -> None:
        """Change what a reader has leased of a queue."""

    @abstractmethod
    def apply_batch(self, lsn: int, flags: int, found: BatchRecord) -> None:
        """Decide a batch, note its progress, adopt a page of it, or forget its query."""

    @abstractmethod
    def apply_part(self, at: AppliedRecord, transaction: int, ops: list[Op]) -> None:
        """Keep a part of a transaction until its commit."""

    @abstractmethod
    def apply_commit(self, at: AppliedRecord, transaction: int, first_seqs: dict[int, int]) -> None:
        """Apply the parts of a transaction that were kept."""

    @abstractmethod
    def apply_slice(
        self, at: AppliedRecord, transaction: int, part_lsn: int, first_seqs: dict[int, int]
    ) -> None:
        """Apply one of the parts that were kept. The others are applied too, at the latest when the
        log has ended."""


# ---- operations --------------------------------------------------------------------------------


# No ABC: compiled classes share the caches of their ABC, so uncompiled code that asks isinstance()
# for one class may get the answer for another.
@mypyc_attr(acyclic=True)
class LogOperation:
    """One operation, decoded. The head of this module says what the four calls do."""

    @abstractmethod
    def encode(self) -> Op:
        """Encode the operation. ValueError for what does not fit its field."""

    @abstractmethod
    def apply(self, state: LogState, at: AppliedRecord) -> None:
        """Change `state`. ValueError, KeyError: the operation cannot follow those before it."""

    def contents(self) -> "list[Publish | Append]":
        """Return the messages and stream records that it brings, in their order. None here: an
        earlier PUBLISH, or the checkpoint, names the body of a MOVE, and the parts of a transaction
        bring what its TX_COMMIT and TX_SLICE apply."""
        return []

    @abstractmethod
    def text(self) -> str:
        """Return the operation in words, without the name of its type."""


@mypyc_attr(acyclic=True)
class Nop(LogOperation):
    """NOP: nothing. It can hold any bytes."""

    def __init__(self, data: bytes = b"") -> None:
        self.data: bytes = data

    def encode(self) -> Op:
        return Op(record.NOP, 0, 0, self.data)

    def apply(self, state: LogState, at: AppliedRecord) -> None:
        return

    def text(self) -> str:
        return f"{len(self.data)} bytes"


@mypyc_attr(acyclic=True)
class Publish(LogOperation):
    """PUBLISH: a persistent message for queues. places: (queue, seq), or ordinals in a TX_PART.

    born, is_held: see `LogState.apply_publish`.
    """

    def __init__(
        self, message: QueuedMessage, places: list[Place], born: list[Entry] | None = None,
        is_held: bool = True,
    ) -> None:  # fmt: skip
        self.message: QueuedMessage = message
        self.places: list[Place] = places
        self.born: list[Entry] | None = born
        self.is_held: bool = is_held

    def data(self, flags: int) -> bytes:
        """Return the data of its record with these flags; a MOVE contains the same."""
        m = self.message
        body = b"" if m.store_file or m.body is None else m.body
        return record.publish_data(
            flags, m.id, m.time, m.expiry_ms, m.store_file, self.places, m.header, body, m.size
        )

    def encode(self) -> Op:
        flags = record.publish_flags(self.message.store_file, self.message.expiry_ms)
        return Op(record.PUBLISH, flags, len(self.places), self.data(flags))

    def apply(self, state: LogState, at: AppliedRecord) -> None:
        places = self.places
        first_seqs = at.first_seqs
        if first_seqs:
            places = [(number, first_seqs[number] + ordinal) for number, ordinal in places]
        state.apply_publish(self.message, places, self.born, self.is_held)

    def contents(self) -> "list[Publish | Append]":
        return [self]

    def text(self) -> str:
        m = self.message
        places = ", ".join([f"queue {queue} seq {seq}" for queue, seq in self.places])
        expiry = f" expiry {m.expiry_ms}" if m.expiry_ms else ""
        body = body_text(m.body or b"")
        if m.store_file:
            body = f"body of {m.size} bytes in store file {m.store_file}"
        return f"id {m.id:#x} time {m.time}{expiry} to {places}, header {m.header!r} {body}"


@mypyc_attr(acyclic=True)
class Dequeue(LogOperation):
    """DEQUEUE: messages of one queue are acknowledged. entries: see `LogState.apply_dequeue`."""

    def __init__(
        self, queue: int, runs: list[Run], stores: list[StoreRef],
        entries: list[Entry] | None = None,
    ) -> None:  # fmt: skip
        self.queue: int = queue
        self.runs: list[Run] = runs
        self.stores: list[StoreRef] = stores
        self.entries: list[Entry] = [] if entries is None else entries

    def encode(self) -> Op:
        data = record.dequeue_data(self.queue, self.runs, self.stores)
        return Op(record.DEQUEUE, 0, len(self.runs), data)

    def apply(self, state: LogState, at: AppliedRecord) -> None:
        state.apply_dequeue(at.lsn, self.queue, self.runs, self.stores, self.entries)

    def text(self) -> str:
        refs = ", ".join([f"({id:#x}, file {file}, {size})" for id, file, size in self.stores])
        stores = f" store {refs}" if refs else ""
        return f"queue {self.queue} runs {runs_text(self.runs)}{stores}"


@mypyc_attr(acyclic=True)
class Move(LogOperation):
    """MOVE: a message moves from one queue to others and gets another header. Its body, or the
    reference to it, stays the same. size: bytes of the body. entry: the old one, or None if the
    caller does not have it."""

    def __init__(
        self, queue: int, seq: int, size: int, publish: Publish, entry: Entry | None = None
    ) -> None:
        self.queue: int = queue
        self.seq: int = seq
        self.size: int = size
        self.publish: Publish = publish
        self.entry: Entry | None = entry

    def encode(self) -> Op:
        p = self.publish
        flags = record.publish_flags(p.message.store_file, p.message.expiry_ms)
        data = record.move_data(self.queue, self.seq, self.size, p.data(flags))
        return Op(record.MOVE, flags, len(p.places), data)

    def apply(self, state: LogState, at: AppliedRecord) -> None:
        m = self.publish.message
        self.publish.apply(state, at)
        stores = [(m.id, m.store_file, m.size)] if m.store_file else []
        run = (self.seq, 1, m.size, len(stores))
        entry = self.entry
        state.apply_dequeue(at.lsn, self.queue, [run], stores, [] if entry is None else [entry])

    def text(self) -> str:
        return f"from queue {self.queue} seq {self.seq} size {self.size}: {self.publish.text()}"


@mypyc_attr(acyclic=True)
class Requeue(LogOperation):
    """REQUEUE: how often messages (seq, attempts) of a queue were delivered."""

    def __init__(self, queue: int, attempts: list[tuple[int, int]]) -> None:
        self.queue: int = queue
        self.attempts: list[tuple[int, int]] = attempts

    def encode(self) -> Op:
        data = record.requeue_data(self.queue, self.attempts)
        return Op(record.REQUEUE, 0, len(self.attempts), data)

    def apply(self, state: LogState, at: AppliedRecord) -> None:
        state.apply_requeue(self.queue, self.attempts)

    def text(self) -> str:
        return f"queue {self.queue} attempts {self.attempts}"


@mypyc_attr(acyclic=True)
class Mark(LogOperation):
    """MARK: messages of a queue part below `mark` may have been delivered."""

    def __init__(self, queue: int, mark: int) -> None:
        self.queue: int = queue
        self.mark: int = mark

    def encode(self) -> Op:
        return Op(record.MARK, 0, 0, record.mark_data(self.queue, self.mark))

    def apply(self, state: LogState, at: AppliedRecord) -> None:
        state.apply_mark(self.queue, self.mark)

    def text(self) -> str:
        return f"queue {self.queue} mark {self.mark}"


@mypyc_attr(acyclic=True)
class Purge(LogOperation):
    """PURGE: removes all messages of a queue below `upper` but the runs kept and leased ones."""

    def __init__(self, queue: int, upper: int, kept: list[Run]) -> None:
        self.queue: int = queue
        self.upper: int = upper
        self.kept: list[Run] = kept

    def encode(self) -> Op:
        data = record.purge_data(self.queue, self.upper, self.kept)
        return Op(record.PURGE, 0, len(self.kept), data)

    def apply(self, state: LogState, at: AppliedRecord) -> None:
        state.apply_purge(at.lsn, self.queue, self.upper, self.kept)

    def text(self) -> str:
        return f"queue {self.queue} below {self.upper} but {runs_text(self.kept)}"


@mypyc_attr(acyclic=True)
class Delete(LogOperation):
    """DELETE_QUEUE: a queue or a stream, and all that it holds."""

    def __init__(self, queue: int) -> None:
        self.queue: int = queue

    def encode(self) -> Op:
        return Op(record.DELETE_QUEUE, 0, 0, record.delete_queue_data(self.queue))

    def apply(self, state: LogState, at: AppliedRecord) -> None:
        state.apply_delete(at.lsn, self.queue)

    def text(self) -> str:
        return f"queue {self.queue}"


@mypyc_attr(acyclic=True)
class TopologyChange(LogOperation):
    """TOPOLOGY: a record of the RoutingTable (routing_table.py has its bytes)."""

    def __init__(self, data: bytes) -> None:
        self.data: bytes = data

    def encode(self) -> Op:
        return Op(record.TOPOLOGY, 0, 0, self.data)

    def apply(self, state: LogState, at: AppliedRecord) -> None:
        state.apply_topology(self.data)

    def text(self) -> str:
        return topology_text(self.data)


@mypyc_attr(acyclic=True)
class Release(LogOperation):
    """RELEASE: the store references of what was purged in a queue segment are released. refs: if
    the caller has read them, else None; the record does not contain them (record.release_data)."""

    def __init__(self, queue: int, segment: int, refs: list[StoreRef] | None = None) -> None:
        self.queue: int = queue
        self.segment: int = segment
        self.refs: list[StoreRef] | None = refs

    def encode(self) -> Op:
        return Op(record.RELEASE, 0, 0, record.release_data(self.queue, self.segment))

    def apply(self, state: LogState, at: AppliedRecord) -> None:
        state.apply_release(self.queue, self.segment, self.refs)

    def text(self) -> str:
        return f"queue {self.queue} segment {self.segment}"


@mypyc_attr(acyclic=True)
class Append(LogOperation):
    """STREAM: one record of a stream, at its offset; in a TX_PART the offset is an ordinal."""

    def __init__(self, found: StreamData) -> None:
        self.found: StreamData = found

    def encode(self) -> Op:
        s = self.found
        rest = s.payload
        tail: list[bytes] | None = None
        if s.pieces is not None:
            tail = s.pieces.pieces
        elif len(rest) >= LARGE_BYTES:
            tail, rest = [rest], b""
        data = record.stream_data(s.stream, s.offset, s.time_us, s.meta, rest)
        return Op(record.STREAM, 0, 1, data, tail)

    def apply(self, state: LogState, at: AppliedRecord) -> None:
        found = self.found
        first_seqs = at.first_seqs
        if first_seqs:
            found = found._replace(offset=first_seqs[found.stream] + found.offset)
        state.apply_stream(at.lsn, at.mode, found)

    def contents(self) -> "list[Publish | Append]":
        return [self]

    def text(self) -> str:
        s = self.found
        return (
            f"stream {s.stream} offset {s.offset} time {s.time_us} meta {s.meta!r} "
            f"{body_text(s.payload)}"
        )


@mypyc_attr(acyclic=True)
class Seen(LogOperation):
    """SEEN: a queue or an exchange has seen the key of a message, which is in the same record."""

    def __init__(self, name: bytes, key: bytes, until_ms: int) -> None:
        self.name: bytes = name
        self.key: bytes = key
        self.until_ms: int = until_ms

    def encode(self) -> Op:
        return Op(record.SEEN, 0, 0, record.seen_data(self.until_ms, self.key, self.name))

    def apply(self, state: LogState, at: AppliedRecord) -> None:
        state.apply_seen(at.lsn, self.name, self.key, self.until_ms)

    def text(self) -> str:
        return f"window {self.name!r} key {self.key.hex()} until {self.until_ms}"


@mypyc_attr(acyclic=True)
class ReaderOffsetChange(LogOperation):
    """READER_OFFSET: the offset of a named reader of a stream, or that it is forgotten."""

    def __init__(self, found: ReaderData, flags: int) -> None:
        self.found: ReaderData = found
        self.flags: int = flags

    def encode(self) -> Op:
        r = self.found
        data = record.reader_data(r.stream, r.offset, r.kept_from, r.time_ms, r.reader)
        return Op(record.READER_OFFSET, self.flags, 0, data)

    def apply(self, state: LogState, at: AppliedRecord) -> None:
        state.apply_reader(self.found, self.flags)

    def text(self) -> str:
        r = self.found
        if self.flags & record.READER_DELETED:
            return f"stream {r.stream} reader {r.reader!r} is forgotten"
        kept = "" if r.kept_from == record.NOT_KEPT else f" keeps from {r.kept_from}"
        return f"stream {r.stream} reader {r.reader!r} offset {r.offset}{kept} time {r.time_ms}"


@mypyc_attr(acyclic=True)
class LeaseChange(LogOperation):
    """LEASE: a reader leases messages of a queue, commits some or releases some."""

    def __init__(self, found: LeaseData, flags: int) -> None:
        self.found: LeaseData = found
        self.flags: int = flags

    def encode(self) -> Op:
        x = self.found
        data = record.lease_data(x.queue, x.ordinal, x.time_ms, x.reader, x.runs)
        return Op(record.LEASE, self.flags, len(x.runs), data)

    def apply(self, state: LogState, at: AppliedRecord) -> None:
        state.apply_lease(at.lsn, self.found, self.flags)

    def text(self) -> str:
        x = self.found
        what = LEASE_TEXTS.get(self.flags, f"flags {self.flags}")
        runs = ", ".join(lease_runs_text(x.runs)) or "no runs"
        return (
            f"{what} queue {x.queue} reader {x.reader!r} ordinal {x.ordinal} time {x.time_ms}: "
            f"{runs}"
        )


@mypyc_attr(acyclic=True)
class BatchChange(LogOperation):
    """BATCH: a batch of a query is decided, continues, adopts a page, or is forgotten."""

    def __init__(self, found: BatchRecord, flags: int) -> None:
        self.found: BatchRecord = found
        self.flags: int = flags

    def encode(self) -> Op:
        return Op(
            record.BATCH,
            self.flags,
            len(self.found.pages),
            batches.encode_batch(self.found, self.flags),
        )

    def apply(self, state: LogState, at: AppliedRecord) -> None:
        state.apply_batch(at.lsn, self.flags, self.found)

    def text(self) -> str:
        return batch_text(self.found, self.flags)


@mypyc_attr(acyclic=True)
class Tx(LogOperation):
    """TX: a transaction, a list of operations. They are decoded one at a time."""

    def __init__(self, ops: list[Op]) -> None:
        self.ops: list[Op] = ops

    def encode(self) -> Op:
        return Op(record.TX, 0, len(self.ops), record.encode_ops(self.ops))

    def apply(self, state: LogState, at: AppliedRecord) -> None:
        apply_all(self.ops, state, at)

    def contents(self) -> "list[Publish | Append]":
        return contents_of(self.ops)

    def text(self) -> str:
        return f"of {len(self.ops)} operations"


@mypyc_attr(acyclic=True)
class TxPart(LogOperation):
    """TX_PART: some operations of a transaction that a TX_COMMIT decides."""

    def __init__(self, transaction: int, ops: list[Op]) -> None:
        self.transaction: int = transaction
        self.ops: list[Op] = ops

    def encode(self) -> Op:
        data = record.tx_part_data(self.transaction, self.ops)
        return Op(record.TX_PART, 0, len(self.ops), data)

    def apply(self, state: LogState, at: AppliedRecord) -> None:
        state.apply_part(at, self.transaction, self.ops)

    def contents(self) -> "list[Publish | Append]":
        return contents_of(self.ops)

    def text(self) -> str:
        return f"transaction {self.transaction} of {len(self.ops)} operations"


@mypyc_attr(acyclic=True)
class TxPartsCommit(LogOperation):
    """TX_COMMIT: the parts of a transaction take effect. first_seqs: (queue or stream, the seq or
    offset of its first message)."""

    def __init__(self, transaction: int, first_seqs: list[Place]) -> None:
        self.transaction: int = transaction
        self.first_seqs: list[Place] = first_seqs

    def encode(self) -> Op:
        data = record.tx_commit_data(self.transaction, self.first_seqs)
        return Op(record.TX_COMMIT, 0, len(self.first_seqs), data)

    def apply(self, state: LogState, at: AppliedRecord) -> None:
        state.apply_commit(at, self.transaction, dict(self.first_seqs))

    def text(self) -> str:
        return f"transaction {self.transaction} first seqs {self.first_seqs}"


@mypyc_attr(acyclic=True)
class TxSlice(LogOperation):
    """TX_SLICE: one part of a transaction takes effect. The first one decides: so do the others,
    each by its TX_SLICE, or in recovery if that is not in the log. part_lsn: the LSN of the part.
    first_seqs: of the part."""

    def __init__(self, transaction: int, part_lsn: int, first_seqs: list[Place]) -> None:
        self.transaction: int = transaction
        self.part_lsn: int = part_lsn
        self.first_seqs: list[Place] = first_seqs

    def encode(self) -> Op:
        data = record.tx_slice_data(self.transaction, self.part_lsn, self.first_seqs)
        return Op(record.TX_SLICE, 0, len(self.first_seqs), data)

    def apply(self, state: LogState, at: AppliedRecord) -> None:
        state.apply_slice(at, self.transaction, self.part_lsn, dict(self.first_seqs))

    def text(self) -> str:
        return f"transaction {self.transaction} part {self.part_lsn} first seqs {self.first_seqs}"


# ---- the table ---------------------------------------------------------------------------------


def _publish(data: record.PublishData) -> Publish:
    if data.in_store and not data.store_file:
        raise RecordError("PUBLISH: the body is in store file 0, expected 1 or more")
    message = QueuedMessage(
        data.id, data.header, None if data.in_store else data.body, data.body_size, data.time,
        data.expiry_ms, data.store_file,
    )  # fmt: skip
    return Publish(message, data.places)


def _decode_publish(op: Op) -> LogOperation:
    return _publish(record.decode_publish(op.data, op.flags, op.count))


def _decode_dequeue(op: Op) -> LogOperation:
    queue, runs, stores = record.decode_dequeue(op.data, op.count)
    return Dequeue(queue, runs, stores)


def _decode_move(op: Op) -> LogOperation:
    found = record.decode_move(op.data, op.flags, op.count)
    return Move(found.queue, found.seq, found.size, _publish(found.publish))


def _decode_requeue(op: Op) -> LogOperation:
    found = record.decode_requeue(op.data, op.count)
    return Requeue(found.queue, found.attempts)


def _decode_mark(op: Op) -> LogOperation:
    found = record.decode_mark(op.data)
    return Mark(found.queue, found.mark)


def _decode_purge(op: Op) -> LogOperation:
    found = record.decode_purge(op.data, op.count)
    return Purge(found.queue, found.upper, found.kept)


def _decode_delete(op: Op) -> LogOperation:
    return Delete(record.decode_delete_queue(op.data))


def _decode_release(op: Op) -> LogOperation:
    found = record.decode_release(op.data)
    return Release(found.queue, found.segment)


def _decode_lease(op: Op) -> LogOperation:
    return LeaseChange(record.decode_lease(op.data, op.count), op.flags)


def _decode_reader(op: Op) -> LogOperation:
    return ReaderOffsetChange(record.decode_reader(op.data), op.flags)


def _decode_stream(op: Op) -> LogOperation:
    return Append(record.decode_stream(op.data))


def _decode_batch(op: Op) -> LogOperation:
    return BatchChange(batches.decode_batch(op.data, op.flags, op.count), op.flags)


def _decode_tx(op: Op) -> LogOperation:
    return Tx(record.decode_ops(op.data, op.count))


def _decode_tx_part(op: Op) -> LogOperation:
    found = record.decode_tx_part(op.data, op.count)
    return TxPart(found.transaction, found.ops)


def _decode_tx_commit(op: Op) -> LogOperation:
    found = record.decode_tx_commit(op.data, op.count)
    return TxPartsCommit(found.transaction, found.first_seqs)


def _decode_tx_slice(op: Op) -> LogOperation:
    found = record.decode_tx_slice(op.data, op.count)
    return TxSlice(found.transaction, found.part_lsn, found.first_seqs)


def _decode_seen(op: Op) -> LogOperation:
    until_ms, key, name = record.decode_seen(op.data)
    return Seen(name, key, until_ms)


def _stored_by_none(op: Op) -> list[StoredBody]:
    return []


def _stored_by_publish(op: Op) -> list[StoredBody]:
    if not op.flags & record.IN_STORE:
        return []
    found = record.decode_publish(op.data, op.flags, op.count)
    return [(found.store_file, found.id)]


def _stored_by_list(op: Op) -> list[StoredBody]:
    found: list[StoredBody] = []
    for one in record.decode_ops(op.data, op.count, 8 if op.type == record.TX_PART else 0):
        found += RECORD_TYPES[one.type].stored(one)
    return found


class RecordType:
    """One row of the table. decode, stored: RecordError for data without a meaning."""

    def __init__(
        self, number: int, operation: type[LogOperation], decode: Callable[[Op], LogOperation],
        stored: Callable[[Op], list[StoredBody]],
    ) -> None:  # fmt: skip
        self.number: int = number
        self.name: str = record.type_name(number)
        self.operation: type[LogOperation] = operation
        self.decode: Callable[[Op], LogOperation] = decode
        self.stored: Callable[[Op], list[StoredBody]] = stored


# In the order of their numbers.
RECORD_TYPES: Final[list[RecordType]] = [
    RecordType(record.NOP, Nop, lambda op: Nop(op.data), _stored_by_none),
    RecordType(record.PUBLISH, Publish, _decode_publish, _stored_by_publish),
    RecordType(record.DEQUEUE, Dequeue, _decode_dequeue, _stored_by_none),
    RecordType(record.MOVE, Move, _decode_move, _stored_by_none),
    RecordType(record.REQUEUE, Requeue, _decode_requeue, _stored_by_none),
    RecordType(record.MARK, Mark, _decode_mark, _stored_by_none),
    RecordType(record.PURGE, Purge, _decode_purge, _stored_by_none),
    RecordType(record.DELETE_QUEUE, Delete, _decode_delete, _stored_by_none),
    RecordType(
        record.TOPOLOGY, TopologyChange, lambda op: TopologyChange(op.data), _stored_by_none
    ),
    RecordType(record.TX, Tx, _decode_tx, _stored_by_list),
    RecordType(record.TX_PART, TxPart, _decode_tx_part, _stored_by_list),
    RecordType(record.TX_COMMIT, TxPartsCommit, _decode_tx_commit, _stored_by_none),
    RecordType(record.RELEASE, Release, _decode_release, _stored_by_none),
    RecordType(record.LEASE, LeaseChange, _decode_lease, _stored_by_none),
    RecordType(record.READER_OFFSET, ReaderOffsetChange, _decode_reader, _stored_by_none),
    RecordType(record.STREAM, Append, _decode_stream, _stored_by_none),
    RecordType(record.BATCH, BatchChange, _decode_batch, _stored_by_none),
    RecordType(record.TX_SLICE, TxSlice, _decode_tx_slice, _stored_by_none),
    RecordType(record.SEEN, Seen, _decode_seen, _stored_by_none),
]


def decode(op: Op) -> LogOperation:
    """Decode an operation. RecordError."""
    if not 0 <= op.type < len(RECORD_TYPES):
        raise RecordError(record.refusal(op.type))
    return RECORD_TYPES[op.type].decode(op)


def publish_of(data: bytes, flags: int, count: int) -> Publish:
    """Decode the data of a PUBLISH. RecordError.

    Most are for one queue. Its numbers are read one by one: to unpack a struct makes an object of
    each (record_writer.py), and took a fifth of a replay."""
    head = record.PUBLISH_FIXED_BYTES + record.PLACE_BYTES
    if flags or count != 1 or len(data) < head:
        return _publish(record.decode_publish(data, flags, count))
    message_id: int = read_i64_be(data, 0)
    time: int = read_i32_be(data, 8)
    header_len: int = read_i32_be(data, 12)
    body_size: int = read_i32_be(data, 16)
    queue: int = read_i32_be(data, 20)
    seq: int = read_i64_be(data, 24)
    end = head + header_len
    if (
        len(data) != end + body_size
        or message_id < 0
        or time < 0
        or header_len < 0
        or body_size < 0
        or queue < 0
        or seq < 0
    ):
        return _publish(record.decode_publish(data, flags, count))
    message = QueuedMessage(message_id, data[head:end], data[end:], body_size, time)
    return Publish(message, [(queue, seq)])


def operation_of(found: Record) -> LogOperation:
    """Decode a record of the log. RecordError."""
    # As `decode`, but most records are one of these two: it saves 10 % of a replay.
    if found.type == record.PUBLISH:
        return publish_of(found.data, found.flags, found.count)
    if found.type == record.DEQUEUE:
        queue, runs, stores = record.decode_dequeue(found.data, found.count)
        return Dequeue(queue, runs, stores)
    return decode(Op(found.type, found.flags, found.count, found.data))


def stored_bodies(found: Record) -> list[StoredBody]:
    """Return the bodies of the store that a record names when it publishes: none for a MOVE, whose
    body an earlier record or the checkpoint names. RecordError."""
    if found.type == record.PUBLISH and not found.flags & record.IN_STORE:
        return []  # most records
    op = Op(found.type, found.flags, found.count, found.data)
    return RECORD_TYPES[found.type].stored(op)


def apply_all(ops: list[Op], state: LogState, at: AppliedRecord) -> None:
    """Decode and apply the operations of a list, one by one. ValueError, KeyError."""
    for op in ops:
        decode(op).apply(state, at)


def contents_of(ops: list[Op]) -> list[Publish | Append]:
    """Return the messages and stream records that operations bring. RecordError."""
    found: list[Publish | Append] = []
    for op in ops:
        found += decode(op).contents()
    return found


def targets_of(ops: list[Op]) -> list[int]:
    """Return the numbers of the queues and streams to which operations bring something.
    RecordError."""
    found: dict[int, None] = {}
    for x in contents_of(ops):
        if isinstance(x, Publish):
            found.update(dict.fromkeys([number for number, _ in x.places]))
        else:
            found[x.found.stream] = None
    return list(found)


def runs_text(runs: list[Run]) -> str:
    """Return runs of messages in words."""
    texts = [f"{first}+{n} ({size} bytes, {stores} stored)" for first, n, size, stores in runs]
    return ", ".join(texts) or "nothing"


def lease_runs_text(runs: list[LeaseRun]) -> list[str]:
    """Return runs of leased messages in words."""
    return [
        f"queue {part} seqs {first}+{n} ({size} bytes, {stores} stored, latest {latest_s})"
        for part, first, n, size, stores, latest_s in runs
    ]


def body_text(body: bytes) -> str:
    """Return the size, checksum and first bytes of a body, which may be large or private: enough to
    distinguish two bodies."""
    more = " ..." if len(body) > SHOWN_BYTES else ""
    return f"body of {len(body)} bytes, crc {crc32(body):08x}, {body[:SHOWN_BYTES]!r}{more}"


def batch_text(found: BatchRecord, flags: int) -> str:
    """Return a BATCH record in words."""
    title = f"query {found.query!r} batch {found.number}"
    if flags in (batches.DECIDED, batches.DECIDED_BY):
        pages = ", ".join([_page_text(page) for page in found.pages]) or "no pages"
        facts = "" if found.facts is None else f" {_facts_text(found.facts)}"
        return f"decided {title} time {found.time_us} target {found.target!r}{facts}: {pages}"
    if flags == batches.PROGRESS:
        return f"progress {title} page {found.page} frame {found.frame}"
    if flags == batches.ADOPTED:
        return (
            f"adopted {title} page {found.page} by stream {found.stream} offset {found.base} "
            f"time {found.time_us}"
        )
    return f"forgotten {title}"


def section_lines(batch: Batch) -> list[str]:
    """Return the lines of a query's last batch in a checkpoint: one, and one for each page that it
    has not moved yet and for each stream that it holds."""
    state = "done" if batch.is_done else f"at page {batch.page} frame {batch.frame}"
    first = (
        f"query {batch.query!r} batch {batch.number} {state} of {batch.page_count} pages, "
        f"{batch.rows} rows, {batch.bytes} bytes, time {batch.time_us} target {batch.target!r}"
    )
    holds = [f"  holds stream {n} at offset {offset}" for n, offset in batch.holds.items()]
    facts = [] if batch.facts is None else [f"  {_facts_text(batch.facts)}"]
    return [first, *[f"  {_page_text(page)}" for page in batch.pages], *holds, *facts]


def _facts_text(facts: BatchFacts) -> str:
    gapless = " gapless" if facts.is_gapless else ""
    return (
        f"content {facts.rows} rows checksum {facts.checksum:016x}{gapless} of user "
        f"{facts.owner.user!r} first target {facts.owner.target!r}"
    )


def _page_text(page: StagedPage) -> str:
    return f"{page.name} id {page.page_id:016x} rows {page.rows} bytes {page.bytes}"
