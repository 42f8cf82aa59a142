"""CpuGroup: the CPU that processes take, by a control group of their own.

Spark's Python daemon ignores SIGCHLD, so the kernel adds the CPU of a worker that has ended to no
parent: what /proc tells of a tree of processes is then too low. A control group counts whoever was
in it. It takes root, in the first or the second version of the system's control groups; without,
the group counts by /proc.
"""

import os
import time
from contextlib import suppress
from pathlib import Path

TICK = os.sysconf("SC_CLK_TCK")
ROOTS = (  # where it is mounted, the file of the time, what comes before the number, units per s
    (Path("/sys/fs/cgroup/cpuacct"), "cpuacct.usage", "", 1_000_000_000),
    (Path("/sys/fs/cgroup"), "cpu.stat", "usage_usec ", 1_000_000),
)
BY_GROUP, BY_PROC = "control group", "/proc"


class CpuGroup:
    """A group of processes: those that join it, and all that they start afterwards.

    path: its directory, for another process that uses the same group; None where it counts by
    /proc, and then the tree of the process `root`.
    """

    def __init__(self, path: Path | None, root: int = 0) -> None:
        self.path, self._root = path, root or os.getpid()

    @classmethod
    def make(cls, name: str) -> "CpuGroup":
        """A new group, of nobody yet."""
        for mounted, file, _, _ in ROOTS:
            path = mounted / f"{name}-{os.getpid()}"
            with suppress(OSError):
                if (mounted / file).exists() or (mounted / "cgroup.controllers").exists():
                    path.mkdir()
                    return cls(path)
        return cls(None)

    @property
    def meter(self) -> str:
        """How it counts."""
        return BY_PROC if self.path is None else BY_GROUP

    def join(self) -> None:
        """Put this process into the group."""
        if self.path is not None:
            (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def seconds(self) -> float:
        """CPU seconds so far."""
        if self.path is None:
            return tree_seconds(self._root)
        for _, file, before, units in ROOTS:
            with suppress(FileNotFoundError):
                for line in (self.path / file).read_text().splitlines():
                    if line.startswith(before):
                        return int(line[len(before) :]) / units
        raise AssertionError(f"{self.path} does not say what was used")

    def processes(self) -> dict[int, tuple[str, float]]:
        """Command and CPU seconds of each process that is in the group now, by its number."""
        found = {}
        if self.path is not None:
            for pid in (self.path / "cgroup.procs").read_text().split():
                with suppress(OSError):  # it has ended meanwhile
                    command = Path("/proc", pid, "cmdline").read_bytes().replace(b"\0", b" ")
                    _, seconds = stat_of(Path("/proc", pid))
                    found[int(pid)] = command.decode(errors="replace"), seconds
        return found

    def remove(self) -> None:
        """Its last process may be gone for a moment before the system knows it."""
        for _ in range(50):
            if self.path is None:
                return
            try:
                self.path.rmdir()
                return
            except OSError:
                time.sleep(0.1)


def stat_of(directory: Path) -> tuple[str, float]:
    """Name and CPU seconds of a process or thread, by its directory in /proc. OSError."""
    head, _, tail = (directory / "stat").read_text().rpartition(")")
    return head.partition("(")[2], sum(int(field) for field in tail.split()[11:13]) / TICK


def tree_seconds(root: int) -> float:
    """CPU seconds of this process and of all below it, by what /proc tells."""
    found: dict[int, tuple[int, int]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                stat = Path(entry.path, "stat").read_text()
            except OSError:  # it has ended meanwhile
                continue
            fields = stat.rpartition(")")[2].split()
            found[int(entry.name)] = int(fields[1]), sum(int(field) for field in fields[11:15])
    below, grew = {root} & found.keys(), True
    while grew:
        more = {pid for pid, (parent, _) in found.items() if parent in below} - below
        below |= more
        grew = bool(more)
    return sum(found[pid][1] for pid in below) / TICK
