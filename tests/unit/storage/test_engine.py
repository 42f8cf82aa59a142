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
    SyncFailedError,
    UnknownQueueError,
)
from penstock.message import START_SHIFT, Entry, Message
from penstock.storage.data_directory import DataDirectory
from penstock.storage.engine import StorageEngine
from penstock.storage.filesystem import OsFileSystem
from penstock.storage.routing_table import (
    Binding,
    DurableQueue,
    Exchange,
    clear_parameter,
    set_parameter,
)
from penstock.storage.store_state import OWN_FILE
from penstock.storage.transaction_log import DISK, INTERVAL, OS
from tests.helpers.engine_rig import OPTIONS, PATH, STORED, VHOST, EngineRig
from tests.helpers.faulty_filesystem import FaultyFileSystem

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
    lsn = rig.engine.last_lsn
    assert rig.engine.settled(DISK) < lsn
    rig.engine.flush()
    assert rig.engine.settled(DISK) < lsn <= rig.engine.settled(OS)
    rig.engine.poll(wait=True)
    assert rig.engine.settled(DISK) >= lsn


@pytest.mark.parametrize("mode", [OS, INTERVAL])
def test_in_weaker_modes_after_the_write(mode: int) -> None:
    rig = EngineRig()
    queue = rig.queue()
    rig.engine.publish([queue], b"", b"x", mode)
    rig.engine.flush()
    rig.engine.poll(wait=True)
    assert rig.engine.settled(mode) == rig.engine.last_lsn > rig.engine.settled(DISK)


@pytest.mark.parametrize("mode", [OS, INTERVAL, DISK])
@pytest.mark.parametrize("wanted", [OS, INTERVAL, DISK])
def test_wait_does_all_that_is_needed(mode: int, wanted: int) -> None:
    rig = EngineRig()
    queue = rig.queue()
    rig.engine.publish([queue], b"", b"x", mode)
    rig.engine.wait(rig.engine.last_lsn, wanted)
    assert rig.engine.settled(wanted) == rig.engine.last_lsn


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
    assert rig.engine.settled(DISK) >= lsn


def test_interval_mode_is_synced_every_interval() -> None:
    rig = EngineRig(interval_ms=200)
    queue = rig.queue()
    rig.engine.publish([queue], b"", b"x", INTERVAL)
    rig.engine.flush()
    rig.clock.advance(0.1)
    rig.engine.tick()
    rig.engine.poll(wait=True)
    assert rig.engine.settled(DISK) < rig.engine.last_lsn
    rig.clock.advance(0.1)
    rig.engine.tick()
    rig.engine.poll(wait=True)
    assert rig.engine.settled(DISK) == rig.engine.last_lsn


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
        headers = [rig.engine.entry(a, seq).message.header for seq in a.live_seqs()]
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
    rig.engine.close()
    for name in rig.fs.list(PATH + "/wal"):
        rig.fs.damage_zero_tail(f"{PATH}/wal/{name}", 1 << 20)
    again = EngineRig(rig.fs)
    assert (again.engine.recovered.is_clean, again.engine.recovered.records) == (True, 0)
    assert list(again.bodies(again.queue()).values()) == [b"x", b"y"]


def test_after_a_clean_stop_seqs_and_queue_numbers_go_on_without_a_gap() -> None:
    rig = EngineRig()
    queue = rig.queue()
    rig.put(queue, b"x")
    rig.engine.mark(queue, 100, DISK)
    rig.restart()
    queue = rig.queue()
    assert (queue.next_seq, queue.mark) == (1, 100)
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
        assert queue.live_seqs() == [0, 1, wanted]


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
    exchange, binding = Exchange(b"logs", b"topic", 1), Binding(b"logs", b"q", b"orders", b"#")
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
    assert (queue.count, queue.live_seqs()) == (2, [0, 2])
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
    rig.engine.close()
    EngineRig(rig.fs)


def test_an_engine_that_cannot_open_gives_the_lock_back_and_changes_nothing() -> None:
    rig = EngineRig()
    rig.put(rig.queue(), b"x")
    rig.engine.close()
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
    fs.capacity = fs.used_bytes()
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
    lsn = rig.engine.last_lsn
    with pytest.raises(ValueError, match=r"b'q' is there"):
        rig.engine.declare_queue(b"q")
    with pytest.raises(ValueError, match="given out before"):
        rig.engine.apply_topology(DurableQueue(b"other", queue.number).record())
    with pytest.raises(ValueError, match="unknown topology operation"):
        rig.engine.apply_topology(b"\xff")
    assert rig.engine.last_lsn == lsn
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


