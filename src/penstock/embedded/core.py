"""Core: what a box is made of below its threads: a directory, an engine, queues, one memory budget.

    DataDirectory < StorageEngine < AMQQueue, one for each queue in use; MemoryMonitor over them
                                  < CoreStreams, all streams

It is opened whole and closed whole. Queues of the directory are opened when somebody first names
them, be it a caller or a queue that dead-letters to them, so a box with ten thousand queues opens
as fast as one with ten. The durable options of a queue are its arguments in the topology.

Everything is called under the lock of the box, except `release`. News of the core are told through
`tell(kind, text)`, which must not call back.

Failures of opening are the engine's and the directory's (LockedError names the holder); nothing
stays open then. `abandon` closes without writing, as a crash would.
"""

import heapq
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from penstock.clock import Clock, SystemClock
from penstock.embedded import spellings, stream_spellings
from penstock.embedded.box_headers import BoxHeaders
from penstock.embedded.core_streams import CoreStreams, StreamState
from penstock.embedded.queue_state import QueueState
from penstock.errors import OptionError, StoppedError, UnknownQueueError
from penstock.queues import factory, own_limits
from penstock.queues.alerts import Alert
from penstock.queues.amq_queue import AMQQueue
from penstock.queues.backing_queue import UNLIMITED, BackingQueue
from penstock.queues.budget import format_bytes
from penstock.queues.delays import find_parts
from penstock.queues.memory_monitor import MemoryMonitor
from penstock.queues.queue_options import QueueOptions
from penstock.queues.tick_pace import IDLE_AGAIN_S, TickPace
from penstock.storage.data_directory import DataDirectory
from penstock.storage.durability import DISK, MODE_NAMES, OS
from penstock.storage.engine import StorageEngine
from penstock.storage.filesystem import Lock, OsFileSystem
from penstock.storage.options import StorageOptions
from penstock.storage.routing_table import DurableQueue

VHOST: Final = b"/"
WORKERS: Final = 2  # a sync and a read ahead do not wait for each other
AGE_CHECK_MS: Final = 1000  # between two looks at a queue with an alert on age
SLICE: Final = 1000  # queues that one tick looks at

HEADERS: Final = BoxHeaders()


class BoxFileSystem(OsFileSystem):
    """Remembers its locks, so that a forked child can let go of its copies of them."""

    def __init__(self) -> None:
        super().__init__(WORKERS)
        self.locks: list[Lock] = []

    def lock(self, path: str) -> Lock:
        lock = super().lock(path)
        self.locks.append(lock)
        return lock


@dataclass(frozen=True, slots=True)
class Settings:
    """What a box was opened with: durability mode, the budget of its queues in bytes and what "max"
    of a queue's own is of, whether maxima beyond the budget are refused, and the engine's
    options."""

    mode: int
    memory_bytes: int
    is_strict: bool
    storage: StorageOptions


