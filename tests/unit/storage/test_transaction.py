"""Transactions: all or nothing, small, spooled, in parts, rolled back, or cut off by a crash."""

import errno
import random
from typing import Any

import pytest

from penstock.errors import (
    DiskFullError,
    StorageError,
    TransactionTooLargeError,
    UnknownQueueError,
)
from penstock.storage.files.durability import DISK, OS
from penstock.storage.journal.checkpoint import IDLE, SLICES
from penstock.storage.log import record
from penstock.storage.parts import transaction
from tests.helpers.builds import pure_only
from tests.helpers.engine_rig import STORED, EngineRig
from tests.helpers.faulty_filesystem import CrashNow
from tests.helpers.inside import live_seqs
from tests.helpers.tiny_engine import PATH

BIG = b"B" * STORED
CRASHES = ["lost", "kept", "killed"]
STOPS = ["restart", *CRASHES]


def stop(rig: EngineRig, how: str) -> None:
    rig.restart() if how == "restart" else rig.crash(how)


def texts(rig: EngineRig, name: bytes) -> list[bytes]:
    return list(rig.bodies(rig.queue(name)).values())


@pytest.mark.parametrize("how", STOPS)
def test_publishes_and_dequeues_happen_together(how: str) -> None:
    rig = EngineRig()
    a, b = rig.declare(b"a", b"b")
    rig.put(a, b"0", BIG, b"2")
    tx = rig.engine.begin()
    tx.publish([a, b], b"h", b"new")
    tx.publish([b], b"", b"2" + BIG)
    tx.dequeue(a, rig.entries(a, 0, 1))
    assert (a.count, b.count) == (3, 0), "nothing happens before the commit"
    lsn = tx.commit(DISK)
    assert lsn == rig.engine.log.last_lsn
    rig.engine.wait(lsn, DISK)
    stop(rig, how)
    assert texts(rig, b"a") == [b"2", b"new"]
    assert texts(rig, b"b") == [b"new", b"2" + BIG]
    assert rig.engine.state.store.live_count == 1


def test_a_commit_tells_where_its_messages_are() -> None:
    rig = EngineRig()
    a, b = rig.declare(b"a", b"b")
    rig.put(b, b"first")
    tx = rig.engine.begin()
    one, two = tx.publish([a, b], b"", b"one"), tx.publish([b], b"", b"two")
    assert one.born == []
    tx.commit(DISK)
    assert [entry.seq for entry in one.born] == [0, 1]  # of a, and of b
    assert [entry.seq for entry in two.born] == [2]


def test_a_commit_that_is_not_durable_is_taken_back_whole_by_a_power_cut() -> None:
    rig = EngineRig()
    a, b = rig.declare(b"a", b"b")
    rig.put(a, b"0")
    tx = rig.engine.begin()
    tx.publish([a, b], b"", b"new")
    tx.publish([b], b"", BIG)
    tx.dequeue(a, rig.entries(a, 0))
    tx.commit(OS)
    rig.engine.flush()
    rig.crash("lost")
    assert (texts(rig, b"a"), texts(rig, b"b")) == ([b"0"], [])
    assert rig.engine.state.store.live_count == 0


def test_an_empty_transaction_commits() -> None:
    rig = EngineRig()
    rig.engine.wait(rig.engine.begin().commit(DISK), DISK)
    rig.crash("lost")


