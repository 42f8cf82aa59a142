"""Core: what a box in a directory is made of below its threads.

    DataDirectory < StorageEngine < AMQQueue, one for each queue in use; MemoryMonitor over them
                                  < CoreStreams, all streams

It is opened whole and closed whole. Queues of the directory are opened when a caller, or a queue
that dead-letters to them, first names them, so a box with ten thousand queues opens as fast as one
with ten. The durable options of a queue are its arguments in the topology.

Who waits is kept beside each queue (QueueState) and stream (StreamState). They outlive the core:
when it is reopened after an interrupt, their `amq` and `parts` are replaced. At a queue three kinds
wait: getters for a message, putters for room (`maxsize`), joiners for the queue to have nothing
left. Whoever changes the queue calls `changed`, which wakes at most one getter and one putter; each
of them, after its turn, calls `changed` again. So calls go on one after the other, as many as there
is something for, and none is woken for nothing.

Everything is called under the lock of the box, except `release`. Events of the core are reported
through `event(kind, text)`, which must not call back.

Errors of opening are the engine's and the directory's (LockedError names the holder); nothing stays
open then. `abandon` closes without writing, as a crash would.
"""

import heapq
import random
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from penstock.clock import Clock, SystemClock
from penstock.embedded import option_parsing
from penstock.embedded.box_headers import BoxHeaders
from penstock.embedded.events import OnAlert, OnEvent
from penstock.embedded.waiting import WOKEN, Waiter
from penstock.errors import OptionError, StoppedError, UnknownQueueError
from penstock.queues import memory_monitor, priority_queue
from penstock.queues.amq_queue import IDLE_AGAIN_S, AMQQueue, TickInterval
from penstock.queues.backing_queue import UNLIMITED, BackingQueue
from penstock.queues.budget import format_bytes
from penstock.queues.delays import find_parts
from penstock.queues.memory_monitor import MemoryMonitor
from penstock.queues.queue_options import QueueOptions
from penstock.queues.stream_options import KEPT_S, StreamOptions, base_name, partition_names
from penstock.storage.data_directory import DataDirectory
from penstock.storage.durability import DISK, MODE_NAMES, OS
from penstock.storage.engine import StorageEngine
from penstock.storage.filesystem import Lock, OsFileSystem
from penstock.storage.options import StorageOptions
from penstock.storage.routing_table import DurableQueue
from penstock.storage.streams import Stream

VHOST: Final = b"/"
WORKERS: Final = 2  # a sync and a read ahead do not wait for each other
AGE_CHECK_MS: Final = 1000  # between two looks at a queue with an alert on age
SLICE: Final = 1000  # queues that one tick looks at
RETAIN_EVERY_S: Final = 1.0  # between two times that retention is applied

HEADERS: Final = BoxHeaders()


class BoxFileSystem(OsFileSystem):
    """A file system that remembers its locks, so that a forked child can close its copies of
    them."""

    def __init__(self) -> None:
        super().__init__(WORKERS)
        self.locks: list[Lock] = []

    def lock(self, path: str) -> Lock:
        lock = super().lock(path)
        self.locks.append(lock)
        return lock


class QueueState:
    """One queue of a box, and who waits at it. mode: the durability of puts that name none."""

    __slots__ = (
        "amq", "due_ms", "getters", "is_consumed", "is_crowded", "is_deleted", "is_touched",
        "joiners", "mode", "name", "putters",
    )  # fmt: skip

    def __init__(self, name: str, amq: AMQQueue, mode: int) -> None:
        self.name: str = name
        self.amq: AMQQueue = amq
        self.mode: int = mode
        self.getters: deque[Waiter] = deque()
        self.putters: deque[Waiter] = deque()
        self.joiners: deque[Waiter] = deque()
        self.is_crowded: bool = False  # a call waits here
        self.due_ms: int = 0  # when the driver's thread looks at it; 0: nothing is due
        self.is_touched: bool = False  # the driver's thread will look at it next time
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

    def __init__(self, name: str, options: StreamOptions, parts: list[Stream]) -> None:
        self.name: str = name
        self.options: StreamOptions = options
        self.parts: list[Stream] = parts
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
        engine.on_head = self._head_moved
        for name in self.names():
            self.find(name)

    # ---- by name -------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Return the names of all streams, sorted."""
        names = {base_name(stream.name) for stream in self._engine.streams.values()}
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
        """Make a stream; it is durable once the engine's `last_lsn` is settled."""
        names = partition_names(name.encode(), options.partitions)
        arguments = options.encode()
        declared = [(one, b"" if i else arguments, 0) for i, one in enumerate(names)]
        parts = self._engine.declare_streams(declared, page_bytes=options.page_bytes)
        state = StreamState(name, options, parts)
        self._add(state)
        return state

    def delete(self, state: StreamState) -> int:
        """Delete a stream with all that it holds. Returns the LSN of the deletion."""
        lsn = self._engine.delete_streams(state.parts, DISK)
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
        first = engine.find_stream(at) or engine.find_stream(partition_names(at, 1)[0])
        if first is None:
            return None
        options = StreamOptions.decode(engine.routing.queues[first.name].arguments)
        parts = [engine.stream(one) for one in partition_names(at, options.partitions)]
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

    def _head_moved(self, part: Stream) -> None:
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
            self._engine.retain(
                part, max_age_s=options.max_age_s, max_bytes=options.max_bytes,
                max_records=options.max_records, since_ms=since_ms,
            )
            for part in state.parts
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a box. mode: its durability. memory_bytes: the budget of its queues; "max"
    and fractions of a queue's own limit are of it. is_strict: whether own limits beyond the budget
    are refused. storage: the engine's options."""

    mode: int
    memory_bytes: int
    is_strict: bool
    storage: StorageOptions


