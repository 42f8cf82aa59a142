"""Stream: what a program appends records to and reads them from, as often as it likes.

The design is that of David Moten's PersistentQueue (rxjava2-extras): pages of records, found again
by offset or by time, delivered at least once, reclaimed by age, bytes or count and never by
reading. Any number of threads may append and read.

    append   returns when the record is as safe as its durability says; its offset
    read     from an offset, or since a moment
    reader   one whose place the stream keeps

This is the stream for threads; `penstock.aio` has the same for asyncio. The StreamSource behind it
(`sources`) is a directory, a broker or a stream without a box; `stream_reading` does the reading.
"""

from collections.abc import Generator, Iterable, Iterator

from penstock.embedded.option_parsing import Body, Headers, check_name
from penstock.embedded.sources import PartitionInfo, Runner, StreamInfo, StreamSource
from penstock.embedded.stream_reading import (
    TELL,
    Moment,
    NamedReader,
    Offset,
    PassLimits,
    Since,
    StartPosition,
    StreamPass,
    check_partition,
    moment_us,
    only,
)
from penstock.embedded.stream_record import NewRecord, Records, StreamRecord, key_of, records_of
from penstock.errors import OptionError
from penstock.queues.stream_options import partition_of


class StreamBase:
    """What streams for threads and for asyncio have in common.

    What is counted (`first`, `len(s)`, a reader's `lag`) needs no await. In a directory it is
    returned at once; on a broker it is a short question, for whose answer the thread, or the whole
    loop, waits.
    """

    def __init__(self, driver: Runner, source: StreamSource) -> None:
        self._driver = driver
        self._source = source

    @property
    def name(self) -> str:
        """The stream's name."""
        return self._source.name

    @property
    def partitions(self) -> int:
        """The number of partitions, 1 or more."""
        return self._source.partitions

    def partition_of(self, key: str) -> int:
        """Return the partition of records with this key."""
        return partition_of(key_of(key), self.partitions)

    def info(self) -> list[PartitionInfo]:
        """Return each partition as it is now: partition, first, next, records, bytes (of its
        pages), last_time_us (microseconds since 1970)."""
        return self._info().partitions

    @property
    def first(self) -> int:
        """The offset of the first record that is left; that of the next one if there is none.
        OptionError if there are several partitions: `info` has the offset of each."""
        return only({part.partition: part.first for part in self.info()}, "first", "s.info()")

    @property
    def next(self) -> int:
        """The offset of the next record to be appended; all below may be read. OptionError as
        `first`."""
        return only({part.partition: part.next for part in self.info()}, "next", "s.info()")

    @property
    def last(self) -> int | None:
        """The offset of the last record, None if there is none. OptionError as `first`."""
        info = self.info()
        only({part.partition: part.next for part in info}, "last", "s.info()")
        return info[0].next - 1 if info[0].records else None

    def __len__(self) -> int:
        """Count the records in all partitions."""
        return sum(part.records for part in self.info())

    def __bool__(self) -> bool:
        """Return True, also for an empty stream."""
        return True

    @property
    def bytes(self) -> int:
        """The bytes of the pages in all partitions."""
        return sum(part.bytes for part in self.info())

    def readers(self) -> list[str]:
        """Return the names of all readers that the stream knows, sorted."""
        return self._info().readers

    def _info(self) -> StreamInfo:
        return self._driver.run(self._source.info())

    # ---- for Stream and AsyncStream ----------------------------------------------------------

    def _reading(
        self, since: Since, offset: Offset, partition: int | None, reader: str | None,
        limits: PassLimits,
    ) -> StreamPass:  # fmt: skip
        """Return a pass over the stream."""
        start = StartPosition(self._source, since, offset, partition)
        if reader is None:
            return StreamPass(self._source, start.offsets, limits)
        if partition is not None:
            raise OptionError("partition", partition, "nothing: a reader reads all of them")
        calls = NamedReader(self._source, check_name(reader, "reader"), start)
        return calls.reading(limits, commits=True)

    def _reader_calls(self, name: str, since: Since, offset: Offset) -> NamedReader:
        start = StartPosition(self._source, since, offset, None)
        return NamedReader(self._source, check_name(name, "reader"), start)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {self._driver.path}>"


class ReaderBase:
    """What readers for threads and for asyncio have in common: where they are."""

    def __init__(self, driver: Runner, calls: NamedReader) -> None:
        self._driver = driver
        self._calls = calls

    @property
    def name(self) -> str:
        """The reader's name."""
        return self._calls.name

    @property
    def offset(self) -> int:
        """The offset of the first record that is not committed, where the reader goes on.
        OptionError if there are several partitions."""
        return only(self.offsets, "offset", "reader.offsets")

    @property
    def offsets(self) -> dict[int, int]:
        """Where the reader goes on in each partition."""
        return self._calls.offsets_in(self._info())

    @property
    def lag(self) -> int:
        """The number of records that the reader has not committed."""
        return self._calls.lag_in(self._info())

    def _info(self) -> StreamInfo:
        return self._driver.run(self._calls.info())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {self._calls.source.name!r}>"


