"""Chores: long work of a vhost, done in slices between its turns, so that no client waits for it.

A turn ends with `run`: those that have something to do take turns, a slice each, until SLICE_S has
passed; what is left is done after the next turn, and whatever clients sent meanwhile comes first.
A slice is as long as its chore makes it, a millisecond or two. Two chores of the same kind (two
readers of one queue) so get the same share.

    wake    it has something to do: a new one, or one that was asleep
    step    a slice of it; and then: AGAIN (at once), ASLEEP (until it is woken), DONE

What a chore logs is written by the next turn, which is asked for here. No chore runs ahead of the
log: one that has a Pace sleeps while some megabytes of its records are not settled, or while the
next segment of the log is not prepared and this one is nearly full: an append that finds no room
would wait, and every client with it.

An error that a chore does not deal with itself is passed to its `failed`, and it is asleep then; if
that raises too, the error is reported (Dispatch.mistake). One of the engine's is the vhost's end,
and goes up.

Not here: what is done: leases of readers (lease_calls.py), batches (batch_moves.py).
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Final

from penstock.broker.dispatch import Dispatch
from penstock.clock import Clock
from penstock.native import mypyc_attr

SLICE_S: Final = 0.003  # a slice that was begun is finished: a turn's share is some 5 ms
STEPS_MAX: Final = 32  # in one turn, whatever the clock says
UNSETTLED_BYTES_MAX: Final = 4 << 20  # of records of one chore
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
class Chore(ABC):
    """Work in slices. is_due: it stands among those that have something to do."""

    is_due: bool = False

    @abstractmethod
    def step(self) -> int:
        """A slice: AGAIN, ASLEEP or DONE."""

    @abstractmethod
    def failed(self, error: Exception) -> None:
        """A step has raised this."""


class Chores:
    """Of one vhost."""

    def __init__(self, dispatch: Dispatch, clock: Clock) -> None:
        self._dispatch = dispatch
        self._clock = clock
        self._due: deque[Chore] = deque()
        dispatch.chores = self.run

    def wake(self, chore: Chore) -> None:
        """It has something to do."""
        if not chore.is_due:
            chore.is_due = True
            self._due.append(chore)
            self._dispatch.has_chores = True
            self._dispatch.be_due()

    def run(self) -> bool:
        """A turn's share; True if there is more to do at once."""
        due = self._due
        until_s = self._clock.monotonic() + SLICE_S
        steps = 0
        while due and steps < STEPS_MAX and (not steps or self._clock.monotonic() < until_s):
            steps += 1
            chore = due.popleft()
            chore.is_due = False
            if self._step(chore) == AGAIN and not chore.is_due:
                chore.is_due = True
                due.append(chore)
        if steps:
            self._dispatch.be_due()  # for what they logged
        self._dispatch.has_chores = bool(due)
        return bool(due)

    def _step(self, chore: Chore) -> int:
        try:
            return chore.step()
        except Exception as error:
            if self._dispatch.engine.failed is not None:
                raise
            try:
                chore.failed(error)
            except Exception as mistake:  # noqa: BLE001 - it is reported
                self._dispatch.mistake("a chore", mistake)
            return ASLEEP


class SliceSize:
    """How many messages a slice has, so that it takes a millisecond or two on this machine, in this
    build: twice as many after one that was quick, half as many after a slow one."""

    def __init__(self, clock: Clock, most: int) -> None:
        self._clock = clock
        self._most = most
        self._began_s: float = 0.0
        self.n: int = min(SIZE_FIRST, most)

    def begin(self) -> int:
        """A slice begins; how many messages it may have."""
        self._began_s = self._clock.monotonic()
        return self.n

    def end(self) -> None:
        """It has ended."""
        took_s = self._clock.monotonic() - self._began_s
        if took_s > SLOW_S:
            self.n = max(self.n // 2, SIZE_MIN)
        elif took_s < QUICK_S:
            self.n = min(self.n * 2, self._most)


class Pace:
    """Keeps a chore from running ahead of the log: which of its records are not settled, how many
    bytes they have, and whether there is room. wake(): go on."""

    def __init__(self, dispatch: Dispatch, mode: int, wake: Callable[[], None]) -> None:
        self._dispatch = dispatch
        self._mode = mode
        self._wake = wake
        self._records: deque[tuple[int, int]] = deque()  # (LSN, bytes)
        self._bytes: int = 0
        self._is_waiting = False

    def logged(self, lsn: int, size: int) -> None:
        """A record more, of about so many bytes."""
        self._records.append((lsn, size))
        self._bytes += size

    def is_ahead(self) -> bool:
        """Whether to sleep; then `wake` comes."""
        settled = self._dispatch.engine.settled(self._mode)
        records = self._records
        while records and records[0][0] <= settled:
            self._bytes -= records.popleft()[1]
        is_short = self._bytes < UNSETTLED_BYTES_MAX and len(records) < UNSETTLED_MAX
        if is_short and self._dispatch.engine.has_log_room(ROOM_BYTES):
            return False
        if not self._is_waiting:
            self._is_waiting = True
            until = records[0][0] if records else settled  # for room: it is asked each turn
            self._dispatch.when_settled(until, self._mode, self._settled)
        return True

    def _settled(self) -> None:
        self._is_waiting = False
        self._wake()
