"""CpuProfile: what the CPU of some processes is spent in, by samples of the Linux tool `perf`.

A sample of each thread is taken so many times a second of its CPU, whether it is in the kernel or
not. The result is shares, because sampling itself costs CPU: what is measured in µs is measured
without it.
"""

import os
import select
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType

PER_S = 4999
READY_S_MAX = 10.0
KERNEL, INTERPRETER, OWN, LIBRARIES = "kernel", "interpreter", "own code", "libraries"
PARTS = (KERNEL, INTERPRETER, OWN, LIBRARIES)
OWN_NAMES = ("penstock", "mypyc", "lavinmq")


def missing() -> str:
    """Return "", or why no profile can be taken."""
    if shutil.which("perf") is None:
        return "perf is not installed (Debian: linux-perf)"
    done = subprocess.run(
        ["perf", "record", "-q", "-e", "cpu-clock", "-o", "/dev/null", "true"],
        capture_output=True, text=True,
    )  # fmt: skip
    return done.stderr.strip().splitlines()[-1] if done.returncode else ""


def part_of(place: str) -> str:
    """Return the part that a file with code (or `[kernel.kallsyms]`, as perf says) belongs to."""
    name = place.rpartition("/")[2].lower()
    if name.startswith("[") and not name.startswith("[v"):
        return KERNEL
    if any(own in name for own in OWN_NAMES):
        return OWN
    is_python = "python" in name or ".cpython-" in name
    return INTERPRETER if is_python else LIBRARIES


class CpuProfile:
    """A profile of these processes and of what they start, while the block runs. samples: how many,
    by the file and the symbol of the code that ran; after the block."""

    def __init__(self, pids: list[int]) -> None:
        self._pids = pids
        self.samples: dict[tuple[str, str], int] = {}

    def __enter__(self) -> "CpuProfile":
        self._directory = tempfile.TemporaryDirectory(prefix="cpu-profile-")
        self._file, control, answers = (
            Path(self._directory.name, name) for name in ("samples", "control", "answers")
        )
        os.mkfifo(control)
        os.mkfifo(answers)
        self._perf = subprocess.Popen(
            ["perf", "record", "-q", "-e", "cpu-clock", "-F", str(PER_S), "-o", str(self._file),
             "-p", ",".join(map(str, self._pids)), "-D", "-1",
             "--control", f"fifo:{control},{answers}"],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        with open(control, "r+b", 0) as commands, open(answers, "r+b", 0) as replies:
            commands.write(b"enable\n")
            if not select.select([replies], [], [], READY_S_MAX)[0]:
                self._perf.kill()
                raise SystemExit(f"perf does not begin: {self._perf.communicate()[1].strip()}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._perf.send_signal(signal.SIGINT)
        _, problem = self._perf.communicate()
        try:
            self.samples = self._read() if kind is None else {}
        finally:
            self._directory.cleanup()
        if kind is None and not self.samples:
            raise SystemExit(f"perf has taken no sample: {problem.strip()}")

    def _read(self) -> dict[tuple[str, str], int]:
        """Samples by the file and the symbol of the code that ran."""
        done = subprocess.run(
            ["perf", "report", "-i", str(self._file), "--stdio", "--no-children", "-q", "-t", "\t",
             "--sort", "dso,symbol", "--fields", "sample,dso,symbol"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        found: dict[tuple[str, str], int] = {}
        for line in done.stdout.splitlines():
            words = [word.strip() for word in line.split("\t")]
            if len(words) >= 3 and words[0].isdigit():
                key = words[1], words[2]
                found[key] = found.get(key, 0) + int(words[0])
        return found

    def parts(self) -> dict[str, float]:
        """The share of each of PARTS."""
        total = sum(self.samples.values())
        shares = dict.fromkeys(PARTS, 0.0)
        for (place, _), count in self.samples.items():
            shares[part_of(place)] += count / total
        return {part: round(share, 3) for part, share in shares.items()}
