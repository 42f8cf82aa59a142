"""Streams of a broker crashed anywhere, judged by what AMQP clients were told and what they read.

How many images: PENSTOCK_CRASH_IMAGES (tests/conftest.py); a share of them.
"""

import pytest

from tests.crash.broker_stream_lives import Life, explore, judge

pytestmark = pytest.mark.crash

SHARE = 40
IMAGES = 12  # of one life


def test_a_crash_anywhere_breaks_no_promise(crash_images: int) -> None:
    wrong = []
    for seed in range(max(crash_images // SHARE // IMAGES, 3)):
        wrong += explore(seed, IMAGES)[1]
    assert not wrong, "\n".join(wrong[:20])


def test_the_judge_sees_what_is_lost() -> None:
    life = Life(1, 12)
    fs = life.journal.image(life.journal.first).crash("lost", life.rng)
    assert any("S1" in text for text in judge(life.story, fs, life.journal.last))


def test_the_judge_sees_a_reader_that_is_too_far() -> None:
    life = Life(2, 30)
    assert life.story.acked
    life.story.acked = []
    fs = life.journal.image(life.journal.last).crash("kept", life.rng)
    assert any("S5" in text for text in judge(life.story, fs, life.journal.last))
