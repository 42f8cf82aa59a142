"""QueueIndex: order, liveness and counts of one queue, and its state as of the last cut."""

import errno

import pytest

from penstock.errors import CorruptionError, SyncFailedError
from penstock.message import Entry, QueuedMessage
from penstock.storage.files.durability import DISK
from penstock.storage.index.queue_index import DictHolder, QueueIndex, SectionRow, Ticks
from penstock.storage.journal.checkpoint import DELETING, SLICES
from tests.helpers.engine_rig import EngineRig
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.inside import live_seqs

SLOTS = 4
SIZE = 10


def index(ticks: Ticks | None = None, fs: FaultyFileSystem | None = None) -> QueueIndex:
    fs = fs or FaultyFileSystem()
    fs.mkdir("/queues")
    ticks = ticks or Ticks()
    ticks.vhost_name = b"/"
    return QueueIndex(fs, "/queues/q.1", b"the queue", 7, 1, SLOTS, ticks, True)


def filled(n: int, *, stores: bool = False) -> QueueIndex:
    queue = index()
    for _ in range(n):
        queue.publish(SIZE, stores, 0)
    return queue


def entry(seq: int, body: bytes = b"0123456789", store: int = 0) -> Entry:
    in_ram = None if store else body
    return Entry(seq, QueuedMessage(100 + seq, b"", in_ram, len(body), 5, 0, store))


def take(queue: QueueIndex, *seqs: int, store: int = 0) -> None:
    for run in queue.runs([entry(seq, store=store) for seq in seqs]):
        assert queue.is_live_run(run)
        queue.dequeue(run)


# ---- order and counts --------------------------------------------------------------------------


def test_seqs_are_given_in_order_and_counted() -> None:
    queue = index()
    assert [queue.publish(n, n == 2, 0) for n in range(6)] == [0, 1, 2, 3, 4, 5]
    assert (queue.next_seq, queue.count, queue.bytes) == (6, 6, 15)
    assert live_seqs(queue) == [0, 1, 2, 3, 4, 5]
    assert (queue.segments[0].stores, queue.segments[1].stores) == (1, 0)
    assert queue.segments[1].bytes == 9


def test_a_queue_consumed_in_order_needs_no_bitmap() -> None:
    queue = filled(10)
    for seq in range(7):
        take(queue, seq)
    assert live_seqs(queue) == [7, 8, 9]
    assert all(segment.bitmap is None for segment in queue.segments.values())


def test_out_of_order_it_needs_one_where_it_is_partly_dead() -> None:
    queue = filled(12)
    take(queue, 5)
    assert [queue.segments[n].bitmap is None for n in (0, 1, 2)] == [True, False, True]
    assert live_seqs(queue) == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11]
    assert not queue.is_live(5)


def test_a_gap_of_transient_messages_is_not_alive() -> None:
    queue = filled(1)
    assert queue.take_seq() == 1
    queue.publish(SIZE, False, 0)
    assert live_seqs(queue) == [0, 2]
    assert (queue.count, queue.next_seq) == (2, 3)


def test_an_entry_is_applied_at_most_once() -> None:
    queue = filled(3)
    assert not queue.enqueue(2, SIZE, False, 0)
    assert (queue.count, queue.bytes) == (3, 30)
    assert queue.enqueue(9, SIZE, False, 0)
    assert live_seqs(queue) == [0, 1, 2, 9]


def test_the_latest_expiry_of_a_segment_is_kept() -> None:
    queue = index()
    for expiry in (5, 9, 2):
        queue.publish(SIZE, False, expiry)
    assert queue.segments[0].expiry_ms == 9


def test_a_dead_segment_goes_at_once_and_waits_for_a_checkpoint_to_be_deleted() -> None:
    queue = filled(9)
    take(queue, 0, 1, 2, 3)
    assert sorted(queue.segments) == [1, 2]
    assert queue.ticks.dead == [(1, 0)]


def test_an_empty_tail_stays_until_the_queue_has_moved_on() -> None:
    queue = filled(3)
    take(queue, 0, 1, 2)
    assert (sorted(queue.segments), queue.ticks.dead) == ([0], [])
    queue.publish(SIZE, False, 0)
    queue.publish(SIZE, False, 0)
    take(queue, 3)
    assert (sorted(queue.segments), queue.ticks.dead) == ([1], [(1, 0)])


def restored(queue: QueueIndex) -> QueueIndex:
    """As recovery makes it of a section: no tail is known."""
    other = index(queue.ticks)
    other.next_seq, other.count, other.bytes = queue.next_seq, queue.count, queue.bytes
    other.segments = queue.segments
    return other


