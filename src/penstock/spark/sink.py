"""The Spark sink: rows of a DataFrame become messages of queues, streams or exchanges, once.

    df.write.format("penstock").option("queue", "flights.late").mode("append").save()
    df.writeStream.format("penstock").option("exchange", "flights").option(...).start()

Three ways of delivery. Exactly once, the default: tasks stage pages of rows at the broker over
HTTP, and the driver publishes the batch by one question (sink_staging.py). Idempotent: the same,
but each task publishes its own. At least once: each task publishes row by row over AMQP, with
confirms, and what was confirmed stays when the task fails and runs again (sink_publisher.py).

Which batch of which query a task writes, it learns from properties that Spark sets for its jobs;
their names are not of Spark's public interface, so a test asserts them. A batch write is a job of
its own, with a random name made when its writer is; in foreachBatch the options queryId and batchId
say what it belongs to.

The writer is made at the driver, where options and columns are checked, and pickled to the tasks; a
stream's is made anew for each batch, and again for each commit and abort. It holds no connection,
and nothing from one batch to the next.

Not here: options (sink_options.py), columns (sink_columns.py).
"""

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from penstock.errors import OptionError
from penstock.spark.sink_columns import SinkColumns
from penstock.spark.sink_options import EXACTLY_ONCE, IDEMPOTENT, SinkOptions
from penstock.spark.sink_publisher import Publisher
from penstock.spark.sink_staging import StagedRows, Stager, abort_batch, commit_batch
from penstock.spark.staging_link import SinkError

if TYPE_CHECKING:
    from pyarrow import RecordBatch

# What Spark tells the tasks of a streaming batch, as local properties of its jobs.
QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"


@dataclass
class Published(WriterCommitMessage):  # type: ignore[misc,unused-ignore]
    """What a task did that published its rows by itself: how many."""

    rows: int


@dataclass
class Staged(WriterCommitMessage):  # type: ignore[misc,unused-ignore]
    """What a task staged."""

    part: StagedRows


class RowSink:
    """Takes the rows of a task, and ends batches; what both writers share."""

    def __init__(self, given: Mapping[str, str], schema: StructType, is_overwrite: bool) -> None:
        if is_overwrite:
            raise OptionError(
                "mode", "overwrite", 'append: .mode("append"), or .outputMode("append") of a '
                "stream; a queue's messages are not replaced"
            )  # fmt: skip
        self.options = SinkOptions.of(given)
        self._schema = schema
        SinkColumns(self.options, schema)  # whatever is wrong is told here

    def write(
        self, batches: "Iterator[RecordBatch]", query: str, batch: int
    ) -> WriterCommitMessage:
        """In a task: all rows; back when they are safe. SinkError, PublishError, OptionError."""
        options, columns = self.options, SinkColumns(self.options, self._schema)
        if not options.is_staged:
            return publish(options, columns, batches)
        context = TaskContext.get()
        partition, attempt = 0, 0
        if context is not None:
            partition, attempt = context.partitionId(), context.attemptNumber()
        if options.delivery == IDEMPOTENT:
            query = f"{query}/{partition}"
        part = Stager(options, columns, query, batch, partition, attempt).stage(batches)
        if options.delivery == EXACTLY_ONCE:
            return Staged(part)
        commit_batch(options, [part])
        return Published(part.rows)

    def commit(self, messages: Sequence[WriterCommitMessage | None], previous: int | None) -> None:
        """At the driver, all tasks having ended well. previous: see `commit_batch`. SinkError,
        BatchConflictError."""
        parts = [message.part for message in messages if isinstance(message, Staged)]
        if parts:
            commit_batch(self.options, parts, previous=previous)

    def abort(
        self, messages: Sequence[WriterCommitMessage | None], query: str | None, batch: int
    ) -> None:
        """At the driver, when tasks or the commit failed. query: None if only messages can tell."""
        if self.options.delivery != EXACTLY_ONCE:
            return
        parts = [message.part for message in messages if isinstance(message, Staged)]
        if query is None and parts:
            query = parts[0].query
        if query is not None:
            abort_batch(self.options, query, batch)


