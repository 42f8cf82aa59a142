"""The x-arguments of queues: what is refused, what is the same, what is stored."""

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from penstock.broker.arguments import (
    ARGUMENTS,
    check_arguments,
    check_equivalent,
    check_stream_arguments,
    check_type,
    decode_arguments,
    encode_arguments,
    shown,
)
from penstock.broker.policies import KEYS
from penstock.codec.fields import NESTING_MAX, decode_table, encode_table
from penstock.errors import ChannelError, OptionError
from penstock.options import WrongValueError
from penstock.queues.queue_options import QUEUE_ARGUMENTS, QueueOptions
from penstock.routing.exchange_types import Binding, comparable

ROOT = Path(__file__).parents[3]
WHAT = "queue 'q' in vhost '/'"


# What the manuals of RabbitMQ 3.13 and 4.x document for queues, consumers, exchanges and their
# bindings, and messages; and, without x-, for policies.
DOCUMENTED = """
x-expires x-message-ttl x-max-length x-max-length-bytes x-overflow x-dead-letter-exchange
x-dead-letter-routing-key x-dead-letter-strategy x-max-priority x-queue-mode x-queue-version
x-queue-type x-queue-leader-locator x-queue-master-locator x-single-active-consumer x-delivery-limit
x-quorum-initial-group-size x-quorum-target-group-size x-initial-cluster-size x-max-in-memory-length
x-max-in-memory-bytes x-max-age x-stream-max-segment-size-bytes x-stream-filter-size-bytes
x-consumer-timeout x-consumer-disconnected-timeout x-delayed-retry-type x-delayed-retry-min
x-delayed-retry-max x-ha-policy x-cancel-on-ha-failover x-credit x-priority x-stream-offset
x-stream-filter x-stream-match-unfiltered x-member-placement-tag
alternate-exchange hash-header hash-property x-delayed-type x-recent-history-length
x-recent-history-no-store x-match x-message-deduplication x-cache-size x-cache-ttl
x-cache-persistence
CC BCC x-delay x-delivery-count x-deduplication-header x-stream-filter-value
"""
DOCUMENTED_KEYS = """
message-ttl expires max-length max-length-bytes overflow dead-letter-exchange
dead-letter-routing-key dead-letter-strategy max-in-memory-length max-in-memory-bytes delivery-limit
queue-leader-locator queue-master-locator queue-mode queue-version alternate-exchange max-age
stream-max-segment-size-bytes stream-filter-size-bytes target-group-size consumer-timeout ha-mode
ha-params ha-sync-mode ha-sync-batch-size ha-promote-on-shutdown ha-promote-on-failure
federation-upstream federation-upstream-set federation-upstream-pattern initial-cluster-size
consumer-disconnected-timeout member-placement-tag delayed-retry-type delayed-retry-min
delayed-retry-max
"""


def test_what_rabbitmq_documents_has_a_row_or_is_listed() -> None:
    """A row checks a value and says what it does; the pages list what is stored only, and what
    consumers, exchanges and messages have."""
    pages = "".join(
        path.read_text(encoding="utf-8")
        for path in (
            *(ROOT / "docs" / "guides").glob("*.md"),
            ROOT / "docs" / "reference" / "compatibility.md",
            ROOT / "docs" / "reference" / "ttl-and-limits.md",
        )
    )
    unknown = [name for name in DOCUMENTED.split() if name not in ARGUMENTS]
    assert [name for name in unknown if f"`{name}`" not in pages] == []
    assert [key for key in DOCUMENTED_KEYS.split() if key not in KEYS] == []


def of_type(kind: str) -> set[str]:
    """The names of the arguments that queues of a type have."""
    return {name for name, argument in ARGUMENTS.items() if kind in argument.applies}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-message-ttl", -1),
        ("x-message-ttl", "1000"),
        ("x-message-ttl", True),
        ("x-message-ttl", 1.5),
        ("x-expires", 0),
        ("x-expires", -1),
        ("x-expires", None),
        ("x-max-length", -1),
        ("x-max-length-bytes", "10"),
        ("x-overflow", "drop"),
        ("x-overflow", 1),
        ("x-max-priority", 256),
        ("x-max-priority", -1),
        ("x-max-priority", "10"),
        ("x-delivery-limit", -2),
        ("x-single-active-consumer", 1),
        ("x-single-active-consumer", "true"),
        ("x-queue-mode", "fast"),
        ("x-queue-type", "mirrored"),
        ("x-queue-version", 3),
        ("x-paging-policy", "lazy"),
        ("x-queue-max-memory-bytes", -5),
        ("x-alert-count-up", 0),
        ("x-alert-count-down", 5),  # without -up
        ("x-delay", [1]),
        ("qpid.max_size", -1),
        ("qpid.max_count", 1.0),
        ("qpid.policy_type", "ring strict"),
    ],
)
def test_a_wrong_value_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ChannelError) as caught:
        check_arguments(WHAT, {name: value})
    assert caught.value.code == 406
    assert caught.value.text.startswith(f"PRECONDITION_FAILED - invalid arg '{name}' for {WHAT}: ")


