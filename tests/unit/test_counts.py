"""Counts: which range a value is counted in, and what each user has."""

from penstock.counts import Histogram, UserSums


def test_a_value_at_a_bound_is_in_the_range_that_ends_there() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 99.0):
        histogram.record(value)
    assert histogram.counts == [2, 2, 1]
    assert histogram.facts() == [104.0, 2, 2, 1]


def test_a_user_who_has_nothing_any_more_is_not_kept() -> None:
    sums = UserSums()
    sums.add("ann", 5)
    sums.add("bob")
    assert (sums.total, sums.of("ann"), sums.of("eve"), sums.largest()) == (6, 5, 0, "ann")
    sums.add("ann", -5)
    assert (sums.total, sums.of("ann"), sums.largest()) == (1, 0, "bob")
    sums.add("bob", -1)
    assert (sums.total, sums.largest()) == (0, "")
