"""tx: what is returned at the commit, and what acknowledgements in it do to the prefetch."""

import pytest
from pamqp import commands

from tests.helpers.live_broker import Broker, wait_until
from tests.helpers.wire import Wire, open_channel

pytestmark = pytest.mark.real

Basic, Channel, Queue, Tx = commands.Basic, commands.Channel, commands.Queue, commands.Tx
PERSISTENT = b"\x10\x00\x02"


def has_nothing_more(wire: Wire) -> bool:
    """Whether the answer of a channel.flow is all that comes."""
    return bool(wire.ask(Channel.Flow(active=True), Channel.FlowOk).active)


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("properties", [b"\0\0", PERSISTENT], ids=["transient", "persistent"])
def test_a_mandatory_message_whose_queue_has_gone_is_returned(
    broker: Broker, name: str, durable: bool, properties: bytes
) -> None:
    """Those before and behind it, too, in the order of the publishes."""
    with open_channel(broker) as wire, open_channel(broker) as other:
        wire.declare(name, durable=durable, exclusive=False)
        wire.ask(Tx.Select(), Tx.SelectOk)
        wire.publish(1, f"{name}-never", b"0", mandatory=True)
        wire.publish(1, name, b"1", mandatory=True, properties=properties)
        wire.publish(1, name, b"2", mandatory=False, properties=properties)
        wire.publish(1, f"{name}-never", b"3", mandatory=True)
        assert has_nothing_more(wire)
        other.ask(Queue.Delete(queue=name), Queue.DeleteOk)
        wire.send(Tx.Commit(), 1)
        for body in (b"0", b"1", b"3"):
            returned = wire.expect(Basic.Return, 1)
            assert (returned.reply_code, returned.reply_text) == (312, "NO_ROUTE")
            assert wire.content()[1] == body
        wire.expect(Tx.CommitOk, 1)


def test_one_of_two_queues_has_gone(broker: Broker, name: str) -> None:
    with open_channel(broker) as wire, open_channel(broker) as other:
        for queue in (f"{name}-1", f"{name}-2"):
            wire.declare(queue, durable=True, exclusive=False)
            bind = Queue.Bind(queue=queue, exchange="amq.direct", routing_key=name)
            wire.ask(bind, Queue.BindOk)
        wire.ask(Tx.Select(), Tx.SelectOk)
        wire.publish(1, name, exchange="amq.direct", mandatory=True, properties=PERSISTENT)
        assert has_nothing_more(wire)
        other.ask(Queue.Delete(queue=f"{name}-1"), Queue.DeleteOk)
        wire.ask(Tx.Commit(), Tx.CommitOk)
        assert wire.ask(Queue.Delete(queue=f"{name}-2"), Queue.DeleteOk).message_count == 1


@pytest.mark.parametrize("is_global", [False, True])
@pytest.mark.parametrize("how", ["ack", "reject", "nack"])
def test_what_is_settled_gives_room_at_the_commit(
    broker: Broker, name: str, is_global: bool, how: str
) -> None:
    settle = {
        "ack": Basic.Ack(2, multiple=True),
        "reject": Basic.Reject(2, requeue=False),
        "nack": Basic.Nack(2, multiple=True, requeue=False),
    }[how]
    with open_channel(broker) as wire:
        wire.declare(name)
        for body in (b"0", b"1", b"2", b"3", b"4"):
            wire.publish(1, name, body)
        wire.ask(Basic.Qos(prefetch_count=2, global_=is_global), Basic.QosOk)
        wire.ask(Tx.Select(), Tx.SelectOk)
        wire.ask(Basic.Consume(queue=name), Basic.ConsumeOk)
        for body in (b"0", b"1"):
            wire.expect(Basic.Deliver, 1)
            assert wire.content()[1] == body
        wire.send(settle, 1)
        assert has_nothing_more(wire)
        wire.ask(Tx.Rollback(), Tx.RollbackOk)
        assert has_nothing_more(wire)
        wire.send(settle, 1)
        assert has_nothing_more(wire)
        wire.send(Tx.Commit(), 1)
        names: list[str] = []
        bodies: list[bytes] = []
        room = 1 if how == "reject" else 2

        def came() -> bool:
            _, value = wire.receive()
            names.append(value.name)
            if isinstance(value, Basic.Deliver):
                bodies.append(wire.content()[1])
            return "Tx.CommitOk" in names and len(bodies) == room

        wait_until(came, "the commit and what it made room for")
        assert bodies == [b"2", b"3"][:room]
        assert has_nothing_more(wire)
