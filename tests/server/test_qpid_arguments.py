"""qpid.max_count, qpid.max_size and qpid.policy_type as a client meets them."""

from collections.abc import Iterator
from typing import Any

import pytest
from pamqp import commands

from tests.helpers.live_broker import LiveBroker
from tests.helpers.wire import Wire, open_channel

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    with LiveBroker(tmp_path_factory.mktemp("qpid") / "data") as live:
        yield live


@pytest.fixture
def wire(broker: LiveBroker) -> Iterator[Wire]:
    with open_channel(broker) as wire:
        wire.ask(commands.Confirm.Select(), commands.Confirm.SelectOk)
        yield wire


class Confirmed:
    """A queue of these arguments, and what becomes of publishes to it."""

    def __init__(self, wire: Wire, name: str, **arguments: object) -> None:
        self.wire = wire
        self.name = name
        wire.declare(
            name, durable=True, exclusive=False,
            arguments={f"qpid.{key}": value for key, value in arguments.items()},
        )  # fmt: skip

    def publish(self, body: bytes) -> bool:
        """Whether it was confirmed."""
        self.wire.publish(1, self.name, body)
        _, answer = self.wire.receive()
        assert isinstance(answer, commands.Basic.Ack | commands.Basic.Nack)
        return isinstance(answer, commands.Basic.Ack)

    def get(self) -> tuple[bytes, int]:
        """The next message and its tag, unacknowledged; b"", 0: there is none."""
        self.wire.send(commands.Basic.Get(queue=self.name), 1)
        _, answer = self.wire.receive()
        if isinstance(answer, commands.Basic.GetEmpty):
            return b"", 0
        assert isinstance(answer, commands.Basic.GetOk)
        return self.wire.content()[1], answer.delivery_tag or 0

    def bodies(self) -> list[bytes]:
        """All that is ready; it is not ready any more."""
        found = []
        while (one := self.get())[1]:
            found.append(one[0])
        return found


def test_reject_refuses_what_does_not_fit(wire: Wire) -> None:
    for arguments in ({"max_count": 2}, {"max_size": 2, "policy_type": "reject"}):
        queue = Confirmed(wire, f"reject {len(arguments)}", **arguments)
        assert [queue.publish(body) for body in (b"a", b"b", b"c")] == [True, True, False]
        assert queue.bodies() == [b"a", b"b"]


def test_a_ring_drops_its_oldest_also_while_some_are_not_acknowledged(wire: Wire) -> None:
    queue = Confirmed(wire, "ring", max_count=2, policy_type="ring")
    assert all(queue.publish(body) for body in (b"a", b"b", b"c"))
    assert queue.get()[0] == b"b"
    assert all(queue.publish(body) for body in (b"d", b"e"))
    assert queue.bodies() == [b"d", b"e"]


def test_a_strict_ring_refuses_while_its_oldest_is_not_acknowledged(wire: Wire) -> None:
    queue = Confirmed(wire, "strict", max_count=2, policy_type="ring_strict")
    assert all(queue.publish(body) for body in (b"a", b"b", b"c"))
    body, tag = queue.get()
    assert body == b"b"
    assert not queue.publish(b"d")
    wire.send(commands.Basic.Ack(delivery_tag=tag), 1)
    assert all(queue.publish(body) for body in (b"e", b"f"))
    assert queue.bodies() == [b"e", b"f"]


def test_flow_to_disk_keeps_all_and_holds_little_in_memory(broker: LiveBroker, wire: Wire) -> None:
    queue = Confirmed(wire, "flow", max_size=1000, max_count=2, policy_type="flow_to_disk")
    body = b"x" * 500
    assert all(queue.publish(body) for _ in range(10))
    (row,) = [row for row in broker.control("list_queues", "/") if row["name"] == "flow"]
    assert row["is_flowed"] is True
    assert row["messages"] == 10
    assert row["memory"] <= 3000
    assert queue.bodies() == [body] * 10


def test_the_same_in_two_words_and_other_words_for_the_same(broker: LiveBroker) -> None:
    def refusal(arguments: dict[str, Any], name: str) -> str:
        with open_channel(broker) as wire:
            wire.send(commands.Queue.Declare(queue=name, durable=True, arguments=arguments), 1)
            code, text = wire.channel_closed()
            assert code == 406
            return text

    text = refusal({"qpid.max_count": 5, "x-max-length": 5}, "both")
    assert "qpid.max_count" in text
    assert "x-max-length" in text
    with open_channel(broker) as wire:
        ring: dict[str, Any] = {"qpid.max_count": 5, "qpid.policy_type": "ring"}
        for _ in range(2):
            wire.declare("once", durable=True, exclusive=False, arguments=ring)
    assert "inequivalent arg 'x-max-length'" in refusal({"x-max-length": 5}, "once")
    assert "inequivalent arg 'qpid.max_count'" in refusal({**ring, "qpid.max_count": 6}, "once")
