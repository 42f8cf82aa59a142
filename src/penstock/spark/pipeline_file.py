"""The pipeline file: TOML that says where rows come from, how they are transformed, where they go.

    [pipeline]
    name = "flights"                       # default: the file's name
    trigger = "available-now"              # or "10 seconds", "500 ms", "1 minute"
    state = "state/flights"                # the state directory, default state/<name>
    delivery = "exactly-once"              # into queues; or "idempotent", "at-least-once"
    [source]
    queue = "flights.events"               # a stream or a classic queue; or files, each read once:
                                           # parquet = DIR, json = DIR
    url = "amqp://..."                     # the broker; default: PENSTOCK_URL, AMQP_URL, this host
    http_url = "http://..."                # default: port 15672 of the host of url
    path = "penstock-data"                 # or the store's directory, read beside the broker
    start = "first"                        # of the first run; or "next", "2026-01-31T08:00:00Z"
    records_max = 1_000_000                # records of a batch; with files, files of a batch
    bytes_max = "256MiB"                   # bytes of a batch
    columns = ["headers", "properties"]    # of messages, beside those that are always there
    [transform]
    schema = "month INT, carrier STRING"   # the value's JSON; without it: the message's columns
    keep = ["timestamp"]                   # columns of the message beside those of the schema
    expect = ["carrier IS NOT NULL"]       # conditions that each row must meet
    sql = "SELECT * FROM source"           # or python = "module:function", DataFrame to DataFrame
    on_error = "dead-letter"               # or "fail", "drop": for rows that fail
    dead_letter = "flights.dead"           # default: <queue>.dead
    [[sink]]
    parquet = "lake/flights"               # or orc, json
    partition_by = ["month"]
    where = "month > 1"
    gather = true                          # a partition's rows in one task: few, large files
    [[sink]]
    delta = "lake/late"                    # or iceberg = "flights.late": a table, in one commit
    partition_by = ["month"]               # Iceberg: "day(timestamp)", "bucket(16, carrier)" too
    [[sink]]
    queue = "flights.late"                 # or exchange; "*": the column `exchange` names it
    value = "to_json(struct(*))"           # SQL: the body; this is the default
    routing_key = "carrier"                # SQL: with exchange
    delivery = "at-least-once"             # default: that of [pipeline]; url, http_url: its broker
    [catalog]
    warehouse = "warehouse"                # of Iceberg; type, uri ...: any catalog of pyiceberg
    [storage]
    AWS_REGION = "eu-central-1"            # of Delta in object storage: options of deltalake
    [spark]
    "spark.sql.shuffle.partitions" = 4     # any setting of Spark

Everything that can be checked without Spark is checked here. An unknown key is an error that names
the file, the table and the key that was probably meant; so is a value of the wrong kind. Only Spark
can say whether columns exist (pipeline_check.py). Relative paths start where the command runs.

This module imports no pyspark.
"""

import difflib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final

from penstock.amqp_url import DEFAULT, VARIABLES
from penstock.errors import OptionError
from penstock.options import parse_bytes
from penstock.spark.options import DELIVERIES, EXACTLY_ONCE

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


class PipelineFileError(OptionError):
    """A value in a pipeline's file is wrong: where, and what is expected."""

    def __init__(self, place: str, text: str) -> None:
        Exception.__init__(self, f"{place}: {text}")
        self.name = place
        self.given = None
        self.expected = text


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """The [source]. kind: of SOURCE_KINDS; name: the queue or directory. start: FIRST, NEXT or a
    time. bytes_max, records_max: limits of a batch, None for none. columns: of MORE_COLUMNS."""

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
        """Return whether messages come from there, not files."""
        return self.kind == "queue"


@dataclass(frozen=True, slots=True)
class TransformSpec:
    """The [transform]; None for keys that are not given."""

    schema: str | None = None
    keep: tuple[str, ...] = ()
    expect: tuple[str, ...] = ()
    sql: str | None = None
    python: str | None = None
    on_error: str = "fail"
    dead_letter: str | None = None


@dataclass(frozen=True, slots=True)
class SinkSpec:
    """A [[sink]]. kind: of FILE_KINDS, TABLE_KINDS or QUEUE_KINDS; target: directory or name."""

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
        """Return whether the sink is a directory of files."""
        return self.kind in FILE_KINDS

    @property
    def is_table(self) -> bool:
        """Return whether the sink is a table of Delta or Iceberg."""
        return self.kind in TABLE_KINDS

    @property
    def is_queue(self) -> bool:
        """Return whether the sink sends messages."""
        return self.kind in QUEUE_KINDS

    @property
    def title(self) -> str:
        """Return a name for people: "parquet lake/flights"."""
        return f"{self.kind} {self.target}"


@dataclass(frozen=True, slots=True)
class PipelineSpec:
    """A whole pipeline. place: its file, for messages. interval_ms: of the trigger, None for
    available-now. delivery: for dead letters. catalog, storage: for Iceberg and Delta."""

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
        """Return the queue for rows that failed, or None if they do not go to one."""
        if self.transform.on_error != "dead-letter":
            return None
        return self.transform.dead_letter or f"{self.source.name}.dead"

    def sink_place(self, number: int) -> str:
        """Return where a sink is in the file, for messages. number: from 1 on."""
        return f"{self.place}: [[sink]] {number}"

    @property
    def trigger(self) -> str:
        """Return the trigger for people: "available-now", "10 seconds"."""
        if self.interval_ms is None:
            return AVAILABLE_NOW
        return f"{self.interval_ms / 1000:g} seconds"


