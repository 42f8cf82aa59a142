"""Check: would this pipeline run? Everything that can be known without running it.

    columns    schema, expect, sql or python, where, partition_by, value, routing_key, on a frame
               without rows: Spark's own analysis, with the columns that there are
    broker     it answers; the source is there; exchanges are there, queues are or will be declared
    sample     the first records of the source through schema and expect: how many fit

Each finding is a line that is good, a note, or what is wrong; the first error that makes the rest
pointless is raised. Nothing is written or declared.

Not here: the file's own keys and values (pipeline_file.py).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from penstock.client import ClientConnection, UnreachableError
from penstock.client.stream_tail import First, StreamTail
from penstock.errors import ChannelError, PenstockError
from penstock.spark import pipeline_frames as frames
from penstock.spark.lake_sinks import fitting_table
from penstock.spark.pipeline import place_of
from penstock.spark.pipeline_broker import CLASSIC, broker_at, described, has_exchange, has_queue
from penstock.spark.pipeline_file import ANY_EXCHANGE, FIRST, PipelineFileError, PipelineSpec

SAMPLE: Final = 200
MISFIT_MAX: Final = 0.5  # more of the sample than that, and it is the schema that is wrong
GOOD: Final = "ok"
NOTE: Final = "note"


class BrokerMissingError(PenstockError):
    """The broker of a pipeline does not answer: where it was looked for, and why not."""


@dataclass(frozen=True, slots=True)
class Finding:
    """kind: GOOD or NOTE."""

    kind: str
    text: str


def check(spec: PipelineSpec, spark: SparkSession) -> Iterator[Finding]:
    """One after the other. PipelineFileError, BrokerMissingError, and what the broker says."""
    data = frames.good(frames.staged(frames.empty_source(spark, spec), spec), spec)
    yield Finding(GOOD, f"columns: {', '.join(data.columns)}")
    for number, sink in enumerate(spec.sinks, start=1):
        rows = frames.sink_rows(data, sink, place_of(spec, number))
        if sink.is_table:
            fitting_table(spec, sink, rows, place_of(spec, number))
        yield Finding(GOOD, f"sink {number}: {sink.title}")
    queues = [sink for sink in spec.sinks if sink.is_queue]
    if not spec.source.is_queue and not queues:
        return
    yield from _broker(spec, spark)


def _broker(spec: PipelineSpec, spark: SparkSession) -> Iterator[Finding]:
    try:
        with broker_at(spec.source.url) as connection:
            yield Finding(GOOD, f"broker: {connection.url}")
            yield from _targets(spec, connection)
            if spec.source.is_queue and spec.source.path is None:
                yield from _source(spec, spark, connection)
    except UnreachableError as error:
        raise BrokerMissingError(
            f"{spec.place}: [source]: the broker does not answer: {error}; is `penstock serve` "
            "running there? url, PENSTOCK_URL or --url say which one is meant"
        ) from None


def _targets(spec: PipelineSpec, connection: ClientConnection) -> Iterator[Finding]:
    names = [sink.target for sink in spec.sinks if sink.kind == "queue"]
    for name in [*names, *([spec.dead_letter] if spec.dead_letter else [])]:
        if not has_queue(connection, name):
            yield Finding(NOTE, f"queue {name!r} is not there: it will be declared")
    for number, sink in enumerate(spec.sinks, start=1):
        is_named = sink.kind == "exchange" and sink.target != ANY_EXCHANGE
        if is_named and not has_exchange(connection, sink.target):
            raise PipelineFileError(place_of(spec, number), f"exchange: no {sink.target!r} there")


def _source(
    spec: PipelineSpec, spark: SparkSession, connection: ClientConnection
) -> Iterator[Finding]:
    name = spec.source.name
    place = f"{spec.place}: [source]"
    try:
        found = described(connection, name)
        if found["type"] == CLASSIC:
            yield from _classic(spec, found)
            return
        tail = StreamTail(connection, name, First())
    except ChannelError as error:
        raise PipelineFileError(place, f"queue: {error}") from None
    records = sum(part.head - part.first for part in tail.parts)
    parts = f" in {len(tail.parts)} partitions" if len(tail.parts) > 1 else ""
    yield Finding(GOOD, f"source: stream {name!r}, {records:,} records{parts}")
    if spec.transform.schema is None and not spec.transform.expect:
        return
    rows = [_row(name, record) for record in islice(tail.records(), SAMPLE)]
    tail.close()
    if not rows:
        yield Finding(NOTE, "sample: the stream is empty")
        return
    yield from _sample(spec, spark, rows)


def _classic(spec: PipelineSpec, found: dict[str, Any]) -> Iterator[Finding]:
    """Of a queue whose messages are given away once: nothing is taken to look at it."""
    name = spec.source.name
    if spec.source.start != FIRST:
        raise PipelineFileError(
            f"{spec.place}: [source]",
            f'start: {name!r} is a classic queue, which begins with its first message: "{FIRST}"',
        )
    leased = [one for one in found["leases"] if one["reader"] == spec.name]
    told = sum(int(one["head"]) - int(one["first"]) for one in leased)
    more = f", {told:,} leased to {spec.name!r}" if told else ""
    yield Finding(GOOD, f"source: queue {name!r}, {found['ready']:,} messages{more}")
    yield Finding(NOTE, "sample: none is taken of a classic queue")


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
