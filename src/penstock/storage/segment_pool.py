"""SegmentPool: the segments that a log is using, the one prepared ahead, and those kept for reuse.

Why apart from the log.  When a segment is prepared, recycled or deleted has nothing to do with what
is written into it; and each step here must be safe against a crash that keeps any part of the
directory's changes.

    prepared ahead -> in use, oldest first -> [release_before] -> spare -> prepared ahead
                                                               -> deleted

* [7] A segment is in use only once its content and its name are durable: `prepare` sees to it.
* Numbers only grow. Whatever is late or too small for its turn is deleted, never renumbered: after
  a crash it could have its old name back with the header of its new life, which is damage.
* A *released* segment may become a spare, because its old name is below the first segment of the
  checkpoint that released it [6], where nobody looks any more.
* Sizes double from `bytes_min` to `bytes_max`. A spare that is smaller than what is wanted now is
  deleted. No directory is synced for a deletion: a name that comes back costs room, nothing else.

Failures: DiskFullError when there is no room for a segment, and nothing has changed;
SyncFailedError for all else, which the log takes as its own failure [10]. A file that cannot be
deleted stays.
"""

import random
from collections.abc import Callable
from typing import Final

from penstock.clock import Clock
from penstock.errors import DiskFullError
from penstock.storage.filesystem import FileSystem
from penstock.storage.log_segment import FIRST_GROUP_OFFSET, Segment, prepare

SPARES_MAX: Final = 2
RETRY_S: Final = 1.0
NO_TOKEN: Final = -1


class _PrepareOp:
    """Runs elsewhere: one segment ahead."""

    def __init__(
        self, pool: "SegmentPool", number: int, size: int, salt: int, recycled: str | None
    ) -> None:
        self.pool: SegmentPool = pool
        self.number: int = number
        self.size: int = size
        self.salt: int = salt
        self.recycled: str | None = recycled

    def __call__(self) -> object:
        pool = self.pool
        return prepare(
            pool.fs, pool.directory, pool.vhost, self.number, self.size, self.salt, self.recycled
        )


class _DeleteOp:
    """Runs elsewhere: files that nothing needs."""

    def __init__(self, fs: FileSystem, paths: list[str]) -> None:
        self.fs: FileSystem = fs
        self.paths: list[str] = paths

    def __call__(self) -> object:
        for path in self.paths:
            try:
                self.fs.unlink(path)
            except FileNotFoundError:
                pass
        return None


