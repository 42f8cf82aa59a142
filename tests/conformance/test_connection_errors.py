"""Errors that close the whole connection: 501 to 506, 530, 540, 541, 320; and limits of frames.

Some mistakes have more than one fitting code; where RabbitMQ itself differs from version to
version, or only drops the connection, a set of codes is accepted, 0 standing for an end without
connection.close. What is never accepted is silence, or a connection that goes on.

506 RESOURCE_ERROR has no cause that a client can bring about in RabbitMQ or here.
"""

import threading

import pytest
from pamqp import commands, frame

from tests.helpers.live_broker import Broker, LiveBroker
from tests.helpers.wire import (
    Ended,
    Wire,
    content_header,
    open_channel,
    raw_frame,
    raw_method,
    shortstr,
)

pytestmark = pytest.mark.real

Basic, Connection, Exchange, Queue = (
    commands.Basic, commands.Connection, commands.Exchange, commands.Queue,
)  # fmt: skip

PUBLISH = frame.marshal(Basic.Publish(routing_key="k"), 1)
TABLE = (1 << 31).to_bytes(4)  # a table that says it is two GiB long
NESTED = b""
for _ in range(200):
    NESTED = b"\x01tF" + len(NESTED).to_bytes(4) + NESTED
DEEP = len(NESTED).to_bytes(4) + NESTED


def declare(table: bytes) -> bytes:
    """queue.declare with any bytes for its table."""
    return raw_method(1, 50, 10, b"\0\0" + shortstr("bad") + b"\0" + table)


# name -> (bytes sent on a connection with channel 1 open, codes accepted)
SENT: dict[str, tuple[bytes, set[int]]] = {
    "a frame with another end": (raw_frame(1, 1, b"\0\x14\0\x0a\0", b"\0"), {501}),
    "a frame of another type": (raw_frame(7, 1, b"x"), {501}),
    "a frame beyond frame-max": (raw_frame(3, 1, bytes(131_073)), {501}),
    "a frame that says it is huge": (b"\x03\0\x01\xff\xff\xff\xff", {501}),
    "a frame without a method": (raw_frame(1, 1, b""), {501, 502, 503}),
    "half a method id": (raw_frame(1, 1, b"\0\x32\0"), {501, 502, 503}),
    "a heartbeat on a channel": (raw_frame(8, 1, b""), {501, 505}),
    "a heartbeat with a body": (raw_frame(8, 0, b"x"), {501, 505}),
    "a table beyond the frame": (declare(TABLE), {501, 502}),
    "a table of no type": (declare(b"\0\0\0\x03\x01a?"), {0, 501, 502}),
    "a cut table": (declare(b"\0\0\0\x08\x01aS\0\0\0\x09"), {501, 502}),
    "arguments that are cut": (raw_method(1, 50, 10, b"\0\0\x05ab"), {501, 502}),
    "an unknown class": (raw_method(1, 999, 10), {0, 503, 540}),
    "an unknown method": (raw_method(1, 60, 199), {0, 503, 540}),
    "a method that only servers send": (
        frame.marshal(Queue.DeclareOk("q", 0, 0), 1), {503, 505, 540},
    ),
    "a connection's method on a channel": (
        frame.marshal(Connection.Close(200, "bye", 0, 0), 1), {0, 501, 503, 504, 505},
    ),
    "a channel's method on channel 0": (
        frame.marshal(Queue.Declare(queue="q"), 0), {501, 503, 504, 505},
    ),
    "channel.open on channel 0": (frame.marshal(commands.Channel.Open(), 0), {503, 504, 505}),
    "connection.open again": (frame.marshal(Connection.Open(), 0), {503, 504}),
    "start-ok again": (
        frame.marshal(Connection.StartOk({}, "PLAIN", "x", "en_US"), 0), {503, 504},
    ),
    "a second channel.open": (frame.marshal(commands.Channel.Open(), 1), {504}),
    "a method on a channel that is not open": (
        frame.marshal(Queue.Declare(queue="q"), 2), {504},
    ),
    "content on a channel that is not open": (content_header(2, 1), {504, 505}),
    "a body without a header": (raw_frame(3, 1, b"x"), {505}),
    "a header without a method": (content_header(1, 1), {505}),
    "a method where a header must come": (PUBLISH + PUBLISH, {505}),
    "a body where a header must come": (PUBLISH + raw_frame(3, 1, b"x"), {505}),
    "a method where a body must come": (PUBLISH + content_header(1, 5) + PUBLISH, {505}),
    "a second header": (PUBLISH + content_header(1, 5) + content_header(1, 5), {505}),
    "a header of another class": (
        PUBLISH + raw_frame(2, 1, b"\0\x32\0\0" + bytes(8) + b"\0\0"), {505},
    ),
    "an exchange of no type": (
        frame.marshal(Exchange.Declare(exchange="bad", exchange_type="none"), 1), {503},
    ),
    "immediate": (
        frame.marshal(Basic.Publish(routing_key="k", immediate=True), 1)
        + content_header(1, 1) + raw_frame(3, 1, b"x"),
        {540},
    ),
    "prefetch by size": (frame.marshal(Basic.Qos(prefetch_size=1000), 1), {540}),
    "channel.flow off": (frame.marshal(commands.Channel.Flow(active=False), 1), {540}),
    "recover-async without requeue": (
        frame.marshal(Basic.Recover(requeue=False), 1), {540},
    ),
}  # fmt: skip


