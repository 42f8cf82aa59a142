"""Pipeline: runs a pipeline file as a Structured Streaming job that can be stopped and resumed.

Each micro-batch is one call of `_batch`:

    parse once and keep the result     ->  number of rows, bytes, failures
    each sink of files                     exactly once (file_sink.py)
    each table of Delta or Iceberg         exactly once (delta_sink.py, iceberg_sink.py)
    the dead letters, if there are any     exactly once (sink.py)
    each queue or exchange                 exactly once; by `delivery` at least once
    those that got no rows of the batch    are reported: the broker notices missing batches

Files and tables come first and at-least-once sinks last, so that a batch that fails half-way sends
few messages in vain. Then Spark commits the batch in the checkpoint. A run that dies before that is
followed by one that begins with the same batch and the same rows. A sink recognises the batch by
the query's id, the sink's number in the file and the batch's number, and takes it once.

`ask_stop` lets the current batch end and commit. Between batches it stops the query. Otherwise the
next call of `_batch` refuses its rows, which the next run gets again: Spark has no call that stops
a query between two batches.

**Frames** lead from the rows of a source to those of each sink, as Spark's plans:

    source    columns of messages, or of files
    staged    + parsed by the schema; + a column with the reason why a row fails, or null
    good      staged rows without a reason, through sql or python
    rows      for a sink: through where; for a queue value, routing_key, headers
    dead      staged rows with a reason: value, headers {reason, stream, partition, offset}

A transform sees one batch at a time: `sql` aggregates within a batch. Everything here is lazy and
works on an empty frame with the same columns, which is how a file is checked before it runs.

Spark is in ANSI mode: a cast in `sql` that fails ends the pipeline; try_cast does not. Parsing
never raises: a row that cannot be parsed has a reason.
"""

import importlib
import re
import secrets
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from penstock.clock import SystemClock
from penstock.errors import PenstockError
from penstock.spark.delta_sink import DeltaSink
from penstock.spark.file_sink import FileSink, absolute, lake_files
from penstock.spark.iceberg_sink import IcebergSink
from penstock.spark.lake_table import (
    LakeTable,
    MisfitError,
    arrow_schema,
    divisions_of,
    ordered,
    variants_as_text,
)
from penstock.spark.options import AT_LEAST_ONCE
from penstock.spark.pipeline_file import (
    ANY_EXCHANGE,
    MESSAGE_COLUMNS,
    PipelineFileError,
    PipelineSpec,
    SinkSpec,
    SourceSpec,
)
from penstock.spark.pipeline_state import (
    CHECKPOINT,
    RunFacts,
    StateLock,
    broker_at,
    ensure_queue,
    write_facts,
)
from penstock.spark.staging import report_batch

POLL_S: Final = 0.2
DEAD: Final = "dead"  # the query's part for dead letters; the others are the sinks' numbers
QUERY_ID: Final = "sql.streaming.queryId"  # of Spark's job properties
OURS: Final = re.compile(r"penstock\.[\w.]*?(\w+Error): ([^\n]*)")


class PipelineError(PenstockError):
    """A pipeline failed. is_data: a row was the reason."""

    def __init__(self, text: str, *, is_data: bool = False) -> None:
        super().__init__(text)
        self.is_data = is_data


class _StopAskedError(Exception):
    """Raised where the next batch would begin, when the pipeline is to stop."""


@dataclass(frozen=True)
class Tick:
    """A progress report of `run`. facts: of this run so far. progress: Spark's latest, as of
    StreamingQueryProgress; None before the first batch. progress_rows: rows in `facts` when
    `progress` was made, which is a little after its batch."""

    facts: RunFacts
    progress: Any
    progress_rows: int


