"""Transaction: publishes and dequeues that happen together, or not at all.

Qpid's TransactionLog has startTransaction, commit and abort; here a transaction is collected by its
owner and becomes one TX record when it commits, so that a crash can only find all or nothing of it.
Until then nothing of it is in the log.

Records for streams are part of it as publishes are: their offsets and times are assigned when it
commits, in the same record. Their bodies are never in the store, so they wait in RAM.

Many messages with one header for one queue, as batches bring them, are a run (`publish_run`): the
same operations in the log, but encoded and brought to life in loops of their own.

Two limits keep it from costing RAM. Bodies beyond the first `tx_spool_bytes` (1 MiB) go to the
MessageStore as they come, owned by the transaction: dropped at rollback, orphans for recovery if
there is neither commit nor rollback. And a commit of more than `tx_record_bytes` (8 MiB) of log
bytes is written in TX_PART records, decided by one TX_COMMIT; places in the parts are ordinals,
because the seqs that they will have are known only when the commit assigns them. Beyond
`tx_bytes_max` (256 MiB) it is refused whole: TransactionTooLargeError.
"""

from typing import TYPE_CHECKING

from penstock.errors import (
    DiskFullError,
    StorageError,
    TransactionTooLargeError,
    deleted_error,
)
from penstock.message import Entry, Message
from penstock.shared_body import SharedMessage
from penstock.storage import batches, record
from penstock.storage.batches import BatchRecord
from penstock.storage.publish_run import run_of_publishes
from penstock.storage.queue_index import QueueIndex
from penstock.storage.streams import Stream

if TYPE_CHECKING:
    from penstock.storage.engine import StorageEngine


class Published:
    """One publish of a transaction; `entries` are its places once it is committed."""

    __slots__ = ("entries", "message", "queues")

    def __init__(self, message: Message, queues: list[QueueIndex]) -> None:
        self.message: Message = message
        self.queues: list[QueueIndex] = queues
        self.entries: list[tuple[QueueIndex, Entry]] = []


class PublishedRun(Published):
    """Publishes with one header to one queue. first_seq: of the first of the messages, the others
    follow it; -1 until it is committed. `message` is the first, `entries` stays empty."""

    __slots__ = ("first_seq", "messages")

    def __init__(self, messages: list[Message], queue: QueueIndex) -> None:
        super().__init__(messages[0], [queue])
        self.messages: list[Message] = messages
        self.first_seq: int = -1


class Appended:
    """One record for a stream in a transaction; `offset` is -1 until it is committed."""

    __slots__ = ("body", "header", "offset", "stream", "time_us")

    def __init__(self, stream: Stream, header: bytes, body: bytes) -> None:
        self.stream: Stream = stream
        self.header: bytes = header
        self.body: bytes = body
        self.offset: int = -1
        self.time_us: int = 0


