"""What was measured of the broker, and of RabbitMQ beside it, as tables."""

import statistics
from collections.abc import Callable

from report import Goal, Result, Rival, best_rival, goal_table, markdown, three, where

INTRODUCTION = """
## The broker

`penstock serve` beside RabbitMQ, which takes turns with it in the same run on the same machine;
what drives and checks them is bench/amqpload, a client in C on the same two cores. µs are CPU of
the server's whole process tree per message published and delivered: wall clock on a shared machine
is noise, CPU is much less so. Penstock runs compiled and as plain Python (*pure*); RabbitMQ is the
distribution's package with its defaults, classic queues and no plugins, and it confirms a
persistent message once it is written, not synced: beside it stands Penstock `os` as much as `disk`.
Each broker has published and delivered some messages before anything is measured.
"""

PLOTS = """
![CPU per message of Penstock and RabbitMQ](broker-cpu.png)

![Latency at 5,000 messages per second](broker-latency.png)
"""

# row -> the most µs that it may take, and what it aims at: in `disk`
CPU_GOALS = {
    "transient": {
        "16 B, no_ack": (2.0, 0.8), "16 B, acks": (3.0, 1.2),
        "256 B, no_ack": (2.2, 1.0), "256 B, acks": (3.5, 1.5),
        "1,024 B, acks": (6.0, 3.0), "16,384 B, acks": (20.0, 12.0),
    },
    "persistent": {
        "256 B, confirms and acks": (7.0, 3.0), "1,024 B, confirms and acks": (10.0, 5.0),
        "256 B, published into a backlog": (4.0, 2.0), "256 B, backlog drained": (3.0, 1.5),
    },
}  # fmt: skip
# in `os`: as much as LavinMQ takes, which does not sync either
OS_GOALS = {
    "256 B, confirms and acks": 8.3, "1,024 B, confirms and acks": 10.9,
    "256 B, published into a backlog": 2.5, "256 B, backlog drained": 2.8,
}  # fmt: skip

MILLION_RIVALS = {
    "ram_per_message": "B", "disk_per_message": "B", "first_s_after_stop": "s",
    "first_s_after_kill": "s",
}  # fmt: skip
DISK, OS, RABBITMQ = "Penstock disk", "Penstock os", "RabbitMQ"
GROUPS = {
    "transient": ("### Transient messages", "Published and consumed at once, without confirms."),
    "persistent": (
        "### Persistent messages",
        "Durable queue, at most 1,000 confirms outstanding, prefetch 200. A backlog is published "
        "with nobody consuming, and then drained: µs per publish, and per delivery.",
    ),
    "shapes": (
        "### Other shapes",
        "*Varied*: sizes from 128 to 384 B, another property list in each message, 1,000 keys of a "
        "topic exchange to 8 queues, 1,000 more bindings that match nothing, each message acked by "
        "itself. Others: 256 B unless stated otherwise.",
    ),
    "queues": ("### Many queues", "Durable queues, one channel; CPU per queue, then per message."),
}


def goals(figures: Result) -> list[Goal]:
    """Every figure that has a goal, by the median of the runs."""
    table: list[Goal] = []
    for group, named in CPU_GOALS.items():
        for row in figures.get(group, []):
            if row["what"] in named:
                table += cpu_goals(group, row, *named[row["what"]])
    table += [
        Goal(one.what, "disk", f"≤ RabbitMQ, {one.theirs:.2f} µs", f"{one.ours:.2f} µs", False)
        for one in cpu_rivals(figures)
    ]  # told only if it is not so: Penstock takes less CPU than RabbitMQ, in every row
    for row in figures.get("million", []):
        if row["peer"].startswith(DISK):
            table += million_goals(row)
    for row in figures.get("fanout", []):
        if row["peer"] == DISK:
            bytes_ = row["disk_per_message"]
            name = f"disk for 1 KiB to ten queues, {row['count']:,} messages, log included"
            table.append(Goal(name, "disk", "≤ 2,000 B", f"{bytes_:,.0f} B", bytes_ <= 2000))
    if "publish" in figures.get("limit", {}):
        found = figures["limit"]
        is_met = found["publish"]["is_ok"] and found.get("drain", {}).get("is_ok", False)
        name = f"{found['count']:,} x 1 KiB within {found['limit'] >> 20} MiB"
        text = "completes" if is_met else "does not complete"
        table.append(Goal(name, "disk", "completes", text, is_met))
    return table


