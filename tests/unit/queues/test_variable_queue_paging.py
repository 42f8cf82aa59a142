"""What RabbitMQ's own tests of its variable queue ask for, re-created as behaviours.

Segments have 16 slots. The engine's clock stands still but for what a test lets pass."""

import random
from collections.abc import Callable

import pytest

from penstock.queues import paging
from penstock.queues.backing_queue import UNLIMITED, Delivery
from penstock.storage.files.durability import DISK, NONE, OS
from penstock.storage.upkeep import RELEASE_MESSAGES
from tests.helpers.engine_rig import STORED, EngineRig
from tests.helpers.queue_world import World, tags_of
from tests.helpers.variable_queues import info_int, lengths, opens, real

SLOTS = 16
INFINITY = float("inf")


@pytest.fixture
def world() -> World:
    return World(EngineRig(segment_slots=SLOTS), opens(read_bytes=0))


def churn(world: World, next_number: int, rounds: int) -> tuple[list[int], int]:
    """Publish three, take three and acknowledge them; what was taken, and the next number."""
    got: list[int] = []
    for _ in range(rounds):
        world.put(*range(next_number, next_number + 3))
        next_number += 3
        deliveries = world.take(3)
        got += world.numbers(deliveries)
        world.q.ack(tags_of(deliveries), OS)
    return got, next_number


def test_the_duration_target_may_change_at_any_time(world: World) -> None:
    world.put(*range(2 * SLOTS))
    got, n = churn(world, 2 * SLOTS, 5)
    world.rig.clock.advance(5.0)
    duration = world.q.ram_duration()
    assert 0 < duration < INFINITY
    for target in (duration / 4, 0.0, duration / 4, INFINITY):
        world.q.set_ram_duration_target(target)
        world.page()
        if target == 0.0:
            assert info_int(world.q, "ram_messages") == 0
        more, n = churn(world, n, 8)
        got += more
    assert got + world.drain() == list(range(n))


def test_a_duration_is_a_number_of_bytes_at_the_present_rates(world: World) -> None:
    for _ in range(10):
        world.put(*range(100))
        world.q.ack(tags_of(world.take(100)), OS)
        world.rig.clock.advance(1.0)
        world.q.ram_duration()
    world.put(*range(100))
    world.q.set_ram_duration_target(1.0)
    whole = info_int(world.q, "target_bytes")
    world.q.set_ram_duration_target(0.5)
    half = info_int(world.q, "target_bytes")
    assert 0 < half < whole < UNLIMITED
    assert abs(half - whole / 2) < whole / 10
    world.q.set_ram_duration_target(INFINITY)
    assert info_int(world.q, "target_bytes") == UNLIMITED


def test_an_idle_queue_lasts_for_ever(world: World) -> None:
    assert world.q.ram_duration() == INFINITY
    world.put(*range(10))
    world.rig.clock.advance(1.0)
    assert world.q.ram_duration() < INFINITY
    world.rig.clock.advance(1e6)
    assert world.q.ram_duration() == INFINITY


