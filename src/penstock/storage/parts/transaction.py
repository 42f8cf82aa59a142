"""Transaction: publishes and dequeues that happen together, or not at all.

Qpid's TransactionLog has startTransaction, commit and abort. Here the owner collects a transaction,
and it becomes one TX record when it commits, so a crash leaves all or nothing of it. Until then
nothing of it is in the log.

Records for streams are part of it as publishes are: they get their offsets and times when it
commits, in the same record. Their bodies are never in the store and wait in RAM.

Many messages with one header for one queue, as batches bring them, are a run (`publish_run`): the
same operations in the log, but encoded and applied in loops of their own.

Two limits bound its RAM. Bodies beyond the first `tx_spool_bytes` (1 MiB) are written to the
MessageStore as they come, owned by the transaction: a rollback drops them, and after a crash they
are orphans for recovery. A commit of more than `tx_record_bytes` (8 MiB) of log bytes is written in
TX_PART records, decided by one TX_COMMIT. Places in the parts are ordinals, and the TX_COMMIT has
the first seq of each queue. A transaction of more than `tx_bytes_max` (256 MiB) is refused:
TransactionTooLargeError.

An owner that serves others meanwhile commits in slices:

    write_part    again and again: some acknowledgements, or publishes and appends, become one
                  TX_PART
    commit        the decision: a TX_SLICE lets the first part take effect. From here on all of it
                  happens, also after a crash
    apply_part    again and again: one TX_SLICE, and its part takes effect. Its messages get their
                  seqs now, so what others publish in between stands between the parts

No checkpoint makes its cut from the first part to the last slice. Recovery applies the parts that a
decided transaction has left after all other records (`state.py:Replay.roll_forward`).
"""

from collections import deque
from typing import Final

from librt.strings import BytesWriter, write_i32_be, write_i64_be

from penstock.errors import DiskFullError, StorageError, TransactionTooLargeError, deleted_error
from penstock.fast_crc import BodyPieces
from penstock.message import Entry, Placement, QueuedMessage
from penstock.storage.index.key_windows import KeyWindow
from penstock.storage.index.queue_index import QueueIndex, check_targets, store_refs
from penstock.storage.journal.journal import Journal
from penstock.storage.journal.record_types import (
    Append,
    AppliedRecord,
    BatchChange,
    Dequeue,
    LogOperation,
    LogState,
    Publish,
    Seen,
)
from penstock.storage.log import record
from penstock.storage.log.record import HAS_EXPIRY, PLACE_BYTES, PUBLISH, PUBLISH_FIXED_BYTES
from penstock.storage.pages import batches
from penstock.storage.pages.batches import BatchRecord
from penstock.storage.pages.streams import StoredStream

ENTRY_LOG_BYTES: Final = 40  # of one that is acknowledged, at most
OPERATION_LOG_BYTES: Final = 64  # counted for each, beside what it brings
PART_PLACES: Final = 512  # of messages in queues and streams, in a part of `write_part`: some ms


def run_of_publishes(queue: int, first_seq: int, messages: list[QueuedMessage]) -> bytes:
    """Encode the PUBLISH operations of a TX for messages of one header, time and expiry, to one
    queue, from first_seq on. Their bodies are in RAM and belong into the record. The result is that
    of record.py, but one loop writes it into one buffer, which is faster."""
    first = messages[0]
    header = first.header
    expiry = first.expiry_ms.to_bytes(8, "big") if first.expiry_ms else b""
    flags = HAS_EXPIRY if expiry else 0
    fixed = PUBLISH_FIXED_BYTES + len(expiry) + PLACE_BYTES + len(header)
    head = bytes((PUBLISH, flags, 0, 1))
    middle = first.time.to_bytes(4, "big") + len(header).to_bytes(4, "big")
    number = expiry + queue.to_bytes(4, "big")
    out = BytesWriter()
    seq = first_seq
    for m in messages:
        body = m.body
        assert body is not None, "a body that belongs into the record is in RAM"
        out.write(head)
        write_i32_be(out, fixed + m.size)
        write_i64_be(out, m.id)
        out.write(middle)
        write_i32_be(out, m.size)
        out.write(number)
        write_i64_be(out, seq)
        out.write(header)
        out.write(body)
        seq += 1
    return out.getvalue()


