"""Dead letters: each reason, what becomes of a header, cycles, missing and limited targets."""

import sys
from types import FrameType

import pytest

from penstock.embedded.option_parsing import NewBody
from penstock.errors import DiskFullError
from penstock.queues.amq_queue import DEAD_BYTES, DEAD_SLICE
from penstock.queues.backing_queue import NewMessage
from penstock.queues.dead_letter import HOPS_MAX, NESTED_HOPS_MAX, is_cycle, is_too_far
from penstock.queues.headers import Death
from penstock.queues.queue_options import QueueOptions
from penstock.storage.files.durability import DISK, NONE, OS
from tests.helpers.amq_world import HEADERS, REFERENCE, VARIABLE, AmqWorld, name_of
from tests.helpers.builds import pure_only
from tests.helpers.engine_rig import STORED


@pytest.fixture(params=[VARIABLE, REFERENCE])
def world(request: pytest.FixtureRequest) -> AmqWorld:
    return AmqWorld(request.param)


def deaths(world: AmqWorld, queue: str = "dead") -> list[tuple[str, str]]:
    """(queue, reason) of each death of the next message there, which is acknowledged."""
    delivery = world.take(queue)
    world.queues[queue].ack([delivery.tag])
    return [(d.queue, d.reason) for d in HEADERS.deaths(delivery.message.header)]


# ---- reasons -----------------------------------------------------------------------------------


def test_rejected(world: AmqWorld) -> None:
    q = world.open(dead_letter_to="dead")
    world.open("dead")
    world.put("a", "b", "c")
    q.reject(world.take().tag)
    q.nack(world.take().tag, requeue=False)
    assert world.ready("dead") == ["a", "b"]
    assert deaths(world) == [("q", "rejected")]
    assert q.info()["rejected"] == 2
    assert world.ready() == ["c"]


def test_expired_by_its_own_and_by_the_queues_ttl(world: AmqWorld) -> None:
    q = world.open(dead_letter_to="dead", ttl_ms=5000)
    world.open("dead")
    world.put("a", ttl_ms=1000)
    world.put("b")
    assert q.next_event_ms() == world.now_ms + 1000
    world.tick(1)
    assert deaths(world) == [("q", "expired")]
    assert q.next_event_ms() == world.now_ms + 4000
    world.tick(4)
    assert deaths(world) == [("q", "expired")]
    assert world.woken == [b"dead", b"dead"]


def test_an_expired_message_does_not_expire_again(world: AmqWorld) -> None:
    world.open(dead_letter_to="dead")
    world.open("dead")
    world.put("a", ttl_ms=1000)
    world.tick(9999)
    assert world.drain("dead") == ["a"]


@pytest.mark.parametrize("is_crash", [False, True])
def test_an_expiry_outlives_a_start(world: AmqWorld, is_crash: bool) -> None:
    world.open()
    world.put("a", ttl_ms=1000)
    world.put("b")
    world.crash() if is_crash else world.restart()
    assert world.q.next_event_ms() == world.now_ms + 1000
    world.rig.clock.advance(1)
    assert world.drain() == ["b"]


def test_the_targets_own_ttl_counts_from_the_death(world: AmqWorld) -> None:
    world.open(dead_letter_to="dead")
    world.open("dead", ttl_ms=1000)
    world.put("a", ttl_ms=1000)
    world.tick(1)
    world.tick(0.999)
    assert world.ready("dead") == ["a"]
    world.tick(0.001)
    assert world.ready("dead") == []


def test_maxlen(world: AmqWorld) -> None:
    world.open(dead_letter_to="dead", max_length=1)
    world.open("dead")
    world.put("a", "b")
    assert world.ready() == ["b"]
    assert deaths(world) == [("q", "maxlen")]


def test_messages_that_do_not_fit_together_move_in_order(world: AmqWorld) -> None:
    q = world.open(dead_letter_to="dead", max_length=2)
    world.open("dead")
    q.publish_many([NewMessage(b"", name.encode()) for name in "abcdef"], DISK)
    world.settle()
    assert world.ready() == ["e", "f"]
    assert world.drain("dead") == ["a", "b", "c", "d"]
    assert q.info()["maxlen"] == 4


