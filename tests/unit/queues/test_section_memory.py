"""What is in a section of the checkpoint holds no bodies once its queue has paged them out."""

import pytest

from penstock.storage.files.durability import OS
from tests.helpers.engine_rig import EngineRig
from tests.helpers.queue_world import World, tags_of
from tests.helpers.variable_queues import info_int, opens, real

N = 20
BODY_BYTES = 1000


@pytest.fixture(params=[50, 5000], ids=["in-the-store", "in-the-segment"])
def world(request: pytest.FixtureRequest) -> World:
    """Bodies are in the store, or in the queue's own segments if it had any."""
    rig = EngineRig(
        sections=True, segment_slots=16, queue_index_embed_msgs_below=request.param,
        wal_inline_below=request.param,
    )  # fmt: skip
    return World(rig, opens(), body_bytes=BODY_BYTES)


def bodies_in_ram(world: World) -> int:
    """How many bodies the section holds."""
    section = real(world.q).index(0).section
    return len([row for row in section.values() if row.message.body])


def test_bodies_leave_ram_with_their_queue(world: World) -> None:
    world.put(*range(N))
    world.rig.engine.checkpoint()
    assert len(real(world.q).index(0).section) == N
    world.q.set_ram_duration_target(0.0)
    world.page()
    assert info_int(world.q, "ram_messages") == 0
    assert bodies_in_ram(world) == 0
    world.q.set_ram_duration_target(float("inf"))
    assert world.numbers(world.take(5)) == list(range(5))
    world.rig.engine.checkpoint()  # bodies that it reads for its slots are not kept
    assert bodies_in_ram(world) == 0


def test_a_queue_that_grows_writes_bodies_that_are_in_a_section_alone(world: World) -> None:
    world.put(*range(N))
    world.rig.engine.checkpoint()
    world.q.set_ram_duration_target(0.0)
    world.page()
    world.put(*range(N, 5 * N))
    world.page()
    world.rig.engine.checkpoint()
    assert not real(world.q).index(0).section  # it has slots now
    world.restart()
    got = world.take(5 * N)
    assert world.numbers(got) == list(range(5 * N))
    world.q.ack(tags_of(got), OS)
    assert world.q.len() == 0