# ---- rollback ----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", STOPS)
def test_a_rolled_back_transaction_leaves_nothing(how: str) -> None:
    rig = EngineRig(tx_spool_bytes=100)
    queue = rig.queue()
    rig.put(queue, b"0")
    lsn = rig.engine.log.last_lsn
    tx = rig.engine.begin()
    for _ in range(4):
        tx.publish([queue], b"", b"x" * 60)
    tx.publish([queue], b"", BIG)
    tx.dequeue(queue, rig.entries(queue, 0))
    tx.rollback()
    assert rig.engine.log.last_lsn == lsn
    assert rig.bodies(queue) == {0: b"0"}
    assert rig.engine.state.store.live_count == 0
    rig.engine.checkpoint()
    stop(rig, how)
    assert rig.bodies(rig.queue()) == {0: b"0"}
    rig.engine.checkpoint()
    assert rig.engine.state.store.live_count == 0


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_after_its_end_a_transaction_takes_nothing_more(end: str) -> None:
    rig = EngineRig()
    queue = rig.queue()
    rig.put(queue, b"0")
    tx = rig.engine.begin()
    tx.commit(DISK) if end == "commit" else tx.rollback()
    for call in (
        lambda: tx.publish([queue], b"", b"x"),
        lambda: tx.dequeue(queue, rig.entries(queue, 0)),
        lambda: tx.commit(DISK),
        lambda: tx.rollback(),
    ):
        with pytest.raises(StorageError, match="the transaction is over"):
            call()
    assert queue.count == 1


@pytest.mark.parametrize("how", CRASHES)
def test_an_unfinished_transaction_leaves_nothing_after_a_crash(how: str) -> None:
    rig = EngineRig(tx_spool_bytes=0, own_file_from=1000)
    queue = rig.queue()
    tx = rig.engine.begin()
    tx.publish([queue], b"", b"spooled")
    tx.publish([queue], b"", b"V" * 1500)
    rig.engine.checkpoint()
    rig.crash(how)
    assert rig.queue().count == 0
    rig.engine.checkpoint()
    assert rig.engine.state.store.live_count == 0
    assert not [n for n in rig.fs.names() if n.endswith(".msg")]


# ---- wrong -------------------------------------------------------------------------------------


def test_the_same_entry_twice_in_one_transaction_is_an_error() -> None:
    rig = EngineRig()
    queue = rig.queue()
    rig.put(queue, b"0", b"1")
    tx = rig.engine.begin()
    tx.dequeue(queue, rig.entries(queue, 0))
    with pytest.raises(ValueError, match="in this transaction already"):
        tx.dequeue(queue, rig.entries(queue, 0))
    tx.commit(DISK)
    assert live_seqs(queue) == [1]


def test_a_refused_dequeue_leaves_the_transaction_as_it_was() -> None:
    rig = EngineRig()
    queue = rig.queue()
    rig.put(queue, b"0", b"1")
    tx = rig.engine.begin()
    tx.dequeue(queue, rig.entries(queue, 0))
    for wrong in ((0, 1), (1, 1), (1, 0)):
        with pytest.raises(ValueError, match=r"already|ascend"):
            tx.dequeue(queue, [rig.engine.entry(queue, seq) for seq in wrong])
    tx.dequeue(queue, rig.entries(queue, 1))
    tx.commit(DISK)
    assert queue.count == 0


def test_an_entry_that_died_meanwhile_rolls_all_back() -> None:
    rig = EngineRig(tx_spool_bytes=0)
    queue = rig.queue()
    rig.put(queue, b"0", b"1")
    tx = rig.engine.begin()
    tx.publish([queue], b"", BIG)
    tx.dequeue(queue, rig.entries(queue, 0, 1))
    rig.ack(queue, 0)
    with pytest.raises(ValueError, match="not alive"):
        tx.commit(DISK)
    assert rig.bodies(queue) == {1: b"1"}
    assert not tx.is_open
    assert rig.engine.state.store.live_count == 0


def test_a_publish_to_what_cannot_take_it_is_refused_at_once() -> None:
    rig = EngineRig()
    queue, gone = rig.declare(b"q", b"gone")
    passing = rig.engine.declare_queue(b"passing", is_durable=False)
    rig.engine.delete_queue(gone)
    tx = rig.engine.begin()
    with pytest.raises(UnknownQueueError):
        tx.publish([gone], b"", b"x")
    for wrong in ([passing], [queue, queue], []):
        with pytest.raises(ValueError, match=r"transient|one queue at least"):
            tx.publish(wrong, b"", b"x")
    tx.commit(DISK)
    assert queue.count == 0


