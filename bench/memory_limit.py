"""MemoryLimit: a control group in which processes may have only so much memory.

For the system's memory controller, in its first or second version; it takes root. The group is a
new one with no other processes in it, and is removed at the end.
"""

import os
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

ROOTS = (  # where it is mounted, the file of the limit, the file of what was used at most
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.max_usage_in_bytes"),
    (Path("/sys/fs/cgroup"), "memory.max", "memory.peak"),
)


class MemoryLimit:
    """The group, while the `with` lasts. reason: why there is none, "" if there is."""

    def __init__(self, name: str, limit_bytes: int) -> None:
        self.reason = "there is no memory controller that may be used here"
        self.path = Path()
        self._peak = ""
        for root, limit, peak in ROOTS:
            if (root / limit).exists() or (root / "cgroup.controllers").exists():
                self.path, self._peak = root / f"{name}-{os.getpid()}", peak
                self._make(limit, limit_bytes)
                return

    def _make(self, limit: str, limit_bytes: int) -> None:
        try:
            self.path.mkdir()
            (self.path / limit).write_text(str(limit_bytes))
            self.reason = ""
        except OSError as error:
            self.reason = f"{error.filename or self.path}: {error.strerror}"
            self._remove()

    def most_bytes(self) -> int:
        """The most that was used so far; 0 if the system does not tell."""
        with suppress(OSError, ValueError):
            return int((self.path / self._peak).read_text())
        return 0

    def __enter__(self) -> "MemoryLimit":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        if not self.reason:
            self._remove()

    def _remove(self) -> None:
        """The group's last process may be gone for a moment before the system knows it."""
        for _ in range(50):
            try:
                self.path.rmdir()
                return
            except FileNotFoundError:
                return
            except OSError:
                time.sleep(0.1)
