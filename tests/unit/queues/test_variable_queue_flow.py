"""What Qpid's tests of its flow to disk ask for, of 2009 and of today, re-created as behaviours.

All messages of a test have bodies of one size, so limits can be given as a number of messages."""

import errno

import pytest

from penstock.queues.backing_queue import UNLIMITED, BackingQueue, Delivery, NewMessage
from penstock.queues.queue_ram import CHECKS
from penstock.storage.files.durability import DISK, NONE, OS
from tests.helpers.engine_rig import STORED, EngineRig
from tests.helpers.queue_world import World, tags_of
from tests.helpers.variable_queues import info_int, lengths, opens, real

SLOTS = 16


class FlowWorld(World):
    """Bodies of ten bytes; `cost`: what one message counts in RAM."""

    def __init__(self) -> None:
        rig = EngineRig(segment_slots=SLOTS)
        super().__init__(rig, opens(read_bytes=1 << 18), body_bytes=10)
        self.put(0)
        self.cost = self.q.ram_bytes()
        self.q.purge(OS)
        self.rig.events.clear()

    def limit(self, messages: float, least: float = 0.0) -> int:
        """Set the limits to so many messages; the maximum in bytes."""
        high = int(messages * self.cost)
        self.q.set_limits(high, int(least * self.cost))
        return high

    def put(self, *numbers: int, mode: int = DISK, queue: BackingQueue | None = None) -> list[int]:
        """Headers are all the same, so that all messages are; and nothing is paged but by them."""
        return [(queue or self.q).publish(b"", self.body(i), mode) for i in numbers]

    def on_disk(self, n: int) -> None:
        """So many messages, none of which has been in RAM since the queue was opened."""
        self.put(*range(n))
        self.restart()
        self.rig.events.clear()

    def flowed(self) -> bool:
        """Whether it is over its limit, or was and is not all back."""
        return info_int(self.q, "is_flowed") == 1

    def in_ram(self) -> int:
        """Ready messages with their bodies in RAM."""
        return info_int(self.q, "ram_messages")


@pytest.fixture
def world() -> FlowWorld:
    return FlowWorld()


# ---- Out ------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [DISK, NONE])
def test_messages_flow_to_disk(world: FlowWorld, mode: int) -> None:
    limit = world.limit(500)
    world.put(*range(500), mode=mode)
    assert not world.flowed(), "not at the limit"
    assert world.q.ram_bytes() == limit
    assert info_int(world.q, "disk_writes") == 0
    world.put(500, mode=mode)
    assert world.flowed(), "but with one more"
    assert world.rig.told("flowed")
    for i in range(501, 1000):
        world.put(i, mode=mode)
        assert 0 <= world.q.ram_bytes() <= limit, f"after message {i}"
    assert world.q.len() == 1000
    got: list[int] = []
    while world.q.len():
        got += world.numbers([world.fetch(ack_required=False)])
        assert 0 <= world.q.ram_bytes() <= limit
    assert got == list(range(1000))
    assert not world.flowed()
    assert len(world.rig.told("flowed")) == len(world.rig.told("recovered")) == 1


def test_the_head_stays_in_ram(world: FlowWorld) -> None:
    world.limit(20)
    world.put(*range(200))
    world.page()
    q4 = lengths(world)[0]
    assert q4 > 5
    assert [entry.seq for entry in real(world.q).state.q4] == list(range(1, q4 + 1))


