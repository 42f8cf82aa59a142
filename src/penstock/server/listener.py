"""Listener: accepts clients, and limits those that have not logged in yet.

Anybody can connect, so the cost of a half-open client must be small and end by itself: a task, at
most 16 KiB of what it sent, `handshake_timeout_s` for the whole handshake (login). All of them
together may be `half_open_max` clients and `half_open_bytes_max` bytes. For one more the oldest
half-open client is dropped, of the address that has the most: one address does not push out others.
With few descriptors the maximum is smaller, and so is the number of clients that wait for their
vhost (server.descriptors); those beyond it are refused with 506. If the process has no descriptors
left all the same, accepting pauses; clients that are connected go on.

A refused client gets the reason, our half of the connection is shut, and what it still sends is
read and discarded for a moment: closing at once would reset the connection, and the answer might be
lost. Nothing else is kept for it, and there are at most `half_open_max` of these, too.

`admit` takes over a client that is logged in, with its socket. A client of TLS is taken with `take`
after its TLS handshake; those handshakes are limited by a Listener, too (tls_process).
"""

import asyncio
import errno
import logging
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Final, Generic, Protocol, TypeVar

from penstock.clock import Clock
from penstock.codec.frames import method_frame
from penstock.codec.spec import ConnectionCloseOk
from penstock.config import Config
from penstock.errors import RESOURCE_ERROR, AMQPConnectionError, AMQPError
from penstock.server.authenticator import network_of
from penstock.server.descriptors import supervisor_sockets
from penstock.server.log_lines import client_line
from penstock.server.login import Gone, LoginRefused, Origin, Silent, WrongHeader
from penstock.server.tls_records import TlsRecords

BACKLOG: Final = 1024
ACCEPTS: Final = 64  # in one go; then other events are handled
PAUSE_S: Final = 0.1  # when the kernel has no descriptor left
SHORT_S: Final = 5.0  # for which that is reported
OPEN: Final = (10, 40)  # connection.open
LINGER_S: Final = 3.0
DRAIN_BYTES: Final = 16 << 10  # read at a time of what a refused client still sends
CLOSE_OK: Final = method_frame(0, ConnectionCloseOk().encode())
SHORT: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

logger = logging.getLogger(__name__)

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Handshake(Protocol[T_co]):
    """What a client has to do before it is admitted, as Login."""

    sock: socket.socket

    @property
    def peer_host(self) -> str:
        """The client's address."""

    @property
    def name(self) -> str:
        """The connection as people see it."""

    async def run(self) -> T_co:
        """Do the handshake. Raises Silent, Gone, AMQPError (for `refuse`), OSError."""

    def forget(self) -> None:
        """Discard what the client has sent."""

    async def refuse(self, error: AMQPError) -> None:
        """Send the client an error."""

    async def receive(self, most: int) -> bytes:
        """Return what the client sends next, about so much of it at most; b"" at its end."""

    async def shut(self) -> None:
        """Shut our half after the last bytes."""

    def close(self) -> None:
        """Close the socket."""


