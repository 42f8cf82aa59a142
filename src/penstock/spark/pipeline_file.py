"""The pipeline file: TOML that says where rows come from, what becomes of them, and where they go.

    [pipeline]
    name = "flights"                       # default: the file's name
    trigger = "available-now"              # or "10 seconds", "500 ms", "1 minute"
    state = "state/flights"                # where it is: default state/<name>
    [source]
    queue = "flights.events"               # or parquet = DIR, json = DIR: files, each once
    url = "amqp://..."                     # the broker; default: PENSTOCK_URL, AMQP_URL, this host
    http_url = "http://..."                # default: port 15672 of the host of url
    path = "penstock-data"                 # or the store's directory, read beside the broker
    start = "first"                        # of a first run; or "next", "2026-01-31T08:00:00Z"
    records_max = 1_000_000                # of a batch; with files: how many of them
    bytes_max = "256MiB"                   # of a batch
    [transform]
    schema = "month INT, carrier STRING"   # the value's JSON; without it: the message's columns
    keep = ["timestamp"]                   # columns of the message beside those of the schema
    expect = ["carrier IS NOT NULL"]       # what must hold for each row
    sql = "SELECT * FROM source"           # or python = "module:function", DataFrame to DataFrame
    on_error = "dead-letter"               # or "fail", "drop": rows that do not parse
    dead_letter = "flights.dead"           # default: <queue>.dead
    [[sink]]
    parquet = "lake/flights"               # or orc, json
    partition_by = ["month"]
    where = "month > 1"
    gather = true                          # a partition's rows in one task: few files, large ones
    [[sink]]
    queue = "flights.late"                 # or exchange
    value = "to_json(struct(*))"           # SQL: the body; this is the default
    routing_key = "carrier"                # SQL: with exchange
    [spark]
    "spark.sql.shuffle.partitions" = 4     # any setting of Spark's

What is read here is right as far as a file can be: an unknown key is an error that names the file,
the table and the key that is probably meant; so is a value of a wrong kind. Whether columns exist
only Spark can say (pipeline_check.py). Paths are as given: relative ones to where the command runs.

Not here: pyspark. This module is imported without it.
"""

import difflib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final

from penstock.client.amqp_url import DEFAULT, VARIABLES
from penstock.errors import OptionError
from penstock.queues.budget import parse_bytes

AVAILABLE_NOW: Final = "available-now"
ON_ERROR: Final = ("dead-letter", "fail", "drop")
FILE_KINDS: Final = ("parquet", "orc", "json")
QUEUE_KINDS: Final = ("queue", "exchange")
SOURCE_KINDS: Final = ("queue", "parquet", "json")
FIRST: Final = "first"
NEXT: Final = "next"
MESSAGE_COLUMNS: Final = (
    "queue", "partition", "offset", "timestamp", "exchange", "routing_key", "message_id", "value",
)  # fmt: skip
TRIGGER: Final = re.compile(r"(\d+) ?(ms|milliseconds?|s|seconds?|min|minutes?|h|hours?)", re.ASCII)
UNITS_MS: Final = {"ms": 1, "mi": 1, "s": 1000, "h": 3_600_000}
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
FUNCTION: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
BYTES_MAX_DEFAULT: Final = 256 << 20


class PipelineFileError(OptionError):
    """Something in a pipeline's file is wrong: where in it, and what."""

    def __init__(self, place: str, text: str) -> None:
        Exception.__init__(self, f"{place}: {text}")
        self.name = place
        self.given = None
        self.expected = text


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """kind: of SOURCE_KINDS, and its name or directory. start: FIRST, NEXT or a time. bytes_max,
    records_max: of a batch; None: no limit."""

    kind: str
    name: str
    url: str | None = None
    http_url: str | None = None
    path: str | None = None
    start: str | datetime = FIRST
    records_max: int | None = None
    bytes_max: int | None = BYTES_MAX_DEFAULT

    @property
    def is_queue(self) -> bool:
        """Whether messages come from there, and not files."""
        return self.kind == "queue"


@dataclass(frozen=True, slots=True)
class TransformSpec:
    """See the head of this module; None for what is not there."""

    schema: str | None = None
    keep: tuple[str, ...] = ()
    expect: tuple[str, ...] = ()
    sql: str | None = None
    python: str | None = None
    on_error: str = "fail"
    dead_letter: str | None = None


