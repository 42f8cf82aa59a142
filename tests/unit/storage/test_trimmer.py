"""Trimmer: what an idle, a blocked and a closed store give back, and that nothing is lost by it."""

import errno
import random
from typing import Any

import pytest

from penstock.errors import CorruptionError, DiskFullError
from penstock.storage.files.data_directory import FreshDirectory
from penstock.storage.files.durability import DISK
from penstock.storage.index.queue_index import QueueIndex
from penstock.storage.journal.checkpoint import IDLE
from penstock.storage.tools.backup import Backup
from penstock.storage.upkeep import IDLE_S, RESERVE_BYTES, ROUNDS
from tests.helpers.engine_rig import PATH, STORED, EngineRig
from tests.helpers.inside import live_seqs

KIB = 1 << 10
MIN, MAX = 4 * KIB, 64 * KIB
BIG = b"B" * STORED
CRASHES = ["lost", "kept", "killed", "subset"]
WAL = PATH + "/wal"


def rig(**options: Any) -> EngineRig:
    """Log segments from 4 to 64 KiB, a checkpoint every 64 KiB of log, no other."""
    given = {
        "wal_segment_bytes_min": MIN, "wal_segment_bytes_max": MAX, "segment_slots": 64,
        "checkpoint_log_bytes": MAX, **options,
    }  # fmt: skip
    return EngineRig(**given)


def tick(r: EngineRig, seconds: float, step_s: float = 1.0) -> None:
    """Time passes, and everything that comes of it is done."""
    while seconds > 0:
        r.clock.advance(min(step_s, seconds))
        seconds -= step_s
        r.engine.tick()
        r.engine.flush()
        for _ in range(20):
            r.engine.poll(wait=True)
            if r.engine.checkpoints.phase != IDLE:
                r.engine.tick()


def load(r: EngineRig, n: int = 400, size: int = 1000) -> QueueIndex:
    """Messages come and go until the log has spares and a reserve."""
    queue = r.queue()
    first = queue.next_seq
    for i in range(n):
        r.engine.publish([queue], b"", b"x" * size, DISK)
        if i % 4 == 3:
            r.engine.sync()
            tick(r, 1)
    for seq in range(first, queue.next_seq):
        r.ack(queue, seq)
    r.engine.sync()
    tick(r, 2)
    assert queue.count == 0
    return queue


def sizes(r: EngineRig) -> list[int]:
    """Of the files of the log, by their numbers."""
    return [r.fs.size(f"{WAL}/{name}") for name in r.fs.list(WAL)]


def used(r: EngineRig) -> int:
    return r.fs.used_bytes()


def rest(r: EngineRig) -> None:
    """A minute without a record, and a few seconds to act on it."""
    tick(r, IDLE_S + 1)
    tick(r, 30)


# ---- idle --------------------------------------------------------------------------------------


def test_an_idle_log_is_as_small_as_that_of_a_new_store() -> None:
    new = rig()
    tick(new, 3)
    r = rig()
    load(r)
    assert sum(sizes(r)) > 150 * KIB
    assert r.engine.journal.reserve.bytes >= 32 * KIB
    rest(r)
    assert sizes(r) == sizes(new) == [MIN, 2 * MIN]
    assert r.engine.journal.reserve.bytes <= 2 * MIN


def test_nothing_goes_before_the_minute_is_over() -> None:
    r = rig()
    load(r)
    before = sizes(r)
    tick(r, IDLE_S - 5)
    assert sizes(r) == before


def test_a_fresh_store_that_is_left_alone_does_nothing() -> None:
    r = rig()
    tick(r, 3)
    operations = r.fs.operations
    tick(r, 1000)
    assert r.fs.operations == operations


def test_at_rest_it_comes_to_rest() -> None:
    """The checkpoints made for this are few, also if one of them changes nothing."""
    r = rig()
    load(r)
    rest(r)
    count = r.engine.checkpoints.count
    operations = r.fs.operations
    tick(r, 3600, 10.0)
    assert r.engine.checkpoints.count <= count + ROUNDS
    assert r.fs.operations - operations < 100
    operations = r.fs.operations
    tick(r, 3600, 10.0)
    assert r.fs.operations == operations


@pytest.mark.parametrize("how", ["restart", *CRASHES])
@pytest.mark.parametrize("is_after_more", [False, True])
def test_what_it_holds_is_there_after_any_stop(how: str, is_after_more: bool) -> None:
    r = rig()
    queue = load(r)
    model = {m: b"%d" % m + b"y" * 40 for m in range(queue.next_seq, queue.next_seq + 20)}
    r.put(queue, *model.values())
    rest(r)
    if is_after_more:
        for _ in range(30):
            seq = queue.next_seq
            model[seq] = b"%d" % seq
            r.put(queue, model[seq])
        assert sizes(r)[0] == MIN
    r.restart() if how == "restart" else r.crash(how)
    assert r.bodies(r.queue()) == model


