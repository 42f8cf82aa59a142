"""RangeQuery: which records of a stream are asked for, from the address of a request.

    partition=0             default 0
    from=1000 to=2000       offsets, `to` not among them; default: the first that is there, the head
    since=...               instead of from: the first record that came then or later: ISO 8601 (in
                            UTC unless it says otherwise), or microseconds since 1970
    limit=100               at most so many records
    columns=offset,value    of the Arrow answer

An unknown name, a name given twice, or a value that is none is a 400 that says what was expected.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from starlette.datastructures import QueryParams

from penstock.http.http_errors import HttpError

OFFSET_MAX: Final = (1 << 63) - 1
PARTITION_MAX: Final = (1 << 31) - 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
RANGE_NAMES: Final = ("partition", "from", "to", "since", "limit")


@dataclass(frozen=True, slots=True)
class RangeQuery:
    """What was given; None: nothing was. Offsets count from 0, since_us is since 1970."""

    partition: int
    first: int | None
    last: int | None
    since_us: int | None
    limit: int | None


def given(params: QueryParams, names: tuple[str, ...]) -> dict[str, str]:
    """The query as a table. HttpError 400: a name that is not among `names`, or comes twice."""
    found: dict[str, str] = {}
    for name, value in params.multi_items():
        if name not in names:
            raise HttpError(400, f"unknown parameter {name!r}, expected {', '.join(names)}")
        if name in found:
            raise HttpError(400, f"parameter {name!r} was given twice")
        found[name] = value
    return found


def range_query(query: Mapping[str, str]) -> RangeQuery:
    """The range that a query asks for. HttpError 400."""
    if "since" in query and "from" in query:
        raise HttpError(400, "parameters 'from' and 'since' exclude each other")
    since = query.get("since")
    return RangeQuery(
        partition=whole(query, "partition", PARTITION_MAX) or 0,
        first=whole(query, "from", OFFSET_MAX),
        last=whole(query, "to", OFFSET_MAX),
        since_us=None if since is None else time_us("since", since),
        limit=whole(query, "limit", OFFSET_MAX),
    )


def whole(query: Mapping[str, str], name: str, most: int) -> int | None:
    """A number of the query. HttpError 400."""
    text = query.get(name)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 19 or int(text) > most:
        raise HttpError(
            400, f"parameter {name!r}: given {text!r}, expected a whole number from 0 to {most}"
        )
    return int(text)


def time_us(name: str, text: str) -> int:
    """A time of the query, in microseconds since 1970. HttpError 400."""
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdigit() and len(digits) <= 18:
        return int(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise HttpError(
            400, f"parameter {name!r}: given {text!r}, expected a time such as "
            "2026-11-21T20:00:00Z (a + in it as %2B), or microseconds since 1970",
        ) from None  # fmt: skip
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return (time - _EPOCH) // _MICROSECOND
