"""What one user has built takes memory that is counted and bounded, whatever it is.

Each attack is a user's without a tag, against a broker of 64 MiB, while another client is served.
The process's resident memory stays below the budget and 96 MiB, and nobody is blocked.
"""

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from pamqp import commands

from tests.helpers.live_broker import LiveBroker, memory_bytes, wait_until
from tests.helpers.wire import Ended, Wire, content_header, raw_method, shortstr
from tests.robustness.conftest import MEMORY_BYTES, Healthy, counted_bytes, vhost_status

pytestmark = pytest.mark.real

MIB = 1 << 20
RESIDENT_BYTES_MAX = MEMORY_BYTES + 96 * MIB

Basic, Channel, Connection, Queue = (
    commands.Basic, commands.Channel, commands.Connection, commands.Queue,
)  # fmt: skip


@pytest.fixture
def eve(small_broker: LiveBroker, healthy: Healthy) -> Iterator[Wire]:
    """A connection of a user without a tag; at the end memory is looked at."""
    small_broker.control("add_user", None, name="eve", password="eve")
    small_broker.control(
        "set_permissions", "/", user="eve", configure="^eve", write="^(eve|amq)", read="^(eve|amq)"
    )
    with Wire(small_broker) as wire:
        wire.open(user="eve")
        yield wire
        healthy.wait_for(5)
        counted_bytes(small_broker)
        wait_until(
            lambda: vhost_status(small_broker)["blocked_reason"] == "", "the end of the alarm"
        )
        resident = max(memory_bytes(pid, "VmRSS") for pid in small_broker.pids())
        assert resident < RESIDENT_BYTES_MAX, resident / MIB
    small_broker.control("delete_user", None, name="eve")


def tables_of(entries: bytes) -> bytes:
    return len(entries).to_bytes(4) + entries


def until_closed(wire: Wire, number: int) -> str:
    """Read until the broker closes this channel; return why."""
    while True:
        where, answer = wire.receive()
        if where == number and isinstance(answer, Channel.Close):
            return str(answer.reply_text)


def test_routes_that_channels_cache(small_broker: LiveBroker, eve: Wire) -> None:
    """50 channels with 2,000 keys each."""
    for number in range(1, 51):
        eve.channel(number)
        sent = []
        for key in range(2000):
            name = shortstr(f"{number}.{key}.".ljust(250, "k"))
            publish = raw_method(number, 60, 40, b"\0\0" + shortstr("amq.topic") + name + b"\0")
            sent.append(publish + content_header(number, 0))
        eve.send_raw(b"".join(sent))
        eve.ask(Basic.Qos(), Basic.QosOk, number)
    assert 0 < vhost_status(small_broker)["client_bytes"] < MEMORY_BYTES // 8


def test_consumers_with_large_arguments(small_broker: LiveBroker, eve: Wire) -> None:
    table = tables_of(shortstr("a") + b"S" + tables_of(bytes(8100)))
    eve.channel(1)
    eve.ask(Queue.Declare(queue="eve.q", exclusive=True), Queue.DeclareOk)
    consume = b"\0\0" + shortstr("eve.q") + shortstr("") + b"\x08" + table
    with contextlib.suppress(Ended):
        eve.send_raw(raw_method(1, 60, 20, consume) * 20_000)
    text = until_closed(eve, 1)
    assert "cannot add a consumer: channels and consumers of user 'eve' take" in text


def test_queues_and_bindings_of_one_user_leave_room(small_broker: LiveBroker, eve: Wire) -> None:
    for number in (1, 2):
        eve.channel(number)
        declares = b"".join(
            raw_method(
                number, 50, 10, b"\0\0" + shortstr(f"eve.{number}.{n}") + b"\x14" + tables_of(b"")
            )
            for n in range(4000)
        )
        eve.send_raw(declares)
        text = until_closed(eve, number)
        assert "queues, exchanges and bindings of user 'eve' take" in text
    assert vhost_status(small_broker)["topology_bytes"] < MEMORY_BYTES * 2 // 5
    eve.channel(3)
    with Wire(small_broker).open() as other:
        other.channel(1)
        other.ask(Queue.Declare(queue="", exclusive=True), Queue.DeclareOk)


