"""VHost: the core of a vhost: its engine, its queues, its exchanges, one memory budget, one turn.

    QueueSet (engine, AMQQueues, memory, what is due) < BrokerQueue, one for each queue in use
    StorageEngine < BrokerStream, one for each stream;  BrokerStreamTable
    Topology (exchanges, bindings) < Router;  QueueTable;  QueueTimers;  Dispatch
    BackgroundTasks: AlertManager, DeferredFree; whoever opens a vhost adds a LeaseManager (readers
    of queues, leases.py) and a BatchManager (batches.py)

Everything is synchronous and deterministic: no loop, no sockets, no threads; files, clock and
chance are handed in. The owner of a vhost (a process of the server, a test, a simulation) calls

    turn        once per iteration of its loop, if `wake` was called since the last one
    completed   when the file system has completed something (its `on_complete`)
    tick        after as many seconds as the last one returned
    close       at the end; or `abandon`, which does what a crash would do

and nothing of it from two threads. Connections use the parts: `topology` and `table` to declare and
find, `dispatch` to say what has work. Each change of the topology returns an LSN: it is answered
when `dispatch.when_settled` calls back; 0 is answered at once.

Alarms. While the counted memory is above the budget, the process has much more than that (only if
`watch_rss` was called), or the disk is full, `blocked_reason` says so, since `blocked_since_ms`,
and each of `handlers` is notified of a change. These, and the alerts of queues, go through the
AlertManager; other events go to `on_event` alone.

Failures. A failure of the engine ends the vhost: the error (StoppedError, SyncFailedError ...) is
raised from whatever was called, nothing is confirmed any more, and the owner opens another vhost.
An error in one queue's own code restarts that queue alone (QueueRestarts). Any other unexpected
error is an event with its traceback (`internal_error`), and costs at most the client whose request
raised it.
"""

import base64
import random
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from penstock.access.limits import Limits, LimitTable
from penstock.access.permissions import Identity
from penstock.broker import refusals
from penstock.broker.alerts import AlertManager
from penstock.broker.arguments import type_of
from penstock.broker.asked_rights import AskedRights
from penstock.broker.background_tasks import (
    AGAIN,
    ASLEEP,
    BackgroundTask,
    BackgroundTasks,
    DeferredFree,
)
from penstock.broker.broker_queue import BrokerQueue, QueueOrStream
from penstock.broker.broker_stream import BrokerStream, BrokerStreamTable, DeadLetterStream
from penstock.broker.dispatch import Dispatch, Peer, Source, TurnBudget
from penstock.broker.events import BrokerEvents
from penstock.broker.in_flight import InFlight
from penstock.broker.outbox import Firehose
from penstock.broker.policies import Applied, Counts, Policies, PolicyChanges, expires_ms
from penstock.broker.queue_table import (
    GENERATED,
    EndedQueues,
    QueueRestarts,
    QueueTable,
    QueueTimers,
    QueueValues,
)
from penstock.broker.rates import TOTALS, RateSource, RateTable, Values
from penstock.broker.topology import (
    EXCHANGE,
    QUEUE,
    DeadLetterRoutes,
    Exchange,
    LargeLetters,
    Topology,
    Unbinding,
)
from penstock.broker.usage import Usage
from penstock.clock import Clock
from penstock.counts import Histogram, UserSums, VHostCounts
from penstock.errors import DiskFullError, blocked_advice, is_shortage
from penstock.options import format_bytes
from penstock.protocol.connection import BodyRoom
from penstock.queues.amqp_headers import AmqpHeaders
from penstock.queues.backing_choice import BackingChoice
from penstock.queues.dead_letter import DeadLetterRoute, Target
from penstock.queues.memory_monitor import INTERVAL_S, MemoryMonitor
from penstock.queues.queue_options import QueueOptions
from penstock.queues.queue_set import QueueOwner, QueueSet, bytes_of, text_of
from penstock.queues.stream_options import QUEUE_TYPE
from penstock.queues.thresholds import Alert
from penstock.routing.router import Router
from penstock.storage.engine import StorageEngine
from penstock.storage.files.durability import DISK
from penstock.storage.files.filesystem import FileSystem
from penstock.storage.files.options import StorageOptions

EARLY_BYTES: Final = 4 << 20
CALM_BYTES: Final = 16 << 20
STEP_BYTES: Final = 32 << 20
PATIENCE_S: Final = 30.0
RELIEF_S: Final = 0.5  # between two times that free memory is given back
COUNTED_PART: Final = 2  # half of the budget

ALARM: Final = "memory_alarm"
FREE: Final = "memory_free"


