"""Histogram: how often a value was in each of a few fixed ranges, and the sum of all values.

A range ends at a bound, and the value that is the bound is in it; the last range has no end. So two
histograms with the same bounds can be added, and a quantile can be read from the counts, as
Prometheus does. A record costs a search in a dozen numbers and two additions: it is made once for a
turn, a sync or a read of a run, never for each message.
"""

from bisect import bisect_left
from typing import Final

Bounds = tuple[float, ...]

TURN_S: Final[Bounds] = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
CONFIRM_S: Final[Bounds] = (
    0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0,
)  # fmt: skip
DISK_S: Final[Bounds] = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0, 10.0,
)  # fmt: skip
LONG_S: Final[Bounds] = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
WAIT_S: Final[Bounds] = (
    0.0, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 21_600.0, 86_400.0,
)  # fmt: skip
RECORDS: Final[Bounds] = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 500.0, 2000.0, 10_000.0)


class Histogram:
    """bounds: the ends of the ranges, ascending. counts: of the values in each range, one more than
    there are bounds. total: the sum of the values."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds: Bounds = bounds
        self.counts: list[int] = [0] * (len(bounds) + 1)
        self.total: float = 0.0

    def record(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def facts(self) -> list[float]:
        """Return the sum, then the counts."""
        return [self.total, *self.counts]