def test_an_empty_tail_of_before_a_restart_goes_when_transient_messages_move_on() -> None:
    queue = restored(filled(3))
    take(queue, 0, 1, 2)
    queue.take_seq()
    queue.publish(SIZE, False, 0)
    assert (sorted(queue.segments), queue.ticks.dead) == ([1], [(1, 0)])


def test_an_empty_tail_of_before_a_crash_goes_when_seqs_jump() -> None:
    queue = restored(filled(3))
    take(queue, 0, 1, 2)
    queue.skip_to(8)
    assert (queue.segments, queue.ticks.dead, queue.next_seq) == ({}, [(1, 0)], 8)


def test_seqs_never_go_back() -> None:
    queue = filled(6)
    queue.skip_to(4)
    assert queue.next_seq == 6
    queue.skip_to(8)
    assert queue.publish(SIZE, False, 0) == 8


# ---- runs --------------------------------------------------------------------------------------


def test_runs_cross_no_border_of_a_segment() -> None:
    queue = filled(12)
    entries = [entry(2), entry(3), entry(4, store=7), entry(5), entry(7), entry(8)]
    assert queue.runs(entries) == [
        (2, 2, 20, 0),
        (4, 2, 20, 1),
        (7, 1, 10, 0),
        (8, 1, 10, 0),
    ]
    assert queue.runs([]) == []


@pytest.mark.parametrize("seqs", [(3, 3), (3, 2), (0, 1, 0)])
def test_runs_must_ascend(seqs: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="they must ascend"):
        filled(4).runs([entry(seq) for seq in seqs])


def test_a_run_is_alive_only_if_all_of_it_is() -> None:
    queue = filled(8)
    take(queue, 1)
    assert queue.is_live_run((2, 2, 20, 0))
    assert not queue.is_live_run((0, 2, 20, 0))
    assert not queue.is_live_run((100, 1, 10, 0))
    assert not queue.is_live_run((8, 1, 10, 0))


def test_a_consumed_head_is_not_alive_again() -> None:
    queue = filled(4)
    take(queue, 0)
    assert not queue.is_live_run((0, 1, 10, 0))


# ---- purge -------------------------------------------------------------------------------------


def test_purge_leaves_nothing_but_what_is_kept() -> None:
    queue = filled(10)
    kept = queue.runs([entry(1), entry(2), entry(9)])
    assert queue.purge(queue.next_seq, kept) == {}
    assert live_seqs(queue) == [1, 2, 9]
    assert (queue.count, queue.bytes) == (3, 30)
    assert queue.ticks.dead == [(1, 1)]


def test_purge_answers_with_what_died_where_the_store_was_referred_to() -> None:
    queue = index()
    for seq in range(8):
        queue.publish(SIZE, seq < 4, 0)
    take(queue, 0, store=5)
    dead = queue.purge(8, queue.runs([entry(2, store=5)]))
    assert dead == {0: bytearray([0b1010])}


def test_after_a_purge_the_queue_goes_on_where_it_was() -> None:
    queue = filled(6)
    queue.purge(6, [])
    assert queue.publish(SIZE, False, 0) == 6
    assert live_seqs(queue) == [6]


def test_a_purge_up_to_a_border_spares_what_is_above() -> None:
    queue = filled(7)
    queue.purge(4, [])
    assert live_seqs(queue) == [4, 5, 6]


def test_who_dies_is_asked_for_the_store_and_for_a_checkpoint() -> None:
    queue = filled(6)
    assert not queue.asks_for_dead()
    queue.publish(SIZE, True, 0)
    assert queue.asks_for_dead()
    queue.purge(7, [])
    assert not queue.asks_for_dead()
    queue.ticks.epoch += 1
    assert queue.asks_for_dead()
    queue.capture()
    assert queue.asks_for_dead()
    queue.sliced()
    assert not queue.asks_for_dead()


# ---- attempts and the mark ---------------------------------------------------------------------


def test_attempts_are_of_the_living() -> None:
    queue = filled(4)
    for seq in (0, 1, 2, 9):
        queue.set_attempts(seq, seq + 1)
    assert queue.attempts == {0: 1, 1: 2, 2: 3}
    take(queue, 0)
    assert queue.attempts == {1: 2, 2: 3}
    queue.purge(4, queue.runs([entry(2)]))
    assert queue.attempts == {2: 3}


def test_the_mark_only_rises() -> None:
    queue = index()
    queue.set_mark(1024)
    queue.set_mark(12)
    assert queue.mark == 1024


# ---- the cut -----------------------------------------------------------------------------------


