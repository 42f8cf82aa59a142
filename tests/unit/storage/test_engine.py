"""StorageEngine: what is confirmed is there after any stop, and what failed is never confirmed."""

import errno
import random

import pytest

from penstock.clock import SystemClock
from penstock.errors import (
    CorruptionError,
    DiskFullError,
    LockedError,
    StoppedError,
    UnknownQueueError,
)
from penstock.message import START_SHIFT
from penstock.storage.engine import StorageEngine
from penstock.storage.files.data_directory import DataDirectory
from penstock.storage.files.durability import DISK, INTERVAL, OS
from penstock.storage.files.filesystem import OsFileSystem
from penstock.storage.index.queue_index import DictHolder
from penstock.storage.index.routing_table import (
    DurableBinding,
    DurableExchange,
    DurableQueue,
    clear_parameter,
    set_parameter,
)
from penstock.storage.upkeep import DELETED_MOST
from tests.helpers.engine_rig import OPTIONS, PATH, STORED, VHOST, EngineRig
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.inside import live_seqs

BIG = b"B" * STORED
STOPS = ["restart", "lost", "kept", "killed"]


def stop(rig: EngineRig, how: str) -> StorageEngine:
    """In order, or by a crash of that mode."""
    return rig.restart() if how == "restart" else rig.crash(how)


# ---- confirming --------------------------------------------------------------------------------


def test_in_disk_mode_a_message_is_settled_after_the_sync() -> None:
    rig = EngineRig()
    queue = rig.queue()
    rig.engine.publish([queue], b"", b"x", DISK)
    lsn = rig.engine.log.last_lsn
    assert rig.engine.log.settled(DISK) < lsn
    rig.engine.flush()
    assert rig.engine.log.settled(DISK) < lsn <= rig.engine.log.settled(OS)
    rig.engine.poll(wait=True)
    assert rig.engine.log.settled(DISK) >= lsn


@pytest.mark.parametrize("mode", [OS, INTERVAL])
def test_in_weaker_modes_after_the_write(mode: int) -> None:
    rig = EngineRig()
    queue = rig.queue()
    rig.engine.publish([queue], b"", b"x", mode)
    rig.engine.flush()
    rig.engine.poll(wait=True)
    assert rig.engine.log.settled(mode) == rig.engine.log.last_lsn > rig.engine.log.settled(DISK)


@pytest.mark.parametrize("mode", [OS, INTERVAL, DISK])
@pytest.mark.parametrize("wanted", [OS, INTERVAL, DISK])
def test_wait_does_all_that_is_needed(mode: int, wanted: int) -> None:
    rig = EngineRig()
    queue = rig.queue()
    rig.engine.publish([queue], b"", b"x", mode)
    rig.engine.wait(rig.engine.log.last_lsn, wanted)
    assert rig.engine.log.settled(wanted) == rig.engine.log.last_lsn


def test_an_ack_is_durable_after_a_second_at_the_latest() -> None:
    rig = EngineRig()
    queue = rig.queue()
    rig.put(queue, b"x")
    lsn = rig.ack(queue, 0)
    rig.engine.flush()
    for _ in range(10):
        rig.clock.advance(0.1)
        rig.engine.tick()
        rig.engine.poll(wait=True)
    assert rig.engine.log.settled(DISK) >= lsn


def test_interval_mode_is_synced_every_interval() -> None:
    rig = EngineRig(interval_ms=200)
    queue = rig.queue()
    rig.engine.publish([queue], b"", b"x", INTERVAL)
    rig.engine.flush()
    rig.clock.advance(0.1)
    rig.engine.tick()
    rig.engine.poll(wait=True)
    assert rig.engine.log.settled(DISK) < rig.engine.log.last_lsn
    rig.clock.advance(0.1)
    rig.engine.tick()
    rig.engine.poll(wait=True)
    assert rig.engine.log.settled(DISK) == rig.engine.log.last_lsn


def test_the_log_pushes_back_instead_of_growing_without_bound() -> None:
    rig = EngineRig(group_bytes_max=1024, wal_segment_bytes_min=65536, wal_segment_bytes_max=65536)
    queue = rig.queue()
    for _ in range(200):
        rig.engine.publish([queue], b"", b"x" * 60, DISK)
        assert rig.engine.log.queued_bytes <= 2 * 1024
    assert queue.count == 200


