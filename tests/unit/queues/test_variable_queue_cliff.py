"""No cliff: what a publish pages out besides its own bytes, counted at the FileSystem.

At most four messages with a small target, and none after the one that passes 64 KiB: over random
sizes, limits, depths and modes, with fetches, requeues and acks in between. With a large target at
most one message for each MiB of it. What resume does in the background is bounded too."""

import random

import pytest

from penstock.queues.backing_queue import PART_SHIFT, UNLIMITED, BackingQueue, NewMessage
from penstock.queues.priority_queue import open_backing
from penstock.queues.variable_queue import VariableQueue
from penstock.storage.files.durability import NONE, OS
from penstock.storage.index.queue_segment import HEADER_BYTES, PREFIX_BYTES, SLOT_BYTES
from tests.helpers.engine_rig import EngineRig
from tests.helpers.faulty_filesystem import FaultyFileSystem

MESSAGES_MAX = 4
BYTES_MAX = 64 << 10
SLICE_MAX = 256
WHERE_AT = 24  # in a slot: where its entry is


class CountingFileSystem(FaultyFileSystem):
    """Remembers what is written to the segments of queues, which is parsed when it is taken."""

    def __init__(self) -> None:
        super().__init__(seed=1)
        self._written: list[tuple[str, int, bytes]] = []

    def on_write(self, kind: str, path: str, number: int, data: bytes | None, place: int) -> None:
        if data is not None and path.endswith((".qi", ".qs")) and place >= HEADER_BYTES:
            self._written.append((path, place, bytes(data)))
        super().on_write(kind, path, number, data, place)

    def take(self, slots: int) -> list[tuple[str, int, int]]:
        """Each message of which something was written since last time: the directory of its queue,
        its seq if a slot was written, else -1, and the bytes of its entry."""
        found: dict[str, tuple[str, int, int]] = {}  # by the place of the entry
        for path, place, data in self._written:
            if path.endswith(".qs"):
                at = 0
                while at < len(data):
                    length = PREFIX_BYTES + int.from_bytes(data[at : at + 4])
                    found[f"{path} {place + at}"] = (path.rpartition("/")[0], -1, length)
                    at += length
                assert at == len(data), "a write is whole entries"
        for path, place, data in self._written:
            if path.endswith(".qi"):
                first = int(path.rpartition("/")[2].removesuffix(".qi")) * slots
                first += (place - HEADER_BYTES) // SLOT_BYTES
                for n in range(len(data) // SLOT_BYTES):
                    slot = data[n * SLOT_BYTES : (n + 1) * SLOT_BYTES]
                    where = int.from_bytes(slot[WHERE_AT : WHERE_AT + 4])
                    key = f"{path.removesuffix('i')}s {where}"
                    known = found.get(key, ("", -1, 0))
                    found[key] = (path.rpartition("/")[0], first + n, known[2])
        self._written = []
        return sorted(found.values())


class Run:
    """A queue on such a file system, and what its messages cost."""

    def __init__(self, seed: int, kind: str) -> None:
        self.rng = random.Random(f"{seed}/{kind}")
        self.fs = CountingFileSystem()
        self.slots = self.rng.choice([4, 64])
        self.rig = EngineRig(
            self.fs, segment_slots=self.slots, queue_index_embed_msgs_below=1 << 20,
            wal_inline_below=1 << 20, wal_segment_bytes_min=1 << 20, wal_segment_bytes_max=1 << 20,
        )  # fmt: skip
        self.q: BackingQueue = (
            VariableQueue(self.rig.engine, self.rig.queue(), mode=OS, policy=kind)
            if kind != "priorities"
            else open_backing(self.rig.engine, b"q", priorities=3, mode=OS)
        )
        self.rig.engine.flush()
        self.paged = 0  # messages, by publishes of others
        self.pending: list[int] = []

    def publish(self) -> None:
        """Publish one; what is written besides it is counted."""
        rng = self.rng
        size = rng.choice([1, 30, 300, 3000, rng.randint(1, 20_000), rng.randint(1, 100_000)])
        mode = rng.choice([OS, OS, NONE])
        priority = rng.randrange(5)
        self.fs.take(self.slots)
        tag = self.q.publish(b"", bytes(size), mode, priority=priority)
        directory, seq = self.q.index(priority).path, tag & ((1 << PART_SHIFT) - 1)
        messages = self.fs.take(self.slots)
        others = [message for message in messages if message[:2] != (directory, seq)]
        entry = (directory, -1, size + PREFIX_BYTES)
        if mode == NONE and len(others) == len(messages) and entry in others:
            others.remove(entry)  # its own, without a slot
        assert len(others) <= MESSAGES_MAX, f"publish {tag} paged out {others}"
        sizes = [size for _, _, size in others]
        assert sum(sizes) - max(sizes, default=0) < BYTES_MAX, f"publish {tag} wrote {sizes}"
        self.paged += len(others)

    def fetch(self) -> None:
        """Fetch a few."""
        self.rig.engine.flush()
        for _ in range(self.rng.randint(1, 12)):
            delivery = self.q.fetch(ack_required=self.rng.random() < 0.7)
            if delivery is None:
                return
            if self.q.pending(delivery.tag) is not None:
                self.pending.append(delivery.tag)

    def settle(self) -> None:
        """Acknowledge or requeue some."""
        self.rng.shuffle(self.pending)
        some = [self.pending.pop() for _ in range(self.rng.randint(0, len(self.pending)))]
        if self.rng.random() < 0.5:
            self.q.ack(some, OS)
        else:
            self.q.requeue(some, OS)

    def limit(self) -> None:
        """Another limit."""
        high = self.rng.choice([0, 1000, 20_000, 300_000, 3_000_000, UNLIMITED])
        self.q.set_limits(high, min(high, high // 2))

    def resume(self) -> None:
        """One slice."""
        self.fs.take(self.slots)
        self.q.resume()
        assert len(self.fs.take(self.slots)) <= SLICE_MAX


@pytest.mark.parametrize("kind", ["ratio", "eager", "even", "priorities"])
@pytest.mark.parametrize("seed", range(20))
def test_no_publish_pays_for_the_others(seed: int, kind: str) -> None:
    run = Run(seed, kind)
    steps = [run.publish] * 12 + [run.fetch, run.settle, run.limit, run.resume]
    for _ in range(600):
        run.rng.choice(steps)()
    run.rig.engine.flush()
    assert run.paged > 10, "there was something to page out"


@pytest.mark.parametrize(("size", "most"), [(10, 4), (10_000, 4), (30_000, 3), (70_000, 1)])
@pytest.mark.parametrize("has_pending", [True, False])
def test_a_publish_far_over_the_limit(size: int, most: int, has_pending: bool) -> None:
    run = Run(0, "ratio")
    vq = run.q
    for _ in range(30):
        vq.publish(b"", bytes(size), OS)
    if has_pending:
        run.rig.engine.flush()
        for _ in range(25):
            vq.fetch()
    run.rig.engine.journal.blocked = True  # so that nothing is paged out yet
    vq.set_limits(1000, 0)
    run.rig.engine.journal.blocked = False
    for _ in range(4):
        tag = vq.publish(b"", b"", OS)
        paged = [seq for _, seq, _ in run.fs.take(run.slots) if seq != tag]
        assert 0 < len(paged) <= most


def test_with_a_large_target_one_write_takes_more_and_a_publish_is_bounded_all_the_same() -> None:
    run = Run(0, "eager")
    target = 8 << 20
    run.q.set_limits(target, 0)
    body = bytes(8000)
    n = target // len(body)
    run.q.batch_publish([NewMessage(b"", body)] * n, OS)
    run.fs.take(run.slots)
    counts: list[int] = []
    for _ in range(400):
        run.q.publish(b"", body, OS)
        counts.append(len(run.fs.take(run.slots)))
        assert run.q.ram_bytes() <= target + 8 * 9000
    assert max(counts) == 8
    assert sum(counts) >= 390
    assert min(filter(None, counts)) >= 4, "no write is much smaller than it may be"


def test_what_a_lowered_limit_leaves_over_is_done_in_slices() -> None:
    rig = EngineRig(CountingFileSystem(), segment_slots=64)
    vq = VariableQueue(rig.engine, rig.queue(), mode=OS)
    vq.batch_publish([NewMessage(b"", b"x" * 50)] * 1500, OS)
    assert vq.info()["disk_writes"] == 0
    vq.set_limits(0, 0)
    counts: list[int] = []
    more = True
    written = vq.state.disk_writes
    assert written <= SLICE_MAX
    while more:
        more = vq.resume()
        counts.append(vq.state.disk_writes - written)
        written = vq.state.disk_writes
    assert max(counts) <= SLICE_MAX
    assert written == 1500
    assert vq.info()["ram_messages"] == 0


def test_a_batch_pages_what_its_singles_would_have() -> None:
    rig = EngineRig(CountingFileSystem(), segment_slots=64)
    vq = VariableQueue(rig.engine, rig.queue(), mode=OS)
    vq.batch_publish([NewMessage(b"", b"x" * 50)] * 1000, OS)
    vq.set_limits(vq.ram_bytes() // 2, 0)
    while vq.resume():
        pass
    before = vq.state.disk_writes
    vq.batch_publish([NewMessage(b"", b"x" * 50)] * 20, OS)
    assert vq.state.disk_writes - before <= 20 * (MESSAGES_MAX + 1)
