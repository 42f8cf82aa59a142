"""WatchedVhost: one vhost's process as the supervisor sees it.

Started when somebody wants it, watched, started again: that is watched_process. Clients of a vhost
that failed see their connections end, come again, and find the vhost as it was at its last confirm.
While it is down whoever wants to open it is told why (VhostDown). The lock of the vhost's directory
keeps a second process out in any case.

An operator may hold it: it is stopped then, and started by nobody who opens it, until it is let go.
That this outlives the broker is the supervisor's business.

**Requests that end it.** The process writes what it handles to memory that both share
(broker.in_flight). When it dies, that request is blamed, unless the cause was a disk error, a
SIGKILL from outside in the first LONG_S of the request, or a process that was stopped by SIGSTOP.
Blamed for two deaths within vhost_refusal_s, a request (user and operation) is refused for
vhost_refusal_s: an operation by the vhost's process, a user whose plain messages ended it by the
supervisor at login.

What it is told and says beyond the messages of all processes:

    to it     start (name, path, settings, refused; with memory) · connection (with a socket)
              memory (bytes) · identity · close_user
    from it   memory_is
              pong, with depth_bytes, connections, rss_bytes, counted_bytes, blocked_reason

Not here: which vhosts there are, what is done about one that is down (supervisor), the process
itself (vhost_process).
"""

import logging
import mmap
import os
import signal
import socket
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final

from penstock.access.limits import LimitTable
from penstock.access.permissions import Identity
from penstock.broker import in_flight
from penstock.broker.connection_facts import ConnectionFacts
from penstock.clock import Clock
from penstock.errors import INTERNAL_ERROR, NOT_ALLOWED, AMQPConnectionError
from penstock.server.process_link import Facts, Link
from penstock.server.serve_settings import ServeSettings
from penstock.server.watched_process import (
    DOWN,
    PYTHON,
    RUNNING,
    STARTING,
    STOPPED,
    STOPPING,
    WAITING_MAX,
    ProcessDown,
    WatchedProcess,
    whole,
)

PROGRAM: Final = (*PYTHON, "penstock.server.vhost_process")
ROOMY_BYTES: Final = 512 << 20
KEPT_BYTES_MOST: Final = 128 << 20
MAPPED_BYTES: Final = 8 << 20  # larger ones are mapped, and go back to the system at once
PAD_BYTES: Final = 1 << 20
LONG_S: Final = 0.25  # a signal from outside seldom comes while one request is handled for so long
UNOPENED: Final = "nobody has opened it yet"  # why it is stopped
BY_OPERATOR: Final = "stopped by an operator"
BLAMED_MAX: Final = 64  # requests that are remembered after one death

logger = logging.getLogger(__name__)


def allocator(memory_bytes: int) -> dict[str, str]:
    """What glibc reads at the start of a process. Memory that bodies lived in is used again, up to
    a sixteenth of the budget, instead of given back to the system, which clears each page that it
    gives out: a third of the cost of a message of 16 KiB. With a small budget every MiB counts more
    than that. An operator's own settings come first."""
    if memory_bytes < ROOMY_BYTES:
        return {}
    return {
        "MALLOC_TRIM_THRESHOLD_": str(min(memory_bytes >> 4, KEPT_BYTES_MOST)),
        "MALLOC_MMAP_THRESHOLD_": str(MAPPED_BYTES),
        "MALLOC_TOP_PAD_": str(PAD_BYTES),
    }


