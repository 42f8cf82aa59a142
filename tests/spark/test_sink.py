"""The sink, in Spark, on a live broker: what arrives, and what is refused with which words."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

import penstock
from penstock.client import connect
from penstock.codec.spec import ExchangeDeclare, QueueBind, QueueDeclare
from tests.helpers.live_broker import LiveBroker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.client import Received

pytestmark = pytest.mark.real

DELIVERIES = ("exactly-once", "idempotent", "at-least-once")
each_delivery = pytest.mark.parametrize("delivery", DELIVERIES)
AMQP = {"delivery": "at-least-once"}


@pytest.fixture
def queue(broker: LiveBroker, request: pytest.FixtureRequest) -> str:
    """An empty durable queue of the test's own."""
    name = f"sink.{request.node.name}"
    with connect(broker.url) as connection:
        connection.channel().ask(QueueDeclare(queue=name, durable=True)).result(120)
    return name


@pytest.fixture
def exchange(broker: LiveBroker, queue: str) -> str:
    """An exchange that routes a.* to that queue."""
    name = f"x.{queue}"
    with connect(broker.url) as connection:
        channel = connection.channel()
        channel.ask(ExchangeDeclare(exchange=name, type="topic", durable=True)).result(120)
        channel.ask(QueueBind(queue=queue, exchange=name, routing_key="a.*")).result(120)
    return name


def http_url(broker: LiveBroker) -> str:
    return f"http://127.0.0.1:{broker.http_port}"


def received(broker: LiveBroker, queue: str) -> "list[Received]":
    """All that is in a queue."""
    found = []
    with connect(broker.url) as connection:
        channel = connection.channel()
        while (message := channel.get(queue, no_ack=True).result(120)) is not None:
            found.append(message)
    return found


def written(rows: "DataFrame", broker: LiveBroker, mode: str = "append", **options: str) -> None:
    said = {"url": broker.url, **options}
    if options.get("delivery") != "at-least-once" and "url" not in options:
        said["httpUrl"] = http_url(broker)
    rows.write.format("penstock").options(**said).mode(mode).save()


def refusal(rows: "DataFrame", broker: LiveBroker, mode: str = "append", **options: str) -> str:
    with pytest.raises(PySparkException) as caught:
        written(rows, broker, mode, **options)
    return str(caught.value)


@each_delivery
def test_rows_become_messages_of_a_queue(
    spark: "SparkSession", broker: LiveBroker, queue: str, delivery: str
) -> None:
    rows = spark.range(5000).selectExpr("concat('m', id) AS value", "id AS other")
    written(rows, broker, queue=queue, contentType="text/plain", delivery=delivery)
    messages = received(broker, queue)
    bodies = [message.body for message in messages]
    assert sorted(bodies) == sorted(f"m{i}".encode() for i in range(5000))
    if delivery == "exactly-once":
        assert bodies == [f"m{i}".encode() for i in range(5000)]
    assert {(message.exchange, message.routing_key) for message in messages} == {("", queue)}
    assert messages[0].properties.content_type == "text/plain"
    assert messages[0].properties.delivery_mode == 2


@each_delivery
def test_a_variant_becomes_json(
    spark: "SparkSession", broker: LiveBroker, queue: str, delivery: str
) -> None:
    rows = spark.sql("""SELECT parse_json('{"a": [1, 2.5, null], "b": "é"}') AS value""")
    written(rows, broker, queue=queue, delivery=delivery)
    (message,) = received(broker, queue)
    assert json.loads(message.body) == {"a": [1, 2.5, None], "b": "é"}


def test_rows_become_records_of_a_stream(spark: "SparkSession", broker: LiveBroker) -> None:
    """Large parts are adopted as they are staged, by partitions too, and small ones appended."""
    for name, count, partitions in (
        ("s.small", 500, 1), ("s.large", 40_000, 1), ("s.4", 500, 4), ("s.2.large", 70_000, 2),
    ):  # fmt: skip
        with penstock.open(broker.url) as box:
            box.stream(name, partitions=partitions).append(b"first", key="k")
        rows = spark.range(0, count, 1, 2).selectExpr(
            "cast(rpad(id, 256, '.') as binary) as value", "concat('k', id % 10) as routing_key"
        )
        written(rows, broker, queue=name)
        with penstock.open(broker.url) as box:
            stream = box.stream(name, partitions=partitions)
            stream.append(b"last", key="k")
            found = list(stream.read())
        numbers = [int(r.body.split(b".")[0]) for r in found if r.body not in (b"first", b"last")]
        assert len(found) == count + 2
        assert sorted(numbers) == list(range(count))
        for key in {r.key for r in found if r.key != "k"}:
            of_key = [int(r.body.split(b".")[0]) for r in found if r.key == key]
            assert of_key == sorted(of_key)
        if partitions == 1:
            assert [found[0].body, found[-1].body] == [b"first", b"last"]
            assert numbers == list(range(count))
            assert [r.key for r in found[1:4]] == ["k0", "k1", "k2"]
        assert len({(r.partition, r.key) for r in found if r.key != "k"}) == 10
        assert [r.time for r in found] == sorted(r.time for r in found)
        back = spark.read.format("penstock").options(
            url=broker.url, httpUrl=http_url(broker), subscribe=name
        )
        assert back.load().where("value != 'first' and value != 'last'").count() == count


