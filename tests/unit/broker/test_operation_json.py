"""Operation JSON: bytes travel, and what AMQP knows besides is told."""

from datetime import UTC, datetime
from decimal import Decimal

import pytest

from penstock.broker.operation_json import dumps, loads
from penstock.errors import ChannelError


def test_bytes_come_back_as_bytes() -> None:
    value = {"a": b"\xff\x00", "l": [b"", "x", 1, 1.5, None, True], "d": {"b64": 1}}
    assert loads(dumps(value)) == value


def test_what_amqp_has_beyond_json_is_told_as_text() -> None:
    when = datetime(2026, 1, 2, tzinfo=UTC)
    assert loads(dumps({"t": when, "d": Decimal("1.5"), "s": (1, 2)})) == {
        "t": "2026-01-02T00:00:00+00:00", "d": "1.5", "s": [1, 2],
    }  # fmt: skip


def test_a_name_that_is_no_unicode_does_not_end_the_answer() -> None:
    assert loads(dumps({"name": b"q\xff".decode("utf-8", "surrogateescape")}))["name"] == "q\ufffd"


def test_no_arguments() -> None:
    assert loads(b"") == {}


@pytest.mark.parametrize("data", [b"{", b"[]", b"1", b"\xff", b'{"x": {"b64": "?"}}', b"[" * 9999])
def test_what_is_no_object_is_a_syntax_error(data: bytes) -> None:
    with pytest.raises(ChannelError) as caught:
        loads(data)
    assert caught.value.code == 502
