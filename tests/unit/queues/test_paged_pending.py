"""Unacknowledged messages that were paged out: their rows stay within the limit, and what is needed
of them again is read by segments.

Bytes and reads are counted. A message's row takes 32 bytes, so the rows of `N` pending messages
alone would exceed `MAX_BYTES` eight times.
"""

import errno
import tracemalloc
from collections.abc import Iterator
from typing import Final

import pytest

from penstock.queues import paging
from penstock.queues.backing_queue import UNLIMITED
from penstock.queues.queue_ram import ALPHA_BYTES, CHECKS
from penstock.queues.rows import ON_SLOT, PERSISTENT, ROW_BYTES, PagedPending, Row
from penstock.storage.files.durability import NONE, OS
from tests.helpers.engine_rig import STORED, EngineRig
from tests.helpers.queue_world import World, tags_of
from tests.helpers.variable_queues import info_int, opens, real

N: Final = 8_000
SMALL: Final = 3_000  # for tests of what comes out
MAX_BYTES: Final = 32 << 10
SLOTS: Final = 256
SLACK_BYTES: Final = 2048  # a publish or a fetch may exceed the limit by its own message


@pytest.fixture(autouse=True)
def _without_checks() -> Iterator[None]:
    """They walk the whole queue after each call."""
    was_on, CHECKS.is_on = CHECKS.is_on, False
    yield
    CHECKS.is_on = was_on


