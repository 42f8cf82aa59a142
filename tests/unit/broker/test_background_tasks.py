"""Background tasks: slices between turns, in turn; sleep, errors, and not ahead of the log."""

import pytest

from penstock.broker.background_tasks import (
    AGAIN,
    ASLEEP,
    DONE,
    ROOM_BYTES,
    SIZE_FIRST,
    SIZE_MIN,
    SLICE_S,
    SLOW_S,
    UNSETTLED_BYTES_MAX,
    UNSETTLED_MAX,
    BackgroundTask,
    Pace,
    SliceSize,
)
from penstock.clock import ManualClock
from tests.helpers.vhost_rig import VHostRig


class Noting(BackgroundTask):
    """Says its name at each step; answers as it is told."""

    def __init__(self, name: str, log: list[str], answers: list[int]) -> None:
        self.name = name
        self.log = log
        self.answers = answers
        self.error: Exception | None = None

    def step(self) -> int:
        self.log.append(self.name)
        if not self.answers:
            raise KeyError(self.name)
        return self.answers.pop(0)

    def failed(self, error: Exception) -> None:
        self.error = error


@pytest.fixture
def rig() -> VHostRig:
    return VHostRig()


def test_they_take_turns(rig: VHostRig) -> None:
    log: list[str] = []
    for name in "ab":
        rig.vhost.background.wake(Noting(name, log, [AGAIN, AGAIN, DONE]))
    rig.turn()
    assert log == ["a", "b", "a", "b", "a", "b"]
    rig.turn()
    assert len(log) == 6


def test_a_turn_has_its_share_only(rig: VHostRig, monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    slow = Noting("a", log, [AGAIN] * 5 + [DONE])
    step = slow.step

    def takes_long() -> int:
        rig.clock.advance(SLICE_S * 0.75)
        return step()

    monkeypatch.setattr(slow, "step", takes_long)
    rig.vhost.background.wake(slow)
    assert rig.vhost.turn()
    assert len(log) == 2  # SLICE_S had passed
    assert rig.vhost.turn()
    assert len(log) == 4
    rig.turn()
    assert len(log) == 6


def test_one_that_sleeps_is_woken(rig: VHostRig) -> None:
    log: list[str] = []
    chore = Noting("a", log, [ASLEEP, DONE])
    rig.vhost.background.wake(chore)
    rig.vhost.background.wake(chore)  # twice is once
    rig.turn()
    assert log == ["a"]
    rig.vhost.background.wake(chore)
    rig.turn()
    assert log == ["a", "a"]


def test_one_that_fails_is_told_and_the_others_go_on(rig: VHostRig) -> None:
    log: list[str] = []
    bad, good = Noting("bad", log, []), Noting("good", log, [DONE])
    rig.vhost.background.wake(bad)
    rig.vhost.background.wake(good)
    rig.turn()
    assert log == ["bad", "good"]
    assert isinstance(bad.error, KeyError)


def test_an_error_of_the_engine_goes_up(rig: VHostRig) -> None:
    bad = Noting("bad", [], [])
    rig.vhost.background.wake(bad)
    rig.vhost.engine.journal.failed = OSError("the disk is gone")
    with pytest.raises(KeyError):
        rig.vhost.background.run()
    assert bad.error is None


def test_a_wish_of_before_the_start_is_heard(rig: VHostRig) -> None:
    rig.vhost.dispatch.schedule()
    woken: list[int] = []
    rig.vhost.wake = lambda: woken.append(1)
    assert woken == [1]


def test_nobody_runs_ahead_of_the_log(rig: VHostRig) -> None:
    queue = rig.queue()
    woken: list[int] = []
    pace = Pace(rig.vhost.dispatch, rig.vhost.mode)

    def wake() -> None:
        woken.append(1)

    for size in (UNSETTLED_BYTES_MAX // 2, UNSETTLED_BYTES_MAX // 2):
        assert not pace.is_ahead(wake)
        pace.logged(queue.amq.publish(b"", b"x", rig.vhost.mode), size)
    assert pace.is_ahead(wake)
    assert pace.is_ahead(wake)
    rig.answered(rig.vhost.engine.log.last_lsn)
    assert woken == [1]
    assert not pace.is_ahead(wake)
    for _ in range(UNSETTLED_MAX):
        assert not pace.is_ahead(wake)
        pace.logged(queue.amq.publish(b"", b"x", rig.vhost.mode), 0)
    assert pace.is_ahead(wake)


def test_nobody_waits_for_a_segment_of_the_log(rig: VHostRig) -> None:
    log = rig.vhost.engine.log
    woken: list[int] = []
    pace = Pace(rig.vhost.dispatch, rig.vhost.mode)

    def wake() -> None:
        woken.append(1)

    assert log.has_room(ROOM_BYTES)  # nobody prepares one: who needs one makes it
    log.prepare_ahead()
    assert log.has_room(1000)
    assert not log.has_room(ROOM_BYTES)
    assert pace.is_ahead(wake)
    rig.vhost.engine.poll(wait=True)
    rig.vhost.dispatch.run()
    assert woken == [1]
    assert log.has_room(ROOM_BYTES)
    assert not pace.is_ahead(wake)


def test_a_slice_is_as_large_as_it_is_quick() -> None:
    clock = ManualClock()
    size = SliceSize(clock, 500)
    assert size.begin() == SIZE_FIRST
    size.end()
    assert size.begin() == 2 * SIZE_FIRST
    for _ in range(5):
        size.begin()
        size.end()
    assert size.n == 500
    for _ in range(10):
        size.begin()
        clock.advance(2 * SLOW_S)
        size.end()
    assert size.n == SIZE_MIN
