"""AlertList: the last alerts of a vhost, and what is on."""

import json

from penstock.broker.alerts import PAST_MAX, AlertList


class Listed:
    """A list, and a clock for it that goes on by a millisecond with each alert."""

    def __init__(self) -> None:
        self.alerts = AlertList("/shop")
        self.now_ms = 1_700_000_000_000

    def take(self, kind: str, queue: str = "", part: str = "", text: str = "t") -> None:
        self.now_ms += 1
        self.alerts.take(kind, text, self.now_ms, queue=queue, part=part)

    def told(self) -> list[tuple[object, object, object, object]]:
        return [
            (row["queue"], row["kind"], row["is_on"], row["count"]) for row in self.alerts.rows()
        ]


def test_a_row_says_when_where_and_what() -> None:
    alerts = AlertList("/shop")
    alerts.take("count_up", "too many", 1_700_000_000_000, queue="q", value=7, threshold=5)
    (row,) = alerts.rows()
    assert row == {
        "time": "2023-11-14T22:13:20.000+00:00", "first_time": "2023-11-14T22:13:20.000+00:00",
        "vhost": "/shop", "queue": "q", "kind": "count_up", "is_on": True, "count": 1,
        "text": "too many", "value": 7, "threshold": 5,
    }  # fmt: skip
    json.dumps(row)


def test_what_has_begun_is_on_until_it_ends() -> None:
    listed = Listed()
    listed.take("flowed", "a")
    listed.take("flowed", "b")
    listed.take("recovered", "a")
    assert listed.told() == [
        ("a", "flowed", False, 1), ("b", "flowed", True, 1), ("a", "recovered", None, 1),
    ]  # fmt: skip


def test_parts_of_a_queue_begin_and_end_each_for_itself() -> None:
    listed = Listed()
    listed.take("flowed", "a", "1")
    listed.take("flowed", "a", "2")
    listed.take("recovered", "a", "1")
    listed.take("memory_alarm")
    listed.take("memory_alarm", part="rss")
    listed.take("memory_free")
    assert [is_on for _, kind, is_on, _ in listed.told() if kind != "recovered"][:4] == [
        False, True, False, True,
    ]  # fmt: skip


def test_what_comes_again_is_one_row_and_counted() -> None:
    listed = Listed()
    for _ in range(10_000):
        listed.take("flowed", "a")
        listed.take("recovered", "a")
    listed.take("size_up", "a", text="the last")
    assert listed.told() == [
        ("a", "flowed", False, 10_000), ("a", "recovered", None, 10_000), ("a", "size_up", None, 1),
    ]  # fmt: skip
    first, last = listed.alerts.rows()[1], listed.alerts.rows()[2]
    assert str(first["first_time"]) < str(first["time"]) < str(last["time"])


def test_the_oldest_is_forgotten_but_never_what_is_on() -> None:
    listed = Listed()
    listed.take("blocked")
    for n in range(3 * PAST_MAX):
        listed.take("flowed", f"q{n}")
        if n % 2:
            listed.take("recovered", f"q{n}")
    told = listed.told()
    on = [queue for queue, _, is_on, _ in told if is_on]
    assert on == ["", *(f"q{n}" for n in range(0, 3 * PAST_MAX, 2))]
    assert len(told) - len(on) == PAST_MAX
    assert told[-1] == (f"q{3 * PAST_MAX - 1}", "recovered", None, 1)


def test_nothing_of_a_queue_that_is_gone_is_on() -> None:
    listed = Listed()
    listed.take("flowed", "a", "1")
    listed.take("depth_up", "a")
    listed.take("flowed", "b")
    listed.alerts.queue_gone("a")
    listed.alerts.queue_gone("never was")
    assert [row[:3] for row in listed.told()] == [
        ("a", "flowed", False), ("a", "depth_up", False), ("b", "flowed", True),
    ]  # fmt: skip
    listed.take("flowed", "a")
    assert listed.told()[-1] == ("a", "flowed", True, 1), "another queue of that name"


def test_an_end_without_a_beginning_is_a_row() -> None:
    listed = Listed()
    listed.take("recovered", "a")
    assert listed.told() == [("a", "recovered", None, 1)]