class SegmentPool:
    """in_use: oldest first, the last one takes new groups. ahead: prepared, not yet in use.

    ahead_error: why there is none ahead, if the disk is full.
    """

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        vhost: int,
        clock: Clock,
        rng: random.Random,
        bytes_min: int,
        bytes_max: int,
    ) -> None:
        self.fs: FileSystem = fs
        self.directory: str = directory
        self.vhost: int = vhost
        self.bytes_min: int = bytes_min
        self.bytes_max: int = bytes_max
        self.in_use: list[Segment] = []
        self.ahead: Segment | None = None
        self.ahead_error: DiskFullError | None = None
        # Called when the disk is full and a segment is needed now: True if it has made room.
        self.make_room: Callable[[], bool] | None = None
        self._clock: Clock = clock
        self._rng: random.Random = rng
        self._next_number: int = 1
        self._is_ahead_wanted: bool = False
        self._ahead_token: int = NO_TOKEN
        self._retry_at: float = 0.0
        self._spares: list[Segment] = []
        self._old_files: list[tuple[int, str]] = []  # (number, path), of before the start
        self._delete_tokens: set[int] = set()
        self._is_closed: bool = False

    def start(self, first_number: int, old_files: list[tuple[int, str]]) -> Segment:
        """Prepare the first segment here and now; `release_before` will delete the old files."""
        assert not self.in_use, "a log is started once"
        self._next_number = first_number
        self._old_files = old_files[:]
        segment = self._prepare(self.bytes_min, self.bytes_min)
        self.in_use.append(segment)
        return segment

    def next(self, need: int) -> Segment:
        """Take a segment with room for a group of `need` bytes into use: ahead, or made here."""
        segment = self.ahead
        if segment is None or FIRST_GROUP_OFFSET + need > segment.size:
            size = min(self.in_use[-1].size * 2, self.bytes_max)
            segment = self._prepare(size, FIRST_GROUP_OFFSET + need)
            if self.ahead is not None:
                self._discard(self.ahead)
        self.ahead = None
        self.in_use.append(segment)
        if self._is_ahead_wanted:
            self.prepare_ahead()
        return segment

    def prepare_ahead(self) -> None:
        """Have the next segment prepared elsewhere, and from now on always the one after it."""
        self._is_ahead_wanted = True
        if self.ahead is not None or self._ahead_token != NO_TOKEN or self._is_closed:
            return
        self.ahead_error = None
        size = min(self.in_use[-1].size * 2, self.bytes_max)
        op = _PrepareOp(
            self, self._next_number, size, self._rng.getrandbits(64), self._take_spare(size)
        )
        self._next_number += 1
        self._ahead_token = self.fs.submit(op)

    def after(self, segment: Segment) -> Segment | None:
        """The segment that comes after this one, in use or ahead; None if none is prepared."""
        if segment is self.in_use[-1]:
            return self.ahead
        return self.in_use[self.in_use.index(segment) + 1]

    @property
    def is_preparing(self) -> bool:
        """Whether the next segment is on its way; who needs it sooner makes one here and now."""
        return self.ahead is None and self._ahead_token != NO_TOKEN

    def retry(self, now: float) -> None:
        """Try again to prepare ahead, if that failed for lack of room some time ago."""
        if self.ahead_error is not None and now >= self._retry_at:
            self.prepare_ahead()

    def complete(self, token: int, result: object) -> bool:
        """A submitted operation has completed; False if it is not the pool's.

        Raises the failure to prepare a segment, if it is not that of a full disk.
        """
        if token == self._ahead_token:
            self._ahead_token = NO_TOKEN
            self._complete_ahead(result)
            return True
        if token in self._delete_tokens:
            self._delete_tokens.discard(token)
            return True
        return False

    def release_before(self, number: int, writing: Segment) -> None:
        """Segments below `number` are needed no more, save the one that is being written."""
        gone = [path for old, path in self._old_files if old < number]
        self._old_files = [entry for entry in self._old_files if entry[0] >= number]
        while self.in_use[0].number < number and self.in_use[0] is not writing:
            segment = self.in_use.pop(0)
            segment.file.close()
            if len(self._spares) < SPARES_MAX:
                self._spares.append(segment)
            else:
                gone.append(segment.path)
        self._delete(gone)

    def abandon_start(self) -> None:
        """Delete the first segment, which was never written to."""
        self.close()
        for segment in self.in_use:
            try:
                self.fs.unlink(segment.path)
            except OSError:
                pass  # it costs room, nothing else

    def close(self) -> None:
        """Close all files; one that is being prepared, when it is."""
        self._is_closed = True
        for segment in self.in_use:
            segment.file.close()
        if self.ahead is not None:
            self.ahead.file.close()
            self.ahead = None

    def _prepare(self, size: int, least: int) -> Segment:
        """Here and now; of `least` bytes if there is no room for more."""
        size = max(size, least)
        number = self._next_number
        self._next_number += 1
        salt = self._rng.getrandbits(64)
        spare = self._take_spare(size)
        try:
            return prepare(self.fs, self.directory, self.vhost, number, size, salt, spare)
        except DiskFullError:
            if (self.make_room is None or not self.make_room()) and size == least:
                raise
        return prepare(self.fs, self.directory, self.vhost, number, least, salt, None)

    def _complete_ahead(self, result: object) -> None:
        if isinstance(result, DiskFullError):
            self.ahead_error = result
            self._retry_at = self._clock.monotonic() + RETRY_S
        elif isinstance(result, BaseException):
            raise result
        else:
            assert isinstance(result, Segment)
            if self._is_closed:
                result.file.close()
            elif result.number < self.in_use[-1].number:
                # It came too late: another one was prepared in place.
                self._discard(result)
                self.prepare_ahead()
            else:
                self.ahead = result

    def _take_spare(self, size: int) -> str | None:
        while self._spares:
            spare = self._spares.pop()
            if spare.size >= size:
                return spare.path
            self._delete([spare.path])
        return None

    def _discard(self, segment: Segment) -> None:
        """Delete a segment that was never used."""
        segment.file.close()
        self._delete([segment.path])

    def _delete(self, paths: list[str]) -> None:
        if paths:
            self._delete_tokens.add(self.fs.submit(_DeleteOp(self.fs, paths)))