@pytest.mark.parametrize("mode", [DISK, NONE])
def test_the_purger_empties_a_full_queue(world: FlowWorld, mode: int) -> None:
    world.put(*range(1000), mode=mode)
    assert world.in_ram() == 1000
    world.limit(0)
    steps = 0
    while world.q.resume():
        steps += 1
    assert 1 <= steps <= 2 * (1000 // 256) + 3, "in slices, of alphas and then of rows"
    assert world.in_ram() == 0
    assert lengths(world)[0] == lengths(world)[4] == 0
    assert world.drain() == list(range(1000))


@pytest.mark.large
@pytest.mark.parametrize("limit", [20_000, 100_000, 400_000])
def test_rows_are_bounded_too(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CHECKS, "is_on", False)  # they look at every message
    world = World(EngineRig(segment_slots=4096), opens())
    world.q.batch_publish([NewMessage(b"", world.body(i)) for i in range(5000)], OS)
    world.q.set_limits(limit, 0)
    world.page()
    assert world.q.ram_bytes() <= limit
    world.q.batch_publish([NewMessage(b"", world.body(i)) for i in range(5000, 6000)], OS)
    world.page()
    assert world.q.ram_bytes() <= limit
    assert [world.numbers([world.fetch(ack_required=False)])[0] for _ in range(9)] == [*range(9)]


def test_a_queue_without_a_limit_never_flows(world: FlowWorld) -> None:
    world.put(*range(2000))
    world.q.set_limits(UNLIMITED, UNLIMITED)
    assert not world.q.resume()
    assert (info_int(world.q, "disk_writes"), world.flowed()) == (0, False)
    assert info_int(world.q, "target_bytes") == UNLIMITED


def test_overflow_on_the_second_message(world: FlowWorld) -> None:
    world.limit(1.5)
    world.put(0)
    assert not world.flowed()
    world.put(1)
    assert world.flowed()
    assert world.q.ram_bytes() <= 1.5 * world.cost
    assert world.drain() == [0, 1]


def test_overflow_after_lowering_the_limit(world: FlowWorld) -> None:
    world.limit(100)
    world.put(*range(50))
    assert not world.flowed()
    limit = world.limit(10)
    world.page()
    assert world.flowed()
    assert world.q.ram_bytes() <= limit
    assert world.drain() == list(range(50))


def test_after_raising_the_limit_there_is_room(world: FlowWorld) -> None:
    world.limit(10)
    world.put(*range(60))
    world.page()
    few = world.in_ram()
    limit = world.limit(200, 100)
    got = world.numbers(world.take(few + SLOTS))
    world.inhale()
    assert world.in_ram() > few
    assert world.q.ram_bytes() <= limit
    world.put(60, 61)
    assert got + world.drain() == list(range(62))
    world.q.purge_acks(OS)
    assert not world.flowed()
    assert world.rig.told("recovered")


def test_the_smallest_limit_wins(world: FlowWorld) -> None:
    world.put(*range(100))
    world.q.set_limits(80 * world.cost, 0)
    assert info_int(world.q, "target_bytes") == 80 * world.cost
    world.q.set_share(50 * world.cost)
    assert info_int(world.q, "target_bytes") == 50 * world.cost
    world.q.set_ram_duration_target(0.0)
    assert info_int(world.q, "target_bytes") == 0
    world.q.set_ram_duration_target(float("inf"))
    world.q.set_limits(20 * world.cost, 0)
    assert info_int(world.q, "target_bytes") == 20 * world.cost
    world.q.set_share(UNLIMITED)
    world.q.set_limits(UNLIMITED, 0)
    assert info_int(world.q, "target_bytes") == UNLIMITED


def test_pending_messages_count(world: FlowWorld) -> None:
    limit = world.limit(20)
    world.put(*range(20))
    world.take(15)
    assert not world.flowed()
    for i in range(20, 60):
        world.put(i)
        assert world.q.ram_bytes() <= limit
    assert world.flowed()
    assert world.q.depth() == 60


@pytest.mark.parametrize("mode", [DISK, NONE])
def test_one_by_one_until_nothing_is_flowed(world: FlowWorld, mode: int) -> None:
    limit = world.limit(10)
    world.put(*range(40), mode=mode)
    for i in range(40):
        assert world.numbers([world.fetch(ack_required=False)]) == [i]
        assert 0 <= world.q.ram_bytes() <= limit
    assert not world.flowed()
    assert world.q.ram_bytes() == 0


def test_a_queue_has_not_recovered_while_pending_messages_are_on_disk(world: FlowWorld) -> None:
    world.limit(10)
    world.put(*range(40))
    got = world.take(40)
    world.page()
    assert info_int(world.q, "paged_pending") > 0
    assert world.q.len() == 0
    assert world.flowed()
    assert not world.rig.told("recovered")
    world.q.ack(tags_of(got), OS)
    assert not world.flowed()
    assert len(world.rig.told("recovered")) == 1


def test_clearing_the_queue_ends_the_overflow(world: FlowWorld) -> None:
    world.limit(10)
    world.put(*range(40))
    assert world.q.purge(OS) == 40
    assert not world.flowed()
    assert world.q.ram_bytes() == 0
    assert len(world.rig.told("recovered")) == 1
    world.put(*range(5))
    assert not world.flowed()


@pytest.mark.parametrize("around", [4, 5, 6, 30])
def test_deleting_around_the_limit(world: FlowWorld, around: int) -> None:
    world.limit(10)
    world.put(*range(40))
    got = world.take(around)
    world.q.ack(tags_of(got)[around // 2 :], OS)
    world.q.requeue(tags_of(got)[: around // 2], OS)
    world.page()
    assert world.q.ram_bytes() <= 10 * world.cost
    assert world.drain() == [*range(around // 2), *range(around, 40)]


# ---- In -------------------------------------------------------------------------------


def test_browsing_does_not_bring_anything_in_for_good(world: FlowWorld) -> None:
    world.limit(20)
    world.put(*range(200))
    world.page()
    before = (lengths(world), world.q.ram_bytes())
    assert world.seen() == [(i, False) for i in range(200)]
    seen: list[Delivery] = []
    while piece := world.q.browse(seen[-1].tag if seen else None, 7):
        seen += piece
    assert world.numbers(seen) == list(range(200))
    assert (lengths(world), world.q.ram_bytes()) == before


def test_reading_ahead_starts_below_the_minimum_and_stops_at_the_maximum(world: FlowWorld) -> None:
    world.on_disk(300)
    limit = world.limit(40, 20)
    got: list[int] = []
    while world.q.len():
        world.inhale()
        assert world.q.ram_bytes() <= limit
        if lengths(world)[2]:
            assert world.in_ram() >= SLOTS - 2, "a segment at a time, but the last of q3"
        enough = world.q.ram_bytes() >= limit // 2
        assert not enough or not world.q.inhale(), "there is enough"
        got += world.numbers([world.fetch(ack_required=False) for _ in range(world.in_ram() or 1)])
    assert got == list(range(300))


def test_a_queue_that_is_only_drained_does_not_starve(world: FlowWorld) -> None:
    world.on_disk(300)
    world.limit(40, 30)
    misses = 0
    for i in range(300):
        world.inhale()
        misses += not lengths(world)[0]
        assert world.numbers([world.fetch(ack_required=False)]) == [i]
    assert misses <= 300 // SLOTS + 1, "once in a segment, when its rows are read"


def test_reading_ahead_while_the_queue_changes(world: FlowWorld) -> None:
    world.on_disk(100)
    world.limit(40, 30)
    got = world.take(5)
    world.q.requeue(tags_of(got)[3:], OS)
    assert world.numbers(world.take(2)) == [3, 4]
    while lengths(world)[0]:
        got += world.take(1)
    assert world.q.inhale()
    first = world.fetch()  # reads by itself, before the read ahead has arrived
    world.q.requeue(tags_of(got)[:3], OS)
    world.rig.engine.poll(wait=True)
    world.inhale()
    assert first.tag == got[-1].tag + 1
    world.q.requeue([first.tag], OS)
    assert world.drain() == [0, 1, 2, *range(len(got), 100)]


def test_a_read_ahead_that_fails_is_told_and_harmless(world: FlowWorld) -> None:
    world.on_disk(100)
    world.limit(40, 30)
    world.rig.fs.fail(errno.EIO, kinds=["read"], path=".qs")
    assert world.q.inhale()
    world.rig.engine.poll(wait=True)
    assert world.rig.told("page_in_failed")
    world.rig.fs.clear_faults()
    world.inhale()
    assert world.in_ram() > 0
    assert world.drain() == list(range(100))


def test_a_damaged_body_is_not_read_ahead_for_ever(world: FlowWorld) -> None:
    world.on_disk(100)
    world.limit(40, 30)
    path = f"{world.q.index().path}/0.qs"
    world.rig.fs.damage_flip(path, world.rig.fs.size(path) // 2, 3)
    world.inhale()
    got = world.numbers([world.fetch(ack_required=False) for _ in range(99)])
    assert world.q.fetch() is None
    assert len(set(range(100)) - set(got)) == 1
    assert len(world.rig.told("corruption")) == 1


# ---- What goes wrong ------------------------------------------------------------------


@pytest.mark.parametrize("mode", [DISK, NONE])
@pytest.mark.parametrize("effect", [errno.EIO, errno.ENOSPC, "short"])
def test_what_cannot_be_paged_out_stays_in_ram(
    world: FlowWorld, effect: int | str, mode: int
) -> None:
    world.limit(10)
    world.put(*range(10), mode=mode)
    world.rig.fs.fail(effect, kinds=["pwrite"], path="/queues/", times=None)
    world.put(*range(10, 30), mode=mode)
    world.page()
    assert world.q.len() == 30
    assert world.in_ram() == 30
    assert len(world.rig.told("page_out_failed")) == 1, "told once"
    world.rig.fs.clear_faults()
    world.rig.clock.advance(2.0)
    world.put(30, mode=mode)
    world.page()
    assert world.q.ram_bytes() <= 10 * world.cost
    assert world.drain() == list(range(31))


@pytest.mark.parametrize("mode", [DISK, NONE])
@pytest.mark.parametrize("before", [0, 1, 40])
def test_a_lazy_queue_whose_write_fails(world: FlowWorld, mode: int, before: int) -> None:
    world.q.set_queue_mode("lazy")
    world.put(*range(before), mode=mode)
    world.rig.fs.fail(errno.EIO, kinds=["pwrite"], path="/queues/", times=None)
    world.put(*range(before, before + 5), mode=mode)
    assert world.q.len() == before + 5
    assert world.rig.told("page_out_failed")
    assert world.q.info()["mode"] == "default"
    world.rig.fs.clear_faults()
    world.put(before + 5, mode=mode)
    world.rig.clock.advance(2.0)
    world.page()
    assert (world.q.info()["mode"], world.in_ram()) == ("lazy", 0)
    assert world.drain() == list(range(before + 6))


def test_nothing_is_paged_onto_a_full_disk(world: FlowWorld) -> None:
    world.put(*range(50))
    world.rig.engine.journal.blocked = True
    world.limit(0)
    assert not world.q.resume()
    assert (world.in_ram(), info_int(world.q, "disk_writes")) == (50, 0)
    world.rig.engine.journal.blocked = False
    world.page()
    assert world.in_ram() == 0
    assert world.drain() == list(range(50))


@pytest.mark.parametrize("body_bytes", [10, STORED])
@pytest.mark.parametrize("mode", [DISK, NONE])
@pytest.mark.parametrize("ack_required", [True, False])
@pytest.mark.parametrize("nth", [1, 2, 3, *range(12, 20)])
def test_a_read_that_fails_loses_nothing(
    body_bytes: int, mode: int, ack_required: bool, nth: int
) -> None:
    world = World(EngineRig(segment_slots=SLOTS), opens(read_bytes=1 << 18), body_bytes=body_bytes)
    world.put(*range(60), mode=mode)
    got = world.take(10)
    world.q.set_limits(0, 0)
    world.page()
    world.rig.fs.fail(errno.EIO, kinds=["read"], nth=nth, times=None)
    taken: list[int] = []
    for _ in range(60):
        try:
            delivery = world.q.fetch(ack_required=ack_required)
        except OSError:
            break
        if delivery is None:
            break
        taken += world.numbers([delivery])
    for attempt in (
        lambda: world.q.requeue(tags_of(got)[:3], OS),
        lambda: world.q.ack(tags_of(got)[3:5], OS),
        lambda: world.q.head(),
        lambda: world.q.pending(got[6].tag, with_body=True),
        lambda: world.seen(),
        lambda: world.q.browse(None, 100),
        lambda: world.q.drop(),
    ):
        try:
            attempt()
        except OSError:
            continue
    world.rig.fs.clear_faults()
    expected = {*range(10), *range(10 + len(taken), 60)} - set(taken)
    left = {number for number, _ in world.seen()}
    assert expected - left <= {3, 4}, "these may have been acknowledged"
    world.page()
    order = [number for number, is_pending in world.seen() if not is_pending]
    assert order == sorted(order)
    assert world.drain() == order


@pytest.mark.parametrize("suffix", [".qs", ".qi"])
@pytest.mark.parametrize("read_bytes", [0, 1 << 18])
def test_a_damaged_message_is_set_aside_and_the_next_one_delivered(
    suffix: str, read_bytes: int
) -> None:
    world = World(EngineRig(segment_slots=SLOTS), opens(read_bytes=read_bytes), body_bytes=20)
    world.put(*range(60))
    world.q.set_limits(0, 0)
    world.page()
    world.restart()  # all is on disk, nothing known but where
    world.q.set_limits(0, 0)
    path = f"{world.q.index().path}/2{suffix}"
    size = world.rig.fs.size(path)
    world.rig.fs.damage_flip(path, min(size - 8, 64 + 5 * 32 + 3), 1)
    got = world.numbers([world.fetch(ack_required=False) for _ in range(world.q.len() - 1)])
    assert world.q.fetch() is None
    assert len(got) == 59
    assert got == sorted(got)
    (lost,) = set(range(60)) - set(got)
    assert 32 <= lost < 48
    events = world.rig.told("corruption")
    assert len(events) == 1
    assert path in events[0]
    assert world.q.len() == 0
    assert world.q.index().count == 1, "its bytes stay, for salvage"


# ---- Acknowledging --------------------------------------------------------------------


@pytest.mark.parametrize("way", ["no-ack", "one by one", "all at once", "backwards", "requeued"])
@pytest.mark.parametrize("mode", [DISK, NONE])
def test_every_way_to_acknowledge_with_half_in_ram(world: FlowWorld, way: str, mode: int) -> None:
    world.limit(25)
    world.put(*range(50), mode=mode)
    if way == "no-ack":
        assert world.drain() == list(range(50))
    else:
        got = world.take(50)
        assert world.numbers(got) == list(range(50))
        tags = tags_of(got)
        if way == "one by one":
            for tag in tags:
                assert len(world.q.ack([tag], OS)) == 1
        elif way == "requeued":
            world.q.requeue(tags, OS)
            assert world.drain() == list(range(50))
        else:
            assert len(world.q.ack(tags[:: -1 if way == "backwards" else 1], OS)) == 50
    assert (world.q.depth(), world.q.ram_bytes()) == (0, 0)
    assert not world.flowed()
    world.restart()
    assert world.q.depth() == 0


def test_the_directory_goes_with_the_queue(world: FlowWorld) -> None:
    world.limit(0)
    world.put(*range(100))
    world.put(*range(100), mode=NONE)
    world.page()
    path = world.q.index().path
    assert world.rig.fs.exists(path)
    world.queues.clear()
    world.q.delete_and_terminate(OS)
    world.rig.restart()
    assert not world.rig.fs.exists(path)
