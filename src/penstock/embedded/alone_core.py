"""AloneCore: a stream that stands alone, below its threads: a PersistentQueue, what is asked of it.

The stream of a box has the box's log before it. This one has none: each record is written once, to
its page, and forced there. It is the PersistentQueue of rxjava2-extras, made fit for many threads:

    append    under the lock, in RAM: a frame, no file
    turn      by one thread, its own: write under the lock; sync *without* it, so that others append
              meanwhile and share the next sync; under the lock again, the head moves and whoever
              waits for that goes on. Then readers' offsets are saved, and pages taken away
    read      under the lock, below the head

So nothing is read that is not on disk: what a crash takes back nobody has seen, and no reader's
offset is ever beyond the end.

    when      what somebody waits for at once; else after `every_records` records or `every_s`
              seconds, after FORCE_S seconds at the latest, and before UNFORCED_BYTES_MAX are in RAM
    readers   a commit is in RAM; it is saved, durably, within COMMITS_S, many as one

Failure. No room, or another OSError of a write: whoever waits is told, the records stay in RAM and
are written as soon as that goes, and until then nothing more is appended. A failed sync stops it
[10], and so does an interrupt in the middle of a change: it must be opened again, which finds all
that was forced.

Not here: threads and how they wait (`alone_driver`), what the calls are (`alone_calls`).
"""

import random
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

from penstock.clock import Clock
from penstock.embedded.library_errors import BoxClosedError
from penstock.embedded.sources import PartitionInfo, StreamInfo
from penstock.embedded.stream_record import NewRecord, StreamRecord
from penstock.embedded.waiting import WOKEN, Waiter
from penstock.errors import DiskFullError, StoppedError, UnknownQueueError, is_disk_full
from penstock.queues.stream_options import StreamOptions
from penstock.storage.filesystem import FileSystem
from penstock.storage.persistent_queue import PersistentQueue
from penstock.storage.stream_meta import Head

FORCE_S: Final = 1.0  # what is appended is on disk after this, whatever force_every says
UNFORCED_BYTES_MAX: Final = 8 << 20
COMMITS_S: Final = 0.05  # between two times that readers' offsets are saved
RETAIN_EVERY_S: Final = 1.0
AGAIN_S: Final = 1.0  # until a write that failed is tried again
IDLE_S: Final = 2.5
CHUNK_RECORDS: Final = 256
CHUNK_BYTES: Final = 256 << 10

# What a call asks of the thread.
FORCE: Final = "force"
SAVE: Final = "save"
RETAIN: Final = "retain"
DELETE: Final = "delete"


@dataclass(frozen=True, slots=True)
class AloneSettings:
    """What a stream was opened with. options: pages and retention. every_records, every_s: when it
    is forced, None for the one that was not given; every_records 1: before an append returns.
    keeps: a reader whose records retention never takes, "" for none."""

    options: StreamOptions
    every_records: int | None = 1
    every_s: float | None = None
    keeps: str = ""


class Want:
    """What a call asks of the thread, and waits for. offset: of FORCE, up to which. error, result:
    how it went."""

    __slots__ = ("error", "kind", "offset", "result", "waiter")

    def __init__(self, kind: str, waiter: Waiter, offset: int = 0) -> None:
        self.kind = kind
        self.waiter = waiter
        self.offset = offset
        self.error: Exception | None = None
        self.result: int = 0

    def take(self) -> int:
        """The result, or the error."""
        if self.error is not None:
            raise self.error
        return self.result

    def done(self, error: Exception | None = None) -> None:
        """Under the lock: the call goes on."""
        self.error = error
        self.waiter.wake(WOKEN)


