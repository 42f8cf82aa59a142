"""Exactly once into Parquet, whatever is killed: a driver in the middle of a batch, the executor's
Python workers in the middle of their tasks. (A broker: test_source_broker.py.)"""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from tests.helpers.tiny_streams import write_stream
from tests.spark import lake_job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

ROOT = Path(__file__).parent.parent.parent
COUNT = 9000
TOTAL = sum(range(COUNT))


@pytest.fixture
def stream(tmp_path: Path) -> Path:
    write_stream(tmp_path / "s", [b"%d" % i for i in range(COUNT)], page_bytes=1 << 16)
    return tmp_path / "s"


def run_job(which: str, stream: Path) -> "subprocess.CompletedProcess[str]":
    beside = stream.parent
    names = [str(stream), str(beside / "lake"), str(beside / "state"), str(beside / "killed")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, str(ROOT / "tests" / "spark" / "lake_job.py"), which, *names],
        capture_output=True, text=True, env=environment, timeout=400,
    )  # fmt: skip


def test_a_driver_that_is_killed_in_the_middle_of_a_batch(
    spark: "SparkSession", stream: Path
) -> None:
    done = run_job("driver", stream)
    assert done.returncode == -signal.SIGKILL, done.stderr
    lake, state = stream.parent / "lake", stream.parent / "state"
    assert (stream.parent / "killed").exists()
    assert sorted(p.name for p in (state / "commits").glob("[0-9]*")) == ["0", "1"]
    assert (state / "offsets" / "2").exists()
    lake_job.finish(lake_job.start(spark, {"path": str(stream)}, lake, state))
    assert lake_job.lake_facts(spark, lake) == (COUNT, COUNT, TOTAL, TOTAL)


def test_workers_that_are_killed_in_the_middle_of_their_tasks(stream: Path) -> None:
    done = run_job("workers", stream)
    assert done.returncode == 0, done.stderr
    assert (stream.parent / "killed").exists()
    assert done.stdout.split()[-4:] == [str(n) for n in (COUNT, COUNT, TOTAL, TOTAL)]