def bound_until_refused(wire: Wire, kind: str, keys: list[str], table: bytes) -> str:
    """Declare an exchange of this kind and bind a queue with each of the keys, and a table to which
    a number is added. Returns why it was refused, "" if it was not."""
    wire.channel(1)
    wire.ask(Queue.Declare(queue="eve.q", exclusive=True), Queue.DeclareOk)
    exchange = commands.Exchange
    wire.ask(
        exchange.Declare(exchange="eve.x", exchange_type=kind, auto_delete=True), exchange.DeclareOk
    )
    for number, key in enumerate(keys):
        entries = table + shortstr("n") + b"I" + number.to_bytes(4) if table else b""
        bind = b"\0\0" + shortstr("eve.q") + shortstr("eve.x") + shortstr(key) + b"\0"
        wire.send_raw(raw_method(1, 50, 20, bind + tables_of(entries)))
        _, answer = wire.receive()
        if isinstance(answer, Channel.Close):
            return str(answer.reply_text)
    return ""


def test_arrays_in_the_arguments_of_bindings(small_broker: LiveBroker, eve: Wire) -> None:
    """300 arrays of 8,000 voids: a megabyte each, if it were kept decoded."""
    table = shortstr("a") + b"A" + tables_of(b"V" * 8000)
    assert bound_until_refused(eve, "headers", [""] * 300, table) == ""
    assert vhost_status(small_broker)["topology_bytes"] > 300 * 8000


def test_patterns_of_many_words(small_broker: LiveBroker, eve: Wire) -> None:
    """126 words each, which nothing else shares."""
    keys = [f"{number:03x}." + ".".join("w" * 125) for number in range(2000)]
    text = bound_until_refused(eve, "topic", keys, b"")
    assert "queues, exchanges and bindings of user 'eve' take" in text


def test_readers_that_do_not_read(small_broker: LiveBroker, eve: Wire) -> None:
    """200 connections that consume 4 MiB each, and read nothing of it: what waits for them is
    counted from the first byte, and not every one of them is given a turn's output."""
    n_readers = 200
    eve.channel(1)
    stream = Queue.Declare(queue="eve.s", durable=True, arguments={"x-queue-type": "stream"})
    eve.ask(stream, Queue.DeclareOk)
    for _ in range(64):
        eve.publish(1, "eve.s", bytes(64 << 10))
    with contextlib.ExitStack() as stack:
        for _ in range(n_readers):
            wire = stack.enter_context(Wire(small_broker).open(user="eve"))
            wire.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            wire.channel(1)
            wire.ask(Basic.Qos(prefetch_count=1000), Basic.QosOk)
            wire.send(
                Basic.Consume(queue="eve.s", arguments={"x-stream-offset": "first"}, nowait=True),
                1,
            )
        found = wait_until(lambda: is_steady(small_broker), "output that waits")
        resident = max(memory_bytes(pid, "VmRSS") for pid in small_broker.pids())
        assert MIB < found["output_bytes"] < MEMORY_BYTES // 4
        assert found["other_bytes"] >= found["output_bytes"]
        assert resident < RESIDENT_BYTES_MAX, resident / MIB
    wait_until(lambda: vhost_status(small_broker)["output_bytes"] == 0, "nothing that waits")
    eve.ask(Queue.Delete(queue="eve.s"), Queue.DeleteOk)


def is_steady(broker: LiveBroker) -> dict[str, Any] | None:
    """The vhost's status, if what waits to be sent does not grow any more."""
    before, found = (vhost_status(broker) for _ in range(2))
    return found if found["output_bytes"] == before["output_bytes"] > 0 else None
