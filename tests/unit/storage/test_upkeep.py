"""Upkeep: when a checkpoint is due, reaping after purges, combining, and a disk that fills up."""

import errno
from collections.abc import Callable
from typing import Any

import pytest

from penstock.errors import DiskFullError
from penstock.storage.files.durability import DISK, OS
from penstock.storage.index.queue_index import QueueIndex
from penstock.storage.index.routing_table import set_parameter
from penstock.storage.journal.checkpoint import IDLE
from penstock.storage.upkeep import CHECK_DISK_S
from tests.helpers.engine_rig import PATH, STORED, EngineRig

BIG = b"B" * STORED
CRASHES = ["lost", "kept", "killed"]


def made(rig: EngineRig) -> int:
    """Checkpoints so far, after as many ticks as it takes."""
    for _ in range(20):
        rig.engine.tick()
        rig.engine.poll(wait=True)
    return rig.engine.checkpoints.count


# ---- when it is due ----------------------------------------------------------------------------


def test_without_a_change_none_is_due_ever() -> None:
    rig = EngineRig(checkpoint_seconds=30.0)
    rig.clock.advance(1000)
    assert made(rig) == 1, "that of the start"


def test_after_30_seconds_of_change() -> None:
    rig = EngineRig(checkpoint_seconds=30.0)
    rig.queue()
    rig.clock.advance(29)
    assert made(rig) == 1
    rig.clock.advance(1)
    assert made(rig) == 2
    rig.clock.advance(100)
    assert made(rig) == 2


def _log_bytes(rig: EngineRig, queue: QueueIndex) -> None:
    rig.engine.publish([queue], b"", b"x" * 100, DISK)


def _store_bytes(rig: EngineRig, queue: QueueIndex) -> None:
    rig.engine.publish([queue], b"", b"x" * 150, DISK)


def _records(rig: EngineRig, queue: QueueIndex) -> None:
    rig.engine.mark(queue, 1, OS)


@pytest.mark.parametrize(
    ("option", "limit", "step", "steps"),
    [("checkpoint_log_bytes", 2048, _log_bytes, 13),
     ("checkpoint_store_bytes", 2048, _store_bytes, 12),
     ("checkpoint_records", 30, _records, 29)],
)  # fmt: skip
def test_after_so_much_log_or_store_or_so_many_records(
    option: str, limit: int, step: Callable[[EngineRig, QueueIndex], None], steps: int
) -> None:
    options: dict[str, Any] = {option: limit}
    rig = EngineRig(**options)
    queue = rig.queue()
    for _ in range(steps):
        assert rig.engine.checkpoints.count == 1
        step(rig, queue)
        rig.engine.sync()
        rig.engine.tick()
    for _ in range(8):
        step(rig, queue)
        rig.engine.sync()
        rig.engine.tick()
    assert made(rig) == 2


def test_store_bytes_that_are_released_count_too() -> None:
    rig = EngineRig(checkpoint_store_bytes=2048)
    queue = rig.queue()
    rig.put(queue, *[BIG] * 8)
    assert made(rig) == 1
    rig.ack(queue, *range(8))
    assert made(rig) == 2


def test_a_slice_ends_when_its_time_is_over_and_the_next_tick_goes_on() -> None:
    rig = EngineRig(checkpoint_records=1, slice_ms=0.0)
    for n in range(5):
        rig.put(rig.queue(b"q%d" % n), b"x")
    ticks = 0
    while rig.engine.checkpoints.count < 2:
        rig.engine.tick()
        rig.engine.poll(wait=True)
        ticks += 1
        assert ticks < 100
    assert ticks > 5


# ---- reaping -----------------------------------------------------------------------------------


def purged(rig: EngineRig, n: int = 12) -> QueueIndex:
    """A queue whose slots name n store bodies, and that has been purged of all but one."""
    queue = rig.queue()
    rig.put(queue, *[b"%d" % i + BIG for i in range(n)])
    rig.engine.checkpoint()
    rig.engine.purge(queue, rig.entries(queue, 5), DISK)
    return queue


def test_reaping_waits_until_the_purge_is_durable() -> None:
    rig = EngineRig()
    purged(rig)
    store = rig.engine.state.store
    assert not rig.engine.upkeep.reap()
    assert store.live_count == 12
    rig.engine.sync()
    assert rig.engine.upkeep.reap()
    assert store.live_count == 8


