"""x-arguments of queues: which there are, what they may be, when two declarations are the same.

ARGUMENTS has for each known argument what it may be, which types of queue have it and what it
means; docs/reference/ttl-and-limits.md lists them from it. Other arguments are stored and otherwise
ignored. Most of those in it are options of QueueOptions (penstock.queues.queue_options): their rows
come from there, and it decides on values that contradict each other. The rest is the broker's:
x-expires, x-single-active-consumer, and the queue types of RabbitMQ. There are two here: a quorum
queue is declared by people who want a durable, replicated queue, and on one machine that is a
durable classic queue; streams (broker_stream.py) have options of their own
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
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import Final

from penstock.codec.fields import decode_value, encode_value
from penstock.errors import PRECONDITION_FAILED, ChannelError, OptionError
from penstock.options import (
    POLICY_KEY,
    POLICY_LIMIT,
    Kind,
    Option,
    WrongValueError,
    by_name,
    choice,
    flag,
    whole,
)
from penstock.queues.queue_options import (
    BACKING,
    CLASSIC,
    CONSUMER_TIMEOUT,
    COUNT_MAX,
    DELAYED_RETRY,
    DELAYED_RETRY_MAX,
    DELAYED_RETRY_MIN,
    MAX_COUNT,
    MAX_SIZE,
    MS_MAX,
    POLICY_TYPE,
    POLICY_TYPES,
    QUEUE_ARGUMENTS,
    QUORUM,
    RETRY_DISABLED,
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
from penstock.routing.exchange_types import CACHE_SIZE, CACHE_TTL, DEDUPLICATION, comparable
from penstock.storage.index.key_windows import SIZE_MAX

CACHE_SIZE_DEFAULT: Final = 10_000
EXPIRES: Final = "x-expires"
DEAD_LETTER_EXCHANGE: Final = "x-dead-letter-exchange"
DEAD_LETTER_ROUTING_KEY: Final = "x-dead-letter-routing-key"
LEADER_LOCATOR: Final = "x-queue-leader-locator"
CLUSTER_SIZE: Final = "x-initial-cluster-size"
TAG: Final = "$amqp"

INT_BITS: Final = 31  # of a signedint, the type that clients choose for small numbers

_CLASSIC: Final = (CLASSIC,)
_QUORUM: Final = (QUORUM,)
_STREAM: Final = (STREAM,)
_BOTH: Final = (CLASSIC, QUORUM)
_ALL: Final = (CLASSIC, QUORUM, STREAM)


def _any_text() -> Kind:
    def check(value: object) -> object:
        if not isinstance(value, str):
            raise WrongValueError("a text (longstr)")
        return value

    return Kind("text", check)


def _age() -> Kind:
    def check(value: object) -> object:
        if not isinstance(value, str) or age_s(value) is None:
            raise WrongValueError(AGE_EXPECTED)
        return value

    return Kind("age, such as `7D`", check)


_TEXT: Final = _any_text()
_FLAG: Final = flag("a boolean")
_COUNT: Final = whole(0, COUNT_MAX)
_COUNT_FROM_1: Final = whole(1, COUNT_MAX)
_LOCATOR: Final = choice("client-local", "balanced", "least-leaders", "random")
_OF_QUEUES: Final = by_name(QUEUE_ARGUMENTS)
_NO_EFFECT: Final = "accepted, no effect"
_ONE_NODE: Final = f"{_NO_EFFECT}: there is one node"
_QPIDS: Final = "[Qpid's](#qpids-arguments)"


def _of_queues(*names: str) -> tuple[Option, ...]:
    """Return rows of the table of QueueOptions."""
    return tuple(_OF_QUEUES[name] for name in names)


# In the order in which they are checked and compared, which is RabbitMQ's; then ours.
_IN_ORDER: Final[tuple[Option, ...]] = (
    Option(
        QUEUE_TYPE, choice(CLASSIC, QUORUM, STREAM), "the type of the queue", default=CLASSIC,
        applies=_ALL,
    ),
    Option(
        EXPIRES, whole(1, MS_MAX),
        "ms after which an unused queue is deleted: [time to live](#time-to-live)", applies=_BOTH,
        policy=POLICY_LIMIT,
    ),
    *_of_queues("x-message-ttl"),
    Option(
        DEAD_LETTER_EXCHANGE, _TEXT, "where [dead letters](../guides/dead-letters.md) go",
        applies=_BOTH, policy=POLICY_KEY,
    ),
    Option(
        DEAD_LETTER_ROUTING_KEY, _TEXT, "their routing key; by default each message's own",
        applies=_BOTH, policy=POLICY_KEY,
    ),
    Option(
        "x-dead-letter-strategy", choice("at-most-once", "at-least-once"),
        "accepted: a move is one record in any case", applies=_QUORUM,
        policy=POLICY_KEY,
    ),
    *(replace(option, applies=_ALL) for option in _of_queues(MAX_RECORDS, MAX_BYTES)),
    Option(
        "x-max-in-memory-length", _COUNT, _NO_EFFECT, applies=_QUORUM, policy=POLICY_LIMIT
    ),
    Option("x-max-in-memory-bytes", _COUNT, _NO_EFFECT, applies=_QUORUM, policy=POLICY_LIMIT),
    *_of_queues("x-max-priority", "x-overflow", "x-queue-mode"),
    Option("x-queue-version", whole(1, 2), _NO_EFFECT, applies=_CLASSIC, policy=POLICY_KEY),
    Option(
        "x-single-active-consumer", _FLAG, "one consumer gets all messages until it ends",
        applies=_BOTH,
    ),
    Option(
        CONSUMER_TIMEOUT, whole(0, MS_MAX),
        "ms after which an unacknowledged delivery "
        "[goes back](../guides/confirms.md#consumer-timeout); 0: never", applies=_BOTH,
        policy=POLICY_LIMIT,
    ),
    Option(
        DEDUPLICATION, _FLAG,
        "whether [duplicates](../guides/deduplication.md) are dropped", applies=_BOTH,
    ),
    Option(
        CACHE_SIZE, whole(1, SIZE_MAX),
        f"how many keys it compares with, {CACHE_SIZE_DEFAULT} by default", applies=_BOTH,
    ),
    Option(CACHE_TTL, whole(1, MS_MAX), "and for how many ms", applies=_BOTH),
    Option("x-quorum-initial-group-size", _COUNT_FROM_1, _ONE_NODE, applies=_QUORUM),
    Option("x-quorum-target-group-size", _COUNT_FROM_1, _ONE_NODE, applies=_QUORUM),
    Option(
        "x-consumer-disconnected-timeout", whole(0, MS_MAX), _ONE_NODE, applies=_QUORUM,
        policy=POLICY_KEY,
    ),
    Option(
        DELAYED_RETRY, choice(RETRY_DISABLED, "all", "failed", "returned"),
        "whether a requeued message waits: [delays](#delays)", applies=_BOTH, policy=POLICY_KEY,
    ),
    Option(
        DELAYED_RETRY_MIN, whole(1, MS_MAX), "ms for which it waits, times its attempts",
        applies=_BOTH, policy=POLICY_KEY,
    ),
    Option(
        DELAYED_RETRY_MAX, whole(1, MS_MAX), "and ms at most", applies=_BOTH, policy=POLICY_KEY
    ),
    Option(
        MAX_AGE, _age(), "how long [records](../guides/streams.md) are kept", applies=_STREAM,
        policy=POLICY_KEY,
    ),
    Option(
        PAGE_BYTES, _COUNT, "bytes of a page; [retention](../guides/streams.md) takes whole pages",
        applies=_STREAM, policy=POLICY_KEY,
    ),
    Option(
        "x-stream-filter-size-bytes", whole(16, 255),
        "accepted, no effect: [filters](../guides/streams.md) look at each record",
        applies=_STREAM,
    ),
    Option(CLUSTER_SIZE, _COUNT_FROM_1, _ONE_NODE, applies=_STREAM, policy=POLICY_KEY),
    Option(LEADER_LOCATOR, _LOCATOR, _ONE_NODE, applies=(QUORUM, STREAM), policy=POLICY_KEY),
    Option("x-queue-master-locator", _TEXT, _ONE_NODE, applies=_CLASSIC, policy=POLICY_KEY),
    *_of_queues(
        "x-delivery-limit", "x-queue-max-memory-bytes", "x-queue-min-memory-bytes",
        "x-paging-policy", BACKING, "x-delay", "x-retry-delay-min", "x-retry-delay-max",
        *(name for name in _OF_QUEUES if name.startswith("x-alert-")),
    ),
    Option(
        PARTITIONS, whole(1, PARTITIONS_MAX), "[partitions](../guides/streams.md)", applies=_STREAM
    ),
    Option(MAX_SIZE, _COUNT, _QPIDS, applies=_BOTH),
    Option(MAX_COUNT, _COUNT, _QPIDS, applies=_BOTH),
    Option(POLICY_TYPE, choice(*POLICY_TYPES), _QPIDS, applies=_BOTH),
)  # fmt: skip
ARGUMENTS: Final[Mapping[str, Option]] = by_name(_IN_ORDER)


def check_arguments(what: str, arguments: Mapping[str, object]) -> QueueOptions:
    """Return the options of a queue declared with these arguments. ChannelError 406: one is wrong.

    what: the queue, as `refusals.called` has it.
    """
    _check_values(what, arguments)
    if DEAD_LETTER_ROUTING_KEY in arguments and DEAD_LETTER_EXCHANGE not in arguments:
        text = f"routing_key_but_no_dlx_defined: {DEAD_LETTER_EXCHANGE} is not given"
        raise _invalid(DEAD_LETTER_ROUTING_KEY, what, text)
    _check_delayed_retry(what, arguments)
    try:
        return QueueOptions.from_arguments(arguments)
    except OptionError as error:
        text = f"received {shown(error.given)}, expected {error.expected}"
        raise _invalid(error.name, what, text) from None


def _check_delayed_retry(what: str, arguments: Mapping[str, object]) -> None:
    least = arguments.get(DELAYED_RETRY_MIN)
    most = arguments.get(DELAYED_RETRY_MAX)
    is_wanted = arguments.get(DELAYED_RETRY, RETRY_DISABLED) != RETRY_DISABLED
    if least is None and (is_wanted or most is not None):
        name = DELAYED_RETRY if is_wanted else DELAYED_RETRY_MAX
        raise _invalid(name, what, f"{DELAYED_RETRY_MIN} is not given")
    if isinstance(least, int) and isinstance(most, int) and most < least:
        text = f"received {shown(most)}, expected at least {DELAYED_RETRY_MIN}, {least}"
        raise _invalid(DELAYED_RETRY_MAX, what, text)


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
        if kind in _ALL and kind not in ARGUMENTS[name].applies:
            raise _not_of_type(name, what, kind)
    for name in known:
        check_value(what, name, arguments[name])


def check_value(what: str, name: str, value: object) -> None:
    """Raise ChannelError 406 unless the argument of this name may have this value."""
    try:
        ARGUMENTS[name].kind.check(value)
    except WrongValueError as error:
        text = f"received {shown(value)}, expected {error.expected}"
        raise _invalid(name, what, text) from None


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
