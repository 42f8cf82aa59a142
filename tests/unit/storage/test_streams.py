"""Streams in an engine: declared, appended to, read, kept over every kind of end, deleted."""

import errno
import random

import pytest

from penstock.errors import (
    CorruptionError,
    DiskFullError,
    StoppedError,
    SyncFailedError,
    UnknownQueueError,
)
from penstock.storage.files.durability import DISK, NONE, OS
from penstock.storage.index.routing_table import DurableQueue
from penstock.storage.log import record
from penstock.storage.pages.page import INDEX_ROW_BYTES
from penstock.storage.pages.stream_meta import ReaderOffset
from penstock.storage.pages.streams import STREAM_FLAG, StoredStream
from tests.helpers.engine_rig import EngineRig
from tests.helpers.tiny_engine import PATH

PAGE_BYTES = 256


def declare(rig: EngineRig, *names: bytes, page_bytes: int = PAGE_BYTES) -> list[StoredStream]:
    made = rig.engine.streams.declare([(name, b"args", 0) for name in names], page_bytes=page_bytes)
    rig.engine.sync()
    return made


def append(rig: EngineRig, stream: StoredStream, *bodies: bytes, mode: int = DISK) -> list[int]:
    found = [rig.engine.streams.append(stream, b"h " + body, body, mode) for body in bodies]
    rig.engine.sync()
    return found


def bodies(stream: StoredStream, offset: int = 0) -> list[bytes]:
    """All records from an offset to the head."""
    found = stream.queue.read(offset, 1000, 1 << 20)
    assert [one.offset for one in found] == list(
        range(max(offset, stream.first_offset), stream.head_offset)
    )
    assert all(one.meta == b"h " + one.payload for one in found)
    return [one.payload for one in found]


def numbered(n: int, first: int = 0) -> list[bytes]:
    return [b"body %05d " % i * 3 for i in range(first, first + n)]


# ---- declare and delete ------------------------------------------------------------------------


def test_a_stream_is_in_the_routing_table_and_not_among_the_queues() -> None:
    rig = EngineRig()
    (stream,) = declare(rig, b"s")
    known = rig.engine.state.routing.queues[b"s"]
    assert (known.number, known.flags, known.arguments) == (stream.number, STREAM_FLAG, b"args")
    assert rig.engine.streams.get(b"s") is stream
    assert stream.number not in rig.engine.state.queues
    with pytest.raises(UnknownQueueError):
        rig.engine.queue(b"s")
    with pytest.raises(UnknownQueueError):
        rig.engine.streams.get(b"other")


def test_partitions_are_declared_in_one_record() -> None:
    rig = EngineRig()
    before = rig.engine.log.last_lsn
    made = declare(rig, b"s\0p0", b"s\0p1", b"s\0p2")
    assert rig.engine.log.last_lsn == before + 1
    assert len({stream.number for stream in made}) == 3
    assert len({stream.queue.stream_id for stream in made}) == 3
    assert rig.fs.read(made[1].path + "/.queue_name") == b"VHOST: test\nQUEUE: s\\x00p1\n"


@pytest.mark.parametrize("names", [[b"s", b"s"], [b"taken"], [b"q"]])
def test_a_name_that_is_taken_is_refused_and_nothing_happens(names: list[bytes]) -> None:
    rig = EngineRig()
    rig.declare(b"q")
    declare(rig, b"taken")
    before = (rig.engine.log.last_lsn, rig.fs.list(PATH + "/streams"))
    with pytest.raises(ValueError, match=r"name comes twice|exists"):
        rig.engine.streams.declare([(name, b"", 0) for name in names], page_bytes=PAGE_BYTES)
    assert (rig.engine.log.last_lsn, rig.fs.list(PATH + "/streams")) == before


def test_streams_are_declared_by_declare_streams_alone() -> None:
    rig = EngineRig()
    number = rig.engine.state.next_queue
    with pytest.raises(ValueError, match="declared as streams"):
        rig.engine.apply_topology(DurableQueue(b"x", number, STREAM_FLAG).record())
    with pytest.raises(ValueError, match="declared as streams"):
        rig.engine.declare_queues([(b"x", b"", STREAM_FLAG)])
    (stream,) = declare(rig, b"s")
    with pytest.raises(ValueError, match="declared as streams"):
        rig.engine.apply_topology(DurableQueue(b"s", stream.number, 0).record())
    changed = DurableQueue(b"s", stream.number, STREAM_FLAG, b"other")
    rig.engine.apply_topology(changed.record())
    assert rig.engine.state.routing.queues[b"s"] == changed
    assert rig.engine.streams.get(b"s") is stream


