"""What a pipeline asks a broker beside its rows: does a queue exist, how far is a stream.

All questions come from the driver's process, over AMQP, with penstock.client. The rows themselves
go through the source and the sink. A missing queue that a pipeline writes to is declared durable,
without arguments; an existing one stays as it is, be it a stream or a queue with limits.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from penstock.client import ClientConnection, connect
from penstock.codec.spec import ExchangeDeclare, QueueDeclare, QueueDeclareOk
from penstock.errors import ChannelError

ANSWER_S = 30.0
NOT_FOUND = 404
NAMES_MAX = 1000  # of one answer
CLASSIC = "classic"

Heads = dict[int, int]  # partition -> the offset after its last record


@contextmanager
def broker_at(url: str | None) -> Iterator[ClientConnection]:
    """Return a connection for a few questions. Raises UnreachableError and the broker's own
    errors."""
    connection = connect(url)
    try:
        yield connection
    finally:
        connection.close()


def has_queue(connection: ClientConnection, name: str) -> bool:
    """Return whether a queue or stream exists."""
    return messages_in(connection, name) is not None


def messages_in(connection: ClientConnection, name: str) -> int | None:
    """Return how many messages are ready in a queue, or None if it does not exist."""
    method = QueueDeclare(queue=name, passive=True)
    answer = _asked(connection, method)
    return answer.message_count if isinstance(answer, QueueDeclareOk) else None


def has_exchange(connection: ClientConnection, name: str) -> bool:
    """Return whether an exchange exists."""
    return _asked(connection, ExchangeDeclare(exchange=name, passive=True)) is not None


def ensure_queue(connection: ClientConnection, name: str) -> bool:
    """Declare a queue if it is missing. Return whether it was."""
    if has_queue(connection, name):
        return False
    _asked(connection, QueueDeclare(queue=name, durable=True))
    return True


def described(connection: ClientConnection, name: str) -> dict[str, Any]:
    """Return the broker's description of a queue or stream: name, type ("classic", "stream"),
    ready, leases. Raises ChannelError if it does not exist, or this user may not see it."""
    channel = connection.channel()
    try:
        found: Any = channel.call("describe_queue", {"queue": name}).result(ANSWER_S)
    finally:
        channel.close()
    return dict(found)


def names_at(connection: ClientConnection) -> list[str]:
    """Return the names of queues and streams that this user may use, as many as one answer
    holds."""
    channel = connection.channel()
    found: list[str] = []
    try:
        for op in ("box.queues", "box.streams"):
            answer: Any = channel.call(op, {"after": "", "n": NAMES_MAX}).result(ANSWER_S)
            found += [str(name) for name in answer]
    finally:
        channel.close()
    return found


def left_of(connection: ClientConnection, name: str, reader: str, done: int) -> int:
    """Return how many messages or records are left after the first `done`. reader: the name under
    which the pipeline leases. Raises ChannelError."""
    found = described(connection, name)
    if found["type"] != CLASSIC:
        return max(0, sum(heads_of(connection, name).values()) - done)
    leased = [int(one["head"]) - done for one in found["leases"] if one["reader"] == reader]
    return int(found["ready"]) + max(0, sum(leased))


def heads_of(connection: ClientConnection, stream: str) -> Heads:
    """Return the heads of a stream's partitions. Raises ChannelError if it is not a stream, or not
    visible."""
    channel = connection.channel()
    try:
        found: Any = channel.call("describe_stream", {"queue": stream}).result(ANSWER_S)
    finally:
        channel.close()
    return {int(one["partition"]): int(one["head"]) for one in found["partitions"]}


def _asked(connection: ClientConnection, method: Any) -> Any:
    """Return the broker's answer, or None if there is nothing of that name."""
    channel = connection.channel()
    try:
        return channel.ask(method).result(ANSWER_S)
    except ChannelError as error:
        if error.code == NOT_FOUND and method.passive:
            return None
        raise
    finally:
        channel.close()
