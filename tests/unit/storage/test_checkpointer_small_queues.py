"""Checkpointer and small queues: slots and headers in the checkpoint, bodies in one store file."""

import errno

import pytest

from penstock.storage.files.durability import DISK
from penstock.storage.index.queue_index import QueueIndex
from penstock.storage.journal.checkpoint import SLICES, SYNC
from tests.helpers.engine_rig import PATH, STORED, EngineRig
from tests.helpers.inside import live_seqs

BIG = b"B" * STORED
CRASHES = ["lost", "kept", "killed"]


def cut(rig: EngineRig) -> None:
    """The instant of a checkpoint, and no slice of it."""
    rig.engine.upkeep.begin_checkpoint()
    phase: str = rig.engine.checkpoints.phase
    assert phase == SLICES


def filled(rig: EngineRig, name: bytes, n: int, *, size: int = 10) -> QueueIndex:
    queue = rig.queue(name)
    for i in range(n):
        rig.engine.publish([queue], b"h%d" % i, (b"%d" % i).ljust(size, b"."), DISK)
    rig.engine.sync()
    return queue


def numbered(n: int, *, size: int = 10) -> dict[int, bytes]:
    return {i: (b"%d" % i).ljust(size, b".") for i in range(n)}


def test_small_queues_share_one_sealed_store_file_and_have_no_files_of_their_own() -> None:
    rig = EngineRig(sections=True)
    queues = [filled(rig, b"q%d" % i, 3) for i in range(5)]
    rig.engine.checkpoint()
    assert all(rig.files_of(queue) == [] for queue in queues)
    assert all(sorted(queue.section) == [0, 1, 2] for queue in queues)
    assert len(rig.store_names()) == len(rig.store_names(".hint")) == 1
    files = {row.body_file for queue in queues for row in queue.section.values()}
    assert len(files) == 1
    assert rig.engine.state.store.live_count == 15


@pytest.mark.parametrize("how", ["restart", *CRASHES])
def test_sections_survive_a_restart_over_and_over(how: str) -> None:
    rig = EngineRig(sections=True)
    queue = filled(rig, b"q", 5)
    rig.put(queue, BIG, b"")
    rig.engine.checkpoint()
    wanted = {**numbered(5), 5: BIG, 6: b""}
    for _ in range(3):
        rig.restart() if how == "restart" else rig.crash(how)
        queue = rig.queue()
        assert rig.engine.recovered.records == 0
        assert rig.bodies(queue) == wanted
        assert rig.engine.entry(queue, 3).message.header == b"h3"
        assert rig.files_of(queue) == []
        assert rig.engine.state.store.live_count == 6


def test_a_shared_small_body_is_in_the_sections_store_file_once() -> None:
    rig = EngineRig(sections=True)
    queues = rig.declare(b"a", b"b", b"c")
    rig.engine.publish(queues, b"", b"shared", DISK)
    rig.engine.checkpoint()
    store = rig.engine.state.store
    assert store.live_count == 1
    row = queues[0].section[0]
    assert store.refs(row.body_file, row.message.id) == 3
    for n, queue in enumerate(queues):
        rig.ack(queue, 0)
        assert store.refs(row.body_file, row.message.id) == 2 - n
    rig.restart()
    assert rig.engine.state.store.live_count == 0


@pytest.mark.parametrize("how", ["restart", *CRASHES])
def test_a_row_that_is_acknowledged_gives_its_body_back(how: str) -> None:
    rig = EngineRig(sections=True)
    queue = filled(rig, b"q", 4)
    rig.engine.checkpoint()
    rig.ack(queue, 0, 2)
    rig.engine.sync()
    assert rig.engine.state.store.live_count == 2
    rig.restart() if how == "restart" else rig.crash(how)
    assert sorted(rig.bodies(rig.queue())) == [1, 3]
    assert rig.engine.state.store.live_count == 2
    rig.engine.purge(rig.queue(), [], DISK)
    rig.engine.sync()
    rig.settle()
    assert rig.engine.state.store.live_count == 0
    rig.engine.checkpoint()
    assert rig.store_names() == []


@pytest.mark.parametrize("how", ["restart", *CRASHES])
@pytest.mark.parametrize("is_cold", [False, True])
def test_a_queue_that_grows_out_of_its_section_gets_slots_and_gives_its_bodies_back(
    how: str, is_cold: bool
) -> None:
    rig = EngineRig(sections=True, small_queue_entries=4)
    queue = filled(rig, b"q", 3)
    if is_cold:
        rig.restart()
        queue = rig.queue()
    else:
        rig.engine.checkpoint()
    assert sorted(queue.section) == [0, 1, 2]
    for i in range(3, 7):
        rig.put(queue, (b"%d" % i).ljust(10, b"."), header=b"h%d" % i)
    rig.engine.checkpoint()
    assert queue.section == {}
    assert all(rig.is_on_slot(queue, seq) for seq in range(7))
    assert rig.engine.state.store.live_count == 0
    rig.restart() if how == "restart" else rig.crash(how)
    queue = rig.queue()
    assert rig.bodies(queue) == numbered(7)
    assert [rig.engine.entry(queue, seq).message.header for seq in (0, 6)] == [b"h0", b"h6"]
    assert rig.engine.state.store.live_count == 0


