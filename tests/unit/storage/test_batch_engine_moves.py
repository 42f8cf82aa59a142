"""Batches on an engine: adoptions whose files are under way, and slices that go into queues."""

import random

import pytest

from penstock.errors import CorruptionError, StoppedError, SyncFailedError
from penstock.storage.files.durability import DISK
from penstock.storage.pages.staging import query_path, staging_path
from penstock.storage.parts import batch_engine
from tests.helpers.batch_rig import LARGE, BatchRig, payloads
from tests.helpers.tiny_batches import read_batch, roll, rows_of, step_into_stream
from tests.helpers.tiny_engine import PATH


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_engine, "ADOPT_BYTES_MIN", LARGE)


# ---- adoption under way --------------------------------------------------------------------------


def adopting(rig: BatchRig) -> None:
    """A page is adopted, and no worker has begun with its files."""
    rig.append(b"before")
    rig.decide(rows_of(0, 20))
    rig.engine.batches.adopt("q", rig.stream())
    rig.engine.log.flush()
    assert rig.engine.state.streams.adopting


def test_no_checkpoint_makes_its_cut_while_files_are_under_way() -> None:
    rig = BatchRig()
    adopting(rig)
    before = rig.engine.checkpoints.count
    rig.engine.upkeep.begin_checkpoint()
    assert rig.engine.checkpoints.phase == "idle"
    assert rig.engine.checkpoint()
    assert rig.engine.checkpoints.count == before + 1
    assert not rig.engine.state.streams.adopting
    rig.crash("lost")
    assert rig.payloads() == [b"before", *payloads(rows_of(0, 20))]


def test_the_staged_name_goes_after_the_checkpoint_that_knows_the_page() -> None:
    rig = BatchRig()
    (page,) = rig.decide(rows_of(0, 20))
    rig.engine.checkpoint()
    roll(rig.engine, "q")
    path = f"{query_path(PATH, 'q')}/{page.name}"
    assert rig.fs.exists(path)
    rig.engine.checkpoint()
    assert not rig.fs.exists(path)
    assert rig.fs.list(query_path(PATH, "q")) == [".query_name"]
    rig.crash("lost")
    assert rig.payloads() == payloads(rows_of(0, 20))


def test_a_record_behind_a_page_whose_files_are_under_way_waits() -> None:
    rig = BatchRig()
    adopting(rig)
    for n in range(9):
        rig.engine.streams.append(rig.stream(), b"", b"%d" % n * 90, DISK)
    rig.engine.log.flush()
    rig.engine.streams.turn()
    queue = rig.stream().queue
    assert queue.written_offset == 1
    assert queue.find(0) == 0
    assert queue.find(rig.clock.wall_us()) <= 1
    rig.settle()
    assert rig.stream().head_offset == 30
    rig.restart()
    assert len(rig.payloads()) == 30


def test_an_adoption_that_has_no_room_is_tried_again() -> None:
    rig = BatchRig()
    rig.append(b"before")
    rig.decide(rows_of(0, 20))
    fault = rig.fs.fail(28, kinds=("pwrite",), path="/staging/", times=2)
    roll(rig.engine, "q")
    assert rig.stream().head_offset == 1
    assert len(rig.told("stream_write")) == 1
    assert not rig.engine.checkpoint()
    assert fault.hits == 2
    rig.engine.journal.blocked = False
    rig.settle()
    assert rig.payloads() == [b"before", *payloads(rows_of(0, 20))]
    assert rig.engine.checkpoint()


def test_an_adoption_without_room_gets_that_of_the_reserve() -> None:
    """No checkpoint is made before it is done, so nothing else would give any room back."""
    rig = BatchRig()
    rig.append(*[b"before" * 200] * 20)
    rig.clock.advance(2)
    rig.settle()
    rows = rows_of(0, 20)
    rig.decide(rows)
    assert rig.engine.journal.reserve.bytes > 4000
    rig.fs.capacity = rig.fs.used_bytes()
    roll(rig.engine, "q")
    for _ in range(3):
        rig.clock.advance(0.1)
        rig.settle()
    assert not rig.engine.state.streams.adopting
    assert rig.engine.checkpoint()
    assert rig.payloads()[20:] == payloads(rows)


def test_a_failed_sync_of_an_adoption_stops_the_engine() -> None:
    rig = BatchRig()
    rig.decide(rows_of(0, 20))
    rig.fs.fail(5, kinds=("sync",), path="/staging/")
    rig.engine.batches.adopt("q", rig.stream())
    with pytest.raises((StoppedError, SyncFailedError)):
        rig.settle()
    with pytest.raises(StoppedError):
        rig.engine.batches.forget("q", is_forced=True)
    rig.crash("kept")
    roll(rig.engine, "q") if rig.engine.batches.rolling() else None
    assert rig.payloads() == payloads(rows_of(0, 20))


def test_an_adopted_page_that_is_damaged_is_an_event() -> None:
    rig = BatchRig()
    (page,) = rig.decide(rows_of(0, 20))
    rig.fs.damage_flip(f"{query_path(PATH, 'q')}/{page.name}", 100, 1)
    roll(rig.engine, "q")
    assert len(rig.told("corruption")) == 1
    with pytest.raises(CorruptionError, match="the record of offset"):
        rig.payloads()


