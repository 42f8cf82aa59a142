"""LeaseEngine leases messages to readers, commits and releases them; LeasePages has their contents.

Each call of LeaseEngine is one slice and one record, so that after a crash all of it or nothing is
done:

    lease      TX [PUBLISH of each transient message, which becomes a persistent one at the end of
               its part; MARK; LEASED]. Everything is on its slot before the record is made: after
               it no leased message is in RAM
    commit     TX [DEQUEUE of each part, COMMITTED]: whole slices as they were leased, or a part
               of one
    release    RELEASED: from the oldest on, so that messages become ready in their order

A leased message lives like any other in its queue; only the queue does not see it (leases.py,
`QueueIndex.leased`). A commit must know how many bytes and which references to the store it frees.
The lease has the bytes of whole runs; slots are read only for entries in the store, and for a run
that is divided. A damaged slot leaves its reference in the store (event `corruption`).

Failure. ValueError, DiskFullError, UnknownQueueError, UnknownLeaseError: nothing happened. Any
error after the log has the record stops the engine.

**LeasePages.** A lease looks like a stream to its reader, so its messages are written to the files
of one: a PersistentQueue whose offsets are the ordinals and whose first offset is what was
committed when the pages were made. Everything that reads streams (views, page spans, Arrow columns)
can read leases.

    <vhost>/leases/<hash(queue)>.<number>.<hash(reader)>/     allMeta, writeMeta, readMeta,
                                                              <base>.page, <base>.idx

This is derived data and never evidence: nothing of it is synced or in a checkpoint, a start deletes
all of it, and it is made again from the slots when it is requested. The bytes are the same each
time: a page's id comes from the lease's id and its first ordinal; times are those of the messages,
never decreasing (`Lease.floor_s`). A large body is read and written in steps. A record's payload is
the body, meta the header as it is stored, time_us the time of the message. After an OSError the
pages must be deleted (`delete`); messages are not affected.
"""

import contextlib
import random
from contextlib import closing
from typing import Final

from penstock.clock import ManualClock
from penstock.errors import CorruptionError, UnknownLeaseError, deleted_error
from penstock.fast_crc import BodyPieces
from penstock.message import Entry, Placement, QueuedMessage, seq_of
from penstock.native import mypyc_attr
from penstock.storage.files.data_directory import hash_name
from penstock.storage.files.filesystem import FileSystem
from penstock.storage.index.leases import DIRECTORY, Lease, LeaseTable
from penstock.storage.index.queue_index import QueueIndex
from penstock.storage.index.queue_segment import IN_STORE, Slot
from penstock.storage.journal.journal import Journal
from penstock.storage.journal.record_types import Dequeue, LeaseChange, LogOperation, Mark, Publish
from penstock.storage.log import record
from penstock.storage.log.record import LeaseRun, Run, StoreRef
from penstock.storage.pages import stream_meta
from penstock.storage.pages.persistent_queue import PersistentQueue, unlink_page
from penstock.storage.pages.stream_meta import AllMeta, Position
from penstock.storage.store.message_store import BodyStores
from penstock.storage.store.store_file import StoredBody

READER_BYTES_MAX: Final = 255
# Limits of one record of a commit or a release, besides LeaseTable.runs_max. The record ends with
# the slice that exceeds one of them.
COMMIT_MESSAGES: Final = 8192
COMMIT_STORED: Final = 256
RELEASE_MESSAGES: Final = 1024  # a slot is read for each of them


@mypyc_attr(acyclic=True)
class Taken:
    """Messages of one part that were taken out of their queue to be leased, in the order of
    delivery. bodies: of each message, b"" for a large one, whose body stays in the store. mark: the
    delivered mark that is logged with them, 0 for none."""

    __slots__ = ("bodies", "entries", "mark", "part")

    def __init__(
        self, part: QueueIndex, entries: list[Entry], bodies: list[bytes], mark: int
    ) -> None:
        self.part: QueueIndex = part
        self.entries: list[Entry] = entries
        self.bodies: list[bytes] = bodies
        self.mark: int = mark