def end_of(wire: Wire) -> tuple[int, str]:
    """Code and text of the close that must come now; 0 for an end without one."""
    try:
        while True:
            _, value = wire.receive()
            if isinstance(value, Connection.Close):
                break
    except Ended:
        return 0, "no connection.close"
    try:
        wire.send(Connection.CloseOk())
    except Ended:
        pass
    wire.ended()
    return value.reply_code or 0, value.reply_text


@pytest.mark.parametrize("case", SENT)
def test_what_closes_the_connection(broker: Broker, case: str) -> None:
    data, codes = SENT[case]
    with open_channel(broker) as wire:
        wire.send_raw(data)
        code, text = end_of(wire)
        assert code in codes, text
    with open_channel(broker) as healthy:
        healthy.declare()


def test_a_payload_of_the_whole_frame_max_is_taken(broker: Broker) -> None:
    """Eight bytes too many, strictly; RabbitMQ takes them, and some clients send them."""
    with open_channel(broker) as wire:
        queue = wire.declare()
        method = frame.marshal(Basic.Publish(routing_key=queue), 1)
        wire.send_raw(method + content_header(1, 131_072) + raw_frame(3, 1, bytes(131_072)))
        wire.ask(Basic.Get(queue=queue), Basic.GetOk)
        assert wire.content()[1] == bytes(131_072)


@pytest.mark.penstock_only
def test_tables_nested_too_deep_are_refused(broker: Broker) -> None:
    with open_channel(broker) as wire:
        wire.send_raw(declare(DEEP))
        assert end_of(wire)[0] in (501, 502)


@pytest.mark.penstock_only
def test_a_body_longer_than_said_is_an_error(broker: Broker) -> None:
    with open_channel(broker) as wire:
        wire.send_raw(PUBLISH + content_header(1, 2) + raw_frame(3, 1, b"xyz"))
        assert end_of(wire)[0] in (501, 505)


@pytest.mark.parametrize(
    "properties",
    [
        b"\x80\0\xff",
        b"\x20\0\0\0\0\x10",
        b"\xff\xff",
        pytest.param(b"\x00\x01", marks=pytest.mark.penstock_only),
    ],
    ids=repr,
)
def test_bad_properties_are_an_error_of_syntax(broker: Broker, properties: bytes) -> None:
    """A property list that does not hold what its flags say; RabbitMQ may only drop the client."""
    with open_channel(broker) as wire:
        wire.publish(1, wire.declare(), properties=properties)
        code, text = end_of(wire)
        assert code in (0, 501, 502, 541), text


def test_a_consumer_tag_is_used_once(broker: Broker) -> None:
    with open_channel(broker) as wire:
        queue = wire.declare()
        wire.ask(Basic.Consume(queue=queue, consumer_tag="mine"), Basic.ConsumeOk)
        wire.send(Basic.Consume(queue=queue, consumer_tag="mine"), 1)
        assert wire.closed() == (530, "NOT_ALLOWED - attempt to reuse consumer tag 'mine'")


def test_an_error_of_one_connection_is_not_felt_by_another(broker: Broker, name: str) -> None:
    with open_channel(broker) as healthy, open_channel(broker) as broken:
        queue = healthy.declare(name, exclusive=False, auto_delete=True)
        healthy.ask(Basic.Consume(queue=queue), Basic.ConsumeOk)
        broken.publish(1, queue, b"before the mistake")
        broken.send_raw(b"\0" * 100)
        assert end_of(broken)[0] in (0, 501)
        assert healthy.expect(Basic.Deliver, 1).routing_key == queue


def test_what_came_before_the_mistake_in_the_same_bytes_is_done(broker: Broker, name: str) -> None:
    with open_channel(broker) as wire, open_channel(broker) as other:
        other.declare(name, exclusive=False, auto_delete=True)
        content = content_header(1, 1) + raw_frame(3, 1, b"x")
        method = frame.marshal(Basic.Publish(routing_key=name), 1)
        wire.send_raw((method + content) * 10 + raw_frame(3, 1, b"x"))
        assert end_of(wire)[0] == 505
        count = other.ask(Queue.Declare(queue=name, passive=True), Queue.DeclareOk).message_count
        assert count == 10


def test_close_is_answered_and_the_rest_is_ignored(broker: Broker) -> None:
    with open_channel(broker) as wire:
        wire.send(Connection.Close(200, "bye", 0, 0))
        wire.expect(Connection.CloseOk)
        wire.ended()


@pytest.mark.penstock_only
def test_the_end_of_the_broker_is_told(tmp_path_factory: pytest.TempPathFactory) -> None:
    where = tmp_path_factory.mktemp("forced") / "data"
    with LiveBroker(where) as running, open_channel(running) as wire:
        stopping = threading.Thread(target=running.stop)
        stopping.start()
        code, text = wire.closed()
        stopping.join()
        assert (code, text[:17]) == (320, "CONNECTION_FORCED")
