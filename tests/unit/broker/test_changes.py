"""What is kept of each queue is what the queue has now, whatever happened to it."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from penstock.broker.operations.kinds import RATE
from penstock.broker.queue_table import GONE_MAX, LOOK_SLICE
from penstock.broker.rates import QUEUE
from penstock.codec.spec import (
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicConsumeOk,
    BasicGet,
    BasicNack,
    QueuePurge,
    QueuePurgeOk,
)
from penstock.http.metrics_text import MetricsText, ObjectTexts
from penstock.members import dug
from penstock.metric_table import FAMILIES
from tests.helpers.broker_rig import RigClient
from tests.helpers.operation_rig import OperationRig

NAMES = ("a", "b", "c", "short", "ttl", "dead", "lazy", "s")
ARGUMENTS: dict[str, dict[str, Any]] = {
    "short": {"x-max-length": 3, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"},
    "ttl": {"x-message-ttl": 50, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"},
    "s": {"x-queue-type": "stream"},
}
COLUMNS = ("messages", "messages_ready", "messages_unacknowledged", "consumers", "memory")
COUNTERS = ("publish", "ack", "get_empty", "deliver_get")


class Random:
    """Does something to one of the queues of a rig."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.rig = OperationRig()
        self.client: RigClient = self.rig.client().open(1)
        self.tag = 0
        self.consumers: list[str] = []
        for name in NAMES:
            self._declare(name)

    def _declare(self, name: str) -> None:
        self.rig.result("declare_queue", queue=name, arguments=ARGUMENTS.get(name, {}))

    def step(self) -> None:
        """One of the things that clients and operators do."""
        name = self.rng.choice(NAMES)
        things: list[Callable[[str], None]] = [
            self._put, self._put, self._put, self._get, self._get, self._settle, self._settle,
            self._consume, self._cancel, self._purge, self._again, self._tick, self._tick,
            self._lease, self._restart,
        ]  # fmt: skip
        self.rng.choices(things, [1] * (len(things) - 1) + [0.2])[0](name)

    def _put(self, name: str) -> None:
        self.rig.put(name, *[b"x"] * self.rng.randrange(1, 4))

    def _get(self, name: str) -> None:
        if name != "s":
            self.client.send(1, BasicGet(queue=name, no_ack=self.rng.random() < 0.5))

    def _settle(self, _name: str) -> None:
        channel = self.client.handler.channels[1]
        next_tag = channel.unacked.next_tag
        tags = [tag for tag, _ in channel.unacked.open_up_to(next_tag, 9)]
        if tags:
            tag, multiple = self.rng.choice(tags), self.rng.random() < 0.5
            requeue = self.rng.random() < 0.5
            self.client.send(1, self.rng.choice([
                BasicAck(delivery_tag=tag, multiple=multiple),
                BasicNack(delivery_tag=tag, multiple=multiple, requeue=requeue),
            ]))  # fmt: skip

    def _consume(self, name: str) -> None:
        if name != "s":
            self.tag += 1
            tag = f"t{self.tag}"
            self.client.call(1, BasicConsume(queue=name, consumer_tag=tag), BasicConsumeOk)
            self.consumers.append(tag)

    def _cancel(self, _name: str) -> None:
        if self.consumers:
            tag = self.consumers.pop()
            self.client.call(1, BasicCancel(consumer_tag=tag), BasicCancelOk)

    def _purge(self, name: str) -> None:
        if name != "s":
            self.client.call(1, QueuePurge(queue=name), QueuePurgeOk)

    def _again(self, name: str) -> None:
        self.rig.result("delete_queue", queue=name)
        self.consumers = [
            tag for tag in self.consumers
            if tag in self.client.handler.channels[1].consumers
        ]  # fmt: skip
        if self.rng.random() < 0.7:
            self._declare(name)
            return
        self._declare("other")
        self.rig.result("delete_queue", queue="other")
        self._declare(name)

    def _tick(self, _name: str) -> None:
        self.rig.tick(self.rng.choice([0.1, 1.0, 6.0]))

    def _lease(self, name: str) -> None:
        if name == "s":
            return
        self.rig.result("lease_queue", queue=name, reader="r")
        if self.rng.random() < 0.7:
            self.rig.result("release_lease", queue=name, reader="r")

    def _restart(self, _name: str) -> None:
        self.rig.clock.advance(0.001)
        self.rig.restart()
        self.client = self.rig.client().open(1)
        self.consumers = []


