"""QueueRam: what a VariableQueue has in RAM: five parts, counters, and the invariants that they
keep.

RabbitMQ's variable_queue.md draws a queue as five parts; messages move through them from right to
left, and the head is at the left:

    fetch <-  q4  <-  q3  <-  delta  <-  q2  <-  q1  <- publish
            alphas   betas    a run of   betas   alphas
                     gammas   seqs only  gammas
                              on disk

An alpha is an `Entry` with its message; a beta (body on disk) and a gamma (its position, too) are
packed rows (rows.py). Of delta only the bounds and the count are kept here; its seqs are in the
QueueIndex, in a bitmap per segment. A persistent message is paged out with body and slot together,
so it becomes a gamma at once, as in RabbitMQ's essay of 2011; a transient one becomes a beta, and
gets its slot when it is rolled into delta.

A requeued message belongs where its seq was, which is before q4's head or among its first messages.
Inserting into a deque of a million would cost a walk over it for each reject. So messages that do
not belong before q4's head wait in `back` (in RAM) and `back_rows` (paged out), and `head_in_ram`
moves the first of `back` to q4's head when its turn comes. Both belong to the range of seqs that q4
covers: before q3.

    fetch <-  min(q4, back, back_rows)  <-  q3 ...

`check` asserts, in default mode:

    [V1] q1 is not empty => q3 is not         [V2] q2 is not empty => delta is not
    [V3] delta is not empty => q3 is not      [V4] empty <=> q3, q4 and back are empty
    [V5] seqs ascend through q4, q3, delta, q2, q1, and within back_rows, which comes before q3 as
         `back` does; nothing is two of ready, pending and leased
    [V6] delta.start + delta.count <= delta.end: holes are dead, pending or leased
    [V7] no counter is negative, and each is the sum of what it counts
    [V8] the seqs of back are those of its heap; `has_back` is set if it or back_rows is not empty

in lazy mode instead of [V1] to [V4]: q1, q2, q4 and back are empty, and everything is in q3 and
delta. A queue that is becoming lazy still follows the rules of default mode.

Counted bytes of RAM: an alpha with body, header and its objects (ALPHA_BYTES), a row with 32 bytes,
pending messages like all others, and the bits of pending messages that have no row
(rows.py). A body that other queues hold, too, counts once for all of them
(message.py): `alpha_bytes`, `pending_bytes` and `q1_bytes` contain it whole, and `ram_bytes`
subtracts what the other queues count of it, `shared.elsewhere_bytes`. A message joins its
SharedBody when it arrives, and leaves it when it dies or is paged out.

    [V9] `shared` has joined exactly the shared bodies of q1, q4, back and ram_pending

**Rates.** The memory monitor sets for *how long* the messages in RAM should last, not only how many
bytes they may take; so a busy queue keeps more in RAM than an idle one, and a flooded queue does
not write to disk what it will deliver in a moment. That needs four rates (`Rates`): messages in,
messages out, messages that become pending, messages that are acked. Ingress counts, as in
rabbit_variable_queue: it keeps a flooded queue responsive.

* A rate is an exponential moving average with a half-life of 5 s: after dt seconds with `n` events,
  `rate = n / dt * (1 - w) + rate * w` with `w = 0.5 ** (dt / 5)`. The result does not depend on how
  often it is updated, if events come evenly.
* The hot path only adds one to an integer: `rates.n_in += 1`. `update` folds the integers in and
  sets them to zero. It ignores a dt below 1 ms (a clock that stands still, two reports in a row):
  the events stay counted.
* `duration` is (counts now + counts before) / (4 x sum of the rates), as in RabbitMQ: half of the
  average count by the sum of the rates. A queue whose target is the duration that it reported thus
  halves itself, which is intended: queues should shrink before there is no more room. RabbitMQ lost
  the "before" in 3.3.0 (it is always zero there); here the caller keeps the counts of its last
  report.
* `target` is duration x sum of the rates: how many messages last for that long.

Below 0.01 events a second in all four rates a queue is idle, and its messages last for ever.
"""

from bisect import bisect_left
from collections import Counter, deque
from heapq import heappop, heappush
from typing import Final

