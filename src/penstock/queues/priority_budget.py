"""PriorityBudget: the RAM of a queue with priorities, dealt out to its parts.

The limits and the share of the whole are one budget, given out from the highest priority down, so
that the lowest is paged out first (Qpid's AMQPriorityQueueTest asks for that). Each part is an
ordinary VariableQueue and is given a limit of its own. The rule that keeps the whole below its
limit, as long as each part is below its own:

    [PB] what all parts are charged for, and the pool, are together the limit of the whole; and a
         part is charged for its limit at least, or for what it had in RAM when that was lowered

The *pool* is what nobody is charged for; it is below zero while there is more in RAM than there may
be. An arrival that its part has no room for takes what it
needs from the pool, with an eighth of the part's limit to spare, so most arrivals ask for nothing.
A part that has nothing lower in RAM leaves a sixteenth of the budget there, for what is more urgent
than all that there is. When the pool is down to that, an arrival that has not paged out anything
of its own part makes the lowest part page out instead, as many messages as a publish may: so the
next ones find room. Only what is too large for the pool is paged out by its own part.

A *deal* looks at how much each part could use: all that it holds, wherever that is now, for it will
be read before anything of a lower part. Limits that are too high are lowered at once, but nobody
gets that room before the part that had it has paged out: until then it is charged for it. An eighth
of the budget always goes to the pool, so that paging is mostly done when there is time (`resume`),
not by publishes.

A deal costs something for each part. PriorityQueue makes one when its owner has time and anything
has happened since the last; an arrival makes one only if there is no room and an eighth of the
budget has asked for some in vain. Lowering a limit pages nothing out by itself.
"""

from typing import Final

from penstock.message import Entry
from penstock.queues.backing_queue import UNLIMITED
from penstock.queues.priority_part import Part
from penstock.queues.vq_state import ALPHA_BYTES, alpha_bytes

SPARE_SHIFT: Final = 3  # an eighth: of the budget for the pool, of a limit beyond what is needed
RESERVE_SHIFT: Final = 4  # a sixteenth of the budget, for what is more urgent than all there is