class Published:
    """One publish of a transaction. queues: those that were deleted before the commit leave it.
    born: its new entries, once it is committed; none for a run. is_applied: it has taken effect, if
    it is committed in slices."""

    __slots__ = ("born", "is_applied", "message", "queues")

    def __init__(self, message: QueuedMessage, queues: list[QueueIndex]) -> None:
        self.message: QueuedMessage = message
        self.queues: list[QueueIndex] = queues
        self.born: list[Entry] = []  # in the order of the queues
        self.is_applied: bool = False


class PublishedRun(Published):
    """Publishes with one header to one queue. first_seq: of the first message, the others follow;
    -1 before the commit. `message` is the first, `born` stays empty."""

    __slots__ = ("first_seq", "messages")

    def __init__(self, messages: list[QueuedMessage], queue: QueueIndex) -> None:
        super().__init__(messages[0], [queue])
        self.messages: list[QueuedMessage] = messages
        self.first_seq: int = -1


class _Run(LogOperation):
    """All PUBLISH operations of a PublishedRun, encoded and applied in loops of their own. In the
    log they are single publishes, so nothing is ever decoded to a run."""

    def __init__(self, queue: QueueIndex, first_seq: int, messages: list[QueuedMessage]) -> None:
        self.queue: QueueIndex = queue
        self.first_seq: int = first_seq
        self.messages: list[QueuedMessage] = messages

    def encode(self) -> record.Op:
        data = run_of_publishes(self.queue.number, self.first_seq, self.messages)
        return record.Op(record.TX, 0, len(self.messages), data)

    def apply(self, state: LogState, at: AppliedRecord) -> None:
        queue, seq = self.queue, self.first_seq
        for m in self.messages:
            queue.add(seq, m)
            seq += 1

    def contents(self) -> list[Publish | Append]:
        number, first = self.queue.number, self.first_seq
        found: list[Publish | Append] = []
        for i, m in enumerate(self.messages):
            found.append(Publish(m, [(number, first + i)]))
        return found

    def text(self) -> str:
        return f"{len(self.messages)} messages to queue {self.queue.number} seq {self.first_seq}"


class Appended:
    """One record for a stream in a transaction. large: its body, if that is in pieces; else they
    are none. offset: -1 before the commit."""

    __slots__ = ("body", "header", "large", "offset", "stream", "time_us")

    def __init__(
        self, stream: StoredStream, header: bytes, body: bytes, large: BodyPieces | None
    ) -> None:
        self.large: BodyPieces | None = large
        self.stream: StoredStream = stream
        self.header: bytes = header
        self.body: bytes = body
        self.offset: int = -1
        self.time_us: int = 0

    @property
    def size(self) -> int:
        """Bytes of its body."""
        return len(self.body) if self.large is None else self.large.size


class _Part:
    """A TX_PART that `write_part` has written, until it is applied. lsn: its own. dequeues: how
    many of the transaction's `dequeue` are in it. places: how many messages it takes from queues,
    or brings to queues and streams, from their first ordinal on."""

    def __init__(self) -> None:
        self.lsn: int = 0
        self.dequeues: int = 0
        self.taken: int = 0  # entries
        self.operations: list[LogOperation] = []
        self.publishes: list[Published] = []
        self.appends: list[Appended] = []
        self.counts: dict[int, int] = {}  # ordinals given out, by queue or stream
        self.queues: dict[int, QueueIndex] = {}
        self.streams: dict[int, StoredStream] = {}

    @property
    def places(self) -> int:
        return self.taken + sum(self.counts.values())

    def first_seqs(self) -> dict[int, int]:
        """Return the seq or offset that each queue or stream gives to its first message now."""
        found = {number: queue.next_seq for number, queue in self.queues.items()}
        for number, stream in self.streams.items():
            found[number] = stream.next_offset
        return found


