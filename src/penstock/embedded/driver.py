"""Driver: the lock and the thread of a box in a directory, and how its calls wait for the disk.

Calls run the core in the caller's thread, under the lock. What a call waits for, it waits for
without the lock, so others go on meanwhile:

    put (disk)   append under the lock; flush, which starts a sync; wait; return
    64 of them   append; the sync in flight is another's; the next one covers them all

**Group commit with a leader.** The first call that waits leads: it sleeps until the file system has
completed something, takes the lock, lets the engine process the completion, writes and syncs what
was appended meanwhile, and wakes the calls whose records are settled. When its own is, the next one
leads. So one thread alone pays for no other thread but the one that syncs, and sixty-four
share each sync.

**One after the other.** Of the calls that may go on, the leader wakes the first. Waking all at once
would make sixty-three threads compete for the interpreter's lock, of which one can run. Each call
wakes the next when it is about to sleep again, with its next put; only then is there a processor
for that one. A thread that does not come back so soon delays nobody: the leader wakes one waiter at
each completion, and at once all that two completions have skipped; and when there is no leader,
each wakes the next as it returns.

**The thread** does what nobody calls: timers (the engine's tick every 100 ms while there is
something to do, due delays and expiry, the memory monitor; in an idle box every 2.5 s), and the
callbacks of the box, which it calls without the lock, so that they may use the box. And it opens,
reopens and closes the core, because of interrupts:

**Interrupts.** A KeyboardInterrupt, or another exception out of a signal handler, is raised in the
main thread between any two steps of what it does there; never in this one. In the middle of the
core it leaves a change half made. `interrupted` then stops the engine and closes the gate. The
thread opens the core again from its log, as after a crash of the process: nothing confirmed is
lost, what was unacknowledged is redelivered, transient messages are gone. Calls wait at the gate
meanwhile.

**The gate** is what every call enters: the lock itself, for as long as all is well. A box that is
closed, in a forked child or to be reopened has another gate, whose `__enter__` raises or waits, so
calls pay nothing for these checks. Calls that waited for the reopening are handed the lock by the
thread, one after the other, so that ownership of the lock is never ambiguous.

**A fork** shares files and copies locks, which some thread may hold at that moment. In the child
the gate is replaced at once, its copies of the directory's locks are closed, and nothing else is
touched; the child's exit closes nothing of the parent's.

At the end of the interpreter boxes that are still open are closed in order, newest first. A box
that could not be closed is as after a crash, and loses nothing that was confirmed.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias, TypeVar

from penstock.embedded.core import BoxTransaction, Core, QueueState
from penstock.embedded.option_parsing import check_timeout
from penstock.embedded.waiting import (
    FAILED,
    LEADING,
    OPEN,
    RECHECK_S,
    WAITING,
    WOKEN,
    Exit,
    OpenDriver,
    ThreadWaiter,
    Waiter,
    ring,
)
from penstock.errors import BoxClosedError, StoppedError
from penstock.storage.files.durability import DISK

T = TypeVar("T")

ACKS_FLUSH_S: Final = 0.001
ACKS_MAX: Final = 64
IDLE_S: Final = 2.5  # between two looks at an idle box
ACKS_S: Final = 0.005  # until acknowledgements are written that nothing else has written
IDLE_FROM_S: Final = 1.0  # a longer pause is one that a new message may have to end

OpenCore: TypeAlias = "Callable[[Driver, Mapping[str, QueueState]], Core]"


class ReopeningGate:
    """The gate of a box that is to be reopened after an interrupt: a call waits to be handed the
    lock.

    The interpreter checks for interrupts after each call and where a function of Python begins.
    From the moment that this call has the lock, there must be no such point before the block that
    releases it, nor between the block's end and the release. So all is in one function, and the
    block ends with the lock's own `__exit__`, which the interpreter looks up before it enters.
    """

    def __init__(self, box: "Driver") -> None:
        self._box = box

    def __enter__(self) -> bool:
        box = self._box
        waiter = ThreadWaiter()
        try:
            box.gate_waiters.append(waiter)
            box.nudge()
            while waiter.state == WAITING and not box.is_closed:
                waiter.sleep(RECHECK_S)
            if waiter.state == WOKEN:
                return True
        except BaseException:
            try:
                box.gate_waiters.remove(waiter)
            except ValueError:  # the lock is being handed over
                while waiter.state == WAITING and not box.is_closed:
                    waiter.sleep(RECHECK_S)
                if waiter.state == WOKEN:
                    box.lock.release()
            raise
        if box.is_closed:
            raise BoxClosedError(box.path)
        text = f"the box {box.path} was interrupted, and could not be opened again"
        raise StoppedError(f"{text}: {box.reopen_error}") from box.reopen_error

    @property
    def __exit__(self) -> Exit:
        return self._box.lock.__exit__


class Driver(OpenDriver):
    """See the head of this module. open_core(driver, queues): opens the core, and opens it again
    after an interrupt, then with the queues that it had; errors of the first opening are raised
    here."""

    def __init__(self, path: str, open_core: OpenCore) -> None:
        super().__init__(path)
        self.core: Core  # once it is open
        self.is_idle: bool = True  # the thread sleeps long: call `nudge` to give it work
        self.is_closed: bool = False
        self.unwritten_acks: int = 0
        self.has_acks_to_watch: bool = False  # the thread writes them soon
        self.transactions: dict[object, BoxTransaction] = {}  # by their owners
        self.events: deque[Callable[[], None]] = deque()  # calls of the user's callbacks
        self._open_core = open_core
        self._is_closing: bool = False
        self._is_interrupted: bool = False
        self.gate_waiters: deque[Waiter] = deque()  # who waits at the ReopeningGate
        self.reopen_error: Exception | None = None
        self._error: BaseException | None = None  # of opening or closing, raised to the caller
        self.leader: Waiter | None = None
        self._durable: deque[Waiter] = deque()
        self._written: deque[Waiter] = deque()
        self._settled: deque[Waiter] = deque()  # those that may go on and were not woken yet
        self._newly_settled: int = 0  # how many of them are of the last completion
        self._acked_at: float = 0.0  # when acknowledgements were last written
        self._completed = threading.Lock()  # released by each completion
        self._completed.acquire()
        self._bell = threading.Lock()
        self._bell.acquire()
        self._is_open = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-box", daemon=True)
        OPEN.add(self)
        try:
            self._thread.start()
            self._is_open.wait()
        except BaseException:
            self._is_closing = True
            ring(self._bell)
            raise
        self._raise_error()

    # ---- under the lock: what a change leads to --------------------------------------------------

    def settle(self, lsn: int, mode: int) -> Waiter | None:
        """After appending the record `lsn`: return what to wait for, None if it may be
        confirmed."""
        engine = self.core.engine
        if mode == DISK and self.leader is not None:
            self.flush_soon()
        else:
            engine.flush()
            if engine.log.settled(mode) >= lsn:
                return None
        waiter = self.new_waiter(lsn, mode, None)
        if self.leader is not None:
            (self._durable if mode == DISK else self._written).append(waiter)
        else:
            self.lead(waiter)
        return waiter

    def acked(self) -> None:
        """After an acknowledgement: write it now; in a fast run of them with what is written next,
        after 64 of them, or by the thread within 5 ms. So a worker that is killed gets again what
        it was at, and of what it had done at most the last few ms."""
        now = self.core.clock.monotonic()
        if now - self._acked_at >= ACKS_FLUSH_S or self.unwritten_acks >= ACKS_MAX:
            self._acked_at = now
            self.unwritten_acks = 0
            self.core.engine.flush()
            return
        self.unwritten_acks += 1
        if not self.has_acks_to_watch:
            self.has_acks_to_watch = True
            ring(self._bell)

    def settle_held(self, lsn: int, mode: int) -> Waiter | None:
        """Return what to wait for until this record is settled in the mode, None if it is. Also for
        a record that was written in a weaker mode."""
        if mode == DISK:
            self.core.engine.log.request_sync()
        return self.settle(lsn, mode)

    def changed(self, state: QueueState) -> None:
        """Wake who waits for a change of this queue, and let the thread look at it soon."""
        if state.is_crowded:
            state.changed()
        if not state.is_touched:
            self.core.queue_set.touch(state)
        if self.is_idle:
            self.nudge()

    def note_due(self, state: QueueState) -> None:
        """Wake the thread if something of this queue is due earlier than all it knows."""
        before = self.core.queue_set.next_due_ms
        when = self.core.queue_set.note_due(state)
        if when and (not before or when < before):
            self.nudge()

    def transaction(self) -> BoxTransaction | None:
        """Return the caller's transaction, None if it has none. StoppedError: the box was
        interrupted since the transaction began."""
        if not self.transactions:
            return None
        transaction = self.transactions.get(self.caller())
        if transaction is not None:
            transaction.check(self.core)
        return transaction

    def deadline(self, timeout_s: float | None) -> float | None:
        """Return when a time-out ends, in monotonic seconds; None: never. TypeError, ValueError."""
        check_timeout(timeout_s)
        return None if timeout_s is None else self.core.clock.monotonic() + timeout_s

    def is_over(self, deadline: float | None) -> bool:
        """Return whether the deadline has passed."""
        return deadline is not None and self.core.clock.monotonic() >= deadline

    def seconds_left(self, deadline: float | None) -> float | None:
        """Return the seconds until the deadline, at least 0; None if there is none."""
        return None if deadline is None else max(0.0, deadline - self.core.clock.monotonic())

    def lead(self, waiter: Waiter) -> None:
        """Make this waiter, the first, the leader, which brings in the completions."""
        self.leader = waiter
        waiter.state = LEADING

    def new_waiter(self, lsn: int = 0, mode: int = 0, deadline: float | None = None) -> Waiter:
        return ThreadWaiter(lsn, mode, deadline)

    def flush_soon(self) -> None:
        """Do nothing: the leader flushes when its sync has completed."""

    def caller(self) -> object:
        """Return who is calling, this thread: the owner of its transaction."""
        return threading.get_ident()

    def turn(self) -> None:
        """Bring in completions, write what was appended, and wake the calls that are settled."""
        engine = self.core.engine
        try:
            engine.poll()
            engine.flush()
        except Exception:
            self.fail()
            raise
        self.wake_settled()

    def wake_settled(self) -> None:
        """Wake the calls whose records are settled, one after the other."""
        engine = self.core.engine
        for _ in range(len(self._settled) - self._newly_settled):
            self._wake_next()
        before = len(self._settled)
        for waiters, mode in ((self._durable, DISK), (self._written, 0)):
            if waiters:
                settled = engine.log.settled(mode)
                while waiters and waiters[0].lsn <= settled:
                    waiters[0].state = WOKEN
                    self._settled.append(waiters.popleft())
        self._newly_settled = len(self._settled) - before
        leader = self.leader
        if leader is not None and 0 < leader.lsn <= engine.log.settled(leader.mode):
            leader.state = WOKEN
            ring(self._completed)
            self._hand_over()
        self._wake_next()

    def _wake_next(self) -> None:
        """Wake the first of the settled calls."""
        if self._settled:
            try:
                waiter = self._settled.popleft()
            except IndexError:  # another call was first
                return
            waiter.wake(WOKEN)

    def fail(self) -> None:
        """Fail all calls that wait for the engine, which has stopped."""
        while self._settled:
            self._wake_next()
        if self.leader is not None:
            self.leader.state = FAILED
            self.leader = None
            ring(self._completed)
        for waiters in (self._durable, self._written):
            while waiters:
                waiters[0].wake(FAILED)
                waiters.popleft()

    # ---- without the lock: waiting ---------------------------------------------------------------

    def wait(self, waiter: Waiter) -> None:
        """Wait until the waiter is woken. One that waits for its turn returns also when its
        deadline has passed, or after a second, to look again. StoppedError: the engine has
        stopped."""
        if not waiter.lsn:
            seconds = RECHECK_S
            if waiter.deadline is not None:
                seconds = min(waiter.deadline - self.core.clock.monotonic(), RECHECK_S)
            waiter.sleep(seconds)
            return
        try:
            while waiter.state != WOKEN:
                if waiter.state == LEADING:
                    self._lead(waiter)
                elif waiter.state == FAILED:
                    self.core.engine.journal.check()
                    raise StoppedError(f"a call on the box {self.path} was interrupted")
                else:
                    self._wake_next()
                    waiter.sleep(RECHECK_S)
                    if waiter.state == WAITING:
                        self._look_again(waiter)
        except BaseException:
            with self.lock:
                self._leave(waiter)
            raise
        finally:
            if self.leader is None:
                self._wake_next()

    def _lead(self, waiter: Waiter) -> None:
        """Bring in completions until the leader's own record is settled; then hand over."""
        while True:
            self._wake_next()
            self._completed.acquire(timeout=RECHECK_S)
            with self.lock, self.guard:
                if waiter.state == LEADING:
                    self.turn()
                if waiter.state != LEADING:
                    return

    def _look_again(self, waiter: Waiter) -> None:
        """Bring in completions for a waiter that was not woken for a second: the call that should
        have woken it may have been interrupted."""
        with self.lock, self.guard:
            if waiter.state == WAITING:
                self.turn()
                if waiter.state == WAITING and self.leader is None:
                    self._leave(waiter)
                    self.lead(waiter)

    def _leave(self, waiter: Waiter) -> None:
        """Remove a waiter whose call has ended with an error."""
        for waiters in (self._durable, self._written):
            if waiter in waiters:
                waiters.remove(waiter)
        if waiter.state == LEADING:
            waiter.state = FAILED
            self._hand_over()

    def _hand_over(self) -> None:
        """Under the lock: the leader leaves; the next of those that wait leads."""
        self.leader = None
        for waiters in (self._durable, self._written):
            if waiters:
                self.leader = waiters[0]
                waiters[0].wake(LEADING)
                waiters.popleft()
                return

    def on_complete(self) -> None:
        """Wake the leader, or the thread: the file system has completed something. It calls this in
        a thread of its own."""
        ring(self._completed)
        if self.leader is None:
            ring(self._bell)

    def nudge(self) -> None:
        """Wake the thread: there is work or an event, or something is due earlier than it knows."""
        self.is_idle = False
        ring(self._bell)

    # ---- interrupts ------------------------------------------------------------------------------

    def interrupted(self, error: BaseException) -> None:
        """Under the lock: stop the core, which may be in the middle of a change."""
        if not self._is_interrupted:
            self._is_interrupted = True
            self.gate = ReopeningGate(self)
            self.core.engine.journal.stop(StoppedError(f"a call was interrupted by {error!r}"))
            self.fail()
            self.nudge()

    def _hand_out_lock(self) -> None:
        """In the thread: open the core again, and hand the lock to those that wait at the gate."""
        if self._is_interrupted:
            self._reopen()
        while self.gate_waiters:
            if self.reopen_error is not None:
                self._fail_gate_waiters()
                return
            self.lock.acquire()
            try:
                waiter = None if self._is_interrupted else self.gate_waiters.popleft()
            except IndexError:  # it was interrupted and has left
                waiter = None
            if waiter is None:
                self.lock.release()
                if self._is_interrupted:  # again, by the call before
                    self._reopen()
            else:
                waiter.wake(WOKEN)

    def _fail_gate_waiters(self) -> None:
        while self.gate_waiters:
            try:
                waiter = self.gate_waiters.popleft()
            except IndexError:  # it was interrupted and has left
                return
            waiter.wake(FAILED)

    def _reopen(self) -> None:
        with self.lock:
            states, streams = self.core.queue_set.queues, self.core.streams
            try:
                self.core.abandon()
                self.core = self._opened(states)
                self.core.streams.reopen(streams)
            except Exception as error:  # noqa: BLE001  # calls at the gate raise it
                self.reopen_error = error
            else:
                self.reopen_error = None
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
        except BaseException as error:  # noqa: BLE001  # `__init__` raises it
            self._error = error
            self.is_closed = True
            OPEN.forget(self)
            return
        finally:
            self._is_open.set()
        seconds = IDLE_S
        while not self.is_closed:
            self._bell.acquire(timeout=seconds)
            if self.has_acks_to_watch and not self._is_closing:
                self._bell.acquire(timeout=ACKS_S)  # more of them, and then all at once
            self._report_events()
            if self._is_closing:
                self._close()
                break
            if self._is_interrupted or self.gate_waiters:
                self._hand_out_lock()
            seconds = self._tick()
        self._report_events()

    def _tick(self) -> float:
        """Do what is due. Returns the seconds until the next call."""
        with self.lock:
            if self.is_closed or self._is_interrupted:
                return IDLE_S
            try:
                self.has_acks_to_watch = False
                self.unwritten_acks = 0
                seconds = self.core.queue_set.tick()
                self.wake_settled()
            except Exception as error:  # noqa: BLE001  # the thread must go on; the event reports it
                self.fail()
                if self.core.engine.failed is None:
                    self.core.event("stopped", f"the box has stopped: {error!r}")
                    self.core.engine.journal.stop(error)
                return IDLE_S
            self.is_idle = seconds > IDLE_FROM_S
            return 0.0 if self.events else min(seconds, IDLE_S)

    def _report_events(self) -> None:
        """Call the callbacks of the box with its events."""
        while self.events:
            self.events.popleft()()

    # ---- the end ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the box in order: settle what waits, make a checkpoint, release the directory. A
        second time does nothing. Errors of the disk are raised, and the box is closed all the same.
        If this call is interrupted, closing goes on; close again to wait for it."""
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
            except Exception as error:  # noqa: BLE001  # `close` raises it
                self._error = error
            finally:
                self.shut()
                self.fail()
                self.core.wake_all()
                self.core.fs.on_complete = None
        self._fail_gate_waiters()
        self.core.release()
        OPEN.forget(self)

    def in_child(self) -> None:
        super().in_child()
        if self._is_open.is_set():
            self.core.in_child()

    def not_closed(self, error: Exception) -> None:
        self.core.event("stopped", f"the box could not be closed in order: {error}")
        self._report_events()
