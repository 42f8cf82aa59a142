"""A broker that systemd has started says what it does, by sd_notify(3)."""

import os
import signal
import socket
from pathlib import Path

from tests.helpers.live_broker import LiveBroker


def test_systemd_is_told_of_start_reload_and_stop(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.settimeout(120)

        def told(count: int) -> set[str]:
            """The first lines of the next datagrams."""
            return {sock.recv(999).decode().split("\n")[0] for _ in range(count)}

        # The watchdog is told at the start, and then not again during this test.
        environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "9" * 12}
        with LiveBroker(tmp_path / "data", environment=environment) as broker:
            assert told(2) == {"READY=1", "WATCHDOG=1"}
            os.kill(broker.pid, signal.SIGHUP)
            assert told(2) == {"RELOADING=1", "READY=1"}
            os.kill(broker.pid, signal.SIGTERM)
            assert told(1) == {"STOPPING=1"}
