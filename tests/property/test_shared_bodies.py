"""Random lives of fanned-out messages: after each step the queues count each body in RAM once.

Queues of all kinds are bound to one exchange, and dead letters go to another: durable ones, not
durable, lazy, with priorities, with limits of memory and of length, with ttl and delays. Clients
publish, in transactions too, get, acknowledge, reject, requeue; queues are purged, deleted, lost to
an error and declared again; time passes. `ram_count` counts what is there by itself.
"""

import random
from typing import Any, Final

import pytest

from penstock.codec.spec import (
    BasicAck,
    BasicGet,
    BasicNack,
    ChannelClose,
    ChannelCloseOk,
    ConfirmSelect,
    ConfirmSelectOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
    QueuePurge,
    QueuePurgeOk,
    TxCommit,
    TxRollback,
    TxRollbackOk,
    TxSelect,
    TxSelectOk,
)
from penstock.queues.queue_options import REJECT_PUBLISH
from tests.helpers.broker_rig import BrokerRig
from tests.helpers.ram_count import counted_bytes, held_bytes, managed

DEAD: Final = {"x-dead-letter-exchange": "dead"}
QUEUES: Final[dict[str, tuple[bool, dict[str, Any]]]] = {
    "plain": (True, {}),
    "brief": (False, {}),
    "small": (True, {"x-queue-max-memory-bytes": 1500}),
    "tiny": (False, {"x-queue-max-memory-bytes": 700, "x-paging-policy": "ratio"}),
    "lazy": (True, {"x-queue-mode": "lazy"}),
    "ranked": (True, {"x-max-priority": 3, "x-queue-max-memory-bytes": 2000}),
    "short": (True, {"x-max-length": 3, **DEAD}),
    "refusing": (True, {"x-max-length": 4, "x-overflow": REJECT_PUBLISH}),
    "burying": (False, {"x-max-length": 4, "x-overflow": "reject-publish-dlx", **DEAD}),
    "old": (True, {"x-message-ttl": 2000, **DEAD}),
    "later": (True, {"x-delay": 1500}),
    "tried": (False, {"x-delivery-limit": 2, **DEAD}),
}
BURIED: Final[dict[str, tuple[bool, dict[str, Any]]]] = {
    "buried": (True, {}),
    "buried ttl": (True, {"x-message-ttl": 5000}),
    "buried brief": (False, {"x-queue-max-memory-bytes": 1000}),
}
SIZES: Final = (0, 2, 11, 30, 63, 64, 100, 127, 128, 300, 2000)  # those of the store among them
STEPS: Final = 150


