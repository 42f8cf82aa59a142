"""Redis streams beside Penstock: nodes that take turns, and the table (cells in redis_cells.py).

Redis is the distribution's package, with its append-only file: `everysec` answers when a command is
written, as Penstock does in `os`, and `always` when it is synced, as in `disk`. Without
`redis-server` on the path nothing is measured.
"""

import json
import shutil
import socket
import statistics
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import load
from brokers import Broker, free_port
from penstock_node import PenstockNode
from report import Goal, Result, Rival, best_rival, markdown, where
from runner import HERE, Runner

SERVER = "redis-server"
INTRODUCTION = """
## Redis streams

A stream with a group of consumers as a queue, beside a durable queue with persistent messages of
256 B (bench/redis_cells.py has the client and what each row is). µs are CPU of all of the server's
processes per message, medians of runs in which the servers take turns. `everysec` and `os` answer
after the write, `always` and `disk` after a sync.
"""


class Redis(Broker):
    """A server with an append-only file, synced as `mode` says."""

    def __init__(self, data: Path, mode: str) -> None:
        super().__init__(data)
        self.name = f"Redis {mode}"
        self.mode = mode
        said = subprocess.run([SERVER, "--version"], capture_output=True, text=True).stdout
        self.version = said.partition("v=")[2].split()[0]

    @property
    def files(self) -> Path:
        return self.data / "data"

    def command(self) -> tuple[list[str], dict[str, str]]:
        self.files.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        return [
            SERVER, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.files),
            "--appendonly", "yes", "--appendfsync", self.mode, "--save", "",
        ], {}  # fmt: skip

    def is_listening(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port)) as sock:
            sock.sendall(b"PING\r\n")
            return sock.recv(16).startswith(b"+PONG")
        return False


class RedisBench(Runner):
    """One scenario; `figures` has its rows by the name of the cell."""

    script = "redis_cells.py"

    def scenarios(self) -> dict[str, Callable[[], None]]:
        return {"redis": self.redis}

    def redis(self) -> None:
        """Each server in turn, so often."""
        if shutil.which(SERVER) is None:
            self.say(f"without Redis: {SERVER} is not installed (apt install redis-server)")
            return
        load.build()
        nodes: list[Broker] = []
        for mode, sync in (("os", "everysec"), ("disk", "always")):
            nodes.append(PenstockNode(self.data / mode, mode, is_pure=False))
            nodes.append(Redis(self.data / sync, sync))
        rows: dict[str, dict[str, list[float]]] = {}
        try:
            for node in nodes:
                node.start()
            for run in range(self.pick(1, 5)):
                for node in nodes if run % 2 == 0 else nodes[::-1]:
                    self.say(f"Redis streams: {node.name}, run {run + 1}")
                    for cell, value in self._measured(node):
                        rows.setdefault(cell, {}).setdefault(node.name, []).append(value)
        finally:
            for node in nodes:
                node.end()
        self.figures["redis"] = {
            "versions": {node.name: node.version for node in nodes},
            "rows": [{"what": cell, "values": found} for cell, found in rows.items()],
        }

    def _measured(self, node: Broker) -> list[tuple[str, float]]:
        kind = "redis" if isinstance(node, Redis) else "penstock"
        words = [str(HERE / self.script), kind, str(node.port), str(node.pid)]
        done = subprocess.run(
            [sys.executable, *words, "--scale", str(self.pick(0.1, 1.0))], capture_output=True,
            text=True,
        )  # fmt: skip
        if done.returncode:
            sys.exit(f"{self.script} with {node.name}: {done.stderr.strip()[-1000:]}")
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        return [(line["cell"], line["value"]) for line in lines]


def goals(_figures: Result) -> list[Goal]:
    """None: it is another kind of server."""
    return []


def rivals(figures: Result) -> list[Rival]:
    """Where Redis takes less, each beside the mode that promises the same."""
    found = []
    names = list(figures["redis"]["versions"]) if figures.get("redis") else []
    for ours, theirs in zip(names[::2], names[1::2], strict=True):
        for row in figures["redis"]["rows"]:
            values = {name: statistics.median(row["values"][name]) for name in (ours, theirs)}
            what = f"beside Redis streams, {ours.split()[-1]}: {row['what'].removesuffix(', µs')}"
            found += best_rival(what, "µs", values[ours], {theirs: values[theirs]})
    return found


def sections(found: Result, _table: list[Goal]) -> list[str]:
    """Titles and tables in Markdown, which reads well on a terminal too."""
    figures = found["figures"].get("redis")
    if not figures:
        return []
    names = list(figures["versions"])
    pairs = list(zip(names[::2], names[1::2], strict=True))  # those that promise the same
    rows = []
    for row in figures["rows"]:
        medians = {name: statistics.median(row["values"][name]) for name in names}
        times = [medians[ours] / medians[theirs] for ours, theirs in pairs]
        rows.append([
            row["what"], *(f"{medians[name]:,.2f}" for name in names),
            *(f"{one:.2f}" for one in times),
        ])  # fmt: skip
    ratios = [f"{ours} / {theirs}" for ours, theirs in pairs]
    redis = figures["versions"][names[1]]
    return [where(found), f"Redis {redis}.", markdown(["what", *names, *ratios], rows)]
