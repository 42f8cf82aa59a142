"""The clients of the kill loop: threads that publish, commit, consume and reject until the kill.

Each has a connection of its own, says in the ledger what it does before it does it, and what it was
told as soon as it was told; the end of the connection ends the thread, and any other exception is
kept for the test to see. `drain` is the audit's client: it empties a queue in a transaction.

Queues: "plain" (published with confirms, consumed with acks), "work" (published, taken and
acknowledged by transactions, which also publish into TX_QUEUES), "retry" (each delivery rejected,
to "dead"), "brief" (a time to live of 30 ms, to "expired").
"""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pamqp import commands

from tests.crash.live_ledger import TX_QUEUES, Ledger, Transaction, make_body
from tests.helpers.live_broker import Broker, wait_until
from tests.helpers.wire import Ended, Wire

PERSISTENT = b"\x10\x00\x02"
SIZES = (20, 20, 20, 300, 300, 5_000, 70_000)
Basic, Queue, Tx = commands.Basic, commands.Queue, commands.Tx
DEAD_LETTERS = {"retry": "dead", "brief": "expired"}
ALL_QUEUES = ("plain", "work", "retry", "dead", "brief", "expired", *TX_QUEUES)


@contextmanager
def session(broker: Broker, vhost: str = "/") -> Iterator[Wire]:
    """A connection with channel 1 open, closed at the end of the block."""
    wire = Wire(broker)
    try:
        wire.open(vhost)
        wire.channel()
        yield wire
    finally:
        wire.sock.close()


def declare_all(broker: Broker) -> None:
    with session(broker) as wire:
        for queue in ALL_QUEUES:
            arguments: dict[str, object] = {}
            if queue in DEAD_LETTERS:
                arguments["x-dead-letter-exchange"] = ""
                arguments["x-dead-letter-routing-key"] = DEAD_LETTERS[queue]
            if queue == "brief":
                arguments["x-message-ttl"] = 30
            wire.declare(queue, durable=True, exclusive=False, arguments=arguments)


class Client(threading.Thread):
    """Runs `work` until the connection ends. failure: what else ended it."""

    def __init__(
        self, broker: Broker, ledger: Ledger, rng: random.Random, vhost: str = "/"
    ) -> None:
        super().__init__(daemon=True)
        self.broker = broker
        self.ledger = ledger
        self.rng = rng
        self.vhost = vhost
        self.failure: BaseException | None = None
        self.is_stopping = False

    def run(self) -> None:
        try:
            with session(self.broker, self.vhost) as wire:
                self.work(wire)
        except (Ended, ConnectionError):
            pass
        except BaseException as error:
            self.failure = error

    def work(self, wire: Wire) -> None:
        raise AssertionError("a client with no work")

    def body(self, queue: str, number: int) -> bytes:
        return make_body(queue, number, self.rng.randbytes(self.rng.choice(SIZES)))


class Publisher(Client):
    """Publishes batches into one queue and waits for their confirms."""

    queue = "plain"

    def work(self, wire: Wire) -> None:
        wire.ask(commands.Confirm.Select(), commands.Confirm.SelectOk)
        numbers: dict[int, int] = {}
        tag = 0
        while not self.is_stopping:
            for _ in range(self.rng.choice((1, 5, 40))):
                number = self.ledger.new_number()
                tag += 1
                numbers[tag] = number
                self.ledger.sending(self.queue, number)
                wire.publish(1, self.queue, self.body(self.queue, number), properties=PERSISTENT)
            while numbers:
                _, answer = wire.receive()
                assert isinstance(answer, Basic.Ack | Basic.Nack), answer
                last = answer.delivery_tag or 0
                tags = [t for t in numbers if t <= last] if answer.multiple else [last]
                for one in tags:
                    self.ledger.confirm(self.queue, numbers.pop(one), isinstance(answer, Basic.Ack))


class WorkPublisher(Publisher):
    queue = "work"


class RetryPublisher(Publisher):
    queue = "retry"


class BriefPublisher(Publisher):
    queue = "brief"


