"""Driver: how calls wait for the disk, all together.

What a call waits for, it waits for outside of the box's lock, so others go on meanwhile:

    put (disk)   append under the lock; flush, which starts a sync; wait; return
    64 of them   append; the sync in flight is another's; the next one covers them all

**Group commit with a leader.** The first call that waits leads: it sleeps until the file system has
completed something, takes the lock, lets the engine have it, writes and syncs what has come
meanwhile, and lets those calls go on whose records are settled. When its own is, it hands over to
the next. So one thread alone pays for no other thread but the one that syncs, and sixty-four share
each sync.

**One after the other.** Of the calls that may go on the leader rings the first. To ring all at once
would set sixty-three threads upon the interpreter's lock at the same moment, of which one can run.
Each rings the next when it is about to sleep again, with its next put; for only then is there a
processor for that one. A thread that does not come back so soon holds nobody up: while there is a
leader, he rings the next at each completion, and those whom two completions have passed over all at
once; and when there is none, each rings the next as it goes.

Not here: the thread, interrupts, the end (`box_thread`), what calls do under the lock (`calls`),
queues and their waiters (`queue_state`), loops (`aio`).
"""

import threading
from collections import deque
from collections.abc import Callable, Generator, Mapping
from typing import Final, TypeVar

from penstock.embedded.box_thread import BoxThread
from penstock.embedded.box_transaction import BoxTransaction
from penstock.embedded.core import Core
from penstock.embedded.queue_state import QueueState
from penstock.embedded.waiting import (
    FAILED,
    LEADING,
    RECHECK_S,
    WAITING,
    WOKEN,
    ThreadWaiter,
    Waiter,
    ring,
    run_call,
)
from penstock.errors import StoppedError
from penstock.storage.durability import DISK

T = TypeVar("T")

ACKS_FLUSH_S: Final = 0.001
ACKS_MAX: Final = 64


