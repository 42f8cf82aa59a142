import asyncio
import logging
import os
import re
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.access.limits import LimitTable
from penstock.access.permissions import everything
from penstock.broker.connection_facts import ConnectionFacts
from penstock.broker.in_flight import MESSAGES, signature
from penstock.clock import SystemClock
from penstock.config import Config
from penstock.errors import AMQPConnectionError
from penstock.operation_json import dumps, read
from penstock.server import polling_loop
from penstock.server.control import ControlError
from penstock.server.watched_process import DOWN, RUNNING, STARTING, STOPPED
from penstock.server.watched_vhost import VhostDown, WatchedVhost
from penstock.storage.files.data_directory import DataDirectory
from penstock.storage.files.filesystem import OsFileSystem

PROGRAM = (sys.executable, str(Path(__file__).parents[2] / "helpers" / "fake_vhost.py"))
OPENED = ConnectionFacts(
    name="a -> b", peer_host="127.0.0.1", peer_port=1, host="127.0.0.1", port=2, user="ann",
    vhost="/", client_properties=b"\0\0\0\0", frame_max=131072, channel_max=2047, heartbeat_s=0,
    connected_at_ms=0,
)  # fmt: skip


async def ask(vhost: WatchedVhost, op: str, args: dict[str, object]) -> Any:
    """The result of an operation."""
    return read(await vhost.call(op, dumps(args)))


class JumpingClock(SystemClock):
    """As if the process had been stopped for a while."""

    offset_s = 0.0
    now_ms = 1_700_000_000_000

    def monotonic(self) -> float:
        return super().monotonic() + self.offset_s

    def wall_ms(self) -> int:
        return self.now_ms


class Rig:
    """A watched vhost, and what it says about itself."""

    def __init__(self, behaviour: str, settings: Config) -> None:
        self.down = asyncio.Event()
        self.clock = JumpingClock()
        self.limits = LimitTable(settings.limits)
        self.vhost = WatchedVhost(
            "/", behaviour, settings, self.clock, lambda _: self.down.set(), PROGRAM,
            limits=self.limits,
        )  # fmt: skip
        self.vhost.memory_bytes = 1000

    async def pid(self) -> int:
        answer = await ask(self.vhost, "pid", {})
        assert isinstance(answer, list)
        return int(answer[2])


def with_vhost(
    behaviour: str, scenario: Callable[[Rig], Awaitable[None]], **settings: float
) -> None:
    async def run() -> None:
        values: dict[str, float] = {"ping_s": 0.02, **settings}
        rig = Rig(behaviour, Config(**values))  # type: ignore[arg-type]
        try:
            async with asyncio.timeout(240):
                await scenario(rig)
        finally:
            await rig.vhost.stop()

    polling_loop.run(run())


def test_it_is_started_when_somebody_wants_it_and_stops_in_order() -> None:
    async def scenario(rig: Rig) -> None:
        vhost = rig.vhost
        assert vhost.state == STOPPED
        assert await ask(vhost, "echo", {"body": "b"}) == ["echo", {"body": "b"}, vhost.pid]
        assert vhost.state == RUNNING
        with pytest.raises(ControlError, match="NOT_FOUND - no"):
            await ask(vhost, "refuse", {})
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

    # ping_s: one that has not answered two pings takes no clients.
    with_vhost("good", scenario, ping_s=1.0)


def test_counters_come_with_pongs_and_memory_is_acknowledged() -> None:
    async def scenario(rig: Rig) -> None:
        vhost = rig.vhost
        await vhost.ready()
        taken = asyncio.Event()
        vhost.on_memory = taken.set
        vhost.set_memory(77)
        await taken.wait()
        assert vhost.memory_bytes == 77
        while vhost.depth_bytes != 5:
            await asyncio.sleep(0)
        assert (vhost.connections, vhost.rss_bytes, vhost.returned_bytes) == (6, 7, 9)
        assert (vhost.counted_bytes, vhost.blocked_reason) == (8, "disk")

    with_vhost("good", scenario)


