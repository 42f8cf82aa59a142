import asyncio
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from penstock.access.permissions import everything
from penstock.clock import SystemClock
from penstock.server.control import ControlError
from penstock.server.handoff import Opened
from penstock.server.serve_settings import ServeSettings
from penstock.server.watched_process import DOWN, RUNNING, STOPPED
from penstock.server.watched_vhost import VhostDown, WatchedVhost

PROGRAM = (sys.executable, str(Path(__file__).parents[2] / "helpers" / "fake_vhost.py"))
OPENED = Opened(
    name="a -> b", peer_host="127.0.0.1", peer_port=1, host="127.0.0.1", port=2, user="ann",
    vhost="/", client_properties={}, frame_max=131072, channel_max=2047, heartbeat_s=0,
    connected_at_ms=0,
)  # fmt: skip


class JumpingClock(SystemClock):
    """As if the process had been stopped for a while."""

    offset_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.offset_s


class Rig:
    """A watched vhost, and what it says about itself."""

    def __init__(self, behaviour: str, settings: ServeSettings) -> None:
        self.down = asyncio.Event()
        self.clock = JumpingClock()
        self.vhost = WatchedVhost(
            "/", behaviour, settings, self.clock, lambda _: self.down.set(), PROGRAM
        )
        self.vhost.memory_bytes = 1000

    async def pid(self) -> int:
        answer = await self.vhost.call("pid", {})
        assert isinstance(answer, list)
        return int(answer[2])


def with_vhost(
    behaviour: str, scenario: Callable[[Rig], Awaitable[None]], **settings: float
) -> None:
    async def run() -> None:
        values: dict[str, float] = {"ping_s": 0.02, **settings}
        rig = Rig(behaviour, ServeSettings(**values))  # type: ignore[arg-type]
        try:
            async with asyncio.timeout(60):
                await scenario(rig)
        finally:
            await rig.vhost.stop()

    asyncio.run(run())


def test_it_is_started_when_somebody_wants_it_and_stops_in_order() -> None:
    async def scenario(rig: Rig) -> None:
        vhost = rig.vhost
        assert vhost.state == STOPPED
        assert await vhost.call("echo", {"body": b"\xff"}) == ["echo", {"body": b"\xff"}, vhost.pid]
        assert vhost.state == RUNNING
        with pytest.raises(ControlError, match="NOT_FOUND - no"):
            await vhost.call("refuse", {})
        await vhost.stop()
        assert (vhost.state, vhost.pid, vhost.restarts) == (STOPPED, 0, 0)
        assert not rig.down.is_set()

    with_vhost("good", scenario)


def test_a_socket_is_handed_over_with_what_was_read() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.vhost.ready()
        client, server = socket.socketpair()
        client.setblocking(False)
        rig.vhost.hand_over(OPENED, everything("ann"), b"frames", server)
        assert await asyncio.get_running_loop().sock_recv(client, 99) == b"got frames"
        assert server.fileno() == -1
        client.close()

    with_vhost("good", scenario)


def test_counters_come_with_pongs_and_memory_is_acknowledged() -> None:
    async def scenario(rig: Rig) -> None:
        vhost = rig.vhost
        await vhost.ready()
        taken = asyncio.Event()
        vhost.on_memory = taken.set
        vhost.tell_memory(77)
        await taken.wait()
        assert vhost.memory_bytes == 77
        while vhost.depth_bytes != 5:
            await asyncio.sleep(0)
        assert (vhost.connections, vhost.rss_bytes) == (6, 7)

    with_vhost("good", scenario)


def test_one_that_dies_is_started_again() -> None:
    async def scenario(rig: Rig) -> None:
        first = await rig.pid()
        with pytest.raises(VhostDown, match=r"status 3|has ended|link ended"):
            await rig.vhost.call("die", {})
        assert await rig.pid() != first
        assert rig.vhost.restarts == 1
        assert not rig.down.is_set()

    with_vhost("good", scenario)


def test_one_that_hangs_is_killed_and_in_the_end_stays_down() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.vhost.ready()
        await rig.down.wait()
        assert rig.vhost.state == DOWN
        assert rig.vhost.starts == 2
        assert "did not answer for" in rig.vhost.why
        with pytest.raises(VhostDown, match="vhost '/' is down: it did not answer"):
            await rig.vhost.ready()

    with_vhost("hangs", scenario, vhost_hang_s=0.1, vhost_restarts_max=1)


def test_a_pause_of_the_supervisor_is_nobodys_silence() -> None:
    async def scenario(rig: Rig) -> None:
        first = await rig.pid()
        for _ in range(3):
            rig.clock.offset_s += 3600.0
            assert await rig.pid() == first
            before = rig.vhost.pongs
            while rig.vhost.pongs == before:
                await asyncio.sleep(0)
        assert rig.vhost.restarts == 0

    with_vhost("good", scenario, vhost_hang_s=20.0)


def test_more_failures_than_allowed_and_it_stays_down_until_told() -> None:
    async def scenario(rig: Rig) -> None:
        with pytest.raises(VhostDown, match="its process ended with status 74"):
            await rig.vhost.ready()
        assert (rig.vhost.state, rig.vhost.starts) == (DOWN, 3)
        assert rig.down.is_set()
        rig.vhost.path = "good"
        rig.vhost.restart()
        await rig.vhost.ready()
        assert rig.vhost.state == RUNNING

    # ping_s: that long it may take from the end of its link to its own.
    with_vhost("dies", scenario, vhost_restarts_max=2, ping_s=30.0)


def test_old_failures_are_forgotten() -> None:
    async def scenario(rig: Rig) -> None:
        for _ in range(3):
            with pytest.raises(VhostDown):
                await rig.vhost.call("die", {})
            await rig.vhost.ready()
        assert rig.vhost.state == RUNNING

    with_vhost("good", scenario, vhost_restarts_max=1, vhost_restart_window_s=0.0)


def test_what_cannot_start_for_good_is_not_tried_again() -> None:
    async def scenario(rig: Rig) -> None:
        with pytest.raises(VhostDown, match=r"a\.wal: at byte 7: bad"):
            await rig.vhost.ready()
        assert rig.vhost.starts == 1

    with_vhost("corrupt", scenario)


def test_one_that_does_not_stop_is_killed() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.vhost.ready()
        await rig.vhost.stop()
        assert rig.vhost.state == STOPPED

    with_vhost("stubborn", scenario, stop_s=0.05)


def test_stopped_while_it_starts() -> None:
    async def scenario(rig: Rig) -> None:
        rig.vhost.start()
        await rig.vhost.stop()
        assert rig.vhost.state == STOPPED
        with socket.socket() as unused, pytest.raises(VhostDown):
            rig.vhost.hand_over(OPENED, everything("ann"), b"", unused)

    with_vhost("good", scenario)
