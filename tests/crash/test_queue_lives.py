"""Queues crashed everywhere, and with failing and rotten files: no message is lost or doubled.

How many images: PENSTOCK_CRASH_IMAGES (tests/conftest.py); a share of them. Counts are printed.
"""

import pytest

from tests.crash import queue_faults, queue_lives
from tests.crash.queue_faults import Faults
from tests.crash.queue_lives import RANDOM, SCRIPTS, Life

pytestmark = pytest.mark.crash

SEED = 1
SHARE = 3  # one image of queues for so many of the storage
JOBS_FROM = 50_000  # images from which on two processes share the work
NTH_ALL_FROM = 20_000  # images from which on every operation fails in turn
FAULTS_SHARE = 100  # one life with a fault, and one with rot, for so many


def test_queues_survive_a_crash_at_every_operation(
    crash_images: int, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = crash_images // SHARE
    counts, story = queue_lives.run(wanted, SEED, 2 if wanted >= JOBS_FROM else 1)
    with capsys.disabled():
        print(f"\n{queue_lives.line(counts, SEED)}")
    assert not story, story
    assert counts.images >= wanted
    assert counts.in_recovery > counts.images // 40


@pytest.mark.parametrize("rots", [False, True], ids=["fault", "rot"])
def test_faults_and_rot_lose_nothing_that_can_be_read(
    rots: bool, crash_images: int, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = Faults()
    for seed in range(SEED, SEED + max(crash_images // FAULTS_SHARE, 20)):
        story = queue_faults.attempt(seed, counts, rots=rots)
        assert not story, story
    with capsys.disabled():
        print(f"\n{queue_faults.line(counts)}")
    assert counts.hits > counts.runs // 2


def test_every_operation_of_paging_may_fail_once(
    crash_images: int, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = Faults()
    stories = [
        queue_faults.attempt_nth(*run, counts)
        for run in queue_faults.nth_runs(max(NTH_ALL_FROM // crash_images, 1))
    ]
    with capsys.disabled():
        print(f"\n{queue_faults.line(counts)}")
    assert not any(stories), "\n".join(story for story in stories if story)
    assert counts.hits > counts.runs // 3


@pytest.mark.parametrize("name", [*SCRIPTS, RANDOM])
def test_the_same_seed_gives_the_same_images(name: str) -> None:
    first, _ = queue_lives.run_life(Life(7, name, 0, 4))
    second, _ = queue_lives.run_life(Life(7, name, 0, 4))
    assert vars(first) == vars(second)
    assert first.images >= 4
