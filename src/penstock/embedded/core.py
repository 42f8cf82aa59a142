"""Core: what a box in a directory is made of below its threads; its settings; its transactions.

    DataDirectory < QueueSet (engine, queues, memory, what is due)
                  < CoreStreams, all streams

The core is opened as a whole and closed as a whole. Queues are opened when a caller, or a queue
that dead-letters to them, first names them. The durable options of a queue are its arguments in the
topology.

**Waiting.** Waiters are in each queue's QueueState and each stream's StreamState. These outlive the
core: when it is reopened after an interrupt, their `amq` and `parts` are replaced. At a queue three
kinds wait: getters for a message, putters for room (`maxsize`), joiners for the queue to have
nothing left. Whoever changes the queue calls `changed`, which wakes at most one getter and one
putter; each of them, after its turn, calls `changed` again. So no more are woken than can go on.

**Transactions.** While a BoxTransaction is open, the engine's transaction collects what its owner,
a thread or task, puts into queues, appends to streams and acknowledges. The commit is one decision
in the log, so after a crash all of it is there or nothing. Others see nothing of it before the
commit is settled. RAM holds the first MiB of the bodies; the others are in the store, where a
rollback or a crash drops them. A transaction of more than 256 MiB is refused at its commit. A
rollback removes what was put. Messages that the transaction acknowledged are returned as after a
failure, with back-off and counted as an attempt, because their owner has finished with them. Gets,
nacks and rejects are not part of a transaction: they happen at once. Messages are persistent in a
transaction, whatever the durability of box and queue: `none` counts as `os`.

Everything is called under the lock of the box, except `release`. Events are reported through
`event(kind, text)`, which must not call back.

Opening raises the errors of the engine and the directory (LockedError names the holder), and leaves
nothing open. `abandon` closes without writing, as a crash would.
"""

import random
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Final

from penstock.amqp_url import SCHEMES
from penstock.clock import Clock, SystemClock
from penstock.embedded import option_parsing
from penstock.embedded.box_headers import BoxHeaders
from penstock.embedded.events import DamageReports, OnAlert, OnEvent
from penstock.embedded.option_parsing import NewBody, box_durability, size_bytes
from penstock.embedded.waiting import WOKEN, Waiter
from penstock.errors import (
    DiskFullError,
    OptionError,
    SettledError,
    StoppedError,
    UnknownQueueError,
)
from penstock.queues import priority_queue
from penstock.queues.amq_queue import AMQQueue, Plan
from penstock.queues.backing_choice import BackingChoice
from penstock.queues.budget import machine_memory
from penstock.queues.memory_monitor import MemoryMonitor
from penstock.queues.queue_options import QueueOptions
from penstock.queues.queue_set import QueueOwner, QueueSet, bytes_of, text_of
from penstock.queues.stream_options import KEPT_S, StreamOptions, base_name, partition_names
from penstock.queues.thresholds import Alert
from penstock.storage.engine import StorageEngine
from penstock.storage.files.data_directory import DataDirectory
from penstock.storage.files.durability import DISK, MODE_NAMES, OS
from penstock.storage.files.filesystem import Lock, OsFileSystem
from penstock.storage.files.options import StorageOptions
from penstock.storage.pages.streams import StoredStream
from penstock.storage.parts.transaction import Published

VHOST: Final = b"/"
WORKERS: Final = 4  # a sync and the reads ahead of one queue do not wait for each other
RESERVE: Final = 4  # descriptors that are kept for the files of a box
RETAIN_EVERY_S: Final = 1.0  # between two times that retention is applied


class BoxFileSystem(OsFileSystem):
    """A file system that remembers its locks, so that a forked child can close its copies of
    them."""

    def __init__(self) -> None:
        super().__init__(WORKERS, reserve=RESERVE)
        self.locks: list[Lock] = []

    def lock(self, path: str) -> Lock:
        lock = super().lock(path)
        self.locks.append(lock)
        return lock