def test_limits_that_change_are_waited_for() -> None:
    async def scenario(rig: Rig) -> None:
        vhost = rig.vhost
        await vhost.heard()
        await vhost.ready()
        vhost.send_limits()
        assert not vhost.is_tracing
        await vhost.heard()
        assert vhost.is_tracing, "the process had the limits before it answered"
        await asyncio.gather(vhost.heard(), vhost.heard())
        os.kill(vhost.pid, signal.SIGSTOP)
        hearing = asyncio.ensure_future(vhost.heard())
        await asyncio.sleep(0)
        assert not hearing.done()
        vhost.kill("of the test")
        await hearing

    with_vhost("good", scenario, ping_s=5.0)


def test_who_waits_is_not_answered_with_what_was_asked_before() -> None:
    async def scenario(rig: Rig) -> None:
        vhost = rig.vhost
        await vhost.ready()
        os.kill(vhost.pid, signal.SIGSTOP)
        first = asyncio.ensure_future(vhost.heard())
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait([first])
        vhost.send_limits()
        second = asyncio.ensure_future(vhost.heard())
        before = vhost.pongs
        os.kill(vhost.pid, signal.SIGCONT)
        while vhost.pongs == before:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not second.done(), "the limits come after what was asked first"
        while not second.done():
            os.kill(vhost.pid, signal.SIGCONT)
            await asyncio.sleep(0)
        assert vhost.is_tracing

    with_vhost("pauses", scenario, ping_s=5.0)


def test_limits_that_change_during_a_start_are_sent() -> None:
    async def scenario(rig: Rig) -> None:
        vhost = rig.vhost
        vhost.start()
        while not vhost.rss_bytes:  # it answers pings, and waits
            await asyncio.sleep(0)
        assert vhost.state == STARTING
        limits = {"ann": {"max-channels": 3}}
        rig.limits.set({}, limits, {})
        vhost.send_limits()
        os.kill(vhost.pid, signal.SIGUSR1)
        while vhost.state == STARTING:
            await asyncio.sleep(0)
        assert await ask(vhost, "limits", {}) == limits

    with_vhost("waits", scenario)


def test_memory_that_changes_during_a_start_is_sent() -> None:
    """Else vhosts that start at the same time have more than there is."""

    async def scenario(rig: Rig) -> None:
        vhost = rig.vhost
        taken = asyncio.Event()
        vhost.on_memory = taken.set
        vhost.start()
        while not vhost.rss_bytes:
            await asyncio.sleep(0)
        assert vhost.state == STARTING
        vhost.set_memory(500)
        os.kill(vhost.pid, signal.SIGUSR1)
        while vhost.state == STARTING:
            await asyncio.sleep(0)
        assert await ask(vhost, "memory", {}) == 500
        assert taken.is_set()

    with_vhost("waits", scenario)


def test_one_that_dies_is_started_again() -> None:
    async def scenario(rig: Rig) -> None:
        first = await rig.pid()
        with pytest.raises(VhostDown, match=r"status 3|has ended|link ended"):
            await ask(rig.vhost, "die", {})
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
        await rig.vhost.restart()
        assert rig.vhost.state == RUNNING

    # ping_s: that long it may take from the end of its link to its own.
    with_vhost("dies", scenario, vhost_restarts_max=2, ping_s=30.0)


def test_old_failures_are_forgotten() -> None:
    async def scenario(rig: Rig) -> None:
        for _ in range(3):
            with pytest.raises(VhostDown):
                await ask(rig.vhost, "die", {})
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


