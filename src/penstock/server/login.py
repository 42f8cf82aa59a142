"""Login: the handshake of one client, from the protocol header to connection.open.

    client  AMQP 0 0 9 1                       (anything else: the right header, and the end)
    server  connection.start                   mechanisms, what we can do
    client  connection.start-ok                who
    server  connection.tune                    channel-max, frame-max, heartbeat
    client  connection.tune-ok, connection.open

The bare socket is read, never more than one frame may have, and one whole frame is parsed after the
other. So the bytes after connection.open are known exactly, and go with the socket to the vhost's
process. A transport would read ahead. `steps` is a generator, which the listener runs from one
arrival of bytes to the next: a login that waits for nothing else needs no task.

Anybody can send all this, so it is small: a frame of the handshake has at most FRAME_BYTES_MAX, and
only the bytes read and the client's properties are kept, as bytes. `held_bytes` is their size, and
`on_held` is called for each change; the listener limits the sum.

Refusals are those of RabbitMQ, because clients expect them: a wrong password is answered with
connection.close 403 if the client declares that it understands it, and otherwise by closing after a
moment, as any other mistake before connection.open. An unknown or forbidden vhost is 530. An
unknown user and a wrong password get the same answer.

backends check passwords, authenticator decides who waits; listener limits time and number;
supervisor knows the vhosts.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, NamedTuple, TypeVar

from penstock.broker.connection_facts import ConnectionFacts, capabilities
from penstock.clock import Clock
from penstock.codec.fields import check_table, raw_entry
from penstock.codec.frames import FRAME_MAX_MIN, PROTOCOL_HEADER, method_frame
from penstock.codec.method import Method
from penstock.codec.spec import (
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
)
from penstock.errors import ACCESS_REFUSED, SYNTAX_ERROR, AMQPConnectionError, AMQPError
from penstock.native import VERSION
from penstock.protocol.connection import SERVER, Connection, MethodReceived
from penstock.server.backends import Account, Backends, Refused
from penstock.server.proxy_protocol import Network, Proxied, WrongProxyHeader, is_of, read_header
from penstock.server.tls_records import TlsRecords, WrongRecord

FRAME_BYTES_MAX: Final = 8 << 10  # of the handshake, with its head and end
FRAME_HEAD_BYTES: Final = 7
CHANNEL_MAX: Final = 2047
FRAME_MAX: Final = 131072
HEARTBEAT_S: Final = 60
MECHANISMS: Final = b"AMQPLAIN PLAIN"
EXTERNAL: Final = "EXTERNAL"
LOCALES: Final = b"en_US"
# Clients look at this pair to know which features the server has.
PRODUCT: Final = "RabbitMQ"
PRODUCT_VERSION: Final = "3.13.7"
CAPABILITIES: Final = (
    "publisher_confirms",
    "exchange_exchange_bindings",
    "basic.nack",
    "consumer_cancel_notify",
    "connection.blocked",
    "consumer_priorities",
    "authentication_failure_close",
    "per_consumer_qos",
    "direct_reply_to",
    "penstock.box",
)

M = TypeVar("M")
T_co = TypeVar("T_co", covariant=True)

# The steps of a handshake. It yields None where it needs bytes of the client, which are sent to it,
# b"" at the end; or what must be awaited, whose result is sent to it, or its error thrown.
Steps = Generator[Awaitable[Any] | None, Any, T_co]


class Silent(Exception):
    """The client is dropped without an answer; the text is for the log."""


class LoginRefused(AMQPConnectionError):
    """403, whose text does not say what was wrong. why: what was wrong, for the log."""

    def __init__(self, text: str, why: str) -> None:
        super().__init__(ACCESS_REFUSED, text, 0, 0)
        self.why = why


class WrongHeader(Silent):
    """The client speaks another protocol, and was sent our header."""


class Gone(Exception):
    """The client has left."""


class Origin(NamedTuple):
    """Where a connection comes from, and where it goes to. tls: facts of TLS, None without it
    (server.certificates has them)."""

    peer_host: str
    peer_port: int
    host: str
    port: int
    tls: dict[str, Any] | None = None

    @classmethod
    def of(cls, sock: socket.socket) -> "Origin":
        """Return that of a connected socket. Raises OSError if the client has gone."""
        peer_host, peer_port = sock.getpeername()[:2]
        host, port = sock.getsockname()[:2]
        return cls(peer_host, peer_port, host, port)

    def behind(self, found: Proxied) -> "Origin":
        """Return that of the client of a proxy."""
        return Origin(*found[1:], self.tls) if found.peer_host else self

    @property
    def name(self) -> str:
        """The connection as people see it: "host:port -> host:port"."""
        return f"{address(self.peer_host, self.peer_port)} -> {address(self.host, self.port)}"


@dataclass(slots=True)
class Tuned:
    """The limits that were negotiated."""

    channel_max: int
    frame_max: int
    heartbeat_s: int


@cache
def start_frame(mechanisms: bytes) -> bytes:
    """Return the frame of connection.start."""
    properties: dict[str, object] = {
        "capabilities": dict.fromkeys(CAPABILITIES, True),
        "product": PRODUCT,
        "version": PRODUCT_VERSION,
        "platform": f"Penstock {VERSION}/Python",
        "information": "RabbitMQ's protocol, spoken by Penstock",
        "copyright": "Penstock's authors",
        "penstock_version": VERSION,
    }
    start = ConnectionStart(
        version_major=0, version_minor=9, server_properties=properties, mechanisms=mechanisms,
        locales=LOCALES,
    )  # fmt: skip
    return method_frame(0, start.encode())


def address(host: str, port: int) -> str:
    """Return the address as people write it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Login:
    """The handshake of one client. `leftover` and `account` are complete when `steps` has ended.
    on_held(change): called with the change of held_bytes. origin: None for that of the socket.
    networks: of proxies, whose connections begin with a header (proxy_protocol). records: of a
    client of TLS whose socket this is."""

    account: Account

    def __init__(
        self, sock: socket.socket, backends: Backends, clock: Clock,
        on_held: Callable[[int], None], origin: Origin | None = None,
        networks: Sequence[Network] = (), records: TlsRecords | None = None,
    ) -> None:  # fmt: skip
        self.sock = sock
        self.records = records
        self.origin = Origin.of(sock) if origin is None else origin
        # Of a client of TLS the header came before the handshake.
        self._is_proxied = origin is None and is_of(networks, self.origin.peer_host)
        self._backends = backends
        self._clock = clock
        self._on_held = on_held
        self.held_bytes = 0
        self._connected_at_ms = clock.wall_ms()
        self._connection = Connection(SERVER, frame_max=FRAME_MAX, channel_max=CHANNEL_MAX)
        self._unread = b""
        self._received: deque[object] = deque()
        self._properties = b""

    @property
    def peer_host(self) -> str:
        """The client's address."""
        return self.origin.peer_host

    @property
    def name(self) -> str:
        """The connection as people see it."""
        return self.origin.name

    @property
    def leftover(self) -> bytes:
        """The bytes that were read after connection.open."""
        return self._unread

    @property
    def read_bytes(self) -> int:
        """Return how many bytes it takes at once."""
        return FRAME_BYTES_MAX - len(self._unread)

    def steps(self) -> Steps[ConnectionFacts]:
        """Do the handshake. Raises Silent, Gone, AMQPError (for `refuse`), OSError."""
        if self.records is not None:  # what came with the end of its TLS handshake
            self._unread = self._opened(self.records, b"")
            self._count()
        if self._is_proxied:
            yield from self._proxy_header()
        yield from self._header()
        origin = self.origin
        has_user = origin.tls is not None and origin.tls.get("user")
        self._write(start_frame(MECHANISMS + b" EXTERNAL" if has_user else MECHANISMS))
        start_ok = yield from self._expect(ConnectionStartOk)
        self._properties = start_ok.client_properties
        mechanism, response = start_ok.mechanism, start_ok.response
        del start_ok
        self._count()
        self.account = yield from self._authenticate(mechanism, response)
        self._send(
            ConnectionTune(channel_max=CHANNEL_MAX, frame_max=FRAME_MAX, heartbeat=HEARTBEAT_S)
        )
        tuned = agree((yield from self._expect(ConnectionTuneOk)))
        wanted = yield from self._expect(ConnectionOpen)
        return ConnectionFacts(
            name=origin.name, peer_host=origin.peer_host, peer_port=origin.peer_port,
            host=origin.host, port=origin.port, tls=origin.tls, user=self.account.user,
            vhost=wanted.virtual_host,
            client_properties=self._properties, frame_max=tuned.frame_max,
            channel_max=tuned.channel_max, heartbeat_s=tuned.heartbeat_s,
            connected_at_ms=self._connected_at_ms, auth_mechanism=mechanism,
        )  # fmt: skip

    def forget(self) -> None:
        """Discard what the client has sent."""
        self._unread = b""
        self._received.clear()
        self._properties = b""
        self._count()

    def refuse(self, error: AMQPError) -> None:
        """Send connection.close to the client."""
        close = ConnectionClose(
            reply_code=error.code, reply_text=error.text[:255], class_id=error.class_id,
            method_id=error.method_id,
        )  # fmt: skip
        self._send(close)

    async def receive(self, most: int) -> bytes:
        """Return what the client sends next, about so much of it at most; b"" at its end."""
        records = self.records
        loop = asyncio.get_running_loop()
        while True:
            data = await loop.sock_recv(self.sock, most)
            if records is None or not data:
                return data
            plain = self._opened(records, data)
            if plain or records.is_ended:
                return plain

    def _opened(self, records: TlsRecords, data: bytes) -> bytes:
        try:
            plain = records.opened(data)
        except WrongRecord as error:
            self.records = None
            if error.alert:
                self._write_raw(records.goodbye(error.alert))
            raise ConnectionAbortedError(f"TLS: {error}") from None
        answer = records.answer()
        if answer:
            self._write_raw(answer)
        return plain

    def shut(self) -> None:
        """Shut our half after the last bytes."""
        self._say_goodbye()
        self.sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close the socket."""
        self._say_goodbye()
        self.sock.close()

    def _say_goodbye(self) -> None:
        """Send close_notify to a client of TLS, if its socket takes it at once."""
        records, self.records = self.records, None
        if records is not None:
            try:
                self.sock.send(records.goodbye())
            except OSError:
                pass

    def _proxy_header(self) -> Steps[None]:
        """Read the header of a trusted proxy."""
        try:
            while (found := read_header(self._unread)) is None:
                self._take((yield None))
        except WrongProxyHeader as error:
            raise Silent(str(error)) from None
        self._unread = self._unread[found.size :]
        self.origin = self.origin.behind(found)

    def _header(self) -> Steps[None]:
        """Read the protocol header. A wrong header is refused at the first byte that differs."""
        while len(self._unread) < len(PROTOCOL_HEADER):
            if not PROTOCOL_HEADER.startswith(self._unread):
                break
            self._take((yield None))
        header = self._unread[: len(PROTOCOL_HEADER)]
        if header != PROTOCOL_HEADER:
            self._write(PROTOCOL_HEADER)
            raise WrongHeader(f"not AMQP 0-9-1: it began with {header!r}")
        self._unread = self._unread[len(PROTOCOL_HEADER) :]
        self._receive(header)
        self._received.clear()

    def _expect(self, kind: Callable[..., M]) -> Steps[M]:
        """Return the next method, which must be this one."""
        while True:
            while not self._received:
                self._receive((yield from self._frame()))
            event = self._received.popleft()
            if not isinstance(event, MethodReceived):
                continue  # a heartbeat
            method = event.method
            if isinstance(method, ConnectionClose):
                self._send(ConnectionCloseOk())
                raise Gone("the client closed while it logged in")
            if not isinstance(method, kind):  # type: ignore[arg-type]  # a method's class
                raise Silent(f"expected {kind.NAME}, got {method.NAME}")  # type: ignore[attr-defined]
            return method  # type: ignore[return-value]

    def _receive(self, data: bytes) -> None:
        try:
            self._received += self._connection.receive(data)
        except AMQPConnectionError as error:
            raise Silent(str(error)) from error

    def _frame(self) -> Steps[bytes]:
        """Return the next whole frame."""
        while len(self._unread) < FRAME_HEAD_BYTES:
            self._take((yield None))
        size = int.from_bytes(self._unread[3:7], "big")
        end = FRAME_HEAD_BYTES + size + 1
        if end > FRAME_BYTES_MAX:
            raise Silent(
                f"FRAME_ERROR - a frame of {end} bytes in the handshake, expected at most "
                f"{FRAME_BYTES_MAX}"
            )
        while len(self._unread) < end:
            self._take((yield None))
        frame, self._unread = self._unread[:end], self._unread[end:]
        return frame

    def _take(self, data: bytes) -> None:
        if not data:
            raise Gone("the client left while it logged in")
        records = self.records
        if records is not None:
            data = self._opened(records, data)
            if not data and records.is_ended:
                raise Gone("the client left while it logged in")
        self._unread += data
        self._count()

    def _count(self) -> None:
        held = len(self._unread) + len(self._properties)
        change, self.held_bytes = held - self.held_bytes, held
        if change:
            self._on_held(change)

    def _send(self, method: Method) -> None:
        self._write(self._connection.send(0, method))

    def _write(self, data: bytes) -> None:
        """Send bytes. All that a handshake sends is less than any socket's buffer."""
        self._write_raw(data if self.records is None else b"".join(self.records.sealed([data])))

    def _write_raw(self, data: bytes) -> None:
        if self.sock.send(data) != len(data):
            raise OSError("the client does not take what a handshake sends")

    def _authenticate(self, mechanism: str, response: bytes) -> Steps[Account]:
        """Return who it is. Raises LoginRefused, or Silent if the client does not understand
        403."""
        if mechanism == EXTERNAL:
            user = (self.origin.tls or {}).get("user", "")
            if not user:
                raise Silent(
                    "EXTERNAL was not offered: there is no verified certificate with a user's name "
                    "(tls.verify_peer, tls.login_from)"
                )
            try:
                return self._backends.certified(user, self.peer_host)
            except Refused as error:
                raise self._refusal(mechanism, user, error) from error
        if mechanism == "PLAIN":
            read = plain
        elif mechanism == "AMQPLAIN":
            read = amqplain
        else:
            raise Silent(f"unknown authentication mechanism {mechanism!r}")
        try:
            user, password = read(response)
        except AMQPError as error:
            raise Silent(str(error)) from error
        secret = password.encode("utf-8", "surrogateescape")
        account = self._backends.remembered(user, secret, self.peer_host)
        if account is not None:
            return account
        try:
            return (yield self._backends.login(user, secret, self.peer_host))  # type: ignore[no-any-return]
        except Refused as error:
            raise self._refusal(mechanism, user, error) from error

    def _refusal(self, mechanism: str, user: str, error: Refused) -> Exception:
        """Return what to raise for a login that is refused."""
        why = f"{mechanism} login refused: user '{user}' - {error}"
        if "authentication_failure_close" not in capabilities(self._properties):
            return Silent(why)
        text = (
            f"Login was refused using authentication mechanism {mechanism}. "
            "For details see the broker logfile."
        )
        return LoginRefused(text, why)


