"""StorageEngine: the storage of one vhost, or of one embedded box.

A change is confirmed when the write-ahead log has it; what outlives the log is written to other
files at checkpoints. A log apart from the store is the TransactionLog of Qpid's Flow to Disk
Design; the files are RabbitMQ's queue index and message store.

The owners of the engine (queues, the broker, the library) call the engine, and its parts `streams`,
`leases`, `batches` and `bodies`. Of `checkpoints` they only read the counts. The parts do not know
the engine; `_compose` gives each what it needs:

    Journal        append, apply, stop on failure; completions     journal.py
    StorageState   what the log's records have led to              state.py
    BodyStores     bodies in the two stores                        message_store.py
    StreamEngine   streams: declare, append, heads, retention      stream_engine.py
    BatchEngine    batches of Spark's sink                         batch_engine.py
    LeaseEngine    leases of readers                               lease_engine.py
    Checkpointer   makes checkpoints                               checkpoint.py
    Upkeep         when: checkpoints, reaping, combining, space    upkeep.py

Everything is synchronous and deterministic: no threads, no sockets; time, chance and files are
given. Slow work (syncs, preparing segments, copying) is submitted to the file system, which may run
it in a worker; its completions come back through `complete`, in the owner's thread. The owner calls
`tick` regularly, `flush` at the end of each turn of its loop, and `poll` for completions.

Confirming: every change returns the LSN of its record. It may be confirmed once
`settled(mode) >= lsn`: in `disk` mode after an fdatasync that covers it, in `interval` and `os`
after the write. `wait(lsn, mode)` waits for that.

A stream is a log of its own (streams.py): `streams.append` logs a record as `publish` does, and
gives it an offset. `flush` writes its page. Readers read up to the head, which follows what is
settled.

Failure. After a failed sync nothing is confirmed: every call raises StoppedError, and the directory
must be opened again [10]. A full disk does not stop the engine: publishing is refused with
DiskFullError, while acks, purges, deletes and checkpoints continue in the room of a reserve.

Not thread-safe: its owner has the lock.
"""

import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

from penstock.clock import Clock
from penstock.counts import DISK_S, Histogram
from penstock.errors import (
    DescriptorsError,
    DiskFullError,
    UnknownQueueError,
    deleted_error,
    has_no_descriptor,
    is_shortage,
)
from penstock.message import Entry, Placement, QueuedMessage, SharedBody, Sharing
from penstock.storage.files.data_directory import placed, vhost_number
from penstock.storage.files.durability import DISK, NONE, OS
from penstock.storage.files.filesystem import FileSystem
from penstock.storage.files.options import StorageOptions
from penstock.storage.index.key_windows import KeyWindows
from penstock.storage.index.queue_index import DictHolder, QueueIndex, check_targets, store_refs
from penstock.storage.index.routing_table import DurableQueue, RoutingTable
from penstock.storage.journal import recovery
from penstock.storage.journal.checkpoint import Checkpointer
from penstock.storage.journal.journal import Journal, fullest_disk
from penstock.storage.journal.record_types import (
    Delete,
    LogOperation,
    Mark,
    Move,
    Publish,
    Purge,
    Requeue,
    Seen,
    TopologyChange,
)
from penstock.storage.journal.state import StorageState
from penstock.storage.log import record
from penstock.storage.log.transaction_log import TransactionLog
from penstock.storage.parts.batch_engine import BatchEngine
from penstock.storage.parts.lease_engine import LeaseEngine
from penstock.storage.parts.stream_engine import StreamEngine
from penstock.storage.parts.transaction import Transaction, dequeues_of, publishes_of
from penstock.storage.store.message_store import BodyStores, MessageStore
from penstock.storage.store.store_file import StoreRecord
from penstock.storage.upkeep import Upkeep

ENTRY_BYTES: Final = 64  # on disk beside header and body, about
PAGE_OUT_MAX: Final = 2048  # of one turn (page_out_left): at most 8 MiB


