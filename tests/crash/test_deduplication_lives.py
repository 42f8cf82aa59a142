"""A broker that drops duplicates crashed anywhere: each key once, and none is lost.

How many images: PENSTOCK_CRASH_IMAGES (tests/conftest.py); a share of them.
"""

import pytest

from penstock.storage.parts.transaction import Transaction
from tests.crash.deduplication_lives import Life, explore, judge
from tests.helpers.builds import pure_only

pytestmark = pytest.mark.crash

SHARE = 40
IMAGES = 12  # of one life


def test_a_crash_anywhere_leaves_each_key_once(crash_images: int) -> None:
    wrong = []
    for seed in range(max(crash_images // SHARE // IMAGES, 3)):
        wrong += explore(seed, IMAGES)[1]
    assert not wrong, "\n".join(wrong[:20])


def test_the_judge_sees_what_is_lost() -> None:
    life = Life(1, 20)
    fs = life.journal.image(life.journal.first).crash("lost", life.rng)
    assert any("D1" in text for text in judge(life.story, fs, life.journal.last))


@pure_only
def test_the_judge_sees_keys_that_were_not_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Transaction, "see", lambda self, window, key, until: window.add(key, until))
    wrong = [text for seed in range(4) for text in explore(seed, IMAGES)[1]]
    assert any("D2" in text for text in wrong)
