"""The HTTP process: `python -m penstock.http.process <descriptor>`.

Its only argument is its end of the link to the supervisor, which sends listening sockets, users,
and then `start` with the data directory (server.watched_http has the messages). uvicorn serves the
application of api.py on one asyncio loop; threads read and write files and check passwords, so the
loop always answers pings.

When the process ends (server.linked_process), it accepts no more connections; answers that are
under way may go on for CLOSE_S, and are cut then.
"""

import asyncio
import contextlib
import logging
import random
import socket
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

import uvicorn

from penstock.access.http_options import HttpLoginOptions
from penstock.access.tokens import OAuth2Options
from penstock.access.users import KnownUsers
from penstock.http.api import Admission, Api
from penstock.http.bodies import JsonBodies
from penstock.http.connections import KEEP_ALIVE_S, Connections, GuardedProtocol
from penstock.http.dashboard.static_files import FILES, DashboardFiles
from penstock.http.live import Live
from penstock.http.management import Management
from penstock.http.node_link import NodeLink
from penstock.http.ranges import PageDirectories, RangeAnswers, StreamPages
from penstock.http.read_endpoints import LeaseEndpoints, StreamEndpoints
from penstock.http.requests import BasicAuth
from penstock.http.sessions import Sessions
from penstock.http.staging_endpoints import StagingEndpoints
from penstock.server.audit import LOGIN_FAILED
from penstock.server.authenticator import HASHERS, Authenticator
from penstock.server.backends import Backends, made_backends
from penstock.server.control import Facts
from penstock.server.linked_process import LinkedProcess, main
from penstock.server.log_lines import set_level, set_up
from penstock.server.process_link import ProcessLink
from penstock.server.proxy_protocol import networks_of
from penstock.server.vhost_directories import name_bytes
from penstock.storage.files.data_directory import hash_name, placed
from penstock.storage.files.filesystem import OsFileSystem

READERS: Final = 4  # threads that read pages
WRITERS: Final = 4  # and that write and sync what is staged
PARSERS: Final = 2  # and that decode long bodies
CLOSE_S: Final = 3
HEAD_BYTES_MAX: Final = 16 << 10  # of a request line with all headers
EX_SOFTWARE: Final = 70

logger = logging.getLogger(__name__)