# ---- restarts ----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", STOPS)
@pytest.mark.parametrize("sections", [False, True])
def test_confirmed_messages_of_every_placement_survive(how: str, sections: bool) -> None:
    rig = EngineRig(sections=sections, own_file_from=500)
    a, b = rig.declare(b"a", b"b")
    bodies = [b"", b"small", b"m" * 100, BIG, b"o" * 600]
    for body in bodies:
        rig.engine.publish([a], b"header", body, DISK)
        rig.engine.publish([a, b], b"", body, DISK)
    rig.engine.sync()
    for _ in range(2):
        stop(rig, how)
        a, b = rig.queue(b"a"), rig.queue(b"b")
        assert list(rig.bodies(a).values()) == [body for body in bodies for _ in range(2)]
        assert list(rig.bodies(b).values()) == bodies
        headers = [rig.engine.entry(a, seq).message.header for seq in live_seqs(a)]
        assert headers == [b"header", b""] * 5


@pytest.mark.parametrize("how", STOPS)
def test_durable_acks_survive(how: str) -> None:
    rig = EngineRig()
    queue = rig.queue()
    rig.put(queue, b"0", b"1", BIG, b"3", b"4", b"5", b"6")
    for seqs in ((0,), (2, 3), (6,)):
        rig.ack(queue, *seqs)
    rig.engine.sync()
    stop(rig, how)
    assert list(rig.bodies(rig.queue()).values()) == [b"1", b"4", b"5"]
    assert rig.engine.state.store.live_count == 0


def test_what_was_not_synced_is_gone_after_a_power_cut_and_there_after_a_kill() -> None:
    for mode, wanted in (("lost", []), ("killed", [b"x"])):
        rig = EngineRig()
        queue = rig.queue()
        rig.engine.publish([queue], b"", b"x", OS)
        rig.engine.flush()
        rig.crash(mode)
        assert list(rig.bodies(rig.queue()).values()) == wanted


def test_after_a_clean_stop_the_log_is_not_read() -> None:
    rig = EngineRig()
    rig.put(rig.queue(), b"x", b"y")
    rig.stop()
    for name in rig.fs.list(PATH + "/wal"):
        rig.fs.damage_zero_tail(f"{PATH}/wal/{name}", 1 << 20)
    again = EngineRig(rig.fs)
    assert (again.engine.recovered.is_clean, again.engine.recovered.records) == (True, 0)
    assert list(again.bodies(again.queue()).values()) == [b"x", b"y"]


def test_after_a_clean_stop_queue_numbers_go_on_and_seqs_in_a_segment_without_files() -> None:
    rig = EngineRig()
    queue = rig.queue()
    rig.put(queue, b"x")
    rig.engine.mark(queue, 100, DISK)
    rig.restart()
    queue = rig.queue()
    assert (queue.next_seq, queue.mark) == (4, 100)
    assert rig.queue(b"other").number == queue.number + 1


def test_after_an_unclean_stop_seqs_jump_over_the_mark_to_a_border() -> None:
    for mark, wanted in ((0, 4), (4, 4), (9, 12)):
        rig = EngineRig()
        queue = rig.queue()
        rig.put(queue, b"x", b"y")
        rig.engine.wait(rig.engine.mark(queue, mark, DISK), DISK)
        rig.crash("lost")
        queue = rig.queue()
        assert (queue.next_seq, queue.mark) == (wanted, mark)
        rig.put(queue, b"z")
        assert live_seqs(queue) == [0, 1, wanted]


def test_after_an_unclean_stop_queue_numbers_jump() -> None:
    rig = EngineRig()
    first = rig.queue().number
    rig.crash("lost")
    assert rig.queue(b"other").number >= first + 1000


def test_ids_never_repeat_over_restarts_of_any_kind() -> None:
    rig = EngineRig()
    seen: set[int] = set()
    starts = []
    for how in ("lost", "restart", "kept", "restart", "killed"):
        queue = rig.queue()
        ids = {rig.engine.publish([queue], b"", b"x", OS).id for _ in range(5)}
        assert not ids & seen
        seen |= ids
        starts.append(max(ids) >> START_SHIFT)
        stop(rig, how)
    assert starts == sorted(set(starts))


