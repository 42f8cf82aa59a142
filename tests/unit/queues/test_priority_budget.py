"""PriorityBudget: one budget for all priorities, and the lowest is paged out first."""

import random

import pytest

from penstock.queues.backing_queue import UNLIMITED
from penstock.queues.priority_queue import PriorityQueue, open_backing
from penstock.queues.queue_ram import ALPHA_BYTES
from penstock.storage.files.durability import DISK, NONE, OS
from tests.helpers.engine_rig import EngineRig

BODY = 100
COST = ALPHA_BYTES + BODY  # of a message in RAM
SLOTS = 64
FLOOR = SLOTS * 32  # rows of a part that are on their way to delta: a segment of them at most


def opened(n: int = 3) -> tuple[EngineRig, PriorityQueue]:
    rig = EngineRig(segment_slots=SLOTS)
    q = open_backing(rig.engine, b"q", priorities=n - 1)
    assert isinstance(q, PriorityQueue)
    rig.engine.sync()
    return rig, q


def put(q: PriorityQueue, priority: int, n: int, mode: int = OS) -> None:
    for _ in range(n):
        q.publish(b"", b"x" * BODY, mode, priority=priority)
        q.check()


def page(q: PriorityQueue) -> None:
    for _ in range(1000):
        if not q.resume():
            return
        q.check()
    raise AssertionError("paging out never ends")


def alphas(q: PriorityQueue) -> list[int]:
    """How many messages of each part are in RAM, lowest priority first."""
    return [part.queue.state.ram_messages() for part in q.parts]


def writes(q: PriorityQueue) -> int:
    written = q.info()["disk_writes"]
    assert isinstance(written, int)
    return written


# ---- who is paged out --------------------------------------------------------------------------


def test_without_a_limit_nothing_is_paged_out() -> None:
    _, q = opened()
    for priority in range(3):
        put(q, priority, 200)
    page(q)
    assert alphas(q) == [200, 200, 200]
    assert writes(q) == 0


def test_below_the_limit_nothing_is_paged_out() -> None:
    _, q = opened()
    q.set_limits(400 * COST, 0)
    for priority in range(3):
        put(q, priority, 100)
    page(q)
    assert alphas(q) == [100, 100, 100]
    assert writes(q) == 0


def test_the_lowest_priority_is_paged_out_and_the_highest_stays() -> None:
    _, q = opened()
    q.set_limits(100 * COST, 0)
    for priority in range(3):
        put(q, priority, 60)
        assert q.ram_bytes() <= 100 * COST
    page(q)
    low, middle, high = alphas(q)
    assert high == 60
    assert 0 < middle < 60
    assert low == 0


@pytest.mark.parametrize("resumes", [False, True])
def test_what_is_urgent_gets_room_from_what_is_not(resumes: bool) -> None:
    """Also when nobody calls `resume` in between."""
    _, q = opened()
    q.set_limits(100 * COST, 0)
    put(q, 0, 300)
    for n in range(1, 81):
        put(q, 2, 1)
        if resumes:
            page(q)
        assert alphas(q)[2] == n
        assert q.ram_bytes() <= 100 * COST


def test_what_is_not_urgent_gets_no_room_from_what_is() -> None:
    _, q = opened()
    q.set_limits(100 * COST, 0)
    put(q, 2, 85)
    page(q)
    assert alphas(q)[2] == 85
    put(q, 0, 100)
    page(q)
    assert alphas(q)[2] == 85
    assert alphas(q)[0] <= 15


def test_when_what_was_urgent_is_done_the_room_is_for_the_rest() -> None:
    rig, q = opened()
    q.set_limits(100 * COST, 0)
    put(q, 2, 80)
    put(q, 0, 200)
    page(q)
    rig.engine.sync()
    for _ in range(80):
        delivery = q.fetch()
        assert delivery is not None
        q.ack([delivery.tag], OS)
    page(q)
    rig.engine.flush()
    put(q, 1, 60)
    page(q)
    assert alphas(q)[1] == 60


def test_of_256_priorities_the_highest_are_in_ram() -> None:
    _, q = opened(256)
    q.set_limits(1000 * COST, 0)
    order = list(range(256)) * 8
    random.Random(1).shuffle(order)
    for priority in order:
        q.publish(b"", b"x" * BODY, OS, priority=priority)
        assert q.ram_bytes() <= 1000 * COST
    q.check()
    page(q)
    found = alphas(q)
    assert found[200:] == [8] * 56
    assert sum(found[:100]) < 100


