"""BoxThread: the one lock and the one thread of a box, from its opening to its end.

Calls run the core in the caller's thread, under the lock. The thread has what nobody calls: timers
(the engine's tick every 100 ms while there is something to do, due delays and expiry, the memory
monitor; an idle box wakes it every 2.5 s), and the callbacks of the box, which it calls outside of
the lock, so that they may use the box. And it opens, mends and closes the core, because of
interrupts:

**Interrupts.** A KeyboardInterrupt, or another exception out of a signal handler, comes to the main
thread between any two steps of what it does there; never to this one. In the middle of the core it
leaves a change half made. `interrupted` then stops the engine and closes the gate; the thread opens
the core again from its log, as after a crash of the process: nothing confirmed is lost, what was
unacknowledged is redelivered, transient messages are gone. Calls wait at the gate meanwhile.

**The gate** is what every call enters: the lock itself, for as long as all is well. A box that is
closed, that is in a forked child or that must be mended has another thing there, whose `__enter__`
raises or waits. So none of this costs a call anything. Who waited for the mending is handed the
lock by the thread, one after the other, for only so it is known at any moment who has it.

**A fork** shares files and copies locks, of which some thread may hold one. In the child the gate
is replaced at once, its copies of the directory's locks are closed, and nothing else is touched;
the child's exit closes nothing of the parent's.

At the end of the interpreter boxes that are still open are closed in order, newest first. A box
that is not is as after a crash, which is no harm.

Not here: how calls wait for the disk and for each other (`driver`).
"""

import atexit
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from penstock.embedded.box_errors import BoxClosedError
from penstock.embedded.box_transaction import BoxTransaction
from penstock.embedded.core import Core
from penstock.embedded.gates import Exit, Gate, Guard
from penstock.embedded.queue_state import QueueState
from penstock.embedded.waiting import FAILED, RECHECK_S, WAITING, WOKEN, ThreadWaiter, Waiter, ring
from penstock.errors import ForkedError, StoppedError

IDLE_S: Final = 2.5  # between two looks at an idle box
ACKS_S: Final = 0.005  # until acknowledgements are written that nothing else has written
IDLE_FROM_S: Final = 1.0  # a longer pause is one that a new message may have to end


class MendingGate:
    """What a call enters while the box is to be mended: it waits to be handed the lock.

    The interpreter looks for interrupts after each call and where a function of Python begins: from
    the moment that the lock is this call's, nothing of that may come before the block that gives it
    back, nor between its end and the release. So all is in one function, and the block ends with
    the lock's own `__exit__`, which the interpreter asks for before it enters.
    """

    def __init__(self, box: "BoxThread") -> None:
        self._box = box

    def __enter__(self) -> bool:
        box = self._box
        waiter = ThreadWaiter()
        try:
            box.menders.append(waiter)
            box.nudge()
            while waiter.state == WAITING and not box.is_closed:
                waiter.sleep(RECHECK_S)
            if waiter.state == WOKEN:
                return True
        except BaseException:
            try:
                box.menders.remove(waiter)
            except ValueError:  # it is being handed over
                while waiter.state == WAITING and not box.is_closed:
                    waiter.sleep(RECHECK_S)
                if waiter.state == WOKEN:
                    box.lock.release()
            raise
        if box.is_closed:
            raise BoxClosedError(box.path)
        text = f"the box {box.path} was interrupted, and could not be opened again"
        raise StoppedError(f"{text}: {box.mend_error}") from box.mend_error

    @property
    def __exit__(self) -> Exit:
        return self._box.lock.__exit__


