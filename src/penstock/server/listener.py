"""Listener: accepts clients, and limits those that have not logged in yet.

Anybody can connect, so the cost of a half-open client must be small and end by itself: a generator,
at most 16 KiB of what it sent, `handshake_timeout_s` for the whole handshake (login). It has a task
only while it waits for more than bytes: for a hash, or for its vhost to start. All of them
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
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar

from penstock.clock import Clock
from penstock.codec.frames import method_frame
from penstock.codec.spec import ConnectionCloseOk
from penstock.config import Config
from penstock.errors import RESOURCE_ERROR, AMQPConnectionError, AMQPError
from penstock.server.authenticator import network_of
from penstock.server.descriptors import supervisor_sockets
from penstock.server.log_lines import client_line
from penstock.server.login import Gone, LoginRefused, Origin, Silent, Steps, WrongHeader
from penstock.server.poller import READ, PolledSource, Poller
from penstock.server.polling_loop import PollingLoop
from penstock.server.tls_records import TlsRecords

BACKLOG: Final = 1024
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

    @property
    def read_bytes(self) -> int:
        """How many bytes of the client it takes at once."""

    def steps(self) -> Steps[T_co]:
        """Do the handshake. Raises Silent, Gone, AMQPError (for `refuse`), OSError."""

    def forget(self) -> None:
        """Discard what the client has sent."""

    def refuse(self, error: AMQPError) -> None:
        """Send the client an error. Raises OSError."""

    async def receive(self, most: int) -> bytes:
        """Return what the client sends next, about so much of it at most; b"" at its end."""

    def shut(self) -> None:
        """Shut our half after the last bytes."""

    def close(self) -> None:
        """Close the socket."""


class HalfOpen(PolledSource):
    """A client that has not logged in. address: its network. until_s: when it is dropped."""

    def __init__(
        self, listener: "Listener[Any]", login: Handshake[Any], address: str, until_s: float
    ) -> None:
        self.login: Handshake[Any] = login
        self.steps: Steps[Any] = login.steps()
        self.address: str = address
        self.until_s: float = until_s
        self.descriptor: int = login.sock.fileno()
        self.task: asyncio.Task[None] | None = None  # what it waits for beside its bytes
        self._listener: Listener[Any] = listener

    def ready(self, mask: int) -> None:
        self._listener.readable(self)


class Listening(PolledSource):
    """A listening socket."""

    def __init__(self, listener: "Listener[Any]", poller: Poller, sock: socket.socket) -> None:
        self.sock: socket.socket = sock
        self.family: int = sock.family
        self._listener: Listener[Any] = listener
        self._poller: Poller = poller

    def ready(self, mask: int) -> None:
        self._listener.acceptable(self)

    def go_on(self) -> None:
        """Accept clients from now on; does nothing after the end."""
        if self.sock.fileno() >= 0:
            self._poller.watch(self.sock.fileno(), self, READ)

    def pause(self) -> None:
        """Accept none for a while."""
        self._poller.watch(self.sock.fileno(), self, 0)

    def close(self) -> None:
        """Close the socket."""
        self.pause()
        self.sock.close()


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
            # The sockets that it accepts have these, too.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            # For port 0 the first socket picks a free port, and the others use it.
            sock.bind((place[0], port, *place[2:]))
            port = sock.getsockname()[1]
            sock.listen(BACKLOG)
    except OSError as error:
        for sock in socks:
            sock.close()
        raise OSError(error.errno, error.strerror, f"{host}:{port}") from error
    return socks


def _never_now(_login: object, _opened: object) -> bool:
    return False


class Listener(Generic[T]):
    """Accepts clients, on the running loop, which is a PollingLoop. make(sock, on_held[, origin]):
    returns the handshake of a client; on_held: as of Login; origin: of a client that `take` was
    given. admit(handshake, result): takes over a client that is logged in; the client gets its
    AMQPError. admit_now: as `admit`, returns False if that has to wait for something. dropped:
    those that were too many."""

    def __init__(
        self, socks: list[socket.socket], settings: Config, clock: Clock,
        make: Callable[..., Handshake[T]], admit: Callable[..., Awaitable[None]],
        admit_now: Callable[..., bool] = _never_now,
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
        self._admit_now = admit_now
        loop = asyncio.get_running_loop()
        assert isinstance(loop, PollingLoop), "a Listener needs a PollingLoop"
        self._loop: PollingLoop = loop
        self._poller: Poller = loop.poller
        self._listening = [Listening(self, self._poller, sock) for sock in socks]
        # address -> its half-open clients, the oldest first; and all of them, the oldest first
        self._by_address: dict[str, dict[HalfOpen, None]] = {}
        self._half_open: dict[HalfOpen, None] = {}
        self._timer: asyncio.TimerHandle | None = None  # for the oldest
        self._refused: dict[asyncio.Task[None], None] = {}  # getting their answer; the oldest first
        self._admitted: set[asyncio.Task[None]] = set()  # on their way to a vhost

    @property
    def half_open(self) -> int:
        """Return how many clients have not logged in."""
        return len(self._half_open)

    def start(self) -> None:
        """Start to accept."""
        for one in self._listening:
            one.go_on()

    async def stop(self) -> None:
        """Stop accepting. Drops clients that have not logged in."""
        for one in self._listening:
            one.close()
        for half in list(self._half_open):
            self._drop(half)
        if self._timer is not None:
            self._timer.cancel()
        tasks = [*self._refused, *self._admitted]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def acceptable(self, listening: "Listening") -> None:
        """Accept a client; if more wait, the socket is still readable in the next pass."""
        try:
            # As `accept`, which looks up the names of three numbers: a twentieth of a login.
            descriptor, _ = listening.sock._accept()  # type: ignore[attr-defined]
        except OSError as error:
            if error.errno not in SHORT:
                return  # that client is gone already
            if not self.is_short:
                logger.warning("cannot accept: %s", error.strerror)
            self._short_until_s = self._clock.monotonic() + SHORT_S
            listening.pause()
            self._loop.call_later(PAUSE_S, listening.go_on)
            return
        self.accepted += 1
        half = self.take(socket.socket(listening.family, socket.SOCK_STREAM, 0, descriptor))
        if half is not None and half.task is None and half in self._half_open:
            self.readable(half)  # mostly its first bytes are there

    @property
    def is_short(self) -> bool:
        """Whether a client could not be accepted in the last SHORT_S, for want of descriptors."""
        return self._clock.monotonic() < self._short_until_s

    def take(
        self, sock: socket.socket, origin: Origin | None = None, records: TlsRecords | None = None
    ) -> HalfOpen | None:
        """Begin the handshake of a client; None if it has gone already. origin: of one that another
        process has accepted, for TLS. records: of its TLS, if that process does not decrypt
        them."""
        sock.setblocking(False)
        try:
            if origin is None:
                login = self._make(sock, self._on_held)
            else:
                login = self._make(sock, self._on_held, origin, records)
        except OSError:
            sock.close()
            return None
        if len(self._half_open) >= self.half_open_max:
            self._drop_one()
        until_s = self._loop.time() + self._settings.handshake_timeout_s
        half = HalfOpen(self, login, network_of(login.peer_host), until_s)
        self._half_open[half] = None
        self._by_address.setdefault(half.address, {})[half] = None
        if self._timer is None:
            self._timer = self._loop.call_at(until_s, self._look_at_time)
        self._go_on(half, None)
        return half

    # ---- half-open clients ---------------------------------------------------------------------

    def readable(self, half: HalfOpen) -> None:
        """Go on with a handshake: the client has sent something."""
        try:
            data = half.login.sock.recv(half.login.read_bytes)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._has_failed(half, error)
            return
        self._go_on(half, data)

    def _go_on(self, half: HalfOpen, answer: object, error: Exception | None = None) -> None:
        """Go on with a handshake until it waits or ends. answer: to what it waited for; error:
        instead of an answer."""
        try:
            wanted = half.steps.send(answer) if error is None else half.steps.throw(error)
        except StopIteration as end:
            self._has_logged_in(half, end.value)
        except Exception as failure:  # noqa: BLE001 - it is answered or logged
            self._has_failed(half, failure)
        else:
            self._poller.watch(half.descriptor, half, 0 if wanted is not None else READ)
            if wanted is not None:
                half.task = self._loop.create_task(self._ask(half, wanted))

    async def _ask(self, half: HalfOpen, wanted: Awaitable[object]) -> None:
        """Wait for something that a handshake needs, and go on with it."""
        answer, error = None, None
        try:
            answer = await wanted
        except Exception as failure:  # noqa: BLE001 - the handshake knows it
            error = failure
        half.task = None
        self._go_on(half, answer, error)

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
        """Drop the oldest half-open client of the address that has the most of them."""
        address = max(self._by_address, key=self._of_address)
        self._drop(next(iter(self._by_address[address])))
        self.dropped += 1

    def _of_address(self, address: str) -> int:
        return len(self._by_address[address])

    def _look_at_time(self) -> None:
        """Drop those whose time is over."""
        self._timer = None
        while self._half_open:
            half = next(iter(self._half_open))
            if half.until_s > self._loop.time():
                self._timer = self._loop.call_at(half.until_s, self._look_at_time)
                return
            self.failed["timeout"] += 1
            client_line(logger, half.login.peer_host, "connection %s dropped: handshake timeout",
                        half.login.name)  # fmt: skip
            self._drop(half)

    def _drop(self, half: HalfOpen) -> None:
        """Drop a client that waits."""
        self._no_more_half_open(half)
        if half.task is not None:
            half.task.cancel()
        half.steps.close()
        half.login.forget()
        half.login.close()

    def _no_more_half_open(self, half: HalfOpen) -> None:
        self._poller.watch(half.descriptor, half, 0)
        if half in self._half_open:
            del self._half_open[half]
            of_address = self._by_address[half.address]
            del of_address[half]
            if not of_address:
                del self._by_address[half.address]

    # ---- what comes after the handshake --------------------------------------------------------

    def _has_logged_in(self, half: HalfOpen, opened: T) -> None:
        """Have a client taken over."""
        self._no_more_half_open(half)
        login = half.login
        try:
            if len(self._admitted) >= self._admitted_max:
                text = f"{len(self._admitted)} clients wait for their vhosts already"
                raise AMQPConnectionError(RESOURCE_ERROR, text, *OPEN)
            if self._admit_now(login, opened):
                login.forget()
                return
        except Exception as error:  # noqa: BLE001 - it is answered or logged
            self._refuse(login, error, is_logged_in=True)
            return
        task = self._loop.create_task(self._admit_later(login, opened))
        self._admitted.add(task)
        task.add_done_callback(self._admitted.discard)

    async def _admit_later(self, login: Handshake[T], opened: T) -> None:
        is_ours = True
        try:
            await self._admit(login, opened)
            is_ours = False
            login.forget()
        except Exception as error:  # noqa: BLE001 - it is answered or logged
            is_ours = False
            self._refuse(login, error, is_logged_in=True)
        finally:
            if is_ours:
                login.close()

    def _has_failed(self, half: HalfOpen, error: Exception) -> None:
        self._no_more_half_open(half)
        self._refuse(half.login, error, is_logged_in=False)

    def _refuse(self, login: Handshake[T], error: Exception, *, is_logged_in: bool) -> None:
        """End the connection of a client, and tell it why if it may know. Only its socket is
        kept meanwhile."""
        login.forget()
        if isinstance(error, AMQPError):
            why = error.why if isinstance(error, LoginRefused) else error
            self.failed[_reason(error, is_logged_in=is_logged_in)] += 1
            client_line(logger, login.peer_host, "connection %s refused: %s", login.name, why)
        elif isinstance(error, Silent):
            self.failed["protocol"] += 1
            client_line(logger, login.peer_host, "connection %s dropped: %s", login.name, error)
        else:
            if isinstance(error, Gone | OSError):
                logger.debug("connection %s lost: %s", login.name, error)
            else:
                logger.error("a login failed", exc_info=error)
            login.close()
            return
        task = self._loop.create_task(self._last_steps(login, error))
        self._refused[task] = None
        task.add_done_callback(partial(self._refused_has_ended, login))
        if len(self._refused) > self._refused_max:
            oldest = next(iter(self._refused))
            del self._refused[oldest]
            oldest.cancel()

    def _refused_has_ended(self, login: Handshake[T], task: asyncio.Task[None]) -> None:
        self._refused.pop(task, None)
        login.close()
        if not task.cancelled() and task.exception() is not None:
            logger.error("a login failed", exc_info=task.exception())

    async def _last_steps(self, login: Handshake[T], error: AMQPError | Silent) -> None:
        """Do the last steps for a refused client, in a limited time."""
        is_told = isinstance(error, AMQPError | WrongHeader)
        try:
            async with asyncio.timeout(LINGER_S if is_told else self._settings.silent_close_s):
                if isinstance(error, AMQPError):
                    await self._answer(login, error)
                elif is_told:
                    await self._farewell(login)
                else:
                    await self._drain(login)
        except OSError:  # TimeoutError is one
            pass

    async def _answer(self, login: Handshake[T], error: AMQPError) -> None:
        """Send connection.close, and wait for close-ok."""
        login.refuse(error)
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
        login.shut()
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
