"""Counts: which range a value is counted in."""

from penstock.counts import Histogram


def test_a_value_at_a_bound_is_in_the_range_that_ends_there() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 99.0):
        histogram.record(value)
    assert histogram.counts == [2, 2, 1]
    assert histogram.facts() == [104.0, 2, 2, 1]
