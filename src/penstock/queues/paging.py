"""Paging: moves messages of a VariableQueue out of RAM and back: limits, Purger, Inhaler.

**When.** The target in bytes is the smallest of three: the queue's own maximum (Qpid's
queueMaxMemory), its share of the whole budget, and the bytes of the messages that last for the
duration target at the present rates (RabbitMQ's memory monitor). A queue that passes its target is
*flowed* until all of it is back in RAM and takes no more than the low mark, 7/8 of the target; the
events "flowed" and "recovered" report both.

The Inhaler begins when less than the minimum is in RAM (for a queue without limits of its own: the
low mark), or when the whole queue would fit, with a 128th of the target to spare. It goes on,
several reads at a time, up to the high mark (15/16), or until nothing is out if all of it fits. It
begins when somebody consumes, and in each tick of a flowed queue, so a queue comes back without
consumers too. While all is in RAM and below the target nothing moves in either direction: a load
that goes up and down there costs nothing, and one that goes beyond it moves only what is beyond it.
A message that was read back is still on disk and is not written again.

While the engine refuses publishers for want of space nothing is paged out, nor for a second after a
page-out failed. One event reports that.

**Purger.** It moves messages out of RAM, from the tail of a queue towards its head, in small steps.
Qpid's Flow to Disk Design has a Purger thread that walks a queue that is over its limit. RabbitMQ
pages in bursts of thousands, which its users know as a cliff. Here each publish does a small step:
at most one message for each MiB of the target, between 4 and 32, and none after the one that passes
64 KiB. `resume` does the rest in slices of 256.

The order is RabbitMQ's: alphas of q1 from the front, then those of q4 from the rear, become betas;
between these two come the requeued alphas, in any order, because their seqs are among q4's. Betas
that are too many are rolled into delta: q3 from its rear down to the first segment border after its
head, then q2 from its front. The ratio decides how many betas may stay,

    delta / (betas + delta) = (betas + delta) / (target + betas + delta)

at least one segment. With the policy of RabbitMQ's essay of 2011 (`eager`) a gamma at the rear of
q3 or at the front of q2 is rolled at once, whatever the ratio. With the policy of the worked
example in variable_queue.md (`even`) q1 and q4 give as many alphas each; rows are rolled only if
the queue is over its limit by less than what an alpha would free; what arrives waits in q1 until
the limit is passed; and no step takes more than it needs. Pending messages are paged out too,
the largest seq first, and before the alphas while more of them arrive than leave.

A flowed queue writes what arrives straight to delta, as Qpid's design says, so that its RAM is for
the head. It writes a step at a time: q1 holds what has arrived, and one write takes all of it. As
soon as the whole queue would fit in RAM again, arrivals stay there, and the Inhaler reads the rest.

Rows that are too many go before alphas do, or an index would fill the RAM of the queue's head. A
gamma costs no write to roll and does not count as paged out. A beta gets its slot written; a step
uses at most half of its messages for that. Too many rows are a reason to continue paging, not to
begin: a queue that drains will soon read its betas, and slots for them would be wasted writes. But
rows that take more than half of the target, as after a requeue of many, leave no room for the head
and are rolled in any case.

**One turn** of a vhost's loop pages out PAGE_OUT_MAX (engine.py: 2,048 messages or 8 MiB) and the
slice that passes it, whatever number of queues is over its limit or delivers; ticks that follow one
another do the rest. What publishes page out counts, too, but is not refused, nor is one message for
each delivery, because RAM would grow by what they bring; how many there are in a turn is bounded
where they come from.

Writing needs no order with the log and no sync: slots and bodies are data, never evidence [1]. A
write that fails leaves everything where it was and raises to the VariableQueue, which reports it
and goes on in RAM.

**Inhaler.** In RabbitMQ's queue only a fetch brings messages back, one body per read. Qpid's design
has an Inhaler that reads ahead from a minimum to a maximum. Here a fetch on an empty q4 reads a run
of bodies at once (up to 256 KiB that lie one after the other, as far as there is room), and `begin`
submits up to three such reads for a queue with a waiting consumer, or for one that is no longer
over its limit; `_arrived` takes the results in order. A worker reads bodies alone: those of one .qs
with one read, those in the store with one for each row of neighbours. Where they are is looked up
before (slots, entries with the headers of stored bodies, tables of the store, all small). What a
run will take in RAM is counted from then on.

    delta -> q4              `deltas_to_alphas`: a run that takes all of q3 goes on from the slots,
                             and q3 gets the rows of a few more of the same read
    delta -> q3              `deltas_to_betas`: the slots of one segment become rows; when delta is
                             empty, q2 joins q3
    q3 -> q4                 `betas_to_alphas`: a run of bodies
    back_rows -> q4, back    `back_to_alphas`: the same for requeued messages
    q1 -> q4                 `settle`: q3 and everything after it is empty

An entry whose slot or body fails its check is set aside: it is not delivered, it is counted, an
event names file and position, and the next message is delivered. It stays alive, so that its bytes
are there for `penstock store salvage`. After a restart it is tried again.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from heapq import heapify, heappop
from typing import Final

from penstock.clock import Clock
from penstock.errors import CorruptionError, SyncFailedError
from penstock.message import LARGE_FROM, Entry, QueuedMessage, is_large, seq_of
from penstock.queues.backing_queue import UNLIMITED
from penstock.queues.queue_ram import (
    ALPHA_BYTES,
    STEP_MESSAGES_MIN,
    QueueRam,
    alpha_bytes,
    high_mark,
    low_mark,
    step_messages,
    take_alphas,
)
from penstock.queues.rows import (
    AT_ENTRY,
    AT_STORE,
    BLOCK_SEQS,
    HAS_ENTRY,
    IN_STORE,
    ON_SLOT,
    PERSISTENT,
    ROW_BYTES,
    Row,
    Rows,
    seq_of_row,
)
from penstock.storage.files.data_directory import queue_title
from penstock.storage.files.filesystem import FileSystem
from penstock.storage.index import queue_segment
from penstock.storage.index.queue_segment import HAS_ENTRY as SLOT_HAS_ENTRY
from penstock.storage.index.queue_segment import IN_STORE as SLOT_IN_STORE
from penstock.storage.index.queue_segment import LONG_HEADER, PREFIX_BYTES, SegmentFiles, Slot
from penstock.storage.store.store_file import StoreRecord, read_records

PUBLISH_MESSAGES: Final = STEP_MESSAGES_MIN  # paged out by one fetch, at most
PUBLISH_BYTES: Final = 64 << 10  # by one fetch or publish: no more after the one that passes this
SLICE_MESSAGES: Final = 256  # of `resume`
SLICE_BYTES: Final = 1 << 20
ALONE: Final = 16  # pending messages at once whose rows are read without neighbours
SPAN_SLOTS: Final = 4096  # that one read for them may have, 256 KiB
PENDING_BLOCK: Final = 512  # seqs of pending messages whose slots are read for a walk over all
ROLL_ROWS: Final = 256  # gammas that one step rolls into delta: nothing is written for them


def is_over(state: QueueRam) -> bool:
    """Return whether there is anything to page out."""
    if state.becomes_lazy or state.ram_bytes() > state.target_bytes:
        return True
    if not state.is_flowed or state.is_even:
        return False
    rows_bytes = (state.q2.count + state.q3.count) * ROW_BYTES
    if rows_bytes > state.target_bytes >> 1 and _too_many_rows(state) > 0:
        return True  # they have the room of the head, after a requeue of many
    return _is_batch(state) and not state.fits()


def _is_batch(state: QueueRam) -> bool:
    return len(state.q1) >= state.step_messages or state.q1_bytes >= PUBLISH_BYTES


def step(state: QueueRam, messages: int, bytes_max: int) -> bool:
    """Page out until the target is met, at most so many messages, and none after the one that
    passes bytes_max. Return True if there is more to do. Raises OSError: nothing has moved."""
    written = _Step(state, messages, bytes_max)
    if state.becomes_lazy:
        return _step_to_lazy(state, written)
    has_rolled = written.roll(messages // 2)
    is_beyond = written.excess() > 0 and not state.is_even
    is_due = is_beyond or (_is_batch(state) and not state.fits())
    if is_due and state.is_flowed and state.q1 and not state.is_even:
        written.note(
            push_q1(state, written.messages, bytes_max=written.bytes_left(), goes_on=state.eager)
        )
    acks_first = _acks_grow(state)
    for turn in range(2):
        if written.messages > 0 and (written.excess() > 0 or (is_beyond and written.is_tight())):
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
    """The remaining quota of one step."""

    def __init__(self, state: QueueRam, messages: int, bytes_max: int) -> None:
        self._state = state
        self._bytes_before: int = state.alpha_bytes + state.pending_bytes
        self._bytes_max: int = bytes_max
        self.messages: int = messages
        self.has_moved: bool = False

    def excess(self) -> int:
        """Return the bytes over the target."""
        return self._state.ram_bytes() - self._state.target_bytes

    def wanted(self) -> int:
        """Return how many messages to page out: the excess by their average size, and as many as a
        publish may, so that the next few have room and one write takes as many."""
        state = self._state
        average = state.ram_average() or ALPHA_BYTES
        if state.is_even:
            return min(self.messages, -(-self.excess() // (average - ROW_BYTES)))
        return min(self.messages, self.excess() // average + state.step_messages)

    def is_tight(self) -> bool:
        """Return whether there is no room for half of what one write takes. What arrives fills as
        much as the last step has freed, so the writes would stay small. False for a small target,
        whose head would shrink by as much."""
        state = self._state
        half = state.step_messages >> 1
        average = state.ram_average() or ALPHA_BYTES
        return state.step_messages > STEP_MESSAGES_MIN and self.excess() + half * average > 0

    def bytes_left(self) -> int:
        """Return the bytes left in this step's quota."""
        moved = self._bytes_before - self._state.alpha_bytes - self._state.pending_bytes
        return self._bytes_max - moved

    def roll(self, writes: int) -> bool:
        """Roll rows that are too many, writing at most so many slots. Return whether any was
        rolled."""
        state = self._state
        before = state.delta.count
        self.messages -= roll(state, writes)
        return state.delta.count > before

    def note(self, left: int) -> None:
        """Set how many messages of the quota are left."""
        self.has_moved = self.has_moved or left < self.messages
        self.messages = left if self.bytes_left() > 0 else 0


