"""Budget: how much memory there is, and how much of it the process uses.

A container's limit is less than the machine has, and the kernel kills a process that exceeds it. So
the whole is the smallest of the machine's RAM and the limits of this process's own control groups,
and a budget may be given as a fraction of that.

Files that are read, through the given FileSystem (Linux; they are missing elsewhere):

* `/proc/meminfo`: "MemTotal:  24684084 kB", the machine's RAM. If it is missing, 2 GiB are assumed,
  which the result reports.
* `/proc/self/cgroup`, one line per hierarchy, "number:controllers:path": the process's own groups.
  "0::path" is cgroup v2, a line whose controllers name `memory` is v1; a machine may have both.
* `/proc/self/mountinfo`: where those hierarchies are mounted, and which group is the root of the
  mount: in a container that is often the process's own group, or one above it.
* `memory.max` (v2) or `memory.limit_in_bytes` (v1) of that group and of every group above it up to
  the mount: each limits all that is below it. "max" is no limit, and v1 writes no limit as some
  exabytes: a value that is not smaller than the RAM limits nothing, nor does a zero.
* `/proc/PID/stat`: CPU time and resident pages of a process; `/proc/PID/fd`: its descriptors.
* `/proc/self/statm`: the resident pages, second number.

A file that is missing, forbidden or has another format is skipped.
"""

import mmap
from typing import Final

from penstock.options import BYTES_MAX
from penstock.storage.files.filesystem import FileSystem

ASSUMED_BYTES: Final = 2 << 30
TICKS_PER_S: Final = 100  # in which the kernel shows CPU time to programs, whatever its own are


def machine_memory(fs: FileSystem) -> tuple[int, str]:
    """Return the bytes that this process can have, and the path of the file that limits them, or
    "assumed"."""
    limits = [(ram, "/proc/meminfo")] if (ram := _ram_bytes(fs)) else []
    for path in _limit_paths(fs, "memory.max", "memory.limit_in_bytes"):
        limit = _text(fs, path).strip()
        if limit.isdecimal() and 0 < int(limit) < (ram or BYTES_MAX):
            limits.append((int(limit), path))
    return min(limits) if limits else (ASSUMED_BYTES, "assumed")


def cpus(fs: FileSystem) -> float | None:
    """Return how many processors the process's groups (v2) may use, None if any number."""
    limits: list[float] = []
    for path in _limit_paths(fs, "cpu.max"):
        quota, _, period = _text(fs, path).strip().partition(" ")
        if quota.isdecimal() and period.isdecimal() and int(period) > 0:
            limits.append(int(quota) / int(period))
    return min(limits, default=None)


def rss_bytes(fs: FileSystem) -> int | None:
    """Return the bytes of RAM that this process occupies now, or None if unknown."""
    fields = _text(fs, "/proc/self/statm").split()
    if len(fields) < 2 or not fields[1].isdecimal():
        return None
    return int(fields[1]) * mmap.PAGESIZE


def process_usage(fs: FileSystem, pid: int) -> tuple[float, int, int] | None:
    """Return the CPU seconds, the bytes of RAM and the open descriptors of a process of this user,
    or None if it has gone or the kernel does not say."""
    found = _text(fs, f"/proc/{pid}/stat").rpartition(")")[2].split()
    if len(found) < 22:
        return None
    directory = f"/proc/{pid}/fd"
    try:
        descriptors = fs.size(directory) or len(fs.list(directory))  # its size since Linux 6.2
    except OSError:
        return None
    cpu_s = (int(found[11]) + int(found[12])) / TICKS_PER_S
    return cpu_s, int(found[21]) * mmap.PAGESIZE, descriptors


def pids_max(fs: FileSystem) -> int:
    """Return the largest number that the kernel gives to a process, 0 if unknown."""
    found = _text(fs, "/proc/sys/kernel/pid_max").strip()
    return int(found) if found.isdecimal() else 0


# ----------------------------------------------------------------------------------------
# The kernel's files


def _text(fs: FileSystem, path: str) -> str:
    """Return the file as text, "" if it cannot be read."""
    try:
        return fs.read(path).decode("utf-8", "replace")
    except OSError:
        return ""


def _ram_bytes(fs: FileSystem) -> int:
    """Return the machine's RAM, 0 if unknown."""
    for line in _text(fs, "/proc/meminfo").splitlines():
        fields = line.split()
        if len(fields) == 3 and fields[0] == "MemTotal:" and fields[1].isdecimal():
            return int(fields[1]) * 1024
    return 0


def _limit_paths(fs: FileSystem, second: str, first: str = "") -> list[str]:
    """Return the files that may limit this process: of its groups and of all above them. second,
    first: their names in the versions of cgroup; first: of the controller memory, if any."""
    mounts = _text(fs, "/proc/self/mountinfo")
    paths: list[str] = []
    for line in _text(fs, "/proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if number == "0" and not controllers:
            kind, name = "cgroup2", second
        elif first and "memory" in controllers.split(","):
            kind, name = "cgroup", first
        else:
            continue
        for root, point in _mounted(mounts, kind):
            paths += [f"{point}{above}/{name}" for above in _upwards(_below(group, root))]
    return paths


def _mounted(mounts: str, kind: str) -> list[tuple[str, str]]:
    """Return (group that is the mount's root, mount point) of each mount of a memory hierarchy."""
    found: list[tuple[str, str]] = []
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        fields, tail = before.split(" "), after.split(" ")
        if len(fields) < 5 or len(tail) < 3 or tail[0] != kind:
            continue
        if kind == "cgroup2" or "memory" in tail[2].split(","):
            found.append((_unescape(fields[3]), _unescape(fields[4])))
    return found


def _unescape(field: str) -> str:
    """Return a field of the table without escapes: blanks are octal 040 there."""
    return field.replace("\\040", " ").replace("\\134", "\\")


def _below(group: str, root: str) -> str:
    """Return the group as seen from the root of a mount, "" for the root itself.

    A group outside the mount is written as "/../..", or as its path on the host: then the mount's
    root is the nearest that can be seen.
    """
    root = root.rstrip("/")
    group = group.rstrip("/")
    if group != root and not group.startswith(root + "/"):
        return ""
    below = group[len(root) :]
    return "" if below.startswith("/..") else below


def _upwards(below: str) -> list[str]:
    """Return the group and all above it: "/a/b" gives "/a/b", "/a", ""."""
    groups = [below]
    while below:
        below = below.rpartition("/")[0]
        groups.append(below)
    return groups
