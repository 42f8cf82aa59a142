"""The bench itself: a run of its smallest scenarios, and what it makes of their results."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BENCH = ROOT / "bench"

pytestmark = pytest.mark.real


def scenario(name: str, data: Path, **given: object) -> dict[str, object]:
    """What a scenario prints, run as run.py runs it."""
    done = subprocess.run(
        [sys.executable, str(BENCH / "storage.py"), name, json.dumps({"data": str(data), **given})],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result: dict[str, object] = json.loads(done.stdout)
    return result


def test_cpu_per_message(tmp_path: Path) -> None:
    found = scenario("cpu_os", tmp_path / "data", groups=3, runs=2, size=256, group=100)
    for name in ("append", "dequeue"):
        values = found[name]
        assert isinstance(values, list)
        assert len(values) == 2
        assert all(0 < value < 1000 for value in values)


def test_bytes_and_syncs(tmp_path: Path) -> None:
    found = scenario("bytes_and_syncs", tmp_path / "data", size=100, group=10, groups=3)
    assert found["log_syncs"] == 0.1
    # Ten records of 52 bytes and the body, and 32 of the group's header, to a multiple of 64.
    assert found["log"] == 160
    assert found["store"] == 0
    found = scenario("bytes_and_syncs", tmp_path / "large", size=64 << 10, group=10, groups=1)
    assert found["log"] == 128
    assert found["store"] == (64 << 10) + 16
    assert found["store_syncs"] == 0.1


def test_opening(tmp_path: Path) -> None:
    assert scenario("fill", tmp_path / "data", count=1000, size=256)["count"] == 1000
    found = scenario("open_store", tmp_path / "data", traced=True)
    assert (found["count"], found["clean"], found["replayed"]) == (1000, True, 0)


def test_the_page_names_goal_mode_and_machine() -> None:
    """docs/performance.md is what the last kept full run renders to."""
    code = (
        "import json, sys; sys.path.insert(0, 'bench'); import report;"
        "runs = [json.loads(line) for line in report.RESULTS.read_text().splitlines()];"
        "found = [run for run in runs if not run['is_quick']][-1];"
        "table = report.goals(found['figures']);"
        "print('\\n\\n'.join([report.INTRODUCTION.strip(), *report.sections(found, table)]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    assert done.stdout == page
    for text in ("`make bench`", "commit", "cores", "| goal", "≤ 1.0 µs", "| os "):
        assert text in page
