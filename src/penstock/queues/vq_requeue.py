"""Where requeued messages go back to in a VariableQueue: their old places, by seq.

RabbitMQ merges what comes back into q4 while it belongs before q3's head, reading bodies that left
RAM; then into q3, writing bodies, while it belongs before delta; the rest makes delta wider. A
consumer that takes a million messages and dies would so bring a million bodies back into RAM. Here
what was paged out while it was pending is read only if all of it fits; else q3 begins with it: it
stays rows, and the alphas of q4 behind it are paged out to the front of q3.

What would have to be written and cannot, for want of space, goes the other way: what is before it
is read into q4. The queue is over its limit then, and in order.
"""

from collections import deque
from collections.abc import Iterable
from heapq import merge

from penstock.errors import CorruptionError
from penstock.message import Entry, seq_of
from penstock.queues import inhaler, purger
from penstock.queues.rows import Row, seq_of_row
from penstock.queues.vq_state import ALPHA_BYTES, VQState, alpha_bytes

READ_MESSAGES_MAX = 256  # bodies read back by one requeue: more stay rows
SEQ_MAX = 1 << 62


def put_back(state: VQState, alphas: list[Entry], rows: list[Row]) -> None:
    """Entries in RAM and rows, each ascending, become ready at their places; the caller counts
    them as ready. OSError: none; see the head of this module."""
    state.in_hand = {entry.seq for entry in alphas}
    state.in_hand.update([row.seq for row in rows])
    try:
        _put_back(state, alphas, rows)
    finally:
        state.in_hand = set()


def _put_back(state: VQState, alphas: list[Entry], rows: list[Row]) -> None:
    if not state.is_lazy:
        border = SEQ_MAX
        if state.q3.count:
            border = state.q3.first_seq()
        elif state.delta.count:  # it could not be read
            border = state.delta.start
        first = [row for row in rows if row.seq < border]
        if first:
            loaded = _read_back(state, first)
            if loaded is None:
                border = first[0].seq
                _clear_q4_from(state, border)
            else:
                _merge_into_q4(state, loaded)
                rows = rows[len(first) :]
        early = [entry for entry in alphas if entry.seq < border]
        _merge_into_q4(state, early)
        alphas = alphas[len(early) :]
    if alphas:
        try:
            rows = list(merge(rows, purger.page_out(state, alphas), key=seq_of_row))
        except OSError:
            _put_rows(state, rows)
            _lift(state, alphas[-1].seq)
            _merge_into_q4(state, alphas)
            return
    _put_rows(state, rows)


def _read_back(state: VQState, rows: list[Row]) -> list[Entry] | None:
    """The entries of rows, with bodies; None if there is no room for all of them, or one of them is
    damaged (whoever fetches it will be told)."""
    size = sum(ALPHA_BYTES + row.size for row in rows)
    room = state.target_bytes - state.ram_bytes()
    if len(rows) > READ_MESSAGES_MAX or size > room:
        return None
    entries: list[Entry] = []
    start = 0
    try:
        for i in range(1, len(rows) + 1):
            if i == len(rows) or rows[i].seq >= state.segment_end(rows[start].seq):
                entries += inhaler.load(state, rows[start:i])
                start = i
    except (CorruptionError, OSError):
        return None
    return entries


def _clear_q4_from(state: VQState, border: int) -> None:
    """Alphas of q4 from this seq on go to the front of q3, or, if they cannot be written, stay."""
    count = sum(1 for entry in state.q4 if entry.seq > border)
    while count:
        n = min(count, purger.SLICE_MESSAGES)
        try:
            purger.push_q4(state, n)
        except OSError:
            return
        count -= n


def _merge_into_q4(state: VQState, entries: list[Entry]) -> None:
    if not entries:
        return
    q4 = state.q4
    if not q4 or entries[-1].seq < q4[0].seq:
        q4.extendleft(reversed(entries))
    elif entries[0].seq > q4[-1].seq:
        q4.extend(entries)
    else:
        state.q4 = deque(merge(q4, entries, key=seq_of))
    state.alpha_bytes += sum(alpha_bytes(entry.message) for entry in entries)


def _put_rows(state: VQState, rows: Iterable[Row]) -> None:
    """Rows, ascending, into q3 while they come before delta, else into delta. Where q4 could not be
    cleared for them, what is in q3 and comes before q4's end is lifted into it."""
    later: list[Row] = []
    for row in rows:
        if state.delta.count and row.seq >= state.delta.start:
            later.append(row)
        else:
            state.q3.insert(row)
    try:
        purger.roll_rows(state, later)
    except OSError:
        return  # they are in q3 or q2 again
    finally:
        if state.q4 and state.q3.count and state.q3.first_seq() < state.q4[-1].seq:
            _lift(state, state.q4[-1].seq)


def _lift(state: VQState, below: int) -> None:
    """What is in q3 and delta below a seq is read into q4, which stays in order."""
    behind = deque(entry for entry in state.q4 if entry.seq > state.q3.first_seq())
    for _ in behind:
        state.q4.pop()
    while True:
        if not state.q3.count and state.delta.count and state.delta.start < below:
            inhaler.deltas_to_betas(state, purger.segment_rows(state))
        if not state.q3.count or state.q3.first_seq() >= below:
            break
        inhaler.betas_to_alphas(state, inhaler.RUN_BYTES_MAX, 1)
    state.q4 = deque(merge(state.q4, behind, key=seq_of))
