"""TransactionLog: what is settled when, in which order disk and store are asked, what failure does.

Random lives with crashes are in tests/property/test_transaction_log.py.
"""

import errno
from collections.abc import Callable

import pytest

from penstock.errors import DescriptorsError, DiskFullError, StoppedError, SyncFailedError
from penstock.storage.files.durability import DISK, INTERVAL, OS
from penstock.storage.log import record, transaction_log
from penstock.storage.log.log_file import FIRST_GROUP_OFFSET, LogEnd
from penstock.storage.log.transaction_log import HOLD_BYTES_MAX, RETRY_S, TransactionLog
from tests.helpers.builds import pure_only
from tests.helpers.faulty_filesystem import WAITS
from tests.helpers.logs import KIB, VHOST, WAL, FakeStore, Rig, assert_prefix, survey


def operations(rig: Rig, act: Callable[[], object]) -> list[str]:
    """What `act` asks of the disk, as "pwrite 1" with the segment's number."""
    done: list[str] = []

    def note(_: int, kind: str, path: str) -> None:
        name = path.rpartition("/")[2]
        done.append(f"{kind} {int(name[:10])}" if name[:10].isdecimal() else kind)

    rig.fs.before_operation = note
    act()
    rig.fs.before_operation = None
    return done


# ---- Settling ---------------------------------------------------------------------------


def test_lsns_follow_one_another_and_nothing_is_settled_before_flush() -> None:
    rig = Rig()
    assert [rig.put(mode=OS) for _ in range(3)] == [1, 2, 3]
    assert (rig.log.last_lsn, rig.log.written_lsn, rig.log.durable_lsn) == (3, 0, 0)
    assert rig.log.queued_bytes == rig.log.appended_bytes == 3 * 120
    assert operations(rig, rig.log.flush) == ["pwrite 1"]
    assert (rig.log.written_lsn, rig.log.durable_lsn, rig.log.queued_bytes) == (3, 0, 0)
    assert (rig.log.appended_records, rig.log.appended_bytes) == (3, 360)


def test_what_settled_means_in_each_mode() -> None:
    rig = Rig()
    rig.put(mode=OS)
    rig.put(mode=INTERVAL)
    rig.log.flush()
    assert (rig.log.settled(OS), rig.log.settled(INTERVAL), rig.log.settled(DISK)) == (2, 2, 0)
    assert not rig.fs.completed(True), "weak modes ask for no sync"
    rig.group(10)
    assert (rig.log.settled(OS), rig.log.settled(DISK), rig.log.syncs) == (3, 3, 1)


def test_the_strongest_member_decides_for_its_group() -> None:
    rig = Rig()
    rig.put(mode=DISK)
    rig.put(mode=OS)
    rig.log.flush()
    rig.settle()
    assert rig.log.durable_lsn == 2


def test_one_write_and_one_sync_for_many_groups() -> None:
    rig = Rig(bytes_min=64 * KIB, group_bytes_max=KIB)
    for _ in range(30):
        rig.put(300)
    assert operations(rig, rig.log.flush) == ["pwrite 1"]
    assert operations(rig, rig.settle) == ["sync 1", "pwrite 1"]
    end, found = survey(rig.fs)
    assert end.last_lsn == 30
    assert_prefix(rig, end, found)


def test_at_most_one_sync_is_in_flight_and_the_next_starts_at_once() -> None:
    rig = Rig()
    rig.put()
    rig.log.flush()
    rig.put()
    rig.log.flush()
    rig.put()
    rig.log.flush()
    done = rig.fs.completed(True)
    assert len(done) == 1
    assert rig.log.complete(*done[0])
    assert (rig.log.written_lsn, rig.log.durable_lsn) == (3, 1), "it claims what was written then"
    done = rig.fs.completed(True)
    assert rig.log.complete(*done[0])
    assert (rig.log.durable_lsn, rig.log.syncs) == (3, 2)
    assert not rig.fs.completed(True)


def test_wait_blocks_until_settled_and_hands_on_what_is_not_its_own() -> None:
    rig = Rig()
    other = rig.fs.submit(lambda: "read")
    seen: list[tuple[int, object]] = []
    lsn = rig.put(mode=OS)
    rig.log.wait(lsn, OS)
    assert (rig.log.written_lsn, rig.log.durable_lsn) == (1, 0)
    rig.log.wait(lsn, DISK, lambda token, result: seen.append((token, result)))
    assert (rig.log.durable_lsn, seen) == (1, [(other, "read")])
    with pytest.raises(AssertionError, match="nothing is in flight"):
        rig.log.wait(2, OS)


