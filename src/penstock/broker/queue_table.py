"""The queues of a vhost: opened, declared, found, deleted; their timers; restart after an error.

**QueueTable.** The queues of the vhost's QueueSet, each with its consumers (BrokerQueue). Streams
are in the table under their names too, and open from the start (BrokerStreamTable). A queue that is
not durable, or exclusive, exists in RAM alone: an exclusive queue is deleted with the connection
that declared it, so nothing of it is on disk, whatever it was declared as.

    flags of a stored queue: bit 0 exclusive (never written here; such a queue is deleted at the
    start), bit 1 auto-delete, bit 2 its delivery is paused

A queue whose own memory limit does not fit the budget at a strict start is kept down (`kept_down`,
queue_set.py): it is opened as any other when it is named, and crashed for everybody, until there
is room. A queue of which a reader has messages leased (leases.py) is deleted by force only, and
neither expires nor goes with its last consumer. Deleting a queue deletes its bindings, and
auto-delete exchanges that have none afterwards: one record of the log for all of it. Declaring
returns the LSN to wait for before it is answered, 0 for none.

A stored queue whose arguments cannot be understood (a later version wrote them) is opened with
none, and an event is reported: its messages are worth more than its options.

**QueueTimers.** A queue with x-expires is deleted once nobody has used it for so many ms: no
consumer, no get, no declare, no messages leased. For a queue that nobody has named since the start,
the time counts from the start; such a queue is not opened for that. Calls that are due are here
too. An error goes to `Dispatch.internal_error`, and the tick continues with the others.

**QueueRestarts.** An error in one queue's own code ends that queue's life in RAM, and nothing else.
What a queue holds is known twice: by its backing queue, which the error may have interrupted
anywhere, and by its QueueIndex, which the engine keeps and which has for every seq whether it is
alive. So a durable queue starts again from its index, as it would after a restart of the vhost:

    consumers are cancelled and their clients notified; waiters are woken
    everything so far is synced: nothing that arrives now has to be held
    live entries that are in RAM and log alone are taken from the old Holder
    every other one must be in the checkpoint's section or on its slot: this is looked up, for what
    came after the last cut (what was before it the checkpoint has put there), in `.qi` files
    a new AMQQueue takes over the indexes: all messages are ready, and are redelivered

If an entry is nowhere (the queue held it when the error occurred), or a checkpoint is under way and
has not finished this queue, the queue's RAM cannot be trusted: the engine stops, and the vhost is
opened again from disk, where everything is. Transient messages are lost, as in RabbitMQ; a queue
that is not durable starts empty. The old BrokerQueue is `is_deleted` from then on, so a channel
that settles one of its deliveries settles nothing. After five failures within ten seconds the new
queue is `is_crashed`: it can be deleted, and then declared again.
"""

import base64
import heapq
import random
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from penstock.access.permissions import Identity
from penstock.broker import refusals
from penstock.broker.arguments import (
    CACHE_SIZE_DEFAULT,
    EXPIRES,
    check_arguments,
    check_equivalent,
    check_stream_arguments,
    check_type,
    decode_arguments,
    encode_arguments,
    type_of,
)
from penstock.broker.background_tasks import AGAIN, DONE, BackgroundTask
from penstock.broker.broker_queue import (
    BrokerQueue,
    Consumer,
    QueueOrStream,
    lengths_of,
    not_counted,
)
from penstock.broker.broker_stream import BrokerStream, BrokerStreamTable, PreparedStream
from penstock.broker.dispatch import Dispatch, Source
from penstock.broker.policies import Applied, Policies
from penstock.broker.rates import LENGTHS, QUEUE, RateSource
from penstock.broker.topology import QUEUE as QUEUE_END
from penstock.broker.topology import Topology, Unbinding, store_creator
from penstock.clock import Clock
from penstock.counts import VHostCounts
from penstock.errors import CorruptionError, DiskFullError, OptionError, StoppedError
from penstock.message import Entry
from penstock.queues import priority_queue
from penstock.queues.amq_queue import AMQQueue
from penstock.queues.delays import MARK
from penstock.queues.queue_options import BACKING, MAX_SIZE, QUORUM, QueueOptions
from penstock.queues.queue_set import SHOWN_MAX, STORED_BYTES, QueueSet, bytes_of, text_of
from penstock.queues.stream_options import STREAM, StreamOptions
from penstock.queues.thresholds import thresholds_of
from penstock.routing.exchange_types import keys_bytes
from penstock.storage.engine import StorageEngine
from penstock.storage.files.durability import DISK
from penstock.storage.index import routing_table
from penstock.storage.index.leases import Lease
from penstock.storage.index.queue_index import DictHolder, QueueIndex

EXCLUSIVE_FLAG: Final = 1
AUTO_DELETE_FLAG: Final = 2
PAUSED_FLAG: Final = 4
NAME_BYTES_MAX: Final = 255
GENERATED: Final = "amq.gen-"
LENGTH_OF: Final[Mapping[str, Callable[[QueueOrStream], int]]] = {
    "messages_ready": lambda queue: queue.len(), "messages": lambda queue: queue.depth()
}  # fmt: skip

NEVER: Final = -1  # a stamp before all others
GONE_MAX: Final = 4096  # names of deleted queues that are remembered
LOOK_SLICE: Final = 256  # queues between two yields
CANCEL_SLICE: Final = 1024  # consumers of a queue that is deleted
DELETE_STEPS: Final = 32  # of a queue
ENDED_STEPS: Final = 1 << 11  # of queues that end together, in one turn: some milliseconds


class QueueChanges:
    """The names of queues in the order of their last changes. Whoever keeps something of each queue
    (rates, an order, the text of metrics) remembers the stamp of its last look, and asks `since`
    for the names that may have changed after it. A queue is noticed where something happens in it
    (Dispatch.mark, QueueSet.tick), once in a tick however many messages pass, and where it is
    declared, opened, replaced or deleted. Streams are not: they are few enough to be looked at each
    time."""

    def __init__(self, dispatch: Dispatch) -> None:
        self._dispatch = dispatch
        self._stamps: dict[str, int] = {}  # the newest last
        self._last: int = 0
        self._gone: set[str] = set()
        self._forgotten: int = 0  # what was deleted up to this stamp is not known any more

    def note(self, name: str, *, is_gone: bool = False) -> None:
        """Note that a queue has changed, or was deleted."""
        self._last += 1
        self._stamps.pop(name, None)
        self._stamps[name] = self._last
        if not is_gone:
            self._gone.discard(name)
            return
        self._gone.add(name)
        if len(self._gone) > GONE_MAX:
            for one in self._gone:
                del self._stamps[one]
            self._gone.clear()
            self._forgotten = self._last

    def stamp(self) -> int:
        """Return the stamp of this moment: `since` it, nothing has changed."""
        dispatch = self._dispatch
        changed: list[Any] = [*dispatch.changed, *dispatch.touched]  # only queues are touched
        dispatch.changed.clear()
        for queue in changed:
            if not queue.is_deleted:
                self.note(queue.name)
        return self._last

    def since(self, stamp: int) -> list[str] | None:
        """Return the names of queues that may have changed after the stamp, also of deleted ones.
        None: it is too old, and any may have changed."""
        self.stamp()
        if stamp < self._forgotten:
            return None
        found: list[str] = []
        for name, at in reversed(self._stamps.items()):
            if at <= stamp:
                break
            found.append(name)
        return found


