"""What HTTP servers of tests share: one on a free port or a given one, on a thread of its own, for
a `with`.

fake_staging.py and tiny_http.py say what is answered. Nothing is printed, not of connections that
the server or the test broke either.
"""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class QuietHandler(BaseHTTPRequestHandler):
    """One that keeps connections, and keeps still about requests."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *args: Any) -> None:
        """Nobody is told."""


class _QuietServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nobody is told."""


class HttpOnThread:
    """See the head of this module. port: another than a free one."""

    def __init__(self, port: int = 0) -> None:
        self._server = _QuietServer(("127.0.0.1", port), self._handler())
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.01,), daemon=True
        )

    def _handler(self) -> type[QuietHandler]:
        """Who answers."""
        raise AssertionError("each server has its own")

    @property
    def port(self) -> int:
        return self._server.server_address[1]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
