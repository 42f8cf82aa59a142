"""Leases in an engine: records, slots, checkpoints, the store, damage, and the tools."""

import errno
import random

import pytest

from penstock.clock import ManualClock
from penstock.errors import (
    CorruptionError,
    DiskFullError,
    StoppedError,
    UnknownLeaseError,
    UnknownQueueError,
)
from penstock.storage.files.durability import DISK, OS
from penstock.storage.index.queue_index import QueueIndex
from penstock.storage.parts.lease_engine import Taken
from penstock.storage.tools.backup import backup
from penstock.storage.tools.dump import dump
from penstock.storage.tools.salvage import salvage
from penstock.storage.tools.stats import stats
from penstock.storage.tools.verify import verify
from tests.helpers.engine_rig import STORED, EngineRig
from tests.helpers.inside import live_seqs
from tests.helpers.tiny_engine import PATH


def take(rig: EngineRig, queue: QueueIndex, *seqs: int) -> Taken:
    """Live entries, as a queue would give them up."""
    entries = rig.entries(queue, *seqs)
    return Taken(queue, entries, [entry.message.body or b"" for entry in entries], 0)


def lease(rig: EngineRig, queue: QueueIndex, *seqs: int, reader: str = "r") -> tuple[int, int]:
    found = rig.engine.leases.lease(queue, reader, [take(rig, queue, *seqs)], DISK)
    rig.engine.sync()
    return found


def leased(queue: QueueIndex) -> list[int]:
    return [seq for seq in live_seqs(queue) if queue.leased.has(seq)]


@pytest.fixture(params=[True, False], ids=["sections", "files"])
def rig(request: pytest.FixtureRequest) -> EngineRig:
    return EngineRig(sections=request.param)


def filled(rig: EngineRig, n: int = 12, size: int = 20) -> QueueIndex:
    queue = rig.queue()
    rig.put(queue, *[(b"m%d;" % i).ljust(size, b".") for i in range(n)])
    return queue


def test_a_lease_gives_ordinals_and_keeps_them(rig: EngineRig) -> None:
    queue = filled(rig)
    assert lease(rig, queue, 0, 1, 2) == (0, 3)
    assert lease(rig, queue, 3, 5) == (3, 5)
    assert lease(rig, queue, 4, reader="other") == (0, 1)
    for stop in (rig.restart, rig.crash):
        stop()
        queue = rig.queue()
        assert leased(queue) == [0, 1, 2, 3, 4, 5]
        assert queue.ready_between(0, 4) == []
        assert queue.ready_between(4, 8) == [6, 7]
        assert queue.first_ready() == 6
        assert {r: (x.committed, x.next) for r, x in rig.engine.leases.of(queue).items()} == {
            "r": (0, 5), "other": (0, 1),
        }  # fmt: skip
    assert rig.bodies(queue)[5] == b"m5;".ljust(20, b".")


def test_everything_is_on_its_slot_or_in_the_section_when_the_record_is_made(
    rig: EngineRig,
) -> None:
    queue = filled(rig)
    rig.engine.checkpoint()
    rig.put(queue, b"late")
    taken = take(rig, queue, 0, 12)
    rig.engine.leases.lease(queue, "r", [taken], DISK)
    assert all(entry.on_slot or entry.seq in queue.section for entry in taken.entries)


def test_a_commit_in_slices_and_in_the_middle_of_a_run(rig: EngineRig) -> None:
    queue = filled(rig)
    lease(rig, queue, *range(10))
    engine = rig.engine
    assert engine.leases.commit(queue, "r", 0, DISK) is False
    assert engine.leases.commit(queue, "r", 3, DISK) is False
    assert live_seqs(queue) == list(range(3, 12))
    engine.sync()
    rig.crash()
    queue = rig.queue()
    assert (live_seqs(queue), leased(queue)) == (list(range(3, 12)), list(range(3, 10)))
    assert (queue.count, queue.bytes, queue.leased.bytes) == (9, 180, 140)
    assert rig.engine.leases.commit(queue, "r", 10, DISK) is False
    assert (live_seqs(queue), queue.leased.count) == ([10, 11], 0)
    rig.stop()


