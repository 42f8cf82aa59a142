"""Each rule of the engine, broken by one line, is noticed by the crash tests (mutants.py)."""

from collections.abc import Iterable

import pytest

from tests.crash.batch_mutants import BATCH_MUTANTS
from tests.crash.drawn import drawn_mutants
from tests.crash.lease_mutants import LEASE_MUTANTS
from tests.crash.mutants import CONTROL, MUTANTS, RUNS_MAX, Mutant, control_runs, find, module_of
from tests.crash.queue_mutants import QUEUE_MUTANTS
from tests.crash.stream_mutants import STREAM_MUTANTS

pytestmark = pytest.mark.crash


@pytest.mark.parametrize("mutant", drawn_mutants(MUTANTS), ids=repr)
def test_a_broken_rule_is_noticed(mutant: Mutant) -> None:
    _, noticed = find(mutant)
    assert noticed, f"{mutant} breaks rule {mutant.rule}, and {RUNS_MAX} runs noticed nothing"


@pytest.mark.parametrize("plan", sorted({mutant.plan for mutant in MUTANTS}))
def test_what_is_not_broken_is_not_noticed(plan: str, crash_images: int) -> None:
    control = Mutant(CONTROL.name, "", "", "", plan)
    _, noticed = find(control, control_runs(crash_images))
    assert not noticed, noticed


@pytest.mark.parametrize(
    "mutants", [MUTANTS, BATCH_MUTANTS, LEASE_MUTANTS, QUEUE_MUTANTS, STREAM_MUTANTS]
)
def test_what_each_replaces_stands_in_the_source(mutants: Iterable[Mutant]) -> None:
    for mutant in mutants:
        module_of(mutant)


def test_every_rule_that_a_crash_can_break_has_a_mutant() -> None:
    rules = {mutant.rule for mutant in MUTANTS}
    assert rules >= {f"[{number}]" for number in range(1, 12)}
