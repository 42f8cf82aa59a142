"""MeasuredSelector: how much CPU one iteration of an event loop took, for tests that bound it.

A loop asks its selector what is ready, calls what is due, and asks again. What its thread computes
between two questions is one iteration: for so long nobody else is served. It is CPU time of the
thread and not time on the wall, so that it does not depend on what else the machine does.

PENSTOCK_MEASURE_LOOP=1 in the environment of a broker makes its vhosts measure; the operation
`loop` of the control socket tells and forgets the longest one. Nobody else pays for it.
"""

import asyncio
import selectors
import time
from collections.abc import Mapping
from typing import Final

VARIABLE: Final = "PENSTOCK_MEASURE_LOOP"


class MeasuredSelector(selectors.DefaultSelector):
    """longest_s: CPU seconds of the longest iteration so far; the reader sets it back."""

    def __init__(self) -> None:
        super().__init__()
        self.longest_s = 0.0
        self._since_s = time.thread_time()

    def select(
        self, timeout: float | None = None
    ) -> list[tuple[selectors.SelectorKey, int]]:  # fmt: skip
        """As every selector does."""
        self.longest_s = max(self.longest_s, time.thread_time() - self._since_s)
        ready = super().select(timeout)
        self._since_s = time.thread_time()
        return ready


def new_loop(environment: Mapping[str, str]) -> asyncio.AbstractEventLoop:
    """An event loop, measured if the environment says so."""
    if environment.get(VARIABLE) != "1":
        return asyncio.new_event_loop()
    return asyncio.SelectorEventLoop(MeasuredSelector())


def take_longest_s(loop: asyncio.AbstractEventLoop) -> float | None:
    """The longest iteration since this was last asked, in CPU seconds; None: it does not
    measure."""
    selector = getattr(loop, "_selector", None)
    if not isinstance(selector, MeasuredSelector):
        return None
    longest_s, selector.longest_s = selector.longest_s, 0.0
    return longest_s
