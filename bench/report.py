"""What was measured of the storage engine, as tables; and what all such tables are made of."""

import os
import platform
import statistics
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from penstock import __version__, build_kind
from penstock.storage.files.filesystem import OsFileSystem

Result = dict[str, Any]


class Goal(NamedTuple):
    """A figure with its goal. `value` is what is compared; `text` is how it is shown."""

    name: str
    mode: str
    goal: str
    text: str
    is_met: bool


class Rival(NamedTuple):
    """A figure of which less is better, where another takes less than Penstock in the same run."""

    what: str
    unit: str
    ours: float
    name: str
    theirs: float


def best_rival(what: str, unit: str, ours: float | None, others: dict[str, float]) -> list[Rival]:
    """The one that takes least, if that is less than ours: one, or none."""
    name = min(others, key=others.__getitem__, default="")
    if ours is None or not name or others[name] >= ours:
        return []
    return [Rival(what, unit, ours, name, others[name])]


def rival_table(found: list[Rival]) -> str:
    """A row for each."""
    rows = [
        [one.what, one.unit, f"{one.ours:,.4g}", one.name, f"{one.theirs:,.4g}",
         f"{one.ours / one.theirs:,.2f}" if one.ours < 100 * one.theirs else "> 100"]
        for one in found
    ]  # fmt: skip
    return markdown(["what", "unit", "Penstock", "who is better", "its figure", "times"], rows)


def facts(root: Path, data: Path) -> Result:
    """Where, when and with what it is measured."""
    fs = OsFileSystem()
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit(root),
        "version": __version__,
        "build": build_kind(),
        "python": platform.python_version(),
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "kernel": f"{platform.system()} {platform.release()}",
        "filesystem": fs.kind(str(data)),
    }


