"""A batch that is committed is visible: a reader that starts right after a write sees all rows."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import penstock
from penstock.client import connect
from penstock.codec.spec import QueueDeclare
from tests.helpers.live_broker import LiveBroker
from tests.spark.test_sink import http_url

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.real

KINDS = ("stream", "partitions", "queue")
SIZES = (10, 40_000)  # in slices, and with pages that a stream adopts
TIMES = 4


def made(broker: LiveBroker, kind: str, name: str) -> None:
    with penstock.open(broker.url) as box:
        if kind == "queue":
            box.queue(name)
        else:
            box.stream(name, partitions=3 if kind == "partitions" else 1)


def there(spark: "SparkSession", broker: LiveBroker, kind: str, name: str) -> int:
    """How many rows a new reader sees, asked once."""
    if kind == "queue":
        with connect(broker.url) as connection:
            declare = QueueDeclare(queue=name, passive=True)
            return int(connection.channel().ask(declare).result(120).message_count)
    reader = spark.read.format("penstock").options(url=broker.url, httpUrl=http_url(broker))
    return int(reader.option("subscribe", name).load().count())


def rows(frame: "DataFrame") -> "DataFrame":
    return frame.selectExpr(
        "cast(rpad(id, 256, '.') as binary) as value", "concat('k', id % 10) as routing_key"
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", SIZES)
def test_a_reader_right_after_a_batch_write(
    spark: "SparkSession", broker: LiveBroker, kind: str, size: int
) -> None:
    name = f"visible.{kind}.{size}"
    made(broker, kind, name)
    for n in range(1, TIMES + 1):
        writer = rows(spark.range(0, size, 1, 2)).write.format("penstock")
        writer = writer.options(url=broker.url, httpUrl=http_url(broker), queue=name)
        writer.mode("append").save()
        assert there(spark, broker, kind, name) == n * size


@pytest.mark.parametrize("kind", KINDS)
def test_a_reader_right_after_the_end_of_a_query(
    spark: "SparkSession", broker: LiveBroker, tmp_path: Path, kind: str
) -> None:
    name = f"visible.{kind}"
    made(broker, kind, name)
    for n in range(1, TIMES + 1):
        spark.range(0, 1000, 1, 2).write.mode("append").parquet(str(tmp_path / "in"))
        source = spark.readStream.schema("id LONG").parquet(str(tmp_path / "in"))
        writer = rows(source).writeStream.format("penstock")
        writer = writer.options(url=broker.url, httpUrl=http_url(broker), queue=name)
        writer = writer.option("checkpointLocation", str(tmp_path / "state"))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(240)
        assert there(spark, broker, kind, name) == n * 1000
