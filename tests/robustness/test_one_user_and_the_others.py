"""What one user takes from the others: unfinished bodies, transactions, topology, connections.

Each attack is against a broker of 64 MiB, while another client is served; none of them may pass
what the vhost was given, end a process, or hold the other client up.
"""

import contextlib
import random

import pytest
from pamqp import commands

from tests.helpers.live_broker import LiveBroker, memory_bytes, wait_until
from tests.helpers.wire import (
    Ended,
    Wire,
    content_header,
    open_channel,
    raw_frame,
    raw_method,
    shortstr,
)
from tests.robustness.conftest import MEMORY_BYTES, Healthy, counted_bytes, vhost_status

pytestmark = pytest.mark.real

MIB = 1 << 20
FRAME = 131_072 - 8
UNFINISHED = 150
RESIDENT_BYTES_MAX = MEMORY_BYTES + 96 * MIB

Basic, Connection, Queue = commands.Basic, commands.Connection, commands.Queue


def resident_bytes(broker: LiveBroker) -> int:
    return max(memory_bytes(pid, "VmRSS") for pid in broker.pids())


def test_unfinished_bodies_block_nobody(small_broker: LiveBroker, healthy: Healthy) -> None:
    """150 bodies of 1 MiB, all but the last frame: larger ones go to disk as they come."""
    piece = random.Random(1).randbytes(FRAME)
    with Wire(small_broker).open() as greedy:
        for number in range(1, UNFINISHED + 1):
            greedy.channel(number)
            greedy.send(Basic.Publish(routing_key="nowhere"), number)
            greedy.send_raw(content_header(number, MIB) + raw_frame(3, number, piece) * 7)
        greedy.channel(UNFINISHED + 1)  # all of it was read
        healthy.wait_for(5)
        wait_until(lambda: vhost_status(small_broker)["blocked_reason"] == "", "no alarm")
        assert counted_bytes(small_broker) < MEMORY_BYTES // 4
        assert resident_bytes(small_broker) < RESIDENT_BYTES_MAX


def test_small_unfinished_bodies_end_their_own_connection(
    small_broker: LiveBroker, healthy: Healthy
) -> None:
    """2,000 bodies of 64 KiB less a byte stay in RAM, 120 MiB of them: who holds most is ended."""
    piece = bytes((64 << 10) - 100)
    with Wire(small_broker).open() as greedy:
        with contextlib.suppress(Ended):
            for number in range(1, 2001):
                greedy.send(commands.Channel.Open(), number)
                greedy.send(Basic.Publish(routing_key="nowhere"), number)
                greedy.send_raw(content_header(number, 64 << 10) + raw_frame(3, number, piece))
        with contextlib.suppress(Ended):
            while not isinstance(greedy.receive()[1], Connection.Close):
                pass
            greedy.send(Connection.CloseOk())
        healthy.wait_for(5)
    wait_until(lambda: vhost_status(small_broker)["blocked_reason"] == "", "the end of the alarm")
    assert "unfinished messages hold" in small_broker.log_text()


@pytest.mark.parametrize("properties", [b"\0\0", b"\x10\0\x02"], ids=["transient", "persistent"])
def test_an_open_transaction_has_an_end(
    small_broker: LiveBroker, healthy: Healthy, properties: bytes
) -> None:
    with open_channel(small_broker) as wire:
        queue = wire.declare("tx", durable=True, exclusive=False)
        wire.ask(commands.Tx.Select(), commands.Tx.SelectOk)
        sent = 0
        wire.sock.setblocking(True)
        for _ in range(100):
            for _ in range(1000):
                wire.publish(1, queue, bytes(1000), properties=properties)
            sent += 1000
            wire.send(Basic.Qos(), 1)
            _, answer = wire.receive()
            if isinstance(answer, commands.Channel.Close):
                assert answer.reply_code == 506
                assert "the transaction holds" in answer.reply_text
                break
        else:
            raise AssertionError("nothing was refused")
        assert sent < 60_000
    healthy.wait_for(5)
    counted_bytes(small_broker)
    with open_channel(small_broker) as reader:
        found = reader.ask(Queue.Delete(queue="tx"), Queue.DeleteOk)
        assert found.message_count == 0


