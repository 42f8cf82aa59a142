"""What one turn pages out is bounded, whatever number of queues is over its limit, and how far."""

from collections.abc import Callable
from itertools import pairwise

import pytest

from penstock.broker.broker_queue import BrokerQueue
from penstock.queues.paging import SLICE_MESSAGES
from penstock.storage.engine import PAGE_OUT_MAX
from tests.helpers.vhost_rig import VHostRig

pytestmark = pytest.mark.large

BODY = bytes(1000)


def writes(queues: list[BrokerQueue]) -> int:
    return sum(int(queue.amq.backing.info()["disk_writes"]) for queue in queues)


def most_written(queues: list[BrokerQueue], turn: Callable[[], object], turns: int) -> int:
    """How many messages the turn that wrote most of them wrote."""
    counts = [writes(queues)]
    for _ in range(turns):
        turn()
        counts.append(writes(queues))
    return max(after - before for before, after in pairwise(counts))


def filled(rig: VHostRig, names: int, n: int) -> list[BrokerQueue]:
    """Queues that hold n messages each, all in RAM."""
    queues = [rig.queue(f"q{name}") for name in range(names)]
    rig.tick(3)  # the memory monitor knows them
    for queue in queues:
        for _ in range(n):
            queue.amq.publish(b"", BODY, rig.vhost.mode)
        rig.turn()
    assert writes(queues) == 0
    return queues


def test_a_smaller_budget_is_reached_in_several_ticks() -> None:
    rig = VHostRig(memory_bytes=1 << 30)
    queues = filled(rig, 30, 300)
    rig.vhost.set_memory(1 << 20)
    rig.clock.advance(3)
    assert 0 < most_written(queues, rig.vhost.tick, 30) <= PAGE_OUT_MAX + SLICE_MESSAGES
    assert sum(queue.amq.backing.ram_bytes() for queue in queues) <= 1 << 20


def test_a_delivery_makes_room_beside_unacknowledged_messages_in_several_turns() -> None:
    rig = VHostRig(memory_bytes=64 << 20)
    queues = filled(rig, 1, 9000)
    backing, engine = queues[0].amq.backing, rig.vhost.engine
    backing.set_share(8 << 20)
    while backing.resume():
        engine.flush()
    for _ in range(int(backing.info()["q4"])):
        if backing.fetch(ack_required=True) is None:  # the mark is not durable yet
            engine.sync()
    backing.set_share(1 << 20)

    def turn() -> None:
        assert backing.fetch(ack_required=True) is not None
        engine.flush()

    engine.flush()
    assert 0 < most_written(queues, turn, 10) <= PAGE_OUT_MAX + SLICE_MESSAGES
    assert backing.ram_bytes() <= 1 << 20
