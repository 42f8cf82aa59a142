"""StorageEngine after a failure: nothing is confirmed any more, and nothing confirmed is lost."""

import errno
from collections.abc import Callable

import pytest

from penstock.errors import StoppedError, SyncFailedError
from penstock.message import Entry, QueuedMessage
from penstock.storage.files.durability import DISK, INTERVAL, OS
from penstock.storage.index.routing_table import set_parameter
from tests.helpers.engine_rig import PATH, STORED, EngineRig

BIG = b"B" * STORED


def calls(rig: EngineRig, queue_name: bytes = b"q") -> list[Callable[[], object]]:
    engine = rig.engine
    queue = engine.state.queues[engine.state.routing.queues[queue_name].number]
    entry = Entry(0, QueuedMessage(1, b"", b"x", 1, 0))
    return [
        lambda: engine.publish([queue], b"", b"x", DISK),
        lambda: engine.publish([queue], b"", BIG, DISK),
        lambda: engine.publish_transient([queue], b"", b"x"),
        lambda: engine.dequeue(queue, [entry], OS),
        lambda: engine.move(queue, entry, [queue], b"", DISK),
        lambda: engine.purge(queue, [], DISK),
        lambda: engine.requeue(queue, [(0, 1)], DISK),
        lambda: engine.mark(queue, 5, DISK),
        lambda: engine.declare_queue(b"new"),
        lambda: engine.delete_queue(queue),
        lambda: engine.apply_topology(set_parameter(b"a", b"b", b"c")),
        lambda: engine.begin(),
        lambda: engine.flush(),
        lambda: engine.wait(1, DISK),
        lambda: engine.sync(),
        lambda: engine.tick(),
        lambda: engine.checkpoint(),
    ]


def assert_stopped(rig: EngineRig) -> None:
    for call in calls(rig):
        with pytest.raises(StoppedError):
            call()


@pytest.mark.parametrize("kind", ["sync", "pwrite"])
def test_after_a_failed_sync_or_write_of_the_log_nothing_is_confirmed_any_more(kind: str) -> None:
    rig = EngineRig()
    queue = rig.queue()
    rig.put(queue, b"x")
    before = [rig.engine.log.settled(mode) for mode in (OS, INTERVAL, DISK)]
    rig.fs.fail(errno.EIO, kinds={kind}, path="/wal/")
    rig.engine.publish([queue], b"", b"y", DISK)
    with pytest.raises((SyncFailedError, StoppedError)):
        rig.engine.sync()
    after = [rig.engine.log.settled(mode) for mode in (OS, INTERVAL, DISK)]
    if kind == "pwrite":
        assert after == before
    assert rig.engine.log.settled(DISK) == before[2]
    assert rig.engine.failed is not None
    assert len(rig.told("stopped")) == 1
    assert_stopped(rig)
    rig.engine.close()
    again = EngineRig(rig.fs.crash("lost"))
    assert list(again.bodies(again.queue()).values()) == [b"x"]


def test_a_failure_that_a_tick_meets_stops_the_engine_too() -> None:
    rig = EngineRig()
    queue = rig.queue()
    rig.fs.fail(errno.EIO, kinds={"pwrite"}, path="/wal/")
    rig.engine.publish([queue], b"", b"y", DISK)
    with pytest.raises(SyncFailedError):
        rig.engine.tick()
    assert rig.told("stopped")
    assert_stopped(rig)
    rig.engine.close()


def test_a_failed_sync_of_the_store_stops_all() -> None:
    rig = EngineRig()
    queue = rig.queue()
    rig.fs.fail(errno.EIO, kinds={"sync"}, path="msg_store_persistent")
    rig.engine.publish([queue], b"", BIG, DISK)
    lsn = rig.engine.log.last_lsn
    with pytest.raises((SyncFailedError, StoppedError)):
        rig.engine.wait(lsn, DISK)
    assert rig.engine.log.settled(DISK) < lsn
    assert_stopped(rig)


@pytest.mark.parametrize("path", ["/queues/", "checkpoint-", "CURRENT"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_failed_sync_of_a_checkpoint_stops_all_and_loses_nothing(path: str, code: int) -> None:
    rig = EngineRig()
    rig.put(rig.queue(), b"x")
    rig.fs.fail(code, kinds={"sync"}, path=path)
    with pytest.raises(StoppedError):
        rig.engine.checkpoint()
    assert_stopped(rig)
    rig.engine.close()
    for mode in ("lost", "kept"):
        again = EngineRig(rig.fs.crash(mode))
        assert list(again.bodies(again.queue()).values()) == [b"x"]


def test_a_failed_sync_of_a_file_of_before_this_start_stops_all() -> None:
    rig = EngineRig()
    rig.put(rig.queue(), b"x")
    rig.engine.checkpoint()
    rig.restart()
    rig.put(rig.queue(), b"y")
    rig.fs.fail(errno.EIO, kinds={"sync"}, path=".qi")
    with pytest.raises(StoppedError, match=r"\.qi"):
        rig.engine.checkpoint()
    assert_stopped(rig)
    again = EngineRig(rig.fs.crash("lost"))
    assert list(again.bodies(again.queue()).values()) == [b"x", b"y"]


def test_a_failed_sync_of_a_directory_after_the_rename_stops_all() -> None:
    for code in (errno.EIO, errno.ENOSPC):
        for nth in (1, 2):
            rig = EngineRig()
            rig.put(rig.queue(), b"x")
            rig.fs.fail(code, kinds={"sync_dir"}, path=lambda path: path == PATH, nth=nth)
            with pytest.raises(StoppedError):
                rig.engine.checkpoint()
            again = EngineRig(rig.fs.crash("kept"))
            assert list(again.bodies(again.queue()).values()) == [b"x"]


def test_a_log_that_fails_while_a_checkpoint_is_synced_stops_it_before_it_is_current() -> None:
    rig = EngineRig()
    queue = rig.queue()
    rig.put(queue, b"x")
    number = rig.engine.checkpoints.number
    rig.engine.upkeep.begin_checkpoint()
    rig.engine.publish([queue], b"", b"y", DISK)
    rig.fs.fail(errno.EIO, kinds={"sync"}, path="/wal/")
    with pytest.raises(StoppedError):
        rig.finish_checkpoint()
    rig.engine.poll(wait=True)
    assert rig.engine.checkpoints.number == number
    rig.engine.close()


def test_a_closed_engine_is_stopped_and_may_be_closed_again() -> None:
    rig = EngineRig()
    rig.queue()
    rig.engine.close()
    rig.engine.close()
    assert_stopped(rig)


def test_close_after_a_failure_writes_nothing_and_gives_the_lock_back() -> None:
    rig = EngineRig()
    rig.put(rig.queue(), b"x")
    rig.engine.journal.stop(OSError(errno.EIO, "somewhere else"))
    operations = rig.fs.operations
    rig.engine.close()
    assert rig.fs.operations <= operations + 1, "the lock file alone"
    EngineRig(rig.fs)
