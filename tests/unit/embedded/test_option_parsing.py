"""Options as users write them."""

from datetime import timedelta

import pytest

from penstock.embedded.option_parsing import (
    NewBody,
    QueueGiven,
    box_durability,
    check_name,
    mode_of,
    own_mode,
    queue_options,
    time_ms,
)
from penstock.errors import OptionError
from penstock.queues.queue_options import QueueOptions
from penstock.storage.files.durability import DISK, INTERVAL, NONE, OS

MIB = 1 << 20


@pytest.mark.parametrize(
    ("given", "ms"),
    [
        (0, 0), (1, 1000), (0.25, 250), ("90", 90_000), ("90s", 90_000), ("500ms", 500),
        ("1h30m", 5_400_000), ("1.5 h", 5_400_000), ("1 h 30 min", 5_400_000), ("7d", 604_800_000),
        ("2w", 1_209_600_000), (timedelta(minutes=2), 120_000),
    ],
)  # fmt: skip
def test_times(given: object, ms: int) -> None:
    assert time_ms("ttl", given) == ms


@pytest.mark.parametrize("given", ["", " ", "h", "1x", "1h30", "-1", None, [], True, -1, 1e300])
def test_what_is_no_time(given: object) -> None:
    with pytest.raises(OptionError, match="option ttl: given"):
        time_ms("ttl", given)


def test_every_option_has_its_place() -> None:
    given = {
        "max_memory": "16 MiB", "min_memory": 0.25, "max_length": 10,
        "max_length_bytes": "1 MiB", "overflow": "reject-publish-dlx", "ttl": "1h", "delay": 2,
        "dead_letter_to": "dead", "max_attempts": 5, "retry_delay": (1, "1h"), "lazy": True,
        "policy": "eager", "durability": "os", "backing_queue": "a.b:C",
        "alerts": {"count": 100, "depth": ("2 MiB", "1 MiB"), "age": ("1h", 60), "size": 10,
                   "repeat_gap": "2m"},
    }  # fmt: skip
    assert {*given, "maxsize", "priorities"} == set(QueueGiven.__annotations__), (
        "and what it becomes, below"
    )
    options = queue_options(given, None, 32 * MIB)
    assert options == QueueOptions(
        max_memory_bytes=16 * MIB, min_memory_bytes=8 * MIB, max_length=10,
        max_length_bytes=MIB, overflow="reject-publish-dlx", ttl_ms=3_600_000, delay_ms=2000,
        dead_letter_to="dead", max_attempts=5, retry_delay_ms_min=1000,
        retry_delay_ms_max=3_600_000, lazy=True, policy="eager", backing_queue="a.b:C",
        alert_count_up=100,
        alert_depth_up=2 * MIB, alert_depth_down=MIB, alert_age_up=3_600_000,
        alert_age_down=60_000, alert_size_up=10, alert_repeat_gap_s=120,
        extra=(("x-durability", "os"),),
    )  # fmt: skip
    assert QueueOptions.decode(options.encode()) == options
    assert own_mode(options) == OS


def test_what_is_not_given_stays_and_none_takes_away() -> None:
    first = queue_options({"ttl": 5, "max_length": 3, "durability": "none"}, None, MIB)
    second = queue_options({"max_length": 4}, first, MIB)
    assert (second.ttl_ms, second.max_length, own_mode(second)) == (5000, 4, NONE)
    third = queue_options(
        {"ttl": None, "max_length": None, "durability": None, "alerts": None, "delay": None},
        second,
        MIB,
    )
    assert third == QueueOptions()
    assert own_mode(third) is None


def test_maxsize_is_a_length_that_refuses() -> None:
    options = queue_options({"maxsize": 5}, None, MIB)
    assert (options.max_length, options.overflow) == (5, "reject-publish")
    assert queue_options({"maxsize": 5, "overflow": "drop-head"}, None, MIB).overflow == "drop-head"


def test_no_maxsize_is_no_limit() -> None:
    first = queue_options({"maxsize": 5}, None, MIB)
    second = queue_options({"maxsize": None}, first, MIB)
    assert (second.max_length, second.overflow) == (None, "reject-publish")
    assert queue_options({"maxsize": None, "max_length": 3}, first, MIB).max_length == 3


@pytest.mark.parametrize("name", ["maxsize", "max_length", "max_attempts", "overflow", "lazy"])
def test_an_error_has_the_name_that_was_given(name: str) -> None:
    with pytest.raises(OptionError, match=f"option {name}: given -1, expected"):
        queue_options({name: -1}, None, MIB)


def test_a_length_is_given_once() -> None:
    with pytest.raises(OptionError, match="maxsize: given 5, expected nothing, when max_length"):
        queue_options({"maxsize": 5, "max_length": 6}, None, MIB)


@pytest.mark.parametrize("name", ["", "a\0b", "a\ud800", "n" * 256, "é" * 128, 5, None, b"n"])
def test_what_is_no_name(name: object) -> None:
    with pytest.raises(
        OptionError, match=r"option name: given .*, expected text of 1 to 255 bytes"
    ):
        check_name(name)


@pytest.mark.parametrize("name", ["n" * 256, "é" * 128])
def test_a_headers_name_is_as_long_as_amqp_has_them(name: str) -> None:
    with pytest.raises(OptionError, match=r"option headers: .* at most 255 are allowed"):
        NewBody(b"x", headers={name: 1})
    assert NewBody(b"x", headers={"n" * 255: 1}).header


def test_one_retry_delay_is_always_that() -> None:
    options = queue_options({"retry_delay": 3}, None, MIB)
    assert options.retry_delay_ms == (3000, 3000)
    assert queue_options({"retry_delay": 0}, None, MIB).retry_delay_ms == (0, 0)


@pytest.mark.parametrize("given", [(1, 2, 3), "x", None, (2, 1)])
def test_a_retry_delay_that_is_none(given: object) -> None:
    with pytest.raises(OptionError, match="retry_delay"):
        queue_options({"retry_delay": given}, None, MIB)


@pytest.mark.parametrize(
    ("alerts", "text"),
    [
        ({"count": (1, 2, 3)}, r"alerts\['count'\].*\(up, down\)"),
        ({"age": "old"}, r"alerts\['age'\]: given 'old'"),
        ({"depth": "deep"}, r"alerts\['depth'\]: given 'deep'"),
        ({"count": 0}, "alert_count_up: given 0"),
        ({"count": (5, 6)}, "alert_count_down: given 6"),
    ],
)
def test_alerts_that_are_none(alerts: object, text: str) -> None:
    with pytest.raises(OptionError, match=text):
        queue_options({"alerts": alerts}, None, MIB)


def test_durability() -> None:
    assert [mode_of("d", name) for name in ("none", "os", "interval", "disk")] == [
        NONE, OS, INTERVAL, DISK,
    ]  # fmt: skip
    box = box_durability("interval=50")
    assert (box.mode, box.interval_ms) == (INTERVAL, 50)
    assert box_durability("interval").interval_ms == 200
    assert box_durability("disk").mode == DISK
    for given in ("interval=50", 5, None, "fast"):
        with pytest.raises(OptionError):
            mode_of("durability", given)
    for given in ("interval=0", 5, None, "fast", "disk=3"):
        with pytest.raises(OptionError):
            box_durability(given)