class Pipeline:
    """One run of a pipeline. source: a stream to read instead of the file's, for tests. now_s:
    returns seconds since 1970."""

    def __init__(
        self, spec: PipelineSpec, spark: SparkSession, *, source: DataFrame | None = None,
        now_s: Callable[[], float] | None = None,
    ) -> None:  # fmt: skip
        self._spec = spec
        self._spark = spark
        self._source = source
        clock = SystemClock()
        self._now_s = now_s or (lambda: clock.wall_ms() / 1000)
        self.facts = RunFacts(self._now_s(), sinks={sink.title: 0 for sink in spec.sinks})
        self._stop_asked = threading.Event()
        self._failure: BaseException | None = None
        self._query: Any = None
        self._run_word = secrets.token_hex(4)
        self._tables: dict[int, LakeTable] = {}  # by the number of the sink
        self._rows_at: dict[int, int] = {}  # batch -> rows of the run at its end

    def ask_stop(self) -> None:
        """Stop after the current batch. May be called from any thread and from a signal handler."""
        self._stop_asked.set()

    def run(self, on_tick: Callable[[Tick], None] = lambda tick: None) -> RunFacts:
        """Run until everything that exists is read (trigger available-now), or until `ask_stop`.

        Raises LockedError if it runs already, PipelineFileError if the file asks for something that
        does not exist, and PipelineError or another PenstockError if it failed; then the next run
        continues with the same batch.
        """
        lock = StateLock(self._spec.state)
        try:
            write_facts(self._spec, self.facts)
            self._prepare()
            self._run(on_tick)
            self.facts.outcome = "stopped" if self._stop_asked.is_set() else "done"
        except BaseException as error:
            self.facts.outcome = "failed"
            self.facts.error = " ".join(str(error).split()) or type(error).__name__
            raise
        finally:
            self.facts.ended_s = self._now_s()
            write_facts(self._spec, self.facts)
            lock.release()
        return self.facts

    # ---- the query -----------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Check columns and tables, and declare missing queues."""
        spec = self._spec
        data = good(staged_rows(empty_source(self._spark, spec), spec), spec)
        for number, sink in enumerate(spec.sinks, start=1):
            place = spec.sink_place(number)
            rows = sink_rows(data, sink, place)
            if sink.is_table:
                self._tables[number] = fitting_table(spec, sink, rows, place)
        for url, name in queues_written(spec):
            with broker_at(url) as connection:
                ensure_queue(connection, name)

    def _run(self, on_tick: Callable[[Tick], None]) -> None:
        spec = self._spec
        rows = read_stream(self._spark, spec) if self._source is None else self._source
        writer = rows.writeStream.foreachBatch(self._guarded).queryName(spec.name)
        writer = writer.option("checkpointLocation", f"{absolute(spec.state)}/{CHECKPOINT}")
        if spec.interval_ms is None:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{spec.interval_ms} milliseconds")
        self._query = query = writer.start()
        try:
            while not query.awaitTermination(POLL_S):  # type: ignore[arg-type]  # a float is fine
                on_tick(self._tick())
                if self._stop_asked.is_set() and not query.status["isTriggerActive"]:
                    query.stop()
        except PySparkException as error:
            if isinstance(self._failure, _StopAskedError):
                return
            raise self._error_of(error) from None
        finally:
            if query.isActive:
                query.stop()
        on_tick(self._tick())

    def _tick(self) -> Tick:
        progress = self._query.lastProgress
        rows = 0 if progress is None else self._rows_at.get(progress["batchId"], self.facts.rows)
        return Tick(self.facts, progress, rows)

    def _error_of(self, error: PySparkException) -> PenstockError:
        """Return our own error, wherever in Spark it was raised, or Spark's in one line."""
        if isinstance(self._failure, PenstockError):
            return self._failure
        text = f"{self._failure or ''}\n{error}"
        ours = OURS.findall(text)
        if ours:
            return PipelineError(f"{self._spec.name}: {ours[-1][1]}")
        cause = self._failure if isinstance(self._failure, PySparkException) else error
        return PipelineError(f"{self._spec.name}: {one_line(cause)}")

    # ---- a batch -------------------------------------------------------------------------------

    def _guarded(self, rows: DataFrame, batch_id: int) -> None:
        if self._stop_asked.is_set():
            self._failure = _StopAskedError()
            raise self._failure
        try:
            self._batch(rows, batch_id)
        except BaseException as error:
            self._failure = error
            raise

    def _batch(self, rows: DataFrame, batch_id: int) -> None:
        spec, facts = self._spec, self.facts
        staged = staged_rows(rows, spec).persist()
        try:
            count, size, failed = self._measured(staged)
            if failed and spec.transform.on_error == "fail":
                raise self._first_failure(staged, failed, batch_id)
            if count:
                self._write(staged, failed, batch_id)
            self._report_rest(count, failed, batch_id)
        finally:
            staged.unpersist()
        facts.batches += 1
        facts.rows += count
        facts.bytes += size
        facts.failed += failed
        self._rows_at[batch_id] = facts.rows
        self._rows_at.pop(batch_id - 2, None)
        write_facts(spec, facts)

    def _measured(self, staged: DataFrame) -> tuple[int, int, int]:
        """Parse the batch. Return its rows, the bytes of their values, and how many rows failed."""
        size = F.sum(BYTES) if BYTES in staged.columns else F.lit(0)
        found = staged.agg(
            F.count(F.lit(1)).alias("rows"), size.alias("bytes"),
            F.count(REASON).alias("failed"),
        ).first()  # fmt: skip
        assert found is not None
        return int(found["rows"]), int(found["bytes"] or 0), int(found["failed"])

    def _write(self, staged: DataFrame, failed: int, batch_id: int) -> None:
        spec = self._spec
        data = good(staged, spec)
        numbered = list(enumerate(spec.sinks, start=1))
        for number, sink in numbered:
            if sink.is_files:
                self._count(sink, self._write_files(data, number, sink, batch_id))
            elif sink.is_table:
                self._count(sink, self._write_table(data, number, sink, batch_id))
        if failed and spec.dead_letter is not None:
            publish(dead(staged, spec.name), self._dead_options(batch_id), spec.source.url)
        for number, sink in numbered:
            if sink.is_queue:
                messages = sink_rows(data, sink, spec.sink_place(number))
                options = self._sink_options(number, sink, batch_id)
                if sink.value is None and not has_bodies(data):
                    options["content_type"] = "application/json"
                self._count(sink, publish(messages, options, sink.url or spec.source.url))

    def _report_rest(self, count: int, failed: int, batch_id: int) -> None:
        """Report the batch to the queues and exchanges that got no rows of it, so that the broker
        sees all batches of a query. count, failed: of the batch's rows."""
        spec = self._spec
        if not failed and spec.dead_letter is not None:
            report(self._dead_options(batch_id), spec.source.url)
        if not count:
            for number, sink in enumerate(spec.sinks, start=1):
                if sink.is_queue:
                    options = self._sink_options(number, sink, batch_id)
                    report(options, sink.url or spec.source.url)

    def _count(self, sink: SinkSpec, rows: int) -> None:
        self.facts.sinks[sink.title] = self.facts.sinks.get(sink.title, 0) + rows

    def _write_files(self, data: DataFrame, number: int, sink: SinkSpec, batch_id: int) -> int:
        """Write the batch. Return its rows, 0 if an earlier run decided it."""
        files = lake_files(sink.target, self._spark)
        target = FileSink(files, absolute(sink.target), self._query_id(), self._run_word)
        directory = target.begin(batch_id)
        if directory is None:
            return 0
        rows = sink_rows(data, sink, self._spec.sink_place(number))
        if sink.partition_by and sink.is_gathered:
            tasks = self._spark.sparkContext.defaultParallelism
            rows = rows.repartition(tasks, *sink.partition_by)
        seen = Observation()
        rows = rows.observe(seen, F.count(F.lit(1)).alias("rows"))
        writer = rows.write.mode("overwrite").format(sink.kind)
        writer.partitionBy(*sink.partition_by).save(directory)
        target.commit(batch_id)
        return int(seen.get["rows"])

    def _write_table(self, data: DataFrame, number: int, sink: SinkSpec, batch_id: int) -> int:
        """Write the batch. Return its rows, 0 if the table has it from an earlier run."""
        place, query = self._spec.sink_place(number), self._query_id()
        table = self._tables.get(number) or lake_table(self._spec, sink, place)
        self._tables[number] = table
        if table.is_done(query, batch_id):
            return 0
        rows = sink_rows(data, sink, place)
        try:
            rows = ordered(rows, table.divisions(), is_gathered=sink.is_gathered)
            return table.write(rows, query, batch_id)
        except MisfitError as error:
            raise PipelineFileError(place, str(error)) from None
        except (PenstockError, PySparkException):
            raise
        except Exception as error:  # of deltalake, pyiceberg, an object store, or a catalog
            text = " ".join(f"{type(error).__name__}: {error}".split())
            raise PipelineError(f"{place}: {sink.title}: {text}") from error

    def _dead_options(self, batch_id: int) -> dict[str, str]:
        """Return the sink's options for dead letters, without the URL."""
        spec = self._spec
        assert spec.dead_letter is not None
        options = self._delivery(DEAD, spec.delivery, batch_id, spec.source.http_url)
        return {"queue": spec.dead_letter, **options}

    def _sink_options(self, number: int, sink: SinkSpec, batch_id: int) -> dict[str, str]:
        """Return the options for a queue or an exchange, without the URL."""
        http_url = self._spec.source.http_url if sink.url is None else None
        options = self._delivery(str(number), sink.delivery, batch_id, sink.http_url or http_url)
        if sink.target != ANY_EXCHANGE:
            options[sink.kind] = sink.target
        return options

    def _delivery(
        self, which: str, delivery: str, batch_id: int, http_url: str | None
    ) -> dict[str, str]:
        """Return the options that name the batch to a sink. which: of the query's parts."""
        options = {"delivery": delivery}
        if delivery != AT_LEAST_ONCE:
            options |= {"queryId": f"{self._query_id()}/{which}", "batchId": str(batch_id)}
            options["beginsLate"] = "true"  # a sink may be added to the file at any time
            if http_url is not None:
                options["httpUrl"] = http_url
        return options

    def _query_id(self) -> str:
        found = self._spark.sparkContext.getLocalProperty(QUERY_ID)
        return str(found or self._query.id)

    def _first_failure(self, staged: DataFrame, failed: int, batch_id: int) -> PipelineError:
        hidden = {name: f"{HIDDEN}{name}" for name in WHERE_FROM}
        row = staged.where(F.col(REASON).isNotNull()).first()
        assert row is not None
        where = f"batch {batch_id}"
        if hidden["queue"] in staged.columns:
            where = f"{row[hidden['queue']]}, partition {row[hidden['partition']]}"
            where += f", offset {row[hidden['offset']]}"
        more = f"; {failed:,} rows of the batch fail" if failed > 1 else ""
        return PipelineError(
            f"{self._spec.name}: {where}: {row[REASON]}{more}. "
            'on_error = "dead-letter" would put them into a queue',
            is_data=True,
        )


