"""The histogram of penstock perf."""

import random

from penstock.client.load import Latencies


def test_percentiles_are_right_to_three_per_cent() -> None:
    rng = random.Random(5)
    times = sorted(int(rng.lognormvariate(7, 2)) for _ in range(10_000))
    found = Latencies()
    for us in times:
        found.add(us)
    for percent in (1.0, 50.0, 95.0, 99.0, 99.9, 100.0):
        exact = times[max(round(len(times) * percent / 100), 1) - 1]
        assert exact * 0.96 <= found.percentile(percent) <= exact
    facts = found.facts()
    assert (facts["min"], facts["max"]) == (times[0], times[-1])
    assert list(facts) == ["min", "p50", "p75", "p95", "p99", "p99.9", "max"]


def test_histograms_are_added() -> None:
    one, other, empty = Latencies(), Latencies(), Latencies()
    one.add(10, 3)
    other.add(7)
    other.add(-1)
    one.add_all(other)
    one.add_all(empty)
    assert (one.count, one.facts()["min"], one.facts()["p50"], one.facts()["max"]) == (5, 0, 10, 10)
    assert empty.facts() == {}
    assert empty.percentile(50) == 0
