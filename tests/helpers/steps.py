"""Steps: what a call costs, counted and not timed: lines of Penstock that it runs, bytes it holds.

Lines are counted by a trace function, so a loop counts once for each round, also one in a generator
that another module drives. Compiled modules have no lines; the bytes that are allocated on the way
(a copy of a whole queue, for instance) are counted there too. A test compares the cost of one call
beside a short backlog with that of the same call beside a long one.
"""

import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any


class Cost:
    """lines: run in modules of Penstock. bytes: allocated at most at any time of the call, more
    than before it."""

    def __init__(self, lines: int, peak_bytes: int) -> None:
        self.lines = lines
        self.bytes = peak_bytes


def cost_of(call: Callable[[], object]) -> Cost:
    """What this call costs. It runs once."""
    lines = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        if "penstock" not in frame.f_code.co_filename:
            return None
        if event == "line":
            lines += 1
        return trace

    was_tracing = tracemalloc.is_tracing()
    if not was_tracing:
        tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    outer = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(outer)
        peak = tracemalloc.get_traced_memory()[1]
        if not was_tracing:
            tracemalloc.stop()
    return Cost(lines, peak - before)
