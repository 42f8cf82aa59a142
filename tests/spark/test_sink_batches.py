"""Exactly once, as Spark calls a sink: what it tells tasks, replays, aborts, retries; the broker's
side is a fake one that keeps what it was told."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import StreamingQueryException
from pyspark.sql.types import StructType

from penstock.spark.sink import BATCH_ID, QUERY_ID, PenstockStreamWriter, Staged
from tests.helpers.fake_staging import FakeStaging

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = pytest.mark.spark


@pytest.fixture
def broker() -> Iterator[FakeStaging]:
    with FakeStaging() as fake:
        yield fake
        assert fake.problems == []


def stream(spark: "SparkSession", directory: Path, files: int = 2) -> "DataFrame":
    """A file a batch, ten rows each."""
    for n in range(files):
        rows = spark.range(n * 10, n * 10 + 10, 1, 2).selectExpr("cast(id as string) as value")
        rows.write.mode("append").text(str(directory))
    reader = spark.readStream.schema("value STRING").option("maxFilesPerTrigger", 2)
    return reader.text(str(directory))


def start(rows: "DataFrame", broker: FakeStaging, state: Path, **options: str) -> "StreamingQuery":
    writer = rows.writeStream.format("penstock").options(url=broker.url, queue="q")
    writer = writer.options(**options).option("checkpointLocation", str(state))
    query = writer.trigger(availableNow=True).start()
    wait_for(query)
    return query


def wait_for(query: "StreamingQuery") -> None:
    """Its end, a good one or not."""
    try:
        assert query.awaitTermination(240)
    except StreamingQueryException:
        pass


def query_id(state: Path) -> str:
    return str(json.loads((state / "metadata").read_text())["id"])


def sent(broker: FakeStaging) -> list[int]:
    return sorted(int(record.payload) for record in broker.published)


def forget_last_commit(state: Path) -> None:
    """As if the driver had died between the sink's commit and Spark's own."""
    commits = state / "commits"
    last = max(int(path.name) for path in commits.glob("[0-9]*"))
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink(missing_ok=True)


def test_tasks_are_told_their_query_and_batch(spark: "SparkSession", tmp_path: Path) -> None:
    """The names are Spark's own and not public: an upgrade that drops them is seen here."""
    assert (QUERY_ID, BATCH_ID) == ("sql.streaming.queryId", "streaming.sql.batchId")
    seen = tmp_path / "seen"

    def look(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        told = [
            context.getLocalProperty("sql.streaming.queryId"),
            context.getLocalProperty("streaming.sql.batchId"),
        ]
        seen.write_text(json.dumps(told))
        yield from batches

    rows = stream(spark, tmp_path / "in", 1).mapInArrow(look, "value string")
    writer = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "state"))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(240)
    assert json.loads(seen.read_text()) == [query_id(tmp_path / "state"), "0"]


def test_each_batch_is_a_batch_of_the_broker(
    spark: "SparkSession", broker: FakeStaging, tmp_path: Path
) -> None:
    rows = stream(spark, tmp_path / "in")
    query = start(rows, broker, tmp_path / "state")
    assert query.exception() is None
    assert sent(broker) == list(range(20))
    assert broker.last == {query_id(tmp_path / "state"): 1}
    assert [command["target"] for command in broker.commits] == [{"queue": "q"}] * 2
    assert len([1 for method, _ in broker.asked if method == "PUT"]) == 2


def test_a_batch_that_comes_again_is_already_done(
    spark: "SparkSession", broker: FakeStaging, tmp_path: Path
) -> None:
    rows = stream(spark, tmp_path / "in")
    start(rows, broker, tmp_path / "state")
    forget_last_commit(tmp_path / "state")
    query = start(rows, broker, tmp_path / "state")
    assert query.exception() is None
    assert len(broker.commits) == 3  # the batch was written and committed once more
    assert sent(broker) == list(range(20))


