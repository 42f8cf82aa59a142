"""LagListener: how far queries that read Penstock are behind, from Spark's own progress reports.

    lag = LagListener(print)
    spark.streams.addListener(lag)
    ...
    lag.lags                    {"flights": QueryLag(records=120, partitions={("events", 0): 120})}

Spark shows no metrics of a Python source, but the end of each batch and the newest offset beside
it, which the source reports: the lag is what lies between. Sources of other kinds are passed over.

Reports come from Spark on a thread of its own, one at a time; one that cannot be read is no error.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from penstock.spark.offsets import Key, OffsetError, decode, lag


@dataclass(frozen=True, slots=True)
class QueryLag:
    """A query after a batch. records: how many it has still to read, of all partitions. batch_rows:
    how many it read in that batch. rows_per_second: while it ran it."""

    query: str
    batch_id: int
    records: int
    partitions: Mapping[Key, int]
    batch_rows: int
    rows_per_second: float


class LagListener(StreamingQueryListener):
    """See the head of this module. on_lag is called after each batch of each query."""

    def __init__(self, on_lag: Callable[[QueryLag], object] | None = None) -> None:
        self.lags: dict[str, QueryLag] = {}
        self._on_lag = on_lag

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing is known of it yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """After a batch."""
        progress = event.progress
        partitions: dict[Key, int] = {}
        rows, per_second = 0, 0.0
        is_ours = False
        for source in progress.sources:
            found = source_lag(source.endOffset, source.latestOffset)
            if found is not None:
                is_ours = True
                partitions |= found
                rows += source.numInputRows
                per_second += source.processedRowsPerSecond
        if not is_ours:
            return
        query = progress.name or str(progress.id)
        told = QueryLag(
            query, progress.batchId, sum(partitions.values()), partitions, rows, per_second
        )
        self.lags[query] = told
        if self._on_lag is not None:
            self._on_lag(told)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """It waits for records."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Its last lag stays known."""


def source_lag(end: str | None, latest: str | None) -> dict[Key, int] | None:
    """The lag of one source by the JSON of its offsets; None if they are not of this source."""
    if not end or not latest:
        return None
    try:
        found: list[Any] = [json.loads(end), json.loads(latest)]
        if not all(isinstance(one, dict) for one in found):
            return None
        return lag(decode(found[0]), decode(found[1]))
    except (ValueError, OffsetError):
        return None