class LeaseEngine:
    """Takes, commits and releases leases; one per engine."""

    def __init__(self, journal: Journal, placement: Placement, bodies: BodyStores) -> None:
        self._journal = journal
        self._placement = placement
        self._bodies = bodies

    @property
    def table(self) -> LeaseTable:
        """All leases. Read-only."""
        return self._journal.state.leases

    def of(self, queue: QueueIndex) -> dict[str, Lease]:
        """Return what readers have leased of a queue (its first part), by reader. Read-only."""
        return self._journal.state.leases.of(queue.number)

    def delete_pages(self, paths: list[str]) -> None:
        """Delete the directories of the pages of leases that are no more, in another thread."""
        self._journal.delete_files([], paths)

    def find(self, queue: QueueIndex, reader: str) -> Lease:
        """Return the lease of a reader. UnknownLeaseError: there is none, or it is being
        released."""
        if queue.is_deleted:
            raise deleted_error(queue.name)
        lease = self._journal.state.leases.of(queue.number).get(reader)
        if lease is None or lease.is_releasing:
            raise UnknownLeaseError(queue.name.decode("utf-8", "replace"), reader)
        return lease

    def lease(
        self, queue: QueueIndex, reader: str, taken: list[Taken], mode: int
    ) -> tuple[int, int]:
        """Lease these messages to the reader and return their ordinals, [first, next). queue: the
        first part."""
        journal = self._journal
        assert journal.gathering is None, "a lease is a record of its own"
        if journal.failed is not None or journal.blocked or journal.is_closed:
            journal.check_publish()
        if queue.is_deleted:
            raise deleted_error(queue.name)
        name = reader.encode("utf-8", "surrogateescape")
        if not 0 < len(name) <= READER_BYTES_MAX:
            raise ValueError(f"a reader's name has 1 to {READER_BYTES_MAX} bytes, not {len(name)}")
        known = journal.state.leases.of(queue.number).get(reader)
        if known is not None and known.is_releasing:
            raise UnknownLeaseError(queue.name.decode("utf-8", "replace"), reader)
        work = _Leasing(journal, self._placement, self._bodies, taken)
        try:
            work.prepare()
            ordinal = 0 if known is None else known.next
            now_ms = journal.clock.wall_ms()
            found = record.LeaseData(queue.number, ordinal, now_ms, name, work.runs)
            operations = [*work.operations, LeaseChange(found, record.LEASED)]
            lsn = journal.append(operations, mode, names_store=work.names_store)
        except BaseException:
            work.disown()
            raise
        journal.apply(operations, lsn, mode)
        work.disown()
        return ordinal, journal.state.leases.of(queue.number)[reader].next

    def commit(self, queue: QueueIndex, reader: str, ordinal: int, mode: int) -> bool:
        """Acknowledge a slice of the reader's messages below `ordinal`; return True if there is
        more of them. Does nothing if all below `ordinal` is committed. ValueError: it was not
        leased so far."""
        journal = self._journal
        journal.check()
        assert journal.gathering is None, "a commit of a lease is a record of its own"
        state = journal.state
        lease = self.find(queue, reader)
        if ordinal > lease.next:
            raise ValueError(
                f"reader {reader!r} has leased up to ordinal {lease.next}, it cannot commit "
                f"{ordinal}"
            )
        if ordinal <= lease.committed:
            return False
        until, runs, parted = self.choose(lease, ordinal)
        dequeues: dict[int, tuple[list[Run], list[StoreRef]]] = {}
        for run in [*runs, *parted]:
            part = state.queues[run[0]]
            mine, refs = dequeues.setdefault(part.number, ([], []))
            dead = (run[1], run[2], run[3], run[4])
            if not part.is_live_run(dead):
                text = f"{run[1]} to {run[1] + run[2] - 1}"
                raise ValueError(f"of the leased seqs {text} some are dead")
            mine.append(dead)
            if run[4]:
                refs += [
                    (m.id, m.store_file, m.size)
                    for m in stored(journal, part, run[1], run[2])
                    if m.store_file
                ]
        operations: list[LogOperation] = []
        for number, (mine, refs) in dequeues.items():
            operations.append(Dequeue(number, mine, refs))
        operations.append(self._change(lease, until, parted, record.COMMITTED))
        journal.commit(operations, mode)
        return until < ordinal

    def next_release(self, queue: QueueIndex, reader: str) -> list[LeaseRun]:
        """Return the runs that the next `release` makes ready. UnknownLeaseError."""
        self._journal.check()
        if queue.is_deleted:
            raise deleted_error(queue.name)
        lease = self._journal.state.leases.of(queue.number).get(reader)
        if lease is None:
            raise UnknownLeaseError(queue.name.decode("utf-8", "replace"), reader)
        return self.choose(lease, lease.next, RELEASE_MESSAGES)[1]

    def release(self, queue: QueueIndex, reader: str, mode: int) -> bool:
        """Make a slice of what a reader has leased ready again; return True if there is more of it.
        The last slice forgets the reader."""
        journal = self._journal
        assert journal.gathering is None, "a release of a lease is a record of its own"
        runs = self.next_release(queue, reader)
        leases = journal.state.leases
        lease = leases.of(queue.number)[reader]
        until = lease.committed + sum([run[2] for run in runs])
        journal.commit([self._change(lease, until, [], record.RELEASED)], mode)
        return reader in leases.of(queue.number)

    def _change(
        self, lease: Lease, ordinal: int, parted: list[LeaseRun], flags: int
    ) -> LeaseChange:
        """Return the LEASE operation that commits or releases up to `ordinal`."""
        name = lease.reader.encode("utf-8", "surrogateescape")
        now_ms = self._journal.clock.wall_ms()
        return LeaseChange(record.LeaseData(lease.queue, ordinal, now_ms, name, parted), flags)

    def choose(
        self, lease: Lease, ordinal: int, messages_max: int = COMMIT_MESSAGES
    ) -> tuple[int, list[LeaseRun], list[LeaseRun]]:
        """Choose what one record handles, from the oldest on. Return (up to which ordinal, runs of
        whole slices, runs of a slice that is divided)."""
        whole: list[LeaseRun] = []
        runs_max = self._journal.state.leases.runs_max
        messages = stores = 0
        until = lease.committed
        for one in lease.slices:
            if (
                until >= ordinal
                or messages >= messages_max
                or len(whole) >= runs_max
                or stores >= COMMIT_STORED
            ):
                break
            if one.ordinal + one.n > ordinal:
                return ordinal, whole, self._parted(one.runs(), ordinal - one.ordinal)
            for run in one.runs():
                whole.append(run)
                stores += run[4]
            messages += one.n
            until = one.ordinal + one.n
        return until, whole, []

    def _parted(self, runs: list[LeaseRun], n: int) -> list[LeaseRun]:
        """Return the first n messages of these runs."""
        found: list[LeaseRun] = []
        for run in runs:
            if run[2] > n:
                if n:
                    found.append(self._first_of(run, n))
                break
            found.append(run)
            n -= run[2]
        return found

    def _first_of(self, run: LeaseRun, n: int) -> LeaseRun:
        """Return the first n messages of one run; their bytes and latest time are read from their
        slots."""
        number, first, _, _, stores, latest_s = run
        part = self._journal.state.queues[number]
        size = in_store = found_s = 0
        messages = looked_at(self._journal, part, first, n)
        for message in messages:
            size += message.size
            if message.store_file:
                in_store += 1
            if message.time > found_s:
                found_s = message.time
        if len(messages) < n:
            found_s = latest_s  # one is damaged: assume the latest time of the run
        return number, first, n, min(size, run[3]), min(in_store, stores), found_s


