"""The publisher and the consumers of the main job: ordinary AMQP clients, written with pika.

Nothing here knows that the broker is Penstock. Each client is a process of its own, whose
connection may end at any time: it connects again and goes on.

    Publisher   publishes with confirms, up to IN_FLIGHT_MAX messages ahead of them. When the
                connection ends it does not know what became of those that were not confirmed, so it
                sends them again, and tells which: they may be there twice.
    Consumer    consumes from all queues, with a prefetch, and acknowledges what it has written into
                its ledger. What it cannot read it rejects; the broker makes a dead letter of it.

A ledger is a text file that is only appended to: queue, row, delay, carrier, checksum of the body,
and whether the message came as redelivered. It shows what was done twice.
"""

import json
import logging
import os
import signal
import zlib
from collections import deque
from collections.abc import Iterator
from itertools import islice
from multiprocessing.connection import Connection

import pika
from flights_data import cut, flights, poisoned_rows
from pika.adapters.select_connection import IOLoop
from pika.channel import Channel

EXCHANGE = "flights"
IN_FLIGHT_MAX = 2_000
CHUNK = 200  # published in one go, then what has arrived is looked at
PREFETCH = 400
ACK_EACH = 100  # one ack for so many, or for what there is when nothing comes
TELL_S = 0.1
TELL_EACH = 500  # messages; so often too
RECONNECT_S = 0.1

Told = dict[str, object]
Message = tuple[str, str, bytes]  # routing key, message id, body


class Client:
    """A connection with one channel, made again whenever it ends."""

    def __init__(self, url: str, pipe: Connection) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one decides
        logging.getLogger("pika").setLevel(logging.CRITICAL)
        self._parameters = pika.URLParameters(url)
        self._pipe = pipe
        self._loop = IOLoop()
        self._connection: pika.SelectConnection | None = None
        self._channel: Channel | None = None
        self._is_over = False

    def run(self) -> None:
        """Until it is over."""
        self._connect()
        self._loop.call_later(TELL_S, self._tick)
        try:
            self._loop.start()
        except (BrokenPipeError, ConnectionResetError):
            pass  # nobody wants it any more

    def tell(self, **what: object) -> None:
        self._pipe.send(what)

    def on_channel(self, channel: Channel) -> None:
        """A new channel is open."""

    def on_tick(self) -> None:
        """Each TELL_S."""

    def end(self) -> None:
        """Close, and leave `run`."""
        self._is_over = True
        if self._connection is not None and self._connection.is_open:
            self._connection.close()
        else:
            self._loop.stop()

    def _connect(self) -> None:
        self._connection = pika.SelectConnection(
            self._parameters, custom_ioloop=self._loop, on_open_callback=self._on_open,
            on_open_error_callback=self._on_closed, on_close_callback=self._on_closed,
        )  # fmt: skip

    def _on_open(self, connection: pika.SelectConnection) -> None:
        connection.channel(on_open_callback=self._on_channel)

    def _on_channel(self, channel: Channel) -> None:
        self._channel = channel
        channel.add_on_close_callback(self._on_channel_closed)
        self.on_channel(channel)

    def _on_channel_closed(self, channel: Channel, reason: Exception) -> None:
        self._channel = None
        if not self._is_over and channel.connection.is_open:
            self.tell(note=f"its channel was closed: {reason}")
            channel.connection.close()

    def _on_closed(self, _: object, reason: Exception) -> None:
        self._channel = None
        if self._is_over:
            self._loop.stop()
        else:
            self._loop.call_later(RECONNECT_S, self._connect)

    def _tick(self) -> None:
        self.on_tick()
        self._loop.call_later(TELL_S, self._tick)


