"""A stream that stands alone, with its readers and its retention, crashed at every file operation.

The core is driven without its thread: appended, forced, committed, saved, retained, expired,
reopened. After a crash at any operation, in any way, it opens again, and

    all that was confirmed is there, in order, and nothing that was never appended
    a reader is where it was saved, or where it was about to be saved; never beyond the end: what
    it read was on disk
    what retention had taken for good does not come back, and what it may not take is there
    `verify` finds nothing wrong, who reads beside sees the same, and it goes on

How many random lives: PENSTOCK_CRASH_IMAGES (tests/conftest.py).
"""

import errno
import random
import traceback
from typing import NamedTuple

import pytest

from penstock.embedded.alone_stream import AloneSettings
from penstock.errors import PenstockError
from penstock.storage.pages.stream_meta import read_tail
from penstock.storage.pages.stream_view import StreamView
from penstock.storage.tools.verify import verify_stream
from tests.helpers.alone_rig import PATH, AloneRig, settings
from tests.helpers.faulty_filesystem import FaultyFileSystem, Journal
from tests.helpers.page_queue_lives import MODES, Violation, expect

pytestmark = pytest.mark.crash

SHARE = 10  # one in so many images is made here
STEPS = ("append", "append", "turn", "commit", "save", "force", "retain", "expire", "reopen")
SCRIPT = (
    "append", "turn", "commit", "save", "append", "append", "force", "commit", "commit", "save",
    "retain", "append", "turn", "expire", "append", "force", "commit", "reopen", "append", "turn",
    "commit", "save", "expire", "append", "force", "reopen",
)  # fmt: skip
KINDS = {
    "stream": settings(max_records=6, max_age_s=10),
    "in groups": settings(5, max_records=6, max_age_s=10),
    "persisted": settings(keeps="a", max_records=0, max_age_s=10),
}


class Known(NamedTuple):
    """What was promised. forced: all below is confirmed; first: what is below it is gone for good;
    saved: where readers were, for good; committed: where they were to be."""

    forced: int
    first: int
    saved: dict[str, int]
    committed: dict[str, int]
    appended: int


class Life:
    """One stream, and what is promised of it."""

    def __init__(self, fs: FaultyFileSystem, seed: int, chosen: AloneSettings) -> None:
        self.rng = random.Random(seed)
        self.rig = AloneRig(chosen, fs)
        self.records: list[bytes] = []
        self.saved: dict[str, int] = {}
        self.journal: Journal | None = None

    def watch(self) -> Journal:
        assert isinstance(self.rig.fs, FaultyFileSystem)
        self.journal = self.rig.fs.start_journal()
        self.note()
        return self.journal

    def known(self) -> Known:
        core = self.rig.core
        return Known(
            core.queue.head_offset, core.queue.first_offset, dict(self.saved), dict(core.offsets),
            len(self.records),
        )  # fmt: skip

    def note(self) -> None:
        if self.journal is not None:
            self.journal.note(self.known())

    def step(self, name: str) -> None:
        rig, rng = self.rig, self.rng
        core = rig.core
        if name == "append":
            bodies = [b"%d " % n + rng.randbytes(rng.choice((0, 30, 90, 400)))
                      for n in range(rng.randint(1, 4))]  # fmt: skip
            self.records += bodies
            self.note()
            rig.append(*bodies)
        elif name == "turn":
            core.turn()
        elif name == "force":
            rig.force()
        elif name == "commit" and core.queue.head_offset:
            reader = rng.choice("ab")
            low = max(core.offsets.get(reader, 0), core.queue.first_offset)
            core.commit(reader, rng.randint(low, max(low, core.queue.head_offset)))
            self.note()
        elif name == "save":
            rig.save()
            self.saved = dict(core.offsets)
        elif name == "retain":
            rig.retain()
        elif name == "expire":
            rig.clock.advance(11)
            rig.retain()
        elif name == "reopen":
            core.close()
            self.saved = dict(core.offsets)
            rig.core = rig.opened()
        self.note()

    def recovered(self, fs: FaultyFileSystem, before: Known, after: Known) -> "Life":
        """Open what a crash left, and judge it; the life that goes on."""
        life = Life.__new__(Life)
        life.rng, life.journal = random.Random(self.rng.getrandbits(32)), None
        life.rig = rig = AloneRig(self.rig.settings, fs, self.rig.clock)
        queue = rig.core.queue
        end, first = queue.head_offset, queue.first_offset
        expect(before.forced <= end <= after.appended, f"{end} records, {before} {after}")
        expect(before.first <= first <= end, f"the first is {first} of {end}, {before}")
        life.records = self.records[:end]
        found = rig.bodies(first)
        expect(found == life.records[first:], f"other records from {first} to {end}")
        for name in {*before.saved, *rig.core.offsets}:
            at = rig.core.offsets.get(name, -1)
            low, high = before.saved.get(name, -1), after.committed.get(name, -1)
            expect(low <= at <= max(high, low), f"{name} is at {at}, of {low} to {high}")
            expect(at <= end, f"{name} is at {at}, beyond the end {end}")
        if rig.settings.keeps:
            expect(first <= after.committed.get("a", 0), f"{first} was not done with, {after}")
        report = verify_stream(fs, PATH)
        expect(not report.problems, f"verify: {report.problems}")
        view = StreamView(fs, PATH)
        expect((view.first_offset(), view.head().next_offset) == (first, end), "a view sees other")
        view.close()
        life.saved = dict(rig.core.offsets)
        return life


