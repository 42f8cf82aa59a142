"""FairTurns: what only a few may do at a time is done for one user after the other.

Whoever asks too much waits behind itself: others have their turns in between. What one user may do
at a time is less than what all may, so there is always a turn for somebody else.
"""

import asyncio
from collections import OrderedDict, deque

from penstock.counts import UserSums


class FairTurns:
    """Limits how much is done at a time: `most`, and `most_of_user` for one user, or address. Used
    on the loop only."""

    def __init__(self, most: int, most_of_user: int) -> None:
        self._most = most
        self._most_of_user = most_of_user
        self._granted = UserSums()
        # user -> who waits; the user whose turn is next is the first
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    async def take(self, user: str) -> None:
        """Wait for a turn."""
        if self._has_room(user):
            self._granted.add(user)
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(user, deque()).append(granted)
        try:
            await granted
        except asyncio.CancelledError:
            if not granted.cancelled():  # it was granted meanwhile
                self.give_back(user)
            raise

    def give_back(self, user: str) -> None:
        """End a turn, and let those who wait have theirs."""
        self._granted.add(user, -1)
        while (next_user := self._next()) is not None:
            some = self._waiting.pop(next_user)
            granted = some.popleft()
            if some:
                self._waiting[next_user] = some
            if not granted.done():  # else its client has left
                self._granted.add(next_user)
                granted.set_result(None)

    def _next(self) -> str | None:
        return next((user for user in self._waiting if self._has_room(user)), None)

    def _has_room(self, user: str) -> bool:
        return self._granted.total < self._most and self._granted.of(user) < self._most_of_user