class Core:
    """See the head of this module. states: of a core that was abandoned; its queues are opened."""

    def __init__(
        self,
        path: str,
        settings: Settings,
        tell: Callable[[str, str], None],
        tell_alert: Callable[[Alert], None],
        *,
        states: Mapping[str, QueueState] | None = None,
    ) -> None:
        self.path: str = path
        self.settings: Settings = settings
        self.clock: Clock = SystemClock()
        self.event = tell
        self.fs = BoxFileSystem()
        self.queues: dict[str, QueueState] = {}
        self._tell_alert = tell_alert
        self._touched: list[QueueState] = []
        self._due: list[tuple[int, int, QueueState]] = []  # heap of (wall ms, n, queue)
        self._due_n: int = 0
        self._pace: TickPace = TickPace(settings.storage.interval_ms)
        self._rounds: int = 0  # of the monitor, whose outcome the queues know
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
            self._delay_parts = find_parts(self.engine.state.routing.queues)
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
        """The queues of an abandoned core, as they are now."""
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
        """The names of all queues, sorted."""
        return sorted(name.decode() for name in factory.base_names(self.engine))

    def has(self, name: str) -> bool:
        """Whether there is a queue of this name."""
        if name in self.queues:
            return True
        at = name.encode("utf-8", "surrogateescape")
        return not self.streams.has(name) and factory.priorities_of(self.engine, at) is not None

    def queue(self, name: str, given: Mapping[str, object]) -> QueueState:
        """The queue of this name, declared when missing, as the options say that are given. To an
        existing one they become its own, durably. OptionError: nothing has changed."""
        spellings.check_name(name)
        if self.streams.has(name):
            raise OptionError("name", name, "a name that no stream has")
        if not self.has(name):
            return self._declare(name, spellings.queue_options(given, None, self.whole_bytes))
        state = self.known(name)
        if given:
            options = spellings.queue_options(given, state.amq.options, self.whole_bytes)
            if options != state.amq.options:
                self._set_options(state, options)
        return state

    @property
    def whole_bytes(self) -> int:
        """What "max" and fractions of sizes are of: the budget of the box."""
        return self.settings.memory_bytes

    def find(self, name: str) -> QueueState | None:
        """The queue of this name, opened if need be; None if there is none."""
        state = self.queues.get(name)
        if state is None and self.has(name):
            state = QueueState(name, self._open_amq(name, self._stored(name)), 0)
            self._add(state)
        return state

    def known(self, name: str) -> QueueState:
        """As find; UnknownQueueError."""
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
        own = spellings.own_mode(options)
        state.mode = self.settings.mode if own is None else own
        state.is_deleted = False
        self.queues[state.name] = state
        self.touch(state)

    def _stored(self, name: str) -> QueueOptions:
        """The options of a queue of the directory."""
        return QueueOptions.decode(factory.stored(self.engine, name.encode())[0])

    def _check_limits(self, *, is_new: bool) -> None:
        """At the start: whether the queues' own memory limits fit the budget together, a warning.
        OptionError, in a new core that is strict: they do not, and which queue is too much."""
        declared = self.engine.state.routing.queues.values()
        for queue in sorted(declared, key=_number):
            if own_limits.may_have_one(queue.arguments):
                name = queue.name.partition(factory.SEPARATOR)[0].decode("utf-8", "surrogateescape")
                try:
                    limit = own_limits.own_limit(QueueOptions.decode(queue.arguments))
                except (OptionError, ValueError):
                    continue  # whoever opens the queue is told
                if limit:
                    self._limits[name] = limit
        budget_bytes = self.settings.memory_bytes
        if self.settings.is_strict and is_new:
            for name, left_bytes in own_limits.beyond(self._limits, budget_bytes).items():
                limit_text = format_bytes(self._limits[name])
                expected = own_limits.expected(left_bytes, budget_bytes)
                raise OptionError(f"max_memory of queue {name!r}", limit_text, expected)
        warning = own_limits.warning(self._limits, budget_bytes)
        if warning is not None:
            self.event("warning", warning)

    def _open_amq(self, name: str, options: QueueOptions) -> AMQQueue:
        """The queue as the directory has it, or, when it has none, a new one."""
        self._limits.pop(name, None)
        engine = self.engine
        at = name.encode()
        mode = max(self.settings.mode, OS)
        backing = factory.open_backing(
            engine, at, arguments=options.encode(), priorities=options.priorities, mode=mode,
            policy=options.policy, on_event=self.event,
        )  # fmt: skip
        memory = options.memory_bytes
        self.monitor.register(backing, UNLIMITED if memory is None else memory[0])
        return AMQQueue(
            engine, at, options, backing, headers=HEADERS, open_part=self._open_part,
            find=self._find_amq, mode=mode, close_part=self.monitor.unregister,
            on_event=self.event, on_alert=self._tell_alert, on_ready=self._ready,
            delay_parts=self._delay_parts.pop(at, []),
        )  # fmt: skip

    def _open_part(self, name: bytes, is_durable: bool) -> BackingQueue:
        """A part of delayed messages."""
        part = factory.open_backing(
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
        factory.store_arguments(self.engine, amq.name, options.encode())
        amq.set_options(options)
        memory = options.memory_bytes
        if options.max_memory_bytes != old:
            self.monitor.unregister(amq.backing)
            self.monitor.register(amq.backing, UNLIMITED if memory is None else memory[0])
        self._add(state)
        state.changed()

    def _check_memory(self, options: QueueOptions, old_bytes: int) -> None:
        """Whether the queues' own limits fit the budget: a warning, or an error if strict."""
        if options.max_memory_bytes is None:
            return
        more = options.max_memory_bytes - old_bytes
        warning = self.monitor.check_limits(
            max(more, 0), strict=self.settings.is_strict, others_bytes=sum(self._limits.values())
        )
        if warning is not None:
            self.event("warning", warning)

    def stream(self, name: str, given: Mapping[str, object]) -> StreamState:
        """The stream of this name, declared when missing, as the options say that are given; an
        existing one must have been made with the same. OptionError: nothing has changed."""
        spellings.check_name(name)
        if self.has(name):
            raise OptionError("name", name, "a name that no queue has")
        state = self.streams.find(name)
        if state is None:
            return self.streams.declare(name, stream_spellings.stream_options(given))
        stream_spellings.check_same(given, state.options)
        return state

    def delete(self, name: str) -> int:
        """Delete a queue or a stream with all that it holds; the LSN of that.
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
        """Something happened in this queue: the next tick looks at it."""
        if not state.is_touched:
            state.is_touched = True
            self._touched.append(state)

    def wake_all(self) -> None:
        """The box is no more."""
        for state in self.queues.values():
            state.wake_all()
        self.streams.wake_all()

    # ---- time ----------------------------------------------------------------------------------

    def tick(self) -> float:
        """What the clock demands; in how many seconds to call it again."""
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
        """Shares may have become smaller: who holds something is asked to page out."""
        for state in self.queues.values():
            if state.amq.backing.ram_bytes():
                self.touch(state)

    def _tick_queues(self, wall_ms: int) -> bool:
        """Those that were touched and those of which something is due. True: there is more."""
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
        """Remember when something of this queue is due next; ms since 1970, 0 for nothing."""
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
        """When something is due next, ms since 1970; 0 for nothing."""
        return self._due[0][0] if self._due else 0

    def info(self) -> dict[str, int | float | str]:
        """Counters for people."""
        engine = self.engine
        memory = self.monitor.info()
        return {
            "queues": len(factory.base_names(engine)),
            "queues_open": len(self.queues),
            "lsn": engine.last_lsn,
            "lsn_settled": engine.settled(DISK),
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
        """Stop in order: queues, a checkpoint, the locks."""
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
        """As a crash would: nothing is written, all is closed and given back. Again: nothing."""
        self.fs.on_complete = None
        self.fs.close()
        self.engine.stop(StoppedError("the core was abandoned"))
        self.engine.close()
        self.data.close()

    def release(self) -> None:
        """After close or abandon, without the lock: the threads of the file system end."""
        self.fs.close()

    def in_child(self) -> None:
        """In a forked child: let go of the copies of the locks."""
        for lock in self.fs.locks:
            lock.release()


def _number(queue: DurableQueue) -> int:
    return queue.number
