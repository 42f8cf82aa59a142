"""Rates: moving averages with a half-life of 5 s, and durations from them."""

import math

import pytest

from penstock.queues.queue_ram import Rates


def counted(seconds: float, per_s: int, *, step_s: float = 1.0) -> Rates:
    """Rates of a queue into which `per_s` messages a second came evenly for that long."""
    rates = Rates(100.0)
    now_s = 100.0
    for _ in range(round(seconds / step_s)):
        now_s += step_s
        rates.n_in += round(per_s * step_s)
        rates.update(now_s)
    return rates


def test_a_rate_is_half_way_there_after_5_seconds() -> None:
    assert counted(5, 1000).in_ == pytest.approx(500)
    assert counted(10, 1000).in_ == pytest.approx(750)


def test_a_rate_halves_in_5_idle_seconds() -> None:
    rates = counted(100, 1000)
    before = rates.in_
    rates.update(205.0)
    assert rates.in_ == pytest.approx(before / 2)


@pytest.mark.parametrize("step_s", [0.01, 0.1, 2.5, 5.0])
def test_how_often_it_is_updated_makes_no_difference(step_s: float) -> None:
    assert counted(5, 1000, step_s=step_s).in_ == pytest.approx(500)


def test_each_rate_is_of_its_own_count() -> None:
    rates = Rates(0.0)
    rates.n_in, rates.n_out, rates.n_ack_in, rates.n_ack_out = 10, 20, 30, 40
    rates.update(5.0)
    assert (rates.in_, rates.out, rates.ack_in, rates.ack_out) == pytest.approx((1, 2, 3, 4))
    assert rates.sum() == pytest.approx(10)
    assert (rates.n_in, rates.n_out, rates.n_ack_in, rates.n_ack_out) == (0, 0, 0, 0)


@pytest.mark.parametrize("dt_s", [0.0, 0.0009, -1.0])
def test_less_than_a_millisecond_is_left_for_the_next_time(dt_s: float) -> None:
    rates = Rates(0.0)
    rates.n_in = 10
    rates.update(dt_s)
    assert (rates.in_, rates.n_in) == (0.0, 10)
    rates.update(5.0)
    assert rates.in_ == pytest.approx(1)


def test_what_an_idle_queue_holds_lasts_for_ever() -> None:
    rates = Rates(0.0)
    assert math.isinf(rates.duration(1000, 1000, 0, 0))
    rates.ack_out = 0.0099
    assert math.isinf(rates.duration(1000, 1000, 0, 0))
    rates.ack_out = 0.01
    assert rates.duration(1000, 1000, 0, 0) == pytest.approx(50_000)


def test_duration_is_the_counts_now_and_before_by_four_times_the_rates() -> None:
    rates = Rates(0.0)
    rates.in_, rates.out, rates.ack_in, rates.ack_out = 10.0, 20.0, 30.0, 40.0
    assert rates.duration(100, 200, 300, 400) == pytest.approx(1000 / 400)
    assert rates.duration(0, 0, 0, 0) == 0.0


def test_a_queue_that_is_told_the_duration_it_reported_halves_itself() -> None:
    rates = counted(50, 1000)
    assert rates.target(rates.duration(800, 800, 200, 200)) == 500


def test_the_target_of_a_duration_is_a_whole_number_of_messages() -> None:
    rates = Rates(0.0)
    rates.out = 10.0
    assert rates.target(0.25) == 2
    assert rates.target(0.0) == 0
    assert math.isinf(rates.target(math.inf))
