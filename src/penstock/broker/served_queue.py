"""ServedQueue: a queue as the broker has it: an AMQQueue, who consumes it, and to whom it belongs.

What a queue does with messages is the AMQQueue's (penstock.queues), shared with the embedded
library. What only a broker knows is here: its consumers, the connection that has it to itself, that
it goes with its last consumer or when nobody uses it, and the counters that people look at.

Not here: when messages are delivered (dispatch.py), declaring and deleting (vhost.py).
"""

from collections.abc import Callable

from penstock.broker.consumers import Consumers
from penstock.queues.amq_queue import AMQQueue


class ServedQueue:
    """One queue of a vhost.

    arguments: as they were declared. owner: the connection that an exclusive queue belongs to.
    used_at_ms: when it was last declared, got from or consumed (ms since 1970), for x-expires.
    """

    def __init__(
        self, name: str, amq: AMQQueue, *, is_durable: bool, is_exclusive: bool = False,
        is_auto_delete: bool = False, arguments: dict[str, object] | None = None,
        owner: object | None = None,
    ) -> None:  # fmt: skip
        self.name: str = name
        self.amq: AMQQueue = amq
        self.is_durable: bool = is_durable
        self.is_exclusive: bool = is_exclusive
        self.is_auto_delete: bool = is_auto_delete
        self.arguments: dict[str, object] = arguments or {}
        self.owner: object | None = owner
        self.priorities: int = amq.options.priorities
        # Whether its messages are for whoever is waiting when they come. Asked at each publish.
        self.is_immediate: bool = amq.options.ttl_ms == 0
        self.consumers: Consumers = Consumers(
            is_single_active=self.arguments.get("x-single-active-consumer") is True
        )
        self.had_consumer: bool = False  # an auto-delete queue goes only after its last one
        self.used_at_ms: int = 0
        self.is_deleted: bool = False
        self.is_crashed: bool = False
        self.is_marked: bool = False  # the dispatch has it on its list of work
        self.is_touched: bool = False  # a tick is to look at it
        self.is_waiting: bool = False  # its head is held, and a call will come when it no longer is
        self.due_ms: int = 0  # the time for which the vhost has noted it
        # Called, once, when a message may be there: whoever waits without being a consumer.
        self.waiters: list[Callable[[], None]] = []
        self.published: int = 0
        self.delivered: int = 0
        self.redelivered: int = 0
        self.acked: int = 0
        self.got: int = 0

    def wake_waiters(self) -> None:
        """Something may be there, or the queue is gone."""
        if self.waiters:
            waiters, self.waiters = self.waiters, []
            for waiter in waiters:
                waiter()

    def counters(self) -> dict[str, int]:
        """How many messages were published, delivered, redelivered, got and acknowledged."""
        return {
            "publish": self.published,
            "deliver": self.delivered,
            "redeliver": self.redelivered,
            "get": self.got,
            "ack": self.acked,
        }
