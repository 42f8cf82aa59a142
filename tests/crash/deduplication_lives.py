"""Lives of a broker whose queues and exchanges drop duplicates; the disk crashes anywhere.

One life is a run of random steps: messages with keys, new ones and earlier ones again, to a queue
and to an exchange that drop duplicates, some of them transient; a consumer that acknowledges; and
time, so that checkpoints come between. An image is opened by a new broker; every message is taken
out, then every key is published once more, and what came of that is taken out too. Then must hold:

    D1  what was confirmed by `at`, the first time or as a duplicate, is in each of its queues,
        unless it was consumed
    D2  after that each key was in each of its queues once: a key that is known without its message
        would be lost for ever, a message whose key is not known would be there twice
    D3  what was consumed comes once at most
"""

from dataclasses import dataclass, field

from penstock.codec.spec import (
    BasicAck,
    BasicGet,
    BasicGetOk,
    ConfirmSelect,
    ConfirmSelectOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
)
from tests.crash.broker_life import BrokerLife, BrokerStory, body_of, drain, id_of
from tests.helpers.broker_rig import BrokerRig
from tests.helpers.faulty_filesystem import FaultyFileSystem

WINDOW = {"x-message-deduplication": True, "x-cache-size": 1000}
PLACES = {("", "work"): ("work",), ("once", ""): ("left", "right")}
QUEUES = ("work", "left", "right")


@dataclass
class Story(BrokerStory):
    """With the messages, and what is a duplicate of which."""

    sent: dict[int, tuple[str, str, int]] = field(default_factory=dict)  # exchange, key, mode
    again: dict[int, int] = field(default_factory=dict)
    taken: set[int] = field(default_factory=set)


class Life(BrokerLife[Story]):
    """Duplicates are drawn from all that was published before."""

    STEPS = ("publish", "publish", "again", "again", "consume", "tick", "turn")

    def __init__(self, seed: int, steps: int) -> None:
        super().__init__(seed, steps, Story())

    def declare(self) -> None:
        c = self.publisher
        for name in QUEUES:
            arguments = dict(WINDOW) if name in ("work", "left") else {}
            c.call(1, QueueDeclare(queue=name, durable=True, arguments=arguments), QueueDeclareOk)
        c.call(
            1, ExchangeDeclare(exchange="once", type="x-message-deduplication", durable=True,
                               arguments={"x-cache-size": 1000}),
            ExchangeDeclareOk,
        )  # fmt: skip
        for name in ("left", "right"):
            c.call(1, QueueBind(queue=name, exchange="once"), QueueBindOk)
        self.reader = self.rig.client().open()

    def _send(self, id: int, original: int) -> None:
        exchange, key, mode = self.story.sent[original]
        self.owed.append(id)
        self.publisher.publish(
            1, exchange, key, body_of(original, self.rng), delivery_mode=mode,
            headers={"x-deduplication-header": original},
        )  # fmt: skip

    def _publish(self) -> None:
        for _ in range(self.rng.randint(1, 3)):
            exchange, key = self.rng.choice(list(PLACES))
            id = self.new(*PLACES[exchange, key])
            self.story.sent[id] = exchange, key, self.rng.choice((1, 2, 2, 2))
            self._send(id, id)

    def _again(self) -> None:
        if self.story.sent:
            original = self.rng.choice(list(self.story.sent))
            id = self.new()
            self.story.again[id] = original
            self._send(id, original)

    def _consume(self) -> None:
        self.reader.send(1, BasicGet(queue=self.rng.choice(QUEUES)))
        self.rig.turn()
        for message in self.reader.messages():
            assert isinstance(message.method, BasicGetOk)
            self.story.taken.add(id_of(message.body))
            self.reader.send(1, BasicAck(delivery_tag=message.method.delivery_tag))


def judge(story: Story, fs: FaultyFileSystem, at: int) -> list[str]:
    """Open what the crash left, and say what is wrong with it."""
    rig = BrokerRig(fs=fs)
    client = rig.client().open()
    client.call(1, ConfirmSelect(), ConfirmSelectOk)
    before = {name: [id_of(m.body) for m in drain(client, name)] for name in QUEUES}
    wrong = []
    for id, when in story.confirmed_at.items():
        original = story.again.get(id, id)
        if when > at or original in story.taken or story.sent[original][2] == 1:
            continue
        missing = [name for name in story.places[original] if original not in before[name]]
        if missing:
            wrong.append(f"D1: {id} (key {original}) was confirmed by {when}, lost in {missing}")
    for id, (exchange, key, _) in story.sent.items():
        headers = {"x-deduplication-header": id}
        client.publish(1, exchange, key, b"%d " % id, delivery_mode=2, headers=headers)
    rig.turn()
    for name in QUEUES:
        found = before[name] + [id_of(m.body) for m in drain(client, name)]
        for id in story.sent:
            count = found.count(id)
            if name not in story.places[id]:
                expected = (0,)
            else:
                expected = (0, 1) if id in story.taken else (1,)
            if count not in expected:
                wrong.append(f"D2: key {id} is {count} times in {name}, expected {expected}")
    client.lose()
    rig.vhost.close()
    return wrong


def explore(seed: int, images: int, steps: int = 25) -> tuple[int, list[str]]:
    """One life and so many images of it; how many were judged, and what is wrong."""
    return Life(seed, steps).explore(judge, images)
