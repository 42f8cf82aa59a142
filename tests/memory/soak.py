"""Ten million messages in and out under a budget of 64 MiB: `make soak`. Takes some minutes.

    make soak
    python -m tests.memory.soak [--count N] [--body N] [--data DIRECTORY]

The scenario of test_backlog.py (backlog.py), longer. Prints what it found and, if it held, appends
it as a line of JSON to bench/results/memory.jsonl, with commit, date and machine; the exit code
says whether it held. It needs about 3 GiB of disk for as long as it runs.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import penstock
from tests.memory.test_backlog import BUDGET, GROWTH_MAX, MIB, run

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results" / "memory.jsonl"


def commit() -> str:
    """The commit, with a + if the tree is not exactly that; "unknown" without git."""
    try:
        head, status = (
            subprocess.run(
                ["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True
            ).stdout.strip()
            for words in (
                ["rev-parse", "--short=12", "HEAD"],
                ["status", "--porcelain", "--", "src", "setup.py", "tests/memory"],
            )
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+" if status else "")


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def facts() -> dict[str, Any]:
    """Where, when and with what."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit(),
        "version": penstock.__version__,
        "build": penstock.build_kind(),
        "python": platform.python_version(),
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "kernel": f"{platform.system()} {platform.release()}",
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=10_000_000)
    parser.add_argument("--body", type=int, default=100, help="bytes, at least 12")
    parser.add_argument("--data", type=Path, help="a directory on the disk; default: a new one")
    given = parser.parse_args()
    print(f"{given.count:,} messages of {given.body} B, {BUDGET // MIB} MiB", flush=True)
    with tempfile.TemporaryDirectory(dir=given.data) as data:
        found = run(
            "pile_up", Path(data) / "data", count=given.count, body_bytes=given.body,
            budget_bytes=BUDGET,
        )  # fmt: skip
    growth = found["rss_full"] - found["rss_first"]
    holds = growth <= GROWTH_MAX
    print(
        f"RSS {found['rss_first'] / MIB:.1f} MiB with 100,000 waiting, "
        f"{found['rss_full'] / MIB:.1f} MiB with all: {growth / MIB:+.1f} MiB, "
        f"{'as' if holds else 'NOT as'} promised (at most {GROWTH_MAX // MIB:+d} MiB)"
    )
    if holds:
        line = {
            **facts(), "count": given.count, "body_bytes": given.body, "budget_bytes": BUDGET,
            "growth_bytes": growth, **found,
        }  # fmt: skip
        with RESULTS.open("a") as results:
            results.write(json.dumps(line) + "\n")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