class _Leasing:
    """One lease in the making: what is written and logged for it."""

    def __init__(
        self, journal: Journal, placement: Placement, bodies: BodyStores, taken: list[Taken]
    ) -> None:
        self._journal = journal
        self._placement = placement
        self._bodies = bodies
        self._taken = taken
        self._born: list[tuple[QueueIndex, Entry]] = []  # persistent, in place of transient ones
        self.operations: list[LogOperation] = []
        self.runs: list[LeaseRun] = []
        self.names_store: bool = False

    def prepare(self) -> None:
        """Write the slots; collect the runs and the operations before the LEASE. ValueError,
        DiskFullError, OSError."""
        next_seqs: dict[int, int] = {}
        for one in self._taken:
            part = one.part
            if part.is_deleted:
                raise deleted_error(part.name)
            entries = one.entries
            fresh: list[Entry] = []
            section = part.section
            is_mixed = False
            for entry in entries:
                if not entry.message.persistent:
                    is_mixed = True
                elif not entry.on_slot and not (section and entry.seq in section):
                    fresh.append(entry)
            if is_mixed:
                entries = self._persistent(one, next_seqs, fresh)
            if fresh:
                try:
                    part.write(fresh)
                except OSError as error:
                    raise self._journal.disk_full(error, 0) from error
                for entry in fresh:
                    entry.on_slot = True
            add_runs(self.runs, part, entries)
            if one.mark:
                self.operations.append(Mark(part.number, one.mark))

    def _persistent(self, one: Taken, next_seqs: dict[int, int], fresh: list[Entry]) -> list[Entry]:
        """Return the entries, with persistent ones in place of transient ones. Bodies in the store
        are owned until `disown`."""
        part, store = one.part, self._journal.state.store
        found: list[Entry] = []
        for i in range(len(one.entries)):
            entry = one.entries[i]
            old = entry.message
            if old.persistent:
                found.append(entry)
                continue
            message = self._copied(old, one.bodies[i])
            if message.store_file:
                store.own(message.store_file, message.id)
                self.names_store = True
            seq = next_seqs.get(part.number, part.next_seq)
            next_seqs[part.number] = seq + 1
            born = Entry(seq, message)
            self._born.append((part, born))
            found.append(born)
            fresh.append(born)
            self.operations.append(Publish(message, [(part.number, seq)], None, False))
        fresh.sort(key=seq_of)
        return found

    def _copied(self, old: QueuedMessage, body: bytes) -> QueuedMessage:
        """Return a persistent message that is the same as this transient one."""
        if old.size and not body:
            return self._bodies.placed(old, is_persistent=True)
        journal = self._journal
        message = self._placement.new_message(old.header, body, old.expiry_ms)
        message.time = old.time
        if self._placement.is_in_store(message.size, 1):
            try:
                message.store_file = journal.state.store.write(message.id, body, 0)
            except OSError as error:
                raise journal.disk_full(error, message.size) from error
        return message

    def disown(self) -> None:
        """End the ownership of bodies in the store: they live by their references, if the record
        was applied."""
        for _, entry in self._born:
            if entry.message.store_file:
                self._journal.state.store.disown(entry.message.store_file, entry.message.id)


