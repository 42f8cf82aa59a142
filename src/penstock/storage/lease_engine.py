"""What an engine does for leases: takes messages for a reader, commits them, gives them back.

Each call is a slice and one record, so that a crash finds all of it or nothing:

    lease      TX [PUBLISH of each transient message, which from now on is a persistent one at the
               end of its part; MARK; LEASED]. Everything is on its slot before the record is made:
               from here on nobody has it in RAM
    commit     TX [DEQUEUE of each part, COMMITTED]: whole slices as they were leased, or a part
               of one
    release    RELEASED: from the oldest on, so that what is ready again comes before what is not

What is leased is as alive as anything in its queue; only the queue does not see it (leases.py,
`QueueIndex.leased`).

A commit needs to know what dies: how many bytes, and which references to the store. Bytes of whole
runs stand in the lease; slots are read only for entries in the store, or for a run that is parted.
A slot that is damaged costs its reference in the store (event `corruption`), and nothing else.

Failure: ValueError, DiskFullError, UnknownQueueError, UnknownLeaseError: nothing happened. What
fails once the log has the record stops the engine.
"""

from typing import TYPE_CHECKING, Final

from penstock.errors import CorruptionError, DiskFullError, UnknownLeaseError, deleted_error
from penstock.message import Entry, Message, seq_of
from penstock.native import mypyc_attr
from penstock.storage import record
from penstock.storage.leases import Lease
from penstock.storage.queue_index import QueueIndex
from penstock.storage.queue_segment import IN_STORE, Slot
from penstock.storage.record import LeaseRun, Run, StoreRef

if TYPE_CHECKING:
    from penstock.storage.engine import StorageEngine

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


def find(engine: "StorageEngine", queue: QueueIndex, reader: str) -> Lease:
    """The lease of a reader that may go on with it. UnknownLeaseError: there is none, or it is
    being released."""
    if queue.is_deleted:
        raise deleted_error(queue.name)
    lease = engine.state.leases.of(queue.number).get(reader)
    if lease is None or lease.is_releasing:
        raise UnknownLeaseError(queue.name.decode("utf-8", "replace"), reader)
    return lease


# ---- lease ---------------------------------------------------------------------------------------


def lease(
    engine: "StorageEngine", queue: QueueIndex, reader: str, taken: list[Taken], mode: int
) -> tuple[int, int]:
    """These messages are the reader's: [first, next) are their ordinals. queue: the first part."""
    assert engine.gathering is None, "a lease is a record of its own"
    if engine.failed is not None or engine.blocked or engine.is_closed:
        engine.refuse()
    if queue.is_deleted:
        raise deleted_error(queue.name)
    name = reader.encode("utf-8", "surrogateescape")
    if not 0 < len(name) <= READER_BYTES_MAX:
        raise ValueError(f"a reader's name has 1 to {READER_BYTES_MAX} bytes, not {len(name)}")
    known = engine.state.leases.of(queue.number).get(reader)
    if known is not None and known.is_releasing:
        raise UnknownLeaseError(queue.name.decode("utf-8", "replace"), reader)
    work = _Leasing(engine, taken)
    try:
        work.prepare()
        ordinal = 0 if known is None else known.next
        now_ms = engine.clock.wall_ms()
        data = record.lease_data(queue.number, ordinal, now_ms, name, work.runs)
        ops = [*work.ops, record.Op(record.LEASE, record.LEASED, len(work.runs), data)]
        lsn = _log(engine, ops, mode, names_store=work.names_store)
    except BaseException:
        work.undo()
        raise
    try:
        work.apply()
        found = record.LeaseData(queue.number, ordinal, now_ms, name, work.runs)
        engine.state.apply_lease(lsn, found, record.LEASED)
    except BaseException as error:
        engine.stop(error)  # the log is ahead of RAM: only recovery goes on from there
        raise
    if engine.log.is_full:
        engine.wait_for_room()
    return ordinal, engine.state.leases.of(queue.number)[reader].next


