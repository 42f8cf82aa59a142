"""Supervisor: the one process that everybody knocks at, and that starts and watches the others.

    lock of the data directory < node.db (users) < control socket, vhosts < listener, HTTP

It is in nobody's way: once a client is logged in its socket is handed over to its vhost's process,
and all that this one still does is watching, sharing the memory, and passing on news of users. A
vhost is started when somebody first opens it; "/" at once, so that it is there when the broker says
that it is ready.

An orderly stop (SIGTERM, SIGINT, the operation `stop`) goes from the outside in: nobody is let in,
each vhost tells its clients and makes its checkpoint, the lock is given back.

Errors of starting are raised: OSError with EADDRINUSE and "host:port", LockedError, VersionError,
CorruptionError and others of the directory. A vhost that cannot start is no such error: it is
down, the ready line says why, and the others serve. HTTP is started when clients of AMQP can
connect, beside them: its port is taken from the beginning, and whoever connects to it sooner waits
there.

Not here: operations of operators (node_operations), one vhost (watched_vhost), the handshake.
"""

import asyncio
import logging
import random
import resource
import signal
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from penstock.access.limits import MAX_CONNECTIONS, LimitTable
from penstock.access.passwords import verify
from penstock.access.permissions import GUEST_LOOPBACK, is_loopback
from penstock.access.users import Users
from penstock.clock import SystemClock, date
from penstock.errors import AMQPConnectionError, StoppedError
from penstock.server import memory_shares, vhost_directories
from penstock.server.authenticator import HASHERS, Authenticator
from penstock.server.control import NAME
from penstock.server.control_server import ControlServer
from penstock.server.handoff import Opened
from penstock.server.heap import Heap, find_trim, freeze_start
from penstock.server.listener import Listener, bind
from penstock.server.log_lines import set_up
from penstock.server.login import Login
from penstock.server.node_operations import NodeOperations
from penstock.server.serve_settings import ReadyFacts, ServeSettings
from penstock.server.watched_http import WatchedHttp
from penstock.server.watched_process import RUNNING, STARTING
from penstock.server.watched_vhost import VhostDown, WatchedVhost
from penstock.storage.data_directory import DataDirectory
from penstock.storage.filesystem import OsFileSystem
from penstock.storage.user_store import READY, UserStore

DEFAULT_VHOST: Final = "/"
STOP_NODE: Final = "stop_node"
NOT_ALLOWED: Final = 530
INTERNAL_ERROR: Final = 541
OPEN: Final = (10, 40)  # connection.open

__all__ = ["ReadyFacts", "ServeSettings", "Supervisor", "serve"]

logger = logging.getLogger(__name__)


