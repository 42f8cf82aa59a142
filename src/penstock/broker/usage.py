"""What the clients of one vhost use, and the refusal of what would be too much.

Counted are connections, channels and consumers, queues, exchanges and bindings, and what open
transactions hold.

* **Limits by number**, of a user or of the vhost (access.limits), with RabbitMQ's texts where it
  has the limit.
* **Limits by memory.** Queues, exchanges and bindings may take half of the vhost's memory, channels
  and consumers a quarter, and all open transactions together a quarter. Beyond that a declare, a
  bind or a consume is refused (406), so is a channel (530), and the largest transaction of the user
  whose transactions hold most is rolled back and its channel closed (506). All are fractions
  because a vhost's share changes.
* **The same of one user.** What a user has of topology, or of channels and consumers, is never more
  than what is free for the others. So one user alone can take half of each, and whoever comes next
  half of the rest. Administrators are not limited by that, nor in channels and consumers. Who
  declared what is known since the start of the vhost; what is older counts as the others'.
* **Unread output.** What waits to be sent may take an eighth of the memory. It is not refused: a
  user's connections with anything waiting get nothing more while that user's output is not less
  than what is free for the others.
* **Unacknowledged deliveries.** They may take a quarter of the memory. A user whose own are not
  less than what is free for the others is given no more, on any channel with a consumer that
  acknowledges, and basic.get is refused (506), until enough of them are acknowledged (`full`).
* **Histories.** The messages that exchanges of type x-recent-history keep may take a sixteenth,
  and those of one user's exchanges not more than what is free for the others'. The oldest are
  forgotten.
* **The memory alarm.** What is counted here is part of what the MemoryMonitor compares with the
  budget. Things that last (topology, connections) count there as three quarters of the budget at
  most: they cannot be paged out, so they must never be the whole reason why publishers wait.

The bytes are estimates by measured constants, a little too high rather than too low.

**Publish rate.** A user's publishes fill a bucket that drains at the user's rate. `delay_s` returns
for how long the connections of a user whose bucket is over are not to be read: nothing is refused
and nothing lost.

**Cached routes.** A channel keeps the route of each publish that it has seen (publish.py).
Publishers choose keys as they like, so without a bound one user with many channels and many keys
takes all memory. Each of these may take a part of the vhost's memory:

    a channel           1/128, and 4,096 routes
    a user              1/32, in all channels
    all users together  1/16

What a new route would exceed is made room for first: the cache of its channel is emptied; of its
user's channels, then of all, the one whose last new route is the oldest. So a user with many keys
empties its own caches. Nothing is refused: a route that is not there is resolved again.

The bytes are counted with those of clients. All caches are emptied when the process has too much
memory, before publishers have to wait.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Protocol

from penstock.access.limits import (
    MAX_BINDINGS,
    MAX_CHANNELS,
    MAX_EXCHANGES,
    MAX_PUBLISH_RATE,
    MAX_QUEUES,
    LimitTable,
)
from penstock.access.permissions import Identity
from penstock.broker import refusals
from penstock.clock import Clock
from penstock.counts import UserSums
from penstock.errors import NOT_ALLOWED, RESOURCE_ERROR, AMQPConnectionError, ChannelError
from penstock.options import format_bytes

CONNECTION_BYTES: Final = 12 << 10  # measured: with its session and transport
CHANNEL_BYTES: Final = 3 << 10
TOPOLOGY_PART: Final = 2  # one half of the budget
CLIENTS_PART: Final = 4  # a quarter: channels and consumers
TRANSACTIONS_PART: Final = 4
OUTPUT_PART: Final = 8  # an eighth: what waits for the sockets of clients
# A user is `stuffed` when that and what waits for all take twice the part; but not below a quarter
# of it, and no more below an eighth.
OUTPUT_BEGIN_SHIFT: Final = 2
OUTPUT_END_SHIFT: Final = 3
UNACKED_PART: Final = 4
HISTORIES_PART: Final = 16  # messages that exchanges of type x-recent-history keep
UNACKED_GAP: Final = 16  # the part of its share that a user has to free to be given more again
BURST_S: Final = 1.0  # what a user may publish at once is what is allowed in so many seconds
NEVER_S: Final = 3600.0  # a rate of 0: looked at again so much later


class TransactionUsage:
    """The bytes of RAM that one open transaction of a user takes. end(error): closes its
    channel."""

    def __init__(self, user: str, end: Callable[[ChannelError], None]) -> None:
        self.user: str = user
        self.bytes: int = 0
        self.end: Callable[[ChannelError], None] = end


class Usage:
    """Counts what the clients of one vhost use. memory_bytes: its budget.
    topology: the bytes of queues, exchanges, bindings and readers by who made them. clients: the
    bytes of channels and consumers by user. output: those that wait to be sent, by user. unacked:
    those of deliveries, by user. histories: those of the messages that exchanges keep, by who
    declared them. full: the users who are given no more deliveries, and the
    monotonic seconds since when."""

    def __init__(self, vhost: str, limits: LimitTable, memory_bytes: int) -> None:
        self.limits: LimitTable = limits
        self.memory_bytes: int = memory_bytes
        self.routes: RouteCaches = RouteCaches(memory_bytes)
        self.connections: int = 0
        self.topology: UserSums = UserSums()
        self.clients: UserSums = UserSums()
        self.output: UserSums = UserSums()
        self.unacked: UserSums = UserSums()
        self.histories: UserSums = UserSums()
        self.full: dict[str, float] = {}
        self.stuffed: set[str] = set()  # users for whom so much waits that none gets any more
        self.transactions: UserSums = UserSums()
        self.calls: UserSums = UserSums()  # how many of penstock.call are not answered yet
        self.answers: UserSums = UserSums()  # bytes of answers behind one that is not there yet
        self._vhost: str = vhost
        self._channels: UserSums = UserSums()
        self._holds: dict[TransactionUsage, None] = {}  # of open transactions that hold something
        self._empty_s: dict[str, float] = {}  # by user: when the bucket is empty again

    # ---- what lasts ----------------------------------------------------------------------------

    @property
    def client_bytes(self) -> int:
        """Return the bytes that connections, channels, consumers and cached routes take, without
        messages."""
        return CONNECTION_BYTES * self.connections + self.clients.total + self.routes.bytes

    def set_memory(self, memory_bytes: int) -> None:
        """Set the vhost's budget, which has changed."""
        self.memory_bytes = self.routes.memory_bytes = memory_bytes

    def counted_bytes(self, topology_bytes: int) -> int:
        """Return how much of what lasts counts against the budget."""
        most = self.memory_bytes // TOPOLOGY_PART + self.memory_bytes // CLIENTS_PART
        return min(topology_bytes + self.client_bytes, most)

    def channel_opened(self, by: Identity) -> None:
        """Count a channel. AMQPConnectionError 530: the user has as many as allowed."""
        user = by.name
        most = self.limits.of_user(user, MAX_CHANNELS)
        if 0 <= most <= self._channels.of(user):
            text = f"number of channels opened for user '{user}' has reached the maximum allowed"
            raise AMQPConnectionError(NOT_ALLOWED, f"{text} user limit of ({most})", 20, 10)
        text = self._too_much_of_clients(by)
        if text:
            raise AMQPConnectionError(NOT_ALLOWED, f"cannot open a channel: {text}", 20, 10)
        self._channels.add(user)
        self.clients.add(user, CHANNEL_BYTES)

    def channel_closed(self, user: str) -> None:
        """Count a channel less."""
        self._channels.add(user, -1)
        self.clients.add(user, -CHANNEL_BYTES)

    def check_consumer(self, by: Identity, count: int) -> None:
        """Raise AMQPConnectionError 530 if a channel with so many consumers may not have another,
        ChannelError 406 if this user may not."""
        most = self.limits.defaults.channel_consumers
        if 0 <= most <= count:
            text = f"reached maximum ({most}) of consumers per channel"
            raise AMQPConnectionError(NOT_ALLOWED, text, 60, 20)
        text = self._too_much_of_clients(by)
        if text:
            raise refusals.precondition_failed(f"cannot add a consumer: {text}")

    def _too_much_of_clients(self, by: Identity) -> str:
        """Return why the user may not have another channel or consumer, "" if it may."""
        if by.is_administrator:
            return ""
        own = self.clients.of(by.name)
        left = self.memory_bytes // CLIENTS_PART - self.clients.total
        return "" if own < left else _share_text("channels and consumers", by.name, own, left)

    def check_queue(
        self, name: str, count: int, topology_bytes: int, by: Identity | None, keys_bytes: int = 0
    ) -> None:
        """Raise ChannelError 406 if the vhost, which has `count` queues, may not have this
        one too. by: who declares it; None: no user. keys_bytes: what its x-cache-size takes."""
        what = f"cannot declare queue '{name}'"
        self._check_count(what, MAX_QUEUES, "queue", count)
        self._check_room(what, topology_bytes, by, keys_bytes)

    def check_exchange(
        self, name: str, count: int, topology_bytes: int, by: Identity | None, keys_bytes: int = 0
    ) -> None:
        """Raise ChannelError 406 as `check_queue` does, for an exchange."""
        what = f"cannot declare exchange '{name}'"
        self._check_count(what, MAX_EXCHANGES, "exchange", count)
        self._check_room(what, topology_bytes, by, keys_bytes)

    def check_binding(
        self, exchange: str, count: int, topology_bytes: int, by: Identity | None
    ) -> None:
        """Raise ChannelError 406 as `check_queue` does, for a binding of this exchange."""
        what = f"cannot bind to exchange '{exchange}'"
        self._check_count(what, MAX_BINDINGS, "binding", count)
        self._check_room(what, topology_bytes, by)

    def _check_count(self, what: str, limit: str, kind: str, count: int) -> None:
        most = self.limits.of_vhost(self._vhost, limit)
        if 0 <= most <= count:
            text = f"{kind} limit in vhost '{self._vhost}' ({most}) is reached"
            raise refusals.precondition_failed(f"{what}: {text}")

    def check_reader(self, stream: str, topology_bytes: int, by: Identity) -> None:
        """Raise ChannelError 406 if the user may not have one more named reader of a stream."""
        self._check_room(f"cannot keep another reader of '{stream}'", topology_bytes, by)

    def check_between(self, exchange: str, by: Identity, own: int) -> None:
        """Raise ChannelError 406 if a user with so many bindings between exchanges may not have
        another, from this exchange. Each may cost every message that others publish there."""
        most = self.limits.defaults.user_exchange_bindings
        if 0 <= most <= own and not by.is_administrator:
            text = f"user '{by.name}' has as many bindings between exchanges as allowed ({most})"
            raise refusals.precondition_failed(f"cannot bind to exchange '{exchange}': {text}")

    def _check_room(
        self, what: str, topology_bytes: int, by: Identity | None, keys_bytes: int = 0
    ) -> None:
        most = self.memory_bytes // TOPOLOGY_PART - keys_bytes
        if keys_bytes:
            what = f"{what}, whose x-cache-size takes {format_bytes(keys_bytes)}"
        if topology_bytes >= most:
            raise refusals.precondition_failed(
                f"{what}: queues, exchanges and bindings of vhost '{self._vhost}' take "
                f"{format_bytes(topology_bytes)} of memory, at most "
                f"{format_bytes(self.memory_bytes // TOPOLOGY_PART)} are allowed (half of the "
                "vhost's memory)"
            )
        if by is None or by.is_administrator:
            return
        own, left = self.topology.of(by.name), most - topology_bytes
        if own >= left:
            text = _share_text("queues, exchanges and bindings", by.name, own, left)
            raise refusals.precondition_failed(f"{what}: {text}")

    def has_history_room(self, creator: str, change: int) -> bool:
        """Return whether the histories of this user's exchanges may take so many bytes more."""
        left = self.memory_bytes // HISTORIES_PART - self.histories.total
        return self.histories.of(creator) + change <= left

    def has_output_room(self, user: str) -> bool:
        """Return whether more may wait to be sent to this user."""
        left = self.memory_bytes // OUTPUT_PART - self.output.total
        return self.output.of(user) < left

    def output_changed(self, user: str, change: int) -> bool:
        """Count bytes that wait to be sent; return whether this user has become one of `stuffed`,
        or is no longer one."""
        self.output.add(user, change)
        own = self.output.of(user)
        part = self.memory_bytes // OUTPUT_PART
        if user in self.stuffed:
            if own >= part >> OUTPUT_END_SHIFT and not self.has_output_room(user):
                return False
            self.stuffed.discard(user)
            return True
        if own < part >> OUTPUT_BEGIN_SHIFT or own + self.output.total < 2 * part:
            return False
        self.stuffed.add(user)
        return True

    def stuffed_text(self, user: str) -> str:
        """Return why a user who is `stuffed` is given no more deliveries."""
        return (
            f"what waits to be sent to user '{user}' takes {format_bytes(self.output.of(user))} of "
            "memory: a user is given no more then until its clients have read some of it"
        )

    def unacked_changed(self, user: str, change: int, clock: Clock) -> bool:
        """Count bytes of unacknowledged deliveries; return whether this user has become one of
        `full`, or is no longer one."""
        self.unacked.add(user, change)
        if not self.full and self.unacked.total < self.memory_bytes // UNACKED_PART // 2:
            return False  # nobody's own can be as much as what is left
        own, left = self._unacked_share(user)
        if user in self.full:
            if own >= left - left // UNACKED_GAP:
                return False
            del self.full[user]
            return True
        if change <= 0 or own < left:
            return False
        self.full[user] = clock.monotonic()
        return True

    def full_text(self, user: str) -> str:
        """Return why a user who is `full` is given no more deliveries."""
        own, left = self._unacked_share(user)
        return (
            f"deliveries that user '{user}' has not acknowledged take {format_bytes(own)} of "
            f"memory, and {format_bytes(max(left, 0))} are left for all others: a user is given no "
            "more then until some are acknowledged"
        )

    def _unacked_share(self, user: str) -> tuple[int, int]:
        """Return the bytes of the user's own deliveries, and what is left for the others."""
        return self.unacked.of(user), self.memory_bytes // UNACKED_PART - self.unacked.total

    # ---- transactions --------------------------------------------------------------------------

    def hold(self, hold: TransactionUsage, size_bytes: int) -> None:
        """Count bytes of a transaction. If all of them together hold too much, the largest of the
        user who holds most is ended: another one by its `end`, this one by a ChannelError 506."""
        self._holds[hold] = None
        hold.bytes += size_bytes
        self.transactions.add(hold.user, size_bytes)
        most = self.memory_bytes // TRANSACTIONS_PART
        while self.transactions.total > most:
            user = self.transactions.largest()
            largest = max([one for one in self._holds if one.user == user], key=_bytes_of)
            error = ChannelError(
                RESOURCE_ERROR,
                f"the transaction holds {format_bytes(largest.bytes)} of memory, more than any "
                f"other of user '{user}', whose hold most; all open ones of vhost "
                f"'{self._vhost}' may hold {format_bytes(most)}",
            )
            if largest is hold:
                raise error
            self.release(largest)
            largest.end(error)

    def release(self, hold: TransactionUsage) -> None:
        """Count nothing for a transaction any more: it was committed or rolled back."""
        if hold in self._holds:
            del self._holds[hold]
            self.transactions.add(hold.user, -hold.bytes)
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