def queues_written(spec: PipelineSpec) -> list[tuple[str | None, str]]:
    """Return URL and name of each queue that the pipeline writes to."""
    found = [
        (sink.url or spec.source.url, sink.target) for sink in spec.sinks if sink.kind == "queue"
    ]
    if spec.dead_letter is not None:
        found.append((spec.source.url, spec.dead_letter))
    return found


def has_bodies(data: DataFrame) -> bool:
    """Return whether the column `value` is a message's body unchanged."""
    return any(f.name == "value" and f.dataType.typeName() == "binary" for f in data.schema.fields)


def publish(messages: DataFrame, options: dict[str, str], url: str | None) -> int:
    """Write messages through the sink. Return the number of rows."""
    seen = Observation()
    rows = messages.observe(seen, F.count(F.lit(1)).alias("rows"))
    writer = rows.write.format("penstock").options(**options)
    if url is not None:
        writer = writer.option("url", url)
    writer.mode("append").save()
    return int(seen.get["rows"])


def report(options: dict[str, str], url: str | None) -> None:
    """Report a batch without messages to the broker."""
    if options["delivery"] != AT_LEAST_ONCE:
        report_batch(options if url is None else {**options, "url": url})


def lake_table(spec: PipelineSpec, sink: SinkSpec, place: str) -> LakeTable:
    """Return a sink's table. place: the sink's, for messages. Raises LakeMissingError,
    PipelineFileError."""
    try:
        if sink.kind == "delta":
            return DeltaSink(
                absolute(sink.target), partition_by=sink.partition_by, storage=spec.storage
            )
        return IcebergSink(sink.target, partition_by=sink.partition_by, catalog=spec.catalog)
    except MisfitError as error:
        raise PipelineFileError(place, str(error)) from None


