"""QueueIndex against a plain dict: any life of a queue leaves the same seqs and counts."""

import random

from hypothesis import given
from hypothesis import strategies as st

from penstock.message import Entry, QueuedMessage
from penstock.storage.index.queue_index import QueueIndex, Section, Ticks
from penstock.storage.journal import checkpoint
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.inside import live_seqs

SLOTS = 4
Model = dict[int, tuple[int, int]]  # seq -> (bytes, store file)


class Life:
    """A queue, the model of it, and the model as it was at the last cut."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.ticks = Ticks()
        self.queue = QueueIndex(FaultyFileSystem(), "/q.1", b"q", 1, 1, SLOTS, self.ticks, True)
        self.model: Model = {}
        self.next_seq = 0
        self.attempts: dict[int, int] = {}
        self.cut: tuple[Model, int, dict[int, int]] | None = None

    def entries(self, seqs: list[int]) -> list[Entry]:
        return [
            Entry(seq, QueuedMessage(seq, b"", None, self.model[seq][0], 0, 0, self.model[seq][1]))
            for seq in seqs
        ]

    def publish(self) -> None:
        for _ in range(self.rng.randint(1, 6)):
            size, store = self.rng.randrange(100), self.rng.choice((0, 0, 5))
            assert self.queue.publish(size, store != 0, 0) == self.next_seq
            self.model[self.next_seq] = (size, store)
            self.next_seq += 1

    def transient(self) -> None:
        assert self.queue.take_seq() == self.next_seq
        self.next_seq += 1

    def replay_again(self) -> None:
        """A record that was applied already changes nothing."""
        if self.next_seq:
            assert not self.queue.enqueue(self.rng.randrange(self.next_seq), 9, False, 0)

    def take(self, seqs: list[int]) -> None:
        runs = self.queue.runs(self.entries(seqs))
        assert [s for first, n, _, _ in runs for s in range(first, first + n)] == seqs
        for run in runs:
            assert run[0] // SLOTS == (run[0] + run[1] - 1) // SLOTS
            assert self.queue.is_live_run(run)
            self.queue.dequeue(run)
            assert not self.queue.is_live_run(run)
        for seq in seqs:
            del self.model[seq]
            self.attempts.pop(seq, None)

    def head(self) -> None:
        live = sorted(self.model)
        self.take(live[: self.rng.randint(0, len(live))])

    def anywhere(self) -> None:
        live = sorted(self.model)
        self.take(sorted(self.rng.sample(live, self.rng.randint(0, len(live)))))

    def purge(self) -> None:
        live = sorted(self.model)
        kept = sorted(self.rng.sample(live, self.rng.randint(0, min(3, len(live)))))
        dead = self.queue.purge(self.next_seq, self.queue.runs(self.entries(kept)))
        gone = set(live) - set(kept)
        bits = {n * SLOTS + rel for n, b in dead.items() for rel in range(SLOTS) if b[0] >> rel & 1}
        assert bits <= gone
        assert {seq for seq in gone if self.model[seq][1]} <= bits
        self.model = {seq: self.model[seq] for seq in kept}
        self.attempts = {seq: n for seq, n in self.attempts.items() if seq in self.model}

    def skip(self) -> None:
        self.next_seq = -(-self.next_seq // SLOTS) * SLOTS
        self.queue.skip_to(self.next_seq)

    def try_again(self) -> None:
        seq = self.rng.randrange(self.next_seq + 1)
        self.queue.set_attempts(seq, 3)
        if seq in self.model:
            self.attempts[seq] = 3

    def cut_now(self) -> None:
        self.finish_cut()
        self.ticks.epoch += 1
        self.cut = (dict(self.model), self.next_seq, dict(self.attempts))

    def finish_cut(self) -> None:
        """The section is as of the cut, also when it has been through the checkpoint file."""
        if self.cut is None:
            return
        model, next_seq, attempts = self.cut
        section = self.queue.capture()
        data = checkpoint.encode_queue(1, section, SLOTS)
        manifest = checkpoint.Manifest()
        manifest.head.segment_slots = SLOTS
        checkpoint.apply_section(manifest, checkpoint.QUEUE, data)
        for found in (section, manifest.queues[1]):
            check_section(found, model, next_seq, attempts)
        self.queue.sliced()
        self.cut = None

    def restart(self) -> None:
        """Go on with what a checkpoint says."""
        self.cut_now()
        # As through a checkpoint: natively compiled objects have no deepcopy.
        section = through_a_checkpoint(self.queue.capture())
        self.finish_cut()
        ticks = Ticks()
        queue = QueueIndex(self.queue.fs, "/q.1", b"q", 1, 1, SLOTS, ticks, True)
        queue.next_seq, queue.count, queue.bytes = section.next_seq, section.count, section.bytes
        queue.attempts = section.attempts
        queue.segments = {n: s.copy(0) for n, s in section.segments.items() if s.count}
        self.ticks, self.queue = ticks, queue

    def check(self) -> None:
        queue, live = self.queue, sorted(self.model)
        assert live_seqs(queue) == live
        assert queue.next_seq == self.next_seq
        assert queue.attempts == self.attempts
        assert (queue.count, queue.bytes) == (len(live), sum(m[0] for m in self.model.values()))
        for seq in range(self.next_seq + 2):
            assert queue.is_live(seq) == (seq in self.model)
        for number, segment in queue.segments.items():
            here = [self.model[s] for s in live if s // SLOTS == number]
            assert segment.count == len(here)
            assert segment.bytes == sum(m[0] for m in here)
            assert segment.stores == sum(1 for m in here if m[1])
        empty = [n for n, s in queue.segments.items() if not s.count]
        assert len(empty) <= 1, "at most the tail is empty"
        dead = [number for _, number in self.ticks.dead]
        assert len(dead) == len(set(dead))
        assert not set(dead) & set(queue.segments)


def through_a_checkpoint(section: Section) -> Section:
    """The section as one reads it back."""
    manifest = checkpoint.Manifest()
    manifest.head.segment_slots = SLOTS
    checkpoint.apply_section(manifest, checkpoint.QUEUE, checkpoint.encode_queue(1, section, SLOTS))
    return manifest.queues[1]


def check_section(section: Section, model: Model, next_seq: int, attempts: dict[int, int]) -> None:
    segments = section.segments
    assert [s for n in sorted(segments) for s in segments[n].seqs(SLOTS)] == sorted(model)
    assert section.next_seq == next_seq
    assert (section.count, section.bytes) == (len(model), sum(m[0] for m in model.values()))
    assert sum(s.bytes for s in segments.values()) == section.bytes
    assert sum(s.stores for s in segments.values()) == sum(1 for m in model.values() if m[1])
    assert section.attempts == attempts


STEPS = (
    Life.publish, Life.publish, Life.publish, Life.transient, Life.replay_again, Life.head,
    Life.anywhere, Life.anywhere, Life.purge, Life.skip, Life.try_again, Life.cut_now,
    Life.finish_cut, Life.restart,
)  # fmt: skip


@given(st.integers(0, 1 << 32), st.lists(st.sampled_from(STEPS), max_size=30))
def test_any_life_of_a_queue(seed: int, steps: list[object]) -> None:
    life = Life(seed)
    for step in steps:
        assert callable(step)
        step(life)
        life.check()
    life.finish_cut()
