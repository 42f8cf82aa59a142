"""VariableQueue: a BackingQueue whose RAM is bounded, whatever its length.

This is the queue of RabbitMQ's variable_queue.md and of the essay of 2011 at the head of its
source: q1, q2, delta, q3, q4 and alpha, beta, gamma, delta (queue_ram.py has the picture and the
invariants). The storage engine has every persistent message in its log before it arrives here, so
paging does not make a message safe; it only moves it out of RAM. paging.py decides when and how
much, and does it.

    arrive     the engine adds an entry: to q4 while q3 is empty, else to q1. Over the limit, or on
               a flowed queue, a step of the Purger follows
    fetch      takes the head of q4; if q4 is empty, a run of q3 is read into it first
    ack        pending messages die, one DEQUEUE record per call
    requeue    pending messages return to their old places
    move       a pending message dies here and lives in other queues, one MOVE record
    take       heads leave for a reader that leases them

**Publishing calls back.** `publish` calls the engine, and the engine gives the new entry to the
Holder of each queue's index. `QueueHolder` is that Holder: it calls `arrive`, and at a checkpoint
it lists what is only in RAM and log (q1, q4 and pending, unless on a slot), which the engine then
writes. One publish for many queues is one record that way.

**Pending.** A fetched message is pending, in RAM or, paged out, as a row. A purge is one record and
keeps what is pending. A call that fails leaves messages pending: what must be read of them is read
before they are taken out.

**Delivered mark.** RabbitMQ once wrote a record for each delivery; here a queue has one number.
Messages below the mark were delivered or may have been, so they are redelivered when they come
again. One number is enough because messages leave in the order of their seqs. It is reserved ahead
in the log, in blocks of 1,024 or of the deliveries of the last second if these are more: the next
block once half of one is used. A first delivery beyond what is settled waits. So after a crash
nothing that was delivered is called fresh, and at most a block that was not delivered is called
redelivered. An orderly stop writes the exact number. Only persistent messages of durable queues
have this. Besides, single messages can be held: what a transaction or a move brought is delivered
once its record is settled, and holds back what is after it.

**Requeue.** RabbitMQ merges what comes back into q4 while it belongs before q3's head, reading
bodies that left RAM; then into q3, writing bodies, while it belongs before delta; the rest makes
delta wider. So a consumer that takes a million messages and dies would bring a million bodies back
into RAM, and one that rejects what it gets would walk over all ready messages each time. Here

    before q4's head             q4's head; in RAM
    before q3's, in RAM          `back`, a heap by seq
    before q3's, paged out       `back_rows`: a row until its turn comes
    after that                   q3 or delta, paged out

so the cost of a requeue depends on what comes back and not on what is ready
(tests/unit/queues/test_requeue_cost.py counts). What should be written and cannot, for want of
space, goes the other way: what is before it joins `back_rows`, and it goes to `back`. The queue is
over its limit then, and in order. If delta cannot be read for that either, what is before it comes
after it.

**Looking.** fold and browse read bodies in runs and keep none, so a browser costs a run of RAM.

**Leases.** A lease takes heads in order as a fetch does, never one that is expired or held. But
leased messages are not pending: once the engine has the LEASE record, the message is on its slot,
its bit is set in the index, and this queue has nothing of it in RAM. So a million leased messages
cost nothing here. `take` returns heads with their bodies for the time of one call; `untake` puts
them back if the lease failed; `leased` completes it: the record raises the delivered mark, and
transient messages, which live on as persistent ones at other seqs, are released. `returning` reads
the rows of leased messages that are about to be released, `readmit` makes them ready, at their old
places. A message without a good body is set aside as in a fetch.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from heapq import heappush, merge
from itertools import islice
from typing import Final, TypeVar

from penstock.errors import CorruptionError, DiskFullError, SyncFailedError, is_shortage
from penstock.message import Entry, QueuedMessage, SharedMessage, is_large, seq_of
from penstock.queues import paging
from penstock.queues.backing_queue import (
    BackingQueue,
    Delivery,
    NewMessage,
    QueueStates,
    ReadyHead,
)
from penstock.queues.paging import Paging
from penstock.queues.queue_options import POLICIES, QUEUE_MODES
from penstock.queues.queue_ram import ALPHA_BYTES, CHECKS, QueueRam, alpha_bytes
from penstock.queues.rows import AT_ENTRY, IN_STORE, ON_SLOT, PERSISTENT, Row, Rows, seq_of_row
from penstock.storage.engine import StorageEngine
from penstock.storage.files.durability import DISK, NONE, OS
from penstock.storage.index.queue_index import DictHolder, Holder, PagedTransient, QueueIndex
from penstock.storage.index.queue_segment import IN_STORE as SLOT_IN_STORE
from penstock.storage.parts.lease_engine import Taken

BLOCK: Final = 1024
# Of all queues that have held nothing yet: an empty deque takes 700 bytes. It is never changed.
NO_HOLDS: Final[deque[tuple[int, int, int]]] = deque()


class DeliveredMark:
    """The delivered mark of one queue. `delivered`: the exact mark of this run. mode: of the
    records of the mark."""

    def __init__(self, engine: StorageEngine, index: QueueIndex, mode: int) -> None:
        self._engine = engine
        self._index = index
        self._mode = mode
        self.delivered: int = min(index.mark, index.next_seq)
        self._settled: int = index.mark  # of the reserved mark
        self._next: int = index.mark
        self._lsn: int = 0
        self.half: int = index.mark - BLOCK // 2  # a delivery from here on reserves more
        self.holds: deque[tuple[int, int, int]] = NO_HOLDS  # (seq, lsn, mode)
        # Ahead of the head only: a mark beyond a whole backlog would make all of it redelivered
        # after the next crash. Messages below the mark do not need a higher one.
        head = min([s.lo for s in index.segments.values()], default=index.next_seq)
        if index.is_durable and index.mark < head + BLOCK // 2:
            self.reserve(max(self.delivered, head), 0.0)

    def reserve(self, seq: int, out_per_s: float) -> None:
        """Log a mark a block beyond `seq` and the mark reserved so far. Raises DiskFullError:
        nothing has changed."""
        block = max(BLOCK, int(out_per_s))
        mark = max(seq + 1, self._next) + block
        self._lsn = self._engine.mark(self._index, mark, self._mode)
        self._next = mark
        self.half = mark - block // 2

    def deliver(self, seq: int, *, is_persistent: bool, out_per_s: float) -> bool:
        """Raise the mark for a delivery. Return whether the message was delivered before."""
        if seq < self.delivered:
            return True
        if seq >= self.half and is_persistent:
            self.reserve(seq, out_per_s)
        self.delivered = seq + 1
        return False

    def beyond(self, seq: int, out_per_s: float) -> int:
        """Return the mark that a record which delivers up to `seq` must log, 0 if the reserved one
        suffices. Changes nothing; see `logged`."""
        if seq < self.half or not self._index.is_durable:
            return 0
        return max(seq + 1, self._next) + max(BLOCK, int(out_per_s))

    def logged(self, mark: int, lsn: int) -> None:
        """Note that another record has raised the mark."""
        self.half = mark - BLOCK // 2
        self._next = mark
        self._lsn = lsn

    def hold(self, seq: int, lsn: int, mode: int) -> None:
        """Hold this message and all after it until the LSN is settled."""
        if self._engine.log.settled(mode) < lsn:
            if self.holds is NO_HOLDS:
                self.holds = deque()
            self.holds.append((seq, lsn, mode))
            while self._engine.log.settled(self.holds[0][2]) >= self.holds[0][1]:
                self.holds.popleft()

    def waits_for(self, seq: int, *, has_mark: bool, out_per_s: float) -> tuple[int, int] | None:
        """Return (lsn, mode) that a delivery of `seq` waits for, or None. has_mark: it is
        persistent."""
        if self.holds:
            engine = self._engine
            while self.holds and engine.log.settled(self.holds[0][2]) >= self.holds[0][1]:
                self.holds.popleft()
            for held, lsn, mode in self.holds:
                if held <= seq and engine.log.settled(mode) < lsn:
                    return lsn, mode
        if not has_mark or seq < self._settled:
            return None
        if self._engine.log.settled(self._mode) >= self._lsn:
            self._settled = self._next
            if seq < self._settled:
                return None
            self.reserve(seq, out_per_s)
        return self._lsn, self._mode

    def terminate(self) -> None:
        """Set the exact mark for the checkpoint of an orderly stop."""
        if self._index.is_durable:
            self._index.lower_mark(self.delivered)


SEQ_MAX = 1 << 62


def put_back(state: QueueRam, alphas: list[Entry], rows: list[Row]) -> None:
    """Make entries in RAM and rows, each ascending, ready at their places; the caller counts them
    as ready. Never raises OSError; see the head of this module."""
    state.in_hand.update([entry.seq for entry in alphas])
    state.in_hand.update([row.seq for row in rows])
    try:
        _put_back(state, alphas, rows)
    finally:
        if not state.lift_below:
            state.in_hand = set()


def _put_back(state: QueueRam, alphas: list[Entry], rows: list[Row]) -> None:
    if not state.is_lazy:
        border = SEQ_MAX
        if state.q3.count:
            border = state.q3.first_seq()
        elif state.delta.count:  # delta could not be read
            border = state.delta.start
        early = [entry for entry in alphas if entry.seq < border]
        state.place(early)
        alphas = alphas[len(early) :]
        first = [row for row in rows if row.seq < border]
        for row in first:
            state.place_row(row)
        state.join_rows()
        rows = rows[len(first) :]
    if alphas:
        try:
            rows = list(merge(rows, paging.page_out(state, alphas), key=seq_of_row))
        except OSError:
            _put_rows(state, rows)
            paging.place_among(state, alphas, [])
            return
    _put_rows(state, rows)


def _put_rows(state: QueueRam, rows: Iterable[Row]) -> None:
    """Insert rows, ascending, into q3 if they come before delta, into q2 if they come after rows
    there that could not be written, else into delta."""
    delta, q2 = state.delta, state.q2
    border = q2.first_seq() if q2.count else SEQ_MAX
    later: list[Row] = []
    for row in rows:
        if not delta.count or row.seq < delta.start:
            state.q3.insert(row)
        elif row.seq > border:
            q2.insert(row)
        else:
            later.append(row)
    try:
        paging.roll_rows(state, later)
    except OSError:
        return  # they are rows


RUN_ROWS: Final = 64  # whose bodies are read at once

Found = tuple[int, QueuedMessage, bool]  # seq, message with body, is pending


def everything(state: QueueRam) -> Iterator[Found]:
    """Yield all messages, ready and pending, ascending by seq."""
    ready = ready_after(state, -1)
    pending = _pending(state)
    a, b = next(ready, None), next(pending, None)
    while a is not None or b is not None:
        if b is None or (a is not None and a[0] < b[0]):
            assert a is not None
            yield a
            a = next(ready, None)
        else:
            yield b
            b = next(pending, None)


def ready_after(
    state: QueueRam, after: int, run: int = RUN_ROWS, has_large: bool = True
) -> Iterator[Found]:
    """Yield ready messages above a seq, ascending, without damaged ones. run: how many are read
    from disk at once. has_large: with large bodies, too."""
    if state.has_back:
        yield from _head(state, after, run, has_large)
    else:
        yield from _alphas(state, state.q4, after, has_large)
    yield from _bodies(state, state.q3.rows(after), run, has_large)
    delta = state.delta
    start = max(delta.start, after + 1)
    while delta.count and start < delta.end:
        stop = min(state.segment_end(start), delta.end, start + run)
        yield from _bodies(state, iter(_rows_of_delta(state, start, stop)), run, has_large)
        start = stop
    yield from _bodies(state, state.q2.rows(after), run, has_large)
    yield from _alphas(state, state.q1, after, has_large)


def _head(state: QueueRam, after: int, run: int, has_large: bool) -> Iterator[Found]:
    """Yield q4, back and back_rows."""
    back = deque(state.back[seq] for seq in sorted(state.back))
    alphas = merge(
        _alphas(state, state.q4, after, has_large), _alphas(state, back, after, has_large),
        key=_seq_of_found,
    )  # fmt: skip
    rows = _bodies(state, state.back_rows.rows(after), run, has_large)
    return merge(alphas, rows, key=_seq_of_found)


def _seq_of_found(found: Found) -> int:
    return found[0]


def _alphas(state: QueueRam, entries: deque[Entry], after: int, has_large: bool) -> Iterator[Found]:
    at = bisect_right(entries, after, key=seq_of)
    for entry in islice(entries, at, None):
        message: QueuedMessage | None = entry.message
        if has_large or not is_large(entry.message):
            message = _whole(state, entry.seq, entry.message)
        if message is not None:
            yield entry.seq, message, False


def _pending(state: QueueRam) -> Iterator[Found]:
    in_ram = sorted(state.ram_pending)
    at = 0
    for seq, message, _ in _bodies(state, paging.pending_rows(state), RUN_ROWS, True):
        while at < len(in_ram) and in_ram[at] < seq:
            yield from _pending_in_ram(state, in_ram[at])
            at += 1
        yield seq, message, True
    for seq in in_ram[at:]:
        yield from _pending_in_ram(state, seq)


def _pending_in_ram(state: QueueRam, seq: int) -> Iterator[Found]:
    message = _whole(state, seq, state.ram_pending[seq].message)
    if message is not None:
        yield seq, message, True


def _whole(state: QueueRam, seq: int, message: QueuedMessage) -> QueuedMessage | None:
    """Return the message with a body that does not stay in RAM; None if it is damaged."""
    if message.body is not None:
        return message
    try:
        return _loaded(state, seq, message)
    except CorruptionError:
        return None


def _loaded(state: QueueRam, seq: int, message: QueuedMessage) -> QueuedMessage:
    """Return a copy of the message with its body, which does not stay in RAM. Raises OSError, and
    CorruptionError if it was read wrongly twice."""
    copy = message.copy()
    try:
        state.engine.load_body(state.index, seq, copy)
    except CorruptionError:
        copy = message.copy()
        state.engine.load_body(state.index, seq, copy)
    return copy


def _rows_of_delta(state: QueueRam, start: int, stop: int) -> list[Row]:
    seqs = state.ready_on_disk(start, stop)
    transients = set(state.transients_between(start, stop))
    return paging.rows_on_disk(state, seqs, transients)


def _bodies(state: QueueRam, rows: Iterator[Row], most: int, has_large: bool) -> Iterator[Found]:
    """Yield rows with their bodies, read in runs of one segment."""
    run: list[Row] = []
    for row in rows:
        if run and (len(run) >= most or row.seq >= state.segment_end(run[0].seq)):
            yield from _read(state, run, has_large)
            run = []
        run.append(row)
    if run:
        yield from _read(state, run, has_large)


def _read(state: QueueRam, rows: list[Row], has_large: bool) -> Iterator[Found]:
    try:
        entries = paging.load(state, rows, stays=False, has_large=has_large)
    except CorruptionError:
        entries = []
        for row in rows:
            try:
                entries += paging.load(state, [row], stays=False, has_large=has_large)
            except CorruptionError:
                continue  # reported when it is fetched
    for entry in entries:
        yield entry.seq, entry.message, False


SLOTS_READ: Final = 1024  # of transient messages that are removed, at once


def take_transients(state: QueueRam) -> Iterator[PagedTransient]:
    """Take all that is ready and paged out from the queue, and yield its transient messages. One
    that cannot be read has store file 0: it keeps a reference in the transient store, which
    disappears with the process. Persistent ones are yielded with zeros, for whoever counts
    steps."""
    parts = [rows.taken() for rows in (state.back_rows, state.q3, state.q2)]
    bits, state.delta_transients = state.delta_transients, {}
    return _taken_transients(state, parts, bits)


def _taken_transients(
    state: QueueRam, parts: list[Rows], delta: dict[int, bytearray]
) -> Iterator[PagedTransient]:
    for rows in parts:
        for row in rows.rows():
            yield _taken(state, row)
    index = state.index
    for number in sorted(delta):
        start, bits = number * index.slots, delta[number]
        seqs = [start + rel for rel in range(index.slots) if bits[rel >> 3] >> (rel & 7) & 1]
        for at in range(0, len(seqs), SLOTS_READ):
            some = seqs[at : at + SLOTS_READ]
            try:
                yield from _stored_of(index, number, some)
            except (CorruptionError, OSError):
                for seq in some:
                    try:
                        found = _stored_of(index, number, [seq])
                    except (CorruptionError, OSError):
                        found = [(seq, 0, 0, 1)]
                    yield from found


def _taken(state: QueueRam, row: Row) -> PagedTransient:
    """Return what `take_transients` yields of a message with a row."""
    if row.flags & PERSISTENT:
        return row.seq, row.id, 0, 0
    file = 0
    try:
        file = paging.store_file_of(state, row) if row.flags & IN_STORE else 0
    except (CorruptionError, OSError):
        pass
    return row.seq, row.id, file, paging.is_in_files(row)


def _pending_transients(state: QueueRam) -> Iterator[PagedTransient]:
    """Yield the pending messages of a deleted queue that were paged out, as `take_transients`. If
    they cannot be read the rest is left: their files are deleted with the queue's directory."""
    try:
        for row in paging.pending_rows(state):
            yield _taken(state, row)
    except OSError:
        pass


