"""StorageEngine: what is done to several queues at once is one record, whole after a crash."""

from collections.abc import Callable

import pytest

from penstock.errors import DiskFullError, StoppedError, UnknownQueueError
from penstock.storage.engine import StorageEngine
from penstock.storage.files.durability import DISK, OS
from penstock.storage.index.queue_index import QueueIndex
from penstock.storage.journal import journal
from penstock.storage.journal.checkpoint import IDLE
from penstock.storage.log import record
from tests.helpers.builds import pure_only
from tests.helpers.engine_rig import STORED, EngineRig
from tests.helpers.faulty_filesystem import FaultyFileSystem

NAMES = [b"q\x00%d" % priority for priority in range(4)]
STOPS = ["restart", "lost", "kept", "killed"]
BIG = b"B" * STORED


def declare(rig: EngineRig) -> list[QueueIndex]:
    queues = rig.engine.declare_queues([(name, b"args of " + name, 1) for name in NAMES])
    rig.engine.sync()
    return queues


def stop(rig: EngineRig, how: str) -> StorageEngine:
    return rig.restart() if how == "restart" else rig.crash(how)


def kinds(rig: EngineRig, act: Callable[[], object]) -> list[int]:
    """The types of the records that were appended by act."""
    found: list[int] = []
    log = rig.engine.log
    original = log.append

    def append(
        kind: int, flags: int, count: int, data: bytes, mode: int, names_store: bool = False
    ) -> int:
        found.append(kind)
        return original(kind, flags, count, data, mode, names_store)

    log.append = append  # type: ignore[method-assign]
    try:
        act()
    finally:
        log.append = original  # type: ignore[method-assign]
    return found


def is_pure() -> bool:
    return hasattr(StorageEngine.flush, "__code__")


# ---- declared together -------------------------------------------------------------------------


@pytest.mark.parametrize("how", STOPS)
def test_queues_declared_together_are_there_with_arguments_and_flags(how: str) -> None:
    rig = EngineRig()
    queues = declare(rig)
    assert [queue.name for queue in queues] == NAMES
    numbers = [queue.number for queue in queues]
    assert numbers == list(range(numbers[0], numbers[0] + 4))
    engine = stop(rig, how)
    for name, number in zip(NAMES, numbers, strict=True):
        known = engine.state.routing.queues[name]
        assert (known.number, known.flags, known.arguments) == (number, 1, b"args of " + name)
        assert engine.queue(name).number == number


def test_queues_declared_together_are_all_there_or_none_wherever_a_crash_comes() -> None:
    seen = set()
    for seed in range(40):
        for mode in ("lost", "kept", "torn"):
            rig = EngineRig(FaultyFileSystem(seed=seed))
            rig.seed = seed
            rig.put(rig.queue(b"first"), b"x")
            rig.engine.declare_queues([(name, b"", 0) for name in NAMES])
            rig.engine.flush()  # written, not synced
            rig.crash(mode)
            there = [name in rig.engine.state.routing.queues for name in NAMES]
            assert all(there) or not any(there)
            assert rig.bodies(rig.engine.queue(b"first")) == {0: b"x"}
            seen.add(there[0])
    assert seen == {True, False}


@pytest.mark.parametrize(
    "names", [[b"new", b"old"], [b"new", b"new"], [b"new", b"n" * 70_000]], ids=["old", "2", "long"]
)
def test_a_declare_that_cannot_be_whole_declares_nothing(names: list[bytes]) -> None:
    rig = EngineRig()
    rig.declare(b"old")
    before = rig.engine.log.last_lsn
    with pytest.raises(ValueError, match=r"exists|twice|at most 65535"):
        rig.engine.declare_queues([(name, b"", 0) for name in names])
    assert rig.engine.log.last_lsn == before
    assert list(rig.engine.state.routing.queues) == [b"old"]
    assert rig.engine.declare_queues([(b"new", b"", 0)])[0].name == b"new"


# ---- purged and deleted together ---------------------------------------------------------------


@pytest.mark.parametrize("how", STOPS)
@pytest.mark.parametrize("sections", [False, True])
@pytest.mark.parametrize("checkpointed", [False, True])
def test_queues_are_purged_together_but_for_what_is_kept(
    how: str, sections: bool, checkpointed: bool
) -> None:
    rig = EngineRig(sections=sections)
    queues = declare(rig)
    for queue in queues:
        rig.put(queue, b"a", BIG, b"c", BIG, b"e", b"f")
    if checkpointed:
        rig.engine.checkpoint()
    before = rig.engine.log.last_lsn
    kept = [(queue, rig.entries(queue, 1, 4)) for queue in queues[:3]]
    lsn, died = rig.engine.purge_queues(kept, DISK)
    assert (lsn, died) == (before + 1, 12)
    rig.engine.wait(lsn, DISK)
    stop(rig, how)
    for name in NAMES[:3]:
        assert rig.bodies(rig.engine.queue(name)) == {1: BIG, 4: b"e"}
    assert len(rig.bodies(rig.engine.queue(NAMES[3]))) == 6
    rig.settle()
    rig.stop()


