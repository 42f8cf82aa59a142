"""QueueState: one queue of a box, and who waits for its turn at it.

Three kinds wait: getters for a message, putters for room (`maxsize`), joiners for the queue to have
nothing left. Whoever changes the queue calls `changed`, and that wakes at most one getter and one
putter; each of them, once it has had its turn, calls `changed` again. So as many go on as there is
something for, one after the other, and nobody is woken for nothing.

It outlives the core: when that is opened anew after an interrupt, `amq` is another one.

Everything here is called under the lock of the box.
"""

from collections import deque

from penstock.embedded.waiting import WOKEN, Waiter
from penstock.queues.amq_queue import AMQQueue


class QueueState:
    """See the head of this module. mode: durability of its puts, unless a put says otherwise."""

    __slots__ = (
        "amq", "due_ms", "getters", "is_consumed", "is_crowded", "is_deleted", "is_touched",
        "joiners", "mode", "name", "putters",
    )  # fmt: skip

    def __init__(self, name: str, amq: AMQQueue, mode: int) -> None:
        self.name: str = name
        self.amq: AMQQueue = amq
        self.mode: int = mode
        self.getters: deque[Waiter] = deque()
        self.putters: deque[Waiter] = deque()
        self.joiners: deque[Waiter] = deque()
        self.is_crowded: bool = False  # somebody waits
        self.due_ms: int = 0  # the driver's thread looks at it then; 0: nothing is due
        self.is_touched: bool = False  # the driver's thread will look at it next time
        self.is_consumed: bool = False  # somebody got a message since the thread last looked
        self.is_deleted: bool = False

    def enqueue(self, waiters: deque[Waiter], waiter: Waiter) -> None:
        """It waits from now on, in one of the three."""
        self.is_crowded = True
        waiters.append(waiter)
        self.amq.takers = len(self.getters)

    def leave(self, waiter: Waiter) -> None:
        """It waits no more, whether it was woken or not."""
        for waiters in (self.getters, self.putters, self.joiners):
            if waiter in waiters:
                waiters.remove(waiter)
        self.is_crowded = bool(self.getters or self.putters or self.joiners)
        self.amq.takers = len(self.getters)

    def changed(self) -> None:
        """Something came, went or may go on: wake who can do something about it."""
        if self.getters and self.amq.len():
            self._wake_first(self.getters)
        if self.putters:
            self._wake_first(self.putters)
        if self.joiners and self.unfinished() == 0:
            while self.joiners:
                self._wake_first(self.joiners)
        self.is_crowded = bool(self.getters or self.putters or self.joiners)

    def unfinished(self) -> int:
        """Messages that are ready, unacknowledged or delayed."""
        return self.amq.depth() + self.amq.delayed()

    def wake_all(self) -> None:
        """The queue or the box is no more: whoever waits will find that out."""
        for waiters in (self.getters, self.putters, self.joiners):
            while waiters:
                self._wake_first(waiters)
        self.is_crowded = False

    def _wake_first(self, waiters: deque[Waiter]) -> None:
        waiters[0].wake(WOKEN)  # first, for an interrupt may come in between
        waiters.popleft()
