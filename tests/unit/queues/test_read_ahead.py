"""Reading ahead of bodies in the message store: large ones, and those that several queues share.

Time is counted in ticks and in operations of a worker, never measured.
"""

import errno
from collections.abc import Iterator
from typing import Final

import pytest

from penstock.queues.paging import READS_MAX, RUN_ROWS_MAX
from penstock.queues.queue_ram import ALPHA_BYTES, CHECKS
from penstock.storage.files.durability import NONE, OS
from tests.helpers.engine_rig import EngineRig
from tests.helpers.queue_world import World
from tests.helpers.tiny_engine import PATH
from tests.helpers.variable_queues import info_int, opens, real

LARGE: Final = 40_000  # bytes of a body that goes to the store
HEADER: Final = b"h" * 30
COST: Final = ALPHA_BYTES + LARGE + len(HEADER)


@pytest.fixture(autouse=True)
def _without_checks() -> Iterator[None]:
    """They walk the whole queue after each call."""
    was_on, CHECKS.is_on = CHECKS.is_on, False
    yield
    CHECKS.is_on = was_on


class Stored(World):
    """Queues whose bodies are in the store, with the borders that operators get."""

    def __init__(self, body_bytes: int = LARGE) -> None:
        rig = EngineRig(
            segment_slots=1024, queue_index_embed_msgs_below=4096, wal_inline_below=32 << 10,
            transient_inline_below=32 << 10, wal_segment_bytes_min=1 << 20,
            wal_segment_bytes_max=1 << 20,
        )  # fmt: skip
        super().__init__(rig, opens(policy="eager", read_bytes=1 << 18), body_bytes=body_bytes)

    def fill(self, n: int, mode: int = OS) -> None:
        """Publish messages 0 to n - 1."""
        for i in range(n):
            self.q.publish(HEADER, self.body(i), mode)
        self.page()

    def tick(self) -> None:
        """What the owner of a queue does in one tick, and the completions until the next."""
        while self.q.resume():
            pass
        self.q.inhale(at_rest=True)
        while self.rig.engine.journal.has_pending:
            self.rig.engine.poll(wait=True)

    def reading(self) -> int:
        """Reads that are under way."""
        return len(real(self.q).paging.inhaler.runs)


def test_a_queue_of_large_bodies_is_back_after_one_tick() -> None:
    world = Stored()
    world.q.set_limits(2 << 20, 1 << 20)
    world.fill(2500)
    assert info_int(world.q, "delta") > 1000
    world.q.set_limits(128 << 20, 64 << 20)
    world.tick()
    assert info_int(world.q, "alphas") == 2500
    assert info_int(world.q, "is_flowed") == 0
    assert world.drain() == list(range(2500))


