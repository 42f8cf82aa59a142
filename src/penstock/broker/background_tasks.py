"""Background tasks: long work of a vhost, done in slices between its turns, so clients do not wait.

A turn ends with `BackgroundTasks.run`: tasks that are due take turns, a slice each, until SLICE_S
has passed; the rest is done after the next turn, when what clients sent meanwhile has been handled.
A slice takes a millisecond or two. Two tasks of one kind (two readers of one queue) get the same
share.

    wake    a task is due: a new one, or one that was asleep
    step    a slice of it; returns AGAIN (at once), ASLEEP (until it is woken) or DONE

The next turn writes what a task logs. A task must not run ahead of the log: one with a Pace sleeps
while some megabytes of its records are not settled, or while the next segment of the log is not
prepared and this one is nearly full. Otherwise an append without room would wait, and every client
with it.

An error that a task does not handle goes to its `failed`, and it is asleep then. If `failed` raises
too, the error is reported (Dispatch.internal_error). An error of the engine is raised: it ends the
vhost.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Final

from penstock.broker.dispatch import Dispatch, SlicedWork, TurnBudget
from penstock.clock import Clock
from penstock.message import Entry
from penstock.native import mypyc_attr

SLICE_S: Final = 0.0015  # a slice that was begun is finished: a turn's share is some 3 ms
STEPS_MAX: Final = 32  # in one turn, whatever the clock says
UNSETTLED_BYTES_MAX: Final = 4 << 20  # of records of one task
UNSETTLED_MAX: Final = 64  # of these records
ROOM_BYTES: Final = 2 << 20  # left in the log for what comes with the next slice
SIZE_FIRST: Final = 128
SIZE_MIN: Final = 64
QUICK_S: Final = 0.0015
SLOW_S: Final = 0.003

AGAIN: Final = 0
ASLEEP: Final = 1
DONE: Final = 2


@mypyc_attr(allow_interpreted_subclasses=True)
class BackgroundTask(ABC):
    """Work in slices. is_due: it is in the list of tasks to run."""

    is_due: bool = False

    @abstractmethod
    def step(self) -> int:
        """Do a slice; return AGAIN, ASLEEP or DONE."""

    @abstractmethod
    def failed(self, error: Exception) -> None:
        """Handle an error that a step has raised."""


class BackgroundTasks:
    """The background tasks of one vhost."""

    def __init__(self, dispatch: Dispatch, clock: Clock) -> None:
        self.dispatch: Dispatch = dispatch
        self._clock = clock
        self._due: deque[BackgroundTask] = deque()
        dispatch.background = self.run

    def wake(self, task: BackgroundTask) -> None:
        """Run the task after the next turns, until it sleeps or is done."""
        if not task.is_due:
            task.is_due = True
            self._due.append(task)
            self.dispatch.has_background = True
            self.dispatch.schedule()

    def run(self) -> bool:
        """Run tasks for a turn's share of time. Returns True if there is more to do at once."""
        due = self._due
        until_s = self._clock.monotonic() + SLICE_S
        steps = 0
        while due and steps < STEPS_MAX and (not steps or self._clock.monotonic() < until_s):
            steps += 1
            task = due.popleft()
            task.is_due = False
            if self._step(task) == AGAIN and not task.is_due:
                task.is_due = True
                due.append(task)
        if steps:
            self.dispatch.schedule()  # for what they logged
        self.dispatch.has_background = bool(due)
        return bool(due)

    def _step(self, task: BackgroundTask) -> int:
        try:
            return task.step()
        except Exception as error:
            if self.dispatch.engine.failed is not None:
                raise
            try:
                task.failed(error)
            except Exception as second:  # noqa: BLE001 - it is reported
                self.dispatch.internal_error("a background task", second)
            return ASLEEP