class KeptNumber:
    """A number of each queue, of those for which it is not 0, and of all together. What has changed
    is looked at when somebody asks.

    number(name): of the queue or stream now, 0 if there is none. all_names, streams: the names of
    all, and of streams.
    """

    def __init__(
        self, changes: QueueChanges, number: Callable[[str], int],
        all_names: Callable[[], Iterable[str]], streams: Callable[[], Iterable[str]],
    ) -> None:  # fmt: skip
        self.of: dict[str, int] = {}
        self.total: int = 0
        self._changes = changes
        self._number = number
        self._all_names = all_names
        self._streams = streams
        self._stamp: int = NEVER

    def update(self) -> Generator[None, None, None]:
        """Bring it up to date; others may have their turn at each yield."""
        stamp = self._changes.stamp()
        changed = self._changes.since(self._stamp)
        names = (*self.of, *self._all_names()) if changed is None else (*changed, *self._streams())
        for n, name in enumerate(names, 1):
            number = self._number(name)
            self.total += number - self.of.pop(name, 0)
            if number:
                self.of[name] = number
            if n % LOOK_SLICE == 0:
                yield
        self._stamp = stamp


class QueueTable:
    """The queues of one vhost. served: open queues and all streams by name; `queue_set` has the
    stored queues, too.

    check_new(name, bytes of its keys, user): raises an error for a queue too many. count(user,
    bytes): called with the RAM that a queue takes, and with what it frees. on_event: warning,
    queue_started. policies: join the queues' own arguments.
    on_deleted(name): an open queue was deleted. on_leased_deleted(name, messages by reader): a
    queue was deleted while they were leased.
    """

    def __init__(
        self, queue_set: QueueSet[BrokerQueue], vhost: str, topology: Topology,
        streams: BrokerStreamTable, dispatch: Dispatch, *, clock: Clock, rng: random.Random,
        check_new: Callable[[str, int, Identity | None], None],
        on_event: Callable[[str, str], None], on_deleted: Callable[[str], None],
        count: Callable[[str, int], None], policies: Policies,
    ) -> None:  # fmt: skip
        self.served: dict[str, QueueOrStream] = {}
        # on_queue(queue, is_new): it was declared or deleted.
        self.on_queue: Callable[[QueueOrStream, bool], None] | None = None
        self._served_bytes: int = 0
        self.changes: QueueChanges = QueueChanges(dispatch)
        self.began_us: int = clock.wall_us()  # stamps of `changes` count from then
        self._kept: dict[str, KeptNumber] = {}
        self.start_s: float = clock.monotonic()
        self.counts: VHostCounts = dispatch.counts
        self.engine: StorageEngine = queue_set.engine
        self._queue_set = queue_set
        self._vhost = vhost
        self._topology = topology
        self._streams = streams
        self._dispatch = dispatch
        self.clock: Clock = clock
        self._rng = rng
        self._check_new = check_new
        self._count_of = count
        self._on_event = on_event
        self._on_deleted = on_deleted
        self._policies = policies
        self._owned: dict[object, dict[QueueOrStream, None]] = {}
        self.ended: EndedQueues | None = None  # None: the vhost is being opened
        # call_at(monotonic s, call): QueueTimers.call_at, once the vhost is open.
        self.call_at: Callable[[float, Callable[[], None]], None] = _call_never
        self._names: list[str] = []  # sorted, since somebody has asked for them
        self._are_names_lent: bool = False
        self.kept_down: dict[str, str] = queue_set.kept_down  # name -> why; opened or not
        self.on_leased_deleted: Callable[[str, dict[str, int]], None] = _ignore_leased
        # Of queues that are not open: who has declared them, and the bytes that count for them.
        self._stored_counts: dict[str, tuple[str, int]] = {}
        for name, parts in queue_set.stored.items():
            creator = self.creator_of(name)
            if creator:
                self._stored_counts[name] = creator, STORED_BYTES * parts
                self._count_of(creator, STORED_BYTES * parts)
        for stream in streams.stored():
            stream.used_at_s = self.start_s
            if not policies.is_empty:
                self._apply_to_stream(stream)
            stream.creator = self._stored_creator(stream.parts[0].name)
            self._serve(stream)

    def creator_of(self, name: str) -> str:
        """Return who has declared a stored queue, "" if that is not known."""
        queues, at = self.engine.routing.queues, bytes_of(name)
        first = at if at in queues else priority_queue.part_names(at, 1)[0]
        return self._stored_creator(first)

    def _stored_creator(self, first_part: bytes) -> str:
        creators = self.engine.routing.creators
        return text_of(creators.get(routing_table.queue_key(first_part), b""))

    # ---- finding -------------------------------------------------------------------------------

    def has(self, name: str) -> bool:
        """Return whether there is a queue of this name."""
        queue = self.served.get(name)
        return name in self._queue_set.stored if queue is None else not queue.is_ended

    def names(self) -> list[str]:
        """Return the names of all queues, sorted. Nobody changes the list."""
        if len(self._names) != self.count:
            self._names = sorted((*self.served, *self._queue_set.stored))
        self._are_names_lent = True
        return self._names

    def _change_names(self, name: str, *, is_new: bool) -> None:
        """Keep the sorted names, of which lists may have the last ones."""
        if self._are_names_lent:
            self._names = self._names.copy()
            self._are_names_lent = False
        at = bisect_left(self._names, name)
        if is_new:
            self._names.insert(at, name)
        elif self._names[at : at + 1] == [name]:
            del self._names[at]

    def kept(self, column: str, number: Callable[[QueueOrStream], int]) -> KeptNumber:
        """Return the number of each queue that is in this column, to be brought up to date; the
        caller has the same function each time."""
        found = self._kept.get(column)
        if found is None:
            of_name = partial(self._number_of, column, number)
            found = self._kept[column] = KeptNumber(
                self.changes, of_name, self.names, self.stream_names
            )
        return found

    def _number_of(self, column: str, number: Callable[[QueueOrStream], int], name: str) -> int:
        queue = self.served.get(name)
        if queue is not None:
            return 0 if queue.is_deleted or queue.is_crashed else number(queue)
        if column not in LENGTHS or name not in self._queue_set.stored:
            return 0
        own = [one for one in self._queue_set.stored_indexes(name) if MARK not in one.name]
        depth, leased = sum(one.count for one in own), sum(one.leased.count for one in own)
        return lengths_of(depth - leased, depth)[column]

    def stream_names(self) -> list[str]:
        """Return the names of all streams."""
        return [stream.name for stream in self._streams.all()]

    def lengths(self) -> Generator[None, None, dict[str, int]]:
        """Return how many messages all queues have together, by the names of RabbitMQ's columns;
        others may have their turn at each yield."""
        ready, depth = (self.kept(name, number) for name, number in LENGTH_OF.items())
        yield from ready.update()
        yield from depth.update()
        return lengths_of(ready.total, depth.total)

    def is_stored(self, name: str) -> bool:
        """Return whether there is a queue of this name that is not open."""
        return name in self._queue_set.stored

    def find(self, name: str) -> QueueOrStream | None:
        """Return the queue or stream of this name, opening it if necessary; None if there is
        none."""
        queue = self.served.get(name)
        if queue is None:
            return self._queue_set.find(name)
        return None if queue.is_ended else queue

    def usable(self, name: str) -> QueueOrStream | None:
        """Return the queue or stream of this name as `find` does; None if it has crashed."""
        queue = self.find(name)
        return None if queue is None or queue.is_crashed else queue

    def stored(self, name: bytes) -> tuple[dict[str, object], QueueOptions, int]:
        """Return arguments, options and flags of a durable queue of the directory; none and a
        warning if they cannot be understood. UnknownQueueError."""
        data, flags = priority_queue.stored(self.engine, name)
        try:
            arguments = decode_arguments(data)
            own = QueueOptions.from_arguments(arguments)
            return arguments, self._policies.queue_options(text_of(name), arguments, own), flags
        except (OptionError, ValueError) as error:
            text = name.decode("utf-8", "replace")
            self._on_event("warning", f"queue {text!r}: its arguments are left out: {error}")
        priorities = priority_queue.priorities_of(self.engine, name) or 0
        own = QueueOptions(priorities=priorities)
        return {}, self._policies.queue_options(text_of(name), {}, own), flags

    def load(self, name: str) -> BrokerQueue:
        """Open a stored queue, for the set of queues."""
        at = bytes_of(name)
        arguments, options, flags = self.stored(at)
        queue = BrokerQueue(
            name, self._queue_set.open(at, options), is_durable=True,
            is_exclusive=bool(flags & EXCLUSIVE_FLAG),
            is_auto_delete=bool(flags & AUTO_DELETE_FLAG), arguments=arguments,
            dispatch=self._dispatch,
        )  # fmt: skip
        queue.consumers.pause(is_paused=bool(flags & PAUSED_FLAG))
        queue.used_at_s = self.start_s
        queue.creator, counted = self._stored_counts.pop(name, ("", 0))
        if counted:
            self._count_of(queue.creator, -counted)
        self._serve(queue)
        why = self.kept_down.get(name)
        if why is not None:
            self._queue_set.monitor.unregister(queue.amq.backing)
            queue.is_crashed = True
            queue.why = why
        return queue

    def _serve(self, queue: QueueOrStream) -> None:
        self.served[queue.name] = queue
        self.changes.note(queue.name)
        queue.on_parts = partial(self._add_bytes, queue.creator)
        queue.on_parts(queue.held_bytes)
        if isinstance(queue, BrokerStream):
            queue.count_readers(self._add_bytes)

    def _add_bytes(self, creator: str, count: int) -> None:
        self._served_bytes += count
        self._count_of(creator, count)

    def _uncount(self, queue: QueueOrStream) -> None:
        self._add_bytes(queue.creator, -queue.held_bytes)
        queue.on_parts = not_counted
        if isinstance(queue, BrokerStream):
            queue.forget_readers()

    @property
    def count(self) -> int:
        """Return how many queues and streams there are, opened or not."""
        return len(self.served) + len(self._queue_set.stored)

    @property
    def held_bytes(self) -> int:
        """Return about how many bytes of RAM they take without their messages."""
        return self._served_bytes + self._queue_set.stored_bytes

    def called(self, name: str) -> str:
        """Return how errors name a queue."""
        return refusals.called("queue", name, self._vhost)

    def find_queue(
        self, name: str, owner: object | None = None, *, is_crashed_allowed: bool = False
    ) -> QueueOrStream:
        """Return the queue or stream, if the connection `owner` may use it. ChannelError: 404
        (none; crashed, unless that is allowed), 405 (exclusive to another connection)."""
        queue = self.find(name)
        if queue is None:
            raise refusals.not_found(self.called(name))
        self.check_access(queue, owner)
        if queue.is_crashed and not is_crashed_allowed:
            raise refusals.crashed(self.called(name))
        return queue

    def find_messages(self, name: str, owner: object | None, asked: str) -> BrokerQueue:
        """Return a queue as `find_queue` does. AMQPConnectionError 540: it is a stream, and streams
        do not support `asked`."""
        return self._queue_only(self.find_queue(name, owner), asked)

    def _queue_only(self, queue: QueueOrStream, asked: str) -> BrokerQueue:
        if not isinstance(queue, BrokerQueue):
            raise refusals.not_for_streams(asked, self.called(queue.name))
        return queue

    def check_access(self, queue: QueueOrStream, owner: object | None) -> None:
        """Raise ChannelError 405 if the queue is another connection's."""
        if queue.is_exclusive and queue.owner is not owner:
            raise refusals.locked(self.called(queue.name))

    def name_of_servers(self, arguments: Mapping[str, object]) -> str:
        """Return a name that no queue has, for a queue with these arguments. ChannelError 406: a
        stream or a quorum queue, whose name its users must know."""
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
        by: Identity | None = None,
    ) -> tuple[QueueOrStream, int]:  # fmt: skip
        """Declare a queue for this user, "" for one that is named here, or find that it exists with
        these properties. Returns it and the LSN to wait for. ChannelError: 403 (reserved), 404
        (crashed), 405 (exclusive), 406 (other properties, invalid arguments)."""
        durable = durable and not exclusive  # it ends with its connection
        is_stream = type_of(arguments) == STREAM
        if not name:
            name = self.name_of_servers(arguments)
        elif name.startswith("amq.") and not is_reserved_allowed:
            raise refusals.reserved("queue", name)
        what = self.called(name)
        before = self.served.get(name)
        if before is not None and before.is_ended:
            if self._topology.has_many(QUEUE_END, name):
                raise refusals.being_deleted(what)
            try:
                self.delete(before)
            except DiskFullError as error:
                raise refusals.no_space(what, error) from error
        queue = self.find(name)
        if queue is not None:
            self._check_same(queue, durable, exclusive, auto_delete, arguments, owner)
            queue.used_at_s = self.clock.monotonic()
            return queue, 0
        self._check_may(name, arguments, by)
        creator = "" if by is None else by.name
        check_type(what, arguments, durable=durable, exclusive=exclusive, auto_delete=auto_delete)
        try:
            if is_stream:
                return self._make_stream(what, name, arguments, creator), self.engine.log.last_lsn
            options = check_arguments(what, arguments)
            self._check_memory(what, options, arguments)
            self._check_class(what, options)
            queue = self._make(
                name,
                self._policies.queue_options(name, arguments, options),
                arguments,
                durable,
                exclusive,
                auto_delete,
                owner,
                creator,
            )
        except DiskFullError as error:
            raise refusals.no_space(what, error) from error
        return queue, self.engine.log.last_lsn if durable else 0

    def _check_may(self, name: str, arguments: dict[str, object], by: Identity | None) -> None:
        """Raise ChannelError 406 for an impossible name, and for a queue too many."""
        if "\0" in name or len(bytes_of(name)) > NAME_BYTES_MAX:
            raise refusals.precondition_failed(
                f"queue name {name!r}: expected at most {NAME_BYTES_MAX} bytes and no NUL"
            )
        self._check_new(name, keys_bytes(arguments, CACHE_SIZE_DEFAULT), by)

    def prepare(
        self, name: str, *, durable: bool, exclusive: bool, auto_delete: bool,
        arguments: dict[str, object], by: Identity | None = None,
    ) -> PreparedStream | None:  # fmt: skip
        """Return what a declare of a new stream has to wait for, so that it does not wait for the
        disk; None: nothing. ChannelError 406: the declare would be refused."""
        if type_of(arguments) != STREAM or not name or self.has(name):
            return None
        self._check_may(name, arguments, by)
        what = self.called(name)
        check_type(
            what, arguments, durable=durable and not exclusive, exclusive=exclusive,
            auto_delete=auto_delete,
        )  # fmt: skip
        return self._streams.prepare(bytes_of(name), self._stream_options(what, name, arguments))

    def _stream_options(self, what: str, name: str, arguments: dict[str, object]) -> StreamOptions:
        own = check_stream_arguments(what, arguments)
        return self._policies.stream_options(name, arguments, own)

    def _make_stream(
        self, what: str, name: str, arguments: dict[str, object], creator: str
    ) -> BrokerStream:
        options = self._stream_options(what, name, arguments)
        stream = self._streams.declare(bytes_of(name), arguments, options)
        stream.used_at_s = self.clock.monotonic()
        stream.creator = creator
        store_creator(self.engine, routing_table.queue_key(stream.parts[0].name), creator)
        self._serve(stream)
        self.counts.queue_created += 1
        self._changed(stream, is_new=True)
        self._change_names(name, is_new=True)
        self._topology.router.queue_added(name)
        return stream

    def _check_same(
        self, queue: QueueOrStream, durable: bool, exclusive: bool, auto_delete: bool,
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
        exclusive: bool, auto_delete: bool, owner: object | None, creator: str,
    ) -> BrokerQueue:  # fmt: skip
        amq = self._queue_set.declare(
            name, options, arguments=encode_arguments(arguments),
            flags=AUTO_DELETE_FLAG if auto_delete else 0, is_durable=durable,
        )  # fmt: skip
        queue = BrokerQueue(
            name, amq, is_durable=durable, is_exclusive=exclusive, is_auto_delete=auto_delete,
            arguments=arguments, owner=owner if exclusive else None, dispatch=self._dispatch,
        )  # fmt: skip
        queue.used_at_s = self.clock.monotonic()
        queue.creator = creator
        if durable:
            key = routing_table.queue_key(amq.backing.index(0).name)
            store_creator(self.engine, key, creator)
        self._queue_set.add(queue)
        self._serve(queue)
        self.counts.queue_created += 1
        self._changed(queue, is_new=True)
        self._change_names(name, is_new=True)
        if exclusive:
            self._owned.setdefault(owner, {})[queue] = None
        self._topology.router.queue_added(name)
        return queue

    def check_limits(self) -> None:
        """Check at the start whether the queues' own memory limits fit the budget together. If not,
        warn; if that is strict, keep down those that do not fit."""
        self._queue_set.read_limits(of_policies=self._policies.limits_memory)
        if not self._queue_set.is_strict:
            return
        for name, (given, expected) in self._queue_set.limits_beyond().items():
            self.kept_down[name] = f"its own memory limit is {given}, expected {expected}"
        for name in list(self.kept_down)[:SHOWN_MAX]:
            why = self.kept_down[name]
            self._warn(f"{self.called(name)} stays down: {why} (strict)")
        if len(self.kept_down) > SHOWN_MAX:
            more = len(self.kept_down) - SHOWN_MAX
            self._warn(f"{more} more queues stay down, list_queues name why has all")

    def _warn(self, text: str) -> None:
        self._on_event("warning", text)

    def recheck_kept_down(self) -> None:
        """Start queues that are kept down if there is room: after more memory, or a queue less."""
        if not self.kept_down:
            return
        queue_set = self._queue_set
        used = queue_set.unopened_limits()
        for queue in queue_set.queues.values():
            if queue.name not in self.kept_down:
                used += queue.amq.options.max_memory_bytes or 0
        for name in list(self.kept_down):
            limit = self._limit_of(name)
            if used + limit <= queue_set.monitor.budget_bytes:
                used += limit
                self._start(name)

    def policies_changed(self) -> None:
        """Look at the memory limits once all queues have what changed policies say: start queues
        for which there is room now; warn if the limits do not fit the budget together."""
        self.recheck_kept_down()
        if self._policies.limits_memory:
            queue_set = self._queue_set
            text = queue_set.monitor.check_limits(0, others_bytes=queue_set.unopened_limits())
            if text is not None:
                self._warn(text)

    def _limit_of(self, name: str) -> int:
        """Return the own memory limit of a queue that is kept down, in bytes."""
        queue = self._queue_set.queues.get(name)
        if queue is None:
            return self._queue_set.limits.get(name, 0)
        return queue.amq.options.max_memory_bytes or 0

    def _start(self, name: str) -> None:
        """Make a queue that was kept down a queue like any other."""
        del self.kept_down[name]
        queue = self._queue_set.queues.get(name)
        if queue is not None:
            queue.is_crashed = False
            queue.why = ""
            self._queue_set.register(queue.amq.backing, queue.amq.options)
            self._dispatch.mark(queue)
        self._topology.router.queue_added(name)
        self._on_event("queue_started", f"{self.called(name)} starts: there is room")

    def _check_memory(
        self, what: str, options: QueueOptions, arguments: Mapping[str, object]
    ) -> None:
        """Check whether the queues' own limits fit the budget. ChannelError 406 if that is
        strict."""
        try:
            warning = self._queue_set.check_limit(options)
        except OptionError as error:
            name = MAX_SIZE if MAX_SIZE in arguments else "x-queue-max-memory-bytes"
            raise refusals.precondition_failed(
                f"invalid arg '{name}' for {what}: received {error.given}, "
                f"expected {error.expected}"
            ) from None
        if warning is not None:
            self._warn(f"{what}: {warning}")

    def _check_class(self, what: str, options: QueueOptions) -> None:
        """Check whether a queue may name its class. ChannelError 406."""
        try:
            self._queue_set.choice.maker(options.backing_queue)
        except OptionError as error:
            raise refusals.precondition_failed(
                f"invalid arg '{BACKING}' for {what}: received {error.given!r}, "
                f"expected {error.expected}"
            ) from None

    # ---- policies ------------------------------------------------------------------------------

    def apply_policies(self, name: str) -> tuple[Applied, QueueOptions | None] | None:
        """Give a queue or stream what its policies say now. Returns them, and the options that a
        queue has then; None if there is no such queue. A stored one gets its options when it is
        opened; it is opened here if it has too many messages, or an alert on age."""
        queue = self.served.get(name)
        if isinstance(queue, BrokerStream):
            self._apply_to_stream(queue)
            return self._policies.of(name, STREAM), None
        if queue is None:
            if not self.is_stored(name):
                return None
            arguments, options, _ = self.stored(bytes_of(name))
            self._queue_set.note_limit(name, options)
            if self._is_to_open(name, options):
                opened = self._queue_set.find(name)
                assert opened is not None, "it is stored"
                self._queue_set.tick_queue(opened, self.clock.wall_ms())
            return self._policies.of(name, type_of(arguments)), options
        assert isinstance(queue, BrokerQueue), "there is no third kind"
        applied = self._policies.of(name, type_of(queue.arguments))
        if queue.is_crashed and name not in self.kept_down:
            return applied, None
        before = queue.amq.options
        own = QueueOptions.from_arguments(queue.arguments)
        if own.priorities != before.priorities:
            own = replace(own, priorities=before.priorities)
        options = self._policies.queue_options(name, queue.arguments, own)
        if options != before:
            self._set_options(queue, options)
        return applied, options

    def _set_options(self, queue: BrokerQueue, options: QueueOptions) -> None:
        before = queue.amq.options
        queue.serve()  # what consumers have room for is delivered before a limit acts
        queue.amq.set_options(options)
        if options.memory_bytes != before.memory_bytes and not queue.is_crashed:
            self._queue_set.register(queue.amq.backing, options)
        if thresholds_of(options).all() != thresholds_of(before).all():
            self._on_deleted(queue.name)  # its alerts were about other thresholds
        self._queue_set.tick_queue(queue, self.clock.wall_ms())

    def _is_to_open(self, name: str, options: QueueOptions) -> bool:
        """Return whether a stored queue has something to do with these options."""
        if options.alert_age_up is not None:
            return True
        most, most_bytes = options.max_length, options.max_length_bytes
        if (most is None and most_bytes is None) or name in self.kept_down:
            return False
        routing = self.engine.routing.queues
        count = size = 0
        for part in priority_queue.part_names(bytes_of(name), options.priorities):
            stored = routing.get(part)
            if stored is not None:
                index = self.engine.queues[stored.number]
                count += index.count - index.leased.count
                size += index.bytes - index.leased.bytes
        return (most is not None and count > most) or (most_bytes is not None and size > most_bytes)

    def _apply_to_stream(self, stream: BrokerStream) -> None:
        own = StreamOptions.from_arguments(stream.arguments)
        options = self._policies.stream_options(stream.name, stream.arguments, own)
        self._streams.set_options(stream, replace(options, partitions=stream.options.partitions))

    # ---- deleting ------------------------------------------------------------------------------

    def delete(
        self, queue: QueueOrStream, *, if_unused: bool = False, if_empty: bool = False,
        is_forced: bool = False,
    ) -> tuple[int, int]:  # fmt: skip
        """Delete a queue with all that it holds. Returns how many messages were ready, and the LSN.
        ChannelError 406: it is in use, not empty, or messages are leased and it is not forced.
        Nothing happens if it was deleted already."""
        if queue.is_deleted:
            return 0, 0
        ready = self.check_delete(
            queue, if_unused=if_unused, if_empty=if_empty, is_forced=is_forced
        )
        leased = self.open_leases(queue.name)
        doomed = self._topology.doomed([], [queue.name])
        if isinstance(queue, BrokerQueue):
            queue.amq.dead_letters.finish()
        with self.engine.journal.one_record(DISK) as one:
            self._log_deleted(queue)
            self._topology.log_deleted(doomed)
        self._forget(queue)
        self._topology.router.remove_queue(queue.name)
        self._topology.forget(doomed)
        self._cancel(queue.cancel_all())
        queue.wake_waiters()
        if leased:
            self.on_leased_deleted(queue.name, leased)
        return ready, one.lsn

    def _cancel(self, consumers: list[Consumer]) -> None:
        """Notify the channels of consumers whose queue is gone, CANCEL_SLICE in each turn."""
        for consumer in consumers[:CANCEL_SLICE]:
            consumer.channel.cancelled(consumer)
        others = consumers[CANCEL_SLICE:]
        if others:
            self._dispatch.when_settled(0, DISK, lambda: self._cancel(others))

    def check_delete(
        self, queue: QueueOrStream, *, if_unused: bool, if_empty: bool, is_forced: bool
    ) -> int:
        """Return how many messages are ready in a queue that may be deleted. ChannelError 406, as
        of `delete`."""
        what = self.called(queue.name)
        if if_unused and queue.consumers.count:
            raise refusals.precondition_failed(f"{what} in use")
        ready = 0 if queue.is_crashed else queue.len()
        if if_empty and ready:
            raise refusals.precondition_failed(f"{what} not empty")
        leased = self.open_leases(queue.name)
        if leased and not is_forced:
            raise refusals.leased(what, leased)
        return ready

    def end(
        self, queue: QueueOrStream, unbinding: Unbinding, then: Callable[[int], None],
        failed: Callable[[Exception], None], *, is_forced: bool = False,
    ) -> None:  # fmt: skip
        """Delete a queue with many bindings, which go first; nobody finds it meanwhile. then(lsn):
        called when it is deleted; or failed(error), and it is as before without some bindings."""
        name = queue.name
        queue.is_ended = True

        def finish() -> None:
            now = self.served.get(name)  # it may have been restarted
            is_there = now is not None and now.is_ended
            then(self.delete(now, is_forced=is_forced)[1] if now is not None and is_there else 0)

        def stays(error: Exception) -> None:
            now = self.served.get(name)
            if now is not None and now.is_ended:
                now.is_ended = False
                self._topology.router.queue_added(name)
            failed(error)

        unbinding.add(QUEUE_END, name, finish, stays)

    def _log_deleted(self, queue: QueueOrStream) -> None:
        """Delete the queue from the engine; inside `one_record`."""
        if isinstance(queue, BrokerStream):
            if queue.options.partitions:
                self._topology.log_unbound(queue.name)
            self._streams.log_deleted(queue)
            return
        assert isinstance(queue, BrokerQueue), "there is no third kind"
        amq = queue.amq
        if amq.is_durable and amq.options.priorities:  # its parts have other names than its own
            self._topology.log_unbound(queue.name)
        if queue.is_crashed and queue.name not in self.kept_down:
            self.engine.delete_queues(indexes_of(self.engine, amq.name))
        else:
            amq.delete(DISK, force=True)  # whether it may was asked

    def _forget(self, queue: QueueOrStream) -> None:
        queue.is_deleted = True
        if isinstance(queue, BrokerQueue):
            self._queue_set.remove(queue)
            self._on_deleted(queue.name)
        del self.served[queue.name]
        self.changes.note(queue.name, is_gone=True)
        self.counts.queue_deleted += 1
        self._changed(queue, is_new=False)
        self._change_names(queue.name, is_new=False)
        self._uncount(queue)
        self.recheck_kept_down()
        if queue.is_exclusive and (owned := self._owned.get(queue.owner)) is not None:
            owned.pop(queue, None)
            if not owned:
                del self._owned[queue.owner]

    def _changed(self, queue: QueueOrStream, *, is_new: bool) -> None:
        if self.on_queue is not None:
            self.on_queue(queue, is_new)

    def has_many_bindings(self, name: str) -> bool:
        """Return whether the queue of this name has so many that they go before it."""
        return self._topology.has_many(QUEUE_END, name)

    def owner_gone(self, owner: object) -> None:
        """Delete the exclusive queues of a connection that has ended."""
        for queue in list(self._owned.get(owner, ())):
            self._end_owned(queue.name, owner)

    def _end_owned(self, name: str, owner: object, *, sends_first: bool = True) -> None:
        queue = self.served.get(name)  # it may have been restarted
        if queue is None or queue.owner is not owner or queue.is_ended:
            return
        again = partial(self._end_owned, name, owner, sends_first=False)
        if not sends_first or not self.sends_first(queue, again):
            self.end_soon(queue)

    def sends_first(self, queue: QueueOrStream, then: Callable[[], None]) -> bool:
        """Return whether large dead letters of a queue are to be sent before it is deleted, which
        would send them at once and take long. If so `then` is called once, in a later turn: when
        they are sent, or after LETTERS_S, because a full disk may keep them."""
        if not isinstance(queue, BrokerQueue) or not queue.amq.dead_letters.waiting:
            return False
        waiting = [then]

        def call() -> None:
            if waiting:
                waiting.pop()()

        later = partial(self._dispatch.when_settled, 0, DISK, call)
        queue.amq.dead_letters.when_sent(later)
        self.call_at(self.clock.monotonic() + LETTERS_S, later)
        return True

    def end_soon(self, queue: QueueOrStream) -> None:
        """Delete a queue that ends with its connection or its last consumer, or unused; in a later
        turn if there are many of them, or it has many bindings, and later if the disk is full.
        Until then nobody finds it."""
        budget = self._dispatch.budget
        if budget is not None:
            budget.left -= DELETE_STEPS
            is_much = self._topology.has_many(QUEUE_END, queue.name)
            if self.ended is not None and (is_much or budget.left < -ENDED_STEPS):
                self.ended.add(queue)
                return
        try:
            self.delete(queue)
        except DiskFullError:
            if self.ended is None:
                raise
            self.ended.wait_for_room(queue)

    def consumer_gone(self, queue: QueueOrStream, *, sends_first: bool = True) -> None:
        """Note that a consumer or a reader's lease of the queue has ended. An auto-delete queue is
        deleted with the last one. sends_first: after its large dead letters."""
        queue.used_at_s = self.clock.monotonic()
        if (
            queue.is_auto_delete
            and not queue.consumers.count
            and not queue.is_deleted
            and not queue.is_ended
            and not self.open_leases(queue.name)
            and not (sends_first and self.sends_first(queue, partial(self._end_unused, queue)))
        ):
            self.end_soon(queue)

    def _end_unused(self, queue: QueueOrStream) -> None:
        self.consumer_gone(queue, sends_first=False)

    def set_paused(self, queue: BrokerQueue, *, is_paused: bool) -> int:
        """Stop the delivery of a queue, or let it go on. Returns the LSN to wait for, 0 if nothing
        is stored: it is so already, or the queue is not durable. ChannelError 406: a full disk, and
        nothing happened."""
        if queue.consumers.is_paused == is_paused:
            return 0
        lsn = 0
        if queue.is_durable:
            flags = PAUSED_FLAG if is_paused else 0
            flags |= AUTO_DELETE_FLAG if queue.is_auto_delete else 0
            try:
                lsn = priority_queue.store_flags(self.engine, bytes_of(queue.name), flags)
            except DiskFullError as error:
                raise refusals.no_space(self.called(queue.name), error) from error
        queue.consumers.pause(is_paused=is_paused)
        self._dispatch.mark(queue)
        return lsn

    def delete_leftovers(self) -> None:
        """Delete at the start the stored queues that were exclusive."""
        for name in list(self._queue_set.stored):
            if priority_queue.stored(self.engine, bytes_of(name))[1] & EXCLUSIVE_FLAG:
                queue = self.find(name)
                assert queue is not None, "it is stored"
                self.delete(queue)

    def replace(self, queue: BrokerQueue, amq: AMQQueue) -> BrokerQueue:
        """Replace a queue by one with another AMQQueue; return it. The old one is not in the table
        then."""
        fresh = BrokerQueue(
            queue.name, amq, is_durable=queue.is_durable, is_exclusive=queue.is_exclusive,
            is_auto_delete=queue.is_auto_delete, arguments=queue.arguments, owner=queue.owner,
            dispatch=self._dispatch,
        )  # fmt: skip
        fresh.used_at_s = self.clock.monotonic()
        fresh.creator = queue.creator
        fresh.is_ended = queue.is_ended
        fresh.consumers.pause(is_paused=queue.consumers.is_paused)
        self._uncount(queue)
        self._queue_set.add(fresh)
        self._serve(fresh)
        owned = self._owned.get(queue.owner)
        if queue.is_exclusive and owned is not None:
            owned.pop(queue, None)
            owned[fresh] = None
        self._topology.router.queue_added(fresh.name)
        return fresh

    # ---- leases --------------------------------------------------------------------------------

    def leased_names(self) -> list[str]:
        """Return the names of the queues of which readers are known, oldest first."""
        queues = self.engine.queues
        return [
            text_of(queues[number].name.partition(priority_queue.SEPARATOR)[0])
            for number in self.engine.leases.table.by_queue
        ]

    def leases(self, name: str) -> dict[str, Lease]:
        """Return the leases of the queue of this name, by reader; the caller must not change the
        dict."""
        known = self.engine.leases.table
        if not known.by_queue:
            return {}
        at = bytes_of(name)
        queues = self.engine.routing.queues
        first = queues.get(at) or queues.get(priority_queue.part_names(at, 1)[0])
        return {} if first is None else known.of(first.number)

    def open_leases(self, name: str) -> dict[str, int]:
        """Return how many messages each reader has leased of the queue, if any."""
        return {reader: lease.count for reader, lease in self.leases(name).items() if lease.count}

    # ---- at the start --------------------------------------------------------------------------

    def open_busy(self) -> list[BrokerQueue]:
        """Open the stored queues for which something will be due, expiring or delayed messages, an
        alert on age, and those that are paused. The others wait until they are named."""
        busy: dict[str, None] = {}
        for index in self.engine.queues.values():
            base, mark, _ = index.name.partition(priority_queue.SEPARATOR)
            is_delay = mark and index.name.startswith(base + MARK)
            if is_delay or any(s.expiry_ms for s in index.segments.values()):
                busy[text_of(base)] = None
        for queue in self.engine.routing.queues.values():
            if queue.flags & PAUSED_FLAG or b'"x-alert-age-up"' in queue.arguments:
                busy[text_of(queue.name.partition(priority_queue.SEPARATOR)[0])] = None
        found = [self._queue_set.find(name) for name in busy if self.is_stored(name)]
        return [queue for queue in found if queue is not None]

    def expiring(self) -> list[tuple[str, int]]:
        """Return the names of durable queues that have x-expires, and how many ms that is."""
        found: list[tuple[str, int]] = []
        for queue in self.engine.routing.queues.values():
            if b'"x-expires"' in queue.arguments:
                name = queue.name.partition(priority_queue.SEPARATOR)[0]
                expires_ms = self._stored_arguments(name).get(EXPIRES)
                if isinstance(expires_ms, int) and expires_ms > 0:
                    found.append((text_of(name), expires_ms))
        return found

    def _stored_arguments(self, name: bytes) -> dict[str, object]:
        """Return the arguments of a stored queue; {} if they cannot be understood."""
        try:
            return decode_arguments(priority_queue.stored(self.engine, name)[0])
        except ValueError:
            return {}

    def stored_facts(self, name: str) -> tuple[dict[str, object], bool]:
        """Return the arguments of a queue that is not open, and whether it is auto-delete."""
        at = bytes_of(name)
        is_auto_delete = bool(priority_queue.stored(self.engine, at)[1] & AUTO_DELETE_FLAG)
        return self._stored_arguments(at), is_auto_delete


