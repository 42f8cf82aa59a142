"""Supervisor: accepts connections, and starts and watches the other processes of the broker.

    lock of the data directory < node.db (users) < control socket, vhosts < listener, HTTP

It is not on the path of the data: a logged-in client's socket is handed over to the process of its
vhost. After that the supervisor only watches processes, divides the memory, and sends changes of
users. A vhost is started when a client first opens it; "/" at once, so that it serves when the
broker reports that it is ready.

An orderly stop (SIGTERM, SIGINT, the operation `stop`) first refuses new clients; then each vhost
closes its connections and writes a checkpoint; then the lock is released.

Errors of the start are raised: OSError with EADDRINUSE and "host:port", LockedError, VersionError,
CorruptionError and others of the directory. A vhost that cannot start raises nothing: it is down,
the ready line says why, and the others serve. HTTP is started after AMQP clients can connect: its
port is bound from the beginning, and earlier HTTP clients wait.

node_operations has the operations, watched_vhost one vhost, login the handshake.
"""

import asyncio
import logging
import os
import random
import signal
import socket
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from penstock.access.limits import MAX_CONNECTIONS, LimitTable
from penstock.access.permissions import GUEST_LOOPBACK, GUEST_OFF, Identity, is_loopback
from penstock.access.users import Users, verify
from penstock.broker.connection_facts import ConnectionFacts
from penstock.clock import Clock, SystemClock, date
from penstock.config import STOP_NODE, Config, with_changes
from penstock.errors import (
    INTERNAL_ERROR,
    NOT_ALLOWED,
    RESOURCE_ERROR,
    AMQPConnectionError,
    PenstockError,
    StoppedError,
)
from penstock.native import node_name
from penstock.operation_json import dumps
from penstock.operation_table import EVENTS, HOME
from penstock.server import tls_records, vhost_directories
from penstock.server.audit import LOGIN_FAILED, AuditEntries, AuditLog, VhostEntries
from penstock.server.authenticator import HASHERS, Authenticator
from penstock.server.backends import Backends, Refused, made_backends
from penstock.server.certificates import Certificates
from penstock.server.children import StartChild, Template, executed
from penstock.server.control import NAME, Facts
from penstock.server.descriptors import clients_max, raise_limit
from penstock.server.heap import Heap, find_trim
from penstock.server.listener import Listener, bind
from penstock.server.log_lines import LogTail, client_line, set_level, set_up
from penstock.server.login import Login, Origin
from penstock.server.memory_shares import MemoryShares
from penstock.server.node_events import AUTHENTICATED, authenticated, events_of
from penstock.server.node_operations import NodeOperations
from penstock.server.polling_loop import run
from penstock.server.process_link import ControlServer
from penstock.server.proxy_protocol import networks_of
from penstock.server.service_manager import ServiceManager
from penstock.server.tls_records import TlsRecords
from penstock.server.watched_http import ListeningSockets, WatchedHttp, WatchedTls
from penstock.server.watched_process import WatchedProcess
from penstock.server.watched_vhost import VhostDown, WatchedVhost
from penstock.storage.files.data_directory import DataDirectory
from penstock.storage.files.filesystem import OsFileSystem
from penstock.storage.files.user_store import READY, UserStore

DEFAULT_VHOST: Final = "/"
# What is spoken at a port.
AMQP: Final = "amqp"
HTTP: Final = "http"
AMQPS: Final = "amqps"
HTTPS: Final = "https"
PROMETHEUS: Final = "prometheus"
OPEN: Final = (10, 40)  # connection.open

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReadyFacts:
    """Facts of a broker that is ready. host, port, http_port: where it listens; None: not there.
    tls_port, https_port: of TLS. data: its directory. has_guest: guest may log in.
    problems: what keeps it from serving clients, such as a vhost that is down."""

    host: str
    port: int | None
    data: str
    memory_bytes: int
    mode: int
    http_port: int | None = None
    tls_port: int | None = None
    https_port: int | None = None
    has_guest: bool = True
    problems: tuple[str, ...] = ()


