"""Option parsing: options as users write them, checked and turned into the exact ones of the core.

    max_memory="16 MiB"      sizes: text with a unit, or bytes
    ttl="1h", ttl=90         times: seconds, text with units ("500ms", "1h30m", "7d"), a timedelta
    retry_delay=(1, 3600)    first and longest delay; one time alone: always that; 0: at once
    maxsize=1000             max_length=1000, overflow="reject-publish"
    alerts={"count": 10_000, "depth": ("64 MiB", "32 MiB"), "age": "1h", "repeat_gap": 60}
    durability="os"          of the puts of this queue, when the box's is not right for it

    max_age="7d"             of a stream: retention; at least a second
    max_bytes="1 GiB"        of its pages
    partitions=4             what a key chooses from
    page_bytes="64 MiB"      retention removes whole pages

A wrong value raises an OptionError under the name that was given; for an unknown name it suggests
the right one. The exact options, their ranges and their rules are in
`penstock.queues.queue_options` and `stream_options`.

The options of a stream are given when it is made. Later calls give none, or the same: a different
value is an OptionError, for two programs that disagree about a stream should learn of it, and
partitions and pages cannot change.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Final, TypeAlias, TypedDict

from penstock.errors import OptionError
from penstock.options import checked, parse_bytes, whole
from penstock.queues.queue_options import REJECT_PUBLISH, QueueOptions
from penstock.queues.stream_options import (
    COUNT_MAX,
    PAGE_BYTES_DEFAULT,
    PAGE_BYTES_MAX,
    PAGE_BYTES_MIN,
    PARTITIONS_MAX,
    StreamOptions,
)
from penstock.storage.files.durability import DISK, INTERVAL, Durability

UNITS_MS: Final[dict[str, float]] = {
    "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000,
    "w": 604_800_000,
}  # fmt: skip
EXPECTED_TIME: Final = 'seconds, a text as "90s", "1h30m" or "7d", or a timedelta, not negative'
MS_MAX: Final = 1 << 53
DURABILITY: Final = "x-durability"
NAME_BYTES_MAX: Final = 255
URLS: Final = ("amqp://", "amqps://")  # where a directory is wanted: those of brokers

Time: TypeAlias = float | str | timedelta  # seconds, or as UNITS_MS names them
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


_PART: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*")
_QUEUE_NAMES: Final = tuple(QueueGiven.__annotations__)
_STREAM_NAMES: Final = tuple(StreamGiven.__annotations__)
_PLAIN: Final = (
    "priorities", "max_length", "overflow", "dead_letter_to", "max_attempts", "lazy", "policy",
    "backing_queue",
)  # fmt: skip
_COUNT: Final = whole(0, COUNT_MAX)
_ALERTS: Final = ("count", "size", "depth", "age", "repeat_gap")


def time_ms(name: str, given: object) -> int:
    """Return the milliseconds of a time as users write it. OptionError under this name."""
    if isinstance(given, timedelta):
        ms = given.total_seconds() * 1000
    elif isinstance(given, str):
        ms = _text_ms(given)
    elif isinstance(given, int | float) and not isinstance(given, bool):
        ms = given * 1000
    else:
        ms = -1
    if not 0 <= ms <= MS_MAX:
        raise OptionError(name, given, EXPECTED_TIME)
    return round(ms)


def _text_ms(text: str) -> float:
    """Return milliseconds, or -1 if the text is not a time."""
    total, at = 0.0, 0
    while at < len(text):
        part = _PART.match(text, at)
        unit = part and (part[2] or ("s" if part.end() == len(text) and not at else ""))
        if part is None or unit not in UNITS_MS:
            return -1
        total += float(part[1]) * UNITS_MS[unit]
        at = part.end()
    return total if text.strip() else -1


def size_bytes(name: str, given: object, whole_bytes: int) -> int:
    """Return the bytes of a size as users write it. whole_bytes: of which "max" and shares are."""
    if not isinstance(given, str | int | float):
        raise OptionError(name, given, 'a size as "16 MiB" or 1048576 (bytes)')
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
        or not 0 < len(name.encode("utf-8", "replace")) <= NAME_BYTES_MAX
        or "\0" in name
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
        if name not in _QUEUE_NAMES:
            raise OptionError(name, value, _QUEUE_NAMES)
        if name in _PLAIN:
            values[name] = value
        elif name in ("max_memory", "min_memory", "max_length_bytes"):
            field = name if name == "max_length_bytes" else name + "_bytes"
            values[field] = None if value is None else size_bytes(name, value, whole_bytes)
        elif name in ("ttl", "delay"):
            values[name + "_ms"] = None if value is None else time_ms(name, value)
    _add_composed(values, extra, given, whole_bytes)
    values["extra"] = tuple(sorted(extra.items()))
    if current is None:
        return QueueOptions.of(values)
    options = replace(current, **values)  # type: ignore[arg-type]  # checked by the class
    if options.priorities != current.priorities:
        expected = f"{current.priorities}, for the queue was made with that and has messages by it"
        raise OptionError("priorities", options.priorities, expected)
    return options


def _add_composed(
    values: dict[str, object],
    extra: dict[str, object],
    given: Mapping[str, object],
    whole_bytes: int,
) -> None:
    """Add the options that stand for several exact ones, or for none of QueueOptions."""
    if given.get("maxsize") is not None:
        values["max_length"] = given["maxsize"]
        values.setdefault("overflow", REJECT_PUBLISH)
    if given.get("delay", 0) is None:
        values["delay_ms"] = 0
    if "retry_delay" in given:
        values.update(_retry_delay(given["retry_delay"]))
    if "alerts" in given:
        values.update(_alerts(given["alerts"], whole_bytes))
    if "durability" in given:
        extra.pop(DURABILITY, None)
        if given["durability"] is not None:
            mode_of("durability", given["durability"])
            extra[DURABILITY] = given["durability"]


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
        raise OptionError("alerts", given, 'a dict as {"count": 10_000, "age": "1h"}')
    values: dict[str, object] = {"alert_repeat_gap_s": 60}
    for kind in _ALERTS[:-1]:
        values[f"alert_{kind}_up"] = values[f"alert_{kind}_down"] = None
    for kind, value in given.items():
        name = f"alerts[{kind!r}]"
        if kind not in _ALERTS:
            raise OptionError(str(kind), value, _ALERTS)
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
        if name not in _STREAM_NAMES:
            raise OptionError(name, value, _STREAM_NAMES)
    partitions = checked(whole(1, PARTITIONS_MAX), "partitions", given.get("partitions", 1))
    page_bytes = _size("page_bytes", given.get("page_bytes", PAGE_BYTES_DEFAULT))
    if not PAGE_BYTES_MIN <= page_bytes <= PAGE_BYTES_MAX:
        expected = f"a size from {PAGE_BYTES_MIN >> 10} KiB to {PAGE_BYTES_MAX >> 20} MiB"
        raise OptionError("page_bytes", given["page_bytes"], expected)
    age, size, count = given.get("max_age"), given.get("max_bytes"), given.get("max_records")
    return StreamOptions(
        partitions=partitions if partitions > 1 else 0,
        page_bytes=page_bytes,
        max_age_s=None if age is None else _age_s(age),
        max_bytes=None if size is None else _size("max_bytes", size),
        max_records=None if count is None else checked(_COUNT, "max_records", count),
    )


def check_same(given: Mapping[str, object], current: StreamOptions) -> None:
    """Raise OptionError if a given option is not as the stream has it."""
    wanted = stream_options(given)
    for name, value in given.items():
        field = "max_age_s" if name == "max_age" else name
        new, old = getattr(wanted, field), getattr(current, field)
        if name == "partitions":
            new, old = max(new, 1), max(old, 1)
        if new != old:
            has = "none" if old is None else f"{old} s" if name == "max_age" else str(old)
            raise OptionError(name, value, f"{has}, as the stream was made with")


def _age_s(given: object) -> int:
    ms = time_ms("max_age", given)
    if ms < 1000:
        raise OptionError("max_age", given, "a second or more")
    return -(-ms // 1000)


def _size(name: str, given: object) -> int:
    if isinstance(given, float) or (isinstance(given, str) and _is_share(given)):
        raise OptionError(name, given, 'a size as "16 MiB" or 1048576 (bytes)')
    return size_bytes(name, given, 0)


def _is_share(text: str) -> bool:
    """Return whether a text is a share such as "max" or "50%", which a stream cannot have."""
    try:
        float(text)
    except ValueError:
        return text.strip().lower() == "max" or text.strip().endswith("%")
    return not text.strip().isdigit()
