import asyncio
import logging
import socket
from collections.abc import Iterator

import pytest

from penstock.clock import ManualClock
from penstock.server.service_manager import ServiceManager

NAME = "@penstock-test-service-manager"


@pytest.fixture
def told() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind("\0" + NAME[1:])
        sock.setblocking(False)
        yield sock


def manager(environment: dict[str, str]) -> ServiceManager:
    return ServiceManager(environment, 7, ManualClock())


def test_each_state_is_one_datagram(told: socket.socket) -> None:
    systemd = manager({"NOTIFY_SOCKET": NAME})
    systemd.ready()
    systemd.stopping()
    assert [told.recv(99), told.recv(99)] == [b"READY=1", b"STOPPING=1"]
    systemd.reloading()
    assert told.recv(99).startswith(b"RELOADING=1\nMONOTONIC_USEC=")


def test_the_watchdog_is_told_while_the_loop_turns(told: socket.socket) -> None:
    systemd = manager({"NOTIFY_SOCKET": NAME, "WATCHDOG_USEC": "2000", "WATCHDOG_PID": "7"})

    async def live() -> None:
        task = asyncio.create_task(systemd.run())
        loop = asyncio.get_running_loop()
        for _ in range(2):
            assert await loop.sock_recv(told, 99) == b"WATCHDOG=1"
        task.cancel()

    asyncio.run(live())


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"WATCHDOG_USEC": "2000"},
        {"NOTIFY_SOCKET": NAME},
        {"NOTIFY_SOCKET": NAME, "WATCHDOG_USEC": "2000", "WATCHDOG_PID": "8"},
        {"NOTIFY_SOCKET": NAME, "WATCHDOG_USEC": "soon"},
    ],
)
def test_who_did_not_ask_has_no_watchdog(environment: dict[str, str], told: socket.socket) -> None:
    asyncio.run(manager(environment).run())
    with pytest.raises(BlockingIOError):
        told.recv(99)


def test_a_socket_that_nobody_reads_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    manager({}).ready()
    with caplog.at_level(logging.WARNING):
        manager({"NOTIFY_SOCKET": "/nowhere/notify"}).ready()
    assert "/nowhere/notify was not told READY=1" in caplog.text