def test_one_segment_at_a_time_each_with_its_record() -> None:
    rig = EngineRig()
    purged(rig)
    rig.engine.sync()
    for left in (8, 5, 1):
        lsn = rig.engine.log.last_lsn
        assert rig.engine.upkeep.reap()
        assert rig.engine.log.last_lsn == lsn + 1
        assert rig.engine.state.store.live_count == left
    assert not rig.engine.upkeep.reap()


@pytest.mark.parametrize("how", ["restart", *CRASHES])
@pytest.mark.parametrize("reaped", [0, 1, 2])
@pytest.mark.parametrize("is_cut", [False, True])
def test_reaping_goes_on_after_any_stop(how: str, reaped: int, is_cut: bool) -> None:
    rig = EngineRig()
    purged(rig)
    rig.engine.sync()
    for _ in range(reaped):
        rig.engine.upkeep.reap()
    if is_cut:
        rig.engine.checkpoint()
    rig.restart() if how == "restart" else rig.crash(how)
    queue = rig.queue()
    assert rig.bodies(queue) == {5: b"5" + BIG}
    rig.settle()
    assert rig.engine.state.store.live_count == 1
    assert not rig.engine.state.reaping
    rig.engine.checkpoint()
    assert rig.files_of(queue) == ["1.qi"]


@pytest.mark.parametrize("how", ["restart", *CRASHES])
@pytest.mark.parametrize("is_cut", [False, True])
def test_a_deleted_queue_is_reaped_before_its_directory_goes(how: str, is_cut: bool) -> None:
    rig = EngineRig()
    queue = rig.queue()
    rig.put(queue, *[b"%d" % i + BIG for i in range(6)])
    rig.engine.checkpoint()
    rig.engine.delete_queue(queue)
    rig.engine.sync()
    if is_cut:
        rig.engine.checkpoint()
        assert rig.fs.exists(queue.path)
    rig.restart() if how == "restart" else rig.crash(how)
    rig.settle()
    rig.engine.checkpoint()
    assert rig.engine.state.store.live_count == 0
    assert not rig.fs.exists(queue.path)
    assert not rig.engine.state.dying


def test_two_purges_of_one_segment_release_each_reference_once() -> None:
    for how in CRASHES:
        rig = EngineRig()
        queue = purged(rig)
        rig.engine.purge(queue, [], DISK)
        rig.engine.sync()
        rig.crash(how)
        rig.settle()
        assert rig.engine.state.store.live_count == 0


def test_a_purged_slot_that_is_damaged_is_told_and_the_rest_released() -> None:
    rig = EngineRig()
    queue = purged(rig)
    rig.engine.sync()
    queue.close()
    rig.fs.damage_flip(queue.path + "/0.qi", 64 + 40)
    rig.settle()
    assert any("0.qi" in text for text in rig.told("corruption"))
    assert rig.engine.state.store.live_count == 2, "the kept one, and the one nobody can name"


def test_purged_slots_that_cannot_be_read_now_are_read_later() -> None:
    rig = EngineRig()
    queue = purged(rig)
    rig.engine.sync()
    queue.close()
    rig.fs.fail(errno.EIO, kinds=["read"], path="/0.qi", times=3)
    for _ in range(3):
        rig.engine.tick()
        assert rig.engine.state.store.live_count == 12
    rig.settle()
    assert rig.engine.state.store.live_count == 1
    assert len(rig.told("warning")) == 1


@pytest.mark.parametrize("nth", range(1, 9))
def test_a_purged_slot_that_is_read_wrongly_once_is_read_again(nth: int) -> None:
    rig = EngineRig()
    queue = purged(rig)
    rig.engine.sync()
    queue.close()
    rig.fs.fail("flip", kinds=["read"], path=".qi", nth=nth)
    rig.settle()
    assert rig.engine.state.store.live_count == 1
    assert not rig.told("corruption")