def agree(tune_ok: ConnectionTuneOk) -> Tuned:
    """Return the client's limits; 0 is the offered one. Raises Silent if one exceeds the offer."""
    channel_max, frame_max = tune_ok.channel_max, tune_ok.frame_max
    if channel_max > CHANNEL_MAX:
        raise Silent(
            f"negotiated channel_max = {channel_max} is higher than the maximum allowed value "
            f"({CHANNEL_MAX})"
        )
    if frame_max > FRAME_MAX:
        raise Silent(
            f"negotiated frame_max = {frame_max} is higher than the maximum allowed value "
            f"({FRAME_MAX})"
        )
    if 0 < frame_max < FRAME_MAX_MIN:
        raise Silent(
            f"negotiated frame_max = {frame_max} is lower than the minimum allowed value "
            f"({FRAME_MAX_MIN})"
        )
    return Tuned(channel_max or CHANNEL_MAX, frame_max or FRAME_MAX, tune_ok.heartbeat)


# ---- SASL ----------------------------------------------------------------------------------------


def plain(response: bytes) -> tuple[str, str]:
    """Return (user, password) of PLAIN: authorization identity, NUL, user, NUL, password. The first
    is ignored, as RabbitMQ does. Raises AMQPConnectionError with its codes and texts."""
    parts = response.split(b"\0")
    if len(parts) != 3:
        text = (
            "PLAIN authentication: the response is not of the form <id> NUL <user> NUL <password>"
        )
        raise AMQPConnectionError(
            ACCESS_REFUSED, text, ConnectionStartOk.CLASS_ID, ConnectionStartOk.METHOD_ID
        )
    return _text(parts[1]), _text(parts[2])


def amqplain(response: bytes) -> tuple[str, str]:
    """Return (user, password) of AMQPLAIN: a field table without its length. Raises
    AMQPConnectionError."""
    table = len(response).to_bytes(4, "big") + response
    check_table(table, 0, len(table))
    values = []
    for name in (b"LOGIN", b"PASSWORD"):
        raw = raw_entry(table, name)
        if raw is None or raw[:1] not in (b"S", b"x"):
            text = "AMQPLAIN authentication: LOGIN or PASSWORD is missing, or is not a string"
            raise AMQPConnectionError(
                SYNTAX_ERROR, text, ConnectionStartOk.CLASS_ID, ConnectionStartOk.METHOD_ID
            )
        values.append(_text(raw[5:]))
    return values[0], values[1]


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")
