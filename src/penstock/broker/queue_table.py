"""QueueTable: the queues of a vhost: declared, found, deleted, with all that goes along.

A durable queue of the directory is opened when it is first named or routed to, so ten thousand of
them start in a moment; `stored` has the names of those that nobody has opened yet. Streams stand
beside queues under their names, and are served from the start (stream_table.py). A queue that is
not durable, or exclusive, is known here alone: an exclusive one is deleted with the connection that
declared it, so nothing of it needs to be on disk, whatever it was declared as.

    flags of a stored queue: bit 0 exclusive (never written here; such a queue is deleted at the
    start), bit 1 auto-delete

A queue with a memory limit of its own that does not fit the budget at a start, where that is
strict, is kept down (`kept_down`, own_limits.py): opened as any other when it is named, and crashed
for all who want something of it, until there is room.

A queue of which a reader has messages leased (lease_desk.py) is deleted by force only, and neither
expires nor goes with its last consumer.

Deleting a queue takes its bindings along, and auto-delete exchanges that this leaves without any:
one record of the log for all of it. Its consumers are cancelled, whoever waits is woken.

Declaring returns the LSN to wait for before it is answered, 0 for nothing.

Not here: exchanges and bindings (topology.py), x-arguments (arguments.py), time (queue_clock.py),
permissions and the names of queues that a client leaves out (the channel's).
"""

import base64
import random
from collections.abc import Callable, Mapping
from typing import Final

from penstock.broker import refusals
from penstock.broker.arguments import (
    QUORUM,
    check_arguments,
    check_equivalent,
    check_stream_arguments,
    check_type,
    encode_arguments,
    type_of,
)
from penstock.broker.dispatch import Dispatch
from penstock.broker.queue_opening import QueueOpener
from penstock.broker.served_queue import Served, ServedQueue, not_counted
from penstock.broker.served_stream import ServedStream
from penstock.broker.stream_table import Making, StreamTable
from penstock.broker.topology import Topology
from penstock.clock import Clock
from penstock.errors import DiskFullError, OptionError
from penstock.queues import factory, own_limits
from penstock.queues.amq_queue import AMQQueue
from penstock.queues.budget import format_bytes
from penstock.queues.delays import MARK
from penstock.queues.memory_monitor import MemoryMonitor
from penstock.queues.queue_options import MAX_SIZE, QueueOptions
from penstock.queues.stream_options import STREAM
from penstock.storage.durability import DISK
from penstock.storage.engine import StorageEngine
from penstock.storage.leases import Lease
from penstock.storage.queue_index import QueueIndex
from penstock.storage.routing_table import DurableQueue
from penstock.storage.streams import STREAM_FLAG

EXCLUSIVE_FLAG: Final = 1
AUTO_DELETE_FLAG: Final = 2
NAME_BYTES_MAX: Final = 255
GENERATED: Final = "amq.gen-"
STORED_BYTES: Final = 2 << 10  # of each index of a queue that nobody has opened yet


