"""WatchedHttp, WatchedTls: the processes of HTTP and of TLS as the supervisor sees them.

watched_process starts it, watches it and starts it again. The listening sockets are made and kept
here, and each process gets copies over the link. So the port is bound or refused when the broker
starts, and clients that connect while the process is being started again wait instead of being
refused. While it is down the sockets are closed, and made again for the next attempt.

News of HTTP beyond those of all processes:

    to it     socket (with a listening socket) · client (origin; with a socket, after TLS)
              users (KnownUsers.facts)
              start (log_level, metrics_port, data: the directory, staging_bytes_max, guest,
              loopback_users, auth_backends, auth_oauth2, hosts, proxies (networks), limits:
              connections_max,
              address_connections_max, user_requests_max)
    from it   pong, with rss_bytes, returned_bytes and requests
              audit (entry, of the audit log)

It calls operations of the node, and OPEN: the answer comes with a socket, a link to the process of
a vhost, where it calls the operations of that vhost. So their arguments and results do not pass
through this process.

Users are sent at each start and after each change, before the change is answered, so a password or
permission that was removed is refused at once.

When the process of TLS ends, its connections end; vhosts and plain connections go on.

    to it     socket (kind: "amqp" or "http"; with a listening socket)
              start (options, settings, networks) · reload (read the certificates again)
    from it   client (kind, origin: facts of a connection, records: null or those of TlsRecords, if
              the socket is encrypted; with a socket) · pong, with facts
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from penstock.clock import Clock
from penstock.config import Config
from penstock.errors import PenstockError
from penstock.operation_table import DEFAULT_VHOST
from penstock.server.children import PYTHON
from penstock.server.control import OPEN, Facts
from penstock.server.descriptors import http_connections_max
from penstock.server.listener import bind
from penstock.server.login import Origin
from penstock.server.process_link import Answering, AskedCall, ProcessLink, answer
from penstock.server.tls_records import TlsRecords
from penstock.server.watched_process import (
    RUNNING,
    STARTING,
    WatchedProcess,
    entry_of,
    whole,
)

PROGRAM: Final = (*PYTHON, "penstock.http.process")

# glibc's variables: chunks of a MiB are allocated and freed all the time; returning each to the
# system costs a quarter of sending it.
ALLOCATOR: Final = {
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_MMAP_THRESHOLD_": str(8 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(32 << 20),
}

logger = logging.getLogger(__name__)


class ListeningSockets:
    """Listening sockets on one port, of which a process gets copies at each start. They are made
    again for the start after `close`. port: None if there are none."""

    def __init__(self, host: str, socks: list[socket.socket]) -> None:
        self.port: Final = int(socks[0].getsockname()[1]) if socks else None
        self._host = host
        self._socks = socks

    def hand_to(self, link: ProcessLink, **facts: str) -> None:
        """Send copies over a link. Raises OSError."""
        if self.port is not None and self._socks[0].fileno() < 0:
            self._socks[:] = bind(self._host, self.port)
        for sock in self._socks:
            link.send({"do": "socket", **facts}, b"", sock.dup())

    def close(self) -> None:
        """Close them: clients are refused until the next start, instead of waiting."""
        for sock in self._socks:
            sock.close()


Open = Callable[[str], Awaitable[socket.socket]]


class WatchedHttp(WatchedProcess):
    """The HTTP process. socks: its listening sockets, which the caller closes; metrics_socks: those
    at the port where anybody may ask for metrics. users(): returns the present tables of users.
    call: as of ControlServer. open_link(vhost): returns an end of a link to its process.

    Of the last pong: rss_bytes, returned_bytes and requests (both since its start).
    """

    def __init__(
        self,
        socks: list[socket.socket],
        settings: Config,
        clock: Clock,
        users: Callable[[], dict[str, Any]],
        call: Answering,
        open_link: Open,
        program: Sequence[str] = PROGRAM,
        metrics_socks: Sequence[socket.socket] = (),
    ) -> None:
        super().__init__("http", settings, clock, program)
        self._sockets = ListeningSockets(settings.host, socks)
        self.port: Final = self._sockets.port
        self._metrics = ListeningSockets(settings.host, list(metrics_socks))
        self.metrics_port: Final = self._metrics.port
        self.on_audit: Callable[[Facts], None] | None = None  # called with entries
        self.rss_bytes = 0
        self.returned_bytes = 0
        self.requests = 0
        self._users = users
        self._call = call
        self._open_link = open_link
        self._answering: set[asyncio.Task[None]] = set()

    def push_users(self) -> None:
        """Send the users, which have changed."""
        if self._link is not None:
            self._link.send({"do": "users", **self._users()})

    def take(self, sock: socket.socket, origin: Origin) -> None:
        """Hand over a client after its TLS handshake. If the process does not run, the client is
        closed."""
        if self._link is None or self.state != RUNNING:
            sock.close()
        else:
            self._link.send({"do": "client", "origin": origin._asdict()}, b"", sock)

    def facts(self) -> dict[str, object]:
        """Return the facts for the operation `status`."""
        return {
            "state": self.state,
            "port": self.port,
            "pid": self.pid or None,
            "error": self.why or None,
            "restarts": self.restarts,
            "requests": self.requests,
            "rss_bytes": self.rss_bytes,
            "returned_bytes": self.returned_bytes,
        }

    # ---- as a watched process ------------------------------------------------------------------

    def _begin_life(self, link: ProcessLink) -> None:
        self._sockets.hand_to(link)
        self._metrics.hand_to(link)
        link.send({"do": "users", **self._users()})
        settings = self._settings
        most = min(settings.http_connections_max, http_connections_max(settings.nofile))
        data = str(Path(settings.data).absolute())
        link.send(
            {
                "do": "start", "log_level": settings.log_level, "data": data,
                "metrics_port": self.metrics_port,
                "staging_bytes_max": settings.staging_bytes_max,
                "staging_user_bytes_max": settings.staging_user_bytes_max,
                "guest": settings.guest,
                "loopback_users": settings.loopback_users,
                "auth_backends": settings.auth_backends,
                "auth_oauth2": settings.auth_oauth2.facts(),
                "auth_http": settings.auth_http.facts(),
                "hosts": [settings.host, *settings.http_hosts],
                "proxies": list(settings.http_proxy_protocol_from),
                "connections_max": most,
                "address_connections_max": min(settings.http_address_connections_max, most),
                "user_requests_max": settings.http_user_requests_max,
            }
        )  # fmt: skip

    def _on_own_message(self, do: str, facts: Facts) -> None:
        if do == "pong":
            self.rss_bytes = whole(facts["rss_bytes"])
            self.returned_bytes = whole(facts["returned_bytes"])
            self.requests = whole(facts["requests"])
        elif do == "audit" and self.on_audit is not None:
            self.on_audit(entry_of(facts))

    def _on_call(self, asked: AskedCall) -> None:
        work = self._open(asked) if asked.op == OPEN else answer(asked, self._call)
        task = self._loop.create_task(work)
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _open(self, asked: AskedCall) -> None:
        try:
            asked.answer((), await self._open_link(asked.vhost or DEFAULT_VHOST))
        except (PenstockError, OSError) as error:
            asked.refuse(error)

    def _environment(self) -> dict[str, str]:
        return ALLOCATOR

    def _is_down(self) -> None:
        self._sockets.close()
        self._metrics.close()

    def _life_ended(self) -> None:
        super()._life_ended()
        self.rss_bytes = self.returned_bytes = self.requests = 0
        for task in self._answering:
            task.cancel()


TLS_PROGRAM: Final = (*PYTHON, "penstock.server.tls_process")


Take = Callable[..., object]  # (socket, origin[, records])


class WatchedTls(WatchedProcess):
    """The process of TLS. sockets: its listening sockets by kind. takers: by kind, what takes over
    a client after its handshake, with its socket."""

    def __init__(
        self, sockets: Mapping[str, ListeningSockets], settings: Config, clock: Clock,
        takers: Mapping[str, Take], program: Sequence[str] = TLS_PROGRAM,
    ) -> None:  # fmt: skip
        super().__init__("tls", settings, clock, program)
        self.ports: Final = {kind: one.port for kind, one in sockets.items()}
        self._sockets = sockets
        self._takers = takers
        self._pong: Facts = {}
        self._is_outdated = False  # certificates may have changed since it was started

    def reload(self) -> None:
        """Have it read the certificates again; if it is starting, once it runs."""
        self._is_outdated = self.state == STARTING
        self.notify("reload")

    def facts(self) -> dict[str, object]:
        """Return the facts for the operation `status`."""
        pong = self._pong
        return {
            "state": self.state,
            "port": self.ports.get("amqp"),
            "http_port": self.ports.get("http"),
            "pid": self.pid or None,
            "error": self.why or None,
            "restarts": self.restarts,
            "connections": pong.get("connections", 0),
            "half_open": pong.get("half_open", 0),
            "accepted": pong.get("accepted", 0),
            "rss_bytes": pong.get("rss_bytes", 0),
            "certificates": pong.get("certificates", []),
            "warnings": pong.get("warnings", []),
        }

    # ---- as a watched process ------------------------------------------------------------------

    def _begin_life(self, link: ProcessLink) -> None:
        for kind, sockets in self._sockets.items():
            sockets.hand_to(link, kind=kind)
        settings = self._settings
        link.send(
            {
                "do": "start", "log_level": settings.log_level, "options": asdict(settings.tls),
                "networks": {
                    "amqp": list(settings.proxy_protocol_from),
                    "http": list(settings.http_proxy_protocol_from),
                },
                "settings": {
                    "handshake_timeout_s": settings.handshake_timeout_s,
                    "half_open_max": settings.half_open_max, "nofile": settings.nofile,
                },
            }
        )  # fmt: skip

    def _has_started(self) -> None:
        if self._is_outdated:
            self.reload()

    def _on_news(self, facts: Facts, data: bytes, descriptors: list[int]) -> None:
        if facts["do"] != "client":
            super()._on_news(facts, data, descriptors)
            return
        origin: Any = facts["origin"]
        records: Any = facts["records"]
        for descriptor in descriptors:
            sock = socket.socket(fileno=descriptor)
            take = self._takers[str(facts["kind"])]
            if records is None:
                take(sock, Origin(**origin))
            else:
                take(sock, Origin(**origin), TlsRecords.of(records))

    def _on_own_message(self, do: str, facts: Facts) -> None:
        if do == "pong":
            self._pong = facts

    def _environment(self) -> dict[str, str]:
        return {}

    def _is_down(self) -> None:
        for sockets in self._sockets.values():
            sockets.close()

    def _life_ended(self) -> None:
        super()._life_ended()
        self._pong = {}
