"""A RabbitMQ of the installed package, for the length of a run: an own directory, port and name."""

import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from tests.helpers.live_broker import Broker

BIN = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
LIMIT_S = 90.0


def is_installed() -> bool:
    return BIN.exists() and shutil.which("erl") is not None


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class RabbitMQ(Broker):
    """Use as a context manager. Raises AssertionError with the log when it does not start.
    has_http: with the management plugin, at `http_port`."""

    def __init__(self, directory: Path, *, has_http: bool = False) -> None:
        super().__init__("127.0.0.1", free_port())
        self.directory = directory
        self.http_port = free_port() if has_http else None
        self._lock = threading.Lock()

    def __enter__(self) -> "RabbitMQ":
        at = self.directory
        plugins = "" if self.http_port is None else "rabbitmq_management"
        (at / "enabled_plugins").write_text(f"[{plugins}].\n")
        if self.http_port is not None:
            listener = f"management.tcp.ip = {self.host}\nmanagement.tcp.port = {self.http_port}\n"
            (at / "rabbitmq.conf").write_text(listener)
        self.environment = {
            **os.environ,
            "HOME": str(at),
            "RABBITMQ_NODENAME": f"penstock{self.port}@localhost",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_DIST_PORT": str(free_port()),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_MNESIA_BASE": str(at / "data"),
            "RABBITMQ_LOG_BASE": str(at / "log"),
            "RABBITMQ_PID_FILE": str(at / "pid"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(at / "enabled_plugins"),
            "RABBITMQ_CONF_ENV_FILE": str(at / "none"),
            "RABBITMQ_CONFIG_FILE": str(at / "rabbitmq"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 +sbwt none",
        }
        self.log = (at / "start.log").open("w")
        self.process = subprocess.Popen(
            [str(BIN)], stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL,
            env=self.environment, cwd=at, start_new_session=True,
        )  # fmt: skip
        deadline = time.monotonic() + LIMIT_S
        while not self._is_there():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.__exit__()
                raise AssertionError(f"RabbitMQ: {(at / 'start.log').read_text()[-4000:]}")
            time.sleep(0.2)
        return self

    def control(self, *words: str) -> str:
        """What `rabbitmqctl` prints. Raises AssertionError with what it says if it fails."""
        done = subprocess.run(
            [str(BIN.parent / "rabbitmqctl"), "-n", self.environment["RABBITMQ_NODENAME"], *words],
            env=self.environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    def operate(self, op: str, args: dict[str, Any]) -> bool:
        names = ("name", "user", "password", "exchange", "configure", "write", "read")
        words = [args[name] for name in names if name in args]
        words += ["-p", args["vhost"]] if "vhost" in args else []
        words += [json.dumps(args["limits"])] if "limits" in args else []
        if "pattern" in args:
            words += [args["pattern"], json.dumps(args["definition"])]
            words += ["--priority", str(args["priority"]), "--apply-to", args["apply_to"]]
        try:
            with self._lock:  # it takes a second of CPU
                self.control(op, *words)
        except AssertionError:
            return False
        return True

    def _is_there(self) -> bool:
        try:
            for port in (self.port, self.http_port):
                if port is not None:
                    socket.create_connection((self.host, port), timeout=1).close()
        except OSError:
            return False
        return True

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.log.close()
