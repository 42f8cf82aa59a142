"""VHost: the core of a vhost: its engine, its queues, its exchanges, one memory budget, one turn.

    StorageEngine < AMQQueue < ServedQueue, one for each queue in use; MemoryMonitor over them
    StorageEngine < ServedStream, one for each stream;  StreamTable
    Topology (exchanges, bindings) < Router;  QueueTable;  QueueClock;  Dispatch
    Chores: LeaseDesk (readers of queues), AlertDesk; whoever opens a vhost adds a BatchDesk
    (batch_desk.py)

Everything is synchronous and deterministic: no loop, no sockets, no threads; files, clock and
chance are handed in. Whoever owns a vhost (a process of the server, a test, a simulation) calls

    turn        once per iteration of its loop, if `wake` was called since the last one
    completed   when the file system has completed something (its `on_complete`)
    tick        after as many seconds as the last one returned
    close       at the end; or `abandon`, which is what a crash would do

and nothing of it from two threads. Connections call the rest: topology, `served` to find a queue,
`dispatch` to say what has work. Each change of the topology returns an LSN: it is answered when
`when_settled` calls back; 0 is answered at once.

Alarms. While the memory counted is above the budget, the process has much more than that (only if
`watch_rss` was called), or the disk is full, `blocked_reason` says so, since `blocked_since_ms`,
and each of `handlers` is told when that changes. These, and the alerts of queues, go the way that
AlertDesk knows; other events to `on_event` alone.

Failures. A failure of the engine ends the vhost: the error (StoppedError, SyncFailedError ...) goes
up through whatever was called, nothing is confirmed any more, and the owner opens another one. An
error in one queue's own code restarts that queue alone (queue_restart.py). Any other error that
nobody expected is an event with its traceback (`mistake`), and costs at most the client whose
request raised it.

Not here: the parts named above, each in a module of its own; what is told of a vhost to people
(vhost_info.py).
"""

import base64
import random
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from penstock.access.limits import LimitTable
from penstock.broker import refusals
from penstock.broker.alert_desk import AlertDesk
from penstock.broker.chores import Chores
from penstock.broker.dead_letters import DeadLetterRoutes
from penstock.broker.dispatch import Dispatch
from penstock.broker.in_flight import InFlight
from penstock.broker.lease_desk import LeaseDesk
from penstock.broker.letting_go import LettingGo
from penstock.broker.queue_clock import QueueClock
from penstock.broker.queue_opening import QueueOpener
from penstock.broker.queue_restart import QueueRestarts
from penstock.broker.queue_table import QueueTable, bytes_of, text_of
from penstock.broker.roles import Peer, Source
from penstock.broker.rss_alarm import RssAlarm
from penstock.broker.served_queue import Served, ServedQueue
from penstock.broker.served_stream import ServedStream
from penstock.broker.stream_table import StreamTable
from penstock.broker.topology import QUEUE, Exchange, Topology
from penstock.broker.usage import Usage
from penstock.broker.vhost_settings import VHostSettings
from penstock.clock import Clock
from penstock.errors import DiskFullError, StoppedError
from penstock.protocol.connection import BodyRoom
from penstock.queues.amqp_headers import AmqpHeaders
from penstock.queues.budget import format_bytes
from penstock.queues.dead_letter import Target
from penstock.queues.memory_monitor import MemoryMonitor
from penstock.queues.tick_pace import TickPace
from penstock.routing.router import Router
from penstock.storage.engine import StorageEngine
from penstock.storage.filesystem import FileSystem

MEMORY_ALARMS: Final = ("memory_alarm", "memory_free")
DISK_ALARMS: Final = ("disk_full", "disk_free")
# What whoever reads that publishers are blocked can do; consumers go on in any case.
ADVICE: Final = {
    "memory": "consume, purge or delete what fills it, or give the broker more (--memory)",
    "disk": "make room on it, or consume, purge or delete (penstock status shows the limit)",
}
HOLDERS_SHOWN: Final = 3
UNFINISHED_PART: Final = 2  # of the budget: what unfinished messages of all clients may hold
STALLED_LOOKS: Final = 4  # within the time for which a message may make no progress
BODIES_PART: Final = 16  # of the budget: bodies of 64 KiB to 1 MiB that are arriving, in RAM


def _unheard(address: str, text: str) -> None:
    """Of a vhost whose refusals nobody reads."""


