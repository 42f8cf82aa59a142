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
        self.readers: queue.Queue[int] = queue.Queue()  # identities of the threads that read
        self.ended: queue.Queue[str] = queue.Queue()
        self.peer.settimeout(WAIT_S)
        self.wire = Wire(
            ours, self._on_data, self.ended.put, heartbeat_s=heartbeat_s, name="wire of a test"
        )
        self.wire.start()

    def _on_data(self, data: bytes) -> None:
        assert self.wire.is_reader
        self.readers.put(threading.get_ident())
        self.came.put(data)

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
    assert not ends.wire.is_reader


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


# ---- a caller that waits reads -------------------------------------------------------------------


def test_a_caller_reads_what_it_waits_for_and_the_thread_the_rest(ends: Ends) -> None:
    waits = threading.Event()

    def is_done() -> bool:
        waits.set()
        return ends.came.qsize() == 5

    caller = threading.Thread(target=ends.wire.read_until, args=(is_done, None))
    caller.start()
    assert waits.wait(WAIT_S)
    for _ in range(5):
        ends.peer.sendall(b"x")
        assert ends.readers.get(timeout=WAIT_S) == caller.ident
    caller.join(WAIT_S)
    ends.peer.sendall(b"unasked")
    assert ends.readers.get(timeout=WAIT_S) not in (caller.ident, threading.get_ident())
    assert not ends.wire.is_reader


def test_who_does_not_read_waits_for_nothing(ends: Ends) -> None:
    assert ends.wire._begin_reading()
    thread = threading.Thread(target=ends.wire.read_until, args=(lambda: False, None))
    thread.start()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    ends.wire._end_reading()


def test_a_caller_gives_up_after_its_time(ends: Ends) -> None:
    assert ends.wire.read_until(lambda: False, 0.001) == 0.0
    left_s = ends.wire.read_until(lambda: True, WAIT_S)
    assert left_s is not None
    assert 0 < left_s <= WAIT_S
    ends.peer.sendall(b"later")
    assert ends.came.get(timeout=WAIT_S) == b"later"
    assert ends.readers.get() != threading.get_ident()


def test_what_a_caller_waits_with_is_sent_as_well(ends: Ends) -> None:
    body = bytes(5_000_000)

    def answer() -> None:
        assert ends.read(len(body)) == body
        ends.peer.sendall(b"all of it")

    peer = threading.Thread(target=answer)
    ends.wire.send(body)
    peer.start()
    ends.wire.read_until(lambda: ends.came.qsize() > 0, None)
    assert ends.came.get(timeout=WAIT_S) == b"all of it"
    peer.join(WAIT_S)


@pytest.mark.parametrize("how", ["the peer", "end", "abort"])
def test_the_end_wakes_a_caller_that_reads(ends: Ends, how: str) -> None:
    waits = threading.Event()

    def is_done() -> bool:
        waits.set()
        return False

    caller = threading.Thread(target=ends.wire.read_until, args=(is_done, None))
    caller.start()
    assert waits.wait(WAIT_S)
    if how == "the peer":
        ends.peer.shutdown(socket.SHUT_RDWR)
    elif how == "end":
        ends.wire.end("we are done", WAIT_S)
    else:
        ends.wire.abort("it was aborted")
    caller.join(WAIT_S)
    assert not caller.is_alive()
    reason = {"the peer": "the broker closed it", "end": "it was closed", "abort": "it was aborted"}
    assert ends.ended.get(timeout=WAIT_S) == reason[how]


class Peeked:
    """A poll that first has the peer send, so that nobody but the caller can read it."""

    def __init__(self, ends: Ends, data: bytes) -> None:
        self._ends, self._data = ends, data

    def poll(self, _: float | None) -> bool:
        self._ends.peer.sendall(self._data)
        return True


def test_an_error_in_a_caller_that_reads_ends_it(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(data: bytes) -> None:
        raise ZeroDivisionError(data.decode())

    monkeypatch.setattr(ends.wire, "_poll", Peeked(ends, b"boom"))
    monkeypatch.setattr(ends.wire, "_on_data", fail)
    ends.wire.read_until(lambda: False, None)
    assert ends.ended.get(timeout=WAIT_S) == "ZeroDivisionError: boom"


def test_an_interrupted_read_ends_it(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: bytes) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ends.wire, "_poll", Peeked(ends, b"lost"))
    monkeypatch.setattr(ends.wire, "_on_data", interrupt)
    with pytest.raises(KeyboardInterrupt):
        ends.wire.read_until(lambda: False, None)
    assert "interrupted" in ends.ended.get(timeout=WAIT_S)


@pytest.mark.parametrize("where", ["_begin_reading", "_end_reading"])
def test_an_interrupt_of_who_reads_leaves_nobody_waiting(
    ends: Ends, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def interrupt() -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(ends.wire, where, interrupt)
    with pytest.raises(KeyboardInterrupt):
        ends.wire.read_until(lambda: True, None)
    assert "interrupted" in ends.ended.get(timeout=WAIT_S)


def test_an_interrupt_while_a_caller_waits_does_no_harm(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted:
        def poll(self, _: float | None) -> object:
            raise KeyboardInterrupt

    monkeypatch.setattr(ends.wire, "_poll", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        ends.wire.read_until(lambda: False, None)
    ends.peer.sendall(b"still read")
    assert ends.came.get(timeout=WAIT_S) == b"still read"


def test_heartbeats() -> None:
    ends = Ends(heartbeat_s=1)
    try:
        assert ends.read(8) == b"\x08\0\0\0\0\0\0\xce"
        assert ends.ended.get(timeout=WAIT_S) == "nothing came for 2 s"
    finally:
        ends.close()