def test_a_commit_that_fails_is_aborted_and_done_by_the_next_run(
    spark: "SparkSession", broker: FakeStaging, tmp_path: Path
) -> None:
    rows = stream(spark, tmp_path / "in")
    broker.faults["PUT"] += [404]
    query = start(rows, broker, tmp_path / "state")
    error = query.exception()
    assert error is not None
    assert "committing batch 0 of query" in str(error)
    assert "404: status 404 by the test" in str(error)
    assert (broker.staged, broker.published) == ({}, [])
    assert [method for method, _ in broker.asked][-1] == "DELETE"
    assert start(rows, broker, tmp_path / "state").exception() is None
    assert sent(broker) == list(range(20))


def test_an_abort_behind_a_commit_changes_nothing(
    spark: "SparkSession", broker: FakeStaging, tmp_path: Path
) -> None:
    """The PUT is done, its answer lost, and asked again it is refused: Spark aborts the batch."""
    rows = stream(spark, tmp_path / "in", 1)
    broker.faults["PUT"] += ["cut", 403]
    query = start(rows, broker, tmp_path / "state")
    assert "403: status 403 by the test" in str(query.exception())
    assert [method for method, _ in broker.asked][-3:] == ["PUT", "PUT", "DELETE"]
    assert sent(broker) == list(range(10))
    assert start(rows, broker, tmp_path / "state").exception() is None
    assert sent(broker) == list(range(10))


def test_a_batch_whose_tasks_all_failed_is_aborted_by_its_checkpoint(
    spark: "SparkSession", broker: FakeStaging, tmp_path: Path
) -> None:
    """Spark hands no message at all to the abort then."""
    rows = stream(spark, tmp_path / "in", 1).selectExpr("if(value >= 0, null, value) as value")
    query = start(rows, broker, tmp_path / "state")
    assert "option column value: given None, expected a body in every row" in str(query.exception())
    method, parts = broker.asked[-1]
    assert (method, parts) == ("DELETE", ["/", query_id(tmp_path / "state"), "0"])


def test_an_abort_that_knows_nothing_is_quiet(broker: FakeStaging, tmp_path: Path) -> None:
    schema = StructType().add("value", "string")
    told = {"url": broker.url, "queue": "q"}
    for options in (told, {**told, "checkpointLocation": "hdfs://h/none"}):
        PenstockStreamWriter(options, schema, False).abort([None, None], 3)
    assert broker.asked == []
    state = tmp_path / "a state"
    state.mkdir()
    (state / "metadata").write_text('{"id":"abc"}')
    for place in (str(state), state.as_uri()):
        PenstockStreamWriter({**told, "checkpointLocation": place}, schema, False).abort([None], 3)
    assert broker.asked == [("DELETE", ["/", "abc", "3"])] * 2


def test_the_writer_holds_nothing_from_batch_to_batch(broker: FakeStaging) -> None:
    """It is pickled to tasks, and made anew for each batch, each commit and each abort."""
    import pickle

    writer = PenstockStreamWriter(
        {"url": broker.url, "queue": "q"}, StructType().add("value", "string"), False
    )
    again = pickle.loads(pickle.dumps(writer))
    assert again._sink.options == writer._sink.options
    again.commit([], 5)
    again.abort([None], 5)
    assert broker.asked == []


def test_idempotent_tasks_commit_by_themselves(
    spark: "SparkSession", broker: FakeStaging, tmp_path: Path
) -> None:
    rows = stream(spark, tmp_path / "in", 1)
    assert start(rows, broker, tmp_path / "state", delivery="idempotent").exception() is None
    forget_last_commit(tmp_path / "state")
    assert start(rows, broker, tmp_path / "state", delivery="idempotent").exception() is None
    assert sent(broker) == list(range(10))
    name = query_id(tmp_path / "state")
    assert broker.last == {f"{name}/0": 0, f"{name}/1": 0}


def test_a_batch_write_is_a_job_of_its_own(spark: "SparkSession", broker: FakeStaging) -> None:
    rows = spark.range(0, 10, 1, 2).selectExpr("cast(id as string) as value")
    for _ in range(2):
        writer = rows.write.format("penstock").options(url=broker.url, queue="q")
        writer.mode("append").save()
    assert sent(broker) == sorted([*range(10)] * 2)
    assert len(broker.last) == 2
    assert all(name.startswith("job-") and at == 0 for name, at in broker.last.items())