class VHost:
    """The vhost `name` in the directory `path`, which exists (DataDirectory.vhost_path).

    on_event(kind, text): news for people, those of engine and queues too. Errors of opening are the
    engine's: LockedError, VersionError, CorruptionError, SyncFailedError, OSError.
    """

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
        self.operations: object | None = None  # what operators' sessions hold (operations.py)
        self.batches: object | None = None  # of the exactly-once sink (batch_desk.py)
        self.on_tick: list[Callable[[float], None]] = []  # called with monotonic seconds
        self.handlers: set[Peer] = set()  # clients' connections, kept by themselves
        self.in_flight: InFlight = InFlight(clock.monotonic)  # a process shares it: vhost_process
        self._event = on_event
        self.alerts: AlertDesk = AlertDesk(self, on_event)
        # on_refused(client's address, text): a channel or connection was closed with an error.
        self.on_refused: Callable[[str, str], None] = _unheard
        self._rng = rng
        self._pace: TickPace = TickPace(settings.storage.interval_ms)
        self._rounds: int = 0  # of the monitor, whose outcome the queues know
        self.headers: AmqpHeaders = AmqpHeaders()
        self.limits: LimitTable = LimitTable(settings.limits)
        self.usage: Usage = Usage(name, self.limits, settings.memory_bytes)
        self.body_room: BodyRoom = BodyRoom(settings.memory_bytes // BODIES_PART)
        self.rss: RssAlarm | None = None
        self._stalled_due_s: float = 0.0
        self.unfinished_bytes: int = 0  # of messages that clients have begun, kept by handlers
        self._usage_bytes: int = 0  # topology, clients, transactions, as the monitor was last told
        self.monitor: MemoryMonitor = MemoryMonitor(
            settings.memory_bytes, clock, on_event=self.event
        )
        try:
            self.engine: StorageEngine = StorageEngine(
                fs, path, bytes_of(name), clock=clock, rng=rng, options=settings.storage,
                on_event=self.event,
            )  # fmt: skip
        except BaseException:
            self.alerts.flush()
            raise
        try:
            self._open(rng)
        except BaseException:
            self.alerts.flush()
            self.engine.stop(StoppedError("the vhost could not be opened"))
            self.engine.close()
            raise
        self.alerts.open(self.chores)

    def _open(self, rng: random.Random) -> None:
        engine, monitor = self.engine, self.monitor
        self.dispatch: Dispatch = Dispatch(engine, self.mode)
        self.topology: Topology = Topology(
            engine, self.name, self.has_queue, self.event, self._check_exchange, self._check_binding
        )
        self.opener: QueueOpener = QueueOpener(
            engine, monitor, self.headers, mode=self.mode,
            routes=DeadLetterRoutes(self.topology.router, self.headers, self._taker),
            on_ready=self._ready, on_alert=self.alerts.threshold, on_event=self.event,
            on_queue_event=self._queue_event, on_gone=self.alerts.queue_gone,
        )  # fmt: skip
        self.streams: StreamTable = StreamTable(
            engine, self.name, self.dispatch, monitor, self.event,
            hold_age_s=self.settings.stream_hold_s_max,
            hold_bytes=self.settings.stream_hold_bytes_max,
        )  # fmt: skip
        self.table: QueueTable = QueueTable(
            engine, self.name, self.topology, self.opener, self.streams, monitor, self.dispatch,
            clock=self.clock, rng=rng, is_strict=self.settings.is_strict,
            check_new=self._check_queue,
        )  # fmt: skip
        self.restarts: QueueRestarts = QueueRestarts(
            engine, self.table, self.opener, self.dispatch, monitor, self.event
        )
        self.clockwork: QueueClock = QueueClock(
            engine, self.table, self.dispatch, self._queue_failed
        )
        self.dispatch.on_queue_error = self._queue_failed
        self.dispatch.on_mistake = self.mistake
        self.router: Router = self.topology.router
        self.exchanges: dict[str, Exchange] = self.topology.exchanges
        self.queues: dict[str, Served] = self.table.served
        self.topology.recover()
        self.table.check_limits()
        self.table.delete_leftovers()
        for queue in self.table.open_busy():
            self.clockwork.touch(queue)
        for name, arguments in self.table.expiring():
            self.clockwork.expire_unused(name, arguments)
        self.chores: Chores = Chores(self.dispatch, self.clock)
        self.letting_go: LettingGo = LettingGo(self.chores)
        self.engine.let_go = self.letting_go.add
        self.leases: LeaseDesk = LeaseDesk(self, self.settings.lease_alert_s)
        self.table.on_leased_deleted = self.leases.deleted

    # ---- events --------------------------------------------------------------------------------

    def event(self, kind: str, text: str, queue: str = "", part: str = "") -> None:
        """Something that people should know of happened; of an alert: to this queue, and to which
        part of it or of the vhost."""
        if kind in DISK_ALARMS:
            self.monitor.disk_alarm(kind == "disk_full")
        if not self.alerts.event(kind, text, queue, part):
            if kind == "stopped":
                self.alerts.flush()
            self._event(kind, text)
        if kind in DISK_ALARMS or kind in MEMORY_ALARMS:
            self.look_at_alarms()

    def _queue_event(self, queue: str, kind: str, text: str) -> None:
        if not self.alerts.of_queue(queue, kind, text):
            self.event(kind, text)

    def mistake(self, where: str, error: Exception) -> None:
        """Something failed that never should; its traceback is told."""
        lines = "".join(traceback.format_exception(error))
        self.event("mistake", f"{where}: {lines}")

    def look_at_alarms(self) -> None:
        """Whether publishers are to be blocked, or no longer; they are told of a change."""
        reasons = []
        if self.is_memory_short:
            reasons.append("memory")
        if self.monitor.is_disk_full:
            reasons.append("disk")
        reason = " and ".join(reasons)
        if reason != self.blocked_reason:
            was_blocked = self.blocked_reason != ""
            self.blocked_reason = reason
            self._tell_blocked(was_blocked=was_blocked)
            if self.is_memory_short:
                self.event("memory_holders", self._largest_holders())
            for handler in list(self.handlers):
                handler.blocked(self.blocked_reason)  # what the others held may have changed it

    def _tell_blocked(self, *, was_blocked: bool) -> None:
        """Why publishers wait, since when, and what there is to do; or that they do no longer."""
        now_ms = self.clock.wall_ms()
        if not self.blocked_reason:
            seconds = (now_ms - self.blocked_since_ms) / 1000
            self.event("unblocked", f"publishers go on, after {seconds:.1f} s")
            return
        if not was_blocked:
            self.blocked_since_ms = now_ms
        since = datetime.fromtimestamp(self.blocked_since_ms / 1000, UTC).isoformat(" ", "seconds")
        do = [advice for word, advice in ADVICE.items() if word in self.blocked_reason.split()]
        text = f"publishers wait since {since}, low on {self.blocked_reason}: {'; '.join(do)}"
        self.event("blocked", text)

    @property
    def is_memory_short(self) -> bool:
        """Whether publishers wait for memory: too much is counted, or the process has too much."""
        return self.monitor.is_alarmed or (self.rss is not None and self.rss.is_alarmed)

    def watch_rss(self, rss: Callable[[], int], trim: Callable[[], None]) -> None:
        """This vhost has the process to itself: publishers wait for its RSS, too. rss, trim: as of
        RssAlarm."""
        self.rss = RssAlarm(rss, trim, self.settings.limits.rss_slack_bytes, self._rss_event)

    def _rss_event(self, kind: str, text: str) -> None:
        self.event(kind, text, part="rss")

    def _holders(self) -> list[tuple[int, str, Peer]]:
        """(bytes, name, connection) of those with unfinished messages, the largest first."""
        found = [(*peer.held(), peer) for peer in self.handlers]
        return sorted((one for one in found if one[0]), key=_bytes_first, reverse=True)

    def _largest_holders(self) -> str:
        named = [f"{name}: {format_bytes(n)}" for n, name, _ in self._holders()[:HOLDERS_SHOWN]]
        return "memory: the largest unfinished messages: " + ("; ".join(named) or "none")

    def _relieve(self) -> None:
        """What clients have begun takes too much, and cannot be paged out. The connections that
        hold the most of it are ended, one after the other, before everybody has to wait."""
        most = self.monitor.budget_bytes // UNFINISHED_PART
        holders = self._holders()
        held = sum(n for n, _, _ in holders)
        for n, name, peer in holders:
            if held <= most:
                return
            held -= n
            text = f"memory is short: unfinished messages hold {format_bytes(n)}, more than others'"
            self.event("warning", f"{name} ends: {text}")
            peer.relieve(text)

    def _watch_unfinished(self, now_s: float) -> None:
        if self.unfinished_bytes > self.monitor.budget_bytes // UNFINISHED_PART:
            self._relieve()
        most_s = self.settings.limits.stalled_body_s
        if now_s >= self._stalled_due_s:
            self._stalled_due_s = now_s + most_s / STALLED_LOOKS
            for peer in list(self.handlers):
                peer.look_at_stalled(now_s, most_s)

    def token(self, n: int) -> str:
        """A random name of n bytes in URL-safe Base64, for whom the server names."""
        return base64.urlsafe_b64encode(self._rng.randbytes(n)).rstrip(b"=").decode()

    def add_other(self, delta: int) -> None:
        """So many bytes more (less) are held in RAM by something else than queues: buffers,
        unfinished content, output."""
        self.monitor.other_bytes += delta

    def set_memory(self, memory_bytes: int) -> None:
        """Another budget from here on: what the vhost gets of the whole broker's."""
        self.monitor.budget_bytes = memory_bytes
        self.monitor.watermark_bytes = memory_bytes
        self.usage.memory_bytes = memory_bytes
        self.body_room.bytes_max = memory_bytes // BODIES_PART
        self.table.look_at_kept_down()

    # ---- limits --------------------------------------------------------------------------------

    @property
    def topology_bytes(self) -> int:
        """What queues, exchanges and bindings take in RAM, about, without messages."""
        return self.topology.held_bytes + self.table.held_bytes

    def _check_queue(self, name: str) -> None:
        self.usage.check_queue(name, self.table.count, self.topology_bytes)

    def _check_exchange(self, name: str) -> None:
        self.usage.check_exchange(name, len(self.exchanges), self.topology_bytes)

    def _check_binding(self, exchange: str) -> None:
        self.usage.check_binding(exchange, self.router.binding_count, self.topology_bytes)

    def _count_usage(self) -> None:
        now = self.usage.counted_bytes(self.topology_bytes) + self.usage.transaction_bytes
        if now != self._usage_bytes:
            self.add_other(now - self._usage_bytes)
            self._usage_bytes = now

    @property
    def depth_bytes(self) -> int:
        """Bytes of the bodies of all messages, about: persistent ones, and what is in RAM."""
        persistent = sum(index.bytes for index in self.engine.state.queues.values())
        return max(persistent, self.monitor.counted_bytes - self.monitor.other_bytes)

    # ---- queues --------------------------------------------------------------------------------

    def has_queue(self, name: str) -> bool:
        """Whether there is a queue of this name."""
        return self.table.has(name)

    def served(self, name: str) -> Served | None:
        """The queue or stream of this name, opened if need be, whoever asks; None if there is none,
        or it has crashed."""
        queue = self.table.find(name)
        return None if queue is None or queue.is_crashed else queue

    def find_queue(
        self, name: str, owner: object | None = None, *, is_crashed_allowed: bool = False
    ) -> Served:
        """The queue or stream, if the connection `owner` may have it. ChannelError: 404 (none,
        crashed unless that is allowed), 405 (exclusive to another connection)."""
        return self.table.find_queue(name, owner, is_crashed_allowed=is_crashed_allowed)

    def find_messages(self, name: str, owner: object | None, asked: str) -> ServedQueue:
        """The same, for what only queues have. AMQPConnectionError 540: it is a stream, and `asked`
        is not for streams."""
        return self.table.of_messages(self.table.find_queue(name, owner), asked)

    def declare_queue(
        self, name: str, *, durable: bool = False, exclusive: bool = False,
        auto_delete: bool = False, arguments: dict[str, object] | None = None,
        owner: object | None = None, is_reserved_allowed: bool = False,
    ) -> tuple[Served, int]:  # fmt: skip
        """Declare a queue ("": it is named here) or a stream, or find that it is there as it is.
        It, and the LSN to wait for. ChannelError: 403, 404, 405, 406."""
        declared = self.table.declared
        queue, lsn = self.table.declare(
            name, durable=durable, exclusive=exclusive, auto_delete=auto_delete,
            arguments=arguments or {}, owner=owner, is_reserved_allowed=is_reserved_allowed,
        )  # fmt: skip
        if self.table.declared != declared:
            self.clockwork.expire_unused(queue.name, queue.arguments)
        return queue, lsn

    def prepare_queue(
        self, name: str, *, durable: bool = False, exclusive: bool = False,
        auto_delete: bool = False, arguments: dict[str, object] | None = None,
        again: Callable[[], None], failed: Callable[[Exception], None],
    ) -> bool:  # fmt: skip
        """Whether `declare_queue` has to wait for files of a new stream. Then they are made
        elsewhere, and `again` or `failed` is called in a later turn: `again` declares, from the
        beginning, for much may have changed. ChannelError: it would be refused."""
        making = self.table.prepare(
            name, durable=durable, exclusive=exclusive, auto_delete=auto_delete,
            arguments=arguments or {},
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

    def delete_queue(
        self, queue: Served, *, if_unused: bool = False, if_empty: bool = False,
        is_forced: bool = False,
    ) -> tuple[int, int]:  # fmt: skip
        """Delete a queue: how many messages were ready, and the LSN. is_forced: also if readers
        have messages of it leased. ChannelError 406."""
        if not queue.is_crashed:
            queue.serve()
        return self.table.delete(queue, if_unused=if_unused, if_empty=if_empty, is_forced=is_forced)

    def purge_queue(self, queue: Served) -> tuple[int, int]:
        """All ready messages die: how many, and the LSN. AMQPConnectionError 540: a stream."""
        queue.serve()
        return self.table.purge(queue)

    def owner_gone(self, owner: object) -> None:
        """A connection is no more: its exclusive queues are deleted at once."""
        self.table.owner_gone(owner)

    def consumer_gone(self, queue: Served) -> None:
        """A consumer of this queue has gone, or a reader's lease: an auto-delete queue goes with
        the last one."""
        queue.used_at_ms = self.clock.wall_ms()
        if (
            queue.is_auto_delete
            and not queue.consumers.count
            and not queue.is_deleted
            and not self.table.open_leases(queue.name)
        ):
            self.table.delete(queue)

    def _taker(self, name: str) -> Target | None:
        queue = self.served(name)
        if isinstance(queue, ServedStream):
            return queue.taker
        if not isinstance(queue, ServedQueue):
            return None
        self.clockwork.touch(queue)
        return queue.amq

    def _queue_failed(self, queue: Source, error: Exception) -> None:
        """A queue's own code has raised this: nothing that was known of it is so any more."""
        if isinstance(queue, ServedQueue):
            self.alerts.queue_gone(queue.name)
        self.restarts.failed(queue, error)

    def _ready(self, name: bytes) -> None:
        queue = self.table.served.get(text_of(name))
        if queue is not None:
            self.dispatch.mark(queue)

    # ---- exchanges and bindings ----------------------------------------------------------------

    def is_internal(self, exchange: str) -> bool:
        """Whether clients may not publish to it."""
        found = self.exchanges.get(exchange)
        return found is not None and found.internal

    def declare_exchange(
        self, name: str, type_name: str, *, durable: bool = False, auto_delete: bool = False,
        internal: bool = False, arguments: dict[str, object] | None = None,
    ) -> int:  # fmt: skip
        """See Topology.declare_exchange."""
        return self.topology.declare_exchange(
            name, type_name, durable=durable, auto_delete=auto_delete, internal=internal,
            arguments=arguments or {},
        )  # fmt: skip

    def check_exchange(self, name: str) -> Exchange:
        """The exchange. ChannelError: 404, 403 for the default one."""
        return self.topology.check_exchange(name)

    def delete_exchange(self, name: str, *, if_unused: bool = False) -> int:
        """See Topology.delete_exchange."""
        return self.topology.delete_exchange(name, if_unused=if_unused)

    def bind_queue(
        self, queue_name: str, exchange: str, key: str, arguments: dict[str, object] | None = None,
        owner: object | None = None,
    ) -> int:  # fmt: skip
        """Bind a queue. ChannelError: 403 (the default exchange), 404, 405, 406."""
        self.topology.check_exchange(exchange)
        queue = self.table.find_queue(queue_name, owner)
        return self.topology.bind(
            exchange, QUEUE, queue_name, key, arguments or {}, is_durable=queue.is_durable
        )

    def unbind_queue(
        self, queue_name: str, exchange: str, key: str, arguments: dict[str, object] | None = None,
        owner: object | None = None,
    ) -> int:  # fmt: skip
        """Take a binding away, if it is there. ChannelError: 403 (the default exchange), 405."""
        queue = self.served(queue_name)
        if queue is not None and exchange:
            self.table.check_access(queue, owner)
        return self.topology.unbind(exchange, QUEUE, queue_name, key, arguments or {})

    def bind_exchange(
        self, destination: str, source: str, key: str, arguments: dict[str, object] | None = None
    ) -> int:
        """Messages of `source` pass on to `destination`. ChannelError: 403, 404, 406."""
        return self.topology.bind_exchange(destination, source, key, arguments or {})

    def unbind_exchange(
        self, destination: str, source: str, key: str, arguments: dict[str, object] | None = None
    ) -> int:
        """Take such a binding away, if it is there. ChannelError 403: the default exchange."""
        return self.topology.unbind(source, "e", destination, key, arguments or {})

    # ---- time ----------------------------------------------------------------------------------

    @property
    def wake(self) -> Callable[[], None]:
        """What is called when a turn is wanted; the owner sets it."""
        return self.dispatch.wake

    @wake.setter
    def wake(self, call: Callable[[], None]) -> None:
        self.dispatch.woken_by(call)

    def turn(self) -> bool:
        """Deliver, write, answer: the end of an iteration of the owner's loop. True if there is
        more to do at once: call it again, and let others in first."""
        return self.dispatch.run()

    def completed(self) -> bool:
        """The file system has completed something. As `turn`, but for chores: several of these may
        come in one iteration of the loop."""
        self.engine.poll()
        return self.dispatch.run(is_between=True)

    def when_settled(self, lsn: int, mode: int, call: Callable[[], None]) -> None:
        """Call it once everything up to the LSN is settled in this mode: in a later turn, never
        from here."""
        self.dispatch.when_settled(lsn, mode, call)

    def call_at(self, monotonic_s: float, call: Callable[[], None]) -> None:
        """Call it in the first tick at or after this time of the monotonic clock."""
        self.clockwork.call_at(monotonic_s, call)

    def tick(self) -> float:
        """What the clock demands; in how many seconds to call it again. What became ready is
        delivered in a turn, for which `wake` is called."""
        engine = self.engine
        engine.tick()
        now_s = self.clock.monotonic()
        wall_ms = self.clock.wall_ms()
        self.dispatch.retry(now_s)
        has_more = self.clockwork.tick(wall_ms, now_s)
        for call in (
            self.streams.tick, self.leases.tick, self.alerts.tick, self._watch_unfinished,
            *self.on_tick,
        ):  # fmt: skip
            try:
                call(now_s)
            except Exception as error:  # noqa: BLE001 - it is reported
                self.dispatch.mistake("a tick", error)
        self._count_usage()
        has_more = self.monitor.tick(now_s) or has_more
        if self.monitor.rounds != self._rounds:
            self._rounds = self.monitor.rounds
            if self.rss is not None:
                self.rss.look(self.monitor.budget_bytes, self.monitor.counted_bytes, now_s)
            self._touch_those_in_ram()
        engine.flush()
        due_s = self.clockwork.next_s(wall_ms, now_s)
        return self._pace.next_s(engine, due_s, has_more=has_more)

    def _touch_those_in_ram(self) -> None:
        """Shares may have become smaller: who holds something is asked to page out."""
        for queue in self.table.served.values():
            if (
                isinstance(queue, ServedQueue)
                and not queue.is_crashed
                and queue.amq.backing.ram_bytes()
            ):
                self.clockwork.touch(queue)

    # ---- the end -------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop in order: queues, a checkpoint, the lock. After a failure, also of a queue that
        cannot stop in order, nothing is written: the next start reads the log."""
        self.alerts.flush()
        try:
            if self.engine.failed is None:
                for queue in self.table.served.values():
                    if isinstance(queue, ServedQueue) and not queue.is_crashed:
                        queue.amq.terminate()
                self.streams.terminate()
        except BaseException as error:
            self.engine.stop(error)
            raise
        finally:
            self.engine.close()

    def abandon(self) -> None:
        """As a crash would: nothing is written, files are closed, the lock is given back."""
        self.engine.stop(StoppedError("the vhost was abandoned"))
        self.engine.close()


def _bytes_first(holder: tuple[int, str, Peer]) -> int:
    return holder[0]
