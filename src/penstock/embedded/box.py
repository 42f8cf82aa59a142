"""Box: a directory of durable queues and streams, opened by one process; `penstock.open`.

A box is a vhost of Penstock without its server: one log, one memory budget, any number of queues
and streams.
It belongs to the process that opened it; a second one gets LockedError, which names the holder.

    with penstock.open("jobs.d") as box:
        box.queue("resize").put(b"picture 7")
        box.stream("events", max_age="7d").append(b"picture 7 was asked for")

Not here: threads and waiting (`driver`), what the box is made of (`core`), asyncio (`aio`).
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Unpack

from penstock.embedded import calls, upkeep_calls
from penstock.embedded.box_errors import TransactionError
from penstock.embedded.box_thread import BoxThread
from penstock.embedded.box_transaction import BoxTransaction
from penstock.embedded.core import Core, Settings
from penstock.embedded.driver import Driver
from penstock.embedded.queue import Queue
from penstock.embedded.queue_state import QueueState
from penstock.embedded.settings import settings_of
from penstock.embedded.spellings import Given, Size, mode_of
from penstock.embedded.stream import Stream
from penstock.embedded.stream_calls import StreamCalls
from penstock.embedded.stream_spellings import StreamGiven
from penstock.embedded.waiting import Waiter
from penstock.queues.alerts import Alert

OnEvent = Callable[[str, str], None]
OnAlert = Callable[[Alert], None]

LOG: Final = logging.getLogger("penstock")
LEVELS: Final[dict[str, int]] = {
    "stopped": logging.ERROR,
    "corruption": logging.ERROR,
    "disk_full": logging.WARNING,
    "memory_alarm": logging.WARNING,
    "page_out_failed": logging.WARNING,
    "dead_letter_missing": logging.WARNING,
    "dead_letter_cycle": logging.WARNING,
    "dead_letter_hops": logging.WARNING,
    "warning": logging.WARNING,
    "alert": logging.WARNING,
    "checkpoint": logging.DEBUG,
    "clean": logging.DEBUG,
}  # others: INFO


class BoxView:
    """What a box has in common for threads and asyncio: its driver, its news, what needs no
    wait."""

    def __init__(
        self, path: str, settings: Settings, on_event: OnEvent | None, on_alert: OnAlert | None
    ) -> None:
        self.path: str = path
        self._settings = settings
        self._on_event = on_event
        self._on_alert = on_alert
        self._driver: Driver = self._make_driver()

    def _make_driver(self) -> Driver:
        return Driver(self.path, self._open_core)

    def _open_core(self, driver: BoxThread, states: Mapping[str, QueueState]) -> Core:
        news = driver.news

        def tell(kind: str, text: str) -> None:
            news.append(lambda: self._tell(kind, text))
            driver.nudge()

        def tell_alert(alert: Alert) -> None:
            news.append(lambda: self._tell_alert(alert))
            driver.nudge()

        return Core(self.path, self._settings, tell, tell_alert, states=states)

    def _tell(self, kind: str, text: str) -> None:
        """In the box's own thread, without the lock."""
        LOG.log(LEVELS.get(kind, logging.INFO), "%s: %s: %s", self.path, kind, text)
        if self._on_event is not None:
            try:
                self._on_event(kind, text)
            except BaseException:  # not even sys.exit may end the box's thread
                LOG.exception("%s: on_event has failed", self.path)

    def _tell_alert(self, alert: Alert) -> None:
        LOG.log(LEVELS["alert"], "%s: %s", self.path, alert.text())
        if self._on_alert is not None:
            try:
                self._on_alert(alert)
            except BaseException:
                LOG.exception("%s: on_alert has failed", self.path)

    def queues(self) -> list[str]:
        """The names of all queues, sorted."""
        return calls.locked(self._driver, lambda: self._driver.core.names())

    def streams(self) -> list[str]:
        """The names of all streams, sorted."""
        return calls.locked(self._driver, lambda: self._driver.core.streams.names())

    def __contains__(self, name: object) -> bool:
        """Whether there is a queue of this name."""
        return isinstance(name, str) and calls.locked(
            self._driver, lambda: self._driver.core.has(name)
        )

    def __iter__(self) -> Iterator[str]:
        """The names of the queues."""
        return iter(self.queues())

    def info(self) -> dict[str, int | float | str]:
        """Counters: queues, lsn and lsn_settled (on disk), syncs, checkpoints, memory of the budget
        (memory_bytes, counted_bytes, is_alarmed, is_disk_full), durability."""
        return calls.locked(self._driver, lambda: self._driver.core.info())

    def _state(self, name: str, given: Mapping[str, object]) -> tuple[QueueState, Waiter | None]:
        """The queue, and what to wait for until it is durable as it is now."""
        driver = self._driver
        with driver.gate, driver.guard:
            return calls.declare(driver, lambda: driver.core.queue(name, given))

    def _source(self, name: str, given: Mapping[str, object]) -> tuple[StreamCalls, Waiter | None]:
        """The stream, and what to wait for until it is durable."""
        driver = self._driver
        with driver.gate, driver.guard:
            state, waiter = calls.declare(driver, lambda: driver.core.stream(name, given))
        return StreamCalls(driver, state, self._settings.mode), waiter

    def _transaction(self, durability: str | None) -> BoxTransaction:
        """Open one for the caller."""
        driver = self._driver
        mode = self._settings.mode if durability is None else mode_of("durability", durability)
        with driver.gate, driver.guard:
            owner = driver.caller()
            if owner in driver.transactions:
                raise TransactionError("a transaction is open here already: they do not nest")
            transaction = BoxTransaction(driver.core, mode)
            driver.transactions[owner] = transaction
            return transaction

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path!r}>"


