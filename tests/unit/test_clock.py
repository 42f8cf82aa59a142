"""The clock that is moved by hand moves both times together, forward only."""

import time

import pytest

from penstock.clock import Clock, ManualClock, SystemClock, until_next


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


# ---- a system's time that is set ----------------------------------------------------------------

HOUR_S = 3600


@pytest.mark.parametrize("step_s", [2 * HOUR_S, -2 * HOUR_S, 365 * 86_400, -365 * 86_400])
def test_a_step_of_the_systems_time_is_no_step_of_the_calendar(step_s: int) -> None:
    clock = ManualClock()
    clock.advance(10)
    before_us = clock.wall_us()
    clock.step(step_s)
    assert clock.wall_us() == before_us
    clock.advance(60)
    assert clock.wall_us() == before_us + 60_000_000, "the step is noticed now"
    most = 0.084 if abs(step_s) <= 2 * HOUR_S else 0.5
    for seconds in (0.1, 1.0, 10.0, 60.0, 600.0):
        before_us = clock.wall_us()
        clock.advance(seconds)
        passed_s = (clock.wall_us() - before_us) / 1_000_000
        assert 0 < abs(passed_s - seconds) <= most * seconds
        assert (passed_s > seconds) == (step_s > 0)


@pytest.mark.parametrize("step_s", [2 * HOUR_S, -2 * HOUR_S, 1, -1])
def test_a_step_is_caught_up_in_the_end_and_time_never_goes_back(step_s: int) -> None:
    clock = ManualClock()
    clock.step(step_s)
    before_us = clock.wall_us()
    for _ in range(37 * 60):
        clock.advance(60)
        assert clock.wall_us() > before_us
        before_us = clock.wall_us()
    assert clock.wall_us() == clock.system_us()


def test_after_a_long_pause_no_more_is_caught_up_than_there_was() -> None:
    clock = ManualClock()
    clock.step(60)
    clock.advance(1)
    clock.wall_us()
    clock.advance(30 * 86_400)
    assert clock.wall_us() == clock.system_us()


def test_small_differences_are_followed() -> None:
    """As NTP makes them: the calendar is never further away than what came since the last look."""
    clock = ManualClock()
    for _ in range(1000):
        clock.step(0.0005)
        clock.advance(1)
        assert abs(clock.wall_us() - clock.system_us()) <= 500


def test_what_is_done_now_and_then_is_done_at_multiples_of_its_period() -> None:
    assert [until_next(now_s, 2.5) for now_s in (0.0, 1.0, 2.5, 4.9375)] == [2.5, 1.5, 2.5, 0.0625]