@pytest.mark.large
def test_a_crash_at_any_operation_of_it_loses_nothing() -> None:
    for how in CRASHES:
        at = 0
        while True:
            at += 1
            r = rig()
            queue = load(r, 120)
            r.put(queue, b"stays", BIG)
            tick(r, IDLE_S - 2)
            journal = r.fs.start_journal()
            tick(r, 30)
            if journal.first + at > journal.last:
                assert at > 10, "it did something"
                break
            fs = journal.image(journal.first + at).crash(how, random.Random(at))
            again = EngineRig(fs, **vars_of(r))
            assert list(again.bodies(again.queue()).values()) == [b"stays", BIG], (how, at)
            again.stop()


def vars_of(r: EngineRig) -> dict[str, Any]:
    names = ("wal_segment_bytes_min", "wal_segment_bytes_max", "segment_slots")
    return {name: getattr(r.options, name) for name in names}


def test_records_that_come_while_it_shrinks_are_not_lost() -> None:
    """Some are appended, some are written and not synced, when the small segment is there."""
    for open_records in range(4):
        r = rig()
        queue = load(r)
        tick(r, IDLE_S - 3)
        r.engine.log.shrink()
        assert r.engine.log.is_shrinking
        bodies = [b"%d" % i for i in range(open_records)]
        for body in bodies:
            r.engine.publish([queue], b"", body, DISK)
            if open_records % 2:
                r.engine.flush()
        r.engine.poll(wait=True)
        r.engine.sync()
        assert not r.engine.log.is_shrinking
        r.put(queue, b"more")
        r.crash("lost")
        assert list(r.bodies(r.queue()).values()) == [*bodies, b"more"]


def test_damage_to_the_last_group_shows_also_right_after_it_shrank() -> None:
    """The one ahead, which has the vouch, is deleted: the small one has it by then [11]."""
    r = rig()
    queue = load(r)
    r.put(queue, b"confirmed")
    tick(r, 3)
    r.put(queue, b"the last group")
    r.engine.log.shrink()
    while r.engine.log.is_ending:
        for token, result in r.fs.completed(True):
            r.engine.journal.complete(token, result)
    path = f"{WAL}/{r.fs.list(WAL)[-3]}"
    assert sizes(r)[-2:] == [MIN, 2 * MIN]
    at = r.fs.read(path).index(b"the last group")
    fs = r.fs.crash("killed")
    fs.damage_flip(path, at, 1)
    with pytest.raises(CorruptionError):
        EngineRig(fs, **vars_of(r))


def test_a_small_segment_that_comes_too_late_goes() -> None:
    r = rig()
    queue = load(r)
    r.engine.log.shrink()
    last = r.fs.list(WAL)[-1]
    while r.fs.list(WAL)[-1] == last:
        r.engine.publish([queue], b"", b"x" * 500, DISK)  # nothing completes meanwhile
        r.engine.flush()
    rest_of = r.engine.publish([queue], b"", b"last", DISK)
    tick(r, 2)
    r.engine.sync()
    count = queue.count
    r.crash("lost")
    assert r.queue().count == count
    assert rest_of.body == b"last"


def test_no_room_for_the_small_segment_is_no_failure() -> None:
    r = rig()
    load(r)
    r.fs.fail(errno.ENOSPC, kinds={"allocate"}, path="/wal/", times=None)
    rest(r)
    assert r.engine.failed is None
    r.fs.clear_faults()
    r.put(r.queue(), b"x")
    rest(r)
    assert sizes(r) == [MIN, 2 * MIN]


def test_a_failed_sync_of_the_small_segment_stops_the_engine() -> None:
    r = rig()
    load(r)
    r.engine.log.shrink()
    r.fs.fail(errno.EIO, kinds={"sync"}, path="/wal/")
    r.engine.poll(wait=True)
    assert r.engine.failed is not None


def test_dead_store_files_go_also_the_one_that_is_appended_to() -> None:
    r = rig(msg_store_file_size_limit=4 << 20, own_file_from=2 << 20)
    queue = r.queue()
    r.put(queue, *[b"s" * (400 * KIB)] * 4)
    for seq in range(4):
        r.ack(queue, seq)
    r.engine.sync()
    assert len(r.store_names()) == 1
    rest(r)
    assert r.store_names() == []
    r.put(queue, BIG)
    r.crash("lost")
    assert list(r.bodies(r.queue()).values()) == [BIG]


