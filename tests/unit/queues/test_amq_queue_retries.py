"""AMQQueue: what comes back: attempts, back-off, delivery limits, and what counts as an attempt."""

import pytest

from penstock.errors import DiskFullError, SettledError
from penstock.queues.queue_options import QueueOptions
from penstock.storage.files.durability import NONE
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


def test_nack_without_delay_goes_back_to_its_place(world: AmqWorld) -> None:
    q = world.open(retry_delay_ms_min=0)
    world.put("a", "b")
    first = world.take()
    assert (first.attempts, first.is_redelivered) == (0, False)
    q.nack(first.tag)
    again = world.take()
    assert (name_of(again), again.attempts, again.is_redelivered) == ("a", 1, True)


def test_nack_backs_off_twice_as_long_each_time(world: AmqWorld) -> None:
    q = world.open(retry_delay_ms_min=100, retry_delay_ms_max=350)
    world.put("a")
    for attempts, wait_ms in enumerate((100, 200, 350, 350)):
        delivery = world.take()
        assert delivery.attempts == attempts
        assert delivery.is_redelivered == (attempts > 0)
        q.nack(delivery.tag)
        assert q.next_event_ms() == world.now_ms + wait_ms
        world.tick((wait_ms - 1) / 1000)
        assert q.len() == 0
        world.tick(0.001)
        assert q.len() == 1


def test_nack_with_a_delay_of_its_own(world: AmqWorld) -> None:
    q = world.open()
    world.put("a")
    q.nack(world.take().tag, delay_ms=70_000)
    world.tick(69.999)
    assert q.len() == 0
    world.tick(0.001)
    assert world.take().attempts == 1


def test_nack_with_delay_zero_is_at_once(world: AmqWorld) -> None:
    q = world.open()
    world.put("a")
    q.nack(world.take().tag, delay_ms=0)
    assert world.take().attempts == 1


def test_nacks_of_what_was_paged_out_read_no_bodies() -> None:
    """Only rows are read, by segments."""
    world = AmqWorld(VARIABLE)
    q = world.open(max_memory_bytes=32 << 10)
    world.put(*[f"{n}" for n in range(2000)])
    tags = [world.take().tag for _ in range(2000)]
    assert q.info()["paged_pending"] > 1000
    before = int(q.info()["disk_reads"])
    for tag in tags:
        q.nack(tag, delay_ms=0)
    assert int(q.info()["disk_reads"]) - before < 2000 // 3
    assert [world.take().attempts for _ in range(2000)] == [1] * 2000


@pytest.mark.parametrize("priorities", [0, 5])
def test_a_mass_requeue_with_a_delivery_limit_reads_runs_of_headers(priorities: int) -> None:
    world = AmqWorld(VARIABLE)
    q = world.open(max_memory_bytes=16 << 10, max_attempts=3, priorities=priorities)
    world.put(*[f"{n}" for n in range(600)], priority=priorities and 1)
    for attempts in range(2):
        got = [world.take() for _ in range(600)]
        assert [delivery.attempts for delivery in got] == [attempts] * 600
        assert q.info()["paged_pending"] > 400
        before = int(q.info()["disk_reads"])
        assert q.requeue([delivery.tag for delivery in got]) == 600
        # A row and a header, each by segments of four.
        assert int(q.info()["disk_reads"]) - before <= 600 // 2
    assert q.requeue([world.take().tag for _ in range(600)]) == 600
    assert q.depth() == 0


def test_attempts_add_up_over_requeues_and_delays(world: AmqWorld) -> None:
    q = world.open()
    world.put("a")
    q.nack(world.take().tag, delay_ms=0)
    q.nack(world.take().tag, delay_ms=1000)
    world.tick(1)
    q.nack(world.take().tag, delay_ms=0)
    delivery = world.take()
    assert delivery.attempts == 3
    assert q.attempts(delivery.tag) == 3
    world.settle()
    world.crash()
    assert world.take().attempts == 3


