"""The handshake, frame by frame: what is offered, what is refused, and how fast silence ends.

Where RabbitMQ only drops the connection, a connection.close with a code is as good: the tests ask
for an end within the limit, and for the code where RabbitMQ gives one.
"""

import contextlib
import re
import time

import pytest
from pamqp import commands, heartbeat

from tests.helpers.live_broker import Broker, wait_until
from tests.helpers.wire import (
    HEARTBEAT,
    PROTOCOL_HEADER,
    Ended,
    Wire,
    content_header,
    open_channel,
    raw_frame,
)

pytestmark = pytest.mark.real

NEEDED = (
    "authentication_failure_close",
    "basic.nack",
    "connection.blocked",
    "consumer_cancel_notify",
    "consumer_priorities",
    "exchange_exchange_bindings",
    "per_consumer_qos",
    "publisher_confirms",
)


def end_of(wire: Wire) -> int:
    """The code of connection.close, or 0 if the connection just ends."""
    try:
        return wire.closed()[0]
    except Ended:
        return 0


def test_the_offer_is_what_clients_look_for(broker: Broker) -> None:
    with Wire(broker) as wire:
        start = wire.hello()
        assert (start.version_major, start.version_minor) == (0, 9)
        assert {"PLAIN", "AMQPLAIN"} <= set(start.mechanisms.split())
        assert "en_US" in start.locales.split()
        assert wire.server["product"] == "RabbitMQ"
        assert re.fullmatch(r"3\.\d+\.\d+", str(wire.server["version"]))
        capabilities = wire.server["capabilities"]
        assert isinstance(capabilities, dict)
        assert [name for name in NEEDED if capabilities.get(name) is not True] == []
        wire.log_in()
        wire.agree()
        assert wire.tune is not None
        assert wire.tune.channel_max == 2047
        assert wire.tune.frame_max == 131072
        assert wire.tune.heartbeat == 60


@pytest.mark.parametrize(
    "greeting", [b"AMQP\x02\x00\x00\x00", b"AMQP\x00\x01\x00\x00", b"GET / HTTP/1.1\r\n\r\n"]
)
def test_another_protocol_is_told_ours(broker: Broker, greeting: bytes) -> None:
    with Wire(broker) as wire:
        wire.send_raw(greeting)
        assert wire.rest() == PROTOCOL_HEADER


def test_a_bad_password_is_told_who_can_hear_it(broker: Broker) -> None:
    with Wire(broker) as wire:
        wire.hello()
        wire.log_in("guest", "wrong")
        code, text = wire.closed()
        assert code == 403
        assert text.startswith("ACCESS_REFUSED - Login was refused using authentication mechanism")
        assert "wrong" not in text


def test_who_is_refused_may_read_why_before_the_end(broker: Broker) -> None:
    """The socket is closed after close-ok, not with connection.close: that is lost in a reset."""
    with Wire(broker) as wire:
        wire.hello()
        began = time.monotonic()
        wire.log_in("guest", "wrong")
        wire.expect(commands.Connection.Close)
        wire.sock.settimeout(0.5)
        with contextlib.suppress(TimeoutError):
            assert wire.sock.recv(1) == b""
            assert time.monotonic() - began > 2, "it is waited for close-ok, if not for ever"
            return
        wire.send(commands.Connection.CloseOk())
        wire.sock.settimeout(120)
        wire.ended()


def test_an_unknown_user_hears_the_same_as_a_wrong_password(broker: Broker) -> None:
    answers = set()
    for user, password in (("guest", "wrong"), ("nobody", "guest"), ("", "")):
        with Wire(broker) as wire:
            wire.hello()
            wire.log_in(user, password)
            answers.add(wire.closed())
    assert len(answers) == 1


def test_a_bad_password_without_the_capability_ends_the_connection(broker: Broker) -> None:
    with Wire(broker) as wire:
        wire.hello()
        wire.log_in("guest", "wrong", capabilities={})
        assert wire.rest() == b""


def test_a_mechanism_that_was_not_offered_ends_the_connection(broker: Broker) -> None:
    with Wire(broker) as wire:
        wire.hello()
        wire.send(commands.Connection.StartOk({}, "GSSAPI", "x", "en_US"))
        assert end_of(wire) in (0, 403, 503, 504)


def test_amqplain_logs_in(broker: Broker) -> None:
    def field(name: bytes, value: str) -> bytes:
        data = value.encode()
        return bytes([len(name)]) + name + b"S" + len(data).to_bytes(4) + data

    response = field(b"LOGIN", broker.user) + field(b"PASSWORD", broker.password)
    with Wire(broker) as wire:
        wire.hello()
        wire.send(commands.Connection.StartOk({}, "AMQPLAIN", response.decode("latin-1"), "en_US"))
        wire.agree()
        wire.send(commands.Connection.Open(virtual_host="/"))
        wire.expect(commands.Connection.OpenOk)


def test_an_unknown_vhost_is_not_allowed(broker: Broker) -> None:
    with Wire(broker) as wire:
        wire.hello()
        wire.log_in()
        wire.agree()
        wire.send(commands.Connection.Open(virtual_host="no such vhost"))
        assert wire.closed() == (530, "NOT_ALLOWED - vhost no such vhost not found")


