"""x-death, byte for byte and as another codec reads it, and what clients make of it."""

import datetime
from typing import Any

import pytest
from pamqp import decode

from penstock.codec.fields import encode_table
from penstock.queues import raw_fields
from penstock.queues.amqp_headers import (
    add_death,
    deaths_in,
    first_death_in,
    routing_keys_in,
    with_attempts,
)
from penstock.queues.headers import Death
from penstock.queues.raw_fields import RawEntry


def entries_of(table: dict[str, object]) -> list[RawEntry]:
    return raw_fields.split(encode_table(table)[4:])


def shown(entries: list[RawEntry]) -> dict[str, Any]:
    found: dict[str, Any] = decode.field_table(raw_fields.nested(entries)[1:])[1]
    return found


def at(seconds: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)


def test_golden_first_death() -> None:
    headers: list[RawEntry] = []
    add_death(headers, Death("q", "expired", 1_700_000_000_999), b"x", b"key", b"5000", [])
    assert raw_fields.join(headers) == (
        b"\x14x-first-death-reasonS\x00\x00\x00\x07expired"
        b"\x13x-first-death-queueS\x00\x00\x00\x01q"
        b"\x16x-first-death-exchangeS\x00\x00\x00\x01x"
        b"\x07x-deathA\x00\x00\x00\x87F\x00\x00\x00\x82"
        b"\x05countl\x00\x00\x00\x00\x00\x00\x00\x01"
        b"\x06reasonS\x00\x00\x00\x07expired"
        b"\x05queueS\x00\x00\x00\x01q"
        b"\x04timeT\x00\x00\x00\x00\x65\x53\xf1\x00"
        b"\x08exchangeS\x00\x00\x00\x01x"
        b"\x0crouting-keysA\x00\x00\x00\x08S\x00\x00\x00\x03key"
        b"\x13original-expirationS\x00\x00\x00\x045000"
    )


def test_what_another_codec_reads() -> None:
    headers = entries_of({"mine": "ü", "CC": ["c1", "c2"]})
    add_death(headers, Death("q", "rejected", 5999, 1), b"", b"q", None, [])
    assert shown(headers) == {
        "mine": "ü", "CC": ["c1", "c2"], "x-first-death-reason": "rejected",
        "x-first-death-queue": "q", "x-first-death-exchange": "",
        "x-death": [{
            "count": 1, "reason": "rejected", "queue": "q", "time": at(5), "exchange": "",
            "routing-keys": ["q", "c1", "c2"],
        }],
    }  # fmt: skip


def test_the_same_death_is_counted_and_comes_first_as_it_was() -> None:
    headers: list[RawEntry] = []
    add_death(headers, Death("a", "expired", 1000), b"x1", b"k1", b"10", [])
    add_death(headers, Death("b", "rejected", 2000, 1), b"x2", b"k2", None, [])
    add_death(headers, Death("a", "rejected", 3000, 1), b"x3", b"k3", None, [])
    add_death(headers, Death("a", "expired", 4000), b"x4", b"k4", None, [])
    found = shown(headers)
    assert found["x-death"] == [
        {"count": 2, "reason": "expired", "queue": "a", "time": at(1), "exchange": "x1",
         "routing-keys": ["k1"], "original-expiration": "10"},
        {"count": 1, "reason": "rejected", "queue": "a", "time": at(3), "exchange": "x3",
         "routing-keys": ["k3"]},
        {"count": 1, "reason": "rejected", "queue": "b", "time": at(2), "exchange": "x2",
         "routing-keys": ["k2"]},
    ]  # fmt: skip
    assert (found["x-first-death-queue"], found["x-first-death-reason"]) == ("a", "expired")
    assert found["x-first-death-exchange"] == "x1"
    assert first_death_in(headers) == ("a", "expired")
    assert deaths_in(headers, []) == [
        Death("a", "expired", 1000, 0, 2), Death("a", "rejected", 3000, 1, 1),
        Death("b", "rejected", 2000, 1, 1),
    ]  # fmt: skip


def test_attempts_are_kept_apart_where_the_reason_does_not_say_them() -> None:
    headers: list[RawEntry] = []
    told = add_death(headers, Death("q", "delivery_limit", 1000, 3), b"", b"q", None, [])
    assert told == [3]
    told = add_death(headers, Death("q", "rejected", 1000, 2), b"", b"q", None, told)
    assert told == [2, 3]
    told = add_death(headers, Death("q", "rejected", 1000, 1), b"", b"q", None, told)
    assert told == [1, 3]
    assert [(d.reason, d.attempts, d.count) for d in deaths_in(headers, told)] == [
        ("rejected", 1, 2), ("delivery_limit", 3, 1)
    ]  # fmt: skip
    assert b"attempts" not in raw_fields.join(headers)
    with_attempts(headers, told)
    assert [table.get("attempts") for table in shown(headers)["x-death"]] == [None, 3]


