"""LeaseEngine: leases messages to readers, commits them, gives them back.

Each call is a slice and one record, so that a crash finds all of it or nothing:

    lease      TX [PUBLISH of each transient message, which becomes a persistent one at the end of
               its part; MARK; LEASED]. Everything is on its slot before the record is made: after
               it no leased message is in RAM
    commit     TX [DEQUEUE of each part, COMMITTED]: whole slices as they were leased, or a part
               of one
    release    RELEASED: from the oldest on, so that what is ready again comes before what is not

A leased message is as alive as any other in its queue; only the queue does not see it (leases.py,
`QueueIndex.leased`).

A commit needs to know what dies: how many bytes, and which references to the store. Bytes of whole
runs stand in the lease; slots are read only for entries in the store, or for a run that is parted.
A slot that is damaged costs its reference in the store (event `corruption`), and nothing else.

Failure. ValueError, DiskFullError, UnknownQueueError, UnknownLeaseError: nothing happened. Any
error after the log has the record stops the engine.
"""

from typing import Final

from penstock.errors import CorruptionError, UnknownLeaseError, deleted_error
from penstock.message import Entry, Message, seq_of
from penstock.native import mypyc_attr
from penstock.storage import record
from penstock.storage.journal import Journal
from penstock.storage.leases import Lease
from penstock.storage.placement import Placement
from penstock.storage.queue_index import QueueIndex
from penstock.storage.queue_segment import IN_STORE, Slot
from penstock.storage.record import LeaseRun, Run, StoreRef
from penstock.storage.record_types import Dequeue, LeaseChange, Mark, Operation, Publish
from penstock.storage.state import StorageState

READER_BYTES_MAX: Final = 255
# Of one record of a commit or a release, beside LeaseTable.runs_max; it goes on to the end of the
# leased slice that passes one of them.
COMMIT_MESSAGES: Final = 8192
COMMIT_STORED: Final = 256
RELEASE_MESSAGES: Final = 1024  # a slot is read for each of them


@mypyc_attr(acyclic=True)
class Taken:
    """Messages of one part that were taken out of their queue to be leased, in the order of
    delivery. bodies: of each, its body. mark: the delivered mark that is to be logged with them, 0
    for none."""

    __slots__ = ("bodies", "entries", "mark", "part")

    def __init__(
        self, part: QueueIndex, entries: list[Entry], bodies: list[bytes], mark: int
    ) -> None:
        self.part: QueueIndex = part
        self.entries: list[Entry] = entries
        self.bodies: list[bytes] = bodies
        self.mark: int = mark


class LeaseEngine:
    """One per engine: takes, commits and releases leases."""

    def __init__(self, journal: Journal, placement: Placement) -> None:
        self._journal = journal
        self._placement = placement

    def find(self, queue: QueueIndex, reader: str) -> Lease:
        """Return the lease of a reader that may go on with it. UnknownLeaseError: there is none, or
        it is being released."""
        if queue.is_deleted:
            raise deleted_error(queue.name)
        lease = self._journal.state.leases.of(queue.number).get(reader)
        if lease is None or lease.is_releasing:
            raise UnknownLeaseError(queue.name.decode("utf-8", "replace"), reader)
        return lease

    def lease(
        self, queue: QueueIndex, reader: str, taken: list[Taken], mode: int
    ) -> tuple[int, int]:
        """Lease these messages to the reader: [first, next) are their ordinals. queue: the first
        part."""
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
        work = _Leasing(journal, self._placement, taken)
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
        """Acknowledge a slice of the reader's messages below `ordinal`; True if there is more of
        them. At or below what is committed: nothing. ValueError: it was never leased so far."""
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
        until, runs, parted = self.choice(lease).below(ordinal)
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
        operations: list[Operation] = []
        for number, (mine, refs) in dequeues.items():
            operations.append(Dequeue(number, mine, refs))
        operations.append(self._change(lease, until, parted, record.COMMITTED))
        journal.commit(operations, mode)
        return until < ordinal

    def next_release(self, queue: QueueIndex, reader: str) -> list[LeaseRun]:
        """Return what the next `release` gives back. UnknownLeaseError."""
        self._journal.check()
        if queue.is_deleted:
            raise deleted_error(queue.name)
        lease = self._journal.state.leases.of(queue.number).get(reader)
        if lease is None:
            raise UnknownLeaseError(queue.name.decode("utf-8", "replace"), reader)
        return self.choice(lease).below(lease.next, RELEASE_MESSAGES)[1]

    def release(self, queue: QueueIndex, reader: str, mode: int) -> bool:
        """Make a slice of what a reader has leased ready again; True if there is more of it. With
        the last one the reader is forgotten."""
        journal = self._journal
        assert journal.gathering is None, "a release of a lease is a record of its own"
        runs = self.next_release(queue, reader)
        leases = journal.state.leases
        lease = leases.of(queue.number)[reader]
        until = lease.committed + sum([run[2] for run in runs])
        journal.commit([self._change(lease, until, [], record.RELEASED)], mode)
        return reader in leases.of(queue.number)

    def choice(self, lease: Lease) -> "Choice":
        """What of a lease one record handles."""
        return Choice(self._journal, lease)

    def _change(
        self, lease: Lease, ordinal: int, parted: list[LeaseRun], flags: int
    ) -> LeaseChange:
        """The LEASE operation that commits or releases up to `ordinal`."""
        name = lease.reader.encode("utf-8", "surrogateescape")
        now_ms = self._journal.clock.wall_ms()
        return LeaseChange(record.LeaseData(lease.queue, ordinal, now_ms, name, parted), flags)