@pytest.mark.parametrize("tuning", [{"channel_max": 65535}, {"frame_max": 1 << 30}])
def test_more_than_was_offered_ends_the_connection(broker: Broker, tuning: dict[str, int]) -> None:
    with Wire(broker) as wire:
        wire.hello()
        wire.log_in()
        wire.agree(**tuning)
        assert end_of(wire) in (0, 501, 530)


def test_a_frame_max_below_the_least_ends_the_connection(broker: Broker) -> None:
    with Wire(broker) as wire:
        wire.hello()
        wire.log_in()
        wire.agree(frame_max=1024)
        assert end_of(wire) in (0, 501, 530)


def test_a_method_out_of_turn_ends_the_connection(broker: Broker) -> None:
    with Wire(broker) as wire:
        wire.hello()
        wire.send(commands.Connection.Open(virtual_host="/"))
        assert end_of(wire) in (0, 501, 503, 504)


def test_half_a_handshake_is_ended_after_ten_seconds(broker: Broker) -> None:
    began = time.monotonic()
    with Wire(broker) as silent, Wire(broker) as greeted:
        greeted.hello()
        for wire in (silent, greeted):
            wire.ended()
            assert time.monotonic() - began > 5


def test_everything_may_be_sent_at_once(broker: Broker) -> None:
    """Bytes behind connection.open are not lost where the connection changes hands."""
    with Wire(broker) as wire:
        wire.hello()
        wire.log_in()
        wire.agree()
        wire.send(commands.Connection.Open(virtual_host="/"))
        wire.send(commands.Channel.Open(), 1)
        wire.send(commands.Queue.Declare(exclusive=True), 1)
        for _ in range(100):
            wire.publish(1, "nowhere", b"x" * 1000)
        wire.send(commands.Confirm.Select(), 1)
        wire.expect(commands.Connection.OpenOk)
        wire.expect(commands.Channel.OpenOk, 1)
        wire.expect(commands.Queue.DeclareOk, 1)
        wire.expect(commands.Confirm.SelectOk, 1)


def test_one_byte_at_a_time(broker: Broker) -> None:
    with open_channel(broker) as wire:
        name = wire.declare()
        payload = b"in small pieces"
        sent = Wire.__new__(Wire)
        chunks: list[bytes] = []
        sent.send_raw = chunks.append  # type: ignore[method-assign]
        sent.publish(1, name, payload)
        for byte in b"".join(chunks):
            wire.send_raw(bytes([byte]))
        got = wire.ask(commands.Basic.Get(queue=name), commands.Basic.GetOk)
        assert got.routing_key == name


def test_heartbeats_come_and_their_absence_ends_the_connection(broker: Broker) -> None:
    with Wire(broker) as wire:
        began = time.monotonic()
        wire.open(heartbeat_s=1)
        _, first = wire.receive()
        assert isinstance(first, heartbeat.Heartbeat)
        wire.ended()
        assert time.monotonic() - began > 1


def test_heartbeats_keep_an_idle_connection(broker: Broker) -> None:
    wait_until(lambda: is_kept(broker), "a client that beat in time")


def is_kept(broker: Broker) -> bool:
    """Whether the connection of a client that beats is kept; one that beat too late may be lost."""
    longest_s = 0.0
    with Wire(broker) as wire:
        began = last = time.monotonic()
        wire.open(heartbeat_s=1)
        try:
            while time.monotonic() - began < 4:
                wire.receive()
                wire.send_raw(HEARTBEAT)
                longest_s, last = max(longest_s, time.monotonic() - last), time.monotonic()
            wire.send(commands.Channel.Open(), 1)
            while not isinstance(wire.receive()[1], commands.Channel.OpenOk):
                pass
        except Ended:
            assert max(longest_s, time.monotonic() - last) > 1, "it was not kept"
            return False
    return True


def test_the_frame_max_that_was_agreed_is_kept(broker: Broker) -> None:
    with Wire(broker) as wire:
        wire.open(frame_max=4096)
        wire.channel()
        name = wire.declare()
        data = bytes(range(256)) * 100
        wire.send(commands.Basic.Publish(routing_key=name), 1)
        wire.send_raw(content_header(1, len(data)))
        for at in range(0, len(data), 4088):
            wire.send_raw(raw_frame(3, 1, data[at : at + 4088]))
        wire.ask(commands.Basic.Get(queue=name), commands.Basic.GetOk)
        _, head = wire.receive()
        got = b""
        while len(got) < len(data):
            _, piece = wire.receive()
            assert len(piece.value) <= 4088  # type: ignore[union-attr]
            got += piece.value  # type: ignore[union-attr]
        assert got == data
        assert head.body_size == len(data)  # type: ignore[union-attr]


def test_more_channels_than_agreed_are_refused(broker: Broker) -> None:
    """It is the number of open channels that counts; they may have any numbers."""
    with Wire(broker) as wire:
        wire.open(channel_max=3)
        for number in (1, 2, 65_535):
            wire.channel(number)
        wire.send(commands.Channel.Close(200, "bye", 0, 0), 2)
        wire.expect(commands.Channel.CloseOk, 2)
        wire.channel(1000)
        wire.send(commands.Channel.Open(), 4)
        text = "number of channels opened (3) has reached the negotiated channel_max (3)"
        assert wire.closed() == (530, f"NOT_ALLOWED - {text}")
