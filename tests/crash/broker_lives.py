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

from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.codec.properties import BasicProperties
from penstock.codec.spec import (
    BasicAck,
    BasicConsume,
    BasicConsumeOk,
    BasicDeliver,
    BasicGet,
    BasicGetOk,
    BasicQos,
    BasicQosOk,
    BasicReject,
    QueueDeclare,
    QueueDeclareOk,
)
from tests.crash import broker_life
from tests.crash.broker_life import NEVER, BrokerLife, BrokerStory, Commit, id_of
from tests.helpers.broker_rig import BrokerRig, RigClient
from tests.helpers.faulty_filesystem import FaultyFileSystem

QUEUES = ("work", "copy", "done", "dead")


@dataclass
class Story(BrokerStory):
    """With what became of the messages in "work"; numbers of disk operations."""

    delivered_at: dict[int, int] = field(default_factory=dict)
    given_away: dict[int, int] = field(default_factory=dict)  # acknowledged
    rejected: dict[int, int] = field(default_factory=dict)


class Life(BrokerLife[Story]):
    """A worker consumes "work"; transactions take from it."""

    STEPS = (
        "publish", "publish", "fan_out", "settle", "settle", "commit", "rollback", "tick", "turn",
    )  # fmt: skip
    PUT_TO = ("copy", "done")

    def __init__(self, seed: int, steps: int) -> None:
        self.open: list[tuple[int, int]] = []  # (delivery tag, id) of the worker
        super().__init__(seed, steps, Story())

    def declare(self) -> None:
        c = self.publisher
        dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        for name in QUEUES:
            arguments: dict[str, object] = dict(dead) if name == "work" else {}
            c.call(1, QueueDeclare(queue=name, durable=True, arguments=arguments), QueueDeclareOk)
        self.declare_fanout("work", "copy")
        self.worker = self.rig.client().open()
        self.worker.call(1, BasicQos(prefetch_count=5), BasicQosOk)
        self.worker.call(1, BasicConsume(queue="work", consumer_tag="w"), BasicConsumeOk)

    def hear(self, now: int) -> None:
        for message in self.worker.messages():
            assert isinstance(message.method, BasicDeliver)
            id = id_of(message.body)
            self.story.delivered_at.setdefault(id, now)
            self.open.append((message.method.delivery_tag, id))

    def take(self, commit: Commit) -> None:
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

    def _publish(self) -> None:
        for _ in range(self.rng.randint(1, 4)):
            self.publish("", "work", "work")

    def _fan_out(self) -> None:
        self.publish("all", "", "work", "copy")

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


# ---- judging -------------------------------------------------------------------------------------


def drain(client: RigClient, queue: str) -> Iterator[tuple[int, bool]]:
    """(id, redelivered) of all messages of a queue."""
    for message in broker_life.drain(client, queue):
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
    return Life(seed, steps).explore(judge, images)
