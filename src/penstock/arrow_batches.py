"""Arrow batches: the records of a stream as columns, with one schema for Spark and HTTP.

    queue string | partition int32 | offset int64 | timestamp timestamp[us, UTC] | exchange string |
    routing_key string | message_id string | value binary
    and on request:  headers map<string, string> | properties map<string, string>

Any columns in any order; only the requested ones are made. Python handles no single record:

* times and offsets are columns of the index, or counted;
* values are cut from the page's bytes: the bounds of all payloads, interleaved, are the offsets of
  an Arrow array over the page whose every second element is a payload, and one `take` copies those
  in C++ (tens of ns a record);
* what the header of a message has (exchange, routing key, properties) is decoded once for each
  different header, because mostly there are few. Where almost every header differs (message ids,
  timestamps) the three short columns are cut from the page like values, by walking all headers at
  once, one property at a time, with NumPy.

Both forms of header are decoded: the broker's, and that of the embedded library, which is shown as
a broker would show it: the default exchange, the stream's name as the routing key. A header of an
unknown form is the program's own, and the columns are empty.

Headers and properties are text: strings as they are, numbers as digits, true and false, times as
ISO 8601, bytes as UTF-8 or else base64, tables and arrays as JSON, no value as null.

A batch has at most ROWS_MAX records and about BYTES_MAX bytes of page, or one record.
page_frames.py reads and verifies rows and bytes.
"""

import base64
import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.codec.properties import PROPERTY_NAMES, BasicProperties
from penstock.errors import AMQPError, OptionError
from penstock.page_frames import Frames
from penstock.queues.amqp_headers import DIED_BYTES, AmqpHeaders, split_address
from penstock.queues.headers import HeaderError
from penstock.storage.pages.page import FRAME_BYTES

ROWS_MAX: Final = 16_384
BYTES_MAX: Final = 4 << 20
CACHED_HEADERS_MAX: Final = 4096

TYPES: Final = {
    "queue": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "exchange": pa.string(),
    "routing_key": pa.string(),
    "message_id": pa.string(),
    "value": pa.binary(),
    "headers": pa.map_(pa.string(), pa.string()),
    "properties": pa.map_(pa.string(), pa.string()),
}
COLUMNS: Final = tuple(TYPES)[:8]  # what is given when nothing is said
ADDRESS: Final = ("exchange", "routing_key", "message_id")
META: Final = (*ADDRESS, "headers", "properties")

_AMQP: Final = AmqpHeaders()
_FORMAT: Final = 2  # of a broker's header with nothing before the exchange


def schema_of(columns: Sequence[str] = COLUMNS) -> pa.Schema:
    """Return the schema of these columns. OptionError for an unknown column."""
    for name in columns:
        if name not in TYPES:
            raise OptionError(name, name, list(TYPES))
    return pa.schema([pa.field(name, TYPES[name]) for name in columns])


SCHEMA: Final = schema_of()


