"""Consumers: who wants a queue's messages, and whose turn it is.

A consumer is ready when its channel may be given something (its client reads, its prefetch has
room) and its own prefetch has room. Among the ready ones the highest priority wins; within a
priority they take turns, one message each: fair round robin. With a single active consumer only the
first that came is asked, until it goes; then the next becomes active.

    x-priority 10   [c4 c7]      each a ring: who has been given a message goes to its end
    x-priority  0   [c1 c2 c3]

Nothing is kept of who is ready: it changes with each delivery and each ack, and asking costs two
comparisons. What is asked often, a queue with many consumers that are all full, is asked once per
turn only (dispatch.py).

Hot: `next_ready` runs for each delivery.

Not here: channels (channel.py), what a consumer is sent (deliver.py).
"""

from abc import abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Final

from penstock.broker.roles import Owing
from penstock.codec.fields import decode_table, encode_table
from penstock.native import mypyc_attr
from penstock.queues.backing_queue import Delivery

if TYPE_CHECKING:
    from penstock.broker.roles import Source
    from penstock.broker.served_queue import Served

CONSUMER_BYTES: Final = 500  # measured: a consumer without arguments


@mypyc_attr(allow_interpreted_subclasses=True)
class ConsumerChannel(Owing):
    """A channel, as its consumers see it. `can_deliver`: it may be given another message; kept by
    the channel whenever something changes that decides it."""

    can_deliver: bool = True

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
        self.unacked: int = 0
        self.is_cancelled: bool = False
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


class Consumers:
    """Those of one queue. is_single_active: only one of them is given messages."""

    def __init__(self, *, is_single_active: bool = False) -> None:
        self.count: int = 0
        self.is_single_active: bool = is_single_active
        self.active: Consumer | None = None
        self._only: Consumer | None = None  # if there is but one
        self._rings: list[tuple[int, deque[Consumer]]] = []  # by priority, the highest first

    def add(self, consumer: Consumer) -> None:
        """One more; it is the last of its priority."""
        for priority, ring in self._rings:
            if priority == consumer.priority:
                ring.append(consumer)
                break
        else:
            self._rings.append((consumer.priority, deque([consumer])))
            self._rings.sort(key=_descending)
        self.count += 1
        self._changed()

    def remove(self, consumer: Consumer) -> None:
        """One less; unknown ones are ignored."""
        for priority, ring in self._rings:
            if priority == consumer.priority and consumer in ring:
                ring.remove(consumer)
                self.count -= 1
                break
        self._rings = [(priority, ring) for priority, ring in self._rings if ring]
        if self.active is consumer:
            self.active = None
        self._changed()

    def _changed(self) -> None:
        self._only = self._rings[0][1][0] if self.count == 1 else None
        if self.is_single_active and self.active is None and self._rings:
            self.active = self._rings[0][1][0]

    def next_ready(self) -> Consumer | None:
        """Whose turn it is; None if nobody may be given a message. Who is returned goes to the end
        of its ring."""
        only = self.active if self.is_single_active else self._only
        if only is not None:
            return only if only.is_ready() else None
        for _, ring in self._rings:
            for _ in range(len(ring)):
                consumer = ring[0]
                ring.rotate(-1)
                if consumer.is_ready():
                    return consumer
        return None

    def room(self) -> int:
        """How many of them are ready: for messages that are for whoever waits now, or nobody."""
        return len([consumer for consumer in self.all() if consumer.is_ready()])

    def all(self) -> list[Consumer]:
        """All of them, the highest priority first."""
        return [consumer for _, ring in self._rings for consumer in ring]

    def has_exclusive(self) -> bool:
        """Whether the one that there is wants to be alone."""
        return any(consumer.is_exclusive for consumer in self.all())

    def cancel_all(self) -> None:
        """The queue is gone: each of them is told."""
        consumers = self.all()
        self._rings = []
        self.count = 0
        self.active = None
        self._only = None
        for consumer in consumers:
            consumer.is_cancelled = True
            consumer.channel.cancelled(consumer)


def _descending(ring: tuple[int, deque[Consumer]]) -> int:
    return -ring[0]
