"""StorageEngine: the storage of one vhost, or of one embedded box.

What comes in goes to one write-ahead log, and is confirmed when the log says so; what outlives the
log goes to files at checkpoints. The idea of a log apart from the store is the TransactionLog of
Qpid's Flow to Disk Design, the files are RabbitMQ's queue index and message store.

Everything is synchronous and deterministic: no threads, no sockets; time, chance and files are
handed in. Slow work (syncs, preparing segments, copying) is submitted to the file system, which may
run it elsewhere; its completions come back through `complete`, on the owner's thread. The owner
calls `tick` regularly, `flush` at the end of each turn of its loop, and `poll` for completions.

Confirming: every change returns the LSN of its record. It may be confirmed once
`settled(mode) >= lsn`: in `disk` mode after an fdatasync that covers it, in `interval` and `os`
after the write. `wait(lsn, mode)` does all that is needed and returns then.

A stream is a log of its own (streams.py): `append_stream` logs a record as `publish` does, and
gives it an offset; its page is written by `flush`, and its head, up to which it is read, follows
what is settled (stream_turns.py). The owner is told of heads by `on_head`, and only takes note
there.

After a failed sync nothing is confirmed any more: every call raises StoppedError, and the directory
must be opened again [10]. A full disk is no failure: publishing is refused with DiskFullError,
while acks, purges, deletes and checkpoints go on, on a reserve, until there is space again.

Not thread-safe: its owner has the lock.
"""

import errno
import random
from collections import deque
from collections.abc import Callable
from typing import Final

from penstock.clock import Clock
from penstock.errors import (
    DiskFullError,
    StoppedError,
    SyncFailedError,
    UnknownQueueError,
    deleted_error,
    is_disk_full,
)
from penstock.message import Entry, Message
from penstock.shared_body import SharedBody, SharedMessage
from penstock.storage import lease_engine, record, recovery
from penstock.storage.batch_engine import BatchEngine
from penstock.storage.checkpointer import Checkpointer
from penstock.storage.data_directory import placed, sync_dir, vhost_number
from penstock.storage.durability import DISK, NONE, OS
from penstock.storage.file_queue_backing import SPOOL_BYTES
from penstock.storage.filesystem import FileSystem
from penstock.storage.holder import DictHolder
from penstock.storage.lease_engine import Taken
from penstock.storage.leases import Lease
from penstock.storage.message_store import MessageStore
from penstock.storage.options import StorageOptions
from penstock.storage.parts import OneRecord, append_ops
from penstock.storage.queue_index import QueueIndex
from penstock.storage.routing_table import DurableQueue
from penstock.storage.state import StorageState
from penstock.storage.stored_body import StoredBody
from penstock.storage.stream_turns import Limits, StreamTurns
from penstock.storage.streams import STREAM_FLAG, Stream
from penstock.storage.transaction import Transaction, check_targets, store_refs
from penstock.storage.transaction_log import TransactionLog
from penstock.storage.upkeep import Upkeep

ENTRY_BYTES: Final = 64  # on disk beside header and body, about


