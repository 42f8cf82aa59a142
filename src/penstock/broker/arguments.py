"""x-arguments of queues: which there are, what they may be, when two declarations are the same.

One table has for each known argument which AMQP types and values it takes, and which types of queue
have it. Arguments that are not in it are stored and otherwise ignored. Most of those in it are
options of QueueOptions (penstock.queues.queue_options): their ranges come from there, and it
decides on values that contradict each other. The rest is the broker's: x-expires,
x-single-active-consumer, and the queue types of RabbitMQ. There are two here: a quorum queue is
declared by people who want a durable, replicated queue, and on one machine that is a durable
classic queue; streams (broker_stream.py) have options of their own
(penstock.queues.stream_options). As in RabbitMQ an argument that is known, but not for that type of
queue, is refused; x-max-length and x-partitions are ours for streams, x-delivery-limit for classic
queues.

Declaring again: every known argument must be equal to what it was, as RabbitMQ compares them:
numbers of one class, whole or fractional, by value, a text and the same bytes as one. Unknown
arguments may differ. A classic queue may name its type or not.

Stored form, in the queue's record of the topology: a JSON object with the arguments as they were
given, keys sorted, b"" for none. The embedded library writes its options in the same form, so
either reads what the other wrote. A value that JSON has no type for (bytes, times, decimals) is
stored as {"$amqp": base64 of its AMQP encoding, with its letter}.
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Final

from penstock.codec.fields import decode_value, encode_value
from penstock.errors import PRECONDITION_FAILED, ChannelError, OptionError
from penstock.queues.queue_options import (
    BACKING,
    COUNT_MAX,
    MAX_COUNT,
    MAX_SIZE,
    MS_MAX,
    NUMBER_RANGES,
    OVERFLOWS,
    POLICIES,
    POLICY_TYPE,
    POLICY_TYPES,
    QUEUE_MODES,
    QueueOptions,
)
from penstock.queues.stream_options import (
    AGE_EXPECTED,
    MAX_AGE,
    MAX_BYTES,
    MAX_RECORDS,
    PAGE_BYTES,
    PARTITIONS,
    PARTITIONS_MAX,
    QUEUE_TYPE,
    SEGMENT_BYTES_MAX,
    STREAM,
    StreamOptions,
    age_s,
)
from penstock.routing.exchange_types import comparable

EXPIRES: Final = "x-expires"
DEAD_LETTER_EXCHANGE: Final = "x-dead-letter-exchange"
DEAD_LETTER_ROUTING_KEY: Final = "x-dead-letter-routing-key"
CLASSIC: Final = "classic"
QUORUM: Final = "quorum"
LEADER_LOCATOR: Final = "x-queue-leader-locator"
CLUSTER_SIZE: Final = "x-initial-cluster-size"
TAG: Final = "$amqp"

INT_BITS: Final = 31  # of a signedint, the type that clients choose for small numbers


@dataclass(frozen=True, slots=True)
class Argument:
    """What one argument may be. kind: int, str or bool; low, high: of a number; choices: of a text,
    () for any; is_age: a text such as "7D"; queue_types: the types of queue that have it."""

    kind: type
    low: int = 0
    high: int = COUNT_MAX
    choices: tuple[str, ...] = ()
    is_age: bool = False
    queue_types: tuple[str, ...] = (CLASSIC, QUORUM)

    def allows(self, value: object) -> bool:
        """Return whether the argument may have this value."""
        if type(value) is not self.kind:
            return False
        if isinstance(value, int):
            return self.low <= value <= self.high
        if self.is_age:
            return age_s(str(value)) is not None
        return not self.choices or value in self.choices

    def expected(self) -> str:
        """Return in words which values it may have."""
        if self.kind is int:
            return f"a whole number from {self.low} to {self.high}"
        if self.kind is bool:
            return "a boolean"
        if self.is_age:
            return AGE_EXPECTED
        if not self.choices:
            return "a text (longstr)"
        return ", ".join(self.choices[:-1]) + " or " + self.choices[-1]


_CLASSIC: Final = (CLASSIC,)
_QUORUM: Final = (QUORUM,)
_STREAM: Final = (STREAM,)
_ALL: Final = (CLASSIC, QUORUM, STREAM)


def _number(name: str, queue_types: tuple[str, ...] = (CLASSIC, QUORUM)) -> Argument:
    """Return an argument with the range that QueueOptions has for it."""
    low, high = NUMBER_RANGES[name]
    return Argument(int, low, high, queue_types=queue_types)


_TEXT: Final = Argument(str)
_LOCATORS: Final = ("client-local", "balanced", "least-leaders", "random")

# In the order in which they are checked and compared, which is RabbitMQ's; then ours.
ARGUMENTS: Final[dict[str, Argument]] = {
    QUEUE_TYPE: Argument(str, choices=(CLASSIC, QUORUM, STREAM), queue_types=_ALL),
    EXPIRES: Argument(int, low=1, high=MS_MAX),
    "x-message-ttl": _number("x-message-ttl"),
    DEAD_LETTER_EXCHANGE: _TEXT,
    DEAD_LETTER_ROUTING_KEY: _TEXT,
    "x-dead-letter-strategy": Argument(
        str, choices=("at-most-once", "at-least-once"), queue_types=_QUORUM
    ),
    MAX_RECORDS: _number(MAX_RECORDS, _ALL),
    MAX_BYTES: _number(MAX_BYTES, _ALL),
    "x-max-in-memory-length": Argument(int, queue_types=_QUORUM),
    "x-max-in-memory-bytes": Argument(int, queue_types=_QUORUM),
    "x-max-priority": _number("x-max-priority", _CLASSIC),
    "x-overflow": Argument(str, choices=OVERFLOWS),
    "x-queue-mode": Argument(str, choices=QUEUE_MODES, queue_types=_CLASSIC),
    "x-queue-version": Argument(int, low=1, high=2, queue_types=_CLASSIC),
    "x-single-active-consumer": Argument(bool),
    "x-quorum-initial-group-size": Argument(int, low=1, queue_types=_QUORUM),
    MAX_AGE: Argument(str, is_age=True, queue_types=_STREAM),
    PAGE_BYTES: Argument(int, queue_types=_STREAM),
    CLUSTER_SIZE: Argument(int, low=1, queue_types=_STREAM),
    LEADER_LOCATOR: Argument(str, choices=_LOCATORS, queue_types=(QUORUM, STREAM)),
    "x-queue-master-locator": Argument(str, queue_types=_CLASSIC),
    "x-delivery-limit": _number("x-delivery-limit"),
    "x-queue-max-memory-bytes": _number("x-queue-max-memory-bytes"),
    "x-queue-min-memory-bytes": _number("x-queue-min-memory-bytes"),
    "x-paging-policy": Argument(str, choices=POLICIES),
    BACKING: _TEXT,
    "x-delay": _number("x-delay"),
    "x-retry-delay-min": _number("x-retry-delay-min"),
    "x-retry-delay-max": _number("x-retry-delay-max"),
    "x-alert-count-up": _number("x-alert-count-up"),
    "x-alert-count-down": _number("x-alert-count-down"),
    "x-alert-size-up": _number("x-alert-size-up"),
    "x-alert-size-down": _number("x-alert-size-down"),
    "x-alert-depth-up": _number("x-alert-depth-up"),
    "x-alert-depth-down": _number("x-alert-depth-down"),
    "x-alert-age-up": _number("x-alert-age-up"),
    "x-alert-age-down": _number("x-alert-age-down"),
    "x-alert-repeat-gap": _number("x-alert-repeat-gap"),
    PARTITIONS: Argument(int, low=1, high=PARTITIONS_MAX, queue_types=_STREAM),
    MAX_SIZE: Argument(int),
    MAX_COUNT: Argument(int),
    POLICY_TYPE: Argument(str, choices=POLICY_TYPES),
}


def check_arguments(what: str, arguments: Mapping[str, object]) -> QueueOptions:
    """Return the options of a queue declared with these arguments. ChannelError 406: one is wrong.

    what: the queue, as `refusals.called` has it.
    """
    _check_values(what, arguments)
    if DEAD_LETTER_ROUTING_KEY in arguments and DEAD_LETTER_EXCHANGE not in arguments:
        text = f"routing_key_but_no_dlx_defined: {DEAD_LETTER_EXCHANGE} is not given"
        raise _invalid(DEAD_LETTER_ROUTING_KEY, what, text)
    try:
        return QueueOptions.from_arguments(arguments)
    except OptionError as error:
        text = f"received {shown(error.given)}, expected {error.expected}"
        raise _invalid(error.name, what, text) from None


def check_stream_arguments(what: str, arguments: Mapping[str, object]) -> StreamOptions:
    """Return the options of a stream, as `check_arguments` does for a queue."""
    _check_values(what, arguments)
    page_bytes = arguments.get(PAGE_BYTES)
    if isinstance(page_bytes, int) and page_bytes > SEGMENT_BYTES_MAX:
        raise ChannelError(
            PRECONDITION_FAILED,
            f"Exceeded max value for {PAGE_BYTES}: received {shown(page_bytes)}, expected at most "
            f"{SEGMENT_BYTES_MAX}",
        )
    return StreamOptions.from_arguments(arguments)


def _check_values(what: str, arguments: Mapping[str, object]) -> None:
    exchange = arguments.get(DEAD_LETTER_EXCHANGE)
    if DEAD_LETTER_EXCHANGE in arguments and not isinstance(exchange, str):
        raise wrong_type(DEAD_LETTER_EXCHANGE, what, exchange)
    kind = type_of(arguments)
    known = [name for name in ARGUMENTS if name in arguments]
    for name in reversed(known):
        if kind in _ALL and kind not in ARGUMENTS[name].queue_types:
            raise _not_of_type(name, what, kind)
    for name in known:
        argument, value = ARGUMENTS[name], arguments[name]
        if not argument.allows(value):
            raise _invalid(name, what, f"received {shown(value)}, expected {argument.expected()}")


def wrong_type(name: str, what: str, value: object) -> Exception:
    """Return a 406: an argument that names an exchange is not a text."""
    return ChannelError(
        PRECONDITION_FAILED, f"invalid type '{_type_name(value)}' for arg '{name}' in {what}"
    )


def _invalid(name: str, what: str, text: str) -> Exception:
    return ChannelError(PRECONDITION_FAILED, f"invalid arg '{name}' for {what}: {text}")


def _not_of_type(name: str, what: str, kind: str) -> Exception:
    return ChannelError(PRECONDITION_FAILED, f"invalid arg '{name}' for {what} {of_type(kind)}")


def type_of(arguments: Mapping[str, object]) -> str:
    """Return the type of queue that is asked for: "classic", "quorum" or "stream"."""
    return str(arguments.get(QUEUE_TYPE, CLASSIC))


def of_type(kind: str) -> str:
    """Return a type of queue as RabbitMQ's errors name it."""
    return f"of queue type rabbit_{kind}_queue"


