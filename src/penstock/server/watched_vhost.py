"""WatchedVhost: one vhost's process as the supervisor sees it.

watched_process starts it, watches it and starts it again. When a vhost fails, its connections end;
clients that connect again find it as of its last confirm. While it is down, opening it raises
VhostDown with the reason. The lock of the vhost's directory prevents a second process in any case.

An operator may hold a vhost: it is stopped, and opening it does not start it, until it is released.
node.db keeps that over a restart of the broker (access.users).

**Requests that end the process.** The process writes what it handles to shared memory
(broker.in_flight). When it dies, that request is blamed, unless the cause was a disk error, a
SIGKILL from outside in the first LONG_S of the request, or a process stopped by SIGSTOP. A request
(user and operation) that is blamed for two deaths within vhost_refusal_s is refused for
vhost_refusal_s: an operation by the vhost's process, a user whose messages ended it by the
supervisor at login. Nobody is blamed for what others have added to its cost (in_flight.SHARED).

News beyond those of all processes:

    to it     start (name, path, settings, refused; with the shared memory of in_flight)
              connection (facts, identity, bytes already read, of TLS its records; a socket)
              http (with a socket: its link to the HTTP process, which calls operations, too)
              memory (bytes) · identity, close_user (permissions changed)
              limits (set by operators) · events (is_on: somebody wants events)
              may (question, is_allowed, valid_s: of broker.asked_rights)
              renewed (connection, identity: what a new secret allows, null: nothing)
    from it   memory_is
              gone (user): a client's connection has ended
              audit (entry, of the audit log) · event (event, headers)
              events_wanted (is_on: in this vhost, which has the exchange)
              tracing (is_on: the firehose)
              new_secret (connection, user, host, secret): answered with renewed
              may (question, of broker.asked_rights): answered with may
              pong, with depth_bytes, connections, rss_bytes, returned_bytes, counted_bytes,
              blocked_reason, clients_max
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
from functools import lru_cache
from typing import Final

from penstock.access.limits import LimitTable
from penstock.access.permissions import Identity
from penstock.broker import in_flight
from penstock.broker.connection_facts import ConnectionFacts
from penstock.clock import Clock
from penstock.config import Config
from penstock.errors import INTERNAL_ERROR, NOT_ALLOWED, AMQPConnectionError
from penstock.server import control
from penstock.server.children import PYTHON
from penstock.server.control import Facts
from penstock.server.descriptors import clients_max
from penstock.server.process_link import ProcessLink
from penstock.server.tls_records import TlsRecords
from penstock.server.watched_process import (
    DOWN,
    RUNNING,
    STARTING,
    STOPPED,
    STOPPING,
    WAITING_MAX,
    ProcessDown,
    WatchedProcess,
    entry_of,
    whole,
)

PROGRAM: Final = (*PYTHON, "penstock.server.vhost_process")
LARGE_BUDGET_BYTES: Final = 512 << 20
KEPT_BYTES_MOST: Final = 128 << 20
MAPPED_BYTES: Final = 8 << 20  # larger ones are mapped, and returned to the system at once
PAD_BYTES: Final = 1 << 20
LONG_S: Final = 0.25  # a signal from outside seldom arrives during a request that takes longer
UNOPENED: Final = "nobody has opened it yet"  # a reason to be stopped
BY_OPERATOR: Final = "stopped by an operator"
BLAMED_MAX: Final = 64  # requests that are blamed for one death

logger = logging.getLogger(__name__)


def allocator(memory_bytes: int) -> dict[str, str]:
    """Return glibc's variables for the start of a process. With a large budget, freed memory is
    kept, up to a sixteenth of the budget, instead of returned to the system, which clears each page
    that it gives out: a third of the cost of a message of 16 KiB. With a small budget every MiB
    matters more. Variables that the operator has set win."""
    if memory_bytes < LARGE_BUDGET_BYTES:
        return {}
    return {
        "MALLOC_TRIM_THRESHOLD_": str(min(memory_bytes >> 4, KEPT_BYTES_MOST)),
        "MALLOC_MMAP_THRESHOLD_": str(MAPPED_BYTES),
        "MALLOC_TOP_PAD_": str(PAD_BYTES),
    }


def _connection(identity_bytes: int, facts_bytes: int) -> Facts:
    return {"do": "connection", "identity_bytes": identity_bytes, "facts_bytes": facts_bytes}


@lru_cache(64)
def _connection_head(identity_bytes: int, facts_bytes: int) -> bytes:
    """Return the head of the news of a connection without TLS: most are the same."""
    return control.head_of(_connection(identity_bytes, facts_bytes))


class VhostDown(ProcessDown):
    """A vhost does not run. why: the reason."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"vhost '{name}'", why)
        self.name = name