class RssAlarm:
    """Blocks publishers while the vhost's process takes much more RAM than it was given.

    The memory alarm of the MemoryMonitor is about what is counted. What is not counted (a table
    that is being decoded, garbage, memory that the allocator keeps) is in the process's resident
    memory (RSS) all the same, and the kernel kills a process with too much of that. So a second
    alarm looks at RSS:

        limit    the vhost's budget and `slack_bytes`, which RSS is not to reach
        begins   RSS is less than EARLY_BYTES below the limit in two looks, one round of the monitor
                 apart: that is room for what comes in until publishers wait. In between caches are
                 emptied (`forget`)
        ends     RSS is CALM_BYTES below that. While it is not, free memory is given back to the
                 system (`trim`), each RELIEF_S
        gives up after PATIENCE_S, if less than half of the budget is counted: the messages do not
                 take the memory then, and waiting does not help. That RSS counts as usual; the
                 alarm begins again when RSS has grown by STEP_BYTES

    Without the last rule a process whose memory has become fragmented would block its publishers
    for ever. The usual RSS falls with RSS.

    Publishers seldom have to wait, because queues get less RAM before: by as much as RSS would be
    too high for the alarm to end if all of the budget were in use (`excess_bytes`). Small objects
    of one minute leave arenas that the large bodies of the next cannot use, and these come faster
    than looks do.

    rss(): resident bytes of this process, 0 if unknown. trim(): begin to give free memory back to
    the system. on_event(kind, text): called with "memory_alarm" and "memory_free".
    """

    def __init__(
        self, rss: Callable[[], int], trim: Callable[[], None], slack_bytes: int,
        on_event: Callable[[str, str], None], forget: Callable[[], None],
    ) -> None:  # fmt: skip
        self.is_alarmed: bool = False
        self.rss_bytes: int = 0  # as of the last look
        self.excess_bytes: int = 0  # that queues are to give back, as of the last look
        self.slack_bytes: int = slack_bytes
        self._rss = rss
        self._trim = trim
        self._forget = forget
        self._on_event = on_event
        self._usual_bytes: int = 0  # what RSS has been taken for; 0: nothing was given up
        self._since_s: float = 0.0
        self._was_above: bool = False  # in the last look
        self._end_bytes: int = 1 << 62  # RSS from which on free memory is given back
        self._relief_due_s: float = 0.0

    def limit_bytes(self, budget_bytes: int) -> int:
        """Return the limit of RSS."""
        usual = self._usual_bytes + STEP_BYTES if self._usual_bytes else 0
        return max(budget_bytes + self.slack_bytes, usual)

    def look(self, budget_bytes: int, counted_bytes: int, now_s: float) -> None:
        """Look at RSS and begin or end the alarm. now_s: of the monotonic clock."""
        self.rss_bytes = self._rss()
        if not self.is_alarmed:
            self._usual_bytes = min(self._usual_bytes, self.rss_bytes)
        limit = self.limit_bytes(budget_bytes)
        begin = limit - EARLY_BYTES
        self._end_bytes = end = begin - CALM_BYTES
        unused = max(budget_bytes - counted_bytes, 0)
        self.excess_bytes = max(self.rss_bytes + unused - end, 0) if self.rss_bytes else 0
        if not self.is_alarmed:
            was_above, self._was_above = self._was_above, self.rss_bytes > begin
            if was_above and self._was_above:
                self.is_alarmed = True
                self._since_s = now_s
                self._report(ALARM, "is above", limit)
            elif self._was_above:
                self._free()
            elif self.rss_bytes > end:
                self._trim()
        elif self.rss_bytes <= end:
            self._end("is below", limit)
        elif now_s - self._since_s >= PATIENCE_S and counted_bytes < budget_bytes // COUNTED_PART:
            self._usual_bytes = self.rss_bytes
            self.excess_bytes = 0
            counted = format_bytes(counted_bytes)
            self._end(
                f"does not fall, and only {counted} are counted; publishers go on beyond", limit
            )
        else:
            self._free()

    def relieve(self, now_s: float) -> None:
        """Give free memory back each RELIEF_S while RSS is close to the limit. What requests free
        stays resident until then, scattered over the heap: some 10 MiB a second, and the next look
        may be 2.5 s away. now_s: of the monotonic clock."""
        if now_s >= self._relief_due_s:
            self._relief_due_s = now_s + RELIEF_S
            if self._rss() > self._end_bytes:
                self._trim()

    def _free(self) -> None:
        self._forget()
        self._trim()

    def _end(self, verb: str, limit: int) -> None:
        self.is_alarmed = self._was_above = False
        self._report(FREE, verb, limit)

    def _report(self, kind: str, verb: str, limit: int) -> None:
        rss = format_bytes(self.rss_bytes)
        where = f"{verb} {format_bytes(limit - EARLY_BYTES)}, with a limit of {format_bytes(limit)}"
        self._on_event(kind, f"memory: the process's RSS of {rss} {where}")


@dataclass(frozen=True, slots=True)
class VHostSettings:
    """Settings that a vhost is started with, checked by the caller. What it gets later (its
    share of the memory, users) is not in it.

    mode: the durability that a confirm stands for: DISK, INTERVAL or OS. memory_bytes: what may be
    counted in RAM. is_strict: queues' own maxima beyond that are refused. storage: of the engine.
    staging_timeout_s: age at which staged files that no batch names are swept; lease_alert_s: age
    from which a lease is reported. Both in seconds. consumer_timeout_s: after which an unacked
    delivery goes back, None for never; consumer_timeout_closes: and its channel ends.
    stream_hold_s_max, stream_hold_bytes_max: how much more than a stream's limits keep its readers
    may ask to keep, in seconds and in bytes of each partition. limits: of users and of the vhost,
    where an operator has set no others. queues: the classes that hold their messages.
    """

    mode: int = DISK
    memory_bytes: int = 1 << 30
    is_strict: bool = False
    storage: StorageOptions = field(default_factory=StorageOptions)
    staging_timeout_s: float = 86_400.0
    lease_alert_s: float = 3600.0
    consumer_timeout_s: float | None = None
    consumer_timeout_closes: bool = False
    stream_hold_s_max: float = 86_400.0
    stream_hold_bytes_max: int = 8 << 30
    limits: Limits = field(default_factory=Limits)
    queues: BackingChoice = field(default_factory=BackingChoice)

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> "VHostSettings":
        """Return the settings that `Config.vhost_settings` has sent to another process."""
        given = {one.name: facts[one.name] for one in fields(cls)}
        given["storage"] = StorageOptions.of(facts["storage"])
        given["limits"] = Limits(**facts["limits"])
        given["queues"] = BackingChoice(
            facts["queues"]["backing_queue"], tuple(facts["queues"]["allowed_backing_queues"])
        )
        return cls(**given)


MEMORY_ALARMS: Final = ("memory_alarm", "memory_free")
DISK_ALARMS: Final = ("disk_full", "disk_free")
HOLDERS_SHOWN: Final = 3
MESSAGES: Final = "messages of queues"  # a part of the memory
UNFINISHED_PART: Final = 2  # of the budget: what unfinished messages of all clients may hold
STALLED_LOOKS: Final = 4  # within the time for which a message may make no progress
TIMEOUT_LOOK_S: Final = 1.0
TIMEOUT_LOOKS: Final = 60  # within the broker's own timeout, while nobody else has one
AGE_LOOK_S: Final = 5.0  # without timeouts, for the ages that people see
CONNECTION: Final = "connection"  # kinds of rates
CHANNEL: Final = "channel"
EXCHANGES: Final = "exchange"
PEERS_LOOKED_AT: Final = 64  # connections in one step
BODIES_PART: Final = 16  # of the budget: bodies of 64 KiB to 1 MiB that are arriving, in RAM