class EndedQueues(BackgroundTask):
    """Deletes queues that have ended together, with a connection, one after the other. Nothing
    refers to a queue that is deleted before its turn comes. Those for which the disk has no room
    are tried again each ROOM_AGAIN_S."""

    def __init__(
        self, table: QueueTable, unbinding: Unbinding, wake: Callable[[BackgroundTask], None]
    ) -> None:
        self._table = table
        self._unbinding = unbinding
        self._wake = wake
        self._names: deque[str] = deque()
        self._without_room: list[str] = []

    def add(self, queue: QueueOrStream) -> None:
        """Delete the queue after those that were added before."""
        queue.is_ended = True
        self._names.append(queue.name)
        self._wake(self)

    def step(self) -> int:
        if self._names:
            name = self._names.popleft()
            try:
                self._delete(name)
            except DiskFullError as error:
                self._stays(name, error)
        return AGAIN if self._names else DONE

    def wait_for_room(self, queue: QueueOrStream) -> None:
        """Delete the queue when the disk may have room again."""
        queue.is_ended = True
        if not self._without_room:
            table = self._table
            table.call_at(table.clock.monotonic() + ROOM_AGAIN_S, self._try_again)
        self._without_room.append(queue.name)

    def _try_again(self) -> None:
        self._names.extend(self._without_room)
        self._without_room.clear()
        self._wake(self)

    def _delete(self, name: str) -> None:
        table = self._table
        queue = table.served.get(name)
        if queue is None or not queue.is_ended:
            return
        if table.has_many_bindings(name):
            table.end(queue, self._unbinding, _ignore_lsn, partial(self._stays, name))
        else:
            table.delete(queue)

    def _stays(self, name: str, error: Exception) -> None:
        queue = self._table.served.get(name)
        if queue is None or not isinstance(error, DiskFullError):
            raise error
        self.wait_for_room(queue)

    def failed(self, error: Exception) -> None:
        """Go on with the next, and report the error."""
        if self._names:
            self._wake(self)
        raise error


