"""Write amplification: Penstock, RabbitMQ and LavinMQ in turn, in one run.

What each broker sends to the disk for a byte of message body: while messages come and go (steady),
while a backlog is published, and while it is drained. Everything counts: log, checkpoints, segments
and stores of bodies, and each page of 4 KiB as often as it becomes dirty. Before and after each
run all goes to the disk (`sync`): a file that is deleted later counts, one that a run both writes
and deletes does not, as on the disk itself.
"""

import os
from collections.abc import Callable

from broker_cells import ACKS, DURABLE, warm_up
from brokers import Broker
from report import Goal, Rival, best_rival, markdown, where
from runner import Result, Runner
from single_bench import all_brokers

INTRODUCTION = """
## Write amplification

Bytes sent to the disk per byte of message body, of the server's whole process tree (`write_bytes`
of /proc/PID/io), persistent messages with 1,000 unconfirmed at most, acks of 50. `steady`:
published and consumed at once. `published`: into a backlog. `drained`: the same backlog. Log,
checkpoints, segments and stores of bodies count, and each page of 4 KiB as often as it goes to the
disk. RabbitMQ and LavinMQ confirm a persistent message before a sync, so they stand beside Penstock
`os`; `disk` adds a page for each sync. Pages that a run deletes before the system writes them do
not count, so brokers that do not sync gain by short runs. Each broker has worked just before: after
a minute of rest Penstock gives the segments of its log back, and the first 64 MiB after it are
written a second time, as zeros.
"""

PEERS = ("Penstock os", "Penstock disk", "LavinMQ", "RabbitMQ")
SIZES = (16, 256, 1 << 10, 16 << 10, 1 << 20)
BYTES = 64 << 20  # of bodies in a cell, unless that were more messages than this
MESSAGES = 200_000
MIN_MESSAGES = 100


class WritesBench(Runner):
    """One scenario; `figures` has its rows by size and shape."""

    script = "writes.py"

    def scenarios(self) -> dict[str, Callable[[], None]]:
        return {"writes": self.writes}

    def writes(self) -> None:
        """Each cell on each broker."""
        rows: dict[tuple[int, str], dict[str, float]] = {}
        nodes = all_brokers(self.data, self.say)
        try:
            for node in nodes:
                node.start()
            for size in SIZES:
                count = max(MIN_MESSAGES, min(self.pick(BYTES // 10, BYTES) // size, MESSAGES))
                for node in nodes:
                    self.say(f"bytes written: {node.name}, {size:,} B")
                    warm = warm_up(self.pick(0.1, 1))  # while others were measured it was idle
                    node.load()(warm.mode, *warm.options)
                    for shape, per_byte in amplification(node, size, count).items():
                        rows.setdefault((size, shape), {})[node.name] = per_byte
        finally:
            for node in nodes:
                node.end()
        self.figures["writes"] = [
            {"size": size, "shape": shape, "times": found} for (size, shape), found in rows.items()
        ]


def amplification(node: Broker, size: int, count: int) -> dict[str, float]:
    """Bytes written per byte of body, in each shape; the queue is gone afterwards."""
    name = ("-q", "writes", "-n", count, "-s", size)
    found: dict[str, float] = {}
    for shape, mode, options in (
        ("steady", "both", (*DURABLE, *ACKS, "--delete-after")),
        ("published", "publish", DURABLE),
        ("drained", "consume", ("--passive", *ACKS, "--delete-after")),
    ):
        os.sync()
        before = node.written()
        assert not node.load()(mode, *name, *options)["exit"], f"{node.name}: {shape} failed"
        os.sync()
        found[shape] = (node.written() - before) / (size * count)
    return found


def goals(figures: Result) -> list[Goal]:
    """None: the table says how it stands."""
    return []


def rivals(figures: Result) -> list[Rival]:
    """Where another broker writes less than Penstock `os`."""
    found = []
    for row in figures.get("writes", []):
        times = row["times"]
        others = {peer: times[peer] for peer in times if not peer.startswith("Penstock")}
        what = f"written to the disk: {row['size']:,} B, {row['shape']}"
        found += best_rival(what, "B per B", times.get("Penstock os"), others)
    return found


def sections(found: Result, table: list[Goal]) -> list[str]:
    """Titles and tables in Markdown, which reads well on a terminal too."""
    parts = [where(found)]
    rows = found["figures"].get("writes", [])
    if rows:
        peers = [peer for peer in PEERS if peer in rows[0]["times"]]
        cells = [
            [f"{row['size']:,}", row["shape"],
             *(f"{row['times'][peer]:.2f}" if peer in row["times"] else "-" for peer in peers)]
            for row in rows
        ]  # fmt: skip
        title = "### Bytes written per byte of body"
        parts += [title, markdown(["body, B", "what", *peers], cells)]
    return parts
