"""StreamPass: one pass over a stream from a place on: chunk by chunk, in order, with its gaps.

    next     the next records, none at the end; whoever loops over them keeps `at`
    end      the loop is over, or was left

Without `follow` it reads what was there when it began, and ends. With it, it then waits for more,
until none came for `timeout` seconds, or the box was closed.

In a partition records come by their offsets. Of several partitions, what was there when the pass
began comes by time, those of the same time by partition; what comes later comes as it comes.

A gap is where retention was faster than the reader: the next record there is, be it one of those
that came since, bears how many are missing before it, or, if the reader wants that, the pass ends
with a StreamGapError.

What is in RAM is a chunk of each partition. Written for threads and asyncio, for directories and
brokers: see `stream_source`. One thread or task uses a pass at a time.
"""

from collections.abc import Callable, Sequence
from typing import Final

from penstock.embedded.box_errors import BoxClosedError
from penstock.embedded.sources import Call, Feed, StreamInfo, StreamSource
from penstock.embedded.stream_record import StreamRecord
from penstock.errors import OptionError, StreamGapError

TELL: Final = "tell"
ERROR: Final = "error"

Begin = Callable[[StreamSource, StreamInfo], Call[dict[int, int]]]


class Limits:
    """How a pass ends, and what it does at a gap. OptionError, ValueError."""

    __slots__ = ("follow", "has_gap_errors", "max_records", "timeout_s")

    def __init__(
        self, *, follow: bool, timeout: float | None, max_records: int | None, on_gap: str
    ) -> None:
        if timeout is not None and timeout < 0:
            raise ValueError(f"timeout must not be negative, not {timeout}")
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


class Lane:
    """One partition of a pass. expected: the offset that should come next. until: what was there
    at the beginning ends here."""

    __slots__ = ("_at", "_records", "error", "expected", "feed", "until")

    def __init__(self, feed: Feed, expected: int, until: int) -> None:
        self.feed: Feed = feed
        self.expected: int = expected
        self.until: int = until
        self.error: StreamGapError | None = None  # once what is here is given
        self._records: Sequence[StreamRecord] = ()
        self._at: int = 0

    @property
    def head(self) -> StreamRecord | None:
        """The first of those that are here."""
        return self._records[self._at] if self._at < len(self._records) else None

    @property
    def is_behind(self) -> bool:
        """Whether something of the beginning is still to come."""
        return self.expected < self.until and self.error is None

    def is_wanting(self, limits: Limits) -> bool:
        """Whether it has nothing here, and may have something."""
        return self.head is None and self.error is None and (limits.follow or self.is_behind)

    def fill(self, records: Sequence[StreamRecord], limits: Limits, name: str) -> None:
        """Take a chunk, with its gaps."""
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
        """Take the head."""
        self._at += 1
        return self._records[self._at - 1]

    def pop_all(self) -> list[StreamRecord]:
        """Take all that are here."""
        records, self._records = list(self._records[self._at :]), ()
        self._at = 0
        return records


class StreamPass:
    """See the head of this module. begin: a call that says where, by partition, told how
    the stream and this reader are. given: the records
    that `next` gave last. at: which of them the loop is at, -1 for none."""

    def __init__(
        self, source: StreamSource, begin: Begin, limits: Limits, reader: str = ""
    ) -> None:
        self._source = source
        self._reader_name = reader
        self._begin = begin
        self._limits = limits
        self._lanes: list[Lane] | None = None
        self._left: int | None = limits.max_records
        self._is_over: bool = False
        self.given: list[StreamRecord] = []
        self.at: int = -1

    def next(self) -> Call[list[StreamRecord]]:
        """The next records, one at least; none at the end."""
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
        """As close, by whoever loops."""
        self.close()
        yield from ()

    def close(self) -> None:
        """It is over. Again: nothing."""
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
            self._lanes.append(Lane(feed, offset, info.partitions[partition].next))

    def _some(self) -> Call[list[StreamRecord]]:
        """Records that may be given; none: there is nothing more."""
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

    def _fill(self, lanes: list[Lane]) -> Call[list[Lane]]:
        """Let each lane have something, if there is. Those that may have it later."""
        empty: list[Lane] = []
        limits = self._limits
        for lane in lanes:
            if lane.is_wanting(limits):
                lane.fill((yield from lane.feed.chunk()), limits, self._source.name)
                if lane.is_wanting(limits):
                    empty.append(lane)
        return empty

    def _merged(self, lanes: list[Lane]) -> list[StreamRecord]:
        """What may be given of several partitions: by time, as long as none that is behind has
        nothing here."""
        records: list[StreamRecord] = []
        while True:
            first: Lane | None = None
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
