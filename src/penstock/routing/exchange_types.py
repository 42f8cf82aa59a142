"""Exchange types: which bindings of an exchange a message's keys and headers select.

A destination is a target: "q" or "e" and the name, because a queue and an exchange may have the
same name. Each type keeps its bindings in the form in which it finds them:

    direct              key -> targets, one look-up
    fanout              targets; the key is ignored
    topic               a TopicTrie
    headers             the bindings' arguments, compared one by one
    x-delayed-message   the type that x-delayed-type names; the delay is the vhost's

A message may have several keys (its own, and those of its CC and BCC headers); a target is selected
if any of them selects it. Every type must find exactly what the present bindings say, in whatever
order and however often they were bound and unbound.

Headers are compared as in RabbitMQ: numbers and times by value, whatever their types (1 equals 1.0
and the first second of 1970, but not true), a text equals the same bytes, and an argument without a
value requires only that the header exists. Arguments that begin with "x-" are ignored, except under
all-with-x and any-with-x, where only x-match is. Without conditions `all` selects every message and
`any` none.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from hashlib import blake2b
from typing import Final

from penstock.codec.fields import decode_table, encode_table
from penstock.errors import COMMAND_INVALID, PRECONDITION_FAILED, AMQPConnectionError, ChannelError
from penstock.native import mypyc_attr
from penstock.routing.topic_trie import TopicTrie

DIRECT: Final = "direct"
FANOUT: Final = "fanout"
TOPIC: Final = "topic"
HEADERS: Final = "headers"
DELAYED: Final = "x-delayed-message"

MATCHES: Final = ("all", "any", "all-with-x", "any-with-x")

DIGEST_BYTES: Final = 32
BINDING_BYTES: Final = 1400  # measured: a durable binding without arguments, in all its places
ENTRY_BYTES: Final = 110  # measured: one argument, as a headers exchange holds its condition


class Binding:
    """A binding from an exchange to a destination, for a key. Equal `identity`: the same binding.

    kind: "q" for a queue, "e" for an exchange. encoded: the arguments as an AMQP table, b"" for
    none; a table of Python objects takes up to 80 times as much. held_bytes: its RAM, about. Raises
    ValueError or TypeError if AMQP has no type for an argument.
    """

    __slots__ = ("destination", "encoded", "held_bytes", "identity", "key", "kind", "source",
                 "target")  # fmt: skip

    def __init__(
        self, source: str, kind: str, destination: str, key: str, arguments: dict[str, object]
    ) -> None:
        assert kind in ("q", "e"), kind
        self.source: str = source
        self.kind: str = kind
        self.destination: str = destination
        self.key: str = key
        self.encoded: bytes = encode_table(arguments) if arguments else b""
        self.target: str = kind + destination
        self.identity: object = (source, self.target, key, _identity_of(arguments))
        self.held_bytes: int = BINDING_BYTES + 2 * len(self.encoded) + ENTRY_BYTES * len(arguments)

    @property
    def arguments(self) -> dict[str, object]:
        """The arguments, decoded at each call."""
        return decode_table(self.encoded)[0] if self.encoded else {}


@mypyc_attr(allow_interpreted_subclasses=True)
class ExchangeType(ABC):
    """The bindings of one exchange. reads_headers: whether `select` uses the headers."""

    reads_headers: bool = False

    @abstractmethod
    def bind(self, binding: Binding) -> None:
        """Add a binding that is not bound yet. Raises ChannelError 406 for invalid arguments."""

    @abstractmethod
    def unbind(self, binding: Binding) -> None:
        """Remove a binding that is bound."""

    @abstractmethod
    def select(
        self, keys: list[str], headers: dict[str, object] | None, found: dict[str, int]
    ) -> None:
        """Add the selected targets to `found`. Its values have no meaning; its order is kept."""


class DirectExchange(ExchangeType):
    """A binding selects messages with its key."""

    def __init__(self) -> None:
        self._targets: dict[str, dict[str, int]] = {}

    def bind(self, binding: Binding) -> None:
        _count_up(self._targets.setdefault(binding.key, {}), binding.target)

    def unbind(self, binding: Binding) -> None:
        targets = self._targets[binding.key]
        _count_down(targets, binding.target)
        if not targets:
            del self._targets[binding.key]

    def select(
        self, keys: list[str], headers: dict[str, object] | None, found: dict[str, int]
    ) -> None:
        for key in keys:
            targets = self._targets.get(key)
            if targets is not None:
                found.update(targets)


class FanoutExchange(ExchangeType):
    """Every binding selects every message."""

    def __init__(self) -> None:
        self._targets: dict[str, int] = {}

    def bind(self, binding: Binding) -> None:
        _count_up(self._targets, binding.target)

    def unbind(self, binding: Binding) -> None:
        _count_down(self._targets, binding.target)

    def select(
        self, keys: list[str], headers: dict[str, object] | None, found: dict[str, int]
    ) -> None:
        found.update(self._targets)


class TopicExchange(ExchangeType):
    """A binding selects messages whose key matches its pattern of words."""

    def __init__(self) -> None:
        self._trie = TopicTrie()

    def bind(self, binding: Binding) -> None:
        self._trie.add(binding.key, binding.target)

    def unbind(self, binding: Binding) -> None:
        was_there = self._trie.remove(binding.key, binding.target)
        assert was_there

    def select(
        self, keys: list[str], headers: dict[str, object] | None, found: dict[str, int]
    ) -> None:
        for key in keys:
            self._trie.match_into(key, found)


class HeadersCondition:
    """The condition on headers that a binding's arguments express."""

    __slots__ = ("is_any", "target", "wanted")

    def __init__(self, binding: Binding) -> None:
        arguments = binding.arguments
        match = match_of(arguments)
        has_x = match.endswith("-with-x")
        self.target: str = binding.target
        self.is_any: bool = match.startswith("any")
        # name -> `header_value` of the value, None if the header only has to exist
        self.wanted: dict[str, object] = {
            name: None if value is None else header_value(value)
            for name, value in arguments.items()
            if name != "x-match" and (has_x or not name.startswith("x-"))
        }

    def holds(self, given: dict[str, object]) -> bool:
        """Return whether the headers fulfil it. given: name -> `header_value` of each header."""
        for name, value in self.wanted.items():
            is_equal = name in given and (value is None or given[name] == value)
            if is_equal == self.is_any:
                return self.is_any
        return not self.is_any