@pytest.mark.parametrize("how", ["restart", *CRASHES])
def test_the_files_of_an_empty_queue_go_and_its_seqs_go_on(how: str) -> None:
    r = rig(wal_inline_below=1 << 20, segment_slots=16)
    queue = r.queue()
    r.put(queue, *[b"q" * (400 * KIB)] * 4)
    r.engine.checkpoint()
    assert r.files_of(queue)
    for seq in range(4):
        r.ack(queue, seq)
    r.engine.sync()
    rest(r)
    assert r.files_of(queue) == []
    assert queue.next_seq == 16
    r.put(queue, b"next")
    r.restart() if how == "restart" else r.crash(how)
    assert r.bodies(r.queue()) == {16: b"next"}


def test_a_queue_that_holds_something_keeps_its_place() -> None:
    r = rig(wal_inline_below=1 << 20, segment_slots=16)
    queue = r.queue()
    r.put(queue, *[b"q" * (400 * KIB)] * 4)
    r.engine.checkpoint()
    for seq in range(3):
        r.ack(queue, seq)
    r.engine.sync()
    rest(r)
    assert queue.next_seq == 4
    assert r.files_of(queue)


def test_dead_transient_bodies_go_without_a_checkpoint() -> None:
    r = rig()
    queue = r.queue()
    other = r.declare(b"other")[0]
    made = [r.engine.publish_transient([queue, other], b"", b"t" * 500) for _ in range(20)]
    path = PATH + "/msg_store_transient"
    assert r.fs.list(path)
    for message in made:
        r.engine.bodies.release(message)
        r.engine.bodies.release(message)
    rest(r)
    assert r.fs.list(path) == []
    kept = r.engine.publish_transient([queue, other], b"", b"again" * 100)
    rest(r)
    assert r.engine.transient.read(kept.store_file, kept.id) == b"again" * 100


def test_the_reserve_of_an_idle_store_has_a_limit() -> None:
    r = rig()
    trimmer = r.engine.upkeep.trimmer
    assert trimmer.reserve_bytes(RESERVE_BYTES * 3) == RESERVE_BYTES * 3
    tick(r, IDLE_S + 2)
    assert trimmer.is_idle
    assert trimmer.reserve_bytes(RESERVE_BYTES * 3) == RESERVE_BYTES
    r.put(r.queue(), b"x")
    tick(r, 1)
    assert not trimmer.is_idle


def test_a_backup_that_copies_holds_it_up() -> None:
    r = rig()
    load(r)
    fresh = FreshDirectory(r.fs, "/copy", "a test")
    backup = Backup(r.engine, fresh)
    assert backup.step()
    before = len(sizes(r))
    rest(r)
    assert len(sizes(r)) >= before
    backup.abandon()
    r.put(r.queue(), b"x")
    rest(r)
    assert sizes(r) == [MIN, 2 * MIN]


# ---- closed ------------------------------------------------------------------------------------


def test_a_closed_store_keeps_one_small_segment_and_a_small_reserve() -> None:
    r = rig()
    load(r)
    tick(r, 3)
    r.stop()
    assert sizes(r) == [MIN]
    assert r.fs.size(PATH + "/reserve") <= 2 * MIN
    again = EngineRig(r.fs, **vars_of(r))
    assert again.engine.recovered.is_clean
    again.put(again.queue(), b"x")
    again.crash("lost")
    assert list(again.bodies(again.queue()).values()) == [b"x"]


def test_closed_while_the_next_segment_is_being_prepared_nothing_of_it_stays() -> None:
    r = rig()
    queue = load(r, 120)
    log = r.engine.log
    while not log._pool.is_preparing:
        r.engine.publish([queue], b"", b"x" * 500, DISK)
        r.engine.flush()
    model = len(live_seqs(queue))
    r.stop()
    assert sizes(r) == [MIN]
    again = EngineRig(r.fs, **vars_of(r))
    assert again.queue().count == model


class NewestFirst(random.Random):
    """Workers complete one operation when somebody waits, the one that was submitted last."""

    def shuffle(self, x: Any) -> None:
        x.sort(reverse=True, key=lambda submitted: submitted[0])

    def randrange(self, start: int, *_: Any) -> int:
        return start


