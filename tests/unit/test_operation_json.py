"""Operation JSON: bytes travel, and what AMQP knows besides is told."""

import json
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.errors import ChannelError
from penstock.operation_json import dumps, from_json, loads, read, to_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text("abcé\udcff") | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("xyz"), inner, max_size=3),
    max_leaves=12,
)


def test_bytes_come_back_as_bytes() -> None:
    value = {"a": b"\xff\x00", "l": [b"", "x", 1, 1.5, None, True], "d": {"b64": 1}}
    assert loads(dumps(value)) == value


@pytest.mark.parametrize(
    "value", [{"rows": [{"body": b"\xff\x00"}]}, {"rows": [{"b64": 1, "a": "b64"}]}, [], "b64", 7]
)
def test_an_answer_is_read_with_its_bytes(value: object) -> None:
    assert read(dumps(value, is_exact=True)) == value


def test_what_amqp_has_beyond_json_is_told_as_text() -> None:
    when = datetime(2026, 1, 2, tzinfo=UTC)
    assert loads(dumps({"t": when, "d": Decimal("1.5"), "s": (1, 2)})) == {
        "t": "2026-01-02T00:00:00+00:00", "d": "1.5", "s": [1, 2],
    }  # fmt: skip


def test_a_name_that_is_no_unicode_does_not_end_the_answer() -> None:
    assert loads(dumps({"name": b"q\xff".decode("utf-8", "surrogateescape")}))["name"] == "q\ufffd"


@given(VALUES)
@example("".join(map(chr, range(0x180))))
@example([1 << 63, -(1 << 70), 1.5, 0.1, -0.0, 598.0, {"a": (1, True)}, "\u2028😀\\ud"])
@example({5: 1, "a": b"\xff", "d": Decimal("1.5"), "t": datetime(2026, 1, 2, tzinfo=UTC)})
def test_the_text_is_that_of_json(value: object) -> None:
    """Whatever writes it."""
    assert dumps(value) == json.dumps(to_json(value), separators=(",", ":")).encode()


def test_no_arguments() -> None:
    assert loads(b"") == {}


@pytest.mark.parametrize("data", [b"{", b"[]", b"1", b"\xff", b'{"x": {"b64": "?"}}', b"[" * 9999])
def test_what_is_no_object_is_a_syntax_error(data: bytes) -> None:
    with pytest.raises(ChannelError) as caught:
        loads(data)
    assert caught.value.code == 502


@given(VALUES)
def test_between_our_own_programs_names_of_any_bytes_come_back(value: object) -> None:
    sent = json.dumps(to_json(value, is_exact=True))
    assert from_json(json.loads(sent), is_exact=True) == value


def test_values_that_json_does_not_have() -> None:
    assert to_json({1: (b"\xff", {"a"})}, is_exact=True) == {"1": [{"b64": "/w=="}, ["a"]]}
    assert to_json(["a\ud800", "a\udcff"], is_exact=True) == ["a\ufffd", "a\udcff"]
    assert to_json("a\udcff") == "a\ufffd"
    with pytest.raises(ValueError, match="surrogates not allowed"):
        from_json({"name": "a\udcff"})
