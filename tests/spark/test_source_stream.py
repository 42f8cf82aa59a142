"""spark.readStream.format("penstock") on a store's directories: batches, restarts, progress."""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException, StreamingQueryException

from tests.helpers.tiny_streams import in_vhost, retain, write_stream
from tests.spark import lake_job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = pytest.mark.spark

EARLIEST = {"startingOffsets": "earliest"}


def values(first: int, last: int) -> list[bytes]:
    return [b"%d" % i for i in range(first, last)]


class Seen:
    """What foreachBatch saw: the offsets of each batch, by partition."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, list[int]]] = []
        self.fails_at: int | None = None

    def __call__(self, rows: "DataFrame", batch: int) -> None:
        self.batches.append((batch, sorted(row.offset for row in rows.select("offset").collect())))
        if batch == self.fails_at:
            self.fails_at = None
            raise RuntimeError("the sink failed")

    @property
    def offsets(self) -> list[int]:
        return [offset for _, found in self.batches for offset in found]


def run(
    spark: "SparkSession", path: Path, state: Path, seen: Any, **options: str
) -> "StreamingQuery":
    """A run with AvailableNow, to its end."""
    rows = spark.readStream.format("penstock").options(path=str(path), **options).load()
    writing = rows.writeStream.foreachBatch(seen).option("checkpointLocation", str(state))
    query = writing.trigger(availableNow=True).start()
    with suppress(StreamingQueryException):
        assert query.awaitTermination(240), "the query is not done"
    return query


def good(query: "StreamingQuery") -> "StreamingQuery":
    assert query.exception() is None
    return query


def ends(query: "StreamingQuery") -> list[Mapping[str, Any]]:
    return [json.loads(p.sources[0].endOffset) for p in query.recentProgress]


@pytest.mark.limits
def test_batches_to_the_end_and_a_restart_that_goes_on(
    spark: "SparkSession", tmp_path: Path
) -> None:
    path, state = tmp_path / "s", tmp_path / "state"
    write_stream(path, values(0, 2500))
    seen = Seen()
    query = good(run(spark, path, state, seen, maxOffsetsPerTrigger="1000", **EARLIEST))
    assert [(batch, len(found)) for batch, found in seen.batches] == [
        (0, 1000),
        (1, 1000),
        (2, 500),
    ]
    assert seen.offsets == list(range(2500))
    assert [end["s"]["0"] for end in ends(query)] == [1000, 2000, 2500]
    latest = json.loads(query.recentProgress[0].sources[0].latestOffset)
    assert latest["s"]["0"] == 2500
    write_stream(path, values(2500, 2600))
    good(run(spark, path, state, seen, maxOffsetsPerTrigger="1000", **EARLIEST))
    assert seen.batches[-1] == (3, list(range(2500, 2600)))
    before = len(seen.batches)
    good(run(spark, path, state, seen, **EARLIEST))
    assert len(seen.batches) == before


@pytest.mark.limits
def test_a_failed_batch_is_replayed_as_it_was(spark: "SparkSession", tmp_path: Path) -> None:
    path, state = tmp_path / "s", tmp_path / "state"
    write_stream(path, values(0, 300))
    seen = Seen()
    seen.fails_at = 1
    query = run(spark, path, state, seen, maxOffsetsPerTrigger="100", **EARLIEST)
    assert "the sink failed" in str(query.exception())
    write_stream(path, values(300, 450))  # the head moves before the restart
    good(run(spark, path, state, seen, maxOffsetsPerTrigger="100", **EARLIEST))
    assert seen.batches[1] == seen.batches[2] == (1, list(range(100, 200)))
    assert seen.offsets == [*range(200), *range(100, 450)]


@pytest.mark.limits
def test_latest_is_pinned_down_by_the_first_batch(spark: "SparkSession", tmp_path: Path) -> None:
    path, state = tmp_path / "s", tmp_path / "state"
    write_stream(path, values(0, 100))
    seen = Seen()
    seen.fails_at = 0
    run(spark, path, state, seen)
    write_stream(path, values(100, 130))
    good(run(spark, path, state, seen))
    assert seen.offsets == list(range(100, 130))


def test_from_a_time(spark: "SparkSession", tmp_path: Path) -> None:
    write_stream(tmp_path / "s", values(0, 100), first_us=1_700_000_000_000_000)
    seen = Seen()
    start = {"startingTimestamp": str(1_700_000_000_090)}
    good(run(spark, tmp_path / "s", tmp_path / "state", seen, **start))
    assert seen.offsets == list(range(90, 100))


def test_a_stream_that_comes_later_is_read_from_its_first_record(
    spark: "SparkSession", tmp_path: Path
) -> None:
    vhost, state = tmp_path / "v", tmp_path / "state"
    write_stream(in_vhost(vhost, b"a", 1), values(0, 10))
    seen = Seen()
    given = {"subscribePattern": ".*", **EARLIEST}
    good(run(spark, vhost, state, seen, **given))
    write_stream(in_vhost(vhost, b"b", 2), values(0, 5))
    good(run(spark, vhost, state, seen, **given))
    assert [found for _, found in seen.batches] == [list(range(10)), list(range(5))]


@pytest.mark.limits
def test_a_batch_is_limited_by_bytes(spark: "SparkSession", tmp_path: Path) -> None:
    write_stream(tmp_path / "s", [bytes(1000)] * 100, page_bytes=1 << 14)
    seen = Seen()
    limit = {"maxBytesPerTrigger": "20k"}
    good(run(spark, tmp_path / "s", tmp_path / "state", seen, **limit, **EARLIEST))
    assert seen.offsets == list(range(100))
    assert max(len(found) for _, found in seen.batches) <= 20


def test_a_stream_that_was_declared_again(spark: "SparkSession", tmp_path: Path) -> None:
    path, state = tmp_path / "s", tmp_path / "state"
    write_stream(path, values(0, 50))
    seen = Seen()
    good(run(spark, path, state, seen, **EARLIEST))
    path.rename(tmp_path / "old")
    write_stream(path, values(0, 60), seed=2)
    query = run(spark, path, state, seen, **EARLIEST)
    assert "deleted and declared again" in str(query.exception())
    good(run(spark, path, state, seen, failOnDataLoss="false", **EARLIEST))
    assert seen.batches[-1][1] == list(range(60))


def test_records_that_retention_took_from_a_stopped_query(
    spark: "SparkSession", tmp_path: Path
) -> None:
    path, state = tmp_path / "s", tmp_path / "state"
    write_stream(path, values(0, 50))
    seen = Seen()
    good(run(spark, path, state, seen, **EARLIEST))
    write_stream(path, values(50, 600))
    first = retain(path, 100)
    assert first > 50
    query = run(spark, path, state, seen, **EARLIEST)
    assert f"records 50 to {first - 1} were reclaimed" in str(query.exception())
    good(run(spark, path, state, seen, failOnDataLoss="false", **EARLIEST))
    assert seen.batches[-1][1] == list(range(first, 600))


def test_damage_ends_the_query_and_names_the_file(spark: "SparkSession", tmp_path: Path) -> None:
    path = tmp_path / "s"
    write_stream(path, values(0, 500))
    page = sorted(path.glob("*.page"))[2]
    raw = bytearray(page.read_bytes())
    raw[300] ^= 1
    page.write_bytes(raw)
    query = run(spark, path, tmp_path / "state", Seen(), **EARLIEST)
    assert "CorruptionError" in str(query.exception())
    assert page.name in str(query.exception())


@pytest.mark.limits
def test_a_batch_waits_for_its_least(spark: "SparkSession", tmp_path: Path) -> None:
    """With a trigger that runs on; AvailableNow does not wait."""
    path = tmp_path / "s"
    write_stream(path, values(0, 100))
    seen = Seen()
    rows = spark.readStream.format("penstock").options(
        path=str(path), minOffsetsPerTrigger="50", maxTriggerDelay="1h", **EARLIEST
    )
    query = (
        rows.load().writeStream.foreachBatch(seen)
        .option("checkpointLocation", str(tmp_path / "state")).start()
    )  # fmt: skip
    try:
        query.processAllAvailable()
        write_stream(path, values(100, 140))
        query.processAllAvailable()
        assert seen.offsets == list(range(100))
        write_stream(path, values(140, 150))
        query.processAllAvailable()
        assert seen.offsets == list(range(150))
    finally:
        query.stop()


def test_triggers_that_python_sources_do_not_have(spark: "SparkSession", tmp_path: Path) -> None:
    write_stream(tmp_path / "s", values(0, 1))
    rows = spark.readStream.format("penstock").option("path", str(tmp_path / "s")).load()
    writing = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c"))
    with pytest.raises(PySparkException, match="does not support continuous processing"):
        writing.trigger(continuous="1 second").start()


@pytest.mark.limits
def test_once_takes_all_there_is(spark: "SparkSession", tmp_path: Path) -> None:
    write_stream(tmp_path / "s", values(0, 100))
    seen = Seen()
    rows = spark.readStream.format("penstock").options(
        path=str(tmp_path / "s"), maxOffsetsPerTrigger="10", **EARLIEST
    )
    writing = rows.load().writeStream.foreachBatch(seen)
    query = writing.option("checkpointLocation", str(tmp_path / "c")).trigger(once=True).start()
    assert query.awaitTermination(240)
    good(query)
    assert [len(found) for _, found in seen.batches] == [100]


@pytest.mark.limits
def test_the_lag_of_a_query(spark: "SparkSession", tmp_path: Path) -> None:
    from penstock.spark import LagListener
    from penstock.spark.lag_listener import QueryLag

    write_stream(tmp_path / "s", values(0, 100))
    told: list[QueryLag] = []
    listener = LagListener(told.append)
    spark.streams.addListener(listener)
    try:
        good(
            run(
                spark, tmp_path / "s", tmp_path / "state", Seen(), maxOffsetsPerTrigger="40",
                **EARLIEST,
            )
        )  # fmt: skip
        spark._jsc.sc().listenerBus().waitUntilEmpty(30_000)
    finally:
        spark.streams.removeListener(listener)
    assert [one.records for one in told] == [60, 20, 0]
    assert [one.batch_rows for one in told] == [40, 40, 20]
    assert told[-1].partitions == {("s", 0): 0}
    (known,) = listener.lags.values()
    assert known == told[-1]


@pytest.mark.limits
def test_a_kill_between_sink_and_checkpoint(spark: "SparkSession", tmp_path: Path) -> None:
    """As it leaves the files: the sink has the last batch, the checkpoint does not."""
    path, lake, state = tmp_path / "s", tmp_path / "lake", tmp_path / "state"
    write_stream(path, values(0, 5000))
    lake_job.finish(lake_job.start(spark, {"path": str(path)}, lake, state))
    total = sum(range(5000))
    assert lake_job.lake_facts(spark, lake) == (5000, 5000, total, total)
    for name in ("2", ".2.crc"):
        (state / "commits" / name).unlink()
    write_stream(path, values(5000, 5100))
    lake_job.finish(lake_job.start(spark, {"path": str(path)}, lake, state))
    total = sum(range(5100))
    assert lake_job.lake_facts(spark, lake) == (5100, 5100, total, total)
