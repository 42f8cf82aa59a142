"""What bench/spark_bench.py measures, each scenario a process of its own with a session of its own.

All have two cores, 256 B a record unless something else is said, and are warm: each query runs
before it counts, and the sources take turns. A query costs a quarter of a second whatever it reads,
so there are some million rows. Each run plans its query anew: Spark keeps what a plan has shuffled,
and the second `collect` of one would read nothing. The tuple path is a Python source as the guides
show them: it yields a tuple a record, out of the same pages.

What writes much (the sink, leases) is measured with memory that was just used (`use_memory`).
A virtual machine may get its memory from the host page by page, at the first use, and give it back
when it is free: then it is the host that is measured, 0.9 us for 290 B written to a file instead of
0.05, and differently each time.
"""

import json
import mmap
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from penstock import build_kind
from penstock.clock import SystemClock
from penstock.storage.files.filesystem import OsFileSystem
from penstock.storage.pages.persistent_queue import PersistentQueue

SIZE = 256
META = b"\x02\x06events\x04key.\x10\x00\x02"
COLUMNS = "`offset` bigint, `timestamp` timestamp, `value` binary"

USED_MIB = 2048

Result = dict[str, Any]


def use_memory() -> None:
    """Memory of the machine that is free, and that it does not first have to be given."""
    with mmap.mmap(-1, USED_MIB << 20) as memory:
        for at in range(0, len(memory), mmap.PAGESIZE):
            memory[at] = 1


def write(path: Path, payloads: Iterator[bytes]) -> None:
    """A stream that stands alone, with these records."""
    queue = PersistentQueue(
        OsFileSystem(), str(path), clock=SystemClock(), rng=random.Random(1)
    )  # fmt: skip
    for index, payload in enumerate(payloads):
        queue.append(payload, META)
        if index % 10_000 == 9_999:
            queue.write()
    queue.force()
    queue.close()


def noise(count: int) -> Iterator[bytes]:
    """Records of SIZE bytes that do not compress."""
    pool = random.Random(2).randbytes(1 << 20)
    for index in range(count):
        at = index * 7919 % ((1 << 20) - SIZE)
        yield pool[at : at + SIZE]


def events(count: int) -> Iterator[bytes]:
    """Flights as JSON, SIZE bytes each."""
    for index in range(count):
        row = {
            "row": index, "month": index % 12 + 1, "carrier": ("UA", "B6", "DL")[index % 3],
            "origin": "JFK", "dest": "LAX", "dep_delay": index % 120 - 10, "tail": f"N{index}",
        }  # fmt: skip
        text = json.dumps(row)
        yield json.dumps({**row, "pad": "x" * (SIZE - len(text) - 11)}).encode()


def spark_session() -> Any:
    from penstock.spark import session

    settings = {"spark.ui.enabled": "false", "spark.driver.memory": "3g"}
    spark = session("local[2]", "bench", settings)
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def in_turn(
    queries: dict[str, Callable[[], object]], warm: int, runs: int
) -> dict[str, list[float]]:
    """Seconds of each query, the queries taking turns, the first rounds not counted."""
    found: dict[str, list[float]] = {name: [] for name in queries}
    for round_ in range(warm + runs):
        for name, query in queries.items():
            started = time.perf_counter()
            query()
            if round_ >= warm:
                found[name].append(time.perf_counter() - started)
    return found


def tuple_source(spark: Any, path: str, count: int) -> None:
    """Registers `tuples`: the same records, one at a time."""
    from pyspark import cloudpickle
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    cloudpickle.register_pickle_by_value(sys.modules[__name__])

    class TupleReader(DataSourceReader):
        def partitions(self) -> Sequence[InputPartition]:
            half = count // 2
            return [InputPartition((0, half)), InputPartition((half, count))]

        def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
            from datetime import UTC, datetime

            from penstock.storage.files.filesystem import OsFileSystem
            from penstock.storage.pages.stream_view import StreamView

            view = StreamView(OsFileSystem(), path)
            at, last = partition.value
            while at < last:
                for record in view.read(at, min(4096, last - at), 1 << 20):
                    moment = datetime.fromtimestamp(record.time_us / 1e6, UTC)
                    yield record.offset, moment, record.payload
                    at = record.offset + 1

    class TupleSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "tuples"

        def schema(self) -> str:
            return COLUMNS

        def reader(self, schema: Any) -> DataSourceReader:
            return TupleReader()

    spark.dataSource.register(TupleSource)


