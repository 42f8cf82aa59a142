"""factory: a queue is declared whole, found whole, and known to people by one name."""

import pytest

from penstock.errors import OptionError, UnknownQueueError
from penstock.queues.backing_queue import BackingQueue
from penstock.queues.priority_queue import (
    PRIORITIES_MAX,
    PriorityQueue,
    base_names,
    open_backing,
    part_names,
    priorities_of,
    store_arguments,
    stored,
)
from penstock.queues.variable_queue import VariableQueue
from penstock.storage.files.durability import DISK, NONE
from tests.contracts.backing_queue import BackingQueueContract
from tests.helpers.engine_rig import STORED, EngineRig
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.queue_world import Opener

STOPS = ["restart", "lost", "kept", "killed"]


def stop(rig: EngineRig, how: str) -> None:
    if how == "restart":
        rig.restart()
    else:
        rig.crash(how)


def limited(max_bytes: int | None, policy: str = "ratio") -> Opener:
    """Opens queues with priorities 0 to 3 and that limit."""

    def opens(rig: EngineRig, name: bytes, is_durable: bool) -> BackingQueue:
        q = open_backing(rig.engine, name, priorities=3, is_durable=is_durable, policy=policy)
        if max_bytes is not None:
            q.set_limits(max_bytes, max_bytes // 2)
        return q

    return opens


@pytest.mark.parametrize(
    ("max_bytes", "policy", "body_bytes"),
    [
        (None, "ratio", 0),
        (0, "ratio", STORED),
        (0, "eager", 0),
        (2000, "ratio", 0),
        (2000, "eager", STORED),
    ],
)
class TestPriorityQueueOfVariableQueues(BackingQueueContract):
    """The whole contract over real parts, wherever their messages are."""

    @pytest.fixture
    def rig(self) -> EngineRig:
        return EngineRig()

    @pytest.fixture
    def opens(self, max_bytes: int | None, policy: str) -> Opener:
        return limited(max_bytes, policy)


# ---- declaring and finding ---------------------------------------------------------------------


@pytest.mark.parametrize("how", STOPS)
def test_a_plain_queue_has_one_part_of_its_own_name(how: str) -> None:
    rig = EngineRig()
    q = open_backing(rig.engine, b"jobs", arguments=b"args", flags=3)
    assert isinstance(q, VariableQueue)
    assert q.index().name == b"jobs"
    q.publish(b"", b"x", DISK)
    rig.engine.sync()
    stop(rig, how)
    assert priorities_of(rig.engine, b"jobs") == 0
    assert stored(rig.engine, b"jobs") == (b"args", 3)
    again = open_backing(rig.engine, b"jobs", arguments=b"others", flags=1)
    assert again.len() == 1
    assert stored(rig.engine, b"jobs") == (b"args", 3)


@pytest.mark.parametrize("how", STOPS)
@pytest.mark.parametrize("priorities", [1, 10, PRIORITIES_MAX])
def test_all_parts_of_a_queue_are_found_as_one(how: str, priorities: int) -> None:
    rig = EngineRig()
    before = rig.engine.log.last_lsn
    q = open_backing(rig.engine, b"jobs", arguments=b"args", flags=3, priorities=priorities)
    declared = rig.engine.log.last_lsn - before
    assert isinstance(q, PriorityQueue)
    assert declared == 2, "one record, and a mark of the first part: the others are not open yet"
    assert q.index(priorities).name == b"jobs\0%d" % priorities
    for priority in (0, priorities, 0):
        q.publish(b"", b"%d" % priority, DISK, priority=priority)
    rig.engine.sync()
    stop(rig, how)
    assert priorities_of(rig.engine, b"jobs") == priorities
    assert stored(rig.engine, b"jobs") == (b"args", 3)
    before = len(rig.engine.state.queues)
    again = open_backing(rig.engine, b"jobs", priorities=priorities)
    assert len(rig.engine.state.queues) == before == priorities + 1
    assert isinstance(again, PriorityQueue)
    again.check()
    rig.engine.sync()
    found = [d.message.body for d in (again.fetch(), again.fetch(), again.fetch()) if d]
    assert found == [b"%d" % priorities, b"0", b"0"]


def test_a_queue_is_declared_whole_or_not_at_all_wherever_a_crash_comes() -> None:
    seen = set()
    for seed in range(60):
        rig = EngineRig(FaultyFileSystem(seed=seed))
        rig.seed = seed
        open_backing(rig.engine, b"jobs", priorities=5)
        rig.engine.flush()
        rig.crash("torn" if seed % 2 else "lost")
        found = priorities_of(rig.engine, b"jobs")
        assert found in (None, 5)
        assert len(rig.engine.state.queues) == (0 if found is None else 6)
        open_backing(rig.engine, b"jobs", priorities=5)
        assert priorities_of(rig.engine, b"jobs") == 5
        seen.add(found)
    assert seen == {None, 5}


@pytest.mark.parametrize(("has", "wanted"), [(0, 1), (3, 0), (3, 2), (3, 4), (9, 10)])
def test_priorities_of_a_queue_cannot_be_changed(has: int, wanted: int) -> None:
    rig = EngineRig()
    open_backing(rig.engine, b"jobs", priorities=has)
    queues = len(rig.engine.state.queues)
    with pytest.raises(OptionError, match=f"given {wanted}, expected {has}, as queue 'jobs' has"):
        open_backing(rig.engine, b"jobs", priorities=wanted)
    assert len(rig.engine.state.queues) == queues


@pytest.mark.parametrize("priorities", [-1, 256, 1000])
def test_priorities_out_of_range_are_refused(priorities: int) -> None:
    rig = EngineRig()
    with pytest.raises(OptionError, match=r"expected 0 \(none\) to 255"):
        open_backing(rig.engine, b"jobs", priorities=priorities)
    assert not rig.engine.state.queues


def test_a_queue_that_is_deleted_may_have_other_priorities_next_time() -> None:
    rig = EngineRig()
    q = open_backing(rig.engine, b"jobs", priorities=3)
    q.publish(b"", b"x", DISK, priority=2)
    q.delete_and_terminate(DISK)
    assert priorities_of(rig.engine, b"jobs") is None
    assert base_names(rig.engine) == []
    assert open_backing(rig.engine, b"jobs", priorities=1).len() == 0


@pytest.mark.parametrize("priorities", [0, 3])
def test_queues_that_are_not_durable_are_always_new(priorities: int) -> None:
    rig = EngineRig()
    before = rig.engine.log.last_lsn
    q = open_backing(rig.engine, b"gone", priorities=priorities, is_durable=False)
    q.publish(b"", b"x", DISK, priority=2)
    assert rig.engine.log.last_lsn == before
    assert base_names(rig.engine) == [b"gone"]
    assert priorities_of(rig.engine, b"gone") is None
    q.delete_and_terminate(NONE)
    assert rig.engine.log.last_lsn == before
    assert base_names(rig.engine) == []
    open_backing(rig.engine, b"kept", priorities=priorities)
    with pytest.raises(OptionError, match="as queue 'kept' is"):
        open_backing(rig.engine, b"kept", priorities=priorities, is_durable=False)


# ---- names and arguments -----------------------------------------------------------------------


def test_people_see_one_name_for_all_parts() -> None:
    rig = EngineRig()
    open_backing(rig.engine, b"b", priorities=3)
    open_backing(rig.engine, b"a")
    open_backing(rig.engine, b"b\0d1.77")
    open_backing(rig.engine, b"c\0d1.77")
    assert base_names(rig.engine) == [b"b", b"a", b"c"]
    assert priorities_of(rig.engine, b"b") == 3
    assert priorities_of(rig.engine, b"c") is None
    assert part_names(b"b", 0) == [b"b"]
    assert part_names(b"b", 2) == [b"b\x000", b"b\x001", b"b\x002"]


@pytest.mark.parametrize("how", STOPS)
@pytest.mark.parametrize("priorities", [0, 3])
def test_other_arguments_are_stored_with_the_queue(how: str, priorities: int) -> None:
    rig = EngineRig()
    q = open_backing(rig.engine, b"jobs", arguments=b"old", flags=5, priorities=priorities)
    q.publish(b"", b"x", DISK, priority=3)
    lsn = store_arguments(rig.engine, b"jobs", b"new")
    rig.engine.wait(lsn, DISK)
    stop(rig, how)
    assert stored(rig.engine, b"jobs") == (b"new", 5)
    assert open_backing(rig.engine, b"jobs", priorities=priorities).len() == 1


def test_arguments_of_no_queue_are_an_error() -> None:
    rig = EngineRig()
    with pytest.raises(UnknownQueueError, match="jobs"):
        stored(rig.engine, b"jobs")
    with pytest.raises(UnknownQueueError, match="jobs"):
        store_arguments(rig.engine, b"jobs", b"")
