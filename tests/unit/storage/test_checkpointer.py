"""Checkpointer: the instant of the cut, what goes where, and what may be deleted when."""

import errno

import pytest

from penstock.message import Entry
from penstock.storage.files.durability import DISK
from penstock.storage.index.queue_index import QueueIndex, Section
from penstock.storage.index.routing_table import DurableQueue, set_parameter
from penstock.storage.journal import checkpoint
from penstock.storage.journal.checkpoint import CHUNK, IDLE, SLICES, SYNC, encode_queue
from penstock.storage.journal.journal import delete
from tests.helpers.builds import pure_only
from tests.helpers.engine_rig import PATH, STORED, EngineRig
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.inside import live_seqs

BIG = b"B" * STORED
CRASHES = ["lost", "kept", "killed"]


def filled(rig: EngineRig, name: bytes, n: int, *, size: int = 10) -> QueueIndex:
    queue = rig.queue(name)
    for i in range(n):
        rig.engine.publish([queue], b"h%d" % i, (b"%d" % i).ljust(size, b"."), DISK)
    rig.engine.sync()
    return queue


def numbered(n: int, *, size: int = 10) -> dict[int, bytes]:
    return {i: (b"%d" % i).ljust(size, b".") for i in range(n)}


def cut(rig: EngineRig) -> None:
    """The instant of a checkpoint, and no slice of it."""
    rig.engine.upkeep.begin_checkpoint()
    phase: str = rig.engine.checkpoints.phase
    assert phase == SLICES


# ---- slices ------------------------------------------------------------------------------------


@pure_only
@pytest.mark.parametrize("has_messages", [False, True])
def test_no_step_encodes_more_than_a_chunk_of_queues(
    monkeypatch: pytest.MonkeyPatch, has_messages: bool
) -> None:
    rig = EngineRig(sections=True)
    queues = rig.declare(*(b"q%d" % n for n in range(3 * CHUNK)))
    if has_messages:
        for queue in queues:
            rig.put(queue, b"x")
        rig.engine.sync()
    encoded: list[int] = []

    def encode(number: int, section: Section, slots: int) -> bytes:
        encoded[-1] += 1
        return encode_queue(number, section, slots)

    def record(self: DurableQueue) -> bytes:
        encoded[-1] += 1
        return bytes_of(self)

    bytes_of = DurableQueue.record
    monkeypatch.setattr(checkpoint, "encode_queue", encode)
    monkeypatch.setattr(DurableQueue, "record", record)
    cut(rig)
    while rig.engine.checkpoints.phase == SLICES:
        encoded.append(0)
        rig.engine.upkeep.step_checkpoint(0.0)
    rig.finish_checkpoint()
    assert sum(encoded) == 2 * len(queues)
    assert max(encoded) <= CHUNK
    rig.crash("lost")
    assert len(rig.engine.queues) == len(queues)
    assert rig.engine.recovered.records == 0


# ---- the instant -------------------------------------------------------------------------------


@pytest.mark.parametrize("sections", [False, True])
@pytest.mark.parametrize("how", CRASHES)
def test_what_comes_after_the_cut_is_in_the_log_and_not_in_the_checkpoint(
    sections: bool, how: str
) -> None:
    rig = EngineRig(sections=sections)
    queue = rig.queue()
    rig.put(queue, b"0", BIG)
    cut(rig)
    rig.put(queue, b"2", b"3" + BIG)
    rig.ack(queue, 1)
    rig.engine.apply_topology(set_parameter(b"a", b"b", b"c"))
    rig.engine.mark(queue, 9, DISK)
    rig.engine.sync()
    rig.finish_checkpoint()
    rig.crash(how)
    assert rig.engine.recovered.records == 5
    queue = rig.queue()
    assert rig.bodies(queue) == {0: b"0", 2: b"2", 3: b"3" + BIG}
    assert queue.mark == 9
    assert rig.engine.state.routing.parameters == {(b"a", b"b"): b"c"}


def captured(queue: QueueIndex) -> Section | None:
    return queue.captured


