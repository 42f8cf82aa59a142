"""Checks whether a pipeline would run: first without Spark (`needs`), then with it (`check`).

    packages   pyspark and pyarrow, and those of the sinks (deltalake, pyiceberg)
    Java       for Spark
    python     the module that the file names parses and has the function; it is never imported
    broker     each one answers and accepts the login; source, exchanges and queues exist
    HTTP       the same for the HTTP port, through which rows are read and written
    ---------  from here on with Spark
    columns    schema, expect, sql, where, partition_by, value, routing_key, by Spark's analysis of
               a frame without rows; the columns fit existing tables
    sample     how many of the source's first records pass schema and expect

Each Finding is a line: good, a note, or wrong. A problem does not end the check unless nothing
after it can be known, so one check lists all problems. Nothing is written or declared, and no code
of the pipeline runs: after `python` the columns are unknown, and a note says so. pipeline_file.py
checks the file's own keys and values.

pyspark is imported only by `check`, because `needs` reports that it is missing.
"""

import ast
import difflib
import importlib.util
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from penstock.client import ClientConnection, UnreachableError
from penstock.client.stream_tail import StreamTail
from penstock.errors import AMQPError, ChannelError, OptionError, PenstockError, install_advice
from penstock.spark.http_link import HttpLink, LinkError, RefusedError
from penstock.spark.options import AT_LEAST_ONCE, Place, parse_place
from penstock.spark.pipeline_file import (
    ANY_EXCHANGE,
    FIRST,
    PipelineFileError,
    PipelineSpec,
    SinkSpec,
)
from penstock.spark.pipeline_state import (
    CLASSIC,
    broker_at,
    described,
    has_exchange,
    has_queue,
    names_at,
)
from penstock.spark.spark_session import JavaMissingError, ensure_java
from penstock.spark.spark_version import SparkVersionError, check_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GOOD: Final = "ok"
NOTE: Final = "note"
WRONG: Final = "wrong"
HTTP_S: Final = 10.0
DEFAULT_URL: Final = "amqp://guest:guest@localhost:5672/"
PACKAGES: Final = {"pyspark": "spark", "pyarrow": "spark", "pandas": "spark", "numpy": "spark"}
SINK_PACKAGES: Final = {"delta": "deltalake", "iceberg": "pyiceberg"}
REFUSED: Final = (401, 403)
SAMPLE: Final = 200  # records
MISFIT_MAX: Final = 0.5  # if more of the sample fails, the schema counts as wrong


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of a check. kind: GOOD, NOTE or WRONG. code: the exit code of a problem, after
    sysexits.h. is_for_spark: Spark cannot be started without it."""

    kind: str
    text: str
    code: int = 0
    is_for_spark: bool = False


def wrong(error: Exception) -> Finding:
    """Return the Finding for an error, with its exit code."""
    text = " ".join(str(error).split())
    if isinstance(error, OptionError):
        return Finding(WRONG, text, os.EX_USAGE)
    if isinstance(error, RefusedError):
        return Finding(WRONG, text, os.EX_NOPERM if error.status in REFUSED else os.EX_UNAVAILABLE)
    if isinstance(error, AMQPError):
        return Finding(WRONG, text, os.EX_NOPERM if error.code == 403 else os.EX_UNAVAILABLE)
    return Finding(WRONG, text, os.EX_UNAVAILABLE)


# ---- before Spark is started ---------------------------------------------------------------------


def needs(spec: PipelineSpec) -> Iterator[Finding]:
    """Check everything that takes no Spark, in the order of the head of this module."""
    yield from _packages(spec)
    try:
        yield Finding(GOOD, f"Java: {ensure_java()}")
    except JavaMissingError as error:
        yield Finding(WRONG, str(error), os.EX_UNAVAILABLE, is_for_spark=True)
    if spec.transform.python is not None:
        yield _python(spec, spec.transform.python)
    for url in _brokers(spec):
        yield from _broker(spec, url)
    for place in _places(spec):
        yield _http(spec, place)


def _packages(spec: PipelineSpec) -> Iterator[Finding]:
    kinds = {sink.kind for sink in spec.sinks}
    wanted = dict(PACKAGES) | {
        package: "lake" for kind, package in SINK_PACKAGES.items() if kind in kinds
    }
    missing = [name for name in wanted if importlib.util.find_spec(name) is None]
    for name in missing:
        text = f"the package {name} is not installed: {install_advice(wanted[name])}"
        yield Finding(WRONG, text, os.EX_UNAVAILABLE, is_for_spark=wanted[name] == "spark")
    if "pyspark" not in missing:
        try:
            check_spark()
        except SparkVersionError as error:
            yield Finding(WRONG, str(error), os.EX_UNAVAILABLE, is_for_spark=True)
    if not missing:
        yield Finding(GOOD, f"packages: {', '.join(sorted(wanted))}")


def _python(spec: PipelineSpec, name: str) -> Finding:
    """Check the function by the text of its module, because an import may have any effect."""
    module, _, function = name.partition(":")
    place = f"{spec.place}: [transform]: python: {name}"
    beside = Path(spec.place.rpartition("/")[0] or ".") / module.replace(".", "/")
    files = [beside.with_suffix(".py"), beside / "__init__.py"]
    found = next((file for file in files if file.is_file()), None)
    if found is None:
        text = f"python: {name} is not beside the file, so it is not checked"
        return Finding(NOTE, text)
    try:
        tree = ast.parse(found.read_bytes(), str(found))
    except (SyntaxError, ValueError) as error:
        return Finding(WRONG, f"{place}: {found}: {error}", os.EX_USAGE)
    names = _names_in(tree)
    if function not in names:
        text = f"{place}: {found} has no {function!r}{_near(function, names)}"
        return Finding(WRONG, text, os.EX_USAGE)
    return Finding(NOTE, f"python: {found} has {function!r}; check does not run it")


def _names_in(tree: ast.Module) -> list[str]:
    """Return all names that a module defines, assigns or imports."""
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.append(node.name)
        elif isinstance(node, ast.Name):
            found.append(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found += [alias.asname or alias.name for alias in node.names]
    return found


def _near(name: str, names: list[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1)
    return f", did you mean {near[0]!r}?" if near else ""


# ---- brokers -------------------------------------------------------------------------------------


def _brokers(spec: PipelineSpec) -> list[str]:
    """Return the URLs of the brokers to ask over AMQP."""
    source = spec.source
    found = []
    own = source.url or DEFAULT_URL
    is_read = source.is_queue and source.path is None
    is_written = spec.dead_letter is not None or any(
        sink.is_queue and sink.url is None for sink in spec.sinks
    )
    if is_read or is_written:
        found.append(own)
    found += [sink.url for sink in spec.sinks if sink.is_queue and sink.url is not None]
    return [url for url in dict.fromkeys(found) if not url.startswith("http")]


def _broker(spec: PipelineSpec, url: str) -> Iterator[Finding]:
    own = spec.source.url or DEFAULT_URL
    try:
        with broker_at(url) as connection:
            yield Finding(GOOD, f"broker: {connection.url}")
            for step in (_targets, _source):
                if step is _targets or url == own:
                    yield from step(spec, connection, url)
    except UnreachableError as error:
        text = (
            f"{spec.place}: [source]: the broker does not answer: {error}; is `penstock serve` "
            "running there? url, PENSTOCK_URL or --url set the broker"
        )
        yield Finding(WRONG, text, os.EX_UNAVAILABLE)
    except (PenstockError, OSError) as error:
        yield wrong(error)


def _targets(spec: PipelineSpec, connection: ClientConnection, url: str) -> Iterator[Finding]:
    own = spec.source.url or DEFAULT_URL
    names = [
        sink.target for sink in spec.sinks if sink.kind == "queue" and (sink.url or own) == url
    ]
    if spec.dead_letter is not None and url == own:
        names.append(spec.dead_letter)
    for name in names:
        if not has_queue(connection, name):
            yield Finding(NOTE, f"queue {name!r} does not exist: it will be declared")
    for number, sink in enumerate(spec.sinks, start=1):
        if sink.kind != "exchange" or sink.target == ANY_EXCHANGE or (sink.url or own) != url:
            continue
        if not has_exchange(connection, sink.target):
            text = f"{spec.sink_place(number)}: exchange: {sink.target!r} does not exist"
            yield Finding(WRONG, text, os.EX_USAGE)


def _source(spec: PipelineSpec, connection: ClientConnection, _url: str) -> Iterator[Finding]:
    source = spec.source
    if not source.is_queue or source.path is not None:
        return
    try:
        found = described(connection, source.name)
    except ChannelError as error:
        names = names_at(connection) if error.code == 404 else []
        text = f"queue: {error}{_near(source.name, names)}"
        yield wrong(PipelineFileError(f"{spec.place}: [source]", text))
        return
    if found["type"] == CLASSIC:
        leased = [one for one in found["leases"] if one["reader"] == spec.name]
        count = sum(int(one["head"]) - int(one["first"]) for one in leased)
        more = f", {count:,} leased to {spec.name!r}" if count else ""
        yield Finding(GOOD, f"source: queue {source.name!r}, {found['ready']:,} messages{more}")
        return
    yield Finding(GOOD, f"source: stream {source.name!r}, {found['ready']:,} records")


# ---- HTTP ----------------------------------------------------------------------------------------


def _places(spec: PipelineSpec) -> list[Place]:
    """Return the HTTP ports through which rows of queues are read and written."""
    source = spec.source
    own = source.url or DEFAULT_URL
    asked: list[tuple[str, str | None]] = []
    if source.is_queue and source.path is None:
        asked.append((own, source.http_url))
    if spec.dead_letter is not None and spec.delivery != AT_LEAST_ONCE:
        asked.append((own, source.http_url))
    for sink in spec.sinks:
        if sink.is_queue and sink.delivery != AT_LEAST_ONCE:
            http_url = sink.http_url or (source.http_url if sink.url is None else None)
            asked.append((sink.url or own, http_url))
    found: list[Place] = []
    for url, http_url in asked:
        options = {"url": url} | ({} if http_url is None else {"httpurl": http_url})
        place = parse_place(options)
        if place not in found:
            found.append(place)
    return found


def _http(spec: PipelineSpec, place: Place) -> Finding:
    link = HttpLink(place, HTTP_S)
    port = urlsplit(place.http_url).port
    try:
        link.json("GET", ())
    except LinkError as error:
        text = (
            f"{spec.place}: http_url: the broker does not answer at {error}: rows are read and "
            f"written through its HTTP port, {port} here; http_url or --http-url set it"
        )
        return Finding(WRONG, text, os.EX_UNAVAILABLE)
    except PenstockError as error:
        return wrong(error)
    finally:
        link.close()
    return Finding(GOOD, f"HTTP: {place}")


# ---- with Spark ----------------------------------------------------------------------------------


def check(spec: PipelineSpec, spark: "SparkSession", *, has_source: bool) -> Iterator[Finding]:
    """Check everything that takes Spark. has_source: `needs` found the source at the broker."""
    from penstock.spark import pipeline as frames

    try:
        staged = frames.staged_rows(frames.empty_source(spark, spec), spec)
        data = None if spec.transform.python is not None else frames.good(staged, spec)
    except PipelineFileError as error:
        yield wrong(error)
    else:
        if data is None:
            yield Finding(NOTE, "columns: not known after python, which check does not run")
        else:
            yield Finding(GOOD, f"columns: {', '.join(data.columns)}")
            for number, sink in enumerate(spec.sinks, start=1):
                yield _sink_fits(spec, number, sink, data)
    if has_source and spec.source.is_queue and spec.source.path is None:
        try:
            yield from _source_fits(spec, spark)
        except (PenstockError, OSError) as error:
            yield wrong(error)


def _sink_fits(spec: PipelineSpec, number: int, sink: SinkSpec, data: "DataFrame") -> Finding:
    from penstock.spark import pipeline as frames
    from penstock.spark.pipeline import fitting_table

    place = spec.sink_place(number)
    try:
        rows = frames.sink_rows(data, sink, place)
        if sink.is_table:
            fitting_table(spec, sink, rows, place)
    except (PenstockError, OSError) as error:
        return wrong(error)
    return Finding(GOOD, f"sink {number}: {sink.title}")


def _source_fits(spec: PipelineSpec, spark: "SparkSession") -> Iterator[Finding]:
    name = spec.source.name
    with broker_at(spec.source.url) as connection:
        if described(connection, name)["type"] == CLASSIC:
            if spec.source.start != FIRST:
                text = f"start: {name!r} is a classic queue, which is read from its first message"
                raise PipelineFileError(f"{spec.place}: [source]", f'{text}: "{FIRST}"')
            yield Finding(NOTE, "sample: not taken from a classic queue")
            return
        if spec.transform.schema is None and not spec.transform.expect:
            return
        tail = StreamTail(connection, name)
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


def _sample(spec: PipelineSpec, spark: "SparkSession", rows: list[Any]) -> Iterator[Finding]:
    from pyspark.sql import functions as F

    from penstock.spark import pipeline as frames

    staged = frames.staged_rows(spark.createDataFrame(rows, frames.MESSAGE_SCHEMA), spec).cache()
    hidden = frames.HIDDEN
    failing = staged.where(F.col(frames.REASON).isNotNull()).orderBy(f"{hidden}offset")
    first, failed = failing.first(), failing.count()
    if first is not None:
        text = f"{failed} of {len(rows)} rows fail: {first[frames.REASON]}"
        text += f" (the first at offset {first[hidden + 'offset']})"
        if failed > MISFIT_MAX * len(rows):
            value = bytes(first[f"{hidden}value"] or b"")[:100].decode(errors="replace")
            raise PipelineFileError(
                f"{spec.place}: [transform]", f"schema: does not fit the source: {text}: {value}"
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
    """Return the keys of the first value that is a JSON object."""
    for row in rows:
        try:
            value = json.loads(row[-1])
        except ValueError:
            continue
        if isinstance(value, dict):
            return set(value)
    return set()