def fitting_table(spec: PipelineSpec, sink: SinkSpec, rows: "DataFrame", place: str) -> LakeTable:
    """Return a sink's table after checking that rows of these columns fit it. The table is not
    changed. Raises PipelineFileError."""
    table = lake_table(spec, sink, place)
    try:
        table.check(arrow_schema(rows.schema))
    except MisfitError as error:
        raise PipelineFileError(place, str(error)) from None
    return table


HIDDEN: Final = "__penstock_"
REASON: Final = f"{HIDDEN}reason"
PARSED: Final = f"{HIDDEN}parsed"
CORRUPT: Final = f"{HIDDEN}corrupt"
BYTES: Final = f"{HIDDEN}bytes"
WHERE_FROM: Final = ("queue", "partition", "offset", "value")  # kept for dead letters
MESSAGE_SCHEMA: Final = (
    "queue STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, exchange STRING, "
    "routing_key STRING, message_id STRING, value BINARY"
)
PASSED_ON: Final = ("message_id", "headers", "properties")  # of messages that go on as they are
BODY_AND_KEY: Final = "value or routing_key"
TEXT_MAX: Final = 300


def source_options(source: SourceSpec, reader: str) -> dict[str, str]:
    """Return the options of Spark's source for a queue. reader: the name under which it keeps
    offsets."""
    options = {"subscribe": source.name, "readerId": reader}
    for name, value in (
        ("url", None if source.path else source.url),
        ("httpUrl", None if source.path else source.http_url),
        ("path", absolute(source.path) if source.path else None),
        ("maxOffsetsPerTrigger", source.records_max),
        ("maxBytesPerTrigger", source.bytes_max),
    ):
        if value is not None:
            options[name] = str(value)
    for name in source.columns:
        options[f"include{name.capitalize()}"] = "true"
    if isinstance(source.start, str):
        options["startingOffsets"] = {"first": "earliest", "next": "latest"}[source.start]
    else:
        options["startingTimestamp"] = str(round(source.start.timestamp() * 1000))
    return options


