"""What the tests with pika say again and again: get, drain, a consumer that keeps what comes.

Every wait has a condition and a limit; nothing sleeps for a fixed time. ``settle`` makes sure that
what the broker sent for earlier calls has been handled.
Not here: connections and names; conftest.py makes those.
"""

from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel

from tests.helpers.live_broker import wait_until

PERSISTENT = pika.BasicProperties(delivery_mode=2)


def get(channel: BlockingChannel, queue: str) -> tuple[Any, Any, bytes]:
    """The next message, waited for. The caller settles it."""

    def take() -> Any:
        found = channel.basic_get(queue)
        return found if found[0] is not None else None

    return wait_until(take, f"a message in {queue}")  # type: ignore[no-any-return]


def drain(channel: BlockingChannel, queue: str, count: int) -> list[bytes]:
    """The bodies of the next `count` messages, acknowledged."""
    bodies = []
    for _ in range(count):
        method, _, data = get(channel, queue)
        channel.basic_ack(method.delivery_tag)
        bodies.append(data)
    return bodies


def depth(channel: BlockingChannel, queue: str) -> int:
    return int(channel.queue_declare(queue, passive=True).method.message_count)


class QueueTarget:
    """A consumer that keeps what it is given: (method, properties, body)."""

    def __init__(self, channel: BlockingChannel, queue: str, **options: Any) -> None:
        self.channel = channel
        self.taken: list[tuple[Any, Any, bytes]] = []
        self.tag = channel.basic_consume(queue, self._take, **options)

    def _take(self, _: object, method: Any, properties: Any, data: bytes) -> None:
        self.taken.append((method, properties, data))

    def wait_for(self, count: int) -> "QueueTarget":
        def has_come() -> bool:
            self.channel.connection.process_data_events(0.01)
            return len(self.taken) >= count

        wait_until(has_come, f"{count} deliveries, {len(self.taken)} came")
        return self

    def bodies(self) -> list[bytes]:
        return [data for _, _, data in self.taken]


def settle(channel: BlockingChannel) -> None:
    """Everything the broker has sent for earlier calls has been handled when this returns."""
    channel.connection.process_data_events(0)
    channel.queue_declare("", exclusive=True, auto_delete=True)
    channel.connection.process_data_events(0)
