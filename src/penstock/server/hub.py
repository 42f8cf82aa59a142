"""Hub: the loop of one vhost's process: its turns, its timer and its sessions.

    sockets are readable   each session gives its bytes to the core, which notes what is to be done
    then, once             turn: deliveries, the log's write, confirms; then one flush per session
    a sync has finished    a worker's thread wakes the loop: completed, which ends with a turn
    time                   tick, when the last one asked for it; sooner while there is work

However many clients send in one iteration of the loop, there is one turn for all of them, and so
one write to the log.

`fail` ends the vhost: the storage has failed, and nothing more may be confirmed. The hub stops at
once and calls on_failed; the process ends without writing anything, and the next one recovers from
the disk.

A Session is one client of the vhost, between its transport and its ConnectionHandler.

    socket -> data_received -> handler.receive          what comes in is handled at once
    handler -> SocketOutlet.send -> flush -> socket     what goes out is collected for the turn

**Output** is joined to writes of about WRITE_BYTES, one or a few for each turn; larger buffers cost
more in page faults than they save in calls. What the socket does not take waits in the transport;
beyond HIGH_WATER_BYTES the core is told to deliver nothing more, and the client is not read any
more either: one that does not read must not fill our memory with answers.

**Heartbeats.** A timer of half the interval: nothing was sent since the last time, so a heartbeat
goes; nothing came for four of them, so the client is gone. While a client is not read on our
account its silence means nothing.

**The end.** A client that said goodbye closes the socket itself when it has read close-ok, as the
protocol has it and RabbitMQ does. Else, after the last bytes, the sending half is shut, so that
they arrive although the client has sent what nobody reads any more. In both cases it has LINGER_S.

An error that the core did not turn into an answer is a defect: it is logged with its traceback and
closes this connection (541), or stops the vhost if its storage has failed.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Final, Protocol

from penstock.broker.connection_handler import ConnectionHandler
from penstock.broker.in_flight import MESSAGES, InFlight, signature
from penstock.broker.output import Outlet
from penstock.codec.frames import HEARTBEAT_FRAME
from penstock.errors import INTERNAL_ERROR, StoppedError
from penstock.server.read_pace import FIRST_BYTES, REST_S, ReadPace, next_bytes

PARTS_MAX: Final = 512  # in one call; the system's own limit is 1,024
WRITE_BYTES: Final = 128 << 10
HIGH_WATER_BYTES: Final = 256 << 10
LOW_WATER_BYTES: Final = 64 << 10
LINGER_S: Final = 3.0
CLOSING_S: Final = 10.0  # for a client to answer connection.close, or to take what it is owed
SILENT_HALVES: Final = 4

logger = logging.getLogger(__name__)


class SocketOutlet(Outlet):
    """The way out of one session. Bytes wait here until the turn ends."""

    def __init__(self, session: "Session") -> None:
        self.is_writable = True
        self._session = session
        self._parts: list[bytes] = []
        self._bytes = 0

    def send(self, data: bytes) -> None:
        """See Outlet."""
        parts = self._parts
        if not parts:
            self._session.hub.has_output(self)
        parts.append(data)
        self._bytes += len(data)
        if self._bytes >= WRITE_BYTES:
            self.flush()

    def flush(self) -> None:
        """To the transport with it. Again: nothing."""
        parts = self._parts
        if parts:
            self._parts = []
            self._bytes = 0
            self._session.write(parts)

    def pause(self) -> None:
        """See Outlet."""
        self._session.pause("core")

    def resume(self) -> None:
        """See Outlet."""
        self._session.resume("core")

    def closing(self) -> None:
        """See Outlet."""
        self._session.must_close()

    def close(self, *, client_first: bool) -> None:
        """See Outlet."""
        self.flush()
        self._session.end(client_first=client_first)


class Session(asyncio.Protocol):
    """`start` comes once, when the socket has become a transport."""

    def __init__(self, hub: "Hub") -> None:
        self.hub = hub
        self.outlet = SocketOutlet(self)
        self.handler: ConnectionHandler | None = None
        self.user: str = ""
        self._in_flight_name = b""
        self.sock: socket.socket | None = None  # the transport's, for sending several parts at once
        self.transport: asyncio.Transport | None = None  # from `connection_made` on
        self._paused: set[str] = set()  # on whose account it is not read: "core", "output", "pace"
        self._read_bytes = FIRST_BYTES
        self._is_ending = False
        self._has_sent = False
        self._has_received = False
        self._silent_halves = 0
        self._counted_bytes = 0  # told to the vhost: what waits for the socket while it is full
        self._heartbeat: asyncio.TimerHandle | None = None
        self._deadline: asyncio.TimerHandle | None = None

    # ---- the transport -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is ours; it is not read before `start`."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(high=HIGH_WATER_BYTES, low=LOW_WATER_BYTES)
        transport.pause_reading()
        self._paused.add("start")
        self._read_so_much(FIRST_BYTES)

    def start(self, handler: ConnectionHandler, leftover: bytes) -> None:
        """Its handler is there: what was read before the hand-over comes first."""
        self.handler = handler
        self._in_flight_name = signature(self.user, MESSAGES)
        if handler.facts.heartbeat_s > 0 and not self._is_ending:
            self._beat_later()
        if leftover:
            self.data_received(leftover)
        self.resume("start")

    def data_received(self, data: bytes) -> None:
        """Bytes of the client."""
        self._has_received = True
        handler = self.handler
        if handler is None or self._is_ending:
            return
        time = self.hub.loop.time
        in_flight = self.hub.in_flight
        since = time()
        in_flight.begin_read(self._in_flight_name)
        try:
            handler.receive(data)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told
            self.mistake(error)
        in_flight.end_read()
        now = time()
        is_quick = self.hub.pace.is_quick(self, data, now)
        if len(data) >= self._read_bytes:
            self._read_so_much(next_bytes(self._read_bytes, now - since, is_quick=is_quick))
            if is_quick:
                self.pause("pace")
                self.hub.loop.call_later(REST_S, self.resume, "pace")
        self.hub.wake()

    def _read_so_much(self, read_bytes: int) -> None:
        """At once, from now on: the transport asks the socket for `max_size`."""
        self._read_bytes = read_bytes
        self.transport.max_size = read_bytes  # type: ignore[union-attr]

    def eof_received(self) -> None:
        """The client sends nothing more: the transport closes itself."""

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone, however that came."""
        self._is_ending = True
        self.outlet.is_writable = False
        for timer in (self._heartbeat, self._deadline):
            if timer is not None:
                timer.cancel()
        self._heartbeat = self._deadline = None
        self.hub.forget(self)
        self._count_output(0)
        handler, self.handler = self.handler, None
        if handler is not None and self.hub.failed is None:
            try:
                handler.lost()
            except Exception as error:
                self.hub.fail_if_stopped(error)
                logger.exception("connection %s: while it was taken down", handler.facts.name)
            self.hub.wake()

    def pause_writing(self) -> None:
        """More waits than may: the core delivers nothing, the client is not read."""
        self.outlet.is_writable = False
        if self.transport is not None:
            self._count_output(self.transport.get_write_buffer_size())
        self.pause("output")
        self._writable(False)

    def resume_writing(self) -> None:
        """It has taken most of it."""
        self._count_output(0)
        if not self._is_ending:
            self.outlet.is_writable = True
            self._writable(True)
        self.resume("output")

    def _count_output(self, number: int) -> None:
        """What waits for the socket is memory too."""
        if number != self._counted_bytes:
            self.hub.vhost.add_other(number - self._counted_bytes)
            self._counted_bytes = number

    def _writable(self, is_writable: bool) -> None:
        if self.handler is not None:
            try:
                self.handler.writable(is_writable)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is told
                self.mistake(error)
            self.hub.wake()

    # ---- what the outlet and the hub want ------------------------------------------------------

    def write(self, parts: list[bytes]) -> None:
        """Onto the transport. Behind the end nothing goes; whatever ails a transport is its own
        client's trouble, and never ends a turn of the others."""
        if self._is_ending or self.transport is None or self.transport.is_closing():
            return
        self._has_sent = True
        try:
            waits = self.transport.get_write_buffer_size()
            if len(parts) > 1 and not waits and self.sock is not None:
                parts = self._sent(self.sock, parts)
            for part in parts:
                self.transport.write(part)
        except (OSError, RuntimeError) as error:
            logger.warning("connection of %s: it cannot be written to: %s", self.user, error)
            self.abort()

    def _sent(self, sock: socket.socket, parts: list[bytes]) -> list[bytes]:
        """Send parts at once, none of them copied, as nothing else waits; what is left of them."""
        try:
            n = sock.sendmsg(parts[:PARTS_MAX])
        except (BlockingIOError, InterruptedError):
            return parts
        for i, part in enumerate(parts):
            if n < len(part):
                return [part[n:], *parts[i + 1 :]]
            n -= len(part)
        return []

    def pause(self, account: str) -> None:
        """Read the client no more, on somebody's account."""
        if not self._paused and self.transport is not None:
            self.transport.pause_reading()
        self._paused.add(account)

    def resume(self, account: str) -> None:
        """That one would read on; it is read when nobody minds."""
        if account in self._paused:
            self._paused.discard(account)
            self._silent_halves = 0
            if not self._paused and self.transport is not None:
                self.transport.resume_reading()

    def end(self, *, client_first: bool) -> None:
        """Everything was said: shut our half, unless the client does so first, and wait a little
        for the client's."""
        if self._is_ending or self.transport is None:
            return
        self._is_ending = True
        if self.transport.is_closing():
            return
        try:
            if not client_first and self.transport.can_write_eof():
                self.transport.write_eof()
        except OSError:  # the client has hung up already
            self.abort()
            return
        self._paused.clear()
        self.transport.resume_reading()
        # What waits for the socket goes first, so a client that takes it slowly has more time.
        waits = self.transport.get_write_buffer_size() > 0
        self._abort_later(CLOSING_S if waits else LINGER_S)

    def shutdown(self, code: int, text: str) -> None:
        """The server closes: the client is told and has CLOSING_S to answer."""
        if self._is_ending:
            return
        self._abort_later(CLOSING_S)
        handler = self.handler
        if handler is None:
            self.abort()
            return
        try:
            handler.shutdown(code, text)
        except Exception:
            logger.exception("connection %s: while it was closed", handler.facts.name)
            self.abort()
        self.hub.wake()

    def must_close(self) -> None:
        """The client is told to close. Nothing that it says now but close-ok is understood, and not
        even that if its frames cannot be told apart any more."""
        if self._deadline is None and self.handler is not None:
            self._abort_later(LINGER_S if self.handler.connection.is_broken else CLOSING_S)

    def abort(self) -> None:
        """Drop it, with all that waits."""
        if self.transport is not None:
            self.transport.abort()

    def mistake(self, error: Exception) -> None:
        """An error that is nobody's answer: the vhost's end if its storage has failed, else of this
        connection."""
        if self.hub.fail_if_stopped(error):
            return
        name = self.handler.facts.name if self.handler is not None else ""
        logger.error("connection %s: a mistake of ours", name, exc_info=error)
        self.shutdown(INTERNAL_ERROR, f"{type(error).__name__}: {error}")

    def _abort_later(self, seconds: float) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.hub.loop.call_later(seconds, self.abort)

    # ---- heartbeats ----------------------------------------------------------------------------

    def _beat_later(self) -> None:
        assert self.handler is not None
        self._heartbeat = self.hub.loop.call_later(self.handler.facts.heartbeat_s / 2, self._beat)

    def _beat(self) -> None:
        """Every half interval."""
        handler = self.handler
        if handler is None:
            return
        if self._has_received or self._paused:
            self._silent_halves = 0
        else:
            self._silent_halves += 1
        if self._silent_halves >= SILENT_HALVES:
            logger.warning(
                "connection %s: missed heartbeats from client, timeout %gs",
                handler.facts.name, handler.facts.heartbeat_s,
            )  # fmt: skip
            self.abort()
            return
        if not self._has_sent and not self._is_ending:
            self.outlet.flush()
            if not self._has_sent:
                self.write([HEARTBEAT_FRAME])
        self._has_received = self._has_sent = False
        self._beat_later()


