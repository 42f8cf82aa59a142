"""Hub: the turns of one vhost's process, and its sessions, one for each client.

    a socket is readable   Session.ready: its bytes go to the core, which notes what is to be done
    then, once             turn: deliveries, the log's write, confirms; then one flush per session
    a sync has finished    completed: its results, then a turn
    time                   tick, when the last one asked for it; sooner while there is work

All of it runs inside the loop's poller (poller.py), not as callbacks of asyncio. However many
clients send in one pass of the poller, there is one turn for all of them, and so one write to the
log.

`fail` ends the vhost: the storage has failed, and nothing more may be confirmed. The hub stops at
once and calls on_failed; the process ends without writing anything, and the next one recovers from
the disk.

A Session is one client of the vhost, between its socket and its ConnectionHandler.

    socket -> ready -> handler.receive                   what comes in is handled at once
    handler -> SocketOutlet.send -> flush -> socket      what goes out is collected for the turn

**Input.** A socket is read once in each pass: READ_BYTES while it brings less than half of that,
so that single messages need no large buffer, and what the pace permits otherwise.

**Output** is joined to writes of about WRITE_BYTES, one or a few for each turn; larger buffers cost
more in page faults than they save in calls. What the socket does not take waits in the session, and
counts in the vhost's memory from the first byte. Beyond HIGH_WATER_BYTES the core is told to
deliver nothing more, and the client is not read any more either: one that does not read must not
fill our memory with answers. If much waits for a user's other connections (`has_output_room`), that
is so as soon as anything waits.

**Pace.** A publisher at full speed fills every chunk that is read, and all others wait while it is
handled. So a chunk is as large as can be handled in about BULK_S: a MiB of a few large bodies, less
of many small ones. Smaller chunks cost too many turns; larger ones delay the publisher's own
confirms and the deliveries of all. If another client publishes a little at a time, and so waits for
each message, chunks shrink to QUICK_S, and after each the publisher is not read for REST_S: most of
the time the loop is free when a single message arrives. A read of less than SHORT_BYTES that begins
with a basic.publish shows such a client, and sets this pace for all others for RECENT_S. (Acks
arrive in short reads as well, but their senders do not wait.)

**Heartbeats.** A timer of half the interval: if nothing was sent since the last time, a heartbeat
is sent; if nothing came for four of them, the client is gone. While a client is not read on our
account its silence means nothing.

The hub has the times of its sessions, in slots of a quarter of a second, not asyncio, whose timers
would cost a connection more than its reading.

**The end.** A client that said goodbye closes the socket itself when it has read close-ok, as the
protocol has it and RabbitMQ does. Else, after the last bytes, the sending half is shut, so that
they arrive although the client has sent what nobody reads any more. In both cases it has LINGER_S.
A session ends at the beginning of a turn, never within a call of the core.

An error that the core did not turn into an answer is a defect: it is logged with its traceback and
closes this connection (541), or stops the vhost if its storage has failed.
"""

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Final, Protocol

from penstock.access.permissions import Identity
from penstock.broker.in_flight import MESSAGES, InFlight, signature
from penstock.broker.output import Outlet, Piece
from penstock.clock import until_next
from penstock.codec.frames import HEARTBEAT_FRAME, begins_with_publish
from penstock.errors import INTERNAL_ERROR, StoppedError
from penstock.queues.amq_queue import IDLE_AGAIN_S
from penstock.server.poller import READ, WRITE, PolledSource, Poller, Turns
from penstock.server.tls_records import CLOSE_NOTIFY, TlsRecords, WrongRecord

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
READ_BYTES: Final = 16 << 10
WRITE_BYTES: Final = 128 << 10
HIGH_WATER_BYTES: Final = 256 << 10
LOW_WATER_BYTES: Final = 64 << 10
LINGER_S: Final = 3.0
CLOSING_S: Final = 10.0  # for a client to answer connection.close, or to take what waits for it
SILENT_HALVES: Final = 4
SLOTS_PER_S: Final = 4  # the times of sessions are as exact as that
NEVER: Final = -1
SOON_S: Final = 0.05  # the next tick after a turn is due at most so much later

logger = logging.getLogger(__name__)


class SessionFacts(Protocol):
    """The part of ConnectionFacts that a session uses."""

    @property
    def name(self) -> str:
        """The connection's name."""

    @property
    def peer_host(self) -> str:
        """The client's address."""

    @property
    def heartbeat_s(self) -> float:
        """The interval of heartbeats, 0 for none."""


