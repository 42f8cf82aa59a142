"""Many queues under one budget, second by second: see tests/helpers/queue_simulator.py."""

import random
from collections.abc import Iterator

import pytest

from penstock.queues.queue_ram import ALPHA_BYTES, CHECKS
from penstock.storage.files.durability import NONE, OS
from tests.helpers.queue_simulator import Load, Rate, Simulator

pytestmark = pytest.mark.large

MIB = 1 << 20


@pytest.fixture(autouse=True)
def _without_checks() -> Iterator[None]:
    """They walk the whole queue after each call."""
    was_on, CHECKS.is_on = CHECKS.is_on, False
    yield
    CHECKS.is_on = was_on


def steady(per_s: float) -> Rate:
    return lambda _: per_s


def between(start_s: float, end_s: float, per_s: float, otherwise: float = 0.0) -> Rate:
    return lambda now_s: per_s if start_s <= now_s < end_s else otherwise


def test_two_long_queues_use_four_fifths_of_the_budget() -> None:
    """As many messages for a MiB as 145,000 of 256 B for 64 MiB."""
    loads = [Load(between(0, 10, 450), steady(0), 256) for _ in range(2)]
    sim = Simulator(2 * MIB, loads)
    sim.run(16)
    used = sum(one.history[-1].ram_bytes for one in sim.queues)
    assert all(one.history[-1].delta for one in sim.queues), "they are longer than RAM"
    assert used >= 0.8 * 2 * MIB
    sim.drain()


def test_two_busy_queues_use_four_fifths_of_the_budget() -> None:
    loads = [Load(between(0, 10, 900, 200), between(5, 1e9, 200), 256) for _ in range(2)]
    sim = Simulator(2 * MIB, loads)
    sim.run(30)
    used = [sum(one.history[at].ram_bytes for one in sim.queues) for at in range(15, 30)]
    assert all(one.history[-1].delta for one in sim.queues), "they are longer than RAM"
    assert sum(used) / len(used) >= 0.8 * 2 * MIB
    sim.drain()


@pytest.mark.parametrize("idle", [20, 98])
def test_idle_queues_leave_the_budget_to_two_busy_ones(idle: int) -> None:
    loads = [Load(between(0, 6, 900, 200), between(4, 1e9, 200), 256) for _ in range(2)]
    sim = Simulator(2 * MIB, [*loads, *[Load(steady(0), steady(0), 256) for _ in range(idle)]])
    sim.run(20)
    used = [sum(one.history[at].ram_bytes for one in sim.queues) for at in range(12, 20)]
    assert all(one.history[-1].delta for one in sim.queues[:2]), "they are longer than RAM"
    assert sum(used) / len(used) >= 0.75 * 2 * MIB
    sim.drain()


def test_the_faster_consumer_has_the_more_of_its_queue_in_ram() -> None:
    loads = [Load(between(0, 10, 1000, out), between(10, 1e9, out), 100) for out in (600, 60, 0)]
    sim = Simulator(MIB, loads)
    sim.run(40)
    fast, slow, none = (one.history[-1].ram_bytes for one in sim.queues)
    assert fast > 1.3 * slow
    assert slow >= none
    sim.drain()


