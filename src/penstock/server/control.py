"""The control socket: its protocol, and the client that operators' commands use.

A Unix stream socket, `control.sock` in the data directory. Only its owner can open it, so everybody
who can connect may do everything. One JSON object per line, in both directions; replies may come in
another order than the requests, and carry their number:

    request   {"id": 1, "op": "list_queues", "vhost": "/", "args": {...}}
    reply     {"id": 1, "result": ...}     {"id": 1, "error": {"code": 404, "text": "..."}}

Args and results are those of broker.operation_json, exact. A line has at most LINE_BYTES_MAX.

The path of a Unix socket may have 107 bytes at most, that of the data directory may be longer. Then
the socket is opened through a descriptor of the directory, by its name in Linux's /proc.

The server side is control_server. This module does not import asyncio: commands must start fast.
"""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from penstock.broker.operation_json import from_json, to_json
from penstock.errors import INTERNAL_ERROR, PenstockError

NAME: Final = "control.sock"
LINE_BYTES_MAX: Final = 256 << 20
PATH_BYTES_MAX: Final = 107
TIMEOUT_S: Final = 60.0
READ_BYTES: Final = 1 << 18


class NoServerError(PenstockError):
    """No broker answers at the control socket of this directory."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"no broker answers at {path}: {reason}")
        self.path = path
        self.reason = reason


class ControlError(PenstockError):
    """The broker refused an operation. code: a reply code of AMQP. text: why."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


def line(value: dict[str, object]) -> bytes:
    """Return one request or reply as a line. value: JSON."""
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


@contextmanager
def reachable(path: str) -> Iterator[str]:
    """Yield a path of the socket that is short enough, valid in the with block."""
    if len(path.encode()) <= PATH_BYTES_MAX:
        yield path
        return
    place = Path(path)
    directory = os.open(place.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{place.name}"
    finally:
        os.close(directory)


class ControlClient:
    """Calls operations of the broker on a data directory. Calls block; one at a time.

    path: of the socket, or of the data directory. timeout_s: for each call. Calls raise
    NoServerError if there is no broker, or it does not answer, or it ends; ControlError if it
    refuses. Connects at the first call; `close`, or a with block, disconnects.
    """

    def __init__(self, path: str, *, timeout_s: float = TIMEOUT_S) -> None:
        place = Path(path)
        self.path = str(place if place.name == NAME else place / NAME)
        self._timeout_s = timeout_s
        self._sock: socket.socket | None = None
        self._rest = b""
        self._calls = 0

    def __enter__(self) -> "ControlClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, op: str, vhost: str | None = None, /, **args: object) -> Any:
        """Return the result of an operation. vhost: None for one of the node, or for "/"."""
        self._calls += 1
        request: dict[str, object] = {
            "id": self._calls,
            "op": op,
            "args": to_json(args, is_exact=True),
        }
        if vhost is not None:
            request["vhost"] = vhost
        try:
            self._connected().sendall(line(request))
            while True:
                reply = json.loads(self._line())
                if reply.get("id") == self._calls:
                    break
        except (OSError, ValueError) as error:
            self.close()
            reason = error.strerror if isinstance(error, OSError) else None
            raise NoServerError(self.path, reason or str(error)) from error
        if "error" in reply:
            fault = reply["error"]
            raise ControlError(
                int(fault.get("code", INTERNAL_ERROR)), str(fault.get("text", "unknown"))
            )
        return from_json(reply.get("result"), is_exact=True)

    def close(self) -> None:
        """Disconnect. A later call connects again."""
        sock, self._sock = self._sock, None
        self._rest = b""
        if sock is not None:
            sock.close()

    def _connected(self) -> socket.socket:
        if self._sock is None:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            sock.settimeout(self._timeout_s)
            try:
                with reachable(self.path) as short:
                    sock.connect(short)
            except OSError:
                sock.close()
                raise
            self._sock = sock
        return self._sock

    def _line(self) -> bytes:
        pieces = [self._rest]
        while b"\n" not in pieces[-1]:
            assert self._sock is not None
            piece = self._sock.recv(READ_BYTES)
            if not piece:
                raise ConnectionResetError(0, "the broker closed the connection")
            pieces.append(piece)
        whole, _, self._rest = b"".join(pieces).partition(b"\n")
        return whole
