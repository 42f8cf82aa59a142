"""Leases and batches of a broker crashed anywhere, judged by what Spark was told.

How many images: PENSTOCK_CRASH_IMAGES (tests/conftest.py); a share of them.
"""

import pytest

from penstock.broker import background_tasks
from penstock.storage.parts import batch_engine
from tests.crash.broker_spark_lives import Life, explore, judge

pytestmark = pytest.mark.crash

SHARE = 40
IMAGES = 12  # of one life


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that crashes fall between them, and streams adopt what is staged for them."""
    monkeypatch.setattr(batch_engine, "ADOPT_BYTES_MIN", 300)
    monkeypatch.setattr(background_tasks, "STEPS_MAX", 1)
    monkeypatch.setattr(background_tasks, "SIZE_FIRST", 2)


def test_a_crash_anywhere_breaks_no_promise(crash_images: int) -> None:
    wrong = []
    for seed in range(max(crash_images // SHARE // IMAGES, 3)):
        wrong += explore(seed, IMAGES)[1]
    assert not wrong, "\n".join(wrong[:20])


def test_the_judge_sees_what_is_lost() -> None:
    life = Life(1, 40)
    assert any(batch.told_at <= life.journal.last for batch in life.story.batches)
    fs = life.journal.image(life.journal.first).crash("lost", life.rng)
    wrong = judge(life.story, fs, life.journal.last)
    for rule in ("L3", "B1"):
        assert any(rule in text for text in wrong), wrong


def test_the_judge_sees_another_order_of_ordinals() -> None:
    for seed in range(1, 20):
        life = Life(seed, 40)
        lease = life.story.leases[-1]
        if len(lease.ids) >= 2 and lease.release_asked_at > life.journal.last:
            break
    first = max([offset for _, _, offset in lease.committed], default=0)
    for ordinal in list(lease.ids):
        if ordinal >= first:
            lease.ids[ordinal] += 1000
    fs = life.journal.image(life.journal.last).crash("kept", life.rng)
    assert any("L1" in text for text in judge(life.story, fs, life.journal.last))
