"""Clock: the system's, and one that a test moves by hand.

Everything that needs the time is given a Clock, so any test can replay any run and none has to
sleep. Only this module asks the system for the time.

`monotonic` never goes back; it measures how long ago something was: when a checkpoint is due, how
long a sync took. `wall_ms` is the calendar's time, may jump either way when the clock is set, and
is for what is written to disk or displayed: the arrival and the expiry of messages. `wall_us` is
finer, for the times of a stream's records, among which somebody may look for the moment just before
a publish.
"""

import time
from datetime import UTC, datetime
from typing import Protocol


def date(wall_ms: int) -> str:
    """Return a time of `wall_ms` for operators: ISO 8601, UTC, with milliseconds."""
    return datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(timespec="milliseconds")


class Clock(Protocol):
    """A source of time."""

    def monotonic(self) -> float:
        """Return seconds since some fixed moment; never goes back."""
        ...

    def wall_ms(self) -> int:
        """Return milliseconds since 1970-01-01 00:00 UTC; may jump when the clock is set."""
        ...

    def wall_us(self) -> int:
        """Return microseconds since 1970-01-01 00:00 UTC; may jump when the clock is set."""
        ...


class SystemClock:
    """The clock of this machine."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def wall_us(self) -> int:
        return time.time_ns() // 1000


class ManualClock:
    """Stands still until `advance` is called. For tests and simulations.

    monotonic: seconds it begins at. wall_ms: milliseconds since 1970 it begins at.
    """

    def __init__(self, monotonic: float = 0.0, wall_ms: int = 1_700_000_000_000) -> None:
        self._start: float = monotonic
        self._start_ms: int = wall_ms
        self._advanced: float = 0.0

    def monotonic(self) -> float:
        return self._start + self._advanced

    def wall_ms(self) -> int:
        return self._start_ms + round(self._advanced * 1000)

    def wall_us(self) -> int:
        return self._start_ms * 1000 + round(self._advanced * 1_000_000)

    def advance(self, seconds: float) -> None:
        """Move both times forward. Raises ValueError if `seconds` is negative."""
        if seconds < 0:
            raise ValueError(f"a clock goes forward only, not by {seconds} s")
        self._advanced += seconds


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