class Life:
    """One vhost and what happens to it, as chance has it."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.rig = BrokerRig(memory_bytes=1 << 20)
        self.client = self.rig.client()
        self.client.open(1)
        self.client.open(2)
        if seed % 3 != 2:  # a confirm of what a stream gets as a dead letter waits for another sync
            self.client.call(1, ConfirmSelect(), ConfirmSelectOk)
        self.client.call(2, TxSelect(), TxSelectOk)
        self.number = 0
        self.unacked: list[int] = []  # delivery tags of channel 1
        for exchange in ("fan", "dead"):
            declare = ExchangeDeclare(exchange=exchange, type="fanout", durable=True)
            self.client.call(1, declare, ExchangeDeclareOk)
        for name in (*QUEUES, *BURIED):
            self.declare(name)
        if seed % 3:  # then a stream gets the messages, too, or the dead letters
            stream = QueueDeclare(
                queue="stream", durable=True, arguments={"x-queue-type": "stream"}
            )
            self.client.call(1, stream, QueueDeclareOk)
            bind = QueueBind(queue="stream", exchange="fan" if seed % 3 == 1 else "dead")
            self.client.call(1, bind, QueueBindOk)

    def declare(self, name: str) -> None:
        """A queue and its binding."""
        durable, arguments = {**QUEUES, **BURIED}[name]
        declare = QueueDeclare(queue=name, durable=durable, arguments=arguments)
        self.client.call(1, declare, QueueDeclareOk)
        bind = QueueBind(queue=name, exchange="dead" if name in BURIED else "fan")
        self.client.call(1, bind, QueueBindOk)

    def any_queue(self) -> str:
        """The name of one."""
        return self.rng.choice([*QUEUES, *BURIED])

    # ---- steps ---------------------------------------------------------------------------------

    def publish(self, channel: int = 1) -> None:
        """To all of QUEUES, or to one of them."""
        self.number += 1
        body = b"%d;" % self.number
        body = body.ljust(self.rng.choice(SIZES), b".") if self.rng.random() < 0.9 else b""
        how: dict[str, Any] = {"delivery_mode": self.rng.choice((1, 2, 2))}
        if self.rng.random() < 0.3:
            how["priority"] = self.rng.randrange(5)
        if self.rng.random() < 0.2:
            how["expiration"] = self.rng.choice(("0", "500", "9000"))
        to_all = self.rng.random() < 0.8
        exchange, key = ("fan", "") if to_all else ("", self.any_queue())
        self.client.publish(channel, exchange, key, body, **how)
        self.rig.turn()

    def transaction(self) -> None:
        """A few publishes that take effect together, or never."""
        for _ in range(self.rng.randint(1, 4)):
            self.publish(2)
            self.judge()
        if self.rng.random() < 0.8:
            self.client.send(2, TxCommit())
            self.rig.turn()
            if self.client.methods(ChannelClose):  # a queue refuses
                self.client.send(2, ChannelCloseOk())
                self.client.open(2)
                self.client.call(2, TxSelect(), TxSelectOk)
        else:
            self.client.call(2, TxRollback(), TxRollbackOk)

    def get(self) -> None:
        """One message, or several; some need no acknowledgement."""
        name = self.any_queue()
        no_ack = self.rng.random() < 0.3
        for _ in range(self.rng.randint(1, 5)):
            self.client.send(1, BasicGet(queue=name, no_ack=no_ack))
            self.rig.turn()
            for message in self.client.messages():
                if not no_ack:
                    self.unacked.append(message.method.delivery_tag)  # type: ignore[attr-defined]

    def settle(self) -> None:
        """Some that were got are acknowledged, rejected or requeued."""
        for _ in range(self.rng.randint(1, 6)):
            if not self.unacked:
                return
            tag = self.unacked.pop(self.rng.randrange(len(self.unacked)))
            how = self.rng.randrange(3)
            if how == 0:
                self.client.send(1, BasicAck(delivery_tag=tag))
            else:
                self.client.send(1, BasicNack(delivery_tag=tag, requeue=how == 1))
            self.rig.turn()
            self.judge()

    def purge(self) -> None:
        self.client.call(1, QueuePurge(queue=self.any_queue()), QueuePurgeOk)

    def delete(self) -> None:
        """A queue goes with all that it holds, and comes back empty."""
        name = self.any_queue()
        self.client.call(1, QueueDelete(queue=name), QueueDeleteOk)
        self.judge()
        self.declare(name)

    def fail(self) -> None:
        """An error in a queue's own code: it starts again from what is on disk."""
        vhost = self.rig.vhost
        name = self.any_queue()
        vhost.restarts.failed(vhost.table.served[name], RuntimeError("a test"))
        self.rig.turn()

    def limit(self) -> None:
        """More or less memory for what is in the queues; publishers are never held up."""
        monitor = self.rig.vhost.monitor
        monitor.budget_bytes = monitor.other_bytes + self.rng.choice((1000, 10_000, 1 << 20))
        monitor.watermark_bytes = 1 << 30

    def wait(self) -> None:
        """Time passes: rounds of the monitor, expiries, delays."""
        for _ in range(self.rng.randint(1, 4)):
            self.rig.tick(self.rng.choice((0.1, 1.0, 2.5)))
            self.judge()

    # ---- what must hold ------------------------------------------------------------------------

    def judge(self) -> None:
        """Each body counts once, and each queue's own counters are right."""
        queues = managed(self.rig.vhost)
        for queue in queues:
            queue.state.check()
        assert counted_bytes(queues) == held_bytes(queues)

    def step(self) -> None:
        """Whatever chance has."""
        steps = {
            self.publish: 40, self.transaction: 8, self.get: 20, self.settle: 15, self.wait: 12,
            self.purge: 3, self.delete: 3, self.limit: 3, self.fail: 1,
        }  # fmt: skip
        (step,) = self.rng.choices(list(steps), list(steps.values()))
        step()
        self.judge()
        self.client.pump()
        self.client.events = []


@pytest.mark.parametrize("seed", range(12))
def test_each_body_in_ram_counts_once_whatever_happens(seed: int) -> None:
    life = Life(seed)
    shared = 0
    for _ in range(STEPS):
        life.step()
        shared = max(shared, sum(queue.state.shared.count for queue in managed(life.rig.vhost)))
    assert shared > 10, "there was something to share"
    for name in (*QUEUES, *BURIED):
        life.client.call(1, QueuePurge(queue=name), QueuePurgeOk)
        life.judge()
    while life.unacked:
        life.settle()
    life.rig.tick(10.0)
    for name in (*QUEUES, *BURIED):
        life.client.call(1, QueuePurge(queue=name), QueuePurgeOk)
    life.judge()
    assert all(queue.state.shared.count == 0 for queue in managed(life.rig.vhost))
    assert all(queue.elsewhere_bytes() == 0 for queue in managed(life.rig.vhost))
