import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from penstock.errors import AMQPError
from penstock.server.control import (
    NAME,
    ControlClient,
    ControlError,
    NoServerError,
    line,
)
from penstock.server.control_server import ControlServer


def test_a_line_escapes_what_is_not_ascii() -> None:
    assert json.loads(line({"name": "a\udcff"})) == {"name": "a\udcff"}


class Node:
    """What is behind the socket in these tests."""

    def __init__(self) -> None:
        self.gone: list[tuple[str, str]] = []
        self.has_gone = asyncio.Event()
        self.gate = asyncio.Event()

    async def call(self, op: str, vhost: str | None, args: dict[str, object]) -> object:
        if op == "echo":
            return {"vhost": vhost, **args}
        if op == "wait":
            await self.gate.wait()
            return "waited"
        if op == "open":
            self.gate.set()
            return None
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
        await server.start()
        try:
            async with asyncio.timeout(240):
                await scenario(node, server)
        finally:
            await server.stop()

    asyncio.run(run())


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


def test_a_slow_call_holds_no_other_up(tmp_path: Path) -> None:
    async def scenario(_node: Node, _server: ControlServer) -> None:
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / NAME))
        writer.write(b'{"id": 1, "op": "wait"}\n{"id": 2, "op": "open"}\nno json\n[]\n')
        replies = [json.loads(await reader.readline()) for _ in range(4)]
        by_id = {reply["id"]: reply for reply in replies}
        assert by_id[1] == {"id": 1, "result": "waited"}
        assert by_id[2] == {"id": 2, "result": None}
        assert [r["error"]["code"] for r in replies if r["id"] is None] == [502, 502]
        writer.close()

    with_server(tmp_path, scenario)


def test_a_text_with_half_of_a_surrogate_pair_is_refused(tmp_path: Path) -> None:
    """Wherever it is; one that stands for a byte passes, and so does a whole pair."""

    async def scenario(_node: Node, _server: ControlServer) -> None:
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / NAME))

        async def ask(op: str, vhost: str, args: object) -> dict[str, object]:
            request = {"id": 5, "op": op, "vhost": vhost, "args": args}
            writer.write(json.dumps(request).encode() + b"\n")
            reply = json.loads(await reader.readline())
            assert reply["id"] == 5
            return dict(reply)

        half = "a\ud800"
        for request in (
            (half, "/", {}), ("echo", half, {}), ("echo", "/", {half: 1}),
            ("echo", "/", {"a": half}), ("echo", "/", {"a": [{"b": [half]}]}),
        ):  # fmt: skip
            error = (await ask(*request))["error"]
            assert isinstance(error, dict)
            assert error["code"] == 502
            assert "half of a surrogate pair: 'a\\ud800'" in error["text"]
        for name in ("a\udcff", "a\U0001f600"):
            assert "error" not in await ask("echo", "/", {"name": name})
        writer.close()

    with_server(tmp_path, scenario)


def test_sessions_end_with_their_connection(tmp_path: Path) -> None:
    async def scenario(node: Node, _server: ControlServer) -> None:
        await asyncio.to_thread(call, tmp_path, "echo", None, session="s1")
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
