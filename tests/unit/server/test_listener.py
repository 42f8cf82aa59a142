import asyncio
import ipaddress
import random
import socket
from asyncio import Task
from collections.abc import Awaitable, Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from penstock.access.users import Users
from penstock.broker.connection_facts import ConnectionFacts
from penstock.clock import ManualClock
from penstock.codec.fields import encode_table
from penstock.codec.frames import PROTOCOL_HEADER, method_frame
from penstock.codec.method import Method
from penstock.codec.spec import (
    ChannelOpen,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
    decode_method,
)
from penstock.config import Config
from penstock.errors import AMQPConnectionError
from penstock.server.authenticator import Authenticator
from penstock.server.backends import Backends, InternalBackend
from penstock.server.listener import Listener, bind
from penstock.server.login import Login, Origin
from penstock.server.polling_loop import polling_loop
from penstock.storage.files.user_store import UserStore

CAPABILITIES = encode_table({"capabilities": {"authentication_failure_close": True}})


class Node:
    """A listener; who comes through is kept, and closed."""

    def __init__(self, settings: Config) -> None:
        self.store = UserStore(":memory:")
        self.clock = clock = ManualClock()
        self.users = Users(self.store, rng=random.Random(1), log2_n=1)
        self.users.add_user("ann", b"secret")
        self.hashing = ThreadPoolExecutor(2)
        self.authenticator = Authenticator(self.users, self.hashing, clock)
        backends = Backends([InternalBackend(self.users, self.authenticator)])
        networks = [ipaddress.ip_network(one) for one in settings.proxy_protocol_from]

        def login(
            sock: socket.socket, on_held: Callable[[int], None], origin: Origin | None = None
        ) -> Login:
            return Login(sock, backends, clock, on_held, origin, networks)

        self.listener = Listener(
            bind("127.0.0.1", 0), settings, clock, login, self._admit, self._admit_now
        )
        self.is_quick = False  # clients are admitted at once
        self.opened: list[tuple[ConnectionFacts, bytes]] = []
        self.has_opened = asyncio.Event()
        self.error: AMQPConnectionError | None = None

    def _admit_now(self, login: Login, opened: ConnectionFacts) -> bool:
        if self.is_quick:
            self._take(login, opened)
        return self.is_quick

    async def _admit(self, login: Login, opened: ConnectionFacts) -> None:
        self._take(login, opened)

    def _take(self, login: Login, opened: ConnectionFacts) -> None:
        if self.error is not None:
            raise self.error
        self.opened.append((opened, login.leftover))
        login.sock.close()
        self.has_opened.set()

    async def client(self, address: str = "127.0.0.1") -> "Client":
        """One from that address."""
        host, port = self.listener.socks[0].getsockname()
        return Client(*await asyncio.open_connection(host, port, local_addr=(address, 0)))


