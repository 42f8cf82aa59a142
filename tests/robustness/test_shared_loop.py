"""What one user may make a vhost do: rejects beside a backlog, chains, patterns, crowds.

Each was a way to hold up every other client of the vhost, or to end it. The bounds are small, for
the steps are counted in the unit tests (test_requeue_cost, test_topic_trie, test_consumers,
test_dead_letter); here a broker goes through all of it while another client is served.
"""

import pytest
from pamqp import commands

from tests.helpers.live_broker import LiveBroker, wait_until
from tests.helpers.wire import Wire, content_header, open_channel, raw_frame, raw_method, shortstr
from tests.robustness.conftest import Healthy, counted_bytes

pytestmark = pytest.mark.real

READY = 5000
HELD = 200
CHAIN = 400  # queues: the calls of each hop were on the stack of the one before
PATTERNS = 1024
CONSUMERS = 2000

Basic, Exchange, Queue = commands.Basic, commands.Exchange, commands.Queue


def publish(wire: Wire, key: str, n: int, exchange: str = "") -> None:
    """n small messages, written at once."""
    method = raw_method(1, 60, 40, b"\0\0" + shortstr(exchange) + shortstr(key) + b"\0")
    wire.send_raw((method + content_header(1, 1) + raw_frame(3, 1, b"x")) * n)


def ready(wire: Wire, queue: str) -> int:
    """Messages ready in a queue."""
    return wire.ask(Queue.Declare(queue=queue, passive=True), Queue.DeclareOk).message_count or 0


def test_rejects_beside_a_backlog(small_broker: LiveBroker, healthy: Healthy) -> None:
    """One by one, the newest first, and all that is left with the connection."""
    with open_channel(small_broker) as wire:
        wire.declare("backlog", exclusive=False)
        publish(wire, "backlog", READY)
        wait_until(lambda: ready(wire, "backlog") == READY, "all is there")
        for again in range(3):
            for _ in range(HELD):
                wire.ask(Basic.Get(queue="backlog"), Basic.GetOk)
                wire.content()
            last = HELD * (again + 1)
            for tag in range(last, last - HELD, -1):
                wire.send(Basic.Reject(tag, requeue=True), 1)
            assert ready(wire, "backlog") == READY
        for _ in range(HELD):
            wire.ask(Basic.Get(queue="backlog"), Basic.GetOk)
            wire.content()
        healthy.wait_for(5)
    with open_channel(small_broker) as wire:
        wait_until(lambda: ready(wire, "backlog") == READY, "all has come back")
        wire.ask(Queue.Delete(queue="backlog"), Queue.DeleteOk)
    counted_bytes(small_broker)


def test_a_chain_of_full_queues(small_broker: LiveBroker, healthy: Healthy) -> None:
    """Each sends what it gets to the next; the last of them to the first."""
    with open_channel(small_broker) as wire:
        for i in range(CHAIN):
            wire.declare(
                f"chain{i}",
                arguments={
                    "x-max-length": 0, "x-dead-letter-exchange": "",
                    "x-dead-letter-routing-key": f"chain{(i + 1) % CHAIN}",
                },
            )  # fmt: skip
        publish(wire, "chain0", 20)
        healthy.wait_for(5)
        wait_until(
            lambda: sum(ready(wire, f"chain{i}") for i in range(0, CHAIN, 8)) == 0, "they are gone"
        )


def test_patterns_of_many_hashes(small_broker: LiveBroker, healthy: Healthy) -> None:
    with open_channel(small_broker) as wire:
        queue = wire.declare("matched")
        wire.ask(Exchange.Declare(exchange="hashes", exchange_type="topic"), Exchange.DeclareOk)
        for i in range(PATTERNS):
            words = ["#" if bit == "1" else "*" for bit in format(i, "010b")]
            bind = Queue.Bind(queue=queue, exchange="hashes", routing_key=".".join(words))
            wire.ask(bind, Queue.BindOk)
        for i in range(10):
            publish(wire, ".".join([f"{i}", *["a"] * 20]), 1, "hashes")
        wait_until(lambda: ready(wire, queue) == 10, "all are routed")
        healthy.wait_for(5)
        wire.ask(Queue.Delete(queue=queue), Queue.DeleteOk)
        wire.ask(Exchange.Delete(exchange="hashes"), Exchange.DeleteOk)


def test_a_crowd_of_consumers(small_broker: LiveBroker, healthy: Healthy) -> None:
    """All of them full; then a message each, an ack each, and all go with the connection."""
    with open_channel(small_broker) as wire:
        queue = wire.declare("crowd")
        wire.ask(Basic.Qos(prefetch_count=1), Basic.QosOk)
        for i in range(CONSUMERS):
            wire.ask(Basic.Consume(queue=queue, consumer_tag=str(i)), Basic.ConsumeOk)
        publish(wire, queue, CONSUMERS + 10)
        for tag in range(1, CONSUMERS + 1):
            assert wire.expect(Basic.Deliver, 1).delivery_tag == tag
            wire.content()
        for tag in range(1, 11):
            wire.send(Basic.Ack(tag), 1)
            assert wire.expect(Basic.Deliver, 1).delivery_tag == CONSUMERS + tag
            wire.content()
        healthy.wait_for(5)


def test_a_queue_with_255_priorities(small_broker: LiveBroker, healthy: Healthy) -> None:
    with open_channel(small_broker) as wire:
        for i in range(10):
            wire.declare(f"urgent{i}", arguments={"x-max-priority": 255})
            publish(wire, f"urgent{i}", 1)
        wait_until(lambda: ready(wire, "urgent9") == 1, "it is there")
        healthy.wait_for(5)
        counted_bytes(small_broker)