def test_a_transient_body_that_cannot_be_released_stops_nothing() -> None:
    rig = EngineRig(msg_store_file_size_limit=512)
    queue, other = rig.queue(), rig.queue(b"other")
    made = [rig.engine.publish_transient([queue, other], b"", BIG) for _ in range(6)]
    first = made[0]
    assert first.store_file != made[-1].store_file, "its table is in a file"
    rig.engine.transient.tables.close()
    rig.fs.fail(errno.EIO, kinds=["read"], path="msg_store_transient", times=None)
    rig.engine.upkeep.release(queue, iter([(0, first.id, first.store_file, 0)]), {})
    rig.engine.tick()
    assert len(rig.told("warning")) == 1
    rig.fs.clear_faults()
    assert rig.engine.transient.refs(first.store_file, first.id) == 2


# ---- combining ---------------------------------------------------------------------------------


def test_combining_goes_on_beside_acks_and_restarts_find_all() -> None:
    rig = EngineRig(msg_store_file_size_limit=1000)
    queue = rig.queue()
    model: dict[int, bytes] = {}
    for n in range(40):
        model[n] = b"%d" % n + BIG
        rig.put(queue, model[n])
    for seq in [s for s in range(40) if s % 4]:
        rig.ack(queue, seq)
        del model[seq]
    rig.engine.checkpoint()
    files = len(rig.store_names())
    assert rig.engine.upkeep.combine()
    rig.ack(queue, 0, 20)  # while the job is under way
    del model[0], model[20]
    rig.engine.sync()
    rig.settle()
    rig.engine.checkpoint()
    rig.engine.checkpoint()
    assert len(rig.store_names()) < files
    assert rig.bodies(queue) == model
    for how in CRASHES:
        rig.crash(how)
        assert rig.bodies(rig.queue()) == model
        assert rig.engine.state.store.live_count == len(model)


def test_combining_without_room_is_told_and_no_failure() -> None:
    rig = EngineRig(msg_store_file_size_limit=1000)
    queue = rig.queue()
    rig.put(queue, *[b"%d" % n + BIG for n in range(20)])
    rig.ack(queue, *[n for n in range(20) if n % 4])
    rig.engine.checkpoint()
    rig.fs.fail(errno.ENOSPC, kinds={"pwrite", "create"}, path="msg_store_persistent")
    assert rig.engine.upkeep.combine()
    rig.settle()
    assert rig.told("combine")
    assert rig.engine.failed is None
    assert sorted(rig.bodies(queue)) == [0, 4, 8, 12, 16]


# ---- space -------------------------------------------------------------------------------------

LIMIT = 100_000


def low(rig: EngineRig, free: int) -> None:
    """So many bytes are free from now on, and upkeep has looked."""
    rig.fs.capacity = rig.fs.used_bytes() + free
    rig.clock.advance(CHECK_DISK_S)
    rig.engine.tick()
    rig.engine.poll(wait=True)


def test_below_the_limit_publishers_are_refused_and_all_else_goes_on() -> None:
    rig = EngineRig(disk_free_limit=LIMIT)
    a, b = rig.declare(b"a", b"b")
    rig.put(a, b"0", BIG, b"2", b"3")
    low(rig, LIMIT - 1)
    assert rig.engine.blocked
    assert len(rig.told("disk_full")) == 1
    for body in (b"x", BIG):
        with pytest.raises(DiskFullError):
            rig.engine.publish([a], b"", body, DISK)
    rig.ack(a, 0)
    rig.engine.move(a, rig.entries(a, 1)[0], [b], b"", DISK)
    rig.engine.requeue(a, [(2, 1)], DISK)
    rig.engine.mark(a, 9, DISK)
    rig.engine.purge(a, [], DISK)
    rig.engine.delete_queue(b)
    rig.engine.apply_topology(set_parameter(b"a", b"b", b"c"))
    rig.engine.sync()
    assert rig.engine.checkpoint()
    assert a.count == 0


def test_it_heals_when_there_is_space_again() -> None:
    rig = EngineRig(disk_free_limit=LIMIT)
    queue = rig.queue()
    low(rig, LIMIT - 1)
    with pytest.raises(DiskFullError):
        rig.engine.publish([queue], b"", b"x", DISK)
    low(rig, 2 * LIMIT)
    assert not rig.engine.blocked
    assert len(rig.told("disk_free")) == 1
    rig.put(queue, b"x")
    assert queue.count == 1


