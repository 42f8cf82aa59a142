"""Memory is given back: after work of each kind a broker occupies what it did before it.

Each process occupies at most 32 MiB more than after its start, 60 s after work that took hundreds
at the latest; without a limit that would page. The client is a bare socket: a library would take
longer than all else here.
"""

from collections.abc import Iterator

import pytest
from pamqp import commands

from tests.helpers.live_broker import LiveBroker, memory_bytes, wait_until
from tests.helpers.wire import Wire, content_header, raw_frame, raw_method, shortstr

MIB = 1 << 20
MORE_MAX = 32 * MIB
WORK_MIN = 100 * MIB  # that the work takes at its height
LIMIT_S = 60.0
RUN = 200  # messages that are sent at once

pytestmark = pytest.mark.real


class Measured:
    """A broker, and what its processes occupied after the start."""

    def __init__(self, broker: LiveBroker) -> None:
        self.broker = broker
        self.first = self.now()

    def now(self) -> dict[int, int]:
        return {pid: memory_bytes(pid, "VmRSS") for pid in self.broker.pids()}

    def returned(self) -> int:
        """Bytes that the vhosts have given back, as `penstock status` shows them."""
        return sum(row["returned_bytes"] for row in self.broker.control("status")["vhosts"])

    def is_back(self) -> bool:
        now = self.now()
        return all(now[pid] - first <= MORE_MAX for pid, first in self.first.items())

    def check_height(self) -> None:
        """The work has taken so much that giving it back means something."""
        grown = max(size - self.first[pid] for pid, size in self.now().items())
        assert grown >= WORK_MIN, f"only {grown / MIB:.0f} MiB"

    def check_given_back(self) -> None:
        """It is back, within LIMIT_S."""
        wait_until(self.is_back, f"{MORE_MAX >> 20} MiB above the start", LIMIT_S)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    directory = tmp_path_factory.mktemp("memory") / "data"
    with LiveBroker(directory, "--memory", "4GiB") as broker:
        with Wire(broker) as wire:
            opened(wire)
        yield Measured(broker)


def opened(wire: Wire) -> Wire:
    """A channel, with a queue q."""
    wire.open()
    wire.ask(commands.Channel.Open(), commands.Channel.OpenOk)
    wire.ask(commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
    return wire


def ready(wire: Wire) -> int:
    """Messages ready in q."""
    answer = wire.ask(commands.Queue.Declare(queue="q", passive=True), commands.Queue.DeclareOk)
    assert answer.message_count is not None
    return answer.message_count


def publish(wire: Wire, n: int, body_bytes: int) -> None:
    """n messages for q."""
    method = raw_method(1, 60, 40, b"\0\0" + shortstr("") + shortstr("q") + b"\0")
    frames = method + content_header(1, body_bytes)
    for at in range(0, body_bytes, 100_000):
        frames += raw_frame(3, 1, b"x" * min(100_000, body_bytes - at))
    many = max(1, min(RUN, MIB // body_bytes))
    for at in range(0, n, many):
        wire.send_raw(frames * min(many, n - at))
    wait_until(lambda: ready(wire) == n, "all is published")


def take_all(wire: Wire, broker: LiveBroker, *, no_ack: bool) -> None:
    """Everything in q is delivered to a consumer, whose bytes nobody looks at."""
    wire.send(commands.Basic.Consume(queue="q", consumer_tag="c", no_ack=no_ack), 1)
    with Wire(broker) as other:
        opened(other)
        wire.sock.settimeout(0.2)
        while ready(other):
            discard(wire)
        discard(wire)


def discard(wire: Wire) -> None:
    """Read what has come."""
    try:
        for _ in range(1000):
            assert wire.sock.recv(MIB)
    except TimeoutError:
        return


def test_after_a_purge(measured: Measured) -> None:
    with Wire(measured.broker) as wire:
        opened(wire)
        publish(wire, 120_000, 1000)
        measured.check_height()
        wire.ask(commands.Queue.Purge(queue="q"), commands.Queue.PurgeOk)
        measured.check_given_back()
    # Python gives back its own arenas besides; the status is as old as the last answer of a vhost.
    wait_until(
        lambda: measured.returned() >= WORK_MIN // 2, "status shows what was given back", LIMIT_S
    )


def test_after_a_drain_and_after_many_unacked(measured: Measured) -> None:
    for no_ack in (True, False):
        with Wire(measured.broker) as wire:
            opened(wire)
            publish(wire, 120_000, 1000)
            measured.check_height()
            take_all(wire, measured.broker, no_ack=no_ack)
            if not no_ack:
                wire.send(commands.Basic.Ack(delivery_tag=0, multiple=True), 1)
            measured.check_given_back()


def test_after_large_bodies_and_a_deleted_queue(measured: Measured) -> None:
    with Wire(measured.broker) as wire:
        opened(wire)
        publish(wire, 2500, 60_000)
        measured.check_height()
        wire.ask(commands.Queue.Delete(queue="q"), commands.Queue.DeleteOk)
        measured.check_given_back()
