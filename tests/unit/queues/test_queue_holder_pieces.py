"""A checkpoint lists what is in RAM piece by piece. What happens to a message between two pieces,
and wherever they have got to, after a crash it is as it was, and nothing is lost."""

from collections.abc import Callable

import pytest

from penstock.queues.backing_queue import Delivery
from penstock.storage.files.durability import DISK, OS
from penstock.storage.journal.checkpoint import SLICES
from tests.helpers.engine_rig import EngineRig
from tests.helpers.queue_world import World
from tests.helpers.variable_queues import opens, real

N = 6
Act = Callable[[World, list[Delivery]], set[int]]  # returns whose fate may be either


def nothing(world: World, held: list[Delivery]) -> set[int]:
    return set()


def fetch(world: World, held: list[Delivery]) -> set[int]:
    world.take(2)
    return set()


def requeue(world: World, held: list[Delivery]) -> set[int]:
    world.q.requeue([d.tag for d in held], DISK)
    return set()


def fetch_and_requeue(world: World, held: list[Delivery]) -> set[int]:
    world.q.requeue([d.tag for d in world.take(3)], DISK)
    return set()


def ack(world: World, held: list[Delivery]) -> set[int]:
    world.q.ack([d.tag for d in held], OS)
    return {d.tag for d in held}


def publish(world: World, held: list[Delivery]) -> set[int]:
    world.put(N, mode=OS)
    return {N}


def page_out(world: World, held: list[Delivery]) -> set[int]:
    real(world.q).set_limits(0, 0)
    world.page()
    return set()


def purge(world: World, held: list[Delivery]) -> set[int]:
    world.q.purge(OS)
    return set(range(N)) - {d.tag for d in held}


@pytest.mark.parametrize("sections", [False, True])
@pytest.mark.parametrize("step", range(N))
@pytest.mark.parametrize(
    "act", [nothing, fetch, requeue, fetch_and_requeue, ack, publish, page_out, purge]
)
@pytest.mark.parametrize("holds", [slice(0, 2), slice(N - 2, N)])
def test_whatever_happens_between_two_pieces(
    act: Act, holds: slice, step: int, sections: bool
) -> None:
    rig = EngineRig(sections=sections, slice_entries=1)
    world = World(rig, opens())
    world.put(*range(N))
    held = world.take(N)
    rest = [d.tag for d in held if d not in held[holds]]
    held = held[holds]
    world.q.requeue(rest, DISK)
    rig.engine.sync()
    rig.engine.upkeep.begin_checkpoint()
    for _ in range(step):
        rig.engine.checkpoints.step(0.0)
        assert rig.engine.checkpoints.phase == SLICES, "still listing"
    either = act(world, held)
    while rig.engine.checkpoints.phase == SLICES:
        rig.engine.checkpoints.step(0.0)
    rig.finish_checkpoint()
    rig.crash()
    found = World(rig, opens()).drain()
    assert sorted(set(found)) == found
    assert set(range(N)) - either <= set(found) <= set(range(N)) | either


@pytest.mark.parametrize("step", range(N + 1))
@pytest.mark.parametrize("mode", [OS, DISK])
def test_what_is_acked_between_two_pieces_has_a_slot_unless_the_log_has_the_ack(
    mode: int, step: int
) -> None:
    rig = EngineRig(slice_entries=1)
    world = World(rig, opens())
    world.put(*range(N))
    rig.engine.sync()
    rig.engine.upkeep.begin_checkpoint()
    for _ in range(1 + step):  # the first one captures the topology
        rig.engine.checkpoints.step(0.0)
    (held,) = world.take(1)
    world.q.ack([held.tag], mode)
    if mode == DISK:
        rig.engine.sync()
    while rig.engine.checkpoints.phase == SLICES:
        rig.engine.checkpoints.step(0.0)
    assert rig.is_on_slot(rig.queue(b"q"), held.tag) == (mode == OS or step >= N)


@pytest.mark.parametrize("step", range(N + 1))
@pytest.mark.parametrize("end", ["purge", "delete"])
def test_what_is_purged_between_two_pieces_has_a_slot(end: str, step: int) -> None:
    """For the record of the purge may be lost, and the checkpoint says that all of it is there."""
    rig = EngineRig(slice_entries=1)
    world = World(rig, opens())
    world.put(*range(N))
    index = rig.queue(b"q")
    rig.engine.sync()
    rig.engine.upkeep.begin_checkpoint()
    for _ in range(step):
        rig.engine.checkpoints.step(0.0)
    if end == "purge":
        assert world.q.purge(OS) == N
    else:
        world.q.delete_and_terminate(OS)
    while rig.engine.checkpoints.phase == SLICES:
        rig.engine.checkpoints.step(0.0)
    assert [seq for seq in range(N) if not rig.is_on_slot(index, seq)] == []
