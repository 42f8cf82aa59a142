"""Lives of streams on a broker: clients append, fan out, commit, read by name; a crash anywhere.

One life is a run of random steps on a BrokerRig: confirmed publishes to a stream and to one with
partitions, a fanout to a stream and a queue, transactions over both, a queue whose dead letters go
to the stream, and a named reader that acknowledges. Pages are small, so that they roll. What the
clients were told is noted with the disk operation that was last then.

An image is the disk as a crash after operation `at` leaves it. A new broker opens it, and
everything is read. Then must hold:

    S1  what was confirmed by `at` is there, in each of its places
    S2  a message that went to a stream and a queue is in both or in neither
    S3  a transaction is there whole or not at all; one whose commit-ok came by `at` is
    S4  nothing that was never published, nothing twice, keys in order, offsets without a hole
    S5  the reader goes on no later than at the first record that it had not acknowledged when the
        crash came; what is told of streams agrees with what is read
    S6  a message that was rejected is in its queue or in the stream, never in both or in neither
    S7  who made a named reader is known as long as the reader is, and no longer; what was answered
        by `at` is so
"""

import json
from dataclasses import dataclass, field

from penstock.broker.broker_stream import BrokerStream
from penstock.codec.spec import (
    BasicAck,
    BasicConsume,
    BasicConsumeOk,
    BasicGet,
    BasicGetOk,
    BasicQos,
    BasicQosOk,
    BasicReject,
    PenstockCall,
    PenstockCallOk,
)
from penstock.storage.index.routing_table import reader_key
from tests.crash.broker_life import NEVER, BrokerLife, BrokerStory, drain, id_of
from tests.helpers.broker_rig import BrokerRig, RigClient
from tests.helpers.broker_steps import declared
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.stream_steps import Record, ack, bind_all, consume, declare, records

STREAMS = ("log", "parts")
PAGE_BYTES = 4096


@dataclass
class Story(BrokerStory):
    """With what the reader acknowledged, and what was rejected out of "work"."""

    acked: list[tuple[int, int]] = field(default_factory=list)  # (operation before it, offset)
    rejected: set[int] = field(default_factory=set)
    named: list[tuple[int, str, bool]] = field(default_factory=list)  # (when, reader, is there)


class Life(BrokerLife[Story]):
    """A reader with a name reads "log"; a worker rejects what is in "work"."""

    STEPS = (
        "append", "append", "spread", "fan_out", "commit", "rollback", "settle", "work", "bury",
        "name", "name", "unname", "tick", "turn",
    )  # fmt: skip
    PUT_TO = ("log", "copy")

    def __init__(self, seed: int, steps: int) -> None:
        self.open: list[Record] = []
        super().__init__(seed, steps, Story())

    def declare(self) -> None:
        c = self.publisher
        declare(c, "log", x_stream_max_segment_size_bytes=PAGE_BYTES)
        declare(c, "parts", x_stream_max_segment_size_bytes=PAGE_BYTES, x_partitions=3)
        declared(c, "copy")
        declared(c, "work", x_dead_letter_exchange="", x_dead_letter_routing_key="log")
        bind_all(c, "parts")
        self.declare_fanout("log", "copy")
        self.reader = self.rig.client().open()
        self.worker = self.rig.client().open()
        consume(self.reader, "log", offset="first", prefetch=8, reader="r")
        self.rig.vhost.engine.sync()  # nobody waits for a reader to be known

    def hear(self, now: int) -> None:
        self.open += [Record(message) for message in self.reader.messages()]

    def _append(self) -> None:
        for _ in range(self.rng.randint(1, 4)):
            self.publish("", "log", "log")

    def _spread(self) -> None:
        for _ in range(self.rng.randint(1, 4)):
            self.publish("amq.topic", f"key{self.rng.randint(0, 5)}", "parts")

    def _fan_out(self) -> None:
        self.publish("all", "", "log", "copy")

    def _work(self) -> None:
        self.publish("", "work", "work")

    def _bury(self) -> None:
        self.worker.send(1, BasicGet(queue="work"))
        self.rig.turn()
        for message in self.worker.messages():
            assert isinstance(message.method, BasicGetOk)
            self.story.rejected.add(id_of(message.body))
            tag = message.method.delivery_tag
            self.worker.send(1, BasicReject(delivery_tag=tag, requeue=False))

    def _name(self) -> None:
        self._call("set_stream_reader", is_there=True, offsets={"1": 0}, wait=True)

    def _unname(self) -> None:
        self._call("delete_stream_reader", is_there=False)

    def _call(self, op: str, *, is_there: bool, **given: object) -> None:
        reader = self.rng.choice("abc")
        self.story.named.append((NEVER, reader, is_there))
        data = json.dumps({"queue": "parts", "reader": reader, **given}).encode()
        self.worker.call(1, PenstockCall(op=op, arguments=data), PenstockCallOk)
        if not is_there:  # it is not waited for
            self.rig.vhost.engine.sync()
        self.story.named[-1] = self.journal.last, reader, is_there

    def _settle(self) -> None:
        self.rng.shuffle(self.open)
        for record in self.open[: self.rng.randint(0, 6)]:
            self.story.acked.append((self.journal.last, record.offset))
            self.reader.send(1, BasicAck(delivery_tag=record.tag))
            self.open.remove(record)