class Stream(StreamBase):
    """A stream of records; `box.stream(name)` returns it. Errors of all methods: BoxClosedError,
    ForkedError, UnknownQueueError (the stream was deleted), and those of the box's storage or
    connection."""

    def append(
        self, body: Body, key: str = "", headers: Headers | None = None,
        durability: str | None = None,
    ) -> int:  # fmt: skip
        """Append one record, and return its offset when it is confirmed: in mode "disk", when it is
        on disk. In a transaction return -1: the offset is known only at its end.

        body: bytes, bytearray or memoryview. key: chooses the partition, and is kept with the
        record. headers: a dict of names to str, bytes, int, float or bool. durability: of this
        record; "none" counts as "os".

        Raises DiskFullError if the record was not appended. After an interrupt during the wait it
        may or may not have been appended.
        """
        new = NewRecord(body, key, headers)
        return self._driver.run(self._source.append([new], durability))[0]

    def append_many(self, records: Iterable[Records], durability: str | None = None) -> list[int]:
        """Append many records with one sync, and return their offsets. records: bodies, or pairs
        (body, options) with the options key and headers. They are not a transaction: after a crash
        the first of them may be there alone."""
        return self._driver.run(self._source.append(records_of(records), durability))

    def read(
        self, since: Since = None, offset: Offset = None, partition: int | None = None,
        reader: str | None = None, *, follow: bool = False, timeout: float | None = None,
        max_records: int | None = None, on_gap: str = TELL,
    ) -> Generator[StreamRecord, None, None]:  # fmt: skip
        """Yield records from a place on. Reading deletes nothing.

        since: a datetime, a timedelta or a text such as "1h" (so long ago), or a callable that
        returns one. offset: "first" (the default), "last", "next" or a number. Give one of the two.
        partition: read that one alone. reader: go on where this reader was, and commit what the
        loop has gone past.

        Ends with the last record that was there when it began. With follow it waits for more, until
        none came for `timeout` seconds (None: no limit), or the box is closed. max_records: end
        after so many.

        A record before which retention has removed others has their number as its `gap`; with
        on_gap="error" a StreamGapError is raised instead. Raises OptionError or ValueError for
        wrong arguments.
        """
        limits = PassLimits(follow=follow, timeout=timeout, max_records=max_records, on_gap=on_gap)
        return iterate(self._driver, self._reading(since, offset, partition, reader, limits))

    def __iter__(self) -> Iterator[StreamRecord]:
        """Yield all records that are there now, from the first."""
        return self.read()

    def reader(self, name: str, since: Since = None, offset: Offset = None) -> "Reader":
        """Return the reader of this name, whose place the stream keeps. since, offset: where a new
        one begins, as in `read`."""
        calls = self._reader_calls(name, since, offset)
        self._driver.run(calls.open())
        return Reader(self._driver, calls)

    def find(self, when: Moment, partition: int = 0) -> int:
        """Return the offset of the first record of this moment or later; that of the next record if
        there is none. when: a datetime, or a timedelta or text (so long ago)."""
        check_partition(self._source, partition)
        time_us = moment_us(when, self._source.wall_us())
        return self._driver.run(self._source.find(partition, time_us))

    def retain(self) -> int:
        """Apply retention now, which otherwise happens by itself. Returns how many pages were
        deleted."""
        return self._driver.run(self._source.retain())

    def delete(self) -> None:
        """Delete the stream with all that it holds."""
        self._driver.run(self._source.delete())


class Reader(ReaderBase):
    """A named reader of a stream. Each loop over it begins after the last commit: what was read and
    not committed is read again. Use one object per thread, or commit by record."""

    def __init__(self, driver: Runner, calls: NamedReader) -> None:
        super().__init__(driver, calls)

    def read(
        self, *, follow: bool = False, timeout: float | None = None,
        max_records: int | None = None, on_gap: str = TELL,
    ) -> Generator[StreamRecord, None, None]:  # fmt: skip
        """Yield records from where the reader goes on; the options are those of Stream.read."""
        limits = PassLimits(follow=follow, timeout=timeout, max_records=max_records, on_gap=on_gap)
        return iterate(self._driver, self._calls.reading(limits))

    def __iter__(self) -> Iterator[StreamRecord]:
        """Yield records from where the reader goes on to the last that is there now."""
        return self.read()

    def commit(self, record: StreamRecord | None = None, *, wait: bool = False) -> None:
        """Commit all records up to this one, or to the last that was read: the reader does not read
        them again. wait: return when the commit is on disk; without it, after a crash the records
        of the last second may be read again."""
        self._driver.run(self._calls.commit(record, is_safe=wait))

    def delete(self) -> None:
        """Delete the reader; the next one of this name is new."""
        self._driver.run(self._calls.delete())


def iterate(driver: Runner, reading: StreamPass) -> Generator[StreamRecord, None, None]:
    """Yield the records of a pass one by one."""
    try:
        while records := driver.run(reading.next()):
            for reading.at, record in enumerate(records):
                yield record
    finally:
        driver.run(reading.end())
