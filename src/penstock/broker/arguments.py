"""Arguments: the x-arguments of queues: which there are, what they may be, when two are the same.

One table says of each known argument which AMQP types it takes and which values. What is not in it
is stored, compared when a queue is declared again, and otherwise ignored. Most of what is in it is
an option of QueueOptions (penstock.queues.queue_options), which has the last word on values that
contradict each other; the rest is the broker's: x-expires, x-single-active-consumer, and the queue
types of RabbitMQ, of which there are two here. A quorum queue is asked for by people who want a
durable, replicated queue: on one machine that is a durable classic queue. A stream is another
thing (served_stream.py), with options of its own (penstock.queues.stream_options). As in RabbitMQ
an argument that is known, but not to that type of queue, is refused; x-max-length and x-partitions
are ours for streams.

Declaring again: every argument must be equal to what it was. Integers of all widths are one type;
a classic queue may be called so or not.

Stored form, in the queue's record of the topology: a JSON object with the arguments as they were
given, keys sorted, b"" for none. It is what the embedded library writes for its options, so either
reads what the other wrote. A value that JSON has no word for (bytes, times, decimals) stands there
as {"$amqp": base64 of its AMQP encoding, with its letter}.
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Final

from penstock.broker.refusals import precondition_failed
from penstock.codec.fields import decode_value, encode_value
from penstock.errors import OptionError
from penstock.queues.queue_options import COUNT_MAX, MS_MAX, OVERFLOWS, POLICIES, QueueOptions
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
    () for any; is_age: a text such as "7D"."""

    kind: type
    low: int = 0
    high: int = COUNT_MAX
    choices: tuple[str, ...] = ()
    is_age: bool = False

    def allows(self, value: object) -> bool:
        """Whether it may be this."""
        if type(value) is not self.kind:
            return False
        if isinstance(value, int):
            return self.low <= value <= self.high
        if self.is_age:
            return age_s(str(value)) is not None
        return not self.choices or value in self.choices

    def expected(self) -> str:
        """The same, for people."""
        if self.kind is int:
            return f"a whole number from {self.low} to {self.high}"
        if self.kind is bool:
            return "a boolean"
        if self.is_age:
            return AGE_EXPECTED
        if not self.choices:
            return "a text (longstr)"
        return ", ".join(self.choices[:-1]) + " or " + self.choices[-1]


_COUNT: Final = Argument(int)
_UP: Final = Argument(int, low=1)
_MS: Final = Argument(int, high=MS_MAX)
_TEXT: Final = Argument(str)

ARGUMENTS: Final[dict[str, Argument]] = {
    "x-message-ttl": _MS,
    EXPIRES: Argument(int, low=1, high=MS_MAX),
    MAX_RECORDS: _COUNT,
    MAX_BYTES: _COUNT,
    "x-overflow": Argument(str, choices=OVERFLOWS),
    "x-max-priority": Argument(int, high=255),
    DEAD_LETTER_EXCHANGE: _TEXT,
    DEAD_LETTER_ROUTING_KEY: _TEXT,
    "x-delivery-limit": Argument(int, high=COUNT_MAX - 1),
    "x-single-active-consumer": Argument(bool),
    "x-queue-mode": Argument(str, choices=("default", "lazy")),
    QUEUE_TYPE: Argument(str, choices=(CLASSIC, QUORUM, STREAM)),
    "x-queue-version": Argument(int, low=1, high=2),
    LEADER_LOCATOR: _TEXT,
    "x-queue-master-locator": _TEXT,
    "x-queue-max-memory-bytes": _COUNT,
    "x-queue-min-memory-bytes": _COUNT,
    "x-paging-policy": Argument(str, choices=POLICIES),
    "x-delay": _MS,
    "x-retry-delay-min": _MS,
    "x-retry-delay-max": _MS,
    "x-alert-count-up": _UP,
    "x-alert-count-down": _COUNT,
    "x-alert-size-up": _UP,
    "x-alert-size-down": _COUNT,
    "x-alert-depth-up": _UP,
    "x-alert-depth-down": _COUNT,
    "x-alert-age-up": Argument(int, low=1, high=MS_MAX),
    "x-alert-age-down": _MS,
    "x-alert-repeat-gap": _COUNT,
    MAX_AGE: Argument(str, is_age=True),
    PAGE_BYTES: _COUNT,
    PARTITIONS: Argument(int, low=1, high=PARTITIONS_MAX),
    CLUSTER_SIZE: _UP,
}