def test_one_that_is_down_is_started_again_after_a_pause_that_doubles() -> None:
    async def scenario(rig: Rig) -> None:
        vhost = rig.vhost
        pauses = []
        for starts in (1, 2, 3):
            with pytest.raises(VhostDown, match=r"status 74; it is started again in \d+ s"):
                await vhost.ready()
            assert vhost.starts == starts
            assert vhost.retry_in_s is not None
            pauses.append(vhost.retry_in_s)
            if starts == 3:
                vhost.path = "good"
            vhost._begin()
        first, second, third = pauses
        assert first <= 100 < second <= 200 < third <= 300  # never above RETRY_MAX_S
        await vhost.ready()
        assert vhost.retry_in_s is None

    with_vhost("dies", scenario, vhost_restarts_max=0, vhost_retry_s=100.0, ping_s=30.0)


def test_the_pause_ends_by_itself() -> None:
    async def scenario(rig: Rig) -> None:
        rig.vhost.start()
        await rig.down.wait()
        rig.vhost.path = "good"
        while rig.vhost.state != RUNNING:
            await asyncio.sleep(0)

    with_vhost("dies", scenario, vhost_restarts_max=0, vhost_retry_s=0.01, ping_s=30.0)


def test_a_vhost_that_runs_for_a_window_begins_with_the_first_pause_again() -> None:
    async def scenario(rig: Rig) -> None:
        rig.vhost._retries = 5
        await rig.vhost.ready()
        rig.clock.offset_s += 1000.0
        with pytest.raises(VhostDown):
            await ask(rig.vhost, "die", {})
        await rig.vhost.ready()
        assert rig.vhost.starts == 2

    with_vhost("good", scenario, vhost_restart_window_s=900.0, vhost_hang_s=5000.0)


def test_an_operator_restarts_one_that_runs() -> None:
    async def scenario(rig: Rig) -> None:
        first = await rig.pid()
        await rig.vhost.restart()
        assert await rig.pid() != first

    with_vhost("good", scenario)


def test_one_that_an_operator_holds_is_started_by_nobody_until_it_is_release() -> None:
    async def scenario(rig: Rig) -> None:
        vhost = rig.vhost
        assert vhost.reason() == "nobody has opened it yet"
        first = await rig.pid()
        assert vhost.reason() == ""
        await vhost.hold()
        assert (vhost.state, vhost.pid) == (STOPPED, 0)
        assert vhost.reason() == "stopped by an operator"
        vhost.start()
        with pytest.raises(VhostDown, match="vhost '/' is down: an operator has stopped it"):
            await rig.pid()
        with pytest.raises(VhostDown, match="an operator has stopped it"):
            await vhost.restart()
        assert vhost.starts == 1
        await vhost.release()
        assert await rig.pid() != first
        assert not rig.down.is_set()

    with_vhost("good", scenario, ping_s=30.0)


def test_one_that_is_let_go_while_it_still_stops_runs_in_the_end() -> None:
    async def scenario(rig: Rig) -> None:
        first = await rig.pid()
        holding = asyncio.ensure_future(rig.vhost.hold())
        await asyncio.sleep(0)
        assert rig.vhost.reason() == "is stopped by an operator"
        await rig.vhost.release()
        await holding
        assert rig.vhost.state == RUNNING
        assert await rig.pid() != first

    with_vhost("good", scenario)


def test_one_that_is_down_can_be_held_and_is_not_tried_again() -> None:
    async def scenario(rig: Rig) -> None:
        with pytest.raises(VhostDown):
            await rig.vhost.ready()
        await rig.vhost.hold()
        assert (rig.vhost.state, rig.vhost.retry_in_s) == (STOPPED, None)
        assert rig.vhost.reason() == "stopped by an operator"
        rig.vhost.path = "good"
        await rig.vhost.release()
        assert rig.vhost.state == RUNNING

    with_vhost("dies", scenario, vhost_restarts_max=0, vhost_retry_s=100.0, ping_s=30.0)