def test_a_purge_of_several_is_whole_wherever_a_crash_comes() -> None:
    seen = set()
    for seed in range(40):
        rig = EngineRig(FaultyFileSystem(seed=seed))
        rig.seed = seed
        queues = declare(rig)
        for queue in queues:
            rig.put(queue, b"a", BIG, b"c")
        rig.engine.purge_queues([(queue, []) for queue in queues], OS)
        rig.engine.flush()
        rig.crash("torn" if seed % 2 else "lost")
        counts = {rig.engine.queue(name).count for name in NAMES}
        assert counts in ({0}, {3})
        seen |= counts
    assert seen == {0, 3}


@pytest.mark.parametrize("how", STOPS)
def test_queues_are_deleted_together(how: str) -> None:
    rig = EngineRig()
    queues = declare(rig)
    for queue in queues:
        rig.put(queue, b"a", BIG)
    before = rig.engine.log.last_lsn
    lsn = rig.engine.delete_queues(queues, DISK)
    assert lsn == before + 1
    rig.engine.wait(lsn, DISK)
    engine = stop(rig, how)
    assert not engine.state.routing.queues
    assert not engine.state.queues
    rig.settle()
    rig.stop()


def test_queues_that_are_not_durable_are_deleted_without_a_record() -> None:
    rig = EngineRig()
    queues = [rig.engine.declare_queue(name, is_durable=False) for name in NAMES]
    before = rig.engine.log.last_lsn
    assert rig.engine.delete_queues(queues) == 0
    assert rig.engine.log.last_lsn == before
    assert all(queue.is_deleted for queue in queues)


def test_deleting_what_is_deleted_deletes_nothing_else() -> None:
    rig = EngineRig()
    queues = declare(rig)
    rig.engine.delete_queue(queues[2])
    with pytest.raises(UnknownQueueError, match="deleted"):
        rig.engine.delete_queues(queues)
    assert not queues[0].is_deleted


def test_what_is_logged_before_it_is_done_does_not_happen_on_a_full_disk() -> None:
    rig = EngineRig()
    queues = declare(rig)
    rig.fs.capacity = rig.fs.used_bytes()

    def act() -> None:
        for n in range(1000):
            rig.engine.declare_queues([(b"x%d.%d" % (n, i), b"", 0) for i in range(3)])
            rig.engine.flush()

    with pytest.raises(DiskFullError):  # the log has what it prepared, then no more
        act()
    names = list(rig.engine.state.routing.queues)
    assert len(names) == len(rig.engine.state.queues)
    assert (len(names) - len(queues)) % 3 == 0
    rig.engine.journal.check()
    rig.fs.capacity = None
    rig.engine.sync()
    rig.crash("lost")
    assert list(rig.engine.state.routing.queues) == names


# ---- gathered into one record ------------------------------------------------------------------


@pytest.mark.skipif(not is_pure(), reason="a compiled log cannot be listened to")
def test_what_is_gathered_is_one_record_of_its_own_operations() -> None:
    rig = EngineRig()
    queues = declare(rig)
    for queue in queues:
        rig.put(queue, b"a", b"b", b"c")

    def act() -> None:
        with rig.engine.journal.one_record(OS):
            rig.ack(queues[0], 0)
            rig.engine.requeue(queues[1], [(1, 2)], OS)
            rig.engine.mark(queues[2], 64, OS)
            rig.engine.purge(queues[3], [], OS)

    assert kinds(rig, act) == [record.TX]
    assert kinds(rig, lambda: rig.engine.purge(queues[0], [], OS)) == [record.PURGE]
    assert kinds(rig, lambda: rig.engine.delete_queues(queues[:1])) == [record.DELETE_QUEUE]


