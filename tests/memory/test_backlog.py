"""However long the backlog: what the process occupies stays, and everything comes out in order."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
MIB = 1 << 20
BUDGET = 64 * MIB
GROWTH_MAX = 16 * MIB  # of the RSS, from a backlog of 100,000 to the whole
# At any time: what a checkpoint is to write stays in RAM until it has, although it was consumed
# meanwhile. So a queue that is drained right after its cut may be there twice.
PEAK_MAX = GROWTH_MAX + BUDGET
COUNT = 1_000_000
BODY = 256

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]


def run(what: str, directory: Path, **given: Any) -> dict[str, Any]:
    """The scenario in a process of its own; what it found."""
    environment = {k: v for k, v in os.environ.items() if k != "PENSTOCK_CHECK"}
    arguments = json.dumps({"what": what, "directory": str(directory), **given})
    done = subprocess.run(
        [sys.executable, "-m", "tests.memory.backlog", arguments],
        capture_output=True, text=True, cwd=ROOT, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    print(found)
    return found


def test_a_backlog_of_a_million_takes_no_more_than_one_of_a_tenth(tmp_path: Path) -> None:
    found = run("pile_up", tmp_path / "data", count=COUNT, body_bytes=BODY, budget_bytes=BUDGET)
    assert found["messages"] == COUNT
    assert found["rss_full"] - found["rss_first"] <= GROWTH_MAX
    assert found["rss_most"] - found["rss_first"] <= PEAK_MAX, "also while it was drained"
    assert found["ram_most"] <= BUDGET
    assert found["delta_full"] > COUNT // 2, "else nothing was shown"


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param([[400, 200]], id="in-2-out-1"),
        pytest.param([[150_000, 0], *[[200, 400]] * 700], id="out-2-in-1"),
        pytest.param([[120_000, 1_000], [0, 100_000], [20_000, 0], [0, 20_000]], id="bursts"),
    ],
)
def test_at_different_speeds(tmp_path: Path, steps: list[list[int]]) -> None:
    found = run(
        "speeds", tmp_path / "data", count=300_000, body_bytes=BODY, budget_bytes=16 * MIB,
        steps=steps,
    )  # fmt: skip
    assert found["messages"] >= 300_000
    assert found["waiting_most"] > 100_000
    assert found["rss_most"] - found["rss_first"] <= GROWTH_MAX
    assert found["ram_most"] <= 16 * MIB
