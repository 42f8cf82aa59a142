"""Reading a stream: chunks, partitions by time, gaps, limits; on a source that is a few lists."""

from collections.abc import Sequence
from typing import Any

import pytest

from penstock.embedded.sources import (
    Call,
    Feed,
    PartitionInfo,
    StreamInfo,
    StreamSource,
)
from penstock.embedded.stream_reading import PassLimits, StartPosition, StreamPass
from penstock.embedded.stream_record import NewRecord, StreamRecord, meta_of
from penstock.errors import BoxClosedError, OptionError, StreamGapError
from penstock.queues.stream_options import StreamOptions

CHUNK = 3
META = meta_of(b"", b"", b"\0\0")


class Lists(StreamSource):
    """Partitions are lists of times; the first of each has been reclaimed up to `firsts`. What is
    in `later` comes when somebody waits, one batch a time; then the clock moves."""

    name = "s"

    def __init__(self, *times: list[int], firsts: dict[int, int] | None = None) -> None:
        self.options = StreamOptions(partitions=len(times))
        self.times = list(times)
        self.firsts = firsts or {}
        self.later: list[dict[int, list[int]]] = []
        self.waits: list[float | None] = []
        self.now = 100.0
        self.is_closed = False
        self.closed_feeds = 0

    def monotonic(self) -> float:
        return self.now

    def wall_us(self) -> int:
        return 10_000_000

    def first(self, partition: int) -> int:
        return self.firsts.get(partition, 0)

    def info(self, reader: str = "") -> Call[StreamInfo]:
        yield from ()
        return StreamInfo(
            [
                PartitionInfo(i, self.first(i), len(times), 0, 0)
                for i, times in enumerate(self.times)
            ]
        )

    def find(self, partition: int, time_us: int) -> Call[int]:
        yield from ()
        times = self.times[partition]
        return next((i for i, time in enumerate(times) if time >= time_us), len(times))

    def append(self, news: list[NewRecord], durability: object) -> Call[list[int]]:
        raise AssertionError

    def feed(self, partition: int, offset: int) -> Feed:
        return ListFeed(self, partition, offset)

    def wait(self, feeds: Sequence[Feed], deadline: float | None) -> Call[None]:
        self.waits.append(deadline)
        yield None
        if self.later:
            for partition, times in self.later.pop(0).items():
                self.times[partition] += times
        else:
            assert deadline is not None, "it waits for ever"
            self.now = deadline

    def commit(self, reader: str, offsets: dict[int, int], *, is_safe: bool) -> Call[None]:
        raise AssertionError

    def commit_soon(self, reader: str, offsets: dict[int, int]) -> None:
        raise AssertionError

    def delete_reader(self, reader: str) -> Call[None]:
        raise AssertionError

    def retain(self) -> Call[int]:
        raise AssertionError

    def delete(self) -> Call[None]:
        raise AssertionError


class ListFeed(Feed):
    def __init__(self, source: Lists, partition: int, offset: int) -> None:
        self.source, self.partition, self.offset = source, partition, offset

    def chunk(self) -> Call[list[StreamRecord]]:
        yield from ()
        if self.source.is_closed:
            raise BoxClosedError("lists")
        at = max(self.offset, self.source.first(self.partition))
        times = self.source.times[self.partition][at : at + CHUNK]
        self.offset = at + len(times)
        return [
            StreamRecord(b"%d" % (at + i), at + i, self.partition, time, META)
            for i, time in enumerate(times)
        ]

    def close(self) -> None:
        self.source.closed_feeds += 1


def run(call: Call[Any]) -> Any:
    try:
        while True:
            next(call)
    except StopIteration as stop:
        return stop.value


def reading(source: Lists, *, since: Any = None, offset: Any = None, **limits: Any) -> Any:
    start = StartPosition(source, since, offset, limits.pop("partition", None))
    given = {"follow": False, "timeout": None, "max_records": None, "on_gap": "tell", **limits}
    return StreamPass(source, start.offsets, PassLimits(**given))


def read(source: Lists, **options: Any) -> list[tuple[int, int]]:
    """(partition, offset) of all that it gives."""
    one = reading(source, **options)
    found = []
    while records := run(one.next()):
        found += [(record.partition, record.offset) for record in records]
    assert run(one.next()) == []
    assert source.closed_feeds > 0
    return found


def test_chunk_by_chunk_to_where_it_ended_at_first() -> None:
    source = Lists([1, 2, 3, 4, 5, 6, 7])
    one = reading(source)
    assert [r.offset for r in run(one.next())] == [0, 1, 2]
    source.times[0] += [8, 9]  # too late for this pass
    assert [r.offset for r in run(one.next())] == [3, 4, 5]
    assert [r.offset for r in run(one.next())] == [6]
    assert run(one.next()) == []
    assert source.waits == []