def _share_text(what: str, user: str, own_bytes: int, left_bytes: int) -> str:
    return (
        f"{what} of user '{user}' take {format_bytes(own_bytes)} of memory, and "
        f"{format_bytes(max(left_bytes, 0))} are left for all others: a user may not have more "
        "than that"
    )


def _bytes_of(hold: TransactionUsage) -> int:
    return hold.bytes


# ---- cached routes ------------------------------------------------------------------------------


VHOST_PART: Final = 16
USER_PART: Final = 32
CHANNEL_PART: Final = 128


class RouteCache(Protocol):
    """The cached routes of one channel."""

    def clear_routes(self) -> None:
        """Empty the cache."""


class Held:
    """The bytes of one cache, and whose it is."""

    __slots__ = ("bytes", "user")

    def __init__(self, user: str) -> None:
        self.user: str = user
        self.bytes: int = 0


class RouteCaches:
    """Counts the routes that are cached in one vhost. memory_bytes: the vhost's memory, set by the
    owner."""

    def __init__(self, memory_bytes: int) -> None:
        self.memory_bytes: int = memory_bytes
        # Those with routes; the one whose last new route is the oldest is first.
        self._caches: OrderedDict[RouteCache, Held] = OrderedDict()
        self._users: dict[str, OrderedDict[RouteCache, None]] = {}  # the same for each user
        self._sums: UserSums = UserSums()

    @property
    def bytes(self) -> int:
        """Return the bytes of all caches."""
        return self._sums.total

    def add(self, cache: RouteCache, user: str, size_bytes: int) -> bool:
        """Count a new route of this user's cache, after making room for it. Returns False if it is
        too large to be kept."""
        memory_bytes = self.memory_bytes
        channel_most = memory_bytes // CHANNEL_PART
        if size_bytes > channel_most:
            return False
        held = self._caches.get(cache)
        if held is not None and held.bytes + size_bytes > channel_most:
            self.drop(cache)
        while self._sums.of(user) + size_bytes > memory_bytes // USER_PART:
            self.drop(next(iter(self._users[user])))
        while self._sums.total + size_bytes > memory_bytes // VHOST_PART:
            self.drop(next(iter(self._caches)))
        held = self._caches.get(cache)
        if held is None:
            held = self._caches[cache] = Held(user)
            self._users.setdefault(user, OrderedDict())[cache] = None
        else:
            self._caches.move_to_end(cache)
            self._users[user].move_to_end(cache)
        self._count(held, size_bytes)
        return True

    def remove(self, cache: RouteCache, size_bytes: int) -> None:
        """Count no longer a route that the cache has removed."""
        held = self._caches.get(cache)
        if held is not None:
            self._count(held, -size_bytes)

    def drop(self, cache: RouteCache) -> None:
        """Empty a cache; nothing happens if it has no routes."""
        held = self._caches.pop(cache, None)
        if held is None:
            return
        cache.clear_routes()
        self._count(held, -held.bytes)
        of_user = self._users[held.user]
        del of_user[cache]
        if not of_user:
            del self._users[held.user]

    def drop_all(self) -> None:
        """Empty all caches."""
        while self._caches:
            self.drop(next(iter(self._caches)))

    def _count(self, held: Held, change: int) -> None:
        held.bytes += change
        self._sums.add(held.user, change)