class ScopeView:
    """What `box.transaction()` gives, before it is entered."""

    def __init__(self, box: BoxView, durability: str | None) -> None:
        self._box = box
        self._durability = durability
        self._transaction: BoxTransaction | None = None

    def _begin(self) -> None:
        if self._transaction is not None:
            raise TransactionError("a transaction is entered once: make another one")
        self._transaction = self._box._transaction(self._durability)


class TransactionScope(ScopeView):
    """What `with box.transaction():` enters. The block's exception rolls back, and goes on."""

    def __enter__(self) -> None:
        self._begin()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        driver = self._box._driver
        assert self._transaction is not None, "it was entered"
        if error is None:
            driver.run(calls.commit(driver, self._transaction))
        else:
            calls.rollback(driver, self._transaction)


class Box(BoxView):
    """See the head of this module. Use it from any number of threads; not from a forked child
    (ForkedError). Errors of all methods after `close`: BoxClosedError."""

    def queue(self, name: str, **options: Unpack[Given]) -> Queue:
        """The queue of this name, which is made when there is none.

        Options that are given become the queue's own, durably, also of one that exists; those that
        are not given stay as they are. docs/embedded.md lists them. OptionError: one is unknown or
        out of range, or it would change the number of priorities.
        """
        state, waiter = self._state(name, options)
        if waiter is not None:
            self._driver.wait(waiter)
        return Queue(self._driver, state)

    def stream(self, name: str, **options: Unpack[StreamGiven]) -> Stream:
        """The stream of this name, which is made when there is none.

        max_age, max_bytes, max_records: retention, of each partition; partitions, page_bytes:
        docs/streams.md. OptionError: one is unknown, out of range, or not as the stream was made
        with; a queue has the name."""
        source, waiter = self._source(name, options)
        if waiter is not None:
            self._driver.wait(waiter)
        return Stream(self._driver, source)

    def delete(self, name: str) -> None:
        """Delete a queue or a stream with all that it holds; UnknownQueueError."""
        self._driver.run(calls.delete(self._driver, name))

    def transaction(self, *, durability: str | None = None) -> TransactionScope:
        """What this thread puts and acknowledges in the `with` block happens together, or not at
        all. TransactionError: one is open already."""
        return TransactionScope(self, durability)

    def sync(self) -> None:
        """Wait until everything so far is on disk, whatever its durability; acknowledgements
        too."""
        self._driver.run(calls.sync(self._driver))

    def checkpoint(self) -> bool:
        """Make a checkpoint now, so that the next start reads no log. False: no room for it."""
        return upkeep_calls.checkpoint(self._driver)

    def backup(self, path: str | Path) -> None:
        """A copy of the box as it is now, in a new directory, made beside the traffic.
        NotAStoreError: the path is not free. OSError, DiskFullError."""
        upkeep_calls.backup(self._driver, path)

    def close(self) -> None:
        """Stop in order, and let others have the directory. What is unacknowledged comes again when
        it is opened. A second time: nothing."""
        self._driver.close()

    def __enter__(self) -> "Box":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()


def open_box(
    path: str | Path, *, durability: str = "disk", memory: Size = "32 MiB",
    strict: bool = False, on_event: OnEvent | None = None, on_alert: OnAlert | None = None,
    **storage: object,
) -> Box:  # fmt: skip
    """Open the box in a directory; it is made when missing. This is `penstock.open`.

    durability: of puts that say nothing else: "disk", "interval=<ms>", "os" or "none".
    memory: what all queues together may hold in RAM; "32 MiB", bytes, or "0.1" of the machine.
    strict: refuse queues whose own limits add up to more than that (else: a warning).
    on_event(kind, text), on_alert(alert): called in the box's own thread, which may use the box.
    storage: options of the engine, as disk_free_limit; log_directory and spill_directory, other
    directories for the log and for messages that leave RAM (docs/two-disks.md).

    LockedError names who has it open. NotAStoreError, VersionError, NetworkFileSystemError,
    OptionError; CorruptionError names file and place.
    """
    directory, settings = settings_of(path, durability, memory, strict, storage)
    return Box(directory, settings, on_event, on_alert)
