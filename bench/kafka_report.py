"""What was measured of Spark beside Kafka, as one table."""

import statistics

from cpu_group import BY_GROUP, BY_PROC
from report import Goal, Result, Rival, best_rival, markdown

NOTE = (
    "The same queries over the same rows of 256 B in one session, in turn; Kafka {kafka} with\n"
    "a heap of 512 MiB. CPU is that of driver, JVM, Python workers and broker together, which\n"
    "neighbours change less than the clock: s per million rows, or ms of a micro-batch; the\n"
    "number behind a cell is its partitions. Medians; {rows:,} rows, and {few:,} in the job of\n"
    "few rows. The machine's load at the end of the run was {load:.1f}. {meter} **{kafka_better}**"
)
METERS = {
    BY_GROUP: "CPU is counted by\ncontrol groups, with all that processes took that have ended.",
    BY_PROC: (
        "CPU is counted by /proc,\nwhich misses Spark's Python workers that end within the run;\n"
        "runs that count less than none are left out ({lost} here)."
    ),
}
COSTS = (
    "What takes the CPU of Penstock's cells that take more than they should, with however few\n"
    "rows: the five largest parts, in the cell's unit, medians of the runs. The JVM compiles\n"
    "while it runs, less with more runs. Python: workers, planning, and the process that asks a\n"
    "stream for its offsets."
)
COSTS_SHOWN = 5
MICRO = "micro-batch"
MANY = "200 streams"
FULL_ROWS = 1_000_000  # with fewer, what a job costs by itself is most of a row's share
# What issues ask for: CPU s per million rows; ms and CPU ms; s and CPU s.
MUSTS: dict[str, tuple[float | None, float]] = {
    "from_json and group, 4": (None, 3.6),
    "AvailableNow into Parquet, 1": (None, 5.5),
    "AvailableNow into Parquet, 4": (None, 6.5),
    "sink into a stream, exactly once, 4": (None, 2.8),
    "sink into a classic queue, exactly once": (None, 4.2),
    "at-least-once sink, a job of few rows": (None, 20),
    "micro-batch of 1,000 rows, 1": (120, 160),
    "micro-batch of 1,000 rows, 4": (130, 150),
    "200 streams by pattern, 20,000 rows": (3, 5),
}


def figures(found: Result, cell: str, system: str) -> tuple[float, float] | None:
    """Time and CPU of a cell: rows/s and s per million rows, ms and ms, or s and s."""
    runs = found["cells"][cell].get(system)
    if not runs:
        return None
    wall = statistics.median(run[0] for run in runs)
    cpu = statistics.median([run[1] for run in runs if run[1] > 0] or [0.0])
    if cell.startswith(MICRO):
        return wall * 1000, cpu * 1000
    if cell.startswith(MANY):
        return wall, cpu
    rows = found["few"] if "few rows" in cell else found["rows"]
    return rows / wall, cpu / rows * 1e6


def unit_of(cell: str) -> str:
    """The unit of a cell's CPU."""
    if cell.startswith(MICRO):
        return "ms"
    return "s" if cell.startswith(MANY) else "s per million rows"


def is_missed(cell: str, ours: tuple[float, float]) -> bool:
    """Whether a cell takes more than it should, with however few rows."""
    most_time, most_cpu = MUSTS.get(cell, (None, float("inf")))
    return ours[1] > most_cpu or (most_time is not None and ours[0] > most_time)


def costs(found: Result, cell: str) -> list[tuple[str, float]]:
    """What takes Penstock's CPU in a cell, the largest first, in the cell's unit."""
    runs = found.get("costs", {}).get(cell, [])
    if cell.startswith(MICRO):
        scale = 1000.0
    elif cell.startswith(MANY):
        scale = 1.0
    else:
        scale = 1e6 / (found["few"] if "few rows" in cell else found["rows"])
    parts = {name for run in runs for name in run}
    medians = {name: statistics.median(run.get(name, 0.0) for run in runs) for name in parts}
    ordered = sorted(medians.items(), key=lambda part: (-part[1], part[0]))
    return [(name, seconds * scale) for name, seconds in ordered if seconds > 0]


