"""Drivers of the tests of clusters, each a program of its own: what users write, and what came out.

    python tests/cluster/cluster_job.py JOB JSON

The last line that it prints is JSON. The connector's way to the executors (`way`): "installed", if
it is there; "py-files", given to Spark as it starts, and `register`; "ship". Nothing imports tests
here: what tasks run is pickled by value, and an executor has only what users' executors have.
"""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

LOOKS = "place string, package string, sees boolean, rows bigint"
KEYED = "value binary, routing_key string"
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
QUICK = {
    "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2",
    "spark.driver.extraJavaOptions": JAVA_OPTIONS,
    "spark.executor.extraJavaOptions": JAVA_OPTIONS,
}  # fmt: skip
# Both executors, of a core each, are there before the first task is.
OF_CLUSTERS = {
    "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m", "spark.executor.cores": "1", "spark.cores.max": "2",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s", "spark.task.maxFailures": "2",
}  # fmt: skip


def session_of(master: str, way: str, zip_path: str) -> "SparkSession":
    """A session on that master, with the source there in that way."""
    from penstock.spark import session, ship

    conf = {**QUICK, **OF_CLUSTERS}
    if way == "py-files":
        conf["spark.submit.pyFiles"] = zip_path
    spark = session(master=master, app_name=way, conf=conf)
    if way == "ship":
        ship(spark)
    spark.sparkContext.setLogLevel("OFF")
    return spark