def parse_pipeline(
    place: str, text: str, stem: str, given: Mapping[str, str] = MappingProxyType({})
) -> PipelineSpec:
    """Parse a file's text. Raises PipelineFileError.

    place: the file, for messages. stem: the name of a pipeline that gives none. given: values that
    override the file, such as {"source.url": "amqp://..."}.
    """
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
        raise PipelineFileError(place, "no [[sink]]: the file needs one or more, for the rows")
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
    """Return the spec with the broker's URL: the file's, else the environment's, else this
    host's."""
    if spec.source.url is not None:
        return spec
    url = next((environment[name] for name in VARIABLES if environment.get(name)), DEFAULT)
    return replace(spec, source=replace(spec.source, url=url))


# ---- one table, with errors that say where it is -------------------------------------------------


class TomlTable:
    """A table of the file. Each method reads one key as a certain kind, and raises
    PipelineFileError with file, table, key, given and expected value. place: the file; name: of the
    table, such as "[sink]"."""

    def __init__(self, place: str, name: str, values: Mapping[str, Any]) -> None:
        self._place = place
        self._name = name
        self._values = values

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def get(self, key: str, default: object = None) -> Any:
        """Return the value as it is."""
        return self._values.get(key, default)

    @property
    def where(self) -> str:
        """Return where the table is, for messages: "flights.toml: [source]"."""
        return f"{self._place}: {self._name}" if self._name else self._place

    def wrong(self, key: str, given: object, expected: str) -> PipelineFileError:
        """Return the error for a wrong value."""
        return PipelineFileError(self.where, f"{key}: given {given!r}, expected {expected}")

    def known(self, names: tuple[str, ...]) -> None:
        """Raise PipelineFileError for a key that is not among `names`, with the nearest one."""
        for key in self._values:
            if key not in names:
                near = difflib.get_close_matches(key, names, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(names)}"
                what = "key" if self._name else "table"
                raise PipelineFileError(self.where, f"unknown {what} {key!r}, {hint}")

    def table(self, key: str, *, is_needed: bool = False) -> "TomlTable":
        """Return an inner table, empty if there is none and none is needed."""
        if is_needed and key not in self._values:
            raise PipelineFileError(self.where, f"no [{key}]: the file needs one")
        values = self._values.get(key, {})
        if not isinstance(values, dict):
            raise self.wrong(key, values, f"a table [{key}]")
        return TomlTable(self._place, f"[{key}]", values)

    def tables(self, key: str) -> list["TomlTable"]:
        """Return the tables of an array."""
        values = self._values.get(key, [])
        values = [values] if isinstance(values, dict) else values  # [sink] is a single one
        if not isinstance(values, list) or not all(isinstance(one, dict) for one in values):
            raise self.wrong(key, values, f"tables [[{key}]]")
        return [
            TomlTable(self._place, f"[[{key}]] {number}", one)
            for number, one in enumerate(values, start=1)
        ]

    def one_of(self, kinds: tuple[str, ...]) -> tuple[str, str]:
        """Return the one key of `kinds` that is given, and its text."""
        found = [kind for kind in kinds if kind in self._values]
        if len(found) != 1:
            given = f"has {' and '.join(found)}" if found else "has none"
            raise PipelineFileError(self.where, f"{given} of {', '.join(kinds)}: expected one")
        text = self.text(found[0])
        assert text is not None
        return found[0], text

    def text(self, key: str) -> str | None:
        """Return a text that is not blank, or None."""
        value = self._values.get(key)
        if value is not None and (not isinstance(value, str) or not value.strip()):
            raise self.wrong(key, value, "a text")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of texts; a single text counts as a list."""
        value = self._values.get(key, [])
        values = [value] if isinstance(value, str) else value
        if not isinstance(values, list) or not all(isinstance(x, str) and x for x in values):
            raise self.wrong(key, value, "a list of texts")
        return tuple(values)

    def number(self, key: str) -> int | None:
        """Return a whole number from 1 on, or None."""
        value = self._values.get(key)
        if value is not None and (type(value) is not int or value < 1):
            raise self.wrong(key, value, "a whole number, 1 or more")
        return value

    def flag(self, key: str, *, default: bool) -> bool:
        """Return true or false."""
        value = self._values.get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, value, "true or false")
        return value

    def flat(self) -> list[tuple[str, object]]:
        """Return (name, value) pairs with dotted names, whether written as tables or in quotes."""

        def flatten(prefix: str, values: Mapping[str, Any]) -> list[tuple[str, object]]:
            rows: list[tuple[str, object]] = []
            for name, value in values.items():
                if isinstance(value, dict):
                    rows += flatten(f"{prefix}{name}.", value)
                else:
                    rows.append((prefix + name, value))
            return rows

        return flatten("", self._values)


# ---- the tables ----------------------------------------------------------------------------------


def _put(table: dict[str, Any], place: str, name: str, value: str) -> None:
    """Set a value that overrides the file: name is "table.key", the value is TOML or a string."""
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
                raise table.wrong(key, table[key], f"none: it is for queue, not for {kind}")
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
        raise table.wrong("dead_letter", dead_letter, 'on_error = "dead-letter"')
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
            raise table.wrong(key, table[key], f"none: it is for {' or '.join(kinds)}")
    if kind == "queue" and "routing_key" in table:
        raise table.wrong("routing_key", table["routing_key"], "none: it is for exchange")
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
