"""ClientConnection and its greeting, against a scripted broker."""

import socket
import threading
from concurrent.futures import Future
from typing import Any

import pytest

from penstock.client import ConnectionLostError, UnreachableError, connect
from penstock.codec import spec
from penstock.codec.fields import decode_table
from penstock.errors import AMQPConnectionError, ChannelError
from tests.helpers.scripted_broker import WAIT_S, ScriptedBroker


def raised(future: "Future[Any]") -> BaseException | None:
    return future.exception(WAIT_S)


def test_the_greeting(scripted: ScriptedBroker) -> None:
    url = scripted.url.replace("//", "//me:word@") + "my%20vhost?heartbeat=7&name=me&frame_max=8192"
    with connect(url) as connection:
        assert connection.server_properties["product"] == "Scripted"
        assert connection.capability("basic.nack")
        assert not connection.capability("teleport")
        assert (connection.frame_max, connection.channel_max) == (8192, 2047)
        assert connection.heartbeat_s == 7
        assert connection.is_open
    start_ok = scripted.wait(spec.ConnectionStartOk)
    assert (start_ok.mechanism, start_ok.response) == ("PLAIN", b"\0me\0word")
    properties: Any = decode_table(start_ok.client_properties)[0]
    assert properties["connection_name"] == "me"
    assert properties["capabilities"]["authentication_failure_close"] is True
    assert scripted.wait(spec.ConnectionTuneOk) == spec.ConnectionTuneOk(
        channel_max=2047, frame_max=8192, heartbeat=7
    )
    assert scripted.wait(spec.ConnectionOpen).virtual_host == "my vhost"
    assert scripted.wait(spec.ConnectionClose).reply_code == 200
    assert not connection.is_open


def test_who_says_no_is_quoted(scripted: ScriptedBroker) -> None:
    scripted.greeting_error = AMQPConnectionError(403, "Login was refused")
    with pytest.raises(AMQPConnectionError) as caught:
        connect(scripted.url)
    assert str(caught.value) == "ACCESS_REFUSED - Login was refused"
    assert "the user 'guest' and the password right" in caught.value.__notes__[0]
    scripted.greeting_error, scripted.is_rude = None, True
    with pytest.raises(AMQPConnectionError, match="is 'guest' with this password allowed"):
        connect(scripted.url)


def test_nobody_is_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(UnreachableError, match=r"no connection to amqp://guest@127.*timed out"):
            connect(f"amqp://127.0.0.1:{port}/?connection_timeout=0.05")
    with socket.socket() as deaf:  # it has a port, and does not listen
        deaf.bind(("127.0.0.1", 0))
        port = deaf.getsockname()[1]
        with pytest.raises(UnreachableError, match="refused") as caught:
            connect(f"amqp://127.0.0.1:{port}/")
    assert isinstance(caught.value, ConnectionError)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (b"AMQP\0\1\0\0", "another version of AMQP"),
        (b"HTTP/1.1 400 Bad Request", "that port speaks HTTP, expected AMQP"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "FRAME"),
    ],
)
def test_something_else_is_there(said: bytes, told: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            sock = listener.accept()[0]
            with sock:
                sock.recv(8)
                sock.sendall(said)
                sock.recv(8)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        port = listener.getsockname()[1]
        with pytest.raises((UnreachableError, AMQPConnectionError), match=told):
            connect(f"amqp://127.0.0.1:{port}/?connection_timeout={WAIT_S}")
        thread.join()


def test_what_the_broker_ends_it_with(scripted: ScriptedBroker) -> None:
    connection = connect(scripted.url)
    channel = connection.channel()
    asked = channel.ask(spec.QueueDeclare(queue="q"))
    scripted.wait(spec.QueueDeclare)
    scripted.say(0, spec.ConnectionClose(reply_code=320, reply_text="CONNECTION_FORCED - bye"))
    error = raised(asked)
    assert isinstance(error, AMQPConnectionError)
    assert (error.code, error.text) == (320, "CONNECTION_FORCED - bye")
    scripted.wait(spec.ConnectionCloseOk)
    connection.ended.result(WAIT_S)
    assert not connection.is_open
    with pytest.raises(AMQPConnectionError, match="bye"):
        connection.channel()
    connection.close()


def test_a_connection_that_is_lost(scripted: ScriptedBroker) -> None:
    connection = connect(scripted.url)
    channel = connection.channel()
    channel.select_confirms()
    asked = channel.ask(spec.QueueDeclare(queue="q"))
    put = channel.publish("", "q", b"body")
    assert put is not None
    scripted.wait(spec.QueueDeclare)
    scripted.drop()
    for future in (asked, put, channel.ask(spec.QueueDeclare()), channel.call("op", {})):
        assert isinstance(raised(future), ConnectionLostError)
    with pytest.raises(ConnectionLostError, match="was lost"):
        channel.ack(1)
    with pytest.raises(ConnectionLostError):
        connection.channel()
    connection.close()


def test_bytes_that_are_no_amqp_end_it(scripted: ScriptedBroker) -> None:
    connection = connect(scripted.url)
    channel = connection.channel()
    asked = channel.ask(spec.QueueDeclare(queue="q"))
    scripted.wait(spec.QueueDeclare)
    scripted.raw(b"\x01\x00\x01\x00\x00\x00\x00!")
    assert isinstance(raised(asked), ConnectionLostError)
    connection.ended.result(WAIT_S)


def test_a_silent_broker_is_gone_and_a_silent_client_is_not() -> None:
    broker = ScriptedBroker(heartbeat_s=1)
    try:
        connection = connect(broker.url)
        with pytest.raises(ConnectionLostError, match="nothing came for 2 s"):
            connection.channel().ask(spec.QueueDeclare(queue="q")).result(WAIT_S)
    finally:
        broker.close()


def test_blocked_and_unblocked(scripted: ScriptedBroker) -> None:
    told: list[str] = []
    twice = threading.Event()

    def on_blocked(reason: str) -> None:
        told.append(reason)
        if len(told) == 2:
            twice.set()

    with connect(scripted.url, on_blocked=on_blocked):
        scripted.say(0, spec.ConnectionBlocked(reason="low on disk"))
        scripted.say(0, spec.ConnectionUnblocked())
        assert twice.wait(WAIT_S)
    assert told == ["low on disk", ""]


def test_channel_numbers_are_used_again(scripted: ScriptedBroker) -> None:
    with connect(scripted.url + "?channel_max=2") as connection:
        first, second = connection.channel(), connection.channel()
        assert (first.number, second.number) == (1, 2)
        with pytest.raises(AMQPConnectionError, match="all 2 channels"):
            connection.channel()
        asked = first.ask(spec.QueueDeclare(queue="q"))
        first.close()
        assert isinstance(raised(asked), ChannelError)  # no answer comes any more
        second.ask(spec.BasicQos()).result(WAIT_S)  # behind channel.close-ok
        assert connection.channel().number == 1
