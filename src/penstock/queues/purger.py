"""Purger: moves messages out of RAM, from the tail of a queue towards its head, in small steps.

Qpid's Flow to Disk Design has a Purger thread that walks a queue that is over its limit; RabbitMQ
pages in bursts of thousands, which is the cliff that its users know. Here it is a step that each
publish takes a little of: at most four messages, and none after the one that passes 64 KiB; what is
left over is done by `resume` in slices of 256.

The order is RabbitMQ's: alphas of q1 from the front, then those of q4 from the rear, become betas;
between the two those that came back (vq_requeue.py), in any order, for they stay among q4's seqs;
betas that are too many are rolled into delta, q3 from its rear down to the first segment border
behind its head, then q2 from its front. How many betas may stay is its ratio,

    delta / (betas + delta) = (betas + delta) / (target + betas + delta)

with one segment at least. With the policy of its essay of 2011 (`eager`) a gamma at the rear of q3
or at the front of q2 is rolled at once, whatever the ratio. Pending messages are paged out too, the
largest seq first, and before the alphas when more of them are coming than going.

A queue that is *flowed*, over its limit and not yet wholly back in RAM, sends what arrives straight
to delta, as Qpid's design says, so that all of its RAM is for the head. It is written in fours: q1
holds what has come, and one write takes all of it. Once all of it would fit in RAM again what
arrives stays there: the Inhaler reads back the rest, and then the queue is not flowed any more.

Rows that are too many go before alphas do, or an index would fill the RAM of the queue's head. A
gamma costs no write to roll and does not count as paged out; a beta gets its slot written, for
which a step uses at most half of its messages. That there are too many is a reason to go on with
paging, not to begin: a queue that drains will read its betas soon, and to give them slots now would
be writing for nothing.

Writing needs no order with the log and no sync: slots and bodies are data, never evidence [1]. A
write that fails leaves everything where it was and is raised to the caller, the VariableQueue,
which tells its owner and goes on in RAM.
"""

from collections import deque
from heapq import heapify, heappop
from typing import Final

from penstock.message import Entry, seq_of
from penstock.queues import inhaler
from penstock.queues.backing_queue import UNLIMITED
from penstock.queues.rows import (
    AT_ENTRY,
    AT_STORE,
    HAS_ENTRY,
    IN_STORE,
    ON_SLOT,
    PERSISTENT,
    ROW_BYTES,
    Row,
)
from penstock.queues.vq_state import ALPHA_BYTES, VQState, alpha_bytes
from penstock.storage.queue_segment import HAS_ENTRY as SLOT_HAS_ENTRY
from penstock.storage.queue_segment import LONG_HEADER, Slot

PUBLISH_MESSAGES: Final = 4  # paged out by one publish besides its own, at most
PUBLISH_BYTES: Final = 64 << 10  # and no more after the one that passes this
SLICE_MESSAGES: Final = 256  # of `resume`
SLICE_BYTES: Final = 1 << 20
ROLL_ROWS: Final = 256  # gammas that one step rolls into delta: nothing is written for them


def is_over(state: VQState) -> bool:
    """Whether there is anything to page out."""
    if state.becomes_lazy or state.ram_bytes() > state.target_bytes:
        return True
    return state.is_flowed and _is_batch(state) and not state.fits()


def _is_batch(state: VQState) -> bool:
    return len(state.q1) >= PUBLISH_MESSAGES or state.q1_bytes >= PUBLISH_BYTES


