"""The readers that Spark sees: a batch's, a stream's, and one that takes filters.

They are thin. The work is in progress.py (the driver's side of a stream), plan.py, access.py and
arrow_batches.py. What Spark demands is here:

* The reader in a task is not the one whose latestOffset is called: the planner pickles it. So
  `read` uses only options, columns and its partition, and no reader opens a connection or starts a
  thread before its first question.
* Batches have exactly the schema that Spark makes of the requested one.
* Spark refuses a reader with `pushFilters` unless spark.sql.python.filterPushdown.enabled is on. So
  that reader is a class of its own, for pushdown=true.
* Spark 4.1 asks a stream for offsets in another way than later versions. So each way has a reader:
  here that of 4.1, and in limited_source.py the one of later versions, which 4.1 cannot import.

Bounds of offset and timestamp are pushed down. They are exact, because times never go back within a
partition. Spark applies all other filters itself.
"""

import logging
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

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

from penstock.clock import microseconds
from penstock.errors import StreamGapError
from penstock.spark import offsets, plan
from penstock.spark.access import LeaseGoneError, RangeSource, frames_of
from penstock.spark.catalog import Catalog, catalog_of
from penstock.spark.error_text import reason_first, reasons_first
from penstock.spark.offsets import Positions
from penstock.spark.options import SourceOptions
from penstock.spark.progress import Losses, StreamProgress, sources
from penstock.spark.task_worker import keep_imports

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

JOINED_ROWS: Final = 16_384
JOINED_BYTES: Final = 4 << 20

# Spark's program that keeps the reader of a stream beside the driver.
RUNNER: Final = "pyspark.sql.streaming.python_streaming_source_runner"

_NONE = -1  # as a bound: not given


class SourcePartition(InputPartition):
    """What one task reads, in order: value is a tuple of Sources."""

    def __init__(self, shared: tuple[RangeSource, ...]) -> None:
        super().__init__(shared)


class TaskReader:
    """The part of a reader that runs in tasks."""

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        self.options = options
        self.columns = tuple(columns)

    def read(self, partition: InputPartition | None) -> Iterator["pa.RecordBatch"]:
        """Return the Arrow batches of one partition. Of no partitions Spark 4.1 makes one that is
        None, later versions one whose value is None."""
        if partition is None or partition.value is None:
            return iter(())
        found = (batches(source, self.options, self.columns) for source in partition.value)
        each = reasons_first(chain.from_iterable(found))
        return each if len(partition.value) == 1 else joined(each)


def batches(
    source: RangeSource, options: SourceOptions, columns: Sequence[str]
) -> Iterator["pa.RecordBatch"]:
    """Return the records of a range as Arrow batches.

    Lost records, and messages that are no longer leased, raise an error; with failOnDataLoss=false
    they are logged as a warning, and the range continues after them.
    """
    from penstock.arrow_batches import BatchMaker

    keep_imports()
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


def joined(found: Iterable["pa.RecordBatch"]) -> Iterator["pa.RecordBatch"]:
    """Return the same rows in the same order, small batches joined into larger ones: each batch
    costs Spark some tenths of a millisecond."""
    import pyarrow as pa

    small: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in found:
        if small and (rows + batch.num_rows > JOINED_ROWS or size + batch.nbytes > JOINED_BYTES):
            yield small[0] if len(small) == 1 else pa.concat_batches(small)
            small, rows, size = [], 0, 0
        small.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
    if small:
        yield small[0] if len(small) == 1 else pa.concat_batches(small)


def _from(source: RangeSource, start: int) -> RangeSource:
    """Return the rest of a source, from `start` on."""
    return replace(source, range=source.range._replace(start=start))


# ---- batch ---------------------------------------------------------------------------------------


class PenstockBatchReader(TaskReader, DataSourceReader):
    """The reader of `spark.read`: from starting to ending offsets as of the time of planning."""

    @reason_first
    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks."""
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
        return [SourcePartition(task) for task in sources(found, heads, options, catalog)]

    def narrowed(
        self, start: Positions, end: Positions, catalog: Catalog
    ) -> tuple[Positions, Positions]:
        """Return the same range or a part of it."""
        del catalog
        return start, end


class PenstockFilterReader(PenstockBatchReader):
    """A batch reader that takes bounds of offset and timestamp from the query's filters."""

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        super().__init__(options, columns)
        self._offsets = [_NONE, _NONE]  # from, to
        self._times = [_NONE, _NONE]  # us

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take the filters that can be taken, and return the rest."""
        return [one for one in filters if not self._take(one)]

    def _take(self, one: Filter) -> bool:
        if not isinstance(one, GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual):
            return False
        if one.attribute == ("offset",) and isinstance(one.value, int):
            bounds, value = self._offsets, one.value
        elif one.attribute == ("timestamp",) and isinstance(one.value, datetime):
            bounds, value = self._times, microseconds(one.value)
        else:
            return False
        # All bounds as [from, to): above n is from n + 1 on, at most n is below n + 1.
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


# ---- stream --------------------------------------------------------------------------------------


class PenstockStreamReader(TaskReader, DataSourceStreamReader):
    """The reader of `spark.readStream`, but for the question where the next batch ends."""

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        super().__init__(options, columns)
        self._made: StreamProgress | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return what goes to tasks, without the driver's state."""
        return {**self.__dict__, "_made": None}

    @property
    def _progress(self) -> StreamProgress:
        if self._made is None:
            _exit_when_terminated()
            self._made = StreamProgress(self.options, catalog_of(self.options))
        return self._made

    @reason_first
    def initialOffset(self) -> dict[str, Any]:
        """Return where the query begins."""
        return self._progress.initial_offset()

    @reason_first
    def partitions(
        self, start: Mapping[str, Any], end: Mapping[str, Any]
    ) -> Sequence[InputPartition]:
        """Return the tasks of a batch."""
        return [SourcePartition(task) for task in self._progress.partitions(start, end)]

    @reason_first
    def commit(self, end: Mapping[str, Any]) -> None:
        """Note that the sink has committed everything before `end`."""
        self._progress.commit(end)

    def stop(self) -> None:
        """Release what the query holds."""
        if self._made is not None:
            self._made.stop()


def _exit_when_terminated() -> None:
    """Make SIGTERM end Spark's process for this reader as `sys.exit` does, not at once.

    Spark sends that process SIGTERM, twice, when the query stops. Its program calls `stop` of the
    reader however it ends, but it does not get there if a SIGTERM is not handled; then a query that
    is started again waits until `readerTimeout` has passed. In any other process, and where a
    handler is set, nothing changes.
    """
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is None or spec.name != RUNNER or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        return
    signal.signal(signal.SIGTERM, _exit_once)


def _exit_once(number: int, _: object) -> None:
    signal.signal(number, signal.SIG_IGN)  # the second one would interrupt `stop`
    sys.exit(128 + number)


class UnlimitedStreamReader(PenstockStreamReader):
    """The reader of a stream with Spark 4.1: each batch ends at the newest record. With
    AvailableNow a run is one batch, as with Once: after a failure the one that failed."""

    @reason_first
    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override,unused-ignore]
        """Return where the next batch ends, wherever it begins. Raises SparkVersionError for a
        classic queue."""
        return self._progress.newest_offset()


__all__ = [
    "PenstockBatchReader", "PenstockFilterReader", "PenstockStreamReader",
    "SourcePartition", "UnlimitedStreamReader", "batches",
]  # fmt: skip