@dataclass(frozen=True, slots=True)
class SinkSpec:
    """kind: of FILE_KINDS or QUEUE_KINDS; target: directory or name."""

    kind: str
    target: str
    where: str | None = None
    partition_by: tuple[str, ...] = ()
    is_gathered: bool = True
    value: str | None = None
    routing_key: str | None = None
    url: str | None = None

    @property
    def is_files(self) -> bool:
        """Whether it is a directory of files."""
        return self.kind in FILE_KINDS

    @property
    def title(self) -> str:
        """For people: "parquet lake/flights"."""
        return f"{self.kind} {self.target}"


@dataclass(frozen=True, slots=True)
class PipelineSpec:
    """A whole pipeline. place: its file, for messages. interval_ms: of the trigger; None: what is
    there now, and then it ends."""

    place: str
    name: str
    interval_ms: int | None
    state: str
    source: SourceSpec
    transform: TransformSpec
    sinks: tuple[SinkSpec, ...]
    conf: Mapping[str, str] = field(default_factory=dict)

    @property
    def dead_letter(self) -> str | None:
        """The queue of rows that failed, if they go to one."""
        if self.transform.on_error != "dead-letter":
            return None
        return self.transform.dead_letter or f"{self.source.name}.dead"

    @property
    def trigger(self) -> str:
        """For people: "available-now", "10 seconds"."""
        if self.interval_ms is None:
            return AVAILABLE_NOW
        return f"{self.interval_ms / 1000:g} seconds"


def parse_pipeline(
    place: str, text: str, stem: str, given: Mapping[str, str] = MappingProxyType({})
) -> PipelineSpec:
    """A file's text. stem: the name of a pipeline that says none. given: what is said beside the
    file and wins, such as {"source.url": "amqp://..."}. PipelineFileError."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PipelineFileError(place, f"not TOML: {error}") from None
    for name, value in given.items():
        _put(table, place, name, value)
    root = _Table(place, "", table)
    root.known(("pipeline", "source", "transform", "sink", "spark"))
    head = root.table("pipeline")
    head.known(("name", "trigger", "state"))
    name = head.text("name") or stem
    if NAME.fullmatch(name) is None:
        raise head.wrong("name", name, "letters, digits, '.', '_' and '-'")
    source = _source(root.table("source", is_needed=True))
    sinks = tuple(_sink(one) for one in root.tables("sink"))
    if not sinks:
        raise PipelineFileError(place, "it has no [[sink]]: where the rows go")
    for number, one in enumerate(sinks):
        if one.is_files and any(
            one.target.rstrip("/") == x.target.rstrip("/") for x in sinks[:number]
        ):
            raise PipelineFileError(
                f"{place}: [[sink]] {number + 1}",
                f"{one.kind}: another sink writes to {one.target}",
            )
    return PipelineSpec(
        place=place,
        name=name,
        interval_ms=_trigger(head),
        state=head.text("state") or f"state/{name}",
        source=source,
        transform=_transform(root.table("transform"), source),
        sinks=sinks,
        conf=_conf(root.table("spark")),
    )


def with_url(spec: PipelineSpec, environment: Mapping[str, str]) -> PipelineSpec:
    """With the broker's URL, where the file has none: what the environment says, or this host."""
    if spec.source.url is not None:
        return spec
    url = next((environment[name] for name in VARIABLES if environment.get(name)), DEFAULT)
    return replace(spec, source=replace(spec.source, url=url))


# ---- tables --------------------------------------------------------------------------------------


def _put(table: dict[str, Any], place: str, name: str, value: str) -> None:
    """What is said beside the file: "table.key", and the value as TOML if it is some."""
    first, dot, key = name.partition(".")
    inner = table.setdefault(first, {}) if dot else None
    if not isinstance(inner, dict):
        raise PipelineFileError(
            place, f"option {name!r}: expected table.key of a pipeline, such as source.url"
        )
    try:
        inner[key] = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        inner[key] = value


