"""What an engine does for its streams at the end of a turn: pages, heads, retention."""

import errno
import random
from pathlib import Path

import pytest

from penstock.clock import SystemClock
from penstock.errors import CorruptionError, DiskFullError, StoppedError, SyncFailedError
from penstock.storage.engine import StorageEngine
from penstock.storage.files.data_directory import DataDirectory
from penstock.storage.files.durability import DISK, INTERVAL, OS
from penstock.storage.files.filesystem import OsFileSystem
from penstock.storage.journal import checkpoint, record_types
from penstock.storage.log import transaction_log
from penstock.storage.pages import page_writer
from penstock.storage.pages.page import BLOCK_BYTES
from penstock.storage.pages.stream_meta import WRITE_META, decode_head, read_tail
from penstock.storage.pages.stream_view import StreamView
from penstock.storage.pages.streams import StoredStream, StreamTable
from penstock.storage.parts.stream_engine import SLICE_BYTES
from tests.helpers.builds import pure_only
from tests.helpers.engine_rig import NUMBER, EngineRig
from tests.helpers.steps import cost_of
from tests.helpers.tiny_engine import PATH, VHOST

BODY = b"x" * 60


def rig_with_stream(page_bytes: int = 256) -> tuple[EngineRig, StoredStream]:
    rig = EngineRig()
    (stream,) = rig.engine.streams.declare([(b"s", b"", 0)], page_bytes=page_bytes)
    rig.engine.sync()
    return rig, stream


def fill(rig: EngineRig, stream: StoredStream, n: int, mode: int = DISK) -> None:
    for _ in range(n):
        rig.engine.streams.append(stream, b"", BODY, mode)
    rig.engine.sync()


def published(rig: EngineRig, stream: StoredStream) -> int:
    """What a reader by path finds."""
    path = f"{stream.path}/{WRITE_META}"
    return decode_head(path, rig.fs.read(path)).next_offset


def page_names(rig: EngineRig, stream: StoredStream) -> list[int]:
    return [int(n[:-5]) for n in rig.fs.list(stream.path) if n.endswith(".page")]


# ---- heads -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "head"), [(OS, 1), (INTERVAL, 1), (DISK, 0)])
def test_the_head_follows_the_records_own_mode(mode: int, head: int) -> None:
    rig, stream = rig_with_stream()
    rig.engine.streams.append(stream, b"", BODY, mode)
    rig.engine.flush()
    assert (stream.head_offset, published(rig, stream)) == (head, head)
    rig.engine.sync()
    assert (stream.head_offset, published(rig, stream)) == (1, 1)


def test_a_weak_record_behind_a_strong_one_waits_for_it() -> None:
    rig, stream = rig_with_stream()
    rig.engine.streams.append(stream, b"", BODY, DISK)
    rig.engine.flush()
    rig.engine.streams.append(stream, b"", BODY, OS)
    rig.engine.flush()
    assert stream.head_offset == 0
    rig.engine.sync()
    assert stream.head_offset == 2


def test_a_strong_record_in_a_turn_holds_the_weak_ones_of_the_turn() -> None:
    rig, stream = rig_with_stream()
    for mode in (OS, DISK, OS):
        rig.engine.streams.append(stream, b"", BODY, mode)
    rig.engine.flush()
    assert stream.head_offset == 0
    rig.engine.sync()
    assert stream.head_offset == 3


def test_one_write_and_one_head_per_turn_and_stream() -> None:
    rig, stream = rig_with_stream(page_bytes=1 << 20)
    told: list[tuple[bytes, int]] = []
    rig.engine.streams.on_head = lambda s: told.append((s.name, s.head_offset))
    writes: list[str] = []
    rig.fs.before_operation = lambda number, kind, path: writes.append(path)
    fill(rig, stream, 50)
    assert told == [(b"s", 50)]
    assert len([path for path in writes if path.endswith(".page")]) == 2  # made, written
    assert len([path for path in writes if path.endswith(WRITE_META)]) == 1


def test_a_turn_without_streams_in_it_touches_none() -> None:
    rig, stream = rig_with_stream()
    fill(rig, stream, 1)
    queue = rig.queue(b"q")
    writes: list[str] = []
    rig.fs.before_operation = lambda number, kind, path: writes.append(path)
    rig.put(queue, b"one", b"two")
    assert not [path for path in writes if "/streams/" in path]


