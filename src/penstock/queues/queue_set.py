"""QueueSet: the queues of one storage engine, the memory they share, and what is due in them.

A box of the library and a vhost of the broker are each built on one set:

    StorageEngine < AMQQueue, one for each queue in use; MemoryMonitor over them

**Opening.** A durable queue of the directory is opened when it is first named, so a directory with
ten thousand queues opens as fast as one with ten. `queues` has the open queues, `stored` the names
of the others. Streams are not in the set. What a caller adds to an AMQQueue (waiting threads,
consumers) is its own object, which has the AMQQueue as `amq`: see UsedQueue.

**Time.** A tick looks at the queues that were touched since the last one, and at those for which
something is due: the expiry of a head, a delayed message, an alert on age. It looks at no others,
so ten thousand idle queues cost nothing. When the queues have paged out what one turn may, or
have taken TICK_S, the rest of them waits for the next tick. After each look the next time goes into
a heap; a time that is too early does no harm. After each round of the memory monitor the queues
that hold messages in RAM are touched, SLICE queues in one tick, because their shares may have
become smaller.

**Own limits.** Queues may have memory limits of their own, which should fit the budget together.
Two moments check that: a declare, and a start, because the budget may be smaller than it was. At a
start queues are taken in the order in which they were declared: one that does not fit beside those
before it does not fit at all, and smaller ones after it still may. What follows is decided by the
owner.
"""

import heapq
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, Generic, Protocol, TypeVar

from penstock.clock import Clock
from penstock.errors import OptionError, StoppedError
from penstock.options import format_bytes
from penstock.queues import priority_queue
from penstock.queues.amq_queue import AGE_CHECK_MS, AMQQueue, TickInterval
from penstock.queues.backing_choice import BackingChoice
from penstock.queues.backing_queue import UNLIMITED, BackingQueue
from penstock.queues.dead_letter import DeadLetterRoute, DeathCounts, QueueTarget
from penstock.queues.delays import find_parts
from penstock.queues.headers import HeaderCodec
from penstock.queues.memory_monitor import WARN_PART, MemoryMonitor
from penstock.queues.queue_options import QueueOptions
from penstock.queues.thresholds import Alert
from penstock.storage.engine import StorageEngine
from penstock.storage.files.data_directory import queue_title
from penstock.storage.files.durability import OS
from penstock.storage.files.filesystem import FileSystem
from penstock.storage.files.options import StorageOptions
from penstock.storage.index.queue_index import QueueIndex
from penstock.storage.index.routing_table import DurableQueue
from penstock.storage.pages.streams import STREAM_FLAG

SLICE: Final = 1000  # queues that one tick looks at because they were touched, or are due
TICK_S: Final = 0.01  # after which the queues that are left wait for the next tick
STORED_BYTES: Final = 2 << 10  # of each index of a queue that nobody has opened yet
SHOWN_MAX: Final = 5  # queues that a warning names
# What the stored arguments of a queue with a memory limit of its own contain.
LIMIT_MARKS: Final = (b'"x-queue-max-memory-bytes"', b'"flow_to_disk"')


class UsedQueue(Protocol):
    """A queue of a set, as its owner has it.

    due_ms: when the set looks at it next, in ms since 1970, 0 for never. is_touched: the next tick
    looks at it.
    """

    name: str
    amq: AMQQueue
    due_ms: int
    is_touched: bool

    @property
    def is_usable(self) -> bool:
        """Whether it was neither deleted nor has crashed."""

    def tick(self, wall_ms: int) -> bool:
        """Do what is due. Returns True if there is more to do at once."""


Q = TypeVar("Q", bound=UsedQueue)


