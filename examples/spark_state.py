"""Totals of each carrier, kept in Spark's state, from a stream into a queue, exactly once.

    penstock serve
    python examples/spark_state.py

reads the stream `flights.events`, whose values are JSON such as {"carrier": "UA", "dep_delay": 12},
and sends to the queue `carrier.totals`, after each batch, one message for each carrier in it: how
many of its flights came so far, and their delay. `make run` fills such a stream; the queue is made
here. PENSTOCK_URL and PENSTOCK_HTTP name another broker, `--state DIR` another checkpoint.

The state is part of the checkpoint, as the offsets are. After a crash Spark repeats the batch from
the state before it, and the sink recognises the batch: no flight counts twice, and no total is sent
twice. Needs protobuf, which penstock[connect] brings, and Spark 4.1; without `availableNow` the
same query goes on for ever.
"""

import argparse
import json
import os
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle, StreamingQuery

import penstock

AMQP = os.environ.get("PENSTOCK_URL", "amqp://guest:guest@localhost:5672/")
HTTP = os.environ.get("PENSTOCK_HTTP", "http://localhost:15672/")
STREAM, QUEUE = "flights.events", "carrier.totals"
PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class Totals(StatefulProcessor):
    """Of one carrier: how many flights, and the sum of their delays."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Name the state. Spark calls this in each task, before its rows."""
        self._totals = handle.getValueState("totals", "flights BIGINT, delay BIGINT")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Add the carrier's rows of a batch, and return its new totals."""
        flights, delay = self._totals.get() if self._totals.exists() else (0, 0)
        for row in rows:
            flights, delay = flights + 1, delay + (row.dep_delay or 0)
        self._totals.update((flights, delay))
        yield Row(carrier=key[0], flights=flights, delay=delay)

    def close(self) -> None:
        """Spark keeps the state."""


def totals(rows: DataFrame) -> DataFrame:
    """Messages with the totals of each carrier in a batch."""
    flight = F.from_json(F.col("value").cast("string"), "carrier STRING, dep_delay INT")
    found = (
        rows.select(flight.alias("flight"))
        .select("flight.*")
        .groupBy("carrier")
        .transformWithState(
            Totals(), "carrier STRING, flights BIGINT, delay BIGINT", "Append", "None"
        )
    )
    return found.select(F.to_json(F.struct("*")).alias("value"))


def start(spark: SparkSession, state: str, amqp: str = AMQP, http: str = HTTP) -> StreamingQuery:
    """Count all that is there."""
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", PROVIDER)
    where = {"url": amqp, "httpUrl": http}
    rows = (
        spark.readStream.format("penstock")
        .options(subscribe=STREAM, startingOffsets="earliest", **where)
        .load()
    )
    writing = totals(rows).writeStream.format("penstock").options(queue=QUEUE, **where)
    writing = writing.option("checkpointLocation", state)
    return writing.outputMode("append").trigger(availableNow=True).start()


def main() -> None:
    """Count, then print and remove what is in the queue."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--state", default="penstock-state", help="the checkpoint")
    given = parser.parse_args()
    from penstock.spark import session

    with penstock.open(AMQP) as box:
        queue = box.queue(QUEUE)
        start(session(), given.state).awaitTermination()
        for job in queue.get_many(1000):
            print(json.loads(job.body))
            job.ack()


if __name__ == "__main__":
    main()