def test_why_one_does_not_serve_and_since_when() -> None:
    async def scenario(rig: Rig) -> None:
        vhost = rig.vhost
        assert vhost.since_ms is None
        vhost.start()
        assert vhost.reason() == "starts"
        begun_ms = vhost.since_ms
        assert begun_ms == rig.clock.now_ms
        rig.clock.now_ms += 1000
        with pytest.raises(VhostDown):
            await vhost.ready()
        assert vhost.since_ms == begun_ms  # it has not served since
        why = vhost.reason()
        assert why.startswith("failed: its process ended with status 74; started again in 100 s; ")
        assert re.search(r"the log has more, in lines of \"vhost '/'\" until [-\d]+ [:\d]+$", why)
        vhost.path = "good"
        vhost._begin()
        assert vhost.reason() == "starts again after: its process ended with status 74"
        await vhost.ready()
        assert vhost.since_ms == rig.clock.now_ms
        assert vhost.reason() == ""
        vhost._refused["ann", "queue.declare"] = rig.clock.monotonic() + 60.5
        assert vhost.reason() == "refuses queue.declare of user 'ann' for 60 s"

    with_vhost("dies", scenario, vhost_restarts_max=0, vhost_retry_s=100.0, ping_s=30.0)


async def crash(
    rig: Rig, number: int, operation: str, *, stays: bool = False, is_shared: bool = False
) -> None:
    args = {
        "user": "ann", "operation": operation, "signal": number, "stays": stays,
        "is_shared": is_shared,
    }  # fmt: skip
    with pytest.raises(VhostDown):
        await ask(rig.vhost, "crash", args)
    await rig.vhost.ready()


def test_a_request_that_ended_the_process_twice_is_refused_for_a_while(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)

    async def scenario(rig: Rig) -> None:
        vhost = rig.vhost
        await crash(rig, signal.SIGSEGV, "queue.declare")
        assert await ask(vhost, "refused", {}) == []
        await crash(rig, signal.SIGSEGV, "queue.delete")
        assert await ask(vhost, "refused", {}) == []
        await crash(rig, signal.SIGSEGV, "queue.declare")
        told = await ask(vhost, "refused", {})
        assert isinstance(told, list)
        assert [(one["user"], one["operation"]) for one in told] == [("ann", "queue.declare")]
        assert 0 < told[0]["seconds"] <= 600
        assert "ended twice while it handled queue.declare of user 'ann'" in caplog.text
        rig.clock.offset_s += 601.0
        assert vhost.refused() == []

    with_vhost("good", scenario, vhost_hang_s=5000.0, vhost_restarts_max=9)


def test_messages_that_ended_the_process_twice_keep_their_user_out() -> None:
    async def scenario(rig: Rig) -> None:
        await crash(rig, signal.SIGABRT, MESSAGES)
        rig.vhost.check_refused("ann")
        await crash(rig, signal.SIGABRT, MESSAGES)
        rig.vhost.check_refused("bob")
        with pytest.raises(
            AMQPConnectionError, match=r"refused for user 'ann' for \d+ s:"
        ) as found:
            rig.vhost.check_refused("ann")
        assert found.value.code == 530
        await rig.vhost.restart()
        rig.vhost.check_refused("ann")

    with_vhost("good", scenario, vhost_restarts_max=9)


@pytest.mark.parametrize(
    ("number", "operation", "stays"),
    [
        (signal.SIGKILL, MESSAGES, False),  # from outside
        (signal.SIGKILL, "queue.declare", False),  # from outside, after a moment
        (signal.SIGTERM, "queue.declare", False),
        (signal.SIGSEGV, "queue.declare", True),  # the process says that it is not to blame
    ],
)
def test_a_death_that_no_request_caused_blames_none(
    number: int, operation: str, stays: bool
) -> None:
    async def scenario(rig: Rig) -> None:
        rig.clock.offset_s -= 1000.0  # so however long it takes, it is no long time
        for _ in range(3):
            await crash(rig, number, operation, stays=stays)
        assert rig.vhost.refused() == []

    with_vhost("good", scenario, vhost_restarts_max=9)


def test_nobody_is_refused_for_what_others_have_bound(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)

    async def scenario(rig: Rig) -> None:
        for _ in range(3):
            await crash(rig, signal.SIGABRT, MESSAGES, is_shared=True)
            rig.vhost.check_refused("ann")
        assert rig.vhost.refused() == []
        assert "messages through exchange 'events' of user 'ann': nobody is refused" in caplog.text

    with_vhost("good", scenario, vhost_restarts_max=9)