class QueueOwner(ABC, Generic[Q]):
    """What a set of queues needs from the box or vhost that has it."""

    headers: HeaderCodec

    @abstractmethod
    def event(self, kind: str, text: str) -> None:
        """Report an event."""

    @abstractmethod
    def alert(self, alert: Alert) -> None:
        """Report that a threshold of a queue's alert was crossed upwards."""

    def alert_over(self, alert: Alert) -> None:
        """Report that a queue's alert is over."""

    @abstractmethod
    def ready(self, name: bytes) -> None:
        """Deliver from a queue in which messages became ready by themselves."""

    def dead_letter_queue(self, name: bytes) -> QueueTarget | None:
        """Return the queue that dead letters name, None if there is none. Called if there are no
        routes."""
        return None

    def dead_letter_routes(
        self, name: bytes
    ) -> Callable[[QueueOptions], DeadLetterRoute | None] | None:
        """Return what finds the route of a queue's dead letters, None if they name a queue."""
        return None

    @abstractmethod
    def stored_options(self, name: bytes) -> QueueOptions:
        """Return the options of a stored queue. OptionError, ValueError: they are invalid."""

    @abstractmethod
    def load(self, name: str) -> Q:
        """Open a stored queue, with `QueueSet.open`."""

    @abstractmethod
    def queue_failed(self, queue: Q, error: Exception) -> None:
        """Handle an error that a queue's tick raised, or raise it."""

    def tick_others(self, now_s: float) -> bool:
        """Do what else is due at these times. Returns True if there is more to do at once."""
        return False

    def others_due_s(self, now_s: float) -> float:
        """Return in how many seconds something else is due; infinity if nothing is."""
        return float("inf")


