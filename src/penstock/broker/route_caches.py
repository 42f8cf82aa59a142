"""RouteCaches: bounds the memory of the routes that channels cache.

A channel keeps the route of each publish that it has seen (publish.py). Publishers choose keys as
they like, so without a bound one user with many channels and many keys takes all memory. Each of
these may take a part of the vhost's memory:

    a channel           1/128, and 4,096 routes
    a user              1/32, in all channels
    all users together  1/16

What a new route would exceed is made room for first: the cache of its channel is emptied; of its
user's channels, then of all, the one whose last new route is the oldest. So a user with many keys
empties its own caches. Nothing is refused: a route that is not there is resolved again.

The bytes are counted with those of clients (usage.py). All caches are emptied when the process has
too much memory, before publishers have to wait.
"""

from collections import OrderedDict
from typing import Final, Protocol

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
    owner. bytes: of all caches."""

    def __init__(self, memory_bytes: int) -> None:
        self.memory_bytes: int = memory_bytes
        self.bytes: int = 0
        # Those with routes; the one whose last new route is the oldest is first.
        self._caches: OrderedDict[RouteCache, Held] = OrderedDict()
        self._users: dict[str, OrderedDict[RouteCache, None]] = {}  # the same for each user
        self._user_bytes: dict[str, int] = {}

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
        while self._user_bytes.get(user, 0) + size_bytes > memory_bytes // USER_PART:
            self.drop(next(iter(self._users[user])))
        while self.bytes + size_bytes > memory_bytes // VHOST_PART:
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
            del self._users[held.user], self._user_bytes[held.user]

    def drop_all(self) -> None:
        """Empty all caches."""
        while self._caches:
            self.drop(next(iter(self._caches)))

    def _count(self, held: Held, change: int) -> None:
        held.bytes += change
        self.bytes += change
        self._user_bytes[held.user] = self._user_bytes.get(held.user, 0) + change
