"""Rates of counters and lengths over the last 5 s, and the samples behind them."""

from typing import Any

import pytest

from penstock.broker.operations.kinds import in_one
from penstock.broker.rates import INTERVAL_S, LENGTHS, SLICE, SWEEP_TICKS, WATCHED_MAX
from tests.helpers.operation_rig import OperationRig


@pytest.fixture
def rig() -> OperationRig:
    rig = OperationRig()
    rig.result("declare_queue", queue="q")
    rig.tick(INTERVAL_S)
    return rig


def row(rig: OperationRig, name: str = "q", **args: object) -> dict[str, Any]:
    found: dict[str, Any] = rig.result("describe_row", kind="queues", name=name, **args)
    return found


def passes(rig: OperationRig) -> None:
    """A tick that finds what was touched, and the one of the rates."""
    rig.tick(0.1)
    rig.tick(INTERVAL_S)


def test_a_rate_is_that_of_the_last_interval(rig: OperationRig) -> None:
    rig.put("q", *[b"x"] * 51)
    assert row(rig)["message_stats"]["publish_details"] == {"rate": 0.0}
    passes(rig)
    found = row(rig)
    assert found["message_stats"]["publish"] == 51
    assert found["message_stats"]["publish_details"] == {"rate": 10.0}
    assert found["messages_details"] == found["messages_ready_details"] == {"rate": 10.0}
    rig.put("q", *[b"x"] * 102)
    passes(rig)
    assert row(rig)["message_stats"]["publish_details"] == {"rate": 20.0}
    assert row(rig)["messages_ready_details"] == {"rate": 20.0}
    passes(rig)
    assert row(rig)["message_stats"]["publish_details"] == {"rate": 0.0}
    rig.result("purge_queue", queue="q")
    passes(rig)
    assert row(rig)["messages_details"] == {"rate": -30.0}


def test_a_list_is_sorted_by_a_rate(rig: OperationRig) -> None:
    rig.result("declare_queue", queue="busy")
    rig.put("busy", b"1", b"2")
    rig.put("q", b"1")
    passes(rig)
    for column in ("message_stats.publish_details.rate", "messages"):
        found = rig.result("list_rows", kind="queues", sort=column, reverse=True)
        assert [one["name"] for one in found] == ["busy", "q"]


