"""Connection: handshake, runs, content, closing; and every error with its code."""

import itertools

import pytest

from penstock.codec import spec
from penstock.codec.fields import ARGUMENTS_BYTES_MAX
from penstock.codec.frames import HEARTBEAT_FRAME, PROTOCOL_HEADER, header_frame
from penstock.codec.method import Method
from penstock.errors import AMQPConnectionError
from penstock.protocol.connection import (
    CLIENT,
    SERVER,
    AckRun,
    BodyRoom,
    ChannelFault,
    Connection,
    HeartbeatReceived,
    MessageReceived,
    MethodReceived,
    ProtocolHeaderReceived,
    PublishBegan,
    PublishEnded,
    PublishPart,
    PublishRun,
)
from penstock.protocol.states import ConnectionState, LocalProtocolError
from tests.helpers.inside import is_channel_open
from tests.helpers.wire_session import (
    PERSISTENT,
    frame,
    handshake,
    open_channel,
    opened,
    pair,
    publish,
    raw,
    route,
)


def fails(connection: Connection, data: bytes) -> AMQPConnectionError:
    """The error that these bytes are."""
    with pytest.raises(AMQPConnectionError) as caught:
        connection.receive(data)
    assert connection.is_broken
    return caught.value


# --------------------------------------------------------------------------- the handshake


def test_a_handshake_opens_the_connection() -> None:
    connection = Connection(SERVER)
    hello, start_ok, rest = handshake(frame_max=8192, channel_max=10)
    assert connection.receive(hello) == [ProtocolHeaderReceived(True, PROTOCOL_HEADER)]
    connection.send(0, spec.ConnectionStart())
    (event,) = connection.receive(start_ok)
    assert isinstance(event, MethodReceived)
    assert event.channel == 0
    assert event.method == spec.ConnectionStartOk(response=b"\0guest\0guest")
    connection.send(0, spec.ConnectionSecure())
    assert len(connection.receive(frame(0, spec.ConnectionSecureOk()))) == 1
    connection.send(0, spec.ConnectionTune(channel_max=2047, frame_max=131072))
    assert len(connection.receive(rest)) == 2
    assert (connection.frame_max, connection.channel_max) == (8192, 10)
    assert connection.heartbeat_s == 60
    assert connection.state.value == "opening"
    connection.send(0, spec.ConnectionOpenOk())
    assert connection.state.value == "running"


@pytest.mark.parametrize("header", [b"AMQP\x01\x01\x00\x09", b"AMQP\x00\x01\x00\x00", b"GET / HT"])
def test_another_protocol_is_told_and_nothing_behind_it(header: bytes) -> None:
    connection = Connection(SERVER)
    assert connection.receive(header[:3]) == []
    events = connection.receive(header[3:] + b"more")
    assert events == [ProtocolHeaderReceived(False, header)]
    assert connection.is_broken
    assert connection.receive(b"even more") == []
    assert connection.leftover() == b""


def test_a_client_is_told_of_a_server_that_speaks_another_version() -> None:
    client = Connection(CLIENT)
    assert client.receive(PROTOCOL_HEADER) == [ProtocolHeaderReceived(False, PROTOCOL_HEADER)]


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"frame_max": 4095}, "frame_max = 4095 is lower than the minimum allowed value (4096)"),
        (
            {"frame_max": 131073},
            "frame_max = 131073 is higher than the maximum allowed value (131072)",
        ),
        ({"frame_max": 0}, "frame_max = 0 is higher than the maximum allowed value (131072)"),
        (
            {"channel_max": 2048},
            "channel_max = 2048 is higher than the maximum allowed value (2047)",
        ),
        ({"channel_max": 0}, "channel_max = 0 is higher than the maximum allowed value (2047)"),
    ],
)
def test_tune_ok_may_not_ask_for_more(asked: dict[str, int], text: str) -> None:
    connection = Connection(SERVER)
    hello, start_ok, rest = handshake(**asked)
    connection.receive(hello)
    connection.receive(start_ok)
    connection.send(0, spec.ConnectionTune())
    error = fails(connection, rest)
    assert error.text == f"NOT_ALLOWED - negotiated {text}"


