"""Options of a stream as people write them: checked, and compared with those that it has.

    max_age="7d"            retention: seconds, a text, a timedelta; a second at least
    max_bytes="1 GiB"       of its pages
    max_records=1_000_000
    partitions=4            what a key chooses from
    page_bytes="64 MiB"     retention takes whole pages

All of it is said when the stream is made. Later one may say nothing, or the same: an option that is
not as it was is an OptionError, for two programs that disagree about a stream should be told, and
partitions and pages cannot change. The exact options are in `penstock.queues.stream_options`.
"""

from collections.abc import Mapping
from typing import Final, TypedDict

from penstock.embedded.spellings import Size, Time, size_bytes, time_ms
from penstock.errors import OptionError
from penstock.queues.stream_options import (
    COUNT_MAX,
    PAGE_BYTES_DEFAULT,
    PAGE_BYTES_MAX,
    PAGE_BYTES_MIN,
    PARTITIONS_MAX,
    StreamOptions,
)


class StreamGiven(TypedDict, total=False):
    """The options of a stream. A limit of None is none."""

    max_age: Time | None
    max_bytes: Size | None
    max_records: int | None
    partitions: int
    page_bytes: Size


NAMES: Final = tuple(StreamGiven.__annotations__)


def stream_options(given: Mapping[str, object]) -> StreamOptions:
    """The options of a new stream. OptionError."""
    for name, value in given.items():
        if name not in NAMES:
            raise OptionError(name, value, NAMES)
    partitions = _whole("partitions", given.get("partitions", 1), 1, PARTITIONS_MAX)
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
        max_records=None if count is None else _whole("max_records", count, 0, COUNT_MAX),
    )


def check_same(given: Mapping[str, object], current: StreamOptions) -> None:
    """OptionError if one of these is not as the stream has it."""
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
    """Whether it says a part of something, which a stream is no part of."""
    try:
        float(text)
    except ValueError:
        return text.strip().lower() == "max" or text.strip().endswith("%")
    return not text.strip().isdigit()


def _whole(name: str, given: object, low: int, high: int) -> int:
    if type(given) is not int or not low <= given <= high:
        raise OptionError(name, given, f"a whole number from {low} to {high}")
    return given
