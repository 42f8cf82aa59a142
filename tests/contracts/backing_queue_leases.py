"""The BackingQueue contract: what is leased to a reader, and what comes back of it.

Part of `backing_queue.py`, which has the fixtures."""

import pytest

from penstock.queues.queue_ram import CHECKS
from penstock.queues.rows import Row
from penstock.storage.files.durability import DISK, NONE, OS
from penstock.storage.parts.lease_engine import Taken
from tests.helpers.engine_rig import STORED
from tests.helpers.queue_world import World, tags_of

MANY = 1000
BYTES = 1 << 20


def lease(world: World, n: int = MANY, *, size: int = BYTES, reader: str = "r") -> list[int]:
    """Lease up to n messages; their numbers."""
    taken = world.q.take(n, size, 0)
    if not taken:
        return []
    engine, first = world.rig.engine, world.q.index()
    engine.leases.lease(first, reader, taken, DISK)
    world.q.leased(taken, engine.log.last_lsn)
    return numbers(world, taken)


def numbers(world: World, taken: list[Taken]) -> list[int]:
    """Which messages these are; each body is right."""
    found: list[int] = []
    for one in taken:
        assert len(one.entries) == len(one.bodies)
        for entry, body in zip(one.entries, one.bodies, strict=True):
            number = int(body[1 : body.index(b";")])
            assert body == world.body(number)
            assert entry.message.size == len(body)
            found.append(number)
    return found


def commit(world: World, ordinal: int, reader: str = "r") -> None:
    while world.rig.engine.leases.commit(world.q.index(), reader, ordinal, DISK):
        pass


def release(world: World, reader: str = "r") -> None:
    """All that the reader has is ready again."""
    engine, q = world.rig.engine, world.q
    has_more = True
    while has_more:
        back: dict[int, tuple[list[int], list[Row]]] = {}
        for run in sorted(engine.leases.next_release(q.index(), reader)):
            seqs, rows = back.setdefault(run[0], ([], []))
            seqs += range(run[1], run[1] + run[2])
            rows += q.returning(engine.state.queues[run[0]], seqs[-run[2] :])
        has_more = engine.leases.release(q.index(), reader, DISK)
        for number, (seqs, rows) in back.items():
            q.readmit(engine.state.queues[number], seqs, rows)


