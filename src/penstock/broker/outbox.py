"""Outbox, Firehose: messages of the vhost's own for one of its internal exchanges.

They wait until a background task publishes them, because a queue must not be published to while it
delivers. The outbox is bounded: what is beyond it is left out, and an event says how much. Nothing
is kept while nobody has bound the exchange. Events have an outbox too (events.py).

**Firehose**: a copy of each message that comes and goes, while an operator has turned it on.
RabbitMQ's tracer, with its names: messages are published to the exchange amq.rabbitmq.trace, with
the routing key `publish.<exchange>` or `deliver.<queue>`, the body as it was, and these headers:

    exchange_name, routing_keys, properties    of the message
    node, vhost, connection, channel, user     where it came or went
    routed_queues                              of a publish
    redelivered                                of a delivery, 0 or 1

While it is off it costs nothing: routes that are found while it is on are special (publish.py), and
consumers forget the address of their last message, so that the slow path of each delivery
(output.write_delivery) calls `delivered`. What goes through the exchange itself is not traced. A
body of more than a MiB, which is not in RAM, is left out. After a restart it is off.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from penstock.broker.background_tasks import AGAIN, ASLEEP, BackgroundTask
from penstock.broker.broker_queue import BrokerQueue, Consumer, QueueOrStream
from penstock.broker.broker_stream import BrokerStream
from penstock.broker.dispatch import STEP_BYTES, Dispatch, TurnBudget
from penstock.codec.properties import BasicProperties
from penstock.errors import DiskFullError, QueueFullError
from penstock.queues.amqp_headers import short_string, split_address
from penstock.queues.backing_queue import Delivery
from penstock.routing.router import Router, Walk, Way
from penstock.storage.files.durability import NONE

OUTBOX_BYTES_MAX: Final = 8 << 20
MESSAGE_BYTES: Final = 2000  # counted for a message, beside its body
SLICE_STEPS: Final = 1024
MESSAGE_STEPS: Final = 32  # to make a message
PUT_STEPS: Final = 4  # to publish it to a queue
KEY_BYTES_MAX: Final = 255
PERSISTENT: Final = 2


@dataclass(slots=True, eq=False)
class OwnMessage:
    """A message for the exchange. copied: the properties of the message that it is a copy of, as
    bytes: a table takes many times as much when it is decoded. header: of the message itself, once
    it is being published; names: of the queues that are to get it still, once `walk` is done."""

    key: str
    properties: BasicProperties
    body: bytes
    copied: bytes
    header: bytes = b""
    walk: Walk | None = None
    names: list[str] | None = None

    @property
    def size(self) -> int:
        """Return about how many bytes of RAM it takes."""
        return MESSAGE_BYTES + len(self.body) + len(self.copied)


class Outbox(BackgroundTask):
    """The outbox of an exchange. find(name): a queue or stream that can be published to.
    wake(task): runs it. on_event(kind, text): warning."""

    def __init__(
        self, exchange: str, router: Router, find: Callable[[str], QueueOrStream | None],
        dispatch: Dispatch, wake: Callable[[BackgroundTask], None],
        on_event: Callable[[str, str], None],
    ) -> None:  # fmt: skip
        self._exchange = exchange
        self._raw_exchange = short_string(exchange.encode())
        self._router = router
        self._find = find
        self._dispatch = dispatch
        self._wake = wake
        self._on_event = on_event
        self._waiting: deque[OwnMessage] = deque()
        self._bytes: int = 0
        self._left_out: int = 0

    @property
    def is_bound(self) -> bool:
        """Return whether somebody has bound the exchange."""
        return self._router.has_bindings(self._exchange)

    def add(
        self, key: str, properties: BasicProperties, body: bytes = b"", copied: bytes = b""
    ) -> None:
        """Publish this later. copied: the properties of the message that it is a copy of."""
        if not self.is_bound:
            return
        message = OwnMessage(key, properties, body, copied)
        if self._bytes + message.size > OUTBOX_BYTES_MAX:
            self._left_out += 1
            return
        self._bytes += message.size
        self._waiting.append(message)
        self._wake(self)

    def step(self) -> int:
        """Publish some messages; one that needs more steps goes on with the next slice."""
        budget = self._dispatch.budget
        assert budget is not None, "tasks run when the vhost is open"
        budget.begin_later(SLICE_STEPS)
        while self._waiting:
            self._publish(self._waiting[0], budget)
            if budget.left <= 0 and budget.is_over():
                break
        if self._waiting:
            return AGAIN
        if self._left_out:
            text = f"{self._exchange}: {self._left_out} messages were left out: more than "
            text += f"{OUTBOX_BYTES_MAX} bytes waited, or a queue had no room"
            self._on_event("warning", text)
            self._left_out = 0
        return ASLEEP

    def failed(self, error: Exception) -> None:
        """Raise the error, so that it is reported, and continue with the other messages."""
        if self._waiting:
            self._take_first()
            self._wake(self)
        raise error

    def _take_first(self) -> None:
        self._bytes -= self._waiting.popleft().size

    def _publish(self, message: OwnMessage, budget: TurnBudget) -> None:
        """Publish the first message, as far as the turn's budget goes."""
        walk = message.walk
        if walk is None:
            walk = message.walk = self._begun(message)
            budget.left -= MESSAGE_STEPS + (len(message.copied) + len(message.body)) // STEP_BYTES
        names = message.names
        if names is None:
            while not walk.is_done:
                if budget.left <= 0 and budget.is_over():
                    return
                budget.left = walk.advance(budget.left)
            names = message.names = list(walk.queues)
        is_persistent = message.properties.delivery_mode == PERSISTENT
        mode = self._dispatch.mode if is_persistent else NONE
        while names:
            budget.left -= PUT_STEPS
            if not put(self._dispatch, self._find(names.pop()), message.header, message.body, mode):
                self._left_out += 1
            if budget.left <= 0 and budget.is_over():
                break
        if not names:
            self._take_first()

    def _begun(self, message: OwnMessage) -> Walk:
        """Make the header of the message, and begin to route it."""
        properties = message.properties
        headers = properties.headers or {}
        if message.copied:
            headers["properties"] = BasicProperties.decode(message.copied).given()
        raw_key = message.key.encode("utf-8", "surrogateescape")[:KEY_BYTES_MAX]
        message.header = b"\x02" + self._raw_exchange + short_string(raw_key) + properties.encode()
        message.properties = BasicProperties(delivery_mode=properties.delivery_mode)
        key = raw_key.decode("utf-8", "surrogateescape")
        return Walk(self._router, Way(self._router, self._exchange), [key], headers)


