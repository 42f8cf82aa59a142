"""Clients that take and do not give back: not reading, not acking, not finishing, not starting.

Against a broker of 64 MiB, five sorts, each on a scale that would need far more memory if anything
grew with it: the counted memory stays within the limit, resident memory stays near it, and a
healthy client is served all the while.
"""

import random
import socket
import sys

import pytest
from pamqp import commands

from tests.helpers.live_broker import LiveBroker, memory_bytes, wait_until
from tests.helpers.wire import (
    PROTOCOL_HEADER,
    Ended,
    Wire,
    content_header,
    open_channel,
    raw_frame,
)
from tests.robustness.conftest import MEMORY_BYTES, Healthy, counted_bytes

pytestmark = pytest.mark.real

UNACKED = 200_000
UNACKED_MIN = 20_000  # that a user may have in any case
BODY_BYTES = 64 << 20
BODIES = 8
HALF_HANDSHAKES = 1000
IDLE = 2000
FRAME = 131_072 - 8
# What an interpreter needs before it holds anything, and what a peak of garbage may add.
RESIDENT_BYTES_MAX = MEMORY_BYTES + (160 << 20)

Basic, Queue = commands.Basic, commands.Queue


def resident_bytes(broker: LiveBroker) -> int:
    """The most that any process of the tree had since this was last asked."""
    peaks = []
    for pid in broker.pids():
        peaks.append(memory_bytes(pid, "VmHWM"))
        with open(f"/proc/{pid}/clear_refs", "w") as peak:
            peak.write("5")
    print(f"resident at most {max(peaks) >> 20} MiB", file=sys.stderr)
    return max(peaks)


def depth(wire: Wire, queue: str) -> int:
    declared = wire.ask(Queue.Declare(queue=queue, passive=True), Queue.DeclareOk)
    return declared.message_count or 0


@pytest.mark.parametrize("no_ack", [False, True])
def test_a_consumer_that_never_reads(
    small_broker: LiveBroker, healthy: Healthy, no_ack: bool
) -> None:
    """192 MiB go to a client that reads nothing: it gets what its socket holds, no more."""
    with open_channel(small_broker) as writer, Wire(small_broker) as deaf:
        queue = writer.declare(f"deaf-{no_ack}", durable=True, exclusive=False)
        writer.ask(commands.Confirm.Select(), commands.Confirm.SelectOk)
        deaf.open()
        deaf.channel()
        deaf.ask(Basic.Consume(queue=queue, no_ack=no_ack), Basic.ConsumeOk)
        data = random.Random(1).randbytes(65_536)
        for batch in range(60):
            for _ in range(50):
                writer.publish(1, queue, data, properties=b"\x10\x00\x02")
            confirmed = 0
            while confirmed < (batch + 1) * 50:
                confirmed = writer.expect(Basic.Ack, 1).delivery_tag or 0
            if batch % 10 == 0:
                counted_bytes(small_broker)
        healthy.wait_for(5)
        if no_ack:
            assert depth(writer, queue) > 2500, "given to a socket that nobody reads"
    with open_channel(small_broker) as reader:
        if not no_ack:
            wait_until(lambda: depth(reader, queue) == 3000, "what the deaf one held")
        reader.ask(Queue.Delete(queue=queue), Queue.DeleteOk)
    assert resident_bytes(small_broker) < RESIDENT_BYTES_MAX