def check_type(
    what: str, arguments: Mapping[str, object], *, durable: bool, exclusive: bool, auto_delete: bool
) -> None:
    """Raise ChannelError 406 for a quorum queue or a stream with properties that it cannot have."""
    if type_of(arguments) in (QUORUM, STREAM):
        for given, name in (
            (auto_delete, "auto-delete"), (exclusive, "exclusive-owner"),
            (not durable, "non-durable"),
        ):  # fmt: skip
            if given:
                raise ChannelError(PRECONDITION_FAILED, f"invalid property '{name}' for {what}")


def check_equivalent(what: str, given: Mapping[str, object], current: Mapping[str, object]) -> None:
    """Raise ChannelError 406 unless all known arguments are equal."""
    for name in ARGUMENTS:
        if name not in given and name not in current:
            continue
        if name == QUEUE_TYPE and type_of(given) == type_of(current):
            continue
        check_same_argument(name, what, given, current)


def check_same_argument(
    name: str, what: str, given: Mapping[str, object], current: Mapping[str, object]
) -> None:
    """Raise ChannelError 406, in RabbitMQ's words, unless both have this argument with one value,
    or neither has it."""
    if name not in given and name not in current:
        return
    received, stands = given.get(name), current.get(name)
    if name in given and name in current:
        if _is_equal(received, stands):
            return
        said = (_bare(received), _bare(stands))
    else:
        said = (shown(received), shown(stands))
    raise ChannelError(
        PRECONDITION_FAILED,
        f"inequivalent arg '{name}' for {what}: received {said[0]} but current is {said[1]}",
    )


