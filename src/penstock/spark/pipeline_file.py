"""The pipeline file: TOML that says where rows come from, how they are transformed, where they go.

docs/guides/pipelines.md has an example. TABLES lists the keys of each table of a file; the guide's
tables are made from it.

Everything that can be checked without Spark is checked here. An unknown key is an error that names
the file, the table and the key that was probably meant; so is a value of the wrong kind. Only Spark
can say whether columns exist (pipeline_check.py). Relative paths start where the command runs.

This module imports no pyspark.
"""

import difflib
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final

from penstock.amqp_url import url_of
from penstock.errors import OptionError, shortened
from penstock.options import (
    BYTES_MAX,
    Kind,
    Option,
    WrongValueError,
    by_name,
    checked,
    flag,
    format_bytes,
    ms_in,
    one_of,
    parse_bytes,
    whole,
)
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
    state: str
    source: SourceSpec
    transform: TransformSpec
    sinks: tuple[SinkSpec, ...]
    interval_ms: int | None = None
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


# ---- the keys ------------------------------------------------------------------------------------


def _text_that(is_right: Callable[[str], bool], words: str, expected: str) -> Kind:
    """A text that is not blank, and for which `is_right`."""

    def check(value: object) -> str:
        if not isinstance(value, str) or not value.strip():
            raise WrongValueError("a text")
        if not is_right(value):
            raise WrongValueError(expected)
        return value

    return Kind(words, check)


def _texts(known: tuple[str, ...] = (), expected: str = "") -> Kind:
    """A list of texts; a single text counts as a list. known: those that there are, () for any."""

    def check(value: object) -> tuple[str, ...]:
        values = [value] if isinstance(value, str) else value
        if not isinstance(values, list) or not all(isinstance(x, str) and x for x in values):
            raise WrongValueError("a list of texts")
        for one in values:
            if known and one not in known:
                raise WrongValueError(f"{expected} {', '.join(known)}", (one,))
        return tuple(values)

    words = "list of " + (", ".join(f"`{one}`" for one in known) or "texts")
    return Kind(words, check, shown=", ".join)


def _trigger() -> Kind:
    """Milliseconds; None for available-now."""

    def check(value: object) -> int | None:
        ms = ms_in(value) if isinstance(value, str) else -1
        if value != AVAILABLE_NOW and (ms < 1 or str(value).strip()[-1:].isdecimal()):
            raise WrongValueError('"available-now", or a time such as "10 seconds"')
        return None if value == AVAILABLE_NOW else round(ms)

    return Kind('`"available-now"`, `"10 seconds"`, `"500 ms"`', check)


def _start() -> Kind:
    expected = f'"{FIRST}", "{NEXT}" or a time such as "2026-01-31T08:00:00Z"'

    def check(value: object) -> str | datetime:
        if value in (FIRST, NEXT):
            return str(value)
        try:
            when = datetime.fromisoformat(value) if isinstance(value, str) else value
        except ValueError:
            when = None
        if not isinstance(when, datetime):
            raise WrongValueError(expected)
        return when.replace(tzinfo=UTC) if when.tzinfo is None else when

    return Kind(f'`"{FIRST}"`, `"{NEXT}"`, a time', check)


def _bytes() -> Kind:
    def check(value: object) -> int:
        if not isinstance(value, str | int) or isinstance(value, bool):
            raise WrongValueError('bytes, as a number or as "256MiB"')
        try:
            return parse_bytes("bytes_max", value, 0)
        except OptionError as error:
            raise WrongValueError(str(error.expected)) from None

    return Kind("size", check, shown=lambda count: format_bytes(count).replace(" ", ""))