def _trigger(head: "_Table") -> int | None:
    given = head.text("trigger") or AVAILABLE_NOW
    if given == AVAILABLE_NOW:
        return None
    found = TRIGGER.fullmatch(given)
    if found is None or int(found[1]) == 0:
        raise head.wrong("trigger", given, '"available-now", or a time such as "10 seconds"')
    unit = found[2]
    is_minutes = unit.startswith("min")
    scale = 60_000 if is_minutes else UNITS_MS[unit[:2] if unit[:2] in UNITS_MS else unit[0]]
    return int(found[1]) * scale


def _source(table: "_Table") -> SourceSpec:
    table.known((*SOURCE_KINDS, "url", "http_url", "path", "start", "records_max", "bytes_max"))
    kind, name = table.one_of(SOURCE_KINDS)
    if kind != "queue":
        for key in ("path", "start", "bytes_max"):
            if key in table:
                raise table.wrong(key, table[key], f"none: it goes with queue, and not with {kind}")
    return SourceSpec(
        kind=kind,
        name=name,
        url=table.text("url"),
        http_url=table.text("http_url"),
        path=table.text("path"),
        start=_start(table),
        records_max=table.number("records_max"),
        bytes_max=_bytes(table),
    )


def _start(table: "_Table") -> str | datetime:
    given = table.get("start", FIRST)
    expected = f'"{FIRST}", "{NEXT}" or a time such as "2026-01-31T08:00:00Z"'
    if given in (FIRST, NEXT):
        return str(given)
    when = given if isinstance(given, datetime) else None
    if isinstance(given, str):
        try:
            when = datetime.fromisoformat(given)
        except ValueError:
            pass
    if when is None:
        raise table.wrong("start", given, expected)
    return when.replace(tzinfo=UTC) if when.tzinfo is None else when


def _bytes(table: "_Table") -> int | None:
    given = table.get("bytes_max")
    if given is None:
        return BYTES_MAX_DEFAULT
    if not isinstance(given, str | int) or isinstance(given, bool):
        raise table.wrong("bytes_max", given, 'bytes, as a number or as "256MiB"')
    try:
        return parse_bytes("bytes_max", given, 0)
    except OptionError as error:
        raise table.wrong("bytes_max", given, str(error.expected)) from None


def _transform(table: "_Table", source: SourceSpec) -> TransformSpec:
    table.known(("schema", "keep", "expect", "sql", "python", "on_error", "dead_letter"))
    schema, sql, python = table.text("schema"), table.text("sql"), table.text("python")
    if sql is not None and python is not None:
        raise table.wrong("python", python, "either sql or python")
    if python is not None and FUNCTION.fullmatch(python) is None:
        raise table.wrong("python", python, '"module:function"')
    on_error = table.text("on_error") or "fail"
    if on_error not in ON_ERROR:
        raise table.wrong("on_error", on_error, f"one of {', '.join(ON_ERROR)}")
    if on_error == "dead-letter" and not source.is_queue:
        raise table.wrong("on_error", on_error, f'"fail" or "drop": the source is {source.kind}')
    dead_letter = table.text("dead_letter")
    if dead_letter is not None and on_error != "dead-letter":
        raise table.wrong("dead_letter", dead_letter, 'on_error = "dead-letter" with it')
    keep = table.texts("keep")
    if schema is not None and not source.is_queue:
        raise table.wrong("schema", schema, f"none: {source.kind} files have their own")
    if keep and schema is None:
        raise table.wrong("keep", keep, "a schema with it: without one all columns are kept")
    for name in keep:
        if name not in MESSAGE_COLUMNS:
            raise table.wrong("keep", name, f"columns of a message: {', '.join(MESSAGE_COLUMNS)}")
    return TransformSpec(
        schema=schema,
        keep=keep,
        expect=table.texts("expect"),
        sql=sql,
        python=python,
        on_error=on_error,
        dead_letter=dead_letter,
    )