def make_room(state: QueueRam, room_bytes: int) -> None:
    """Page out pending messages until so many bytes are free below the target, or none is left in
    RAM. Otherwise a consumer with many pending messages would make each read a read of one message.
    Beyond what this turn may, there is room for one run: no more are paged out for it than the
    fetches of its messages would page out one by one."""
    while state.ram_pending and state.ram_bytes() + room_bytes > state.target_bytes:
        if state.engine.page_out_left > 0:
            push_pending(state, SLICE_MESSAGES, SLICE_BYTES)
        else:
            missing = state.ram_bytes() + room_bytes - state.target_bytes
            push_pending(state, SLICE_MESSAGES, missing)
            return


def _acks_grow(state: QueueRam) -> bool:
    rates = state.rates
    return rates.ack_in - rates.ack_out > rates.in_ - rates.out


# ---- alphas to betas -----------------------------------------------------------------------------


def push_alphas_to_betas(state: QueueRam, quota: int, *, bytes_max: int = UNLIMITED) -> int:
    """Page out q1 first, then back and q4. Return what is left of the quota."""
    left = min(quota, state.ram_messages())
    unused = quota - left
    before = state.alpha_bytes
    of_q1 = (left + 1) // 2 if state.is_even else left
    left += push_q1(state, of_q1, bytes_max=bytes_max) - of_q1
    if before - state.alpha_bytes >= bytes_max:
        return unused
    if left and state.back:
        left = push_back(state, left, bytes_max=bytes_max - (before - state.alpha_bytes))
    if left:
        left = push_q4(state, left, bytes_max=bytes_max - (before - state.alpha_bytes))
    return left + unused


def push_q1(
    state: QueueRam, quota: int, *, bytes_max: int = UNLIMITED, goes_on: bool = False
) -> int:
    """Move q1 from its front to the rear of q2, or of q3 if delta is empty; with `goes_on` into
    delta, if they are gammas and nothing is between. Return what is left of the quota; 0 once the
    bytes are passed."""
    if not state.q1:
        return quota
    rows, left = _page_out_q1(state, quota, bytes_max)
    if goes_on and state.delta.count and not state.q2.count and _are_gammas(rows):
        roll_rows(state, rows)
        return left
    part = state.q2 if state.delta.count else state.q3
    for row in rows:
        part.append(row)
    return left


def _are_gammas(rows: list[Row]) -> bool:
    return all(row.flags & ON_SLOT for row in rows)


def push_back(state: QueueRam, quota: int, *, bytes_max: int = UNLIMITED) -> int:
    """Move `back` to back_rows. Return what is left of the quota; 0 once the bytes are passed."""
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
    state.back_rows.insert_all(rows)
    return quota if moved < bytes_max else 0


def push_q4(state: QueueRam, quota: int, *, bytes_max: int = UNLIMITED) -> int:
    """Move q4 from its rear to the front of q3, and the rows of back_rows that come after the rest
    of q4; `back` must be empty. Return what is left of the quota; 0 once the bytes are passed."""
    if not state.q4:
        return quota
    taken, moved, left = take_alphas(state.q4, quota, bytes_max, from_rear=True)
    try:
        rows = page_out(state, taken)
    except BaseException:
        state.q4.extend(taken)
        raise
    state.alpha_bytes -= moved
    if state.back_rows.count and state.back_rows.last_seq() > rows[0].seq:
        state.back_rows.move_above(rows[0].seq, state.q3)
    state.q3.insert_all(rows)
    return left


def _page_out_q1(state: QueueRam, quota: int, bytes_max: int) -> tuple[list[Row], int]:
    """Page out the front of q1. Return its rows and what is left of the quota."""
    taken, moved, left = take_alphas(state.q1, quota, bytes_max, from_rear=False)
    try:
        rows = page_out(state, taken)
    except BaseException:
        state.q1.extendleft(reversed(taken))
        raise
    state.alpha_bytes -= moved
    state.q1_bytes -= moved
    return rows, left


def push_pending(state: QueueRam, quota: int, bytes_max: int = UNLIMITED) -> int:
    """Page out pending messages, the largest seq first. Return what is left of the quota."""
    taken: list[Entry] = []
    moved = 0
    while quota > 0 and state.ram_pending and moved < bytes_max:
        entry = _largest_pending(state)
        taken.append(entry)
        moved += alpha_bytes(entry.message)
        quota -= 1
    taken.reverse()
    try:
        rows = page_out(state, taken, with_slots=True)
    except BaseException:
        for entry in taken:
            state.ram_pending[entry.seq] = entry
        state.pending_order = None
        raise
    state.pending_bytes -= moved
    try:
        _add_slots(state, [row for row in rows if not row.flags & ON_SLOT])
    finally:
        for row in rows:
            state.disk_pending.insert(row)
    roll_pending(state, pending_rows_max(state))
    return quota if moved < bytes_max else 0


def _largest_pending(state: QueueRam) -> Entry:
    order = state.pending_order
    if order is None or len(order) > 2 * len(state.ram_pending) + 64:
        order = [-seq for seq in state.ram_pending]
        heapify(order)
        state.pending_order = order
    while True:
        entry = state.ram_pending.pop(-heappop(order), None)
        if entry is not None:
            return entry


def pending_rows_max(state: QueueRam) -> int:
    """Return how many near rows of pending messages may stay, and how many may be read at once."""
    if state.target_bytes >= UNLIMITED:
        return UNLIMITED
    return max(segment_rows(state) >> 1, BLOCK_SEQS)


def _add_slots(state: QueueRam, rows: list[Row]) -> None:
    """Write the slots of transient rows that have none."""
    if rows:
        _write_missing_slots(state, rows)
        for row in rows:
            row.flags |= ON_SLOT


def roll_pending(state: QueueRam, rows_max: int) -> None:
    """Remove rows of pending messages, at least a few at once, if they are more than so many."""
    paged = state.disk_pending
    near = paged.near
    if paged.sparse > near.count:
        paged.sparse = near.count
    if near.count - paged.sparse > rows_max:
        paged.put_away(paged.take_surplus(rows_max - min(rows_max >> 1, ROLL_ROWS)))


# ---- pending messages without rows ---------------------------------------------------------------


def load_pending(state: QueueRam, tags: list[int]) -> int:
    """Read the rows of those of these pending messages that have none; of few with neighbours, of
    ALONE or more without, which may be far apart. Return how many rows were read. One whose slot is
    damaged is set aside: it is not pending any more, and stays for salvage. Raises OSError."""
    paged = state.disk_pending
    if not any(paged.is_far(tag) for tag in tags):
        return 0
    paged.close_window()
    before = paged.far_count
    most = pending_rows_max(state)
    far = sorted({tag for tag in tags if paged.is_far(tag)})
    is_alone = len(far) >= ALONE
    if is_alone:
        for seqs in _near_each_other(far, state.index.slots):
            state.unacked_bytes -= paged.bring(_rows_of_far(state, seqs))
    for seq in far:
        if not is_alone and paged.is_far(seq):
            start, stop = paged.block_of(seq, most)
            state.unacked_bytes -= paged.bring(_far_rows(state, start, stop))
        if paged.is_far(seq):
            state.unacked_bytes -= paged.remove_far(seq)
            state.set_aside[seq] = f"the slot of pending seq {seq} does not verify"
            state.set_aside_events.append(
                f"seq {seq} of queue {state.index.number} set aside: {state.set_aside[seq]}"
            )
    n_read = before - paged.far_count
    if paged.window.count > most and not is_alone:
        paged.trim_window(set(tags), most)
    return n_read