_TEXT: Final = _text_that(lambda text: True, "text", "a text")
_SQL: Final = replace(_TEXT, words="SQL")
_COUNT: Final = whole(1, BYTES_MAX, "a whole number, 1 or more")
_FOR_QUEUE: Final = ("queue",)
_DELIVERY: Final = one_of(*DELIVERIES)
PIPELINE_KEYS: Final[tuple[Option, ...]] = (
    Option(
        "name",
        _text_that(
            lambda text: NAME.fullmatch(text) is not None,
            "letters, digits, `.`, `_`, `-`", "letters, digits, '.', '_' and '-'",
        ),
        "also the name of the reader at the broker", default="the file's name",
    ),
    Option(
        "trigger", _trigger(),
        "`available-now`: process what is there when it starts, then end. Or a time between "
        "batches, with units in full or as `ms`, `s`, `min`, `h`",
        field="interval_ms", default="`available-now`",
    ),
    Option(
        "state", _TEXT, "directory of the checkpoint; a URL of HDFS or S3 on a cluster",
        default="`state/<name>`",
    ),
    Option(
        "delivery", _DELIVERY,
        "how queues and dead letters get their rows ([sinks](sinks.md)); a sink may override it",
    ),
)  # fmt: skip
SOURCE_KEYS: Final[tuple[Option, ...]] = (
    Option(
        "queue", _TEXT,
        "a [stream](streams.md), or a [classic queue](classic-queue-sources.md), whose messages "
        "are leased, and acknowledged when they are processed",
        field="name", default="one of these three",
    ),
    Option("parquet", _TEXT, "a directory of files, each read once, also new ones", field="name"),
    Option("json", _TEXT, "the same with a JSON object in each line", field="name"),
    Option(
        "url", _TEXT, "the broker; sinks and dead letters use it too",
        default="`PENSTOCK_URL`, `AMQP_URL`, this host",
    ),
    Option(
        "http_url", _TEXT, "its HTTP address, from which rows are read",
        default="port 15672 of that host",
    ),
    Option(
        "records_max", _COUNT, "records of a batch; with a directory, files of a batch"
    ),
    Option(
        "path", _TEXT,
        "the data directory of a broker on this machine, read directly, without HTTP",
        applies=_FOR_QUEUE,
    ),
    Option(
        "start", _start(), "where the first run begins; `next`: with new records only",
        applies=_FOR_QUEUE,
    ),
    Option("bytes_max", _bytes(), "bytes of a batch", applies=_FOR_QUEUE),
    Option(
        "columns", _texts(MORE_COLUMNS, "of"),
        "additional columns of messages, both `MAP<STRING, STRING>`",
        applies=_FOR_QUEUE,
    ),
)  # fmt: skip
TRANSFORM_KEYS: Final[tuple[Option, ...]] = (
    Option(
        "schema", _TEXT,
        "the columns of the JSON in each message's body, in Spark's syntax: "
        '`"a INT, b STRING, c STRUCT<d: DOUBLE>"`',
        default="the message's own columns",
    ),
    Option(
        "keep", _texts(MESSAGE_COLUMNS, "columns of a message:"),
        "columns of the message to keep beside those",
    ),
    Option("expect", _texts(), "SQL conditions that each row must satisfy"),
    Option("sql", _SQL, "a query on the table `source`", default="all rows unchanged"),
    Option(
        "python",
        _text_that(
            lambda text: FUNCTION.fullmatch(text) is not None,
            '`"module:function"`', '"module:function"',
        ),
        "gets a DataFrame, returns one. The module may be beside the file",
    ),
    Option(
        "on_error", one_of(*ON_ERROR),
        "what happens to rows that do not parse, or do not satisfy `expect`",
    ),
    Option("dead_letter", _TEXT, "the queue for them", default="`<queue>.dead`"),
)  # fmt: skip
SINK_KEYS: Final[tuple[Option, ...]] = (
    Option("parquet", _TEXT, "a directory", field="target", default="one of these seven"),
    Option("orc", _TEXT, "a directory", field="target"),
    Option("json", _TEXT, "a directory", field="target"),
    Option(
        "delta", _TEXT, "a directory, or a URL of object storage: [a Delta table](lakehouse.md)",
        field="target",
    ),
    Option(
        "iceberg", _TEXT, "`namespace.table`: [an Iceberg table](lakehouse.md)", field="target"
    ),
    Option("queue", _TEXT, "created durable if it does not exist", field="target"),
    Option(
        "exchange", _TEXT,
        'must exist; with `"*"` the column `exchange` chooses it for each row',
        field="target",
    ),
    Option("where", _SQL, "which rows", default="all"),
    Option(
        "partition_by", _texts(),
        "columns that become directories, `month=1/carrier=UA/`; for Iceberg also `day(timestamp)` "
        "and others",
        applies=(*FILE_KINDS, *TABLE_KINDS),
    ),
    Option(
        "gather", flag(),
        "first bring the rows of a partition to one task: few large files. Set `false` if a batch "
        "has few partitions",
        field="is_gathered", applies=(*FILE_KINDS, *TABLE_KINDS),
    ),
    Option(
        "value", _SQL,
        "the body. Without it the column `value` if that is binary, else the row as JSON. A "
        "variant becomes its JSON",
        applies=QUEUE_KINDS,
    ),
    Option(
        "routing_key", _SQL,
        "with `exchange`. Without it the column of that name, if messages are passed on",
        default='`""`', applies=("exchange",),
    ),
    Option("url", _TEXT, "another broker", default="that of the source", applies=QUEUE_KINDS),
    Option(
        "http_url", _TEXT, "and its HTTP address", default="that of the source",
        applies=QUEUE_KINDS,
    ),
    Option(
        "delivery", _DELIVERY, "of a queue or exchange", default="that of `[pipeline]`",
        applies=QUEUE_KINDS,
    ),
)  # fmt: skip
# Table -> its keys; () for any.
TABLES: Final[Mapping[str, tuple[Option, ...]]] = {
    "pipeline": PIPELINE_KEYS,
    "source": SOURCE_KEYS,
    "transform": TRANSFORM_KEYS,
    "sink": SINK_KEYS,
    "catalog": (),
    "storage": (),
    "spark": (),
}