def test_the_text_says_what_was_given_and_what_was_expected() -> None:
    with pytest.raises(ChannelError) as caught:
        check_arguments(WHAT, {"x-max-priority": 256})
    assert str(caught.value) == (
        "PRECONDITION_FAILED - invalid arg 'x-max-priority' for queue 'q' in vhost '/': received "
        "the value '256' of type 'signedint', expected a whole number from 0 to 255"
    )


@pytest.mark.parametrize("check", [check_arguments, check_stream_arguments])
@pytest.mark.parametrize(
    ("value", "name"), [(5, "signedint"), (b"\xff", "binary"), (None, "void"), (True, "bool")]
)
def test_a_dead_letter_exchange_that_is_no_text_is_refused_before_all_else(
    check: Callable[[str, dict[str, object]], object], value: object, name: str
) -> None:
    with pytest.raises(ChannelError) as caught:
        check(WHAT, {"x-max-priority": -1, "x-dead-letter-exchange": value})
    assert caught.value.text == (
        f"PRECONDITION_FAILED - invalid type '{name}' for arg 'x-dead-letter-exchange' in {WHAT}"
    )


def test_a_routing_key_for_dead_letters_needs_the_exchange() -> None:
    with pytest.raises(ChannelError, match="routing_key_but_no_dlx_defined"):
        check_arguments(WHAT, {"x-dead-letter-routing-key": "k"})
    check_arguments(WHAT, {"x-dead-letter-routing-key": "k", "x-dead-letter-exchange": "x"})


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"x-delayed-retry-type": "all"}, "'x-delayed-retry-type' .* x-delayed-retry-min is not"),
        ({"x-delayed-retry-max": 5}, "'x-delayed-retry-max' .* x-delayed-retry-min is not given"),
        ({"x-delayed-retry-min": 6, "x-delayed-retry-max": 5}, "at least x-delayed-retry-min, 6"),
        ({"x-delayed-retry-min": 0}, "'x-delayed-retry-min' .* from 1"),
        ({"x-delayed-retry-type": "some", "x-delayed-retry-min": 1}, "disabled, all, failed"),
    ],
)
def test_the_arguments_of_delayed_retries_belong_together(
    given: dict[str, object], text: str
) -> None:
    with pytest.raises(ChannelError, match=text):
        check_arguments(WHAT, given)
    check_arguments(WHAT, {"x-delayed-retry-type": "disabled"})


def test_the_table_and_the_options_of_queues_agree() -> None:
    """Each row of QueueOptions is in the broker's table, and both refuse a value in its words."""
    for option in QUEUE_ARGUMENTS:
        assert ARGUMENTS[option.name].kind is option.kind
        low = option.kind.low
        wrong = "other" if low is None else int(low) - 1
        with pytest.raises(WrongValueError) as expected:
            option.kind.check(wrong)
        with pytest.raises(OptionError) as refused:
            QueueOptions.from_arguments({option.name: wrong})
        assert (refused.value.name, refused.value.given) == (option.name, wrong)
        assert refused.value.expected == expected.value.expected


