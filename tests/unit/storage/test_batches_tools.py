"""The tools of `penstock store` know batches: verify, dump, stats, backup and salvage."""

import random

import pytest

from penstock.clock import ManualClock
from penstock.storage.engine import StorageEngine
from penstock.storage.files.durability import DISK
from penstock.storage.pages.batches import BatchFacts, QueryOwner
from penstock.storage.pages.staging import claim, query_path
from penstock.storage.tools.backup import backup
from penstock.storage.tools.dump import dump, dump_tree
from penstock.storage.tools.salvage import salvage
from penstock.storage.tools.stats import stats
from penstock.storage.tools.verify import verify
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.tiny_batches import (
    TARGET,
    read_all,
    read_batch,
    rows_of,
    stage,
    step_into_stream,
)
from tests.helpers.tool_stores import DATA, image, open_vhost, running, stopped, vhost_path

COPY = "/copy"
ROWS = rows_of(0, 60)
FACTS = BatchFacts(QueryOwner("ann", TARGET), 60, 0xABC, True)


def fill(engine: StorageEngine) -> None:
    """A batch that is done; one with a page adopted before a checkpoint, one after it, a page in
    the middle, and one that is not begun."""
    (stream,) = engine.streams.declare([(b"s", b"", 0)], page_bytes=400)
    engine.streams.append(stream, b"m", b"before", DISK)
    engine.batches.decide("done", 3, TARGET, [])
    path = engine.path
    claim(engine.fs, path, "q", FACTS.owner)
    pages = [
        stage(engine.fs, path, "q", 7, ROWS[n * 10 : n * 10 + 10], partition=n) for n in range(6)
    ]
    assert engine.batches.decide("q", 7, TARGET, pages, facts=FACTS)
    engine.batches.adopt("q", stream)
    engine.sync()
    engine.batches.finish_adoptions()
    engine.checkpoint()
    engine.batches.adopt("q", stream)
    engine.batches.finish_adoptions()
    transaction = engine.begin()
    records = read_batch(engine, "q", 4, 1 << 20)
    transaction.progress("q", 2, 4)
    for record in records:
        transaction.append_stream(stream, record.meta, record.payload)
    transaction.commit(DISK)
    engine.sync()
    stage(engine.fs, path, "q", 8, ROWS[:3])


def finished(engine: StorageEngine) -> list[bytes]:
    """All records of the stream, once its batch is done."""
    while step_into_stream(engine, "q", [engine.streams.get(b"s")]):
        engine.flush()
    engine.sync()
    return [payload for _, _, payload, _ in read_all(engine)]


WANTED = [b"before", *[payload for payload, _ in ROWS]]


def staged(fs: FaultyFileSystem, n: int, ending: str = "page", data: str = DATA) -> str:
    return f"{query_path(vhost_path(fs, data), 'q')}/7.{n}.0-00000001.0.{ending}"


@pytest.mark.parametrize("is_clean", [True, False])
def test_verify_finds_all_of_it_and_changes_nothing(is_clean: bool) -> None:
    fs = stopped(fill, is_clean=is_clean)
    before = image(fs)
    report = verify(fs, DATA)
    assert image(fs) == before
    assert report.is_fine, report.problems
    (note,) = report.notes
    assert note == "batch 7 of query 'q' is decided, and moved up to page 2 of 6, frame 4"


@pytest.mark.parametrize(("n", "is_clean"), [(1, False), (2, True), (2, False), (5, True)])
def test_verify_names_what_is_lost_of_a_batch(n: int, is_clean: bool) -> None:
    fs = stopped(fill, is_clean=is_clean)
    fs.damage_flip(staged(fs, n), fs.size(staged(fs, n)) - 5)
    report = verify(fs, DATA)
    assert [problem.path for problem in report.problems] == [staged(fs, n)]
    gone = stopped(fill, is_clean=True)
    gone.damage_delete(staged(gone, 5))
    (problem,) = verify(gone, DATA).problems
    assert (problem.path, problem.text) == (staged(gone, 5), "the staged page is missing")


def test_what_is_moved_and_what_nobody_decided_is_not_looked_at() -> None:
    fs = stopped(fill, is_clean=True)
    fs.damage_flip(staged(fs, 2), 70)  # in a frame that is moved
    undecided = staged(fs, 0).replace("/7.", "/8.")
    fs.damage_flip(undecided, 70)
    assert verify(fs, DATA).is_fine


