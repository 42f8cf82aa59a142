"""Deciding batches and rolling them forward on an engine: once, in order, all of one or nothing."""

import pytest

from penstock.errors import DiskFullError, UnknownQueueError
from penstock.storage.files.durability import DISK
from penstock.storage.pages.page import PageRecord
from penstock.storage.pages.staging import StagingError, check_pages, query_path
from penstock.storage.pages.stream_view import StreamView
from penstock.storage.pages.streams import StoredStream
from penstock.storage.parts import batch_engine
from tests.helpers.batch_rig import LARGE, BatchRig, payloads
from tests.helpers.tiny_batches import TARGET, Row, read_all, roll, rows_of, step_into_stream
from tests.helpers.tiny_engine import PATH


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_engine, "ADOPT_BYTES_MIN", LARGE)


# ---- deciding ------------------------------------------------------------------------------------


def test_a_batch_is_decided_once() -> None:
    rig = BatchRig()
    pages = rig.decide(rows_of(0, 3))
    batches = rig.engine.batches
    assert not batches.decide("q", 0, TARGET, pages)
    roll(rig.engine, "q")
    assert not batches.decide("q", 0, TARGET, pages)
    for again in (rig.crash, rig.crash, rig.restart):
        again()
        assert not rig.engine.batches.decide("q", 0, TARGET, pages)
    assert rig.payloads() == payloads(rows_of(0, 3))
    found = rig.engine.batches.batch("q")
    assert found is not None
    assert (found.number, found.rows, found.bytes, found.is_done) == (0, 3, pages[0].bytes, True)


def test_what_is_not_durable_is_not_decided() -> None:
    rig = BatchRig()
    page = rig.stage(rows_of(0, 3))
    assert rig.engine.batches.decide("q", 0, TARGET, [page])
    rig.crash("lost")
    assert rig.engine.batches.batch("q") is None
    assert rig.engine.batches.decide("q", 0, TARGET, [page])
    rig.engine.sync()
    rig.crash("lost")
    assert [batch.number for batch in rig.engine.batches.rolling()] == [0]


def test_the_next_batch_waits_for_the_one_before() -> None:
    rig = BatchRig()
    rig.decide(rows_of(0, 3))
    page = rig.stage(rows_of(3, 3), 1)
    with pytest.raises(ValueError, match="batch 0 of query 'q' is not done yet"):
        rig.engine.batches.decide("q", 1, TARGET, [page])
    rig.decide(rows_of(90, 2), query="other")
    assert [batch.query for batch in rig.engine.batches.rolling()] == ["q", "other"]
    roll(rig.engine, "q")
    assert rig.engine.batches.decide("q", 1, TARGET, [page])


def test_a_page_that_is_not_there_decides_nothing() -> None:
    rig = BatchRig()
    page = rig.stage(rows_of(0, 3))
    before = rig.engine.log.last_lsn
    with pytest.raises(StagingError, match="it is not there"):
        rig.engine.batches.decide("q", 0, TARGET, [page, page._replace(name="0.9.a.0.page")])
    assert (rig.engine.batches.batch("q"), rig.engine.log.last_lsn) == (None, before)


def test_on_a_full_disk_nothing_is_decided() -> None:
    rig = BatchRig()
    page = rig.stage(rows_of(0, 3))
    rig.engine.journal.blocked = True
    with pytest.raises(DiskFullError):
        rig.engine.batches.decide("q", 0, TARGET, [page])
    assert rig.engine.batches.batch("q") is None


def test_an_empty_batch_is_done_at_once() -> None:
    rig = BatchRig()
    assert rig.engine.batches.decide("q", 5, TARGET, [])
    assert rig.engine.batches.rolling() == []
    assert not rig.engine.batches.decide("q", 5, TARGET, [])


def test_a_query_is_forgotten_when_it_is_done_or_by_force() -> None:
    rig = BatchRig()
    batches = rig.engine.batches
    assert not batches.forget("q")
    rig.decide(rows_of(0, 10))
    with pytest.raises(ValueError, match="not done yet"):
        batches.forget("q")
    step_into_stream(rig.engine, "q", [rig.stream()])
    assert batches.forget("q")
    rig.decide(rows_of(0, 10), rows_of(10, 3), batch=7)
    step_into_stream(rig.engine, "q", [rig.stream()])
    assert batches.forget("q", is_forced=True)
    rig.engine.sync()
    rig.settle()
    assert rig.stream().head_offset == 20
    rig.crash()
    assert rig.engine.batches.all() == []
    assert rig.stream().head_offset == 20


def test_abort_deletes_what_was_not_decided() -> None:
    rig = BatchRig()
    (named,) = rig.decide(rows_of(0, 3))
    other = rig.stage(rows_of(3, 3), 1)
    assert not rig.engine.batches.abort("q", 0)
    assert rig.engine.batches.abort("q", 1)
    rig.settle()
    names = rig.fs.list(query_path(PATH, "q"))
    assert named.name in names
    assert other.name not in names