def test_all_known_arguments_can_be_given_at_once() -> None:
    given = {
        "x-message-ttl": 1000, "x-expires": 5000, "x-max-length": 10, "x-max-length-bytes": 1 << 40,
        "x-overflow": "reject-publish-dlx", "x-max-priority": 255, "x-dead-letter-exchange": "dlx",
        "x-dead-letter-routing-key": "", "x-delivery-limit": 0, "x-single-active-consumer": True,
        "x-queue-mode": "lazy", "x-queue-type": "classic", "x-queue-version": 2,
        "x-queue-master-locator": "min-masters",
        "x-queue-max-memory-bytes": 1 << 20, "x-queue-min-memory-bytes": 1 << 10,
        "x-paging-policy": "eager", "x-delay": 5, "x-retry-delay-min": 1, "x-retry-delay-max": 2,
        "x-consumer-timeout": 5000, "x-delayed-retry-type": "all", "x-delayed-retry-min": 1000,
        "x-delayed-retry-max": 5000, "x-message-deduplication": True, "x-cache-size": 5,
        "x-cache-ttl": 5,
        "x-alert-count-up": 10, "x-alert-count-down": 5, "x-alert-size-up": 10,
        "x-alert-size-down": 5, "x-alert-depth-up": 10, "x-alert-depth-down": 5,
        "x-alert-age-up": 10, "x-alert-age-down": 5, "x-alert-repeat-gap": 0,
    }  # fmt: skip
    # Other words for these; and what a queue with priorities cannot have.
    others = {"qpid.max_size", "qpid.max_count", "qpid.policy_type", "x-backing-queue"}
    assert set(given) | others == of_type("classic")
    options = check_arguments(WHAT, given)
    assert (options.ttl_ms, options.priorities, options.max_attempts) == (1000, 255, 1)
    assert options.lazy
    assert options.memory_bytes == (1 << 20, 1 << 10)


def test_an_unknown_argument_is_no_error() -> None:
    assert check_arguments(WHAT, {"x-mine": [1, {"a": b"b"}]}) is not None


def test_what_a_quorum_queue_cannot_be() -> None:
    quorum: dict[str, object] = {"x-queue-type": "quorum"}
    check_type(WHAT, quorum, durable=True, exclusive=False, auto_delete=False)
    for how, text in (
        ({"durable": False}, "non-durable"),
        ({"exclusive": True}, "exclusive-owner"),
        ({"auto_delete": True}, "auto-delete"),
    ):
        given = {"durable": True, "exclusive": False, "auto_delete": False, **how}
        with pytest.raises(ChannelError, match=f"invalid property '{text}' for {WHAT}"):
            check_type(WHAT, quorum, **given)


# --- streams ---


STREAM: dict[str, object] = {"x-queue-type": "stream"}


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ({"durable": False}, "non-durable"),
        ({"exclusive": True, "durable": False}, "exclusive-owner"),
        ({"auto_delete": True, "exclusive": True, "durable": False}, "auto-delete"),
    ],
)
def test_what_a_stream_cannot_be(how: dict[str, bool], text: str) -> None:
    given = {"durable": True, "exclusive": False, "auto_delete": False, **how}
    with pytest.raises(ChannelError) as caught:
        check_type(WHAT, STREAM, **given)
    assert caught.value.text == f"PRECONDITION_FAILED - invalid property '{text}' for {WHAT}"


def test_all_arguments_of_streams_can_be_given_at_once() -> None:
    given: dict[str, object] = {
        **STREAM, "x-max-age": "7D", "x-max-length-bytes": 1 << 40, "x-max-length": 5,
        "x-stream-max-segment-size-bytes": 1 << 20, "x-partitions": 4, "x-initial-cluster-size": 1,
        "x-queue-leader-locator": "balanced", "x-stream-filter-size-bytes": 32,
    }  # fmt: skip
    assert set(given) == of_type("stream")
    options = check_stream_arguments(WHAT, {**given, "x-mine": 1})
    assert (options.max_age_s, options.max_bytes, options.max_records) == (604_800, 1 << 40, 5)
    assert (options.page_bytes, options.partitions) == (1 << 20, 4)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (kind, name)
        for kind in ("classic", "quorum", "stream")
        for name in sorted(set(ARGUMENTS) - of_type(kind))
    ],
)
def test_what_a_type_of_queue_does_not_have_is_refused_for_it(kind: str, name: str) -> None:
    check = check_stream_arguments if kind == "stream" else check_arguments
    for value in (1, "lazy"):  # whatever the value
        with pytest.raises(ChannelError) as caught:
            check(WHAT, {"x-queue-type": kind, name: value, "x-max-length": -1})
        if name == "x-dead-letter-exchange" and value == 1:
            continue
        assert caught.value.text == (
            f"PRECONDITION_FAILED - invalid arg '{name}' for {WHAT} of queue type "
            f"rabbit_{kind}_queue"
        )