@pytest.mark.parametrize("how", STOPS)
def test_topology_survives(how: str) -> None:
    rig = EngineRig()
    rig.queue(b"orders")
    exchange, binding = (
        DurableExchange(b"logs", b"topic", 1),
        DurableBinding(b"logs", b"q", b"orders", b"#"),
    )
    for record in (
        exchange.record(), binding.record(), set_parameter(b"policy", b"a", b"1"),
        set_parameter(b"policy", b"b", b"2"), clear_parameter(b"policy", b"a"),
    ):  # fmt: skip
        rig.engine.apply_topology(record)
    rig.engine.sync()
    stop(rig, how)
    routing = rig.engine.state.routing
    assert routing.exchanges == {b"logs": exchange}
    assert list(routing.bindings) == [binding]
    assert routing.parameters == {(b"policy", b"b"): b"2"}
    assert sorted(routing.queues) == [b"orders"]


@pytest.mark.parametrize("how", STOPS)
def test_attempts_and_marks_survive(how: str) -> None:
    rig = EngineRig()
    queue = rig.queue()
    rig.put(queue, *[b"%d" % n for n in range(6)])
    rig.engine.requeue(queue, [(0, 1), (1, 7), (4, 2)], DISK)
    rig.engine.mark(queue, 5, DISK)
    rig.ack(queue, 0)
    rig.engine.sync()
    stop(rig, how)
    queue = rig.queue()
    assert (queue.attempts, queue.mark) == ({1: 7, 4: 2}, 5)
    rig.restart()
    assert rig.queue().attempts == {1: 7, 4: 2}


@pytest.mark.parametrize("how", STOPS)
def test_transient_messages_vanish(how: str) -> None:
    rig = EngineRig()
    queue = rig.queue()
    rig.put(queue, b"0")
    message = rig.engine.publish_transient([queue], b"", b"gone")
    assert (message.persistent, message.body, queue.next_seq) == (False, b"gone", 2)
    rig.put(queue, b"2")
    assert (queue.count, live_seqs(queue)) == (2, [0, 2])
    stop(rig, how)
    assert rig.bodies(rig.queue()) == {0: b"0", 2: b"2"}


@pytest.mark.parametrize("how", STOPS)
def test_queues_that_are_not_durable_vanish_and_their_numbers_are_not_used_again(how: str) -> None:
    rig = EngineRig()
    durable = rig.queue()
    passing = rig.engine.declare_queue(b"passing", is_durable=False)
    rig.engine.publish_transient([passing, durable], b"", b"x")
    with pytest.raises(ValueError, match="transient"):
        rig.engine.publish([passing], b"", b"x", DISK)
    stop(rig, how)
    assert [q.name for q in rig.engine.state.queues.values()] == [b"q"]
    assert rig.queue(b"new").number > passing.number


def test_messages_that_were_replayed_go_to_disk_and_are_replayed_no_more() -> None:
    rig = EngineRig()
    rig.put(rig.queue(), b"x", b"y")
    assert rig.crash("lost").recovered.records == 3
    assert rig.crash("lost").recovered.records == 0
    assert list(rig.bodies(rig.queue()).values()) == [b"x", b"y"]


def test_a_torn_tail_is_told() -> None:
    rig = EngineRig()
    queue = rig.queue()
    rig.engine.publish([queue], b"", b"x" * 100, DISK)
    rig.engine.publish([queue], b"", b"y" * 100, DISK)
    rig.engine.flush()
    assert rig.fs.last_write() is not None
    rig.fs = rig.fs.crash("torn", random.Random(1), cut=200, variant="prefix")
    rig.engine = rig._open()
    assert rig.engine.recovered.cut_records >= 1
    assert rig.told("torn_tail")
    assert list(rig.bodies(rig.queue()).values()) in ([], [b"x" * 100])


# ---- opening -----------------------------------------------------------------------------------