def commit(root: Path) -> str:
    """The commit, with a + if the tree is not exactly that; "unknown" without git."""
    try:
        git = ["git", "-C", str(root)]
        head = subprocess.run(
            [*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
        paths = ["--", "src", "setup.py", "bench/*.py"]
        status = subprocess.run(
            [*git, "status", "--porcelain", *paths], capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+" if status else "")


def cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def goals(figures: Result) -> list[Goal]:
    """Every figure that has a goal; the best of the runs for CPU, the median for times."""
    table: list[Goal] = []
    if "os_compiled" in figures:
        found = figures["os_compiled"]
        best = min(found["append"])
        name = f"append 256 B, {found['build']}, CPU per message in groups of 100"
        table.append(Goal(name, "os", "≤ 1.0 µs", f"{three(found['append'])} µs", best <= 1.0))
    if "opening" in figures:
        rows = figures["opening"]
        first, last = rows[0], rows[-1]
        few, many = (statistics.median(r["kill_ms"]) for r in (first, last))
        text = ", ".join(f"{statistics.median(r['kill_ms']):.0f}" for r in rows)
        name = "recovery, same log tail, backlogs " + ", ".join(f"{r['count']:,}" for r in rows)
        # The same within what a shared disk varies.
        table.append(Goal(name, "os", "flat", f"{text} ms", many <= 2 * few + 30))
        clean = statistics.median(last["clean_ms"])
        name = f"open with {last['count']:,} messages, orderly stop"
        table.append(Goal(name, "any", "≤ 50 ms", f"{three(last['clean_ms'], 0)} ms", clean <= 50))
        name = f"open with {last['count']:,}, kill -9, {last['replayed']:,} records of log"
        table.append(Goal(name, "os", "≤ 1 s", f"{three(last['kill_ms'], 0)} ms", many <= 1000))
        per = (last["ram"] - first["ram"]) / (last["messages"] - first["messages"])
        name = f"RAM per message on disk, 256 B, {last['count']:,} messages, reopened"
        table.append(Goal(name, "any", "≤ 1 B", f"{per:.3f} B", per <= 1))
    if "worst" in figures:
        row = figures["worst"][0]
        name = f"open, kill -9 just before a checkpoint, {row['replayed']:,} records"
        is_met = statistics.median(row["ms"]) <= 1000
        table.append(Goal(name, "os", "≤ 1 s", f"{three(row['ms'], 0)} ms", is_met))
    for row in figures.get("ram", []):
        per = row["per_message"]
        name = f"RAM per message on disk, {row['name']}"
        table.append(Goal(name, "any", "≤ 1 B", f"{per:.3f} B", per <= 1))
        if "per_message_half" in row:
            per = row["per_message_half"]
            name = "the same, every second one acked"
            table.append(Goal(name, "any", "≤ 1 B", f"{per:.3f} B", per <= 1))
    return table


def rivals(_figures: Result) -> list[Rival]:
    """None: nothing else is measured beside it."""
    return []


def three(values: list[float], digits: int = 2) -> str:
    """min / median / max."""
    low, mid, high = min(values), statistics.median(values), max(values)
    return f"{low:.{digits}f} / {mid:.{digits}f} / {high:.{digits}f}"


def rounded(value: Any) -> Any:
    """Four digits say all that these numbers know."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    return [rounded(inner) for inner in value] if isinstance(value, list) else value


INTRODUCTION = """
## The storage engine

CPU is that of the thread that owns it unless the worker thread, which syncs and prepares segments
of the log, is named; a body has 256 B and a group 100 messages unless stated otherwise.
"""


def sections(found: Result, table: list[Goal]) -> list[str]:
    """Titles and tables in Markdown, which reads well on a terminal too."""
    figures = found["figures"]
    parts = [where(found)]
    if "os_compiled" in figures:
        parts += ["### CPU per message", cpu_table(figures), SYNC_NOTE]
    if "bytes" in figures:
        parts += ["### Bytes and syncs (`disk`)", BYTES_NOTE, bytes_table(figures["bytes"])]
    if "opening" in figures:
        parts += ["### Opening", OPENING_NOTE, opening_table(figures["opening"])]
        parts += [WORST_NOTE, worst_table(figures["worst"])]
    if "ram" in figures:
        parts += ["### RAM per message that is wholly on disk", RAM_NOTE, ram_table(figures["ram"])]
    return [*parts, "### Goals of the storage engine", goal_table(table)]


def where(found: Result) -> str:
    """Machine, commit and date, in a line. load: before the run, of other programs."""
    load = f", load average {found['load']:g} before" if "load" in found else ""
    return (
        f"Penstock {found['version']} ({found['build']}), commit {found['commit']}, "
        f"{found['date']}; {found['cpu']}, {found['cores']} cores{load}; {found['kernel']}, "
        f"{found['filesystem']}; Python {found['python']}; "
        f"`make bench{' ARGS=--quick' if found['is_quick'] else ''}`, {found['seconds']:.0f} s."
    )


def goal_table(table: list[Goal]) -> str:
    rows = [[g.name, g.mode, g.goal, g.text, "ok" if g.is_met else "MISSED"] for g in table]
    return markdown(["figure", "mode", "goal", "measured", ""], rows)


SYNC_NOTE = "A confirm in `disk` costs its part of a sync beside the append: one sync per group."
BYTES_NOTE = (
    "Each group is confirmed before the next is sent. Bytes per message: to the log and the store "
    "until the confirm; and once more, to the queue's segment, only if the message is still there "
    "at the next checkpoint. Bodies from 32 KiB on go to the store, and the log only names them."
)
OPENING_NOTE = (
    "Milliseconds until the engine is open, its first checkpoint included: after an orderly stop, "
    "and after a kill -9 with the same log behind the last checkpoint."
)
WORST_NOTE = (
    "Harder logs, with the largest of these backlogs. A checkpoint begins after 64 MiB of log, "
    "1,000,000 records or 30 s: small records make the longest recovery that can happen (the acks "
    "here are fewer than that limit; their time grows with their number)."
)
RAM_NOTE = (
    "Between two sizes of backlog, each after a checkpoint: what Python's allocators have given "
    "out (tracemalloc). The bodies from 32 KiB on are not really kept by the disk in this one."
)


def cpu_table(figures: Result) -> str:
    rows: list[list[str]] = []
    for build in ("compiled", "pure"):
        os_mode, disk = figures[f"os_{build}"], figures[f"disk_{build}"]
        name = os_mode["build"]
        rows += [
            ["append, µs per message", "os", name, three(os_mode["append"])],
            ["worker beside it, µs per message", "os", name, three(os_mode["worker"])],
            ["dequeue, µs per message", "os", name, three(os_mode["dequeue"])],
            ["append, µs per message", "disk", name, three(disk["append"])],
            ["waiting for a sync, µs per sync", "disk", name, three(disk["wait"], 0)],
            ["the sync, worker's CPU, µs per sync", "disk", name, three(disk["sync_cpu"], 0)],
            ["the sync, wall clock, µs per sync", "disk", name, three(disk["sync_wall"], 0)],
        ]
    return markdown(["what", "mode", "build", "least / median / most"], rows)


def bytes_table(found: list[Result]) -> str:
    rows = [
        [
            f"{row['size']:,}", f"{row['group']:,}", f"{row['log']:,.0f}", f"{row['store']:,.0f}",
            f"{row['checkpoint']:,.0f}", f"{row['log_syncs']:.3f}", f"{row['store_syncs']:.3f}",
        ]
        for row in found
    ]  # fmt: skip
    head = ["body, B", "per group", "log, B", "store, B", "at a checkpoint, B",
            "log syncs per confirm", "store syncs per confirm"]  # fmt: skip
    return markdown(head, rows)


def opening_table(found: list[Result]) -> str:
    rows = []
    for row in found:
        clean, cpu = three(row["clean_ms"], 0), three(row["clean_cpu_ms"], 1)
        killed = three(row["kill_ms"], 0)
        rows.append([f"{row['count']:,}", clean, cpu, f"{row['replayed']:,}", killed])
    head = ["backlog", "orderly stop, ms", "its CPU, ms", "records replayed", "kill -9, ms"]
    return markdown(head, rows)


def worst_table(found: list[Result]) -> str:
    rows = [
        [
            row["name"], f"{row['replayed']:,}", f"{row['log_bytes'] / (1 << 20):.0f}",
            three(row["ms"], 0), three(row["cpu_us"]),
        ]
        for row in found
    ]  # fmt: skip
    head = ["log behind the checkpoint", "records", "MiB", "kill -9, ms", "CPU per record, µs"]
    return markdown(head, rows)


def ram_table(found: list[Result]) -> str:
    rows = []
    for row in found:
        half = f"{row['per_message_half']:.3f}" if "per_message_half" in row else ""
        between = f"{row['steps'][0]:,} to {row['steps'][1]:,}"
        rows.append([row["name"], between, f"{row['per_message']:.3f}", half])
    head = ["body", "between backlogs of", "B per message", "B, every second one acked"]
    return markdown(head, rows)


def markdown(head: list[str], rows: list[list[str]]) -> str:
    """A table with columns as wide as they need to be."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]

    def line(cells: list[str]) -> str:
        padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]
        return f"| {' | '.join(padded)} |"

    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([line(head), rule, *[line(row) for row in rows]])