def indexes_of(engine: StorageEngine, name: bytes) -> list[QueueIndex]:
    """Return the indexes of a queue, of all its parts and delayed messages, durable or not."""
    start = name + priority_queue.SEPARATOR
    return [
        index
        for index in engine.queues.values()
        if index.name == name or index.name.startswith(start)
    ]


def _ignore_lsn(_lsn: int) -> None:
    """Do nothing: nobody waits for it."""


def _call_never(_at_s: float, _call: Callable[[], None]) -> None:
    """Do nothing: nothing ends before the vhost is open."""


def _ignore_leased(_name: str, _leases: dict[str, int]) -> None:
    """Do nothing: the default of on_leased_deleted."""


EXPIRIES_SLICE: Final = 100  # unused queues that one tick deletes
LETTERS_S: Final = 10.0  # that a deletion waits for large dead letters, of those that would wait
ROOM_AGAIN_S: Final = 1.0  # until a queue that has ended is deleted, if the disk was full
STALE_PART: Final = 2  # how many times as many entries as queues with x-expires there may be


class QueueValues(RateSource):
    """The counters and lengths of queues that were touched, and of all streams."""

    kind = QUEUE

    def __init__(self, table: QueueTable, streams: BrokerStreamTable) -> None:
        self._table = table
        self._streams = streams
        self._stamp: int = table.changes.stamp()

    def changed(self) -> Iterator[tuple[str, Mapping[str, int]]]:
        changes, served = self._table.changes, self._table.served
        names = changes.since(self._stamp)
        self._stamp = changes.stamp()
        found = [served.get(name) for name in (list(served) if names is None else names)]
        queues = [queue for queue in found if isinstance(queue, BrokerQueue)]
        for queue in (*queues, *self._streams.all()):
            if not queue.is_deleted and not queue.is_crashed:
                yield queue.name, {**queue.lengths(), **queue.counters()}

    def has(self, name: str) -> bool:
        return self._table.has(name)


