"""VqHolder: what the engine sees of a VariableQueue: arrivals, and what a checkpoint must write.

The engine hands each new entry to the queue's Holder, and at a checkpoint asks for what is only in
RAM and log. That is what is in q1, in q4 or pending, and on no slot yet: whatever was paged out, or
was read back, is on disk already. What dies the queue has let go of before the engine is told.
"""

from bisect import bisect_left

from penstock.message import Entry
from penstock.queues.vq_pending import VqPending
from penstock.queues.vq_state import seq_of
from penstock.storage.holder import Holder


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

    def get(self, seq: int) -> Entry | None:
        state = self._state
        held = state.ram_pending.get(seq)
        if held is not None:
            return held
        for alphas in (state.q4, state.q1):
            at = bisect_left(alphas, seq, key=seq_of)
            if at < len(alphas) and alphas[at].seq == seq:
                return alphas[at]
        return None

    def materialise(self, below: int) -> list[Entry]:
        """A queue may have millions in RAM that earlier checkpoints have put onto their slots: they
        are the oldest, so the looking goes from the end, and stops there."""
        state = self._state
        least = self._on_slots_below
        found: list[Entry] = []
        for alphas in (state.q1, state.q4):  # ascending, q1 behind q4
            for entry in reversed(alphas):
                if entry.seq < least:
                    break
                if not entry.on_slot and entry.seq < below and entry.message.persistent:
                    found.append(entry)
        found.reverse()
        pending = [
            entry
            for entry in state.ram_pending.values()
            if not entry.on_slot and entry.seq < below and entry.message.persistent
        ]
        if pending:
            found += pending
            found.sort(key=seq_of)
        return found

    def materialised(self, entries: list[Entry]) -> None:
        """They are on their slots, and so is all before them: they come in ascending order."""
        if entries:
            self._on_slots_below = max(self._on_slots_below, entries[-1].seq + 1)