def test_a_cut_copies_nothing_and_a_section_is_copied_at_the_first_change() -> None:
    rig = EngineRig()
    queue = rig.queue()
    rig.put(queue, b"0")
    cut(rig)
    assert captured(queue) is None
    rig.ack(queue, 0)
    section = captured(queue)
    assert section is not None
    assert (section.count, queue.count) == (1, 0)
    rig.finish_checkpoint()
    assert captured(queue) is None


def test_slices_go_on_as_long_as_they_are_given_time() -> None:
    rig = EngineRig()
    queues = rig.declare(b"a", b"b", b"c")
    for queue in queues:
        rig.put(queue, b"x")
    cut(rig)
    steps = 0
    while rig.engine.checkpoints.phase == SLICES:
        rig.engine.upkeep.step_checkpoint(rig.clock.monotonic())
        steps += 1
    assert steps > 3
    assert rig.engine.checkpoints.phase == SYNC
    rig.finish_checkpoint()
    assert all(rig.is_on_slot(queue, 0) for queue in queues)


def test_a_queue_declared_after_the_cut_is_of_the_next_checkpoint() -> None:
    rig = EngineRig()
    rig.queue(b"old")
    cut(rig)
    new = rig.queue(b"new")
    rig.put(new, b"x")
    rig.finish_checkpoint()
    assert rig.files_of(new) == []
    rig.crash("lost")
    assert rig.bodies(rig.queue(b"new")) == {0: b"x"}


def test_the_directory_that_a_checkpoint_makes_for_a_deleted_queue_goes_with_the_next() -> None:
    rig = EngineRig()
    queue = rig.queue()
    rig.put(queue, b"x")
    cut(rig)
    rig.engine.delete_queue(queue)
    assert rig.engine.state.deleted == [queue]
    queue.make_directory()
    rig.finish_checkpoint()
    rig.settle()
    assert rig.engine.checkpoint()
    assert not rig.fs.exists(queue.path)
    assert rig.engine.state.deleted == []


@pytest.mark.parametrize("how", CRASHES)
def test_a_queue_deleted_after_the_cut_is_gone(how: str) -> None:
    rig = EngineRig()
    queue = rig.queue()
    rig.put(queue, b"x", BIG)
    cut(rig)
    rig.engine.delete_queue(queue)
    rig.engine.sync()
    rig.finish_checkpoint()
    rig.crash(how)
    rig.settle()
    rig.engine.checkpoint()
    assert not rig.fs.exists(queue.path)
    assert rig.engine.state.store.live_count == 0


# ---- departed: what may be left out ------------------------------------------------------------


def test_an_entry_dequeued_after_the_cut_is_left_out_only_if_that_is_durable() -> None:
    for is_durable in (False, True):
        rig = EngineRig()
        queue = rig.queue()
        rig.put(queue, b"0", b"1", b"2")
        cut(rig)
        rig.ack(queue, 1)
        if is_durable:
            rig.engine.sync()
        else:
            rig.engine.flush()
        rig.finish_checkpoint()
        assert rig.is_on_slot(queue, 1) != is_durable
        assert rig.is_on_slot(queue, 2)


@pytest.mark.parametrize("sections", [False, True])
@pytest.mark.parametrize("body", [b"inline", BIG])
def test_a_dequeue_that_a_power_cut_took_back_finds_its_message(
    sections: bool, body: bytes
) -> None:
    rig = EngineRig(sections=sections)
    queue = rig.queue()
    rig.put(queue, b"0", body)
    rig.fs.fail("lie", kinds={"sync"}, path="/wal/", times=None)
    cut(rig)
    rig.ack(queue, 1)
    rig.finish_checkpoint()
    rig.fs.clear_faults()
    rig.crash("lost")
    assert rig.bodies(rig.queue()) == {0: b"0", 1: body}


def test_a_durable_purge_does_not_let_an_entry_be_left_out() -> None:
    """Its slot is read for references, so it must be there."""
    rig = EngineRig()
    queue = rig.queue()
    rig.put(queue, b"0", BIG)
    cut(rig)
    rig.engine.purge(queue, [], DISK)
    rig.engine.sync()
    rig.finish_checkpoint()
    assert rig.is_on_slot(queue, 0)
    assert rig.is_on_slot(queue, 1)
    rig.crash("lost")
    assert rig.queue().count == 0
    rig.settle()
    assert rig.engine.state.store.live_count == 0