def read_stream(spark: SparkSession, spec: PipelineSpec) -> DataFrame:
    """Return the source as a stream."""
    source = spec.source
    if source.is_queue:
        options = source_options(source, spec.name)
        return spark.readStream.format("penstock").options(**options).load()
    reader = spark.readStream.schema(files_schema(spark, spec))
    if source.records_max is not None:
        reader = reader.option("maxFilesPerTrigger", source.records_max)
    return reader.format(source.kind).load(absolute(source.name))


def files_schema(spark: SparkSession, spec: PipelineSpec) -> StructType:
    """Return the schema of the files that exist now. Raises PipelineFileError if there are none."""
    source = spec.source
    try:
        return spark.read.format(source.kind).load(absolute(source.name)).schema
    except PySparkException as error:
        raise PipelineFileError(
            f"{spec.place}: [source]", f"{source.kind}: {source.name}: {one_line(error)}"
        ) from None


def message_schema(spec: PipelineSpec) -> str:
    """Return the columns of a queue's messages, as the source gives them."""
    more = "".join(f", {name} MAP<STRING, STRING>" for name in spec.source.columns)
    return MESSAGE_SCHEMA + more


def empty_source(spark: SparkSession, spec: PipelineSpec) -> DataFrame:
    """Return a frame with the source's columns and no rows."""
    schema: Any = message_schema(spec) if spec.source.is_queue else files_schema(spark, spec)
    return spark.createDataFrame([], schema)


# ---- staged ------------------------------------------------------------------------------------


def data_schema(spec: PipelineSpec) -> StructType | None:
    """Return the schema for parsing values, or None. Raises PipelineFileError if it is invalid."""
    text = spec.transform.schema
    if text is None:
        return None
    try:
        schema = StructType.fromDDL(text)
    except PySparkException as error:
        raise PipelineFileError(
            f"{spec.place}: [transform]", f"schema: {one_line(error)}"
        ) from None
    if not isinstance(schema, StructType):
        kind = schema.simpleString()
        raise PipelineFileError(
            f"{spec.place}: [transform]", f"schema: it is {kind}, expected columns: name TYPE, ..."
        )
    return schema


