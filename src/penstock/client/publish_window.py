"""Publishing many messages: a few batches are under way, and the confirms of each are noted.

    messages -> batches -> one write each -> ... WINDOW_MESSAGES, WINDOW_BYTES under way ...
                                             oldest batch: all confirmed -> room for the next

A batch is encoded and written as one, so a message costs no system call and no future of its own;
the broker handles a batch while the next is encoded. The window limits what both sides hold. A
message that alone is larger than the window is sent when nothing else is under way.

A broker answers each publish once: with basic.ack or basic.nack, for one tag or for all up to it.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Final, Generic, TypeVar

BATCH_MESSAGES: Final = 250
BATCH_BYTES: Final = 128 << 10
WINDOW_MESSAGES: Final = 1000
WINDOW_BYTES: Final = 1 << 20

T = TypeVar("T")


class ManyPublished:
    """Messages that were published together, with consecutive tags, and their confirms. refused:
    the indexes of those that the broker refused, so far. future: done when each of them is
    confirmed or refused; has the error of a channel that ended before."""

    __slots__ = ("_above", "_next", "count", "first", "future", "refused")

    def __init__(self, first: int, count: int, future: "Future[None]") -> None:
        self.first = first
        self.count = count
        self.future = future
        self.refused: list[int] = []
        self._next = first  # the lowest tag without an answer
        self._above: set[int] = set()  # answered tags above it

    def unanswered(self) -> list[int]:
        """Return the indexes of the messages that the broker has not answered yet. What the
        thread that reads notes meanwhile may still be among them."""
        above = set(self._above)
        tags = range(self._next, self.first + self.count)
        return [tag - self.first for tag in tags if tag not in above]

    def answer(self, tag: int, *, multiple: bool, is_taken: bool) -> bool:
        """Note an answer of the broker: for a tag, or for all up to it. Returns whether all have
        one now."""
        above, end = self._above, self.first + self.count
        if not multiple:
            if not self._next <= tag < end or tag in above:
                return self._next == end
            above.add(tag)
            if not is_taken:
                self.refused.append(tag - self.first)
        else:
            until = min(tag + 1, end)
            if not is_taken:
                refused = (one for one in range(self._next, until) if one not in above)
                self.refused += [one - self.first for one in refused]
            self._next = max(self._next, until)
        while above and self._next in above:
            above.discard(self._next)
            self._next += 1
        return self._next == end


def batches(sizes: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Cut messages of these sizes into batches. Yields of each where it begins and ends, and its
    bytes: at most BATCH_MESSAGES and BATCH_BYTES, or one larger message."""
    start = size_bytes = 0
    for at, size in enumerate(sizes):
        if at > start and (at - start == BATCH_MESSAGES or size_bytes + size > BATCH_BYTES):
            yield start, at, size_bytes
            start, size_bytes = at, 0
        size_bytes += size
    if start < len(sizes):
        yield start, len(sizes), size_bytes


class Window(Generic[T]):
    """Batches under way, the oldest first, each with something that its publisher keeps for it."""

    def __init__(self) -> None:
        self._batches: deque[tuple[ManyPublished, int, T]] = deque()
        self._messages = 0
        self._bytes = 0

    def __bool__(self) -> bool:
        """Whether something is under way."""
        return bool(self._batches)

    def has_room(self, count: int, size_bytes: int) -> bool:
        """Return whether a batch of so many messages and bytes may be sent now."""
        return not self._batches or (
            self._messages + count <= WINDOW_MESSAGES and self._bytes + size_bytes <= WINDOW_BYTES
        )

    def add(self, published: ManyPublished, size_bytes: int, kept: T) -> None:
        """Add a batch that was sent."""
        self._batches.append((published, size_bytes, kept))
        self._messages += published.count
        self._bytes += size_bytes

    def take_oldest(self) -> tuple[ManyPublished, T]:
        """Remove the oldest batch, to be waited for."""
        published, size_bytes, kept = self._batches.popleft()
        self._messages -= published.count
        self._bytes -= size_bytes
        return published, kept
