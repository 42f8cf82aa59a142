"""Limits of HTTP connections: deadlines, places, the reserve. Real sockets, no broker."""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from penstock.clock import ManualClock
from penstock.http import connections as module
from penstock.http.connections import RESERVE, Connections, GuardedProtocol

GET = b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n"
HEALTH = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n"


class World:
    """A server; `/slow` waits for `go`, `/body` reads its body, others answer at once."""

    def __init__(self, most: int, most_of_address: int) -> None:
        self.clock = ManualClock()
        self.connections = Connections(self.clock, most, most_of_address)
        self.go = asyncio.Event()
        self.protocols: list[GuardedProtocol] = []
        self.clients: list[Client] = []
        self.body_bytes = 0

    async def start(self) -> None:
        make: Any = partial(GuardedProtocol, self.connections)
        self.config = uvicorn.Config(
            self.app, http=make, interface="asgi3", lifespan="off", ws="none", log_config=None,
            server_header=False, date_header=False,
        )  # fmt: skip
        self.config.load()
        self.state = ServerState()
        loop = asyncio.get_running_loop()
        self.server = await loop.create_server(self._made, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]

    def _made(self) -> GuardedProtocol:
        one = GuardedProtocol(self.connections, self.config, self.state, {})
        self.protocols.append(one)
        return one

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/slow":
            await self.go.wait()
        if scope["path"] == "/body":
            while True:
                message = await receive()
                self.body_bytes += len(message.get("body", b""))
                if not message.get("more_body"):
                    break
        size = 50_000_000 if scope["path"] == "/long" else 2
        await send({"type": "http.response.start", "status": 200,
                    "headers": [(b"content-length", b"%d" % size)]})  # fmt: skip
        await send({"type": "http.response.body", "body": b"o" * size})

    async def client(self, data: bytes = b"", address: str = "127.0.0.1") -> "Client":
        place = await asyncio.open_connection("127.0.0.1", self.port, local_addr=(address, 0))
        client = Client(*place)
        self.clients.append(client)
        client.writer.write(data)
        return client


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.date = b""

    async def status(self) -> int:
        """Of the next answer, whose date is kept; 0: the connection was closed."""
        try:
            line = await self.reader.readline()
            if not line:
                return 0
            size = 0
            while (header := await self.reader.readline()) != b"\r\n":
                if header.startswith(b"date:"):
                    self.date = header.split(b":", 1)[1].strip()
                if header.lower().startswith(b"content-length:"):
                    size = int(header.split(b":")[1])
            await self.reader.readexactly(size)
        except (ConnectionError, asyncio.IncompleteReadError):
            return 0
        return int(line.split()[1])


def with_world(
    scenario: Callable[[World], Awaitable[None]], most: int = 100, most_of_address: int = 100
) -> None:
    async def run() -> None:
        world = World(most, most_of_address)
        await world.start()
        try:
            async with asyncio.timeout(240):
                await scenario(world)
        finally:
            world.go.set()
            world.server.close()
            for client in world.clients:
                client.writer.transport.abort()
            for one in world.protocols:
                if not one.transport.is_closing():
                    one.transport.abort()
            for _ in range(5):
                await asyncio.sleep(0)

    asyncio.run(run())


def test_whoever_does_not_finish_its_head_is_told_and_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "HEAD_S", 0.05)

    async def scenario(world: World) -> None:
        silent, half = await world.client(), await world.client(GET[:-2])
        assert await half.status() == 408
        assert await half.status() == 0
        assert await silent.status() == 0
        assert len(world.connections) == 0

    with_world(scenario)


def test_an_answer_has_the_date_of_when_it_is_asked_for() -> None:
    async def scenario(world: World) -> None:
        client = await world.client(GET)
        assert await client.status() == 200
        assert client.date == b"Tue, 14 Nov 2023 22:13:20 GMT"
        world.clock.advance(3600)
        client.writer.write(GET)
        assert await client.status() == 200
        assert client.date == b"Tue, 14 Nov 2023 23:13:20 GMT"

    with_world(scenario)


def test_the_time_between_requests_is_not_made_longer_by_what_is_no_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "HEAD_S", 0.05)

    async def scenario(world: World) -> None:
        # The answer has come, and the body that nobody reads never ends.
        client = await world.client(POST)
        assert await client.status() == 200
        for _ in range(1000):
            client.writer.write(b"x")
            if client.writer.transport.is_closing():
                break
            await asyncio.sleep(0.001)
        assert await client.status() == 0

    with_world(scenario)


def test_a_kept_connection_ends_when_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEEP_ALIVE_S", 0.05)

    async def scenario(world: World) -> None:
        client = await world.client(GET)
        assert await client.status() == 200
        assert await client.status() == 0

    with_world(scenario)


def test_a_request_under_way_has_no_deadline_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEAD_S", 0.05)

    async def scenario(world: World) -> None:
        slow = await world.client(GET.replace(b"/x", b"/slow"))
        silent = await world.client()
        assert await silent.status() == 0
        world.go.set()
        assert await slow.status() == 200

    with_world(scenario)


