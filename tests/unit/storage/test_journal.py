"""Journal: append, apply, stop when that fails; what is refused while the disk is full."""

import errno
from collections.abc import Callable

import pytest

from penstock.errors import DiskFullError, StoppedError
from penstock.message import QueuedMessage
from penstock.storage.files.durability import DISK, OS
from penstock.storage.journal.record_types import (
    Append,
    BatchChange,
    Dequeue,
    LogOperation,
    Mark,
    Publish,
    Purge,
    Requeue,
)
from penstock.storage.log import record
from penstock.storage.log.record import StreamData
from penstock.storage.pages import batches
from penstock.storage.pages.batches import BatchRecord
from tests.helpers.engine_rig import EngineRig

PAGE = 4096


def test_several_operations_are_one_record_and_all_are_applied() -> None:
    rig = EngineRig()
    a, b = rig.declare(b"a", b"b")
    rig.put(a, b"0", b"1")
    before = rig.engine.log.last_lsn
    operations: list[LogOperation] = [
        Requeue(a.number, [(1, 3)]), Mark(a.number, 2), Purge(b.number, 5, []),
    ]  # fmt: skip
    lsn = rig.engine.journal.commit(operations, DISK)
    assert lsn == before + 1 == rig.engine.log.last_lsn
    assert (a.attempts, a.mark) == ({1: 3}, 2)
    rig.engine.sync()
    rig.crash("lost")
    assert rig.engine.queue(b"a").attempts == {1: 3}


def test_nothing_to_commit_writes_nothing() -> None:
    rig = EngineRig()
    before = rig.engine.log.last_lsn
    assert rig.engine.journal.commit([], DISK) == before == rig.engine.log.last_lsn


def broken(rig: EngineRig) -> list[LogOperation]:
    """Operations that the log takes, and that cannot follow what is there."""
    (stream,) = rig.engine.streams.declare([(b"s", b"", 0)], page_bytes=PAGE)
    return [
        Append(StreamData(stream.number, 7, 1, b"", b"x")),
        BatchChange(BatchRecord("a query", 3, page=1), batches.PROGRESS),
    ]


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("is_gathered", [False, True])
def test_what_cannot_be_applied_stops_the_engine(which: int, is_gathered: bool) -> None:
    rig = EngineRig()
    queue = rig.queue()
    rig.put(queue, b"x")
    operation = broken(rig)[which]
    rig.engine.sync()
    journal = rig.engine.journal

    def commit() -> None:
        if is_gathered:
            with journal.one_record(OS):
                journal.commit([operation], OS)
        else:
            journal.commit([operation], OS)

    with pytest.raises(ValueError, match=r"offset|batch"):
        commit()
    assert isinstance(rig.engine.failed, ValueError)
    assert len(rig.told("stopped")) == 1
    with pytest.raises(StoppedError):
        rig.engine.requeue(queue, [(0, 1)], OS)
    with pytest.raises(StoppedError):
        rig.engine.sync()
    rig.crash("killed")  # the record never reached a file: recovery goes on from before it
    assert rig.bodies(rig.queue()) == {0: b"x"}


def test_of_a_change_that_is_refused_by_the_log_nothing_is_applied() -> None:
    rig = EngineRig()
    queue = rig.queue()
    rig.put(queue, b"x")
    too_many = Requeue(queue.number, [(0, 1)] * (record.COUNT_MAX + 1))
    before = rig.engine.log.last_lsn
    with pytest.raises(ValueError, match="entries"):
        rig.engine.journal.commit([Mark(queue.number, 4), too_many], OS)
    assert (queue.mark, queue.attempts, rig.engine.log.last_lsn) == (0, {}, before)
    assert rig.engine.failed is None


def test_a_transaction_of_one_or_no_operation_has_a_record_and_an_lsn_of_its_own() -> None:
    rig = EngineRig()
    queue = rig.queue()
    for n in range(2):
        before = rig.engine.log.last_lsn
        transaction = rig.engine.begin()
        if n:
            transaction.publish([queue], b"", b"x")
        assert transaction.commit(DISK) == before + 1
        rig.engine.wait(before + 1, DISK)
    assert rig.bodies(queue) == {0: b"x"}


def test_parts_come_to_what_one_record_comes_to() -> None:
    found: list[dict[int, bytes]] = []
    for is_large in (False, True):
        rig = EngineRig(tx_part_bytes=1)
        queue = rig.queue()
        rig.put(queue, b"old", b"gone")
        (gone,) = rig.entries(queue, 1)
        first = 0 if is_large else queue.next_seq
        operations: list[LogOperation] = []
        for n in range(3):
            id = rig.engine.placement.new_message(b"", b"").id
            message = QueuedMessage(id, b"h", b"%d" % n, 1, 0)
            operations.append(Publish(message, [(queue.number, first + n)]))
        operations.append(Dequeue(queue.number, queue.runs([gone]), [], [gone]))
        journal, before = rig.engine.journal, rig.engine.log.last_lsn
        if is_large:
            seqs = {queue.number: queue.next_seq}
            lsn = journal.commit_parts(operations, DISK, seqs, names_store=False)
        else:
            lsn = journal.commit(operations, DISK)
        assert lsn == before + (5 if is_large else 1)
        assert not journal.is_committing
        live = rig.bodies(queue)
        rig.engine.sync()
        rig.crash("lost")
        assert rig.bodies(rig.queue()) == live
        found.append(live)
    assert found[0] == found[1] == {0: b"old", 2: b"0", 3: b"1", 4: b"2"}


def test_a_full_disk_refuses_publishers_and_says_so_once() -> None:
    rig = EngineRig()
    queue = rig.queue()
    rig.put(queue, b"x")
    journal = rig.engine.journal
    error = journal.disk_full(OSError(errno.ENOSPC, "no room"), 10)
    assert isinstance(error, DiskFullError)
    assert journal.disk_full(OSError(errno.EDQUOT, "no room"), 10) is not error
    other = OSError(errno.EIO, "broken")
    assert journal.disk_full(other, 10) is other
    assert len(rig.told("disk_full")) == 1
    calls: list[Callable[[], object]] = [
        lambda: rig.engine.publish([queue], b"", b"y", OS), rig.engine.journal.check_publish,
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(DiskFullError):
            call()
    rig.ack(queue, 0)
    journal.unblock("there is room")
    rig.engine.publish([queue], b"", b"y", OS)
    assert rig.told("disk_free") == ["there is room"]
