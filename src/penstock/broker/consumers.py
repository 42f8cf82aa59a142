"""Consumers: who wants a queue's messages, and whose turn it is.

A consumer is ready when its channel may be given something (its client reads, its prefetch has
room) and its own prefetch has room. Among the ready ones the highest priority wins; within a
priority they take turns, one message each: fair round robin. With a single active consumer only the
first that came is asked, until it goes; then the next becomes active.

    x-priority 10   [c4 c7]      each a ring: who has been given a message goes to its end
    x-priority  0   [c1 c2 c3]   parked: c5 c6

Whether a consumer is ready changes with each delivery and each ack, so it is asked, with two
comparisons, and not kept. But who was asked and was not ready is parked beside its ring, so that
20,000 consumers that are all full are not asked again for each message; whoever makes room for it
(an ack, a client that reads again) calls `Consumer.wake`, and it is the last of its ring again. So
each ack pays for one question at most. Adding and removing one costs the same however many there
are, and whatever their priorities.

Hot: `next_ready` runs for each delivery.

Not here: channels (channel.py), what a consumer is sent (deliver.py).
"""

from abc import abstractmethod
from bisect import bisect_left, insort
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from penstock.broker.roles import Owing
from penstock.codec.fields import decode_table, encode_table
from penstock.native import mypyc_attr
from penstock.queues.backing_queue import Delivery

if TYPE_CHECKING:
    from penstock.broker.roles import Source
    from penstock.broker.served_queue import Served

CONSUMER_BYTES: Final = 500  # measured: a consumer without arguments


NO_LIMIT: Final = 1 << 60  # messages
# Which deliveries say x-delivery-count, and whether x-death says attempts: a sum of these.
NO_COUNTS: Final = 0
COUNTS_OF_RETURNS: Final = 1  # of messages that came back
ALL_COUNTS: Final = 2  # from 0: of basic.get from a queue of type quorum
COUNTS_OF_DEATHS: Final = 4
COUNTS_OF_BOXES: Final = COUNTS_OF_RETURNS | COUNTS_OF_DEATHS


@mypyc_attr(allow_interpreted_subclasses=True)
class ConsumerChannel(Owing):
    """A channel, as its consumers see it. `can_deliver`: it may be given another message; kept by
    the channel whenever something changes that decides it. Consumers that share one prefetch take
    turns, whatever queues they are of."""

    can_deliver: bool = True
    is_shared: bool = False  # several consumers have one prefetch

    def before(self, consumer: "Consumer") -> "Consumer | None":
        """With a shared prefetch: another consumer whose turn it is before this one's, or None."""
        return None

    def room(self) -> int:
        """How many messages all its consumers together may be given now."""
        return NO_LIMIT if self.can_deliver else 0

    @abstractmethod
    def deliver(self, consumer: "Consumer", delivery: Delivery) -> None:
        """Send a message to the client; it is unacked then, unless the consumer is no_ack."""

    @abstractmethod
    def cancelled(self, consumer: "Consumer") -> None:
        """The queue is gone: the consumer is no more, and its client is told if it wants to be."""


