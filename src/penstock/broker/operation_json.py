"""Operation JSON: arguments and results of operations as they travel by penstock.call.

JSON has no bytes: they are {"b64": "..."}, anywhere. Times are ISO 8601 in UTC, decimals text, and
other AMQP types are text too; nobody reads those back. A text of a result that is not Unicode (the
name of a queue may be any bytes) has U+FFFD for its bad bytes; arguments with a lone surrogate are
refused.

A module of its own, because the HTTP process imports it without the broker's core.
"""

import base64
import json
from datetime import datetime

from penstock.codec.spec import SYNTAX_ERROR
from penstock.errors import ChannelError, valid_text


def dumps(result: object) -> bytes:
    """Return a result as compact JSON in UTF-8."""
    return json.dumps(to_json(result), separators=(",", ":")).encode()


def loads(data: bytes) -> dict[str, object]:
    """Return arguments; {} for b"". ChannelError 502 for what is not a JSON object, or not
    Unicode."""
    if not data:
        return {}
    try:
        found = from_json(json.loads(data))
    except (ValueError, RecursionError) as error:
        raise ChannelError(SYNTAX_ERROR, f"arguments of an operation: {error}") from error
    if not isinstance(found, dict):
        raise ChannelError(SYNTAX_ERROR, "arguments of an operation: expected a JSON object")
    return found


def to_json(value: object) -> object:
    """Return the value with types that JSON has."""
    if isinstance(value, bytes | bytearray | memoryview):
        return {"b64": base64.b64encode(value).decode("ascii")}
    if isinstance(value, dict):
        return {valid_text(str(key)): to_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_json(inner) for inner in value]
    if isinstance(value, str):
        return valid_text(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if value is None or isinstance(value, bool | int | float):
        return value
    return valid_text(str(value))


def from_json(value: object) -> object:
    """Return the value with its bytes, as far as possible. ValueError: invalid base64, or a text
    with a lone surrogate."""
    if isinstance(value, dict):
        for key in value:
            _check_text(key)
        if len(value) == 1 and isinstance(value.get("b64"), str):
            return base64.b64decode(value["b64"], validate=True)
        return {key: from_json(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [from_json(inner) for inner in value]
    if isinstance(value, str):
        _check_text(value)
    return value


def _check_text(text: str) -> None:
    if not text.isascii():
        text.encode()  # UnicodeEncodeError is a ValueError
