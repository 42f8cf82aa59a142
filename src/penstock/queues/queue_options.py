"""QueueOptions: every option of a queue, and how options are stored.

One frozen object, validated when it is made. It is stored as the queue's arguments in the topology:
JSON with RabbitMQ's x-argument names wherever RabbitMQ has the option, keys sorted, defaults left
out; so the same options are the same bytes, and a queue without options has none. The embedded
library makes QueueOptions from Python's keywords (`of`), the broker from x-arguments
(`from_arguments`); both are stored alike. QUEUE_ARGUMENTS is the table of both.

Two options differ on the wire:
  * dead_letter_to names a queue. RabbitMQ dead-letters to an exchange, so it is
    x-dead-letter-exchange "" (the default one) with the queue's name as x-dead-letter-routing-key.
    Any other exchange stays in `extra`, for a broker to act on.
  * max_attempts counts deliveries. RabbitMQ's x-delivery-limit counts those after the first one, so
    it is one less.

Qpid's qpid.max_size, qpid.max_count and qpid.policy_type stand for options here:

    reject (default)   max_length_bytes, max_length; overflow "reject-publish"
    ring               the same; "drop-head"
    ring_strict        the same; "drop-head-strict"
    flow_to_disk       max_memory_bytes is qpid.max_size; qpid.max_count is ignored, because RAM is
                       counted in bytes

A limit of 0 means none there. One of them together with its x-argument is an OptionError;
`arguments` returns x-arguments.

Unknown x-arguments are kept in `extra` and returned. A value that is not allowed is an OptionError
under the name by which it was given.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final

from penstock.errors import OptionError
from penstock.options import (
    POLICY_KEY,
    POLICY_LIMIT,
    Kind,
    Option,
    WrongValueError,
    checked,
    choice,
    flag,
    whole,
)

DROP_HEAD: Final = "drop-head"
REJECT_PUBLISH: Final = "reject-publish"
REJECT_PUBLISH_DLX: Final = "reject-publish-dlx"
DROP_HEAD_STRICT: Final = "drop-head-strict"
OVERFLOWS: Final = (DROP_HEAD, REJECT_PUBLISH, REJECT_PUBLISH_DLX, DROP_HEAD_STRICT)
POLICIES: Final = ("ratio", "eager", "even")
QUEUE_MODES: Final = ("default", "lazy")

# Qpid's words for what a queue does at qpid.max_size (bytes) and qpid.max_count.
MAX_SIZE: Final = "qpid.max_size"
MAX_COUNT: Final = "qpid.max_count"
POLICY_TYPE: Final = "qpid.policy_type"
REJECT: Final = "reject"
FLOW_TO_DISK: Final = "flow_to_disk"
_OVERFLOW_OF: Final = {REJECT: REJECT_PUBLISH, "ring": DROP_HEAD, "ring_strict": DROP_HEAD_STRICT}
POLICY_TYPES: Final = (*_OVERFLOW_OF, FLOW_TO_DISK)

COUNT_MAX: Final = (1 << 53) - 1  # what every JSON reader and AMQP's signed 64 bits can hold
MS_MAX: Final = 100 * 366 * 86_400_000  # a hundred years: a date beyond it is a mistake
PRIORITY_MAX: Final = 255

CLASSIC: Final = "classic"
QUORUM: Final = "quorum"
_BOTH: Final = (CLASSIC, QUORUM)
BACKING: Final = "x-backing-queue"
_MODE: Final = "x-queue-mode"
_EXCHANGE: Final = "x-dead-letter-exchange"
_ROUTING_KEY: Final = "x-dead-letter-routing-key"
_DELIVERY_LIMIT: Final = "x-delivery-limit"
DELAYED_RETRY: Final = "x-delayed-retry-type"  # of a broker, which checks them
DELAYED_RETRY_MIN: Final = "x-delayed-retry-min"
DELAYED_RETRY_MAX: Final = "x-delayed-retry-max"
CONSUMER_TIMEOUT: Final = "x-consumer-timeout"
RETRY_DISABLED: Final = "disabled"
_MAX_LENGTH: Final = "x-max-length"
_MAX_BYTES: Final = "x-max-length-bytes"
_MAX_MEMORY: Final = "x-queue-max-memory-bytes"
_OVERFLOW: Final = "x-overflow"


def is_class_name(given: object) -> bool:
    """Return whether this may be the name of a class, "package.module:Class"."""
    if not isinstance(given, str):
        return False
    module, colon, inner = given.partition(":")
    parts = module.split(".")
    return bool(colon) and inner.isidentifier() and all(part.isidentifier() for part in parts)


def class_name() -> Kind:
    """The name of a class."""

    def check(value: object) -> str:
        if not is_class_name(value):
            raise WrongValueError('a class such as "package.module:Class"')
        return str(value)

    return Kind("class as `package.module:Class`", check)


def _alert(what: str, end: str, kind: Kind, unit: str) -> Option:
    sentences = {
        "up": f"{unit} at which an [alert](#alerts) is raised",
        "down": f"{unit} at which it is armed again; half of `x-alert-{what}-up` by default",
    }
    return Option(
        f"x-alert-{what}-{end}", kind, sentences[end], field=f"alert_{what}_{end}", applies=_BOTH,
        policy=POLICY_KEY,
    )  # fmt: skip


_COUNT: Final = whole(0, COUNT_MAX)
_MS: Final = whole(0, MS_MAX)
_UP: Final = whole(1, COUNT_MAX)
_POLICY_TYPE: Final = choice(*POLICY_TYPES)
# The x-arguments that are options of QueueOptions, each with its field there. Values on the wire
# are those of the fields, but for x-delivery-limit, which is one less than max_attempts, and -1 for
# none.
QUEUE_ARGUMENTS: Final[tuple[Option, ...]] = (
    Option(
        "x-max-priority", whole(0, PRIORITY_MAX), "the highest [priority](#priorities)",
        field="priorities", applies=_BOTH,
    ),
    Option(
        _MAX_MEMORY, _COUNT,
        "bytes of RAM; beyond, messages are paged out: [memory](../how-it-works/memory.md#limits)",
        field="max_memory_bytes", applies=_BOTH, policy=POLICY_LIMIT,
    ),
    Option(
        "x-queue-min-memory-bytes", _COUNT,
        "bytes of RAM below which messages are read ahead; half of the maximum by default",
        field="min_memory_bytes", applies=_BOTH, policy=POLICY_KEY,
    ),
    Option(
        _MAX_LENGTH, _COUNT, "ready messages: [length](#length); of a stream, records to keep",
        field="max_length", applies=_BOTH, policy=POLICY_LIMIT,
    ),
    Option(
        _MAX_BYTES, _COUNT, "bytes of ready messages; of a stream, bytes to keep",
        field="max_length_bytes", applies=_BOTH, policy=POLICY_LIMIT,
    ),
    Option(
        "x-message-ttl", _MS, "ms that a message may wait: [time to live](#time-to-live)",
        field="ttl_ms", applies=_BOTH, policy=POLICY_LIMIT,
    ),
    Option(
        "x-delay", _MS, "ms that a message has to wait: [delays](#delays)",
        field="delay_ms", applies=_BOTH, policy=POLICY_KEY,
    ),
    Option(
        _DELIVERY_LIMIT, whole(-1, COUNT_MAX - 1),
        "how often a message may come back: [delivery limit](#delivery-limit); -1: any number",
        field="max_attempts", applies=_BOTH, policy=POLICY_LIMIT,
    ),
    Option(
        "x-retry-delay-min", _MS,
        "ms before a message comes again that `nack` of a box returns: [delays](#delays)",
        field="retry_delay_ms_min", applies=_BOTH, policy=POLICY_KEY,
    ),
    Option(
        "x-retry-delay-max", _MS, "and ms at most; doubled up to that each time",
        field="retry_delay_ms_max", applies=_BOTH, policy=POLICY_KEY,
    ),
    Option(
        _OVERFLOW, choice(*OVERFLOWS), "what gives way at the limits of [length](#length)",
        field="overflow", applies=_BOTH, policy=POLICY_KEY,
    ),
    Option(
        "x-paging-policy", choice(*POLICIES),
        "which messages are paged out: [memory](../how-it-works/memory.md#limits)",
        field="policy", applies=_BOTH,
    ),
    Option(
        _MODE, choice(*QUEUE_MODES), "`lazy`: messages go to disk at once",
        field="lazy", default=QUEUE_MODES[0], applies=(CLASSIC,), policy=POLICY_KEY,
    ),
    Option(
        BACKING, class_name(),
        "a class that the operator allows: [other classes](../guides/backing-queues.md)",
        field="backing_queue", applies=_BOTH,
    ),
    _alert("count", "up", _UP, "messages"),
    _alert("count", "down", _COUNT, "messages"),
    _alert("size", "up", _UP, "bytes of one message"),
    _alert("size", "down", _COUNT, "bytes of one message"),
    _alert("depth", "up", _UP, "bytes"),
    _alert("depth", "down", _COUNT, "bytes"),
    _alert("age", "up", whole(1, MS_MAX), "ms, the age of the oldest message,"),
    _alert("age", "down", _MS, "ms, the age of the oldest message,"),
    Option(
        "x-alert-repeat-gap", _COUNT, "seconds after which an alert is repeated",
        field="alert_repeat_gap_s", applies=_BOTH, policy=POLICY_KEY,
    ),
)  # fmt: skip
_X_NAMES: Final = {option.target: option.name for option in QUEUE_ARGUMENTS}


# What a field may be, where that is not what the argument may be.
_FIELD_KINDS: Final = {_DELIVERY_LIMIT: whole(1, COUNT_MAX), _MODE: flag("True or False")}


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """Bytes, ms and counts as the names say; None is "no limit" or "none". OptionError if a value
    is out of range or two of them contradict each other.

    priorities         0: none, else the highest priority, up to 255; fixed for a queue's life
    max_memory_bytes   above it messages are paged out; min_memory_bytes: below it they are read
                       ahead (None: half of max)
    max_length, max_length_bytes   of ready messages; overflow: what gives way when they are reached
    ttl_ms             how long a message may wait; delay_ms: how long it has to
    dead_letter_to     the queue that gets what expired, was rejected, or did not fit
    max_attempts       deliveries until a message that keeps coming back is dead-lettered
    retry_delay_ms_*   the delay of the first retry, doubled for each further one up to the second
    lazy               everything goes to disk at once
    policy             of paging: "eager", "ratio" or "even"
    backing_queue      the class that holds the messages, "" for the operator's (backing_choice.py)
    alert_*_up, _down  an alert when up is reached, armed again at down (None: half of up): count
                       and depth (bytes) of the queue, size of one message (bytes), age of the
                       oldest (ms); repeated after alert_repeat_gap_s
    extra              x-arguments that mean nothing here, sorted by name
    """

    priorities: int = 0
    max_memory_bytes: int | None = None
    min_memory_bytes: int | None = None
    max_length: int | None = None
    max_length_bytes: int | None = None
    overflow: str = DROP_HEAD
    ttl_ms: int | None = None
    delay_ms: int = 0
    dead_letter_to: str | None = None
    max_attempts: int | None = None
    retry_delay_ms_min: int = 1000
    retry_delay_ms_max: int = 3_600_000
    lazy: bool = False
    policy: str = "eager"
    backing_queue: str = ""
    alert_count_up: int | None = None
    alert_count_down: int | None = None
    alert_size_up: int | None = None
    alert_size_down: int | None = None
    alert_depth_up: int | None = None
    alert_depth_down: int | None = None
    alert_age_up: int | None = None
    alert_age_down: int | None = None
    alert_repeat_gap_s: int = 60
    extra: tuple[tuple[str, object], ...] = ()

    def __post_init__(self) -> None:
        for option in QUEUE_ARGUMENTS:
            name = option.target
            value = getattr(self, name)
            if value != _DEFAULTS[name] or type(value) is not type(_DEFAULTS[name]):
                checked(_FIELD_KINDS.get(option.name, option.kind), name, value)
        if self.backing_queue and self.priorities:
            expected = "nothing, as queues with priorities are made of VariableQueues"
            raise OptionError("backing_queue", self.backing_queue, expected)
        target = self.dead_letter_to
        if target is not None and (type(target) is not str or not target or "\0" in target):
            raise OptionError("dead_letter_to", target, "the name of a queue")
        _check_order(self, "min_memory_bytes", "max_memory_bytes")
        if self.retry_delay_ms_min > self.retry_delay_ms_max:
            expected = f"at least retry_delay_ms_min, {self.retry_delay_ms_min}"
            raise OptionError("retry_delay_ms_max", self.retry_delay_ms_max, expected)
        for kind in ("count", "size", "depth", "age"):
            _check_order(self, f"alert_{kind}_down", f"alert_{kind}_up", is_strict=True)

    @property
    def memory_bytes(self) -> tuple[int, int] | None:
        """Return (max, min) of the queue's own memory, min derived if it was not given; None: no
        limit."""
        most = self.max_memory_bytes
        if most is None:
            return None
        return most, most // 2 if self.min_memory_bytes is None else self.min_memory_bytes

    @property
    def retry_delay_ms(self) -> tuple[int, int]:
        """Return the delay of the first retry and the longest one."""
        return self.retry_delay_ms_min, self.retry_delay_ms_max

    @property
    def dead_letter_exchange(self) -> tuple[str, str | None] | None:
        """Return (exchange, routing key) for dead letters, as a broker sees it; key None: each
        message's own. None: there is no dead-lettering."""
        if self.dead_letter_to is not None:
            return "", self.dead_letter_to
        extra = dict(self.extra)
        exchange, key = extra.get(_EXCHANGE), extra.get(_ROUTING_KEY)
        if not isinstance(exchange, str):
            return None
        return exchange, key if isinstance(key, str) else None

    @property
    def consumer_timeout_s(self) -> float | None:
        """Return the seconds after which an unacked delivery of a broker goes back, 0 for never;
        None: the broker's."""
        for name, value in self.extra:
            if name == CONSUMER_TIMEOUT and isinstance(value, int):
                return value / 1000
        return None

    @property
    def requeue_delay_ms(self) -> tuple[int, int] | None:
        """Return the delay that each attempt adds to that of a requeued message, and the longest
        one; None: it comes back at once."""
        extra = dict(self.extra)
        least, most = extra.get(DELAYED_RETRY_MIN), extra.get(DELAYED_RETRY_MAX, MS_MAX)
        if extra.get(DELAYED_RETRY) == RETRY_DISABLED or not isinstance(least, int):
            return None
        assert isinstance(most, int), "the broker has checked it"
        return least, most

    # ---- conversion ----------------------------------------------------------------------------

    @classmethod
    def of(cls, values: Mapping[str, object]) -> "QueueOptions":
        """Return the options of these names. An unknown name raises an OptionError that suggests
        the right one."""
        names = [f.name for f in fields(cls)]
        for name in values:
            if name not in names:
                raise OptionError(name, values[name], names)
        return cls(**values)  # type: ignore[arg-type]

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, object]) -> "QueueOptions":
        """Return the options of these x-arguments. Raises OptionError, which names the wrong
        x-argument."""
        left = without_qpids(arguments)
        values: dict[str, object] = {}
        for option in QUEUE_ARGUMENTS:
            if option.name in left:
                values[option.target] = checked(option.kind, option.name, left.pop(option.name))
        if _MODE in arguments:
            values["lazy"] = values["lazy"] == "lazy"
        limit = values.pop("max_attempts", _NO_LIMIT)
        if isinstance(limit, int) and limit != _NO_LIMIT:
            values["max_attempts"] = limit + 1
        key = left.get(_ROUTING_KEY)
        if left.get(_EXCHANGE) == "" and isinstance(key, str) and key and "\0" not in key:
            del left[_EXCHANGE], left[_ROUTING_KEY]
            values["dead_letter_to"] = key
        values["extra"] = tuple(sorted(left.items()))
        try:
            return cls(**values)  # type: ignore[arg-type]
        except OptionError as error:  # two options contradict each other
            raise OptionError(
                _X_NAMES.get(error.name, error.name), error.given, error.expected
            ) from None

    def arguments(self) -> dict[str, object]:
        """Return the x-arguments: those that differ from their defaults, and `extra`."""
        found: dict[str, object] = {}
        for option in QUEUE_ARGUMENTS:
            value = getattr(self, option.target)
            if value != _DEFAULTS[option.target]:
                found[option.name] = value
        if self.max_attempts is not None:
            found[_DELIVERY_LIMIT] = self.max_attempts - 1
        if self.lazy:
            found[_MODE] = "lazy"
        if self.dead_letter_to is not None:
            found[_EXCHANGE], found[_ROUTING_KEY] = "", self.dead_letter_to
        for x_name, value in self.extra:
            found.setdefault(x_name, value)
        return found

    def encode(self) -> bytes:
        """Return the queue's arguments for the topology; b"" when everything has its default."""
        found = self.arguments()
        if not found:
            return b""
        return json.dumps(found, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> "QueueOptions":
        """Return the options from `encode`'s result. Raises ValueError if it is none, OptionError
        for a value."""
        if not data:
            return cls()
        found = json.loads(data)
        if not isinstance(found, dict):
            raise ValueError(f"queue arguments are a JSON object, not {type(found).__name__}")
        return cls.from_arguments(found)


_DEFAULTS: Final[dict[str, object]] = {f.name: f.default for f in fields(QueueOptions)}
_NO_LIMIT: Final = -1


# ---- checks --------------------------------------------------------------------------------------


def without_qpids(arguments: Mapping[str, object]) -> dict[str, object]:
    """Return the arguments with x-arguments instead of Qpid's. Raises OptionError if one of Qpid's
    is wrong, or is also given as an x-argument."""
    left = dict(arguments)
    policy = checked(_POLICY_TYPE, POLICY_TYPE, left.pop(POLICY_TYPE, REJECT))
    limits = {name: checked(_COUNT, name, left.pop(name, 0)) for name in (MAX_SIZE, MAX_COUNT)}
    is_flowed = policy == FLOW_TO_DISK
    x_names = {
        MAX_SIZE: _MAX_MEMORY if is_flowed else _MAX_BYTES,
        MAX_COUNT: "" if is_flowed else _MAX_LENGTH,
    }
    for name, limit in limits.items():
        x_name = x_names[name]
        if limit and x_name:
            _put(left, name, limit, x_name, limit)
    if not is_flowed and (POLICY_TYPE in arguments or any(limits.values())):
        name = next(one for one in (POLICY_TYPE, MAX_SIZE, MAX_COUNT) if arguments.get(one))
        _put(left, name, arguments[name], _OVERFLOW, _OVERFLOW_OF[policy])
    return left


def _put(left: dict[str, object], name: str, given: object, x_name: str, value: object) -> None:
    """Add the x-argument for one of Qpid's. Raises OptionError if it is given, too."""
    if x_name in left:
        raise OptionError(name, given, f"nothing, as {x_name} is given")
    left[x_name] = value


def _check_order(options: QueueOptions, lower: str, upper: str, *, is_strict: bool = False) -> None:
    """Check that the lower one, if given, has an upper one and is not above it (strict: is
    below)."""
    low, high = getattr(options, lower), getattr(options, upper)
    if low is None:
        return
    if high is None:
        raise OptionError(lower, low, f"nothing, as {upper} is not given")
    if low > high or (is_strict and low == high):
        raise OptionError(lower, low, f"{'below' if is_strict else 'at most'} {upper}, {high}")
