"""A job of a campaign: from a queue or stream of a broker through Spark into a sink, and the end.

    python -m tests.crash_spark.job JSON

JSON: url, http_url, source (a name), sink (module:Class), arguments (of the sink), checkpoint,
rows_a_batch. Ends with 0 when everything that was there at its start has been written. Tasks are
tried up to six times; the broker may be away.
"""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.crash_spark import kill_points
from tests.crash_spark.sinks import sink_of


def run(told: Mapping[str, Any]) -> None:
    """See the head of this module."""
    from penstock.spark import session

    settings = {
        "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2",
        "spark.driver.memory": "1g", "spark.sql.streaming.minBatchesToRetain": "10",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "500",
    }  # fmt: skip
    spark = session(master="local[2,6]", app_name="crash job", conf=settings)
    spark.sparkContext.setLogLevel("ERROR")
    kill_points.say_pids([-os.getpid()])
    reading = spark.readStream.format("penstock").options(
        url=told["url"], httpUrl=told["http_url"], subscribe=told["source"], readerId="crash",
        startingOffsets="earliest", maxOffsetsPerTrigger=str(told["rows_a_batch"]),
        minPartitions="2", timeoutMs="20000",
    )  # fmt: skip
    reading = reading.option("fetchOffset.numRetries", "600")
    reading = reading.option("fetchOffset.retryIntervalMs", "200")
    sink = sink_of(told["sink"], told["arguments"])
    query = sink.start(reading.load().select("value"), Path(told["checkpoint"]))
    query.awaitTermination()
    error = query.exception()
    if error is not None:
        raise error
    spark.stop()


if __name__ == "__main__":
    run(json.loads(sys.argv[1]))