class Driver(BoxThread):
    """See the head of this module."""

    def __init__(
        self, path: str, open_core: Callable[[BoxThread, Mapping[str, QueueState]], Core]
    ) -> None:
        self.leader: Waiter | None = None
        self._durable: deque[Waiter] = deque()
        self._written: deque[Waiter] = deque()
        self._settled: deque[Waiter] = deque()  # those that may go on and were not rung yet
        self._newly_settled: int = 0  # how many of them are of the last completion
        self._acked_at: float = 0.0  # when acknowledgements were last written
        self._completed = threading.Lock()  # released by each completion
        self._completed.acquire()
        super().__init__(path, open_core)

    # ---- under the lock: what a change leads to --------------------------------------------------

    def settle(self, lsn: int, mode: int) -> Waiter | None:
        """Whoever appended `lsn` calls this: None if it may be confirmed, else what to wait for."""
        engine = self.core.engine
        if mode == DISK and self.leader is not None:
            self.flush_soon()
        else:
            engine.flush()
            if engine.settled(mode) >= lsn:
                return None
        waiter = self.new_waiter(lsn, mode, None)
        if self.leader is not None:
            (self._durable if mode == DISK else self._written).append(waiter)
        else:
            self.lead(waiter)
        return waiter

    def acked(self) -> None:
        """Something was acknowledged. It is written now; in a fast run of them with what is written
        next, after 64 of them, or by the thread within 5 ms. So a worker that is killed gets again
        what it was at, and of what was done at most the last few ms."""
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
            self.core.touch(state)
        if self.is_idle:
            self.nudge()

    def note_due(self, state: QueueState) -> None:
        """Wake the thread if something of this queue is due earlier than all it knows."""
        before = self.core.next_due_ms
        when = self.core.note_due(state)
        if when and (not before or when < before):
            self.nudge()

    def transaction(self) -> BoxTransaction | None:
        """The caller's transaction, None if it has none. StoppedError: the box was interrupted
        since the transaction began."""
        if not self.transactions:
            return None
        transaction = self.transactions.get(self.caller())
        if transaction is not None:
            transaction.check(self.core)
        return transaction

    def deadline(self, timeout_s: float | None) -> float | None:
        """When a time-out ends, in monotonic seconds; None: never. ValueError if it is negative."""
        if timeout_s is None:
            return None
        if timeout_s < 0:
            raise ValueError(f"timeout must not be negative, not {timeout_s}")
        return self.core.clock.monotonic() + timeout_s

    def is_over(self, deadline: float | None) -> bool:
        """Return whether the deadline has passed."""
        return deadline is not None and self.core.clock.monotonic() >= deadline

    def seconds_left(self, deadline: float | None) -> float | None:
        """The seconds until the deadline, at least 0; None: there is none."""
        return None if deadline is None else max(0.0, deadline - self.core.clock.monotonic())

    def lead(self, waiter: Waiter) -> None:
        """It is the first that waits: it brings in the completions."""
        self.leader = waiter
        waiter.state = LEADING

    def new_waiter(self, lsn: int = 0, mode: int = 0, deadline: float | None = None) -> Waiter:
        """What a call waits with."""
        return ThreadWaiter(lsn, mode, deadline)

    def flush_soon(self) -> None:
        """The leader does, when its sync is back."""

    def caller(self) -> object:
        """Who is calling: transactions belong to somebody."""
        return threading.get_ident()

    def turn(self) -> None:
        """Let the engine have what was completed, write what was appended, wake who is settled."""
        engine = self.core.engine
        try:
            engine.poll()
            engine.flush()
        except Exception:
            self.fail()
            raise
        self.wake_settled()

    def wake_settled(self) -> None:
        """Let the calls go on whose records are settled."""
        engine = self.core.engine
        for _ in range(len(self._settled) - self._newly_settled):
            self._ring_next()
        before = len(self._settled)
        for waiters, mode in ((self._durable, DISK), (self._written, 0)):
            if waiters:
                settled = engine.settled(mode)
                while waiters and waiters[0].lsn <= settled:
                    waiters[0].state = WOKEN
                    self._settled.append(waiters.popleft())
        self._newly_settled = len(self._settled) - before
        leader = self.leader
        if leader is not None and 0 < leader.lsn <= engine.settled(leader.mode):
            leader.state = WOKEN
            ring(self._completed)
            self._hand_over()
        self._ring_next()

    def _ring_next(self) -> None:
        """Let the first of the settled calls go on."""
        if self._settled:
            try:
                waiter = self._settled.popleft()
            except IndexError:  # another call was first
                return
            waiter.wake(WOKEN)

    def fail(self) -> None:
        """The engine has stopped: so say to all who wait for it."""
        while self._settled:
            self._ring_next()
        if self.leader is not None:
            self.leader.state = FAILED
            self.leader = None
            ring(self._completed)
        for waiters in (self._durable, self._written):
            while waiters:
                waiters[0].wake(FAILED)
                waiters.popleft()

    # ---- without the lock: waiting ---------------------------------------------------------------

    def run(self, call: Generator[Waiter, None, T]) -> T:
        """Run a call, one of `calls`, in this thread."""
        return run_call(call, self.wait)

    def wait(self, waiter: Waiter) -> None:
        """Until it is woken; one that waits for its turn also once its deadline has passed, or
        after a second, to look again. StoppedError: what it waits for will not be."""
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
                    self.core.engine.check()
                    raise StoppedError(f"a call on the box {self.path} was interrupted")
                else:
                    self._ring_next()
                    waiter.sleep(RECHECK_S)
                    if waiter.state == WAITING:
                        self._look_again(waiter)
        except BaseException:
            with self.lock:
                self._leave(waiter)
            raise
        finally:
            if self.leader is None:
                self._ring_next()

    def _lead(self, waiter: Waiter) -> None:
        """Bring in completions until the leader's own record is settled; then hand over."""
        while True:
            self._ring_next()
            self._completed.acquire(timeout=RECHECK_S)
            with self.lock, self.guard:
                if waiter.state == LEADING:
                    self.turn()
                if waiter.state != LEADING:
                    return

    def _look_again(self, waiter: Waiter) -> None:
        """Nobody has woken it for a second: perhaps one who should have was interrupted."""
        with self.lock, self.guard:
            if waiter.state == WAITING:
                self.turn()
                if waiter.state == WAITING and self.leader is None:
                    self._leave(waiter)
                    self.lead(waiter)

    def _leave(self, waiter: Waiter) -> None:
        """It waits no more."""
        for waiters in (self._durable, self._written):
            if waiter in waiters:
                waiters.remove(waiter)
        if waiter.state == LEADING:
            waiter.state = FAILED
            self._hand_over()

    def _hand_over(self) -> None:
        """Under the lock: the leader goes; the next one of those who wait leads on."""
        self.leader = None
        for waiters in (self._durable, self._written):
            if waiters:
                self.leader = waiters[0]
                waiters[0].wake(LEADING)
                waiters.popleft()
                return

    def on_complete(self) -> None:
        ring(self._completed)
        if self.leader is None:
            ring(self._bell)
