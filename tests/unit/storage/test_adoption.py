"""A staged page becomes a stream's page: whatever a crash left, it can be done again."""

import random
from zlib import crc32

import pytest

from penstock.errors import CorruptionError, SyncFailedError
from penstock.storage.files.filesystem import FileSystem
from penstock.storage.pages.adoption import Adoption, is_adopted, make_index
from penstock.storage.pages.batches import StagedPage
from penstock.storage.pages.page import (
    PageRecord,
    check_index,
    decode_blocks,
    decode_header,
    decode_row,
)
from penstock.storage.pages.page_reading import PageReader
from penstock.storage.pages.page_writer import PageWriter
from penstock.storage.pages.staging import query_path
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.golden import golden, hexdump
from tests.helpers.tiny_batches import Row, rows_of, stage
from tests.helpers.tiny_engine import PATH, make_vhost

DIRECTORY = PATH + "/stream"
BASE, NUMBER, TIME_US = 1000, 7, 123_456_789
ROWS = rows_of(0, 20, 30)


class World:
    """A staged page, and where it is to go."""

    def __init__(self, rows: list[Row] = ROWS) -> None:
        self.fs = FaultyFileSystem()
        make_vhost(self.fs)
        self.fs.mkdir(DIRECTORY)
        self.rows = rows
        self.page: StagedPage = stage(self.fs, PATH, "q", 0, rows)
        self.fs.sync_all()

    @property
    def staged(self) -> str:
        return f"{query_path(PATH, 'q')}/{self.page.name}"

    @property
    def stem(self) -> str:
        return f"{DIRECTORY}/{BASE:020}"

    def writer(self) -> PageWriter:
        found = PageWriter(self.fs, DIRECTORY, b"\0" * 16, NUMBER, BASE)
        found.adopt(self.page.page_id, self.page.bytes, self.page.rows, TIME_US)
        found.await_files()
        return found

    def adopt(self, *, is_recovery: bool = False) -> Adoption:
        adoption = Adoption(self.fs, self.staged, self.page, self.writer())
        adoption.run(is_recovery=is_recovery)
        return adoption

    def read(self, fs: FileSystem | None = None) -> list[tuple[int, int, bytes, bytes]]:
        reader = PageReader(fs or self.fs, DIRECTORY, b"\0" * 16, BASE)
        out: list[PageRecord] = []
        reader.read(0, self.page.rows, reader.size(), 64, 1 << 30, out)
        reader.close()
        return [(r.offset, r.time_us, r.payload, r.meta) for r in out]

    def read_one(self, rel: int) -> None:
        """Read one record by what the index says."""
        reader = PageReader(self.fs, DIRECTORY, b"\0" * 16, BASE)
        reader.read(rel, 1, reader.size(), 0, 100, [])

    @property
    def wanted(self) -> list[tuple[int, int, bytes, bytes]]:
        return [(BASE + i, TIME_US, payload, meta) for i, (payload, meta) in enumerate(self.rows)]

    def check_index(self) -> None:
        """The index says all that a sealed one says of a page, and it is true."""
        data, page = self.fs.read(self.stem + ".idx"), self.fs.read(self.stem + ".page")
        header = check_index("i", data)
        assert (header.id, header.base, header.count) == (self.page.page_id, BASE, len(self.rows))
        assert (header.first_time_us, header.last_time_us) == (TIME_US, TIME_US)
        assert header.page_bytes == len(page)
        times = {decode_row(data, 64 + 16 * i)[2] for i in range(header.count)}
        assert times == {TIME_US}
        writer = self.writer()
        other = self.fs.fork()
        assert make_index(other, self.stem, writer)
        assert other.read(self.stem + ".idx") == data
        assert decode_blocks(data, header)


def test_an_adopted_page_is_read_as_any_other() -> None:
    world = World()
    adoption = world.adopt()
    assert adoption.damage == ""
    header = decode_header("p", world.fs.read(world.stem + ".page"))
    assert (header.number, header.base, header.base_time_us) == (NUMBER, BASE, TIME_US)
    assert (header.id, header.is_staged) == (world.page.page_id, True)
    assert world.read() == world.wanted
    world.check_index()
    assert is_adopted(world.fs, world.stem + ".page")
    assert not is_adopted(world.fs, world.stem + ".idx")
    assert not is_adopted(world.fs, world.stem + ".nothing")


def test_golden_bytes_of_a_page_before_and_after() -> None:
    world = World(rows_of(0, 2))
    files = [("staged_page", world.staged), ("staged_index", world.staged[:-4] + "idx")]
    for name, path in files:
        golden(name, hexdump(world.fs.read(path)))
    world.adopt()
    golden("adopted_page", hexdump(world.fs.read(world.stem + ".page")))
    golden("adopted_index", hexdump(world.fs.read(world.stem + ".idx")))


