"""PollingLoop: the loop of each process of the broker, an asyncio loop that waits in a Poller.

poller has what the poller runs, and why.

**Measuring the loop.** PENSTOCK_MEASURE_LOOP=1 in the environment of a broker makes its processes
measure the CPU time of each iteration of their loop, for tests that limit it: during an iteration
no other client is served. It is the CPU time of the thread, so it does not depend on the load of
the machine. The operation `loop` of the control socket returns the longest one, and resets it.
"""

import asyncio
import os
import selectors
import time
from collections.abc import Callable, Coroutine, Mapping
from contextvars import Context
from typing import Any, Final, TypeVar

from penstock.server.poller import Poller

T = TypeVar("T")

VARIABLE: Final = "PENSTOCK_MEASURE_LOOP"


class PollingSelector(selectors.DefaultSelector):
    """The selector of a PollingLoop: it waits in a Poller, which runs what is not asyncio's.

    If it measures, longest_s is the CPU seconds of the longest iteration; its reader resets it. A
    loop asks its selector what is ready, calls what is due, and asks again: the time between two
    calls of `select` is one iteration, and so is each pass of the poller.
    """

    def __init__(self, *, is_measuring: bool) -> None:
        super().__init__()
        self.poller = Poller(self.fileno())
        self.poller.is_measuring = is_measuring
        self._since_s = time.thread_time()

    def select(
        self, timeout: float | None = None
    ) -> list[tuple[selectors.SelectorKey, int]]:  # fmt: skip
        """Wait as every selector does."""
        poller = self.poller
        if poller.is_measuring:
            poller.longest_s = max(poller.longest_s, time.thread_time() - self._since_s)
        is_ready = poller.poll(-1.0 if timeout is None else max(timeout, 0.0))
        ready = super().select(0) if is_ready else []
        if poller.is_measuring:
            self._since_s = time.thread_time()
        return ready

    def close(self) -> None:
        """Close the descriptors."""
        self.poller.close()
        super().close()


class PollingLoop(asyncio.SelectorEventLoop):
    """An event loop that waits in a Poller."""

    def __init__(self, *, is_measuring: bool) -> None:
        selector = PollingSelector(is_measuring=is_measuring)
        self.poller = selector.poller
        super().__init__(selector)

    # What the poller runs may call these: then it has to return, for the loop has something to do.

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        self.poller.must_return = True
        return super().call_soon(callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:  # fmt: skip
        poller = self.poller
        if not 0 <= poller.until_s <= when:  # else the loop looks again before it is due
            poller.must_return = True
        return super().call_at(when, callback, *args, context=context)


def polling_loop(environment: Mapping[str, str] = os.environ) -> PollingLoop:
    """Return a loop with a poller; it measures if the environment asks for it."""
    return PollingLoop(is_measuring=environment.get(VARIABLE) == "1")


def run(program: Coroutine[Any, Any, T]) -> T:
    """Run a program on a new PollingLoop; its result."""
    with asyncio.Runner(loop_factory=polling_loop) as runner:
        return runner.run(program)


def take_longest_s(loop: asyncio.AbstractEventLoop) -> float | None:
    """Return the CPU seconds of the longest iteration since the last call, None if the loop does
    not measure."""
    if not isinstance(loop, PollingLoop) or not loop.poller.is_measuring:
        return None
    longest_s, loop.poller.longest_s = loop.poller.longest_s, 0.0
    return longest_s
