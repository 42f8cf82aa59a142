"""What was measured of single messages, as tables."""

import statistics

from report import Goal, Result, goal_table, markdown, where

INTRODUCTION = """
## Single messages

What a message costs that comes alone: a request and its answer, a worker with a prefetch of 1, a
publisher that waits for each confirm; and messages that expire, are rejected, or belong to
transactions. µs are CPU of the server's whole process tree per message, medians of runs in which
the brokers take turns. A client of plain sockets drives them (bench/single.py). LavinMQ and
RabbitMQ confirm a persistent message before a sync, so they stand beside Penstock `os`. Bodies have
256 B unless stated otherwise. Most of such a message is the kernel's work, the same for all: wake
the process, receive, send, wake the client.
"""

OS, DISK, LAVINMQ, RABBITMQ = "Penstock os", "Penstock disk", "LavinMQ", "RabbitMQ"
PEERS = (OS, DISK, LAVINMQ, RABBITMQ)

# cell -> the most µs that it may take in `os`
GOALS = {
    "get of an empty queue": 28.0, "get and ack, publish": 34.0,
    "RPC, private reply queue": 54.0, "RPC, direct reply-to": 60.0, "RPC, 20 clients": 20.0,
    "prefetch 1, transient": 16.0, "prefetch 1, persistent": 22.0,
    "one publish, one confirm, persistent": 35.0,
    "1,000 messages/s with confirms": 80.0, "5,000 messages/s with confirms": 32.0,
    "200 connections, one confirm each": 34.0, "1,000 connections, one confirm each": 30.0,
    "connection: open, publish, close": 700.0, "channel open and close": 43.0,
    "expiry into a dead-letter queue": 8.5, "published without confirms, persistent": 1.3,
    "fan-out of 1 KiB to 10 queues: drain": 2.9,
    "tx.commit of each message": 120.0, "tx.commit of each 100": 6.0,
    "reject and requeue, queue of 1": 29.0, "reject and requeue, queue of 1,000": 8.0,
}  # fmt: skip
DISK_GOALS = {
    "prefetch 1, persistent": 45.0, "one publish, one confirm, persistent": 170.0,
    "published without confirms, persistent": 1.6, "fan-out of 1 KiB to 10 queues: publish": 18.0,
}  # fmt: skip


# cell of publishers.py -> the most µs of client and broker
PUBLISHER_GOALS = {"one at a time": 400.0, "window of 1,000": 12.0}


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
    for mode, peer, most in (("os", OS, GOALS), ("disk", DISK, DISK_GOALS)):
        for row in figures.get("single", []):
            if row["what"] in most and peer in row["us"]:
                us = statistics.median(row["us"][peer])
                goal = most[row["what"]]
                name = f"{row['what']}, CPU"
                table.append(Goal(name, mode, f"≤ {goal:g} µs", f"{us:.1f} µs", us <= goal))
    return table


def rivals(rows: list[Result]) -> str:
    """Where a rival takes less CPU than Penstock `os`."""
    found = []
    for row in rows:
        ours = statistics.median(row["us"].get(OS, [0.0]))
        for peer in (LAVINMQ, RABBITMQ):
            if peer in row["us"] and statistics.median(row["us"][peer]) < ours:
                theirs = statistics.median(row["us"][peer])
                found.append(
                    [row["what"], peer, f"{theirs:.1f}", f"{ours:.1f}", f"{ours / theirs:.2f}"]
                )
    if not found:
        return "In none of these cells does a rival take less CPU than Penstock `os`."
    return markdown(["what", "rival", "its µs", "Penstock os", "times"], found)


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
        parts += ["### Where a rival is cheaper", rivals(rows)]
        parts += ["### CPU per message, µs", markdown(["what", *peers], cells)]
    published = found["figures"].get("publishers", [])
    if published:
        title = "### Publishing from Python with confirms: CPU of client and broker, µs"
        parts += [title, publishers(published)]
    if table:
        parts += ["### Goals: single messages", goal_table(table)]
    return parts