class QueueTable:
    """Of one vhost. served: the open queues by name; stored: how many
    indexes each of the others has, by name.

    is_strict: queues' own memory limits beyond the budget are refused. check_new(name): refuses a
    queue that would be one too many, by an error. on_leased_deleted(name,
    messages by reader): a queue was deleted while they were leased."""

    def __init__(
        self, engine: StorageEngine, vhost: str, topology: Topology, opener: QueueOpener,
        streams: StreamTable, monitor: MemoryMonitor, dispatch: Dispatch, *, clock: Clock,
        rng: random.Random, is_strict: bool, check_new: Callable[[str], None] | None = None,
    ) -> None:  # fmt: skip
        self.served: dict[str, Served] = {}
        self._served_bytes: int = 0
        self.stored: dict[str, int] = {}
        self._stored_bytes: int = 0
        self.start_ms: int = clock.wall_ms()
        self.declared: int = 0  # how many were declared, deleted ones too
        self._engine = engine
        self._vhost = vhost
        self._topology = topology
        self._opener = opener
        self._streams = streams
        self._dispatch = dispatch
        self._monitor = monitor
        self._clock = clock
        self._rng = rng
        self._is_strict = is_strict
        self._check_new = check_new
        self._owned: dict[object, list[Served]] = {}
        self._limits: dict[str, int] = {}  # of stored queues: limits of their own
        self.kept_down: dict[str, str] = {}  # name -> why; opened or not
        self.on_leased_deleted: Callable[[str, dict[str, int]], None] = _not_told
        for queue in engine.routing.queues.values():
            if not queue.flags & STREAM_FLAG:
                self._add_stored(text_of(queue.name.partition(factory.SEPARATOR)[0]), 1)
        for stream in streams.stored():
            stream.used_at_ms = self.start_ms
            self._serve(stream)

    # ---- finding -------------------------------------------------------------------------------

    def has(self, name: str) -> bool:
        """Whether there is a queue of this name."""
        return name in self.served or name in self.stored

    def names(self) -> list[str]:
        """The names of all queues, sorted."""
        return sorted((*self.served, *self.stored))

    def find(self, name: str) -> Served | None:
        """The queue or stream of this name, opened if need be; None if there is none."""
        found = self.served.get(name)
        if found is None and name in self.stored:
            found = self._open(name)
        return found

    def _open(self, name: str) -> ServedQueue:
        at = bytes_of(name)
        arguments, options, flags = self._opener.stored(at)
        amq = self._opener.open(at, options)
        queue = ServedQueue(
            name, amq, is_durable=True, is_exclusive=bool(flags & EXCLUSIVE_FLAG),
            is_auto_delete=bool(flags & AUTO_DELETE_FLAG), arguments=arguments,
            dispatch=self._dispatch,
        )  # fmt: skip
        queue.used_at_ms = self.start_ms
        self._serve(queue)
        self._stored_bytes -= STORED_BYTES * self.stored.pop(name)
        why = self.kept_down.get(name)
        if why is None:
            self._limits.pop(name, None)
        else:
            self._monitor.unregister(amq.backing)
            queue.is_crashed = True
            queue.why = why
        return queue

    def _serve(self, queue: Served) -> None:
        self.served[queue.name] = queue
        self._served_bytes += queue.held_bytes
        queue.on_parts = self._add_bytes

    def _add_bytes(self, count: int) -> None:
        self._served_bytes += count

    def _uncount(self, queue: Served) -> None:
        self._served_bytes -= queue.held_bytes
        queue.on_parts = not_counted

    def _add_stored(self, name: str, parts: int) -> None:
        self.stored[name] = self.stored.get(name, 0) + parts
        self._stored_bytes += STORED_BYTES * parts

    @property
    def count(self) -> int:
        """How many queues and streams there are, opened or not."""
        return len(self.served) + len(self.stored)

    @property
    def held_bytes(self) -> int:
        """What they take in RAM without their messages, about."""
        return self._served_bytes + self._stored_bytes

    def called(self, name: str) -> str:
        """A queue, for people."""
        return refusals.called("queue", name, self._vhost)

    def find_queue(
        self, name: str, owner: object | None = None, *, is_crashed_allowed: bool = False
    ) -> Served:
        """The queue or stream, if this connection may have it. ChannelError: 404 (none, crashed),
        405 (exclusive)."""
        queue = self.find(name)
        if queue is None:
            raise refusals.not_found(self.called(name))
        self.check_access(queue, owner)
        if queue.is_crashed and not is_crashed_allowed:
            raise refusals.crashed(self.called(name))
        return queue

    def of_messages(self, queue: Served, asked: str) -> ServedQueue:
        """The same, if messages can be taken out of it. AMQPConnectionError 540: it is a stream,
        and `asked` is not for streams."""
        if not isinstance(queue, ServedQueue):
            raise refusals.not_for_streams(asked, self.called(queue.name))
        return queue

    def check_access(self, queue: Served, owner: object | None) -> None:
        """ChannelError 405 if the queue is another connection's."""
        if queue.is_exclusive and queue.owner is not owner:
            raise refusals.locked(self.called(queue.name))

    def name_of_servers(self, arguments: Mapping[str, object]) -> str:
        """A name that no queue has, for a queue with these arguments. ChannelError 406: a stream or
        a quorum queue, whose name its users must know."""
        kind = type_of(arguments)
        if kind in (QUORUM, STREAM):
            raise refusals.precondition_failed(
                f"Cannot declare a server-named queue for type rabbit_{kind}_queue"
            )
        while True:
            name = GENERATED + base64.urlsafe_b64encode(self._rng.randbytes(16))[:22].decode()
            if not self.has(name):
                return name

    # ---- declaring -----------------------------------------------------------------------------

    def declare(
        self, name: str, *, durable: bool, exclusive: bool, auto_delete: bool,
        arguments: dict[str, object], owner: object | None, is_reserved_allowed: bool = False,
    ) -> tuple[Served, int]:  # fmt: skip
        """Declare a queue, "" for one that is named here, or find that it is there as it is.
        ChannelError: 403 (reserved), 404 (crashed), 405 (exclusive), 406 (another one, arguments).
        """
        durable = durable and not exclusive  # it ends with its connection
        is_stream = type_of(arguments) == STREAM
        if not name:
            name = self.name_of_servers(arguments)
        elif name.startswith("amq.") and not is_reserved_allowed:
            raise refusals.reserved("queue", name)
        what = self.called(name)
        queue = self.find(name)
        if queue is not None:
            self._check_same(queue, durable, exclusive, auto_delete, arguments, owner)
            queue.used_at_ms = self._clock.wall_ms()
            return queue, 0
        self._check_may(name)
        check_type(what, arguments, durable=durable, exclusive=exclusive, auto_delete=auto_delete)
        try:
            if is_stream:
                return self._make_stream(what, name, arguments), self._engine.last_lsn
            options = check_arguments(what, arguments)
            self._check_memory(what, options, arguments)
            queue = self._make(name, options, arguments, durable, exclusive, auto_delete, owner)
        except DiskFullError as error:
            raise refusals.no_space(what, error) from error
        return queue, self._engine.last_lsn if durable else 0

    def _check_may(self, name: str) -> None:
        """ChannelError 406 for a name that cannot be, and for one queue too many."""
        if "\0" in name or len(bytes_of(name)) > NAME_BYTES_MAX:
            raise refusals.precondition_failed(
                f"queue name {name!r}: expected at most {NAME_BYTES_MAX} bytes and no NUL"
            )
        if self._check_new is not None:
            self._check_new(name)

    def prepare(
        self, name: str, *, durable: bool, exclusive: bool, auto_delete: bool,
        arguments: dict[str, object],
    ) -> Making | None:  # fmt: skip
        """What a declare of a new stream has to wait for, so that it need not wait for the disk;
        None: nothing. ChannelError 406: the declare would be refused."""
        if type_of(arguments) != STREAM or not name or self.has(name):
            return None
        self._check_may(name)
        what = self.called(name)
        check_type(
            what, arguments, durable=durable and not exclusive, exclusive=exclusive,
            auto_delete=auto_delete,
        )  # fmt: skip
        return self._streams.prepare(bytes_of(name), check_stream_arguments(what, arguments))

    def _make_stream(self, what: str, name: str, arguments: dict[str, object]) -> ServedStream:
        options = check_stream_arguments(what, arguments)
        stream = self._streams.declare(bytes_of(name), arguments, options)
        stream.used_at_ms = self._clock.wall_ms()
        self._serve(stream)
        self.declared += 1
        self._topology.router.queue_added()
        return stream

    def _check_same(
        self, queue: Served, durable: bool, exclusive: bool, auto_delete: bool,
        arguments: dict[str, object], owner: object | None,
    ) -> None:  # fmt: skip
        what = self.called(queue.name)
        self.check_access(queue, owner)
        if queue.is_exclusive != exclusive:
            raise refusals.locked(what)
        refusals.check_same("durable", what, durable, queue.is_durable)
        refusals.check_same("auto_delete", what, auto_delete, queue.is_auto_delete)
        check_equivalent(what, arguments, queue.arguments)
        if queue.is_crashed:
            raise refusals.crashed(what)

    def _make(
        self, name: str, options: QueueOptions, arguments: dict[str, object], durable: bool,
        exclusive: bool, auto_delete: bool, owner: object | None,
    ) -> ServedQueue:  # fmt: skip
        at = bytes_of(name)
        try:
            amq = self._opener.open(
                at, options, arguments=encode_arguments(arguments),
                flags=AUTO_DELETE_FLAG if auto_delete else 0,
                is_durable=durable,
            )  # fmt: skip
        except BaseException:
            if factory.priorities_of(self._engine, at) is not None:
                self._add_stored(
                    name, options.priorities + 1
                )  # it is declared, and can be opened another time
            raise
        queue = ServedQueue(
            name, amq, is_durable=durable, is_exclusive=exclusive, is_auto_delete=auto_delete,
            arguments=arguments, owner=owner if exclusive else None, dispatch=self._dispatch,
        )  # fmt: skip
        queue.used_at_ms = self._clock.wall_ms()
        self._serve(queue)
        self.declared += 1
        if exclusive:
            self._owned.setdefault(owner, []).append(queue)
        self._topology.router.queue_added()
        return queue

    def check_limits(self) -> None:
        """At the start: whether the queues' own memory limits fit the budget together. A warning;
        if that is strict, those that do not fit are kept down."""
        declared = self._engine.routing.queues.values()
        for queue in sorted(declared, key=_number):
            if own_limits.may_have_one(queue.arguments) and not queue.flags & STREAM_FLAG:
                at = queue.name.partition(factory.SEPARATOR)[0]
                limit = own_limits.own_limit(self._opener.stored(at)[1])
                if limit:
                    self._limits[text_of(at)] = limit
        budget_bytes = self._monitor.budget_bytes
        warning = own_limits.warning(self._limits, budget_bytes)
        if warning is not None:
            self._opener.warn(warning)
        if not self._is_strict:
            return
        for name, left_bytes in own_limits.beyond(self._limits, budget_bytes).items():
            given = format_bytes(self._limits[name])
            expected = own_limits.expected(left_bytes, budget_bytes)
            self.kept_down[name] = f"its own memory limit is {given}, expected {expected}"
        for name in list(self.kept_down)[: own_limits.SHOWN_MAX]:
            why = self.kept_down[name]
            self._opener.warn(f"{self.called(name)} stays down: {why} (strict)")
        if len(self.kept_down) > own_limits.SHOWN_MAX:
            more = len(self.kept_down) - own_limits.SHOWN_MAX
            self._opener.warn(f"{more} more queues stay down, list_queues name why has all")

    def look_at_kept_down(self) -> None:
        """There may be room for queues that are kept down: more memory, or a queue less."""
        if not self.kept_down:
            return
        used = self._unopened_limits()
        for queue in self.served.values():
            if isinstance(queue, ServedQueue) and queue.name not in self.kept_down:
                used += own_limits.own_limit(queue.amq.options)
        for name in list(self.kept_down):
            if used + self._limits[name] <= self._monitor.budget_bytes:
                used += self._limits[name]
                self._start(name)

    def _start(self, name: str) -> None:
        """One that was kept down is a queue like any other."""
        del self.kept_down[name]
        queue = self.served.get(name)
        if isinstance(queue, ServedQueue):
            del self._limits[name]
            queue.is_crashed = False
            queue.why = ""
            self._opener.register(queue.amq.backing, queue.amq.options)
            self._dispatch.mark(queue)
        self._topology.router.queue_added()
        self._opener.tell("queue_started", f"{self.called(name)} starts: there is room")

    def _unopened_limits(self) -> int:
        """Bytes of the limits of queues that nobody has opened yet, and that are not kept down."""
        return sum(n for name, n in self._limits.items() if name not in self.kept_down)

    def _check_memory(
        self, what: str, options: QueueOptions, arguments: Mapping[str, object]
    ) -> None:
        """Whether the queues' own limits fit the budget; ChannelError 406 if that is strict."""
        most = options.max_memory_bytes
        if most is None:
            return
        try:
            warning = self._monitor.check_limits(
                most, strict=self._is_strict, others_bytes=self._unopened_limits()
            )
        except OptionError as error:
            name = MAX_SIZE if MAX_SIZE in arguments else "x-queue-max-memory-bytes"
            raise refusals.precondition_failed(
                f"invalid arg '{name}' for {what}: received {error.given}, "
                f"expected {error.expected}"
            ) from None
        if warning is not None:
            self._opener.warn(f"{what}: {warning}")

    # ---- deleting ------------------------------------------------------------------------------

    def delete(
        self, queue: Served, *, if_unused: bool = False, if_empty: bool = False,
        is_forced: bool = False,
    ) -> tuple[int, int]:  # fmt: skip
        """Delete a queue with all that it holds. How many were ready, and the LSN. ChannelError
        406: it is in use, not empty, or messages are leased and it is not forced. A queue that is
        deleted already: nothing happens."""
        if queue.is_deleted:
            return 0, 0
        what = self.called(queue.name)
        if if_unused and queue.consumers.count:
            raise refusals.precondition_failed(f"{what} in use")
        ready = 0 if queue.is_crashed else queue.len()
        if if_empty and ready:
            raise refusals.precondition_failed(f"{what} not empty")
        leased = self.open_leases(queue.name)
        if leased and not is_forced:
            raise refusals.leased(what, leased)
        doomed = self._topology.doomed([], [queue.name])
        with self._engine.one_record(DISK) as one:
            self._log_deleted(queue)
            self._topology.log_deleted(doomed)
        self._forget(queue)
        self._topology.router.remove_queue(queue.name)
        self._topology.forget(doomed)
        queue.cancel_all()
        queue.wake_waiters()
        if leased:
            self.on_leased_deleted(queue.name, leased)
        return ready, one.lsn

    def _log_deleted(self, queue: Served) -> None:
        """The queue goes from the engine; inside `one_record`."""
        if isinstance(queue, ServedStream):
            if queue.options.partitions:
                self._topology.log_unbound(queue.name)
            self._streams.log_deleted(queue)
            return
        assert isinstance(queue, ServedQueue), "there is no third kind"
        amq = queue.amq
        if amq.is_durable and amq.options.priorities:  # its parts have other names than its own
            self._topology.log_unbound(queue.name)
        if queue.is_crashed and queue.name not in self.kept_down:
            self._engine.delete_queues(indexes_of(self._engine, amq.name))
        else:
            amq.delete(DISK, force=True)  # whether it may was asked

    def _forget(self, queue: Served) -> None:
        queue.is_deleted = True
        if isinstance(queue, ServedQueue):
            self._opener.forget(queue.amq)
        del self.served[queue.name]
        self._uncount(queue)
        self._limits.pop(queue.name, None)
        self.kept_down.pop(queue.name, None)
        self.look_at_kept_down()
        if queue.is_exclusive and (owned := self._owned.get(queue.owner)) is not None:
            owned.remove(queue)
            if not owned:
                del self._owned[queue.owner]

    def owner_gone(self, owner: object) -> None:
        """A connection is no more: its exclusive queues go."""
        for queue in list(self._owned.get(owner, ())):
            self.delete(queue)

    def delete_leftovers(self) -> None:
        """At the start: stored queues that were exclusive have nobody any more."""
        for name in list(self.stored):
            if self._opener.stored_flags(bytes_of(name)) & EXCLUSIVE_FLAG:
                self.delete(self._open(name))

    def replace(self, queue: ServedQueue, amq: AMQQueue) -> ServedQueue:
        """Another life of the same queue, with another AMQQueue; the old one is not known any
        more."""
        fresh = ServedQueue(
            queue.name, amq, is_durable=queue.is_durable, is_exclusive=queue.is_exclusive,
            is_auto_delete=queue.is_auto_delete, arguments=queue.arguments, owner=queue.owner,
            dispatch=self._dispatch,
        )  # fmt: skip
        fresh.used_at_ms = self._clock.wall_ms()
        self._uncount(queue)
        self._serve(fresh)
        owned = self._owned.get(queue.owner)
        if queue.is_exclusive and owned is not None:
            owned[owned.index(queue)] = fresh
        self._topology.router.queue_added()
        return fresh

    # ---- leases --------------------------------------------------------------------------------

    def leased_names(self) -> list[str]:
        """The names of the queues of which readers are known, oldest first."""
        queues = self._engine.queues
        return [
            text_of(queues[number].name.partition(factory.SEPARATOR)[0])
            for number in self._engine.lease_table.by_queue
        ]

    def leases(self, name: str) -> dict[str, Lease]:
        """What readers have of the queue of this name, by reader; not to be changed."""
        known = self._engine.lease_table
        if not known.by_queue:
            return {}
        at = bytes_of(name)
        queues = self._engine.routing.queues
        first = queues.get(at) or queues.get(factory.part_names(at, 1)[0])
        return {} if first is None else known.of(first.number)

    def open_leases(self, name: str) -> dict[str, int]:
        """How many messages each of its readers has, of those that have some."""
        return {reader: lease.count for reader, lease in self.leases(name).items() if lease.count}

    # ---- at the start --------------------------------------------------------------------------

    def open_busy(self) -> list[ServedQueue]:
        """Open those of the stored queues in which something will be due: expiring or delayed
        messages, an alert on age. The others wait until they are named."""
        busy: dict[str, None] = {}
        for index in self._engine.queues.values():
            base, mark, _ = index.name.partition(factory.SEPARATOR)
            is_delay = mark and index.name.startswith(base + MARK)
            if is_delay or any(s.expiry_ms for s in index.segments.values()):
                busy[text_of(base)] = None
        for queue in self._engine.routing.queues.values():
            if b'"x-alert-age-up"' in queue.arguments:
                busy[text_of(queue.name.partition(factory.SEPARATOR)[0])] = None
        return [self._open(name) for name in busy if name in self.stored]

    def expiring(self) -> list[tuple[str, dict[str, object]]]:
        """The durable queues that go when nobody uses them, with their arguments."""
        found: list[tuple[str, dict[str, object]]] = []
        for queue in self._engine.routing.queues.values():
            if b'"x-expires"' in queue.arguments:
                name = queue.name.partition(factory.SEPARATOR)[0]
                found.append((text_of(name), self._opener.stored_arguments(name)))
        return found

    def stored_facts(self, name: str) -> tuple[dict[str, object], bool]:
        """Arguments of a queue that nobody has opened yet, and whether it is auto-delete."""
        at = bytes_of(name)
        is_auto_delete = bool(self._opener.stored_flags(at) & AUTO_DELETE_FLAG)
        return self._opener.stored_arguments(at), is_auto_delete

    # ---- purging -------------------------------------------------------------------------------

    def purge(self, queue: Served) -> tuple[int, int]:
        """All ready messages die: how many, and the LSN. AMQPConnectionError 540: a stream."""
        queue = self.of_messages(queue, "queue.purge")
        before = self._engine.last_lsn
        n = queue.amq.purge(DISK)
        lsn = self._engine.last_lsn
        return n, lsn if lsn != before else 0


def indexes_of(engine: StorageEngine, name: bytes) -> list[QueueIndex]:
    """The indexes of a queue, all its parts, delayed messages too, durable or not."""
    start = name + factory.SEPARATOR
    return [
        index
        for index in engine.queues.values()
        if index.name == name or index.name.startswith(start)
    ]


def _not_told(_name: str, _leases: dict[str, int]) -> None:
    """Nobody has asked for it."""


def bytes_of(name: str) -> bytes:
    """A name as the storage has it."""
    return name.encode("utf-8", "surrogateescape")


def text_of(name: bytes) -> str:
    """A name as everything else has it."""
    return name.decode("utf-8", "surrogateescape")


def _number(queue: DurableQueue) -> int:
    return queue.number
