"""WatchedTls: the process of TLS as the supervisor sees it.

watched_process starts it, watches it and starts it again; ListeningSockets keeps its ports. When it
ends, its connections end; vhosts and plain connections go on.

    to it     socket (kind, with a listening socket) · start (options, settings, networks) · reload
    from it   client (kind, origin: facts of a connection, records: null or those of TlsRecords, if
              the socket is encrypted; with a socket) · pong, with facts
"""

import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from penstock.clock import Clock
from penstock.config import Config
from penstock.server.children import PYTHON
from penstock.server.control import Facts
from penstock.server.login import Origin
from penstock.server.process_link import ProcessLink
from penstock.server.tls_records import TlsRecords
from penstock.server.watched_http import ListeningSockets
from penstock.server.watched_process import WatchedProcess

PROGRAM: Final = (*PYTHON, "penstock.server.tls_process")

logger = logging.getLogger(__name__)

Take = Callable[..., object]  # (socket, origin[, records])


class WatchedTls(WatchedProcess):
    """The process of TLS. sockets: its listening sockets by kind. takers: by kind, what takes over
    a client after its handshake, with its socket."""

    def __init__(
        self, sockets: Mapping[str, ListeningSockets], settings: Config, clock: Clock,
        takers: Mapping[str, Take], program: Sequence[str] = PROGRAM,
    ) -> None:  # fmt: skip
        super().__init__("tls", settings, clock, program)
        self.ports: Final = {kind: one.port for kind, one in sockets.items()}
        self._sockets = sockets
        self._takers = takers
        self._pong: Facts = {}

    def reload(self) -> None:
        """Have it read the certificates again."""
        self.notify("reload")

    def facts(self) -> dict[str, object]:
        """Return the facts for the operation `status`."""
        pong = self._pong
        return {
            "state": self.state,
            "port": self.ports.get("amqp"),
            "http_port": self.ports.get("http"),
            "pid": self.pid or None,
            "error": self.why or None,
            "restarts": self.restarts,
            "connections": pong.get("connections", 0),
            "half_open": pong.get("half_open", 0),
            "accepted": pong.get("accepted", 0),
            "rss_bytes": pong.get("rss_bytes", 0),
            "certificates": pong.get("certificates", []),
            "warnings": pong.get("warnings", []),
        }

    # ---- as a watched process ------------------------------------------------------------------

    def _begin_life(self, link: ProcessLink) -> None:
        for kind, sockets in self._sockets.items():
            sockets.hand_to(link, kind=kind)
        settings = self._settings
        link.send(
            {
                "do": "start", "log_level": settings.log_level, "options": asdict(settings.tls),
                "networks": {
                    "amqp": list(settings.proxy_protocol_from),
                    "http": list(settings.http_proxy_protocol_from),
                },
                "settings": {
                    "handshake_timeout_s": settings.handshake_timeout_s,
                    "half_open_max": settings.half_open_max, "nofile": settings.nofile,
                },
            }
        )  # fmt: skip

    def _on_news(self, facts: Facts, data: bytes, descriptors: list[int]) -> None:
        if facts["do"] != "client":
            super()._on_news(facts, data, descriptors)
            return
        origin: Any = facts["origin"]
        records: Any = facts["records"]
        for descriptor in descriptors:
            sock = socket.socket(fileno=descriptor)
            take = self._takers[str(facts["kind"])]
            if records is None:
                take(sock, Origin(**origin))
            else:
                take(sock, Origin(**origin), TlsRecords.of(records))

    def _on_own_message(self, do: str, facts: Facts) -> None:
        if do == "pong":
            self._pong = facts

    def _environment(self) -> dict[str, str]:
        return {}

    def _is_down(self) -> None:
        for sockets in self._sockets.values():
            sockets.close()

    def _life_ended(self) -> None:
        super()._life_ended()
        self._pong = {}
