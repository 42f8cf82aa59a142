"""Delays: the wheel, by itself where arithmetic will do, else under an AMQQueue."""

import random
from types import SimpleNamespace

import pytest

from penstock.errors import DiskFullError
from penstock.queues import delays
from penstock.queues.backing_queue import BackingQueue, Delivery
from penstock.queues.delays import (
    HEAP_MAX,
    HOUR,
    LEAD_MS,
    LOOK_MESSAGES,
    MINUTE,
    SECOND,
    SHARE_BYTES_MIN,
    SLICE,
    SPAN_MS,
    find_parts,
    place,
)
from penstock.storage.files.durability import DISK, NONE, OS
from tests.helpers.amq_world import REFERENCE, VARIABLE, AmqWorld, name_of
from tests.helpers.engine_rig import STORED

DAY_S = 86_400


@pytest.fixture(params=[VARIABLE, REFERENCE])
def world(request: pytest.FixtureRequest) -> AmqWorld:
    world = AmqWorld(request.param)
    world.open()
    return world


# ---- places ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wait_ms", "level"),
    [
        (0, SECOND), (1, SECOND), (60_000, SECOND), (70_000, MINUTE), (3_600_000, MINUTE),
        (3_700_000, HOUR), (100 * DAY_S * 1000, HOUR),
    ],
)  # fmt: skip
def test_the_level_is_by_how_long_it_waits(wait_ms: int, level: int) -> None:
    now_ms = 1_700_000_000_000 // 3_600_000 * 3_600_000
    assert place(now_ms + wait_ms, now_ms) == (level, (now_ms + wait_ms) // SPAN_MS[level])


def test_a_bucket_is_dealt_out_downwards_only() -> None:
    rng = random.Random(1)
    for _ in range(5000):
        now_ms = rng.randrange(10**12, 2 * 10**12)
        due_ms = now_ms + int(10 ** rng.uniform(0, 9))
        level, number = place(due_ms, now_ms)
        steps = 0
        while level != SECOND:
            acts_ms = number * SPAN_MS[level] - LEAD_MS[level]
            assert acts_ms > now_ms, "it would be dealt out to itself"
            now_ms = rng.randrange(acts_ms, due_ms + 1)
            lower, number = place(due_ms, now_ms)
            assert lower < level
            level = lower
            steps += 1
        assert steps <= 2


def test_parts_are_found_by_their_names() -> None:
    names = [b"q", b"q\x003", b"q\0ds12", b"q\0dm3", b"r\0dh4", b"q\0dx5", b"q\0ds", b"\0ds1x"]
    assert find_parts(names) == {b"q": [b"q\0ds12", b"q\0dm3"], b"r": [b"r\0dh4"]}


# ---- becoming due ------------------------------------------------------------------------------


@pytest.mark.parametrize("delay_ms", [1, 999, 1000, 59_999, 60_000, 61_500, 3_600_000, 3_700_001])
def test_never_early_and_to_the_ms(world: AmqWorld, delay_ms: int) -> None:
    world.rig.clock.advance(0.777)
    due_ms = world.now_ms + delay_ms
    world.put("a", delay_ms=delay_ms)
    while world.now_ms < due_ms:
        assert world.q.len() == 0
        assert (world.q.len(), world.q.delayed()) == (0, 1)
        at = world.q.next_event_ms()
        assert world.now_ms < at <= due_ms, "a timer that never comes, or comes too late"
        world.tick((at - world.now_ms) / 1000)
    assert world.now_ms == due_ms
    assert world.drain() == ["a"]


def test_within_a_second_in_the_order_of_due_times(world: AmqWorld) -> None:
    for delay_ms in (900, 100, 500, 300, 700):
        world.put(str(delay_ms), delay_ms=delay_ms)
    world.tick(0.5)
    assert world.drain() == ["100", "300", "500"]
    world.tick(1)
    assert world.drain() == ["700", "900"]


def test_what_comes_into_the_running_second_takes_its_place(world: AmqWorld) -> None:
    world.rig.clock.advance(0.1)
    world.put("late", delay_ms=800)
    world.tick()
    world.put("early", delay_ms=200)
    assert world.q.next_event_ms() == world.now_ms + 200
    world.tick(0.8)
    assert world.drain() == ["early", "late"]


def test_drained_parts_are_deleted(world: AmqWorld) -> None:
    for delay_ms in (500, 30_000, 1_000_000, 10_000_000):
        world.put("x", delay_ms=delay_ms)
    assert [name[0] for name in world.parts()] == ["h", "m", "s", "s"]
    world.tick(10_000)
    assert world.parts() == []
    assert len(world.closed) == 4
    assert world.q.next_event_ms() == 0


def test_a_long_delay_goes_down_level_by_level(world: AmqWorld) -> None:
    world.put("a", delay_ms=5 * DAY_S * 1000)
    seen: list[str] = []
    while world.q.len() == 0:
        seen += [name[0] for name in world.parts()]
        world.tick((world.q.next_event_ms() - world.now_ms) / 1000)
    assert seen == ["h", "m", "s"]


def test_overdue_messages_come_in_slices(world: AmqWorld) -> None:
    n = 2 * SLICE + 10
    for i in range(n):
        world.q.publish(b"", b"%d" % i, OS, delay_ms=1000)
    world.rig.clock.advance(100)
    assert world.q.tick(world.now_ms)
    assert world.q.len() == SLICE
    world.tick()
    assert world.drain() == [str(i) for i in range(n)]


def test_overdue_messages_come_for_a_slice_of_time(
    world: AmqWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each may be read from disk. What is due in a second keeps its order."""
    n = 200
    for i in range(n):
        world.q.publish(b"", b"%03d" % i, OS, delay_ms=2000 - i)
    world.rig.clock.advance(100)
    looks = 0

    def monotonic() -> float:
        nonlocal looks
        looks += 1
        return looks * delays.SLICE_S / 3

    monkeypatch.setattr(world.q.delays, "_clock", SimpleNamespace(monotonic=monotonic))
    steps, most = 0, 0
    while world.q.delays.count():
        before = world.q.len()
        world.q.delays.step(world.now_ms)
        most = max(most, world.q.len() - before)
        steps += 1
    assert most <= 4 * LOOK_MESSAGES
    assert steps > n // (4 * LOOK_MESSAGES)
    assert world.drain() == [f"{i:03d}" for i in reversed(range(n))]


def test_more_than_are_looked_at_together_all_come() -> None:
    world = AmqWorld(REFERENCE)
    world.open()
    n = HEAP_MAX + 300
    rng = random.Random(3)
    for i in range(n):
        world.q.publish(b"", b"%d" % i, OS, delay_ms=rng.randrange(1000, 2000))
    world.tick(1.5)
    early = world.drain()
    assert 0 < len(early) < n
    world.tick(1)
    assert sorted(map(int, early + world.drain())) == list(range(n))


def test_delayed_messages_are_not_ready(world: AmqWorld) -> None:
    world.put("a", delay_ms=1000)
    assert (world.q.len(), world.q.depth(), world.q.delayed()) == (0, 0, 1)
    assert world.get() is None


def test_a_first_delivery_after_a_delay_is_no_redelivery(world: AmqWorld) -> None:
    world.put("a", delay_ms=1000)
    world.restart()
    world.tick(1)
    first = world.take()
    assert (first.attempts, first.is_redelivered) == (0, False)
    world.q.nack(first.tag, delay_ms=1000)
    world.tick(1)
    again = world.take()
    assert (again.attempts, again.is_redelivered) == (1, True)


def test_the_queues_own_delay_and_none(world: AmqWorld) -> None:
    world.open("slow", delay_ms=1000)
    world.put("a", queue="slow")
    world.put("b", queue="slow", delay_ms=0)
    assert world.drain("slow") == ["b"]
    world.tick(1)
    assert world.drain("slow") == ["a"]


def test_owners_are_told_that_something_is_ready(world: AmqWorld) -> None:
    world.put("a", delay_ms=1000)
    world.tick(0.9)
    assert world.woken == []
    world.tick(0.1)
    assert world.woken == [b"q"]


# ---- with other options ------------------------------------------------------------------------


def test_a_ttl_counts_from_when_it_is_due(world: AmqWorld) -> None:
    world.put("a", "b", delay_ms=10_000, ttl_ms=5000)
    world.tick(14.999)
    assert name_of(world.take()) == "a"
    world.tick(0.001)
    assert world.drain() == []


def test_an_expiry_goes_on_while_a_retry_waits(world: AmqWorld) -> None:
    world.put("a", ttl_ms=5000)
    world.q.nack(world.take().tag, delay_ms=10_000)
    world.tick(10)
    assert world.drain() == []


def test_what_is_due_keeps_the_limits_and_exceeds_those_that_reject(world: AmqWorld) -> None:
    world.open("drop", max_length=1)
    world.open("reject", max_length=1, overflow="reject-publish")
    for name in ("drop", "reject"):
        world.put("a", "b", queue=name, delay_ms=1000)
    world.tick(1)
    assert world.ready("drop") == ["b"]
    assert world.ready("reject") == ["a", "b"]


def test_delayed_messages_in_a_queue_that_is_not_durable(world: AmqWorld) -> None:
    world.open("t", is_durable=False)
    world.put("a", queue="t", delay_ms=1000)
    assert world.parts("t") == []
    world.tick(1)
    world.queues["t"].nack(world.take("t").tag, delay_ms=1000)
    assert world.drain("t") == []
    world.tick(1)
    assert world.drain("t") == ["a"]


def test_a_transient_message_waits_as_one(world: AmqWorld) -> None:
    world.put("kept", delay_ms=1000)
    world.put("gone", delay_ms=1000, mode=NONE)
    world.put("gone too", delay_ms=1_000_000, mode=NONE)
    assert world.q.delayed() == 3
    world.restart()
    assert world.q.delayed() == 1
    world.put("here", delay_ms=1000, mode=NONE)
    world.tick(1)
    assert sorted(world.drain()) == ["here", "kept"]


def test_a_ttl_of_zero_has_its_chance_when_it_is_due(world: AmqWorld) -> None:
    world.put("a", "b", ttl_ms=0, delay_ms=1000)
    world.tick(1)
    assert name_of(world.take()) == "a"
    world.tick(1)
    assert world.get() is None


@pytest.mark.parametrize("delay_ms", [5_000, 500_000, 50_000_000])
def test_ram_is_bounded_however_many_wait(delay_ms: int) -> None:
    world = AmqWorld(VARIABLE)
    world.open(max_memory_bytes=1 << 20)
    body = "x" * 1000
    for i in range(200):
        world.q.publish(b"", f"{i} {body}".encode(), OS, delay_ms=delay_ms)
        world.q.tick(world.now_ms)
    assert world.q.delayed() == 200
    assert world.q.ram_bytes() <= SHARE_BYTES_MIN + 4096
    world.tick(delay_ms / 1000)
    assert [int(name.split()[0]) for name in world.drain()] == list(range(200))


# ---- restart and crash -------------------------------------------------------------------------


def test_a_restart_finds_all_parts(world: AmqWorld) -> None:
    for name, delay_ms in (("s", 5000), ("m", 500_000), ("h", 50_000_000)):
        world.put(name, delay_ms=delay_ms)
    world.restart()
    assert world.q.delayed() == 3
    assert world.q.next_event_ms() > world.now_ms
    for name, seconds in (("s", 5), ("m", 500), ("h", 50_000)):
        world.tick(seconds)
        assert world.drain() == [name]


def test_what_became_due_while_nobody_was_there(world: AmqWorld) -> None:
    world.put("first", delay_ms=5000)
    world.put("then", delay_ms=500_000)
    world.settle()
    world.crash()
    world.rig.clock.advance(DAY_S)
    world.tick()
    assert world.drain() == ["first", "then"]
    assert world.parts() == []


@pytest.mark.parametrize("image", ["lost", "kept"])
def test_a_crash_on_the_way_neither_loses_nor_doubles(world: AmqWorld, image: str) -> None:
    names = {f"{delay_ms}": delay_ms for delay_ms in (500, 45_000, 900_000, 9_000_000)}
    large = "x" * STORED
    for name, delay_ms in names.items():
        world.put(name, delay_ms=delay_ms)
    world.put(large, delay_ms=9_000_000)
    for turn in range(40):
        at = world.q.next_event_ms()
        if not at:
            break
        world.tick(max(at - world.now_ms, 0) / 1000)
        if turn % 2:
            world.settle()
        world.crash(image)
        assert world.everywhere() == dict.fromkeys([*names, large], 1)
    assert world.parts() == []
    assert sorted(world.drain()) == sorted([*names, large])


def test_a_retry_moves_in_one_record(world: AmqWorld) -> None:
    world.put("a")
    world.q.nack(world.take().tag, delay_ms=5000)
    world.crash()  # the record is lost
    assert (world.q.len(), world.q.delayed()) == (1, 0)
    world.q.nack(world.take().tag, delay_ms=5000)
    world.settle()
    world.crash()
    assert (world.q.len(), world.q.delayed()) == (0, 1)
    world.tick(5)
    assert world.take().attempts == 1


def test_each_way_of_a_message_is_one_record(world: AmqWorld) -> None:
    """What one record moves, no crash can lose or double."""
    engine = world.rig.engine
    world.put("other", delay_ms=5000)  # the part is there
    world.put("a")
    tag = world.take().tag
    before = engine.log.last_lsn
    assert world.q.nack(tag, delay_ms=5000) == engine.log.last_lsn == before + 1
    world.put("third", delay_ms=5900)
    world.rig.clock.advance(5)
    before = engine.log.last_lsn
    world.q.tick(world.now_ms)
    assert world.q.len() == 2
    assert engine.log.last_lsn == before + 2


def test_what_is_due_is_held_until_its_move_is_settled(world: AmqWorld) -> None:
    world.put("a", delay_ms=1000)
    world.tick(1)
    assert world.q.len() == 1
    held = world.q.held()
    assert held is not None
    assert held[1] == DISK
    assert world.q.fetch() is None
    world.rig.engine.wait(*held)
    assert world.q.fetch() is not None


# ---- what goes wrong ---------------------------------------------------------------------------


def damaged(position: int | None) -> AmqWorld:
    """Three messages in a minute's part on disk; the second one's body is damaged. Large bodies are
    in the store (position None), small ones in the part's own segment."""
    world = AmqWorld(VARIABLE)
    world.open()
    bodies = [letter * (STORED if position is None else 40) for letter in "abc"]
    world.put(*bodies, delay_ms=100_000)
    world.restart()
    fs = world.rig.fs
    if position is None:
        (path,) = [n for n in fs.names() if n.endswith(".rdq") and b"b" * STORED in fs.read(n)]
    else:
        (path,) = [n for n in fs.names() if n.endswith(".qs") and b"b" * 40 in fs.read(n)]
    fs.damage_flip(path, fs.read(path).index(b"bbbb") + (position or 0))
    return world


@pytest.mark.parametrize("position", [None, 20])
def test_a_damaged_message_does_not_stop_the_others(position: int | None) -> None:
    world = damaged(position)
    world.tick(99)
    world.tick(1)
    assert sorted(name[0] for name in world.drain()) == ["a", "c"]
    assert len(world.told("corruption")) == 1
    assert world.q.next_event_ms() == 0 or world.q.next_event_ms() > world.now_ms
    world.tick(1000)
    assert world.q.len() == 0


def test_no_room_for_a_part_makes_a_retry_come_at_once(world: AmqWorld) -> None:
    world.put("a")
    delivery = world.take()

    def is_full(name: bytes, is_durable: bool) -> BackingQueue:
        raise DiskFullError("/vhost", 0, 1)

    world.q.delays._open_part = is_full
    world.q.nack(delivery.tag, delay_ms=1000)
    assert world.take().attempts == 1


def test_a_full_disk_delays_what_is_due_and_loses_nothing(world: AmqWorld) -> None:
    world.put("a", delay_ms=1000)
    arrive = world.q.delays.arrive

    def is_full(source: BackingQueue, delivery: Delivery, header: bytes, expiry_ms: int) -> None:
        raise DiskFullError("/vhost", 0, 1)

    world.q.delays.arrive = is_full
    world.tick(1)
    assert (world.q.len(), world.q.delayed()) == (0, 1)
    world.q.delays.arrive = arrive
    world.tick()
    assert world.drain() == ["a"]
