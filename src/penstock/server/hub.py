"""Sessions: the clients of one vhost's process, and the loop that runs the vhost's turns (Hub).

    socket -> data_received -> handler.receive          input is handled at once
    handler -> SocketOutlet.send -> flush -> socket     output is collected for the turn

    sockets are readable   each session passes its bytes to the core, which notes what is to be done
    then, once             turn: deliveries, the log's write, confirms; then one flush per session
    a sync has finished    a worker's thread wakes the loop: completed, which ends with a turn
    time                   tick, when the last one asked for it; sooner while there is work

However many clients send in one iteration of the loop, there is one turn for all of them, and so
one write to the log.

**Output** is joined to writes of about WRITE_BYTES, one or a few for each turn; larger buffers cost
more in page faults than they save in calls. What the socket does not take waits in the transport.
Beyond HIGH_WATER_BYTES nothing more is delivered to the client, and it is not read either, because
answers to a client that does not read them would fill the memory.

**Pace.** A publisher at full speed fills every chunk that is read, and all others wait while it is
handled. So a chunk is as large as can be handled in about BULK_S: a MiB of a few large bodies, less
of many small ones. Smaller chunks cost too many turns; larger ones delay the publisher's own
confirms and the deliveries of all. If another client publishes a little at a time, and so waits for
each message, chunks shrink to QUICK_S, and after each the publisher is not read for REST_S: most of
the time the loop is free when a single message arrives. A read of less than SHORT_BYTES that begins
with a basic.publish shows such a client, and sets this pace for all others for RECENT_S. (Acks
arrive in short reads as well, but their senders do not wait.)

**Heartbeats.** Every half interval a heartbeat is sent if nothing else was. A client from which
nothing came for four halves is gone, unless it was not read meanwhile.

**The end.** After connection.close the client closes the socket itself when it has read close-ok,
as the protocol says and RabbitMQ does. Otherwise the sending half is shut after the last bytes, so
that they arrive although the client has sent bytes that nobody reads any more. In both cases the
client has LINGER_S.

**Errors.** An unexpected error is logged with its traceback and ends its connection (541), or the
vhost if its storage has failed. `Hub.fail` ends the vhost: nothing more may be confirmed. The hub
stops at once and calls on_failed; the process ends without writing anything, and the next one
recovers from the disk.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Final, Protocol

from penstock.broker.connection_handler import ConnectionHandler
from penstock.broker.in_flight import MESSAGES, InFlight, signature
from penstock.broker.output import Outlet
from penstock.codec.frames import HEARTBEAT_FRAME, begins_with_publish
from penstock.errors import INTERNAL_ERROR, StoppedError

LEAST_BYTES: Final = 16 << 10
FIRST_BYTES: Final = 256 << 10
MOST_BYTES: Final = 1 << 20
BULK_S: Final = 0.002
QUICK_S: Final = 0.0003
REST_S: Final = 0.002
RECENT_S: Final = 0.1
SHORT_BYTES: Final = 2 << 10


class ReadPace:
    """Detects, for one vhost, clients that wait for single messages."""

    def __init__(self) -> None:
        # The last client that published a little, and the time of the last other one.
        self._last: object = None
        self._last_until = 0.0
        self._other_until = 0.0

    def is_quick(self, who: object, data: bytes, now: float) -> bool:
        """Take what was just read of a client, at this time (seconds of the loop). Returns whether
        other clients publish a little at a time."""
        if len(data) < SHORT_BYTES and begins_with_publish(data):
            if who is not self._last:
                self._other_until = self._last_until
                self._last = who
            self._last_until = now + RECENT_S
        return now < (self._other_until if who is self._last else self._last_until)


def next_bytes(read_bytes: int, spent_s: float, *, is_quick: bool) -> int:
    """Return how many bytes to read after a full chunk of read_bytes that took spent_s to
    handle."""
    limit_s = QUICK_S if is_quick else BULK_S
    if spent_s > limit_s:
        return max(read_bytes >> 1, LEAST_BYTES)
    if spent_s < limit_s / 4:
        return min(read_bytes << 1, MOST_BYTES)
    return read_bytes


PARTS_MAX: Final = 512  # in one call; the system's own limit is 1,024
WRITE_BYTES: Final = 128 << 10
HIGH_WATER_BYTES: Final = 256 << 10
LOW_WATER_BYTES: Final = 64 << 10
LINGER_S: Final = 3.0
CLOSING_S: Final = 10.0  # for a client to answer connection.close, or to take the last output
SILENT_HALVES: Final = 4

logger = logging.getLogger(__name__)


class SocketOutlet(Outlet):
    """Collects the output of one session until the turn ends."""

    def __init__(self, session: "Session") -> None:
        self.is_writable = True
        self._session = session
        self._parts: list[bytes] = []
        self._bytes = 0

    def send(self, data: bytes) -> None:
        parts = self._parts
        if not parts:
            self._session.hub.has_output(self)
        parts.append(data)
        self._bytes += len(data)
        if self._bytes >= WRITE_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what was collected to the transport."""
        parts = self._parts
        if parts:
            self._parts = []
            self._bytes = 0
            self._session.write(parts)

    def pause(self) -> None:
        self._session.pause("core")

    def resume(self) -> None:
        self._session.resume("core")

    def closing(self) -> None:
        self._session.must_close()

    def close(self, *, client_first: bool) -> None:
        self.flush()
        self._session.end(client_first=client_first)