class VhostDown(ProcessDown):
    """It does not run. why: what keeps it from it."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"vhost '{name}'", why)
        self.name = name


class WatchedVhost(WatchedProcess):
    """`path`: its directory, which is there. on_down(vhost): it is down from now on. program:
    what is started, with the descriptor of its end of the link behind. limits: of users and vhosts,
    which it is told when it starts.

    Of the last pong: depth_bytes, connections, rss_bytes, counted_bytes (RAM for messages),
    blocked_reason (why publishers wait: "memory", "disk"; "": they do not). memory_bytes: what it
    was told.
    """

    def __init__(
        self,
        name: str,
        path: str,
        settings: ServeSettings,
        clock: Clock,
        on_down: Callable[["WatchedVhost"], None],
        program: Sequence[str] = PROGRAM,
        limits: LimitTable | None = None,
    ) -> None:
        super().__init__(f"vhost {name!r}", settings, clock, program)
        self.name = name
        self.path = path
        self.is_held = False  # an operator has stopped it
        self.clients: Counter[str] = Counter()  # user -> connections that were handed over
        self._limits = LimitTable(settings.limits) if limits is None else limits
        self.memory_bytes = 0
        self.depth_bytes = 0
        self.connections = 0
        self.rss_bytes = 0
        self.counted_bytes = 0
        self.blocked_reason = ""
        self.on_memory: Callable[[], None] | None = None  # it has taken what it was told
        self._on_down = on_down
        self._shared: mmap.mmap | None = None  # what its process is handling
        self._last = bytes(in_flight.SIZE)  # what that said when the process ended
        self._blamed: dict[tuple[str, str], float] = {}  # (user, operation) -> when it ended it
        self._refused: dict[tuple[str, str], float] = {}  # the same -> until when

    def start(self) -> None:
        """Have it run; nothing happens if it does, is down, or is held."""
        if not self.is_held:
            super().start()

    async def hold(self) -> None:
        """Stop it in order, and have nobody start it until it is let go."""
        self.is_held = True
        await self.stop()
        if self.state == DOWN:
            self.state, self.why = STOPPED, ""

    async def release(self) -> None:
        """It runs again, with its failures forgotten; at once also if it is down. ProcessDown."""
        self.is_held = False
        if self.state == STOPPING:
            await self.stop()
        await self.restart()

    def reason(self) -> str:
        """Why it does not serve, or not everybody; "" if it does. One line, for operators."""
        if self.is_held:
            told = BY_OPERATOR if self.state == STOPPED else f"is {BY_OPERATOR}"
            return told + (f"; {_first_line(self.why)}" if self.why else "")
        if self.state == STOPPED:
            return UNOPENED if self.starts == 0 else "stopped"
        if self.state == STOPPING:
            return "stops"
        if self.state == DOWN:
            retry_s = self.retry_in_s
            again = "" if retry_s is None else f"; started again in {retry_s:.0f} s"
            failed_at = datetime.fromtimestamp(self.failed_ms / 1000, UTC).astimezone()
            until = failed_at.strftime("%Y-%m-%d %H:%M:%S")  # as lines of the log begin
            return (
                f"failed: {_first_line(self.why)}{again}; the log has more, in lines of "
                f'"{self.who}" until {until}'
            )
        if self.state == STARTING:
            if self.blocked_reason:
                return f"starts once there is more {self.blocked_reason}"
            if self.last_failure:
                return f"starts again after: {_first_line(self.last_failure)}"
            return "starts"
        return "; ".join(
            f"refuses {one['operation']} of user '{one['user']}' for {one['seconds']:.0f} s"
            for one in self.refused()
        )

    def hand_over(
        self, opened: ConnectionFacts, identity: Identity, leftover: bytes, sock: socket.socket
    ) -> None:
        """The client is the vhost's from now on, and the socket closed here. AMQPConnectionError
        541: it takes no more; the socket is the caller's still."""
        if self.state != RUNNING or self._link is None:
            raise self.down()
        if self._link.waiting >= WAITING_MAX:
            text = f"vhost '{self.name}' does not answer"
            raise AMQPConnectionError(INTERNAL_ERROR, text, 10, 40)
        message: Facts = {
            "do": "connection", "facts": opened.to_json(), "identity": identity.facts(),
        }  # fmt: skip
        self._link.send(message, leftover, sock)
        self.clients[opened.user] += 1

    def check_refused(self, user: str) -> None:
        """AMQPConnectionError 530: messages of this user have ended the process twice."""
        left_s = self._refused.get((user, in_flight.MESSAGES), 0.0) - self._clock.monotonic()
        if left_s > 0:
            text = (
                f"access to vhost '{self.name}' refused for user '{user}' for {left_s:.0f} s: its "
                "process ended twice while messages of this user were handled"
            )
            raise AMQPConnectionError(NOT_ALLOWED, text, 10, 40)

    def refused(self) -> list[dict[str, object]]:
        """The requests that are refused now: {user, operation, seconds}."""
        now = self._clock.monotonic()
        self._refused = {key: until_s for key, until_s in self._refused.items() if until_s > now}
        return [
            {"user": user, "operation": operation, "seconds": round(until_s - now, 1)}
            for (user, operation), until_s in self._refused.items()
        ]

    def set_memory(self, number: int) -> None:
        """Its part of the memory, in bytes."""
        self.memory_bytes = number
        self.notify("memory", bytes=number)

    # ---- as one of the processes ---------------------------------------------------------------

    def _begin_life(self, link: Link) -> None:
        settings = self._settings.vhost_settings(self.memory_bytes)
        start = {"do": "start", "name": self.name, "path": self.path, "settings": settings,
                 "limits": self._limits.facts()}  # fmt: skip
        handed = None
        if sys.platform == "linux":
            handed = os.fdopen(os.memfd_create("penstock-in-flight"), "wb")
            os.ftruncate(handed.fileno(), in_flight.SIZE)
            self._shared = mmap.mmap(handed.fileno(), in_flight.SIZE)
        link.send({**start, "refused": self.refused()}, b"", handed)

    def _on_other(self, do: str, facts: Facts) -> None:
        if do == "pong":
            self.depth_bytes = whole(facts["depth_bytes"])
            self.connections = whole(facts["connections"])
            self.rss_bytes = whole(facts["rss_bytes"])
            self.counted_bytes = whole(facts["counted_bytes"])
            self.blocked_reason = str(facts["blocked_reason"])
        elif do == "gone":
            user = str(facts["user"])
            self.clients[user] -= 1
            if self.clients[user] <= 0:
                del self.clients[user]
        elif do == "memory_is" and self.on_memory is not None:
            self.on_memory()

    def _environment(self) -> dict[str, str]:
        return allocator(self.memory_bytes)

    def _is_down(self) -> None:
        self._on_down(self)

    def _life_ended(self) -> None:
        super()._life_ended()
        self.clients.clear()
        self.connections = self.depth_bytes = self.rss_bytes = self.counted_bytes = 0
        self.blocked_reason = ""
        if self._shared is not None:
            self._last = self._shared[:]
            self._shared.close()
            self._shared = None

    def _forget_failures(self) -> None:
        super()._forget_failures()
        self._blamed.clear()
        self._refused.clear()

    def _failed(self, status: int) -> None:
        state, since_s, user, operation = in_flight.parsed(self._last)
        self._last = bytes(in_flight.SIZE)
        if state == in_flight.NOTHING or status in (0, -signal.SIGTERM):
            return
        now = self._clock.monotonic()
        is_from_outside = status == -signal.SIGKILL and not self._has_hung
        if is_from_outside and (operation == in_flight.MESSAGES or now - since_s < LONG_S):
            return
        period_s = self._settings.vhost_refusal_s
        key = (user, operation)
        before_s = self._blamed.pop(key, None)
        if before_s is not None and now - before_s <= period_s:
            self._refused[key] = now + period_s
            logger.error(
                "%s has ended twice while it handled %s of user %r: refused for %g s",
                self.who, operation, user, period_s,
            )  # fmt: skip
            return
        logger.warning("%s ended while it handled %s of user %r", self.who, operation, user)
        self._blamed[key] = now
        while len(self._blamed) > BLAMED_MAX:
            del self._blamed[next(iter(self._blamed))]

    def _why_down(self) -> str:
        return "an operator has stopped it" if self.is_held else super()._why_down()

    def _down(self, why: str) -> VhostDown:
        return VhostDown(self.name, why)


def _first_line(text: str) -> str:
    return text.partition("\n")[0]
