"""Small things that RabbitMQ does, and the broker too."""

import pytest

from penstock.access.permissions import Identity
from penstock.codec.spec import (
    BasicConsume,
    BasicConsumeOk,
    BasicGet,
    BasicGetOk,
    ChannelClose,
    QueueDelete,
    QueueDeleteOk,
)
from tests.helpers.broker_rig import BrokerRig
from tests.helpers.broker_steps import declared
from tests.helpers.operation_rig import OperationRig
from tests.helpers.vhost_rig import classic


@pytest.mark.parametrize("exclusive", [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_exclusive_has_no_effect_on_a_quorum_queue(
    rig: BrokerRig, kind: str, exclusive: tuple[bool, bool]
) -> None:
    first, second = rig.client().open(), rig.client().open()
    declared(first, x_queue_type=kind)
    first.call(1, BasicConsume(queue="q", exclusive=exclusive[0]), BasicConsumeOk)
    second.send(1, BasicConsume(queue="q", exclusive=exclusive[1]))
    rig.turn()
    refused = [close.reply_code for close in second.methods(ChannelClose)]
    assert refused == ([] if kind == "quorum" else [403])


@pytest.mark.parametrize(("tags", "depth"), [([], 0), (["monitoring"], 0), (["impersonator"], 1)])
def test_an_impersonator_publishes_with_the_user_id_of_others(
    rig: BrokerRig, tags: list[str], depth: int
) -> None:
    c = rig.client(Identity("ann", frozenset(tags), ".*", ".*", ".*")).open()
    declared(c)
    c.publish(1, "", "q", b"x", user_id="ben")
    rig.turn()
    assert classic(rig.vhost.queues["q"]).amq.depth() == depth
    assert [close.reply_code for close in c.methods(ChannelClose)] == [406] * (1 - depth)


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_delivery_limit_of_minus_one_is_none(rig: BrokerRig, kind: str) -> None:
    c = rig.client().open()
    declared(c, x_queue_type=kind, x_delivery_limit=-1)
    declared(c, x_queue_type=kind, x_delivery_limit=-1)
    queue = classic(rig.vhost.queues["q"])
    assert queue.amq.options.max_attempts is None
    assert queue.arguments["x-delivery-limit"] == -1
    rig.restart()
    declared(rig.client().open(), x_queue_type=kind, x_delivery_limit=-1)


def test_an_operation_declares_names_that_amqp_can_delete() -> None:
    rig = OperationRig()
    assert rig.result("declare_queue", queue="a\r\nb")["queue"] == "ab"
    assert rig.result("declare_exchange", exchange="x\ny", type="fanout")["exchange"] == "xy"
    c = rig.client().open()
    c.call(1, QueueDelete(queue="a\nb"), QueueDeleteOk)
    assert "ab" not in rig.vhost.queues


@pytest.mark.parametrize("letters", [False, True])
def test_an_expiration_of_0_waits_behind_others(rig: BrokerRig, letters: bool) -> None:
    """Only the head expires: seen of RabbitMQ 3.10, classic and quorum queues."""
    c = rig.client().open()
    declared(c, "dead")
    declared(c, x_dead_letter_exchange="", x_dead_letter_routing_key="dead") if letters else (
        declared(c)
    )
    queue, dead = (classic(rig.vhost.queues[name]).amq for name in ("q", "dead"))
    c.publish(1, "", "q", b"alone", expiration="0")
    rig.turn()
    assert (queue.len(), dead.len()) == (0, letters)
    c.publish(1, "", "q", b"first")
    for _ in range(3):
        c.publish(1, "", "q", b"late", expiration="0")
    rig.turn()
    assert (queue.len(), dead.len()) == (4, letters)
    c.send(1, BasicGet(queue="q"))
    rig.turn()
    got = c.messages()[0].method
    assert isinstance(got, BasicGetOk)
    assert got.message_count == 0
    assert (queue.len(), dead.len()) == (0, 4 * letters)