@pytest.mark.parametrize(
    ("offset", "want"), [("first", 0), ("last", 6), ("next", 7), (4, 4), (7, 7), (None, 0)]
)
def test_where_to_begin(offset: Any, want: int) -> None:
    assert read(Lists([1] * 7), offset=offset) == [(0, i) for i in range(want, 7)]


def test_several_partitions_come_by_time() -> None:
    source = Lists([1, 4, 4, 4, 9], [2, 3, 4, 8], [])
    want = [(0, 0), (1, 0), (1, 1), (0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (0, 4)]
    assert read(source) == want
    assert read(source, partition=1) == [(1, 0), (1, 1), (1, 2), (1, 3)]
    assert read(source, since=lambda: None, max_records=4) == want[:4]


def test_what_retention_took_is_told() -> None:
    source = Lists([1] * 8, firsts={0: 5})
    one = reading(source, offset=2)
    assert [(r.offset, r.gap) for r in run(one.next())] == [(5, 3), (6, 0), (7, 0)]
    assert [(r.offset, r.gap) for r in run(reading(source).next())] == [(5, 0), (6, 0), (7, 0)]


def test_a_gap_may_be_an_error_once_what_is_before_it_was_given() -> None:
    source = Lists([1] * 9, [2] * 3)
    one = reading(source, on_gap="error")
    assert [record.partition for record in run(one.next())] == [0, 0, 0]
    source.firsts[0] = 7
    with pytest.raises(StreamGapError, match="'s', partition 0: 4 records from offset 3 on") as gap:
        run(one.next())
    assert (gap.value.asked, gap.value.first) == (3, 7)


def test_a_gap_over_all_that_was_there_is_told_too() -> None:
    source = Lists([1] * 4)
    one = reading(source)
    assert [record.offset for record in run(one.next())] == [0, 1, 2]
    source.times[0] += [2] * 5
    source.firsts[0] = 7
    assert [(record.offset, record.gap) for record in run(one.next())] == [(7, 4)]
    assert run(one.next()) == []


def test_following_waits_and_ends_by_its_time_out() -> None:
    source = Lists([1], [])
    source.later = [{1: [2]}, {}, {0: [3, 4]}]
    assert read(source, follow=True, timeout=5) == [(0, 0), (1, 0), (0, 1), (0, 2)]
    # Its own time for each wait: a wake-up for nothing does not begin it anew.
    assert source.waits == [105.0, 105.0, 105.0, 105.0]
    assert source.now == 105.0


def test_following_from_next_on() -> None:
    source = Lists([1, 2, 3])
    source.later = [{0: [4]}]
    assert read(source, follow=True, timeout=1, offset="next") == [(0, 3)]
    source.later = [{0: [5]}]
    assert read(source, follow=True, offset="last", max_records=2) == [(0, 3), (0, 4)]


def test_a_box_that_is_closed_ends_who_follows() -> None:
    source = Lists([1])
    source.is_closed = True
    assert run(reading(source, follow=True).next()) == []
    with pytest.raises(BoxClosedError):
        run(reading(source).next())


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"offset": -1}, 'offset: given -1, expected "first", "last", "next" or a whole'),
        ({"offset": "begin"}, "offset: given 'begin'"),
        ({"offset": True}, "offset: given True"),
        ({"offset": 1.0}, "offset: given 1.0"),
        ({"offset": 9}, "offset: given 9, expected at most 3, the next one"),
        ({"offset": 1, "partition": None}, "partition: given None, expected one of 0 to 1"),
        ({"partition": 2}, "partition: given 2, expected a whole number from 0 to 1"),
        ({"partition": True}, "partition: given True"),
        ({"partition": "0"}, "partition: given '0'"),
        ({"since": 5}, "since: given 5, expected a datetime, a timedelta"),
        ({"since": "soon"}, "since: given 'soon'"),
        ({"since": lambda: 5}, "since: given 5"),
        ({"since": "1h", "offset": 0}, "one of the two"),
        ({"timeout": 1}, "timeout: given 1, expected nothing, or follow=True"),
        ({"max_records": -1}, "max_records: given -1"),
        ({"on_gap": "cry"}, 'on_gap: given \'cry\', expected "tell" or "error"'),
    ],
)
def test_what_is_wrong_says_what_is_right(options: dict[str, Any], text: str) -> None:
    source = Lists([1, 2, 3], [1])
    options = {"partition": 0} | options if "offset" in options else options
    with pytest.raises(OptionError) as caught:
        run(reading(source, **options).next())
    assert text in str(caught.value)


def test_a_negative_time_out() -> None:
    with pytest.raises(ValueError, match="must not be negative"):
        reading(Lists([]), follow=True, timeout=-1)