class Framing(Protocol):
    """The part of a Connection that a session uses."""

    @property
    def is_broken(self) -> bool:
        """Whether the client's frames cannot be told apart any more."""


class Handler(Protocol):
    """The part of a ConnectionHandler that a session uses."""

    @property
    def facts(self) -> SessionFacts:
        """Of the connection."""

    @property
    def connection(self) -> Framing:
        """Its state."""

    def receive(self, data: bytes) -> None:
        """Handle what the client has sent."""

    def writable(self, is_writable: bool) -> None:
        """Note whether the client takes more."""

    def lost(self) -> None:
        """Note that the client has gone."""

    def shutdown(self, code: int, text: str) -> None:
        """Close the connection with this reply."""

    @property
    def identity(self) -> Identity:
        """What the user may do."""

    def set_identity(self, identity: Identity) -> None:
        """Note the user's present permissions."""

    def renewed(self, identity: Identity) -> None:
        """Note what the client's new secret allows, and say that it was accepted."""

    def info(self) -> dict[str, object]:
        """Return what operators are shown of the connection."""


class SocketOutlet(Outlet):
    """The way out of one session, until that has `ended`. Bytes wait here until the turn ends."""

    def __init__(self, session: "Session") -> None:
        self.is_writable = True
        self._session: Session | None = session
        self._parts: list[Piece] = []
        self._bytes: int = 0

    def send(self, data: Piece) -> None:
        session = self._session
        if session is None:
            return
        parts = self._parts
        if not parts:
            session.hub.has_output(self)
        parts.append(data)
        self._bytes += len(data)
        if self._bytes >= WRITE_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write to the socket what has been collected."""
        parts = self._parts
        if parts and self._session is not None:
            self._parts = []
            self._bytes = 0
            self._session.write(parts)

    def pause(self) -> None:
        if self._session is not None:
            self._session.pause("core")

    def resume(self) -> None:
        if self._session is not None:
            self._session.resume("core")

    def closing(self) -> None:
        if self._session is not None:
            self._session.must_close()

    def close(self, *, client_first: bool) -> None:
        self.flush()
        if self._session is not None:
            self._session.end(client_first=client_first)

    def ended(self) -> None:
        """Drop the session, which has ended. They would be a cycle that only a full collection
        frees, and there is none while the process is busy."""
        self._session = None
        self._parts = []


class Session(PolledSource):
    """One client. sock: connected, not blocking; the session closes it. It is read from `start` on,
    which is called once."""

    def __init__(self, hub: "Hub", sock: socket.socket, user: str) -> None:
        self.hub: Hub = hub
        self.user: str = user
        self.outlet: SocketOutlet = SocketOutlet(self)
        self.handler: Handler | None = None
        self.waiting_bytes: int = 0  # of output that the socket did not take
        self._sock: socket.socket = sock
        self._descriptor: int = sock.fileno()
        self._in_flight_name: bytes = signature(user, MESSAGES)
        self._waiting: deque[bytes] = deque()
        self._paused: set[str] = {"start"}  # why it is not read: start, core, output, pace
        self._most_bytes: int = FIRST_BYTES  # that the pace permits at once
        self._read_bytes: int = READ_BYTES  # that the next read asks for
        self._is_ending: bool = False  # nothing of what it sends is handled any more
        self._is_closed: bool = False  # the socket is not used any more
        self._has_eof: bool = False  # the client sends nothing more
        self._must_shut: bool = False  # our half is shut when all has been sent
        self._has_sent: bool = False
        self._has_received: bool = False
        self._silent_halves: int = 0
        self._counted_bytes: int = 0  # of waiting_bytes, reported to the vhost
        self.slot: int = NEVER  # in which the hub calls `timed`
        self._beat_s: float = -1.0  # when a half interval of heartbeats ends; negative: never
        self._abort_s: float = -1.0  # when it is dropped; negative: never

    def start(self, handler: Handler, leftover: bytes) -> None:
        """Begin with what was read before the hand-over."""
        self.handler = handler
        if handler.facts.heartbeat_s > 0 and not self._is_ending:
            self._beat_later()
        if leftover:
            self.received(leftover, len(leftover))
        self.resume("start")

    # ---- the socket ----------------------------------------------------------------------------

    def ready(self, mask: int) -> None:
        if self._waiting:
            if mask & ~READ:
                self._send_waiting()
        elif mask & ~READ and self._has_eof:
            self.abort()
        if mask & ~WRITE and not self._paused and not self._is_closed and not self._has_eof:
            self._read()

    def _watch(self) -> None:
        """Have the poller report what is wanted of the socket now. Once it is closed its number may
        be another session's."""
        if self._is_closed:
            return
        mask = 0
        if not self._paused and not self._has_eof:
            mask = READ
        if self._waiting:
            mask |= WRITE
        self.hub.poller.watch(self._descriptor, self, mask)

    def _read(self) -> None:
        try:
            data = self._sock.recv(self._read_bytes)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.abort()
            return
        if data:
            self.received(data, len(data))
        else:
            self._no_more()

    def _no_more(self) -> None:
        """The client sends nothing more."""
        self._has_eof = True
        self._is_ending = True
        if self._waiting:
            self._watch()  # what waits is sent first
        else:
            self.abort()

    def received(self, data: bytes, size: int) -> None:
        """Handle bytes of the client. size: of what the socket had."""
        self._has_received = True
        handler = self.handler
        if handler is None or self._is_ending:
            return
        hub = self.hub
        in_flight = hub.in_flight
        since = monotonic()
        in_flight.begin_read(self._in_flight_name)
        try:
            handler.receive(data)
        except Exception as error:  # noqa: BLE001 - it is logged and answered
            self.unexpected(error)
        in_flight.end_read()
        now = monotonic()
        is_quick = hub.pace.is_quick(self, data, now)
        if size >= self._most_bytes:
            self._most_bytes = next_bytes(self._most_bytes, now - since, is_quick=is_quick)
            self._read_bytes = self._most_bytes
            if is_quick:
                self.pause("pace")
                hub.loop.call_later(REST_S, self.resume, "pace")
        else:
            self._read_bytes = self._most_bytes if size > READ_BYTES >> 1 else READ_BYTES
        hub.wake()

    def _send_waiting(self) -> None:
        """Send what waits, as much as the socket takes."""
        waiting = self._waiting
        while waiting:
            parts: list[Piece] = [waiting.popleft() for _ in range(min(len(waiting), PARTS_MAX))]
            try:
                left = self._sent(parts)
            except OSError:
                self.abort()
                return
            waiting.extendleft([bytes(part) for part in reversed(left)])
            if left:
                break
        self.waiting_bytes = sum([len(part) for part in waiting])
        self._count_output()
        if self.waiting_bytes <= LOW_WATER_BYTES and not self.outlet.is_writable:
            self._take_more()
        if not waiting:
            if self._has_eof:
                self.abort()
                return
            if self._must_shut:
                self._shut()
        self._watch()

    def _sent(self, parts: list[Piece]) -> list[Piece]:
        """Send parts, none of them copied. Returns what is left of them. OSError."""
        try:
            if len(parts) == 1:
                n = self._sock.send(parts[0])
            else:
                n = self._sock.sendmsg(parts[:PARTS_MAX])
        except (BlockingIOError, InterruptedError):
            return parts
        for i, part in enumerate(parts):
            if n < len(part):
                return [part[n:], *parts[i + 1 :]]
            n -= len(part)
        return []

    def _shut(self) -> None:
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError:  # the client has hung up already
            self.abort()

    def abort(self) -> None:
        """Drop the client, with all that waits. It has gone when the next turn begins."""
        if not self._is_closed:
            self._is_closed = True
            self._is_ending = True
            self.outlet.is_writable = False
            self._waiting.clear()
            self.waiting_bytes = 0
            self._count_output()
            self.hub.poller.watch(self._descriptor, self, 0)
            self._sock.close()
            self.hub.has_ended(self)

    def ended(self) -> None:
        """Take the client out of the vhost: the hub calls this once, after `abort`."""
        self.hub.forget(self)
        handler = self.handler
        self.handler = None
        if handler is not None and self.hub.failed is None:
            try:
                handler.lost()
            except Exception as error:
                self.hub.fail_if_stopped(error)
                logger.exception("connection %s: while it was taken down", handler.facts.name)
        self.outlet.ended()

    # ---- output --------------------------------------------------------------------------------

    def write(self, parts: list[Piece]) -> None:
        """Send these, or keep what the socket does not take. After the end nothing is sent. An
        error of the socket ends this session only."""
        if self._is_ending:
            return
        self._has_sent = True
        if not self._waiting:
            try:
                parts = self._sent(parts)
            except OSError as error:
                logger.warning("connection of %s: it cannot be written to: %s", self.user, error)
                self.abort()
                return
            if not parts:
                return
        is_first = not self._waiting
        self._waiting.extend([bytes(part) for part in parts])
        if is_first:
            self._watch()
        self.waiting_bytes += sum([len(part) for part in parts])
        self._count_output()
        if self.outlet.is_writable and (
            self.waiting_bytes > HIGH_WATER_BYTES or not self.hub.vhost.has_output_room(self.user)
        ):
            self._take_no_more()

    @property
    def is_read(self) -> bool:
        """Whether the client is read when it sends something."""
        return not self._paused and not self._is_closed

    def _take_no_more(self) -> None:
        """Too much waits: the core delivers nothing, the client is not read."""
        self.outlet.is_writable = False
        self.pause("output")
        self._writable(False)

    def _take_more(self) -> None:
        """The client has taken most of it."""
        if not self._is_ending:
            self.outlet.is_writable = True
            self._writable(True)
        self.resume("output")

    def _count_output(self) -> None:
        """Report what waits for the socket: it is memory too."""
        change = self.waiting_bytes - self._counted_bytes
        if change:
            self._counted_bytes = self.waiting_bytes
            self.hub.vhost.add_output(self.user, change)

    def _writable(self, is_writable: bool) -> None:
        handler = self.handler
        if handler is not None:
            try:
                handler.writable(is_writable)
            except Exception as error:  # noqa: BLE001 - it is logged and answered
                self.unexpected(error)
            self.hub.wake()

    # ---- what the outlet and the hub want ------------------------------------------------------

    def pause(self, account: str) -> None:
        """Do not read the client, for this reason, until it is resumed for it."""
        was_read = not self._paused
        self._paused.add(account)
        if was_read:
            self._watch()

    def resume(self, account: str) -> None:
        """Read the client again, unless there is another reason not to."""
        if account in self._paused:
            self._paused.discard(account)
            self._silent_halves = 0
            if not self._paused:
                self._watch()

    def end(self, *, client_first: bool) -> None:
        """Shut our half when everything has been sent, unless the client is to do so first, and
        wait a little for the client's half."""
        if self._is_ending:
            return
        self._is_ending = True
        waits = bool(self._waiting)
        if not client_first:
            if waits:
                self._must_shut = True
            else:
                self._shut()
        if self._is_closed:
            return
        self._paused.clear()
        self._watch()
        # What waits for the socket goes first, so a client that takes it slowly has more time.
        self._abort_later(CLOSING_S if waits else self.hub.linger_s)

    def shutdown(self, code: int, text: str) -> None:
        """Send the client this reply; it has CLOSING_S to answer."""
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
        """Limit the time to close, after the client was sent a close. Nothing that it says now but
        close-ok is understood, and not even that if its frames cannot be told apart any more."""
        handler = self.handler
        if self._abort_s < 0 and handler is not None:
            self._abort_later(self.hub.linger_s if handler.connection.is_broken else CLOSING_S)

    def unexpected(self, error: Exception) -> None:
        """Handle an error that is not an answer: it stops the vhost if its storage has failed, else
        it closes this connection."""
        if self.hub.fail_if_stopped(error):
            return
        handler = self.handler
        name = handler.facts.name if handler is not None else ""
        logger.error("connection %s: an internal error", name, exc_info=error)
        self.shutdown(INTERNAL_ERROR, f"{type(error).__name__}: {error}")

    def _abort_later(self, seconds: float) -> None:
        self._abort_s = monotonic() + seconds
        self._wait()

    def _wait(self) -> None:
        """Have the hub call `timed` when it is time."""
        if not self._is_closed:
            at_s = self._beat_s
            if 0 <= self._abort_s < at_s or at_s < 0:
                at_s = self._abort_s
            self.hub.call_at(self, at_s)

    def timed(self) -> None:
        """Do what is due by time."""
        now_s = monotonic()
        if 0 <= self._abort_s <= now_s:
            self.abort()
        elif 0 <= self._beat_s <= now_s:
            self._beat()
        self._wait()

    # ---- heartbeats ----------------------------------------------------------------------------

    def _beat_later(self) -> None:
        handler = self.handler
        if handler is not None:
            self._beat_s = monotonic() + handler.facts.heartbeat_s / 2
            self._wait()

    def _beat(self) -> None:
        """Run every half interval."""
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
        self._has_received = False
        self._has_sent = False
        self._beat_later()


