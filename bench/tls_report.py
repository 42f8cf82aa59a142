"""What was measured of messages over TLS, as a table."""

import statistics

from report import Goal, Result, Rival, best_rival, goal_table, markdown, where

INTRODUCTION = """
## TLS

The same messages over a plain connection and over TLS 1.3: µs are CPU of the server's whole process
tree per message of 256 B with confirms, medians of runs in which the brokers and the two kinds of
connection take turns (bench/tls.py has the client). `published`: 100 in a write, at most 1,000
unconfirmed; `consumed`: a prefetch of 1,000, an ack for each 100; `one at a time`: each waits for
its confirm; `RPC`: a request and its answer by a private queue, one at a time. RabbitMQ and LavinMQ
confirm a persistent message before a sync, so they stand beside Penstock `os`. Where Penstock's
factors come from: [decision 70](../decisions/70-tls-records.md).
"""

PENSTOCK = ("Penstock os", "Penstock disk")
PEERS = (*PENSTOCK, "LavinMQ", "RabbitMQ")
FACTOR_MAX = 1.6


def medians(row: Result, peer: str) -> tuple[float, float]:
    """Of plain and TLS."""
    found = row["us"][peer]
    return statistics.median(found["plain"]), statistics.median(found["TLS"])


def goals(figures: Result) -> list[Goal]:
    """The factor of each cell of Penstock."""
    table = []
    for row in figures.get("tls", []):
        for peer in PENSTOCK:
            plain, tls = medians(row, peer)
            times = tls / plain
            name = f"{row['what']}, CPU over TLS"
            table.append(
                Goal(name, peer.split()[1], f"≤ {FACTOR_MAX:g} times plain", f"{times:.2f} times",
                     times <= FACTOR_MAX)
            )  # fmt: skip
    return table


def rivals(figures: Result) -> list[Rival]:
    """Where another broker takes less CPU over TLS than Penstock `os`."""
    found = []
    for row in figures.get("tls", []):
        us = {peer: medians(row, peer)[1] for peer in row["us"]}
        others = {peer: us[peer] for peer in PEERS if peer in us and peer not in PENSTOCK}
        found += best_rival(f"over TLS: {row['what']}", "µs", us.get(PENSTOCK[0]), others)
    return found


def sections(found: Result, table: list[Goal]) -> list[str]:
    """Titles and tables in Markdown, which reads well on a terminal too."""
    parts = [where(found)]
    rows = found["figures"].get("tls", [])
    if rows:
        peers = [peer for peer in PEERS if peer in rows[0]["us"]]
        cells = []
        for row in rows:
            line = [row["what"]]
            for peer in peers:
                plain, tls = medians(row, peer)
                line.append(f"{plain:.2f} → {tls:.2f} ({tls / plain:.2f})")
            cells.append(line)
        parts += ["### Plain → TLS (factor), µs", markdown(["what", *peers], cells)]
    if table:
        parts += ["### Goals: TLS", goal_table(table)]
    return parts