def test_a_section_is_as_of_the_cut_whatever_happens_after_it() -> None:
    queue = filled(6)
    queue.set_attempts(1, 3)
    queue.ticks.epoch += 1
    take(queue, 0)
    take(queue, 4)
    queue.publish(SIZE, True, 0)
    queue.set_mark(77)
    queue.purge(queue.next_seq, [])
    section = queue.capture()
    assert (section.next_seq, section.mark, section.count, section.bytes) == (6, 0, 6, 60)
    seqs = [s for n in sorted(section.segments) for s in section.segments[n].seqs(SLOTS)]
    assert seqs == [0, 1, 2, 3, 4, 5]
    assert section.attempts == {1: 3}
    assert live_seqs(queue) == []


def test_a_queue_that_does_not_change_is_captured_when_asked() -> None:
    queue = filled(2)
    queue.ticks.epoch += 1
    assert queue.captured is None
    assert queue.capture().count == 2
    assert queue.departed == []
    assert queue.cut_seq == 2


def test_segments_are_copied_one_by_one_as_they_change() -> None:
    queue = filled(12)
    before = dict(queue.segments)
    queue.ticks.epoch += 1
    take(queue, 5)
    same = [queue.segments[n] is before[n] for n in (0, 1, 2)]
    assert same == [True, False, True]


def test_reading_is_no_change() -> None:
    queue = filled(2)
    queue.ticks.epoch += 1
    queue.is_live(0)
    live_seqs(queue)
    assert (queue.captured, queue.changed) == (None, 0)


def test_when_its_slice_is_done_a_queue_owes_nothing_more() -> None:
    queue = filled(2)
    queue.ticks.epoch += 1
    queue.capture()
    queue.sliced()
    assert (queue.captured, queue.departed) == (None, None)
    assert queue.changed == 0, "the latest changed queues come first, and this one did not change"


# ---- files -------------------------------------------------------------------------------------


def test_a_queue_has_no_files_before_its_first_entry_is_written() -> None:
    queue = filled(3)
    assert queue.fs.list("/queues") == []
    queue.write([entry(0), entry(1), entry(2)])
    assert queue.fs.list("/queues/q.1") == [".queue_name", "0.qi", "0.qs"]
    assert queue.fs.read("/queues/q.1/.queue_name") == b"VHOST: /\nQUEUE: the queue\n"


def test_entries_go_to_the_files_of_their_segments_and_these_are_dirty() -> None:
    queue = filled(9)
    queue.write([entry(seq) for seq in (1, 2, 3, 4, 8)])
    assert sorted(queue.ticks.dirty) == ["/queues/q.1/0", "/queues/q.1/1", "/queues/q.1/2"]
    assert sorted(queue.ticks.dirty_directories) == ["/queues", "/queues/q.1"]
    found = queue.read([1, 2]) + queue.read([8])
    assert [m.id for m in found] == [101, 102, 108]


def test_a_name_as_older_versions_wrote_it_is_written_anew() -> None:
    queue = filled(1)
    queue.fs.mkdir("/queues")
    queue.fs.mkdir("/queues/q.1")
    queue.fs.open("/queues/q.1/.queue_name", create=True).pwrite(b"the queue\n", 0)
    queue.write([entry(0)])
    assert queue.fs.read("/queues/q.1/.queue_name") == b"VHOST: /\nQUEUE: the queue\n"


def test_a_name_that_was_cut_off_by_a_full_disk_is_written_again() -> None:
    queue = filled(1)
    assert isinstance(queue.fs, FaultyFileSystem)
    queue.fs.fail(28, kinds={"pwrite"}, path=".queue_name")
    with pytest.raises(OSError, match="No space"):
        queue.write([entry(0)])
    assert queue.fs.handles == {} or not any(queue.fs.handles.values())
    queue.write([entry(0)])
    assert queue.fs.read("/queues/q.1/.queue_name") == b"VHOST: /\nQUEUE: the queue\n"


def test_read_prefers_the_section_where_no_slot_is() -> None:
    queue = filled(3)
    queue.write([entry(1)])
    queue.section = {0: SectionRow(entry(0).message, 9), 2: SectionRow(entry(2).message, 9)}
    assert [m.id for m in queue.read([0, 1, 2])] == [100, 101, 102]


def test_a_slot_that_is_not_there_is_damage_with_its_place() -> None:
    queue = filled(3)
    queue.write([entry(1)])
    with pytest.raises(CorruptionError, match="slot of seq 2 of queue 1") as caught:
        queue.read([1, 2])
    assert caught.value.path == "/queues/q.1/0.qi"


def test_few_segments_of_a_queue_stay_open() -> None:
    queue = filled(40)
    queue.write([entry(seq) for seq in range(40)])
    for files in queue.ticks.dirty.values():
        files.is_dirty = False
    for number in range(10):
        assert queue.read([number * SLOTS])[0].id == 100 + number * SLOTS
    assert isinstance(queue.fs, FaultyFileSystem)
    assert sum(queue.fs.handles.values()) <= 2 * 10
    queue.close()
    assert sum(queue.fs.handles.values()) == 0


