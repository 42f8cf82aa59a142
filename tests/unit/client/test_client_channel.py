"""ClientChannel against a scripted broker: what is asked and what comes unasked."""

import queue
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.client import ClientConnection, ConnectionLostError, connect
from penstock.client.connection import Received
from penstock.codec import spec
from penstock.codec.properties import BasicProperties
from penstock.errors import ChannelError
from penstock.protocol.connection import AckRun, PublishRun
from tests.helpers.scripted_broker import WAIT_S, ScriptedBroker


@pytest.fixture
def connection(scripted: ScriptedBroker) -> Iterator[ClientConnection]:
    with connect(scripted.url) as made:
        yield made


def test_answers_come_in_order(scripted: ScriptedBroker, connection: ClientConnection) -> None:
    scripted.on(spec.QueueDeclare, lambda _, method: [spec.QueueDeclareOk(queue=method.queue)])
    channel = connection.channel()
    asked = [channel.ask(spec.QueueDeclare(queue=f"q{i}")) for i in range(100)]
    found: Any = [future.result(WAIT_S) for future in asked]
    assert [method.queue for method in found] == [f"q{i}" for i in range(100)]


def test_an_error_ends_the_channel_and_no_other(
    scripted: ScriptedBroker, connection: ClientConnection
) -> None:
    close = spec.ChannelClose(
        reply_code=404, reply_text="NOT_FOUND - no queue", class_id=50, method_id=20
    )
    scripted.on(spec.QueueBind, lambda channel, method: [close])
    channel, other = connection.channel(), connection.channel()
    late = [channel.ask(spec.QueueBind(queue="q")), channel.ask(spec.BasicQos())]
    for future in late:
        error = future.exception(WAIT_S)
        assert isinstance(error, ChannelError)
        assert (error.code, error.text, error.class_id) == (404, "NOT_FOUND - no queue", 50)
    scripted.wait(spec.ChannelCloseOk)
    assert not channel.is_open
    with pytest.raises(ChannelError, match="no queue"):
        channel.ack(1)
    assert isinstance(other.ask(spec.BasicQos()).result(WAIT_S), spec.BasicQosOk)
    assert connection.channel().number == channel.number


def test_confirms(scripted: ScriptedBroker, connection: ClientConnection) -> None:
    channel = connection.channel()
    channel.select_confirms()
    puts = [channel.publish("x", "k", b"%d" % i, mandatory=True) for i in range(6)]
    while sum(len(run.bodies) for _, run in scripted.heard if isinstance(run, PublishRun)) < 6:
        scripted.wait(PublishRun)
    run = scripted.wait(PublishRun)
    assert run.routes[-1] == b"\x01x\x01k\x01"
    scripted.say(channel.number, spec.BasicAck(delivery_tag=2))
    scripted.say(channel.number, spec.BasicAck(delivery_tag=3, multiple=True))
    scripted.say(channel.number, spec.BasicNack(delivery_tag=5, multiple=True))
    scripted.say(channel.number, spec.BasicAck(delivery_tag=6))
    scripted.say(channel.number, spec.BasicAck(delivery_tag=6))  # of none any more
    found = [put.result(WAIT_S) for put in puts if put is not None]
    assert found == [True, True, True, False, False, True]


def test_headers_that_fit_into_no_frame_end_nothing(
    scripted: ScriptedBroker, connection: ClientConnection
) -> None:
    channel = connection.channel()
    large = BasicProperties(headers={"h": "x" * connection.frame_max}).encode()
    with pytest.raises(ValueError, match=r"headers .* do not fit into a frame"):
        channel.publish("", "q", b"x", large)
    channel.select_confirms()
    with pytest.raises(ValueError, match=r"headers .* do not fit into a frame"):
        channel.publish("", "q", b"x", large)
    with pytest.raises(ValueError, match=r"headers .* do not fit into a frame"):
        channel.publish_many("", [("q", b"\0\0", b"x"), ("q", large, b"x")])
    put = channel.publish("", "q", b"x")
    scripted.wait(PublishRun)
    scripted.say(channel.number, spec.BasicAck(delivery_tag=1))
    assert put is not None
    assert put.result(WAIT_S)