class QueueState:
    """One queue of a box, and who waits at it. mode: the durability of puts that name none; the
    core sets it."""

    __slots__ = (
        "amq", "due_ms", "getters", "is_consumed", "is_crowded", "is_deleted", "is_touched",
        "joiners", "mode", "name", "putters",
    )  # fmt: skip

    def __init__(self, name: str, amq: AMQQueue) -> None:
        self.name: str = name
        self.amq: AMQQueue = amq
        self.mode: int = DISK
        self.getters: deque[Waiter] = deque()
        self.putters: deque[Waiter] = deque()
        self.joiners: deque[Waiter] = deque()
        self.is_crowded: bool = False  # a call waits here
        self.due_ms: int = 0  # of UsedQueue, as is_touched
        self.is_touched: bool = False
        self.is_consumed: bool = False  # a message was got since the thread last looked
        self.is_deleted: bool = False

    def enqueue(self, waiters: deque[Waiter], waiter: Waiter) -> None:
        """Add a waiter to one of the three lists."""
        self.is_crowded = True
        waiters.append(waiter)
        self.amq.takers = len(self.getters)

    def leave(self, waiter: Waiter) -> None:
        """Remove a waiter from its list, whether it was woken or not."""
        for waiters in (self.getters, self.putters, self.joiners):
            if waiter in waiters:
                waiters.remove(waiter)
        self.is_crowded = bool(self.getters or self.putters or self.joiners)
        self.amq.takers = len(self.getters)

    def changed(self) -> None:
        """Wake who can go on after a change of the queue: see the head of this module."""
        if self.getters and self.amq.len():
            self._wake_first(self.getters)
        if self.putters:
            self._wake_first(self.putters)
        if self.joiners and self.unfinished() == 0:
            while self.joiners:
                self._wake_first(self.joiners)
        self.is_crowded = bool(self.getters or self.putters or self.joiners)

    @property
    def is_usable(self) -> bool:
        """Return whether the queue was not deleted."""
        return not self.is_deleted

    def tick(self, wall_ms: int) -> bool:
        """Do what is due in the queue. Returns True if there is more to do at once."""
        if self.is_consumed:
            self.is_consumed = False
            self.amq.backing.inhale()
        has_more = self.amq.tick(wall_ms)
        self.changed()
        return has_more

    def unfinished(self) -> int:
        """Count the messages that are ready, unacknowledged or delayed."""
        return self.amq.depth() + self.amq.delayed()

    def wake_all(self) -> None:
        """Wake all that wait: the queue was deleted or the box closed."""
        for waiters in (self.getters, self.putters, self.joiners):
            while waiters:
                self._wake_first(waiters)
        self.is_crowded = False

    def _wake_first(self, waiters: deque[Waiter]) -> None:
        waiters[0].wake(WOKEN)  # before the removal, for an interrupt may come in between
        waiters.popleft()


class StreamState:
    """One stream of a box, and who follows it. parts: the engine's streams, one for each
    partition."""

    __slots__ = ("followers", "is_deleted", "name", "options", "parts")

    def __init__(self, name: str, options: StreamOptions, parts: list[StoredStream]) -> None:
        self.name: str = name
        self.options: StreamOptions = options
        self.parts: list[StoredStream] = parts
        self.followers: deque[Waiter] = deque()
        self.is_deleted: bool = False

    def check(self) -> None:
        """Raise UnknownQueueError if the stream was deleted."""
        if self.is_deleted:
            raise UnknownQueueError(f"{self.name} (deleted)")

    def wake_all(self) -> None:
        """Wake the followers: a head has moved, or the stream or the box has ended."""
        followers = self.followers
        while followers:
            followers[0].wake(WOKEN)  # before the removal, for an interrupt may come in between
            followers.popleft()


