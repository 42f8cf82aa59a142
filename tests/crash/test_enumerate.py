"""All triples of operations, crashed everywhere, and random lives: no promise is broken.

How many images: PENSTOCK_CRASH_IMAGES (tests/conftest.py). The counts are printed.
"""

import random

import pytest

from penstock.storage.tools.verify import verify
from tests.crash import random_lives, triple_unit
from tests.crash.enumerate import Unit
from tests.crash.images import MODES, Counts, Explorer
from tests.helpers.engine_rig import EngineRig
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.ledger import Ledger
from tests.helpers.tiny_engine import PATH, VARIANTS, make_vhost
from tests.helpers.vhost_driver import Driver

pytestmark = pytest.mark.crash

SEED = 1
JOBS_FROM = 100_000  # images from which on two processes share the work
LIVES_SHARE = 10  # one in so many images is of random lives


def test_every_triple_survives_a_crash_at_every_operation(
    crash_images: int, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = 2 if crash_images >= JOBS_FROM else 1
    triple_unit.check_triples(Unit, crash_images, SEED, capsys, jobs=jobs)


@pytest.mark.parametrize("plan", random_lives.PLANS)
def test_random_lives_survive_their_crashes(
    plan: str, crash_images: int, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = crash_images // LIVES_SHARE // (1 if plan == "all" else 5)
    counts = Counts()
    seed = SEED
    while counts.images < wanted:
        story = random_lives.attempt(seed, counts, plan)
        assert not story, story
        seed += 1
    with capsys.disabled():
        print(f"\n{plan}: {random_lives.line(counts, seed - SEED, SEED)}")


def test_a_new_store_survives_a_crash_at_every_operation_of_its_making() -> None:
    """From the empty directory to the first confirmed message."""
    counts = Counts()
    for variant, options in enumerate(VARIANTS):
        fs = FaultyFileSystem(seed=variant)
        make_vhost(fs)
        journal = fs.start_journal()
        driver = Driver(fs, variant, options=options)
        made = fs.operations  # before that nothing was given out: no id, no queue number
        driver.watch()
        for name in ("declare_missing", "publish", "publish", "sync", "checkpoint"):
            driver.step(name)
        fs.before_operation = None
        explorer = Explorer(options, variant, counts, follow=1.0)
        for at, image in journal.images():
            for mode in MODES:
                ledger = driver.ledger if at >= made else Ledger()
                explorer.explore(explorer.crash(image, mode, ledger, ledger.known(at)))
    assert counts.images > 1000


@pytest.mark.parametrize("mode", MODES)
def test_a_crash_in_a_recovery_that_spills_leaves_nothing_that_verify_reports(mode: str) -> None:
    """What a replay has no room for in RAM goes to files, before the checkpoint names them."""
    rig = EngineRig(replay_ram_bytes=400)
    for name in (b"a", b"b"):
        rig.put(rig.queue(name), *[b"%d" % n for n in range(10)])
    fs = rig.fs.crash("kept")
    journal = fs.start_journal()
    rig = EngineRig(fs, replay_ram_bytes=400)
    assert rig.engine.fs.exists(f"{rig.queue(b'a').path}/.queue_name"), "nothing was spilled"
    rng = random.Random(SEED)
    wrong = {
        f"{problem.path}: {problem.text}"
        for _, image in journal.images()
        for problem in verify(image.crash(mode, rng), PATH).problems
    }
    assert not wrong


def test_the_same_seed_gives_the_same_images() -> None:
    triple_unit.check_repeats(Unit)
