"""Control: the messages between the broker's processes, and the client that commands use.

A SOCK_SEQPACKET socket keeps the borders and the order of packets, sends a descriptor with its
packet, and reports at once that the other side is gone. A message is sent as one or more packets,
because a packet must fit the socket's buffer:

    packet    more(1): 1 when the message goes on in the next packet | piece
    message   kind(1) | number(8) | head bytes(4) | head | data to the end

    NEWS      head: facts as JSON. data: raw bytes
    CALL      head: an operation's name, and "\\0" and the vhost if it names one. data: arguments
    ANSWER    of the call of this number. head: "" or LONG. data: the result
    REFUSAL   of the call of this number. head: a reply code of AMQP in digits. data: why

Arguments and results are exact JSON (operation_json). Who calls makes it and who answers reads it,
and the other way round; a process in between passes the bytes on.

**The control socket**, `control.sock` in the data directory. Only its owner can open it, so
everybody who can connect may do everything. The path of a Unix socket may have 107 bytes at most,
that of the data directory may be longer. Then the socket is opened through a descriptor of the
directory, by its name in Linux's /proc. The server side is process_link.

process_link has these messages on asyncio's loop. This module does not import asyncio: commands
must start fast.
"""

import json
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from penstock.errors import INTERNAL_ERROR, AMQPError, PenstockError
from penstock.operation_json import dumps, read

Facts: TypeAlias = dict[str, object]
_SCAN: Final = json.JSONDecoder().raw_decode

NEWS: Final = 0
CALL: Final = 1
ANSWER: Final = 2
REFUSAL: Final = 3
LONG: Final = b"long"  # an answer that need not be read to be passed on
OPEN: Final = "open"  # called by the HTTP process: the answer comes with a link to the vhost
Packet = tuple[bytes | memoryview, ...]
PIECE_BYTES: Final = 60_000
SAME_BYTES: Final = 100  # of the head of news that may come again
PACKET_BYTES: Final = PIECE_BYTES + 1
MESSAGE_BYTES_MAX: Final = 256 << 20
NAME: Final = "control.sock"
PATH_BYTES_MAX: Final = 107
TIMEOUT_S: Final = 60.0
HEADER: Final = struct.Struct(">BQI")


class ControlError(PenstockError):
    """The broker refused an operation. code: a reply code of AMQP. text: why."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class LinkMessage(NamedTuple):
    """One message, see above."""

    kind: int
    number: int
    head: bytes
    data: bytes

    def facts(self) -> Facts:
        """Return the facts of NEWS, not to be changed. Raises ValueError if they are none."""
        return _known_facts(self.head) if len(self.head) <= SAME_BYTES else _facts_of(self.head)

    def called(self) -> tuple[str, str | None]:
        """Return (operation, vhost or None) of CALL."""
        op, is_given, vhost = self.head.partition(b"\0")
        name = vhost.decode("utf-8", "surrogateescape") if is_given else None
        return op.decode("utf-8", "surrogateescape"), name

    def error(self) -> ControlError:
        """Return the error of REFUSAL."""
        return ControlError(int(self.head), self.data.decode("utf-8", "replace"))


def _facts_of(head: bytes) -> Facts:
    # As json.loads, which takes as long again to look for white space and for UTF-16.
    found = _SCAN(head.decode(), 0)[0]
    if not isinstance(found, dict):
        raise ValueError("the facts are not a JSON object")
    return found


# The news of a connection's beginning and end are mostly the same bytes.
_known_facts: Final = lru_cache(64)(_facts_of)


def pair() -> tuple[socket.socket, socket.socket]:
    """Return two ends, neither of which blocks."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setblocking(False)
    return ends


def packets(kind: int, number: int, head: bytes, parts: Sequence[bytes] = ()) -> list[Packet]:
    """Return the packets of one message, each as the buffers that it consists of: nothing of a long
    one is copied. parts: of its data."""
    start = HEADER.pack(kind, number, len(head)) + head
    if len(parts) <= 1 and len(start) + sum(map(len, parts)) <= PIECE_BYTES:
        return [(b"".join((b"\0", start, *parts)),)]
    found: list[Packet] = []
    for part in (start, *parts):
        view = memoryview(part)
        found += [(b"\1", view[at : at + PIECE_BYTES]) for at in range(0, len(part), PIECE_BYTES)]
    found[-1] = (b"\0", found[-1][-1])
    return found