class AloneCore:
    """See the head of this module. Opened, it has the lock of the directory. Errors of opening are
    those of PersistentQueue. tell(kind, text): what should be known; it must not call back.

    All methods are called under `lock`, but for `turn`, `close` and `next_s`, which belong to one
    thread.
    """

    def __init__(
        self, fs: FileSystem, path: str, settings: AloneSettings, clock: Clock,
        rng: random.Random, tell: Callable[[str, str], None], lock: AbstractContextManager[object],
    ) -> None:  # fmt: skip
        self.fs = fs
        self.path: str = path
        self.settings = settings
        self.clock = clock
        self.event = tell
        self.lock = lock
        self.queue = PersistentQueue(
            fs, path, page_bytes=settings.options.page_bytes, clock=clock, rng=rng, on_event=tell
        )
        self.offsets: dict[str, int] = {
            name: reader.offset for name, reader in self.queue.readers.items()
        }
        self.followers: deque[Waiter] = deque()
        self.failed: Exception | None = None
        self.name: str = path.rstrip("/").rpartition("/")[2]
        self.is_closed: bool = False
        self.is_deleted: bool = False
        self.is_ended: bool = False  # nobody appends any more: who follows need not wait
        self._unsaved: dict[str, int | None] = {}  # offsets of readers, None: it is forgotten
        self._forces: deque[Want] = deque()
        self._wants: list[Want] = []
        self._blocked: Exception | None = None  # the last write failed
        now = clock.monotonic()
        self._again_at: float = now
        self._unforced_at: float | None = None  # when the first one was appended that is not forced
        self._appended_bytes: int = 0
        self._forced_bytes: int = 0
        self._saved_at: float = now - COMMITS_S
        self._retained_at: float = now

    def check(self) -> None:
        """BoxClosedError; UnknownQueueError if it was deleted; StoppedError."""
        if self.is_closed:
            raise BoxClosedError(self.path, "stream")
        if self.is_deleted:
            raise UnknownQueueError(f"{self.name} (deleted)")
        if self.failed is not None:
            raise StoppedError(f"{self.path}: {self.failed}") from self.failed

    # ---- looking -------------------------------------------------------------------------------

    def info(self, reader: str) -> StreamInfo:
        """As it is now, with the offset of this reader."""
        self.check()
        queue = self.queue
        first = min(queue.first_offset, queue.head_offset)
        last_us = queue.last_time_us
        part = PartitionInfo(0, first, queue.head_offset, last_us, queue.bytes)
        offset = self.offsets.get(reader)
        offsets = {} if offset is None else {0: offset}
        return StreamInfo([part], sorted(self.offsets), offsets)

    def find(self, time_us: int) -> int:
        """The first offset of this time or later; that of the head if there is none."""
        self.check()
        return self.queue.find(time_us)

    def read(self, offset: int) -> list[StreamRecord]:
        """What follows, below the head."""
        self.check()
        if offset >= self.queue.head_offset:
            return []
        found = self.queue.read(offset, CHUNK_RECORDS, CHUNK_BYTES)
        return [StreamRecord(one.payload, one.offset, 0, one.time_us, one.meta) for one in found]

    def has_more(self, offset: int) -> bool:
        """Whether who has got to this offset has something to read, or nothing to wait for."""
        return offset < self.queue.head_offset or self.is_ended

    # ---- appending -----------------------------------------------------------------------------

    @property
    def unforced(self) -> int:
        """How many records are not on disk yet."""
        return self.queue.next_offset - self.queue.head_offset

    def retry(self, new_waiter: Callable[[], Waiter]) -> Want | None:
        """What an append has to wait for first, since the last write failed; None: nothing."""
        self.check()
        return None if self._blocked is None else self.want_force(new_waiter())

    def append(self, news: list[NewRecord]) -> list[int]:
        """Append them, in RAM; their offsets. ValueError: one is too large for any page, and none
        was appended."""
        self.check()
        queue = self.queue
        records = [(new.body, new.meta) for new in news]
        for body, meta in records:
            queue.check(body, meta)
        offsets: list[int] = []
        for body, meta in records:
            offsets.append(queue.append(body, meta))
            self._appended_bytes += len(body) + len(meta)
        if self._unforced_at is None and offsets:
            self._unforced_at = self.clock.monotonic()
        return offsets

    def must_wait(self) -> bool:
        """Whether an append waits for the disk: force_every says so, or too much is in RAM."""
        is_much = self._appended_bytes - self._forced_bytes >= UNFORCED_BYTES_MAX
        return self.settings.every_records == 1 or is_much

    def want_force(self, waiter: Waiter) -> Want:
        """All that is appended by now on disk; tried at once, also when the last write failed."""
        self._again_at = self.clock.monotonic()
        want = Want(FORCE, waiter, self.queue.next_offset)
        self._forces.append(want)
        return want

    def want(self, kind: str, waiter: Waiter) -> Want:
        """SAVE, RETAIN or DELETE."""
        self.check()
        want = Want(kind, waiter)
        self._wants.append(want)
        return want

    # ---- readers -------------------------------------------------------------------------------

    def commit(self, reader: str, offset: int) -> None:
        """Where a reader goes on; it is saved soon."""
        self.check()
        self.offsets[reader] = self._unsaved[reader] = offset

    def delete_reader(self, reader: str) -> None:
        """Forget a reader; one that is not known too."""
        self.check()
        if self.offsets.pop(reader, None) is not None:
            self._unsaved[reader] = None

    def wake_followers(self) -> None:
        """The head has moved, or there is no more to wait for."""
        followers = self.followers
        while followers:
            followers[0].wake(WOKEN)  # first, for an interrupt may come in between
            followers.popleft()

    def end(self) -> None:
        """Nobody appends any more."""
        self.is_ended = True
        self.wake_followers()

    # ---- the thread ----------------------------------------------------------------------------

    def turn(self) -> None:
        """One round of all that is due. What fails is told to those who wait for it."""
        try:
            if self.failed is None and not self.is_deleted:
                if self._is_force_due():
                    self._force()
                self._save_due()
                self._retain_due()
        except Exception as error:  # noqa: BLE001  # the thread must live; people are told
            with self.lock:
                self.stop(error)
        with self.lock:
            if self.failed is not None:
                self._fail_all()
            elif any(want.kind == DELETE for want in self._wants):
                self._delete()

    def _is_force_due(self) -> bool:
        now = self.clock.monotonic()
        if self._blocked is not None and now < self._again_at:
            return False
        if self._forces:
            return True
        at = self._force_at()
        return at is not None and now >= at

    def _force_at(self) -> float | None:
        """When what nobody waits for is to be forced."""
        if self._unforced_at is None:
            return None
        count = self.settings.every_records
        if count is not None and self.unforced >= count:
            return self._unforced_at
        every_s = self.settings.every_s
        return self._unforced_at + (FORCE_S if every_s is None else every_s)

    def _force(self) -> None:
        queue = self.queue
        try:
            with self.lock:
                upto, now = self._appended_bytes, self.clock.monotonic()
                head = queue.begin_force()
            if head is not None:
                queue.sync_force()
            with self.lock:
                self._forced(head, upto, now)
        except OSError as error:
            with self.lock:
                self._is_blocked_by(error)

    def _forced(self, head: Head | None, upto: int, now: float) -> None:
        queue = self.queue
        if head is not None:
            queue.finish_force(head)
        self._forced_bytes = upto
        self._unforced_at = now if self.unforced else None
        if self._blocked is not None:
            self._blocked = None
            self.event("stream_write", f"{self.path}: what was kept in RAM is written")
        forces = self._forces
        while forces and forces[0].offset <= queue.head_offset:
            forces[0].done()
            forces.popleft()
        if head is not None:
            self.wake_followers()

    def _is_blocked_by(self, error: OSError) -> None:
        """A write failed: nothing is lost, and nothing more is appended until it goes."""
        told: Exception = error
        if is_disk_full(error):
            told = DiskFullError(self.path, self.fs.free_bytes(self.path), 0)
            told.__cause__ = error
        if self._blocked is None:
            text = f"{self.path}: {self.unforced} records stay in RAM, to be written later: {error}"
            self.event("stream_write", text)
        self._blocked = told
        self._again_at = self.clock.monotonic() + AGAIN_S
        while self._forces:
            self._forces.popleft().done(told)

    def _save_due(self) -> None:
        now = self.clock.monotonic()
        with self.lock:
            wants = self._take(SAVE)
            if not self._unsaved or not (wants or now >= self._saved_at + COMMITS_S):
                for want in wants:
                    want.done()
                return
            unsaved, self._unsaved = self._unsaved, {}
        told: Exception | None = None
        try:
            for name, offset in unsaved.items():
                self._save(name, offset)
        except OSError as error:
            told = error
            self.event("stream_write", f"{self.path}: readers are to be saved again: {error}")
        except Exception as error:
            told = error
            raise
        finally:
            with self.lock:
                self._saved_at = self.clock.monotonic()
                if told is not None:
                    self._saved_at += AGAIN_S
                    self._unsaved = {**unsaved, **self._unsaved}
                for want in wants:
                    want.done(told)

    def _save(self, name: str, offset: int | None) -> None:
        queue = self.queue
        if offset is None:
            queue.delete_reader(name)
        else:
            queue.set_reader(name, offset, offset if name == self.settings.keeps else None)

    def _retain_due(self) -> None:
        now = self.clock.monotonic()
        with self.lock:
            wants = self._take(RETAIN)
            options = self.settings.options
            if not wants and not (options.has_limits and now >= self._retained_at + RETAIN_EVERY_S):
                return
            self._retained_at = now
        told: Exception | None = None
        pages = 0
        try:
            with self.lock:
                plan = self.queue.plan_retain(
                    options.max_age_s, options.max_bytes, options.max_records,
                    now_us=self.clock.wall_us(),
                )  # fmt: skip
            if plan is not None:
                pages = plan.pages
                plan.run()
        except OSError as error:  # those that are still there go at the next start
            told = error
            self.event("stream_write", f"{self.path}: pages could not be taken away: {error}")
        except Exception as error:
            told = error
            raise
        finally:
            with self.lock:
                for want in wants:
                    want.result = pages
                    want.done(told)

    def _take(self, kind: str) -> list[Want]:
        taken = [want for want in self._wants if want.kind == kind]
        self._wants = [want for want in self._wants if want.kind != kind]
        return taken

    def _delete(self) -> None:
        told: Exception | None = None
        try:
            self.queue.delete()
        except OSError as error:
            told = error
        self.is_deleted = True
        for want in self._take(DELETE):
            want.done(told)
        self._fail_all()

    def next_s(self) -> float:
        """Seconds until the next turn is due, if nobody asks for it earlier."""
        with self.lock:
            if self.failed is not None or self.is_deleted:
                return IDLE_S
            if self._wants or (self._forces and self._blocked is None):
                return 0.0
            due: list[float] = []
            at = self._force_at()
            if self._blocked is not None:
                due.append(self._again_at)
            elif at is not None:
                due.append(at)
            if self._unsaved:
                due.append(self._saved_at + COMMITS_S)
            if self.settings.options.has_limits:
                due.append(self._retained_at + RETAIN_EVERY_S)
        return min(max(min(due, default=IDLE_S + 1e9) - self.clock.monotonic(), 0.0), IDLE_S)

    # ---- the end -------------------------------------------------------------------------------

    def stop(self, error: Exception) -> None:
        """Under the lock: nothing more is written, and whoever calls or waits is told."""
        if self.failed is None:
            self.failed = error
            self.queue.failed = self.queue.failed or error
            self.event("stopped", f"{self.path}: the stream has stopped: {error}")

    def interrupted(self, error: BaseException) -> None:
        """Under the lock: an exception that is no Exception came in the middle of a call."""
        self.stop(StoppedError(f"a call was interrupted by {error!r}"))
        self._fail_all()

    def _fail_all(self) -> None:
        error = self.failed
        if error is None:
            error = UnknownQueueError(f"{self.name} (deleted)")
        while self._forces:
            self._forces.popleft().done(error)
        for want in self._wants:
            want.done(error)
        self._wants = []
        self.wake_followers()

    def in_child(self) -> None:
        """In a forked child: let go of the copy of the lock."""
        self.queue.release_lock()

    def close(self) -> None:
        """Force, save the readers, and let others have the directory. OSError, SyncFailedError."""
        with self.lock:
            is_running = self.failed is None and not self.is_deleted
            unsaved, self._unsaved = self._unsaved, {}
        try:
            if is_running:
                for name, offset in unsaved.items():
                    self._save(name, offset)
        finally:
            with self.lock:
                try:
                    self.queue.close()
                    while self._forces:
                        self._forces.popleft().done(self.failed)
                except Exception as error:
                    self.failed = self.failed or error
                    raise
                finally:
                    self.is_closed = True
                    self.failed = self.failed or BoxClosedError(self.path, "stream")
                    self._fail_all()
