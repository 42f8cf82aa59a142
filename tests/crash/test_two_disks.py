"""A store on three disks survives crashes at every operation: of the engine, of its making, of a
move, of the end of a vhost. Each disk keeps what it likes of what was not synced."""

import random

import pytest

from penstock.errors import OptionError
from tests.crash import triple_unit, two_disks
from tests.crash.images import MODES, Counts
from tests.crash.two_disks import DATA, ROOTS, PlacedDriver, PlacedExplorer, Unit, open_data
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.ledger import Ledger
from tests.helpers.tiny_engine import VARIANTS

pytestmark = pytest.mark.crash

SEED = 1
SHARE = 4  # of the images of an enumeration on one disk
MOVES_SHARE = 20


def test_every_triple_survives_a_crash_of_three_disks(
    crash_images: int, capsys: pytest.CaptureFixture[str]
) -> None:
    triple_unit.check_triples(Unit, crash_images // SHARE, SEED, capsys)


def test_a_move_survives_a_crash_at_every_operation(
    crash_images: int, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = Counts()
    seed = SEED
    while counts.images < crash_images // MOVES_SHARE or seed < SEED + 30:
        story = two_disks.attempt(seed, counts)
        assert not story, story
        seed += 1
    with capsys.disabled():
        print(f"\n{two_disks.line(counts)}")
    assert counts.images > 300


@pytest.mark.parametrize("before", two_disks.PLACINGS)
def test_one_move_is_crashed_at_each_of_its_operations(before: dict[str, str]) -> None:
    """None left out: from each placing."""
    counts = Counts()
    seed = next(s for s in range(1000) if random.Random(s).choice(two_disks.PLACINGS) == before)
    story = two_disks.attempt(seed, counts, points=100_000)
    assert not story, story
    assert counts.points


def test_a_vhost_that_is_deleted_never_comes_back() -> None:
    counts = Counts()
    for seed in range(10):
        story = two_disks.attempt_vhosts(seed, counts)
        assert not story, story
    assert counts.images > 300


def test_a_new_store_survives_a_crash_at_every_operation_of_its_making() -> None:
    """From nothing to the first confirmed messages. Opened again with the same options it is there,
    and without options too, once it has VERSION."""
    counts = Counts()
    for variant, options in enumerate(VARIANTS):
        fs = FaultyFileSystem(seed=variant)
        for directory in ("/fast", "/big"):
            fs.mkdir(directory)
        fs.sync_all()
        journal = fs.start_journal()
        open_data(fs, ROOTS).close()
        driver = PlacedDriver(fs, variant, options=options)
        made = fs.operations
        driver.watch()
        for name in ("declare_missing", "publish", "publish", "sync", "checkpoint"):
            driver.step(name)
        fs.before_operation = None
        explorer = PlacedExplorer(options, variant, counts, follow=0)
        for at, image in journal.images():
            for mode in MODES:
                ledger = driver.ledger if at >= made else Ledger()
                known = driver.ledger.known(at) if at >= made else (0, 0, 0)
                left = explorer.crash(image, mode, ledger, known)
                has_version = left.fs.exists(f"{DATA}/VERSION")
                assert has_version or at < made
                open_data(left.fs, {} if has_version else ROOTS).close()
                explorer.recover(left)
    assert counts.images > 1000


def test_a_crash_in_the_making_does_not_let_another_directory_be_taken_for_it() -> None:
    """A store that was made whole never begins again elsewhere."""
    fs = FaultyFileSystem()
    for directory in ("/fast", "/big"):
        fs.mkdir(directory)
    fs.sync_all()
    journal = fs.start_journal()
    open_data(fs, ROOTS).close()
    refused = 0
    for _, image in journal.images():
        left = image.crash("lost")
        try:
            open_data(left, two_disks.OTHER_ROOTS).close()
        except OptionError:
            refused += 1
            open_data(left, ROOTS).close()
    assert refused


def test_the_same_seed_gives_the_same_images() -> None:
    triple_unit.check_repeats(Unit)
