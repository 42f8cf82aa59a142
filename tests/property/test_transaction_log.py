"""Random lives of a log on a disk that forgets: what was confirmed is there after any crash.

A life appends records of all modes, names store bodies, flushes, ticks, completes operations in
seeded order, takes cuts and releases segments, and dies at a random operation, by a kill, a power
cut of any kind, or a failed sync. Then the log is read as recovery reads it, the records found must
be a prefix that holds all that was settled, and the next life goes on behind it. Seeds, not
hypothesis: a run is hundreds of steps, and a seed is enough to see it again.
"""

import errno
import random

import pytest

from penstock.errors import CorruptionError, DiskFullError, StorageError
from penstock.storage.files.durability import DISK, INTERVAL, OS
from penstock.storage.log.log_file import GROUP_HEADER_BYTES, LogEnd
from tests.helpers.faulty_filesystem import CrashNow, FaultyFileSystem
from tests.helpers.logs import KIB, FakeStore, Rig, survey

POWER_CUTS = ("lost", "kept", "subset", "torn", "zeros")
SEEDS = 400


class Life:
    """One process's time with the log, and what it promised."""

    def __init__(
        self, rng: random.Random, fs: FaultyFileSystem | None, prev: LogEnd | None
    ) -> None:
        self.rng = rng
        self.store = FakeStore()
        self.bodies: dict[int, int] = {}  # lsn -> number of the body that it names
        self.rig = Rig(
            fs, seed=rng.randrange(1 << 30), bytes_min=KIB, bytes_max=rng.choice((KIB, 8 * KIB)),
            group_bytes_max=4 * KIB, store=self.store, prev=prev,
        )  # fmt: skip
        self.base = 0 if prev is None else prev.last_lsn
        # The checkpoint that ends recovery: what is before the new segment may go.
        self.cut = self.rig.log.position()
        self.next_cut: tuple[int, int, int] | None = None
        self.rig.log.release_before(self.cut[0])
        self.rig.fs.completion_rng = rng
        if rng.random() < 0.8:
            self.rig.log.prepare_ahead()
        self.written = self.durable = self.base  # as the log has said

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
            self.observe()

    def step(self) -> None:
        rng, log = self.rng, self.rig.log
        choice = rng.random()
        if choice < 0.5:
            names = rng.random() < 0.15
            if names:
                self.store.written += 1
                self.bodies[log.last_lsn + 1] = self.store.written
            size = rng.choice((5, 50, 300, 300, 1500))
            self.rig.put(size, rng.choice((OS, INTERVAL, DISK)), names_store=names)
        elif choice < 0.7:
            log.flush()
        elif choice < 0.85:
            for token, result in self.rig.fs.completed(rng.random() < 0.3):
                assert log.complete(token, result)
                self.observe()
        elif choice < 0.93:
            self.rig.clock.advance(rng.choice((0.01, 0.06, 0.3, 1.0)))
            log.tick()
        elif choice < 0.96:
            self.checkpoint()
        else:
            log.wait(log.last_lsn, rng.choice((OS, DISK)))

    def checkpoint(self) -> None:
        """Begin one, or end the one begun, if the log is durable up to its cut."""
        log = self.rig.log
        if self.next_cut is None:
            self.next_cut = log.position()
            log.request_sync()
        elif log.durable_lsn >= self.next_cut[2]:
            self.cut, self.next_cut = self.next_cut, None
            log.release_before(self.cut[0])

    def observe(self) -> None:
        log = self.rig.log
        assert self.base <= log.durable_lsn <= log.written_lsn <= log.last_lsn
        assert log.durable_lsn >= self.durable
        assert log.written_lsn >= self.written
        self.written, self.durable = log.written_lsn, log.durable_lsn
        for lsn, body in self.bodies.items():  # [2]
            if lsn <= self.durable:
                assert body <= self.store.durable

    def check(self, end: LogEnd, data: list[bytes], is_power: bool) -> None:
        first = self.cut[2] + 1
        assert data == [self.rig.sent[first + n] for n in range(len(data))]
        assert end.last_lsn >= (self.durable if is_power else self.written)
        assert end.claim <= max(self.durable, self.base)


