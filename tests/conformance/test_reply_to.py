"""Direct reply-to: what a responder that asks for the reply queue hears."""

from collections.abc import Callable

import pytest
from pamqp import commands

from tests.helpers.live_broker import Broker
from tests.helpers.wire import Wire, open_channel, raw_method, shortstr

pytestmark = pytest.mark.real

Basic, Queue = commands.Basic, commands.Queue
REPLY_TO = "amq.rabbitmq.reply-to"


def reply_name(wire: Wire, queue: str) -> str:
    """What the requests of this connection have as reply-to, as a responder sees it."""
    properties = b"\x02\x00" + bytes((len(REPLY_TO),)) + REPLY_TO.encode()
    wire.publish(1, queue, b"ask", properties=properties)
    wire.ask(Basic.Get(queue=queue, no_ack=True), Basic.GetOk)
    header, _ = wire.content()
    return header.properties.reply_to or ""


def declare(queue: str, *, passive: bool) -> bytes:
    """queue.declare. pamqp refuses to send some names that RabbitMQ makes."""
    bits = b"\1" if passive else b"\0"
    return raw_method(1, 50, 10, b"\0\0" + shortstr(queue) + bits + b"\0\0\0\0")


@pytest.mark.parametrize("passive", [False, True])
def test_a_declare_of_the_pseudo_queue_is_answered(broker: Broker, passive: bool) -> None:
    """Whether or not there is a reply consumer: FastStream and Spring ask before they request."""
    with open_channel(broker) as wire:
        answer = wire.ask(Queue.Declare(queue=REPLY_TO, passive=passive), Queue.DeclareOk)
        assert (answer.queue, answer.message_count, answer.consumer_count) == (REPLY_TO, 0, 1)


@pytest.mark.parametrize("passive", [False, True])
def test_a_responder_asks_whether_the_requester_is_there(
    broker: Broker, name: str, passive: bool
) -> None:
    with open_channel(broker) as requester, open_channel(broker) as responder:
        requester.ask(Basic.Consume(queue=REPLY_TO, no_ack=True), Basic.ConsumeOk)
        requester.declare(name)
        asked = reply_name(requester, name)
        assert asked.startswith(f"{REPLY_TO}.")
        for wire in (responder, requester):
            wire.send_raw(declare(asked, passive=passive))
            answer = wire.expect(Queue.DeclareOk, 1)
            assert (answer.queue, answer.message_count, answer.consumer_count) == (asked, 0, 1)
        responder.publish(1, asked, b"answer", mandatory=True)
        requester.expect(Basic.Deliver, 1)
        assert requester.content()[1] == b"answer"
        requester.ask(commands.Channel.Close(200, "", 0, 0), commands.Channel.CloseOk)
        responder.send_raw(declare(asked, passive=passive))
        assert responder.channel_closed() == (404, f"NOT_FOUND - no queue '{asked}' in vhost '/'")


# RabbitMQ ends the connection with 541 where it cannot decode the token.
@pytest.mark.parametrize(
    "end",
    [
        "x",
        pytest.param(".x", marks=pytest.mark.penstock_only),
        pytest.param(".", marks=pytest.mark.penstock_only),
    ],
)
def test_no_such_requester(broker: Broker, end: str) -> None:
    asks: list[Callable[[], commands.Queue.Declare]] = [
        lambda: Queue.Declare(queue=REPLY_TO + end),
        lambda: Queue.Declare(queue=REPLY_TO + end, passive=True),
    ]
    for ask in asks:
        with open_channel(broker) as wire:
            wire.send(ask(), 1)
            text = f"NOT_FOUND - no queue '{REPLY_TO}{end}' in vhost '/'"
            assert wire.channel_closed() == (404, text)
