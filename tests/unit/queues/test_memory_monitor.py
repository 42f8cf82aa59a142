"""MemoryMonitor: durations, rounds in slices, the full disk, the alarm."""

import math

import pytest

from penstock.clock import ManualClock
from penstock.errors import OptionError
from penstock.queues.backing_queue import UNLIMITED
from penstock.queues.memory_monitor import ROUNDS_OVER, MemoryMonitor
from tests.helpers.monitored import BUDGET, MIB, SHARED, FakeQueue, Monitored, queue

# --- durations ---


def desired(ram_parts: list[float], durations: list[float], budget: int = BUDGET) -> float:
    """What the monitor wants of queues that hold these parts of the budget for these times."""
    queues = [
        queue(ram=int(part * BUDGET), duration=duration)
        for part, duration in zip(ram_parts, durations, strict=True)
    ]
    bench = Monitored(*queues, budget=budget)
    bench.round()
    return bench.monitor.desired_s


def test_below_095_of_the_budget_any_duration_will_do() -> None:
    assert math.isinf(desired([0.25, 0.24], [10, 20]))
    assert math.isinf(desired([0.47, 0.47], [10, 20]))
    assert not math.isinf(desired([0.48, 0.47], [10, 20]))


def test_if_no_queue_has_a_finite_duration_there_is_none_to_want() -> None:
    assert math.isinf(desired([0.5, 0.49], [math.inf, math.inf]))


def test_from_095_on_they_shrink() -> None:
    assert desired([0.5, 0.5], [10, 20]) == pytest.approx(30 / 2 / 1.0)
    assert desired([1.0, 1.0], [10, 20]) == pytest.approx(30 / 2 / 2.0)


def test_a_sum_near_zero_is_zero() -> None:
    assert desired([0.5, 0.5], [4e-7, 5e-7]) == 0.0


def test_idle_queues_are_not_counted_in_the_average() -> None:
    assert desired([0.5, 0.5], [10, math.inf]) == pytest.approx(10)


def test_without_a_budget_nothing_may_stay() -> None:
    assert desired([0.1, 0.1], [10, 20], budget=0) == 0.0


def test_one_queue_alone_may_use_nearly_all() -> None:
    only = queue(ram=int(0.89 * BUDGET), depth=BUDGET, duration=3)
    bench = Monitored(only)
    bench.round()
    assert math.isinf(bench.monitor.desired_s)
    assert only.share == pytest.approx(SHARED, rel=1e-6)
    assert only.targets == []
    only.ram = int(0.96 * BUDGET)
    bench.round()
    assert only.targets == [pytest.approx(3 / 0.96, rel=1e-3)]


def test_each_queue_is_told_the_duration_when_it_changed_by_a_tenth() -> None:
    a, b = queue(ram=50 * MIB, duration=10), queue(ram=50 * MIB, duration=20)
    bench = Monitored(a, b)
    bench.round()
    told = bench.monitor.desired_s
    assert a.targets == b.targets == [told]
    b.duration = 21.0  # 3 % more
    bench.round()
    assert a.targets == [told]
    a.duration = 20.0
    bench.round()
    assert a.targets == b.targets == [told, bench.monitor.desired_s]
    b.ram = 0
    bench.round()
    assert math.isinf(a.targets[-1])


# --- a round ---


def test_a_round_is_due_every_two_and_a_half_seconds() -> None:
    bench = Monitored(queue())
    bench.round()
    for _ in range(24):
        bench.clock.advance(0.1)
        bench.monitor.tick(bench.clock.monotonic())
    assert bench.monitor.rounds == 1
    bench.clock.advance(0.2)
    bench.monitor.tick(bench.clock.monotonic())
    assert bench.monitor.rounds == 2


class SlowQueue(FakeQueue):
    """Takes a tenth of a millisecond to say for how long what it holds lasts."""

    clock: ManualClock

    def ram_duration(self) -> float:
        self.clock.advance(0.0001)
        return 5.0


SlowQueue.__abstractmethods__ = frozenset()


