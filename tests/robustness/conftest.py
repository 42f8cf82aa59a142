"""A broker with 64 MiB, its counted memory, and a healthy client that goes on all the while.

The healthy client publishes with confirms, gets and acknowledges on a connection of its own, in a
thread; a test asks it at the end how often it was served. The counted memory comes from the control
socket, so these tests are of Penstock alone; PENSTOCK_TEST_URL skips them.
"""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from pamqp import commands

from tests.helpers.live_broker import Broker, LiveBroker, external_broker, wait_until
from tests.helpers.wire import Ended, Wire, open_channel

MEMORY = "64MiB"
MEMORY_BYTES = 64 << 20

Basic = commands.Basic


class Healthy(threading.Thread):
    """Publishes, gets and acks, one message at a time. rounds: how often it was served whole."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(daemon=True)
        self.broker = broker
        self.rounds = 0
        self.failure: BaseException | None = None
        self.is_stopping = False

    def run(self) -> None:
        try:
            with open_channel(self.broker) as wire:
                wire.ask(commands.Confirm.Select(), commands.Confirm.SelectOk)
                queue = wire.declare("healthy", durable=True, exclusive=False)
                while not self.is_stopping:
                    wire.publish(1, queue, b"healthy", properties=b"\x10\x00\x02")
                    wire.expect(Basic.Ack, 1)
                    got = wire.ask(Basic.Get(queue=queue), Basic.GetOk)
                    assert wire.content()[1] == b"healthy"
                    wire.send(Basic.Ack(got.delivery_tag or 0), 1)
                    self.rounds += 1
        except BaseException as error:
            self.failure = error

    def wait_for(self, more: int) -> None:
        """Until it was served `more` times more."""
        until = self.rounds + more
        wait_until(lambda: self.rounds >= until or self.failure, f"{more} rounds of the healthy")
        assert self.failure is None, repr(self.failure)


def vhost_status(broker: LiveBroker) -> dict[str, Any]:
    return dict(broker.control("vhost_status", "/"))


def counted_bytes(broker: LiveBroker) -> int:
    """What the vhost counts in RAM, which must never pass what it was given."""
    status = vhost_status(broker)
    counted = int(status["counted_bytes"])
    assert counted <= MEMORY_BYTES, status
    return counted


@pytest.fixture(scope="module")
def small_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    if external_broker() is not None:
        pytest.skip("counted memory is told by Penstock's own control socket")
    with LiveBroker(tmp_path_factory.mktemp("robust") / "data", "--memory", MEMORY) as broker:
        yield broker
        assert broker.stop() == 0, broker.log_text()


@pytest.fixture
def healthy(small_broker: LiveBroker) -> Iterator[Healthy]:
    """QueueOrStream before the test begins, and still served when it ends."""
    client = Healthy(small_broker)
    client.start()
    client.wait_for(5)
    yield client
    client.wait_for(5)
    client.is_stopping = True
    client.join(60)
    assert client.failure is None, repr(client.failure)
    counted_bytes(small_broker)
    assert small_broker.control("list_vhosts")[0]["restarts"] == 0


def ended_or_closed(wire: Wire) -> None:
    """The broker must end this connection; whatever it says before is read."""
    try:
        while True:
            wire.receive()
    except Ended:
        pass
