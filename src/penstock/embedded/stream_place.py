"""Where a reading begins: an offset, or a moment, as people say them.

    offset="first" | "last" | "next" | 17         the first record left, the last, the next to come
    since=datetime(...)                           without a time zone: local time
    since=timedelta(hours=1), since="1h"          so long ago
    since=callable                                gives one of these, or None for the first; called
                                                  when the reading begins, as S5's sinceTime is

Nothing: the first record. A plain number is no moment, for nobody could say whether it means so
long ago or so long after 1970.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from penstock.embedded.sources import Call, StreamInfo, StreamSource
from penstock.embedded.spellings import time_ms
from penstock.embedded.stream_record import EPOCH
from penstock.errors import OptionError

Moment: TypeAlias = datetime | timedelta | str
Since: TypeAlias = Moment | Callable[[], "Moment | None"] | None
Offset: TypeAlias = int | str | None

NAMED: Final = ("first", "last", "next")
EXPECTED_OFFSET: Final = '"first", "last", "next" or a whole number, not negative'
EXPECTED_SINCE: Final = (
    'a datetime, a timedelta or a text as "1h" (so long ago), or a callable that gives one'
)
US: Final = timedelta(microseconds=1)


class Place:
    """What was asked for; checked here, looked up by `offsets`. partition: None for all."""

    def __init__(
        self, source: StreamSource, since: Since, offset: Offset, partition: int | None
    ) -> None:
        if since is not None and offset is not None:
            raise OptionError("since", since, "nothing, when an offset is given: one of the two")
        if offset is not None and offset not in NAMED and not _is_number(offset):
            raise OptionError("offset", offset, EXPECTED_OFFSET)
        if not callable(since) and since is not None:
            moment_us(since, 0)
        check_partition(source, partition)
        if isinstance(offset, int) and partition is None and source.partitions > 1:
            expected = f"one of 0 to {source.partitions - 1}: offsets are those of a partition"
            raise OptionError("partition", None, expected)
        self._since = since
        self._offset = offset
        self.partitions: list[int] = (
            list(range(source.partitions)) if partition is None else [partition]
        )

    def offsets(self, source: StreamSource, info: StreamInfo) -> Call[dict[int, int]]:
        """Where to begin in each partition. OptionError: an offset that is still to come."""
        since = self._since
        if callable(since):
            since = since()
        if since is not None:
            time_us = moment_us(since, source.wall_us())
            found: dict[int, int] = {}
            for partition in self.partitions:
                found[partition] = yield from source.find(partition, time_us)
            return found
        return {partition: self._offset_in(info, partition) for partition in self.partitions}

    def _offset_in(self, info: StreamInfo, partition: int) -> int:
        part = info.partitions[partition]
        if isinstance(self._offset, int):
            if self._offset > part.next:
                raise OptionError("offset", self._offset, f"at most {part.next}, the next one")
            return self._offset
        if self._offset == "next":
            return part.next
        if self._offset == "last":
            return max(part.next - 1, part.first)
        return part.first


def moment_us(given: object, now_us: int) -> int:
    """Us since 1970 of a moment as people write it; OptionError."""
    if isinstance(given, datetime):
        return (given.astimezone(EPOCH.tzinfo) - EPOCH) // US
    if isinstance(given, timedelta | str):
        try:
            return now_us - time_ms("since", given) * 1000
        except OptionError:
            pass
    raise OptionError("since", given, EXPECTED_SINCE)


def check_partition(source: StreamSource, partition: object) -> None:
    """OptionError unless it is one of the stream's, or None."""
    if partition is None:
        return
    if not _is_number(partition) or not 0 <= int(str(partition)) < source.partitions:
        last = source.partitions - 1
        raise OptionError("partition", partition, f"a whole number from 0 to {last}")


def _is_number(given: object) -> bool:
    return isinstance(given, int) and not isinstance(given, bool) and given >= 0
