"""Streams of a vhost, crashed everywhere: no promise is broken, and no mapped byte ever changes.

How many images: PENSTOCK_CRASH_IMAGES (tests/conftest.py). The counts are printed.
"""

import pytest

from tests.crash import triple_unit
from tests.crash.images import MODES, Counts
from tests.crash.mutants import CONTROL, RUNS_MAX, STREAMS, Mutant, find
from tests.crash.stream_lives import StreamExplorer, Unit
from tests.crash.stream_mutants import STREAM_MUTANTS
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.ledger import Ledger
from tests.helpers.stream_driver import StreamDriver
from tests.helpers.tiny_engine import VARIANTS, make_vhost

pytestmark = pytest.mark.crash

SEED = 1
CONTROL_RUNS = 60
SHARE = 3  # of all images wanted, so many parts are not of streams


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


def test_a_new_stream_survives_a_crash_at_every_operation_of_its_making() -> None:
    """From the empty directory to records that are confirmed, a page that goes, a deletion."""
    counts = Counts()
    for variant, options in enumerate(VARIANTS):
        fs = FaultyFileSystem(seed=variant)
        make_vhost(fs)
        driver = StreamDriver(fs, variant, options=options)
        driver.declare(b"a")
        driver.sync()
        journal = fs.start_journal()
        driver.watch()
        driver.look()
        for name in (
            "declare_stream", "append", "mixed", "sync", "fill", "set_reader", "sync", "retain",
            "checkpoint", "append", "delete_stream", "declare_stream", "append", "sync",
        ):  # fmt: skip
            driver.step(name)
        driver.look()
        fs.before_operation = None
        explorer = StreamExplorer(variant, variant, counts, follow=0.3)
        for at, image in journal.images():
            for mode in MODES:
                ledger: Ledger = driver.ledger
                explorer.explore(explorer.crash(image, mode, ledger, ledger.known(at)))
    assert counts.images > 2000


def test_the_same_seed_gives_the_same_images() -> None:
    first, _ = Unit(3, 100, 0, 20).run()
    second, _ = Unit(3, 100, 0, 20).run()
    assert vars(first) == vars(second)


@pytest.mark.parametrize("mutant", STREAM_MUTANTS, ids=repr)
def test_a_broken_promise_is_noticed(mutant: Mutant) -> None:
    _, noticed = find(mutant)
    assert noticed, f"{mutant} breaks {mutant.rule}, and {RUNS_MAX} runs noticed nothing"


def test_what_is_not_broken_is_not_noticed() -> None:
    _, noticed = find(Mutant(CONTROL.name, "", "", "", STREAMS), CONTROL_RUNS)
    assert not noticed, noticed