def test_a_move_after_the_cut_keeps_both_ends_right() -> None:
    for how in CRASHES:
        rig = EngineRig()
        a, b = rig.declare(b"a", b"b")
        rig.put(a, BIG, b"inline")
        cut(rig)
        for entry in rig.entries(a, 0, 1):
            rig.engine.move(a, entry, [b], b"h", DISK)
        rig.engine.sync()
        rig.finish_checkpoint()
        rig.crash(how)
        assert rig.bodies(rig.queue(b"a")) == {}
        assert list(rig.bodies(rig.queue(b"b")).values()) == [BIG, b"inline"]
        assert rig.engine.state.store.live_count == 1


# ---- files that may go -------------------------------------------------------------------------


def test_dead_segments_and_the_checkpoint_before_go_only_after_current() -> None:
    rig = EngineRig()
    queue = filled(rig, b"q", 12)
    rig.engine.checkpoint()
    assert rig.files_of(queue) == ["0.qi", "0.qs", "1.qi", "1.qs", "2.qi", "2.qs"]
    rig.ack(queue, *range(5))
    rig.engine.sync()
    assert len(rig.files_of(queue)) == 6
    journal = rig.fs.start_journal()
    rig.engine.checkpoint()
    assert rig.files_of(queue) == ["1.qi", "1.qs", "2.qi", "2.qs"]
    kinds = [(entry.kind, entry.path) for entry in journal.entries]
    renamed = next(i for i, (k, p) in enumerate(kinds) if "CURRENT" in p and k == "rename")
    durable = next(i for i, k in enumerate(kinds) if i > renamed and k == ("sync_dir", PATH))
    unlinked = [i for i, (kind, _) in enumerate(kinds) if kind == "unlink"]
    assert unlinked
    assert min(unlinked) > durable


def test_data_is_synced_before_the_manifest_is_written() -> None:
    rig = EngineRig()
    queue = filled(rig, b"q", 3)
    rig.put(queue, BIG)
    journal = rig.fs.start_journal()
    rig.engine.checkpoint()
    kinds = [(entry.kind, entry.path) for entry in journal.entries]
    manifest = next(i for i, (k, p) in enumerate(kinds) if "checkpoint-" in p and k == "create")
    for ending in (".qi", ".qs", ".queue_name"):
        assert any(k == "sync" and p.endswith(ending) for k, p in kinds[:manifest]), ending
    assert ("sync_dir", queue.path) in kinds[:manifest]
    assert ("sync_dir", PATH + "/queues") in kinds[:manifest]


def test_the_old_log_goes_with_the_checkpoint() -> None:
    rig = EngineRig()
    queue = rig.queue()
    for _ in range(30):
        rig.put(queue, b"x" * 120, b"y" * 120, b"z" * 120, b"w" * 120)
    assert len(rig.fs.list(PATH + "/wal")) > 3
    rig.engine.checkpoint()
    rig.settle()
    # The one in use, at most two spares, one ahead.
    assert len(rig.fs.list(PATH + "/wal")) <= 4
    rig.crash("lost")
    assert rig.queue().count == 120


def test_store_files_that_are_dead_at_the_cut_go_and_others_stay() -> None:
    rig = EngineRig(msg_store_file_size_limit=256)
    queue = rig.queue()
    rig.put(queue, *[b"%d" % n + BIG for n in range(6)])
    rig.engine.checkpoint()
    before = len(rig.store_names())
    rig.ack(queue, 0, 1, 2)
    rig.engine.sync()
    cut(rig)
    rig.ack(queue, 3)
    rig.engine.sync()
    rig.finish_checkpoint()
    assert before - len(rig.store_names()) == 3
    rig.crash("kept")
    assert rig.bodies(rig.queue()) == {4: b"4" + BIG, 5: b"5" + BIG}