# ---- judging -------------------------------------------------------------------------------------


def read_all(client: RigClient, stream: str) -> list[Record]:
    """All records of a stream."""
    client.call(1, BasicQos(prefetch_count=50), BasicQosOk)
    begin: dict[str, object] = {"x-stream-offset": "first"}
    method = BasicConsume(queue=stream, consumer_tag=stream, arguments=begin)
    client.call(1, method, BasicConsumeOk)
    found: list[Record] = []
    while came := records(client):
        found += came
        ack(client, *came)
    return found


def judge(story: Story, fs: FaultyFileSystem, at: int) -> list[str]:
    """Open what the crash left, and say what is wrong with it."""
    rig = BrokerRig(fs=fs)
    client = rig.client().open()
    read = {stream: read_all(client, stream) for stream in STREAMS}
    ids = {stream: [id_of(record.body) for record in read[stream]] for stream in STREAMS}
    for queue in ("copy", "work"):
        ids[queue] = [id_of(found.body) for found in drain(client, queue, no_ack=True)]
    wrong = []
    for place, there in ids.items():
        known = {id for id, places in story.places.items() if place in places}
        if place == "log":
            known |= story.rejected
        if len(set(there)) != len(there) or set(there) - known:
            wrong.append(f"S4: twice in {place}, or never published to it: {there}")
    for stream in STREAMS:
        wrong += judge_order(stream, read[stream])
    for id, places in story.places.items():
        is_in = [id in ids[place] for place in places]
        if id in story.rejected:
            is_in = [id in ids["work"] or id in ids["log"]]
            if id in ids["work"] and id in ids["log"]:
                wrong.append(f"S6: {id} was rejected and is in its queue and in the stream")
        if any(is_in) and not all(is_in):
            wrong.append(f"S2: {id} went to {places} and is in some of them")
        if story.confirmed_at.get(id, NEVER) <= at and not all(is_in):
            wrong.append(f"S1: {id} was confirmed for {places} and is lost")
    for commit in story.commits:
        is_in = [id in ids[story.places[id][0]] for id in commit.put]
        must = commit.told_at <= at
        if any(is_in) and (not commit.is_committed or not all(is_in)):
            wrong.append(f"S3: of {commit.put} are there: {is_in}")
        if must and not all(is_in):
            wrong.append(f"S3: {commit.put} were committed and are lost")
    wrong += judge_reader(story, rig, at) + judge_creators(story, rig, at)
    for stream in STREAMS:
        if rig.vhost.table.find_queue(stream).len() != len(read[stream]):
            wrong.append(f"S5: {stream} has {len(read[stream])} records, and tells another number")
    client.lose()
    rig.vhost.close()
    return wrong


def judge_order(stream: str, found: list[Record]) -> list[str]:
    """S4."""
    wrong = []
    keys: dict[str, list[int]] = {}
    parts: dict[int, list[int]] = {}
    for record in found:
        if stream == "parts":
            keys.setdefault(record.key, []).append(id_of(record.body))
        parts.setdefault(record.partition, []).append(record.offset)
        if record.gap:
            wrong.append(f"S4: a gap of {record.gap} before {record.offset} of {stream}")
    for key, ids in keys.items():
        if ids != sorted(ids):
            wrong.append(f"S4: key {key} is out of order: {ids}")
    for partition, offsets in parts.items():
        if offsets != list(range(len(offsets))):
            wrong.append(f"S4: offsets of {stream} {partition}: {offsets}")
    return wrong


def judge_reader(story: Story, rig: BrokerRig, at: int) -> list[str]:
    """S5."""
    reader = rig.vhost.engine.streams.get(b"log").readers.get("r")
    if reader is None:
        return ["S5: the reader is lost"]
    acked = {offset for when, offset in story.acked if when <= at}
    if reader.offset > (len(acked) and max(acked) + 1):
        return [f"S5: the reader is at {reader.offset}, it acknowledged {sorted(acked)}"]
    missing = [offset for offset in range(reader.offset) if offset not in acked]
    return [f"S5: the reader is at {reader.offset}, without {missing}"] if missing else []


def judge_creators(story: Story, rig: BrokerRig, at: int) -> list[str]:
    """S7."""
    engine = rig.vhost.engine
    stream = rig.vhost.table.served["parts"]
    assert isinstance(stream, BrokerStream)
    keys = {
        reader_key(part.name, reader.encode()): (part.name, reader)
        for part in (engine.streams.get(b"log"), *stream.parts)
        for reader in part.readers
    }
    stored = [key for key in engine.routing.creators if key.startswith(b"r")]
    wrong = ["S7: the maker of no reader" for key in stored if key not in keys]
    told = {reader: is_there for when, reader, is_there in story.named if when <= at}
    doubtful = {reader for when, reader, _ in story.named if when > at}
    users = {where[1]: engine.routing.creators.get(key) for key, where in keys.items()}
    for reader, is_there in told.items():
        if reader not in doubtful and (users.get(reader) == b"guest") != is_there:
            wrong.append(f"S7: reader {reader} is of {users.get(reader)}, is there: {is_there}")
    return wrong


def explore(seed: int, images: int, steps: int = 30) -> tuple[int, list[str]]:
    """One life and so many images of it; how many were judged, and what is wrong."""
    return Life(seed, steps).explore(judge, images)