def test_the_attempts_in_tables_of_earlier_versions_are_read() -> None:
    died = {"count": 1, "reason": "delivery_limit", "queue": "q", "attempts": 3}
    headers = entries_of({"x-death": [died]})
    assert deaths_in(headers, [])[0].attempts == 3
    assert add_death(headers, Death("r", "expired", 1000), b"", b"q", None, []) == []
    assert [d.attempts for d in deaths_in(headers, [])] == [0, 3]
    told = add_death(headers, Death("q", "delivery_limit", 1000, 5), b"", b"q", None, [])
    assert told == [5, 0]
    assert b"attempts" not in raw_fields.join(headers)
    assert [d.attempts for d in deaths_in(headers, told)] == [5, 0]


def test_a_death_that_a_client_gave_back_in_its_own_types_is_counted() -> None:
    old = {"count": 3, "reason": b"expired", "queue": "q", "time": at(9), "x": "kept"}
    headers = entries_of({"x-death": [old]})
    add_death(headers, Death("q", "expired", 20_000), b"x", b"k", None, [])
    (death,) = shown(headers)["x-death"]
    assert death["count"] == 4
    assert death["x"] == "kept"
    assert death["time"] == at(9)
    assert "x-first-death-queue" not in shown(headers)  # it was known to have died before


@pytest.mark.parametrize("count", [None, "many", -5, 1.5, True])
def test_a_count_that_is_none_counts_as_one(count: object) -> None:
    headers = entries_of({"x-death": [{"count": count, "reason": "expired", "queue": "q"}]})
    add_death(headers, Death("q", "expired", 20_000), b"x", b"k", None, [])
    assert deaths_in(headers, [])[0].count == 2


@pytest.mark.parametrize("garbage", ["[{'count': 1}]", 5, None, {"count": 1}])
def test_an_x_death_that_is_no_array_is_replaced(garbage: object) -> None:
    headers = entries_of({"x-death": garbage, "mine": 1})
    assert deaths_in(headers, []) == []
    add_death(headers, Death("q", "expired", 20_000), b"x", b"k", None, [])
    assert len(shown(headers)["x-death"]) == 1
    assert shown(headers)["mine"] == 1


def test_what_is_no_death_is_kept_and_reads_as_somebodys_decision() -> None:
    headers = entries_of({"x-death": ["text", {"queue": 5}]})
    assert deaths_in(headers, []) == [Death("", "rejected", 0), Death("", "", 0)]
    add_death(headers, Death("q", "expired", 20_000), b"x", b"k", None, [])
    assert shown(headers)["x-death"][1:] == ["text", {"queue": 5}]


def test_a_damaged_array_is_replaced() -> None:
    headers: list[RawEntry] = [(b"x-death", b"A\0\0\0\x02S\0")]
    assert deaths_in(headers, []) == []
    add_death(headers, Death("q", "expired", 20_000), b"x", b"k", None, [])
    assert [d.queue for d in deaths_in(headers, [])] == ["q"]


def test_a_damaged_table_within_is_kept() -> None:
    headers: list[RawEntry] = [(b"x-death", raw_fields.array([b"F\0\0\0\x01\x09"]))]
    add_death(headers, Death("q", "expired", 20_000), b"x", b"k", None, [])
    assert [d.queue for d in deaths_in(headers, [])] == ["q", ""]


def test_keys_in_cc_are_long_strings_of_an_array() -> None:
    assert routing_keys_in(entries_of({"CC": ["a", 5, "b", "x" * 256]})) == [b"a", b"b"]
    assert routing_keys_in(entries_of({"CC": "a"})) == []
    assert routing_keys_in(entries_of({"BCC": ["c"]}), b"BCC") == [b"c"]
    assert first_death_in([]) is None


def test_a_queue_name_that_is_no_utf8_comes_back() -> None:
    name = b"\xff\xfe".decode("utf-8", "surrogateescape")
    headers: list[RawEntry] = []
    add_death(headers, Death(name, "maxlen", 1000), b"\xff", b"\xfe", None, [])
    add_death(headers, Death(name, "maxlen", 1000), b"\xff", b"\xfe", None, [])
    assert [(d.queue, d.count) for d in deaths_in(headers, [])] == [(name, 2)]