def test_two_engines_of_one_directory_are_one_too_many() -> None:
    rig = EngineRig()
    with pytest.raises(LockedError):
        EngineRig(rig.fs)
    rig.stop()
    EngineRig(rig.fs)


def test_an_engine_that_cannot_open_gives_the_lock_back_and_changes_nothing() -> None:
    rig = EngineRig()
    rig.put(rig.queue(), b"x")
    rig.stop()
    fs = rig.fs
    name = f"{PATH}/{next(n for n in fs.list(PATH) if n.startswith('checkpoint-'))}"
    fs.damage_flip(name, 100)
    before = {p: fs.read(p) for p in fs.names() if not p.endswith(("/", "LOCK"))}
    for _ in range(2):
        with pytest.raises(CorruptionError) as caught:
            EngineRig(fs)
        assert caught.value.path == name
    assert {p: fs.read(p) for p in fs.names() if not p.endswith(("/", "LOCK"))} == before


def test_a_directory_that_is_not_there_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        StorageEngine(
            FaultyFileSystem(), "/nowhere", VHOST, clock=SystemClock(), rng=random.Random(1)
        )


def test_a_disk_too_full_to_start_is_told_as_that() -> None:
    rig = EngineRig()
    rig.put(rig.queue(), *[b"x" * 100] * 10)
    fs = rig.fs.crash("lost")
    fs.capacity = fs.used_bytes() + 100
    with pytest.raises(DiskFullError):
        EngineRig(fs)
    fs.capacity = None
    again = EngineRig(fs)
    assert again.queue().count == 10


# ---- queues ------------------------------------------------------------------------------------


def test_an_unknown_queue_is_told_by_name() -> None:
    with pytest.raises(UnknownQueueError, match="orders"):
        EngineRig().engine.queue(b"orders")


def test_a_name_or_number_that_is_taken_is_refused_before_it_is_logged() -> None:
    rig = EngineRig()
    queue = rig.queue()
    lsn = rig.engine.log.last_lsn
    with pytest.raises(ValueError, match=r"b'q' exists"):
        rig.engine.declare_queue(b"q")
    with pytest.raises(ValueError, match="given out before"):
        rig.engine.apply_topology(DurableQueue(b"other", queue.number).record())
    with pytest.raises(ValueError, match="unknown topology operation"):
        rig.engine.apply_topology(b"\xff")
    assert rig.engine.log.last_lsn == lsn
    rig.engine.apply_topology(DurableQueue(b"q", queue.number, 5).record())
    rig.crash("kept")


def test_a_durable_declare_costs_no_file() -> None:
    rig = EngineRig(sections=True)
    rig.queue()
    rig.restart()
    assert rig.fs.list(PATH + "/queues") == []


@pytest.mark.parametrize("how", STOPS)
def test_a_deleted_queue_is_gone_with_its_messages_and_directory(how: str) -> None:
    rig = EngineRig()
    a, b = rig.declare(b"a", b"b")
    rig.put(a, b"x", BIG)
    rig.engine.publish([a, b], b"", BIG, DISK)
    rig.engine.checkpoint()
    assert rig.fs.exists(a.path)
    rig.engine.delete_queue(a)
    rig.engine.sync()
    stop(rig, how)
    rig.settle()
    rig.engine.checkpoint()
    assert [q.name for q in rig.engine.state.queues.values()] == [b"b"]
    assert not rig.fs.exists(a.path)
    assert rig.engine.state.store.live_count == 1
    assert list(rig.bodies(rig.queue(b"b")).values()) == [BIG]


def test_a_queue_declared_again_after_its_deletion_is_empty_and_has_another_number() -> None:
    rig = EngineRig()
    queue = rig.queue()
    rig.put(queue, b"x")
    rig.engine.delete_queue(queue)
    again = rig.engine.declare_queue(b"q")
    assert again.number > queue.number
    rig.engine.sync()
    rig.crash("lost")
    assert (rig.queue().number, rig.queue().count) == (again.number, 0)


