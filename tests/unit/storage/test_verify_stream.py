"""Verify finds what is lost and notes what will be healed; the flips are in the crash tests."""

import pytest

from penstock.storage.pages import stream_meta
from penstock.storage.pages.stream_meta import ReaderOffset
from penstock.storage.tools.verify import Findings, check_stream, verify_stream
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.page_queue_rig import PATH, alone, fill, logged


def stored() -> tuple[FaultyFileSystem, list[int]]:
    fs = FaultyFileSystem()
    queue = alone(fs, 300)
    fill(queue, 30)
    queue.set_reader("r", 3)
    queue.close()
    return fs, queue.pages.bases


def texts(found: Findings) -> list[str]:
    return [f"{error.path.rpartition('/')[2]}: {error.reason}" for error in found.problems]


def test_a_whole_queue_has_no_findings() -> None:
    fs, bases = stored()
    found = verify_stream(fs, PATH)
    assert (found.problems, found.notes, found.damaged) == ([], [], 0)
    assert (found.pages, found.records) == (len(bases), 30)
    assert found.bytes == sum(fs.size(f"{PATH}/{base:020}.page") for base in bases)


def test_a_queue_that_is_empty_or_was_cut_down() -> None:
    fs = FaultyFileSystem()
    queue = alone(fs, 300)
    assert verify_stream(fs, PATH).problems == []
    fill(queue, 30)
    queue.retain(max_records=0, now_us=0)
    found = verify_stream(fs, PATH)
    assert (found.problems, found.notes, found.pages) == ([], [], 1)


@pytest.mark.parametrize("which", [0, 2, -1])
def test_a_missing_page_is_a_problem(which: int) -> None:
    fs, bases = stored()
    name = f"{bases[which]:020}.page"
    fs.unlink(f"{PATH}/{name}")
    found = verify_stream(fs, PATH)
    if which == 2:  # the page before it has fewer records than the names promise
        assert "records, expected" in texts(found)[0]
    else:
        assert texts(found) == [f"{name}: the page is missing"]


def test_missing_and_foreign_files() -> None:
    fs, bases = stored()
    fs.unlink(f"{PATH}/{bases[1]:020}.idx")
    fs.unlink(f"{PATH}/writeMeta")
    fs.open(f"{PATH}/foreign", create=True).close()
    found = verify_stream(fs, PATH)
    assert found.problems == []
    assert [note.rpartition("/")[2] for note in found.notes] == [
        "writeMeta: it is missing; a start makes it again",
        "foreign: it is not of a stream, or a leftover",
        f"{bases[1]:020}.idx: it is missing; it is made again from the page",
    ]
    assert found.records == 30
    fs.unlink(f"{PATH}/allMeta")
    assert texts(verify_stream(fs, PATH)) == ["allMeta: it is missing"]


def test_an_index_of_another_page_is_noted() -> None:
    fs, bases = stored()
    data = fs.read(f"{PATH}/{bases[0]:020}.idx")
    fs.damage(f"{PATH}/{bases[1]:020}.idx", lambda _: data)
    assert "not of this page" in verify_stream(fs, PATH).notes[0]


def test_damaged_readers_are_a_problem() -> None:
    fs, _ = stored()
    fs.damage_flip(f"{PATH}/readers/{stream_meta.reader_file('r')}", 20)
    assert "its checksum" in texts(verify_stream(fs, PATH))[0]
    assert stream_meta.encode_reader("r", ReaderOffset(3, None))


def test_a_stream_of_a_vhost_is_verified_up_to_its_position() -> None:
    fs = FaultyFileSystem()
    queue = logged(fs, 300)
    fill(queue, 13)
    position = queue.position()
    fill(queue, 30)
    queue.close()

    def check(spoilt: FaultyFileSystem) -> Findings:
        return check_stream(spoilt, PATH, queue.stream_id, 7, 0, position)

    found = check(fs)
    assert (found.problems, found.records) == ([], 13)
    behind = fs.fork()
    behind.damage_cut(f"{PATH}/{position.page_base:020}.page", position.page_bytes)
    behind.unlink(f"{PATH}/{queue.pages.bases[-1]:020}.page")
    assert check(behind).problems == []  # the log has it
    before = fs.fork()
    before.damage_flip(f"{PATH}/{position.page_base:020}.page", position.page_bytes - 1)
    assert check(before).damaged == 1
    assert len(check(before).problems) == 1
    other = check_stream(fs, PATH, bytes(16), 7, 0, position)
    assert any("it is of stream 7" in text for text in texts(other))


def test_leftovers_below_the_first_page_are_noted() -> None:
    fs = FaultyFileSystem()
    queue = alone(fs, 300)
    fill(queue, 30)
    plan = queue.plan_retain(max_records=3, now_us=0)
    assert plan is not None
    plan.run(unlink=False)
    found = verify_stream(fs, PATH)
    assert found.problems == []
    assert len(found.notes) == len(plan.paths)
