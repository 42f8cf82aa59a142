"""Firehose: a copy of each message that comes and goes, while an operator has turned it on.

RabbitMQ's tracer, with its names: messages are published to the exchange amq.rabbitmq.trace, with
the routing key `publish.<exchange>` or `deliver.<queue>`, the body as it was, and these headers:

    exchange_name, routing_keys, properties    of the message
    node, vhost, connection, channel, user     where it came or went
    routed_queues                              of a publish
    redelivered                                of a delivery, 0 or 1

While it is off it costs nothing: routes that are found while it is on are special (publish.py), and
consumers forget the address of their last message, so that the slow path of each delivery
(output.write_delivery) calls `delivered`. Copies wait in the outbox. What goes through the exchange
itself is not traced. A body of more than a MiB, which is not in RAM, is left out. After a restart
it is off.
"""

from collections.abc import Callable
from typing import Final

from penstock.broker.background_tasks import BackgroundTask
from penstock.broker.broker_queue import Consumer, QueueOrStream
from penstock.broker.dispatch import Dispatch
from penstock.broker.outbox import Outbox
from penstock.codec.properties import BasicProperties
from penstock.queues.amqp_headers import short_string, split_address
from penstock.queues.backing_queue import Delivery
from penstock.routing.router import Router

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
        exchange, headers = self._headers(facts, address, props)
        headers["routed_queues"] = list(names)
        self.add(f"publish.{exchange}", BasicProperties(headers=headers), body)

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
        self.add(f"deliver.{queue}", BasicProperties(headers=headers), delivery.message.body or b"")

    def _headers(
        self, facts: tuple[str, int, str], address: bytes, props: bytes
    ) -> tuple[str, dict[str, object]]:
        raw_exchange, raw_key = split_address(address)
        exchange = raw_exchange.decode("utf-8", "surrogateescape")
        return exchange, {
            "exchange_name": exchange,
            "routing_keys": [raw_key.decode("utf-8", "surrogateescape")],
            "properties": BasicProperties.decode(props).given(),
            "node": NODE, "vhost": self._vhost, "connection": facts[0], "channel": facts[1],
            "user": facts[2],
        }  # fmt: skip