def test_all_behind_connection_open_is_left_over_if_asked_for() -> None:
    connection = Connection(SERVER, pause_after_open=True)
    hello, start_ok, rest = handshake()
    connection.receive(hello)
    connection.receive(start_ok)
    connection.send(0, spec.ConnectionTune())
    behind = frame(1, spec.ChannelOpen()) + publish()
    assert len(connection.receive(rest + behind[:9])) == 2
    assert connection.receive(behind[9:]) == []
    assert connection.leftover() == behind

    resumed = Connection.resumed(connection.frame_max, connection.channel_max)
    events = resumed.receive(connection.leftover())
    assert [type(event) for event in events] == [MethodReceived, PublishRun]
    resumed.send(0, spec.ConnectionOpenOk())
    resumed.send(1, spec.ChannelOpenOk())


def test_a_client_and_a_server_understand_each_other() -> None:
    server, client = pair()
    data = client.send_content(1, spec.BasicPublish(routing_key="q"), PERSISTENT, b"body")
    assert server.receive(data) == [PublishRun(1, [route()], [PERSISTENT], [b"body"])]
    deliver = spec.BasicDeliver(consumer_tag="c", delivery_tag=1, routing_key="q")
    data = server.send_content(1, deliver, PERSISTENT, b"b" * 300_000)
    assert client.receive(data) == [MessageReceived(1, deliver, PERSISTENT, b"b" * 300_000)]
    assert client.receive(server.send(1, spec.BasicAck(delivery_tag=1))) == [
        AckRun(1, [1], [False])
    ]
    assert server.receive(client.send(0, spec.ConnectionClose(reply_code=200))) == [
        MethodReceived(0, spec.ConnectionClose(reply_code=200))
    ]
    client.receive(server.send(0, spec.ConnectionCloseOk()))
    assert server.state is client.state is ConnectionState.CLOSED


# ------------------------------------------------------------------------------------ runs


def test_publishes_and_acks_that_follow_each_other_are_runs() -> None:
    connection = opened()
    open_channel(connection, 2)
    ack = frame(1, spec.BasicAck(delivery_tag=2**63, multiple=True))
    events = connection.receive(
        publish(1, "a", b"1")
        + publish(1, "b", b"", exchange="x", mandatory=True)
        + publish(2, "a", b"3")
        + publish(1, "a", b"4")
        + ack
        + frame(1, spec.BasicAck(delivery_tag=3))
        + publish(1, "a", b"5")
        + frame(1, spec.BasicNack(delivery_tag=4))
        + ack
    )
    assert events == [
        PublishRun(1, [route("a"), route("b", "x", 1)], [PERSISTENT] * 2, [b"1", b""]),
        PublishRun(2, [route("a")], [PERSISTENT], [b"3"]),
        PublishRun(1, [route("a")], [PERSISTENT], [b"4"]),
        AckRun(1, [2**63, 3], [True, False]),
        PublishRun(1, [route("a")], [PERSISTENT], [b"5"]),
        MethodReceived(1, spec.BasicNack(delivery_tag=4)),
        AckRun(1, [2**63], [True]),
    ]


def test_a_publish_of_many_frames_joins_the_run() -> None:
    connection = opened(frame_max=4096)
    body = bytes(range(256)) * 40
    events = connection.receive(
        publish(body=b"1") + publish(body=body, frame_max=4096) + publish(body=b"3")
    )
    assert events == [PublishRun(1, [route()] * 3, [PERSISTENT] * 3, [b"1", body, b"3"])]
    assert connection.unfinished_bytes == 0


def test_equal_routes_and_headers_that_follow_are_one_object() -> None:
    (event,) = opened().receive(publish(body=b"1") + publish(body=b"22"))
    assert isinstance(event, PublishRun)
    assert event.routes[0] is event.routes[1]
    assert event.headers[0] is event.headers[1]


def test_channels_may_interrupt_each_others_content() -> None:
    connection = opened(frame_max=4096)
    open_channel(connection, 2)
    first, second = (publish(at, str(at), b"%d" % at * 5000, frame_max=4096) for at in (1, 2))
    mixed = b"".join(
        message[at : at + size]
        for at, size in zip(_frames(first)[:-1], _sizes(first), strict=True)
        for message in (first, second)
    )
    assert connection.receive(mixed) == [
        PublishRun(1, [route("1")], [PERSISTENT], [b"1" * 5000]),
        PublishRun(2, [route("2")], [PERSISTENT], [b"2" * 5000]),
    ]


