"""QueueOptions: what is refused and how it is said, and that what is stored comes back."""

import json

import pytest

from penstock.errors import OptionError
from penstock.queues.queue_options import QueueOptions

ALL = QueueOptions(
    priorities=10, max_memory_bytes=1 << 20, min_memory_bytes=1 << 18, max_length=7,
    max_length_bytes=700, overflow="reject-publish", ttl_ms=60_000, delay_ms=5, max_attempts=5,
    dead_letter_to="résumé.dead", retry_delay_ms_min=0, retry_delay_ms_max=10, lazy=True,
    policy="ratio", alert_count_up=10, alert_count_down=3, alert_size_up=11, alert_size_down=4,
    alert_depth_up=12, alert_depth_down=5, alert_age_up=13, alert_age_down=6,
    alert_repeat_gap_s=1, extra=(("x-expires", 5),),
)  # fmt: skip


def test_no_options_cost_no_bytes() -> None:
    assert QueueOptions().encode() == b""
    assert QueueOptions.decode(b"") == QueueOptions()


def test_all_options_come_back() -> None:
    assert QueueOptions.decode(ALL.encode()) == ALL


def test_the_same_options_are_the_same_bytes() -> None:
    one = QueueOptions.of({"max_length": 3, "ttl_ms": 4})
    other = QueueOptions.of({"ttl_ms": 4, "max_length": 3})
    assert one.encode() == other.encode() == b'{"x-max-length":3,"x-message-ttl":4}'


def test_names_are_rabbitmqs() -> None:
    assert json.loads(ALL.encode()) == {
        "x-max-priority": 10, "x-queue-max-memory-bytes": 1 << 20,
        "x-queue-min-memory-bytes": 1 << 18, "x-max-length": 7, "x-max-length-bytes": 700,
        "x-overflow": "reject-publish", "x-message-ttl": 60_000, "x-delay": 5,
        "x-delivery-limit": 4, "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "résumé.dead", "x-retry-delay-min": 0,
        "x-retry-delay-max": 10, "x-queue-mode": "lazy", "x-paging-policy": "ratio",
        "x-alert-count-up": 10, "x-alert-count-down": 3, "x-alert-size-up": 11,
        "x-alert-size-down": 4, "x-alert-depth-up": 12, "x-alert-depth-down": 5,
        "x-alert-age-up": 13, "x-alert-age-down": 6, "x-alert-repeat-gap": 1, "x-expires": 5,
    }  # fmt: skip


def test_zero_is_a_limit_and_not_its_absence() -> None:
    options = QueueOptions(max_length=0, ttl_ms=0, max_length_bytes=0)
    assert QueueOptions.decode(options.encode()) == options


def test_a_delivery_limit_is_one_less_than_the_attempts() -> None:
    assert QueueOptions.from_arguments({"x-delivery-limit": -1}).max_attempts is None
    assert QueueOptions.from_arguments({"x-delivery-limit": 0}).max_attempts == 1
    assert QueueOptions(max_attempts=1).arguments() == {"x-delivery-limit": 0}


def test_an_exchange_for_dead_letters_is_kept_for_whoever_knows_it() -> None:
    arguments = {"x-dead-letter-exchange": "dlx", "x-dead-letter-routing-key": "k", "x-custom": 1}
    options = QueueOptions.from_arguments(arguments)
    assert options.dead_letter_to is None
    assert options.arguments() == arguments