def bind(host: str, port: int) -> list[socket.socket]:
    """Return listening sockets at all addresses of the host, on one port; 0 picks a free one.
    Raises OSError with "host:port" as its file name."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise OSError(errno.EADDRNOTAVAIL, error.strerror, f"{host}:{port}") from error
    socks: list[socket.socket] = []
    try:
        for family, kind, _, _, place in dict.fromkeys(found):
            sock = socket.socket(family, kind)
            socks.append(sock)
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            # For port 0 the first socket picks a free port, and the others use it.
            sock.bind((place[0], port, *place[2:]))
            port = sock.getsockname()[1]
            sock.listen(BACKLOG)
    except OSError as error:
        for sock in socks:
            sock.close()
        raise OSError(error.errno, error.strerror, f"{host}:{port}") from error
    return socks


class Listener(Generic[T]):
    """Accepts clients, on the running loop. make(sock, on_held[, origin]): returns the handshake of
    a client; on_held: as of Login; origin: of a client that `take` was given. admit(handshake,
    result): takes over a client that is logged in; the client gets its AMQPError. half_open:
    clients that have not logged in; dropped: those that were too many."""

    def __init__(
        self, socks: list[socket.socket], settings: Config, clock: Clock,
        make: Callable[..., Handshake[T]], admit: Callable[..., Awaitable[None]],
    ) -> None:  # fmt: skip
        self.socks = socks
        self.accepted = 0
        self.dropped = 0
        self.failed: Counter[str] = Counter()  # handshakes, by the reason: see the table of metrics
        self.held_bytes = 0  # for clients that are half open
        sockets = supervisor_sockets(settings.nofile)
        self.half_open_max: Final = min(settings.half_open_max, sockets // 2)
        self._refused_max: Final = min(settings.half_open_max, sockets // 4)
        self._admitted_max: Final = sockets // 4
        self._short_until_s = 0.0
        self._settings = settings
        self._make = make
        self._clock = clock
        self._admit = admit
        self._loop = asyncio.get_running_loop()
        # address -> its half-open clients, the oldest first
        self._half_open: dict[str, dict[asyncio.Task[None], Handshake[T]]] = {}
        self.half_open = 0
        self._refused: dict[asyncio.Task[None], None] = {}  # getting their answer; the oldest first
        self._admitted: set[asyncio.Task[None]] = set()  # on their way to a vhost

    def start(self) -> None:
        """Start to accept."""
        for sock in self.socks:
            self._loop.add_reader(sock, self._acceptable, sock)

    async def stop(self) -> None:
        """Stop accepting. Drops clients that have not logged in."""
        for sock in self.socks:
            self._loop.remove_reader(sock)
            sock.close()
        half_open = [task for tasks in self._half_open.values() for task in tasks]
        tasks = [*half_open, *self._refused, *self._admitted]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _acceptable(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS):
            try:
                sock, _ = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno not in SHORT:
                    continue  # that client is gone already
                if not self.is_short:
                    logger.warning("cannot accept: %s", error.strerror)
                self._short_until_s = self._clock.monotonic() + SHORT_S
                self._loop.remove_reader(listening)
                self._loop.call_later(PAUSE_S, self._accept_again, listening)
                return
            self.accepted += 1
            self.take(sock)

    @property
    def is_short(self) -> bool:
        """Whether a client could not be accepted in the last SHORT_S, for want of descriptors."""
        return self._clock.monotonic() < self._short_until_s

    def _accept_again(self, listening: socket.socket) -> None:
        if listening.fileno() >= 0:
            self._loop.add_reader(listening, self._acceptable, listening)

    def take(
        self, sock: socket.socket, origin: Origin | None = None, records: TlsRecords | None = None
    ) -> None:
        """Begin the handshake of a client. origin: of one that another process has accepted, for
        TLS. records: of its TLS, if that process does not decrypt them."""
        sock.setblocking(False)
        try:
            if origin is None:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                login = self._make(sock, self._on_held)
            else:
                login = self._make(sock, self._on_held, origin, records)
        except OSError:
            sock.close()  # it has gone already
            return
        if self.half_open >= self.half_open_max:
            self._drop_one()
        address = network_of(login.peer_host)
        task = self._loop.create_task(self._serve(login, address))
        self._half_open.setdefault(address, {})[task] = login
        self.half_open += 1
        task.add_done_callback(lambda task: self._ended(task, login, address))

    def _on_held(self, change_bytes: int) -> None:
        """Count bytes of half-open clients."""
        self.held_bytes += change_bytes
        if change_bytes > 0 and self.held_bytes > self._settings.half_open_bytes_max:
            # Not now: the client that has just grown runs, and may be the one that is dropped.
            self._loop.call_soon(self._trim)

    def _trim(self) -> None:
        while self.held_bytes > self._settings.half_open_bytes_max and self._half_open:
            self._drop_one()

    def _drop_one(self) -> None:
        """Drop the oldest half-open client of the address that has the most of them. Its task is
        not the running one, so it ends where it waits."""
        address = max(self._half_open, key=lambda one: len(self._half_open[one]))
        task, login = next(iter(self._half_open[address].items()))
        self._no_more_half_open(task, address)
        login.forget()
        task.cancel()
        self.dropped += 1

    def _no_more_half_open(self, task: asyncio.Task[None], address: str) -> None:
        tasks = self._half_open.get(address)
        if tasks is not None and task in tasks:
            del tasks[task]
            self.half_open -= 1
            if not tasks:
                del self._half_open[address]

    def _ended(self, task: asyncio.Task[None], login: Handshake[T], address: str) -> None:
        self._no_more_half_open(task, address)
        self._refused.pop(task, None)
        self._admitted.discard(task)
        login.forget()
        if not task.cancelled() and task.exception() is not None:
            logger.error("a login failed", exc_info=task.exception())

    async def _serve(self, login: Handshake[T], address: str) -> None:
        is_ours = True
        opened = None
        task = asyncio.current_task()
        assert task is not None
        try:
            opened = await self._login(login)
            if opened is not None:
                self._no_more_half_open(task, address)
                if len(self._admitted) >= self._admitted_max:
                    text = f"{len(self._admitted)} clients wait for their vhosts already"
                    raise AMQPConnectionError(RESOURCE_ERROR, text, *OPEN)
                self._admitted.add(task)
                await self._admit(login, opened)
                is_ours = False
        except AMQPError as error:
            why = error.why if isinstance(error, LoginRefused) else error
            self.failed[_reason(error, is_logged_in=opened is not None)] += 1
            client_line(logger, login.peer_host, "connection %s refused: %s", login.name, why)
            self._refuses(login, task, address)
            await self._within(LINGER_S, self._answer(login, error))
        except Silent as error:
            client_line(logger, login.peer_host, "connection %s dropped: %s", login.name, error)
            self.failed["protocol"] += 1
            self._refuses(login, task, address)
            if isinstance(error, WrongHeader):
                await self._within(LINGER_S, self._farewell(login))
            else:
                await self._within(self._settings.silent_close_s, self._drain(login))
        except Gone as error:
            logger.debug("connection %s: %s", login.name, error)
        except OSError as error:
            logger.debug("connection %s lost: %s", login.name, error)
        finally:
            if is_ours:
                login.close()

    def _refuses(self, login: Handshake[T], task: asyncio.Task[None], address: str) -> None:
        """Note that a client is being refused. Only its socket is kept."""
        self._no_more_half_open(task, address)
        self._admitted.discard(task)
        login.forget()
        self._refused[task] = None
        if len(self._refused) > self._refused_max:
            oldest = next(iter(self._refused))
            del self._refused[oldest]
            oldest.cancel()

    async def _login(self, login: Handshake[T]) -> T | None:
        """Do the handshake. Returns None if it took too long."""
        try:
            async with asyncio.timeout(self._settings.handshake_timeout_s):
                return await login.run()
        except TimeoutError:
            self.failed["timeout"] += 1
            client_line(logger, login.peer_host, "connection %s dropped: handshake timeout",
                        login.name)  # fmt: skip
            return None

    async def _within(self, seconds: float, last: Coroutine[None, None, None]) -> None:
        """Await the last steps for a refused client, `seconds` at most."""
        try:
            async with asyncio.timeout(seconds):
                await last
        except OSError:  # TimeoutError is one
            pass

    async def _answer(self, login: Handshake[T], error: AMQPError) -> None:
        """Send connection.close, and wait for close-ok."""
        await login.refuse(error)
        # Shut our half only after the client's close-ok: otherwise its answer would get a reset,
        # and it might never read the reason.
        came = b""
        while CLOSE_OK not in came:
            data = await login.receive(DRAIN_BYTES)
            if not data:
                return
            came = came[-len(CLOSE_OK) :] + data
        await self._farewell(login)

    async def _farewell(self, login: Handshake[T]) -> None:
        """Shut our half after the last bytes."""
        await login.shut()
        await self._drain(login)

    async def _drain(self, login: Handshake[T]) -> None:
        """Read and discard until the client leaves."""
        while await login.receive(DRAIN_BYTES):
            pass


def _reason(error: AMQPError, *, is_logged_in: bool) -> str:
    """Return why a client is refused, in a word."""
    if isinstance(error, LoginRefused):
        return "password"
    if not is_logged_in:
        return "protocol"
    is_limit = error.code == RESOURCE_ERROR or "limit" in error.text
    return "limit" if is_limit else "vhost"