def _frames(data: bytes) -> list[int]:
    """Where the frames begin, and the end."""
    found = [0]
    while found[-1] < len(data):
        at = found[-1]
        found.append(at + 8 + int.from_bytes(data[at + 3 : at + 7], "big"))
    return found


def _sizes(data: bytes) -> list[int]:
    places = _frames(data)
    return [end - at for at, end in itertools.pairwise(places)]


def test_a_large_body_comes_in_parts_and_is_not_held() -> None:
    connection = opened(frame_max=4096, spool_bytes=5000)
    body = b"x" * 5001
    message = publish(body=body, frame_max=4096)
    events = connection.receive(message[:-1])
    assert connection.unfinished_bytes < 100
    events += connection.receive(message[-1:])
    assert events[0] == PublishBegan(1, route(), PERSISTENT, 5001)
    assert events[1:3] == [PublishPart(1, body[:4088]), PublishPart(1, body[4088:])]
    assert events[3] == PublishEnded(1)
    (run,) = connection.receive(publish(body=body[:5000], frame_max=4096))
    assert run == PublishRun(1, [route()], [PERSISTENT], [body[:5000]])


def test_unfinished_bytes_counts_what_is_held_until_it_is_whole_or_given_up() -> None:
    connection = opened()
    message = publish(body=b"x" * 1000)
    connection.receive(message[:-1])
    assert connection.unfinished_bytes == len(route()) + 3  # the body's frame is not whole
    cut = publish(body=b"x" * 1000)[:-1008] + raw(3, 1, b"x" * 600)
    other = opened()
    assert other.receive(cut) == []
    assert other.unfinished_bytes == len(route()) + 3 + 600
    other.send(1, spec.ChannelClose(reply_code=404))
    assert other.unfinished_bytes == 0


def test_a_body_that_is_too_large_is_a_fault_of_its_channel() -> None:
    connection = opened(body_bytes_max=10)
    (event, after) = connection.receive(
        publish(body=b"x" * 11) + publish(body=b"y") + frame(1, spec.ChannelClose())
    )
    assert isinstance(event, ChannelFault)
    assert event.channel == 1
    assert event.error.text == (
        "PRECONDITION_FAILED - message size 11 is larger than configured max size 10"
    )
    assert after == MethodReceived(1, spec.ChannelClose())
    connection.send(1, spec.ChannelClose(reply_code=406))
    connection.send(1, spec.ChannelCloseOk())
    connection.receive(frame(1, spec.ChannelCloseOk()))
    assert connection.channels() == []
    open_channel(connection, 1)
    assert connection.receive(publish(body=b"x" * 10)) != []


def test_a_table_in_arguments_that_is_too_long_is_a_fault_of_its_channel() -> None:
    connection = opened()
    exact: dict[str, object] = {"x": "y" * (ARGUMENTS_BYTES_MAX - 7)}
    (event,) = connection.receive(frame(1, spec.QueueDeclare(queue="q", arguments=exact)))
    assert event == MethodReceived(1, spec.QueueDeclare(queue="q", arguments=exact))
    long: dict[str, object] = {"x": "y" * (ARGUMENTS_BYTES_MAX - 6)}
    for method in (
        spec.QueueDeclare(arguments=long), spec.QueueBind(arguments=long),
        spec.QueueUnbind(arguments=long), spec.ExchangeDeclare(arguments=long),
        spec.ExchangeBind(arguments=long), spec.ExchangeUnbind(arguments=long),
        spec.BasicConsume(arguments=long),
    ):  # fmt: skip
        connection = opened()
        (event,) = connection.receive(frame(1, method) + publish(body=b"y"))
        assert isinstance(event, ChannelFault)
        assert (event.error.code, event.error.class_id) == (406, method.CLASS_ID)
        assert event.error.method_id == method.METHOD_ID
        assert f"a table of {ARGUMENTS_BYTES_MAX + 1} bytes" in event.error.text