def test_the_least_memory_is_half_of_the_greatest() -> None:
    assert QueueOptions().memory_bytes is None
    assert QueueOptions(max_memory_bytes=100).memory_bytes == (100, 50)
    assert QueueOptions(max_memory_bytes=100, min_memory_bytes=9).memory_bytes == (100, 9)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (
            {"priorities": 256},
            "option priorities: given 256, expected a whole number from 0 to 255",
        ),
        ({"priorities": -1}, "given -1"),
        ({"priorities": None}, "given None"),
        ({"max_length": -1}, "option max_length: given -1, expected a whole number from 0 to"),
        ({"max_length": True}, "given True"),
        ({"max_length": 1.5}, "given 1.5"),
        ({"ttl_ms": "60"}, "given '60'"),
        ({"max_attempts": 0}, "option max_attempts: given 0, expected a whole number from 1"),
        ({"overflow": "drop"}, "expected drop-head, reject-publish, reject-publish-dlx or drop-"),
        ({"policy": "lru"}, "option policy: given 'lru', expected ratio, eager or even"),
        ({"lazy": 1}, "option lazy: given 1, expected True or False"),
        ({"dead_letter_to": ""}, "option dead_letter_to: given '', expected the name of a queue"),
        ({"dead_letter_to": "a\0b"}, "expected the name of a queue"),
        ({"dead_letter_to": b"dead"}, "expected the name of a queue"),
        ({"min_memory_bytes": 5}, "expected nothing, as max_memory_bytes is not given"),
        (
            {"min_memory_bytes": 5, "max_memory_bytes": 4},
            "option min_memory_bytes: given 5, expected at most max_memory_bytes, 4",
        ),
        ({"retry_delay_ms_max": 5}, "given 5, expected at least retry_delay_ms_min, 1000"),
        ({"alert_count_down": 1}, "expected nothing, as alert_count_up is not given"),
        ({"alert_age_up": 5, "alert_age_down": 5}, "expected below alert_age_up, 5"),
        ({"max_lenght": 5}, "unknown option 'max_lenght', did you mean 'max_length'?"),
    ],
)
def test_what_is_wrong_is_said(values: dict[str, object], text: str) -> None:
    with pytest.raises(OptionError) as caught:
        QueueOptions.of(values)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"x-max-priority": 300}, "option x-max-priority: given 300"),
        ({"x-delivery-limit": -2}, "option x-delivery-limit: given -2, expected a whole number f"),
        ({"x-overflow": "no"}, "option x-overflow: given 'no'"),
        ({"x-overflow": 3}, "option x-overflow: given 3"),
        ({"x-queue-mode": "fast"}, "option x-queue-mode: given 'fast', expected default or lazy"),
        (
            {"x-queue-max-memory-bytes": 1, "x-queue-min-memory-bytes": 2},
            "option x-queue-min-memory-bytes: given 2",
        ),
    ],
)
def test_a_wrong_argument_is_named_as_it_was_given(arguments: dict[str, object], text: str) -> None:
    with pytest.raises(OptionError) as caught:
        QueueOptions.from_arguments(arguments)
    assert text in str(caught.value)


@pytest.mark.parametrize("data", [b"[]", b"{", b"\xff"])
def test_bytes_that_are_no_arguments_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # json's own, and ours
        QueueOptions.decode(data)


# ---- Qpid's arguments ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ({"qpid.max_count": 5}, {"max_length": 5, "overflow": "reject-publish"}),
        (
            {"qpid.max_size": 9, "qpid.policy_type": "reject"},
            {"max_length_bytes": 9, "overflow": "reject-publish"},
        ),
        ({"qpid.max_count": 5, "qpid.policy_type": "ring"}, {"max_length": 5}),
        (
            {"qpid.max_count": 5, "qpid.max_size": 9, "qpid.policy_type": "ring_strict"},
            {"max_length": 5, "max_length_bytes": 9, "overflow": "drop-head-strict"},
        ),
        ({"qpid.max_size": 9, "qpid.policy_type": "flow_to_disk"}, {"max_memory_bytes": 9}),
        ({"qpid.max_count": 5, "qpid.policy_type": "flow_to_disk"}, {}),
        ({"qpid.max_count": 0, "qpid.max_size": 0}, {}),
        ({"qpid.policy_type": "ring"}, {}),
        (
            {"qpid.max_size": 9, "qpid.policy_type": "flow_to_disk", "x-max-length": 3},
            {"max_memory_bytes": 9, "max_length": 3},
        ),
    ],
)
def test_qpids_arguments_are_options(given: dict[str, object], options: dict[str, object]) -> None:
    assert QueueOptions.from_arguments(given) == QueueOptions.of(options)


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"qpid.max_count": 5, "x-max-length": 5}, ("qpid.max_count", "x-max-length")),
        ({"qpid.max_size": 5, "x-max-length-bytes": 6}, ("qpid.max_size", "x-max-length-bytes")),
        (
            {"qpid.policy_type": "ring", "x-overflow": "drop-head"},
            ("qpid.policy_type", "x-overflow"),
        ),
        ({"qpid.max_count": 5, "x-overflow": "drop-head"}, ("qpid.max_count", "x-overflow")),
        (
            {
                "qpid.max_size": 5, "qpid.policy_type": "flow_to_disk",
                "x-queue-max-memory-bytes": 5,
            },
            ("qpid.max_size", "x-queue-max-memory-bytes"),
        ),
    ],
)  # fmt: skip
def test_what_is_said_in_both_ways_is_refused_with_both_names(
    given: dict[str, object], names: tuple[str, str]
) -> None:
    with pytest.raises(OptionError) as error:
        QueueOptions.from_arguments(given)
    assert error.value.name == names[0]
    assert error.value.expected == f"nothing, as {names[1]} is given"


@pytest.mark.parametrize(
    ("name", "value"),
    [("qpid.max_size", -1), ("qpid.max_count", "5"), ("qpid.policy_type", "flow-to-disk")],
)
def test_qpids_arguments_that_are_wrong(name: str, value: object) -> None:
    with pytest.raises(OptionError) as error:
        QueueOptions.from_arguments({name: value})
    assert error.value.name == name