class TlsSession(Session):
    """A client of TLS 1.3, whose socket has records. What waits to be sent is encrypted."""

    def __init__(self, hub: "Hub", sock: socket.socket, user: str, records: TlsRecords) -> None:
        super().__init__(hub, sock, user)
        self._records: TlsRecords = records
        self._has_said_goodbye: bool = False

    def _read(self) -> None:
        records = self._records
        try:
            data = self._sock.recv(self._read_bytes)
            if not data:
                self._no_more()
                return
            plain = records.opened(data)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.abort()
            return
        except WrongRecord as error:
            logger.debug("connection of %s: TLS: %s", self.user, error)
            self._say_goodbye(error.alert)
            self.abort()
            return
        answer = records.answer()
        if answer:
            super().write([answer])
        if plain:
            self.received(plain, len(data))
        if records.is_ended and not self._is_closed:
            self._no_more()

    def write(self, parts: list[Piece]) -> None:
        if not self._is_ending:
            super().write(self._records.sealed(parts))

    def _shut(self) -> None:
        self._say_goodbye(CLOSE_NOTIFY)
        super()._shut()

    def abort(self) -> None:
        if not self._is_closed:
            self._say_goodbye(CLOSE_NOTIFY)
        super().abort()

    def _say_goodbye(self, alert: int) -> None:
        """Send an alert, if the client has all that was before it and the socket takes it."""
        if not self._has_said_goodbye and not self._waiting:
            self._has_said_goodbye = True
            try:
                self._sock.send(self._records.goodbye(alert))
            except OSError:
                pass


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

    @property
    def turn(self) -> Callable[[], bool]:
        """Delivers, writes, confirms. Returns True if there is more to do."""

    def completed(self) -> bool:
        """Take results of slow work, then do a turn."""

    def add_output(self, user: str, delta: int) -> None:
        """Count bytes that wait to be sent to this user; negative: fewer."""

    def has_output_room(self, user: str) -> bool:
        """Return whether more may wait for this user's connections."""

    def tick(self) -> float:
        """Do what is due by time. Returns the seconds until the next tick."""


