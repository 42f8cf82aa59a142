"""AloneStream: a stream without a box: a directory, a lock on it, and a thread.

`penstock.open_stream` opens it. It is rxjava2-extras' PersistentQueue: a log in files for one
program, without a box, a broker or another log before it. Each record is written once, to its page,
and synced there. It has the methods of a box's stream (`box.stream`) without partitions and
transactions, and a few of its own.

    with penstock.open_stream("events.d", max_age="7d") as s:
        s.append(b"order 1 came in")

Calls run the core (AloneCore) in the caller's thread, under the lock. For what must be written they
hand a `Want` to the stream's thread and sleep until it is done; one sync serves all that wait.

    append    under the lock, in RAM: a frame, no file; then wait until it is on disk, if
              `force_every` says so
    turn      in the stream's thread: write under the lock; sync *without* it, so that others append
              meanwhile and share the next sync; under the lock again, move the head and wake the
              calls that wait. Then save readers' offsets, and delete pages
    read      under the lock, below the head (local_stream)
    commit    in RAM; saved durably within COMMITS_S, many as one, or waited for
    force     at once if a call waits; else after `every_records` records or `every_s` seconds,
              after FORCE_S seconds at the latest, and before UNFORCED_BYTES_MAX are in RAM

Only what is on disk is read: nobody has seen what a crash removes, and no reader's offset is ever
beyond the end.

Every call enters the gate: the lock, or after the close and in a forked child a Gate that refuses.
Streams that are open at the end of the interpreter are closed in order, newest first.

Failure. After a full disk or another OSError of a write the calls that wait raise it, the records
stay in RAM and are written as soon as possible, and until then nothing more is appended. A failed
sync stops the stream [10], and so does an interrupt in the middle of a change: it must be opened
again, which finds all that was forced.

`penstock.aio` has the same for asyncio; `persist` has a producer and a consumer in one line.
"""

import os
import random
import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Final, Self, TypeAlias, TypeVar

from penstock.amqp_url import SCHEMES
from penstock.clock import Clock, SystemClock
from penstock.embedded.events import OnEvent, reporter
from penstock.embedded.local_stream import LocalStream
from penstock.embedded.option_parsing import Size, Time, stream_options, time_ms
from penstock.embedded.sources import Call, PartitionInfo, StreamInfo
from penstock.embedded.stream import Stream
from penstock.embedded.stream_record import NewRecord
from penstock.embedded.waiting import (
    OPEN,
    RECHECK_S,
    WAITING,
    WOKEN,
    OpenDriver,
    ThreadWaiter,
    Waiter,
    ring,
)
from penstock.errors import (
    BoxClosedError,
    DescriptorsError,
    DiskFullError,
    OptionError,
    StoppedError,
    UnknownQueueError,
    has_no_descriptor,
    is_shortage,
)
from penstock.queues.stream_options import StreamOptions
from penstock.storage.files.filesystem import FileSystem, OsFileSystem
from penstock.storage.pages.persistent_queue import PersistentQueue
from penstock.storage.pages.stream_meta import StreamHead

FORCE_S: Final = 1.0  # what is appended is on disk after this, whatever force_every says
UNFORCED_BYTES_MAX: Final = 8 << 20
COMMITS_S: Final = 0.05  # between two times that readers' offsets are saved
RETAIN_EVERY_S: Final = 1.0
AGAIN_S: Final = 1.0  # until a write that failed is tried again
IDLE_S: Final = 2.5

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


