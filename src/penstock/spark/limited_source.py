"""LimitedStreamReader: the reader of a stream for Spark 4.2 and newer.

Spark says where the next batch begins and how much it may have at most, asks for the newest offset
apart from that, and announces an AvailableNow run. Spark 4.1 has none of this: importing this
module fails there, and data_source.py takes the reader of source.py instead.
"""

from typing import Any

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from penstock.spark.error_text import reason_first
from penstock.spark.source import PenstockStreamReader


class LimitedStreamReader(PenstockStreamReader, SupportsTriggerAvailableNow):
    """The reader of a stream whose batches have limits."""

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit that Spark passes to latestOffset and shows. All limits apply there."""
        options = self.options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        return ReadMaxBytes(options.max_bytes_per_trigger)

    @reason_first
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return where the next batch ends; without a limit (Trigger.Once) at the heads."""
        is_limited = not isinstance(limit, ReadAllAvailable)
        return self._progress.latest_offset(start, is_limited=is_limited)

    @reason_first
    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the heads, for the progress report."""
        return self._progress.report_latest_offset()

    @reason_first
    def prepareForTriggerAvailableNow(self) -> None:
        """Begin a run that reads only what exists now."""
        self._progress.prepare_for_available_now()
