"""Bucket: how much may be said at once, and how much more with time: a token bucket.

Whoever writes what a client or a load can cause (lines of the log, alerts) asks a bucket first. It
is full at the beginning, `burst` pieces; each piece takes one out, and `per_s` come back each
second, never beyond `burst`. What finds no room is counted by its owner in `left_out`, so that the
next piece can say how many there were before it.

Time is handed in, in seconds of a monotonic clock. Not here: who has which bucket.
"""


class Bucket:
    """`burst` at first, and `per_s` more each second."""

    __slots__ = ("_at_s", "_left", "burst", "left_out", "per_s")

    def __init__(self, burst: float, per_s: float, now_s: float) -> None:
        self.burst = burst
        self.per_s = per_s
        self.left_out = 0
        self._left = burst
        self._at_s = now_s

    def has_room(self, now_s: float) -> bool:
        """May one more be written?"""
        self._left = min(self.burst, self._left + (now_s - self._at_s) * self.per_s)
        self._at_s = now_s
        return self._left >= 1.0

    def take(self) -> None:
        """One is written."""
        self._left -= 1.0