class _Leasing:
    """One lease that is being made: what is written and logged for it."""

    def __init__(self, journal: Journal, placement: Placement, taken: list[Taken]) -> None:
        self._journal = journal
        self._placement = placement
        self._taken = taken
        self._born: list[tuple[QueueIndex, Entry]] = []  # persistent ones in place of transient
        self.operations: list[Operation] = []
        self.runs: list[LeaseRun] = []
        self.names_store: bool = False

    def prepare(self) -> None:
        """Slots, runs and the operations before the LEASE. ValueError, DiskFullError, OSError."""
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
        """The entries, with persistent ones in the places of those that are transient. Bodies of
        the store are owned until `disown`."""
        journal, part, store = self._journal, one.part, self._journal.state.store
        found: list[Entry] = []
        for i in range(len(one.entries)):
            entry = one.entries[i]
            old = entry.message
            if old.persistent:
                found.append(entry)
                continue
            body = one.bodies[i]
            message = self._placement.new_message(old.header, body, old.expiry_ms)
            message.time = old.time
            if self._placement.is_in_store(message.size, 1):
                try:
                    message.store_file = store.write(message.id, body, 0)
                except OSError as error:
                    raise journal.disk_full(error, message.size) from error
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

    def disown(self) -> None:
        """It is applied, or nothing happened: what was stored for it lives by its references, or
        not at all."""
        for _, entry in self._born:
            if entry.message.store_file:
                self._journal.state.store.disown(entry.message.store_file, entry.message.id)


def add_runs(runs: list[LeaseRun], part: QueueIndex, entries: list[Entry]) -> None:
    """Add the runs of entries of one part, in the order of delivery; none crosses a segment."""
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


# ---- which of them, and what they are ----------------------------------------------------------


class Choice:
    """Chooses what of a lease one record handles, from the oldest on."""

    def __init__(self, journal: Journal, lease: Lease) -> None:
        self._journal = journal
        self._state: StorageState = journal.state
        self._lease = lease

    def below(
        self, ordinal: int, messages_max: int = COMMIT_MESSAGES
    ) -> tuple[int, list[LeaseRun], list[LeaseRun]]:
        """(up to which ordinal, runs of whole slices, runs of a slice that is parted)."""
        whole: list[LeaseRun] = []
        runs_max = self._state.leases.runs_max
        messages = stores = 0
        until = self._lease.committed
        for one in self._lease.slices:
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
        """The first n messages of these runs."""
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
        """The first n of one run: their bytes and latest time are on their slots."""
        number, first, _, _, stores, latest_s = run
        part = self._state.queues[number]
        size = in_store = found_s = 0
        messages = looked_at(self._journal, part, first, n)
        for message in messages:
            size += message.size
            if message.store_file:
                in_store += 1
            if message.time > found_s:
                found_s = message.time
        if len(messages) < n:
            found_s = latest_s  # one is damaged: the others will do
        return number, first, n, min(size, run[3]), min(in_store, stores), found_s


def looked_at(journal: Journal, part: QueueIndex, first: int, n: int) -> list[Message]:
    """What section or slots say of the live entries of a run, without headers and bodies;
    store_file is 1 for a body in the store, whichever file that is in. Damaged ones are told and
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
        found.append(Message(slot.id, b"", None, slot.size, slot.time, slot.expiry_ms, in_store))
    return found


def stored(journal: Journal, part: QueueIndex, first: int, n: int) -> list[Message]:
    """The entries of a run, with their store files; those whose slot is damaged are told and left
    out, and their bodies stay in the store."""
    seqs = list(range(first, first + n))
    try:
        return part.read(seqs)
    except CorruptionError:
        found: list[Message] = []
        for seq in seqs:
            try:
                found += part.read([seq])
            except CorruptionError as error:
                text = f"the body of seq {seq} of queue {part.number} stays in the store: {error}"
                journal.event("corruption", text)
        return found
