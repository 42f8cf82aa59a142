"""What the clients of one vhost use, and the refusal of what would be too much.

Counted are connections, channels and consumers, queues, exchanges and bindings, and what open
transactions hold.

* **Limits by number**, of a user or of the vhost (access.limits), with RabbitMQ's texts where it
  has the limit.
* **Limits by memory.** Topology may take half of the vhost's memory, and all open transactions
  together a quarter. Beyond that a declare or bind is refused (406), and the largest transaction
  is rolled back and its channel closed (506). Both are fractions because a vhost's share changes.
* **The memory alarm.** What is counted here is part of what the MemoryMonitor compares with the
  budget. Things that last (topology, connections) count there as half of the budget at most: they
  cannot be paged out, so they must never be the whole reason why publishers wait.

The bytes are estimates by measured constants, a little too high rather than too low.

**Publish rate.** A user's publishes fill a bucket that drains at the user's rate. `delay_s` returns
for how long the connections of a user whose bucket is over are not to be read: nothing is refused
and nothing lost.
"""

from collections.abc import Callable
from typing import Final

from penstock.access.limits import (
    MAX_BINDINGS,
    MAX_CHANNELS,
    MAX_EXCHANGES,
    MAX_PUBLISH_RATE,
    MAX_QUEUES,
    LimitTable,
)
from penstock.broker import refusals
from penstock.broker.route_caches import RouteCaches
from penstock.errors import NOT_ALLOWED, RESOURCE_ERROR, AMQPConnectionError, ChannelError
from penstock.queues.budget import format_bytes

CONNECTION_BYTES: Final = 12 << 10  # measured: with its session and transport
CHANNEL_BYTES: Final = 3 << 10
TOPOLOGY_PART: Final = 2  # one half of the budget
TRANSACTIONS_PART: Final = 4  # a quarter
BURST_S: Final = 1.0  # what a user may publish at once is what is allowed in so many seconds
NEVER_S: Final = 3600.0  # a rate of 0: looked at again so much later


class TransactionUsage:
    """The bytes of RAM that one open transaction takes. end(error): closes its channel."""

    def __init__(self, end: Callable[[ChannelError], None]) -> None:
        self.bytes: int = 0
        self.end: Callable[[ChannelError], None] = end


