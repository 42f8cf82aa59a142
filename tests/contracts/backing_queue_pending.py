"""The BackingQueue contract: pending messages, and what is done to many at once.

Acks, requeues to the old place in any order, purges, dropwhile, folds. Part of
`backing_queue.py`, which has the fixtures."""

import itertools

import pytest

from penstock.queues.backing_queue import Delivery
from penstock.storage.files.durability import DISK, NONE, OS
from tests.helpers.engine_rig import STORED
from tests.helpers.queue_world import World, tags_of, up_to


class PendingContract:
    """Wants the fixture ``world``."""

    # ---- Pending -----------------------------------------------------------------------------

    def test_ack_gives_the_ids_in_the_order_of_the_tags(self, world: World) -> None:
        world.put(*range(10))
        got = world.take(10)
        ids = {d.tag: d.message.id for d in got}
        tags = tags_of(got)
        order = [tags[i] for i in (7, 2, 9, 0, 3)]
        assert world.q.ack(order, OS) == [ids[t] for t in order]
        assert world.q.depth() == 5
        assert world.q.index().count == 5
        assert world.q.ack(tags, OS) == [ids[t] for t in tags if t not in order]
        assert world.q.depth() == 0

    def test_unknown_tags_are_ignored(self, world: World) -> None:
        tags = world.put(*range(6))
        got = world.take(3)
        ready = tags[4]
        strange = [tags[-1] + 1, 1 << 40, ready]
        assert world.q.ack([*strange, tags[0], tags[0]], OS) == [got[0].message.id]
        assert world.q.ack([tags[0]], OS) == []
        assert world.q.requeue([tags[0], *strange, tags[1], tags[1]], OS) == [got[1].message.id]
        assert world.q.requeue([tags[1]], OS) == []
        assert world.q.pending(tags[1]) is None
        assert [world.q.pending(tag) for tag in (tags[0], *strange)].count(None) == 1 + len(strange)
        world.q.forget(strange)
        assert world.drain() == [1, 3, 4, 5]
        assert world.q.ack([tags[2]], OS) == [got[2].message.id]

    @pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
    def test_requeued_one_by_one_in_any_order(self, world: World, order: tuple[int, ...]) -> None:
        world.put(*range(12))
        got = world.take(8)
        for i in order:
            assert world.q.requeue([got[2 * i].tag], OS) == [got[2 * i].message.id]
            world.page()
        assert world.drain() == [0, 2, 4, 6, 8, 9, 10, 11]
        world.q.requeue(tags_of(got), OS)
        assert world.drain() == [1, 3, 5, 7]

    @pytest.mark.parametrize("step", [1, 2, 3, 7])
    def test_requeued_together_in_any_order(self, world: World, step: int) -> None:
        world.put(*range(30))
        got = world.take(20)
        back = got[::step]
        tags = tags_of(back)
        ids = [d.message.id for d in back]
        assert world.q.requeue([*tags[1::2], *tags[::2]], OS) == ids
        world.page()
        world.put(30, 31)
        kept = [i for i in range(20) if i % step]
        assert world.seen() == [(i, i in kept) for i in range(32)]
        assert world.drain() == [i for i in range(32) if i not in kept]

    def test_all_is_taken_and_given_back_while_more_comes(self, world: World) -> None:
        world.put(*range(20))
        for round_ in range(4):
            got = world.take(world.q.len())
            world.put(20 + round_)
            world.q.requeue(tags_of(got)[::-1], OS)
            world.page()
        assert world.drain() == list(range(24))

    def test_requeue_counts_attempts(self, world: World) -> None:
        tags = world.put(1) + world.put(2, mode=NONE) + world.put(3)
        for n in range(3):
            got = world.take(3)
            assert [d.attempts for d in got] == [n, n, 0]
            assert [d.is_redelivered for d in got] == [n > 0] * 3
            world.q.requeue(tags[:2], OS)
            world.q.requeue(tags[2:], OS, attempted=False)
            world.page()
        pending = world.take(1)
        found = world.q.pending(pending[0].tag)
        assert found is not None
        assert found.attempts == 3

    def test_a_pending_message_can_be_looked_at(self, world: World) -> None:
        tags = world.put(1, 2)
        world.put(3, mode=NONE)
        got = world.take(3)
        world.page()
        for delivery in got:
            found = world.q.pending(delivery.tag, with_body=True)
            assert found is not None
            assert found.tag == delivery.tag
            assert world.numbers([found]) == world.numbers([delivery])
            assert world.q.pending(delivery.tag) is not None
        world.q.ack(tags[:1], OS)
        assert world.q.pending(tags[0]) is None
        assert world.q.pending(tags[-1] + 5) is None

    def test_pending_reads_bodies_that_were_paged_out(self, world: World) -> None:
        world.put(*range(20))
        got = world.take(12)
        world.page()
        tags = tags_of(got)[::2]
        found = world.numbers(
            [d for tag in tags if (d := world.q.pending(tag, with_body=True)) is not None]
        )
        assert found == list(range(0, 12, 2))
        assert (world.q.len(), world.q.depth()) == (8, 20)
        assert len(world.q.ack(tags, OS)) == 6

    def test_purge_takes_the_ready_and_leaves_the_pending(self, world: World) -> None:
        for i in range(30):
            world.put(i, mode=DISK if i % 4 else NONE)
        got = world.take(10)
        world.q.ack(tags_of(got)[4:6], OS)
        assert world.q.purge(OS) == 20
        assert (world.q.len(), world.q.depth(), world.q.body_bytes()) == (0, 8, 0)
        assert world.q.fetch() is None
        assert world.q.purge(OS) == 0
        world.put(30)
        assert world.q.requeue(tags_of(got), OS) == [d.message.id for d in [*got[:4], *got[6:]]]
        world.page()
        assert world.drain() == [0, 1, 2, 3, 6, 7, 8, 9, 30]
        world.restart()
        assert world.q.depth() == 0

    def test_a_purge_lasts(self, world: World) -> None:
        world.put(*range(20))
        got = world.take(3)
        world.q.ack(tags_of(got)[:1], OS)
        world.q.purge(OS)
        world.put(20, 21)
        world.settle()
        world.crash()
        assert world.drain() == [1, 2, 20, 21]

    def test_purge_acks_takes_the_pending(self, world: World) -> None:
        for i in range(20):
            world.put(i, mode=DISK if i % 4 else NONE)
        got = world.take(9)
        world.page()
        assert world.q.purge_acks(OS) == 9
        assert (world.q.len(), world.q.depth()) == (11, 11)
        assert world.q.requeue(tags_of(got), OS) == []
        assert world.q.purge_acks(OS) == 0
        assert world.drain() == list(range(9, 20))

    # ---- While -------------------------------------------------------------------------------

    @pytest.mark.parametrize("n", [0, 1, 5, 12, 19, 20])
    def test_dropwhile_stops_at_the_first_refusal(self, world: World, n: int) -> None:
        tags = world.put(*range(10)) + world.put(*range(10, 20), mode=NONE)
        head = world.q.dropwhile(up_to(n), OS)
        assert (head.tag if head else None) == (tags[n] if n < 20 else None)
        assert (world.q.len(), world.q.depth()) == (20 - n, 20 - n)
        assert world.q.ack(tags[:n], OS) == []
        world.page()
        assert world.drain() == list(range(n, 20))

    def test_what_was_dropped_stays_dropped(self, world: World) -> None:
        for i in range(30):
            world.q.publish(b"", world.body(i), DISK, expiry_ms=1000 + i)
        world.page()
        head = world.q.dropwhile(lambda h: h.expiry_ms < 1013, OS)
        assert head is not None
        assert head.expiry_ms == 1013
        world.restart()
        assert world.q.len() == 17
        world.q.dropwhile(lambda h: h.expiry_ms < 1020, OS)
        world.settle()
        world.crash()
        assert world.drain() == list(range(20, 30))

    # ---- Fold --------------------------------------------------------------------------------

    def test_fold_sees_ready_and_pending_in_order(self, world: World) -> None:
        for i in range(40):
            world.put(i, mode=DISK if i % 5 else NONE)
        got = world.take(20)
        world.q.ack(tags_of(got)[:4], OS)
        world.q.requeue(tags_of(got)[4::3], OS)
        world.page()
        back = set(range(4, 20, 3))
        expected = [(i, i < 20 and i not in back) for i in range(4, 40)]
        assert world.seen() == expected
        assert world.seen() == expected, "it changes nothing"
        assert world.q.len() == len(back) + 20

    def test_fold_can_be_cut_short_anywhere(self, world: World) -> None:
        world.put(*range(18))
        world.take(5)
        for n in range(1, 19):

            def first(d: Delivery, is_pending: bool, acc: list[int]) -> tuple[bool, list[int]]:
                found = [*acc, *world.numbers([d])]
                return len(found) < n, found  # noqa: B023 - called before n goes on

            assert world.q.fold(first, list[int]()) == list(range(n))
        assert (world.q.len(), world.q.depth()) == (13, 18)
        assert world.drain() == list(range(5, 18))

    def test_fold_leaves_the_deliveries_as_they_were(self, world: World) -> None:
        world.put(*range(12))
        world.take(2)
        world.seen()
        got = world.take(10)
        assert not any(d.is_redelivered or d.attempts for d in got)

    # ---- Browse -------------------------------------------------------------------------

    @pytest.mark.parametrize("n", [1, 3, 7, 40])
    def test_browse_shows_the_ready_piece_by_piece(self, world: World, n: int) -> None:
        for i in range(30):
            world.put(i, mode=DISK if i % 4 else NONE)
        got = world.take(9)
        world.q.ack(tags_of(got)[:3], OS)
        world.q.requeue(tags_of(got)[4:6], OS)
        world.page()
        seen: list[Delivery] = []
        while piece := world.q.browse(seen[-1].tag if seen else None, n):
            assert len(piece) <= n
            seen += piece
        assert world.numbers(seen) == [4, 5, *range(9, 30)]
        assert [d.attempts for d in seen[:3]] == [1, 1, 0]
        assert [d.is_redelivered for d in seen[:3]] == [True, True, False]
        assert (world.q.len(), world.q.depth()) == (23, 27)
        assert world.drain() == [4, 5, *range(9, 30)]

    def test_browse_while_the_queue_goes_on(self, world: World) -> None:
        world.put(*range(20))
        first = world.q.browse(None, 5)
        assert world.numbers(first) == [0, 1, 2, 3, 4]
        got = world.take(8)  # the one it stopped at is gone
        world.q.requeue(tags_of(got)[:2], OS)
        world.put(20)
        world.page()
        second = world.q.browse(first[-1].tag, 100)
        assert world.numbers(second) == list(range(8, 21))
        assert world.q.browse(second[-1].tag, 5) == []
        assert world.q.browse(None, 0) == []

    # ---- Bodies in the store ------------------------------------------------------------

    @pytest.mark.parametrize("mode", [DISK, NONE])
    def test_every_way_to_die_gives_the_stored_body_back(self, world: World, mode: int) -> None:
        q, engine = world.q, world.rig.engine
        store = engine.state.store if mode == DISK else engine.transient
        stored = (b"m%d;" % 0).ljust(STORED, b".")

        def put(n: int) -> list[tuple[int, int]]:
            """(store file, id) of so many."""
            messages = []
            for _ in range(n):  # a body that others may share is in the store at once
                with engine.share(engine.placement.share_of(stored, 2)):
                    messages.append(engine.publish([q.index()], b"", stored, mode))
            world.page()
            found = [(message.store_file, message.id) for message in messages]
            assert all(store.refs(*address) == 1 for address in found)
            return found

        dead = put(1)
        world.fetch(ack_required=False)
        dead += put(3)
        q.ack(tags_of(world.take(3)), OS)
        dead += put(1)
        q.drop(ack_required=False)
        dead += put(2)
        q.dropwhile(lambda _: True, OS)
        dead += put(2)
        q.purge(OS)
        dead += put(2)
        world.take(2)
        world.page()
        q.purge_acks(OS)
        dead += put(1)
        q.move(world.fetch().tag, [], b"", OS)
        dead += put(2)
        tags = tags_of(world.take(2))
        tx = engine.begin()
        for index, entries in q.entries(tags):
            tx.dequeue(index, entries)
        tx.commit(OS)
        q.forget(tags)
        world.settle()
        world.rig.settle()
        assert [store.refs(*address) for address in dead] == [0] * len(dead)
        dead = put(3)
        world.take(1)
        world.page()
        q.delete_and_terminate(OS)
        world.settle()
        world.rig.settle()
        assert [store.refs(*address) for address in dead] == [0] * len(dead)