def test_request_sync_makes_weak_records_durable() -> None:
    rig = Rig()
    rig.put(mode=OS)
    rig.log.request_sync()
    rig.settle()
    assert rig.log.durable_lsn == 1
    assert operations(rig, rig.log.request_sync) == []


def test_foreign_tokens_are_not_taken() -> None:
    rig = Rig()
    assert not rig.log.complete(rig.fs.submit(lambda: None), None)
    assert not rig.log.complete(-1, None)


# ---- Rule [2]: store bodies -------------------------------------------------------------


def test_a_disk_group_that_names_a_body_waits_for_its_sync() -> None:
    store = FakeStore()
    rig = Rig(store=store)
    rig.put()
    rig.log.flush()
    store.written = 1
    rig.put(names_store=True)
    rig.put(mode=OS)
    rig.log.flush()
    assert rig.log.written_lsn == 1, "the groups before it do not wait, those behind it do"
    done = rig.fs.completed(True)
    assert len(done) == 2, "the store and the log are synced side by side"
    rig.log.complete(*done[0])
    rig.log.complete(*done[1])
    assert (store.durable, store.taken, rig.log.written_lsn) == (1, 1, 3)
    rig.settle()
    assert rig.log.durable_lsn == 3
    assert store.taken == 1, "what was synced is not synced again"


def test_a_body_written_while_the_store_is_being_synced_needs_another_sync() -> None:
    store = FakeStore()
    rig = Rig(store=store)
    store.written = 1
    rig.put(names_store=True)
    rig.log.flush()
    store.written = 2
    rig.put(names_store=True)
    rig.log.flush()
    rig.log.complete(*rig.fs.completed(True)[0])
    assert (store.durable, rig.log.written_lsn) == (1, 1)
    rig.settle()
    assert (store.durable, rig.log.durable_lsn) == (2, 2)


def test_bodies_of_others_that_keep_coming_do_not_hold_it_back() -> None:
    store = FakeStore()
    rig = Rig(store=store)
    store.written = 1
    rig.put(names_store=True)
    rig.log.flush()
    store.written = 9
    rig.log.complete(*rig.fs.completed(True)[0])
    assert store.has_unsynced()
    assert rig.log.written_lsn == 1


def test_weak_groups_are_written_at_once_and_the_log_sync_brings_the_store_with_it() -> None:
    store = FakeStore()
    rig = Rig(store=store)
    store.written = 1
    rig.put(mode=OS, names_store=True)
    rig.log.flush()
    assert (rig.log.written_lsn, store.taken) == (1, 0)
    rig.put()
    rig.log.flush()
    assert rig.log.written_lsn == 2
    rig.settle()
    assert (rig.log.durable_lsn, store.durable, store.taken) == (2, 1, 1)


def test_flags_tell_that_a_publish_or_move_names_a_body() -> None:
    store = FakeStore()
    rig = Rig(store=store)
    store.written = 1
    rig.log.append_publish(1, 1, 0, 9, 3, 4, b"", b"", 70_000, DISK)
    rig.log.flush()
    assert rig.log.written_lsn == 0
    rig.settle()
    store.written = 2
    data = record.publish_data(record.IN_STORE, 1, 1, 0, 9, [(3, 4)], b"", b"", 70_000)
    move = record.move_data(1, 2, 70_000, data)
    rig.log.append(record.MOVE, record.IN_STORE, 1, move, DISK)
    rig.log.flush()
    assert rig.log.written_lsn == 1
    rig.settle()
    assert rig.log.durable_lsn == 2


def test_a_store_that_cannot_be_synced_stops_the_log() -> None:
    store = FakeStore()
    rig = Rig(store=store)
    store.written = 1
    store.error = OSError(errno.EIO, "gone")
    rig.put(names_store=True)
    rig.log.flush()
    rig.settle()
    assert isinstance(rig.log.failed, SyncFailedError)
    assert (rig.log.written_lsn, rig.log.durable_lsn) == (0, 0)


# ---- Rule [11]: segments, idle headers --------------------------------------------------


