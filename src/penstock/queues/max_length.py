"""Max length: how many messages, and how many bytes of bodies, may be ready in a queue.

As in RabbitMQ only what is ready counts, bodies alone are measured, and what was delivered and
comes back is never refused. Nor does what somebody who waits has room for: it is as good as
delivered (`room`, in messages). Four ways to keep a limit:

    drop-head            the new message enters, heads leave until the queue is within its limits
    reject-publish       a publish that would pass a limit is refused, nothing has happened
    reject-publish-dlx   the same, and the refused message is dead-lettered
    drop-head-strict     Qpid's strict ring: as drop-head, but what was delivered and is not
                         acknowledged counts, too, and is not passed over: while there is any, it
                         is the oldest, and a publish that would pass a limit is refused

Heads leave through `bury` if somebody wants them, else they die. At most `quota` leave in one call,
so lowering a limit on a long queue is work for many turns and no stall. What is dropped at the head
of a queue with priorities is of the highest one: RabbitMQ's rule, surprising as it is.
"""

from collections.abc import Callable
from typing import Final

from penstock.errors import QueueFullError
from penstock.queues.backing_queue import UNLIMITED, BackingQueue
from penstock.queues.queue_options import (
    DROP_HEAD,
    DROP_HEAD_STRICT,
    REJECT_PUBLISH_DLX,
    QueueOptions,
)

SLICE: Final = 256  # messages that one call may drop


class MaxLength:
    """The limits of one queue. `is_set`: whether there are any; `drops_head`, `may_refuse` (a
    strict ring does both), `buries_refused`: how they are kept."""

    def __init__(self, queue: str, options: QueueOptions) -> None:
        self._queue = queue
        self._length = UNLIMITED if options.max_length is None else options.max_length
        size = options.max_length_bytes
        self._length_bytes = UNLIMITED if size is None else size
        self.is_set: bool = options.max_length is not None or size is not None
        self._is_strict: bool = options.overflow == DROP_HEAD_STRICT
        self.drops_head: bool = self._is_strict or options.overflow == DROP_HEAD
        self.may_refuse: bool = options.overflow != DROP_HEAD
        self.buries_refused: bool = options.overflow == REJECT_PUBLISH_DLX

    def check(self, backing: BackingQueue, n: int, body_bytes: int, room: int = 0) -> None:
        """QueueFullError if n more messages of `body_bytes` together do not fit, in a queue that
        rejects. Which limit, what it would be and what is allowed are in the error."""
        if not self.may_refuse or not self.is_set:
            return
        if self._is_strict:
            self._check_strict(backing, n, body_bytes)
            return
        # They come one after the other, and those before the last may be delivered at once.
        count = backing.len() + n
        if room:
            count = max(count - 1 - room, 0) + 1
        if count > self._length:
            raise QueueFullError(self._queue, "max_length", count, self._length)
        size = body_bytes
        if count > n:
            size += backing.body_bytes()
        elif count < n:
            size = body_bytes // n
        if size > self._length_bytes:
            raise QueueFullError(self._queue, "max_length_bytes", size, self._length_bytes)

    def _check_strict(self, backing: BackingQueue, n: int, body_bytes: int) -> None:
        """The same of a strict ring: with all that is ready gone they are to fit, and with what is
        there if some of that is not acknowledged."""
        count, size = n, body_bytes
        if backing.depth() > backing.len():
            count += backing.depth()
            if self._length_bytes < UNLIMITED:
                size += backing.body_bytes() + int(backing.info()["unacked_bytes"])
        if count > self._length:
            raise QueueFullError(self._queue, "max_length", count, self._length)
        if size > self._length_bytes:
            raise QueueFullError(self._queue, "max_length_bytes", size, self._length_bytes)

    def is_over(self, backing: BackingQueue, room: int = 0) -> bool:
        """Whether more is ready than the limits allow."""
        count = backing.len()
        if room >= count:
            return False
        return count - room > self._length or backing.body_bytes() > self._length_bytes

    def trim(
        self, backing: BackingQueue, quota: int, bury: Callable[[int], None] | None, room: int = 0
    ) -> int:
        """Drop heads until the queue is within its limits, at most `quota` of them; how many. bury:
        is given the tag of each, which is pending, and settles it; None: they die."""
        n = 0
        while n < quota and self.is_over(backing, room):
            head = backing.drop(ack_required=bury is not None)
            if head is None:
                break
            if bury is not None:
                bury(head.tag)
            n += 1
        return n