class Usage:
    """Counts what the clients of one vhost use. memory_bytes: its budget."""

    def __init__(self, vhost: str, limits: LimitTable, memory_bytes: int) -> None:
        self.limits: LimitTable = limits
        self.memory_bytes: int = memory_bytes
        self.routes: RouteCaches = RouteCaches(memory_bytes)
        self.connections: int = 0
        self.consumer_bytes: int = 0
        self.transaction_bytes: int = 0
        self._vhost: str = vhost
        self._channels: dict[str, int] = {}  # by user
        self._channel_sum: int = 0
        self._holds: dict[TransactionUsage, None] = {}  # of open transactions that hold something
        self._empty_s: dict[str, float] = {}  # by user: when the bucket is empty again

    # ---- what lasts ----------------------------------------------------------------------------

    @property
    def client_bytes(self) -> int:
        """Return the bytes that connections, channels, consumers and cached routes take, without
        messages."""
        return (
            CONNECTION_BYTES * self.connections
            + CHANNEL_BYTES * self._channel_sum
            + self.consumer_bytes
            + self.routes.bytes
        )

    def set_memory(self, memory_bytes: int) -> None:
        """Set the vhost's budget, which has changed."""
        self.memory_bytes = self.routes.memory_bytes = memory_bytes

    def counted_bytes(self, topology_bytes: int) -> int:
        """Return how much of what lasts counts against the budget."""
        return min(topology_bytes + self.client_bytes, self.memory_bytes // TOPOLOGY_PART)

    def channel_opened(self, user: str) -> None:
        """Count a channel. AMQPConnectionError 530: the user has as many as allowed."""
        n = self._channels.get(user, 0)
        most = self.limits.of_user(user, MAX_CHANNELS)
        if 0 <= most <= n:
            text = f"number of channels opened for user '{user}' has reached the maximum allowed"
            raise AMQPConnectionError(NOT_ALLOWED, f"{text} user limit of ({most})", 20, 10)
        self._channels[user] = n + 1
        self._channel_sum += 1

    def channel_closed(self, user: str) -> None:
        """Count a channel less."""
        n = self._channels[user] - 1
        if n:
            self._channels[user] = n
        else:
            del self._channels[user]
        self._channel_sum -= 1

    def check_consumers(self, count: int) -> None:
        """Raise AMQPConnectionError 530 if a channel with so many consumers may not have
        another."""
        most = self.limits.defaults.channel_consumers
        if 0 <= most <= count:
            text = f"reached maximum ({most}) of consumers per channel"
            raise AMQPConnectionError(NOT_ALLOWED, text, 60, 20)

    def check_queue(self, name: str, count: int, topology_bytes: int) -> None:
        """Raise ChannelError 406 if the vhost, which has `count` queues, may not have this
        one too."""
        most = self.limits.of_vhost(self._vhost, MAX_QUEUES)
        if 0 <= most <= count:
            text = f"queue limit in vhost '{self._vhost}' ({most}) is reached"
            raise refusals.precondition_failed(f"cannot declare queue '{name}': {text}")
        self._check_room(f"cannot declare queue '{name}'", topology_bytes)

    def check_exchange(self, name: str, count: int, topology_bytes: int) -> None:
        """Raise ChannelError 406 as `check_queue` does, for an exchange."""
        most = self.limits.of_vhost(self._vhost, MAX_EXCHANGES)
        if 0 <= most <= count:
            text = f"exchange limit in vhost '{self._vhost}' ({most}) is reached"
            raise refusals.precondition_failed(f"cannot declare exchange '{name}': {text}")
        self._check_room(f"cannot declare exchange '{name}'", topology_bytes)

    def check_binding(self, exchange: str, count: int, topology_bytes: int) -> None:
        """Raise ChannelError 406 as `check_queue` does, for a binding of this exchange."""
        most = self.limits.of_vhost(self._vhost, MAX_BINDINGS)
        if 0 <= most <= count:
            text = f"binding limit in vhost '{self._vhost}' ({most}) is reached"
            raise refusals.precondition_failed(f"cannot bind to exchange '{exchange}': {text}")
        self._check_room(f"cannot bind to exchange '{exchange}'", topology_bytes)

    def _check_room(self, what: str, topology_bytes: int) -> None:
        most = self.memory_bytes // TOPOLOGY_PART
        if topology_bytes >= most:
            raise refusals.precondition_failed(
                f"{what}: queues, exchanges and bindings of vhost '{self._vhost}' take "
                f"{format_bytes(topology_bytes)} of memory, at most {format_bytes(most)} are "
                "allowed (half of the vhost's memory)"
            )

    # ---- transactions --------------------------------------------------------------------------

    def hold(self, hold: TransactionUsage, size_bytes: int) -> None:
        """Count bytes of a transaction. If all of them together hold too much, the largest is
        ended: another one by its `end`, this one by a ChannelError 506."""
        self._holds[hold] = None
        hold.bytes += size_bytes
        self.transaction_bytes += size_bytes
        most = self.memory_bytes // TRANSACTIONS_PART
        while self.transaction_bytes > most:
            largest = max(self._holds, key=_bytes_of)
            error = ChannelError(
                RESOURCE_ERROR,
                f"the transaction holds {format_bytes(largest.bytes)} of memory, more than any "
                f"other; all open ones of vhost '{self._vhost}' may hold {format_bytes(most)}",
            )
            if largest is hold:
                raise error
            self.release(largest)
            largest.end(error)

    def release(self, hold: TransactionUsage) -> None:
        """Count nothing for a transaction any more: it was committed or rolled back."""
        if hold in self._holds:
            del self._holds[hold]
            self.transaction_bytes -= hold.bytes
            hold.bytes = 0

    # ---- publish rate --------------------------------------------------------------------------

    def delay_s(self, user: str, count: int, now_s: float) -> float:
        """Return the seconds for which the user's connections that publish are not to be read,
        after `count` messages; 0.0: go on. now_s: of the monotonic clock."""
        rate = self.limits.of_user(user, MAX_PUBLISH_RATE)
        if rate < 0:
            return 0.0
        if rate == 0:
            return NEVER_S
        empty_s = max(self._empty_s.get(user, 0.0), now_s) + count / rate
        self._empty_s[user] = empty_s
        return max(empty_s - now_s - BURST_S, 0.0)


def _bytes_of(hold: TransactionUsage) -> int:
    return hold.bytes
