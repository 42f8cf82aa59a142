"""PartHolder: what a PriorityQueue sees of the messages that arrive in one of its parts.

Messages also arrive behind the back of the whole (a transaction, a dead letter, a publish to
several queues): the engine gives them to the Holder of the part's index, so one of these stands
before it, makes room in the common budget, and lets the whole count.
"""

from typing import TYPE_CHECKING

from penstock.message import Entry
from penstock.queues.priority_part import Part
from penstock.storage.holder import Holder

if TYPE_CHECKING:
    from penstock.queues.priority_queue import PriorityQueue


class PartHolder(Holder):
    """Stands before the Holder of a part and sees what arrives."""

    def __init__(self, owner: "PriorityQueue", part: Part, holder: Holder) -> None:
        self._owner = owner
        self._part = part
        self._holder = holder

    def add(self, entry: Entry) -> None:
        budget, part = self._owner.budget, self._part
        budget.make_room(part, entry)
        writes = part.queue.state.disk_writes
        self._holder.add(entry)
        if part.queue.state.disk_writes == writes:
            budget.fill_pool(part)
        self._owner.count(part)

    def drop(self, first: int, n: int) -> None:
        self._holder.drop(first, n)

    def wants_drops(self) -> bool:
        return self._holder.wants_drops()

    def get(self, seq: int) -> Entry | None:
        return self._holder.get(seq)

    def candidates(self, below: int, n: int) -> list[Entry]:
        return self._holder.candidates(below, n)

    def unsettled(self) -> list[Entry]:
        return self._holder.unsettled()

    def materialised(self, entries: list[Entry]) -> None:
        self._holder.materialised(entries)
