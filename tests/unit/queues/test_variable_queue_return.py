"""Returning to RAM, after Qpid's Flow to Disk Design: the Inhaler begins below the minimum and goes
on up to the maximum, or until all messages are back; then new messages stay in RAM. And what stays
there when a limit gets smaller: the head, for it is asked for next.

Costs are counted, not timed: messages written to disk and reads from it.
"""

from collections.abc import Iterator
from typing import Final

import pytest

from penstock.queues.backing_queue import UNLIMITED
from penstock.queues.queue_ram import ALPHA_BYTES, CHECKS
from penstock.storage.files.durability import NONE, OS
from tests.helpers.engine_rig import STORED, EngineRig
from tests.helpers.queue_world import World
from tests.helpers.variable_queues import info_int, lengths, opens, real

pytestmark = pytest.mark.large

SLOTS: Final = 256
BODY: Final = 100
COST: Final = ALPHA_BYTES + BODY
BATCH: Final = 50  # published, then fetched: a publisher and a consumer of one speed


@pytest.fixture(autouse=True)
def _without_checks() -> Iterator[None]:
    """They walk the whole queue after each call."""
    was_on, CHECKS.is_on = CHECKS.is_on, False
    yield
    CHECKS.is_on = was_on


class Flow(World):
    """A queue of messages of one size, whose limits are given as numbers of them."""

    def __init__(self, body_bytes: int = BODY) -> None:
        rig = EngineRig(
            segment_slots=SLOTS, queue_index_embed_msgs_below=4096, wal_inline_below=8192,
            transient_inline_below=8192, wal_segment_bytes_min=1 << 20,
            wal_segment_bytes_max=1 << 20,
        )  # fmt: skip
        super().__init__(rig, opens(read_bytes=1 << 18), body_bytes=body_bytes)
        self.next = 0
        self.due = 0
        self.header = b""

    def limit(self, messages: int) -> None:
        """The maximum; the minimum is half of it."""
        self.q.set_limits(messages * COST, messages * COST // 2)

    def publish(self, n: int, mode: int = OS) -> None:
        """So many more, and what a tick does then."""
        for _ in range(n):
            self.q.publish(self.header, self.body(self.next), mode)
            self.next += 1
        self.rest()

    def consume(self, n: int) -> None:
        """The next ones, in order, and what the owner of a queue with a consumer does then."""
        for _ in range(n):
            assert self.numbers([self.fetch(ack_required=False)]) == [self.due]
            self.due += 1
        self.q.inhale()
        self.rest()

    def rest(self) -> None:
        """Ticks, until there is nothing to do."""
        for _ in range(10_000):
            if not self.q.resume() and not self.q.inhale(at_rest=True):
                return
            self.rig.engine.poll(wait=self.q.inhale(at_rest=True))
        raise AssertionError("it never rests")

    def counts(self) -> tuple[int, int]:
        """Messages written to disk, and reads, so far."""
        return info_int(self.q, "disk_writes"), info_int(self.q, "disk_reads")

    def is_flowed(self) -> bool:
        """Whether it is over its limit, or was and is not all back."""
        return info_int(self.q, "is_flowed") == 1


@pytest.fixture
def flow() -> Flow:
    return Flow()


@pytest.mark.parametrize("mode", [OS, NONE])
@pytest.mark.parametrize("part", [0.5, 0.81, 0.85])
def test_a_steady_backlog_is_written_once_at_most(flow: Flow, mode: int, part: float) -> None:
    flow.limit(2000)
    flow.publish(2500, mode)
    assert flow.is_flowed()
    flow.consume(2500 - int(part * 2000))
    assert not flow.is_flowed(), "all of it is back in RAM"
    assert len(flow.rig.told("recovered")) == 1
    before = flow.counts()
    for _ in range(20_000 // BATCH):
        flow.publish(BATCH, mode)
        flow.consume(BATCH)
    assert flow.counts() == before, "nothing is written or read any more"
    assert flow.drain() == list(range(flow.due, flow.next))


@pytest.mark.parametrize("mode", [OS, NONE])
def test_the_head_is_in_ram_after_a_mass_requeue(flow: Flow, mode: int) -> None:
    limit = 128 << 10
    flow.q.set_limits(limit, limit // 2)
    flow.publish(20_000, mode)
    got = [flow.fetch().tag for _ in range(10_000)]
    flow.rest()
    flow.q.requeue(got, OS)
    flow.rest()
    assert lengths(flow)[0] * COST >= 0.4 * limit
    assert info_int(flow.q, "ram_bytes") <= limit
    assert flow.drain() == list(range(20_000))


def test_gets_that_outrun_ticks_and_completions_find_what_workers_have_read(flow: Flow) -> None:
    """A program that gets in a loop: the box's thread does not run, its workers do."""
    limit = 3 << 20
    flow.q.set_limits(limit, limit // 2)
    flow.publish(40_000)
    flow.rig.clock.advance(1.0)
    flow.rest()
    inhaler = real(flow.q).paging.inhaler
    used: list[int] = []
    reads = flow.counts()[1]
    misses = 0
    while flow.q.len() > 15_000:
        misses += not real(flow.q).state.q4 and not [run for run in inhaler.runs if run.is_over]
        assert flow.numbers([flow.fetch(ack_required=False)]) == [flow.due]
        flow.due += 1
        for run in inhaler.runs:
            if not run.is_over:
                run.read()
        used.append(flow.q.ram_bytes())
        assert used[-1] <= limit
    assert sum(used) / len(used) >= 0.6 * limit
    assert misses <= 2, "gets that read by themselves"
    assert flow.counts()[1] - reads <= 4 * 25_000 / SLOTS, "rows and bodies of whole runs"
    while flow.rig.engine.journal.has_pending:
        flow.rig.engine.poll(wait=True)
    assert flow.drain() == list(range(flow.due, flow.next))


@pytest.mark.parametrize("header", [b"", b"h" * 120])
@pytest.mark.parametrize("mode", [OS, NONE])
@pytest.mark.parametrize("part", [0.93, 0.97, 0.985])
def test_a_backlog_just_below_the_limit_comes_back_whole(
    flow: Flow, mode: int, part: float, header: bytes
) -> None:
    """It once flowed: what fits now is read, and nothing is written any more."""
    cost = COST + len(header)
    flow.header = header
    flow.q.set_limits(4000 * cost, 2000 * cost)
    flow.publish(5000, mode)
    assert flow.is_flowed()
    flow.consume(5000 - int(part * 4000))
    assert info_int(flow.q, "alphas") == int(part * 4000)
    before = flow.counts()
    for _ in range(200):
        flow.publish(20, mode)
        flow.consume(20)
    assert flow.counts() == before, "nothing is written or read any more"
    assert len(flow.rig.told("flowed")) == 1
    assert not flow.rig.told("recovered")
    flow.consume(600)
    assert not flow.is_flowed(), "an eighth of the limit is free"
    assert flow.drain() == list(range(flow.due, flow.next))


def test_a_load_around_the_limit_writes_what_is_beyond_it(flow: Flow) -> None:
    flow.limit(4000)
    flow.publish(5000)
    flow.consume(1040)
    before = flow.counts()
    for _ in range(50):  # from 99 to 101 %
        flow.publish(80)
        flow.consume(80)
    written, reads = (now - then for now, then in zip(flow.counts(), before, strict=True))
    assert written <= 50 * 50
    assert reads <= 50 * 3
    assert len(flow.rig.told("flowed")) == 1
    assert flow.drain() == list(range(flow.due, flow.next))


def test_a_backlog_just_above_the_limit_is_read_in_runs(flow: Flow) -> None:
    flow.limit(4000)
    flow.publish(5000)
    flow.consume(960)
    before = flow.counts()
    for _ in range(200):
        flow.publish(20)
        flow.consume(20)
    written, reads = (now - then for now, then in zip(flow.counts(), before, strict=True))
    assert written <= 4000
    assert reads <= 100
    assert flow.drain() == list(range(flow.due, flow.next))


def test_nobody_need_consume_for_it_to_come_back(flow: Flow) -> None:
    flow.limit(1000)
    flow.publish(5000)
    assert info_int(flow.q, "ram_bytes") <= 1000 * COST
    flow.limit(10_000)
    flow.rest()
    assert not flow.is_flowed()
    assert info_int(flow.q, "alphas") == 5000
    before = flow.counts()
    flow.publish(1000)
    assert flow.counts() == before


def test_it_reads_up_to_the_high_mark_and_no_further(flow: Flow) -> None:
    flow.publish(20_000)
    flow.restart()
    flow.limit(4000)
    flow.rest()
    assert 0.8 * 4000 * COST <= info_int(flow.q, "ram_bytes") <= 0.9375 * 4000 * COST
    reads = flow.counts()[1]
    flow.consume(1000)
    assert flow.counts()[1] == reads, "more than the minimum is in RAM"
    flow.consume(1000)
    assert flow.counts()[1] > reads
    assert 0.8 * 4000 * COST <= info_int(flow.q, "ram_bytes") <= 0.9375 * 4000 * COST
    assert flow.drain() == list(range(2000, 20_000))


def test_what_arrives_while_the_rest_comes_back_stays(flow: Flow) -> None:
    flow.limit(2000)
    flow.publish(4000)
    flow.consume(1000)
    before, waiting = flow.counts()[0], lengths(flow)[4]
    flow.limit(8000)
    for _ in range(8):
        flow.q.publish(b"", flow.body(flow.next), OS)
        flow.next += 1
    assert lengths(flow)[4] == waiting + 8, "in q1: it would all fit"
    assert flow.counts()[0] == before
    flow.rest()
    assert not flow.is_flowed()
    assert flow.counts()[0] == before
    assert flow.drain() == list(range(1000, flow.next))


def test_a_load_that_swings_moves_no_more_than_its_swing(flow: Flow) -> None:
    """Between the high mark and the maximum nothing moves in either direction; beyond it what is
    beyond it goes out and comes back, and a message is written once."""
    flow.limit(2000)
    flow.publish(2400)
    flow.consume(800)
    assert not flow.is_flowed()
    before = flow.counts()
    for _ in range(20):
        flow.publish(350)
        flow.consume(350)
    assert not flow.is_flowed()
    assert flow.counts() == before, "from 80 to 97 % of the maximum"
    for _ in range(20):
        flow.publish(600)
        flow.consume(600)
    written = flow.counts()[0] - before[0]
    assert written <= 20 * 260, "from 80 to 110 % of it"
    for _ in range(20):
        flow.publish(4000)
        flow.consume(4000)
    assert flow.counts()[0] - before[0] <= 20 * (260 + 4000), "no message is written twice"
    assert flow.drain() == list(range(flow.due, flow.next))


def test_a_transient_backlog_costs_no_more_reads_than_a_persistent_one() -> None:
    reads: list[int] = []
    for mode in (OS, NONE):
        flow = Flow()
        flow.limit(100)
        flow.publish(5000, mode)
        before = flow.counts()[1]
        assert flow.drain() == list(range(5000))
        reads.append(flow.counts()[1] - before)
    assert reads[1] <= 1.2 * reads[0]


@pytest.mark.parametrize(("size", "n"), [(BODY, 2000), (9000, 500)])
def test_a_transient_backlog_is_purged_with_few_reads(size: int, n: int) -> None:
    """Bodies in the queue's own segments, which need not be read, and in the store, where their
    references are released: these are read in runs."""
    flow = Flow(size)
    flow.limit(100)
    flow.publish(n, NONE)
    assert real(flow.q).state.delta_transients
    assert (flow.rig.engine.transient.live_count > 0) == (size > BODY)
    before = flow.rig.fs.reads
    assert flow.q.purge(OS) == n
    while flow.rig.engine.upkeep.reap():
        pass
    assert flow.rig.fs.reads - before <= 3 * (n // SLOTS + 1)
    flow.settle()
    assert set(flow.q.index().transients.values()) <= {0}
    assert flow.rig.engine.transient.live_count == 0
    assert flow.drain() == []


def test_transient_messages_that_went_through_delta_are_transient(flow: Flow) -> None:
    flow.limit(50)
    modes = [OS if i % 3 else NONE for i in range(1000)]
    for mode in modes:
        flow.publish(1, mode)
    seen = [flow.fetch(ack_required=False) for _ in range(300)]
    assert [d.message.persistent for d in seen] == [mode == OS for mode in modes[:300]]
    flow.settle()
    flow.restart()
    left = [i for i in range(300, 1000) if modes[i] == OS]
    assert flow.drain() == left
    flow.settle()
    flow.rig.engine.sync()
    assert flow.q.index().transients == {}


# ---- what stays ----------------------------------------------------------------------------------


@pytest.mark.parametrize("has_section", [False, True])
def test_bodies_in_the_store_and_small_queues_come_back_too(has_section: bool) -> None:
    rig = EngineRig(segment_slots=SLOTS, sections=has_section)
    world = World(rig, opens(read_bytes=1 << 18), body_bytes=STORED)
    world.put(*range(40))
    world.restart()
    assert (len(world.q.index().section) > 0) == has_section
    world.q.set_limits(1 << 20, 1 << 19)
    assert info_int(world.q, "is_flowed") == 1
    for _ in range(5):
        world.q.resume()
        world.q.inhale(at_rest=True)
        rig.engine.poll()
    assert info_int(world.q, "is_flowed") == 0
    assert info_int(world.q, "alphas") == 40
    assert world.drain() == list(range(40))


@pytest.mark.parametrize("mode", [OS, NONE])
def test_a_limit_that_shrinks_leaves_the_head(flow: Flow, mode: int) -> None:
    flow.publish(20_000, mode)
    flow.q.set_limits(256 << 10, 128 << 10)
    flow.rest()
    q4, q3, delta, _, _ = lengths(flow)
    assert q4 >= 0.6 * (256 << 10) / COST
    assert q4 + q3 + delta == 20_000
    assert info_int(flow.q, "ram_bytes") <= 256 << 10
    reads = flow.counts()[1]
    for _ in range(q4 // 2):
        flow.fetch(ack_required=False)
    assert flow.counts()[1] == reads, "the head was there"


def test_a_share_that_shrinks_leaves_the_head(flow: Flow) -> None:
    flow.publish(10_000)
    flow.q.set_share(256 << 10)
    flow.rest()
    assert lengths(flow)[0] >= 0.6 * (256 << 10) / COST
    assert flow.drain() == list(range(10_000))


def test_a_duration_is_that_many_messages_of_the_head(flow: Flow) -> None:
    """1.0 s at about 250 messages a second, published and fetched."""
    for _ in range(100):
        flow.publish(300)
        flow.consume(50)
        flow.rig.clock.advance(1.0)
        flow.q.ram_duration()
    rates = real(flow.q).state.rates
    per_s = rates.sum()
    assert 340 <= per_s <= 360
    flow.q.set_ram_duration_target(1.0)
    flow.rest()
    q4 = lengths(flow)[0]
    assert 0.9 * per_s <= q4 <= 1.4 * per_s
    assert flow.drain() == list(range(flow.due, flow.next))


def test_a_duration_of_nothing_leaves_nothing(flow: Flow) -> None:
    flow.publish(1000)
    flow.q.set_ram_duration_target(0.0)
    flow.rest()
    assert info_int(flow.q, "ram_messages") == 0
    flow.q.set_ram_duration_target(float("inf"))
    assert info_int(flow.q, "target_bytes") == UNLIMITED
    assert flow.drain() == list(range(1000))
