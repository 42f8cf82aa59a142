"""Field tables: every letter, every border, and what is not a table."""

from datetime import UTC, datetime
from decimal import Decimal

import pytest

from penstock.codec.fields import (
    check_table,
    decode_table,
    decode_value,
    encode_shortstr,
    encode_table,
    encode_value,
    raw_entry,
)
from penstock.errors import AMQPConnectionError

MOMENT = datetime(2026, 11, 21, 16, 30, tzinfo=UTC)

GOLDEN: list[tuple[object, str]] = [
    (True, "7401"),
    (False, "7400"),
    (0, "4900000000"),
    (-1, "49ffffffff"),
    (2**31 - 1, "497fffffff"),
    (2**31, "6c0000000080000000"),
    (-(2**31), "4980000000"),
    (-(2**63), "6c8000000000000000"),
    (1.5, "643ff8000000000000"),
    ("text", "530000000474657874"),
    (b"\xff", "7800000001ff"),
    (MOMENT, "54000000006b01c708"),
    (Decimal("-1.25"), "4402ffffff83"),
    (Decimal(7), "440000000007"),
    ([1, "a"], "410000000b4900000001530000000161"),
    ({"a": None}, "4600000003016156"),
    (None, "56"),
]

# Letters that are read and not written.
FOREIGN: list[tuple[str, object]] = [
    ("62ff", -1),
    ("42ff", 255),
    ("73ffff", -1),
    ("75ffff", 65535),
    ("69ffffffff", 2**32 - 1),
    ("4cffffffffffffffff", -1),
    ("663fc00000", 1.5),
    ("5300000001ff", b"\xff"),  # no UTF-8
    ("54ffffffffffffffff", 2**63 - 1),  # beyond the year 9999
    ("7402", True),
]


def nested(depth: int, array: bool) -> bytes:
    """A table of so many tables (or a table of arrays), each in the other."""
    data = b"\x00\x00\x00\x00"
    for _ in range(depth - 1):
        data = b"A" + data if array else b"\x01kF" + data
        data = len(data).to_bytes(4, "big") + data
    if array:
        data = b"\x01kA" + data
        data = len(data).to_bytes(4, "big") + data
    return data


@pytest.mark.parametrize(("value", "data"), GOLDEN, ids=repr)
def test_every_kind_of_value_is_written_with_its_letter(value: object, data: str) -> None:
    written = encode_value(value)
    assert written.hex() == data
    assert decode_value(written) == (value, len(written))
    assert type(decode_value(written)[0]) is type(value)


@pytest.mark.parametrize(("data", "value"), FOREIGN, ids=repr)
def test_other_letters_are_read(data: str, value: object) -> None:
    raw = bytes.fromhex(data)
    assert decode_value(b"--" + raw, 2) == (value, len(raw) + 2)


def test_a_table_is_read_where_it_stands() -> None:
    table = {"a": 1, "": "empty", "n": {"x": [True, None]}}
    data = b"before" + encode_table(table) + b"behind"
    assert decode_table(data, 6) == (table, len(data) - 6)
    assert check_table(data, 6, len(data)) == len(data) - 6


def test_a_name_that_is_no_utf8_is_kept() -> None:
    data = b"\x00\x00\x00\x03\x01\xffV"
    table, _ = decode_table(data)
    assert table == {"\udcff": None}
    assert encode_table(table) == data


def test_tuples_and_buffers_are_written_as_lists_and_bytes() -> None:
    assert encode_value((1,)) == encode_value([1])
    assert encode_value(bytearray(b"a")) == encode_value(memoryview(b"a")) == encode_value(b"a")


@pytest.mark.parametrize("array", [False, True])
def test_a_hundred_and_twenty_eight_may_stand_in_each_other(array: bool) -> None:
    good = nested(127 if array else 128, array)
    assert check_table(good, 0, len(good)) == len(good)
    table, _ = decode_table(good)
    assert encode_table(table) == good
    bad = nested(128 if array else 129, array)
    for read in (decode_table, lambda data: check_table(data, 0, len(data))):
        with pytest.raises(AMQPConnectionError, match="nested more than 128"):
            read(bad)


def test_what_is_nested_too_deep_is_not_written() -> None:
    value: object = 1
    for _ in range(128):
        value = [value]
    with pytest.raises(ValueError, match="nested"):
        encode_table({"a": value})


@pytest.mark.parametrize(
    "data",
    [
        "",
        "000000",
        "00000001",
        "ffffffff0161",
        "000000010161",  # a name beyond the table
        "00000002016156",  # a name without a value
        "000000030161" + "5a",  # unknown letter
        "000000060161" + "49000000",  # a value that is cut
        "000000070161" + "5300000001",  # a string beyond the table
        "000000070161" + "53ffffffff",
        "000000050161" + "530000",
        "000000070161" + "46ffffffff",
        "000000070161" + "4100000001",
        "000000030161" + "44",
    ],
)
def test_what_is_no_table_is_a_syntax_error(data: str) -> None:
    raw = bytes.fromhex(data)
    for read in (decode_table, lambda data: check_table(data, 0, len(data))):
        with pytest.raises(AMQPConnectionError) as caught:
            read(raw)
        assert caught.value.code == 502


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (2**63, ValueError),
        (-(2**63) - 1, ValueError),
        (Decimal("NaN"), ValueError),
        (Decimal(2**31), ValueError),
        (Decimal("1e300"), ValueError),
        (Decimal("1e-300"), ValueError),
        (MOMENT.replace(tzinfo=None), ValueError),
        (datetime(1969, 1, 1, tzinfo=UTC), ValueError),
        (object(), TypeError),
        ({"n" * 256: 1}, ValueError),
    ],
    ids=repr,
)
def test_what_cannot_be_written(value: object, error: type[Exception]) -> None:
    with pytest.raises(error):
        encode_value(value)


def test_a_short_string_has_at_most_255_bytes() -> None:
    assert encode_shortstr("ä") == b"\x02\xc3\xa4"
    assert len(encode_shortstr("a" * 255)) == 256
    with pytest.raises(ValueError, match="256 bytes"):
        encode_shortstr("a" * 256)


def test_one_value_of_a_checked_table_comes_out_as_bytes() -> None:
    table = {"a": 1, "nested": {"a": True}, "": "empty", "z": None}
    data = encode_table(table)
    assert raw_entry(data, b"a") == encode_value(1)
    assert raw_entry(data, b"nested") == encode_value({"a": True})
    assert raw_entry(data, b"") == encode_value("empty")
    assert raw_entry(data, b"z") == b"V"
    assert raw_entry(data, b"A") is None
    assert raw_entry(encode_table({}), b"a") is None
    twice = encode_table({"a": 1})[4:] + encode_table({"a": 2})[4:]
    assert raw_entry(len(twice).to_bytes(4, "big") + twice, b"a") == encode_value(2)
