"""Penstock as it is installed: `penstock serve` on a free port, compiled or as plain Python.

"pure" is the same source from src/, uncompiled, run by the same interpreter: PYTHONPATH names it
before what is installed. All of its options are the defaults but for the durability.
"""

import re
import subprocess
import sys
from pathlib import Path

from brokers import Broker
from runner import ROOT

import penstock

READY = re.compile(r"is ready: amqp://\S*?:(\d+)/")
TLS_PORT = re.compile(r"is ready: .*amqps://\S*?:(\d+)/")


class PenstockNode(Broker):
    """A server in `mode`, "disk" or "os". memory: its --memory, "" for the default."""

    def __init__(self, data: Path, mode: str, *, is_pure: bool, memory: str = "") -> None:
        super().__init__(data)
        self.mode = mode
        self.is_pure = is_pure
        self.name = f"Penstock {mode}{', pure' * is_pure}{f', --memory {memory}' * bool(memory)}"
        self.version = penstock.__version__
        self._memory = memory
        self._log_bytes_before = 0

    @property
    def files(self) -> Path:
        return self.data / "data"

    def command(self) -> tuple[list[str], dict[str, str]]:
        self._log_bytes_before = self.log.stat().st_size if self.log.exists() else 0
        self.port = 0
        options = ["--port", "0", "--data", str(self.files), "--durability", self.mode]
        if self._memory:
            options += ["--memory", self._memory]
        source = str(ROOT / "src") if self.is_pure else ""
        environment = {"PYTHONPATH": source, "PENSTOCK_HTTP_PORT": "off"}
        if self.certificates is not None:
            environment |= {
                "PENSTOCK_TLS_CERT": str(self.certificates / "server.pem"),
                "PENSTOCK_TLS_KEY": str(self.certificates / "server.key"),
                "PENSTOCK_TLS_PORT": "0", "PENSTOCK_TLS_HTTP_PORT": "off",
            }  # fmt: skip
        return [sys.executable, "-m", "penstock", "serve", *options], environment

    def checkpoint(self) -> None:
        """Write one now."""
        command = [sys.executable, "-m", "penstock", "checkpoint", "--data", str(self.files)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        if done.returncode:
            print(f"!! no checkpoint: {done.stderr.strip()}", file=sys.stderr)

    def is_listening(self) -> bool:
        if not self.port:
            with self.log.open("rb") as log:
                log.seek(self._log_bytes_before)
                text = log.read().decode(errors="replace")
            found, secure = READY.search(text), TLS_PORT.search(text)
            if found is None:
                return False
            self.port = int(found[1])
            self.tls_port = int(secure[1]) if secure is not None else 0
        return super().is_listening()
