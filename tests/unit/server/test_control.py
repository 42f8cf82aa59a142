import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from penstock.errors import AMQPError
from penstock.operation_json import dumps, loads, read
from penstock.server import control, polling_loop
from penstock.server.control import NAME, ControlClient, ControlError, NoServerError
from penstock.server.process_link import ControlServer, ProcessLink


class Node:
    """What is behind the socket in these tests."""

    def __init__(self) -> None:
        self.gone: list[tuple[str, str]] = []
        self.has_gone = asyncio.Event()
        self.gate = asyncio.Event()

    async def call(self, op: str, vhost: str | None, data: bytes) -> list[bytes]:
        args = loads(data, is_exact=True)
        if op in ("echo", "get"):
            return [dumps({"vhost": vhost, **args}, is_exact=True)]
        if op == "wait":
            await self.gate.wait()
            return [b'"wai', b'ted"']
        if op == "open":
            self.gate.set()
            return [b"null"]
        if op == "bug":
            raise KeyError("mistake")
        raise AMQPError(404, f"no operation '{op}'")

    def session_gone(self, vhost: str, session: str) -> None:
        self.gone.append((vhost, session))
        self.has_gone.set()


def with_server(
    directory: Path, scenario: Callable[[Node, ControlServer], Awaitable[None]]
) -> None:
    async def run() -> None:
        node = Node()
        server = ControlServer(str(directory / NAME), node.call, node.session_gone)
        server.start()
        try:
            async with asyncio.timeout(240):
                await scenario(node, server)
        finally:
            await server.stop()

    polling_loop.run(run())


def call(path: Path, op: str, vhost: str | None = None, **args: object) -> object:
    with ControlClient(str(path)) as client:
        return client.call(op, vhost, **args)


def test_a_call_and_its_result(tmp_path: Path) -> None:
    async def scenario(_node: Node, _server: ControlServer) -> None:
        result = await asyncio.to_thread(call, tmp_path, "echo", "/v", body=b"\0\xff", n=3)
        assert result == {"vhost": "/v", "body": b"\0\xff", "n": 3}
        assert (tmp_path / NAME).stat().st_mode & 0o777 == 0o600

    with_server(tmp_path, scenario)
    assert not (tmp_path / NAME).exists()


def test_refusals_carry_their_code_and_mistakes_are_told(tmp_path: Path) -> None:
    async def scenario(_node: Node, _server: ControlServer) -> None:
        with pytest.raises(ControlError, match="NOT_FOUND - no operation 'x'") as refused:
            await asyncio.to_thread(call, tmp_path, "x")
        assert refused.value.code == 404
        with pytest.raises(ControlError, match="KeyError") as mistaken:
            await asyncio.to_thread(call, tmp_path, "bug")
        assert mistaken.value.code == 541

    with_server(tmp_path, scenario)


async def connected(directory: Path, on_end: Callable[[str], None]) -> ProcessLink:
    """A link to the control socket."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.setblocking(False)
    sock.connect(str(directory / NAME))
    return ProcessLink(sock, on_end)


def test_a_slow_call_holds_no_other_up(tmp_path: Path) -> None:
    async def scenario(_node: Node, _server: ControlServer) -> None:
        link = await connected(tmp_path, lambda _: None)
        waiting = asyncio.ensure_future(link.call("wait", None, b"{}"))
        assert await link.call("open", None, b"") == (b"null", [], False)
        assert await waiting == (b'"waited"', [], False)
        with pytest.raises(ControlError, match="expected a JSON object") as refused:
            await link.call("echo", None, b"[]")
        assert refused.value.code == 502
        link.close()

    with_server(tmp_path, scenario)


def test_what_cannot_be_understood_ends_the_connection(tmp_path: Path) -> None:
    async def scenario(_node: Node, _server: ControlServer) -> None:
        ended = asyncio.Event()
        link = await connected(tmp_path, lambda _: ended.set())
        link.write([(b'\0{"id": 1, "op": "echo"}',)])
        await ended.wait()
        assert await asyncio.to_thread(call, tmp_path, "echo") == {"vhost": None}

    with_server(tmp_path, scenario)


def test_a_text_with_half_of_a_surrogate_pair_is_refused(tmp_path: Path) -> None:
    """Wherever it is; one that stands for a byte passes, and so does a whole pair."""

    async def scenario(_node: Node, _server: ControlServer) -> None:
        link = await connected(tmp_path, lambda _: None)
        for args in (
            rb'{"a\ud800": 1}',
            rb'{"a": "a\ud800"}',
            rb'{"a": [{"b": ["a\ud800"]}]}',
        ):
            with pytest.raises(ControlError, match=r"half of a surrogate pair: 'a.ud800'") as wrong:
                await link.call("echo", "/", args)
            assert wrong.value.code == 502
        for name in ("a\udcff", "a\U0001f600"):
            found = await link.call("echo", "/", dumps({"name": name}, is_exact=True))
            assert read(found.data) == {"vhost": "/", "name": name}
        link.close()

    with_server(tmp_path, scenario)


def test_sessions_end_with_their_connection(tmp_path: Path) -> None:
    async def scenario(node: Node, _server: ControlServer) -> None:
        await asyncio.to_thread(call, tmp_path, "get", None, session="s1")
        await node.has_gone.wait()
        assert node.gone == [("/", "s1")]

    with_server(tmp_path, scenario)


def test_nobody_there(tmp_path: Path) -> None:
    with pytest.raises(NoServerError, match="No such file"):
        call(tmp_path, "echo")


def test_a_path_too_long_for_a_socket(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120)
    deep.mkdir()

    async def scenario(_node: Node, _server: ControlServer) -> None:
        assert await asyncio.to_thread(call, deep, "echo", None, a=1) == {"vhost": None, "a": 1}

    with_server(deep, scenario)


def test_one_that_goes_away_is_no_server(tmp_path: Path) -> None:
    async def scenario(_node: Node, server: ControlServer) -> None:
        told: list[str] = []

        def ask() -> None:
            with ControlClient(str(tmp_path)) as client:
                client.call("echo")
                connected.set()
                with pytest.raises(NoServerError):
                    client.call("wait")
                told.append("gone")

        connected = threading.Event()
        asking = asyncio.create_task(asyncio.to_thread(ask))
        await asyncio.to_thread(connected.wait)
        await server.stop()
        await asking
        assert told == ["gone"]

    with_server(tmp_path, scenario)


def test_a_session_is_known_though_its_connection_ends_at_once(tmp_path: Path) -> None:
    """The call is not answered yet, and what it takes must go back."""

    async def scenario(node: Node, _server: ControlServer) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.connect(str(tmp_path / NAME))
            for packet in control.a_call(1, "get", "/v", b'{"session": "s2"}'):
                sock.sendmsg(packet)
        await node.has_gone.wait()
        assert node.gone == [("/v", "s2")]

    with_server(tmp_path, scenario)
