"""A broker that really runs: `penstock serve` as a tree of processes, started and ended by a test.

``LiveBroker`` starts it on a free port and a directory of its own, waits for the ready line, and
can stop it as an operator would (SIGTERM), kill the whole tree at one instant (SIGKILL), or start
it again on the same port and directory, so that clients find it where it was. The port is nobody
else's meanwhile. What the broker writes goes to a log file beside the directory, and stands in the
message of a failed start.

PENSTOCK_TEST_URL=amqp://... points the same tests at another broker (`ExternalBroker`): nothing is
started then, and what needs Penstock's own control socket is skipped, with the reason.

Not here: what tests say to the broker; that is pika's and other clients' work, or wire.py's.
"""

import contextlib
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

URL_VARIABLE = "PENSTOCK_TEST_URL"
# Limits cost nothing if all goes well: a machine that does much else may be ten times slower.
START_LIMIT_S = 120.0
STOP_LIMIT_S = 120.0
WAIT_LIMIT_S = 120.0
# Environments. Few restarts: what failed that often stays down, and is not tried again while a test
# looks. Hasty: one that is only late is taken for hung as well, and started again.
FEW_RESTARTS = {
    "PENSTOCK_VHOST_RESTARTS_MAX": "2",
    "PENSTOCK_VHOST_RESTART_WINDOW": "3600",
    "PENSTOCK_VHOST_RETRY": "3600",
}
HASTY = {"PENSTOCK_VHOST_RESTARTS_MAX": "1000", "PENSTOCK_VHOST_HANG": "3.0"}


def wait_until(
    is_done: Callable[[], object], what: str = "the condition", limit_s: float = WAIT_LIMIT_S
) -> Any:
    """What `is_done` returns as soon as it is true. Raises AssertionError after `limit_s`."""
    deadline = time.monotonic() + limit_s
    while True:
        result = is_done()
        if result:
            return result
        assert time.monotonic() < deadline, f"{what}: not within {limit_s} s"
        time.sleep(0.01)


def children_of(pid: int) -> list[int]:
    """The processes below `pid`, all generations, as /proc tells them now."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z":
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found: list[int] = []
    waiting = [pid]
    while waiting:
        below = parents.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def memory_bytes(pid: int, what: str) -> int:
    """VmRSS, what a process has now, or VmHWM, the most it ever had."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition(f"{what}:")[2].split()[0]) << 10


class Broker:
    """Where a broker is. `url` has no virtual host: the default one is meant."""

    is_penstock = True
    http_port: int | None = None

    def __init__(self, host: str, port: int, user: str = "guest", password: str = "guest") -> None:
        self.host = host
        self.port = port
        self.user = user
        self.password = password

    @property
    def url(self) -> str:
        return self.url_of("/")

    def url_of(self, vhost: str) -> str:
        """amqp:// URL of one virtual host."""
        where = f"{self.user}:{self.password}@{self.host}:{self.port}"
        return f"amqp://{where}/{quote(vhost, safe='')}"

    def operate(self, op: str, args: dict[str, Any]) -> bool:
        """Do what an operator does, by the name of Penstock's operation, in the vhost of `args`,
        or in "/". Whether it was done."""
        raise NotImplementedError


class ExternalBroker(Broker):
    """A broker that somebody else runs, named by PENSTOCK_TEST_URL."""

    is_penstock = False

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        super().__init__(
            parts.hostname or "localhost",
            parts.port or 5672,
            parts.username or "guest",
            parts.password or "guest",
        )


