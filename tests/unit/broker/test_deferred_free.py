"""DeferredFree: many entries are freed in slices, between which clients are served."""

from collections import deque

import pytest

from penstock.broker.background_tasks import SLICE, DeferredFree
from penstock.message import Entry, QueuedMessage
from tests.helpers.vhost_rig import VHostRig, classic


def entries(n: int) -> deque[Entry]:
    message = QueuedMessage(1, b"", b"x", 1, 0)
    return deque(Entry(seq, message) for seq in range(n))


@pytest.fixture
def rig() -> VHostRig:
    return VHostRig()


def test_few_go_at_once(rig: VHostRig) -> None:
    few = entries(SLICE)
    DeferredFree(rig.vhost.background).add(few)
    assert not few
    assert not rig.vhost.background.run()


def test_many_go_slice_by_slice(rig: VHostRig) -> None:
    letting_go = DeferredFree(rig.vhost.background)
    first, second = entries(3 * SLICE), entries(SLICE + 1)
    letting_go.add(first)
    letting_go.add(second)
    letting_go.step()
    assert (len(first), len(second)) == (2 * SLICE, SLICE + 1)
    while rig.vhost.background.run():
        pass
    assert (len(first), len(second)) == (0, 0)
    third = entries(2 * SLICE)
    letting_go.add(third)
    while rig.vhost.background.run():
        pass
    assert not third


@pytest.mark.parametrize("operation", ["purge", "delete"])
def test_a_queue_that_was_purged_or_deleted_is_empty_before_its_memory_is_free(
    rig: VHostRig, operation: str
) -> None:
    queue = rig.queue()
    rig.put(queue, *[b"x"] * (SLICE + 10))
    if operation == "purge":
        assert rig.vhost.purge_queue(queue)[0] == SLICE + 10
        assert queue.amq.depth() == 0
    else:
        assert rig.vhost.delete_queue(queue)[0] == SLICE + 10
        assert rig.vhost.table.find("q") is None
    assert rig.vhost.dispatch.has_background
    again = rig.queue()
    rig.put(again, b"after")
    assert not rig.vhost.dispatch.has_background
    rig.restart()
    assert rig.bodies(classic(rig.vhost.table.find("q"))) == [b"after"]
