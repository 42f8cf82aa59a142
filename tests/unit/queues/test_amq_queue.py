"""AMQQueue: publish, fetch, settle, and what its options add, over both kinds of backing queue."""

import pytest

from penstock.errors import OptionError, QueueFullError
from penstock.queues.backing_queue import Delivery, NewMessage
from penstock.queues.queue_options import QueueOptions
from penstock.storage.files.durability import DISK, NONE, OS
from tests.helpers.amq_world import (
    HEADERS,
    REFERENCE,
    VARIABLE,
    AmqWorld,
    FullTaker,
    name_of,
)


@pytest.fixture(params=[VARIABLE, REFERENCE])
def world(request: pytest.FixtureRequest) -> AmqWorld:
    return AmqWorld(request.param)


# ---- publish, fetch, ack ---------------------------------------------------------------------


def test_what_is_put_comes_out_in_order(world: AmqWorld) -> None:
    world.open()
    world.put("a", "b", "c")
    assert world.q.len() == 3
    assert world.q.body_bytes() == 3
    assert world.drain() == ["a", "b", "c"]
    assert world.q.depth() == 0


def test_publish_returns_what_to_wait_for(world: AmqWorld) -> None:
    q = world.open()
    lsn = q.publish(b"", b"a", DISK)
    assert lsn == world.rig.engine.log.last_lsn
    assert q.publish(b"", b"b", NONE) == 0


def test_a_queue_that_is_not_durable_has_nothing_to_wait_for(world: AmqWorld) -> None:
    q = world.open("t", is_durable=False)
    assert q.publish(b"", b"a", DISK) == 0
    assert world.drain("t") == ["a"]


def test_fetch_without_ack_takes_it_for_good(world: AmqWorld) -> None:
    q = world.open()
    world.put("a")
    delivery = q.fetch(ack_required=False)
    assert delivery is not None
    assert name_of(delivery) == "a"
    assert q.depth() == 0


def test_ack_says_how_many_were_pending(world: AmqWorld) -> None:
    q = world.open()
    world.put("a", "b")
    tags = [world.take().tag, world.take().tag]
    assert q.ack([*tags, 99]) == 2
    assert q.ack(tags) == 0


def test_publish_many_is_as_many_publishes(world: AmqWorld) -> None:
    q = world.open()
    lsn = q.publish_many([NewMessage(b"", b"%d" % i) for i in range(5)], DISK)
    assert lsn == world.rig.engine.log.last_lsn
    assert world.drain() == list("01234")
    assert q.publish_many([], DISK) == 0


def test_publish_many_keeps_dates_and_delays(world: AmqWorld) -> None:
    q = world.open(ttl_ms=5000)
    soon = world.now_ms + 1000
    q.publish_many([NewMessage(b"", b"a", soon), NewMessage(b"", b"b")], DISK)
    q.publish_many([NewMessage(b"", b"c")], DISK, delay_ms=4000)
    assert q.delayed() == 1
    world.tick(2)
    assert world.ready() == ["b"]
    world.tick(3)
    assert world.ready() == ["c"]
    world.tick(5)
    assert world.ready() == []


def test_browse_and_peek_change_nothing(world: AmqWorld) -> None:
    q = world.open()
    world.put("a", "b", "c")
    world.take()
    assert [name_of(d) for d in q.browse(None, 9)] == ["b", "c"]
    peeked = q.peek()
    assert peeked is not None
    assert name_of(peeked) == "b"

    def look(delivery: Delivery, is_pending: bool, seen: str) -> tuple[bool, str]:
        return True, seen + name_of(delivery) + "!" * is_pending

    assert q.fold(look, "") == "a!bc"
    assert q.depth() == 3


def test_peek_into_an_empty_queue_is_none(world: AmqWorld) -> None:
    assert world.open().peek() is None


def test_purge_takes_what_is_ready(world: AmqWorld) -> None:
    q = world.open()
    world.put("a", "b", "c")
    world.put("later", delay_ms=9000)
    held = world.take()
    assert q.purge() == 2
    assert (q.len(), q.depth(), q.delayed()) == (0, 1, 1)
    assert q.purge_delayed() == 1
    assert q.delayed() == 0
    assert q.ack([held.tag]) == 1


def test_delete_takes_all_parts(world: AmqWorld) -> None:
    q = world.open()
    world.put("a")
    world.put("later", delay_ms=5_000)
    world.put("much later", delay_ms=5_000_000)
    world.rig.engine.wait(q.delete(), DISK)
    assert not [n for n in world.rig.engine.state.routing.queues if n.startswith(b"q")]
    world.crash()
    assert world.queues == {}


def test_a_crash_in_a_delete_leaves_all_or_nothing(world: AmqWorld) -> None:
    q = world.open()
    world.put("a")
    world.put("later", delay_ms=5_000)
    q.delete()
    world.crash()
    assert world.everywhere() == {"a": 1, "later": 1}


# ---- limits ------------------------------------------------------------------------------------


