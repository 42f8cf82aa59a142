"""What was measured of the Spark source, as tables."""

import statistics

import kafka_report
import sink_report
from report import Goal, Result, Rival, goal_table, markdown, three, where

MILLION = 1_000_000
MB = 1_000_000

INTRODUCTION = """
## The Spark source

Measured by `make bench-spark`: `format("penstock")` in a Spark of two local cores, beside Parquet,
text and a Python source that yields a tuple a record, which take turns over the same records of
256 B, warm. Pages are mapped and all checksums verified.
"""


def rates(found: Result) -> dict[str, list[float]]:
    """Millions of rows per second, of each run."""
    count = found["count"]
    return {
        name: [count / seconds / MILLION for seconds in times]
        for name, times in found["seconds"].items()
    }


def median(found: Result, name: str) -> float:
    """Millions of rows per second."""
    return statistics.median(rates(found)[name])


def goals(figures: Result) -> list[Goal]:
    """Every figure that has a goal."""
    table: list[Goal] = []
    if "scan" in figures:
        ours = median(figures["scan"], "penstock")
        times = ours / median(figures["scan"], "tuples")
        text = f"{three(rates(figures['scan'])['penstock'])} M rows/s"
        table.append(
            Goal("scan of 256 B, three columns", "any", "≥ 2.5 M rows/s", text, ours >= 2.5)
        )
        name = "scan against a Python source of tuples"
        table.append(Goal(name, "any", "≥ 4 times", f"{times:.1f} times", times >= 4))
    if "parsing" in figures:
        found = figures["parsing"]
        slower = median(found, "parquet") / median(found, "penstock") - 1
        name = "from_json and an aggregate, slower than from Parquet by"
        table.append(Goal(name, "any", "≤ 15 %", f"{slower * 100:.0f} %", slower <= 0.15))
    if "arrow" in figures:
        best = min(figures["arrow"]["three"])
        text = f"{three(figures['arrow']['three'], 0)} ns"
        name = "making the Arrow batch, checksums verified, CPU of a row of 256 B"
        table.append(Goal(name, "any", "< 100 ns", text, best < 100))
    if "floor" in figures:
        least = statistics.median(figures["floor"]["ms"])
        text = f"{three(figures['floor']['ms'], 0)} ms"
        table.append(Goal("micro-batch of 1000 records", "any", "≤ 250 ms", text, least <= 250))
    if "network" in figures:
        part = median(figures["network"], "network") / median(figures["network"], "file")
        name = "over HTTP on loopback, of the rate of mapped pages"
        table.append(Goal(name, "any", "≥ 60 %", f"{part * 100:.0f} %", part >= 0.6))
    if "classic" in figures:
        found = figures["classic"]
        ours = median(found, "classic queue")
        text = f"{three(rates(found)['classic queue'])} M rows/s"
        name = "a classic queue as a source: leased, read, acknowledged"
        table.append(Goal(name, "disk", "≥ 0.5 M rows/s", text, ours >= 0.5))
        ram = found["ram"]
        grown = (ram["rss_leased"] - ram["rss_ready"]) / MB
        name = f"RSS of the broker, growth when {ram['count']:,} messages are leased"
        table.append(Goal(name, "disk", "≤ 16 MB", f"{grown:.1f} MB", grown <= 16))
    table += sink_report.goals(figures)
    return table + kafka_report.goals(figures["kafka"]) if "kafka" in figures else table


def rivals(figures: Result) -> list[Rival]:
    """Where Kafka costs less CPU."""
    return kafka_report.rivals(figures["kafka"]) if "kafka" in figures else []


def sections(found: Result, table: list[Goal]) -> list[str]:
    """Titles and tables in Markdown, which reads well on a terminal too."""
    figures = found["figures"]
    arguments = found.get("arguments")
    command = "`make bench-spark" + (f" ARGS='{arguments}'" if arguments else "")
    parts = [where(found).replace("`make bench", command)]
    for key, title in (
        ("scan", "### sum(length(value))"),
        ("parsing", "### from_json, grouped by month and carrier"),
        ("network", "### By files and by HTTP"),
    ):
        if key in figures:
            parts += [title, rate_table(figures[key])]
    if "classic" in figures:
        parts += [
            "### A classic queue as a source",
            CLASSIC_NOTE,
            classic_table(figures["classic"]),
        ]
    parts += sink_report.sections(figures)
    if "kafka" in figures:
        parts += kafka_report.sections(figures["kafka"])
    if "arrow" in figures:
        parts += ["### Making Arrow batches", ARROW_NOTE, arrow_table(figures["arrow"])]
    of = "of the Spark source" if figures.keys() - {"kafka"} else "beside Kafka"
    return [*parts, f"### Goals {of}", goal_table(table)] if table else parts


ARROW_NOTE = "CPU ns a row, of one process without Spark, least / median / most of the runs."


CLASSIC_NOTE = (
    "Each run has a queue of its own, filled before; two tasks, `availableNow`. The driver asks\n"
    "for the next batch, which the broker leases durably after it has acknowledged the one\n"
    "before; tasks map what was leased. The last rows are of the broker alone, over HTTP."
)


def classic_table(found: Result) -> str:
    ram, count = found["ram"], found["count"]
    rows = [
        ["M rows/s", three(rates(found)["classic queue"])],
        ["s in the question for the next batch", three(found["lease_seconds"])],
        ["s in tasks", three(found["task_seconds"])],
        [f"leasing {ram['count']:,}, M messages/s", rate(ram, "lease_seconds")],
        ["acknowledging them, M messages/s", rate(ram, "commit_seconds")],
        ["RSS with all ready, MB", f"{ram['rss_ready'] / MB:.1f}"],
        ["RSS with all leased, MB", f"{ram['rss_leased'] / MB:.1f}"],
    ]
    return markdown([f"{count:,} messages of {found['size']} B", ""], rows)


def rate(ram: Result, name: str) -> str:
    return f"{ram['count'] / ram[name] / MILLION:.2f}"


def rate_table(found: Result) -> str:
    rows = [
        [name, three(values), f"{statistics.median(values) * found['size']:.0f}"]
        for name, values in rates(found).items()
    ]
    head = [f"source, {found['count']:,} rows", "M rows/s", "MB/s of values"]
    return markdown(head, rows)


def arrow_table(found: Result) -> str:
    rows = [
        ["offset, timestamp, value", three(found["three"], 0)],
        ["all eight columns", three(found["all"], 0)],
    ]
    return markdown([f"columns (CRC-32 of {found['crc']})", "ns a row"], rows)