def cost_table(found: Result) -> list[str]:
    """The largest costs of the cells that miss a goal; nothing if none does or none was counted."""
    rows = []
    for cell in found["cells"]:
        ours, parts = figures(found, cell, "penstock"), costs(found, cell)[:COSTS_SHOWN]
        if ours and parts and is_missed(cell, ours):
            unit = 0 if cell.startswith(MICRO) else 2
            rows.append([cell, "; ".join(f"{name} {value:.{unit}f}" for name, value in parts)])
    return [COSTS, markdown(["cell", "largest costs"], rows)] if rows else []


def shown(cell: str, values: tuple[float, float] | None) -> list[str]:
    if values is None:
        return ["not", "measured"]
    time, cpu = values
    if cell.startswith(MICRO):
        return [f"{time:.0f} ms", f"{cpu:.0f} ms"]
    if cell.startswith(MANY):
        return [f"{time:.1f} s", f"{cpu:.1f} s"]
    return [f"{time:,.0f} rows/s", f"{cpu:.2f}"]


def goals(found: Result) -> list[Goal]:
    """What was asked for; of costs per million rows only if there were as many."""
    table: list[Goal] = []
    for cell in found["cells"]:
        ours = figures(found, cell, "penstock")
        if ours is None or cell not in MUSTS:
            continue
        if found["rows"] < FULL_ROWS and not cell.startswith((MICRO, MANY)):
            continue
        most_time, most_cpu = MUSTS[cell]
        time, cpu = shown(cell, ours)
        if most_time is not None:
            unit = time.rpartition(" ")[2]
            table.append(Goal(cell, "disk", f"≤ {most_time:g} {unit}", time, ours[0] <= most_time))
        table.append(Goal(f"{cell}: CPU", "disk", f"≤ {most_cpu:g}", cpu, ours[1] <= most_cpu))
    return table


def better(found: Result) -> str:
    """Where Kafka costs less CPU, in a sentence."""
    if not found["kafka"]:
        return f"Kafka was not measured: {found['why']}."
    names = [
        f"{one.what.removeprefix('Spark: ')} ({one.ours / one.theirs:.2f} times Kafka's CPU)"
        for one in rivals(found)
    ]
    return f"Kafka is cheaper in: {'; '.join(names)}." if names else "Kafka is cheaper in no cell."


def rivals(found: Result) -> list[Rival]:
    """Where Kafka costs less CPU."""
    table = []
    for cell in found["cells"]:
        its, ours = (figures(found, cell, system) for system in ("kafka", "penstock"))
        if its is not None and ours is not None:
            table += best_rival(f"Spark: {cell}", unit_of(cell), ours[1], {"Kafka": its[1]})
    return table


def sections(found: Result) -> list[str]:
    """Title, note and table; without Kafka its columns are left out."""
    systems = ("kafka", "penstock") if found["kafka"] else ("penstock",)
    head = ["cell"]
    head += [f"{name}{what}" for name in systems for what in ("", ", CPU")]
    rows = []
    for cell in found["cells"]:
        columns = [text for system in systems for text in shown(cell, figures(found, cell, system))]
        rows.append([cell, *columns])
    runs = [run for cell in found["cells"].values() for each in cell.values() for run in each]
    meter = METERS[found.get("meter", BY_PROC)].format(lost=sum(run[1] <= 0 for run in runs))
    note = NOTE.format(
        meter=meter,
        kafka=found["kafka"] or "(which is missing here)", rows=found["rows"], few=found["few"],
        load=found["load"], kafka_better=better(found),
    )  # fmt: skip
    return ["### Beside Kafka", note, markdown(head, rows), *cost_table(found)]
