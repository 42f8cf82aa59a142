"""SharedBody: one body in RAM that several queues hold, and the part of it that each of them
counts.

A message that goes to ten queues is one bytes object. So that all queues together count it once,
each of them counts a part:

    part     len(body) // weight: what each holder counts
    first    the first in the list also counts what the parts do not cover

So the counts always add up to exactly len(body) while any queue holds it in RAM, and to 0 after
that. A holder that leaves (its message was acknowledged, paged out, purged ...) gives its part to
the first, so the last one counts the whole body. `weight` is the number of holders when the parts
were made. They are made again once an eighth of these have left, or when there are too many for
them: up to eight holders the parts are always equal, above that within an eighth, and the cost for
each holder that comes or goes is bounded.

    make     StorageEngine.new_message, for several queues: no queue holds it yet
    join     a queue takes the message into RAM and counts its part
    complete all queues for which it was published have had it: the first counts the rest, too.
             Otherwise the first of ten queues would count the whole body for a moment and page out
    leave    the message leaves RAM in that queue

A queue counts messages in RAM in full (queue_ram.py) and subtracts what others count for it:
`SharedBodies.elsewhere_bytes`, one for each queue. A message without a SharedBody costs only the
check of its class.

Bodies that were read back from disk are separate objects and not shared. Headers are counted by
each queue.
"""

from typing import Final

from penstock.message import QueuedMessage
from penstock.native import mypyc_attr


@mypyc_attr(acyclic=True)
class SharedBodies:
    """The shared bodies of one queue. count: how many it holds in RAM, one that it holds twice
    counted twice. elsewhere_bytes: what the other holders count of these bodies."""

    __slots__ = ("count", "elsewhere_bytes")

    def __init__(self) -> None:
        self.count: int = 0
        self.elsewhere_bytes: int = 0


NOBODY: Final = SharedBodies()


@mypyc_attr(acyclic=True)
class SharedBody:
    """body: not empty. weight: how many holders are expected, at least 1."""

    __slots__ = ("_count", "_holders", "_is_complete", "_part", "_size", "_weight", "body")

    def __init__(self, body: bytes, weight: int) -> None:
        size = len(body)
        self.body: bytes = body
        self._size: int = size
        # The first _count of them hold it. Made in one piece: a list that grows to ten takes 48
        # bytes more.
        self._holders: list[SharedBodies] = [NOBODY] * weight
        self._count: int = 0
        self._weight: int = weight
        self._part: int = size // weight
        self._is_complete: bool = False

    def join(self, holder: SharedBodies) -> None:
        """Add a holder; a queue that holds it twice joins twice."""
        holder.count += 1
        if self._is_complete:
            self._join_late(holder)
            return
        holder.elsewhere_bytes += self._size - self._part
        self._add(holder)

    def _add(self, holder: SharedBodies) -> None:
        n = self._count
        if n < len(self._holders):
            self._holders[n] = holder
        else:
            self._holders.append(holder)
        self._count = n + 1

    def _join_late(self, holder: SharedBodies) -> None:
        size = self._size
        n = self._count
        if n and (n + 1) * self._part > size:
            self._share_again(n + 1 + (n + 1) // 7)
        part = self._part
        holder.elsewhere_bytes += size - part
        self._add(holder)
        # The first counts the rest: this part less, or all of the rest if it came just now.
        self._holders[0].elsewhere_bytes += part if n else part - size

    def complete(self) -> None:
        """End the publish: all queues have joined, or never will. A second call does nothing."""
        if self._is_complete:
            return
        self._is_complete = True
        n = self._count
        if n:
            self._holders[0].elsewhere_bytes -= self._size - n * self._part
            if n > self._weight:
                self._share_again(n)
            self._check_parts(n)

    def leave(self, holder: SharedBodies) -> None:
        """Remove a holder. Raises ValueError if it has not joined."""
        holders = self._holders
        n = self._count
        at = 0
        while at < n and holders[at] is not holder:
            at += 1
        if at == n:
            raise ValueError("a shared body was left by a queue that does not hold it")
        size = self._size
        part = self._part
        rest = size - n * part if self._is_complete else 0
        holder.count -= 1
        holder.elsewhere_bytes -= size - part
        n -= 1
        self._count = n
        if at < n:
            holders[at] = holders[n]
        holders[n] = NOBODY
        if not self._is_complete:
            return
        if not at:  # it counted the rest
            holder.elsewhere_bytes += rest
        if not n:
            return
        holders[0].elsewhere_bytes -= part if at else rest + part
        self._check_parts(n)

    def _check_parts(self, n: int) -> None:
        """Make the parts again if an eighth of those that they were made for have left."""
        if n * 8 <= self._weight * 7:
            self._share_again(n)

    def _share_again(self, weight: int) -> None:
        """Make parts for so many holders, at least as many as there are; the sum stays."""
        part = self._size // weight
        more = part - self._part
        self._weight = weight
        self._part = part
        if not more:
            return
        holders = self._holders
        n = self._count
        for i in range(n):
            holders[i].elsewhere_bytes -= more
        holders[0].elsewhere_bytes += more * n

    # ---- for tests -----------------------------------------------------------------------------

    def times(self, holder: SharedBodies) -> int:
        """Return how often the queue holds this body."""
        return sum([1 for each in self._holders if each is holder])

    def counted_bytes(self, holder: SharedBodies) -> int:
        """Return what the queue counts of this body, for as often as it holds it."""
        counted = self.times(holder) * self._part
        if self._is_complete and self._count and self._holders[0] is holder:
            counted += self._size - self._count * self._part
        return counted


@mypyc_attr(acyclic=True)
class SharedMessage(QueuedMessage):
    """A QueuedMessage whose body is that of `shared`, in RAM; other messages may have the same."""

    __slots__ = ("shared",)

    def __init__(
        self, shared: SharedBody, id: int, header: bytes, time: int, expiry_ms: int,
        store_file: int = 0, persistent: bool = True,
    ) -> None:  # fmt: skip
        body = shared.body
        super().__init__(id, header, body, len(body), time, expiry_ms, store_file, persistent)
        self.shared: SharedBody = shared
