"""The BackingQueue contract: what is asked of the log.

What is held until it is settled, moves, transactions, confirms, restarts and crashes, deletion.
Part of `backing_queue.py`, which has the fixtures."""

import pytest

from penstock.errors import StorageError
from penstock.queues.backing_queue import BackingQueue, NewMessage
from penstock.queues.queue_ram import CHECKS
from penstock.storage.files.durability import DISK, NONE, OS
from tests.helpers.queue_world import World, tags_of


class LogContract:
    """Wants the fixture ``world``."""

    # ---- Held --------------------------------------------------------------------------------

    def test_what_a_transaction_brought_waits_for_it(self, world: World) -> None:
        engine = world.rig.engine
        world.put(0)
        world.settle()
        tx = engine.begin()
        placed = [tx.publish([world.q.index()], b"", world.body(i)) for i in (1, 2)]
        lsn = tx.commit(DISK)
        for published in placed:
            for entry in published.born:
                world.q.hold(entry.seq, lsn, DISK)
        world.put(3)
        assert world.q.len() == 4
        assert world.numbers(world.take(1)) == [0], "what came before is not held"
        assert world.q.fetch() is None
        held = world.q.held()
        assert held is not None
        assert engine.log.settled(held[1]) < held[0]
        assert world.q.head() is not None
        engine.flush()
        world.settle()
        assert world.q.held() is None
        assert world.drain() == [1, 2, 3]

    def test_what_comes_back_before_a_held_message_is_not_held(self, world: World) -> None:
        world.put(0, 1)
        first = world.take(2)
        world.settle()
        (tag,) = world.put(2)
        world.q.hold(tag, world.rig.engine.log.last_lsn, DISK)
        assert world.q.fetch() is None
        world.q.requeue(tags_of(first)[:1], OS)
        got = world.q.fetch()
        assert got is not None
        assert world.numbers([got]) == [0]
        assert world.q.fetch() is None
        assert world.numbers(world.take(1)) == [2]

    def test_drop_takes_what_is_held(self, world: World) -> None:
        world.settle()
        (tag,) = world.put(1)
        world.q.hold(tag, world.rig.engine.log.last_lsn, DISK)
        assert world.q.fetch() is None
        head = world.q.drop(ack_required=False)
        assert head is not None
        assert head.tag == tag
        assert world.q.held() is None
        world.put(2)
        assert world.drain() == [2]

    def test_a_hold_that_is_settled_holds_nothing(self, world: World) -> None:
        (tag,) = world.put(1)
        world.settle()
        world.q.hold(tag, world.rig.engine.log.last_lsn, DISK)
        assert world.q.held() is None
        assert world.numbers([world.fetch()]) == [1]

    def test_no_first_delivery_beyond_the_settled_mark(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(CHECKS, "is_on", False)  # they look at every message
        # Whatever blocks the mark is reserved in: what was delivered says so after a power cut.
        world.q.batch_publish([NewMessage(b"", b"m1;")] * 2500, OS)
        world.settle()
        delivered = 0
        while world.q.fetch() is not None:
            delivered += 1
        assert 0 < delivered < 2500, "the mark of all 2500 was settled before"
        held = world.q.held()
        assert held is not None
        assert world.rig.engine.log.settled(held[1]) < held[0]
        world.crash()
        assert world.q.len() == 2500
        assert all(world.fetch().is_redelivered for _ in range(delivered))

    def test_the_mark_moves_on_as_it_is_settled(self, world: World) -> None:
        for _ in range(0, 2500, 60):
            world.q.batch_publish([NewMessage(b"", b"m1;")] * 60, OS)
            got = [world.fetch(ack_required=False) for _ in range(60)]
            assert not any(d.is_redelivered for d in got)
        assert world.q.depth() == 0

    # ---- Moves -------------------------------------------------------------------------------

    def move(self, world: World, tag: int, *targets: BackingQueue) -> int:
        """As an owner does it: what arrived is held until the record is settled."""
        indexes = [target.index() for target in targets]
        lsn = world.q.move(tag, indexes, b"moved", DISK, 55)
        for target, index in zip(targets, indexes, strict=True):
            target.hold(index.next_seq - 1, lsn, DISK)
        world.page()
        return lsn

    @pytest.mark.parametrize("mode", [DISK, NONE])
    def test_a_move_takes_it_here_and_puts_it_there(self, world: World, mode: int) -> None:
        other = world.open(b"other")
        world.put(10, queue=other)
        tags = world.put(*range(6), mode=mode)
        world.take(3)
        world.page()
        self.move(world, tags[1], other)
        assert world.q.pending(tags[1]) is None
        assert (world.q.depth(), other.len()) == (5, 2)
        with pytest.raises(KeyError):
            world.q.move(tags[1], [other.index()], b"", DISK)
        got = world.take(2, other)
        assert world.numbers(got) == [10, 1]
        assert (got[1].message.header, got[1].message.expiry_ms) == (b"moved", 55)
        assert not got[1].is_redelivered
        world.q.requeue(tags, OS)
        assert world.drain() == [0, 2, 3, 4, 5]

    def test_what_was_moved_is_held_until_it_is_settled(self, world: World) -> None:
        other = world.open(b"other")
        (tag,) = world.put(1)
        world.take(1)
        lsn = self.move(world, tag, other)
        assert world.rig.engine.log.settled(DISK) < lsn
        assert other.fetch() is None
        assert other.held() is not None
        world.settle()
        assert world.drain(other) == [1]

    @pytest.mark.parametrize("mode", [DISK, NONE])
    def test_a_move_to_no_target_is_the_end(self, world: World, mode: int) -> None:
        (tag, kept) = world.put(1, 2, mode=mode)
        world.take(2)
        world.page()
        self.move(world, tag)
        assert world.q.depth() == 1
        world.q.requeue([tag, kept], OS)
        assert world.drain() == [2]
        world.restart()
        assert world.q.depth() == 0

    @pytest.mark.parametrize("mode", [DISK, NONE])
    def test_a_move_to_several_targets(self, world: World, mode: int) -> None:
        others = [world.open(b"other%d" % i) for i in range(3)]
        (tag,) = world.put(1, mode=mode)
        world.take(1)
        self.move(world, tag, *others)
        assert world.q.depth() == 0
        for other in others:
            got = world.fetch(other)
            assert world.numbers([got]) == [1]
            assert other.ack([got.tag], OS) == [got.message.id]

    @pytest.mark.parametrize("mode", [DISK, NONE])
    def test_a_move_to_its_own_end(self, world: World, mode: int) -> None:
        tags = world.put(*range(5), mode=mode)
        world.take(2)
        self.move(world, tags[0], world.q)
        assert (world.q.len(), world.q.depth()) == (4, 5)
        assert world.drain() == [2, 3, 4, 0]

    @pytest.mark.parametrize("mode", [DISK, NONE])
    def test_a_move_to_a_queue_that_is_not_durable(self, world: World, mode: int) -> None:
        gone, other = world.open(b"gone", is_durable=False), world.open(b"other")
        tags = world.put(*range(4), mode=mode)
        world.take(4)
        world.page()
        self.move(world, tags[0], gone)
        self.move(world, tags[1], gone, other)
        assert (world.q.depth(), gone.len(), other.len()) == (2, 2, 1)
        assert world.drain(gone) == [0, 1]
        world.settle()
        world.crash()
        kept = mode != NONE
        assert world.drain() == ([2, 3] if kept else [])
        assert world.drain(world.queues[b"other"]) == ([1] if kept else [])

    def test_a_moved_message_survives_there(self, world: World) -> None:
        other = world.open(b"other")
        tags = world.put(*range(10))
        world.take(4)
        for tag in tags[:3]:
            self.move(world, tag, other)
        world.settle()
        world.crash()
        assert world.drain() == list(range(3, 10))
        other = world.queues[b"other"]
        assert other.index() is not world.q.index()
        assert world.drain(other) == [0, 1, 2]

    def test_only_what_is_pending_can_be_moved(self, world: World) -> None:
        (tag,) = world.put(1)
        for strange in (tag, tag + 1):
            with pytest.raises(KeyError):
                world.q.move(strange, [], b"", DISK)
        assert world.drain() == [1]

    # ---- Transactions ------------------------------------------------------------------------

    def test_a_transaction_dequeues_pending_messages(self, world: World) -> None:
        tags = world.put(*range(8)) + world.put(8, 9, mode=NONE)
        world.take(10)
        world.page()
        chosen = [tags[i] for i in (7, 1, 9, 4)]
        parts = world.q.entries(chosen)
        assert [e.seq for _, entries in parts for e in entries] == [tags[i] for i in (1, 4, 7)]
        assert world.q.depth() == 10
        tx = world.rig.engine.begin()
        for index, entries in parts:
            tx.dequeue(index, entries)
        tx.commit(DISK)
        world.q.forget(chosen)
        assert world.q.depth() == 6
        assert world.q.ack(chosen, OS) == []
        assert world.q.index().count == 5
        world.settle()
        world.crash()
        assert world.drain() == [0, 2, 3, 5, 6]

    def test_after_a_rollback_all_is_pending_as_before(self, world: World) -> None:
        tags = world.put(*range(4))
        world.take(4)
        tx = world.rig.engine.begin()
        for index, entries in world.q.entries(tags[:2]):
            tx.dequeue(index, entries)
        tx.rollback()
        assert world.q.depth() == 4
        world.q.requeue(tags, OS)
        assert world.drain() == [0, 1, 2, 3]

    def test_entries_of_an_unknown_tag(self, world: World) -> None:
        tags = world.put(1, 2)
        world.take(1)
        for strange in (tags[1], tags[1] + 9):
            with pytest.raises(KeyError) as caught:
                world.q.entries([tags[0], strange])
            assert str(strange) in str(caught.value)
        assert sum(len(entries) for _, entries in world.q.entries([])) == 0
        assert world.q.depth() == 2

    # ---- Life --------------------------------------------------------------------------------

    def test_a_restart_keeps_everything_persistent_in_order(self, world: World) -> None:
        for i in range(40):
            world.put(i, mode=OS if i % 5 else NONE)
        got = world.take(12)
        world.q.ack(tags_of(got)[:3], OS)
        world.q.requeue(tags_of(got)[6:8], OS)
        world.restart()
        live = [i for i in range(3, 40) if i % 5]
        assert world.q.len() == world.q.depth() == len(live)
        assert world.q.body_bytes() == sum(len(world.body(i)) for i in live)
        again = world.take(len(live))
        assert world.numbers(again) == live
        assert [d.message.header for d in again] == [b"h%d" % i for i in live]
        assert [i for i, d in zip(live, again, strict=True) if d.is_redelivered] == [
            i for i in live if i < 12
        ]
        assert {i: d.attempts for i, d in zip(live, again, strict=True) if d.attempts} == {
            i: 1 for i in (6, 7) if i % 5
        }

    def test_restart_after_restart(self, world: World) -> None:
        world.put(*range(20))
        for round_ in range(4):
            got = world.take(3)
            assert world.numbers(got) == [round_, round_ + 1, round_ + 2]
            assert [d.is_redelivered for d in got] == [round_ > 0, round_ > 0, False]
            world.q.ack(tags_of(got)[:1], OS)
            world.restart()
            world.put(20 + round_)
        assert world.drain() == list(range(4, 24))

    @pytest.mark.parametrize("mode", ["lost", "kept", "subset", "torn"])
    def test_a_crash_keeps_what_was_confirmed(self, world: World, mode: str) -> None:
        for i in range(40):
            world.put(i, mode=DISK if i % 5 else NONE)
        got = world.take(12)
        world.q.ack(tags_of(got)[:3], OS)
        world.q.requeue(tags_of(got)[6:8], OS)
        world.page()
        world.settle()
        world.put(40)  # may be lost
        world.crash(mode)
        live = [i for i in range(3, 40) if i % 5]
        again = world.take(world.q.len())
        assert world.numbers(again) in (live, [*live, 40])
        delivered = again[: sum(1 for i in live if i < 12)]
        assert all(d.is_redelivered for d in delivered), "all that may have been delivered"
        assert [d.attempts for d in again if d.attempts] == [1] * sum(1 for i in (6, 7) if i % 5)

    def test_a_crash_after_a_checkpoint(self, world: World) -> None:
        world.put(*range(20))
        got = world.take(6)
        world.rig.engine.checkpoint()
        world.q.ack(tags_of(got)[1:3], OS)
        world.put(20)
        world.settle()
        world.crash()
        assert world.drain() == [0, *range(3, 21)]

    def test_what_is_new_after_a_crash_is_not_redelivered(self, world: World) -> None:
        world.put(1, 2)
        world.take(1)
        world.settle()
        world.crash()
        world.put(3)
        got = world.take(3)
        assert world.numbers(got) == [1, 2, 3]
        assert got[0].is_redelivered
        assert not got[2].is_redelivered

    def test_transient_messages_end_with_the_process(self, world: World) -> None:
        world.put(*range(10), mode=NONE)
        world.take(2)
        world.restart()
        assert world.q.depth() == 0
        world.put(*range(10, 20), mode=NONE)
        world.crash("kept")
        assert world.q.depth() == 0
        world.put(20)
        assert world.drain() == [20]

    def test_delete_takes_everything(self, world: World) -> None:
        other = world.open(b"other")
        for i in range(20):
            world.put(i, mode=DISK if i % 3 else NONE, queue=other)
        world.take(5, other)
        index = other.index()
        lsn = other.delete_and_terminate(DISK)
        assert lsn == world.rig.engine.log.last_lsn
        del world.queues[b"other"]
        assert index.is_deleted
        world.put(7)
        world.settle()
        world.crash()
        assert b"other" not in world.rig.engine.state.routing.queues
        again = world.open(b"other")
        assert again.depth() == 0
        world.restart()
        assert not world.rig.fs.exists(index.path)
        assert world.drain() == [7]

    def test_a_closed_engine_takes_nothing(self, world: World) -> None:
        world.put(1)
        world.q.terminate()
        world.rig.stop()
        with pytest.raises(StorageError):
            world.q.publish(b"", b"", DISK)
