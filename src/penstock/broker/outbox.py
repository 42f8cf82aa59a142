"""Outbox: messages of the vhost's own for one of its internal exchanges.

They wait until a background task publishes them, because a queue must not be published to while it
delivers. The outbox is bounded: what is beyond it is left out, and an event says how much. Nothing
is kept while nobody has bound the exchange.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from penstock.broker.background_tasks import AGAIN, ASLEEP, BackgroundTask
from penstock.broker.broker_queue import BrokerQueue, QueueOrStream
from penstock.broker.broker_stream import BrokerStream
from penstock.broker.dispatch import Dispatch
from penstock.codec.properties import BasicProperties
from penstock.errors import DiskFullError, QueueFullError
from penstock.queues.amqp_headers import short_string
from penstock.routing.router import ROUTE_STEPS_MAX, Router, Walk, Way
from penstock.storage.files.durability import NONE

OUTBOX_BYTES_MAX: Final = 8 << 20
MESSAGE_BYTES: Final = 2000  # counted for a message, beside its body
SLICE: Final = 64
KEY_BYTES_MAX: Final = 255
PERSISTENT: Final = 2


@dataclass(slots=True, eq=False)
class OwnMessage:
    """A message for the exchange, not routed yet."""

    key: str
    properties: BasicProperties
    body: bytes


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

    def add(self, key: str, properties: BasicProperties, body: bytes = b"") -> None:
        """Publish this later."""
        if not self.is_bound:
            return
        size = MESSAGE_BYTES + len(body)
        if self._bytes + size > OUTBOX_BYTES_MAX:
            self._left_out += 1
            return
        self._bytes += size
        self._waiting.append(OwnMessage(key, properties, body))
        self._wake(self)

    def step(self) -> int:
        """Publish some messages."""
        for _ in range(min(SLICE, len(self._waiting))):
            message = self._waiting.popleft()
            self._bytes -= MESSAGE_BYTES + len(message.body)
            self._publish(message)
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
            self._wake(self)
        raise error

    def _publish(self, message: OwnMessage) -> None:
        raw_key = message.key.encode("utf-8", "surrogateescape")[:KEY_BYTES_MAX]
        header = b"\x02" + self._raw_exchange + short_string(raw_key)
        header += message.properties.encode()
        key = raw_key.decode("utf-8", "surrogateescape")
        walk = Walk(
            self._router, Way(self._router, self._exchange), [key],
            message.properties.headers or {},
        )  # fmt: skip
        walk.advance(ROUTE_STEPS_MAX)
        if not walk.is_done:
            return
        is_persistent = message.properties.delivery_mode == PERSISTENT
        mode = self._dispatch.mode if is_persistent else NONE
        for name in walk.queues:
            if not put(self._dispatch, self._find(name), header, message.body, mode):
                self._left_out += 1


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
