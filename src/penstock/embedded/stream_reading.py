"""Reading a stream: where it begins, one pass over it, and readers whose place the stream keeps.

Written once for threads and asyncio, for directories and brokers, against `sources.StreamSource`.

**Where it begins** is an offset or a moment:

    offset="first" | "last" | "next" | 17         the first record left, the last, the next to come
    since=datetime(...)                           without a time zone: local time
    since=timedelta(hours=1), since="1h"          so long ago
    since=callable                                returns one of these, or None for the first;
                                                  called when the reading begins

With neither it is the first record. A plain number is not a moment: it could mean so long ago
or so long after 1970.

**A pass** reads from there, chunk by chunk. Without `follow` it reads what was there when it began,
and ends. With `follow` it then waits for more, until none came for `timeout` seconds, or the box
was closed. In a partition records come by their offsets. Of several partitions, the records that
were there when the pass began come by time, those of the same time by partition; later ones come as
they arrive. RAM holds one chunk of each partition. One thread or task uses a pass at a time.

A gap is where retention was faster than the reader: the next record that is left has the number of
records missing before it, or, if the reader asked for that, the pass ends with a StreamGapError.

**A reader** has a name, by which the stream keeps where it goes on in each partition. Reading moves
nothing; a commit does. A new pass begins where the last commit was, so records whose handling
failed are read again. A commit is like an acknowledgement of a queue: written at once, on disk
within a second, or sooner if asked. Several threads, tasks or programs may use one name; the last
commit counts, and committing an older record takes nothing back. A pass with `commits` commits what
its loop has gone past, chunk by chunk and at its end, also after an exception; not the record that
the loop was at.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

from penstock.clock import microseconds
from penstock.embedded.option_parsing import check_timeout, time_ms
from penstock.embedded.sources import Call, Feed, StreamInfo, StreamSource
from penstock.embedded.stream_record import StreamRecord
from penstock.errors import BoxClosedError, OptionError, StreamGapError

Moment: TypeAlias = datetime | timedelta | str
Since: TypeAlias = Moment | Callable[[], "Moment | None"] | None
Offset: TypeAlias = int | str | None

NAMED: Final = ("first", "last", "next")
EXPECTED_OFFSET: Final = '"first", "last", "next" or a whole number, not negative'
EXPECTED_SINCE: Final = (
    'a datetime, a timedelta, a string such as "1h" (so long ago), or a callable that returns one'
)


class StartPosition:
    """Where a reading begins, as a user gave it; `offsets` looks it up. partition: None for all."""

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
        """Return the offset to begin at in each partition. OptionError: no such record yet."""
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
    """Return a moment as users write it in microseconds since 1970. OptionError."""
    if isinstance(given, datetime):
        return microseconds(given.astimezone(UTC))
    if isinstance(given, timedelta | str):
        try:
            return now_us - time_ms("since", given) * 1000
        except OptionError:
            pass
    raise OptionError("since", given, EXPECTED_SINCE)


def check_partition(source: StreamSource, partition: object) -> None:
    """Raise OptionError unless this is a partition of the stream, or None."""
    if partition is None:
        return
    if not _is_number(partition) or not 0 <= int(str(partition)) < source.partitions:
        last = source.partitions - 1
        raise OptionError("partition", partition, f"a whole number from 0 to {last}")


def _is_number(given: object) -> bool:
    return isinstance(given, int) and not isinstance(given, bool) and given >= 0


TELL: Final = "tell"
ERROR: Final = "error"

Begin = Callable[[StreamSource, StreamInfo], Call[dict[int, int]]]


class PassLimits:
    """When a pass ends, and what it does at a gap. OptionError, TypeError, ValueError."""

    __slots__ = ("follow", "has_gap_errors", "max_records", "timeout_s")

    def __init__(
        self, *, follow: bool, timeout: float | None, max_records: int | None, on_gap: str
    ) -> None:
        check_timeout(timeout)
        if timeout is not None and not follow:
            raise OptionError("timeout", timeout, "nothing, or follow=True: only that waits")
        if max_records is not None and (type(max_records) is not int or max_records < 0):
            raise OptionError("max_records", max_records, "a whole number, not negative")
        if on_gap not in (TELL, ERROR):
            raise OptionError("on_gap", on_gap, f'"{TELL}" or "{ERROR}"')
        self.follow: bool = bool(follow)
        self.timeout_s: float | None = timeout
        self.max_records: int | None = max_records
        self.has_gap_errors: bool = on_gap == ERROR


class PassPartition:
    """One partition of a pass. expected: the offset that should come next. until: the end of what
    was there when the pass began. error: a gap, to be raised when the records here are given."""

    __slots__ = ("_at", "_records", "error", "expected", "feed", "until")

    def __init__(self, feed: Feed, expected: int, until: int) -> None:
        self.feed: Feed = feed
        self.expected: int = expected
        self.until: int = until
        self.error: StreamGapError | None = None
        self._records: Sequence[StreamRecord] = ()
        self._at: int = 0

    @property
    def head(self) -> StreamRecord | None:
        """The first record that is here, None if none is."""
        return self._records[self._at] if self._at < len(self._records) else None

    @property
    def is_behind(self) -> bool:
        """Whether records that were there when the pass began are still to come."""
        return self.expected < self.until and self.error is None

    def is_wanting(self, limits: PassLimits) -> bool:
        """Return whether no record is here, and some may come."""
        return self.head is None and self.error is None and (limits.follow or self.is_behind)

    def fill(self, records: Sequence[StreamRecord], limits: PassLimits, name: str) -> None:
        """Take a chunk of records, and note its gaps."""
        taken: list[StreamRecord] = []
        for record in records:
            gap = record.offset - self.expected
            if record.offset >= self.until and not gap and not limits.follow:
                break
            if gap and limits.has_gap_errors:
                self.error = StreamGapError(name, record.partition, self.expected, record.offset)
                break
            record.gap = gap
            self.expected = record.offset + 1
            taken.append(record)
        self._records = taken
        self._at = 0

    def pop(self) -> StreamRecord:
        """Remove the first record and return it."""
        self._at += 1
        return self._records[self._at - 1]

    def pop_all(self) -> list[StreamRecord]:
        """Remove all records that are here and return them."""
        records, self._records = list(self._records[self._at :]), ()
        self._at = 0
        return records


class StreamPass:
    """A pass over a stream. begin(source, info): a call that returns where to begin, by partition.
    given: the records that `next` returned last. at: which of them the loop is at, -1 for none."""

    def __init__(
        self, source: StreamSource, begin: Begin, limits: PassLimits, reader: str = ""
    ) -> None:
        self._source = source
        self._reader_name = reader
        self._begin = begin
        self._limits = limits
        self._lanes: list[PassPartition] | None = None
        self._left: int | None = limits.max_records
        self._is_over: bool = False
        self.given: list[StreamRecord] = []
        self.at: int = -1

    def next(self) -> Call[list[StreamRecord]]:
        """Return the next records, at least one; none at the end of the pass."""
        if self._is_over:
            return []
        if self._lanes is None:
            yield from self._open()
        try:
            records = yield from self._some()
        except BoxClosedError:
            if not self._limits.follow:
                raise
            records = []
        if self._left is not None:
            records = records[: self._left]
            self._left -= len(records)
        if not records:
            self.close()
        self.given = records
        return records

    def end(self) -> Call[None]:
        """End the pass: its loop has ended or was left."""
        self.close()
        yield from ()

    def close(self) -> None:
        """Close the feeds. A second time does nothing."""
        self._is_over = True
        lanes, self._lanes = self._lanes, []
        for lane in lanes or ():
            lane.feed.close()

    def _open(self) -> Call[None]:
        source = self._source
        info = yield from source.info(self._reader_name)
        begin = yield from self._begin(source, info)
        self._lanes = []
        for partition, offset in begin.items():
            feed = source.feed(partition, offset)
            self._lanes.append(PassPartition(feed, offset, info.partitions[partition].next))

    def _some(self) -> Call[list[StreamRecord]]:
        """Return records that may be given now; none: the pass is at its end."""
        lanes = self._lanes
        follow, timeout_s = self._limits.follow, self._limits.timeout_s
        deadline: float | None = None
        has_waited = False
        if not lanes or self._left == 0:
            return []
        while True:
            empty = yield from self._fill(lanes)
            records = lanes[0].pop_all() if len(lanes) == 1 else self._merged(lanes)
            if records:
                return records
            for lane in lanes:
                if lane.error is not None:
                    raise lane.error
            if not empty:
                return []
            if follow and not any(lane.is_behind for lane in empty):
                now = self._source.monotonic()
                if timeout_s is not None and not has_waited:
                    deadline = now + timeout_s
                if has_waited and deadline is not None and now >= deadline:
                    return []
                has_waited = True
            yield from self._source.wait([lane.feed for lane in empty], deadline)

    def _fill(self, lanes: list[PassPartition]) -> Call[list[PassPartition]]:
        """Fill the lanes that are empty. Return those that stay empty and may have records
        later."""
        empty: list[PassPartition] = []
        limits = self._limits
        for lane in lanes:
            if lane.is_wanting(limits):
                lane.fill((yield from lane.feed.chunk()), limits, self._source.name)
                if lane.is_wanting(limits):
                    empty.append(lane)
        return empty

    def _merged(self, lanes: list[PassPartition]) -> list[StreamRecord]:
        """Return records of several partitions by time. Ends where an empty lane may still have
        older ones."""
        records: list[StreamRecord] = []
        while True:
            first: PassPartition | None = None
            for lane in lanes:
                head = lane.head
                if head is None:
                    if lane.is_behind or lane.error is not None:
                        return records
                    continue
                best = None if first is None else first.head
                if best is None or head.time_us < best.time_us:
                    first = lane
            if first is None:
                return records
            records.append(first.pop())
            if first.head is None and self._limits.follow:
                return records  # it may have more


class NamedReader:
    """A reader by its name. start: where it begins if the stream does not know the name."""

    def __init__(self, source: StreamSource, name: str, start: StartPosition) -> None:
        self.source: StreamSource = source
        self.name: str = name
        self._start = start
        self._committed: dict[int, int] = {}
        self._latest: ReaderPass | None = None

    def open(self) -> Call[None]:
        """Make the reader known to the stream, unless it is."""
        info = yield from self.info()
        yield from self.begin(self.source, info)

    def info(self) -> Call[StreamInfo]:
        """Return the stream's info with the offsets of this reader."""
        return self.source.info(self.name)

    def begin(self, source: StreamSource, info: StreamInfo) -> Call[dict[int, int]]:
        """Return where the reader goes on, by partition; make it known to the stream."""
        offsets = self.offsets_in(info)
        if not info.offsets:
            offsets.update((yield from self._start.offsets(source, info)))
            yield from source.commit(self.name, offsets, is_safe=False)
        self._committed = dict(offsets)
        return offsets

    def reading(self, limits: PassLimits, *, commits: bool = False) -> "ReaderPass":
        """Return a pass from where the reader goes on. commits: commit what the loop has gone
        past."""
        self._latest = ReaderPass(self, limits, commits=commits)
        return self._latest

    def commit(self, record: StreamRecord | None, *, is_safe: bool) -> Call[None]:
        """Commit all up to this record, or to the last that was given. is_safe: wait for the
        disk. TypeError if it is no record."""
        if record is not None:
            if not isinstance(record, StreamRecord):
                raise TypeError(f"expected a record that was read, not {type(record).__name__}")
            offsets = {record.partition: record.offset + 1}
        else:
            offsets = {} if self._latest is None else self._latest.positions()
        yield from self.move(offsets, is_safe=is_safe)

    def _further(self, offsets: dict[int, int]) -> dict[int, int]:
        """Return the offsets that are after the last commit."""
        return {p: at for p, at in offsets.items() if at > self._committed.get(p, -1)}

    def move_soon(self, offsets: dict[int, int]) -> None:
        """Commit these offsets as `move` does, without waiting: the loop was left."""
        further = self._further(offsets)
        if further:
            self.source.commit_soon(self.name, further)

    def move(self, offsets: dict[int, int], *, is_safe: bool = False) -> Call[None]:
        """Commit these offsets, as far as they are after the last commit."""
        further = self._further(offsets)
        if further or is_safe:
            yield from self.source.commit(self.name, further, is_safe=is_safe)
            self._committed.update(further)

    def delete(self) -> Call[None]:
        """Delete the reader: the next one of this name is new."""
        self._committed = {}
        yield from self.source.delete_reader(self.name)

    def offsets_in(self, info: StreamInfo) -> dict[int, int]:
        """Return where the reader goes on, by partition; the first record if it is not known."""
        known = info.offsets
        return {part.partition: known.get(part.partition, part.first) for part in info.partitions}

    def lag_in(self, info: StreamInfo) -> int:
        """Return how many records the reader has not committed."""
        offsets = self.offsets_in(info)
        return sum(part.next - max(offsets[part.partition], part.first) for part in info.partitions)


