"""StorageState: what the records of the log have led to, for live work and for replay.

The state of a vhost at any LSN is the last checkpoint with all records after it applied: the live
entries of each queue (QueueIndex), the references of each stored body (MessageStore), the topology
(RoutingTable), streams and the offsets of their readers (StreamTable), leases, batches, and the
purged slots whose references are not released yet.

Records change it by the calls of LogState (record_types.py). The journal makes these calls for what
it has just logged, and Replay for what it reads, so a test of replay tests live work too. There is
one difference: live work passes the entries, so that what leaves RAM while a checkpoint still needs
it is kept (`departed`, [4]). Replay finds what it needs in the holders and in the rows of sections.

Purges: entries in RAM or in a section release their references at once. For those on slots the ids
are not known, so the segment is put on `reaping` with a bitmap of what was purged. Its slots are
read later, in slices, and each finished segment is one RELEASE record. The files stay until
then [6].
"""

from typing import Final

from penstock.errors import CorruptionError, is_shortage
from penstock.message import Entry, MessageFactory, QueuedMessage
from penstock.storage.files.data_directory import hash_name
from penstock.storage.files.durability import DISK, NONE
from penstock.storage.files.filesystem import FileSystem
from penstock.storage.index.key_windows import KeyWindows
from penstock.storage.index.leases import LeaseTable
from penstock.storage.index.queue_index import Departed, QueueIndex, Ticks, unwritten
from penstock.storage.index.routing_table import (
    DELETE_EXCHANGE,
    DurableQueue,
    RoutingTable,
    name_of,
)
from penstock.storage.journal.record_types import (
    AppliedRecord,
    LogState,
    apply_all,
    operation_of,
    targets_of,
)
from penstock.storage.log import record
from penstock.storage.log.log_file import LogReader
from penstock.storage.log.record import (
    LeaseData,
    LeaseRun,
    Op,
    Place,
    ReaderData,
    Run,
    StoreRef,
    StreamData,
)
from penstock.storage.pages import batches
from penstock.storage.pages.batches import BatchRecord, BatchTable
from penstock.storage.pages.staging import query_path
from penstock.storage.pages.streams import STREAM_FLAG, StreamTable
from penstock.storage.store.message_store import MessageStore

ENTRY_BYTES: Final = 200  # counted for a replayed message, beside its body


