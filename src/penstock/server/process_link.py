"""ProcessLink: messages and descriptors between the supervisor and one process below it.

A SOCK_SEQPACKET pair keeps the borders and the order of packets, sends a descriptor with its
packet, and reports at once that the other side is gone. A message is JSON facts and raw bytes; it
is sent as one or more packets, because a packet must fit the socket's buffer:

    packet    more(1): 1 when the message goes on in the next packet | piece
    message   facts bytes(4) | facts, JSON in UTF-8 | raw bytes to the end

The socket never blocks. Packets that it does not take wait here, in order, so a process that hangs
does not stop the other; senders look at `waiting`, the number of packets. The link owns a socket or
file that is handed over, and closes it when it was sent, or when the link ends.

The other side is one of our own processes, so a malformed message is a defect: it ends the link.
The receiver of a message owns its descriptors, and closes them. watched_process, watched_vhost and
watched_http list the messages.
"""

import asyncio
import errno
import json
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import BinaryIO, Final, TypeAlias

Facts: TypeAlias = dict[str, object]

PIECE_BYTES: Final = 60_000
PACKET_BYTES: Final = PIECE_BYTES + 1
PACKETS_PER_READ: Final = 16  # then other events are handled
DESCRIPTORS_MAX: Final = 4
RETRY_S: Final = 0.02
LENGTH: Final = struct.Struct(">I")
# The kernel is short of something for the moment.
SHORT: Final = frozenset({errno.ENOBUFS, errno.ENOMEM, errno.ETOOMANYREFS})


def pair() -> tuple[socket.socket, socket.socket]:
    """Return the two ends, neither of which blocks."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setblocking(False)
    return ends


def encode(facts: Facts, data: bytes) -> list[bytes]:
    """Return the packets of one message."""
    head = json.dumps(facts).encode()
    whole = LENGTH.pack(len(head)) + head + data
    pieces = [whole[at : at + PIECE_BYTES] for at in range(0, len(whole), PIECE_BYTES)]
    return [b"\1" + piece for piece in pieces[:-1]] + [b"\0" + pieces[-1]]


def decode(whole: bytes) -> tuple[Facts, bytes]:
    """Return (facts, raw bytes) of a message. Raises ValueError if it is malformed."""
    if len(whole) < LENGTH.size:
        raise ValueError(f"a message of {len(whole)} bytes")
    (length,) = LENGTH.unpack_from(whole)
    end = LENGTH.size + length
    if end > len(whole):
        raise ValueError(f"facts of {length} bytes in a message of {len(whole)}")
    facts = json.loads(whole[LENGTH.size : end])
    if not isinstance(facts, dict):
        raise ValueError("the facts are not a JSON object")
    return facts, whole[end:]


class ProcessLink:
    """One end, on the running loop. sock: must not block; the link owns it.

    on_message(facts, data, descriptors): called for each message, in order. on_closed(why): called
    once, when the other side has gone or sends a malformed message; not after `close`.
    """

    def __init__(
        self,
        sock: socket.socket,
        on_message: Callable[[Facts, bytes, list[int]], None],
        on_closed: Callable[[str], None],
    ) -> None:
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._on_message = on_message
        self._on_closed = on_closed
        self._out: deque[tuple[bytes, socket.socket | BinaryIO | None]] = deque()
        self._is_waiting = False
        self._pieces: list[bytes] = []
        self._descriptors: list[int] = []
        self._failure = ""  # of sending: the other side does not read any more
        self.is_closed = False
        self._loop.add_reader(sock, self._readable)

    @property
    def waiting(self) -> int:
        """Packets that the other side has not taken yet."""
        return len(self._out)

    def send(
        self, facts: Facts, data: bytes = b"", handed: socket.socket | BinaryIO | None = None
    ) -> None:
        """Send one message. handed: a socket or file to send with it, which the link closes. After
        the end of the link nothing is sent, and `handed` is closed all the same."""
        if self.is_closed or self._failure:
            if handed is not None:
                handed.close()
            return
        for packet in encode(facts, data):
            self._out.append((packet, handed))
            handed = None
        if not self._is_waiting:
            self._write()

    def _write(self) -> None:
        out = self._out
        while out:
            packet, handed = out[0]
            try:
                if handed is None:
                    self._sock.send(packet)
                else:
                    socket.send_fds(self._sock, [packet], [handed.fileno()])
            except (BlockingIOError, InterruptedError):
                self._wait()
                return
            except OSError as error:
                if error.errno in SHORT:
                    self._is_waiting = True
                    self._loop.remove_writer(self._sock)
                    self._loop.call_later(RETRY_S, self._again)
                    return
                # It has gone. Its last messages are still to be read, then the end.
                self._drop_output(error)
                return
            out.popleft()
            if handed is not None:
                handed.close()
        if self._is_waiting:
            self._is_waiting = False
            self._loop.remove_writer(self._sock)

    def _drop_output(self, error: OSError) -> None:
        self._is_waiting = True  # do not try again
        self._loop.remove_writer(self._sock)
        for _, handed in self._out:
            if handed is not None:
                handed.close()
        self._out.clear()
        self._failure = f"cannot send: {error.strerror}"

    def _wait(self) -> None:
        self._is_waiting = True
        self._loop.add_writer(self._sock, self._write)

    def _again(self) -> None:
        if not self.is_closed and not self._failure:
            self._write()

    def _readable(self) -> None:
        for _ in range(PACKETS_PER_READ):
            if self.is_closed:
                return
            try:
                packet, descriptors, _, _ = socket.recv_fds(
                    self._sock, PACKET_BYTES, DESCRIPTORS_MAX
                )
            except ConnectionResetError:
                continue  # it left without reading all; reported once, before its last messages
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self._end(f"cannot receive: {error.strerror}")
                return
            self._descriptors += descriptors
            if not packet:
                self._end(self._failure or "closed by the other side")
                return
            self._pieces.append(packet[1:])
            if packet[0] == 0:
                self._take()

    def _take(self) -> None:
        """Report a message that is whole now."""
        whole, self._pieces = b"".join(self._pieces), []
        descriptors, self._descriptors = self._descriptors, []
        try:
            facts, data = decode(whole)
        except ValueError as error:
            self._descriptors = descriptors
            self._end(f"malformed message: {error}")
            return
        self._on_message(facts, data, descriptors)

    def close(self) -> None:
        """Close the link; waiting packets are lost. Does nothing the second time."""
        if self.is_closed:
            return
        self.is_closed = True
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        self._sock.close()
        for _, handed in self._out:
            if handed is not None:
                handed.close()
        self._out.clear()
        for descriptor in self._descriptors:
            socket.close(descriptor)
        self._descriptors = []

    def _end(self, why: str) -> None:
        if not self.is_closed:
            self.close()
            self._on_closed(why)
