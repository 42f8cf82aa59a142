"""raw_fields: any table can be split and joined again unchanged, and damage raises an error."""

import datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import decode, encode

from penstock.codec.fields import encode_table
from penstock.queues import raw_fields
from penstock.queues.raw_fields import TableError

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.text() | st.binary()
    | st.floats(allow_nan=False)
    | st.integers(0, 1 << 32).map(lambda s: datetime.datetime.fromtimestamp(s, datetime.UTC)),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text(max_size=20), inner, max_size=3),
    max_leaves=10,
)  # fmt: skip
TABLES = st.dictionaries(st.text(max_size=60), VALUES, max_size=5)


@given(TABLES)
def test_a_table_comes_apart_and_together(table: dict[str, object]) -> None:
    data = encode_table(table)[4:]
    entries = raw_fields.split(data)
    assert [name.decode() for name, _ in entries] == list(table)
    assert raw_fields.join(entries) == data


def test_all_letters_of_rabbitmq() -> None:
    table = bytes.fromhex(
        "016174 01" "016262 ff" "016342 ff" "016473 fffe" "016575 fffe" "016649 fffffffe"
        "016769 fffffffe" "01686c fffffffffffffffe" "016966 3f800000" "016a64 3ff0000000000000"
        "016b44 0200000064" "016c53 00000001 78" "016d41 00000002 7401" "016e54 0000000000000005"
        "016f46 00000004 01787401" "017056" "017178 00000001 ff"
    )  # fmt: skip
    entries = raw_fields.split(table)
    assert b"".join(name for name, _ in entries) == b"abcdefghijklmnopq"
    assert {value[0] for _, value in entries} == set(raw_fields.SIZES) == set(raw_fields.TYPE_NAMES)
    numbers = [raw_fields.integer(value) for _, value in entries]
    assert numbers[:8] == [None, -1, 255, -2, 0xFFFE, -2, 0xFFFFFFFE, -2]
    assert numbers[8:] == [None] * 5 + [5] + [None] * 3


@given(TABLES, st.data())
def test_a_damaged_table_is_told_or_is_another_one(
    table: dict[str, object], data: st.DataObject
) -> None:
    raw = encode_table(table)[4:]
    at = data.draw(st.integers(0, len(raw)))
    damaged = raw[:at] + data.draw(st.binary(max_size=3)) + raw[at + data.draw(st.integers(0, 3)) :]
    try:
        entries = raw_fields.split(damaged)
    except TableError:
        return
    assert raw_fields.join(entries) == damaged
    for _, value in entries:
        if value[:1] == b"A":
            try:
                values = raw_fields.split_array(value)
            except TableError:
                continue
            assert raw_fields.array(values) == value


@pytest.mark.parametrize(
    ("table", "text"),
    [
        (b"\x05ab", "ends beyond"),
        (b"\x01a", "ends beyond"),
        (b"\x01aQ", "b'Q' is not known"),
        (b"\x01aI\0\0\0", "4 bytes, but only 3 are left"),
        (b"\x01aS\0\0", "ends within its length"),
        (b"\x01aS\0\0\0\x05abcd", "9 bytes, but only 8 are left"),
        (b"\x01aS\xff\xff\xff\xffabcd", "are left"),
    ],
)
def test_what_is_wrong(table: bytes, text: str) -> None:
    with pytest.raises(TableError, match=text):
        raw_fields.split(table)


def test_put_keeps_the_place_or_appends() -> None:
    entries = raw_fields.split(encode_table({"a": 1, "b": 2})[4:])
    raw_fields.put(entries, b"a", raw_fields.signed(-7))
    raw_fields.put(entries, b"c", raw_fields.long_string("ü".encode()))
    raw_fields.put(entries, b"d", raw_fields.timestamp(60))
    raw_fields.put(entries, b"e", raw_fields.array([raw_fields.binary(b"\xff")]))
    raw_fields.put(entries, b"f", raw_fields.nested([(b"x", raw_fields.signed(1 << 40))]))
    data = raw_fields.nested(entries)[1:]
    assert decode.field_table(data)[1] == {
        "a": -7, "b": 2, "c": "ü", "d": datetime.datetime(1970, 1, 1, 0, 1, tzinfo=datetime.UTC),
        "e": [bytearray(b"\xff")], "f": {"x": 1 << 40},
    }  # fmt: skip
    assert raw_fields.get(entries, b"zzz") is None


def test_types_of_another_encoder_are_kept() -> None:
    table: Any = {"d": Decimal("1.5"), "short": -300, "byte": 3, "long": 1 << 40}
    data = encode.field_table(table)[4:]
    assert raw_fields.join(raw_fields.split(data)) == data
