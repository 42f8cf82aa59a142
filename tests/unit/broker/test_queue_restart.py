"""An error in one queue's own code: the queue begins anew, and nothing else notices."""

import pytest

from penstock.broker.broker_queue import BrokerQueue, Consumer
from penstock.broker.channel import LONG_PLACES
from penstock.broker.queue_table import FAILURES_MAX, WINDOW_S
from penstock.codec.spec import (
    BasicAck,
    BasicCancel,
    BasicConsume,
    BasicConsumeOk,
    QueueDeclare,
    QueueDeclareOk,
    TxCommit,
    TxCommitOk,
    TxSelect,
    TxSelectOk,
)
from penstock.errors import ChannelError, StoppedError
from penstock.queues.backing_queue import Delivery
from penstock.queues.variable_queue import VariableQueue
from penstock.storage.journal.checkpoint import SLICES
from tests.helpers.broker_rig import BrokerRig
from tests.helpers.builds import pure_only
from tests.helpers.routed import route
from tests.helpers.vhost_rig import TakingChannel, VHostRig, classic


class BrokenChannel(TakingChannel):
    """Cannot deliver what it is given."""

    def deliver(self, consumer: Consumer, delivery: Delivery) -> None:
        raise RuntimeError("a bug")


@pytest.fixture
def rig() -> VHostRig:
    return VHostRig()


def fail(rig: VHostRig, name: str = "q", text: str = "a bug") -> BrokerQueue:
    """The queue's code fails; the queue that there is then."""
    queue = rig.vhost.queues[name]
    rig.vhost.restarts.failed(queue, RuntimeError(text))
    rig.turn()
    return classic(rig.vhost.queues[name])


def drained(rig: VHostRig, queue: BrokerQueue) -> list[tuple[bytes, bool]]:
    """(body, redelivered) of all that can be had."""
    found: list[tuple[bytes, bool]] = []
    while True:
        delivery = queue.amq.fetch()
        if delivery is None:
            held = queue.amq.held()
            if held is None:
                return found
            rig.vhost.engine.wait(*held)
            continue
        found.append((delivery.message.body or b"", delivery.is_redelivered))
        queue.amq.ack([delivery.tag])


def state_of(queue: BrokerQueue) -> VariableQueue:
    """What stands behind a queue without priorities."""
    assert isinstance(queue.amq.backing, VariableQueue)
    return queue.amq.backing


# --- what goes on ---


def test_an_error_while_delivering_restarts_the_queue(rig: VHostRig) -> None:
    queue, other = rig.queue(), rig.queue("other")
    broken, fine = BrokenChannel(), TakingChannel()
    rig.put(queue, b"a", b"b")
    rig.put(other, b"c")
    rig.consume(queue, broken, no_ack=False)
    rig.consume(other, fine)
    rig.answered(rig.vhost.engine.log.last_lsn)
    assert fine.bodies() == [b"c"]
    assert broken.gone == ["c"]
    assert queue.is_deleted
    fresh = rig.vhost.table.find_queue("q")
    assert fresh is not queue
    assert fresh.consumers.count == 0
    assert drained(rig, classic(fresh)) == [(b"a", True), (b"b", True)]
    (text,) = rig.told("queue_restarted")
    assert "queue 'q' in vhost 'test' has failed with RuntimeError('a bug')" in text


def test_ready_pending_paged_and_stored_messages_are_all_there(rig: VHostRig) -> None:
    queue = rig.queue()
    bodies = [bytes([n]) * (n * 40) for n in range(1, 25)]  # some go to the store
    rig.put(queue, *bodies[:8])
    rig.vhost.engine.checkpoint()
    rig.put(queue, *bodies[8:16])
    queue.amq.backing.set_limits(500, 100)
    while queue.amq.backing.resume():
        pass
    rig.put(queue, *bodies[16:])
    for _ in range(5):
        assert queue.amq.fetch() is not None
    fresh = fail(rig)
    assert fresh.amq.backing.depth() == len(bodies)
    assert [body for body, _ in drained(rig, fresh)] == bodies
    assert rig.bodies(rig.restart().table.find_queue("q")) == []


def test_what_is_published_after_it_is_as_safe_as_ever(rig: VHostRig) -> None:
    queue = rig.queue()
    rig.put(queue, b"a")
    queue = fail(rig)
    rig.put(queue, b"b")
    queue = fail(rig)
    rig.put(queue, b"c")
    rig.crash()
    assert rig.bodies(rig.vhost.table.find_queue("q")) == [b"a", b"b", b"c"]


