"""replay: the rows of files become messages of a queue or an exchange, or go back, exactly once.

    penstock pipeline run replay -o from=lake/archive -o queue=again -o where="day = '2026-01-31'"
    penstock pipeline run replay -o from=lake/dead -o back=origin

    from           a directory of files                             needed
    queue          the queue, declared if it is missing             one of the three
    exchange       an exchange
    back           origin: each row to the exchange and by the
                   routing key that it was first published with;
                   queue: straight into the queue where it first
                   died. Of the table that `dead-letters` writes
    where          SQL: which rows                                  all
    sql            SQL on the table `source`: repairs the rows      all as they are
    value          SQL: the body                                    the column value, if it has
                                                                    bytes, as `archive` writes
                                                                    them; else the row as JSON
    routing_key    SQL; with exchange                               the column routing_key, or ""
    format         parquet, json                                    parquet
    trigger        available-now, or "10 seconds" ...               available-now
    files_max      of a batch
    state          where it is           state/replay-<queue or exchange>; state/replay-back-<from>

Each file is read once, also those that come later; to send everything again, remove the state
directory. The rows of a batch are sent by several tasks at once, so their order is not kept.

What goes back begins a new life: without the headers that tell of its deaths, without CC and BCC,
and without user_id, for it is another user who sends it. Headers come back as texts. Rows that
nobody knows the origin of are left out.

Not here: how it runs; this is the text of a pipeline file (pipeline_file.py).
"""

from collections.abc import Mapping
from typing import Final

from penstock.errors import OptionError
from penstock.spark.pipelines.dead_letter_table import OF_DEATHS, OF_PIPELINES
from penstock.spark.pipelines.option_texts import choice, options_of, plain, table, whole

OPTIONS: Final[Mapping[str, str | None]] = {
    "from": None, "queue": None, "exchange": None, "back": None, "where": None, "sql": None,
    "value": None, "routing_key": None, "format": "parquet", "trigger": "available-now",
    "files_max": None, "state": None,
}  # fmt: skip
# back -> the exchange, and the routing key
ADDRESSES: Final = {
    "origin": ("original_exchange", "original_routing_key"), "queue": ("''", "first_queue"),
}  # fmt: skip


def text_of(given: Mapping[str, str]) -> str:
    """Its pipeline file. OptionError."""
    options = options_of(given, OPTIONS, ("from",))
    targets = {name: options[name] for name in ("queue", "exchange", "back") if options[name]}
    if len(targets) != 1:
        told = ", ".join(targets) or None
        raise OptionError("queue", told, "one of queue, exchange and back: -o queue=...")
    kind = choice("format", options["format"], ("parquet", "json"))
    back = options["back"]
    (target,) = targets.values()
    name = f"replay-{plain(str(target))}"
    if back is not None:
        name = f"replay-back-{plain(str(options['from']))}"
    head = {"name": name, "trigger": options["trigger"], "state": options["state"]}
    source = {kind: options["from"], "records_max": whole(options["files_max"])}
    parts = [table("[pipeline]", head), table("[source]", source)]
    sink = {
        "queue": options["queue"],
        "exchange": options["exchange"],
        "value": options["value"],
        "routing_key": options["routing_key"],
    }
    if back is not None and kind != "parquet":
        raise OptionError("format", kind, "parquet with back: JSON keeps no bodies and headers")
    if back is None:
        parts.append(table("[transform]", {"sql": options["sql"]}))
        parts.append(table("[[sink]]", {**sink, "where": options["where"]}))
    else:
        for option in ("value", "routing_key"):
            if options[option] is not None:
                raise OptionError(option, options[option], "none with back: say it in sql")
        parts.append(table("[transform]", {"sql": _back(back, options["sql"], options["where"])}))
        parts.append(table("[[sink]]", {"exchange": "*"}))
    return "\n".join(parts)


def _back(back: str, repair: str | None, where: str | None) -> str:
    exchange, key = ADDRESSES[choice("back", back, tuple(ADDRESSES))]
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