def test_release_counts_nothing(world: AmqWorld) -> None:
    q = world.open(max_attempts=1)
    world.put("a", "b")
    tags = [world.take().tag, world.take().tag]
    assert q.release([*tags, 77]) == 2
    assert [world.take().attempts, world.take().attempts] == [0, 0]


def test_what_is_not_pending_cannot_be_settled(world: AmqWorld) -> None:
    q = world.open()
    world.put("a")
    tag = world.take().tag
    q.ack([tag])
    for settle in (q.nack, q.reject, q.attempts):
        with pytest.raises(SettledError, match=f"queue 'q': the message of tag {tag} is not"):
            settle(tag)


def test_a_full_disk_keeps_what_was_delivered_too_often(world: AmqWorld) -> None:
    q = world.open(max_attempts=10, retry_delay_ms_min=0, dead_letter_to="dead")
    world.open("dead")
    world.put("a", "b")
    q.nack(world.take().tag)
    q.set_options(QueueOptions.of({"max_attempts": 1, "dead_letter_to": "dead"}))
    world.instead[b"dead"] = FullTaker()
    with pytest.raises(DiskFullError):
        q.fetch()
    assert (world.ready(), q.depth()) == (["a", "b"], 2)
    world.instead.clear()
    assert name_of(world.take()) == "b"
    assert world.ready("dead") == ["a"]


def test_after_max_attempts_it_is_dead_lettered(world: AmqWorld) -> None:
    q = world.open(max_attempts=3, retry_delay_ms_min=0, dead_letter_to="dead")
    world.open("dead")
    world.put("poison")
    for _ in range(3):
        q.nack(world.take().tag)
    assert q.depth() + q.delayed() == 0
    (death,) = HEADERS.deaths(world.take("dead").message.header)
    assert (death.queue, death.reason, death.attempts) == ("q", "delivery_limit", 3)
    assert q.info()["delivery_limit"] == 1


def test_attempts_begin_anew_in_the_dead_letter_queue(world: AmqWorld) -> None:
    q = world.open(max_attempts=2, retry_delay_ms_min=10, dead_letter_to="dead")
    world.open("dead")
    world.put("poison")
    q.nack(world.take().tag)
    world.tick(1)
    q.nack(world.take().tag)
    assert world.take("dead").attempts == 0


def test_after_max_attempts_without_a_target_it_is_dropped(world: AmqWorld) -> None:
    q = world.open(max_attempts=1)
    world.put("poison")
    q.nack(world.take().tag)
    assert q.depth() + q.delayed() == 0


def test_a_transient_message_stays_transient_through_a_retry(world: AmqWorld) -> None:
    q = world.open()
    world.put("t", mode=NONE)
    q.nack(world.take().tag, delay_ms=1000)
    world.tick(1)
    delivery = world.take()
    assert not delivery.message.persistent
    assert (name_of(delivery), delivery.attempts) == ("t", 1)
    q.nack(delivery.tag, delay_ms=1000)
    world.settle()
    world.restart()
    world.tick(9)
    assert world.q.depth() + world.q.delayed() == 0


# ---- messages that kill their process ------------------------------------------------------------


@pytest.mark.parametrize("priorities", [0, 3])
def test_a_message_that_kills_its_process_each_time_is_dead_lettered(priorities: int) -> None:
    world = AmqWorld(VARIABLE)
    world.open("dead")
    world.open(max_attempts=2, dead_letter_to="dead", priorities=priorities)
    world.put("poison", "good")
    seen: list[int] = []
    for _ in range(10):
        delivery = world.get()
        if delivery is None or name_of(delivery) != "poison":
            break
        seen.append(delivery.attempts)
        world.crash("killed")
    # That the first ended with the process nobody knows for certain; of the next two one does.
    assert seen == [0, 0, 1]
    assert delivery is not None
    assert name_of(delivery) == "good"
    assert world.ready("dead") == ["poison"]