@dataclass(slots=True, eq=False)
class Want:
    """What a call asks of the thread, and waits for. offset: of FORCE, up to which. error, result:
    the outcome."""

    kind: str
    waiter: Waiter
    offset: int = 0
    error: Exception | None = None
    result: int = 0

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
            queue.check(len(body), meta)
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

    def _forced(self, head: StreamHead | None, upto: int, now: float) -> None:
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
        failure: Exception = error
        if is_shortage(error):
            failure = DiskFullError(self.path, self.fs.free_bytes(self.path), 0)
            if has_no_descriptor(error):
                failure = DescriptorsError(self.path)
            failure.__cause__ = error
        if self._blocked is None:
            text = f"{self.path}: {self.unforced} records stay in RAM, to be written later: {error}"
            self.event("stream_write", text)
        self._blocked = failure
        self._again_at = self.clock.monotonic() + AGAIN_S
        while self._forces:
            self._forces.popleft().done(failure)

    def _save_due(self) -> None:
        now = self.clock.monotonic()
        with self.lock:
            wants = self._take(SAVE)
            if not self._unsaved or not (wants or now >= self._saved_at + COMMITS_S):
                for want in wants:
                    want.done()
                return
            unsaved, self._unsaved = self._unsaved, {}
        failure: Exception | None = None
        try:
            for name, offset in unsaved.items():
                self._save(name, offset)
        except OSError as error:
            failure = error
            self.event("stream_write", f"{self.path}: readers are to be saved again: {error}")
        except Exception as error:
            failure = error
            raise
        finally:
            with self.lock:
                self._saved_at = self.clock.monotonic()
                if failure is not None:
                    self._saved_at += AGAIN_S
                    self._unsaved = {**unsaved, **self._unsaved}
                for want in wants:
                    want.done(failure)

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
        failure: Exception | None = None
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
        except OSError as error:  # what is left is deleted with the next ones
            failure = error
            self.event("stream_write", f"{self.path}: pages could not be taken away: {error}")
        except Exception as error:
            failure = error
            raise
        finally:
            with self.lock:
                for want in wants:
                    want.result = pages
                    want.done(failure)

    def _take(self, kind: str) -> list[Want]:
        taken = [want for want in self._wants if want.kind == kind]
        self._wants = [want for want in self._wants if want.kind != kind]
        return taken

    def _delete(self) -> None:
        failure: Exception | None = None
        try:
            self.queue.delete()
        except OSError as error:
            failure = error
        self.is_deleted = True
        for want in self._take(DELETE):
            want.done(failure)
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


ForceEvery: TypeAlias = int | str | timedelta
OpenCore = Callable[[OnEvent, threading.Lock], AloneCore]
T = TypeVar("T")
D = TypeVar("D", bound="AloneDriver")

SAFE: Final = "disk"
RECORDS_MAX: Final = 1_000_000
EXPECTED_FORCE: Final = (
    f'a number of records from 1 to {RECORDS_MAX}, a time such as "100ms", or a timedelta, above 0'
)


class AloneDriver(OpenDriver):
    """The thread of the stream, and how calls wait for it. open_core(on_event, lock): opens the
    core; what it raises, this raises. on_event: called in the thread, without the lock."""

    noun = "stream"

    def __init__(self, path: str, open_core: OpenCore, on_event: OnEvent) -> None:
        super().__init__(path)
        self._on_event = on_event
        self._events: deque[tuple[str, str]] = deque()
        self._bell = threading.Lock()
        self._bell.acquire()
        self._is_closing: bool = False
        self._close_error: Exception | None = None
        self.core: AloneCore = open_core(self._keep_event, self.lock)
        self._thread = threading.Thread(target=self._run, name="penstock-stream", daemon=True)
        try:
            self._thread.start()
        except BaseException:
            self.core.close()
            raise
        OPEN.add(self)

    def nudge(self) -> None:
        """Wake the thread: there is work for it."""
        ring(self._bell)

    def interrupted(self, error: BaseException) -> None:
        self.core.interrupted(error)
        self.nudge()

    # ---- calls ---------------------------------------------------------------------------------

    def new_waiter(self, lsn: int = 0, deadline: float | None = None) -> Waiter:
        return ThreadWaiter(lsn, 0, deadline)

    def new_want_waiter(self) -> Waiter:
        """Return what a call waits with for the thread."""
        return self.new_waiter(1)

    def wait(self, waiter: Waiter) -> None:
        """Wait until the waiter is woken. One that may be woken for nothing waits at most until its
        deadline, or for a second."""
        while waiter.state == WAITING:
            seconds = RECHECK_S
            if waiter.deadline is not None:
                seconds = min(waiter.deadline - self.core.clock.monotonic(), RECHECK_S)
            waiter.sleep(seconds)
            if not waiter.lsn:
                return

    # ---- the thread ----------------------------------------------------------------------------

    def _keep_event(self, kind: str, text: str) -> None:
        self._events.append((kind, text))
        ring(self._bell)

    def _run(self) -> None:
        while not self._is_closing:
            self._bell.acquire(timeout=self.core.next_s())
            self.core.turn()
            self._report_events()
        try:
            self.core.close()
        except Exception as error:  # noqa: BLE001  # `close` raises it
            self._close_error = error
        with self.lock:
            self.shut()
            self.core.wake_followers()
        self._report_events()
        OPEN.forget(self)

    def _report_events(self) -> None:
        while self._events:
            kind, text = self._events.popleft()
            self._on_event(kind, text)

    # ---- the end -------------------------------------------------------------------------------

    def close(self) -> None:
        """Write all to disk, save the readers and release the directory; a second time do nothing.
        OSError, SyncFailedError; the stream is closed all the same."""
        if self._pid != os.getpid():
            return
        self._is_closing = True
        self.nudge()
        if threading.current_thread() is not self._thread:  # else `on_event` has called it
            self._thread.join()
        error, self._close_error = self._close_error, None
        if error is not None:
            raise error

    def in_child(self) -> None:
        super().in_child()
        self.core.in_child()

    def not_closed(self, error: Exception) -> None:
        self._on_event("stopped", f"the stream could not be closed in order: {error}")


