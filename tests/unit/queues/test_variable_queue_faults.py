"""What a VariableQueue does when files fail it: nothing is lost, nothing changes its place.

Writes of paging fail and leave messages in RAM; reads fail and are tried again; what is damaged is
set aside, and told."""

import errno
import random
from collections.abc import Callable
from contextlib import suppress

import pytest

from penstock.errors import DiskFullError
from penstock.message import LARGE_FROM
from penstock.queues import paging
from penstock.queues.backing_queue import UNLIMITED, Delivery, QueueStates
from penstock.queues.queue_ram import QueueRam
from penstock.queues.variable_queue import VariableQueue
from penstock.storage.files.durability import DISK, NONE, OS
from tests.helpers.engine_rig import STORED, EngineRig
from tests.helpers.queue_world import World, tags_of, up_to
from tests.helpers.variable_queues import info_int, lengths, opens, opens_parts, real

SLOTS = 16
MODES = (DISK, NONE)


def new_world(body_bytes: int = 0, read_bytes: int = 1 << 18) -> World:
    return World(EngineRig(segment_slots=SLOTS), opens(read_bytes=read_bytes), body_bytes)


def break_writes(world: World, times: int | None = None, nth: int = 1) -> None:
    """Writes to the segments of queues fail."""
    world.rig.fs.fail(errno.EIO, kinds=["pwrite"], path="/queues/", times=times, nth=nth)


# ---- Writes ---------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(60))
def test_requeue_where_nothing_can_be_written(seed: int) -> None:
    rng = random.Random(seed)
    world = new_world(body_bytes=rng.choice([0, STORED]), read_bytes=rng.choice([0, 1 << 18]))
    q = world.q
    for i in range(80):
        q.publish(b"h", world.body(i), rng.choice(MODES))
    got = world.take(50)
    q.set_limits(rng.choice([0, 3000, 9000]), 0)
    for _ in range(rng.randint(0, 4)):
        q.resume()
    some = rng.sample(got, 20)
    q.requeue(tags_of(some), OS)
    world.page()
    q.set_limits(UNLIMITED, UNLIMITED)
    got = [d for d in got if d not in some] + world.take(15)
    if rng.random() < 0.5:
        q.set_limits(rng.choice([0, 3000]), 0)
    break_writes(world, times=rng.choice([None, None, 1, 3]), nth=rng.choice([1, 1, 2]))
    while got:
        back = [got.pop(rng.randrange(len(got))) for _ in range(min(len(got), rng.randint(1, 9)))]
        q.requeue(tags_of(back), OS)
        assert q.len() == 80 - len(got)
    assert world.seen() == [(i, False) for i in range(80)]
    world.rig.fs.clear_faults()
    world.rig.clock.advance(2.0)
    world.page()
    assert world.drain() == list(range(80))


def spread(world: World, mode: int) -> QueueRam:
    """Something in q4, q3, delta and q1, and pending in RAM."""
    state = real(world.q).state
    world.put(*range(60), mode=mode)
    world.take(8)
    paging.push_q4(state, 44)
    paging.push_betas_to_deltas(state, 10)
    world.put(*range(60, 68), mode=mode)
    assert all((state.q4, state.q3.count, state.delta.count, state.q1, state.ram_pending))
    return state


def push_q1_eagerly(state: QueueRam, quota: int) -> int:
    """As a queue of the policy of 2011 does: gammas go on to delta."""
    return paging.push_q1(state, quota, goes_on=True)


PUSHES: list[Callable[[QueueRam, int], object]] = [
    paging.push_q1,
    paging.push_q4,
    paging.push_pending,
    paging.push_betas_to_deltas,
    push_q1_eagerly,
]


