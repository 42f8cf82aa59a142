"""What a vhost's tick does with queues: what is due, what is unused, what fails."""

import pytest

from penstock.storage.files.durability import DISK
from tests.helpers.vhost_rig import TakingChannel, VHostRig


@pytest.fixture
def rig() -> VHostRig:
    return VHostRig()


def expiring(rig: VHostRig, name: str = "q", ms: int = 5000, **how: object) -> None:
    """A queue that goes when nobody uses it for so long."""
    rig.queue(name, arguments={"x-expires": ms}, **how)


# --- x-expires ---


def test_an_unused_queue_goes(rig: VHostRig) -> None:
    expiring(rig)
    rig.queue("kept")
    rig.tick(4.9)
    assert rig.vhost.table.has("q")
    rig.tick(0.1)
    assert rig.vhost.table.names() == ["kept"]
    rig.vhost.engine.sync()
    assert rig.crash().table.names() == ["kept"]


def test_the_tick_after_next_is_in_time(rig: VHostRig) -> None:
    expiring(rig, ms=300)
    rig.tick()
    assert 0 < rig.vhost.tick() <= 0.3


def test_declaring_again_is_using(rig: VHostRig) -> None:
    expiring(rig)
    for _ in range(5):
        rig.tick(4)
        expiring(rig)
    assert rig.vhost.table.has("q")
    rig.tick(5)
    assert not rig.vhost.table.has("q")


def test_redeclaring_costs_no_memory(rig: VHostRig) -> None:
    for _ in range(100):
        expiring(rig)
    assert len(rig.vhost.timers._expiries) == 1


def test_a_consumer_is_using_it(rig: VHostRig) -> None:
    expiring(rig)
    consumer = rig.consume(rig.vhost.table.find_queue("q"), TakingChannel())
    for _ in range(4):
        rig.tick(4)
    rig.leave(consumer)
    rig.tick(4.9)
    assert rig.vhost.table.has("q")
    rig.tick(0.1)
    assert not rig.vhost.table.has("q")


def test_after_a_restart_the_time_begins_anew_and_the_queue_is_not_opened(rig: VHostRig) -> None:
    expiring(rig)
    rig.tick(4)
    rig.restart()
    rig.tick(4)
    assert rig.vhost.queues == {}
    assert rig.vhost.table.has("q")
    rig.tick(1)
    assert not rig.vhost.table.has("q")


def test_a_publish_is_not_using_it(rig: VHostRig) -> None:
    expiring(rig)
    rig.restart()
    rig.tick(3)
    queue = rig.vhost.table.usable("q")
    assert queue is not None
    rig.put(queue, b"x")
    rig.tick(2)
    assert not rig.vhost.table.has("q")


def test_a_new_queue_of_that_name_has_its_own_time(rig: VHostRig) -> None:
    expiring(rig, durable=False)
    rig.tick(3)
    rig.vhost.delete_queue(rig.vhost.table.find_queue("q"))
    expiring(rig, durable=False)
    rig.tick(3)
    assert rig.vhost.table.has("q")
    rig.vhost.delete_queue(rig.vhost.table.find_queue("q"))
    rig.queue()
    rig.tick(100)
    assert rig.vhost.table.has("q")


def test_many_go_in_slices(rig: VHostRig) -> None:
    for n in range(250):
        expiring(rig, f"q{n}", durable=False)
    rig.clock.advance(5)
    left = []
    while rig.vhost.tick() <= 0.001:
        rig.turn()  # some of them end in the background
        left.append(len(rig.vhost.table.names()))
    assert left == [150, 50]
    rig.turn()
    assert rig.vhost.table.names() == []


# --- messages ---


def test_expired_and_delayed_messages_of_queues_that_nobody_names(rig: VHostRig) -> None:
    rig.queue("dead")
    for name in ("ttl", "late", "idle"):
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        queue = rig.queue(name, arguments=arguments)
        if name == "ttl":
            rig.put(queue, b"expired", ttl_ms=3000)
        elif name == "late":
            rig.put(queue, b"delayed", delay_ms=3000)
    rig.restart()
    assert sorted(rig.vhost.queues) == ["late", "ttl"]
    for _ in range(8):
        rig.tick(0.5)
    assert rig.bodies(rig.vhost.table.find_queue("dead")) == [b"expired"]
    assert rig.bodies(rig.vhost.table.find_queue("late")) == [b"delayed"]