def test_many_slices_are_committed_in_several_calls(
    rig: EngineRig,
) -> None:
    rig.engine.state.leases.runs_max = 3
    queue = filled(rig)
    for seq in range(8):
        lease(rig, queue, seq)
    calls = 1
    while rig.engine.leases.commit(queue, "r", 8, DISK):
        calls += 1
    assert calls == 3
    assert live_seqs(queue) == [8, 9, 10, 11]


def test_ordinals_that_were_never_leased_are_not_committed(rig: EngineRig) -> None:
    queue = filled(rig)
    lease(rig, queue, 0, 1)
    before = rig.engine.log.last_lsn
    with pytest.raises(ValueError, match="up to ordinal 2, it cannot commit 3"):
        rig.engine.leases.commit(queue, "r", 3, DISK)
    with pytest.raises(UnknownLeaseError, match="'other' has no lease"):
        rig.engine.leases.commit(queue, "other", 1, DISK)
    with pytest.raises(UnknownLeaseError):
        rig.engine.leases.release(queue, "other", DISK)
    assert rig.engine.log.last_lsn == before


@pytest.mark.parametrize("reader", ["", "x" * 256])
def test_a_readers_name_has_1_to_255_bytes(rig: EngineRig, reader: str) -> None:
    queue = filled(rig)
    with pytest.raises(ValueError, match="1 to 255 bytes"):
        lease(rig, queue, 0, reader=reader)
    assert leased(queue) == []


def test_a_release_makes_all_ready_and_forgets_the_reader(rig: EngineRig) -> None:
    queue = filled(rig)
    lease(rig, queue, 0, 1, 2, 3, 4)
    before = rig.engine.leases.of(queue)["r"].id
    assert rig.engine.leases.release(queue, "r", DISK) is False
    assert rig.engine.leases.of(queue) == {}
    rig.engine.sync()
    rig.crash()
    queue = rig.queue()
    assert (leased(queue), queue.count) == ([], 12)
    assert lease(rig, queue, 0) == (0, 1)
    assert rig.engine.leases.of(queue)["r"].id != before


def test_a_release_that_was_begun_goes_on_after_a_restart(
    rig: EngineRig,
) -> None:
    rig.engine.state.leases.runs_max = 1
    queue = filled(rig)
    lease(rig, queue, 0, 1)
    lease(rig, queue, 2, 3)
    assert rig.engine.leases.release(queue, "r", DISK) is True
    with pytest.raises(UnknownLeaseError):
        lease(rig, queue, 4)
    with pytest.raises(UnknownLeaseError):
        rig.engine.leases.commit(queue, "r", 4, DISK)
    for stop in (rig.restart, rig.crash):
        rig.engine.sync()
        stop()
        queue = rig.queue()
        assert rig.engine.leases.of(queue)["r"].is_releasing
        assert leased(queue) == [2, 3]
    assert rig.engine.leases.release(queue, "r", DISK) is False
    assert leased(queue) == []


def test_a_purge_keeps_what_is_leased(rig: EngineRig) -> None:
    queue = filled(rig, size=STORED)
    lease(rig, queue, 1, 2, 6)
    kept = rig.entries(queue, 4)
    assert rig.engine.purge(queue, kept, DISK)[1] == 8
    rig.engine.sync()
    assert live_seqs(queue) == [1, 2, 4, 6]
    rig.crash()
    queue = rig.queue()
    assert live_seqs(queue) == [1, 2, 4, 6]
    assert rig.bodies(queue)[6] == b"m6;".ljust(STORED, b".")
    rig.stop()


def test_references_to_the_store_are_given_back(rig: EngineRig) -> None:
    queue = filled(rig, 9, STORED)
    rig.engine.checkpoint()
    lease(rig, queue, *range(9))
    rig.engine.checkpoint()
    store = rig.engine.state.store
    assert store.live_count == 9
    rig.engine.leases.commit(queue, "r", 5, DISK)
    assert store.live_count == 4
    rig.engine.sync()
    rig.crash()
    queue, store = rig.queue(), rig.engine.state.store
    assert store.live_count == 4
    rig.engine.leases.commit(queue, "r", 9, DISK)
    assert store.live_count == 0
    rig.stop()


