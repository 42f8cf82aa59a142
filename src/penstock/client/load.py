"""LoadRun: publishers and consumers, each with a connection and a thread of its own, and how long
messages take from one to the other. It works with any broker of AMQP 0-9-1.

    publisher   body: of this run (4 bytes) | when it was sent, in µs (8) | zeros
                  messages in groups; at most `confirm` of them unconfirmed
    consumer    what is of this run counts into the latencies; acknowledges each `ack_every`

A run ends after `seconds`, or when its publishers have sent `producer_messages` each and, if there
are consumers, these have received as much; or when consumers have received `consumer_messages`
each; or by an error, which `run` raises.
"""

import math
import secrets
import struct
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

from penstock.client.connection import ClientChannel, ClientConnection, Received, connect
from penstock.client.publish_window import ManyPublished
from penstock.clock import Clock
from penstock.codec.properties import BasicProperties
from penstock.codec.spec import BasicQos, ExchangeDeclare, QueueBind, QueueDeclare, QueueDeclareOk
from penstock.errors import PenstockError

HEAD: Final = struct.Struct(">4sQ")
GROUP: Final = 100  # messages in a write, at most
GROUPS_PER_S: Final = 100.0  # at a rate
DIGITS: Final = 6  # binary, of a latency: 3 % at most are cut
PERCENTILES: Final = (50.0, 75.0, 95.0, 99.0, 99.9)


class Latencies:
    """A histogram of µs."""

    def __init__(self) -> None:
        self.count = 0
        self.least_us = 0
        self.most_us = 0
        self._counts: dict[int, int] = {}

    def add(self, us: int, count: int = 1) -> None:
        """Count a latency, so many times."""
        us = max(us, 0)
        shift = max(us.bit_length() - DIGITS, 0)
        self._note(us >> shift << shift, count, us, us)

    def add_all(self, other: "Latencies") -> None:
        """Count all of another histogram."""
        for us, count in other._counts.copy().items():
            self._note(us, count, other.least_us, other.most_us)

    def _note(self, us: int, count: int, least_us: int, most_us: int) -> None:
        self.least_us = min(self.least_us, least_us) if self.count else least_us
        self.most_us = max(self.most_us, most_us)
        self._counts[us] = self._counts.get(us, 0) + count
        self.count += count

    def percentile(self, percent: float) -> int:
        """Return what so many per cent are not above, 0 if there is none."""
        left = max(math.ceil(self.count * percent / 100), 1)
        for us in sorted(self._counts):
            left -= self._counts[us]
            if left <= 0:
                return us
        return 0

    def facts(self) -> dict[str, int]:
        """Return the least, percentiles and the most, in µs; nothing if there is none."""
        if not self.count:
            return {}
        found = {f"p{percent:g}": self.percentile(percent) for percent in PERCENTILES}
        return {"min": self.least_us, **found, "max": self.most_us}


@dataclass(frozen=True)
class LoadOptions:
    """What is to be done. url: of the broker, as for `connect`. queue: "" for one that is deleted
    afterwards. exchange: "" for the default one. routing_key: "" for the queue's name. confirm: how
    many may be unconfirmed, 0: publish without confirms. prefetch, seconds, producer_messages,
    consumer_messages: 0 for no limit. rate: messages per second of each publisher, 0: as many as it
    can. is_predeclared: the queue and exchange are there."""

    url: str | None = None
    producers: int = 1
    consumers: int = 1
    queue: str = ""
    exchange: str = ""
    exchange_type: str = "direct"
    routing_key: str = ""
    size_bytes: int = HEAD.size
    confirm: int = 0
    prefetch: int = 0
    seconds: float = 0
    producer_messages: int = 0
    consumer_messages: int = 0
    rate: float = 0
    is_persistent: bool = False
    is_auto_ack: bool = False
    ack_every: int = 1
    is_predeclared: bool = False
    arguments: dict[str, object] = field(default_factory=dict)


