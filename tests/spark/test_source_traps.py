"""What Spark does with a Python source, as this one relies on it: an upgrade that changes it fails
here, and says what.

A watched source writes down each call that Spark makes, with the process that it came to.
"""

import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from pyspark import TaskContext, cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from penstock.spark.data_source import PenstockDataSource
from penstock.spark.spark_version import has_limits

if not has_limits():
    pytest.skip("what later Sparks do", allow_module_level=True)

from penstock.spark.limited_source import LimitedStreamReader
from tests.helpers.tiny_streams import write_stream

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = pytest.mark.spark

cloudpickle.register_pickle_by_value(sys.modules[__name__])

BATCH_ID = "streaming.sql.batchId"
QUERY_ID = "sql.streaming.queryId"
SOCKET_TIMEOUT = "SPARK_AUTH_SOCKET_TIMEOUT"


class WatchedReader(LimitedStreamReader):
    """Writes its calls into a file, one JSON array a line."""

    log = ""

    def _note(self, *what: object) -> None:
        with open(self.log, "a") as file:
            file.write(json.dumps([os.getpid(), *what]) + "\n")

    def initialOffset(self) -> dict[str, Any]:
        found = super().initialOffset()
        self._note("initialOffset", found)
        return found

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        found = super().latestOffset(start, limit)
        self._note(
            "latestOffset", start, found, type(limit).__name__, getattr(limit, "max_rows", 0)
        )
        return found

    def prepareForTriggerAvailableNow(self) -> None:
        super().prepareForTriggerAvailableNow()
        self._note("prepare")

    def partitions(
        self, start: Mapping[str, Any], end: Mapping[str, Any]
    ) -> Sequence[InputPartition]:
        self._note("partitions", start, end)
        return super().partitions(start, end)

    def commit(self, end: Mapping[str, Any]) -> None:
        self._note("commit", end)
        super().commit(end)

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        context = TaskContext.get()
        assert context is not None
        self._note(
            "read", self._made is None, context.getLocalProperty(BATCH_ID),
            context.getLocalProperty(QUERY_ID), context.partitionId(), context.attemptNumber(),
            context.stageId(), context.taskAttemptId(),
        )  # fmt: skip
        yield from super().read(partition)


class WatchedSource(PenstockDataSource):
    @classmethod
    def name(cls) -> str:
        return "penstock_watched"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        reader = super().streamReader(schema)
        assert isinstance(reader, LimitedStreamReader)
        return WatchedReader(reader.options, reader.columns)


