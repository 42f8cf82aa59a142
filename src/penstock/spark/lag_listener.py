"""LagListener: how far behind queries on Penstock are, from Spark's own progress reports.

    lag = LagListener(print)
    spark.streams.addListener(lag)
    ...
    lag.lags                    {"flights": QueryLag(records=120, partitions={("events", 0): 120})}

Spark shows no metrics of a Python source, but it reports the end of each batch and the newest
offset, which the source provides. The lag is the difference. Sources of other kinds are ignored.

Spark calls a listener on a thread of its own, one report at a time. A report that cannot be parsed
is ignored.
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
    """A query after a batch. records: how many records are left, of all partitions. batch_rows:
    rows of that batch. rows_per_second: its rate."""

    query: str
    batch_id: int
    records: int
    partitions: Mapping[Key, int]
    batch_rows: int
    rows_per_second: float


class LagListener(StreamingQueryListener):
    """Keeps the lag of each query in `lags`. on_lag is called after each batch of each query."""

    def __init__(self, on_lag: Callable[[QueryLag], object] | None = None) -> None:
        self.lags: dict[str, QueryLag] = {}
        self._on_lag = on_lag

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing: there is no report yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Update the query's lag after a batch."""
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
        query_lag = QueryLag(
            query, progress.batchId, sum(partitions.values()), partitions, rows, per_second
        )
        self.lags[query] = query_lag
        if self._on_lag is not None:
            self._on_lag(query_lag)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Do nothing: the lag has not changed."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Do nothing: the last lag stays in `lags`."""


def source_lag(end: str | None, latest: str | None) -> dict[Key, int] | None:
    """Return the lag of one source from the JSON of its offsets; None for another kind of
    source."""
    if not end or not latest:
        return None
    try:
        found: list[Any] = [json.loads(end), json.loads(latest)]
        if not all(isinstance(one, dict) for one in found):
            return None
        return lag(decode(found[0]), decode(found[1]))
    except (ValueError, OffsetError):
        return None