def test_a_queue_is_deleted_with_its_leases(rig: EngineRig) -> None:
    queue = filled(rig, size=STORED)
    lease(rig, queue, 0, 1, 2)
    rig.engine.delete_queue(queue)
    assert rig.engine.state.leases.by_queue == {}
    with pytest.raises(UnknownQueueError):
        rig.engine.leases.commit(queue, "r", 1, DISK)
    with pytest.raises(UnknownQueueError):
        rig.engine.leases.release(queue, "r", DISK)
    with pytest.raises(UnknownQueueError):
        rig.engine.leases.lease(queue, "r", [], DISK)
    rig.engine.sync()
    rig.crash()
    assert rig.engine.state.leases.by_queue == {}
    rig.stop()


def test_records_of_a_queue_that_is_gone_mean_nothing(rig: EngineRig) -> None:
    queue = filled(rig)
    rig.engine.checkpoint()
    lease(rig, queue, 0, 1, 2)
    rig.engine.leases.commit(queue, "r", 2, DISK)
    rig.engine.delete_queue(queue)
    rig.engine.sync()
    rig.crash("kept")
    assert rig.engine.state.leases.by_queue == {}


# ---- failure -------------------------------------------------------------------------------------


def test_slots_that_cannot_be_written_leave_all_as_it_was(rig: EngineRig) -> None:
    queue = filled(rig)
    rig.engine.checkpoint()
    rig.put(queue, b"late")
    before = rig.engine.log.last_lsn
    rig.fs.fail(errno.ENOSPC, kinds={"pwrite"})
    with pytest.raises(DiskFullError):
        rig.engine.leases.lease(queue, "r", [take(rig, queue, 12)], DISK)
    assert (leased(queue), rig.engine.log.last_lsn, rig.engine.leases.of(queue)) == ([], before, {})


def test_nothing_is_leased_on_a_full_disk_and_commits_go_on(rig: EngineRig) -> None:
    queue = filled(rig)
    lease(rig, queue, 0, 1, 2)
    rig.engine.journal.blocked = True
    with pytest.raises(DiskFullError):
        rig.engine.leases.lease(queue, "r", [take(rig, queue, 3)], DISK)
    rig.engine.leases.commit(queue, "r", 1, DISK)
    rig.engine.leases.release(queue, "r", DISK)
    assert live_seqs(queue) == list(range(1, 12))


def test_a_stopped_engine_leases_nothing(rig: EngineRig) -> None:
    queue = filled(rig)
    lease(rig, queue, 0, 1)
    taken = take(rig, queue, 3)
    rig.engine.journal.stop(OSError("broken"))
    for call in (
        lambda: rig.engine.leases.lease(queue, "r", [taken], DISK),
        lambda: rig.engine.leases.commit(queue, "r", 1, DISK),
        lambda: rig.engine.leases.release(queue, "r", DISK),
    ):
        with pytest.raises(StoppedError):
            call()


def test_a_damaged_slot_costs_its_reference_and_nothing_else() -> None:
    rig = EngineRig()
    queue = filled(rig, 8, STORED)
    lease(rig, queue, *range(8))
    rig.restart()
    queue = rig.queue()
    rig.fs.damage_flip(f"{queue.path}/0.qi", 64 + 32 + 8, 3)
    rig.engine.leases.commit(queue, "r", 3, DISK)
    assert live_seqs(queue) == [3, 4, 5, 6, 7]
    rig.engine.leases.commit(queue, "r", 8, DISK)
    assert (queue.count, queue.bytes, queue.leased.count, queue.leased.bytes) == (0, 0, 0, 0)
    assert rig.told("corruption")
    assert rig.engine.state.store.live_count == 1


def test_a_checkpoint_whose_lease_names_no_queue_is_corrupt() -> None:
    rig = EngineRig()
    queue = filled(rig)
    lease(rig, queue, 0)
    other = rig.queue(b"other")
    number = queue.number
    leases = rig.engine.state.leases.by_queue
    leases[other.number + 50] = leases.pop(number)
    leases[other.number + 50]["r"].queue = other.number + 50
    rig.engine.checkpoint()
    with pytest.raises(CorruptionError, match="no such queue"):
        rig.crash()