def test_a_segment_and_a_half(world: World) -> None:
    world.put(*range(SLOTS + SLOTS // 2))
    world.q.set_ram_duration_target(0.0)
    world.page()
    assert lengths(world) == (0, SLOTS, SLOTS // 2, 0, 0)
    delta = real(world.q).state.delta
    assert (delta.start, delta.count, delta.end) == (SLOTS, SLOTS // 2, SLOTS + SLOTS // 2)
    world.q.set_ram_duration_target(INFINITY)
    world.put(24)
    assert lengths(world) == (0, SLOTS, SLOTS // 2, 0, 1)
    assert world.numbers(world.take(SLOTS)) == list(range(SLOTS))
    assert lengths(world) == (0, SLOTS // 2, 0, 0, 1)
    assert (delta.start, delta.count, delta.end) == (0, 0, 0)
    assert world.drain() == list(range(SLOTS, 25))


@pytest.mark.parametrize("limit", [0, 1500, UNLIMITED])
def test_only_persistent_messages_outlive_a_restart(world: World, limit: int) -> None:
    world.q.set_limits(limit, 0)
    for i in range(2 * SLOTS):
        world.put(i, mode=DISK if i % 2 else NONE)
    assert world.numbers(world.take(2)) == [0, 1]
    world.restart()
    assert world.q.len() == SLOTS
    first = world.fetch()
    assert (world.numbers([first]), first.is_redelivered) == ([1], True)
    assert not world.fetch().is_redelivered
    assert world.drain() == list(range(5, 2 * SLOTS, 2))


@pytest.mark.parametrize("limit", [0, 1500, UNLIMITED])
def test_requeued_transient_messages_end_with_the_queue(world: World, limit: int) -> None:
    world.q.set_limits(limit, 0)
    world.put(*range(SLOTS), mode=NONE)
    got = world.take(SLOTS)
    world.page()
    world.q.requeue(tags_of(got), OS)
    world.page()
    world.rig.engine.tick()
    assert world.q.len() == SLOTS
    world.restart()
    assert world.q.depth() == 0


def test_dropping_what_is_on_disk_reads_no_body(world: World) -> None:
    world.put(*range(6))
    world.q.set_limits(0, 0)
    world.page()
    assert lengths(world)[0] == 0
    reads = info_int(world.q, "disk_reads")
    tags = [head.tag for head in (world.q.drop(), world.q.drop()) if head]
    gone = world.q.drop(ack_required=False)
    assert gone is not None
    assert info_int(world.q, "disk_reads") == reads
    assert info_int(world.q, "pending") == 2
    world.q.requeue(tags, OS)
    assert world.drain() == [0, 1, 3, 4, 5]


def test_a_fold_over_paged_pending_messages(world: World) -> None:
    for i in range(20):
        world.put(i, mode=DISK if i % 3 else NONE)
    tags = tags_of(world.take(20))
    world.q.set_limits(0, 0)
    world.page()
    assert info_int(world.q, "paged_pending") == 20
    ram = world.q.ram_bytes() - info_int(world.q, "row_bytes")
    found = world.numbers(
        [d for tag in tags if (d := world.q.pending(tag, with_body=True)) is not None]
    )
    assert found == list(range(20))
    assert world.q.ram_bytes() - info_int(world.q, "row_bytes") == ram, "no body stays in RAM"
    assert len(world.q.ack(tags, OS)) == 20
    assert world.q.depth() == 0


@pytest.mark.parametrize("targets", [(0.0, INFINITY, 0.0), (INFINITY, 0.0, INFINITY)])
def test_predicates_work_at_every_target(world: World, targets: tuple[float, ...]) -> None:
    q = world.q
    n = 0
    for target in targets:
        for i in range(n, n + 10):
            q.publish(b"", world.body(i), DISK, expiry_ms=i)
        q.set_ram_duration_target(target)
        world.page()
        head = q.dropwhile(lambda h, n=n: h.expiry_ms < n + 3, OS)  # type: ignore[misc]
        assert head is not None
        assert head.expiry_ms == n + 3
        world.page()

        got = world.take(3)
        head = q.head()
        assert head is not None
        assert head.expiry_ms == n + 6
        assert world.numbers(got) == [n + 3, n + 4, n + 5]
        world.page()
        q.requeue(tags_of(got), OS)
        assert q.dropwhile(lambda h, n=n: h.expiry_ms < n + 10, OS) is None  # type: ignore[misc]
        n += 10
    assert q.depth() == 0


def test_pending_messages_leave_ram_too(world: World) -> None:
    world.put(*range(1024))
    world.take(512)
    world.q.set_ram_duration_target(0.0)
    world.page()
    info = world.q.info()
    assert (info["ram_messages"], info["alphas"]) == (0, 0)
    assert info["pending"] == info["paged_pending"] == 512
    assert real(world.q).state.ram_pending == {}
    assert world.drain() == list(range(512, 1024))


def test_the_youngest_pending_messages_leave_first(world: World) -> None:
    world.put(*range(20))
    got = world.take(20)
    world.q.set_limits(world.q.ram_bytes() // 2, 0)
    world.page()
    state = real(world.q).state
    assert 4 < len(state.ram_pending) < 16
    assert sorted(state.ram_pending) == tags_of(got)[: len(state.ram_pending)]


def test_a_purge_of_a_queue_that_is_in_all_places(world: World) -> None:
    world.put(*range(60))
    got = world.take(10)
    world.q.set_limits(3000, 0)
    world.page()
    world.put(60, 61)
    assert world.q.purge(OS) == 52
    assert lengths(world) == (0, 0, 0, 0, 0)
    assert (world.q.len(), world.q.depth()) == (0, 10)
    world.q.requeue(tags_of(got)[::2], OS)
    assert world.q.purge_acks(OS) == 5
    assert world.drain() == [0, 2, 4, 6, 8]


@pytest.mark.parametrize("mode", [DISK, NONE])
@pytest.mark.parametrize("body_bytes", [0, STORED])
@pytest.mark.parametrize("ahead", [True, False])
def test_what_was_read_back_is_paged_out_for_nothing(
    mode: int, body_bytes: int, ahead: bool
) -> None:
    rig = EngineRig(segment_slots=SLOTS)
    world = World(rig, opens(read_bytes=0 if ahead else 1 << 18), body_bytes=body_bytes)
    world.put(*range(40), mode=mode)
    world.q.set_limits(0, 0)
    world.page()
    world.q.set_limits(UNLIMITED, UNLIMITED)
    got: list[Delivery] = []
    for _ in range(8):
        if ahead:
            world.inhale()
        got += world.take(4)
    world.q.requeue(tags_of(got)[::2], OS)
    assert info_int(world.q, "ram_messages") + info_int(world.q, "pending") > 20
    assert not ahead or body_bytes or lengths(world)[0] > 16 + 4, "some were read ahead"
    writes = info_int(world.q, "disk_writes")
    world.q.set_limits(0, 0)
    world.page()
    assert info_int(world.q, "ram_messages") == 0
    again = info_int(world.q, "disk_writes") - writes
    slots = info_int(world.q, "paged_pending") if mode == NONE else 0  # they have none before
    assert again <= slots, "what is on disk is not written again"
    world.q.requeue(tags_of(got)[1::2], OS)
    assert world.drain() == list(range(40))


def test_nothing_is_left_of_what_is_gone(world: World) -> None:
    for i in range(60):
        world.put(i, mode=DISK if i % 3 else NONE)
    world.q.set_limits(2000, 0)
    for _ in range(3):
        got = world.take(30)
        world.page()
        world.q.requeue(tags_of(got), OS)
        world.page()
    assert world.drain() == list(range(60))
    state = real(world.q).state
    assert (state.places, state.transient_attempts, state.delta_transients) == ({}, {}, {})
    assert world.q.index().attempts == {}
    assert world.q.ram_bytes() == 0


# ---- Requeue with holes ---------------------------------------------------------------


def with_holes(world: World, *, mode: int = DISK) -> tuple[list[Delivery], list[int]]:
    """A queue whose every other message is pending and paged out, in q4, q3, delta and q1.
    The deliveries, and the numbers of the ready."""
    world.put(*range(80), mode=mode)
    got = world.take(80)
    world.q.requeue(tags_of(got)[::2], OS)
    world.q.set_limits(2500, 0)
    world.page()
    world.q.set_limits(UNLIMITED, 0)
    world.put(80, 81, mode=mode)
    return got[1::2], [*range(0, 80, 2), 80, 81]


@pytest.mark.parametrize("mode", [DISK, NONE])
@pytest.mark.parametrize("back", [slice(None), slice(None, None, 3), slice(30, None), slice(9)])
def test_requeue_into_holes(world: World, mode: int, back: slice) -> None:
    pending, ready = with_holes(world, mode=mode)
    q4, q3, delta, _, q1 = lengths(world)
    assert q3
    assert delta
    assert q1
    assert q4 + q3 + delta + q1 == len(ready)
    world.q.requeue(tags_of(pending)[back], OS)
    world.page()
    expected = sorted(ready + world.numbers(pending)[back])
    assert [number for number, is_pending in world.seen() if not is_pending] == expected
    assert world.drain() == expected


def test_requeue_into_a_queue_of_betas(world: World) -> None:
    world.put(*range(2 * SLOTS + 2))
    got = world.take(2 * SLOTS + 2)
    world.q.requeue(tags_of(got)[::2], OS)
    world.q.set_ram_duration_target(0.0)
    world.page()
    assert lengths(world)[0] == lengths(world)[4] == 0
    world.q.requeue(tags_of(got)[1::2], OS)
    assert world.drain() == list(range(2 * SLOTS + 2))


def test_what_comes_back_without_room_stays_on_disk(world: World) -> None:
    world.put(*range(60))
    got = world.take(60)
    world.q.set_limits(2000, 0)
    world.page()
    world.q.requeue(tags_of(got)[5:], OS)
    assert world.q.ram_bytes() <= 4000, "nothing was read back into a full queue"
    world.page()
    assert world.drain() == list(range(5, 60))


# ---- Fold -----------------------------------------------------------------------------


def in_all_parts(world: World) -> None:
    """A queue with something in each of its five parts, pending in RAM and on disk."""
    state = real(world.q).state
    world.put(*range(40))
    world.take(3)
    paging.push_pending(state, 2)
    paging.push_q4(state, 30)
    paging.push_betas_to_deltas(state, 10)
    world.put(40, 41, 42, 43)
    paging.push_q1(state, 2)
    assert all(lengths(world))
    assert len(state.ram_pending) == 1


def test_fold_and_browse_leave_every_part_as_it_was(world: World) -> None:
    in_all_parts(world)
    before = (lengths(world), world.q.ram_bytes())
    assert world.seen() == [(i, i < 3) for i in range(44)]
    assert (lengths(world), world.q.ram_bytes()) == before
    for n in (1, 5, 100):
        seen: list[Delivery] = []
        while piece := world.q.browse(seen[-1].tag if seen else None, n):
            seen += piece
        assert world.numbers(seen) == list(range(3, 44))
    assert (lengths(world), world.q.ram_bytes()) == before
    assert world.drain() == list(range(3, 44))


@pytest.mark.parametrize("cut", range(1, 44, 3))
def test_fold_may_end_in_any_part(world: World, cut: int) -> None:
    in_all_parts(world)

    def look(d: Delivery, is_pending: bool, acc: list[int]) -> tuple[bool, list[int]]:
        found = [*acc, *world.numbers([d])]
        return len(found) < cut, found

    assert world.q.fold(look, list[int]()) == list(range(cut))
    assert world.drain() == list(range(3, 44))


# ---- Modes ----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_flips_between_default_and_lazy(world: World, seed: int) -> None:
    rng = random.Random(seed)
    q = world.q
    published = 0
    ready: list[int] = []
    pending: dict[int, int] = {}  # tag -> number

    def publish() -> None:
        nonlocal published
        n = rng.randint(1, 12)
        numbers = list(range(published, published + n))
        published += n
        for number in numbers:
            q.publish(b"h", world.body(number), rng.choice([DISK, OS, NONE]))
        ready.extend(numbers)

    def fetch() -> None:
        for _ in range(min(rng.randint(1, 10), len(ready))):
            delivery = world.fetch()
            assert world.numbers([delivery]) == [ready.pop(0)]
            pending.update({delivery.tag: world.numbers([delivery])[0]})

    def settle() -> None:
        tags = rng.sample(sorted(pending), rng.randint(0, len(pending)))
        if rng.random() < 0.5:
            q.requeue(tags, OS)
            ready.extend(pending[tag] for tag in tags)
            ready.sort()
        else:
            q.ack(tags, OS)
        for tag in tags:
            del pending[tag]

    actions: list[Callable[[], object]] = [
        publish, publish, fetch, settle, world.page, q.resume, q.inhale,
        lambda: q.set_queue_mode("lazy"), lambda: q.set_queue_mode("default"),
    ]  # fmt: skip
    for _ in range(150):
        rng.choice(actions)()
        assert (q.len(), q.depth()) == (len(ready), len(ready) + len(pending))
    assert world.drain() == ready


def test_a_lazy_queue_keeps_no_body(world: World) -> None:
    world.put(*range(30))
    world.q.set_queue_mode("lazy")
    world.page()
    assert lengths(world)[0] == lengths(world)[3] == lengths(world)[4] == 0
    assert info_int(world.q, "alphas") == 0
    world.put(*range(30, 40))
    assert info_int(world.q, "alphas") == 0
    assert world.q.info()["mode"] == "lazy"
    world.q.set_queue_mode("default")
    assert world.q.info()["mode"] == "default"
    world.put(40)
    assert world.drain() == list(range(41))


# ---- Small queues ---------------------------------------------------------------------


@pytest.mark.parametrize("body_bytes", [20, STORED])
@pytest.mark.parametrize("slots", [SLOTS, 4 * SLOTS])
@pytest.mark.parametrize("reads", ["ahead", "a run"])
def test_rows_of_a_small_queue_that_has_grown_find_their_entries(
    body_bytes: int, slots: int, reads: str
) -> None:
    """They were made from the checkpoint's section; a later checkpoint has written their slots."""
    rig = EngineRig(sections=True, segment_slots=slots)
    world = World(rig, opens(read_bytes=1 << 18), body_bytes)
    world.put(*range(30))
    world.restart()
    world.q.set_limits(0, 0)
    world.page()
    assert lengths(world) == (0, SLOTS, 30 - SLOTS, 0, 0)
    world.put(*range(30, 100))
    rig.engine.upkeep.begin_checkpoint()
    rig.finish_checkpoint()
    assert not world.q.index().section
    world.q.set_limits(UNLIMITED, UNLIMITED)
    if reads == "ahead":
        world.inhale()
        assert lengths(world)[0] == 100
    got = world.take(100)
    assert [d.message.header for d in got] == [b"h%d" % i for i in range(100)]
    assert world.numbers(got) == list(range(100))


# ---- The store ------------------------------------------------------------------------


def test_store_files_go_with_the_messages() -> None:
    rig = EngineRig(segment_slots=SLOTS, msg_store_file_size_limit=2000)
    world = World(rig, opens(limit=0), body_bytes=STORED)
    world.put(*range(30))
    got = world.take(10)
    world.page()
    many = len(rig.store_names())
    assert many > 2
    assert world.q.purge(OS) == 20
    world.settle()
    rig.settle()
    rig.engine.checkpoint()
    rig.engine.checkpoint()
    assert len(rig.store_names()) < many
    found = world.numbers(
        [d for tag in tags_of(got) if (d := world.q.pending(tag, with_body=True)) is not None]
    )
    assert found == list(range(10))
    assert len(world.q.ack(tags_of(got), OS)) == 10
    world.restart()
    assert world.q.depth() == 0


@pytest.mark.parametrize("limit", [0, UNLIMITED])
def test_after_a_crash_all_of_two_segments_is_there_and_redelivered(limit: int) -> None:
    world = World(EngineRig(segment_slots=SLOTS), opens(limit=limit))
    world.put(*range(2 * SLOTS))
    world.settle()
    world.crash()
    assert world.q.len() == 2 * SLOTS
    got = world.take(2 * SLOTS)
    assert world.numbers(got) == list(range(2 * SLOTS))
    assert all(d.is_redelivered for d in got), "they are below the mark, for all that is known"


def test_the_marks_of_transient_messages_in_delta_are_those_of_a_set(world: World) -> None:
    state = real(world.q).state
    rng = random.Random(15)
    for _ in range(300):
        marked: set[int] = set()
        for seq in range(SLOTS):
            if rng.random() < rng.choice((0.3, 0.9, 1.0)):
                state.mark_transient(SLOTS + seq)
                marked.add(SLOTS + seq)
        while marked:
            start, stop = sorted(rng.sample(range(SLOTS, 2 * SLOTS + 1), 2))
            found = state.transients_between(start, stop)
            assert found == sorted(seq for seq in marked if start <= seq < stop)
            state.clear_transients(start, stop)
            marked -= set(found)
            assert bool(state.delta_transients) == bool(marked)
        state.delta_transients.clear()


@pytest.mark.parametrize("is_deleted", [False, True])
def test_paged_transients_are_released_in_slices(is_deleted: bool) -> None:
    """One turn reads RELEASE_MESSAGES of them at most; the files of a queue stay until all are."""
    world = World(EngineRig(segment_slots=4 * RELEASE_MESSAGES), opens(read_bytes=0))
    n = 3 * RELEASE_MESSAGES
    world.put(*range(n), mode=NONE)
    world.q.set_limits(0, 0)
    world.page()
    index = world.q.index()
    held = sum(index.transients.values())
    assert held >= n - 1
    if is_deleted:
        world.q.delete_and_terminate(OS)
    else:
        assert world.q.purge(OS) == n
    assert sum(index.transients.values()) >= held - RELEASE_MESSAGES, "one slice at once"
    deleted = world.rig.engine.state.deleted
    assert index not in deleted
    for _ in range(n):
        if not world.rig.engine.upkeep.reap():
            break
    assert not any(index.transients.values())
    assert (index in deleted) == is_deleted
