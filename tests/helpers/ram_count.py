"""What queues count in RAM, and what they hold there, counted by the identity of bodies.

`counted_bytes` adds up what the queues say. `held_bytes` walks over everything that they hold: 32
bytes for each row, 256 and the header for each message, and each body object once, however many
queues and messages hold it; and what is reserved for reads that are under way. The two must be
equal at any time.
"""

from collections.abc import Iterable

from penstock.broker.vhost import VHost
from penstock.queues.backing_queue import BackingQueue
from penstock.queues.priority_queue import PriorityQueue
from penstock.queues.queue_ram import ALPHA_BYTES
from penstock.queues.rows import ROW_BYTES
from penstock.queues.variable_queue import VariableQueue


def variable_queues(queues: Iterable[BackingQueue]) -> list[VariableQueue]:
    """All of them, the parts of those with priorities each by itself."""
    found: list[VariableQueue] = []
    for queue in queues:
        if isinstance(queue, PriorityQueue):
            found += [part.queue for part in queue.opened]
        else:
            assert isinstance(queue, VariableQueue), "there is no third kind"
            found.append(queue)
    return found


def managed(vhost: VHost) -> list[VariableQueue]:
    """Those that the memory monitor of a vhost counts, with parts for delayed messages."""
    return variable_queues(one.queue for one in vhost.monitor._managed.values())


def counted_bytes(queues: Iterable[VariableQueue]) -> int:
    """What they say. None of them counts less than its rows and messages without bodies."""
    whole = 0
    for queue in queues:
        counted = queue.ram_bytes()
        assert counted >= _rows_bytes(queue) + _heads_bytes(queue), (
            "a body counts less than nothing"
        )
        whole += counted
    return whole


def held_bytes(queues: Iterable[VariableQueue]) -> int:
    """What there is; see the head of this module."""
    whole = 0
    bodies: dict[int, int] = {}
    for queue in queues:
        whole += _rows_bytes(queue) + _heads_bytes(queue) + queue.state.reading_bytes
        for entry in queue.state.in_ram():
            body = entry.message.body
            if body is not None:
                bodies[id(body)] = len(body)
    return whole + sum(bodies.values())


def _rows_bytes(queue: VariableQueue) -> int:
    state = queue.state
    paged = state.disk_pending
    rows = (state.q2, state.q3, state.back_rows, paged.near, paged.window)
    bits = sum(
        len(segment.bits) + len(segment.transients or b"") for segment in paged._far.values()
    )
    return bits + ROW_BYTES * sum(len(list(part.rows())) for part in rows)


def _heads_bytes(queue: VariableQueue) -> int:
    return sum(ALPHA_BYTES + len(entry.message.header) for entry in queue.state.in_ram())
