"""SegmentPool: log segments in use, the one prepared ahead, and those kept for reuse.

The pool is apart from the log because preparing, recycling and deleting a segment does not depend
on what is written into it. Each step is safe against a crash that keeps any part of the directory's
changes.

    prepared ahead -> in use, oldest first -> [release_before] -> spare -> prepared ahead
    prepared small ->                                          -> deleted

* [7] A segment is in use only after its content and its name are durable; `prepare` does this.
* Numbers only grow. A segment that is too late or too small for its turn is deleted, never
  renumbered: after a crash it could have its old name with the header of its new life, which is
  damage.
* A *released* segment may become a spare, because its old name is below the first segment of the
  checkpoint that released it [6], where recovery does not read.
* Sizes double from `bytes_min` to `bytes_max`, but a segment takes at most an eighth of the room
  that the disk has beyond its limit (and at least `bytes_min`), so a small disk has a small log. A
  spare that is smaller than wanted, or larger than that eighth, is deleted. No directory is synced
  for a deletion: a name that comes back costs only room.
* `shrink` is for a log without writers or without room: the log continues in a segment of
  `bytes_min`, which is prepared like any other [7], and the one ahead is deleted. Earlier segments
  are freed only by `release_before`, because records may be in them.
* While `is_lean` is set there are no spares. They are deleted once a segment is prepared ahead;
until
  then a spare is the only way to make the next segment on a full disk.

Failures: DiskFullError if there is no room for a segment; nothing has changed. Any other failure is
a SyncFailedError, which stops the log [10]. A file that cannot be deleted stays.
"""

import random
from collections.abc import Callable
from typing import Final

from penstock.clock import Clock
from penstock.errors import DiskFullError
from penstock.storage.filesystem import FileSystem
from penstock.storage.log_segment import FIRST_GROUP_OFFSET, Segment, prepare

SPARES_MAX: Final = 2
FREE_SHARE: Final = 8  # a segment takes at most this part of the free room
RETRY_S: Final = 1.0
NO_TOKEN: Final = -1