def test_a_full_disk_refuses_a_declare_and_the_next_one_goes_on() -> None:
    rig = EngineRig()
    rig.fs.fail(errno.ENOSPC, kinds=("pwrite",), path="allMeta")
    with pytest.raises(DiskFullError):
        declare(rig, b"s")
    rig.engine.upkeep.check_disk()
    (stream,) = declare(rig, b"s")
    append(rig, stream, b"one")
    assert bodies(rig.crash().streams.get(b"s")) == [b"one"]


def test_a_failed_sync_of_a_declare_stops_the_engine() -> None:
    rig = EngineRig()
    rig.fs.fail(errno.EIO, kinds=("sync",), path="/streams/")
    with pytest.raises(SyncFailedError):
        declare(rig, b"s")
    with pytest.raises(StoppedError):
        rig.engine.flush()
    assert rig.crash("lost").streams.by_number == {}


@pytest.mark.parametrize("mode", ["lost", "kept", "killed"])
def test_a_deleted_stream_is_gone_and_its_directory_goes_at_the_checkpoint(mode: str) -> None:
    rig = EngineRig()
    gone, stays = declare(rig, b"gone", b"stays")
    append(rig, gone, b"one")
    append(rig, stays, b"two")
    rig.engine.checkpoint()
    lsn = rig.engine.streams.delete([gone])
    rig.engine.wait(lsn, DISK)
    assert gone.is_deleted
    assert rig.fs.exists(gone.path)
    with pytest.raises(UnknownQueueError, match="deleted"):
        rig.engine.streams.append(gone, b"", b"x", DISK)
    with pytest.raises(UnknownQueueError, match="deleted"):
        rig.engine.streams.delete([gone])
    with pytest.raises(UnknownQueueError, match="deleted"):
        rig.engine.streams.set_reader(gone, "r", 0, DISK)
    engine = rig.crash(mode)
    assert list(engine.state.streams.by_name) == [b"stays"]
    assert not rig.fs.exists(gone.path)
    assert bodies(engine.streams.get(b"stays")) == [b"two"]


def test_a_name_may_be_declared_again_and_is_another_stream() -> None:
    rig = EngineRig()
    (old,) = declare(rig, b"s")
    append(rig, old, b"old")
    rig.engine.streams.delete([old])
    (new,) = declare(rig, b"s")
    assert (new.next_offset, new.number > old.number) == (0, True)
    append(rig, new, b"new")
    assert bodies(rig.restart().streams.get(b"s")) == [b"new"]


# ---- append and read ---------------------------------------------------------------------------


def test_records_are_read_once_they_are_settled() -> None:
    rig = EngineRig()
    (stream,) = declare(rig, b"s")
    assert rig.engine.streams.append(stream, b"h one", b"one", DISK) == 0
    assert (stream.next_offset, stream.head_offset) == (1, 0)
    rig.engine.flush()
    assert stream.head_offset == 0
    rig.engine.sync()
    assert stream.head_offset == 1
    assert bodies(stream) == [b"one"]


def test_times_come_from_the_clock_and_never_go_back() -> None:
    rig = EngineRig()
    (stream,) = declare(rig, b"s")
    start = rig.clock.wall_us()
    append(rig, stream, b"a")
    rig.clock.advance(2.5)
    append(rig, stream, b"b")
    rig.clock._advanced = 1.0  # somebody sets the clock back
    append(rig, stream, b"c")
    rig.engine.streams.append(stream, b"", b"d", DISK, start + 9_000_000)
    rig.engine.streams.append(stream, b"", b"e", DISK, start)
    rig.engine.sync()
    times = [one.time_us - start for one in stream.queue.read(0, 10, 1000)]
    assert times == [0, 2_500_000, 2_500_000, 9_000_000, 9_000_000]
    after = rig.crash("lost").streams.get(b"s")
    assert [one.time_us - start for one in after.queue.read(0, 10, 1000)] == times
    assert after.queue.last_time_us == start + 9_000_000


@pytest.mark.parametrize("mode", ["lost", "kept", "killed"])
@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_everything_is_there_after_a_crash(mode: str, has_checkpoint: bool) -> None:
    rig = EngineRig()
    (stream,) = declare(rig, b"s")
    append(rig, stream, *numbered(20))
    if has_checkpoint:
        rig.engine.checkpoint()
    append(rig, stream, *numbered(15, 20))
    again = rig.crash(mode).streams.get(b"s")
    assert bodies(again) == numbered(35)
    assert rig.engine.recovered.records == (15 if has_checkpoint else 36)
    append(rig, again, *numbered(5, 35))
    assert bodies(rig.restart().streams.get(b"s")) == numbered(40)
    assert rig.engine.recovered.is_clean