def test_a_table_of_120_kb_is_refused_and_not_decoded(
    small_broker: LiveBroker, healthy: Healthy
) -> None:
    entries = b"".join(shortstr(f"{n:x}") + b"V" for n in range(20_000))[:120_000]
    entries = entries[: entries.rindex(b"V") + 1]
    table = len(entries).to_bytes(4) + entries
    with Wire(small_broker).open() as wire:
        for number in range(1, 51):
            wire.channel(number)
            bind = b"\0\0" + shortstr("q") + shortstr("amq.direct") + shortstr("k") + b"\0"
            wire.send_raw(raw_method(number, 50, 20, bind + table))
            code, text = wire.channel_closed(number)
            assert code == 406
            assert "at most 8192 are allowed" in text
    healthy.wait_for(1)
    assert resident_bytes(small_broker) < RESIDENT_BYTES_MAX


def test_topology_ends_at_half_of_the_memory(small_broker: LiveBroker, healthy: Healthy) -> None:
    """Headers bindings with full tables: what they take is counted, and refused in the end."""
    entries = b"".join(shortstr(f"{n:x}") + b"V" for n in range(1300))
    with open_channel(small_broker) as wire:
        queue = wire.declare()
        for number in range(2000):
            more = shortstr("number") + b"I" + number.to_bytes(4)
            table = (len(entries) + len(more)).to_bytes(4) + entries + more
            bind = b"\0\0" + shortstr(queue) + shortstr("amq.headers") + b"\0" + b"\0"
            wire.send_raw(raw_method(1, 50, 20, bind + table))
            _, answer = wire.receive()
            if isinstance(answer, commands.Channel.Close):
                break
        assert isinstance(answer, commands.Channel.Close), number
        assert (answer.reply_code, number > 100) == (406, True)
        assert "half of the vhost's memory" in answer.reply_text
        healthy.wait_for(5)
        counted_bytes(small_broker)
        assert resident_bytes(small_broker) < RESIDENT_BYTES_MAX
    with open_channel(small_broker) as wire:  # the queue was exclusive: its bindings went with it
        wire.declare()


def test_limits_that_an_operator_sets_hold_at_once(small_broker: LiveBroker) -> None:
    small_broker.control("add_user", None, name="ann", password="ann")
    small_broker.control("set_permissions", "/", user="ann", configure="", write="", read="")
    small_broker.control("set_user_limits", None, user="ann", limits={"max-connections": 2})

    def connect() -> Wire:
        wire = Wire(small_broker)
        wire.hello()
        wire.log_in("ann", "ann")
        wire.agree()
        wire.send(Connection.Open(virtual_host="/"))
        return wire

    wires = [connect(), connect()]
    for wire in wires:
        wire.expect(Connection.OpenOk)
    with connect() as third:
        assert third.closed() == (
            530, "NOT_ALLOWED - connection refused for user 'ann': user connection limit (2) is "
            "reached",
        )  # fmt: skip
    wires.pop().sock.close()
    left = wires[0]

    def is_admitted() -> bool:
        with connect() as wire:
            return isinstance(wire.receive()[1], Connection.OpenOk)

    wait_until(is_admitted, "the place of the one that went")
    small_broker.control("set_user_limits", None, user="ann", limits={"max-channels": 1})
    left.channel(1)
    left.send(commands.Channel.Open(), 2)
    code, text = left.closed()
    left.sock.close()
    assert (code, text) == (
        530, "NOT_ALLOWED - number of channels opened for user 'ann' has reached the maximum "
        "allowed user limit of (1)",
    )  # fmt: skip
    (own,) = small_broker.control("list_user_limits", None, user="ann")
    assert (own["max-connections"], own["max-channels"], own["max-publish-rate"]) == (2, 1, -1)
    small_broker.control("set_vhost_limits", "/", limits={"max-queues": 0, "max-connections": 0})
    with connect() as refused:
        code, text = refused.closed()
    assert text == (
        "NOT_ALLOWED - access to vhost '/' refused for user 'ann': connection limit (0) is reached"
    )
    small_broker.control("clear_vhost_limits", "/", limit="max-connections")
    with open_channel(small_broker) as wire:
        wire.send(Queue.Declare(queue="one-too-many"), 1)
        code, text = wire.channel_closed()
        assert text == (
            "PRECONDITION_FAILED - cannot declare queue 'one-too-many': queue limit in vhost '/' "
            "(0) is reached"
        )
    small_broker.control("clear_vhost_limits", "/")
    small_broker.control("delete_user", None, name="ann")
    assert [row["user"] for row in small_broker.control("list_user_limits")] == ["guest"]
