"""Connections of the HTTP process: how many are allowed, how long each may wait, which are closed.

uvicorn and h11 parse and answer. They have one time limit, between two requests, and one maximum,
beyond which every client gets 503. Anybody can connect, so this module adds:

    head       HEAD_S from the first byte of a request, or from accept, to the end of its head
    idle       KEEP_ALIVE_S between two requests
    body       nothing of it is read before the endpoint asks for it, after the password was
               checked; the endpoint limits the time (requests, staging_endpoints)
    answer     a client that takes nothing for STALL_S is cut off; the rest of a finished answer is
               kept for CUT_S
    number     `most` connections, `most_of_address` of one address; for one more an idle one is
               closed: the oldest of that address, or of the address that has most connections
    reserve    if none is idle, RESERVE more are accepted, which only get /health answered; for one
               more the oldest of them is closed

A connection is idle while none of its requests is under way, also while a head is coming. It is
read in pieces of READ_BYTES until a body is asked for, so that the memory of all is bounded.

A connection of a trusted proxy begins with a header (proxy_protocol), which counts as a part of the
head. It is a connection of the proxy up to then, and of the client from then on.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Sequence
from email.utils import formatdate
from typing import Any, Final

import h11
import uvicorn
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from penstock.clock import Clock
from penstock.counts import UserSums
from penstock.http.requests import HttpError, error_answer
from penstock.server.authenticator import network_of
from penstock.server.log_lines import client_line
from penstock.server.proxy_protocol import Network, WrongProxyHeader, is_of, read_header

HEALTH: Final = "/health"
HEAD_S: Final = 10.0
KEEP_ALIVE_S: Final = 60.0
STALL_S: Final = 90.0  # longer than that of a long answer, which says more in the log
CUT_S: Final = 5.0
READ_BYTES: Final = 16 << 10
BODY_READ_BYTES: Final = 256 << 10
RESERVE: Final = 64

logger = logging.getLogger(__name__)


class Connections:
    """All connections. clock: gives answers their date. proxies: whose connections begin with a
    header of the PROXY protocol. evicted: how many were closed for new ones; refused: how many had
    no room."""

    def __init__(
        self, clock: Clock, most: int, most_of_address: int, proxies: Sequence[Network] = ()
    ) -> None:  # fmt: skip
        self.proxies: Final = proxies
        self._clock = clock
        self.evicted = 0
        self.refused = 0
        self._most = most
        self._most_of_address = most_of_address
        self._open = UserSums()  # by address
        # address -> its idle connections, the longest idle first
        self._idle: dict[str, OrderedDict[GuardedProtocol, None]] = {}
        self._reserved: OrderedDict[GuardedProtocol, None] = OrderedDict()
        self._dated_s = 0  # the second of the date that answers have now

    def __len__(self) -> int:
        return self._open.total + len(self._reserved)

    def add(self, one: "GuardedProtocol") -> None:
        """Add a new connection, which is idle. Closes another one for it, or uses the reserve."""
        address = one.address
        if self._open.of(address) >= self._most_of_address:
            has_room = self._evict(address)
        elif self._open.total >= self._most:
            fullest = max(self._idle, key=self._open.of, default="")
            has_room = self._evict(fullest)
        else:
            has_room = True
        if not has_room:
            one.is_reserved = True
            self._reserved[one] = None
            if len(self._reserved) > RESERVE:
                oldest, _ = self._reserved.popitem(last=False)
                self.refused += 1
                oldest.close()
            return
        self._open.add(address)
        self.idle(one)

    def remove(self, one: "GuardedProtocol") -> None:
        """Remove a closed connection. Does nothing the second time."""
        self._reserved.pop(one, None)
        if one.is_reserved or one.is_gone:
            return
        one.is_gone = True
        self.busy(one)
        self._open.add(one.address, -1)

    def move(self, one: "GuardedProtocol", address: str) -> None:
        """Count a new connection for another address, as a new one."""
        self.remove(one)
        one.is_gone = one.is_reserved = False
        one.address = address
        self.add(one)

    def date(self, state: ServerState) -> None:
        """Give the answers from now on the date of now."""
        now_s = self._clock.wall_ms() // 1000
        if now_s != self._dated_s:
            self._dated_s = now_s
            state.default_headers = [(b"date", formatdate(now_s, usegmt=True).encode())]

    def idle(self, one: "GuardedProtocol") -> None:
        """Note that the connection waits for a request."""
        if not one.is_reserved and not one.is_gone:
            self._idle.setdefault(one.address, OrderedDict())[one] = None

    def busy(self, one: "GuardedProtocol") -> None:
        """Note that a request of the connection is under way."""
        idle = self._idle.get(one.address)
        if idle is not None:
            idle.pop(one, None)
            if not idle:
                del self._idle[one.address]

    def _evict(self, address: str) -> bool:
        """Close the longest idle connection of an address. Returns False if it has none."""
        idle = self._idle.get(address)
        if not idle:
            return False
        oldest = next(iter(idle))
        self.remove(oldest)
        self.evicted += 1
        oldest.close()
        return True


class GuardedProtocol(H11Protocol):
    """A connection that keeps the limits above. address: the network that it is counted for. peer:
    the client's address, if its TLS is done by another process."""

    def __init__(
        self, connections: Connections, config: uvicorn.Config, server_state: ServerState,
        app_state: dict[str, Any], _loop: asyncio.AbstractEventLoop | None = None,
        peer: tuple[str, int] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(config, server_state, app_state, _loop)
        self.address = ""
        self.is_reserved = False
        self.is_gone = False
        self._connections = connections
        self._peer = peer
        self._header: bytes | None = None  # that of a proxy so far, if there is one to come
        self._inner_app = self.app
        self.app = self._answer
        self._limit: asyncio.TimerHandle | None = None
        self._has_begun = False  # bytes of the next request were received
        self._asking = 0  # how many wait for the body, or for the client to leave

    # ---- calls of the transport -----------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start: the connection was accepted."""
        super().connection_made(transport)
        if self._peer is not None:
            self.client, self.scheme = self._peer, "https"
        self._read_at_most(READ_BYTES)
        host = self.client[0] if self.client is not None else ""
        self.address = network_of(host)
        if self._peer is None and is_of(self._connections.proxies, host):
            self._header = b""
        self._wait(HEAD_S)
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """End: the connection was closed."""
        self._stop_waiting()
        self._connections.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take received bytes."""
        if self._header is not None:
            data = self._proxy_header(self._header + data)
            if not data:
                return
        is_first = self.is_idle and not self._has_begun
        self._has_begun = self._has_begun or is_first
        self._connections.date(self.server_state)
        super().data_received(data)
        if is_first and self.is_idle and not self.transport.is_closing():
            self._wait(HEAD_S)  # for the rest of the head
        self._look()

    def on_response_complete(self) -> None:
        """Go on after an answer. A request that was received meanwhile may be under way now."""
        super().on_response_complete()
        if self.is_idle and not self.transport.is_closing():
            self._has_begun = False
            self._read_at_most(READ_BYTES)
            self._wait(KEEP_ALIVE_S)
            self._connections.idle(self)
        else:
            self._look()

    def _proxy_header(self, data: bytes) -> bytes:
        """Take the header of a proxy, and return what came after it."""
        self._header = data
        try:
            found = read_header(data)
        except WrongProxyHeader as error:
            client_line(logger, self.address, "HTTP connection of %s dropped: %s",
                        self.address, error)  # fmt: skip
            self.close()
            return b""
        if found is None:
            return b""
        self._header = None
        if found.peer_host:
            self.client = (found.peer_host, found.peer_port)
            self._connections.move(self, network_of(found.peer_host))
        return data[found.size :]

    # ---- waiting -------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Return whether no request is under way."""
        cycle: RequestResponseCycle | None = self.cycle  # None before the first
        return cycle is None or cycle.response_complete

    @property
    def is_asked(self) -> bool:
        """Return whether the application waits for the body."""
        return self._asking > 0

    def close(self) -> None:
        """Close at once: no answer is pending."""
        self._stop_waiting()
        self.transport.abort()

    def _look(self) -> None:
        if self.is_idle:
            return
        self._stop_waiting()
        self._connections.busy(self)
        is_awaited = self.is_asked and not self.cycle.message_event.is_set()
        if self.cycle.more_body and not is_awaited:
            self.flow.pause_reading()  # asking for more of the body resumes it

    def _wait(self, seconds: float) -> None:
        self._stop_waiting()
        self._limit = self.loop.call_later(seconds, self._too_late)

    def _stop_waiting(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None

    def _too_late(self) -> None:
        """Close after a time limit, with 408 if a request has begun."""
        self._limit = None
        if self.transport.is_closing():
            return
        if self._has_begun and self.conn.our_state is h11.IDLE:
            self._say(HttpError(408, f"no whole request within {HEAD_S:g} s"), b"Request Timeout")
        self._finish()

    def send_400_response(self, msg: str) -> None:
        """Close after bytes that are no HTTP, with 400 if no answer has begun. The application may
        be at work on a request whose body has them: what it still sends is dropped."""
        self._stop_waiting()
        if not self.is_idle:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._say(HttpError(400, msg), b"Bad Request")
        self._finish()

    def _say(self, error: HttpError, reason: bytes) -> None:
        """Send an answer that no application makes, and is the last one."""
        body = error_answer(error).body
        headers = [
            ("Content-Type", "application/json"), ("Content-Length", str(len(body))),
            ("Connection", "close"),
        ]  # fmt: skip
        answer = h11.Response(status_code=error.status, headers=headers, reason=reason)
        for event in (answer, h11.Data(data=bytes(body)), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event))

    def _finish(self) -> None:
        """Close. What the client has not taken after CUT_S is discarded."""
        self.transport.close()
        self.loop.call_later(CUT_S, self.transport.abort)

    def _read_at_most(self, size: int) -> None:
        """Set how much is read at once, if the transport is one of asyncio's."""
        if hasattr(self.transport, "max_size"):
            self.transport.max_size = size

    # ---- a request -----------------------------------------------------------------------------

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the application with these limits."""

        async def asked() -> Message:
            self._read_at_most(BODY_READ_BYTES)
            self._asking += 1
            try:
                return await receive()
            finally:
                self._asking -= 1

        async def taken(message: Message) -> None:
            if not self.flow.write_paused:
                await send(message)  # which waits for nothing
                return
            try:
                async with asyncio.timeout(STALL_S):
                    await send(message)
            except TimeoutError:
                self.transport.abort()

        if self.is_reserved and scope["path"] != HEALTH:
            error = HttpError(503, "too many connections")
            error.headers["Connection"] = "close"
            await error_answer(error)(scope, receive, send)
        else:
            await self._inner_app(scope, asked, taken)
        if self.transport.is_closing():
            self.loop.call_later(CUT_S, self.transport.abort)