@pytest.mark.parametrize("body_bytes", [LARGE, 300 << 10])
def test_gets_from_a_backlog_beyond_the_limit_find_the_head_in_ram(body_bytes: int) -> None:
    """100 gets per second, completions between them: a read takes no longer than 10 ms."""
    world = Stored(body_bytes)
    most = 4 << 20
    world.q.set_limits(most, most // 2)
    world.fill(150)
    world.tick()
    misses = 0
    used: list[int] = []
    for i in range(100):
        misses += not real(world.q).state.q4
        assert world.numbers([world.fetch(ack_required=False)]) == [i]
        world.q.inhale()
        assert world.q.ram_bytes() <= most
        world.rig.engine.poll(wait=True)
        assert world.q.ram_bytes() <= most
        used.append(world.q.ram_bytes())
    assert misses <= 2
    assert sum(used[:60]) / 60 >= 0.6 * most
    assert world.drain() == list(range(100, 150))


@pytest.mark.parametrize("mode", [OS, NONE])
def test_bodies_that_two_queues_share_are_read_ahead(mode: int) -> None:
    world = Stored(5000)
    other = world.open(b"other")
    most = 512 << 10
    for queue in (world.q, other):
        queue.set_limits(most, most // 2)
    targets = [world.q.index(), other.index()]
    for i in range(1000):
        world.rig.engine.publish(targets, HEADER, world.body(i), mode)
    world.page()
    for queue in (world.q, other):
        misses = 0
        for i in range(1000):
            if i % 20 == 0:
                world.page()  # what the other queue is done with counts here
                queue.inhale()
                while world.rig.engine.journal.has_pending:
                    world.rig.engine.poll(wait=True)
            misses += not real(queue).state.q4
            assert world.numbers([world.fetch(queue, ack_required=False)]) == [i]
            assert queue.ram_bytes() <= most
        assert misses <= 20


def test_mixed_sizes_are_read_ahead_in_one_run() -> None:
    world = Stored()
    sizes = [100, LARGE, 0, 5000, 33_000, 1 << 20]
    world.q.set_limits(1 << 20, 0)
    for i in range(600):
        size = sizes[i % len(sizes)] if i % 60 else 2 << 20
        world.q.publish(HEADER, (b"m%d;" % i).ljust(size, b"."), OS)
    world.page()
    world.q.set_limits(64 << 20, 32 << 20)
    for _ in range(3):  # those from 1 MiB on stay in the store
        world.q.inhale()
        while world.rig.engine.journal.has_pending:
            world.rig.engine.poll(wait=True)
    assert info_int(world.q, "alphas") == 600
    assert info_int(world.q, "ram_bytes") <= 64 << 20
    seen: list[int] = []
    while world.q.len():
        body = world.fetch(ack_required=False).message.body
        assert body is not None
        seen.append(int(body[1 : body.index(b";")]))
    assert seen == list(range(600))


def test_several_reads_are_under_way_and_counted_before_they_begin() -> None:
    world = Stored()
    world.q.set_limits(1 << 20, 0)
    world.fill(200)
    most = 4 << 20
    world.q.set_limits(most, most // 2)
    before = world.q.ram_bytes()
    assert world.q.inhale()
    assert world.reading() >= 2
    reserved = world.q.ram_bytes() - before
    assert reserved >= 6 * COST
    assert info_int(world.q, "reading_bytes") >= reserved - 6 * COST
    assert world.q.ram_bytes() <= most
    while world.rig.engine.journal.has_pending:
        world.rig.engine.poll(wait=True)
    assert info_int(world.q, "reading_bytes") == 0
    assert 0.8 * most <= world.q.ram_bytes() <= most


def test_what_is_reserved_for_reads_is_given_up_when_the_queue_is_purged() -> None:
    world = Stored()
    world.q.set_limits(1 << 20, 0)
    world.fill(200)
    world.q.set_limits(4 << 20, 2 << 20)
    assert world.q.inhale()
    world.q.purge(OS)
    while world.rig.engine.journal.has_pending:
        world.rig.engine.poll(wait=True)
    assert (world.q.ram_bytes(), world.q.len()) == (0, 0)
    world.fill(5)
    assert world.drain() == list(range(5))


def test_a_body_that_is_requeued_before_the_reads_end_is_delivered_first() -> None:
    world = Stored()
    world.q.set_limits(1 << 20, 0)
    world.fill(200)
    got = world.take(30)
    world.q.set_limits(4 << 20, 2 << 20)
    assert world.q.inhale()
    world.q.requeue([delivery.tag for delivery in got], OS)
    while world.rig.engine.journal.has_pending:
        world.rig.engine.poll(wait=True)
    assert info_int(world.q, "reading_bytes") == 0
    assert world.drain() == list(range(200))


def test_a_read_from_the_store_that_fails_is_harmless() -> None:
    world = Stored()
    world.q.set_limits(1 << 20, 0)
    world.fill(200)
    world.q.set_limits(4 << 20, 2 << 20)
    world.rig.fs.fail(errno.EIO, kinds=["read"], path=".rdq", times=None)
    world.q.inhale()
    while world.rig.engine.journal.has_pending:
        world.rig.engine.poll(wait=True)
    assert len(world.rig.told("page_in_failed")) == 1
    assert info_int(world.q, "reading_bytes") == 0
    world.rig.fs.clear_faults()
    world.inhale()
    assert info_int(world.q, "alphas") > 60
    assert world.drain() == list(range(200))


def test_a_damaged_body_in_the_store_is_left_to_the_get() -> None:
    world = Stored()
    world.q.set_limits(1 << 20, 0)
    world.fill(100)
    (name,) = world.rig.store_names()
    path = f"{PATH}/msg_store_persistent/{name}"
    world.rig.fs.damage_flip(path, 60 * (LARGE + 16) + 20_000, 3)
    world.q.set_limits(3 << 20, 1 << 20)
    world.inhale()
    assert 20 < info_int(world.q, "alphas") <= 60
    assert not world.rig.told("corruption"), "a get finds out"
    got = world.numbers([world.fetch(ack_required=False) for _ in range(99)])
    assert world.q.fetch() is None
    assert len(set(range(100)) - set(got)) == 1
    assert len(world.rig.told("corruption")) == 1


def test_a_store_file_that_is_replaced_before_the_read_is_left_to_the_get() -> None:
    world = Stored()
    world.q.set_limits(1 << 20, 0)
    world.fill(100)
    world.q.set_limits(8 << 20, 4 << 20)
    world.q.inhale()
    runs = real(world.q).paging.inhaler.runs
    assert runs
    for run in runs:  # as if it had been combined and deleted meanwhile
        for one in run.records:
            one.path += ".gone"
    while world.rig.engine.journal.has_pending:
        world.rig.engine.poll(wait=True)
    assert not world.rig.told("page_in_failed")
    assert world.drain() == list(range(100))


def test_one_turn_takes_and_begins_few_messages() -> None:
    """The ends of all reads that one turn sees begin no more than one set of reads, however fast
    the workers are."""
    world = Stored(body_bytes=1)
    world.q.set_limits(0, 0)
    world.fill(4000)
    state, inhaler = real(world.q).state, real(world.q).paging.inhaler
    world.q.set_limits(64 << 20, 32 << 20)
    assert world.q.inhale(at_rest=True)
    had = len(state.q4)
    first = list(inhaler.runs)
    n = sum([len(run.rows) for run in first])
    assert len(first) == READS_MAX
    assert READS_MAX < n <= READS_MAX * RUN_ROWS_MAX
    for run in first:
        run.read()
    first[0].done(None)
    assert len(state.q4) == had + n
    for run in inhaler.runs:
        run.read()
    first[1].done(None)
    first[2].done(None)
    assert len(state.q4) == had + n
    while world.rig.engine.journal.has_pending:
        world.rig.engine.poll(wait=True)


def test_a_large_transient_body_is_written_once_and_only_if_it_leaves_ram() -> None:
    world = Stored()
    store = world.rig.engine.transient
    world.fill(20, NONE)
    assert store.written_bytes == 0, "there is room in RAM"
    world.q.set_limits(6 * COST, 6 * COST)
    world.page()
    written = store.written_bytes
    assert 14 <= written // LARGE <= 18, "a step takes up to four more"
    world.q.set_limits(1 << 30, 1 << 30)
    world.tick()
    assert info_int(world.q, "alphas") == 20
    world.q.set_limits(6 * COST, 6 * COST)
    world.page()
    assert store.written_bytes == written, "what was read back is there already"
    assert world.drain() == list(range(20))
    assert store.live_bytes == 0
