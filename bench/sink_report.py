"""What was measured of the Spark sink, as tables: rows into a broker, what others feel of it."""

import statistics

from report import Goal, Result, markdown, three

MILLION = 1_000_000
KINDS = ("stream", "queue")
TITLES = {
    "stream": "from Parquet into a stream",
    "queue": "from Parquet into a queue",
    "stream to stream": "from a stream in files into a stream",
}

COMMIT_NOTE = (
    "What two other clients wait while the batch is committed and moved, in ms, median / 99 % / "
    "longest: one that asks for a queue, which is the vhost's loop, and one that publishes and "
    "waits for the confirm, which has a sync in it; beside them what the loop's thread worked "
    "while the first one waited (its CPU time; the rest of that wait is two cores shared by all), "
    "and one that asks an idle process, whose waits are the machine's and the client's own; and "
    "the private memory of the broker's processes in MiB before / with everything staged / "
    "afterwards."
)


def rates(found: Result, kind: str) -> list[float]:
    """Millions of rows per second, of each run."""
    return [found["count"] / seconds / MILLION for seconds in found["seconds"][kind]]


def goals(figures: Result) -> list[Goal]:
    """Every figure that has a goal."""
    table: list[Goal] = []
    if "sink" in figures:
        for kind, least in zip(KINDS, (0.5, 0.2), strict=True):
            values = rates(figures["sink"], kind)
            name = f"sink into a {kind}, exactly once, 256 B"
            is_met = statistics.median(values) >= least
            table.append(
                Goal(name, "disk", f"≥ {least} M rows/s", f"{three(values)} M rows/s", is_met)
            )
    if "commit" in figures:
        found = figures["commit"]
        for kind in KINDS:
            longest = found[kind]["busy"]["held"][2]
            name = f"commit of {found['size_mib']} MiB into a {kind}: the loop holds up others for"
            table.append(Goal(name, "disk", "≤ 20 ms", f"{longest:.0f} ms", longest <= 20))
            before, staged, _ = found[kind]["memory"]
            grown = staged - before
            name = f"memory that {found['size_mib']} MiB take, staged for a {kind}"
            table.append(Goal(name, "disk", "≤ 32 MiB", f"{grown:.0f} MiB", grown <= 32))
    return table


def sections(figures: Result) -> list[str]:
    """Titles and tables."""
    parts: list[str] = []
    if "sink" in figures:
        parts += ["### The sink, exactly once, until the last row can be read"]
        parts += [sink_table(figures["sink"])]
    if "commit" in figures:
        parts += ["### Other clients while a batch is committed", COMMIT_NOTE]
        parts += [commit_table(figures["commit"])]
    return parts


def sink_table(found: Result) -> str:
    rows = []
    for kind, name in TITLES.items():
        values = rates(found, kind)
        megabytes = statistics.median(values) * found["size"]
        rows.append([name, three(values), f"{megabytes:.0f}"])
    return markdown([f"{found['count']:,} rows", "M rows/s", "MB/s of values"], rows)


def commit_table(found: Result) -> str:
    rows = []
    for kind in KINDS:
        its = found[kind]
        waits = [
            " / ".join(f"{ms:.1f}" for ms in its[when][what])
            for when in ("quiet", "busy")
            for what in ("echo", "loop", "held", "confirm")
        ]
        memory = " / ".join(f"{mib:.0f}" for mib in its["memory"])
        rows.append([f"into a {kind}", f"{its['moved_s']:.1f}", *waits, memory])
    whats = ("idle", "loop", "its work", "confirm")
    names = [f"{what}, {when}" for when in ("quiet", "busy") for what in whats]
    return markdown([f"{found['size_mib']} MiB", "s until all is there", *names, "memory"], rows)