def test_a_sweep_tells_what_it_deleted() -> None:
    rig = BatchRig()
    page = rig.stage(rows_of(3, 3), 1)
    told: list[list[str]] = []
    rig.engine.batches.sweep(1.0, told.append)
    rig.settle()
    assert told == [[f"{query_path(PATH, 'q')}/{page.name}"]]


@pytest.mark.parametrize("is_swept", [False, True])
def test_a_page_is_swept_or_decided_and_never_both(is_swept: bool) -> None:
    """The sweep begins, or ends, after the pages of a commit were checked."""
    rig = BatchRig()
    page = rig.stage(rows_of(0, 20))
    check_pages(rig.fs, PATH, "q", 0, [page])
    rig.engine.batches.sweep(1.0)
    if is_swept:
        rig.engine.poll()
        with pytest.raises(StagingError, match="because of its age"):
            rig.engine.batches.decide("q", 0, TARGET, [page], is_checked=True)
        assert rig.engine.batches.batch("q") is None
        return
    assert rig.engine.batches.decide("q", 0, TARGET, [page], is_checked=True)
    rig.engine.poll()
    roll(rig.engine, "q")
    assert rig.payloads() == payloads(rows_of(0, 20))


def test_a_query_that_ends_while_a_backup_copies_its_pages_leaves_them_until_then() -> None:
    rig = BatchRig()
    (page,) = rig.decide(rows_of(0, 3))
    rig.engine.journal.pin_files()
    rig.engine.checkpoint()
    roll(rig.engine, "q")
    rig.engine.checkpoint()
    rig.engine.batches.forget("q")
    rig.engine.batches.disown("q")
    rig.settle()
    assert page.name in rig.fs.list(query_path(PATH, "q"))
    rig.engine.journal.unpin_files()
    rig.settle()
    assert page.name not in rig.fs.list(query_path(PATH, "q"))


# ---- into streams --------------------------------------------------------------------------------


def test_large_pages_are_adopted_and_small_ones_are_appended() -> None:
    rig = BatchRig()
    rig.append(b"before")
    pages = [rows_of(0, 20), rows_of(20, 2), rows_of(22, 20)]
    rig.decide(*pages)
    before = rig.engine.log.appended_bytes
    roll(rig.engine, "q")
    assert rig.engine.log.appended_bytes - before < 2000, "adopted rows are not in the log"
    rig.append(b"after")
    assert rig.payloads() == [b"before", *payloads(*pages), b"after"]
    found = read_all(rig.engine)
    batch = rig.engine.batches.batch("q")
    assert batch is not None
    assert {time_us for _, time_us, _, _ in found[1:-1]} == {batch.time_us}
    assert [meta for _, _, _, meta in found[1:-1]] == [m for page in pages for _, m in page]
    queue = rig.stream().queue
    assert [queue.indexed_time(offset) for offset, *_ in found] == [one[1] for one in found]
    view = StreamView(rig.fs, rig.stream().path)
    assert [r.payload for r in view.read(0, 1000, 1 << 20)] == rig.payloads()
    assert view.find(batch.time_us) == 0
    assert {page.first_time_us for page in view.pages()} >= {batch.time_us}
    view.close()


def test_times_never_go_back() -> None:
    rig = BatchRig()
    pages = [rows_of(0, 20), rows_of(20, 2)]
    rig.decide(*pages)
    rig.clock.advance(50)
    rig.append(b"before")
    roll(rig.engine, "q")
    times = [time_us for _, time_us, _, _ in read_all(rig.engine)]
    assert times == sorted(times)
    assert len(set(times)) == 1
    rig.restart()
    assert [time_us for _, time_us, _, _ in read_all(rig.engine)] == times


@pytest.mark.parametrize("mode", ["lost", "kept", "killed"])
def test_readers_see_all_of_a_batch_or_nothing(mode: str) -> None:
    rig = BatchRig()
    rig.append(b"before")
    heads: set[int] = set()
    rig.engine.streams.on_head = lambda stream: heads.add(stream.head_offset)
    pages = [rows_of(0, 20), rows_of(20, 4), rows_of(24, 20)]
    rig.decide(*pages)
    assert step_into_stream(rig.engine, "q", [rig.stream()])
    rig.engine.streams.append(rig.stream(), b"", b"between", DISK)
    assert step_into_stream(rig.engine, "q", [rig.stream()])
    rig.engine.sync()
    rig.settle()
    assert rig.stream().head_offset == 1
    rig.crash(mode)
    assert rig.stream().head_offset == 1
    assert StreamView(rig.fs, rig.stream().path).head().next_offset == 1
    rig.engine.streams.on_head = lambda stream: heads.add(stream.head_offset)
    roll(rig.engine, "q")
    assert heads == {46}
    assert rig.payloads() == [
        b"before", *payloads(pages[0]), b"between", *payloads(pages[1], pages[2]),
    ]  # fmt: skip


