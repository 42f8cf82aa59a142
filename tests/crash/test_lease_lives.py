"""Leases, crashed everywhere: a reader has exactly what the log says, at the same ordinals.

How many images: PENSTOCK_CRASH_IMAGES (tests/conftest.py). The counts are printed.
"""

import pytest

from tests.crash import triple_unit
from tests.crash.images import MODES, Counts
from tests.crash.lease_lives import LeaseExplorer, Unit
from tests.crash.lease_mutants import LEASE_MUTANTS
from tests.crash.mutants import CONTROL, LEASES, RUNS_MAX, Mutant, find
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.lease_driver import LeaseDriver
from tests.helpers.ledger import Ledger
from tests.helpers.tiny_engine import VARIANTS, make_vhost

pytestmark = pytest.mark.crash

SEED = 1
CONTROL_RUNS = 60
SHARE = 3  # of all images wanted, so many parts are not of leases


def test_every_triple_survives_a_crash_at_every_operation(
    crash_images: int, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = crash_images // SHARE
    counts, stories = triple_unit.run(Unit, wanted, SEED)
    with capsys.disabled():
        print(f"\n{triple_unit.line(Unit, counts, SEED)}")
    assert not stories, "\n".join(stories)
    assert counts.images >= wanted
    assert counts.workloads >= len(Unit.TRIPLES)
    assert counts.in_recovery > counts.images // 20


def test_a_first_lease_survives_a_crash_at_every_operation() -> None:
    """From an empty queue to messages that are leased, committed in part, and given back."""
    counts = Counts()
    for variant, options in enumerate(VARIANTS):
        fs = FaultyFileSystem(seed=variant)
        make_vhost(fs)
        driver = LeaseDriver(fs, variant, options=options)
        driver.declare(b"a")
        driver.sync()
        journal = fs.start_journal()
        driver.watch()
        driver.look()
        for name in (
            "publish", "publish", "publish", "lease", "sync", "lease_transient", "commit_lease",
            "checkpoint", "publish", "lease", "commit_lease", "release_lease", "sync", "lease",
            "purge", "checkpoint", "release_lease", "sync",
        ):  # fmt: skip
            driver.step(name)
        driver.look()
        fs.before_operation = None
        explorer = LeaseExplorer(variant, variant, counts, follow=0.3)
        for at, image in journal.images():
            for mode in MODES:
                ledger: Ledger = driver.ledger
                explorer.explore(explorer.crash(image, mode, ledger, ledger.known(at)))
    assert counts.images > 1000


def test_the_same_seed_gives_the_same_images() -> None:
    first, _ = Unit(3, 100, 0, 20).run()
    second, _ = Unit(3, 100, 0, 20).run()
    assert vars(first) == vars(second)


@pytest.mark.parametrize("mutant", LEASE_MUTANTS, ids=repr)
def test_a_broken_promise_is_noticed(mutant: Mutant) -> None:
    _, noticed = find(mutant)
    assert noticed, f"{mutant} breaks {mutant.rule}, and {RUNS_MAX} runs noticed nothing"


def test_what_is_not_broken_is_not_noticed() -> None:
    _, noticed = find(Mutant(CONTROL.name, "", "", "", LEASES), CONTROL_RUNS)
    assert not noticed, noticed
