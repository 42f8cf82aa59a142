"""Leases, crashed everywhere: a reader has exactly what the log says, at the same ordinals.

How many images: PENSTOCK_CRASH_IMAGES (tests/conftest.py). The counts are printed.
"""

import pytest

from tests.crash import triple_unit
from tests.crash.drawn import drawn_mutants
from tests.crash.lease_lives import LeaseExplorer, Unit
from tests.crash.lease_mutants import LEASE_MUTANTS
from tests.crash.mutants import CONTROL, LEASES, RUNS_MAX, Mutant, control_runs, find

pytestmark = pytest.mark.crash

SEED = 1
SHARE = 3  # of all images wanted, so many parts are not of leases


def test_every_triple_survives_a_crash_at_every_operation(
    crash_images: int, capsys: pytest.CaptureFixture[str]
) -> None:
    triple_unit.check_triples(Unit, crash_images // SHARE, SEED, capsys)


def test_a_first_lease_survives_a_crash_at_every_operation() -> None:
    """From an empty queue to messages that are leased, committed in part, and given back."""
    names = (
        "publish", "publish", "publish", "lease", "sync", "lease_transient", "commit_lease",
        "checkpoint", "publish", "lease", "commit_lease", "release_lease", "sync", "lease",
        "purge", "checkpoint", "release_lease", "sync",
    )  # fmt: skip
    counts = triple_unit.check_script(LeaseExplorer, names)
    assert counts.images > 1000


def test_the_same_seed_gives_the_same_images() -> None:
    triple_unit.check_repeats(Unit)


@pytest.mark.parametrize("mutant", drawn_mutants(LEASE_MUTANTS), ids=repr)
def test_a_broken_promise_is_noticed(mutant: Mutant) -> None:
    _, noticed = find(mutant)
    assert noticed, f"{mutant} breaks {mutant.rule}, and {RUNS_MAX} runs noticed nothing"


def test_what_is_not_broken_is_not_noticed(crash_images: int) -> None:
    _, noticed = find(Mutant(CONTROL.name, "", "", "", LEASES), control_runs(crash_images))
    assert not noticed, noticed
