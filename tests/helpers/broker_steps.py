"""Steps that many tests of a BrokerRig take: declare, consume, read what was delivered."""

from penstock.codec.spec import (
    BasicConsume,
    BasicConsumeOk,
    BasicDeliver,
    QueueDeclare,
    QueueDeclareOk,
)
from tests.helpers.broker_rig import RigClient


def declared(
    client: RigClient, name: str = "q", *, durable: bool = True, **arguments: object
) -> str:
    """The name of a queue, declared on channel 1; its arguments with _ for -."""
    given = {key.replace("_", "-"): value for key, value in arguments.items()}
    method = QueueDeclare(queue=name, durable=durable, arguments=given)
    return client.call(1, method, QueueDeclareOk).queue


def consuming(client: RigClient, queue: str = "q", tag: str = "t", **options: object) -> None:
    """A consumer of a queue on channel 1."""
    client.call(1, BasicConsume(queue=queue, consumer_tag=tag, **options), BasicConsumeOk)  # type: ignore[arg-type]


def deliveries(client: RigClient) -> list[tuple[int, bool, bytes]]:
    """(delivery tag, redelivered, body) of what came."""
    client.rig.turn()
    found = []
    for message in client.messages():
        assert isinstance(message.method, BasicDeliver)
        found.append((message.method.delivery_tag, message.method.redelivered, message.body))
    return found
