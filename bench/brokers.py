"""A broker as a process of its own: started, stopped, killed, and what its process tree takes.

What all brokers share is here; rabbitmq.py and penstock_node.py say how each is started. Every
broker that is measured keeps its files below one directory, on the disk that is measured, and
listens on a port of its own on the loopback.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

from load import Load

START_S_MAX = 120.0
STOP_S_MAX = 180.0


class Broker(ABC):
    """One broker. name: as in the tables. data: all its files, made by `start`.

    `cgroup`, if set: a directory of a controller into which its processes are put. `certificates`,
    if set: a directory of `penstock tls self-signed`, for a TLS port, `tls_port`, as well.
    """

    name: str
    version: str = ""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.port = 0
        self.cgroup: Path | None = None
        self.certificates: Path | None = None
        self.tls_port = 0
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def command(self) -> tuple[list[str], dict[str, str]]:
        """What starts it in the foreground, and what that needs in its environment."""

    @property
    @abstractmethod
    def files(self) -> Path:
        """Where the messages are."""

    def is_listening(self) -> bool:
        """Has it said where, and does it answer? May set `port`."""
        return self.load(idle_s=10).answers()

    def forget(self) -> None:
        """Anything that must go with the last process: nothing, unless a broker says so."""
        self._process = None

    @property
    def pid(self) -> int:
        """The process under which all others are."""
        assert self._process is not None, f"{self.name} does not run"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def load(self, idle_s: int = 60) -> Load:
        """The load generator on this broker. idle_s: how long it waits for anything."""
        return Load(self.port, self.pid, idle_s=idle_s)

    def start(self) -> float:
        """Start it; seconds until it answered. Exits if it does not."""
        self.data.mkdir(parents=True, exist_ok=True)
        command, environment = self.command()
        started = time.monotonic()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, **environment}, start_new_session=True,
                preexec_fn=self._enter_cgroup if self.cgroup else None,
            )  # fmt: skip
        while not self.is_listening():
            if not self.is_running or time.monotonic() - started > START_S_MAX:
                tail = self.log.read_text(errors="replace")[-1500:]
                self.kill()
                sys.exit(f"{self.name} does not start:\n{tail}")
            time.sleep(0.02)
        return time.monotonic() - started

    @property
    def log(self) -> Path:
        """What it says on its two outputs."""
        return self.data / "output.log"

    def _enter_cgroup(self) -> None:
        assert self.cgroup is not None
        (self.cgroup / "cgroup.procs").write_text(str(os.getpid()))

    def stop(self) -> float:
        """An orderly stop; seconds that it took."""
        started = time.monotonic()
        for pid in self.asked_to_stop():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        assert self._process is not None
        try:
            self._process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
            sys.exit(f"{self.name} does not stop")
        self._process = None
        return time.monotonic() - started

    def asked_to_stop(self) -> list[int]:
        """Which processes get the SIGTERM."""
        return [self.pid]

    def kill(self) -> None:
        """kill -9 of every process at once: none sees another go."""
        if self._process is None:
            return
        there = tree(self._process.pid)
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in there:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
        self._process.wait()
        self._process = None
        while any(Path(f"/proc/{pid}/stat").exists() and not is_zombie(pid) for pid in there):
            time.sleep(0.01)

    def restart(self) -> None:
        """Fresh processes, so that their memory begins from the same base."""
        self.stop()
        self.start()

    def end(self) -> None:
        """Gone, with all its files."""
        self.kill()
        self.forget()
        shutil.rmtree(self.data, ignore_errors=True)

    def memory(self) -> tuple[int, int]:
        """RSS, and its anonymous part, of the process tree, in bytes."""
        rss = anonymous = 0
        for pid in tree(self.pid):
            with suppress(OSError):
                for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                    if line.startswith("VmRSS:"):
                        rss += int(line.split()[1]) * 1024
                    elif line.startswith("RssAnon:"):
                        anonymous += int(line.split()[1]) * 1024
        return rss, anonymous

    def written(self) -> int:
        """Bytes that the process tree has sent to the disk since it began (`write_bytes` of
        /proc/PID/io): pages of the cache that it made dirty, without those that were cut off before
        they were written. A page written again after it went to the disk counts again."""
        total = 0
        for pid in tree(self.pid):
            with suppress(OSError):
                lines = Path(f"/proc/{pid}/io").read_text().splitlines()
                found = {name: int(n) for name, n in (line.split(": ") for line in lines)}
                total += found["write_bytes"] - found["cancelled_write_bytes"]
        return total

    def disk(self) -> int:
        """Bytes of the disk that its files occupy."""
        blocks = 0
        for directory, _, names in os.walk(self.files):
            for name in names:
                with suppress(OSError):
                    blocks += os.lstat(Path(directory, name)).st_blocks
        return blocks * 512


def tree(root: int) -> list[int]:
    """The process, and all below it that are there."""
    children: dict[int, list[int]] = defaultdict(list)
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with suppress(OSError, IndexError):
                after = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
                children[int(after[1])].append(int(entry.name))
    found = [root]
    for pid in found:
        found += children[pid]
    return found


def is_zombie(pid: int) -> bool:
    """Has it ended, and waits only to be collected?"""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (OSError, IndexError):
        return True


def free_port() -> int:
    """One that nobody listens on now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
    return port