def number(rig: OperationRig, row: dict[str, Any], column: str) -> float:
    """The value of a column; a rate also where the row does not show it."""
    if column.endswith(RATE):
        name = column.removeprefix("message_stats.").removesuffix(RATE)
        return rig.vhost.rates.of((QUEUE, row["name"])).get(name, 0)
    value = dug(row, column) or 0
    assert isinstance(value, int | float)
    return value


@pytest.mark.parametrize("seed", range(2))
def test_sums_and_orders_are_those_of_the_rows(seed: int) -> None:
    random_rig = Random(seed)
    for _ in range(60):
        random_rig.step()
        rig = random_rig.rig
        rig.turn()
        totals = rig.result("vhost_totals")["queue_totals"]
        rows = rig.result("list_rows", kind="queues")
        for column in COLUMNS[:3]:
            assert totals[column] == sum(row[column] for row in rows), column
        rates = [f"{column}_details.rate" for column in COLUMNS[:3]]
        rates += [f"message_stats.{column}_details.rate" for column in COUNTERS]
        for column in (*COLUMNS, *(f"message_stats.{one}" for one in COUNTERS), *rates):
            for reverse in (False, True):
                found = rig.result("list_rows", kind="queues", sort=column, reverse=reverse)
                numbers = [number(rig, row, column) for row in found]
                assert numbers == sorted(numbers, reverse=reverse), column
                assert sorted(row["name"] for row in found) == [row["name"] for row in rows]


QUEUE_FAMILIES = [family for family in FAMILIES.values() if family.is_of_queues]


def lines(rig: OperationRig, texts: ObjectTexts) -> list[str]:
    """What each queue has, with what has changed since the last call."""
    names = [family.name for family in QUEUE_FAMILIES]
    texts.update("/", rig.result("object_metrics", families=names, since=texts.stamp("/")))
    text = MetricsText(is_openmetrics=False)
    texts.write(text, ["/"])
    return sorted(text.text().decode().splitlines())


@pytest.mark.parametrize("seed", range(4))
def test_metrics_with_what_has_changed_are_those_of_all(seed: int) -> None:
    random_rig = Random(seed)
    starts = [f"{n}_" for n in range(len(QUEUE_FAMILIES))]
    texts = ObjectTexts(QUEUE_FAMILIES, starts)
    for _ in range(100):
        random_rig.step()
        random_rig.rig.turn()
        found = lines(random_rig.rig, texts)
        assert found == lines(random_rig.rig, ObjectTexts(QUEUE_FAMILIES, starts))


def test_so_many_deleted_names_are_remembered() -> None:
    rig = OperationRig()
    changes = rig.vhost.table.changes
    rig.result("declare_queue", queue="q")
    rig.put("q", b"1", b"2")
    assert rig.result("vhost_totals")["queue_totals"]["messages"] == 2
    stamp = changes.stamp()
    for n in range(GONE_MAX):
        changes.note(str(n), is_gone=True)
    assert len(changes.since(stamp) or ()) >= GONE_MAX
    changes.note("one more", is_gone=True)
    assert changes.since(stamp) is None
    assert changes.since(changes.stamp()) is not None
    rig.put("q", b"3")
    assert rig.result("vhost_totals")["queue_totals"]["messages"] == 3


def test_many_queues_are_looked_at_in_slices() -> None:
    rig = OperationRig()
    for n in range(2 * LOOK_SLICE):
        rig.result("declare_queue", queue=f"q{n:03}")
    table = rig.vhost.table
    assert len(list(table.lengths())) > 1
    assert list(table.lengths()) == []