class HeadersExchange(ExchangeType):
    """A binding selects messages by a condition on headers; the key is ignored."""

    reads_headers = True

    def __init__(self) -> None:
        self._conditions: dict[object, HeadersCondition] = {}

    def bind(self, binding: Binding) -> None:
        self._conditions[binding.identity] = HeadersCondition(binding)

    def unbind(self, binding: Binding) -> None:
        del self._conditions[binding.identity]

    def select(
        self, keys: list[str], headers: dict[str, object] | None, found: dict[str, int]
    ) -> None:
        given = {name: header_value(value) for name, value in (headers or {}).items()}
        for condition in self._conditions.values():
            if condition.target not in found and condition.holds(given):
                found[condition.target] = 1


# A new type is added here, and nowhere else.
_TYPES: Final[dict[str, Callable[[], ExchangeType]]] = {
    DIRECT: DirectExchange,
    FANOUT: FanoutExchange,
    TOPIC: TopicExchange,
    HEADERS: HeadersExchange,
}
TYPES: Final = (*_TYPES, DELAYED)


def make_exchange_type(name: str, arguments: dict[str, object]) -> ExchangeType:
    """Return the type of this name, without bindings.

    Raises AMQPConnectionError 503 for an unknown type, ChannelError 406 for a wrong x-delayed-type.
    """
    if name == DELAYED:
        inner = arguments.get("x-delayed-type")
        if not isinstance(inner, str) or inner not in _TYPES:
            text = "Invalid argument, 'x-delayed-type' must be an existing exchange type"
            raise ChannelError(PRECONDITION_FAILED, text)
        name = inner
    make = _TYPES.get(name)
    if make is None:
        raise AMQPConnectionError(COMMAND_INVALID, f"unknown exchange type '{name}'")
    return make()


def match_of(arguments: dict[str, object]) -> str:
    """Return the x-match of a binding, "all" by default. Raises ChannelError 406 for another
    value."""
    match = arguments.get("x-match", "all")
    if not isinstance(match, str):
        text = f"Invalid x-match field type {type(match).__name__}; expected longstr"
        raise ChannelError(PRECONDITION_FAILED, text)
    if match not in MATCHES:
        expected = "all, any, all-with-x, or any-with-x"
        text = f"Invalid x-match field value {match}; expected {expected}"
        raise ChannelError(PRECONDITION_FAILED, text)
    return match


def comparable(value: object) -> object:
    """Return a hashable form of an AMQP value, equal exactly for equal values of one kind."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, dict):
        return ("table", frozenset((name, comparable(inner)) for name, inner in value.items()))
    if isinstance(value, list | tuple):
        return ("array", tuple(comparable(inner) for inner in value))
    if isinstance(value, bytearray):
        value = bytes(value)
    return (type(value).__name__, value)


def _identity_of(arguments: dict[str, object]) -> bytes:
    """Return bytes that are equal exactly for arguments with equal `comparable` values."""
    if not arguments:
        return b""
    text = _canonical(arguments)
    return text if len(text) <= DIGEST_BYTES else blake2b(text, digest_size=DIGEST_BYTES).digest()


def _canonical(value: object) -> bytes:
    """Return the value as bytes: its kind, the length, the value."""
    if isinstance(value, dict):
        parts = [
            _canonical(name) + _canonical(value[name]) for name in sorted(value, key=_name_bytes)
        ]
        return _framed(b"table", b"".join(parts))
    if isinstance(value, list | tuple):
        return _framed(b"array", b"".join([_canonical(inner) for inner in value]))
    if isinstance(value, str):
        return _framed(b"str", _name_bytes(value))
    if isinstance(value, bytes | bytearray):
        return _framed(b"bytes", bytes(value))
    if isinstance(value, Decimal):
        value = value.normalize()
    elif isinstance(value, float) and value == 0.0:
        value = 0.0  # -0.0 equals it
    elif isinstance(value, datetime):
        value = value.astimezone(UTC)
    return _framed(type(value).__name__.encode(), str(value).encode())


def _framed(kind: bytes, data: bytes) -> bytes:
    return b"%b:%d:%b" % (kind, len(data), data)


def _name_bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def header_value(value: object) -> object:
    """Return the form in which a header and a condition are compared: numbers and times by value,
    text by its bytes, others as `comparable`."""
    if isinstance(value, str):
        return ("text", value.encode("utf-8", "surrogateescape"))
    if isinstance(value, bytes | bytearray):
        return ("text", bytes(value))
    if isinstance(value, datetime):
        return ("number", int(value.timestamp()))
    if isinstance(value, int | float) and not isinstance(value, bool):
        return ("number", value)
    return comparable(value)


def _count_up(counts: dict[str, int], target: str) -> None:
    counts[target] = counts.get(target, 0) + 1


def _count_down(counts: dict[str, int], target: str) -> None:
    if counts[target] == 1:
        del counts[target]
    else:
        counts[target] -= 1