class QueueSet(Generic[Q]):
    """The queues of the vhost `vhost` in the directory `path`. Raises the engine's errors.

    mode: durability of what queues do by themselves. on_queue_event(queue, kind, text): an event of
    a queue. is_strict: queues' own limits beyond the
    monitor's budget are refused. choice: of the classes that hold messages.

    limits: own limits in bytes of queues that take no part in the monitor, because they are not
    open or are kept down. kept_down: names of queues that an owner does not start for want of
    memory, and why. opened_seq: number of an index -> its next seq when it was opened; all below
    was on disk then. deaths: of all its queues, since it was made.
    """

    def __init__(
        self, owner: QueueOwner[Q], monitor: MemoryMonitor, fs: FileSystem, path: str, vhost: bytes,
        *, clock: Clock, rng: random.Random, storage: StorageOptions, mode: int, is_strict: bool,
        choice: BackingChoice, on_queue_event: Callable[[str, str, str], None],
    ) -> None:  # fmt: skip
        self.queues: dict[str, Q] = {}
        self.stored: dict[str, int] = {}  # how many indexes each has
        self._stored_parts: int = 0  # the sum of them
        self.limits: dict[str, int] = {}
        self.kept_down: dict[str, str] = {}
        self.opened_seq: dict[int, int] = {}
        self.touched: list[Q] = []
        self.deaths: DeathCounts = DeathCounts()
        self.is_strict: bool = is_strict
        self._owner = owner
        self._on_queue_event: Callable[[str, str, str], None] = on_queue_event
        self.choice: BackingChoice = choice
        self._clock = clock
        self._mode: int = max(mode, OS)
        self._due: list[tuple[int, int, Q]] = []  # heap of (wall ms, n, queue)
        self._due_n: int = 0  # so that the heap never compares queues
        self._pace: TickInterval = TickInterval(storage.interval_ms)
        self._rounds: int = 0  # of the monitor, for which queues were touched
        self._to_touch: list[Q] = []  # of the last round, those that are left
        self.monitor: MemoryMonitor = monitor
        self.engine: StorageEngine = StorageEngine(
            fs, path, vhost, clock=clock, rng=rng, options=storage, on_event=owner.event
        )
        self._delay_parts = find_parts(self.engine.routing.queues)
        for queue in self.engine.routing.queues.values():
            if not queue.flags & STREAM_FLAG:
                self._add_stored(_base(queue.name), 1)

    # ---- finding and opening -------------------------------------------------------------------

    def stored_indexes(self, name: str) -> list[QueueIndex]:
        """Return the indexes of a queue that is not open, those of its delayed messages too."""
        at = bytes_of(name)
        parts = priority_queue.part_names(at, priority_queue.priorities_of(self.engine, at) or 0)
        parts += self._delay_parts.get(at, [])
        return [self.engine.queue(part) for part in parts if part in self.engine.routing.queues]

    def has(self, name: str) -> bool:
        """Return whether there is a queue of this name, open or not."""
        return name in self.queues or name in self.stored

    def find(self, name: str) -> Q | None:
        """Return the queue of this name, opened if necessary; None if there is none."""
        queue = self.queues.get(name)
        if queue is None and name in self.stored:
            queue = self._owner.load(name)
            self.add(queue)
        return queue

    def add(self, queue: Q) -> None:
        """Add an open queue, in place of another of its name."""
        self.queues[queue.name] = queue
        self._stored_parts -= self.stored.pop(queue.name, 0)
        self.limits.pop(queue.name, None)

    def remove(self, queue: Q) -> None:
        """Remove a queue that was deleted."""
        amq = queue.amq
        self.monitor.unregister(amq.backing)
        for index in amq.backing.indexes():
            self.opened_seq.pop(index.number, None)
        amq.unlink()
        del self.queues[queue.name]
        self.limits.pop(queue.name, None)
        self.kept_down.pop(queue.name, None)

    def _add_stored(self, name: str, parts: int) -> None:
        self.stored[name] = self.stored.get(name, 0) + parts
        self._stored_parts += parts

    @property
    def stored_bytes(self) -> int:
        """Return about how many bytes of RAM the queues take that are not open."""
        return STORED_BYTES * self._stored_parts

    def declare(
        self, name: str, options: QueueOptions, *, arguments: bytes, flags: int = 0,
        is_durable: bool = True,
    ) -> AMQQueue:  # fmt: skip
        """Return a new queue as `open` does. A durable one whose opening fails is stored then.
        OptionError: it may not have the class that it names; nothing happened."""
        self.choice.maker(options.backing_queue)
        at = bytes_of(name)
        try:
            return self.open(at, options, arguments=arguments, flags=flags, is_durable=is_durable)
        except BaseException:
            if priority_queue.priorities_of(self.engine, at) is not None:
                self._add_stored(name, options.priorities + 1)
            raise

    def open(
        self, name: bytes, options: QueueOptions, *, arguments: bytes = b"", flags: int = 0,
        is_durable: bool = True,
    ) -> AMQQueue:  # fmt: skip
        """Return the queue as the directory has it, or a new one with these arguments and flags.
        OptionError: nothing happened."""
        owner = self._owner
        on_event = self._event_of(name)
        backing = priority_queue.open_backing(
            self.engine, name, arguments=arguments, flags=flags, priorities=options.priorities,
            is_durable=is_durable, mode=self._mode, policy=options.policy, on_event=on_event,
            make_queue=self._class_of(name, options),
        )  # fmt: skip
        self.register(backing, options)
        for index in backing.indexes() if is_durable else ():
            self._note_opened(index)
        amq = AMQQueue(
            self.engine, name, options, backing, headers=owner.headers, open_part=self._open_part,
            find=owner.dead_letter_queue, route_of=owner.dead_letter_routes(name), mode=self._mode,
            is_durable=is_durable, close_part=self._close_part, on_event=on_event,
            on_alert=owner.alert, on_alert_over=owner.alert_over, on_ready=owner.ready,
            delay_parts=self._delay_parts.pop(name, []),
        )  # fmt: skip
        amq.dead_letters.total = self.deaths
        return amq

    def _class_of(self, name: bytes, options: QueueOptions) -> Callable[..., BackingQueue]:
        """Return the class of a queue; the usual one, with a warning, if it is not allowed any
        more. The engine has the messages in either case."""
        try:
            return self.choice.maker(options.backing_queue)
        except OptionError as error:
            self._on_queue_event(_base(name), "warning", f"queue {_base(name)!r}: {error}")
            return self.choice.maker("")

    def reopen(self, name: bytes, options: QueueOptions, parts: list[bytes]) -> AMQQueue:
        """Open a durable queue again after its failure. parts: names of its parts for delayed
        messages."""
        if parts:
            self._delay_parts[name] = parts
        return self.open(name, options)

    def register(self, backing: BackingQueue, options: QueueOptions) -> None:
        """Register a queue and its own limit with the memory monitor, or change the limit."""
        memory = options.memory_bytes
        self.monitor.register(backing, UNLIMITED if memory is None else memory[0])

    def _event_of(self, name: bytes) -> Callable[[str, str], None]:
        """Return on_event(kind, text) for a queue, or for a part of it."""
        return partial(self._on_queue_event, _base(name))

    def _open_part(self, name: bytes, is_durable: bool) -> BackingQueue:
        """Open a part for delayed messages."""
        part = priority_queue.open_backing(
            self.engine, name, is_durable=is_durable, mode=self._mode, on_event=self._event_of(name)
        )
        self.monitor.register(part, is_delayed=True)
        if is_durable:
            self._note_opened(part.index())
        return part

    def _note_opened(self, index: QueueIndex) -> None:
        self.opened_seq[index.number] = index.next_seq

    def _close_part(self, part: BackingQueue) -> None:
        """Unregister a part for delayed messages that is about to be deleted."""
        self.monitor.unregister(part)
        self.opened_seq.pop(part.index().number, None)
        if part.info()["is_flowed"]:  # nobody is to wait for it
            name = part.index().name
            self._event_of(name)("recovered", f"queue {queue_title(name)!r}: the part is gone")

    # ---- own limits ----------------------------------------------------------------------------

    def read_limits(self, *, of_policies: bool = False) -> None:
        """Read the own limits of the stored queues, at the start. of_policies: also queues whose
        arguments say nothing may have one. Reports a warning if they do not fit the budget
        together."""
        for queue in sorted(self.engine.routing.queues.values(), key=_number):
            may_have = of_policies or may_have_limit(queue.arguments)
            if may_have and not queue.flags & STREAM_FLAG:
                name = queue.name.partition(priority_queue.SEPARATOR)[0]
                try:
                    self.note_limit(text_of(name), self._owner.stored_options(name))
                except (OptionError, ValueError):
                    continue  # opening the queue raises the error
        text = limits_warning(self.limits, self.monitor.budget_bytes)
        if text is not None:
            self._owner.event("warning", text)

    def note_limit(self, name: str, options: QueueOptions) -> None:
        """Note the own limit, if any, of a stored queue that is not open."""
        limit = options.max_memory_bytes
        if limit:
            self.limits[name] = limit
        else:
            self.limits.pop(name, None)

    def limits_beyond(self) -> dict[str, tuple[str, str]]:
        """Return the queues whose own limits do not fit the budget, oldest first, each with its
        limit and what was expected, as errors show them."""
        budget_bytes = self.monitor.budget_bytes
        return {
            name: (
                format_bytes(self.limits[name]),
                f"at most the {format_bytes(left)} that other queues leave of "
                f"{format_bytes(budget_bytes)}",
            )
            for name, left in limits_beyond(self.limits, budget_bytes).items()
        }

    def check_limit(self, options: QueueOptions, old_bytes: int = 0) -> str | None:
        """Check whether the own limits fit the budget with that of a queue to be declared or
        changed. Returns a warning if they do not. OptionError: they are strict."""
        most = options.max_memory_bytes
        if most is None:
            return None
        return self.monitor.check_limits(
            max(most - old_bytes, 0), strict=self.is_strict, others_bytes=self.unopened_limits()
        )

    def unopened_limits(self) -> int:
        """Return the sum in bytes of the limits of queues that are not open and not kept down."""
        return sum(n for name, n in self.limits.items() if name not in self.kept_down)

    # ---- time ----------------------------------------------------------------------------------

    def touch(self, queue: Q) -> None:
        """Look at this queue in the next tick: something happened in it."""
        if not queue.is_touched:
            queue.is_touched = True
            self.touched.append(queue)

    def note_due(self, queue: Q) -> int:
        """Note when something of this queue is due next, and return it: ms since 1970, 0 for
        never."""
        amq = queue.amq
        when = amq.next_event_ms()
        if amq.options.alert_age_up is not None and amq.len():
            soon = self._clock.wall_ms() + AGE_CHECK_MS
            when = min(when, soon) if when else soon
        if when and not 0 < queue.due_ms <= when:
            self._due_n += 1
            queue.due_ms = when
            heapq.heappush(self._due, (when, self._due_n, queue))
        return when

    @property
    def next_due_ms(self) -> int:
        """When something of a queue is due next, in ms since 1970; 0 for never."""
        return self._due[0][0] if self._due else 0

    def tick(self) -> float:
        """Do a slice of what is due: in the engine, the queues, the owner, the memory monitor.
        Returns in how many seconds to call it again."""
        engine, owner = self.engine, self._owner
        engine.tick()
        wall_ms, now_s = self._clock.wall_ms(), self._clock.monotonic()
        has_more = self._tick_queues(wall_ms)
        has_more = owner.tick_others(now_s) or has_more
        has_more = self.monitor.tick(now_s) or has_more
        if self.monitor.rounds != self._rounds:
            self._rounds = self.monitor.rounds
            self._to_touch = list(self.queues.values())
        for queue in self._to_touch[-SLICE:]:
            if queue.is_usable and queue.amq.backing.ram_bytes():
                self.touch(queue)
        del self._to_touch[-SLICE:]
        has_more = has_more or bool(self._to_touch)
        engine.flush()
        due_s = owner.others_due_s(now_s)
        if self._due:
            due_s = min(due_s, max(self._due[0][0] - wall_ms, 0) / 1000)
        return self._pace.next_s(engine, due_s, has_more=has_more)

    def _tick_queues(self, wall_ms: int) -> bool:
        queues = self.touched[:SLICE]
        del self.touched[:SLICE]
        for queue in queues:
            queue.is_touched = False
        while self._due and self._due[0][0] <= wall_ms and len(queues) < 2 * SLICE:
            queue = heapq.heappop(self._due)[2]
            queue.due_ms = 0
            queues.append(queue)
        has_more = bool(self.touched)
        until_s = self._clock.monotonic() + TICK_S
        for n, queue in enumerate(queues):
            if n and self._clock.monotonic() > until_s:
                self.touch(queue)
                has_more = True
            elif self.tick_queue(queue, wall_ms):
                has_more = True
        return has_more

    def tick_queue(self, queue: Q, wall_ms: int) -> bool:
        """Do a slice of what is due in a queue. Returns whether there is more; the next tick does
        it."""
        if not queue.is_usable:
            return False
        if self.engine.page_out_left <= 0:  # enough for one turn
            self.touch(queue)
            return True
        try:
            if queue.tick(wall_ms):
                self.touch(queue)
                return True
            self.note_due(queue)
        except Exception as error:
            if self.engine.failed is not None:
                raise
            self._owner.queue_failed(queue, error)
        return False

    # ---- the end -------------------------------------------------------------------------------

    def close(self, terminate_others: Callable[[], None] | None = None) -> None:
        """Close in order: queues, what else the owner has, a checkpoint, the lock. After a failure,
        also of a queue that cannot be closed in order, nothing is written: the next start reads the
        log."""
        try:
            if self.engine.failed is None:
                for queue in self.queues.values():
                    if queue.is_usable:
                        queue.amq.terminate()
                if terminate_others is not None:
                    terminate_others()
        except BaseException as error:
            self.engine.journal.stop(error)
            raise
        finally:
            self.engine.close()

    def abandon(self, why: str) -> None:
        """Stop as a crash would: nothing is written, files are closed, the lock is released. A
        second time does nothing."""
        self.engine.journal.stop(StoppedError(why))
        self.engine.close()


