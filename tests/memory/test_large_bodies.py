"""Bodies of 100 MiB go through a broker of 32 MiB, and take a few MiB of its RAM on the way.

A client sends each body in frames, and another one reads it as bytes of a socket and sums it up, so
that neither needs it whole. The peak of what each process occupies is the kernel's own (VmHWM),
begun anew before the work.
"""

import hashlib
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pamqp import commands

from tests.helpers.live_broker import LiveBroker, memory_bytes
from tests.helpers.wire import Wire, content_header, raw_frame, raw_method, shortstr

MIB = 1 << 20
BODY_BYTES = 100 * MIB
FRAME_BYTES = 131_064
MORE_MAX = 8 * MIB  # for one delivery, and for one publish
MORE_EACH = 1 * MIB  # for another one beside it
FIRST_BYTES = 2 * MIB  # of the body that everything is done with before it is measured
CONSUMERS = 4
PERSISTENT = b"\x10\0\2"  # flags and list of the properties: delivery mode 2
TRANSIENT = b"\0\0"

pytestmark = pytest.mark.real


class Peaks:
    """What the processes of a broker occupied at the beginning, and have occupied at most since."""

    def __init__(self, broker: LiveBroker) -> None:
        self.first = {pid: memory_bytes(pid, "VmRSS") for pid in broker.pids()}
        for pid in self.first:
            Path(f"/proc/{pid}/clear_refs").write_text("5")

    def growth(self) -> int:
        """Of that process which has grown most."""
        return max(memory_bytes(pid, "VmHWM") - first for pid, first in self.first.items())


def pieces(size: int, mark: int) -> Iterator[bytes]:
    """A body, in pieces of which no two are the same."""
    unit = bytes(range(256)) * (FRAME_BYTES // 256 + 1)
    for at in range(0, size, FRAME_BYTES):
        yield (struct.pack(">IQ", mark, at) + unit)[: min(FRAME_BYTES, size - at)]


def digest(size: int, mark: int) -> str:
    summed = hashlib.sha256()
    for piece in pieces(size, mark):
        summed.update(piece)
    return summed.hexdigest()


def opened(broker: LiveBroker) -> Wire:
    """A connection with a channel, and the queue q."""
    wire = Wire(broker)
    wire.open()
    wire.ask(commands.Channel.Open(), commands.Channel.OpenOk)
    wire.ask(commands.Queue.Declare(queue="q", durable=True), commands.Queue.DeclareOk)
    return wire


def publish(wire: Wire, size: int, mark: int, properties: bytes) -> None:
    """One message for q, which is there when this returns."""
    before = ready(wire)
    method = raw_method(1, 60, 40, b"\0\0" + shortstr("") + shortstr("q") + b"\0")
    wire.send_raw(method + content_header(1, size, properties))
    for piece in pieces(size, mark):
        wire.send_raw(raw_frame(3, 1, piece))
    assert ready(wire) == before + 1


def ready(wire: Wire) -> int:
    """Messages ready in q."""
    answer = wire.ask(
        commands.Queue.Declare(queue="q", durable=True, passive=True), commands.Queue.DeclareOk
    )
    assert answer.message_count is not None
    return answer.message_count


class Reader:
    """Reads one content, and keeps no more of it than a frame."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.buffer = b""
        self.left = -1  # unknown before the header
        self.summed = hashlib.sha256()

    def step(self) -> bool:
        """Read what has come, 256 KiB at most; False: the content is whole."""
        data = self.wire.sock.recv(256 << 10)
        assert data, "the broker has ended the connection"
        buffer = self.buffer + data
        at = 0
        while len(buffer) - at >= 7:
            kind, _, size = struct.unpack_from(">BHI", buffer, at)
            if len(buffer) - at < size + 8:
                break
            payload = memoryview(buffer)[at + 7 : at + 7 + size]
            if kind == 2:
                (self.left,) = struct.unpack_from(">Q", payload, 4)
            elif kind == 3:
                self.summed.update(payload)
                self.left -= size
            at += size + 8
        self.buffer = buffer[at:]
        return self.left != 0


def consume(wire: Wire) -> None:
    wire.send(commands.Basic.Consume(queue="q", consumer_tag="c", no_ack=True), 1)


def get(wire: Wire) -> None:
    wire.send(commands.Basic.Get(queue="q", no_ack=True), 1)


def read_fast(reader: Reader, other: Wire) -> None:
    while reader.step():
        pass


def read_slowly(reader: Reader, other: Wire) -> None:
    """Whenever something was read, another client is served first, several times."""
    while reader.step():
        for _ in range(5):
            ready(other)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    directory = tmp_path_factory.mktemp("memory") / "data"
    with LiveBroker(directory, "--memory", "32MiB") as broker:
        yield broker


def deliver(
    broker: LiveBroker, size: int, properties: bytes, ask: Callable[[Wire], None],
    read: Callable[[Reader, Wire], None],
) -> tuple[int, int]:  # fmt: skip
    """One body through the broker; what the publish and the delivery have taken at most."""
    with opened(broker) as publisher, opened(broker) as client:
        peaks = Peaks(broker)
        publish(publisher, size, 1, properties)
        published = peaks.growth()
        peaks = Peaks(broker)
        ask(client)
        reader = Reader(client)
        read(reader, publisher)
        assert reader.summed.hexdigest() == digest(size, 1)
        delivered = peaks.growth()
        assert ready(publisher) == 0
    return published, delivered


@pytest.mark.parametrize("properties", [PERSISTENT, TRANSIENT], ids=["persistent", "transient"])
@pytest.mark.parametrize("ask", [consume, get])
@pytest.mark.parametrize("read", [read_fast, read_slowly])
def test_a_body_of_100_mib(
    broker: LiveBroker, properties: bytes, ask: Callable[[Wire], None],
    read: Callable[[Reader, Wire], None],
) -> None:  # fmt: skip
    deliver(broker, FIRST_BYTES, properties, ask, read)
    published, delivered = deliver(broker, BODY_BYTES, properties, ask, read)
    print(f"published {published / MIB:.1f} MiB, delivered {delivered / MIB:.1f} MiB")
    assert delivered <= MORE_MAX
    assert published <= MORE_MAX


def test_several_at_once(broker: LiveBroker) -> None:
    deliver(broker, FIRST_BYTES, PERSISTENT, consume, read_fast)
    with opened(broker) as publisher:
        for mark in range(CONSUMERS):
            publish(publisher, BODY_BYTES, mark, PERSISTENT)
        clients = [opened(broker) for _ in range(CONSUMERS)]
        peaks = Peaks(broker)
        readers = [Reader(client) for client in clients]
        for client in clients:
            get(client)
        waiting = list(readers)
        while waiting:
            waiting = [reader for reader in waiting if reader.step()]
        growth = peaks.growth()
        for client in clients:
            client.sock.close()
    print(f"delivered {growth / MIB:.1f} MiB")
    found = sorted(reader.summed.hexdigest() for reader in readers)
    assert found == sorted(digest(BODY_BYTES, mark) for mark in range(CONSUMERS))
    assert growth <= MORE_MAX + CONSUMERS * MORE_EACH