# ---- the file ------------------------------------------------------------------------------------


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
    root.known(tuple(TABLES))
    values = root.table("pipeline").read(PIPELINE_KEYS)
    delivery = values.setdefault("delivery", EXACTLY_ONCE)
    name = values.setdefault("name", stem)
    values.setdefault("state", f"state/{name}")
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
        **values,
        place=place,
        source=source,
        transform=_transform(root.table("transform"), source),
        sinks=sinks,
        conf=_conf(root.table("spark")),
        catalog={name: _text(value) for name, value in root.table("catalog").flat()},
        storage={name: _text(value) for name, value in root.table("storage").flat()},
    )


def with_url(spec: PipelineSpec, environment: Mapping[str, str]) -> PipelineSpec:
    """Return the spec with the broker's URL: the file's, else the environment's, else this
    host's."""
    if spec.source.url is not None:
        return spec
    return replace(spec, source=replace(spec.source, url=url_of(environment)))


# ---- one table, with errors that say where it is -------------------------------------------------


class TomlTable:
    """A table of the file. Each method reads one key as a certain kind, and raises
    PipelineFileError with file, table, key, given and expected value. place: the file; name: of the
    table, such as "[sink]"."""

    def __init__(self, place: str, name: str, values: Mapping[str, Any]) -> None:
        self._place = place
        self._name = name
        self._values = values

    @property
    def where(self) -> str:
        """Return where the table is, for messages: "flights.toml: [source]"."""
        return f"{self._place}: {self._name}" if self._name else self._place

    def wrong(self, key: str, given: object, expected: str) -> PipelineFileError:
        """Return the error for a wrong value."""
        return PipelineFileError(
            self.where, f"{key}: given {shortened(given)}, expected {expected}"
        )

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

    def read(self, keys: Iterable[Option]) -> dict[str, Any]:
        """Return the values by the names of the program's fields, checked by these rows."""
        rows = by_name(keys)
        self.known(tuple(rows))
        values = {}
        for name, given in self._values.items():
            try:
                values[rows[name].target] = checked(rows[name].kind, name, given)
            except OptionError as error:
                raise self.wrong(name, error.given, str(error.expected)) from None
        return values

    def read_of_kind(self, keys: Iterable[Option], kinds: tuple[str, ...]) -> dict[str, Any]:
        """As `read`, for a table of which one of the keys `kinds` says what it is; it is `kind`."""
        found = [kind for kind in kinds if kind in self._values]
        values = self.read(keys)
        if len(found) != 1:
            given = f"has {' and '.join(found)}" if found else "has none"
            raise PipelineFileError(self.where, f"{given} of {', '.join(kinds)}: expected one")
        for option in keys:
            applies = option.applies
            if option.name in self._values and applies and found[0] not in applies:
                expected = f"none: it is for {' or '.join(applies)}"
                raise self.wrong(option.name, self._values[option.name], expected)
        return {**values, "kind": found[0]}

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


def _source(table: TomlTable) -> SourceSpec:
    return SourceSpec(**table.read_of_kind(SOURCE_KEYS, SOURCE_KINDS))


def _transform(table: TomlTable, source: SourceSpec) -> TransformSpec:
    found = TransformSpec(**table.read(TRANSFORM_KEYS))
    if found.sql is not None and found.python is not None:
        raise table.wrong("python", found.python, "either sql or python")
    if found.on_error == "dead-letter" and not source.is_queue:
        expected = f'"fail" or "drop": the source is {source.kind}'
        raise table.wrong("on_error", found.on_error, expected)
    if found.dead_letter is not None and found.on_error != "dead-letter":
        raise table.wrong("dead_letter", found.dead_letter, 'on_error = "dead-letter"')
    if found.schema is not None and not source.is_queue:
        raise table.wrong("schema", found.schema, f"none: {source.kind} files have their own")
    if found.keep and found.schema is None:
        expected = "a schema with it: without one all columns are kept"
        raise table.wrong("keep", found.keep, expected)
    return found


def _sink(table: TomlTable, delivery: str) -> SinkSpec:
    values = table.read_of_kind(SINK_KEYS, (*FILE_KINDS, *TABLE_KINDS, *QUEUE_KINDS))
    return SinkSpec(**{"delivery": delivery, **values})


def _conf(table: TomlTable) -> dict[str, str]:
    conf: dict[str, str] = {}
    for name, value in table.flat():
        if not name.startswith("spark."):
            raise table.wrong(name, value, 'a setting of Spark\'s, as "spark.executor.memory"')
        conf[name] = _text(value)
    return conf


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