class BatchMaker:
    """Makes the batches of one partition of a stream. All have the same `schema` object."""

    def __init__(self, queue: str, partition: int = 0, columns: Sequence[str] = COLUMNS) -> None:
        self.queue = queue
        self.schema = schema_of(columns)
        self._columns = tuple(columns)
        self._meta_columns = [name for name in self._columns if name in META]
        self._constant = {
            "queue": _texts([queue]), "partition": _numbers(np.full(1, partition, np.int32)),
        }  # fmt: skip
        self._only: tuple[bytes, dict[str, pa.Array]] = b"", {}  # the header that all had so far
        self._decoded: dict[bytes, dict[str, Any]] = {}

    def batches(self, frames: Frames) -> Iterator[pa.RecordBatch]:
        """Return the records in batches, in order."""
        buffer = pa.py_buffer(frames.data)
        starts = frames.rows["start"]
        at = 0
        while at < frames.count:
            most = int(starts[at]) + BYTES_MAX
            # Of the records within reach, those that begin by `most`: the last of them may end
            # behind it, so it is the first of the next batch.
            reach = starts[at : at + ROWS_MAX + 1]
            begun = int(np.searchsorted(reach, most, "right"))
            is_rest = begun == frames.count - at and begun <= ROWS_MAX and frames.end <= most
            to = at + begun if is_rest else at + max(begun - 1, 1)
            yield self._batch(frames, buffer, at, to)
            at = to

    def _batch(self, frames: Frames, buffer: pa.Buffer, at: int, to: int) -> pa.RecordBatch:
        rows = frames.rows[at:to]
        n = to - at
        starts = rows["start"].astype(np.int32) - np.int32(frames.data_start)
        low = starts + np.int32(FRAME_BYTES)
        high = low + rows["size"].astype(np.int32)
        made: dict[str, pa.Array] = {}
        if self._meta_columns:
            next_start = int(frames.rows["start"][to]) if to < frames.count else frames.end
            ends = np.append(starts[1:], np.int32(next_start - frames.data_start))
            made = self._meta(buffer, frames.data, high, ends)
        for name in self._columns:
            if name == "value":
                made[name] = _cut(buffer, low, high)
            elif name == "offset":
                first = frames.first_offset + at
                made[name] = _numbers(np.arange(first, first + n, dtype=np.int64))
            elif name == "timestamp":
                times = np.ascontiguousarray(rows["time"])
                made[name] = pa.Array.from_buffers(TYPES[name], n, [None, pa.py_buffer(times)])
            elif name in self._constant:
                made[name] = _first(self._constant, name, n)
        arrays = [made[name] for name in self._columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    # ---- the headers of messages ---------------------------------------------------------------

    def _meta(self, buffer: pa.Buffer, data: Any, low: Any, high: Any) -> dict[str, pa.Array]:
        """Return the columns of the headers, which are from `low` to `high`."""
        encoded = _cut(buffer, low, high).dictionary_encode()
        different = encoded.dictionary
        if len(different) > len(low) // 4 and set(self._meta_columns) <= set(ADDRESS):
            found = walked(np.frombuffer(data, np.uint8), low, high)
            if found is not None:
                return {name: _text(buffer, *found[name]) for name in self._meta_columns}
        metas = different.to_pylist()
        if len(metas) == 1:
            if not self._only[1] or self._only[0] != metas[0]:
                self._only = metas[0], self._values(metas)
            return {name: _first(self._only[1], name, len(low)) for name in self._meta_columns}
        values = self._values(metas)
        return {name: values[name].take(encoded.indices) for name in self._meta_columns}

    def _values(self, metas: list[bytes]) -> dict[str, pa.Array]:
        """Return the columns of these headers."""
        decoded = [self._decode(meta) for meta in metas]
        made: dict[str, pa.Array] = {}
        for name in self._meta_columns:
            values = [each[name] for each in decoded]
            made[name] = _texts(values) if name in ADDRESS else pa.array(values, TYPES[name])
        return made

    def _decode(self, meta: bytes) -> dict[str, Any]:
        found = self._decoded.get(meta)
        if found is None:
            if len(self._decoded) >= CACHED_HEADERS_MAX:
                self._decoded.clear()
            found = self._decoded[meta] = decode_meta(meta, self.queue)
        return found


def decode_meta(meta: bytes, queue: str) -> dict[str, Any]:
    """Return exchange, routing_key, message_id, headers and properties of one header. queue: the
    stream's name, the routing key of records that the embedded library wrote."""
    try:
        address, raw = _AMQP.parts(meta, queue)
        properties = BasicProperties.decode(raw)
    except (HeaderError, AMQPError, IndexError):
        return {"exchange": "", "routing_key": "", "message_id": None, "headers": [],
                "properties": []}  # fmt: skip
    exchange, key = split_address(address)
    others = [
        (name, _as_text(getattr(properties, name)))
        for name in PROPERTY_NAMES
        if name != "headers" and getattr(properties, name) is not None
    ]
    headers = properties.headers or {}
    return {
        "exchange": exchange.decode("utf-8", "replace"),
        "routing_key": key.decode("utf-8", "replace"),
        "message_id": dict(others).get("message_id"),
        "headers": [(_clean(name), _as_text(value)) for name, value in headers.items()],
        "properties": others,
    }


def walked(data: Any, low: Any, high: Any) -> dict[str, tuple[Any, Any, Any]] | None:
    """For each header, at once, where exchange, routing key and message id lie: from, to, and
    whether it is there (None: always). None if a header is not of the plain form.

    data: bytes; low, high: from where to where each header lies in it. Every position is checked
    against its header's end before it counts.
    """
    low, high = low.astype(np.int64), high.astype(np.int64)
    if len(low) == 0 or (high - low).min() < 5:
        return None
    has_died = data[low] == DIED_BYTES[0]
    has_attempts = has_died & ((data[low + 1] | data[low + 2]) != 0)
    if (((data[low] != _FORMAT) & ~has_died) | has_attempts).any():
        return None
    exchange_at = low + np.where(has_died, len(DIED_BYTES), 1)
    key_at = exchange_at + 1 + data[exchange_at]
    if (key_at >= high).any():
        return None
    props_at = key_at + 1 + data[key_at]
    if (props_at + 2 > high).any():
        return None
    flags = data[props_at].astype(np.int64) << 8 | data[props_at + 1]
    if (flags & 3).any():
        return None
    at = props_at + 2
    last = high - 1
    for bit in (15, 14, 13, 12, 11, 10, 9, 8):
        has = flags >> bit & 1
        if not has.any():
            continue
        if bit == 13:  # headers: a length of 4 bytes, and the table
            four = data[np.minimum(at[:, None] + np.arange(4), last[:, None])].astype(np.int64)
            at = at + has * (4 + (four @ np.array([1 << 24, 1 << 16, 1 << 8, 1])))
        elif bit in (12, 11):  # delivery mode, priority
            at = at + has
        else:
            at = at + has * (1 + data[np.minimum(at, last)])
        if (at > high).any():
            return None
    has_id = flags >> 7 & 1
    id_end = at + has_id * (1 + data[np.minimum(at, last)])
    if (id_end > high).any():
        return None
    return {
        "exchange": (exchange_at + 1, key_at, None),
        "routing_key": (key_at + 1, props_at, None),
        "message_id": (at + has_id, id_end, has_id.astype(bool)),
    }


# ---- pieces --------------------------------------------------------------------------------------


def _cut(buffer: pa.Buffer, low: Any, high: Any) -> pa.Array:
    """Return a binary array of the bytes [low, high) of the buffer for each pair; one copy."""
    n = len(low)
    bounds = np.empty(2 * n, np.int32)
    bounds[0::2] = low
    bounds[1::2] = high
    both = pa.Array.from_buffers(pa.binary(), 2 * n - 1, [None, pa.py_buffer(bounds), buffer])
    return both.take(_numbers(np.arange(0, 2 * n, 2, dtype=np.int64)))


def _text(buffer: pa.Buffer, low: Any, high: Any, is_there: Any) -> pa.Array:
    """Return a string array of the bytes [low, high); null for missing ones."""
    cut = _cut(buffer, low, high)
    try:
        made = cut.cast(pa.string())
    except pa.ArrowInvalid:  # not all of it is UTF-8
        made = _texts([value.decode("utf-8", "replace") for value in cut.to_pylist()])
    if is_there is None or is_there.all():
        return made
    bits = pa.py_buffer(np.packbits(is_there, bitorder="little"))
    return pa.Array.from_buffers(pa.string(), len(made), [bits, *made.buffers()[1:]])


# pa.array and pa.scalar import pandas, which costs each worker of Spark a quarter of a second of
# CPU. The columns that a reader gets by default are made without them.


def _numbers(values: Any) -> pa.Array:
    """Return an array of these int32 or int64, without a copy."""
    kind = pa.int32() if values.dtype == np.int32 else pa.int64()
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _texts(values: Sequence[str | None]) -> pa.Array:
    """Return a string array of these."""
    parts = [b"" if value is None else _clean(value).encode() for value in values]
    bounds = np.zeros(len(parts) + 1, np.int32)
    np.cumsum([len(part) for part in parts], out=bounds[1:])
    bits = np.packbits([value is not None for value in values], bitorder="little")
    buffers = [pa.py_buffer(bits), pa.py_buffer(bounds), pa.py_buffer(b"".join(parts))]
    return pa.Array.from_buffers(pa.string(), len(parts), buffers)


def _first(columns: dict[str, pa.Array], name: str, n: int) -> pa.Array:
    """Return n values of a column that has the same value in each row, and make it as long."""
    column = columns[name]
    if len(column) < n:
        column = columns[name] = pa.repeat(column[0], n)
    return column.slice(0, n)


def _clean(text: str) -> str:
    """Return the text with what UTF-8 cannot encode replaced."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _as_text(value: object) -> str | None:
    """Return a value of a table as text; see the head of this module."""
    if value is None or isinstance(value, str):
        return value if value is None else _clean(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            return base64.b64encode(value).decode("ascii")
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, dict | list):
        return json.dumps(value, default=_as_text, ensure_ascii=False)
    return str(value)
