"""MemoryMonitor: what share of the budget each queue gets, and their own limits against it."""

import math
import random
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.clock import ManualClock
from penstock.errors import OptionError
from penstock.queues.backing_queue import UNLIMITED
from penstock.queues.memory_monitor import MemoryMonitor
from tests.helpers.monitored import BUDGET, MIB, SHARED, FakeQueue, Monitored, queue

# --- shares ---

LEAST: Final = 64 << 10  # what an empty queue gets: what one publish needs


def floor_of(queues: int) -> float:
    """What each of so many queues gets at most before needs are compared."""
    return SHARED / 4 / queues


def settled(*queues: FakeQueue) -> Monitored:
    """After so many rounds that nothing changes any more."""
    bench = Monitored(*queues)
    for _ in range(4):
        bench.round()
    return bench


def test_what_nobody_needs_is_for_all_equally() -> None:
    a, b, c = queue(depth=20 * MIB), queue(depth=10 * MIB), queue()
    settled(a, b, c)
    needs = [(20 * MIB + 2560) * 8 / 7 + 65536, (10 * MIB + 2560) * 8 / 7 + 65536]
    left = SHARED - LEAST - sum(needs)
    assert a.share == pytest.approx(needs[0] + left / 3, rel=1e-6)
    assert b.share == pytest.approx(needs[1] + left / 3, rel=1e-6)
    assert c.share == pytest.approx(LEAST + left / 3, rel=1e-6)


def test_of_too_many_needs_each_gets_its_part_and_an_empty_queue_what_a_publish_needs() -> None:
    a, b, c = queue(depth=600 * MIB), queue(depth=300 * MIB), queue()
    settled(a, b, c)
    floor = floor_of(3)
    rest = SHARED - 2 * floor - LEAST
    assert a.share == pytest.approx(floor + rest * 2 / 3, rel=0.01)
    assert b.share == pytest.approx(floor + rest / 3, rel=0.01)
    assert c.share == LEAST


@pytest.mark.parametrize("idle", [20, 98, 10_000])
def test_idle_queues_take_no_more_than_a_sixteenth(idle: int) -> None:
    busy = [queue(depth=600 * MIB) for _ in range(2)]
    empty = [queue() for _ in range(idle)]
    settled(*busy, *empty)
    assert sum(one.share for one in busy) >= 0.93 * SHARED
    assert max(one.share for one in empty) <= LEAST


def test_short_queues_stay_in_ram_beside_long_ones() -> None:
    long = [queue(depth=6000 * MIB) for _ in range(2)]
    short = [queue(depth=100_000) for _ in range(98)]
    settled(*long, *short)
    assert min(one.share for one in short) >= (100_000 + 2560) * 8 / 7
    assert sum(one.share for one in long) >= 0.8 * SHARED


def test_who_is_consumed_faster_gets_more() -> None:
    fast, slow, none = (queue(depth=600 * MIB) for _ in range(3))
    fast.out, slow.out = 3e6, 1e6
    settled(fast, slow, none)
    floor = floor_of(3)
    half = (SHARED - 3 * floor) / 2
    assert fast.share == pytest.approx(floor + half / 3 + half * 3 / 4, rel=0.01)
    assert slow.share == pytest.approx(floor + half / 3 + half * 1 / 4, rel=0.01)
    assert none.share == pytest.approx(floor + half / 3, rel=0.01)


def test_who_is_fast_and_short_gets_no_more_than_it_needs() -> None:
    fast, long = queue(depth=30 * MIB), queue(depth=600 * MIB)
    fast.out = 1e9
    settled(fast, long)
    need = (30 * MIB + 2560) * 8 / 7 + 65536
    assert fast.share == pytest.approx(need, rel=1e-6)
    assert long.share == pytest.approx(SHARED - need, rel=1e-6)


def test_small_messages_need_what_they_take_in_ram() -> None:
    small, large = queue(depth=MIB), queue(depth=100 * MIB)
    small.ready = 1 << 18  # of 4 bytes
    settled(small, large)
    assert small.share == pytest.approx(SHARED / 8 + SHARED * 3 / 4 * 66 / (66 + 104), rel=0.03)