def test_a_kill_after_a_long_time_in_one_request_blames_it() -> None:
    async def scenario(rig: Rig) -> None:
        for _ in range(2):
            rig.clock.offset_s += 0.3  # the supervisor's clock is that far behind the beginning
            await crash(rig, signal.SIGKILL, "queue.declare")
        assert len(rig.vhost.refused()) == 1

    with_vhost("good", scenario, vhost_restarts_max=9)


def test_the_real_process_shares_what_it_handles_and_refuses_what_it_is_told(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        fs = OsFileSystem(0)
        data = DataDirectory(fs, str(tmp_path / "data"))
        path = data.vhost_path(b"/")
        vhost = WatchedVhost("/", path, Config(), SystemClock(), lambda _: None)
        vhost.memory_bytes = 64 << 20
        vhost._refused["operator", "purge_queue"] = SystemClock().monotonic() + 60.0
        try:
            await ask(vhost, "declare_queue", {"queue": "q"})
            with pytest.raises(ControlError, match=r"purge_queue of user 'operator' is refused"):
                await ask(vhost, "purge_queue", {"queue": "q"})
            assert vhost._shared is not None
            assert signature("operator", "declare_queue") in vhost._shared[:]
        finally:
            await vhost.stop()
            data.close()
            fs.close()

    polling_loop.run(run())


# ---- one that does not serve, and is not down ---------------------------------------------------


def test_one_that_hangs_says_so_before_it_is_killed_and_takes_no_clients() -> None:
    async def scenario(rig: Rig) -> None:
        vhost = rig.vhost
        await vhost.ready()
        while not vhost.silent_s:
            await asyncio.sleep(0.01)
        assert vhost.state == RUNNING
        assert re.fullmatch(r"has not answered for \d+ s", vhost.unserved())
        assert vhost.reason() == vhost.unserved()
        client, server = socket.socketpair()
        with pytest.raises(AMQPConnectionError, match="'/' has not answered for") as caught:
            vhost.hand_over(OPENED, everything("ann"), b"", server)
        assert caught.value.code == 541
        assert vhost.clients.total() == 0
        client.close()
        server.close()
        vhost.kill("the test ends")

    with_vhost("hangs", scenario, vhost_hang_s=3600.0)


def test_one_that_waits_for_space_says_so_at_once_to_whoever_waits_for_it() -> None:
    async def scenario(rig: Rig) -> None:
        vhost = rig.vhost
        for _ in range(2):
            with pytest.raises(VhostDown, match="is down: starts once there is more disk"):
                await vhost.ready()
            assert vhost.unserved() == vhost.reason() == "starts once there is more disk"
        with pytest.raises(VhostDown, match="more disk"):
            await ask(vhost, "echo", {})
        os.kill(vhost.pid, signal.SIGUSR1)
        while vhost.state != RUNNING:
            await asyncio.sleep(0.01)
        await vhost.ready()
        while vhost.unserved():
            await asyncio.sleep(0.01)
        assert vhost.starts == 1

    with_vhost("waits", scenario)


def test_one_that_takes_no_more_clients_says_how_many_it_has() -> None:
    async def scenario(rig: Rig) -> None:
        vhost = rig.vhost
        await vhost.ready()
        while vhost.clients_max != 2:
            await asyncio.sleep(0.01)
        sockets = [socket.socketpair() for _ in range(2)]
        for _, server in sockets:
            assert vhost.crowded() == ""
            vhost.hand_over(OPENED, everything("ann"), b"", server)
        assert "has 2 connections, and no descriptors for more" in vhost.crowded()
        assert vhost.reason() == f"takes no more clients: {vhost.crowded()}"
        for client, _ in sockets:
            client.close()

    with_vhost("good", scenario, ping_s=1.0)
