"""Where requeued messages go back to in a VariableQueue: their old places, by seq.

RabbitMQ merges what comes back into q4 while it belongs before q3's head, reading bodies that left
RAM; then into q3, writing bodies, while it belongs before delta; the rest makes delta wider. A
consumer that takes a million messages and dies would so bring a million bodies back into RAM, and
one that rejects what it gets would walk over all that is ready for each message. Here

    before q4's head             q4's head; in RAM
    before q3's, in RAM          `back`, a heap by seq
    before q3's, paged out       `back_rows`: it stays a row until its turn has come
    behind that                  q3 or delta, paged out

so the cost of a requeue follows from what comes back and not from what is ready: nothing of the
backlog is moved, read or written for it (tests/unit/queues/test_requeue_cost.py counts).

What would have to be written and cannot, for want of space, goes the other way: what is before it
joins `back_rows`, and it goes to `back`. The queue is over its limit then, and in order.
"""

from collections.abc import Iterable
from heapq import merge

from penstock.message import Entry
from penstock.queues import inhaler, purger
from penstock.queues.rows import Row, seq_of_row
from penstock.queues.vq_state import VQState

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
            rows = list(merge(rows, purger.page_out(state, alphas), key=seq_of_row))
        except OSError:
            _put_rows(state, rows)
            _lift(state, alphas[-1].seq)
            state.place(alphas)
            return
    _put_rows(state, rows)


def _put_rows(state: VQState, rows: Iterable[Row]) -> None:
    """Rows, ascending, into q3 while they come before delta, else into delta."""
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


def _lift(state: VQState, below: int) -> None:
    """The rows of q3 and delta below a seq join those that came back."""
    while True:
        if not state.q3.count and state.delta.count and state.delta.start < below:
            inhaler.deltas_to_betas(state, purger.segment_rows(state))
        if not state.q3.count or state.q3.first_seq() >= below:
            return
        state.place_row(state.q3.pop_first())
