"""What was measured of single messages, as tables."""

import statistics

import cpu_profile
from report import Goal, Result, Rival, best_rival, goal_table, markdown, where

INTRODUCTION = """
## Single messages

What a message costs that comes alone: a request and its answer, a worker with a prefetch of 1, a
publisher that waits for each confirm; and messages that expire, are rejected, or belong to
transactions. µs are CPU of the server's whole process tree per message, medians of runs in which
the brokers take turns. A client of plain sockets drives them (bench/single.py). LavinMQ and
RabbitMQ confirm a persistent message before a sync, so they stand beside Penstock `os`. Bodies have
256 B unless stated otherwise. The samples of perf say why Penstock takes more than LavinMQ: the
kernel's part (wake the process, receive, send, wake the client) is about the same for both, and on
top of it come objects of CPython, in its own library and in the code that is compiled against it,
where LavinMQ is native code without them. A run of messages shares the kernel's part and most of
the calls; a message that comes alone shares nothing.
"""

OS, DISK, LAVINMQ, RABBITMQ = "Penstock os", "Penstock disk", "LavinMQ", "RabbitMQ"
PEERS = (OS, DISK, LAVINMQ, RABBITMQ)

# cell -> the most µs that it may take, in `os` and in `disk`: about what LavinMQ takes, and a sync
GOALS = {
    "get of an empty queue": (22, 22), "get and ack, publish": (26, 30),
    "RPC, private reply queue": (34, 38), "RPC, direct reply-to": (30, 34),
    "RPC, 20 clients": (18, 18), "prefetch 1, transient": (15, 15),
    "prefetch 1, persistent": (18, 24), "one publish, one confirm, persistent": (16, 150),
    "1,000 messages/s with confirms": (45, 180), "5,000 messages/s with confirms": (30, 100),
    "200 connections, one confirm each": (18, 20), "1,000 connections, one confirm each": (20, 22),
    "connection: open, publish, close": (350, 400), "channel open and close": (28, 30),
    "expiry into a dead-letter queue": (8, 8), "published without confirms, persistent": (1.1, 1.3),
    "fan-out of 1 KiB to 10 queues: publish": (13, 15),
    "fan-out of 1 KiB to 10 queues: drain": (2.4, 2.6),
    "tx.commit of each message": (70, 240), "tx.commit of each 100": (5, 7),
    "reject and requeue, queue of 1": (20, 22), "reject and requeue, queue of 1,000": (4, 4),
}  # fmt: skip

# cell of publishers.py -> the most µs of client and broker
PUBLISHER_GOALS = {"one at a time": 400.0, "window of 1,000": 12.0}


def profile_table(rows: list[Result], figures: Result) -> str:
    """What a message costs in each part of a broker, in µs: its share of the median."""
    us = {row["what"]: row["us"] for row in figures.get("single", [])}
    peers = [peer for peer in PEERS if peer in rows[0]["parts"]]
    cells = []
    for row in rows:
        cell = [row["what"]]
        for peer in peers:
            found = row["parts"].get(peer)
            medians = us.get(row["what"], {}).get(peer)
            for part in cpu_profile.PARTS:
                if found and medians:
                    cell.append(f"{found[part] * statistics.median(medians):.1f}")
                else:
                    cell.append("-")
        cells.append(cell)
    head = [f"{peer}: {part}" for peer in peers for part in cpu_profile.PARTS]
    return markdown(["what", *head], cells)


def publisher_goals(rows: list[Result]) -> list[Goal]:
    """What penstock.open may take, and at most half of what pika takes."""
    table = []
    for row in rows:
        us = {client: statistics.median(found) for client, found in row["us"].items()}
        name, ours = f"penstock.open, {row['what']}, CPU", us["penstock"]
        if row["what"] in PUBLISHER_GOALS:
            goal = PUBLISHER_GOALS[row["what"]]
            table.append(Goal(name, "disk", f"≤ {goal:g} µs", f"{ours:.1f} µs", ours <= goal))
        if "pika" in us:
            times = ours / us["pika"]
            table.append(
                Goal(name, "disk", "≤ 0.5 times pika's", f"{times:.2f} times", times <= 0.5)
            )
    return table


def publishers(rows: list[Result]) -> str:
    """What a message costs with each client."""
    clients = {"penstock": "penstock.open", "pika": "pika"}
    cells = [
        [
            row["what"],
            *(
                f"{statistics.median(row['us'][client]):.1f}" if client in row["us"] else "-"
                for client in clients
            ),
        ]
        for row in rows
    ]
    return markdown(["what", *clients.values()], cells)


def goals(figures: Result) -> list[Goal]:
    """Every figure that has a goal: medians."""
    table = publisher_goals(figures.get("publishers", []))
    for mode, peer, place in (("os", OS, 0), ("disk", DISK, 1)):
        for row in figures.get("single", []):
            if row["what"] in GOALS and peer in row["us"]:
                us = statistics.median(row["us"][peer])
                goal = GOALS[row["what"]][place]
                name = f"{row['what']}, CPU"
                table.append(Goal(name, mode, f"≤ {goal:g} µs", f"{us:.1f} µs", us <= goal))
    return table


def rivals(figures: Result) -> list[Rival]:
    """Where another broker takes less CPU than Penstock `os`: neither of them syncs; and where pika
    takes less than penstock.open, with the same broker."""
    found = []
    for row in figures.get("single", []):
        us = {peer: statistics.median(values) for peer, values in row["us"].items()}
        others = {peer: us[peer] for peer in (LAVINMQ, RABBITMQ) if peer in us}
        found += best_rival(f"single messages: {row['what']}", "µs", us.get(OS), others)
    for row in figures.get("publishers", []):
        us = {client: statistics.median(values) for client, values in row["us"].items()}
        name = f"publishing from Python: {row['what']}, client and broker"
        found += best_rival(name, "µs", us.pop("penstock", None), us)
    return found


def sections(found: Result, table: list[Goal]) -> list[str]:
    """Titles and tables in Markdown, which reads well on a terminal too."""
    rows = found["figures"].get("single", [])
    parts = [where(found)]
    if rows:
        peers = [peer for peer in PEERS if peer in rows[0]["us"]]
        cells = [
            [row["what"], *(f"{statistics.median(row['us'][peer]):.1f}" for peer in peers)]
            for row in rows
        ]
        parts += ["### CPU per message, µs", markdown(["what", *peers], cells)]
    profiled = found["figures"].get("profile", [])
    if profiled:
        title = "### What it is spent in: samples of `perf`, in µs per message"
        parts += [title, profile_table(profiled, found["figures"])]
    published = found["figures"].get("publishers", [])
    if published:
        title = "### Publishing from Python with confirms: CPU of client and broker, µs"
        parts += [title, publishers(published)]
    if table:
        parts += ["### Goals: single messages", goal_table(table)]
    return parts
