"""Wire: a socket to a broker, and which thread reads it.

`send` runs in the caller's thread and gives the kernel what it takes at once. What it does not
take, because the broker reads slowly, is kept in the outbox, and the thread sends it when the
socket has room. So `send` never waits, and the thread waits for nothing but the socket: what the
broker sends is always read, even while it reads nothing.

    caller    send -> kernel            ... -> outbox, and a byte to wake the thread
              read_until: bytes came -> on_data, until what it waits for is there
    thread    select: bytes came -> on_data; room -> outbox -> kernel; time -> heartbeat

A caller that waits for an answer reads the socket itself (`read_until`) if no other caller does.
The thread leaves the socket to it meanwhile, and takes it back when the caller has what it waited
for. So a call and its answer need no change of threads, which costs more than all else that the
client does for a message. Whoever reads is the `_reader` from the bytes to the end of on_data, so
the order is kept.

Heartbeats follow the specification: one is sent when nothing else was for half the agreed time, and
a broker that was silent for twice that time counts as lost.

An exception that interrupts a send (Ctrl-C) may have cut a frame in two, and one that interrupts
on_data may have lost a frame. Nothing can follow it, so the connection is ended. An interrupt while
a caller waits for bytes does no harm. What the bytes mean is in connection.py.
"""

import math
import select
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


def _reason_of(error: BaseException) -> str:
    """Return why an error ends a connection."""
    if isinstance(error, OSError | WireClosedError):
        return str(error) or type(error).__name__
    return f"{type(error).__name__}: {error}"


class Wire:
    """A connected socket, its outbox and its thread. on_data(bytes): called in the thread that
    reads, in order; an exception ends the connection. on_end(reason): called once, in the wire's
    thread, when no more will come."""

    def __init__(
        self, sock: socket.socket | TlsSocket, on_data: Callable[[bytes], None],
        on_end: Callable[[str], None], *, heartbeat_s: int, name: str,
    ) -> None:  # fmt: skip
        self._socket = sock
        self._on_data = on_data
        self._on_end = on_end
        self._heartbeat_s = heartbeat_s
        self._lock = threading.Lock()
        self._has_changed = threading.Condition(self._lock)
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
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_in, selectors.EVENT_READ)
        self._events = 0  # what the thread waits for at the socket
        self._reader = 0  # the identity of the thread that reads, 0: nobody does now
        self._poll = select.poll()  # of the caller that reads
        self._poll.register(sock, select.POLLIN)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread that reads."""
        self._thread.start()

    @property
    def is_reader(self) -> bool:
        """Whether this is the thread that reads, in on_data or on_end: it must wait for nothing."""
        return threading.get_ident() in (self._reader, self._thread.ident)

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
        self._has_changed.notify_all()

    def wait_for_room(self) -> None:
        """Wait while more than 1 MiB is to be sent. Returns when the connection ends, too."""
        with self._has_changed:
            while self._outbox_bytes > OUTBOX_BYTES_SOFT and not self._reason:
                self._has_changed.wait()

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
        if not self.is_reader:
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
        for end in (self._selector, self._socket, self._wake_in, self._wake_out):
            end.close()

    # ---- reading -------------------------------------------------------------------------------

    def read_until(self, is_done: Callable[[], bool], timeout_s: float | None) -> float | None:
        """Read in this thread until `is_done()`, for at most so many seconds; None: no limit.
        Return at once if another thread reads, and when the connection ends. Returns the seconds
        that are left."""
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        is_safe = False  # whether an interrupt leaves all as it was
        try:
            if self._begin_reading():
                is_safe = True
                while not (is_done() or self._reason):
                    left_s = deadline - time.monotonic()
                    if left_s <= 0:
                        break
                    if self._poll.poll(None if left_s == math.inf else math.ceil(left_s * 1000)):
                        is_safe = False
                        self._read_or_end()
                        is_safe = True
                is_safe = False
                self._end_reading()
        except BaseException:
            if not is_safe:
                self.abort("a call was interrupted while it read something")
            self._end_reading()
            raise
        return None if timeout_s is None else max(deadline - time.monotonic(), 0.0)

    def _read_or_end(self) -> None:
        """Read; an error ends the connection, and with it what the caller waits for."""
        try:
            self._read()
        except Exception as error:  # noqa: BLE001  # all that waits must fail, whatever the reason
            self.abort(_reason_of(error))

    def _begin_reading(self) -> bool:
        """Become the reader. Returns whether that was possible."""
        with self._lock:
            if self._reader or self._reason:
                return False
            self._reader = threading.get_ident()
            self._watch()
        return True

    def _end_reading(self) -> None:
        """Let others read; do nothing unless this thread is the reader."""
        with self._lock:
            if self._reader != threading.get_ident():
                return
            self._reader = 0
            if self._reason:
                self._has_changed.notify_all()
            else:
                self._watch()

    def _read(self) -> None:
        """As the reader: read what came and pass it on."""
        try:
            data = self._socket.recv(self._read_bytes)
        except (BlockingIOError, InterruptedError):
            return
        if not data:
            self.abort("the broker closed it")
            return
        self._heard_at = time.monotonic()
        self._read_bytes = min(max(2 * len(data), READ_BYTES_MIN), READ_BYTES_MAX)
        self._on_data(data)

    # ---- the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except BaseException as error:  # noqa: BLE001  # all that waits must fail, whatever the reason
            self.abort(_reason_of(error))
        with self._lock:
            self._reason = self._reason or "it was closed"
            self._outbox.clear()
            self._outbox_bytes = 0
            self._has_changed.notify_all()
            try:
                self._socket.shutdown(socket.SHUT_RDWR)  # wakes the caller that reads
            except OSError:
                pass  # the other side has ended it
            while self._reader:
                self._has_changed.wait()
        self.drop()
        self._on_end(self._reason)

    def _watch(self) -> None:
        """Under the lock: have the thread wait for what there is for it to do at the socket."""
        is_callers = self._reader not in (0, self._thread.ident)
        events = 0 if is_callers else selectors.EVENT_READ
        if self._outbox:
            events |= selectors.EVENT_WRITE
        if events == self._events:
            return
        if not events:
            self._selector.unregister(self._socket)
        elif not self._events:
            self._selector.register(self._socket, events)
        else:
            self._selector.modify(self._socket, events)
        self._events = events

    def _turn(self) -> bool:
        """Do one round of the thread. Returns False at the end."""
        with self._lock:
            if self._reason or (self._is_ending and not self._outbox):
                return False
            self._watch()
        for key, events in self._selector.select(self._beat()):
            if key.fileobj is self._wake_in:
                self._wake_in.recv(READ_BYTES_MIN)
                continue
            if events & selectors.EVENT_WRITE:
                with self._lock:
                    self._flush()
            if events & selectors.EVENT_READ and self._begin_reading():
                try:
                    self._read()
                finally:
                    self._end_reading()
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
