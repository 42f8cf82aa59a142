"""Waiting: how a call enters a box, and how it learns that another thread did what it waits for.

Each call that has to wait makes a Waiter of its own, puts it where whoever can help will look, and
sleeps on it. So exactly the calls that can go on are woken, one by one; a condition variable would
wake all that wait for each message.

A Waiter waits for one of two things: for an LSN to be settled (`lsn` > 0: a list of the driver), or
for its turn at a queue (`lsn` 0: the getters, putters and joiners of a queue). Its state changes
under the lock of the box only. Nobody sleeps for longer than RECHECK_S without looking again, and
waking a Waiter twice does no harm, so an interrupt during a wake-up can delay a call but never
block it forever.

Every call first enters the gate of its box or stream, and inside it the guard. While all is well
the gate is the lock itself. A box that is closed, or in a forked child, has a Gate there, whose
`__enter__` raises, so calls pay nothing for these checks. The guard notices that a call was
interrupted in the middle of a change.
"""

import atexit
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Final, TypeVar

from penstock.errors import BoxClosedError, ForkedError

WAITING: Final = 0
WOKEN: Final = 1  # what it waited for may have happened
LEADING: Final = 2  # it is now the one that brings in completions
FAILED: Final = 3  # the box has stopped

RECHECK_S: Final = 1.0
SOON_S: Final = 0.5  # how long `is_free_soon` waits
LOOK_S: Final = 0.001

T = TypeVar("T")
W = TypeVar("W")

Exit = Callable[[type[BaseException] | None, BaseException | None, TracebackType | None], None]


class Waiter:
    """What one call waits with. deadline: the time, in monotonic seconds, at which the call gives
    up; None: never. lsn, mode: the record to be settled and how, 0 for a turn at a queue."""

    __slots__ = ("deadline", "lsn", "mode", "state")

    def __init__(self, lsn: int = 0, mode: int = 0, deadline: float | None = None) -> None:
        self.lsn: int = lsn
        self.mode: int = mode
        self.deadline: float | None = deadline
        self.state: int = WAITING

    def wake(self, state: int) -> None:
        """Under the lock: set the state and let the call go on."""
        self.state = state

    def sleep(self, seconds: float) -> None:
        """Without the lock: sleep until woken, at most for so many seconds."""
        raise AssertionError("a call of a loop waits for its future")


class ThreadWaiter(Waiter):
    """A Waiter that sleeps on a plain lock, the cheapest thing that a thread can sleep on."""

    __slots__ = ("_lock",)

    def __init__(self, lsn: int = 0, mode: int = 0, deadline: float | None = None) -> None:
        # Does not call the base, to save time: one is made for each put that waits.
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
    """Wake the thread that sleeps on this lock, or the next. A second time does nothing."""
    try:
        bell.release()
    except RuntimeError:
        pass


def is_free_soon(lock: threading.Lock, monotonic: Callable[[], float]) -> bool:
    """Wait until a lock is free, up to SOON_S, without taking it. Returns whether it is.

    The garbage collector may call this, when it ends an iterator that nobody uses any more. It can
    do so at any point of this thread's work, even while this thread holds the lock. This function
    does not take the lock to find out: an interrupt before the release would leave the lock taken.
    """
    until_s = monotonic() + SOON_S
    while lock.locked():
        if monotonic() >= until_s:
            return False
        ThreadWaiter().sleep(LOOK_S)
    return True


def run_call(call: Generator[W, None, T], wait: Callable[[W], None]) -> T:
    """Run a call, a generator of what it waits for, in this thread, and return its result. What
    `wait` raises is raised in the call, which cleans up."""
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


class Gate:
    """A gate that no call may enter. refuse: raises the reason."""

    def __init__(self, refuse: Callable[[], None]) -> None:
        self._refuse = refuse

    def __enter__(self) -> bool:
        self._refuse()
        return True

    def __exit__(self, *_: object) -> None:
        """Do nothing: the gate was never entered."""


class Guard:
    """Reports an exception that is not an Exception, as KeyboardInterrupt, as an interrupt."""

    def __init__(self, box: "OpenDriver") -> None:
        self._box = box

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, at: object) -> None:
        if error is not None and not isinstance(error, Exception):
            self._box.interrupted(error)


class OpenDriver(ABC):
    """The base of the drivers of an open box and of an open stream: the gate of its calls."""

    noun = "box"

    def __init__(self, path: str) -> None:
        self.path: str = path
        self.lock = threading.Lock()
        self.gate: AbstractContextManager[object] = self.lock
        self.guard = Guard(self)
        self._pid = os.getpid()

    @abstractmethod
    def interrupted(self, error: BaseException) -> None:
        """Under the lock: stop using the core, which an interrupt has left half changed."""

    @abstractmethod
    def new_waiter(self, lsn: int = 0, *, deadline: float | None = None) -> Waiter:
        """Return what a call waits with. lsn: 0 if it may also be woken for nothing."""

    @abstractmethod
    def wait(self, waiter: Waiter) -> None:
        """Wait until the waiter is woken, or may look again."""

    def run(self, call: Generator[Waiter, None, T]) -> T:
        """Run a call in this thread and return its result."""
        return run_call(call, self.wait)

    @abstractmethod
    def close(self) -> None:
        """Close it."""

    @abstractmethod
    def not_closed(self, error: Exception) -> None:
        """Report that it could not be closed in order."""

    def shut(self) -> None:
        """Refuse all new calls."""
        self.gate = Gate(self._refuse_closed)

    def in_child(self) -> None:
        """In a forked child: refuse all calls."""
        self.gate = Gate(self._refuse_forked)

    def _refuse_closed(self) -> None:
        raise BoxClosedError(self.path, self.noun)

    def _refuse_forked(self) -> None:
        raise ForkedError(self.path, self._pid, os.getpid())


class OpenDrivers:
    """The boxes and streams that are open in this process. Those that are left at the end of the
    interpreter are closed, the last opened first; a forked child may not use them."""

    def __init__(self) -> None:
        self._open: list[OpenDriver] = []
        atexit.register(self._close_all)
        os.register_at_fork(after_in_child=self._in_child)

    def add(self, driver: OpenDriver) -> None:
        """Add what was opened."""
        self._open.append(driver)

    def forget(self, driver: OpenDriver) -> None:
        """Remove what is closed."""
        if driver in self._open:
            self._open.remove(driver)

    def _close_all(self) -> None:
        for driver in reversed(list(self._open)):
            try:
                driver.close()
            except Exception as error:  # noqa: BLE001  # the others must be closed as well
                driver.not_closed(error)

    def _in_child(self) -> None:
        drivers = list(self._open)
        self._open.clear()
        for driver in drivers:
            driver.in_child()


OPEN: Final = OpenDrivers()
