"""A queue as the broker has it: an AMQQueue, its consumers, whose turn it is, and its owner.

What a queue does with messages is the AMQQueue's (penstock.queues), shared with the embedded
library. This module has what only a broker needs: consumers, the connection that has the queue to
itself, auto-delete and x-expires, and the counters that people look at. QueueOrStream is what
queues and streams (broker_stream.py) have in common for clients.

**Consumers.** A consumer is ready when its channel may be given something (its client reads, its
prefetch has room) and its own prefetch has room. Among the ready ones the highest priority wins;
within a priority they take turns, one message each: fair round robin. With a single active consumer
only the first one is asked, until it ends; then the next becomes active.

    x-priority 10   [c4 c7]      each a ring: a consumer that was given a message goes to its end
    x-priority  0   [c1 c2 c3]   parked: c5 c6

Whether a consumer is ready changes with each delivery and each ack, so it is computed, with two
comparisons, and not stored. A consumer that was not ready is parked beside its ring, so that 20,000
consumers that are all full are not asked again for each message. What makes room for it (an ack, a
client that reads again) calls `Consumer.wake`, which puts it at the end of its ring. So each ack
costs one question at most. Adding and removing a consumer costs the same however many there are.

**Delivery.** `deliver` is called in a turn: consumers take turns until none is ready or nothing is
left. A queue whose head is held (a transaction's message that is not durable yet, or a first
delivery beyond the settled delivered mark) is marked again when that is settled.

A queue whose delivery is paused (Consumers.pause) has no consumer to ask: nothing is looked at for
each message.

`serve` does the same before the turn ends. Consumers that wait are served before a limit, a ttl of
0, a get, a purge, a cancel or a delete takes messages, as RabbitMQ does by delivering at once. It
costs a publish nothing unless one of these happens and there are consumers.

Hot: `deliver` and `next_ready` run for each message delivered.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections import OrderedDict, deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final

from penstock.broker.arguments import CACHE_SIZE_DEFAULT, decode_arguments, encode_arguments
from penstock.broker.dispatch import ACK, DISCARD, LOOK_MESSAGES, Dispatch, Source, TurnBudget
from penstock.codec.fields import decode_table, encode_table
from penstock.counts import DeliveryCounts
from penstock.errors import DiskFullError, SettledError
from penstock.native import mypyc_attr
from penstock.queues.amq_queue import AMQQueue
from penstock.queues.backing_queue import Delivery
from penstock.queues.priority_queue import PriorityQueue
from penstock.queues.queue_options import QUORUM
from penstock.routing.exchange_types import CACHE_SIZE, CACHE_TTL, DEDUPLICATION
from penstock.storage.files.durability import OS
from penstock.storage.index.key_windows import HELD_BYTES, KeyWindow

FAILED_SLICE: Final = 256  # deliveries that are settled before the turn's budget is looked at
DEAD_LETTER_STEP_BYTES: Final = 16  # of headers that are decoded and written again, for one step
# Measured: a consumer without arguments (400), and the last address of its deliveries.
CONSUMER_BYTES: Final = 1000


NO_LIMIT: Final = 1 << 60  # messages
STALE_RINGS_MAX: Final = 64  # in the heap, beside as many as there are rings
# Which deliveries have x-delivery-count, and whether x-death has attempts: a sum of these.
NO_COUNTS: Final = 0
COUNTS_OF_RETURNS: Final = 1  # of messages that came back
ALL_COUNTS: Final = 2  # from 0: of basic.get from a queue of type quorum
COUNTS_OF_DEATHS: Final = 4
COUNTS_OF_BOXES: Final = COUNTS_OF_RETURNS | COUNTS_OF_DEATHS


@mypyc_attr(allow_interpreted_subclasses=True)
class ConsumerChannel(ABC):
    """A channel, as its consumers see it. `can_deliver`: it may be given another message; the
    channel updates it whenever something changes that decides it. Consumers that share one prefetch
    take turns, also those of different queues."""

    can_deliver: bool = True
    is_shared: bool = False  # several consumers have one prefetch

    def before(self, consumer: "Consumer") -> "Consumer | None":
        """Return another consumer whose turn comes first, if consumers share a prefetch; else
        None."""
        return None

    def room(self) -> int:
        """Return how many messages all its consumers together may be given now."""
        return NO_LIMIT if self.can_deliver else 0

    def facts(self) -> tuple[str, int, str]:
        """Return the connection's name, the channel's number and the user."""
        return "", 0, ""

    @abstractmethod
    def deliver(self, consumer: "Consumer", delivery: Delivery) -> None:
        """Send a message to the client; it is unacked then, unless the consumer is no_ack."""

    @abstractmethod
    def cancelled(self, consumer: "Consumer") -> None:
        """Remove a consumer whose queue is gone, and notify the client if it supports that."""


class Consumer:
    """One basic.consume. prefetch: its own limit, 0 for none. unacked: its deliveries that are not
    settled yet. source: where they come from: the queue, or its own reading of a stream.
    timeout_s: its own, after which a delivery goes back, 0 for none; None: its queue's.
    tracer(consumer, address, properties, delivery): called with each while it is set; `trace` sets
    it."""

    def __init__(
        self, tag: str, channel: ConsumerChannel, queue: "QueueOrStream", *, no_ack: bool,
        is_exclusive: bool, priority: int, prefetch: int, arguments: dict[str, object],
    ) -> None:  # fmt: skip
        self.tag: str = tag
        self.channel: ConsumerChannel = channel
        self.queue: QueueOrStream = queue
        self.source: Source = queue
        self.no_ack: bool = no_ack
        self.is_exclusive: bool = is_exclusive
        self.priority: int = priority
        self.prefetch: int = prefetch
        self._arguments: bytes = encode_table(arguments) if arguments else b""
        self.counts: int = NO_COUNTS
        self.timeout_s: float | None = None
        self.tracer: Callable[[Consumer, bytes, bytes, Delivery], None] | None = None
        self.unacked: int = 0
        self.ack_s: float | None = None  # see `look`
        self._looked: tuple[float, int, int] = (0.0, 0, 0)  # time, acknowledged, unacked
        self.is_cancelled: bool = False
        self.is_parked: bool = False  # it was not ready when it was asked last
        self.delivered: int = 0
        self.came_again: int = 0  # of those that were delivered
        # The basic.deliver frame before and after the delivery tag, for the last address.
        self.address: bytes = b""
        self.front: bytes = b""
        self.fresh: bytes = b""
        self.redelivered: bytes = b""

    @property
    def arguments(self) -> dict[str, object]:
        """Decode and return the arguments of its basic.consume."""
        return decode_table(self._arguments)[0] if self._arguments else {}

    @property
    def held_bytes(self) -> int:
        """Return about how many bytes of RAM it takes."""
        return CONSUMER_BYTES + 3 * len(self.tag) + len(self._arguments)

    def trace(self, tracer: "Callable[[Consumer, bytes, bytes, Delivery], None] | None") -> None:
        """Have each delivery traced, or none any more."""
        self.tracer = tracer
        self.forget_address()

    def forget_address(self) -> None:
        """Forget the last address, which is long: it would take memory that nobody counts."""
        self.address = self.front = self.fresh = self.redelivered = b""

    def is_ready(self) -> bool:
        """Return whether it may be given a message now."""
        return (
            self.channel.can_deliver
            and (not self.prefetch or self.unacked < self.prefetch)
            and not self.is_cancelled
        )

    def room(self) -> int:
        """Return how many messages more its own prefetch allows."""
        return self.prefetch - self.unacked if self.prefetch else NO_LIMIT

    def timeout_or(self, default_s: float) -> float:
        """Return the seconds after which a delivery goes back, 0 for none. default_s: the
        broker's."""
        if not isinstance(self.queue, BrokerQueue):
            return 0.0  # what a stream has delivered is kept from nobody
        timeout_s = self.timeout_s
        if timeout_s is None:
            timeout_s = self.queue.amq.options.consumer_timeout_s
        return default_s if timeout_s is None else timeout_s

    def look(self, now_s: float) -> None:
        """Compute `ack_s`: how many seconds a delivery was open on average, between the last look
        in which some were settled and the one before it. By Little's law that is the mean number
        of open ones by the rate, so that no delivery needs a time. None: no_ack, or none was."""
        before_s, before, open_then = self._looked
        settled = self.delivered - self.unacked
        self._looked = now_s, settled, self.unacked
        if before_s and settled > before and not self.no_ack:
            self.ack_s = (self.unacked + open_then) / 2 * (now_s - before_s) / (settled - before)

    def wake(self) -> None:
        """Ask it again: it may have room for another message."""
        if self.is_parked:
            self.queue.consumers.unpark(self)


