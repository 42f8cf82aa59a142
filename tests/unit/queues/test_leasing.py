"""Leases of an AMQQueue: deletion, refusals, and pages that cannot be written or made."""

import errno

import pytest

from penstock.errors import (
    CorruptionError,
    DiskFullError,
    NotLeasableError,
    QueueLeasedError,
    UnknownQueueError,
)
from penstock.storage.files.durability import DISK
from tests.helpers.amq_world import AmqWorld
from tests.helpers.engine_rig import EngineRig
from tests.helpers.lease_world import BYTES, commit, info, lease, names, pages, release


@pytest.fixture(params=[0, 3], ids=["plain", "priorities"])
def priorities(request: pytest.FixtureRequest) -> int:
    found: int = request.param
    return found


@pytest.fixture(params=[True, False], ids=["sections", "files"])
def world(request: pytest.FixtureRequest, priorities: int) -> AmqWorld:
    world = AmqWorld(rig=EngineRig(sections=request.param))
    world.open(priorities=priorities)
    return world


# ---- deletion and refusal ------------------------------------------------------------------------


def test_a_leased_queue_is_not_deleted_but_by_force(world: AmqWorld) -> None:
    world.put(*names(5))
    lease(world, 2, reader="a")
    lease(world, 1, reader="b")
    with pytest.raises(QueueLeasedError) as caught:
        world.q.delete()
    assert str(caught.value) == (
        "queue 'q' is leased: 3 messages by readers ['a', 'b']; commit, release (penstock "
        "release_lease), or delete with force"
    )
    assert (caught.value.messages, caught.value.readers) == (3, ["a", "b"])
    path = info(world, "a").path
    q = world.q
    world.rig.engine.wait(q.delete(DISK, force=True), DISK)
    assert not world.rig.fs.exists(path)
    for call in (
        lambda: q.lease("a", 1, BYTES),
        lambda: q.commit_lease("a", 1),
        lambda: q.release_lease("a"),
    ):
        with pytest.raises(UnknownQueueError):
            call()
    assert q.leases() == []
    assert q.materialise("a") is False


def test_a_queue_whose_readers_have_committed_all_is_deleted(world: AmqWorld) -> None:
    world.put(*names(2))
    lease(world)
    commit(world, 2)
    world.q.delete()
    assert world.rig.engine.state.leases.by_queue == {}


def test_a_queue_that_is_not_durable_is_refused(priorities: int) -> None:
    world = AmqWorld()
    world.open(is_durable=False, priorities=priorities)
    world.put("a")
    with pytest.raises(NotLeasableError, match="'q' cannot be leased: it is not durable"):
        world.q.lease("r", 1, BYTES)
    assert world.ready() == ["a"]
    world.q.delete()


def test_on_a_full_disk_nothing_is_taken(world: AmqWorld) -> None:
    world.put(*names(4))
    lease(world, 2)
    world.rig.engine.journal.blocked = True
    with pytest.raises(DiskFullError):
        world.q.lease("r", 1, BYTES)
    assert world.ready() == ["m2", "m3"]
    commit(world, 1)
    release(world)
    assert world.ready() == names(3, 1)


def test_a_lease_that_cannot_be_logged_leaves_all_ready(world: AmqWorld) -> None:
    world.put(*names(4))
    q = world.q
    for _ in range(2):
        with pytest.raises(ValueError, match="255 bytes"):
            q.lease("x" * 300, 3, BYTES)
        assert world.ready() == names(4)
        assert q.leases() == []


# ---- pages that fail -----------------------------------------------------------------------------


def fails(world: AmqWorld, times: int | None = 1) -> None:
    world.rig.fs.fail(errno.ENOSPC, kinds={"pwrite"}, path="/leases/", times=times)


def test_pages_that_cannot_be_written_are_made_later(world: AmqWorld) -> None:
    world.put(*names(6))
    lease(world, 2)
    fails(world)
    (found,) = lease(world, 2)
    assert (found.first, found.next) == (2, 4)
    assert len(world.told("lease_pages")) == 1
    assert info(world).path == ""
    lease(world, 1)
    assert pages(world) == list(enumerate(names(5)))


def test_pages_that_cannot_be_made_are_an_error_and_made_later(world: AmqWorld) -> None:
    world.put(*names(6))
    fails(world, None)
    lease(world, 4)
    with pytest.raises(OSError, match="leases"):
        world.q.materialise("r")
    world.rig.fs.clear_faults()
    assert pages(world) == list(enumerate(names(4)))


def test_a_damaged_message_makes_the_pages_impossible_until_it_is_released() -> None:
    world = AmqWorld()
    world.open()
    world.put(*names(6))
    lease(world, 4)
    world.restart()
    index = world.q.backing.index()
    world.rig.fs.damage_flip(f"{index.path}/0.qi", 64 + 2 * 32 + 8, 3)
    with pytest.raises(CorruptionError, match="slot of seq 2"):
        pages(world)
    release(world)
    assert world.ready() == ["m0", "m1", "m3", "m4", "m5"]
    assert world.q.info()["set_aside"] == 1
    assert world.q.backing.index().count == 6


def test_what_was_committed_before_pages_were_made_is_not_in_them(world: AmqWorld) -> None:
    world.put(*names(8))
    lease(world, 3)
    lease(world, 3)
    world.restart()
    assert world.q.materialise("r") is True
    commit(world, 5)
    assert pages(world) == [(5, "m5")]