# ---- how much ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_the_whole_is_never_above_its_limit(seed: int) -> None:
    """Whatever comes and goes; `resume` only now and then."""
    rng = random.Random(seed)
    rig, q = opened(4)
    limit = 60 * COST
    q.set_limits(limit, limit // 2)
    pending: list[int] = []
    for step in range(1500):
        act = rng.random()
        if act < 0.55:
            size = rng.choice([0, 10, BODY, BODY, 500])
            mode = rng.choice([OS, OS, NONE])
            q.publish(b"", b"x" * size, mode, priority=rng.randrange(4))
        elif act < 0.8:
            delivery = q.fetch()
            if delivery is not None:
                pending.append(delivery.tag)
        elif act < 0.9 and pending:
            q.ack([pending.pop(rng.randrange(len(pending)))], OS)
        elif act < 0.95 and pending:
            q.requeue([pending.pop(rng.randrange(len(pending)))], OS)
        elif act < 0.97:
            q.resume()
        elif act < 0.98:
            q.inhale()
        if step % 50 == 0:
            rig.engine.sync()
        q.check()
        assert q.ram_bytes() <= limit + 4 * FLOOR, f"step {step}"


@pytest.mark.parametrize("seed", range(4))
def test_a_publish_pages_out_four_messages_at_most(seed: int) -> None:
    rng = random.Random(seed)
    _, q = opened(4)
    q.set_limits(60 * COST, 0)
    for _ in range(800):
        size = rng.choice([0, 10, BODY, 500, 3000])
        before = writes(q)
        q.publish(b"", b"x" * size, OS, priority=rng.randrange(4))
        assert writes(q) - before <= 5, "four, and its own"
        assert q.ram_bytes() <= 60 * COST + 4 * FLOOR
        q.check()
        if rng.random() < 0.05:
            before = writes(q)
            q.resume()
            assert writes(q) - before <= 256


def test_lowering_the_limit_pages_out_in_slices() -> None:
    _, q = opened()
    for priority in range(3):
        put(q, priority, 400)
    q.set_limits(0, 0)
    assert writes(q) == 0
    for _ in range(100):
        before = writes(q)
        if not q.resume():
            break
        assert writes(q) - before <= 256
    assert alphas(q) == [0, 0, 0]
    assert q.ram_bytes() <= 3 * FLOOR


def test_room_is_given_only_when_it_is_there() -> None:
    """The lowest part keeps its bytes until they are paged out, and they count."""
    _, q = opened()
    put(q, 0, 100)
    q.set_limits(100 * COST, 0)
    budget = q.budget
    low, _, high = q.parts
    assert low.max_bytes == 100 * COST - 100 * COST // 8
    assert budget.pool_bytes == 0, "all of it is still in use"
    page(q)
    assert budget.pool_bytes == 100 * COST // 8
    assert high.max_bytes == 0
    put(q, 2, 1)
    assert high.max_bytes == COST
    assert budget.pool_bytes == 100 * COST // 8 - COST


def test_what_fills_the_queue_leaves_something_for_what_is_more_urgent() -> None:
    _, q = opened()
    q.set_limits(160 * COST, 0)
    put(q, 0, 1000)
    assert 10 * COST <= q.budget.pool_bytes <= 20 * COST
    assert sum(alphas(q)) <= 150
    put(q, 1, 1000)
    assert 10 * COST <= q.budget.pool_bytes <= 20 * COST
    assert alphas(q)[0] == 0
    put(q, 2, 100)
    assert alphas(q)[2] == 100


@pytest.mark.parametrize("size", [0, 10, BODY, 300])
def test_no_more_is_paged_out_than_fills_the_pool(size: int) -> None:
    """The pool has an eighth of the budget; a message is paged out whole."""
    _, q = opened()
    cost = ALPHA_BYTES + size
    limit = 24 * cost
    q.set_limits(limit, 0)
    for _ in range(5):
        q.publish(b"", b"x" * size, OS, priority=2)
    for priority in [0, 0, 0, 0, 1, *[0, 0, 0, 0, 0, 0, 0, 1] * 2]:
        low_before = alphas(q)[0]
        pool_before = q.budget.pool_bytes
        q.publish(b"", b"x" * size, OS, priority=priority)
    assert alphas(q)[0] < low_before, "the last one had its room of the lowest priority"
    assert pool_before < q.budget.pool_bytes <= limit // 8 + cost


def test_the_share_counts_if_it_is_the_smaller_one() -> None:
    _, q = opened()
    put(q, 0, 100)
    q.set_limits(80 * COST, 0)
    q.set_share(40 * COST)
    page(q)
    assert q.ram_bytes() <= 40 * COST
    assert q.info()["target_bytes"] == 40 * COST
    q.set_share(UNLIMITED)
    assert q.info()["target_bytes"] == 80 * COST
    q.set_limits(UNLIMITED, UNLIMITED)
    assert [part.max_bytes for part in q.parts] == [UNLIMITED] * 3


def test_read_ahead_is_for_what_comes_next() -> None:
    rig, q = opened()
    put(q, 0, 50)
    put(q, 2, 50)
    rig.engine.sync()
    q.terminate()
    rig.restart()
    again = open_backing(rig.engine, b"q", priorities=2)
    assert isinstance(again, PriorityQueue)
    again.set_limits(40 * COST, 20 * COST)
    assert alphas(again) == [0, 0, 0]
    assert again.head() is not None
    for _ in range(100):
        if not again.inhale():
            break
        rig.engine.poll(wait=True)
        again.check()
    low, _, high = alphas(again)
    assert high >= 15
    assert low == 0
    assert again.ram_bytes() <= 40 * COST


def test_a_full_disk_pages_nothing_and_loses_nothing() -> None:
    rig, q = opened()
    q.set_limits(20 * COST, 0)
    (other,) = rig.declare(b"other")
    for _ in range(10):
        rig.engine.publish([other], b"", b"x" * BODY, OS)
    put(q, 0, 16)
    page(q)
    rig.engine.journal.blocked = True
    before = writes(q)
    for entry in rig.entries(other, *range(10)):  # a dead letter is not refused for want of space
        rig.engine.move(other, entry, [q.index(2)], b"", OS)
        q.check()
    page(q)
    assert writes(q) == before
    assert alphas(q) == [16, 0, 10]
    rig.engine.journal.blocked = False
    page(q)
    q.check()
    assert alphas(q)[2] == 10
    assert q.ram_bytes() <= 20 * COST


def test_deals_are_rare() -> None:
    """Most publishes look at nothing but their own part."""
    _, q = opened(256)
    q.set_limits(1 << 20, 0)
    deals = 0
    deal = q.budget.deal

    def counted() -> None:
        nonlocal deals
        deals += 1
        deal()

    if not hasattr(type(q.budget).deal, "__code__"):
        pytest.skip("a compiled budget cannot be listened to")
    q.budget.deal = counted  # type: ignore[method-assign]
    rng = random.Random(3)
    for _ in range(10_000):
        q.publish(b"", b"x" * BODY, OS, priority=rng.randrange(256))
    q.check()
    assert deals <= 40
    assert q.ram_bytes() <= (1 << 20) + 256 * FLOOR


def test_a_durable_backlog_of_all_priorities_comes_back_in_order_under_a_small_limit() -> None:
    rig, q = opened(3)
    q.set_limits(10 * COST, 5 * COST)
    for i in range(90):
        q.publish(b"", b"%d" % i, DISK, priority=i % 3)
    rig.engine.sync()
    q.terminate()
    rig.restart()
    again = open_backing(rig.engine, b"q", priorities=2)
    again.set_limits(10 * COST, 5 * COST)
    rig.engine.sync()
    found = []
    while (delivery := again.fetch(ack_required=False)) is not None:
        found.append(int(delivery.message.body or b""))
        assert again.ram_bytes() <= 10 * COST + 3 * FLOOR
    assert found == [i for p in (2, 1, 0) for i in range(90) if i % 3 == p]


# ---- after it was paged out --------------------------------------------------------------------

LARGE_SLOTS = 1024


def flowed(parts: int, limit: int, *, by_priority: bool, header: bytes) -> PriorityQueue:
    """A queue that holds four times what its limit allows. by_priority: the lowest came first."""
    rig = EngineRig(
        segment_slots=LARGE_SLOTS, queue_index_embed_msgs_below=4096, wal_inline_below=32 << 10,
        wal_segment_bytes_min=1 << 20, wal_segment_bytes_max=1 << 20,
    )  # fmt: skip
    q = open_backing(rig.engine, b"q", priorities=parts - 1)
    assert isinstance(q, PriorityQueue)
    rig.engine.sync()
    q.set_limits(limit, limit // 2)
    n = 4 * limit // (COST + len(header))
    for i in range(n):
        q.publish(header, b"x" * BODY, OS, priority=i * parts // n if by_priority else i % parts)
    rest(rig, q)
    assert q.ram_bytes() <= limit
    return q


def rest(rig: EngineRig, q: PriorityQueue) -> None:
    """What the owner of a queue does until nothing is left to do."""
    for _ in range(30):
        before = q.ram_bytes()
        page(q)
        q.inhale(at_rest=True)
        while rig.engine.journal.has_pending:
            rig.engine.poll(wait=True)
        if q.ram_bytes() == before:
            return
    raise AssertionError("it never rests")


def drain_to(q: PriorityQueue, n_bytes: int, header: bytes) -> int:
    """Get and acknowledge until the rest would take so many bytes in RAM. Return the least that was
    there after a rest in between."""
    engine = q.parts[0].queue.engine
    least = q.ram_bytes()
    got = 0
    while q.len() * (COST + len(header)) > n_bytes:
        delivery = q.fetch()
        if delivery is None:
            held = q.held()
            assert held is not None
            engine.wait(*held)
            continue
        q.ack([delivery.tag], OS)
        got += 1
        if got % 50 == 0:
            page(q)
            q.inhale(at_rest=True)
            while engine.journal.has_pending:
                engine.poll(wait=True)
            least = min(least, q.ram_bytes())
    return least


@pytest.mark.parametrize("parts", [2, 4, 10])
@pytest.mark.parametrize("by_priority", [False, True])
@pytest.mark.parametrize("header", [b"", b"h" * 100])
@pytest.mark.parametrize("percent", [90, 60])
def test_what_fits_again_comes_back_whole(
    parts: int, by_priority: bool, header: bytes, percent: int
) -> None:
    limit = 128 << 10
    q = flowed(parts, limit, by_priority=by_priority, header=header)
    drain_to(q, limit * percent // 100, header)
    for _ in range(3):
        page(q)
        q.inhale(at_rest=True)
        while q.parts[0].queue.engine.journal.has_pending:
            q.parts[0].queue.engine.poll(wait=True)
    assert sum(alphas(q)) == q.len(), q.budget.pool_bytes
    assert q.ram_bytes() <= limit
    assert percent > 80 or not q.info()["is_flowed"]
    before = writes(q)
    q.publish(header, b"x" * BODY, OS, priority=parts - 1)
    page(q)
    assert writes(q) == before, "there is room for more"


@pytest.mark.parametrize("parts", [2, 4, 10])
@pytest.mark.parametrize("by_priority", [False, True])
def test_what_does_not_fit_is_read_back_as_that_of_a_queue_without_priorities(
    parts: int, by_priority: bool
) -> None:
    """From the minimum on, here half of the limit, up to what the pool leaves."""
    limit = 128 << 10
    q = flowed(parts, limit, by_priority=by_priority, header=b"")
    for percent in (300, 250, 200, 150):
        least = drain_to(q, limit * percent // 100, b"")
        assert least > limit * 45 // 100
    deepest = q.ram_bytes()
    while deepest > limit // 2:
        drain_to(q, (q.len() - 10) * COST, b"")
        deepest = q.ram_bytes()
    drain_to(q, (q.len() - 50) * COST, b"")
    assert q.ram_bytes() > limit * 7 // 10


@pytest.mark.parametrize("percent", [90, 130])
def test_reads_go_on_from_one_priority_to_the_next_without_a_tick(percent: int) -> None:
    """A tick comes every few seconds; what one begins goes on as it does without priorities."""
    limit = 128 << 10
    q = flowed(10, limit, by_priority=True, header=b"")
    engine = q.parts[0].queue.engine
    while q.len() * COST > limit * percent // 100:
        delivery = q.fetch()
        if delivery is not None:
            q.ack([delivery.tag], OS)
        else:
            held = q.held()
            assert held is not None
            engine.wait(*held)
    page(q)
    q.inhale(at_rest=True)
    while engine.journal.has_pending:
        engine.poll(wait=True)
    if percent < 100:
        assert sum(alphas(q)) == q.len()
    assert q.ram_bytes() > limit * 3 // 4
    assert q.ram_bytes() <= limit