class Held(World):
    """A queue of n messages with a small limit. most: the bytes counted in RAM at any time."""

    def __init__(
        self, n: int = N, mode: int = OS, *, body_bytes: int = 0, header: bytes = b"",
        policy: str = "eager", max_bytes: int = MAX_BYTES,
    ) -> None:  # fmt: skip
        rig = EngineRig(
            segment_slots=SLOTS, wal_segment_bytes_min=1 << 20, wal_segment_bytes_max=1 << 20
        )
        super().__init__(rig, opens(policy=policy, read_bytes=1 << 18), body_bytes=body_bytes)
        self.most = 0
        self.q.set_limits(max_bytes, max_bytes // 2)
        for i in range(n):
            self.q.publish(header, self.body(i), mode)
            self.look()
        self.page()

    def look(self) -> None:
        self.most = max(self.most, self.q.ram_bytes())

    def hold(self, n: int, *, a_turn: int = 1024) -> list[int]:
        """Take n messages, so many in each turn. Return their tags."""
        tags: list[int] = []
        for i in range(n):
            if i % a_turn == 0:
                self.rig.engine.flush()
            tags.append(self.fetch().tag)
            self.look()
        return tags

    def reads(self) -> int:
        return info_int(self.q, "disk_reads")


def paged(world: World) -> PagedPending:
    return real(world.q).state.disk_pending


@pytest.mark.large
@pytest.mark.parametrize("mode", [OS, NONE])
def test_many_unacked_messages_take_no_more_than_the_limit(mode: int) -> None:
    world = Held(mode=mode)
    before = world.reads()
    world.hold(N)
    assert world.most <= MAX_BYTES + SLACK_BYTES
    assert info_int(world.q, "paged_pending") > N - 300
    held = world.reads() - before
    assert paged(world).ram_bytes <= MAX_BYTES // 4

    world = Held(mode=mode)
    before = world.reads()
    for _ in range(N):
        world.q.ack([world.fetch().tag], OS)
    assert held <= 1.1 * (world.reads() - before), "as many as of a consumer that acks at once"


@pytest.mark.large
def test_a_turn_that_takes_more_than_it_may_page_out_reads_runs() -> None:
    world = Held()
    before = world.reads()
    world.hold(N)
    usual = world.reads() - before

    world = Held()
    before = world.reads()
    world.hold(N, a_turn=N)
    assert world.reads() - before <= 1.25 * usual
    assert world.most <= MAX_BYTES + SLACK_BYTES


@pytest.mark.parametrize("mode", [OS, NONE])
def test_a_run_of_messages_that_nobody_acknowledges_takes_two_reads(mode: int) -> None:
    """One of the slots, which is for the rows before delta, too, and one of the bodies."""
    world = Held(mode=mode, max_bytes=128 << 10)
    on_disk = info_int(world.q, "delta") + info_int(world.q, "q3")
    run = (128 << 10) // 4 // (ALPHA_BYTES + len(world.body(N)))
    before = world.rig.fs.reads
    world.hold(N)
    assert world.rig.fs.reads - before <= 2 * (on_disk // run + 2 * on_disk // SLOTS)


def test_a_run_of_messages_that_were_in_ram_reads_nothing_in_vain() -> None:
    """Of those that were read back and paged out again only the slots know where the entries are:
    slots and bodies of them, and slots and bodies of what follows."""
    world = World(EngineRig(segment_slots=SLOTS), opens(read_bytes=1 << 18))
    world.put(*range(200), mode=OS)
    world.restart()
    state = real(world.q).state
    world.q.set_limits(0, 0)
    world.page()
    world.q.set_limits(64 << 10, 0)
    world.take(1)
    paging.push_q4(state, 20)
    world.take(len(state.q4))
    before = world.rig.fs.reads
    assert world.numbers(world.take(1)) == [200 - state.len - 1]
    assert world.rig.fs.reads - before == 4


def test_runs_of_transient_messages_in_the_store_take_no_more_reads() -> None:
    reads: list[int] = []
    for mode in (OS, NONE):
        world = World(EngineRig(segment_slots=SLOTS), opens(read_bytes=1 << 18), body_bytes=STORED)
        world.put(*range(200), mode=mode)
        world.q.set_limits(0, 0)
        world.page()
        world.q.set_limits(64 << 10, 0)
        before = world.rig.fs.reads
        assert world.drain() == list(range(200))
        reads.append(world.rig.fs.reads - before)
    assert reads[1] <= reads[0], "persistent ones are read from one store, transient from another"


@pytest.mark.parametrize("order", ["ascending", "descending", "in disorder"])
def test_acks_one_by_one_read_by_segments(order: str) -> None:
    world = Held()
    tags = world.hold(N)
    if order == "descending":
        tags.reverse()
    if order == "in disorder":
        tags = [tag for at in range(0, N, 64) for tag in reversed(tags[at : at + 64])]
    before = world.reads()
    for tag in tags:
        assert len(world.q.ack([tag], OS)) == 1
        world.look()
    assert world.q.depth() == 0
    assert world.most <= MAX_BYTES + SLACK_BYTES
    assert world.reads() - before <= 3 * (N // SLOTS)
    world.inhale()
    assert world.q.ram_bytes() == 0


def test_acks_at_random_read_little_each() -> None:
    """A slot is 32 bytes."""
    world = Held()
    tags = world.hold(N)
    for tag in tags[::257]:
        reads = world.reads()
        rows = paged(world).near.count
        world.q.ack([tag], OS)
        assert world.reads() - reads <= 1
        assert paged(world).window.count <= 16
        assert paged(world).near.count >= rows - 1, "what was near is near"
    real(world.q).state.check()


def test_many_messages_far_apart_are_settled_without_their_neighbours() -> None:
    """One connection of many that share a queue: each tag lies in a block of its own."""
    world = Held()
    tags = world.hold(N)
    some = [tag for tag in tags[:: N // 256] if paged(world).is_far(tag)]
    assert len(some) > 100
    far, reads = paged(world).far_count, world.reads()
    world.q.requeue(some, OS, attempted=False)
    assert far - paged(world).far_count <= len(some), "no neighbour was brought"
    assert world.reads() - reads <= 3 * (N // SLOTS)
    assert paged(world).window.count == 0
    real(world.q).state.check()


@pytest.mark.parametrize("call", ["ack", "requeue", "forget"])
def test_tags_that_come_twice_count_once(call: str) -> None:
    world = Held(SMALL)
    tags = world.hold(SMALL)
    some = [tag for tag in tags if paged(world).is_far(tag)][:40]
    count, unacked = paged(world).count, info_int(world.q, "unacked_bytes")
    if call == "forget":
        real(world.q).forget(some * 2)
    else:
        getattr(world.q, call)(some * 2, OS)
    assert paged(world).count == count - len(some)
    assert info_int(world.q, "unacked_bytes") < unacked
    real(world.q).state.check()


def test_acks_of_stored_bodies_with_headers_read_by_segments() -> None:
    """Where in the store a body is stands beside the header, and not in the slot."""
    world = Held(SMALL, body_bytes=STORED, header=b"header")
    tags = world.hold(SMALL)
    world.settle()
    assert paged(world).far_count > SMALL // 2
    before = world.rig.fs.reads
    for tag in tags:
        world.q.ack([tag], OS)
    assert world.rig.fs.reads - before <= 8 * (SMALL // SLOTS)
    assert world.q.depth() == 0


@pytest.mark.large
@pytest.mark.parametrize("policy", ["eager", "ratio", "even"])
@pytest.mark.parametrize(("some", "step"), [(N, 1), (256, 1), (256, -1), (1, 1), (1, -1)])
def test_a_mass_requeue_stays_within_the_limit_and_in_order(
    policy: str, some: int, step: int
) -> None:
    world = Held(policy=policy)
    tags = world.hold(N)[::step]
    before = world.reads()
    for at in range(0, N, some):
        world.q.requeue(tags[at : at + some], OS, attempted=False)
        world.look()
    assert world.reads() - before <= 12 * (N // SLOTS)
    assert world.most <= MAX_BYTES + SLACK_BYTES
    real(world.q).state.check()
    got = [world.fetch() for _ in range(N)]
    assert world.numbers(got) == list(range(N))
    assert all(delivery.is_redelivered for delivery in got)


@pytest.mark.parametrize("mode", [OS, NONE])
def test_what_is_requeued_among_ready_messages_takes_its_place(mode: int) -> None:
    world = Held(SMALL, mode)
    tags = world.hold(SMALL // 2)
    back = tags[::3]
    world.q.requeue(back, OS)
    world.look()
    assert world.most <= MAX_BYTES + SLACK_BYTES
    real(world.q).state.check()
    kept = sorted(set(tags) - set(back))
    seen = world.seen()
    assert [i for i, is_pending in seen if is_pending] == [i for i in range(SMALL // 2) if i % 3]
    got = [world.fetch() for _ in range(len(back))]
    assert [delivery.attempts for delivery in got] == [1] * len(back)
    assert world.numbers(got) == list(range(0, SMALL // 2, 3))
    assert world.q.ack(kept + tags_of(got), OS)
    assert world.drain() == list(range(SMALL // 2, SMALL))
    world.inhale()
    state = real(world.q).state
    assert (state.places, state.delta_transients, state.ram_bytes()) == ({}, {}, 0)
    assert not any(world.q.index().transients.values()), "no files are kept for what is gone"


@pytest.mark.parametrize("mode", ["lost", "kept"])
def test_all_of_it_is_ready_again_after_a_crash(mode: str) -> None:
    world = Held(SMALL)
    tags = world.hold(SMALL)
    world.q.ack(tags[::2], OS)
    world.settle()
    world.crash(mode)
    got = [world.fetch() for _ in range(SMALL // 2)]
    assert world.numbers(got) == list(range(1, SMALL, 2))
    assert all(delivery.is_redelivered for delivery in got)


def test_a_purge_keeps_it_and_a_restart_brings_it_back() -> None:
    world = Held(SMALL)
    tags = world.hold(SMALL // 2)
    assert world.q.purge(OS) == SMALL // 2
    assert world.q.depth() == SMALL // 2
    assert len(world.q.ack(tags[:100], OS)) == 100
    world.restart()
    assert world.drain() == list(range(100, SMALL // 2))


@pytest.mark.parametrize("mode", [OS, NONE])
def test_a_deleted_queue_leaves_no_files(mode: int) -> None:
    world = Held(SMALL, mode, body_bytes=STORED)
    world.hold(SMALL)
    index = world.q.index()
    world.q.delete_and_terminate(OS)
    world.rig.restart()  # which verifies
    assert world.rig.files_of(index) == []
    assert world.rig.store_names() == []


def test_expiry_and_size_come_back_from_the_slot() -> None:
    world = Held(0)
    for i in range(SMALL):
        world.q.publish(b"", world.body(i), OS, expiry_ms=10_000 + i)
    tags = world.hold(SMALL)
    assert paged(world).is_far(tags[2000])
    assert world.q.pending(tags[2000]).message.expiry_ms == 12_000  # type: ignore[union-attr]
    world.q.requeue(tags, OS)
    unacked = info_int(world.q, "unacked_bytes")
    assert unacked == 0
    assert world.q.body_bytes() == sum(len(world.body(i)) for i in range(SMALL))
    head = world.q.dropwhile(lambda head: head.expiry_ms < 12_500, OS)
    assert head is not None
    assert head.expiry_ms == 12_500


def test_a_damaged_slot_is_set_aside_when_its_message_is_settled() -> None:
    world = Held(SMALL)
    tags = world.hold(SMALL)
    bad = tags[2000]
    assert paged(world).is_far(bad)
    index = world.q.index()
    world.settle()
    world.rig.fs.damage_flip(f"{index.path}/{bad // SLOTS}.qi", 64 + bad % SLOTS * 32 + 8, 1)
    assert len(world.q.ack(tags[1990:2000], OS)) == 10, "neighbours are not concerned"
    assert world.rig.told("corruption") == []
    assert world.q.ack([bad], OS) == []
    assert len(world.rig.told("corruption")) == 1
    assert info_int(world.q, "set_aside") == 1
    real(world.q).state.check()
    world.q.requeue(tags, OS)
    real(world.q).state.check()
    assert info_int(world.q, "unacked_bytes") == 0
    assert world.drain() == [i for i in range(SMALL) if not 1990 <= i <= 2000]


@pytest.mark.parametrize("effect", ["flip", "misdirect", "short"])
@pytest.mark.parametrize("body_bytes", [0, STORED])
def test_a_purge_keeps_what_is_read_wrongly_meanwhile(effect: str, body_bytes: int) -> None:
    world = Held(400, OS, body_bytes=body_bytes)
    tags = world.hold(380)
    assert paged(world).far_count > 2 * SLOTS // 3
    world.rig.fs.fail(effect, kinds=["read"], path=".qi", times=None)
    assert world.q.purge(OS) == 20
    world.rig.fs.clear_faults()
    world.put(400)
    assert len(world.q.ack(tags[::2], OS)) == 190
    world.q.requeue(tags, OS)
    assert world.drain() == [*range(1, 380, 2), 400]
    assert (world.q.index().count, world.q.index().bytes) == (0, 0)
    world.restart()


def test_a_purge_beside_many_unacked_messages_takes_little_memory() -> None:
    """Entries of one segment at a time: 370 bytes for each message would be 1.1 MB."""
    world = Held(SMALL)
    world.hold(SMALL - 10)
    tracemalloc.start()
    try:
        assert world.q.purge(OS) == 10
        assert tracemalloc.get_traced_memory()[1] < 400 << 10
    finally:
        tracemalloc.stop()
    assert world.q.depth() == SMALL - 10


def test_a_purge_keeps_what_is_in_the_store_and_cannot_be_found_there_meanwhile() -> None:
    world = World(EngineRig(segment_slots=16), opens(read_bytes=1 << 18), STORED)
    world.put(*range(20))
    world.restart()
    heads = [head for head in (world.q.drop() for _ in range(10)) if head is not None]
    world.rig.fs.fail("flip", kinds=["read"], path=".qs", times=None)
    assert world.q.purge(OS) == 10
    world.rig.fs.clear_faults()
    assert len(world.q.ack([head.tag for head in heads[:5]], OS)) == 5
    assert [segment.stores for segment in world.q.index().segments.values()] == [5]
    world.restart()
    assert world.drain() == list(range(5, 10))


def test_a_read_that_fails_changes_nothing() -> None:
    world = Held(SMALL)
    tags = world.hold(SMALL)
    world.rig.fs.fail(errno.EIO, kinds=["read"], times=None)
    for call in (world.q.ack, world.q.requeue):
        with pytest.raises(OSError):  # noqa: PT011 - what the system says is not ours
            call(tags, OS)
        real(world.q).state.check()
    world.rig.fs.clear_faults()
    assert world.q.depth() == SMALL
    world.q.requeue(tags, OS)
    assert world.drain() == list(range(SMALL))


def test_transient_rows_stay_while_their_slots_cannot_be_written() -> None:
    world = Held(0, max_bytes=UNLIMITED)
    for i in range(SMALL):
        world.q.publish(b"", world.body(i), NONE)
    tags = world.hold(SMALL)
    world.rig.fs.fail(errno.ENOSPC, path=".qi", kinds=["pwrite"], times=None)
    world.q.set_limits(MAX_BYTES, 0)
    world.page()
    real(world.q).state.check()
    assert paged(world).far_count == 0
    world.rig.fs.clear_faults()
    world.rig.clock.advance(2)
    world.page()
    assert paged(world).far_count > SMALL // 2
    assert world.q.ram_bytes() <= MAX_BYTES
    world.q.requeue(tags, OS)
    assert world.drain() == list(range(SMALL))


def row(seq: int) -> Row:
    return Row(seq, PERSISTENT | ON_SLOT, seq, 10, 0, 0, 0, 0)


def test_a_segment_with_few_messages_keeps_its_rows() -> None:
    """One of each segment of 4,096: a row takes 32 bytes, bits 512."""
    pending = PagedPending(1, 0, 4096)
    for number in range(1000):
        pending.insert(row(number * 4096 + 7))
    for seq in range(5 * 4096 + 100, 5 * 4096 + 200):
        pending.insert(row(seq))
    pending.put_away(pending.take_surplus(16))
    assert pending.far_count == 90, "16 rows may stay"
    assert pending.sparse == 1000 - 6
    assert pending.ram_bytes == 1010 * ROW_BYTES + 512
    assert pending.seqs_between(5 * 4096, 6 * 4096)[1:3] == [5 * 4096 + 100, 5 * 4096 + 101]
    assert len(pending.seqs()) == 1100


@pytest.mark.parametrize("body_bytes", [0, STORED])
def test_transient_unacked_messages_of_a_deleted_queue_are_released_in_slices(
    body_bytes: int,
) -> None:
    """100,000 of them stopped everybody for half a second."""
    world = Held(SMALL, NONE, body_bytes=body_bytes)
    world.hold(SMALL)
    index, engine = real(world.q).index(), world.rig.engine
    n_paged = paged(world).count
    assert n_paged > SMALL // 2
    world.q.delete_and_terminate(OS)
    state = engine.state
    assert state.releasing == [index.number]
    slices = 0
    while state.releasing:
        engine.upkeep.reap()
        slices += 1
    assert slices >= n_paged // 256
    assert not any(index.transients.values())
    assert engine.transient.live_count == 0
    world.rig.settle()
    assert state.dying == {}
