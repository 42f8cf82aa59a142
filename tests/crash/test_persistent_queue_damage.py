"""Every byte of a stream's files flipped, and worse: no wrong record is ever delivered.

What is derived (an index, writeMeta) is made again; what is not is a CorruptionError that names the
file and a position in it, and the records that are not damaged stay readable.
"""

import random

import pytest

from penstock.errors import CorruptionError
from penstock.storage.pages.page import PAGE_HEADER_BYTES
from penstock.storage.pages.stream_view import StreamView
from penstock.storage.tools.verify import verify_stream
from tests.helpers.faulty_filesystem import DAMAGES, FaultyFileSystem
from tests.helpers.page_queue_lives import PATH, Alone, Record

pytestmark = pytest.mark.crash


def stored() -> Alone:
    """A closed queue of several pages, some deleted, with a reader."""
    life = Alone(FaultyFileSystem(seed=3), 3, 400)
    for step in ("append", "force", "append", "roll", "append", "append", "force", "append"):
        life.step(step)
    for _ in range(30):
        life.append((life.rng.randbytes(30), b"meta", life.time_us))
    life.queue.set_reader("reader", 22, 22)
    life.queue.retain(max_records=30, now_us=0, keep_from=life.queue.next_offset)
    life.queue.force()
    life.queue.retain(max_records=24, now_us=0)
    assert life.queue.first_offset > 0
    life.queue.close()
    life.fs.sync_all()
    return life


LIFE = stored()
FILES = [
    name
    for name in LIFE.fs.names()
    if name.startswith(PATH + "/") and not name.endswith("/") and LIFE.fs.size(name)
]


def judge(fs: FaultyFileSystem, path: str, records: list[Record]) -> tuple[int, bool]:
    """(records that can be read, whether anything was refused). What is delivered is right."""
    fs.sync_all()
    life = Alone.__new__(Alone)
    super(Alone, life).__init__(fs, 1, 400)
    refused = False
    good = 0
    try:
        queue = life.open(forces=True)
    except CorruptionError as error:
        check_error(fs, error)
        return 0, True
    offset = queue.first_offset
    while offset < queue.head_offset:
        try:
            found = queue.read(offset, 3, 500)
            assert found, f"{path}: nothing at {offset}"
        except CorruptionError as error:
            check_error(fs, error)
            refused = True
            offset += 1
            continue
        for record in found:
            assert record.offset == offset
            assert (record.payload, record.meta, record.time_us) == records[offset], path
            offset += 1
            good += 1
    for time_us in {record[2] for record in records} | {0, 1 << 40}:
        wanted = [i for i in range(queue.first_offset, len(records)) if records[i][2] >= time_us]
        try:
            at = queue.find(time_us)
        except CorruptionError as error:
            check_error(fs, error)
            refused = True
        else:
            assert at == min([*wanted, queue.next_offset]), path
    queue.close()
    return good, refused


def check_error(fs: FaultyFileSystem, error: CorruptionError) -> None:
    assert error.path.startswith(PATH + "/")
    assert error.position >= 0
    if fs.exists(error.path):
        assert error.position <= fs.size(error.path)


def judge_view(fs: FaultyFileSystem, records: list[Record], end: int) -> None:
    """The same from beside: nothing wrong, and nothing changed."""
    before = {name: fs.read(name) for name in fs.names() if not name.endswith("/")}
    operations = fs.operations
    try:
        view = StreamView(fs, PATH)
        offset = view.first_offset()
        assert view.head().next_offset == end
        while offset < end:
            try:
                for record in view.read(offset, 4, 900):
                    assert record.offset == offset
                    assert (record.payload, record.meta, record.time_us) == records[offset]
                    offset += 1
            except CorruptionError as error:
                check_error(fs, error)
                offset += 1
        view.find(records[-1][2])
        view.pages()
    except CorruptionError as error:
        check_error(fs, error)
    after = {name: fs.read(name) for name in fs.names() if not name.endswith("/")}
    assert after == before
    assert fs.operations == operations


def expected(path: str) -> str:
    """What damage of that file may cost: "nothing", "some", or "all"."""
    name = path.rpartition("/")[2]
    if name.endswith(".idx") or name in ("writeMeta", "LOCK"):
        return "nothing"
    return "some" if name.endswith(".page") else "all"


