"""Option parsing: options and messages as users write them, checked and turned into the exact ones
of the core.

QUEUE_KEYWORDS and STREAM_KEYWORDS list them; tables of the documentation are made from the rows. A
wrong value raises an OptionError under the name that was given; for an unknown name it suggests the
right one. The exact options, their ranges and their rules are in `penstock.queues.queue_options`
and `stream_options`.

The options of a stream are given when it is made. Later calls give none, or the same: a different
value is an OptionError, for two programs that disagree about a stream should learn of it, and
partitions and pages cannot change.

**NewBody.** A body is bytes. The caller encodes text and serialises objects: a library that guessed
would have to guess again when it reads them, and pickles run the code that they contain. Headers
become one small byte string (`penstock.queues.headers`), empty if there are none.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Final, TypeAlias, TypedDict

from penstock.embedded.box_headers import BoxHeaders
from penstock.errors import OptionError
from penstock.options import (
    BYTES_MAX,
    Kind,
    Option,
    WrongValueError,
    by_name,
    bytes_in,
    check_known,
    checked,
    format_bytes,
    ms_in,
    parse_bytes,
    whole,
)
from penstock.queues.headers import HeaderError, HeaderValue
from penstock.queues.queue_options import QUEUE_ARGUMENTS, REJECT_PUBLISH, QueueOptions
from penstock.queues.stream_options import (
    COUNT_MAX,
    PAGE_BYTES_MAX,
    PAGE_BYTES_MIN,
    PARTITIONS_MAX,
    StreamOptions,
)
from penstock.storage.files.durability import DISK, INTERVAL, Durability

EXPECTED_TIME: Final = (
    'seconds, a string such as "90s", "1h30m" or "7d", or a timedelta, not negative'
)
MS_MAX: Final = 1 << 53
DURABILITY: Final = "x-durability"
NAME_BYTES_MAX: Final = 255

Time: TypeAlias = float | str | timedelta  # seconds, or as penstock.options has times
Size: TypeAlias = int | float | str


class QueueGiven(TypedDict, total=False):
    """The options of a queue; None removes one."""

    priorities: int
    max_memory: Size | None
    min_memory: Size | None
    max_length: int | None
    maxsize: int | None
    max_length_bytes: Size | None
    overflow: str
    ttl: Time | None
    delay: Time | None
    dead_letter_to: str | None
    max_attempts: int | None
    retry_delay: Time | tuple[Time, Time]
    lazy: bool
    policy: str
    backing_queue: str
    alerts: Mapping[str, object] | None
    durability: str | None


class StreamGiven(TypedDict, total=False):
    """The options of a stream; None means no limit."""

    max_age: Time | None
    max_bytes: Size | None
    max_records: int | None
    partitions: int
    page_bytes: Size


_ALERTS: Final = ("count", "size", "depth", "age", "repeat_gap")


def check_timeout(timeout: object) -> None:
    """Raise TypeError or ValueError unless it is seconds, 0 or more, or None: no limit."""
    if timeout is None:
        return
    if not isinstance(timeout, int | float) or isinstance(timeout, bool):
        raise TypeError(f"timeout is a number of seconds, or None for no limit, not {timeout!r}")
    if not timeout >= 0:
        raise ValueError(f"timeout must not be negative, not {timeout}")


def check_count(n: object) -> None:
    """Raise TypeError or ValueError unless it is a number of messages, 1 or more."""
    if not isinstance(n, int) or isinstance(n, bool):
        raise TypeError(f"n is a number of messages, not {n!r}")
    if n < 1:
        raise ValueError(f"n must be at least 1, not {n}")


# ---- kinds and tables ----------------------------------------------------------------------------


def _or_none(kind: Kind) -> Kind:
    return replace(kind, check=lambda value: None if value is None else kind.check(value))


def _time(value: object) -> int:
    """Return the milliseconds of a time as users write it."""
    ms = ms_in(value)
    if not 0 <= ms <= MS_MAX:
        raise WrongValueError(EXPECTED_TIME)
    return round(ms)


def _age(value: object) -> int:
    """Return seconds, rounded up."""
    ms = _time(value)
    if ms < 1000:
        raise WrongValueError("a second or more")
    return -(-ms // 1000)


def _size(low: int, high: int) -> Kind:
    """Bytes of a size that is no part of another."""
    expected = f"a size from {format_bytes(low)} to {format_bytes(high)}"

    def check(value: object) -> int:
        number = bytes_in(value, -1) if isinstance(value, str) else value
        is_share = isinstance(value, str) and "." in value and value.strip()[-1].isdigit()
        if type(number) is not int or number < 0 or is_share:
            raise WrongValueError('a size such as "16 MiB" or 1048576 (bytes)')
        if not low <= number <= high:
            raise WrongValueError(expected)
        return number

    return Kind('bytes, `"16 MiB"`', check, shown=format_bytes)


def _exact(target: str) -> Kind:
    """What the exact option may be, which checks it itself."""
    (kind,) = (option.kind for option in QUEUE_ARGUMENTS if option.target == target)
    return replace(kind, check=lambda value: value)


def _length() -> Kind:
    """A number of messages, or None."""
    (kind,) = (option.kind for option in QUEUE_ARGUMENTS if option.target == "max_length")
    return _or_none(kind)


_TIME: Final = Kind('seconds, `"90s"`, `"1h30m"`, `"7d"`, a timedelta', _time)
# Of sizes that may be a share of the box's memory, and of what stands for several exact options.
_SHARE: Final = Kind('bytes, `"16 MiB"`, or a share of the box\'s memory, `"0.25"`', str)
_COMPOSED: Final = Kind("", str)
QUEUE_KEYWORDS: Final[tuple[Option, ...]] = (
    Option(
        "maxsize", _length(),
        "maximum number of messages; `put` waits for room, or raises `QueueFullError`",
        default="",
    ),
    Option("max_length", _exact("max_length"), "the same limit with `overflow`"),
    Option("max_length_bytes", _SHARE, "and one of their bytes"),
    Option("overflow", _exact("overflow"), "what gives way at these limits"),
    Option(
        "max_memory", _SHARE, "RAM of the queue; the rest is on disk", field="max_memory_bytes"
    ),
    Option(
        "min_memory", _SHARE, "RAM below which messages are read ahead; half of `max_memory`",
        field="min_memory_bytes",
    ),
    Option(
        "priorities", _exact("priorities"), "highest priority; the highest is delivered first"
    ),
    Option(
        "ttl", _or_none(_TIME), "a message that nobody got for so long expires", field="ttl_ms"
    ),
    Option("delay", _TIME, "do not deliver before this time", field="delay_ms", default="`0`"),
    Option(
        "dead_letter_to", Kind("name of a queue", lambda value: value),
        "the queue for expired, rejected and poison messages",
    ),
    Option(
        "max_attempts", replace(_exact("max_attempts"), words="whole number from 1"),
        "deliveries before a message counts as poison",
    ),
    Option(
        "retry_delay", replace(_COMPOSED, words="`(1, 3600)`, or one time"),
        "before the next attempt: the first time, doubled each time up to the second; `0`: at once",
        default="`(1, 3600)`",
    ),
    Option(
        "durability", replace(_COMPOSED, words="`disk`, `interval`, `os`, `none`"),
        "overrides the box's durability for this queue",
    ),
    Option(
        "alerts", replace(_COMPOSED, words="dict, `{\"count\": 10_000}`"),
        "thresholds of [alerts](../how-it-works/memory.md#alerts): also `size`, `depth`, `age`; "
        "pairs `(up, down)`; `repeat_gap`",
    ),
    Option(
        "backing_queue", _exact("backing_queue"),
        "[another class](../guides/backing-queues.md) that holds the messages",
        default="",
    ),
    Option(
        "lazy", replace(_exact("lazy"), words="True or False"),
        "everything goes to disk at once: see [memory and paging](../how-it-works/memory.md)",
    ),
    Option("policy", _exact("policy"), "how it pages"),
)  # fmt: skip
STREAM_KEYWORDS: Final[tuple[Option, ...]] = (
    Option(
        "max_age", _or_none(replace(_TIME, check=_age)), "remove records that are older",
        field="max_age_s", default="for ever",
    ),
    Option(
        "max_bytes", _or_none(_size(0, BYTES_MAX)),
        "remove the oldest pages while the stream is larger", default="no limit",
    ),
    Option(
        "max_records", _or_none(whole(0, COUNT_MAX)),
        "remove the oldest pages while it has more records", default="no limit",
    ),
    Option(
        "partitions", whole(1, PARTITIONS_MAX), "number of partitions; `key` chooses one",
        default="`1`",
    ),
    Option(
        "page_bytes", _size(PAGE_BYTES_MIN, PAGE_BYTES_MAX),
        "size of a page file, from 4 KiB to 1 GiB; retention removes whole pages",
    ),
)  # fmt: skip
_QUEUE: Final = by_name(QUEUE_KEYWORDS)
_STREAM: Final = by_name(STREAM_KEYWORDS)


def time_ms(name: str, given: object) -> int:
    """Return the milliseconds of a time as users write it. OptionError under this name."""
    ms: int = checked(_TIME, name, given)
    return ms


def size_bytes(name: str, given: object, whole_bytes: int) -> int:
    """Return the bytes of a size as users write it. whole_bytes: of which "max" and shares are."""
    if not isinstance(given, str | int | float):
        raise OptionError(name, given, 'a size such as "16 MiB" or 1048576 (bytes)')
    return parse_bytes(name, given, whole_bytes)


def mode_of(name: str, given: object) -> int:
    """Return the durability mode of a put: "disk", "os", "none", or "interval" (the box's)."""
    if given == "interval":
        return INTERVAL
    if not isinstance(given, str) or "=" in given:
        raise OptionError(name, given, '"disk", "interval", "os" or "none"')
    return Durability.parse(given).mode


def check_name(name: object, option: str = "name") -> str:
    """Return the name of a queue, a stream or a reader. OptionError if it cannot be one."""
    if (
        not isinstance(name, str)
        or not 0 < len(name.encode("utf-8", "surrogatepass")) <= NAME_BYTES_MAX
        or "\0" in name
        or any("\ud800" <= character <= "\udfff" for character in name)
    ):
        raise OptionError(option, name, f"text of 1 to {NAME_BYTES_MAX} bytes without NUL")
    return name


def queue_options(
    given: Mapping[str, object], current: QueueOptions | None, whole_bytes: int
) -> QueueOptions:
    """Return the options of a queue: those given, the others as they are now or by default.
    OptionError."""
    values: dict[str, object] = {}
    extra = {} if current is None else dict(current.extra)
    for name, value in given.items():
        check_known(name, value, _QUEUE)
        option = _QUEUE[name]
        if option.kind is _SHARE:
            size = None if value is None else size_bytes(name, value, whole_bytes)
            values[option.target] = size
        elif name == "delay" and value is None:
            values["delay_ms"] = 0
        elif name == "retry_delay":
            values.update(_retry_delay(value))
        elif name == "alerts":
            values.update(_alerts(value, whole_bytes))
        elif name == "durability":
            extra.pop(DURABILITY, None)
            if value is not None:
                mode_of(name, value)
                extra[DURABILITY] = value
        elif name != "maxsize":
            values[option.target] = checked(option.kind, name, value)
    if "maxsize" in given:
        _set_length(values, given["maxsize"])
    values["extra"] = tuple(sorted(extra.items()))
    if current is None:
        return QueueOptions.of(values)
    options = replace(current, **values)  # type: ignore[arg-type]  # checked by the class
    if options.priorities != current.priorities:
        expected = f"{current.priorities}, for the queue was made with that and has messages by it"
        raise OptionError("priorities", options.priorities, expected)
    return options


def own_mode(options: QueueOptions) -> int | None:
    """Return the durability mode that a queue has of its own, None if it has none."""
    given = dict(options.extra).get(DURABILITY)
    return None if given is None else mode_of("durability", given)


def box_durability(given: object) -> Durability:
    """Return the durability of a box: "none", "os", "interval", "interval=<ms>" or "disk"."""
    if not isinstance(given, str):
        raise OptionError("durability", given, '"none", "os", "interval=<ms>" or "disk"')
    if given == "interval":
        return Durability(INTERVAL, 200)
    return Durability.parse(given) if given != "disk" else Durability(DISK)


def _set_length(values: dict[str, object], maxsize: object) -> None:
    """Set the options that `maxsize` stands for. OptionError."""
    length = checked(_QUEUE["maxsize"].kind, "maxsize", maxsize)
    if length is None:
        values.setdefault("max_length", None)
        return
    if values.get("max_length") is not None:
        raise OptionError("maxsize", length, "nothing, when max_length is given")
    values["max_length"] = length
    values.setdefault("overflow", REJECT_PUBLISH)


def _retry_delay(given: object) -> dict[str, object]:
    first, last = given if isinstance(given, tuple | list) and len(given) == 2 else (given, given)
    least, most = time_ms("retry_delay", first), time_ms("retry_delay", last)
    if least > most:
        raise OptionError("retry_delay", given, "the first delay, and a longest not below it")
    return {"retry_delay_ms_min": least, "retry_delay_ms_max": most}


def _alerts(given: object, whole_bytes: int) -> dict[str, object]:
    """Return all thresholds; those that are not given are None."""
    if given is None:
        given = {}
    if not isinstance(given, Mapping):
        raise OptionError("alerts", given, 'a dict such as {"count": 10_000, "age": "1h"}')
    values: dict[str, object] = {"alert_repeat_gap_s": 60}
    for kind in _ALERTS[:-1]:
        values[f"alert_{kind}_up"] = values[f"alert_{kind}_down"] = None
    for kind, value in given.items():
        name = f"alerts[{kind!r}]"
        check_known(str(kind), value, _ALERTS)
        if kind == "repeat_gap":
            values["alert_repeat_gap_s"] = round(time_ms(name, value) / 1000)
            continue
        pair = value if isinstance(value, tuple | list) else (value,)
        if not 1 <= len(pair) <= 2:
            raise OptionError(name, value, "a threshold, or two: (up, down)")
        for end, one in zip(("up", "down"), pair, strict=False):
            if kind == "age":
                values[f"alert_age_{end}"] = time_ms(name, one)
            elif kind == "count":
                values[f"alert_count_{end}"] = one
            else:
                values[f"alert_{kind}_{end}"] = size_bytes(name, one, whole_bytes)
    return values


def stream_options(given: Mapping[str, object]) -> StreamOptions:
    """Return the options of a new stream. OptionError."""
    for name, value in given.items():
        check_known(name, value, _STREAM)
    values = {
        _STREAM[name].target: checked(_STREAM[name].kind, name, given[name]) for name in given
    }
    if values.get("partitions") == 1:
        del values["partitions"]  # a stream without partitions
    return StreamOptions(**values)


def check_same(given: Mapping[str, object], current: StreamOptions) -> None:
    """Raise OptionError if a given option is not as the stream has it."""
    wanted = stream_options(given)
    for name, value in given.items():
        field = _STREAM[name].target
        new, old = getattr(wanted, field), getattr(current, field)
        if name == "partitions":
            new, old = max(new, 1), max(old, 1)
        if new != old:
            has = "none" if old is None else f"{old} s" if name == "max_age" else str(old)
            raise OptionError(name, value, f"{has}, as the stream was made with")


# ---- messages to be put --------------------------------------------------------------------------


Body: TypeAlias = bytes | bytearray | memoryview
Headers: TypeAlias = Mapping[str, HeaderValue]

HEADERS = BoxHeaders()
_OPTIONS = ("priority", "ttl", "delay", "headers")


class NewBody:
    """A message to be put. ttl_ms, delay_ms: None for the queue's own. OptionError, TypeError."""

    __slots__ = ("body", "delay_ms", "header", "priority", "ttl_ms")

    def __init__(
        self,
        body: object,
        priority: int = 0,
        ttl: object = None,
        delay: object = None,
        headers: Headers | None = None,
    ) -> None:
        if type(priority) is not int or not 0 <= priority <= 255:
            raise OptionError("priority", priority, "a whole number from 0 to 255")
        self.body: bytes = body_of(body)
        self.priority: int = priority
        self.ttl_ms: int | None = None if ttl is None else time_ms("ttl", ttl)
        self.delay_ms: int | None = None if delay is None else time_ms("delay", delay)
        self.header: bytes = header_of(headers) if headers else b""
        if self.ttl_ms == 0:  # it expires when it is requeued, as in a broker
            self.header = HEADERS.for_now(self.header)


def body_of(body: object) -> bytes:
    """Return the bytes of a body. TypeError says what to do with anything else."""
    if type(body) is bytes:
        return body
    if isinstance(body, str):
        raise TypeError("a body is bytes, not str: encode it first, as put(text.encode())")
    try:
        return bytes(memoryview(body))  # type: ignore[arg-type]  # or a TypeError
    except TypeError:
        pass
    raise TypeError(
        f"a body is bytes, not {type(body).__name__}: serialise it first, "
        "as put(json.dumps(value).encode())"
    )


def header_of(headers: Headers) -> bytes:
    """Return the encoded header with these values. OptionError for values that it cannot have."""
    try:
        header = HEADERS.with_values(b"", headers)
        for name in headers:
            size = len(name.encode())
            if size > NAME_BYTES_MAX:  # AMQP has one byte for the length of a name
                text = f"a name of {size} bytes: at most {NAME_BYTES_MAX} are allowed"
                raise HeaderError(text)
        return header
    except (HeaderError, AttributeError, ValueError, TypeError) as error:
        expected = f"a dict of str to plain values: {error}"
        raise OptionError("headers", headers, expected) from None


def bodies_of(items: Iterable[object]) -> list[NewBody] | list[bytes]:
    """Return the messages that `put_many` was given: bodies, or pairs (body, options). If all are
    plain bodies, as usual, they are returned as bytes, to save an object for each."""
    if isinstance(items, bytes | str | bytearray | memoryview):
        raise TypeError("put_many takes many bodies, as a list; for one there is put")
    given = list(items)
    bodies = [item for item in given if type(item) is bytes]
    if len(bodies) == len(given):
        return bodies
    news: list[NewBody] = []
    for item in given:
        if isinstance(item, tuple):
            if len(item) != 2 or not isinstance(item[1], Mapping):
                raise TypeError("a message of put_many is its body, or a pair: (body, options)")
            for name in item[1]:
                if name not in _OPTIONS:
                    raise OptionError(str(name), item[1][name], _OPTIONS)
            news.append(NewBody(item[0], **item[1]))
        else:
            news.append(NewBody(item))
    return news