class FinishingWork(BackgroundTask):
    """Finishes work that no channel waits for. Its errors are reported."""

    def __init__(self, work: SlicedWork, budget: TurnBudget) -> None:
        self._work: SlicedWork = work
        self._budget: TurnBudget = budget

    def step(self) -> int:
        self._budget.begin_later()
        return DONE if self._work.step() else AGAIN

    def failed(self, error: Exception) -> None:
        raise error


class SliceSize:
    """The number of messages in a slice, adapted so that a slice takes a millisecond or two on this
    machine and in this build: doubled after a quick one, halved after a slow one."""

    def __init__(self, clock: Clock, most: int) -> None:
        self._clock = clock
        self._most = most
        self._began_s: float = 0.0
        self.n: int = min(SIZE_FIRST, most)

    def begin(self) -> int:
        """Begin a slice; return how many messages it may have."""
        self._began_s = self._clock.monotonic()
        return self.n

    def end(self) -> None:
        """End the slice."""
        took_s = self._clock.monotonic() - self._began_s
        if took_s > SLOW_S:
            self.n = max(self.n // 2, SIZE_MIN)
        elif took_s < QUICK_S:
            self.n = min(self.n * 2, self._most)


class Pace:
    """Keeps a task from running ahead of the log: counts its records that are not settled and their
    bytes, and checks that the log has room."""

    def __init__(self, dispatch: Dispatch, mode: int) -> None:
        self._dispatch = dispatch
        self._mode = mode
        self._wake: Callable[[], None] | None = None  # of a task that sleeps
        self._records: deque[tuple[int, int]] = deque()  # (LSN, bytes)
        self._bytes: int = 0

    def logged(self, lsn: int, size: int) -> None:
        """Count a record of about `size` bytes."""
        self._records.append((lsn, size))
        self._bytes += size

    def is_ahead(self, wake: Callable[[], None]) -> bool:
        """Return whether the task must sleep; wake() is called when it may continue."""
        settled = self._dispatch.engine.log.settled(self._mode)
        records = self._records
        while records and records[0][0] <= settled:
            self._bytes -= records.popleft()[1]
        is_short = self._bytes < UNSETTLED_BYTES_MAX and len(records) < UNSETTLED_MAX
        if is_short and self._dispatch.engine.log.has_room(ROOM_BYTES):
            return False
        if self._wake is None:
            self._wake = wake
            until = records[0][0] if records else settled  # for room: it is asked each turn
            self._dispatch.when_settled(until, self._mode, self._settled)
        return True

    def _settled(self) -> None:
        wake, self._wake = self._wake, None
        assert wake is not None
        wake()


SLICE: Final = 4096  # entries: a millisecond


def nobody_listens(_bytes: int) -> None:
    """Ignore how many bytes were freed."""


class DeferredFree(BackgroundTask):
    """Frees the memory of purged and deleted queues in slices.

    To free a message takes some 0.2 us, so freeing a million would stop every client of the vhost
    for a quarter of a second. The queue is empty at once, and its bytes are no longer counted; its
    entries are freed within as many turns as that takes. on_freed(bytes): called after a slice with
    the size of its bodies.
    """

    def __init__(self, background: BackgroundTasks) -> None:
        self.on_freed: Callable[[int], None] = nobody_listens
        self._background = background
        self._entries: deque[deque[Entry]] = deque()

    def add(self, entries: deque[Entry]) -> None:
        """Free these entries. The caller must not use the deque any more."""
        if len(entries) <= SLICE:
            entries.clear()
            return
        self._entries.append(entries)
        self._background.wake(self)

    def step(self) -> int:
        entries = self._entries[0]
        size = 0
        for _ in range(min(SLICE, len(entries))):
            size += entries.pop().message.size
        self.on_freed(size)
        if not entries:
            self._entries.popleft()
        return AGAIN if self._entries else DONE

    def failed(self, error: Exception) -> None:
        """Raise the error, so that it is reported; nothing here is expected to fail."""
        raise error
