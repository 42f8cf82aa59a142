"""PriorityQueue: what priorities add to the contract: order."""

import pytest

from penstock.queues.backing_queue import PART_SHIFT, BackingQueue, Delivery, NewMessage, ReadyHead
from penstock.queues.priority_queue import PARTS_MAX, PriorityQueue, open_backing
from penstock.queues.variable_queue import VariableQueue
from penstock.storage.files.durability import DISK, NONE, OS
from tests.helpers.engine_rig import EngineRig
from tests.helpers.priority_box import MIXED, SORTED, PriorityBox, bodies, tags_of
from tests.helpers.steps import cost_of


@pytest.fixture
def box() -> PriorityBox:
    return PriorityBox()


# ---- order -------------------------------------------------------------------------------------


def test_the_highest_priority_comes_first_and_in_it_what_came_first(box: PriorityBox) -> None:
    box.put(*MIXED)
    assert box.q.len() == 8
    assert box.drain() == SORTED


def test_what_is_urgent_overtakes_what_waits_already(box: PriorityBox) -> None:
    box.put(b"0.a", b"0.b", b"1.a")
    assert bodies([box.fetch()]) == [b"1.a"]
    assert bodies([box.fetch()]) == [b"0.a"]
    box.put(b"2.a", b"0.c", b"1.b")
    assert box.drain() == [b"2.a", b"1.b", b"0.b", b"0.c"]


@pytest.mark.parametrize(
    ("priority", "part"), [(-1, 0), (0, 0), (1, 1), (3, 3), (4, 3), (255, 3), (1 << 40, 3)]
)
def test_a_priority_out_of_range_counts_as_the_nearest(
    box: PriorityBox, priority: int, part: int
) -> None:
    tag = box.q.publish(b"", b"x", DISK, priority=priority)
    assert tag >> PART_SHIFT == part
    assert box.q.index(priority) is box.q.index(part)
    assert box.q.index(priority).name == b"q\0%d" % part


@pytest.mark.parametrize("n", [0, 1, 257])
def test_there_are_2_to_256_parts(n: int) -> None:
    rig = EngineRig()
    indexes = rig.engine.declare_queues([(b"%d" % i, b"", 0) for i in range(n)])
    with pytest.raises(ValueError, match=f"2 to 256 parts, not {n}"):
        PriorityQueue(rig.engine, indexes, lambda index: VariableQueue(rig.engine, index))


def test_a_part_is_made_at_its_first_message() -> None:
    """256 priorities cost what one does until they are used; after a restart, too."""
    rig = EngineRig()
    open_backing(rig.engine, b"warm", priorities=255)

    def declare() -> BackingQueue:
        return open_backing(rig.engine, b"q", priorities=255)

    q = declare()
    assert isinstance(q, PriorityQueue)
    assert [part.number for part in q.opened] == [0]
    assert q.info()["len"] == 0
    q.publish(b"", b"x", DISK, priority=9)
    q.publish(b"", b"y", DISK, priority=200)
    assert [part.number for part in q.opened] == [0, 9, 200]
    assert (q.len(), q.depth(), q.purge(DISK)) == (2, 2, 2)
    q.publish(b"", b"z", DISK, priority=7)
    q.check()
    rig.engine.sync()
    q.terminate()
    rig.restart()
    again = declare()
    assert isinstance(again, PriorityQueue)
    assert [part.number for part in again.opened] == [0, 7]
    assert again.len() == 1
    again.delete_and_terminate(DISK)
    assert declare().len() == 0


def test_a_part_that_is_made_late_has_what_was_said_to_the_whole() -> None:
    rig = EngineRig()
    q = open_backing(rig.engine, b"q", priorities=5)
    assert isinstance(q, PriorityQueue)
    q.set_limits(100_000, 1000)
    q.set_queue_mode("lazy")
    q.publish(b"", b"x" * 100, DISK, priority=4)
    q.check()
    part = q.parts[4].queue
    assert part.info()["mode"] == "lazy"
    assert 0 < part.state.target_bytes <= 100_000


def test_declaring_many_priorities_costs_little_memory() -> None:
    rig = EngineRig()
    open_backing(rig.engine, b"warm", priorities=255)
    cost = cost_of(lambda: open_backing(rig.engine, b"q", priorities=255))
    assert cost.bytes < 256 * 3000


def test_256_priorities_are_one_queue() -> None:
    box = PriorityBox(PARTS_MAX)
    order = [(i * 37) % 256 for i in range(256)]
    box.put(*[b"%d.x" % priority for priority in order])
    assert box.q.len() == 256
    assert box.drain() == [b"%d.x" % priority for priority in range(255, -1, -1)]


def test_a_tag_is_the_part_and_the_seq(box: PriorityBox) -> None:
    tags = box.put(b"0.a", b"3.a", b"3.b", b"1.a")
    assert tags == [0, 3 << PART_SHIFT, 3 << PART_SHIFT | 1, 1 << PART_SHIFT]
    assert tags_of(box.take(4)) == [tags[1], tags[2], tags[3], tags[0]]


def test_a_batch_is_sorted_by_priority_and_its_tags_are_in_its_own_order(box: PriorityBox) -> None:
    new = [NewMessage(b"", body, priority=int(body[:1])) for body in MIXED]
    tags = box.q.batch_publish(new, DISK)
    assert [tag >> PART_SHIFT for tag in tags] == [1, 3, 0, 2, 3, 1, 0, 2]
    box.rig.engine.sync()
    box.q.check()
    got = box.take(8)
    assert bodies(got) == SORTED
    assert dict(zip(tags_of(got), bodies(got), strict=True)) == dict(zip(tags, MIXED, strict=True))


