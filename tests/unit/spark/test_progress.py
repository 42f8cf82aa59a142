"""A streaming query's driver side: batches, limits, replays, losses and what is held."""

from typing import Any

import pytest

from penstock.errors import OptionError
from penstock.spark.catalog import Catalog
from penstock.spark.http_link import LinkError
from penstock.spark.offsets import Heads, PartitionHead
from penstock.spark.options import Place, SourceOptions, parse_source_options
from penstock.spark.plan import PartitionPages, table_of_average
from penstock.spark.progress import DataLossError, ReaderHold, StreamProgress


class ToyCatalog(Catalog):
    """Streams as the test sets them; a record of 100 B came each ms."""

    fresh_s = 0.0

    def __init__(self, options: SourceOptions, heads: Heads) -> None:
        super().__init__(options, lambda: 0.0)
        self.there = heads
        self.held: list[tuple[str, dict[str, dict[str, int]]]] = []
        self.released: list[str] = []

    def set(
        self, stream: str, partition: int, first: int, head: int, id: str = "id", each: int = 100
    ) -> None:
        """each: bytes of a record."""
        found = self.there.setdefault(stream, {})
        found[partition] = PartitionHead(first, head, head * 1000, (head - first) * each, id)

    def find(self, stream: str, partition: int, time_us: int) -> int:
        head = self.there[stream][partition]
        return min(max(-(-time_us // 1000), head.first), head.head)

    def pages(self, stream: str, partition: int) -> PartitionPages:
        head = self.there[stream][partition]
        return table_of_average(head.first, head.head, head.bytes)

    def hold(
        self, reader: str, offsets: dict[str, dict[str, int]], kept: dict[str, dict[str, int]]
    ) -> None:
        assert offsets == kept
        self.held.append((reader, kept))

    def release(self, reader: str) -> None:
        self.released.append(reader)

    def _found(self) -> Heads:
        return {name: dict(found) for name, found in self.there.items()}


class Query:
    """A query over a toy catalog, and what Spark would do with it."""

    def __init__(self, catalog: ToyCatalog | None = None, **given: str) -> None:
        options = {"url": "http://h", "subscribePattern": ".*", **given}
        self.options = parse_source_options(options, is_streaming=True)
        self.catalog = catalog or ToyCatalog(self.options, {})
        if catalog is None:
            self.catalog.set("s", 0, 0, 100)
        self.now_s = 0.0
        self.progress = StreamProgress(self.options, self.catalog, lambda: self.now_s)

    def batch(self, start: dict[str, Any]) -> dict[str, Any]:
        return self.progress.latest_offset(start, is_limited=True)

    def ranges(self, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[int, int, int]]:
        found = [one.range for task in self.progress.partitions(start, end) for one in task]
        return [(one.partition, one.start, one.end) for one in found]


@pytest.fixture(autouse=True)
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Renewing is called by the test."""

    class Still:
        def __init__(self, **_: object) -> None:
            pass

        def start(self) -> None:
            pass

    monkeypatch.setattr("penstock.spark.progress.threading.Thread", Still)


def head_of(offset: dict[str, Any]) -> int:
    return int(offset["s"]["0"])


def test_the_first_offset_is_the_same_whenever_it_is_asked_for() -> None:
    for words, number in (("earliest", -2), ("latest", -1)):
        query = Query(startingOffsets=words)
        first = query.progress.initial_offset()
        query.catalog.set("s", 0, 10, 500)
        assert query.progress.initial_offset() == first
        assert head_of(first) == number


def test_nothing_is_lost_between_two_questions_for_the_latest() -> None:
    query = Query(startingOffsets="latest")
    start = query.progress.initial_offset()
    end = query.batch(start)  # written to the log before the batch runs
    assert (head_of(end), query.ranges(start, end)) == (100, [])
    query.catalog.set("s", 0, 0, 130)
    again = Query(query.catalog, startingOffsets="latest")  # a restart: no batch was committed
    assert again.progress.initial_offset() == start
    assert again.ranges(start, end) == []
    assert again.ranges(end, again.batch(end)) == [(0, 100, 130)]


def test_batches_from_the_earliest_to_the_head() -> None:
    query = Query(startingOffsets="earliest", maxOffsetsPerTrigger="40")
    start = query.progress.initial_offset()
    seen = []
    while True:
        end = query.batch(start)
        if end == start:
            break
        seen += query.ranges(start, end)
        start = end
    assert seen == [(0, 0, 40), (0, 40, 80), (0, 80, 100)]
    assert query.batch(start) == start
    assert query.progress.report_latest_offset() == start


def test_nothing_new_gives_back_what_was_given() -> None:
    query = Query(startingOffsets="earliest")
    query.catalog.set("s", 0, 0, 0)
    start = query.progress.initial_offset()
    assert query.batch(start) == start
    assert head_of(start) == -2


def test_without_limits_all_there_is() -> None:
    query = Query(startingOffsets="earliest", maxOffsetsPerTrigger="40", maxBytesPerTrigger="10")
    assert (
        head_of(query.progress.latest_offset(query.progress.initial_offset(), is_limited=False))
        == 100
    )


def test_bytes_limit_a_batch() -> None:
    query = Query(startingOffsets="earliest", maxBytesPerTrigger="2500")
    assert head_of(query.batch(query.progress.initial_offset())) == 25


def test_available_now_stops_at_what_was_there() -> None:
    query = Query(startingOffsets="earliest", maxOffsetsPerTrigger="60", minOffsetsPerTrigger="99")
    query.progress.prepare_for_available_now()
    start = query.progress.initial_offset()
    query.catalog.set("s", 0, 0, 1000)
    query.catalog.set("t", 0, 0, 5)
    first = query.batch(start)
    second = query.batch(first)
    assert (head_of(first), head_of(second)) == (60, 100)
    assert query.batch(second) == second
    assert "t" not in second


def test_available_now_pins_down_the_latest() -> None:
    query = Query(startingOffsets="latest")
    query.progress.prepare_for_available_now()
    start = query.progress.initial_offset()
    query.catalog.set("s", 0, 0, 1000)
    end = query.batch(start)
    assert head_of(end) == 100
    assert query.batch(end) == end


def test_a_batch_waits_for_its_least_and_no_longer_than_the_delay() -> None:
    query = Query(
        startingOffsets="earliest", minOffsetsPerTrigger="50", maxTriggerDelay="30s",
    )  # fmt: skip
    first = query.batch(query.progress.initial_offset())  # the first one never waits
    assert head_of(first) == 100
    query.catalog.set("s", 0, 0, 149)
    query.now_s = 29.0
    assert query.batch(first) == first
    query.now_s = 30.0
    assert head_of(query.batch(first)) == 149
    query.catalog.set("s", 0, 0, 199)
    query.now_s = 31.0
    assert head_of(query.batch({"s": {"0": 149}})) == 199


def test_a_new_stream_is_read_from_its_first_record() -> None:
    query = Query(startingOffsets="latest")
    start = query.batch(query.progress.initial_offset())
    query.catalog.set("t", 0, 3, 8)
    end = query.batch(start)
    assert query.ranges(start, end) == [(0, 3, 8)]


def test_a_replayed_batch_reads_the_same_although_the_head_has_moved() -> None:
    query = Query(startingOffsets="earliest", minPartitions="3")
    start = query.progress.initial_offset()
    end = query.batch(start)
    before = query.ranges(start, end)
    query.catalog.set("s", 0, 0, 5000)
    after = Query(query.catalog, startingOffsets="earliest", minPartitions="3").ranges(start, end)
    assert (after[0][1], after[-1][2]) == (before[0][1], before[-1][2]) == (0, 100)
    assert len(before) == 3


def test_small_partitions_share_a_task() -> None:
    query = Query(startingOffsets="earliest")
    for number in range(1, 200):
        query.catalog.set("s", number, 0, 100)
    start = query.progress.initial_offset()
    tasks = query.progress.partitions(start, query.batch(start))
    assert [len(task) for task in tasks] == [40, 40, 40, 40, 40]  # of 4,096 records at most
    assert [one.range[1:] for task in tasks for one in task] == [(n, 0, 100) for n in range(200)]
    by_bytes = Query(query.catalog, startingOffsets="earliest", maxBytesPerTask="64m")
    assert len(by_bytes.progress.partitions(start, query.batch(start))) == 1
    alone = Query(query.catalog, startingOffsets="earliest", maxBytesPerTask="0")
    assert len(alone.progress.partitions(start, query.batch(start))) == 200


def test_a_batch_that_runs_again_has_the_same_tasks_whatever_was_appended() -> None:
    query = Query(startingOffsets="earliest")
    for number in range(1, 9):
        query.catalog.set("s", number, 0, 1000)
    start = query.progress.initial_offset()
    end = query.batch(start)
    before = query.progress.partitions(start, end)
    assert 1 < len(before) < 9
    for number in range(9):
        query.catalog.set("s", number, 0, 90_000, each=1000 * (number + 1))
    again = Query(query.catalog, startingOffsets="earliest").progress.partitions(start, end)
    ranges = [[[one.range for one in task] for task in tasks] for tasks in (before, again)]
    assert ranges[0] == ranges[1]


def test_records_that_are_gone_are_an_error_or_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    start, end = {"s": {"0": 5}}, {"s": {"0": 90}}
    query = Query()
    query.catalog.set("s", 0, 20, 100)
    with pytest.raises(DataLossError, match="records 5 to 19 were reclaimed"):
        query.ranges(start, end)
    query = Query(query.catalog, failOnDataLoss="false")
    assert query.ranges(start, end) == query.ranges(start, end) == [(0, 20, 90)]
    assert caplog.text.count("records 5 to 19 were reclaimed") == 1


def test_a_head_that_went_back_is_an_error_or_goes_on_from_there() -> None:
    given = {"s": {"0": 150}}
    with pytest.raises(DataLossError, match="it ends at offset 100, expected at least 150"):
        Query().batch(given)
    query = Query(failOnDataLoss="false")
    end = query.batch(given)
    assert head_of(end) == 100
    assert query.ranges(given, end) == []
    query.catalog.set("s", 0, 0, 120)
    assert query.ranges(end, query.batch(end)) == [(0, 100, 120)]


def test_a_stream_that_was_replaced_is_an_error_or_is_read_anew() -> None:
    query = Query(startingOffsets="earliest")
    end = query.batch(query.progress.initial_offset())
    query.catalog.set("s", 0, 0, 30, "another")
    with pytest.raises(DataLossError, match="deleted and declared again"):
        query.batch(end)
    query = Query(query.catalog, failOnDataLoss="false")
    new = query.batch(end)
    assert query.ranges(end, new) == [(0, 0, 30)]
    assert new["s"]["id"] != end["s"]["id"]


def test_a_stream_that_was_deleted() -> None:
    query = Query(startingOffsets="earliest")
    end = query.batch(query.progress.initial_offset())
    del query.catalog.there["s"]
    with pytest.raises(DataLossError, match="no longer exists"):
        query.batch(end)
    query = Query(query.catalog, failOnDataLoss="false")
    assert query.batch(end) == end
    query.catalog.set("t", 0, 0, 3)
    assert query.ranges(end, query.batch(end)) == [(0, 0, 3)]


def test_a_time_after_all_records() -> None:
    with pytest.raises(OptionError, match="startingTimestamp"):
        Query(startingTimestamp="101").progress.initial_offset()
    late = Query(startingTimestamp="101", startingOffsetsByTimestampStrategy="latest")
    assert head_of(late.progress.initial_offset()) == -1
    assert head_of(Query(startingTimestamp="42").progress.initial_offset()) == 42


# ---- what is held --------------------------------------------------------------------------------


def test_the_oldest_batch_that_is_not_committed_is_held() -> None:
    query = Query(startingOffsets="earliest", readerId="job", maxOffsetsPerTrigger="40")
    start = query.progress.initial_offset()
    first = query.batch(start)
    query.ranges(start, first)
    assert query.catalog.held == [("job", {"s": {"0": 0}})]
    query.progress.commit(first)
    assert query.catalog.held[1:] == [("job", {"s": {"0": 40}})]
    query.ranges(first, {"s": {"0": 80}})
    query.progress.commit(first)
    assert len(query.catalog.held) == 2


def test_a_question_for_the_next_batch_says_that_the_one_before_is_done() -> None:
    query = Query(startingOffsets="earliest", readerId="job", maxOffsetsPerTrigger="60")
    start = query.progress.initial_offset()
    first = query.batch(start)
    query.ranges(start, first)
    second = query.batch(first)
    assert query.catalog.held == [("job", {"s": {"0": 0}}), ("job", {"s": {"0": 60}})]
    query.ranges(first, second)
    assert query.batch(second) == second  # the last one, whose commit may never come
    assert query.catalog.held[2:] == [("job", {"s": {"0": 100}})]
    for _ in range(50):
        query.batch(second)
    assert len(query.catalog.held) == 3


def test_a_restart_holds_the_batch_that_is_replayed() -> None:
    query = Query(readerId="job")
    query.ranges({"s": {"0": 30}}, {"s": {"0": 60}})
    assert query.catalog.held == [("job", {"s": {"0": 30}})]


def test_a_named_reader_stays_and_an_unnamed_one_is_deleted() -> None:
    query = Query(readerId="job")
    query.ranges({"s": {"0": 0}}, {"s": {"0": 1}})
    query.progress.hold.end()
    assert query.catalog.released == []
    query = Query()
    query.ranges({"s": {"0": 0}}, {"s": {"0": 1}})
    (name, _), *_ = query.catalog.held
    assert name.startswith("spark-")
    query.progress.hold.end()
    assert query.catalog.released == [name]
    assert Query().progress.hold.name != name


def test_a_hold_is_said_again_and_survives_a_broker_that_is_away(
    caplog: pytest.LogCaptureFixture,
) -> None:
    query = Query(readerId="job")
    query.ranges({"s": {"0": 7}}, {"s": {"0": 9}})
    hold = query.progress.hold
    rounds = iter([False, False, True])

    def wait(timeout: float | None = None) -> bool:
        return next(rounds)

    hold._ended.wait = wait  # type: ignore[method-assign]
    said = query.catalog.hold

    def away(*_: object) -> None:
        query.catalog.hold = said  # type: ignore[method-assign]
        raise LinkError(Place(path="x"), "it is away")

    query.catalog.hold = away  # type: ignore[method-assign, assignment]
    hold._renew()
    assert "it is away" in caplog.text
    assert query.catalog.held == [("job", {"s": {"0": 7}})] * 2


def test_words_are_not_held() -> None:
    query = Query(readerId="job", startingOffsets="latest")
    start = query.progress.initial_offset()
    query.ranges(start, query.batch(start))
    assert query.catalog.held == []
    ReaderHold(query.catalog, None).end()
    assert query.catalog.released == []
