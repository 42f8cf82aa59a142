"""SinkColumns: which columns a sink sends, and how they become bodies, addresses and properties.

    value         binary, string or variant,      the body; of a variant its JSON
                  never null
    exchange      string                          where no option names queue or exchange
    routing_key   string; null is ""              the routing key for an exchange; for a queue the
                                                  row's key, where null is the queue's name
    message_id    string                          that property; null: none
    headers       map<string, T>                  that property; T: string, binary, a number,
                                                  boolean or timestamp
    properties    struct or map<string, string>   the other properties of AMQP, by their names in
                                                  penstock.codec.properties

Other columns are not sent, as in Spark's sink for Kafka; to_json puts them into the body. An option
overrides the column of the same name; a delivery_mode among the properties overrides the option
`persistent`.

A staged row has the header that a broker gives a published message (format 2 of
penstock.queues.amqp_headers). If rows differ only in their bodies, the header is made once. If
exchange, key or message id differ, headers are joined for a whole batch in C++. Values of headers
and properties are encoded once each and looked up for each row.

A wrong type raises OptionError at the driver when the query starts; a wrong value when its row
comes, with column, value and row.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    FractionalType,
    IntegralType,
    MapType,
    NullType,
    StringType,
    StructType,
    TimestampType,
    VariantType,
    VariantVal,
)

from penstock.codec.properties import PROPERTY_NAMES, BasicProperties
from penstock.errors import OptionError
from penstock.fast_crc import crc32
from penstock.queues.amqp_headers import FORMAT_BYTE, short_string, split_address
from penstock.queues.stream_options import partition_of
from penstock.spark.options import SinkOptions

if TYPE_CHECKING:
    from pyarrow import RecordBatch

COLUMNS: Final = (
    "value binary|string|variant, exchange string, routing_key string, message_id string, "
    "headers map, properties struct|map<string,string>"
)
TEXTS: Final = ("exchange", "routing_key", "message_id")
PROPERTIES: Final = tuple(name for name in PROPERTY_NAMES if name != "headers")
BYTE_PROPERTIES: Final = {"delivery_mode": (1, 2), "priority": (0, 255)}
BEHIND_ID: Final = PROPERTY_NAMES[PROPERTY_NAMES.index("message_id") + 1 :]
SHORT_BYTES_MAX: Final = 255
PERSISTENT: Final = 2
TRANSIENT: Final = 1
CACHED_MAX: Final = 4096
KEYS_MAX: Final = 100_000
SHOWN_MAX: Final = 60

BODY_TYPES: Final = BinaryType | StringType | VariantType

_BYTE: Final = pa.array([bytes((n,)) for n in range(256)], pa.binary())
_NOTHING: Final = pa.scalar(b"", pa.binary())


class Encoded:
    """Encoded properties: `plain` without a message id, `before` and `after` around one."""

    __slots__ = ("after", "before", "plain")

    def __init__(self, properties: BasicProperties) -> None:
        own = properties.message_id
        properties.message_id = ""
        with_id = properties.encode()
        tail = BasicProperties(**{name: getattr(properties, name) for name in BEHIND_ID}).encode()
        self.after = tail[2:]
        self.before = with_id[: len(with_id) - len(self.after) - 1]
        properties.message_id = own
        self.plain = properties.encode()

    def with_id(self, message_id: bytes) -> bytes:
        """Return the properties with a message id of at most 255 bytes."""
        return self.before + short_string(message_id) + self.after


class SinkColumns:
    """Turns batches of rows into messages. exchanges: those of the rows so far. keys: their
    different pairs (exchange, routing key), if the sink is for exchanges and all rows must be
    routed."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        self.names = checked_columns(schema, options)
        self._has_variants = isinstance(schema["value"].dataType, VariantType)
        self.exchanges: set[str] = set()
        self.keys: set[tuple[str, str]] = set()
        self._encoded: dict[Any, Encoded] = {}
        self._constant: bytes | None = None
        self._wants_keys = options.is_staged and options.is_mandatory and options.queue is None

    # ---- a batch -------------------------------------------------------------------------------

    def bodies(self, batch: "RecordBatch") -> Any:
        """Return the bodies as a binary array. Raises OptionError if one is null."""
        values = batch.column("value")
        if values.null_count:
            row = pc.index(values.is_null(), pa.scalar(True)).as_py()
            raise OptionError("column value", None, f"a body in every row (row {row} of its batch)")
        if self._has_variants:
            return pa.array([_json(value, row) for row, value in enumerate(values)], pa.binary())
        return values.cast(pa.binary())

    def metas(self, batch: "RecordBatch") -> Any:
        """Return the messages' headers: a binary array, or bytes that all rows share."""
        if self.names & {"headers", "properties"}:
            return self._metas_of_rows(batch)
        exchange, key = self._exchange(batch), self._key(batch)
        ids = batch.column("message_id") if "message_id" in self.names else None
        is_constant = isinstance(exchange, bytes) and isinstance(key, bytes)
        if is_constant and ids is None:
            if self._constant is None:
                self._seen(exchange + key)
                self._constant = FORMAT_BYTE + exchange + key + self._properties(None, None).plain
            return self._constant
        address = exchange + key if is_constant else _joined(exchange, key)
        self._seen(address)
        plain = self._properties(None, None)
        properties = plain.plain if ids is None else _with_ids(ids, plain)
        return _joined(FORMAT_BYTE, address, properties)

    def shared_partition(self, count: int) -> int | None:
        """Return the partition of all rows in a stream of so many; None if each has its own key."""
        given = self._options.routing_key
        if given is None and "routing_key" not in self.names:
            given = self._options.queue or ""
        return None if given is None else partition_of(given.encode(), count)

    def partitions(self, batch: "RecordBatch", count: int) -> Any:
        """Return the partition of each row in a stream of so many, by its key, as an array. The
        keys are not checked: call `metas` first."""
        keys = pc.fill_null(batch.column("routing_key"), self._options.queue or "")
        found = keys.cast(pa.binary()).dictionary_encode()
        keys = found.dictionary.to_pylist()  # mostly many: no call of Python for each
        numbers = np.fromiter(map(crc32, keys), np.int64, len(keys)) % count  # as partition_of
        return numbers[found.indices.to_numpy()]

    def published(self, batch: "RecordBatch") -> Iterator[tuple[str, str, bytes, bytes]]:
        """Return (exchange, routing key, body, properties) of each row, for AMQP."""
        bodies = self.bodies(batch).to_pylist()
        for body, (exchange, key, properties) in zip(bodies, self._rows(batch), strict=True):
            yield exchange, key, body, properties

    # ---- a row at a time -----------------------------------------------------------------------

    def _metas_of_rows(self, batch: "RecordBatch") -> Any:
        metas = []
        addresses: dict[tuple[str, str], bytes] = {}
        for exchange, key, properties in self._rows(batch):
            address = addresses.get((exchange, key))
            if address is None:
                address = short_string(exchange.encode()) + short_string(key.encode())
                addresses[exchange, key] = address
                self._seen(address)
            metas.append(FORMAT_BYTE + address + properties)
        return pa.array(metas, pa.binary())

    def _rows(self, batch: "RecordBatch") -> Iterator[tuple[str, str, bytes]]:
        """Return (exchange, routing key, properties) of each row."""
        options, count = self._options, batch.num_rows
        nothing: list[Any] = [None] * count
        ids = self._list(batch, "message_id") or nothing
        headers = self._list(batch, "headers") or nothing
        properties = self._list(batch, "properties") or nothing
        exchanges = nothing if options.exchange is not None else self._list(batch, "exchange")
        keys = nothing if options.routing_key is not None else self._list(batch, "routing_key")
        given = options.routing_key if options.routing_key is not None else options.queue or ""
        for name, values in (("exchange", exchanges), ("routing_key", keys), ("message_id", ids)):
            for row, value in enumerate(values or ()):
                if value is not None and len(value.encode()) > SHORT_BYTES_MAX:
                    raise _too_long(name, value, row)
        for row, (exchange, key, one, pairs, others) in enumerate(
            zip(exchanges or nothing, keys or nothing, ids, headers, properties, strict=True)
        ):
            if exchange is None:
                exchange = options.exchange
                if exchange is None:
                    raise _no_exchange(row)
            try:
                found = self._properties(pairs, others)
            except OptionError as error:
                expected = f"{error.expected} (row {row} of its batch)"
                raise OptionError(error.name, error.given, expected) from None
            encoded = found.plain if one is None else found.with_id(one.encode())
            yield exchange, given if key is None else key, encoded

    def _list(self, batch: "RecordBatch", name: str) -> list[Any] | None:
        return batch.column(name).to_pylist() if name in self.names else None

    def _properties(self, headers: Any, others: Any) -> Encoded:
        """Return properties from lists of pairs (maps), dicts (structs) or None; from a cache if
        possible."""
        given = others.items() if isinstance(others, dict) else others
        key = (
            None if headers is None else tuple((type(one), name, one) for name, one in headers),
            None if given is None else tuple(given),
        )
        found = self._encoded.get(key)
        if found is None:
            if len(self._encoded) >= CACHED_MAX:
                self._encoded.clear()
            found = self._encoded[key] = self._encode(headers, given)
        return found

    def _encode(self, headers: Any, given: Any) -> Encoded:
        options = self._options
        mode = PERSISTENT if options.is_persistent else TRANSIENT
        properties = BasicProperties(
            delivery_mode=mode, headers=None if headers is None else dict(headers)
        )
        for name, value in given or ():
            if value is not None:
                setattr(properties, name, self._property(name, value))
        if options.content_type is not None:
            properties.content_type = options.content_type
        try:
            return Encoded(properties)
        except (ValueError, TypeError, OverflowError) as error:
            raise OptionError(
                "column headers", _for_error(dict(headers or ())), f"{error}"
            ) from None

    def _property(self, name: str, value: Any) -> Any:
        """Return a property's value for AMQP. Raises OptionError."""
        column = f"column properties: {name}"
        if name not in PROPERTIES:
            raise OptionError(column, value, f"one of {', '.join(PROPERTIES)}")
        if name in BYTE_PROPERTIES:
            least, most = BYTE_PROPERTIES[name]
            return _whole(column, value, least, most)
        if name == "timestamp":
            return _seconds(column, value)
        if name == "expiration":
            return str(_whole(column, value, 0, (1 << 32) - 1))
        text = str(value)
        if len(text.encode()) > SHORT_BYTES_MAX:
            raise OptionError(column, _for_error(text), f"at most {SHORT_BYTES_MAX} bytes")
        place = self._options.place
        if name == "user_id" and place is not None and text != place.user:
            raise OptionError(column, text, f"{place.user!r}, who publishes, or none")
        return text

    # ---- addresses -----------------------------------------------------------------------------

    def _exchange(self, batch: "RecordBatch") -> Any:
        """Return exchanges as short strings: bytes, or an array of them."""
        if self._options.exchange is not None:
            return _short("option exchange", self._options.exchange)
        column = batch.column("exchange")
        if column.null_count:
            raise _no_exchange(pc.index(column.is_null(), pa.scalar(True)).as_py())
        return _shorts("exchange", column)

    def _key(self, batch: "RecordBatch") -> Any:
        """Return routing keys as short strings: bytes, or an array of them."""
        options = self._options
        if options.routing_key is not None:
            return _short("option routing_key", options.routing_key)
        given = options.queue or ""
        if "routing_key" not in self.names:
            return _short("option queue", given)
        return _shorts("routing_key", pc.fill_null(batch.column("routing_key"), given))

    def _seen(self, address: Any) -> None:
        """Remember the exchange, and the key if the commit must name it."""
        if self._options.queue is not None:
            return
        if not self._wants_keys and self._options.exchange is not None:
            self.exchanges.add(self._options.exchange)
            return
        different = [address] if isinstance(address, bytes) else pc.unique(address).to_pylist()
        for one in different:
            exchange, key = (part.decode("utf-8", "replace") for part in split_address(one))
            self.exchanges.add(exchange)
            if self._wants_keys:
                self.keys.add((exchange, key))
        check_keys(len(self.keys))


