"""What every BackingQueue must do. A test class inherits ``BackingQueueContract`` and gives two
fixtures: ``rig``, an engine, and ``opens``, which makes the queue of a name, or finds it again;
``body_bytes`` if bodies are to be long.

Here: order, arrival, counts, memory. What happens to pending messages stands in
`backing_queue_pending.py`, what is asked of the log and of a restart in `backing_queue_log.py`,
leases in `backing_queue_leases.py`."""

from collections.abc import Callable
from typing import Final

import pytest

from penstock.queues.backing_queue import UNLIMITED, NewMessage
from penstock.storage.files.durability import DISK, NONE, OS
from tests.contracts.backing_queue_leases import LeaseContract
from tests.contracts.backing_queue_log import LogContract
from tests.contracts.backing_queue_pending import PendingContract
from tests.helpers.engine_rig import STORED, EngineRig
from tests.helpers.queue_world import Opener, World, tags_of

INFO: Final = (
    "len", "depth", "bytes", "unacked_bytes", "ram_bytes", "ram_messages", "alphas", "betas",
    "gammas", "delta", "pending", "paged_pending", "leased", "leased_bytes", "q1", "q2", "q3", "q4",
    "is_flowed", "target_bytes", "disk_reads", "disk_writes", "mode",
)  # fmt: skip


