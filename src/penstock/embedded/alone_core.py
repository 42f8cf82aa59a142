"""AloneCore: a stream without a box, below its threads: a PersistentQueue, and what calls ask of
it.

The stream of a box has the box's log before it. This one has none: each record is written once, to
its page, and forced there. It is the PersistentQueue of rxjava2-extras, for many threads:

    append    under the lock, in RAM: a frame, no file
    turn      by one thread, its own: write under the lock; sync *without* it, so that others append
              meanwhile and share the next sync; under the lock again, move the head and wake
              whoever waits for that. Then save readers' offsets, and delete pages
    read      under the lock, below the head

So nothing is read that is not on disk: what a crash removes nobody has seen, and no reader's offset
is ever beyond the end.

    when      at once, for what a call waits for; else after `every_records` records or `every_s`
              seconds, after FORCE_S seconds at the latest, and before UNFORCED_BYTES_MAX are in RAM
    readers   a commit is in RAM; it is saved, durably, within COMMITS_S, many as one

Failure. After a disk that is full, or another OSError of a write, the calls that wait raise it, the
records stay in RAM and are written as soon as possible, and until then nothing more is appended. A
failed sync stops the stream [10], and so does an interrupt in the middle of a change: it must be
opened again, which finds all that was forced.

Threads and how calls wait are in `alone_stream`.
"""

import random
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

from penstock.clock import Clock
from penstock.embedded.events import OnEvent
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
    """The settings of a stream. options: pages and retention. every_records, every_s: when records
    are forced to disk, None for the one that was not given; every_records 1: before an append
    returns. keeps: a reader whose records retention never deletes, "" for none."""

    options: StreamOptions
    every_records: int | None = 1
    every_s: float | None = None
    keeps: str = ""


