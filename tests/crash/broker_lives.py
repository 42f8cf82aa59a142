"""Lives of a broker in AMQP: clients publish, consume, commit, reject; the disk crashes anywhere.

One life is a run of random steps of three channels on a BrokerRig: confirmed publishes to a queue
and to a fanout, a consumer that acknowledges and rejects (rejected ones are dead-lettered), and
transactions that take from one queue and publish to two. What the clients were told is noted with
the disk operation that was last then.

An image is the disk as a crash after operation `at` leaves it. It is opened by a new broker, and
every message is taken out of every queue by basic.get. Then must hold:

    C1  what was confirmed by `at`, and not given away since, is there, in each of its queues
    C2  a transaction is there whole or not at all; one whose commit-ok came by `at` is
    C3  a message that was rejected is in its queue or with the dead letters, and never in both
    C4  nothing that was never published, nothing twice, and the order of each publisher is kept
    C5  what had been delivered by `at` is redelivered, never fresh
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.codec.properties import BasicProperties
from penstock.codec.spec import (
    BasicAck,
    BasicConsume,
    BasicConsumeOk,
    BasicDeliver,
    BasicGet,
    BasicGetEmpty,
    BasicGetOk,
    BasicQos,
    BasicQosOk,
    BasicReject,
    ConfirmSelect,
    ConfirmSelectOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    TxCommit,
    TxCommitOk,
    TxRollback,
    TxRollbackOk,
    TxSelect,
    TxSelectOk,
)
from tests.helpers.broker_rig import BrokerRig, RigClient
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.journal import Journal

MODES = ("lost", "kept", "subset", "torn", "zeros", "killed")
QUEUES = ("work", "copy", "done", "dead")
STEPS = ("publish", "publish", "fan_out", "settle", "settle", "commit", "rollback", "tick", "turn")
NEVER = 1 << 60


@dataclass
class Commit:
    """A transaction: what it took from "work", what it put into "copy" and "done"."""

    taken: list[int]
    put: list[int]
    told_at: int = NEVER  # the disk operation that was last when commit-ok came
    is_committed: bool = True


@dataclass
class Story:
    """What happened, and when (numbers of disk operations) the clients knew it."""

    places: dict[int, tuple[str, ...]] = field(default_factory=dict)  # id -> its queues
    confirmed_at: dict[int, int] = field(default_factory=dict)
    delivered_at: dict[int, int] = field(default_factory=dict)  # from "work"
    given_away: dict[int, int] = field(default_factory=dict)  # acknowledged, from "work"
    rejected: dict[int, int] = field(default_factory=dict)
    commits: list[Commit] = field(default_factory=list)


class Life:
    """One run; `journal` has the disk at each of its operations."""

    def __init__(self, seed: int, steps: int) -> None:
        self.rng = random.Random(seed)
        self.rig = BrokerRig(fs=FaultyFileSystem(seed=seed))
        self.story = Story()
        self.next_id = 1
        self.owed: list[int] = []  # ids by publisher tag, answered in order
        self.publisher = self.rig.client().open()
        self.worker = self.rig.client().open()
        self.mover = self.rig.client().open()
        self._declare()
        self.open: list[tuple[int, int]] = []  # (delivery tag, id) of the worker
        self.journal: Journal = self.rig.fs.start_journal()
        for _ in range(steps):
            getattr(self, "_" + self.rng.choice(STEPS))()
            self._listen()
        self.rig.turn()
        self._listen()
        self.rig.fs.journal = None

    def _declare(self) -> None:
        c = self.publisher
        dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        for name in QUEUES:
            arguments: dict[str, object] = dict(dead) if name == "work" else {}
            c.call(1, QueueDeclare(queue=name, durable=True, arguments=arguments), QueueDeclareOk)
        c.call(1, ExchangeDeclare(exchange="all", type="fanout", durable=True), ExchangeDeclareOk)
        for name in ("work", "copy"):
            c.call(1, QueueBind(queue=name, exchange="all"), QueueBindOk)
        c.call(1, ConfirmSelect(), ConfirmSelectOk)
        self.worker.call(1, BasicQos(prefetch_count=5), BasicQosOk)
        self.worker.call(1, BasicConsume(queue="work", consumer_tag="w"), BasicConsumeOk)
        self.mover.call(1, TxSelect(), TxSelectOk)

    # ---- steps ---------------------------------------------------------------------------------

    def _new(self, queues: tuple[str, ...]) -> int:
        id = self.next_id
        self.next_id += 1
        self.story.places[id] = queues
        return id

    def _publish(self) -> None:
        for _ in range(self.rng.randint(1, 4)):
            id = self._new(("work",))
            self.owed.append(id)
            self.publisher.publish(1, "", "work", body_of(id, self.rng), delivery_mode=2)

    def _fan_out(self) -> None:
        id = self._new(("work", "copy"))
        self.owed.append(id)
        self.publisher.publish(1, "all", "", body_of(id, self.rng), delivery_mode=2)

    def _settle(self) -> None:
        self.rng.shuffle(self.open)
        for tag, id in self.open[: self.rng.randint(0, 3)]:
            if self.rng.random() < 0.3:
                self.story.rejected[id] = self.journal.last
                self.worker.send(1, BasicReject(delivery_tag=tag, requeue=False))
            else:
                self.story.given_away[id] = self.journal.last
                self.worker.send(1, BasicAck(delivery_tag=tag))
            self.open.remove((tag, id))

    def _transact(self) -> Commit:
        commit = Commit([], [])
        for _ in range(self.rng.randint(0, 2)):
            self.mover.send(1, BasicGet(queue="work"))
            self.rig.vhost.turn()
            self.rig.turn()
            for message in self.mover.messages():
                assert isinstance(message.method, BasicGetOk)
                id = id_of(message.body)
                self.story.delivered_at.setdefault(id, self.journal.last)
                self.mover.send(1, BasicAck(delivery_tag=message.method.delivery_tag))
                commit.taken.append(id)
        for _ in range(self.rng.randint(1, 4)):
            queue = self.rng.choice(("copy", "done"))
            id = self._new((queue,))
            commit.put.append(id)
            self.mover.publish(1, "", queue, body_of(id, self.rng), delivery_mode=2)
        return commit

    def _commit(self) -> None:
        commit = self._transact()
        self.story.commits.append(commit)
        self.mover.send(1, TxCommit())
        self.rig.turn()
        assert len(self.mover.methods(TxCommitOk)) == 1
        commit.told_at = self.journal.last

    def _rollback(self) -> None:
        commit = self._transact()
        commit.is_committed = False
        self.story.commits.append(commit)
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
            count = ack.delivery_tag - self._answered
            for id in self.owed[:count]:
                self.story.confirmed_at[id] = now
            del self.owed[:count]
            self._answered = ack.delivery_tag
        for message in self.worker.messages():
            assert isinstance(message.method, BasicDeliver)
            id = id_of(message.body)
            self.story.delivered_at.setdefault(id, now)
            self.open.append((message.method.delivery_tag, id))

    _answered: int = 0


def body_of(id: int, rng: random.Random) -> bytes:
    """A body that says its id, small or large enough for the store."""
    return b"%d " % id + b"x" * rng.choice((0, 5, 40, 150, 400, 1200))


def id_of(body: bytes) -> int:
    """The id that a body says."""
    return int(body.partition(b" ")[0])


# ---- judging -------------------------------------------------------------------------------------


def drain(client: RigClient, queue: str) -> Iterator[tuple[int, bool]]:
    """(id, redelivered) of all messages of a queue, by basic.get."""
    while True:
        client.send(1, BasicGet(queue=queue))
        client.rig.turn()
        found = client.messages()
        if not found:
            assert len(client.methods(BasicGetEmpty)) == 1, "an answer came"
            return
        for message in found:
            assert isinstance(message.method, BasicGetOk)
            yield id_of(message.body), message.method.redelivered
            if queue == "dead":
                headers = BasicProperties.decode(message.header).headers or {}
                assert headers.get("x-first-death-reason") == "rejected", headers


def judge(story: Story, fs: FaultyFileSystem, at: int) -> list[str]:
    """Open what the crash left, and say what is wrong with it."""
    rig = BrokerRig(fs=fs)
    client = rig.client().open()
    found = {queue: list(drain(client, queue)) for queue in QUEUES}
    ids = {queue: [id for id, _ in messages] for queue, messages in found.items()}
    wrong = []
    for queue in QUEUES:
        if len(set(ids[queue])) != len(ids[queue]):
            wrong.append(f"C4: twice in {queue}: {ids[queue]}")
        known = {id for id, places in story.places.items() if queue in places}
        if queue == "dead":
            known = set(story.rejected)
        if set(ids[queue]) - known:
            wrong.append(f"C4: never published to {queue}: {sorted(set(ids[queue]) - known)}")
        plain = [id for id in ids[queue] if queue == "work"]
        if plain != sorted(plain):
            wrong.append(f"C4: out of order in {queue}: {plain}")
    gone = taken_for_good(story)
    for id, when in story.confirmed_at.items():
        if when > at:
            continue
        for queue in story.places[id]:
            is_left = queue == "work" and (id in gone or id in story.rejected)
            if id not in ids[queue] and not is_left:
                wrong.append(f"C1: {id} was confirmed for {queue} by {when} and is lost")
    for id in story.rejected:
        if id in ids["work"] and id in ids["dead"]:
            wrong.append(f"C3: {id} was rejected and is in both queues")
        if story.confirmed_at.get(id, NEVER) <= at and id not in ids["work"] + ids["dead"]:
            wrong.append(f"C3: {id} was rejected and is in neither queue")
    for commit in story.commits:
        wrong += judge_commit(commit, story, ids, at)
    for id, is_redelivered in found["work"]:
        if story.delivered_at.get(id, NEVER) <= at and not is_redelivered:
            wrong.append(f"C5: {id} had been delivered and comes fresh")
    client.lose()
    rig.vhost.close()
    return wrong


def taken_for_good(story: Story) -> set[int]:
    """What may have left "work"."""
    taken = {id for commit in story.commits if commit.is_committed for id in commit.taken}
    return taken | set(story.given_away)


def judge_commit(commit: Commit, story: Story, ids: dict[str, list[int]], at: int) -> list[str]:
    """C2."""
    there = [id for id in commit.put if id in ids[story.places[id][0]]]
    left = [id for id in commit.taken if id in ids["work"]]
    if not commit.is_committed:
        return [f"C2: {there} were rolled back"] if there else []
    if there and len(there) != len(commit.put):
        return [f"C2: of {commit.put} only {there} are there"]
    if there and left:
        return [f"C2: {there} are there, and {left} were not taken"]
    if commit.told_at <= at and not there:
        return [f"C2: {commit.put} were committed by {commit.told_at} and are lost"]
    lost = [id for id in commit.taken if id not in ids["work"] and not there]
    confirmed = [id for id in lost if story.confirmed_at.get(id, NEVER) <= at]
    return [f"C2: {confirmed} were taken, and {commit.put} are not there"] if confirmed else []


def explore(seed: int, images: int, steps: int = 25) -> tuple[int, list[str]]:
    """One life and so many images of it; how many were judged, and what is wrong."""
    life = Life(seed, steps)
    rng = random.Random(seed + 1)
    journal = life.journal
    wrong = []
    for n in range(images):
        at = rng.randint(journal.first, journal.last)
        mode = MODES[n % len(MODES)]
        fs = journal.image(at).crash(mode, rng)
        where = f"seed {seed}, operation {at} of {journal.last}, {mode}"
        wrong += [f"{where}: {text}" for text in judge(life.story, fs, at)]
    return images, wrong
