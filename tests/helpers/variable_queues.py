"""VariableQueues for tests: opened in every way that matters, and what tests look at in them.

`LIMIT` is a small limit: a handful of alphas. An ``Opener`` made by `opens` gives every queue of a
world the same policy, mode and limits, also after a restart.
"""

from typing import Final

from penstock.queues.backing_queue import UNLIMITED, BackingQueue
from penstock.queues.priority_queue import open_backing
from penstock.queues.variable_queue import VariableQueue
from penstock.storage.files.durability import DISK
from tests.helpers.engine_rig import EngineRig
from tests.helpers.queue_world import Opener, World

LIMIT: Final = 3000


def opens(
    *, policy: str = "ratio", mode: str = "default", limit: int = UNLIMITED, read_bytes: int = 256
) -> Opener:
    """An Opener. limit: the queue's own maximum in bytes, the minimum is half of it."""

    def open_one(rig: EngineRig, name: bytes, is_durable: bool) -> BackingQueue:
        index = rig.queue(name) if is_durable else rig.engine.declare_queue(name, is_durable=False)
        vq = VariableQueue(
            rig.engine, index, mode=DISK, policy=policy, read_bytes=read_bytes,
            on_event=lambda kind, text: rig.events.append((kind, text)),
        )  # fmt: skip
        if limit < UNLIMITED:
            vq.set_limits(limit, limit // 2)
        vq.set_queue_mode(mode)
        return vq

    return open_one


def opens_parts(*, policy: str = "ratio", priorities: int = 2) -> Opener:
    """An Opener of PriorityQueues of VariableQueues."""

    def open_one(rig: EngineRig, name: bytes, is_durable: bool) -> BackingQueue:
        return open_backing(
            rig.engine, name, priorities=priorities, is_durable=is_durable, policy=policy
        )

    return open_one


def real(queue: BackingQueue) -> VariableQueue:
    """The queue as what it is."""
    assert isinstance(queue, VariableQueue)
    return queue


def lengths(world: World) -> tuple[int, int, int, int, int]:
    """How many are in q4, q3, delta, q2, q1 of the world's queue."""
    q4, q3, delta, q2, q1 = real(world.q).state.ids()
    return len(q4), len(q3), len(delta), len(q2), len(q1)


def info_int(queue: BackingQueue, name: str) -> int:
    """A counter of `info`."""
    value = queue.info()[name]
    assert isinstance(value, int)
    return value
