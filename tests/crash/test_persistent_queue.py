"""A PersistentQueue alone and under a log, crashed at every operation of its files, in every way.

Everything forced is there, offsets are dense, nothing is there that was never appended; recovery
itself may crash; a failed write changes nothing, a failed sync stops the queue. How many images:
PENSTOCK_CRASH_IMAGES (tests/conftest.py).
"""

import errno
import random
import traceback

import pytest

from penstock.errors import PenstockError, StoppedError, SyncFailedError
from penstock.storage.pages.stream_meta import ReaderOffset
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.page_queue_lives import MODES, PATH, Alone, Known, Logged, expect

pytestmark = pytest.mark.crash

ALONE_STEPS = ("append", "append", "many", "write", "force", "roll", "retain", "expire", "reader",
               "reopen")  # fmt: skip
LOGGED_STEPS = ("append", "append", "roll", "write", "publish", "checkpoint", "retain", "expire",
                "handles")  # fmt: skip
SHARE = 8  # one in so many images is made here
PAGE_BYTES = (128, 400, 1000, 5000)


class Tally:
    def __init__(self) -> None:
        self.images = 0
        self.nested = 0


def crash_alone(seed: int, tally: Tally, each: int) -> None:
    """One life, and `each` images of it."""
    rng = random.Random(seed)
    life = Alone(FaultyFileSystem(seed=seed), seed, rng.choice(PAGE_BYTES))
    for _ in range(rng.randint(0, 6)):
        life.step(rng.choice(ALONE_STEPS))
    journal = life.watch()
    for _ in range(rng.randint(2, 9)):
        life.step(rng.choice(ALONE_STEPS))
    for _ in range(each):
        at = rng.randint(journal.first, journal.last)
        mode = rng.choice(MODES)
        known, readers = life.known(at)
        fs = journal.image(at).crash(mode, rng)
        tally.images += 1
        if rng.random() < 0.4:
            recovery = fs.start_journal()
            life.recovered(fs, known, readers)
            inner = rng.randint(recovery.first, recovery.last)
            fs.journal = None
            tally.nested += 1
            fs = recovery.image(inner).crash(rng.choice(MODES), rng)
        if mode == "killed" and rng.random() < 0.3:
            fs = fs.crash("lost", rng)  # and then the power went
        again = life.recovered(fs, known, readers)
        if rng.random() < 0.5:
            second(again, rng)


def second(life: Alone, rng: random.Random) -> None:
    """Go on with what was recovered; and a power cut, at once or after an orderly stop."""
    for _ in range(rng.randint(0, 4)):
        life.step(rng.choice(ALONE_STEPS))
    if rng.random() < 0.3:
        life.queue.close()
        life.forced = len(life.records)
    readers = {name: set(values) for name, values in life.readers.items()}
    life.recovered(life.fs.crash("lost", rng), Known(life.forced, life.first), readers)


def crash_logged(seed: int, tally: Tally, each: int) -> None:
    rng = random.Random(seed)
    life = Logged(FaultyFileSystem(seed=seed), seed, rng.choice(PAGE_BYTES))
    life.is_strict = rng.random() < 0.5
    for _ in range(rng.randint(0, 6)):
        life.step(rng.choice(LOGGED_STEPS))
    journal = life.watch()
    for _ in range(rng.randint(2, 9)):
        life.step(rng.choice(LOGGED_STEPS))
    for _ in range(each if journal.last > journal.first else 0):
        at = rng.randint(journal.first, journal.last)
        known, most = life.known(at)
        fs = journal.image(at).crash(rng.choice(MODES), rng)
        tally.images += 1
        if rng.random() < 0.4:
            recovery = fs.start_journal()
            life.recovered(fs, known, most)
            inner = rng.randint(recovery.first, recovery.last)
            fs.journal = None
            tally.nested += 1
            fs = recovery.image(inner).crash(rng.choice(MODES), rng)
        again = life.recovered(fs, known, most)
        again.step("checkpoint")
        for _ in range(rng.randint(0, 5)):
            again.step(rng.choice(LOGGED_STEPS))
        again.recovered(again.fs.crash("lost", rng), again.known_now, len(again.records))


LIVES = {"alone": crash_alone, "logged": crash_logged}


@pytest.mark.parametrize("kind", LIVES)
def test_lives_survive_a_crash_at_any_operation(
    kind: str, crash_images: int, capsys: pytest.CaptureFixture[str]
) -> None:
    tally = Tally()
    seed = 1
    while tally.images < crash_images // SHARE:
        try:
            LIVES[kind](seed, tally, 12)
        except Exception:
            pytest.fail(f"{kind}, seed {seed}:\n{traceback.format_exc()}")
        seed += 1
    with capsys.disabled():
        print(f"\n{kind} queues: {seed - 1} lives, {tally.images} images, {tally.nested} nested")
    assert tally.nested > tally.images // 5


