"""The broker of the main job: `penstock serve` as an operator would run it, and what it says.

It is started on a free port, in a process group of its own, so that Ctrl-C reaches it only through
`stop`. `look` asks its control socket, which is what `penstock list_queues` and `penstock status`
ask too; the RSS is that of all its processes, as /proc tells it.

Not here: AMQP; that is the clients' (flights_clients.py).
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from flights_view import Status

from penstock.errors import PenstockError
from penstock.server.control import ControlClient

VHOST = "/"
LOOK_S = 0.2
START_S = 30.0
STOP_S = 30.0
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
COUNTS = (
    "messages", "messages_ready", "messages_unacknowledged", "memory", "alphas", "betas", "gammas",
    "delta", "q1", "q2", "q3", "q4", "is_flowed",
)  # fmt: skip


class Broker:
    """One that runs, from the constructor to `stop`. SystemExit: it does not start."""

    def __init__(self, data: Path, memory: str, *, has_http: bool = False) -> None:
        self.data = data
        self.log = data.parent / "broker.log"
        command = [sys.executable, "-m", "penstock", "serve", "--port", "0", "--memory", memory]
        command += ["--http-port", "0" if has_http else "off"]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--data", str(data)], stdout=subprocess.PIPE, stderr=log, text=True,
                process_group=0,
            )  # fmt: skip
        assert self._process.stdout is not None
        killer = threading.Timer(START_S, self.kill)
        killer.start()
        self.ready_line = self._process.stdout.readline().strip()
        killer.cancel()
        found = re.search(r"(amqp://\S+?:\d+)/", self.ready_line)
        if found is None:
            self.kill()
            sys.exit(f"the broker does not start:\n{self.log.read_text()}")
        self.url = f"{found[1]}/%2F"
        http = re.search(r"http://\S+?:\d+", self.ready_line)
        self.http_url = "" if http is None else http[0]

    def vhost_pid(self) -> int:
        """The process of the vhost; 0 if there is none at this moment."""
        with ControlClient(str(self.data)) as control:
            status = control.call("status")
        return int(next(v["pid"] for v in status["vhosts"] if v["name"] == VHOST) or 0)

    def pids(self) -> list[int]:
        """All its processes."""
        return [self._process.pid, *children_of(self._process.pid)]

    def stop(self) -> bool:
        """In order; whether it ended well."""
        self._process.terminate()
        try:
            return self._process.wait(STOP_S) == 0
        except subprocess.TimeoutExpired:
            self.kill()
            return False

    def verify(self) -> bool:
        """After `stop`: whether `penstock store verify` finds its files right; else it is told."""
        command = [sys.executable, "-m", "penstock", "store", "verify", str(self.data)]
        verified = subprocess.run(command, capture_output=True, text=True)
        if verified.returncode:
            print(verified.stdout + verified.stderr)
        return verified.returncode == 0

    def kill(self) -> None:
        """All of it, at once, if it still runs. A vhost ends when its supervisor has."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class Watcher(threading.Thread):
    """Looks at a broker each LOOK_S, in a thread, for nobody answers while a vhost starts again.

    status: as of looked_at, by perf_counter; without the clients' numbers. most: the largest of
    each number that there was."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(daemon=True)
        self._broker = broker
        self._is_over = threading.Event()
        self.looked_at = 0.0  # perf_counter
        self.status = Status()
        self.most: dict[str, int] = {}

    def run(self) -> None:
        control = ControlClient(str(self._broker.data))
        while not self._is_over.wait(LOOK_S):
            try:
                self._look(control)
            except PenstockError:
                control.close()  # the vhost was killed, it will be back
        control.close()

    def end(self) -> None:
        """No more looks."""
        self._is_over.set()
        self.join()

    def _look(self, control: ControlClient) -> None:
        rows = control.call("list_queues", VHOST)
        started = time.perf_counter()
        vhost = control.call("status", VHOST)
        queues = {str(r["name"]): {key: int(r.get(key, 0)) for key in COUNTS} for r in rows}
        rss = sum(rss_of(pid) for pid in self._broker.pids())
        status = Status(0, 0, sum(q["memory"] for q in queues.values()), rss, queues)
        self.status = status
        self.looked_at = started
        seen = {
            "counted": status.counted_bytes, "rss": rss, "messages": status.sum("messages"),
            "delta": status.sum("delta"), "other": int(vhost.get("other_bytes", 0)),
        }  # fmt: skip
        for key, value in seen.items():
            self.most[key] = max(value, self.most.get(key, 0))


def children_of(pid: int) -> list[int]:
    """The processes below it."""
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += [int(child), *children_of(int(child))]
    return found


def rss_of(pid: int) -> int:
    """Bytes; 0 for one that has gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES
    except OSError:
        return 0