class Ring:
    """The consumers of one priority. ready: those to ask, in turn; parked: those that were not
    ready."""

    __slots__ = ("parked", "priority", "ready")

    def __init__(self, priority: int) -> None:
        self.priority: int = priority
        self.ready: OrderedDict[Consumer, None] = OrderedDict()
        self.parked: dict[Consumer, None] = {}


class Consumers:
    """The consumers of one queue. is_single_active: only one of them is given messages.
    is_paused: none is, and none is asked."""

    def __init__(self, *, is_single_active: bool = False) -> None:
        self.count: int = 0
        self.is_paused: bool = False
        self.is_single_active: bool = is_single_active
        self.active: Consumer | None = None
        self._exclusive: int = 0  # how many are exclusive
        self._only: Consumer | None = None  # the one to ask, if no other one may be asked
        self._rings: dict[int, Ring] = {}  # by priority
        self._order: list[int] = []  # priorities of all rings, negative: the highest first
        # A heap of negative priorities: of all rings that have consumers to ask, and some others.
        self._asked: list[int] = []
        self._are_asked: set[int] = set()  # the same

    def add(self, consumer: Consumer) -> None:
        """Add a consumer; it is the last of its priority."""
        ring = self._rings.get(consumer.priority)
        if ring is None:
            ring = self._rings[consumer.priority] = Ring(consumer.priority)
            insort(self._order, -consumer.priority)
        self._ask(ring, consumer)
        self.count += 1
        self._exclusive += consumer.is_exclusive
        self._changed()

    def remove(self, consumer: Consumer) -> None:
        """Remove a consumer; unknown ones are ignored."""
        ring = self._rings.get(consumer.priority)
        if ring is None or not (consumer in ring.ready or consumer in ring.parked):
            return
        if consumer.is_parked:
            consumer.is_parked = False
            del ring.parked[consumer]
        else:
            del ring.ready[consumer]
        if not ring.ready and not ring.parked:
            del self._rings[ring.priority]
            del self._order[bisect_left(self._order, -ring.priority)]
            if len(self._asked) > 2 * len(self._rings) + STALE_RINGS_MAX:
                self._ask_rings()
        self.count -= 1
        self._exclusive -= consumer.is_exclusive
        if self.active is consumer:
            self.active = None
        self._changed()

    def pause(self, *, is_paused: bool) -> None:
        """Ask none of them any more, nor those that come; or ask them again."""
        self.is_paused = is_paused
        self._ask_rings()
        self._changed()

    def _ask_rings(self) -> None:
        """Ask exactly the rings that have consumers to ask; none if it is paused."""
        rings = [] if self.is_paused else [one for one in self._rings.values() if one.ready]
        self._asked = sorted([-one.priority for one in rings])  # which is a heap
        self._are_asked = set(self._asked)

    def _changed(self) -> None:
        if self.is_single_active and self.active is None and self._rings:
            self.active = self._first()
        only = self.active if self.is_single_active else None
        if self.count == 1:
            only = self._first()
        self._only = None if self.is_paused else only

    def _first(self) -> Consumer:
        """Return the first consumer of the highest priority. There must be one."""
        ring = self._rings[-self._order[0]]
        return next(iter(ring.ready or ring.parked))

    def _ask(self, ring: Ring, consumer: Consumer) -> None:
        """Put the consumer at the end of those to ask."""
        if not ring.ready and not self.is_paused and -ring.priority not in self._are_asked:
            heappush(self._asked, -ring.priority)
            self._are_asked.add(-ring.priority)
        ring.ready[consumer] = None

    def unpark(self, consumer: Consumer) -> None:
        """Ask a parked consumer again (Consumer.wake calls this)."""
        consumer.is_parked = False
        ring = self._rings.get(consumer.priority)
        if ring is not None and consumer in ring.parked:
            del ring.parked[consumer]
            self._ask(ring, consumer)

    def next_ready(self) -> Consumer | None:
        """Return the consumer whose turn it is and put it at the end of its ring; None if none is
        ready."""
        only = self._only
        if only is not None:
            return only if only.is_ready() else None
        while self._asked:
            ring = self._rings.get(-self._asked[0])
            if ring is not None:
                ready = ring.ready
                while ready:
                    consumer = next(iter(ready))
                    if consumer.is_ready():
                        ready.move_to_end(consumer)
                        return consumer
                    del ready[consumer]
                    ring.parked[consumer] = None
                    consumer.is_parked = True
            self._are_asked.discard(heappop(self._asked))
        return None

    def room(self, most: int) -> int:
        """Return how many messages they may be given now, `most` at most."""
        only = self._only
        if only is not None:
            return min(only.room(), only.channel.room(), most) if only.is_ready() else 0
        room = 0
        left: dict[ConsumerChannel, int] = {}
        for priority in self._asked:
            ring = self._rings.get(-priority)
            for consumer in ring.ready if ring is not None else ():
                if not consumer.is_ready():
                    continue
                channel = consumer.channel
                of_channel = left.get(channel, channel.room())
                own = min(consumer.room(), of_channel)
                left[channel] = of_channel - own
                room += own
                if room >= most:
                    return most
        return room

    def all(self) -> list[Consumer]:
        """Return all consumers, the highest priority first."""
        found: list[Consumer] = []
        for priority in self._order:
            ring = self._rings[-priority]
            found += ring.ready
            found += ring.parked
        return found

    def has_exclusive(self) -> bool:
        """Return whether there is an exclusive consumer."""
        return self._exclusive > 0

    def cancel_all(self) -> list[Consumer]:
        """Remove all consumers and return them: the queue is gone. Their channels are to be
        notified (`ConsumerChannel.cancelled`)."""
        consumers = self.all()
        self._rings = {}
        self._order = []
        self._asked = []
        self._are_asked = set()
        self._exclusive = 0
        self.count = 0
        self.active = None
        self._only = None
        for consumer in consumers:
            consumer.is_cancelled = True
        return consumers