def live(rng: random.Random, fs: FaultyFileSystem | None, prev: LogEnd | None) -> tuple[Life, bool]:
    """A life up to its end; and whether it ended with a failed sync."""
    life = Life(rng, fs, prev)
    fate = rng.random()
    if fate < 0.5:
        life.rig.fs.crash_at = life.rig.fs.operations + rng.randrange(1, 120)
    elif fate < 0.65:
        kinds = rng.choice((["sync"], ["pwrite"], ["sync_dir"], ["allocate", "rename"]))
        life.rig.fs.fail(rng.choice((errno.EIO, "short")), kinds=kinds, nth=rng.randrange(1, 20))
    has_failed = False
    try:
        life.run(rng.randrange(5, 150))
    except CrashNow:
        pass
    except DiskFullError:
        pass
    except StorageError:
        has_failed = True
        assert life.rig.log.failed is not None
    life.observe()
    return life, has_failed or life.rig.log.failed is not None


@pytest.mark.parametrize("block", range(8))
def test_what_was_settled_survives(block: int) -> None:
    segments = torn = failed = 0
    for seed in range(block * SEEDS // 8, (block + 1) * SEEDS // 8):
        rng = random.Random(seed)
        fs: FaultyFileSystem | None = None
        prev: LogEnd | None = None
        for _ in range(4):
            life, has_failed = live(rng, fs, prev)
            is_power = rng.random() < 0.6
            fs = life.rig.fs.crash(rng.choice(POWER_CUTS) if is_power else "killed", rng)
            first = (life.cut[0], life.cut[1], life.cut[2] + 1)
            end, found = survey(fs, first)
            life.check(end, [r.data for r in found], is_power or has_failed)
            again, _ = survey(fs.crash("lost"), first)
            assert (again.segment, again.offset, again.last_lsn) == (
                end.segment, end.offset, end.last_lsn,
            )  # fmt: skip
            segments = max(segments, end.segment)
            torn += end.cut_records > 0
            failed += has_failed
            prev = end
            if rng.random() < 0.3:
                try:
                    # Recovery itself dies after it made its new segment.
                    fs.crash_at = fs.operations + rng.randrange(1, 12)
                    Rig(fs, seed=rng.randrange(1 << 30), bytes_min=KIB, prev=end)
                except CrashNow:
                    pass
                fs = fs.crash(rng.choice((*POWER_CUTS, "killed")), rng)
                prev, _ = survey(fs, first)
                assert (prev.segment, prev.last_lsn) == (end.segment, end.last_lsn)
    assert segments > 5
    assert torn > 3
    assert failed > 3


@pytest.mark.parametrize("block", range(4))
def test_damage_to_what_a_header_behind_calls_durable_is_named(block: int) -> None:
    named = 0
    for seed in range(block * 25, block * 25 + 25):
        rng = random.Random(seed)
        life = Life(rng, None, None)
        life.run(rng.randrange(30, 150))
        life.rig.log.wait(life.rig.log.last_lsn, DISK)
        if rng.random() < 0.5:
            life.rig.idle()
            life.rig.idle()
        first = (life.cut[0], life.cut[1], life.cut[2] + 1)
        fs = life.rig.fs.crash(rng.choice(("lost", "kept", "killed")), rng)
        end, found = survey(fs, first)
        for record in rng.sample(found, min(4, len(found))):
            # From the header of the first record of a group to the last byte of the data.
            position = record.offset + rng.randrange(20 + len(record.data))
            if record.lsn == found[0].lsn and rng.random() < 0.5:
                position = record.offset - rng.randrange(1, GROUP_HEADER_BYTES)
            spoilt = fs.fork()
            path = life.rig.path(record.segment)
            spoilt.damage_flip(path, position, rng.randrange(8))
            if record.lsn <= end.claim:
                with pytest.raises(CorruptionError) as caught:
                    survey(spoilt, first)
                assert caught.value.path == path
                assert position - 1600 <= caught.value.position <= position
                named += 1
            else:
                cut, _ = survey(spoilt, first)
                assert cut.last_lsn < record.lsn
    assert named > 20
