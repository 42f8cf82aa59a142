"""Alerts on count, size, depth and age: when they fire, when they are armed again."""

import pytest

from penstock.errors import OptionError
from penstock.queues.thresholds import Alert, Alerts, Thresholds

MIB = 1 << 20


class Watch:
    """Alerts with the given thresholds, and what they told."""

    def __init__(self, **thresholds: int) -> None:
        self.told: list[tuple[str, int, int]] = []
        self.alerts = Alerts("orders", Thresholds(**thresholds), self._on_alert)
        self.now_s = 1000.0

    def _on_alert(self, alert: Alert) -> None:
        assert alert.queue == "orders"
        self.told.append((alert.kind, alert.value, alert.threshold))

    def counts(self, *counts: int) -> list[int]:
        """The counts at which it fired."""
        self.told.clear()
        for count in counts:
            self.alerts.check(self.now_s, count, 0)
        return [value for _, value, _ in self.told]

    def sizes(self, *sizes: int) -> list[int]:
        self.told.clear()
        for size in sizes:
            self.alerts.check(self.now_s, 0, 0, size)
        return [value for _, value, _ in self.told]


def test_nothing_is_set_by_itself() -> None:
    watch = Watch()
    assert not watch.alerts.is_set
    assert watch.counts(1 << 40) == []
    watch.alerts.check(0.0, 1 << 40, 1 << 50, 1 << 40)
    watch.alerts.check_age(0.0, 1 << 50)
    assert watch.told == []
    assert Watch(age_up=1).alerts.is_set


def test_it_fires_once_at_the_threshold() -> None:
    watch = Watch(count_up=10)
    assert watch.counts(8, 9, 10, 11, 12) == [10]
    assert watch.told == [("count", 10, 10)]
    assert watch.alerts.raised() == ["count"]


def test_it_is_armed_again_at_half_the_threshold() -> None:
    watch = Watch(count_up=10)
    assert watch.counts(10, 6, 10) == [10]
    assert watch.counts(5, 10) == [10]


def test_it_is_armed_again_at_a_down_that_is_set() -> None:
    watch = Watch(count_up=10, count_down=8)
    assert watch.counts(10, 9, 10) == [10]
    assert watch.counts(8, 10) == [10]
    watch = Watch(count_up=1, count_down=0)
    assert watch.counts(1, 2, 0, 1) == [1, 1]


def test_it_repeats_after_the_gap_while_it_is_above() -> None:
    watch = Watch(count_up=10)
    assert watch.counts(10) == [10]
    watch.now_s += 59.9
    assert watch.counts(20) == []
    watch.now_s += 0.1
    assert watch.counts(8) == []  # between down and up there is nothing to tell
    assert watch.counts(30, 31) == [30]
    watch.now_s += 60
    assert watch.counts(40) == [40]


def test_the_gap_can_be_set() -> None:
    watch = Watch(count_up=10, repeat_gap_s=5)
    watch.counts(10)
    watch.now_s += 5
    assert watch.counts(10, 10) == [10]
    assert Watch(count_up=10, repeat_gap_s=0).counts(10, 11) == [10, 11]


def test_depth_and_count_are_watched_apart() -> None:
    watch = Watch(count_up=10, depth_up=1000)
    watch.alerts.check(0.0, 9, 1000)
    watch.alerts.check(0.0, 10, 1001)
    assert watch.told == [("depth", 1000, 1000), ("count", 10, 10)]
    watch.alerts.check(0.0, 5, 1000)
    assert watch.alerts.raised() == ["depth"]
    watch.alerts.check(0.0, 0, 500)
    assert watch.alerts.raised() == []


def test_age_is_of_the_oldest_and_is_asked_for_apart() -> None:
    watch = Watch(age_up=60_000)
    watch.alerts.check_age(0.0, 59_999)
    watch.alerts.check_age(1.0, 60_000)
    watch.alerts.check_age(2.0, 61_000)
    assert watch.told == [("age", 60_000, 60_000)]
    watch.alerts.check(2.0, 0, 0)  # no word of age
    assert watch.alerts.raised() == ["age"]
    watch.alerts.check_age(3.0, 0)
    assert watch.alerts.raised() == []


