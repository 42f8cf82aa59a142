"""dead-letters: what died, why, when and where, as a table; each dead letter once.

    penstock pipeline run dead-letters -o queue=flights.dead -o into=lake/dead

    queue       of dead letters: a classic queue, which this empties, or a stream      needed
    into        the directory; of Iceberg namespace.table                              needed
    by          day, none: a column to partition by, of the last death                 day
    format      parquet, orc, json, delta, iceberg                                     parquet
    warehouse   of Iceberg: its directory                                              warehouse
    trigger     available-now, or "10 seconds" ...                                     available-now
    records_max, bytes_max     of a batch
    state       where it is                                           state/dead-letters-<queue>

A broker's dead letters tell of their deaths in the header x-death, the last first, and so do those
of the embedded library, as a broker shows them. Those of a pipeline have a reason, and where in a
source they were. A row:

    reason, count           of the last death, and how often it died there of that
    queue                   where it died
    exchange, routing_keys  by which it had come there
    first_reason, first_queue, first_death, last_death      the times in UTC
    original_exchange, original_routing_key                 as it was first published
    pipeline                whose it is, of a pipeline's
    deaths                  all of them, the last first
    dead_queue, dead_offset, message_id, headers, properties, value, day

A message that has none of this is one that somebody put there: its reason is null. `replay` with
back=origin or back=queue is the way back.

Not here: how it runs; this is the text of a pipeline file (pipeline_file.py), and its transform.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from penstock.spark.pipelines.archive import FORMATS
from penstock.spark.pipelines.option_texts import choice, lake, options_of, plain, table, whole

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

OPTIONS: Final[Mapping[str, str | None]] = {
    "queue": None, "into": None, "by": "day", "format": "parquet", "trigger": "available-now",
    "records_max": None, "bytes_max": None, "state": None, "warehouse": None,
}  # fmt: skip
COLUMNS: Final = {"none": (), "day": ("day",)}
DEATHS: Final = (
    "ARRAY<STRUCT<reason: STRING, count: BIGINT, queue: STRING, exchange: STRING, "
    "`routing-keys`: ARRAY<STRING>, time: TIMESTAMP>>"
)
# Headers that tell of deaths: a message that goes back begins a new life without them. CC and BCC
# would send it to all that had it then.
OF_DEATHS: Final = (
    "x-death", "x-first-death-reason", "x-first-death-queue", "x-first-death-exchange",
    "x-last-death-reason", "x-last-death-queue", "x-last-death-exchange", "CC", "BCC",
)  # fmt: skip
OF_PIPELINES: Final = ("reason", "stream", "partition", "offset", "pipeline")


def text_of(given: Mapping[str, str]) -> str:
    """Its pipeline file. OptionError."""
    options = options_of(given, OPTIONS, ("queue", "into"))
    columns = COLUMNS[choice("by", options["by"], tuple(COLUMNS))]
    kind = choice("format", options["format"], FORMATS)
    name = f"dead-letters-{plain(str(options['queue']))}"
    head = {"name": name, "trigger": options["trigger"], "state": options["state"]}
    source = {
        "queue": options["queue"],
        "columns": ["headers", "properties"],
        "records_max": whole(options["records_max"]),
        "bytes_max": options["bytes_max"],
    }
    return "\n".join(
        (
            table("[pipeline]", head),
            table("[source]", source),
            table("[transform]", {"python": f"{__name__}:rows_of"}),
            *lake(kind, options["into"], columns, options["warehouse"]),
        )
    )


def rows_of(messages: "DataFrame") -> "DataFrame":
    """The table's rows, of messages with headers and properties."""
    from pyspark.sql import functions as F

    header = {name: F.col("headers")[name] for name in (*OF_DEATHS, *OF_PIPELINES)}  # null without
    deaths = F.from_json(header["x-death"], DEATHS)
    rows = messages.withColumn("deaths", deaths)
    is_dead = F.size("deaths") > 0
    last, first = F.get("deaths", F.lit(0)), F.element_at("deaths", -1)
    # A pipeline's dead letters have their own headers, and no death at a broker.
    is_of_pipeline = ~F.coalesce(is_dead, F.lit(False)) & header["stream"].isNotNull()

    def told(of_broker: "Column", of_pipeline: "Column") -> "Column":
        """By whichever tells of the death."""
        return F.when(is_dead, of_broker).when(is_of_pipeline, of_pipeline)

    times = F.transform("deaths", lambda death: death["time"])
    last_death = F.when(is_dead, F.greatest(F.array_max(times), F.col("timestamp")))
    last_death = F.coalesce(last_death, F.col("timestamp"))
    columns = {
        "reason": told(last["reason"], header["reason"]),
        "count": told(last["count"], F.lit(1)),
        "queue": told(last["queue"], header["stream"]),
        "exchange": told(last["exchange"], F.lit("")),
        "routing_keys": told(last["routing-keys"], F.array(header["stream"])),
        "first_reason": told(
            F.coalesce(header["x-first-death-reason"], first["reason"]), header["reason"]
        ),
        "first_queue": told(
            F.coalesce(header["x-first-death-queue"], first["queue"]), header["stream"]
        ),
        "first_death": told(F.array_min(times), F.col("timestamp")),
        "last_death": last_death,
        "original_exchange": told(first["exchange"], F.lit("")),
        "original_routing_key": told(F.get(first["routing-keys"], F.lit(0)), header["stream"]),
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
