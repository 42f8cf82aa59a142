"""Which stack of parts stands behind a queue: made when it is declared, found after a start.

A queue without priorities is one VariableQueue over one QueueIndex of the queue's own name. One
with priorities 0 to n is a PriorityQueue of n + 1 VariableQueues, and each has an index of its own,
named as RabbitMQ names them:

    jobs NUL 0 | jobs NUL 1 | ... | jobs NUL n        n in decimal, without leading zeros

So NUL is what no name of people may hold; behind it parts of a queue may have names of other kinds
(delays have). `base_names` gives the names that people know. All parts are declared in one record
of the log, and PriorityQueue deletes them in one, so there is no queue with some of its parts.
Arguments and flags of the whole are kept with the first part. How many priorities a queue has is
known by its parts and cannot be changed: they would have to be sorted anew.
"""

from collections.abc import Callable
from typing import Final

from penstock.errors import OptionError, UnknownQueueError
from penstock.queues.backing_queue import BackingQueue
from penstock.queues.priority_queue import PARTS_MAX, PriorityQueue
from penstock.queues.variable_queue import VariableQueue
from penstock.storage.durability import DISK
from penstock.storage.engine import StorageEngine
from penstock.storage.queue_index import QueueIndex
from penstock.storage.routing_table import DurableQueue

SEPARATOR: Final = b"\0"
PRIORITIES_MAX: Final = PARTS_MAX - 1


def open_backing(
    engine: StorageEngine,
    name: bytes,
    *,
    arguments: bytes = b"",
    flags: int = 0,
    priorities: int = 0,
    is_durable: bool = True,
    mode: int = DISK,
    policy: str = "eager",
    on_event: Callable[[str, str], None] | None = None,
) -> BackingQueue:
    """What stands behind the queue `name`: a durable one that is there already as it is (arguments
    and flags are then not looked at), else a new one, which is there for good once the engine's
    `last_lsn` is settled.

    priorities: the highest, 1 to 255; 0 for none. mode: of the records of its delivered marks.
    policy, on_event: of its VariableQueues. Not durable: always new, known to the caller alone.
    OptionError: priorities out of range, or other ones than the queue has; one of that name is
    durable and this is not to be.
    """
    if not 0 <= priorities <= PRIORITIES_MAX:
        raise OptionError("priorities", priorities, f"0 (none) to {PRIORITIES_MAX}")
    known = priorities_of(engine, name)
    names = part_names(name, priorities)
    if not is_durable:
        if known is not None:
            raise OptionError("durable", False, f"True, as queue {_text(name)!r} is")
        indexes = [engine.declare_queue(part, is_durable=False) for part in names]
    elif known is None:
        declared = [(part, b"", flags) for part in names]
        declared[0] = (names[0], arguments, flags)
        indexes = engine.declare_queues(declared)
    elif known != priorities:
        raise OptionError("priorities", priorities, f"{known}, as queue {_text(name)!r} has")
    else:
        indexes = [engine.queue(part) for part in names]

    def make(index: QueueIndex) -> VariableQueue:
        return VariableQueue(engine, index, mode=mode, policy=policy, on_event=on_event)

    return PriorityQueue(engine, indexes, make) if priorities else make(indexes[0])


def part_names(name: bytes, priorities: int) -> list[bytes]:
    """Names of the indexes of a queue, lowest priority first."""
    if not priorities:
        return [name]
    return [b"%b%b%d" % (name, SEPARATOR, priority) for priority in range(priorities + 1)]


def priorities_of(engine: StorageEngine, name: bytes) -> int | None:
    """The highest priority of a durable queue, 0 if it has none; None: there is no such queue."""
    queues = engine.routing.queues
    if name in queues:
        return 0
    highest = -1
    while b"%b%b%d" % (name, SEPARATOR, highest + 1) in queues:
        highest += 1
    return highest if highest >= 0 else None


def base_names(engine: StorageEngine) -> list[bytes]:
    """The names of all queues, durable or not, as people know them, oldest first."""
    names = [index.name.partition(SEPARATOR)[0] for index in engine.queues.values()]
    return list(dict.fromkeys(names))


def stored(engine: StorageEngine, name: bytes) -> tuple[bytes, int]:
    """Arguments and flags of a durable queue. UnknownQueueError."""
    first = _first(engine, name)
    return first.arguments, first.flags


def store_arguments(engine: StorageEngine, name: bytes, arguments: bytes, mode: int = DISK) -> int:
    """Give a durable queue other arguments; returns the LSN. UnknownQueueError."""
    first = _first(engine, name)
    changed = DurableQueue(first.name, first.number, first.flags, arguments)
    return engine.apply_topology(changed.record(), mode)


def _first(engine: StorageEngine, name: bytes) -> DurableQueue:
    queues = engine.routing.queues
    first = queues.get(name) or queues.get(part_names(name, 1)[0])
    if first is None:
        raise UnknownQueueError(_text(name))
    return first


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")
