"""What was measured of the queues and of the embedded library, and of others, as tables."""

import statistics

from report import Goal, Result, Rival, best_rival, goal_table, markdown, three, where

MIB = 1 << 20
MB = 1_000_000

INTRODUCTION = """
## Queues and the embedded library

On `penstock.open(...)` and its queues, as a program uses them, unless a VariableQueue is named. CPU
is that of the whole process: the caller, the box's own thread, and the worker that syncs and
prepares segments of the log. The memory budget is the library's default, 32 MiB, so a backlog of
100,000 messages and more is on disk.
"""

CPU_GOALS = (
    ("put", "put 100 B, one by one", 5.0),
    ("put_batch", "put 100 B, in batches of 100", 1.5),
    ("get", "get and ack 100 B, one by one", 4.0),
)


def goals(figures: Result) -> list[Goal]:
    """Every figure that has a goal; the best of the runs for CPU, the median for times."""
    table: list[Goal] = []
    for row in figures.get("put_get", []):
        if row["build"] == "compiled" and row["size"] == 100:
            for key, name, most in CPU_GOALS:
                is_met = min(row[key]) <= most
                text = f"{three(row[key])} µs"
                table.append(Goal(f"{name}, CPU", "os", f"≤ {most:g} µs", text, is_met))
    if "flat" in figures:
        table += flat_goals(figures["flat"])
    if "threads" in figures:
        one, many = figures["threads"]["rows"][0], figures["threads"]["rows"][-1]
        times = statistics.median(many["per_s"]) / statistics.median(one["per_s"])
        name = f"puts per second, {many['threads']} threads against one"
        table.append(Goal(name, "disk", "≥ 10 times", f"{times:.1f} times", times >= 10))
    if "backlog" in figures:
        table += backlog_goals(figures["backlog"])
    if "cliff" in figures:
        table += cliff_goals(figures["cliff"])
    if "returns" in figures:
        table += return_goals(figures["returns"])
    return table


def flat_goals(found: Result) -> list[Goal]:
    """Each backlog against the 4 µs, and all against one another."""
    table = []
    best = []
    for row in [*found["rows"], found["after"]]:
        best.append(min(row["cpu_us"]))
        text = f"{three(row['cpu_us'])} µs"
        table.append(Goal(f"get and ack, CPU, {name_of(row)}", "os", "≤ 4 µs", text, best[-1] <= 4))
    times = max(best) / min(best)
    name = "the same: dearest against cheapest"
    table.append(Goal(name, "os", "flat: ≤ 2 times", f"{times:.1f} times", times <= 2))
    return table


def name_of(row: Result) -> str:
    acked = f" after {row['acked']:,} acks" if "acked" in row else ""
    return f"backlog {row['backlog']:,}{acked}"


def backlog_goals(found: Result) -> list[Goal]:
    count = found["count"]
    per = found["disk_bytes"] / count
    grown = (found["rss_last"] - found["rss_first"]) / MB
    clean, killed = statistics.median(found["clean_ms"]), statistics.median(found["kill_ms"])
    there = f"{count:,} of 100 B"
    return [
        Goal(f"disk per message in .qi and .qs, {there}", "any", "≤ 150 B", f"{per:.1f} B",
             per <= 150),
        Goal(f"RSS, growth to {there}", "os", "≤ 32 MB", f"{grown:.1f} MB", grown <= 32),
        Goal(f"open with {there}, orderly stop", "any", "≤ 50 ms",
             f"{three(found['clean_ms'], 0)} ms", clean <= 50),
        Goal(f"open with {there}, kill -9, {found['records']:,} messages of log", "os", "≤ 1 s",
             f"{three(found['kill_ms'], 0)} ms", killed <= 1000),
    ]  # fmt: skip


def cliff_goals(rows: list[Result]) -> list[Goal]:
    most = {row["policy"]: [run["cpu_us"]["max"] for run in row["runs"]] for row in rows}
    limit = rows[0]["limit"]
    ram = max(run["ram_bytes_max"] for run in rows[0]["runs"])
    steps, at_once = (statistics.median(most[policy]) for policy in ("steps", "at once"))
    return [
        Goal("VariableQueue past its limit: counted bytes, most", "os", f"≤ {limit / MIB:g} MiB",
             f"{ram / MIB:.2f} MiB", ram <= limit),
        Goal("the dearest publish past a limit, CPU, against paging all at once", "os", "less",
             f"{steps:,.0f} against {at_once:,.0f} µs", steps < at_once),
    ]  # fmt: skip


def steady_times(row: Result) -> float:
    """What a queue that once flowed costs, in terms of one that never did: medians."""
    never, once = ([run["steady_us"] for run in row[key]] for key in ("never", "once"))
    return statistics.median(once) / statistics.median(never)


def drain_us(row: Result) -> float:
    return statistics.median([run["drain_us"] for run in row["never"] + row["once"]])