class StorageEngine:
    """Opens and recovers the vhost directory `path`, which exists and has its `.vhost`.

    on_event(kind, text): alarms and events for people: corruption, clean, cut_off, disk_full,
    disk_free, checkpoint, torn_tail. Opening raises LockedError, VersionError, CorruptionError
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
        # Frees entries, perhaps later: to free a million takes a quarter of a second.
        self.free_later: Callable[[deque[Entry]], None] = deque.clear
        # What the queues may still page out in this turn, beside what each publish pages out: a
        # message is one, and so are 4 KiB of its body. `flush` begins the next turn.
        self.page_out_left: int = PAGE_OUT_MAX
        self.totals: StorageTotals = StorageTotals()
        self._transient_below: int = self.options.transient_inline_below
        self._on_event: Callable[[str, str], None] = on_event or _ignore
        self._lock = self.fs.lock(path + "/LOCK")
        try:
            self._open(vhost)
        except BaseException as error:
            self._lock.release()
            if isinstance(error, OSError) and has_no_descriptor(error):
                raise DescriptorsError(str(error.filename or path)) from error
            if isinstance(error, OSError) and is_shortage(error):
                raise self.disk_error(0) from error
            raise

    def _open(self, name: bytes) -> None:
        began_s = self.clock.monotonic()
        fs, path, options = self.fs, self.path, self.options
        vhost = self.vhost = vhost_number(name)
        recovery.make_directories(fs, path)
        found = recovery.load(
            fs, path, vhost, options, self._on_event, name=name, ram_bytes=self._replay_bytes()
        )
        recovery.begin(found)
        self.recovered: recovery.Recovered = found
        self.recovery_seconds: float = 0.0  # what all of this took
        self.state: StorageState = found.state
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
        self._compose(found)
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
        self.upkeep.delete_orphans(found)
        self.recovery_seconds = self.clock.monotonic() - began_s

    def _compose(self, found: recovery.Recovered) -> None:
        """Make the parts of the engine; each is given those that it needs."""
        state, transient = self.state, self.transient
        journal = Journal(
            self.fs, self.path, self.clock, self.options, state, self.log, self._on_event
        )
        self.bodies: BodyStores = BodyStores(state.store, transient, journal.disk_full)
        time_s = self.clock.wall_ms() // 1000
        self.journal: Journal = journal
        self.placement: Placement = Placement(
            state.factory, time_s, embed_below=self.options.queue_index_embed_msgs_below,
            inline_below=self.options.wal_inline_below,
        )  # fmt: skip
        self.streams: StreamEngine = StreamEngine(journal, self.rng, journal.pins)
        number = found.manifest.number
        self.checkpoints: Checkpointer = Checkpointer(journal, transient, number)
        self.batches: BatchEngine = BatchEngine(
            journal, self.checkpoints, self.streams, journal.reserve, journal.pins
        )
        self.leases: LeaseEngine = LeaseEngine(journal, self.placement, self.bodies)
        self.upkeep: Upkeep = Upkeep(journal, self.checkpoints, self.batches, transient)
        journal.call_back(
            on_turn=self.streams.turn, on_settled=self.streams.settle,
            on_progress=self.checkpoints.advance,
        )  # fmt: skip

    def _replay_bytes(self) -> int:
        """Return the bytes that a replay may keep in RAM. 0 stands for all of them, on a disk with
        hardly more space than the replay could write: a start that fails because the disk is full
        leaves no files that take room from the next start."""
        log = self.path + "/wal"
        log_bytes = sum([self.fs.size(f"{log}/{name}") for name in self.fs.list(log)])
        needed = 2 * (log_bytes + self.options.wal_segment_bytes_min)
        return self.options.replay_ram_bytes if self.fs.free_bytes(self.path) > needed else 0

    def _needed_bytes(self) -> int:
        """Return about what the checkpoint of a start must still write: the log's messages."""
        needed = self.checkpoints.bytes
        for queue in self.state.queues.values():
            if isinstance(queue.holder, DictHolder):
                for entry in queue.holder.entries.values():
                    if not entry.on_slot and not entry.message.store_file:
                        needed += len(entry.message.header) + entry.message.size + ENTRY_BYTES
        return needed

    def _finish_streams(self) -> None:
        """Write the pages as the log says; on a full disk use the room of the reserve."""
        try:
            self.state.streams.finish_restore()
        except OSError as error:
            full = self.journal.disk_full(error, 0)
            if not isinstance(full, DiskFullError) or not self.journal.reserve.release():
                raise full from error
            self.state.streams.finish_restore()

    # ---- whether anything is possible ----------------------------------------------------------

    @property
    def failed(self) -> BaseException | None:
        """Why the engine has stopped; None while it works."""
        return self.journal.failed

    @property
    def blocked(self) -> bool:
        """Whether publishers are refused because the disk is full, or no file can be opened."""
        return self.journal.blocked

    @property
    def short_of(self) -> str:
        """What is lacking while publishers are refused: "disk" or "descriptors"; else ""."""
        return self.journal.short_of

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self.journal.is_closed

    def disk_error(self, needed: int) -> DiskFullError:
        """Return the error for a write of `needed` bytes that one of the disks has no room for."""
        return DiskFullError(*fullest_disk(self.fs, self.path), needed)

    def disk_room(self) -> tuple[int, int]:
        """Return the free bytes of the vhost's disk, and those below which publishers wait."""
        return self.fs.free_bytes(self.path), self.journal.options.disk_free_limit

    def set_disk_free_limit(self, limit_bytes: int) -> None:
        """Refuse publishers below so many free bytes from now on."""
        self.journal.options = replace(self.journal.options, disk_free_limit=limit_bytes)
        self.upkeep.check_disk()

    # ---- topology ------------------------------------------------------------------------------

    def declare_queue(
        self, name: bytes, *, arguments: bytes = b"", flags: int = 0, is_durable: bool = True
    ) -> QueueIndex:
        """Declare a queue. A durable one survives a crash once `last_lsn` is settled."""
        if is_durable:
            return self.declare_queues([(name, arguments, flags)])[0]
        self.journal.check()
        return self.state.add_queue(name, self.state.next_queue, is_durable=False)

    def declare_queues(self, declared: list[tuple[bytes, bytes, int]]) -> list[QueueIndex]:
        """Declare durable queues (name, arguments, flags): a crash leaves all of them or none.
        ValueError (a name is taken, or comes twice): nothing happened."""
        self.journal.check()
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
        self.journal.commit([TopologyChange(data) for data in records], DISK)
        return [state.queues[first + i] for i in range(len(records))]

    @property
    def queues(self) -> dict[int, QueueIndex]:
        """The queues, durable and not, by number. Read-only."""
        return self.state.queues

    @property
    def routing(self) -> RoutingTable:
        """The durable topology. Only calls of the engine change it."""
        return self.state.routing

    def queue(self, name: bytes) -> QueueIndex:
        """Return the durable queue of this name. UnknownQueueError."""
        known = self.state.routing.queues.get(name)
        if known is None or known.number not in self.state.queues:
            raise UnknownQueueError(name.decode("utf-8", "replace"))
        return self.state.queues[known.number]

    def apply_topology(self, data: bytes, mode: int = DISK) -> int:
        """Log and apply a record of the RoutingTable (see its functions); return the LSN.
        ValueError (not a record, a queue's name or number is taken): nothing happened."""
        self.journal.check()
        self.state.check_topology(data)
        return self.journal.commit([TopologyChange(data)], mode)

    def delete_queue(self, queue: QueueIndex, mode: int = DISK) -> int:
        """Delete a queue with all that it holds; return the LSN."""
        return self.delete_queues([queue], mode)

    def delete_queues(self, queues: list[QueueIndex], mode: int = DISK) -> int:
        """Delete queues with all that they hold; a crash leaves all of them or none. Returns the
        LSN, 0 if none is durable. UnknownQueueError (one is deleted already): nothing happened."""
        self.journal.check()
        for queue in queues:
            if queue.is_deleted:
                raise deleted_error(queue.name)
        durable: list[LogOperation] = []
        others: list[LogOperation] = []
        for queue in queues:
            (durable if queue.is_durable else others).append(Delete(queue.number))
        lsn = self.journal.commit(durable, mode) if durable else 0
        self.journal.apply(others, lsn, mode)
        return lsn

    # ---- messages ------------------------------------------------------------------------------

    @property
    def time_s(self) -> int:
        """The time of new messages, seconds since 1970; each `flush` and `tick` sets it."""
        return self.placement.time_s

    @time_s.setter
    def time_s(self, time_s: int) -> None:
        self.placement.time_s = time_s

    @property
    def start_number(self) -> int:
        """The number of this start: the upper bits of the ids of its new messages."""
        return self.state.factory.start

    def share(
        self,
        shared: SharedBody | None,
        *,
        completes: bool = True,
        owned: QueuedMessage | None = None,
    ) -> Sharing:
        """Return a `with` inside of which every message published with this body object shares it,
        in RAM and in the store. owned: a message that has the body in the store already, and keeps
        it there (`bodies.own`)."""
        return Sharing(self.placement, shared, completes=completes, owned=owned)

    def publish(
        self, queues: list[QueueIndex], header: bytes, body: bytes, mode: int, expiry_ms: int = 0
    ) -> QueuedMessage:
        """Publish a persistent message to durable queues. It gets the next seq of each, and its
        record the LSN `last_lsn`. DiskFullError, UnknownQueueError (a queue was deleted),
        ValueError (no queue, one twice, a transient one): nothing happened."""
        journal = self.journal
        if journal.failed is not None or journal.blocked or journal.is_closed:
            journal.check_publish()
        if mode == NONE:
            return self.publish_transient(queues, header, body, expiry_ms)
        check_targets(queues)
        size = len(body)
        message = self.placement.new_message(header, body, expiry_ms, len(queues))
        if self.placement.is_in_store(size, len(queues)):
            self._place_in_store(message, body, len(queues))
        self._append_publish(message, queues, mode)
        return message

    def _place_in_store(self, message: QueuedMessage, body: bytes, refs: int) -> None:
        """Write the body of a new message to its store, or let it have the body of another that
        shares it. DiskFullError: nothing happened."""
        placement = self.placement
        store = self.bodies.of(message)
        known = placement.stored_like(message, body)
        if known is not None and (
            known is placement.owned or store.refs(known.store_file, known.id) > 0
        ):
            store.ref(known.store_file, known.id, refs)
            message.id, message.store_file = known.id, known.store_file
            return
        try:
            message.store_file = store.write(message.id, body, refs)
        except OSError as error:
            raise self.journal.disk_full(error, message.size) from error
        placement.note_stored(message, body)

    def publish_spooled(
        self, queues: list[QueueIndex], header: bytes, message: QueuedMessage, mode: int
    ) -> None:
        """Publish a message whose body was spooled to the persistent store (see `spool`). For the
        transient store there is `publish_stored`."""
        journal = self.journal
        if journal.failed is not None or journal.blocked or journal.is_closed:
            journal.check_publish()
        check_targets(queues)
        message.header = header
        self.state.store.ref(message.store_file, message.id, len(queues))
        self._append_publish(message, queues, mode)

    def _append_publish(self, message: QueuedMessage, queues: list[QueueIndex], mode: int) -> None:
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
            elif len(queues) > record.COUNT_MAX:
                places = [(queue.number, queue.next_seq) for queue in queues]
                self.journal.append(publishes_of(message, places), mode, names_store=file != 0)
            else:
                places = [(queue.number, queue.next_seq) for queue in queues]
                flags = record.publish_flags(file, expiry_ms)
                data = record.publish_data(
                    flags, message.id, message.time, expiry_ms, file, places, message.header,
                    message.body or b"", size,
                )  # fmt: skip
                self.log.append(record.PUBLISH, flags, len(places), data, mode)
        except (DiskFullError, ValueError) as error:
            if file:
                self.state.store.unref(file, message.id, len(queues))
            if isinstance(error, DiskFullError):
                raise self.journal.full(error) from None
            raise
        for queue in queues:
            queue.add(queue.next_seq, message)
        self.placement.complete(message)
        if self.log.is_full:
            self.journal.wait_for_room()

    def publish_transient(
        self, queues: list[QueueIndex], header: bytes, body: bytes, expiry_ms: int = 0, *,
        has_left: bool = False,
    ) -> QueuedMessage:  # fmt: skip
        """Publish a transient message (`none`), which has an id and seqs and is not logged. The
        queues' holders keep it. A body for many queues is in the transient store until every queue
        has called `release`; any other is written by its queue, if it must leave RAM. has_left: it
        has left another queue, so it stays in RAM if it cannot be written. Raises DiskFullError,
        OSError: nothing happened."""
        self.journal.check()
        placement = self.placement
        size, copies = len(body), len(queues)
        # Queues that share a body would each write it.
        is_shared = copies > 1 or (placement.sharing is not None and size >= self._transient_below)
        if is_shared and placement.is_in_store(size, copies):
            message = self._new_in_store(header, body, expiry_ms, copies, has_left=has_left)
        else:
            message = placement.new_message(header, body, expiry_ms, copies)
        message.persistent = False
        for queue in queues:
            queue.holder.add(Entry(queue.take_seq(), message))
        placement.complete(message)
        return message

    def _new_in_store(
        self, header: bytes, body: bytes, expiry_ms: int, copies: int, *, has_left: bool
    ) -> QueuedMessage:
        message = self.placement.message_on_disk(header, len(body), expiry_ms)
        message.persistent = False
        try:
            self._place_in_store(message, body, copies)
        except (DiskFullError, OSError):
            if not has_left:
                raise
            return self.placement.new_message(header, body, expiry_ms, copies)
        return message

    def place_transient(self, message: QueuedMessage) -> None:
        """Write the body of a transient message, which must leave RAM, to the transient store, if
        it is too large for the files of its queue. OSError."""
        body, size = message.body, message.size
        if body is None or message.store_file or size < self._transient_below:
            return
        if self.placement.is_in_store(size, 1):  # so no other queue has this very message
            message.store_file = self.transient.write(message.id, body, 1)

    def publish_stored(
        self, queues: list[QueueIndex], header: bytes, message: QueuedMessage, expiry_ms: int = 0
    ) -> None:
        """As `publish_transient`, for a message whose body is in the transient store already."""
        self.journal.check()
        new = QueuedMessage(
            message.id, header, None, message.size, message.time, expiry_ms, message.store_file,
            persistent=False,
        )  # fmt: skip
        self.transient.ref(message.store_file, message.id, len(queues))
        for queue in queues:
            queue.holder.add(Entry(queue.take_seq(), new))

    def publish_kinds(
        self, kinds: list[tuple[list[QueueIndex], bytes, int]], body: bytes, mode: int,
        stored: QueuedMessage | None = None,
    ) -> None:  # fmt: skip
        """Publish a persistent message in one record to durable queues that get it with different
        headers or expiries: (queues, header, expiry), COUNT_MAX of these at most. stored: the body
        is in the store of this one, and `body` is empty. Raises as `publish` does."""
        self.journal.check_publish()
        if stored is not None:
            stored = self.bodies.placed(stored, is_persistent=True)
        messages: list[QueuedMessage] = []
        operations: list[LogOperation] = []
        try:
            for queues, header, expiry_ms in kinds:
                check_targets(queues)
                if stored is None:
                    message = self.placement.new_message(header, body, expiry_ms, len(queues))
                    if self.placement.is_in_store(len(body), len(queues)):
                        self._place_in_store(message, body, len(queues))
                else:
                    message = stored.copy()
                    message.header, message.expiry_ms = header, expiry_ms
                    self.state.store.ref(message.store_file, message.id, len(queues))
                messages.append(message)
                places = [(queue.number, queue.next_seq) for queue in queues]
                operations += publishes_of(message, places)
            names_store = any(message.store_file for message in messages)
            self.journal.append(operations, mode, names_store=names_store)
        except BaseException:
            for message, kind in zip(messages, kinds, strict=False):
                if message.store_file:
                    self.state.store.unref(message.store_file, message.id, len(kind[0]))
            raise
        for message, (queues, _, _) in zip(messages, kinds, strict=True):
            for queue in queues:
                queue.add(queue.next_seq, message)
            self.placement.complete(message)
        if self.log.is_full:
            self.journal.wait_for_room()

    def publish_placed(
        self, queues: list[QueueIndex], header: bytes, message: QueuedMessage, mode: int,
        expiry_ms: int = 0,
    ) -> QueuedMessage:  # fmt: skip
        """Publish another message with the body of one that is in a store: that of persistent
        messages, or, in the mode `none`, of transient ones. Returns the one whose body is there,
        which may be a copy. DiskFullError, CorruptionError: nothing happened."""
        stored = self.bodies.placed(message, is_persistent=mode != NONE)
        if mode == NONE:
            self.publish_stored(queues, header, stored, expiry_ms)
        else:
            new = stored.copy()
            new.expiry_ms = expiry_ms
            self.publish_spooled(queues, header, new, mode)
        return stored

    def record_of(self, queue: QueueIndex, seq: int, message: QueuedMessage) -> StoreRecord | None:
        """Return where `read_records` finds the body of a message that `read` returned; None if it
        has a file of its own, or its place in the store does not fit the message: `load_body` finds
        out. CorruptionError, OSError."""
        file = message.store_file
        if not file:
            section_row = queue.section.get(seq)
            file = 0 if section_row is None else section_row.body_file
        if not file:
            return None
        found = self.bodies.of(message).record_of(file, message.id)
        return found if found is not None and found.size == message.size else None

    def dequeue(self, queue: QueueIndex, entries: list[Entry], mode: int) -> int:
        """Acknowledge and remove persistent entries, ascending by seq. Returns the LSN. ValueError
        (one of them is not alive): nothing happened."""
        journal = self.journal
        journal.check()
        runs = queue.runs(entries)
        for run in runs:
            if not queue.is_live_run(run):
                raise ValueError(f"of seqs {run[0]} to {run[0] + run[1] - 1} some are not alive")
        if journal.gathering is not None or len(runs) > record.COUNT_MAX:
            return journal.commit(dequeues_of(queue, entries), mode)
        stores = store_refs(entries)
        lsn = self.log.append_dequeue(queue.number, runs, stores, mode)
        try:
            self.state.dequeue(lsn, queue, runs, stores, entries)
        except BaseException as error:
            journal.stop(error)  # the log is ahead of RAM: only recovery can continue
            raise
        if self.log.is_full:
            journal.wait_for_room()
        return lsn

    def move(
        self,
        queue: QueueIndex,
        entry: Entry,
        targets: list[QueueIndex],
        header: bytes,
        mode: int,
        expiry_ms: int = 0,
    ) -> tuple[int, QueuedMessage]:
        """Move an entry to the end of other queues, with a new header, in one record:
        dead-lettering cannot lose or double it. Returns the LSN and the new message."""
        lsn, moved = self.move_run(queue, [entry], targets, [header], mode, expiry_ms)
        return lsn, moved[0]

    def move_run(
        self, queue: QueueIndex, entries: list[Entry], targets: list[QueueIndex],
        headers: list[bytes], mode: int, expiry_ms: int,
    ) -> tuple[int, list[QueuedMessage]]:  # fmt: skip
        """Move entries, each with a new header, as `move` does, all in one record."""
        journal = self.journal
        journal.check()
        assert journal.gathering is None, "a move is a record of its own"
        moves: list[LogOperation] = []
        moved: list[QueuedMessage] = []
        for i in range(len(entries)):
            entry = entries[i]
            old = entry.message
            if not queue.is_live_run(queue.runs([entry])[0]):
                raise ValueError(f"seq {entry.seq} of queue {queue.number} is not alive")
            body = None if old.store_file else self.state.load_body(queue, entry.seq, old)
            new = self.placement.moved_message(old, headers[i], body, expiry_ms, len(targets))
            places = [(target.number, target.next_seq + i) for target in targets]
            moves.append(Move(queue.number, entry.seq, old.size, Publish(new, places), entry))
            moved.append(new)
        lsn = journal.commit(moves, mode)
        for new in moved:
            self.placement.complete(new)
        return lsn, moved

    def purge(self, queue: QueueIndex, kept: Iterable[Entry], mode: int) -> tuple[int, int]:
        """Remove all persistent entries but `kept` (the unacknowledged, ascending). Returns the LSN
        and how many were removed. References of those on disk are released later, in slices. What
        `kept` raises is raised: nothing has happened."""
        return self.purge_queues([(queue, kept)], mode)

    def purge_queues(
        self, purged: Sequence[tuple[QueueIndex, Iterable[Entry]]], mode: int
    ) -> tuple[int, int]:
        """Purge durable queues, each but for its `kept`; a crash leaves all purged or none."""
        self.journal.check()
        operations: list[LogOperation] = []
        died = 0
        for queue, entries in purged:
            operations.append(Purge(queue.number, queue.next_seq, queue.kept_runs(entries)))
            died += queue.count
        lsn = self.journal.commit(operations, mode)
        for queue, _ in purged:
            died -= queue.count
        return lsn, died

    def requeue(self, queue: QueueIndex, attempts: list[tuple[int, int]], mode: int) -> int:
        """Log how often entries (seq, attempts) were delivered. Returns the LSN."""
        self.journal.check()
        most = record.COUNT_MAX
        operations: list[LogOperation] = [
            Requeue(queue.number, attempts[at : at + most]) for at in range(0, len(attempts), most)
        ]
        return self.journal.commit(operations, mode)

    def mark(self, queue: QueueIndex, mark: int, mode: int) -> int:
        """Raise the delivered mark to `mark`, below which messages may be delivered once that is
        settled. Returns the LSN."""
        self.journal.check()
        return self.journal.commit([Mark(queue.number, mark)], mode)

    def read(self, queue: QueueIndex, seqs: list[int]) -> list[QueuedMessage]:
        """Read live persistent messages, ascending, of one segment, that left RAM; without bodies
        that are in the store (see `load_body`). CorruptionError names file and position."""
        return queue.read(seqs)

    def entry(self, queue: QueueIndex, seq: int) -> Entry:
        """Return a live persistent entry with its body, from RAM or disk. KeyError if it is not
        alive; CorruptionError names file and position."""
        if not queue.is_live(seq):
            raise KeyError(f"seq {seq} of queue {queue.number} is not alive")
        held = queue.holder.get(seq)
        if held is None:
            (message,) = queue.read([seq])
            held = Entry(seq, message, on_slot=seq not in queue.section)
        self.state.load_body(queue, seq, held.message)
        return held

    def load_body(self, queue: QueueIndex, seq: int, message: QueuedMessage) -> bytes:
        """Return the body of a message that `read` returned. CorruptionError."""
        if not message.persistent and message.body is None:
            message.body = self.transient.read(message.store_file, message.id)
        return self.state.load_body(queue, seq, message)

    # ---- transactions --------------------------------------------------------------------------

    def begin(self) -> Transaction:
        """Return a new transaction over any number of queues of this vhost."""
        self.journal.check()
        return Transaction(self.journal, self.placement)

    @property
    def windows(self) -> KeyWindows:
        """The keys that queues and exchanges have seen."""
        return self.state.windows

    def see(self, name: bytes, key: bytes, until_ms: int, mode: int = OS) -> int:
        """Have a window see a key; return the LSN of the record. A message with it comes in a
        transaction, which does the same (`Transaction.see`)."""
        return self.journal.commit([Seen(name, key, until_ms)], mode)

    # ---- time ----------------------------------------------------------------------------------

    def facts(self) -> dict[str, object]:
        """Return the numbers of log, checkpoints and store, by the names of metric_table."""
        log, checkpoints, store = self.log, self.checkpoints, self.state.store
        live = store.live_bytes
        return {
            "recovery_seconds": self.recovery_seconds,
            "recovery_records": self.recovered.records,
            "recovery_log_bytes": self.recovered.log_bytes,
            "log_bytes_total": log.appended_bytes,
            "log_records_total": {kind.lower(): n for kind, n in log.record_kinds().items()},
            "log_groups_total": log.groups,
            "log_group_records": log.synced_records.facts(),
            "sync_seconds": log.sync_seconds.facts(),
            "sync_failures_total": int(log.failed is not None),
            "log_segments": log.segments,
            "log_live_bytes": self.upkeep.needed_bytes - checkpoints.bytes,
            "log_lag_lsn": log.last_lsn - log.settled(DISK),
            "checkpoints_total": dict(self.upkeep.reasons),
            "checkpoint_seconds": checkpoints.seconds.facts(),
            "checkpoint_bytes": checkpoints.bytes,
            "checkpoint_age_seconds": self.clock.monotonic() - checkpoints.made_s,
            "store_bytes": {
                "live": live,
                "dead": max(store.total_bytes - live, 0),
                "reserve": self.journal.reserve.bytes,
            },
            "store_files": len(store.files),
            "store_combines_total": self.upkeep.combines,
            "store_combined_bytes_total": self.upkeep.combined_bytes,
            "queue_files_open": self.fs.open_files(),
            "stream_records_total": log.stream_records,
            "stream_bytes_total": self.state.streams.written_bytes,
            "stream_retained_away_total": self.state.streams.retained_records,
        }

    def flush(self) -> None:
        """End a turn: write what was appended, and start a sync if one is wanted. StoppedError,
        SyncFailedError."""
        self.time_s = self.clock.wall_ms() // 1000
        self.page_out_left = PAGE_OUT_MAX
        self.journal.flush()
        if self.upkeep.is_near_limit:
            self.upkeep.look_at_room()

    def wait(self, lsn: int, mode: int) -> None:
        """Wait until `settled(mode) >= lsn`; `disk` syncs weaker records too. StoppedError,
        SyncFailedError: it will never be."""
        self.journal.wait(lsn, mode)

    def be_sliced(self) -> None:
        """Write large records over several turns: the owner runs another one soon while
        `streams.has_unwritten` or `log.has_unwritten`."""
        self.streams.is_sliced = self.log.is_sliced = True

    def is_ready(self, size: int) -> bool:
        """Return whether a record with so many bytes of bodies can be logged without waiting for
        the disk. If not, what it needs is prepared; `when_ready` says when to ask again."""
        return self.journal.is_ready(size)

    def when_ready(self, wake: Callable[[], None]) -> None:
        """Call `wake` once more of the log is written, or prepared. It must not call the engine."""
        self.journal.when_ready(wake)

    def sync(self) -> None:
        """Wait until everything appended so far is durable."""
        self.journal.wait(self.log.last_lsn, DISK)

    def poll(self, *, wait: bool = False) -> None:
        """Take what the file system has completed; wait=True: at least one thing, if any is due."""
        self.journal.poll(wait=wait)

    def tick(self) -> None:
        """Do the regular work, a few times a second: interval syncs, a slice of a checkpoint when
        one is due, purged references, combining, the disk's free space."""
        self.journal.check()
        self.time_s = self.clock.wall_ms() // 1000
        self.journal.tick()
        self.upkeep.tick(self.clock.monotonic())

    # ---- checkpoints and space -----------------------------------------------------------------

    def checkpoint(self) -> bool:
        """Make a whole checkpoint now. False if it was given up because the disk is full."""
        self.journal.check()
        return self.upkeep.checkpoint()

    def use_reserve(self) -> bool:
        """Release the reserve on a full disk. False if there is none."""
        return self.journal.reserve.release()

    # ---- stopping ------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop in order: make a clean checkpoint, so that the next start reads no log, close the
        files and release the lock. After a failure only close and release, and write nothing."""
        if self.is_closed:
            return
        try:
            if self.failed is None:
                self.sync()
                self.streams.write_rest()
                while self.upkeep.reap():
                    self.sync()
                self.upkeep.close()
        finally:
            self.journal.is_closed = True
            self.log.close()
            self.state.close()
            self.transient.close()
            self._lock.release()


def _ignore(_kind: str, _text: str) -> None:
    pass


class StorageTotals:
    """What all queues of one engine together have done since it was opened: a sum over those that
    are there would fall when one is deleted. Each is added to once for a run of messages. betas,
    gammas, deltas: how many messages became such when they left RAM. paged_in: messages that were
    read back. read_ahead_hits, read_ahead_misses: runs that were read before a get needed them, and
    those that a get waited for."""

    def __init__(self) -> None:
        self.betas: int = 0
        self.gammas: int = 0
        self.deltas: int = 0
        self.paged_out_bytes: int = 0
        self.paged_in: int = 0
        self.paged_in_bytes: int = 0
        self.page_in_runs: int = 0
        self.page_in_seconds: Histogram = Histogram(DISK_S)
        self.read_ahead_hits: int = 0
        self.read_ahead_misses: int = 0

    def page_in(self, messages: int, size: int, seconds: float) -> None:
        """Count a read of a run, of `size` bytes of RAM."""
        self.paged_in += messages
        self.paged_in_bytes += size
        self.page_in_runs += 1
        self.page_in_seconds.record(seconds)