def test_a_file_that_cannot_be_deleted_is_told_and_no_failure() -> None:
    rig = EngineRig()
    queue = filled(rig, b"q", 8)
    rig.engine.checkpoint()
    rig.ack(queue, *range(4))
    rig.engine.sync()
    rig.fs.fail(errno.EIO, kinds={"unlink"}, path=".qi")
    assert rig.engine.checkpoint()
    assert rig.told("clean")
    rig.restart()
    assert "0.qi" not in rig.files_of(rig.queue()), "the next start deletes it"


def test_pinned_files_stay() -> None:
    rig = EngineRig()
    queue = filled(rig, b"q", 8)
    rig.engine.checkpoint()
    rig.engine.journal.pins.count += 1
    rig.ack(queue, *range(4))
    rig.engine.sync()
    rig.engine.checkpoint()
    assert "0.qi" in rig.files_of(queue)
    assert queue.path + "/0.qi" in rig.engine.journal.pins.paths


# ---- no space ----------------------------------------------------------------------------------


@pytest.mark.parametrize("sections", [False, True])
@pytest.mark.parametrize("path", ["/queues/", "msg_store", "checkpoint-", "CURRENT.new"])
def test_out_of_space_it_is_given_up_and_made_later(sections: bool, path: str) -> None:
    rig = EngineRig(sections=sections)
    queue = filled(rig, b"q", 6)
    number = rig.engine.checkpoints.number
    fault = rig.fs.fail(
        errno.ENOSPC, kinds={"pwrite", "create", "mkdir", "allocate"}, path=path, times=None
    )
    made = rig.engine.checkpoint()
    if not fault.hits:
        assert made
        return
    assert not made
    assert rig.engine.checkpoints.phase == IDLE
    assert (rig.engine.checkpoints.number, rig.engine.blocked) == (number, True)
    assert rig.told("disk_full")
    assert rig.bodies(queue) == numbered(6)
    rig.ack(queue, 0)
    rig.engine.sync()
    rig.fs.clear_faults()
    after = EngineRig(rig.fs.crash("lost"), sections=sections)
    assert sorted(after.bodies(after.queue())) == [1, 2, 3, 4, 5]
    assert rig.engine.checkpoint()
    rig.crash("lost")
    assert sorted(rig.bodies(rig.queue())) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("nth", range(1, 9))
@pytest.mark.parametrize("how", CRASHES)
def test_out_of_space_while_a_queue_grows_out_of_its_section(nth: int, how: str) -> None:
    rig = EngineRig(sections=True, small_queue_entries=4)
    queue = filled(rig, b"q", 3)
    rig.engine.checkpoint()
    for i in range(3, 7):
        rig.put(queue, (b"%d" % i).ljust(10, b"."))
    rig.fs.fail(errno.ENOSPC, kinds={"pwrite", "create", "mkdir"}, nth=nth, times=3)
    rig.engine.checkpoint()
    rig.fs.clear_faults()
    assert rig.bodies(queue) == numbered(7)
    fork = EngineRig(rig.fs.crash(how), sections=True, small_queue_entries=4)
    assert fork.bodies(fork.queue()) == numbered(7)
    rig.ack(queue, 0, 1, 2, 3)
    rig.engine.sync()
    assert rig.engine.checkpoint()
    rig.crash(how)
    assert sorted(rig.bodies(rig.queue())) == [4, 5, 6]
    rig.engine.checkpoint()
    rows = sum(1 for row in rig.queue().section.values() if row.body_file)
    assert rig.engine.state.store.live_count == rows


def test_the_reserve_is_given_back_when_a_checkpoint_needs_the_room() -> None:
    rig = EngineRig()
    queue = filled(rig, b"q", 6)
    rig.clock.advance(2)
    rig.settle()
    reserve = rig.engine.journal.reserve
    assert reserve.bytes > 0
    rig.fs.capacity = rig.fs.used_bytes()
    assert rig.engine.checkpoint(), "the reserve was room enough"
    assert reserve.bytes == 0
    assert rig.bodies(queue) == numbered(6)
    rig.fs.capacity = None
    rig.crash("lost")
    assert rig.bodies(rig.queue()) == numbered(6), "what was tried again has its slot"