def test_the_same_bytes_are_written_again() -> None:
    rig = EngineRig()
    (stream,) = declare(rig, b"s")
    append(rig, stream, *numbered(10))
    rig.engine.checkpoint()
    append(rig, stream, *numbered(10, 10))
    names = [n for n in rig.fs.list(stream.path) if n.endswith(".page")]
    before = {name: rig.fs.read(f"{stream.path}/{name}") for name in names}
    assert len(before) > 3
    rig.crash("lost")
    assert {name: rig.fs.read(f"{stream.path}/{name}") for name in names} == before


def test_a_record_larger_than_a_page_and_an_empty_one() -> None:
    rig = EngineRig()
    (stream,) = declare(rig, b"s")
    large = b"x" * 20_000  # larger than a log segment too
    append(rig, stream, b"a", large, b"", large, b"b")
    assert bodies(stream) == [b"a", large, b"", large, b"b"]
    assert bodies(rig.crash("lost").streams.get(b"s")) == [b"a", large, b"", large, b"b"]


def test_a_record_for_no_page_is_refused_before_it_is_logged() -> None:
    rig = EngineRig()
    (stream,) = declare(rig, b"s")

    huge = bytes(1 << 31)  # of zeros that are never touched, so it costs no memory
    before = rig.engine.log.last_lsn
    with pytest.raises(ValueError, match="page"):
        rig.engine.streams.append(stream, b"", huge, DISK)
    with pytest.raises(ValueError, match="page"):
        rig.engine.begin().append_stream(stream, b"", huge)
    assert (rig.engine.log.last_lsn, stream.next_offset) == (before, 0)


def test_nothing_stays_in_ram_after_a_flush() -> None:
    rig = EngineRig()
    (stream,) = declare(rig, b"s", page_bytes=1 << 20)
    for body in numbered(1000):
        rig.engine.streams.append(stream, b"", body, OS)
    rig.engine.sync()
    writer = stream.queue.writer
    assert writer is not None
    assert not writer._pending
    assert len(writer._rows) < 300 * INDEX_ROW_BYTES
    assert not stream.turns


def test_a_caller_who_never_flushes_does_not_fill_the_ram() -> None:
    rig = EngineRig(group_bytes_max=8192)
    (stream,) = declare(rig, b"s", page_bytes=1 << 20)
    for body in numbered(2000):
        rig.engine.streams.append(stream, b"", body, DISK)
    assert stream.queue.written_offset > 1000


def test_mode_none_counts_as_os() -> None:
    rig = EngineRig()
    (stream,) = declare(rig, b"s")
    rig.engine.streams.append(stream, b"h a", b"a", NONE)
    rig.engine.flush()
    assert bodies(stream) == [b"a"]
    assert bodies(rig.crash("killed").streams.get(b"s")) == [b"a"]


# ---- transactions ------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 300])
@pytest.mark.parametrize("mode", ["lost", "killed"])
def test_a_transaction_over_queue_and_streams(n: int, mode: str) -> None:
    """Small: one record; large: in parts, whose offsets are ordinals."""
    rig = EngineRig(tx_record_bytes=2000, tx_part_bytes=500)
    one, two = declare(rig, b"one", b"two", page_bytes=2048)
    queue = rig.queue(b"q")
    append(rig, one, b"before")
    tx = rig.engine.begin()
    appended = []
    for body in numbered(n):
        appended.append(tx.append_stream(one, b"h " + body, body))
        tx.append_stream(two, b"h " + body, body)
        tx.publish([queue], b"", body)
    assert (one.next_offset, two.next_offset) == (1, 0)
    before = rig.engine.log.last_lsn
    lsn = tx.commit(DISK)
    assert (lsn > before + 2) == (n == 300)
    assert [a.offset for a in appended] == list(range(1, n + 1))
    assert one.head_offset == 1
    rig.engine.wait(lsn, DISK)
    assert bodies(one) == [b"before", *numbered(n)]
    engine = rig.crash(mode)
    assert bodies(engine.streams.get(b"one")) == [b"before", *numbered(n)]
    assert bodies(engine.streams.get(b"two")) == numbered(n)
    assert list(rig.bodies(engine.queue(b"q")).values()) == numbered(n)


def test_a_rolled_back_transaction_leaves_nothing() -> None:
    rig = EngineRig()
    (stream,) = declare(rig, b"s")
    tx = rig.engine.begin()
    tx.append_stream(stream, b"", b"never")
    tx.rollback()
    append(rig, stream, b"first")
    assert bodies(stream) == [b"first"]


def test_a_stream_that_is_deleted_before_the_commit_is_left_out() -> None:
    rig = EngineRig()
    gone, stays = declare(rig, b"gone", b"stays")
    tx = rig.engine.begin()
    tx.append_stream(gone, b"", b"lost")
    tx.append_stream(stays, b"h kept", b"kept")
    rig.engine.streams.delete([gone])
    rig.engine.wait(tx.commit(DISK), DISK)
    assert bodies(stays) == [b"kept"]
    with pytest.raises(UnknownQueueError):
        rig.engine.begin().append_stream(gone, b"", b"x")