@pytest.mark.parametrize("how", STOPS)
@pytest.mark.parametrize("size", [1, STORED])
def test_what_is_gathered_survives_whole(how: str, size: int) -> None:
    rig = EngineRig()
    queues = declare(rig)
    for queue in queues:
        rig.put(queue, b"a" * size, b"b" * size, b"c" * size)
    before = rig.engine.log.last_lsn
    with rig.engine.journal.one_record(OS) as one:
        assert rig.ack(queues[0], 0) == before + 1
        rig.engine.requeue(queues[1], [(1, 2)], DISK)
        rig.engine.mark(queues[2], 64, OS)
        with rig.engine.journal.one_record(OS) as inner:
            rig.engine.purge(queues[2], rig.entries(queues[2], 1), OS)
            rig.engine.delete_queue(queues[3], OS)
        assert inner.lsn == before + 1
    assert one.lsn == before + 1 == rig.engine.log.last_lsn
    rig.engine.flush()
    rig.engine.poll(wait=True)
    assert rig.engine.log.settled(DISK) >= one.lsn, "one of them wanted a sync"
    engine = stop(rig, how)
    assert sorted(rig.bodies(engine.queue(NAMES[0]))) == [1, 2]
    assert engine.queue(NAMES[1]).attempts == {1: 2}
    assert sorted(rig.bodies(engine.queue(NAMES[2]))) == [1]
    assert engine.queue(NAMES[2]).mark >= 3
    assert NAMES[3] not in engine.state.routing.queues
    rig.settle()
    rig.stop()


def test_declaring_purging_and_deleting_no_queue_writes_nothing() -> None:
    rig = EngineRig()
    before = rig.engine.log.last_lsn
    assert rig.engine.declare_queues([]) == []
    assert rig.engine.purge_queues([], OS) == (before, 0)
    assert rig.engine.delete_queues([]) == 0
    with rig.engine.journal.one_record(OS) as one:
        pass
    assert one.lsn == 0
    assert rig.engine.log.last_lsn == before


def test_no_checkpoint_is_cut_while_a_record_is_gathered() -> None:
    rig = EngineRig()
    queues = declare(rig)
    rig.put(queues[0], b"a", b"b")
    with rig.engine.journal.one_record(OS):
        rig.engine.purge(queues[0], [], OS)
        rig.engine.upkeep.begin_checkpoint()
        assert rig.engine.checkpoints.phase == IDLE
    assert rig.engine.checkpoint()
    rig.crash("lost")
    assert rig.engine.queue(NAMES[0]).count == 0


def test_an_exception_inside_leaves_what_was_done_and_logs_it() -> None:
    rig = EngineRig()
    queues = declare(rig)
    for queue in queues:
        rig.put(queue, b"a")

    def act() -> None:
        with rig.engine.journal.one_record(DISK):
            rig.engine.purge(queues[0], [], OS)
            rig.engine.entry(queues[1], 99)

    with pytest.raises(KeyError):
        act()
    assert rig.engine.journal.gathering is None
    rig.engine.sync()
    rig.crash("lost")
    assert [rig.engine.queue(name).count for name in NAMES] == [0, 1, 1, 1]


def test_a_publish_in_the_middle_is_our_mistake_and_stops_the_engine() -> None:
    rig = EngineRig()
    queues = declare(rig)
    rig.put(queues[0], b"a")

    def act() -> None:
        with rig.engine.journal.one_record(DISK):
            rig.engine.purge(queues[0], [], OS)
            rig.engine.publish([queues[1]], b"", b"x", OS)

    with pytest.raises(AssertionError):
        act()
    with pytest.raises(StoppedError):
        rig.engine.sync()


@pure_only  # a constant is replaced
def test_a_log_that_cannot_take_the_record_stops_the_engine_and_recovery_knows_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = EngineRig()
    queues = declare(rig)
    for queue in queues:
        rig.put(queue, b"a")
    rig.fs.capacity = rig.fs.used_bytes()

    def fill() -> None:
        for _ in range(1000):
            rig.engine.mark(queues[0], 1, OS)
            rig.engine.flush()

    with pytest.raises(DiskFullError):
        fill()

    def act() -> None:
        with rig.engine.journal.one_record(DISK):
            for queue in queues:
                rig.engine.purge(queue, [], OS)

    with pytest.raises(DiskFullError):
        act()
    rig.engine.journal.check()
    assert [rig.engine.queue(name).count for name in NAMES] == [1, 1, 1, 1], "nothing has happened"
    monkeypatch.setattr(journal, "GROUP_BYTES", 0)  # the record is larger than there is room for
    with pytest.raises(DiskFullError):
        act()
    with pytest.raises(StoppedError):
        rig.engine.journal.check()
    rig.fs.capacity = None
    rig.crash("kept")
    assert [rig.engine.queue(name).count for name in NAMES] == [1, 1, 1, 1]
