"""The clock that is moved by hand moves both times together, forward only."""

import time

import pytest

from penstock.clock import Clock, ManualClock, SystemClock


def test_manual_clock_stands_still() -> None:
    clock = ManualClock()
    assert (clock.monotonic(), clock.wall_ms()) == (0.0, 1_700_000_000_000)
    assert (clock.monotonic(), clock.wall_ms()) == (0.0, 1_700_000_000_000)


def test_manual_clock_advances_both_times() -> None:
    clock = ManualClock(monotonic=5.0, wall_ms=1000)
    clock.advance(1.5)
    clock.advance(0.25)
    assert (clock.monotonic(), clock.wall_ms()) == (6.75, 2750)


def test_many_small_steps_lose_no_milliseconds() -> None:
    clock = ManualClock(wall_ms=0)
    for _ in range(10_000):
        clock.advance(0.0001)
    assert clock.wall_ms() == 1000


def test_manual_clock_never_goes_back() -> None:
    clock = ManualClock()
    with pytest.raises(ValueError, match="forward only"):
        clock.advance(-0.001)
    assert clock.monotonic() == 0.0


def test_system_clock_is_the_systems() -> None:
    clock: Clock = SystemClock()
    before, before_ms = time.monotonic(), time.time_ns() // 1_000_000
    now, now_ms = clock.monotonic(), clock.wall_ms()
    assert before <= now <= time.monotonic()
    # The calendar may be set meanwhile; that it is milliseconds is what is asked here.
    assert abs(now_ms - before_ms) < 60_000