def test_what_becomes_ready_by_itself_is_delivered(rig: VHostRig) -> None:
    queue = rig.queue()
    channel = TakingChannel()
    rig.consume(queue, channel)
    rig.put(queue, b"late", delay_ms=2000)
    rig.tick(1)
    assert channel.bodies() == []
    rig.tick(1)
    rig.answered(rig.vhost.engine.log.last_lsn)
    assert channel.bodies() == [b"late"]


def test_dead_letters_wake_their_queue(rig: VHostRig) -> None:
    dead = rig.queue("dead")
    channel = TakingChannel()
    rig.consume(dead, channel)
    rig.vhost.bind_queue("dead", "amq.topic", "gone.#")
    queue = rig.queue(
        arguments={
            "x-message-ttl": 1000, "x-dead-letter-exchange": "amq.topic",
            "x-dead-letter-routing-key": "gone.away",
        }
    )  # fmt: skip
    rig.put(queue, b"x")
    rig.tick(1)
    rig.answered(rig.vhost.engine.log.last_lsn)
    assert channel.bodies() == [b"x"]


def test_an_alert_on_age_comes_by_itself(rig: VHostRig) -> None:
    rig.put(rig.queue(arguments={"x-alert-age-up": 5000}), b"x")
    rig.restart()
    for _ in range(8):
        rig.tick(1)
    assert rig.told("age_up") == ["queue 'q': age is 5.0 s, the alert threshold is 5.0 s"]


def test_an_alert_is_over_after_a_purge_in_a_queue_at_rest(rig: VHostRig) -> None:
    queue = rig.queue(arguments={"x-alert-count-up": 1})
    rig.put(queue, b"x")
    for _ in range(5):
        rig.tick(1)
    assert [row["is_on"] for row in rig.vhost.alerts.list.rows()] == [True]
    rig.vhost.purge_queue(queue)
    rig.tick(1)
    assert not any(row["is_on"] for row in rig.vhost.alerts.list.rows())


# --- calls ---


def test_call_at_calls_once_and_in_order(rig: VHostRig) -> None:
    called: list[str] = []
    now = rig.clock.monotonic()
    rig.vhost.timers.call_at(now + 2, lambda: called.append("second"))
    rig.vhost.timers.call_at(now + 1, lambda: called.append("first"))
    assert rig.vhost.tick() <= 1
    rig.tick(0.9)
    assert called == []
    rig.tick(0.1)
    assert called == ["first"]
    rig.tick(5)
    rig.tick(5)
    assert called == ["first", "second"]


# --- the system's time is set ---


@pytest.mark.parametrize("step_s", [7200, -7200])
def test_a_queue_that_was_used_stays_when_the_time_is_set(rig: VHostRig, step_s: int) -> None:
    expiring(rig, ms=600_000)
    rig.queue("never used", arguments={"x-expires": 600_000})
    rig.tick(300)
    rig.queue("q", arguments={"x-expires": 600_000})
    rig.clock.step(step_s)
    for _ in range(299):
        rig.tick(1)
    assert rig.vhost.table.names() == ["never used", "q"]
    rig.tick(1.1)
    assert rig.vhost.table.names() == ["q"]
    for _ in range(299):
        rig.tick(1)
    assert rig.vhost.table.has("q")
    rig.tick(1.1)
    assert not rig.vhost.table.has("q")


@pytest.mark.parametrize("step_s", [7200, -7200])
def test_messages_live_as_long_as_their_ttl_when_the_time_is_set(
    rig: VHostRig, step_s: int
) -> None:
    """Or a twelfth longer or shorter: as much of two hours is caught up meanwhile."""
    queue = rig.queue("q", arguments={"x-message-ttl": 60_000})
    queue.amq.publish(b"", b"first", DISK)
    rig.clock.step(step_s)
    rig.tick(1)
    queue.amq.publish(b"", b"second", DISK)
    for _ in range(54):
        rig.tick(1)
    assert queue.len() == 2
    for _ in range(12):
        rig.tick(1)
    assert queue.len() == 0
