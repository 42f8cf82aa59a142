"""archive: a stream becomes Parquet files, by day or hour, exactly once.

    penstock pipeline run archive -o stream=flights.events -o into=lake/archive -o by=hour

    stream      the stream                                    needed
    into        the directory                                 needed
    by          day, hour, none: a column to partition by     day
    format      parquet, orc, json                            parquet
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

from penstock.spark.pipelines.option_texts import choice, options_of, plain, table

OPTIONS: Final[Mapping[str, str | None]] = {
    "stream": None, "into": None, "by": "day", "format": "parquet", "start": "first",
    "trigger": "available-now", "records_max": None, "bytes_max": None, "state": None,
}  # fmt: skip
COLUMNS: Final = {"none": (), "day": ("day",), "hour": ("day", "hour")}
SQL: Final = {"day": "date_format(timestamp, 'yyyy-MM-dd')", "hour": "date_format(timestamp, 'HH')"}


def text_of(given: Mapping[str, str]) -> str:
    """Its pipeline file. OptionError."""
    options = options_of(given, OPTIONS, ("stream", "into"))
    columns = COLUMNS[choice("by", options["by"], tuple(COLUMNS))]
    kind = choice("format", options["format"], ("parquet", "orc", "json"))
    name = f"archive-{plain(str(options['stream']))}"
    selected = ", ".join(("*", *(f"{SQL[column]} AS {column}" for column in columns)))
    sql = " ".join(("SELECT", selected, "FROM source"))
    records = options["records_max"]
    return "\n".join(
        (
            table(
                "[pipeline]",
                {"name": name, "trigger": options["trigger"], "state": options["state"]},
            ),
            table(
                "[source]",
                {
                    "queue": options["stream"],
                    "start": options["start"],
                    "records_max": int(records) if records and records.isdecimal() else records,
                    "bytes_max": options["bytes_max"],
                },
            ),
            table("[transform]", {"sql": sql}),
            table(
                "[[sink]]",
                {kind: options["into"], "partition_by": list(columns), "gather": False},
            ),
        )
    )
