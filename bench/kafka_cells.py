"""What bench/spark_bench.py measures beside Kafka: the same queries over the same rows, in turn.

One process with one session of two cores has both sources. Kafka's server and our broker run
beside it, and what counts is the CPU of everything together: this process, the JVM below it, its
Python workers, and the broker that the query talks to. The clock of a shared machine says what its
neighbours do; CPU says it less. `rows` are a cell's rows; what is small by its nature
(micro-batches of 1,000 rows, 200 streams, a job of a few rows) has its own number.

Without Kafka (`kafka` is empty) the same cells run for Penstock alone.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from cpu_group import CpuGroup, stat_of
from sink_cells import prepare
from spark_cells import SIZE, Result, events, noise

import penstock
from penstock import build_kind

SCHEMA = "row BIGINT, month INT, carrier STRING, origin STRING, dest STRING, dep_delay INT"
KEYS = 5_000
AT_ONCE = 10_000
MICRO_ROWS, MICRO_BATCHES, MICRO_BATCHES_MIN, MICRO_WARM = 1_000, 40, 10, 3
STREAMS, ROWS_OF_ONE = 200, 100
TRIGGERS = 5
PARTITIONS = (1, 4)
FEW = 50  # the job of few rows has the FEW-th part of the rows

# Threads of the JVM by how their names begin; processes of the broker by a part of their command.
THREADS = {
    "JVM: tasks": "Executor task",
    "JVM: compiler": ("C1 ", "C2 "),
    "JVM: garbage collection": ("GC ", "G1 "),
}
OTHERS = "JVM: others"
BROKER = {"penstock vhost": "broker: vhost", "penstock http": "broker: HTTP", "": "broker: others"}

Query = Callable[[], None]


def say(text: str) -> None:
    """How far it is; the result alone goes to stdout."""
    print(f"         {text}", file=sys.stderr, flush=True)


class Lab:
    """Both systems, one session, and what was measured.

    brokers: the group of the broker's processes, by system. figures: cell, system, and a list of
    [wall s, CPU s] of its runs. costs: CPU s by what took them, of Penstock's runs of a cell.
    """

    def __init__(
        self, root: Path, rows: int, warm: int, runs: int, url: str, http_url: str,
        own: CpuGroup, brokers: dict[str, CpuGroup], kafka: str, class_path: str,
    ) -> None:  # fmt: skip
        self.root, self.rows, self.warm, self.runs = root, rows, warm, runs
        self.url, self.http_url, self.kafka = url, http_url, kafka
        self.own, self.brokers = own, brokers
        self.figures: dict[str, dict[str, list[list[float]]]] = {}
        self.costs: dict[str, list[dict[str, float]]] = {}
        self._number = 0
        self.spark = session(class_path)
        if kafka:
            jvm = self.spark._jvm
            settings = jvm.java.util.Properties()
            settings.setProperty("bootstrap.servers", kafka)
            self._admin = jvm.org.apache.kafka.clients.admin.Admin.create(settings)

    def new_name(self, what: str) -> str:
        """A name that nothing has yet."""
        self._number += 1
        return f"{what}.{self._number}"

    def make_topic(self, name: str, partitions: int) -> None:
        jvm = self.spark._jvm
        optional = jvm.java.util.Optional
        made = jvm.org.apache.kafka.clients.admin.NewTopic(
            name, optional.of(partitions), optional.empty()
        )
        topics = jvm.java.util.Collections.singletonList(made)
        self._admin.createTopics(topics).all().get()

    def delete_topic(self, name: str) -> None:
        self._admin.deleteTopics(self.spark._jvm.java.util.Collections.singletonList(name))

    def read(self, system: str, name: str, schema: str = "", **options: str) -> Any:
        return self._from(self.spark.read, system, name, schema, options)

    def read_stream(self, system: str, name: str, schema: str = "", **options: str) -> Any:
        options = {"startingOffsets": "earliest", **options}
        return self._from(self.spark.readStream, system, name, schema, options)

    def _from(
        self, reader: Any, system: str, name: str, schema: str, options: dict[str, str]
    ) -> Any:
        by = "subscribePattern" if name.endswith(".*") else "subscribe"
        reading = reader.format(system).option(by, name).options(**options)
        if system == "kafka":
            return reading.option("kafka.bootstrap.servers", self.kafka).load()
        reading = reading.option("url", self.http_url.replace("//", "//guest:guest@"))
        return (reading.schema(schema) if schema else reading).load()

    def fill(self, name: str, partitions: int, rows: Iterator[bytes]) -> None:
        """The same rows into a stream and, out of it, into a topic."""
        say(f"filling {name}")
        with penstock.open(self.url) as box:
            stream = box.stream(name, partitions=partitions)
            part: list[tuple[bytes, dict[str, Any]]] = []
            for index, row in enumerate(rows):
                part.append((row, {"key": f"k{index % KEYS}"}))
                if len(part) == AT_ONCE:
                    stream.append_many(part)
                    part = []
            if part:
                stream.append_many(part)
        if self.kafka:
            self.make_topic(name, partitions)
            rows_again = self.read("penstock", name).selectExpr("routing_key as key", "value")
            writing = rows_again.write.format("kafka").option("topic", name)
            writing.option("kafka.bootstrap.servers", self.kafka).save()

    def _parts(self) -> dict[str, float]:
        """CPU seconds so far of what Penstock's cells run in. What has ended counts as Python's or,
        of the JVM, as others."""
        own, jvm = self.own.processes(), self.spark.sparkContext._gateway.proc.pid
        found = dict.fromkeys((*THREADS, *BROKER.values(), OTHERS), 0.0)
        if jvm not in own:
            return {}
        for task in Path("/proc", str(jvm), "task").iterdir():
            with suppress(OSError):  # it has ended meanwhile
                thread, seconds = stat_of(task)
                for name, begins in THREADS.items():
                    if thread.startswith(begins):
                        found[name] += seconds
        found[OTHERS] = own[jvm][1] - sum(found.values())
        found["Python"] = self.own.seconds() - own[jvm][1]
        for command, seconds in self.brokers["penstock"].processes().values():
            found[next(name for part, name in BROKER.items() if part in command)] += seconds
        return found

    def _cpu_s(self, system: str) -> float:
        return self.own.seconds() + self.brokers[system].seconds()

    def measure(self, cell: str, queries: dict[str, Query], runs: int = 0) -> None:
        """Each system's query in turn, the warm rounds not counted."""
        say(cell)
        found = self.figures.setdefault(cell, {})
        for round_ in range(self.warm + (runs or self.runs)):
            for system in sorted(queries, reverse=bool(round_ % 2)):  # none is always the first
                query = queries[system]
                if system == "kafka" and not self.kafka:
                    continue
                parts = self._parts() if system == "penstock" else {}
                before, started = self._cpu_s(system), time.perf_counter()
                query()
                taken = [time.perf_counter() - started, self._cpu_s(system) - before]
                if parts and round_ >= self.warm:
                    its = {name: each - parts[name] for name, each in self._parts().items()}
                    self.costs.setdefault(cell, []).append(its)
                if round_ >= self.warm:
                    found.setdefault(system, []).append(taken)


