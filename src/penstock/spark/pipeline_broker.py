"""What a pipeline asks a broker beside its rows: is it there, is a queue, how far is a stream.

All of it in the driver's process and by AMQP, with penstock.client. A queue that a pipeline writes
to is declared if it is missing: durable, without arguments; one that is there stays as it is, be
it a stream or have a limit.

Not here: the rows, which the source and the sink carry (source.py, sink.py).
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

Heads = dict[int, int]  # partition -> the offset behind its last record


@contextmanager
def broker_at(url: str | None) -> Iterator[ClientConnection]:
    """A connection to there, for a few questions. UnreachableError and the broker's own."""
    connection = connect(url)
    try:
        yield connection
    finally:
        connection.close()


def has_queue(connection: ClientConnection, name: str) -> bool:
    """Whether a queue or stream is there."""
    return messages_in(connection, name) is not None


def messages_in(connection: ClientConnection, name: str) -> int | None:
    """How many messages are ready in a queue; None: it is not there."""
    method = QueueDeclare(queue=name, passive=True)
    answer = _asked(connection, method)
    return answer.message_count if isinstance(answer, QueueDeclareOk) else None


def has_exchange(connection: ClientConnection, name: str) -> bool:
    """Whether an exchange is there."""
    return _asked(connection, ExchangeDeclare(exchange=name, passive=True)) is not None


def ensure_queue(connection: ClientConnection, name: str) -> bool:
    """Declare a queue if it is missing; whether it was."""
    if has_queue(connection, name):
        return False
    _asked(connection, QueueDeclare(queue=name, durable=True))
    return True


def described(connection: ClientConnection, name: str) -> dict[str, Any]:
    """What the broker says of a queue or stream: name, type ("classic", "stream"), ready, leases.
    ChannelError: it is not there, or not for us to see."""
    channel = connection.channel()
    try:
        found: Any = channel.call("describe_queue", {"queue": name}).result(ANSWER_S)
    finally:
        channel.close()
    return dict(found)


def names_at(connection: ClientConnection) -> list[str]:
    """The names of queues and streams that this user may use, as many as one answer holds."""
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
    """How many messages or records a pipeline has not done with, that is behind `done` of them.
    reader: under which name it leases. ChannelError."""
    found = described(connection, name)
    if found["type"] != CLASSIC:
        return max(0, sum(heads_of(connection, name).values()) - done)
    leased = [int(one["head"]) - done for one in found["leases"] if one["reader"] == reader]
    return int(found["ready"]) + max(0, sum(leased))


def heads_of(connection: ClientConnection, stream: str) -> Heads:
    """The heads of a stream's partitions. ChannelError: it is none, or not for us to see."""
    channel = connection.channel()
    try:
        found: Any = channel.call("describe_stream", {"queue": stream}).result(ANSWER_S)
    finally:
        channel.close()
    return {int(one["partition"]): int(one["head"]) for one in found["partitions"]}


def _asked(connection: ClientConnection, method: Any) -> Any:
    """The answer; None: there is nothing of that name."""
    channel = connection.channel()
    try:
        return channel.ask(method).result(ANSWER_S)
    except ChannelError as error:
        if error.code == NOT_FOUND and method.passive:
            return None
        raise
    finally:
        channel.close()