@pytest.mark.parametrize("mode", [OS, INTERVAL, DISK])
def test_a_segment_is_synced_to_its_end_before_the_next_is_written(mode: int) -> None:
    rig = Rig(bytes_min=KIB, bytes_max=KIB)
    rig.put(500, mode)
    rig.put(500, mode)
    assert operations(rig, rig.log.flush) == ["pwrite 1"]
    assert rig.log.written_lsn == 1
    done = operations(rig, rig.settle)
    assert done[:2] == ["sync 1", "pwrite 2"]
    assert (rig.log.written_lsn, rig.log.durable_lsn) == (2, 2 if mode == DISK else 1)
    assert survey(rig.fs)[0].last_lsn == 2


def test_the_segment_that_was_prepared_ahead_is_used() -> None:
    rig = Rig(bytes_min=KIB, bytes_max=4 * KIB)
    rig.log.prepare_ahead()
    rig.put(500)
    assert rig.fs.list(WAL) == ["0000000001.wal"]
    rig.settle()
    assert rig.fs.list(WAL) == ["0000000001.wal", "0000000002.wal"]
    assert operations(rig, lambda: rig.put(500)) == [], "no disk on the way"
    rig.log.flush()
    rig.settle()
    assert rig.log.position()[0] == 2
    sizes = [rig.fs.size(f"{WAL}/{name}") for name in rig.fs.list(WAL)]
    assert sizes == [KIB, 2 * KIB, 4 * KIB], "and the next one, twice as large, is under way"


def test_a_record_larger_than_any_segment_gets_one_of_its_own_size() -> None:
    rig = Rig(bytes_min=KIB, bytes_max=2 * KIB)
    rig.log.prepare_ahead()
    rig.settle()
    rig.group(10)
    rig.group(100 * KIB)
    rig.group(10)
    end, found = survey(rig.fs)
    assert end.last_lsn == 3
    assert_prefix(rig, end, found)
    assert "0000000002.wal" not in rig.fs.list(WAL), "the one ahead was too small"


def test_what_a_sync_made_durable_is_end_markered_for_before_it_is_confirmed() -> None:
    """In the next segment, once."""
    rig = Rig()
    rig.log.prepare_ahead()
    rig.settle()
    rig.put(10)
    assert operations(rig, rig.log.flush) == ["pwrite 1"]
    assert rig.log.durable_lsn == 0
    assert operations(rig, rig.settle) == ["sync 1", "pwrite 2"]
    assert rig.log.durable_lsn == 1
    rig.clock.advance(10)
    assert operations(rig, rig.log.tick) == []
    position = rig.log.position()
    end, _ = survey(rig.fs)
    assert (end.offset, end.claim) == (position[1], 1)
    rig.group(20)
    assert rig.log.position()[1] > position[1]
    end, found = survey(rig.fs)
    assert_prefix(rig, end, found)
    assert end.last_lsn == 2


def test_groups_that_wait_vouch_for_those_before_them() -> None:
    """No other header is written when a group says the same."""
    rig = Rig()
    rig.log.prepare_ahead()
    rig.settle()
    rig.put(10)
    rig.log.flush()
    rig.put(10)  # in RAM while the sync is in flight
    rig.log._close_group()
    done = operations(rig, rig.settle)
    assert done[:2] == ["sync 1", "pwrite 1"]
    assert done[2:] == ["sync 1", "pwrite 2"]


def test_groups_that_only_a_sync_confirms_are_written_together_when_the_next_begins() -> None:
    rig = Rig()
    rig.log.prepare_ahead()
    rig.settle()
    rig.put(10)
    rig.log.flush()
    for _ in range(3):
        rig.put(10)
        assert operations(rig, rig.log.flush) == []
    assert rig.log.queued_bytes > 0
    assert operations(rig, rig.settle)[:3] == ["sync 1", "pwrite 1", "sync 1"]
    assert (rig.log.durable_lsn, rig.log.syncs, rig.log.queued_bytes) == (4, 2, 0)
    end, found = survey(rig.fs)
    assert_prefix(rig, end, found)


def test_a_weaker_group_is_written_at_once_with_all_before_it() -> None:
    rig = Rig()
    rig.put(10)
    rig.log.flush()
    rig.put(10)
    rig.log.flush()
    assert rig.log.settled(OS) == 1
    rig.put(10, OS)
    assert operations(rig, rig.log.flush) == ["pwrite 1"]
    assert (rig.log.settled(OS), rig.log.settled(DISK)) == (3, 0)
    rig.put(10)
    assert operations(rig, rig.log.flush) == [], "what is written is waited for no more"


