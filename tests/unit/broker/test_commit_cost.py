"""What a commit costs grows as what is in it does, and all that it holds is counted."""

import pytest

from penstock.codec.spec import (
    QueueBind,
    QueueBindOk,
    QueueDelete,
    QueueDeleteOk,
    TxCommit,
    TxCommitOk,
    TxSelect,
    TxSelectOk,
)
from tests.helpers.broker_rig import BrokerRig, RigClient
from tests.helpers.broker_steps import declared
from tests.helpers.builds import pure_only
from tests.helpers.steps import cost_of
from tests.helpers.vhost_rig import classic


def fanned_out(rig: BrokerRig, queues: int) -> RigClient:
    """A client in a transaction, and durable queues at amq.fanout."""
    c = rig.client().open()
    for i in range(queues):
        declared(c, f"q{i}")
        c.call(1, QueueBind(queue=f"q{i}", exchange="amq.fanout"), QueueBindOk)
    c.call(1, TxSelect(), TxSelectOk)
    return c


def depth(rig: BrokerRig, name: str) -> int:
    return classic(rig.vhost.queues[name]).amq.depth()


@pure_only
@pytest.mark.parametrize("streams", [0, 1])
def test_a_message_to_many_queues_costs_as_much_as_it_has_queues(
    rig: BrokerRig, streams: int
) -> None:
    def commit_lines(queues: int) -> int:
        c = fanned_out(rig, queues)
        for i in range(streams):
            declared(c, f"s{i}", x_queue_type="stream")
            c.call(1, QueueBind(queue=f"s{i}", exchange="amq.fanout"), QueueBindOk)
        for _ in range(5):
            c.publish(1, "amq.fanout", "", b"x", delivery_mode=2)
        rig.turn()
        lines = cost_of(lambda: c.send(1, TxCommit())).lines
        rig.turn()
        assert len(c.methods(TxCommitOk)) == 1
        return lines

    few, many = commit_lines(25), commit_lines(200)
    assert depth(rig, "q1") == 10
    assert many < 10 * few  # 64 times if each place is looked up among all


@pure_only
def test_a_message_to_streams_and_queues_costs_as_much_as_it_has_queues(rig: BrokerRig) -> None:
    def publish_lines(queues: int) -> int:
        c = fanned_out(rig, queues)
        declared(c, "s", x_queue_type="stream")
        c.call(1, QueueBind(queue="s", exchange="amq.fanout"), QueueBindOk)
        other = rig.client().open()
        other.publish(1, "amq.fanout", "", b"x", delivery_mode=2)  # the route is known now
        rig.turn()
        return cost_of(lambda: other.publish(1, "amq.fanout", "", b"x", delivery_mode=2)).lines

    few, many = publish_lines(25), publish_lines(200)
    rig.turn()
    assert depth(rig, "q1") == 4
    assert many < 10 * few


def test_queues_that_are_deleted_before_the_commit_leave_it(rig: BrokerRig) -> None:
    c = fanned_out(rig, 5)
    c.publish(1, "amq.fanout", "", b"x", delivery_mode=2)
    rig.turn()
    other = rig.client().open()
    for name in ("q0", "q2", "q4"):
        other.call(1, QueueDelete(queue=name), QueueDeleteOk)
    c.call(1, TxCommit(), TxCommitOk)
    assert [depth(rig, name) for name in ("q1", "q3")] == [1, 1]
    assert [classic(rig.vhost.queues[name]).published for name in ("q1", "q3")] == [1, 1]


@pytest.mark.parametrize("delivery_mode", [1, 2])
def test_each_queue_of_a_publish_is_counted(rig: BrokerRig, delivery_mode: int) -> None:
    c = fanned_out(rig, 10)
    c.publish(1, "", "q1", b"x", delivery_mode=delivery_mode)
    rig.turn()
    one = rig.vhost.usage.transactions.total
    c.publish(1, "amq.fanout", "", b"x", delivery_mode=delivery_mode)
    rig.turn()
    more = rig.vhost.usage.transactions.total - 2 * one
    assert more >= 9 * 160