class Transaction:
    """Made by `StorageEngine.begin`. Not for use after commit or rollback (StorageError)."""

    def __init__(self, engine: "StorageEngine") -> None:
        self._engine = engine
        self.publishes: list[Published] = []
        self.appends: list[Appended] = []
        self.dequeues: list[tuple[QueueIndex, list[Entry]]] = []
        self.batch: BatchRecord | None = None
        self._taken: set[tuple[int, int]] = set()
        self.body_bytes: int = 0
        self.log_bytes: int = 0
        self.is_open: bool = True

    def publish(
        self, queues: list[QueueIndex], header: bytes, body: bytes, expiry_ms: int = 0
    ) -> Published:
        """Publish a persistent message when the transaction commits. DiskFullError if the body had
        to be spooled and could not be; the transaction is then as before."""
        self._check()
        check_targets(queues)
        engine = self._engine
        spooled = self.body_bytes + len(body) > engine.options.tx_spool_bytes
        if spooled or engine.places_in_store(len(body), len(queues)):
            message = engine.message_on_disk(header, len(body), expiry_ms)
            self._spool(message, body)
        else:
            message = engine.new_message(header, body, expiry_ms, len(queues))
            self.log_bytes += len(body)
        self.body_bytes += len(body)
        self.log_bytes += 64 + len(header) + 12 * len(queues)
        published = Published(message, queues)
        self.publishes.append(published)
        return published

    def publish_run(
        self, queue: QueueIndex, header: bytes, bodies: list[bytes], expiry_ms: int = 0
    ) -> PublishedRun | None:
        """Publish these, one at least, to one queue when the transaction commits: as `publish` of
        each, for less. None: not all bodies belong into the record; nothing has changed."""
        self._check()
        check_targets([queue])
        engine = self._engine
        size = 0
        for body in bodies:
            size += len(body)
            if engine.places_in_store(len(body), 1):
                return None
        if self.body_bytes + size > engine.options.tx_spool_bytes:
            return None
        self.body_bytes += size
        self.log_bytes += size + (76 + len(header)) * len(bodies)
        messages = [engine.new_message(header, body, expiry_ms) for body in bodies]
        published = PublishedRun(messages, queue)
        self.publishes.append(published)
        return published

    def append_stream(self, stream: Stream, header: bytes, body: bytes) -> Appended:
        """Append a record to a stream when the transaction commits. UnknownQueueError, ValueError
        (too long): the transaction is as before."""
        self._check()
        if stream.is_deleted:
            raise deleted_error(stream.name)
        stream.queue.check(body, header)
        appended = Appended(stream, header, body)
        self.appends.append(appended)
        self.body_bytes += len(body)
        self.log_bytes += 64 + len(header) + len(body)
        return appended

    def _spool(self, message: Message, body: bytes) -> None:
        """The body goes to the store, owned by the transaction, with no reference yet."""
        engine = self._engine
        if engine.blocked:
            engine.refuse()
        store = engine.state.store
        try:
            message.store_file = store.write(message.id, body, 0)
        except OSError as error:
            raise engine.disk_full(error, len(body)) from error
        store.own(message.store_file, message.id)

    def progress(self, query: str, page: int, frame: int) -> None:
        """It is a slice of a query's batch that is being rolled forward: what comes after it is
        this frame. ValueError: nothing of that query is."""
        self._check()
        batch = self._engine.state.batches.by_query.get(query)
        if batch is None or batch.is_done:
            raise ValueError(f"no batch of query {query!r} is to be rolled forward")
        if (page, frame) < (batch.page, batch.frame) or page > batch.page_count:
            at = f"{batch.page}, {batch.frame} of {batch.page_count} pages"
            raise ValueError(f"batch {batch.number} cannot go on at {page}, {frame}: it is at {at}")
        self.batch = BatchRecord(query, batch.number, batch.time_us, page=page, frame=frame)
        self.log_bytes += 64 + len(query)

    def dequeue(self, queue: QueueIndex, entries: list[Entry]) -> None:
        """Acknowledge entries, ascending by seq, when the transaction commits. ValueError for one
        that it has already, or that comes before a lower one: nothing happened."""
        self._check()
        queue.runs(entries)  # they ascend
        for entry in entries:
            if (queue.number, entry.seq) in self._taken:
                raise ValueError(f"seq {entry.seq} is in this transaction already")
        self._taken.update([(queue.number, entry.seq) for entry in entries])
        self.dequeues.append((queue, entries))
        self.log_bytes += 32 + 40 * len(entries)

    def commit(self, mode: int) -> int:
        """Make it happen; returns the LSN of the record that decides. It is atomic once that is
        settled. TransactionTooLargeError, ValueError (an entry is not alive): nothing happened, and
        it is rolled back. DiskFullError: nothing happened, it may be tried again."""
        self._check()
        engine = self._engine
        engine.check()
        limit = engine.options.tx_bytes_max
        if self.log_bytes > limit:
            self.rollback()
            raise TransactionTooLargeError(self.log_bytes, limit)
        self._forget_deleted()
        for queue, entries in self.dequeues:
            if not all(queue.is_live_run(run) for run in queue.runs(entries)):
                self.rollback()
                raise ValueError(f"an entry of queue {queue.number} is not alive")
        if engine.blocked and (self.publishes or self.appends):
            engine.refuse()
        is_large = self.log_bytes > engine.options.tx_record_bytes
        ops = self._ops(is_large=is_large)
        named = any(p.message.store_file for p in self.publishes)
        try:
            if is_large:
                lsn = self._append_parts(ops, mode, named)
            else:
                count, data = encode_all(ops)
                lsn = engine.log.append(record.TX, 0, count, data, mode, names_store=named)
        except DiskFullError as error:
            raise engine.full(error) from error
        try:
            self._apply(lsn, mode)
        except BaseException as error:
            engine.stop(error)  # the log is ahead of RAM: only recovery goes on from there
            raise
        self.is_open = False
        if engine.log.is_full:
            engine.wait_for_room()
        return lsn

    def _forget_deleted(self) -> None:
        """Queues that were deleted since: what was for them, or in them, is gone with them."""
        self.dequeues = [(q, entries) for q, entries in self.dequeues if not q.is_deleted]
        for published in self.publishes:
            published.queues = [q for q in published.queues if not q.is_deleted]
            m = published.message
            if not published.queues and m.store_file:
                self._engine.state.store.disown(m.store_file, m.id)
        self.publishes = [p for p in self.publishes if p.queues]
        self.appends = [a for a in self.appends if not a.stream.is_deleted]

    def _ops(self, *, is_large: bool) -> list[record.Op]:
        """The operations; places have seqs, or ordinals within (transaction, queue or stream) if it
        is large. A run is an operation TX, the list of its publishes, unless it is large."""
        next_seqs: dict[int, int] = {}
        ops: list[record.Op] = []
        batch = self.batch
        if batch is not None:  # first, so that a replay knows whose slice it is
            data = batches.progress_data(batch.query, batch.number, batch.page, batch.frame)
            ops.append(record.Op(record.BATCH, batches.PROGRESS, 0, data))
        for published in self.publishes:
            messages = published.messages if isinstance(published, PublishedRun) else []
            places: list[tuple[int, int]] = []
            for queue in published.queues:
                seq = next_seqs.get(queue.number, 0 if is_large else queue.next_seq)
                next_seqs[queue.number] = seq + max(len(messages), 1)
                places.append((queue.number, seq))
            if not messages:
                ops.append(publish_op(published.message, places))
                continue
            number, seq = places[0]
            if is_large:
                ops += [publish_op(m, [(number, seq + i)]) for i, m in enumerate(messages)]
            else:
                data = run_of_publishes(number, seq, messages)
                ops.append(record.Op(record.TX, 0, len(messages), data))
        now_us = self._engine.clock.wall_us() if batch is None else batch.time_us
        for a in self.appends:
            stream = a.stream
            offset = next_seqs.get(stream.number, 0 if is_large else stream.next_offset)
            next_seqs[stream.number] = offset + 1
            a.time_us = max(now_us, stream.queue.last_time_us)
            data = record.stream_data(stream.number, offset, a.time_us, a.header, a.body)
            ops.append(record.Op(record.STREAM, 0, 1, data))
        ops += [dequeue_op(queue, entries) for queue, entries in self.dequeues]
        return ops

    def _append_parts(self, ops: list[record.Op], mode: int, named: bool) -> int:
        """TX_PART records, decided by a TX_COMMIT; no checkpoint makes its cut in between."""
        engine = self._engine
        log = engine.log
        number = log.last_lsn + 1
        engine.is_committing = True
        try:
            start = size = 0
            for i, op in enumerate(ops):
                size += len(op.data)
                if size >= engine.options.tx_part_bytes or i == len(ops) - 1:
                    part = ops[start : i + 1]
                    data = record.tx_part_data(number, part)
                    log.append(record.TX_PART, 0, len(part), data, mode, names_store=named)
                    start, size = i + 1, 0
                    if log.is_full:
                        engine.wait_for_room()
            first_seqs = {q.number: q.next_seq for p in self.publishes for q in p.queues}
            first_seqs.update((a.stream.number, a.stream.next_offset) for a in self.appends)
            data = record.tx_commit_data(number, list(first_seqs.items()))
            return log.append(record.TX_COMMIT, 0, len(first_seqs), data, mode)
        finally:
            engine.is_committing = False

    def _apply(self, lsn: int, mode: int) -> None:
        state = self._engine.state
        batch = None
        if self.batch is not None:
            batch = state.apply_batch(lsn, batches.PROGRESS, self.batch)
            for a in self.appends:
                state.streams.touch(batch, a.stream)
        for published in self.publishes:
            if isinstance(published, PublishedRun):
                apply_run(published)
                continue
            m = published.message
            in_store = m.store_file != 0
            for queue in published.queues:
                seq = queue.publish(m.size, in_store, m.expiry_ms)
                entry = Entry(seq, m)
                queue.holder.add(entry)
                published.entries.append((queue, entry))
            if isinstance(m, SharedMessage) and m.shared is not self._engine.sharing:
                m.shared.complete()
            if in_store:
                state.store.ref(m.store_file, m.id, len(published.queues))
                state.store.disown(m.store_file, m.id)
        for a in self.appends:
            a.offset = state.streams.append(a.stream, lsn, mode, a.time_us, a.header, a.body)
        for queue, entries in self.dequeues:
            state.apply_dequeue(lsn, queue, queue.runs(entries), store_refs(entries), entries)
        if batch is not None:
            state.end_batch(lsn, batch)

    def rollback(self) -> None:
        """Forget it; bodies that were spooled for it are given back."""
        self._check()
        self.is_open = False
        for published in self.publishes:
            message = published.message
            if message.store_file:
                self._engine.state.store.disown(message.store_file, message.id)

    def _check(self) -> None:
        if not self.is_open:
            raise StorageError("the transaction is over: it was committed or rolled back")