class Supervisor:
    """`run` is its whole life, on the running loop."""

    def __init__(self, settings: ServeSettings) -> None:
        self.settings = settings
        self.clock = SystemClock()
        self.started_s = self.clock.monotonic()
        self.vhosts: dict[str, WatchedVhost] = {}
        self.http: WatchedHttp | None = None
        self.limits = LimitTable(settings.limits)
        self.is_ready = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._failed: BaseException | None = None
        self.listener: Listener
        self._hashing = ThreadPoolExecutor(HASHERS, "penstock-hash")
        self.users: Users
        self.data: DataDirectory

    def stop(self) -> None:
        """Have it end, in order."""
        self._stop.set()

    async def run(self, on_ready: Callable[[ReadyFacts], None]) -> None:
        """Until it is stopped. Errors of starting; StoppedError: a vhost is down, and the strategy
        is that nothing serves then."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self.stop)
        settings = self.settings
        socks = bind(settings.host, settings.port)
        http_socks: list[socket.socket] = []
        fs = OsFileSystem(0)
        try:
            if settings.http_port is not None:
                http_socks = bind(settings.host, settings.http_port)
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
                    self.limits.set(self.users.limits("vhost"), self.users.limits("user"))
                    vhost_directories.finish(self.data, self.users)
                    authenticator = Authenticator(
                        self.users, self._hashing, self.clock, settings.guest
                    )
                    self.listener = Listener(
                        socks, settings, authenticator, self.clock, self._admit
                    )
                    self._warn()
                    await self._serve(on_ready, http_socks)
                finally:
                    store.close()
            finally:
                self.data.close()
        finally:
            for sock in socks + http_socks:
                sock.close()
            fs.close()
        if self._failed is not None:
            raise self._failed

    def _warn(self) -> None:
        """Lines about what was configured and may not be what was meant."""
        settings = self.settings
        for note in settings.notes:
            logger.warning("%s", note)
        for name in sorted(self.users.vhosts()):
            stopped_ms = self.users.stopped_ms(name)
            if self.is_known(name) and stopped_ms is not None:
                since = date(stopped_ms)
                text = "vhost %r stays stopped: an operator has stopped it at %s, see start_vhost"
                logger.warning(text, name, since)
        # Resolved: a name such as localhost may be meant.
        hosts = {str(sock.getsockname()[0]) for sock in self.listener.socks}
        if (
            settings.guest == GUEST_LOOPBACK
            and not all(is_loopback(host) for host in hosts)
            and verify(b"guest", self.users.claim("guest"))
        ):
            logger.warning(
                "the broker listens at %s, and user 'guest' still has the password 'guest': it may "
                "come from this machine only, but a proxy on this machine makes every client come "
                'from here; change_password guest, delete_user guest, or set guest = "off"',
                settings.host,
            )

    async def _serve(
        self, on_ready: Callable[[ReadyFacts], None], http_socks: list[socket.socket]
    ) -> None:
        """Everything that it stands on is there."""
        operations = NodeOperations(self)
        if http_socks:
            self.http = WatchedHttp(
                http_socks, self.settings, self.clock, self.users.facts, operations.call_for_http
            )
            self.users.on_change = self.http.push_users
        control = ControlServer(
            f"{self.data.path}/{NAME}", operations.call, operations.session_gone
        )
        sharing = self._loop.create_task(self._share_memory())
        heap = Heap(self._loop, find_trim())
        heap.start()
        try:
            if DEFAULT_VHOST in self.users.vhosts():
                self.vhost(DEFAULT_VHOST).start()
            await control.start()
            await self._wait_for_first()
            freeze_start()
            if not self._stop.is_set():
                self.listener.start()
                host, port = self.listener.socks[0].getsockname()[:2]
                logger.info("listens at %s:%d, data %s", host, port, self.settings.data)
                self.is_ready.set()
                if self.http is not None:
                    self.http.start()
                facts = ReadyFacts(
                    host=self.settings.host, port=port, data=self.settings.data,
                    memory_bytes=self.settings.memory_bytes, mode=self.settings.mode,
                    http_port=None if self.http is None else self.http.port,
                    problems=tuple(operations.problems()),
                )  # fmt: skip
                on_ready(facts)
            await self._stop.wait()
            logger.info("stops")
        finally:
            await self.listener.stop()
            sharing.cancel()
            heap.stop()
            below = [*self.vhosts.values(), *([self.http] if self.http is not None else [])]
            await asyncio.gather(*(process.stop() for process in below))
            await control.stop()

    async def _wait_for_first(self) -> None:
        """Until "/" serves or is down, or the whole is stopped."""
        first = self.vhosts.get(DEFAULT_VHOST)
        if first is None or first.is_held:
            return
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
        """The vhost of that name, which is known and ready; it is started by whoever wants it."""
        vhost = self.vhosts.get(name)
        if vhost is None:
            # Whole: a stream's path is told to readers, which may run anywhere on this machine.
            path = str(Path(self.data.vhost_path(vhost_directories.name_bytes(name))).absolute())
            vhost = WatchedVhost(
                name, path, self.settings, self.clock, self._on_down, limits=self.limits
            )
            self.vhosts[name] = vhost
            vhost.is_held = self.users.stopped_ms(name) is not None
            if not vhost.is_held:
                self.make_room(vhost)
        return vhost

    def is_known(self, name: str) -> bool:
        """Is there such a vhost, whole?"""
        return self.users.vhosts().get(name) == READY

    def _on_down(self, vhost: WatchedVhost) -> None:
        if self.settings.vhost_restart_strategy == STOP_NODE and not self._stop.is_set():
            self._failed = StoppedError(str(VhostDown(vhost.name, vhost.why)))
            self.stop()

    # ---- clients -------------------------------------------------------------------------------

    async def _admit(self, login: Login, opened: Opened) -> None:
        """A client that is logged in: to its vhost with it. AMQPConnectionError."""
        name, user = opened.vhost, opened.user
        if not self.is_known(name):
            raise AMQPConnectionError(NOT_ALLOWED, f"vhost {name} not found", *OPEN)
        refused = f"access to vhost '{name}' refused for user '{user}'"
        if self.users.identity(user, name) is None:
            raise AMQPConnectionError(NOT_ALLOWED, refused, *OPEN)
        vhost = self.vhost(name)
        vhost.check_refused(user)
        try:
            await vhost.ready()
            identity = self.users.identity(user, name)  # it may have changed meanwhile
            if identity is None:
                raise AMQPConnectionError(NOT_ALLOWED, refused, *OPEN)
            self._check_connections(vhost, user)
            vhost.hand_over(opened, identity, login.leftover, login.sock)
        except VhostDown as error:
            raise AMQPConnectionError(INTERNAL_ERROR, str(error), *OPEN) from error
        logger.debug("connection %s: user %r, vhost %r", opened.name, user, name)

    def limits_changed(self) -> None:
        """Operators have set other limits: every vhost learns them."""
        self.limits.set(self.users.limits("vhost"), self.users.limits("user"))
        for vhost in self.vhosts.values():
            vhost.tell("limits", **self.limits.facts())

    def _check_connections(self, vhost: WatchedVhost, user: str) -> None:
        """AMQPConnectionError 530: the vhost or the user has as many connections as may be."""
        most = self.limits.of_vhost(vhost.name, MAX_CONNECTIONS)
        if 0 <= most <= vhost.clients.total():
            text = f"access to vhost '{vhost.name}' refused for user '{user}': connection limit"
            raise AMQPConnectionError(NOT_ALLOWED, f"{text} ({most}) is reached", *OPEN)
        most = self.limits.of_user(user, MAX_CONNECTIONS)
        if 0 <= most <= sum(one.clients[user] for one in self.vhosts.values()):
            text = f"connection refused for user '{user}': user connection limit ({most})"
            raise AMQPConnectionError(NOT_ALLOWED, f"{text} is reached", *OPEN)

    # ---- memory --------------------------------------------------------------------------------

    def _depths(self) -> dict[str, int]:
        return {
            name: vhost.depth_bytes
            for name, vhost in self.vhosts.items()
            if vhost.state in (RUNNING, STARTING)
        }

    def make_room(self, newcomer: WatchedVhost) -> None:
        """For one that is about to start: the others give up what it begins with. They have done so
        before it holds anything."""
        depths = self._depths() | {newcomer.name: 0}
        wanted = memory_shares.divide(self.settings.memory_bytes, depths)
        for name, number in wanted.items():
            vhost = self.vhosts[name]
            if vhost is newcomer:
                vhost.memory_bytes = number
            elif number < vhost.memory_bytes:
                vhost.tell_memory(number)

    async def _share_memory(self) -> None:
        """Again and again: who holds much gets more. First those that shrink; the others when these
        have answered, or a round later."""
        while True:
            await asyncio.sleep(self.settings.ping_s)
            depths = self._depths()
            now = {name: self.vhosts[name].memory_bytes for name in depths}
            wanted = memory_shares.divide(self.settings.memory_bytes, depths)
            shrinking, growing = memory_shares.changes(now, wanted)
            answers = []
            for name, number in shrinking.items():
                answer = self._loop.create_future()
                answers.append(answer)
                vhost = self.vhosts[name]
                vhost.on_memory = lambda answer=answer: answer.done() or answer.set_result(None)
                vhost.tell_memory(number)
            if answers:
                await asyncio.wait(answers, timeout=self.settings.ping_s)
            now = {n: v.memory_bytes for n, v in self.vhosts.items() if n in self._depths()}
            growing = memory_shares.fits(self.settings.memory_bytes, now, growing)
            for name, number in growing.items():
                if name in self.vhosts:
                    self.vhosts[name].tell_memory(number)


def serve(settings: ServeSettings, on_ready: Callable[[ReadyFacts], None]) -> None:
    """Serve until SIGTERM, SIGINT or the operation `stop`. on_ready: called once, when clients can
    connect. Errors: see the head of this module."""
    # A terminal that is closed, or a service manager's reload, does not end the broker; what it
    # starts inherits that.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    set_up(settings.log_level, "node")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    async def live() -> None:
        await Supervisor(settings).run(on_ready)

    asyncio.run(live())
