"""Files that stand in for a stream, for tests of pipelines that are not about the source.

`put` writes messages as Parquet files, one for each call; `stream_of` reads a file a batch, with
the columns of the source. So a pipeline is tested whole, with batches that replay, and no broker.
"""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = (
    "queue STRING, part INT, offset BIGINT, timestamp TIMESTAMP, exchange STRING, "
    "routing_key STRING, message_id STRING, value BINARY"
)


def event(row: int) -> bytes:
    """One that parses: month 1 to 12, carrier UA or B6, delay 0 to 39."""
    return json.dumps(
        {"row": row, "month": row % 12 + 1, "carrier": ("UA", "B6")[row % 2], "delay": row % 40}
    ).encode()


def put(spark: "SparkSession", directory: Path, first: int, values: Sequence[bytes | None]) -> None:
    """Messages from this offset on, in one file."""
    when = datetime(2026, 1, 31, 8, tzinfo=UTC)
    rows = [("events", 0, first + i, when, "", "k", None, v) for i, v in enumerate(values)]
    spark.createDataFrame(rows, SCHEMA).coalesce(1).write.mode("append").parquet(str(directory))


def stream_of(spark: "SparkSession", directory: Path) -> "DataFrame":
    """A stream of them, a file a batch."""
    reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    return reader.parquet(str(directory)).withColumnRenamed("part", "partition")
