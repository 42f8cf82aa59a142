"""Anybody can connect: what a client that has not logged in may cost the supervisor.

Frames larger than the handshake needs, properties made of as many values as fit, thousands of half
handshakes from one place: the supervisor's memory stays within a small bound, and a client that
logs in meanwhile is served.
"""

import contextlib
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.codec.fields import encode_table
from penstock.codec.frames import PROTOCOL_HEADER, method_frame
from penstock.codec.spec import ConnectionStartOk
from penstock.server.log_lines import BURST
from tests.helpers.live_broker import LiveBroker, memory_bytes, wait_until
from tests.helpers.wire import open_channel

pytestmark = pytest.mark.real

SOCKETS = 300
GROWTH_BYTES_MAX = 40 << 20  # 32 MiB of it are scrypt, in two threads that had not hashed before


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    data = tmp_path_factory.mktemp("before") / "data"
    with LiveBroker(data, environment={"PENSTOCK_HANDSHAKE_TIMEOUT": "2.0"}) as live:
        for _ in range(2):
            end_of(start_ok(live, encode_table({}), "warm"))
        with open_channel(live) as wire:
            wire.declare()
        yield live
        assert live.stop() == 0, live.log_text()


def start_ok(broker: LiveBroker, properties: bytes, user: str) -> socket.socket:
    """A client with a wrong password that has sent header and start-ok, and has read nothing."""
    sock = socket.create_connection((broker.host, broker.port), timeout=60)
    method = ConnectionStartOk(client_properties=properties, response=f"\0{user}\0wrong".encode())
    with contextlib.suppress(ConnectionError):  # it may be refused before all is sent
        sock.sendall(PROTOCOL_HEADER + method_frame(0, method.encode()))
    return sock


def end_of(sock: socket.socket) -> None:
    """Read until the broker has closed it."""
    with contextlib.suppress(ConnectionError):
        while sock.recv(65536):
            pass
    sock.close()


def many_values(size_bytes: int) -> bytes:
    """A table of so many bytes whose values become as much memory as possible."""
    return encode_table({"l": [None] * (size_bytes - 11)})


def new_peak(broker: LiveBroker) -> int:
    """The supervisor's memory now; VmHWM begins again from there."""
    Path(f"/proc/{broker.pid}/clear_refs").write_text("5")
    return memory_bytes(broker.pid, "VmHWM")


@pytest.mark.parametrize("size_bytes", [125_000, 8000])
def test_properties_of_clients_with_wrong_passwords(broker: LiveBroker, size_bytes: int) -> None:
    properties = many_values(size_bytes)
    assert len(properties) == size_bytes
    before = new_peak(broker)
    socks = [start_ok(broker, properties, f"nobody {n}") for n in range(SOCKETS)]
    with open_channel(broker) as wire:
        wire.declare()
    for sock in socks:
        sock.close()
    wait_until(lambda: broker.control("status")["half_open"] == 0, "no half-open client")
    grown = memory_bytes(broker.pid, "VmHWM") - before
    print(f"the supervisor grew by {grown >> 10} KiB", file=sys.stderr)
    assert grown < GROWTH_BYTES_MAX


def test_a_frame_of_the_handshake_has_at_most_8_kib(broker: LiveBroker) -> None:
    end_of(start_ok(broker, many_values(9000), "nobody"))
    assert "bytes in the handshake, expected at most 8192" in broker.log_text()
    with open_channel(broker) as wire:
        wire.declare()


def test_the_log_of_a_flood_is_short_and_forged_by_nobody(broker: LiveBroker) -> None:
    before = broker.log.stat().st_size
    name = "x\n2026-11-21 16:30:00,123 ERROR node: forged\x1b[2J"
    began_s = time.monotonic()
    for _ in range(300):
        sock = socket.create_connection((broker.host, broker.port), timeout=60)
        sock.sendall(name.encode())
        end_of(sock)
    wait_until(lambda: broker.control("status")["half_open"] == 0, "no half-open client")
    written = broker.log.read_bytes()[before:]
    # A burst and one a second; and how many were left out.
    assert written.count(b"\n") < 2 * (BURST + time.monotonic() - began_s)
    assert b"\x1b" not in written
    assert b"\n2026-11-21 16:30" not in written
