"""Rights that are taken away end what they allowed: publishes, and consumers that run."""

import pytest

from penstock.access.permissions import Identity
from penstock.codec.spec import (
    BasicAck,
    BasicCancel,
    BasicConsume,
    BasicConsumeOk,
    BasicGet,
    ChannelClose,
    QueueDeclare,
    QueueDeclareOk,
)
from tests.helpers.broker_rig import BrokerRig, RigClient


@pytest.fixture
def rig() -> BrokerRig:
    return BrokerRig()


def identity(read: str = ".*", write: str = ".*") -> Identity:
    return Identity("ada", frozenset(), ".*", write, read)


def consuming(rig: BrokerRig, *queues: str, **capabilities: bool) -> RigClient:
    client = rig.client(identity(), **capabilities).open()
    for queue in queues:
        client.call(1, QueueDeclare(queue=queue), QueueDeclareOk)
        client.call(1, BasicConsume(queue=queue, consumer_tag=f"of {queue}"), BasicConsumeOk)
    return client


def cancels(client: RigClient) -> list[str]:
    return [method.consumer_tag for method in client.methods(BasicCancel)]


def events(rig: BrokerRig) -> list[str]:
    return [text for kind, text in rig.events if kind == "consumer_cancelled"]


def test_consumers_of_what_may_not_be_read_are_cancelled(rig: BrokerRig) -> None:
    client = consuming(rig, "a", "b", consumer_cancel_notify=True)
    client.publish(1, "", "a", b"1")
    rig.turn()
    assert client.bodies() == [b"1"]
    client.handler.set_identity(identity(read="^b$"))
    client.publish(1, "", "a", b"2")
    client.publish(1, "", "b", b"3")
    rig.turn()
    assert client.bodies() == [b"3"]
    assert cancels(client) == ["of a"]
    (text,) = events(rig)
    assert "consumer 'of a' of queue 'a' in vhost '/': user 'ada' may not read it any more" in text
    queue = rig.vhost.table.usable("a")
    assert queue is not None
    assert (queue.consumers.count, queue.len()) == (0, 1)
    client.send(1, BasicAck(delivery_tag=1))  # what it has it may still acknowledge
    rig.turn()
    assert not client.methods(ChannelClose)
    client.send(1, BasicGet(queue="a"))
    rig.turn()
    (closed,) = client.methods(ChannelClose)
    assert closed.reply_code == 403


def test_a_client_that_knows_no_cancel_notify_gets_nothing_more(rig: BrokerRig) -> None:
    client = consuming(rig, "a")
    client.handler.set_identity(identity(read=""))
    client.publish(1, "", "a", b"1")
    rig.turn()
    assert (client.bodies(), cancels(client), len(events(rig))) == ([], [], 1)


def test_rights_that_stay_cost_no_consumer(rig: BrokerRig) -> None:
    client = consuming(rig, "a", consumer_cancel_notify=True)
    client.handler.set_identity(identity(read="^a$", write=""))
    other = rig.client().open()
    other.publish(1, "", "a", b"1")
    rig.turn()
    assert (client.bodies(), cancels(client), events(rig)) == ([b"1"], [], [])


def test_a_reply_consumer_needs_no_rights(rig: BrokerRig) -> None:
    client = rig.client(identity()).open()
    reply_to = BasicConsume(queue="amq.rabbitmq.reply-to", no_ack=True)
    client.call(1, reply_to, BasicConsumeOk)
    client.handler.set_identity(identity(read=""))
    name = client.handler.channels[1].publisher.reply_queue
    other = rig.client().open()
    other.publish(1, "", name, b"answer")
    rig.turn()
    assert client.bodies() == [b"answer"]


def test_an_auto_delete_queue_goes_with_its_last_consumer(rig: BrokerRig) -> None:
    client = rig.client(identity(), consumer_cancel_notify=True).open()
    client.call(1, QueueDeclare(queue="a", auto_delete=True), QueueDeclareOk)
    client.call(1, BasicConsume(queue="a", consumer_tag="t"), BasicConsumeOk)
    client.handler.set_identity(identity(read=""))
    rig.turn()
    assert cancels(client) == ["t"]
    assert rig.vhost.table.usable("a") is None


def test_a_stream_is_read_no_more(rig: BrokerRig) -> None:
    client = rig.client(identity(), consumer_cancel_notify=True).open()
    stream = QueueDeclare(queue="s", durable=True, arguments={"x-queue-type": "stream"})
    client.call(1, stream, QueueDeclareOk)
    channel = client.handler.channels[1]
    channel.consumer_prefetch = 10
    client.call(1, BasicConsume(queue="s", consumer_tag="t"), BasicConsumeOk)
    client.handler.set_identity(identity(read=""))
    client.publish(1, "", "s", b"1")
    rig.turn()
    assert (client.bodies(), cancels(client)) == ([], ["t"])


def test_a_publish_by_a_route_that_is_known_is_refused(rig: BrokerRig) -> None:
    client = rig.client(identity()).open()
    client.call(1, QueueDeclare(queue="a"), QueueDeclareOk)
    client.publish(1, "", "a", b"1")
    rig.turn()
    client.handler.set_identity(identity(write="^a$"))
    client.publish(1, "", "a", b"2")
    rig.turn()
    (closed,) = client.methods(ChannelClose)
    assert closed.reply_code == 403
    queue = rig.vhost.table.usable("a")
    assert queue is not None
    assert queue.len() == 1