def test_what_the_engine_brings_is_seen(box: PriorityBox) -> None:
    """A publish to several queues, a transaction, a move: none of them asks the queue."""
    rig = box.rig
    (other,) = rig.declare(b"other")
    rig.engine.publish([other, box.q.index(1)], b"", b"1.a", DISK)
    transaction = rig.engine.begin()
    transaction.publish([box.q.index(3)], b"", b"3.a")
    transaction.commit(DISK)
    rig.engine.move(other, rig.entries(other, 0)[0], [box.q.index(2)], b"", DISK)
    rig.engine.publish([box.q.index(0), box.q.index(3)], b"", b"twice", NONE)
    rig.engine.sync()
    box.q.check()
    assert box.drain() == [b"3.a", b"twice", b"1.a", b"1.a", b"twice"]


# ---- held --------------------------------------------------------------------------------------


def test_while_the_head_is_held_nothing_is_delivered(box: PriorityBox) -> None:
    box.put(b"0.a", b"2.a")
    rig = box.rig
    transaction = rig.engine.begin()
    transaction.publish([box.q.index(3)], b"", b"3.a")
    lsn = transaction.commit(DISK)
    box.q.hold(3 << PART_SHIFT | 0, lsn, DISK)
    assert box.q.held() == (lsn, DISK)
    assert box.q.fetch() is None
    assert box.q.len() == 3
    rig.engine.wait(lsn, DISK)
    assert box.q.held() is None
    assert box.drain() == [b"3.a", b"2.a", b"0.a"]


def test_what_is_held_below_the_head_holds_nothing_above_it(box: PriorityBox) -> None:
    box.put(b"2.a", b"2.b")
    transaction = box.rig.engine.begin()
    transaction.publish([box.q.index(1)], b"", b"1.a")
    lsn = transaction.commit(DISK)
    box.q.hold(1 << PART_SHIFT | 0, lsn, DISK)
    assert bodies(box.take(2)) == [b"2.a", b"2.b"]
    assert box.q.held() == (lsn, DISK)
    assert box.q.fetch() is None


# ---- dropping and folding ----------------------------------------------------------------------


@pytest.mark.parametrize("n", range(9))
def test_dropwhile_goes_through_all_priorities(box: PriorityBox, n: int) -> None:
    tags = dict(zip(MIXED, box.put(*MIXED), strict=True))
    asked: list[int] = []

    def is_dropped(head: ReadyHead) -> bool:
        asked.append(head.tag)
        return len(asked) <= n

    head = box.q.dropwhile(is_dropped, OS)
    box.q.check()
    assert asked == [tags[body] for body in SORTED[: n + 1]]
    assert (head.tag if head else None) == (tags[SORTED[n]] if n < 8 else None)
    assert box.drain() == SORTED[n:]


def test_drop_and_head_know_the_whole_tag(box: PriorityBox) -> None:
    tags = dict(zip(MIXED, box.put(*MIXED), strict=True))
    for body in SORTED[:4]:
        head = box.q.head()
        dropped = box.q.drop()
        assert head is not None
        assert dropped is not None
        assert head.tag == dropped.tag == tags[body]
        box.q.check()
    assert box.q.requeue([tags[body] for body in SORTED[:4]], OS, attempted=False)
    assert box.q.drop(ack_required=False) is not None
    assert box.drain() == SORTED[1:]


def test_pending_finds_the_message_of_a_tag(box: PriorityBox) -> None:
    box.put(*MIXED)
    tags = tags_of(box.take(8))
    mixed = [tags[i] for i in (7, 0, 4, 5, 1)]
    unknown = [9 << PART_SHIFT, 3 << PART_SHIFT | 77, -1]
    found = [box.q.pending(tag, with_body=True) for tag in mixed + unknown]
    given = [one for one in found if one is not None]
    assert [(one.tag, one.message.body) for one in given] == [
        (tags[i], SORTED[i]) for i in (7, 0, 4, 5, 1)
    ]
    assert box.q.depth() == 8


@pytest.mark.parametrize("stop_at", range(1, 9))
def test_fold_sees_ready_and_pending_in_order_until_it_is_cut_short(
    box: PriorityBox, stop_at: int
) -> None:
    tags = dict(zip(MIXED, box.put(*MIXED), strict=True))
    pending = {SORTED[0], SORTED[1], SORTED[2]}
    box.take(3)
    found: list[tuple[bytes, bool, int]] = []

    def look(delivery: Delivery, is_pending: bool, acc: int) -> tuple[bool, int]:
        found.append((delivery.message.body or b"", is_pending, delivery.tag))
        return len(found) < stop_at, acc + 1

    assert box.q.fold(look, 0) == stop_at
    assert found == [(b, b in pending, tags[b]) for b in SORTED[:stop_at]]


@pytest.mark.parametrize("n", [1, 2, 3, 100])
def test_browsing_in_pieces_sees_each_ready_message_once(box: PriorityBox, n: int) -> None:
    box.put(*MIXED)
    box.take(1)
    found: list[bytes] = []
    after: int | None = None
    while page := box.q.browse(after, n):
        assert len(page) <= n
        found += bodies(page)
        after = page[-1].tag
        if after >> PART_SHIFT < 3:
            box.put(b"3.late")  # it comes before what is looked at next, so it is not shown
    assert found == SORTED[1:]
    assert box.q.depth() > 8
