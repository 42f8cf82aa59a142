"""Tables, properties and methods made at random: ours against pamqp, and against broken bytes.

pamqp writes some letters otherwise than we do, so each reads what the other wrote and the values
are compared. What pamqp cannot hold (bytes that are no text, None in a list) is compared with
itself only.
"""

import warnings
from datetime import UTC, datetime
from decimal import Decimal

import pamqp.commands
import pamqp.decode
import pamqp.encode
from hypothesis import given
from hypothesis import strategies as st

from penstock.codec.fields import Table, check_table, decode_table, encode_table
from penstock.codec.properties import PROPERTY_NAMES, BasicProperties, expiration_at, scan
from penstock.codec.spec import METHODS, ConnectionStartOk, decode_method
from penstock.errors import AMQPConnectionError

NAMES = st.text(max_size=20)
SCALARS = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(max_size=50),
    st.decimals(-(10**6), 10**6, places=3).map(lambda value: value + Decimal(0)),
    st.integers(0, 4 * 10**9).map(lambda seconds: datetime.fromtimestamp(seconds, UTC)),
    st.none(),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(NAMES, inner, max_size=5),
    max_leaves=20,
)
TABLES: st.SearchStrategy[Table] = st.dictionaries(NAMES, VALUES, max_size=8)
SHORT = st.text(max_size=60)
PROPERTIES = st.builds(
    BasicProperties,
    **{
        name: st.none() | SHORT
        for name in PROPERTY_NAMES
        if name not in ("headers", "delivery_mode", "priority", "timestamp")
    },
    headers=st.none() | TABLES,
    delivery_mode=st.none() | st.integers(0, 255),
    priority=st.none() | st.integers(0, 255),
    timestamp=st.none() | st.integers(0, 2**64 - 1),
)


@given(TABLES)
def test_a_table_comes_back_and_pamqp_reads_the_same(table: Table) -> None:
    data = encode_table(table)
    assert decode_table(data) == (table, len(data))
    assert check_table(data, 0, len(data)) == len(data)
    assert pamqp.decode.field_table(data) == (len(data), table)


@given(
    st.dictionaries(
        st.from_regex(r"[a-z]{1,10}", fullmatch=True),
        st.integers(-(2**31), 2**31 - 1) | st.text(max_size=20) | st.booleans(),
        max_size=8,
    )
)
def test_we_read_what_pamqp_writes(table: dict[str, object]) -> None:
    data = pamqp.encode.field_table(table)  # type: ignore[arg-type]
    assert decode_table(data) == (table, len(data))


@given(PROPERTIES)
def test_properties_come_back_and_scan_finds_what_they_say(properties: BasicProperties) -> None:
    data = properties.encode()
    found = scan(data)
    assert BasicProperties.decode(data) == properties
    assert found & 255 == (properties.delivery_mode or 0)
    assert found >> 8 & 255 == (properties.priority or 0)
    expiration = properties.expiration
    assert expiration_at(data) == (None if expiration is None else expiration.encode())


@given(PROPERTIES, st.data())
def test_broken_properties_are_refused_or_read(
    properties: BasicProperties, data: st.DataObject
) -> None:
    raw = bytearray(properties.encode())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at] = data.draw(st.integers(0, 255))
    wrong = bytes(raw[: data.draw(st.integers(0, len(raw)))])
    try:
        scan(wrong)
    except AMQPConnectionError as error:
        outcome = error.code
    else:
        outcome = 502
        again = BasicProperties.decode(wrong)
        assert scan(again.encode()) >> 16 & 0xFFFC == scan(wrong) >> 16 & 0xFFFC
        expiration_at(wrong)
    assert outcome == 502


@given(st.sampled_from(sorted(METHODS)), st.binary(max_size=60))
def test_any_bytes_are_a_method_or_an_error(index: int, fields: bytes) -> None:
    payload = index.to_bytes(4, "big") + fields
    try:
        method = decode_method(payload)
    except AMQPConnectionError as error:
        outcome = error.code
    else:
        again = decode_method(method.encode())
        assert again.encode() == method.encode()  # as bytes: a NaN is not equal to itself
        outcome = 501
    assert outcome in (501, 502)


@given(st.sampled_from(sorted(METHODS)), st.data())
def test_methods_of_random_fields_come_back_and_pamqp_reads_the_same(
    index: int, data: st.DataObject
) -> None:
    ascii_names = st.from_regex(r"[a-zA-Z0-9_.]{0,40}", fullmatch=True)
    made = METHODS[index]()
    for name, default in vars(made).items():
        values: st.SearchStrategy[object] = {
            bool: st.booleans(),
            int: st.integers(0, 255),
            str: ascii_names,
            bytes: ascii_names.map(str.encode),
            dict: TABLES,
        }[type(default)]
        if isinstance(made, ConnectionStartOk) and name == "client_properties":
            values = TABLES.map(encode_table)  # kept as it came
        setattr(made, name, data.draw(values))
    payload = made.encode()
    assert decode_method(payload) == made
    if index not in pamqp.commands.INDEX_MAPPING:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        theirs = pamqp.commands.INDEX_MAPPING[index]()
    theirs.unmarshal(payload[4:])
    for name, value in vars(made).items():
        given_back = getattr(theirs, {"type": "exchange_type"}.get(name, name))
        if isinstance(given_back, dict) and isinstance(value, bytes):
            value = decode_table(value)[0]
        assert given_back == value or str(given_back).encode() == value, name
