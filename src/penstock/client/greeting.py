"""The greeting: what client and broker say to each other before a connection is open.

    client                          broker
    "AMQP" 0 0 9 1
                                    connection.start      what it is, which mechanisms it takes
    connection.start-ok             who we are (PLAIN), what we can do
                                    connection.tune       its limits
    connection.tune-ok              ours, none above its
    connection.open                 the vhost
                                    connection.open-ok

All of it is done in the caller's thread, on a blocking socket with one deadline. The broker may say
no by connection.close, with its words, or by closing the socket, as it does after a wrong password
when it wants to tell nobody whether the user exists.
"""

import platform
import socket
import time
from dataclasses import dataclass
from typing import TypeVar

from penstock import __version__
from penstock.client.amqp_url import AmqpUrl
from penstock.client.replies import without_name
from penstock.codec.fields import encode_table
from penstock.codec.frames import PROTOCOL_HEADER
from penstock.codec.method import Method
from penstock.codec.spec import (
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
)
from penstock.errors import AMQPConnectionError
from penstock.protocol.connection import CLIENT, Connection
from penstock.protocol.events import MethodReceived, ProtocolHeaderReceived

M = TypeVar("M", bound=Method)

READ_BYTES = 1 << 16

CAPABILITIES = {
    "publisher_confirms": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "exchange_exchange_bindings": True,
    "authentication_failure_close": True,
    "penstock.delivery_count": True,  # jobs say how often they were tried
}


@dataclass(frozen=True, slots=True)
class Greeting:
    """What came of it: the machine, which knows the connection to be open, and what was agreed."""

    machine: Connection
    server_properties: dict[str, object]
    frame_max: int
    channel_max: int
    heartbeat_s: int


class _Talk:
    """Methods of channel 0, one after the other."""

    def __init__(self, sock: socket.socket, url: AmqpUrl) -> None:
        self._socket = sock
        self._deadline = time.monotonic() + url.connection_timeout_s
        self._methods: list[Method] = []
        self.machine = Connection(CLIENT)

    def send(self, data: bytes) -> None:
        self._patience()
        self._socket.sendall(data)

    def say(self, method: Method) -> None:
        self.send(self.machine.send(0, method))

    def hear(self) -> Method:
        """The next method. AMQPConnectionError if it is connection.close, OSError at the end."""
        while not self._methods:
            self._patience()
            data = self._socket.recv(READ_BYTES)
            if not data:
                raise ConnectionError("the broker closed the connection before it was open")
            for event in self.machine.receive(data):
                if isinstance(event, MethodReceived):
                    self._methods.append(event.method)
                elif isinstance(event, ProtocolHeaderReceived):
                    raise ConnectionError("the other side speaks another version of AMQP")
        method = self._methods.pop(0)
        if isinstance(method, ConnectionClose):
            self.say(ConnectionCloseOk())
            code = method.reply_code
            raise AMQPConnectionError(
                code, without_name(method.reply_text, code), method.class_id, method.method_id
            )
        return method

    def _patience(self) -> None:
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the broker took too long to open the connection")
        self._socket.settimeout(left_s)


def _agreed(ours: int, theirs: int) -> int:
    """The smaller of two limits, of which 0 is none."""
    return min(ours, theirs) if ours and theirs else ours or theirs


def greet(sock: socket.socket, url: AmqpUrl) -> Greeting:
    """Open an AMQP connection on this socket. AMQPConnectionError; OSError, also for a time-out."""
    talk = _Talk(sock, url)
    talk.send(PROTOCOL_HEADER)
    start = _expect(talk.hear(), ConnectionStart)
    if b"PLAIN" not in start.mechanisms.split():
        raise AMQPConnectionError(403, f"the broker takes {start.mechanisms!r}, and not PLAIN")
    response = b"\0" + url.user.encode() + b"\0" + url.password.encode()
    start_ok = ConnectionStartOk(
        client_properties=encode_table(_properties(url)), mechanism="PLAIN", response=response,
        locale="en_US",
    )  # fmt: skip
    talk.say(start_ok)
    try:
        tune = _expect(talk.hear(), ConnectionTune)
    except ConnectionError:
        raise AMQPConnectionError(
            403, f"the broker closed the connection: is {url.user!r} with this password allowed?"
        ) from None
    channel_max = _agreed(url.channel_max, tune.channel_max) or 65535
    frame_max = _agreed(url.frame_max, tune.frame_max) or 131072
    heartbeat_s = tune.heartbeat if url.heartbeat_s is None else url.heartbeat_s
    talk.say(ConnectionTuneOk(channel_max=channel_max, frame_max=frame_max, heartbeat=heartbeat_s))
    talk.say(ConnectionOpen(virtual_host=url.vhost))
    _expect(talk.hear(), ConnectionOpenOk)
    return Greeting(talk.machine, start.server_properties, frame_max, channel_max, heartbeat_s)


def _properties(url: AmqpUrl) -> dict[str, object]:
    properties: dict[str, object] = {
        "product": "Penstock client",
        "version": __version__,
        "platform": f"Python {platform.python_version()}",
        "capabilities": CAPABILITIES,
    }
    if url.name:
        properties["connection_name"] = url.name
    return properties


def _expect(method: Method, kind: type[M]) -> M:
    if not isinstance(method, kind):
        raise AMQPConnectionError(503, f"expected {kind.NAME}, not {method.NAME}")
    return method