class WatchedVhost(WatchedProcess):
    """The process of one vhost. path: its directory, which exists. on_down(vhost): called when it
    goes down. program: as in WatchedProcess. limits: of users and vhosts, sent when it starts.

    Of the last pong: depth_bytes, connections, rss_bytes, returned_bytes (RAM that the process has
    given back to the system since its start), counted_bytes (RAM for messages),
    blocked_reason (why publishers wait: "memory", "disk", "descriptors"; "" if they do not),
    clients_max (how many clients its process has descriptors for). memory_bytes: its share, as last
    sent.
    """

    def __init__(
        self,
        name: str,
        path: str,
        settings: Config,
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
        self.returned_bytes = 0
        self.counted_bytes = 0
        self.blocked_reason = ""
        self.is_tracing = False
        self.clients_max = clients_max(settings.nofile)
        self.on_memory: Callable[[], None] | None = None  # called when it has set its share
        self.on_audit: Callable[[Facts], None] | None = None  # called with entries
        self.on_event: Callable[[str, Facts], None] | None = None  # called with name and headers
        self.on_events_wanted: Callable[[bool], None] | None = None
        self._are_events_wanted = False
        # called when a client has given a new secret; it is answered with `renewed`
        self.on_new_secret: Callable[[WatchedVhost, Facts], None] | None = None
        # called when rights are asked about; it is answered with `may`
        self.on_rights_asked: Callable[[WatchedVhost, Facts], None] | None = None
        self._on_down = on_down
        self._shared: mmap.mmap | None = None  # what its process is handling
        self._last = bytes(in_flight.SIZE)  # a copy of it when the process ended
        self._blamed: dict[tuple[str, str], float] = {}  # (user, operation) -> time of the death
        self._refused: dict[tuple[str, str], float] = {}  # the same -> until when

    def start(self) -> None:
        """Start it if it is stopped and not held. Does nothing if it runs or is down."""
        if not self.is_held:
            super().start()

    async def hold(self) -> None:
        """Stop it in order, and keep it stopped until it is released."""
        self.is_held = True
        await self.stop()
        if self.state == DOWN:
            self.state, self.why = STOPPED, ""

    async def release(self) -> None:
        """Start it with its failures forgotten, also if it is down. Raises ProcessDown."""
        self.is_held = False
        if self.state == STOPPING:
            await self.stop()
        await self.restart()

    def reason(self) -> str:
        """Return why it does not serve, or refuses requests; "" otherwise. One line, for
        operators."""
        if self.is_held:
            text = BY_OPERATOR if self.state == STOPPED else f"is {BY_OPERATOR}"
            return text + (f"; {_first_line(self.why)}" if self.why else "")
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
            why = self._waits_for()
            if why:
                return why
            if self.last_failure:
                return f"starts again after: {_first_line(self.last_failure)}"
            return "starts"
        refused = [
            f"refuses {one['operation']} of user '{one['user']}' for {one['seconds']:.0f} s"
            for one in self.refused()
        ]
        if self.silent_s:
            return f"has not answered for {self.silent_s:.0f} s"
        crowded = self.crowded()
        return "; ".join([f"takes no more clients: {crowded}", *refused] if crowded else refused)

    def unserved(self) -> str:
        """Return why clients are not served although it is not down: its start waits for something,
        or it does not answer; "" otherwise."""
        return self.reason() if self._waits_for() or self.silent_s else ""

    def _waits_for(self) -> str:
        if self.state == STARTING and self.blocked_reason:
            return f"starts once there is more {self.blocked_reason}"
        return ""

    def crowded(self) -> str:
        """Return why it takes no more clients although it serves; "" if it takes more."""
        if self.state != RUNNING or self.clients.total() < self.clients_max:
            return ""
        return (
            f"its process has {self.clients.total()} connections, and no descriptors for more "
            f"({self._settings.nofile} by ulimit -n, a part of them for files)"
        )

    def hand_over(
        self, opened: ConnectionFacts, identity: Identity, leftover: bytes, sock: socket.socket,
        records: TlsRecords | None = None,
    ) -> None:  # fmt: skip
        """Hand a client over, and close our copy of its socket. records: of its TLS. Raises
        AMQPConnectionError 541 if the process takes no more; then the caller still owns both."""
        if self.state != RUNNING or self._link is None:
            raise self.down()
        if self.silent_s:
            text = f"vhost '{self.name}' has not answered for {self.silent_s:.0f} s"
            raise AMQPConnectionError(INTERNAL_ERROR, text, 10, 40)
        if self._link.waiting >= min(WAITING_MAX, max(self._settings.nofile >> 4, 1)):
            text = f"vhost '{self.name}' does not take connections"
            raise AMQPConnectionError(INTERNAL_ERROR, text, 10, 40)
        who, facts = identity.text, opened.to_bytes()
        head = _connection_head(len(who), len(facts))
        if records is not None:
            head = control.head_of(
                {**_connection(len(who), len(facts)), "records": records.facts()}
            )
        data = b"".join((who, facts, leftover))
        self._link.write(control.packets(control.NEWS, 0, head, (data,)), sock)
        self.clients[opened.user] += 1

    async def http_link(self) -> socket.socket:
        """Return an end of a new link to its process, for the HTTP process. Starts it if need be.
        Raises ProcessDown."""
        await self.ready()
        ours, theirs = control.pair()
        assert self._link is not None
        self._link.send({"do": "http"}, b"", theirs)
        return ours

    def check_refused(self, user: str) -> None:
        """Raise AMQPConnectionError 530 if messages of this user have ended the process twice."""
        until_s = self._refused.get((user, in_flight.MESSAGES), 0.0)
        left_s = until_s - self._clock.monotonic() if until_s else 0.0
        if left_s > 0:
            text = (
                f"access to vhost '{self.name}' refused for user '{user}' for {left_s:.0f} s: its "
                "process ended twice while messages of this user were handled"
            )
            raise AMQPConnectionError(NOT_ALLOWED, text, 10, 40)

    def refused(self) -> list[dict[str, object]]:
        """Return the requests that are refused now: {user, operation, seconds}."""
        now = self._clock.monotonic()
        self._refused = {key: until_s for key, until_s in self._refused.items() if until_s > now}
        return [
            {"user": user, "operation": operation, "seconds": round(until_s - now, 1)}
            for (user, operation), until_s in self._refused.items()
        ]

    def want_events(self, *, is_on: bool) -> None:
        """Have it send events, or none any more."""
        self._are_events_wanted = is_on
        self.notify("events", is_on=is_on)

    def set_memory(self, number: int) -> None:
        """Send its share of the memory, in bytes."""
        self.memory_bytes = number
        self.notify("memory", bytes=number)

    def send_limits(self) -> None:
        """Send the limits of users and vhosts, which have changed; also to a process that starts,
        which was sent those of before."""
        if self._link is not None and self.state in (STARTING, RUNNING):
            self._link.send({"do": "limits", **self._limits.facts()})

    # ---- as a watched process ------------------------------------------------------------------

    def _begin_life(self, link: ProcessLink) -> None:
        settings = self._settings.vhost_settings(self.memory_bytes)
        start = {"do": "start", "name": self.name, "path": self.path, "settings": settings,
                 "limits": self._limits.facts(), "events": self._are_events_wanted}  # fmt: skip
        handed = None
        if sys.platform == "linux":
            handed = os.fdopen(os.memfd_create("penstock-in-flight"), "wb")
            os.ftruncate(handed.fileno(), in_flight.SIZE)
            self._shared = mmap.mmap(handed.fileno(), in_flight.SIZE)
        link.send({**start, "refused": self.refused()}, b"", handed)

    def _has_started(self) -> None:
        self.set_memory(self.memory_bytes)
        self.want_events(is_on=self._are_events_wanted)

    def _on_own_message(self, do: str, facts: Facts) -> None:
        if do == "pong":
            self.depth_bytes = whole(facts["depth_bytes"])
            self.connections = whole(facts["connections"])
            self.rss_bytes = whole(facts["rss_bytes"])
            self.returned_bytes = whole(facts["returned_bytes"])
            self.counted_bytes = whole(facts["counted_bytes"])
            self.blocked_reason = str(facts["blocked_reason"])
            self.clients_max = whole(facts["clients_max"])
            if self._waits_for():
                self._settle()  # whoever waits is told
        elif do == "gone":
            user = str(facts["user"])
            self.clients[user] -= 1
            if self.clients[user] <= 0:
                del self.clients[user]
        elif do == "memory_is" and self.on_memory is not None:
            self.on_memory()
        elif do == "audit" and self.on_audit is not None:
            self.on_audit(entry_of(facts))
        elif do == "event" and self.on_event is not None:
            headers = facts["headers"]
            assert isinstance(headers, dict)
            self.on_event(str(facts["event"]), headers)
        elif do == "events_wanted" and self.on_events_wanted is not None:
            self.on_events_wanted(bool(facts["is_on"]))
        elif do == "tracing":
            self.is_tracing = bool(facts["is_on"])
        elif do == "may" and self.on_rights_asked is not None:
            self.on_rights_asked(self, facts)
        elif do == "new_secret" and self.on_new_secret is not None:
            self.on_new_secret(self, facts)

    def _environment(self) -> dict[str, str]:
        return allocator(self.memory_bytes)

    def _is_down(self) -> None:
        self._on_down(self)

    def _life_ended(self) -> None:
        super()._life_ended()
        self.clients.clear()
        self.connections = self.depth_bytes = self.counted_bytes = 0
        self.rss_bytes = self.returned_bytes = 0
        self.blocked_reason = ""
        self.is_tracing = False
        self.clients_max = clients_max(self._settings.nofile)
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
        is_shared = state == in_flight.SHARED
        is_messages = is_shared or operation == in_flight.MESSAGES
        if is_from_outside and (is_messages or now - since_s < LONG_S):
            return
        if is_shared:
            logger.warning(
                "%s ended while it handled %s of user %r: nobody is refused, because others may "
                "have bound the queues (penstock list_bindings)", self.who, operation, user,
            )  # fmt: skip
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
