"""Each rule of the queues, broken by one line, is noticed by the crash tests (queue_mutants.py)."""

import pytest

from tests.crash.drawn import drawn_mutants
from tests.crash.mutants import CONTROL, QUEUES, Mutant, control_runs, find
from tests.crash.queue_mutants import QUEUE_MUTANTS, RUNS_MAX

pytestmark = pytest.mark.crash

PROMISES = {
    "attempts", "delays", "expiry", "held", "lost", "one place", "order", "redelivered",
    "transient",
}  # fmt: skip


@pytest.mark.parametrize("mutant", drawn_mutants(QUEUE_MUTANTS), ids=repr)
def test_a_broken_rule_is_noticed(mutant: Mutant) -> None:
    _, noticed = find(mutant, RUNS_MAX)
    assert noticed, f"{mutant} breaks {mutant.rule!r}, and {RUNS_MAX} runs noticed nothing"
    assert not noticed.startswith("hangs"), noticed


def test_what_is_not_broken_is_not_noticed(crash_images: int) -> None:
    _, noticed = find(Mutant(CONTROL.name, "", "", "", QUEUES), control_runs(crash_images))
    assert not noticed, noticed


def test_every_promise_has_a_mutant() -> None:
    assert {mutant.rule for mutant in QUEUE_MUTANTS} == PROMISES
