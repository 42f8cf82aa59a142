import asyncio
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.clock import SystemClock
from penstock.config import Config
from penstock.errors import AMQPError
from penstock.operation_json import dumps, read
from penstock.server import polling_loop
from penstock.server.control import ControlError
from penstock.server.watched_http import WatchedHttp, WatchedTls
from penstock.server.watched_process import DOWN, RUNNING, STARTING, STOPPED, ProcessDown

PROGRAM = (sys.executable, str(Path(__file__).parents[2] / "helpers" / "fake_http.py"))


class Rig:
    """A watched HTTP process, its users, and what it asked."""

    def __init__(self, settings: Config) -> None:
        self.sock = socket.create_server(("127.0.0.1", 0))
        self.socks = [self.sock]
        self.users: list[list[object]] = [["guest", "hash", []]]
        self.asked: asyncio.Queue[tuple[str, dict[str, Any]]] = asyncio.Queue()
        self.result: object = {"b": [1]}
        self.http = WatchedHttp(
            self.socks, settings, SystemClock(), lambda: {"users": self.users}, self.answer,
            self.open_link, PROGRAM,
        )  # fmt: skip

    async def answer(self, op: str, vhost: str | None, args: bytes) -> list[bytes]:
        self.asked.put_nowait((op, read(args)))
        if isinstance(self.result, BaseException):
            raise self.result
        return [dumps(self.result)]

    async def open_link(self, vhost: str) -> socket.socket:
        raise ControlError(404, f"NOT_FOUND - no vhost '{vhost}'")


def with_http(scenario: Callable[[Rig], Awaitable[None]], **settings: float) -> None:
    async def run() -> None:
        values: dict[str, float] = {"ping_s": 0.02, **settings}
        rig = Rig(Config(**values))  # type: ignore[arg-type]
        try:
            async with asyncio.timeout(240):
                await scenario(rig)
        finally:
            await rig.http.stop()
            for sock in rig.socks:
                sock.close()

    polling_loop.run(run())


def test_it_is_told_sockets_and_users_and_its_calls_are_answered() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.http.ready()
        port = rig.http.port
        assert await rig.asked.get() == ("seen", {"users": ["guest"], "ports": [port]})
        told = {"result": {"b": [1]}, "error": None}
        assert await rig.asked.get() == ("told", told)
        rig.users.append(["ann", "hash", []])
        rig.http.push_users()
        assert (await rig.asked.get())[1]["users"] == ["guest", "ann"]
        assert rig.sock.fileno() >= 0
        while rig.http.requests != 8:
            await asyncio.sleep(0)
        facts = rig.http.facts()
        assert (facts["state"], facts["port"], facts["rss_bytes"]) == (RUNNING, port, 7)
        await rig.http.stop()
        assert (rig.http.state, rig.http.facts()["pid"]) == (STOPPED, None)

    with_http(scenario)


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [(AMQPError(404, "no"), 404, "NOT_FOUND - no"), (KeyError("x"), 541, "KeyError: 'x'")],
)
def test_a_call_may_fail(error: Exception, code: int, text: str) -> None:
    async def scenario(rig: Rig) -> None:
        rig.result = error
        await rig.http.ready()
        await rig.asked.get()
        _, told = await rig.asked.get()
        assert told == {"result": None, "error": {"code": code, "text": text}}

    with_http(scenario)


def test_a_new_life_has_the_sockets_and_the_users_of_now() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.http.ready()
        port = rig.http.port
        assert (await rig.asked.get())[1] == {"users": ["guest"], "ports": [port]}
        assert (await rig.asked.get())[0] == "told"
        rig.users.append(["ann", "hash", []])
        rig.http.kill("tested")
        while rig.http.starts < 2:
            await asyncio.sleep(0)
        await rig.http.ready()
        assert (await rig.asked.get())[1] == {"users": ["guest", "ann"], "ports": [port]}

    with_http(scenario)


def test_one_that_stays_down_lets_nobody_wait() -> None:
    async def scenario(rig: Rig) -> None:
        rig.result = "die"
        rig.http.start()
        while rig.http.state != DOWN:
            await asyncio.sleep(0)
        with pytest.raises(ProcessDown, match="http is down: its process ended with status 3"):
            await rig.http.ready()
        assert (rig.http.state, rig.http.starts) == (DOWN, 2)
        assert rig.sock.fileno() == -1

    # ping_s: that long it may take from the end of its link to its own.
    with_http(scenario, vhost_restarts_max=1, ping_s=30.0)


def test_one_that_was_down_listens_at_its_port_again() -> None:
    async def scenario(rig: Rig) -> None:
        port = rig.http.port
        rig.result = "die"
        rig.http.start()
        while rig.http.state != DOWN:
            await asyncio.sleep(0)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port)).close()
        while not rig.asked.empty():
            rig.asked.get_nowait()
        rig.result = "live"
        await rig.http.restart()
        assert (await rig.asked.get())[1] == {"users": ["guest"], "ports": [port]}
        socket.create_connection(("127.0.0.1", port)).close()

    with_http(scenario, vhost_restarts_max=0, ping_s=30.0)


def test_certificates_that_change_while_the_process_of_tls_starts_are_read_again() -> None:
    async def scenario() -> None:
        tls = WatchedTls({}, Config(ping_s=0.02), SystemClock(), {}, PROGRAM)
        tls.reload()  # it will read them when it starts
        tls.start()
        while not tls.pid:
            await asyncio.sleep(0)
        assert tls.state == STARTING
        tls.reload()
        try:
            async with asyncio.timeout(240):
                await tls.ready()
                await tls.heard()
            assert tls.facts()["accepted"] == 1
        finally:
            await tls.stop()

    polling_loop.run(scenario())
