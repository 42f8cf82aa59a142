"""ServiceManager: tells what started the broker, such as systemd, its state and that it lives.

The protocol is sd_notify(3): a line of text to the datagram socket that NOTIFY_SOCKET names.

    READY=1       clients can connect, or a reload is done
    RELOADING=1   the configuration is read again
    STOPPING=1    vhosts write their checkpoints
    WATCHDOG=1    the supervisor's loop turns: twice in the time of WATCHDOG_USEC

Without NOTIFY_SOCKET nothing is told. A broker whose messages do not arrive serves all the same.
"""

import asyncio
import logging
import socket
from collections.abc import Mapping
from typing import Final

from penstock.clock import Clock

WAIT_S: Final = 1.0  # at most, for room in the socket

logger = logging.getLogger(__name__)


class ServiceManager:
    """What started this process. environment: the process's; pid: its number."""

    def __init__(self, environment: Mapping[str, str], pid: int, clock: Clock) -> None:
        path = environment.get("NOTIFY_SOCKET", "")
        self._address: Final = "\0" + path[1:] if path.startswith("@") else path
        self._clock = clock
        microseconds = environment.get("WATCHDOG_USEC", "")
        is_ours = environment.get("WATCHDOG_PID", str(pid)) == str(pid)
        self.watchdog_s: Final = (
            int(microseconds) / 1e6 if self._address and microseconds.isdecimal() and is_ours else 0
        )

    def ready(self) -> None:
        """Say that clients can connect."""
        self._tell("READY=1")

    def reloading(self) -> None:
        """Say that the configuration is read again; `ready` ends it."""
        self._tell(f"RELOADING=1\nMONOTONIC_USEC={self._clock.monotonic() * 1e6:.0f}")

    def stopping(self) -> None:
        """Say that the broker stops in order."""
        self._tell("STOPPING=1")

    async def run(self) -> None:
        """Say that the loop turns, until cancelled, if somebody wants to know."""
        while self.watchdog_s:
            self._tell("WATCHDOG=1")
            await asyncio.sleep(self.watchdog_s / 2)

    def _tell(self, text: str) -> None:
        if not self._address:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.settimeout(WAIT_S)
            try:
                sock.sendto(text.encode(), self._address)
            except OSError as error:
                logger.warning("%s was not told %s: %s", self._address, text.split("\n")[0], error)