class TimeoutLook(BackgroundTask):
    """Looks at the ages of all consumers' deliveries, some connections at a time."""

    def __init__(self, handlers: set[Peer], clock: Clock) -> None:
        self._handlers: set[Peer] = handlers
        self._clock: Clock = clock
        self._left: list[Peer] = []

    def step(self) -> int:
        if not self._left:
            self._left = list(self._handlers)
        some, self._left = self._left[-PEERS_LOOKED_AT:], self._left[:-PEERS_LOOKED_AT]
        now_s = self._clock.monotonic()
        for peer in some:
            if peer in self._handlers:
                peer.check_timeouts(now_s)
        return AGAIN if self._left else ASLEEP

    def failed(self, error: Exception) -> None:
        raise error


# ---- rates ---------------------------------------------------------------------------------------


class ConnectionValues(RateSource):
    """The bytes of connections that have received or sent some. busy: these connections."""

    kind = CONNECTION

    def __init__(self, handlers: set[Peer]) -> None:
        self._handlers = handlers
        self._octets: dict[str, int] = {}  # by name, as of the last look
        self.busy: list[Peer] = []

    def changed(self) -> Iterator[tuple[str, Values] | None]:
        before, self._octets = self._octets, {}
        self.busy = []
        for n, peer in enumerate(list(self._handlers), 1):
            if n % PEERS_LOOKED_AT == 0:
                yield None
            values = peer.octets()
            total = self._octets[peer.name] = sum(values.values())
            if before.get(peer.name) != total:
                self.busy.append(peer)
                yield peer.name, values

    def has(self, name: str) -> bool:
        return name in self._octets


class ChannelValues(RateSource):
    """The counters of channels that have done something."""

    kind = CHANNEL

    def __init__(self, connections: ConnectionValues, clock: Clock) -> None:
        self._connections = connections
        self._clock = clock

    def changed(self) -> Iterator[tuple[str, Values]]:
        now_s = self._clock.monotonic()
        for peer in self._connections.busy:
            yield from peer.changed_channels(now_s)

    def has(self, name: str) -> bool:
        return self._connections.has(name.rpartition(" (")[0])


class ExchangeValues(RateSource):
    """The counters of exchanges that somebody has published to."""

    kind = EXCHANGES

    def __init__(self, exchanges: dict[str, Exchange]) -> None:
        self._exchanges = exchanges

    def changed(self) -> Iterator[tuple[str, Values]]:
        for exchange in list(self._exchanges.values()):
            counts = exchange.counts
            if counts.publish_in != counts.noted:
                counts.noted = counts.publish_in
                yield exchange.name, counts.stats()

    def has(self, name: str) -> bool:
        return name in self._exchanges


class TotalValues(RateSource):
    """The counters of the vhost, and the lengths of all its queues together."""

    kind = TOTALS

    def __init__(self, table: QueueTable, dispatch: Dispatch) -> None:
        self._table = table
        self._dispatch = dispatch

    def changed(self) -> Iterator[tuple[str, Values] | None]:
        lengths: dict[str, int] = yield from self._table.lengths()
        yield "", {**self._dispatch.counts.all(), **lengths}

    def has(self, name: str) -> bool:
        return True


def _ignore_counts(_counts: Counts) -> None:
    """Do nothing: nobody waits for the policies of the start."""


def _ignore_refusal(address: str, text: str) -> None:
    """Ignore a refusal: nobody listens."""