def test_what_some_types_of_queue_do_not_have() -> None:
    assert of_type("classic") - of_type("quorum") == {
        "x-queue-mode", "x-queue-version", "x-queue-master-locator"
    }  # fmt: skip
    assert of_type("quorum") - of_type("classic") == {
        "x-dead-letter-strategy", "x-max-in-memory-length", "x-max-in-memory-bytes",
        "x-quorum-initial-group-size", "x-queue-leader-locator", "x-quorum-target-group-size",
        "x-consumer-disconnected-timeout",
    }  # fmt: skip
    assert of_type("stream") - of_type("classic") - of_type("quorum") == {
        "x-max-age", "x-stream-max-segment-size-bytes", "x-initial-cluster-size", "x-partitions",
        "x-stream-filter-size-bytes",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-max-age", "7X"), ("x-max-age", 7), ("x-max-age", "D"), ("x-max-age", "0s"),
        ("x-max-age", "-1D"), ("x-max-age", "1.5D"), ("x-max-age", ""), ("x-max-age", "7D "),
        ("x-max-length-bytes", -1), ("x-max-length-bytes", "x"), ("x-max-length", -1),
        ("x-stream-max-segment-size-bytes", -1), ("x-stream-max-segment-size-bytes", "s"),
        ("x-initial-cluster-size", 0), ("x-partitions", 0), ("x-partitions", 257),
        ("x-partitions", True), ("x-queue-leader-locator", 1),
    ],
)  # fmt: skip
def test_a_wrong_value_for_a_stream_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ChannelError) as caught:
        check_stream_arguments(WHAT, {**STREAM, name: value})
    assert caught.value.code == 406
    assert f"invalid arg '{name}' for {WHAT}: received" in caught.value.text
    assert "expected" in caught.value.text


def test_a_segment_that_is_too_large_is_refused_as_rabbitmq_does() -> None:
    given = {**STREAM, "x-stream-max-segment-size-bytes": 3_000_000_001}
    with pytest.raises(ChannelError, match="Exceeded max value for x-stream-max-segment-size-byte"):
        check_stream_arguments(WHAT, given)
    for size, page in ((0, 4096), (3_000_000_000, 1 << 30)):
        given["x-stream-max-segment-size-bytes"] = size
        assert check_stream_arguments(WHAT, given).page_bytes == page


# --- declared again ---


@pytest.mark.parametrize(
    ("given", "current"),
    [
        ({}, {}),
        ({"x-max-priority": 10}, {"x-max-priority": 10}),
        ({"x-queue-type": "classic"}, {}),
        ({}, {"x-queue-type": "classic"}),
        ({"x-overflow": b"drop-head"}, {"x-overflow": "drop-head"}),
        ({"x-mine": True}, {"x-mine": 1}),
        ({"x-mine": [1, {"b": b"c"}]}, {}),
        ({}, {"alternate-exchange": "a"}),
    ],
)
def test_what_is_equal_or_not_known_is_equivalent(
    given: dict[str, object], current: dict[str, object]
) -> None:
    check_equivalent(WHAT, given, current)


@pytest.mark.parametrize(
    ("given", "current", "text"),
    [
        ({"x-max-priority": 5}, {"x-max-priority": 10}, "received '5' but current is '10'"),
        ({"x-expires": 5.0}, {"x-expires": 5}, "received '5.0' but current is '5'"),
        ({"x-expires": 5000.0}, {"x-expires": 5}, "received '5.0e3' but current is '5'"),
        ({"x-expires": 1250.5}, {"x-expires": 5}, "received '1250.5' but current is '5'"),
        ({"x-expires": 1e30}, {"x-expires": 5}, "received '1.0e30' but current is '5'"),
        ({"x-expires": -0.5}, {"x-expires": 5}, "received '-0.5' but current is '5'"),
        ({"x-max-length": "5"}, {"x-max-length": 5}, "received '5' but current is '5'"),
        ({"x-max-length": None}, {"x-max-length": 5}, "received none but current is '5'"),
        (
            {"x-single-active-consumer": True}, {"x-single-active-consumer": False},
            "received 'true' but current is 'false'",
        ),
        ({"x-overflow": b"\xff"}, {"x-overflow": "a"}, "received '\ufffd' but current is 'a'"),
        (
            {}, {"x-expires": 2592000000},
            "received none but current is the value '2592000000' of type 'long'",
        ),
        (
            {"x-dead-letter-exchange": "dlx"}, {},
            "received the value 'dlx' of type 'longstr' but current is none",
        ),
        (
            {"x-queue-type": "quorum"}, {},
            "received the value 'quorum' of type 'longstr' but current is none",
        ),
        (
            {"x-queue-type": "quorum"}, {"x-queue-type": "stream"},
            "received 'quorum' but current is 'stream'",
        ),
    ],
)  # fmt: skip
def test_what_differs_is_told_as_rabbitmq_does(
    given: dict[str, object], current: dict[str, object], text: str
) -> None:
    with pytest.raises(ChannelError) as caught:
        check_equivalent(WHAT, given, current)
    (name,) = {*given, *current}
    assert (
        str(caught.value) == f"PRECONDITION_FAILED - inequivalent arg '{name}' for {WHAT}: {text}"
    )


