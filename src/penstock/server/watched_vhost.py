"""WatchedVhost: one vhost's process as the supervisor sees it.

Started when somebody wants it, watched, started again: that is watched_process. Clients of a vhost
that failed see their connections end, come again, and find the vhost as it was at its last confirm.
While it is down whoever wants to open it is told why (VhostDown). The lock of the vhost's directory
keeps a second process out in any case.

What it is told and says beyond the messages of all processes:

    to it     start (name, path, settings) · connection (with a socket) · memory (bytes)
              identity · close_user
    from it   memory_is · pong, with depth_bytes, connections, rss_bytes

Not here: which vhosts there are, what is done about one that is down (supervisor), the process
itself (vhost_process).
"""

import socket
from collections.abc import Callable, Sequence
from typing import Final

from penstock.access.permissions import Identity
from penstock.clock import Clock
from penstock.errors import AMQPConnectionError
from penstock.server.handoff import Opened, pack
from penstock.server.process_link import Facts, Link
from penstock.server.serve_settings import ServeSettings
from penstock.server.watched_process import (
    PYTHON,
    RUNNING,
    WAITING_MAX,
    ProcessDown,
    WatchedProcess,
    whole,
)

PROGRAM: Final = (*PYTHON, "penstock.server.vhost_process")
ROOMY_BYTES: Final = 512 << 20
KEPT_BYTES_MOST: Final = 128 << 20
MAPPED_BYTES: Final = 8 << 20  # larger ones are mapped, and go back to the system at once
PAD_BYTES: Final = 1 << 20
INTERNAL_ERROR: Final = 541


def allocator(memory_bytes: int) -> dict[str, str]:
    """What glibc reads at the start of a process. Memory that bodies lived in is used again, up to
    a sixteenth of the budget, instead of given back to the system, which clears each page that it
    gives out: a third of the cost of a message of 16 KiB. With a small budget every MiB counts more
    than that. An operator's own settings come first."""
    if memory_bytes < ROOMY_BYTES:
        return {}
    return {
        "MALLOC_TRIM_THRESHOLD_": str(min(memory_bytes >> 4, KEPT_BYTES_MOST)),
        "MALLOC_MMAP_THRESHOLD_": str(MAPPED_BYTES),
        "MALLOC_TOP_PAD_": str(PAD_BYTES),
    }


class VhostDown(ProcessDown):
    """It does not run. why: what keeps it from it."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"vhost '{name}'", why)
        self.name = name


class WatchedVhost(WatchedProcess):
    """`path`: its directory, which is there. on_down(vhost): it stays down from now on. program:
    what is started, with the descriptor of its end of the link behind.

    Counters of the last pong: depth_bytes, connections, rss_bytes. memory_bytes: what it was told.
    """

    def __init__(
        self,
        name: str,
        path: str,
        settings: ServeSettings,
        clock: Clock,
        on_down: Callable[["WatchedVhost"], None],
        program: Sequence[str] = PROGRAM,
    ) -> None:
        super().__init__(f"vhost {name!r}", settings, clock, program)
        self.name = name
        self.path = path
        self.memory_bytes = 0
        self.depth_bytes = 0
        self.connections = 0
        self.rss_bytes = 0
        self.on_memory: Callable[[], None] | None = None  # it has taken what it was told
        self._on_down = on_down

    def hand_over(
        self, opened: Opened, identity: Identity, leftover: bytes, sock: socket.socket
    ) -> None:
        """The client is the vhost's from now on, and the socket closed here. AMQPConnectionError
        541: it takes no more; the socket is the caller's still."""
        if self.state != RUNNING or self._link is None:
            raise self._down(self.why or self.state)
        if self._link.waiting >= WAITING_MAX:
            text = f"vhost '{self.name}' does not answer"
            raise AMQPConnectionError(INTERNAL_ERROR, text, 10, 40)
        self._link.send({"do": "connection", **pack(opened, identity)}, leftover, sock)

    def tell_memory(self, number: int) -> None:
        """Its part of the memory, in bytes."""
        self.memory_bytes = number
        self.tell("memory", bytes=number)

    # ---- as one of the processes ---------------------------------------------------------------

    def _begin_life(self, link: Link) -> None:
        settings = self._settings.vhost_settings(self.memory_bytes)
        link.send({"do": "start", "name": self.name, "path": self.path, "settings": settings})

    def _told(self, do: str, facts: Facts) -> None:
        if do == "pong":
            self.depth_bytes = whole(facts["depth_bytes"])
            self.connections = whole(facts["connections"])
            self.rss_bytes = whole(facts["rss_bytes"])
        elif do == "memory_is" and self.on_memory is not None:
            self.on_memory()

    def _environment(self) -> dict[str, str]:
        return allocator(self.memory_bytes)

    def _is_down(self) -> None:
        self._on_down(self)

    def _life_ended(self) -> None:
        super()._life_ended()
        self.connections = self.depth_bytes = self.rss_bytes = 0

    def _down(self, why: str) -> VhostDown:
        return VhostDown(self.name, why)