def session(class_path: str) -> Any:
    from penstock.spark import session as penstock_session

    settings = {
        "spark.ui.enabled": "false", "spark.driver.memory": "2g",
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
    }  # fmt: skip
    if class_path:
        settings["spark.driver.extraClassPath"] = class_path
    spark = penstock_session("local[2]", "bench", settings)
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def scans(lab: Lab) -> None:
    """sum(length(value)); and with the column `value` only, which Kafka's source has no way to."""

    def total(frame: Callable[[], Any]) -> Query:
        def query() -> None:
            (found,) = frame().selectExpr("count(1)", "sum(length(value))").collect()
            assert tuple(found) == (lab.rows, lab.rows * SIZE), found

        return query

    for partitions in PARTITIONS:
        name = f"noise{partitions}"
        queries = {
            "kafka": total(lambda name=name: lab.read("kafka", name)),  # type: ignore[misc]
            "penstock": total(lambda name=name: lab.read("penstock", name)),  # type: ignore[misc]
        }
        lab.measure(f"scan, {partitions}", queries)
    only = total(lambda: lab.read("penstock", "noise1", "value binary"))
    lab.measure("scan of value only, 1", {"penstock": only})


def parsing(lab: Lab) -> None:
    """from_json, grouped by month and carrier, four partitions."""

    def of(system: str) -> Query:
        def query() -> None:
            text = f"from_json(cast(value as string), '{SCHEMA}') as e"
            grouped = lab.read(system, "json4").selectExpr(text).groupBy("e.month", "e.carrier")
            found = grouped.agg({"e.dep_delay": "sum", "*": "count"}).collect()
            assert sum(row["count(1)"] for row in found) == lab.rows

        return query

    lab.measure("from_json and group, 4", {"kafka": of("kafka"), "penstock": of("penstock")})