class Want:
    """What a call asks of the thread, and waits for. offset: of FORCE, up to which. error, result:
    the outcome."""

    __slots__ = ("error", "kind", "offset", "result", "waiter")

    def __init__(self, kind: str, waiter: Waiter, offset: int = 0) -> None:
        self.kind = kind
        self.waiter = waiter
        self.offset = offset
        self.error: Exception | None = None
        self.result: int = 0

    def take(self) -> int:
        """Return the result, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.result

    def done(self, error: Exception | None = None) -> None:
        """Under the lock: set the outcome and wake the call."""
        self.error = error
        self.waiter.wake(WOKEN)


class AloneCore:
    """See the head of this module. It holds the lock of the directory. Errors of opening are those
    of PersistentQueue. on_event(kind, text): called with events; it must not call back.

    All methods are called under `lock`, but for `turn`, `close` and `next_s`, which belong to one
    thread.
    """

    def __init__(
        self, fs: FileSystem, path: str, settings: AloneSettings, clock: Clock,
        rng: random.Random, on_event: OnEvent, lock: AbstractContextManager[object],
    ) -> None:  # fmt: skip
        self.fs = fs
        self.path: str = path
        self.settings = settings
        self.clock = clock
        self.event = on_event
        self.lock = lock
        self.queue = PersistentQueue(
            fs,
            path,
            page_bytes=settings.options.page_bytes,
            clock=clock,
            rng=rng,
            on_event=on_event,
        )
        self.offsets: dict[str, int] = {
            name: reader.offset for name, reader in self.queue.readers.items()
        }
        self.followers: deque[Waiter] = deque()
        self.failed: Exception | None = None
        self.name: str = path.rstrip("/").rpartition("/")[2]
        self.is_closed: bool = False
        self.is_deleted: bool = False
        self.is_ended: bool = False  # nothing more will be appended: followers need not wait
        self._unsaved: dict[str, int | None] = {}  # offsets of readers, None: deleted
        self._forces: deque[Want] = deque()
        self._wants: list[Want] = []
        self._blocked: Exception | None = None  # the error of the last write
        now = clock.monotonic()
        self._again_at: float = now
        self._unforced_at: float | None = (
            None  # when the first record was appended that is not forced
        )
        self._appended_bytes: int = 0
        self._forced_bytes: int = 0
        self._saved_at: float = now - COMMITS_S
        self._retained_at: float = now

    def check(self) -> None:
        """Raise BoxClosedError, UnknownQueueError (deleted) or StoppedError if it cannot be
        used."""
        if self.is_closed:
            raise BoxClosedError(self.path, "stream")
        if self.is_deleted:
            raise UnknownQueueError(f"{self.name} (deleted)")
        if self.failed is not None:
            raise StoppedError(f"{self.path}: {self.failed}") from self.failed

    # ---- looking -------------------------------------------------------------------------------

    def info(self, reader: str) -> StreamInfo:
        """Return the stream as it is now, with the offset of this reader."""
        self.check()
        queue = self.queue
        first = min(queue.first_offset, queue.head_offset)
        last_us = queue.last_time_us
        part = PartitionInfo(0, first, queue.head_offset, last_us, queue.bytes)
        offset = self.offsets.get(reader)
        offsets = {} if offset is None else {0: offset}
        return StreamInfo([part], sorted(self.offsets), offsets)

    def find(self, time_us: int) -> int:
        """Return the first offset of this time or later; that of the head if there is none."""
        self.check()
        return self.queue.find(time_us)

    def read(self, offset: int) -> list[StreamRecord]:
        """Return records from this offset on, below the head."""
        self.check()
        if offset >= self.queue.head_offset:
            return []
        found = self.queue.read(offset, CHUNK_RECORDS, CHUNK_BYTES)
        return [StreamRecord(one.payload, one.offset, 0, one.time_us, one.meta) for one in found]

    def has_more(self, offset: int) -> bool:
        """Return whether a reader at this offset has records to read, or nothing to wait for."""
        return offset < self.queue.head_offset or self.is_ended

    # ---- appending -----------------------------------------------------------------------------

    @property
    def unforced(self) -> int:
        """The number of records that are not on disk yet."""
        return self.queue.next_offset - self.queue.head_offset

    def retry(self, new_waiter: Callable[[], Waiter]) -> Want | None:
        """Return what an append must wait for first because the last write failed; None:
        nothing."""
        self.check()
        return None if self._blocked is None else self.want_force(new_waiter())

    def append(self, news: list[NewRecord]) -> list[int]:
        """Append records in RAM and return their offsets. ValueError: one is too large for any
        page, and none was appended."""
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
        """Return whether an append waits for the disk: force_every says so, or too much is in
        RAM."""
        is_much = self._appended_bytes - self._forced_bytes >= UNFORCED_BYTES_MAX
        return self.settings.every_records == 1 or is_much

    def want_force(self, waiter: Waiter) -> Want:
        """Ask for all that is appended by now to be on disk; tried at once, also after an error."""
        self._again_at = self.clock.monotonic()
        want = Want(FORCE, waiter, self.queue.next_offset)
        self._forces.append(want)
        return want

    def want(self, kind: str, waiter: Waiter) -> Want:
        """Ask for SAVE, RETAIN or DELETE."""
        self.check()
        want = Want(kind, waiter)
        self._wants.append(want)
        return want

    # ---- readers -------------------------------------------------------------------------------

    def commit(self, reader: str, offset: int) -> None:
        """Set where a reader goes on; it is saved soon."""
        self.check()
        self.offsets[reader] = self._unsaved[reader] = offset

    def delete_reader(self, reader: str) -> None:
        """Delete a reader, also one that is not known."""
        self.check()
        if self.offsets.pop(reader, None) is not None:
            self._unsaved[reader] = None

    def wake_followers(self) -> None:
        """Wake the followers: the head has moved, or the stream has ended."""
        followers = self.followers
        while followers:
            followers[0].wake(WOKEN)  # before the removal, for an interrupt may come in between
            followers.popleft()

    def end(self) -> None:
        """Wake the followers: nothing more will be appended."""
        self.is_ended = True
        self.wake_followers()

    # ---- the thread ----------------------------------------------------------------------------

    def turn(self) -> None:
        """Do all that is due. Errors are raised by the calls that wait for it."""
        try:
            if self.failed is None and not self.is_deleted:
                if self._is_force_due():
                    self._force()
                self._save_due()
                self._retain_due()
        except Exception as error:  # noqa: BLE001  # the thread must go on; calls raise it
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
        """Return when records that no call waits for are to be forced."""
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
        """Handle a failed write: nothing is lost, and nothing more is appended until one
        succeeds."""
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
        except OSError as error:  # what is left is deleted at the next start
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
        """Return the seconds until the next turn is due, if no call asks for it earlier."""
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
        """Under the lock: stop; nothing more is written, and all calls raise this error."""
        if self.failed is None:
            self.failed = error
            self.queue.failed = self.queue.failed or error
            self.event("stopped", f"{self.path}: the stream has stopped: {error}")

    def interrupted(self, error: BaseException) -> None:
        """Under the lock: stop, for an interrupt came in the middle of a call."""
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
        """In a forked child: close the copy of the lock."""
        self.queue.release_lock()

    def close(self) -> None:
        """Write all to disk, save the readers and release the directory. OSError,
        SyncFailedError."""
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
