"""Leases of an AMQQueue: slices, pages, commit and release, and what options do to them."""

import pytest

from penstock.errors import DiskFullError, UnknownLeaseError
from penstock.queues.amq_queue import SLICE_BYTES, SLICE_MESSAGES, LeaseSlice
from penstock.storage.files.durability import DISK, NONE, OS
from penstock.storage.pages.stream_view import StreamView
from tests.helpers.amq_world import AmqWorld, FullTaker
from tests.helpers.engine_rig import STORED, EngineRig
from tests.helpers.lease_world import BYTES, MANY, commit, info, lease, names, pages, release


@pytest.fixture(params=[0, 3], ids=["plain", "priorities"])
def priorities(request: pytest.FixtureRequest) -> int:
    found: int = request.param
    return found


@pytest.fixture(params=[True, False], ids=["sections", "files"])
def world(request: pytest.FixtureRequest, priorities: int) -> AmqWorld:
    world = AmqWorld(rig=EngineRig(sections=request.param))
    world.open(priorities=priorities)
    return world


# ---- leasing, reading, committing ----------------------------------------------------------------


def test_what_is_leased_is_read_by_ordinal(world: AmqWorld) -> None:
    world.put(*names(10))
    (found,) = lease(world, 6)
    assert found == LeaseSlice(0, 6, 12, has_more=True)
    assert pages(world) == list(enumerate(names(6)))
    assert lease(world) == [LeaseSlice(6, 10, 8, has_more=False)]
    assert pages(world) == list(enumerate(names(10)))
    assert world.q.lease("r", 5, 100) == LeaseSlice(10, 10, 0, has_more=False)
    assert (world.q.len(), world.q.depth()) == (0, 10)


def test_a_slice_is_bounded(world: AmqWorld) -> None:
    for i in range(SLICE_MESSAGES + 5):
        world.q.publish(b"", b"%d" % i, OS)
    found = world.q.lease("r", MANY, BYTES)
    assert (found.next, found.has_more) == (SLICE_MESSAGES, True)
    world.q.publish(b"", b"x" * (SLICE_BYTES - 3), OS)
    found = world.q.lease("r", MANY, BYTES)
    assert (found.next - found.first, found.has_more) == (5, True)
    found = world.q.lease("r", MANY, 1)
    assert (found.bytes, found.has_more) == (SLICE_BYTES - 3, False)


@pytest.mark.parametrize(("n", "size"), [(0, 10), (10, 0), (-1, 10)])
def test_a_lease_of_nothing_is_refused(world: AmqWorld, n: int, size: int) -> None:
    with pytest.raises(ValueError, match="at most"):
        world.q.lease("r", n, size)


@pytest.mark.parametrize("how", ["restart", "crash", "kept"])
def test_after_a_restart_the_same_is_read(world: AmqWorld, how: str) -> None:
    world.put(*names(12), header=b"\1header")
    lease(world, 9)
    commit(world, 4)
    before = pages(world), info(world).stream_id
    for _ in range(2):
        if how == "restart":
            world.restart()
        else:
            world.crash("lost" if how == "crash" else "kept")
        assert world.q.materialise("unknown") is False
        assert (pages(world), info(world).stream_id) == before
    assert before[0] == list(enumerate(names(9)))[4:]
    lease(world, 1)
    assert pages(world)[-1] == (9, "m9")


def test_times_are_the_same_after_a_restart(world: AmqWorld) -> None:
    for i in range(8):
        world.put(f"m{i}", priority=i % 4)
        world.rig.clock.advance(10)
    lease(world)
    commit(world, 3)

    def times() -> list[int]:
        pages(world)
        view = StreamView(world.rig.fs, info(world).path)
        return [record.time_us for record in view.read(3, MANY, BYTES)]

    before = times()
    assert before == sorted(before)
    world.crash()
    assert times() == before
    commit(world, 5)
    world.crash()
    pages(world)
    view = StreamView(world.rig.fs, info(world).path)
    assert [record.time_us for record in view.read(5, MANY, BYTES)] == before[2:]


def test_what_is_not_durable_yet_may_be_leased_to_others_after_a_crash(world: AmqWorld) -> None:
    world.put(*names(4))
    world.q.lease("r", 4, BYTES)
    world.crash()
    assert world.q.leases() == []
    assert world.ready() == names(4)


def test_a_commit_is_idempotent_and_bounded(world: AmqWorld) -> None:
    world.put(*names(6))
    lease(world, 4)
    commit(world, 3)
    commit(world, 3)
    commit(world, 0)
    with pytest.raises(ValueError, match="up to ordinal 4"):
        world.q.commit_lease("r", 5)
    assert pages(world) == [(3, "m3")]
    assert info(world).bytes == 2
    assert (world.q.len(), world.q.depth()) == (2, 3)
    commit(world, 4)
    assert (world.q.len(), world.q.depth()) == (2, 2)
    assert (info(world).since_ms, info(world).bytes, pages(world)) == (0, 0, [])
    world.restart()
    assert (info(world).committed, info(world).next) == (4, 4)
    lease(world)
    assert pages(world) == [(4, "m4"), (5, "m5")]