def lake(lab: Lab) -> None:
    """AvailableNow in TRIGGERS micro-batches into Parquet."""

    def of(system: str, name: str) -> Query:
        def query() -> None:
            out, state = (str(lab.root / lab.new_name(what)) for what in ("out", "state"))
            most = str(-(-lab.rows // TRIGGERS))
            rows = lab.read_stream(system, name, maxOffsetsPerTrigger=most)
            rows = rows.selectExpr("value", "timestamp", "partition", "offset")
            writing = rows.writeStream.format("parquet").option("checkpointLocation", state)
            running = writing.trigger(availableNow=True).start(out)
            running.awaitTermination()
            done = sum(p.numInputRows for p in running.recentProgress)
            assert done == lab.rows, done

        return query

    for partitions in PARTITIONS:
        name = f"noise{partitions}"
        queries = {system: of(system, name) for system in ("kafka", "penstock")}
        lab.measure(f"AvailableNow into Parquet, {partitions}", queries)


def sinks(lab: Lab) -> None:
    """Rows of Parquet into a new topic, a new stream, a new queue; and a job of few rows, which
    waits for each row's confirm."""
    stored = lab.read("penstock", "noise4").select("value", "routing_key")
    stored.repartition(2).write.parquet(str(lab.root / "parquet"))
    rows = lab.spark.read.parquet(str(lab.root / "parquet")).coalesce(2).cache()
    assert rows.count() == lab.rows
    few = rows.limit(lab.rows // FEW).coalesce(2).cache()
    few.count()

    def of(rows: Any, system: str, kind: str, partitions: int, delivery: str = "") -> Query:
        expected = lab.rows // FEW if rows is few else lab.rows
        frame = rows if partitions > 1 else rows.select("value")

        def kafka() -> None:
            name = lab.new_name("sink")
            lab.make_topic(name, partitions)
            keyed = frame.selectExpr("routing_key as key", "value") if partitions > 1 else frame
            writing = keyed.write.format("kafka").option("topic", name)
            writing.option("kafka.bootstrap.servers", lab.kafka).save()
            lab.delete_topic(name)

        def penstock_() -> None:
            name = lab.new_name("sink")
            if kind == "stream":
                with penstock.open(lab.url) as box:
                    box.stream(name, partitions=partitions)
            else:
                prepare(lab.url, kind, name)
            writing = frame.write.format("penstock").options(url=lab.url, queue=name)
            if delivery:
                writing = writing.option("delivery", delivery)
            else:
                writing = writing.option("httpUrl", lab.http_url)
            writing.mode("append").save()
            with penstock.open(lab.url) as box:
                if kind == "stream":
                    there = sum(part.next for part in box.stream(name).info())
                    assert there >= expected, there
                box.delete(name)

        return kafka if system == "kafka" else penstock_

    for partitions in PARTITIONS:
        queries = {s: of(rows, s, "stream", partitions) for s in ("kafka", "penstock")}
        lab.measure(f"sink into a stream, exactly once, {partitions}", queries)
    queries = {s: of(rows, s, "queue", 1) for s in ("kafka", "penstock")}
    lab.measure("sink into a classic queue, exactly once", queries)
    queries = {s: of(few, s, "stream", 1, "at-least-once") for s in ("kafka", "penstock")}
    lab.measure("at-least-once sink, a job of few rows", queries)


def micro(lab: Lab) -> None:
    """Micro-batches of MICRO_ROWS rows into nothing: seconds are the median trigger's, and CPU that
    of one batch, in which the start of the query has its share."""
    batches = min(max(lab.rows // MICRO_ROWS, MICRO_BATCHES_MIN), MICRO_BATCHES)
    for partitions in PARTITIONS:
        name = f"micro{partitions}"
        lab.fill(name, partitions, noise(MICRO_ROWS * batches))
        cell = f"micro-batch of 1,000 rows, {partitions}"
        batch_s: dict[str, list[float]] = {"kafka": [], "penstock": []}

        def of(system: str, name: str = name, times: Any = batch_s) -> Query:
            def query() -> None:
                rows = lab.read_stream(system, name, maxOffsetsPerTrigger=str(MICRO_ROWS))
                writing = rows.writeStream.format("noop")
                state = str(lab.root / lab.new_name("state"))
                writing = writing.option("checkpointLocation", state).trigger(availableNow=True)
                running = writing.start()
                running.awaitTermination()
                done = [p for p in running.recentProgress if p.numInputRows]
                counted = [p.durationMs["triggerExecution"] for p in done][MICRO_WARM:]
                times[system].append(sorted(counted)[len(counted) // 2] / 1000)

            return query

        lab.measure(cell, {system: of(system) for system in ("kafka", "penstock")})
        for system, runs in lab.figures[cell].items():
            for run, seconds in zip(runs, batch_s[system][lab.warm :], strict=True):
                run[:] = [seconds, run[1] / batches]
        for costs in lab.costs.get(cell, ()):
            costs.update({name: seconds / batches for name, seconds in costs.items()})


def many_streams(lab: Lab) -> None:
    """200 streams that a pattern names, read once."""
    body = list(noise(ROWS_OF_ONE))
    with penstock.open(lab.url) as box:
        for index in range(STREAMS):
            box.stream(f"many.{index}").append_many(body)

    def query() -> None:
        found = lab.read("penstock", "many.*").selectExpr("count(1)").collect()
        assert found[0][0] == STREAMS * ROWS_OF_ONE

    lab.measure("200 streams by pattern, 20,000 rows", {"penstock": query})


def beside_kafka(
    data: str, rows: int, warm: int, runs: int, only: list[str], groups: dict[str, str],
    pids: dict[str, int], **where: Any,
) -> Result:  # fmt: skip
    """All of the cells, or those whose group is named. groups: the directories of the control
    groups of the brokers and of this process, `own`, if there are any; pids: of the brokers."""
    own = CpuGroup(Path(groups["own"]) if groups else None)
    own.join()
    brokers = {
        system: CpuGroup(Path(groups[system]) if groups else None, pid)
        for system, pid in pids.items()
    }
    root = Path(data)
    root.mkdir()
    lab = Lab(root, rows, warm, runs, own=own, brokers=brokers, **where)
    wanted = {name: group for name, group in GROUPS.items() if not only or name in only}
    for partitions in PARTITIONS:
        if wanted.keys() & {"scans", "lake"} or ("sinks" in wanted and partitions == 4):
            lab.fill(f"noise{partitions}", partitions, noise(rows))
    if "parsing" in wanted:
        lab.fill("json4", 4, events(rows))
    for group in wanted.values():
        group(lab)
    load = os.getloadavg()[0]
    lab.spark.stop()
    return {
        "rows": rows,
        "few": rows // FEW,
        "load": load,
        "meter": own.meter,
        "cells": lab.figures,
        "costs": lab.costs,
    }


GROUPS: dict[str, Callable[[Lab], None]] = {
    "scans": scans, "parsing": parsing, "lake": lake, "sinks": sinks, "micro": micro,
    "many": many_streams,
}  # fmt: skip


def main() -> None:
    scenario, given = sys.argv[1], json.loads(sys.argv[2])
    assert scenario == "beside_kafka", scenario
    Path(given["data"]).parent.mkdir(parents=True, exist_ok=True)
    print(json.dumps({"build": build_kind(), **beside_kafka(**given)}), flush=True)


if __name__ == "__main__":
    main()
