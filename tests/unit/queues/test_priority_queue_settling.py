"""PriorityQueue: acks, requeues and moves over several parts, and what is done to it as a whole."""

from collections.abc import Callable

import pytest

from penstock.queues.backing_queue import PART_SHIFT
from penstock.queues.variable_queue import VariableQueue
from penstock.storage.files.durability import DISK, OS
from tests.helpers.priority_box import MIXED, SORTED, PriorityBox, bodies, tags_of

STOPS = ["restart", "lost", "kept", "killed"]


@pytest.fixture
def box() -> PriorityBox:
    return PriorityBox()


# ---- settling ----------------------------------------------------------------------------------


def test_acks_of_several_priorities_in_one_call(box: PriorityBox) -> None:
    box.put(*MIXED)
    got = box.take(8)
    ids = dict(zip(tags_of(got), [d.message.id for d in got], strict=True))
    order = [tags_of(got)[i] for i in (6, 0, 3, 1, 7)]
    unknown = [1 << PART_SHIFT | 50, 200 << PART_SHIFT, -5]
    given = [*order[:2], unknown[0], order[0], *order[2:], *unknown[1:]]
    assert box.q.ack(given, OS) == [ids[tag] for tag in order]
    box.q.check()
    assert box.q.depth() == 3
    assert box.q.ack(order, OS) == []
    assert box.q.ack([], OS) == []


def test_requeued_messages_are_back_at_their_places(box: PriorityBox) -> None:
    box.put(*MIXED)
    got = box.take(6)
    back = [got[i] for i in (5, 0, 2, 3)]
    ids = [d.message.id for d in sorted(back, key=lambda d: d.tag)]
    unknown = [77 << PART_SHIFT, 1 << PART_SHIFT | 9]
    assert box.q.requeue([*tags_of(back), *unknown], OS) == ids
    box.q.check()
    assert box.seen() == [(body, body in bodies([got[1], got[4]])) for body in SORTED]
    again = box.take(6)
    assert bodies(again) == [SORTED[i] for i in (0, 2, 3, 5, 6, 7)]
    assert [d.attempts for d in again] == [1, 1, 1, 1, 0, 0]
    assert [d.is_redelivered for d in again] == [True] * 4 + [False] * 2


def test_rejected_messages_are_moved_out_of_any_part(box: PriorityBox) -> None:
    (dead,) = box.rig.declare(b"dead")
    box.put(*MIXED)
    for delivery in box.take(8):
        if delivery.tag >> PART_SHIFT in (0, 3):
            lsn = box.q.move(delivery.tag, [dead], b"why", DISK)
            box.rig.engine.wait(lsn, DISK)
        else:
            box.q.requeue([delivery.tag], OS)
        box.q.check()
    assert list(box.rig.bodies(dead).values()) == [b"3.a", b"3.b", b"0.a", b"0.b"]
    assert box.drain() == [b"2.a", b"2.b", b"1.a", b"1.b"]
    assert box.q.depth() == 4
    for tag in (0, 3 << PART_SHIFT, 99 << PART_SHIFT, -1):
        with pytest.raises(KeyError, match=str(tag)):
            box.q.move(tag, [dead], b"", DISK)


def test_a_message_moves_from_one_priority_to_another(box: PriorityBox) -> None:
    box.put(b"0.a", b"0.b")
    delivery = box.fetch()
    box.q.move(delivery.tag, [box.q.index(3)], b"", DISK)
    box.q.check()
    box.rig.engine.sync()
    assert box.drain() == [b"0.a", b"0.b"]


def test_a_transaction_takes_from_several_parts(box: PriorityBox) -> None:
    box.put(*MIXED)
    tags = tags_of(box.take(5))
    taken = box.q.entries([tags[4], tags[0], tags[1]])
    assert [index.name for index, _ in taken] == [b"q\x001", b"q\x003"]
    assert [[e.seq for e in entries] for _, entries in taken] == [[0], [0, 1]]
    transaction = box.rig.engine.begin()
    for index, entries in taken:
        transaction.dequeue(index, entries)
    lsn = transaction.commit(DISK)
    box.q.forget([tags[4], tags[0], tags[1], 88 << PART_SHIFT])
    box.q.check()
    assert box.q.depth() == 5
    box.rig.engine.wait(lsn, DISK)
    box.stop("lost")
    assert box.drain() == [b"2.a", b"2.b", b"1.b", b"0.a", b"0.b"]


def test_an_unknown_tag_has_no_entries_and_is_not_pending(box: PriorityBox) -> None:
    (tag,) = box.put(b"2.a")
    for unknown in (tag, tag + 1, 3 << PART_SHIFT, 4 << PART_SHIFT, -1):
        assert box.q.pending(unknown) is None
        with pytest.raises(KeyError, match=str(unknown)):
            box.q.entries([unknown])
    box.fetch()
    known = box.q.pending(tag, with_body=True)
    assert known is not None
    assert (known.tag, known.message.body) == (tag, b"2.a")


