"""DirectoryBox: a box in a directory of this process, behind the faces for threads and asyncio.

A box is a vhost of Penstock without its server: one log, one memory budget, any number of queues
and streams. It belongs to the process that opened it; a second one gets LockedError, which names
the holder.

What the box reports (`on_event`, `on_alert`) is called in the thread of the box, without the lock,
so that it may use the box. A checkpoint and a backup are long. They are done in small steps of the
engine, and the lock is released after each, so that others go on in between; where a step would
wait for the disk, the caller sleeps for a millisecond. They run in the thread of the caller, which
for asyncio is a thread of its own.

The methods of a stream run in steps under the box's lock:

    append    StreamEngine.append for each record, one wait for the last
    commit    a READER_OFFSET record, written like an acknowledgement, or waited for

In a transaction records are collected (`transaction`) and have no offsets yet. `local_stream` reads
chunks and follows, `stream_reading` does order, gaps and limits, `core` names and retention.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeVar

from penstock.embedded.box import Box, tracing_of
from penstock.embedded.core import (
    BoxTransaction,
    Core,
    QueueState,
    Settings,
    StreamState,
    settings_of,
)
from penstock.embedded.directory_queue import DirectoryQueue
from penstock.embedded.driver import Driver, OpenCore
from penstock.embedded.events import OnAlert, OnEvent, alert_reporter, reporter
from penstock.embedded.local_stream import LocalStream
from penstock.embedded.option_parsing import Size, mode_of
from penstock.embedded.sources import BoxSource, Call, PartitionInfo, StreamInfo
from penstock.embedded.stream_record import NewRecord
from penstock.embedded.waiting import ThreadWaiter, Waiter
from penstock.errors import StorageError, TransactionError
from penstock.queues.stream_options import partition_of
from penstock.queues.thresholds import Alert
from penstock.storage.files.data_directory import FreshDirectory
from penstock.storage.files.durability import DISK, OS
from penstock.storage.journal.checkpoint import IDLE, SLICES
from penstock.storage.pages.persistent_queue import PersistentQueue
from penstock.storage.tools.backup import Backup

T = TypeVar("T")

PAUSE_S: Final = 0.001


class DirectoryStream(LocalStream):
    """A stream in the box. mode: the durability of appends that name none."""

    def __init__(self, driver: Driver, state: StreamState, mode: int) -> None:
        super().__init__(driver, state.followers)
        self.name: str = state.name
        self.options = state.options
        self._driver = driver
        self._state = state
        self._mode = mode

    def monotonic(self) -> float:
        return self._driver.core.clock.monotonic()

    def wall_us(self) -> int:
        return self._driver.core.clock.wall_us()

    # ---- looking -------------------------------------------------------------------------------

    def info(self, reader: str = "") -> Call[StreamInfo]:
        yield from ()
        driver, state = self._driver, self._state
        readers: set[str] = set()
        offsets: dict[int, int] = {}
        with driver.gate, driver.guard:
            state.check()
            infos: list[PartitionInfo] = []
            for i, part in enumerate(state.parts):
                queue = part.queue
                infos.append(
                    PartitionInfo(
                        i, part.first_offset, part.head_offset, queue.last_time_us, queue.bytes
                    )
                )
                readers.update(part.readers)
                known = part.readers.get(reader)
                if known is not None:
                    offsets[i] = known.offset
        return StreamInfo(infos, sorted(readers), offsets)

    def find(self, partition: int, time_us: int) -> Call[int]:
        yield from ()
        driver, state = self._driver, self._state
        with driver.gate, driver.guard:
            state.check()
            part = state.parts[partition]
            return min(part.queue.find(time_us), part.head_offset)

    # ---- appending -----------------------------------------------------------------------------

    def append(self, news: list[NewRecord], durability: object) -> Call[list[int]]:
        driver, state = self._driver, self._state
        mode = self._mode if durability is None else mode_of("durability", durability)
        confirm: Waiter | None = None
        with driver.gate, driver.guard:
            state.check()
            transaction = driver.transaction()
            parts, count = state.parts, len(state.parts)
            if transaction is not None:
                for new in news:
                    part = parts[partition_of(new.key, count)]
                    transaction.append(part, new.meta, new.body)
                return [-1] * len(news)
            engine = driver.core.engine
            offsets = [
                engine.streams.append(parts[partition_of(new.key, count)], new.meta, new.body, mode)
                for new in news
            ]
            if offsets:
                confirm = driver.settle(engine.log.last_lsn, mode)
                if driver.is_idle:
                    driver.nudge()
        if confirm is not None:
            yield confirm
        return offsets

    # ---- reading -------------------------------------------------------------------------------

    def check(self) -> None:
        self._state.check()

    def pages(self, partition: int) -> PersistentQueue:
        return self._state.parts[partition].queue

    # ---- readers and the whole -----------------------------------------------------------------

    def commit(self, reader: str, offsets: dict[int, int], *, is_safe: bool) -> Call[None]:
        driver, state = self._driver, self._state
        confirm: Waiter | None = None
        with driver.gate, driver.guard:
            state.check()
            engine = driver.core.engine
            mode = DISK if is_safe else OS
            for partition, offset in offsets.items():
                engine.streams.set_reader(state.parts[partition], reader, offset, mode)
            if is_safe:
                lsn = engine.log.last_lsn
                if engine.log.settled(DISK) < lsn:
                    confirm = driver.settle_held(lsn, DISK)
            else:
                driver.acked()
        if confirm is not None:
            yield confirm

    def delete_reader(self, reader: str) -> Call[None]:
        yield from ()
        driver, state = self._driver, self._state
        with driver.gate, driver.guard:
            state.check()
            for part in state.parts:
                driver.core.engine.streams.delete_reader(part, reader, OS)
            driver.acked()

    def retain(self) -> Call[int]:
        yield from ()
        driver, state = self._driver, self._state
        with driver.gate, driver.guard:
            state.check()
            return driver.core.streams.retain(state)

    def delete(self) -> Call[None]:
        driver, state = self._driver, self._state
        with driver.gate, driver.guard:
            state.check()
            confirm = driver.settle(driver.core.streams.delete(state), DISK)
        if confirm is not None:
            yield confirm


class DirectoryBox(BoxSource):
    """A box in a directory; see the head of this module."""

    def __init__(self, driver: Driver, settings: Settings) -> None:
        self.path: str = driver.path
        self._driver = driver
        self._settings = settings

    # ---- queues and streams ----------------------------------------------------------------------

    def queue(self, name: str, given: Mapping[str, object]) -> Call[DirectoryQueue]:
        driver = self._driver
        with driver.gate, driver.guard:
            state, waiter = self._declared(lambda: driver.core.queue(name, given))
        if waiter is not None:
            yield waiter
        return DirectoryQueue(driver, state)

    def stream(self, name: str, given: Mapping[str, object]) -> Call[DirectoryStream]:
        driver = self._driver
        with driver.gate, driver.guard:
            state, waiter = self._declared(lambda: driver.core.stream(name, given))
        if waiter is not None:
            yield waiter
        return DirectoryStream(driver, state, self._settings.mode)

    def _declared(self, make: Callable[[], T]) -> tuple[T, Waiter | None]:
        """Under the lock: return what `make` makes or finds, and what to wait for until it is
        durable."""
        driver = self._driver
        engine = driver.core.engine
        before = engine.log.last_lsn
        made = make()
        if driver.is_idle:
            driver.nudge()
        lsn = engine.log.last_lsn
        return made, driver.settle_held(lsn, DISK) if lsn > before else None

    def queues(self) -> Call[list[str]]:
        yield from ()
        with self._driver.gate, self._driver.guard:
            return self._driver.core.names()

    def streams(self) -> Call[list[str]]:
        yield from ()
        with self._driver.gate, self._driver.guard:
            return self._driver.core.streams.names()

    def has(self, name: str) -> Call[bool]:
        yield from ()
        with self._driver.gate, self._driver.guard:
            return self._driver.core.queue_set.has(name)

    def info(self) -> Call[dict[str, int | float | str]]:
        yield from ()
        with self._driver.gate, self._driver.guard:
            return self._driver.core.info()

    def delete(self, name: str) -> Call[None]:
        driver = self._driver
        with driver.gate, driver.guard:
            lsn = driver.core.delete(name)
            confirm = driver.settle(lsn, DISK) if lsn else None
        if confirm is not None:
            yield confirm

    # ---- transactions ----------------------------------------------------------------------------

    def begin(self, durability: object) -> Call[BoxTransaction]:
        yield from ()
        driver = self._driver
        mode = self._settings.mode if durability is None else mode_of("durability", durability)
        with driver.gate, driver.guard:
            owner = driver.caller()
            if owner in driver.transactions:
                raise TransactionError("a transaction is open here already: they do not nest")
            transaction = BoxTransaction(driver.core, mode)
            driver.transactions[owner] = transaction
            return transaction

    def commit(self, transaction: BoxTransaction) -> Call[None]:
        driver = self._driver
        with driver.gate, driver.guard:
            driver.transactions.pop(driver.caller(), None)
            transaction.check(driver.core)
            try:
                states = transaction.commit()
            except Exception:
                self._roll_back(transaction)
                raise
            for state in states:
                driver.changed(state)
                driver.note_due(state)
            confirm = driver.settle(driver.core.engine.log.last_lsn, transaction.mode)
        if confirm is not None:
            yield confirm

    def rollback(self, transaction: BoxTransaction) -> Call[None]:
        """Undo a transaction. If the box has stopped there is nothing to undo: it is lost."""
        yield from ()
        driver = self._driver
        with driver.lock, driver.guard:
            driver.transactions.pop(driver.caller(), None)
            if transaction.core is driver.core and not driver.is_closed:
                try:
                    self._roll_back(transaction)
                except StorageError as error:
                    driver.core.event("stopped", f"a transaction could not be rolled back: {error}")

    def _roll_back(self, transaction: BoxTransaction) -> None:
        for state in transaction.rollback():
            self._driver.changed(state)
            self._driver.note_due(state)

    # ---- upkeep and the end ----------------------------------------------------------------------

    def sync(self) -> Call[None]:
        driver = self._driver
        with driver.gate, driver.guard:
            engine = driver.core.engine
            confirm = None
            if engine.log.settled(DISK) < engine.log.last_lsn:
                confirm = driver.settle_held(engine.log.last_lsn, DISK)
        if confirm is not None:
            yield confirm

    def checkpoint(self) -> bool:
        """Make a whole checkpoint whose cut is after this call. False: there was no room for it."""
        driver = self._driver
        self._finish_checkpoint()
        with driver.gate, driver.guard:
            engine = driver.core.engine
            before = engine.checkpoints.count
            engine.upkeep.begin_checkpoint()
        self._finish_checkpoint()
        return engine.checkpoints.count > before

    def _finish_checkpoint(self) -> None:
        """Go on with the checkpoint that is in progress until it is finished."""
        driver = self._driver
        while True:
            with driver.gate, driver.guard:
                engine = driver.core.engine
                engine.journal.check()
                phase = engine.checkpoints.phase
                if phase == IDLE:
                    return
                if phase == SLICES:
                    until = engine.clock.monotonic() + engine.options.slice_ms / 1000
                    engine.upkeep.step_checkpoint(until)
                driver.turn()
            if phase != SLICES:
                _pause()

    def backup(self, path: str | Path) -> None:
        """Write a backup of the box into a free path, and verify it."""
        driver = self._driver
        with driver.gate, driver.guard:
            engine = driver.core.engine
            engine.journal.check()
        fresh = FreshDirectory(engine.fs, str(path), "a backup")
        part = Backup(engine, fresh)
        try:
            is_going = True
            while is_going:
                with driver.gate, driver.guard:
                    is_going = part.step()
                    driver.turn()
                if part.is_waiting:
                    _pause()
            fresh.finish()
        except BaseException:
            with driver.lock, driver.guard:
                part.abandon()
            fresh.abandon()
            raise

    def refuse_calls(self) -> None:
        self._driver.shut()

    def close(self) -> None:
        self._driver.close()


def core_opener(
    path: str, settings: Settings, on_event: OnEvent | None, on_alert: OnAlert | None
) -> OpenCore:
    """Return what opens the core of a box, for its driver. The core's events are logged and given
    to the callbacks, in the thread of the box."""
    report = reporter(path, on_event)
    report_alert = alert_reporter(path, on_alert)

    def open_core(driver: Driver, states: Mapping[str, QueueState]) -> Core:
        events = driver.events

        def event(kind: str, text: str) -> None:
            events.append(lambda: report(kind, text))
            driver.nudge()

        def alert(alert: Alert) -> None:
            events.append(lambda: report_alert(alert))
            driver.nudge()

        return Core(path, settings, event, alert, states=states)

    return open_core


def open_box(
    path: str | Path, *, durability: str = "disk", memory: Size = "32 MiB",
    strict: bool = False, on_event: OnEvent | None = None, on_alert: OnAlert | None = None,
    tracing: object = False, **storage: object,
) -> Box:  # fmt: skip
    """Open the box in a directory, which is made if it is missing. This is `penstock.open`.

    durability: of puts that name none: "disk", "interval=<ms>", "os" or "none".
    memory: what all queues together may hold in RAM: "32 MiB", bytes, or "0.1" of the machine.
    strict: refuse queues whose own limits add up to more than that (else: a warning).
    on_event(kind, text), on_alert(alert): called in the box's own thread, and may use the box.
    tracing: True, or a TracerProvider, for spans of OpenTelemetry (docs/guides/tracing.md).
    storage: options of the engine, as disk_free_limit; log_directory and spill_directory, other
    directories for the log and for messages that leave RAM (docs/guides/disks.md); backing_queue
    and allowed_backing_queues, other classes of queues (docs/guides/backing-queues.md).

    Raises LockedError, which names who has it open, NotAStoreError, VersionError,
    NetworkFileSystemError, OptionError, MissingPackageError (for tracing), or CorruptionError,
    which names file and place.
    """
    directory, settings = settings_of(path, durability, memory, strict, storage)
    spans = tracing_of(tracing)
    driver = Driver(directory, core_opener(directory, settings, on_event, on_alert))
    return Box(driver, DirectoryBox(driver, settings), spans)


def _pause() -> None:
    ThreadWaiter().sleep(PAUSE_S)