def test_a_segment_that_was_closed_is_written_again_without_a_sync() -> None:
    """A sync of one file of many may take half a second, and this one is on the owner's thread."""
    queue = filled(40)
    fs = queue.fs
    assert isinstance(fs, FaultyFileSystem)
    for number in range(10):
        queue.write([entry(number * SLOTS)])
        queue.files(number).sync()
        queue.files(number).is_dirty = False
    fault = fs.fail(errno.EIO, kinds=("sync",), times=None)
    for number in range(10):
        queue.write([entry(number * SLOTS + 1)])
        queue.files(number).is_dirty = False
    assert not fault.hits
    assert [m.id for m in queue.read([0, 1])] == [100, 101]
    fresh = index(fs=fs)  # as after a start
    for _ in range(4):
        fresh.publish(SIZE, False, 0)
    with pytest.raises(SyncFailedError):
        fresh.write([entry(2)])


# ---- transient messages and marks ----------------------------------------------------------------


def test_live_between_is_of_one_segment_and_clipped() -> None:
    rig = EngineRig()
    queue = rig.queue()
    rig.put(queue, *[b"x"] * 7)  # seqs 0 to 6, segments of 4
    rig.ack(queue, 1, 5)
    assert queue.live_between(0, 4) == [0, 2, 3]
    assert queue.live_between(2, 4) == [2, 3]
    assert queue.live_between(4, 8) == [4, 6]
    assert queue.live_between(40, 44) == []


def test_transient_messages_keep_the_files_of_their_segment() -> None:
    rig = EngineRig()
    queue = rig.queue()
    rig.put(queue, b"a")
    transient = QueuedMessage(99, b"", b"t", 1, 0, persistent=False)
    queue.write([*rig.entries(queue, 0), Entry(queue.take_seq(), transient)])
    queue.keep_transients(0, 1)
    rig.ack(queue, 0)
    rig.put(queue, *[b"b"] * 4)  # the queue goes on to the next segment
    rig.ack(queue, 2, 3)
    assert 0 not in queue.segments
    rig.engine.checkpoint()
    rig.engine.journal.finish()
    assert "0.qi" in rig.files_of(queue), "a transient message is in it"
    queue.keep_transients(0, -1)
    rig.put(queue, b"c")
    rig.engine.checkpoint()
    rig.engine.journal.finish()
    assert "0.qi" not in rig.files_of(queue)


def test_files_of_a_queue_that_is_not_durable_go_without_a_checkpoint() -> None:
    rig = EngineRig()
    queue = rig.engine.declare_queue(b"t", is_durable=False)
    transient = QueuedMessage(99, b"", b"t", 1, 0, persistent=False)
    queue.write([Entry(queue.take_seq(), transient)])
    queue.keep_transients(0, 1)
    assert not rig.engine.state.ticks.dirty, "never synced"
    before = rig.engine.checkpoints.count
    rig.engine.tick()
    assert "0.qi" in rig.files_of(queue)
    queue.keep_transients(0, -1)
    rig.engine.tick()
    rig.engine.journal.finish()
    assert "0.qi" in rig.files_of(queue), "the next message may be written to it"
    for _ in range(4):
        queue.take_seq()
    queue.keep_transients(1, 1)
    rig.engine.tick()
    rig.engine.journal.finish()
    assert rig.files_of(queue) == []
    assert rig.engine.checkpoints.count == before


def test_the_tail_is_not_deleted_under_a_message_that_comes_meanwhile() -> None:
    rig = EngineRig()
    queue = rig.queue()
    transient = QueuedMessage(99, b"", b"t", 1, 0, persistent=False)
    queue.write_bodies([Entry(queue.take_seq(), transient)])
    queue.keep_transients(0, 1)
    queue.keep_transients(0, -1)  # dead, and its segment is the tail
    rig.engine.upkeep.begin_checkpoint()
    while rig.engine.checkpoints.phase != DELETING:
        rig.engine.upkeep.step_checkpoint(float("inf"))
        while rig.engine.checkpoints.phase not in (DELETING, SLICES):
            rig.engine.flush()
            rig.engine.poll(wait=True)
    rig.put(queue, b"b")
    entry = rig.entries(queue, 1)[0]
    queue.write([entry])
    entry.on_slot = True
    rig.finish_checkpoint()  # what it deletes is deleted now
    queue.holder = DictHolder()
    assert rig.bodies(queue) == {1: b"b"}


def test_the_mark_is_lowered_only_for_an_orderly_stop() -> None:
    rig = EngineRig()
    queue = rig.queue()
    rig.engine.mark(queue, 1024, DISK)
    queue.set_mark(5)
    assert queue.mark == 1024
    queue.lower_mark(5)
    assert rig.restart().queue(b"q").mark == 5