def test_a_deleted_queue_takes_no_more_messages() -> None:
    rig = EngineRig()
    queue = rig.queue()
    rig.engine.delete_queue(queue)
    with pytest.raises(UnknownQueueError):
        rig.engine.publish([queue], b"", b"x", DISK)


# ---- dequeue, purge, requeue -------------------------------------------------------------------


def test_what_is_not_alive_cannot_be_acknowledged() -> None:
    rig = EngineRig()
    queue = rig.queue()
    rig.put(queue, *[b"%d" % n for n in range(6)])
    entries = rig.entries(queue, 0, 1, 2)
    rig.engine.dequeue(queue, entries[:1], OS)
    lsn = rig.engine.last_lsn
    for wrong in (entries[:1], entries, [entries[1], entries[1]], [entries[2], entries[1]]):
        with pytest.raises(ValueError, match=r"not alive|must ascend"):
            rig.engine.dequeue(queue, wrong, OS)
    assert (rig.engine.last_lsn, queue.count) == (lsn, 5)


def test_many_runs_in_one_ack() -> None:
    rig = EngineRig()
    queue = rig.queue()
    rig.put(queue, *[b"%d" % n for n in range(30)])
    rig.ack(queue, *range(0, 30, 2))
    rig.engine.sync()
    rig.crash("lost")
    assert rig.queue().live_seqs() == list(range(1, 30, 2))


@pytest.mark.parametrize("how", STOPS)
@pytest.mark.parametrize("is_materialised", [False, True])
@pytest.mark.parametrize("sections", [False, True])
def test_a_purge_leaves_what_is_unacknowledged(
    how: str, is_materialised: bool, sections: bool
) -> None:
    rig = EngineRig(sections=sections)
    a, b = rig.declare(b"a", b"b")
    for n in range(6):
        rig.engine.publish([a, b] if n == 5 else [a], b"", b"%d" % n + BIG, DISK)
    rig.engine.sync()
    if is_materialised:
        rig.engine.checkpoint()
    kept = rig.entries(a, 1, 4)
    lsn, died = rig.engine.purge(a, kept, DISK)
    assert (died, a.count, a.live_seqs()) == (4, 2, [1, 4])
    rig.put(a, b"new")
    rig.engine.wait(lsn, DISK)
    stop(rig, how)
    a = rig.queue(b"a")
    assert list(rig.bodies(a).values()) == [b"1" + BIG, b"4" + BIG, b"new"]
    rig.settle()
    small = len(a.section) and 1  # the body of "new", on behalf of the section
    assert rig.engine.state.store.live_count == 3 + small
    assert rig.engine.state.store.refs(*_address(rig, b"b")) == 1


def _address(rig: EngineRig, name: bytes) -> tuple[int, int]:
    """Of the first message of a queue."""
    queue = rig.queue(name)
    message = rig.engine.entry(queue, queue.next_live(0)).message
    return message.store_file, message.id


# ---- move --------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", STOPS)
@pytest.mark.parametrize("body", [b"", b"inline", BIG])
@pytest.mark.parametrize("is_materialised", [False, True])
def test_a_move_is_all_or_nothing_whatever_its_placement(
    how: str, body: bytes, is_materialised: bool
) -> None:
    rig = EngineRig()
    a, b, c = rig.declare(b"a", b"b", b"c")
    rig.put(a, b"first", body)
    if is_materialised:
        rig.engine.checkpoint()
    (entry,) = rig.entries(a, 1)
    lsn, moved = rig.engine.move(a, entry, [b, c], b"x-death", DISK, 1_900_000_000_000)
    assert moved.id == entry.message.id
    rig.engine.wait(lsn, DISK)
    stop(rig, how)
    a, b, c = rig.queue(b"a"), rig.queue(b"b"), rig.queue(b"c")
    assert list(rig.bodies(a).values()) == [b"first"]
    for queue in (b, c):
        message = rig.engine.entry(queue, 0).message
        assert (message.body, message.header) == (body, b"x-death")
        assert message.expiry_ms == 1_900_000_000_000
    assert rig.engine.state.store.live_count == (1 if body == BIG else 0)
    if body == BIG:
        assert rig.engine.state.store.refs(*_address(rig, b"b")) == 2


