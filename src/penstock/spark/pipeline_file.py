"""The pipeline file: TOML that says where rows come from, what becomes of them, and where they go.

    [pipeline]
    name = "flights"                       # default: the file's name
    trigger = "available-now"              # or "10 seconds", "500 ms", "1 minute"
    state = "state/flights"                # where it is: default state/<name>
    delivery = "exactly-once"              # into queues; or "idempotent", "at-least-once"
    [source]
    queue = "flights.events"               # a stream or a classic queue; or files, each once:
                                           # parquet = DIR, json = DIR
    url = "amqp://..."                     # the broker; default: PENSTOCK_URL, AMQP_URL, this host
    http_url = "http://..."                # default: port 15672 of the host of url
    path = "penstock-data"                 # or the store's directory, read beside the broker
    start = "first"                        # of a first run; or "next", "2026-01-31T08:00:00Z"
    records_max = 1_000_000                # of a batch; with files: how many of them
    bytes_max = "256MiB"                   # of a batch
    columns = ["headers", "properties"]    # of messages, beside those that are always there
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
    delta = "lake/late"                    # or iceberg = "flights.late": a table, in one commit
    partition_by = ["month"]               # Iceberg: "day(timestamp)", "bucket(16, carrier)" too
    [[sink]]
    queue = "flights.late"                 # or exchange; "*": the column `exchange` says which
    value = "to_json(struct(*))"           # SQL: the body; this is the default
    routing_key = "carrier"                # SQL: with exchange
    delivery = "at-least-once"             # default: that of [pipeline]; url, http_url: its broker
    [catalog]
    warehouse = "warehouse"                # of Iceberg; type, uri ...: any catalog of pyiceberg's
    [storage]
    AWS_REGION = "eu-central-1"            # of Delta in object storage: options of deltalake's
    [spark]
    "spark.sql.shuffle.partitions" = 4     # any setting of Spark's

What is read here is right as far as a file can be: an unknown key is an error that names the file,
the table and the key that is probably meant; so is a value of a wrong kind. Whether columns exist
only Spark can say (pipeline_check.py). Paths are as given: relative ones to where the command runs.

Not here: pyspark. This module is imported without it.
"""

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
from penstock.spark.sink_options import DELIVERIES, EXACTLY_ONCE
from penstock.spark.toml_table import PipelineFileError as PipelineFileError
from penstock.spark.toml_table import TomlTable

AVAILABLE_NOW: Final = "available-now"
ON_ERROR: Final = ("dead-letter", "fail", "drop")
FILE_KINDS: Final = ("parquet", "orc", "json")
TABLE_KINDS: Final = ("delta", "iceberg")
QUEUE_KINDS: Final = ("queue", "exchange")
SOURCE_KINDS: Final = ("queue", "parquet", "json")
FIRST: Final = "first"
NEXT: Final = "next"
MESSAGE_COLUMNS: Final = (
    "queue", "partition", "offset", "timestamp", "exchange", "routing_key", "message_id", "value",
)  # fmt: skip
MORE_COLUMNS: Final = ("headers", "properties")
ANY_EXCHANGE: Final = "*"
TRIGGER: Final = re.compile(r"(\d+) ?(ms|milliseconds?|s|seconds?|min|minutes?|h|hours?)", re.ASCII)
UNITS_MS: Final = {"ms": 1, "mi": 1, "s": 1000, "h": 3_600_000}
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
FUNCTION: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
BYTES_MAX_DEFAULT: Final = 256 << 20


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """kind: of SOURCE_KINDS, and its name or directory. start: FIRST, NEXT or a time. bytes_max,
    records_max: of a batch; None: no limit. columns: of MORE_COLUMNS."""

    kind: str
    name: str
    url: str | None = None
    http_url: str | None = None
    path: str | None = None
    start: str | datetime = FIRST
    records_max: int | None = None
    bytes_max: int | None = BYTES_MAX_DEFAULT
    columns: tuple[str, ...] = ()

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
    """kind: of FILE_KINDS, TABLE_KINDS or QUEUE_KINDS; target: directory or name."""

    kind: str
    target: str
    where: str | None = None
    partition_by: tuple[str, ...] = ()
    is_gathered: bool = True
    value: str | None = None
    routing_key: str | None = None
    url: str | None = None
    http_url: str | None = None
    delivery: str = EXACTLY_ONCE

    @property
    def is_files(self) -> bool:
        """Whether it is a directory of files."""
        return self.kind in FILE_KINDS

    @property
    def is_table(self) -> bool:
        """Whether it is a table of Delta or Iceberg."""
        return self.kind in TABLE_KINDS

    @property
    def is_queue(self) -> bool:
        """Whether messages are sent there."""
        return self.kind in QUEUE_KINDS

    @property
    def title(self) -> str:
        """For people: "parquet lake/flights"."""
        return f"{self.kind} {self.target}"


