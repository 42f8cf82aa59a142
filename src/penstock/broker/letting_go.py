"""LettingGo: the memory of a queue that was purged or deleted is freed in slices.

To free a message takes some 0.2 us, so a million of them would hold up every client of the vhost
for a quarter of a second. The queue is empty at once all the same, and its bytes are counted no
more; what is left of it in memory goes within as many turns as it takes.
"""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from penstock.broker.chores import AGAIN, DONE, Chore
from penstock.message import Entry

if TYPE_CHECKING:
    from penstock.broker.chores import Chores

SLICE: Final = 4096  # entries: a millisecond


def nobody_listens(_bytes: int) -> None:
    """Nobody wants to know what was freed."""


class LettingGo(Chore):
    """Of one vhost. on_freed(bytes): bodies of so many bytes were freed."""

    def __init__(self, chores: "Chores") -> None:
        self.on_freed: Callable[[int], None] = nobody_listens
        self._chores = chores
        self._entries: deque[deque[Entry]] = deque()

    def add(self, entries: deque[Entry]) -> None:
        """Nobody needs them any more, nor the deque."""
        if len(entries) <= SLICE:
            entries.clear()
            return
        self._entries.append(entries)
        self._chores.wake(self)

    def step(self) -> int:
        entries = self._entries[0]
        size = 0
        for _ in range(min(SLICE, len(entries))):
            size += entries.pop().message.size
        self.on_freed(size)
        if not entries:
            self._entries.popleft()
        return AGAIN if self._entries else DONE

    def failed(self, error: Exception) -> None:
        """Nothing can fail; if it does, it is reported."""
        raise error
