"""x-delivery-limit: every way in which a message comes back counts, and poison is a dead letter.

RabbitMQ has the argument for quorum queues; so have these tests.
"""

from collections.abc import Callable

import pytest
from pamqp import commands

from tests.helpers.live_broker import Broker, wait_until
from tests.helpers.wire import Wire, open_channel

pytestmark = pytest.mark.real

Basic, Channel, Connection = commands.Basic, commands.Channel, commands.Connection
Queue = commands.Queue
LIMIT = 2


def reject(wire: Wire, tag: int) -> None:
    wire.send(Basic.Reject(tag, requeue=True), 1)


def nack(wire: Wire, tag: int) -> None:
    wire.send(Basic.Nack(tag, requeue=True), 1)


def recover(wire: Wire, tag: int) -> None:
    wire.ask(Basic.Recover(requeue=True), Basic.RecoverOk)


def close_channel(wire: Wire, tag: int) -> None:
    wire.ask(Channel.Close(200, "", 0, 0), Channel.CloseOk)


def close_connection(wire: Wire, tag: int) -> None:
    wire.send(Connection.Close(200, "", 0, 0))
    wire.expect(Connection.CloseOk)


def be_closed(wire: Wire, tag: int) -> None:
    """An error of the client's own ends its channel."""
    wire.send(Basic.Ack(tag + 100), 1)
    assert wire.channel_closed()[0] == 406


def vanish(wire: Wire, tag: int) -> None:
    wire.sock.close()


def got_from(wire: Wire, queue: str) -> commands.Basic.GetOk | None:
    """A message of the queue, if there is one by now."""
    wire.send(Basic.Get(queue=queue), 1)
    _, answer = wire.receive()
    if not isinstance(answer, Basic.GetOk):
        return None
    wire.content()
    return answer


@pytest.mark.parametrize(
    "end", [reject, nack, recover, close_channel, close_connection, be_closed, vanish]
)
def test_what_comes_back_too_often_is_a_dead_letter(
    broker: Broker, name: str, end: Callable[[Wire, int], None]
) -> None:
    with open_channel(broker) as wire:
        arguments = {
            "x-queue-type": "quorum", "x-delivery-limit": LIMIT,
            "x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{name}-dead",
        }  # fmt: skip
        wire.declare(f"{name}-dead")
        wire.declare(name, durable=True, exclusive=False, arguments=arguments)
        wire.ask(Basic.Consume(queue=f"{name}-dead", no_ack=True), Basic.ConsumeOk)
        wire.publish(1, name, b"poison", properties=b"\x10\x00\x02")
        for n in range(LIMIT + 1):
            with open_channel(broker) as other:
                got = wait_until(lambda: got_from(other, name), "the message")
                assert got.redelivered == (n > 0)
                end(other, got.delivery_tag or 0)
        wire.expect(Basic.Deliver, 1)
        header, body = wire.content()
        assert body == b"poison"
        (death,) = (header.properties.headers or {})["x-death"]
        assert (death["reason"], death["queue"]) == ("delivery_limit", name)
        assert set(death) == {"count", "reason", "queue", "time", "exchange", "routing-keys"}
        wire.ask(Queue.Delete(queue=name), Queue.DeleteOk)


@pytest.mark.parametrize("kind", ["classic", "quorum"])
@pytest.mark.parametrize(
    "end", [reject, nack, recover, close_channel, close_connection, be_closed, vanish]
)
def test_a_quorum_queue_without_a_limit_counts_them_too(
    broker: Broker, name: str, end: Callable[[Wire, int], None], kind: str
) -> None:
    """So that a client can set aside what ends its consumers."""
    with open_channel(broker) as wire:
        wire.declare(name, durable=True, exclusive=False, arguments={"x-queue-type": kind})
        wire.publish(1, name, b"poison", properties=b"\x10\x00\x02")
        for n in range(3):
            with open_channel(broker) as other:
                tag, headers = wait_until(lambda: headers_got_from(other, name), "the message")
                assert headers == ({"x-delivery-count": n} if kind == "quorum" else {})
                end(other, tag)
        wire.send(Queue.Delete(queue=name), 1)


@pytest.mark.parametrize("kind", ["classic", "quorum"])
@pytest.mark.parametrize("is_got", [False, True], ids=["consume", "get"])
def test_deliveries_of_quorum_queues_alone_say_how_often_they_came(
    broker: Broker, name: str, kind: str, is_got: bool
) -> None:
    with open_channel(broker) as wire:
        wire.declare(name, durable=True, exclusive=False, arguments={"x-queue-type": kind})
        wire.publish(1, name, b"x", properties=b"\x10\x00\x02")
        if not is_got:
            wire.ask(Basic.Consume(queue=name), Basic.ConsumeOk)
        for n in range(3):
            if is_got:
                got = wait_until(lambda: headers_got_from(wire, name), "the message")
            else:
                tag = wire.expect(Basic.Deliver, 1).delivery_tag or 0
                got = tag, wire.content()[0].properties.headers or {}
            is_told = kind == "quorum" and (is_got or n > 0)
            assert got[1] == ({"x-delivery-count": n} if is_told else {})
            wire.send(Basic.Reject(got[0], requeue=True), 1)
        wire.send(Queue.Delete(queue=name), 1)


def headers_got_from(wire: Wire, queue: str) -> tuple[int, dict[str, object]] | None:
    """Tag and headers of a message of the queue, if there is one by now."""
    wire.send(Basic.Get(queue=queue), 1)
    _, answer = wire.receive()
    if not isinstance(answer, Basic.GetOk):
        return None
    return answer.delivery_tag or 0, dict(wire.content()[0].properties.headers or {})
