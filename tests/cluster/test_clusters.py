"""On a standalone cluster whose workers share no disk with the broker, the driver or each other.

Two executors read a partitioned stream in parallel, over HTTP, and write exactly once into another,
one of them killed in the middle of a batch; then the driver does its last batch again. Both ways of
the connector to the executors: installed there, and sent to Pythons that have none.
"""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.spark.spark_session import NAME, write_py_files
from tests.cluster.conftest import amqp_url, http_url, records_of, run_job
from tests.cluster.standalone import (
    StandaloneCluster,
    commands_in,
    environment,
    python_without_penstock,
)
from tests.helpers.live_broker import LiveBroker
from tests.helpers.quick_spark import quick_python

pytestmark = [pytest.mark.spark, pytest.mark.real, pytest.mark.timeout(600)]

COUNT = 40_000
PAD = 480
# (way, batches, the task whose executor is killed). The third is much like the second: only done
# if it is asked for.
WAYS = [("installed", 2, "1.1.0"), ("py-files", 1, "")]
if os.environ.get("PENSTOCK_CLUSTERS") == "all":
    WAYS.append(("ship", 1, "0.1.0"))
PLAIN = "plain-python"  # what a driver and its executors each have of their own


def body(number: int) -> bytes:
    return b"%d " % number + b"x" * PAD


@dataclass
class World:
    """A broker with a stream, and a cluster that sees nothing of its disk."""

    broker: LiveBroker
    cluster: StandaloneCluster
    directory: Path

    def variables(self, way: str) -> dict[str, str]:
        """Of a driver. The executors' Python has penstock only if it is installed there."""
        path = f"{self.directory / 'driver.commands'}:{os.environ['PATH']}"
        python = quick_python(self.directory / "python") if way == "installed" else PLAIN
        return environment(PATH=path, PYSPARK_PYTHON=str(python), PENSTOCK_CHECK="0")

    def run(self, way: str, batches: int, victim: str) -> dict[str, Any]:
        """Reads, and writes `out.<way>`, while the executor of the task `victim` is killed."""
        with penstock.open(amqp_url(self.broker)) as box:
            box.stream(f"out.{way}")
        zip_path = self.cluster.root / NAME  # seen by the driver alone
        write_py_files(str(zip_path))
        return run_job(
            "cluster", self.variables(way), master=self.cluster.url, way=way,
            zip_path=str(zip_path), url=amqp_url(self.broker), http_url=http_url(self.broker),
            access="auto" if self.cluster.is_isolated else "network",
            data=str(self.broker.data), out=f"out.{way}",
            state=str(self.cluster.root / f"state.{way}"), batch_rows=COUNT // batches,
            victim=victim,
        )  # fmt: skip


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("cluster")
    hidden = directory / "hidden"
    hidden.mkdir()
    bare = python_without_penstock(directory / "bare")
    missing = subprocess.run([bare, "-c", "import pyspark, pyarrow; import penstock"],
                             capture_output=True, text=True)  # fmt: skip
    assert "No module named 'penstock'" in missing.stderr
    commands_in(directory / "driver.commands", {PLAIN: sys.executable})
    workers = commands_in(directory / "worker.commands", {PLAIN: str(bare)})
    broker = LiveBroker(hidden / "broker" / "data", has_http=True)
    (hidden / "broker").mkdir()
    with broker, StandaloneCluster(hidden, workers) as cluster:
        with penstock.open(amqp_url(broker)) as box:
            events = box.stream("events", partitions=2, page_bytes="1 MiB")
            for at in range(0, COUNT, 1000):
                bodies = [(body(at + i), {"key": f"k{i}"}) for i in range(1000)]
                events.append_many(bodies, durability="os")
        yield World(broker, cluster, directory)


@pytest.mark.parametrize(("way", "batches", "victim"), WAYS)
def test_two_executors_without_a_shared_disk(
    world: World, way: str, batches: int, victim: str
) -> None:
    found = world.run(way, batches, victim)

    tasks = found["tasks"]
    assert len(tasks) >= 4
    assert sum(task["rows"] for task in tasks) == COUNT
    assert {task["place"] for task in tasks if task["rows"]} == {"worker0", "worker1"}
    is_zip = [f"{NAME}/penstock/" in task["package"] for task in tasks]
    assert is_zip == [way != "installed"] * len(tasks)
    if world.cluster.is_isolated:
        assert not any(task["sees"] for task in tasks)

    assert found["batches"] == batches
    records = records_of(world.broker, f"out.{way}")
    assert Counter(one for one, _ in records) == Counter(body(i) for i in range(COUNT))
    keys = {key for _, key in records}
    assert len({key.rpartition(".")[0] for key in keys}) >= 2 * batches  # two tasks or more of each
    if victim:
        assert victim not in keys  # what was staged by the executor that was killed
        assert f"{victim[:-1]}1" in keys
        if world.cluster.is_isolated:
            assert "does not exist; access=auto would ask" in found["file"]
