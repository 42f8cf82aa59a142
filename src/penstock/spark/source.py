"""The readers that Spark sees, thin: a batch's, a stream's, and one that takes filters.

What they do is in progress.py (the driver's side of a stream), plan.py, access.py and
arrow_batches.py. Here is only what Spark wants of them:

* a reader that is sent to tasks is another object than the one whose latestOffset is asked: it is
  pickled by the planner. So `read` uses nothing but options, columns and its partition, and no
  reader has a connection or a thread before it is first asked something;
* batches come with the very schema that Spark makes of the requested one;
* a reader that has `pushFilters` is refused by Spark unless its own switch is on
  (spark.sql.python.filterPushdown.enabled), so that one is a class of its own, for pushdown=true.

Taken are the bounds of offset and timestamp; they are exact, for times never go back within a
partition. All other filters are given back for Spark to apply.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from penstock.errors import StreamGapError
from penstock.spark import offsets, plan
from penstock.spark.access import LeaseGoneError, Source, frames_of
from penstock.spark.catalog import Catalog, catalog_of
from penstock.spark.offsets import Positions
from penstock.spark.options import SourceOptions
from penstock.spark.progress import Losses, StreamProgress, sources

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NONE = -1  # as a bound: nothing was said


class SourcePartition(InputPartition):
    """What one task reads: value is a Source."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)


class TaskReader:
    """`read`, which runs in tasks."""

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        self.options = options
        self.columns = tuple(columns)

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        """The batches of one partition."""
        if partition.value is None:  # what Spark makes of no partitions
            return iter(())
        return batches(partition.value, self.options, self.columns)


def batches(
    source: Source, options: SourceOptions, columns: Sequence[str]
) -> Iterator["pa.RecordBatch"]:
    """The records of a range as batches. A gap is an error, or with failOnDataLoss=false a warning:
    then the range goes on behind it. So are messages that are leased no more."""
    from penstock.arrow_batches import BatchMaker

    maker = BatchMaker(source.range.stream, source.range.partition, columns)
    while source.range.start < source.range.end:
        try:
            for frames in frames_of(source, options):
                yield from maker.batches(frames)
                source = _from(source, frames.first_offset + frames.count)
            return
        except (StreamGapError, LeaseGoneError) as gap:
            if options.fail_on_data_loss:
                raise
            logger.warning("%s", gap)
            source = _from(source, gap.first)


def _from(source: Source, start: int) -> Source:
    """What is left of it."""
    return replace(source, range=source.range._replace(start=start))


# ---- batch ---------------------------------------------------------------------------------------


class PenstockBatchReader(TaskReader, DataSourceReader):
    """`spark.read`: from starting to ending offsets, as of when it is planned."""

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks."""
        options, catalog = self.options, catalog_of(self.options)
        heads = catalog.heads(is_fresh=True)
        start = offsets.starting(
            options.starting, heads, catalog.find, is_strict=options.is_strict_time,
            is_streaming=False,
        )  # fmt: skip
        end = offsets.ending(options.ending, heads, catalog.find)
        lose = Losses(is_error=options.fail_on_data_loss)
        lose(plan.behind(start, heads))
        start, end = self.narrowed(start, end, catalog)
        found, losses = plan.ranges(start, end, heads)
        lose(losses)
        return [SourcePartition(source) for source in sources(found, heads, options, catalog)]

    def narrowed(
        self, start: Positions, end: Positions, catalog: Catalog
    ) -> tuple[Positions, Positions]:
        """The same, or less of it."""
        del catalog
        return start, end


class PenstockFilterReader(PenstockBatchReader):
    """The same with bounds of offset and timestamp taken from the query's filters."""

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        super().__init__(options, columns)
        self._offsets = [_NONE, _NONE]  # from, to
        self._times = [_NONE, _NONE]  # us

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take what can be taken, give back the rest."""
        return [one for one in filters if not self._take(one)]

    def _take(self, one: Filter) -> bool:
        if not isinstance(one, GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual):
            return False
        if one.attribute == ("offset",) and isinstance(one.value, int):
            bounds, value = self._offsets, one.value
        elif one.attribute == ("timestamp",) and isinstance(one.value, datetime):
            bounds, value = self._times, _us(one.value)
        else:
            return False
        # All as [from, to): above n is from n + 1 on, at most n is below n + 1.
        if isinstance(one, GreaterThan | LessThanOrEqual):
            value += 1
        value = max(value, 0)
        if isinstance(one, GreaterThan | GreaterThanOrEqual):
            bounds[0] = max(bounds[0], value)
        else:
            bounds[1] = value if bounds[1] == _NONE else min(bounds[1], value)
        return True

    def narrowed(
        self, start: Positions, end: Positions, catalog: Catalog
    ) -> tuple[Positions, Positions]:
        starts, ends = dict(start.offsets), dict(end.offsets)
        for key in ends:
            low, high = starts.get(key, 0), ends[key]
            if self._offsets[0] != _NONE:
                low = max(low, self._offsets[0])
            if self._offsets[1] != _NONE:
                high = min(high, self._offsets[1])
            if self._times[0] != _NONE:
                low = max(low, catalog.find(*key, self._times[0]))
            if self._times[1] != _NONE:
                high = min(high, catalog.find(*key, self._times[1]))
            starts[key], ends[key] = min(low, high), high
        return Positions(starts, start.ids), Positions(ends, end.ids)


def _us(moment: datetime) -> int:
    """Microseconds since 1970 of a filter's value, which is in UTC if it says no zone."""
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    since = moment - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


# ---- stream --------------------------------------------------------------------------------------


class PenstockStreamReader(TaskReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream`."""

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        super().__init__(options, columns)
        self._made: StreamProgress | None = None

    def __getstate__(self) -> dict[str, Any]:
        """What goes to tasks: no connection, no thread, nothing that is known at the driver."""
        return {**self.__dict__, "_made": None}

    @property
    def _progress(self) -> StreamProgress:
        if self._made is None:
            self._made = StreamProgress(self.options, catalog_of(self.options))
        return self._made

    def initialOffset(self) -> dict[str, Any]:
        """Where the query begins."""
        return self._progress.initial()

    def getDefaultReadLimit(self) -> ReadLimit:
        """The limit that Spark hands to latestOffset, and shows; ours are all applied there."""
        options = self.options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        return ReadMaxBytes(options.max_bytes_per_trigger)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """How far the next batch goes. Without a limit (Trigger.Once) as far as there is."""
        is_limited = not isinstance(limit, ReadAllAvailable)
        return self._progress.latest(start, is_limited=is_limited)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The heads, for the progress report."""
        return self._progress.newest()

    def prepareForTriggerAvailableNow(self) -> None:
        """What comes from now on belongs to the next run."""
        self._progress.until_now()

    def partitions(
        self, start: Mapping[str, Any], end: Mapping[str, Any]
    ) -> Sequence[InputPartition]:
        """The tasks of a batch."""
        return [SourcePartition(source) for source in self._progress.batch(start, end)]

    def commit(self, end: Mapping[str, Any]) -> None:
        """The sink has all before `end`."""
        self._progress.committed(end)

    def stop(self) -> None:
        """The query ends."""
        if self._made is not None:
            self._made.end()


__all__ = [
    "PenstockBatchReader", "PenstockFilterReader", "PenstockStreamReader",
    "SourcePartition", "batches",
]  # fmt: skip