def test_pages_of_what_is_committed_go(world: AmqWorld) -> None:
    world.q._leases().page_bytes = 512
    world.put(*names(60))
    lease(world)
    path = info(world).path
    before = len(world.rig.fs.list(path))
    commit(world, 50)
    world.rig.engine.poll(wait=True)
    assert len(world.rig.fs.list(path)) < before
    assert pages(world) == list(enumerate(names(60)))[50:]


def test_since_is_that_of_the_oldest_uncommitted_message(world: AmqWorld) -> None:
    world.put(*names(4))
    start = world.now_ms
    lease(world, 2)
    world.rig.clock.advance(5)
    lease(world, 2)
    assert info(world).since_ms == start
    commit(world, 1)
    assert info(world).since_ms == start
    commit(world, 2)
    assert info(world).since_ms == start + 5000


def test_two_readers_and_a_consumer_share_the_queue(world: AmqWorld) -> None:
    world.put(*names(9))
    lease(world, 2, reader="a")
    lease(world, 3, reader="b")
    mine = world.take()
    lease(world, 1, reader="a")
    assert pages(world, "a") == [(0, "m0"), (1, "m1"), (2, "m6")]
    assert pages(world, "b") == [(0, "m2"), (1, "m3"), (2, "m4")]
    commit(world, 2, "a")
    world.q.nack(mine.tag, delay_ms=0)
    assert world.ready() == ["m5", "m7", "m8"]
    world.settle()
    world.crash()
    assert pages(world, "a") == [(2, "m6")]
    assert world.drain() == ["m5", "m7", "m8"]


def test_priorities_are_leased_in_the_order_of_delivery() -> None:
    world = AmqWorld()
    world.open(priorities=3)
    for i in range(8):
        world.put(f"m{i}", priority=i % 4)
    lease(world, 5)
    expected = ["m3", "m7", "m2", "m6", "m1", "m5", "m0", "m4"]
    assert [name for _, name in pages(world)] == expected[:5]
    world.crash()
    assert [name for _, name in pages(world)] == expected[:5]
    assert world.ready() == expected[5:]
    lease(world)
    commit(world, 6)
    world.restart()
    assert [name for _, name in pages(world)] == expected[6:]
    release(world)
    assert world.drain() == expected[6:]


def test_transient_messages_come_back_after_a_crash(world: AmqWorld) -> None:
    world.put("a", "b")
    world.put("t", "u" * STORED, mode=NONE)
    world.put("c")
    lease(world)
    world.crash()
    assert [name for _, name in pages(world)] == ["a", "b", "t", "u" * STORED, "c"]
    release(world)
    assert sorted(world.drain()) == sorted(["a", "b", "t", "u" * STORED, "c"])


# ---- release -------------------------------------------------------------------------------------


def test_what_is_released_is_ready_and_the_reader_begins_anew(world: AmqWorld) -> None:
    world.put(*names(8))
    lease(world, 5)
    commit(world, 2)
    before = info(world)
    world.woken.clear()
    release(world)
    assert world.woken == [b"q"]
    assert world.q.leases() == []
    assert not world.rig.fs.exists(before.path)
    assert world.ready() == names(6, 2)
    with pytest.raises(UnknownLeaseError, match="'r' has no lease"):
        world.q.commit_lease("r", 5)
    with pytest.raises(UnknownLeaseError):
        world.q.release_lease("r")
    assert lease(world, 1)[0].first == 0
    assert info(world).stream_id != before.stream_id
    assert pages(world) == [(0, "m2")]


def test_a_release_that_was_begun_is_ended_by_ticks(
    world: AmqWorld,
) -> None:
    world.rig.engine.state.leases.runs_max = 1
    world.put(*names(8))
    lease(world, 3)
    lease(world, 3)
    assert world.q.release_lease("r") is True
    assert world.ready() == [*names(3), "m6", "m7"]
    for call in (
        lambda: world.q.lease("r", 1, BYTES),
        lambda: world.q.commit_lease("r", 1),
    ):
        with pytest.raises(UnknownLeaseError):
            call()
    assert world.q.materialise("r") is False
    world.settle()
    world.crash()
    assert info(world).is_releasing
    world.tick()
    assert world.q.leases() == []
    assert world.ready() == names(8)


def test_a_release_may_exceed_a_limit_and_then_the_head_goes(world: AmqWorld) -> None:
    world.open(priorities=world.options["q"].priorities, max_length=4, overflow="drop-head")
    world.put(*names(4))
    lease(world, 3)
    world.put(*names(3, 4))
    assert world.ready() == names(4, 3)
    release(world)
    assert world.ready() == names(4, 3)
    assert world.q.info()["maxlen"] == 3


# ---- options -------------------------------------------------------------------------------------


