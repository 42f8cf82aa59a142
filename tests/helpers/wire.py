"""AMQP 0-9-1 spoken frame by frame over a socket, also wrongly.

A client library keeps the rules of the protocol; ``Wire`` keeps none, so that tests can say what
no client would. It blocks, and knows three ends of a wait: a frame, the end of the connection
(``Ended``), and silence, which is always a failure of the test. Frames are built and read with
pamqp, which is none of ours: a mistake of our codec cannot hide behind its own mirror image.

Not here: sessions of ordinary clients; pika is the better one for those.
"""

import contextlib
import socket
import struct
from types import TracebackType
from typing import Any, TypeVar

from pamqp import base, body, commands, frame, header, heartbeat

from tests.helpers.live_broker import Broker

SILENCE_S = 120.0
BODY_BYTES = 131_072 - 8
PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
HEARTBEAT = b"\x08\0\0\0\0\0\0\xce"
CAPABILITIES = {
    "authentication_failure_close": True,
    "basic.nack": True,
    "connection.blocked": True,
    "consumer_cancel_notify": True,
    "publisher_confirms": True,
}

Frame = base.Frame | header.ContentHeader | body.ContentBody | heartbeat.Heartbeat
F = TypeVar("F", bound=Frame)


class Ended(Exception):
    """The broker has ended the connection."""


class Refused(AssertionError):
    """The broker closes the connection, with a code, where the test expects something else."""

    def __init__(self, close: commands.Connection.Close) -> None:
        super().__init__(f"{close.name}: {dict(close)}")
        self.code = close.reply_code or 0


def raw_frame(kind: int, channel: int, payload: bytes, end: bytes = b"\xce") -> bytes:
    """A frame of any sort, also one that must not be."""
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + end


def raw_method(channel: int, class_id: int, method_id: int, arguments: bytes = b"") -> bytes:
    """A method frame, its arguments taken as they are."""
    return raw_frame(1, channel, struct.pack(">HH", class_id, method_id) + arguments)


def content_header(channel: int, size: int, properties: bytes = b"\0\0", weight: int = 0) -> bytes:
    """A content header frame of class basic; `properties` are flags and list."""
    return raw_frame(2, channel, struct.pack(">HHQ", 60, weight, size) + properties)


def shortstr(text: str) -> bytes:
    data = text.encode()
    return bytes([len(data)]) + data


