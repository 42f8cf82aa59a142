"""docs/reference/performance.md, and the kept results that it is made of.

One file of results per part of the bench, a run a line; the page shows the last full run of each.
The cells beside Kafka take long, and have a part of their own if they were run alone.
"""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import broker_report
import management_report
import queue_report
import redis_bench
import report
import single_report
import spark_report
import tls_report
import writes
from report import Result, Rival
from runner import ROOT

INTRODUCTION = """
# Performance

This page is written by `make bench`, from the last full runs in `bench/results`. Each figure names
its durability mode: `disk` confirms after an fdatasync that covers the message, `os` after the
write to the kernel (survives the death of the process, not of the machine); `any` marks what is the
same in all. Three numbers are least / median / most of several runs.

## Where a rival is better

Every figure on this page for which another broker or library needs less than Penstock: CPU of all
of the server's processes per message unless the unit says otherwise, medians of one run in which
they took turns. LavinMQ, RabbitMQ and Kafka do not sync before they confirm and stand beside
Penstock `os`; in the rows of the broker it is Penstock `disk` beside RabbitMQ. In all others that
have a rival Penstock needs as little or less.
"""
PAGE = ROOT / "docs" / "reference" / "performance.md"
REPORTS = {
    "storage": report,
    "single": single_report,
    "tls": tls_report,
    "queues": queue_report,
    "broker": broker_report,
    "redis": redis_bench,
    "writes": writes,
    "management": management_report,
    "spark": spark_report,
    "kafka": spark_report,
}


def results(part: str) -> Path:
    """The kept runs of this part."""
    return ROOT / "bench" / "results" / f"{part}.jsonl"


def save(part: str, found: Result) -> None:
    """Append the run to the kept results."""
    path = results(part)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(report.rounded(found)) + "\n")
    print(f"appended to {path.relative_to(ROOT)}")


def last(part: str) -> Result | None:
    """The last full run that was kept."""
    if not results(part).exists():
        return None
    runs = [json.loads(line) for line in results(part).read_text(encoding="utf-8").splitlines()]
    full: list[Result] = [run for run in runs if not run["is_quick"]]
    return full[-1] if full else None


def sections(part: str, found: Result) -> list[str]:
    """Titles and tables in Markdown, which reads well on a terminal too."""
    its: Any = REPORTS[part]
    parts: list[str] = its.sections(found, its.goals(found["figures"]))
    return parts


def text() -> str:
    """The page, of what was kept."""
    parts: list[str] = []
    rivals: list[Rival] = []
    for part, its in REPORTS.items():
        found = last(part)
        if found is None or (part == "kafka" and "kafka" in (last("spark") or found)["figures"]):
            continue
        introduction = its.INTRODUCTION.strip()
        parts += [introduction] * (introduction not in parts) + sections(part, found)
        rivals += its.rivals(found["figures"])
    return "\n\n".join([INTRODUCTION.strip(), report.rival_table(rivals), *parts]) + "\n"


def render() -> None:
    """Write the page, and draw what it shows."""
    broker = last("broker")
    if (
        broker is not None and find_spec("matplotlib") is not None
    ):  # else its plots stay as they are
        import broker_plot

        broker_plot.draw(broker, PAGE.parent)
    PAGE.write_text(text(), encoding="utf-8")
    print(f"rendered to {PAGE.relative_to(ROOT)}")