from penstock.message import Entry, QueuedMessage, SharedBodies, SharedMessage, seq_of
from penstock.queues.backing_queue import UNLIMITED
from penstock.queues.rows import ON_SLOT, ROW_BYTES, PagedPending, Row, Rows
from penstock.storage.engine import StorageEngine
from penstock.storage.index.queue_index import QueueIndex

HALF_LIFE_S: Final = 5.0
IDLE_PER_S: Final = 0.01
UPDATE_S_MIN: Final = 0.001
INFINITY: Final = float("inf")


class Rates:
    """Four moving averages, in events per second: `in_`, `out`, `ack_in`, `ack_out`.

    now_s: seconds of a monotonic clock at which the first sampling period begins.
    """

    def __init__(self, now_s: float) -> None:
        self.n_in: int = 0  # messages published or requeued since the last update
        self.n_out: int = 0  # messages fetched or dropped since the last update
        self.n_ack_in: int = 0  # messages that became pending since the last update
        self.n_ack_out: int = 0  # messages that were acked or requeued since the last update
        self.in_: float = 0.0
        self.out: float = 0.0
        self.ack_in: float = 0.0
        self.ack_out: float = 0.0
        self._updated_s: float = now_s

    def update(self, now_s: float) -> None:
        """Fold in the counts since the last update, unless that was less than 1 ms ago."""
        dt_s = now_s - self._updated_s
        if dt_s < UPDATE_S_MIN:
            return
        w = _weight(dt_s)
        fresh = (1.0 - w) / dt_s
        self.in_ = self.n_in * fresh + self.in_ * w
        self.out = self.n_out * fresh + self.out * w
        self.ack_in = self.n_ack_in * fresh + self.ack_in * w
        self.ack_out = self.n_ack_out * fresh + self.ack_out * w
        self.n_in = self.n_out = self.n_ack_in = self.n_ack_out = 0
        self._updated_s = now_s

    def sum(self) -> float:
        """Return the sum of the four rates, in events per second."""
        return self.in_ + self.out + self.ack_in + self.ack_out

    def is_idle(self) -> bool:
        """Return whether no rate is above 0.01 events per second."""
        return (
            self.in_ < IDLE_PER_S
            and self.out < IDLE_PER_S
            and self.ack_in < IDLE_PER_S
            and self.ack_out < IDLE_PER_S
        )

    def duration(self, ram_now: int, ram_prev: int, ack_now: int, ack_prev: int) -> float:
        """Return for how many seconds the messages in RAM last; infinity for an idle queue.

        ram_now, ram_prev: ready messages in RAM now and at the last report. ack_now, ack_prev:
        pending messages in RAM, likewise.
        """
        if self.is_idle():
            return INFINITY
        return (ram_now + ram_prev + ack_now + ack_prev) / (4.0 * self.sum())

    def target(self, duration_s: float) -> float:
        """Return how many messages last for that long: a whole number, or infinity."""
        if duration_s == INFINITY:
            return INFINITY
        return float(int(duration_s * self.sum()))


def _weight(dt_s: float) -> float:
    """Return the part of an old rate that is left after dt_s seconds: 1 at once, 0.5 after a
    half-life."""
    weight: float = 0.5 ** (dt_s / HALF_LIFE_S)
    return weight


# An Entry, a QueuedMessage, their place in a deque or dict, and the head of bytes: measured.
ALPHA_BYTES: Final = 256
# Paged out by one publish besides its own: one for each MiB of the target, from 4 to 32.
STEP_MESSAGES_MIN: Final = 4
STEP_MESSAGES_MAX: Final = 32
STEP_SHIFT: Final = 20
CHECKED_EACH: Final = 128


class Checks:
    """is_on: calls of a VariableQueue end with `QueueRam.check`: every one while the queue has at
    most CHECKED_EACH messages. A check looks at all messages, so of a longer queue one call in
    proportion is checked. Set by tests."""

    def __init__(self) -> None:
        self.is_on: bool = False
        self._credit: int = 0

    def is_due(self, messages: int) -> bool:
        """Return whether this call of a queue with so many messages is checked."""
        self._credit += CHECKED_EACH
        if self._credit < messages:
            return False
        self._credit = 0
        return True


