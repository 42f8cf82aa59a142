"""Single messages: Penstock, RabbitMQ and LavinMQ in turn, in one run (cells in single.py).

The client is a process of its own for each broker and run. Tables are in single_report.py. And
publishing from Python (cells in publishers.py): penstock.open and pika in turn, on one broker. And,
where `perf` can be run, what the CPU of each cell is spent in.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import cpu_profile
import lavinmq
import load
import rabbitmq
from brokers import Broker
from penstock_node import PenstockNode
from runner import HERE, Result, Runner
from single_report import LAVINMQ, OS

PROFILED = (OS, LAVINMQ)


def all_brokers(data: Path, say: Callable[[str], None]) -> list[Broker]:
    """All that there are, to be started."""
    load.build()
    there: list[Broker] = [
        PenstockNode(data / mode, mode, is_pure=False) for mode in ("os", "disk")
    ]
    for kind, reason in (
        (lavinmq.LavinMQ, lavinmq.missing()), (rabbitmq.RabbitMQ, rabbitmq.install()),
    ):  # fmt: skip
        if reason:
            say(f"without {kind.name}: {reason}")
        else:
            there.append(kind(data / kind.name.lower()))
    return there


class SingleBench(Runner):
    """One scenario; `figures` has its rows by the name of the cell."""

    script = "single.py"

    def scenarios(self) -> dict[str, Callable[[], None]]:
        return {"single": self.single, "publishers": self.publishers, "profile": self.profile}

    def single(self) -> None:
        """Each cell on each broker in turn, so often."""
        rows: dict[str, dict[str, list[float]]] = {}
        nodes = all_brokers(self.data, self.say)
        try:
            for node in nodes:
                node.start()
            for run in range(self.pick(1, 3)):
                for node in nodes if run % 2 == 0 else nodes[::-1]:
                    self.say(f"single messages: {node.name}, run {run + 1}")
                    for cell, us in self._measured(node):
                        rows.setdefault(cell, {}).setdefault(node.name, []).append(us)
        finally:
            for node in nodes:
                node.end()
        self.figures["single"] = [{"what": cell, "us": found} for cell, found in rows.items()]

    def publishers(self) -> None:
        """Each client in turn, so often, on one broker in `disk`."""
        rows: dict[str, dict[str, list[float]]] = {}
        node = PenstockNode(self.data / "publishers", "disk", is_pure=False)
        clients = ["penstock", "pika"]
        try:
            node.start()
            for run in range(self.pick(1, 3)):
                for client in clients if run % 2 == 0 else clients[::-1]:
                    self.say(f"publishing from Python: {client}, run {run + 1}")
                    for cell, us in self._measured(node, "publishers.py", client):
                        rows.setdefault(cell, {}).setdefault(client, []).append(us)
        finally:
            node.end()
        self.figures["publishers"] = [{"what": cell, "us": found} for cell, found in rows.items()]

    def profile(self) -> None:
        """What each cell spends its CPU in, with those that do not sync."""
        problem = cpu_profile.missing()
        if problem:
            self.say(f"without the profile: {problem}")
            return
        rows: dict[str, dict[str, dict[str, float]]] = {}
        for node in all_brokers(self.data, self.say):
            if node.name not in PROFILED:
                continue
            try:
                node.start()
                self.say(f"profile of single messages: {node.name}")
                for line in self._lines(node, "single.py", "--profile"):
                    rows.setdefault(line.pop("cell"), {})[node.name] = line
            finally:
                node.end()
        self.figures["profile"] = [{"what": cell, "parts": found} for cell, found in rows.items()]

    def _measured(
        self, node: Broker, script: str = "single.py", *words: str
    ) -> list[tuple[str, float]]:
        """CPU in µs per message, of each cell."""
        return [(line["cell"], line["us"]) for line in self._lines(node, script, *words)]

    def _lines(self, node: Broker, script: str, *words: str) -> list[Result]:
        """What a script of cells says of each cell of a broker."""
        command = [sys.executable, str(HERE / script), str(node.port), str(node.pid), *words]
        done = subprocess.run(
            [*command, "--scale", str(self.pick(0.2, 1.0))], capture_output=True, text=True
        )
        if done.returncode:
            sys.exit(f"{script} {' '.join(words)} with {node.name}: {done.stderr.strip()[-1000:]}")
        return [json.loads(line) for line in done.stdout.splitlines()]
