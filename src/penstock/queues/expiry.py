"""Expiry: until when a message may be delivered, and what has to go because of it.

A message's expiry is fixed when it enters the queue: now plus its own time to live or the queue's,
whichever is sooner, as in RabbitMQ. From then on it is a date in ms since 1970 that stands in the
row, so nothing is ever read to decide. 0 means never.

Only the head is looked at. What is expired further back is not delivered either, because it has to
pass the head first; until then it counts as ready. RabbitMQ does the same, for the same reason: a
queue sorted by expiry would be a second queue. So the one date that a timer needs is the head's.

Work is in slices: `expire` takes at most `quota` heads and says if there may be more. What is taken
is dropped in one record, or handed one by one to `bury` if somebody wants the dead.
"""

from collections.abc import Callable
from typing import Final

from penstock.native import mypyc_attr
from penstock.queues.backing_queue import BackingQueue, Head

SLICE: Final = 256  # messages that one call may expire


def expiry_at(now_ms: int, ttl_ms: int | None, queue_ttl_ms: int | None) -> int:
    """The expiry of a message that arrives now; ms since 1970, 0 for never. None: no such limit."""
    if ttl_ms is None:
        return 0 if queue_ttl_ms is None else now_ms + queue_ttl_ms
    if queue_ttl_ms is not None and queue_ttl_ms < ttl_ms:
        return now_ms + queue_ttl_ms
    return now_ms + ttl_ms


def sooner(expiry_ms: int, other_ms: int) -> int:
    """The sooner of two expiries, 0 being never."""
    if not expiry_ms or not other_ms:
        return expiry_ms or other_ms
    return min(expiry_ms, other_ms)


def is_expired(expiry_ms: int, now_ms: int) -> bool:
    """Whether a message of this expiry must not be delivered any more."""
    return 0 < expiry_ms <= now_ms


@mypyc_attr(acyclic=True)
class ExpiredUpTo:
    """A predicate for `dropwhile`: expired at `now_ms`, and at most `quota` of them."""

    __slots__ = ("left", "now_ms")

    def __init__(self, now_ms: int, quota: int) -> None:
        self.now_ms: int = now_ms
        self.left: int = quota

    def __call__(self, head: Head) -> bool:
        if not self.left or not is_expired(head.expiry_ms, self.now_ms):
            return False
        self.left -= 1
        return True


def expire(
    backing: BackingQueue, now_ms: int, quota: int, bury: Callable[[int], None] | None, mode: int
) -> tuple[int, bool]:
    """Take at most `quota` expired heads out of a queue; how many there were, and whether the head
    is still an expired one. bury: is given the tag of each, which is pending, and settles it; None:
    they die. mode: of the record in which they die."""
    if bury is None:
        predicate = ExpiredUpTo(now_ms, quota)
        head = backing.dropwhile(predicate, mode)
        return quota - predicate.left, head is not None and is_expired(head.expiry_ms, now_ms)
    n = 0
    head = backing.head()
    while head is not None and is_expired(head.expiry_ms, now_ms):
        if n == quota:
            return n, True
        dropped = backing.drop(ack_required=True)
        if dropped is not None:
            bury(dropped.tag)
        n += 1
        head = backing.head()
    return n, False
