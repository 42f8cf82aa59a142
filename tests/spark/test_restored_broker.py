"""A broker that was restored from a backup which is older than the checkpoint of a query: the sink
says so, in foreachBatch as the documentation shows it, and in pipelines."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from penstock.client import connect
from penstock.codec.spec import QueueDeclare
from penstock.spark.pipeline import Pipeline, PipelineError
from penstock.spark.pipeline_file import parse_pipeline
from tests.helpers.live_broker import LiveBroker
from tests.spark.stand_in import event, put, stream_of
from tests.spark.test_sink import http_url, received

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.real

ROWS = 100
TARGETS = ("late", "audit")


class Restorable:
    """A broker that can go back to a copy of its data."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.live = LiveBroker(directory / "data", has_http=True)

    def backup(self) -> None:
        """Copy the vhost, as `penstock backup` does."""
        job = self.live.control("backup", "/", path=str(self._directory / "copy"))["job"]
        assert self.live.control("job", "/", job=job, wait_ms=20_000)["is_done"]

    def restore(self) -> None:
        """Lose the broker, and serve the copy at its address."""
        lost = self.live
        lost.kill()
        self.live = LiveBroker(self._directory / "copy", has_http=True)
        self.live.port, self.live.http_port = lost.port, lost.http_port
        self.live.start()

    def count(self, queue: str) -> int:
        """Take all messages of a queue."""
        return len(received(self.live, queue))


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Restorable]:
    found = Restorable(tmp_path)
    found.live.start()
    with connect(found.live.url) as connection:
        for name in TARGETS:
            connection.channel().ask(QueueDeclare(queue=name, durable=True)).result(120)
    yield found
    found.live.kill()


class Job:
    """A query with foreachBatch that reads files of ROWS rows; each run reads what is new."""

    def __init__(self, spark: "SparkSession", place: Restorable, directory: Path) -> None:
        self._spark = spark
        self._place = place
        self._in = directory / "in"
        self._state = directory / "state"
        self._files = 0

    def run(self, **more: str) -> str:
        """Write one more batch. Return the query's error, "" if there is none."""
        first = self._files * ROWS
        rows = self._spark.range(first, first + ROWS, 1, 2).selectExpr("cast(id AS string) value")
        rows.coalesce(1).write.mode("append").text(str(self._in))
        self._files += 1
        return self.again(**more)

    def again(self, **more: str) -> str:
        options = {"url": self._place.live.url, "httpUrl": http_url(self._place.live), **more}

        def both(rows: "DataFrame", batch: int) -> None:
            for queue in TARGETS:
                rows.write.format("penstock").options(**options).option("queue", queue).option(
                    "queryId", f"flights/{queue}"
                ).option("batchId", batch).mode("append").save()

        source = self._spark.readStream.schema("value STRING").text(str(self._in))
        writer = source.writeStream.foreachBatch(both)
        writer = writer.option("checkpointLocation", str(self._state))
        query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(240)
        except StreamingQueryException:
            pass
        return str(query.exception() or "")


@pytest.mark.parametrize("is_known", [True, False])
def test_foreach_batch_on_a_broker_from_an_older_backup(
    spark: "SparkSession", place: Restorable, tmp_path: Path, is_known: bool
) -> None:
    """is_known: the backup has the query's first batch; else it is older than the query."""
    job = Job(spark, place, tmp_path)
    if not is_known:
        place.backup()
    assert job.run() == ""
    if is_known:
        place.backup()
    assert job.run() == ""
    place.restore()
    error = job.run()
    assert "BatchConflictError" in error
    assert "batch 2 of query 'flights/late'" in error
    assert ("batch 1 is missing here" if is_known else "batches 0 to 1 are missing here") in error
    assert "failOnDataLoss=false" in error
    assert job.again(failOnDataLoss="false") == ""
    for queue in TARGETS:
        assert place.count(queue) == (2 * ROWS if is_known else ROWS)
    assert job.run() == ""


def test_a_target_that_is_added_to_a_running_query(
    spark: "SparkSession", place: Restorable, tmp_path: Path
) -> None:
    """The broker cannot tell it from a backup that is older than the query, unless it is said."""
    job = Job(spark, place, tmp_path)
    assert job.run() == ""
    place.live.control("release_query", "/", query="flights/audit")
    error = job.run()
    assert "batch 0 is missing here" in error
    assert "or with beginsLate=true if its queryId is newer than its checkpoint" in error
    assert job.again(beginsLate="true") == ""
    assert job.run(beginsLate="true") == ""
    assert job.run() == ""
    for queue in TARGETS:
        assert place.count(queue) == 4 * ROWS


def test_a_pipeline_on_a_broker_from_an_older_backup(
    spark: "SparkSession", place: Restorable, tmp_path: Path
) -> None:
    """Also its dead letters, of which most batches have none; an added sink begins where it is."""
    text = f"""
[pipeline]
name = "p"
state = "{tmp_path}/state"
[source]
queue = "p"
url = "{place.live.url}"
http_url = "{http_url(place.live)}"
[transform]
schema = "row INT, month INT, carrier STRING, delay INT"
on_error = "dead-letter"
[[sink]]
queue = "late"
where = "row < 2"
"""
    more = '[[sink]]\nqueue = "audit"\n'

    def run(first: int, *bad: bytes, text: str = text) -> None:
        put(spark, tmp_path / "in", first, [event(first), event(first + 1), *bad])
        source = stream_of(spark, tmp_path / "in")
        Pipeline(parse_pipeline("p.toml", text, "p"), spark, source=source).run()

    def last() -> dict[str, int]:
        rows = place.live.control("list_batches", "/")
        return {str(row["query"]).rpartition("/")[2]: int(row["batch"]) for row in rows}

    run(0)
    assert last() == {"1": 0, "dead": 0}
    run(10, b"bad")
    place.backup()
    run(20)
    assert last() == {"1": 2, "dead": 2}
    place.restore()
    assert last() == {"1": 1, "dead": 1}
    with pytest.raises(PipelineError, match="batch 2 is missing here"):
        run(30, b"bad")
    assert [message.body for message in received(place.live, "p.dead")] == [b"bad"]
    assert [json.loads(one.body)["row"] for one in received(place.live, "late")] == [0, 1]
    for query in place.live.control("list_batches", "/"):  # go on without the missing ones
        place.live.control("release_query", "/", query=query["query"])
    run(40, text=text + more)
    assert last() == {"1": 4, "2": 4, "dead": 4}