class Wire:
    """One connection to a broker. Every wait ends within `silence_s`, or the test fails."""

    def __init__(self, broker: Broker, silence_s: float = SILENCE_S) -> None:
        self.broker = broker
        self.sock = socket.create_connection((broker.host, broker.port), timeout=silence_s)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._unread = b""
        self.server: dict[str, object] = {}
        self.tune: commands.Connection.Tune | None = None

    def __enter__(self) -> "Wire":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.sock.close()

    # --- saying ---

    def send_raw(self, data: bytes) -> None:
        """Any bytes. Raises Ended if the broker has gone."""
        try:
            self.sock.sendall(data)
        except ConnectionError:
            raise Ended from None

    def send(self, method: base.Frame, channel: int = 0) -> None:
        self.send_raw(frame.marshal(method, channel))

    def publish(
        self, channel: int, routing_key: str, data: bytes = b"x", *, exchange: str = "",
        mandatory: bool = False, immediate: bool = False, properties: bytes = b"\0\0",
    ) -> None:  # fmt: skip
        """basic.publish with header and body, in frames of the usual size."""
        method = commands.Basic.Publish(
            exchange=exchange, routing_key=routing_key, mandatory=mandatory, immediate=immediate
        )
        content = content_header(channel, len(data), properties)
        for at in range(0, len(data), BODY_BYTES):
            content += raw_frame(3, channel, data[at : at + BODY_BYTES])
        self.send_raw(frame.marshal(method, channel) + content)

    # --- hearing ---

    def receive(self) -> tuple[int, Frame]:
        """(channel, frame). Raises Ended, or AssertionError after silence."""
        while len(self._unread) < 7 or len(self._unread) < self._next_size():
            self._read_more()
        size = self._next_size()
        data, self._unread = self._unread[:size], self._unread[size:]
        _, channel, value = frame.unmarshal(data)
        assert not isinstance(value, header.ProtocolHeader), "a protocol header in a session"
        return channel, value

    def _next_size(self) -> int:
        return 8 + int.from_bytes(self._unread[3:7])

    def _read_more(self) -> None:
        try:
            data = self.sock.recv(65536)
        except TimeoutError:
            raise AssertionError("the broker was silent") from None
        except ConnectionError:
            raise Ended from None
        if not data:
            raise Ended
        self._unread += data

    def expect(self, kind: type[F], channel: int = 0) -> F:
        """The next frame but heartbeats, which must be of this kind on this channel. Refused: it is
        a connection.close."""
        while True:
            where, value = self.receive()
            if not isinstance(value, heartbeat.Heartbeat):
                break
        if isinstance(value, commands.Connection.Close) and not issubclass(kind, type(value)):
            raise Refused(value)
        assert isinstance(value, kind), f"{value.name}: {dict(value)}"  # type: ignore[arg-type]
        assert where == channel
        return value

    def ask(self, method: base.Frame, answer: type[F], channel: int = 1) -> F:
        self.send(method, channel)
        return self.expect(answer, channel)

    def content(self, channel: int = 1) -> tuple[header.ContentHeader, bytes]:
        """The header and the whole body that must come now."""
        head = self.expect(header.ContentHeader, channel)
        pieces: list[bytes] = []
        left = head.body_size
        while left:
            piece = self.expect(body.ContentBody, channel).value
            pieces.append(piece)
            left -= len(piece)
        return head, b"".join(pieces)

    def closed(self) -> tuple[int, str]:
        """Code and text of the connection.close that must come now, then the end of it."""
        close = self.expect(commands.Connection.Close)
        with contextlib.suppress(Ended):
            self.send(commands.Connection.CloseOk())
        self.ended()
        return close.reply_code or 0, close.reply_text

    def channel_closed(self, channel: int = 1) -> tuple[int, str]:
        """Code and text of the channel.close that must come now; it is answered."""
        close = self.expect(commands.Channel.Close, channel)
        self.send(commands.Channel.CloseOk(), channel)
        return close.reply_code or 0, close.reply_text

    def ended(self) -> None:
        """The end of the connection; whatever comes before it is read and forgotten."""
        try:
            while True:
                self._read_more()
                self._unread = b""
        except Ended:
            pass

    def rest(self, until: bytes = b"") -> bytes:
        """All bytes until the end of the connection, or until these have come, as they are."""
        try:
            while not until or until not in self._unread:
                self._read_more()
        except Ended:
            pass
        data, self._unread = self._unread, b""
        return data

    # --- the usual beginning ---

    def hello(self) -> commands.Connection.Start:
        self.send_raw(PROTOCOL_HEADER)
        start = self.expect(commands.Connection.Start)
        self.server = dict(start.server_properties or {})
        return start

    def log_in(
        self, user: str | None = None, password: str | None = None, *,
        capabilities: dict[str, bool] | None = None,
    ) -> None:  # fmt: skip
        """start-ok by PLAIN; tune, or an error, is yet to come."""
        offered: Any = CAPABILITIES if capabilities is None else capabilities
        words = (self.broker.user if user is None else user).encode()
        secret = (self.broker.password if password is None else password).encode()
        self.send(
            commands.Connection.StartOk(
                client_properties={"product": "wire", "capabilities": offered},
                mechanism="PLAIN",
                response=(b"\0" + words + b"\0" + secret).decode(),
                locale="en_US",
            )
        )

    def agree(
        self, *, channel_max: int | None = None, frame_max: int | None = None, heartbeat_s: int = 0
    ) -> None:
        """tune-ok with what was offered, or with these."""
        self.tune = self.expect(commands.Connection.Tune)
        self.send(
            commands.Connection.TuneOk(
                channel_max=self.tune.channel_max if channel_max is None else channel_max,
                frame_max=self.tune.frame_max if frame_max is None else frame_max,
                heartbeat=heartbeat_s,
            )
        )

    def open(self, vhost: str = "/", *, user: str | None = None, **tuning: int) -> "Wire":
        """The whole handshake, of the broker's user or of one whose password is the name. Ended,
        Refused, OSError: there was none, and the socket is closed."""
        try:
            self.hello()
            self.log_in(user, user)
            self.agree(**tuning)
            self.send(commands.Connection.Open(virtual_host=vhost))
            self.expect(commands.Connection.OpenOk)
        except BaseException:
            self.sock.close()
            raise
        return self

    def channel(self, number: int = 1) -> int:
        self.send(commands.Channel.Open(), number)
        self.expect(commands.Channel.OpenOk, number)
        return number

    def declare(self, name: str = "", **arguments: object) -> str:
        """A queue on channel 1, exclusive unless said otherwise; its name."""
        options: dict[str, object] = {"queue": name, "exclusive": True, **arguments}
        method = commands.Queue.Declare(**options)  # type: ignore[arg-type]
        return self.ask(method, commands.Queue.DeclareOk).queue or ""


def open_channel(broker: Broker) -> Wire:
    """A connection with channel 1 open. Ended, Refused, OSError: there is none, and the socket is
    closed."""
    wire = Wire(broker).open()
    try:
        wire.channel()
    except BaseException:
        wire.sock.close()
        raise
    return wire