def test_a_reserve_that_is_still_growing_is_trimmed_when_it_has_grown() -> None:
    r = rig()
    load(r)
    upkeep, journal = r.engine.upkeep, r.engine.journal
    assert upkeep.checkpoint(is_clean=True)
    r.fs.completion_rng = NewestFirst()
    journal.reserve.want(1 << 20)
    growth = journal.reserve.take_growth(1 << 30)
    assert growth is not None
    journal.submit(growth, upkeep._grown, upkeep._not_grown)
    upkeep.trimmer.after_close(0)
    journal.finish()
    assert r.fs.size(PATH + "/reserve") <= 2 * MIN


@pytest.mark.parametrize("free", [0, 1000, MIN, 5 * MIN])
def test_closing_on_a_full_disk_loses_nothing(free: int) -> None:
    r = rig()
    queue = load(r)
    r.put(queue, *[b"%d" % n for n in range(20)])
    r.fs.capacity = r.fs.used_bytes() + free
    r.stop()
    r.fs.capacity = None
    again = EngineRig(r.fs, **vars_of(r))
    assert list(again.bodies(again.queue()).values()) == [b"%d" % n for n in range(20)]


@pytest.mark.parametrize("how", CRASHES)
def test_a_crash_in_a_close_loses_nothing(how: str) -> None:
    r = rig()
    queue = load(r, 120)
    r.put(queue, b"stays", BIG)
    journal = r.fs.start_journal()
    r.engine.close()
    for at in range(journal.first, journal.last + 1):
        fs = journal.image(at).crash(how, random.Random(at))
        again = EngineRig(fs, **vars_of(r))
        assert list(again.bodies(again.queue()).values()) == [b"stays", BIG], at


def test_a_start_on_a_full_disk_after_a_close_has_the_reserve() -> None:
    r = rig()
    queue = load(r)
    r.put(queue, b"x")
    tick(r, 2)
    r.stop()
    r.fs.capacity = r.fs.used_bytes()
    again = EngineRig(r.fs, **vars_of(r))
    assert list(again.bodies(again.queue()).values()) == [b"x"]


# ---- small disks -------------------------------------------------------------------------------


def test_on_a_small_disk_the_log_and_the_reserve_are_small() -> None:
    r = rig(disk_free_limit=50 * KIB)
    r.fs.capacity = r.fs.used_bytes() + 200 * KIB
    load(r, 200, 500)
    assert max(sizes(r)) <= 150 * KIB // 8
    assert sum(sizes(r)) <= 5 * 150 * KIB // 8
    assert r.engine.journal.reserve.bytes <= 60 * KIB
    assert not r.engine.blocked


def _fill(r: EngineRig, queue: QueueIndex, size: int) -> None:
    for _ in range(2000):
        r.put(queue, b"m" * size)
        r.engine.flush()


@pytest.mark.parametrize("size", [500, 5 * KIB])
def test_publishers_are_refused_at_the_limit_although_no_time_passes(size: int) -> None:
    """A library writes many messages between two ticks."""
    r = rig(disk_free_limit=50 * KIB)
    queue = r.queue()
    r.fs.capacity = r.fs.used_bytes() + 400 * KIB
    tick(r, 1)
    with pytest.raises(DiskFullError):
        _fill(r, queue, size)
    assert 40 * KIB < r.fs.capacity - r.fs.used_bytes() < 100 * KIB


def test_blocked_it_gives_back_what_it_kept_for_reuse() -> None:
    """The disk was large when the log grew; somebody else has filled it since."""
    r = rig(disk_free_limit=50 * KIB)
    load(r)
    before = used(r)
    assert sum(sizes(r)) > 150 * KIB
    r.fs.capacity = r.fs.used_bytes() + 10 * KIB
    tick(r, 20)
    assert used(r) < before - 150 * KIB
    assert sum(sizes(r)) <= 6 * MIN
    assert not r.engine.blocked, "that was enough"
    r.put(r.queue(), b"goes on")


def test_blocked_on_a_disk_without_a_byte_it_keeps_what_acks_need() -> None:
    """No room for a small segment: the one in use, the one ahead and the reserve stay, or what
    came of them, and every ack is taken."""
    r = rig(disk_free_limit=50 * KIB)
    queue = load(r)
    seqs = [queue.next_seq + i for i in range(300)]
    r.put(queue, *[b"m" * 20] * 300)
    r.fs.capacity = r.fs.used_bytes() // 2
    tick(r, 3)
    assert r.engine.blocked
    for seq in seqs:
        r.ack(queue, seq)
        r.engine.sync()
        tick(r, 0.2, 0.2)
    assert queue.count == 0
    r.fs.capacity = r.fs.used_bytes() + 60 * KIB
    tick(r, 12)
    assert not r.engine.blocked