def check_keys(count: int) -> None:
    """Raise OptionError if a commit would name too many keys."""
    if count > KEYS_MAX:
        expected = f"false, for a batch with more than {KEYS_MAX:,} different routing keys"
        raise OptionError("mandatory", "true", expected)


# ---- types ---------------------------------------------------------------------------------------


def checked_columns(schema: StructType, options: SinkOptions) -> frozenset[str]:
    """Return the names of the columns that are sent. Raises OptionError if none can be, or for a
    wrong type."""
    types = {field.name: field.dataType for field in schema.fields}
    if "value" not in types:
        raise OptionError("columns", ", ".join(types), COLUMNS)
    if options.queue is None and options.exchange is None and "exchange" not in types:
        expected = "either queue or exchange, for a sink, or a column `exchange`"
        raise OptionError("queue", "neither", expected)
    _expect("value", types["value"], isinstance(types["value"], BODY_TYPES))
    for name in TEXTS:
        if name in types:
            _expect(name, types[name], isinstance(types[name], StringType))
    if "headers" in types:
        kind = types["headers"]
        _expect("headers", kind, isinstance(kind, MapType) and _is_header(kind))
    if "properties" in types:
        _check_properties(types["properties"])
    return frozenset(("value", *TEXTS, "headers", "properties")) & types.keys()