@each_delivery
def test_columns_become_properties(
    spark: "SparkSession", broker: LiveBroker, queue: str, exchange: str, delivery: str
) -> None:
    rows = spark.sql(
        "SELECT x'00ff' AS value, 'a.b' AS routing_key, 'id-1' AS message_id, "
        "map('reason', 'none', 'left', null) AS headers, "
        "named_struct('priority', 3, 'type', 'late') AS properties"
    )
    written(rows, broker, exchange=exchange, persistent="false", delivery=delivery)
    (message,) = received(broker, queue)
    assert (message.body, message.routing_key, message.exchange) == (b"\x00\xff", "a.b", exchange)
    assert message.properties.message_id == "id-1"
    assert message.headers == {"reason": "none", "left": None}
    assert (message.properties.priority, message.properties.type) == (3, "late")
    assert message.properties.delivery_mode == 1


@each_delivery
def test_a_row_that_no_queue_gets(
    spark: "SparkSession", broker: LiveBroker, queue: str, exchange: str, delivery: str
) -> None:
    rows = spark.sql("SELECT 'a' AS value, 'nobody' AS routing_key")
    told = refusal(rows, broker, exchange=exchange, delivery=delivery)
    assert "nobody" in told
    written(rows, broker, exchange=exchange, mandatory="false", delivery=delivery)
    plain = rows.drop("routing_key")
    written(plain, broker, exchange=exchange, routingKey="a.all", delivery=delivery)
    assert [message.routing_key for message in received(broker, queue)] == ["a.all"]


@each_delivery
def test_a_column_may_name_exchanges(
    spark: "SparkSession", broker: LiveBroker, queue: str, exchange: str, delivery: str
) -> None:
    rows = spark.sql(
        f"SELECT 'a' AS value, '{exchange}' AS exchange, 'a.b' AS routing_key "
        f"UNION ALL SELECT 'b', '', '{queue}'"
    )
    written(rows, broker, delivery=delivery)
    found = {(m.body, m.exchange, m.routing_key) for m in received(broker, queue)}
    assert found == {(b"a", exchange, "a.b"), (b"b", "", queue)}


@each_delivery
def test_a_stream_is_written_too(
    spark: "SparkSession", broker: LiveBroker, queue: str, tmp_path: Path, delivery: str
) -> None:
    spark.range(100).selectExpr("cast(id AS string) AS value").write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema("value STRING").parquet(str(tmp_path / "in"))
    writer = stream.writeStream.format("penstock").option("url", broker.url)
    if delivery != "at-least-once":
        writer = writer.option("httpUrl", http_url(broker))
    writer = writer.options(queue=queue, delivery=delivery)
    writer = writer.option("checkpointLocation", str(tmp_path / "state"))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(240)
    assert query.exception() is None
    assert sorted(int(message.body) for message in received(broker, queue)) == list(range(100))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"queue": "nowhere", **AMQP}, "NOT_FOUND - no queue 'nowhere'"),
        ({"exchange": "nowhere", **AMQP}, "NOT_FOUND - no exchange 'nowhere'"),
        ({"queue": "nowhere"}, "no queue 'nowhere'"),
        ({"exchange": "nowhere"}, "no exchange 'nowhere'"),
        ({"queue": "q", "ulr": "x"}, "unknown option 'ulr', did you mean 'url'?"),
        ({}, "either queue or exchange"),
        ({"queue": "q", "url": "amqp://127.0.0.1:1", "timeout": "0.1", **AMQP}, "no connection"),
        ({"queue": "q", "url": "http://127.0.0.1:1", "timeout": "0.1"}, "refused; tried"),
        ({"queue": "q", "url": "http://guest:no@127.0.0.1:{port}"}, "wrong name or password"),
    ],
)  # fmt: skip
def test_what_cannot_be_written_fails_the_job(
    spark: "SparkSession", broker: LiveBroker, options: dict[str, str], told: str
) -> None:
    rows = spark.sql("SELECT 'a' AS value")
    said = {name: text.format(port=broker.http_port) for name, text in options.items()}
    answer = refusal(rows, broker, **said)
    assert told in answer
    assert "guest:no" not in answer


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        (
            "SELECT 1 AS other",
            "option columns: given 'other', expected value binary|string|variant",
        ),
        ("SELECT 1 AS value", "option column value: given 'int'"),
        ("SELECT 'a' AS value, 1 AS routing_key", "option column routing_key: given 'int'"),
        ("SELECT 'a' AS value, 'b' AS headers", "option column headers: given 'string'"),
        ("SELECT cast(null AS string) AS value", "a body in every row (row 0 of its batch)"),
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


def test_what_was_read_can_be_written(
    spark: "SparkSession", broker: LiveBroker, queue: str
) -> None:
    with penstock.open(broker.url) as box:
        stream = box.stream("s.again")
        stream.append(b"a", key="k", headers={"n": 1})
        stream.append(b"b")
    where = {"url": broker.url, "httpUrl": http_url(broker)}
    rows = spark.read.format("penstock").options(
        subscribe="s.again", includeHeaders="true", includeProperties="true", **where
    )
    written(rows.load(), broker, queue=queue)
    first, second = received(broker, queue)
    assert (first.body, first.routing_key, first.headers) == (b"a", "k", {"n": "1"})
    assert (second.body, second.properties.headers or {}) == (b"b", {})


def test_json_of_a_row_is_a_message(spark: "SparkSession", broker: LiveBroker, queue: str) -> None:
    rows = spark.sql("SELECT to_json(struct(1 AS a, 'x' AS b)) AS value")
    written(rows, broker, queue=queue)
    (message,) = received(broker, queue)
    found: Any = json.loads(message.body)
    assert found == {"a": 1, "b": "x"}
