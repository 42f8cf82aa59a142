"""Operation JSON: arguments and results of operations as JSON, for every way to call them.

JSON has no bytes: they are written as {"b64": "..."}, anywhere. Times are ISO 8601 in UTC; decimals
and other values of AMQP are text, and are not read back.

The name of a queue may be any bytes, kept as text with surrogates for bytes that are not UTF-8.
JSON for other programs (penstock.call, HTTP) must be valid Unicode: there, U+FFFD stands for such a
byte, and arguments with a lone surrogate are refused. Between Penstock's own programs (the control
socket, the links of processes) such text stays as it is (`is_exact`).

An operation's values are converted where they begin and where they end: by the caller and by the
process that answers. Programs between them pass the JSON on. A long answer is a JsonParts: each
row is text as soon as it is made, in slices, and the text is a JsonText for the programs between.
"""

import base64
import codecs
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final

from penstock.errors import SYNTAX_ERROR, ChannelError, valid_text

PART_BYTES: Final = 256 << 10
B64: Final = b'"b64"'


@dataclass(frozen=True, slots=True)
class JsonText:
    """A value as JSON, which is passed on as it is."""

    text: bytes


class JsonParts:
    """A long answer, written as compact JSON from its beginning to its end: what was written is
    text. is_exact: as of to_json. bytes: of the text so far.

        parts.begin(b"[")                parts.begin(b"{")
        parts.add(row)                   parts.add(value, "key")
        parts.end(b"]")                  parts.end(b"}")
    """

    def __init__(self, *, is_exact: bool) -> None:
        self.bytes: int = 0
        self._is_exact = is_exact
        self._parts: list[bytes] = []  # joined to some PART_BYTES each, so that none is moved often
        self._pieces: list[bytes] = []
        self._pieces_bytes: int = 0
        self._comma = b""

    def begin(self, bracket: bytes, key: str | None = None) -> None:
        """Begin a list or an object. key: of it in the object around it."""
        self._write(bracket, key)
        self._comma = b""

    def add(self, value: object, key: str | None = None) -> int:
        """Add a value, with its key in an object. Returns the bytes of its text."""
        before = self.bytes
        self._write(_text_of(value, is_exact=self._is_exact), key)
        return self.bytes - before

    def end(self, bracket: bytes) -> None:
        """End what was begun last."""
        self._comma = b""
        self._write(bracket, None)

    def add_text(self, text: str) -> None:
        """Add a part of a long text, which was begun with its quotation mark as its bracket."""
        self._comma = b""
        self._write(_text_of(text, is_exact=self._is_exact)[1:-1], None)

    def add_parts(self, value: "JsonParts") -> None:
        """Add a value that was written apart, which is forgotten there."""
        for part in value.take():
            self._write(part, None)
            self._comma = b""
        self._comma = b","

    def take(self) -> list[bytes]:
        """Return the text in parts that follow one another, at least one, and forget it."""
        self._join()
        parts, self._parts = self._parts, []
        return parts

    def _write(self, data: bytes, key: str | None) -> None:
        name = b"" if key is None else _encoded(valid_text(key)) + b":"
        piece = self._comma + name + data
        self._comma = b","
        self.bytes += len(piece)
        self._pieces.append(piece)
        self._pieces_bytes += len(piece)
        if self._pieces_bytes >= PART_BYTES:
            self._join()

    def _join(self) -> None:
        if self._pieces:
            self._parts.append(b"".join(self._pieces))
            self._pieces.clear()
            self._pieces_bytes = 0


def dumps(value: object, *, is_exact: bool = False) -> bytes:
    """Return arguments or a result as compact JSON in UTF-8. is_exact: as of to_json."""
    return b"".join(parts_of(value, is_exact=is_exact))


def parts_of(result: object, *, is_exact: bool = False) -> list[bytes]:
    """Return a result as `dumps` does, in parts that follow one another, at least one."""
    if isinstance(result, JsonParts):
        return result.take()
    return [_text_of(result, is_exact=is_exact)]


def read(data: bytes) -> Any:
    """Return the value of exact JSON, as a program of Penstock made it."""
    value = json.loads(data)
    # Most have no bytes, and to look at each value takes longer than to parse them.
    return from_json(value, is_exact=True) if B64 in data else value


def _text_of(value: object, *, is_exact: bool) -> bytes:
    """Return the text of `to_json`, which is not called for a value that is JSON already. orjson
    writes the same text as json if all is ASCII; what it refuses, such as large whole numbers and
    surrogates, json writes."""
    if _FAST is not None:
        with suppress(TypeError):
            found = _FAST(value)
            if found.isascii():
                return found
    text = _ENCODER.encode(value)
    if "\\ud" in text:  # a surrogate, perhaps one that stands for a byte
        return _encoded(to_json(value, is_exact=is_exact))
    return text.encode()