def test_an_expired_head_is_found_by_fetch_too(world: AmqWorld) -> None:
    world.open(dead_letter_to="dead")
    world.open("dead")
    world.put("a", ttl_ms=1000)
    world.put("b")
    world.rig.clock.advance(1)
    assert name_of(world.take()) == "b"
    assert world.ready("dead") == ["a"]


@pytest.mark.parametrize("mode", [DISK, NONE])
@pytest.mark.parametrize("is_crash", [False, True])
def test_messages_that_expire_together_move_in_order(
    world: AmqWorld, mode: int, is_crash: bool
) -> None:
    q = world.open(dead_letter_to="dead", ttl_ms=1000)
    dead = world.open("dead", is_durable=mode != NONE)
    for i in range(10):
        q.publish(b"", str(i).encode(), mode)
    q.publish(b"", b"", mode)
    world.settle()
    before = world.rig.engine.log.last_lsn
    world.tick(1)
    assert (q.depth(), dead.len(), q.info()["expired"]) == (0, 11, 11)
    if mode != NONE and world.kind == VARIABLE:
        assert world.rig.engine.log.last_lsn == before + 1
    if is_crash and mode != NONE:
        world.settle()
        world.crash()
    assert world.drain("dead") == [*"0123456789", ""]


def test_of_those_that_expire_together_each_keeps_its_own_past(world: AmqWorld) -> None:
    q = world.open(dead_letter_to="dead", ttl_ms=1000)
    world.open("dead")
    other = HEADERS.with_death(b"", Death("elsewhere", "rejected", 1, 1))
    for name, header in (("a", b""), ("b", b""), ("c", b""), ("d", other), ("e", other)):
        world.put(name, header=header)
    for tag in [world.take().tag, world.take().tag]:
        q.nack(tag, delay_ms=0)
    world.tick(1)
    found = {}
    while (delivery := world.get("dead")) is not None:
        all_deaths = HEADERS.deaths(delivery.message.header)
        found[name_of(delivery)] = [(one.queue, one.attempts) for one in all_deaths]
    assert found == {
        "a": [("q", 1)],
        "b": [("q", 1)],
        "c": [("q", 0)],
        "d": [("q", 0), ("elsewhere", 1)],
        "e": [("q", 0), ("elsewhere", 1)],
    }


def test_a_message_that_goes_another_way_ends_a_run(world: AmqWorld) -> None:
    """The second would come back to where it died; the third has a priority."""
    world.open(dead_letter_to="dead", ttl_ms=1000)
    world.open("dead", priorities=2 if world.kind == VARIABLE else 0)
    came_back = HEADERS.with_death(b"", Death("dead", "expired", 1))
    for name, header in (("a", b""), ("b", came_back), ("c", b""), ("e", b"")):
        world.put(name, header=header, priority=2 if name == "c" else 0)
    world.tick(1)
    assert world.told("dead_letter_cycle") == [
        "queue 'q': its dead letters come back from 'dead': dropped"
    ]
    expected = ["c", "a", "e"] if world.kind == VARIABLE else ["a", "c", "e"]
    assert world.drain("dead") == expected
    assert world.q.dead_letters.counts["expired"] == 4