class BackingQueueContract(PendingContract, LogContract, LeaseContract):
    """The whole contract."""

    @pytest.fixture
    def body_bytes(self) -> int:
        return 0

    @pytest.fixture
    def world(self, rig: EngineRig, opens: Opener, body_bytes: int) -> World:
        return World(rig, opens, body_bytes)

    # ---- Order -------------------------------------------------------------------------------

    def test_a_new_queue_is_empty(self, world: World) -> None:
        q = world.q
        assert (q.len(), q.depth(), q.body_bytes()) == (0, 0, 0)
        assert q.fetch() is None
        assert q.drop() is None
        assert q.head() is None
        assert q.held() is None
        assert q.purge(OS) == 0
        assert q.purge_acks(OS) == 0
        assert q.dropwhile(lambda _: True, OS) is None
        assert world.seen() == []

    def test_what_comes_first_leaves_first(self, world: World) -> None:
        tags = world.put(*range(30))
        assert tags == sorted(set(tags))
        assert (world.q.len(), world.q.depth()) == (30, 30)
        got = world.take(30)
        assert world.numbers(got) == list(range(30))
        assert tags_of(got) == tags
        assert [d.message.header for d in got] == [b"h%d" % i for i in range(30)]
        assert not any(d.is_redelivered or d.attempts for d in got)
        assert (world.q.len(), world.q.depth()) == (0, 30)
        assert world.q.fetch() is None

    def test_publishing_and_fetching_take_turns(self, world: World) -> None:
        got: list[int] = []
        for i in range(0, 60, 3):
            world.put(i, i + 1, i + 2)
            got += world.numbers(world.take(2))
        got += world.drain()
        assert got == list(range(60))

    @pytest.mark.parametrize("size", [0, 1, 63, 64, 127, 128, STORED, 5000, 70_000])
    def test_a_body_comes_back_as_it_was(self, world: World, size: int) -> None:
        body = bytes(range(256)) * (size // 256) + bytes(range(size % 256))
        header = b"\0header\xff" * 3
        for mode in (DISK, OS, NONE):
            world.q.publish(header, body, mode, expiry_ms=12345678901234)
        world.put(1)
        for _ in range(3):
            message = world.fetch().message
            assert (message.header, message.body, message.size) == (header, body, size)
            assert message.expiry_ms == 12345678901234

    def test_fetch_without_ack_leaves_nothing_behind(self, world: World) -> None:
        tags = world.put(1, 2, 3)
        world.put(4, mode=NONE)
        assert [world.numbers([world.fetch(ack_required=False)])[0] for _ in range(4)] == [
            1, 2, 3, 4,
        ]  # fmt: skip
        assert world.q.depth() == 0
        assert world.q.ack(tags, OS) == []
        assert world.q.index().count == 0
        world.restart()
        assert world.q.depth() == 0

    def test_drop_is_fetch_without_the_body(self, world: World) -> None:
        tags = world.put(*range(6))
        ids = [d.message.id for d in world.take(6)]
        world.q.requeue(tags, OS)
        pending = world.q.drop()
        gone = world.q.drop(ack_required=False)
        assert pending is not None
        assert gone is not None
        assert [(h.tag, h.id, h.size) for h in (pending, gone)] == [
            (tags[i], ids[i], len(world.body(i))) for i in (0, 1)
        ]
        assert (world.q.len(), world.q.depth()) == (4, 5)
        assert world.q.ack([tags[1]], OS) == []
        world.q.requeue([tags[0]], OS)
        assert world.drain() == [0, 2, 3, 4, 5]

    def test_a_look_at_the_head_changes_nothing(self, world: World) -> None:
        tag = world.q.publish(b"", world.body(7), DISK, expiry_ms=99)
        world.put(8)
        heads = [world.q.head() for _ in range(3)]
        assert world.q.len() == 2
        got = world.fetch()
        assert (got.tag, got.is_redelivered) == (tag, False)
        for head in heads:
            assert head is not None
            assert (head.tag, head.id) == (tag, got.message.id)
            assert (head.size, head.expiry_ms) == (len(world.body(7)), 99)
        world.fetch()
        assert world.q.head() is None

    @pytest.mark.parametrize("mode", [DISK, NONE])
    def test_the_head_knows_when_it_came(self, world: World, mode: int) -> None:
        world.put(*range(30), mode=mode)
        came_s = world.rig.clock.wall_ms() // 1000
        world.settle()
        world.rig.clock.advance(100)
        world.page()
        for _ in range(30):
            (head,) = world.q.browse(None, 1)
            assert head.message.time == came_s
            world.fetch()
            world.inhale()

    def test_the_head_is_known_at_every_length(self, world: World) -> None:
        tags = world.put(*range(25))
        for tag in tags:
            head = world.q.head()
            assert head is not None
            assert head.tag == tag
            world.fetch(ack_required=False)

    def test_priorities_above_the_highest_count_as_the_highest(self, world: World) -> None:
        assert world.q.index(255) is world.q.index(100_000)
        world.q.publish(b"", world.body(1), DISK, priority=100_000)
        assert world.drain() == [1]

    # ---- Arrival -----------------------------------------------------------------------------

    def test_a_batch_is_as_many_singles(self, world: World) -> None:
        other = world.open(b"other")
        messages = [NewMessage(b"h%d" % i, world.body(i), i * 1000) for i in range(30)]
        tags = world.q.batch_publish(messages, DISK)
        for m in messages:
            other.publish(m.header, m.body, DISK, expiry_ms=m.expiry_ms)
        world.page()
        assert world.q.batch_publish([], DISK) == []
        assert (world.q.len(), world.q.body_bytes()) == (other.len(), other.body_bytes())
        got = world.take(30)
        assert tags_of(got) == tags
        assert [(d.message.header, d.message.body, d.message.expiry_ms) for d in got] == [
            (d.message.header, d.message.body, d.message.expiry_ms) for d in world.take(30, other)
        ]

    def test_a_transient_batch(self, world: World) -> None:
        world.put(0)
        world.q.batch_publish([NewMessage(b"", world.body(i)) for i in (1, 2, 3)], NONE)
        world.page()
        assert world.q.index().count == 1
        assert world.drain() == [0, 1, 2, 3]

    def test_a_message_of_two_queues(self, world: World) -> None:
        other = world.open(b"other")
        for i, mode in ((1, DISK), (2, NONE), (3, OS)):
            indexes = [world.q.index(), other.index()]
            world.rig.engine.publish(indexes, b"h%d" % i, world.body(i), mode)
        world.page()
        one, two = world.take(3), world.take(3, other)
        assert world.numbers(one) == world.numbers(two) == [1, 2, 3]
        assert [d.message.id for d in one] == [d.message.id for d in two]
        world.q.ack(tags_of(one), OS)
        other.requeue(tags_of(two), OS)
        world.page()
        assert world.drain(other) == [1, 2, 3]

    def test_transient_and_persistent_stand_in_one_order(self, world: World) -> None:
        for i in range(40):
            world.put(i, mode=DISK if i % 3 else NONE)
        assert world.q.len() == 40
        assert world.q.index().count == 26
        got = world.take(10)
        world.q.requeue(tags_of(got)[::2], OS)
        world.page()
        assert world.seen() == [(i, i < 10 and i % 2 == 1) for i in range(40)]
        assert world.q.ack(tags_of(got)[1::2], OS) == [d.message.id for d in got[1::2]]
        assert world.drain() == [0, 2, 4, 6, 8, *range(10, 40)]
        assert world.q.index().count == 0

    def test_a_queue_that_is_not_durable(self, world: World) -> None:
        gone = world.open(b"gone", is_durable=False)
        world.put(*range(20), queue=gone)
        got = world.take(8, gone)
        assert not any(d.is_redelivered for d in got)
        gone.requeue(tags_of(got), DISK)
        assert gone.index().count == 0
        assert gone.len() == 20
        again = world.take(3, gone)
        assert [(d.is_redelivered, d.attempts) for d in again] == [(True, 1)] * 3
        assert gone.ack(tags_of(again), OS) == [d.message.id for d in again]
        assert world.drain(gone) == list(range(3, 20))
        gone.delete_and_terminate(OS)

    # ---- Counts ------------------------------------------------------------------------------

    def test_counts_and_bytes(self, world: World) -> None:
        q = world.q
        sizes = [0, 10, 100, 300, 50, 1]
        for i, size in enumerate(sizes):
            q.publish(b"", b"x" * size, DISK if i % 2 else NONE)
        world.page()
        assert (q.len(), q.depth(), q.body_bytes()) == (6, 6, sum(sizes))
        got = world.take(3)
        assert (q.len(), q.depth(), q.body_bytes()) == (3, 6, sum(sizes[3:]))
        info = q.info()
        assert (info["len"], info["depth"]) == (3, 6)
        assert (info["bytes"], info["unacked_bytes"]) == (sum(sizes[3:]), sum(sizes[:3]))
        q.ack(tags_of(got)[:1], OS)
        q.requeue(tags_of(got)[1:2], OS)
        assert (q.len(), q.depth(), q.body_bytes()) == (4, 5, sum(sizes[3:]) + sizes[1])
        q.drop(ack_required=False)
        q.purge(OS)
        assert (q.len(), q.depth(), q.body_bytes()) == (0, 1, 0)
        assert q.info()["unacked_bytes"] == sizes[2]

    def test_info_has_every_counter(self, world: World) -> None:
        world.put(*range(30))
        world.take(4)
        world.page()
        info = world.q.info()
        assert set(INFO) <= set(info)
        counts = {name: info[name] for name in INFO if name != "mode"}
        assert all(isinstance(value, int) and value >= 0 for value in counts.values())
        assert info["ram_bytes"] == world.q.ram_bytes()
        assert info["pending"] == 4

    def test_ram_is_counted_and_given_back(self, world: World) -> None:
        empty = world.q.ram_bytes()
        world.put(*range(20))
        world.take(10)
        assert world.q.ram_bytes() >= empty
        world.q.purge(OS)
        world.q.purge_acks(OS)
        assert world.q.ram_bytes() == empty

    # ---- Memory ------------------------------------------------------------------------------

    def test_limits_are_checked(self, world: World) -> None:
        for high, low in ((-1, -1), (0, -1), (5, 6), (0, UNLIMITED)):
            with pytest.raises(ValueError, match=r"min|limit"):
                world.q.set_limits(high, low)
        for high, low in ((0, 0), (5, 5), (UNLIMITED, 0), (UNLIMITED, UNLIMITED)):
            world.q.set_limits(high, low)
        with pytest.raises(ValueError, match="mode"):
            world.q.set_queue_mode("busy")

    @pytest.mark.parametrize("mode", ["default", "lazy"])
    def test_no_limit_changes_what_is_in_the_queue(self, world: World, mode: str) -> None:
        q = world.q
        n = 0
        got: list[int] = []
        infinite = float("inf")
        settings: list[Callable[[], None]] = [
            lambda: q.set_limits(0, 0),
            lambda: q.set_limits(UNLIMITED, 0),
            lambda: q.set_limits(2000, 500),
            lambda: q.set_share(100),
            lambda: q.set_share(UNLIMITED),
            lambda: q.set_ram_duration_target(0.0),
            lambda: q.set_ram_duration_target(infinite),
            lambda: q.set_ram_duration_target(1.5),
            lambda: q.set_queue_mode(mode),
            lambda: q.set_limits(3000, 3000),
        ]
        for change in settings:
            for i in range(n, n + 9):
                world.put(i, mode=DISK if i % 4 else NONE)
            n += 9
            change()
            assert q.ram_duration() >= 0
            world.page()
            world.inhale()
            deliveries = world.take(5)
            got += world.numbers(deliveries[:4])
            q.requeue(tags_of(deliveries)[4:], OS)
            world.page()
        assert q.info()["mode"] == mode
        assert got + world.drain() == list(range(n))
        assert q.depth() == len(got)

    def test_a_checkpoint_changes_nothing(self, world: World) -> None:
        for i in range(24):
            world.put(i, mode=DISK if i % 4 else NONE)
        got = world.take(8)
        world.rig.engine.checkpoint()
        world.q.ack(tags_of(got)[:2], OS)
        world.rig.engine.checkpoint()
        world.q.requeue(tags_of(got)[4:], OS)
        world.page()
        world.rig.engine.checkpoint()
        assert world.seen() == [(i, i in (2, 3)) for i in range(2, 24)]
        assert world.drain() == list(range(4, 24))
        world.rig.engine.checkpoint()
        assert world.q.requeue(tags_of(got), OS) == [d.message.id for d in got[2:4]]
        assert world.drain() == [2, 3]