class Publisher(Client):
    """Publishes the first `rows` flights."""

    def __init__(self, url: str, pipe: Connection, rows: int) -> None:
        super().__init__(url, pipe)
        self._messages = messages(rows)
        self._waiting: deque[Message] = deque()  # sent once, on a connection that has ended
        self._in_flight: deque[tuple[int, Message]] = deque()  # by delivery tag
        self._tag = 0
        self._properties = pika.BasicProperties(content_type="application/json", delivery_mode=2)
        self._is_publishing = False
        self._is_at_end = False
        self._told = 0
        self.confirmed = self.returned = self.refused = 0

    def on_channel(self, channel: Channel) -> None:
        again = [message for _, message in self._in_flight]
        if again:
            self.tell(resent=[message[1] for message in again])
        self._waiting.extendleft(reversed(again))
        self._in_flight.clear()
        self._tag = 0
        channel.add_on_return_callback(self._on_returned)
        channel.confirm_delivery(self._on_confirm, callback=lambda _: self._go_on())

    def on_tick(self) -> None:
        self._told = self.confirmed
        self.tell(confirmed=self.confirmed, returned=self.returned, refused=self.refused)

    def _go_on(self) -> None:
        if not self._is_publishing and self._channel is not None:
            self._is_publishing = True
            self._publish()

    def _publish(self) -> None:
        channel = self._channel
        room = min(CHUNK, IN_FLIGHT_MAX - len(self._in_flight))
        if channel is None or room <= 0:
            self._is_publishing = False
            return
        chunk = [self._waiting.popleft() for _ in range(min(room, len(self._waiting)))]
        chunk += islice(self._messages, room - len(chunk))
        properties = self._properties
        for message in chunk:
            key, properties.message_id, body = message
            self._tag += 1
            self._in_flight.append((self._tag, message))
            channel.basic_publish(EXCHANGE, key, body, properties, mandatory=True)
        if chunk:
            self._loop.add_callback_threadsafe(self._publish)
            return
        self._is_publishing = False
        self._is_at_end = True
        self._end_if_confirmed()

    def _on_confirm(self, frame: pika.frame.Method) -> None:
        tag, in_flight = frame.method.delivery_tag, self._in_flight
        is_ack = isinstance(frame.method, pika.spec.Basic.Ack)
        while in_flight and in_flight[0][0] <= tag:
            _, message = in_flight.popleft()
            if is_ack:
                self.confirmed += 1
            else:
                self.refused += 1
                self._waiting.append(message)
        if self.confirmed >= self._told + TELL_EACH:
            self.on_tick()
        if self._is_at_end and not self._waiting:
            self._end_if_confirmed()
        elif len(in_flight) < IN_FLIGHT_MAX // 2:
            self._go_on()

    def _end_if_confirmed(self) -> None:
        if not self._in_flight and not self._waiting and not self._is_over:
            self.on_tick()
            self.end()

    def _on_returned(self, *_: object) -> None:
        self.returned += 1


def messages(rows: int) -> Iterator[Message]:
    """All that is to be published; the id of a message is its flight's row."""
    poisoned = poisoned_rows(rows)
    for flight in flights(rows):
        yield flight.key, str(flight.row), flight.body
        if flight.row in poisoned:
            yield flight.cut_key, f"{flight.row}-cut", cut(flight.body)


class Consumer(Client):
    """Consumes from the queues until it is told to stop: by the end of the pipe's other side."""

    def __init__(self, url: str, pipe: Connection, queues: list[str], ledger: str) -> None:
        super().__init__(url, pipe)
        self._queues = queues
        self._ledger = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._lines: list[str] = []
        self._tag = 0  # the last one that stands in _lines
        self._told = 0
        self._of: dict[str, str] = {}  # queue by consumer tag
        self.consumed = self.rejected = self.redelivered = 0

    def on_channel(self, channel: Channel) -> None:
        self._lines.clear()  # not acknowledged, so they come again
        channel.basic_qos(prefetch_count=PREFETCH)
        for queue in self._queues:
            self._of[channel.basic_consume(queue, self._on_message)] = queue

    def on_tick(self) -> None:
        self._settle()
        self._report()
        if self._pipe.poll():
            self.end()

    def _on_message(
        self, channel: Channel, deliver: pika.spec.Basic.Deliver, _: object, body: bytes
    ) -> None:
        self.redelivered += deliver.redelivered
        try:
            event = json.loads(body)
        except ValueError:
            self._settle()
            channel.basic_reject(deliver.delivery_tag, requeue=False)
            self.rejected += 1
            return
        self._lines.append(
            f"{self._of[deliver.consumer_tag]} {event['row']} {event['dep_delay'] or 0} "
            f"{event['carrier']} {zlib.crc32(body)} {deliver.redelivered:d}\n"
        )
        self._tag = deliver.delivery_tag
        if len(self._lines) >= ACK_EACH:
            self._settle()

    def _report(self) -> None:
        self._told = self.consumed
        self.tell(consumed=self.consumed, rejected=self.rejected, redelivered=self.redelivered)

    def _settle(self) -> None:
        """Write down what was done, then acknowledge it."""
        if self._lines and self._channel is not None:
            os.write(self._ledger, "".join(self._lines).encode())
            self._channel.basic_ack(self._tag, multiple=True)
            self.consumed += len(self._lines)
            self._lines.clear()
            if self.consumed >= self._told + TELL_EACH:
                self._report()


def publish(url: str, pipe: Connection, rows: int) -> None:
    """The whole of a publisher's process."""
    Publisher(url, pipe, rows).run()


def consume(url: str, pipe: Connection, queues: list[str], ledger: str) -> None:
    """The whole of a consumer's process."""
    Consumer(url, pipe, queues, ledger).run()
