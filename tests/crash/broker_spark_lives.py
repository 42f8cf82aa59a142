"""Lives of a broker beside Spark: leases, commits and releases, batches; the disk crashes anywhere.

One life is a run of random steps on a BrokerRig: confirmed publishes, some of them transient, to
"in", of which a worker gets and acknowledges some and a reader leases, commits and now and then
releases; and batches that are staged and committed into a queue, a stream, a stream of two
partitions and an exchange. The slices of leases and moves are single messages at times, so that
crashes fall between them; streams adopt pages of a few messages, whatever is large elsewhere, if
the caller says so (storage.batch_engine.ADOPT_BYTES_MIN).

An image is the disk as a crash after operation `at` leaves it. It is opened by a new broker, which
goes on with what it finds until it comes to rest. Then must hold:

    L1  what the reader was told of by `at` is there, under the same ordinals
    L2  what it has committed by `at` is gone, and nothing that it did not ask to commit
    L3  a confirmed persistent message is ready, leased, or was acknowledged or committed
    L4  nothing is ready and leased, or there twice; what is persistent and ready is in order
    B1  a batch whose commit was answered by `at` is in its target, every message once, in order
    B2  any other one is there whole, or not at all
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.broker import operations
from penstock.broker.broker_stream import BrokerStream
from penstock.codec.spec import (
    BasicAck,
    BasicGet,
    BasicGetOk,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
)
from penstock.operation_json import JsonParts
from penstock.operation_json import read as read_json
from penstock.queues import stream_options
from penstock.storage.pages.stream_view import StreamView
from tests.crash.broker_life import NEVER, BrokerLife, BrokerStory, body_of, drain, id_of
from tests.helpers.broker_rig import BrokerRig
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.staged_rig import Stager, header

READER: Final = {"queue": "in", "reader": "r"}
# A queue, two streams, an exchange with the queue "routed".
TARGETS: Final = ("out", "log", "parts", "x")
PARTS: Final = 2
KEYS: Final = {stream_options.partition_of(key.encode(), PARTS): key for key in "abcdef"}
PLACES: Final = ("out", "log", "routed", *[f"parts.{number}" for number in range(PARTS)])
READ_BYTES: Final = 1 << 30
RESTS: Final = 30


@dataclass
class Lives:
    """The reader's lease from its first message to its release; numbers of disk operations.

    told: (when, first, head) that it knew of. ids: what it read, by ordinal. committed: (when it
    was asked, when it was answered, offset).
    """

    told: list[tuple[int, int, int]] = field(default_factory=list)
    ids: dict[int, int] = field(default_factory=dict)
    committed: list[list[int]] = field(default_factory=list)
    release_asked_at: int = NEVER
    released_at: int = NEVER


@dataclass
class Staged:
    """A batch that was committed. ids: by the place where they belong, in order."""

    ids: dict[str, list[int]]
    told_at: int = NEVER


@dataclass
class Story(BrokerStory):
    """With what Spark and the worker were told."""

    transient: set[int] = field(default_factory=set)
    acked: dict[int, int] = field(default_factory=dict)
    leases: list[Lives] = field(default_factory=lambda: [Lives()])
    batches: list[Staged] = field(default_factory=list)


class Life(BrokerLife[Story]):
    """A reader and a worker take from "in"; batches are written beside them."""

    STEPS = (
        "publish", "publish", "publish", "work", "lease", "lease", "commit_lease", "release",
        "batch", "batch", "tick", "turn",
    )  # fmt: skip

    def __init__(self, seed: int, steps: int) -> None:
        super().__init__(seed, steps, Story())

    def declare(self) -> None:
        c = self.publisher
        stream: dict[str, object] = {"x-queue-type": "stream"}
        for name in ("in", "out", "routed", "log", "parts"):
            arguments = stream if name in ("log", "parts") else {}
            if name == "parts":
                arguments = {**stream, "x-partitions": PARTS}
            c.call(1, QueueDeclare(queue=name, durable=True, arguments=arguments), QueueDeclareOk)
        c.call(1, QueueBind(queue="routed", exchange="amq.direct", routing_key="k"), QueueBindOk)
        self.worker = self.rig.client().open()
        self.stager = Stager(self.rig.fs, self.rig.vhost.path, seed=self.seed)

    def ask(self, then: Callable[[Any], None], op: str, **args: object) -> None:
        """Ask, and do not wait: `then` is told the answer when it comes."""

        def reply(answer: Any) -> None:
            if isinstance(answer, BaseException):  # time went on too fast for it
                assert "yet: batch" in str(answer) or "yet: a commit" in str(answer), answer
            else:
                then(answer)

        operations.call(self.rig.vhost, None, op, args, reply)

    # ---- steps ---------------------------------------------------------------------------------

    def _publish(self) -> None:
        for _ in range(self.rng.randint(1, 4)):
            if self.rng.random() < 0.2:
                id = self.new("in")
                self.story.transient.add(id)
                self.owed.append(id)
                self.publisher.publish(1, "", "in", body_of(id, self.rng), delivery_mode=1)
            else:
                self.publish("", "in", "in")

    def _work(self) -> None:
        self.worker.send(1, BasicGet(queue="in"))
        self.rig.turn()
        for message in self.worker.messages():
            assert isinstance(message.method, BasicGetOk)
            if self.rng.random() < 0.7:
                self.story.acked[id_of(message.body)] = self.journal.last
                self.worker.send(1, BasicAck(delivery_tag=message.method.delivery_tag))

    def _lease(self) -> None:
        lease = self.story.leases[-1]
        if lease.release_asked_at != NEVER:
            return

        def told(found: Any) -> None:
            lease.told.append((self.journal.last, found["first"], found["head"]))
            lease.ids |= read(self.rig, found)

        most = self.rng.choice((1, 2, 5, None))
        self.ask(told, "lease_queue", **READER, messages=most, bytes=None)

    def _commit_lease(self) -> None:
        lease = self.story.leases[-1]
        if not lease.told or lease.release_asked_at != NEVER:
            return
        _, first, head = lease.told[-1]
        done = [self.journal.last, NEVER, self.rng.randint(first, head)]
        lease.committed.append(done)

        def told(_found: Any) -> None:
            done[1] = self.journal.last

        self.ask(told, "commit_lease", **READER, offset=done[2])

    def _release(self) -> None:
        lease = self.story.leases[-1]
        if self.rng.random() < 0.6 or lease.release_asked_at != NEVER or not lease.told:
            return
        lease.release_asked_at = self.journal.last

        def told(_found: Any) -> None:
            lease.released_at = self.journal.last
            self.story.leases.append(Lives())

        self.ask(told, "release_lease", **READER)

    def _batch(self) -> None:
        target = self.rng.choice(TARGETS)
        batch = Staged({})
        number = len(self.story.batches)
        self.story.batches.append(batch)
        tokens = []
        for _ in range(self.rng.randint(1, 4 if target == "parts" else 2)):
            tokens += self._stage(number, target, batch)

        def told(found: Any) -> None:
            assert found == {"status": "committed", "batch": number}
            batch.told_at = self.journal.last

        where = {"exchanges": ["amq.direct"]} if target == "x" else {"queue": target}
        self.ask(told, "commit_batch", query="q", batch=number, target=where, pages=tokens)

    def _stage(self, number: int, target: str, batch: Staged) -> list[dict[str, object]]:
        """A page of a task; for partitions one that says whose rows it has, or not."""
        meta = header("k", "amq.direct") if target == "x" else header(target)
        place = "routed" if target == "x" else target
        only = self.rng.randrange(PARTS + 1)  # PARTS: rows of all
        frames = []
        for _ in range(self.rng.randint(1, 8)):
            if target == "parts":
                part = only if only < PARTS else self.rng.randrange(PARTS)
                meta, place = header(KEYS[part]), f"parts.{part}"
            id = self.new(place)
            batch.ids.setdefault(place, []).append(id)
            frames.append((meta, body_of(id, self.rng)))
        name = f"_{only}of{PARTS}" if target == "parts" and only < PARTS else ""
        return self.stager.stage(
            number, frames, query="q", time_us=self.rig.clock.wall_us(), name=name
        )


def read(rig: BrokerRig, found: dict[str, Any]) -> dict[int, int]:
    """The ids in the pages of a lease, by ordinal."""
    if found["head"] == found["first"]:
        return {}
    view = StreamView(rig.fs, str(found["path"]))
    records = view.read(int(found["first"]), 1 << 20, READ_BYTES)
    view.close()
    return {one.offset: id_of(one.payload) for one in records if one.offset < found["head"]}


# ---- judging -------------------------------------------------------------------------------------


def asked(rig: BrokerRig, op: str, **args: object) -> Any:
    """The answer of an operation."""
    replies: list[Any] = []
    operations.call(rig.vhost, None, op, args, replies.append)
    rig.turn()
    assert not isinstance(replies[0], BaseException), replies[0]
    return (
        read_json(b"".join(replies[0].take())) if isinstance(replies[0], JsonParts) else replies[0]
    )


def judge(story: Story, fs: FaultyFileSystem, at: int) -> list[str]:
    """Open what the crash left, and say what is wrong with it."""
    rig = BrokerRig(fs=fs)
    for _ in range(RESTS):
        rig.tick(0.2)
    found = asked(rig, "describe_lease", **READER)
    leased = read(rig, found)
    client = rig.client().open()
    places = {q: [id_of(m.body) for m in drain(client, q)] for q in ("in", "out", "routed")}
    places["log"] = records_of(rig, "log", 0)
    for number in range(PARTS):
        places[f"parts.{number}"] = records_of(rig, "parts", number)
    wrong = judge_leases(story, found, leased, places["in"], at)
    wrong += judge_batches(story, places, at)
    if any(not row["is_done"] for row in asked(rig, "list_batches")):
        wrong.append(f"B2: a batch does not get on: {asked(rig, 'list_batches')}")
    client.lose()
    rig.vhost.close()
    return wrong


def records_of(rig: BrokerRig, name: str, partition: int) -> list[int]:
    """What a reader sees of a partition."""
    stream = rig.vhost.table.usable(name)
    assert isinstance(stream, BrokerStream)
    part = stream.parts[partition]
    if part.head_offset <= part.first_offset:
        return []
    records = part.queue.read(part.first_offset, 1 << 20, READ_BYTES)
    return [id_of(one.payload) for one in records if one.offset < part.head_offset]


def judge_leases(
    story: Story, found: dict[str, Any], leased: dict[int, int], ready: list[int], at: int
) -> list[str]:
    """L1 to L4."""
    wrong = []
    first, head = int(found["first"]), int(found["head"])
    if sorted(leased) != list(range(first, head)):
        wrong.append(f"L1: [{first}, {head}) is leased, and the pages have {sorted(leased)}")
    lease = next(one for one in story.leases if one.released_at > at)
    is_sure = lease.release_asked_at > at
    if is_sure:
        told = [(first, head) for when, first, head in lease.told if when <= at]
        if told and head < told[-1][1]:
            wrong.append(f"L1: it was told of {told[-1][1]}, and has leased {head}")
        known = range(first, min(head, told[-1][1]) if told else first)
        wrong += [
            f"L1: {ordinal} was {lease.ids[ordinal]}, is {leased.get(ordinal)}"
            for ordinal in known
            if lease.ids[ordinal] != leased.get(ordinal)
        ]
        must = [offset for _, done, offset in lease.committed if done <= at]
        may = [offset for when, _, offset in lease.committed if when <= at]
        if first < max(must, default=0) or first > max(may, default=0):
            wrong.append(f"L2: {first} is committed, it asked for {may}, was told of {must}")
    gone = {id for id, when in story.acked.items() if when <= at}
    for one in story.leases:
        may = [offset for when, _, offset in one.committed if when <= at]
        gone |= {id for ordinal, id in one.ids.items() if ordinal < max(may, default=0)}
    there = [*ready, *leased.values()]
    wrong += [
        f"L3: {id} was confirmed and is lost"
        for id, when in story.confirmed_at.items()
        if when <= at and "in" in story.places[id] and id not in story.transient
        and id not in gone.union(there)
    ]  # fmt: skip
    if len(set(there)) != len(there):
        wrong.append(f"L4: twice: ready {ready}, leased {leased}")
    persistent = [id for id in ready if id not in story.transient]
    if persistent != sorted(persistent):
        wrong.append(f"L4: out of order: {persistent}")
    return wrong


def judge_batches(story: Story, places: dict[str, list[int]], at: int) -> list[str]:
    """B1, B2."""
    wrong = []
    wanted: dict[str, list[int]] = {name: [] for name in PLACES}
    for number, batch in enumerate(story.batches):
        is_there = any(set(ids).intersection(places[place]) for place, ids in batch.ids.items())
        if batch.told_at <= at and not is_there:
            wrong.append(f"B1: batch {number} was committed and is lost")
        if is_there:
            for place, ids in batch.ids.items():
                wanted[place] += ids
    for place, ids in wanted.items():
        if places[place] != ids:
            wrong.append(f"B2: {place} has {places[place]}, expected {ids}")
    return wrong


def explore(seed: int, images: int, steps: int = 40) -> tuple[int, list[str]]:
    """One life and so many images of it; how many were judged, and what is wrong."""
    return Life(seed, steps).explore(judge, images)
