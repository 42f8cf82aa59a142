"""Own limits: whether the memory limits that queues have of their own fit the budget together.

Two moments ask: a declare, of one queue more (`MemoryMonitor.check_limits`), and a start, of all
that are on disk already, for a budget can be smaller than it was, or the limits were made when
nobody looked. At a start queues are taken in the order in which they were declared: one that does
not fit beside those before it does not fit at all, and smaller ones behind it still may.

Not here: what is done about it (broker.queue_table, embedded.core), limits that share the budget
(memory_monitor).
"""

from collections.abc import Mapping
from typing import Final

from penstock.queues.budget import format_bytes
from penstock.queues.memory_monitor import WARN_PART
from penstock.queues.queue_options import QueueOptions

SHOWN_MAX: Final = 5  # queues that a warning names
# What the arguments of a queue with such a limit hold, as they are stored.
MARKS: Final = (b'"x-queue-max-memory-bytes"', b'"flow_to_disk"')


def may_have_one(arguments: bytes) -> bool:
    """Whether a queue with these stored arguments may have a limit of its own."""
    return any(mark in arguments for mark in MARKS)


def own_limit(options: QueueOptions) -> int:
    """Bytes; 0: the queue has no limit of its own."""
    return options.max_memory_bytes or 0


def beyond(limits: Mapping[str, int], budget_bytes: int) -> dict[str, int]:
    """Of queues with the limits of their own, oldest first: those that do not fit, with the bytes
    that were left for each."""
    left = budget_bytes
    found: dict[str, int] = {}
    for name, limit in limits.items():
        if limit > left:
            found[name] = left
        else:
            left -= limit
    return found


def expected(left_bytes: int, budget_bytes: int) -> str:
    """What a queue that does not fit may have."""
    return (
        f"at most the {format_bytes(left_bytes)} that other queues leave of "
        f"{format_bytes(budget_bytes)}"
    )


def warning(limits: Mapping[str, int], budget_bytes: int) -> str | None:
    """One line about limits that come to more than the part of the budget that they may have
    without it, with the largest of them; None: they do not."""
    total = sum(limits.values())
    if total <= budget_bytes * WARN_PART:
        return None
    part = f"{100 * total / budget_bytes:.0f} % of it" if budget_bytes else "too much"
    largest = sorted(limits.items(), key=_most_first)
    shown = ", ".join(f"{name!r} {format_bytes(limit)}" for name, limit in largest[:SHOWN_MAX])
    more = f", and {len(largest) - SHOWN_MAX} more" if len(largest) > SHOWN_MAX else ""
    return (
        f"the queues' own memory limits come to {format_bytes(total)}, {part}: "
        f"{format_bytes(budget_bytes)}; {shown}{more}"
    )


def _most_first(one: tuple[str, int]) -> tuple[int, str]:
    return -one[1], one[0]