class Session(asyncio.Protocol):
    """One client of the vhost. `start` is called once, when the socket has a transport."""

    def __init__(self, hub: "Hub") -> None:
        self.hub = hub
        self.outlet = SocketOutlet(self)
        self.handler: ConnectionHandler | None = None
        self.user: str = ""
        self._in_flight_name = b""
        self.sock: socket.socket | None = None  # the transport's, for sending several parts at once
        self.transport: asyncio.Transport | None = None  # from `connection_made` on
        self._paused: set[str] = set()  # why it is not read: "start", "core", "output", "pace"
        self._read_bytes = FIRST_BYTES
        self._is_ending = False
        self._has_sent = False
        self._has_received = False
        self._silent_halves = 0
        self._counted_bytes = 0  # output that waits for a full socket, as the vhost counts it
        self._heartbeat: asyncio.TimerHandle | None = None
        self._deadline: asyncio.TimerHandle | None = None

    # ---- the transport -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport. It is not read before `start`."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(high=HIGH_WATER_BYTES, low=LOW_WATER_BYTES)
        transport.pause_reading()
        self._paused.add("start")
        self._read_so_much(FIRST_BYTES)

    def start(self, handler: ConnectionHandler, leftover: bytes) -> None:
        """Begin to read. leftover: bytes that were read before the hand-over."""
        self.handler = handler
        self._in_flight_name = signature(self.user, MESSAGES)
        if handler.facts.heartbeat_s > 0 and not self._is_ending:
            self._beat_later()
        if leftover:
            self.data_received(leftover)
        self.resume("start")

    def data_received(self, data: bytes) -> None:
        """Handle bytes from the client."""
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
        except Exception as error:  # noqa: BLE001 - it is reported
            self.unexpected(error)
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
        """Read at most so many bytes at once from now on, with the transport's `max_size`."""
        self._read_bytes = read_bytes
        self.transport.max_size = read_bytes  # type: ignore[union-attr]

    def eof_received(self) -> None:
        """Do nothing, so that the transport closes: the client sends nothing more."""

    def connection_lost(self, exc: Exception | None) -> None:
        """End the session: the connection is closed or lost."""
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
                logger.exception("connection %s: an error while it ended", handler.facts.name)
            self.hub.wake()

    def pause_writing(self) -> None:
        """Stop delivering to the client and reading from it: too much output waits."""
        self.outlet.is_writable = False
        if self.transport is not None:
            self._count_output(self.transport.get_write_buffer_size())
        self.pause("output")
        self._writable(False)

    def resume_writing(self) -> None:
        """Deliver and read again: the client has taken most of the output."""
        self._count_output(0)
        if not self._is_ending:
            self.outlet.is_writable = True
            self._writable(True)
        self.resume("output")

    def _count_output(self, number: int) -> None:
        """Count output that waits for the socket as memory of the vhost."""
        if number != self._counted_bytes:
            self.hub.vhost.add_other(number - self._counted_bytes)
            self._counted_bytes = number

    def _writable(self, is_writable: bool) -> None:
        if self.handler is not None:
            try:
                self.handler.writable(is_writable)
            except Exception as error:  # noqa: BLE001 - it is reported
                self.unexpected(error)
            self.hub.wake()

    # ---- what the outlet and the hub want ------------------------------------------------------

    def write(self, parts: list[bytes]) -> None:
        """Write to the transport; nothing if the session has ended. An error ends this connection,
        and not the turn."""
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
            logger.warning("connection of %s: writing to it failed: %s", self.user, error)
            self.abort()

    def _sent(self, sock: socket.socket, parts: list[bytes]) -> list[bytes]:
        """Send parts in one call, without copying them; nothing else may wait. Returns the rest."""
        try:
            n = sock.sendmsg(parts[:PARTS_MAX])
        except (BlockingIOError, InterruptedError):
            return parts
        for i, part in enumerate(parts):
            if n < len(part):
                return [part[n:], *parts[i + 1 :]]
            n -= len(part)
        return []

    def pause(self, reason: str) -> None:
        """Stop reading from the client for this reason, besides others."""
        if not self._paused and self.transport is not None:
            self.transport.pause_reading()
        self._paused.add(reason)

    def resume(self, reason: str) -> None:
        """Remove a reason for not reading. The client is read when none is left."""
        if reason in self._paused:
            self._paused.discard(reason)
            self._silent_halves = 0
            if not self._paused and self.transport is not None:
                self.transport.resume_reading()

    def end(self, *, client_first: bool) -> None:
        """Shut the sending half after the last bytes, unless the client closes first, and wait a
        little for the client to close."""
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
        """Close the connection for the server. The client gets the reason and has CLOSING_S to
        answer."""
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
            logger.exception("connection %s: an error while it was closed", handler.facts.name)
            self.abort()
        self.hub.wake()

    def must_close(self) -> None:
        """Wait for close-ok after connection.close was sent, less long if the client's frames
        cannot be parsed any more."""
        if self._deadline is None and self.handler is not None:
            self._abort_later(LINGER_S if self.handler.connection.is_broken else CLOSING_S)

    def abort(self) -> None:
        """Drop the connection, with all output that waits."""
        if self.transport is not None:
            self.transport.abort()

    def unexpected(self, error: Exception) -> None:
        """Handle an unexpected error: end the vhost if its storage has failed, else this
        connection."""
        if self.hub.fail_if_stopped(error):
            return
        name = self.handler.facts.name if self.handler is not None else ""
        logger.error("connection %s: an unexpected error", name, exc_info=error)
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
        """Send a heartbeat if nothing else was sent in the last half interval. Drop a client that
        was silent for SILENT_HALVES of them."""
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