def _stored_of(index: QueueIndex, number: int, seqs: list[int]) -> list[PagedTransient]:
    """Return what `take_transients` yields of these seqs of a segment, all on slots.
    CorruptionError."""
    files = index.files(number)
    slots = files.slots(seqs)
    stores = [slot for slot in slots if slot.flags & SLOT_IN_STORE]
    places: dict[int, int] = {}  # file of the store, by id
    if stores:
        for message in files.entries_of(stores):
            places[message.id] = message.store_file
    return [(seqs[i], slots[i].id, places.get(slots[i].id, 0), 1) for i in range(len(seqs))]


ACKS_MAX: Final = 4096  # in one record, when all pending messages are to die

A = TypeVar("A")


BATCH_MESSAGES: Final = 256  # of a batch, between two steps of paging
BATCH_BYTES: Final = 1 << 20
READ_MESSAGES: Final = 256  # that a fetch from disk reads at once
LOOK_BYTES: Final = 64 << 10  # fetched of a queue with messages on disk, between two looks ahead


class VariableQueue(BackingQueue):
    """The queue over `index`, whose messages are ready, in delta, at first.

    mode: of the records of the delivered mark, a mode of `durability`. policy: "eager",
    gammas are rolled at once, as of 2011; "ratio", as many stay as the ratio permits; or "even", q1
    and q4 give alike.
    read_bytes: how much a fetch from disk reads at once; 0: one message. on_event(kind, text):
    flowed, recovered, page_out_failed, corruption.
    """

    def __init__(
        self, engine: StorageEngine, index: QueueIndex, *, mode: int = DISK, policy: str = "eager",
        read_bytes: int = 256 << 10, on_event: Callable[[str, str], None] | None = None,
    ) -> None:  # fmt: skip
        if policy not in POLICIES:
            raise ValueError(f"policy {policy!r}, expected one of {POLICIES}")
        self.engine = engine
        self.state: QueueRam = QueueRam(engine, index)
        self.state.eager = policy == "eager"
        self.state.is_even = policy == "even"
        self.mark: DeliveredMark = DeliveredMark(engine, index, mode)
        self.paging: Paging = Paging(self.state, on_event)
        self._index = index
        self._mode: int = mode
        # Deliveries of messages below this seq are counted when they are made; the counted seqs.
        self._suspect_below: int = 0
        self._crash_mark: int = 0 if engine.recovered.is_clean else self.mark.delivered
        self._counted: set[int] = set()
        self._read_bytes: int = read_bytes
        self.state.reads_runs = read_bytes > 0
        self._is_batch: bool = False
        self._fetched_bytes: int = 0  # since the last look ahead
        self._take_over(engine, index)

    def _take_over(self, engine: StorageEngine, index: QueueIndex) -> None:
        state = self.state
        held = index.holder
        entries = held.materialise(index.next_seq) if isinstance(held, DictHolder) else []
        fresh = [entry for entry in entries if entry.seq not in index.section]
        if fresh:  # published before the queue had an owner
            try:
                index.write(fresh)
            except OSError as error:
                if not is_shortage(error) or not engine.use_reserve():
                    raise
                index.write(fresh)
            for entry in fresh:
                entry.on_slot = True
        index.holder = QueueHolder(self)
        ready = index.count - index.leased.count
        if ready:
            state.delta.start = max(index.first_ready(), 0)
            state.delta.end = index.next_seq
            state.delta.count = state.len = ready
            state.bytes = index.bytes - index.leased.bytes
            self._after()

    # ---- arrival -------------------------------------------------------------------------------

    def index(self, priority: int = 0) -> QueueIndex:
        return self._index

    def indexes(self) -> list[QueueIndex]:
        return [self._index]

    def arrive(self, entry: Entry) -> None:
        """Add an entry at the end of the queue."""
        state = self.state
        message = entry.message
        state.len += 1
        state.bytes += message.size
        state.rates.n_in += 1
        if not message.persistent:
            state.has_transients = True
        if isinstance(message, SharedMessage):
            message.shared.join(state.shared)
        if state.is_lazy:
            self._arrive_lazy(entry)
            return
        if state.add_alpha(entry) and not self._is_batch:
            self.paging.step(state.step_messages, paging.PUBLISH_BYTES)
        if CHECKS.is_on:
            state.check_call()

    def _arrive_lazy(self, entry: Entry) -> None:
        """Write an entry to disk. If that fails, the queue is not lazy for now."""
        state = self.state
        try:
            rows = paging.page_out(state, [entry])
        except (OSError, SyncFailedError) as error:
            self._leave_lazy(error)
            state.add_alpha(entry)
        else:
            try:
                paging.roll_rows(state, rows)
            except (OSError, SyncFailedError) as error:
                self._leave_lazy(error)
        self._checked()

    def _leave_lazy(self, error: OSError | SyncFailedError) -> None:
        self.state.leave_lazy()
        self.paging.failed(error)
        paging.settle(self.state, paging.load_rows(self.state))

    def publish(
        self, header: bytes, body: bytes, mode: int, *, expiry_ms: int = 0, priority: int = 0
    ) -> int:
        engine, index = self.engine, self._index
        if not index.is_durable:
            mode = NONE
        engine.publish([index], header, body, mode, expiry_ms)
        return index.next_seq - 1

    def batch_publish(self, messages: list[NewMessage], mode: int) -> list[int]:
        engine, index = self.engine, self._index
        if not index.is_durable:
            mode = NONE
        targets = [index]
        tags: list[int] = []
        n = size = 0
        self._is_batch = True
        try:
            for new in messages:
                engine.publish(targets, new.header, new.body, mode, new.expiry_ms)
                tags.append(index.next_seq - 1)
                n += 1
                size += len(new.body)
                if n >= BATCH_MESSAGES or size >= BATCH_BYTES:
                    self._page_batch(n)
                    n = size = 0
        finally:
            self._is_batch = False
            self._page_batch(n)
        return tags

    def _page_batch(self, n: int) -> None:
        """Page out as much as n single publishes would."""
        if paging.is_over(self.state):
            slice_messages = min(n * (self.state.step_messages + 1), paging.SLICE_MESSAGES * 2)
            self.paging.step(slice_messages, 2 * paging.SLICE_BYTES)

    def hold(self, tag: int, lsn: int, mode: int) -> None:
        self.mark.hold(tag, lsn, mode)

    def held(self) -> tuple[int, int] | None:
        state = self.state
        if not state.len:
            return None
        if (state.q4 and not state.has_back) or state.head_in_ram():
            entry = state.q4[0]
            return self._waits_for(entry.seq, entry.message.persistent)
        row = self._first_row()
        return None if row is None else self._waits_for(row.seq, row.flags & PERSISTENT != 0)

    def _first_row(self) -> Row | None:
        """Return the head, which is not in RAM: the first of back_rows, or of q3, which delta
        refills if it is empty."""
        state = self.state
        if not state.back_rows.count and not state.q3.count:
            paging.deltas_to_betas(state, paging.load_rows(state))
            self.paging.report_set_aside()
        if state.back_rows.count:
            return state.back_rows.first()
        return state.q3.first() if state.q3.count else None

    def _waits_for(self, seq: int, is_persistent: bool) -> tuple[int, int] | None:
        return self.mark.waits_for(seq, has_mark=is_persistent, out_per_s=self.state.rates.out)

    # ---- delivery ------------------------------------------------------------------------------

    def fetch(self, *, ack_required: bool = True, in_pieces: bool = False) -> Delivery | None:
        state = self.state
        while state.len:
            if self.held() is not None:
                return None
            if (state.has_back or not state.q4) and not state.head_in_ram():
                if not self._read_run():
                    return None
                if self.held() is not None:  # the head was damaged, and this is another one
                    if state.is_lazy:
                        paging.push_q4(state, 1)
                    return None
            delivery = self._fetch(ack_required=ack_required, in_pieces=in_pieces)
            if delivery is not None:
                return delivery
        return None

    def _fetch(self, *, ack_required: bool, in_pieces: bool = False) -> Delivery | None:
        """Fetch the head. None: the queue is empty, or the head was damaged and is now set
        aside."""
        state = self.state
        if (state.has_back or not state.q4) and not state.head_in_ram() and not self._read_run():
            return None
        entry = state.q4[0]
        message = entry.message
        cost = alpha_bytes(message)
        size = message.size
        seq = entry.seq
        # What may fail comes first; until then nothing has changed.
        if message.body is None:
            try:
                message = self._for_delivery(entry, in_pieces=in_pieces)
            except CorruptionError as error:
                state.q4.popleft()
                state.alpha_bytes -= cost
                paging.set_aside(state, seq, size, error)
                self._after()
                return None
        attempts = self._attempts(seq, message.persistent)
        if seq < self._suspect_below and ack_required and message.persistent:
            self._count_delivery(seq)
        is_redelivered = self._delivered(seq, message.persistent)
        if not ack_required:
            self._die(entry, self._mode)
        state.q4.popleft()
        state.alpha_bytes -= cost
        state.len -= 1
        state.bytes -= size
        state.rates.n_out += 1
        if ack_required:
            state.ram_pending[seq] = entry
            state.pending_bytes += cost
            state.unacked_bytes += size
            state.rates.n_ack_in += 1
            if state.pending_order is not None:
                self._note_pending(seq)
        if state.q3.count:
            self._look_ahead(cost)
        elif state.delta.count or state.q1 or state.is_flowed or state.read_error is not None:
            paging.settle(state, paging.load_rows(state))
            self.paging.note_recovered()
        if ack_required and state.ram_bytes() > state.target_bytes:
            most = paging.PUBLISH_MESSAGES if self.engine.page_out_left > 0 else 1
            self.paging.step(most, paging.PUBLISH_BYTES)
        if CHECKS.is_on:
            state.check_call()
        return Delivery(seq, message, is_redelivered or attempts > 0, attempts)

    def _look_ahead(self, fetched_bytes: int) -> None:
        """Read ahead, if there is a reason, each time that so much was fetched."""
        self._fetched_bytes += fetched_bytes
        if self._fetched_bytes >= LOOK_BYTES:
            self._fetched_bytes = 0
            self.paging.inhale()
            self.paging.note_recovered()  # what a worker has read may have been the last

    def _for_delivery(self, entry: Entry, *, in_pieces: bool) -> QueuedMessage:
        """Return the message of an entry whose body is not in RAM: with the body, or without if
        that is large and may stay in the store. Raises CorruptionError, OSError."""
        message = entry.message
        if in_pieces and is_large(message):
            self.engine.bodies.open(message).close()
            return message
        return self._with_body(entry)

    def _read_run(self) -> bool:
        """Read the next run of back_rows or q3 into q4, or take one that a worker has read. Return
        False if there is none."""
        state = self.state
        state.join_rows()
        if self.paging.inhaler.runs and not state.back_rows.count:
            self.paging.inhaler.take()
            if state.q4:
                return True
        self.engine.totals.read_ahead_misses += 1
        while True:
            if not state.back_rows.count and not state.q3.count:
                paging.deltas_to_betas(state, paging.load_rows(state))
                self.paging.report_set_aside()
            if state.back_rows.count:
                run = min(self._read_bytes, state.target_bytes // 4)
                paging.back_to_alphas(state, min(run, self.paging.room_for(run)), READ_MESSAGES)
                self.paging.report_set_aside()
                if state.head_in_ram():
                    return True
                state.join_rows()
                continue
            if not state.q3.count:
                return state.head_in_ram()
            run = 0 if state.is_lazy else min(self._read_bytes, state.target_bytes // 4)
            room = self.paging.room_for(run)
            paging.read_run(state, min(run, room), READ_MESSAGES)
            paging.settle(state, paging.load_rows(state))
            self.paging.report_set_aside()
            if state.q4:
                return True

    def _delivered(self, seq: int, is_persistent: bool) -> bool:
        """Raise the mark for a delivery. Return whether the message was delivered before."""
        rate = self.state.rates.out
        return self.mark.deliver(seq, is_persistent=is_persistent, out_per_s=rate)

    def _note_pending(self, seq: int) -> None:
        order = self.state.pending_order
        assert order is not None
        heappush(order, -seq)

    def drop(self, *, ack_required: bool = True) -> ReadyHead | None:
        state = self.state
        head = self.head()
        if head is None:
            return None
        seq = head.tag
        row: Row | None = None
        if state.head_in_ram():
            entry = state.q4[0]
        else:
            row = self._first_row()
            assert row is not None
            entry = paging.take_entry(state, row) if not ack_required else paging.as_entry(row)
        self._delivered(seq, entry.message.persistent)
        if not ack_required:
            self._die(entry, self._mode)  # it may fail; until then nothing has changed
        if row is not None:
            (state.back_rows if state.back_rows.count else state.q3).drop_first()
        else:
            state.q4.popleft()
            state.alpha_bytes -= alpha_bytes(entry.message)
        state.len -= 1
        state.bytes -= head.size
        state.rates.n_out += 1
        if ack_required:
            state.unacked_bytes += head.size
            state.rates.n_ack_in += 1
            if row is not None:
                state.disk_pending.insert(row)
            else:
                state.ram_pending[seq] = entry
                state.pending_bytes += alpha_bytes(entry.message)
                if state.pending_order is not None:
                    self._note_pending(seq)
        self._after()
        return head

    def head(self) -> ReadyHead | None:
        state = self.state
        if state.head_in_ram():
            entry = state.q4[0]
            m = entry.message
            return ReadyHead(entry.seq, m.id, m.size, m.expiry_ms, m.time)
        row = self._first_row()
        if row is None:
            return None
        return ReadyHead(row.seq, row.id, row.size, row.expiry_ms, row.time)

    def dropwhile(self, predicate: Callable[[ReadyHead], bool], mode: int) -> ReadyHead | None:
        while True:
            dead: list[int] = []
            try:
                head = self.head()
                while head is not None and len(dead) < ACKS_MAX and predicate(head):
                    self.drop()
                    dead.append(head.tag)
                    head = self.head()
                self.ack(dead, mode)
            except (OSError, DiskFullError):
                self.requeue(dead, mode, attempted=False)
                raise
            if len(dead) < ACKS_MAX:
                return head

    # ---- counts --------------------------------------------------------------------------------

    def len(self) -> int:
        return self.state.len

    def depth(self) -> int:
        state = self.state
        pending = len(state.ram_pending) + state.disk_pending.count
        return state.len + pending + self._index.leased.count

    def body_bytes(self) -> int:
        return self.state.bytes

    def add_states(self, into: QueueStates) -> None:
        state = self.state
        rows = state.q2.count + state.q3.count + state.back_rows.count
        into.alphas += state.ram_messages()
        if state.has_transients:
            into.betas += rows
        else:
            into.gammas += rows
        leased = self._index.leased
        into.deltas += state.delta.count
        into.unacked += len(state.ram_pending) + state.disk_pending.count + leased.count
        into.ready_bytes += state.bytes
        into.unacked_bytes += state.unacked_bytes + leased.bytes
        into.as_alphas_bytes += state.bytes + state.len * ALPHA_BYTES
        into.over_target += state.ram_bytes() > state.target_bytes
        head: ReadyHead | None = None
        with suppress(OSError):  # what delivers the head reports it
            head = self.head()
        if head is not None and head.time:
            into.oldest_s = min(into.oldest_s or head.time, head.time)

    def info(self) -> dict[str, int | float | str]:
        return {**self.state.info(), **self.paging.info()}

    # ---- memory --------------------------------------------------------------------------------

    def ram_bytes(self) -> int:
        return self.state.ram_bytes()

    def elsewhere_bytes(self) -> int:
        return self.state.shared.elsewhere_bytes

    def unshare(self) -> None:
        self.state.unshare()

    def set_limits(self, max_bytes: int, min_bytes: int) -> None:
        self.paging.set_limits(max_bytes, min_bytes)
        self._checked()

    def set_share(self, share_bytes: int) -> None:
        self.paging.set_share(share_bytes)
        self._checked()

    def set_ram_duration_target(self, seconds: float) -> None:
        self.paging.set_duration(seconds)
        self._checked()

    def ram_duration(self) -> float:
        return self.paging.duration()

    def out_bytes_per_s(self) -> float:
        state = self.state
        if not state.len:
            return 0.0
        return state.rates.out * (ALPHA_BYTES + state.bytes / state.len)

    def set_queue_mode(self, mode: str) -> None:
        if mode not in QUEUE_MODES:
            raise ValueError(f"queue mode {mode!r}, expected one of {QUEUE_MODES}")
        state = self.state
        if mode == "lazy":
            state.becomes_lazy = not state.is_lazy
            self.resume()
        else:
            state.is_lazy = state.becomes_lazy = False
        self._after()

    def resume(self) -> bool:
        more = self.paging.step(paging.SLICE_MESSAGES, paging.SLICE_BYTES)
        self._after()
        return more

    def inhale(self, *, at_rest: bool = False) -> bool:
        pager = self.paging
        if not self.state.q3.count and not pager.inhaler.runs and not pager.is_inhaling:
            return False  # as in most turns
        return pager.inhale(at_rest=at_rest)

    # ---- life ----------------------------------------------------------------------------------

    def terminate(self) -> None:
        self.mark.terminate()

    def delete_and_terminate(self, mode: int) -> int:
        self.deleted()
        return self.engine.delete_queue(self._index, mode)

    def unlink(self) -> None:
        self.paging.unlink()

    def deleted(self) -> None:
        """Release transient messages and bodies: a record deletes the queue, or is about to."""
        state = self.state
        state.unshare()
        if state.has_transients:
            self._release(list(state.ram_pending.values()))
            if state.disk_pending.count:
                paged = _pending_transients(state)
                self.engine.upkeep.release(self._index, paged, state.transient_attempts)
        index = self._index
        held = index.holder.materialise(index.next_seq) if index.asks_for_dead() else []
        index.holder = DictHolder()
        for entry in held:
            index.holder.add(entry)
        self.purged()

    # ---- settling ------------------------------------------------------------------------------

    def ack(self, tags: list[int], mode: int) -> list[int]:
        state = self.state
        # Reading and the log may fail; until then nothing has changed.
        entries = self._pending_entries(tags)
        if entries:
            self._dequeue(entries, mode)
            for entry in entries:
                self._drop_pending(entry)
            self._release(entries)
            state.rates.n_ack_out += len(entries)
            if state.is_flowed:
                self.paging.note_recovered()
        if CHECKS.is_on:
            state.check_call()
        return [entry.message.id for entry in entries]

    def _pending_entries(self, tags: list[int]) -> list[Entry]:
        """Return those that are pending, each once, without bodies if they were paged out."""
        state = self.state
        if state.disk_pending.far_count:
            self._load_pending(tags)
        entries: list[Entry] = []
        for tag in tags if len(tags) < 2 else dict.fromkeys(tags):
            entry = state.ram_pending.get(tag)
            if entry is not None:
                entries.append(entry)
            elif state.disk_pending.count:
                row = state.disk_pending.find(tag)
                if row is not None:
                    entries.append(paging.entry_of(state, row))
        return entries

    def _load_pending(self, tags: list[int]) -> int:
        """Read the rows of those of these pending messages that have none. Return how many rows
        that brought, with neighbours. Raises OSError."""
        n_read = paging.load_pending(self.state, tags)
        self.paging.report_set_aside()
        return n_read

    def _paged(self, tag: int) -> Row | None:
        """Return the row of a pending message that was paged out, None if there is none. Raises
        OSError."""
        paged = self.state.disk_pending
        if paged.far_count:
            self._load_pending([tag])
        return paged.find(tag)

    def _dequeue(self, entries: list[Entry], mode: int) -> None:
        """Log and index the death of entries, if they are persistent."""
        persistent = entries
        if len(entries) > 1:
            persistent = sorted([e for e in entries if e.message.persistent], key=seq_of)
        elif not entries[0].message.persistent:
            return
        if persistent:
            self.engine.dequeue(self._index, persistent, mode)

    def _drop_pending(self, entry: Entry) -> None:
        """Remove a pending message that is dead."""
        state = self.state
        seq = entry.seq
        held = state.ram_pending.pop(seq, None)
        if held is not None:
            message = held.message
            state.pending_bytes -= alpha_bytes(message)
            if isinstance(message, SharedMessage):
                message.shared.leave(state.shared)
        else:
            row = state.disk_pending.remove(seq)
            assert row is not None
            if row.flags & AT_ENTRY and not row.flags & ON_SLOT:
                state.places[seq] = row.place
        state.unacked_bytes -= entry.message.size
        if self._counted:
            self._counted.discard(seq)

    def _die(self, entry: Entry, mode: int) -> None:
        """Remove an entry that was never pending."""
        message = entry.message
        if message.persistent:
            self.engine.dequeue(self._index, [entry], mode)
        else:
            self._release([entry])
        if isinstance(message, SharedMessage):
            message.shared.leave(self.state.shared)

    def _release(self, entries: list[Entry]) -> None:
        """Free what files and store keep for the transient ones of these dead messages."""
        state, index = self.state, self._index
        places, attempts = state.places, state.transient_attempts
        number, count = -1, 0  # how many are in the files of this segment
        for entry in entries:
            message = entry.message
            if message.persistent:
                continue
            seq = entry.seq
            if places.pop(seq, None) is not None or entry.on_slot:
                segment = seq // index.slots
                if segment != number and count:
                    index.keep_transients(number, -count)
                    count = 0
                number = segment
                count += 1
            if attempts:
                attempts.pop(seq, None)
            if message.store_file:
                self.engine.bodies.release(message)
        if count:
            index.keep_transients(number, -count)

    def requeue(self, tags: list[int], mode: int, *, attempted: bool = True) -> list[int]:
        state = self.state
        n_read = self._load_pending(tags) if state.disk_pending.far_count else 0
        alphas: list[Entry] = []
        rows: list[Row] = []
        for tag in dict.fromkeys(tags):
            entry = state.ram_pending.get(tag)
            if entry is not None:
                alphas.append(entry)
                continue
            row = state.disk_pending.find(tag) if state.disk_pending.count else None
            if row is not None:
                rows.append(row)
        alphas.sort(key=seq_of)
        rows.sort(key=seq_of_row)
        ids = {entry.seq: entry.message.id for entry in alphas}
        ids.update({row.seq: row.id for row in rows})
        if attempted and ids:  # may raise DiskFullError; until then nothing has changed
            self._count_attempts(alphas, rows, mode)
        elif self._counted:
            self._uncount(list(ids), mode)
        for entry in alphas:
            del state.ram_pending[entry.seq]
            state.pending_bytes -= alpha_bytes(entry.message)
        for row in rows:
            state.disk_pending.remove(row.seq)
        size = sum([e.message.size for e in alphas]) + sum([row.size for row in rows])
        state.unacked_bytes -= size
        state.bytes += size
        state.len += len(ids)
        state.rates.n_in += len(ids)
        state.rates.n_ack_out += len(ids)
        put_back(state, alphas, rows)
        if rows:
            self._page_returned(max(len(rows), n_read))
        self._after()
        return [ids[seq] for seq in sorted(ids)]

    def _page_returned(self, n: int) -> None:
        """Page out, because n rows were read for messages that came back: while these were pending,
        most of them had none."""
        messages = min(n * paging.PUBLISH_MESSAGES, paging.SLICE_MESSAGES)
        while n > 0 and self.paging.step(messages, paging.SLICE_BYTES):
            n -= paging.ROLL_ROWS

    def _count_attempts(self, alphas: list[Entry], rows: list[Row], mode: int) -> None:
        known = self._index.attempts
        seqs = [entry.seq for entry in alphas if entry.message.persistent]
        seqs += [row.seq for row in rows if row.flags & PERSISTENT]
        counted = [(q, known.get(q, 0) + 1) for q in sorted(seqs) if q not in self._counted]
        if counted:
            self.engine.requeue(self._index, counted, mode)
        self._counted.difference_update(seqs)
        transient = self.state.transient_attempts
        for seq in [entry.seq for entry in alphas if not entry.message.persistent]:
            transient[seq] = transient.get(seq, 0) + 1
        for seq in [row.seq for row in rows if not row.flags & PERSISTENT]:
            transient[seq] = transient.get(seq, 0) + 1

    def move(
        self, tag: int, targets: list[QueueIndex], header: bytes, mode: int, expiry_ms: int = 0
    ) -> int:
        found = self.pending(tag, with_header=True)
        if found is None:
            raise KeyError(f"tag {tag} of queue {self._index.number} is not pending")
        engine = self.engine
        message = found.message
        durable = [target for target in targets if target.is_durable and message.persistent]
        others = [target for target in targets if not (target.is_durable and message.persistent)]
        is_stored = message.body is None and is_large(message)
        if message.body is None and not is_stored:
            message = self._with_body(Entry(tag, message))
        body = message.body
        shared = None if body is None else engine.placement.share_of(body, len(targets), message)
        # This may fail; until then nothing has changed.
        stored = others and is_stored
        placed = engine.bodies.placed(message, is_persistent=False) if stored else message
        with engine.share(shared):
            if durable:
                # It stays pending until the record is made: the target may be this queue.
                lsn, _ = engine.move(
                    self._index, self._moving(tag, message), durable, header, mode, expiry_ms
                )
                self._drop_pending(Entry(tag, message))
                self.state.rates.n_ack_out += 1
            if stored:  # before it is acked: both may refer to the same body
                engine.publish_stored(others, header, placed, expiry_ms)
            if not durable:
                self.ack([tag], mode)
                lsn = engine.log.last_lsn if message.persistent else 0
            if others and body is not None:
                engine.publish_transient(others, header, body, expiry_ms, has_left=True)
        self._after()
        return lsn

    def move_run(
        self, deliveries: list[Delivery], target: QueueIndex, headers: list[bytes], mode: int,
        expiry_ms: int,
    ) -> int:  # fmt: skip
        engine, rates = self.engine, self.state.rates
        targets = [target]
        if target.is_durable and deliveries[0].message.persistent:
            entries = [self._moving(one.tag, one.message) for one in deliveries]
            lsn, _ = engine.move_run(self._index, entries, targets, headers, mode, expiry_ms)
            for entry in entries:
                self._drop_pending(entry)
            rates.n_ack_out += len(entries)
            self._after()
            return lsn
        for i in range(len(deliveries)):
            one = deliveries[i]
            body = one.message.body or b""
            if isinstance(one.message, SharedMessage):
                with engine.share(one.message.shared):
                    engine.publish_transient(targets, headers[i], body, expiry_ms)
            else:
                engine.publish_transient(targets, headers[i], body, expiry_ms)
            self.ack([one.tag], mode)
        return 0

    def _moving(self, tag: int, message: QueuedMessage) -> Entry:
        entry = self.state.ram_pending.get(tag)
        return Entry(tag, message, True if entry is None else entry.on_slot)

    def pending(
        self, tag: int, *, with_header: bool = False, with_body: bool = False
    ) -> Delivery | None:
        state = self.state
        entry = state.ram_pending.get(tag)
        if entry is not None:
            message = entry.message
            if message.body is None and (with_body or (with_header and not is_large(message))):
                message = self._with_body(entry)
        else:
            row = self._paged(tag)
            if row is None:
                return None
            if with_header or with_body:
                (entry,) = paging.load(state, [row], stays=False, has_large=with_body)
            else:
                entry = paging.entry_of(state, row)
            message = entry.message
        attempts = self._attempts(tag, message.persistent)
        return Delivery(tag, message, tag < self.mark.delivered, attempts)

    def pending_headers(self, tags: list[int]) -> list[Delivery]:
        state = self.state
        if state.disk_pending.far_count:
            self._load_pending(tags)
        found: list[QueuedMessage] = []
        seqs: list[int] = []
        rows: list[Row] = []
        for tag in sorted(tags):
            entry = state.ram_pending.get(tag)
            if entry is not None:
                seqs.append(tag)
                found.append(entry.message)
                continue
            row = state.disk_pending.find(tag)
            if row is not None:
                rows.append(row)
        for row, message in zip(rows, paging.headers_of(state, rows), strict=True):
            seqs.append(row.seq)
            found.append(message)
        delivered = self.mark.delivered
        return [
            Delivery(seq, message, seq < delivered, self._attempts(seq, message.persistent))
            for seq, message in zip(seqs, found, strict=True)
        ]

    def entries(self, tags: list[int]) -> list[tuple[QueueIndex, list[Entry]]]:
        state = self.state
        if state.disk_pending.far_count:
            self._load_pending(tags)
        found: list[Entry] = []
        for tag in sorted(tags):
            entry = state.ram_pending.get(tag)
            if entry is None:
                row = state.disk_pending.find(tag)
                if row is None:
                    raise KeyError(f"tag {tag} of queue {self._index.number} is not pending")
                entry = paging.entry_of(state, row)
            if entry.message.persistent:
                found.append(entry)
        return [(self._index, found)] if found else []

    def forget(self, tags: list[int]) -> None:
        try:
            entries = self._pending_entries(tags)
        except OSError:  # they are dead all the same
            for tag in tags:
                paging.forget_far(self.state, tag)
            entries = self._pending_entries(tags)
        for entry in entries:
            self._drop_pending(entry)
        self._release(entries)
        self.state.rates.n_ack_out += len(entries)
        self._after()

    def fold(self, fun: Callable[[Delivery, bool, A], tuple[bool, A]], acc: A) -> A:
        for seq, message, is_pending in everything(self.state):
            go_on, acc = fun(self._seen(seq, message), is_pending, acc)
            if not go_on:
                break
        return acc

    def browse(self, after: int | None, n: int, *, in_pieces: bool = False) -> list[Delivery]:
        found: list[Delivery] = []
        if n > 0:
            for seq, message, _ in ready_after(
                self.state, -1 if after is None else after, min(n, RUN_ROWS), not in_pieces
            ):
                if not message.time:  # its row has no room for it
                    message.time = self._index.time_of(seq)
                found.append(self._seen(seq, message))
                if len(found) >= n:
                    break
        return found

    def before_last(self, n: int) -> int | None:
        state = self.state
        if n >= state.len:
            return None
        if n < len(state.q1):
            return state.q1[-1 - n].seq
        n -= len(state.q1)
        if n < state.q2.count:
            return state.q2.seq_from_end(n)
        n -= state.q2.count
        if n < state.delta.count:
            return state.delta_from_end(n)
        n -= state.delta.count
        if n < state.q3.count:
            return state.q3.seq_from_end(n)
        n -= state.q3.count
        head = [*(entry.seq for entry in state.q4), *state.back, *state.back_rows.seqs()]
        return sorted(head)[-1 - n]

    def state_of(self, tag: int) -> str:
        state = self.state
        for rows in (state.q3, state.q2, state.back_rows):
            row = rows.find(tag)
            if row is not None:
                return "gamma" if row.flags & ON_SLOT else "beta"
        delta = state.delta
        return "delta" if delta.count and delta.start <= tag < delta.end else "alpha"

    def _seen(self, seq: int, message: QueuedMessage) -> Delivery:
        attempts = self._attempts(seq, message.persistent)
        return Delivery(seq, message, seq < self.mark.delivered or attempts > 0, attempts)

    def purge(self, mode: int) -> int:
        died = self.state.len
        if self._index.count:
            self.engine.purge(self._index, self.purge_kept(), mode)
        self.purged()
        return died

    def purge_kept(self) -> Iterator[Entry]:
        """Return the persistent pending messages, ascending: the record of a purge keeps them."""
        state = self.state
        in_ram = [entry for entry in state.ram_pending.values() if entry.message.persistent]
        in_ram.sort(key=seq_of)
        return merge(in_ram, paging.kept_by_purge(state), key=seq_of)

    def purged(self) -> None:
        """Remove everything that is ready after a record purged the persistent messages."""
        state = self.state
        if state.has_transients:
            paged = state.back_rows.count + state.q3.count + state.q2.count
            if paged or state.delta_transients:
                attempts = state.transient_attempts
                self.engine.upkeep.release(self._index, take_transients(state), attempts)
            self._release([*state.q4, *state.q1, *state.back.values()])
        state.clear_ready()
        self._after()

    def purge_acks(self, mode: int) -> int:
        state = self.state
        died = len(state.ram_pending) + state.disk_pending.count
        while state.ram_pending:
            self.ack(list(islice(state.ram_pending, ACKS_MAX)), mode)
        while state.disk_pending.count:
            self.ack(state.disk_pending.seqs(ACKS_MAX)[:ACKS_MAX], mode)
        return died

    # ---- attempts of messages that may have killed this process --------------------------------

    def count_crashes(self) -> None:
        self._suspect_below = self._crash_mark

    def _count_delivery(self, seq: int) -> None:
        """Write the count of a suspect's delivery before it is delivered. (Whether it was delivered
        before the crash is not certain, so that is not counted.)"""
        attempts = self._index.attempts.get(seq, 0) + 1
        lsn = self.engine.requeue(self._index, [(seq, attempts)], OS)
        self.engine.wait(lsn, OS)
        self._counted.add(seq)

    def _uncount(self, seqs: list[int], mode: int) -> None:
        """Take back the counts of suspects that come back undelivered."""
        known = self._index.attempts
        back = [(seq, known.get(seq, 1) - 1) for seq in sorted(seqs) if seq in self._counted]
        if back:
            self.engine.requeue(self._index, back, mode)
            self._counted.difference_update(seqs)

    # ---- helpers -------------------------------------------------------------------------------

    def _with_body(self, entry: Entry) -> QueuedMessage:
        """Return the message with a body that does not stay in RAM."""
        message = _loaded(self.state, entry.seq, entry.message)
        self.state.disk_reads += 1
        return message

    def _attempts(self, seq: int, is_persistent: bool) -> int:
        if is_persistent:
            if not self._index.attempts:
                return 0
            return self._index.attempts.get(seq, 0) - (seq in self._counted)
        known = self.state.transient_attempts
        return known.get(seq, 0) if known else 0

    def _after(self) -> None:
        """Settle and check after anything that may have emptied a part of the queue."""
        paging.settle(self.state, paging.load_rows(self.state))
        self.paging.report_set_aside()
        if self.state.is_flowed:
            self.paging.note_recovered()
        self._checked()

    def _checked(self) -> None:
        if CHECKS.is_on:
            self.state.check_call()

    # ---- leases --------------------------------------------------------------------------------

    def take(self, messages_max: int, bytes_max: int, now_ms: int) -> list[Taken]:
        state = self.state
        entries: list[Entry] = []
        bodies: list[bytes] = []
        left = bytes_max
        try:
            while len(entries) < messages_max and (state.head_in_ram() or self._refill()):
                size = self._take_run(entries, bodies, messages_max, left, now_ms)
                if size < 0:
                    break
                left -= size
            if state.is_lazy and state.q4:
                paging.push_q4(state, len(state.q4))
        except BaseException:
            self._untake(entries)
            raise
        state.rates.n_out += len(entries)
        self._after()
        if not entries:
            return []
        return [Taken(self._index, entries, bodies, self._mark_for(entries))]

    def _refill(self) -> bool:
        """Read the next messages, because the head is not in RAM. Return False if there are
        none."""
        paging.settle(self.state, paging.load_rows(self.state))
        return self.state.head_in_ram() or (self.state.len > 0 and self._read_run())

    def _take_run(
        self, entries: list[Entry], bodies: list[bytes], messages_max: int, bytes_max: int,
        now_ms: int,
    ) -> int:  # fmt: skip
        """Take from q4 until it is empty or there are enough. Return the bytes of the bodies, -1 if
        the next message cannot be taken now."""
        state, q4 = self.state, self.state.q4
        taken = cost = n = 0
        is_over = False
        holds = self.mark.holds
        try:
            while len(entries) < messages_max and state.head_in_ram():
                entry = q4[0]
                message = entry.message
                size = message.size
                is_over = (taken + size > bytes_max and len(entries) > 0) or (
                    0 < message.expiry_ms <= now_ms
                )
                if not is_over and holds:
                    is_over = self._is_held(entry.seq)
                if is_over:
                    break
                body = message.body
                if body is None:
                    try:
                        body = self._for_delivery(entry, in_pieces=True).body or b""
                    except CorruptionError as error:
                        q4.popleft()
                        cost += alpha_bytes(message)
                        paging.set_aside(state, entry.seq, size, error)
                        continue
                q4.popleft()
                if isinstance(message, SharedMessage):
                    message.shared.leave(state.shared)
                cost += alpha_bytes(message)
                taken += size
                n += 1
                entries.append(entry)
                bodies.append(body)
        finally:
            state.alpha_bytes -= cost
            state.len -= n
            state.bytes -= taken
        return -1 if is_over else taken

    def _is_held(self, seq: int) -> bool:
        rate = self.state.rates.out
        return self.mark.waits_for(seq, has_mark=False, out_per_s=rate) is not None

    def may_take(self) -> bool:
        state = self.state
        if not state.len:
            return False
        if not self.mark.holds:
            return True
        head = self.head()
        return head is not None and not self._is_held(head.tag)

    def leased_count(self) -> int:
        return self._index.leased.count

    def _mark_for(self, entries: list[Entry]) -> int:
        """Return the mark to log with a lease of these."""
        for entry in reversed(entries):
            if entry.message.persistent:
                return self.mark.beyond(entry.seq, self.state.rates.out)
        return 0

    def untake(self, taken: list[Taken]) -> None:
        for one in taken:
            self._untake(one.entries)
        self._after()

    def _untake(self, entries: list[Entry]) -> None:
        state = self.state
        state.len += len(entries)
        state.bytes += sum([entry.message.size for entry in entries])
        state.join(entries)
        put_back(state, entries, [])

    def leased(self, taken: list[Taken], lsn: int) -> None:
        mark = self.mark
        for one in taken:
            self._release(one.entries)
            for entry in one.entries:
                if entry.message.persistent and entry.seq >= mark.delivered:
                    mark.delivered = entry.seq + 1
            if one.mark:
                mark.logged(one.mark, lsn)
            if self._counted:
                self._counted.difference_update([entry.seq for entry in one.entries])
        self._checked()

    def returning(self, index: QueueIndex, seqs: list[int]) -> list[Row]:
        return paging.rows_on_disk(self.state, seqs, set())

    def readmit(self, index: QueueIndex, seqs: list[int], rows: list[Row]) -> None:
        state = self.state
        state.len += len(seqs)
        state.bytes += sum([row.size for row in rows])
        state.rates.n_in += len(rows)
        good = {row.seq for row in rows}
        for seq in seqs:
            if seq not in good:
                text = f"the slot of leased seq {seq} does not verify"
                paging.set_aside(state, seq, 0, CorruptionError(index.path, 0, text))
        put_back(state, [], rows)
        self._after()
        if self.engine.page_out_left > 0 and paging.is_over(state):
            self.paging.step(paging.SLICE_MESSAGES, paging.SLICE_BYTES)
        self._checked()


def _newest(alphas: deque[Entry], least: int, below: int, n: int) -> list[Entry]:
    """Return the n newest entries with seq < below, descending; fewer if there are no more
    with seq >= least. Rotates newer ones away and probes at powers of two, a quarter of the
    time of a walk."""
    newer = 0
    if alphas and alphas[-1].seq >= below:
        newer = len(alphas) - bisect_left(alphas, below, key=seq_of)
    most = min(len(alphas) - newer, n)
    alphas.rotate(newer)
    try:
        wanted = 1
        while wanted < most and alphas[-wanted].seq > least:
            wanted *= 2
        return list(islice(reversed(alphas), min(wanted, most)))
    finally:
        alphas.rotate(-newer)


class QueueHolder(Holder):
    """The Holder of a VariableQueue's index: passes arrivals on, lists what a checkpoint must
    write."""

    def __init__(self, queue: VariableQueue) -> None:
        self._queue = queue
        self._state = queue.state
        # Persistent messages below it in q1, q4 and pending are on their slots.
        self._on_slots_below: int = 0

    def add(self, entry: Entry) -> None:
        self._queue.arrive(entry)

    def drop(self, first: int, n: int) -> None:
        """Do nothing: the queue removes messages before it reports an ack to the engine."""

    def wants_drops(self) -> bool:
        return False

    def get(self, seq: int) -> Entry | None:
        state = self._state
        held = state.ram_pending.get(seq)
        if held is None:
            held = state.back.get(seq)
        if held is not None:
            return held
        for alphas in (state.q4, state.q1):
            at = bisect_left(alphas, seq, key=seq_of)
            if at < len(alphas) and alphas[at].seq == seq:
                return alphas[at]
        return None

    def candidates(self, below: int, n: int) -> list[Entry]:
        """Return entries as Holder says. A queue may have millions in RAM that earlier checkpoints
        have written to their slots; as the oldest, few of them are listed."""
        state, least = self._state, self._on_slots_below
        found = _newest(state.q1, least, below, n)
        if len(found) < n and state.q4:  # q1 comes after q4
            found += _newest(state.q4, least, below, n - len(found))
        return found

    def unsettled(self) -> list[Entry]:
        state = self._state
        found = [entry for entry in state.ram_pending.values() if not entry.on_slot]
        if state.back:
            found += [entry for entry in state.back.values() if not entry.on_slot]
        return found

    def materialised(self, entries: list[Entry]) -> None:
        """Note that these, in ascending order, and all before them are on their slots."""
        if entries:
            self._on_slots_below = max(self._on_slots_below, entries[-1].seq + 1)