class QueueTimers:
    """Timers of a vhost besides those of its QueueSet: calls, and the deletion of unused queues."""

    def __init__(self, table: QueueTable, dispatch: Dispatch) -> None:
        self._clock = table.clock
        self._table = table
        self._dispatch = dispatch
        self._n: int = 0  # so that heaps never compare what they hold
        # Monotonic seconds, so that a clock that is set deletes no queue: (when, n, name, x-expires
        # in ms), also such as do not count any more, and (when, n, call).
        self._expiries: list[tuple[float, int, str, int]] = []
        # name -> (n of its entry there, x-expires in ms, since when it counts)
        self._unused: dict[str, tuple[int, int, float]] = {}
        self._calls: list[tuple[float, int, Callable[[], None]]] = []

    # ---- what is to be looked at ---------------------------------------------------------------

    def call_at(self, monotonic_s: float, call: Callable[[], None]) -> None:
        """Call `call` once, in the first tick at or after this time of the monotonic clock."""
        self._n += 1
        heapq.heappush(self._calls, (monotonic_s, self._n, call))

    def expire_unused(self, name: str, ms: int | None) -> None:
        """Delete the queue of this name when nobody has used it for so many ms, from now on; None:
        do not. What was said before counts no longer, unless it was the same."""
        known = self._unused.get(name)
        if ms is None:
            self._unused.pop(name, None)
        elif known is None or known[1] != ms:
            now_s = self._clock.monotonic()
            self._push_expiry(now_s + ms / 1000, name, ms, now_s)
        if len(self._expiries) > STALE_PART * (len(self._unused) + EXPIRIES_SLICE):
            self._expiries = [one for one in self._expiries if self._is_current(one)]
            heapq.heapify(self._expiries)

    def _push_expiry(self, when_s: float, name: str, expires_ms: int, since_s: float) -> None:
        self._n += 1
        self._unused[name] = self._n, expires_ms, since_s
        heapq.heappush(self._expiries, (when_s, self._n, name, expires_ms))

    def _is_current(self, expiry: tuple[float, int, str, int]) -> bool:
        """Return whether nothing else was said about its queue since."""
        known = self._unused.get(expiry[2])
        return known is not None and known[0] == expiry[1]

    # ---- a tick --------------------------------------------------------------------------------

    def tick(self, now_s: float) -> bool:
        """Do a slice of what is due at this time. Returns True if there is more to do at once."""
        while self._calls and self._calls[0][0] <= now_s:
            call = heapq.heappop(self._calls)[2]
            try:
                call()
            except Exception as error:  # noqa: BLE001 - it is reported
                self._dispatch.internal_error("a call that was due", error)
        heap = self._expiries
        for _ in range(EXPIRIES_SLICE):
            if not heap or heap[0][0] > now_s:
                return False
            first = heapq.heappop(heap)
            if not self._is_current(first):
                continue
            name = first[2]
            _, expires_ms, since_s = self._unused.pop(name)
            when_s = self._expiry_of(name, expires_ms / 1000, since_s, now_s)
            if when_s is None:
                continue
            if when_s > now_s:
                self._push_expiry(when_s, name, expires_ms, since_s)
            else:
                self._expire(name, now_s, expires_ms)
        return bool(heap) and heap[0][0] <= now_s

    def _expire(self, name: str, now_s: float, expires_ms: int) -> None:
        """Delete a queue that nobody has used; try again after its x-expires if that fails, unless
        it only waits for room on the disk."""
        try:
            queue = self._table.find(name)
            if queue is not None:
                self._table.end_soon(queue)
        except Exception as error:  # noqa: BLE001 - it is reported
            self._dispatch.internal_error(f"queue {name!r}, which expired", error)
            self._push_expiry(now_s + expires_ms / 1000, name, expires_ms, now_s)

    def _expiry_of(self, name: str, unused_s: float, since_s: float, now_s: float) -> float | None:
        """Return when the queue expires unless it is used before; None: there is none."""
        queue = self._table.served.get(name)
        if self._table.open_leases(name):
            return now_s + unused_s
        if queue is None:
            return since_s + unused_s if self._table.is_stored(name) else None
        if queue.consumers.count or queue.waiters:
            return now_s + unused_s
        if isinstance(queue, BrokerQueue) and queue.amq.dead_letters.waiting:
            return now_s + LETTERS_S  # all at once they would take long
        return max(queue.used_at_s, since_s) + unused_s

    # ---- when next -----------------------------------------------------------------------------

    def next_s(self, now_s: float) -> float:
        """Return the seconds until something is due; infinity if nothing is."""
        seconds = float("inf")
        if self._expiries:
            seconds = self._expiries[0][0] - now_s
        if self._calls:
            seconds = min(seconds, self._calls[0][0] - now_s)
        return max(seconds, 0.0)