class ReaderPass(StreamPass):
    """A pass of a named reader, which can commit what the loop has gone past."""

    def __init__(self, reader: NamedReader, limits: PassLimits, *, commits: bool) -> None:
        super().__init__(reader.source, reader.begin, limits, reader.name)
        self._reader = reader
        self._commits = commits
        self._passed: dict[int, int] = {}  # by chunks before this one

    def next(self) -> Call[list[StreamRecord]]:
        self._passed = self.positions()
        if self._commits:
            yield from self._reader.move(self._passed)
        self.given = []
        self.at = -1
        return (yield from super().next())

    def positions(self) -> dict[int, int]:
        """Return the offsets after the record that the loop is at, by partition."""
        return self._positions(self.at + 1)

    def end(self) -> Call[None]:
        """End the pass; commit what came before the record that the loop is at."""
        self.close()
        if self._commits:
            self._reader.move_soon(self._positions(self.at))
        yield from ()

    def _positions(self, count: int) -> dict[int, int]:
        found = dict(self._passed)
        for record in self.given[: max(count, 0)]:
            found[record.partition] = record.offset + 1
        return found


def only(values: dict[int, int], what: str, instead: str) -> int:
    """Return the value of the only partition. OptionError if the stream has several."""
    if len(values) > 1:
        expected = f"`{instead}`: the stream has {len(values)} partitions"
        raise OptionError(what, what, expected)
    return next(iter(values.values()))
