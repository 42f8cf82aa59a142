"""TickPace: how soon whoever owns an engine and its queues is to tick again.

Library and broker tick alike: at once, but for others to get in, when there is more to do; every
10 ms while a checkpoint has slices left; ten times a second, or as often as syncs are due by the
clock, while something is under way; once a second while publishers are refused for want of space,
so that free space is noticed; and else when a round of the memory monitor is. What is due at a time
of its own their owner knows.
"""

from typing import Final

from penstock.storage.checkpointer import IDLE, SLICES
from penstock.storage.durability import DISK
from penstock.storage.engine import StorageEngine

BUSY_S: Final = 0.1
BLOCKED_S: Final = 1.0
IDLE_AGAIN_S: Final = 2.5
MORE_S: Final = 0.001  # between two slices of what there is more of; others get in
CHECKPOINT_S: Final = 0.01  # between two slices of a checkpoint


class TickPace:
    """Of one engine. interval_ms: between two syncs by the clock, which a tick starts."""

    def __init__(self, interval_ms: int) -> None:
        self._busy_s: float = min(BUSY_S, interval_ms / 1000)
        self._seen_lsn: int = 0

    def next_s(self, engine: StorageEngine, due_s: float, *, has_more: bool) -> float:
        """Seconds until the next tick, after one. due_s: until something else is due."""
        if has_more:
            return MORE_S
        if engine.checkpoint_phase == SLICES:
            return CHECKPOINT_S
        lsn = engine.last_lsn
        is_busy = (
            lsn != self._seen_lsn
            or engine.settled(DISK) < lsn
            or engine.has_pending
            or engine.checkpoint_phase != IDLE
        )
        self._seen_lsn = lsn
        if is_busy:
            return min(self._busy_s, due_s)
        return min(BLOCKED_S if engine.blocked else IDLE_AGAIN_S, due_s)
