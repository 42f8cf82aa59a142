"""What a lease takes from a PriorityQueue: from the highest part that has anything, then the next.

As a fetch: nothing of a lower priority overtakes a head that must not be taken now, because its
record is not settled or because it is expired and the owner is about to bury it.
"""

from typing import TYPE_CHECKING

from penstock.storage.lease_engine import Taken

if TYPE_CHECKING:
    from penstock.queues.priority_queue import PriorityQueue


def take_by_priority(
    queue: "PriorityQueue", messages_max: int, bytes_max: int, now_ms: int
) -> list[Taken]:
    """See BackingQueue.take."""
    found: list[Taken] = []
    while messages_max > 0 and (part := queue.highest()) is not None:
        try:
            head = part.queue.head()
            if found and head is not None and head.size > bytes_max:
                break
            taken = part.queue.take(messages_max, bytes_max, now_ms)
        except BaseException:
            queue.untake(found)
            raise
        queue.count(part)
        found += taken
        for one in taken:
            messages_max -= len(one.entries)
            bytes_max -= sum([entry.message.size for entry in one.entries])
        if part.len:
            break  # enough, or the head is not to be taken now: nothing overtakes it
    return found