def staged_rows(source: DataFrame, spec: PipelineSpec) -> DataFrame:
    """Return the source's rows parsed, with the reason of each failure. Raises PipelineFileError if
    `expect` names a missing column."""
    schema = data_schema(spec)
    reasons: list[Any] = []
    rows = source
    hidden = []
    if spec.source.is_queue:
        rows = rows.withColumn(BYTES, F.octet_length("value"))
        hidden = [BYTES]
    if schema is None:
        names = source.columns
    else:
        rows, reason = _parsed(rows, schema)
        reasons.append(reason)
        kept = [name for name in spec.transform.keep if name not in schema.names]
        names = [*schema.names, *kept]
    if spec.source.is_queue:
        for name in WHERE_FROM:
            rows = rows.withColumn(HIDDEN + name, F.col(name))
        hidden += [HIDDEN + name for name in WHERE_FROM]
    if schema is not None:
        fields = [F.col(PARSED)[name].alias(name) for name in schema.names]
        rows = rows.select(*fields, *kept, *hidden, *(r.alias(REASON) for r in reasons))
        reasons = [F.col(REASON)]
    try:
        for condition in spec.transform.expect:
            holds = F.coalesce(F.expr(condition), F.lit(False))
            reasons.append(F.when(~holds, F.lit(f"does not hold: {condition}")))
        rows = rows.select(*names, *hidden, F.coalesce(F.lit(None), *reasons).alias(REASON))
    except PySparkException as error:
        raise _unknown(f"{spec.place}: [transform]", "expect", error, names) from None
    if spec.source.is_queue:  # only failed rows need the whole value
        value = F.when(F.col(REASON).isNotNull(), F.col(HIDDEN + "value"))
        rows = rows.withColumn(HIDDEN + "value", value)
    return rows


def _parsed(rows: DataFrame, schema: StructType) -> tuple[DataFrame, Any]:
    """Return the rows with the column PARSED, and the reason why a row could not be parsed."""
    with_corrupt = StructType([*schema.fields, StructField(CORRUPT, StringType())])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
    text = F.col("value").cast("string")
    rows = rows.withColumn(PARSED, F.from_json(text, with_corrupt, options))
    parsed = F.col(PARSED)
    wrong = [
        F.when(
            F.get_json_object(text, f"$['{field.name}']").isNotNull() & parsed[field.name].isNull(),
            F.lit(f"{field.name} is not {field.dataType.simpleString().upper()}"),
        )
        for field in schema.fields
        if "'" not in field.name
    ]
    misfit = F.concat_ws(", ", *wrong)
    reason = F.when(
        parsed.isNull() | parsed[CORRUPT].isNotNull(),
        F.when(F.col("value").isNull() | (F.octet_length("value") == 0), F.lit("it is empty"))
        .when(F.try_parse_json(text).isNull(), F.lit("it is not JSON"))
        .when(misfit != "", F.concat(F.lit("it does not fit the schema: "), misfit))
        .otherwise(F.lit("it does not fit the schema")),
    )
    return rows, reason


def dead(rows: DataFrame, pipeline: str) -> DataFrame:
    """Return the failed rows of a staged frame as messages."""
    headers: list[Any] = [
        F.lit("reason"), F.col(REASON),
        F.lit("stream"), F.col(HIDDEN + "queue"),
        F.lit("partition"), F.col(HIDDEN + "partition").cast("string"),
        F.lit("offset"), F.col(HIDDEN + "offset").cast("string"),
        F.lit("pipeline"), F.lit(pipeline),
    ]  # fmt: skip
    value = F.coalesce(F.col(HIDDEN + "value"), F.lit(b""))
    failing = rows.where(F.col(REASON).isNotNull())
    return failing.select(value.alias("value"), F.create_map(*headers).alias("headers"))


# ---- good ----------------------------------------------------------------------------------------


def good(rows: DataFrame, spec: PipelineSpec) -> DataFrame:
    """Return the good rows of a staged frame, through the transform. Raises PipelineFileError."""
    names = [name for name in rows.columns if not name.startswith(HIDDEN)]
    data = rows.where(F.col(REASON).isNull()).select(*(F.col(f"`{name}`") for name in names))
    transform = spec.transform
    if transform.sql is not None:
        data.createOrReplaceTempView("source")
        try:
            return data.sparkSession.sql(transform.sql)
        except PySparkException as error:
            raise _unknown(f"{spec.place}: [transform]", "sql", error, names) from None
    if transform.python is not None:
        return _by_python(data, spec)
    return data