def test_appends_gathered_in_one_record() -> None:
    rig = EngineRig()
    (stream,) = declare(rig, b"s")
    before = rig.engine.log.last_lsn
    with rig.engine.journal.one_record(DISK) as one:
        for body in numbered(3):
            rig.engine.streams.append(stream, b"h " + body, body, DISK)
        rig.engine.streams.set_reader(stream, "r", 2, DISK)
    assert one.lsn == rig.engine.log.last_lsn == before + 1
    rig.engine.wait(one.lsn, DISK)
    assert bodies(stream) == numbered(3)
    again = rig.crash("lost").streams.get(b"s")
    assert bodies(again) == numbered(3)
    assert again.readers["r"].offset == 2


# ---- readers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_named_readers_are_kept(has_checkpoint: bool) -> None:
    rig = EngineRig()
    (stream,) = declare(rig, b"s")
    append(rig, stream, *numbered(5))
    rig.engine.streams.set_reader(stream, "spark", 3, DISK, 1)
    rig.engine.streams.set_reader(stream, "gone", 5, DISK)
    rig.engine.streams.set_reader(stream, "größer", 1 << 40, OS)
    if has_checkpoint:
        rig.engine.checkpoint()
    rig.clock.advance(1)
    rig.engine.streams.set_reader(stream, "spark", 4, DISK, 2)
    rig.engine.wait(rig.engine.streams.delete_reader(stream, "gone", DISK), DISK)
    now = rig.clock.wall_ms()
    wanted = {
        "spark": ReaderOffset(4, 2, now), "größer": ReaderOffset(1 << 40, None, now - 1000),
    }  # fmt: skip
    assert stream.readers == wanted
    assert rig.crash("lost").streams.get(b"s").readers == wanted
    assert rig.restart().streams.get(b"s").readers == wanted


def test_readers_that_cannot_be() -> None:
    rig = EngineRig()
    (stream,) = declare(rig, b"s")
    before = rig.engine.log.last_lsn
    for name, offset, kept in (
        ("", 0, None),
        ("x" * 70_000, 0, None),
        ("r", -1, None),
        ("r", 0, -5),
    ):
        with pytest.raises(ValueError, match="reader"):
            rig.engine.streams.set_reader(stream, name, offset, DISK, kept)
    assert rig.engine.streams.delete_reader(stream, "nobody", DISK) == before
    assert (rig.engine.log.last_lsn, stream.readers) == (before, {})


# ---- damage ------------------------------------------------------------------------------------


def test_a_missing_directory_or_another_stream_is_corruption() -> None:
    rig = EngineRig()
    one, two = declare(rig, b"one", b"two")
    append(rig, one, b"a")
    append(rig, two, b"b")
    rig.engine.checkpoint()
    fs = rig.fs.crash("kept")
    rig.fs = fs.fork()
    rig.fs.damage_delete(one.path + "/allMeta")
    with pytest.raises(CorruptionError, match="allMeta"):
        rig._open()
    rig.fs = fs.fork()
    rig.fs.damage_swap(one.path + "/allMeta", two.path + "/allMeta")
    with pytest.raises(CorruptionError, match="allMeta"):
        rig._open()


def test_a_record_of_an_impossible_offset_is_corruption() -> None:
    rig = EngineRig()
    (stream,) = declare(rig, b"s")
    append(rig, stream, b"a")
    rig.engine.log.append(
        record.STREAM, 0, 1, record.stream_data(stream.number, 5, 1, b"", b"hole"), DISK
    )
    rig.engine.sync()
    with pytest.raises(CorruptionError, match="a record of offset 5 in stream"):
        rig.crash("lost")


def test_many_streams_need_few_open_files() -> None:
    rig = EngineRig()
    made = declare(rig, *[b"s%d" % i for i in range(150)])
    rng = random.Random(1)
    for _ in range(3):
        for stream in rng.sample(made, len(made)):
            rig.engine.streams.append(stream, b"h " + stream.name, stream.name, DISK)
        rig.engine.sync()
    assert sum(1 for n in rig.fs.handles.values() if n) < 250
    for stream in made:
        assert bodies(stream) == [stream.name] * 3
    assert sum(1 for n in rig.fs.handles.values() if n) > 300, "readers have files open"
    rig.clock.advance(1.1)
    rig.engine.tick()
    assert sum(1 for n in rig.fs.handles.values() if n) < 250
    for stream in made:
        assert bodies(stream) == [stream.name] * 3
    engine = rig.crash("lost")
    assert all(bodies(s) == [s.name] * 3 for s in engine.streams.by_number.values())