@pytest.mark.parametrize("mode", [OS, NONE])
def test_a_burst_goes_out_and_comes_back_within_a_second(mode: int) -> None:
    """Four times what fits; once it fits again it is back within a second."""
    sim = Simulator(MIB, [Load(between(0, 5, 2400, 100), between(6, 1e9, 500), 100, mode)])
    sim.run(45)
    (one,) = sim.queues
    cost = ALPHA_BYTES + 100
    fits = [at for at in one.history if at.len * cost <= at.target_bytes * 7 // 8 - 4096]
    assert one.history[5].is_flowed
    late = [at for at in fits if at.is_flowed]
    assert len(late) <= 1, f"flowed although all would fit: {late}"
    back = next(n for n, at in enumerate(one.history) if n > 6 and not at.is_flowed)
    written = one.history[back].writes
    assert one.history[-1].writes == written, "nothing is written once it is back"
    sim.drain()


def test_a_consumer_that_stops_and_returns() -> None:
    stops = between(20, 40, 0.0, 400)
    sim = Simulator(MIB, [Load(steady(390), stops, 100), Load(steady(50), steady(60), 100)])
    sim.run(80)
    assert sim.queues[0].history[39].delta, "it was longer than RAM"
    assert not sim.queues[1].history[-1].writes, "the other one was not paged out for it"
    sim.drain()


def test_a_hundred_queues_of_different_speeds() -> None:
    rng = random.Random(7)
    loads = []
    for _ in range(100):
        per_s = rng.choice([0, 1, 5, 20, 60])
        out = rng.choice([0.0, 0.5, 1.0, 1.1]) * per_s
        loads.append(Load(steady(per_s), between(5, 1e9, out), rng.choice([20, 100, 1000])))
    sim = Simulator(4 * MIB, loads)
    sim.run(25)
    sim.drain()


def test_a_budget_that_shrinks_and_grows() -> None:
    loads = [Load(between(0, 10, 500), steady(0), 100) for _ in range(3)]
    sim = Simulator(8 * MIB, loads)
    sim.run(12)
    assert not any(one.history[-1].writes for one in sim.queues)
    sim.budget(MIB)
    sim.run(3, judge=False)  # a round may be 2.5 s away
    sim.run(10)
    assert all(one.history[-1].is_flowed for one in sim.queues)
    assert all(one.history[-1].alphas > 500 for one in sim.queues), "the head is there"
    sim.budget(8 * MIB)
    sim.run(8)
    assert not any(one.history[-1].is_flowed for one in sim.queues), "all of it is back"
    sim.drain()


@pytest.mark.parametrize("mode", [OS, NONE])
def test_a_message_in_ten_queues_takes_the_room_of_one(mode: int) -> None:
    """2,000 messages of 1 KiB in ten queues: 24 MiB if each counted them whole, 7 as it is."""
    loads = [Load(between(0, 10, 200), steady(0), 1024, mode, fan="ten") for _ in range(10)]
    sim = Simulator(8 * MIB, loads)
    sim.run(14)
    assert not any(one.history[-1].writes for one in sim.queues), "all of it fits"
    used = sum(one.history[-1].ram_bytes for one in sim.queues)
    assert used == 2000 * (1024 + 10 * ALPHA_BYTES)
    sim.drain()


def test_a_fan_that_does_not_fit_uses_what_it_may() -> None:
    """Consumers of different speeds: what the fast ones are done with the slow ones count."""
    loads = [
        Load(between(0, 12, 400, 50), between(6, 1e9, per_s), 1024, fan="five")
        for per_s in (0, 20, 100, 300, 600)
    ]
    sim = Simulator(2 * MIB, [*loads, Load(steady(50), steady(55), 200)])
    sim.run(40)
    assert sim.queues[0].history[-1].delta, "it is longer than RAM"
    assert not sim.queues[4].history[-1].len, "and this one is empty"
    sim.drain()


def test_a_fan_of_which_one_queue_has_a_limit() -> None:
    loads = [Load(between(0, 5, 200), between(10, 15, 300), 1024, fan="two") for _ in range(2)]
    sim = Simulator(8 * MIB, loads)
    sim.queues[0].queue.set_limits(128 << 10, 64 << 10)
    sim.run(9)
    assert sim.queues[0].history[-1].delta, "it is longer than its limit"
    assert not sim.queues[1].history[-1].writes
    assert sim.queues[1].history[-1].ram_bytes > 900 * 1024, "this one counts nearly all of it"
    sim.run(10)
    sim.drain()


@pytest.mark.parametrize("seed", range(6))
def test_random_loads(seed: int) -> None:
    """Rates that change every few seconds, and budgets that do."""
    rng = random.Random(seed)

    def changing(most: float) -> Rate:
        rates = [rng.choice([0.0, rng.uniform(0, most), most]) for _ in range(20)]
        return lambda now_s: rates[int(now_s / 5) % len(rates)]

    loads = [
        Load(
            changing(600),
            changing(600),
            rng.choice([10, 100, 500, 2000]),
            rng.choice([OS, NONE]),
            rng.choice(["eager", "ratio"]),
        )
        for _ in range(rng.randint(1, 6))
    ]
    size, mode = rng.choice([100, 2000]), rng.choice([OS, NONE])
    published = changing(200)
    loads += [
        Load(published, changing(300), size, mode, rng.choice(["eager", "ratio"]), "fan")
        for _ in range(rng.randint(2, 5))
    ]
    sim = Simulator(rng.choice([1, 2, 4]) * MIB, loads)
    for _ in range(4):
        sim.run(10)
        sim.budget(rng.choice([1, 2, 4]) * MIB)
        sim.run(3, judge=False)
    sim.drain()