FAILURES_MAX: Final = 5
WINDOW_S: Final = 10.0


class UntrustedError(Exception):
    """The content that a queue had in RAM alone cannot be recovered."""


class QueueRestarts:
    """The restarts of one vhost's queues. on_event: queue_restarted, queue_crashed."""

    def __init__(
        self, queue_set: QueueSet[BrokerQueue], table: QueueTable, dispatch: Dispatch,
        on_event: Callable[[str, str], None],
    ) -> None:  # fmt: skip
        self._engine = queue_set.engine
        self._queue_set = queue_set
        self._table = table
        self._dispatch = dispatch
        self._on_event = on_event
        self._failures: dict[str, deque[float]] = {}

    def failed(self, queue: Source, error: Exception) -> None:
        """Handle an error in a queue's own code: replace the queue, or mark it crashed.
        StoppedError: it could not be restarted alone, and the engine has stopped."""
        assert isinstance(queue, BrokerQueue), "readings of streams deal with theirs themselves"
        if not queue.is_usable:
            return
        what = self._table.called(queue.name)
        now_s = self._engine.clock.monotonic()
        failures = self._failures.setdefault(queue.name, deque())
        failures.append(now_s)
        while failures[0] < now_s - WINDOW_S:
            failures.popleft()
        self._end_life(queue)
        if len(failures) >= FAILURES_MAX:
            del self._failures[queue.name]
            why = f"failed {FAILURES_MAX} times in {WINDOW_S:.0f} s: {error!r}"
            self._crash(queue, queue.amq, why)
            self._on_event("queue_crashed", f"{what} has {why}")
            return
        try:
            amq, lost = self._reopened(queue.amq)
        except Exception as failure:
            self._engine.journal.stop(failure)
            text = f"{what} has failed with {error!r} and cannot restart alone: {failure}"
            raise StoppedError(text) from failure
        fresh = self._table.replace(queue, amq)
        self._on_event(
            "queue_restarted",
            f"{what} has failed with {error!r}; restarted with {amq.len()} messages, without "
            f"{lost} transient ones",
        )
        self._dispatch.mark(fresh)

    def _end_life(self, queue: BrokerQueue) -> None:
        """End the old life of the queue: cancel its consumers and wake its waiters."""
        queue.is_deleted = True
        queue.amq.dead_letters.abandon()
        for part in (queue.amq.backing, *queue.amq.delays.parts()):
            self._queue_set.monitor.unregister(part)
            part.unshare()
        for consumer in queue.consumers.cancel_all():
            consumer.channel.cancelled(consumer)
        queue.wake_waiters()

    def _crash(self, queue: BrokerQueue, amq: AMQQueue, why: str) -> None:
        """Keep its messages on disk until it is deleted. A checkpoint must not read its RAM again:
        what is in RAM alone is taken over; if that fails, the vhost must be opened again."""
        if amq.is_durable:
            try:
                for index in indexes_of(self._engine, amq.name):
                    self._rescue(index)
            except Exception as failure:
                self._engine.journal.stop(failure)
                raise StoppedError(f"queue {queue.name!r} has crashed: {failure}") from failure
        crashed = self._table.replace(queue, amq)
        crashed.is_crashed = True
        crashed.why = why

    def _reopened(self, old: AMQQueue) -> tuple[AMQQueue, int]:
        """Return a new AMQQueue over the same indexes, and how many transient messages it has
        lost."""
        engine = self._engine
        if engine.journal.gathering is not None:
            raise UntrustedError("the error occurred while one record was being made")
        if engine.journal.is_committing:  # its index may have what parts of it are to take
            raise UntrustedError("a large transaction is being committed")
        if not old.is_durable:
            lost = old.backing.depth()
            engine.delete_queues(indexes_of(engine, old.name))
            return self._queue_set.open(old.name, old.options, is_durable=False), lost
        engine.sync()
        indexes = indexes_of(engine, old.name)
        lost = old.backing.depth() + sum(part.depth() for part in old.delays.parts())
        for index in indexes:
            self._rescue(index)
        parts = [index.name for index in indexes if index.name.startswith(old.name + MARK)]
        amq = self._queue_set.reopen(old.name, old.options, parts)
        return amq, max(lost - amq.depth() - amq.delayed(), 0)

    def _rescue(self, index: QueueIndex) -> None:
        """Make the index independent of the RAM of the queue that had it. UntrustedError."""
        if index.departed is not None:
            raise UntrustedError("a checkpoint is under way and has not finished this queue")
        holder = DictHolder()
        held: dict[int, Entry] = {
            entry.seq: entry
            for entry in index.holder.materialise(index.next_seq)
            if index.is_live(entry.seq)
        }
        first = max(index.cut_seq, self._queue_set.opened_seq.get(index.number, 0))
        for number in sorted(index.segments):
            start = max(number * index.slots, first)
            seqs = [
                seq
                for seq in index.live_between(start, (number + 1) * index.slots)
                if seq not in held and seq not in index.section
            ] if start < (number + 1) * index.slots else []  # fmt: skip
            if seqs:
                try:
                    index.files(number).slots(seqs)
                except (CorruptionError, OSError) as error:
                    raise UntrustedError(f"not all its messages can be read: {error}") from error
        for seq in sorted(held):
            holder.entries[seq] = held[seq]
        index.holder = holder
        for number, n in list(index.transients.items()):
            if n:
                index.keep_transients(number, -n)