def test_no_more_is_held_than_a_mebibyte() -> None:
    rig = Rig(bytes_min=8 * HOLD_BYTES_MAX, bytes_max=8 * HOLD_BYTES_MAX)
    rig.put(10)
    rig.log.flush()
    rig.put(HOLD_BYTES_MAX // 2)
    assert operations(rig, rig.log.flush) == []
    rig.put(HOLD_BYTES_MAX // 2)
    assert operations(rig, rig.log.flush) == ["pwrite 1"]
    assert rig.log.queued_bytes == 0


def test_a_group_that_names_a_body_is_not_held() -> None:
    """Its body's sync runs beside the sync of the log."""
    rig = Rig(store=(store := FakeStore()))
    rig.put(10)
    rig.log.flush()
    store.written = 1
    rig.put(10, names_store=True)
    assert operations(rig, rig.log.flush) == []
    assert store.taken == 1


def test_a_vouch_says_nothing_of_what_is_only_written() -> None:
    """A group that was written while the sync was in flight may be torn by a power cut."""
    rig = Rig()
    rig.log.prepare_ahead()
    rig.settle()
    rig.put(10)
    rig.log.flush()
    rig.put(500, OS)
    rig.log.flush()
    rig.settle()
    assert (rig.log.durable_lsn, rig.log.written_lsn) == (1, 2)
    end, _ = survey(rig.fs)
    assert (end.last_lsn, end.claim) == (2, 1)
    for position in range(FIRST_GROUP_OFFSET + 64 + 40, FIRST_GROUP_OFFSET + 400, 50):
        fs = rig.fs.fork()
        fs.damage_flip(rig.path(), position)
        assert survey(fs)[0].last_lsn == 1


def test_a_segment_that_comes_late_gets_its_vouch_late() -> None:
    rig = Rig()
    rig.group(10)
    rig.idle()
    rig.log.prepare_ahead()
    rig.settle()
    assert operations(rig, rig.log.tick) == ["pwrite 2"]


def test_a_log_that_has_not_been_used_is_not_written() -> None:
    rig = Rig()
    rig.log.prepare_ahead()
    rig.settle()
    rig.clock.advance(1)
    rig.log.tick()
    assert operations(rig, rig.idle) == []


def test_without_a_next_segment_a_header_after_the_last_group_vouches() -> None:
    """The next group is written over it; the next segment says it once it is there."""
    rig = Rig()
    rig.put(10)
    rig.log.flush()
    assert operations(rig, rig.settle) == ["sync 1", "pwrite 1"]
    position = rig.log.position()
    end, _ = survey(rig.fs)
    assert (end.offset, end.claim) == (position[1], 1)
    rig.log.prepare_ahead()
    rig.settle()
    assert operations(rig, rig.log.tick) == ["pwrite 2"]
    rig.group(20)
    assert rig.log.position()[1] > position[1]
    end, found = survey(rig.fs)
    assert_prefix(rig, end, found)
    assert (end.last_lsn, end.claim) == (2, 2)


def test_no_room_for_an_idle_header_is_no_harm() -> None:
    rig = Rig(bytes_min=KIB, bytes_max=KIB)
    rig.log.prepare_ahead()
    rig.settle()
    rig.put(KIB - FIRST_GROUP_OFFSET - 32 - 20)
    rig.log.flush()
    assert rig.log.position()[1] == KIB
    assert operations(rig, rig.settle) == ["sync 1", "pwrite 2"]
    assert survey(rig.fs)[0].last_lsn == 1


# ---- Time -------------------------------------------------------------------------------


def test_acks_are_synced_within_a_second() -> None:
    rig = Rig()
    rig.log.append_dequeue(3, [(7, 2, 100, 0)], [])
    rig.log.tick()
    assert (rig.log.written_lsn, rig.log.durable_lsn) == (1, 0)
    for _ in range(8):
        rig.clock.advance(0.1)
        rig.log.tick()
        rig.settle()
    assert rig.log.settled(DISK) == 0
    rig.clock.advance(0.11)
    rig.log.tick()
    rig.settle()
    assert rig.log.settled(DISK) == 1


def test_the_second_counts_from_the_oldest_bytes() -> None:
    rig = Rig()
    rig.put(mode=OS)
    rig.log.flush()
    rig.clock.advance(0.5)
    rig.put()
    rig.log.flush()
    rig.put(mode=OS)
    rig.log.flush()
    rig.clock.advance(0.5)
    rig.settle()
    assert rig.log.durable_lsn == 2
    rig.clock.advance(0.39)
    rig.log.tick()
    assert not rig.fs.completed(False), "the third is not a second old"
    rig.clock.advance(0.02)
    rig.log.tick()
    rig.settle()
    assert rig.log.durable_lsn == 3


def test_interval() -> None:
    rig = Rig()
    rig.put(mode=INTERVAL)
    rig.log.flush()
    rig.clock.advance(0.19)
    rig.log.tick()
    assert not rig.fs.completed(False)
    rig.clock.advance(0.01)
    rig.log.tick()
    rig.settle()
    assert rig.log.durable_lsn == 1


# ---- Cuts and release -------------------------------------------------------------------


def test_a_cut_closes_the_group() -> None:
    rig = Rig()
    rig.put()
    segment, offset, lsn = rig.log.position()
    assert (segment, lsn) == (1, 1)
    rig.put()
    rig.log.flush()
    rig.settle()
    end, found = survey(rig.fs, (segment, offset, lsn + 1))
    assert [r.lsn for r in found] == [2]
    assert end.last_lsn == 2


def test_release_deletes_and_recycles() -> None:
    rig = Rig(bytes_min=KIB, bytes_max=KIB)
    for _ in range(5):
        rig.group(500)
    assert rig.log.position()[0] == 5
    rig.log.release_before(5)
    rig.settle()
    assert rig.fs.list(WAL) == ["0000000001.wal", "0000000002.wal", "0000000005.wal"]
    done = operations(rig, lambda: rig.group(500))
    assert "allocate 6" not in done
    assert done.count("rename 2") == 1
    assert survey(rig.fs, (5, 128, 5))[0].last_lsn == 6


def test_release_of_what_is_still_written_is_put_off() -> None:
    rig = Rig(bytes_min=KIB, bytes_max=KIB)
    rig.put(500)
    rig.put(500)
    rig.log.release_before(2)
    rig.log.flush()
    rig.settle()
    assert rig.log.durable_lsn == 2


def test_a_start_behind_a_found_end() -> None:
    rig = Rig()
    rig.group(10, 20)
    fs = rig.fs.crash("killed")
    end, _ = survey(fs)
    second = Rig(fs, seed=5, prev=end)
    assert (second.log.last_lsn, second.log.durable_lsn) == (2, 2)
    assert second.log.position() == (2, FIRST_GROUP_OFFSET, 2)
    assert fs.list(WAL) == ["0000000001.wal", "0000000002.wal"]
    second.log.release_before(2)
    second.settle()
    assert fs.list(WAL) == ["0000000002.wal"]
    second.group(30)
    assert survey(fs, (2, FIRST_GROUP_OFFSET, 3))[0].last_lsn == 3


def test_a_new_segment_number_is_above_all_that_exist() -> None:
    rig = Rig()
    rig.log.prepare_ahead()
    rig.settle()
    end, _ = survey(rig.fs)
    assert (end.segment, end.next_number) == (1, 3)
    fs = rig.fs.crash("kept")
    log = TransactionLog(fs, WAL, VHOST, rig.clock, fs.rng)
    log.start(end)
    assert log.position() == (3, FIRST_GROUP_OFFSET, 0)


# ---- Failure ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["pwrite", "sync"])
@pytest.mark.parametrize("effect", [errno.EIO, errno.ENOSPC, "short"])
def test_a_failed_write_or_sync_is_final(kind: str, effect: int | str) -> None:
    rig = Rig()
    rig.group(10)
    rig.fs.fail(effect, kinds=[kind])
    rig.put()
    if kind == "pwrite":
        with pytest.raises(SyncFailedError):
            rig.log.flush()
    else:
        rig.log.flush()
        rig.settle()
    assert isinstance(rig.log.failed, SyncFailedError)
    assert rig.log.failed.path == rig.path()
    frozen = (1, 1) if kind == "pwrite" else (2, 1)
    assert (rig.log.written_lsn, rig.log.durable_lsn) == frozen
    acts: list[Callable[[], object]] = [
        rig.put, rig.log.flush, rig.log.position, rig.log.request_sync, rig.log.prepare_ahead,
        lambda: rig.log.wait(1, DISK), lambda: rig.log.release_before(1),
        lambda: rig.log.append_publish(1, 1, 0, 0, 3, 4, b"", b"", 0, OS),
        lambda: rig.log.append_dequeue(3, [(7, 2, 100, 0)], []),
    ]  # fmt: skip
    for act in acts:
        with pytest.raises(StoppedError):
            act()
    rig.clock.advance(5)
    assert operations(rig, rig.log.tick) == []
    assert (rig.log.written_lsn, rig.log.durable_lsn) == frozen
    rig.log.close()


def test_a_sync_that_returns_after_the_failure_settles_nothing() -> None:
    rig = Rig()
    rig.put()
    rig.log.flush()
    rig.put(mode=OS)
    rig.fs.fail(errno.EIO, kinds=["pwrite"])
    with pytest.raises(SyncFailedError):
        rig.log.flush()
    rig.settle()
    assert (rig.log.written_lsn, rig.log.durable_lsn) == (1, 0)


def test_wait_raises_the_failure() -> None:
    rig = Rig()
    lsn = rig.put()
    rig.fs.fail(errno.EIO, kinds=["sync"])
    with pytest.raises(SyncFailedError):
        rig.log.wait(lsn, DISK)


def test_poison() -> None:
    rig = Rig()
    rig.group(10)
    rig.put()
    rig.log.poison(SyncFailedError("/queues/1.qs", OSError(errno.EIO, "x")))
    assert rig.log.failed is not None
    assert rig.log.failed.path == "/queues/1.qs"
    with pytest.raises(StoppedError, match=r"1\.qs"):
        rig.log.flush()
    assert rig.log.queued_bytes == 0


def test_no_room_for_a_segment_changes_nothing_and_heals() -> None:
    rig = Rig(bytes_min=KIB, bytes_max=KIB)
    rig.group(500)
    rig.fs.fail(errno.ENOSPC, kinds=["allocate"], times=None)
    with pytest.raises(DiskFullError):
        rig.put(500)
    assert (rig.log.last_lsn, rig.log.failed) == (1, None)
    assert rig.fs.list(WAL) == ["0000000001.wal"]
    rig.fs.clear_faults()
    rig.group(50)
    rig.group(500)
    end, found = survey(rig.fs)
    assert end.last_lsn == 3
    assert_prefix(rig, end, found)


def test_no_descriptor_for_the_next_segment_changes_nothing_and_heals() -> None:
    rig = Rig(bytes_min=KIB, bytes_max=KIB)
    rig.group(500)
    rig.fs.fail(errno.EMFILE, kinds=["open"], times=None)
    for _ in range(3):
        with pytest.raises(DescriptorsError):
            rig.put(500)
    assert (rig.log.last_lsn, rig.log.durable_lsn, rig.log.failed) == (1, 1, None)
    rig.fs.clear_faults()
    rig.group(500)
    end, found = survey(rig.fs)
    assert end.last_lsn == 2
    assert_prefix(rig, end, found)


def test_no_descriptor_for_the_segment_ahead_is_told_and_tried_again() -> None:
    rig = Rig(bytes_min=KIB, bytes_max=KIB)
    rig.fs.fail(errno.EMFILE, kinds=["open"], times=WAITS)
    rig.log.prepare_ahead()
    rig.settle()
    assert isinstance(rig.log.ahead_error, DescriptorsError)
    assert rig.log.failed is None
    rig.clock.advance(RETRY_S)
    rig.log.tick()
    rig.settle()
    assert rig.log.ahead_error is None
    assert len(rig.fs.list(WAL)) == 2


def test_no_room_for_the_segment_ahead_is_told_and_tried_again() -> None:
    rig = Rig(bytes_min=KIB, bytes_max=KIB)
    rig.fs.fail(errno.ENOSPC, kinds=["allocate"])
    rig.log.prepare_ahead()
    rig.settle()
    assert isinstance(rig.log.ahead_error, DiskFullError)
    assert rig.log.failed is None
    rig.clock.advance(0.5)
    rig.log.tick()
    assert rig.log.ahead_error is not None
    rig.clock.advance(0.5)
    rig.log.tick()
    rig.settle()
    assert len(rig.fs.list(WAL)) == 2
    assert rig.log.ahead_error is None


@pytest.mark.parametrize("kind", ["sync", "sync_dir", "rename", "pwrite"])
def test_a_segment_ahead_that_fails_otherwise_stops_the_log(kind: str) -> None:
    rig = Rig()
    rig.fs.fail(errno.EIO, kinds=[kind])
    rig.log.prepare_ahead()
    rig.settle()
    assert isinstance(rig.log.failed, SyncFailedError)


def test_it_pushes_back() -> None:
    store = FakeStore()
    rig = Rig(bytes_min=64 * KIB, group_bytes_max=KIB, store=store)
    store.written = 1
    rig.put(100, names_store=True)
    fullness = []
    for _ in range(8):
        rig.put(100)
        fullness.append(rig.log.is_full)
    assert fullness == [False] * 7 + [True]
    rig.log.flush()
    assert rig.log.queued_bytes == 9 * 120, "the first waits for its body"
    rig.log.complete(*rig.fs.completed(True)[0])
    assert (rig.log.is_full, rig.log.queued_bytes) == (False, 0)


def test_refused_appends_change_nothing() -> None:
    rig = Rig()
    with pytest.raises(ValueError, match="number 200"):
        rig.log.append(200, 0, 0, b"", OS)
    with pytest.raises(ValueError, match="body"):
        rig.log.append_publish(1, 1, 0, 0, 3, 4, b"", b"body", 5, OS)
    assert rig.log.last_lsn == 0
    rig.group(10)
    assert survey(rig.fs)[0].last_lsn == 1


def test_before_start_and_after_close() -> None:
    rig = Rig()
    other = TransactionLog(rig.fs, WAL, VHOST, rig.clock, rig.fs.rng)
    with pytest.raises(StoppedError, match="never started"):
        other.append(record.NOP, 0, 0, b"", OS)
    rig.log.prepare_ahead()
    rig.put()
    rig.log.flush()
    rig.log.close()
    with pytest.raises(StoppedError, match="closed"):
        rig.put()
    rig.settle()
    assert not any(rig.fs.handles.values()), "files are closed when the sync in flight is done"


def test_a_start_that_fails() -> None:
    rig = Rig()
    log = TransactionLog(rig.fs, WAL, VHOST, rig.clock, rig.fs.rng)
    rig.fs.fail(errno.EIO, kinds=["sync"])
    with pytest.raises(SyncFailedError):
        log.start(LogEnd(0, 0, 0, 0), 5)
    with pytest.raises(StoppedError):
        log.flush()


def test_a_smaller_segment_is_made_when_there_is_no_room_for_a_doubled_one() -> None:
    rig = Rig(bytes_min=KIB, bytes_max=64 * KIB)
    rig.group(500)
    rig.fs.fail(errno.ENOSPC, kinds=["allocate"])
    rig.group(600)
    assert rig.log.durable_lsn == 2
    assert rig.fs.size(f"{WAL}/0000000002.wal") < 2 * KIB


# ---- Large records, over several turns ----------------------------------------------------------


@pytest.fixture
def sliced(monkeypatch: pytest.MonkeyPatch) -> Rig:
    """A log whose owner runs further turns, which write 4 KiB each of what has more than 2 KiB."""
    monkeypatch.setattr(transaction_log, "WRITE_BYTES_MAX", 2 * KIB)
    monkeypatch.setattr(transaction_log, "SLICE_BYTES", 4 * KIB)
    rig = Rig(bytes_min=64 * KIB, bytes_max=64 * KIB, group_bytes_max=8 * KIB)
    rig.log.is_sliced = True
    return rig


@pure_only  # constants are replaced
def test_a_large_record_is_written_in_slices_and_there_when_the_last_is(sliced: Rig) -> None:
    rig = sliced
    rig.group(100)
    rig.put(10 * KIB)
    rig.put(100)
    for _ in range(2):
        rig.log.flush()
        assert (rig.log.has_unwritten, rig.log.written_lsn) == (True, 1)
        for mode in ("killed", "lost", "kept", "subset", "torn", "zeros"):
            assert survey(rig.fs.crash(mode))[0].last_lsn == 1
    rig.log.flush()
    assert (rig.log.has_unwritten, rig.log.written_lsn) == (False, 3)
    rig.settle()
    end, found = survey(rig.fs)
    assert end.last_lsn == rig.log.durable_lsn == 3
    assert_prefix(rig, end, found)


@pure_only  # constants are replaced
@pytest.mark.parametrize("has_next", [False, True])
def test_what_is_confirmed_meanwhile_is_on_the_disk_and_says_so(
    sliced: Rig, has_next: bool
) -> None:
    """An idle header, where the first block of the large group will be; or an end marker."""
    rig = sliced
    if has_next:
        rig.log.prepare_ahead()
        rig.settle()
    rig.put()
    rig.log.flush()
    rig.put(20 * KIB, OS)
    rig.log.flush()
    rig.settle()
    assert (rig.log.has_unwritten, rig.log.durable_lsn, rig.log.written_lsn) == (True, 1, 1)
    end, _ = survey(rig.fs.fork())
    assert (end.last_lsn, end.claim) == (1, 1)
    while rig.log.has_unwritten:
        rig.log.flush()
    end, found = survey(rig.fs)
    assert (end.last_lsn, end.claim) == (2, 1)
    assert_prefix(rig, end, found)


@pure_only  # constants are replaced
def test_whoever_waits_for_it_waits_for_all_of_it(sliced: Rig) -> None:
    rig = sliced
    rig.put(20 * KIB)
    lsn = rig.put(10 * KIB)
    rig.log.wait(lsn, DISK)
    assert (rig.log.durable_lsn, rig.log.has_unwritten) == (2, False)
    end, found = survey(rig.fs)
    assert_prefix(rig, end, found)
    assert end.last_lsn == 2


@pure_only  # constants are replaced
def test_a_slice_that_cannot_be_written_stops_the_log(sliced: Rig) -> None:
    rig = sliced
    rig.put(20 * KIB)
    rig.log.flush()
    rig.fs.fail(errno.EIO, kinds=["pwrite"])
    with pytest.raises(SyncFailedError):
        rig.log.flush()
    rig.log.close()
    assert survey(rig.fs.fork())[0].last_lsn == 0


@pure_only  # constants are replaced
def test_whoever_waits_for_a_slice_that_cannot_be_written_gets_the_error(sliced: Rig) -> None:
    sliced.put(20 * KIB)
    sliced.fs.fail(errno.EIO, kinds=["pwrite"], nth=2)
    with pytest.raises(SyncFailedError):
        sliced.log.wait(1, DISK)
    assert sliced.log.failed is not None


def test_a_segment_for_a_large_record_is_prepared_before_it_comes() -> None:
    """No append waits for it, the end marker moves to it, and one large record is queued at a
    time."""
    rig = Rig(bytes_min=4 * KIB, bytes_max=8 * KIB, group_bytes_max=4 * KIB)
    rig.log.prepare_ahead()
    rig.settle()
    rig.group(100)
    assert rig.log.make_ready(KIB)
    progress = rig.log.progress
    assert not rig.log.make_ready(40 * KIB)
    assert not rig.log.make_ready(40 * KIB), "and it is prepared once"
    rig.settle()
    assert rig.log.progress > progress
    assert rig.fs.list(WAL) == ["0000000001.wal", "0000000003.wal"]
    assert survey(rig.fs.fork())[0].claim == 1
    assert rig.log.make_ready(40 * KIB)
    assert operations(rig, lambda: rig.put(40 * KIB)) == []
    rig.put(100)
    assert not rig.log.is_full
    assert not rig.log.make_ready(KIB)
    rig.log.flush()
    rig.settle()
    assert rig.log.make_ready(KIB)
    end, found = survey(rig.fs)
    assert end.last_lsn == 3
    assert_prefix(rig, end, found)


def test_what_the_disk_has_no_room_for_is_refused_when_it_is_appended() -> None:
    rig = Rig(bytes_min=4 * KIB, bytes_max=8 * KIB)
    rig.log.prepare_ahead()
    rig.settle()
    rig.group(100)
    rig.fs.fail(errno.ENOSPC, kinds=["allocate"], times=2)
    assert not rig.log.make_ready(40 * KIB)
    rig.settle()
    assert rig.log.make_ready(40 * KIB)
    with pytest.raises(DiskFullError):
        rig.put(40 * KIB)
    assert not rig.log.make_ready(40 * KIB), "it is tried again"
    rig.settle()
    assert rig.log.make_ready(40 * KIB)
    rig.group(40 * KIB)
    assert survey(rig.fs)[0].last_lsn == 2