def test_a_message_in_several_frames(
    scripted: ScriptedBroker, connection: ClientConnection
) -> None:
    channel = connection.channel()
    body = bytes(range(256)) * 1200
    header = BasicProperties(headers={"a": 1}, message_id="id").encode()
    assert channel.publish("", "q", body, header) is None
    run = scripted.wait(PublishRun)
    assert (run.bodies, run.headers) == ([body], [header])
    got = channel.get("q")
    assert got.result(WAIT_S) is None
    scripted.on(spec.BasicGet, lambda _, method: [])
    got = channel.get("q")
    scripted.wait(spec.BasicGet, 2)
    method = spec.BasicGetOk(delivery_tag=1, redelivered=True, exchange="x", routing_key="q")
    scripted.deliver(channel.number, method, body, header)
    message = got.result(WAIT_S)
    assert message is not None
    assert (message.body, message.headers, message.is_redelivered) == (body, {"a": 1}, True)
    assert message.properties.message_id == "id"


def test_what_comes_back(scripted: ScriptedBroker, connection: ClientConnection) -> None:
    returned: queue.Queue[Received] = queue.Queue()
    channel = connection.channel()
    channel.on_return = returned.put
    channel.publish("", "nowhere", b"body", mandatory=True)
    scripted.wait(PublishRun)
    method = spec.BasicReturn(reply_code=312, reply_text="NO_ROUTE", routing_key="nowhere")
    scripted.deliver(channel.number, method, b"body")
    message = returned.get(timeout=WAIT_S)
    assert (message.reply_code, message.reply_text, message.body) == (312, "NO_ROUTE", b"body")


def test_consumers(scripted: ScriptedBroker, connection: ClientConnection) -> None:
    came: queue.Queue[Any] = queue.Queue()
    channel = connection.channel()
    tag, begun = channel.consume("q", came.put, came.put)
    begun.result(WAIT_S)
    scripted.deliver(channel.number, spec.BasicDeliver(consumer_tag=tag, delivery_tag=1), b"a")
    assert came.get(timeout=WAIT_S).body == b"a"
    channel.ack(1)
    assert scripted.wait(AckRun).tags == [1]
    scripted.say(channel.number, spec.BasicCancel(consumer_tag=tag, nowait=True))
    assert "is gone" in str(came.get(timeout=WAIT_S))
    # What comes to a consumer that is no more goes back.
    scripted.deliver(channel.number, spec.BasicDeliver(consumer_tag=tag, delivery_tag=2), b"b")
    assert scripted.wait(spec.BasicReject) == spec.BasicReject(delivery_tag=2, requeue=True)


def test_a_consumer_is_told_of_the_end(
    scripted: ScriptedBroker, connection: ClientConnection
) -> None:
    came: queue.Queue[Any] = queue.Queue()
    channel = connection.channel()
    tag, begun = channel.consume("q", came.put, came.put)
    begun.result(WAIT_S)
    other, begun = channel.consume("q", came.put, came.put)
    assert other != tag
    begun.result(WAIT_S)
    channel.forget_consumer(other)
    scripted.drop()
    assert isinstance(came.get(timeout=WAIT_S), ConnectionLostError)
    connection.ended.result(WAIT_S)
    assert came.empty()


def test_operations(scripted: ScriptedBroker, connection: ClientConnection) -> None:
    def answer(_: int, method: Any) -> list[Any]:
        if method.op == "good":
            return [spec.PenstockCallOk(result=b'{"n": 1}')]
        if method.op == "odd":
            return [spec.PenstockCallOk(result=b"{")]
        return [spec.PenstockCallError(code=406, text=b"PRECONDITION_FAILED - no")]

    scripted.on(spec.PenstockCall, answer)
    channel = connection.channel()
    assert channel.call("good", {"a": [1]}).result(WAIT_S) == {"n": 1}
    assert scripted.wait(spec.PenstockCall).arguments == b'{"a": [1]}'
    with pytest.raises(ChannelError, match=r"^PRECONDITION_FAILED - no$"):
        channel.call("bad", {}).result(WAIT_S)
    with pytest.raises(ChannelError, match="not JSON"):
        channel.call("odd", {}).result(WAIT_S)
    assert channel.is_open
    with pytest.raises(ValueError, match="do not fit into a frame"):
        channel.call("good", {"a": "x" * 200_000})


def test_a_name_that_is_too_long_harms_nobody(
    scripted: ScriptedBroker, connection: ClientConnection
) -> None:
    channel = connection.channel()
    with pytest.raises(ValueError, match=r"."):
        channel.ask(spec.QueueDeclare(queue="x" * 256))
    assert isinstance(channel.ask(spec.BasicQos()).result(WAIT_S), spec.BasicQosOk)
    channel.select_confirms()
    with pytest.raises(ValueError, match=r"."):
        channel.publish("", "x" * 256, b"")
    put = channel.publish("", "q", b"")
    scripted.wait(PublishRun)
    scripted.say(channel.number, spec.BasicAck(delivery_tag=1))
    assert put is not None
    assert put.result(WAIT_S)
