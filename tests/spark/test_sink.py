"""The sink, in Spark, on a live broker: what arrives, and what is refused with which words."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from penstock.client import connect
from penstock.codec.spec import ExchangeDeclare, QueueBind, QueueDeclare
from tests.helpers.live_broker import LiveBroker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.client import Received

pytestmark = pytest.mark.real


@pytest.fixture
def queue(broker: LiveBroker, request: pytest.FixtureRequest) -> str:
    """An empty durable queue of the test's own."""
    name = f"sink.{request.node.name}"
    with connect(broker.url) as connection:
        connection.channel().ask(QueueDeclare(queue=name, durable=True)).result(30)
    return name


def received(broker: LiveBroker, queue: str) -> "list[Received]":
    """All that is in a queue."""
    found = []
    with connect(broker.url) as connection:
        channel = connection.channel()
        while (message := channel.get(queue, no_ack=True).result(30)) is not None:
            found.append(message)
    return found


def written(rows: "DataFrame", broker: LiveBroker, mode: str = "append", **options: str) -> None:
    writer = rows.write.format("penstock").option("url", broker.url).options(**options)
    writer.mode(mode).save()


def refusal(rows: "DataFrame", broker: LiveBroker, mode: str = "append", **options: str) -> str:
    with pytest.raises(PySparkException) as caught:
        written(rows, broker, mode, **options)
    return str(caught.value)


def test_rows_become_messages_of_a_queue(
    spark: "SparkSession", broker: LiveBroker, queue: str
) -> None:
    rows = spark.range(5000).selectExpr("concat('m', id) AS value", "id AS other")
    written(rows, broker, queue=queue, contentType="text/plain")
    messages = received(broker, queue)
    assert {message.body for message in messages} == {f"m{i}".encode() for i in range(5000)}
    assert messages[0].properties.content_type == "text/plain"
    assert messages[0].properties.delivery_mode == 2


def test_columns_become_properties(spark: "SparkSession", broker: LiveBroker, queue: str) -> None:
    exchange = f"x.{queue}"
    with connect(broker.url) as connection:
        channel = connection.channel()
        channel.ask(ExchangeDeclare(exchange=exchange, type="topic", durable=True)).result(30)
        channel.ask(QueueBind(queue=queue, exchange=exchange, routing_key="a.*")).result(30)
    rows = spark.sql(
        "SELECT x'00ff' AS value, 'a.b' AS routing_key, 'id-1' AS message_id, "
        "map('reason', 'none', 'left', null) AS headers"
    )
    written(rows, broker, exchange=exchange, persistent="false")
    (message,) = received(broker, queue)
    assert (message.body, message.routing_key, message.exchange) == (b"\x00\xff", "a.b", exchange)
    assert message.properties.message_id == "id-1"
    assert message.headers == {"reason": "none", "left": None}
    assert message.properties.delivery_mode == 1
    told = refusal(rows.withColumn("routing_key", rows.message_id), broker, exchange=exchange)
    assert "no queue got the row with routing key 'id-1'" in told
    written(rows.drop("routing_key"), broker, exchange=exchange, routingKey="a.all")
    written(rows.drop("routing_key"), broker, exchange=exchange, mandatory="false")
    assert [message.routing_key for message in received(broker, queue)] == ["a.all"]


def test_a_stream_is_written_too(
    spark: "SparkSession", broker: LiveBroker, queue: str, tmp_path: Path
) -> None:
    spark.range(100).selectExpr("cast(id AS string) AS value").write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema("value STRING").parquet(str(tmp_path / "in"))
    writer = stream.writeStream.format("penstock").option("url", broker.url)
    writer = writer.option("queue", queue).option("checkpointLocation", str(tmp_path / "state"))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    assert query.exception() is None
    assert sorted(int(message.body) for message in received(broker, queue)) == list(range(100))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"queue": "nowhere"}, "publishing to queue 'nowhere' at amqp://guest@127.0.0.1:"),
        ({"queue": "nowhere"}, "there is no such queue: declare it first"),
        ({"exchange": "nowhere"}, "NOT_FOUND - no exchange 'nowhere'"),
        ({"queue": "q", "delivery": "exactly-once"}, "exactly once into a broker is not available"),
        ({"queue": "q", "ulr": "x"}, "unknown option 'ulr', did you mean 'url'?"),
        ({}, "either queue or exchange"),
        ({"queue": "q", "url": "amqp://127.0.0.1:1", "timeout": "0.1"}, "no connection to amqp://"),
    ],
)
def test_what_cannot_be_written_fails_the_job(
    spark: "SparkSession", broker: LiveBroker, options: dict[str, str], told: str
) -> None:
    rows = spark.sql("SELECT 'a' AS value")
    assert told in refusal(rows, broker, **options)


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ("SELECT 1 AS other", "option columns: given 'other', expected value binary|string"),
        ("SELECT 1 AS value", "option column value: given 'int'"),
        ("SELECT 'a' AS value, 1 AS routing_key", "option column routing_key: given 'int'"),
        ("SELECT 'a' AS value, 'b' AS headers", "option column headers: given 'string'"),
        ("SELECT cast(null AS string) AS value", "the column has a null"),
    ],
)
def test_columns_that_do_not_fit_are_told(
    spark: "SparkSession", broker: LiveBroker, queue: str, rows: str, told: str
) -> None:
    assert told in refusal(spark.sql(rows), broker, queue=queue)


@pytest.mark.parametrize("mode", ["overwrite", "errorifexists", "ignore"])
def test_only_append_is_a_mode(
    spark: "SparkSession", broker: LiveBroker, queue: str, mode: str
) -> None:
    assert "append" in refusal(spark.sql("SELECT 'a' AS value"), broker, mode, queue=queue).lower()


def test_json_of_a_row_is_a_message(spark: "SparkSession", broker: LiveBroker, queue: str) -> None:
    rows = spark.sql("SELECT to_json(struct(1 AS a, 'x' AS b)) AS value")
    written(rows, broker, queue=queue)
    (message,) = received(broker, queue)
    found: Any = json.loads(message.body)
    assert found == {"a": 1, "b": "x"}