def _by_python(data: DataFrame, spec: PipelineSpec) -> DataFrame:
    """Return the frame that the user's function makes. Raises PipelineFileError."""
    place, name = f"{spec.place}: [transform]", spec.transform.python
    assert name is not None
    module, _, function = name.partition(":")
    beside = spec.place.rpartition("/")[0] or "."
    sys.path.insert(0, beside)
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise PipelineFileError(place, f"python: {name}: {error}") from None
    finally:
        sys.path.remove(beside)
    try:
        made = found(data)
    except PySparkException as error:
        raise _unknown(place, f"python: {name}", error, data.columns) from None
    if not isinstance(made, DataFrame):
        raise PipelineFileError(place, f"python: {name} returned {made!r}, expected a DataFrame")
    return made


# ---- rows of a sink ------------------------------------------------------------------------------


def sink_rows(data: DataFrame, sink: SinkSpec, place: str) -> DataFrame:
    """Return the rows for a sink. place: the sink's, for messages. Raises PipelineFileError."""
    try:
        rows = data if sink.where is None else data.where(sink.where)
    except PySparkException as error:
        raise _unknown(place, "where", error, data.columns) from None
    if not sink.is_queue:
        for name in _divided_by(sink, place):
            if name not in data.columns:
                raise _missing(place, "partition_by", name, data.columns)
        if (
            sink.kind != "iceberg"
            and sink.partition_by
            and len(sink.partition_by) == len(data.columns)
        ):
            raise PipelineFileError(place, "partition_by: names all columns, so no data is left")
        return variants_as_text(rows) if sink.is_table else rows
    return _messages(rows, sink, place)


def _divided_by(sink: SinkSpec, place: str) -> list[str]:
    """Return the columns of partition_by."""
    if not sink.is_table:
        return list(sink.partition_by)
    try:
        divisions = divisions_of(sink.partition_by, has_transforms=sink.kind == "iceberg")
        return [one.column.partition(".")[0] for one in divisions]
    except MisfitError as error:
        raise PipelineFileError(place, str(error)) from None


def _messages(rows: DataFrame, sink: SinkSpec, place: str) -> DataFrame:
    types = {field.name: field.dataType for field in rows.schema.fields}
    if sink.value is not None:
        value = F.expr(sink.value)
    elif isinstance(types.get("value"), BinaryType):
        value = F.col("value")
    else:
        value = F.to_json(F.struct(*(F.col(f"`{name}`") for name in rows.columns)))
    columns = [value.alias("value")]
    try:
        if sink.target == ANY_EXCHANGE:
            columns.append(F.col("exchange").cast("string"))
        if sink.kind == "exchange" and sink.routing_key is not None:
            columns.append(F.expr(sink.routing_key).cast("string").alias("routing_key"))
        elif sink.kind == "exchange" and isinstance(types.get("routing_key"), StringType):
            columns.append(F.col("routing_key"))
        if isinstance(types.get("value"), BinaryType):
            columns += [F.col(name) for name in PASSED_ON if name in types]
        made = rows.select(*columns)
        if made.schema["value"].dataType.typeName() == "variant":
            made = made.withColumn("value", F.to_json("value"))
    except PySparkException as error:
        names = "exchange, value or routing_key" if sink.target == ANY_EXCHANGE else BODY_AND_KEY
        raise _unknown(place, names, error, rows.columns) from None
    if made.schema["value"].dataType.typeName() not in ("string", "binary"):
        kind = made.schema["value"].dataType.simpleString()
        raise PipelineFileError(place, f"value: it is {kind}, expected a string, binary or variant")
    return made


# ---- errors --------------------------------------------------------------------------------------


def one_line(error: PySparkException) -> str:
    """Return Spark's error in one line."""
    text = " ".join((error.getMessage() or str(error)).split())
    text = text.partition(" SQLSTATE: ")[0]
    return text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 4] + " ..."


def _unknown(
    place: str, key: str, error: PySparkException, columns: Iterable[str]
) -> PipelineFileError:
    """Return the error of an analysis; for a missing column with the existing ones."""
    parameters = error.getMessageParameters() or {}
    if "objectName" in parameters and "UNRESOLVED_COLUMN" in (error.getCondition() or ""):
        return _missing(place, key, parameters["objectName"].replace("`", ""), columns)
    return PipelineFileError(place, f"{key}: {one_line(error)}")


def _missing(place: str, key: str, name: str, columns: Iterable[str]) -> PipelineFileError:
    return PipelineFileError(
        place, f"{key}: there is no column {name!r}; there are {', '.join(columns)}"
    )


assert set(WHERE_FROM) <= set(MESSAGE_COLUMNS)
