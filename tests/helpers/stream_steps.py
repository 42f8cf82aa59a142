"""Steps that many tests of streams on a BrokerRig take: declare, publish, read what came."""

from typing import Any

from penstock.codec.properties import BasicProperties
from penstock.codec.spec import (
    BasicAck,
    BasicConsume,
    BasicConsumeOk,
    BasicDeliver,
    BasicQos,
    BasicQosOk,
    ChannelClose,
    ConnectionClose,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
)
from tests.helpers.broker_rig import BrokerRig, RigClient

PREFETCH = 100


class Record:
    """One delivery: body, and what its headers say of its place."""

    def __init__(self, message: Any) -> None:
        assert isinstance(message.method, BasicDeliver)
        self.tag: int = message.method.delivery_tag
        self.consumer: str = message.method.consumer_tag
        self.is_redelivered: bool = message.method.redelivered
        self.key: str = message.method.routing_key
        self.body: bytes = message.body
        self.props = BasicProperties.decode(message.header)
        headers: dict[str, Any] = self.props.headers or {}
        self.headers = headers
        self.offset: int = headers["x-stream-offset"]
        self.partition: int = headers["x-stream-partition"]
        self.time_us: int = headers["x-stream-timestamp"]
        self.gap: int = headers.get("x-stream-gap", 0)


def declare(client: RigClient, name: str = "s", /, **arguments: object) -> str:
    """A stream, declared on channel 1; its arguments with _ for -."""
    given = {key.replace("_", "-"): value for key, value in arguments.items()}
    given = {"x-queue-type": "stream", **given}
    method = QueueDeclare(queue=name, durable=True, arguments=given)
    return client.call(1, method, QueueDeclareOk).queue


def publish(client: RigClient, *bodies: bytes, to: str = "s", **properties: Any) -> None:
    """Published to the default exchange, and settled."""
    for body in bodies:
        client.publish(1, "", to, body, **properties)
    client.rig.turn()


def qos(client: RigClient, prefetch: int = PREFETCH, channel: int = 1) -> None:
    client.call(channel, BasicQos(prefetch_count=prefetch), BasicQosOk)


def consume(
    client: RigClient, queue: str = "s", tag: str = "t", *, channel: int = 1, offset: object = None,
    prefetch: int = PREFETCH, **arguments: object,
) -> None:  # fmt: skip
    """A consumer on the channel; arguments: x-stream-<name>."""
    qos(client, prefetch, channel)
    given = {f"x-stream-{name}": value for name, value in arguments.items()}
    if offset is not None:
        given["x-stream-offset"] = offset
    method = BasicConsume(queue=queue, consumer_tag=tag, arguments=given)
    client.call(channel, method, BasicConsumeOk)


def records(client: RigClient) -> list[Record]:
    """What came."""
    client.rig.turn()
    return [Record(message) for message in client.messages()]


def bodies(client: RigClient) -> list[bytes]:
    """The bodies of what came."""
    return [record.body for record in records(client)]


def ack(client: RigClient, *found: Record, channel: int = 1) -> None:
    """Acknowledge each of these, one by one."""
    for record in found:
        client.send(channel, BasicAck(delivery_tag=record.tag))
    client.rig.turn()


def error_of(client: RigClient) -> tuple[int, str]:
    """The one error that has closed a channel, or the connection: its code and text."""
    channels = [(e.reply_code, e.reply_text) for e in client.methods(ChannelClose)]
    found = channels + [(e.reply_code, e.reply_text) for e in client.methods(ConnectionClose)]
    assert len(found) == 1, client.events
    return found[0]


def refused(client: RigClient, **how: object) -> tuple[int, str]:
    """The error of a basic.consume of "s"; how: its fields."""
    client.send(1, BasicConsume(queue="s", consumer_tag="r", **how))  # type: ignore[arg-type]
    client.rig.turn()
    return error_of(client)


def numbers(n: int, start: int = 0) -> list[bytes]:
    """n bodies that count."""
    return [b"%d" % i for i in range(start, start + n)]


def count(rig: BrokerRig, name: str = "s") -> int:
    """How many records the stream has."""
    found = rig.vhost.table.find_queue(name)
    return found.len()


def bind_all(client: RigClient, queue: str) -> None:
    method = QueueBind(queue=queue, exchange="amq.topic", routing_key="#")
    client.call(1, method, QueueBindOk)