# ---- large records -----------------------------------------------------------------------------


def rig_of_pages(page_bytes: int = 64 << 20) -> tuple[EngineRig, StoredStream]:
    rig = EngineRig(wal_segment_bytes_max=1 << 26)
    (stream,) = rig.engine.streams.declare([(b"s", b"", 0)], page_bytes=page_bytes)
    rig.engine.sync()
    return rig, stream


@pytest.mark.parametrize("page_bytes", [64 << 20, 1 << 20])
def test_large_records_are_written_over_several_turns_if_their_owner_wants_that(
    page_bytes: int,
) -> None:
    """Their head moves record by record, and a checkpoint or a look by time writes the rest."""
    rig, stream = rig_of_pages(page_bytes)
    streams = rig.engine.streams
    streams.is_sliced = True
    bodies = [bytes([n]) * (7 << 20) for n in range(3)]
    heads = [0]
    left = list(bodies)
    while left or streams.has_unwritten:
        if left:
            streams.append(stream, b"h", left.pop(0), OS)
        before = stream.queue.written_bytes
        rig.engine.flush()
        assert stream.queue.written_bytes - before <= SLICE_BYTES + BLOCK_BYTES
        heads.append(stream.head_offset)
    assert len(heads) > 4
    assert sorted(set(heads)) == [0, 1, 2, 3]
    streams.append(stream, b"", bodies[0], OS)
    rig.engine.flush()
    assert (stream.head_offset, streams.has_unwritten) == (3, True)
    assert stream.queue.unwritten_bytes
    rig.engine.checkpoint()
    assert not stream.queue.unwritten_bytes
    rig.engine.sync()
    assert (stream.head_offset, streams.has_unwritten) == (4, False)
    streams.append(stream, b"", bodies[1], OS)
    rig.crash("kept")
    (stream,) = rig.engine.streams.by_number.values()
    found = [one.payload for one in stream.queue.read(0, 10, 1 << 30)]
    assert found == [*bodies, bodies[0]], "the last was in no file"
    rig.stop()


def test_a_stop_in_order_writes_large_records_whole_and_moves_their_head() -> None:
    """A reader by path finds all of it, without another start."""
    rig, stream = rig_of_pages()
    rig.engine.be_sliced()
    rig.engine.streams.append(stream, b"", bytes(SLICE_BYTES + BLOCK_BYTES + 1), OS)
    rig.engine.streams.append(stream, b"", BODY, OS)
    rig.stop()
    rig.fs = rig.fs.crash("lost")
    assert published(rig, stream) == 2
    assert len(StreamView(rig.fs, stream.path).read(0, 9, 1 << 30)) == 2


@pytest.mark.parametrize("nth", range(1, 6))
def test_a_large_record_that_cannot_be_logged_in_a_checkpoint_stops_the_engine(nth: int) -> None:
    rig = EngineRig(wal_segment_bytes_max=1 << 26, group_bytes_max=1 << 26)
    (stream,) = rig.engine.streams.declare([(b"s", b"", 0)], page_bytes=64 << 20)
    rig.engine.be_sliced()
    rig.engine.streams.append(stream, b"", bytes(3 * SLICE_BYTES), DISK)
    rig.fs.fail(errno.EIO, kinds=("pwrite",), path="/wal/", nth=nth)
    with pytest.raises((SyncFailedError, StoppedError)):
        rig.engine.checkpoint()
    assert rig.engine.failed is not None
    assert len(rig.told("stopped")) == 1


def test_a_stream_that_always_has_large_records_leaves_turns_to_others() -> None:
    rig = EngineRig(wal_segment_bytes_max=1 << 26, group_bytes_max=1 << 26)
    streams = rig.engine.streams
    busy, other = streams.declare([(b"a", b"", 0), (b"b", b"", 0)], page_bytes=64 << 20)
    rig.engine.be_sliced()
    body = bytes(SLICE_BYTES + BLOCK_BYTES)
    streams.append(busy, b"", body, OS)
    streams.append(other, b"", body, OS)
    for _ in range(8):
        streams.append(busy, b"", body, OS)
        rig.engine.flush()
        rig.engine.poll()
    assert other.head_offset == 1


