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
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Final, Protocol

from penstock.broker.in_flight import InFlight
from penstock.errors import StoppedError
from penstock.server.read_pace import ReadPace
from penstock.server.session import Session, SocketOutlet

SOON_S: Final = 0.05  # the next tick after a turn is due at most so much later

logger = logging.getLogger(__name__)


class Failing(Protocol):
    """What the hub uses of an engine. failed: None, or why it has stopped."""

    failed: BaseException | None


class Turning(Protocol):
    """What the hub uses of a vhost."""

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
