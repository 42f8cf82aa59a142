"""Built-in pipelines: each turns its options into the text of a pipeline file.

    penstock pipeline run archive -o stream=flights.events -o into=lake/archive

    archive        a stream into a table or partitioned files, by day or hour
    dead-letters   a table of the messages that died: why, when and where
    replay         files into a queue or an exchange, or back to where their rows came from
    audit          verifies every checksum of a store. A job of its own, in audit.py

`penstock pipeline check` explains the text as it does that of any other file. Each pipeline has a
table of its options, from which those of the guide are made.

The standard library has no writer for TOML. What is needed here is text, and a JSON string is also
a TOML basic string. This module imports pyspark only where Spark calls `dead_letter_rows`.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import OptionError
from penstock.options import (
    BYTES_MAX,
    Option,
    by_name,
    check_known,
    one_of,
    text,
    value_of,
    whole,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

NAMES: Final = ("archive", "audit", "dead-letters", "replay")
FORMATS: Final = ("parquet", "orc", "json", "delta", "iceberg")
# Headers about deaths, which a message does not keep when it is sent back. CC and BCC are among
# them, because they would send it to every queue that had it then.
OF_DEATHS: Final = (
    "x-death", "x-first-death-reason", "x-first-death-queue", "x-first-death-exchange",
    "x-last-death-reason", "x-last-death-queue", "x-last-death-exchange", "CC", "BCC",
)  # fmt: skip
OF_PIPELINES: Final = ("reason", "stream", "partition", "offset", "pipeline")


def built_in(name: str, given: Mapping[str, str]) -> str:
    """Return the pipeline file of a built-in pipeline with these options. Raises OptionError."""
    texts: dict[str, Callable[[Mapping[str, str]], str]] = {
        "archive": archive,
        "dead-letters": dead_letters,
        "replay": replay,
    }
    return texts[name](given)


# ---- archive -------------------------------------------------------------------------------------

ARCHIVE_COLUMNS: Final = {"none": (), "day": ("day",), "hour": ("day", "hour")}
ARCHIVE_SQL: Final = {
    "day": "date_format(timestamp, 'yyyy-MM-dd')",
    "hour": "date_format(timestamp, 'HH')",
}
_TEXT: Final = text("a text")
_WHOLE: Final = whole(1, BYTES_MAX, "a whole number, 1 or more")
_INTO: Final = Option("into", _TEXT, "the directory; for Iceberg `namespace.table`; required")
_FORMAT: Final = Option("format", one_of(*FORMATS), "what is written", default="parquet")
_OF_ALL: Final = (
    Option("warehouse", _TEXT, "Iceberg's directory"),
    Option("trigger", _TEXT, "as in the file", default="available-now"),
    Option("records_max", _WHOLE, "records of a batch"),
    Option("bytes_max", _TEXT, "bytes of a batch, as in the file"),
    Option("state", _TEXT, "the state directory"),
)
ARCHIVE_OPTIONS: Final = (
    Option("stream", _TEXT, "the stream; required"),
    _INTO,
    Option("by", one_of(*ARCHIVE_COLUMNS), "the columns to partition by", default="day"),
    _FORMAT,
    Option("start", _TEXT, "of the first run, as in the file", default="first"),
    *_OF_ALL,
)


def archive(given: Mapping[str, str]) -> str:
    """Return the pipeline file of `archive`: a stream becomes files or a table, exactly once.

    A row has all columns of a message, the value as bytes, and `day` as "2026-01-31" and `hour` as
    "08", both in UTC. Each run takes what arrived since the last one. `replay` is the way back.

    Raises OptionError.
    """
    options = options_of(given, ARCHIVE_OPTIONS, ("stream", "into"))
    columns, kind = ARCHIVE_COLUMNS[options["by"]], options["format"]
    name = f"archive-{_plain(options['stream'])}"
    selected = ", ".join(("*", *(f"{ARCHIVE_SQL[column]} AS {column}" for column in columns)))
    sql = " ".join(("SELECT", selected, "FROM source"))
    head = {"name": name, "trigger": options["trigger"], "state": options["state"]}
    source = {
        "queue": options["stream"],
        "start": options["start"],
        "records_max": options["records_max"],
        "bytes_max": options["bytes_max"],
    }
    return "\n".join(
        (
            _table("[pipeline]", head),
            _table("[source]", source),
            _table("[transform]", {"sql": sql}),
            *_lake_sink(kind, options["into"], columns, options["warehouse"]),
        )
    )


# ---- dead-letters --------------------------------------------------------------------------------

DEAD_LETTERS_COLUMNS: Final = {"none": (), "day": ("day",)}
DEAD_LETTERS_OPTIONS: Final = (
    Option("queue", _TEXT, "a queue of dead letters, which this empties, or a stream; required"),
    _INTO,
    Option(
        "by", one_of(*DEAD_LETTERS_COLUMNS),
        "the column to partition by, of the last death", default="day",
    ),
    _FORMAT,
    *_OF_ALL,
)  # fmt: skip
DEATHS: Final = (
    "ARRAY<STRUCT<reason: STRING, count: BIGINT, queue: STRING, exchange: STRING, "
    "`routing-keys`: ARRAY<STRING>, time: TIMESTAMP>>"
)


def dead_letters(given: Mapping[str, str]) -> str:
    """Return the pipeline file of `dead-letters`: a row for each dead letter, once.

    Raises OptionError.
    """
    options = options_of(given, DEAD_LETTERS_OPTIONS, ("queue", "into"))
    columns, kind = DEAD_LETTERS_COLUMNS[options["by"]], options["format"]
    name = f"dead-letters-{_plain(options['queue'])}"
    head = {"name": name, "trigger": options["trigger"], "state": options["state"]}
    source = {
        "queue": options["queue"],
        "columns": ["headers", "properties"],
        "records_max": options["records_max"],
        "bytes_max": options["bytes_max"],
    }
    return "\n".join(
        (
            _table("[pipeline]", head),
            _table("[source]", source),
            _table("[transform]", {"python": f"{__name__}:dead_letter_rows"}),
            *_lake_sink(kind, options["into"], columns, options["warehouse"]),
        )
    )


def dead_letter_rows(messages: "DataFrame") -> "DataFrame":
    """Return the table's rows for messages with headers and properties.

    Dead letters of a broker list their deaths in the header x-death, the last one first, and so do
    those of the embedded library as a broker shows them. Dead letters of a pipeline have a reason
    and their place in the pipeline's source. A row:

    reason, count           of the last death, and how often the message died there for that reason
    queue                   where it died
    exchange, routing_keys  by which it had come there
    first_reason, first_queue, first_death, last_death      the times in UTC
    original_exchange, original_routing_key                 as it was first published
    pipeline                the pipeline that wrote it, if one did
    deaths                  all deaths, the last one first
    dead_queue, dead_offset, message_id, headers, properties, value, day

    A message with no such headers was published into the queue directly: its reason is null.
    """
    from pyspark.sql import functions as F

    header = {name: F.col("headers")[name] for name in (*OF_DEATHS, *OF_PIPELINES)}  # null without
    deaths = F.from_json(header["x-death"], DEATHS)
    rows = messages.withColumn("deaths", deaths)
    is_dead = F.size("deaths") > 0
    last, first = F.get("deaths", F.lit(0)), F.element_at("deaths", -1)
    # A pipeline's dead letters have headers of their own, and no death at a broker.
    is_of_pipeline = ~F.coalesce(is_dead, F.lit(False)) & header["stream"].isNotNull()

    def either(of_broker: "Column", of_pipeline: "Column") -> "Column":
        """Use the value for a broker's dead letter, or that for a pipeline's."""
        return F.when(is_dead, of_broker).when(is_of_pipeline, of_pipeline)

    times = F.transform("deaths", lambda death: death["time"])
    last_death = F.when(is_dead, F.greatest(F.array_max(times), F.col("timestamp")))
    last_death = F.coalesce(last_death, F.col("timestamp"))
    columns = {
        "reason": either(last["reason"], header["reason"]),
        "count": either(last["count"], F.lit(1)),
        "queue": either(last["queue"], header["stream"]),
        "exchange": either(last["exchange"], F.lit("")),
        "routing_keys": either(last["routing-keys"], F.array(header["stream"])),
        "first_reason": either(
            F.coalesce(header["x-first-death-reason"], first["reason"]), header["reason"]
        ),
        "first_queue": either(
            F.coalesce(header["x-first-death-queue"], first["queue"]), header["stream"]
        ),
        "first_death": either(F.array_min(times), F.col("timestamp")),
        "last_death": last_death,
        "original_exchange": either(first["exchange"], F.lit("")),
        "original_routing_key": either(F.get(first["routing-keys"], F.lit(0)), header["stream"]),
        "pipeline": F.when(is_of_pipeline, header["pipeline"]),
        "deaths": F.col("deaths"),
        "dead_queue": F.col("queue"),
        "dead_offset": F.col("offset"),
        "message_id": F.col("message_id"),
        "headers": F.col("headers"),
        "properties": F.col("properties"),
        "value": F.col("value"),
        "day": F.date_format(last_death, "yyyy-MM-dd"),
    }
    return rows.select(*(column.alias(name) for name, column in columns.items()))


# ---- replay --------------------------------------------------------------------------------------

# back -> (exchange, routing key), as SQL
ADDRESSES: Final = {
    "origin": ("original_exchange", "original_routing_key"), "queue": ("''", "first_queue"),
}  # fmt: skip
REPLAY_OPTIONS: Final = (
    Option("from", _TEXT, "a directory of files; required"),
    Option("queue", _TEXT, "the queue, made if it is missing; one of these three is required"),
    Option("exchange", _TEXT, "an exchange"),
    Option(
        "back", one_of(*ADDRESSES),
        "for tables of `dead-letters`: with `origin` each row goes to the exchange and with the "
        "routing key of its first publish, with `queue` into the queue where it first died",
    ),
    Option("where", _TEXT, "SQL: which rows"),
    Option("sql", _TEXT, "SQL on the table `source`: repairs rows"),
    Option(
        "value", _TEXT,
        "SQL: the body. Without it the column value if it has bytes, as `archive` writes them, "
        "else the row as JSON",
    ),
    Option("routing_key", _TEXT, 'SQL, with exchange; without it the column routing_key, or `""`'),
    Option("format", one_of("parquet", "json"), "of the files", default="parquet"),
    Option("trigger", _TEXT, "as in the file", default="available-now"),
    Option("files_max", _WHOLE, "files of a batch"),
    Option("state", _TEXT, "the state directory"),
)  # fmt: skip


def replay(given: Mapping[str, str]) -> str:
    """Return the pipeline file of `replay`: rows become messages, or go back, exactly once.

    Each file is read once, including files that arrive later; to send everything again, remove the
    state directory. Several tasks send the rows of a batch at once, so their order is not kept.

    A message that goes back loses the headers about its deaths, CC and BCC, and user_id, because
    another user sends it now. Headers come back as strings. Rows without a known origin are left
    out.

    Raises OptionError.
    """
    options = options_of(given, REPLAY_OPTIONS, ("from",))
    targets = {name: options[name] for name in ("queue", "exchange", "back") if options[name]}
    if len(targets) != 1:
        given_targets = ", ".join(targets) or None
        raise OptionError("queue", given_targets, "one of queue, exchange and back: -o queue=...")
    kind, back = options["format"], options["back"]
    (target,) = targets.values()
    name = f"replay-{_plain(target)}"
    if back is not None:
        name = f"replay-back-{_plain(options['from'])}"
    head = {"name": name, "trigger": options["trigger"], "state": options["state"]}
    source = {kind: options["from"], "records_max": options["files_max"]}
    parts = [_table("[pipeline]", head), _table("[source]", source)]
    sink = {
        "queue": options["queue"],
        "exchange": options["exchange"],
        "value": options["value"],
        "routing_key": options["routing_key"],
    }
    if back is not None and kind != "parquet":
        raise OptionError("format", kind, "parquet with back: JSON keeps no bodies and headers")
    if back is None:
        parts.append(_table("[transform]", {"sql": options["sql"]}))
        parts.append(_table("[[sink]]", {**sink, "where": options["where"]}))
    else:
        for option in ("value", "routing_key"):
            if options[option] is not None:
                raise OptionError(option, options[option], "none with back: say it in sql")
        parts.append(_table("[transform]", {"sql": _back(back, options["sql"], options["where"])}))
        parts.append(_table("[[sink]]", {"exchange": "*"}))
    return "\n".join(parts)


def _back(back: str, repair: str | None, where: str | None) -> str:
    """Return the SQL that turns rows of dead letters into messages for `back`."""
    exchange, key = ADDRESSES[back]
    broker, pipelines = (
        ", ".join(f"'{name}'" for name in names) for names in (OF_DEATHS, OF_PIPELINES)
    )
    kept = f"k NOT IN ({broker}) AND NOT (pipeline IS NOT NULL AND k IN ({pipelines}))"
    columns = (
        f"{exchange} AS exchange",
        f"{key} AS routing_key",
        "cast(value AS BINARY) AS value",
        "message_id",
        f"map_filter(headers, (k, v) -> {kept}) AS headers",
        "map_filter(properties, (k, v) -> k <> 'user_id') AS properties",
    )
    words = (
        "SELECT", ", ".join(columns), "FROM (", repair or "SELECT * FROM source", ")",
        "WHERE", f"{exchange} IS NOT NULL AND {key} IS NOT NULL AND ({where or 'true'})",
    )  # fmt: skip
    return " ".join(words)


# ---- options and TOML ----------------------------------------------------------------------------


def options_of(
    given: Mapping[str, str], options: Sequence[Option], needed: Sequence[str]
) -> dict[str, Any]:
    """Return the options with their defaults. Raises OptionError if one is unknown, wrong or
    missing."""
    rows = by_name(options)
    for name, value in given.items():
        check_known(name, value, rows)
    for name in needed:
        if not given.get(name):
            raise OptionError(name, None, f"a value: -o {name}=...")
    values = {name: value_of(rows[name].kind, name, value) for name, value in given.items()}
    return {option.name: option.default for option in options} | values


def _lake_sink(
    kind: str, into: str | None, columns: Sequence[str], warehouse: str | None
) -> tuple[str, ...]:
    """Return the [[sink]] of a table or of files, and Iceberg's [catalog]. Raises OptionError."""
    if warehouse is not None and kind != "iceberg":
        raise OptionError("warehouse", warehouse, "format=iceberg")
    sink = _table("[[sink]]", {kind: into, "partition_by": list(columns), "gather": False})
    if warehouse is None:
        return (sink,)
    return sink, _table("[catalog]", {"warehouse": warehouse})


def _table(header: str, values: Mapping[str, object]) -> str:
    """Return a table of a TOML file, without the keys whose value is None."""
    lines = [f"{name} = {_value(value)}" for name, value in values.items() if value is not None]
    return "\n".join([header, *lines]) + "\n"


def _plain(name: str) -> str:
    """Return a name that a pipeline may have: any other character becomes "-"."""
    letters = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in name)
    return letters.strip("-.") or "unnamed"


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[" + ", ".join(_value(one) for one in value) + "]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