def test_drop_head_makes_room(world: AmqWorld) -> None:
    q = world.open(max_length=2)
    world.put("a", "b", "c", "d")
    assert world.ready() == ["c", "d"]
    assert q.info()["maxlen"] == 2


def test_max_length_zero_keeps_nothing(world: AmqWorld) -> None:
    q = world.open(max_length=0)
    world.put("a")
    assert q.len() == 0


def test_max_length_bytes_counts_ready_bodies(world: AmqWorld) -> None:
    world.open(max_length_bytes=5)
    world.put("aa", "bb", "cc")
    assert world.ready() == ["bb", "cc"]
    world.put("longer than all")
    assert world.ready() == []


def test_what_is_pending_does_not_count(world: AmqWorld) -> None:
    world.open(max_length=1)
    world.put("a")
    world.take()
    world.put("b")
    assert world.q.depth() == 2


def test_reject_publish_refuses_and_names_the_limit(world: AmqWorld) -> None:
    world.open(max_length=2, overflow="reject-publish")
    world.put("a", "b")
    error = world.refused("c")
    assert str(error) == "queue 'q' is full: max_length would be 3, allowed are 2"
    assert world.ready() == ["a", "b"]


def test_reject_publish_by_bytes(world: AmqWorld) -> None:
    world.open(max_length_bytes=3, overflow="reject-publish")
    world.put("ab")
    assert world.refused("cd").limit == "max_length_bytes"
    world.put("c")


def test_what_comes_back_may_exceed_a_limit(world: AmqWorld) -> None:
    q = world.open(max_length=1, overflow="reject-publish")
    world.put("a")
    held = world.take()
    world.put("b")
    q.nack(held.tag, delay_ms=0)
    assert world.ready() == ["a", "b"]


def test_what_comes_back_drops_the_head(world: AmqWorld) -> None:
    q = world.open(max_length=1)
    world.put("a")
    held = world.take()
    world.put("b")
    q.release([held.tag])
    assert world.ready() == ["b"]


def test_reject_publish_dlx_dead_letters_what_it_refuses(world: AmqWorld) -> None:
    world.open(max_length=1, overflow="reject-publish-dlx", dead_letter_to="dead")
    world.open("dead")
    world.put("a")
    world.refused("b")
    assert world.ready() == ["a"]
    (death,) = HEADERS.deaths(world.take("dead").message.header)
    assert (death.queue, death.reason) == ("q", "maxlen")


def test_publish_many_is_refused_whole(world: AmqWorld) -> None:
    q = world.open(max_length=3, overflow="reject-publish")
    world.put("a")
    with pytest.raises(QueueFullError, match="would be 4"):
        q.publish_many([NewMessage(b"", b"x") for _ in range(3)], DISK)
    assert world.ready() == ["a"]


def test_a_lowered_limit_is_reached_in_slices(world: AmqWorld) -> None:
    q = world.open()
    q.publish_many([NewMessage(b"", b"%d" % i) for i in range(600)], DISK)
    q.set_options(QueueOptions(max_length=10))
    assert q.tick(world.now_ms)
    assert q.len() == 600 - 256
    world.tick()
    assert q.len() == 10


def test_a_full_disk_leaves_a_queue_too_long_until_there_is_room(world: AmqWorld) -> None:
    q = world.open(max_length=1, dead_letter_to="dead")
    world.open("dead")
    world.put("a")
    world.instead[b"dead"] = FullTaker()
    world.put("b")
    assert not q.tick(world.now_ms), "it would spin"
    assert world.ready() == ["a", "b"]
    world.instead.clear()
    world.tick()
    assert (world.ready(), world.ready("dead")) == (["b"], ["a"])


def test_two_full_queues_do_not_call_each_other_without_end(world: AmqWorld) -> None:
    """Each drops into the other. A message ends when it comes back; each is done in slices."""
    n = 400
    for name, other in (("q", "r"), ("r", "q")):
        queue = world.open(name, max_length=n, dead_letter_to=other)
        queue.publish_many([NewMessage(b"", b"%s%d" % (name.encode(), i)) for i in range(n)], OS)
    world.put("one more")
    world.tick()
    assert world.q.len() == world.queues["r"].len() == n
    assert max(world.everywhere().values()) == 1


# ---- options, alerts, priorities ---------------------------------------------------------------


def test_priorities_never_change(world: AmqWorld) -> None:
    q = world.open()
    with pytest.raises(OptionError, match="given 3, expected 0, which is fixed"):
        q.set_options(QueueOptions(priorities=3))


def test_options_change_at_run_time(world: AmqWorld) -> None:
    q = world.open(ttl_ms=1000, max_memory_bytes=1 << 20)
    world.put("a")
    q.set_options(QueueOptions(lazy=True))
    world.put("b")
    world.tick(2)
    assert world.drain() == ["b"]


