"""Dead letters become a table, are repaired there, go back to where they came from, and live."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.client import connect
from penstock.codec.properties import BasicProperties
from penstock.codec.spec import ExchangeDeclare, QueueBind, QueueDeclare
from penstock.spark.built_in_pipelines import built_in
from penstock.spark.pipeline import Pipeline, PipelineError
from penstock.spark.pipeline_file import PipelineSpec, parse_pipeline
from penstock.spark.pipeline_state import RunFacts
from tests.helpers.live_broker import LiveBroker, wait_until
from tests.spark.classic_queue import counts
from tests.spark.lake_rig import dying
from tests.spark.stand_in import event
from tests.spark.test_sink import http_url, received

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.real

LIMIT_S = 60


class Desk:
    """A broker with an exchange, a queue behind it and one for its dead; and built-in pipelines."""

    def __init__(self, spark: "SparkSession", broker: LiveBroker, name: str, at: Path) -> None:
        self.spark = spark
        self.broker = broker
        self.exchange = f"{name}.x"
        self.work = f"{name}.work"
        self.dead = f"{name}.dead"
        self.at = at
        letters: dict[str, object] = {
            "x-dead-letter-exchange": "", "x-dead-letter-routing-key": self.dead,
        }  # fmt: skip
        with connect(broker.url) as connection:
            channel = connection.channel()
            for method in (
                ExchangeDeclare(exchange=self.exchange, type="topic", durable=True),
                QueueDeclare(queue=self.dead, durable=True),
                QueueDeclare(queue=self.work, durable=True, arguments=letters),
                QueueBind(queue=self.work, exchange=self.exchange, routing_key="job.#"),
            ):
                channel.ask(method).result(LIMIT_S)

    def publish(self, bodies: list[bytes]) -> None:
        with connect(self.broker.url) as connection:
            channel = connection.channel()
            channel.select_confirms()
            futures = []
            for number, body in enumerate(bodies):
                properties = BasicProperties(
                    delivery_mode=2, message_id=f"m{number}", content_type="application/json",
                    headers={"kept": "yes"},
                )  # fmt: skip
                futures.append(channel.publish(self.exchange, f"job.{number}", body, properties))
            assert all(future is not None and future.result(LIMIT_S) for future in futures)

    def consume(self) -> list[int]:
        """A worker: takes what is in the queue, and rejects what is no JSON, which is a dead letter
        in the end. The rows it did."""
        done, rejected = [], 0
        dead = counts(self.broker, self.dead)[0]
        with connect(self.broker.url) as connection:
            channel = connection.channel()
            while (message := channel.get(self.work, no_ack=False).result(LIMIT_S)) is not None:
                try:
                    done.append(json.loads(message.body)["row"])
                except ValueError:
                    channel.reject(message.delivery_tag, requeue=False)
                    rejected += 1
                else:
                    channel.ack(message.delivery_tag)
        wait_until(lambda: counts(self.broker, self.dead)[0] == dead + rejected, "dead letters")
        return done

    def spec(self, name: str, **options: str) -> PipelineSpec:
        given = {"from" if key == "from_" else key: value for key, value in options.items()}
        places = {
            "source.url": self.broker.url, "source.http_url": http_url(self.broker),
        }  # fmt: skip
        given["state"] = f"{self.at}/state-{name}-{'-'.join(sorted(options))}"
        return parse_pipeline(name, built_in(name, given), name, places)

    def run(self, name: str, **options: str) -> RunFacts:
        return Pipeline(self.spec(name, **options), self.spark).run()


@pytest.fixture
def desk(
    spark: "SparkSession", broker: LiveBroker, tmp_path: Path, request: pytest.FixtureRequest
) -> Desk:
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.removeprefix("test_").lower())
    return Desk(spark, broker, name, tmp_path)


def test_the_dead_are_repaired_and_live_again(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Die, become a table, are repaired by SQL, go back, once though the driver dies, and live."""
    bodies = [event(row) if row % 3 else event(row).replace(b"}", b"") for row in range(30)]
    desk.publish(bodies)
    assert sorted(desk.consume()) == [row for row in range(30) if row % 3]
    table = f"{desk.at}/dead"
    facts = desk.run("dead-letters", queue=desk.dead, into=table)
    assert (facts.rows, facts.sinks) == (10, {f"parquet {table}": 10})
    rows: list[Any] = desk.spark.read.parquet(table).orderBy("original_routing_key").collect()
    assert {row["value"] for row in rows} == {body for body in bodies if b"}" not in body}
    first = next(row for row in rows if row["message_id"] == "m0")
    assert (first["reason"], first["count"], first["queue"]) == ("rejected", 1, desk.work)
    assert (first["exchange"], first["routing_keys"]) == (desk.exchange, ["job.0"])
    assert (first["original_exchange"], first["original_routing_key"]) == (desk.exchange, "job.0")
    assert (first["first_queue"], first["dead_queue"]) == (desk.work, desk.dead)
    assert first["first_death"] is not None
    assert first["last_death"] >= first["first_death"]
    assert first["headers"]["kept"] == "yes"

    repair = "SELECT * EXCEPT (value), concat(cast(value AS STRING), '}') AS value FROM source"
    back = {"from_": table, "back": "origin", "sql": repair}
    with monkeypatch.context() as patched:
        dying(patched, Pipeline, "_batch", before=False, call=1)
        with pytest.raises(PipelineError):
            desk.run("replay", **back)
    assert desk.run("replay", **back).rows == 10
    again = received(desk.broker, desk.work)
    assert sorted(message.routing_key for message in again) == sorted(
        f"job.{row}" for row in range(0, 30, 3)
    )
    assert all(message.exchange == desk.exchange for message in again)
    assert sorted(message.body for message in again) == sorted(
        event(row) for row in range(0, 30, 3)
    )
    (one,) = (message for message in again if message.properties.message_id == "m0")
    assert one.headers == {"kept": "yes"}
    assert one.properties.content_type == "application/json"