def _nobody_counts(_user: str) -> None:
    """Do nothing: the default for owners that do not count connections."""


def _nothing() -> None:
    """Do nothing: the default for owners that do not follow ticks."""


class Hub(Turns):
    """The turns of a vhost. on_failed(error): called once, if the vhost fails."""

    def __init__(
        self, vhost: Turning, on_failed: Callable[[BaseException], None], poller: Poller,
        in_flight: InFlight | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.poller: Poller = poller
        self.in_flight: InFlight = in_flight or InFlight(monotonic)
        self.vhost: Turning = vhost
        self.sessions: set[Session] = set()
        self.pace: ReadPace = ReadPace()
        self.failed: BaseException | None = None
        # Called with the user of a session that ended, and after each tick of the vhost.
        self.on_gone: Callable[[str], None] = _nobody_counts
        self.on_tick: Callable[[], None] = _nothing
        self.linger_s: float = LINGER_S
        self._on_failed: Callable[[BaseException], None] = on_failed
        self._on_empty: Callable[[], None] = _nothing
        self._is_running: bool = False  # a step of the vhost runs; its output is flushed after it
        self._is_stopped: bool = False
        self._output: list[SocketOutlet] = []
        self._ended: list[Session] = []  # dropped, and not yet taken out of the vhost
        self._slots: dict[int, dict[Session, None]] = {}  # sessions that wait, by when
        self._first_slot: int = NEVER  # the earliest, or an earlier one that is empty by now
        self._vhost_tick_s: float = -1.0  # when the vhost's next tick is due; negative: never

    def start(self) -> None:
        """Start, with the first tick."""
        self.poller.turns = self
        self.tick()

    def stop(self) -> None:
        """Stop turns and ticks. Drops the remaining sessions."""
        self._is_stopped = True
        self.is_awake = False
        self.tick_at = -1.0
        for session in list(self.sessions):
            session.abort()
        self._take_out()

    # ---- turns ---------------------------------------------------------------------------------

    def wake(self) -> None:
        """Have a turn run."""
        if not self._is_stopped:
            self.is_awake = True

    def has_output(self, outlet: SocketOutlet) -> None:
        """Have the outlet flushed when the turn ends."""
        self._output.append(outlet)
        if not self._is_running:
            self.wake()

    def turn(self) -> None:
        self.is_awake = False
        if self._is_stopped:
            return
        if self._ended:
            self._take_out()
        self._run(self.vhost.turn)
        soon = monotonic() + SOON_S
        if self._vhost_tick_s > soon:
            self._vhost_tick_s = soon
            self._set_tick()

    def completed(self) -> None:
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
        output = self._output
        if output:
            self._output = []
            for outlet in output:
                outlet.flush()

    def tick(self) -> None:
        self.tick_at = -1.0
        if self._is_stopped:
            return
        now_s = monotonic()
        self._time(int(now_s * SLOTS_PER_S))
        if self._vhost_tick_s <= now_s:
            self._run(self._tick)
            self.on_tick()
        self._set_tick()

    def _tick(self) -> bool:
        self._vhost_tick_s = monotonic() + 1.0  # if the tick fails
        seconds = max(self.vhost.tick(), 0.0)
        now_s = monotonic()
        if seconds >= IDLE_AGAIN_S:
            seconds = until_next(now_s, IDLE_AGAIN_S)
        self._vhost_tick_s = now_s + seconds
        return False

    def _set_tick(self) -> None:
        """Have `tick` called when the next time is due."""
        if not self._is_stopped:
            self.tick_at = self._vhost_tick_s
            if self._first_slot >= 0:
                self.tick_at = min(self.tick_at, self._first_slot / SLOTS_PER_S)

    # ---- times of sessions ---------------------------------------------------------------------

    def call_at(self, session: Session, at_s: float) -> None:
        """Call session.timed at that time (monotonic), up to a slot later, instead of when it was
        to be called before; negative: never."""
        slot = NEVER if at_s < 0 else int(at_s * SLOTS_PER_S) + 1
        if slot == session.slot:
            return
        self._leave_slot(session)
        session.slot = slot
        if slot < 0:
            return
        self._slots.setdefault(slot, {})[session] = None
        if not 0 <= self._first_slot <= slot:
            self._first_slot = slot
            self._set_tick()

    def _leave_slot(self, session: Session) -> None:
        of_slot = self._slots.get(session.slot)
        if of_slot is not None:
            of_slot.pop(session, None)
            if not of_slot:
                del self._slots[session.slot]
        session.slot = NEVER

    def _time(self, now: int) -> None:
        """Call the sessions of the slots that are over."""
        while 0 <= self._first_slot <= now:
            of_slot = self._slots.pop(self._first_slot, {})
            for session in list(of_slot):
                session.slot = NEVER
                session.timed()
            self._first_slot = min(self._slots, default=NEVER)

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

    def adopt(
        self, sock: socket.socket, user: str = "", records: TlsRecords | None = None
    ) -> Session:
        """Return a session of this user on a connected socket, encrypted if it has records. The
        caller starts it."""
        if records is None:
            session = Session(self, sock, user)
        else:
            session = TlsSession(self, sock, user, records)
        self.sessions.add(session)
        return session

    def has_ended(self, session: Session) -> None:
        """Have a dropped session taken out of the vhost when the next turn begins."""
        self._ended.append(session)
        self.wake()

    def _take_out(self) -> None:
        ended = self._ended
        self._ended = []
        for session in ended:
            session.ended()

    def forget(self, session: Session) -> None:
        """Remove a session that has ended."""
        self.sessions.discard(session)
        self._leave_slot(session)
        self.on_gone(session.user)
        if not self.sessions:
            self._on_empty()

    async def close_all(self, code: int, text: str, seconds: float) -> None:
        """Close all connections with this reply. Waits until they have gone, `seconds` at most."""
        if not self.sessions:
            return
        gone = asyncio.Event()
        self._on_empty = gone.set
        for session in list(self.sessions):
            session.shutdown(code, text)
        waiting = asyncio.ensure_future(gone.wait())
        await asyncio.wait([waiting], timeout=seconds)
        waiting.cancel()
        self._on_empty = _nothing