def _encoded(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def loads(data: bytes, *, is_exact: bool = False) -> dict[str, object]:
    """Return arguments; b"" is none. is_exact: as of from_json. Raises ChannelError 502 for invalid
    JSON or Unicode, or if it is not an object."""
    if not data:
        return {}
    try:
        value = json.loads(data)
        if is_exact and b"\\u" in data:
            check_names(value)
        found = from_json(value, is_exact=is_exact)
    except (ValueError, RecursionError) as error:
        raise ChannelError(SYNTAX_ERROR, f"arguments of an operation: {error}") from error
    if not isinstance(found, dict):
        raise ChannelError(SYNTAX_ERROR, "arguments of an operation: expected a JSON object")
    return found


def to_json(value: object, *, is_exact: bool = False) -> object:
    """Return the value as JSON has it. is_exact: keep text that stands for bytes."""
    if isinstance(value, bytes | bytearray | memoryview):
        return {"b64": base64.b64encode(value).decode("ascii")}
    if isinstance(value, dict):
        return {_name_of(key): to_json(inner, is_exact=is_exact) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_json(inner, is_exact=is_exact) for inner in value]
    if isinstance(value, str):
        return value if is_exact and is_name(value) else valid_text(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if value is None or isinstance(value, bool | int | float):
        return value
    return valid_text(str(value))


def _name_of(key: object) -> str:
    return key if isinstance(key, str) and key.isascii() else valid_text(str(key))


def from_json(value: object, *, is_exact: bool = False) -> object:
    """Return the value of JSON. is_exact: allow text that stands for bytes. Raises ValueError for
    bytes that are not base64, and for a lone surrogate that is not allowed."""
    if isinstance(value, dict):
        if not is_exact:
            for key in value:
                _check_text(key)
        if len(value) == 1 and isinstance(value.get("b64"), str):
            return base64.b64decode(value["b64"], validate=True)
        return {key: from_json(inner, is_exact=is_exact) for key, inner in value.items()}
    if isinstance(value, list):
        return [from_json(inner, is_exact=is_exact) for inner in value]
    if isinstance(value, str) and not is_exact:
        _check_text(value)
    return value


def check_names(value: object) -> None:
    """Raise ValueError if a text in this value of JSON has a surrogate that stands for no byte:
    JSON can write "\\ud800", but no name, file or log line can have it."""
    for text in texts_in(value):
        if not is_name(text):
            raise ValueError(f"a text has half of a surrogate pair: {text[:40]!r}")


def texts_in(value: object) -> Iterator[str]:
    """Yield all texts in a value of JSON, names of members too, however deep it is."""
    values = [value]
    while values:
        one = values.pop()
        if isinstance(one, dict):
            values += one
            values += one.values()
        elif isinstance(one, list):
            values += one
        elif isinstance(one, str):
            yield one


def is_name(text: str) -> bool:
    """Return whether the text stands for bytes: whether its surrogates are those of decoding."""
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def _check_text(text: str) -> None:
    if not text.isascii():
        text.encode()  # UnicodeEncodeError is a ValueError


def _fast_encoder() -> Callable[[object], bytes] | None:
    """Return orjson's, None where only the source is: a row takes it a tenth of json's time."""
    try:
        import orjson
    except ImportError:
        return None
    options = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS
    return partial(orjson.dumps, default=to_json, option=options)


_FAST: Final = _fast_encoder()
_ENCODER: Final = json.JSONEncoder(separators=(",", ":"), default=to_json)


# ---- messages as RabbitMQ's HTTP API has them ----------------------------------------------------


def payload(body: bytes, truncate: int | None, encoding: str) -> dict[str, object]:
    """Return text if it is UTF-8 without NUL, which some clients cannot show; otherwise base64."""
    cut = body[:truncate]
    if encoding == "auto" and b"\0" not in cut:
        try:
            text, _ = codecs.utf_8_decode(cut, "strict", len(cut) == len(body))
            return {"payload": text, "payload_encoding": "string"}
        except UnicodeDecodeError:
            pass
    return {"payload": base64.b64encode(cut).decode(), "payload_encoding": "base64"}


def in_seconds(value: object) -> object:
    """Return a value of properties with each time as RabbitMQ shows it: seconds since 1970."""
    if isinstance(value, dict):
        return {key: in_seconds(one) for key, one in value.items()}
    if isinstance(value, list):
        return [in_seconds(one) for one in value]
    return int(value.timestamp()) if isinstance(value, datetime) else value