CHECKS: Final = Checks()


class Delta:
    """The range of seqs that are on disk only: [start, end), of which `count` are ready."""

    __slots__ = ("count", "end", "start")

    def __init__(self) -> None:
        self.start: int = 0
        self.count: int = 0
        self.end: int = 0

    def add(self, seq: int) -> None:
        """Add a seq and widen the bounds."""
        if not self.count:
            self.start = seq
            self.end = seq + 1
        elif seq < self.start:
            self.start = seq
        elif seq >= self.end:
            self.end = seq + 1
        self.count += 1

    def clear(self) -> None:
        """Remove all seqs."""
        self.start = self.end = self.count = 0


def alpha_bytes(message: QueuedMessage) -> int:
    """Return the bytes that a message in RAM counts."""
    body = message.body
    return ALPHA_BYTES + len(message.header) + (0 if body is None else len(body))


def take_alphas(
    alphas: deque[Entry], quota: int, bytes_max: int, *, from_rear: bool
) -> tuple[list[Entry], int, int]:
    """Take entries from one end. Return them, ascending; the bytes they are counted for; what is
    left of the quota, 0 once the bytes are passed."""
    taken: list[Entry] = []
    moved = 0
    while quota > 0 and alphas and moved < bytes_max:
        entry = alphas.pop() if from_rear else alphas.popleft()
        taken.append(entry)
        moved += alpha_bytes(entry.message)
        quota -= 1
    if from_rear:
        taken.reverse()
    return taken, moved, quota if moved < bytes_max else 0


def step_messages(target_bytes: int) -> int:
    """Return how many messages a publish pages out besides its own, at most. Writes of many cost
    less for each, but must stay a small part of the target."""
    return min(max(target_bytes >> STEP_SHIFT, STEP_MESSAGES_MIN), STEP_MESSAGES_MAX)


def low_mark(target_bytes: int) -> int:
    """Return the bytes below which a queue without a minimum of its own reads messages back."""
    return target_bytes - (target_bytes >> 3)


def high_mark(target_bytes: int) -> int:
    """Return the bytes up to which a queue that does not fit reads messages back: 15/16 of the
    target. The rest is for arrivals, so that they do not page out what was just read."""
    return target_bytes - (target_bytes >> 4)


