"""The stream flights.events as a table, and its late flights back into a queue.

PENSTOCK_URL says where the broker is. The sink is exactly once, as everywhere: the flow is a query
with a checkpoint of its own, and its id is what the broker remembers.
"""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

BROKER = os.environ.get("PENSTOCK_URL", "http://guest:guest@localhost:15672/")
FLIGHT = "row INT, month INT, carrier STRING, origin STRING, dep_delay INT"

spark = SparkSession.active()


@dp.table(comment="One row for each event; a run adds those that came since the last one.")
def flights() -> DataFrame:
    """A streaming table."""
    events = (
        spark.readStream.format("penstock")
        .option("url", BROKER)
        .option("subscribe", "flights.events")
        .option("startingOffsets", "earliest")
        .option("columns", "offset,timestamp,value")
        .load()
    )
    parsed = F.from_json(F.col("value").cast("string"), FLIGHT).alias("flight")
    return events.select("offset", "timestamp", parsed).select("offset", "timestamp", "flight.*")


dp.create_sink("late", "penstock", {"url": BROKER, "queue": "flights.late"})


@dp.append_flow(target="late")
def late_flights() -> DataFrame:
    """Rows of the table into the queue, as JSON."""
    late = spark.readStream.table("flights").where("dep_delay > 15")
    return late.select(F.to_json(F.struct("*")).alias("value"))