QUEUE_BYTES: Final = 10 << 10  # measured: a queue without messages, in all its places
PART_BYTES: Final = 2 << 10  # measured: a priority more, without a message
OPEN_PART_BYTES: Final = 7 << 10  # measured: what a priority's first message adds to that
# Messages that one queue delivers before the others have their turn; a multiple of LOOK_MESSAGES.
QUEUE_SLICE: Final = 1024


@mypyc_attr(allow_interpreted_subclasses=True)
class QueueOrStream(Source):
    """What clients declare, bind, publish to and consume: a queue or a stream.

    arguments: as declared; stored encoded, and decoded at each call. owner: the connection that an
    exclusive queue belongs to. creator: the user who declared it, "" if that is not known.
    used_at_s: when it was last declared, got from or consumed (monotonic), for x-expires.
    waiters: called once when a message may be there, for those that wait without being consumers.
    """

    def __init__(
        self, name: str, *, is_durable: bool, is_exclusive: bool, is_auto_delete: bool,
        arguments: dict[str, object], owner: object | None,
    ) -> None:  # fmt: skip
        self.name: str = name
        self.is_durable: bool = is_durable
        self.is_exclusive: bool = is_exclusive
        self.is_auto_delete: bool = is_auto_delete
        self._arguments: bytes = encode_arguments(arguments)
        self.owner: object | None = owner
        self.creator: str = ""
        self.consumers: Consumers = Consumers(
            is_single_active=arguments.get("x-single-active-consumer") is True
        )
        self.why: str = ""  # why it is crashed
        self.parts_bytes: int = 0  # of priorities or partitions besides the first
        self.on_parts: Callable[[int], None] = not_counted  # called with the bytes added
        self.had_consumer: bool = False  # an auto-delete queue goes only after its last one
        self.is_ended: bool = False  # it is to be deleted, and nobody finds it any more
        self.used_at_s: float = 0.0
        self.waiters: list[Callable[[], None]] = []
        self.published: int = 0
        self.counts: DeliveryCounts = DeliveryCounts()

    @property
    def arguments(self) -> dict[str, object]:
        """Decode and return the arguments as declared."""
        return decode_arguments(self._arguments)

    @arguments.setter
    def arguments(self, arguments: dict[str, object]) -> None:
        self._arguments = encode_arguments(arguments)

    @property
    def held_bytes(self) -> int:
        """Return about how many bytes of RAM the queue takes without messages."""
        return QUEUE_BYTES + 2 * len(self._arguments) + self.parts_bytes

    @abstractmethod
    def len(self) -> int:
        """Return how many messages are ready, as queue.declare-ok reports it."""

    @abstractmethod
    def depth(self) -> int:
        """Return how many messages are ready, or delivered or leased and not settled."""

    @property
    @abstractmethod
    def generation(self) -> int:
        """Return its number, which is another one once it is deleted and declared again."""

    def lengths(self) -> dict[str, int]:
        """Return how many messages there are, by the names of RabbitMQ's columns."""
        return lengths_of(self.len(), self.depth())

    def check_consume(self, *, prefetch: int, no_ack: bool, is_global: bool) -> None:
        """Check whether a channel may consume whose consumers have this prefetch (0: no limit), or
        one limit for all (is_global). ChannelError, AMQPConnectionError."""

    def attach(self, consumer: Consumer) -> None:
        """Add a consumer. ChannelError, AMQPConnectionError: it asks for something impossible, and
        nothing happened."""
        self.consumers.add(consumer)
        self.had_consumer = True

    def detach(self, consumer: Consumer) -> None:
        """Remove a consumer; unknown ones are ignored."""
        self.consumers.remove(consumer)

    def serve(self, most: int = 0) -> int:
        """Deliver at once what consumers have room for, as far as the turn's time for deliveries
        goes; the rest follows in the next. Returns how many more messages they would
        take, `most` at most: messages that are held go to them later. Streams do nothing, because
        their readers miss nothing."""
        return 0

    def cancel_all(self) -> list[Consumer]:
        """Remove all consumers and return them, as `Consumers.cancel_all`."""
        return self.consumers.cancel_all()

    def wake_waiters(self) -> None:
        """Call the waiters: a message may be there, or the queue is gone."""
        if self.waiters:
            waiters, self.waiters = deque(self.waiters), []
            try:
                while waiters:
                    waiters.popleft()()
            finally:  # after an error the others are woken the next time
                self.waiters += waiters

    def counters(self) -> dict[str, int]:
        """Return RabbitMQ's message_stats: how many messages were published, delivered and so on
        since it was opened."""
        return {"publish": self.published, **self.counts.stats()}


