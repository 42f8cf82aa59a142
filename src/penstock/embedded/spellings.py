"""Spellings: options as people write them, from and to the exact ones of the core.

    max_memory="16 MiB"      sizes: text with a unit, or bytes
    ttl="1h", ttl=90         times: seconds, text with units ("500ms", "1h30m", "7d"), a timedelta
    retry_delay=(1, 3600)    first and longest delay; one time alone: always that; 0: at once
    maxsize=1000             max_length=1000, overflow="reject-publish"
    alerts={"count": 10_000, "depth": ("64 MiB", "32 MiB"), "age": "1h", "repeat_gap": 60}
    durability="os"          of the puts of this queue, when the box's is not right for it

What is not right is an OptionError under the name that was given, and an unknown name one that
suggests the right one. The exact options, their ranges and their rules are in
`penstock.queues.queue_options`; here is nothing but spelling.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Final, TypeAlias, TypedDict

from penstock.errors import OptionError
from penstock.queues.budget import parse_bytes
from penstock.queues.queue_options import REJECT_PUBLISH, QueueOptions
from penstock.storage.durability import DISK, INTERVAL, Durability

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


class Given(TypedDict, total=False):
    """The options of a queue. None takes one away."""

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
    alerts: Mapping[str, object] | None
    durability: str | None


_PART: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*")
_NAMES: Final = tuple(Given.__annotations__)
_PLAIN: Final = (
    "priorities", "max_length", "overflow", "dead_letter_to", "max_attempts", "lazy", "policy"
)  # fmt: skip
_ALERTS: Final = ("count", "size", "depth", "age", "repeat_gap")


def time_ms(name: str, given: object) -> int:
    """Milliseconds of a time as people write it; OptionError(name, ...)."""
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
    """-1 if it is no time."""
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
    """Bytes of a size as people write it; `whole_bytes` is what "max" and fractions are of."""
    if not isinstance(given, str | int | float):
        raise OptionError(name, given, 'a size as "16 MiB" or 1048576 (bytes)')
    return parse_bytes(name, given, whole_bytes)


def mode_of(name: str, given: object) -> int:
    """The mode of a put: "disk", "os", "none", or "interval", whose length is the box's."""
    if given == "interval":
        return INTERVAL
    if not isinstance(given, str) or "=" in given:
        raise OptionError(name, given, '"disk", "interval", "os" or "none"')
    return Durability.parse(given).mode


def check_name(name: object, option: str = "name") -> str:
    """OptionError unless it can be the name of a queue, a stream or a reader."""
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
    """The options of a queue: those that are given, the others as they are now, or by default."""
    values: dict[str, object] = {}
    extra = {} if current is None else dict(current.extra)
    for name, value in given.items():
        if name not in _NAMES:
            raise OptionError(name, value, _NAMES)
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
    """Those that stand for several exact options, or for none of QueueOptions."""
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
    """The durability mode of a queue's own, None if it has none."""
    given = dict(options.extra).get(DURABILITY)
    return None if given is None else mode_of("durability", given)


def box_durability(given: object) -> Durability:
    """The durability of a box."""
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
    """All thresholds: those that are not given are none."""
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