def test_a_large_body_is_moved_by_reference() -> None:
    rig = EngineRig()
    a, b = rig.declare(b"a", b"b")
    rig.put(a, b"L" * 3000)
    written = rig.engine.state.store.written_bytes
    before = rig.engine.log.appended_bytes
    rig.engine.move(a, rig.entries(a, 0)[0], [b], b"", DISK)
    assert rig.engine.state.store.written_bytes == written
    assert rig.engine.log.appended_bytes - before < 200


def test_a_move_to_nowhere_is_a_dequeue_and_to_itself_a_requeue() -> None:
    rig = EngineRig()
    queue = rig.queue()
    rig.put(queue, b"0", BIG, b"2")
    rig.engine.move(queue, rig.entries(queue, 0)[0], [], b"", DISK)
    rig.engine.move(queue, rig.entries(queue, 1)[0], [queue], b"again", DISK)
    assert queue.live_seqs() == [2, 3]
    rig.engine.sync()
    rig.crash("lost")
    assert list(rig.bodies(rig.queue()).values()) == [b"2", BIG]
    assert rig.engine.state.store.live_count == 1


def test_what_is_not_alive_cannot_be_moved() -> None:
    rig = EngineRig()
    a, b = rig.declare(b"a", b"b")
    rig.put(a, b"x")
    (entry,) = rig.entries(a, 0)
    rig.ack(a, 0)
    with pytest.raises(ValueError, match="not alive"):
        rig.engine.move(a, entry, [b], b"", DISK)
    assert b.count == 0


# ---- placement and spooling --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "copies", "in_store"),
    [(0, 1, False), (127, 1, False), (128, 1, True), (31, 2, False), (32, 2, True), (16, 4, True),
     (0, 100, False)],
)  # fmt: skip
def test_the_placement_is_of_size_and_copies(size: int, copies: int, in_store: bool) -> None:
    assert EngineRig().engine.places_in_store(size, copies) == in_store


def spooled(rig: EngineRig, *pieces: bytes) -> Message:
    message = rig.engine.new_message(b"", b"")
    spool = rig.engine.state.store.spool(message.id)
    for piece in pieces:
        spool.write(piece)
    message.store_file = spool.finish()
    message.size, message.body = len(b"".join(pieces)), None
    return message


@pytest.mark.parametrize("how", STOPS)
def test_a_spooled_body_is_published_without_being_copied(how: str) -> None:
    rig = EngineRig()
    a, b = rig.declare(b"a", b"b")
    message = spooled(rig, b"one ", b"two ", b"three")
    assert message.store_file & OWN_FILE
    rig.engine.publish_spooled([a, b], b"header", message, DISK)
    rig.engine.sync()
    stop(rig, how)
    for name in (b"a", b"b"):
        found = rig.engine.entry(rig.queue(name), 0).message
        assert (found.body, found.header) == (b"one two three", b"header")
    rig.ack(rig.queue(b"a"), 0)
    rig.ack(rig.queue(b"b"), 0)
    rig.engine.sync()
    assert rig.engine.state.store.live_count == 0


@pytest.mark.parametrize("how", ["lost", "kept", "restart"])
def test_a_spooled_body_that_was_never_published_is_deleted(how: str) -> None:
    rig = EngineRig()
    rig.queue()
    spooled(rig, b"orphan")
    spool = rig.engine.state.store.spool(rig.engine.new_message(b"", b"").id)
    spool.write(b"unfinished")
    stop(rig, how)
    rig.engine.checkpoint()
    names = [n for n in rig.fs.names() if n.endswith(".msg")]
    assert names == []


@pytest.mark.parametrize("how", STOPS)
def test_a_very_large_body_has_a_file_of_its_own_which_goes_with_it(how: str) -> None:
    rig = EngineRig(own_file_from=1000)
    queue = rig.queue()
    rig.put(queue, b"V" * 1500)
    stop(rig, how)
    queue = rig.queue()
    assert rig.bodies(queue) == {0: b"V" * 1500}
    assert len([n for n in rig.fs.names() if n.endswith(".msg")]) == 1
    rig.ack(queue, 0)
    rig.engine.sync()
    rig.engine.checkpoint()
    assert not [n for n in rig.fs.names() if n.endswith(".msg")]