def apply_run(published: PublishedRun) -> None:
    """Bring the messages of a run to life."""
    queue = published.queues[0]
    holder = queue.holder
    published.first_seq = queue.next_seq
    for m in published.messages:
        holder.add(Entry(queue.publish(m.size, False, m.expiry_ms), m))


def encode_all(ops: list[record.Op]) -> tuple[int, bytes]:
    """Count and data of a TX of these operations; one that is a TX itself stands for its list."""
    if not any(op.type == record.TX for op in ops):
        return len(ops), record.encode_ops(ops)
    parts = [op.data if op.type == record.TX else record.encode_ops([op]) for op in ops]
    return sum([op.count if op.type == record.TX else 1 for op in ops]), b"".join(parts)


def publish_op(m: Message, places: list[tuple[int, int]]) -> record.Op:
    """The PUBLISH operation of a message at these (queue number, seq or ordinal)."""
    flags = record.publish_flags(m.store_file, m.expiry_ms)
    data = record.publish_data(
        flags, m.id, m.time, m.expiry_ms, m.store_file, places, m.header, m.body or b"", m.size
    )
    return record.Op(record.PUBLISH, flags, len(places), data)


def dequeue_op(queue: QueueIndex, entries: list[Entry]) -> record.Op:
    """The DEQUEUE operation of entries, ascending."""
    runs = queue.runs(entries)
    data = record.dequeue_data(queue.number, runs, store_refs(entries))
    return record.Op(record.DEQUEUE, 0, len(runs), data)


def store_refs(entries: list[Entry]) -> list[tuple[int, int, int]]:
    """(id, store file, bytes) of every entry that is placed in the store."""
    messages = [entry.message for entry in entries]
    return [(m.id, m.store_file, m.size) for m in messages if m.store_file]


def check_targets(queues: list[QueueIndex]) -> None:
    """Refuse what must not get into the log: no queue, one twice, one that is gone or transient."""
    for queue in queues:
        if queue.is_deleted:
            raise deleted_error(queue.name)
        if not queue.is_durable:
            raise ValueError(f"queue {queue.number} is transient, the message is persistent")
    if len(queues) != 1 and len({queue.number for queue in queues}) != max(len(queues), 1):
        raise ValueError("a message goes to one queue at least, and to each queue once")