@pytest.mark.real
def test_a_large_record_is_not_copied_on_its_way_to_the_disk(tmp_path: Path) -> None:
    fs = OsFileSystem(workers=0)
    path = DataDirectory(fs, str(tmp_path)).vhost_path(VHOST)
    engine = StorageEngine(fs, path, VHOST, clock=SystemClock(), rng=random.Random(1))
    (stream,) = engine.streams.declare([(b"s", b"", 0)], page_bytes=64 << 20)
    engine.sync()
    size = 6 << 20
    body = bytes(size)

    def append() -> None:
        engine.streams.append(stream, b"header", body, OS)
        engine.wait(engine.log.last_lsn, OS)

    def commit() -> None:
        transaction = engine.begin()
        for _ in range(3):
            transaction.append_stream(stream, b"header", body)
        engine.wait(transaction.commit(OS), OS)

    assert cost_of(append).bytes < size // 2
    assert cost_of(commit).bytes < size // 2
    assert stream.head_offset == 4
    engine.close()


# ---- faults ------------------------------------------------------------------------------------


def test_a_full_disk_refuses_appends_as_it_does_publishes() -> None:
    rig, stream = rig_with_stream()
    rig.engine.journal.blocked = True
    before = rig.engine.log.last_lsn
    with pytest.raises(DiskFullError):
        rig.engine.streams.append(stream, b"", BODY, DISK)
    tx = rig.engine.begin()
    tx.append_stream(stream, b"", BODY)
    with pytest.raises(DiskFullError):
        tx.commit(DISK)
    assert (rig.engine.log.last_lsn, stream.next_offset) == (before, 0)
    rig.engine.journal.blocked = False
    rig.engine.wait(tx.commit(DISK), DISK)
    assert stream.head_offset == 1


@pytest.mark.parametrize(
    ("kind", "effect"),
    [("pwrite", errno.EIO), ("pwrite", errno.ENOSPC), ("pwrite", "short"), ("create", errno.EIO),
     ("create", errno.ENOSPC)],
)  # fmt: skip
def test_a_page_that_cannot_be_written_is_told_once_and_written_later(
    kind: str, effect: int | str
) -> None:
    rig, stream = rig_with_stream()
    rig.fs.fail(effect, kinds=(kind,), path=".page", times=3)
    rig.engine.streams.append(stream, b"", BODY, DISK)
    rig.engine.sync()
    if not rig.engine.blocked:
        fill(rig, stream, 1)
    assert stream.head_offset == 0, "the head is where the pages are"
    assert len(rig.told("stream_write")) == 1
    assert rig.engine.blocked == (effect != errno.EIO)
    rig.engine.upkeep.check_disk()
    for _ in range(3):
        rig.engine.flush()
    fill(rig, stream, 3)
    assert stream.head_offset == stream.next_offset == (4 if effect != errno.EIO else 5)
    assert [one.payload for one in stream.queue.read(0, 10, 9999)] == [BODY] * stream.next_offset
    again = rig.crash("lost").streams.get(b"s")
    assert [one.payload for one in again.queue.read(0, 10, 9999)] == [BODY] * again.next_offset


def test_a_place_is_found_by_its_time_while_the_disk_is_full() -> None:
    rig, stream = rig_with_stream()
    times: list[int] = []
    for n in range(6):
        rig.clock.advance(1)
        rig.engine.streams.append(stream, b"", BODY, OS)
        times.append(stream.queue.last_time_us)
        if n == 4:
            rig.fs.fail(errno.ENOSPC, kinds=("pwrite", "create"), path="/streams/", times=None)
        else:
            rig.engine.flush()
    assert (stream.head_offset, stream.next_offset) == (4, 6)
    assert [stream.queue.find(time_us) for time_us in (0, *times)] == [0, 0, 1, 2, 3, 4, 4]
    assert stream.queue.find(times[-1] + 1) == 6


def test_a_page_that_cannot_be_written_is_in_the_log_after_a_crash() -> None:
    rig, stream = rig_with_stream()
    rig.fs.fail(errno.EIO, kinds=("pwrite",), path=".page", times=None)
    fill(rig, stream, 9)
    assert stream.head_offset == 0
    rig.fs.clear_faults()
    assert rig.crash("lost").streams.get(b"s").head_offset == 9


