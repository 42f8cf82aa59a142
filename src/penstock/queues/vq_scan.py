"""Looking through a VariableQueue without changing it: fold, browse, and what a purge must release.

Bodies are read in runs and not kept, so a browser costs a run of RAM whatever it sees, and what was
paged out stays out.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from heapq import merge
from itertools import islice
from typing import Final

from penstock.errors import CorruptionError
from penstock.message import Entry, Message, seq_of
from penstock.queues import inhaler
from penstock.queues.rows import IN_STORE, PERSISTENT, Row
from penstock.queues.vq_state import VQState
from penstock.storage.queue_segment import IN_STORE as SLOT_IN_STORE

RUN_ROWS: Final = 64  # whose bodies are read at once

Found = tuple[int, Message, bool]  # seq, message with body, is pending


def everything(state: VQState) -> Iterator[Found]:
    """All messages, ready and pending, ascending by seq."""
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


def ready_after(state: VQState, after: int, run: int = RUN_ROWS) -> Iterator[Found]:
    """Ready messages above a seq, ascending; damaged ones are left out. run: how many are read from
    disk at once; whoever wants a few asks for no more."""
    if state.has_back:
        yield from _head(state, after, run)
    else:
        yield from _alphas(state, state.q4, after)
    yield from _bodies(state, state.q3.rows(after), run)
    delta = state.delta
    start = max(delta.start, after + 1)
    while delta.count and start < delta.end:
        stop = min(state.segment_end(start), delta.end, start + run)
        yield from _bodies(state, iter(_rows_of_delta(state, start, stop)), run)
        start = stop
    yield from _bodies(state, state.q2.rows(after), run)
    yield from _alphas(state, state.q1, after)


def _head(state: VQState, after: int, run: int) -> Iterator[Found]:
    """q4 and what came back to it."""
    back = deque(state.back[seq] for seq in sorted(state.back))
    alphas = merge(_alphas(state, state.q4, after), _alphas(state, back, after), key=_seq_of_found)
    return merge(alphas, _bodies(state, state.back_rows.rows(after), run), key=_seq_of_found)


def _seq_of_found(found: Found) -> int:
    return found[0]


def _alphas(state: VQState, entries: deque[Entry], after: int) -> Iterator[Found]:
    at = bisect_right(entries, after, key=seq_of)
    for entry in islice(entries, at, None):
        message = _whole(state, entry.seq, entry.message)
        if message is not None:
            yield entry.seq, message, False


def _pending(state: VQState) -> Iterator[Found]:
    in_ram = sorted(state.ram_pending)
    at = 0
    for seq, message, _ in _bodies(state, state.disk_pending.rows(), RUN_ROWS):
        while at < len(in_ram) and in_ram[at] < seq:
            yield from _pending_in_ram(state, in_ram[at])
            at += 1
        yield seq, message, True
    for seq in in_ram[at:]:
        yield from _pending_in_ram(state, seq)


def _pending_in_ram(state: VQState, seq: int) -> Iterator[Found]:
    message = _whole(state, seq, state.ram_pending[seq].message)
    if message is not None:
        yield seq, message, True


def _whole(state: VQState, seq: int, message: Message) -> Message | None:
    """The message with a body that does not stay in RAM; None if it is damaged."""
    if message.body is not None:
        return message
    copy = message.copy()
    try:
        state.engine.load_body(state.index, seq, copy)
    except CorruptionError:
        return None
    return copy


def _rows_of_delta(state: VQState, start: int, stop: int) -> list[Row]:
    seqs = state.ready_on_disk(start, stop)
    transients = set(state.transients_between(start, stop))
    return inhaler.rows_on_disk(state, seqs, transients)


def _bodies(state: VQState, rows: Iterator[Row], most: int) -> Iterator[Found]:
    """Rows with their bodies, read in runs of one segment."""
    run: list[Row] = []
    for row in rows:
        if run and (len(run) >= most or row.seq >= state.segment_end(run[0].seq)):
            yield from _read(state, run)
            run = []
        run.append(row)
    if run:
        yield from _read(state, run)


def _read(state: VQState, rows: list[Row]) -> Iterator[Found]:
    try:
        entries = inhaler.load(state, rows, stays=False, has_large=True)
    except CorruptionError:
        entries = []
        for row in rows:
            try:
                entries += inhaler.load(state, [row], stays=False, has_large=True)
            except CorruptionError:
                continue  # whoever fetches it will be told
    for entry in entries:
        yield entry.seq, entry.message, False


def paged_transients(state: VQState) -> Iterator[tuple[int, int, int, int]]:
    """Transient messages that are paged out and ready: (seq, id, store file, whether the segment's
    files have something of it). What cannot be read is left out: it holds no more than a reference
    in the transient store, which is gone with the process."""
    for rows in (state.back_rows, state.q3, state.q2):
        for row in rows.rows():
            if not row.flags & PERSISTENT:
                file = inhaler.store_file_of(state, row) if row.flags & IN_STORE else 0
                yield row.seq, row.id, file, inhaler.is_in_files(row)
    index = state.index
    for number in sorted(state.delta_transients):
        start = number * index.slots
        for seq in state.transients_between(start, start + index.slots):
            try:
                (slot,) = index.files(number).slots([seq])
                file = 0
                if slot.flags & SLOT_IN_STORE:
                    file = index.files(number).entries_of([slot])[0].store_file
            except CorruptionError:
                yield seq, 0, 0, 1
                continue
            yield seq, slot.id, file, 1
