"""Spark Connect, and the example of Declarative Pipelines, which runs on it: a server for both."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("grpc")  # of the extra `connect`

import penstock
from tests.cluster.conftest import amqp_url, http_url, records_of, run_job, settle
from tests.cluster.connect_server import ConnectServer
from tests.cluster.standalone import environment, spark_home
from tests.helpers.live_broker import LiveBroker

pytestmark = [pytest.mark.spark, pytest.mark.real, pytest.mark.timeout(600)]

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "declarative"
COUNT = 3000
RUN_S = 240


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    with ConnectServer(tmp_path_factory.mktemp("connect") / "server") as running:
        yield running


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    with LiveBroker(tmp_path_factory.mktemp("broker") / "data", has_http=True) as live:
        yield live


def flight(row: int) -> bytes:
    """Delays from 0 to 39: those above 15 are late."""
    fields = {"row": row, "month": row % 12 + 1, "carrier": ("B6", "UA")[row % 2]}
    return json.dumps({**fields, "origin": "JFK", "dep_delay": row % 40}).encode()


def test_a_client_of_spark_connect(
    server: ConnectServer, broker: LiveBroker, tmp_path: Path
) -> None:
    with penstock.open(amqp_url(broker)) as box:
        box.stream("events", partitions=2).append_many(
            [(b"%d" % i, {"key": f"k{i}"}) for i in range(COUNT)]
        )
        box.stream("connected")
    found = run_job(
        "connect", environment(PYSPARK_PYTHON=sys.executable), remote=server.remote,
        url=amqp_url(broker), http_url=http_url(broker), state=str(tmp_path / "state"),
    )  # fmt: skip
    assert found["rows"] == [COUNT, COUNT]
    assert "connect" in found["session"]
    assert "install penstock there" in found["ship"]
    bodies = [body for body, _ in records_of(broker, "connected")]
    assert sorted(map(int, bodies)) == list(range(COUNT))


def test_each_batch_into_tables_and_a_queue(
    server: ConnectServer, broker: LiveBroker, tmp_path: Path
) -> None:
    """Once, though it is written twice."""
    pytest.importorskip("deltalake")
    from deltalake import DeltaTable

    from penstock.spark.iceberg_sink import IcebergSink

    with penstock.open(amqp_url(broker)) as box:
        numbers = [(b"%d" % i, {"key": f"k{i}"}) for i in range(COUNT)]
        box.stream("numbers", partitions=2).append_many(numbers)
        box.stream("batches")
    run_job(
        "connect_batches", environment(PYSPARK_PYTHON=sys.executable), remote=server.remote,
        url=amqp_url(broker), http_url=http_url(broker), state=str(tmp_path / "state"),
        directory=str(tmp_path),
    )  # fmt: skip
    iceberg = IcebergSink("db.t", catalog={"warehouse": f"{tmp_path}/warehouse"})._opened()
    delta = DeltaTable(f"{tmp_path}/delta")
    for found in (delta.to_pyarrow_table(), iceberg.scan().to_arrow()):
        assert sorted(map(int, found.column("value").to_pylist())) == list(range(COUNT))
    commits = [one for one in delta.history() if "penstock.batch" in one]
    assert len(commits) == len(iceberg.snapshots()) >= COUNT / 1000
    settle(broker)
    bodies = [int(body) for body, _ in records_of(broker, "batches")]
    assert sorted(bodies) == list(range(COUNT))


def test_the_declarative_pipeline(
    server: ConnectServer, broker: LiveBroker, tmp_path: Path
) -> None:
    """Two runs of the example; the second reads only what is new."""
    home = tmp_path / "declarative"
    shutil.copytree(EXAMPLE, home)
    spec = home / "spark-pipeline.yml"
    text = spec.read_text()
    assert "file:///tmp/penstock-flights" in text
    spec.write_text(text.replace("/tmp/penstock-flights", str(tmp_path / "storage")))

    def run(first: int, last: int) -> None:
        with penstock.open(amqp_url(broker)) as box:
            box.queue("flights.late")
            box.stream("flights.events").append_many([flight(i) for i in range(first, last)])
        command = [str(spark_home() / "bin" / "spark-pipelines"), "--remote", server.remote, "run"]
        done = subprocess.run(
            command, cwd=home, capture_output=True, text=True, timeout=RUN_S,
            env=environment(PYSPARK_PYTHON=sys.executable, PENSTOCK_URL=http_url(broker)),
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        made = run_job("tables", environment(), remote=server.remote)
        assert made["flights"] == [last, last, last - 1]
        assert made["delays"] == [["B6", last // 2], ["UA", last // 2]]
        settle(broker)
        late = [row for row in range(first, last) if row % 40 > 15]
        with penstock.open(amqp_url(broker)) as box:
            jobs = box.queue("flights.late").get_many(last + 1, timeout=30)
            assert sorted(json.loads(job.body)["row"] for job in jobs) == late
            for job in jobs:
                job.ack()

    run(0, COUNT)
    if os.environ.get("PENSTOCK_CLUSTERS") == "all":
        run(COUNT, COUNT + 1000)