def test_a_checkpoint_without_room_for_pages_is_given_up_and_made_later() -> None:
    rig, stream = rig_with_stream()
    fill(rig, stream, 3)
    rig.engine.streams.append(stream, b"", BODY, DISK)
    rig.fs.fail(errno.ENOSPC, kinds=("pwrite", "create"), path="/streams/", times=None)
    number = rig.engine.checkpoints.number
    assert not rig.engine.checkpoint()
    rig.fs.clear_faults()
    assert rig.engine.checkpoint()
    assert rig.engine.checkpoints.number == number + 1
    assert rig.crash("lost").streams.get(b"s").head_offset == 4


def test_a_checkpoint_has_the_position_of_its_cut() -> None:
    rig, stream = rig_with_stream()
    fill(rig, stream, 3)
    rig.engine.streams.set_reader(stream, "r", 1, DISK)
    rig.engine.upkeep.begin_checkpoint()
    fill(rig, stream, 4)
    rig.engine.streams.set_reader(stream, "r", 2, DISK)
    rig.finish_checkpoint()
    number = rig.engine.checkpoints.number
    found = checkpoint.read(rig.fs, PATH, number, NUMBER).streams[stream.number]
    assert (found.position.next_offset, found.readers["r"].offset) == (3, 1)
    again = rig.crash("lost").streams.get(b"s")
    assert rig.engine.recovered.records == 5
    assert (again.head_offset, again.readers["r"].offset) == (7, 2)


def test_a_checkpoint_in_progress_writes_and_syncs_what_was_deleted_since() -> None:
    """It names the stream's pages, and the record that deletes it may be lost."""
    rig, stream = rig_with_stream()
    fill(rig, stream, 3)
    rig.engine.streams.append(stream, b"", BODY, OS)
    rig.engine.upkeep.begin_checkpoint()
    rig.engine.streams.delete([stream], OS)
    synced: list[str] = []

    def before(number: int, kind: str, path: str) -> None:
        if kind == "sync" and rig.engine.checkpoints.number == 1:
            synced.append(path)

    rig.fs.before_operation = before
    rig.finish_checkpoint()
    assert {f"{stream.path}/{base:020}.page" for base in (0, 2)} <= set(synced)
    assert rig.fs.exists(stream.path), "it goes with the next checkpoint"
    rig.engine.checkpoint()
    rig.settle()
    assert not rig.fs.exists(stream.path)


def test_a_recovery_on_a_full_disk_uses_the_reserve() -> None:
    rig, stream = rig_with_stream()
    fill(rig, stream, 20)
    rig.engine.journal.reserve.bytes = 0
    file = rig.fs.open(PATH + "/reserve", create=True)
    file.allocate(100_000)
    file.close()
    rig.fs = rig.fs.crash("kept")
    for name in rig.fs.list(stream.path):
        if name.endswith(".page"):
            rig.fs.damage_delete(f"{stream.path}/{name}")
    full = rig.fs.fork()
    full.damage_delete(PATH + "/reserve")
    full.capacity = full.used_bytes() + 10
    rig.fs.capacity = rig.fs.used_bytes() + 10
    assert rig._open().streams.get(b"s").head_offset == 20
    rig.fs = full
    with pytest.raises(DiskFullError):
        rig._open()


def test_a_head_that_cannot_be_written_is_written_later() -> None:
    rig, stream = rig_with_stream()
    rig.fs.fail(errno.EIO, kinds=("pwrite",), path=WRITE_META, times=2)
    fill(rig, stream, 2)
    assert (stream.head_offset, published(rig, stream)) == (0, 0)
    for _ in range(2):
        rig.engine.flush()
    assert (stream.head_offset, published(rig, stream)) == (2, 2)


def _work(rig: EngineRig, stream: StoredStream) -> None:
    fill(rig, stream, 2)
    rig.engine.checkpoint()


@pytest.mark.parametrize("path", ["/wal/", ".page", "/streams/"])
def test_a_failed_sync_stops_everything(path: str) -> None:
    rig, stream = rig_with_stream()
    fill(rig, stream, 2)
    rig.fs.fail(errno.EIO, kinds=("sync", "sync_dir"), path=path, times=None)
    with pytest.raises((StoppedError, SyncFailedError)):
        _work(rig, stream)
    head = stream.head_offset
    rig.fs.clear_faults()
    with pytest.raises(StoppedError):
        rig.engine.streams.append(stream, b"", BODY, DISK)
    with pytest.raises(StoppedError):
        rig.engine.streams.retain(stream, max_records=0)
    with pytest.raises(StoppedError):
        rig.engine.streams.set_reader(stream, "r", 1, DISK)
    rig.engine.poll()
    assert stream.head_offset == head, "nothing is settled any more"
    rig.engine.close()
    assert rig.crash("lost").streams.get(b"s").head_offset >= head