class QueueRam:
    """See the head of this module. One VariableQueue owns it; paging.py changes it, too."""

    def __init__(self, engine: StorageEngine, index: QueueIndex) -> None:
        self.engine = engine
        self.index = index
        start, now_s = engine.start_number, engine.clock.wall_ms() // 1000
        self.q1: deque[Entry] = deque()
        self.q2: Rows = Rows(start, now_s)
        self.delta: Delta = Delta()
        self.q3: Rows = Rows(start, now_s)
        self.q4: deque[Entry] = deque()
        # Requeued, not before q4's head: entries by seq; those seqs as a heap; rows.
        self.back: dict[int, Entry] = {}
        self.back_order: list[int] = []
        self.back_rows: Rows = Rows(start, now_s)
        self.has_back: bool = False  # or had, until the next `head_in_ram`
        # Fetched, not yet settled: in RAM, and paged out. Largest seqs are paged out first.
        self.ram_pending: dict[int, Entry] = {}
        self.disk_pending: PagedPending = PagedPending(start, now_s, index.slots)
        # A heap of the seqs of ram_pending, negated, and of some that are not pending any more;
        # None until the largest is needed.
        self.pending_order: list[int] | None = None
        self.has_transients: bool = False  # or had
        # Transient messages of delta: segment -> bitmap of seqs. Persistent: see QueueIndex.
        self.delta_transients: dict[int, bytearray] = {}
        self.transient_attempts: dict[int, int] = {}
        # Transient messages in RAM whose bodies are in .qs, too (read back): position there.
        self.places: dict[int, int] = {}
        self.set_aside: dict[int, str] = {}  # damaged: seq -> what and where
        self.set_aside_events: list[str] = []  # not reported yet
        # Seqs that a call has removed and not placed yet: alive in the index, and not in delta.
        self.in_hand: set[int] = set()
        # Not 0: what delta has below this seq could not be read when messages of its range had to
        # stay in RAM or rows (`paging.place_among`): these, in q4, back, back_rows, stay in_hand.
        self.lift_below: int = 0
        self.read_error: OSError | None = None  # delta could not be read: q3 is empty meanwhile
        self.len: int = 0  # ready
        self.bytes: int = 0  # bodies of the ready
        self.unacked_bytes: int = 0  # bodies of the pending
        self.alpha_bytes: int = 0  # counted: q1, q4 and back
        self.pending_bytes: int = 0  # counted: ram_pending
        self.q1_bytes: int = 0  # counted: q1, part of alpha_bytes
        self.reading_bytes: int = 0  # counted: what is being read ahead will be, at most
        self.shared: SharedBodies = SharedBodies()  # in RAM here and in other queues
        self.target_bytes: int = UNLIMITED  # the smallest limit
        self.step_messages: int = STEP_MESSAGES_MIN  # of a publish, for this target
        self.is_lazy: bool = False
        self.becomes_lazy: bool = False
        self.is_flowed: bool = False
        self.reads_runs: bool = True  # a fetch from disk reads a run of messages
        self.eager: bool = False  # the policy of 2011: gammas roll into delta at once
        self.is_even: bool = False  # the policy of the worked example of variable_queue.md
        self.rates: Rates = Rates(engine.clock.monotonic())
        self.disk_reads: int = 0
        self.disk_writes: int = 0

    def ram_bytes(self) -> int:
        """Return the bytes counted in RAM."""
        rows = self.q2.count + self.q3.count + self.back_rows.count
        counted = self.alpha_bytes + self.pending_bytes - self.shared.elsewhere_bytes
        return counted + self.reading_bytes + self.disk_pending.ram_bytes + rows * ROW_BYTES

    def average_bytes(self) -> int:
        """Return the average bytes of RAM of a ready message, without its header."""
        return ALPHA_BYTES + self.bytes // max(self.len, 1)

    def ram_average(self) -> int:
        """Return the average bytes counted for a ready message in RAM, with its header; 0 for
        none."""
        n = self.ram_messages()
        if not self.shared.count:
            return self.alpha_bytes // max(n, 1)
        counted = self.alpha_bytes + self.pending_bytes - self.shared.elsewhere_bytes
        return counted // max(n + len(self.ram_pending), 1)

    def fits(self) -> bool:
        """Return whether the whole queue would fit in RAM, with `spare_bytes` to spare."""
        if self.target_bytes >= UNLIMITED:
            return True
        return self.whole_bytes() <= self.target_bytes - self.spare_bytes()

    def whole_bytes(self) -> int:
        """Return what would count if all that is ready were in RAM. Headers on disk are taken to be
        as long as that of q3's first message, at most LONG_HEADER."""
        average = ALPHA_BYTES
        if self.q3.count:
            average += self.q3.first().header_len
        return self.bytes + self.len * average + self.pending_bytes + self.disk_pending.ram_bytes

    def spare_bytes(self) -> int:
        """Return what stays free of the target when a queue that fits comes back: a 128th, but at
        least one step of paging, so that the next few publishes do not page out what was just
        read."""
        target = self.target_bytes
        return max(target >> 7, min(self.step_messages * self.average_bytes(), target >> 3))

    def add_alpha(self, entry: Entry) -> bool:
        """Append an entry: to q4 if everything is in RAM, else to q1. Return whether there may be
        something to page out."""
        cost = alpha_bytes(entry.message)
        self.alpha_bytes += cost
        if self.q3.count or self.delta.count:
            self.q1.append(entry)
            self.q1_bytes += cost
        else:
            self.q4.append(entry)
        return self.is_flowed or self.ram_bytes() > self.target_bytes

    def leave_lazy(self) -> None:
        """Keep in RAM what a lazy queue cannot write: it becomes lazy again when it can."""
        if self.is_lazy:
            self.is_lazy = False
            self.becomes_lazy = True

    def ram_messages(self) -> int:
        """Return the number of alphas (ready)."""
        return len(self.q1) + len(self.q4) + len(self.back)

    # ---- bodies that other queues hold, too ----------------------------------------------------

    def join(self, entries: list[Entry]) -> None:
        """Count the shared bodies of entries that are in RAM from now on."""
        for entry in entries:
            message = entry.message
            if isinstance(message, SharedMessage):
                message.shared.join(self.shared)

    def leave(self, entries: list[Entry]) -> None:
        """Stop counting the shared bodies of entries that died or were paged out."""
        if not self.shared.count:
            return
        for entry in entries:
            message = entry.message
            if isinstance(message, SharedMessage):
                message.shared.leave(self.shared)

    def unshare(self) -> None:
        """Leave all shared bodies, because the queue is about to disappear, and count its messages
        whole."""
        for entry in self.in_ram():
            message = entry.message
            if isinstance(message, SharedMessage):
                message.shared.leave(self.shared)
                entry.message = message.copy()

    def in_ram(self) -> list[Entry]:
        """Return all entries with their messages: ready and pending."""
        return [*self.q1, *self.q4, *self.back.values(), *self.ram_pending.values()]

    # ---- requeued messages ---------------------------------------------------------------------

    def place(self, entries: list[Entry]) -> None:
        """Make entries in RAM, ascending and before q3, ready: those before q4's head go there,
        others to `back`."""
        if not entries:
            return
        q4 = self.q4
        if not q4 or entries[0].seq > q4[-1].seq:
            q4.extend(entries)
        else:
            n = len(entries)
            if entries[-1].seq > q4[0].seq:
                n = bisect_left(entries, q4[0].seq, key=seq_of)
                for entry in entries[n:]:
                    self.back[entry.seq] = entry
                    heappush(self.back_order, entry.seq)
                self.has_back = True
            q4.extendleft(reversed(entries[:n]))
        self.alpha_bytes += sum([alpha_bytes(entry.message) for entry in entries])

    def place_row(self, row: Row) -> None:
        """Make a row before q3 ready."""
        self.back_rows.insert(row)
        self.has_back = True

    def head_in_ram(self) -> bool:
        """Return whether the head of the queue is in RAM; then it is q4[0]. If not, it is the first
        of back_rows, or, if q4 and back are empty, the first after them."""
        q4 = self.q4
        if not self.has_back:
            return bool(q4)
        order, rows = self.back_order, self.back_rows
        if order and (not q4 or order[0] < q4[0].seq):
            if rows.count and rows.first_seq() < order[0]:
                return False
            q4.appendleft(self.back.pop(heappop(order)))
        elif rows.count:
            return bool(q4) and q4[0].seq < rows.first_seq()
        elif not order:
            self.has_back = False
        return bool(q4)

    def join_rows(self) -> None:
        """Move back_rows to the front of q3 if nothing is between them."""
        if self.back_rows.count and not self.q4 and not self.back and not self.lift_below:
            self.q3.extend_left(self.back_rows)

    def is_pending(self, seq: int) -> bool:
        """Return whether a message was fetched and is not settled."""
        return seq in self.ram_pending or (
            self.disk_pending.count > 0 and self.disk_pending.has(seq)
        )

    def clear_ready(self) -> None:
        """Remove everything that was ready."""
        if self.shared.count:  # avoids the walk over them
            self.leave([*self.q1, *self.q4, *self.back.values()])
        self.engine.free_later(self.q1)
        self.engine.free_later(self.q4)
        if self.back:
            self.engine.free_later(deque(self.back.values()))
        self.q1 = deque()
        self.q4 = deque()
        self.back = {}
        self.back_order = []
        self.back_rows.clear()
        self.has_back = False
        self.q2.clear()
        self.q3.clear()
        self.delta.clear()
        self.delta_transients.clear()
        self.set_aside.clear()
        self.in_hand = set()
        self.lift_below = 0
        self.len = self.bytes = self.alpha_bytes = self.q1_bytes = 0

    def count_bytes(self) -> None:
        """Count the ready bytes again when delta is empty, because the sizes of damaged slots were
        unknown."""
        alphas = sum(e.message.size for q in (self.q1, self.q4, self.back.values()) for e in q)
        parts = (self.q2, self.q3, self.back_rows)
        self.bytes = alphas + sum(r.size for rows in parts for r in rows.rows())

    # ---- transients in delta -------------------------------------------------------------------

    def mark_transient(self, seq: int) -> None:
        """Mark a transient message in delta."""
        slots = self.index.slots
        bits = self.delta_transients.get(seq // slots)
        if bits is None:
            bits = bytearray((slots + 7) >> 3)
            self.delta_transients[seq // slots] = bits
        rel = seq % slots
        bits[rel >> 3] |= 1 << (rel & 7)

    def clear_transients(self, start: int, stop: int) -> None:
        """Remove transient seqs from start to stop - 1, of one segment, from delta."""
        slots = self.index.slots
        bits = self.delta_transients.get(start // slots)
        if bits is None:
            return
        seq = start
        while seq < stop:
            rel = seq % slots
            whole = (stop - seq) >> 3
            if whole and not rel & 7:
                bits[rel >> 3 : (rel >> 3) + whole] = bytes(whole)
                seq += whole << 3
            else:
                bits[rel >> 3] &= 0xFF ^ (1 << (rel & 7))
                seq += 1
        if bits.count(0) == len(bits):
            del self.delta_transients[start // slots]

    def transients_between(self, start: int, stop: int) -> list[int]:
        """Return the transient seqs of delta from start to stop - 1, of one segment, ascending."""
        slots = self.index.slots
        bits = self.delta_transients.get(start // slots)
        if bits is None:
            return []
        rel, n = start % slots, stop - start
        part = bits[rel >> 3 : (rel + n + 7) >> 3]
        if int.from_bytes(part, "little") >> (rel & 7) & ((1 << n) - 1) == (1 << n) - 1:
            return list(range(start, stop))  # the common case: nothing here is persistent or dead
        rels = ((seq, seq % slots) for seq in range(start, stop))
        return [seq for seq, rel in rels if bits[rel >> 3] >> (rel & 7) & 1]

    # ---- information and checks ----------------------------------------------------------------

    def segment_end(self, seq: int) -> int:
        """Return the first seq after the segment of `seq`."""
        return (seq // self.index.slots + 1) * self.index.slots

    def delta_seqs(self) -> list[int]:
        """Return the seqs in delta, ascending."""
        found: list[int] = []
        start, end = self.delta.start, self.delta.end
        while self.delta.count and start < end:
            stop = min(self.segment_end(start), end)
            found += self.ready_on_disk(start, stop)
            start = stop
        return found

    def delta_from_end(self, n: int) -> int:
        """Return the seq in delta that n others of delta follow. Only segments of which some
        messages are pending or set aside, and those at the ends of delta, are looked at one message
        by one."""
        index, slots, stop = self.index, self.index.slots, self.delta.end
        mixed = {seq // slots for seq in (*self.ram_pending, *self.in_hand, *self.set_aside)}
        mixed.update(self.disk_pending.segments())
        while True:
            number = (stop - 1) // slots
            start = max(number * slots, self.delta.start)
            assert start < stop, "delta has more than n"
            seqs: list[int] | None = None
            if stop - start == slots and number not in mixed:
                segment = index.segments.get(number)
                count = 0 if segment is None else segment.count - index.leased.in_segment(number)
                transients = self.delta_transients.get(number, b"")
                count += int.from_bytes(transients, "little").bit_count()
            else:
                seqs = self.ready_on_disk(start, stop)
                count = len(seqs)
            if n < count:
                return (self.ready_on_disk(start, stop) if seqs is None else seqs)[-1 - n]
            n -= count
            stop = start

    def ready_on_disk(self, start: int, stop: int) -> list[int]:
        """Return the seqs of [start, stop), of one segment within delta, that are alive and not
        pending, leased or set aside, ascending."""
        seqs = self.index.ready_between(start, stop)
        if self.delta_transients:
            transients = self.transients_between(start, stop)
            if transients:
                seqs = sorted(seqs + transients) if seqs else transients
        ram, aside = self.ram_pending, self.set_aside
        if self.disk_pending.count or aside or not ram.keys().isdisjoint(seqs):
            paged = set(self.disk_pending.seqs_between(start, stop))
            seqs = [s for s in seqs if s not in ram and s not in paged and s not in aside]
        if self.in_hand:
            seqs = [s for s in seqs if s not in self.in_hand]
        return seqs

    def ids(self) -> tuple[list[int], list[int], list[int], list[int], list[int]]:
        """Return the seqs of q4 with back and back_rows, q3, delta, q2, q1."""
        head = sorted([*[e.seq for e in self.q4], *self.back, *self.back_rows.seqs()])
        return (
            head, self.q3.seqs(), self.delta_seqs(), self.q2.seqs(), [e.seq for e in self.q1],
        )  # fmt: skip

    def info(self) -> dict[str, int | float | str]:
        """Return the counters of BackingQueue.info."""
        parts = (self.q2, self.q3, self.back_rows)
        betas = sum([part.count_without(ON_SLOT) for part in parts])
        rows = sum([part.count for part in parts])
        rates = self.rates
        leased = self.index.leased
        return {
            "len": self.len,
            "depth": self.len + len(self.ram_pending) + self.disk_pending.count + leased.count,
            "bytes": self.bytes,
            "unacked_bytes": self.unacked_bytes + leased.bytes,
            "ram_bytes": self.ram_bytes(),
            "ram_messages": self.ram_messages() + len(self.ram_pending),
            "alphas": self.ram_messages(),
            "betas": betas,
            "gammas": rows - betas,
            "delta": self.delta.count,
            "pending": len(self.ram_pending) + self.disk_pending.count,
            "paged_pending": self.disk_pending.count,
            "leased": leased.count,
            "leased_bytes": leased.bytes,
            "set_aside": len(self.set_aside),
            "q1": len(self.q1),
            "q2": self.q2.count,
            "q3": self.q3.count,
            "q4": len(self.q4) + len(self.back) + self.back_rows.count,
            "alpha_bytes": self.alpha_bytes + self.pending_bytes - self.shared.elsewhere_bytes,
            "elsewhere_bytes": self.shared.elsewhere_bytes,
            "reading_bytes": self.reading_bytes,
            "row_bytes": rows * ROW_BYTES + self.disk_pending.ram_bytes,
            "is_flowed": self.is_flowed,
            "target_bytes": self.target_bytes,
            "disk_reads": self.disk_reads,
            "disk_writes": self.disk_writes,
            "in_per_s": rates.in_,
            "out_per_s": rates.out,
            "ack_in_per_s": rates.ack_in,
            "ack_out_per_s": rates.ack_out,
            "mode": "lazy" if self.is_lazy else "default",
        }

    def check_call(self) -> None:
        """Check after a call, if it is due. Raises AssertionError."""
        if CHECKS.is_due(self.len + len(self.ram_pending) + self.disk_pending.count):
            self.check()

    def check(self) -> None:
        """Raise AssertionError with the invariant that does not hold. O(n), for tests."""
        q4, q3, delta, q2, q1 = self.ids()
        if self.is_lazy:
            assert not [*q1, *q2, *q4], "lazy: all is in q3 and delta"
        elif self.read_error is None:
            assert not q1 or q3, "[V1] q1 holds messages, q3 does not"
            assert not q2 or self.delta.count, "[V2] q2 holds messages, delta does not"
            assert not self.delta.count or q3, "[V3] delta holds messages, q3 does not"
            assert (self.len == 0) == (not q3 and not q4), "[V4] empty <=> q3 and q4 are"
        order = [*q4, *q3, *delta, *q2, *q1]
        assert len(order) == len(set(order)), f"[V5] ready twice: {self.ids()}"
        assert self.lift_below or order == sorted(order), f"[V5] not in order: {self.ids()}"
        alone = [e.seq for e in self.q4]
        assert alone == sorted(alone), f"[V5] q4 is not in order: {alone}"
        assert sorted(self.back_order) == sorted(self.back), "[V8] back and its heap differ"
        assert self.has_back or not (self.back or self.back_rows.count), "[V8] has_back"
        pending = {*self.ram_pending, *self.disk_pending.seqs()}
        assert len(pending) == len(self.ram_pending) + self.disk_pending.count, "[V5] pending twice"
        assert pending.isdisjoint(order), "[V5] ready and pending"
        leased = [seq for seq in (*pending, *order) if self.index.leased.has(seq)]
        assert not leased, f"[V5] leased, and ready or pending: {leased}"
        d = self.delta
        assert d.start + d.count <= d.end, f"[V6] delta {d.start} + {d.count} > {d.end}"
        assert len(delta) == d.count, f"[V6] delta counts {d.count}, the index has {len(delta)}"
        assert self.len == len(order), f"[V7] len {self.len}, there are {len(order)}"
        held_ready = [*self.q1, *self.q4, *self.back.values()]
        alphas = sum(alpha_bytes(e.message) for e in held_ready)
        assert self.alpha_bytes == alphas, f"[V7] alpha bytes {self.alpha_bytes}, {alphas}"
        in_q1 = sum(alpha_bytes(e.message) for e in self.q1)
        assert self.q1_bytes == in_q1, f"[V7] q1 bytes {self.q1_bytes}, there are {in_q1}"
        held = sum(alpha_bytes(e.message) for e in self.ram_pending.values())
        assert self.pending_bytes == held, f"[V7] pending bytes {self.pending_bytes}, {held}"
        self._check_shared()
        unacked = sum(e.message.size for e in self.ram_pending.values())
        unacked += self._check_paged()
        assert self.unacked_bytes == unacked, f"[V7] unacked {self.unacked_bytes}, {unacked}"
        known = sum(e.message.size for e in held_ready)
        parts = (self.q2, self.q3, self.back_rows)
        known += sum(row.size for rows in parts for row in rows.rows())
        assert self.bytes >= known, f"[V7] ready bytes {self.bytes}, in RAM {known}"
        assert self.delta.count or self.bytes == known, f"[V7] ready bytes {self.bytes}, {known}"
        for seq in order:
            assert seq < self.index.next_seq, f"seq {seq} was never given"
        is_out = q3 or delta or self.disk_pending.count or self.back_rows.count
        # What others count may have become more since this queue last looked: the next tick does.
        is_low = self.ram_bytes() + self.shared.elsewhere_bytes <= low_mark(self.target_bytes)
        assert not self.is_flowed or is_out or not is_low, "not recovered"

    def _check_paged(self) -> int:
        """Check the counters of disk_pending. Return the bytes of its bodies."""
        paged = self.disk_pending
        rows = [*paged.near.rows(), *paged.window.rows()]
        seqs = paged.seqs()
        assert len(seqs) == len(set(seqs)) == paged.count, "[V7] paged pending messages"
        assert paged.count == len(rows) + paged.far_count, "[V7] far pending messages"
        assert all(row.flags & ON_SLOT for row in paged.window.rows()), "[V7] not on a slot"
        far_bytes = sum(paged.far_bytes(number) for number in paged.segments())
        return sum(row.size for row in rows) + far_bytes

    def _check_shared(self) -> None:
        messages = [entry.message for entry in self.in_ram()]
        bodies = [m.shared for m in messages if isinstance(m, SharedMessage)]
        mine = self.shared
        assert mine.count == len(bodies), (
            f"[V9] {mine.count} shared bodies, there are {len(bodies)}"
        )
        counted = 0
        many = Counter([id(shared) for shared in bodies])
        for shared in {id(shared): shared for shared in bodies}.values():
            times = many[id(shared)]
            assert shared.times(mine) == times, (
                f"[V9] joined {shared.times(mine)} times, not {times}"
            )
            counted += shared.counted_bytes(mine)
        elsewhere = sum(len(shared.body) for shared in bodies) - counted
        assert mine.elsewhere_bytes == elsewhere, f"[V9] {mine.elsewhere_bytes}, not {elsewhere}"
