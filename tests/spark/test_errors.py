"""Errors that a Spark user meets, with a real Spark: found at the start, with the reason first, and
with option, given and expected. No case starts a task that writes."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pika
import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException, StreamingQueryException

from tests.helpers.live_broker import LiveBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

Options = dict[str, str]


@pytest.fixture(scope="module")
def urls(broker: LiveBroker) -> Mapping[str, str]:
    """Right and wrong addresses of a broker with a stream "s", by name."""
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        connection.channel().queue_declare("s", durable=True, arguments={"x-queue-type": "stream"})
    http = f"127.0.0.1:{broker.http_port}"
    return {
        "good": f"http://guest:guest@{http}/",
        "password": f"http://guest:wrong@{http}/",
        "vhost": f"http://guest:guest@{http}/nowhere",
        "amqp port": f"http://guest:guest@127.0.0.1:{broker.port}/",
        "amqp": broker.url,
        "amqp password": broker.url.replace("guest:guest@", "guest:wrong@"),
    }


def read(spark: "SparkSession", options: Options, state: Path) -> None:
    spark.read.format("penstock").options(**options).load().rdd.getNumPartitions()


def read_stream(spark: "SparkSession", options: Options, state: Path) -> None:
    rows = spark.readStream.format("penstock").options(**options).load()
    writing = rows.writeStream.format("noop").option("checkpointLocation", str(state))
    writing.trigger(availableNow=True).start().awaitTermination(120)


def write(spark: "SparkSession", options: Options, state: Path) -> None:
    """A task that began would fail with a division by zero instead."""
    rows = spark.sql("select cast(cast(1 / (id - id) as string) as binary) as value from range(3)")
    rows.write.format("penstock").options(**options).mode("append").save()


def write_stream(spark: "SparkSession", options: Options, state: Path) -> None:
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 3).load()
    rows = rows.selectExpr("cast(cast(1 / (value - value) as string) as binary) as value")
    writing = rows.writeStream.format("penstock").options(**options)
    writing = writing.option("checkpointLocation", str(state)).trigger(availableNow=True)
    writing.start().awaitTermination(120)


S = {"subscribe": "s"}
Q = {"queue": "s"}
CASES: list[tuple[Callable[..., None], str, Options, str]] = [
    (read, "good", {"subscribe": "nope"}, "option subscribe: given 'nope', expected what exists"),
    (read, "password", S, "option url: given \"user 'guest'\", expected name and password"),
    (read, "vhost", S, "option url: given \"vhost 'nowhere'\", expected a vhost"),
    (read, "amqp port", S, "option url: given 'http://127.0.0.1:"),
    (
        read,
        "amqp",
        S | {"httpUrl": "http://no-host.invalid:1"},
        "option httpUrl: given 'http://no-",
    ),
    (read, "good", {"subscribes": "s"}, "unknown option 'subscribes', did you mean 'subscribe'?"),
    (read, "good", S | {"startingOffsets": "latest"}, "option startingOffsets: given 'latest'"),
    (read, "good", S | {"endingOffsets": "earliest"}, "option endingOffsets: given 'earliest'"),
    (read_stream, "good", {"subscribe": "nope"}, "option subscribe: given 'nope'"),
    (read_stream, "good", S | {"endingOffsets": "latest"}, "option endingOffsets: given 'latest'"),
    (write, "good", {"queue": "nope"}, "option queue: given 'nope', expected what exists"),
    (write, "good", {"exchange": "nope"}, "option exchange: given 'nope', expected what exists"),
    (write, "password", Q, "option url: given \"user 'guest'\", expected name and password"),
    (write, "amqp port", Q, "option url: given 'http://127.0.0.1:"),
    (write, "amqp password", Q | {"delivery": "at-least-once"}, "option url: given 'amqp://guest@"),
    (write_stream, "good", {"queue": "nope"}, "option queue: given 'nope', expected what exists"),
]


@pytest.mark.parametrize(
    ("act", "url", "options", "reason"), CASES, ids=[f"{c[0].__name__}-{c[3][:30]}" for c in CASES]
)
def test_the_reason_stands_first(
    spark: "SparkSession", urls: Mapping[str, str], tmp_path: Path, act: Callable[..., None],
    url: str, options: Options, reason: str,
) -> None:  # fmt: skip
    kind = StreamingQueryException if act in (read_stream, write_stream) else PySparkException
    with pytest.raises(kind) as caught:
        act(spark, {"url": urls[url], **options}, tmp_path / "state")
    first = str(caught.value).splitlines()[0]
    assert f"penstock.errors.OptionError: {reason}" in first
    assert "wrong@" not in str(caught.value)
