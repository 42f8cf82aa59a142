"""The control socket: what operators' commands ask a running broker, and its client side.

A Unix stream socket, `control.sock` in the data directory, which only its owner can open; so
whoever can connect may do everything. One JSON object per line, in both directions; replies may
come in another order than the requests, and carry their number:

    request   {"id": 1, "op": "list_queues", "vhost": "/", "args": {...}}
    reply     {"id": 1, "result": ...}     {"id": 1, "error": {"code": 404, "text": "..."}}

Bytes stand as {"b64": "..."}, anywhere in args and results. A line has at most LINE_BYTES_MAX.

The path of a Unix socket may have 107 bytes and no more, the data directory's any number: the
socket is reached through a descriptor of the directory then, which Linux names in /proc.

Not here: the server side (control_server), what the operations do (supervisor, and
broker.operations). Nothing of asyncio is imported: commands start often, and fast.
"""

import base64
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from penstock.errors import PenstockError, valid_text

NAME: Final = "control.sock"
LINE_BYTES_MAX: Final = 256 << 20
PATH_BYTES_MAX: Final = 107
TIMEOUT_S: Final = 60.0
READ_BYTES: Final = 1 << 18


class NoServerError(PenstockError):
    """No broker runs on that data directory."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"no broker answers at {path}: {reason}")
        self.path = path
        self.reason = reason


class ControlError(PenstockError):
    """The broker refused an operation. code: AMQP's reply code. text: why."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


def to_json(value: object) -> object:
    """The value with its bytes as {"b64": ...}, tuples and sets as lists. A text that stands for
    bytes which are no UTF-8, such as the name of a queue, stays it: JSON escapes what it has of
    them. Other lone surrogates are replaced."""
    if isinstance(value, bytes | bytearray | memoryview):
        return {"b64": base64.b64encode(value).decode("ascii")}
    if isinstance(value, dict):
        return {valid_text(str(key)): to_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_json(inner) for inner in value]
    if isinstance(value, str):
        try:
            value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            return valid_text(value)
        return value
    if value is None or isinstance(value, bool | int | float):
        return value
    return valid_text(str(value))


def from_json(value: object) -> object:
    """The same back. ValueError: what stands for bytes is no base64."""
    if isinstance(value, dict):
        if len(value) == 1 and isinstance(value.get("b64"), str):
            return base64.b64decode(value["b64"], validate=True)
        return {key: from_json(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [from_json(inner) for inner in value]
    return value


def line(value: dict[str, object]) -> bytes:
    """One request or reply as it goes over the socket."""
    return json.dumps(to_json(value), separators=(",", ":")).encode() + b"\n"


@contextmanager
def reachable(path: str) -> Iterator[str]:
    """A name of the socket that is short enough, valid in the block."""
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
    """Calls operations of the broker on a data directory; blocks. One call at a time.

    path: of the socket, or of the data directory. timeout_s: for each call. NoServerError: there is
    none, it did not answer, or it went away. ControlError: it refused. Connects at the first call;
    `close`, or a with block, ends it.
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
        """The result of an operation. vhost: None where it is the node's, or "/" is meant."""
        self._calls += 1
        request: dict[str, object] = {"id": self._calls, "op": op, "args": args}
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
            raise ControlError(int(fault.get("code", 541)), str(fault.get("text", "unknown")))
        return from_json(reply.get("result"))

    def close(self) -> None:
        """Disconnect; a later call connects anew."""
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
                raise ConnectionResetError(0, "it went away")
            pieces.append(piece)
        whole, _, self._rest = b"".join(pieces).partition(b"\n")
        return whole