def news(facts: Facts, data: bytes = b"") -> list[Packet]:
    """Return the packets of NEWS."""
    return packets(NEWS, 0, head_of(facts), (data,))


def head_of(facts: Facts) -> bytes:
    """Return the head of NEWS."""
    return json.dumps(facts).encode()


def a_call(number: int, op: str, vhost: str | None, args: bytes) -> list[Packet]:
    """Return the packets of CALL."""
    name = op if vhost is None else f"{op}\0{vhost}"
    return packets(CALL, number, name.encode("utf-8", "surrogateescape"), (args,))


def refusal(number: int, error: BaseException) -> list[Packet]:
    """Return the packets of REFUSAL; 541 for an error without a code."""
    code, text = INTERNAL_ERROR, f"{type(error).__name__}: {error}"
    if isinstance(error, AMQPError | ControlError):
        code, text = error.code, error.text
    return packets(REFUSAL, number, str(code).encode(), (text.encode("utf-8", "replace"),))


class Pieces:
    """Puts packets together."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._bytes = 0

    def add(self, packet: bytes) -> LinkMessage | None:
        """Return the message that ends with this packet, None if it goes on. Raises ValueError."""
        whole = packet[1:]
        if self._pieces or packet[0]:
            self._pieces.append(whole)
            self._bytes += len(packet)
            if self._bytes > MESSAGE_BYTES_MAX:
                raise ValueError(f"a message of more than {MESSAGE_BYTES_MAX} bytes")
            if packet[0]:
                return None
            whole, self._pieces, self._bytes = b"".join(self._pieces), [], 0
        if len(whole) < HEADER.size:
            raise ValueError(f"a message of {len(whole)} bytes")
        kind, number, head_bytes = HEADER.unpack_from(whole)
        end = HEADER.size + head_bytes
        if end > len(whole) or kind > REFUSAL:
            raise ValueError(f"kind {kind}, a head of {head_bytes} bytes in {len(whole)}")
        return LinkMessage(kind, number, whole[HEADER.size : end], whole[end:])


# ---- the control socket --------------------------------------------------------------------------


class NoServerError(PenstockError):
    """No broker answers at the control socket of this directory. errno: of the system's error, 0
    for none (a compiled module drops what stands behind `from`)."""

    def __init__(self, path: str, reason: str, errno: int = 0) -> None:
        super().__init__(f"no broker answers at {path}: {reason}")
        self.path = path
        self.reason = reason
        self.errno = errno


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
        self._calls = 0

    def __enter__(self) -> "ControlClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, op: str, vhost: str | None = None, /, **args: object) -> Any:
        """Return the result of an operation. vhost: None for one of the node, or for "/"."""
        self._calls += 1
        args_json = dumps(args, is_exact=True)
        try:
            sock = self._connected()
            for packet in a_call(self._calls, op, vhost, args_json):
                sock.sendmsg(packet)
            reply = _message(sock)
            while reply.number != self._calls:
                reply = _message(sock)
        except (OSError, ValueError) as error:
            self.close()
            of_system = error if isinstance(error, OSError) else OSError()
            reason = of_system.strerror or str(error)
            raise NoServerError(self.path, reason, of_system.errno or 0) from error
        if reply.kind != ANSWER:
            raise reply.error()
        return read(reply.data)

    def close(self) -> None:
        """Disconnect. A later call connects again."""
        sock, self._sock = self._sock, None
        if sock is not None:
            sock.close()

    def _connected(self) -> socket.socket:
        if self._sock is None:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            sock.settimeout(self._timeout_s)
            try:
                with reachable(self.path) as short:
                    sock.connect(short)
            except OSError:
                sock.close()
                raise
            self._sock = sock
        return self._sock


def _message(sock: socket.socket) -> LinkMessage:
    """Return the next message. Raises OSError, ValueError."""
    pieces = Pieces()
    while True:
        packet = sock.recv(PACKET_BYTES)
        if not packet:
            raise ConnectionResetError(0, "the broker closed the connection")
        found = pieces.add(packet)
        if found is not None:
            return found
