"""Needs: whether what a pipeline needs is there, looked at before Spark is started.

    packages   pyspark and pyarrow, and those of its sinks (deltalake, pyiceberg)
    Java       that Spark would be started with
    python     the module that it names: that it parses and has the function; it is never imported
    broker     each one answers and takes the login; the source, exchanges and queues are there
    HTTP       the same for the HTTP port, by which rows are read and written

Nothing is raised for what is missing: each need is a Finding, so one look tells of all of them.
Nothing is written or declared, and no code of the pipeline's is run.

Not here: columns, schemas and rows, which take Spark (pipeline_check.py).
"""

import ast
import difflib
import importlib.util
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from penstock.client import ClientConnection, UnreachableError
from penstock.errors import AMQPError, ChannelError, OptionError, PenstockError
from penstock.spark.http_link import HttpLink, LinkError, RefusedError
from penstock.spark.java_home import JavaMissingError, ensure_java
from penstock.spark.pipeline_broker import (
    CLASSIC,
    broker_at,
    described,
    has_exchange,
    has_queue,
    names_at,
)
from penstock.spark.pipeline_file import ANY_EXCHANGE, PipelineFileError, PipelineSpec
from penstock.spark.sink_options import AT_LEAST_ONCE
from penstock.spark.source_options import Place, parse_place

GOOD: Final = "ok"
NOTE: Final = "note"
WRONG: Final = "wrong"
HTTP_S: Final = 10.0
DEFAULT_URL: Final = "amqp://guest:guest@localhost:5672/"
PACKAGES: Final = {"pyspark": "spark", "pyarrow": "spark", "pandas": "spark", "numpy": "spark"}
SINK_PACKAGES: Final = {"delta": "deltalake", "iceberg": "pyiceberg"}
REFUSED: Final = (401, 403)


@dataclass(frozen=True, slots=True)
class Finding:
    """kind: GOOD, NOTE or WRONG; code: the exit code of what is wrong, after sysexits.h.
    is_for_spark: without it Spark cannot be started."""

    kind: str
    text: str
    code: int = 0
    is_for_spark: bool = False


def wrong(error: Exception) -> Finding:
    """What this error says, with the exit code for it."""
    text = " ".join(str(error).split())
    if isinstance(error, OptionError):
        return Finding(WRONG, text, os.EX_USAGE)
    if isinstance(error, RefusedError):
        return Finding(WRONG, text, os.EX_NOPERM if error.status in REFUSED else os.EX_UNAVAILABLE)
    if isinstance(error, AMQPError):
        return Finding(WRONG, text, os.EX_NOPERM if error.code == 403 else os.EX_UNAVAILABLE)
    return Finding(WRONG, text, os.EX_UNAVAILABLE)


def needs(spec: PipelineSpec) -> Iterator[Finding]:
    """Each need, in the order of the head of this module."""
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
        text = f"the package {name} is not installed: pip install 'penstock[{wanted[name]}]'"
        yield Finding(WRONG, text, os.EX_UNAVAILABLE, is_for_spark=wanted[name] == "spark")
    if not missing:
        yield Finding(GOOD, f"packages: {', '.join(sorted(wanted))}")


def _python(spec: PipelineSpec, name: str) -> Finding:
    """The function by the text of its module, which may do anything when it is imported."""
    module, _, function = name.partition(":")
    place = f"{spec.place}: [transform]: python: {name}"
    beside = Path(spec.place.rpartition("/")[0] or ".") / module.replace(".", "/")
    files = [beside.with_suffix(".py"), beside / "__init__.py"]
    found = next((file for file in files if file.is_file()), None)
    if found is None:
        text = f"python: {name} is not beside the file, and not looked at: check runs no Python"
        return Finding(NOTE, text)
    try:
        tree = ast.parse(found.read_bytes(), str(found))
    except (SyntaxError, ValueError) as error:
        return Finding(WRONG, f"{place}: {found}: {error}", os.EX_USAGE)
    names = _names_in(tree)
    if function not in names:
        text = f"{place}: {found} has no {function!r}{_near(function, names)}"
        return Finding(WRONG, text, os.EX_USAGE)
    return Finding(NOTE, f"python: {found} has {function!r}; it is not run: check runs no Python")


def _names_in(tree: ast.Module) -> list[str]:
    """What a module defines, assigns or imports, anywhere."""
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
    """The URLs of the brokers that are asked by AMQP."""
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
            "running there? url, PENSTOCK_URL or --url say which one is meant"
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
            yield Finding(NOTE, f"queue {name!r} is not there: it will be declared")
    for number, sink in enumerate(spec.sinks, start=1):
        if sink.kind != "exchange" or sink.target == ANY_EXCHANGE or (sink.url or own) != url:
            continue
        if not has_exchange(connection, sink.target):
            text = f"{spec.place}: [[sink]] {number}: exchange: no {sink.target!r} there"
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
        told = sum(int(one["head"]) - int(one["first"]) for one in leased)
        more = f", {told:,} leased to {spec.name!r}" if told else ""
        yield Finding(GOOD, f"source: queue {source.name!r}, {found['ready']:,} messages{more}")
        return
    yield Finding(GOOD, f"source: stream {source.name!r}, {found['ready']:,} records")


# ---- HTTP ----------------------------------------------------------------------------------------


def _places(spec: PipelineSpec) -> list[Place]:
    """Where the rows of queues are read and written by HTTP."""
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
            f"written by its HTTP port, {port} here; http_url or --http-url say which one is meant"
        )
        return Finding(WRONG, text, os.EX_UNAVAILABLE)
    except PenstockError as error:
        return wrong(error)
    finally:
        link.close()
    return Finding(GOOD, f"HTTP: {place}")