def return_goals(rows: list[Result]) -> list[Goal]:
    table = []
    for row in rows:
        times = steady_times(row)
        name = f"a queue that once flowed against one that never did, {row['messages']}"
        table.append(
            Goal(f"{name}, {row['size']:,} B", "os", "≤ 1.1 times", f"{times:.2f} times",
                 times <= 1.1)
        )  # fmt: skip
    for size in sorted({row["size"] for row in rows}):
        persistent, transient = (
            drain_us(row)
            for name in ("persistent", "transient")
            for row in rows
            if (row["messages"], row["size"]) == (name, size)
        )
        times = transient / persistent
        table.append(
            Goal(f"a transient backlog drained against a persistent one, {size:,} B", "os",
                 "≤ 1.2 times", f"{times:.2f} times", times <= 1.2)
        )  # fmt: skip
    return table


def rivals(figures: Result) -> list[Rival]:
    """Where another library takes less CPU than penstock.open, in the same mode."""
    cells: dict[tuple[str, str], dict[str, float]] = {}
    for row in figures.get("peers", []):
        its = f"{row['size']:,} B, {row['mode']}"
        found = {"put": row["put"], "put in batches of 100": row["batch"]}
        found |= {f"get and ack, backlog of {get['depth']:,}": get for get in row["get"]}
        for what, one in found.items():
            if one:
                cells.setdefault((what, its), {})[row["peer"]] = statistics.median(one["cpu_us"])
    return [
        rival
        for (what, its), us in cells.items()
        for rival in best_rival(f"library: {what}, {its}", "µs", us.pop("penstock", None), us)
    ]


def sections(found: Result, table: list[Goal]) -> list[str]:
    """Titles and tables in Markdown, which reads well on a terminal too."""
    figures = found["figures"]
    parts = [where(found)]
    if "put_get" in figures:
        parts += ["### CPU per message (`os`)", put_get_table(figures["put_get"])]
    if "flat" in figures:
        parts += ["### Backlogs (`os`)", FLAT_NOTE, flat_table(figures["flat"])]
    if "threads" in figures:
        parts += ["### Threads (`disk`)", THREADS_NOTE, threads_table(figures["threads"])]
    if "backlog" in figures:
        parts += ["### A large backlog", BACKLOG_NOTE, backlog_table(figures["backlog"])]
    if "states" in figures:
        states = figures["states"]
        note = STATES_NOTE.format(count=states["count"], size=states["size"])
        parts += ["### RAM per message in each state", note, states_table(states)]
    if "cliff" in figures:
        row = figures["cliff"][0]
        note = CLIFF_NOTE.format(
            count=row["runs"][0]["count"], size=row["size"], limit=row["limit"] / MIB,
            runs=len(row["runs"]),
        )  # fmt: skip
        parts += ["### No cliff (`os`)", note, cliff_table(figures["cliff"])]
    if "returns" in figures:
        row = figures["returns"][0]
        note = RETURNS_NOTE.format(limit=row["limit"] / MIB, runs=len(row["once"]))
        parts += ["### Returning to memory (`os`)", note, returns_table(figures["returns"])]
    if "peers" in figures:
        parts += ["### Beside others", PEERS_NOTE, peers_table(figures["peers"])]
    return [*parts, "### Goals of the queues", goal_table(table)] if table else parts


FLAT_NOTE = (
    "Get and ack one by one, µs of CPU per message of 100 B. What a run has taken is put back "
    "before the next. What does not fit the budget comes from disk."
)
THREADS_NOTE = (
    "Each thread puts a message and waits until it is synced, then the next. What waits "
    "together is confirmed by one sync."
)
BACKLOG_NOTE = (
    "Put in batches of 100 in `os`; RSS is that of the whole process. After the kill -9 the log is "
    "replayed, and nothing of the backlog is read. Opening includes the first look at the queue."
)
STATES_NOTE = (
    "A VariableQueue with {count:,} messages of {size} B that are all in that state: what "
    "Python's allocators have given out (tracemalloc) beyond the empty queue, after a "
    "checkpoint. An alpha has its body in RAM, an object of its own; the body of a beta is on "
    "disk; a gamma's place is too; delta is only on disk. Counted is what the queue itself "
    "reckons with, for its limits."
)
CLIFF_NOTE = (
    "µs of each of {count:,} publishes of {size:,} B to a VariableQueue, flushed one by one, "
    "past a limit of {limit:g} MiB. *steps* is Penstock. *at once* is modelled in the bench: "
    "when the limit is passed, all that is in RAM is paged out in that publish, as Qpid's Flow "
    "to Disk Design describes the broker before it. *unlimited* keeps all in RAM. Medians of "
    "{runs} runs; the clock on the wall includes what others do to the disk."
)
RETURNS_NOTE = (
    "CPU µs per message published, got and acked in batches of 100, at a steady backlog of 81 % "
    "of a limit of {limit:g} MiB: of a queue that never flowed, and of one that had twice its "
    "limit in it, once what was written then has gone. *Written* and *read* count messages and "
    "reads of the queue that flowed while it was measured. *Drain*: got and acked from a backlog "
    "of ten times the limit. Medians of {runs} alternating runs."
)
PEERS_NOTE = (
    "CPU µs per message and calls per second of wall clock, medians of three runs. `os` "
    "survives a kill -9, `disk` is synced before put returns; bench/peers.py says how each "
    "library is brought to it. The others sync their acks too in `disk`; Penstock's never wait "
    "for a sync: after a power cut a message may come again. persist-queue in files promises "
    "`os` at most, and diskcache has no acks. Get is at a constant backlog."
)


