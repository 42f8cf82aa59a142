"""Streams as Spark 4.1 reads them, on whatever Spark there is, and errors that name a version.

Later Sparks still call a latestOffset() without a start and a limit, so the reader for 4.1 runs on
each of them. `make test-sparks` runs this file, and the other tests of source and sink, on 4.1.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.types import StructType

from penstock.spark.data_source import PenstockDataSource, columns_of, refuse_limits
from penstock.spark.options import parse_source_options
from penstock.spark.source import UnlimitedStreamReader
from penstock.spark.spark_version import SparkVersionError, has_limits
from tests.helpers.live_broker import LiveBroker
from tests.helpers.tiny_streams import in_vhost, retain, write_stream
from tests.spark.classic_queue import fill, where
from tests.spark.test_source_stream import EARLIEST, Seen, good, values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = pytest.mark.spark

cloudpickle.register_pickle_by_value(sys.modules[__name__])


class UnlimitedSource(PenstockDataSource):
    """Penstock's source as Spark 4.1 has it."""

    @classmethod
    def name(cls) -> str:
        return "penstock_unlimited"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = parse_source_options(self.options, is_streaming=True)
        return UnlimitedStreamReader(options, columns_of(schema))


def start(
    spark: "SparkSession", state: Path, sink: Any, *, now: bool = True, **options: str
) -> "StreamingQuery":
    spark.dataSource.register(UnlimitedSource)  # type: ignore[arg-type]
    rows = spark.readStream.format("penstock_unlimited").options(**options).load()
    writing = rows.writeStream.foreachBatch(sink).option("checkpointLocation", str(state))
    return (writing.trigger(availableNow=True) if now else writing).start()


def run(spark: "SparkSession", state: Path, seen: Seen, **options: str) -> "StreamingQuery":
    """A run with AvailableNow, to its end."""
    query = start(spark, state, seen, **options)
    try:
        assert query.awaitTermination(240), "the query is not done"
    except PySparkException:
        pass
    return query


def test_a_batch_reaches_to_the_newest_record(spark: "SparkSession", tmp_path: Path) -> None:
    path, state, seen = tmp_path / "s", tmp_path / "state", Seen()
    write_stream(path, values(0, 250))
    good(run(spark, state, seen, path=str(path), **EARLIEST))
    good(run(spark, state, seen, path=str(path), **EARLIEST))
    write_stream(path, values(250, 260))
    good(run(spark, state, seen, path=str(path), **EARLIEST))
    assert seen.batches == [(0, list(range(250))), (1, list(range(250, 260)))]


def test_a_query_that_goes_on(spark: "SparkSession", tmp_path: Path) -> None:
    vhost, seen = tmp_path / "v", Seen()
    write_stream(in_vhost(vhost, b"a", 1), values(0, 10))
    given = {"path": str(vhost), "subscribePattern": ".*"}
    query = start(spark, tmp_path / "state", seen, now=False, **given)
    try:
        query.processAllAvailable()
        assert seen.offsets == []  # from the latest on
        write_stream(in_vhost(vhost, b"a", 1), values(10, 12))
        write_stream(in_vhost(vhost, b"b", 2), values(0, 5))  # a stream that comes later
        query.processAllAvailable()
        assert sorted(seen.offsets) == [0, 1, 2, 3, 4, 10, 11]
    finally:
        query.stop()


def test_a_failed_batch_is_replayed_as_it_was(spark: "SparkSession", tmp_path: Path) -> None:
    path, state, seen = tmp_path / "s", tmp_path / "state", Seen()
    write_stream(path, values(0, 100))
    seen.fails_at = 0
    query = run(spark, state, seen, path=str(path), **EARLIEST)
    assert "the sink failed" in str(query.exception())
    write_stream(path, values(100, 150))  # the head moves before the restart
    good(run(spark, state, seen, path=str(path), **EARLIEST))
    # To a source without limits AvailableNow is one batch, and this was the one that failed.
    good(run(spark, state, seen, path=str(path), **EARLIEST))
    assert seen.batches == [
        (0, list(range(100))), (0, list(range(100))), (1, list(range(100, 150))),
    ]  # fmt: skip


def test_losses_are_errors(spark: "SparkSession", tmp_path: Path) -> None:
    path, state, seen = tmp_path / "s", tmp_path / "state", Seen()
    write_stream(path, values(0, 50))
    good(run(spark, state, seen, path=str(path), **EARLIEST))
    write_stream(path, values(50, 600))
    first = retain(path, 100)
    assert first > 50
    query = run(spark, state, seen, path=str(path), **EARLIEST)
    assert f"records 50 to {first - 1} were reclaimed" in str(query.exception())
    good(run(spark, state, seen, path=str(path), failOnDataLoss="false", **EARLIEST))
    assert seen.batches[-1][1] == list(range(first, 600))
    path.rename(tmp_path / "old")
    write_stream(path, values(0, 60), seed=2)
    query = run(spark, state, seen, path=str(path), **EARLIEST)
    assert "deleted and declared again" in str(query.exception())


def test_a_classic_queue_needs_a_newer_spark(
    spark: "SparkSession", tmp_path: Path, broker: LiveBroker
) -> None:
    fill(broker, "jobs", [b"1"])
    query = run(spark, tmp_path / "state", Seen(), **where(broker, "jobs"))
    text = str(query.exception())
    assert "reading classic queue 'jobs' as a stream: needs Spark 4.2 or newer, and this is" in text


def test_options_that_need_a_newer_spark() -> None:
    refuse_limits({"subscribe": "s", "minPartitions": "3"})
    with pytest.raises(SparkVersionError, match=r"option minOffsetsPerTrigger: needs Spark 4\.2"):
        refuse_limits({"minoffsetspertrigger": "1"})


@pytest.mark.skipif(has_limits(), reason="this Spark has limits")
def test_limits_are_refused(spark: "SparkSession", tmp_path: Path) -> None:
    write_stream(tmp_path / "s", values(0, 5))
    rows = spark.readStream.format("penstock").options(
        path=str(tmp_path / "s"), maxOffsetsPerTrigger="10"
    )
    writing = rows.load().writeStream.format("noop")
    query = writing.option("checkpointLocation", str(tmp_path / "c")).start()
    with pytest.raises(PySparkException, match=r"option maxOffsetsPerTrigger: needs Spark 4\.2"):
        query.awaitTermination(60)
