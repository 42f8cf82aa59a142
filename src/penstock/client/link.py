"""Link: one connection of a box, and its channels by what they are for.

    puts        one, in confirm mode, for all threads: each put has a future of its own
    a getter    one for each queue that is got from: an error there (the queue was deleted) ends
                the channel, and the jobs in hand of that queue only, which are gone anyway
    appenders   one for each stream that is appended to, in confirm mode, given to it
    callers     for operations, each used by one call at a time, from a pool
    tx          for transactions, each used by one at a time, from a pool

A message that no queue got comes back before its confirm; which put it was tells its message id.

A box makes a new Link when its connection was lost; jobs know the link that they came on.

Not here: when a new connection is made (driver.py), what is said (queue.py, stream.py).
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

from penstock.client.amqp_url import AmqpUrl
from penstock.client.client_channel import ClientChannel
from penstock.client.client_connection import connect
from penstock.client.client_errors import MissingCapabilityError
from penstock.client.received import Received
from penstock.codec.spec import BasicQos, TxSelect

CAPABILITY: Final = "penstock.box"


class Link:
    """See the head of this module. on_event(kind, text): "blocked", "unblocked"; in the
    connection's thread."""

    def __init__(self, url: AmqpUrl, on_event: Callable[[str, str], None]) -> None:
        self._on_event = on_event
        self._lock = threading.Lock()  # never held while the connection is called
        self._unblocked: Future[None] | None = None
        self.connection = connect(url, on_blocked=self._blocked)
        try:
            if not self.connection.capability(CAPABILITY):
                product = str(self.connection.server_properties.get("product", "an AMQP broker"))
                raise MissingCapabilityError(str(url), product)
            self.returned: set[str] = set()  # message ids of puts that no queue got
            self._puts: ClientChannel | None = None
            self._getters: dict[str, ClientChannel] = {}
            self._appenders: dict[str, tuple[ClientChannel, Future[object]]] = {}
            self._callers: list[ClientChannel] = []
            self._tx: list[ClientChannel] = []
            self.connection.ended.add_done_callback(lambda _: self._nobody_blocked())
        except BaseException:
            self.connection.close()
            raise

    @property
    def is_open(self) -> bool:
        """Whether it can be used."""
        return self.connection.is_open

    # ---- channels ------------------------------------------------------------------------------

    def puts(self) -> ClientChannel:
        """The channel for puts."""
        with self.connection.lock:
            channel = self._puts
            if channel is None or not channel.is_open:
                channel = self._puts = self.connection.channel()
                channel.on_return = self._returned
                channel.select_confirms()
            return channel

    def getter(self, queue: str) -> ClientChannel:
        """The channel for getting from a queue; each of its consumers is given one message."""
        with self.connection.lock:
            channel = self._getters.get(queue)
            if channel is None or not channel.is_open:
                channel = self._getters[queue] = self.connection.channel()
                channel.ask(BasicQos(prefetch_count=1))
            return channel

    def forget_getter(self, queue: str) -> None:
        """The queue is gone; its channel is closed."""
        with self.connection.lock:
            channel = self._getters.pop(queue, None)
        if channel is not None:
            channel.close()

    def appender(self, stream: str) -> "tuple[ClientChannel, Future[object]]":
        """The channel for appending to a stream, and a future: when it is done, and not before, all
        that is published on the channel goes there."""
        with self.connection.lock:
            found = self._appenders.get(stream)
            if found is None or not found[0].is_open:
                channel = self.connection.channel()
                channel.select_confirms()
                given = channel.call("box.append_to", {"name": stream})
                found = self._appenders[stream] = channel, given
            return found

    def forget_appender(self, stream: str) -> None:
        """The stream is gone, or may not be appended to; its channel is closed."""
        with self.connection.lock:
            found = self._appenders.pop(stream, None)
        if found is not None:
            found[0].close()

    def take_caller(self) -> ClientChannel:
        """A channel for one operation; give it back."""
        return self._take(self._callers) or self.connection.channel()

    def give_caller(self, channel: ClientChannel) -> None:
        """The operation was answered."""
        self._give(self._callers, channel)

    def take_tx(self) -> ClientChannel:
        """A channel for one transaction; give it back after its end."""
        channel = self._take(self._tx)
        if channel is None:
            channel = self.connection.channel()
            channel.on_return = self._returned
            channel.ask(TxSelect())
        return channel

    def give_tx(self, channel: ClientChannel) -> None:
        """The transaction was committed or rolled back."""
        self._give(self._tx, channel)

    def _take(self, pool: list[ClientChannel]) -> ClientChannel | None:
        with self._lock:
            while pool:
                channel = pool.pop()
                if channel.is_open:
                    return channel
        return None

    def _give(self, pool: list[ClientChannel], channel: ClientChannel) -> None:
        with self._lock:
            if channel.is_open:
                pool.append(channel)

    # ---- what the broker says unasked ----------------------------------------------------------

    def _returned(self, message: Received) -> None:
        self.returned.add(message.properties.message_id or "")

    def was_returned(self, message_id: str) -> bool:
        """Whether no queue got this message; asked once, after it was confirmed."""
        if message_id in self.returned:
            self.returned.discard(message_id)
            return True
        return False

    def unblocked(self) -> "Future[None] | None":
        """Done when the broker takes messages again, None if it does."""
        with self._lock:
            return self._unblocked

    def _blocked(self, reason: str) -> None:
        with self._lock:
            future, self._unblocked = self._unblocked, None
            if reason:
                self._unblocked = future or Future()
        if not reason and future is not None:
            future.set_result(None)
        self._on_event("blocked" if reason else "unblocked", reason or "the broker takes messages")

    def close(self) -> None:
        """End the connection."""
        self.connection.close()

    def _nobody_blocked(self) -> None:
        with self._lock:
            future, self._unblocked = self._unblocked, None
        if future is not None:
            future.set_result(None)