class Supervisor:
    """The broker's first process, on the running loop. `run` returns when it was stopped.
    start_child: how the others are started."""

    def __init__(
        self, settings: Config, log: LogTail, start_child: StartChild = executed
    ) -> None:  # fmt: skip
        self.settings = settings
        self.log = log
        self.start_child = start_child
        self.clock: Clock = SystemClock()
        self.started_s = self.clock.monotonic()
        self.started_ms = self.clock.wall_ms()
        self.vhosts: dict[str, WatchedVhost] = {}
        self.http: WatchedHttp | None = None
        self.tls: WatchedTls | None = None
        self.memory = MemoryShares(self.vhosts, settings.memory_bytes, settings.ping_s)
        self.limits = LimitTable(settings.limits)
        self.is_ready = asyncio.Event()
        self.service_manager = ServiceManager(os.environ, os.getpid(), self.clock)
        # Reads the configuration again, for SIGHUP. Raises PenstockError and OSError.
        self.reread: Callable[[], Config] | None = None
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._failed: BaseException | None = None
        self._answering: set[asyncio.Task[None]] = set()
        self.listener: Listener[ConnectionFacts]
        self.backends: Backends
        self.audits: dict[str, AuditEntries] = {}  # by the label of the metric
        self.events = VhostEntries(
            f"exchange {EVENTS} of vhost {HOME!r}", self._publish_events, self.clock
        )
        self._are_events_wanted = False
        self._hashing = ThreadPoolExecutor(HASHERS, "penstock-hash")
        self.users: Users
        self.data: DataDirectory

    def stop(self) -> None:
        """Stop in order."""
        self._stop.set()

    async def run(self, on_ready: Callable[[ReadyFacts], None]) -> None:
        """Run until stopped. Raises errors of the start, and StoppedError if a vhost is down and
        the strategy is to stop the node then."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self.stop)
        self._loop.add_signal_handler(signal.SIGHUP, self.reload)
        settings = self.settings
        fs = OsFileSystem(0)
        socks: dict[str, list[socket.socket]] = {}
        try:
            for name, port in self._wanted_ports():
                socks[name] = [] if port is None else bind(settings.host, port)
            if settings.tls.is_on:
                Certificates(settings.tls, fs)  # an error of the start, not of the process
            self.data = DataDirectory(
                fs, settings.data, log_directory=settings.storage.log_directory,
                spill_directory=settings.storage.spill_directory,
            )  # fmt: skip
            try:
                vhost_directories.secure(
                    fs, self.data.path, settings.data_permissions, self.data.places.values()
                )
                store = UserStore(f"{self.data.path}/{vhost_directories.USERS_FILE}")
                try:
                    self.users = Users(store, rng=random.SystemRandom())
                    self._read_limits()
                    vhost_directories.finish(self.data, self.users)
                    authenticator = Authenticator(
                        self.users,
                        self._hashing,
                        self.clock,
                        settings.guest,
                        settings.loopback_users,
                    )
                    self.backends = Backends(
                        made_backends(
                            settings.auth_backends, self.users, authenticator, self.clock,
                            settings.auth_oauth2, settings.auth_http,
                        ),
                        settings.guest,
                        settings.loopback_users,
                    )  # fmt: skip
                    self._open_audits(fs)
                    self.backends.on_refused = self._note_refusal
                    networks = networks_of(settings.proxy_protocol_from)

                    def login(
                        sock: socket.socket, on_held: Callable[[int], None],
                        origin: Origin | None = None, records: TlsRecords | None = None,
                    ) -> Login:  # fmt: skip
                        backends, clock = self.backends, self.clock
                        return Login(sock, backends, clock, on_held, origin, networks, records)

                    self.listener = Listener(
                        socks[AMQP], settings, self.clock, login, self._admit, self._admit_now
                    )
                    self._warn()
                    await self._serve(on_ready, socks)
                finally:
                    if isinstance(file := self.audits.get("file"), AuditLog):
                        file.close()
                    store.close()
            finally:
                self.data.close()
        finally:
            for some in socks.values():
                for sock in some:
                    sock.close()
            fs.close()
        if self._failed is not None:
            raise self._failed

    def _open_audits(self, fs: OsFileSystem) -> None:
        settings = self.settings
        if settings.audit_log:
            path = str(Path(settings.audit_log).absolute())
            self.audits["file"] = AuditLog(fs, path, settings.audit_log_bytes, self.clock)
        if settings.audit_vhost:
            self.audits["stream"] = VhostEntries(
                f"audit stream of vhost {settings.audit_vhost!r}", self._append_audit, self.clock
            )

    def _wanted_ports(self) -> list[tuple[str, int | None]]:
        """Return the listeners, and the port of each."""
        settings, tls = self.settings, self.settings.tls
        amqps, https = (tls.port, tls.http_port) if tls.is_on else (None, None)
        return [
            (AMQP, settings.port), (HTTP, settings.http_port), (AMQPS, amqps), (HTTPS, https),
            (PROMETHEUS, settings.prometheus_port),
        ]  # fmt: skip

    def _warn(self) -> None:
        """Log warnings about settings that may be unintended."""
        settings = self.settings
        for note in settings.notes:
            logger.warning("%s", note)
        most = clients_max(settings.nofile)
        for name in ("user_connections", "vhost_connections"):
            wanted = getattr(settings.limits, name)
            if wanted > most:
                logger.warning(
                    "limits.%s is %d, but a process may open %d files (ulimit -n): a vhost takes "
                    "at most %d connections", name, wanted, settings.nofile, most,
                )  # fmt: skip
        for name in sorted(self.users.vhosts()):
            stopped_ms = self.users.stopped_ms(name)
            if self.is_known(name) and stopped_ms is not None:
                since = date(stopped_ms)
                text = "vhost %r stays stopped: an operator has stopped it at %s, see start_vhost"
                logger.warning(text, name, since)
        # Resolved addresses: the setting may be a name such as localhost.
        hosts = {str(sock.getsockname()[0]) for sock in self.listener.socks}
        if (
            settings.guest == GUEST_LOOPBACK
            and not all(is_loopback(host) for host in hosts)
            and verify(b"guest", self.users.claim("guest"))
        ):
            logger.warning(
                "the broker listens at %s, and user 'guest' still has the password 'guest': it may "
                "connect from this machine only, but a proxy on this machine makes every client "
                'local; change_password guest, delete_user guest, or set guest = "off"',
                settings.host,
            )

    async def _serve(
        self, on_ready: Callable[[ReadyFacts], None], socks: dict[str, list[socket.socket]]
    ) -> None:
        """Start and serve. The directory, its lock and the users are open."""
        operations = NodeOperations(self)
        if socks[HTTP] or socks[HTTPS] or socks[PROMETHEUS]:
            self._make_http(socks, operations)
        if self.settings.tls.is_on:
            self._make_tls(socks)
        control = ControlServer(
            f"{self.data.path}/{NAME}", operations.call, operations.session_gone
        )
        sharing = self._loop.create_task(self.memory.run())
        watchdog = self._loop.create_task(self.service_manager.run())
        heap = Heap(self._loop, find_trim())
        heap.start()
        try:
            if DEFAULT_VHOST in self.users.vhosts():
                self.vhost(DEFAULT_VHOST).start()
            control.start()
            await self._wait_for_first()
            if self.settings.load_definitions and not self._stop.is_set():
                await operations.load_definitions(self.settings.load_definitions)
            heap.freeze_start()
            if not self._stop.is_set():
                self.listener.start()
                if self.tls is not None:
                    self.tls.start()
                    await self._wait_for(self.tls)
                if self.http is not None:
                    self.http.start()
                ports = self.ports()
                logger.info(
                    "listens at %s, %s, data %s", self.settings.host,
                    ", ".join(f"{name} {port}" for name, port in ports.items()),
                    self.settings.data,
                )  # fmt: skip
                self.is_ready.set()
                facts = ReadyFacts(
                    host=self.settings.host, port=ports.get(AMQP), data=self.settings.data,
                    memory_bytes=self.settings.memory_bytes, mode=self.settings.mode,
                    http_port=ports.get(HTTP), tls_port=ports.get(AMQPS),
                    https_port=ports.get(HTTPS),
                    has_guest=self.settings.guest != GUEST_OFF and self.users.knows("guest"),
                    problems=tuple(one.text for one in operations.problems()),
                )  # fmt: skip
                on_ready(facts)
                self.service_manager.ready()
            await self._stop.wait()
            logger.info("stops")
            self.service_manager.stopping()
        finally:
            await self.listener.stop()
            sharing.cancel()
            heap.stop()
            for entries in (self.audits.get("stream"), self.events):
                if isinstance(entries, VhostEntries):
                    await entries.close()
            # Clients of TLS get the last words of their vhosts through its process.
            first = [*self.vhosts.values(), *([self.http] if self.http is not None else [])]
            await asyncio.gather(*(process.stop() for process in first))
            if self.tls is not None:
                await self.tls.stop()
            await control.stop()
            watchdog.cancel()

    def _make_http(self, socks: dict[str, list[socket.socket]], operations: NodeOperations) -> None:
        """Make the process of HTTP."""
        self.http = WatchedHttp(
            socks[HTTP], self.settings, self.clock, self.users.facts, operations.call_for_http,
            operations.open_link, metrics_socks=socks[PROMETHEUS],
        )  # fmt: skip
        self.http.start_child = self.start_child
        self.http.on_audit = self.note
        self.http.on_line = partial(self.log.add, "http", None)
        self.users.on_change = self.http.push_users

    def _make_tls(self, socks: dict[str, list[socket.socket]]) -> None:
        """Make the process of TLS."""
        host = self.settings.host
        tls_records.load()
        takers: dict[str, Callable[..., object]] = {AMQP: self.listener.take}
        sockets = {AMQP: ListeningSockets(host, socks[AMQPS])}
        if self.http is not None:
            takers[HTTP] = self.http.take
            sockets[HTTP] = ListeningSockets(host, socks[HTTPS])
        self.tls = WatchedTls(sockets, self.settings, self.clock, takers)
        self.tls.start_child = self.start_child
        self.tls.on_line = partial(self.log.add, "tls", None)

    # ---- changed settings ----------------------------------------------------------------------

    def reload(self) -> None:
        """Read the configuration and the certificates again, and use of it what a running broker
        can use. If it is wrong, everything stays as it is."""
        self.service_manager.reloading()
        self._reload()
        self.service_manager.ready()

    def _reload(self) -> None:
        if self.tls is not None:
            self.tls.reload()
        if self.reread is None:
            return
        try:
            wanted = self.reread()
        except (PenstockError, OSError) as error:
            logger.error("the configuration cannot be used, nothing is changed: %s", error)
            return
        changed, live, others = with_changes(self.settings, wanted)
        self.use(changed)
        logger.info("the configuration is read again: %s", ", ".join(live) or "nothing to change")
        if others:
            text = "%s: changed in the configuration, but a running broker cannot take it: restart"
            logger.warning(text, ", ".join(others))

    def use(self, changed: Config) -> None:
        """Use other settings, which differ in live options only."""
        self.settings = changed
        set_level(changed.log_level)
        self.memory.set_whole(changed.memory_bytes)
        self.limits.set_defaults(changed.limits)
        for process in (*self.vhosts.values(), self.http, self.tls):
            if process is not None:
                process.use(changed)

    def ports(self) -> dict[str, int]:
        """Return the ports that are listened at, by the names of what is spoken there."""
        tls = {} if self.tls is None else self.tls.ports
        found = {
            AMQP: self.listener.socks[0].getsockname()[1] if self.listener.socks else None,
            HTTP: None if self.http is None else self.http.port,
            AMQPS: tls.get(AMQP),
            HTTPS: tls.get(HTTP),
            PROMETHEUS: None if self.http is None else self.http.metrics_port,
        }
        return {name: port for name, port in found.items() if port is not None}

    async def _wait_for_first(self) -> None:
        """Wait until "/" serves or is down, or the broker is stopped."""
        first = self.vhosts.get(DEFAULT_VHOST)
        if first is not None and not first.is_held:
            await self._wait_for(first)

    async def _wait_for(self, first: WatchedProcess) -> None:
        """Wait until a process serves or is down, or the broker is stopped."""
        ready = self._loop.create_task(first.ready())
        stop = self._loop.create_task(self._stop.wait())
        await asyncio.wait([ready, stop], return_when=asyncio.FIRST_COMPLETED)
        for task in (ready, stop):
            task.cancel()
        for outcome in await asyncio.gather(ready, stop, return_exceptions=True):
            if isinstance(outcome, VhostDown):
                others = sum(self.is_known(name) for name in self.users.vhosts()) - 1
                rest = f"{others} other vhosts are not affected" if others else "there is no other"
                logger.error("%s; %s", outcome, rest)

    # ---- vhosts --------------------------------------------------------------------------------

    def vhost(self, name: str) -> WatchedVhost:
        """Return the vhost of that name, which is known. Does not start it."""
        vhost = self.vhosts.get(name)
        if vhost is None:
            # Absolute: readers get the path of a stream, and may run anywhere on this machine.
            path = str(Path(self.data.vhost_path(vhost_directories.name_bytes(name))).absolute())
            vhost = WatchedVhost(
                name, path, self.settings, self.clock, self._on_down, limits=self.limits
            )
            vhost.start_child = self.start_child
            vhost.on_new_secret = self._renew
            vhost.on_rights_asked = self._ask_rights
            vhost.on_audit = self.note
            vhost.on_line = partial(self.log.add, "vhost", name)
            vhost.on_event = self._event
            vhost.on_events_wanted = self._want_events
            vhost.want_events(is_on=self._are_events_wanted)
            self.vhosts[name] = vhost
            vhost.is_held = self.users.stopped_ms(name) is not None
            if not vhost.is_held:
                self.memory.make_room(vhost)
        return vhost

    def is_known(self, name: str) -> bool:
        """Return whether there is such a vhost, completely made."""
        return self.users.state_of(name) == READY

    def _on_down(self, vhost: WatchedVhost) -> None:
        self._event("vhost.down", {"name": vhost.name, "node": node_name()})
        if self.settings.vhost_restart_strategy == STOP_NODE and not self._stop.is_set():
            self._failed = StoppedError(str(VhostDown(vhost.name, vhost.why)))
            self.stop()

    # ---- clients -------------------------------------------------------------------------------

    async def _admit(self, login: Login, opened: ConnectionFacts) -> None:
        """Hand a logged-in client over to its vhost. Raises AMQPConnectionError."""
        name = opened.vhost
        if self._are_events_wanted:
            self._event(AUTHENTICATED, authenticated(opened))
        if not self.is_known(name):
            raise AMQPConnectionError(NOT_ALLOWED, f"vhost {name} not found", *OPEN)
        await login.account.ask([name])
        _identity(login, opened)
        vhost = self.vhost(name)
        vhost.check_refused(opened.user)
        try:
            async with asyncio.timeout(self.settings.open_s):
                await vhost.ready()
            self._hand_over(login, opened, vhost)
        except VhostDown as error:
            raise AMQPConnectionError(INTERNAL_ERROR, str(error), *OPEN) from error
        except TimeoutError as error:
            text = f"vhost '{name}' has not started yet: {vhost.reason()}"
            raise AMQPConnectionError(INTERNAL_ERROR, text, *OPEN) from error

    def _admit_now(self, login: Login, opened: ConnectionFacts) -> bool:
        """Do what `_admit` does if nothing has to be waited for; return whether it was done."""
        vhost = self.vhosts.get(opened.vhost)
        if vhost is None or not vhost.is_ready or login.account.must_ask:
            return False
        if self._are_events_wanted or not self.is_known(opened.vhost):
            return False
        vhost.check_refused(opened.user)
        try:
            self._hand_over(login, opened, vhost)
        except VhostDown:  # just now
            return False
        return True

    def _hand_over(self, login: Login, opened: ConnectionFacts, vhost: WatchedVhost) -> None:
        identity = _identity(login, opened)
        self._check_connections(vhost, opened.user)
        vhost.hand_over(opened, identity, login.leftover, login.sock, login.records)
        logger.debug("connection %s: user %r, vhost %r", opened.name, opened.user, opened.vhost)

    def _read_limits(self) -> None:
        users = self.users
        self.limits.set(users.limits("vhost"), users.limits("user"), users.queue_types())

    def note(self, entry: Mapping[str, object]) -> None:
        """Write an entry of the audit, if somebody wants it."""
        if self.audits:
            timed = {"time": date(self.clock.wall_ms()), **entry}
            for audit in self.audits.values():
                audit.note(timed)
        if self._are_events_wanted:
            for event, headers in events_of(entry):
                self._event(event, headers)

    def _event(self, event: str, headers: Facts) -> None:
        """Have an event published, if somebody wants it."""
        if self._are_events_wanted:
            now_ms = self.clock.wall_ms()
            self.events.note({"event": event, "headers": headers, "time_ms": now_ms})

    def _want_events(self, is_on: bool) -> None:
        """Note that somebody has bound the exchange of events, or nobody any more."""
        self._are_events_wanted = is_on
        for vhost in self.vhosts.values():
            vhost.want_events(is_on=is_on)

    async def _publish_events(self, lines: list[str]) -> None:
        await self._of_known(HOME).call("publish_events", dumps({"lines": lines}, is_exact=True))

    def _of_known(self, name: str) -> WatchedVhost:
        if not self.is_known(name):
            raise VhostDown(name, "there is no such vhost, penstock add_vhost makes it")
        return self.vhost(name)

    async def _append_audit(self, lines: list[str]) -> None:
        """Append lines to the stream of the audit."""
        given = {"lines": lines, "bytes_max": self.settings.audit_log_bytes}
        vhost = self._of_known(self.settings.audit_vhost)
        await vhost.call("append_audit", dumps(given, is_exact=True))

    def _note_refusal(self, user: str, host: str, why: str) -> None:
        self.note({"event": LOGIN_FAILED, "user": user, "from": host, "why": why})

    def _renew(self, vhost: WatchedVhost, facts: Facts) -> None:
        """Answer a connection.update-secret of a client of the vhost."""
        self._answer_later(self._answer_renewal(vhost, facts))

    def _ask_rights(self, vhost: WatchedVhost, facts: Facts) -> None:
        """Answer a question about rights of a client of the vhost."""
        self._answer_later(self._answer_rights(vhost, facts))

    def _answer_later(self, answer: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(answer)
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _answer_rights(self, vhost: WatchedVhost, facts: Facts) -> None:
        question = facts["question"]
        assert isinstance(question, list)
        http = self.backends.http
        is_allowed = False
        try:
            is_allowed = http is not None and await http.may(vhost.name, question)
        except Exception:
            logger.exception("rights %s in vhost %r are denied", question, vhost.name)
        valid_s = 0.0 if http is None else http.rights_valid_s
        vhost.notify("may", question=question, is_allowed=is_allowed, valid_s=valid_s)

    async def _answer_renewal(self, vhost: WatchedVhost, facts: Facts) -> None:
        user, host = str(facts["user"]), str(facts["host"])
        secret = str(facts["secret"]).encode("utf-8", "surrogateescape")
        identity = None
        try:
            account = await self.backends.login(user, secret, host)
            await account.ask([vhost.name])
            why = f"it is of user '{account.user}'" if account.user != user else ""
            identity = None if why else account.identity(vhost.name)
            if identity is None:
                why = why or f"it allows no access to vhost '{vhost.name}'"
        except Refused as error:
            why = str(error)
        if identity is None:
            client_line(logger, host, "connection %s: its new secret is refused: user '%s' - %s",
                        facts["connection"], user, why)  # fmt: skip
        vhost.notify(
            "renewed", connection=facts["connection"],
            identity=None if identity is None else identity.facts(),
        )  # fmt: skip

    def limits_changed(self) -> None:
        """Send changed limits, and default queue types, to every vhost."""
        self._read_limits()
        for vhost in self.vhosts.values():
            vhost.send_limits()

    def _check_connections(self, vhost: WatchedVhost, user: str) -> None:
        """Raise AMQPConnectionError 530 if the vhost or the user has its maximum of connections,
        506 if the vhost's process has no descriptors for more."""
        most = self.limits.of_vhost(vhost.name, MAX_CONNECTIONS)
        if 0 <= most <= vhost.clients.total():
            text = f"access to vhost '{vhost.name}' refused for user '{user}': connection limit"
            raise AMQPConnectionError(NOT_ALLOWED, f"{text} ({most}) is reached", *OPEN)
        most = self.limits.of_user(user, MAX_CONNECTIONS)
        if 0 <= most <= sum(one.clients.get(user, 0) for one in self.vhosts.values()):
            text = f"connection refused for user '{user}': user connection limit ({most})"
            raise AMQPConnectionError(NOT_ALLOWED, f"{text} is reached", *OPEN)
        why = vhost.crowded()
        if why:
            text = f"access to vhost '{vhost.name}' refused for user '{user}': {why}"
            raise AMQPConnectionError(RESOURCE_ERROR, text, *OPEN)


def _identity(login: Login, opened: ConnectionFacts) -> Identity:
    """Return what the client may do in its vhost. Raises AMQPConnectionError 530."""
    identity = login.account.identity(opened.vhost)
    if identity is None:
        text = f"access to vhost '{opened.vhost}' refused for user '{opened.user}'"
        raise AMQPConnectionError(NOT_ALLOWED, text, *OPEN)
    return identity


def serve(
    settings: Config, on_ready: Callable[[ReadyFacts], None],
    reread: Callable[[], Config] | None = None,
) -> None:  # fmt: skip
    """Serve until SIGTERM, SIGINT or the operation `stop`. on_ready: called once, when clients can
    connect. reread: reads the configuration again, see Supervisor. Raises the errors of the start,
    see above."""
    # A closed terminal or a service manager's reload must not end the broker; its processes inherit
    # that.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    template = Template.begun()
    log = LogTail()
    set_up(settings.log_level, "node", partial(log.add, "supervisor", None))
    of_process = replace(settings, nofile=raise_limit())

    async def live() -> None:
        supervisor = Supervisor(of_process, log, executed if template is None else template.start)
        supervisor.reread = reread
        await supervisor.run(on_ready)

    run(live())