def test_an_own_maximum_is_all_that_a_queue_needs() -> None:
    a, b = queue(depth=600 * MIB), queue(depth=600 * MIB)
    bench = Monitored(a)
    bench.monitor.register(b, 30 * MIB)
    for _ in range(4):
        bench.round()
    most = 30 * MIB - SHARED / 8
    assert b.share < SHARED / 8 + most
    assert a.share == pytest.approx(SHARED - b.share, rel=1e-6)
    b.bytes = 10 * MIB
    for _ in range(2):
        bench.round()
    assert b.share < SHARED / 8 + 3 * MIB


def test_pending_messages_count_as_the_ready_ones_do_on_average() -> None:
    a, b = queue(depth=300 * MIB), queue(depth=300 * MIB)
    a.unacked = 20  # besides 10 ready ones
    settled(a, b)
    rest = SHARED * 3 / 4
    assert a.share == pytest.approx(SHARED / 8 + rest * 3 / 4, rel=0.02)
    assert b.share == pytest.approx(SHARED / 8 + rest * 1 / 4, rel=0.04)


def test_what_is_in_ram_counts_where_all_is_pending() -> None:
    a, b = queue(ram=90 * MIB), queue(ram=10 * MIB)
    a.unacked = b.unacked = 5
    bench = Monitored(a, b)
    bench.round()
    assert a.share > 4 * b.share


def test_without_messages_all_is_equal() -> None:
    queues = [queue() for _ in range(4)]
    Monitored(*queues).round()
    assert {q.share for q in queues} == {SHARED // 4}


def test_a_new_queue_has_at_once_what_nobody_has() -> None:
    bench = Monitored(queue())
    assert bench.queues[0].share == SHARED
    bench.monitor.unregister(bench.queues[0])
    a = queue()
    bench.monitor.register(a)
    assert a.share == SHARED
    a.bytes = a.ready = 1
    b, c = queue(), queue(depth=90)
    for one in (b, c):
        bench.monitor.register(one)
        bench.round()
        bench.round()
    bench.monitor.unregister(c)  # it had most: now there is room
    d = queue()
    bench.monitor.register(d)
    assert d.share == SHARED // 3


def test_many_new_queues_are_promised_no_more_than_there_is() -> None:
    bench = Monitored(*[queue() for _ in range(100)])
    assert sum(one.share for one in bench.queues) <= BUDGET
    assert all(one.share >= 64 << 10 for one in bench.queues)


def test_a_new_queue_has_enough_to_begin_and_a_round_is_due_soon() -> None:
    a = queue(depth=MIB)
    bench = Monitored(a)
    bench.round()
    b = queue()
    bench.monitor.register(b)
    assert b.share == 64 << 10
    bench.monitor.tick(bench.clock.monotonic())
    assert bench.monitor.rounds == 1  # not at once: a thousand may be declared in a second
    bench.clock.advance(0.25)
    bench.monitor.tick(bench.clock.monotonic())
    assert bench.monitor.rounds == 2
    assert a.share + b.share <= SHARED


def test_shares_never_promise_more_than_there_is() -> None:
    log: list[str] = []
    a, b = queue("a", depth=90 * MIB, log=log), queue("b", depth=10 * MIB, log=log)
    bench = Monitored(a, b)
    for _ in range(4):
        bench.round()
    a.ram = a.share  # it is full
    before = a.share, b.share
    free = SHARED - before[0] - before[1]
    b.bytes = 900 * MIB
    log.clear()
    bench.round()
    assert log[0] == "a"  # a shrinks, but holds as much as before: b gets what nobody had
    assert a.share < before[0]
    assert b.share <= before[1] + free + 1
    a.ram = before[0] - 10 * MIB  # some of it is paged out
    bench.round()
    assert b.share == pytest.approx(before[1] + free + 10 * MIB, rel=1e-3)
    a.ram = a.share
    bench.round()
    assert b.share == pytest.approx(SHARED * (1 / 8 + 3 / 4 * 900 / 990), rel=0.02)


def test_the_smaller_are_sent_before_the_larger() -> None:
    log: list[str] = []
    a, b = queue("a", depth=10 * MIB, log=log), queue("b", depth=90 * MIB, log=log)
    bench = Monitored(a, b)
    bench.round()
    bench.round()
    a.bytes, b.bytes = 90 * MIB, 10 * MIB
    log.clear()
    bench.round()
    assert log == ["b", "a"]


def test_a_change_below_a_tenth_is_not_sent() -> None:
    a, b = queue(depth=50 * MIB), queue(depth=50 * MIB)
    bench = Monitored(a, b)
    bench.round()
    bench.round()
    sent = len(a.shares), len(b.shares)
    a.bytes = 55 * MIB
    bench.round()
    assert (len(a.shares), len(b.shares)) == sent
    a.bytes = 95 * MIB
    bench.round()
    assert len(a.shares) == sent[0] + 1


def test_what_others_count_is_taken_off() -> None:
    only = queue(depth=MIB)
    bench = Monitored(only)
    bench.monitor.other_bytes = 10 * MIB
    bench.round()
    bench.round()
    assert only.share == pytest.approx(SHARED - 10 * MIB, rel=1e-6)
    assert bench.monitor.counted_bytes == 10 * MIB


def test_a_queue_that_was_unregistered_is_told_nothing() -> None:
    a, b = queue(depth=MIB), queue(depth=MIB)
    bench = Monitored(a, b)
    bench.round()
    sent = len(a.shares)
    bench.monitor.unregister(a)
    bench.monitor.unregister(a)
    bench.round()
    bench.round()
    assert len(a.shares) == sent
    assert b.share == pytest.approx(SHARED, rel=1e-6)


class ObedientQueue(FakeQueue):
    """Grows at its rate as far as its limits let it, and pages out the rest in time."""

    def go_on(self, rate_bytes: int, size_bytes: int) -> None:
        self.bytes += rate_bytes
        self.ready = self.bytes // size_bytes
        limit = self.shares[-1]
        if self.targets and not math.isinf(self.targets[-1]):
            limit = min(limit, int(self.targets[-1] * rate_bytes / 2.5))
        before = self.ram
        self.ram = min(self.ram + rate_bytes, limit)
        self.duration = (before + self.ram) / (4 * rate_bytes / 2.5) if rate_bytes else math.inf


ObedientQueue.__abstractmethods__ = frozenset()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 60 * MIB), min_size=2, max_size=6), st.randoms())
def test_queues_that_obey_stay_within_the_budget_and_use_it(
    rates: list[int], rng: random.Random
) -> None:
    queues = [ObedientQueue() for _ in rates]  # type: ignore[abstract]
    bench = Monitored(*queues)
    bench.round()  # what each gets when it comes is not divided among all yet
    for at in range(40):
        if at % 10 == 0:
            rng.shuffle(rates)
        for one, rate in zip(queues, rates, strict=True):
            one.go_on(rate, 1000)
        bench.round()
        assert sum(q.share for q in queues) <= 1.1 * SHARED + 10
        assert bench.monitor.counted_bytes <= BUDGET
    if sum(rates) > BUDGET // 10:
        assert bench.monitor.counted_bytes >= BUDGET // 10
    assert bench.events == []