class LeaseContract:
    """Wants the fixture ``world``."""

    def test_what_is_leased_leaves_in_order_and_counts_in_depth_alone(self, world: World) -> None:
        world.put(*range(30))
        assert lease(world, 20) == list(range(20))
        q = world.q
        assert (q.len(), q.depth(), q.leased_count()) == (10, 30, 20)
        assert q.info()["leased"] == 20
        assert q.info()["unacked_bytes"] == sum(len(world.body(i)) for i in range(20))
        assert q.body_bytes() == sum(len(world.body(i)) for i in range(20, 30))
        assert [number for number, _ in world.seen()] == list(range(20, 30))
        assert lease(world) == list(range(20, 30))
        assert lease(world) == []
        assert not q.may_take()
        assert (q.len(), q.depth(), q.body_bytes()) == (0, 30, 0)

    def test_it_is_not_pending(self, world: World) -> None:
        tags = world.put(*range(6))
        lease(world, 3)
        assert world.q.ack(tags[:3], OS) == []
        assert world.q.requeue(tags[:3], OS) == []
        assert world.q.pending(tags[0]) is None
        assert world.q.purge_acks(OS) == 0
        assert world.drain() == [3, 4, 5]
        assert world.q.leased_count() == 3

    def test_a_slice_has_so_many_bytes_or_one_message(self, world: World) -> None:
        world.put(*range(8))
        each = len(world.body(0))
        assert lease(world, size=3 * each) == [0, 1, 2]
        assert lease(world, size=3 * each - 1) == [3, 4]
        assert lease(world, size=1) == [5]
        assert lease(world, 1) == [6]

    def test_what_was_taken_in_vain_is_where_it_was(self, world: World) -> None:
        world.put(*range(20))
        world.take(3)
        world.page()
        for n in (1, 5, 17):
            taken = world.q.take(n, BYTES, 0)
            assert numbers(world, taken) == list(range(3, 3 + n))
            world.q.untake(taken)
            assert (world.q.len(), world.q.depth()) == (17, 20)
            world.page()
        assert world.drain() == list(range(3, 20))

    def test_a_purge_leaves_it(self, world: World) -> None:
        world.put(*range(12))
        lease(world, 4)
        world.take(2)
        assert world.q.purge(DISK) == 6
        assert (world.q.len(), world.q.depth()) == (0, 6)
        world.put(12)
        world.settle()
        world.crash()
        assert world.q.leased_count() == 4
        assert world.drain() == [4, 5, 12]
        release(world)
        assert world.drain() == [0, 1, 2, 3]

    def test_what_is_expired_is_not_taken_nor_what_is_behind_it(self, world: World) -> None:
        world.put(0)
        world.q.publish(b"", world.body(1), DISK, expiry_ms=5000)
        world.put(2)
        for now_ms, expected in ((5000, [0]), (4999, [0, 1, 2])):
            taken = world.q.take(MANY, BYTES, now_ms)
            assert numbers(world, taken) == expected
            world.q.untake(taken)

    def test_what_is_held_is_not_taken(self, world: World) -> None:
        world.put(0)
        world.settle()
        (tag,) = world.put(1)
        world.q.hold(tag, world.rig.engine.log.last_lsn, DISK)
        world.put(2)
        assert lease(world) == [0]
        assert not world.q.may_take()
        assert world.q.take(MANY, BYTES, 0) == []
        world.settle()
        assert world.q.may_take()
        assert lease(world) == [1, 2]

    def test_a_delivered_mark_does_not_hold_it_and_is_raised_with_it(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(CHECKS, "is_on", False)  # they look at every message
        world.put(*range(1700))
        got = []
        while found := lease(world):
            got += found
        assert got == list(range(1700))
        world.settle()
        world.crash()
        release(world)
        back = world.take(1700)
        assert world.numbers(back) == list(range(1700))
        assert all(delivery.is_redelivered for delivery in back)

    def test_a_commit_lets_them_die(self, world: World) -> None:
        world.put(*range(20))
        lease(world, 7)
        lease(world, 7)
        commit(world, 3)
        assert (world.q.leased_count(), world.q.depth()) == (11, 17)
        commit(world, 9)
        commit(world, 9)
        commit(world, 2)
        assert (world.q.leased_count(), world.q.depth(), world.q.index().count) == (5, 11, 11)
        commit(world, 14)
        assert (world.q.leased_count(), world.q.depth(), world.q.index().count) == (0, 6, 6)
        assert lease(world) == list(range(14, 20))
        commit(world, 20)
        assert (world.q.index().count, world.q.index().bytes) == (0, 0)

    @pytest.mark.parametrize("is_clean", [True, False])
    def test_a_lease_outlives_a_restart(self, world: World, is_clean: bool) -> None:
        world.put(*range(20))
        lease(world, 12)
        commit(world, 5)
        world.settle()
        if is_clean:
            world.restart()
        else:
            world.crash()
        found = world.rig.engine.leases.of(world.q.index())["r"]
        assert (found.committed, found.next) == (5, 12)
        assert (world.q.len(), world.q.depth(), world.q.leased_count()) == (8, 15, 7)
        assert lease(world, 2) == [12, 13]
        assert (found.committed, found.next) == (5, 14)
        release(world)
        assert world.drain() == [*range(5, 12), 12, 13, *range(14, 20)]

    def test_what_is_released_is_ready_at_its_old_place(self, world: World) -> None:
        world.put(*range(10))
        lease(world, 4)
        lease(world, 3, reader="other")
        got = world.take(2)
        world.put(10, 11)
        release(world)
        assert [n for n, is_pending in world.seen() if not is_pending] == [0, 1, 2, 3, 9, 10, 11]
        world.q.requeue(tags_of(got), OS)
        release(world, "other")
        assert world.q.leased_count() == 0
        assert world.rig.engine.leases.of(world.q.index()) == {}
        assert world.drain() == list(range(12))

    def test_released_to_an_empty_queue(self, world: World) -> None:
        world.put(*range(9))
        lease(world)
        release(world)
        assert (world.q.len(), world.q.depth()) == (9, 9)
        world.page()
        assert world.drain() == list(range(9))

    def test_two_readers_and_a_consumer_share_a_queue(self, world: World) -> None:
        world.put(*range(12))
        a = lease(world, 2, reader="a")
        b = lease(world, 3, reader="b")
        mine = world.numbers(got := world.take(1))
        a += lease(world, 1, reader="a")
        assert (a, b, mine) == ([0, 1, 6], [2, 3, 4], [5])
        commit(world, 2, "a")
        world.q.ack(tags_of(got), OS)
        world.settle()
        world.crash()
        release(world, "b")
        assert world.drain() == [2, 3, 4, 7, 8, 9, 10, 11]
        release(world, "a")
        assert world.drain() == [6]

    def test_transient_messages_are_persistent_from_then_on(self, world: World) -> None:
        world.put(0, mode=DISK)
        world.put(1, mode=NONE)
        world.put(2, mode=DISK)
        world.put(3, 4, mode=NONE)
        assert lease(world, 4) == [0, 1, 2, 3]
        assert world.q.index().count == 4
        world.settle()
        world.crash()
        assert (world.q.len(), world.q.leased_count()) == (0, 4)
        release(world)
        assert world.drain() == [0, 2, 1, 3], "they live at the end of the queue"

    def test_bodies_of_every_placement(self, world: World) -> None:
        for i, size in enumerate((0, 1, 63, STORED, 5000)):
            world.q.publish(b"h%d" % i, b"x" * size, DISK if i % 2 else NONE)
        taken = world.q.take(MANY, BYTES, 0)
        engine = world.rig.engine
        engine.leases.lease(world.q.index(), "r", taken, DISK)
        world.q.leased(taken, engine.log.last_lsn)
        assert [len(b) for one in taken for b in one.bodies] == [0, 1, 63, STORED, 5000]
        world.restart()
        commit(world, 3)
        world.restart()
        commit(world, 5)
        world.settle()
        while world.rig.engine.upkeep.reap():
            world.settle()
        world.rig.engine.checkpoint()
        assert world.rig.engine.state.store.live_count == 0
        assert world.q.index().count == 0

    def test_deleted_with_its_leases(self, world: World) -> None:
        world.put(*range(6))
        lease(world, 4)
        engine = world.rig.engine
        engine.wait(world.q.delete_and_terminate(DISK), DISK)
        assert engine.state.leases.by_queue == {}
        del world.queues[b"q"]
        world.q = world.open(b"q")
        world.restart()
        assert (world.q.len(), world.q.depth()) == (0, 0)