def put_get_table(found: list[Result]) -> str:
    rows = [
        [f"{row['size']:,}", row["build"], *(three(row[key]) for key in
         ("put", "put_batch", "get", "get_batch"))]
        for row in found
    ]  # fmt: skip
    head = ["body, B", "build", "put, µs", "put, batches of 100", "get and ack, µs",
            "get and ack, batches of 100"]  # fmt: skip
    return markdown(head, rows)


def flat_table(found: Result) -> str:
    rows = [[name_of(row), three(row["cpu_us"])] for row in [*found["rows"], found["after"]]]
    return markdown(["backlog", "µs per message"], rows)


def threads_table(found: Result) -> str:
    rows = [[str(row["threads"]), three(row["per_s"], 0)] for row in found["rows"]]
    return markdown(["threads", "puts per second"], rows)


def backlog_table(found: Result) -> str:
    count = found["count"]
    rows = [
        ["messages of 100 B", f"{count:,}"],
        ["RSS before, MB", f"{found['rss_first'] / MB:.1f}"],
        ["RSS with all, MB", f"{found['rss_last'] / MB:.1f}"],
        ["counted in RAM, MiB", f"{found['ram_bytes'] / MIB:.2f}"],
        ["in .qi and .qs per message, B", f"{found['disk_bytes'] / count:.1f}"],
        ["blocks of the disk for them per message, B", f"{found['disk_blocks'] / count:.1f}"],
        ["open after an orderly stop, ms", three(found["clean_ms"], 1)],
        [f"open after a kill -9, {found['records']:,} messages in the log, ms",
         three(found["kill_ms"], 0)],
    ]  # fmt: skip
    return markdown(["what", ""], rows)


def states_table(found: Result) -> str:
    names = ("alpha", "transient alpha", "beta", "gamma", "delta")
    rows = [
        [name, f"{found['bytes'][name]:.1f}", f"{found['counted'][name]:.1f}"] for name in names
    ]
    return markdown(["state", "B per message", "counted, B"], rows)


def cliff_table(found: list[Result]) -> str:
    rows = []
    for row in found:
        runs = row["runs"]
        for kind, name in (("wall_us", "wall"), ("cpu_us", "CPU")):
            marks = [
                f"{statistics.median(run[kind][mark] for run in runs):,.1f}"
                for mark in ("p50", "p99", "p99.9", "max")
            ]
            ram = statistics.median(run["ram_bytes_max"] for run in runs) / MIB
            rows.append([row["policy"], name, *marks, str(runs[0]["bursts"]), f"{ram:.1f}"])
    head = ["policy", "µs of", "p50", "p99", "p99.9", "most", "bursts", "most RAM, MiB"]
    return markdown(head, rows)


def returns_table(rows: list[Result]) -> str:
    head = ["messages", "never flowed", "once flowed", "times", "written", "read", "drain"]
    lines = [
        [
            f"{row['messages']}, {row['size']:,} B", middle([r["steady_us"] for r in row["never"]]),
            middle([r["steady_us"] for r in row["once"]]), f"{steady_times(row):.2f}",
            f"{max(r['writes'] for r in row['once']):,}",
            f"{max(r['reads'] for r in row['once']):,}", f"{drain_us(row):.1f}",
        ]
        for row in rows
    ]  # fmt: skip
    return markdown(head, lines)


def peers_table(found: list[Result]) -> str:
    rows = []
    for row in found:
        batch = row["batch"]
        gets = [middle(get["cpu_us"]) for get in row["get"]]
        rows.append(
            [f"{row['peer']} {row['version']}", row["mode"], f"{row['size']:,}",
             middle(row["put"]["cpu_us"]), middle(row["put"]["per_s"], 0),
             middle(batch["cpu_us"]) if batch else "", middle(batch["per_s"], 0) if batch else "",
             *gets, middle(row["get"][-1]["per_s"], 0)]
        )  # fmt: skip
    depths = [get["depth"] for get in found[0]["get"]] if found else []
    head = ["library", "mode", "body, B", "put, µs", "put/s", "batch of 100, µs", "batch/s",
            *[f"get + ack at {depth:,}, µs" for depth in depths], "get + ack/s"]  # fmt: skip
    return markdown(head, rows)


def middle(values: list[float], digits: int = 1) -> str:
    return f"{statistics.median(values):,.{digits}f}"