def looks(data: str) -> Any:
    """A function for mapInArrow: a row for each task, which says where it ran, where penstock was,
    whether it sees that directory, and how many rows it got."""

    def look(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa

        import penstock

        rows = sum(batch.num_rows for batch in batches)
        place = [part for part in os.getcwd().split("/") if part.startswith("worker")]
        found = {
            "place": place, "package": [penstock.__file__], "sees": [os.path.exists(data)],
            "rows": [rows],
        }  # fmt: skip
        yield pa.RecordBatch.from_pydict(found)

    return look


def keyed(victim: str) -> Any:
    """A function for mapInArrow: rows with "batch.partition.attempt" as their routing key. The task
    `victim` is killed, with the executor that it runs in, when it has passed on some."""

    def key(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import signal

        import pyarrow as pa
        from pyspark import TaskContext

        task = TaskContext.get()
        assert task is not None
        batch_id = task.getLocalProperty("streaming.sql.batchId")
        mine = f"{batch_id}.{task.partitionId()}.{task.attemptNumber()}"
        for batch in batches:
            value = batch.column("value")
            keys = pa.array([mine] * len(value))
            yield pa.RecordBatch.from_arrays([value, keys], ["value", "routing_key"])
            if mine == victim:
                daemon = Path(f"/proc/{os.getppid()}/stat").read_text()
                os.kill(int(daemon.rpartition(")")[2].split()[1]), signal.SIGKILL)

    return key


def scan(spark: "SparkSession", source: dict[str, str], data: str) -> list[dict[str, Any]]:
    """A batch read in four tasks: where each was."""
    rows = spark.read.format("penstock").options(**source, minPartitions="4").load()
    return [row.asDict() for row in rows.mapInArrow(looks(data), LOOKS).collect()]


def into_stream(rows: "DataFrame", url: dict[str, str], out: str, state: str) -> None:
    """All that is there, into a stream, exactly once. The rows name the attempt of their task, so
    they are not the same when a batch is done again."""
    writing = rows.writeStream.format("penstock").options(**url, queue=out, sameRows="false")
    query = writing.option("checkpointLocation", state).trigger(availableNow=True).start()
    assert query.awaitTermination(300), "the query is not done"
    assert query.exception() is None


def cluster(
    master: str, way: str, zip_path: str, url: str, http_url: str, access: str, data: str,
    out: str, state: str, batch_rows: int, victim: str,
) -> dict[str, Any]:  # fmt: skip
    """Read in parallel, in batch; read as a stream and write exactly once. With a victim: the
    executor of that task is killed in the middle; and then the last batch once more, as after a
    driver that died before it could write down that it was done."""
    spark = session_of(master, way, zip_path)
    place = {"url": url, "httpUrl": http_url}
    source = {**place, "subscribe": "events", "access": access}
    found: dict[str, Any] = {"tasks": scan(spark, source, data)}
    if victim:
        try:
            scan(spark, {**source, "access": "file"}, data)
            found["file"] = "read"
        except Exception as error:
            found["file"] = str(error)
    reading = spark.readStream.format("penstock").options(**source)
    reading = reading.option("maxOffsetsPerTrigger", str(batch_rows))
    rows = reading.option("startingOffsets", "earliest").load()
    into_stream(rows.mapInArrow(keyed(victim), KEYED), place, out, state)
    commits = sorted((Path(state) / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    found["batches"] = len(commits)
    if victim:
        commits[-1].unlink()
        commits[-1].with_name(f".{commits[-1].name}.crc").unlink(missing_ok=True)
        into_stream(rows.mapInArrow(keyed(""), KEYED), place, out, state)
    spark.stop()
    return found


def connect(remote: str, url: str, http_url: str, state: str) -> dict[str, Any]:
    """A client of Spark Connect: batch, stream and sink."""
    from pyspark.sql import SparkSession

    from penstock.errors import PenstockError
    from penstock.spark import register, ship

    spark = SparkSession.builder.remote(remote).getOrCreate()
    register(spark)
    found: dict[str, Any] = {"session": type(spark).__module__}
    try:
        ship(spark)
    except PenstockError as error:
        found["ship"] = str(error)
    place = {"url": url, "httpUrl": http_url}
    source = {**place, "subscribe": "events", "startingOffsets": "earliest"}
    rows = spark.read.format("penstock").options(**source).load()
    counted = rows.selectExpr("count(*) n", "count(distinct partition, offset) d").collect()[0]
    found["rows"] = list(counted)
    into_stream(
        spark.readStream.format("penstock").options(**source).load().select("value"),
        place, "connected", state,
    )  # fmt: skip
    spark.stop()
    return found


def connect_batches(
    remote: str, url: str, http_url: str, state: str, directory: str
) -> dict[str, Any]:
    """foreachBatch over Spark Connect: a process of the server calls it, in a session of its own.
    Each batch goes into a table of Delta, one of Iceberg, and a queue, twice."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.remote(remote).getOrCreate()
    place = {"url": url, "httpUrl": http_url}

    def write(rows: "DataFrame", batch: int) -> None:
        from penstock.spark.delta_sink import DeltaSink
        from penstock.spark.iceberg_sink import IcebergSink
        from penstock.spark.lake_table import ordered

        divided = {"partition_by": ["partition"]}
        for table in (
            DeltaSink(f"{directory}/delta", **divided),
            IcebergSink("db.t", catalog={"warehouse": f"{directory}/warehouse"}, **divided),
        ):
            for _ in range(2):
                if not table.is_done("query", batch):
                    found = ordered(rows, table.divisions(), is_gathered=True)
                    table.write(found, "query", batch)
        target = {**place, "queue": "batches", "queryId": "query", "batchId": str(batch)}
        for _ in range(2):
            rows.select("value").write.format("penstock").options(**target).mode("append").save()

    reading = spark.readStream.format("penstock").options(**place, subscribe="numbers")
    reading = reading.options(startingOffsets="earliest", maxOffsetsPerTrigger="1000")
    rows = reading.load().select("partition", "offset", "value")
    writing = rows.writeStream.foreachBatch(write).option("checkpointLocation", state)
    query = writing.trigger(availableNow=True).start()
    assert query.awaitTermination(300), "the query is not done"
    assert query.exception() is None, query.exception()
    spark.stop()
    return {"session": type(spark).__module__}


def tables(remote: str) -> dict[str, Any]:
    """What the declarative pipeline has made."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.remote(remote).getOrCreate()
    flights = spark.sql("SELECT count(*), count(DISTINCT row), max(row) FROM flights").collect()[0]
    delays = spark.sql("SELECT carrier, flights FROM delays ORDER BY carrier").collect()
    spark.stop()
    return {"flights": list(flights), "delays": [list(row) for row in delays]}


JOBS = {job.__name__: job for job in (cluster, connect, connect_batches, tables)}


if __name__ == "__main__":
    print(json.dumps(JOBS[sys.argv[1]](**json.loads(sys.argv[2]))))
