"""Columns of the sink: bodies, headers of messages, properties; and what is told of wrong ones."""

import json
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType, VariantVal

from penstock.codec.properties import BasicProperties
from penstock.errors import OptionError
from penstock.queues.amqp_headers import AmqpHeaders, split_address
from penstock.spark.options import SinkOptions
from penstock.spark.sink_columns import SinkColumns, check_keys

TYPES = {
    "value": ("binary", pa.binary()),
    "exchange": ("string", pa.string()),
    "routing_key": ("string", pa.string()),
    "message_id": ("string", pa.string()),
    "headers": ("map<string,string>", pa.map_(pa.string(), pa.string())),
    "properties": ("map<string,string>", pa.map_(pa.string(), pa.string())),
}
PLAIN = BasicProperties(delivery_mode=2)


def schema_of(text: str) -> StructType:
    """Of Spark's words, without a session."""
    fields = []
    for part in text.split(";"):
        name, _, kind = part.strip().partition(" ")
        fields.append({"name": name, "type": TYPE_JSON[kind], "nullable": True, "metadata": {}})
    return StructType.fromJson({"type": "struct", "fields": fields})


def a_map(value: str) -> dict[str, Any]:
    return {"type": "map", "keyType": "string", "valueType": value, "valueContainsNull": True}


def a_struct(**fields: str) -> dict[str, Any]:
    return {
        "type": "struct",
        "fields": [
            {"name": name, "type": kind, "nullable": True, "metadata": {}}
            for name, kind in fields.items()
        ],
    }


TYPE_JSON: dict[str, Any] = {
    "binary": "binary", "string": "string", "variant": "variant", "int": "integer",
    "map<string,string>": a_map("string"), "map<string,binary>": a_map("binary"),
    "map<string,int>": a_map("integer"),
    "map<string,array>": a_map({"type": "array", "elementType": "string", "containsNull": True}),  # type: ignore[arg-type]
    "struct": a_struct(priority="integer", type="string", timestamp="timestamp"),
    "struct of a wrong name": a_struct(prio="integer"),
    "struct of a wrong type": a_struct(priority="double"),
}  # fmt: skip


def columns(names: str = "value", **given: str) -> SinkColumns:
    """Of these columns, with the types above."""
    schema = schema_of(";".join(f"{name} {TYPES[name][0]}" for name in names.split()))
    if not {"queue", "exchange"} & given.keys() and "exchange" not in names.split():
        given["queue"] = "q"
    return SinkColumns(SinkOptions.of(given, {}), schema)


def batch(**values: list[Any]) -> "pa.RecordBatch":
    if "value" not in values:
        values = {"value": [b"x"] * len(next(iter(values.values()))), **values}
    arrays = {name: pa.array(column, TYPES[name][1]) for name, column in values.items()}
    return pa.RecordBatch.from_pydict(arrays)


def headers_of(target: SinkColumns, rows: "pa.RecordBatch") -> list[tuple[str, str, Any]]:
    """(exchange, key, properties) of each row's header."""
    metas = target.metas(rows)
    metas = [metas] * rows.num_rows if isinstance(metas, bytes) else metas.to_pylist()
    found = []
    for meta in metas:
        address, raw = AmqpHeaders().parts(meta)
        exchange, key = (part.decode() for part in split_address(address))
        found.append((exchange, key, BasicProperties.decode(raw)))
    return found


def test_rows_that_differ_in_their_bodies_share_a_header() -> None:
    target = columns(content_type="text/plain")
    rows = batch(value=[b"a", b"b"])
    assert isinstance(target.metas(rows), bytes)
    expected = BasicProperties(delivery_mode=2, content_type="text/plain")
    assert headers_of(target, rows) == [("", "q", expected)] * 2
    assert target.bodies(rows).to_pylist() == [b"a", b"b"]
    assert target.metas(rows) is target.metas(rows)


def test_a_body_may_be_text_and_never_null() -> None:
    target = columns()
    text = pa.RecordBatch.from_pydict({"value": pa.array(["ä", ""])})
    assert target.bodies(text).to_pylist() == ["ä".encode(), b""]
    with pytest.raises(OptionError, match=r"column value: given None, .* \(row 1 of its batch\)"):
        target.bodies(batch(value=[b"a", None]))


def variants(*texts: str | None) -> "pa.RecordBatch":
    """Rows whose value is a Variant, as Spark gives them to a sink."""
    kind = pa.struct([pa.field("value", pa.binary()), pa.field("metadata", pa.binary())])
    found = [None if text is None else VariantVal.parseJson(text) for text in texts]
    rows = [None if v is None else {"value": v.value, "metadata": v.metadata} for v in found]
    return pa.record_batch({"value": pa.array(rows, kind)})