@pure_only  # a call is replaced
def test_a_turn_that_ends_with_an_unexpected_error_leaves_its_frames_to_the_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig, stream = rig_with_stream()
    rig.engine.streams.append(stream, b"", BODY, DISK)
    with monkeypatch.context() as patch:
        patch.setattr(StreamTable, "write_one", lambda *_: {}["no such key"])
        with pytest.raises(KeyError):
            rig.engine.flush()
    rig.engine.checkpoint()
    again = rig.crash("lost").streams.get(b"s")
    assert [one.payload for one in again.queue.read(0, 9, 999)] == [BODY]


@pure_only  # constants are replaced
@pytest.mark.parametrize("effect", ["flip", "misdirect", "short"])
def test_a_read_that_is_wrong_once_takes_no_record(
    effect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a start, which refuses or reads again, or while the page goes on that was begun before."""
    for module in (page_writer, record_types, transaction_log):
        monkeypatch.setattr(module, "LARGE_BYTES", 64)
    monkeypatch.setattr(page_writer, "STEP_BYTES", 128)
    bodies = [b"%d" % n * (20 + n * 37 % 190) for n in range(11)]

    def put(stream: StoredStream, some: list[bytes]) -> None:
        for body in some:
            rig.engine.streams.append(stream, b"h", body, OS)
            rig.engine.flush()

    def found() -> list[bytes]:
        stream = rig.engine.streams.get(b"s")
        records = [stream.queue.read(n, 1, 1 << 20) for n in range(stream.head_offset)]
        return [one.payload for (one,) in records]

    rig, stream = rig_with_stream(1 << 10)
    put(stream, bodies[:5])
    rig.engine.sync()
    rig.engine.checkpoint()
    put(stream, bodies[5:8])
    killed = rig.fs.crash("killed")
    nth = hits = refused = 0
    while hits == nth:
        nth += 1
        rig.fs = killed.crash("killed")
        fault = rig.fs.fail(effect, kinds=["read"], nth=nth)
        try:
            rig.engine = rig._open()
        except CorruptionError:
            hits += 1
            refused += 1
            continue
        put(rig.engine.streams.get(b"s"), bodies[8:])
        rig.engine.sync()
        rig.engine.checkpoint()
        assert found() == bodies
        hits += fault.hits
        rig.fs.clear_faults()
        rig.engine.close()
        rig.engine = rig._open()
        assert found() == bodies
    assert refused < nth // 4


# ---- retention ---------------------------------------------------------------------------------


def test_whole_pages_go_by_count_bytes_and_age() -> None:
    rig, stream = rig_with_stream()  # two records in a page
    for _ in range(8):
        fill(rig, stream, 1)
        rig.clock.advance(10)
    assert page_names(rig, stream) == [0, 2, 4, 6]
    assert rig.engine.streams.retain(stream, max_records=5) == 1
    rig.engine.poll()
    assert (stream.first_offset, page_names(rig, stream)) == (2, [2, 4, 6])
    assert read_tail(rig.fs, stream.path) == 2
    assert rig.engine.streams.retain(stream, max_bytes=500) == 1
    rig.engine.poll()
    assert rig.engine.streams.retain(stream, max_age_s=35) == 0
    assert rig.engine.streams.retain(stream, max_age_s=15) == 1
    rig.engine.poll()
    assert (stream.first_offset, page_names(rig, stream)) == (6, [6])
    assert rig.engine.streams.retain(stream, max_records=0, max_age_s=10, max_bytes=0) == 0
    again = rig.crash("lost").streams.get(b"s")
    assert (again.first_offset, again.head_offset) == (6, 8)


# ---- the last page -------------------------------------------------------------------------------


def idle(rig: EngineRig, stream: StoredStream, count: int = 3) -> None:
    """So many records, all of them older than a minute and on disk."""
    fill(rig, stream, count)
    rig.clock.advance(61)


def test_the_last_page_of_an_idle_stream_goes_by_age() -> None:
    rig, stream = rig_with_stream()
    idle(rig, stream)
    last_us = stream.queue.last_time_us
    assert rig.engine.streams.retain(stream, max_age_s=62) == 0
    assert rig.engine.streams.retain(stream, max_age_s=60) == 2
    assert rig.engine.streams.retain(stream, max_age_s=60) == 0
    rig.engine.poll()
    assert (stream.first_offset, stream.next_offset, stream.head_offset) == (3, 3, 3)
    assert (page_names(rig, stream), stream.queue.bytes) == ([], 0)
    assert stream.queue.read(0, 9, 999) == []
    assert stream.queue.find(0) == stream.queue.find(last_us) == 3
    assert (published(rig, stream), read_tail(rig.fs, stream.path)) == (3, 3)
    fill(rig, stream, 3)
    assert (stream.first_offset, page_names(rig, stream)) == (3, [3, 5])
    again = rig.restart().streams.get(b"s")
    assert (again.first_offset, again.head_offset, page_names(rig, again)) == (3, 6, [3, 5])


@pytest.mark.parametrize("mode", ["lost", "kept", "killed"])
@pytest.mark.parametrize("checkpoint", ["before", "after", "both", "none"])
@pytest.mark.parametrize("more", [0, 1, 5])
def test_a_crash_after_the_last_page_went(mode: str, checkpoint: str, more: int) -> None:
    """There was room in the page that went: a replay begins the next one where it was begun."""
    rig, stream = rig_with_stream()
    fill(rig, stream, 2)
    if checkpoint in ("before", "both"):
        rig.engine.checkpoint()
    idle(rig, stream, 1)
    assert rig.engine.streams.retain(stream, max_age_s=60) == 2
    rig.engine.poll()
    if checkpoint in ("after", "both"):
        rig.engine.checkpoint()
    fill(rig, stream, more)
    names = page_names(rig, stream)
    again = rig.crash(mode).streams.get(b"s")
    assert (again.first_offset, again.head_offset) == (3, 3 + more)
    assert page_names(rig, again) == names
    assert [r.offset for r in again.queue.read(0, 9, 9999)] == list(range(3, 3 + more))
    fill(rig, again, 3)
    assert rig.restart().streams.get(b"s").head_offset == 6 + more


def test_a_crash_before_readmeta_is_durable_brings_the_page_back() -> None:
    rig, stream = rig_with_stream()
    idle(rig, stream, 1)
    plan = stream.queue.plan_retain(max_age_s=60, now_us=rig.clock.wall_us())
    assert plan is not None
    assert (plan.bases, plan.first_base) == ([0], 1)
    fill(rig, stream, 1)
    assert page_names(rig, stream) == [0, 1]
    again = rig.crash("kept").streams.get(b"s")
    assert (again.first_offset, again.head_offset, page_names(rig, again)) == (0, 2, [0])


def test_readmeta_follows_a_checkpoint_without_a_page() -> None:
    rig, stream = rig_with_stream()
    idle(rig, stream, 3)
    assert stream.queue.plan_retain(max_age_s=60, now_us=rig.clock.wall_us()) is not None
    stream.section = None
    rig.engine.checkpoint()
    assert read_tail(rig.fs, stream.path) == 0
    again = rig.crash("lost").streams.get(b"s")
    assert (again.first_offset, again.head_offset, page_names(rig, again)) == (3, 3, [])
    assert read_tail(rig.fs, again.path) == 3
    fill(rig, again, 1)
    assert StreamView(rig.fs, again.path).first_offset() == 3


def test_a_page_that_is_not_settled_or_held_stays() -> None:
    rig, stream = rig_with_stream()
    fill(rig, stream, 1)
    rig.engine.streams.append(stream, b"", BODY, OS)
    rig.clock.advance(61)
    assert rig.engine.streams.retain(stream, max_age_s=60) == 0, "it is not written"
    rig.engine.flush()
    assert rig.engine.streams.retain(stream, max_age_s=60) == 0, "it is not durable"
    rig.engine.sync()
    rig.engine.streams.set_reader(stream, "slow", 0, DISK, 1)
    assert rig.engine.streams.retain(stream, max_age_s=60) == 0, "a reader asks for it"
    assert rig.engine.streams.retain(stream, max_age_s=60, hold_age_s=5) == 0, "within bounds"
    assert rig.engine.streams.retain(stream, max_age_s=60, hold_age_s=0) == 1, "and not beyond"


def test_an_owner_that_cannot_write_keeps_the_last_page() -> None:
    rig, stream = rig_with_stream()
    idle(rig, stream, 1)
    rig.fs.fail(errno.EIO, kinds=("pwrite",), path=WRITE_META)
    assert rig.engine.streams.retain(stream, max_age_s=60) == 0
    assert rig.told("stream_write")
    assert (stream.first_offset, page_names(rig, stream)) == (0, [0])
    assert rig.engine.streams.retain(stream, max_age_s=60) == 1


@pytest.mark.parametrize("mode", ["lost", "kept", "killed"])
@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_what_was_taken_away_does_not_come_back(mode: str, has_checkpoint: bool) -> None:
    """Also if no checkpoint was made since, and the log names records of pages that are gone."""
    rig, stream = rig_with_stream()
    fill(rig, stream, 3)
    if has_checkpoint:
        rig.engine.checkpoint()
    fill(rig, stream, 9)
    assert rig.engine.streams.retain(stream, max_records=2) == 5
    rig.engine.poll()
    again = rig.crash(mode).streams.get(b"s")
    assert (again.first_offset, again.head_offset) == (10, 12)
    assert page_names(rig, again) == [10]
    fill(rig, again, 3)
    again = rig.restart().streams.get(b"s")
    assert (again.first_offset, again.head_offset) == (10, 15)


def test_pages_that_a_crash_left_below_the_first_are_deleted() -> None:
    rig, stream = rig_with_stream()
    fill(rig, stream, 8)
    rig.engine.checkpoint()
    rig.fs.fail(errno.EIO, kinds=("unlink",), times=None)
    assert rig.engine.streams.retain(stream, max_records=2) == 3
    rig.engine.poll()
    assert rig.told("stream_write")
    rig.fs.clear_faults()
    assert page_names(rig, stream) == [0, 2, 4, 6]
    again = rig.crash("kept").streams.get(b"s")
    assert page_names(rig, again) == [6]
    assert again.first_offset == 6


def test_pages_that_cannot_be_deleted_now_are_deleted_with_the_next_ones() -> None:
    """On a full disk readMeta may find no room, and its pages are what takes the room."""
    rig, stream = rig_with_stream()
    fill(rig, stream, 8)
    rig.fs.fail(errno.ENOSPC, kinds=("create",), path="readMeta")
    assert rig.engine.streams.retain(stream, max_records=2) == 3
    rig.engine.poll()
    assert (stream.first_offset, page_names(rig, stream)) == (6, [0, 2, 4, 6])
    assert rig.engine.streams.retain(stream, max_records=2) == 3
    rig.engine.poll()
    assert (read_tail(rig.fs, stream.path), page_names(rig, stream)) == (6, [6])
    assert rig.engine.streams.retain(stream, max_records=2) == 0


@pytest.mark.parametrize("has_room", [False, True])
def test_pages_that_a_backup_keeps_are_deleted_after_readmeta_has_moved(has_room: bool) -> None:
    """A start misses a page that readMeta names."""
    rig, stream = rig_with_stream()
    fill(rig, stream, 8)
    rig.engine.checkpoint()
    rig.engine.journal.pin_files()
    if not has_room:
        rig.fs.fail(errno.ENOSPC, kinds=("create",), path="readMeta")
    assert rig.engine.streams.retain(stream, max_records=2) == 3
    if not has_room:
        rig.engine.poll()
    rig.engine.journal.unpin_files()
    tails: list[int] = []

    def before(number: int, kind: str, path: str) -> None:
        if kind == "unlink":
            tails.append(read_tail(rig.fs, stream.path))

    rig.fs.before_operation = before
    rig.engine.poll()
    rig.engine.poll()
    rig.fs.before_operation = None
    assert tails == ([6] * 6 if has_room else [])
    first = 6 if has_room else 0
    assert page_names(rig, stream) == list(range(first, 8, 2))
    again = rig.crash("kept").streams.get(b"s")
    assert [one.offset for one in again.queue.read(0, 9, 9999)] == list(range(first, 8))


def test_a_reader_keeps_what_it_asks_for_while_it_is_heard_of() -> None:
    rig, stream = rig_with_stream()
    fill(rig, stream, 8)
    rig.engine.streams.set_reader(stream, "slow", 8, DISK, 3)
    rig.engine.streams.set_reader(stream, "fast", 8, DISK)
    assert rig.engine.streams.retain(stream, max_records=0) == 1
    rig.engine.poll()
    assert stream.first_offset == 2
    rig.clock.advance(60)
    now = rig.clock.wall_ms()
    assert rig.engine.streams.retain(stream, max_records=0, since_ms=now - 100_000) == 0
    assert rig.engine.streams.retain(stream, max_records=0, since_ms=now - 1000) == 2
    rig.engine.poll()
    assert stream.first_offset == 6


def test_what_is_not_durable_stays() -> None:
    """Mode os: a power cut may lose the end of the log, and with it where offsets went on."""
    rig, stream = rig_with_stream()
    for _ in range(8):
        rig.engine.streams.append(stream, b"", BODY, OS)
    rig.engine.flush()
    assert stream.head_offset == 8
    assert rig.engine.streams.retain(stream, max_records=0) == 0
    rig.engine.sync()
    assert rig.engine.streams.retain(stream, max_records=0) == 3
    rig.engine.poll()
    for _ in range(8):
        rig.engine.streams.append(stream, b"", BODY, OS)
        rig.engine.flush()
    assert rig.engine.streams.retain(stream, max_records=0) == 0
    assert rig.crash("lost").streams.get(b"s").first_offset == 6


def test_one_deletion_at_a_time() -> None:
    rig, stream = rig_with_stream()
    fill(rig, stream, 8)
    assert rig.engine.streams.retain(stream, max_records=4) == 2
    assert rig.engine.streams.retain(stream, max_records=2) == 0
    rig.engine.poll()
    assert rig.engine.streams.retain(stream, max_records=2) == 1
    rig.engine.poll()
    assert page_names(rig, stream) == [6]


def test_a_pinned_store_keeps_its_pages_and_readers_do_not_see_them() -> None:
    rig, stream = rig_with_stream()
    fill(rig, stream, 8)
    rig.engine.journal.pins.count += 1
    assert rig.engine.streams.retain(stream, max_records=2) == 3
    rig.engine.poll()
    assert (stream.first_offset, page_names(rig, stream)) == (6, [0, 2, 4, 6])
    assert [path for path in rig.engine.journal.pins.paths if path.endswith(".page")] == [
        f"{stream.path}/{base:020}.page" for base in (0, 2, 4)
    ]


def test_a_failed_sync_of_a_deletion_stops_the_engine_and_nothing_is_lost() -> None:
    rig, stream = rig_with_stream()
    fill(rig, stream, 8)
    rig.fs.fail(errno.EIO, kinds=("sync",), path="readMeta")
    rig.engine.streams.retain(stream, max_records=2)
    rig.engine.poll()
    with pytest.raises(StoppedError):
        rig.engine.flush()
    again = rig.crash("lost").streams.get(b"s")
    assert (again.first_offset, again.head_offset) == (0, 8)


def test_a_deletion_without_room_is_told_and_tried_again_later() -> None:
    rig, stream = rig_with_stream()
    fill(rig, stream, 8)
    rig.fs.fail(errno.ENOSPC, kinds=("pwrite",), path="readMeta")
    assert rig.engine.streams.retain(stream, max_records=2) == 3
    rig.engine.poll()
    assert rig.told("stream_write")
    assert page_names(rig, stream) == [0, 2, 4, 6]
    assert rig.crash("kept").streams.get(b"s").first_offset in (0, 6)


def test_pages_whose_deletion_failed_are_synced_by_the_next_checkpoint() -> None:
    """readMeta is as it was, so the next start begins with them."""
    rig, stream = rig_with_stream()
    fill(rig, stream, 8)
    rig.fs.fail(errno.ENOSPC, kinds=("pwrite",), path="readMeta")
    assert rig.engine.streams.retain(stream, max_records=2) == 3
    rig.engine.poll()
    assert rig.engine.checkpoint()
    again = rig.crash("lost").streams.get(b"s")
    assert (again.first_offset, again.head_offset) == (0, 8)
    assert len(again.queue.read(0, 100, 9999)) == 8


def test_a_missing_page_is_corruption_and_named() -> None:
    rig, stream = rig_with_stream()
    fill(rig, stream, 8)
    rig.engine.checkpoint()
    rig.fs = rig.fs.crash("kept")
    rig.fs.damage_delete(f"{stream.path}/{0:020}.page")
    with pytest.raises(CorruptionError, match=r"0\.page"):
        rig._open().streams.get(b"s").queue.read(0, 1, 1)
    assert PATH in stream.path