class _PrepareOp:
    """Prepares one segment; runs in a worker."""

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
    """Deletes files that nothing needs; runs in a worker."""

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
    """The segments of one log.

    in_use: oldest first; the last one takes new groups. ahead: prepared, not yet in use.
    ahead_error: why there is none ahead, if the disk is full. small: prepared by `shrink`.
    make_room: called when the disk is full and a segment is needed now; returns whether it made
    room.
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
        free_limit: int = 0,
    ) -> None:
        """free_limit: bytes of the disk that must stay free."""
        self.fs: FileSystem = fs
        self.directory: str = directory
        self.vhost: int = vhost
        self.bytes_min: int = bytes_min
        self.bytes_max: int = bytes_max
        self.free_limit: int = free_limit
        self.is_lean: bool = False
        self.small: Segment | None = None
        self.in_use: list[Segment] = []
        self.ahead: Segment | None = None
        self.ahead_error: DiskFullError | None = None
        self.make_room: Callable[[], bool] | None = None
        self._clock: Clock = clock
        self._rng: random.Random = rng
        self._next_number: int = 1
        self._is_ahead_wanted: bool = False
        self._ahead_token: int = NO_TOKEN
        self._small_token: int = NO_TOKEN
        self._retry_at: float = 0.0
        self._spares: list[Segment] = []
        self._old_files: list[tuple[int, str]] = []  # (number, path) from before the start
        self._delete_tokens: set[int] = set()
        self._is_closed: bool = False

    def start(self, first_number: int, old_files: list[tuple[int, str]]) -> Segment:
        """Prepare and return the first segment. `release_before` deletes the old files later."""
        assert not self.in_use, "a log is started once"
        self._next_number = first_number
        self._old_files = old_files[:]
        segment = self._prepare(self.bytes_min, self.bytes_min)
        self.in_use.append(segment)
        return segment

    def next(self, need: int) -> Segment:
        """Return a segment in use with room for a group of `need` bytes: that ahead, or a new
        one."""
        segment = self.ahead
        if segment is None or FIRST_GROUP_OFFSET + need > segment.size:
            segment = self._prepare(self._next_size(), FIRST_GROUP_OFFSET + need)
            if self.ahead is not None:
                self._discard(self.ahead)
        self.ahead = None
        self.in_use.append(segment)
        if self._is_ahead_wanted:
            self.prepare_ahead()
        return segment

    def prepare_ahead(self) -> None:
        """Prepare the next segment in a worker, and from now on always one ahead."""
        self._is_ahead_wanted = True
        if self.ahead is not None or self._ahead_token != NO_TOKEN or self._is_closed:
            return
        self.ahead_error = None
        size = self._next_size()
        self._ahead_token = self._submit(size, self._take_spare(size))

    def _next_size(self) -> int:
        return min(self.in_use[-1].size * 2, self._size_max())

    def _size_max(self) -> int:
        """Return the largest size that the disk has room for."""
        free = self.fs.free_bytes(self.directory)
        return min(self.bytes_max, max(self.bytes_min, (free - self.free_limit) // FREE_SHARE))

    # ---- giving room back ---------------------------------------------------------------

    @property
    def disk_bytes(self) -> int:
        """Bytes of all files except those from before the start."""
        ahead = 0 if self.ahead is None else self.ahead.size
        return sum([s.size for s in self.in_use]) + sum([s.size for s in self._spares]) + ahead

    def lean(self, is_lean: bool) -> None:
        """Keep no spares from now on, or allow them again."""
        self.is_lean = is_lean
        if is_lean and self.ahead is not None:
            self._delete([spare.path for spare in self._spares])
            self._spares = []

    def shrink(self) -> None:
        """Prepare a segment of the smallest size in a worker, as `small`."""
        if self._small_token == NO_TOKEN and self.small is None and not self._is_closed:
            self._small_token = self._submit(self.bytes_min, None)

    @property
    def is_shrinking(self) -> bool:
        """Whether the small segment is being prepared."""
        return self._small_token != NO_TOKEN

    def take_small(self) -> Segment | None:
        """Return the small segment, in use now; None if there is none or its number is too low. The
        one ahead stays until `replace_ahead`."""
        small, self.small = self.small, None
        if small is None:
            return None
        if small.number < self.in_use[-1].number:
            self._discard(small)
            return None
        self.in_use.append(small)
        return small

    def drop_small(self) -> None:
        """Delete the small segment."""
        small, self.small = self.small, None
        if small is not None:
            self._discard(small)

    def replace_ahead(self) -> None:
        """Delete the segment ahead, from before `take_small`, and prepare the next one."""
        if self.ahead is not None:
            self._discard(self.ahead)
            self.ahead = None
        if self._is_ahead_wanted:
            self.prepare_ahead()

    def end(self) -> None:
        """Delete every file except the segment in use: the log has ended, and a checkpoint needs
        none of it. Wait until `is_busy` is False, then call `close`."""
        self._is_ahead_wanted = False
        self.is_lean = True
        gone = [spare.path for spare in self._spares]
        self._spares = []
        for segment in (self.ahead, self.small):
            if segment is not None:
                segment.file.close()
                gone.append(segment.path)
        self.ahead = self.small = None
        self._delete(gone)

    @property
    def is_busy(self) -> bool:
        """Whether a segment is being prepared or files are being deleted."""
        return (
            self._ahead_token != NO_TOKEN
            or self._small_token != NO_TOKEN
            or len(self._delete_tokens) > 0
        )

    def after(self, segment: Segment) -> Segment | None:
        """Return the segment after this one, in use or ahead; None if none is prepared."""
        if segment is self.in_use[-1]:
            return self.ahead
        return self.in_use[self.in_use.index(segment) + 1]

    @property
    def is_preparing(self) -> bool:
        """Whether the next segment is being prepared. `next` does not wait for it."""
        return self.ahead is None and self._ahead_token != NO_TOKEN

    def retry(self, now: float) -> None:
        """Try again to prepare ahead if that failed for lack of room at least RETRY_S ago."""
        if self.ahead_error is not None and now >= self._retry_at:
            self.prepare_ahead()

    def complete(self, token: int, result: object) -> bool:
        """Take the result of a submitted operation. Return False if it is not the pool's.

        Raises the failure to prepare a segment, unless the disk is full.
        """
        if token == self._ahead_token:
            self._ahead_token = NO_TOKEN
            self._complete_ahead(result)
            return True
        if token == self._small_token:
            self._small_token = NO_TOKEN
            self._complete_small(result)
            return True
        if token in self._delete_tokens:
            self._delete_tokens.discard(token)
            return True
        return False

    def release_before(self, number: int, writing: Segment) -> None:
        """Free the segments below `number`, except the one that is being written."""
        gone = [path for old, path in self._old_files if old < number]
        self._old_files = [entry for entry in self._old_files if entry[0] >= number]
        size_max = 0 if self.is_lean and self.ahead is not None else self._size_max()
        while self.in_use[0].number < number and self.in_use[0] is not writing:
            segment = self.in_use.pop(0)
            segment.file.close()
            if len(self._spares) < SPARES_MAX and segment.size <= size_max:
                self._spares.append(segment)
            else:
                gone.append(segment.path)
        self._delete(gone)

    def abandon_start(self) -> None:
        """Delete the first segment, which was not written to."""
        self.close()
        for segment in self.in_use:
            try:
                self.fs.unlink(segment.path)
            except OSError:
                pass  # it costs only room

    def close(self) -> None:
        """Close all files. A segment that is being prepared is closed when it is ready."""
        self._is_closed = True
        for segment in self.in_use:
            segment.file.close()
        for other in (self.ahead, self.small):
            if other is not None:
                other.file.close()
        self.ahead = self.small = None

    def _prepare(self, size: int, least: int) -> Segment:
        """Prepare a segment here, with `least` bytes if there is no room for `size`."""
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

    def _submit(self, size: int, spare: str | None) -> int:
        """Prepare a segment in a worker. Return the operation's token."""
        salt = self._rng.getrandbits(64)
        op = _PrepareOp(self, self._next_number, size, salt, spare)
        self._next_number += 1
        return self.fs.submit(op)

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
                # It is too late: another one was prepared here.
                self._discard(result)
                self.prepare_ahead()
            else:
                self.ahead = result
                if self.is_lean:
                    self.lean(True)

    def _complete_small(self, result: object) -> None:
        """Take the small segment. A full disk is not a failure: nothing has changed."""
        if isinstance(result, DiskFullError):
            return
        if isinstance(result, BaseException):
            raise result
        assert isinstance(result, Segment)
        if self._is_closed:
            result.file.close()
        else:
            self.small = result

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