def test_larger_bodies_share_the_room_there_is() -> None:
    """What finds no place comes in parts; what ends, whole or not, gives its place back."""
    room = BodyRoom(150_000)
    one, two = opened(frame_max=8192), opened(frame_max=8192)
    one.room = two.room = room
    body = bytes(100_000)
    begun = publish(body=body, frame_max=8192)[:20_000]
    assert one.receive(begun) == []
    assert room.taken_bytes == 100_000
    assert isinstance(two.receive(begun)[0], PublishBegan)
    assert room.taken_bytes == 100_000
    (run,) = one.receive(publish(body=body, frame_max=8192)[20_000:])
    assert isinstance(run, PublishRun)
    assert room.taken_bytes == 0
    one.receive(begun)
    assert room.taken_bytes == 100_000
    one.forget_unfinished()
    assert (room.taken_bytes, one.unfinished_bytes, one.unfinished()) == (0, 0, {})


def test_unfinished_tells_what_is_still_to_come() -> None:
    connection = opened(frame_max=8192)
    open_channel(connection, 2)
    connection.receive(frame(2, spec.BasicPublish(routing_key="q")))
    connection.receive(publish(body=bytes(10_000), frame_max=8192)[: -10_000 + 8184 - 8])
    assert connection.unfinished() == {1: 10_000 - 8184, 2: -1}
    connection.receive(b"\x03\x00")
    assert connection.unfinished() == {1: 10_000 - 8184, 2: -1, 0: 2}


def test_heartbeats() -> None:
    assert opened().receive(HEARTBEAT_FRAME * 2) == [HeartbeatReceived()] * 2


# --------------------------------------------------------------------------------- closing


def test_after_our_channel_close_all_but_the_close_ok_is_discarded() -> None:
    connection = opened()
    message = publish(body=b"x" * 100)
    connection.receive(message[:-50])
    connection.send(1, spec.ChannelClose(reply_code=404))
    assert not is_channel_open(connection, 1)
    assert connection.receive(message[-50:] + publish() + frame(1, spec.QueueDeclare())) == []
    assert connection.receive(raw(1, 1, b"\x00\x3c\x00\x99") + raw(3, 1, b"")) == []
    assert len(connection.receive(frame(1, spec.ChannelCloseOk()))) == 1
    assert connection.channels() == []
    open_channel(connection, 1)
    assert connection.receive(publish()) == [PublishRun(1, [route()], [PERSISTENT], [b"body"])]


def test_closes_of_a_channel_that_cross() -> None:
    connection = opened()
    connection.send(1, spec.ChannelClose(reply_code=404))
    assert len(connection.receive(frame(1, spec.ChannelClose()))) == 1
    connection.send(1, spec.ChannelCloseOk())
    connection.receive(frame(1, spec.ChannelCloseOk()))
    assert connection.channels() == []


def test_what_a_chunk_asked_for_before_its_close_is_still_answered() -> None:
    connection = opened(0)
    declare = spec.QueueDeclare(queue="q")
    events = connection.receive(
        frame(1, spec.ChannelOpen())
        + frame(1, declare)
        + frame(1, spec.ChannelClose())
        + frame(0, spec.ConnectionClose())
    )
    assert len(events) == 4
    connection.send(1, spec.ChannelOpenOk())
    connection.send(1, spec.QueueDeclareOk(queue="q"))
    connection.send(1, spec.ChannelCloseOk())
    connection.send(0, spec.ConnectionBlocked(reason="memory"))
    connection.send(0, spec.ConnectionCloseOk())
    assert connection.state is ConnectionState.CLOSED


def test_after_our_connection_close_only_the_peers_close_and_close_ok_count() -> None:
    connection = opened()
    connection.send(0, spec.ConnectionClose(reply_code=320))
    assert connection.receive(publish() + frame(1, spec.ChannelClose()) + HEARTBEAT_FRAME) == []
    assert connection.receive(frame(0, spec.ConnectionUpdateSecret())) == []
    assert len(connection.receive(frame(0, spec.ConnectionClose()))) == 1
    connection.send(0, spec.ConnectionCloseOk())
    assert len(connection.receive(frame(0, spec.ConnectionCloseOk()) + b"\0" * 50)) == 1
    assert connection.state is ConnectionState.CLOSED


def test_after_the_peers_close_nothing_counts_and_nothing_is_wrong() -> None:
    connection = opened()
    assert len(connection.receive(frame(0, spec.ConnectionClose()) + publish())) == 1
    assert connection.receive(b"\xff" * 20) == []
    assert connection.is_broken
    connection.send(0, spec.ConnectionCloseOk())


