"""Recorded sessions, whole and spoiled: the broker always answers or ends, and never breaks.

Behind every session go heartbeats for more than one frame, and connection.close: whatever the
mistake left the broker waiting for is filled up by them, so that silence has no excuse. After each
lot a healthy client is served, no process was restarted, and the log has no traceback.

PENSTOCK_FUZZ=n for n spoiled sessions of each client (`make crash`: 200); PENSTOCK_SEED for others
than usual.
"""

import contextlib
import os
import random
import socket
import threading

import pytest
from pamqp import commands, frame

from tests.helpers.live_broker import LiveBroker
from tests.helpers.wire import HEARTBEAT, Ended, Wire
from tests.robustness.conftest import Healthy, counted_bytes
from tests.robustness.sessions import CORPUS, spoil

pytestmark = [pytest.mark.real, pytest.mark.timeout(0)]

SPOILED = int(os.environ.get("PENSTOCK_FUZZ", "20"))
SEED = int(os.environ.get("PENSTOCK_SEED", "1"))
LIMIT_S = 120.0
HEARTBEATS = HEARTBEAT * 17_000
CLOSED = b"\0\x0a\0\x32"  # connection.close, in any frame
CLOSE = frame.marshal(commands.Connection.Close(200, "enough", 0, 0), 0)
FILES = sorted(CORPUS.glob("*.bin"))


def replay(broker: LiveBroker, session: bytes) -> bytes:
    """All that the broker answers until it ends the connection, which it must."""
    with Wire(broker, LIMIT_S) as wire:

        def send() -> None:
            try:
                wire.send_raw(session)
            except (Ended, OSError):
                pass

        # Sent by a thread: the broker may answer more than the socket takes while we still write.
        sending = threading.Thread(target=send)
        sending.start()
        answer = wire.rest(until=CLOSED)
        with contextlib.suppress(OSError):
            wire.sock.shutdown(socket.SHUT_WR)  # the broker need not wait for close-ok
        answer += wire.rest()
        sending.join(LIMIT_S)
        assert not sending.is_alive(), "the broker stopped reading and did not end the connection"
        return answer


@pytest.fixture(autouse=True)
def whole(small_broker: LiveBroker, healthy: Healthy) -> object:
    """Before and after each lot: a healthy client is served, nobody has died."""
    pids = small_broker.pids()
    yield
    healthy.wait_for(3)
    assert small_broker.pids() == pids
    assert "Traceback" not in small_broker.log_text(), small_broker.log_text()
    counted_bytes(small_broker)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_recorded_session_is_served(small_broker: LiveBroker, path: object) -> None:
    answer = replay(small_broker, path.read_bytes())  # type: ignore[attr-defined]
    assert answer.endswith(frame.marshal(commands.Connection.CloseOk(), 0))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_spoiled_sessions_end(small_broker: LiveBroker, path: object) -> None:
    session = path.read_bytes()  # type: ignore[attr-defined]
    for number in range(SPOILED):
        spoiled = spoil(session, random.Random(f"{SEED} {path} {number}"))
        try:
            replay(small_broker, spoiled + HEARTBEATS + CLOSE)
        except AssertionError as error:
            place = os.environ.get("PENSTOCK_FUZZ_KEEP", "")
            if place:
                with open(f"{place}/{number}.bin", "wb") as kept:
                    kept.write(spoiled)
            raise AssertionError(f"session {number} of seed {SEED}: {error}") from error


def test_noise_ends(small_broker: LiveBroker) -> None:
    rng = random.Random(SEED)
    for _ in range(SPOILED):
        start = rng.choice((b"", b"AMQP\0\0\x09\x01", b"AMQP", b"\x16\x03\x01", b"PUT / HTTP/1.1"))
        with Wire(small_broker, LIMIT_S) as wire:
            try:
                wire.send_raw(start + rng.randbytes(rng.choice((0, 1, 7, 8, 100, 100_000))))
                wire.sock.shutdown(1)
            except (Ended, OSError):
                pass
            wire.rest()