def penstock(spark: Any, path: Path | str, **options: str) -> Any:
    reading = spark.read.format("penstock").options(path=str(path), minPartitions="2", **options)
    return reading.schema(COLUMNS).load()


def scan(data: str, count: int, warm: int, runs: int) -> Result:
    """sum(length(value)) over the same records from each source: rows/s."""
    root = Path(data)
    root.mkdir()
    write(root / "s", noise(count))
    spark = spark_session()
    rows = penstock(spark, root / "s")
    rows.repartition(2).write.parquet(str(root / "parquet"))
    rows.selectExpr("hex(substring(value, 1, 128)) as value").repartition(2).write.text(
        str(root / "text")
    )
    tuple_source(spark, str(root / "s"), count)
    total = "sum(length(value))"

    def of(frame: Any) -> Callable[[], object]:
        return lambda: frame.selectExpr(total).collect()

    queries = {
        "penstock": of(rows),
        "parquet": of(spark.read.parquet(str(root / "parquet"))),
        "text": of(spark.read.text(str(root / "text"))),
        "tuples": of(spark.read.format("tuples").load()),
    }
    for name, query in queries.items():
        (found,) = query()  # type: ignore[misc]
        assert found[0] == count * SIZE, name
    times = in_turn(queries, warm, runs)
    spark.stop()
    return {"count": count, "size": SIZE, "seconds": times}


def parsing(data: str, count: int, warm: int, runs: int) -> Result:
    """from_json and an aggregate over flights as JSON, from Penstock and from Parquet."""
    root = Path(data)
    root.mkdir()
    write(root / "s", events(count))
    spark = spark_session()
    rows = penstock(spark, root / "s")
    rows.repartition(2).write.parquet(str(root / "parquet"))
    schema = "row BIGINT, month INT, carrier STRING, origin STRING, dest STRING, dep_delay INT"

    def of(frame: Any) -> Callable[[], list[Any]]:
        def query() -> list[Any]:
            parsed = frame.selectExpr(f"from_json(cast(value as string), '{schema}') as e")
            grouped = parsed.groupBy("e.month", "e.carrier")
            return grouped.agg({"e.dep_delay": "sum", "*": "count"}).collect()

        return query

    queries = {"penstock": of(rows), "parquet": of(spark.read.parquet(str(root / "parquet")))}
    for name, query in queries.items():
        assert sum(row["count(1)"] for row in query()) == count, name
    times = in_turn(queries, warm, runs)
    spark.stop()
    return {"count": count, "size": SIZE, "seconds": times}


def arrow(data: str, count: int, runs: int) -> Result:
    """Making batches, without Spark: CPU ns a row, checksums verified, from mapped pages."""
    from penstock.arrow_batches import COLUMNS as ALL
    from penstock.arrow_batches import BatchMaker
    from penstock.fast_crc import crc_library
    from penstock.page_frames import PageMap

    root = Path(data)
    root.mkdir()
    write(root / "s", noise(count))
    pages = sorted((root / "s").glob("*.page"))
    bases = [int(page.stem) for page in pages]
    rows = 0
    found: Result = {"crc": crc_library()}
    for name, columns in (("three", ("offset", "timestamp", "value")), ("all", ALL)):
        times = []
        for _ in range(runs):
            rows = 0
            started = time.process_time()
            for page, base, end in zip(pages, bases, bases[1:], strict=False):
                mapped = PageMap(str(page), base, end - base)
                for batch in BatchMaker("s", 0, columns).batches(mapped.frames(base, end)):
                    rows += batch.num_rows
                mapped.close()
            times.append((time.process_time() - started) / rows * 1e9)
        found[name] = times
    return {**found, "rows": rows, "size": SIZE}


