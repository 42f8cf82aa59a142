"""The HTTP application without its process: users, a broker that answers as told, streams on disk.

Streams are PersistentQueues that stand alone, with pages so small that a test has several of them,
and the directory of each is what the broker says when it is asked to describe the stream.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from penstock.access.permissions import Identity
from penstock.access.users import KnownUsers, hash_password
from penstock.clock import ManualClock
from penstock.errors import AMQPError
from penstock.http.api import Admission, Api
from penstock.http.bodies import JsonBodies
from penstock.http.dashboard.static_files import DashboardFiles
from penstock.http.live import Live
from penstock.http.management import Management
from penstock.http.ranges import PageDirectories, RangeAnswers, StreamPages
from penstock.http.read_endpoints import LeaseEndpoints, StreamEndpoints
from penstock.http.requests import BasicAuth
from penstock.http.sessions import Sessions
from penstock.http.staging_endpoints import StagingEndpoints
from penstock.server.authenticator import Authenticator
from penstock.server.backends import Backends, InternalBackend
from penstock.server.control import ControlError
from penstock.server.polling_loop import run
from penstock.storage.files.filesystem import OsFileSystem
from penstock.storage.pages.persistent_queue import PersistentQueue
from tests.helpers.asgi_client import Reply, ask

EVERYTHING = (".*", ".*", ".*")
TAGS = {
    "boss": ["administrator"], "watcher": ["monitoring"], "policy": ["policymaker"],
    "untagged": [],
}  # fmt: skip


class FakeNode:
    """answers: operation -> its result, an error to raise, or a function of vhost and arguments."""

    def __init__(self, users: KnownUsers) -> None:
        self.users = users
        self.answers: dict[str, Any] = {"claim_query": {"owner": "guest", "partitions": 1}}
        self.waits: dict[str, Callable[[], Awaitable[Any]]] = {}  # operation -> what takes a while
        self.asked: list[tuple[str, str | None, dict[str, object]]] = []

    async def call(self, op: str, vhost: str | None = None, /, **args: object) -> Any:
        self.asked.append((op, vhost, args))
        if op in self.waits:
            return await self.waits[op]()
        answer = self.answers.get(op, ControlError(404, f"NOT_FOUND - no operation {op}"))
        if callable(answer):
            answer = answer(vhost, **args)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    call_once = value = call

    async def status(self) -> Any:
        return await self.call("status")


def users_facts(**permissions: tuple[str, str, str]) -> dict[str, Any]:
    """Users whose passwords are their names, with these permissions in vhost "/". They have the tag
    management, and what stands in TAGS."""
    return {
        "users": [
            [
                name,
                hash_password(name.encode(), salt=b"s" * 16, log2_n=1),
                TAGS.get(name, ["management"]),
            ]
            for name in permissions
        ],
        "vhosts": [["/", "ready"], ["other", "ready"], ["new", "creating"]],
        "permissions": [[name, "/", *three] for name, three in permissions.items()],
        "topics": [],
    }


class HttpRig:
    """guest may do everything in "/", and nothing elsewhere; the clock stands still."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = ManualClock()
        self.fs = OsFileSystem(0)
        self.users = KnownUsers(rng=random.Random(1), log2_n=1)
        self.node = FakeNode(self.users)
        self.users.take(users_facts(guest=EVERYTHING))
        self.threads = ThreadPoolExecutor(2)
        self.pages = StreamPages(self.fs)
        self.places = PageDirectories(self.node, self.clock)  # type: ignore[arg-type]
        self.staging_bytes_max = 1 << 30
        self.staging_user_bytes_max = 1 << 30
        self.user_requests_max = 10
        self.streams: dict[str, list[PersistentQueue]] = {}
        self.node.answers["describe_stream"] = self.described
        self.node.answers["list_streams"] = lambda _vhost, as_user: [
            self.described("/", name)
            for name in self.streams
            if Identity.from_facts(as_user).may_read(name)
        ]

    def described(self, _vhost: str | None, queue: str, **_: object) -> Any:
        if queue not in self.streams:
            return ControlError(404, AMQPError(404, f"no queue '{queue}'").text)
        rows = [
            {"partition": n, "path": one.path, "first": one.first_offset, "head": one.head_offset}
            for n, one in enumerate(self.streams[queue])
        ]
        return {"name": queue, "partitions": rows, "readers": {}, "arguments": {}}

    def stream(self, name: str, *, partitions: int = 1, page_bytes: int = 4096) -> PersistentQueue:
        """A new stream; its first partition."""
        self.streams[name] = [
            PersistentQueue(
                self.fs, str(self.directory / f"{name}.{n}"), page_bytes=page_bytes,
                clock=self.clock, rng=random.Random(n),
            )
            for n in range(partitions)
        ]  # fmt: skip
        return self.streams[name][0]

    def filled(self, name: str, count: int, body_bytes: int = 100) -> PersistentQueue:
        """A new stream with so many records, a microsecond apart."""
        queue = self.stream(name)
        for n in range(count):
            queue.append(b"%08d" % n + b"x" * (body_bytes - 8), b"meta", 1000 + n)
        queue.force()
        return queue

    def vhost_path(self, vhost: str) -> str:
        """Where its staged files are, below; it is there."""
        path = self.directory / f"vhost {vhost.encode().hex()}"
        path.mkdir(exist_ok=True)
        return str(path)

    def ask(self, address: str, **how: Any) -> Reply:
        """What is answered to one request."""
        return self.run(lambda app: ask(app, address, **how))

    def run(self, scenario: Callable[[Api], Coroutine[Any, Any, Reply]]) -> Reply:
        """The scenario, with a new application on a loop of its own."""

        async def live() -> Reply:
            auth = BasicAuth(
                self.users,
                Backends(
                    [
                        InternalBackend(
                            self.users, Authenticator(self.users, self.threads, self.clock)
                        )
                    ]
                ),
                Sessions(self.users, self.clock),
            )
            node: Any = self.node
            ranges = RangeAnswers(self.places, self.pages, self.threads)
            self.bodies = bodies = JsonBodies(self.threads)
            self.live = Live(node, self.clock)
            staging = StagingEndpoints(
                node, auth, bodies, self.fs, self.clock, self.threads, self.vhost_path,
                self.staging_bytes_max, self.staging_user_bytes_max,
            )  # fmt: skip
            streams, leases = (
                kind(node, auth, ranges, bodies) for kind in (StreamEndpoints, LeaseEndpoints)
            )
            endpoints = {"streams": streams, "leases": leases, "staging": staging}
            app = Api(
                node, auth, endpoints, Management(node, auth, bodies, self.live),
                DashboardFiles(self.fs, str(self.directory / "files")), Admission(["broker.test"]),
                self.user_requests_max,
            )  # fmt: skip
            async with asyncio.timeout(240):
                return await scenario(app)

        return run(live())

    def close(self) -> None:
        for queue in (one for all_of in self.streams.values() for one in all_of):
            queue.close()
        self.threads.shutdown()
        self.fs.close()