@pytest.mark.parametrize("how", STOPS)
def test_a_queue_deleted_before_the_commit_is_left_out(how: str) -> None:
    rig = EngineRig(tx_spool_bytes=0)
    a, b = rig.declare(b"a", b"b")
    rig.put(a, b"0")
    rig.put(b, b"0")
    tx = rig.engine.begin()
    tx.publish([a, b], b"", BIG)
    tx.publish([a], b"", b"only a")
    tx.dequeue(a, rig.entries(a, 0))
    tx.dequeue(b, rig.entries(b, 0))
    rig.engine.delete_queue(a)
    rig.engine.wait(tx.commit(DISK), DISK)
    stop(rig, how)
    assert texts(rig, b"b") == [BIG]
    assert rig.engine.state.store.live_count == 1


def test_beyond_the_limit_a_commit_is_refused_whole_and_rolled_back() -> None:
    rig = EngineRig(tx_bytes_max=1000, tx_spool_bytes=10_000)
    queue = rig.queue()
    tx = rig.engine.begin()
    for _ in range(20):
        tx.publish([queue], b"", b"x" * 100)
    tx.publish([queue], b"", BIG)
    lsn = rig.engine.log.last_lsn
    with pytest.raises(TransactionTooLargeError) as caught:
        tx.commit(DISK)
    assert caught.value.limit_bytes == 1000 < caught.value.size_bytes
    assert (queue.count, rig.engine.log.last_lsn, tx.is_open) == (0, lsn, False)
    assert rig.engine.state.store.live_count == 0


def test_spooled_bodies_do_not_count_as_log_bytes() -> None:
    rig = EngineRig(tx_bytes_max=1000, tx_spool_bytes=0)
    queue = rig.queue()
    tx = rig.engine.begin()
    for n in range(8):
        tx.publish([queue], b"", b"%d" % n * 1000)
    tx.commit(DISK)
    assert queue.count == 8


# ---- spooling ----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", STOPS)
def test_bodies_beyond_the_limit_leave_ram_as_they_come(how: str) -> None:
    rig = EngineRig(tx_spool_bytes=100)
    queue = rig.queue()
    tx = rig.engine.begin()
    made = [tx.publish([queue], b"", b"%d" % n * 60).message for n in range(5)]
    assert [m.store_file != 0 for m in made] == [False, True, True, True, True]
    assert [m.body is None for m in made] == [False, True, True, True, True]
    rig.engine.checkpoint()
    rig.engine.wait(tx.commit(DISK), DISK)
    assert list(rig.bodies(queue).values()) == [b"%d" % n * 60 for n in range(5)]
    stop(rig, how)
    assert list(rig.bodies(rig.queue()).values()) == [b"%d" % n * 60 for n in range(5)]
    assert rig.engine.state.store.live_count == 4


def test_spooled_bodies_survive_checkpoints_and_combining_until_the_commit() -> None:
    rig = EngineRig(tx_spool_bytes=0, msg_store_file_size_limit=256)
    queue = rig.queue()
    tx = rig.engine.begin()
    for n in range(6):
        tx.publish([queue], b"", b"%d" % n + BIG)
        rig.put(queue, b"dead" + BIG)
        rig.ack(queue, n)
        rig.engine.sync()
        rig.engine.checkpoint()
        rig.settle()
    rig.engine.wait(tx.commit(DISK), DISK)
    rig.crash("lost")
    assert list(rig.bodies(rig.queue()).values()) == [b"%d" % n + BIG for n in range(6)]


def test_a_body_that_cannot_be_spooled_leaves_the_transaction_as_it_was() -> None:
    rig = EngineRig(tx_spool_bytes=0)
    queue = rig.queue()
    tx = rig.engine.begin()
    tx.publish([queue], b"", b"0")
    rig.fs.fail(errno.ENOSPC, kinds={"pwrite", "create"}, path="msg_store_persistent")
    with pytest.raises(DiskFullError):
        tx.publish([queue], b"", b"1")
    assert rig.engine.blocked
    with pytest.raises(DiskFullError):
        tx.commit(DISK)
    rig.engine.journal.blocked = False
    tx.commit(DISK)
    assert rig.bodies(queue) == {0: b"0"}


