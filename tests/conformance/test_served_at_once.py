"""A consumer that waits is served before whatever comes behind the messages in the same packet.

RabbitMQ delivers a message as it comes if somebody waits for it, so limits, a time to live of 0, a
get, a purge, a cancel and a delete see only what nobody had room for.
"""

import pytest
from pamqp import base, commands, frame

from tests.helpers.live_broker import Broker
from tests.helpers.wire import Wire, content_header, open_channel, raw_frame

pytestmark = pytest.mark.real

Basic, Confirm, Queue, Tx = commands.Basic, commands.Confirm, commands.Queue, commands.Tx
PERSISTENT = b"\x10\x00\x02"
DURABILITIES = [(False, b"\0\0"), (True, PERSISTENT)]
durabilities = pytest.mark.parametrize(
    ("durable", "properties"), DURABILITIES, ids=["transient", "persistent"]
)


def bodies(n: int) -> list[bytes]:
    return [str(i).encode() for i in range(n)]


def publish(queue: str, data: bytes, properties: bytes = b"\0\0", exchange: str = "") -> bytes:
    """basic.publish on channel 1."""
    method = frame.marshal(Basic.Publish(exchange=exchange, routing_key=queue), 1)
    return method + content_header(1, len(data), properties) + raw_frame(3, 1, data)


def expiring(properties: bytes) -> bytes:
    """The same with an expiration of 0 ms."""
    return b"\x11\x00\x02\x010" if properties == PERSISTENT else b"\x01\x00\x010"


def methods(*some: base.Frame) -> bytes:
    return b"".join(frame.marshal(method, 1) for method in some)


def declare(wire: Wire, name: str, durable: bool, **arguments: object) -> None:
    wire.declare(name, durable=durable, exclusive=False, auto_delete=True, arguments=arguments)


def consume(wire: Wire, queue: str, prefetch: int = 0, tag: str = "t") -> None:
    wire.ask(Basic.Qos(prefetch_count=prefetch), Basic.QosOk)
    wire.ask(Basic.Consume(queue=queue, consumer_tag=tag), Basic.ConsumeOk)


def deliveries(wire: Wire, n: int) -> list[bytes]:
    """The bodies of the next n deliveries."""
    found: list[bytes] = []
    for _ in range(n):
        wire.expect(Basic.Deliver, 1)
        found.append(wire.content()[1])
    return found


def settled(wire: Wire) -> list[str]:
    """Whatever comes before a later basic.qos is answered: names of methods, bodies as text."""
    wire.send(Basic.Qos(prefetch_count=0), 1)
    found: list[str] = []
    while True:
        _, value = wire.receive()
        if isinstance(value, Basic.QosOk):
            return found
        if isinstance(value, Basic.Deliver):
            found.append(wire.content()[1].decode())
        else:
            found.append(value.name)


@durabilities
@pytest.mark.parametrize("overflow", ["drop-head", "reject-publish"])
def test_a_length_limit(
    broker: Broker, name: str, durable: bool, properties: bytes, overflow: str
) -> None:
    with open_channel(broker) as wire:
        limits = {"x-max-length": 1, "x-overflow": overflow}
        declare(wire, name, durable, **limits)
        wire.ask(Confirm.Select(), Confirm.SelectOk)
        consume(wire, name)
        wire.send_raw(b"".join(publish(name, body, properties) for body in bodies(20)))
        got: list[bytes] = []
        confirmed = 0
        while len(got) < 20 or confirmed < 20:
            _, value = wire.receive()
            if isinstance(value, Basic.Deliver):
                got.append(wire.content()[1])
            else:
                assert isinstance(value, Basic.Ack), value.name
                confirmed = value.delivery_tag or 0
        assert got == bodies(20)


@durabilities
def test_what_nobody_has_room_for_is_limited(
    broker: Broker, name: str, durable: bool, properties: bytes
) -> None:
    with open_channel(broker) as wire:
        declare(wire, name, durable, **{"x-max-length": 2})
        consume(wire, name, prefetch=3)
        wire.send_raw(b"".join(publish(name, body, properties) for body in bodies(10)))
        assert deliveries(wire, 3) == bodies(3)
        wire.send(Basic.Ack(3, multiple=True), 1)
        assert deliveries(wire, 2) == bodies(10)[8:]


@durabilities
def test_a_limit_of_bytes(broker: Broker, name: str, durable: bool, properties: bytes) -> None:
    with open_channel(broker) as wire:
        declare(wire, name, durable, **{"x-max-length-bytes": 10, "x-overflow": "reject-publish"})
        consume(wire, name, prefetch=2)
        some = [bytes((0x61 + i,)) * 8 for i in range(5)]
        wire.send_raw(b"".join(publish(name, body, properties) for body in some))
        assert deliveries(wire, 2) == some[:2]
        wire.send(Basic.Ack(2, multiple=True), 1)
        assert deliveries(wire, 1) == some[2:3]
        assert settled(wire) == []