# ---- own limits, without a set -------------------------------------------------------------------


def may_have_limit(arguments: bytes) -> bool:
    """Return whether a queue with these stored arguments may have a memory limit of its own."""
    return any(mark in arguments for mark in LIMIT_MARKS)


def limits_beyond(limits: Mapping[str, int], budget_bytes: int) -> dict[str, int]:
    """Return which of the limits, oldest first, do not fit, with the bytes left for each."""
    left = budget_bytes
    found: dict[str, int] = {}
    for name, limit in limits.items():
        if limit > left:
            found[name] = left
        else:
            left -= limit
    return found


def limits_warning(limits: Mapping[str, int], budget_bytes: int) -> str | None:
    """Return one line about limits that come to more than WARN_PART of the budget, with the largest
    of them; None if they do not."""
    total = sum(limits.values())
    if total <= budget_bytes * WARN_PART:
        return None
    part = f"{100 * total / budget_bytes:.0f} % of it" if budget_bytes else "too much"
    largest = sorted(limits.items(), key=_most_first)
    shown = ", ".join(f"{name!r} {format_bytes(limit)}" for name, limit in largest[:SHOWN_MAX])
    more = f", and {len(largest) - SHOWN_MAX} more" if len(largest) > SHOWN_MAX else ""
    return (
        f"the queues' own memory limits come to {format_bytes(total)}, {part}: "
        f"{format_bytes(budget_bytes)}; {shown}{more}"
    )


def _most_first(one: tuple[str, int]) -> tuple[int, str]:
    return -one[1], one[0]


# ---- names ---------------------------------------------------------------------------------------


def bytes_of(name: str) -> bytes:
    """Return a name as the storage has it."""
    return name.encode("utf-8", "surrogateescape")


def text_of(name: bytes) -> str:
    """Return a name as everything but the storage has it."""
    return name.decode("utf-8", "surrogateescape")


def _base(name: bytes) -> str:
    """Return the name of the queue that an index is of."""
    return text_of(name.partition(priority_queue.SEPARATOR)[0])


def _number(queue: DurableQueue) -> int:
    return queue.number