def test_one_crash_counts_nothing_against_what_was_not_delivered() -> None:
    world = AmqWorld(VARIABLE)
    world.open("dead")
    q = world.open(max_attempts=1, dead_letter_to="dead", retry_delay_ms_min=0)
    world.put(*"abcd")
    world.take()
    world.crash("killed")
    q = world.q
    taken = [world.take() for _ in range(4)]
    assert [(name_of(d), d.attempts, d.is_redelivered) for d in taken] == [
        (name, 0, True) for name in "abcd"
    ]
    for _ in range(3):
        q.release([taken[1].tag])  # untried: not counted
        assert world.take().attempts == 0
    q.release([taken[1].tag])
    q.nack(taken[2].tag)  # tried once, and once only
    q.ack([taken[0].tag, taken[3].tag])
    assert world.ready("dead") == ["c"]
    world.rig.engine.flush()
    world.crash("killed")
    assert name_of(world.take()) == "b"


def test_after_an_orderly_stop_nothing_is_counted() -> None:
    world = AmqWorld(VARIABLE)
    world.open(max_attempts=1)
    world.put("a")
    for _ in range(3):
        assert world.take().attempts == 0
        world.restart()
    assert world.q.len() == 1


# ---- many at once ------------------------------------------------------------------------------


def test_requeue_brings_all_back_at_once_to_their_places(world: AmqWorld) -> None:
    q = world.open(retry_delay_ms_min=5000)
    world.put("a", "b", "c", "d")
    tags = [world.take().tag for _ in range(3)]
    before = world.rig.engine.log.last_lsn
    assert q.requeue([tags[2], tags[0], 12345]) == 2
    assert world.rig.engine.log.last_lsn == before + 1
    assert world.ready() == ["a", "c", "d"]
    taken = [world.take() for _ in range(3)]
    assert [(d.attempts, d.is_redelivered) for d in taken] == [(1, True), (1, True), (0, False)]


def test_requeue_keeps_the_delivery_limit(world: AmqWorld) -> None:
    q = world.open(max_attempts=2, dead_letter_to="dead")
    world.open("dead")
    world.put("a", "b")
    for _ in range(2):
        tags = [world.take().tag, world.take().tag]
        assert q.requeue([*tags, 12345]) == 2
    assert (q.depth(), q.info()["delivery_limit"]) == (0, 2)
    for _ in range(2):
        (death,) = HEADERS.deaths(world.take("dead").message.header)
        assert (death.reason, death.attempts) == ("delivery_limit", 2)


def test_requeue_without_a_dead_letter_queue_drops_at_the_limit(world: AmqWorld) -> None:
    q = world.open(max_attempts=1)
    world.put("a")
    assert q.requeue([world.take().tag]) == 1
    assert (q.depth(), q.info()["delivery_limit"]) == (0, 1)


def test_requeue_may_exceed_a_limit_but_drop_head_keeps_it(world: AmqWorld) -> None:
    q = world.open(max_length=2)
    world.put("a", "b")
    tags = [world.take().tag, world.take().tag]
    world.put("c", "d")
    q.requeue(tags)
    assert world.ready() == ["c", "d"]
    q.set_options(QueueOptions(max_length=2, overflow="reject-publish"))
    tags = [world.take().tag, world.take().tag]
    world.put("e", "f")
    q.requeue(tags)
    assert world.ready() == ["c", "d", "e", "f"]


def test_discard_is_one_record_without_a_dead_letter_queue(world: AmqWorld) -> None:
    q = world.open()
    world.put("a", "b", "c")
    tags = [world.take().tag, world.take().tag]
    before = world.rig.engine.log.last_lsn
    assert q.discard([*tags, 12345]) == 2
    assert world.rig.engine.log.last_lsn == before + 1
    assert (world.ready(), q.info()["rejected"]) == (["c"], 2)


def test_discard_dead_letters_each(world: AmqWorld) -> None:
    q = world.open(dead_letter_to="dead")
    world.open("dead")
    world.put("a", "b", "c")
    tags = [world.take().tag, world.take().tag]
    assert q.discard([tags[1], 12345, tags[0]]) == 2
    assert world.drain("dead") == ["b", "a"]
    assert world.ready() == ["c"]
