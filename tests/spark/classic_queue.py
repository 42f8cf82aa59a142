"""What the tests of classic queues as sources do with one: fill it, read it, look at it."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.errors import StreamingQueryException

import penstock
from penstock.spark.http_link import LEASES, HttpLink
from penstock.spark.options import Place
from tests.helpers.live_broker import LiveBroker
from tests.spark import lake_job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

READER = "job"


def where(broker: LiveBroker, queue: str, **options: str) -> dict[str, str]:
    """Options that name a queue of the broker, and READER."""
    http_url = f"http://127.0.0.1:{broker.http_port}"
    return {
        "url": broker.url, "httpUrl": http_url, "subscribe": queue, "readerId": READER, **options,
    }  # fmt: skip


def numbers(first: int, last: int, size: int = 0) -> list[bytes]:
    return [(b"%d" % i).ljust(size) for i in range(first, last)]


def fill(broker: LiveBroker, queue: str, bodies: list[bytes], **options: Any) -> None:
    """Persistent messages, into a durable queue that is declared if it is not there."""
    with penstock.open(broker.url) as box:
        made = box.queue(queue, **options)
        for at in range(0, len(bodies), 1000):
            made.put_many(bodies[at : at + 1000])


def counts(broker: LiveBroker, queue: str) -> tuple[int, int]:
    """(ready, unacknowledged)"""
    row = broker.control("describe_queue", "/", queue=queue)
    return row["ready"], row["unacknowledged"]


def ask(
    broker: LiveBroker, method: str, queue: str, body: object = None, reader: str = READER
) -> Any:
    """A question of HTTP about a lease."""
    link = HttpLink(Place(f"http://127.0.0.1:{broker.http_port}"), 30.0)
    try:
        return link.json(method, (queue, reader), None, body, LEASES)
    finally:
        link.close()


class Seen:
    """What foreachBatch saw: the numbers in the values of each batch, in order of offsets."""

    def __init__(self, then: Callable[[int], object] | None = None) -> None:
        self.batches: list[list[int]] = []
        self._then = then

    def __call__(self, rows: "DataFrame", batch: int) -> None:
        found = rows.select("queue", "offset", "value").collect()
        found.sort(key=lambda row: (row.queue, row.offset))
        self.batches.append([int(row.value) for row in found])
        if self._then is not None:
            self._then(batch)

    @property
    def numbers(self) -> list[int]:
        return [n for batch in self.batches for n in batch]


def started(
    spark: "SparkSession", options: dict[str, str], state: Path, sink: Any,
    source: str = "penstock",
) -> "StreamingQuery":  # fmt: skip
    """A run with AvailableNow, begun."""
    rows = spark.readStream.format(source).options(**options).load()
    writing = rows.writeStream.foreachBatch(sink).option("checkpointLocation", str(state))
    return writing.trigger(availableNow=True).start()


def run(
    spark: "SparkSession", options: dict[str, str], state: Path, sink: Any,
    source: str = "penstock",
) -> None:  # fmt: skip
    """The same, to its good end."""
    lake_job.finish(started(spark, options, state, sink, source))


def failure(spark: "SparkSession", options: dict[str, str], state: Path, sink: Any) -> str:
    """The same, to its bad end: what it says."""
    query = started(spark, options, state, sink)
    with suppress(StreamingQueryException):
        assert query.awaitTermination(240), "the query is not done"
    assert query.exception() is not None, "it ended well"
    return str(query.exception())