class LoadCounts:
    """What was seen in a run, or in an interval of it. delivery: latencies from publish to
    delivery; confirms: from publish to confirm."""

    def __init__(self) -> None:
        self.sent = 0
        self.received = 0
        self.refused = 0
        self.delivery = Latencies()
        self.confirms = Latencies()

    def add_all(self, other: "LoadCounts") -> None:
        """Count what another has seen."""
        self.sent += other.sent
        self.received += other.received
        self.refused += other.refused
        self.delivery.add_all(other.delivery)
        self.confirms.add_all(other.confirms)


OnInterval = Callable[[LoadCounts, float, float], None]


class LoadRun:
    """One run. clock: its times. total: what it has seen, complete when it has ended."""

    def __init__(self, options: LoadOptions, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self._tag = secrets.token_bytes(4)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._error: Exception | None = None
        self._connections: list[ClientConnection] = []
        self._publishing = options.producers
        self._consumed = [0] * options.consumers
        self._unacked: dict[ClientChannel, int] = {}  # the last delivery, if it was not acked
        self._now = LoadCounts()  # of this interval
        self.total = LoadCounts()

    def run(self, on_interval: OnInterval, interval_s: float) -> float:
        """Do it, in the caller's thread and those of the run, up to its end or Ctrl-C.
        on_interval(counts, seconds, since the start): called each `interval_s` with what was seen
        in it. Returns the seconds that it took. Raises what `connect` raises, AMQPError and
        PenstockError."""
        options = self._options
        threads: list[threading.Thread] = []
        try:
            queue = self._declare(self._connect().channel())
            for number in range(options.consumers):
                self._consume(self._connect().channel(), queue, number)
            key = options.routing_key or queue
            for _ in range(options.producers):
                work = threading.Thread(
                    target=self._publish, args=(self._connect().channel(), key), daemon=True
                )
                threads.append(work)
            began_s = self._clock.monotonic()
            for work in threads:
                work.start()
            self._wait(began_s, on_interval, interval_s)
            taken_s = self._clock.monotonic() - began_s
        finally:
            self._stop.set()
            if self._error is None:
                for channel, tag in list(self._unacked.items()):
                    channel.ack(tag, multiple=True)
            for connection in self._connections:
                connection.abort() if self._error else connection.close()
            for work in threads:
                if work.is_alive():
                    work.join()
        if self._error is not None:
            raise self._error
        self._next_interval()
        return taken_s

    def _next_interval(self) -> LoadCounts:
        """Return what the last one saw."""
        with self._lock:
            found, self._now = self._now, LoadCounts()
            self.total.add_all(found)
        return found

    def _wait(self, began_s: float, on_interval: OnInterval, interval_s: float) -> None:
        last_s = began_s
        end_s = began_s + self._options.seconds if self._options.seconds else math.inf
        while True:
            now_s = self._clock.monotonic()
            try:
                if self._stop.wait(max(min(last_s + interval_s, end_s) - now_s, 0)):
                    return
            except KeyboardInterrupt:
                return
            now_s = self._clock.monotonic()
            if now_s >= last_s + interval_s:
                on_interval(self._next_interval(), now_s - last_s, now_s - began_s)
                last_s = now_s
            if now_s >= end_s:
                return

    def _connect(self) -> ClientConnection:
        connection = connect(self._options.url)
        self._connections.append(connection)
        return connection

    def _declare(self, channel: ClientChannel) -> str:
        """Return the name of the queue, which is there then."""
        options = self._options
        if options.is_predeclared:
            return options.queue
        found = channel.ask(
            QueueDeclare(
                queue=options.queue, durable=bool(options.queue) and options.is_persistent,
                exclusive=False, auto_delete=not options.queue, arguments=options.arguments,
            )
        ).result()  # fmt: skip
        assert isinstance(found, QueueDeclareOk)
        if options.exchange:
            kind, name, key = options.exchange_type, options.exchange, options.routing_key
            channel.ask(ExchangeDeclare(exchange=name, type=kind, durable=True)).result()
            bind = QueueBind(queue=found.queue, exchange=name, routing_key=key or found.queue)
            channel.ask(bind).result()
        return found.queue

    def _us(self) -> int:
        return int(self._clock.monotonic() * 1e6)

    def _failed(self, error: Exception) -> None:
        """End the run by an error; those after its end are of closing."""
        with self._lock:
            if not self._stop.is_set():
                self._error = error
                self._stop.set()

    # ---- publishers ----------------------------------------------------------------------------

    def _publish(self, channel: ClientChannel, key: str) -> None:
        try:
            if self._options.confirm:
                channel.select_confirms().result()
            self._publish_all(channel, key)
        except (PenstockError, OSError) as error:
            self._failed(error)
        with self._lock:
            self._publishing -= 1
        self._look()

    def _publish_all(self, channel: ClientChannel, key: str) -> None:
        options = self._options
        mode = 2 if options.is_persistent else 1
        properties = BasicProperties(delivery_mode=mode).encode()
        filling = bytes(max(options.size_bytes - HEAD.size, 0))
        group = min(GROUP, options.confirm or GROUP)
        if options.rate:
            group = min(group, max(int(options.rate / GROUPS_PER_S), 1))
        left = options.producer_messages or math.inf
        under_way: deque[ManyPublished] = deque()
        due_s = self._clock.monotonic()
        while left > 0 and not self._stop.is_set():
            count = int(min(group, left))
            while sum(one.count for one in under_way) + count > options.confirm > 0:
                under_way.popleft().future.result()
            body = (HEAD.pack(self._tag, self._us()) + filling)[: options.size_bytes]
            if options.confirm:
                sent_us = self._us()
                messages = [(key, properties, body)] * count
                published = channel.publish_many(options.exchange, messages)
                published.future.add_done_callback(self._confirmed(published, sent_us))
                under_way.append(published)
            else:
                for _ in range(count):
                    channel.publish(options.exchange, key, body, properties)
                channel.connection.wait_for_room()
            left -= count
            with self._lock:
                self._now.sent += count
            if options.rate:
                due_s += count / options.rate
                self._stop.wait(max(due_s - self._clock.monotonic(), 0))
        for published in under_way:
            published.future.result()

    def _confirmed(
        self, published: ManyPublished, sent_us: int
    ) -> Callable[["Future[None]"], None]:
        def note(future: "Future[None]") -> None:
            if future.exception() is None:
                with self._lock:
                    self._now.confirms.add(self._us() - sent_us, published.count)
                    self._now.refused += len(published.refused)

        return note

    # ---- consumers -----------------------------------------------------------------------------

    def _consume(self, channel: ClientChannel, queue: str, number: int) -> None:
        options = self._options
        if options.prefetch:
            channel.ask(BasicQos(prefetch_count=options.prefetch)).result()
        ack_every = min(options.ack_every, options.prefetch or options.ack_every)
        most = options.consumer_messages
        own_tag = self._tag

        def on_message(message: Received) -> None:
            if most and self._consumed[number] >= most:
                return  # it goes back when the connection ends
            self._consumed[number] = count = self._consumed[number] + 1
            if not options.is_auto_ack:
                self._unacked[channel] = message.delivery_tag
                if count % ack_every == 0:
                    del self._unacked[channel]
                    channel.ack(message.delivery_tag, multiple=ack_every > 1)
            with self._lock:
                self._now.received += 1
                if len(message.body) >= HEAD.size:
                    tag, sent_us = HEAD.unpack_from(message.body)
                    if tag == own_tag:
                        self._now.delivery.add(self._us() - sent_us)
            self._look()

        _, begun = channel.consume(queue, on_message, self._failed, no_ack=options.is_auto_ack)
        begun.result()

    def _look(self) -> None:
        """Stop if all is done."""
        options, total = self._options, self.total
        most = options.consumer_messages
        with self._lock:
            now = self._now
            if most and options.consumers:
                is_done = min(self._consumed) >= most
            else:
                waited = total.sent + now.sent - total.refused - now.refused
                is_all = not options.consumers or total.received + now.received >= waited
                is_done = options.producers > 0 and self._publishing == 0 and is_all
        if is_done:
            self._stop.set()
