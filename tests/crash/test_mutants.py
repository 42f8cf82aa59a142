"""Each rule of the engine, broken by one line, is noticed by the crash tests (mutants.py)."""

import pytest

from tests.crash.mutants import CONTROL, MUTANTS, RUNS_MAX, Mutant, control_runs, find

pytestmark = pytest.mark.crash


@pytest.mark.parametrize("mutant", MUTANTS, ids=repr)
def test_a_broken_rule_is_noticed(mutant: Mutant) -> None:
    _, noticed = find(mutant)
    assert noticed, f"{mutant} breaks rule {mutant.rule}, and {RUNS_MAX} runs noticed nothing"


@pytest.mark.parametrize("plan", sorted({mutant.plan for mutant in MUTANTS}))
def test_what_is_not_broken_is_not_noticed(plan: str, crash_images: int) -> None:
    control = Mutant(CONTROL.name, "", "", "", plan)
    _, noticed = find(control, control_runs(crash_images))
    assert not noticed, noticed


def test_every_rule_that_a_crash_can_break_has_a_mutant() -> None:
    rules = {mutant.rule for mutant in MUTANTS}
    assert rules >= {f"[{number}]" for number in range(1, 12)}
