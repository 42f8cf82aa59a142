"""TlsPump: one TLS connection after its handshake, between the client and who serves it.

    client socket -> incoming -> OpenSSL -> plain bytes -> inner socket    (a pair with the server)
    client socket <- outgoing <- OpenSSL <- plain bytes <- inner socket

OpenSSL works on memory here: one read of the socket brings many records, where OpenSSL's own reads
take two system calls for each. Single messages of a client are a record each, so that counts.

**Backpressure**: what a socket does not take is kept, CHUNK_BYTES and the records' overhead at
most, and until it is taken nothing more is read from the other side.

**The end.** The client's close_notify or end of file shuts the sending half of the inner socket;
what the server still sends is passed on. When the server closes, the client gets its last bytes,
close_notify and the end of file, and has LINGER_S to close. A reset, a wrong record or a crashed
server ends both sides.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final

from penstock.server.poller import READ, WRITE, PolledSource, Poller

CHUNK_BYTES: Final = 64 << 10
RECORD_BYTES: Final = 16 << 10  # of plain text, at most
LINGER_S: Final = 10.0
HANG_UP: Final = 0x018  # EPOLLERR, EPOLLHUP

# What is between two sockets for a moment: one for all connections, which take turns.
_received: Final = memoryview(bytearray(CHUNK_BYTES))
_plain: Final = memoryview(bytearray(CHUNK_BYTES + 2 * RECORD_BYTES))


class _Inner(PolledSource):
    """The inner socket of a pump."""

    def __init__(self, pump: "TlsPump") -> None:
        self._pump: TlsPump = pump

    def ready(self, mask: int) -> None:
        self._pump.inner_ready(mask)


class TlsPump(PolledSource):
    """A connection. sock: the client's. inner: one end of a pair; neither blocks, and the pump
    closes both. tls: after the handshake, on incoming and outgoing. on_end(pump): called once."""

    def __init__(
        self, poller: Poller, sock: socket.socket, inner: socket.socket, tls: ssl.SSLObject,
        incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, on_end: "Callable[[TlsPump], None]",
    ) -> None:  # fmt: skip
        self._poller: Poller = poller
        self._sock: socket.socket = sock
        self._inner: socket.socket = inner
        self._descriptor: int = sock.fileno()
        self._inner_descriptor: int = inner.fileno()
        self._inner_source: _Inner = _Inner(self)
        self._tls: ssl.SSLObject = tls
        # With a buffer it returns how many bytes; typeshed says bytes, which mypyc would check.
        self._read: Any = tls.read
        self._incoming: ssl.MemoryBIO = incoming
        self._outgoing: ssl.MemoryBIO = outgoing
        self._on_end: Callable[[TlsPump], None] = on_end
        self._to_inner: bytes = b""
        self._to_client: bytes = b""
        self._is_client_done: bool = False  # it sends no more
        self._is_inner_done: bool = False  # the server sends no more
        self._is_inner_deaf: bool = False  # and reads no more
        self._is_half_closed: bool = False  # our half towards the client
        self._timer: asyncio.TimerHandle | None = None
        self.is_closed: bool = False

    def start(self) -> None:
        """Pass on what came with the handshake, and begin."""
        self._decrypt()
        self._settle()

    def close(self) -> None:
        """Close both sides at once. Does nothing the second time."""
        if self.is_closed:
            return
        self.is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._poller.watch(self._descriptor, self, 0)
        self._poller.watch(self._inner_descriptor, self._inner_source, 0)
        self._sock.close()
        self._inner.close()
        self._on_end(self)

    # ---- from the client -----------------------------------------------------------------------

    def ready(self, mask: int) -> None:
        if self.is_closed:
            return
        try:
            if mask & WRITE or (mask & HANG_UP and self._to_client):
                self._send()
            if mask & (READ | HANG_UP) and self._is_client_read():
                n = self._sock.recv_into(_received)
                if n:
                    self._incoming.write(_received[:n])
                    self._decrypt()
                else:
                    self._client_done()
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:  # the connection is lost, or a record is wrong
            self._alert()
            self.close()
            return
        self._settle()

    def _is_client_read(self) -> bool:
        return not (self._to_inner or self._is_client_done) and len(self._to_client) <= CHUNK_BYTES

    def _decrypt(self) -> None:
        """Pass on the plain bytes of what came."""
        tls, incoming = self._tls, self._incoming
        n = 0
        try:
            while incoming.pending or tls.pending():
                got: int = self._read(RECORD_BYTES, _plain[n:])
                if not got:
                    self._is_client_done = True
                    break
                n += got
        except ssl.SSLWantReadError:
            pass
        if n and not self._is_inner_deaf:
            self._send_inner(bytes(_plain[:n]))
        if self._is_client_done:
            self._client_done()
        if self._outgoing.pending:  # an answer to the client's TLS, not to its bytes
            self._send()

    def _client_done(self) -> None:
        self._is_client_done = True
        if not self._to_inner and not self._is_inner_deaf:
            self._is_inner_deaf = True
            try:
                self._inner.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # it has gone, which reading it shows

    def _send_inner(self, data: bytes) -> None:
        try:
            n = self._inner.send(data)
        except (BlockingIOError, InterruptedError):
            n = 0
        except OSError:  # it reads no more, but may have sent its last words
            self._is_inner_deaf = True
            n = len(data)
        self._to_inner = data[n:]
        if self._is_client_done and not self._to_inner:
            self._client_done()

    # ---- from the server -----------------------------------------------------------------------

    def inner_ready(self, mask: int) -> None:
        """Handle what epoll reports of the inner socket."""
        if self.is_closed:
            return
        try:
            if self._to_inner and mask & (WRITE | HANG_UP):
                self._send_inner(self._to_inner)
            if mask & (READ | HANG_UP) and not (self._to_client or self._is_inner_done):
                n = self._inner.recv_into(_received)
                if n:
                    self._encrypt(n)
                else:
                    self._inner_done()
        except (BlockingIOError, InterruptedError):
            pass
        except ConnectionResetError:  # it closed without reading all that was sent to it
            self._inner_done()
        except OSError:
            self.close()
            return
        self._settle()

    def _encrypt(self, n: int) -> None:
        at = 0
        while at < n:
            at += self._tls.write(_received[at:n])
        self._send()

    def _inner_done(self) -> None:
        self._is_inner_done = self._is_inner_deaf = True
        self._to_inner = b""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(LINGER_S, self.close)
        try:
            self._alert()
        except OSError:
            self.close()

    def _alert(self) -> None:
        """Send close_notify, or what OpenSSL has to say about a wrong record."""
        try:
            self._tls.unwrap()
        except (ssl.SSLError, ValueError):
            pass  # it waits for the client's, which we need not see
        try:
            self._send()
        except OSError:
            pass

    def _send(self) -> None:
        """Send the client what is encrypted."""
        data = self._to_client + self._outgoing.read() if self._to_client else self._outgoing.read()
        if not data:
            return
        try:
            n = self._sock.send(data)
        except (BlockingIOError, InterruptedError):
            n = 0
        self._to_client = data[n:]

    # ---- both ----------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Watch for what can go on."""
        if self.is_closed:
            return
        if self._is_inner_done and not self._to_client:
            if self._is_client_done:
                self.close()
                return
            if not self._is_half_closed:
                self._is_half_closed = True
                try:
                    self._sock.shutdown(socket.SHUT_WR)
                except OSError:
                    self.close()
                    return
        mask = READ if self._is_client_read() else 0
        self._poller.watch(self._descriptor, self, mask | WRITE if self._to_client else mask)
        mask = 0 if self._to_client or self._is_inner_done else READ
        self._poller.watch(
            self._inner_descriptor, self._inner_source, mask | WRITE if self._to_inner else mask
        )
