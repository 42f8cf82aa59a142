"""Wire: sending without waiting, and the end."""

import queue
import socket
import threading
from typing import Any

import pytest

from penstock.client.wire import OUTBOX_BYTES_SOFT, Wire, WireClosedError

WAIT_S = 120.0


class Ends:
    """A wire, and the other end of its socket."""

    def __init__(self, heartbeat_s: int = 0) -> None:
        ours, self.peer = socket.socketpair()
        self.came: queue.Queue[bytes] = queue.Queue()
        self.ended: queue.Queue[str] = queue.Queue()
        self.peer.settimeout(WAIT_S)
        self.wire = Wire(
            ours, self.came.put, self.ended.put, heartbeat_s=heartbeat_s, name="wire of a test"
        )
        self.wire.start()

    def read(self, n: int) -> bytes:
        data = bytearray()
        while len(data) < n:
            data += self.peer.recv(min(n - len(data), 1 << 16))
        return bytes(data)

    def close(self) -> None:
        self.wire.end("the test is over", WAIT_S)
        self.peer.close()


@pytest.fixture
def ends() -> Any:
    made = Ends()
    yield made
    made.close()


def test_both_ways(ends: Ends) -> None:
    ends.wire.send(b"to the broker")
    assert ends.read(13) == b"to the broker"
    ends.peer.sendall(b"to us")
    assert ends.came.get(timeout=WAIT_S) == b"to us"
    assert not ends.wire.is_own_thread


def test_a_peer_that_does_not_read_holds_up_nobody(ends: Ends) -> None:
    pieces = [bytes([i]) * 300_000 for i in range(20)]
    for piece in pieces:
        ends.wire.send(piece)  # far more than the socket takes
    waiting = threading.Thread(target=ends.wire.wait_for_room)
    waiting.start()
    ends.peer.sendall(b"still read")
    assert ends.came.get(timeout=WAIT_S) == b"still read"
    assert waiting.is_alive()
    assert sum(map(len, pieces)) > OUTBOX_BYTES_SOFT
    assert ends.read(20 * 300_000) == b"".join(pieces)
    waiting.join(WAIT_S)
    assert not waiting.is_alive()


def test_what_was_sent_goes_out_before_the_end(ends: Ends) -> None:
    body = bytes(5_000_000)
    ends.wire.send(body)
    reader: queue.Queue[bytes] = queue.Queue()
    thread = threading.Thread(target=lambda: reader.put(ends.read(len(body))))
    thread.start()
    ends.wire.end("we are done", WAIT_S)
    assert reader.get(timeout=WAIT_S) == body
    thread.join()
    assert ends.peer.recv(1) == b""
    assert ends.ended.get(timeout=WAIT_S) == "it was closed"
    with pytest.raises(WireClosedError, match="it was closed"):
        ends.wire.send(b"more")


def test_the_peer_ends_it(ends: Ends) -> None:
    ends.wire.send(b"a")
    assert ends.read(1) == b"a"
    ends.peer.shutdown(socket.SHUT_RDWR)
    assert ends.ended.get(timeout=WAIT_S) == "the broker closed it"
    ends.wire.wait_for_room()
    with pytest.raises(WireClosedError, match="the broker closed it"):
        ends.wire.send(b"more")


def test_an_error_of_who_is_told_ends_it(ends: Ends) -> None:
    def fail(data: bytes) -> None:
        raise ZeroDivisionError(data.decode())

    ends.wire._on_data = fail
    ends.peer.sendall(b"boom")
    assert ends.ended.get(timeout=WAIT_S) == "ZeroDivisionError: boom"


def test_an_interrupted_send_ends_it(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ends.wire, "_flush", interrupt)
    with pytest.raises(KeyboardInterrupt):
        ends.wire.send(b"half")
    assert "interrupted" in ends.ended.get(timeout=WAIT_S)


def test_heartbeats() -> None:
    ends = Ends(heartbeat_s=1)
    try:
        assert ends.read(8) == b"\x08\0\0\0\0\0\0\xce"
        assert ends.ended.get(timeout=WAIT_S) == "nothing came for 2 s"
    finally:
        ends.close()