@pytest.mark.parametrize("path", FILES)
def test_a_flipped_byte_delivers_nothing_wrong(path: str) -> None:
    records = LIFE.records
    end, first = len(records), LIFE.queue.first_offset
    size = LIFE.fs.size(path)
    for position in range(0, size, 1 if size <= 1200 else 3):
        fs = LIFE.fs.fork()
        fs.damage_flip(path, position, position % 8)
        judge_view(fs, records, end)
        report = verify_stream(fs, PATH)
        good, refused = judge(fs, path, records)
        kind = expected(path)
        if kind == "nothing":
            assert good == end - first, f"{path} byte {position}: {good} of {end - first}"
            assert not refused
            assert not report.problems, f"{path} byte {position}: {report.problems}"
            if not path.endswith(("LOCK", LAST_INDEX)):
                assert report.notes, f"{path} byte {position}: not noticed"
        else:
            assert refused, f"{path} byte {position}: not noticed"
            assert report.problems, f"{path} byte {position}: verify saw nothing"
        if kind == "some" and (path != LAST_PAGE or position >= PAGE_HEADER_BYTES):
            assert good >= end - first - PER_PAGE, f"{path} byte {position}: {good} are left"


LAST_INDEX = max(name for name in FILES if name.endswith(".idx"))
LAST_PAGE = max(name for name in FILES if name.endswith(".page"))
PER_PAGE = 12


@pytest.mark.parametrize("path", FILES)
def test_worse_damage_delivers_nothing_wrong(path: str) -> None:
    """Cut, zeroed, overwritten, deleted; the same in two files at once."""
    rng = random.Random(1)
    for _ in range(12):
        for damage in DAMAGES.values():
            fs = LIFE.fs.fork()
            damage(fs, path, rng)
            if rng.random() < 0.3:
                damage(fs, rng.choice(FILES), rng)
            judge_any(fs, path)
    fs = LIFE.fs.fork()
    fs.unlink(path)
    judge_any(fs, path)


def judge_any(fs: FaultyFileSystem, path: str) -> None:
    """Two damages may cost the end of the queue too; nothing wrong comes all the same."""
    try:
        life = Alone.__new__(Alone)
        super(Alone, life).__init__(fs, 1, 400)
        queue = life.open(forces=True)
    except CorruptionError as error:
        check_error(fs, error)
        return
    offset = queue.first_offset
    while offset < queue.head_offset:
        try:
            for record in queue.read(offset, 5, 500):
                assert record.offset == offset
                what = (record.payload, record.meta, record.time_us)
                assert what == LIFE.records[offset], path
                offset += 1
        except CorruptionError as error:
            check_error(fs, error)
            offset += 1
    queue.close()


def test_a_page_of_another_place_or_stream_does_not_verify() -> None:
    pages = [name for name in FILES if name.endswith(".page")]
    other = Alone(FaultyFileSystem(seed=9), 9, 400)
    other.step("append")
    other.queue.force()
    for swapped in pages:
        for source in pages:
            if source != swapped:
                fs = LIFE.fs.fork()
                content = fs.read(source)
                fs.damage(swapped, lambda _, content=content: content)  # type: ignore[misc]
                assert judge(fs, swapped, LIFE.records)[1]


def test_a_read_that_lies_once_is_noticed() -> None:
    """A bit that flips on its way from the disk, or another sector: no wrong record."""
    for effect in ("flip", "misdirect", "short"):
        for nth in range(1, 60):
            fs = LIFE.fs.fork()
            life = Alone.__new__(Alone)
            super(Alone, life).__init__(fs, 1, 400)
            queue = life.open(forces=True)
            fs.fail(effect, kinds=["read"], nth=nth)
            offset = queue.first_offset
            while offset < queue.head_offset:
                try:
                    for record in queue.read(offset, 2, 300):
                        assert record.offset == offset
                        what = (record.payload, record.meta, record.time_us)
                        assert what == LIFE.records[offset]
                        offset += 1
                except CorruptionError:
                    offset += 1
            fs.clear_faults()
            queue.close()