def _is_equal(one: object, other: object) -> bool:
    """Return whether two values are equal: 1 is not 1.0, nor true; a text equals its bytes."""
    return comparable(_as_text(one)) == comparable(_as_text(other))


def _as_text(value: object) -> object:
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value


def _bare(value: object) -> str:
    """Return a value without its type, as RabbitMQ shows two that differ; "none" for none."""
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"'{_erlang_float(value)}'"
    return f"'{_text(value)}'"


def _erlang_float(value: float) -> str:
    """Return 5.0e3 for 5000.0: the shorter way to write it, as Erlang does."""
    plain = repr(value)
    mantissa, _, exponent = f"{Decimal(plain).normalize():e}".partition("e")
    short = f"{mantissa if '.' in mantissa else mantissa + '.0'}e{int(exponent or 0)}"
    return short if "e" in plain or len(short) < len(plain) else plain


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return str(value).lower() if isinstance(value, bool) else str(value)


def shown(value: object) -> str:
    """Return a value and its AMQP type for errors; "none" for none."""
    if value is None:
        return "none"
    return f"the value '{_text(value)}' of type '{_type_name(value)}'"


def _type_name(value: object) -> str:
    if value is None:
        return "void"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "signedint" if -(1 << INT_BITS) <= value < 1 << INT_BITS else "long"
    for kind, name in (
        (str, "longstr"), (float, "double"), (dict, "table"), (list, "array"), (bytes, "binary"),
        (datetime, "timestamp"), (Decimal, "decimal"),
    ):  # fmt: skip
        if isinstance(value, kind):
            return name
    return type(value).__name__


# ---- stored form ---------------------------------------------------------------------------------


def encode_arguments(arguments: Mapping[str, object]) -> bytes:
    """Return the stored form. ValueError, TypeError: a value that AMQP has no type for."""
    if not arguments:
        return b""
    plain = {name: _plain(value) for name, value in arguments.items()}
    return json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()


def decode_arguments(data: bytes) -> dict[str, object]:
    """Return the arguments of a stored form. ValueError if it is not one."""
    if not data:
        return {}
    found = json.loads(data)
    if not isinstance(found, dict):
        raise ValueError(f"queue arguments are a JSON object, not {type(found).__name__}")
    return {name: _full(value) for name, value in found.items()}


def _plain(value: object) -> object:
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, dict) and TAG not in value:
        return {name: _plain(inner) for name, inner in value.items()}
    return {TAG: base64.b64encode(encode_value(value)).decode()}


def _full(value: object) -> object:
    if isinstance(value, list):
        return [_full(inner) for inner in value]
    if isinstance(value, dict):
        if value.keys() == {TAG}:
            return decode_value(base64.b64decode(value[TAG]))[0]
        return {name: _full(inner) for name, inner in value.items()}
    return value