@pytest.mark.parametrize("kind", ["alone", "logged"])
@pytest.mark.parametrize("page_bytes", [128, 400])
def test_a_fixed_life_is_crashed_at_every_operation_in_every_mode(
    kind: str, page_bytes: int
) -> None:
    """Each kind of operation twice, and no chance in where it is crashed."""
    steps = ("append", "write", "force", "roll", "append", "force", "retain", "reader", "roll",
             "force", "expire")  # fmt: skip
    more = ("append", "publish", "checkpoint", "roll", "write", "publish", "retain", "append",
            "write", "publish", "checkpoint", "expire", "append")  # fmt: skip
    rng = random.Random(page_bytes)
    tally = Tally()
    if kind == "alone":
        alone = Alone(FaultyFileSystem(seed=1), 1, page_bytes)
        journal = alone.watch()
        for step in steps * 2:
            alone.step(step)
        for at, fs in journal.images():
            for mode in MODES:
                alone.recovered(fs.crash(mode, rng), *alone.known(at))
                tally.images += 1
    else:
        logged = Logged(FaultyFileSystem(seed=1), 1, page_bytes)
        logged.fs.sync_dir("/")
        journal = logged.watch()
        for step in more * 2:
            logged.step(step)
        for at, fs in journal.images():
            for mode in MODES:
                logged.recovered(fs.crash(mode, rng), *logged.known(at))
                tally.images += 1
    assert tally.images > 300


def test_a_crash_while_a_queue_is_made_leaves_a_queue_or_nothing() -> None:
    for forces in (True, False):
        fs = FaultyFileSystem(seed=1)
        journal = fs.start_journal()
        life = Alone(fs, 1, 400) if forces else Logged(fs, 1, 400)
        life.step("append")
        life.queue.write()
        for _, image in journal.images():
            for mode in MODES:
                crashed = image.crash(mode, random.Random(3))
                again = Alone(crashed, 1, 400) if forces else Logged(crashed, 1, 400)
                if forces:
                    again.records = list(life.records)
                    again.check_reads(again.queue, 0, again.queue.next_offset)
                else:
                    again.queue.finish_restore()
                    assert again.queue.next_offset == 0
                again.queue.append(*life.records[0])
                again.queue.write()
                again.queue.close()


# ---- faults ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_a_failed_write_changes_nothing_and_a_failed_sync_stops_the_queue(seed: int) -> None:
    """Each operation of a life fails once, with each error."""
    rng = random.Random(seed)
    steps = [rng.choice(ALONE_STEPS[:-1]) for _ in range(7)]
    probe = Alone(FaultyFileSystem(seed=seed), seed, 400)
    start = probe.fs.operations
    for step in steps:
        probe.step(step)
    for at in range(start + 1, probe.fs.operations + 1):
        for effect in (errno.ENOSPC, errno.EIO, "short"):
            life = Alone(FaultyFileSystem(seed=seed), seed, 400)
            life.fs.fail(effect, at=at)
            stopped = run_until_stopped(life, steps)
            if not stopped:
                life.queue.force()
                life.forced = len(life.records)
                life.check_reads(life.queue, life.queue.first_offset, life.forced)
                life.queue.close()
            life.fs.clear_faults()
            readers = {name: {*places, None} for name, places in life.readers.items()}
            for name in "abc":
                readers.setdefault(name, {None}).update(every_place(life))
            crashed = life.fs.crash(rng.choice(("lost", "kept", "killed")), rng)
            life.recovered(crashed, Known(life.forced, life.first), readers)


def every_place(life: Alone) -> set[ReaderOffset]:
    """What a reader may be set to when the step that set it failed: nobody can tell."""
    return {ReaderOffset(offset, None) for offset in range(len(life.records) + 1)}


def run_until_stopped(life: Alone, steps: list[str]) -> bool:
    for step in steps:
        try:
            life.step(step)
        except SyncFailedError:
            for call in (life.queue.write, life.queue.force, lambda: life.queue.append(b"", b"")):
                with pytest.raises(StoppedError):
                    call()
            return True
        except OSError:
            end = life.queue.next_offset  # a step of many records may have done some
            del life.records[end:]
            expect(len(life.records) == end, f"{end} records, {len(life.records)} were appended")
            expect(life.queue.failed is None, "a failed write stopped the queue")
    return False


def test_a_queue_that_stopped_can_be_opened_again() -> None:
    life = Alone(FaultyFileSystem(seed=1), 1, 400)
    life.step("many")
    life.step("append")
    life.fs.fail(errno.EIO, kinds=["sync"], path=".page")
    with pytest.raises(SyncFailedError):
        life.queue.force()
    with pytest.raises(PenstockError):
        life.queue.read(0, 1, 1)
    life.queue.close()
    again = life.recovered(life.fs, Known(life.forced, 0), {})
    again.step("append")
    again.step("force")
    assert PATH + "/LOCK" in life.fs.names()