def test_a_head_that_two_batches_hold_waits_for_both() -> None:
    rig = BatchRig()
    rig.decide(rows_of(0, 4), rows_of(4, 4))
    rig.decide(rows_of(50, 4), rows_of(54, 4), query="r")
    for query in ("q", "r", "q"):
        step_into_stream(rig.engine, query, [rig.stream()])
    rig.engine.sync()
    assert rig.stream().head_offset == 0
    rig.crash()
    assert rig.stream().head_offset == 4
    roll(rig.engine, "r")
    assert rig.stream().head_offset == 16


def test_partitions_are_chosen_record_by_record() -> None:
    rig = BatchRig((b"p0", b"p1"))
    streams = [rig.stream(b"p0"), rig.stream(b"p1")]
    rows = rows_of(0, 30)
    rig.decide(rows)

    def pick(record: PageRecord) -> StoredStream:
        return streams[int(record.meta[1:]) % 2]

    while step_into_stream(rig.engine, "q", streams, pick):
        rig.engine.flush()
    rig.engine.sync()
    for n, name in enumerate((b"p0", b"p1")):
        found = [payload for _, _, payload, _ in read_all(rig.engine, name)]
        assert found == payloads(rows)[n::2]


@pytest.mark.parametrize("mode", ["lost", "kept"])
@pytest.mark.parametrize("rows", [rows_of(0, 4), rows_of(0, 40)])
def test_after_a_crash_all_heads_move_when_a_batch_ends_in_another_stream(
    mode: str, rows: list[Row]
) -> None:
    """Nothing of it is appended to the first one in this life."""
    rig = BatchRig((b"s", b"t"))
    rig.decide(rows, rows_of(40, 4))
    step_into_stream(rig.engine, "q", [rig.stream()])
    rig.engine.batches.finish_adoptions()
    rig.engine.sync()
    rig.crash(mode)
    assert (rig.stream().next_offset, rig.stream().head_offset) == (len(rows), 0)
    step_into_stream(rig.engine, "q", [rig.stream(b"t")])
    rig.settle()
    assert rig.stream(b"t").head_offset == 4
    assert rig.payloads() == payloads(rows)


def test_nothing_is_adopted_by_a_stream_that_is_gone_or_in_the_middle_of_a_page() -> None:
    rig = BatchRig((b"s", b"t"))
    rig.decide(rows_of(0, 20))
    batches, gone = rig.engine.batches, rig.stream(b"t")
    rig.engine.streams.delete([gone])
    with pytest.raises(UnknownQueueError):
        batches.adopt("q", gone)
    transaction = rig.engine.begin()
    transaction.progress("q", 0, 3)
    transaction.commit(DISK)
    with pytest.raises(ValueError, match="is at frame 3"):
        batches.adopt("q", rig.stream())
    with pytest.raises(ValueError, match="no batch of query 'r'"):
        batches.adopt("r", rig.stream())
    roll(rig.engine, "q")
    assert rig.payloads() == payloads(rows_of(0, 20))[3:]


def test_retention_takes_adopted_pages_as_any_other() -> None:
    rig = BatchRig()
    rig.decide(rows_of(0, 20), rows_of(20, 20))
    roll(rig.engine, "q")
    rig.append(*[b"%d" % i * 100 for i in range(6)])
    assert rig.engine.streams.retain(rig.stream(), max_records=6) == 2
    rig.settle()
    assert rig.stream().first_offset == 40
    rig.crash("kept")
    assert rig.stream().first_offset == 40
    assert rig.payloads() == [b"%d" % i * 100 for i in range(6)]


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("mode", ["lost", "kept"])
def test_an_adopted_page_that_is_the_last_goes_by_age(mode: str, more: int) -> None:
    rig = BatchRig()
    rig.append(b"first")
    rig.decide(rows_of(0, 20))
    roll(rig.engine, "q")
    assert rig.stream().next_offset == 21
    rig.clock.advance(61)
    assert rig.engine.streams.retain(rig.stream(), max_age_s=60) == 2
    rig.settle()
    assert (rig.stream().first_offset, rig.payloads()) == (21, [])
    rig.append(*[b"more"] * more)
    rig.crash(mode)
    assert (rig.stream().first_offset, rig.payloads()) == (21, [b"more"] * more)
    rig.decide(rows_of(0, 20), batch=1)
    roll(rig.engine, "q")
    rig.restart()
    assert (rig.stream().first_offset, rig.stream().next_offset) == (21, 41 + more)


def test_an_adopted_page_is_taken_away_before_the_checkpoint_knows_it() -> None:
    rig = BatchRig()
    rig.decide(rows_of(0, 20))
    roll(rig.engine, "q")
    rig.append(*[b"%d" % i * 100 for i in range(6)])
    assert rig.engine.streams.retain(rig.stream(), max_records=0) >= 1
    rig.settle()
    first = rig.stream().first_offset
    assert first > 0
    rig.crash("kept")
    assert rig.stream().first_offset == first
    assert rig.stream().next_offset == 26
