"""Exactly once out of a classic queue into Parquet, whatever is killed: the executor's workers in
the middle of their tasks, then the driver between two batches; and the broker in the middle of a
batch."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from tests.helpers.live_broker import LiveBroker
from tests.spark import lake_job
from tests.spark.classic_queue import counts, fill, numbers, where

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.real, pytest.mark.timeout(900)]

ROOT = Path(__file__).parent.parent.parent
COUNT = 9000
TOTAL = sum(range(COUNT))


def test_workers_and_then_the_driver_are_killed(
    spark: "SparkSession", broker: LiveBroker, tmp_path: Path
) -> None:
    fill(broker, "killed", numbers(0, COUNT))
    lake, state, marker = tmp_path / "lake", tmp_path / "state", tmp_path / "killed"
    options = where(broker, "killed", minPartitions="2")
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "spark" / "lake_job.py"), "between",
         json.dumps(options), str(lake), str(state), str(marker)],
        capture_output=True, text=True, timeout=400, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert marker.exists()
    ready, leased = counts(broker, "killed")
    assert ready + leased <= COUNT - lake_job.ROWS_A_BATCH
    lake_job.finish(lake_job.start(spark, options, lake, state))
    assert lake_job.lake_facts(spark, lake) == (COUNT, COUNT, TOTAL, TOTAL)
    assert counts(broker, "killed") == (0, 0)


@pytest.mark.parametrize("access", ["network", "auto"])
def test_a_broker_that_is_killed_in_the_middle_of_a_batch(
    spark: "SparkSession", tmp_path: Path, access: str
) -> None:
    count = 6000
    with LiveBroker(tmp_path / "data", has_http=True) as broker:
        fill(broker, "q", numbers(0, count, size=2000))
        lake_job.over_a_kill(spark, broker, where(broker, "q", access=access), tmp_path)
        total = sum(range(count))
        assert lake_job.lake_facts(spark, tmp_path / "lake") == (count, count, total, total)
        assert counts(broker, "q") == (0, 0)
