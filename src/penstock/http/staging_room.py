"""StagingRoom: how much is staged in a vhost, and whether more may be.

Staged files lie in the directory of the vhost until what they hold has moved, or they are swept:
penstock.storage knows when, and deletes them. The HTTP process alone makes them. So what there is
is what the directory says, looked at anew after RESCAN_S or when it seems full, and what was
written since. A chunk has its room before it is written.

A disk that is nearly full is left to the broker, whose log and checkpoints are what makes room:
with less than FREE_BYTES_MIN nothing is staged.

Any thread may call.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from penstock.clock import Clock
from penstock.http.http_errors import HttpError
from penstock.storage.filesystem import FileSystem
from penstock.storage.staging import staged_bytes

RESCAN_S: Final = 5.0
FULL_RESCAN_S: Final = 0.5
FREE_BYTES_MIN: Final = 128 << 20


class StagingRoom:
    """path: the vhost's directory."""

    def __init__(self, fs: FileSystem, path: str, limit_bytes: int, clock: Clock) -> None:
        self.path = path
        self._fs = fs
        self._limit_bytes = limit_bytes
        self._clock = clock
        self._lock = threading.Lock()
        self._found_bytes = 0
        self._written_bytes = 0  # since then
        self._coming_bytes = 0  # being written
        self._looked_s = float("-inf")

    @contextmanager
    def taken(self, size: int) -> Iterator[None]:
        """So many bytes are written in the block. HttpError 507: they may not."""
        with self._lock:
            self._check(size)
            self._coming_bytes += size
        try:
            yield
        finally:
            with self._lock:
                self._coming_bytes -= size
                self._written_bytes += size

    def _check(self, size: int) -> None:
        now = self._clock.monotonic()
        if now - self._looked_s >= RESCAN_S:
            self._look(now)
        if self._used() + size > self._limit_bytes and now - self._looked_s >= FULL_RESCAN_S:
            self._look(now)
        if self._used() + size > self._limit_bytes:
            raise HttpError(
                507, f"{self._used()} bytes are staged in this vhost, at most {self._limit_bytes} "
                "may be (staging_bytes_max)", error="staging_full",
            )  # fmt: skip
        free = self._fs.free_bytes(self.path)
        if free - size < FREE_BYTES_MIN:
            raise HttpError(
                507, f"the disk has {free} bytes left, nothing is staged below {FREE_BYTES_MIN}",
                error="disk_full",
            )  # fmt: skip

    def _used(self) -> int:
        return self._found_bytes + self._written_bytes + self._coming_bytes

    def _look(self, now: float) -> None:
        try:
            self._found_bytes = staged_bytes(self._fs, self.path)
        except FileNotFoundError:
            return  # a query's directory went just now: what was known is too much, if anything
        self._written_bytes = 0
        self._looked_s = now
