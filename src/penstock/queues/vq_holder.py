"""VqHolder: what the engine sees of a VariableQueue: arrivals, and what a checkpoint must write.

The engine hands each new entry to the queue's Holder, and at a checkpoint asks for what is only in
RAM and log. That is what is in q1, in q4 or pending, and on no slot yet: whatever was paged out, or
was read back, is on disk already. What dies the queue has let go of before the engine is told.
"""

from bisect import bisect_left
from collections import deque
from itertools import islice

from penstock.message import Entry, seq_of
from penstock.queues.vq_pending import VqPending
from penstock.storage.holder import Holder


def _newest(alphas: deque[Entry], least: int, below: int, n: int) -> list[Entry]:
    """The n newest with seq < below, descending; less, if there are no more with seq >= least.
    Nothing is looked at but one in each power of two; and newer ones are not walked over, which
    would touch each of them, but turned away: a quarter of the time."""
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


class VqHolder(Holder):
    """What the engine calls: arrivals, and what a checkpoint must write."""

    def __init__(self, queue: VqPending) -> None:
        self._queue = queue
        self._state = queue.state
        # What is below it in q1, q4 and pending, and persistent, is on its slot.
        self._on_slots_below: int = 0

    def add(self, entry: Entry) -> None:
        self._queue.arrive(entry)

    def drop(self, first: int, n: int) -> None:
        """Nothing: the queue itself took it out before the engine was told."""

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
        """A queue may have millions in RAM that earlier checkpoints have put onto their slots: they
        are the oldest, and hardly any of them is listed."""
        state, least = self._state, self._on_slots_below
        found = _newest(state.q1, least, below, n)
        if len(found) < n and state.q4:  # q1 is behind q4
            found += _newest(state.q4, least, below, n - len(found))
        return found

    def unsettled(self) -> list[Entry]:
        state = self._state
        found = [entry for entry in state.ram_pending.values() if not entry.on_slot]
        if state.back:
            found += [entry for entry in state.back.values() if not entry.on_slot]
        return found

    def materialised(self, entries: list[Entry]) -> None:
        """They are on their slots, and so is all before them: they come in ascending order."""
        if entries:
            self._on_slots_below = max(self._on_slots_below, entries[-1].seq + 1)
