"""A stream without a box: one directory, a lock on it, and one thread; `penstock.open_stream`.

This is rxjava2-extras' PersistentQueue: a log in files for one program, without a box, a broker or
another log before it. Each record is written once. It has the methods of a box's stream
(`box.stream`), but for partitions and transactions, and a few of its own.

    with penstock.open_stream("events.d", max_age="7d") as s:
        s.append(b"order 1 came in")

Calls run the core (`alone_core`) in the caller's thread, under the lock, as those of a box do. What
has to be written they ask of the one thread (a `Want`), and sleep until it is done. Many that wait
at once are settled by one sync.

    append    in RAM; then wait until it is on disk, if `force_every` says so
    chunk     up to 256 records or 256 KiB below the head
    wait      among the followers, until the head moves
    commit    in RAM, saved soon; or waited for

Every call enters the gate: the lock, and once the stream is closed, or in a forked child, a Gate
that refuses. An interrupt in the middle of the core stops it: what is not on disk may be half made,
and what is will be found when the stream is opened again. At the end of the interpreter streams
that are still open are closed in order, newest first.

`penstock.aio` has the same for asyncio, `persist` a producer and a consumer in one line.
"""

import atexit
import os
import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeAlias, TypeVar

from penstock.clock import SystemClock
from penstock.embedded.alone_core import DELETE, RETAIN, SAVE, AloneCore, AloneSettings
from penstock.embedded.events import OnEvent, reporter
from penstock.embedded.library_errors import BoxClosedError
from penstock.embedded.option_parsing import URLS, Size, Time, stream_options, time_ms
from penstock.embedded.sources import Call, Feed, StreamInfo, StreamSource
from penstock.embedded.stream import Stream
from penstock.embedded.stream_record import NewRecord, StreamRecord
from penstock.embedded.waiting import (
    RECHECK_S,
    WAITING,
    Gate,
    Guard,
    ThreadWaiter,
    Waiter,
    is_free_soon,
    ring,
    run_call,
)
from penstock.errors import ForkedError, OptionError, PenstockError
from penstock.storage.filesystem import OsFileSystem

ForceEvery: TypeAlias = int | str | timedelta
OpenCore = Callable[[OnEvent, threading.Lock], AloneCore]
T = TypeVar("T")

SAFE: Final = "disk"
RECORDS_MAX: Final = 1_000_000
EXPECTED_FORCE: Final = (
    f'a number of records from 1 to {RECORDS_MAX}, or a time as "100ms" or a timedelta, above 0'
)


class AloneDriver:
    """The thread of the stream, and how calls wait for it. open_core(on_event, lock): opens the
    core; what it raises, this raises. on_event: called in the thread, without the lock."""

    def __init__(self, path: str, open_core: OpenCore, on_event: OnEvent) -> None:
        self.path: str = path
        self._on_event = on_event
        self._events: deque[tuple[str, str]] = deque()
        self._bell = threading.Lock()
        self._bell.acquire()
        self._is_closing: bool = False
        self._close_error: Exception | None = None
        self._pid = os.getpid()
        self.lock = threading.Lock()
        self.core: AloneCore = open_core(self._keep_event, self.lock)
        self.gate: threading.Lock | Gate = self.lock
        self.guard = Guard(self)
        self._thread = threading.Thread(target=self._run, name="penstock-stream", daemon=True)
        try:
            self._thread.start()
        except BaseException:
            self.core.close()
            raise
        _open.append(self)

    def nudge(self) -> None:
        """Wake the thread: there is work for it."""
        ring(self._bell)

    def interrupted(self, error: BaseException) -> None:
        """Under the lock: stop the core, which an interrupt has left half changed."""
        self.core.interrupted(error)
        self.nudge()

    # ---- calls ---------------------------------------------------------------------------------

    def new_waiter(self, lsn: int = 0, deadline: float | None = None) -> Waiter:
        """Return what a call waits with. lsn: 0 if it may also be woken for nothing."""
        return ThreadWaiter(lsn, 0, deadline)

    def new_want_waiter(self) -> Waiter:
        """Return what a call waits with for the thread."""
        return self.new_waiter(1)

    def run(self, call: Call[T]) -> T:
        """Run a call in this thread and return its result."""
        return run_call(call, self.wait)

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
            self.gate = Gate(self._refuse_closed)
            self.core.wake_followers()
        self._report_events()
        if self in _open:
            _open.remove(self)

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

    def _refuse_closed(self) -> None:
        raise BoxClosedError(self.path, "stream")

    def in_child(self) -> None:
        """In a forked child: refuse all calls."""
        self.gate = Gate(self._refuse_forked)
        self.core.in_child()

    def _refuse_forked(self) -> None:
        raise ForkedError(self.path, self._pid, os.getpid())