class Watched:
    """A query on a watched source, and the calls that were made."""

    def __init__(self, spark: "SparkSession", directory: Path) -> None:
        self.spark = spark
        self.stream = directory / "s"
        self.state = directory / "state"
        self.log = directory / "calls.jsonl"
        write_stream(self.stream, [b"%d" % i for i in range(100)])
        WatchedReader.log = str(self.log)
        spark.dataSource.register(WatchedSource)  # type: ignore[arg-type]

    def run(
        self, *, fails_at: int | None = None, kills_at: int | None = None, **options: str
    ) -> list[list[Any]]:
        """A run to the end of what there is; the calls of that run, without their process.

        fails_at: the sink of that batch fails. kills_at: then the process that Spark asks for
        offsets is killed.
        """
        self.log.write_text("")

        def sink(rows: Any, batch: int) -> None:
            rows.count()
            if batch == fails_at:
                raise RuntimeError("the sink failed")
            if batch == kills_at:
                os.kill(self.calls()[0][0], signal.SIGKILL)

        given = {"path": str(self.stream), "startingOffsets": "earliest", **options}
        rows = self.spark.readStream.format("penstock_watched").options(**given).load()
        writing = rows.writeStream.foreachBatch(sink).option("checkpointLocation", str(self.state))
        self.query: StreamingQuery = writing.trigger(availableNow=True).start()
        with suppress(StreamingQueryException):
            assert self.query.awaitTermination(240)
        is_good = fails_at is None and kills_at is None
        assert (self.query.exception() is None) == is_good
        return [call[1:] for call in self.calls()]

    def calls(self) -> list[list[Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]


@pytest.fixture
def watched(spark: "SparkSession", tmp_path: Path) -> Watched:
    return Watched(spark, tmp_path)


def named(calls: list[list[Any]], name: str) -> list[list[Any]]:
    return [call[1:] for call in calls if call[0] == name]


def head(offset: Mapping[str, Any]) -> int:
    return int(offset["s"]["0"])


def test_the_first_offset_is_asked_for_more_than_once_and_is_one(watched: Watched) -> None:
    calls = watched.run()
    first = named(calls, "initialOffset")
    assert len(first) >= 2
    assert all(one == first[0] for one in first)
    assert head(first[0][0]) == -2


def test_it_is_asked_for_again_when_no_batch_was_committed(watched: Watched) -> None:
    before = named(watched.run(fails_at=0, startingOffsets="latest"), "initialOffset")
    again = named(watched.run(startingOffsets="latest"), "initialOffset")
    assert again
    assert again[0] == before[0]


def test_one_process_is_asked_and_others_read(watched: Watched) -> None:
    watched.run(maxOffsetsPerTrigger="40")
    driver = {call[0] for call in watched.calls() if call[1] != "read"}
    tasks = {call[0] for call in watched.calls() if call[1] == "read"}
    assert len(driver) == 1
    assert tasks
    assert not driver & tasks


def test_a_task_knows_nothing_that_the_driver_learned(watched: Watched) -> None:
    calls = watched.run()
    assert named(calls, "prepare")
    assert [call[0] for call in named(calls, "read")] == [True]


def test_a_task_knows_its_query_and_its_batch(watched: Watched) -> None:
    """These names are Spark's own, not its API: sinks that count on them must know when they go."""
    calls = named(watched.run(maxOffsetsPerTrigger="40", minPartitions="2"), "read")
    assert {call[1] for call in calls} == {"0", "1", "2"}
    assert {call[2] for call in calls} == {watched.query.id}
    assert {call[3] for call in calls} == {0, 1}
    assert {call[4] for call in calls} == {0}
    assert len({call[6] for call in calls}) == len(calls) == 6


def test_a_limit_comes_by_the_names_of_python(watched: Watched) -> None:
    limits = [call[2:] for call in named(watched.run(maxOffsetsPerTrigger="40"), "latestOffset")]
    assert {tuple(limit) for limit in limits} == {("ReadMaxRows", 40)}
    limits = [call[2:] for call in named(watched.run(), "latestOffset")]
    assert {tuple(limit) for limit in limits} == {("ReadMaxBytes", 0)}


def test_a_commit_comes_with_the_next_batch_and_the_last_one_never(watched: Watched) -> None:
    calls = watched.run(maxOffsetsPerTrigger="40")
    assert [head(end) for (end,) in named(calls, "commit")] == [40, 80]
    order = [call[0] for call in calls if call[0] in ("commit", "partitions")]
    assert order[0] == "partitions"
    assert named(watched.run(), "commit") == []  # nothing new, no batch, no commit
    write_stream(watched.stream, [b"more"])
    assert [head(end) for (end,) in named(watched.run(), "commit")] == [100]


def test_a_replay_asks_for_the_same_partitions_and_no_latest_offset(watched: Watched) -> None:
    before = watched.run(fails_at=1, maxOffsetsPerTrigger="40")
    write_stream(watched.stream, [b"more"] * 50)
    after = watched.run(maxOffsetsPerTrigger="40")
    failed = named(before, "partitions")[-1]
    assert [head(one) for one in failed] == [40, 80]
    order = [call for call in after if call[0] in ("partitions", "latestOffset")]
    assert order[0] == ["partitions", *failed]


def test_a_reader_that_is_killed_ends_the_query_and_a_restart_goes_on(watched: Watched) -> None:
    watched.run(kills_at=0, maxOffsetsPerTrigger="40")
    after = named(watched.run(maxOffsetsPerTrigger="40"), "partitions")
    assert [head(end) for _, end in after] == [80, 100]


def test_filters_are_not_pushed_into_streams(watched: Watched) -> None:
    rows = watched.spark.readStream.format("penstock").options(
        path=str(watched.stream), startingOffsets="earliest", pushdown="true"
    )
    seen: list[int] = []
    query = (
        rows.load().where("offset >= 95").writeStream
        .foreachBatch(lambda found, _: seen.extend(r.offset for r in found.collect()))
        .option("checkpointLocation", str(watched.state)).trigger(availableNow=True).start()
    )  # fmt: skip
    assert query.awaitTermination(240)
    assert sorted(seen) == [95, 96, 97, 98, 99]
    assert query.recentProgress[0].numInputRows == 100


def test_spark_and_its_pythons_wait_for_each_other_for_two_minutes(spark: "SparkSession") -> None:
    """Fifteen seconds are too little on a busy machine: spark_session.py."""
    assert spark.conf.get("spark.python.authenticate.socketTimeout") == "120s"
    told = spark.sparkContext.parallelize([0]).map(lambda _: os.environ[SOCKET_TIMEOUT]).collect()
    assert told == ["120"]
