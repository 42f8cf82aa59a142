"""SegmentPool: the segments that a log is using, the one prepared ahead, and those kept for reuse.

Why apart from the log.  When a segment is prepared, recycled or deleted has nothing to do with what
is written into it; and each step here must be safe against a crash that keeps any part of the
directory's changes.

    prepared ahead -> in use, oldest first -> [release_before] -> spare -> prepared ahead
    prepared small ->                                          -> deleted

* [7] A segment is in use only once its content and its name are durable: `prepare` sees to it.
* Numbers only grow. Whatever is late or too small for its turn is deleted, never renumbered: after
  a crash it could have its old name back with the header of its new life, which is damage.
* A *released* segment may become a spare, because its old name is below the first segment of the
  checkpoint that released it [6], where nobody looks any more.
* Sizes double from `bytes_min` to `bytes_max`, but a segment is at most an eighth of what the disk
  has beyond its limit (`bytes_min` at the least), so a small disk has a small log. A spare that is
  smaller than what is wanted now, or larger than that eighth, is deleted. No directory is synced
  for a deletion: a name that comes back costs room, nothing else.
* `shrink` is for a log that nobody writes to, or that has no room: the log goes on in a segment of
  `bytes_min`, prepared elsewhere as any other [7], and the one ahead is deleted as one that is too
  small is. What came before goes by `release_before` and no other way: records may be in it.
* While `is_lean` there are no spares: they go as soon as one is prepared ahead, for until then a
  spare is what makes the next segment without any room.

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
FREE_SHARE: Final = 8  # a segment takes at most that part of the room that there is
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
        free_limit: int = 0,
    ) -> None:
        """free_limit: bytes of the disk that are to stay free."""
        self.fs: FileSystem = fs
        self.directory: str = directory
        self.vhost: int = vhost
        self.bytes_min: int = bytes_min
        self.bytes_max: int = bytes_max
        self.free_limit: int = free_limit
        self.is_lean: bool = False  # see lean
        self.small: Segment | None = None  # prepared by shrink, not yet in use
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
        self._small_token: int = NO_TOKEN
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
            segment = self._prepare(self._next_size(), FIRST_GROUP_OFFSET + need)
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
        size = self._next_size()
        op = _PrepareOp(
            self, self._next_number, size, self._rng.getrandbits(64), self._take_spare(size)
        )
        self._next_number += 1
        self._ahead_token = self.fs.submit(op)

    def _next_size(self) -> int:
        return min(self.in_use[-1].size * 2, self._size_max())

    def _size_max(self) -> int:
        """What the disk has room for."""
        free = self.fs.free_bytes(self.directory)
        return min(self.bytes_max, max(self.bytes_min, (free - self.free_limit) // FREE_SHARE))

    # ---- giving room back ---------------------------------------------------------------

    @property
    def disk_bytes(self) -> int:
        """Of all files but those of before the start."""
        ahead = 0 if self.ahead is None else self.ahead.size
        return sum([s.size for s in self.in_use]) + sum([s.size for s in self._spares]) + ahead

    def lean(self, is_lean: bool) -> None:
        """From now on no spares are kept, or there may be some again."""
        self.is_lean = is_lean
        if is_lean and self.ahead is not None:
            self._delete([spare.path for spare in self._spares])
            self._spares = []

    def shrink(self) -> None:
        """Have a segment of the smallest size prepared elsewhere; it is `small` then."""
        if self._small_token == NO_TOKEN and self.small is None and not self._is_closed:
            op = _PrepareOp(
                self, self._next_number, self.bytes_min, self._rng.getrandbits(64), None
            )
            self._next_number += 1
            self._small_token = self.fs.submit(op)

    @property
    def is_shrinking(self) -> bool:
        """Whether the small segment is on its way."""
        return self._small_token != NO_TOKEN

    def take_small(self) -> Segment | None:
        """Take the small segment into use, if there is one and it is not too late for it. The one
        ahead stays until `replace_ahead`."""
        small, self.small = self.small, None
        if small is None:
            return None
        if small.number < self.in_use[-1].number:
            self._discard(small)
            return None
        self.in_use.append(small)
        return small

    def drop_small(self) -> None:
        """The small segment is not wanted after all."""
        small, self.small = self.small, None
        if small is not None:
            self._discard(small)

    def replace_ahead(self) -> None:
        """The one ahead is of before `take_small`: it goes, and the next one is prepared."""
        if self.ahead is not None:
            self._discard(self.ahead)
            self.ahead = None
        if self._is_ahead_wanted:
            self.prepare_ahead()

    def end(self) -> None:
        """The log is over, and a checkpoint says that none of it is needed: but for the segment in
        use no file is kept. Before `close`; what is on its way is to be waited for
        (`is_busy`)."""
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
        """Whether anything is on its way: a segment, or a deletion."""
        return (
            self._ahead_token != NO_TOKEN
            or self._small_token != NO_TOKEN
            or len(self._delete_tokens) > 0
        )

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
        if token == self._small_token:
            self._small_token = NO_TOKEN
            self._complete_small(result)
            return True
        if token in self._delete_tokens:
            self._delete_tokens.discard(token)
            return True
        return False

    def release_before(self, number: int, writing: Segment) -> None:
        """Segments below `number` are needed no more, save the one that is being written."""
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
        for other in (self.ahead, self.small):
            if other is not None:
                other.file.close()
        self.ahead = self.small = None

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
                if self.is_lean:
                    self.lean(True)

    def _complete_small(self, result: object) -> None:
        """No room for it is no failure: nothing has changed, and nobody waits for it."""
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
