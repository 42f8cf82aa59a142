"""Migrate: the messages of a queue go from one broker of AMQP 0-9-1 to another.

    old  basic.deliver  ->  new  basic.publish (mandatory, with confirms)  ->  old  basic.ack

A message is acknowledged at the old broker after the new one has confirmed it, so it is always at
one of them at least: a kill or a lost connection loses nothing. What was not acknowledged then
returns to its place at the old broker, and up to IN_FLIGHT messages of a queue may be at both; the
next run goes on from there.

Body and properties are the same bytes. The routing key is kept, too: the message goes through an
exchange of its queue's own (fanout, not durable, deleted at the end), whose name consumers see as
the message's exchange. A header CC, which the default exchange would follow, does nothing there.

A TTL starts again, and the new broker does not know whether a message was delivered before.
"""

import hashlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Final

from penstock.client.connection import ClientChannel, ClientConnection, Received
from penstock.codec.spec import (
    BasicQos,
    ExchangeDeclare,
    ExchangeDelete,
    QueueBind,
    QueueDeclare,
    QueueDeclareOk,
)
from penstock.errors import PenstockError

IN_FLIGHT: Final = 256  # messages of a queue that are at both brokers at most
IDLE_S: Final = 1.0  # without a message, before the old broker is asked whether there are more
IDLE_MAX: Final = 3
PREFIX: Final = "penstock.migrate."


class MigrateError(PenstockError):
    """A queue's messages could not all be moved. Those that were are at the new broker; the others
    are at the old one, as they were."""


@dataclass(frozen=True, slots=True)
class MovedQueue:
    """What became of a queue: ready messages at the old and the new broker before, how many were
    moved, and those that are at each after it. old_consumers: others of the old broker, which may
    hold messages."""

    name: str
    old_before: int
    new_before: int
    moved: int
    old_after: int
    new_after: int
    old_consumers: int


def _state(channel: ClientChannel, queue: str) -> QueueDeclareOk:
    """Return the counts of a queue. Raises ChannelError 404 if there is none."""
    found = channel.ask(QueueDeclare(queue=queue, passive=True)).result()
    assert isinstance(found, QueueDeclareOk), found
    return found


def count(channel: ClientChannel, queue: str) -> int:
    """Return the ready messages of a queue. Raises ChannelError 404 if there is none."""
    return _state(channel, queue).message_count


class _UnderWay:
    """The messages under way of one queue."""

    def __init__(
        self, source: ClientChannel, target: ClientChannel, queue: str, exchange: str,
        on_progress: Callable[[int], None],
    ) -> None:  # fmt: skip
        self.moved = 0
        self._source = source
        self._target = target
        self._queue = queue
        self._exchange = exchange
        self._on_progress = on_progress
        self._sent: deque[tuple[int, Future[bool] | None]] = deque()
        self._returned: list[Received] = []
        target.on_return = self._returned.append

    def send(self, message: Received) -> None:
        """Publish a message at the new broker."""
        future = self._target.publish(
            self._exchange, message.routing_key, message.body, message.header, mandatory=True
        )
        self._sent.append((message.delivery_tag, future))
        self.settle(IN_FLIGHT // 2)

    def settle(self, most: int) -> None:
        """Acknowledge what was confirmed; wait until at most so many are under way. MigrateError:
        one was refused."""
        tag = 0
        try:
            while self._sent and (len(self._sent) > most or _is_done(self._sent[0][1])):
                future = self._sent[0][1]
                if future is not None and (not future.result() or self._returned):
                    why = "refuses a message" if not self._returned else "has no way for a message"
                    raise MigrateError(
                        f"queue {self._queue!r}: the new broker {why}; {self.moved} were moved, "
                        "the others are at the old broker"
                    )
                tag = self._sent.popleft()[0]
                self.moved += 1
        finally:
            if tag:
                self._source.ack(tag, multiple=True)
                self._on_progress(self.moved)


def _is_done(future: "Future[bool] | None") -> bool:
    return future is None or future.done()


def move(
    old: ClientConnection, new: ClientConnection, queue: str, *,
    on_progress: Callable[[int], None] = lambda _moved: None, idle_s: float = IDLE_S,
) -> MovedQueue:  # fmt: skip
    """Move all ready messages of a queue that both brokers have. on_progress: called with how many
    were moved so far.

    Returns when the old queue is empty, or gives no more messages although it has some, as a stream
    does, or a queue with another single active consumer. Raises ChannelError (404: no such queue),
    MigrateError, ConnectionLostError; then the caller closes both connections, which returns what
    was not acknowledged to the old queue.
    """
    source, target = old.channel(), new.channel()
    old_before, new_before = count(source, queue), count(target, queue)
    exchange = PREFIX + hashlib.sha256(queue.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    target.select_confirms()
    target.ask(ExchangeDeclare(exchange=exchange, type="fanout", auto_delete=True)).result()
    target.ask(QueueBind(queue=queue, exchange=exchange)).result()
    source.ask(BasicQos(prefetch_count=IN_FLIGHT)).result()
    arrived: SimpleQueue[Received | Exception] = SimpleQueue()
    moving = _UnderWay(source, target, queue, exchange, on_progress)
    tag, begun = source.consume(queue, arrived.put, arrived.put)
    begun.result()
    idle = 0
    while idle < IDLE_MAX:
        try:
            moving.send(_message(arrived.get(timeout=idle_s)))
            idle = 0
        except Empty:
            moving.settle(0)
            if not count(source, queue):
                break
            idle += 1
    source.cancel(tag).result()
    while not arrived.empty():
        moving.send(_message(arrived.get()))
    moving.settle(0)
    target.ask(ExchangeDelete(exchange=exchange)).result()
    left = _state(source, queue)
    found = MovedQueue(
        queue, old_before, new_before, moving.moved, left.message_count, count(target, queue),
        left.consumer_count,
    )  # fmt: skip
    source.close()
    target.close()
    return found


def _message(arrived: Received | Exception) -> Received:
    if isinstance(arrived, Exception):
        raise arrived
    return arrived