def test_large_messages_among_small_ones_fire_once_per_gap() -> None:
    watch = Watch(size_up=100)
    assert watch.sizes(99, 100, 1, 100, 0, 200) == [100]
    watch.now_s += 60
    assert watch.sizes(1, 300, 300) == [300]


def test_a_down_for_sizes_arms_by_a_small_message() -> None:
    watch = Watch(size_up=100, size_down=10)
    assert watch.sizes(100, 11, 100, 10, 100) == [100, 100]


def test_a_check_without_an_arrival_is_no_small_message() -> None:
    watch = Watch(size_up=100, size_down=10)
    watch.sizes(100)
    watch.alerts.check(watch.now_s, 0, 0)
    assert watch.sizes(100) == []


@pytest.mark.parametrize(
    ("name", "thresholds"),
    [
        ("alert_count_up", {"count_up": -1}),
        ("alert_age_up", {"age_up": -5}),
        ("alert_depth_down", {"depth_up": 10, "depth_down": 10}),
        ("alert_depth_down", {"depth_up": 10, "depth_down": 11}),
        ("alert_size_down", {"size_up": 10, "size_down": -2}),
        ("alert_count_down", {"count_down": 5}),
        ("alert_repeat_gap", {"repeat_gap_s": -1}),
        ("alert_repeat_gap", {"repeat_gap_s": float("nan")}),
        ("alert_repeat_gap", {"repeat_gap_s": float("inf")}),
    ],
)
def test_thresholds_out_of_order(name: str, thresholds: dict[str, int]) -> None:
    with pytest.raises(OptionError) as caught:
        Thresholds(**thresholds)
    assert caught.value.name == name


def test_a_depth_threshold_above_the_memory_limit_comes_too_late() -> None:
    thresholds = Thresholds(depth_up=16 * MIB)
    assert thresholds.warning(17 * MIB) is None
    warning = thresholds.warning(16 * MIB)
    assert warning is not None
    assert "16 MiB" in warning
    assert Thresholds(count_up=1 << 40).warning(MIB) is None


@pytest.mark.parametrize(
    ("kind", "value", "threshold", "text"),
    [
        ("count", 1500, 1000, "queue 'orders': count is 1500, the alert threshold is 1000"),
        ("depth", 3 * MIB, MIB, "queue 'orders': depth is 3 MiB, the alert threshold is 1 MiB"),
        ("size", 10, 5, "queue 'orders': size is 10 B, the alert threshold is 5 B"),
        ("age", 61_500, 60_000, "queue 'orders': age is 61.5 s, the alert threshold is 60.0 s"),
    ],
)
def test_an_alert_as_people_read_it(kind: str, value: int, threshold: int, text: str) -> None:
    assert Alert("orders", kind, value, threshold).text() == text


def test_that_an_alert_is_over_is_told_once_of_all_kinds_but_size() -> None:
    over: list[tuple[str, int, bool]] = []

    def on_over(alert: Alert) -> None:
        over.append((alert.kind, alert.value, alert.is_over))

    thresholds = Thresholds(count_up=10, size_up=10, size_down=2, age_up=1000)
    alerts = Alerts("orders", thresholds, lambda _: None, on_over)
    for count in (10, 6, 5, 4, 0):
        alerts.check(0.0, count, 0, 10 if count == 10 else 1)
    alerts.check_age(0.0, 1000)
    alerts.check_age(0.0, 0)
    alerts.check_age(0.0, 0)
    assert over == [("count", 5, True), ("age", 0, True)]
    assert Alert("orders", "count", 5, 10, is_over=True).text() == (
        "queue 'orders': count is 5, below the alert threshold of 10 again"
    )