def test_foreach_batch_says_whose_batch_it_is(
    spark: "SparkSession", broker: FakeStaging, tmp_path: Path
) -> None:
    fail: list[str] = ["once"]

    def sink(rows: "DataFrame", batch: int) -> None:
        for queue in ("a", "b"):
            writer = rows.write.format("penstock").options(url=broker.url, queue=queue)
            writer = writer.options(queryId=f"job/{queue}", batchId=str(batch))
            writer.mode("append").save()
            if fail and queue == "a":
                fail.clear()
                raise RuntimeError("between two sinks")

    rows = stream(spark, tmp_path / "in")
    failed: list[bool] = []
    for _ in range(2):
        writer = rows.writeStream.foreachBatch(sink).option(
            "checkpointLocation", str(tmp_path / "state")
        )
        query = writer.trigger(availableNow=True).start()
        wait_for(query)
        failed.append(query.exception() is not None)
    assert failed == [True, False]
    assert sent(broker) == sorted([*range(20)] * 2)
    assert broker.last == {"job/a": 1, "job/b": 1}


def test_a_stream_has_a_query_of_its_own(
    spark: "SparkSession", broker: FakeStaging, tmp_path: Path
) -> None:
    rows = stream(spark, tmp_path / "in", 1)
    query = start(rows, broker, tmp_path / "state", queryId="x", batchId="1")
    assert "option queryId: given 'x', expected none for a stream" in str(query.exception())


def test_a_message_of_a_task_can_be_pickled(broker: FakeStaging) -> None:
    import pickle

    from penstock.spark.staging import StagedRows

    part = StagedRows("q", 1, ({"rows": 1},), 1, frozenset(["x"]), frozenset([("x", "k")]))
    assert pickle.loads(pickle.dumps(Staged(part))).part == part


# ---- another batch with that number --------------------------------------------------------------


def each_batch(rows: "DataFrame", broker: FakeStaging, state: Path) -> "StreamingQuery":
    """A run of foreachBatch with a fixed queryId."""

    def sink(batch_rows: "DataFrame", batch: int) -> None:
        writer = batch_rows.write.format("penstock").options(url=broker.url, queue="q")
        writer.options(queryId="fixed", batchId=str(batch)).mode("append").save()

    writer = rows.writeStream.foreachBatch(sink).option("checkpointLocation", str(state))
    query = writer.trigger(availableNow=True).start()
    wait_for(query)
    return query


def test_a_fixed_query_id_and_a_deleted_checkpoint(
    spark: "SparkSession", broker: FakeStaging, tmp_path: Path
) -> None:
    """Also: two queries with one queryId. Rows of batch 0 were silently left out."""
    rows = stream(spark, tmp_path / "in", 1)
    assert each_batch(rows, broker, tmp_path / "a").exception() is None
    rows = rows.selectExpr("concat(value, '1') as value")
    error = str(each_batch(rows, broker, tmp_path / "b").exception())
    assert "BatchConflictError" in error
    assert "committing batch 0 of query 'fixed'" in error
    assert sent(broker) == list(range(10))


def test_a_checkpoint_that_is_restored_from_an_older_copy(
    spark: "SparkSession", broker: FakeStaging, tmp_path: Path
) -> None:
    """Or copied, and both run."""
    state, old = tmp_path / "state", tmp_path / "old"
    rows = stream(spark, tmp_path / "in", 1)
    assert start(rows, broker, state).exception() is None
    shutil.copytree(state, old)
    for _ in range(2):
        stream(spark, tmp_path / "in", 1)
        assert start(rows, broker, state).exception() is None
    assert len(broker.contents) == 1
    before = sent(broker)
    error = str(start(rows, broker, old).exception())
    assert "BatchConflictError" in error
    assert "committing batch 1 of query" in error
    assert sent(broker) == before