@pytest.mark.parametrize("is_clean", [True, False])
def test_dump_shows_batches_and_staged_pages(is_clean: bool) -> None:
    fs = stopped(fill, is_clean=is_clean)
    lines = list(dump_tree(fs, DATA))
    assert not [line for line in lines if "DAMAGED" in line or "not ours" in line]
    text = "\n".join(lines)
    page = "page 2 frame 4 of 6 pages, 60 rows" if is_clean else "page 1 frame 0 of 6 pages"
    assert f"query 'q' batch 7 at {page}" in text
    assert "query 'done' batch 3 done of 0 pages" in text
    assert "holds stream 1 at offset 1" in text
    assert "content 60 rows checksum 0000000000000abc gapless of user 'ann' first target" in text
    assert '{"user": "ann", "target"' in text
    if not is_clean:
        assert "BATCH adopted query 'q' batch 7 page 1 by stream 1 offset 11 time" in text
        assert "BATCH progress query 'q' batch 7 page 2 frame 4" in text
    of_page = "\n".join(dump(fs, staged(fs, 3)))
    assert "staged page" in of_page
    assert "record 9, time 0" in of_page
    assert "10 records" in "\n".join(dump(fs, staged(fs, 3, "idx")))


def test_dump_shows_the_time_of_an_adopted_page() -> None:
    fs = stopped(fill, is_clean=True)
    (path,) = [at for at in image(fs) if at.endswith("00000000000000000011.page")]
    lines = list(dump(fs, path))
    assert "of stream 1, from offset 11, time 1700000000000000" in lines[0]
    assert "record 11, time 1700000000000000" in lines[1]


def test_stats_has_the_figures() -> None:
    fs = stopped(fill, is_clean=False)
    found = stats(fs, DATA)
    first, second = found.batches
    assert (first.query, first.number, first.is_done) == ("done", 3, True)
    assert (second.query, second.number, second.is_done) == ("q", 7, False)
    assert (second.page, second.pages, second.rows) == (2, 6, 60)
    files = [at for at in image(fs) if "/staging/" in at]
    pages = [at for at in files if at.endswith((".page", ".idx"))]
    assert found.files["staged pages"] == (len(pages), sum(fs.size(at) for at in pages))


@pytest.mark.parametrize("mode", ["killed", "lost"])
def test_a_backup_goes_on_with_the_batch(mode: str) -> None:
    engine = running(fill)
    backup([engine], COPY)
    assert finished(engine) == WANTED
    fs = engine.fs
    assert isinstance(fs, FaultyFileSystem)
    copy = fs.crash(mode)
    report = verify(copy, COPY)
    assert report.is_fine, report.problems
    again = open_vhost(copy, vhost_path(copy, COPY))
    assert again.streams.get(b"s").head_offset == 1
    assert finished(again) == WANTED
    assert not again.batches.decide("done", 3, TARGET, [])
    assert [batch.facts for batch in again.batches.all()] == [None, FACTS]
    original = open_vhost(copy, vhost_path(copy, DATA))
    assert finished(original) == WANTED if original.batches.rolling() else True
    assert [payload for _, _, payload, _ in read_all(original)] == WANTED


@pytest.mark.parametrize("is_clean", [True, False])
def test_salvage_takes_all_of_it_and_goes_on(is_clean: bool) -> None:
    fs = stopped(fill, is_clean=is_clean)
    before = image(fs)
    report = salvage(fs, DATA, "/new", clock=ManualClock(), rng=random.Random(1))
    assert {at: data for at, data in image(fs).items() if not at.startswith("/new")} == before
    assert not report.losses
    assert [n for n in report.notes if "batch 7" in n] == [
        "batch 7 of query 'q' is not done: the new store goes on with 4 pages"
    ]
    assert verify(fs, "/new").is_fine
    engine = open_vhost(fs, vhost_path(fs, "/new"))
    assert finished(engine) == WANTED
    for query, number in (("done", 3), ("q", 7)):
        assert not engine.batches.decide(query, number, TARGET, [])
    assert [batch.facts for batch in engine.batches.all()] == [None, FACTS]


def test_salvage_takes_an_adopted_page_from_its_staged_file() -> None:
    fs = stopped(fill, is_clean=False)
    (path,) = [at for at in image(fs) if at.endswith("00000000000000000011.page")]
    fs.unlink(path)
    report = salvage(fs, DATA, "/new", clock=ManualClock(), rng=random.Random(1))
    assert not report.losses
    assert finished(open_vhost(fs, vhost_path(fs, "/new"))) == WANTED


def test_salvage_tells_of_a_staged_page_that_is_missing() -> None:
    fs = stopped(fill, is_clean=True)
    fs.unlink(staged(fs, 4))
    report = salvage(fs, DATA, "/new", clock=ManualClock(), rng=random.Random(1))
    assert [loss.path for loss in report.losses] == [staged(fs, 4)]