class VHost(QueueOwner[BrokerQueue]):
    """The vhost `name` in the directory `path`, which exists (DataDirectory.vhost_path).

    on_event(kind, text): news for people, also of engine and queues. audit_stream: the stream of
    the audit, which clients can only read; "" if another vhost has it. Opening raises the engine's
    errors: LockedError, VersionError, CorruptionError, SyncFailedError, OSError.
    """

    _has_events: bool = False  # not before it is open

    def __init__(
        self, fs: FileSystem, path: str, name: str, settings: VHostSettings, *, clock: Clock,
        rng: random.Random, on_event: Callable[[str, str], None],
    ) -> None:  # fmt: skip
        self.name: str = name
        self.path: str = path
        self.settings: VHostSettings = settings
        self.clock: Clock = clock
        self.mode: int = settings.mode
        self.blocked_reason: str = ""
        self.blocked_since_ms: int = 0
        self._blocked_s: dict[str, float] = {}  # reason -> how long publishers have waited for it
        self._blocked_from_s: dict[str, float] = {}  # the reasons of now, and since when
        self.loop_seconds: dict[str, Histogram] = {}  # of the loop of the vhost's process
        self._has_engine: bool = False  # which has events before it is open
        self.operations: object | None = None  # what operators' sessions hold (broker.operations)
        self.leases: object | None = None  # of readers of queues (leases.py)
        self.batches: object | None = None  # of the exactly-once sink (batches.py)
        self.on_tick: list[Callable[[float], None]] = []  # called with monotonic seconds
        self.handlers: set[Peer] = set()  # clients' connections, kept by themselves
        self.has_timeouts: bool = False  # of a queue or a consumer, beside the broker's
        self._timeouts: TimeoutLook = TimeoutLook(self.handlers, clock)
        self._timeouts_looked_s: float = 0.0
        self.in_flight: InFlight = InFlight(clock.monotonic)  # a process shares it: vhost_process
        self._event = on_event
        self.alerts: AlertManager = AlertManager(name, clock, on_event)
        # on_refused(client's address, text): a channel or connection was closed with an error.
        self.on_refused: Callable[[str, str], None] = _ignore_refusal
        # on_audit(operation, user, from where, arguments): it was done; None: no audit log.
        self.on_audit: Callable[[str, str, str, dict[str, object]], None] | None = None
        self._rng = rng
        self._rss_rounds: int = 0  # of the monitor, in which RSS was looked at
        self._rss_due_s: float = 0.0  # when it may be looked at again: rounds may come fast
        self.headers: AmqpHeaders = AmqpHeaders()
        self.limits: LimitTable = LimitTable(settings.limits)
        self.usage: Usage = Usage(name, self.limits, settings.memory_bytes)
        self.body_room: BodyRoom = BodyRoom(settings.memory_bytes // BODIES_PART)
        self.rss: RssAlarm | None = None
        self._stalled_due_s: float = 0.0
        self.unfinished_bytes: int = 0  # of messages that clients have begun, kept by handlers
        self._usage_bytes: int = 0  # of topology, clients, transactions, as counted
        self.monitor: MemoryMonitor = MemoryMonitor(
            settings.memory_bytes, clock, on_event=self.event
        )
        try:
            self.queue_set: QueueSet[BrokerQueue] = QueueSet(
                self, self.monitor, fs, path, bytes_of(name), clock=clock, rng=rng,
                storage=settings.storage, mode=self.mode, is_strict=settings.is_strict,
                choice=settings.queues, on_queue_event=self.alerts.queue_event,
            )  # fmt: skip
            self.engine: StorageEngine = self.queue_set.engine
            self._has_engine = True
        except BaseException:
            self.alerts.flush()
            raise
        try:
            self._open(rng)
        except BaseException:
            self.alerts.flush()
            self.queue_set.abandon("the vhost could not be opened")
            raise
        self.alerts.open(
            self.background, self.dispatch, self.router, self.table.usable, self._is_disk_full
        )

    def _open(self, rng: random.Random) -> None:
        self.audit_stream: str = ""
        engine = self.engine
        touched: list[Any] = self.queue_set.touched  # only queues of the set are touched
        self.dispatch: Dispatch = Dispatch(engine, self.mode, touched)
        self.budget: TurnBudget = TurnBudget(self.clock)
        self.dispatch.budget = self.budget
        self.counts: VHostCounts = self.dispatch.counts
        self.policies: Policies = Policies(engine, self.event)
        # Deliver, write, answer: the end of an iteration of the owner's loop. Returns True if there
        # is more to do at once: call it again, after other events.
        self.turn: Callable[[], bool] = self.dispatch.run
        self.topology: Topology = Topology(
            engine, self.name, self._has_queue, self.event, self._check_exchange,
            self._check_binding, self.usage.topology.add, self.usage.check_between, rng,
            self.policies, (self.usage.has_history_room, self.usage.histories.add),
        )  # fmt: skip
        self._dead_letters = DeadLetterRoutes(
            self.topology.router, self.headers, self._taker, self.budget, self._share_blame
        )
        self.streams: BrokerStreamTable = BrokerStreamTable(
            engine, self.name, self.dispatch, self.monitor, self.event,
            hold_age_s=self.settings.stream_hold_s_max,
            hold_bytes=self.settings.stream_hold_bytes_max,
        )  # fmt: skip
        self.table: QueueTable = QueueTable(
            self.queue_set, self.name, self.topology, self.streams, self.dispatch,
            clock=self.clock, rng=rng, check_new=self._check_queue, on_event=self.event,
            on_deleted=self.alerts.queue_gone, count=self.usage.topology.add,
            policies=self.policies,
        )  # fmt: skip
        self.restarts: QueueRestarts = QueueRestarts(
            self.queue_set, self.table, self.dispatch, self.event
        )
        self.timers: QueueTimers = QueueTimers(self.table, self.dispatch)
        self.table.call_at = self.timers.call_at
        self.rates: RateTable = RateTable(self.clock, self._wake_task)
        for source in self._rate_sources():
            self.rates.add(source)
        self.dispatch.on_queue_error = self._delivery_failed
        self.dispatch.on_internal_error = self._internal_error
        self.router: Router = self.topology.router
        self.exchanges: dict[str, Exchange] = self.topology.exchanges
        self.firehose: Firehose = Firehose(
            self.name, self.router, self.table.usable, self.dispatch, self._wake_task, self.event
        )
        self.queues: dict[str, QueueOrStream] = self.table.served
        self.topology.recover()
        self._open_events()
        self.table.check_limits()
        self.table.delete_leftovers()
        for queue in self.table.open_busy():
            self.queue_set.touch(queue)
        for name, ms in self.table.expiring():
            self.timers.expire_unused(name, ms)
        self.background: BackgroundTasks = BackgroundTasks(self.dispatch, self.clock)
        self._dead_letters.large = LargeLetters(engine, self.background)
        self._policy_changes: PolicyChanges = PolicyChanges(
            self._everything, self.topology.apply_policies, self._apply_to_queue,
            self.dispatch.internal_error, self.background.wake,
        )  # fmt: skip
        if not self.policies.is_empty:
            self._policy_changes.begin(_ignore_counts)
        self.unbinding: Unbinding = Unbinding(self.topology, self.background.wake)
        self.table.ended = EndedQueues(self.table, self.unbinding, self.background.wake)
        self.deferred_free: DeferredFree = DeferredFree(self.background)
        self.engine.free_later = self.deferred_free.add

    def _open_events(self) -> None:
        """Begin to report what changes, from what was recovered on, and to ask about rights."""
        self.rights: AskedRights = AskedRights(self.name, self.clock, self._forget_routes)
        self.events: BrokerEvents = BrokerEvents(
            self.name, self.clock, self.router, self.table.usable, self.dispatch, self._wake_task,
            self.event,
        )  # fmt: skip
        events = self.events
        self._has_events = True
        self.table.on_queue = events.queue
        self.topology.on_exchange = events.exchange
        self.router.on_binding = events.binding

    def _rate_sources(self) -> list[RateSource]:
        connections = ConnectionValues(self.handlers)
        return [
            TotalValues(self.table, self.dispatch),
            QueueValues(self.table, self.streams),
            connections,
            ChannelValues(connections, self.clock),
            ExchangeValues(self.topology.exchanges),
        ]

    # ---- events --------------------------------------------------------------------------------

    def event(self, kind: str, text: str, queue: str = "", part: str = "") -> None:
        """Report an event. queue, part: of an alert, its queue, and which part of that or of the
        vhost."""
        if kind in DISK_ALARMS:
            self.monitor.disk_alarm(kind == "disk_full")
        if not self.alerts.event(kind, text, queue, part):
            if kind == "stopped":
                self.alerts.flush()
            self._event(kind, text)
        if kind in DISK_ALARMS or kind in MEMORY_ALARMS:
            self.update_alarms()
            if self._has_events:
                self.events.alarm(kind)

    def _is_disk_full(self) -> bool:
        return self.monitor.is_disk_full or self.engine.blocked

    def alert(self, alert: Alert) -> None:
        self.alerts.threshold(alert)

    alert_over = alert

    def _internal_error(self, where: str, error: Exception) -> None:
        lines = "".join(traceback.format_exception(error))
        self.event("internal_error", f"{where}: {lines}")

    def update_alarms(self) -> None:
        """Compute whether publishers are blocked, and notify them of a change."""
        reasons = []
        if self.is_memory_short:
            reasons.append("memory")
        if self.monitor.is_disk_full:
            is_known = self._has_engine and self.engine.short_of
            reasons.append(self.engine.short_of if is_known else "disk")
        reason = " and ".join(reasons)
        if reason != self.blocked_reason:
            now_s = self.clock.monotonic()
            self._blocked_s = self.blocked_seconds()
            self._blocked_from_s = dict.fromkeys(reasons, now_s)
            was_blocked = self.blocked_reason != ""
            self.blocked_reason = reason
            self._report_blocked(was_blocked=was_blocked)
            if self.is_memory_short:
                self.event("memory_holders", self._largest_holders())
            for handler in list(self.handlers):
                handler.blocked(self.blocked_reason)  # what the others held may have changed it

    def blocked_seconds(self) -> dict[str, float]:
        """Return for how long publishers have waited since the start, by the reason."""
        found = dict(self._blocked_s)
        for reason, from_s in self._blocked_from_s.items():
            found[reason] = found.get(reason, 0.0) + self.clock.monotonic() - from_s
        return found

    def _report_blocked(self, *, was_blocked: bool) -> None:
        """Report why publishers wait, since when, and what helps; or that they wait no longer."""
        now_ms = self.clock.wall_ms()
        if not self.blocked_reason:
            seconds = (now_ms - self.blocked_since_ms) / 1000
            self.event("unblocked", f"publishers go on, after {seconds:.1f} s")
            return
        if not was_blocked:
            self.blocked_since_ms = now_ms
        since = datetime.fromtimestamp(self.blocked_since_ms / 1000, UTC).isoformat(" ", "seconds")
        text = f"publishers wait since {since}, low on {self.blocked_reason}: "
        text += blocked_advice(self.blocked_reason)
        self.event("blocked", text)

    def blocked_cause(self) -> str:
        """Return what publishers wait for takes most, "" if they do not wait."""
        found: list[str] = []
        if self._is_disk_full():
            free, limit = self.engine.disk_room()
            found.append(
                f"{format_bytes(free)} of the disk are free, the limit is {format_bytes(limit)}"
            )
        if self.is_memory_short:
            largest, size_bytes, _ = self.memory_parts()[0]
            of = format_bytes(self.monitor.budget_bytes)
            text = f"{largest} take {format_bytes(size_bytes)} of {of}"
            if self.rss is not None and self.rss.is_alarmed:
                has = format_bytes(self.rss.rss_bytes)
                most = format_bytes(self.rss.limit_bytes(self.monitor.budget_bytes))
                text = f"its process has {has} of the {most} that it may have; {text}"
            found.append(text)
        return "; ".join(found)

    def memory_parts(self) -> list[tuple[str, int, UserSums | None]]:
        """Return what the counted memory consists of, the bytes of each, and how much of them each
        user has if that is counted, the largest first."""
        usage, monitor = self.usage, self.monitor
        parts: list[tuple[str, int, UserSums | None]] = [
            (MESSAGES, monitor.counted_bytes - monitor.other_bytes, None),
            ("queues, exchanges, bindings and readers", self.topology_bytes, usage.topology),
            ("channels and consumers", usage.client_bytes, usage.clients),
            ("open transactions", usage.transactions.total, usage.transactions),
            ("unfinished messages", self.unfinished_bytes, None),
            ("output that clients do not read", usage.output.total, usage.output),
            ("unacknowledged deliveries", usage.unacked.total, usage.unacked),
        ]
        return sorted(parts, key=_bytes_second, reverse=True)

    @property
    def is_memory_short(self) -> bool:
        """Return whether publishers wait for memory: too much is counted, or the process has too
        much."""
        return self.monitor.is_alarmed or (self.rss is not None and self.rss.is_alarmed)

    def watch_rss(self, rss: Callable[[], int], trim: Callable[[], None]) -> None:
        """Block publishers also for the RSS of the process, which has only this vhost. rss, trim:
        as of RssAlarm."""
        self.rss = RssAlarm(
            rss, trim, self.settings.limits.rss_slack_bytes, self._rss_event,
            self.usage.routes.drop_all,
        )  # fmt: skip

    def _rss_event(self, kind: str, text: str) -> None:
        self.event(kind, text, part="rss")

    def _holders(self) -> list[tuple[int, str, Peer]]:
        """Return (bytes, name, connection) of those with unfinished messages, the largest first."""
        found = [(*peer.held(), peer) for peer in self.handlers]
        return sorted((one for one in found if one[0]), key=_bytes_first, reverse=True)

    def _largest_holders(self) -> str:
        named = [f"{name}: {format_bytes(n)}" for n, name, _ in self._holders()[:HOLDERS_SHOWN]]
        parts = [f"{name}: {format_bytes(n)}" for name, n, _ in self.memory_parts() if n]
        return f"memory: {'; '.join(parts)}; the largest unfinished messages: " + (
            "; ".join(named) or "none"
        )

    def _end_largest(self) -> None:
        """End the connections whose unfinished messages hold most, before everybody has to wait:
        these messages cannot be paged out."""
        most = self.monitor.budget_bytes // UNFINISHED_PART
        holders = self._holders()
        held = sum(n for n, _, _ in holders)
        for n, name, peer in holders:
            if held <= most:
                return
            held -= n
            text = f"memory is short: unfinished messages hold {format_bytes(n)}, more than others'"
            self.event("warning", f"{name} ends: {text}")
            peer.free_memory(text)

    def _watch_unfinished(self, now_s: float) -> None:
        if self.unfinished_bytes > self.monitor.budget_bytes // UNFINISHED_PART:
            self._end_largest()
        most_s = self.settings.limits.stalled_body_s
        if now_s >= self._stalled_due_s:
            self._stalled_due_s = now_s + most_s / STALLED_LOOKS
            for peer in list(self.handlers):
                peer.check_stalled(now_s, most_s)

    def _watch_unacked(self, _: float) -> None:
        for user in list(self.usage.full):
            self.count_unacked(user, 0)
        for user in list(self.usage.stuffed):
            self.add_output(user, 0)

    def _watch_timeouts(self, now_s: float) -> None:
        default_s = self.settings.consumer_timeout_s or AGE_LOOK_S * TIMEOUT_LOOKS
        every_s = min(AGE_LOOK_S, max(TIMEOUT_LOOK_S, default_s / TIMEOUT_LOOKS))
        if now_s - self._timeouts_looked_s >= (TIMEOUT_LOOK_S if self.has_timeouts else every_s):
            self._timeouts_looked_s = now_s
            self.background.wake(self._timeouts)

    def token(self, n: int) -> str:
        """Return a random name of n bytes in URL-safe Base64."""
        return base64.urlsafe_b64encode(self._rng.randbytes(n)).rstrip(b"=").decode()

    def add_other(self, delta: int) -> None:
        """Count bytes of RAM that are not of queues: buffers, unfinished content, output."""
        self.monitor.other_bytes += delta

    def add_output(self, user: str, delta: int) -> None:
        """Count bytes that wait to be sent to this user; negative: fewer."""
        self.monitor.other_bytes += delta
        if self.usage.output_changed(user, delta):
            if user in self.usage.stuffed:
                self.event("warning", self.usage.stuffed_text(user))
            for peer in list(self.handlers):
                peer.look_at_room(user)

    def has_output_room(self, user: str) -> bool:
        """Return whether more may wait for this user's connections."""
        return self.usage.has_output_room(user)

    def count_unacked(self, user: str, delta: int) -> None:
        """Count bytes of deliveries that a user has not acknowledged; negative: fewer. 0: look
        whether others have left room."""
        self.monitor.other_bytes += delta
        if self.usage.unacked_changed(user, delta, self.clock):
            if user in self.usage.full:
                self.event("warning", self.usage.full_text(user))
            for peer in list(self.handlers):
                peer.look_at_room(user)

    def set_memory(self, memory_bytes: int) -> None:
        """Set the memory budget: the vhost's share of the broker's."""
        self.monitor.budget_bytes = memory_bytes
        self.monitor.watermark_bytes = memory_bytes
        self.usage.set_memory(memory_bytes)
        self.body_room.bytes_max = memory_bytes // BODIES_PART
        self.table.recheck_kept_down()

    def _wake_task(self, task: BackgroundTask) -> None:
        self.background.wake(task)

    def _forget_routes(self) -> None:
        """Have the routes of those found again whose rights a server decides."""
        for peer in list(self.handlers):
            peer.forget_asked_routes()

    def set_tracing(self, *, is_on: bool) -> None:
        """Turn the firehose on or off."""
        self.firehose.is_on = is_on
        self.usage.routes.drop_all()
        for queue in self.table.served.values():
            for consumer in queue.consumers.all():
                consumer.trace(self.firehose.delivered if is_on else None)
        if self.firehose.on_switched is not None:
            self.firehose.on_switched(is_on)

    # ---- limits --------------------------------------------------------------------------------

    @property
    def topology_bytes(self) -> int:
        """Return about how many bytes queues, exchanges and bindings take in RAM, without
        messages."""
        return self.topology.held_bytes + self.table.held_bytes

    def _check_queue(self, name: str, keys_bytes: int, by: Identity | None) -> None:
        self.usage.check_queue(name, self.table.count, self.topology_bytes, by, keys_bytes)

    def _check_exchange(self, name: str, keys_bytes: int, by: Identity | None) -> None:
        self.usage.check_exchange(name, len(self.exchanges), self.topology_bytes, by, keys_bytes)

    def check_reader(self, stream: BrokerStream, reader: str, by: Identity) -> None:
        """Raise ChannelError 406 if the user may not make this named reader of a stream."""
        if reader and not stream.has_reader(reader):
            self.usage.check_reader(stream.name, self.topology_bytes, by)

    def _check_binding(self, exchange: str, by: Identity | None) -> None:
        self.usage.check_binding(exchange, self.router.binding_count, self.topology_bytes, by)

    def _count_usage(self) -> None:
        now = self.usage.counted_bytes(self.topology_bytes) + self.usage.transactions.total
        if now != self._usage_bytes:
            self.add_other(now - self._usage_bytes)
            self._usage_bytes = now

    @property
    def depth_bytes(self) -> int:
        """Return about how many bytes the bodies of all messages have: persistent ones, and those
        in RAM."""
        persistent = sum(index.bytes for index in self.engine.queues.values())
        return max(persistent, self.monitor.counted_bytes - self.monitor.other_bytes)

    # ---- queues --------------------------------------------------------------------------------

    def declare_queue(
        self, name: str, *, durable: bool = False, exclusive: bool = False,
        auto_delete: bool = False, arguments: dict[str, object] | None = None,
        owner: object | None = None, is_reserved_allowed: bool = False,
        by: Identity | None = None,
    ) -> tuple[QueueOrStream, int]:  # fmt: skip
        """Declare a queue ("": it is named here) or a stream for this user, or find that it exists
        with these properties. Returns it, and the LSN to wait for. ChannelError: 403, 404, 405,
        406."""
        created = self.counts.queue_created
        arguments = self._typed(name, arguments, durable and not exclusive and not auto_delete)
        queue, lsn = self.table.declare(
            name, durable=durable, exclusive=exclusive, auto_delete=auto_delete,
            arguments=arguments, owner=owner, is_reserved_allowed=is_reserved_allowed,
            by=by,
        )  # fmt: skip
        self.counts.queue_declared += 1
        if self.counts.queue_created != created and isinstance(queue, BrokerQueue):
            self.timers.expire_unused(queue.name, expires_ms(queue.amq.options))
        return queue, lsn

    def prepare_queue(
        self, name: str, *, durable: bool = False, exclusive: bool = False,
        auto_delete: bool = False, arguments: dict[str, object] | None = None,
        again: Callable[[], None], failed: Callable[[Exception], None],
        by: Identity | None = None,
    ) -> bool:  # fmt: skip
        """Return whether `declare_queue` has to wait for files of a new stream. If so they are made
        by a worker, and `again` or `failed` is called in a later turn: `again` declares, from the
        beginning, because much may have changed. ChannelError: it would be refused."""
        arguments = self._typed(name, arguments, durable and not exclusive and not auto_delete)
        making = self.table.prepare(
            name, durable=durable, exclusive=exclusive, auto_delete=auto_delete,
            arguments=arguments, by=by,
        )  # fmt: skip
        if making is None:
            return False

        def made() -> None:
            error = making.error
            if error is None:
                again()
            elif isinstance(error, DiskFullError):
                failed(refusals.no_space(self.table.called(name), error))
            else:
                failed(error)

        making.when_made(made)
        return True

    def _typed(
        self, name: str, arguments: dict[str, object] | None, is_kept: bool
    ) -> dict[str, object]:
        """Return the arguments with the vhost's default queue type, if they have none. One that
        servers name, and one that exists and is of another type, does not get it. is_kept: the
        queue is durable, and neither exclusive nor auto-delete, so that it may have any type."""
        given = arguments or {}
        kind = self.limits.queue_types.get(self.name)
        if kind is None or not is_kept or QUEUE_TYPE in given:
            return given
        if not name or name.startswith(GENERATED):
            return given
        known = self.table.find(name)
        if known is not None and type_of(known.arguments) != kind:
            return given
        return {**given, QUEUE_TYPE: kind}

    def delete_queue(
        self, queue: QueueOrStream, *, if_unused: bool = False, if_empty: bool = False,
        is_forced: bool = False,
    ) -> tuple[int, int]:  # fmt: skip
        """Delete a queue. Returns how many messages were ready, and the LSN. is_forced: also if
        readers have messages of it leased. ChannelError 406."""
        self.check_not_audit(queue.name)
        if not queue.is_crashed:
            queue.serve()
        return self.table.delete(queue, if_unused=if_unused, if_empty=if_empty, is_forced=is_forced)

    def delete_queue_then(
        self, queue: QueueOrStream, then: Callable[[int, int], None],
        failed: Callable[[Exception], None], *, if_unused: bool = False, if_empty: bool = False,
        is_forced: bool = False,
    ) -> bool:  # fmt: skip
        """Delete a queue as `delete_queue`, and call then(messages, LSN): at once, or in a later
        turn if it has many bindings, or failed(error). Returns whether it is so."""
        flags = {"if_unused": if_unused, "if_empty": if_empty, "is_forced": is_forced}
        if not self.table.has_many_bindings(queue.name):
            then(*self.delete_queue(queue, **flags))
            return False
        self.check_not_audit(queue.name)
        if not queue.is_crashed:
            queue.serve()
        ready = self.table.check_delete(queue, **flags)
        self.table.end(
            queue, self.unbinding, lambda lsn: then(ready, lsn), failed, is_forced=is_forced
        )
        return True

    def delete_exchange_then(
        self, name: str, then: Callable[[int], None], failed: Callable[[Exception], None], *,
        if_unused: bool = False,
    ) -> bool:  # fmt: skip
        """Delete an exchange as `Topology.delete_exchange`, and call then(LSN): at once, or in a
        later turn if it has many bindings, or failed(error). Returns whether it is so."""
        topology = self.topology
        if if_unused or name.startswith("amq.") or not topology.has_many(EXCHANGE, name):
            then(topology.delete_exchange(name, if_unused=if_unused))
            return False
        self.unbinding.add(EXCHANGE, name, lambda: then(topology.delete_exchange(name)), failed)
        return True

    def purge_queue(self, queue: QueueOrStream) -> tuple[int, int]:
        """Delete all ready messages. Returns how many, and the LSN. AMQPConnectionError 540: a
        stream."""
        queue.serve()
        if not isinstance(queue, BrokerQueue):
            raise refusals.not_for_streams("queue.purge", self.table.called(queue.name))
        self.queue_set.touch(queue)  # an alert may be over
        self.budget.left -= len(self.table.leases(queue.name))  # whose messages stay
        before = self.engine.log.last_lsn
        n = queue.amq.purge(DISK)
        lsn = self.engine.log.last_lsn
        return n, lsn if lsn != before else 0

    def check_not_audit(self, name: str) -> None:
        """Raise ChannelError 403 if this is the stream of the audit."""
        if name == self.audit_stream:
            raise refusals.access_refused(
                f"{self.table.called(name)} has the audit of the broker: it can be read only"
            )

    def _has_queue(self, name: str) -> bool:
        return name != self.audit_stream and self.table.has(name)

    def _share_blame(self, exchange: bytes) -> None:
        self.in_flight.share(exchange)

    def _taker(self, name: str) -> Target | None:
        queue = self.table.usable(name)
        if isinstance(queue, BrokerStream):
            return DeadLetterStream(queue)
        if not isinstance(queue, BrokerQueue):
            return None
        self.queue_set.touch(queue)
        return queue.amq

    def _delivery_failed(self, queue: Source, error: Exception) -> None:
        """Restart a queue whose own code has raised an error."""
        if isinstance(queue, BrokerQueue):
            self.alerts.queue_gone(queue.name)
        self.restarts.failed(queue, error)

    def queue_failed(self, queue: BrokerQueue, error: Exception) -> None:
        if is_shortage(error):
            self.dispatch.without_space(queue)
        else:
            self._delivery_failed(queue, error)

    def ready(self, name: bytes) -> None:
        queue = self.table.served.get(text_of(name))
        if queue is not None:
            self.dispatch.mark(queue)

    def dead_letter_routes(
        self, name: bytes
    ) -> Callable[[QueueOptions], DeadLetterRoute | None] | None:
        return partial(self._dead_letters.of, name)

    def stored_options(self, name: bytes) -> QueueOptions:
        return self.table.stored(name)[1]

    def load(self, name: str) -> BrokerQueue:
        return self.table.load(name)

    # ---- policies ------------------------------------------------------------------------------

    def set_policy(
        self, component: str, name: str, value: Mapping[str, object], done: Callable[[Counts], None]
    ) -> int:
        """Set a policy or an operator policy; return the LSN. done: called when all queues and
        exchanges have it. ChannelError 406: it is wrong, and nothing happened."""
        lsn = self.policies.set(component, name, value)
        self._apply_policies(done)
        return lsn

    def clear_policy(self, component: str, name: str, done: Callable[[Counts], None]) -> int:
        """Delete a policy or an operator policy, as `set_policy` sets one. ChannelError 404."""
        lsn = self.policies.clear(component, name)
        self._apply_policies(done)
        return lsn

    def _apply_policies(self, done: Callable[[Counts], None]) -> None:
        def applied(counts: Counts) -> None:
            self.table.policies_changed()
            done(counts)

        self._policy_changes.begin(applied)

    def _everything(self) -> tuple[list[str], list[str]]:
        return list(self.exchanges), [*self.queues, *self.queue_set.stored]

    def _apply_to_queue(self, name: str) -> Applied | None:
        found = self.table.apply_policies(name)
        if found is None:
            return None
        applied, options = found
        if options is not None:
            self.timers.expire_unused(name, expires_ms(options))
            self.has_timeouts = self.has_timeouts or bool(options.consumer_timeout_s)
        return applied

    # ---- exchanges and bindings ----------------------------------------------------------------

    def bind_queue(
        self, queue_name: str, exchange: str, key: str, arguments: dict[str, object] | None = None,
        owner: object | None = None, by: Identity | None = None,
    ) -> int:  # fmt: skip
        """Bind a queue, for this user. ChannelError: 403 (the default exchange, the stream of the
        audit), 404, 405, 406."""
        self.topology.check_exchange(exchange)
        self.check_not_audit(queue_name)
        queue = self.table.find_queue(queue_name, owner)
        return self.topology.bind(
            exchange, QUEUE, queue_name, key, arguments or {}, is_durable=queue.is_durable, by=by
        )

    def unbind_queue(
        self, queue_name: str, exchange: str, key: str, arguments: dict[str, object] | None = None,
        owner: object | None = None,
    ) -> int:  # fmt: skip
        """Delete a binding, if it exists. ChannelError: 403 (the default exchange), 405."""
        queue = self.table.usable(queue_name)
        if queue is not None and exchange:
            self.table.check_access(queue, owner)
        return self.topology.unbind(exchange, QUEUE, queue_name, key, arguments or {})

    # ---- time ----------------------------------------------------------------------------------

    @property
    def wake(self) -> Callable[[], None]:
        """Return what is called when a turn is wanted; the owner sets it."""
        return self.dispatch.wake

    @wake.setter
    def wake(self, call: Callable[[], None]) -> None:
        self.dispatch.set_wake(call)

    def completed(self) -> bool:
        """Handle what the file system has completed, and run a turn without background tasks,
        because this may be called several times in one iteration of the loop."""
        self.engine.poll()
        return self.dispatch.run(is_between=True)

    def tick(self) -> float:
        """Do what is due by the clock. Returns in how many seconds to call it again. What became
        ready is delivered in a turn, for which `wake` is called."""
        seconds = self.queue_set.tick()
        if self.rss is not None:
            self._watch_rss(self.rss, self.clock.monotonic())
        return seconds

    def _watch_rss(self, rss: RssAlarm, now_s: float) -> None:
        rss.relieve(now_s)
        if self.monitor.rounds != self._rss_rounds:
            self._rss_rounds = self.monitor.rounds
            if now_s >= self._rss_due_s:
                self._rss_due_s = now_s + INTERVAL_S / 2
                rss.look(self.monitor.budget_bytes, self.monitor.counted_bytes, now_s)
                self.monitor.set_excess(rss.excess_bytes)

    def tick_others(self, now_s: float) -> bool:
        self.dispatch.retry(now_s)
        has_more = self.timers.tick(now_s)
        for call in (
            self.rates.tick, self.streams.tick, self.alerts.tick, self._watch_unfinished,
            self._watch_unacked, self._watch_timeouts, self.rights.tick, *self.on_tick,
        ):  # fmt: skip
            try:
                call(now_s)
            except Exception as error:  # noqa: BLE001 - it is reported
                self.dispatch.internal_error("a tick", error)
        self._count_usage()
        return has_more

    def others_due_s(self, now_s: float) -> float:
        return self.timers.next_s(now_s)

    # ---- the end -------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop in order: queues, a checkpoint, the lock. After a failure, also of a queue that
        cannot stop in order, nothing is written: the next start reads the log."""
        self.alerts.flush()
        self.queue_set.close(self.streams.terminate)

    def abandon(self) -> None:
        """Stop as a crash would: nothing is written, files are closed, the lock is released."""
        self.queue_set.abandon("the vhost was abandoned")


def _bytes_second(part: tuple[str, int, UserSums | None]) -> int:
    return part[1]


def _bytes_first(holder: tuple[int, str, Peer]) -> int:
    return holder[0]