# ---- checkpoints, backups, tools -----------------------------------------------------------------


def test_leases_through_a_checkpoint_in_progress(rig: EngineRig) -> None:
    """Leased, committed and released between its cut and its end: it has what was at the cut."""
    queue = filled(rig)
    lease(rig, queue, 0, 1, 2, 3)
    rig.engine.checkpoints.begin()
    lease(rig, queue, 4, 5)
    rig.engine.leases.commit(queue, "r", 2, DISK)
    lease(rig, queue, 6, reader="other")
    rig.engine.leases.release(queue, "other", DISK)
    rig.engine.checkpoints.step(1e18)
    rig.engine.sync()
    rig.engine.poll(wait=True)
    rig.engine.sync()
    rig.crash()
    queue = rig.queue()
    assert (leased(queue), queue.count) == ([2, 3, 4, 5], 10)
    found = rig.engine.leases.of(queue)
    assert {r: (x.committed, x.next) for r, x in found.items()} == {"r": (2, 6)}
    rig.stop()


def test_a_backup_has_the_leases_as_of_its_cut(rig: EngineRig) -> None:
    queue = filled(rig)
    lease(rig, queue, 0, 1, 2)
    rig.engine.leases.commit(queue, "r", 1, DISK)
    (done,) = backup([rig.engine], "/backup")
    assert done.checkpoint_number
    report = verify(rig.fs, "/backup")
    assert report.is_fine
    assert any("'r'" in note and "leased 2 messages" in note for note in report.notes)


def test_verify_finds_what_is_leased_and_dead() -> None:
    rig = EngineRig()
    queue = filled(rig)
    lease(rig, queue, 0, 1, 2)
    assert verify(rig.fs.crash("kept", random.Random(1)), PATH).is_fine
    rig.engine.dequeue(queue, rig.entries(queue, 1), OS)
    rig.engine.sync()
    report = verify(rig.fs.crash("kept", random.Random(1)), PATH)
    assert [p.text for p in report.problems] == [
        f"reader 'r' of queue {queue.number} has seqs 0 to 2 of {queue.number}, some are dead"
    ]


def test_stats_and_dumps_tell_of_leases() -> None:
    rig = EngineRig()
    queue = filled(rig)
    lease(rig, queue, 0, 1, 2)
    rig.engine.leases.commit(queue, "r", 1, DISK)
    lease(rig, queue, 3, reader="other")
    rig.engine.leases.release(queue, "other", DISK)
    rig.engine.sync()
    rig.engine.checkpoint()
    rig.engine.log.flush()
    fs = rig.fs.crash("kept", random.Random(1))
    (found,) = [q for q in stats(fs, PATH).queues if q.number == queue.number]
    assert (found.count, found.leased) == (11, 2)
    name = f"{PATH}/checkpoint-{rig.engine.checkpoints.number}"
    lines = [line.partition("  ")[2] for line in dump(fs, name)]
    assert any("LEASE" in line for line in lines)
    assert any("reader 'r'" in line and "committed 1 next 3" in line for line in lines)
    logs = [f"{PATH}/wal/{n}" for n in fs.list(f"{PATH}/wal") if n.endswith(".wal")]
    text = "\n".join(line for log in logs for line in dump(fs, log))
    assert "LEASE leased queue" in text
    assert "LEASE committed queue" in text
    assert "LEASE released queue" in text


def test_salvage_makes_what_was_leased_ready_and_tells() -> None:
    rig = EngineRig()
    queue = filled(rig)
    lease(rig, queue, 0, 1, 2, 3)
    rig.engine.checkpoint()
    rig.engine.leases.commit(queue, "r", 1, DISK)
    lease(rig, queue, 4)
    rig.engine.purge(queue, [], DISK)
    rig.engine.sync()
    fs = rig.fs.crash("kept", random.Random(1))
    report = salvage(fs, PATH, "/new", clock=ManualClock(), rng=random.Random(2))
    assert [(q.name, q.taken, q.lost) for q in report.queues] == [("q", 4, 0)]
    assert any("'r' had leased 4 messages" in note for note in report.notes)
    (found,) = stats(fs, "/new").queues
    assert (found.count, found.leased) == (4, 0)