@durabilities
@pytest.mark.parametrize("is_queues_own", [False, True])
def test_a_time_to_live_of_nothing(
    broker: Broker, name: str, durable: bool, properties: bytes, is_queues_own: bool
) -> None:
    """What consumers have room for comes; the rest is dead at once, and never comes."""
    with open_channel(broker) as wire:
        declare(wire, name, durable, **({"x-message-ttl": 0} if is_queues_own else {}))
        consume(wire, name, prefetch=4)
        props = properties if is_queues_own else expiring(properties)
        wire.send_raw(b"".join(publish(name, body, props) for body in bodies(10)))
        assert deliveries(wire, 4) == bodies(4)
        wire.send(Basic.Ack(4, multiple=True), 1)
        wire.publish(1, name, b"last", properties=props)
        assert deliveries(wire, 1) == [b"last"]


@durabilities
def test_a_limit_with_several_queues(
    broker: Broker, name: str, durable: bool, properties: bytes
) -> None:
    """One record for all of them, as it is one publish."""
    with open_channel(broker) as wire:
        for queue in (f"{name}-1", f"{name}-2"):
            declare(wire, queue, durable, **{"x-max-length": 1})
            wire.ask(Queue.Bind(queue=queue, exchange="amq.direct", routing_key=name), Queue.BindOk)
        consume(wire, f"{name}-1", tag="1")
        consume(wire, f"{name}-2", tag="2")
        wire.send_raw(
            b"".join(publish(name, body, properties, "amq.direct") for body in bodies(10))
        )
        assert sorted(deliveries(wire, 20)) == sorted(bodies(10) * 2)


@durabilities
def test_a_get(broker: Broker, name: str, durable: bool, properties: bytes) -> None:
    with open_channel(broker) as wire:
        declare(wire, name, durable)
        consume(wire, name)
        some = b"".join(publish(name, body, properties) for body in bodies(3))
        wire.send_raw(some + methods(Basic.Get(queue=name)))
        got: list[object] = []
        for _ in range(4):
            _, value = wire.receive()
            got.append(wire.content()[1] if isinstance(value, Basic.Deliver) else value.name)
        assert sorted(map(str, got)) == sorted(map(str, [*bodies(3), "Basic.GetEmpty"]))


@durabilities
@pytest.mark.parametrize(
    ("method", "answer"),
    [
        (Queue.Purge(), Queue.PurgeOk),
        (Queue.Delete(), Queue.DeleteOk),
        # RabbitMQ may count before the last publishes have come to the queue.
        pytest.param(Queue.Declare(passive=True), Queue.DeclareOk, marks=pytest.mark.penstock_only),
    ],
    ids=["purge", "delete", "declare"],
)
def test_what_is_counted(
    broker: Broker, name: str, durable: bool, properties: bytes, method: base.Frame,
    answer: type[base.Frame],
) -> None:  # fmt: skip
    """The answer and the deliveries may come in any order."""
    method.queue = name  # type: ignore[attr-defined]
    with open_channel(broker) as wire:
        declare(wire, name, durable)
        consume(wire, name, prefetch=3)
        some = b"".join(publish(name, body, properties) for body in bodies(5))
        wire.send_raw(some + methods(method))
        got: list[bytes] = []
        count = -1
        while len(got) < 3 or count < 0:
            _, value = wire.receive()
            if isinstance(value, Basic.Deliver):
                got.append(wire.content()[1])
            elif not isinstance(value, Basic.Cancel):
                assert isinstance(value, answer), value.name
                count = value.message_count  # type: ignore[attr-defined]
        assert (got, count) == (bodies(3), 2)


@durabilities
def test_a_cancel(broker: Broker, name: str, durable: bool, properties: bytes) -> None:
    """What came before it is delivered before it is answered, and is unacknowledged then."""
    with open_channel(broker) as wire, open_channel(broker) as other:
        declare(wire, name, durable)
        consume(other, name, prefetch=1, tag="keeps the queue")
        other.publish(1, name, b"first", properties=properties)
        assert deliveries(other, 1) == [b"first"]
        consume(wire, name)
        some = b"".join(publish(name, body, properties) for body in bodies(3))
        wire.send_raw(some + methods(Basic.Cancel(consumer_tag="t")))
        assert deliveries(wire, 3) == bodies(3)
        wire.expect(Basic.CancelOk, 1)
        wire.send(Basic.Ack(3, multiple=True), 1)
        assert settled(wire) == []


@durabilities
def test_a_delete_if_empty(broker: Broker, name: str, durable: bool, properties: bytes) -> None:
    with open_channel(broker) as wire:
        declare(wire, name, durable)
        consume(wire, name)
        wire.send_raw(
            publish(name, b"x", properties) + methods(Queue.Delete(queue=name, if_empty=True))
        )
        names: set[str] = set()
        while len(names) < 3:
            _, value = wire.receive()
            if isinstance(value, Basic.Deliver):
                assert wire.content()[1] == b"x"
            names.add(value.name)
        assert names == {"Basic.Deliver", "Queue.DeleteOk", "Basic.Cancel"}


def test_a_commit_into_a_queue_that_rejects(broker: Broker, name: str) -> None:
    """All of it goes to the consumer: nothing is ever too much."""
    with open_channel(broker) as wire, open_channel(broker) as reader:
        declare(wire, name, True, **{"x-max-length": 1, "x-overflow": "reject-publish"})
        consume(reader, name)
        wire.ask(Tx.Select(), Tx.SelectOk)
        wire.send_raw(b"".join(publish(name, body, PERSISTENT) for body in bodies(5)))
        wire.ask(Tx.Commit(), Tx.CommitOk)
        assert deliveries(reader, 5) == bodies(5)
