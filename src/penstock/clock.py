"""Clock: the system's, and one that a test moves by hand.

Everything that needs the time is given a Clock, so any test can replay any run and none has to
sleep. Only this module asks the system for the time.

`monotonic` never goes back; it measures how long ago something was: how long a queue was idle, when
a checkpoint is due, how long a sync took. `wall_ms` is the calendar's time, for what is written to
disk or displayed: the arrival and the expiry of messages, the times of a stream's records.
`wall_us` is the same, finer, because somebody may look for the moment just before a publish.

The system's time may be set, forward or back, while messages with a ttl wait. If `wall_ms` did the
same, a step of two hours forward would expire them all, and after one back they would live two
hours longer and hold back those behind them. So `wall_ms` makes no step and never goes back: it is
taken from the system when the process starts and then goes on with the monotonic clock. What lies
between the two is caught up slowly (SteadyTime), as Erlang's clock does. A new process begins with
the system's time.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from typing import Final, Protocol

from penstock.native import mypyc_attr

LOOK_US: Final = 100_000  # between two looks at the system's time
CATCH_UP_S: Final = 86_400.0  # in which a difference is caught up, if the rate is within these:
RATE_MIN: Final = 0.05
RATE_MAX: Final = 0.5
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def moment_of(time_us: int) -> datetime:
    """Return a time in microseconds since 1970 as an aware datetime in UTC."""
    return EPOCH + timedelta(microseconds=time_us)


def microseconds(moment: datetime) -> int:
    """Return microseconds since 1970 of a time, which is in UTC if it has no zone."""
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return (aware - EPOCH) // timedelta(microseconds=1)


def date(wall_ms: int) -> str:
    """Return a time of `wall_ms` for operators: ISO 8601, UTC, with milliseconds."""
    second, ms = divmod(wall_ms, 1000)
    return f"{_to_the_second(second)}.{ms:03}+00:00"


@lru_cache(256)  # things of one list were often used in the same few seconds
def _to_the_second(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).isoformat()[:19]


def until_next(now_s: float, period_s: float) -> float:
    """Return the seconds until the next multiple of a period. now_s: of `monotonic`. What processes
    do now and then is done at these times, so that an idle broker wakes up seldom."""
    return period_s - now_s % period_s


class Clock(Protocol):
    """A source of time."""

    def monotonic(self) -> float:
        """Return seconds since some fixed moment; never goes back."""

    def wall_ms(self) -> int:
        """Return milliseconds since 1970-01-01 00:00 UTC; makes no steps and never goes back."""

    def wall_us(self) -> int:
        """Return microseconds since 1970-01-01 00:00 UTC; makes no steps and never goes back."""


class SteadyTime:
    """The calendar's time without its steps, in microseconds since 1970.

    nanoseconds(): of a clock that never goes back. system_us(): the system's time. It begins with
    the system's time. What is between the two later is caught up by going faster or slower: by the
    part of it that a day would take, but 5 % at least and 50 % at most. So the times that pass here
    are right to 50 %, and to 8 % after a step of up to two hours, which is gone after 37 hours.

    Any thread may ask: the state is replaced as a whole.
    """

    def __init__(self, nanoseconds: Callable[[], int], system_us: Callable[[], int]) -> None:
        self._nanoseconds = nanoseconds
        self._system_us = system_us
        now_us = nanoseconds() // 1000
        # (when the system was last asked, what is added to that clock, what is to be caught up, by
        # how much for each microsecond)
        self._state: tuple[int, int, int, float] = (now_us, system_us() - now_us, 0, 0.0)

    def us(self) -> int:
        """Return the time."""
        now_us = self._nanoseconds() // 1000
        asked_us, offset_us, apart_us, rate = self._state
        passed_us = now_us - asked_us
        if rate:
            offset_us += _caught_up(apart_us, passed_us, rate)
        if passed_us >= LOOK_US:
            apart_us = self._system_us() - now_us - offset_us
            rate = min(max(abs(apart_us) / (CATCH_UP_S * 1_000_000), RATE_MIN), RATE_MAX)
            self._state = now_us, offset_us, apart_us, rate if apart_us else 0.0
        return now_us + offset_us


def _caught_up(apart_us: int, passed_us: int, rate: float) -> int:
    """Return how much of a difference is caught up after so many microseconds."""
    most_us = int(passed_us * rate)
    return max(-most_us, min(most_us, apart_us))


# It goes on while the machine is suspended, as the calendar does.
_STEADY: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def _system_us() -> int:
    return time.time_ns() // 1000


@mypyc_attr(allow_interpreted_subclasses=True)
class SystemClock:
    """The clock of this machine."""

    def __init__(self) -> None:
        self._wall = SteadyTime(partial(time.clock_gettime_ns, _STEADY), _system_us)

    def monotonic(self) -> float:
        return time.monotonic()

    def wall_ms(self) -> int:
        return self._wall.us() // 1000

    def wall_us(self) -> int:
        return self._wall.us()


@mypyc_attr(allow_interpreted_subclasses=True)
class ManualClock:
    """Stands still until `advance` is called. For tests and simulations.

    monotonic: seconds it begins at. wall_ms: milliseconds since 1970 it begins at.
    """

    def __init__(self, monotonic: float = 0.0, wall_ms: int = 1_700_000_000_000) -> None:
        self._start: float = monotonic
        self._system_us: int = wall_ms * 1000
        self._advanced: float = 0.0
        self._wall = SteadyTime(self._passed, self.system_us)

    def _passed(self) -> int:
        return round(self._advanced * 1_000_000) * 1000

    def monotonic(self) -> float:
        return self._start + self._advanced

    def system_us(self) -> int:
        """Return the system's time, which `step` sets."""
        return self._system_us + round(self._advanced * 1_000_000)

    def wall_ms(self) -> int:
        return round(self._wall.us() / 1000)

    def wall_us(self) -> int:
        return self._wall.us()

    def advance(self, seconds: float) -> None:
        """Move both times forward. Raises ValueError if `seconds` is negative."""
        if seconds < 0:
            raise ValueError(f"a clock goes forward only, not by {seconds} s")
        self._advanced += seconds

    def step(self, seconds: float) -> None:
        """Set the system's time forward, or back, as an operator or NTP does."""
        self._system_us += round(seconds * 1_000_000)


class TokenBucket:
    """A limit on how often something may happen: `burst` times at once, then `per_s` times a
    second.

    Lines of the log and alerts that a client can cause ask a bucket first. The caller counts in
    `left_out` what found no room, so that the next line can report it. Times are seconds of a
    monotonic clock, given by the caller.
    """

    __slots__ = ("_at_s", "_left", "burst", "left_out", "per_s")

    def __init__(self, burst: float, per_s: float, now_s: float) -> None:
        self.burst = burst
        self.per_s = per_s
        self.left_out = 0
        self._left = burst
        self._at_s = now_s

    def has_room(self, now_s: float) -> bool:
        """Return whether one more may happen now."""
        self._left = min(self.burst, self._left + (now_s - self._at_s) * self.per_s)
        self._at_s = now_s
        return self._left >= 1.0

    def take(self) -> None:
        """Count one that happened."""
        self._left -= 1.0

    def take_room(self, now_s: float) -> bool:
        """Count one if there is room for it. Return whether there was."""
        if not self.has_room(now_s):
            return False
        self.take()
        return True