class _Server(uvicorn.Server):
    """uvicorn's server, without its signal handlers, and without its ten looks a second, which
    cost 2 ms: `end` ends it, and connections keeps the date. Calls on_started when it listens."""

    def __init__(self, config: uvicorn.Config, on_started: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_started = on_started
        self._asked_to_end = asyncio.Event()

    def end(self) -> None:
        """Have `serve` end."""
        self.should_exit = True  # for one that is starting
        self._asked_to_end.set()

    async def main_loop(self) -> None:
        await self._asked_to_end.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_started()


class HttpProcess(LinkedProcess):
    """Serves until it is stopped; `run` returns the exit status."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock, OsFileSystem(0))
        self._socks: list[socket.socket] = []
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self._connections = Connections(self._clock, 0, 0)
        self._taking: set[asyncio.Task[Any]] = set()
        self._api: Api | None = None
        self._live: Live | None = None
        self._looking: asyncio.Task[None] | None = None
        users = KnownUsers(rng=random.SystemRandom())
        self._node = NodeLink(users, self._link)
        self._hashing = ThreadPoolExecutor(HASHERS, "penstock-hash")
        self._reading = ThreadPoolExecutor(READERS, "penstock-read")
        self._writing = ThreadPoolExecutor(WRITERS, "penstock-stage")
        self._parsing = ThreadPoolExecutor(PARSERS, "penstock-parse")

    async def run(self) -> int:
        """Run until the end. Returns the exit status."""
        status = await super().run()
        self._fs.close()
        return status

    async def _finish(self, why: str) -> None:
        logger.info("stops%s", f": {why}" if why else "")
        if self._live is not None:
            self._live.close()
        self._node.gone()
        if self._server is not None and self._serving is not None:
            self._server.end()
            await asyncio.wait([self._serving])
        self._link.send({"do": "stopped"})

    # ---- the link ------------------------------------------------------------------------------

    def _on_message(self, facts: dict[str, Any], data: bytes, descriptors: list[int]) -> None:
        do = facts["do"]
        if do == "ping":
            self._link.send(self._pong(facts))
        elif do == "users":
            self._node.users.take(facts)
        elif do == "socket":
            self._socks += [socket.socket(fileno=descriptor) for descriptor in descriptors]
        elif do == "client":
            self._take(facts["origin"], descriptors)
        elif do == "start":
            self._start(facts)
        elif do == "settings":
            set_level(facts["log_level"])
        elif do == "stop":
            self._end("")

    def _links(self) -> list[ProcessLink]:
        return [self._link, *self._node.links()]

    def _pong(self, facts: Facts) -> Facts:
        requests = self._api.requests if self._api is not None else 0
        return {
            "do": "pong",
            "n": facts["n"],
            "rss_bytes": self._rss_bytes(),
            "returned_bytes": self._heap.returned_bytes,
            "requests": requests,
        }

    def _start(self, facts: dict[str, Any]) -> None:
        set_up(facts["log_level"], "http", self._send_line)
        # api.py logs errors of answers, with the request.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        self._api = self._made_api(facts)
        self._api.metrics_port = facts["metrics_port"]
        self._connections = Connections(
            self._clock,
            int(facts["connections_max"]),
            int(facts["address_connections_max"]),
            networks_of(facts["proxies"]),
        )
        protocol: Any = partial(GuardedProtocol, self._connections)
        config = uvicorn.Config(
            self._api, http=protocol, interface="asgi3", lifespan="off", ws="none",
            log_config=None, access_log=False, proxy_headers=False, server_header=False,
            date_header=False, timeout_keep_alive=int(KEEP_ALIVE_S),
            timeout_graceful_shutdown=CLOSE_S, h11_max_incomplete_event_size=HEAD_BYTES_MAX,
        )  # fmt: skip
        self._server = _Server(config, self._ready)
        self._serving = self._loop.create_task(self._server.serve(self._socks))
        self._serving.add_done_callback(self._served)

    def _take(self, origin: dict[str, Any], descriptors: list[int]) -> None:
        """Serve a client whose TLS is done by another process."""
        for descriptor in descriptors:
            sock = socket.socket(fileno=descriptor)
            sock.setblocking(False)
            if self._server is None:
                sock.close()
                continue
            peer = (str(origin["peer_host"]), int(origin["peer_port"]))
            made = self._loop.connect_accepted_socket(partial(self._tls_protocol, peer), sock)
            task = self._loop.create_task(made)
            self._taking.add(task)
            task.add_done_callback(self._taken)

    def _taken(self, task: asyncio.Task[Any]) -> None:
        self._taking.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.debug("a client of TLS was lost: %s", task.exception())

    def _tls_protocol(self, peer: tuple[str, int]) -> GuardedProtocol:
        server = self._server
        assert server is not None
        return GuardedProtocol(
            self._connections, server.config, server.server_state, {}, self._loop, peer
        )

    def _ready(self) -> None:
        self._heap.freeze_start()
        self._link.send({"do": "ready"})

    def _made_api(self, facts: dict[str, Any]) -> Api:
        """Return the application. facts: of `start`, with the absolute path of the data
        directory."""
        data = str(facts["data"])

        def vhost_path(name: str) -> str:
            return f"{data}/vhosts/{hash_name(name_bytes(name))}"

        node, clock = self._node, self._clock
        fs = placed(self._fs, data)
        authenticator = Authenticator(
            node.users, self._hashing, clock, str(facts["guest"]), facts["loopback_users"]
        )
        made = made_backends(
            facts["auth_backends"], node.users, authenticator, clock,
            OAuth2Options.of(facts["auth_oauth2"]), HttpLoginOptions(**facts["auth_http"]),
        )  # fmt: skip
        backends = Backends(made, str(facts["guest"]), facts["loopback_users"])
        backends.on_refused = self._note_refusal
        auth = BasicAuth(node.users, backends, Sessions(node.users, clock))
        ranges = RangeAnswers(PageDirectories(node, clock), StreamPages(self._fs), self._reading)
        bodies = JsonBodies(self._parsing)
        staging = StagingEndpoints(
            node,
            auth,
            bodies,
            fs,
            clock,
            self._writing,
            vhost_path,
            int(facts["staging_bytes_max"]),
            int(facts["staging_user_bytes_max"]),
        )
        streams, leases = (
            kind(node, auth, ranges, bodies) for kind in (StreamEndpoints, LeaseEndpoints)
        )
        endpoints = {"streams": streams, "leases": leases, "staging": staging}
        admission = Admission([socket.gethostname(), *facts["hosts"]])
        self._live = live = Live(node, clock)
        self._looking = self._loop.create_task(live.run())
        management = Management(node, auth, bodies, live)
        most = int(facts["user_requests_max"])
        pages = DashboardFiles(self._fs, FILES)
        return Api(node, auth, endpoints, management, pages, admission, most)

    def _note_refusal(self, user: str, host: str, why: str) -> None:
        entry = {"event": LOGIN_FAILED, "user": user, "from": host, "why": why}
        self._link.send({"do": "audit", "entry": entry})

    def _served(self, task: asyncio.Task[None]) -> None:
        if not self._ended.done() or task.exception() is not None:
            error = task.exception()
            why = f"{type(error).__name__}: {error}" if error is not None else "the server ended"
            logger.error("ends: %s", why, exc_info=error)
            self._give_up(EX_SOFTWARE, why)


def run_process(arguments: list[str]) -> int:
    """Run the program, as linked_process.main."""
    return main("http", HttpProcess, arguments)


if __name__ == "__main__":
    sys.exit(run_process(sys.argv[1:]))
