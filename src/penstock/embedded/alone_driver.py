"""AloneDriver: the thread of a stream that stands alone, and how calls wait for it.

Calls run the core in the caller's thread, under its lock, as those of a box do; what has to be
written they ask of the one thread (`Want`), and sleep until it is done. Many that wait at once are
settled by one sync.

The gate is what every call enters: the lock, and once it is closed, or in a forked child, what says
so. An interrupt in the middle of the core stops it (`alone_core`): what is not on disk may be half
made, and what is will be found when it is opened again.

At the end of the interpreter streams that are still open are closed in order, newest first.

Not here: what there is to do (`alone_core`), waiting in a loop (`penstock.aio.alone`).
"""

import atexit
import os
import threading
from collections import deque
from collections.abc import Callable, Generator
from typing import TypeVar

from penstock.embedded.alone_core import AloneCore
from penstock.embedded.box_errors import BoxClosedError
from penstock.embedded.gates import Gate, Guard
from penstock.embedded.waiting import RECHECK_S, WAITING, ThreadWaiter, Waiter, ring, run_call
from penstock.errors import ForkedError

T = TypeVar("T")
Tell = Callable[[str, str], None]
OpenCore = Callable[[Tell, threading.Lock], AloneCore]


class AloneDriver:
    """See the head of this module. open_core: given what is to be told of events, and the lock;
    what it raises, this raises. tell: called in the thread, without the lock, with each event."""

    def __init__(self, path: str, open_core: OpenCore, tell: Tell) -> None:
        self.path: str = path
        self._tell_owner = tell
        self._news: deque[tuple[str, str]] = deque()
        self._bell = threading.Lock()
        self._bell.acquire()
        self._is_closing: bool = False
        self._close_error: Exception | None = None
        self._pid = os.getpid()
        self.lock = threading.Lock()
        self.core: AloneCore = open_core(self._keep, self.lock)
        self.gate: threading.Lock | Gate = self.lock
        self.guard = Guard(self)
        self._thread = threading.Thread(target=self._run, name="penstock-stream", daemon=True)
        try:
            self._thread.start()
        except BaseException:
            self.core.close()
            raise
        _open.append(self)

    def nudge(self) -> None:
        """There is work for the thread."""
        ring(self._bell)

    def interrupted(self, error: BaseException) -> None:
        """Under the lock: an exception that is no Exception has interrupted the core."""
        self.core.interrupted(error)
        self.nudge()

    # ---- calls ---------------------------------------------------------------------------------

    def new_waiter(self, lsn: int = 0, deadline: float | None = None) -> Waiter:
        """What a call waits with. lsn: 0 if it may also be woken for nothing."""
        return ThreadWaiter(lsn, 0, deadline)

    def new_want_waiter(self) -> Waiter:
        """What a call waits with for the thread."""
        return self.new_waiter(1)

    def run(self, call: Generator[Waiter, None, T]) -> T:
        """Run a call in this thread."""
        return run_call(call, self.wait)

    def wait(self, waiter: Waiter) -> None:
        """Until it is woken; one that may be woken for nothing also at its deadline, or after a
        second."""
        while waiter.state == WAITING:
            seconds = RECHECK_S
            if waiter.deadline is not None:
                seconds = min(waiter.deadline - self.core.clock.monotonic(), RECHECK_S)
            waiter.sleep(seconds)
            if not waiter.lsn:
                return

    # ---- the thread ----------------------------------------------------------------------------

    def _keep(self, kind: str, text: str) -> None:
        self._news.append((kind, text))
        ring(self._bell)

    def _run(self) -> None:
        while not self._is_closing:
            self._bell.acquire(timeout=self.core.next_s())
            self.core.turn()
            self._tell()
        try:
            self.core.close()
        except Exception as error:  # noqa: BLE001  # for who closes it
            self._close_error = error
        with self.lock:
            self.gate = Gate(self._refuse_closed)
            self.core.wake_followers()
        self._tell()
        if self in _open:
            _open.remove(self)

    def _tell(self) -> None:
        while self._news:
            kind, text = self._news.popleft()
            self._tell_owner(kind, text)

    # ---- the end -------------------------------------------------------------------------------

    def close(self) -> None:
        """Force, save the readers, and let others have the directory. Again: nothing. OSError,
        SyncFailedError; it is closed all the same."""
        if self._pid != os.getpid():
            return
        self._is_closing = True
        self.nudge()
        if threading.current_thread() is not self._thread:  # else on_event has called it
            self._thread.join()
        error, self._close_error = self._close_error, None
        if error is not None:
            raise error

    def _refuse_closed(self) -> None:
        raise BoxClosedError(self.path, "stream")

    def in_child(self) -> None:
        """This is a child that was forked: nothing here may be used in it."""
        self.gate = Gate(self._refuse_forked)
        self.core.in_child()

    def _refuse_forked(self) -> None:
        raise ForkedError(self.path, self._pid, os.getpid())


_open: list[AloneDriver] = []


def _close_all() -> None:
    """At the end of the interpreter."""
    for driver in reversed(list(_open)):
        try:
            driver.close()
        except Exception as error:  # noqa: BLE001  # the others are to be closed too
            driver._tell_owner("stopped", f"the stream could not be closed in order: {error}")


def _in_child() -> None:
    drivers = list(_open)
    _open.clear()
    for driver in drivers:
        driver.in_child()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_in_child)