def test_a_stream_opens_again_and_again_although_its_last_page_is_lost() -> None:
    """The start after the one that missed the staged page finds a header where the page was."""
    rig = BatchRig()
    adopting(rig)
    rig.fs = rig.fs.crash("kept")
    (page,) = [name for name in rig.fs.list(query_path(PATH, "q")) if name.endswith(".page")]
    rig.fs.damage_delete(f"{query_path(PATH, 'q')}/{page}")
    rig.engine = rig._open()
    for _ in range(2):
        stream = rig.stream()
        assert (stream.first_offset, stream.head_offset) == (0, 21)
        assert [one.payload for one in stream.queue.read(0, 1, 999)] == [b"before"]
        with pytest.raises(CorruptionError):
            stream.queue.read(1, 1, 999)
        rig.engine.close()
        rig.engine = rig._open()
    rig.append(b"after")
    assert [one.payload for one in rig.stream().queue.read(21, 1, 999)] == [b"after"]


def test_a_stop_in_order_waits_for_adoptions() -> None:
    rig = BatchRig()
    adopting(rig)
    rig.restart()
    assert rig.engine.recovered.is_clean
    assert rig.payloads() == [b"before", *payloads(rows_of(0, 20))]


def test_a_stream_that_is_deleted_while_it_adopts() -> None:
    rig = BatchRig((b"s", b"t"))
    adopting(rig)
    rig.engine.streams.delete([rig.stream()])
    rig.engine.sync()
    rig.settle()
    rig.crash("kept")
    assert list(rig.engine.streams.by_number.values()) == [rig.stream(b"t")]
    rig.engine.checkpoint()
    assert rig.fs.list(staging_path(PATH))


# ---- into queues ---------------------------------------------------------------------------------


def move_all(rig: BatchRig, count: int, *, is_crashing: bool) -> None:
    """Move a batch into the queue "q", some records at a time, with a crash after each slice."""
    rng = random.Random(1)
    while rig.engine.batches.rolling():
        batch = rig.engine.batches.rolling()[0]
        records = read_batch(rig.engine, "q", count, 1 << 20)
        transaction = rig.engine.begin()
        transaction.progress("q", batch.page, batch.frame + len(records))
        for record in records:
            transaction.publish([rig.queue()], record.meta, record.payload)
        transaction.commit(DISK)
        if is_crashing:
            if rng.random() < 0.7:
                rig.engine.sync()
            rig.crash("lost")
    rig.engine.sync()


@pytest.mark.parametrize("is_crashing", [True, False])
@pytest.mark.parametrize("count", [1, 3, 100])
def test_each_row_comes_into_a_queue_once_and_in_order(count: int, is_crashing: bool) -> None:
    rig = BatchRig()
    rig.queue()
    pages = [rows_of(0, 7), rows_of(7, 1), rows_of(8, 5)]
    rig.decide(*pages)
    move_all(rig, count, is_crashing=is_crashing)
    assert list(rig.bodies(rig.queue()).values()) == payloads(*pages)
    rig.engine.checkpoint()
    assert rig.fs.list(query_path(PATH, "q")) == [".query_name"]


def test_progress_cannot_go_back_or_beyond() -> None:
    rig = BatchRig()
    rig.decide(rows_of(0, 7))
    transaction = rig.engine.begin()
    transaction.progress("q", 0, 3)
    transaction.commit(DISK)
    for page, frame in ((0, 2), (2, 0)):
        with pytest.raises(ValueError, match=f"cannot go on at {page}, {frame}"):
            rig.engine.begin().progress("q", page, frame)
    with pytest.raises(ValueError, match="no batch of query 'r'"):
        rig.engine.begin().progress("r", 0, 1)


def test_a_large_slice_is_one_transaction_too() -> None:
    rig = BatchRig()
    rig.engine.options = rig.options = rig.options.of(
        {**{n: getattr(rig.options, n) for n in rig.options.__slots__}, "tx_record_bytes": 64,
         "tx_part_bytes": 50}
    )  # fmt: skip
    rows = rows_of(0, 12, 40)
    rig.decide(rows)
    assert not step_into_stream(
        rig.engine, "q", [rig.stream(), rig.stream()], lambda record: rig.stream()
    )
    rig.engine.sync()
    rig.crash()
    assert rig.payloads() == payloads(rows)
    assert rig.engine.batches.rolling() == []


def test_a_damaged_frame_leaves_the_batch_where_it_is() -> None:
    rig = BatchRig()
    (page,) = rig.decide(rows_of(0, 7))
    path = f"{query_path(PATH, 'q')}/{page.name}"
    rig.fs.damage_flip(path, page.bytes - 3, 1)
    assert len(read_batch(rig.engine, "q", 100, 1 << 20)) == 6
    transaction = rig.engine.begin()
    transaction.progress("q", 0, 6)
    transaction.commit(DISK)
    with pytest.raises(CorruptionError, match="the record of offset 6"):
        read_batch(rig.engine, "q", 100, 1 << 20)
    rig.fs.unlink(path)
    with pytest.raises(CorruptionError, match="the staged page is missing"):
        read_batch(rig.engine, "q", 100, 1 << 20)