class CoreStreams:
    """The streams of a box, by name, and their retention."""

    def __init__(self, engine: StorageEngine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        self._states: dict[str, StreamState] = {}
        self._by_number: dict[int, StreamState] = {}
        self._limited: dict[str, StreamState] = {}  # those that have limits
        self._retained_at: float = clock.monotonic()
        engine.streams.on_head = self._head_moved
        for name in self.names():
            self.find(name)

    # ---- by name -------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Return the names of all streams, sorted."""
        names = {base_name(stream.name) for stream in self._engine.streams.by_number.values()}
        return sorted(name.decode("utf-8", "surrogateescape") for name in names)

    def has(self, name: str) -> bool:
        """Return whether there is a stream of this name."""
        return name in self._states

    def find(self, name: str) -> StreamState | None:
        """Return the stream of this name, None if there is none."""
        state = self._states.get(name)
        if state is None:
            state = self._load(name.encode("utf-8", "surrogateescape"), name)
        return state

    def declare(self, name: str, options: StreamOptions) -> StreamState:
        """Make a stream; it is durable once the log's `last_lsn` is settled."""
        names = partition_names(name.encode(), options.partitions)
        arguments = options.encode()
        declared = [(one, b"" if i else arguments, 0) for i, one in enumerate(names)]
        parts = self._engine.streams.declare(declared, page_bytes=options.page_bytes)
        state = StreamState(name, options, parts)
        self._add(state)
        return state

    def delete(self, state: StreamState) -> int:
        """Delete a stream with all that it holds. Returns the LSN of the deletion."""
        lsn = self._engine.streams.delete(state.parts, DISK)
        for part in state.parts:
            self._by_number.pop(part.number, None)
        self._states.pop(state.name, None)
        self._limited.pop(state.name, None)
        state.is_deleted = True
        state.wake_all()
        return lsn

    def reopen(self, others: "CoreStreams") -> None:
        """Take over the states of a core that was abandoned, with the parts that they have now."""
        for name, state in others._states.items():
            now = self._states.get(name)
            if now is None:
                state.is_deleted = True
            else:
                state.parts, state.options = now.parts, now.options
                self._add(state)
            state.wake_all()

    def wake_all(self) -> None:
        """Wake all followers: the box is closed."""
        for state in self._states.values():
            state.wake_all()

    def _load(self, at: bytes, name: str) -> StreamState | None:
        engine = self._engine
        first = engine.streams.find(at) or engine.streams.find(partition_names(at, 1)[0])
        if first is None:
            return None
        options = StreamOptions.decode(engine.routing.queues[first.name].arguments)
        parts = [engine.streams.get(one) for one in partition_names(at, options.partitions)]
        state = StreamState(name, options, parts)
        self._add(state)
        return state

    def _add(self, state: StreamState) -> None:
        self._states[state.name] = state
        if state.options.has_limits:
            self._limited[state.name] = state
        for part in state.parts:
            self._by_number[part.number] = state

    # ---- heads and retention -------------------------------------------------------------------

    def _head_moved(self, part: StoredStream) -> None:
        state = self._by_number.get(part.number)
        if state is not None and state.followers:
            state.wake_all()

    def tick(self) -> None:
        """Apply retention to all streams that have limits, when it is due."""
        now = self._clock.monotonic()
        if not self._limited or now - self._retained_at < RETAIN_EVERY_S:
            return
        self._retained_at = now
        for state in self._limited.values():
            self.retain(state)

    def retain(self, state: StreamState) -> int:
        """Apply retention to a stream. Returns how many pages were deleted."""
        options = state.options
        since_ms = self._clock.wall_ms() - KEPT_S * 1000
        return sum(
            self._engine.streams.retain(
                part, max_age_s=options.max_age_s, max_bytes=options.max_bytes,
                max_records=options.max_records, since_ms=since_ms,
            )
            for part in state.parts
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a box. mode: its durability. memory_bytes: the budget of its queues; "max"
    and fractions of a queue's own limit are of it. is_strict: whether own limits beyond the budget
    are refused. storage: the engine's options. queues: the classes that hold messages."""

    mode: int
    memory_bytes: int
    is_strict: bool
    storage: StorageOptions
    queues: BackingChoice = field(default_factory=BackingChoice)


class Core(QueueOwner[QueueState]):
    """See the head of this module. states: the queues of a core that was abandoned, to be
    opened."""

    headers = BoxHeaders()

    def __init__(
        self,
        path: str,
        settings: Settings,
        on_event: OnEvent,
        on_alert: OnAlert,
        *,
        states: Mapping[str, QueueState] | None = None,
    ) -> None:
        self.path: str = path
        self.settings: Settings = settings
        self.clock: Clock = SystemClock()
        self.fs = BoxFileSystem()
        self._on_event = on_event
        self._on_alert = on_alert
        self._damage = DamageReports(on_event)
        self.monitor = MemoryMonitor(settings.memory_bytes, self.clock, on_event=self.event)
        try:
            options = settings.storage
            self.data = DataDirectory(
                self.fs, path, log_directory=options.log_directory,
                spill_directory=options.spill_directory,
            )  # fmt: skip
            try:
                self.queue_set: QueueSet[QueueState] = QueueSet(
                    self, self.monitor, self.fs, self.data.vhost_path(VHOST), VHOST,
                    clock=self.clock, rng=random.Random(), storage=options, mode=settings.mode,
                    is_strict=settings.is_strict, choice=settings.queues,
                    on_queue_event=self._queue_event,
                )  # fmt: skip
            except BaseException:
                self.data.close()
                raise
            self.engine: StorageEngine = self.queue_set.engine
            self.streams = CoreStreams(self.engine, self.clock)
            try:
                self.queue_set.read_limits()
                if settings.is_strict and not states:
                    for name, (given, expected) in self.queue_set.limits_beyond().items():
                        raise OptionError(f"max_memory of queue {name!r}", given, expected)
            except BaseException as error:
                self.engine.journal.stop(error)
                self.engine.close()
                self.data.close()
                raise
            self._reopen(states or {})
        except BaseException:
            self.fs.close()
            raise

    def _reopen(self, states: Mapping[str, QueueState]) -> None:
        """Open the queues of an abandoned core again."""
        for name, state in states.items():
            if not state.is_deleted and name in self.queue_set.stored:
                at = bytes_of(name)
                state.amq = self.queue_set.open(at, self.stored_options(at))
                self.queue_set.add(state)
                self._changed_options(state)
            else:
                state.is_deleted = True

    # ---- what the set calls --------------------------------------------------------------------

    def event(self, kind: str, text: str) -> None:
        if kind in ("disk_full", "disk_free"):
            self.monitor.disk_alarm(kind == "disk_full")
        self._on_event(kind, text)

    def _queue_event(self, _queue: str, kind: str, text: str) -> None:
        if kind == "corruption":
            self._damage.found(text)
        else:
            self._on_event(kind, text)

    def alert(self, alert: Alert) -> None:
        self._on_alert(alert)

    def ready(self, name: bytes) -> None:
        state = self.queue_set.queues.get(text_of(name))
        if state is not None:
            self.queue_set.touch(state)
            if state.is_crowded:
                state.changed()

    def dead_letter_queue(self, name: bytes) -> AMQQueue | None:
        state = self.find(text_of(name))
        if state is None:
            return None
        self.queue_set.touch(state)
        return state.amq

    def stored_options(self, name: bytes) -> QueueOptions:
        return QueueOptions.decode(priority_queue.stored(self.engine, name)[0])

    def load(self, name: str) -> QueueState:
        at = bytes_of(name)
        state = QueueState(name, self.queue_set.open(at, self.stored_options(at)))
        self._changed_options(state)
        return state

    def queue_failed(self, _queue: QueueState, error: Exception) -> None:
        raise error

    def tick_others(self, _now_s: float) -> bool:
        self.streams.tick()
        self._damage.tick()
        return False

    # ---- queues --------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Return the names of all queues, sorted."""
        return sorted((*self.queue_set.queues, *self.queue_set.stored))

    def queue(self, name: str, given: Mapping[str, object]) -> QueueState:
        """Return the queue of this name, declared with these options if it is missing. Those of an
        existing queue are changed, durably. OptionError: nothing has changed."""
        option_parsing.check_name(name)
        if self.streams.has(name):
            raise OptionError("name", name, "a name that no stream has")
        whole_bytes = self.settings.memory_bytes
        if not self.queue_set.has(name):
            return self._declare(name, option_parsing.queue_options(given, None, whole_bytes))
        state = self.known(name)
        if given:
            options = option_parsing.queue_options(given, state.amq.options, whole_bytes)
            if options != state.amq.options:
                self._set_options(state, options)
        return state

    def find(self, name: str) -> QueueState | None:
        """Return the queue of this name, opened if it is not; None if there is none."""
        return self.queue_set.find(name)

    def known(self, name: str) -> QueueState:
        """Return the queue of this name. UnknownQueueError if there is none."""
        state = self.find(name)
        if state is None:
            raise UnknownQueueError(name)
        return state

    def _declare(self, name: str, options: QueueOptions) -> QueueState:
        self._check_memory(options, 0)
        state = QueueState(name, self.queue_set.declare(name, options, arguments=options.encode()))
        self.queue_set.add(state)
        self._changed_options(state)
        return state

    def _changed_options(self, state: QueueState) -> None:
        """Apply the durability of a queue that was opened or has other options."""
        own = option_parsing.own_mode(state.amq.options)
        state.mode = self.settings.mode if own is None else own
        self.queue_set.touch(state)

    def _set_options(self, state: QueueState, options: QueueOptions) -> None:
        amq = state.amq
        old = amq.options.max_memory_bytes
        if options.max_memory_bytes != old:
            self._check_memory(options, old or 0)
        priority_queue.store_arguments(self.engine, amq.name, options.encode())
        amq.set_options(options)
        if options.max_memory_bytes != old:
            self.queue_set.register(amq.backing, options)
        self._changed_options(state)
        state.changed()

    def _check_memory(self, options: QueueOptions, old_bytes: int) -> None:
        """Report a warning if the queues' own limits do not fit the budget; OptionError if
        strict."""
        warning = self.queue_set.check_limit(options, old_bytes)
        if warning is not None:
            self.event("warning", warning)

    def stream(self, name: str, given: Mapping[str, object]) -> StreamState:
        """Return the stream of this name, declared with these options if it is missing. An existing
        one must have been made with the same. OptionError: nothing has changed."""
        option_parsing.check_name(name)
        if self.queue_set.has(name):
            raise OptionError("name", name, "a name that no queue has")
        state = self.streams.find(name)
        if state is None:
            return self.streams.declare(name, option_parsing.stream_options(given))
        option_parsing.check_same(given, state.options)
        return state

    def delete(self, name: str) -> int:
        """Delete a queue or a stream with all that it holds. Returns the LSN of the deletion.
        UnknownQueueError."""
        stream = self.streams.find(name)
        if stream is not None:
            return self.streams.delete(stream)
        state = self.known(name)
        lsn = state.amq.delete(DISK)
        self.queue_set.remove(state)
        state.is_deleted = True
        state.wake_all()
        return lsn

    def wake_all(self) -> None:
        """Wake all that wait: the box is closed."""
        for state in self.queue_set.queues.values():
            state.wake_all()
        self.streams.wake_all()

    def info(self) -> dict[str, int | float | str]:
        """Return the counters that `box.info()` returns."""
        engine = self.engine
        memory = self.monitor.info()
        return {
            "queues": len(priority_queue.base_names(engine)),
            "queues_open": len(self.queue_set.queues),
            "lsn": engine.log.last_lsn,
            "lsn_settled": engine.log.settled(DISK),
            "syncs": engine.log.syncs,
            "checkpoints": engine.checkpoints.count,
            "durability": MODE_NAMES[self.settings.mode],
            "memory_bytes": memory["budget_bytes"],
            "counted_bytes": memory["counted_bytes"],
            "is_alarmed": memory["is_alarmed"],
            "is_disk_full": memory["is_disk_full"],
        }

    # ---- the end -------------------------------------------------------------------------------

    def close(self) -> None:
        """Close in order: queues, a checkpoint, the locks."""
        self._damage.tick()
        try:
            self.queue_set.close()
        finally:
            self.data.close()

    def abandon(self) -> None:
        """Close all as a crash would, without writing. A second time does nothing."""
        self.fs.on_complete = None
        self.fs.close()
        self.queue_set.abandon("the core was abandoned")
        self.data.close()

    def release(self) -> None:
        """After `close` or `abandon`, without the lock: end the threads of the file system."""
        self.fs.close()

    def in_child(self) -> None:
        """In a forked child: close the copies of the locks."""
        for lock in self.fs.locks:
            lock.release()


# All options of `open`, of which it suggests one when a name is wrong.
NAMES = (
    "durability", "memory", "strict", "on_event", "on_alert",
    *(field.name for kind in (StorageOptions, BackingChoice) for field in fields(kind)),
)  # fmt: skip


def settings_of(
    path: object, durability: object, memory: object, strict: object, storage: Mapping[str, object]
) -> tuple[str, Settings]:
    """Return the directory and the settings. storage: options of the engine, and those of
    BackingChoice. OptionError; TypeError if this is not a path."""
    if isinstance(path, str) and path.startswith(SCHEMES):
        raise OptionError(
            "path", path, "a directory: what opens the box of a broker is penstock.open"
        )
    # Absolute, because the program may change its directory. TypeError: not a path.
    directory = str(Path(path).absolute())  # type: ignore[arg-type]
    if not isinstance(strict, bool):
        raise OptionError("strict", strict, "True or False")
    for name in storage:
        if name not in NAMES:
            raise OptionError(name, storage[name], NAMES)
    mode = box_durability(durability)
    left = dict(storage)
    queues = _backing_choice(
        {field.name: left.pop(field.name) for field in fields(BackingChoice) if field.name in left}
    )
    options = StorageOptions.of(left)
    if mode.interval_ms:
        options = replace(options, interval_ms=mode.interval_ms)
    memory_bytes = size_bytes("memory", memory, machine_memory(OsFileSystem(0))[0])
    return directory, Settings(mode.mode, memory_bytes, strict, options, queues)


def _backing_choice(given: Mapping[str, object]) -> BackingChoice:
    name, allowed = "allowed_backing_queues", given.get("allowed_backing_queues", ())
    if not isinstance(allowed, list | tuple):
        raise OptionError(name, allowed, 'a list of classes such as "package.module:Class"')
    return BackingChoice(**{**given, name: tuple(allowed)})  # type: ignore[arg-type]  # it checks


class BoxTransaction:
    """Puts and acknowledgements that happen together or not at all. mode: the durability of the
    commit."""

    def __init__(self, core: Core, mode: int) -> None:
        self.core: Core = core
        self.mode: int = max(mode, OS)
        self._transaction = core.engine.begin()
        self._puts: list[tuple[QueueState, Plan, Published]] = []
        self._acks: dict[QueueState, dict[int, None]] = {}  # tags, in order
        self._put_counts: dict[QueueState, tuple[int, int]] = {}  # messages, bytes of bodies

    def check(self, core: Core) -> None:
        """Raise StoppedError unless the box still has the core in which the transaction began."""
        if self.core is not core:
            raise StoppedError("a call was interrupted, and the transaction is lost")

    def put(self, state: QueueState, new: NewBody) -> None:
        """Put a message. QueueFullError (what the transaction has put there already counts),
        DiskFullError: it was not put."""
        n, size = self._put_counts.get(state, (0, 0))
        n, size = n + 1, size + len(new.body)
        state.amq.before_publish(size, n)
        plan = state.amq.plan(
            new.header, priority=new.priority, ttl_ms=new.ttl_ms, delay_ms=new.delay_ms
        )
        try:
            published = self._transaction.publish(
                [plan.index], plan.header, new.body, plan.expiry_ms
            )
        except BaseException:
            state.amq.unplan(plan)
            raise
        self._puts.append((state, plan, published))
        self._put_counts[state] = n, size

    def append(self, stream: StoredStream, header: bytes, body: bytes) -> None:
        """Append a record to a stream; its offset is known when it is committed. DiskFullError."""
        self._transaction.append_stream(stream, header, body)

    def ack(self, state: QueueState, tags: list[int]) -> None:
        """Acknowledge deliveries. SettledError if one is not pending or is in the transaction
        already: then none is acknowledged."""
        taken = self._acks.setdefault(state, {})
        for tag in tags:
            if tag in taken or state.amq.backing.pending(tag) is None:
                raise SettledError(state.name, tag)
        for index, entries in state.amq.backing.entries(tags):
            self._transaction.dequeue(index, entries)
        taken.update(dict.fromkeys(tags))

    def commit(self) -> list[QueueState]:
        """Commit; the commit is settled at the log's `last_lsn`. Returns the queues that it
        changed. TransactionTooLargeError: it is rolled back. QueueFullError (others have filled a
        queue since the put), DiskFullError: nothing has changed, commit again or roll back."""
        for state, (n, size) in self._put_counts.items():
            if not state.is_deleted:
                state.amq.before_publish(size, n)
        lsn = self._transaction.commit(self.mode)
        for state, tags in self._acks.items():
            if not state.is_deleted:
                state.amq.backing.forget(list(tags))
        for state, plan, published in self._puts:
            for entry in published.born:
                state.amq.planned(plan, entry.seq, entry.message.size, lsn, self.mode)
        changed = {id(state): state for state in [put[0] for put in self._puts] + [*self._acks]}
        return [state for state in changed.values() if not state.is_deleted]

    def rollback(self) -> list[QueueState]:
        """Roll back. Returns the queues whose messages are returned."""
        if self._transaction.is_open:
            self._transaction.rollback()
        for state, plan, _ in self._puts:
            if not state.is_deleted:
                state.amq.unplan(plan)
        for state, tags in self._acks.items():
            for tag in tags:
                if state.is_deleted or state.amq.backing.pending(tag) is None:
                    continue
                try:
                    state.amq.nack(tag, mode=OS)
                except (OSError, DiskFullError):  # as if it had not been tried
                    state.amq.release([tag])
        return [state for state in self._acks if not state.is_deleted]