def test_a_page_of_many_blocks_is_not_read_whole() -> None:
    world = World([(bytes([n]) * 400_000, b"m") for n in range(10)])
    reads: list[int] = []
    before = world.fs.on_read

    def counting(path: str, content: bytearray, start: int, stop: int) -> bytes:
        reads.append(stop - start)
        return before(path, content, start, stop)

    world.fs.on_read = counting  # type: ignore[method-assign]
    world.adopt()
    assert sum(reads) < 2 << 20
    world.fs.on_read = before  # type: ignore[method-assign]
    world.check_index()
    assert world.read() == world.wanted


@pytest.mark.parametrize("mode", ["lost", "kept", "subset", "torn", "zeros", "killed"])
def test_whatever_a_crash_leaves_it_is_done_again(mode: str) -> None:
    world = World()
    journal = world.fs.start_journal()
    world.adopt()
    wanted = world.fs.read(world.stem + ".page"), world.fs.read(world.stem + ".idx")
    points = 0
    for at, image in journal.images():
        for seed in range(3):
            world.fs = image.crash(mode, random.Random(f"{at} {seed}"))
            world.adopt(is_recovery=True)
            assert (world.fs.read(world.stem + ".page"), world.fs.read(world.stem + ".idx")) == (
                wanted
            )
            durable = world.fs.crash("lost")
            assert world.read(durable) == world.wanted
            points += 1
    assert points > 20


def test_done_again_at_another_place_nothing_of_the_first_is_left() -> None:
    world = World()
    world.adopt()
    other = PageWriter(world.fs, DIRECTORY, b"\0" * 16, NUMBER + 1, BASE + 5)
    other.adopt(world.page.page_id, world.page.bytes, world.page.rows, TIME_US + 9)
    Adoption(world.fs, world.staged, world.page, other).run()
    header = decode_header("p", world.fs.read(f"{DIRECTORY}/{BASE + 5:020}.page"))
    assert (header.number, header.base, header.base_time_us) == (NUMBER + 1, BASE + 5, TIME_US + 9)


def test_stale_files_of_that_name_are_replaced() -> None:
    world = World()
    for ending in (".page", ".idx"):
        world.fs.open(world.stem + ending, create=True).pwrite(b"stale" * 1000, 0)
    world.adopt()
    assert world.read() == world.wanted
    world.check_index()


def test_without_its_staged_name_the_page_of_the_stream_does() -> None:
    world = World()
    world.adopt()
    for ending in (".page", ".idx"):
        world.fs.unlink(world.staged[:-5] + ending)
    world.adopt(is_recovery=True)
    assert world.read() == world.wanted
    world.check_index()


def test_a_lost_index_is_made_again_from_the_frames() -> None:
    world = World()
    world.fs.damage_flip(world.staged[:-4] + "idx", 70, 2)
    assert world.adopt().damage == ""
    world.check_index()


def test_a_damaged_frame_is_adopted_and_told_to_who_reads_it() -> None:
    world = World()
    world.fs.damage_flip(world.staged, 64 + 60, 3)
    assert "its first MiB does not verify" in world.adopt().damage
    data = world.fs.read(world.stem + ".idx")
    (crc,) = decode_blocks(data, check_index("i", data))
    page = world.fs.read(world.stem + ".page")
    assert crc32(page, world.writer().seed) != crc
    with pytest.raises(CorruptionError, match=f"the record of offset {BASE + 1}"):
        world.read_one(1)


def test_a_page_that_is_read_wrongly_once_is_adopted_as_it_is() -> None:
    world = World()
    fault = world.fs.fail("flip", kinds=["read"], path=world.staged)
    assert world.adopt().damage == ""
    assert fault.hits
    world.check_index()


def test_without_frames_and_index_both_are_told() -> None:
    world = World()
    world.fs.damage_flip(world.staged, 64 + 60, 3)
    world.fs.unlink(world.staged[:-4] + "idx")
    world.adopt()
    assert not world.fs.exists(world.stem + ".idx")


def test_a_page_that_is_missing_becomes_a_header() -> None:
    world = World()
    world.fs.unlink(world.staged)
    assert "is missing, its records are lost" in world.adopt().damage
    assert world.fs.size(world.stem + ".page") == 64
    with pytest.raises(CorruptionError):
        world.read_one(0)


def test_a_failed_sync_is_told_as_one() -> None:
    for nth in (1, 2):
        world = World()
        world.fs.fail(5, kinds=("sync",), nth=nth)
        with pytest.raises(SyncFailedError):
            world.adopt()