_open: list[AloneDriver] = []


def _close_all() -> None:
    """Close all streams at the end of the interpreter."""
    for driver in reversed(list(_open)):
        try:
            driver.close()
        except Exception as error:  # noqa: BLE001  # the others must be closed as well
            driver._on_event("stopped", f"the stream could not be closed in order: {error}")


def _in_child() -> None:
    drivers = list(_open)
    _open.clear()
    for driver in drivers:
        driver.in_child()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_in_child)


class AloneStreamSource(StreamSource):
    """What the methods of the stream do: see the head of this module."""

    def __init__(self, driver: AloneDriver) -> None:
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

    def feed(self, partition: int, offset: int) -> "AloneFeed":
        return AloneFeed(self._driver, offset)

    def wait(self, feeds: Sequence[Feed], deadline: float | None) -> Call[None]:
        driver, core = self._driver, self._core
        with driver.gate, driver.guard:
            core.check()
            for feed in feeds:
                assert isinstance(feed, AloneFeed)
                if core.has_more(feed.offset):
                    return
            waiter = driver.new_waiter(0, deadline)
            core.followers.append(waiter)
        try:
            yield waiter
        finally:
            with driver.lock:
                if waiter in core.followers:
                    core.followers.remove(waiter)

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

    def commit_soon(self, reader: str, offsets: dict[int, int]) -> None:
        if not is_free_soon(self._driver.lock, self.monotonic):
            return
        try:
            for _ in self.commit(reader, offsets, is_safe=False):
                raise AssertionError("commit waits for nothing")
        except PenstockError:
            pass  # the stream was closed, for example: the records are read again

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


class AloneFeed(Feed):
    """A place in a stream without a box."""

    __slots__ = ("_driver", "offset")

    def __init__(self, driver: AloneDriver, offset: int) -> None:
        self._driver = driver
        self.offset = offset

    def chunk(self) -> Call[list[StreamRecord]]:
        yield from ()
        with self._driver.gate, self._driver.guard:
            records = self._driver.core.read(self.offset)
        if records:
            self.offset = records[-1].offset + 1
        return records

    def close(self) -> None:
        """Do nothing: nothing is open."""


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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
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
    path, report = path_of(directory), reporter_of(directory, on_event)
    driver = AloneDriver(path, opens(directory, settings), report)
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


def path_of(directory: object) -> str:
    """Return the absolute path of the directory, for the program may change its own. OptionError if
    it is a URL, TypeError if it is not a path."""
    if isinstance(directory, str) and directory.startswith(URLS):
        expected = "a directory: a stream of a broker is box.stream of penstock.open(URL)"
        raise OptionError("directory", directory, expected)
    return str(Path(directory).absolute())  # type: ignore[arg-type]  # or a TypeError


def opens(directory: object, settings: AloneSettings) -> OpenCore:
    """Return what opens the core of the stream in this directory."""
    path = path_of(directory)

    def open_core(on_event: OnEvent, lock: AbstractContextManager[object]) -> AloneCore:
        core = AloneCore(
            OsFileSystem(0), path, settings, SystemClock(), random.Random(), on_event, lock
        )
        return checked(core)

    return open_core


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


def reporter_of(directory: object, on_event: OnEvent | None) -> OnEvent:
    """Return what logs an event of the stream and calls `on_event`."""
    report = reporter(path_of(directory), on_event)

    def report_other(kind: str, text: str) -> None:
        if kind != "page_bytes":  # `checked` raises an error if page_bytes was given
            report(kind, text)

    return report_other


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