def test_a_row_dequeued_between_cut_and_slice_of_a_growing_queue_is_counted_once() -> None:
    for how in CRASHES:
        rig = EngineRig(sections=True, small_queue_entries=4)
        queue = filled(rig, b"q", 3)
        rig.engine.checkpoint()
        for i in range(3, 7):
            rig.put(queue, (b"%d" % i).ljust(10, b"."))
        cut(rig)
        rig.ack(queue, 1, 4)
        rig.engine.sync()
        rig.finish_checkpoint()
        assert rig.engine.state.store.live_count == 0
        rig.crash(how)
        assert sorted(rig.bodies(rig.queue())) == [0, 2, 3, 5, 6]
        assert rig.engine.state.store.live_count == 0


def test_a_queue_that_shrinks_keeps_its_slots_and_new_entries_go_to_its_section() -> None:
    rig = EngineRig(sections=True, small_queue_entries=4)
    queue = filled(rig, b"q", 6)
    rig.engine.checkpoint()
    rig.ack(queue, 0, 1, 2, 3)
    rig.put(queue, b"6")
    rig.engine.checkpoint()
    assert sorted(queue.section) == [6]
    assert rig.files_of(queue) == ["1.qi", "1.qs"]
    rig.crash("lost")
    assert rig.bodies(rig.queue()) == {4: b"4.........", 5: b"5.........", 6: b"6"}


def test_out_of_the_section_and_in_again_many_times() -> None:
    rig = EngineRig(sections=True, small_queue_entries=4)
    queue = rig.queue()
    model: dict[int, bytes] = {}
    for turn in range(12):
        for i in range(5 if turn % 2 else 1):
            model[queue.next_seq] = b"%d.%d" % (turn, i)
            rig.put(queue, model[queue.next_seq])
        if turn % 3 == 2:
            seqs = sorted(model)[: len(model) // 2 + 1]
            rig.ack(queue, *seqs)
            for seq in seqs:
                del model[seq]
            rig.engine.sync()
        rig.engine.checkpoint()
        if turn % 4 == 1:
            rig.crash("lost") if turn % 8 == 1 else rig.restart()
            queue = rig.queue()
        assert rig.bodies(queue) == model
        assert rig.engine.state.store.live_count == sum(
            1 for row in queue.section.values() if row.body_file
        )


def test_many_bytes_make_a_queue_large_too() -> None:
    rig = EngineRig(sections=True, small_queue_bytes=100)
    small, large = filled(rig, b"small", 3), filled(rig, b"large", 3, size=60)
    rig.engine.checkpoint()
    assert (len(small.section), len(large.section)) == (3, 0)
    assert rig.files_of(large) == ["0.qi", "0.qs"]


def test_beyond_the_limit_of_all_sections_the_longest_unchanged_get_files() -> None:
    rig = EngineRig(sections=True, small_queues_bytes_max=390)
    queues = []
    for i in range(6):
        queues.append(filled(rig, b"q%d" % i, 2))
        rig.engine.checkpoint()
    has_files = [bool(rig.files_of(queue)) for queue in queues]
    assert has_files == [True, True, True, False, False, False]
    assert [len(queue.section) for queue in queues] == [0, 0, 0, 2, 2, 2]
    rig.crash("lost")
    assert all(rig.bodies(rig.queue(b"q%d" % i)) == numbered(2) for i in range(6))


def test_a_damaged_body_of_a_section_is_told_and_its_queue_stays_in_its_section() -> None:
    rig = EngineRig(sections=True, small_queue_entries=4)
    filled(rig, b"q", 3)
    rig.restart()
    queue = rig.queue()
    (name,) = rig.store_names()
    path = f"{PATH}/msg_store_persistent/{name}"
    rig.fs.damage_flip(path, rig.fs.read(path).index(b"1........."))
    rig.put(queue, b"3", b"4")
    rig.engine.checkpoint()
    assert sorted(queue.section) == [0, 1, 2, 3, 4]
    assert any(path in text for text in rig.told("corruption"))
    rig.crash("lost")
    queue = rig.queue()
    readable = [seq for seq in live_seqs(queue) if seq != 1]
    assert [rig.engine.entry(queue, seq).message.body for seq in readable] == [
        b"0.........", b"2.........", b"3", b"4",
    ]  # fmt: skip


def test_a_checkpoint_of_unchanged_small_queues_writes_no_body_again() -> None:
    rig = EngineRig(sections=True)
    filled(rig, b"q", 5)
    rig.engine.checkpoint()
    names = rig.store_names()
    for _ in range(3):
        rig.engine.checkpoint()
    assert rig.store_names() == names


def test_the_first_writes_after_a_start_sync_no_segment_file_beside_the_worker() -> None:
    """Files from before a start are synced before they are written to [8]: while it starts, or not
    at all, for a sync of one file may take half a second on the owner's thread."""
    rig = EngineRig(sections=True, segment_slots=8, small_queue_entries=4)
    queue = filled(rig, b"q", 4)
    rig.engine.checkpoint()  # slots in segment 0
    rig.ack(queue, 0, 1)
    rig.put(queue, b"row")
    rig.engine.checkpoint()  # and a row of the same segment in the section
    assert sorted(queue.section) == [4]
    rig.restart()
    queue = rig.queue()
    fault = rig.fs.fail(errno.EIO, kinds=("sync",), path=queue.path, times=None)
    rig.put(queue, *[b"new %d" % n for n in range(4)])
    queue.write([rig.engine.entry(queue, queue.next_seq - 1)])  # as the Purger does
    cut(rig)
    rig.engine.upkeep.step_checkpoint(float("inf"))
    assert rig.engine.checkpoints.phase == SYNC
    assert not fault.hits
    rig.fs.clear_faults()
    rig.finish_checkpoint()
    assert queue.section == {}
    rig.restart()
    bodies = list(rig.bodies(rig.queue()).values())
    assert bodies == [b"2.........", b"3.........", b"row", *[b"new %d" % n for n in range(4)]]