# ---------------------------------------------------------------------------------- errors

METHOD = frame(1, spec.BasicPublish(routing_key="q"))
WITHOUT_BODY = publish()[:-12]

ERRORS: list[tuple[str, bytes, int, str]] = [
    ("end octet", raw(1, 1, frame(1, spec.TxSelect())[7:-1], end=0), 501, "ends with octet 0"),
    ("size", b"\x01\x00\x01\x00\x02\x00\x01\x00", 501, "frame of 131073 bytes"),
    ("size of 4 GiB", b"\x03\x00\x01\xff\xff\xff\xff\x00", 501, "frame of 4294967295 bytes"),
    ("type of frame", raw(4, 1, b""), 501, "unknown type 4"),
    ("heartbeat with payload", raw(8, 0, b"x"), 501, "heartbeat"),
    ("heartbeat on a channel", raw(8, 1, b""), 505, "heartbeat on channel 1"),
    ("empty method", raw(1, 1, b""), 501, "without a class"),
    ("unknown method", raw(1, 1, b"\x00\x3c\x00\x99"), 503, "unknown method 153 of class 60"),
    ("unknown class", raw(1, 1, b"\x00\x46\x00\x0a"), 503, "unknown method 10 of class 70"),
    ("cut method", raw(1, 1, b"\x00\x3c\x00\x28\x00\x00\x01"), 501, "cannot decode"),
    ("cut ack", raw(1, 1, b"\x00\x3c\x00\x50\x00"), 501, "cannot decode"),
    (
        "no table",
        frame(1, spec.QueueDeclare(arguments={"a": None}))[:-2] + b"Z\xce",
        502,
        "type 'Z'",
    ),
    ("server's method", frame(1, spec.QueueDeclareOk()), 503, "unimplemented method"),
    (
        "connection class",
        frame(1, spec.ConnectionClose()),
        503,
        "unimplemented method",
    ),
    ("second open", frame(1, spec.ChannelOpen()), 504, "second 'channel.open' seen"),
    ("not open", frame(2, spec.QueueDeclare()), 504, "expected 'channel.open'"),
    ("publish not open", publish(2), 504, "expected 'channel.open'"),
    ("close-ok not open", frame(2, spec.ChannelCloseOk()), 504, "expected 'channel.open'"),
    (
        "channel_max",
        b"".join(frame(n, spec.ChannelOpen()) for n in range(2, 2049)),
        530,
        "number of channels opened (2047) has reached the negotiated channel_max (2047)",
    ),
    ("channel class on 0", frame(0, spec.ChannelOpen()), 504, "in connection state running"),
    ("tune-ok again", frame(0, spec.ConnectionTuneOk()), 504, "in connection state running"),
    ("content on 0", raw(2, 0, bytes(14)), 505, "expected method frame"),
    ("header first", header_frame(1, b"\0\0", 1), 505, "expected method frame"),
    ("body first", raw(3, 1, b"x"), 505, "expected method frame"),
    ("body not open", raw(3, 2, b"x"), 505, "expected method frame"),
    ("method within", METHOD + frame(1, spec.TxSelect()), 505, "expected content header"),
    ("publish within", METHOD + publish(), 505, "expected content header"),
    ("body for header", METHOD + raw(3, 1, b"x"), 505, "expected content header"),
    ("method in body", WITHOUT_BODY + frame(1, spec.TxSelect()), 505, "expected content body"),
    ("second header", WITHOUT_BODY + header_frame(1, b"\0\0", 1), 505, "expected content body"),
    ("long body", WITHOUT_BODY + raw(3, 1, b"bodyx"), 505, "1 bytes more"),
    ("short header", METHOD + raw(2, 1, bytes(13)), 501, "content header of 13 bytes"),
    ("class of header", METHOD + raw(2, 1, b"\0\x3d" + bytes(12)), 505, "class 61"),
    ("weight", METHOD + raw(2, 1, b"\0\x3c\0\x01" + bytes(10)), 505, "got non content header"),
]