def test_a_checkpoint_after_it(rig: VHostRig) -> None:
    rig.put(rig.queue(), *[b"%d" % n * 50 for n in range(20)])
    fail(rig)
    assert rig.vhost.engine.checkpoint()
    rig.put(rig.vhost.queues["q"], b"last")
    rig.crash()
    assert len(rig.bodies(rig.vhost.table.find_queue("q"))) == 21


def test_priorities_and_delayed_messages(rig: VHostRig) -> None:
    queue = rig.queue(arguments={"x-max-priority": 3})
    rig.put(queue, b"low", priority=0)
    rig.put(queue, b"high", priority=3)
    rig.put(queue, b"late", delay_ms=3000)
    fresh = fail(rig)
    assert fresh.amq.delayed() == 1
    for _ in range(8):
        rig.tick(0.5)
    assert [body for body, _ in drained(rig, fresh)] == [b"high", b"low", b"late"]


def test_transient_messages_go_and_are_counted(rig: VHostRig) -> None:
    queue = rig.queue()
    rig.put(queue, b"kept")
    queue.amq.publish(b"", b"gone", 0)
    queue.amq.publish(b"", b"gone" * 500, 0)
    fresh = fail(rig)
    assert rig.bodies(fresh) == [b"kept"]
    assert "with 1 messages, without 2 transient ones" in rig.told("queue_restarted")[0]
    rig.restart()


def test_a_queue_that_is_not_durable_begins_empty(rig: VHostRig) -> None:
    queue, _ = rig.vhost.declare_queue("q", exclusive=True, owner="me")
    rig.vhost.bind_queue("q", "amq.fanout", "", {}, "me")
    rig.put(queue, b"gone")
    fresh = fail(rig)
    assert rig.bodies(fresh) == []
    rig.put(fresh, b"new")
    assert rig.bodies(fresh) == [b"new"]
    assert route(rig.vhost.router, "amq.fanout", "") == ["q"]
    assert rig.vhost.table.find_queue("q", "me") is fresh
    rig.vhost.table.owner_gone("me")
    assert not rig.vhost.table.has("q")


@pure_only
def test_an_error_in_a_tick_is_the_queue_s_own(rig: VHostRig) -> None:
    queue = rig.queue()
    rig.put(queue, b"a")
    queue.amq.tick = None  # type: ignore[method-assign, assignment]
    rig.tick(1)
    assert queue.is_deleted
    assert rig.bodies(rig.vhost.table.find_queue("q")) == [b"a"]


def test_deliveries_of_an_earlier_life_are_nobody_s() -> None:
    rig = BrokerRig()
    one = rig.client(consumer_cancel_notify=True).open(1)
    one.call(1, QueueDeclare(queue="q", durable=True), QueueDeclareOk)
    for body in (b"a", b"b"):
        one.publish(1, "", "q", body, delivery_mode=2)
    one.call(1, BasicConsume(queue="q", consumer_tag="one"), BasicConsumeOk)
    rig.turn()
    assert one.bodies() == [b"a", b"b"]
    rig.vhost.restarts.failed(rig.vhost.queues["q"], RuntimeError("a bug"))
    rig.turn()
    assert [method.consumer_tag for method in one.methods(BasicCancel)] == ["one"]
    other = rig.client().open(1)
    other.call(1, BasicConsume(queue="q", consumer_tag="other"), BasicConsumeOk)
    rig.turn()
    assert other.bodies() == [b"a", b"b"]
    one.send(1, BasicAck(delivery_tag=0, multiple=True))
    rig.turn()
    assert classic(rig.vhost.queues["q"]).amq.depth() == 2
    one.lose()
    assert classic(rig.vhost.queues["q"]).amq.len() == 0
    other.send(1, BasicAck(delivery_tag=0, multiple=True))
    rig.turn()
    assert classic(rig.vhost.queues["q"]).amq.depth() == 0


@pytest.mark.parametrize("count", [2, pytest.param(LONG_PLACES + 10, marks=pytest.mark.large)])
def test_a_transaction_settles_nothing_of_an_earlier_life(count: int) -> None:
    rig = BrokerRig()
    one = rig.client().open(1)
    for name in ("q", "kept"):
        one.call(1, QueueDeclare(queue=name, durable=True), QueueDeclareOk)
        for n in range(count):
            one.publish(1, "", name, b"%d" % n, delivery_mode=2)
        one.call(1, BasicConsume(queue=name), BasicConsumeOk)
    rig.turn()
    one.call(1, TxSelect(), TxSelectOk)
    one.send(1, BasicAck(delivery_tag=0, multiple=True))
    one.publish(1, "", "kept", b"more", delivery_mode=2)
    rig.vhost.restarts.failed(rig.vhost.queues["q"], RuntimeError("a bug"))
    rig.turn()
    one.call(1, TxCommit(), TxCommitOk)
    rig.turn()
    fresh = classic(rig.vhost.queues["q"]).amq
    assert (fresh.len(), classic(rig.vhost.queues["kept"]).amq.depth()) == (count, 1)
    rig.restart()
    depths = {name: rig.vhost.table.find_queue(name).amq.depth() for name in ("q", "kept")}
    assert depths == {"q": count, "kept": 1}


