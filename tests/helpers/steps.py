"""Steps: what a call costs, counted and not timed: lines of Penstock that it runs, bytes it holds.

Lines are counted by a trace function, so a loop counts once for each round, also one in a generator
that another module drives. Compiled modules have no lines; the bytes that are allocated on the way
(a copy of a whole queue, for instance) are counted there too. A test compares the cost of one call
beside a short backlog with that of the same call beside a long one.
"""

import functools
import os
import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

import penstock

# With a separator at the end: a directory beside it may begin with the same name.
PACKAGE: Final = os.path.join(os.path.realpath(os.path.dirname(penstock.__file__)), "")


class Cost:
    """lines: run in modules of Penstock. bytes: allocated at most at any time of the call, more
    than before it."""

    def __init__(self, lines: int, peak_bytes: int) -> None:
        self.lines = lines
        self.bytes = peak_bytes


@functools.cache
def is_of_package(filename: str) -> bool:
    """Whether this source file is of the Penstock that is imported, wherever that is: a clone of
    the repository, and so the path of all that is installed in it, may be called penstock too."""
    return os.path.realpath(filename).startswith(PACKAGE)


def cost_of(call: Callable[[], object]) -> Cost:
    """What this call costs. It runs once."""
    lines = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        if not is_of_package(frame.f_code.co_filename):
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
