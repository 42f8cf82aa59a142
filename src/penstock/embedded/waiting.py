"""Waiting: how a call of one thread learns that another thread did what it waits for.

Each call that has to wait makes a Waiter of its own, puts it where whoever can help will look, and
sleeps on it. So exactly the calls that can go on are woken, one by one; a condition variable with a
crowd behind it would wake all for each message.

A Waiter waits for one of two things: for an LSN to be settled (`lsn` > 0: the driver's list), or
for its turn at a queue (`lsn` 0: the getters, putters and joiners of a queue).

Robust against the unforeseen: nobody sleeps for longer than RECHECK_S without looking again, and to
wake a Waiter twice does no harm, so an interrupt in the middle of waking others can delay a call
and never hang it. States change under the box's lock only.

What a loop of asyncio waits with is in `aio`; who wakes whom is in `driver` and `queue_state`.
"""

import threading
from collections.abc import Callable, Generator
from typing import Final, TypeVar

WAITING: Final = 0
WOKEN: Final = 1  # what it waited for may have come
LEADING: Final = 2  # it is now the one that brings in completions
FAILED: Final = 3  # the box has stopped

RECHECK_S: Final = 1.0

T = TypeVar("T")
W = TypeVar("W")


class Waiter:
    """What one call waits with. deadline: monotonic seconds after which it gives up, None:
    never."""

    __slots__ = ("deadline", "lsn", "mode", "state")

    def __init__(self, lsn: int = 0, mode: int = 0, deadline: float | None = None) -> None:
        self.lsn: int = lsn
        self.mode: int = mode
        self.deadline: float | None = deadline
        self.state: int = WAITING

    def wake(self, state: int) -> None:
        """Under the lock: this is the state now; the call goes on."""
        self.state = state

    def sleep(self, seconds: float) -> None:
        """Without the lock: until woken, at most so long."""
        raise AssertionError("a call of a loop waits for its future")


class ThreadWaiter(Waiter):
    """Sleeps on a plain lock, the cheapest thing that a thread can sleep on."""

    __slots__ = ("_lock",)

    def __init__(self, lsn: int = 0, mode: int = 0, deadline: float | None = None) -> None:
        # Not by way of the base: one is made for each put that waits.
        self.lsn = lsn
        self.mode = mode
        self.deadline = deadline
        self.state = WAITING
        self._lock = lock = threading.Lock()
        lock.acquire()

    def wake(self, state: int) -> None:
        self.state = state
        ring(self._lock)

    def sleep(self, seconds: float) -> None:
        self._lock.acquire(timeout=max(seconds, 0.0))


def ring(bell: threading.Lock) -> None:
    """Let whoever sleeps on the bell go on, or the next who will; ringing twice is ringing once."""
    try:
        bell.release()
    except RuntimeError:
        pass


def run_call(call: Generator[W, None, T], wait: Callable[[W], None]) -> T:
    """Run a call, a generator of what it waits for, in this thread; what `wait` raises is raised in
    the call, which cleans up."""
    try:
        waiter = next(call)
        while True:
            try:
                wait(waiter)
            except BaseException as error:  # noqa: BLE001  # the call cleans up, and raises it
                waiter = call.throw(error)
            else:
                waiter = next(call)
    except StopIteration as stop:
        result: T = stop.value
        return result
