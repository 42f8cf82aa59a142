"""LavinMQ beside Penstock, where its program is given.

LAVINMQ_NODE names a script that is called with `start`, `pid` or `stop`, and takes its directory
and port from LAVIN_DIR and LAVIN_PORT; for the part `tls` also LAVIN_TLS_PORT, LAVIN_CERT and
LAVIN_KEY, if they are set (--amqps-port, --cert and --key of the server). LavinMQ confirms a
persistent message without waiting for a sync, so it stands beside Penstock in `os`.
"""

import os
import subprocess
from pathlib import Path

from brokers import Broker, free_port

NODE = "LAVINMQ_NODE"


def missing() -> str:
    """Return "", or why it cannot be measured."""
    node = os.environ.get(NODE, "")
    if not node:
        return f"{NODE} is not set: the path of a script that starts LavinMQ"
    return "" if Path(node).is_file() else f"{NODE}: there is no file {node}"


class LavinMQ(Broker):
    """A node of its own."""

    name = "LavinMQ"

    def __init__(self, data: Path) -> None:
        super().__init__(data)
        self.port = free_port()
        self._server = 0

    @property
    def files(self) -> Path:
        return self.data / "data"

    @property
    def pid(self) -> int:
        """The server, which the script leaves behind."""
        return self._server

    @property
    def is_running(self) -> bool:
        return True  # it answers, or `start` ends after its limit

    def command(self) -> tuple[list[str], dict[str, str]]:
        if self.certificates is not None:
            self.tls_port = self.tls_port or free_port()
        return self._script("start"), self._environment()

    def is_listening(self) -> bool:
        assert self._process is not None
        if self._process.wait() != 0:
            return False
        done = subprocess.run(
            self._script("pid"), capture_output=True, text=True, check=True,
            env={**os.environ, **self._environment()},
        )  # fmt: skip
        self._server = int(done.stdout)
        return super().is_listening()

    def kill(self) -> None:
        if self._server:
            subprocess.run(
                self._script("kill"), capture_output=True,
                env={**os.environ, **self._environment()},
            )  # fmt: skip
            self._server = 0
        self._process = None

    def _script(self, verb: str) -> list[str]:
        return ["sh", os.environ[NODE], verb]

    def _environment(self) -> dict[str, str]:
        found = {"LAVIN_DIR": str(self.data), "LAVIN_PORT": str(self.port)}
        if self.certificates is not None:
            found |= {
                "LAVIN_TLS_PORT": str(self.tls_port),
                "LAVIN_CERT": str(self.certificates / "server.pem"),
                "LAVIN_KEY": str(self.certificates / "server.key"),
            }
        return found