@pytest.mark.parametrize("is_reversed", [False, True])
def test_the_pages_of_a_sorted_list_follow_one_another(
    rig: OperationRig, *, is_reversed: bool
) -> None:
    """Some have lengths that fall, some such that grow, and some neither."""
    fall, rest, grow = ("d", "b"), ("c", "f", "q"), ("e", "a")
    for n, name in enumerate((*fall, *grow, "c", "f"), 1):
        rig.result("declare_queue", queue=name)
        if name in fall:
            rig.put(name, *[b"x"] * 10 * n)
    passes(rig)
    for n, name in enumerate(grow, 1):
        rig.put(name, *[b"x"] * n)
    for name in fall:
        rig.result("purge_queue", queue=name)
    passes(rig)
    asked = {"kind": "queues", "sort": "messages_details.rate", "columns": ["name"]}
    whole = [one["name"] for one in rig.result("list_rows", reverse=is_reversed, **asked)]
    ordered = ["b", "d", *rest, "e", "a"]
    assert whole == (["a", "e", *rest, "d", "b"] if is_reversed else ordered)
    for size in (1, 2, 3, 5):
        found: list[str] = []
        for page in range(1, -(-len(whole) // size) + 1):
            answer = rig.result(
                "list_rows", reverse=is_reversed, page=page, page_size=size, **asked
            )
            found += [one["name"] for one in answer["items"]]
        assert found == whole


@pytest.mark.large
def test_the_rates_of_many_are_looked_at_in_slices(rig: OperationRig) -> None:
    names = [f"q{n:03}" for n in range(3 * SLICE)]
    for name in names:
        rig.result("declare_queue", queue=name)
        rig.put(name, *[b"x"] * 10)
    passes(rig)
    rates = rig.vhost.rates
    assert len(list(rates.moving("queue", "publish"))) >= 3
    found = in_one(rates.moving("queue", "publish"))
    assert {name: round(rate) for name, rate in found.items()} == dict.fromkeys(names, 2)


def test_nothing_is_done_for_queues_that_do_not_change(rig: OperationRig) -> None:
    rig.put("q", b"1")
    rig.result("purge_queue", queue="q")
    passes(rig)
    known = rig.vhost.rates._known["queue", "q"]
    passes(rig)
    passes(rig)
    assert rig.vhost.rates._known["queue", "q"] is known


def test_a_stream_has_rates(rig: OperationRig) -> None:
    rig.result("declare_queue", queue="s", arguments={"x-queue-type": "stream"})
    rig.tick(INTERVAL_S)
    rig.put("s", *[b"x"] * 50)
    rig.tick(INTERVAL_S)
    found = row(rig, "s")
    assert found["message_stats"]["publish_details"] == {"rate": 10.0}
    assert found["messages_details"] == {"rate": 10.0}


def test_a_queue_that_was_declared_again_begins_with_0(rig: OperationRig) -> None:
    rig.put("q", *[b"x"] * 510)
    passes(rig)
    rig.result("delete_queue", queue="q")
    rig.result("declare_queue", queue="q")
    assert "message_stats" not in row(rig)
    rig.put("q", *[b"x"] * 51)
    passes(rig)
    assert row(rig)["message_stats"]["publish_details"] == {"rate": 10.0}


def test_what_is_gone_is_forgotten(rig: OperationRig) -> None:
    rig.put("q", b"1")
    passes(rig)
    rig.result("delete_queue", queue="q")
    for _ in range(SWEEP_TICKS):
        passes(rig)
    assert ("queue", "q") not in rig.vhost.rates._known


def test_samples_begin_when_somebody_asks(rig: OperationRig) -> None:
    ages = {"lengths_age": 20, "lengths_incr": 5, "msg_rates_age": 10, "msg_rates_incr": 5}
    rig.put("q", b"1")
    passes(rig)
    row(rig, samples=ages)
    for _ in range(3):
        rig.put("q", *[b"x"] * 51)
        passes(rig)
    found = row(rig, samples=ages)
    lengths = found["messages_details"]
    assert [one["sample"] for one in lengths["samples"]] == [154, 103, 52, 1]
    times = [one["timestamp"] for one in lengths["samples"]]
    assert [times[0] - time for time in times] == [0, 5000, 10000, 15000]
    assert lengths["avg"] == sum((154, 103, 52, 1)) / 4
    assert lengths["avg_rate"] == pytest.approx(10.2)
    publishes = found["message_stats"]["publish_details"]
    assert [one["sample"] for one in publishes["samples"]] == [154, 103, 52]
    assert set(LENGTHS) <= set(found)


def test_what_no_tick_has_noticed_has_one_sample(rig: OperationRig) -> None:
    """rabbit-hole reads the first sample of each queue; a new one has what it has now."""
    rig.result("declare_queue", queue="new")
    rig.put("new", b"1", b"2")
    lengths = row(rig, "new", samples={"lengths_age": 60, "lengths_incr": 5})["messages_details"]
    assert [one["sample"] for one in lengths["samples"]] == [2]
    assert lengths["samples"][0]["timestamp"] > 0
    assert (lengths["avg"], lengths["avg_rate"]) == (2, 0)


def test_a_whole_list_has_samples_while_it_is_short(rig: OperationRig) -> None:
    def sampled(**args: object) -> set[bool]:
        rows = rig.result("list_rows", kind="queues", samples={"lengths_age": 60}, **args)
        rows = rows["items"] if "page" in args else rows
        return {"samples" in row["messages_details"] for row in rows}

    for n in range(WATCHED_MAX - 1):
        rig.result("declare_queue", queue=f"q{n}")
    assert sampled() == {True}
    rig.result("declare_queue", queue="one more")
    assert sampled() == {False}
    assert sampled(page=1, page_size=500) == {False}
    assert sampled(page=1, page_size=100) == {True}
    assert sampled(name="q1") == {True}


def test_a_queue_that_only_gets_messages_is_not_idle(rig: OperationRig) -> None:
    before = row(rig)["idle_since"]
    for _ in range(3):
        rig.put("q", b"1")
        passes(rig)
    after = row(rig)["idle_since"]
    assert after > before
    passes(rig)
    assert row(rig)["idle_since"] == after
    (listed,) = rig.result("list_queues", columns=["idle_since"])
    assert listed["idle_since"] == after