class AloneStreamSource(LocalStream):
    """The calls of a stream without a box: see the head of this module."""

    def __init__(self, driver: AloneDriver) -> None:
        super().__init__(driver, driver.core.followers)
        self.name: str = driver.core.name
        self.options = driver.core.settings.options
        self._driver = driver
        self._core: AloneCore = driver.core

    def monotonic(self) -> float:
        return self._core.clock.monotonic()

    def wall_us(self) -> int:
        return self._core.clock.wall_us()

    # ---- looking -------------------------------------------------------------------------------

    def info(self, reader: str = "") -> Call[StreamInfo]:
        yield from ()
        with self._driver.gate, self._driver.guard:
            return self._core.info(reader)

    def find(self, partition: int, time_us: int) -> Call[int]:
        yield from ()
        with self._driver.gate, self._driver.guard:
            return self._core.find(time_us)

    # ---- appending -----------------------------------------------------------------------------

    def append(self, news: list[NewRecord], durability: object) -> Call[list[int]]:
        if durability not in (None, SAFE):
            raise OptionError("durability", durability, 'nothing (as force_every says), or "disk"')
        driver, core = self._driver, self._core
        with driver.gate, driver.guard:
            want = core.retry(driver.new_want_waiter)
        if want is not None:
            driver.nudge()
            yield want.waiter
            want.take()
        want = None
        with driver.gate, driver.guard:
            offsets = core.append(news)
            if offsets and (durability == SAFE or core.must_wait()):
                want = core.want_force(driver.new_want_waiter())
        driver.nudge()
        if want is not None:
            yield want.waiter
            want.take()
        return offsets

    def force(self) -> Call[None]:
        """Wait until all that was appended is on disk."""
        driver = self._driver
        with driver.gate, driver.guard:
            self._core.check()
            want = self._core.want_force(driver.new_want_waiter())
        driver.nudge()
        yield want.waiter
        want.take()

    def end(self) -> None:
        """Wake the followers: nothing more will be appended."""
        with self._driver.lock:
            self._core.end()

    @property
    def is_ended(self) -> bool:
        """Return whether `end` was called."""
        return self._core.is_ended

    # ---- reading -------------------------------------------------------------------------------

    def check(self) -> None:
        self._core.check()

    def pages(self, partition: int) -> PersistentQueue:
        return self._core.queue

    # ---- readers and the whole -----------------------------------------------------------------

    def commit(self, reader: str, offsets: dict[int, int], *, is_safe: bool) -> Call[None]:
        driver, core = self._driver, self._core
        want = None
        with driver.gate, driver.guard:
            core.check()
            for offset in offsets.values():
                core.commit(reader, offset)
            if is_safe:
                want = core.want(SAVE, driver.new_want_waiter())
        driver.nudge()
        if want is not None:
            yield want.waiter
            want.take()

    def delete_reader(self, reader: str) -> Call[None]:
        yield from ()
        with self._driver.gate, self._driver.guard:
            self._core.delete_reader(reader)
        self._driver.nudge()

    def retain(self) -> Call[int]:
        return (yield from self._asked(RETAIN))

    def delete(self) -> Call[None]:
        yield from self._asked(DELETE)

    def _asked(self, kind: str) -> Call[int]:
        driver = self._driver
        with driver.gate, driver.guard:
            want = self._core.want(kind, driver.new_want_waiter())
        driver.nudge()
        yield want.waiter
        return want.take()


