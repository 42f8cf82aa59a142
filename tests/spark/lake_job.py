"""A query that writes a stream into a lake of Parquet files; and as a program, one that is killed.

    python tests/spark/lake_job.py within|between STREAM LAKE CHECKPOINT MARKER

In the middle of the third batch all Python workers of the executor die by SIGKILL, once, and the
tasks are tried again. MARKER is made just before. Then the driver dies with its JVM. `within`: in
the middle of the fourth batch; MARKER.driver is made just before. `between`: when the third batch
is done and noted; the fourth waits for it.

STREAM: the path of one, or options as JSON.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.helpers.live_broker import LiveBroker

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

ROWS_A_BATCH = 2000
MIDDLE = 5000  # an offset within the third batch
HELD_S = 150.0  # who is not killed in all that time will not be
COLUMNS = "`partition` int, `offset` bigint, `value` binary"

Transform = Callable[["DataFrame"], "DataFrame"]


def start(
    spark: "SparkSession", options: Mapping[str, str], lake: Path, checkpoint: Path,
    transform: Transform | None = None,
) -> "StreamingQuery":  # fmt: skip
    """Everything that is there, in batches of ROWS_A_BATCH, into Parquet."""
    reading = spark.readStream.format("penstock").options(**options)
    reading = reading.option("maxOffsetsPerTrigger", str(ROWS_A_BATCH))
    rows = reading.option("startingOffsets", "earliest").schema(COLUMNS).load()
    if transform is not None:
        rows = transform(rows)
    writing = rows.writeStream.format("parquet").option("checkpointLocation", str(checkpoint))
    return writing.trigger(availableNow=True).start(str(lake))


def finish(query: "StreamingQuery", timeout_s: int = 240) -> None:
    """Wait for its end, which must be a good one."""
    assert query.awaitTermination(timeout_s), "the query is not done"
    assert query.exception() is None


def lake_facts(spark: "SparkSession", lake: Path) -> tuple[int, int, int, int]:
    """(rows, different rows, sum of offsets, sum of the numbers in the values)."""
    row = (
        spark.read.parquet(str(lake))
        .selectExpr(
            "count(*)", "count(distinct partition, offset)", "sum(offset)",
            "sum(cast(cast(value as string) as bigint))",
        )
        .first()
    )  # fmt: skip
    assert row is not None
    return tuple(row)


def killing(
    victims: Mapping[int, tuple[Callable[[], list[int]], str]], last_batch: int | None = None
) -> Transform:
    """What passes rows on, and kills processes once at each of these offsets: which ones, and the
    marker made just before. last_batch: the rows of any later one wait for the end of it all."""
    end = None if last_batch is None else (last_batch + 1) * ROWS_A_BATCH

    def pass_on(batches: Iterator["pa.RecordBatch"]) -> Iterator["pa.RecordBatch"]:
        for batch in batches:
            offsets = batch.column("offset").to_pylist()
            if end is not None and max(offsets, default=0) >= end:
                time.sleep(HELD_S)
            for offset, (pids, marker) in victims.items():
                if offset in offsets:
                    try:
                        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
                    except FileExistsError:
                        continue
                    for pid in pids():
                        os.kill(pid, signal.SIGKILL)
            yield batch

    return lambda rows: rows.mapInArrow(pass_on, COLUMNS)


def over_a_kill(
    spark: "SparkSession", broker: LiveBroker, options: Mapping[str, str], path: Path
) -> None:
    """A job into `path`/lake; its task waits in the middle of its range until the broker has been
    killed and started again."""
    marker, again = path / "marker", path / "again"
    middle = MIDDLE

    def pass_on(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            if middle in batch.column("offset").to_pylist():
                marker.touch()
                while not again.exists():
                    time.sleep(0.05)
            yield batch

    def kill() -> None:
        while not marker.exists():
            time.sleep(0.05)
        broker.kill()
        broker.start()
        again.touch()

    patient = {"timeoutMs": f"{1000 * HELD_S:.0f}"}  # a minute may be too little under load
    query = start(
        spark, {**options, **patient}, path / "lake", path / "state",
        lambda rows: rows.mapInArrow(pass_on, COLUMNS),
    )  # fmt: skip
    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    finish(query)
    killer.join()
    assert again.exists()


def workers_of_this_daemon() -> list[int]:
    """The Python workers of the executor that this runs in, itself the last."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        pid = int(stat.parent.name)
        if parent == os.getppid() and pid != os.getpid():
            found.append(pid)
    return [*found, os.getpid()]


def kill_between(spark: "SparkSession", batch: int, pids: list[int]) -> None:
    """Kill those processes when that batch is done and noted."""
    from pyspark.sql.streaming.listener import StreamingQueryListener

    class Killer(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None:
            pass

        def onQueryProgress(self, event: Any) -> None:
            if event.progress.batchId == batch and event.progress.numInputRows:
                for pid in pids:
                    os.kill(pid, signal.SIGKILL)

        def onQueryIdle(self, event: Any) -> None:
            pass

        def onQueryTerminated(self, event: Any) -> None:
            pass

    spark.streams.addListener(Killer())


def main(which: str, stream: str, lake: str, checkpoint: str, marker: str) -> None:
    """See the head of this module."""
    from pyspark import cloudpickle

    from penstock.spark import session

    os.setpgrp()  # with the JVM that is started below; the executor's workers have their own
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}
    spark = session(master="local[2,3]", app_name="lake job", conf=settings)
    pids = [-os.getpid()]  # the whole group at one instant: neither sees the other go
    victims = {MIDDLE: (workers_of_this_daemon, marker)}
    if which == "within":
        victims[MIDDLE + ROWS_A_BATCH] = (lambda: pids), f"{marker}.driver"
        transform = killing(victims)
    else:
        last_batch = MIDDLE // ROWS_A_BATCH
        transform = killing(victims, last_batch)
        kill_between(spark, last_batch, pids)
    options = json.loads(stream) if stream.startswith("{") else {"path": stream}
    query = start(spark, options, Path(lake), Path(checkpoint), transform)
    finish(query)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