# --- the queues' own limits ---


def test_maxima_that_come_to_more_than_80_percent_are_warned_of() -> None:
    monitor = MemoryMonitor(BUDGET, ManualClock())
    monitor.register(queue(), 50 * MIB)
    monitor.register(queue())  # without one: it asks for nothing
    assert monitor.check_limits(30 * MIB) is None
    assert monitor.check_limits(UNLIMITED) is None
    warning = monitor.check_limits(31 * MIB, strict=True)
    assert warning is not None
    assert "81 MiB" in warning
    assert "81 %" in warning
    assert "100 MiB" in warning


def test_strict_refuses_maxima_above_the_whole_budget() -> None:
    monitor = MemoryMonitor(BUDGET, ManualClock())
    first = queue()
    monitor.register(first, 90 * MIB)
    assert monitor.check_limits(10 * MIB, strict=True) is not None
    assert monitor.check_limits(11 * MIB) is not None
    with pytest.raises(OptionError, match="at most the 10 MiB that other queues leave of 100 MiB"):
        monitor.check_limits(11 * MIB, strict=True)
    monitor.register(first, 20 * MIB)  # a new limit for a known queue
    assert monitor.check_limits(11 * MIB, strict=True) is None
    monitor.unregister(first)
    assert monitor.check_limits(80 * MIB, strict=True) is None