@dataclass(frozen=True, slots=True)
class PipelineSpec:
    """A whole pipeline. place: its file, for messages. interval_ms: of the trigger; None: what is
    there now, and then it ends. delivery: of dead letters. catalog, storage: Iceberg's, Delta's."""

    place: str
    name: str
    interval_ms: int | None
    state: str
    source: SourceSpec
    transform: TransformSpec
    sinks: tuple[SinkSpec, ...]
    conf: Mapping[str, str] = field(default_factory=dict)
    catalog: Mapping[str, str] = field(default_factory=dict)
    storage: Mapping[str, str] = field(default_factory=dict)
    delivery: str = EXACTLY_ONCE

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
    root = TomlTable(place, "", table)
    root.known(("pipeline", "source", "transform", "sink", "catalog", "storage", "spark"))
    head = root.table("pipeline")
    head.known(("name", "trigger", "state", "delivery"))
    delivery = _delivery(head, EXACTLY_ONCE)
    name = head.text("name") or stem
    if NAME.fullmatch(name) is None:
        raise head.wrong("name", name, "letters, digits, '.', '_' and '-'")
    source = _source(root.table("source", is_needed=True))
    sinks = tuple(_sink(one, delivery) for one in root.tables("sink"))
    if not sinks:
        raise PipelineFileError(place, "it has no [[sink]]: where the rows go")
    for number, one in enumerate(sinks):
        if not one.is_queue and any(
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
        delivery=delivery,
        catalog={name: _text(value) for name, value in root.table("catalog").flat()},
        storage={name: _text(value) for name, value in root.table("storage").flat()},
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


def _trigger(head: TomlTable) -> int | None:
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


def _source(table: TomlTable) -> SourceSpec:
    of_queues = ("path", "start", "bytes_max", "columns")
    table.known((*SOURCE_KINDS, "url", "http_url", "records_max", *of_queues))
    kind, name = table.one_of(SOURCE_KINDS)
    columns = table.texts("columns")
    for column in columns:
        if column not in MORE_COLUMNS:
            raise table.wrong("columns", column, f"of {', '.join(MORE_COLUMNS)}")
    if kind != "queue":
        for key in of_queues:
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
        columns=columns,
    )


def _start(table: TomlTable) -> str | datetime:
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


def _bytes(table: TomlTable) -> int | None:
    given = table.get("bytes_max")
    if given is None:
        return BYTES_MAX_DEFAULT
    if not isinstance(given, str | int) or isinstance(given, bool):
        raise table.wrong("bytes_max", given, 'bytes, as a number or as "256MiB"')
    try:
        return parse_bytes("bytes_max", given, 0)
    except OptionError as error:
        raise table.wrong("bytes_max", given, str(error.expected)) from None


def _transform(table: TomlTable, source: SourceSpec) -> TransformSpec:
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


def _delivery(table: TomlTable, default: str) -> str:
    given = table.text("delivery") or default
    if given not in DELIVERIES:
        raise table.wrong("delivery", given, f"one of {', '.join(DELIVERIES)}")
    return given


def _sink(table: TomlTable, delivery: str) -> SinkSpec:
    of_files = ("partition_by", "gather")
    of_queues = ("value", "routing_key", "url", "http_url", "delivery")
    kinds_all = (*FILE_KINDS, *TABLE_KINDS, *QUEUE_KINDS)
    table.known((*kinds_all, "where", *of_files, *of_queues))
    kind, target = table.one_of(kinds_all)
    is_queue = kind in QUEUE_KINDS
    for key in of_files if is_queue else of_queues:
        if key in table:
            kinds = (*FILE_KINDS, *TABLE_KINDS) if is_queue else QUEUE_KINDS
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
        http_url=table.text("http_url"),
        delivery=_delivery(table, delivery),
    )


def _conf(table: TomlTable) -> dict[str, str]:
    conf: dict[str, str] = {}
    for name, value in table.flat():
        if not name.startswith("spark."):
            raise table.wrong(name, value, 'a setting of Spark\'s, as "spark.executor.memory"')
        conf[name] = _text(value)
    return conf


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
