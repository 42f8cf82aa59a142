"""Named readers: what is said of them in calls, for threads and asyncio, directories and brokers.

The stream keeps, for each reader's name, where it goes on in each partition. Reading moves nothing;
a commit does. A new pass begins where the last commit was, so that what failed comes again. A
commit is as an acknowledgement of a queue: written at once, on disk within a second, and before
that if asked for.

A name may be used by several threads, tasks or programs at a time; who commits last has the last
word. What this one has committed it does not take back by committing an older record.

Reading with `commits` is for loops that want no more of it than that: what the loop has gone past
is committed, chunk by chunk, and at its end, also by an exception; not the record that it was at.
"""

from penstock.embedded.sources import Call, StreamInfo, StreamSource
from penstock.embedded.stream_pass import Limits, StreamPass
from penstock.embedded.stream_place import Place
from penstock.embedded.stream_record import StreamRecord
from penstock.errors import OptionError


class ReaderCalls:
    """See the head of this module. start: where it begins when the stream does not know it."""

    def __init__(self, source: StreamSource, name: str, start: Place) -> None:
        self.source: StreamSource = source
        self.name: str = name
        self._start = start
        self._committed: dict[int, int] = {}
        self._latest: ReaderPass | None = None

    def open(self) -> Call[None]:
        """Make it known, where it is to begin, unless it is."""
        info = yield from self.info()
        yield from self.begin(self.source, info)

    def info(self) -> Call[StreamInfo]:
        """The stream as it is now, with the offsets of this reader."""
        return self.source.info(self.name)

    def begin(self, source: StreamSource, info: StreamInfo) -> Call[dict[int, int]]:
        """Where it goes on, by partition."""
        offsets = self.offsets_in(info)
        if not info.offsets:
            offsets.update((yield from self._start.offsets(source, info)))
            yield from source.commit(self.name, offsets, is_safe=False)
        self._committed = dict(offsets)
        return offsets

    def reading(self, limits: Limits, *, commits: bool = False) -> "ReaderPass":
        """A pass from where it goes on."""
        self._latest = ReaderPass(self, limits, commits=commits)
        return self._latest

    def commit(self, record: StreamRecord | None, *, is_safe: bool) -> Call[None]:
        """What came up to this record, or to the last that was given, is done."""
        if record is not None:
            offsets = {record.partition: record.offset + 1}
        else:
            offsets = {} if self._latest is None else self._latest.positions()
        yield from self.move(offsets, is_safe=is_safe)

    def _further(self, offsets: dict[int, int]) -> dict[int, int]:
        """What of it is forward."""
        return {p: at for p, at in offsets.items() if at > self._committed.get(p, -1)}

    def move_soon(self, offsets: dict[int, int]) -> None:
        """As move, by a loop that is left."""
        further = self._further(offsets)
        if further:
            self.source.commit_soon(self.name, further)

    def move(self, offsets: dict[int, int], *, is_safe: bool = False) -> Call[None]:
        """Go on there, as far as that is forward."""
        further = self._further(offsets)
        if further or is_safe:
            yield from self.source.commit(self.name, further, is_safe=is_safe)
            self._committed.update(further)

    def delete(self) -> Call[None]:
        """The stream forgets it."""
        self._committed = {}
        yield from self.source.delete_reader(self.name)

    def offsets_in(self, info: StreamInfo) -> dict[int, int]:
        """Where it goes on, by partition; the first record if the stream does not know it."""
        known = info.offsets
        return {part.partition: known.get(part.partition, part.first) for part in info.partitions}

    def lag_in(self, info: StreamInfo) -> int:
        """How many records are to come."""
        offsets = self.offsets_in(info)
        return sum(part.next - max(offsets[part.partition], part.first) for part in info.partitions)


class ReaderPass(StreamPass):
    """A pass of a reader. at: which of `given` the loop is at, -1 for none."""

    def __init__(self, reader: ReaderCalls, limits: Limits, *, commits: bool) -> None:
        super().__init__(reader.source, reader.begin, limits, reader.name)
        self._reader = reader
        self._commits = commits
        self._passed: dict[int, int] = {}  # by chunks before this one

    def next(self) -> Call[list[StreamRecord]]:
        self._passed = self.positions()
        if self._commits:
            yield from self._reader.move(self._passed)
        self.given = []
        self.at = -1
        return (yield from super().next())

    def positions(self) -> dict[int, int]:
        """Behind the record that the loop is at."""
        return self._positions(self.at + 1)

    def end(self) -> Call[None]:
        """The loop is left while it is at a record, or over."""
        self.close()
        if self._commits:
            self._reader.move_soon(self._positions(self.at))
        yield from ()

    def _positions(self, count: int) -> dict[int, int]:
        found = dict(self._passed)
        for record in self.given[: max(count, 0)]:
            found[record.partition] = record.offset + 1
        return found


def only(values: dict[int, int], what: str, instead: str) -> int:
    """The one value of a stream that has one partition. OptionError of others."""
    if len(values) > 1:
        expected = f"`{instead}`: the stream has {len(values)} partitions"
        raise OptionError(what, what, expected)
    return next(iter(values.values()))
