"""RabbitMQ beside Penstock: the distribution's package, a private node with no plugins.

Its own port, name, data, log and port mapper, so that it neither disturbs nor meets a node that
runs already; otherwise the package's defaults. Without the package, and as root on a system with
apt, it is installed, and the service that comes with it stopped and disabled.
"""

import os
import re
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

from brokers import Broker, free_port, tree

BIN = Path("/usr/lib/rabbitmq/bin")
SERVER = BIN / "rabbitmq-server"


def install() -> str:
    """Install it if it is missing; "" or why it cannot be had."""
    if SERVER.exists():
        return ""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return "it is not installed, and only root can, with apt-get"
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (
        ["apt-get", "update", "-qq"],
        ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "rabbitmq-server"],
    ):
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if done.returncode and "install" in command:
            return f"apt-get: {done.stderr.strip()[-300:]}"
    for command in (
        ["systemctl", "disable", "--now", "rabbitmq-server"],
        ["service", "rabbitmq-server", "stop"],
    ):
        with suppress(OSError):
            subprocess.run(command, capture_output=True)
    return "" if SERVER.exists() else f"{SERVER} is not there after apt-get install"


def version() -> str:
    """Of RabbitMQ and of Erlang, as "3.10.8, Erlang 25"."""
    homes = sorted(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*"))
    releases = sorted(Path("/usr/lib/erlang/releases").glob("[0-9]*"))
    number = homes[-1].name.partition("-")[2] if homes else "?"
    return f"{number}, Erlang {releases[-1].name if releases else '?'}"


class RabbitMQ(Broker):
    """A node of its own."""

    name = "RabbitMQ"

    def __init__(self, data: Path) -> None:
        super().__init__(data)
        self.version = version()
        self.port = free_port()
        self._mapper_port = free_port()
        self._distribution_port = free_port()

    @property
    def files(self) -> Path:
        return self.data / "data"

    def command(self) -> tuple[list[str], dict[str, str]]:
        for name in ("home", "data", "log"):
            (self.data / name).mkdir(parents=True, exist_ok=True)
        plugins = self.data / "enabled_plugins"
        plugins.write_text("[].\n")
        if self.certificates is not None:
            self.tls_port = self.tls_port or free_port()
            lines = {
                "listeners.ssl.1": f"127.0.0.1:{self.tls_port}",
                "ssl_options.cacertfile": self.certificates / "ca.pem",
                "ssl_options.certfile": self.certificates / "server.pem",
                "ssl_options.keyfile": self.certificates / "server.key",
            }
            text = "".join(f"{name} = {value}\n" for name, value in lines.items())
            (self.data / "rabbitmq.conf").write_text(text)
        return [str(SERVER)], self._environment()

    def _environment(self) -> dict[str, str]:
        return {
            "HOME": str(self.data / "home"),
            "RABBITMQ_NODENAME": f"bench{self.port}@localhost",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self._mapper_port),
            "RABBITMQ_MNESIA_BASE": str(self.files),
            "RABBITMQ_LOG_BASE": str(self.data / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.data / "enabled_plugins"),
            "RABBITMQ_CONF_ENV_FILE": str(self.data / "none"),
            "RABBITMQ_CONFIG_FILE": str(self.data / "rabbitmq"),
        }

    def asked_to_stop(self) -> list[int]:
        """The emulator itself: the script above it ends with it."""
        found = []
        for pid in tree(self.pid):
            with suppress(OSError):
                if re.match(r"beam", Path(f"/proc/{pid}/comm").read_text()):
                    found.append(pid)
        return found or [self.pid]

    def forget(self) -> None:
        """The port mapper of this node outlives it otherwise."""
        with suppress(OSError):
            subprocess.run(["epmd", "-port", str(self._mapper_port), "-kill"], capture_output=True)