def put(
    dispatch: Dispatch, queue: QueueOrStream | None, header: bytes, body: bytes, mode: int
) -> bool:
    """Publish a message of the vhost's own to a queue or stream, if it is there. mode: for a queue;
    a stream has that of the vhost. Return False if it has no room."""
    try:
        if isinstance(queue, BrokerStream):
            queue.append(header, body, dispatch.mode)
            dispatch.schedule()
        elif isinstance(queue, BrokerQueue):
            queue.amq.publish(header, body, mode)
            queue.published += 1
            dispatch.mark(queue)
    except (DiskFullError, QueueFullError):
        return False
    return True


TRACE: Final = "amq.rabbitmq.trace"
NODE: Final = "penstock"
_RAW_TRACE: Final = short_string(TRACE.encode())


class Firehose(Outbox):
    """The firehose of one vhost. find(name): a queue or stream that can be published to.
    wake(task): runs it. on_event(kind, text): warning."""

    def __init__(
        self, vhost: str, router: Router, find: Callable[[str], QueueOrStream | None],
        dispatch: Dispatch, wake: Callable[[BackgroundTask], None],
        on_event: Callable[[str, str], None],
    ) -> None:  # fmt: skip
        super().__init__(TRACE, router, find, dispatch, wake, on_event)
        self.is_on: bool = False
        self.on_switched: Callable[[bool], None] | None = None  # called after `is_on` was set
        self._vhost = vhost

    # ---- in ------------------------------------------------------------------------------------

    def published(
        self, facts: tuple[str, int, str], address: bytes, props: bytes, body: bytes,
        names: list[str],
    ) -> None:  # fmt: skip
        """Take a copy of a publish. facts: connection, channel, user. address: exchange and key,
        each with its length. names: of the queues that get it."""
        if address.startswith(_RAW_TRACE):
            return
        exchange, headers = self._headers(facts, address)
        headers["routed_queues"] = list(names)
        self.add(f"publish.{exchange}", BasicProperties(headers=headers), body, props)

    def delivered(
        self, consumer: Consumer, address: bytes, props: bytes, delivery: Delivery
    ) -> None:
        """Take a copy of a delivery to a consumer."""
        self.sent(consumer.channel.facts(), consumer.queue.name, address, props, delivery)

    def sent(
        self, facts: tuple[str, int, str], queue: str, address: bytes, props: bytes,
        delivery: Delivery,
    ) -> None:  # fmt: skip
        """Take a copy of a delivery from a queue."""
        if address.startswith(_RAW_TRACE):
            return
        _, headers = self._headers(facts, address)
        headers["redelivered"] = int(delivery.is_redelivered)
        body = delivery.message.body or b""
        self.add(f"deliver.{queue}", BasicProperties(headers=headers), body, props)

    def _headers(
        self, facts: tuple[str, int, str], address: bytes
    ) -> tuple[str, dict[str, object]]:
        raw_exchange, raw_key = split_address(address)
        exchange = raw_exchange.decode("utf-8", "surrogateescape")
        return exchange, {
            "exchange_name": exchange,
            "routing_keys": [raw_key.decode("utf-8", "surrogateescape")],
            "node": NODE, "vhost": self._vhost, "connection": facts[0], "channel": facts[1],
            "user": facts[2],
        }  # fmt: skip
