"""A reader's way through a stream: chunks, partitions in turn, gaps, its position."""

from collections.abc import Iterator

import pytest

from penstock.queues.stream_cursor import CHUNK_RECORDS_MAX, CursorPlace, StreamCursor
from penstock.storage.engine import StorageEngine
from penstock.storage.files.durability import DISK
from penstock.storage.pages.streams import StoredStream
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.tiny_engine import OPTIONS, make_vhost, open_engine

PAGE_BYTES = 4096


class Logs:
    """Streams of a real engine, with records whose bodies are their offsets."""

    def __init__(self) -> None:
        fs = FaultyFileSystem()
        make_vhost(fs)
        self.engine: StorageEngine = open_engine(fs, 1, OPTIONS)
        self.count = 0

    def log(self, n: int, first: int = 0) -> StoredStream:
        """One with n records, of which those below `first`, at least, are reclaimed."""
        self.count += 1
        declared = [(b"s%d" % self.count, b"", 0)]
        (stream,) = self.engine.streams.declare(declared, page_bytes=PAGE_BYTES)
        self.append(stream, n)
        if first:
            self.engine.streams.retain(stream, max_records=n - first)
            while self.engine.journal.has_pending:
                self.engine.poll(wait=True)
        return stream

    def append(self, stream: StoredStream, n: int) -> None:
        for _ in range(n):
            body = b"%d" % stream.next_offset
            self.engine.streams.append(stream, b"", body, DISK)
        self.engine.sync()


@pytest.fixture
def logs() -> Iterator[Logs]:
    made = Logs()
    yield made
    made.engine.close()


def cursor_of(
    *logs: StoredStream, start: int = 0, is_named: bool = True, records: int = 4
) -> StreamCursor:
    places = [CursorPlace(log, number, start) for number, log in enumerate(logs)]
    return StreamCursor(places, is_named=is_named, chunk_records=records)


def drained(cursor: StreamCursor) -> list[tuple[int, int]]:
    """(partition, offset) of all there is."""
    found = []
    while (record := cursor.fetch()) is not None:
        found.append((cursor.partition, record.offset))
    return found


def test_chunks_are_read_one_by_one(logs: Logs) -> None:
    log = logs.log(10)
    cursor = cursor_of(log)
    sizes = []
    found = []
    while (record := cursor.fetch()) is not None:
        found.append((record.offset, record.payload))
        sizes.append(cursor.chunk_bytes)
    assert found == [(offset, b"%d" % offset) for offset in range(10)]
    assert sizes == [4] * 8 + [2] * 2
    logs.append(log, 2)
    assert drained(cursor) == [(0, 10), (0, 11)]


def test_what_is_in_ram_is_one_chunk(logs: Logs) -> None:
    cursor = cursor_of(logs.log(10))
    assert cursor.chunk_bytes == 0
    cursor.fetch()
    assert cursor.chunk_bytes == 4
    cursor.drop_chunk()
    assert cursor.chunk_bytes == 0
    assert drained(cursor)[0] == (0, 1)


def test_a_chunk_has_limits(logs: Logs) -> None:
    log = logs.log(CHUNK_RECORDS_MAX + 10)
    cursor = cursor_of(log, records=10_000)
    most = 0
    while cursor.fetch() is not None:
        most = max(most, cursor.chunk_bytes)
    assert most <= sum(len(b"%d" % i) for i in range(10, CHUNK_RECORDS_MAX + 10))


def test_partitions_take_turns_by_chunks(logs: Logs) -> None:
    cursor = cursor_of(logs.log(5), logs.log(0), logs.log(6))
    found = drained(cursor)
    assert [partition for partition, _ in found] == [2] * 4 + [0] * 4 + [2] * 2 + [0]
    for partition in (0, 2):
        offsets = [offset for number, offset in found if number == partition]
        assert offsets == sorted(offsets)