class _Leasing:
    """One lease on its way: what is written and logged for it."""

    def __init__(self, engine: "StorageEngine", taken: list[Taken]) -> None:
        self._engine = engine
        self._taken = taken
        self._born: list[tuple[QueueIndex, Entry]] = []  # persistent ones in place of transient
        self.ops: list[record.Op] = []
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
                    raise self._engine.disk_full(error, 0) from error
                for entry in fresh:
                    entry.on_slot = True
            add_runs(self.runs, part, entries)
            if one.mark:
                mark = record.mark_data(part.number, one.mark)
                self.ops.append(record.Op(record.MARK, 0, 0, mark))

    def _persistent(self, one: Taken, next_seqs: dict[int, int], fresh: list[Entry]) -> list[Entry]:
        """The entries, with persistent ones in the places of those that are transient."""
        engine, part = self._engine, one.part
        found: list[Entry] = []
        for i in range(len(one.entries)):
            entry = one.entries[i]
            old = entry.message
            if old.persistent:
                found.append(entry)
                continue
            body = one.bodies[i]
            message = engine.new_message(old.header, body, old.expiry_ms)
            message.time = old.time
            if engine.places_in_store(message.size, 1):
                try:
                    message.store_file = engine.state.store.write(message.id, body, 1)
                except OSError as error:
                    raise engine.disk_full(error, message.size) from error
                self.names_store = True
            seq = next_seqs.get(part.number, part.next_seq)
            next_seqs[part.number] = seq + 1
            born = Entry(seq, message)
            self._born.append((part, born))
            found.append(born)
            fresh.append(born)
            self.ops.append(_publish_op(part, born))
        fresh.sort(key=seq_of)
        return found

    def apply(self) -> None:
        """The log has it: transient messages are persistent, marks are raised."""
        for part, entry in self._born:
            message = entry.message
            part.publish(message.size, message.store_file != 0, message.expiry_ms)
        for one in self._taken:
            if one.mark:
                one.part.set_mark(one.mark)

    def undo(self) -> None:
        """Nothing happened: bodies that were stored for it are given back."""
        for _, entry in self._born:
            if entry.message.store_file:
                self._engine.state.store.unref(entry.message.store_file, entry.message.id)


def _publish_op(part: QueueIndex, entry: Entry) -> record.Op:
    m = entry.message
    flags = record.publish_flags(m.store_file, m.expiry_ms)
    body = b"" if m.store_file or m.body is None else m.body
    data = record.publish_data(
        flags, m.id, m.time, m.expiry_ms, m.store_file, [(part.number, entry.seq)], m.header, body,
        m.size,
    )  # fmt: skip
    return record.Op(record.PUBLISH, flags, 1, data)


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


# ---- commit --------------------------------------------------------------------------------------


def commit(
    engine: "StorageEngine", queue: QueueIndex, reader: str, ordinal: int, mode: int
) -> bool:
    """A slice of the reader's messages below `ordinal` is acknowledged; True if there is more of
    them. At or below what is committed: nothing. ValueError: it was never leased so far."""
    engine.check()
    lease = find(engine, queue, reader)
    if ordinal > lease.next:
        raise ValueError(
            f"reader {reader!r} has leased up to ordinal {lease.next}, it cannot commit {ordinal}"
        )
    if ordinal <= lease.committed:
        return False
    until, runs, parted = Choice(engine, lease).below(ordinal)
    dequeues: dict[int, tuple[QueueIndex, list[Run], list[StoreRef]]] = {}
    for run in [*runs, *parted]:
        part = engine.state.queues[run[0]]
        _, mine, refs = dequeues.setdefault(part.number, (part, [], []))
        dead = (run[1], run[2], run[3], run[4])
        if not part.is_live_run(dead):
            raise ValueError(f"of the leased seqs {run[1]} to {run[1] + run[2] - 1} some are dead")
        mine.append(dead)
        if run[4]:
            refs += [
                (m.id, m.store_file, m.size)
                for m in stored(engine, part, run[1], run[2])
                if m.store_file
            ]
    ops: list[record.Op] = []
    for part, mine, refs in dequeues.values():
        data = record.dequeue_data(part.number, mine, refs)
        ops.append(record.Op(record.DEQUEUE, 0, len(mine), data))
    found = _lease_op(engine, ops, lease, until, parted, record.COMMITTED)
    lsn = _log(engine, ops, mode)
    try:
        for part, mine, refs in dequeues.values():
            engine.state.dequeue(lsn, part, mine, refs, [])
        engine.state.apply_lease(lsn, found, record.COMMITTED)
    except BaseException as error:
        engine.stop(error)
        raise
    if engine.log.is_full:
        engine.wait_for_room()
    return until < ordinal