def test_a_body_may_be_a_variant_which_becomes_json() -> None:
    target = SinkColumns(SinkOptions.of({"queue": "q"}, {}), schema_of("value variant"))
    texts = ['{"a":[1,2.5,null],"b":"é"}', "7", '"text"', "null"]
    bodies = target.bodies(variants(*texts))
    assert bodies.type == pa.binary()
    assert [json.loads(body) for body in bodies.to_pylist()] == [json.loads(one) for one in texts]
    with pytest.raises(OptionError, match=r"column value: given None.*\(row 1 of its batch\)"):
        target.bodies(variants("1", None))


def test_a_damaged_variant_is_told_by_its_row() -> None:
    target = SinkColumns(SinkOptions.of({"queue": "q"}, {}), schema_of("value variant"))
    kind = variants("1").column("value").type
    rows = [{"value": b"\xff", "metadata": b""}]
    with pytest.raises(OptionError, match=r"column value: .*a Variant .*\(row 0 of its batch\)"):
        target.bodies(pa.record_batch({"value": pa.array(rows, kind)}))


def test_addresses_by_columns() -> None:
    target = columns("value exchange routing_key")
    rows = batch(exchange=["x", "", "x", "x"], routing_key=["k", "late", None, "k"])
    assert headers_of(target, rows) == [
        ("x", "k", PLAIN), ("", "late", PLAIN), ("x", "", PLAIN), ("x", "k", PLAIN),
    ]  # fmt: skip
    assert target.exchanges == {"x", ""}
    assert target.keys == {("x", "k"), ("", "late"), ("x", "")}


def test_a_row_for_a_queue_may_have_a_key() -> None:
    target = columns("value routing_key", queue="q")
    rows = batch(routing_key=["k", None])
    assert headers_of(target, rows) == [("", "k", PLAIN), ("", "q", PLAIN)]
    assert (target.exchanges, target.keys) == (set(), set())


def test_options_count_before_columns() -> None:
    target = columns("value exchange routing_key", exchange="o", routing_key="k2")
    rows = batch(exchange=["x"], routing_key=["k"])
    assert headers_of(target, rows) == [("o", "k2", PLAIN)]
    assert (target.exchanges, target.keys) == ({"o"}, {("o", "k2")})


def test_keys_are_not_kept_where_nobody_asks() -> None:
    target = columns("value routing_key", exchange="x", mandatory="false")
    target.metas(batch(routing_key=["k", "l"]))
    assert (target.exchanges, target.keys) == ({"x"}, set())
    target = columns("value exchange", mandatory="false")
    target.metas(batch(exchange=["x", "y"]))
    assert (target.exchanges, target.keys) == ({"x", "y"}, set())


@pytest.mark.parametrize("names", ["value message_id", "value message_id headers"])
def test_message_ids(names: str) -> None:
    rows = {"message_id": ["a", None, "", "ä" * 127]}
    if "headers" in names:
        rows["headers"] = [None] * 4  # type: ignore[list-item]
    found = headers_of(columns(names), batch(**rows))
    assert [one[2].message_id for one in found] == ["a", None, "", "ä" * 127]
    assert {one[2].delivery_mode for one in found} == {2}


def test_headers_and_properties() -> None:
    target = columns("value headers properties message_id", persistent="false")
    rows = batch(
        headers=[[("a", "1"), ("b", None)], None, []],
        properties=[
            [("priority", "5"), ("expiration", "1000"), ("timestamp", "77"), ("app_id", "me")],
            [("delivery_mode", "2"), ("timestamp", "1970-01-01T00:01:00+00:00")],
            None,
        ],
        message_id=["i", None, "j"],
    )
    first, second, third = (one[2] for one in headers_of(target, rows))
    assert first == BasicProperties(
        headers={"a": "1", "b": None}, priority=5, expiration="1000", timestamp=77, app_id="me",
        message_id="i", delivery_mode=1,
    )  # fmt: skip
    assert second == BasicProperties(delivery_mode=2, timestamp=60)
    assert third == BasicProperties(delivery_mode=1, headers={}, message_id="j")