class Transaction:
    """Made by `StorageEngine.begin`. After commit or rollback its calls raise StorageError.
    place_count: places of the messages in queues, so far, and entries that are acknowledged.
    dequeued: of how many `dequeue` the entries are gone, in their order. first_seqs: queue or
    stream -> the seq or offset of the first message that it got, after the commit, or after each
    slice of it."""

    def __init__(self, journal: Journal, placement: Placement) -> None:
        self._journal = journal
        self._placement = placement
        self.publishes: list[Published] = []
        self.appends: list[Appended] = []
        self.dequeues: list[tuple[QueueIndex, list[Entry]]] = []
        self.batch: BatchRecord | None = None
        self.seen: list[Seen] = []
        self._taken: set[tuple[int, int]] = set()
        self.body_bytes: int = 0
        self.log_bytes: int = 0
        self.place_count: int = 0
        self.first_seqs: dict[int, int] = {}
        self.is_open: bool = True
        self.dequeues_last: bool = False  # in slices: as a message needs what it moves from
        self.dequeued: int = 0
        self._dequeue_count: int = 0  # calls
        # What `write_part` has written: how many of each, in which parts.
        self._written_dequeues: int = 0
        self._written: int = 0
        self._written_appends: int = 0
        self._number: int = 0  # of the transaction in its parts; 0: none is written
        self._parts: deque[_Part] = deque()

    def publish(
        self, queues: list[QueueIndex], header: bytes, body: bytes, expiry_ms: int = 0
    ) -> Published:
        """Publish a persistent message when the transaction commits. DiskFullError: the body could
        not be spooled, and nothing has changed."""
        self._check()
        check_targets(queues)
        copies = len(queues)
        placement = self._placement
        spooled = self.body_bytes + len(body) > self._journal.options.tx_spool_bytes
        if spooled or placement.is_in_store(len(body), copies):
            message = placement.message_on_disk(header, len(body), expiry_ms)
            self._spool(message, body)
        else:
            message = placement.new_message(header, body, expiry_ms, copies)
            self.log_bytes += len(body)
        self.body_bytes += len(body)
        self.log_bytes += OPERATION_LOG_BYTES + len(header) + 12 * len(queues)
        self.place_count += copies
        published = Published(message, queues)
        self.publishes.append(published)
        return published

    def publish_stored(
        self, queues: list[QueueIndex], header: bytes, message: QueuedMessage, expiry_ms: int = 0
    ) -> Published:
        """Publish a message whose body another one has in the store, and share it, when the
        transaction commits."""
        self._check()
        check_targets(queues)
        copy = message.copy()
        copy.header, copy.expiry_ms = header, expiry_ms
        self._journal.state.store.own(copy.store_file, copy.id)
        self.body_bytes += copy.size
        self.log_bytes += OPERATION_LOG_BYTES + len(header) + 12 * len(queues)
        self.place_count += len(queues)
        published = Published(copy, queues)
        self.publishes.append(published)
        return published

    def publish_run(
        self, queue: QueueIndex, header: bytes, bodies: list[bytes], expiry_ms: int = 0
    ) -> PublishedRun | None:
        """Publish bodies, one at least, to one queue when the transaction commits: as `publish` of
        each, but faster. None: not all bodies belong into the record; nothing has changed."""
        self._check()
        check_targets([queue])
        placement = self._placement
        size = 0
        for body in bodies:
            size += len(body)
            if placement.is_in_store(len(body), 1):
                return None
        if self.body_bytes + size > self._journal.options.tx_spool_bytes:
            return None
        self.body_bytes += size
        self.log_bytes += size + (76 + len(header)) * len(bodies)
        messages = [placement.new_message(header, body, expiry_ms) for body in bodies]
        published = PublishedRun(messages, queue)
        self.publishes.append(published)
        return published

    def append_stream(
        self, stream: StoredStream, header: bytes, body: bytes, large: BodyPieces | None = None
    ) -> Appended:
        """Append a record to a stream when the transaction commits. large: its body, if that is in
        pieces, one at least. UnknownQueueError, ValueError (too long): nothing has changed."""
        self._check()
        if stream.is_deleted:
            raise deleted_error(stream.name)
        appended = Appended(stream, header, body, large)
        stream.queue.check(appended.size, header)
        self.appends.append(appended)
        self.body_bytes += appended.size
        self.log_bytes += OPERATION_LOG_BYTES + len(header) + appended.size
        return appended

    def _spool(self, message: QueuedMessage, body: bytes) -> None:
        """Write the body to the store, owned by the transaction and without a reference."""
        journal = self._journal
        if journal.blocked:
            journal.check_publish()
        store = journal.state.store
        try:
            message.store_file = store.write(message.id, body, 0)
        except OSError as error:
            raise journal.disk_full(error, len(body)) from error
        store.own(message.store_file, message.id)

    def progress(self, query: str, page: int, frame: int) -> None:
        """Make it a slice of a query's batch that is being rolled forward; the next slice begins at
        this page and frame. ValueError: no batch of that query is."""
        self._check()
        batch = self._journal.state.batches.by_query.get(query)
        if batch is None or batch.is_done:
            raise ValueError(f"no batch of query {query!r} is being rolled forward")
        if (page, frame) < (batch.page, batch.frame) or page > batch.page_count:
            at = f"{batch.page}, {batch.frame} of {batch.page_count} pages"
            raise ValueError(f"batch {batch.number} cannot go on at {page}, {frame}: it is at {at}")
        self.batch = BatchRecord(query, batch.number, batch.time_us, page=page, frame=frame)
        self.log_bytes += OPERATION_LOG_BYTES + len(query)

    def see(self, window: KeyWindow, key: bytes, until_ms: int) -> None:
        """Have the window see a key when the transaction commits."""
        self._check()
        self.seen.append(Seen(window.name, key, until_ms))
        self.log_bytes += OPERATION_LOG_BYTES + len(window.name)

    def dequeue(self, queue: QueueIndex, entries: list[Entry]) -> None:
        """Acknowledge entries, ascending by seq, when the transaction commits. ValueError (not
        ascending, or in this transaction already): nothing happened."""
        self._check()
        queue.runs(entries)  # they ascend
        for entry in entries:
            if (queue.number, entry.seq) in self._taken:
                raise ValueError(f"seq {entry.seq} is in this transaction already")
        self._taken.update([(queue.number, entry.seq) for entry in entries])
        self.dequeues.append((queue, entries))
        self._dequeue_count += 1
        self.place_count += len(entries)
        self.log_bytes += 32 + ENTRY_LOG_BYTES * len(entries)

    @property
    def has_written(self) -> bool:
        """Return whether `write_part` has written any of it."""
        return self._number != 0

    def keep_dequeues(self, is_kept: list[bool]) -> None:
        """Drop some calls of `dequeue`, of which there is an item each; before any `write_part`."""
        self.dequeues = [one for one, keep in zip(self.dequeues, is_kept, strict=True) if keep]
        self._dequeue_count = len(self.dequeues)

    def write_part(self, mode: int) -> int:
        """Log some more of its acknowledgements, publishes and appends, at most PART_PLACES places
        or a record's bytes: the commit is in slices then (see the head of this module). Nothing may
        be added to the transaction any more. Returns the number of places; 0: `commit` may follow.
        TransactionTooLargeError, DiskFullError, ValueError (an entry is not alive): it is rolled
        back."""
        self._check()
        assert self.batch is None, "slices of batches are committed at once"
        journal = self._journal
        journal.check()
        try:
            if not self._number:
                self._check_size()
            has_dequeues = self._written_dequeues < len(self.dequeues)
            if has_dequeues and not self.dequeues_last:
                return self._write_dequeues(mode)
            if not self._written and not self._written_appends:
                self._forget_deleted_publishes()
            if journal.blocked and (self.publishes or self.appends):
                journal.check_publish()
            places = self._write_part(mode)
            if not places and has_dequeues:
                return self._write_dequeues(mode)
            return places
        except (TransactionTooLargeError, DiskFullError, ValueError):
            if self.is_open:
                self.rollback()
            raise

    def _write_dequeues(self, mode: int) -> int:
        part = _Part()
        known: dict[int, tuple[QueueIndex, list[Entry]]] = {}
        places_max = min(PART_PLACES, self._journal.options.tx_part_bytes // ENTRY_LOG_BYTES)
        at = self._written_dequeues
        while at < len(self.dequeues) and part.taken < max(places_max, 1):
            queue, entries = self.dequeues[at]
            at += 1
            part.taken += len(entries)
            if not queue.is_deleted:
                known.setdefault(queue.number, (queue, []))[1].extend(entries)
        for queue, entries in known.values():
            entries.sort(key=_seq_of)
            self._check_alive(queue, entries)
            part.operations += dequeues_of(queue, entries)
        part.dequeues = at - self._written_dequeues
        self._written_dequeues = at
        self._log_part(part, mode, names_store=False)
        self._parts.append(part)
        return part.taken

    def _check_alive(self, queue: QueueIndex, entries: list[Entry]) -> None:
        """Raise ValueError, after a rollback, unless all these are in the queue."""
        if not all(queue.is_live_run(run) for run in queue.runs(entries)):
            self.rollback()
            raise ValueError(f"an entry of queue {queue.number} is not alive")

    def _write_part(self, mode: int) -> int:
        part = _Part()
        places = size = 0
        size_max = self._journal.options.tx_part_bytes
        is_named = False
        first_seqs: dict[int, int] = {}  # they are known when it is applied
        while self._written < len(self.publishes) and places < PART_PLACES and size < size_max:
            published = self.publishes[self._written]
            assert not isinstance(published, PublishedRun), "runs are small, and committed at once"
            self._publish(published, part.operations, first_seqs, part.counts, is_large=True)
            part.publishes.append(published)
            m = published.message
            if m.store_file:
                is_named = True
            else:
                size += m.size
            for queue in published.queues:
                part.queues[queue.number] = queue
            places += len(published.queues)
            size += len(m.header)
            self._written += 1
        appends = self.appends
        while self._written_appends < len(appends) and places < PART_PLACES and size < size_max:
            a = appends[self._written_appends]
            part.appends.append(a)
            part.streams[a.stream.number] = a.stream
            places += 1
            size += len(a.header) + a.size
            self._written_appends += 1
        self._add_appends(part.appends, part.operations, first_seqs, part.counts, is_large=True)
        if places and self._written == len(self.publishes):
            part.operations += self.seen
            self.seen = []
        if places:
            self._log_part(part, mode, names_store=is_named)
            self._parts.append(part)
        return places

    def _log_part(self, part: _Part, mode: int, *, names_store: bool) -> None:
        part.lsn = self._journal.write_part(
            part.operations, mode, self._number, names_store=names_store
        )
        self._number = self._number or part.lsn

    def commit(self, mode: int) -> int:
        """Log and apply all of it, or, after `write_part`, decide: `apply_part` must follow while
        `has_parts`. Return the LSN of the record that decides.
        TransactionTooLargeError, ValueError (an entry is not alive): nothing happened, and it is
        rolled back. DiskFullError: nothing happened, and it may be tried again, unless `write_part`
        was called: then it is rolled back."""
        self._check()
        journal = self._journal
        journal.check()
        self._check_size()
        if self._number:
            return self._decide(mode)
        if journal.blocked and (self.publishes or self.appends):
            journal.check_publish()
        self._forget_deleted_publishes()
        self.dequeues = [(q, entries) for q, entries in self.dequeues if not q.is_deleted]
        self._merge_dequeues()
        for queue, entries in self.dequeues:
            self._check_alive(queue, entries)
        is_large = self.log_bytes > journal.options.tx_record_bytes or self._has_many()
        first_seqs = self.first_seqs
        first_seqs.clear()
        operations = self._all_operations(first_seqs, is_large=is_large)
        named = any(p.message.store_file for p in self.publishes)
        if is_large:
            lsn = journal.commit_parts(operations, mode, first_seqs, names_store=named)
        else:
            lsn = journal.commit_transaction(operations, mode, names_store=named)
        self._end_ownership(self.publishes)
        self.dequeued = self._dequeue_count
        self.is_open = False
        return lsn

    def _has_many(self) -> bool:
        """Return whether it may have more operations than a record."""
        if self.log_bytes <= OPERATION_LOG_BYTES * record.COUNT_MAX:
            return False
        count = self.place_count + len(self.appends) + len(self.seen)
        for published in self.publishes:
            if isinstance(published, PublishedRun):
                count += len(published.messages)
        return count >= record.COUNT_MAX

    def _decide(self, mode: int) -> int:
        """Make all that `write_part` has written happen, and let the first part take effect.
        DiskFullError: it is rolled back."""
        try:
            while self.write_part(mode):
                pass
            lsn = self._apply_part(mode)
        except DiskFullError:
            if self.is_open:
                self.rollback()
            raise
        self.is_open = False
        return lsn

    @property
    def has_parts(self) -> bool:
        """Whether it is committed, and some of it has not taken effect."""
        return not self.is_open and len(self._parts) > 0

    def apply_part(self, mode: int) -> int:
        """Let the next part of what is committed take effect. Returns the number of places in it.
        DiskFullError: nothing happened, and it is to be tried again. Each Published in it has its
        entries, but for queues that were deleted meanwhile, which leave it."""
        journal = self._journal
        journal.check()
        places = self._parts[0].places
        self._apply_part(mode)
        return places

    def _apply_part(self, mode: int) -> int:
        journal = self._journal
        part = self._parts[0]
        first_seqs = self.first_seqs = part.first_seqs()
        for published in part.publishes:
            if [queue for queue in published.queues if queue.is_deleted]:
                published.queues = [q for q in published.queues if not q.is_deleted]
        lsn = journal.apply_part(part.operations, mode, self._number, part.lsn, first_seqs)
        self._parts.popleft()
        self.dequeued += part.dequeues
        self._end_ownership(part.publishes)
        for published in part.publishes:
            published.is_applied = True
        offsets = {number: first_seqs[number] for number in part.streams}
        for a in part.appends:
            a.offset = offsets[a.stream.number]
            offsets[a.stream.number] += 1
        if not self._parts:
            self._number = 0
            journal.end_parts()
        return lsn

    def _check_size(self) -> None:
        limit = self._journal.options.tx_bytes_max
        if self.log_bytes > limit:
            self.rollback()
            raise TransactionTooLargeError(self.log_bytes, limit)

    def _merge_dequeues(self) -> None:
        """Join the entries of each queue, which came one by one, to as few runs as possible."""
        merged: dict[int, tuple[QueueIndex, list[Entry]]] = {}
        for queue, entries in self.dequeues:
            known = merged.get(queue.number)
            if known is None:
                merged[queue.number] = queue, list(entries)
            else:
                known[1].extend(entries)
        if len(merged) < len(self.dequeues):
            for _, entries in merged.values():
                entries.sort(key=_seq_of)
            self.dequeues = list(merged.values())

    def _end_ownership(self, publishes: list[Published]) -> None:
        """End the ownership of spooled bodies, which have references now."""
        store = self._journal.state.store
        for published in publishes:
            m = published.message
            if m.store_file:
                store.disown(m.store_file, m.id)
            self._placement.complete(m)

    def _forget_deleted_publishes(self) -> None:
        """Drop what is for queues and streams that were deleted meanwhile."""
        for published in self.publishes:
            published.queues = [q for q in published.queues if not q.is_deleted]
            m = published.message
            if not published.queues and m.store_file:
                self._journal.state.store.disown(m.store_file, m.id)
        self.publishes = [p for p in self.publishes if p.queues]
        self.appends = [a for a in self.appends if not a.stream.is_deleted]

    def _all_operations(self, first_seqs: dict[int, int], *, is_large: bool) -> list[LogOperation]:
        """Return the operations. is_large: places are ordinals within (transaction, queue or
        stream), and a run is single publishes; else places are seqs. first_seqs: is filled with the
        first seq or offset of each queue and stream."""
        operations: list[LogOperation] = []
        batch = self.batch
        if batch is not None:  # first, so that `apply` knows whose slice it is
            operations.append(BatchChange(batch, batches.PROGRESS))
        counts: dict[int, int] = {}  # of messages, by queue or stream
        for published in self.publishes:
            self._publish(published, operations, first_seqs, counts, is_large=is_large)
        self._add_appends(self.appends, operations, first_seqs, counts, is_large=is_large)
        for queue, entries in self.dequeues:
            operations += dequeues_of(queue, entries)
        operations += self.seen
        return operations

    def _add_appends(
        self, appends: list[Appended], operations: list[LogOperation], first_seqs: dict[int, int],
        counts: dict[int, int], *, is_large: bool,
    ) -> None:  # fmt: skip
        batch = self.batch
        now_us = self._journal.clock.wall_us() if batch is None else batch.time_us
        for a in appends:
            stream = a.stream
            first = first_seqs.setdefault(stream.number, stream.next_offset)
            ordinal = counts.get(stream.number, 0)
            counts[stream.number] = ordinal + 1
            a.offset = first + ordinal
            a.time_us = max(now_us, stream.queue.last_time_us)
            at = ordinal if is_large else a.offset
            found = record.StreamData(stream.number, at, a.time_us, a.header, a.body, a.large)
            operations.append(Append(found))

    def _publish(
        self, published: Published, operations: list[LogOperation], first_seqs: dict[int, int],
        counts: dict[int, int], *, is_large: bool,
    ) -> None:  # fmt: skip
        """Add the operations of one publish, or of a run."""
        messages = published.messages if isinstance(published, PublishedRun) else []
        places: list[tuple[int, int]] = []
        for queue in published.queues:
            number = queue.number
            ordinal = counts.get(number, 0)
            counts[number] = ordinal + max(len(messages), 1)
            first = first_seqs.setdefault(number, queue.next_seq)
            places.append((number, ordinal if is_large else first + ordinal))
        if not isinstance(published, PublishedRun):
            operations += publishes_of(published.message, places, published.born)
            return
        number, seq = places[0]
        published.first_seq = first_seqs[number] + seq if is_large else seq
        if is_large:
            for i, m in enumerate(messages):
                operations.append(Publish(m, [(number, seq + i)]))
        else:
            operations.append(_Run(published.queues[0], seq, messages))

    def rollback(self, most: int = 1 << 62) -> bool:
        """Drop the transaction and the bodies that were spooled for it, those of `most` publishes.
        Return whether that is all: else call it again, and nothing else."""
        self._check()
        if self._number:
            self._number = 0
            self._journal.end_parts()
        for published in self.publishes[-most:]:
            message = published.message
            if message.store_file:
                self._journal.state.store.disown(message.store_file, message.id)
        del self.publishes[-most:]
        self.is_open = len(self.publishes) > 0
        return not self.is_open

    def _check(self) -> None:
        if not self.is_open:
            raise StorageError("the transaction is over: it was committed or rolled back")


def _seq_of(entry: Entry) -> int:
    return entry.seq


def publishes_of(
    message: QueuedMessage, places: list[record.Place], born: list[Entry] | None = None
) -> list[LogOperation]:
    """Return the publish of a message: one operation, unless it has more places than one may have.
    born: see Publish."""
    most = record.COUNT_MAX
    return [Publish(message, places[at : at + most], born) for at in range(0, len(places), most)]


def dequeues_of(queue: QueueIndex, entries: list[Entry]) -> list[LogOperation]:
    """Return the acknowledgement of these entries, ascending: one operation, unless there are more
    than one may have runs."""
    found: list[LogOperation] = []
    for at in range(0, len(entries), record.COUNT_MAX):
        some = entries[at : at + record.COUNT_MAX]
        found.append(Dequeue(queue.number, queue.runs(some), store_refs(some), some))
    return found