class Choice:
    """Chooses what of a lease one record handles, from the oldest on."""

    def __init__(self, engine: "StorageEngine", lease: Lease) -> None:
        self._engine = engine
        self._lease = lease

    def below(
        self, ordinal: int, messages_max: int = COMMIT_MESSAGES
    ) -> tuple[int, list[LeaseRun], list[LeaseRun]]:
        """(up to which ordinal, runs of whole slices, runs of a slice that is parted)."""
        whole: list[LeaseRun] = []
        runs_max = self._engine.state.leases.runs_max
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
        part = self._engine.state.queues[number]
        size = in_store = found_s = 0
        messages = looked_at(self._engine, part, first, n)
        for message in messages:
            size += message.size
            if message.store_file:
                in_store += 1
            if message.time > found_s:
                found_s = message.time
        if len(messages) < n:
            found_s = latest_s  # one is damaged: the others will do
        return number, first, n, min(size, run[3]), min(in_store, stores), found_s


def looked_at(engine: "StorageEngine", part: QueueIndex, first: int, n: int) -> list[Message]:
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
                engine.event("corruption", f"queue {part.number}: {error}")
    for slot in slots:
        in_store = 1 if slot.flags & IN_STORE else 0
        found.append(Message(slot.id, b"", None, slot.size, slot.time, slot.expiry_ms, in_store))
    return found


def stored(engine: "StorageEngine", part: QueueIndex, first: int, n: int) -> list[Message]:
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
                engine.event("corruption", text)
        return found


# ---- release -------------------------------------------------------------------------------------


def next_release(engine: "StorageEngine", queue: QueueIndex, reader: str) -> list[LeaseRun]:
    """What the next `release` gives back. UnknownLeaseError."""
    engine.check()
    if queue.is_deleted:
        raise deleted_error(queue.name)
    lease = engine.state.leases.of(queue.number).get(reader)
    if lease is None:
        raise UnknownLeaseError(queue.name.decode("utf-8", "replace"), reader)
    return Choice(engine, lease).below(lease.next, RELEASE_MESSAGES)[1]


def release(engine: "StorageEngine", queue: QueueIndex, reader: str, mode: int) -> bool:
    """A slice of what a reader has leased is ready again; True if there is more of it. With the
    last one the reader is forgotten."""
    runs = next_release(engine, queue, reader)
    lease = engine.state.leases.of(queue.number)[reader]
    until = lease.committed + sum([run[2] for run in runs])
    ops: list[record.Op] = []
    found = _lease_op(engine, ops, lease, until, [], record.RELEASED)
    lsn = _log(engine, ops, mode)
    try:
        engine.state.apply_lease(lsn, found, record.RELEASED)
    except BaseException as error:
        engine.stop(error)
        raise
    if engine.log.is_full:
        engine.wait_for_room()
    return reader in engine.state.leases.of(queue.number)


# ---- helpers -------------------------------------------------------------------------------------


def _lease_op(
    engine: "StorageEngine", ops: list[record.Op], lease: Lease, ordinal: int,
    parted: list[LeaseRun], flags: int,
) -> record.LeaseData:  # fmt: skip
    """Add the LEASE operation; what it says."""
    now_ms = engine.clock.wall_ms()
    name = lease.reader.encode("utf-8", "surrogateescape")
    data = record.lease_data(lease.queue, ordinal, now_ms, name, parted)
    ops.append(record.Op(record.LEASE, flags, len(parted), data))
    return record.LeaseData(lease.queue, ordinal, now_ms, name, parted)


def _log(
    engine: "StorageEngine", ops: list[record.Op], mode: int, *, names_store: bool = False
) -> int:
    assert engine.gathering is None, "a lease is a record of its own"
    try:
        if len(ops) == 1:
            op = ops[0]
            return engine.log.append(op.type, op.flags, op.count, op.data, mode)
        data = record.encode_ops(ops)
        return engine.log.append(record.TX, 0, len(ops), data, mode, names_store=names_store)
    except DiskFullError as error:
        raise engine.full(error) from error
