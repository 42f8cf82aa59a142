"""Streams of a vhost, crashed everywhere: no promise is broken, and no mapped byte ever changes.

How many images: PENSTOCK_CRASH_IMAGES (tests/conftest.py). The counts are printed.
"""

import pytest

from tests.crash import triple_unit
from tests.crash.drawn import drawn_mutants
from tests.crash.mutants import CONTROL, RUNS_MAX, STREAMS, Mutant, control_runs, find
from tests.crash.stream_lives import StreamExplorer, Unit
from tests.crash.stream_mutants import STREAM_MUTANTS

pytestmark = pytest.mark.crash

SEED = 1
SHARE = 3  # of all images wanted, so many parts are not of streams


def test_every_triple_survives_a_crash_at_every_operation(
    crash_images: int, capsys: pytest.CaptureFixture[str]
) -> None:
    triple_unit.check_triples(Unit, crash_images // SHARE, SEED, capsys)


def test_a_new_stream_survives_a_crash_at_every_operation_of_its_making() -> None:
    """From the empty directory to records that are confirmed, a page that goes, a deletion."""
    names = (
        "declare_stream", "append", "mixed", "sync", "fill", "set_reader", "sync", "retain",
        "checkpoint", "append", "expire", "append", "delete_stream", "declare_stream", "append",
        "sync",
    )  # fmt: skip
    counts = triple_unit.check_script(StreamExplorer, names)
    assert counts.images > 2000


def test_the_same_seed_gives_the_same_images() -> None:
    triple_unit.check_repeats(Unit)


@pytest.mark.parametrize("mutant", drawn_mutants(STREAM_MUTANTS), ids=repr)
def test_a_broken_promise_is_noticed(mutant: Mutant) -> None:
    _, noticed = find(mutant)
    assert noticed, f"{mutant} breaks {mutant.rule}, and {RUNS_MAX} runs noticed nothing"


def test_what_is_not_broken_is_not_noticed(crash_images: int) -> None:
    _, noticed = find(Mutant(CONTROL.name, "", "", "", STREAMS), control_runs(crash_images))
    assert not noticed, noticed
