"""Batches of Spark, crashed everywhere: each row once, in its order, all of a batch or nothing.

How many images: PENSTOCK_CRASH_IMAGES (tests/conftest.py). The counts are printed. The n-th call
fails, for every n, as in test_stream_faults.py; what fails in the process that stages is not the
engine's, and is left out.
"""

import pytest

from tests.crash import failing_calls, triple_unit
from tests.crash.batch_lives import BatchExplorer, Unit
from tests.crash.batch_mutants import BATCH_MUTANTS
from tests.crash.drawn import drawn_mutants
from tests.crash.failing_calls import CASES, SEED, check_nth, check_refused, with_streams
from tests.crash.images import Counts
from tests.crash.mutants import BATCHES, CONTROL, RUNS_MAX, Mutant, control_runs, find
from tests.helpers.batch_driver import BatchDriver
from tests.helpers.tiny_engine import OPTIONS

pytestmark = pytest.mark.crash

LIVES_SEED = 1
SHARE = 8  # of all images wanted, one in so many is of batches
WORKLOAD = (
    "stage", "append", "decide", "move_slice", "move_slice", "publish", "move_slice", "sync",
    "begin_checkpoint", "finish_batches", "append", "finish_checkpoint", "batch_whole", "sync",
    "stage", "decide", "move_slice", "checkpoint", "append", "finish_batches", "forget", "sweep",
    "batch_whole", "fill", "checkpoint", "idle",
)  # fmt: skip

Run = failing_calls.Run[BatchDriver]


def test_every_triple_survives_a_crash_at_every_operation(
    crash_images: int, capsys: pytest.CaptureFixture[str]
) -> None:
    triple_unit.check_triples(Unit, crash_images // SHARE, LIVES_SEED, capsys, recovery_share=30)


def test_the_same_seed_gives_the_same_images() -> None:
    triple_unit.check_repeats(Unit)


@pytest.mark.parametrize("mutant", drawn_mutants(BATCH_MUTANTS), ids=repr)
def test_a_broken_promise_is_noticed(mutant: Mutant) -> None:
    _, noticed = find(mutant)
    assert noticed, f"{mutant} breaks {mutant.rule}, and {RUNS_MAX} runs noticed nothing"


def test_what_is_not_broken_is_not_noticed(crash_images: int) -> None:
    _, noticed = find(Mutant(CONTROL.name, "", "", "", BATCHES), control_runs(crash_images))
    assert not noticed, noticed


# ---- failing calls -----------------------------------------------------------------------------


def begin(effect: int | str, *, kinds: tuple[str, ...], nth: int, times: int | None) -> Run:
    """The workload once, with a fault that strikes the engine only."""
    driver = with_streams(BatchDriver, SEED)
    driver.sync()
    driver.look()
    fault = driver.fs.fail(
        effect, kinds=kinds, nth=nth, times=times, path=lambda _: not driver.is_staging
    )
    return failing_calls.Run(driver, WORKLOAD, fault)


def check_stopped(run: Run) -> None:
    """Every call says so."""
    engine = run.driver.engine
    check_refused(run, [engine.flush, engine.sync, engine.tick, engine.begin])


def explorer() -> BatchExplorer:
    return BatchExplorer(OPTIONS, SEED, Counts(), follow=0.0)


@pytest.mark.parametrize(("effect", "kinds", "times"), CASES)
def test_the_nth_call_fails(
    effect: int | str, kinds: tuple[str, ...], times: int | None, crash_images: int
) -> None:
    check_nth(begin, (effect, kinds, times), crash_images, check_stopped, explorer)