@pytest.mark.parametrize("is_durable", [True, False])
def test_a_deleted_queue_without_a_directory_is_forgotten(is_durable: bool) -> None:
    """Each took 2 KB until a checkpoint, which what is not logged never begins."""
    rig = EngineRig()
    for n in range(3):
        queue = rig.engine.declare_queue(b"%d" % n, is_durable=is_durable)
        if is_durable:
            rig.engine.publish([queue], b"", b"x", OS)
        rig.engine.delete_queue(queue)
    rig.settle()
    state = rig.engine.state
    assert (state.queues, state.dying, state.deleted) == ({}, {}, [])
    rig.crash("lost")
    assert rig.engine.state.queues == {}


def test_directories_of_deleted_queues_go_after_a_while_though_nothing_is_logged() -> None:
    rig = EngineRig()
    queue = rig.engine.declare_queue(b"t", is_durable=False)
    rig.engine.checkpoint()
    queue.make_directory()
    rig.engine.delete_queue(queue)
    rig.clock.advance(OPTIONS.checkpoint_seconds)
    rig.settle()
    assert rig.fs.list(PATH + "/queues") == []
    assert rig.engine.state.deleted == []


def test_a_thousand_deleted_queues_are_enough_for_a_checkpoint() -> None:
    rig = EngineRig()
    for n in range(DELETED_MOST):
        rig.engine.tick()
        assert len(rig.engine.state.deleted) == n
        queue = rig.engine.declare_queue(b"%d" % n, is_durable=False)
        queue.make_directory()
        rig.engine.delete_queue(queue)
    rig.settle()
    assert rig.fs.list(PATH + "/queues") == []


def test_a_deleted_queue_takes_no_more_messages() -> None:
    rig = EngineRig()
    queue = rig.queue()
    rig.engine.delete_queue(queue)
    with pytest.raises(UnknownQueueError):
        rig.engine.publish([queue], b"", b"x", DISK)


# ---- the real disk -----------------------------------------------------------------------------


@pytest.mark.real
@pytest.mark.parametrize("workers", [0, 1])
def test_the_real_file_system_gives_the_same(tmp_path: object, workers: int) -> None:
    fs = OsFileSystem(workers=workers)
    for turn in range(3):
        directory = DataDirectory(fs, f"{tmp_path}/data")
        engine = StorageEngine(
            fs, directory.vhost_path(b"/"), b"/", clock=SystemClock(), rng=random.Random(turn),
            options=OPTIONS,
        )  # fmt: skip
        known = b"q" in engine.state.routing.queues
        queue = engine.queue(b"q") if known else engine.declare_queue(b"q")
        assert queue.count == turn * 16
        for n in range(20):
            engine.publish([queue], b"", b"%d" % n + (BIG if n % 3 else b""), DISK)
        engine.sync()
        heads = live_seqs(queue)[:4]
        engine.dequeue(queue, [engine.entry(queue, seq) for seq in heads], OS)
        engine.checkpoint()
        for seq in live_seqs(queue):
            engine.entry(queue, seq)
        engine.close()
        directory.close()
    fs.close()


def test_a_failure_while_a_logged_change_is_applied_stops_the_engine() -> None:
    """The log says it happened, RAM does not know all of it: only recovery can go on from there."""
    rig = EngineRig()
    queue = rig.queue()
    rig.put(queue, BIG)
    entries = rig.entries(queue, 0)

    class Failing(DictHolder):
        def drop(self, first: int, n: int) -> None:
            raise OSError(errno.EIO, "unreadable")

    queue.holder = Failing()
    with pytest.raises(OSError, match="unreadable"):
        rig.engine.dequeue(queue, entries, OS)
    with pytest.raises(StoppedError):
        rig.engine.publish([queue], b"", b"", OS)
    assert rig.told("stopped")
    rig.crash("killed")
    assert rig.bodies(rig.queue()) == {0: BIG}, "it was never written, and never confirmed"


def test_a_start_says_how_many_records_and_bytes_of_the_log_it_read() -> None:
    rig = EngineRig(wal_segment_bytes_max=1 << 20)
    (queue,) = rig.declare(b"q")
    rig.put(queue, b"x" * 100)
    rig.engine.sync()
    facts = rig.crash().facts()
    assert facts["recovery_records"] == 2
    assert 100 < int(str(facts["recovery_log_bytes"])) < 400