def test_what_a_given_up_checkpoint_would_have_deleted_goes_with_the_next() -> None:
    rig = EngineRig(msg_store_file_size_limit=256)
    a, b = filled(rig, b"a", 8), filled(rig, b"b", 2)
    rig.put(a, BIG, BIG)
    rig.engine.checkpoint()
    rig.ack(a, *range(4), 8, 9)
    rig.engine.delete_queue(b)
    rig.engine.sync()
    rig.fs.fail(errno.ENOSPC, kinds={"pwrite"}, path="checkpoint-", times=2)
    assert not rig.engine.checkpoint()
    assert "0.qi" in rig.files_of(a)
    assert rig.fs.exists(b.path)
    assert rig.store_names() == ["1.rdq", "2.rdq"]
    assert rig.engine.checkpoint()
    assert rig.files_of(a) == ["1.qi", "1.qs", "2.qi"]
    assert not rig.fs.exists(b.path)
    assert rig.store_names() == ["2.rdq"], "that of the next bodies"


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_slice_that_is_tried_again_on_the_reserve_counts_nothing_twice(nth: int) -> None:
    rig = EngineRig(sections=True)
    queue = filled(rig, b"q", 3)
    rig.clock.advance(2)
    rig.settle()
    assert rig.engine.journal.reserve.bytes
    rig.engine.publish([queue], b"", BIG, DISK)  # into a store file that nobody will have sealed
    rig.engine.sync()
    rig.fs = rig.fs.crash("kept")
    fault = rig.fs.fail(errno.ENOSPC, kinds={"create", "pwrite"}, path="msg_store", nth=nth)
    rig.engine = rig._open()
    assert fault.hits
    rig.fs.clear_faults()
    for _ in range(2):
        queue = rig.queue()
        assert rig.bodies(queue) == {**numbered(3), 3: BIG}
        assert rig.engine.state.store.live_count == 4
        rig.crash("lost")


@pytest.mark.parametrize("path", ["/queues/", "checkpoint-"])
def test_a_quota_is_a_full_disk_too(path: str) -> None:
    rig = EngineRig()
    filled(rig, b"q", 3)
    rig.fs.fail(errno.EDQUOT, kinds={"pwrite"}, path=path, times=2)
    assert not rig.engine.checkpoint()
    assert rig.engine.failed is None
    assert rig.engine.checkpoint()


# ---- paging beside it --------------------------------------------------------------------------


def test_what_paging_put_on_slots_meanwhile_is_left_as_it_is() -> None:
    rig = EngineRig()
    queue = filled(rig, b"q", 4)
    cut(rig)
    entries: list[Entry] = list(queue.holder.materialise(4))
    queue.write(entries)
    for entry in entries:
        entry.on_slot = True
    queue.holder.materialised(entries)
    rig.finish_checkpoint()
    rig.crash("lost")
    assert rig.engine.recovered.records == 0
    assert rig.bodies(rig.queue()) == numbered(4)


def test_delete_takes_what_is_there() -> None:
    fs = FaultyFileSystem()
    fs.mkdir("/tree")
    for name in ("/a", "/tree/b", "/tree/c"):
        fs.open(name, create=True).close()
    delete(fs, ["/a", "/missing"], ["/tree", "/gone"])
    assert fs.names() == []


def test_counts_in_a_checkpoint_are_those_of_its_cut() -> None:
    rig = EngineRig()
    a, b = rig.declare(b"a", b"b")
    rig.engine.publish([a, b], b"", BIG, DISK)
    rig.engine.sync()
    cut(rig)
    rig.ack(a, 0)
    rig.engine.publish([b], b"", b"2" + BIG, DISK)
    rig.engine.sync()
    rig.finish_checkpoint()
    rig.crash("lost")
    message = rig.engine.entry(rig.queue(b"b"), 0).message
    assert rig.engine.state.store.refs(message.store_file, message.id) == 1
    assert rig.engine.state.store.live_count == 2
    rig.ack(rig.queue(b"b"), *live_seqs(rig.queue(b"b")))
    assert rig.engine.state.store.live_count == 0
