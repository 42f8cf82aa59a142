"""archive: a stream becomes files or a table, by day or hour, exactly once.

    penstock pipeline run archive -o stream=flights.events -o into=lake/archive -o by=hour

    stream      the stream                                    needed
    into        the directory; of Iceberg namespace.table     needed
    by          day, hour, none: a column to partition by     day
    format      parquet, orc, json, delta, iceberg            parquet
    warehouse   of Iceberg: its directory                     warehouse
    start       first, next, or a time; of the first run      first
    trigger     available-now, or "10 seconds" ...            available-now
    records_max, bytes_max     of a batch
    state       where it is                                   state/archive-<stream>

Rows have all columns of a message, value as bytes, with `day` as "2026-01-31", `hour` as "08", both
in UTC. Run it again whenever: it takes what came since. `replay` is the way back.

Not here: how it runs; this is the text of a pipeline file (pipeline_file.py).
"""

from collections.abc import Mapping
from typing import Final

from penstock.spark.pipelines.option_texts import choice, lake, options_of, plain, table, whole

OPTIONS: Final[Mapping[str, str | None]] = {
    "stream": None, "into": None, "by": "day", "format": "parquet", "start": "first",
    "trigger": "available-now", "records_max": None, "bytes_max": None, "state": None,
    "warehouse": None,
}  # fmt: skip
FORMATS: Final = ("parquet", "orc", "json", "delta", "iceberg")
COLUMNS: Final = {"none": (), "day": ("day",), "hour": ("day", "hour")}
SQL: Final = {"day": "date_format(timestamp, 'yyyy-MM-dd')", "hour": "date_format(timestamp, 'HH')"}


def text_of(given: Mapping[str, str]) -> str:
    """Its pipeline file. OptionError."""
    options = options_of(given, OPTIONS, ("stream", "into"))
    columns = COLUMNS[choice("by", options["by"], tuple(COLUMNS))]
    kind = choice("format", options["format"], FORMATS)
    name = f"archive-{plain(str(options['stream']))}"
    selected = ", ".join(("*", *(f"{SQL[column]} AS {column}" for column in columns)))
    sql = " ".join(("SELECT", selected, "FROM source"))
    head = {"name": name, "trigger": options["trigger"], "state": options["state"]}
    source = {
        "queue": options["stream"],
        "start": options["start"],
        "records_max": whole(options["records_max"]),
        "bytes_max": options["bytes_max"],
    }
    return "\n".join(
        (
            table("[pipeline]", head),
            table("[source]", source),
            table("[transform]", {"sql": sql}),
            *lake(kind, options["into"], columns, options["warehouse"]),
        )
    )