def test_with_many_queues_a_round_goes_in_slices() -> None:
    clock = ManualClock()
    monitor = MemoryMonitor(BUDGET, clock)
    queues = []
    for _ in range(1000):
        slow = SlowQueue(ram=99_999)  # type: ignore[abstract]
        slow.clock = clock
        monitor.register(slow)
        queues.append(slow)
    slices = 0
    is_going_on = monitor.tick(clock.monotonic())
    while is_going_on:
        slices += 1
        before = clock.monotonic()
        is_going_on = monitor.step(before + 0.002)
        assert clock.monotonic() - before < 0.004
    assert 30 < slices < 60
    assert monitor.counted_bytes == 99_999 * 1000
    assert all(q.targets for q in queues)


def test_queues_may_go_in_the_middle_of_a_round() -> None:
    clock = ManualClock()
    monitor = MemoryMonitor(BUDGET, clock)
    queues = [queue(ram=MIB) for _ in range(40)]
    for one in queues:
        monitor.register(one)
    assert not monitor.tick(-1.0)  # not due
    clock.advance(5)
    assert monitor.tick(clock.monotonic() - 1.0)  # a slice that is over after 16 queues
    for one in queues[10:]:
        monitor.unregister(one)
    while monitor.step(clock.monotonic()):
        pass
    assert monitor.counted_bytes == 16 * MIB
    assert len(queues[9].shares) == 2
    assert len(queues[10].shares) == 1


def test_ten_thousand_queues_are_no_burden() -> None:
    bench = Monitored(*[queue(depth=1000, ram=100, duration=1.0) for _ in range(10_000)])
    bench.round()
    assert bench.monitor.rounds == 1
    assert bench.monitor.counted_bytes == 1_000_000


# --- the disk, the alarm ---


def test_on_a_full_disk_queues_keep_what_they_have_in_ram_and_no_more() -> None:
    """No share is smaller, as nothing can be paged out; none is much larger, as a backlog would be
    read into RAM."""
    a, b = queue(ram=50 * MIB, depth=40 * MIB, duration=5), queue(ram=49 * MIB, duration=5)
    bench = Monitored(a, b)
    bench.round()
    before = a.share
    assert before < a.ram
    assert a.targets[-1] < math.inf
    bench.monitor.disk_alarm(True)
    bench.monitor.disk_alarm(True)
    assert (a.share, b.share) == (a.ram, b.ram)
    assert math.isinf(a.targets[-1])
    a.ram -= 20 * MIB  # consumed
    bench.round()
    assert (a.share, b.share) == (50 * MIB, b.ram)
    c = queue(depth=1000 * MIB)  # a backlog that is opened now
    bench.monitor.register(c)
    bench.round()
    assert c.share <= SHARED
    a.ram += 20 * MIB
    bench.monitor.disk_alarm(False)
    bench.monitor.tick(bench.clock.monotonic())
    assert a.share + b.share + c.share <= SHARED
    assert a.targets[-1] < math.inf


class FillingQueue(FakeQueue):
    """Finds the disk full when it is told to shrink."""

    monitor: MemoryMonitor

    def set_share(self, share_bytes: int) -> None:
        super().set_share(share_bytes)
        if share_bytes < UNLIMITED:
            self.monitor.disk_alarm(True)


FillingQueue.__abstractmethods__ = frozenset()


def test_a_disk_that_is_found_full_in_a_round_ends_the_round() -> None:
    a = queue(ram=40 * MIB, depth=40 * MIB)
    filling = FillingQueue(ram=40 * MIB)  # type: ignore[abstract]
    bench = Monitored(a)
    filling.monitor = bench.monitor
    bench.monitor.disk_alarm(True)
    bench.monitor.register(filling)
    bench.monitor.disk_alarm(False)
    bench.round()
    assert bench.monitor.is_disk_full
    assert a.share >= a.ram
    assert filling.share >= filling.ram


def test_the_alarm_begins_at_the_watermark_and_ends_below_it() -> None:
    a = queue(ram=79 * MIB)
    bench = Monitored(a, queue(), watermark=0.8)
    bench.round()
    assert bench.kinds() == []
    a.ram = 80 * MIB
    for _ in range(ROUNDS_OVER + 1):
        bench.round()
    assert bench.monitor.is_alarmed
    assert bench.events == [
        ("memory_alarm", "memory: 80 MiB counted in RAM has reached the watermark of 80 MiB")
    ]
    a.ram = 77 * MIB  # below the watermark, but not by enough
    bench.round()
    assert bench.monitor.info()["is_alarmed"] == 1
    a.ram = 76 * MIB
    bench.round()
    assert bench.monitor.info()["is_alarmed"] == 0
    assert bench.kinds() == ["memory_alarm", "memory_free"]