class PriorityBudget:
    """See the head of this module. parts: lowest priority first."""

    def __init__(self, parts: list[Part]) -> None:
        self._parts = parts
        self._max_bytes: int = UNLIMITED
        self._min_bytes: int = UNLIMITED
        self._share_bytes: int = UNLIMITED
        self._wanted_bytes: int = 0  # asked for in vain since the last deal
        self._lowest: int = 0  # no part below has anything in RAM to give
        self.limit_bytes: int = UNLIMITED
        self.pool_bytes: int = 0

    def info(self, *, is_flowed: bool) -> dict[str, int | str]:
        """The limits of the whole, as Paging.info gives them of a queue."""
        by = "max_memory" if self._max_bytes <= self._share_bytes else "share"
        return {
            "max_bytes": self._max_bytes,
            "min_bytes": self._min_bytes,
            "share_bytes": self._share_bytes,
            "paged_by": by if is_flowed else "",
        }

    def set_limits(self, max_bytes: int, min_bytes: int) -> None:
        """The queue's own limits. ValueError unless 0 <= min <= max."""
        if not 0 <= min_bytes <= max_bytes:
            raise ValueError(
                f"limits must be 0 <= min <= max, not min {min_bytes}, max {max_bytes}"
            )
        self._max_bytes = max_bytes
        self._min_bytes = min_bytes
        self._set()

    def set_share(self, share_bytes: int) -> None:
        """The share of the whole machine's budget."""
        self._share_bytes = max(share_bytes, 0)
        self._set()

    def _set(self) -> None:
        self.limit_bytes = min(self._max_bytes, self._share_bytes, UNLIMITED)
        self.deal()

    def make_room(self, part: Part, entry: Entry) -> None:
        """An entry is about to arrive at a part: see to it that the part has room, if possible."""
        if part.max_bytes >= UNLIMITED:
            return
        if part.number < self._lowest:
            self._lowest = part.number
        needed = part.queue.ram_bytes() + alpha_bytes(entry.message) - part.max_bytes
        if needed <= 0:
            return
        room = self._room_for(part)
        if needed > room:
            self._wanted_bytes += needed
            if self._wanted_bytes > self.limit_bytes >> SPARE_SHIFT:
                self.deal()
                room = self._room_for(part)
        if needed <= room:
            given = min(needed + (part.max_bytes >> SPARE_SHIFT), room)
            part.set_limits(part.max_bytes + given, part.min_bytes)
            self._charge(part, part.max_bytes)

    def _charge(self, part: Part, n_bytes: int) -> None:
        """The part takes so much of the budget, if it does not already."""
        if n_bytes > part.charged_bytes:
            self.pool_bytes -= n_bytes - part.charged_bytes
            part.charged_bytes = n_bytes

    def _room_for(self, part: Part) -> int:
        """What a part may take of the pool."""
        if part.number > self._lowest:
            return self.pool_bytes
        return self.pool_bytes - (self.limit_bytes >> RESERVE_SHIFT)

    def fill_pool(self, part: Part) -> None:
        """Something arrived at a part, which has paged out nothing: if the pool is low, the lowest
        part that has anything in RAM pages out instead, at the worst the part itself."""
        reserve = self.limit_bytes >> RESERVE_SHIFT
        if part.max_bytes >= UNLIMITED or self.pool_bytes >= reserve:
            return
        while self._lowest <= part.number:
            low = self._parts[self._lowest]
            self.pool_bytes += low.give_back()
            if self.pool_bytes >= reserve:
                return
            if low.has_ram():
                low.page_out((self.limit_bytes >> SPARE_SHIFT) - self.pool_bytes)
                self.pool_bytes += low.give_back()
                return
            self._lowest += 1

    def deal(self) -> None:
        """Give out the budget, from the highest priority down."""
        self._wanted_bytes = 0
        self._lowest = 0
        limit = self.limit_bytes
        if limit >= UNLIMITED:
            for part in self._parts:
                part.set_limits(UNLIMITED, self._min_bytes)
            return
        left = limit - (limit >> SPARE_SHIFT)
        pool = limit
        for number in range(len(self._parts) - 1, -1, -1):
            part = self._parts[number]
            queue = part.opened
            ram_bytes = useful = 0
            if queue is not None:
                ram_bytes = queue.ram_bytes()
                in_hand = queue.depth() - queue.leased_count()
                useful = max(ram_bytes, queue.body_bytes() + in_hand * ALPHA_BYTES)
            part.due_bytes = min(useful, left)
            left -= part.due_bytes
            # What it has in RAM is in use in any case: a limit up to that takes nothing.
            allowed = min(part.due_bytes, max(part.max_bytes, ram_bytes))
            part.set_limits(allowed, min(part.min_bytes, allowed))
            part.charged_bytes = max(ram_bytes, allowed)
            pool -= part.charged_bytes
        self.pool_bytes = pool
        min_left = min(self._min_bytes, limit)
        for number in range(len(self._parts) - 1, -1, -1):
            part = self._parts[number]
            given = min(part.due_bytes - part.max_bytes, max(self.pool_bytes, 0))
            max_bytes = part.max_bytes + given
            min_bytes = min(max_bytes, min_left)
            min_left -= min_bytes
            part.set_limits(max_bytes, min_bytes)
            self._charge(part, max_bytes)

    def check(self) -> None:
        """Assert [PB]."""
        if self.limit_bytes < UNLIMITED:
            charged = sum([part.charged_bytes for part in self._parts])
            assert charged + self.pool_bytes == self.limit_bytes, "[PB] the budget does not add up"
            assert all(p.max_bytes <= p.charged_bytes for p in self._parts), "[PB] a gift"
