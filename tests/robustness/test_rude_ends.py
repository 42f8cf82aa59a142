"""Connections that end in every rude way, at every step: none may be felt by anybody else.

A reset (SO_LINGER 0), a close or a half-close, alone or right behind connection.close, a mistake,
a publish, or while deliveries are on their way. Ordinary clients do some of these.
"""

import socket
import struct
from collections.abc import Callable

import pytest
from pamqp import commands, frame

from tests.helpers.live_broker import LiveBroker
from tests.helpers.wire import PROTOCOL_HEADER, Ended, Wire, content_header, raw_frame
from tests.robustness.conftest import Healthy

pytestmark = pytest.mark.real

TIMES = 20
Basic, Connection, Queue = commands.Basic, commands.Connection, commands.Queue

CLOSE = frame.marshal(Connection.Close(200, "bye", 0, 0), 0)
MISTAKE = raw_frame(1, 1, b"\0\x14\0\x0a\0", b"\0")
PUBLISH = frame.marshal(Basic.Publish(routing_key="rude"), 1)
CONTENT = content_header(1, 3) + raw_frame(3, 1, b"abc")
DECLARE = frame.marshal(Queue.Declare(queue="rude", auto_delete=True), 1)
CONSUME = frame.marshal(Basic.Consume(queue="rude"), 1)


def reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def hang_up(sock: socket.socket) -> None:
    """What the broker then sends is answered by a reset."""
    sock.close()


def half_close(sock: socket.socket) -> None:
    sock.shutdown(socket.SHUT_WR)
    try:
        while sock.recv(65_536):
            pass
    except OSError:
        pass
    sock.close()


LAST_WORDS = {
    "nothing": b"",
    "close": CLOSE,
    "close twice": CLOSE * 2,
    "a mistake": MISTAKE,
    "a mistake and more": MISTAKE + CLOSE + PUBLISH + CONTENT,
    "half a publish": PUBLISH + CONTENT[:10],
    "publishes": (PUBLISH + CONTENT) * 200,
    "deliveries to nobody": DECLARE + CONSUME + (PUBLISH + CONTENT) * 2000,
    "deliveries and close": DECLARE + CONSUME + (PUBLISH + CONTENT) * 2000 + CLOSE,
    "channel.close": frame.marshal(commands.Channel.Close(200, "bye", 0, 0), 1),
}


@pytest.mark.parametrize("end", [reset, hang_up, half_close])
@pytest.mark.parametrize("words", LAST_WORDS)
def test_a_rude_end_is_felt_by_nobody(
    small_broker: LiveBroker, healthy: Healthy, words: str, end: Callable[[socket.socket], None]
) -> None:
    pids = small_broker.pids()
    wires = [Wire(small_broker).open() for _ in range(2 if end is half_close else TIMES)]
    for wire in wires:
        wire.channel()
    # All speak before the first hangs up: some sockets are gone between being read and answered.
    for wire in wires:
        try:
            wire.send_raw(LAST_WORDS[words])
        except Ended:
            pass
    for wire in wires:
        end(wire.sock)
    healthy.wait_for(3)
    assert small_broker.pids() == pids
    assert "Traceback" not in small_broker.log_text(), small_broker.log_text()


def test_a_rude_end_of_half_a_handshake(small_broker: LiveBroker, healthy: Healthy) -> None:
    pids = small_broker.pids()
    for steps in range(4):
        for _ in range(TIMES):
            wire = Wire(small_broker)
            if steps == 1:
                wire.send_raw(PROTOCOL_HEADER)
            elif steps > 1:
                wire.hello()
                wire.log_in()
            if steps > 2:
                wire.agree()
                wire.send(Connection.Open(virtual_host="/"))
            reset(wire.sock)
    healthy.wait_for(3)
    assert small_broker.pids() == pids
    assert "Traceback" not in small_broker.log_text(), small_broker.log_text()
