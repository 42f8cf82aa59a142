"""`penstock pipeline run` as a process: killed in the middle, stopped by a signal, to its end."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.client import connect
from penstock.codec.spec import QueueDeclare
from tests.helpers.live_broker import LiveBroker, children_of, is_gone, wait_until
from tests.spark.stand_in import event

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.real

ROWS = 200
FILE = """
[source]
queue = "process.events"
records_max = 20
[transform]
schema = "row INT, month INT, carrier STRING, delay INT"
python = "hold:held"
[[sink]]
parquet = "lake"
partition_by = ["carrier"]
[spark]
"spark.ui.enabled" = false
"spark.driver.memory" = "1g"
"""
# Each batch waits here while that of the number in the file `hold`, or a later one, is committed.
HOLD = """
import os
import time
from pathlib import Path

COMMITS = "state/job/checkpoint/commits"

def committed():
    names = os.listdir(COMMITS) if os.path.isdir(COMMITS) else []
    return max((int(name) for name in names if name.isdecimal()), default=-1)

def held(rows):
    while committed() >= int(Path("hold").read_text()):
        time.sleep(0.02)
    return rows
"""
LIMIT_S = 400.0


class Runs:
    """Runs of one pipeline, each a process."""

    def __init__(self, directory: Path, broker: LiveBroker) -> None:
        self.directory = directory
        self.broker = broker
        (directory / "job.toml").write_text(FILE)
        (directory / "hold.py").write_text(HOLD)

    def hold_after(self, batch: int) -> None:
        """None later than the next one is committed."""
        new = self.directory / "hold.new"
        new.write_text(str(batch))
        new.rename(self.directory / "hold")

    def start(self) -> "subprocess.Popen[str]":
        places = ["--url", self.broker.url, "--http-url"]
        places.append(f"http://127.0.0.1:{self.broker.http_port}")
        return subprocess.Popen(
            [sys.executable, "-m", "penstock", "pipeline", "run", "job.toml", *places],
            cwd=self.directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True, env={**os.environ, "PENSTOCK_CHECK": "0"},
        )  # fmt: skip

    @property
    def committed(self) -> int:
        """The last batch that Spark has committed; -1 without one."""
        directory = self.directory / "state" / "job" / "checkpoint" / "commits"
        names = os.listdir(directory) if directory.is_dir() else []
        return max((int(name) for name in names if name.isdecimal()), default=-1)

    @property
    def facts(self) -> dict[str, Any]:
        text = (self.directory / "state" / "job" / "pipeline.json").read_text()
        run: dict[str, Any] = json.loads(text)["run"]
        return run


@pytest.mark.timeout(1800)
def test_a_run_that_is_killed_one_that_is_stopped_and_one_to_the_end(
    spark: "SparkSession", broker: LiveBroker, tmp_path: Path
) -> None:
    with connect(broker.url) as connection:
        channel = connection.channel()
        arguments: dict[str, object] = {"x-queue-type": "stream"}
        declare = QueueDeclare(queue="process.events", durable=True, arguments=arguments)
        channel.ask(declare).result(120)
        channel.select_confirms()
        futures = [channel.publish("", "process.events", event(row)) for row in range(ROWS)]
        assert all(future is not None and future.result(120) for future in futures)
    runs = Runs(tmp_path, broker)

    runs.hold_after(3)
    killed = runs.start()
    wait_until(lambda: runs.committed >= 1 or killed.poll() is not None, "a batch", LIMIT_S)
    assert killed.poll() is None, killed.communicate()[0]
    below = children_of(killed.pid)
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    for pid in below:  # its JVM notices, and ends
        wait_until(lambda pid=pid: is_gone(pid), f"the end of {pid}", LIMIT_S)  # type: ignore[misc]
    before = runs.committed
    assert 1 <= before <= 3

    runs.hold_after(before + 3)
    stopped = runs.start()
    wait_until(lambda: runs.committed > before or stopped.poll() is not None, "more", LIMIT_S)
    assert stopped.poll() is None, stopped.communicate()[0]
    stopped.terminate()
    assert stopped.stdout is not None
    told = ""
    while "stopping after this batch" not in told:
        line = stopped.stdout.readline()
        assert line, told
        told += line
    runs.hold_after(ROWS)
    told += stopped.communicate(timeout=LIMIT_S)[0]
    assert stopped.returncode == 0, told
    assert runs.facts["outcome"] == "stopped"
    assert before < runs.committed <= before + 4

    last = runs.start()
    text = last.communicate(timeout=LIMIT_S)[0]
    assert last.returncode == 0, text
    assert runs.facts["outcome"] == "done"
    rows = [row["row"] for row in spark.read.parquet(str(tmp_path / "lake")).collect()]
    assert sorted(rows) == list(range(ROWS))