SOON_S: Final = 0.05  # the next tick after a turn is due at most so much later


class Failing(Protocol):
    """The part of an engine that the hub uses."""

    @property
    def failed(self) -> BaseException | None:
        """Why it has stopped; None while it works."""


class Turning(Protocol):
    """The part of a vhost that the hub uses."""

    @property
    def engine(self) -> Failing:
        """The vhost's storage."""

    def turn(self) -> bool:
        """Deliver, write, confirm. Returns True if there is more to do."""

    def completed(self) -> bool:
        """Take results of slow work, then do a turn."""

    def add_other(self, delta: int) -> None:
        """Count bytes that are held for clients; negative if they were released."""

    def tick(self) -> float:
        """Do what is due by time. Returns the seconds until the next tick."""


def _nobody_counts(_user: str) -> None:
    """Do nothing: the default for owners that do not count connections."""


def _nothing() -> None:
    """Do nothing: the default for owners that do not follow ticks."""


class Hub:
    """The loop of a vhost, on the running loop. on_failed(error): called once, if the vhost
    fails."""

    def __init__(
        self, vhost: Turning, on_failed: Callable[[BaseException], None],
        in_flight: InFlight | None = None,
    ) -> None:  # fmt: skip
        self.loop = asyncio.get_running_loop()
        self.in_flight = in_flight or InFlight(self.loop.time)
        self.vhost = vhost
        self.sessions: set[Session] = set()
        self.pace = ReadPace()
        self.failed: BaseException | None = None
        self._on_failed = on_failed
        self.on_gone: Callable[[str], None] = (
            _nobody_counts  # called with the user of a session that ended
        )
        self.on_tick: Callable[[], None] = _nothing  # called after each tick of the vhost
        self._on_empty: Callable[[], None] | None = None
        self._is_awake = False  # a turn is scheduled
        self._is_running = False  # a step of the vhost runs; its output is flushed after it
        self._is_stopped = False
        self._output: list[SocketOutlet] = []
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start, with the first tick."""
        self._tick()

    def stop(self) -> None:
        """Stop turns and ticks. Drops the remaining sessions."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for session in list(self.sessions):
            session.abort()

    # ---- turns ---------------------------------------------------------------------------------

    def wake(self) -> None:
        """Schedule a turn."""
        if not self._is_awake and not self._is_stopped:
            self._is_awake = True
            self.loop.call_soon(self._turn)

    def wake_from_thread(self) -> None:
        """Report from a worker's thread that slow work is done."""
        try:
            self.loop.call_soon_threadsafe(self._completed)
        except RuntimeError:  # the loop has ended, and with it the vhost
            pass

    def has_output(self, outlet: SocketOutlet) -> None:
        """Have the outlet flushed when the turn ends."""
        self._output.append(outlet)
        if not self._is_running:
            self.wake()

    def _turn(self) -> None:
        self._is_awake = False
        if self._is_stopped:
            return
        self._run(self.vhost.turn)
        timer = self._timer
        if timer is not None and timer.when() - self.loop.time() > SOON_S:
            timer.cancel()
            self._timer = self.loop.call_later(SOON_S, self._tick)

    def _completed(self) -> None:
        if not self._is_stopped:
            self._run(self.vhost.completed)

    def _run(self, step: Callable[[], bool]) -> None:
        """Run a step of the vhost, then flush its output. If there is more to do, a turn follows
        after other events."""
        self._is_running = True
        try:
            if step():
                self.wake()
            self.in_flight.turned()
        except Exception as error:
            logger.exception("a turn of the vhost failed")
            self.fail(error)
        finally:
            self._is_running = False
        output, self._output = self._output, []
        for outlet in output:
            outlet.flush()

    def _tick(self) -> None:
        self._timer = None
        if self._is_stopped:
            return
        seconds = 1.0

        def tick() -> bool:
            nonlocal seconds
            seconds = self.vhost.tick()
            return False

        self._run(tick)
        self.on_tick()
        if not self._is_stopped:
            self._timer = self.loop.call_later(max(seconds, 0.0), self._tick)

    def fail(self, error: BaseException) -> None:
        """Stop: the vhost has failed."""
        if self.failed is None and not self._is_stopped:
            self.failed = error
            self.stop()
            self._on_failed(error)

    def fail_if_stopped(self, error: BaseException) -> bool:
        """Stop if the error comes from a stopped storage. Returns whether it does."""
        engine_error = self.vhost.engine.failed
        if engine_error is None and not isinstance(error, StoppedError):
            return False
        self.fail(engine_error or error)
        return True

    # ---- sessions ------------------------------------------------------------------------------

    async def adopt(self, sock: socket.socket, user: str = "") -> Session:
        """Return a session of this user on a connected socket. The caller starts it."""
        session = Session(self)
        session.user = user
        session.sock = sock
        self.sessions.add(session)
        try:
            await self.loop.connect_accepted_socket(lambda: session, sock)
        except BaseException:
            self.sessions.discard(session)
            sock.close()
            raise
        return session

    def forget(self, session: Session) -> None:
        """Remove a session that has ended."""
        self.sessions.discard(session)
        self.on_gone(session.user)
        if not self.sessions and self._on_empty is not None:
            self._on_empty()

    async def close_all(self, code: int, text: str, seconds: float) -> None:
        """Close all connections with this reply. Waits until they have gone, `seconds` at most."""
        if not self.sessions:
            return
        gone = self.loop.create_future()
        self._on_empty = lambda: None if gone.done() else gone.set_result(None)
        for session in list(self.sessions):
            session.shutdown(code, text)
        await asyncio.wait([gone], timeout=seconds)
        self._on_empty = None