def test_what_is_leased_does_not_expire_until_it_is_released(world: AmqWorld) -> None:
    world.put(*names(3), ttl_ms=5000)
    world.put("late", ttl_ms=60_000)
    lease(world, 2)
    world.tick(10)
    assert world.q.info()["expired"] == 1
    assert world.ready() == ["late"]
    assert [name for _, name in pages(world)] == names(2)
    world.restart()
    release(world)
    world.tick()
    assert world.q.info()["expired"] == 2
    assert world.ready() == ["late"]


def test_what_is_expired_is_buried_and_not_leased(world: AmqWorld) -> None:
    world.open("dead")
    world.open(priorities=world.options["q"].priorities, dead_letter_to="dead")
    world.put("gone", ttl_ms=1000)
    world.put("a")
    world.put("soon", ttl_ms=1000)
    world.put("b")
    world.rig.clock.advance(2)
    lease(world)
    assert [name for _, name in pages(world)] == ["a", "b"]
    assert world.ready("dead") == ["gone", "soon"]


def test_limits_count_what_is_ready(world: AmqWorld) -> None:
    world.open(priorities=world.options["q"].priorities, max_length=2, overflow="reject-publish")
    world.put("a", "b")
    world.refused("c")
    lease(world)
    world.put("c", "d")
    world.refused("e")
    assert (world.q.len(), world.q.depth()) == (2, 4)


def test_a_purge_leaves_what_is_leased(world: AmqWorld) -> None:
    world.put(*names(6))
    lease(world, 2)
    mine = world.take()
    assert world.q.purge(DISK) == 3
    assert (world.q.len(), world.q.depth()) == (0, 3)
    world.settle()
    world.crash()
    assert [name for _, name in pages(world)] == names(2)
    assert world.drain() == ["m2"]
    assert mine.tag >= 0


def test_what_was_tried_too_often_is_buried_and_not_leased(world: AmqWorld) -> None:
    world.open("dead")
    priorities = world.options["q"].priorities
    world.open(priorities=priorities, max_attempts=10, dead_letter_to="dead")
    world.put(*names(6))
    taken = [world.take() for _ in range(5)]
    for at in (1, 3, 4):
        world.q.nack(taken[at].tag, delay_ms=0)
    world.q.release([taken[0].tag, taken[2].tag])
    assert world.ready() == names(6)
    world.q.set_options(
        world.options["q"].of({"priorities": priorities, "max_attempts": 1,
                               "dead_letter_to": "dead"})
    )  # fmt: skip
    lease(world)
    assert [name for _, name in pages(world)] == ["m0", "m2", "m5"]
    assert world.ready("dead") == ["m1", "m3", "m4"]


def test_a_full_disk_keeps_what_was_taken_before_one_that_was_tried_too_often(
    world: AmqWorld,
) -> None:
    world.open("dead")
    priorities = world.options["q"].priorities
    world.open(priorities=priorities, max_attempts=10, dead_letter_to="dead")
    world.put(*names(4))
    tags = [world.take().tag for _ in range(3)]
    world.q.nack(tags[2], delay_ms=0)
    world.q.release(tags[:2])
    world.q.set_options(
        world.options["q"].of({"priorities": priorities, "max_attempts": 1,
                               "dead_letter_to": "dead"})
    )  # fmt: skip
    world.instead[b"dead"] = FullTaker()
    with pytest.raises(DiskFullError):
        world.q.lease("r", MANY, BYTES)
    assert (world.ready(), world.q.depth()) == (names(4), 4)
    world.instead.clear()
    lease(world)
    assert [name for _, name in pages(world)] == ["m0", "m1", "m3"]
    assert world.ready("dead") == ["m2"]


def test_delayed_messages_are_leased_when_they_are_due(world: AmqWorld) -> None:
    world.put("now")
    world.put("later", delay_ms=5000)
    lease(world)
    assert [name for _, name in pages(world)] == ["now"]
    world.tick(6)
    world.settle()
    lease(world)
    assert [name for _, name in pages(world)] == ["now", "later"]


@pytest.mark.parametrize("lazy", [True, False])
def test_a_backlog_on_disk_is_leased(world: AmqWorld, lazy: bool) -> None:
    world.open(priorities=world.options["q"].priorities, lazy=lazy, max_memory_bytes=4096)
    world.put(*names(200), mode=OS)
    world.tick()
    lease(world, 150)
    assert [name for _, name in pages(world)] == names(150)
    world.q.backing.ram_bytes()
    world.restart()
    assert [name for _, name in pages(world)] == names(150)
    release(world)
    world.tick()
    assert world.ready() == names(200)


def test_leased_messages_cost_no_ram(world: AmqWorld) -> None:
    world.put(*names(100), mode=OS)
    lease(world)
    assert world.q.ram_bytes() == 0
    assert world.q.info()["leased"] == 100
    assert world.q.info()["unacked_bytes"] == world.q.info()["leased_bytes"]
