"""Stream: what a program appends records to and reads them from, as often as it likes.

S5 is the persistent queue of David Moten's design (rxjava2-extras, PersistentQueue): pages of
records, found again by offset or by time, at least once, reclaimed by age, bytes or count and never
by reading. Any number of threads may append and read.

    append   returns when the record is as safe as its durability says; its offset
    read     from an offset, or since a moment
    reader   one whose place the stream keeps

This is the face for threads, in a directory and on a broker; see `stream_source`. Not here: the
storage of streams (`penstock.storage`), asyncio (`penstock.aio`).
"""

from collections.abc import Generator, Iterable, Iterator

from penstock.embedded.new_body import Body, Headers
from penstock.embedded.sources import Runner
from penstock.embedded.stream_face import ReaderFace, StreamFace
from penstock.embedded.stream_pass import TELL, Limits, StreamPass
from penstock.embedded.stream_place import Moment, Offset, Since, check_partition, moment_us
from penstock.embedded.stream_reader import ReaderCalls
from penstock.embedded.stream_record import NewRecord, Records, StreamRecord, records_of


class Stream(StreamFace):
    """See the head of this module. Errors of all methods: BoxClosedError, UnknownQueueError (it was
    deleted), ForkedError, and those of the box's storage or connection."""

    def append(
        self, body: Body, key: str = "", headers: Headers | None = None,
        durability: str | None = None,
    ) -> int:  # fmt: skip
        """Append one record; its offset, once it is confirmed: on disk, in mode "disk".

        body: bytes, or what has their buffer. key: chooses the partition, and is kept. headers: a
        dict of names to str, bytes, int, float or bool. durability: of this record; "none" counts
        as "os". In a transaction offsets are known only at its end, and -1 is given.

        DiskFullError: it was not appended. An interrupt while it waits: it may be there or not.
        """
        new = NewRecord(body, key, headers)
        return self._driver.run(self._source.append([new], durability))[0]

    def append_many(self, records: Iterable[Records], durability: str | None = None) -> list[int]:
        """Append many with one sync: bodies, or pairs (body, options) with the options key and
        headers; their offsets. No transaction: a crash may leave the first ones."""
        return self._driver.run(self._source.append(records_of(records), durability))

    def read(
        self, since: Since = None, offset: Offset = None, partition: int | None = None,
        reader: str | None = None, *, follow: bool = False, timeout: float | None = None,
        max_records: int | None = None, on_gap: str = TELL,
    ) -> Generator[StreamRecord, None, None]:  # fmt: skip
        """Records from a place on: of `since` (a datetime, a timedelta or a text as "1h" ago, or a
        callable that gives one) or of `offset` ("first", the default, "last", "next" or a number).

        It ends with the last record there was when it began; with follow it waits for more, until
        none came for `timeout` seconds (None: for ever), or the box is closed. partition: that one
        alone. max_records: not more than these. reader: go on where this reader was, and commit
        what the loop has gone past. Nothing is deleted by reading.

        Where retention was faster, the next record has a `gap`, the number of those missing before
        it; with on_gap="error" it is a StreamGapError. OptionError, ValueError.
        """
        limits = Limits(follow=follow, timeout=timeout, max_records=max_records, on_gap=on_gap)
        return iterate(self._driver, self._reading(since, offset, partition, reader, limits))

    def __iter__(self) -> Iterator[StreamRecord]:
        """All records that there are now, from the first."""
        return self.read()

    def reader(self, name: str, since: Since = None, offset: Offset = None) -> "Reader":
        """The reader of this name, whose place the stream keeps. since, offset: where one begins
        that is new, as `read` has them."""
        calls = self._reader_calls(name, since, offset)
        self._driver.run(calls.open())
        return Reader(self._driver, calls)

    def find(self, when: Moment, partition: int = 0) -> int:
        """The offset of the first record of this moment or later; that of the next if there is
        none."""
        check_partition(self._source, partition)
        time_us = moment_us(when, self._source.wall_us())
        return self._driver.run(self._source.find(partition, time_us))

    def retain(self) -> int:
        """Apply retention now, which otherwise happens by itself: how many pages went."""
        return self._driver.run(self._source.retain())

    def delete(self) -> None:
        """Delete the stream with all that it holds."""
        self._driver.run(self._source.delete())


class Reader(ReaderFace):
    """A named reader. A pass over it begins where the last commit was: what was read and not
    committed comes again. Use one object per thread, or commit by record."""

    def __init__(self, driver: Runner, calls: ReaderCalls) -> None:
        super().__init__(driver, calls)

    def read(
        self, *, follow: bool = False, timeout: float | None = None,
        max_records: int | None = None, on_gap: str = TELL,
    ) -> Generator[StreamRecord, None, None]:  # fmt: skip
        """Records from where it is; the options as Stream.read has them."""
        limits = Limits(follow=follow, timeout=timeout, max_records=max_records, on_gap=on_gap)
        return iterate(self._driver, self._calls.reading(limits))

    def __iter__(self) -> Iterator[StreamRecord]:
        """Records from where it is to the last that there is now."""
        return self.read()

    def commit(self, record: StreamRecord | None = None, *, wait: bool = False) -> None:
        """What came up to this record, or to the last that was read, is done: it does not come
        again. As an acknowledgement it waits for no sync, unless told to."""
        self._driver.run(self._calls.commit(record, is_safe=wait))

    def delete(self) -> None:
        """The stream forgets it; the next reader of this name is new."""
        self._driver.run(self._calls.delete())


def iterate(driver: Runner, reading: StreamPass) -> Generator[StreamRecord, None, None]:
    """The records of a pass, one by one."""
    try:
        while records := driver.run(reading.next()):
            for reading.at, record in enumerate(records):
                yield record
    finally:
        driver.run(reading.end())
