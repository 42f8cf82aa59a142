"""Check: would this pipeline run? What takes Spark to know, and no run.

    columns    schema, expect, sql, where, partition_by, value, routing_key, on a frame without
               rows: Spark's own analysis, with the columns that there are; do they fit tables
    sample     the first records of the source through schema and expect: how many fit

Each finding is a line that is good, a note, or what is wrong; what is wrong does not end the check,
unless nothing after it can be known. Nothing is written or declared. A function of the user's
(`python`) is not run: then the columns behind it are not known, and a note says so.

Not here: the file's own keys and values (pipeline_file.py); packages, Java and brokers, which are
looked at before Spark is started (pipeline_needs.py).
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.client.stream_tail import First, StreamTail
from penstock.errors import PenstockError
from penstock.spark import pipeline_frames as frames
from penstock.spark.lake_sinks import fitting_table
from penstock.spark.pipeline import place_of
from penstock.spark.pipeline_broker import CLASSIC, broker_at, described
from penstock.spark.pipeline_file import FIRST, PipelineFileError, PipelineSpec, SinkSpec
from penstock.spark.pipeline_needs import GOOD, NOTE, Finding, wrong

SAMPLE: Final = 200
MISFIT_MAX: Final = 0.5  # more of the sample than that, and it is the schema that is wrong


def check(spec: PipelineSpec, spark: SparkSession, *, has_source: bool) -> Iterator[Finding]:
    """One after the other. has_source: the broker has it, as pipeline_needs found."""
    try:
        staged = frames.staged(frames.empty_source(spark, spec), spec)
        data = None if spec.transform.python is not None else frames.good(staged, spec)
    except PipelineFileError as error:
        yield wrong(error)
    else:
        if data is None:
            yield Finding(NOTE, "columns: not known behind python, which check does not run")
        else:
            yield Finding(GOOD, f"columns: {', '.join(data.columns)}")
            for number, sink in enumerate(spec.sinks, start=1):
                yield _sink(spec, number, sink, data)
    if has_source and spec.source.is_queue and spec.source.path is None:
        try:
            yield from _source(spec, spark)
        except (PenstockError, OSError) as error:
            yield wrong(error)


def _sink(spec: PipelineSpec, number: int, sink: SinkSpec, data: DataFrame) -> Finding:
    place = place_of(spec, number)
    try:
        rows = frames.sink_rows(data, sink, place)
        if sink.is_table:
            fitting_table(spec, sink, rows, place)
    except (PenstockError, OSError) as error:
        return wrong(error)
    return Finding(GOOD, f"sink {number}: {sink.title}")


def _source(spec: PipelineSpec, spark: SparkSession) -> Iterator[Finding]:
    name = spec.source.name
    with broker_at(spec.source.url) as connection:
        if described(connection, name)["type"] == CLASSIC:
            if spec.source.start != FIRST:
                text = f"start: {name!r} is a classic queue, which begins with its first message"
                raise PipelineFileError(f"{spec.place}: [source]", f'{text}: "{FIRST}"')
            yield Finding(NOTE, "sample: none is taken of a classic queue")
            return
        if spec.transform.schema is None and not spec.transform.expect:
            return
        tail = StreamTail(connection, name, First())
        rows = [_row(name, record) for record in islice(tail.records(), SAMPLE)]
        tail.close()
    if not rows:
        yield Finding(NOTE, "sample: the stream is empty")
        return
    yield from _sample(spec, spark, rows)


def _row(stream: str, record: Any) -> tuple[object, ...]:
    when = datetime.fromtimestamp((record.time_us or 0) / 1e6, UTC).replace(tzinfo=None)
    message_id = record.message.properties.message_id
    place = (stream, record.partition, record.offset, when)
    return (*place, record.message.exchange, record.key, message_id, record.body)


def _sample(spec: PipelineSpec, spark: SparkSession, rows: list[Any]) -> Iterator[Finding]:
    staged = frames.staged(spark.createDataFrame(rows, frames.MESSAGE_SCHEMA), spec).cache()
    hidden = frames.HIDDEN
    failing = staged.where(F.col(frames.REASON).isNotNull()).orderBy(f"{hidden}offset")
    first, failed = failing.first(), failing.count()
    if first is not None:
        text = f"{failed} of {len(rows)} rows fail: {first[frames.REASON]}"
        text += f" (the first at offset {first[hidden + 'offset']})"
        if failed > MISFIT_MAX * len(rows):
            value = bytes(first[f"{hidden}value"] or b"")[:100].decode(errors="replace")
            raise PipelineFileError(
                f"{spec.place}: [transform]", f"schema: it does not fit the source: {text}: {value}"
            )
        becomes = {"fail": "the pipeline would end", "drop": "they would be dropped"}
        what = becomes.get(spec.transform.on_error, f"they would go to {spec.dead_letter!r}")
        yield Finding(NOTE, f"sample: {text}; {what}")
    else:
        yield Finding(GOOD, f"sample: all of {len(rows)} rows fit")
    names = [name for name in staged.columns if not name.startswith(hidden)]
    good = staged.where(F.col(frames.REASON).isNull())
    filled = good.agg(*(F.count(F.col(f"`{name}`")).alias(name) for name in names)).first()
    assert filled is not None
    empty = [name for name in names if not filled[name]]
    if empty and failed < len(rows):
        there = sorted(_keys(rows))
        yield Finding(
            NOTE, f"sample: no row has {', '.join(empty)}; the first one has {', '.join(there)}"
        )


def _keys(rows: list[Any]) -> set[str]:
    """Of the first value that is a JSON object."""
    import json

    for row in rows:
        try:
            value = json.loads(row[-1])
        except ValueError:
            continue
        if isinstance(value, dict):
            return set(value)
    return set()
