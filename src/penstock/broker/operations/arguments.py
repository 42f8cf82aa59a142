"""Arguments of operations: a table of what each may be, and the values of one call, checked.

An operation lists its arguments with `text`, `name`, `whole` and the other functions below. The
values of a call come as a dict, as JSON has them. `Arguments` checks all of them before the
operation begins: each is there or has a default, has its type and is in range, and none is unknown,
so a misspelt name is an error and not a default.

Every error is a ChannelError 406 that names the operation and the argument, what was given and what
was expected.
"""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock import options
from penstock.broker.refusals import precondition_failed
from penstock.codec.fields import ARGUMENTS_BYTES_MAX, decode_table, encode_table
from penstock.errors import ChannelError
from penstock.operation_json import is_name
from penstock.options import Check, Kind, WrongValueError

SHOWN_CHARS: Final = 80
REQUIRED: Final = "\0required"
NAME_BYTES_MAX: Final = 255
U63_MAX: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of an operation. default: REQUIRED if it must be given."""

    name: str
    kind: Kind
    default: object = REQUIRED


def text(name: str, default: str = REQUIRED) -> Argument:
    """A text, which can be encoded as UTF-8 (with surrogateescape)."""
    return Argument(name, Kind("text", _text), default)


def short_text(name: str, default: str = REQUIRED) -> Argument:
    """A text of at most 255 bytes, which AMQP can carry as a short string: a name."""
    return Argument(name, Kind("name", _name), default)


def short_text_or_null(name: str) -> Argument:
    """As `short_text`, or null, which is the default."""
    return Argument(name, Kind("name or null", _or_null(_name)), None)


def matching_text(name: str, expected: str, is_right: Callable[[str], bool]) -> Argument:
    """A text for which `is_right` returns True. expected: what that is, for errors."""

    def check(value: object) -> object:
        found = _text(value)
        if not is_right(found):
            raise WrongValueError(expected)
        return found

    return Argument(name, Kind("text", check))


def whole(name: str, low: int, high: int, default: int | None = None) -> Argument:
    """A whole number from low to high. It must be given if `default` is None."""
    given = REQUIRED if default is None else default
    return Argument(name, options.whole(low, high), given)


def whole_or_null(name: str, low: int = -U63_MAX - 1, high: int = U63_MAX) -> Argument:
    """A whole number from low to high, or null, which is the default."""
    is_any = low < 0 and high == U63_MAX
    expected = f"a whole number{'' if is_any else f' from {low} to {high}'}, or null"
    kind = options.whole(low, high, expected)
    return Argument(name, Kind("whole number or null", _or_null(kind.check)), None)


def flag(name: str, default: bool = False) -> Argument:
    """True or false."""
    return Argument(name, options.flag(), default)


def table(name: str) -> Argument:
    """An object; empty if it is missing or null."""
    return Argument(name, Kind("object", _table), None)


def field_table(name: str) -> Argument:
    """An object that AMQP can carry as a field table; the values are as AMQP would bring them."""
    return Argument(name, Kind("object", _field_table), None)


def bodies(name: str) -> Argument:
    """A list of bytes; a text stands for its UTF-8."""
    return Argument(name, Kind("list of texts or bytes", _bodies))


def objects(name: str) -> Argument:
    """A list of objects, or the same packed into bytes."""

    def check(value: object) -> object:
        if isinstance(value, bytes):
            return value
        if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
            raise WrongValueError("a list of objects")
        return value

    return Argument(name, Kind("list of objects", check))


def pairs(name: str) -> Argument:
    """A list of pairs of texts, or the same packed into bytes; empty if it is missing or null."""

    def check(value: object) -> object:
        return value if isinstance(value, bytes) else _pairs(value)

    return Argument(name, Kind("list of pairs of texts", check), None)


def numbers(name: str) -> Argument:
    """A list of whole numbers."""

    def check(value: object) -> object:
        if not isinstance(value, list) or not all(type(one) is int for one in value):
            raise WrongValueError("a list of whole numbers")
        return value

    return Argument(name, Kind("list of whole numbers", check))


# ---- one call ------------------------------------------------------------------------------------


class Arguments:
    """The checked values of one call of the operation `op`. ChannelError 406 if one is wrong.

    Each getter returns the value of the argument of that name. An AssertionError means that the
    operation's table gives the argument another type.
    """

    def __init__(
        self, op: str, expected: tuple[Argument, ...], given: Mapping[str, object]
    ) -> None:
        self.op: str = op
        self._values: dict[str, object] = {}
        for argument in expected:
            value = given.get(argument.name, argument.default)
            if value is REQUIRED:
                raise self.wrong(argument.name, "is missing")
            try:
                self._values[argument.name] = argument.kind.check(value)
            except WrongValueError as error:
                part = error.given[0] if error.given else value
                text = f"given {_shown(part)}, expected {error.expected}"
                raise self.wrong(argument.name, text) from error
        for name in given:
            if name not in self._values:
                near = difflib.get_close_matches(name, self._values, n=1)
                hint = f", did you mean {near[0]!r}?" if near else ""
                raise precondition_failed(f"{op}: unknown argument {name!r}{hint}")

    def wrong(self, name: str, text: str) -> ChannelError:
        """Return the error 406 for this argument. text: what was given and what was expected."""
        separator = " " if text.startswith("is ") else ": "
        return precondition_failed(f"{self.op}: argument {name!r}{separator}{text}")

    def text(self, name: str) -> str:
        """Return a text or a name."""
        value = self._values[name]
        assert isinstance(value, str)
        return value

    def text_or_none(self, name: str) -> str | None:
        """Return a name, or None for null."""
        value = self._values[name]
        assert value is None or isinstance(value, str)
        return value

    def whole(self, name: str) -> int:
        """Return a whole number."""
        value = self._values[name]
        assert isinstance(value, int)
        return value

    def whole_or_none(self, name: str) -> int | None:
        """Return a whole number, or None for null."""
        value = self._values[name]
        assert value is None or isinstance(value, int)
        return value

    def flag(self, name: str) -> bool:
        """Return a bool."""
        value = self._values[name]
        assert isinstance(value, bool)
        return value

    def table(self, name: str) -> dict[str, object]:
        """Return an object as a dict."""
        value = self._values[name]
        assert isinstance(value, dict)
        return value

    def bodies(self, name: str) -> list[bytes]:
        """Return a list of bytes."""
        return self._list(name)

    def objects(self, name: str) -> list[dict[str, object]]:
        """Return a list of dicts; [] if it is packed."""
        return [] if isinstance(self._values[name], bytes) else self._list(name)

    def pairs(self, name: str) -> list[tuple[str, str]]:
        """Return a list of pairs of texts; [] if it is packed."""
        return [] if isinstance(self._values[name], bytes) else self._list(name)

    def packed(self, name: str) -> bytes:
        """Return a list that is packed into bytes; b"" if it is not."""
        value = self._values[name]
        return value if isinstance(value, bytes) else b""

    def numbers(self, name: str) -> list[int]:
        """Return a list of whole numbers."""
        return self._list(name)

    def _list(self, name: str) -> list:  # type: ignore[type-arg]
        value = self._values[name]
        assert isinstance(value, list)
        return value


# ---- checks --------------------------------------------------------------------------------------


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise WrongValueError("a text")
    if not is_name(value):
        raise WrongValueError("a text without lone surrogates")
    return value


def _name(value: object) -> str:
    found = _text(value)
    if len(found.encode("utf-8", "surrogateescape")) > NAME_BYTES_MAX:
        raise WrongValueError(f"a text of at most {NAME_BYTES_MAX} bytes")
    return found


def _or_null(check: Check) -> Check:
    def checked(value: object) -> Any:
        return None if value is None else check(value)

    return checked


def _table(value: object) -> object:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise WrongValueError("an object")
    return value


def _field_table(value: object) -> object:
    found = _table(value)
    assert isinstance(found, dict)
    try:
        data = encode_table(found)
        if len(data) - 4 <= ARGUMENTS_BYTES_MAX:
            return decode_table(data)[0]
    except (ValueError, OverflowError, TypeError, RecursionError) as error:
        raise WrongValueError(f"what AMQP can carry ({error})"[:300]) from error
    raise WrongValueError(f"a table of at most {ARGUMENTS_BYTES_MAX} bytes, encoded as AMQP does")


def _bodies(value: object) -> object:
    if not isinstance(value, list):
        raise WrongValueError("a list of texts or bytes")
    found: list[bytes] = []
    for body in value:
        if isinstance(body, str):
            found.append(body.encode("utf-8", "surrogateescape"))
        elif isinstance(body, bytes):
            found.append(body)
        else:
            raise WrongValueError("a list of texts or bytes", (body,))
    return found


def _pairs(value: object) -> object:
    found: list[tuple[str, str]] = []
    for one in value if isinstance(value, list) else ():
        match one:
            case [str(first), str(second)]:
                found.append((first, second))
    if value is not None and (not isinstance(value, list) or len(found) != len(value)):
        raise WrongValueError("a list of pairs of texts")
    return found


def _shown(given: object) -> str:
    shown = repr(given)
    return shown if len(shown) <= SHOWN_CHARS else shown[:SHOWN_CHARS] + "..."