def _expect(name: str, kind: DataType, is_right: bool) -> None:
    if not is_right:
        raise OptionError(f"column {name}", kind.simpleString(), COLUMNS)


def _is_header(kind: MapType) -> bool:
    simple = (StringType, BinaryType, BooleanType, IntegralType, FractionalType, TimestampType)
    return isinstance(kind.keyType, StringType) and isinstance(kind.valueType, (*simple, NullType))


def _check_properties(kind: DataType) -> None:
    if isinstance(kind, MapType):
        is_text = isinstance(kind.keyType, StringType) and isinstance(kind.valueType, StringType)
        _expect("properties", kind, is_text)
        return
    if not isinstance(kind, StructType):
        raise OptionError("column properties", kind.simpleString(), COLUMNS)
    for field in kind.fields:
        column = f"column properties: {field.name}"
        if field.name not in PROPERTIES:
            raise OptionError(column, field.name, f"one of {', '.join(PROPERTIES)}")
        right: tuple[type[DataType], ...] = (StringType, NullType)
        if field.name in (*BYTE_PROPERTIES, "expiration", "timestamp"):
            right = (*right, IntegralType)
        if field.name == "timestamp":
            right = (*right, TimestampType)
        if not isinstance(field.dataType, right):
            words = " or ".join(one.__name__.removesuffix("Type").lower() for one in right)
            raise OptionError(column, field.dataType.simpleString(), words)