class Client:
    """Frames over a stream."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, *methods: Method, header: bool = False) -> None:
        data = PROTOCOL_HEADER if header else b""
        self.writer.write(data + b"".join(method_frame(0, m.encode()) for m in methods))

    async def method(self) -> Method:
        head = await self.reader.readexactly(7)
        payload = await self.reader.readexactly(int.from_bytes(head[3:], "big") + 1)
        return decode_method(payload[:-1])

    async def at_end(self) -> bool:
        """Whether the other side has closed."""
        try:
            return await self.reader.read(1) == b""
        except ConnectionResetError:
            return True

    async def until_end(self) -> None:
        """Until the other side has closed, whatever it says before."""
        try:
            await self.reader.read(-1)
        except ConnectionResetError:
            pass

    def close(self) -> None:
        self.writer.close()


def start_ok(user: str = "ann", password: str = "secret", **more: object) -> ConnectionStartOk:
    values: dict[str, object] = {
        "client_properties": CAPABILITIES,
        "mechanism": "PLAIN",
        "response": f"\0{user}\0{password}".encode(),
        "locale": "en_US",
    }
    return ConnectionStartOk(**(values | more))  # type: ignore[arg-type]


def tune_ok(channel_max: int = 2047, frame_max: int = 131072, beat: int = 60) -> ConnectionTuneOk:
    return ConnectionTuneOk(channel_max=channel_max, frame_max=frame_max, heartbeat=beat)


def with_node(scenario: Callable[[Node], Awaitable[None]], **settings: float) -> None:
    async def run() -> None:
        values: dict[str, float] = {
            "silent_close_s": 0.01, "handshake_timeout_s": 60.0, **settings,
        }  # fmt: skip
        node = Node(Config(**values))  # type: ignore[arg-type]
        node.listener.start()
        try:
            async with asyncio.timeout(240):
                await scenario(node)
        finally:
            await node.listener.stop()
            node.store.close()
            node.hashing.shutdown()

    with asyncio.Runner(loop_factory=polling_loop) as runner:
        runner.run(run())


def test_a_handshake_step_by_step() -> None:
    async def scenario(node: Node) -> None:
        client = await node.client()
        client.send(header=True)
        start = await client.method()
        assert isinstance(start, ConnectionStart)
        assert set(start.mechanisms.split()) == {b"PLAIN", b"AMQPLAIN"}
        assert start.server_properties["product"] == "RabbitMQ"
        capabilities = start.server_properties["capabilities"]
        assert isinstance(capabilities, dict)
        assert capabilities["publisher_confirms"] is True
        assert capabilities["penstock.box"] is True
        client.send(start_ok())
        tune = await client.method()
        assert isinstance(tune, ConnectionTune)
        assert (tune.channel_max, tune.frame_max, tune.heartbeat) == (2047, 131072, 60)
        client.send(tune_ok(2000, 8192, 5), ConnectionOpen(virtual_host="v"))
        await node.has_opened.wait()
        opened, leftover = node.opened[0]
        assert (opened.user, opened.vhost, leftover) == ("ann", "v", b"")
        assert (opened.channel_max, opened.frame_max, opened.heartbeat_s) == (2000, 8192, 5)
        assert opened.client_properties == CAPABILITIES
        assert opened.name.startswith("127.0.0.1:")
        assert node.listener.half_open == 0
        client.close()

    with_node(scenario)


@pytest.mark.parametrize("piece_bytes", [1, 7, 1 << 20])
def test_all_at_once_and_more_behind(piece_bytes: int) -> None:
    async def scenario(node: Node) -> None:
        client = await node.client()
        behind = method_frame(1, ChannelOpen().encode()) + b"\1\0\1\0"
        methods = (start_ok(), tune_ok(), ConnectionOpen(virtual_host="/"))
        whole = PROTOCOL_HEADER + b"".join(method_frame(0, m.encode()) for m in methods) + behind
        for at in range(0, len(whole), piece_bytes):
            client.writer.write(whole[at : at + piece_bytes])
            await client.writer.drain()
        await node.has_opened.wait()
        opened, leftover = node.opened[0]
        assert opened.vhost == "/"
        assert behind.startswith(leftover)
        if piece_bytes > len(whole):
            assert leftover == behind
        client.close()

    with_node(scenario)


@pytest.mark.parametrize(
    "header", [b"AMQP\x00\x00\x09\x00", b"AMQP\x01\x01\x00\x09", b"GET /", b"X"]
)
def test_a_wrong_header_is_told_the_right_one(header: bytes) -> None:
    async def scenario(node: Node) -> None:
        client = await node.client()
        client.writer.write(header)
        assert await client.reader.read(-1) == PROTOCOL_HEADER
        client.close()

    with_node(scenario)


@pytest.mark.parametrize(("user", "password"), [("ann", "wrong"), ("nobody", "secret")])
def test_a_wrong_password_is_told_to_who_understands(user: str, password: str) -> None:
    async def scenario(node: Node) -> None:
        client = await node.client()
        client.send(start_ok(user, password), header=True)
        assert isinstance(await client.method(), ConnectionStart)
        close = await client.method()
        assert isinstance(close, ConnectionClose)
        assert close.reply_code == 403
        assert close.reply_text == (
            "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. "
            "For details see the broker logfile."
        )
        client.send(ConnectionCloseOk())
        assert await client.at_end()
        client.close()

    with_node(scenario)


def test_to_others_nothing_is_said() -> None:
    async def scenario(node: Node) -> None:
        for wrong in (
            start_ok(password="wrong", client_properties=encode_table({})),
            start_ok(mechanism="EXTERNAL"),
            start_ok(response=b"no nul"),
            start_ok(mechanism="AMQPLAIN", response=b"\1"),
            tune_ok(),
        ):
            client = await node.client()
            client.send(wrong, header=True)
            assert isinstance(await client.method(), ConnectionStart)
            assert await client.at_end()
            client.close()
        assert not node.opened

    with_node(scenario)


def test_amqplain() -> None:
    response = b"\x05LOGINS\0\0\0\x03ann\x08PASSWORDS\0\0\0\x06secret"

    async def scenario(node: Node) -> None:
        client = await node.client()
        first = start_ok(mechanism="AMQPLAIN", response=response)
        client.send(first, tune_ok(), ConnectionOpen(virtual_host="/"), header=True)
        await node.has_opened.wait()
        client.close()

    with_node(scenario)


@pytest.mark.parametrize("wrong", [tune_ok(2048), tune_ok(frame_max=131073), tune_ok(1, 4095)])
def test_a_tune_ok_beyond_the_offer(wrong: ConnectionTuneOk) -> None:
    async def scenario(node: Node) -> None:
        client = await node.client()
        client.send(start_ok(), wrong, ConnectionOpen(virtual_host="/"), header=True)
        assert isinstance(await client.method(), ConnectionStart)
        assert isinstance(await client.method(), ConnectionTune)
        assert await client.at_end()
        client.close()

    with_node(scenario)


def test_a_password_that_was_right_before_needs_no_task() -> None:
    async def scenario(node: Node) -> None:
        node.is_quick = True
        loop = asyncio.get_running_loop()
        made: list[str] = []

        def make(
            loop: asyncio.AbstractEventLoop,
            it: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
            /,
        ) -> Task[Any]:
            made.append(repr(it))
            return Task(it, loop=loop)

        for _ in range(2):
            client = await node.client()
            client.send(start_ok(), tune_ok(), ConnectionOpen(virtual_host="/"), header=True)
            await node.has_opened.wait()
            node.has_opened.clear()
            client.close()
            loop.set_task_factory(make)
        loop.set_task_factory(None)
        assert not made
        assert len(node.opened) == 2

    with_node(scenario)


@pytest.mark.parametrize("is_quick", [False, True])
def test_what_admit_refuses_is_told(is_quick: bool) -> None:
    async def scenario(node: Node) -> None:
        node.is_quick = is_quick
        node.error = AMQPConnectionError(530, "vhost v not found", 10, 40)
        client = await node.client()
        client.send(start_ok(), tune_ok(), ConnectionOpen(virtual_host="v"), header=True)
        await client.method()
        await client.method()
        close = await client.method()
        assert isinstance(close, ConnectionClose)
        assert (close.reply_code, close.reply_text) == (530, "NOT_ALLOWED - vhost v not found")
        assert (close.class_id, close.method_id) == (10, 40)
        client.send(ConnectionCloseOk())
        assert await client.at_end()
        client.close()

    with_node(scenario)


def test_a_client_may_leave_politely() -> None:
    async def scenario(node: Node) -> None:
        client = await node.client()
        client.send(header=True)
        await client.method()
        client.send(ConnectionClose(reply_code=200, reply_text="bye", class_id=0, method_id=0))
        assert isinstance(await client.method(), ConnectionCloseOk)
        assert await client.at_end()
        client.close()

    with_node(scenario)


def test_a_half_open_client_is_gone_in_time() -> None:
    async def scenario(node: Node) -> None:
        clients = [await node.client() for _ in range(3)]
        clients[1].send(header=True)
        clients[2].send(start_ok(), header=True)
        for client in clients:
            await client.until_end()
            client.close()
        assert node.listener.half_open == 0
        assert not node.opened

    with_node(scenario, handshake_timeout_s=1.0)  # long enough for the steps above


def test_of_too_many_the_oldest_go() -> None:
    async def scenario(node: Node) -> None:
        clients = [await node.client() for _ in range(40)]
        for client in clients[:30]:
            assert await client.at_end()
        assert node.listener.half_open == 10
        last = clients[-1]
        last.send(start_ok(), tune_ok(), ConnectionOpen(virtual_host="/"), header=True)
        await node.has_opened.wait()
        for client in clients:
            client.close()

    with_node(scenario, half_open_max=10)


@pytest.mark.parametrize("size_bytes", [8192 - 8 + 1, 131_072 - 8, 0x7FFFFFFF])
def test_a_frame_larger_than_allowed_is_not_waited_for(size_bytes: int) -> None:
    async def scenario(node: Node) -> None:
        client = await node.client()
        client.send(header=True)
        await client.method()
        client.writer.write(b"\1\0\0" + size_bytes.to_bytes(4, "big"))
        assert await client.at_end()
        client.close()

    with_node(scenario)


def test_the_largest_start_ok_logs_in_and_is_kept_as_bytes() -> None:
    async def scenario(node: Node) -> None:
        empty = start_ok(client_properties=encode_table({"x": ""}))
        filler = 8192 - len(method_frame(0, empty.encode()))
        properties = encode_table({"x": "y" * filler})
        first = start_ok(client_properties=properties)
        assert len(method_frame(0, first.encode())) == 8192
        client = await node.client()
        client.send(first, header=True)
        assert isinstance(await client.method(), ConnectionStart)
        assert isinstance(await client.method(), ConnectionTune)
        assert node.listener.held_bytes == len(properties)
        client.send(tune_ok(), ConnectionOpen(virtual_host="/"))
        await node.has_opened.wait()
        assert node.opened[0][0].client_properties == properties
        await asyncio.sleep(0)
        assert node.listener.held_bytes == 0
        client.close()

    with_node(scenario)


def test_what_all_half_open_clients_hold_is_bounded() -> None:
    async def scenario(node: Node) -> None:
        properties = encode_table({"x": "y" * 5000})
        clients = []
        for _ in range(30):
            client = await node.client()
            client.send(start_ok(client_properties=properties), header=True)
            assert isinstance(await client.method(), ConnectionStart)
            assert isinstance(await client.method(), ConnectionTune)
            assert node.listener.held_bytes <= 50_000
            clients.append(client)
        assert node.listener.half_open == 9
        assert node.listener.dropped == 21
        for client in clients[:21]:
            assert await client.at_end()
        clients[-1].send(tune_ok(), ConnectionOpen(virtual_host="/"))
        await node.has_opened.wait()
        for client in clients:
            client.close()

    with_node(scenario, half_open_bytes_max=50_000)


def test_one_address_does_not_push_out_another() -> None:
    async def scenario(node: Node) -> None:
        first = await node.client("127.0.0.2")
        first.send(header=True)
        await first.method()
        clients = [await node.client() for _ in range(40)]
        for client in clients[:31]:
            assert await client.at_end()
        first.send(start_ok(), tune_ok(), ConnectionOpen(virtual_host="/"))
        await node.has_opened.wait()
        for client in [first, *clients]:
            client.close()

    with_node(scenario, half_open_max=10)


def test_a_refused_client_costs_nothing_but_its_socket(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(node: Node) -> None:
        clients = []
        for n in range(30):
            client = await node.client()
            client.send(start_ok("n\n" + str(n), "wrong"), header=True)
            await client.method()
            assert isinstance(await client.method(), ConnectionClose)
            clients.append(client)
            assert node.listener.held_bytes == 0
            node.clock.advance(10.0)
        assert node.listener.half_open == 0
        assert len(node.listener._refused) <= 10
        for client in clients[:20]:
            assert await client.at_end()
        for client in clients:
            client.close()

    with_node(scenario, half_open_max=10)
    assert "PLAIN login refused: user 'n\n0' - invalid credentials" in caplog.text


def test_a_port_that_is_taken_is_named() -> None:
    with bind("127.0.0.1", 0)[0] as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match="Address already in use") as error:
            bind("127.0.0.1", port)
        assert error.value.filename == f"127.0.0.1:{port}"


def test_all_addresses_of_a_name_share_the_port() -> None:
    socks = bind("localhost", 0)
    try:
        assert len({sock.getsockname()[1] for sock in socks}) == 1
        assert all(sock.family in (socket.AF_INET, socket.AF_INET6) for sock in socks)
    finally:
        for sock in socks:
            sock.close()