def step(state: VQState, messages: int, bytes_max: int) -> bool:
    """Page out until the target is met, at most so many messages, and none after the one with which
    the bytes are passed. True if there is more to do. OSError: nothing has changed place."""
    written = _Step(state, messages, bytes_max)
    if state.becomes_lazy:
        return _step_to_lazy(state, written)
    has_rolled = written.roll(messages // 2)
    is_due = written.excess() > 0 or (_is_batch(state) and not state.fits())
    if is_due and state.is_flowed and state.q1:
        written.note(
            push_q1(state, written.messages, bytes_max=written.bytes_left(), goes_on=state.eager)
        )
    acks_first = _acks_grow(state)
    for turn in range(2):
        if written.excess() > 0 and written.messages > 0:
            wanted = written.wanted()
            unused = written.messages - wanted
            if acks_first == (turn == 0):
                left = push_pending(state, wanted, written.bytes_left())
            else:
                left = push_alphas_to_betas(state, wanted, bytes_max=written.bytes_left())
            written.note(unused + left)
    if written.roll(written.messages):
        has_rolled = True
    return is_over(state) and (written.has_moved or has_rolled)


class _Step:
    """What is left of the quota of one step."""

    def __init__(self, state: VQState, messages: int, bytes_max: int) -> None:
        self._state = state
        self._bytes_before: int = state.alpha_bytes + state.pending_bytes
        self._bytes_max: int = bytes_max
        self.messages: int = messages
        self.has_moved: bool = False

    def excess(self) -> int:
        """Bytes over the target."""
        return self._state.ram_bytes() - self._state.target_bytes

    def wanted(self) -> int:
        """Messages to page out: what the excess is on average, and four more, so that the next few
        publishes have room and paging goes in fours."""
        state = self._state
        average = state.ram_average() or ALPHA_BYTES
        return min(self.messages, self.excess() // average + PUBLISH_MESSAGES)

    def bytes_left(self) -> int:
        """Of the bytes of this step."""
        moved = self._bytes_before - self._state.alpha_bytes - self._state.pending_bytes
        return self._bytes_max - moved

    def roll(self, writes: int) -> bool:
        """Roll what are too many rows; so many slots may be written. True if any was rolled."""
        state = self._state
        before = state.delta.count
        self.messages -= roll(state, writes)
        return state.delta.count > before

    def note(self, left: int) -> None:
        """`left` of the messages are left."""
        self.has_moved = self.has_moved or left < self.messages
        self.messages = left if self.bytes_left() > 0 else 0


def make_room(state: VQState, room_bytes: int) -> None:
    """Page out pending messages until so many bytes are free below the target, or none is left in
    RAM: a consumer that holds many must not make each read a read of one message."""
    while state.ram_pending and state.ram_bytes() + room_bytes > state.target_bytes:
        push_pending(state, SLICE_MESSAGES, SLICE_BYTES)


def _acks_grow(state: VQState) -> bool:
    rates = state.rates
    return rates.ack_in - rates.ack_out > rates.in_ - rates.out


# ---- alphas to betas -----------------------------------------------------------------------------


def push_alphas_to_betas(
    state: VQState, quota: int, target: int = 0, *, bytes_max: int = UNLIMITED
) -> int:
    """RabbitMQ's composite: one quota, q1 first, then q4, until `target` alphas are left. What is
    left of the quota."""
    left = min(quota, max(0, state.ram_messages() - target))
    unused = quota - left
    before = state.alpha_bytes
    left = push_q1(state, left, bytes_max=bytes_max)
    if left and state.back:
        left = push_back(state, left, bytes_max=bytes_max - (before - state.alpha_bytes))
    if left:
        left = push_q4(state, left, bytes_max=bytes_max - (before - state.alpha_bytes))
    return left + unused


def push_q1(
    state: VQState, quota: int, *, bytes_max: int = UNLIMITED, goes_on: bool = False
) -> int:
    """q1 from its front to the rear of q2, or of q3 if delta is empty; with `goes_on` straight into
    delta, if they are gammas and nothing is between. What is left of the quota; 0 once the bytes
    are passed."""
    rows, left = _page_out_q1(state, quota, bytes_max)
    if goes_on and state.delta.count and not state.q2.count and _are_gammas(rows):
        roll_rows(state, rows)
        return left
    behind = state.q2 if state.delta.count else state.q3
    for row in rows:
        behind.append(row)
    return left


def _are_gammas(rows: list[Row]) -> bool:
    return all(row.flags & ON_SLOT for row in rows)


def push_back(state: VQState, quota: int, *, bytes_max: int = UNLIMITED) -> int:
    """What came back and is in RAM becomes rows, which still stand beside q4. What is left of the
    quota; 0 once the bytes are passed."""
    taken: list[Entry] = []
    moved = 0
    order = state.back_order
    while quota > 0 and order and moved < bytes_max:
        entry = state.back.pop(order.pop())  # a heap without its last place is a heap
        taken.append(entry)
        moved += alpha_bytes(entry.message)
        quota -= 1
    taken.sort(key=seq_of)
    try:
        rows = page_out(state, taken)
    except BaseException:
        for entry in taken:
            state.back[entry.seq] = entry
            order.append(entry.seq)
        heapify(order)
        raise
    state.alpha_bytes -= moved
    for row in rows:
        state.back_rows.insert(row)
    return quota if moved < bytes_max else 0


def push_q4(state: VQState, quota: int, *, bytes_max: int = UNLIMITED) -> int:
    """q4 from its rear to the front of q3, and the rows beside it that come after what is left of
    it; nothing is in `back`. What is left of the quota; 0 once the bytes are passed."""
    if not state.q4:
        return quota
    taken, moved, left = _take(state.q4, quota, bytes_max, from_rear=True)
    try:
        rows = page_out(state, taken)
    except BaseException:
        state.q4.extend(taken)
        raise
    state.alpha_bytes -= moved
    if state.back_rows.count and state.back_rows.last_seq() > rows[0].seq:
        state.back_rows.move_above(rows[0].seq, state.q3)
    for row in reversed(rows):
        state.q3.insert(row)
    return left


def _take(
    alphas: deque[Entry], quota: int, bytes_max: int, *, from_rear: bool
) -> tuple[list[Entry], int, int]:
    """Entries from one end, ascending; the bytes they are counted for; what is left of the quota, 0
    once the bytes are passed."""
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


def _page_out_q1(state: VQState, quota: int, bytes_max: int) -> tuple[list[Row], int]:
    """The front of q1, as rows, and what is left of the quota."""
    taken, moved, left = _take(state.q1, quota, bytes_max, from_rear=False)
    try:
        rows = page_out(state, taken)
    except BaseException:
        state.q1.extendleft(reversed(taken))
        raise
    state.alpha_bytes -= moved
    state.q1_bytes -= moved
    return rows, left


def push_pending(state: VQState, quota: int, bytes_max: int = UNLIMITED) -> int:
    """Pending messages, the largest seq first, become rows. What is left of the quota."""
    taken: list[Entry] = []
    moved = 0
    while quota > 0 and state.ram_pending and moved < bytes_max:
        entry = _largest_pending(state)
        taken.append(entry)
        moved += alpha_bytes(entry.message)
        quota -= 1
    taken.reverse()
    try:
        rows = page_out(state, taken)
    except BaseException:
        for entry in taken:
            state.ram_pending[entry.seq] = entry
        state.pending_order = None
        raise
    state.pending_bytes -= moved
    for row in rows:
        state.disk_pending.insert(row)
    return quota if moved < bytes_max else 0


def _largest_pending(state: VQState) -> Entry:
    order = state.pending_order
    if order is None or len(order) > 2 * len(state.ram_pending) + 64:
        order = [-seq for seq in state.ram_pending]
        heapify(order)
        state.pending_order = order
    while True:
        entry = state.ram_pending.pop(-heappop(order), None)
        if entry is not None:
            return entry


# ---- writing -------------------------------------------------------------------------------------


def page_out(state: VQState, entries: list[Entry]) -> list[Row]:
    """See to it that entries, ascending, are on disk, and give their rows. What is there already, a
    slot or a section of the checkpoint, is not written again. OSError: they stay as they are."""
    index = state.index
    section = index.section
    fresh: list[Entry] = []
    bodies: list[Entry] = []
    for entry in entries:
        if entry.on_slot:
            continue
        message = entry.message
        if message.persistent:
            if entry.seq not in section:
                fresh.append(entry)
        elif message.store_file:
            fresh.append(entry)
        elif entry.seq not in state.places and (message.header or message.size):
            bodies.append(entry)
    written: dict[int, int] = {}
    if fresh:
        places: list[int] = []
        index.write(fresh, places)
        state.disk_writes += len(fresh)
        for entry, place in zip(fresh, places, strict=True):
            entry.on_slot = True
            if place:
                written[entry.seq] = place
            if not entry.message.persistent:
                index.keep_transients(entry.seq // index.slots, 1)
    if bodies:
        _write_bodies(state, bodies)
    rows = [_row(state, entry, written.get(entry.seq, 0)) for entry in entries]
    state.leave(entries)
    return rows


def _write_bodies(state: VQState, entries: list[Entry]) -> None:
    """Bodies of transient messages, without slots."""
    index = state.index
    start = 0
    for i in range(1, len(entries) + 1):
        number = entries[start].seq // index.slots
        if i == len(entries) or entries[i].seq // index.slots != number:
            places = index.write_bodies(entries[start:i])
            for entry, place in zip(entries[start:i], places, strict=True):
                state.places[entry.seq] = place
            index.keep_transients(number, i - start)
            state.disk_writes += i - start
            start = i


def _row(state: VQState, entry: Entry, known: int) -> Row:
    """known: the position of its entry in .qs, if that was written just now."""
    message = entry.message
    flags = 0
    place = 0
    length = len(message.header)
    if length > LONG_HEADER:
        length = LONG_HEADER
    if message.persistent:
        flags = PERSISTENT | ON_SLOT
    elif entry.on_slot:
        flags = ON_SLOT
    if message.store_file:
        flags |= IN_STORE | AT_STORE
        place = message.store_file
        if length:
            flags |= HAS_ENTRY
    elif length or message.size:
        flags |= HAS_ENTRY
        if not known:
            known = state.places.pop(entry.seq, 0)
        if known:
            flags |= AT_ENTRY
            place = known
    return Row(
        entry.seq, flags, message.id, message.size, place, message.expiry_ms, length, message.time
    )


# ---- betas to delta ------------------------------------------------------------------------------


def permitted_betas(state: VQState, target: int, segment: int) -> int:
    """How many betas and gammas may stay rows with `target` alphas in RAM; at least one segment
    (rows), of what there is."""
    if not state.len:
        return UNLIMITED
    if not target:
        return min(state.q3.count, segment)
    d = state.len - state.ram_messages()
    return max(segment, d - d * d // (d + target))


def segment_rows(state: VQState) -> int:
    """Rows that one load brings, and that may always stay: a segment, or what a quarter of a small
    target holds."""
    return min(state.index.slots, max(16, state.target_bytes // (4 * ROW_BYTES)))


def load_rows(state: VQState) -> int:
    """Rows that stand in q3 for what is in delta: a few, where a fetch reads on from the slots
    themselves; else a segment, as in variable_queue.md."""
    return inhaler.FEW_ROWS if state.reads_runs else segment_rows(state)


def roll(state: VQState, writes: int) -> int:
    """Roll what are too many betas into delta; `writes`: slots that may be written for it. How many
    were."""
    if state.target_bytes >= UNLIMITED and not state.eager:
        return 0
    state.join_rows()
    if state.eager:
        _roll_gammas(state, ROLL_ROWS)
    over = _too_many_rows(state)
    return push_betas_to_deltas(state, min(over, ROLL_ROWS), writes) if over > 0 else 0


def _too_many_rows(state: VQState) -> int:
    """How many rows of q2 and q3 the ratio does not permit; 0 or less: none."""
    rows = state.q2.count + state.q3.count
    if not rows:
        return 0
    target = state.target_bytes // state.average_bytes()
    return rows - permitted_betas(state, target, segment_rows(state))


def _border(state: VQState) -> int:
    """Below this q3 is never rolled: the segment border behind its head, or, if a small target
    allows fewer rows than a segment has, as many behind its head."""
    first = state.q3.first_seq()
    border = state.segment_end(first)
    if state.target_bytes < UNLIMITED:
        border = min(border, first + segment_rows(state))
    return border


def push_betas_to_deltas(state: VQState, quota: int, writes: int = UNLIMITED) -> int:
    """q3 from its rear, never below the segment border behind its head, then q2 from its front;
    `writes`: how many of them may need a slot written. How many did."""
    q3, q2 = state.q3, state.q2
    written = 0
    if q3.count:
        border = _border(state)
        taken: list[Row] = []
        while quota > 0 and q3.count and q3.last_seq() >= border:
            if not q3.last().flags & ON_SLOT:
                if written == writes:
                    break
                written += 1
            taken.append(q3.pop_last())
            quota -= 1
        taken.reverse()
        roll_rows(state, taken)
    taken = []
    while quota > 0 and q2.count:
        if not q2.first().flags & ON_SLOT:
            if written == writes:
                break
            written += 1
        taken.append(q2.pop_first())
        quota -= 1
    roll_rows(state, taken)
    return written


def _roll_gammas(state: VQState, quota: int) -> None:
    """The policy of 2011: gammas at the rear of q3, above the border, and at the front of q2."""
    q3, q2 = state.q3, state.q2
    if q3.count:
        border = _border(state)
        taken: list[Row] = []
        while quota > 0 and q3.count and q3.last_seq() >= border and q3.last().flags & ON_SLOT:
            taken.append(q3.pop_last())
            quota -= 1
        taken.reverse()
        roll_rows(state, taken)
    taken = []
    while quota > 0 and q2.count and q2.first().flags & ON_SLOT:
        taken.append(q2.pop_first())
        quota -= 1
    roll_rows(state, taken)


def roll_rows(state: VQState, rows: list[Row]) -> None:
    """Rows, ascending, become part of delta; transient betas get their slots. OSError cannot leave
    them nowhere: they go to the side of delta that they are on."""
    if not rows:
        return
    try:
        _write_missing_slots(state, [row for row in rows if not row.flags & ON_SLOT])
    except OSError:
        for row in rows:
            if row.flags & ON_SLOT:
                _add_to_delta(state, row)
        _put_back(state, [row for row in rows if not row.flags & ON_SLOT])
        raise
    for row in rows:
        _add_to_delta(state, row)


def _add_to_delta(state: VQState, row: Row) -> None:
    if not row.flags & PERSISTENT:
        state.mark_transient(row.seq)
    state.delta.add(row.seq)
    state.in_hand.discard(row.seq)


def _put_back(state: VQState, rows: list[Row]) -> None:
    """Rows without slots stay rows, on the side of delta that they are on."""
    if not state.delta.count or rows[-1].seq < state.delta.start:
        for row in rows:
            state.q3.append(row)
    elif rows[0].seq >= state.delta.end:
        for row in reversed(rows):
            state.q2.append_left(row)
    else:  # requeued, between what is in delta: that far delta becomes q3
        while state.delta.count and state.delta.start <= rows[-1].seq:
            inhaler.load_segment(state, state.index.slots)
        for row in rows:
            state.q3.insert(row)


def _write_missing_slots(state: VQState, rows: list[Row]) -> None:
    index = state.index
    slots: list[Slot] = []
    for row in rows:
        flags = SLOT_HAS_ENTRY if row.flags & HAS_ENTRY else 0
        slot = Slot(
            row.seq, flags, row.header_len, row.size, row.id, row.expiry_ms, row.place, row.time
        )
        if slots and slots[0].seq // index.slots != row.seq // index.slots:
            index.write_slots(slots)
            slots = []
        slots.append(slot)
    if slots:
        index.write_slots(slots)
    state.disk_writes += len(rows)
    for row in rows:
        if not row.flags & HAS_ENTRY:  # nothing of it was in the segment's files until now
            index.keep_transients(row.seq // index.slots, 1)


# ---- lazy ----------------------------------------------------------------------------------------


def _step_to_lazy(state: VQState, written: _Step) -> bool:
    """Everything in RAM on its way into q3 and delta; the last step makes the queue lazy."""
    written.note(push_alphas_to_betas(state, written.messages, bytes_max=written.bytes_left()))
    state.join_rows()
    if state.q2.count:
        push_betas_to_deltas(state, ROLL_ROWS)
    if state.ram_messages() or state.q2.count:
        return True
    state.becomes_lazy = False
    state.is_lazy = True
    return False
