"""Messages over TLS and over plain connections: Penstock, RabbitMQ and LavinMQ in turn, in one run.

The certificates are those of `penstock tls self-signed`. Cells are in tls.py, tables in
tls_report.py.
"""

import json
import subprocess
import sys
from collections.abc import Callable

from brokers import Broker
from runner import HERE, Result, Runner
from single_bench import all_brokers

PLAIN, TLS = "plain", "TLS"


class TlsBench(Runner):
    """One scenario; `figures` has its rows by the name of the cell."""

    script = "tls.py"

    def scenarios(self) -> dict[str, Callable[[], None]]:
        return {"tls": self.tls}

    def tls(self) -> None:
        """Each cell on each broker in turn, plain and over TLS, so often."""
        certificates = self.data / "certificates"
        self._run("-m", "penstock", "tls", "self-signed", str(certificates))
        rows: dict[str, dict[str, dict[str, list[float]]]] = {}
        nodes = all_brokers(self.data, self.say)
        try:
            for node in nodes:
                node.certificates = certificates
                node.start()
            for run in range(self.pick(1, 5)):
                for node in nodes if run % 2 == 0 else nodes[::-1]:
                    self.say(f"TLS: {node.name}, run {run + 1}")
                    for kind in (PLAIN, TLS):
                        for cell in self._measured(node, kind):
                            us = rows.setdefault(cell["cell"], {}).setdefault(node.name, {})
                            us.setdefault(kind, []).append(cell["us"])
        finally:
            for node in nodes:
                node.end()
        self.figures["tls"] = [{"what": cell, "us": found} for cell, found in rows.items()]

    def _measured(self, node: Broker, kind: str) -> list[Result]:
        words = [str(node.port if kind == PLAIN else node.tls_port), str(node.pid)]
        if kind == TLS:
            words += ["--ca", str(self.data / "certificates" / "ca.pem")]
        scale = str(self.pick(0.1, 1.0))
        lines = self._run(str(HERE / self.script), *words, "--scale", scale).splitlines()
        return [json.loads(line) for line in lines]

    def _run(self, *words: str) -> str:
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{' '.join(words)}: {done.stderr.strip()[-1000:]}")
        return done.stdout
