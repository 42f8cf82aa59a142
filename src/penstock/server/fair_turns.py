"""FairTurns: what only a few may do at a time is done for one user after the other.

Whoever asks too much waits behind itself: others have their turns in between. What one user may do
at a time is less than what all may, so there is always a turn for somebody else.
"""

import asyncio
from collections import OrderedDict, deque


class FairTurns:
    """Limits how much is done at a time: `most`, and `most_of_user` for one user, or address. Used
    on the loop only."""

    def __init__(self, most: int, most_of_user: int) -> None:
        self._most = most
        self._most_of_user = most_of_user
        self._count = 0
        self._of_user: dict[str, int] = {}
        # user -> who waits; the user whose turn is next is the first
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    async def take(self, user: str) -> None:
        """Wait for a turn."""
        if self._has_room(user):
            self._grant(user)
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
        self._count -= 1
        self._of_user[user] -= 1
        if not self._of_user[user]:
            del self._of_user[user]
        while (next_user := self._next()) is not None:
            some = self._waiting.pop(next_user)
            granted = some.popleft()
            if some:
                self._waiting[next_user] = some
            if not granted.done():  # else its client has left
                self._grant(next_user)
                granted.set_result(None)

    def _next(self) -> str | None:
        return next((user for user in self._waiting if self._has_room(user)), None)

    def _has_room(self, user: str) -> bool:
        return self._count < self._most and self._of_user.get(user, 0) < self._most_of_user

    def _grant(self, user: str) -> None:
        self._count += 1
        self._of_user[user] = self._of_user.get(user, 0) + 1