class StorageState(LogState):
    """Everything that a checkpoint holds, as of the last record applied.

    The calls of LogState look up queues by number and call the methods that the engine calls too.
    """

    def __init__(
        self, fs: FileSystem, path: str, vhost: int, slots: int, store: MessageStore
    ) -> None:
        self.fs = fs
        self.path: str = path
        self.vhost: int = vhost
        self.slots: int = slots
        self.store = store
        self.ticks: Ticks = Ticks()
        self.ticks.handles.fs = fs
        self.routing: RoutingTable = RoutingTable(self.ticks)
        self.factory: MessageFactory = MessageFactory()
        self.queues: dict[int, QueueIndex] = {}
        self.next_queue: int = 1
        self.reaping: dict[tuple[int, int], bytearray] = {}
        self.releasing: list[int] = []  # queue of each purge with transients to be released
        self.reap_lsn: int = 0  # reaping waits until this LSN is durable
        self.dying: dict[int, QueueIndex] = {}  # deleted, with slots that must be read
        self.deleted: list[QueueIndex] = []  # whose directories the next checkpoint deletes
        self.streams: StreamTable = StreamTable(fs, path)
        self.leases: LeaseTable = LeaseTable()
        self.windows: KeyWindows = KeyWindows()
        self.batches: BatchTable = BatchTable()
        # In replay: (file, id) of missing bodies -> references to them.
        self.missing_bodies: dict[tuple[int, int], int] = {}
        self.replay: Replay | None = None  # while recovery reads the log

    def name_vhost(self, name: bytes) -> None:
        """Set the vhost's name, which new directories have in their `.queue_name`."""
        self.ticks.vhost_name = self.streams.vhost_name = name

    # ---- queues --------------------------------------------------------------------------------

    def add_queue(self, name: bytes, number: int, *, is_durable: bool = True) -> QueueIndex:
        """Add an empty queue with this number."""
        path = f"{self.path}/queues/{hash_name(name)}.{number}"
        queue = QueueIndex(
            self.fs, path, name, self.vhost, number, self.slots, self.ticks, is_durable
        )
        self.queues[number] = queue
        if number >= self.next_queue:
            self.next_queue = number + 1
        return queue

    def check_topology(self, data: bytes, *, is_stream: bool = False) -> None:
        """Raise ValueError for what must not be logged: what is not a record, a queue with a name
        or a number that is taken, and a stream without a directory."""
        trial = RoutingTable(Ticks())
        trial.apply(data)
        for queue in trial.queues.values():
            known = self.routing.queues.get(queue.name)
            if known is not None and known.number != queue.number:
                raise ValueError(f"queue {queue.name!r} exists, with the number {known.number}")
            is_made = self.streams.is_made(queue.number)
            if known is None and queue.number < self.next_queue and not is_made:
                raise ValueError(f"the queue number {queue.number} was given out before")
            if bool(queue.flags & STREAM_FLAG) != (
                queue.number in self.streams.by_number or is_stream
            ):
                raise ValueError(f"{queue.name!r}: streams, and only they, are declared as streams")

    def apply_topology(self, data: bytes) -> None:
        """Apply a record of the RoutingTable, and add a declared queue or stream."""
        known = len(self.routing.queues)
        self.routing.apply(data)
        if data[0] == DELETE_EXCHANGE:
            self.windows.delete(b"e" + name_of(data))
        if len(self.routing.queues) != known:
            last: DurableQueue = next(reversed(self.routing.queues.values()))
            if last.flags & STREAM_FLAG:
                self.streams.add(last.name, last.number)
                self.next_queue = max(self.next_queue, last.number + 1)
            elif last.number not in self.queues:
                self.add_queue(last.name, last.number)

    def apply_delete(self, lsn: int, number: int) -> None:
        queue = self.queues.get(number)
        stream = self.streams.by_number.get(number)
        if queue is not None:
            self.delete_queue(lsn, queue)
        elif stream is not None:
            for reader in stream.readers:
                self.routing.delete_reader(stream.name, reader.encode())
            self.routing.delete_queue(number)
            self.streams.delete(stream)

    def delete_queue(self, lsn: int, queue: QueueIndex) -> None:
        """Delete a queue, durable or not, with all its messages. The next checkpoint deletes its
        directory."""
        queue.is_deleted = True
        self._apply_leased(self.leases.delete(queue.number), is_leased=False)
        self.purge(lsn, queue, queue.next_seq, [])
        self.routing.delete_queue(queue.number)
        self.windows.delete(b"q" + queue.name)
        del self.queues[queue.number]
        self.dying[queue.number] = queue
        self.bury(queue.number)

    def bury(self, number: int) -> None:
        """If this queue is deleted, and none of its slots must be read any more, let the next
        checkpoint delete its directory. One that has none, and gets none from the checkpoint in
        progress, is forgotten: clients make a queue for each of their replies."""
        dying = self.dying.get(number)
        if dying is None or number in self.releasing:
            return
        if any(n == number for n, _ in self.reaping):
            return
        del self.dying[number]
        if dying.has_directory or dying.departed is not None:
            self.deleted.append(dying)
        else:
            dying.close()

    def apply_seen(self, lsn: int, name: bytes, key: bytes, until_ms: int) -> None:
        self.windows.of(name).add(key, until_ms, lsn=lsn)

    def apply_lease(self, lsn: int, found: LeaseData, flags: int) -> None:
        """Lease live messages to a reader, or make them ready again. What a reader commits is
        removed by a DEQUEUE of the same record."""
        if found.queue in self.queues:
            runs, is_leased = self.leases.apply(found, flags, lsn)
            self._apply_leased(runs, is_leased=is_leased)

    def _apply_leased(self, runs: list[LeaseRun], *, is_leased: bool) -> None:
        for number, first, n, size, _, _ in runs:
            queue = self.queues.get(number)
            if queue is None:
                continue
            if is_leased:
                queue.leased.add(first, n, size)
            else:
                queue.leased.remove(first, n, size)

    def close(self) -> None:
        """Close every file of queues, streams and store."""
        self.streams.close()
        for queue in (*self.queues.values(), *self.dying.values(), *self.deleted):
            queue.close()
        self.store.close()

    # ---- batches -------------------------------------------------------------------------------

    def apply_batch(self, lsn: int, flags: int, found: BatchRecord) -> None:
        """Decide a batch, note its progress or forget it; or make a staged page a stream's. The
        caller calls `end_record` once all of the record is applied. ValueError."""
        if flags == batches.ADOPTED:
            self._adopt(lsn, found)
        self.batches.rolling = self.batches.apply(flags, found)

    def end_record(self, lsn: int) -> None:
        """Note that all of the record with this LSN is applied. If it was the last one of a batch,
        the batch holds no stream any more."""
        batch = self.batches.rolling
        if batch is None:
            return
        self.batches.rolling = None
        if batch.holds and (batch.is_done or self.batches.by_query.get(batch.query) is not batch):
            self.streams.release(batch, self.batches.by_query.values(), lsn)

    def _adopt(self, lsn: int, found: BatchRecord) -> None:
        batch = self.batches.by_query.get(found.query)
        stream = self.streams.by_number.get(found.stream)
        if batch is None or stream is None or batch.page != found.page or batch.is_done:
            return  # the stream was deleted, or `BatchTable.apply` raises what is wrong
        if found.base != stream.next_offset:
            at = stream.next_offset
            raise ValueError(f"a page of offset {found.base} in stream {found.stream} at {at}")
        self.streams.touch(batch, stream)
        page = batch.current
        staged = f"{query_path(self.path, found.query)}/{page.name}"
        self.streams.adopt(stream, lsn, DISK, staged, page, found.time_us)

    # ---- streams and transactions --------------------------------------------------------------

    def apply_stream(self, lsn: int, mode: int, found: StreamData) -> None:
        """Append to a stream. If the record is of a batch's slice, the batch holds the stream."""
        rolling = self.batches.rolling
        if rolling is not None:
            stream = self.streams.by_number.get(found.stream)
            if stream is not None:
                self.streams.touch(rolling, stream)
        held = self.streams.apply(lsn, mode, found)
        replay = self.replay
        if replay is not None:
            replay.held_bytes += held

    def apply_reader(self, found: ReaderData, flags: int) -> None:
        self.streams.set_reader(found, flags)
        stream = self.streams.by_number.get(found.stream)
        if flags & record.READER_DELETED and stream is not None:
            self.routing.delete_reader(stream.name, found.reader)

    def apply_part(self, at: AppliedRecord, transaction: int, ops: list[Op]) -> None:
        """Keep the position of the part: its bodies need not stay in RAM until the commit."""
        replay = self.replay
        assert replay is not None, "live work applies a transaction when its commit is logged"
        replay.parts.setdefault(transaction, {})[at.lsn] = at.segment, at.offset

    def apply_commit(self, at: AppliedRecord, transaction: int, first_seqs: dict[int, int]) -> None:
        """Read the parts again, one at a time, and apply them."""
        replay = self.replay
        assert replay is not None, "live work applies a transaction when its commit is logged"
        at.first_seqs = first_seqs
        for part_lsn in list(replay.parts.get(transaction, {})):
            apply_all(replay.take_part(transaction, part_lsn), self, at)
        replay.end_parts(transaction)

    def apply_slice(
        self, at: AppliedRecord, transaction: int, part_lsn: int, first_seqs: dict[int, int]
    ) -> None:
        """Read one part again, and apply it."""
        replay = self.replay
        assert replay is not None, "live work applies a part when its slice is logged"
        at.first_seqs = first_seqs
        apply_all(replay.take_part(transaction, part_lsn), self, at)

    def next_seqs(self, numbers: list[int]) -> dict[int, int]:
        """Return the seq or offset that the next message gets, of queues and streams by number; 0
        for deleted ones."""
        found: dict[int, int] = {}
        for number in numbers:
            queue = self.queues.get(number)
            stream = self.streams.by_number.get(number)
            if queue is not None:
                found[number] = queue.next_seq
            else:
                found[number] = 0 if stream is None else stream.next_offset
        return found

    # ---- references ----------------------------------------------------------------------------

    def ref(self, file: int, id: int, n: int) -> None:
        """Add n references to a stored body."""
        if self.missing_bodies and (file, id) in self.missing_bodies:
            self.missing_bodies[file, id] += n
        else:
            self.store.ref(file, id, n)

    def unref(self, file: int, id: int) -> None:
        """Release one reference to a stored body."""
        if self.missing_bodies and (file, id) in self.missing_bodies:
            self.missing_bodies[file, id] -= 1
        else:
            self.store.unref(file, id)

    # ---- messages ------------------------------------------------------------------------------

    def apply_publish(
        self, message: QueuedMessage, places: list[Place], born: list[Entry] | None, is_held: bool
    ) -> None:
        replay = self.replay
        if replay is not None:
            self.factory.seen(message.id)
        refs = 0
        for number, seq in places:
            queue = self.queues.get(number)
            if queue is None:
                continue
            entry = queue.add(seq, message, is_held)
            if entry is not None:
                refs += 1
                if born is not None:
                    born.append(entry)
        if not refs:
            return
        if message.store_file:
            self.ref(message.store_file, message.id, refs)
        if replay is not None:
            replay.held_bytes += ENTRY_BYTES + (0 if message.body is None else len(message.body))

    def apply_requeue(self, number: int, attempts: list[tuple[int, int]]) -> None:
        queue = self.queues.get(number)
        if queue is not None:
            for seq, tries in attempts:
                queue.set_attempts(seq, tries)

    def apply_mark(self, number: int, mark: int) -> None:
        queue = self.queues.get(number)
        if queue is not None:
            queue.set_mark(mark)

    def apply_dequeue(
        self, lsn: int, number: int, runs: list[Run], stores: list[StoreRef], entries: list[Entry]
    ) -> None:
        queue = self.queues.get(number)
        if queue is not None:
            replay = self.replay
            if replay is not None:
                replay.dropped(queue, runs)
            self.dequeue(lsn, queue, runs, stores, entries)

    def dequeue(
        self, lsn: int, queue: QueueIndex, runs: list[Run], stores: list[StoreRef],
        entries: list[Entry],
    ) -> None:  # fmt: skip
        """Remove live messages. entries: see `LogState.apply_dequeue`."""
        for run in runs:
            queue.dequeue(run)
        for id, file, _ in stores:
            self.unref(file, id)
        if queue.departed is not None:
            self._keep_departed(lsn, queue, entries, is_purged=False)
        for first, n, _, _ in runs:
            queue.holder.drop(first, n)
        if queue.section:
            for first, n, _, _ in runs:
                for seq in range(first, first + n):
                    row = queue.section.pop(seq, None)
                    if row is not None and row.body_file:
                        self.unref(row.body_file, row.message.id)

    def _keep_departed(
        self, lsn: int, queue: QueueIndex, entries: list[Entry], *, is_purged: bool
    ) -> None:
        departed = queue.departed
        captured = queue.captured
        assert departed is not None
        assert captured is not None
        for entry in unwritten(entries, queue.cut_seq):
            if entry.seq not in captured.rows:
                departed.append(Departed(lsn, entry, is_purged))

    def apply_purge(self, lsn: int, number: int, upper: int, kept: list[Run]) -> None:
        queue = self.queues.get(number)
        if queue is not None:
            self.purge(lsn, queue, upper, kept)

    def purge(self, lsn: int, queue: QueueIndex, upper: int, kept: list[Run]) -> None:
        """Remove all messages below `upper` but the runs kept and leased ones."""
        if queue.leased.count and not queue.is_deleted:
            kept = kept + self.leases.runs_of(queue.number)
        is_asked = queue.asks_for_dead() or queue.holder.wants_drops()
        dead = queue.purge(upper, kept)
        ram = queue.holder.materialise(upper) if is_asked else []
        ram = [e for e in ram if not queue.is_live(e.seq)]
        for entry in ram:
            queue.holder.drop(entry.seq, 1)
            self._clear_bit(dead, entry.seq)
            if entry.message.store_file and entry.seq not in queue.section:
                self.unref(entry.message.store_file, entry.message.id)
        if queue.departed is not None:
            self._keep_departed(lsn, queue, ram, is_purged=True)
        for seq in [s for s in queue.section if not queue.is_live(s)]:
            row = queue.section.pop(seq)
            self._clear_bit(dead, seq)
            if row.message.store_file:
                self.unref(row.message.store_file, row.message.id)
            if row.body_file:
                self.unref(row.body_file, row.message.id)
        for number, bits in dead.items():
            if any(bits):
                old = self.reaping.get((queue.number, number))
                if old is not None:
                    bits = bytearray(a | b for a, b in zip(old, bits, strict=True))
                self.reaping[queue.number, number] = bits
                self.reap_lsn = lsn

    def _clear_bit(self, dead: dict[int, bytearray], seq: int) -> None:
        bits = dead.get(seq // self.slots)
        if bits is not None:
            rel = seq % self.slots
            bits[rel >> 3] &= 0xFF ^ (1 << (rel & 7))

    def purged_refs(
        self, queue: QueueIndex, segment: int, bits: bytearray
    ) -> tuple[list[StoreRef], list[str]]:
        """Return the store references of purged slots, and the errors of damaged ones. OSError."""
        refs: list[StoreRef] = []
        faults: list[str] = []
        base = segment * self.slots
        for seq in [base + r for r in range(self.slots) if bits[r >> 3] >> (r & 7) & 1]:
            try:
                message = _on_slot(queue, seq)
            except CorruptionError as error:
                faults.append(str(error))
                continue
            if message.store_file:
                refs.append((message.id, message.store_file, message.size))
        return refs, faults

    def apply_release(self, number: int, segment: int, refs: list[StoreRef] | None) -> None:
        """Release the references of one purged segment; its files may be deleted. Replay reads them
        by its own bits: an entry that was in RAM in live work may be on a slot here (a checkpoint
        wrote it), and the reverse (it was paged out), so replay has released others at the purge.
        The slots still exist [6]."""
        bits = self.reaping.get((number, segment))
        if bits is None:
            return
        if refs is None:
            queue = self.index_of(number)
            if queue is None:
                return
            refs, _ = self.purged_refs(queue, segment, bits)
        del self.reaping[number, segment]
        for id, file, _ in refs:
            self.unref(file, id)
        self.ticks.dead.append((number, segment))
        self.bury(number)

    def index_of(self, number: int) -> QueueIndex | None:
        """Return a queue, also a deleted one whose slots must still be read."""
        return self.queues.get(number) or self.dying.get(number)

    def names_segment(self, number: int, segment: int) -> bool:
        """Return whether a queue's segment has live entries, or slots that must be read."""
        queue = self.index_of(number)
        is_alive = queue is not None and (segment in queue.segments or segment in queue.transients)
        return is_alive or (number, segment) in self.reaping

    def load_body(self, queue: QueueIndex, seq: int, message: QueuedMessage) -> bytes:
        """Return the body of a message that was read from section or slot. CorruptionError."""
        if message.body is None:
            file = message.store_file
            if not file:
                row = queue.section.get(seq)
                if row is None or not row.body_file:
                    raise CorruptionError(
                        queue.path,
                        0,
                        f"the body of seq {seq} of queue {queue.number} is in no file",
                    )
                file = row.body_file
            message.body = self.store.read(file, message.id)
            if len(message.body) != message.size:
                raise CorruptionError(
                    queue.path, 0,
                    f"the body of seq {seq} has {len(message.body)} bytes, its slot says "
                    f"{message.size}",
                )  # fmt: skip
        return message.body


def _on_slot(queue: QueueIndex, seq: int) -> QueuedMessage:
    """Return the message on a slot. CorruptionError, OSError."""
    files = queue.files(seq // queue.slots)
    try:
        return files.messages([seq])[0]
    except CorruptionError:  # it may have been read wrongly once
        return files.messages([seq])[0]


class Replay:
    """Applies the records of the log to a state, in recovery. Until `end` the state refers to it.

    Messages stay in DictHolders. Beyond `ram_bytes`, if that is not 0, they are written to their
    slots.
    """

    def __init__(self, state: StorageState, log: LogReader, *, ram_bytes: int = 0) -> None:
        self.state = state
        self.log = log
        self.records: int = 0
        self.log_bytes: int = 0  # of these
        self.held_bytes: int = 0  # of messages and stream records in RAM
        # Of transactions: number -> where their parts that have not taken effect are: LSN ->
        # (segment, offset).
        self.parts: dict[int, dict[int, tuple[int, int]]] = {}
        self.decided: dict[int, None] = {}  # those of them that have a TX_SLICE, in order
        self.last_lsn: int = 0
        self._at: AppliedRecord = AppliedRecord(0, NONE, {})  # of all records that `apply` gets
        self._ram_bytes: int = ram_bytes
        state.replay = self

    def end(self) -> None:
        """End the replay: what is applied from now on is live work."""
        self.state.replay = None

    def apply(self, found: record.Record) -> None:
        """Apply one record. ValueError, KeyError: it cannot follow those before it."""
        self.records += 1
        self.log_bytes += record.RECORD_HEADER_BYTES + len(found.data)
        self.last_lsn = found.lsn
        at = self._at
        at.lsn, at.segment, at.offset = found.lsn, found.segment, found.offset
        if at.first_seqs:
            at.first_seqs = {}
        operation_of(found).apply(self.state, at)
        if self.state.batches.rolling is not None:
            self.state.end_record(found.lsn)
        if self._ram_bytes and self.held_bytes > self._ram_bytes:
            self._spill_or_keep()

    def take_part(self, transaction: int, part_lsn: int) -> list[Op]:
        """Return the operations of a part, which takes effect. ValueError: it is not in the log."""
        parts = self.parts.get(transaction, {})
        where = parts.pop(part_lsn, None)
        if where is None:
            raise ValueError(f"transaction {transaction} has no part {part_lsn} to apply")
        self.decided[transaction] = None
        part = self.log.read_record(*where)
        return record.decode_tx_part(part.data, part.count).ops

    def end_parts(self, transaction: int) -> None:
        """Forget a transaction all of whose parts have taken effect."""
        self.parts.pop(transaction, None)
        self.decided.pop(transaction, None)

    def roll_forward(self) -> None:
        """After the last record: apply the parts of decided transactions that no TX_SLICE applied.
        ValueError, KeyError: they cannot follow the log.

        Live work may have given them other places, which the log has lost. So they begin at the
        next border of a segment, as all that comes after an unclean stop [9]."""
        state = self.state
        skipped: set[int] = set()
        for transaction in self.decided:
            for part_lsn in list(self.parts.get(transaction, {})):
                ops = self.take_part(transaction, part_lsn)
                targets = targets_of(ops)
                for number in targets:
                    queue = state.queues.get(number)
                    if queue is not None and number not in skipped:
                        skipped.add(number)
                        queue.skip_to_border()
                at = AppliedRecord(self.last_lsn, NONE, state.next_seqs(targets))
                apply_all(ops, state, at)
                if self._ram_bytes and self.held_bytes > self._ram_bytes:
                    self._spill_or_keep()

    def dropped(self, queue: QueueIndex, runs: list[Run]) -> None:
        """Subtract messages that are about to leave RAM from `held_bytes`."""
        if not self._ram_bytes:
            return
        for first, n, _, _ in runs:
            for seq in range(first, first + n):
                entry = queue.holder.get(seq)
                if entry is not None:
                    body = entry.message.body
                    self.held_bytes -= ENTRY_BYTES + (0 if body is None else len(body))

    def _spill_or_keep(self) -> None:
        """Spill; on a full disk keep all in RAM, which the log's size bounds."""
        try:
            self.spill()
        except OSError as error:
            if not is_shortage(error):
                raise
            self._ram_bytes = 0

    def spill(self) -> None:
        """Write all that is in RAM to slots and pages, without a sync."""
        self.state.streams.write()
        for queue in self.state.queues.values():
            entries = queue.holder.materialise(queue.next_seq)
            if entries:
                queue.write(entries)
                for entry in entries:
                    entry.on_slot = True
                queue.holder.materialised(entries)
        self.held_bytes = 0