def cpu_goals(group: str, row: Result, most: float, aim: float) -> list[Goal]:
    """The row's goals in `disk`, and in `os` if it has one."""
    table = []
    name = f"{group}, {row['what']}: CPU per message"
    mode = "disk" if group == "persistent" else "any"
    for peer, its_mode, limit, text in (
        (DISK, mode, most, f"≤ {most:g} µs, aim {aim:g}"),
        (OS, "os", OS_GOALS.get(row["what"], 0.0), f"≤ {OS_GOALS.get(row['what'], 0):g} µs"),
    ):
        values = row["peers"].get(peer, {}).get("server_us_per_msg")
        if values and (peer == DISK or group == "persistent"):
            median = statistics.median(values)
            table.append(Goal(name, its_mode, text, f"{three(values)} µs", median <= limit))
    return table


def million_goals(row: Result) -> list[Goal]:
    count = f"{row['count']:,}{row['peer'].removeprefix(DISK)}"
    ram, seconds = row["ram_per_message"], row["first_s_after_kill"]
    return [
        Goal(f"RAM per queued 256 B message, {count}", "disk", "≤ 16 B, aim 1", f"{ram:.1f} B",
             ram <= 16),
        Goal(f"first message after kill -9, {count} queued", "disk", "≤ 1.5 s, aim 0.5",
             f"{seconds:.2f} s" if seconds is not None else "none",
             seconds is not None and seconds <= 1.5),
    ]  # fmt: skip


def beside(what: str, unit: str, values: dict[str, float]) -> list[Rival]:
    """RabbitMQ, if it takes less than Penstock `disk`. values: by the names of brokers."""
    others = {peer: value for peer, value in values.items() if peer == RABBITMQ}
    return best_rival(what, unit, values.get(DISK), others)


def cpu_rivals(figures: Result) -> list[Rival]:
    """Where RabbitMQ takes less CPU per message."""
    found = []
    for group in GROUPS:
        for row in figures.get(group, []):
            us = {
                peer: statistics.median(run["server_us_per_msg"])
                for peer, run in row["peers"].items()
                if "server_us_per_msg" in run
            }
            found += beside(f"{group}: {row['what']}", "µs", us)
    return found


def rivals(figures: Result) -> list[Rival]:
    """Where RabbitMQ takes less CPU, time, RAM or disk than Penstock `disk`."""
    found = cpu_rivals(figures)
    for row in figures.get("latency", []):
        for key in ("p50", "p99", "p99_9"):
            ms = {
                peer: statistics.median(run["latency_us"][key] for run in runs) / 1000
                for peer, runs in row["peers"].items()
                if runs and all("latency_us" in run for run in runs)
            }
            found += beside(f"latency, {row['what']}, {key.replace('_', '.')}", "ms", ms)
    for group, keys in (("million", MILLION_RIVALS), ("fanout", {"disk_per_message": "B"})):
        rows = {row["peer"]: row for row in figures.get(group, [])}
        for key, unit in keys.items():
            values = {peer: row[key] for peer, row in rows.items() if row.get(key) is not None}
            found += beside(f"{group}: {key.replace('_', ' ')}", unit, values)
    return found


def sections(found: Result, table: list[Goal]) -> list[str]:
    """Titles and tables in Markdown, which reads well on a terminal too."""
    figures = found["figures"]
    parts = [where(found) + versions(figures)]
    if "transient" in figures and "latency" in figures:
        parts.append(PLOTS.strip())
    for group, (title, note) in GROUPS.items():
        if group in figures:
            parts += [title, note, cpu_table(figures[group])]
    if "latency" in figures:
        parts += ["### Latency", LATENCY_NOTE, latency_table(figures["latency"])]
    if "million" in figures:
        parts += ["### A large backlog in the broker", MILLION_NOTE]
        parts.append(million_table(figures["million"]))
    if "fanout" in figures:
        parts += ["### One message, ten queues", FAN_OUT_NOTE, fan_out_table(figures["fanout"])]
    if "limit" in figures:
        parts += ["### Little memory", limit_text(figures["limit"])]
    wrong = wrong_rows(figures)
    if wrong:
        parts.append("**Not as it should be (lost, twice, altered, stalled or closed):** " + wrong)
    return [*parts, "### Goals of the broker", goal_table(table)]


def versions(figures: Result) -> str:
    its = figures.get("versions", {}).get(RABBITMQ)
    return f" RabbitMQ {its}." if its else ""


LATENCY_NOTE = (
    "At 5,000 messages per second of 256 B, from when each was due to be sent until it arrived, "
    "in ms; medians of the runs. Each delivery is acked by itself. The backlog is built by another "
    "producer as fast as the broker allows, of persistent messages with confirms."
)
MILLION_NOTE = (
    "Persistent messages of 256 B, published with confirms into a queue without a consumer. RAM "
    "is what the server took more than before, disk all that its files occupy, log included. Then "
    "an orderly stop, and a kill -9 of all its processes at once, each followed by a start: "
    "seconds until the first message was delivered, the start of the server included. At the end "
    "all are drained, and each is checked. Penstock keeps bodies in RAM as long as its budget "
    "allows, by default two fifths of the machine; a smaller one, 32 MiB, shows what a backlog "
    "costs that has to be on disk."
)
FAN_OUT_NOTE = (
    "Persistent, 1 KiB, by a fanout exchange to ten durable queues. Disk is all that the broker's "
    "files occupy, log and the space kept for it included, after a checkpoint."
)


