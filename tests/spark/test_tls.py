"""Spark's source and sink, and a pipeline, with a broker over TLS."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

import penstock
from penstock.cli import pipelines
from penstock.cli.main import main
from tests.helpers.live_broker import LiveBroker
from tests.helpers.tls_files import TlsFiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

FILE = """
[pipeline]
name = "late"
state = "state"
[source]
queue = "flights"
[transform]
schema = "row INT"
sql = "SELECT * FROM source WHERE row > 7"
[[sink]]
queue = "flights.late"
"""


@pytest.fixture
def options(tls_broker: LiveBroker, tls_files: TlsFiles) -> dict[str, str]:
    """Where the broker is, in options of Spark."""
    return {
        "url": f"amqps://guest:guest@localhost:{tls_broker.tls_port}/",
        "httpUrl": f"https://localhost:{tls_broker.https_port}",
        "cacerts": str(tls_files.path("ca.pem")),
    }


def box_of(options: dict[str, str]) -> penstock.Box:
    return penstock.open(options["url"], cacerts=options["cacerts"])


@pytest.mark.parametrize("access", ["file", "network"])
def test_a_stream_is_read_in_batches_and_as_it_grows(
    spark: "SparkSession", options: dict[str, str], tmp_path: Path, access: str
) -> None:
    with box_of(options) as box:
        box.stream(f"events.{access}").append_many([b"%d" % i for i in range(1000)])
    said = {**options, "subscribe": f"events.{access}", "access": access}
    rows = spark.read.format("penstock").options(**said).load()
    total = rows.selectExpr("sum(cast(cast(value as string) as bigint))").collect()[0][0]
    assert total == sum(range(1000))
    stream = spark.readStream.format("penstock").options(**said, startingOffsets="earliest").load()
    writing = stream.writeStream.format("parquet").option("path", str(tmp_path / "lake"))
    query = writing.option("checkpointLocation", str(tmp_path / "state")).trigger(availableNow=True)
    query.start().awaitTermination()
    assert spark.read.parquet(str(tmp_path / "lake")).count() == 1000


@pytest.mark.parametrize("delivery", ["exactly-once", "idempotent", "at-least-once"])
def test_rows_become_messages(
    spark: "SparkSession", options: dict[str, str], delivery: str
) -> None:
    said = {**options, "queue": f"sink.{delivery}", "delivery": delivery}
    if delivery == "at-least-once":
        del said["httpUrl"]
    with box_of(options) as box:
        queue = box.queue(said["queue"])
        rows = spark.range(500).selectExpr("cast(id as string) AS value")
        rows.write.format("penstock").options(**said).mode("append").save()
        jobs = [queue.get(timeout=30) for _ in range(500)]
        assert {bytes(job.body) for job in jobs} == {b"%d" % i for i in range(500)}
        for job in jobs:
            job.ack()


def test_a_pipeline(
    spark: "SparkSession", options: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    @contextmanager
    def shared(*_: object) -> "Iterator[SparkSession]":
        yield spark

    monkeypatch.setattr(pipelines, "session", shared)
    monkeypatch.chdir(tmp_path)
    Path("late.toml").write_text(FILE)
    with box_of(options) as box:
        box.stream("flights").append_many([json.dumps({"row": i}).encode() for i in range(10)])
    url = f"{options['url']}?cacertfile={options['cacerts']}"
    places = ["--url", url, "--http-url", options["httpUrl"]]
    assert main(["pipeline", "run", "late.toml", *places]) == 0, capsys.readouterr()
    with box_of(options) as box:
        queue = box.queue("flights.late")
        jobs = [queue.get(timeout=30) for _ in range(2)]
        assert sorted(json.loads(job.body)["row"] for job in jobs) == [8, 9]
        for job in jobs:
            job.ack()
