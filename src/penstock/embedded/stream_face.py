"""StreamFace: what a stream and its readers have in common for threads and asyncio.

What is counted (`s.first`, `len(s)`, `reader.lag`) needs no await. In a directory it does not wait;
on a broker it is one short question, for which the thread, or the loop, waits. All else is made
here, as calls and readings, and run by the faces: `stream` and `penstock.aio.stream`.

Of a stream with several partitions first, next and last are asked by `info()`, one for each.
"""

from penstock.embedded.sources import PartitionInfo, Runner, StreamInfo, StreamSource
from penstock.embedded.spellings import check_name
from penstock.embedded.stream_pass import Limits, StreamPass
from penstock.embedded.stream_place import Offset, Place, Since
from penstock.embedded.stream_reader import ReaderCalls, only
from penstock.embedded.stream_record import key_of
from penstock.errors import OptionError
from penstock.queues.stream_options import partition_of


class StreamFace:
    """See the head of this module."""

    def __init__(self, driver: Runner, source: StreamSource) -> None:
        self._driver = driver
        self._source = source

    @property
    def name(self) -> str:
        """The name that it was opened by."""
        return self._source.name

    @property
    def partitions(self) -> int:
        """How many there are, 1 or more."""
        return self._source.partitions

    def partition_of(self, key: str) -> int:
        """The partition that records with this key are in."""
        return partition_of(key_of(key), self.partitions)

    def info(self) -> list[PartitionInfo]:
        """Each partition as it is now: partition, first, next, records, bytes, last_time_us."""
        return self._info().partitions

    @property
    def first(self) -> int:
        """Offset of the first record that is left; of the next one if there is none."""
        return only({part.partition: part.first for part in self.info()}, "first", "s.info()")

    @property
    def next(self) -> int:
        """Offset of the next record to come; all below may be read."""
        return only({part.partition: part.next for part in self.info()}, "next", "s.info()")

    @property
    def last(self) -> int | None:
        """Offset of the last record; None if there is none."""
        info = self.info()
        only({part.partition: part.next for part in info}, "last", "s.info()")
        return info[0].next - 1 if info[0].records else None

    def __len__(self) -> int:
        """How many records there are, in all partitions."""
        return sum(part.records for part in self.info())

    def __bool__(self) -> bool:
        """A stream is true, empty or not."""
        return True

    @property
    def bytes(self) -> int:
        """Of its pages, in all partitions."""
        return sum(part.bytes for part in self.info())

    def readers(self) -> list[str]:
        """The names of the readers that it knows, sorted."""
        return self._info().readers

    def _info(self) -> StreamInfo:
        return self._driver.run(self._source.info())

    # ---- for the faces -------------------------------------------------------------------------

    def _reading(
        self, since: Since, offset: Offset, partition: int | None, reader: str | None,
        limits: Limits,
    ) -> StreamPass:  # fmt: skip
        """A pass over it."""
        start = Place(self._source, since, offset, partition)
        if reader is None:
            return StreamPass(self._source, start.offsets, limits)
        if partition is not None:
            raise OptionError("partition", partition, "nothing: a reader reads all of them")
        calls = ReaderCalls(self._source, check_name(reader, "reader"), start)
        return calls.reading(limits, commits=True)

    def _reader_calls(self, name: str, since: Since, offset: Offset) -> ReaderCalls:
        start = Place(self._source, since, offset, None)
        return ReaderCalls(self._source, check_name(name, "reader"), start)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {self._driver.path}>"


class ReaderFace:
    """A named reader: where it is."""

    def __init__(self, driver: Runner, calls: ReaderCalls) -> None:
        self._driver = driver
        self._calls = calls

    @property
    def name(self) -> str:
        """Its name."""
        return self._calls.name

    @property
    def offset(self) -> int:
        """Where it goes on: the offset of the first record that is not committed."""
        return only(self.offsets, "offset", "reader.offsets")

    @property
    def offsets(self) -> dict[int, int]:
        """The same, by partition."""
        return self._calls.offsets_in(self._info())

    @property
    def lag(self) -> int:
        """How many records there are that it has not committed."""
        return self._calls.lag_in(self._info())

    def _info(self) -> StreamInfo:
        return self._driver.run(self._calls.info())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {self._calls.source.name!r}>"