def floor(data: str, batches: int) -> Result:
    """Micro-batches of 1000 records, two tasks, to a sink that does nothing: ms of a trigger."""
    root = Path(data)
    root.mkdir()
    write(root / "s", noise(batches * 1000))
    spark = spark_session()
    rows = spark.readStream.format("penstock").options(
        path=str(root / "s"), startingOffsets="earliest", maxOffsetsPerTrigger="1000",
        minPartitions="2",
    )  # fmt: skip
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "1000")
    writing = rows.schema(COLUMNS).load().writeStream.format("noop")
    query = (
        writing.option("checkpointLocation", str(root / "state")).trigger(availableNow=True).start()
    )
    query.awaitTermination()
    times = [p.durationMs["triggerExecution"] for p in query.recentProgress if p.numInputRows]
    spark.stop()
    return {"batches": len(times), "ms": times[5:]}


def network(data: str, count: int, warm: int, runs: int, url: str, http_url: str) -> Result:
    """The same scan of a broker's stream by its files and by HTTP, on this machine."""
    spark = spark_session()

    def of(access: str) -> Callable[[], object]:
        reading = spark.read.format("penstock").options(
            url=url, httpUrl=http_url, subscribe="bench", minPartitions="2", access=access
        )
        frame = reading.schema(COLUMNS).load()
        return lambda: frame.selectExpr("sum(length(value))").collect()

    queries = {"file": of("file"), "network": of("network")}
    for query in queries.values():
        (found,) = query()  # type: ignore[misc]
        assert found[0] == count * SIZE
    times = in_turn(queries, warm, runs)
    spark.stop()
    return {"count": count, "size": SIZE, "seconds": times}


def classic(data: str, count: int, runs: int, url: str, http_url: str) -> Result:
    """A classic queue, leased, read and acknowledged by queries with AvailableNow: rows/s of the
    triggers that had rows, and where their time went. Each run has count messages of its own."""
    spark = spark_session()
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "1000")
    seconds, parts = [], []
    for run in range(runs + 1):  # the first one is not counted
        reading = spark.readStream.format("penstock").options(
            url=url, httpUrl=http_url, subscribe=f"bench.{run}", readerId="bench",
            minPartitions="2",
        )  # fmt: skip
        writing = reading.schema(COLUMNS).load().writeStream.format("noop")
        writing = writing.option("checkpointLocation", f"{data}.{run}")
        use_memory()
        query = writing.trigger(availableNow=True).start()
        query.awaitTermination()
        done = [p for p in query.recentProgress if p.numInputRows]
        assert sum(p.numInputRows for p in done) == count
        if run:
            seconds.append(sum(p.durationMs["triggerExecution"] for p in done) / 1000)
            names = ("latestOffset", "addBatch")
            parts.append({name: sum(p.durationMs[name] for p in done) / 1000 for name in names})
    spark.stop()
    return {
        "count": count, "size": SIZE, "seconds": {"classic queue": seconds},
        "lease_seconds": [part["latestOffset"] for part in parts],
        "task_seconds": [part["addBatch"] for part in parts],
    }  # fmt: skip


SCENARIOS = {f.__name__: f for f in (scan, parsing, arrow, floor, network, classic)}


def main() -> None:
    os.environ.setdefault("PENSTOCK_CHECK", "0")
    scenario, given = sys.argv[1], json.loads(sys.argv[2])
    Path(given["data"]).parent.mkdir(parents=True, exist_ok=True)
    result: Result = SCENARIOS[scenario](**given)
    if "seconds" in result:
        result["rows_per_s"] = {
            name: result["count"] / statistics.median(times)
            for name, times in result["seconds"].items()
        }
    print(json.dumps({"build": build_kind(), **result}), flush=True)


if __name__ == "__main__":
    main()