def test_a_body_is_not_read_before_somebody_asks_for_it() -> None:
    async def scenario(world: World) -> None:
        slow = POST.replace(b"/x", b"/slow")
        client = await world.client(slow + b"x" * 1_000_000)
        while not world.protocols or world.protocols[0].cycle is None:
            await asyncio.sleep(0)
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(world.protocols[0].cycle.body) <= module.READ_BYTES
        world.go.set()
        assert await client.status() == 200
        reader = await world.client(POST.replace(b"/x", b"/body") + b"x" * 1_000_000)
        assert await reader.status() == 200
        assert world.body_bytes == 1_000_000

    with_world(scenario)


def test_whoever_waits_for_a_body_gets_it_wherever_it_is_cut() -> None:
    """A piece that ends within the size of a chunk brings nothing of the body."""

    async def scenario(world: World) -> None:
        client = await world.client(
            b"POST /body HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        while not world.protocols or not world.protocols[0].is_asked:
            await asyncio.sleep(0)
        (one,) = world.protocols
        for byte in b"3\r\nabc\r\n10\r\n0123456789abcdef\r\n0\r\n\r":
            one.data_received(bytes([byte]))
            for _ in range(5):
                await asyncio.sleep(0)
            assert one.transport.is_reading()  # type: ignore[attr-defined]
        one.data_received(b"\n")
        assert await client.status() == 200
        assert world.body_bytes == 19

    with_world(scenario)


@pytest.mark.parametrize("body", [b"-2\r\n", b"2\r\n{}XX\r\n", b"zz\r\n"])
@pytest.mark.parametrize(("path", "status"), [(b"/slow", 400), (b"/body", 400), (b"/x", 200)])
def test_a_body_in_wrong_chunks_is_one_answer_and_no_error_here(
    path: bytes, status: int, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Also for what the application still sends, and where it has answered before."""

    async def scenario(world: World) -> None:
        client = await world.client(
            b"POST %s HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" % path
        )
        while not world.protocols or world.protocols[0].cycle is None:
            await asyncio.sleep(0)
        (one,) = world.protocols
        while not one.is_idle if path == b"/x" else path == b"/body" and not one.is_asked:
            await asyncio.sleep(0)
        one.data_received(body)
        world.go.set()
        assert await client.status() == status
        assert await client.status() == 0

    with_world(scenario)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_the_oldest_idle_connection_makes_room() -> None:
    async def scenario(world: World) -> None:
        clients = [await world.client(GET) for _ in range(5)]
        for client in clients:
            assert await client.status() == 200
        clients[0].writer.write(GET)  # now the second is idle for longest
        assert await clients[0].status() == 200
        assert await (await world.client(GET)).status() == 200
        assert await clients[1].status() == 0
        assert (world.connections.evicted, len(world.connections)) == (1, 5)

    with_world(scenario, most=5)


def test_an_address_that_has_too_many_loses_its_own() -> None:
    async def scenario(world: World) -> None:
        other = await world.client(GET, "127.0.0.2")
        assert await other.status() == 200
        clients = [await world.client(GET) for _ in range(10)]
        for client in clients[3:]:
            assert await client.status() == 200
        other.writer.write(GET)
        assert await other.status() == 200
        assert len(world.connections) == 8

    with_world(scenario, most_of_address=7)


@pytest.mark.parametrize(("most", "most_of_address"), [(5, 100), (100, 5)])
def test_where_nobody_is_idle_health_is_still_answered(most: int, most_of_address: int) -> None:
    async def scenario(world: World) -> None:
        slow = GET.replace(b"/x", b"/slow")
        busy = [await world.client(slow) for _ in range(5)]
        while sum(not one.is_idle for one in world.protocols) < 5:
            await asyncio.sleep(0)
        for _ in range(2 * RESERVE):
            await world.client()
        asking = await world.client(GET)
        assert await asking.status() == 503
        assert await asking.status() == 0
        assert await (await world.client(HEALTH)).status() == 200
        assert len(world.connections) <= 5 + RESERVE
        world.go.set()
        for client in busy:
            assert await client.status() == 200

    with_world(scenario, most, most_of_address)


def test_a_client_that_does_not_take_its_answer_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STALL_S", 0.05)
    monkeypatch.setattr(module, "CUT_S", 0.05)

    async def scenario(world: World) -> None:
        with socket.create_connection(("127.0.0.1", world.port)) as sock:
            close = b"Connection: close\r\n\r\n"
            sock.sendall(GET.replace(b"/x", b"/long").replace(b"\r\n\r\n", b"\r\n" + close))
            while not world.protocols or world.protocols[0].transport.get_write_buffer_size():
                await asyncio.sleep(0.01)
            while len(world.connections):
                await asyncio.sleep(0.01)

    with_world(scenario)