# Of the arguments above: those that streams have, and those that nothing else has.
OF_STREAMS: Final = frozenset((
    QUEUE_TYPE, MAX_AGE, MAX_BYTES, MAX_RECORDS, PAGE_BYTES, PARTITIONS, CLUSTER_SIZE,
    LEADER_LOCATOR,
))  # fmt: skip
OF_STREAMS_ALONE: Final = frozenset((MAX_AGE, PAGE_BYTES, PARTITIONS))


def check_arguments(what: str, arguments: Mapping[str, object]) -> QueueOptions:
    """The options of a queue that is declared with these. ChannelError 406: one of them is wrong.

    what: the queue, as `refusals.called` has it."""
    _check_values(what, arguments)
    for name in arguments:
        if name in OF_STREAMS_ALONE or (name == CLUSTER_SIZE and type_of(arguments) == CLASSIC):
            raise _not_of_type(name, what, type_of(arguments))
    if DEAD_LETTER_ROUTING_KEY in arguments and DEAD_LETTER_EXCHANGE not in arguments:
        text = f"routing_key_but_no_dlx_defined: {DEAD_LETTER_EXCHANGE} is not given"
        raise _invalid(DEAD_LETTER_ROUTING_KEY, what, text)
    try:
        return QueueOptions.from_arguments(arguments)
    except OptionError as error:
        text = f"received {shown(error.given)}, expected {error.expected}"
        raise _invalid(error.name, what, text) from None


def check_stream_arguments(what: str, arguments: Mapping[str, object]) -> StreamOptions:
    """The same for a stream."""
    _check_values(what, arguments)
    for name in arguments:
        if name in ARGUMENTS and name not in OF_STREAMS:
            raise _not_of_type(name, what, STREAM)
    page_bytes = arguments.get(PAGE_BYTES)
    if isinstance(page_bytes, int) and page_bytes > SEGMENT_BYTES_MAX:
        raise precondition_failed(
            f"Exceeded max value for {PAGE_BYTES}: received {shown(page_bytes)}, expected at most "
            f"{SEGMENT_BYTES_MAX}"
        )
    return StreamOptions.from_arguments(arguments)


def _check_values(what: str, arguments: Mapping[str, object]) -> None:
    for name, value in arguments.items():
        argument = ARGUMENTS.get(name)
        if argument is not None and not argument.allows(value):
            raise _invalid(name, what, f"received {shown(value)}, expected {argument.expected()}")


def _invalid(name: str, what: str, text: str) -> Exception:
    return precondition_failed(f"invalid arg '{name}' for {what}: {text}")


def _not_of_type(name: str, what: str, kind: str) -> Exception:
    return precondition_failed(f"invalid arg '{name}' for {what} {of_type(kind)}")


def type_of(arguments: Mapping[str, object]) -> str:
    """The type of queue that is asked for: "classic", "quorum" or "stream"."""
    return str(arguments.get(QUEUE_TYPE, CLASSIC))


def of_type(kind: str) -> str:
    """A type of queue, as RabbitMQ's errors name it."""
    return f"of queue type rabbit_{kind}_queue"


def check_type(
    what: str, arguments: Mapping[str, object], *, durable: bool, exclusive: bool, auto_delete: bool
) -> None:
    """ChannelError 406 for a quorum queue or a stream that cannot be one."""
    if type_of(arguments) in (QUORUM, STREAM):
        for given, name in (
            (auto_delete, "auto-delete"), (exclusive, "exclusive-owner"),
            (not durable, "non-durable"),
        ):  # fmt: skip
            if given:
                raise precondition_failed(f"invalid property '{name}' for {what}")


def check_equivalent(what: str, given: Mapping[str, object], current: Mapping[str, object]) -> None:
    """ChannelError 406 unless all arguments are what they are."""
    for name in dict.fromkeys((*current, *given)):
        received, stands = given.get(name), current.get(name)
        if comparable(received) == comparable(stands):
            continue
        if name == QUEUE_TYPE and (received, stands) in ((None, CLASSIC), (CLASSIC, None)):
            continue
        raise precondition_failed(
            f"inequivalent arg '{name}' for {what}: received {shown(received)} but current is "
            f"{shown(stands)}"
        )


def shown(value: object) -> str:
    """A value and its AMQP type, for people; "none" for none."""
    if value is None:
        return "none"
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"the value '{text}' of type '{_type_name(value)}'"


def _type_name(value: object) -> str:
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
    """The stored form. ValueError, TypeError: a value that AMQP has no type for."""
    if not arguments:
        return b""
    plain = {name: _plain(value) for name, value in arguments.items()}
    return json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()


def decode_arguments(data: bytes) -> dict[str, object]:
    """From the stored form. ValueError if it is none."""
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