class BrokerQueue(QueueOrStream):
    """One queue of a vhost."""

    def __init__(
        self, name: str, amq: AMQQueue, *, is_durable: bool, is_exclusive: bool = False,
        is_auto_delete: bool = False, arguments: dict[str, object] | None = None,
        owner: object | None = None, dispatch: Dispatch,
    ) -> None:  # fmt: skip
        super().__init__(
            name, is_durable=is_durable, is_exclusive=is_exclusive, is_auto_delete=is_auto_delete,
            arguments=arguments or {}, owner=owner,
        )  # fmt: skip
        self.amq: AMQQueue = amq
        self.refused: int = 0  # publishes that its limits refused, outside transactions
        self.window: KeyWindow | None = _window_of(amq, arguments or {}, dispatch, is_durable)
        self._dispatch: Dispatch = dispatch
        self._is_delivering: bool = False
        self._failure: Exception | None = None  # of `serve`, raised by the next turn's `deliver`
        amq.serve = self.serve
        # Its deliveries have x-delivery-count, as in RabbitMQ 3.10: those of basic.get from 0,
        # those to consumers once they came back.
        self.is_quorum: bool = (arguments or {}).get("x-queue-type") == QUORUM
        self.priorities: int = amq.options.priorities
        backing = amq.backing
        if isinstance(backing, PriorityQueue):
            backing.on_opened = self._part_opened
            self.parts_bytes = PART_BYTES * (len(backing.parts) - 1)
            self.parts_bytes += OPEN_PART_BYTES * (len(backing.opened) - 1)
        if self.window is not None:
            self.parts_bytes += HELD_BYTES * self.window.size
        self._delivered_no_ack: list[int] = []  # tags that are not acknowledged in the log yet
        self.is_waiting: bool = False  # its head is held; it is marked again when that is settled
        self.due_ms: int = 0  # of UsedQueue (queue_set.py)

    def len(self) -> int:
        return self.amq.len()

    def depth(self) -> int:
        return self.amq.depth()

    @property
    def generation(self) -> int:
        return self.amq.backing.index(0).number

    @property
    def is_usable(self) -> bool:
        """Return whether the queue was neither deleted nor has crashed."""
        return not self.is_deleted and not self.is_crashed

    def tick(self, wall_ms: int) -> bool:
        """Do what is due in the queue. Returns True if there is more to do at once."""
        self._dispatch.changed[self] = None
        return self.amq.tick(wall_ms)

    def _part_opened(self) -> None:
        self.parts_bytes += OPEN_PART_BYTES
        self.on_parts(OPEN_PART_BYTES)

    # ---- delivery ------------------------------------------------------------------------------

    def attach(self, consumer: Consumer) -> None:
        super().attach(consumer)
        self.amq.has_consumers = True

    def detach(self, consumer: Consumer) -> None:
        super().detach(consumer)
        self._update_consumers()

    def cancel_all(self) -> list[Consumer]:
        consumers = super().cancel_all()
        self._update_consumers()
        return consumers

    def _update_consumers(self) -> None:
        self.amq.has_consumers = self.consumers.count > 0
        if not self.consumers.count:
            self.amq.takers = 0

    def serve(self, most: int = 0) -> int:
        consumers = self.consumers
        if not consumers.count:
            return 0
        if not self._is_delivering and self._failure is None and self.amq.backing.len():
            dispatch = self._dispatch
            dispatch.is_serving = True
            try:
                while self.deliver(dispatch) >= QUEUE_SLICE:
                    pass
            except Exception as error:
                if dispatch.engine.failed is not None:
                    raise
                self._failure = error
                dispatch.mark(self)
            finally:
                dispatch.is_serving = False
        return consumers.room(most) if most else 0

    def deliver(self, dispatch: Dispatch) -> int:
        self._raise_failure()
        amq = self.amq
        consumers = self.consumers
        n = no_ack = again = 0
        delivery: Delivery | None = None
        is_acked = self._ack_delivered()
        done = self._delivered_no_ack
        self._is_delivering = True
        try:
            while is_acked and consumers.count and amq.backing.len():
                if n and n % LOOK_MESSAGES == 0 and dispatch.is_slice_over(n, QUEUE_SLICE):
                    dispatch.mark(self)
                    break
                consumer = consumers.next_ready()
                if consumer is None:
                    break
                if consumer.channel.is_shared and self._is_turn_of_others(consumer, dispatch):
                    break
                delivery = amq.fetch(in_pieces=True)
                if delivery is None:
                    if amq.has_more_expired:
                        dispatch.mark(self)
                    else:
                        self._wait_for_head(dispatch)
                    break
                consumer.channel.deliver(consumer, delivery)
                n += 1
                again += delivery.is_redelivered
                consumer.came_again += delivery.is_redelivered
                if consumer.no_ack:
                    no_ack += 1
                    if delivery.message.body is not None:  # else `sent` is called later
                        done.append(delivery.tag)
                elif consumer.channel.is_shared and not dispatch.is_serving:
                    dispatch.again(self)
                    break
        finally:
            self._is_delivering = False
            self.counts.delivered(n - no_ack, no_ack, again)
            dispatch.counts.messages.delivered(n - no_ack, no_ack, again)
            self._ack_delivered()
        if n:
            dispatch.note_wait(delivery)
            amq.backing.inhale()
        if self.waiters and amq.backing.len():
            self.wake_waiters()
        return n

    def _raise_failure(self) -> None:
        """Raise the error that `serve` met; this turn handles it."""
        failure = self._failure
        if failure is not None:
            self._failure = None
            raise failure

    def _is_turn_of_others(self, consumer: Consumer, dispatch: Dispatch) -> bool:
        """Return whether a shared place is for a consumer of another queue. That queue delivers
        first then, and this one again."""
        if consumer.no_ack or dispatch.is_serving or dispatch.is_taking_turns:
            return False
        first = consumer.channel.before(consumer)
        if first is None:
            return False
        dispatch.again(first.source)
        dispatch.again(self)
        return True

    def _ack_delivered(self) -> bool:
        """Acknowledge deliveries to no_ack consumers; return whether they are. If not, because of
        the disk, it is tried again later, and nothing more is delivered."""
        if self._delivered_no_ack:
            try:
                self.amq.ack(self._delivered_no_ack, OS)
            except (DiskFullError, OSError):
                self._dispatch.without_space(self)
                return False
            self._delivered_no_ack.clear()
        return True

    def _wait_for_head(self, dispatch: Dispatch) -> None:
        held = self.amq.held()
        if held is None or self.is_waiting:
            return
        self.is_waiting = True

        def settled() -> None:
            self.is_waiting = False
            dispatch.mark(self)

        lsn, mode = held
        dispatch.when_settled(lsn, mode, settled)

    # ---- settling ------------------------------------------------------------------------------

    def ack(self, tags: list[int]) -> None:
        self.amq.ack(tags, OS)
        self.counts.ack += len(tags)

    def sent(self, tags: list[int]) -> None:
        self._delivered_no_ack += tags
        self._ack_delivered()

    def requeue(self, tags: list[int]) -> None:
        """Put deliveries back, with one attempt more. If there is no room to log the attempt, they
        are put back without it."""
        try:
            self.amq.requeue(tags, OS)
        except DiskFullError:
            self.amq.release(tags, OS)

    def discard(self, tags: list[int]) -> None:
        """Dead-letter deliveries, or drop them. One for which there is no room goes back to its
        place."""
        for tag in tags:
            try:
                self.amq.reject(tag, OS)
            except DiskFullError:
                self.amq.release([tag], OS)
            except SettledError:
                continue

    def release(self, tags: list[int]) -> None:
        self.amq.release(tags, OS)

    def pending_among(self, tags: list[int]) -> list[int]:
        found: list[int] = []
        try:
            for tag in tags:
                if self.amq.backing.pending(tag) is not None:
                    found.append(tag)
        except OSError:  # where it is cannot be read, so that it was not settled
            return found + tags[tags.index(tag) :]
        return found

    def before_return(self) -> None:
        if self.amq.drops_returned and not self.is_deleted:
            self.serve()

    def give_back(self, tags: list[int]) -> None:
        if self.is_quorum or self.amq.options.max_attempts is not None:
            self.requeue(tags)
        else:
            self.release(tags)

    def settle_failed(self, tags: list[int], how: int, budget: TurnBudget) -> int:
        done = self._settle_failed(tags, how, budget)
        if how not in (ACK, DISCARD):
            self._dispatch.counts.messages.requeue += done
        return done

    def _settle_failed(self, tags: list[int], how: int, budget: TurnBudget) -> int:
        options = self.amq.options
        is_quick = options.max_attempts is None and options.requeue_delay_ms is None
        if how == ACK or (how != DISCARD and is_quick and not self.amq.drops_returned):
            return super().settle_failed(tags, how, budget)
        # Each may move, to a delay or as a dead letter, which costs as much as its header is long,
        # for each target.
        size = 1
        done = 0
        while done < len(tags):
            some = tags[done : done + size]
            before = self.amq.dead_letters.sent_bytes
            super().settle_failed(some, how, budget)
            done += len(some)
            sent = self.amq.dead_letters.sent_bytes - before
            budget.left -= sent // DEAD_LETTER_STEP_BYTES
            size = 1 if sent else min(size * 2, FAILED_SLICE)
            if budget.left <= 0 and budget.is_over():
                break
        return done


def _window_of(
    amq: AMQQueue, arguments: dict[str, object], dispatch: Dispatch, is_durable: bool
) -> KeyWindow | None:
    """Return the keys by which a queue knows duplicates; None: it takes them."""
    if arguments.get(DEDUPLICATION) is not True:
        return None
    size, ttl_ms = arguments.get(CACHE_SIZE, CACHE_SIZE_DEFAULT), arguments.get(CACHE_TTL)
    assert isinstance(size, int), "it was checked"
    window = dispatch.engine.windows.of(b"q" + amq.backing.index(0).name)
    window.is_logged = is_durable
    window.set_up(size, ttl_ms if isinstance(ttl_ms, int) else None)
    return window


def lengths_of(ready: int, depth: int) -> dict[str, int]:
    """Return how many messages there are, by the names of RabbitMQ's columns."""
    return {
        "messages": depth,
        "messages_ready": ready,
        "messages_unacknowledged": depth - ready,
    }


def not_counted(_: int) -> None:
    """Do nothing: the queue is in no table."""
