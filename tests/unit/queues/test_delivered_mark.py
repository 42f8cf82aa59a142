"""DeliveredMark of a queue with a backlog: what comes redelivered after crashes, and what not."""

from penstock.queues.variable_queue import BLOCK, VariableQueue
from penstock.storage.files.durability import DISK
from tests.helpers.engine_rig import EngineRig

BACKLOG = 3 * BLOCK


def opened(rig: EngineRig) -> VariableQueue:
    """The queue, as its owner opens it after a start."""
    queue = VariableQueue(rig.engine, rig.engine.queue(b"q"), mode=DISK)
    rig.engine.sync()
    return queue


def fetched(queue: VariableQueue, rig: EngineRig) -> bool:
    """Take the next message; whether it is redelivered."""
    delivery = queue.fetch()
    if delivery is None:
        rig.engine.sync()
        delivery = queue.fetch()
    assert delivery is not None
    return delivery.is_redelivered


def test_a_second_crash_marks_a_block_and_not_the_whole_backlog() -> None:
    rig = EngineRig()
    rig.engine.declare_queue(b"q")
    queue = opened(rig)
    for i in range(BACKLOG):
        queue.publish(b"", b"%d" % i, DISK)
    rig.engine.sync()
    for _ in range(2):
        rig.crash()
        queue = opened(rig)
        fetched(queue, rig)
    rig.crash()
    queue = opened(rig)
    again = [fetched(queue, rig) for _ in range(BACKLOG)]
    assert again[0]
    assert sum(again) <= 2 * BLOCK
    assert again == sorted(again, reverse=True)


def test_an_empty_queue_delivers_what_comes_first_without_a_wait() -> None:
    rig = EngineRig()
    rig.engine.declare_queue(b"q")
    queue = opened(rig)
    for i in range(10):
        queue.publish(b"", b"%d" % i, DISK)
        delivery = queue.fetch(ack_required=False)
        assert delivery is not None
    rig.crash()
    queue = opened(rig)
    queue.publish(b"", b"after", DISK)
    delivery = queue.fetch()
    assert delivery is not None
    assert not delivery.is_redelivered