# ---- as a whole --------------------------------------------------------------------------------


def records(box: PriorityBox, act: Callable[[], object]) -> int:
    before = box.rig.engine.log.last_lsn
    act()
    return box.rig.engine.log.last_lsn - before


def test_purge_is_one_record_and_leaves_what_is_pending(box: PriorityBox) -> None:
    box.put(*MIXED)
    tags = tags_of(box.take(3))
    assert records(box, lambda: box.q.purge(DISK)) == 1
    box.q.check()
    assert (box.q.len(), box.q.depth()) == (0, 3)
    assert box.q.purge(OS) == 0
    box.q.requeue(tags, OS)
    assert box.drain() == SORTED[:3]


@pytest.mark.parametrize("how", STOPS)
def test_a_purge_lasts(box: PriorityBox, how: str) -> None:
    box.put(*MIXED)
    box.take(3)
    assert box.q.purge(DISK) == 5
    box.rig.engine.sync()
    box.stop(how)
    assert box.drain() == SORTED[:3]


def test_a_purge_is_whole_or_not_at_all_wherever_a_crash_comes() -> None:
    seen = set()
    for seed in range(30):
        box = PriorityBox()
        box.rig.seed = seed
        box.put(*MIXED)
        box.q.purge(OS)
        box.rig.engine.flush()
        box.stop("torn" if seed % 2 else "lost")
        seen.add(box.q.len())
    assert seen == {0, 8}


def test_purge_acks_leaves_what_is_ready(box: PriorityBox) -> None:
    box.put(*MIXED)
    box.take(5)
    assert box.q.purge_acks(OS) == 5
    box.q.check()
    assert box.q.depth() == 3
    assert box.drain() == SORTED[5:]


@pytest.mark.parametrize("how", STOPS)
def test_a_deleted_queue_is_gone_in_one_record(box: PriorityBox, how: str) -> None:
    box.put(*MIXED)
    box.take(3)
    lsns: list[int] = []
    assert records(box, lambda: lsns.append(box.q.delete_and_terminate(DISK))) == 1
    assert lsns == [box.rig.engine.log.last_lsn]
    box.rig.engine.sync()
    if how == "restart":
        box.rig.restart()
    else:
        box.rig.crash(how)
    assert not box.rig.engine.state.queues


@pytest.mark.parametrize("how", STOPS)
def test_all_parts_are_one_queue_again_after_a_stop(box: PriorityBox, how: str) -> None:
    box.put(*MIXED)
    got = box.take(3)
    box.q.ack([got[0].tag], DISK)
    box.q.requeue([got[1].tag], DISK)
    box.put(b"1.c", b"3.c")
    box.stop(how)
    assert (box.q.len(), box.q.depth()) == (9, 9)
    again = box.take(9)
    assert bodies(again) == [*SORTED[1:2], b"3.c", *SORTED[2:6], b"1.c", *SORTED[6:]]
    assert (again[0].attempts, again[0].is_redelivered) == (1, True)
    assert again[2].is_redelivered


def test_info_is_summed(box: PriorityBox) -> None:
    box.put(*MIXED)
    box.take(3)
    info = box.q.info()
    assert (info["len"], info["depth"], info["pending"]) == (5, 8, 3)
    assert info["bytes"] == box.q.body_bytes() == 15
    assert info["unacked_bytes"] == 9
    assert info["ram_bytes"] == box.q.ram_bytes()
    assert info["mode"] == "default"
    box.q.set_queue_mode("lazy")
    assert box.q.info()["mode"] == "lazy"
    with pytest.raises(ValueError, match="mode"):
        box.q.set_queue_mode("idle")


def test_the_duration_is_that_of_the_part_that_lasts_least(box: PriorityBox) -> None:
    def durations() -> list[float]:
        return [box.q.ram_duration() for _ in range(3)]

    assert durations() == [float("inf")] * 3
    alone = VariableQueue(box.rig.engine, box.rig.engine.declare_queue(b"alone"))
    box.put(*[b"3.x"] * 10)
    for _ in range(10):
        alone.publish(b"", b"3.x", DISK)
    box.rig.clock.advance(5.0)
    seconds = alone.ram_duration()
    assert 0 < seconds < float("inf")
    assert box.q.ram_duration() == seconds, "the other parts are idle"


def test_a_duration_target_is_for_each_part(box: PriorityBox) -> None:
    box.put(*MIXED)
    box.q.set_ram_duration_target(0.0)
    while box.q.resume():
        box.q.check()
    assert box.q.info()["alphas"] == 0
    assert box.drain() == SORTED
