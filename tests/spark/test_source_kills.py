"""Exactly once into Parquet, whatever is killed: the executor's Python workers in the middle of
their tasks, then the driver in the middle of the next batch. (A broker: test_source_broker.py.)"""

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


def test_workers_and_then_a_driver_that_are_killed_in_the_middle(
    spark: "SparkSession", stream: Path
) -> None:
    lake, state, marker = (stream.parent / name for name in ("lake", "state", "killed"))
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "spark" / "lake_job.py"), "within",
         str(stream), str(lake), str(state), str(marker)],
        capture_output=True, text=True, timeout=400, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert marker.exists(), "no worker was killed"
    assert marker.with_name("killed.driver").exists(), "the driver was killed elsewhere"
    # The batch whose workers were killed is done; the one whose driver was killed is only planned.
    assert sorted(p.name for p in (state / "commits").glob("[0-9]*")) == ["0", "1", "2"]
    assert (state / "offsets" / "3").exists()
    lake_job.finish(lake_job.start(spark, {"path": str(stream)}, lake, state))
    assert lake_job.lake_facts(spark, lake) == (COUNT, COUNT, TOTAL, TOTAL)