def test_above_the_watermark_small_changes_are_sent_too_so_that_it_can_end() -> None:
    a, b = queue(depth=50 * MIB), queue(depth=50 * MIB)
    bench = Monitored(a, b)
    bench.round()
    bench.round()
    a.ram, b.ram, a.bytes = 50 * MIB, 50 * MIB, 48 * MIB
    bench.round()
    half = SHARED / 2
    assert [a.share, b.share] == pytest.approx([half, half], rel=0.05)
    assert a.share + b.share <= SHARED < 0.95 * BUDGET


def test_queues_are_asked_to_page_out_before_publishers_have_to_wait() -> None:
    a = queue(ram=58 * MIB, depth=58 * MIB)
    bench = Monitored(a)
    bench.round()
    bench.monitor.other_bytes = 50 * MIB  # such as topology, in less time than between two rounds
    bench.round()
    assert not bench.monitor.is_alarmed
    assert a.share <= 40 * MIB
    bench.clock.advance(0.3)  # the next round comes soon
    a.ram = 40 * MIB
    assert not bench.monitor.tick(bench.clock.monotonic())
    assert bench.monitor.rounds == 3
    assert bench.events == []
    # And if one does not page out, after a few rounds.
    a.ram = 58 * MIB
    bench.round()
    for _ in range(ROUNDS_OVER - 2):
        bench.clock.advance(0.3)
        bench.monitor.tick(bench.clock.monotonic())
    assert not bench.monitor.is_alarmed
    bench.clock.advance(0.3)
    bench.monitor.tick(bench.clock.monotonic())
    assert bench.kinds() == ["memory_alarm"]


def test_nobody_waits_while_queues_page_out_fast_enough() -> None:
    """A process that gets little CPU takes seconds for it."""
    a = queue(ram=120 * MIB)
    bench = Monitored(a)
    bench.round()
    for ram in (117, 114, 112, 110, 108, 107):
        a.ram = ram * MIB
        bench.round()
        assert bench.events == [], ram
    for _ in range(ROUNDS_OVER - 2):  # it does not fall, or hardly: the first round counts, too
        a.ram -= MIB // 2
        bench.round()
        assert bench.events == []
    bench.round()
    assert bench.kinds() == ["memory_alarm"]


def test_publishers_go_on_as_soon_as_enough_was_paged_out() -> None:
    """Not with the next round, 2.5 s later."""
    a = queue(ram=150 * MIB)
    bench = Monitored(a)
    bench.round()
    assert bench.monitor.is_alarmed
    for ram, is_alarmed in ((120, True), (97, True), (94, False)):
        a.ram = ram * MIB
        bench.clock.advance(0.3)
        bench.monitor.tick(bench.clock.monotonic())
        assert bench.monitor.is_alarmed == is_alarmed


def test_publishers_wait_at_once_for_what_no_queue_can_page_out() -> None:
    bench = Monitored(queue(ram=10 * MIB))
    bench.monitor.other_bytes = BUDGET
    bench.round()
    assert bench.kinds() == ["memory_alarm"]
    bench = Monitored(queue(ram=150 * MIB))  # or for far too much
    bench.round()
    assert bench.kinds() == ["memory_alarm"]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("memory", {"budget_bytes": -1}),
        ("memory_high_watermark", {"watermark": 0.0}),
        ("memory_high_watermark", {"watermark": 1.1}),
    ],
)
def test_values_out_of_range(name: str, values: dict[str, float]) -> None:
    with pytest.raises(OptionError) as caught:
        MemoryMonitor(**{"budget_bytes": BUDGET, "clock": ManualClock(), **values})  # type: ignore[arg-type]
    assert caught.value.name == name


def test_what_it_tells_of_itself() -> None:
    bench = Monitored(queue(ram=96 * MIB, duration=4), queue(duration=4))
    bench.round()
    assert bench.monitor.info() == {
        "budget_bytes": BUDGET,
        "watermark_bytes": BUDGET,
        "counted_bytes": 96 * MIB,
        "other_bytes": 0,
        "ratio": 0.96,
        "desired_s": pytest.approx(8 / 2 / 0.96),
        "is_alarmed": 0,
        "is_disk_full": 0,
        "queues": 2,
        "rounds": 1,
    }