def test_alerts_fire_for_count_size_depth_and_age(world: AmqWorld) -> None:
    world.open(
        alert_count_up=2, alert_size_up=5, alert_depth_up=7, alert_age_up=60_000,
        alert_repeat_gap_s=600,
    )  # fmt: skip
    world.put("a")
    assert world.alerts == []
    world.put("b")
    world.put("large")
    world.tick(61)
    assert [alert.kind for alert in world.alerts] == ["count", "depth", "size", "age"]
    assert world.q.info()["alerts_raised"] == "count,size,depth,age"


def test_an_alert_that_has_fired_stays_so_when_other_options_change(world: AmqWorld) -> None:
    q = world.open(alert_count_up=1)
    world.put("a")
    q.set_options(QueueOptions(alert_count_up=1, ttl_ms=1000))
    world.put("b")
    assert len(world.alerts) == 1
    q.set_options(QueueOptions(alert_count_up=2))
    world.tick()
    assert [alert.threshold for alert in world.alerts] == [1, 2]


def test_a_useless_alert_is_a_warning(world: AmqWorld) -> None:
    world.open(alert_depth_up=2 << 20, max_memory_bytes=1 << 20)
    assert len(world.told("warning")) == 1


def test_higher_priorities_first_and_kept_through_a_delay() -> None:
    world = AmqWorld(VARIABLE)
    q = world.open(priorities=5)
    world.put("low")
    world.put("high", priority=5)
    world.put("above", priority=9)
    delivery = world.take()
    assert name_of(delivery) == "high"
    q.nack(delivery.tag, delay_ms=1000)
    world.put("mid", priority=3, delay_ms=1000)
    assert world.drain() == ["above", "low"]
    world.put("low again")
    world.restart()
    world.tick(1)
    assert world.drain() == ["high", "mid", "low again"]


def test_a_priority_goes_on_into_the_dead_letter_queue() -> None:
    world = AmqWorld(VARIABLE)
    q = world.open(dead_letter_to="dead")
    world.open("between", priorities=2, dead_letter_to="dead")
    world.open("dead", priorities=9)
    world.put("low")
    world.put("high", priority=7)
    for _ in range(2):
        q.reject(world.take().tag)
    assert world.drain("dead") == ["high", "low"]
    world.put("one", queue="between", priority=1)
    world.put("two", queue="between", priority=2)
    two, one = world.take("between"), world.take("between")
    world.queues["between"].reject(one.tag)
    world.queues["between"].reject(two.tag)
    assert world.drain("dead") == ["two", "one"]


def test_info_counts_what_people_ask_for(world: AmqWorld) -> None:
    q = world.open()
    world.put("a")
    world.put("b", delay_ms=10_000)
    q.takers = 2
    info = q.info()
    assert (info["name"], info["len"], info["delayed"], info["takers"]) == ("q", 1, 1, 2)
    assert info["ram_bytes"] == q.ram_bytes()


# ---- plans: for fan-out and transactions -------------------------------------------------------


def test_a_transaction_publishes_by_plans(world: AmqWorld) -> None:
    q = world.open(ttl_ms=60_000)
    other = world.open("other")
    engine = world.rig.engine
    tx = engine.begin()
    plans = [q.plan(b""), other.plan(b"", delay_ms=1000)]
    made = [
        tx.publish([plan.index], plan.header, body, plan.expiry_ms)
        for plan, body in zip(plans, (b"a", b"b"), strict=True)
    ]
    lsn = tx.commit(DISK)
    for queue, plan, published in zip((q, other), plans, made, strict=True):
        (entry,) = published.born
        queue.planned(plan, entry.seq, 1, lsn, DISK)
    assert q.fetch() is None
    assert q.held() == (lsn, DISK)
    assert world.drain() == ["a"]
    world.tick(1)
    assert world.drain("other") == ["b"]


def test_a_plan_keeps_its_part_until_it_is_ended(world: AmqWorld) -> None:
    q = world.open()
    plan = q.plan(b"", delay_ms=1000)
    world.put("other", delay_ms=3000)
    world.tick(10)
    assert len(world.parts()) == 1
    assert world.drain() == ["other"]
    message = world.rig.engine.publish([plan.index], plan.header, b"late", OS, plan.expiry_ms)
    q.planned(plan, plan.index.next_seq - 1, message.size)
    world.tick()
    assert world.drain() == ["late"]
    assert world.parts() == []
    unused = q.plan(b"", delay_ms=1000)
    q.unplan(unused)
    world.tick(10)
    assert world.parts() == []


def test_a_planned_publish_keeps_the_limits(world: AmqWorld) -> None:
    q = world.open(max_length=1)
    world.put("a")
    plan = q.plan(b"")
    q.before_publish(1)
    world.rig.engine.publish([plan.index], plan.header, b"b", OS, plan.expiry_ms)
    q.planned(plan, plan.index.next_seq - 1, 1)
    assert world.ready() == ["b"]
    q.set_options(QueueOptions(max_length=1, overflow="reject-publish"))
    with pytest.raises(QueueFullError):
        q.before_publish(1)