def forget_far(state: QueueRam, seq: int) -> None:
    """Remove a message that is not pending any more, if it is far, without reading its slot. If it
    is transient, what the transient store has of it stays until the process ends."""
    paged = state.disk_pending
    if paged.is_far(seq):
        if paged.transients_between(seq, seq + 1):
            state.index.keep_transients(seq // state.index.slots, -1)
            state.transient_attempts.pop(seq, None)
        state.unacked_bytes -= paged.remove_far(seq)


def _far_rows(state: QueueRam, start: int, stop: int) -> list[Row]:
    """Return rows of the far pending messages from start to stop - 1, which are of one segment, as
    `_rows_of_far`."""
    seqs = state.disk_pending.far_between(start, stop)
    return _rows_of_far(state, seqs) if seqs else []


def _near_each_other(seqs: list[int], slots: int) -> Iterator[list[int]]:
    """Yield these seqs, ascending, in lists of those of one segment, and of so few slots that all
    of them are read at once."""
    some: list[int] = []
    for seq in seqs:
        if some and (seq // slots != some[0] // slots or seq - some[0] >= SPAN_SLOTS):
            yield some
            some = []
        some.append(seq)
    yield some


def _rows_of_far(state: QueueRam, seqs: list[int]) -> list[Row]:
    """Return rows of these far pending messages, ascending, of one segment, without those whose
    slots are damaged. They know the store files of their bodies."""
    start = seqs[0]
    transients = state.disk_pending.transients_between(start, seqs[-1] + 1)
    rows = rows_on_disk(state, seqs, set(transients))
    stored = [row for row in rows if row.flags & IN_STORE and row.flags & AT_ENTRY]
    if stored:
        files = state.index.files(start // state.index.slots)
        try:
            messages = files.entries_of([slot_of(row) for row in stored])
        except CorruptionError:  # `store_file_of` finds out which
            return rows
        for row, message in zip(stored, messages, strict=True):
            row.flags ^= AT_ENTRY | AT_STORE
            row.place = message.store_file
    return rows


def pending_rows(state: QueueRam) -> Iterator[Row]:
    """Yield the rows of all pending messages that were paged out, ascending, without those whose
    slots are damaged; nothing may change meanwhile."""
    paged, slots = state.disk_pending, state.index.slots
    for number in paged.segments():
        end = (number + 1) * slots
        for start in range(number * slots, end, PENDING_BLOCK):
            stop = min(start + PENDING_BLOCK, end)
            rows = paged.rows_between(start, stop)
            rows += _far_rows(state, start, stop)
            rows.sort(key=seq_of_row)
            yield from rows


def kept_by_purge(state: QueueRam) -> Iterator[Entry]:
    """Yield the persistent ones of the pending messages that were paged out, ascending, for the
    record of a purge, which adds up bytes and bodies in the store by segments. So the first of
    those whose slots cannot be read now has the bytes of all of them (of transient ones, too: not
    too few), and each counts as one in the store, which only makes a later purge look at more
    slots."""
    paged, slots = state.disk_pending, state.index.slots
    for number in paged.segments():
        start, stop = number * slots, (number + 1) * slots
        rows = paged.rows_between(start, stop)
        far = paged.far_between(start, stop)
        if far:
            transients = set(paged.transients_between(start, stop))
            found = rows_on_disk(state, far, transients)
            rows += found
            if len(found) < len(far):
                left = paged.far_bytes(number) - sum([row.size for row in found])
                known = {row.seq for row in found}
                for seq in far:
                    if seq not in known and seq not in transients:
                        rows.append(Row(seq, PERSISTENT | IN_STORE, 0, left, 0, 0, 0, 0))
                        left = 0
            rows.sort(key=seq_of_row)
        for row in rows:
            if row.flags & PERSISTENT:
                yield as_entry(row)


# ---- writing -------------------------------------------------------------------------------------


def page_out(state: QueueRam, entries: list[Entry], *, with_slots: bool = False) -> list[Row]:
    """Write entries, ascending, to disk unless they are there already (on a slot, or in a section
    of the checkpoint), and return their rows. with_slots: of transient ones, too, unless their
    bodies are there. Raises OSError: they stay as they are."""
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
            else:
                index.forget_body(entry.seq)
            continue
        state.engine.place_transient(message)
        if message.store_file or (with_slots and entry.seq not in state.places):
            fresh.append(entry)
        elif entry.seq not in state.places and (message.header or message.size):
            bodies.append(entry)
    places: list[int] = []
    if fresh:
        index.write(fresh, places)
        state.disk_writes += len(fresh)
        for entry in fresh:
            entry.on_slot = True
            if not entry.message.persistent:
                index.keep_transients(entry.seq // index.slots, 1)
    if bodies:
        _write_bodies(state, bodies)
    rows = _rows_of(state, entries, fresh, places)
    state.leave(entries)
    return rows


def _rows_of(
    state: QueueRam, entries: list[Entry], fresh: list[Entry], places: list[int]
) -> list[Row]:
    """Return the rows of entries that are paged out, and count these. places: where the entries of
    those that were just written, `fresh`, are in .qs."""
    rows: list[Row] = []
    size = gammas = at = 0
    for entry in entries:
        place = 0
        if at < len(fresh) and fresh[at] is entry:
            place = places[at]
            at += 1
        row = _row(state, entry, place)
        size += row.size
        if row.flags & ON_SLOT:
            gammas += 1
        rows.append(row)
    totals = state.engine.totals
    totals.gammas += gammas
    totals.betas += len(rows) - gammas
    totals.paged_out_bytes += size
    state.engine.page_out_left -= len(entries) + (size >> 12)
    return rows


def _write_bodies(state: QueueRam, entries: list[Entry]) -> None:
    """Write bodies of transient messages, without slots."""
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


def _row(state: QueueRam, entry: Entry, known: int) -> Row:
    """Return the row of an entry. known: the position of its entry in .qs, if that was just
    written."""
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


def permitted_betas(state: QueueRam, target: int, segment: int) -> int:
    """Return how many betas and gammas may stay rows with `target` alphas in RAM; at least one
    segment of rows, if there are so many."""
    if not state.len:
        return UNLIMITED
    if not target:
        return min(state.q3.count, segment)
    d = state.len - state.ram_messages()
    return max(segment, d - d * d // (d + target))


def segment_rows(state: QueueRam) -> int:
    """Return how many rows one load brings, and may always stay: a segment, or what a quarter of a
    small target holds."""
    return min(state.index.slots, max(16, state.target_bytes // (4 * ROW_BYTES)))


def load_rows(state: QueueRam) -> int:
    """Return how many rows q3 gets of delta: a few if a fetch continues from the slots themselves,
    else a segment, as in variable_queue.md."""
    return FEW_ROWS if state.reads_runs else segment_rows(state)


def roll(state: QueueRam, writes: int) -> int:
    """Roll betas that are too many into delta, writing at most `writes` slots. Return how many were
    written."""
    if state.target_bytes >= UNLIMITED and not state.eager:
        return 0
    state.join_rows()
    if state.is_even:
        return _roll_little(state, writes)
    if state.eager:
        _roll_gammas(state, ROLL_ROWS)
    over = _too_many_rows(state)
    return push_betas_to_deltas(state, min(over, ROLL_ROWS), writes) if over > 0 else 0


def _roll_little(state: QueueRam, writes: int) -> int:
    """Roll as many rows as the queue is over its target, if that is less than what paging out a
    message would free, or if no message can be paged out. Return how many slots were written."""
    over = state.ram_bytes() - state.target_bytes
    has_alphas = state.ram_messages() > 0 or len(state.ram_pending) > 0
    if over <= 0 or (over >= state.average_bytes() - ROW_BYTES and has_alphas):
        return 0
    return push_betas_to_deltas(state, min(-(-over // ROW_BYTES), ROLL_ROWS), writes)


def _too_many_rows(state: QueueRam) -> int:
    """Return how many rows of q2 and q3 the ratio does not permit, 0 or less for none."""
    rows = state.q2.count + state.q3.count
    if not rows:
        return 0
    target = state.target_bytes // state.average_bytes()
    return rows - permitted_betas(state, target, segment_rows(state))


def _border(state: QueueRam) -> int:
    """Return the seq below which q3 is never rolled: the end of its head's segment, or, if a small
    target allows fewer rows than a segment has, that many after its head."""
    first = state.q3.first_seq()
    border = state.segment_end(first)
    if state.target_bytes < UNLIMITED:
        border = min(border, first + segment_rows(state))
    return border


def push_betas_to_deltas(state: QueueRam, quota: int, writes: int = UNLIMITED) -> int:
    """Roll q3 from its rear, never below its border, then q2 from its front. writes: how many of
    them may need a slot written. Return how many did."""
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


def _roll_gammas(state: QueueRam, quota: int) -> None:
    """Roll gammas at the rear of q3, above the border, and at the front of q2: the policy of
    2011."""
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


def roll_rows(state: QueueRam, rows: list[Row]) -> None:
    """Move rows, ascending, into delta, after writing slots of transient betas. If that raises
    OSError, they stay rows, on the side of delta that they are on."""
    if not rows:
        return
    try:
        _write_missing_slots(state, [row for row in rows if not row.flags & ON_SLOT])
    except OSError:
        _put_back(state, rows)
        raise
    for row in rows:
        _add_to_delta(state, row)
    state.engine.totals.deltas += len(rows)


def _add_to_delta(state: QueueRam, row: Row) -> None:
    if not row.flags & PERSISTENT:
        state.mark_transient(row.seq)
    state.delta.add(row.seq)
    if state.in_hand:
        state.in_hand.discard(row.seq)


def _put_back(state: QueueRam, rows: list[Row]) -> None:
    """Keep these as rows, on their side of delta."""
    if not state.delta.count or rows[-1].seq < state.delta.start:
        for row in rows:
            state.q3.append(row)
    elif rows[0].seq >= state.delta.end:
        for row in reversed(rows):
            state.q2.append_left(row)
    else:  # requeued, within delta
        place_among(state, [], rows)


def place_among(state: QueueRam, entries: list[Entry], rows: list[Row]) -> None:
    """Make entries or rows ready that belong among those of q3 and delta and cannot be written:
    what is before them moves to back_rows. If delta cannot be read, that is moved when it is
    (`deltas_to_betas`), and they are delivered first."""
    last = entries[-1].seq if entries else rows[-1].seq
    state.lift_below = max(state.lift_below, last)
    state.leave_lazy()
    try:
        deltas_to_betas(state, segment_rows(state))
    except OSError as error:
        state.read_error = error
    state.place(entries)
    for row in rows:
        state.place_row(row)
    if state.set_aside and not state.delta.count:
        state.count_bytes()


def _write_missing_slots(state: QueueRam, rows: list[Row]) -> None:
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
    state.engine.page_out_left -= len(rows)
    for row in rows:
        if not row.flags & HAS_ENTRY:  # it was not in the segment's files before
            index.keep_transients(row.seq // index.slots, 1)


# ---- lazy ----------------------------------------------------------------------------------------


def _step_to_lazy(state: QueueRam, written: _Step) -> bool:
    """Move everything in RAM towards q3 and delta; the last step makes the queue lazy."""
    written.note(push_alphas_to_betas(state, written.messages, bytes_max=written.bytes_left()))
    state.join_rows()
    if state.q2.count:
        push_betas_to_deltas(state, ROLL_ROWS)
    if state.ram_messages() or state.q2.count:
        return True
    state.becomes_lazy = False
    state.is_lazy = True
    return False


RUN_BYTES_MAX: Final = 256 << 10
RUN_ROWS_MAX: Final = 256  # to begin a run and to take it is 8 us for each, on the owner's thread
READS_MAX: Final = 3  # runs of one queue that are read at the same time; a sync needs a worker, too
FEW_ROWS: Final = 16  # in q3 before delta, if a fetch continues from the slots


# ---- delta to q3 ---------------------------------------------------------------------------------


def deltas_to_betas(state: QueueRam, rows_max: int) -> None:
    """Fill q3, if it is empty, with delta's next segment, at most so many rows, skipping holes,
    damaged slots and what `place_among` wants in back_rows, until there is a row or delta is empty.
    Then q2 joins q3. Raises OSError."""
    delta, q3 = state.delta, state.q3
    while True:
        if not delta.count and state.q2.count:
            q3.extend(state.q2)
        while q3.count and q3.first_seq() < state.lift_below:
            state.place_row(q3.pop_first())
        if q3.count or not delta.count:
            break
        load_segment(state, rows_max)
    state.lift_below = 0


def load_segment(state: QueueRam, rows_max: int) -> None:
    """Append the next rows of delta, at most so many and of one segment, to q3."""
    delta, index = state.delta, state.index
    stop = min(state.segment_end(delta.start), delta.end)
    seqs = state.ready_on_disk(delta.start, stop)
    if len(seqs) > rows_max:
        stop = seqs[rows_max]
        seqs = seqs[:rows_max]
    transients = set(state.transients_between(delta.start, stop))
    if seqs:
        rows = rows_on_disk(state, seqs, transients, is_fetching=True)  # OSError: as before
        delta.count -= len(seqs)
        for row in rows:
            state.q3.append(row)
    state.clear_transients(delta.start, stop)
    delta.start = stop
    if not delta.count:
        delta.clear()
        if state.set_aside:
            state.count_bytes()
    elif delta.start >= delta.end:
        raise AssertionError(f"delta of queue {index.number} counts {delta.count} too many")


def rows_on_disk(
    state: QueueRam, seqs: list[int], transients: set[int], *, is_fetching: bool = False
) -> list[Row]:
    """Return rows of these seqs, ascending, of one segment, from its slots or a section of the
    checkpoint, without damaged ones, which are set aside if is_fetching."""
    index = state.index
    section = index.section
    on_slot = seqs if not section else [seq for seq in seqs if seq not in section]
    slots: list[Slot] = []
    if on_slot:
        try:
            slots = index.files(on_slot[0] // index.slots).slots(on_slot)
        except CorruptionError:
            slots = _good_slots(state, on_slot, is_fetching=is_fetching)
        state.disk_reads += 1
    rows = [_row_of_slot(slot, transients) for slot in slots]
    if section:
        rows += [_row_of_message(seq, section[seq].message) for seq in seqs if seq in section]
        rows.sort(key=lambda row: row.seq)
    return rows


def _good_slots(state: QueueRam, seqs: list[int], *, is_fetching: bool) -> list[Slot]:
    """Read slots one by one; a damaged one is set aside if is_fetching. Raises OSError: none is."""
    found: list[Slot] = []
    damaged: list[tuple[int, CorruptionError]] = []
    files = state.index.files(seqs[0] // state.index.slots)
    for seq in seqs:
        try:
            found += files.slots([seq])
        except CorruptionError as error:
            damaged.append((seq, error))
    if is_fetching:
        for seq, problem in damaged:
            set_aside(state, seq, 0, problem)
    return found


def _row_of_slot(slot: Slot, transients: set[int]) -> Row:
    """transients: the seqs of those that are not persistent."""
    flags = ON_SLOT | (0 if slot.seq in transients else PERSISTENT)
    place = slot.where
    if slot.flags & queue_segment.HAS_ENTRY:
        flags |= HAS_ENTRY | AT_ENTRY
    if slot.flags & queue_segment.IN_STORE:
        flags |= IN_STORE
        if not flags & AT_ENTRY:
            flags |= AT_STORE
    return Row(
        slot.seq, flags, slot.id, slot.size, place, slot.expiry_ms, slot.header_len, slot.time
    )


def _row_of_message(seq: int, message: QueuedMessage) -> Row:
    """Return the row of a message in a section of the checkpoint. Where its entry will be in .qs
    only the slot knows, once a later checkpoint has written it."""
    flags = PERSISTENT | ON_SLOT
    if message.store_file:
        flags |= IN_STORE | AT_STORE
    if message.header or (message.size and not message.store_file):
        flags |= HAS_ENTRY
    length = min(len(message.header), LONG_HEADER)
    return Row(
        seq, flags, message.id, message.size, message.store_file, message.expiry_ms, length,
        message.time,
    )  # fmt: skip


# ---- q3 to q4 ------------------------------------------------------------------------------------


def betas_to_alphas(state: QueueRam, run_bytes: int, messages_max: int) -> bool:
    """Read a run of bodies from the front of q3 to the rear of q4: of one segment, at most so many
    bytes and messages, but at least one. Return False if all were damaged and set aside."""
    entries = _read_run(state, state.q3, run_bytes, messages_max)
    for entry in entries:
        state.q4.append(entry)
        state.alpha_bytes += alpha_bytes(entry.message)
    return bool(entries)


def back_to_alphas(state: QueueRam, run_bytes: int, messages_max: int) -> None:
    """Read a run of back_rows in the same way into q4 or back."""
    state.place(_read_run(state, state.back_rows, run_bytes, messages_max))


def _read_run(state: QueueRam, part: Rows, run_bytes: int, messages_max: int) -> list[Entry]:
    """Return the entries of a run from the front of a part; damaged ones are set aside. Raises
    OSError: nothing has moved."""
    clock = state.engine.clock
    began_s = clock.monotonic()
    rows = _take_run(state, part, run_bytes, messages_max)
    damaged: list[tuple[Row, CorruptionError]] = []
    try:
        entries = _load_good(state, rows, damaged)
    except OSError:
        for row in reversed(rows):
            part.append_left(row)
        raise
    for row, error in damaged:
        set_aside(state, row.seq, row.size, error)
    size = sum([row.size for row in rows])
    state.engine.totals.page_in(len(entries), size, clock.monotonic() - began_s)
    return entries


def read_run(state: QueueRam, run_bytes: int, messages_max: int) -> None:
    """Read a run of bodies from the front of q3 to the rear of q4, as `betas_to_alphas`, and go on
    in delta if it takes all of q3."""
    goes_on = state.reads_runs and not state.is_lazy and not state.index.section
    if (
        goes_on
        and _takes_q3(state, run_bytes, messages_max)
        and deltas_to_alphas(state, run_bytes, messages_max)
    ):
        return
    before = state.alpha_bytes
    betas_to_alphas(state, run_bytes, messages_max)
    left = run_bytes - (state.alpha_bytes - before)
    if goes_on and left > 0 and not state.q3.count:
        with suppress(OSError):  # `settle` tries again
            deltas_to_alphas(state, left, messages_max)


def _takes_q3(state: QueueRam, run_bytes: int, messages_max: int) -> bool:
    """Return whether a run takes all rows of q3, and goes on in their segment of delta."""
    q3, delta = state.q3, state.delta
    if not q3.count or q3.count >= messages_max or not delta.count:
        return False
    if delta.start >= state.segment_end(q3.first_seq()):
        return False
    for row in q3.rows():
        run_bytes -= row.size + ALPHA_BYTES
        if run_bytes <= 0 or not row.flags & ON_SLOT:
            return False
        if row.flags & HAS_ENTRY and not row.flags & AT_ENTRY:
            return False  # only the slot has its position
    return True


def deltas_to_alphas(state: QueueRam, run_bytes: int, messages_max: int) -> bool:
    """Read a run to the rear of q4: all rows of q3, if there are any, and what comes next in delta,
    in the segment in which delta begins. One read of slots is for the messages of delta and for the
    rows that q3 gets. Return False if nothing has moved: anything special (damaged, in a section of
    the checkpoint) is left to the way through q3. Raises OSError: nothing has moved."""
    delta, index, q3 = state.delta, state.index, state.q3
    if not delta.count:
        return False
    start = delta.start
    stop = min(state.segment_end(start), delta.end, start + messages_max + FEW_ROWS)
    seqs = state.ready_on_disk(start, stop)
    if not seqs:
        return False
    clock = state.engine.clock
    began_s = clock.monotonic()
    slots: list[Slot] = []
    transients: set[int] = set()
    for row in q3.rows():
        slots.append(slot_of(row))
        if not row.flags & PERSISTENT:
            transients.add(row.seq)
    rows = len(slots)
    if state.delta_transients:
        transients.update(state.transients_between(start, stop))
    try:
        slots += index.files(start // index.slots).slots(seqs)
        messages = _plain_messages(state, slots, transients, run_bytes, messages_max)
    except CorruptionError:
        return False  # the way through q3 finds the damaged one
    n = len(messages)
    if not n or n < rows:
        return False
    size = sum([message.size for message in messages])
    state.engine.totals.page_in(n, size, clock.monotonic() - began_s)
    state.disk_reads += 1
    _add_to_q4(state, slots, messages)
    q3.clear()
    kept = slots[n : n + FEW_ROWS]
    for slot in kept:
        q3.append(_row_of_slot(slot, transients))
    taken = n - rows + len(kept)
    _shorten_delta(state, taken, seqs[taken] if taken < len(seqs) else stop)
    return True


def _add_to_q4(state: QueueRam, slots: list[Slot], messages: list[QueuedMessage]) -> None:
    """Append the messages, which are of the first of these slots, to q4."""
    cost = 0
    for i in range(len(messages)):
        message = messages[i]
        cost += alpha_bytes(message)
        state.q4.append(Entry(slots[i].seq, message, True))
    state.alpha_bytes += cost


def _shorten_delta(state: QueueRam, count: int, stop: int) -> None:
    """Remove the first messages of delta, so many, which are in q4 and q3 now; it begins at `stop`,
    in the same segment or the next one. If it is empty, q2 joins q3."""
    delta = state.delta
    if state.delta_transients:
        state.clear_transients(delta.start, stop)
    delta.count -= count
    delta.start = stop
    if not delta.count:
        delta.clear()
        if state.set_aside:
            state.count_bytes()
        if state.q2.count:
            state.q3.extend(state.q2)


def _plain_messages(
    state: QueueRam, slots: list[Slot], transients: set[int], run_bytes: int, messages_max: int
) -> list[QueuedMessage]:
    """Return the first of the messages of these slots, which are of one segment, with bodies: so
    many, up to so many bytes. transients: the seqs of those that are not persistent."""
    index = state.index
    n = taken = 0
    for slot in slots:
        taken += slot.size + ALPHA_BYTES
        if taken > run_bytes or n == messages_max:
            break
        n += 1
    if not n:
        return []
    messages = index.files(slots[0].seq // index.slots).entries_of(slots[:n])
    for i in range(n):
        message, seq = messages[i], slots[i].seq
        if transients and seq in transients:
            message.persistent = False  # its body is in another store
        if message.body is None and not is_large(message):
            state.engine.load_body(index, seq, message)
    return messages


def _load_good(
    state: QueueRam, rows: list[Row], damaged: list[tuple[Row, CorruptionError]]
) -> list[Entry]:
    try:
        return load(state, rows)
    except CorruptionError:
        entries: list[Entry] = []
        for row in rows:
            try:
                entries += load(state, [row])
            except CorruptionError as error:
                damaged.append((row, error))
        return entries


def _take_run(state: QueueRam, part: Rows, run_bytes: int, messages_max: int) -> list[Row]:
    rows = [part.pop_first()]
    taken = rows[0].size + ALPHA_BYTES
    border = state.segment_end(rows[0].seq)
    while part.count and len(rows) < messages_max and taken < run_bytes:
        row = part.first()
        taken += row.size + ALPHA_BYTES
        if row.seq >= border or taken > run_bytes:
            break
        part.drop_first()
        rows.append(row)
    return rows


def load(
    state: QueueRam, rows: list[Row], *, stays: bool = True, has_large: bool = False
) -> list[Entry]:
    """Return the entries, with bodies, of rows of one segment, ascending. stays: they will be in
    RAM instead of the rows; else the rows stay. has_large: with large bodies, too. Raises OSError,
    and CorruptionError if one was read wrongly twice."""
    try:
        return _load(state, rows, stays=stays, has_large=has_large)
    except CorruptionError:
        return _load(state, rows, stays=stays, has_large=has_large)


def _load(state: QueueRam, rows: list[Row], *, stays: bool, has_large: bool) -> list[Entry]:
    engine, index = state.engine, state.index
    section = index.section
    state.disk_reads += 1
    messages = _messages_of(state, rows)
    entries: list[Entry] = []
    for i in range(len(rows)):
        row, message = rows[i], messages[i]
        is_persistent = row.flags & PERSISTENT != 0
        message.persistent = is_persistent
        if message.body is None and (has_large or not is_large(message)):
            engine.load_body(index, row.seq, message)
        if is_persistent:
            entries.append(Entry(row.seq, message, row.seq not in section))
            continue
        if stays and row.flags & AT_ENTRY and not row.flags & ON_SLOT:
            state.places[row.seq] = row.place
        entries.append(Entry(row.seq, message, row.flags & ON_SLOT != 0))
    return entries


def headers_of(state: QueueRam, rows: list[Row]) -> list[QueuedMessage]:
    """Return the messages of rows, ascending, with headers and without bodies that are not in RAM.
    Reads runs of neighbours. Raises CorruptionError."""
    found: list[QueuedMessage] = []
    start = 0
    while start < len(rows):
        stop = _run_end(state, rows, start)
        run = rows[start:stop]
        state.disk_reads += 1
        try:
            found += _messages_of(state, run)
        except CorruptionError:  # it may have been read wrongly once
            found += _messages_of(state, run)
        for at in range(start, stop):
            message = found[at]
            message.persistent = rows[at].flags & PERSISTENT != 0
            if message.size:
                message.body = None
        start = stop
    return found


def _run_end(state: QueueRam, rows: list[Row], start: int) -> int:
    """Return where the run that begins there ends: of one segment, read at once."""
    border = state.segment_end(rows[start].seq)
    taken = 0
    stop = start
    while stop < len(rows) and stop - start < RUN_ROWS_MAX and rows[stop].seq < border:
        taken += rows[stop].size + rows[stop].header_len
        if stop > start and taken > RUN_BYTES_MAX:
            break
        stop += 1
    return stop


def _load_run(state: QueueRam, rows: list[Row]) -> list[QueuedMessage]:
    index = state.index
    files = index.files(rows[0].seq // index.slots)
    unknown = [row.seq for row in rows if not row.flags & AT_ENTRY and row.flags & ON_SLOT]
    if len(unknown) == len(rows):
        return files.messages(unknown)
    asked: list[Slot] = files.slots(unknown) if unknown else []
    slots: list[Slot] = []
    at = 0
    for row in rows:
        if at < len(asked) and asked[at].seq == row.seq:
            slots.append(asked[at])
            at += 1
        else:
            slots.append(slot_of(row))
    return files.entries_of(slots)


def _messages_of(state: QueueRam, rows: list[Row]) -> list[QueuedMessage]:
    """Return the messages of rows of one segment, of which some may be in a section of the
    checkpoint."""
    section = state.index.section
    if not section or not any(row.seq in section for row in rows):
        return _load_run(state, rows)
    return [
        _in_section(state, row.seq) if row.seq in section else _load_run(state, [row])[0]
        for row in rows
    ]


def _in_section(state: QueueRam, seq: int) -> QueuedMessage:
    """Return a message in a section of the checkpoint, without its body. The section may still have
    the object that other queues hold and count; what is read back is an object of its own."""
    message = state.index.section[seq].message.copy()
    if message.size:
        message.body = None
    return message


def slot_of(row: Row) -> Slot:
    """Return the slot of a row that has the position of its entry, or no entry."""
    flags = queue_segment.USED
    if row.flags & HAS_ENTRY:
        flags |= queue_segment.HAS_ENTRY
    if row.flags & IN_STORE:
        flags |= queue_segment.IN_STORE
    return Slot(
        row.seq, flags, row.header_len, row.size, row.id, row.expiry_ms, row.place, row.time
    )


def store_file_of(state: QueueRam, row: Row) -> int:
    """Return the store file of a row's body, 0 if it is not in the store. Raises CorruptionError
    if it was read wrongly twice: the body of one that dies stays in the store for good."""
    if not row.flags & IN_STORE:
        return 0
    if row.flags & AT_STORE:
        return row.place
    try:
        return _load_run(state, [row])[0].store_file
    except CorruptionError:
        return _load_run(state, [row])[0].store_file


def entry_of(state: QueueRam, row: Row) -> Entry:
    """Return a paged message as the engine needs it, without header and body."""
    is_persistent = row.flags & PERSISTENT != 0
    try:
        store_file = store_file_of(state, row)
    except CorruptionError as error:
        state.set_aside_events.append(f"the body of seq {row.seq} stays in the store: {error}")
        store_file = 0
    message = QueuedMessage(
        row.id, b"", None, row.size, row.time, row.expiry_ms, store_file, is_persistent
    )
    return Entry(row.seq, message, row.flags & ON_SLOT != 0 and row.seq not in state.index.section)


def as_entry(row: Row) -> Entry:
    """Return a paged message from its row alone. Its store file is 0 if its body is not in the
    store, else not known."""
    is_persistent = row.flags & PERSISTENT != 0
    message = QueuedMessage(
        row.id, b"", None, row.size, row.time, row.expiry_ms, row.flags & IN_STORE, is_persistent
    )
    return Entry(row.seq, message, row.flags & ON_SLOT != 0)


def take_entry(state: QueueRam, row: Row) -> Entry:
    """Return `entry_of` a row that is in no part of the queue any more."""
    if row.flags & AT_ENTRY and not row.flags & ON_SLOT:
        state.places[row.seq] = row.place
    return entry_of(state, row)


def is_in_files(row: Row) -> int:
    """Return 1 if the files of its segment contain part of a transient row and must be kept
    for it."""
    return 1 if row.flags & (ON_SLOT | AT_ENTRY) else 0


def set_aside(state: QueueRam, seq: int, size: int, error: CorruptionError) -> None:
    """Set a damaged ready message aside: it is not delivered, and stays for salvage."""
    state.set_aside[seq] = str(error)
    state.set_aside_events.append(f"seq {seq} of queue {state.index.number} set aside: {error}")
    state.len -= 1
    state.bytes -= size


# ---- q1 to q4 ------------------------------------------------------------------------------------


def settle(state: QueueRam, rows_max: int) -> None:
    """Refill q3 from delta; if both are empty, move q1 to q4."""
    if state.q3.count or state.is_lazy:
        state.read_error = None
        return
    if state.delta.count:
        try:
            deltas_to_betas(state, rows_max)
        except OSError as error:
            state.read_error = error  # the next fetch tries again, and raises it
            return
        state.in_hand = set()
    state.read_error = None
    if state.q1 and not state.q3.count:
        state.q4.extend(state.q1)
        state.q1.clear()
        state.q1_bytes = 0


# ---- reading ahead -------------------------------------------------------------------------------


class ReadRun:
    """Messages at the front of q3 that a worker reads.

    rows: of one segment, ascending. slots: theirs, with the positions of their entries. messages:
    without bodies; None where the whole entry is read from .qs. records: where the bodies of some
    of them are in the store, in order; at: for each message, its place in `records`, or -1. bytes:
    what they will count in RAM at most, reserved while the run is read.
    """

    def __init__(self, inhaler: "Inhaler", path: str, fs: FileSystem) -> None:
        self.rows: list[Row] = []
        self.slots: list[Slot] = []
        self.messages: list[QueuedMessage | None] = []
        self.records: list[StoreRecord] = []
        self.at: list[int] = []
        self.bytes: int = 0
        self.start: int = 0  # of the entries in .qs that are read
        self.end: int = 0
        self.path: str = path  # of .qs
        self.is_over: bool = False
        self.seconds: float = 0.0  # that the read took
        self._inhaler = inhaler
        self._fs = fs
        self._entries: bytes = b""
        self._bodies: list[bytes | None] = []

    def add(
        self, row: Row, slot: Slot, message: QueuedMessage | None, record: StoreRecord | None
    ) -> None:
        """Add a row."""
        self.rows.append(row)
        self.slots.append(slot)
        self.messages.append(message)
        self.at.append(-1 if record is None else len(self.records))
        if record is not None:
            self.records.append(record)
        if message is None:
            self.start = self.start if self.end else slot.where
            self.end = slot.where + PREFIX_BYTES + row.header_len + row.size

    def takes_entry(self, slot: Slot) -> bool:
        """Return whether an entry lies close enough behind the others for one read."""
        if not self.end:
            return True
        return slot.where >= self.end and slot.where + slot.size - self.start <= 2 * RUN_BYTES_MAX

    def read(self) -> object:
        """Read entries and bodies, in a worker. Raises OSError."""
        began_s = self._inhaler.clock.monotonic()
        if self.end > self.start:
            file = self._fs.open(self.path)
            try:
                self._entries = file.pread(self.end - self.start, self.start)
            finally:
                file.close()
        if self.records:
            self._bodies = read_records(self._fs, self.records)
        self.seconds = self._inhaler.clock.monotonic() - began_s
        self.is_over = True  # last: the owner's thread may look at any time
        return None

    def message(self, n: int, files: SegmentFiles) -> QueuedMessage | None:
        """Return a message that was read; None if its body is to be read by a fetch. Raises
        CorruptionError, and OSError for the rest of an entry with a long header."""
        message = self.messages[n]
        if message is None:
            slot = self.slots[n]
            return files.parse(slot, self._entries, slot.where - self.start)
        if self.at[n] >= 0:
            message.body = self._bodies[self.at[n]]
            return None if message.body is None else message
        return message

    def done(self, _: object) -> None:
        """Take the end of the read, in the owner's thread. If it was taken before, by a fetch or
        with the end of another, those have begun the next reads: one turn does not do more."""
        if self in self._inhaler.runs:
            self._inhaler.ended("")

    def failed(self, problem: BaseException) -> None:
        """Take its failure: a later run, or a fetch, reads these messages."""
        self.is_over = True
        self.rows = []
        self._inhaler.ended(f"{self.path}: reading ahead failed: {problem}")


def _go_on_nowhere(_problem: str) -> None:
    """Read no more after a read: the queue was deleted."""


class Inhaler:
    """Reads ahead for one queue: up to READS_MAX runs at once, on worker threads. on_end(text): a
    run has arrived, or has failed as the text says."""

    def __init__(self, state: QueueRam, on_end: Callable[[str], None]) -> None:
        self.clock: Clock = state.engine.clock
        self._state = state
        self.on_end = on_end
        self.runs: list[ReadRun] = []  # under way, in the order of their messages
        self._bad_seq: int = -1  # of a row that could not be read: not read ahead again

    def begin(self, room_bytes: int, rows_max: int) -> bool:
        """Submit reads of the next messages of q3, as many as there is room for. Return whether any
        is under way. If q3 has few rows, those of delta's next segment, at most rows_max, join it
        first; its last row stays there while delta is not empty. room_bytes: of RAM, for all of
        that; it is reserved. Raises OSError for what is read at once: slots, and the entries of
        messages whose bodies are in the store."""
        state = self._state
        while len(self.runs) < READS_MAX and state.q3.count:
            room_bytes -= self._load_rows(room_bytes, rows_max)
            run = self._next_run(room_bytes)
            if not run.rows:
                break
            room_bytes -= run.bytes
            state.reading_bytes += run.bytes
            self.runs.append(run)
            state.engine.journal.submit(run.read, run.done, run.failed)
        return len(self.runs) > 0

    def _last_seq(self) -> int:
        """Return the last seq that is being read, -1 for none."""
        for run in reversed(self.runs):
            if run.rows:
                return run.rows[-1].seq
        return -1

    def _load_rows(self, room_bytes: int, rows_max: int) -> int:
        """Load rows of delta if q3 has few that are not being read. Return the bytes that they take
        in RAM. Raises OSError."""
        state = self._state
        q3 = state.q3
        before = q3.count
        run_rows = RUN_BYTES_MAX // state.average_bytes() + FEW_ROWS
        most = min(rows_max, run_rows, room_bytes // (2 * ROW_BYTES))
        reading = sum([len(run.rows) for run in self.runs])
        if before - reading >= FEW_ROWS or not state.delta.count or most <= 0:
            return 0
        load_segment(state, most)
        loaded = q3.count - before
        if not state.delta.count and state.q2.count:
            q3.extend(state.q2)
        return loaded * ROW_BYTES

    def _next_run(self, room_bytes: int) -> ReadRun:
        """Return the next messages for which there is room, possibly none. Raises OSError."""
        rows = self._next_rows(room_bytes)
        state = self._state
        number = rows[0].seq // state.index.slots if rows else 0
        run = ReadRun(self, f"{state.index.path}/{number}.qs", state.engine.fs)
        if not rows:
            return run
        slots = self._slots_of(rows)
        found = self._found(rows, slots)
        for n, message in enumerate(found):
            row, slot = rows[n], slots[n]
            record: StoreRecord | None = None
            if message is None:
                if not run.takes_entry(slot):
                    break
            elif message.body is None and not is_large(message):
                record = self._record_of(row, message)
                if record is None:
                    break
            run.add(row, slot, message, record)
            run.bytes += _cost(row)
        return run

    def _next_rows(self, room_bytes: int) -> list[Row]:
        """Return the next rows of one segment for whose messages there is room: a run of them, or
        one that is larger."""
        state = self._state
        rows: list[Row] = []
        q3 = state.q3
        last = q3.last_seq()
        taken = 0
        border = -1
        for row in q3.rows(self._last_seq()):
            taken += _cost(row)
            if border < 0:
                border = state.segment_end(row.seq)
            if row.seq >= border or taken > room_bytes or (rows and taken > RUN_BYTES_MAX):
                break
            if len(rows) == RUN_ROWS_MAX:
                break
            if row.seq == self._bad_seq or (row.seq == last and state.delta.count):
                break  # the last one stays before delta
            rows.append(row)
        return rows

    def _slots_of(self, rows: list[Row]) -> list[Slot]:
        """Return slots with the positions of the entries, which for some rows only the slots have;
        of the first rows alone if one is damaged. Raises OSError."""
        index = self._state.index
        section = index.section
        unknown = [
            row.seq
            for row in rows
            if row.flags & HAS_ENTRY and not row.flags & AT_ENTRY and row.seq not in section
        ]
        asked: list[Slot] = []
        if unknown:
            try:
                asked = index.files(unknown[0] // index.slots).slots(unknown)
            except CorruptionError:  # a fetch finds out which
                self._bad_seq = unknown[0]
                unknown = unknown[:1]
        slots: list[Slot] = []
        at = 0
        for row in rows:
            if at < len(unknown) and row.seq == unknown[at]:
                if at == len(asked):
                    break
                slots.append(asked[at])
                at += 1
            else:
                slots.append(slot_of(row))
        return slots

    def _found(self, rows: list[Row], slots: list[Slot]) -> list[QueuedMessage | None]:
        """Return the messages without bodies; None where the body is in .qs. Of the first slots
        alone if the entry of one is damaged. Raises OSError."""
        index = self._state.index
        section = index.section
        files = index.files(rows[0].seq // index.slots)
        special = [slot for slot in slots if slot.seq not in section and not _is_embedded(slot)]
        messages: list[QueuedMessage] = []
        bad_seq = -1
        try:
            messages = files.entries_of(special)
        except CorruptionError:
            messages = []
            for slot in special:
                try:
                    messages += files.entries_of([slot])
                except CorruptionError:
                    self._bad_seq = bad_seq = slot.seq
                    break
        found: list[QueuedMessage | None] = []
        at = 0
        for n, slot in enumerate(slots):
            if slot.seq == bad_seq:
                break
            if slot.seq in section:
                found.append(_in_section(self._state, slot.seq))
            elif _is_embedded(slot):
                found.append(None)
            else:
                messages[at].persistent = rows[n].flags & PERSISTENT != 0
                found.append(messages[at])
                at += 1
        return found

    def _record_of(self, row: Row, message: QueuedMessage) -> StoreRecord | None:
        """Return where the body of a message is in the store, None if a fetch must find out."""
        state = self._state
        record: StoreRecord | None = None
        try:
            record = state.engine.record_of(state.index, row.seq, message)
        except CorruptionError:
            record = None
        if record is None:
            self._bad_seq = row.seq
        return record

    def ended(self, problem: str) -> None:
        """Take the end of a read. problem: why it failed, "" if it did not."""
        self.take()
        self.on_end(problem)

    def take(self) -> None:
        """Move to q4 what has been read, as far as no earlier run is under way."""
        while self.runs and self.runs[0].is_over:
            run = self.runs.pop(0)
            self._state.reading_bytes -= run.bytes
            if run.rows:
                self._arrived(run)

    def _arrived(self, run: ReadRun) -> None:
        """Move messages whose rows are still at the front of q3 to q4. Bad entries are left to
        `fetch`."""
        state = self._state
        q3 = state.q3
        if state.is_lazy or not q3.count or state.engine.failed is not None:
            return
        section = state.index.section
        files = state.index.files(run.rows[0].seq // state.index.slots)
        room = state.target_bytes - state.ram_bytes()
        moved = 0
        moved_bytes = 0
        for n, row in enumerate(run.rows):
            first = q3.first_seq() if q3.count else row.seq + 1
            if first > row.seq:
                continue  # fetched meanwhile
            if first != row.seq or (q3.count == 1 and state.delta.count):
                break  # q3 was emptied, or something was requeued before it
            message: QueuedMessage | None = None
            try:
                message = run.message(n, files)
            except (CorruptionError, OSError):
                message = None
            if message is None:
                self._bad_seq = row.seq
                break
            cost = alpha_bytes(message)
            room -= cost - ROW_BYTES
            if room < 0:
                break
            now = q3.pop_first()
            message.persistent = now.flags & PERSISTENT != 0
            if message.persistent:
                on_slot = now.seq not in section
            else:
                on_slot = now.flags & ON_SLOT != 0
                if now.flags & AT_ENTRY and not on_slot:
                    state.places[now.seq] = now.place
            state.q4.append(Entry(now.seq, message, on_slot))
            state.alpha_bytes += cost
            moved += 1
            moved_bytes += message.size
        state.engine.totals.page_in(moved, moved_bytes, run.seconds)
        state.engine.totals.read_ahead_hits += 1
        state.disk_reads += 1
        settle(state, FEW_ROWS)


def _cost(row: Row) -> int:
    """Return what a row's message will count in RAM, with a header of at most LONG_HEADER bytes."""
    cost = ALPHA_BYTES + row.header_len
    return cost if row.flags & IN_STORE and row.size >= LARGE_FROM else cost + row.size


def _is_embedded(slot: Slot) -> bool:
    """Return whether header and body are in .qs together."""
    return slot.flags & SLOT_HAS_ENTRY != 0 and not slot.flags & SLOT_IN_STORE


RETRY_S: Final = 1.0  # after a page-out failed
READ_AHEAD_BYTES: Final = 1 << 20  # of a queue without limits
AT_ONCE_MESSAGES: Final = 64  # read in one tick without a worker
INFINITY: Final = float("inf")


class Paging:
    """Pages one queue out and in. on_event(kind, text): flowed, recovered, page_out_failed,
    corruption."""

    def __init__(self, state: QueueRam, on_event: Callable[[str, str], None] | None) -> None:
        self._state = state
        self._on_event = on_event
        self.inhaler: Inhaler = Inhaler(state, self._read_ended)
        self._max_bytes: int = UNLIMITED
        self._min_bytes: int = UNLIMITED
        self._share_bytes: int = UNLIMITED
        self._duration_s: float = INFINITY
        self._ram_before: int = 0
        self._pending_before: int = 0
        self._retry_at: float = -1.0
        self._has_failed: bool = False
        self.is_inhaling: bool = False  # begun, and the high mark is not reached
        self.on_read: Callable[[], None] | None = None  # after the last read that was worthwhile

    # ---- limits --------------------------------------------------------------------------------

    def set_limits(self, max_bytes: int, min_bytes: int) -> None:
        """Set the queue's own limits. Raises ValueError unless 0 <= min <= max."""
        if not 0 <= min_bytes <= max_bytes:
            raise ValueError(f"min {min_bytes} and max {max_bytes}: expected 0 <= min <= max")
        self._max_bytes, self._min_bytes = max_bytes, min_bytes
        self._set_target()

    def set_share(self, share_bytes: int) -> None:
        """Set its share of the whole budget."""
        self._share_bytes = max(share_bytes, 0)
        self._set_target()

    def set_duration(self, seconds: float) -> None:
        """Set for how many seconds the messages in RAM should last."""
        self._duration_s = seconds
        self._set_target()

    def duration(self) -> float:
        """Update the rates and the target. Return for how many seconds the messages in RAM last."""
        state = self._state
        state.rates.update(state.engine.clock.monotonic())
        ram, pending = state.ram_messages(), len(state.ram_pending)
        result = state.rates.duration(ram, self._ram_before, pending, self._pending_before)
        self._ram_before, self._pending_before = ram, pending
        if self._duration_s != INFINITY:
            self._set_target()
        return result

    def _set_target(self) -> None:
        state = self._state
        target = min(self._max_bytes, self._share_bytes)
        if self._duration_s != INFINITY:
            target = min(target, self._bytes_for(int(state.rates.target(self._duration_s))))
        if target < UNLIMITED and (state.q3.count or state.delta.count):
            state.is_flowed = True  # the queue was opened with a backlog
        shrinks = target < state.target_bytes
        state.target_bytes = target
        state.step_messages = step_messages(target)
        if not shrinks:
            self.note_recovered()
        elif state.engine.page_out_left > 0:  # else a tick does all of it
            self.step(SLICE_MESSAGES, SLICE_BYTES)

    def info(self) -> dict[str, int | float | str]:
        """Return its limits, UNLIMITED and infinity for none, and which of them makes it page
        (`paged_by`: "max_memory", "share", "duration", "lazy", or "" while it is not flowed)."""
        return {
            "max_bytes": self._max_bytes,
            "min_bytes": self._lowest(),
            "share_bytes": self._share_bytes,
            "duration_target_s": self._duration_s,
            "paged_by": self._reason(),
        }

    def _reason(self) -> str:
        state = self._state
        if state.is_lazy or state.becomes_lazy:
            return "lazy"
        if not state.is_flowed:
            return ""
        if state.target_bytes == self._max_bytes:
            return "max_memory"
        return "share" if state.target_bytes == self._share_bytes else "duration"

    def _bytes_for(self, messages: int) -> int:
        """Return the bytes of so many alphas of the queue's average, with the rows that may stay
        with them."""
        state = self._state
        average = state.average_bytes()
        alphas = state.ram_messages()
        if alphas:
            average = max(average, state.alpha_bytes // alphas)
        needed = messages * average
        return needed + min(state.index.slots * ROW_BYTES, needed // 3)

    # ---- out -----------------------------------------------------------------------------------

    def step(self, messages: int, bytes_max: int) -> bool:
        """Page out at most so much, if there is a reason. Return True if there is more to do."""
        state = self._state
        if not is_over(state):
            return False
        if self._is_resting():
            return False
        if not state.is_flowed and not state.becomes_lazy:
            state.is_flowed = True
            self.report("flowed", f"{state.ram_bytes()} bytes in RAM, {state.target_bytes} allowed")
        try:
            more = step(state, messages, bytes_max)
        except (OSError, SyncFailedError) as error:
            self.failed(error)
            return False
        self._retry_at = -1.0
        self._has_failed = False
        settle(state, load_rows(state))
        return more

    def failed(self, error: OSError | SyncFailedError) -> None:
        """Handle a failed page-out: messages stay in RAM for now. A failed sync stops the engine
        [10]."""
        if isinstance(error, SyncFailedError):
            self._state.engine.journal.stop(error)
            return
        self._retry_at = self._state.engine.clock.monotonic() + RETRY_S
        if not self._has_failed:
            self._has_failed = True
            self.report("page_out_failed", f"messages stay in RAM: {error}")

    def note_recovered(self) -> None:
        """Report that the queue is not flowed any more, once all of it is in RAM, with an eighth
        of the target to spare: so a load close to the target does not cause event after event."""
        state = self._state
        if (
            state.is_flowed
            and not state.q3.count
            and not state.delta.count
            and not state.disk_pending.count
            and not state.back_rows.count
            and state.ram_bytes() <= low_mark(state.target_bytes)
        ):
            state.is_flowed = False
            self.report("recovered", f"{state.len} messages, all in RAM")

    def room_for(self, run_bytes: int) -> int:
        """Return the bytes free below the target, for a read of run_bytes; pending messages make
        room."""
        state = self._state
        room = state.target_bytes - state.ram_bytes()
        if room < run_bytes and state.ram_pending and not self._is_resting():
            try:
                make_room(state, run_bytes)
            except (OSError, SyncFailedError) as error:
                self.failed(error)
            room = state.target_bytes - state.ram_bytes()
        return max(room, 0)

    def _is_resting(self) -> bool:
        """Return whether paging out must wait: the disk is full, a write failed a moment ago, or
        delta, which belongs before what is in RAM, cannot be read."""
        engine = self._state.engine
        return (
            engine.blocked
            or self._state.lift_below > 0
            or (self._retry_at >= 0.0 and engine.clock.monotonic() < self._retry_at)
        )

    # ---- in ------------------------------------------------------------------------------------

    def inhale(self, *, at_rest: bool = False) -> bool:
        """Submit reads if there is a reason. Return True while one is under way. at_rest: nobody
        has consumed just now, so only a flowed queue reads."""
        state, inhaler = self._state, self.inhaler
        if inhaler.runs:
            inhaler.take()  # demand may be faster than completions are handed out
            if len(inhaler.runs) == READS_MAX:
                return True
        if not state.q3.count or (at_rest and not state.is_flowed):
            self.is_inhaling = False
            return len(inhaler.runs) > 0
        if not self.is_inhaling:
            is_low = state.ram_bytes() < self._lowest()
            self.is_inhaling = is_low or (state.is_flowed and state.fits())
        if self.is_inhaling:
            self.is_inhaling = self._read_on()
        return self.is_inhaling or len(inhaler.runs) > 0

    def _read_on(self) -> bool:
        """Submit the next read, if there is room and anything to read. Return whether it is under
        way."""
        state = self._state
        if state.is_lazy or state.becomes_lazy or state.engine.failed is not None:
            return False
        target = state.target_bytes
        highest = READ_AHEAD_BYTES if target >= UNLIMITED else high_mark(target)
        worthwhile = min(RUN_BYTES_MAX, target >> 5)
        if state.is_flowed and state.fits():
            highest = max(highest, target - state.spare_bytes())
            worthwhile = 0
        room = highest - state.ram_bytes()
        if room <= worthwhile:  # else a get now and then would read a few messages each time
            return False
        rows_max = segment_rows(state)
        try:
            if self.inhaler.begin(room, rows_max):
                return True
            self._read_at_once(room)
        except OSError as problem:
            self._not_read(f"reading ahead failed: {problem}")
        return False

    def _read_at_once(self, room: int) -> None:
        """Read a run that no worker reads (one with a damaged message, or whose store file was
        replaced), as a fetch would; once in a tick, and only if the whole queue fits in RAM."""
        state = self._state
        if not state.is_flowed or not state.q3.count or not state.fits():
            return
        if state.q3.first().size + ALPHA_BYTES > room:
            return
        betas_to_alphas(state, min(room, RUN_BYTES_MAX), AT_ONCE_MESSAGES)
        settle(state, load_rows(state))
        self.report_set_aside()
        self.note_recovered()

    def unlink(self) -> None:
        """Drop what refers back to the queue, which was deleted."""
        self.on_read = None
        self.inhaler.on_end = _go_on_nowhere

    def _read_ended(self, problem: str) -> None:
        """Go on after a read; problem: why it failed, "" if it did not."""
        self.note_recovered()
        if self.is_inhaling:
            if problem:
                self._not_read(problem)
            else:
                self.is_inhaling = self._read_on()
                if not self.is_inhaling and not self.inhaler.runs and self.on_read is not None:
                    self.on_read()

    def _not_read(self, text: str) -> None:
        self.is_inhaling = False
        self.report("page_in_failed", text)

    def _lowest(self) -> int:
        target = self._state.target_bytes
        if target >= UNLIMITED:
            return READ_AHEAD_BYTES
        return min(self._min_bytes, low_mark(target))

    # ---- events --------------------------------------------------------------------------------

    def report(self, kind: str, text: str) -> None:
        """Report an event; the text begins with the queue."""
        if self._on_event is not None:
            index = self._state.index
            self._on_event(kind, f"queue {queue_title(index.name)!r}: {text}")

    def report_set_aside(self) -> None:
        """Report messages that were found damaged since the last call."""
        events = self._state.set_aside_events
        if events:
            self._state.set_aside_events = []
            for text in events:
                self.report("corruption", text)
            self.note_recovered()  # they may have been the last that were out