def known_at(journal: Journal, at: int) -> tuple[Known, Known]:
    """(what was promised when operation `at` was done, what is promised next)."""
    notes = [note for _, note in journal.notes]
    index = len(journal.noted(at)) - 1
    before, after = notes[index], notes[min(index + 1, len(notes) - 1)]
    assert isinstance(before, Known)
    assert isinstance(after, Known)
    return before, after


def begun(kind: str, seed: int) -> Life:
    life = Life(FaultyFileSystem(seed=seed), seed, KINDS[kind])
    if KINDS[kind].keeps:  # as `persist` does, before anything is read
        life.rig.core.commit("a", 0)
        life.step("save")
    return life


@pytest.mark.parametrize("kind", KINDS)
def test_a_script_is_crashed_at_every_operation_in_every_mode(kind: str) -> None:
    life = begun(kind, 1)
    journal = life.watch()
    for step in SCRIPT:
        life.step(step)
    images = 0
    rng = random.Random(7)
    for at, fs in journal.images():
        for mode in MODES:
            again = life.recovered(fs.crash(mode, rng), *known_at(journal, at))
            again.step("append")
            again.step("force")
            again.rig.core.close()
            images += 1
    assert images > 500


@pytest.mark.parametrize("kind", KINDS)
def test_random_lives_survive_a_crash_also_of_their_recovery(kind: str, crash_images: int) -> None:
    seed, images = 1, 0
    while images < crash_images // SHARE:
        try:
            images += random_life(kind, seed)
        except Exception:
            pytest.fail(f"{kind}, seed {seed}:\n{traceback.format_exc()}")
        seed += 1


def random_life(kind: str, seed: int) -> int:
    rng = random.Random(seed)
    life = begun(kind, seed)
    for _ in range(rng.randint(0, 6)):
        life.step(rng.choice(STEPS))
    journal = life.watch()
    for _ in range(rng.randint(3, 12)):
        life.step(rng.choice(STEPS))
    for _ in range(12 if journal.last > journal.first else 0):
        at = rng.randint(journal.first, journal.last)
        before, after = known_at(journal, at)
        fs = journal.image(at).crash(rng.choice(MODES), rng)
        if rng.random() < 0.4:
            recovery = fs.start_journal()
            life.recovered(fs, before, after)
            inner = rng.randint(recovery.first, recovery.last)
            fs.journal = None
            fs = recovery.image(inner).crash(rng.choice(MODES), rng)
        again = life.recovered(fs, before, after)
        for _ in range(rng.randint(0, 5)):
            again.step(rng.choice(STEPS))
        now = again.known()
        assert isinstance(again.rig.fs, FaultyFileSystem)
        again.recovered(again.rig.fs.crash("lost", rng), now, now)
    return 12


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("effect", [errno.ENOSPC, errno.EIO, "short"])
def test_each_operation_fails_once(kind: str, effect: int | str) -> None:
    """What fails is told; nothing confirmed is lost; after a failed sync nothing is confirmed."""
    probe = begun(kind, 2)
    assert isinstance(probe.rig.fs, FaultyFileSystem)
    start = probe.rig.fs.operations
    for step in SCRIPT:
        probe.step(step)
    rng = random.Random(3)
    stopped = 0
    for at in range(start + 1, probe.rig.fs.operations + 1):
        life = begun(kind, 2)
        fs = life.rig.fs
        assert isinstance(fs, FaultyFileSystem)
        fs.fail(effect, at=at)
        stopped += run(life)
        fs.clear_faults()
        # Pages that could not be taken away come back, if readMeta does not say that they went.
        now = life.known()._replace(first=read_tail(fs, PATH))
        saves = {**now.committed, **{name: max(now.committed.values()) for name in now.committed}}
        life.recovered(fs.crash(rng.choice(MODES), rng), now, now._replace(committed=saves))
    assert stopped or effect == "short"


def run(life: Life) -> bool:
    """The script, each step of it whatever became of the one before; whether the core stopped."""
    for step in SCRIPT:
        before = life.rig.core.queue.next_offset
        try:
            life.step(step)
        except (OSError, PenstockError):
            core = life.rig.core
            if core.failed is not None:
                head = core.queue.head_offset
                core.turn()
                expect(core.queue.head_offset == head, "confirmed after it has stopped")
                return True
            if step == "reopen":
                core.close()
                return True
            expect(core.queue.next_offset >= before, "records are gone")
    return False


def test_the_judge_notices() -> None:
    """A record that was confirmed and is gone, and a reader that was moved too far."""
    life = begun("stream", 1)
    for step in ("append", "force", "commit", "save"):
        life.step(step)
    now = life.known()
    assert isinstance(life.rig.fs, FaultyFileSystem)
    image = life.rig.fs.crash("lost", random.Random(1))
    life.recovered(image.fork(), now, now)
    with pytest.raises(Violation, match="records"):
        life.recovered(image.fork(), now._replace(forced=99), now)
    reader = next(iter(now.saved))
    with pytest.raises(Violation, match="is at"):
        life.recovered(image.fork(), now._replace(saved={reader: 99}), now)
