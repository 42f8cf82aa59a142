"""Part: one priority of a PriorityQueue, as the whole sees it.

The queue of a part is an ordinary VariableQueue and knows nothing of the others: its tags are plain
seqs. To the outside a tag has the number of the part above 56 bits, so whatever comes out of a part
is given its tag here, and what a part still holds in its hands while it asks (the head that a
predicate judges, the delivery that is folded over) is shown as another object.

A part has no queue before its first message: its index is declared with the others, and what stands
over it, some 9 KiB, is made when somebody first publishes to it or asks for it (`queue`).

A part also keeps the limits that it was given, and what was last known of its counts, so that the
counts of the whole are changed by differences and never summed.
"""

from collections.abc import Callable
from typing import Final, Generic, TypeVar

from penstock.queues.backing_queue import PART_SHIFT, UNLIMITED, Delivery, Head
from penstock.queues.purger import PUBLISH_BYTES, PUBLISH_MESSAGES
from penstock.queues.variable_queue import VariableQueue
from penstock.storage.queue_index import QueueIndex

SEQ_MASK: Final = (1 << PART_SHIFT) - 1

A = TypeVar("A")


class Part:
    """One priority: its queue, and what was last known of it. opened: its queue, None before there
    was a message. open_queue(part): makes it."""

    def __init__(
        self, number: int, index: QueueIndex, open_queue: Callable[["Part"], VariableQueue]
    ) -> None:
        self.number: int = number
        self.index: QueueIndex = index
        self.opened: VariableQueue | None = None
        self._open_queue: Callable[[Part], VariableQueue] = open_queue
        self.base: int = number << PART_SHIFT  # of its tags
        self.bit: int = 1 << number
        # As they were when PriorityQueue last looked.
        self.len: int = 0
        self.in_hand: int = 0
        self.body_bytes: int = 0
        # The limits it was given, and the one that it should have, by the last deal.
        self.max_bytes: int = UNLIMITED
        self.min_bytes: int = UNLIMITED
        self.due_bytes: int = 0
        # What it takes of the budget: the limit, or what was in RAM when that was lowered.
        self.charged_bytes: int = 0

    @property
    def queue(self) -> VariableQueue:
        """Its queue, opened if it was not."""
        opened = self.opened
        return opened if opened is not None else self._open_queue(self)

    def ram_bytes(self) -> int:
        """Bytes counted in RAM."""
        return 0 if self.opened is None else self.opened.ram_bytes()

    def delivery(self, delivery: Delivery) -> Delivery:
        """Given to us: with the tag that it has to the outside."""
        delivery.tag = self.base | delivery.tag
        return delivery

    def shown(self, delivery: Delivery) -> Delivery:
        """Shown to us, for the part may look at it again: another one, with that tag."""
        tag = self.base | delivery.tag
        return Delivery(tag, delivery.message, delivery.is_redelivered, delivery.attempts)

    def head(self, head: Head) -> Head:
        """Another one, with the tag that it has to the outside."""
        return Head(self.base | head.tag, head.id, head.size, head.expiry_ms)

    def set_limits(self, max_bytes: int, min_bytes: int) -> None:
        """Tell the queue, if that is news. Nothing is paged out here: its target is lowered first,
        so to `set_limits` it is lowered already."""
        if max_bytes == self.max_bytes and min_bytes == self.min_bytes:
            return
        self.max_bytes = max_bytes
        self.min_bytes = min_bytes
        self.apply_limits()

    def apply_limits(self) -> None:
        """See to it that the queue, if there is one, has the limits of its part."""
        queue = self.opened
        if queue is None:
            return
        if self.max_bytes < queue.state.target_bytes:
            queue.state.target_bytes = self.max_bytes
        queue.set_limits(self.max_bytes, self.min_bytes)

    def give_back(self) -> int:
        """Lower the limit to what is in RAM; how much less of the budget it takes."""
        used = self.ram_bytes()
        max_bytes = min(self.max_bytes, used)
        self.set_limits(max_bytes, min(self.min_bytes, max_bytes))
        given = max(self.charged_bytes - used, 0)
        self.charged_bytes -= given
        return given

    def page_out(self, n_bytes: int) -> None:
        """Page out so many bytes, but no more than one publish may. `give_back` comes next."""
        queue = self.queue
        target = queue.state.target_bytes
        queue.state.target_bytes = min(target, max(queue.ram_bytes() - n_bytes, 0))
        queue.paging.step(PUBLISH_MESSAGES, PUBLISH_BYTES)
        queue.state.target_bytes = target

    def has_ram(self) -> bool:
        """Whether any message is in RAM, ready or pending."""
        if self.opened is None:
            return False
        state = self.opened.state
        return state.alpha_bytes + state.pending_bytes > 0

    def asking(self, predicate: Callable[[Head], bool]) -> Callable[[Head], bool]:
        """For this part, of a predicate that is to see the tags of the outside."""
        return lambda head: predicate(self.head(head))

    def showing(self, fun: Callable[[Delivery, A], A]) -> Callable[[Delivery, A], A]:
        """The same for what folds over deliveries."""
        return lambda delivery, acc: fun(self.shown(delivery), acc)


class PartFold(Generic[A]):
    """A fold over one part, that knows whether it was cut short."""

    def __init__(self, part: Part, fun: Callable[[Delivery, bool, A], tuple[bool, A]]) -> None:
        self._part = part
        self._fun: Callable[[Delivery, bool, A], tuple[bool, A]] = fun
        self.goes_on: bool = True

    def step(self, delivery: Delivery, is_pending: bool, acc: A) -> tuple[bool, A]:
        """One message."""
        self.goes_on, acc = self._fun(self._part.shown(delivery), is_pending, acc)
        return self.goes_on, acc
