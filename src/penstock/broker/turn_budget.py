"""TurnBudget: how much of a turn one connection may take. The one rule of fairness between clients.

Whatever one read of one connection asks for is done in slices. A slice ends when its budget is used
up; the rest is done in later turns, while the connection is not read, and the others have their
turns in between. Nothing else limits how much one client's requests may cost at once, so whatever a
client can ask for has to fit in:

    what runs for a client         takes its steps from `left`: about one for each microsecond or
                                   two, such as a message put into a queue, a binding looked at, a
                                   kilobyte built. Per run, not per message, where runs are short
    what can be cut at any place   asks `is_over` where `left` is not positive, and stops there: a
                                   run of publishes or acks, SlicedWork
    what cannot be cut             is small (a method), or stops itself when it becomes too large
                                   (an answer); `may_begin` says whether it fits into this slice

    connection_handler.py          begins slices, keeps the rest (`_held`), goes on with it as a
                                   background task; output that is full ends a slice too
    protocol.Connection            decodes few methods at once (`_read_steps`)
    Poller                         leaves sockets for the next turn when this one took PASS_S
    Dispatch.run                   ends the turn (`turned`)

The clock is looked at every LOOK_STEPS steps. A slice at once, of what was just read, lasts SLICE_S
at most from the first look; all of them in one turn together TURN_S, after which every other client
has SHORT_STEPS only: a few single messages. A slice of what was left (`begin_later`) lasts LATER_S.
STEPS_MAX bounds a slice whatever the clock says.
"""

from abc import ABC, abstractmethod
from typing import Final

from penstock.clock import Clock
from penstock.native import mypyc_attr

LOOK_STEPS: Final = 256
SHORT_STEPS: Final = 32
STEPS_MAX: Final = 1 << 15
SLICE_S: Final = 0.010
LATER_S: Final = 0.003
TURN_S: Final = 0.020
# What is taken for what has no better measure.
METHOD_STEPS: Final = 16
ARGUMENT_BYTES: Final = 32  # of a method with arguments, for one step: those of 8 KiB take 5 ms
CALL_STEPS: Final = LOOK_STEPS  # an operation: the clock is looked at after each
STEP_BYTES: Final = 64  # of an answer as JSON, or of properties whose keys are read, for one step


class TurnBudget:
    """The budget of the slice that runs now; one for a vhost, whose slices follow one another.
    left: steps until the next look at the clock; what is done is subtracted from it."""

    def __init__(self, clock: Clock) -> None:
        self.left: int = LOOK_STEPS
        self.clock: Clock = clock
        self._granted: int = LOOK_STEPS
        self._used: int = 0
        self._until_s: float = 0.0  # 0.0: the clock was not looked at in this slice
        self._turn_until_s: float = 0.0  # 0.0: not in this turn
        self._is_turn_over: bool = False

    def begin(self) -> None:
        """Begin the slice of what was just read of a client."""
        self._used = 0
        self._until_s = 0.0
        self._grant(SHORT_STEPS if self._is_turn_over else LOOK_STEPS)

    def begin_later(self) -> None:
        """Begin a slice of what was left of an earlier one."""
        self._used = 0
        self._until_s = self.clock.monotonic() + LATER_S
        self._grant(LOOK_STEPS)

    def is_over(self) -> bool:
        """Return whether the slice is to end here."""
        return self.left <= 0 and not self._look()

    def may_begin(self, steps: int) -> bool:
        """Return whether something that takes so many steps, LOOK_STEPS at most, may begin."""
        return self.left >= steps or self._look()

    def turned(self) -> None:
        """End the turn."""
        self._turn_until_s = 0.0
        self._is_turn_over = False

    def _grant(self, steps: int) -> None:
        self.left = steps
        self._granted = steps

    def _look(self) -> bool:
        """Look at the clock. Returns whether the slice goes on, with more steps."""
        self._used += self._granted - self.left
        self._granted = self.left
        if self._used >= STEPS_MAX:
            return False
        now_s = self.clock.monotonic()
        if self._turn_until_s == 0.0:
            self._turn_until_s = now_s + TURN_S
        if self._until_s == 0.0:
            self._is_turn_over = now_s > self._turn_until_s
            self._until_s = min(now_s + SLICE_S, self._turn_until_s)
        if now_s > self._until_s:
            return False
        self._grant(LOOK_STEPS)
        return True


@mypyc_attr(allow_interpreted_subclasses=True)
class SlicedWork(ABC):
    """Work for a channel that may take longer than a slice (ChannelOwner.do_in_slices)."""

    @abstractmethod
    def step(self) -> bool:
        """Work until the budget is over; return whether all is done. An error is that of the method
        that began it."""

    def abandon(self) -> None:  # noqa: B027 - most work leaves nothing behind
        """End it early: its channel is closed."""