@pytest.mark.parametrize(
    ("data", "code", "text"), [e[1:] for e in ERRORS], ids=[e[0] for e in ERRORS]
)
def test_every_error_has_its_code(data: bytes, code: int, text: str) -> None:
    connection = opened()
    error = fails(connection, publish(body=b"before") + data)
    assert error.code == code
    assert text in error.text
    assert connection.events_before_error[0] == PublishRun(1, [route()], [PERSISTENT], [b"before"])
    assert connection.unfinished_bytes == 0
    # What the owner does, and what may still come.
    connection.send(0, spec.ConnectionClose(reply_code=code, reply_text=error.text))
    events = connection.receive(publish() + frame(0, spec.ConnectionCloseOk()))
    is_in_step = not any(
        what in error.text for what in ("ends with", "frame of", "type 4", "with a p")
    )
    assert events == ([MethodReceived(0, spec.ConnectionCloseOk())] if is_in_step else [])


def test_bytes_behind_an_error_are_read_for_the_close_ok_that_follows_ours() -> None:
    connection = opened()
    fails(connection, frame(2, spec.TxSelect()) + publish() + frame(1, spec.TxSelect())[:5])
    assert connection.receive(b"") == []
    connection.send(0, spec.ConnectionClose(reply_code=504))
    rest = frame(1, spec.TxSelect())[5:] + frame(0, spec.ConnectionCloseOk())
    assert connection.receive(rest) == [MethodReceived(0, spec.ConnectionCloseOk())]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(0, spec.ConnectionOpen()), 504),
        (frame(0, spec.ConnectionTuneOk()), 504),
        (frame(1, spec.ChannelOpen()), 505),
        (publish(), 505),
    ],
)
def test_before_the_connection_is_open_only_its_handshake_is_right(data: bytes, code: int) -> None:
    connection = Connection(SERVER)
    connection.receive(PROTOCOL_HEADER)
    assert fails(connection, data).code == code


def test_after_the_peers_channel_close_the_channel_is_not_open() -> None:
    for data in (frame(1, spec.TxSelect()), frame(1, spec.ChannelOpen()), publish()):
        connection = opened()
        assert fails(connection, frame(1, spec.ChannelClose()) + data).code == 504


MISTAKES: list[tuple[int, Method]] = [
    (0, spec.ConnectionStart()),
    (0, spec.ConnectionCloseOk()),
    (0, spec.QueueDeclareOk()),
    (1, spec.QueueDeclare()),
    (1, spec.ConnectionClose()),
    (1, spec.ChannelOpenOk()),
    (1, spec.ChannelCloseOk()),
    (2, spec.ChannelOpenOk()),
    (2, spec.BasicCancelOk()),
    (1, spec.BasicDeliver()),
]


@pytest.mark.parametrize(("channel", "method"), MISTAKES, ids=repr)
def test_what_we_may_not_send_is_a_mistake(channel: int, method: Method) -> None:
    with pytest.raises(LocalProtocolError, match=method.NAME):
        opened().send(channel, method)


def test_other_mistakes_of_ours() -> None:
    connection = opened()
    with pytest.raises(LocalProtocolError, match="no content"):
        connection.send_content(1, spec.TxSelectOk(), b"", b"")
    connection.send(1, spec.ChannelClose())
    with pytest.raises(LocalProtocolError, match="channel 1 is closed by the server"):
        connection.send(1, spec.TxSelectOk())
    connection.send(0, spec.ConnectionClose())
    with pytest.raises(LocalProtocolError, match="connection is closed by the server"):
        connection.send(1, spec.TxSelectOk())
    _, client = pair()
    with pytest.raises(LocalProtocolError, match="channel 2048"):
        client.send(2048, spec.ChannelOpen())


# ---------------------------------------------------------------------------------- memory


def test_a_frame_that_comes_byte_by_byte_is_held_once() -> None:
    connection = opened()
    message = publish(body=b"x" * 5000)
    found = [
        event for at in range(len(message)) for event in connection.receive(message[at : at + 1])
    ]
    assert found == [PublishRun(1, [route()], [PERSISTENT], [b"x" * 5000])]
    assert connection.leftover() == b""


def test_what_is_left_over_is_less_than_a_frame() -> None:
    connection = opened(frame_max=4096)
    connection.receive(publish(body=b"x" * 9000, frame_max=4096)[:-1])
    assert len(connection.leftover()) < 4096