def test_they_go_straight_back_into_their_queue_and_are_consumed(desk: Desk) -> None:
    desk.publish([b"{", event(1)])
    assert desk.consume() == [1]
    table = f"{desk.at}/dead"
    desk.run("dead-letters", queue=desk.dead, into=table, by="none")
    repair = "SELECT * EXCEPT (value), '{\"row\": 0}' AS value FROM source"
    facts = desk.run("replay", from_=table, back="queue", sql=repair)
    assert facts.rows == 1
    received(desk.broker, desk.dead)  # settles
    assert desk.consume() == [0]
    assert desk.run("dead-letters", queue=desk.dead, into=table, by="none").rows == 0


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_stream_of_the_dead_of_a_pipeline_becomes_a_table(desk: Desk, kind: str) -> None:
    pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}[kind])
    with connect(desk.broker.url) as connection:
        channel = connection.channel()
        arguments: dict[str, object] = {"x-queue-type": "stream"}
        name = f"{desk.dead}.stream"
        channel.ask(QueueDeclare(queue=name, durable=True, arguments=arguments)).result(LIMIT_S)
        channel.select_confirms()
        headers: dict[str, object] = {
            "reason": "it is empty", "stream": "events", "partition": "0", "offset": "7",
            "pipeline": "flights",
        }  # fmt: skip
        told = channel.publish("", name, b"bad", BasicProperties(headers=headers))
        plain = channel.publish("", name, b"who knows", BasicProperties())
        for future in (told, plain):
            assert future is not None
            assert future.result(LIMIT_S)
    into, options = f"{desk.at}/dead", {}
    if kind == "iceberg":
        into, options = "grave.dead", {"warehouse": f"{desk.at}/warehouse"}
    facts = desk.run("dead-letters", queue=name, into=into, format=kind, **options)
    assert facts.rows == 2
    if kind == "delta":
        from deltalake import DeltaTable

        rows = DeltaTable(into).to_pyarrow_table().to_pylist()
    else:
        from penstock.spark.iceberg_sink import IcebergSink

        rows = IcebergSink(into, catalog=options)._opened().scan().to_arrow().to_pylist()
    (bad,) = (row for row in rows if row["value"] == b"bad")
    assert (bad["reason"], bad["queue"], bad["pipeline"]) == ("it is empty", "events", "flights")
    assert (bad["original_exchange"], bad["original_routing_key"]) == ("", "events")
    (other,) = (row for row in rows if row["value"] != b"bad")
    assert (other["reason"], other["dead_queue"]) == (None, name)
    assert not other["deaths"]  # pyiceberg reads null lists of structs as empty ones