def test_a_blocked_engine_still_commits_acks() -> None:
    rig = EngineRig()
    queue = rig.queue()
    rig.put(queue, b"0")
    tx = rig.engine.begin()
    tx.dequeue(queue, rig.entries(queue, 0))
    rig.engine.journal.blocked = True
    tx.commit(DISK)
    assert queue.count == 0


# ---- parts -------------------------------------------------------------------------------------

LARGE: dict[str, Any] = {"tx_record_bytes": 400, "tx_part_bytes": 120, "tx_spool_bytes": 600}


def large(rig: EngineRig, n: int = 20) -> None:
    """A commit in parts: n messages to a, each third also to b, and an ack of b's first."""
    a, b = rig.queue(b"a"), rig.queue(b"b")
    tx = rig.engine.begin()
    for i in range(n):
        tx.publish([a, b] if i % 3 == 0 else [a], b"h%d" % i, (b"%d" % i).ljust(50, b"."))
    tx.dequeue(b, rig.entries(b, 0))
    tx.commit(DISK)


def assert_committed(rig: EngineRig, n: int = 20) -> None:
    wanted = [(b"%d" % i).ljust(50, b".") for i in range(n)]
    assert texts(rig, b"a") == [b"before", *wanted]
    assert texts(rig, b"b") == wanted[::3]
    message = rig.engine.entry(rig.queue(b"a"), live_seqs(rig.queue(b"a"))[8]).message
    assert message.header == b"h7"


def prepared(**options: Any) -> EngineRig:
    rig = EngineRig(**{**LARGE, **options})
    a, b = rig.declare(b"a", b"b")
    rig.put(a, b"before")
    rig.put(b, b"acked")
    return rig


@pytest.mark.parametrize("how", STOPS)
def test_a_large_commit_is_in_parts_and_atomic(how: str) -> None:
    rig = prepared()
    before = rig.engine.log.last_lsn
    large(rig)
    assert rig.engine.log.last_lsn - before > 5
    rig.engine.sync()
    assert_committed(rig)
    stop(rig, how)
    assert_committed(rig)
    spooled = rig.engine.state.store.live_count
    rig.crash("lost")
    assert_committed(rig)
    assert rig.engine.state.store.live_count == spooled


@pytest.mark.parametrize("how", CRASHES)
def test_a_crash_between_the_parts_leaves_nothing_of_it(how: str) -> None:
    """The group buffer is small, so that the parts are written one after the other."""
    points = 0
    while True:
        rig = prepared(group_bytes_max=1024)
        rig.fs.crash_at = rig.fs.operations + points + 1
        try:
            large(rig, 40)
            rig.engine.sync()
        except CrashNow:
            pass
        else:
            break
        points += 1
        rig.crash(how)
        if rig.queue(b"a").count > 1:
            assert_committed(rig, 40)
        else:
            assert (texts(rig, b"a"), texts(rig, b"b")) == ([b"before"], [b"acked"])
            assert rig.engine.state.store.live_count == 0
        rig.put(rig.queue(b"a"), b"after")
    assert points > 10


def test_no_cut_falls_between_the_parts() -> None:
    rig = prepared(group_bytes_max=1024, checkpoint_records=1)
    seen: list[str] = []

    def look(_: int, kind: str, path: str) -> None:
        if rig.engine.journal.is_committing:
            rig.engine.upkeep.begin_checkpoint()
            seen.append(rig.engine.checkpoints.phase)

    rig.fs.before_operation = look
    large(rig, 40)
    rig.fs.before_operation = None
    assert seen
    assert set(seen) == {IDLE}
    rig.engine.upkeep.begin_checkpoint()
    assert rig.engine.checkpoints.phase == SLICES


def test_a_large_commit_beside_a_checkpoint_in_progress() -> None:
    for how in CRASHES:
        rig = prepared(group_bytes_max=1024)
        rig.engine.upkeep.begin_checkpoint()
        large(rig)
        rig.engine.sync()
        rig.finish_checkpoint()
        rig.crash(how)
        assert_committed(rig)