class StorageEngine:
    """Opens (and recovers) the vhost directory `path`, which exists and has its `.vhost`.

    on_event(kind, text): alarms and news for people: corruption, clean, cut_off, disk_full,
    disk_free, checkpoint, torn_tail. Errors of opening: LockedError, VersionError, CorruptionError
    (file and offset; nothing was changed), DiskFullError, SyncFailedError, OSError.
    """

    def __init__(
        self,
        fs: FileSystem,
        path: str,
        vhost: bytes,
        *,
        clock: Clock,
        rng: random.Random,
        options: StorageOptions | None = None,
        on_event: Callable[[str, str], None] | None = None,
    ) -> None:
        self.fs: FileSystem = placed(fs, path)
        self.path: str = path
        self.clock = clock
        self.rng = rng
        self.options: StorageOptions = options or StorageOptions()
        self.failed: BaseException | None = None
        self.is_closed: bool = False
        self.blocked: bool = False
        self.pins: int = 0  # a backup is copying: nothing is deleted
        self.pinned_paths: list[str] = []
        self.pinned_trees: list[str] = []
        self.written_bytes: int = 0  # by checkpoints, to .qi and .qs
        self.time_s: int = clock.wall_ms() // 1000
        # Takes entries that nobody needs any more: to free a million takes a quarter of a second.
        self.let_go: Callable[[deque[Entry]], None] = deque.clear
        # Of the options, those that each publish asks for.
        self._embed_below: int = self.options.queue_index_embed_msgs_below
        self._inline_below: int = self.options.wal_inline_below
        self._transient_below: int = self.options.transient_inline_below
        self._on_event = on_event
        self._ops: dict[int, tuple[Callable[[object], None], Callable[[BaseException], None]]] = {}
        self._is_ticking: bool = False
        self.is_committing: bool = False  # TX_PARTs are out: no cut now
        self.gathering: OneRecord | None = None
        self.sharing: SharedBody | None = None  # what new messages with this body share: Sharing
        self.on_head: Callable[[Stream], None] | None = None  # a head has moved
        self._lock = self.fs.lock(path + "/LOCK")
        try:
            self._open(vhost)
        except BaseException as error:
            self._lock.release()
            if isinstance(error, OSError) and is_disk_full(error):
                raise self.disk_error(0) from error
            raise

    def _open(self, name: bytes) -> None:
        fs, path, options = self.fs, self.path, self.options
        vhost = vhost_number(name)
        recovery.make_directories(fs, path)
        found = recovery.load(fs, path, vhost, options, self.event, ram_bytes=self._replay_bytes())
        recovery.begin(found)
        self.recovered: recovery.Recovered = found
        self.state: StorageState = found.state
        self.state.name_vhost(name)
        self.log: TransactionLog = TransactionLog(
            fs, path + "/wal", vhost, self.clock, self.rng,
            segment_bytes_min=options.wal_segment_bytes_min,
            segment_bytes_max=options.wal_segment_bytes_max,
            interval_ms=options.interval_ms,
            group_bytes_max=options.group_bytes_max,
            free_limit=options.disk_free_limit,
            store=self.state.store,
        )  # fmt: skip
        self.transient: MessageStore = MessageStore(
            fs, path + "/msg_store_transient", vhost, persistent=False,
            file_bytes_max=options.msg_store_file_size_limit, own_file_from=options.own_file_from,
        )  # fmt: skip
        self.checkpoints: Checkpointer = Checkpointer(self, found.manifest.number)
        self.turns: StreamTurns = StreamTurns(self)
        self.batches: BatchEngine = BatchEngine(self)
        self.upkeep: Upkeep = Upkeep(self)  # before the log: a full disk may need the reserve
        self._finish_streams()
        self.log.start(found.end, found.end.next_number)
        if not self.upkeep.checkpoint():
            full = self.disk_error(self._needed_bytes())
            self.log.abandon_start()
            self.state.close()
            raise full
        for queue in self.state.queues.values():
            queue.holder = DictHolder()
            for row in queue.section.values():
                if row.body_file:
                    row.message.body = None  # the replay had it in RAM
        self.upkeep.delete_orphans()

    def _replay_bytes(self) -> int:
        """What a replay may hold in RAM; 0, which is all of it and writes nothing, where there is
        hardly more space than it could write: a start that has to be given up for want of space
        leaves nothing behind that takes room from the next one."""
        log = self.path + "/wal"
        log_bytes = sum([self.fs.size(f"{log}/{name}") for name in self.fs.list(log)])
        needed = 2 * (log_bytes + self.options.wal_segment_bytes_min)
        return self.options.replay_ram_bytes if self.fs.free_bytes(self.path) > needed else 0

    def _needed_bytes(self) -> int:
        """About what the checkpoint of a start has still to write: the messages of the log."""
        needed = self.checkpoints.bytes
        for queue in self.state.queues.values():
            if isinstance(queue.holder, DictHolder):
                for entry in queue.holder.entries.values():
                    if not entry.on_slot and not entry.message.store_file:
                        needed += len(entry.message.header) + entry.message.size + ENTRY_BYTES
        return needed

    def _finish_streams(self) -> None:
        """Pages are made what the log says; on a full disk with the room of the reserve."""
        try:
            self.state.streams.finish_restore()
        except OSError as error:
            full = self.disk_full(error, 0)
            if not isinstance(full, DiskFullError) or not self.upkeep.reserve.release():
                raise full from error
            self.state.streams.finish_restore()

    def event(self, kind: str, text: str) -> None:
        """Tell the owner."""
        if self._on_event is not None:
            self._on_event(kind, text)

    # ---- topology ------------------------------------------------------------------------------

    def declare_queue(
        self, name: bytes, *, arguments: bytes = b"", flags: int = 0, is_durable: bool = True
    ) -> QueueIndex:
        """A new queue. Durable: it is there for good once `last_lsn` is settled."""
        if is_durable:
            return self.declare_queues([(name, arguments, flags)])[0]
        self.check()
        return self.state.add_queue(name, self.state.next_queue, is_durable=False)

    def declare_queues(self, declared: list[tuple[bytes, bytes, int]]) -> list[QueueIndex]:
        """New durable queues (name, arguments, flags): all of them are there after a crash or none.
        ValueError (a name is taken, or comes twice): nothing happened."""
        self.check()
        state = self.state
        first = state.next_queue
        if len({name for name, _, _ in declared}) != len(declared):
            raise ValueError("a queue's name comes twice in one declare")
        records = [
            DurableQueue(name, first + i, flags, arguments).record()
            for i, (name, arguments, flags) in enumerate(declared)
        ]
        for data in records:
            state.check_topology(data)
        append_ops(self, [record.Op(record.TOPOLOGY, 0, 0, data) for data in records], DISK)
        for data in records:
            state.apply_topology(data)
        return [state.queues[first + i] for i in range(len(records))]

    def queue(self, name: bytes) -> QueueIndex:
        """The durable queue of this name; UnknownQueueError."""
        known = self.state.routing.queues.get(name)
        if known is None or known.number not in self.state.queues:
            raise UnknownQueueError(name.decode("utf-8", "replace"))
        return self.state.queues[known.number]

    def apply_topology(self, data: bytes, mode: int = DISK) -> int:
        """Log and apply a record of the RoutingTable (see its functions); returns the LSN.
        ValueError (no record, a queue's name or number is taken): nothing happened."""
        self.check()
        self.state.check_topology(data)
        lsn = append_ops(self, [record.Op(record.TOPOLOGY, 0, 0, data)], mode)
        self.state.apply_topology(data)
        return lsn

    def delete_queue(self, queue: QueueIndex, mode: int = DISK) -> int:
        """Delete a queue with all that it holds; returns the LSN."""
        return self.delete_queues([queue], mode)

    def delete_queues(self, queues: list[QueueIndex], mode: int = DISK) -> int:
        """Delete queues with all that they hold: all of them, or none after a crash. The LSN, 0 if
        none is durable. UnknownQueueError (one is deleted already): nothing happened."""
        self.check()
        for queue in queues:
            if queue.is_deleted:
                raise deleted_error(queue.name)
        lsn = 0
        ops = [
            record.Op(record.DELETE_QUEUE, 0, 0, record.delete_queue_data(queue.number))
            for queue in queues
            if queue.is_durable
        ]
        if ops:
            lsn = append_ops(self, ops, mode)
        try:
            for queue in queues:
                self.state.apply_delete_queue(lsn, queue)
        except BaseException as error:
            self.stop(error)  # the log is ahead of RAM: only recovery goes on from there
            raise
        return lsn

    def one_record(self, mode: int) -> OneRecord:
        """For a `with`: what is done inside to any number of queues is one record (parts.py)."""
        return OneRecord(self, mode)

    # ---- messages ------------------------------------------------------------------------------

    def places_in_store(self, size: int, copies: int) -> bool:
        """Whether a body of `size` bytes for this many queues goes to the MessageStore: small ones
        into each queue's own segment, large or widely shared ones once."""
        if copies * size < self._embed_below:
            return False
        return copies != 1 or size >= self._inline_below

    def new_message(
        self, header: bytes, body: bytes, expiry_ms: int = 0, copies: int = 1
    ) -> Message:
        """A message with a new id and its body in RAM, for so many queues."""
        id = self.state.factory.create()
        if copies > 1 or self.sharing is not None:
            shared = self.share_of(body, copies)
            if shared is not None:
                return SharedMessage(shared, id, header, self.time_s, expiry_ms)
        return Message(id, header, body, len(body), self.time_s, expiry_ms)

    def message_on_disk(self, header: bytes, size: int, expiry_ms: int = 0) -> Message:
        """A message with a new id whose body does not stay in RAM."""
        return Message(self.state.factory.create(), header, None, size, self.time_s, expiry_ms)

    def share_of(
        self, body: bytes, copies: int, message: Message | None = None
    ) -> SharedBody | None:
        """How queues share this body: as those do that hold `message`, if that has it; as what is
        published just now (Sharing); by a new SharedBody if it is for several queues. None: it is
        for one queue alone, or empty."""
        if message is not None and isinstance(message, SharedMessage) and message.body is body:
            return message.shared
        sharing = self.sharing
        if sharing is not None and sharing.body is body:
            return sharing
        return SharedBody(body, copies) if copies > 1 and body else None

    def publish(
        self, queues: list[QueueIndex], header: bytes, body: bytes, mode: int, expiry_ms: int = 0
    ) -> Message:
        """A persistent message for durable queues: it takes the next seq of each, and the record of
        it has the LSN `last_lsn`. DiskFullError, UnknownQueueError (a queue was deleted),
        ValueError (no queue, one twice, a transient one): nothing happened."""
        if self.failed is not None or self.blocked or self.is_closed:
            self.refuse()
        if mode == NONE:
            return self.publish_transient(queues, header, body, expiry_ms)
        check_targets(queues)
        size = len(body)
        message = self.new_message(header, body, expiry_ms, len(queues))
        if self.places_in_store(size, len(queues)):
            try:
                message.store_file = self.state.store.write(message.id, body, len(queues))
            except OSError as error:
                raise self.disk_full(error, size) from error
        self._append_publish(message, queues, mode)
        return message

    def publish_spooled(
        self, queues: list[QueueIndex], header: bytes, message: Message, mode: int
    ) -> None:
        """As publish, for a message whose body was spooled to the persistent store
        (`MessageStore.spool`). For the transient one there is `publish_stored`."""
        if self.failed is not None or self.blocked or self.is_closed:
            self.refuse()
        check_targets(queues)
        message.header = header
        self.state.store.ref(message.store_file, message.id, len(queues))
        self._append_publish(message, queues, mode)

    def _append_publish(self, message: Message, queues: list[QueueIndex], mode: int) -> None:
        file = message.store_file
        size = message.size
        expiry_ms = message.expiry_ms
        try:
            if len(queues) == 1:
                queue = queues[0]
                self.log.append_publish(
                    message.id, message.time, expiry_ms, file, queue.number, queue.next_seq,
                    message.header, message.body or b"", size, mode,
                )  # fmt: skip
            else:
                places = [(queue.number, queue.next_seq) for queue in queues]
                flags = record.publish_flags(file, expiry_ms)
                data = record.publish_data(
                    flags, message.id, message.time, expiry_ms, file, places, message.header,
                    message.body or b"", size,
                )  # fmt: skip
                self.log.append(
                    record.PUBLISH, flags, len(places), data, mode, names_store=file != 0
                )
        except (DiskFullError, ValueError) as error:
            if file:
                self.state.store.unref(file, message.id, len(queues))
            raise self.full(error) if isinstance(error, DiskFullError) else error from None
        for queue in queues:
            queue.holder.add(Entry(queue.publish(size, file != 0, expiry_ms), message))
        if isinstance(message, SharedMessage) and message.shared is not self.sharing:
            message.shared.complete()
        if self.log.is_full:
            self.wait_for_room()

    def publish_transient(
        self, queues: list[QueueIndex], header: bytes, body: bytes, expiry_ms: int = 0
    ) -> Message:
        """A transient message (`none`): an id and seqs, no log. The queues' holders keep it. A body
        for many queues, or a very large one, goes to the transient store until every queue has
        called `release`; any other is written by its queue, if it ever has to leave RAM."""
        self.check()
        size = len(body)
        is_shared = len(queues) > 1
        if (is_shared or size >= self._transient_below) and self.places_in_store(size, len(queues)):
            message = self.message_on_disk(header, size, expiry_ms)
            try:
                message.store_file = self.transient.write(message.id, body, len(queues))
            except OSError as error:
                raise self.disk_full(error, size) from error
        else:
            message = self.new_message(header, body, expiry_ms, len(queues))
        message.persistent = False
        for queue in queues:
            queue.holder.add(Entry(queue.take_seq(), message))
        if isinstance(message, SharedMessage) and message.shared is not self.sharing:
            message.shared.complete()
        return message

    def publish_stored(
        self, queues: list[QueueIndex], header: bytes, message: Message, expiry_ms: int = 0
    ) -> None:
        """As publish_transient, of a message whose body is in the transient store already; the
        queues share it with whoever else has it."""
        self.check()
        new = Message(
            message.id, header, None, message.size, message.time, expiry_ms, message.store_file,
            persistent=False,
        )  # fmt: skip
        self.transient.ref(message.store_file, message.id, len(queues))
        for queue in queues:
            queue.holder.add(Entry(queue.take_seq(), new))

    def store_of(self, message: Message) -> MessageStore:
        """The store that the body of a message is in, if it is in one."""
        return self.state.store if message.persistent else self.transient

    def open_body(self, message: Message) -> StoredBody:
        """The body, which is in the store, to be read in pieces, whatever becomes of the message;
        the caller closes it. CorruptionError, OSError."""
        return self.store_of(message).open_body(message.store_file, message.id)

    def in_transient(self, message: Message) -> Message:
        """The message, if its body is in the transient store; else a copy whose body was copied
        there, in pieces, which the caller publishes in the same step. DiskFullError,
        CorruptionError: there is no copy."""
        return self._in_store(message, is_persistent=False)

    def in_persistent(self, message: Message) -> Message:
        """The same with the persistent store."""
        return self._in_store(message, is_persistent=True)

    def _in_store(self, message: Message, *, is_persistent: bool) -> Message:
        if message.persistent == is_persistent:
            return message
        copy = message.copy()
        copy.persistent = is_persistent
        body = self.open_body(message)
        spool = self.store_of(copy).spool(message.id)
        try:
            while body.left:
                spool.write(body.read(SPOOL_BYTES))
            copy.store_file = spool.finish()
        except OSError as error:
            spool.abort()
            raise self.disk_full(error, message.size) from error
        except BaseException:
            spool.abort()
            raise
        finally:
            body.close()
        return copy

    def release(self, message: Message) -> None:
        """One queue is done with a transient message."""
        if message.store_file:
            self.transient.unref(message.store_file, message.id)

    def dequeue(self, queue: QueueIndex, entries: list[Entry], mode: int) -> int:
        """Entries, persistent, ascending by seq, are acknowledged and die. Returns the LSN.
        ValueError if one of them is not alive: nothing happened."""
        self.check()
        runs = queue.runs(entries)
        for run in runs:
            if not queue.is_live_run(run):
                raise ValueError(f"of seqs {run[0]} to {run[0] + run[1] - 1} some are not alive")
        stores = store_refs(entries)
        if self.gathering is None:
            lsn = self.log.append_dequeue(queue.number, runs, stores, mode)
        else:
            data = record.dequeue_data(queue.number, runs, stores)
            lsn = append_ops(self, [record.Op(record.DEQUEUE, 0, len(runs), data)], mode)
        try:
            self.state.apply_dequeue(lsn, queue, runs, stores, entries)
        except BaseException as error:
            self.stop(error)
            raise
        if self.log.is_full:
            self.wait_for_room()
        return lsn

    def move(
        self,
        queue: QueueIndex,
        entry: Entry,
        targets: list[QueueIndex],
        header: bytes,
        mode: int,
        expiry_ms: int = 0,
    ) -> tuple[int, Message]:
        """An entry dies here and lives at the end of other queues, with a new header, in one
        record: dead-lettering cannot lose or double it. Returns the LSN and the new message."""
        self.check()
        old = entry.message
        runs = queue.runs([entry])
        if not queue.is_live_run(runs[0]):
            raise ValueError(f"seq {entry.seq} of queue {queue.number} is not alive")
        body = None if old.store_file else self.state.load_body(queue, entry.seq, old)
        new = self._moved(old, header, body, expiry_ms, len(targets))
        places = [(target.number, target.next_seq) for target in targets]
        flags = record.publish_flags(new.store_file, expiry_ms)
        published = record.publish_data(
            flags, new.id, new.time, expiry_ms, new.store_file, places, header, body or b"",
            new.size,
        )  # fmt: skip
        data = record.move_data(queue.number, entry.seq, old.size, published)
        lsn = self.log.append(record.MOVE, flags, len(places), data, mode)
        try:
            if new.store_file and targets:
                self.state.store.ref(new.store_file, new.id, len(targets))
            for target in targets:
                seq = target.publish(new.size, new.store_file != 0, expiry_ms)
                target.holder.add(Entry(seq, new))
            self.state.apply_dequeue(lsn, queue, runs, store_refs([entry]), [entry])
        except BaseException as error:
            self.stop(error)
            raise
        if isinstance(new, SharedMessage) and new.shared is not self.sharing:
            new.shared.complete()
        return lsn, new

    def _moved(
        self, old: Message, header: bytes, body: bytes | None, expiry_ms: int, copies: int
    ) -> Message:
        """The same message with another header and expiry, for so many queues."""
        if body is not None:
            shared = self.share_of(body, copies, old)
            if shared is not None:
                return SharedMessage(shared, old.id, header, old.time, expiry_ms, old.store_file)
        return Message(old.id, header, body, old.size, old.time, expiry_ms, old.store_file)

    def purge(self, queue: QueueIndex, kept: list[Entry], mode: int) -> tuple[int, int]:
        """All persistent entries die but `kept` (the unacknowledged, ascending). Returns the LSN
        and how many died. References of what is on disk are released later, in slices."""
        return self.purge_queues([(queue, kept)], mode)

    def purge_queues(
        self, purged: list[tuple[QueueIndex, list[Entry]]], mode: int
    ) -> tuple[int, int]:
        """Purge durable queues, each but for its `kept`: all of them, or none after a crash."""
        self.check()
        runs = [queue.runs(kept) for queue, kept in purged]
        ops = [
            record.Op(
                record.PURGE, 0, len(kept), record.purge_data(queue.number, queue.next_seq, kept)
            )
            for (queue, _), kept in zip(purged, runs, strict=True)
        ]
        lsn = append_ops(self, ops, mode)
        died = 0
        try:
            for (queue, _), kept_runs in zip(purged, runs, strict=True):
                died += self.state.apply_purge(lsn, queue, queue.next_seq, kept_runs)
        except BaseException as error:
            self.stop(error)
            raise
        return lsn, died

    def requeue(self, queue: QueueIndex, attempts: list[tuple[int, int]], mode: int) -> int:
        """Remember how often entries (seq, attempts) have been tried. Returns the LSN."""
        self.check()
        data = record.requeue_data(queue.number, attempts)
        lsn = append_ops(self, [record.Op(record.REQUEUE, 0, len(attempts), data)], mode)
        for seq, count in attempts:
            queue.set_attempts(seq, count)
        return lsn

    def mark(self, queue: QueueIndex, mark: int, mode: int) -> int:
        """Reserve the delivered mark up to `mark`; no first delivery beyond a settled mark."""
        self.check()
        data = record.mark_data(queue.number, mark)
        lsn = append_ops(self, [record.Op(record.MARK, 0, 0, data)], mode)
        queue.set_mark(mark)
        return lsn

    def read(self, queue: QueueIndex, seqs: list[int]) -> list[Message]:
        """Live persistent messages, ascending, of one segment, that left RAM; without the bodies
        that are in the store (see `load_body`). CorruptionError names file and position."""
        return queue.read(seqs)

    def entry(self, queue: QueueIndex, seq: int) -> Entry:
        """A live persistent entry with its body, from RAM or disk. KeyError if it is not alive;
        CorruptionError names file and position of what is damaged."""
        if not queue.is_live(seq):
            raise KeyError(f"seq {seq} of queue {queue.number} is not alive")
        held = queue.holder.get(seq)
        if held is None:
            (message,) = queue.read([seq])
            held = Entry(seq, message, on_slot=seq not in queue.section)
        self.state.load_body(queue, seq, held.message)
        return held

    def load_body(self, queue: QueueIndex, seq: int, message: Message) -> bytes:
        """The body of a message that `read` gave, from wherever it is. CorruptionError."""
        if not message.persistent and message.body is None:
            message.body = self.transient.read(message.store_file, message.id)
        return self.state.load_body(queue, seq, message)

    # ---- streams -------------------------------------------------------------------------------

    @property
    def streams(self) -> dict[int, Stream]:
        """The streams, by number."""
        return self.state.streams.by_number

    def stream(self, name: bytes) -> Stream:
        """The stream of this name (of a partition: `name NUL p<i>`); UnknownQueueError."""
        stream = self.state.streams.by_name.get(name)
        if stream is None:
            raise UnknownQueueError(name.decode("utf-8", "replace"))
        return stream

    def declare_streams(
        self, declared: list[tuple[bytes, bytes, int]], *, page_bytes: int,
        made: list[Stream] | None = None,
    ) -> list[Stream]:  # fmt: skip
        """New streams (name, arguments, flags): all of them are there after a crash or none, once
        `last_lsn` is settled. page_bytes: of a page, 4 KiB to 1 GiB as a rule. made: the streams of
        these names, as a StreamMaking made them; without it this waits for the disk, and their
        directories are made and synced here. ValueError (a name is taken or comes twice),
        DiskFullError: nothing happened. A failed sync stops the engine."""
        self.check()
        state, table = self.state, self.state.streams
        first = made[0].number if made else state.next_queue
        if len({name for name, _, _ in declared}) != len(declared):
            raise ValueError("a stream's name comes twice in one declare")
        if made and [stream.name for stream in made] != [name for name, _, _ in declared]:
            raise ValueError("the streams that were made are not those that are declared")
        records = [
            DurableQueue(name, first + i, flags | STREAM_FLAG, arguments).record()
            for i, (name, arguments, flags) in enumerate(declared)
        ]
        streams: list[Stream] = [] if made is None else made
        for data in records:
            state.check_topology(data, is_stream=True)
        try:
            if made is None:
                for i, (name, _, _) in enumerate(declared):
                    streams.append(table.make(name, first + i, page_bytes, self.clock, self.rng))
                    table.keep_made(streams[i])
                sync_dir(self.fs, table.path)
            append_ops(self, [record.Op(record.TOPOLOGY, 0, 0, data) for data in records], DISK)
        except BaseException as error:
            table.forget_made(streams)
            if isinstance(error, SyncFailedError):
                self.stop(error)
            elif isinstance(error, OSError):
                raise self.disk_full(error, page_bytes) from error
            raise
        for data in records:
            state.apply_topology(data)
        return [table.by_number[first + i] for i in range(len(records))]

    def append_stream(
        self, stream: Stream, header: bytes, body: bytes, mode: int, time_us: int = 0
    ) -> int:
        """One record at the end of a stream; returns its offset. The record of it in the log has
        the LSN `last_lsn`; it is read once the head has passed it. Mode NONE counts as OS. time_us:
        microseconds since 1970, 0 for now; never less than that of the record before [12].
        DiskFullError, UnknownQueueError (it was deleted), ValueError (too long): nothing
        happened."""
        if self.failed is not None or self.blocked or self.is_closed:
            self.refuse()
        if stream.is_deleted:
            raise deleted_error(stream.name)
        if mode == NONE:
            mode = OS
        queue = stream.queue
        queue.check(body, header)
        if not time_us:
            time_us = self.clock.wall_us()
        if time_us < queue.last_time_us:
            time_us = queue.last_time_us
        offset = queue.next_offset
        if self.gathering is None:
            try:
                lsn = self.log.append_stream(stream.number, offset, time_us, header, body, mode)
            except DiskFullError as error:
                raise self.full(error) from None
        else:
            data = record.stream_data(stream.number, offset, time_us, header, body)
            lsn = append_ops(self, [record.Op(record.STREAM, 0, 1, data)], mode)
        try:
            self.state.streams.append(stream, lsn, mode, time_us, header, body)
        except BaseException as error:
            self.stop(error)  # the log is ahead of RAM: only recovery goes on from there
            raise
        if self.log.is_full:
            self.wait_for_room()
        return offset

    def set_reader(
        self, stream: Stream, reader: str, offset: int, mode: int, kept_from: int | None = None
    ) -> int:
        """A named reader has read all below `offset`; retention keeps all from `kept_from` on, if
        that is given. Returns the LSN. UnknownQueueError, ValueError: nothing happened."""
        time_ms = self.clock.wall_ms()
        kept = record.NOT_KEPT if kept_from is None else kept_from
        return self._log_reader(stream, reader, (offset, kept, time_ms), 0, mode)

    def delete_reader(self, stream: Stream, reader: str, mode: int) -> int:
        """Forget a named reader; returns the LSN. Nothing to do if there is none of that name."""
        if reader not in stream.readers:
            return self.log.last_lsn
        return self._log_reader(stream, reader, (0, 0, 0), record.READER_DELETED, mode)

    def _log_reader(
        self, stream: Stream, reader: str, values: tuple[int, int, int], flags: int, mode: int
    ) -> int:
        self.check()
        if stream.is_deleted:
            raise deleted_error(stream.name)
        name = reader.encode()
        if not 0 < len(name) <= 0xFFFF:
            raise ValueError(f"a reader's name has 1 to 65535 bytes, not {len(name)}")
        if min(values[:2]) < 0 or max(values[:2]) > record.NOT_KEPT:
            raise ValueError(f"a reader's offset is 0 or more, not {min(values[:2])}")
        data = record.reader_data(stream.number, *values, name)
        lsn = append_ops(self, [record.Op(record.READER_OFFSET, flags, 0, data)], mode)
        self.state.streams.set_reader(data, flags)
        return lsn

    def delete_streams(self, streams: list[Stream], mode: int = DISK) -> int:
        """Delete streams with all that they hold: all of them, or none after a crash; the LSN.
        UnknownQueueError (one is deleted already): nothing happened."""
        self.check()
        for stream in streams:
            if stream.is_deleted:
                raise deleted_error(stream.name)
        ops = [
            record.Op(record.DELETE_QUEUE, 0, 0, record.delete_queue_data(stream.number))
            for stream in streams
        ]
        lsn = append_ops(self, ops, mode)
        for stream in streams:
            self.state.apply_delete_stream(stream)
        return lsn

    def retain(
        self, stream: Stream, *, max_age_s: float | None = None, max_bytes: int | None = None,
        max_records: int | None = None, since_ms: int = 0, hold_age_s: float | None = None,
        hold_bytes: int | None = None,
    ) -> int:  # fmt: skip
        """Take away the oldest whole pages beyond any of these limits; the active one only if all
        of it is older than max_age_s; none that a reader asks to keep (heard of since `since_ms`,
        ms since 1970; no longer than hold_age_s and no more than hold_bytes beyond the limits), or
        with records that are not durable yet: those go at a later call. How many pages went."""
        self.check()
        limits = Limits(max_age_s, max_bytes, max_records, since_ms, hold_age_s, hold_bytes)
        return self.turns.retain(stream, limits)

    # ---- leases --------------------------------------------------------------------------------

    def leases(self, queue: QueueIndex) -> dict[str, Lease]:
        """What readers have leased of a queue (its first part), by reader; not to be changed."""
        return self.state.leases.of(queue.number)

    def lease(
        self, queue: QueueIndex, reader: str, taken: list[Taken], mode: int
    ) -> tuple[int, int]:
        """See lease_engine.py, of this and the next two; `last_lsn` is that of the record."""
        return lease_engine.lease(self, queue, reader, taken, mode)

    def commit_lease(self, queue: QueueIndex, reader: str, ordinal: int, mode: int) -> bool:
        """A slice of what is below `ordinal` is acknowledged; True if there is more."""
        return lease_engine.commit(self, queue, reader, ordinal, mode)

    def release_lease(self, queue: QueueIndex, reader: str, mode: int) -> bool:
        """A slice of what a reader has is ready again; True if there is more."""
        return lease_engine.release(self, queue, reader, mode)

    # ---- transactions --------------------------------------------------------------------------

    def begin(self) -> Transaction:
        """A new transaction over any number of queues of this vhost."""
        self.check()
        return Transaction(self)

    # ---- time ----------------------------------------------------------------------------------

    @property
    def last_lsn(self) -> int:
        """The LSN of the last record appended."""
        return self.log.last_lsn

    def settled(self, mode: int) -> int:
        """Everything up to this LSN may be confirmed in this mode."""
        return self.log.settled(mode)

    def flush(self) -> None:
        """End of a turn: write what was appended; a sync starts if one is wanted."""
        self.check()
        self.time_s = self.clock.wall_ms() // 1000
        try:
            self.log.flush()
        finally:
            self.after_log()
        self.turns.turn()

    def wait(self, lsn: int, mode: int) -> None:
        """Until `settled(mode) >= lsn`; `disk` syncs weaker records too. StoppedError,
        SyncFailedError: that will not be."""
        self.check()
        try:
            self.log.wait(lsn, mode, self._complete_other)
        finally:
            self.after_log()
        self.turns.turn()
        self.checkpoints.advance()

    def sync(self) -> None:
        """Until everything appended so far is durable."""
        self.wait(self.log.last_lsn, DISK)

    def poll(self, *, wait: bool = False) -> None:
        """Take what the file system has completed; wait=True: at least one thing, if any is due."""
        for token, result in self.fs.completed(wait):
            self.complete(token, result)

    @property
    def has_pending(self) -> bool:
        """Whether submitted work, other than the log's, is not complete yet."""
        return bool(self._ops)

    def complete(self, token: int, result: object) -> None:
        """A submitted operation is done: its result, or the exception that it raised."""
        if self.log.complete(token, result):
            self.after_log()
            self.turns.settle()
        else:
            self._complete_other(token, result)
        self.checkpoints.advance()

    def _complete_other(self, token: int, result: object) -> None:
        done, failed = self._ops.pop(token)
        if self.failed is not None:
            return  # nothing goes on from here [10]
        if isinstance(result, BaseException):
            failed(result)
        else:
            done(result)

    def submit(
        self,
        op: Callable[[], object],
        done: Callable[[object], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        """Run op where the file system likes, then done(result) or failed(error) here."""
        self._ops[self.fs.submit(op)] = (done, failed)

    def tick(self) -> None:
        """Regular work, a few times a second: interval syncs, a slice of a checkpoint when one is
        due, purged references, combining, the disk's free space."""
        self.check()
        self.time_s = self.clock.wall_ms() // 1000
        if not self._is_ticking:  # not at the start: it would only delay the ready line
            self._is_ticking = True
            self.log.prepare_ahead()
        try:
            self.log.tick()
        finally:
            self.after_log()
        self.turns.turn()
        self.poll()
        self.upkeep.tick(self.clock.monotonic())

    def checkpoint(self) -> bool:
        """A whole checkpoint, now; False if it was given up for want of space."""
        self.check()
        return self.upkeep.checkpoint()

    # ---- stopping ------------------------------------------------------------------------------

    def stop(self, error: BaseException) -> None:
        """A sync failed, or what must not fail did: nothing is confirmed from here on [10]."""
        if self.failed is None:
            self.failed = error
            self.log.poison(error)
            self.event("stopped", str(error))

    def close(self) -> None:
        """Orderly stop: checkpoint (clean: the next start reads no log), files closed, lock given
        back. After a failure: files closed and lock given back, nothing written."""
        if self.is_closed:
            return
        try:
            if self.failed is None:
                self.sync()
                while self.upkeep.reap():
                    self.sync()
                self.upkeep.close()
        finally:
            self.is_closed = True
            self.log.close()
            self.state.close()
            self.transient.close()
            self._lock.release()

    def after_log(self) -> None:
        if self.log.failed is not None and self.failed is None:
            self.stop(self.log.failed)

    def check(self) -> None:
        if self.failed is not None:
            raise StoppedError(str(self.failed)) from self.failed
        if self.is_closed:
            raise StoppedError("the engine is closed")

    def refuse(self) -> None:
        self.check()
        if self.blocked:
            raise self.disk_error(self.options.disk_free_limit)

    def disk_full(self, error: OSError, needed: int) -> Exception:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            return error
        return self.full(self.disk_error(needed))

    def fullest_disk(self) -> tuple[str, int]:
        """A directory on the disk with the least room of those that the store uses, and the bytes
        that are free there."""
        found = [(self.fs.free_bytes(disk), disk) for disk in self.fs.disks(self.path)]
        free, disk = min(found)
        return disk, free

    def disk_error(self, needed: int) -> DiskFullError:
        """There is no room for so many bytes on one of the disks."""
        return DiskFullError(*self.fullest_disk(), needed)

    def full(self, error: DiskFullError) -> DiskFullError:
        if not self.blocked:
            self.block(str(error))
        return error

    def block(self, text: str = "") -> None:
        """Refuse publishers until upkeep finds space. Nobody else tells `disk_full`: owners block
        their clients at that, until the `disk_free` that only ends what began here."""
        was_blocked, self.blocked = self.blocked, True
        if text or not was_blocked:
            self.event("disk_full", text or "there is no space")

    def wait_for_room(self) -> None:
        self.log.flush()
        while self.log.is_full:
            self.after_log()
            self.check()
            self.poll(wait=True)
            self.log.flush()
        self.turns.turn()  # what it had to wait for is no longer in RAM
