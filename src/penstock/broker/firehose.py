"""Firehose: a copy of each message that comes and goes, while an operator has turned it on.

RabbitMQ's tracer, with its names: messages are published to the exchange amq.rabbitmq.trace, with
the routing key `publish.<exchange>` or `deliver.<queue>`, the body as it was, and these headers:

    exchange_name, routing_keys, properties    of the message
    node, vhost, connection, channel, user     where it came or went; a delivery has no user
    routed_queues                              of a publish
    redelivered                                of a delivery, 0 or 1

While it is off it costs nothing: routes that are found while it is on are special (publish.py), and
consumers forget the address of their last message, so that the slow path of each delivery
(output.write_delivery) calls `delivered`. Copies wait in an outbox, which a background task
publishes, because a queue must not be published to while it delivers. The outbox is bounded: what
is beyond it is left out, and an event says how much. What goes through the exchange itself is not
traced. A body of more than a MiB, which is not in RAM, is left out. After a restart it is off.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from penstock.broker.background_tasks import AGAIN, ASLEEP, BackgroundTask
from penstock.broker.broker_queue import BrokerQueue, Consumer, QueueOrStream
from penstock.broker.broker_stream import BrokerStream
from penstock.broker.dispatch import Dispatch
from penstock.codec.properties import PROPERTY_NAMES, BasicProperties
from penstock.errors import DiskFullError, QueueFullError
from penstock.queues.amqp_headers import short_string, split_address
from penstock.queues.backing_queue import Delivery
from penstock.routing.router import ROUTE_STEPS_MAX, Router, Walk, Way
from penstock.storage.files.durability import NONE

TRACE: Final = "amq.rabbitmq.trace"
NODE: Final = "penstock"
_RAW_TRACE: Final = bytes((len(TRACE),)) + TRACE.encode()
OUTBOX_BYTES_MAX: Final = 8 << 20
COPY_BYTES: Final = 2000  # counted for a copy, beside its body
SLICE: Final = 64
KEY_BYTES_MAX: Final = 255


class Copy:
    """A message for the exchange, not routed yet."""

    __slots__ = ("body", "headers", "key")

    def __init__(self, key: str, headers: dict[str, object], body: bytes) -> None:
        self.key: str = key
        self.headers: dict[str, object] = headers
        self.body: bytes = body


class Firehose(BackgroundTask):
    """The firehose of one vhost. find(name): a queue or stream that can be published to.
    wake(task): runs it. on_event(kind, text): warning."""

    def __init__(
        self, vhost: str, router: Router, find: Callable[[str], QueueOrStream | None],
        dispatch: Dispatch, wake: Callable[[BackgroundTask], None],
        on_event: Callable[[str, str], None],
    ) -> None:  # fmt: skip
        self.is_on: bool = False
        self._vhost = vhost
        self._router = router
        self._find = find
        self._dispatch = dispatch
        self._wake = wake
        self._on_event = on_event
        self._outbox: deque[Copy] = deque()
        self._bytes: int = 0
        self._left_out: int = 0

    # ---- in ------------------------------------------------------------------------------------

    def published(
        self, facts: tuple[str, int, str], address: bytes, props: bytes, body: bytes,
        names: list[str],
    ) -> None:  # fmt: skip
        """Take a copy of a publish. facts: connection, channel, user. address: exchange and key,
        each with its length. names: of the queues that get it."""
        if address.startswith(_RAW_TRACE):
            return
        exchange, headers = self._headers(facts, address, props)
        headers["user"] = facts[2]
        headers["routed_queues"] = list(names)
        self._add(f"publish.{exchange}", headers, body)

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
        _, headers = self._headers(facts, address, props)
        headers["redelivered"] = int(delivery.is_redelivered)
        self._add(f"deliver.{queue}", headers, delivery.message.body or b"")

    def _headers(
        self, facts: tuple[str, int, str], address: bytes, props: bytes
    ) -> tuple[str, dict[str, object]]:
        raw_exchange, raw_key = split_address(address)
        exchange = raw_exchange.decode("utf-8", "surrogateescape")
        given = BasicProperties.decode(props)
        values = {name: getattr(given, name) for name in PROPERTY_NAMES}
        return exchange, {
            "exchange_name": exchange,
            "routing_keys": [raw_key.decode("utf-8", "surrogateescape")],
            "properties": {name: value for name, value in values.items() if value is not None},
            "node": NODE, "vhost": self._vhost, "connection": facts[0], "channel": facts[1],
        }  # fmt: skip

    def _add(self, key: str, headers: dict[str, object], body: bytes) -> None:
        if not self._router.has_bindings(TRACE):
            return
        size = COPY_BYTES + len(body)
        if self._bytes + size > OUTBOX_BYTES_MAX:
            self._left_out += 1
            return
        self._bytes += size
        self._outbox.append(Copy(key, headers, body))
        self._wake(self)

    # ---- out -----------------------------------------------------------------------------------

    def step(self) -> int:
        """Publish some copies."""
        for _ in range(min(SLICE, len(self._outbox))):
            copy = self._outbox.popleft()
            self._bytes -= COPY_BYTES + len(copy.body)
            self._publish(copy)
        if self._outbox:
            return AGAIN
        if self._left_out:
            text = f"{TRACE}: {self._left_out} copies were left out, more than {OUTBOX_BYTES_MAX} "
            self._on_event("warning", f"{text} bytes waited")
            self._left_out = 0
        return ASLEEP

    def failed(self, error: Exception) -> None:
        """Raise the error, so that it is reported, and continue with the other copies."""
        if self._outbox:
            self._wake(self)
        raise error

    def _publish(self, copy: Copy) -> None:
        raw_key = copy.key.encode("utf-8", "surrogateescape")[:KEY_BYTES_MAX]
        props = BasicProperties(headers=copy.headers).encode()
        header = b"\x02" + _RAW_TRACE + short_string(raw_key) + props
        key = raw_key.decode("utf-8", "surrogateescape")
        walk = Walk(self._router, Way(self._router, TRACE), [key], copy.headers)
        walk.advance(ROUTE_STEPS_MAX)
        if not walk.is_done:
            return
        for name in walk.queues:
            queue = self._find(name)
            try:
                if isinstance(queue, BrokerStream):
                    queue.append(header, copy.body, self._dispatch.mode)
                    self._dispatch.schedule()
                elif isinstance(queue, BrokerQueue):
                    queue.amq.publish(header, copy.body, NONE)
                    queue.published += 1
                    self._dispatch.mark(queue)
            except (DiskFullError, QueueFullError):
                self._left_out += 1