def test_a_struct_of_properties_and_headers_of_other_types() -> None:
    schema = schema_of("value string;headers map<string,int>;properties struct")
    target = SinkColumns(SinkOptions.of({"queue": "q"}, {}), schema)
    moment = datetime(1970, 1, 1, 0, 1, tzinfo=UTC)
    rows = pa.RecordBatch.from_pylist(
        [
            {"value": "a", "headers": [("n", 1)], "properties": {"priority": 3, "type": None}},
            {"value": "b", "headers": [("n", 1)], "properties": {"timestamp": moment}},
        ],
        pa.schema(
            [
                ("value", pa.string()),
                ("headers", pa.map_(pa.string(), pa.int32())),
                ("properties", pa.struct([
                    ("priority", pa.int32()), ("type", pa.string()),
                    ("timestamp", pa.timestamp("us", "UTC")),
                ])),
            ]
        ),
    )  # fmt: skip
    first, second = (one[2] for one in headers_of(target, rows))
    assert first == BasicProperties(headers={"n": 1}, priority=3, delivery_mode=2)
    assert second == BasicProperties(headers={"n": 1}, timestamp=60, delivery_mode=2)


def test_rows_to_be_published_by_themselves() -> None:
    target = columns("value routing_key message_id", exchange="x", delivery="at-least-once")
    (row,) = target.published(batch(value=[b"a"], routing_key=["k"], message_id=["i"]))
    expected = BasicProperties(delivery_mode=2, message_id="i").encode()
    assert row == ("x", "k", b"a", expected)


@pytest.mark.parametrize(
    ("schema", "given", "told"),
    [
        ("other string", {}, "given 'other', expected value binary|string|variant, exch"),
        ("value int", {}, "option column value: given 'int'"),
        ("value string;routing_key int", {}, "option column routing_key: given 'int'"),
        ("value string;headers string", {}, "option column headers: given 'string'"),
        ("value string;headers map<string,array>", {}, "headers: given 'map<string,array<st"),
        ("value string;properties string", {}, "option column properties: given 'string'"),
        ("value string;properties map<string,int>", {}, "properties: given 'map<string,int>'"),
        ("value string;properties struct of a wrong name", {}, "prio: given 'prio', ex"),
        ("value string;properties struct of a wrong type", {}, "priority: given 'double'"),
        ("value string", {"queue": ""}, "either queue or exchange, for a sink, or a column `exch"),
    ],
)  # fmt: skip
def test_wrong_types_are_told(schema: str, given: dict[str, str], told: str) -> None:
    options = SinkOptions.of({} if given else {"queue": "q"}, {})
    with pytest.raises(OptionError) as caught:
        SinkColumns(options, schema_of(schema))
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"exchange": ["x", None]}, "column exchange: given None, expected an exchange in every r"),
        ({"exchange": ["x"] * 2, "message_id": ["i", None], "headers": [[], []],
          "routing_key": ["", "k" * 256]}, "option column routing_key: given 'kkk"),
        ({"exchange": ["x", "y" * 256]}, "expected at most 255 bytes (row 1 of its batch)"),
        ({"exchange": ["x"], "properties": [[("priority", "256")]]},
         "properties: priority: given '256', expected a whole number from 0 to 255 (row 0 of"),
        ({"exchange": ["x"], "properties": [[("prio", "2")]]}, "properties: prio: given '2'"),
        ({"exchange": ["x"], "properties": [[("expiration", "1s")]]}, "expiration: given '1s'"),
        ({"exchange": ["x"], "properties": [[("timestamp", "now")]]}, "seconds since 1970, or"),
        ({"exchange": ["x"], "properties": [[("type", "t" * 256)]]}, "type: given 'ttt"),
        ({"exchange": ["x"], "properties": [[("user_id", "bob")]]}, "'guest', who publishes"),
        ({"exchange": ["x"], "headers": [[("h" * 256, "1")]]}, "column headers: given"),
        ({"exchange": [None], "headers": [[]]}, "column exchange: given None"),
    ],
)  # fmt: skip
def test_wrong_values_are_told(values: dict[str, list[Any]], told: str) -> None:
    target = columns("value " + " ".join(values))
    with pytest.raises(OptionError) as caught:
        target.metas(batch(**values))
    assert told in str(caught.value)


def test_a_header_is_encoded_once_however_often_it_comes() -> None:
    target = columns("value headers")
    rows = batch(headers=[[("a", str(i % 3))] for i in range(30)])
    assert len(headers_of(target, rows)) == 30
    assert len(target._encoded) == 3


def test_more_keys_than_can_be_told() -> None:
    check_keys(100_000)
    with pytest.raises(OptionError, match="option mandatory: given 'true', expected false, for"):
        check_keys(100_001)
