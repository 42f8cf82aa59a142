"""What was measured of the management API, as tables."""

import statistics

from report import Goal, Result, Rival, best_rival, goal_table, markdown, where

INTRODUCTION = """
## The management API

Lists of many queues and connections over HTTP, beside RabbitMQ's management plugin, each asked for
several times after a first time: `make bench ARGS='--part management'`. CPU is that of all
processes of the broker. The longest turn is that of Penstock's vhost, for which all its clients
wait. RabbitMQ answers from statistics that it collects each 5 s.
"""

PAGE_CPU_S, METRICS_CPU_S, TURN_MS = 0.005, 0.05, 5.0
DASHBOARD_CPU = {"1": 0.01, "10": 0.02}  # of a core, beside nobody who looks
DELAY_TIMES = 3.0  # the 99th of a hundred confirms beside a poller, by that without


def goals(figures: Result) -> list[Goal]:
    """Every figure of Penstock that has a goal."""
    table: list[Goal] = []
    if "management" in figures:
        table += list_goals(figures["management"]["brokers"]["Penstock"])
    if "dashboard" in figures:
        table += dashboard_goals(figures["dashboard"])
    return table


def list_goals(ours: Result) -> list[Goal]:
    """What lists cost, and whom they delay."""
    table: list[Goal] = []
    for what, row in ours["asked"].items():
        most = METRICS_CPU_S if what.startswith("metrics") else PAGE_CPU_S
        if what.startswith(("page of 50", "metrics")):
            cpu = row["cpu_s"]
            table.append(Goal(f"{what}, CPU", "disk", f"≤ {most:g} s", f"{cpu:.4f} s", cpu <= most))
    turn = max(row["turn_ms"] for row in ours["asked"].values())
    table.append(
        Goal("longest turn", "disk", f"≤ {TURN_MS:g} ms", f"{turn:.1f} ms", turn <= TURN_MS)
    )
    alone, beside = (ours["confirm_ms"][what][1] for what in ("alone", "beside a poller"))
    times = beside / alone
    goal = f"≤ {DELAY_TIMES:g} times"
    table.append(
        Goal(
            "confirm beside a poller, p99", "disk", goal, f"{times:.2f} times", times <= DELAY_TIMES
        )
    )
    return table


def dashboard_cpu(found: Result, beside: str, pages: str, process: str | None = None) -> float:
    """Part of a core, the median of the runs: of a process, or of all."""
    runs = found["cpu"][beside][pages]
    return statistics.median(sum(run.values()) if process is None else run[process] for run in runs)


def dashboard_goals(found: Result) -> list[Goal]:
    """What open pages add."""
    table = []
    for beside in found["cpu"]:
        nobody = dashboard_cpu(found, beside, "0")
        for pages, most in DASHBOARD_CPU.items():
            more = max(dashboard_cpu(found, beside, pages) - nobody, 0)
            what, goal = f"dashboard, {pages} open beside {beside}", f"≤ {most:.0%} of a core"
            table.append(Goal(what, "disk", goal, f"{more:.1%} of a core", more <= most))
    return table


def rivals(figures: Result) -> list[Rival]:
    """Where RabbitMQ takes less CPU for an answer, or its publishers wait for less."""
    brokers = figures.get("management", {}).get("brokers", {})
    if len(brokers) < 2:
        return []
    ours, theirs = brokers["Penstock"], brokers["RabbitMQ"]
    found = []
    for what, row in ours["asked"].items():
        if what in theirs["asked"]:
            cpu_ms = {"RabbitMQ": theirs["asked"][what]["cpu_s"] * 1000}
            found += best_rival(f"management: {what}", "CPU ms", row["cpu_s"] * 1000, cpu_ms)
    for what, times in ours["confirm_ms"].items():
        p99 = {"RabbitMQ": theirs["confirm_ms"][what][1]}
        found += best_rival(f"management: confirm, {what}, p99", "ms", times[1], p99)
    return found


def asked(found: Result) -> str:
    """What each address costs."""
    brokers = found["brokers"]
    head = ["what"]
    for name in brokers:
        head += [f"{name}, s", f"{name}, CPU s", f"{name}, kB"]
    rows = []
    for what in brokers["Penstock"]["asked"]:
        cells = [what]
        for broker in brokers.values():
            row = broker["asked"].get(what)
            if row is None:
                cells += ["-", "-", "-"]
                continue
            cells += [f"{row['s']:.3f}", f"{row['cpu_s']:.4f}", f"{row['bytes'] / 1000:,.0f}"]
        rows.append([*cells, f"{brokers['Penstock']['asked'][what]['turn_ms']:.1f}"])
    return markdown([*head, "longest turn, ms"], rows)


def delays(found: Result) -> str:
    """How long a publisher waits for a confirm."""
    rows = [
        [name, what, *(f"{ms:.2f}" for ms in broker["confirm_ms"][what])]
        for name, broker in found["brokers"].items()
        for what in broker["confirm_ms"]
    ]
    return markdown(["broker", "the publisher is", "p50, ms", "p99, ms", "longest, ms"], rows)


def dashboard(found: Result) -> str:
    """What each process takes."""
    rows = []
    for beside, of_pages in found["cpu"].items():
        for pages, runs in of_pages.items():
            cells = [dashboard_cpu(found, beside, pages, name) for name in runs[0]]
            cells.append(dashboard_cpu(found, beside, pages))
            rows.append([f"{pages} open beside {beside}", *(f"{part:.2%}" for part in cells)])
    names = next(iter(next(iter(found["cpu"].values())).values()))[0]
    return markdown(["pages", *names, "all"], rows)


def sections(found: Result, table: list[Goal]) -> list[str]:
    """Titles and tables in Markdown, which reads well on a terminal too."""
    figures = found["figures"]
    parts = [where(found)]
    if lists := figures.get("management"):
        parts += [
            f"### {lists['queues']:,} queues and {lists['connections']:,} connections",
            asked(lists), "### A publisher with confirms, one message at a time", delays(lists),
        ]  # fmt: skip
    if pages := figures.get("dashboard"):
        parts += [
            f"### The dashboard beside {pages['queues']:,} queues and {pages['connections']:,} "
            "connections, parts of a core",
            dashboard(pages),
        ]  # fmt: skip
    return [*parts, "### Goals: the management API", goal_table(table)]
