"""OperationArgs: the arguments of an operation, checked: there, of the right type, in range.

Operators' commands and the remote box call operations with a dict that came as JSON. Each argument
is asked for by name and type; `done` then refuses what nobody asked for, so a misspelt name is an
error and not a default. Everything that is wrong is a ChannelError 406 that names the operation and
the argument, what was given and what was expected.

Not here: what the operations do (operations.py).
"""

import difflib
from collections.abc import Callable
from typing import Final

from penstock.codec.fields import ARGUMENTS_BYTES_MAX, decode_table, encode_table
from penstock.errors import PRECONDITION_FAILED, ChannelError

Reply = Callable[[object], None]  # takes the result of an operation, or its AMQPError

SHOWN_CHARS: Final = 80
MISSING: Final = "\0missing"
NAME_BYTES_MAX: Final = 255


def refused(text: str) -> ChannelError:
    """406."""
    return ChannelError(PRECONDITION_FAILED, text)


class OperationArgs:
    """Of one call of the operation `op`."""

    def __init__(self, op: str, args: dict[str, object]) -> None:
        self.op: str = op
        self._args: dict[str, object] = args
        self._known: set[str] = set()

    def text(self, name: str, default: str = MISSING) -> str:
        """A text; without a default it must be there."""
        value = self._take(name, default)
        if not isinstance(value, str):
            raise self._wrong(name, value, "a text")
        try:
            value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise self._wrong(name, value, "a text without lone surrogates") from None
        return value

    def name(self, name: str, default: str = MISSING) -> str:
        """A text that AMQP can carry as a short string."""
        value = self.text(name, default)
        if len(value.encode("utf-8", "surrogateescape")) > NAME_BYTES_MAX:
            raise self._wrong(name, value, f"a text of at most {NAME_BYTES_MAX} bytes")
        return value

    def name_or_none(self, name: str) -> str | None:
        """The same, or None; None if it is missing."""
        return None if self._take(name, None) is None else self.name(name)

    def whole(self, name: str, default: int | None, low: int, high: int) -> int:
        """A whole number from low to high; without a default it must be there."""
        value = self._take(name, MISSING if default is None else default)
        if type(value) is not int or not low <= value <= high:
            raise self._wrong(name, value, f"a whole number from {low} to {high}")
        return value

    def whole_or_none(self, name: str) -> int | None:
        """A whole number, or None; None if it is missing."""
        value = self._take(name, None)
        if value is not None and type(value) is not int:
            raise self._wrong(name, value, "a whole number, or null")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false."""
        value = self._take(name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, value, "true or false")
        return value

    def table(self, name: str) -> dict[str, object]:
        """A dict; empty if it is missing."""
        value = self._take(name, None)
        if value is None:
            return {}
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            raise self._wrong(name, value, "an object")
        return value

    def field_table(self, name: str) -> dict[str, object]:
        """A dict that AMQP can carry as a field table, with the values as AMQP would bring them."""
        value = self.table(name)
        try:
            data = encode_table(value)
            if len(data) - 4 > ARGUMENTS_BYTES_MAX:
                expected = f"a table of at most {ARGUMENTS_BYTES_MAX} bytes"
                raise self._wrong(name, value, f"{expected}, encoded as AMQP does")
            return decode_table(data)[0]
        except (ValueError, OverflowError, TypeError, RecursionError) as error:
            raise self._wrong(name, value, f"what AMQP can carry ({error})"[:300]) from error

    def bodies(self, name: str) -> list[bytes]:
        """A list of bytes; texts stand for their UTF-8."""
        value = self._take(name, MISSING)
        if not isinstance(value, list):
            raise self._wrong(name, value, "a list of texts or bytes")
        found: list[bytes] = []
        for body in value:
            if isinstance(body, str):
                found.append(body.encode("utf-8", "surrogateescape"))
            elif isinstance(body, bytes):
                found.append(body)
            else:
                raise self._wrong(name, body, "a list of texts or bytes")
        return found

    def objects(self, name: str) -> list[dict[str, object]]:
        """A list of dicts."""
        value = self._take(name, MISSING)
        if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
            raise self._wrong(name, value, "a list of objects")
        return value

    def pairs(self, name: str) -> list[tuple[str, str]]:
        """A list of pairs of texts; empty if it is missing or None."""
        value = self._take(name, None)
        found: list[tuple[str, str]] = []
        for one in value if isinstance(value, list) else ():
            match one:
                case [str(first), str(second)]:
                    found.append((first, second))
        if value is not None and (not isinstance(value, list) or len(found) != len(value)):
            raise self._wrong(name, value, "a list of pairs of texts")
        return found

    def numbers(self, name: str) -> list[int]:
        """A list of whole numbers."""
        value = self._take(name, MISSING)
        if not isinstance(value, list) or not all(type(one) is int for one in value):
            raise self._wrong(name, value, "a list of whole numbers")
        return value

    def done(self) -> None:
        """Nothing else may be there."""
        for name in self._args:
            if name not in self._known:
                near = difflib.get_close_matches(name, self._known, n=1)
                hint = f", did you mean {near[0]!r}?" if near else ""
                raise refused(f"{self.op}: unknown argument {name!r}{hint}")

    def _take(self, name: str, default: object) -> object:
        self._known.add(name)
        value = self._args.get(name, default)
        if value is MISSING:
            raise refused(f"{self.op}: argument {name!r} is missing")
        return value

    def _wrong(self, name: str, given: object, expected: str) -> ChannelError:
        shown = repr(given)
        if len(shown) > SHOWN_CHARS:
            shown = shown[:SHOWN_CHARS] + "..."
        return refused(f"{self.op}: argument {name!r}: given {shown}, expected {expected}")