def _sink(table: "_Table") -> SinkSpec:
    of_files, of_queues = ("partition_by", "gather"), ("value", "routing_key", "url")
    table.known((*FILE_KINDS, *QUEUE_KINDS, "where", *of_files, *of_queues))
    kind, target = table.one_of((*FILE_KINDS, *QUEUE_KINDS))
    for key in of_queues if kind in FILE_KINDS else of_files:
        if key in table:
            kinds = QUEUE_KINDS if kind in FILE_KINDS else FILE_KINDS
            raise table.wrong(key, table[key], f"none: it goes with {' or '.join(kinds)}")
    if kind == "queue" and "routing_key" in table:
        raise table.wrong("routing_key", table["routing_key"], "none: it goes with exchange")
    return SinkSpec(
        kind=kind,
        target=target,
        where=table.text("where"),
        partition_by=table.texts("partition_by"),
        is_gathered=table.flag("gather", default=True),
        value=table.text("value"),
        routing_key=table.text("routing_key"),
        url=table.text("url"),
    )


def _conf(table: "_Table") -> dict[str, str]:
    conf: dict[str, str] = {}
    for name, value in table.flat():
        if not name.startswith("spark."):
            raise table.wrong(name, value, 'a setting of Spark\'s, as "spark.executor.memory"')
        conf[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return conf


# ---- one value each ------------------------------------------------------------------------------


class _Table:
    """A table of the file, which knows where it stands."""

    def __init__(self, place: str, name: str, values: Mapping[str, Any]) -> None:
        self._place = place
        self._name = name
        self._values = values

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def get(self, key: str, default: object = None) -> Any:
        return self._values.get(key, default)

    @property
    def where(self) -> str:
        return f"{self._place}: {self._name}" if self._name else self._place

    def wrong(self, key: str, given: object, expected: str) -> PipelineFileError:
        return PipelineFileError(self.where, f"{key}: given {given!r}, expected {expected}")

    def known(self, names: tuple[str, ...]) -> None:
        for key in self._values:
            if key not in names:
                near = difflib.get_close_matches(key, names, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(names)}"
                what = "key" if self._name else "table"
                raise PipelineFileError(self.where, f"unknown {what} {key!r}, {hint}")

    def table(self, key: str, *, is_needed: bool = False) -> "_Table":
        if is_needed and key not in self._values:
            raise PipelineFileError(self.where, f"it has no [{key}]")
        values = self._values.get(key, {})
        if not isinstance(values, dict):
            raise self.wrong(key, values, f"a table [{key}]")
        return _Table(self._place, f"[{key}]", values)

    def tables(self, key: str) -> list["_Table"]:
        values = self._values.get(key, [])
        values = [values] if isinstance(values, dict) else values  # [sink], where there is one
        if not isinstance(values, list) or not all(isinstance(one, dict) for one in values):
            raise self.wrong(key, values, f"tables [[{key}]]")
        return [
            _Table(self._place, f"[[{key}]] {number}", one)
            for number, one in enumerate(values, start=1)
        ]

    def one_of(self, kinds: tuple[str, ...]) -> tuple[str, str]:
        """The one key of these that is there, and its text."""
        found = [kind for kind in kinds if kind in self._values]
        if len(found) != 1:
            told = f"has {' and '.join(found)}" if found else "has none"
            raise PipelineFileError(self.where, f"{told} of {', '.join(kinds)}: expected one")
        text = self.text(found[0])
        assert text is not None
        return found[0], text

    def text(self, key: str) -> str | None:
        value = self._values.get(key)
        if value is not None and (not isinstance(value, str) or not value.strip()):
            raise self.wrong(key, value, "a text")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        value = self._values.get(key, [])
        values = [value] if isinstance(value, str) else value
        if not isinstance(values, list) or not all(isinstance(x, str) and x for x in values):
            raise self.wrong(key, value, "a list of texts")
        return tuple(values)

    def number(self, key: str) -> int | None:
        value = self._values.get(key)
        if value is not None and (type(value) is not int or value < 1):
            raise self.wrong(key, value, "a whole number, 1 or more")
        return value

    def flag(self, key: str, *, default: bool) -> bool:
        value = self._values.get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, value, "true or false")
        return value

    def flat(self) -> list[tuple[str, object]]:
        """Names with dots, whether they were written with quotes or not."""

        def flatten(prefix: str, values: Mapping[str, Any]) -> list[tuple[str, object]]:
            rows: list[tuple[str, object]] = []
            for name, value in values.items():
                if isinstance(value, dict):
                    rows += flatten(f"{prefix}{name}.", value)
                else:
                    rows.append((prefix + name, value))
            return rows

        return flatten("", self._values)