def names(rows: list[Result]) -> list[str]:
    """The brokers in these rows, in the order in which they were measured."""
    return list(dict.fromkeys(name for row in rows for name in row["peers"]))


def cpu_table(rows: list[Result]) -> str:
    peers = names(rows)
    head = ["message", *(f"{p}, µs" for p in peers), *(f"{p}, per s" for p in peers)]
    lines = []
    for row in rows:
        found = [row["peers"].get(peer, {}) for peer in peers]
        cpu = [three(f["server_us_per_msg"]) if "server_us_per_msg" in f else "-" for f in found]
        rates = [f"{statistics.median(f['msgs_s']):,.0f}" if "msgs_s" in f else "-" for f in found]
        lines.append([row["what"], *cpu, *rates])
    return markdown(head, lines)


def latency_table(rows: list[Result]) -> str:
    lines = []
    for row in rows:
        for peer, runs in row["peers"].items():
            told = [run["latency_us"] for run in runs if "latency_us" in run]
            if told:
                times = [
                    f"{statistics.median(one[key] for one in told) / 1000:.2f}"
                    for key in ("p50", "p99", "p99_9", "max")
                ]
                rate = statistics.median(run["msgs_s"] for run in runs if "msgs_s" in run)
                lines.append([row["what"], peer, *times, f"{rate:,.0f}"])
    return markdown(["situation", "broker", "p50", "p99", "p99.9", "most", "per s"], lines)


def million_table(rows: list[Result]) -> str:
    """A column per broker."""
    told: dict[str, Callable[[Result], str]] = {
        "messages": lambda row: f"{row['count']:,}",
        "RAM per message, B": lambda row: f"{row['ram_per_message']:,.1f}",
        "of it not files, B": lambda row: f"{row['anonymous_per_message']:,.1f}",
        "disk per message, B": lambda row: f"{row['disk_per_message']:,.0f}",
        "CPU per publish, µs": lambda row: cpu_of(row["publish"]),
        "publishes per s": lambda row: rate_of(row["publish"]),
        "first message after a stop, s": lambda row: seconds_of(row["first_s_after_stop"]),
        "first message after kill -9, s": lambda row: seconds_of(row["first_s_after_kill"]),
        "CPU per delivery, drained, µs": lambda row: cpu_of(row["drain"]),
        "deliveries per s": lambda row: rate_of(row["drain"]),
        "all there, once, in order": lambda row: "yes" if row["drain"]["is_ok"] else "NO",
    }
    lines = [[title, *(of(row) for row in rows)] for title, of in told.items()]
    return markdown(["", *(row["peer"] for row in rows)], lines)


def fan_out_table(rows: list[Result]) -> str:
    lines = []
    for row in rows:
        bytes_ = f"{row['disk_per_message']:,.0f}"
        lines.append([row["peer"], f"{row['count']:,}", bytes_, cpu_of(row["publish"])])
    return markdown(["broker", "messages", "disk per message, B", "µs per publish"], lines)


def limit_text(found: Result) -> str:
    if "reason" in found:
        return f"Not measured: {found['reason']}."
    how = "completes" if found.get("drain", {}).get("is_ok") else "does NOT complete"
    return (
        f"{found['count']:,} persistent messages of 1 KiB into a queue and out again, in a memory "
        f"cgroup of {found['limit'] >> 20} MiB (page cache included): {how}. "
        f"{cpu_of(found['publish'])} µs per publish, {cpu_of(found.get('drain', {}))} per delivery."
    )


def cpu_of(run: Result) -> str:
    return f"{run['server_us_per_msg']:.2f}" if "server_us_per_msg" in run else "-"


def rate_of(run: Result) -> str:
    return f"{run['msgs_s']:,.0f}" if "msgs_s" in run else "-"


def seconds_of(value: float | None) -> str:
    return "never" if value is None else f"{value:.2f}"


def wrong_rows(figures: Result) -> str:
    """The rows in which something was not as it should be."""
    wrong = []
    for group in (*GROUPS, "latency"):
        for row in figures.get(group, []):
            for peer, found in row["peers"].items():
                runs = found if isinstance(found, list) else [found]
                if not all(run["is_ok"] for run in runs):
                    wrong.append(f"{group}, {row['what']}, {peer}")
    for group in ("million", "fanout"):
        for row in figures.get(group, []):
            wrong += [
                f"{group}, {step}, {row['peer']}"
                for step in ("publish", "drain")
                if step in row and not row[step]["is_ok"]
            ]
    return "; ".join(wrong)