class AloneStream(Stream):
    """A stream in a directory of its own; `penstock.open_stream` opens it. Use it from any number
    of threads, but not from a forked child (ForkedError). Errors of all methods after `close`:
    BoxClosedError; after a failed sync: StoppedError, until it is opened again."""

    _driver: AloneDriver

    def __init__(self, driver: AloneDriver, source: AloneStreamSource) -> None:
        super().__init__(driver, source)
        self._calls = source

    @property
    def path(self) -> str:
        """The directory."""
        return self._driver.path

    def force(self) -> None:
        """Wait until all that was appended is on disk and may be read. DiskFullError, OSError;
        after a SyncFailedError the stream has stopped."""
        self._driver.run(self._calls.force())

    def close(self) -> None:
        """Write all to disk and release the directory. A second time does nothing. OSError,
        SyncFailedError: what was not on disk may be lost; the stream is closed all the same."""
        self._driver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_stream(
    directory: str | Path, *, page_bytes: Size = "64 MiB", force_every: ForceEvery = 1,
    max_age: Time | None = None, max_bytes: Size | None = None, max_records: int | None = None,
    on_event: OnEvent | None = None,
) -> AloneStream:  # fmt: skip
    """Open the stream in a directory of its own, which is made if it is missing (not its parents):
    rxjava2-extras' PersistentQueue.

    force_every: when appended records are put on disk. 1: before each append returns; appends that
    wait at the same time share a sync. 2 to 1,000,000: after so many records. "100ms" or a
    timedelta: so long after an append. In these two an append returns at once, and a crash may lose
    what is not on disk yet; it is there after a second at the latest (or after the time, if that is
    longer). In all cases only what is on disk is read.
    max_age, max_bytes, max_records: retention, as in `box.stream`; they hold for this opening and
    may be others the next time. None: no limit.
    page_bytes: the size of a page file, 4 KiB to 1 GiB; fixed when the stream is made.
    on_event(kind, text): called in the stream's own thread with what is not an error of a call.

    Raises LockedError, which names who has it open; NotAStoreError if the directory holds something
    else, as a box; CorruptionError, which names file and place; OptionError,
    NetworkFileSystemError, SyncFailedError; OSError, FileNotFoundError if the parent directory is
    missing.
    """
    settings = settings_of(force_every, page_bytes, max_age, max_bytes, max_records)
    driver = driver_of(AloneDriver, directory, settings, on_event)
    return AloneStream(driver, AloneStreamSource(driver))


def settings_of(
    force_every: object, page_bytes: object, max_age: object, max_bytes: object,
    max_records: object,
) -> AloneSettings:  # fmt: skip
    """Return the settings for these options. OptionError."""
    given = {
        "page_bytes": page_bytes, "max_age": max_age, "max_bytes": max_bytes,
        "max_records": max_records,
    }  # fmt: skip
    options = stream_options(given)
    records, seconds = _force_every(force_every)
    return AloneSettings(options, records, seconds)


def driver_of(
    make: Callable[[str, OpenCore, OnEvent], D], directory: object, settings: AloneSettings,
    on_event: OnEvent | None,
) -> D:  # fmt: skip
    """Return the driver of the stream in this directory. make: its class. Events are logged and
    given to `on_event`. Errors as of `open_stream`."""
    if isinstance(directory, str) and directory.startswith(SCHEMES):
        expected = "a directory: a stream of a broker is box.stream of penstock.open(URL)"
        raise OptionError("directory", directory, expected)
    # Absolute, for the program may change its own directory.
    path = str(Path(directory).absolute())  # type: ignore[arg-type]  # or a TypeError
    log = reporter(path, on_event)

    def open_core(on_event: OnEvent, lock: AbstractContextManager[object]) -> AloneCore:
        core = AloneCore(
            OsFileSystem(0), path, settings, SystemClock(), random.Random(), on_event, lock
        )
        return checked(core)

    def report(kind: str, text: str) -> None:
        if kind != "page_bytes":  # `checked` raises an error if page_bytes was given
            log(kind, text)

    return make(path, open_core, report)


def checked(core: AloneCore) -> AloneCore:
    """Return the core. OptionError, with the core closed, if its pages have another size than was
    asked for."""
    wanted, has = core.settings.options.page_bytes, core.queue.page_bytes
    default = stream_options({}).page_bytes
    if wanted not in (has, default):
        core.close()
        raise OptionError("page_bytes", wanted, f"{has}, as the stream was made with")
    core.settings = replace(core.settings, options=replace(core.settings.options, page_bytes=has))
    return core


def _force_every(given: object) -> tuple[int | None, float | None]:
    """Return (records, seconds), one of them None."""
    if type(given) is int and 1 <= given <= RECORDS_MAX:
        return given, None
    is_text = isinstance(given, str) and given.strip()[-1:].isalpha()  # with a unit
    if is_text or isinstance(given, timedelta):
        try:
            ms = time_ms("force_every", given)
        except OptionError:
            ms = 0
        if ms > 0:
            return None, ms / 1000
    raise OptionError("force_every", given, EXPECTED_FORCE)