def add_runs(runs: list[LeaseRun], part: QueueIndex, entries: list[Entry]) -> None:
    """Add the runs of entries of one part, in the order of delivery; a run does not cross a
    segment."""
    slots, number = part.slots, part.number
    first = n = size = stores = latest_s = 0
    for entry in entries:
        seq = entry.seq
        message = entry.message
        if n and (seq != first + n or seq % slots == 0):
            runs.append((number, first, n, size, stores, latest_s))
            n = size = stores = latest_s = 0
        if not n:
            first = seq
        n += 1
        size += message.size
        if message.store_file:
            stores += 1
        if message.time > latest_s:
            latest_s = message.time
    if n:
        runs.append((number, first, n, size, stores, latest_s))


def looked_at(journal: Journal, part: QueueIndex, first: int, n: int) -> list[QueuedMessage]:
    """Return the live entries of a run from section or slots, without headers and bodies.
    store_file is 1 for a body in the store, whichever file it is in. Damaged ones are reported and
    left out."""
    section = part.section
    seqs = [seq for seq in range(first, first + n) if seq not in section]
    found = [section[seq].message for seq in range(first, first + n) if seq in section]
    slots: list[Slot] = []
    files = part.files(first // part.slots)
    try:
        slots = files.slots(seqs) if seqs else []
    except CorruptionError:
        for seq in seqs:
            try:
                slots += files.slots([seq])
            except CorruptionError as error:
                journal.event("corruption", f"queue {part.number}: {error}")
    for slot in slots:
        in_store = 1 if slot.flags & IN_STORE else 0
        found.append(
            QueuedMessage(slot.id, b"", None, slot.size, slot.time, slot.expiry_ms, in_store)
        )
    return found


def stored(journal: Journal, part: QueueIndex, first: int, n: int) -> list[QueuedMessage]:
    """Return the entries of a run with their store files. Those whose slot is damaged are reported
    and left out; their bodies stay in the store."""
    seqs = list(range(first, first + n))
    try:
        return part.read(seqs)
    except CorruptionError:
        found: list[QueuedMessage] = []
        for seq in seqs:
            try:
                found += part.read([seq])
            except CorruptionError as error:
                text = f"the body of seq {seq} of queue {part.number} stays in the store: {error}"
                journal.event("corruption", text)
        return found


PAGE_BYTES: Final = 16 << 20
STEP_BYTES: Final = 1 << 20  # of a large record: less than a millisecond
# Never used: every record has its time, and the id is the lease's.
_CLOCK: Final = ManualClock()
_RNG: Final = random.Random(0)


def pages_path(vhost_path: str, queue: bytes, number: int, reader: str) -> str:
    """Return the directory of a lease's pages. queue: its name as people know it; number: of its
    first part."""
    name = reader.encode("utf-8", "surrogateescape")
    return f"{vhost_path}/{DIRECTORY}/{hash_name(queue)}.{number}.{hash_name(name)}"


class LeasePages:
    """The pages of one lease from its `committed` on, empty so far. path: see `pages_path`;
    existing files are deleted. OSError."""

    def __init__(self, fs: FileSystem, path: str, lease: Lease, page_bytes: int) -> None:
        self._fs = fs
        self.path: str = path
        self.stream_id: bytes = lease.id
        self._is_used: bool = True  # since the last `rest`
        self._has_handles: bool = True
        self._large: StoredBody | None = None  # that is being read
        self._pieces: BodyPieces = BodyPieces()  # of it
        delete_files(fs, path)
        fs.mkdir(path.rpartition("/")[0])
        fs.mkdir(path)
        first, floor_us = lease.committed, lease.floor_s * 1_000_000
        self._write(stream_meta.READ_META, stream_meta.encode_tail(first))
        meta = AllMeta(lease.queue, lease.id, page_bytes)
        self._write(stream_meta.ALL_META, stream_meta.encode_all(meta))
        self._queue: PersistentQueue = PersistentQueue(
            fs, path, page_bytes=page_bytes, forces=False, number=lease.queue, clock=_CLOCK,
            rng=_RNG, create=False,
        )  # fmt: skip
        self._queue.restore(Position(first, 0, first, floor_us, first))
        self._queue.finish_restore()

    def _write(self, name: str, data: bytes) -> None:
        with closing(self._fs.open(f"{self.path}/{name}", create=True)) as file:
            file.pwrite(data, 0)

    @property
    def next_ordinal(self) -> int:
        """The ordinal after the last record."""
        return self._queue.next_offset

    @property
    def last_time_us(self) -> int:
        """The time of the last record, microseconds since 1970."""
        return self._queue.last_time_us

    def append(self, message: QueuedMessage, body: bytes) -> None:
        """Append the next record; it is in RAM until `publish`. ValueError: no page can hold it."""
        self._queue.append(body, message.header, message.time * 1_000_000)

    def begin_large(self, body: StoredBody) -> None:
        """Begin the next record, whose body is large; `read_some` reads it, and closes it then."""
        self._large, self._pieces = body, BodyPieces()

    def is_reading(self) -> bool:
        """Return whether a large record was begun, and is not appended yet."""
        return self._large is not None

    def is_writing(self) -> bool:
        """Return whether a large record was appended, and is not written yet."""
        return self._queue.head_offset < self._queue.next_offset

    def read_some(self, message: QueuedMessage) -> None:
        """Read some of the large body of this message; append its record after the last of it.
        CorruptionError: it is damaged, and must be begun again. OSError."""
        body = self._large
        assert body is not None, "it was begun"
        try:
            self._pieces.add(body.read(STEP_BYTES))
        except CorruptionError:
            self._end_large()
            raise
        if not body.left:
            self._queue.append(b"", message.header, message.time * 1_000_000, self._pieces)
            self._end_large()

    def write_some(self) -> None:
        """Write some of a large record; move the head to it after the last of it. OSError."""
        self._is_used = self._has_handles = True
        queue = self._queue
        queue.write(STEP_BYTES)
        if queue.written_offset == queue.next_offset:
            self.publish()

    def _end_large(self) -> None:
        body, self._large = self._large, None
        self._pieces = BodyPieces()
        if body is not None:
            body.close()

    def publish(self) -> None:
        """Write what was appended and move the head to it. OSError."""
        queue = self._queue
        self._is_used = self._has_handles = True
        queue.write()
        queue.publish_head(queue.next_offset)
        queue.take_dirty()  # these files are never synced

    def rest(self) -> None:
        """Close the files if they were not used since the last call; they are opened again when
        needed."""
        if not self._is_used and self._has_handles:
            self._queue.release_handles()
            self._has_handles = False
        self._is_used = False

    def drop_below(self, ordinal: int) -> list[int]:
        """Hide pages that have nothing from this ordinal on; return their bases, to be unlinked.
        The last page always stays. OSError."""
        pages = self._queue.pages
        bases = pages.bases
        n = 0
        while n + 1 < len(bases) and bases[n + 1] <= ordinal:
            n += 1
        if not n:
            return []
        first = bases[n]
        new = f"{stream_meta.READ_META}{stream_meta.NEW}"
        self._write(new, stream_meta.encode_tail(first))
        self._fs.rename(f"{self.path}/{new}", f"{self.path}/{stream_meta.READ_META}")
        pages.first_base = first
        return pages.take_first(n)

    def unlink(self, bases: list[int]) -> None:
        """Delete the files of these pages; may run in any thread. OSError."""
        for base in bases:
            unlink_page(self._fs, self.path, base)

    def close(self) -> None:
        """Close the files; nothing is written."""
        self._end_large()
        with contextlib.suppress(OSError):
            self._queue.close()

    def delete(self) -> None:
        """Close the files and delete them. OSError."""
        self.close()
        delete_files(self._fs, self.path)


def delete_files(fs: FileSystem, path: str) -> None:
    """Delete a lease's directory if it exists; a worker may be deleting pages of it at the same
    time."""
    if fs.exists(path):
        for name in fs.list(path):
            with contextlib.suppress(FileNotFoundError):
                fs.unlink(f"{path}/{name}")
        fs.rmdir(path)