# ---- values --------------------------------------------------------------------------------------


def _json(variant: Any, row: int) -> bytes:
    """Return the JSON of a Variant, a scalar of Arrow. Raises OptionError."""
    parts = variant.as_py()
    try:
        return VariantVal(parts["value"], parts["metadata"]).toJson().encode()
    except (PySparkException, ValueError, LookupError) as error:
        expected = f"a Variant that can be read (row {row} of its batch): {error}"
        raise OptionError("column value", _for_error(parts["value"]), expected) from None


def _whole(name: str, value: Any, least: int, most: int) -> int:
    """Return a whole number in a range. Raises OptionError."""
    text = str(value)
    if not text.isascii() or not text.isdecimal() or not least <= int(text) <= most:
        raise OptionError(name, _for_error(value), f"a whole number from {least} to {most}")
    return int(text)


def _seconds(name: str, value: Any) -> int:
    """Return seconds since 1970, from that number or a time. Raises OptionError."""
    if isinstance(value, str) and not value.isdecimal():
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            expected = "seconds since 1970, or a time such as 2013-01-01T05:00:00Z"
            raise OptionError(name, _for_error(value), expected) from None
    if isinstance(value, datetime):
        value = int((value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp())
    return _whole(name, value, 0, (1 << 63) - 1)


def _for_error(value: Any) -> Any:
    """Return the value, or the beginning of a long one, for an error."""
    text = value if isinstance(value, str) else repr(value)
    return value if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}..."


def _too_long(name: str, value: str, row: int) -> OptionError:
    expected = f"at most {SHORT_BYTES_MAX} bytes (row {row} of its batch)"
    return OptionError(f"column {name}", _for_error(value), expected)


def _no_exchange(row: int) -> OptionError:
    expected = f"an exchange in every row, or the option exchange (row {row} of its batch)"
    return OptionError("column exchange", None, expected)


# ---- arrays --------------------------------------------------------------------------------------


def _short(name: str, text: str) -> bytes:
    data = text.encode()
    if len(data) > SHORT_BYTES_MAX:
        raise OptionError(name, _for_error(text), f"at most {SHORT_BYTES_MAX} bytes")
    return short_string(data)


def _shorts(name: str, texts: Any) -> Any:
    """Return the short strings of an array without nulls. Raises OptionError."""
    data = texts.cast(pa.binary())
    sizes = pc.binary_length(data)
    most = pc.max(sizes).as_py() or 0
    if most > SHORT_BYTES_MAX:
        row = pc.index(sizes, pa.scalar(most, sizes.type)).as_py()
        raise _too_long(name, texts[row].as_py(), row)
    return pc.binary_join_element_wise(_BYTE.take(sizes), data, _NOTHING)


def _with_ids(ids: Any, plain: Encoded) -> Any:
    """Return properties for rows with different message ids, some of which may be null."""
    made = _joined(plain.before, _shorts("message_id", pc.fill_null(ids, "")), plain.after)
    if not ids.null_count:
        return made
    return pc.if_else(ids.is_valid(), made, pa.scalar(plain.plain, pa.binary()))


def _joined(*parts: Any) -> Any:
    """Return one binary array from arrays, and bytes that all rows share."""
    scalars = [pa.scalar(part, pa.binary()) if isinstance(part, bytes) else part for part in parts]
    return pc.binary_join_element_wise(*scalars, _NOTHING)