@pure_only
def test_what_a_full_disk_left_expires_again(world: AmqWorld) -> None:
    q = world.open(dead_letter_to="dead", ttl_ms=1000)
    world.open("dead")
    world.put("a", "b", "c")
    world.rig.clock.advance(1)

    def full(*given: object) -> int:
        raise DiskFullError("/data", 1, 0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(q.backing, "move_run", full)
        with pytest.raises(DiskFullError):
            q.expire()
    assert (q.len(), q.depth()) == (3, 3)
    assert q.expire() is False
    assert world.drain("dead") == ["a", "b", "c"]


def test_a_slice_of_expired_messages_ends_after_so_many_bytes(world: AmqWorld) -> None:
    """64 bodies just below the size of those that are copied in steps took 140 ms."""
    q = world.open(dead_letter_to="dead", ttl_ms=1000)
    dead = world.open("dead")
    for _ in range(8):
        q.publish(b"", bytes(DEAD_BYTES // 4 + 1), NONE)
    world.rig.clock.advance(1)
    assert (q.expire(), dead.len()) == (True, 4)
    assert (q.expire(), dead.len()) == (False, 8)


def test_fetch_expires_a_slice_and_says_that_there_is_more(world: AmqWorld) -> None:
    q = world.open(dead_letter_to="dead", ttl_ms=1000)
    dead = world.open("dead")
    for i in range(DEAD_SLICE + 5):
        q.publish(b"", b"%d" % i, OS)
    world.rig.clock.advance(1)
    q.publish(b"", b"alive", OS)
    assert q.fetch() is None
    assert (q.has_more_expired, dead.len()) == (True, DEAD_SLICE)
    assert name_of(world.take()) == "alive"
    assert (q.has_more_expired, dead.len()) == (False, DEAD_SLICE + 5)
    assert world.drain("dead") == [str(i) for i in range(DEAD_SLICE + 5)]


def test_expired_without_a_target_are_counted(world: AmqWorld) -> None:
    q = world.open(ttl_ms=1000)
    world.put("a", "b")
    world.tick(1)
    assert (q.depth(), q.info()["expired"]) == (0, 2)


def test_the_header_keeps_what_people_attached(world: AmqWorld) -> None:
    q = world.open(dead_letter_to="dead")
    world.open("dead")
    world.put("a", header=HEADERS.with_values(b"", {"k": "v"}))
    q.reject(world.take().tag)
    header = world.take("dead").message.header
    assert HEADERS.values(header) == {"k": "v"}
    (death,) = HEADERS.deaths(header)
    assert (death.time_ms, death.attempts, death.count) == (world.now_ms, 1, 1)


# ---- ttl 0 -------------------------------------------------------------------------------------


def test_ttl_zero_is_for_who_is_waiting(world: AmqWorld) -> None:
    q = world.open(dead_letter_to="dead")
    world.open("dead")
    world.put("nobody", ttl_ms=0)
    assert q.depth() == 0
    q.takers = 1
    world.put("a", ttl_ms=0)
    world.put("b", ttl_ms=0)
    assert world.ready() == ["a", "b"]
    assert name_of(world.take()) == "a"
    world.tick(0)
    assert world.ready("dead") == ["nobody", "b"]


def test_ttl_zero_dies_if_whoever_waited_does_not_come(world: AmqWorld) -> None:
    q = world.open(ttl_ms=0)
    q.takers = 1
    world.put("a")
    world.tick(1)
    assert q.depth() == 0
    q.takers = 0
    world.put("b")
    assert q.info()["expired"] == 2


@pytest.mark.parametrize("how", ["requeue", "nack", "release"])
@pytest.mark.parametrize("delay_ms", [0, 1000])
def test_ttl_zero_of_a_put_is_over_when_it_is_requeued(
    world: AmqWorld, how: str, delay_ms: int
) -> None:
    q = world.open(dead_letter_to="dead")
    world.open("dead", ttl_ms=60_000)
    q.takers = 1
    for body in (b"now", b"soon"):
        new = NewBody(body, ttl=0 if body == b"now" else 50.0, headers={"a": 1})
        q.publish(new.header, body, DISK, ttl_ms=new.ttl_ms, delay_ms=delay_ms)
    world.settle()
    world.tick(delay_ms / 1000)
    taken = [world.take(), world.take()]
    assert [name_of(one) for one in taken] == ["now", "soon"]
    assert [HEADERS.values(one.message.header) for one in taken] == [{"a": 1}] * 2
    for one in taken:
        if how == "nack":
            q.nack(one.tag, delay_ms=0)
        elif how == "requeue":
            q.requeue([one.tag])
        else:
            q.release([one.tag])
    world.settle()
    assert world.ready() == ["soon"]
    assert world.ready("dead") == ["now"]
    dead = world.take("dead")
    assert HEADERS.deaths(dead.message.header)[0].reason == "expired"
    assert not HEADERS.is_for_now(dead.message.header)  # the time to live was that of the old queue


def test_ttl_zero_stays_in_the_header_beside_all_else() -> None:
    header = HEADERS.for_now(HEADERS.with_(b"", attempts=3, priority=2, expiry_ms=1_000))
    assert header[:2] == bytes((1, 32 | 7))
    assert HEADERS.is_for_now(header)
    assert (HEADERS.attempts(header), HEADERS.priority(header)) == (3, 2)
    assert HEADERS.is_for_now(HEADERS.with_(header, attempts=0, priority=0, expiry_ms=0))
    for other in (b"", HEADERS.with_(b"", attempts=3)):
        assert not HEADERS.is_for_now(other)


@pytest.mark.parametrize("own_ms", [None, 0])
def test_ttl_zero_of_a_message_for_several_queues(world: AmqWorld, own_ms: int | None) -> None:
    """Its owner publishes it: it is for whoever waits, in each queue, else it dies in the queue."""
    world.open(dead_letter_to="dead", ttl_ms=None if own_ms == 0 else 0)
    world.open("other", ttl_ms=None if own_ms == 0 else 0)
    world.open("dead")
    world.q.takers = 1
    for queue, name in ((world.q, b"a"), (world.queues["other"], b"b"), (world.q, b"c")):
        plan = queue.plan(b"", ttl_ms=own_ms)
        engine = world.rig.engine
        message = engine.publish([plan.index], plan.header, name, DISK, plan.expiry_ms)
        queue.planned(plan, plan.index.next_seq - 1, message.size)
    world.settle()
    assert world.drain("other") == []
    assert name_of(world.take()) == "a"
    world.tick()
    assert world.drain("dead") == ["c"]
    assert world.q.info()["expired"] == 1


def test_ttl_zero_in_a_batch_and_for_dead_letters(world: AmqWorld) -> None:
    q = world.open(dead_letter_to="dead")
    dead = world.open("dead", ttl_ms=0)
    dead.takers = 1
    dead.publish_many([NewMessage(b"", b"a"), NewMessage(b"", b"b")], OS)
    assert world.drain("dead") == ["a"]
    world.put("c", "d")
    q.reject(world.take().tag)
    assert world.drain("dead") == ["c"]
    dead.takers = 0
    q.reject(world.take().tag)
    assert world.drain("dead") == []


# ---- cycles ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("died", "is_one"),
    [
        ([], False),
        ([("a", "expired")], True),
        ([("b", "expired"), ("a", "maxlen")], True),
        ([("b", "rejected"), ("a", "maxlen")], False),
        ([("b", "expired"), ("a", "rejected")], False),
        ([("a", "delivery_limit"), ("a", "rejected")], True),
        ([("b", "expired")], False),
    ],
)
def test_what_a_cycle_is(died: list[tuple[str, str]], is_one: bool) -> None:
    assert is_cycle("a", [Death(queue, reason, 1) for queue, reason in died]) == is_one


def test_an_automatic_cycle_ends(world: AmqWorld) -> None:
    world.open(dead_letter_to="other", ttl_ms=1000)
    other = world.open("other", dead_letter_to="q", ttl_ms=1000)
    world.put("a")
    world.tick(1)
    assert world.ready("other") == ["a"]
    world.tick(1)
    assert world.everywhere() == {}
    assert other.info()["dead_letters_dropped"] == 1
    assert world.told("dead_letter_cycle") == [
        "queue 'other': its dead letters come back from 'q': dropped"
    ]


def test_a_queue_that_is_its_own_target_drops_what_expires(world: AmqWorld) -> None:
    q = world.open(dead_letter_to="q", ttl_ms=1000, max_length=2)
    world.put("a", "b", "c")
    assert world.ready() == ["b", "c"]
    world.tick(1)
    assert q.depth() == 0


def test_a_cycle_with_a_reject_in_it_goes_on(world: AmqWorld) -> None:
    q = world.open(dead_letter_to="other")
    world.open("other", dead_letter_to="q", ttl_ms=1000)
    world.put("a")
    for turn in range(3):
        q.reject(world.take().tag)
        world.tick(1)
        peeked = world.q.peek()
        assert peeked is not None
        header = peeked.message.header
        assert [d.count for d in HEADERS.deaths(header)] == [turn + 1] * 2
        assert HEADERS.first_death(header) == ("q", "rejected")


# ---- targets -----------------------------------------------------------------------------------


def test_a_missing_target_drops_with_one_event_a_row(world: AmqWorld) -> None:
    q = world.open(dead_letter_to="nowhere")
    world.put("a", "b", "c")
    q.reject(world.take().tag)
    q.reject(world.take().tag)
    assert world.told("dead_letter_missing") == [
        "queue 'q': no queue 'nowhere' for dead letters: dropped"
    ]
    world.open("nowhere")
    q.reject(world.take().tag)
    assert world.drain("nowhere") == ["c"]
    assert (q.depth(), q.info()["dead_letters_dropped"]) == (0, 2)


@pytest.mark.parametrize("overflow", ["drop-head", "reject-publish", "reject-publish-dlx"])
def test_a_full_target_drops_its_head_or_refuses(world: AmqWorld, overflow: str) -> None:
    q = world.open(dead_letter_to="dead")
    world.open("dead", max_length=2, overflow=overflow)
    world.put("a", "b", "c")
    for _ in range(3):
        q.reject(world.take().tag)
    is_dropping = overflow == "drop-head"
    assert world.ready("dead") == (["b", "c"] if is_dropping else ["a", "b"])
    told = "queue 'q': a queue for its dead letters is full and refuses them: dropped"
    assert world.told("dead_letter_full") == ([] if is_dropping else [told])
    assert (q.depth(), q.info()["dead_letters_dropped"]) == (0, 0 if is_dropping else 1)


def test_what_a_full_target_refuses_is_dead_lettered_on(world: AmqWorld) -> None:
    q = world.open(dead_letter_to="dead")
    world.open("dead", max_length=1, overflow="reject-publish-dlx", dead_letter_to="grave")
    world.open("grave", max_length=1, overflow="reject-publish-dlx", dead_letter_to="end")
    world.open("end")
    world.put("a", "b", "c")
    for _ in range(3):
        q.reject(world.take().tag)
    assert [world.ready(name) for name in ("dead", "grave", "end")] == [["a"], ["b"], ["c"]]
    assert deaths(world, "grave") == [("dead", "maxlen"), ("q", "rejected")]
    assert (q.depth(), q.info()["dead_letters_dropped"]) == (0, 0)
    assert world.told("dead_letter_full") == []


def test_full_targets_that_are_each_others_end(world: AmqWorld) -> None:
    q = world.open(dead_letter_to="one")
    world.open("one", max_length=1, overflow="reject-publish-dlx", dead_letter_to="two")
    world.open("two", max_length=1, overflow="reject-publish-dlx", dead_letter_to="one")
    world.put("a", "b", "c")
    for _ in range(3):
        q.reject(world.take().tag)
    assert [world.ready(name) for name in ("one", "two")] == [["a"], ["b"]]
    assert q.depth() == 0


def test_what_a_full_target_drops_is_dead_lettered_on(world: AmqWorld) -> None:
    q = world.open(dead_letter_to="dead")
    world.open("dead", max_length=1, dead_letter_to="grave")
    world.open("grave")
    world.put("a", "b")
    q.reject(world.take().tag)
    q.reject(world.take().tag)
    assert world.ready("dead") == ["b"]
    assert deaths(world, "grave") == [("dead", "maxlen"), ("q", "rejected")]


def test_two_full_queues_that_are_each_others_target(world: AmqWorld) -> None:
    world.open(dead_letter_to="other", max_length=2)
    world.open("other", dead_letter_to="q", max_length=2)
    for i in range(8):
        world.put(f"q{i}")
        world.put(f"o{i}", queue="other")
    assert world.q.len() == world.queues["other"].len() == 2
    assert max(world.everywhere().values()) == 1


def test_a_transient_target_gets_persistent_messages(world: AmqWorld) -> None:
    q = world.open(dead_letter_to="t")
    world.open("t", is_durable=False)
    world.put("a")
    world.put("b" * STORED)
    q.reject(world.take().tag)
    q.reject(world.take().tag)
    assert q.depth() == 0
    assert world.drain("t") == ["a", "b" * STORED]


def test_a_transient_message_is_dead_lettered_as_one(world: AmqWorld) -> None:
    q = world.open(dead_letter_to="dead")
    world.open("dead")
    world.put("a", mode=NONE)
    assert q.reject(world.take().tag) == 0
    assert world.queues["dead"].held() is None
    assert not world.take("dead").message.persistent


# ---- held, restart, crash ----------------------------------------------------------------------


def test_a_dead_letter_is_held_until_it_is_settled(world: AmqWorld) -> None:
    q = world.open(dead_letter_to="dead")
    dead = world.open("dead")
    world.put("a")
    lsn = q.reject(world.take().tag, DISK)
    assert dead.fetch() is None
    assert dead.held() == (lsn, DISK)
    world.rig.engine.wait(lsn, DISK)
    assert dead.fetch() is not None


def test_a_dead_letter_is_one_record(world: AmqWorld) -> None:
    q = world.open(dead_letter_to="dead", max_length=1)
    world.open("dead")
    world.put("a")
    tag = world.take().tag
    before = world.rig.engine.log.last_lsn
    assert q.reject(tag) == world.rig.engine.log.last_lsn == before + 1
    world.put("b")
    before = world.rig.engine.log.last_lsn
    q.publish(b"", b"c", OS)
    assert world.rig.engine.log.last_lsn == before + 2


@pytest.mark.parametrize("reason", ["rejected", "expired", "maxlen", "delivery_limit"])
@pytest.mark.parametrize("is_settled", [False, True])
def test_a_crash_leaves_it_in_one_place(world: AmqWorld, reason: str, is_settled: bool) -> None:
    q = world.open(dead_letter_to="dead", max_attempts=1)
    world.open("dead")
    large = "x" * STORED
    world.put("a", large, ttl_ms=1000 if reason == "expired" else None)
    if reason == "rejected":
        q.reject(world.take().tag)
        q.reject(world.take().tag)
    elif reason == "delivery_limit":
        q.nack(world.take().tag)
        q.nack(world.take().tag)
    elif reason == "expired":
        world.tick(1)
    else:
        q.set_options(QueueOptions(dead_letter_to="dead", max_length=0))
        world.tick()
    if is_settled:
        world.settle()
    world.crash()
    assert world.everywhere() == {"a": 1, large: 1}
    assert world.queues["dead" if is_settled else "q"].depth() == 2


def test_deaths_outlive_a_restart(world: AmqWorld) -> None:
    q = world.open(dead_letter_to="dead")
    world.open("dead")
    world.put("a")
    q.reject(world.take().tag)
    world.restart()
    assert deaths(world) == [("q", "rejected")]


# ---- chains ------------------------------------------------------------------------------------


def chain(world: AmqWorld, n: int) -> None:
    """Queues c0 to c<n>, each of which sends at once what it gets to the next."""
    for i in range(n):
        world.open(f"c{i}", dead_letter_to=f"c{i + 1}", max_length=0)
    world.open(f"c{n}")


def test_a_long_chain_needs_no_stack_of_its_length(world: AmqWorld) -> None:
    """It goes on in steps of NESTED_HOPS_MAX, with the ticks."""
    chain(world, 100)
    deepest = 0

    def trace(frame: FrameType, event: str, _: object) -> None:
        nonlocal deepest
        depth, back = 0, frame.f_back
        while back is not None:
            depth, back = depth + 1, back.f_back
        deepest = max(deepest, depth)

    was = sys.getprofile()
    sys.setprofile(trace)
    try:
        world.put("a", queue="c0")
    finally:
        sys.setprofile(was)
    assert deepest < 300
    assert world.ready("c100") == []
    at = sum(queue.dead_letters.counts["maxlen"] for queue in world.queues.values())
    assert at == NESTED_HOPS_MAX
    for _ in range(100):
        if not world.queues["c100"].len():
            world.tick(0)
    assert world.ready("c100") == ["a"]


def test_a_chain_ends_after_so_many_hops(world: AmqWorld) -> None:
    chain(world, HOPS_MAX + 5)
    world.put("a", queue="c0")
    for _ in range(HOPS_MAX + 5):
        world.tick(0)
    assert world.everywhere() == {}
    last = f"c{HOPS_MAX - 1}"
    assert world.told("dead_letter_hops") == [
        f"queue {last!r}: a dead letter died in {HOPS_MAX} queues, last in {last!r}: dropped"
    ]


def test_a_reject_on_the_way_begins_a_new_count() -> None:
    died = [Death(f"q{i}", "expired", 1) for i in range(HOPS_MAX)]
    assert is_too_far(died)
    assert not is_too_far(died[1:])
    died[5] = Death("q5", "rejected", 1)
    assert not is_too_far(died)
