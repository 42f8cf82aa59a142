"""What lives of a broker share: clients on a rig, what they were told, images of the disk.

A life is a run of random steps of AMQP clients on a BrokerRig. Its story notes what the clients
were told, with the number of the disk operation that was last then. An image is the disk as a crash
after operation `at` leaves it. A judge opens it with a new broker, and says what is wrong.

A module of lives has

    Story(BrokerStory)      what is noted beside publishes, confirms and transactions
    Life(BrokerLife)        STEPS, and for each `name` in it a method `_name`, where it is not one
                            of those here; `declare` before the first step, `hear` after each
    judge(story, fs, at)    what is wrong with what the crash left, a line for each
    explore(seed, images)   Life(seed, steps).explore(judge, images)

broker_lives.py has queues, broker_stream_lives.py streams.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Generic, TypeVar

from penstock.codec.spec import (
    BasicAck,
    BasicGet,
    BasicGetEmpty,
    ConfirmSelect,
    ConfirmSelectOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    QueueBind,
    QueueBindOk,
    TxCommit,
    TxCommitOk,
    TxRollback,
    TxRollbackOk,
    TxSelect,
    TxSelectOk,
)
from penstock.protocol.connection import MessageReceived
from tests.helpers.broker_rig import BrokerRig, RigClient
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.journal import Journal

MODES = ("lost", "kept", "subset", "torn", "zeros", "killed")
NEVER = 1 << 60


@dataclass
class Commit:
    """A transaction: the ids that it put into queues, and those that it took from one."""

    put: list[int] = field(default_factory=list)
    taken: list[int] = field(default_factory=list)
    told_at: int = NEVER  # the disk operation that was last when commit-ok came
    is_committed: bool = True


@dataclass
class BrokerStory:
    """What happened, and when (numbers of disk operations) the clients knew it."""

    places: dict[int, tuple[str, ...]] = field(default_factory=dict)  # id -> its queues
    confirmed_at: dict[int, int] = field(default_factory=dict)
    commits: list[Commit] = field(default_factory=list)


S = TypeVar("S", bound=BrokerStory)


class BrokerLife(Generic[S]):
    """One run; `journal` has the disk at each of its operations.

    publisher: its messages are confirmed. mover: publishes in transactions.
    """

    STEPS: ClassVar[tuple[str, ...]]  # drawn from; a step that stands twice is twice as frequent
    PUT_TO: ClassVar[tuple[str, ...]] = ()  # the queues that transactions publish to

    def __init__(self, seed: int, steps: int, story: S) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.rig = BrokerRig(fs=FaultyFileSystem(seed=seed))
        self.story = story
        self.next_id = 1
        self.owed: list[int] = []  # ids by publisher tag, answered in order
        self.answered = 0  # the last publisher tag that was
        self.publisher = self.rig.client().open()
        self.publisher.call(1, ConfirmSelect(), ConfirmSelectOk)
        self.mover = self.rig.client().open()
        self.mover.call(1, TxSelect(), TxSelectOk)
        self.declare()
        self.journal: Journal = self.rig.fs.start_journal()
        for _ in range(steps):
            getattr(self, "_" + self.rng.choice(self.STEPS))()
            self._listen()
        self.rig.turn()
        self._listen()
        self.rig.fs.journal = None

    def explore(
        self, judge: Callable[[S, FaultyFileSystem, int], list[str]], images: int
    ) -> tuple[int, list[str]]:
        """So many images of it, after any operation; how many, and what is wrong with them."""
        rng = random.Random(self.seed + 1)
        journal = self.journal
        wrong = []
        for n in range(images):
            at = rng.randint(journal.first, journal.last)
            mode = MODES[n % len(MODES)]
            fs = journal.image(at).crash(mode, rng)
            where = f"seed {self.seed}, operation {at} of {journal.last}, {mode}"
            wrong += [f"{where}: {text}" for text in judge(self.story, fs, at)]
        return images, wrong

    # ---- of each kind of life ------------------------------------------------------------------

    def declare(self) -> None:
        """What there is before the first step: queues, bindings, more clients."""
        raise NotImplementedError

    def hear(self, now: int) -> None:
        """Note what clients beside the publisher were told; `now`: the last disk operation."""

    def take(self, commit: Commit) -> None:
        """What the mover takes in a transaction, before it publishes."""

    # ---- for steps -----------------------------------------------------------------------------

    def new(self, *places: str) -> int:
        """The id of a message that goes to these queues."""
        id = self.next_id
        self.next_id += 1
        self.story.places[id] = places
        return id

    def publish(self, exchange: str, key: str, *places: str) -> None:
        """A message with a confirm; `places`: the queues that it goes to."""
        id = self.new(*places)
        self.owed.append(id)
        self.publisher.publish(1, exchange, key, body_of(id, self.rng), delivery_mode=2)

    def declare_fanout(self, *queues: str) -> None:
        """The exchange "all", to these."""
        c = self.publisher
        c.call(1, ExchangeDeclare(exchange="all", type="fanout", durable=True), ExchangeDeclareOk)
        for name in queues:
            c.call(1, QueueBind(queue=name, exchange="all"), QueueBindOk)

    def _transact(self) -> Commit:
        commit = Commit()
        self.story.commits.append(commit)
        self.take(commit)
        for _ in range(self.rng.randint(1, 4)):
            place = self.rng.choice(self.PUT_TO)
            id = self.new(place)
            commit.put.append(id)
            self.mover.publish(1, "", place, body_of(id, self.rng), delivery_mode=2)
        return commit

    # ---- steps ---------------------------------------------------------------------------------

    def _commit(self) -> None:
        commit = self._transact()
        self.mover.send(1, TxCommit())
        self.rig.turn()
        assert len(self.mover.methods(TxCommitOk)) == 1
        commit.told_at = self.journal.last

    def _rollback(self) -> None:
        self._transact().is_committed = False
        self.mover.call(1, TxRollback(), TxRollbackOk)

    def _tick(self) -> None:
        self.rig.tick(self.rng.choice((0.1, 1.0, 40.0)))

    def _turn(self) -> None:
        self.rig.turn()

    def _listen(self) -> None:
        """What the clients were told by now."""
        if self.rng.random() < 0.5:
            self.rig.vhost.turn()
        else:
            self.rig.turn()
        now = self.journal.last
        for ack in self.publisher.methods(BasicAck):
            count = ack.delivery_tag - self.answered
            for id in self.owed[:count]:
                self.story.confirmed_at[id] = now
            del self.owed[:count]
            self.answered = ack.delivery_tag
        self.hear(now)


# ---- messages ------------------------------------------------------------------------------------


def body_of(id: int, rng: random.Random) -> bytes:
    """A body that says its id, small or large enough for the store."""
    return b"%d " % id + b"x" * rng.choice((0, 5, 40, 150, 400, 1200))


def id_of(body: bytes) -> int:
    """The id that a body says."""
    return int(body.partition(b" ")[0])


def drain(client: RigClient, queue: str, *, no_ack: bool = False) -> Iterator[MessageReceived]:
    """All messages of a queue, by basic.get."""
    while True:
        client.send(1, BasicGet(queue=queue, no_ack=no_ack))
        client.rig.turn()
        found = client.messages()
        if not found:
            assert len(client.methods(BasicGetEmpty)) == 1, "an answer came"
            return
        yield from found
