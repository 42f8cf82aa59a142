"""StagingRoom: how much is staged in a vhost, and whether more may be.

Staged files lie in the directory of the vhost until what they hold has moved, or they are swept:
penstock.storage knows when, and deletes them. The HTTP process alone makes them. So what there is
is what the directory says, looked at anew after RESCAN_S or when it seems full, and what was
written since. A chunk has its room before it is written. A user has a bound of their own, so that
one cannot take the room of all: what is staged for a query counts for the query's owner. Each file
counts 4 KiB at least, for it costs that on the disk.

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
    """path: the vhost's directory. limit_bytes: of all, user_limit_bytes: of one user."""

    def __init__(
        self, fs: FileSystem, path: str, limit_bytes: int, user_limit_bytes: int, clock: Clock
    ) -> None:
        self.path = path
        self._fs = fs
        self._limit_bytes = limit_bytes
        self._user_limit_bytes = user_limit_bytes
        self._clock = clock
        self._lock = threading.Lock()
        self._found: dict[str, int] = {}  # by user
        self._written: dict[str, int] = {}  # since then
        self._coming: dict[str, int] = {}  # being written
        self._looked_s = float("-inf")

    @contextmanager
    def taken(self, user: str, size: int) -> Iterator[None]:
        """So many bytes of a query of that user are written in the block. HttpError 507: they may
        not."""
        with self._lock:
            self._check(user, size)
            _add(self._coming, user, size)
        try:
            yield
        finally:
            with self._lock:
                _add(self._coming, user, -size)
                _add(self._written, user, size)

    def _check(self, user: str, size: int) -> None:
        now = self._clock.monotonic()
        if now - self._looked_s >= RESCAN_S:
            self._look(now)
        if self._why_not(user, size) and now - self._looked_s >= FULL_RESCAN_S:
            self._look(now)
        why_not = self._why_not(user, size)
        if why_not:
            raise HttpError(507, why_not, error="staging_full")
        free = self._fs.free_bytes(self.path)
        if free - size < FREE_BYTES_MIN:
            raise HttpError(
                507, f"the disk has {free} bytes left, nothing is staged below {FREE_BYTES_MIN}",
                error="disk_full",
            )  # fmt: skip

    def _why_not(self, user: str, size: int) -> str:
        """Why there is no room for so many bytes more; "": there is."""
        counts = (self._found, self._written, self._coming)
        used = sum(sum(of_users.values()) for of_users in counts)
        if used + size > self._limit_bytes:
            return (
                f"{used} bytes are staged in this vhost, at most {self._limit_bytes} may be "
                "(staging_bytes_max)"
            )
        used = sum(of_users.get(user, 0) for of_users in counts)
        if used + size > self._user_limit_bytes:
            return (
                f"{used} bytes are staged in this vhost for queries of user '{user}', at most "
                f"{self._user_limit_bytes} may be (staging_user_bytes_max)"
            )
        return ""

    def _look(self, now: float) -> None:
        try:
            self._found = staged_bytes(self._fs, self.path)
        except FileNotFoundError:
            return  # a query's directory went just now: what was known is too much, if anything
        self._written = {}
        self._looked_s = now


def _add(counts: dict[str, int], user: str, size: int) -> None:
    counts[user] = counts.get(user, 0) + size
    if not counts[user]:
        del counts[user]
