"""replay: the rows of Parquet files become messages of a queue or an exchange, at least once.

    penstock pipeline run replay -o from=lake/archive -o queue=again -o where="day = '2026-01-31'"

    from           a directory of files                             needed
    queue          the queue, declared if it is missing             one of the two
    exchange       an exchange
    where          SQL: which rows                                  all
    value          SQL: the body                                    the column value, if it has
                                                                    bytes, as `archive` writes
                                                                    them; else the row as JSON
    routing_key    SQL; with exchange                               the column routing_key, or ""
    format         parquet, json                                    parquet
    trigger        available-now, or "10 seconds" ...               available-now
    files_max      of a batch
    state          where it is                                      state/replay-<queue or exchange>

Each file is read once, also those that come later; to send everything again, remove the state
directory. The rows of a batch are sent by several tasks at once, so their order is not kept.

Not here: how it runs; this is the text of a pipeline file (pipeline_file.py).
"""

from collections.abc import Mapping
from typing import Final

from penstock.errors import OptionError
from penstock.spark.pipelines.option_texts import choice, options_of, plain, table

OPTIONS: Final[Mapping[str, str | None]] = {
    "from": None, "queue": None, "exchange": None, "where": None, "value": None,
    "routing_key": None, "format": "parquet", "trigger": "available-now", "files_max": None,
    "state": None,
}  # fmt: skip


def text_of(given: Mapping[str, str]) -> str:
    """Its pipeline file. OptionError."""
    options = options_of(given, OPTIONS, ("from",))
    queue, exchange = options["queue"], options["exchange"]
    if (queue is None) == (exchange is None):
        raise OptionError("queue", queue, "either queue or exchange: -o queue=...")
    kind = choice("format", options["format"], ("parquet", "json"))
    files = options["files_max"]
    head = {
        "name": f"replay-{plain(str(queue or exchange))}",
        "trigger": options["trigger"],
        "state": options["state"],
    }
    source = {
        kind: options["from"],
        "records_max": int(files) if files and files.isdecimal() else files,
    }
    sink = {
        "queue": queue,
        "exchange": exchange,
        "where": options["where"],
        "value": options["value"],
        "routing_key": options["routing_key"],
    }
    return "\n".join(
        (table("[pipeline]", head), table("[source]", source), table("[[sink]]", sink))
    )