# --- what cannot be trusted ---


def test_a_message_that_was_in_its_hands_ends_the_vhost_and_is_there_again(rig: VHostRig) -> None:
    queue = rig.queue()
    rig.put(queue, b"a", b"b", b"c")
    state_of(queue).state.q4.popleft()
    with pytest.raises(StoppedError, match="cannot restart alone"):
        fail(rig)
    with pytest.raises(StoppedError):
        rig.vhost.turn()
    rig.vhost.close()
    rig.crash()
    assert rig.bodies(rig.vhost.table.find_queue("q")) == [b"a", b"b", b"c"]


def test_what_was_on_disk_before_is_not_looked_at(rig: VHostRig) -> None:
    rig.put(rig.queue(), *[b"%d" % n * 50 for n in range(50)])
    rig.restart()
    queue = rig.vhost.table.find_queue("q")
    rig.put(queue, b"new")
    reads = rig.fs.reads
    fresh = fail(rig)
    assert rig.fs.reads - reads < 10
    assert fresh.amq.len() == 51


def test_while_a_checkpoint_owes_it_something_the_vhost_ends(rig: VHostRig) -> None:
    for name in "abcdefgh":
        rig.put(rig.queue(name), *[b"%d" % n * 100 for n in range(20)])
    engine = rig.vhost.engine
    engine.checkpoints.begin()
    while engine.checkpoints.phase != SLICES:
        engine.flush()
        engine.poll(wait=True)
    rig.vhost.engine.queue(b"a").capture()
    rig.put(rig.vhost.queues["a"], b"x")
    assert engine.queue(b"a").departed is not None
    with pytest.raises(StoppedError):
        fail(rig, "a")
    rig.vhost.close()
    rig.crash()
    assert len(rig.bodies(rig.vhost.table.find_queue("a"))) == 21


# --- too often ---


def test_a_queue_that_fails_too_often_is_crashed(rig: VHostRig) -> None:
    queue = rig.queue(arguments={"x-max-priority": 1})
    rig.vhost.bind_queue("q", "amq.direct", "k")
    rig.put(queue, b"a")
    for n in range(FAILURES_MAX):
        assert not rig.vhost.queues["q"].is_crashed, n
        fail(rig)
    assert rig.vhost.queues["q"].is_crashed
    assert len(rig.told("queue_crashed")) == 1
    assert rig.vhost.table.usable("q") is None
    text = "NOT_FOUND - queue 'q' in vhost 'test' has crashed and failed to restart"
    for call in (
        lambda: rig.vhost.table.find_queue("q"),
        lambda: rig.vhost.declare_queue("q", durable=True, arguments={"x-max-priority": 1}),
    ):
        with pytest.raises(ChannelError) as caught:
            call()
        assert caught.value.text == text
    rig.tick(100)
    rig.vhost.engine.checkpoint()
    crashed = rig.vhost.table.find_queue("q", is_crashed_allowed=True)
    count, lsn = rig.vhost.delete_queue(crashed)
    assert count == 0
    rig.answered(lsn)
    rig.queue()
    assert rig.bodies(rig.crash().table.find_queue("q")) == []
    assert route(rig.vhost.router, "amq.direct", "k") == []


def test_the_messages_of_a_crashed_queue_are_there_after_a_restart_of_the_vhost(
    rig: VHostRig,
) -> None:
    rig.put(rig.queue(), b"a", b"b")
    for _ in range(FAILURES_MAX):
        fail(rig)
    assert rig.vhost.queues["q"].is_crashed
    assert rig.bodies(rig.restart().table.find_queue("q")) == [b"a", b"b"]


def test_failures_that_are_long_ago_do_not_count(rig: VHostRig) -> None:
    rig.put(rig.queue(), b"a")
    for _ in range(3 * FAILURES_MAX):
        rig.clock.advance(WINDOW_S / (FAILURES_MAX - 1.5))
        assert not fail(rig).is_crashed


def test_a_crashed_queue_without_durability(rig: VHostRig) -> None:
    rig.vhost.declare_queue("q")
    for _ in range(FAILURES_MAX):
        fail(rig)
    crashed = rig.vhost.table.find_queue("q", is_crashed_allowed=True)
    assert rig.vhost.delete_queue(crashed) == (0, 0)
    rig.put(rig.vhost.declare_queue("q")[0], b"x")
    assert rig.bodies(rig.vhost.table.find_queue("q")) == [b"x"]