def test_of_several_that_differ_the_first_of_the_table_is_told() -> None:
    with pytest.raises(ChannelError, match="'x-expires'"):
        check_equivalent(WHAT, {"x-max-length": 1, "x-expires": 1}, {})


def test_every_type_has_its_name() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    values = [1.5, {}, [], b"\xff", at, Decimal("1.2"), -(1 << 31), 1 << 31]
    names = [
        "double", "table", "array", "binary", "timestamp", "decimal", "signedint", "long"
    ]  # fmt: skip
    assert [shown(value).rpartition("type ")[2].strip("'") for value in values] == names


# --- stored form ---


def test_stored_arguments_come_back_as_they_were() -> None:
    given: dict[str, object] = {
        "x-max-priority": 3, "x-overflow": "drop-head", "n": None, "f": 0.25, "b": False,
        "bytes": b"\x00\xff", "when": datetime(2026, 1, 1, tzinfo=UTC), "d": Decimal("1.25"),
        "nested": [{"deep": b"\xfe"}, [], {"$amqp": "mine"}], "odd": "\udcff", "big": 1 << 40,
    }  # fmt: skip
    assert decode_arguments(encode_arguments(given)) == given


@pytest.mark.parametrize("is_array", [False, True])
def test_the_deepest_table_is_stored_compared_and_shown(is_array: bool) -> None:
    """What works on decoded tables recurses."""
    value: object = {}
    for _ in range(NESTING_MAX - 2):
        value = [value] if is_array else {"a": value}
    given: dict[str, object] = {"x-mine": value}
    assert decode_table(encode_table(given))[0] == given
    assert decode_arguments(encode_arguments(given)) == given
    binding = Binding("x", "q", "q", "k", given)
    assert binding.identity == Binding("x", "q", "q", "k", dict(given)).identity
    assert comparable(given) == comparable(dict(given))
    assert shown(value)
    check_equivalent(WHAT, {"x-max-length": value}, {"x-max-length": value})


def test_no_arguments_are_no_bytes() -> None:
    assert encode_arguments({}) == b""
    assert decode_arguments(b"") == {}


def test_the_order_of_arguments_does_not_matter() -> None:
    one, other = {"x-a": 1, "x-b": 2}, {"x-b": 2, "x-a": 1}
    assert encode_arguments(one) == encode_arguments(other)


def test_what_the_library_wrote_is_read_and_the_other_way_round() -> None:
    options = QueueOptions(priorities=3, max_attempts=5, ttl_ms=10, dead_letter_to="dead")
    arguments = decode_arguments(options.encode())
    assert check_arguments(WHAT, arguments) == options
    given: dict[str, object] = {"x-max-priority": 3, "x-expires": 5, "x-mine": b"\xff"}
    found = QueueOptions.decode(encode_arguments(given))
    assert found.priorities == 3
    assert dict(found.extra)["x-expires"] == 5


def test_what_is_no_object_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON object"):
        decode_arguments(b"[1]")


# ---- Qpid's ------------------------------------------------------------------------------------


def test_a_conflict_of_qpids_arguments_with_ours_names_both() -> None:
    with pytest.raises(ChannelError) as error:
        check_arguments(WHAT, {"qpid.max_count": 5, "x-max-length": 6})
    assert error.value.code == 406
    assert error.value.text == (
        f"PRECONDITION_FAILED - invalid arg 'qpid.max_count' for {WHAT}: received the value '5' of "
        "type 'signedint', expected nothing, as x-max-length is given"
    )


def test_qpids_arguments_are_compared_as_they_were_given() -> None:
    ring: dict[str, object] = {"qpid.max_count": 5, "qpid.policy_type": "ring"}
    check_equivalent(WHAT, ring, dict(ring))
    for other in (
        {"qpid.max_count": 5}, {**ring, "qpid.max_count": 6}, {"x-max-length": 5}, {},
    ):  # fmt: skip
        with pytest.raises(ChannelError, match=r"inequivalent arg '(qpid\.|x-max-length)"):
            check_equivalent(WHAT, other, ring)


def test_streams_have_none_of_qpids_arguments() -> None:
    for name, value in (("qpid.max_size", 5), ("qpid.policy_type", "ring")):
        with pytest.raises(ChannelError, match=f"invalid arg '{name}'"):
            check_stream_arguments(WHAT, {"x-queue-type": "stream", name: value})