class Core:
    """See the head of this module. states: the queues of a core that was abandoned, to be
    opened."""

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
        self.event = on_event
        self.fs = BoxFileSystem()
        self.queues: dict[str, QueueState] = {}
        self._on_alert = on_alert
        self._touched: list[QueueState] = []
        self._due: list[tuple[int, int, QueueState]] = []  # heap of (wall ms, n, queue)
        self._due_n: int = 0
        self._pace: TickInterval = TickInterval(settings.storage.interval_ms)
        self._rounds: int = 0  # of the monitor that the queues have been touched for
        self.monitor = MemoryMonitor(settings.memory_bytes, self.clock, on_event=self.event)
        try:
            options = settings.storage
            self.data = DataDirectory(
                self.fs, path, log_directory=options.log_directory,
                spill_directory=options.spill_directory,
            )  # fmt: skip
            try:
                self.engine = StorageEngine(
                    self.fs, self.data.vhost_path(VHOST), VHOST, clock=self.clock,
                    rng=random.Random(), options=settings.storage, on_event=self._engine_event,
                )  # fmt: skip
            except BaseException:
                self.data.close()
                raise
            self.streams = CoreStreams(self.engine, self.clock)
            self._delay_parts = find_parts(self.engine.routing.queues)
            self._limits: dict[str, int] = {}  # own memory limits of queues that nobody has opened
            try:
                self._check_limits(is_new=not states)
            except BaseException as error:
                self.engine.stop(error)
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
            if not state.is_deleted and self.has(name):
                state.amq = self._open_amq(name, self._stored(name))
                self._add(state)
            else:
                state.is_deleted = True

    def _engine_event(self, kind: str, text: str) -> None:
        if kind in ("disk_full", "disk_free"):
            self.monitor.disk_alarm(kind == "disk_full")
        self.event(kind, text)

    # ---- queues --------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Return the names of all queues, sorted."""
        return sorted(name.decode() for name in priority_queue.base_names(self.engine))

    def has(self, name: str) -> bool:
        """Return whether there is a queue of this name."""
        if name in self.queues:
            return True
        at = name.encode("utf-8", "surrogateescape")
        return (
            not self.streams.has(name) and priority_queue.priorities_of(self.engine, at) is not None
        )

    def queue(self, name: str, given: Mapping[str, object]) -> QueueState:
        """Return the queue of this name, declared with these options if it is missing. Those of an
        existing queue are changed, durably. OptionError: nothing has changed."""
        option_parsing.check_name(name)
        if self.streams.has(name):
            raise OptionError("name", name, "a name that no stream has")
        if not self.has(name):
            return self._declare(name, option_parsing.queue_options(given, None, self.whole_bytes))
        state = self.known(name)
        if given:
            options = option_parsing.queue_options(given, state.amq.options, self.whole_bytes)
            if options != state.amq.options:
                self._set_options(state, options)
        return state

    @property
    def whole_bytes(self) -> int:
        """The budget of the box, of which "max" and fractions of sizes are."""
        return self.settings.memory_bytes

    def find(self, name: str) -> QueueState | None:
        """Return the queue of this name, opened if it is not; None if there is none."""
        state = self.queues.get(name)
        if state is None and self.has(name):
            state = QueueState(name, self._open_amq(name, self._stored(name)), 0)
            self._add(state)
        return state

    def known(self, name: str) -> QueueState:
        """Return the queue of this name. UnknownQueueError if there is none."""
        state = self.find(name)
        if state is None:
            raise UnknownQueueError(name)
        return state

    def _declare(self, name: str, options: QueueOptions) -> QueueState:
        self._check_memory(options, 0)
        state = QueueState(name, self._open_amq(name, options), 0)
        self._add(state)
        return state

    def _add(self, state: QueueState) -> None:
        options = state.amq.options
        own = option_parsing.own_mode(options)
        state.mode = self.settings.mode if own is None else own
        state.is_deleted = False
        self.queues[state.name] = state
        self.touch(state)

    def _stored(self, name: str) -> QueueOptions:
        """Return the stored options of a queue."""
        return QueueOptions.decode(priority_queue.stored(self.engine, name.encode())[0])

    def _check_limits(self, *, is_new: bool) -> None:
        """At the start: report a warning if the queues' own memory limits do not fit the budget
        together. OptionError in a new core that is strict; it names the queue that is too much."""
        declared = self.engine.routing.queues.values()
        for queue in sorted(declared, key=_number):
            if memory_monitor.may_have_limit(queue.arguments):
                name = queue.name.partition(priority_queue.SEPARATOR)[0].decode(
                    "utf-8", "surrogateescape"
                )
                try:
                    limit = QueueOptions.decode(queue.arguments).max_memory_bytes or 0
                except (OptionError, ValueError):
                    continue  # opening the queue raises the error
                if limit:
                    self._limits[name] = limit
        budget_bytes = self.settings.memory_bytes
        if self.settings.is_strict and is_new:
            for name, left_bytes in memory_monitor.limits_beyond(
                self._limits, budget_bytes
            ).items():
                limit_text = format_bytes(self._limits[name])
                expected = memory_monitor.limit_expected(left_bytes, budget_bytes)
                raise OptionError(f"max_memory of queue {name!r}", limit_text, expected)
        warning = memory_monitor.limits_warning(self._limits, budget_bytes)
        if warning is not None:
            self.event("warning", warning)

    def _open_amq(self, name: str, options: QueueOptions) -> AMQQueue:
        """Open a queue of the directory, or make a new one."""
        self._limits.pop(name, None)
        engine = self.engine
        at = name.encode()
        mode = max(self.settings.mode, OS)
        backing = priority_queue.open_backing(
            engine, at, arguments=options.encode(), priorities=options.priorities, mode=mode,
            policy=options.policy, on_event=self.event,
        )  # fmt: skip
        memory = options.memory_bytes
        self.monitor.register(backing, UNLIMITED if memory is None else memory[0])
        return AMQQueue(
            engine, at, options, backing, headers=HEADERS, open_part=self._open_part,
            find=self._find_amq, mode=mode, close_part=self.monitor.unregister,
            on_event=self.event, on_alert=self._on_alert, on_ready=self._ready,
            delay_parts=self._delay_parts.pop(at, []),
        )  # fmt: skip

    def _open_part(self, name: bytes, is_durable: bool) -> BackingQueue:
        """Open a part of delayed messages."""
        part = priority_queue.open_backing(
            self.engine, name, is_durable=is_durable, mode=max(self.settings.mode, OS),
            on_event=self.event,
        )  # fmt: skip
        self.monitor.register(part)
        return part

    def _find_amq(self, name: bytes) -> AMQQueue | None:
        state = self.find(name.decode("utf-8", "surrogateescape"))
        if state is None:
            return None
        self.touch(state)
        return state.amq

    def _ready(self, name: bytes) -> None:
        state = self.queues.get(name.decode("utf-8", "surrogateescape"))
        if state is not None:
            self.touch(state)
            if state.is_crowded:
                state.changed()

    def _set_options(self, state: QueueState, options: QueueOptions) -> None:
        amq = state.amq
        old = amq.options.max_memory_bytes
        if options.max_memory_bytes != old:
            self._check_memory(options, old or 0)
        priority_queue.store_arguments(self.engine, amq.name, options.encode())
        amq.set_options(options)
        memory = options.memory_bytes
        if options.max_memory_bytes != old:
            self.monitor.unregister(amq.backing)
            self.monitor.register(amq.backing, UNLIMITED if memory is None else memory[0])
        self._add(state)
        state.changed()

    def _check_memory(self, options: QueueOptions, old_bytes: int) -> None:
        """Report a warning if the queues' own limits do not fit the budget; OptionError if
        strict."""
        if options.max_memory_bytes is None:
            return
        more = options.max_memory_bytes - old_bytes
        warning = self.monitor.check_limits(
            max(more, 0), strict=self.settings.is_strict, others_bytes=sum(self._limits.values())
        )
        if warning is not None:
            self.event("warning", warning)

    def stream(self, name: str, given: Mapping[str, object]) -> StreamState:
        """Return the stream of this name, declared with these options if it is missing. An existing
        one must have been made with the same. OptionError: nothing has changed."""
        option_parsing.check_name(name)
        if self.has(name):
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
        self.monitor.unregister(state.amq.backing)
        del self.queues[name]
        state.is_deleted = True
        state.wake_all()
        return lsn

    def touch(self, state: QueueState) -> None:
        """Let the next tick look at this queue, in which something has happened."""
        if not state.is_touched:
            state.is_touched = True
            self._touched.append(state)

    def wake_all(self) -> None:
        """Wake all that wait: the box is closed."""
        for state in self.queues.values():
            state.wake_all()
        self.streams.wake_all()

    # ---- time ----------------------------------------------------------------------------------

    def tick(self) -> float:
        """Do what is due. Returns in how many seconds to call it again."""
        engine = self.engine
        engine.tick()
        wall_ms = self.clock.wall_ms()
        has_more = self._tick_queues(wall_ms)
        has_more = self.monitor.tick(self.clock.monotonic()) or has_more
        self.streams.tick()
        if self.monitor.rounds != self._rounds:
            self._rounds = self.monitor.rounds
            self._touch_those_in_ram()
        engine.flush()
        due_s = max(self._due[0][0] - wall_ms, 0) / 1000 if self._due else IDLE_AGAIN_S
        return self._pace.next_s(engine, due_s, has_more=has_more)

    def _touch_those_in_ram(self) -> None:
        """Let the next ticks page out queues with bodies in RAM: shares may have become smaller."""
        for state in self.queues.values():
            if state.amq.backing.ram_bytes():
                self.touch(state)

    def _tick_queues(self, wall_ms: int) -> bool:
        """Tick the queues that were touched and those of which something is due. True: there is
        more."""
        states, self._touched = self._touched[:SLICE], self._touched[SLICE:]
        while self._due and self._due[0][0] <= wall_ms:
            state = heapq.heappop(self._due)[2]
            state.due_ms = 0
            states.append(state)
        has_more = bool(self._touched)
        for state in states:
            state.is_touched = False
            if state.is_deleted:
                continue
            if state.is_consumed:
                state.is_consumed = False
                state.amq.backing.inhale()
            if state.amq.tick(wall_ms):
                has_more = True
                self.touch(state)
            else:
                self.note_due(state)
            state.changed()
        return has_more

    def note_due(self, state: QueueState) -> int:
        """Note when something of this queue is due next, and return it: ms since 1970, 0 for
        never."""
        amq = state.amq
        when = amq.next_event_ms()
        if amq.options.alert_age_up is not None and amq.len():
            soon = self.clock.wall_ms() + AGE_CHECK_MS
            when = min(when, soon) if when else soon
        if when and not 0 < state.due_ms <= when:
            self._due_n += 1
            state.due_ms = when
            heapq.heappush(self._due, (when, self._due_n, state))
        return when

    @property
    def next_due_ms(self) -> int:
        """When something is due next, in ms since 1970; 0 for never."""
        return self._due[0][0] if self._due else 0

    def info(self) -> dict[str, int | float | str]:
        """Return the counters that `box.info()` returns."""
        engine = self.engine
        memory = self.monitor.info()
        return {
            "queues": len(priority_queue.base_names(engine)),
            "queues_open": len(self.queues),
            "lsn": engine.last_lsn,
            "lsn_settled": engine.settled(DISK),
            "syncs": engine.syncs,
            "checkpoints": engine.checkpoint_count,
            "durability": MODE_NAMES[self.settings.mode],
            "memory_bytes": memory["budget_bytes"],
            "counted_bytes": memory["counted_bytes"],
            "is_alarmed": memory["is_alarmed"],
            "is_disk_full": memory["is_disk_full"],
        }

    # ---- the end -------------------------------------------------------------------------------

    def close(self) -> None:
        """Close in order: queues, a checkpoint, the locks."""
        try:
            if self.engine.failed is None:
                for state in self.queues.values():
                    state.amq.terminate()
        finally:
            try:
                self.engine.close()
            finally:
                self.data.close()

    def abandon(self) -> None:
        """Close all as a crash would, without writing. A second time does nothing."""
        self.fs.on_complete = None
        self.fs.close()
        self.engine.stop(StoppedError("the core was abandoned"))
        self.engine.close()
        self.data.close()

    def release(self) -> None:
        """After `close` or `abandon`, without the lock: end the threads of the file system."""
        self.fs.close()

    def in_child(self) -> None:
        """In a forked child: close the copies of the locks."""
        for lock in self.fs.locks:
            lock.release()


def _number(queue: DurableQueue) -> int:
    return queue.number