class LiveBroker(Broker):
    """`penstock serve` on `data`, with `options` of its command line. Use as a context manager.
    has_http: with the HTTP process, at `http_port`, a free one. nofile: how many files each of its
    processes may open."""

    def __init__(
        self, data: Path, *options: str, environment: Mapping[str, str] | None = None,
        has_http: bool = False, nofile: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__("127.0.0.1", 0)
        self.data = data
        self.options = options
        self.nofile = nofile
        self.http_port = 0 if has_http else None
        self.tls_port = 0  # if the environment turns TLS on
        self.https_port = 0
        # The invariants that our tests check after every operation cost too much under load.
        self.environment = {"PENSTOCK_CHECK": "0", **(environment or {})}
        self.log = data.parent / f"{data.name}.log"
        self.process: subprocess.Popen[str] | None = None
        self.ready_line = ""

    def __enter__(self) -> "LiveBroker":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """The supervisor's."""
        assert self.process is not None, "the broker does not run"
        return self.process.pid

    def pids(self) -> list[int]:
        """The whole tree, the supervisor first."""
        return [self.pid, *children_of(self.pid)]

    def start(self, limit_s: float = START_LIMIT_S) -> None:
        """Starts it and waits for the ready line. Raises AssertionError with the log if not."""
        self.launch()
        assert self.process is not None
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            deadline = time.monotonic() + limit_s
            text = b""
            while b"\n" not in text:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    break
                piece = os.read(self.process.stdout.fileno(), 4096)
                if not piece:
                    break
                text += piece
        self.ready_line = text.decode(errors="replace")
        if "amqp" not in self.ready_line:
            self.kill()
            raise AssertionError(f"not ready: {self.ready_line!r}\n{self.log_text()}")
        if "amqp://" in self.ready_line:
            self.port = self._ready_port("amqp")
        if self.http_port is not None:
            self.http_port = self._ready_port("http")
        if "amqps://" in self.ready_line:
            self.tls_port = self._ready_port("amqps")
        if "https://" in self.ready_line:
            self.https_port = self._ready_port("https")

    def _ready_port(self, scheme: str) -> int:
        found = re.search(rf"{scheme}://[^\s/]+:(\d+)/", self.ready_line)
        assert found is not None, self.ready_line
        return int(found[1])

    def launch(self) -> None:
        """Starts the process and waits for nothing."""
        assert self.process is None, "the broker runs already"
        self.port = self.port or self._held_port()
        if self.http_port == 0:
            self.http_port = self._held_port()
        command = [sys.executable, "-m", "penstock", "serve", "--host", self.host]
        command += ["--port", str(self.port), "--data", str(self.data)]
        http_port = "off" if self.http_port is None else str(self.http_port)
        command += ["--http-port", http_port, *self.options]
        if self.nofile is not None:
            command = ["sh", "-c", f'ulimit -n {self.nofile}; exec "$@"', "sh", *command]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=self.data.parent,
                env={**os.environ, **self.environment},
                start_new_session=True,
            )

    def stop(self, limit_s: float = STOP_LIMIT_S) -> int:
        """Ends it as an operator does, by SIGTERM; returns the exit code."""
        assert self.process is not None, "the broker does not run"
        below = children_of(self.pid)
        self.process.terminate()
        try:
            code = self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"not stopped in {limit_s} s\n{self.log_text()}") from None
        self._gone(below)
        self._forget()
        return code

    def kill(self) -> None:
        """SIGKILL to the whole tree at once. Nothing happens if it does not run."""
        if self.process is None:
            return
        below = children_of(self.pid)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        for pid in below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self._gone(below)
        self._forget()

    def restart(self) -> None:
        """An orderly stop, and a start on the same port."""
        self.stop()
        self.start()

    def control(self, op: str, vhost: str | None = None, **arguments: object) -> Any:
        """One call over the control socket in the data directory."""
        from penstock.server.control import ControlClient

        with ControlClient(str(self.data / "control.sock")) as client:
            return client.call(op, vhost, **arguments)

    def operate(self, op: str, args: dict[str, Any]) -> bool:
        from penstock.errors import PenstockError

        try:
            self.control(op, **{"vhost": "/", **args})
        except PenstockError:
            return False
        return True

    def log_text(self) -> str:
        """What the broker wrote to standard error, its last 8,000 characters."""
        return self.log.read_text(errors="replace")[-8000:] if self.log.exists() else ""

    def _held_port(self) -> int:
        """A free one. Bound here and not listened at, it is given to no other process while the
        broker is down."""
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # the broker's has it, too
        sock.bind((self.host, 0))
        weakref.finalize(self, sock.close)
        return int(sock.getsockname()[1])

    def _gone(self, pids: list[int]) -> None:
        for pid in pids:
            wait_until(lambda pid=pid: is_gone(pid), f"the end of process {pid}")  # type: ignore[misc]

    def _forget(self) -> None:
        if self.process is not None and self.process.stdout is not None:
            self.process.stdout.close()
        self.process = None


def is_gone(pid: int) -> bool:
    """Whether the process is no more, or is only waited for by its parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def external_broker() -> ExternalBroker | None:
    """The broker that the environment points at, if it does."""
    url = os.environ.get(URL_VARIABLE)
    return ExternalBroker(url) if url else None


@contextlib.contextmanager
def broker_for_tests(
    data: Path, *options: str, environment: Mapping[str, str] | None = None
) -> Iterator[Broker]:
    """The broker that the environment points at; else one of ours, while the block runs."""
    external = external_broker()
    if external is not None:
        yield external
        return
    with LiveBroker(data, *options, environment=environment) as broker:
        yield broker