def test_a_user_who_acknowledges_none_of_200_000_waits_alone(
    small_broker: LiveBroker, healthy: Healthy
) -> None:
    """The user is given its share, the others are served, and nothing is lost."""
    small_broker.control("add_user", name="taker", password="taker")
    small_broker.control(
        "set_permissions", "/", user="taker", configure=".*", write=".*", read=".*"
    )
    with open_channel(small_broker) as writer, Wire(small_broker).open(user="taker") as taker:
        taker.channel()
        queue = writer.declare("unacked", durable=True, exclusive=False)
        pieces: list[bytes] = []
        recorder = Wire.__new__(Wire)
        recorder.send_raw = pieces.append  # type: ignore[method-assign]
        for _ in range(1000):
            recorder.publish(1, queue, b"x" * 20, properties=b"\x10\x00\x02")
        blob = b"".join(pieces)
        taker.ask(Basic.Consume(queue=queue, consumer_tag="t"), Basic.ConsumeOk)
        taken, unread, marks = 0, b"", b"\x01\x00\x01"
        for _ in range(UNACKED // 1000):
            writer.send_raw(blob)
            got, unread = received(taker, unread, marks)
            taken += got

        def waits() -> bool:
            nonlocal taken, unread
            got, unread = received(taker, unread, marks)
            taken += got
            rows = small_broker.control("list_channels", "/")
            why = next(one["why"] for one in rows if one["user"] == "taker")
            row = next(q for q in small_broker.control("list_queues", "/") if q["name"] == queue)
            return "a user is given no more" in why and row["messages_unacknowledged"] == taken

        wait_until(waits, "no more for the one who acknowledges nothing", 120)
        assert UNACKED_MIN < taken < UNACKED
        healthy.wait_for(5)
        counted_bytes(small_broker)
    with open_channel(small_broker) as reader:
        wait_until(lambda: depth(reader, queue) == UNACKED, "all of them again", 120)
        first = reader.ask(Basic.Get(queue=queue), Basic.GetOk)
        assert first.redelivered
        reader.content()
        reader.ask(Queue.Delete(queue=queue), Queue.DeleteOk)
    small_broker.control("delete_user", name="taker")
    assert resident_bytes(small_broker) < RESIDENT_BYTES_MAX


def received(taker: Wire, unread: bytes, method_frame: bytes) -> tuple[int, bytes]:
    """Take what has come; return as `count_deliveries` does."""
    taker.sock.settimeout(0.001)
    count = 0
    try:
        while True:
            got, unread = count_deliveries(unread + taker.sock.recv(1 << 20), method_frame)
            count += got
    except TimeoutError:
        return count, unread


def count_deliveries(data: bytes, method_frame: bytes) -> tuple[int, bytes]:
    """(basic.deliver in the whole frames at the beginning of data, the rest)."""
    at = count = 0
    while len(data) - at >= 7:
        end = at + 8 + int.from_bytes(data[at + 3 : at + 7])
        if end > len(data):
            break
        if data[at : at + 3] == method_frame and data[at + 7 : at + 11] == b"\0\x3c\0\x3c":
            count += 1
        at = end
    return count, data[at:]


def test_eight_bodies_of_64_mib_that_are_never_finished(
    small_broker: LiveBroker, healthy: Healthy
) -> None:
    piece = random.Random(2).randbytes(FRAME)
    wires = [open_channel(small_broker) for _ in range(BODIES)]
    queue = wires[0].declare("unfinished", durable=True, exclusive=False)
    for wire in wires:
        wire.send(Basic.Publish(routing_key=queue), 1)
        wire.send_raw(content_header(1, BODY_BYTES, b"\x10\x00\x02"))
    sent = 0
    while sent + FRAME < BODY_BYTES:
        for wire in wires:
            wire.send_raw(raw_frame(3, 1, piece))
        sent += FRAME
        if sent % (FRAME * 64) == 0:
            counted_bytes(small_broker)
    healthy.wait_for(5)
    counted_bytes(small_broker)
    wires[0].send_raw(raw_frame(3, 1, piece[: BODY_BYTES - sent]))
    wait_until(lambda: depth(wires[0], queue) == 1, "the one that was finished")
    for wire in wires[1:]:
        wire.sock.close()
    with open_channel(small_broker) as reader:
        reader.ask(Basic.Get(queue=queue), Basic.GetOk)
        head, data = reader.content()
        assert head.body_size == BODY_BYTES
        assert data == (piece * (BODY_BYTES // FRAME + 1))[:BODY_BYTES]
        reader.ask(Queue.Delete(queue=queue), Queue.DeleteOk)
    wires[0].sock.close()
    # The one body that was delivered is in RAM as it goes out, and once more as frames.
    assert resident_bytes(small_broker) < RESIDENT_BYTES_MAX + 2 * BODY_BYTES


def test_a_thousand_half_handshakes(small_broker: LiveBroker, healthy: Healthy) -> None:
    socks = []
    for number in range(HALF_HANDSHAKES):
        sock = socket.create_connection((small_broker.host, small_broker.port), timeout=120)
        sock.sendall(PROTOCOL_HEADER if number % 2 else PROTOCOL_HEADER[:5])
        socks.append(sock)
    with open_channel(small_broker) as newcomer:
        newcomer.declare()
    healthy.wait_for(5)
    for sock in socks:  # none of them waits for longer than its socket's time-out
        try:
            while sock.recv(65536):
                pass
        except ConnectionError:
            pass
        sock.close()
    wait_until(lambda: small_broker.control("status")["half_open"] == 0, "no half handshakes")


def test_two_thousand_idle_connections(small_broker: LiveBroker, healthy: Healthy) -> None:
    wires = []
    for _ in range(IDLE):
        wire = Wire(small_broker)
        wires.append(wire.open())
    healthy.wait_for(5)
    counted_bytes(small_broker)
    wait_until(lambda: small_broker.control("status")["connections"] >= IDLE, "all to be counted")
    for wire in random.Random(3).sample(wires, 20):
        wire.channel()
        wire.declare()
    for wire in wires:
        wire.sock.close()
    wait_until(lambda: small_broker.control("status")["connections"] < 10, "their end", 60)
    assert resident_bytes(small_broker) < RESIDENT_BYTES_MAX


def test_a_publisher_that_nobody_consumes_from_is_held_not_fed(
    small_broker: LiveBroker, healthy: Healthy
) -> None:
    """Transient messages for 256 MiB: they page out, or the publisher waits; nobody else does."""
    with open_channel(small_broker) as writer:
        queue = writer.declare("flood", exclusive=False)
        data = random.Random(4).randbytes(100_000)
        writer.sock.settimeout(20)
        for number in range(2600):
            try:
                writer.publish(1, queue, data)
            except (TimeoutError, Ended):
                break
            if number % 500 == 0:
                counted_bytes(small_broker)
        healthy.wait_for(5)
        counted_bytes(small_broker)
    with open_channel(small_broker) as reader:
        reader.ask(Queue.Delete(queue=queue), Queue.DeleteOk)
    assert resident_bytes(small_broker) < RESIDENT_BYTES_MAX