class Consumer:
    """One basic.consume. prefetch: of its own, 0 for no limit. unacked: deliveries of it that are
    not settled yet. source: where they come from: the queue, or its own reading of a stream."""

    def __init__(
        self, tag: str, channel: ConsumerChannel, queue: "Served", *, no_ack: bool,
        is_exclusive: bool, priority: int, prefetch: int, arguments: dict[str, object],
    ) -> None:  # fmt: skip
        self.tag: str = tag
        self.channel: ConsumerChannel = channel
        self.queue: Served = queue
        self.source: Source = queue
        self.no_ack: bool = no_ack
        self.is_exclusive: bool = is_exclusive
        self.priority: int = priority
        self.prefetch: int = prefetch
        self._arguments: bytes = encode_table(arguments) if arguments else b""
        self.counts: int = NO_COUNTS
        self.unacked: int = 0
        self.is_cancelled: bool = False
        self.is_parked: bool = False  # it was not ready when it was asked last
        self.delivered: int = 0
        # The basic.deliver frame in front of and behind the delivery tag, for the last address.
        self.address: bytes = b""
        self.front: bytes = b""
        self.fresh: bytes = b""
        self.redelivered: bytes = b""

    @property
    def arguments(self) -> dict[str, object]:
        """The arguments of its basic.consume, which are kept encoded, decoded at each call."""
        return decode_table(self._arguments)[0] if self._arguments else {}

    @property
    def held_bytes(self) -> int:
        """What it takes in RAM, about."""
        return CONSUMER_BYTES + len(self._arguments)

    def is_ready(self) -> bool:
        """Whether it may be given a message now."""
        return (
            self.channel.can_deliver
            and (not self.prefetch or self.unacked < self.prefetch)
            and not self.is_cancelled
        )

    def room(self) -> int:
        """How many messages more its own prefetch allows."""
        return self.prefetch - self.unacked if self.prefetch else NO_LIMIT

    def wake(self) -> None:
        """There may be room for another message: it is asked again."""
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
    """Those of one queue. is_single_active: only one of them is given messages."""

    def __init__(self, *, is_single_active: bool = False) -> None:
        self.count: int = 0
        self.is_single_active: bool = is_single_active
        self.active: Consumer | None = None
        self._exclusive: int = 0  # that want to be alone
        self._only: Consumer | None = None  # if there is but one
        self._rings: dict[int, Ring] = {}  # by priority
        self._order: list[int] = []  # priorities of all rings, negative: the highest first
        self._asked: list[int] = []  # of those in which there is anybody to ask

    def add(self, consumer: Consumer) -> None:
        """One more; it is the last of its priority."""
        ring = self._rings.get(consumer.priority)
        if ring is None:
            ring = self._rings[consumer.priority] = Ring(consumer.priority)
            insort(self._order, -consumer.priority)
        self._ask(ring, consumer)
        self.count += 1
        self._exclusive += consumer.is_exclusive
        self._changed()

    def remove(self, consumer: Consumer) -> None:
        """One less; unknown ones are ignored."""
        ring = self._rings.get(consumer.priority)
        if ring is None or not (consumer in ring.ready or consumer in ring.parked):
            return
        if consumer.is_parked:
            consumer.is_parked = False
            del ring.parked[consumer]
        else:
            del ring.ready[consumer]
            if not ring.ready:
                _take(self._asked, -ring.priority)
        if not ring.ready and not ring.parked:
            del self._rings[ring.priority]
            _take(self._order, -ring.priority)
        self.count -= 1
        self._exclusive -= consumer.is_exclusive
        if self.active is consumer:
            self.active = None
        self._changed()

    def _changed(self) -> None:
        self._only = self._first() if self.count == 1 else None
        if self.is_single_active and self.active is None and self._rings:
            self.active = self._first()

    def _first(self) -> Consumer:
        """The first of the highest priority. There is one."""
        ring = self._rings[-self._order[0]]
        return next(iter(ring.ready or ring.parked))

    def _ask(self, ring: Ring, consumer: Consumer) -> None:
        """It is the last of those to ask."""
        if not ring.ready:
            insort(self._asked, -ring.priority)
        ring.ready[consumer] = None

    def unpark(self, consumer: Consumer) -> None:
        """A parked one may be ready (Consumer.wake calls this)."""
        consumer.is_parked = False
        ring = self._rings.get(consumer.priority)
        if ring is not None and consumer in ring.parked:
            del ring.parked[consumer]
            self._ask(ring, consumer)

    def next_ready(self) -> Consumer | None:
        """Whose turn it is; None if nobody may be given a message. Who is returned goes to the end
        of its ring."""
        only = self.active if self.is_single_active else self._only
        if only is not None:
            return only if only.is_ready() else None
        while self._asked:
            ring = self._rings[-self._asked[0]]
            ready = ring.ready
            while ready:
                consumer = next(iter(ready))
                if consumer.is_ready():
                    ready.move_to_end(consumer)
                    return consumer
                del ready[consumer]
                ring.parked[consumer] = None
                consumer.is_parked = True
            del self._asked[0]
        return None

    def room(self, most: int) -> int:
        """How many messages they may be given now, as far as `most`."""
        only = self.active if self.is_single_active else self._only
        if only is not None:
            return min(only.room(), only.channel.room(), most) if only.is_ready() else 0
        room = 0
        left: dict[ConsumerChannel, int] = {}
        for priority in self._asked:
            for consumer in self._rings[-priority].ready:
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
        """All of them, the highest priority first."""
        found: list[Consumer] = []
        for priority in self._order:
            ring = self._rings[-priority]
            found += ring.ready
            found += ring.parked
        return found

    def has_exclusive(self) -> bool:
        """Whether the one that there is wants to be alone."""
        return self._exclusive > 0

    def cancel_all(self) -> None:
        """The queue is gone: each of them is told."""
        consumers = self.all()
        self._rings = {}
        self._order = []
        self._asked = []
        self._exclusive = 0
        self.count = 0
        self.active = None
        self._only = None
        for consumer in consumers:
            consumer.is_cancelled = True
            consumer.channel.cancelled(consumer)


def _take(priorities: list[int], priority: int) -> None:
    """Take one that is there out of a sorted list."""
    del priorities[bisect_left(priorities, priority)]