@pytest.mark.parametrize("push", PUSHES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_step_that_fails_leaves_everything_in_order(
    push: Callable[[QueueRam, int], object], mode: int, nth: int
) -> None:
    world = new_world(body_bytes=20)
    state = spread(world, mode)
    pending = dict(state.ram_pending)
    before = (lengths(world), world.q.ram_bytes())
    break_writes(world, nth=nth)
    needs_none = push is paging.push_betas_to_deltas and mode == DISK
    try:
        push(state, 40)
        assert needs_none or nth > 1
    except OSError:
        assert not needs_none
        assert sum(lengths(world)) == 60
        assert state.ram_pending == pending
        if push is not paging.push_betas_to_deltas:
            assert (lengths(world), world.q.ram_bytes()) == before
    state.check()
    assert world.seen() == [(i, i < 8) for i in range(68)]
    world.rig.fs.clear_faults()
    push(state, 40)
    state.check()
    assert world.drain() == list(range(8, 68))


@pytest.mark.parametrize("where", ["before delta", "after delta"])
def test_rows_of_both_modes_that_cannot_be_rolled_stay_in_order(where: str) -> None:
    """Persistent ones would need no write, transient ones between them do."""
    world = new_world(body_bytes=20)
    state = real(world.q).state
    modes = [MODES[i % 2] if (i < 60) == (where == "before delta") else DISK for i in range(70)]
    for i in range(60):
        world.put(i, mode=modes[i])
    paging.push_q4(state, 44)
    paging.push_betas_to_deltas(state, 10)
    for i in range(60, 70):
        world.put(i, mode=modes[i])
    paging.push_q1(state, 8)
    assert all((state.q4, state.q3.count, state.delta.count, state.q2.count, state.q1))
    break_writes(world)
    with pytest.raises(OSError, match="Input"):
        paging.push_betas_to_deltas(state, 18 + 5)  # of q3 behind its segment, and of q2
    state.check()
    world.rig.fs.clear_faults()
    world.put(70)
    assert world.drain() == list(range(71))


def test_a_failed_page_out_is_tried_again_after_a_second() -> None:
    world = new_world()
    world.put(*range(30))
    break_writes(world, times=1)
    world.q.set_limits(0, 0)
    assert world.rig.told("page_out_failed")
    assert not world.q.resume(), "not at once"
    assert lengths(world)[0] == 30
    world.rig.clock.advance(1.1)
    world.page()
    assert lengths(world)[0] == 0
    assert world.drain() == list(range(30))


# ---- Reads ----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("body_bytes", [20, STORED])
@pytest.mark.parametrize("effect", [errno.EIO, "short", "flip"])
def test_a_read_that_fails_once(mode: int, body_bytes: int, effect: int | str) -> None:
    world = new_world(body_bytes=body_bytes)
    world.put(*range(50), mode=mode)
    world.q.set_limits(0, 0)
    world.page()
    got: list[int] = []
    failures = 0
    for i in range(50):
        if i % 7 == 3:
            world.rig.fs.fail(effect, kinds=["read"], times=1)
        try:
            delivery = world.q.fetch(ack_required=False)
        except OSError:
            failures += 1
            delivery = world.q.fetch(ack_required=False)
        world.rig.fs.clear_faults()
        if delivery is not None:
            got += world.numbers([delivery])
    got += world.drain()
    assert got == sorted(got)
    if effect == errno.EIO:
        assert got == list(range(50))
        assert failures
    lost = 50 - len(got)
    assert len(world.rig.told("corruption")) == lost, "what is not delivered is told"


@pytest.mark.parametrize("nth", range(1, 7))
def test_a_run_that_cannot_go_on_in_delta_is_delivered(nth: int) -> None:
    """What was read of it before."""
    world = new_world(body_bytes=20)
    world.put(*range(60))
    world.restart()
    world.q.set_limits(0, 0)
    world.page()
    world.take(1)
    world.q.set_limits(30_000, 0)
    state = real(world.q).state
    world.rig.fs.fail(errno.EIO, kinds=["read"], nth=nth, times=1)
    with suppress(OSError):
        world.take(30)
    assert state.read_error is not None or state.q3.count or not state.delta.count
    world.put(60)
    state.check()
    world.rig.fs.clear_faults()
    rest = world.drain()
    assert rest == list(range(61 - len(rest), 61))


@pytest.mark.parametrize("way", ["ack", "requeue", "move", "entries", "pending", "purge_acks"])
@pytest.mark.parametrize("nth", [1, 3])
def test_pending_messages_that_cannot_be_read_stay_pending(way: str, nth: int) -> None:
    world = new_world(body_bytes=STORED)
    world.put(*range(40))
    world.restart()
    # As rows of slots that say where the entry is, which says where in the store the body is.
    heads = [world.q.drop() for _ in range(40)]
    tags = [head.tag for head in heads if head is not None]
    assert len(tags) == 40
    other = world.open(b"other").index()
    calls: dict[str, Callable[[], object]] = {
        "ack": lambda: world.q.ack(tags, OS),
        "requeue": lambda: world.q.requeue(tags, OS),
        "move": lambda: [world.q.move(tag, [other], b"", OS) for tag in tags],
        "entries": lambda: world.q.entries(tags),
        "pending": lambda: [world.q.pending(tag, with_body=True) for tag in tags],
        "purge_acks": lambda: world.q.purge_acks(OS),
    }
    world.rig.fs.fail(errno.EIO, kinds=["read"], nth=nth, times=None)
    try:
        calls[way]()
        assert way == "requeue", "rows are moved as they are"
    except OSError:
        assert world.q.depth() + world.queues[b"other"].depth() == 40
    world.rig.fs.clear_faults()
    real(world.q).state.check()
    world.q.requeue(tags, OS)
    assert world.q.len() + world.queues[b"other"].len() == 40
    here = world.take(world.q.len())
    assert [d.message.header for d in here] == [b"h%d" % i for i in world.numbers(here)]
    numbers = world.numbers(here) + world.drain(world.queues[b"other"])
    assert sorted(numbers) == list(range(40))


def around_pending(mode: int, n: int = 60) -> World:
    """The odd ones of the first 30 of n are pending in RAM, the others in q3, up to 14, and in
    delta."""
    world = new_world(body_bytes=20)
    world.put(*range(n), mode=mode)
    world.q.requeue(tags_of(world.take(30))[::2], OS)
    state = real(world.q).state
    paging.push_q4(state, 60)
    state.join_rows()
    paging.push_betas_to_deltas(state, 60)
    assert (state.q3.last_seq(), state.delta.start, state.delta.end) == (14, 16, n)
    return world


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("times", [1, 2, None])
@pytest.mark.parametrize("broken", [".qi", ".qs", "/queues/"])
def test_requeue_where_nothing_can_be_written_nor_read(
    mode: int, times: int | None, broken: str
) -> None:
    """What belongs among messages that cannot be read now is ready, and later in order."""
    world = around_pending(mode)
    state = real(world.q).state
    world.rig.fs.fail(errno.EIO, kinds=["pwrite"], path=broken, times=None)
    world.rig.fs.fail(errno.EIO, kinds=["read"], path="/queues/", times=times)
    assert len(world.q.requeue([17, 19, 25], OS)) == 3
    assert len(world.q.requeue([15, 27], OS)) == 2
    state.check()
    assert (world.q.len(), world.q.depth()) == (50, 60)
    assert not world.q.resume(), "what is in RAM does not go before what cannot be read"
    world.rig.fs.clear_faults()
    world.rig.clock.advance(2.0)
    world.q.requeue(list(range(30)), OS)
    assert world.drain() == list(range(60))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("broken", [".qi", ".qs"])
def test_a_lazy_queue_that_cannot_write_what_returns_is_lazy_again_later(
    mode: int, broken: str
) -> None:
    world = new_world(body_bytes=20)
    world.put(*range(60), mode=mode)
    got = tags_of(world.take(30))
    world.q.set_queue_mode("lazy")
    world.page()
    world.rig.fs.fail(errno.EIO, kinds=["pwrite"], path=broken, times=None)
    world.q.requeue(got[10:20], OS)
    world.q.requeue(got[:5], OS)
    world.rig.fs.clear_faults()
    world.rig.clock.advance(2.0)
    world.page()
    assert world.q.info()["mode"] == "lazy"
    assert info_int(world.q, "alphas") == 0
    world.q.requeue(got, OS)
    assert world.drain() == list(range(60))


@pytest.mark.parametrize("broken", [".qi", ".qs"])
def test_bytes_are_right_after_a_requeue_that_finds_damage_in_the_last_of_delta(
    broken: str,
) -> None:
    world = around_pending(NONE, 32)
    state = real(world.q).state
    before = world.q.body_bytes()
    world.rig.fs.damage_flip(f"{world.q.index().path}/1.qi", 64 + 4 * 32 + 8, 1)
    world.rig.fs.fail(errno.EIO, kinds=["pwrite"], path=broken, times=None)
    world.q.requeue([17, 19, 25], OS)
    assert (state.delta.count, list(state.set_aside)) == (0, [20])
    assert world.q.body_bytes() == before + 2 * 20
    state.check()


def test_messages_that_cannot_be_read_are_waited_for_no_longer_than_they_live() -> None:
    world = around_pending(NONE)
    world.rig.fs.fail(errno.EIO, times=None)
    world.rig.fs.fail(errno.EIO, kinds=["read"], path="/queues/", times=None)
    world.q.requeue([17, 19, 25], OS)
    assert world.q.purge(OS) == 48
    world.put(60)
    assert world.drain() == [60]
    world.rig.fs.clear_faults()
    world.q.requeue(list(range(30)), OS)
    assert world.drain() == [n for n in range(1, 30, 2) if n not in (17, 19, 25)]


@pytest.mark.parametrize("again", [".qi", ".qs", "neither"])
def test_two_requeues_of_which_the_first_cannot_be_rolled(again: str) -> None:
    """The second one belongs after it, before messages that have not been fetched yet."""
    world = new_world(body_bytes=20)
    world.put(*range(40), mode=NONE)
    got = tags_of(world.take(40))
    world.q.requeue([*got[:20], got[30]], OS)
    state = real(world.q).state
    paging.push_q4(state, 60)
    paging.push_betas_to_deltas(state, 60)
    world.put(*range(40, 50), mode=NONE)
    paging.push_q1(state, 60)
    assert (state.delta.end, state.q2.first_seq()) == (31, 40)
    world.rig.fs.fail(errno.EIO, kinds=["pwrite"], path=".qi", times=None)
    world.q.requeue(got[33:35], OS)
    world.rig.fs.clear_faults()
    assert state.q2.first_seq() == 33
    world.rig.fs.fail(errno.EIO, kinds=["pwrite"], path=again, times=None)
    world.q.requeue(got[35:37], OS)
    world.rig.fs.clear_faults()
    state.check()
    world.q.requeue(got, OS)
    assert world.drain() == list(range(50))


@pytest.mark.parametrize("mode", MODES)
def test_what_a_transaction_has_acknowledged_is_gone_though_it_cannot_be_read(mode: int) -> None:
    world = new_world(body_bytes=20)
    world.put(*range(60), mode=mode)
    tags = tags_of(world.take(60))
    state = real(world.q).state
    paging.push_pending(state, 60)
    paging.roll_pending(state, 0)
    tx = world.rig.engine.begin()
    for index, entries in world.q.entries(tags[:30]):
        tx.dequeue(index, entries)
    tx.commit(OS)
    assert world.q.pending(tags[59]) is not None, "its row has taken the place of theirs"
    world.rig.fs.fail(errno.EIO, kinds=["read"], times=None)
    world.q.forget(tags[:30])
    world.rig.fs.clear_faults()
    state.check()
    assert (world.q.len(), world.q.depth()) == (0, 30)
    world.q.requeue(tags, OS)
    assert world.drain() == list(range(30, 60))
    assert state.unacked_bytes == 0
    assert not any(world.q.index().transients.values())


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_heads_that_were_dropped_before_one_that_cannot_be_read_come_back(nth: int) -> None:
    world = new_world(body_bytes=20)
    world.put(*range(60))
    world.restart()
    world.rig.fs.fail(errno.EIO, kinds=["read"], path=".qi", nth=nth, times=None)
    with pytest.raises(OSError, match="Input"):
        world.q.dropwhile(up_to(60), OS)
    assert (world.q.len(), world.q.depth()) == (60, 60)
    world.rig.fs.clear_faults()
    assert world.drain() == list(range(60))


def test_states_are_counted_though_the_head_cannot_be_read() -> None:
    world = new_world(body_bytes=20, read_bytes=0)
    world.put(*range(60))
    world.restart()
    world.rig.fs.fail(errno.EIO, kinds=["read"], path="/1.qi", times=None)
    world.take(SLOTS)
    with pytest.raises(OSError, match="Input"):
        world.q.head()
    states = QueueStates()
    world.q.add_states(states)
    assert (states.deltas, states.unacked, states.oldest_s) == (60 - SLOTS, SLOTS, 0)


def test_a_long_header_that_cannot_be_read_with_the_rest_is_read_by_a_fetch() -> None:
    world = new_world(body_bytes=20)
    for i in range(20):
        world.q.publish(b"h" * 300, world.body(i), OS)
    world.settle()
    world.restart()
    world.q.set_limits(0, 0)
    world.q.set_limits(UNLIMITED, UNLIMITED)
    assert world.q.inhale()
    world.rig.fs.fail(errno.EIO, kinds=["read"], path=".qs", nth=2, times=None)
    world.rig.engine.poll(wait=True)
    world.q.inhale()
    with pytest.raises(OSError, match="Input"):
        world.drain()
    real(world.q).state.check()
    world.rig.fs.clear_faults()
    got = [world.fetch() for _ in range(world.q.len())]
    assert all(one.message.header == b"h" * 300 for one in got)
    assert world.numbers(got) == list(range(20 - len(got), 20))


# ---- Damage ---------------------------------------------------------------------------


@pytest.mark.parametrize("nth", range(1, 16, 3))
def test_a_read_that_fails_after_a_damaged_slot_changes_nothing(nth: int) -> None:
    world = new_world(body_bytes=20)
    world.put(*range(60))
    world.restart()
    world.q.set_limits(0, 0)
    state = real(world.q).state
    index = world.q.index()
    world.rig.fs.damage_flip(f"{index.path}/1.qi", 64 + 4 * 32 + 8, 1)
    world.rig.fs.fail(errno.EIO, kinds=["read"], path="/1.qi", nth=nth)
    with suppress(OSError):
        world.take(59)
    state.check()
    world.rig.fs.clear_faults()
    world.q.requeue(list(range(60)), OS)
    assert world.drain() == [n for n in range(60) if n != SLOTS + 4]


def damaged(world: World) -> int:
    """One message on disk is damaged; its number."""
    index = world.q.index()
    path = f"{index.path}/1.qs"
    world.rig.fs.damage_flip(path, world.rig.fs.size(path) // 2, 2)
    for seq in range(SLOTS, 2 * SLOTS):
        try:
            index.read([seq])
        except Exception:  # it is the one
            return seq
    raise AssertionError("nothing is damaged")


def test_looking_passes_over_what_is_damaged() -> None:
    world = new_world(body_bytes=20)
    world.put(*range(60))
    world.restart()
    world.q.set_limits(0, 0)
    bad = damaged(world)
    good = [i for i in range(60) if i != bad]
    assert [number for number, _ in world.seen()] == good
    seen: list[Delivery] = []
    while piece := world.q.browse(seen[-1].tag if seen else None, 7):
        seen += piece
    assert world.numbers(seen) == good
    got = [world.fetch(ack_required=False) for _ in range(59)]
    assert world.numbers(got) == good
    assert world.q.fetch() is None
    assert len(world.rig.told("corruption")) == 1


def test_a_damaged_message_can_be_purged() -> None:
    world = new_world(body_bytes=20)
    world.put(*range(60))
    world.restart()
    world.q.set_limits(0, 0)
    damaged(world)
    world.take(40)
    assert world.q.purge(OS) == 19
    assert world.q.depth() == 40
    world.q.purge_acks(OS)
    assert world.q.depth() == 0
    world.put(60)
    assert world.drain() == [60]


def test_a_place_in_the_store_that_is_read_wrongly_once_is_found() -> None:
    """Else the body would stay in the store for good, which `verify` reports."""
    world = new_world(body_bytes=STORED)
    world.put(*range(20))
    world.restart()
    world.rig.fs.fail("flip", kinds=["read"], path=".qs", times=1)
    while world.q.drop(ack_required=False) is not None:
        world.settle()
    world.restart()
    assert world.q.depth() == 0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize("way", ["pending", "pending_headers", "move", "fetch", "browse", "take"])
def test_what_is_read_wrongly_once_is_read_again(way: str, nth: int, mode: int) -> None:
    world = new_world(body_bytes=STORED)
    other = world.open(b"other").index()
    for i in range(8):
        world.rig.engine.publish([world.q.index(), other], b"h", world.body(i), mode)
    world.settle()
    state = real(world.q).state
    tags: list[int] = []
    if way in ("pending", "pending_headers", "move"):
        tags = tags_of(world.take(8))
        paging.push_pending(state, 8)
    elif mode == DISK:
        paging.push_q4(state, 8)
    world.rig.fs.fail("flip", kinds=["read"], nth=nth, times=1)
    calls: dict[str, Callable[[], object]] = {
        "pending": lambda: [world.q.pending(tag, with_body=True) for tag in tags],
        "pending_headers": lambda: world.q.pending_headers(tags),
        "move": lambda: [world.q.move(tag, [world.q.index()], b"h", OS) for tag in tags],
        "fetch": lambda: world.take(8),
        "browse": lambda: world.q.browse(None, 8),
        "take": lambda: world.q.untake(world.q.take(8, 1 << 20, 0)),
    }
    calls[way]()
    world.rig.fs.clear_faults()
    assert world.rig.told("corruption") == []
    assert world.q.depth() == 8
    world.q.requeue(list(range(8)), OS)
    assert world.drain() == list(range(8))


def test_dropping_what_is_damaged_goes_on() -> None:
    world = new_world(body_bytes=STORED)
    world.put(*range(60))
    world.restart()
    world.q.set_limits(0, 0)
    damaged(world)
    dropped = 0
    while world.q.drop(ack_required=False) is not None:
        dropped += 1
    assert dropped == 60, "no body is needed for that"
    assert world.q.depth() == 0


# ---- Taking over ----------------------------------------------------------------------


def test_what_was_published_before_anybody_owned_the_queue() -> None:
    rig = EngineRig(segment_slots=SLOTS)
    index = rig.queue()
    for i in range(40):
        rig.engine.publish([index], b"", b"%d" % i, OS)
    rig.engine.sync()
    rig.engine.dequeue(index, rig.entries(index, 0, 7), OS)
    vq = VariableQueue(rig.engine, index)
    rig.engine.sync()
    assert vq.len() == 38
    bodies = [d.message.body for d in (vq.fetch() for _ in range(38)) if d is not None]
    assert bodies == [b"%d" % i for i in range(40) if i not in (0, 7)]


@pytest.mark.parametrize("limit", [0, 3000, UNLIMITED])
def test_the_engine_finds_every_entry(limit: int) -> None:
    world = new_world(body_bytes=20)
    tags = world.put(*range(60))
    world.take(10)
    world.q.set_limits(limit, 0)
    world.page()
    index = world.q.index()
    for i, seq in enumerate(tags):
        assert world.rig.engine.entry(index, seq).message.body == world.body(i)
    real(world.q).state.check()
    assert world.drain() == list(range(10, 60))


def test_an_unknown_policy_is_refused() -> None:
    rig = EngineRig()
    with pytest.raises(ValueError, match="policy"):
        VariableQueue(rig.engine, rig.queue(), policy="random")


# ---- A full disk ----------------------------------------------------------------------


@pytest.mark.parametrize("limit", [0, UNLIMITED])
@pytest.mark.parametrize("has_parts", [False, True], ids=["plain", "parts"])
@pytest.mark.parametrize("way", ["ack", "requeue", "fetch", "drop", "dropwhile", "purge_acks"])
def test_when_the_log_is_full_nothing_has_happened(way: str, limit: int, has_parts: bool) -> None:
    rig = EngineRig(segment_slots=SLOTS)
    world = World(rig, opens_parts() if has_parts else opens(read_bytes=1 << 18))
    for i in range(1200):
        world.q.publish(b"", world.body(i), OS if i % 4 else NONE, priority=i // 400)
    world.settle()
    got = world.take(600)
    world.q.set_limits(limit, 0)
    world.page()
    world.settle()
    tags = tags_of(got)
    refused = 0
    world.rig.fs.capacity = world.rig.fs.used_bytes()

    def step(i: int) -> None:
        one = [tags[i]]
        if way == "ack":
            world.q.ack(one, OS)
        elif way == "requeue":
            world.q.requeue(one, OS)
        elif way == "fetch":
            world.q.fetch(ack_required=False)
        elif way == "drop":
            world.q.drop(ack_required=False)
        elif way == "dropwhile":
            world.q.dropwhile(up_to(1), OS)
        else:
            world.q.purge_acks(OS)

    for i in range(600):
        i = i * 7 % 600  # of several parts by turns
        before = (world.q.len(), world.q.depth())
        try:
            step(i)
        except DiskFullError:
            refused += 1
            if way != "purge_acks" or not has_parts:  # a record for each part
                assert (world.q.len(), world.q.depth()) == before
            if refused > 3:
                break
        world.rig.engine.flush()
    world.rig.fs.capacity = None
    world.rig.clock.advance(2.0)
    world.rig.engine.tick()
    world.settle()
    live = sum(index.count for index in {world.q.index(priority) for priority in range(3)})
    world.q.requeue(tags, OS)
    numbers = world.drain()
    if not has_parts:
        assert numbers == sorted(numbers)
    assert len(numbers) == len(set(numbers))
    assert sum(1 for number in numbers if number % 4) == live, "all that lives is delivered"
    assert way == "purge_acks" or refused, "the log was full at last"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", ["lazy", "zero", "small"])
def test_a_move_to_its_own_end_while_delta_is_read(way: str, mode: int) -> None:
    world = new_world()
    world.put(*range(80), mode=mode)
    got = world.take(30)
    world.q.set_limits({"lazy": UNLIMITED, "zero": 0, "small": 3000}[way], 0)
    if way == "lazy":
        world.q.set_queue_mode("lazy")
    world.page()
    world.q.requeue(tags_of(got)[::2], OS)
    state = real(world.q).state
    paging.push_q4(state, 80)
    state.join_rows()
    paging.push_betas_to_deltas(state, 80)
    assert state.delta.start <= 16 < 28 < state.delta.end, "it is around those that are pending"
    for tag in tags_of(got)[1::2]:
        world.q.move(tag, [world.q.index()], b"", OS)
        world.page()
    assert (world.q.len(), world.q.depth()) == (80, 80)
    assert world.drain() == [*range(0, 30, 2), *range(30, 80), *range(1, 30, 2)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("is_durable", [False, True])
def test_a_move_to_two_queues_while_the_disk_is_full(mode: int, is_durable: bool) -> None:
    """The log has room for its record, the transient store has none for the body."""
    world = new_world(body_bytes=STORED)
    world.put(0, mode=mode)
    world.take(1)
    targets = [
        world.open(name, is_durable=is_durable and name == b"a").index()
        for name in (b"a", b"b", b"c")
    ]
    world.rig.fs.fail(errno.ENOSPC, kinds=["pwrite"], path="transient", times=None)
    world.q.move(0, targets, b"", OS)
    world.rig.fs.clear_faults()
    assert world.q.depth() == 0
    for name in (b"a", b"b", b"c"):
        assert world.drain(world.queues[name]) == [0]
    for queue in world.queues.values():
        real(queue).state.check()


@pytest.mark.parametrize("is_durable", [False, True])
def test_a_large_body_that_cannot_be_copied_for_a_transient_queue_is_not_moved(
    is_durable: bool,
) -> None:
    world = new_world(body_bytes=LARGE_FROM)
    world.put(0)
    world.restart()
    world.take(1)
    targets = [world.open(b"a", is_durable=is_durable).index()]
    targets.append(world.open(b"b", is_durable=False).index())
    world.rig.fs.fail(errno.ENOSPC, kinds=["pwrite"], path="transient", times=None)
    with pytest.raises(DiskFullError):
        world.q.move(0, targets, b"", OS)
    assert [queue.depth() for queue in world.queues.values()] == [1, 0, 0]
    world.rig.fs.clear_faults()
    world.rig.clock.advance(2.0)
    world.rig.engine.tick()
    world.q.move(0, targets, b"", OS)
    assert world.drain(world.queues[b"a"]) == world.drain(world.queues[b"b"]) == [0]


@pytest.mark.parametrize("limit", [0, UNLIMITED])
@pytest.mark.parametrize("way", ["fetch", "fetch without ack", "drop"])
def test_a_mark_that_cannot_be_reserved(way: str, limit: int) -> None:
    world = new_world()
    world.put(*range(900))
    world.take(505)  # the next block is reserved a few deliveries from here
    world.q.set_limits(limit, 0)
    world.page()
    world.settle()
    world.rig.fs.capacity = world.rig.fs.used_bytes()
    index = world.q.index()
    with suppress(DiskFullError):
        for _ in range(1000):
            world.rig.engine.mark(index, 0, OS)  # as long as the record that there is no room for
            world.rig.engine.flush()
    calls: dict[str, Callable[[], object]] = {
        "fetch": lambda: world.q.fetch(),
        "fetch without ack": lambda: world.q.fetch(ack_required=False),
        "drop": lambda: world.q.drop(),
    }
    refused = 0
    for _ in range(20):
        before = (world.q.len(), world.q.depth())
        try:
            calls[way]()
        except DiskFullError:
            refused += 1
            assert (world.q.len(), world.q.depth()) == before
    assert refused, "the log had no room for the mark"
    world.rig.fs.capacity = None
    world.rig.clock.advance(2.0)
    world.rig.engine.tick()
    world.settle()
    live = world.q.index().count
    pending = [tag for tag in range(900) if world.q.pending(tag) is not None]
    world.q.requeue(pending, OS)
    assert len(world.drain()) == live


def test_after_a_mark_that_could_not_be_logged_what_is_delivered_is_redelivered() -> None:
    """Also after a crash."""
    world = new_world()
    world.put(*range(900))
    world.take(505)
    world.settle()
    world.rig.fs.capacity = world.rig.fs.used_bytes()
    index = world.q.index()
    with suppress(DiskFullError):
        for _ in range(1000):
            world.rig.engine.mark(index, 0, OS)
            world.rig.engine.flush()
    with pytest.raises(DiskFullError):
        world.take(100)
    world.rig.fs.capacity = None
    world.rig.clock.advance(2.0)
    world.rig.engine.tick()
    world.take(world.q.len())
    world.settle()
    world.put(*range(900, 1200))
    delivered = tags_of(world.take(200))
    world.settle()
    world.crash()
    again = {d.tag: d.is_redelivered for d in world.take(world.q.len())}
    assert all(again[tag] for tag in delivered)