class Consumer(Client):
    """Consumes "plain" and acknowledges: one by one, several at once, or late."""

    def work(self, wire: Wire) -> None:
        wire.ask(Basic.Qos(prefetch_count=50), Basic.QosOk)
        wire.ask(Basic.Consume(queue="plain"), Basic.ConsumeOk)
        held: dict[int, int] = {}
        while not self.is_stopping:
            delivery = wire.expect(Basic.Deliver, 1)
            _, data = wire.content()
            tag = delivery.delivery_tag or 0
            held[tag] = self.ledger.see("plain", data, bool(delivery.redelivered))
            if len(held) > self.rng.choice((0, 5, 30)):
                tags = sorted(held)[: self.rng.randint(1, len(held))]
                is_multiple = self.rng.random() < 0.5
                for one in tags:
                    self.ledger.settle("plain", held.pop(one))
                    if not is_multiple:
                        wire.send(Basic.Ack(one), 1)
                if is_multiple:
                    wire.send(Basic.Ack(tags[-1], multiple=True), 1)


class Rejecter(Client):
    """Rejects every delivery of "retry": it becomes a dead letter."""

    def work(self, wire: Wire) -> None:
        wire.ask(Basic.Qos(prefetch_count=20), Basic.QosOk)
        wire.ask(Basic.Consume(queue="retry"), Basic.ConsumeOk)
        while not self.is_stopping:
            delivery = wire.expect(Basic.Deliver, 1)
            _, data = wire.content()
            self.ledger.see("retry", data, bool(delivery.redelivered))
            wire.send(Basic.Nack(delivery.delivery_tag or 0, requeue=False), 1)
            self.ledger.events += 1


class Transactor(Client):
    """Takes one of "work", publishes into three queues and acknowledges, in one transaction."""

    def work(self, wire: Wire) -> None:
        wire.ask(Tx.Select(), Tx.SelectOk)
        while not self.is_stopping:
            one = Transaction(self.ledger.new_number())
            self.ledger.transactions[one.number] = one
            tag = self._take(wire, one)
            for queue in TX_QUEUES:
                data = self.body(queue, one.number)
                wire.publish(1, queue, data, properties=PERSISTENT)
            if tag:
                wire.send(Basic.Ack(tag), 1)
            if self.rng.random() < 0.2:
                self._roll_back(wire, tag, one)
            else:
                one.state = "asked"
                wire.ask(Tx.Commit(), Tx.CommitOk)
                one.state = "committed"
            self.ledger.events += 1

    def _take(self, wire: Wire, one: Transaction) -> int:
        wire.send(Basic.Get(queue="work"), 1)
        _, answer = wire.receive()
        if isinstance(answer, Basic.GetEmpty):
            return 0
        assert isinstance(answer, Basic.GetOk), answer
        _, data = wire.content()
        one.taken = self.ledger.see("work", data, bool(answer.redelivered))
        return answer.delivery_tag or 0

    def _roll_back(self, wire: Wire, tag: int, one: Transaction) -> None:
        wire.ask(Tx.Rollback(), Tx.RollbackOk)
        one.taken = -1
        if tag:
            wire.send(Basic.Nack(tag, requeue=True), 1)
            wire.ask(Tx.Commit(), Tx.CommitOk)


CLIENTS: tuple[type[Client], ...] = (
    Publisher, WorkPublisher, RetryPublisher, BriefPublisher, Consumer, Rejecter, Transactor,
)  # fmt: skip


def depth(wire: Wire, queue: str) -> int:
    declared = wire.ask(Queue.Declare(queue=queue, passive=True), Queue.DeclareOk)
    return declared.message_count or 0


def drain(wire: Wire, queue: str, see: Callable[[bytes, bool], int]) -> list[int]:
    """The numbers of all messages of the queue, taken in a transaction that commits."""
    found: list[int] = []
    while count := depth(wire, queue):
        wire.send(Basic.Consume(queue=queue, consumer_tag="drain"), 1)
        wire.expect(Basic.ConsumeOk, 1)
        for _ in range(count):
            delivery = wire.expect(Basic.Deliver, 1)
            _, data = wire.content()
            found.append(see(data, bool(delivery.redelivered)))
        wire.send(Basic.Ack(0, multiple=True), 1)
        wire.ask(Basic.Cancel("drain"), Basic.CancelOk)
        wire.ask(Tx.Commit(), Tx.CommitOk)
    return found


def drain_all(broker: Broker, ledger: Ledger) -> dict[str, list[int]]:
    """Every queue emptied; "brief" by its messages' time to live, to "expired"."""
    with session(broker) as wire:
        wire.ask(Tx.Select(), Tx.SelectOk)
        wait_until(lambda: depth(wire, "brief") == 0, "the end of all that is brief")
        return {
            queue: drain(wire, queue, lambda data, again, q=queue: ledger.see(q, data, again))  # type: ignore[misc]
            for queue in ALL_QUEUES
        }