def publish_until_full(rig: EngineRig, queue: QueueIndex, body: bytes) -> int:
    """How many went in before the disk was full."""
    for published in range(5000):
        try:
            rig.engine.publish([queue], b"", body, DISK)
        except DiskFullError:
            return published
        rig.engine.flush()
        rig.clock.advance(CHECK_DISK_S)
        rig.engine.tick()
        rig.engine.poll(wait=True)
    raise AssertionError("the disk is never full")


def test_a_log_that_finds_no_room_refuses_the_publish_whole() -> None:
    rig = EngineRig()
    queue = rig.queue()
    rig.fs.capacity = rig.fs.used_bytes() + 1000
    published = publish_until_full(rig, queue, b"x" * 100)
    assert queue.count == queue.next_seq == published > 3
    rig.engine.sync()
    assert rig.engine.blocked
    rig.fs.capacity = None
    rig.crash("lost")
    assert rig.queue().count == published


def test_below_the_limit_acks_make_room_and_it_heals() -> None:
    rig = EngineRig(checkpoint_log_bytes=3000, disk_free_limit=20_000)
    queue = rig.queue()
    rig.clock.advance(2)
    rig.settle()
    rig.fs.capacity = rig.fs.used_bytes() + 60_000
    backlog = publish_until_full(rig, queue, BIG)
    assert backlog > 20
    for seq in range(backlog):
        rig.ack(queue, seq)
        rig.engine.sync()
        rig.clock.advance(0.05)
        rig.engine.tick()
        rig.engine.poll(wait=True)
    rig.settle()
    for _ in range(5):
        rig.clock.advance(CHECK_DISK_S)
        rig.settle()
    assert queue.count == 0
    assert not rig.engine.blocked, "it heals without a restart"
    rig.put(queue, BIG)
    rig.crash("lost")
    assert list(rig.bodies(rig.queue()).values()) == [BIG]


def test_the_reserve_is_kept_for_the_log_and_the_manifest() -> None:
    rig = EngineRig(wal_segment_bytes_min=1 << 16, wal_segment_bytes_max=1 << 16)
    queue = rig.queue()
    rig.put(queue, *[b"x" * 100] * 100)
    rig.clock.advance(CHECK_DISK_S)
    rig.settle()
    assert rig.engine.journal.reserve.bytes >= rig.engine.log.appended_bytes
    assert rig.fs.size(PATH + "/reserve") == rig.engine.journal.reserve.bytes


def test_stopping_on_a_full_disk_loses_nothing() -> None:
    rig = EngineRig()
    queue = rig.queue()
    rig.put(queue, *[b"%d" % n for n in range(20)])
    rig.fs.capacity = rig.fs.used_bytes()
    rig.stop()
    rig.fs.capacity = None
    again = EngineRig(rig.fs)
    assert not again.engine.recovered.is_clean
    assert list(again.bodies(again.queue()).values()) == [b"%d" % n for n in range(20)]


def test_a_read_that_fails_in_a_checkpoint_stops_nothing_before_it_must() -> None:
    rig = EngineRig()
    rig.put(rig.queue(), b"x")
    rig.fs.fail(errno.EIO, kinds={"pwrite"}, path="/queues/")
    rig.engine.upkeep.begin_checkpoint()
    rig.engine.upkeep.step_checkpoint(float("inf"))
    assert rig.engine.failed is not None, "a disk that does not write is no disk to go on with"
    rig.stop()
    again = EngineRig(rig.fs.crash("lost"))
    assert again.queue().count == 1


def pending(rig: EngineRig) -> bool:
    return rig.engine.journal.has_pending


def test_finish_waits_for_everything_under_way() -> None:
    rig = EngineRig()
    rig.put(rig.queue(), b"x")
    rig.engine.upkeep.begin_checkpoint()
    rig.engine.upkeep.step_checkpoint(float("inf"))
    assert pending(rig)
    rig.engine.journal.finish()
    assert not pending(rig)
    assert rig.engine.checkpoints.phase == IDLE


def test_a_torn_name_of_a_queue_is_mended_at_the_next_start() -> None:
    rig = EngineRig()
    queue = rig.queue(b"torn")
    rig.put(queue, b"x")
    rig.engine.checkpoint()
    rig.fs.damage(queue.path + "/.queue_name", lambda data: bytes(len(data)))
    rig.crash("kept")
    assert rig.fs.read(queue.path + "/.queue_name") == b"VHOST: test\nQUEUE: torn\n"
    rig.stop()