def test_a_large_commit_of_acks_alone() -> None:
    rig = EngineRig(**LARGE)
    queue = rig.queue()
    rig.put(queue, *[b"%d" % n for n in range(40)])
    tx = rig.engine.begin()
    for seq in range(0, 40, 2):
        tx.dequeue(queue, rig.entries(queue, seq))
    rig.engine.wait(tx.commit(DISK), DISK)
    rig.crash("lost")
    assert live_seqs(rig.queue()) == list(range(1, 40, 2))


@pure_only  # a constant is replaced
@pytest.mark.parametrize("how", STOPS)
def test_more_operations_than_a_record_can_have_are_in_parts(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So are more acknowledgements and requeues than one may have runs, with and without a
    transaction."""
    rig = EngineRig()
    a, b, c = rig.declare(b"a", b"b", b"c")
    for queue in (a, b, c):
        rig.put(queue, *[b"%d" % n for n in range(60)])
    monkeypatch.setattr(record, "COUNT_MAX", 20)
    tx = rig.engine.begin()
    assert tx.publish_run(a, b"", [b"run %d" % n for n in range(25)]) is not None
    for n in range(25):
        tx.publish([a], b"", b"new %d" % n)
    tx.dequeue(a, rig.entries(a, *range(0, 60, 2)))
    rig.engine.wait(tx.commit(DISK), DISK)
    rig.engine.wait(rig.ack(b, *range(0, 60, 2), mode=DISK), DISK)
    rig.engine.wait(rig.engine.requeue(c, [(n, n) for n in range(60)], DISK), DISK)
    stop(rig, how)
    odd = [b"%d" % n for n in range(1, 60, 2)]
    new = [b"run %d" % n for n in range(25)] + [b"new %d" % n for n in range(25)]
    assert texts(rig, b"a") == odd + new
    assert texts(rig, b"b") == odd
    assert rig.queue(b"c").attempts == {n: n for n in range(60)}


@pure_only  # a constant is replaced
@pytest.mark.parametrize("how", STOPS)
@pytest.mark.parametrize("body", [b"inline", BIG])
def test_a_message_for_more_queues_than_an_operation_can_name(
    how: str, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "COUNT_MAX", 20)
    rig = EngineRig()
    names = [b"%d" % n for n in range(45)]
    queues = rig.declare(*names)
    rig.engine.publish(queues, b"h", body, DISK)
    tx = rig.engine.begin()
    published = tx.publish(queues, b"tx", body)
    rig.engine.wait(tx.commit(DISK), DISK)
    assert [entry.seq for entry in published.born] == [1] * 45
    stop(rig, how)
    for name in names:
        assert texts(rig, name) == [body, body]
    assert rig.engine.state.store.live_count == 2


def test_a_large_commit_that_finds_no_room_happens_later_or_not_at_all() -> None:
    rig = prepared(wal_segment_bytes_min=1024, wal_segment_bytes_max=1024)
    a = rig.queue(b"a")
    tx = rig.engine.begin()
    for i in range(40):
        tx.publish([a], b"", (b"%d" % i).ljust(14, b"."))
    rig.fs.fail(errno.ENOSPC, kinds={"allocate", "create"}, path="/wal/", nth=2, times=None)
    with pytest.raises(DiskFullError):
        tx.commit(DISK)
    assert tx.is_open
    assert (a.count, rig.engine.blocked, rig.engine.journal.is_committing) == (1, True, False)
    rig.fs.clear_faults()
    rig.engine.journal.blocked = False
    tx.commit(DISK)
    rig.engine.sync()
    assert a.count == 41
    rig.crash("lost")
    assert rig.queue(b"a").count == 41


# ---- parts in slices ---------------------------------------------------------------------------


def in_slices(rig: EngineRig, n: int) -> None:
    """Two commits whose parts are written and take effect in turn, others in between: n messages to
    a and b each and an ack of b's first, and n other messages to b."""
    engine = rig.engine
    a, b, c = rig.queue(b"a"), rig.queue(b"b"), rig.queue(b"c")
    one, two = engine.begin(), engine.begin()
    for i in range(n):
        one.publish([a, b], b"h%d" % i, (b"%d" % i).ljust(50, b"."))
        two.publish([b], b"", (b"two%d" % i).ljust(50, b"."))
    one.dequeue(b, rig.entries(b, 0))
    more = True
    while more:
        more = one.write_part(DISK) > 0
        more = two.write_part(DISK) > 0 or more
        rig.put(c, b"between")
        engine.flush()
        engine.poll()
    rig.engine.dequeue(c, rig.entries(c, *live_seqs(c)), DISK)
    one.commit(DISK)
    rig.put(c, b"after one")
    two.commit(DISK)
    while one.has_parts or two.has_parts:
        for tx in (one, two):
            if tx.has_parts:
                tx.apply_part(DISK)
        rig.put(rig.queue(b"b"), b"other")
        engine.flush()
        engine.poll()
    engine.sync()


def three(monkeypatch: pytest.MonkeyPatch, **options: Any) -> EngineRig:
    monkeypatch.setattr(transaction, "PART_PLACES", 5)
    rig = prepared(**options)
    rig.declare(b"c")
    return rig


def assert_whole(rig: EngineRig, n: int) -> tuple[bool, bool]:
    """Each of the two commits is there as a whole or not at all, in its order; the first was first
    decided. What others published to b stands between their parts."""
    ones = [(b"%d" % i).ljust(50, b".") for i in range(n)]
    twos = [(b"two%d" % i).ljust(50, b".") for i in range(n)]
    in_a, in_b = texts(rig, b"a"), texts(rig, b"b")
    has_one, has_two = len(in_a) > 1, twos[0] in in_b
    assert in_a == [b"before", *(ones if has_one else [])]
    assert (b"acked" in in_b) != has_one
    assert [body for body in in_b if body in ones] == (ones if has_one else [])
    assert [body for body in in_b if body in twos] == (twos if has_two else [])
    assert has_one or not has_two
    return has_one, has_two


@pure_only
@pytest.mark.parametrize("how", STOPS)
def test_commits_in_slices_are_atomic(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = three(monkeypatch)
    in_slices(rig, 12)
    assert assert_whole(rig, 12) == (True, True)
    assert not rig.engine.journal.is_committing
    stop(rig, how)
    assert assert_whole(rig, 12) == (True, True)
    assert texts(rig, b"c") == [b"after one"]
    in_b = texts(rig, b"b")
    assert b"other" in in_b[: in_b.index(b"11".ljust(50, b"."))]  # it is no longer one step


@pure_only
@pytest.mark.parametrize("how", CRASHES)
def test_a_crash_at_any_point_of_commits_in_slices(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[tuple[bool, bool]] = []
    while True:
        rig = three(monkeypatch, group_bytes_max=1024)
        rig.fs.crash_at = rig.fs.operations + len(found) + 1
        try:
            in_slices(rig, 12)
        except CrashNow:
            pass
        else:
            break
        rig.crash(how)
        found.append(assert_whole(rig, 12))
        rig.put(rig.queue(b"a"), b"after")
    assert len(found) > 10
    assert (False, False) in found
    assert found == sorted(found)


@pure_only
def test_no_cut_falls_between_slices_and_a_rollback_allows_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = three(monkeypatch)
    tx = rig.engine.begin()
    for i in range(12):
        tx.publish([rig.queue(b"a")], b"", b"%d" % i)
    assert tx.write_part(DISK) == 5
    assert not rig.engine.journal.cut_waits
    rig.engine.upkeep.begin_checkpoint()
    assert (rig.engine.checkpoints.phase, rig.engine.journal.cut_waits) == (IDLE, True)
    tx.rollback()
    rig.engine.upkeep.begin_checkpoint()
    assert rig.engine.checkpoints.phase == SLICES
    rig.finish_checkpoint()
    rig.crash("kept")
    assert texts(rig, b"a") == [b"before"]


@pure_only
def test_a_full_disk_rolls_back_what_was_written_in_slices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = three(monkeypatch)
    tx = rig.engine.begin()
    for i in range(12):
        tx.publish([rig.queue(b"a")], b"", BIG if i == 3 else b"%d" % i)
    tx.write_part(DISK)
    rig.engine.journal.blocked = True
    with pytest.raises(DiskFullError):
        tx.write_part(DISK)
    assert (tx.is_open, rig.engine.journal.is_committing) == (False, False)
    rig.engine.journal.blocked = False
    rig.restart()
    assert texts(rig, b"a") == [b"before"]
    assert rig.engine.state.store.live_count == 0


@pure_only
def test_a_full_disk_at_the_commit_rolls_back_what_was_written_in_slices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = three(monkeypatch)
    tx = rig.engine.begin()
    for i in range(12):
        tx.publish([rig.queue(b"a")], b"", b"%d" % i)
    while tx.write_part(DISK):
        pass
    rig.engine.journal.blocked = True
    with pytest.raises(DiskFullError):
        tx.commit(DISK)
    assert (tx.is_open, rig.engine.journal.is_committing) == (False, False)
    rig.engine.journal.blocked = False
    rig.restart()
    assert texts(rig, b"a") == [b"before"]


def decided(rig: EngineRig, *bodies: bytes) -> transaction.Transaction:
    """A commit to a and b of which one part has taken effect."""
    tx = rig.engine.begin()
    for body in bodies:
        tx.publish([rig.queue(b"a"), rig.queue(b"b")], b"", body)
    while tx.write_part(DISK):
        pass
    tx.commit(DISK)
    assert tx.has_parts
    return tx


@pure_only
@pytest.mark.parametrize("how", CRASHES)
def test_what_is_decided_is_whole_also_if_recovery_ends_early(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = [BIG + b"%d" % i if i % 4 == 0 else b"%d" % i for i in range(12)]
    rig = three(monkeypatch)
    decided(rig, *bodies)
    rig.engine.sync()
    assert texts(rig, b"a") != [b"before", *bodies]
    left = rig.fs.crash(how, random.Random(1))
    points = 0
    while True:
        rig.fs = left.crash("kept", random.Random(1))
        rig.fs.crash_at = rig.fs.operations + points + 1
        try:
            rig.engine = rig._open()
        except CrashNow:
            points += 1
            rig.crash(how)
        else:
            break
        assert texts(rig, b"a") == [b"before", *bodies]
    assert points > 5
    rig.fs.crash_at = None
    rig.put(rig.queue(b"a"), b"after")
    rig.crash(how)
    assert texts(rig, b"a") == [b"before", *bodies, b"after"]
    assert texts(rig, b"b") == [b"acked", *bodies]
    assert rig.engine.state.store.live_count == 6  # large ones, and those beyond 600 bytes


@pure_only
@pytest.mark.parametrize("how", STOPS)
def test_a_queue_deleted_between_two_slices_leaves_the_rest(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = three(monkeypatch)
    bodies = [BIG + b"%d" % i for i in range(12)]
    tx = decided(rig, *bodies)
    rig.engine.delete_queue(rig.queue(b"b"))
    tx.apply_part(DISK)
    rig.engine.sync()
    stop(rig, how)  # a stop in order makes no checkpoint: the next start reads the log
    assert texts(rig, b"a") == [b"before", *bodies]
    assert rig.engine.state.store.live_count == 12


@pure_only
@pytest.mark.parametrize("how", STOPS)
@pytest.mark.parametrize("parts", [1, 2, 5])
def test_acknowledgements_take_effect_in_slices_and_all_of_them(
    how: str, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few of them, or a part of them, before the stop; the rest by recovery."""
    rig = three(monkeypatch)
    a, b, c = rig.queue(b"a"), rig.queue(b"b"), rig.queue(b"c")
    for i in range(12):
        for queue in (a, b, c):
            rig.put(queue, BIG + b"%d" % i)
    tx = rig.engine.begin()
    for seq in (*live_seqs(a)[6:], *live_seqs(a)[:6]):
        tx.dequeue(a, rig.entries(a, seq))
    for seq in live_seqs(c):
        tx.dequeue(c, rig.entries(c, seq))
    tx.dequeue(b, rig.entries(b, *live_seqs(b)))
    tx.publish([b], b"", b"new")
    while tx.write_part(DISK):
        pass
    before = a.count + b.count + c.count
    tx.commit(DISK)
    assert (a.count + b.count + c.count, tx.dequeued) == (before - 3, 3)
    rig.engine.delete_queue(c)  # whose acknowledgements are parts of their own
    for _ in range(parts - 1):
        assert tx.apply_part(DISK) == 3
    rig.engine.sync()
    stop(rig, how)
    assert texts(rig, b"a") == []
    assert texts(rig, b"b") == [b"new"]
    assert rig.engine.state.store.live_count == 0


@pure_only
def test_acknowledgements_of_a_queue_that_is_gone_are_a_part_without_effect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = three(monkeypatch)
    a, c = rig.queue(b"a"), rig.queue(b"c")
    for i in range(12):
        rig.put(c, b"%d" % i)
    tx = rig.engine.begin()
    for seq in live_seqs(c):
        tx.dequeue(c, rig.entries(c, seq))
    tx.dequeue(a, rig.entries(a, *live_seqs(a)))
    rig.engine.delete_queue(c)
    while tx.write_part(DISK):
        pass
    tx.commit(DISK)
    while tx.has_parts:
        tx.apply_part(DISK)
    assert tx.dequeued == 13
    rig.engine.sync()
    rig.crash("lost")
    assert texts(rig, b"a") == []


@pure_only
def test_an_entry_that_is_gone_ends_a_commit_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = three(monkeypatch)
    a = rig.queue(b"a")
    for i in range(12):
        rig.put(a, b"%d" % i)
    tx = rig.engine.begin()
    for seq in live_seqs(a):
        tx.dequeue(a, rig.entries(a, seq))
    rig.engine.dequeue(a, rig.entries(a, live_seqs(a)[-1]), DISK)
    for _ in range(4):
        assert tx.write_part(DISK) == 3
    with pytest.raises(ValueError, match="is not alive"):
        tx.write_part(DISK)
    assert (tx.is_open, rig.engine.journal.is_committing) == (False, False)
    rig.engine.sync()
    rig.crash("kept")
    assert rig.queue(b"a").count == 12


@pure_only
def test_a_full_log_between_two_slices_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = three(monkeypatch)
    bodies = [b"%d" % i for i in range(12)]
    tx = decided(rig, *bodies)

    def full(*_: object) -> int:
        raise DiskFullError(PATH, 0, 1)

    with monkeypatch.context() as patch:
        patch.setattr(rig.engine.log, "append", full)
        with pytest.raises(DiskFullError):
            tx.apply_part(DISK)
    assert tx.has_parts
    with pytest.raises(StorageError, match="the transaction is over"):
        tx.rollback()
    while tx.has_parts:
        tx.apply_part(DISK)
    assert not rig.engine.journal.is_committing
    rig.engine.sync()
    rig.crash("lost")
    assert texts(rig, b"a") == [b"before", *bodies]


@pure_only
@pytest.mark.parametrize("how", STOPS)
def test_records_of_streams_in_slices_have_offsets_and_times_in_order(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = three(monkeypatch)
    (stream,) = rig.engine.streams.declare([(b"s", b"", 0)], page_bytes=4096)
    tx = rig.engine.begin()
    appended = [tx.append_stream(stream, b"", b"%d" % i) for i in range(12)]
    while tx.write_part(DISK):
        pass
    rig.clock.advance(1)
    rig.engine.streams.append(stream, b"", b"other", DISK)
    tx.commit(DISK)
    rig.engine.streams.append(stream, b"", b"another", DISK)
    while tx.has_parts and how == "restart":
        tx.apply_part(DISK)
    if how == "restart":
        assert [a.offset for a in appended] == [1, 2, 3, 4, 5, *range(7, 14)]
    rig.engine.sync()
    stop(rig, how)
    records = rig.engine.streams.get(b"s").queue.read(0, 100, 1 << 20)
    assert [one.offset for one in records] == list(range(14))
    times = [one.time_us for one in records]
    assert times == sorted(times)
    assert sorted(one.payload for one in records) == sorted(
        [b"other", b"another", *[b"%d" % i for i in range(12)]]
    )