class PenstockWriter(DataSourceArrowWriter):
    """Of `df.write`. options as in sink_options.py; schema: of the rows. OptionError."""

    def __init__(self, options: Mapping[str, str], schema: StructType, is_overwrite: bool) -> None:
        self._sink = RowSink(options, schema, is_overwrite)
        said = self._sink.options
        self._query = f"job-{uuid.uuid4().hex}" if said.query_id is None else said.query_id
        self._batch = said.batch_id or 0

    def write(self, iterator: "Iterator[RecordBatch]") -> WriterCommitMessage:
        """In a task: stage or publish its rows."""
        return self._sink.write(iterator, self._query, self._batch)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All tasks are done: what they staged is published. In foreachBatch a program may leave
        batches out, so it says itself whether it does not."""
        is_gapless = self._sink.options.query_id is not None and self._sink.options.fails_on_loss
        self._sink.commit(messages, self._batch - 1 if is_gapless else None)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """A task has failed: what they staged is dropped."""
        self._sink.abort(messages, self._query, self._batch)


class PenstockStreamWriter(DataSourceStreamArrowWriter):
    """Of `df.writeStream`, as PenstockWriter."""

    def __init__(self, options: Mapping[str, str], schema: StructType, is_overwrite: bool) -> None:
        self._sink = RowSink(options, schema, is_overwrite)
        if self._sink.options.query_id is not None:
            raise OptionError(
                "queryId", self._sink.options.query_id, "none for a stream: Spark has ids of its "
                "own; it is for df.write in foreachBatch"
            )  # fmt: skip

    def write(self, iterator: "Iterator[RecordBatch]") -> WriterCommitMessage:
        """In a task: stage or publish its rows."""
        if not self._sink.options.is_staged:
            return self._sink.write(iterator, "", 0)
        query, batch = streaming_batch()
        return self._sink.write(iterator, query, batch)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """All tasks are done: what they staged is published. A replay is 'already done'."""
        sink = self._sink
        options = sink.options
        is_gapless = options.delivery == EXACTLY_ONCE and options.fails_on_loss is not False
        if is_gapless and not any(isinstance(message, Staged) for message in messages):
            # A batch without partitions has no task that told the query.
            query = query_of_checkpoint(options.checkpoint)
            messages = [] if query is None else [Staged(StagedRows(query, batchId))]
        sink.commit(messages, batchId - 1 if is_gapless else None)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """A task or the commit failed: what was staged is dropped, unless it was published."""
        self._sink.abort(messages, query_of_checkpoint(self._sink.options.checkpoint), batchId)


def publish(
    options: SinkOptions, columns: SinkColumns, batches: "Iterator[RecordBatch]"
) -> Published:
    """Row by row, and back when they are confirmed. PublishError."""
    publisher = Publisher(options)
    try:
        for batch in batches:
            for exchange, key, body, properties in columns.published(batch):
                publisher.publish(exchange, key, body, properties)
        publisher.finish()
    finally:
        publisher.close()
    return Published(publisher.confirmed)


def streaming_batch() -> tuple[str, int]:
    """The query and the batch that this task is of. SinkError: Spark does not say."""
    context = TaskContext.get()
    query = context.getLocalProperty(QUERY_ID) if context is not None else None
    batch = context.getLocalProperty(BATCH_ID) if context is not None else None
    if query is None or batch is None:
        raise SinkError(
            f"this Spark does not tell a task its query and batch ({QUERY_ID}, {BATCH_ID}): use "
            "foreachBatch, and df.write with the options queryId and batchId"
        )
    return query, int(batch)


def query_of_checkpoint(checkpoint: str | None) -> str | None:
    """The id of a query by its checkpoint, for who has no message of any task: None where the
    option is not given, or is a directory of another machine."""
    if checkpoint is None:
        return None
    parts = urlsplit(checkpoint)
    path = unquote(parts.path) if parts.scheme == "file" else checkpoint
    try:
        found = json.loads((Path(path) / "metadata").read_text(encoding="utf-8"))
        return str(found["id"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