class BoxThread:
    """See the head of this module. open_core makes the core, at first and after an interrupt, then
    with the queues that there were; what it raises at first, this raises."""

    def __init__(
        self, path: str, open_core: Callable[["BoxThread", Mapping[str, QueueState]], Core]
    ) -> None:
        self.path: str = path
        self.core: Core  # once it is open
        self.lock = threading.Lock()
        self.gate: threading.Lock | Gate | MendingGate = self.lock
        self.guard = Guard(self)
        self.is_idle: bool = True  # the thread sleeps long: whoever gives it work calls `nudge`
        self.is_closed: bool = False
        self.unwritten_acks: int = 0
        self.has_acks_to_watch: bool = False  # the thread writes them soon
        self.transactions: dict[object, BoxTransaction] = {}  # by their owners
        self.news: deque[Callable[[], None]] = deque()  # calls of the owner's callbacks
        self._open_core = open_core
        self._pid = os.getpid()
        self._is_closing: bool = False
        self._is_interrupted: bool = False
        self.menders: deque[Waiter] = deque()  # who waits for the lock of a box to be mended
        self.mend_error: Exception | None = None
        self._error: BaseException | None = None  # of opening or closing, for who asked for that
        self._bell = threading.Lock()
        self._bell.acquire()
        self._is_open = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-box", daemon=True)
        _open.append(self)
        try:
            self._thread.start()
            self._is_open.wait()
        except BaseException:
            self._is_closing = True
            ring(self._bell)
            raise
        self._raise_error()

    # ---- of whoever knows how calls wait ---------------------------------------------------------

    def fail(self) -> None:
        """Under the lock: the engine has stopped; say so to all who wait for it."""

    def wake_settled(self) -> None:
        """Under the lock: wake the calls whose records are settled."""

    def on_complete(self) -> None:
        """The file system has completed something (called from its thread)."""

    def nudge(self) -> None:
        """Wake the thread: there is work, or news, or something is due earlier than it knows."""
        self.is_idle = False
        ring(self._bell)

    # ---- interrupts ------------------------------------------------------------------------------

    def interrupted(self, error: BaseException) -> None:
        """Under the lock: the core may be in the middle of a change."""
        if not self._is_interrupted:
            self._is_interrupted = True
            self.gate = MendingGate(self)
            self.core.engine.stop(StoppedError(f"a call was interrupted by {error!r}"))
            self.fail()
            self.nudge()

    def _mend(self) -> None:
        """In the thread: open the core again, and let those in who wait for that."""
        if self._is_interrupted:
            self._reopen()
        while self.menders:
            if self.mend_error is not None:
                self._fail_menders()
                return
            self.lock.acquire()
            try:
                waiter = None if self._is_interrupted else self.menders.popleft()
            except IndexError:  # it was interrupted, and is gone
                waiter = None
            if waiter is None:
                self.lock.release()
                if self._is_interrupted:  # again, by the one before
                    self._reopen()
            else:
                waiter.wake(WOKEN)

    def _fail_menders(self) -> None:
        while self.menders:
            try:
                waiter = self.menders.popleft()
            except IndexError:  # it was interrupted, and is gone
                return
            waiter.wake(FAILED)

    def _reopen(self) -> None:
        with self.lock:
            states, streams = self.core.queues, self.core.streams
            try:
                self.core.abandon()
                self.core = self._opened(states)
                self.core.streams.reopen(streams)
            except Exception as error:  # noqa: BLE001  # for those who wait, and the next try
                self.mend_error = error
            else:
                self.mend_error = None
                self._is_interrupted = False
                self.gate = self.lock

    def _opened(self, states: Mapping[str, QueueState]) -> Core:
        core = self._open_core(self, states)
        core.fs.on_complete = self.on_complete
        return core

    # ---- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self.core = self._opened({})
        except BaseException as error:  # noqa: BLE001  # for who wants to open the box
            self._error = error
            self.is_closed = True
            _forget(self)
            return
        finally:
            self._is_open.set()
        seconds = IDLE_S
        while not self.is_closed:
            self._bell.acquire(timeout=seconds)
            if self.has_acks_to_watch and not self._is_closing:
                self._bell.acquire(timeout=ACKS_S)  # more of them, and then all at once
            self._tell()
            if self._is_closing:
                self._close()
                break
            if self._is_interrupted or self.menders:
                self._mend()
            seconds = self._tick()
        self._tell()

    def _tick(self) -> float:
        """What the clock demands. Seconds until it is to be called again."""
        with self.lock:
            if self.is_closed or self._is_interrupted:
                return IDLE_S
            try:
                self.has_acks_to_watch = False
                self.unwritten_acks = 0
                seconds = self.core.tick()
                self.wake_settled()
            except Exception as error:  # noqa: BLE001  # the thread must live; people are told
                self.fail()
                if self.core.engine.failed is None:
                    self.core.event("stopped", f"the box has stopped: {error!r}")
                    self.core.engine.stop(error)
                return IDLE_S
            self.is_idle = seconds > IDLE_FROM_S
            return 0.0 if self.news else min(seconds, IDLE_S)

    def _tell(self) -> None:
        """Call the callbacks of the box."""
        while self.news:
            self.news.popleft()()

    # ---- the end ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop in order: what waits is settled, a checkpoint is made, the lock of the directory is
        given back. Closing again does nothing. Errors of the disk; it is closed all the same.
        Interrupted it goes on all the same; close again to wait for it."""
        if self._pid != os.getpid():
            return
        self._is_closing = True
        self.nudge()
        if threading.current_thread() is self._thread:  # a callback
            self._close()
        else:
            self._thread.join()
        self._raise_error()

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def shut(self) -> None:
        """From now on no call gets in."""
        self.gate = Gate(self._refuse_closed)

    def _close(self) -> None:
        with self.lock:
            if self.is_closed:
                return
            self.is_closed = True
            try:
                if self._is_interrupted:
                    self.core.abandon()
                else:
                    self.core.close()
                    self.wake_settled()
            except Exception as error:  # noqa: BLE001  # for who closes the box
                self._error = error
            finally:
                self.shut()
                self.fail()
                self.core.wake_all()
                self.core.fs.on_complete = None
        self._fail_menders()
        self.core.release()
        _forget(self)

    def _refuse_closed(self) -> None:
        raise BoxClosedError(self.path)

    def in_child(self) -> None:
        """This is a child that was forked: nothing here may be used in it."""
        self.gate = Gate(self._refuse_forked)
        if self._is_open.is_set():
            self.core.in_child()

    def _refuse_forked(self) -> None:
        raise ForkedError(self.path, self._pid, os.getpid())


_open: list[BoxThread] = []


def _forget(box: BoxThread) -> None:
    if box in _open:
        _open.remove(box)


def _close_all() -> None:
    """At the end of the interpreter."""
    for box in reversed(list(_open)):
        try:
            box.close()
        except Exception as error:  # noqa: BLE001  # the others are to be closed too
            box.core.event("stopped", f"the box could not be closed in order: {error}")
            box._tell()


def _in_child() -> None:
    boxes = list(_open)
    _open.clear()
    for box in boxes:
        box.in_child()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_in_child)
