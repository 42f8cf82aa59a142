"""Two kills in the middle of a job from a stream through Spark into a queue, and each row once: the
driver between the sink's commit and Spark's own, and the broker while a batch is committed. `make
crash-spark` kills more, of each kind, from and into everything."""

from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from tests.crash_spark.campaign import Campaign, body_of, facts_of
from tests.crash_spark.kill_points import VARIABLE, Plan, PlannedFailureError, reached

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("quick_spark")]


@pytest.mark.timeout(600)  # some twenty seconds a job where nothing else runs
def test_a_killed_driver_and_a_killed_broker(tmp_path: Path) -> None:
    said: list[str] = []
    campaign = Campaign(tmp_path, "stream", rows=2000, rows_a_batch=250, say=said.append)
    campaign.run(2, ("broker before commit", "driver after commit"))
    assert campaign.kills == ["broker before commit", "driver after commit"]
    assert campaign.jobs >= 2  # one that was killed, one to the end; more if a kill found none
    assert f"'count': {campaign.sent}, 'different': {campaign.sent}" in said[-1]


def test_a_plan_happens_once_at_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reached("in_task")  # no plan, nothing
    plan = Plan(tmp_path / "plan")
    monkeypatch.setenv(VARIABLE, str(plan.path))
    reached("in_task")
    plan.set("in_task", "fail", 3)
    reached("in_task")
    reached("after_write")
    reached("in_task")
    assert not plan.has_happened("in_task")
    with pytest.raises(PlannedFailureError, match="planned at in_task"):
        reached("in_task")
    assert plan.has_happened("in_task")
    reached("in_task")
    plan.clear()
    assert not plan.has_happened("in_task")


def test_a_campaign_sees_what_is_lost_and_what_is_twice() -> None:
    bodies = [body_of(n) for n in range(100)]
    good = facts_of(bodies)
    assert good == facts_of(bodies[::-1])
    assert facts_of(bodies[1:]) != good
    assert facts_of([*bodies, bodies[3]]) != good
    assert facts_of([*bodies[:-1], bodies[3]]) != good
    assert facts_of([*bodies[:-1], bodies[-1] + b"x"]) != good