def test_a_body_that_the_disk_has_no_room_for_is_refused_whole() -> None:
    rig = EngineRig()
    queue = rig.queue()
    rig.fs.fail(errno.ENOSPC, kinds={"pwrite", "create"}, path="msg_store_persistent")
    with pytest.raises(DiskFullError):
        rig.engine.publish([queue], b"", BIG, DISK)
    assert (queue.count, queue.next_seq, rig.engine.blocked) == (0, 0, True)
    with pytest.raises(DiskFullError):
        rig.engine.publish([queue], b"", b"small", DISK)
    assert rig.told("disk_full")


# ---- reading -----------------------------------------------------------------------------------


def test_entries_are_read_from_ram_slots_and_store() -> None:
    rig = EngineRig()
    queue = rig.queue()
    rig.put(queue, b"0", BIG)
    rig.engine.checkpoint()
    rig.put(queue, b"2")
    assert rig.engine.entry(queue, 0).on_slot
    assert not rig.engine.entry(queue, 2).on_slot
    assert list(rig.bodies(queue).values()) == [b"0", BIG, b"2"]
    assert [m.body for m in rig.engine.read(queue, [0, 1])] == [b"0", None]


def test_a_dead_entry_is_not_read() -> None:
    rig = EngineRig()
    queue = rig.queue()
    rig.put(queue, b"0")
    rig.ack(queue, 0)
    for seq in (0, 1, 99):
        with pytest.raises(KeyError):
            rig.engine.entry(queue, seq)


@pytest.mark.parametrize("part", [".qi", ".qs", ".rdq"])
def test_damage_names_file_and_position_and_spares_the_rest(part: str) -> None:
    rig = EngineRig()
    queue = rig.queue()
    rig.put(queue, b"body zero", b"1" + BIG, b"body two")
    rig.restart()
    queue = rig.queue()
    path = next(n for n in rig.fs.names() if n.endswith(part))
    data = rig.fs.read(path)
    at = 64 + 32 if part == ".qi" else data.index(b"1BB" if part == ".rdq" else b"body zero")
    rig.fs.damage_flip(path, at + 8)
    seq = 0 if part == ".qs" else 1
    rig.engine.state.close()
    with pytest.raises(CorruptionError) as caught:
        rig.engine.entry(queue, seq)
    assert caught.value.path == path
    assert rig.engine.entry(queue, 2).message.body == b"body two"


# ---- failure -----------------------------------------------------------------------------------


def calls(rig: EngineRig, queue_name: bytes = b"q") -> list[object]:
    engine = rig.engine
    queue = engine.state.queues[engine.state.routing.queues[queue_name].number]
    entry = Entry(0, Message(1, b"", b"x", 1, 0))
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
        assert callable(call)
        with pytest.raises(StoppedError):
            call()


@pytest.mark.parametrize("kind", ["sync", "pwrite"])
def test_after_a_failed_sync_or_write_of_the_log_nothing_is_confirmed_any_more(kind: str) -> None:
    rig = EngineRig()
    queue = rig.queue()
    rig.put(queue, b"x")
    before = [rig.engine.settled(mode) for mode in (OS, INTERVAL, DISK)]
    rig.fs.fail(errno.EIO, kinds={kind}, path="/wal/")
    rig.engine.publish([queue], b"", b"y", DISK)
    with pytest.raises((SyncFailedError, StoppedError)):
        rig.engine.sync()
    after = [rig.engine.settled(mode) for mode in (OS, INTERVAL, DISK)]
    if kind == "pwrite":
        assert after == before
    assert rig.engine.settled(DISK) == before[2]
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
    lsn = rig.engine.last_lsn
    with pytest.raises((SyncFailedError, StoppedError)):
        rig.engine.wait(lsn, DISK)
    assert rig.engine.settled(DISK) < lsn
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
    rig.engine.stop(OSError(errno.EIO, "somewhere else"))
    operations = rig.fs.operations
    rig.engine.close()
    assert rig.fs.operations <= operations + 1, "the lock file alone"
    EngineRig(rig.fs)


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
        heads = queue.live_seqs()[:4]
        engine.dequeue(queue, [engine.entry(queue, seq) for seq in heads], OS)
        engine.checkpoint()
        for seq in queue.live_seqs():
            engine.entry(queue, seq)
        engine.close()
        directory.close()
    fs.close()