def test_a_reader_that_retention_overtook_is_told_how_many_it_missed(logs: Logs) -> None:
    log = logs.log(600, first=500)
    first = log.first_offset
    assert 200 < first <= 500
    cursor = cursor_of(log, start=2)
    gaps = []
    while cursor.fetch() is not None:
        gaps.append(cursor.gap)
    assert gaps == [first - 2] + [0] * (600 - first - 1)


def test_beyond_the_head_nothing_comes_until_it_is_there(logs: Logs) -> None:
    log = logs.log(3)
    cursor = cursor_of(log, start=5)
    assert cursor.fetch() is None
    logs.append(log, 4)
    assert drained(cursor) == [(0, 5), (0, 6)]


# ---- positions -----------------------------------------------------------------------------------


def position(cursor: StreamCursor, partition: int = 0) -> int:
    return cursor.places[partition].position()


def test_the_position_is_the_smallest_unacked_offset(logs: Logs) -> None:
    cursor = cursor_of(logs.log(6))
    assert position(cursor) == 0
    drained(cursor)
    assert position(cursor) == 0
    cursor.ack([cursor.tag(1, 0), cursor.tag(2, 0)])
    assert position(cursor) == 0
    cursor.ack([cursor.tag(0, 0)])
    assert position(cursor) == 3
    cursor.ack([cursor.tag(offset, 0) for offset in (5, 3, 4)])
    assert position(cursor) == 6


def test_acks_that_nobody_asked_for_change_nothing(logs: Logs) -> None:
    cursor = cursor_of(logs.log(3))
    cursor.ack([cursor.tag(0, 0)])
    drained(cursor)
    cursor.ack([cursor.tag(9, 0), cursor.tag(0, 7)])
    assert position(cursor) == 0
    cursor.ack([cursor.tag(0, 0)] * 2)
    assert position(cursor) == 1


def test_partitions_have_positions_of_their_own(logs: Logs) -> None:
    cursor = cursor_of(logs.log(3), logs.log(3))
    drained(cursor)
    cursor.ack([cursor.tag(0, 1), cursor.tag(1, 1)])
    assert (position(cursor, 0), position(cursor, 1)) == (0, 2)
    assert [place.partition for place in cursor.moved()] == [0, 1]
    for place in cursor.places:
        place.saved = place.position()
    assert cursor.moved() == []


def test_what_is_given_back_holds_the_position_for_good(logs: Logs) -> None:
    cursor = cursor_of(logs.log(8))
    for _ in range(6):
        cursor.fetch()
    cursor.hold([cursor.tag(3, 0)])
    cursor.ack([cursor.tag(offset, 0) for offset in (4, 5, 0, 1)])
    assert position(cursor) == 2
    cursor.ack([cursor.tag(2, 0)])
    assert position(cursor) == 3
    drained(cursor)
    cursor.ack([cursor.tag(offset, 0) for offset in (3, 6, 7)])
    assert position(cursor) == 3


def test_an_earlier_one_given_back_later_holds_it_there(logs: Logs) -> None:
    cursor = cursor_of(logs.log(4))
    drained(cursor)
    cursor.hold([cursor.tag(2, 0)])
    cursor.hold([cursor.tag(1, 0)])
    cursor.ack([cursor.tag(0, 0)])
    assert position(cursor) == 1


def test_what_was_acked_cannot_be_given_back(logs: Logs) -> None:
    cursor = cursor_of(logs.log(4))
    drained(cursor)
    cursor.ack([cursor.tag(2, 0)])
    cursor.hold([cursor.tag(2, 0)])
    cursor.ack([cursor.tag(offset, 0) for offset in (0, 1, 3)])
    assert position(cursor) == 4


@pytest.mark.parametrize("is_named", [True, False])
def test_nothing_piles_up(logs: Logs, is_named: bool) -> None:
    cursor = cursor_of(logs.log(1000), is_named=is_named, records=100)
    for n in range(1000):
        record = cursor.fetch()
        assert record is not None
        if n == 10:
            cursor.hold([cursor.tag(n, 0)])
    place = cursor.places[0]
    assert len(place._unacked) <= 11
    assert len(place._done) == 0