def test_a_broker_that_was_restored_from_an_older_backup(
    spark: "SparkSession", broker: FakeStaging, tmp_path: Path
) -> None:
    """Batches without rows are no gap; those that the broker has lost are."""
    state = tmp_path / "state"
    rows = stream(spark, tmp_path / "in", 1).where("value != '3'")
    few = stream(spark, tmp_path / "in", 0).where("value > 100")
    name = ""
    for n, one in enumerate((rows, few, rows)):
        if n:
            stream(spark, tmp_path / "in", 1)
        assert start(one, broker, state).exception() is None
        name = query_id(state)
        assert broker.last == {name: n}
    before = sent(broker)
    assert broker.commits[1]["tokens"] == []
    broker.last[name] = 1
    stream(spark, tmp_path / "in", 1)
    error = str(start(rows, broker, state).exception())
    assert "BatchConflictError" in error
    assert sent(broker) == before
    assert start(rows, broker, state, failOnDataLoss="false").exception() is None
    assert broker.last == {name: 3}
    assert len(sent(broker)) == len(before) + 9


def foreach(
    spark: "SparkSession", rows: "DataFrame", broker: FakeStaging, state: Path, **options: str
) -> str:
    """A run of foreachBatch that writes each batch: its error, "" if there is none."""

    def sink(batch_rows: "DataFrame", batch: int) -> None:
        writer = batch_rows.write.format("penstock").options(url=broker.url, queue="q", **options)
        writer.options(queryId="each", batchId=str(batch)).mode("append").save()

    writer = rows.writeStream.foreachBatch(sink).option("checkpointLocation", str(state))
    query = writer.trigger(availableNow=True).start()
    wait_for(query)
    return str(query.exception() or "")


def test_foreach_batch_reports_batches_without_rows_and_partitions(
    spark: "SparkSession", broker: FakeStaging, tmp_path: Path
) -> None:
    """An empty batch is no gap, be it that tasks have no rows, or that there are no tasks."""
    state = tmp_path / "state"
    rows = stream(spark, tmp_path / "in", 1)
    for n, one in enumerate((rows.limit(0), rows.where("value > 100"), rows)):
        if n:
            stream(spark, tmp_path / "in", 1)
        assert foreach(spark, one, broker, state) == ""
        assert broker.last == {"each": n}
    assert [command["previous"] for command in broker.commits] == [-1, 0, 1]
    assert [command["tokens"] == [] for command in broker.commits] == [True, True, False]
    empty = spark.createDataFrame([], "value STRING")
    writer = empty.write.format("penstock").options(url=broker.url, queue="q")
    writer.options(queryId="each", batchId="3").mode("append").save()
    assert (broker.last, broker.commits[-1]["tokens"]) == ({"each": 3}, [])
    writer = empty.write.format("penstock").options(url=broker.url, queue="q")
    writer.mode("append").save()  # a job of its own has nothing to report
    assert len(broker.commits) == 4


def test_foreach_batch_notices_batches_that_the_broker_has_lost(
    spark: "SparkSession", broker: FakeStaging, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    rows = stream(spark, tmp_path / "in", 1)
    assert foreach(spark, rows, broker, state) == ""
    before = sent(broker)
    broker.last.clear()  # an older backup, of before the query's first batch
    stream(spark, tmp_path / "in", 1)
    assert "BatchConflictError" in foreach(spark, rows, broker, state)
    assert sent(broker) == before
    assert foreach(spark, rows, broker, state, beginsLate="true") == ""
    assert broker.last == {"each": 1}
    for n in (2, 3):
        stream(spark, tmp_path / "in", 1)
        assert foreach(spark, rows, broker, state, failOnDataLoss="false") == ""
        assert broker.last == {"each": n}
    assert "previous" not in broker.commits[-1]


def test_a_query_whose_rows_come_out_differently_may_say_so(
    spark: "SparkSession", broker: FakeStaging, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    rows = stream(spark, tmp_path / "in", 1).selectExpr("concat(value, '0', uuid()) as value")
    assert start(rows, broker, state).exception() is None
    before = list(broker.published)
    forget_last_commit(state)
    assert "BatchConflictError" in str(start(rows, broker, state).exception())
    assert start(rows, broker, state, sameRows="false").exception() is None
    assert broker.published == before
