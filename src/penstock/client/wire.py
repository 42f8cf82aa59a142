"""Wire: a socket to a broker and the one thread that reads it.

`send` runs in the caller's thread and gives the kernel what it takes at once. What it does not
take, because the broker reads slowly, is kept in the outbox, and the thread sends it when the
socket has room. So `send` never waits, and the thread waits for nothing but the socket: what the
broker sends is always read, even while it reads nothing.

    caller    send -> kernel            ... -> outbox, and a byte to wake the thread
    thread    select: bytes came -> on_data; room -> outbox -> kernel; time -> heartbeat

Heartbeats follow the specification: one is sent when nothing else was for half the agreed time, and
a broker that was silent for twice that time counts as lost.

An exception that interrupts a send (Ctrl-C) may have cut a frame in two. Nothing can follow it, so
the connection is ended. What the bytes mean is in connection.py.
"""

import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from penstock.client.tls import TlsSocket
from penstock.codec.frames import HEARTBEAT_FRAME

# A read asks for twice as much as the last one brought. The room for 256 KiB, of which a confirm
# uses 21 bytes, would be mapped and unmapped each time.
READ_BYTES_MIN: Final = 1 << 12
READ_BYTES_MAX: Final = 1 << 18
OUTBOX_BYTES_SOFT: Final = 1 << 20  # `wait_for_room` waits while there is more


class WireClosedError(Exception):
    """The wire has ended: the reason."""


class Wire:
    """A connected socket, its outbox and its thread. on_data(bytes): called in the wire's thread,
    in order; an exception ends the connection. on_end(reason): called once, in that thread, when no
    more will come."""

    def __init__(
        self, sock: socket.socket | TlsSocket, on_data: Callable[[bytes], None],
        on_end: Callable[[str], None], *, heartbeat_s: int, name: str,
    ) -> None:  # fmt: skip
        self._socket = sock
        self._on_data = on_data
        self._on_end = on_end
        self._heartbeat_s = heartbeat_s
        self._lock = threading.Lock()
        self._has_room = threading.Condition(self._lock)
        self._outbox: deque[memoryview] = deque()
        self._outbox_bytes = 0
        self._reason = ""  # why it has ended; "" until then
        self._is_ending = False  # once the outbox is empty
        now = time.monotonic()
        self._sent_at = now
        self._heard_at = now
        self._read_bytes = READ_BYTES_MIN
        self._wake_in, self._wake_out = socket.socketpair()
        for end in (sock, self._wake_in, self._wake_out):
            end.setblocking(False)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread that reads."""
        self._thread.start()

    @property
    def is_own_thread(self) -> bool:
        """Whether the caller is the wire's thread, which must wait for nothing."""
        return threading.current_thread() is self._thread

    # ---- sending -------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Send whole frames, in order. Never waits. WireClosedError."""
        with self._lock:
            if self._reason:
                raise WireClosedError(self._reason)
            self._outbox.append(memoryview(data))
            self._outbox_bytes += len(data)
            if len(self._outbox) > 1:
                return  # the thread sends them
            try:
                self._flush()
            except OSError as error:
                self._reason = str(error) or type(error).__name__
                raise WireClosedError(self._reason) from None
            except BaseException:
                self._reason = "a call was interrupted while it sent something"
                raise
            finally:
                if self._outbox or self._reason:
                    self._wake()

    def _flush(self) -> None:
        """Under the lock: send what the socket takes now."""
        while self._outbox:
            piece = self._outbox[0]
            try:
                sent = self._socket.send(piece)
            except (BlockingIOError, InterruptedError):
                return
            self._outbox_bytes -= sent
            self._sent_at = time.monotonic()
            if sent == len(piece):
                self._outbox.popleft()
            else:
                self._outbox[0] = piece[sent:]
        self._has_room.notify_all()

    def wait_for_room(self) -> None:
        """Wait while more than 1 MiB is to be sent. Returns when the connection ends, too."""
        with self._has_room:
            while self._outbox_bytes > OUTBOX_BYTES_SOFT and not self._reason:
                self._has_room.wait()

    def _wake(self) -> None:
        try:
            self._wake_out.send(b"\0")
        except OSError:
            pass  # it is full, and so the thread will wake; or it is closed

    # ---- ending --------------------------------------------------------------------------------

    def end(self, reason: str, timeout_s: float) -> None:
        """Send what is still to be sent, then close. Wait for that at most `timeout_s` twice."""
        with self._lock:
            self._is_ending = True
        self._wake()
        if not self.is_own_thread:
            self._thread.join(timeout_s)
            self.abort(reason)
            self._thread.join(timeout_s)

    def abort(self, reason: str) -> None:
        """Close at once."""
        with self._lock:
            self._reason = self._reason or reason
        self._wake()

    def drop(self) -> None:
        """In a forked child: close our copies, and send nothing."""
        for end in (self._socket, self._wake_in, self._wake_out):
            end.close()

    # ---- the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            selector.register(self._wake_in, selectors.EVENT_READ)
            try:
                while self._turn(selector):
                    pass
            except (OSError, WireClosedError) as error:
                self.abort(str(error) or type(error).__name__)
            except BaseException as error:  # noqa: BLE001  # all that waits must fail, whatever the reason
                self.abort(f"{type(error).__name__}: {error}")
        with self._lock:
            self._reason = self._reason or "it was closed"
            self._outbox.clear()
            self._outbox_bytes = 0
            self._has_room.notify_all()
        self.drop()
        self._on_end(self._reason)

    def _turn(self, selector: selectors.BaseSelector) -> bool:
        """Do one round of the thread. Returns False at the end."""
        with self._lock:
            if self._reason or (self._is_ending and not self._outbox):
                return False
            wants = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._outbox else 0)
        if selector.get_key(self._socket).events != wants:
            selector.modify(self._socket, wants)
        for key, events in selector.select(self._beat()):
            if key.fileobj is self._wake_in:
                self._wake_in.recv(READ_BYTES_MIN)
                continue
            if events & selectors.EVENT_WRITE:
                with self._lock:
                    self._flush()
            if events & selectors.EVENT_READ and not self._read():
                return False
        return True

    def _read(self) -> bool:
        try:
            data = self._socket.recv(self._read_bytes)
        except (BlockingIOError, InterruptedError):
            return True
        if not data:
            self.abort("the broker closed it")
            return False
        self._heard_at = time.monotonic()
        self._read_bytes = min(max(2 * len(data), READ_BYTES_MIN), READ_BYTES_MAX)
        self._on_data(data)
        return True

    def _beat(self) -> float | None:
        """Send a heartbeat if one is due. Returns how many seconds the thread may sleep, None: no
        limit."""
        if not self._heartbeat_s:
            return None
        now = time.monotonic()
        if now - self._heard_at > 2 * self._heartbeat_s:
            raise WireClosedError(f"nothing came for {2 * self._heartbeat_s} s")
        pause_s = self._heartbeat_s / 2
        with self._lock:
            if now - self._sent_at >= pause_s:
                self._sent_at = now
                if not self._outbox:
                    self._outbox.append(memoryview(HEARTBEAT_FRAME))
                    self._outbox_bytes += len(HEARTBEAT_FRAME)
                    self._flush()
            return max(self._sent_at + pause_s - now, 0.05)
