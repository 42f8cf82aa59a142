"""The Spark sink: rows of a DataFrame become messages of queues, streams or exchanges, once.

    df.write.format("penstock").option("queue", "flights.late").mode("append").save()
    df.writeStream.format("penstock").option("exchange", "flights").option(...).start()

**Delivery.** Exactly once is the default: tasks stage pages of rows at the broker over HTTP, and
the driver publishes the batch with one request (staging.py). Idempotent: the same, but each task
publishes its own pages. At least once: each task publishes its rows over AMQP, with confirms;
confirmed rows stay when the task fails and runs again.

Spark sets properties of its jobs that name the query and the batch to a task. They are not part of
Spark's public interface, so a test asserts them. A batch write is a job of its own, with a random
name from the writer; in foreachBatch the options queryId and batchId name the batch.

Spark makes a writer at the driver, where options and columns are checked, and pickles it to the
tasks. It makes a stream's writer again for each batch, each commit and each abort. A writer holds
no connection and no state between batches.

**At least once.** The broker confirms a message when it is as safe as its durability mode says. Up
to `in_flight` rows wait for confirms, and the task succeeds when all are confirmed:

    nack, returned (no queue took it)     the task fails, with the broker's reason
    no confirm in `timeout` seconds       the task fails; if the broker blocks its publishers, for
                                          want of memory or disk, the error has its reason
    the connection is lost                the task connects again, for up to `timeout` seconds, and
                                          sends unconfirmed rows again, which may duplicate them

A Python worker of Spark keeps its connection for later tasks, each of which has a channel. Workers
are forked, so a connection belongs to the process that made it.
"""

import json
import os
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
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

from penstock.amqp_url import AmqpUrl
from penstock.client import ClientChannel, ClientConnection, Received, connect
from penstock.client.driver import CAPABILITY
from penstock.client.publish_window import BATCH_BYTES, BATCH_MESSAGES, ManyPublished
from penstock.codec.spec import ExchangeDeclare, QueueDeclare
from penstock.errors import (
    ACCESS_REFUSED,
    AMQPConnectionError,
    ChannelError,
    ConnectionLostError,
    OptionError,
    PenstockError,
    UnreachableError,
)
from penstock.spark.error_text import reason_first
from penstock.spark.options import EXACTLY_ONCE, IDEMPOTENT, SinkOptions
from penstock.spark.sink_columns import SinkColumns
from penstock.spark.staging import (
    SinkError,
    StagedRows,
    Stager,
    abort_batch,
    check_sink,
    commit_batch,
)
from penstock.spark.task_worker import keep_imports

if TYPE_CHECKING:
    from pyarrow import RecordBatch

# Local properties of Spark's jobs that name the query and the batch to tasks.
QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
BACK_OFF_S: Final = 0.2
IN_FLIGHT_BYTES: Final = 16 << 20
GOING_DOWN: Final = (320, 541)  # reply codes of a broker that is stopping or failing

Row = tuple[str, str, bytes, bytes]  # exchange, routing key, body, properties as on the wire
_connections: dict[str, ClientConnection] = {}


@dataclass
class PublishedRows(WriterCommitMessage):  # type: ignore[misc,unused-ignore]
    """Commit message of a task that published its own rows: how many."""

    rows: int


@dataclass
class Staged(WriterCommitMessage):  # type: ignore[misc,unused-ignore]
    """Commit message of a task that staged its rows."""

    part: StagedRows


class RowSink:
    """Writes the rows of a task, and commits and aborts batches, for both writers."""

    def __init__(self, given: Mapping[str, str], schema: StructType, is_overwrite: bool) -> None:
        if is_overwrite:
            raise OptionError(
                "mode", "overwrite", 'append: .mode("append"), or .outputMode("append") for a '
                "stream; the sink does not replace a queue's messages"
            )  # fmt: skip
        self.options = SinkOptions.of(given)
        self._schema = schema
        SinkColumns(self.options, schema)  # raises for wrong columns

    def check(self) -> None:
        """Check address, login and target at the driver, before tasks are started. Raises
        OptionError; RefusedError and SinkError."""
        if self.options.is_staged:
            check_sink(self.options)
        else:
            check_target(self.options)
        keep_imports()

    def write(
        self, batches: "Iterator[RecordBatch]", query: str, batch: int
    ) -> WriterCommitMessage:
        """Write all rows in a task; return when they are safe. Raises SinkError, PublishError and
        OptionError."""
        keep_imports()
        options, columns = self.options, SinkColumns(self.options, self._schema)
        if not options.is_staged:
            return publish_rows(options, columns, batches)
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
        return PublishedRows(part.rows)

    def commit(
        self, messages: Sequence[WriterCommitMessage | None], query: str | None, batch: int, *,
        is_reported: bool,
    ) -> None:  # fmt: skip
        """Publish the batch at the driver, when all tasks have succeeded. query: None if only the
        messages can name it. is_reported: all batches of the query are committed, also those
        without rows. Raises SinkError and BatchConflictError."""
        keep_imports()
        options = self.options
        if options.delivery != EXACTLY_ONCE:
            return
        parts = [message.part for message in messages if isinstance(message, Staged)]
        is_gapless = is_reported and options.fails_on_loss
        if is_gapless and not parts and query is not None:
            parts = [StagedRows(query, batch)]  # no partitions, so no task has named the batch
        if parts:
            commit_batch(options, parts, previous=batch - 1 if is_gapless else None)

    def abort(
        self, messages: Sequence[WriterCommitMessage | None], query: str | None, batch: int
    ) -> None:
        """Drop the batch at the driver. query: None if only the messages can name it."""
        if self.options.delivery != EXACTLY_ONCE:
            return
        parts = [message.part for message in messages if isinstance(message, Staged)]
        if query is None and parts:
            query = parts[0].query
        if query is not None:
            abort_batch(self.options, query, batch)


class PenstockWriter(DataSourceArrowWriter):
    """The writer of `df.write`. Raises OptionError for wrong options or columns."""

    def __init__(self, options: Mapping[str, str], schema: StructType, is_overwrite: bool) -> None:
        self._sink = RowSink(options, schema, is_overwrite)
        given = self._sink.options
        self._query = f"job-{uuid.uuid4().hex}" if given.query_id is None else given.query_id
        self._batch = given.batch_id or 0

    @reason_first
    def write(self, iterator: "Iterator[RecordBatch]") -> WriterCommitMessage:
        """Stage or publish the rows of a task."""
        return self._sink.write(iterator, self._query, self._batch)

    @reason_first
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish what the tasks staged."""
        is_reported = self._sink.options.query_id is not None
        self._sink.commit(messages, self._query, self._batch, is_reported=is_reported)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Drop what the tasks staged, because one has failed."""
        self._sink.abort(messages, self._query, self._batch)

    def check(self) -> None:
        self._sink.check()


class PenstockStreamWriter(DataSourceStreamArrowWriter):
    """The writer of `df.writeStream`. Raises OptionError for wrong options or columns."""

    def __init__(self, options: Mapping[str, str], schema: StructType, is_overwrite: bool) -> None:
        self._sink = RowSink(options, schema, is_overwrite)
        if self._sink.options.query_id is not None:
            raise OptionError(
                "queryId", self._sink.options.query_id, "none for a stream, which has Spark's ids: "
                "queryId is for df.write in foreachBatch"
            )  # fmt: skip

    @reason_first
    def write(self, iterator: "Iterator[RecordBatch]") -> WriterCommitMessage:
        """Stage or publish the rows of a task."""
        if not self._sink.options.is_staged:
            return self._sink.write(iterator, "", 0)
        query, batch = streaming_batch()
        return self._sink.write(iterator, query, batch)

    @reason_first
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Publish what the tasks staged. For a replay the broker says "already done"."""
        query = query_of_checkpoint(self._sink.options.checkpoint)
        self._sink.commit(messages, query, batchId, is_reported=True)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Drop what was staged, unless it was published, because a task or the commit failed."""
        self._sink.abort(messages, query_of_checkpoint(self._sink.options.checkpoint), batchId)

    def check(self) -> None:
        self._sink.check()


def streaming_batch() -> tuple[str, int]:
    """Return the query and the batch of this task. Raises SinkError if Spark does not say."""
    context = TaskContext.get()
    query = context.getLocalProperty(QUERY_ID) if context is not None else None
    batch = context.getLocalProperty(BATCH_ID) if context is not None else None
    if query is None or batch is None:
        raise SinkError(
            f"Spark did not set the query and batch of a task ({QUERY_ID}, {BATCH_ID}): use "
            "foreachBatch, and df.write with the options queryId and batchId"
        )
    return query, int(batch)


def query_of_checkpoint(checkpoint: str | None) -> str | None:
    """Return a query's id from its checkpoint, or None if the option is not given or names a
    directory of another machine. For a batch without any task's message."""
    if checkpoint is None:
        return None
    parts = urlsplit(checkpoint)
    path = unquote(parts.path) if parts.scheme == "file" else checkpoint
    try:
        found = json.loads((Path(path) / "metadata").read_text(encoding="utf-8"))
        return str(found["id"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


# ---- at least once, over AMQP --------------------------------------------------------------------


class PublishError(PenstockError):
    """Rows were not accepted: what was published where, and why it failed."""


def publish_rows(
    options: SinkOptions, columns: SinkColumns, batches: "Iterator[RecordBatch]"
) -> PublishedRows:
    """Publish all rows; return when all are confirmed. Raises PublishError."""
    with closing(RowPublisher(options)) as publisher:
        for batch in batches:
            for exchange, key, body, properties in columns.published(batch):
                publisher.publish(exchange, key, body, properties)
            publisher.flush()
        publisher.finish()
    return PublishedRows(publisher.confirmed)


@dataclass(slots=True)
class UnderWay:
    """Rows that were sent with one write, and their confirms."""

    rows: list[Row]
    bytes: int
    confirms: ManyPublished


class RowPublisher:
    """Publishes rows with confirms, on one channel, many with one write: a row costs no future and
    no system call of its own. sleep, monotonic: those of `time`, except in tests."""

    def __init__(
        self, options: SinkOptions, *, sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._options = options
        self._url = options.broker(os.environ)
        self._sleep = sleep
        self._monotonic = monotonic
        self._rows: list[Row] = []  # to be sent next, all to one exchange
        self._rows_bytes = 0
        # Some writes are under way while the next is made.
        self._rows_max = max(min(BATCH_MESSAGES, options.in_flight_max // 4), 1)
        self._waiting: deque[UnderWay] = deque()
        self._waiting_rows = 0
        self._waiting_bytes = 0
        self._returned: Received | None = None
        self._channel: ClientChannel | None = None
        self.confirmed = 0

    def publish(self, exchange: str, routing_key: str, body: bytes, properties: bytes) -> None:
        """Add one row to those that are sent next. Sends them if they are enough, and waits while
        too many are unconfirmed. Raises PublishError."""
        rows = self._rows
        if rows and (exchange != rows[0][0] or self._rows_bytes + len(body) > BATCH_BYTES):
            self.flush()
            rows = self._rows
        rows.append((exchange, routing_key, body, properties))
        self._rows_bytes += len(body)
        if len(rows) >= self._rows_max:
            self.flush()

    def flush(self) -> None:
        """Send what was added, as soon as so many rows may be unconfirmed. Raises PublishError."""
        rows, size = self._rows, self._rows_bytes
        if not rows:
            return
        while self._waiting and (
            self._waiting_rows + len(rows) > self._options.in_flight_max
            or self._waiting_bytes + size > IN_FLIGHT_BYTES
        ):
            self._settle_oldest()
        self._rows, self._rows_bytes = [], 0
        self._send(rows, size)

    def finish(self) -> None:
        """Send the rest, wait for all confirms, and close the channel. Raises PublishError."""
        self.flush()
        while self._waiting:
            self._settle_oldest()
        self._check_returned()
        self.close()

    def close(self) -> None:
        """Close the channel, whether or not all rows are confirmed."""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    # ---- confirms ------------------------------------------------------------------------------

    def _settle_oldest(self) -> None:
        oldest = self._waiting[0]
        confirms = oldest.confirms
        try:
            confirms.future.result(self._options.timeout_s)
        except TimeoutError:
            self._count(oldest)
            raise self._failed(self._silence()) from None
        except (ConnectionLostError, AMQPConnectionError) as error:
            self._resend(error)
            return
        except PenstockError as error:
            self._count(oldest)
            raise self._failed(str(error)) from None
        self._check_returned()
        self._count(oldest)
        if confirms.refused:
            raise self._failed("the broker refused it (basic.nack)")
        self._waiting.popleft()
        self._waiting_rows -= len(oldest.rows)
        self._waiting_bytes -= oldest.bytes

    def _count(self, sent: UnderWay) -> list[Row]:
        """Count what is confirmed of these rows. Returns the others."""
        without = sorted({*sent.confirms.unanswered(), *sent.confirms.refused})
        self.confirmed += len(sent.rows) - len(without)
        return [sent.rows[index] for index in without]

    def _check_returned(self) -> None:
        message = self._returned
        if message is None:
            return
        if self._options.queue is not None:
            raise self._failed("the queue does not exist: declare it first")
        raise self._failed(
            f"no queue got the row with routing key {message.routing_key!r} ({message.reply_text})"
        )

    def _silence(self) -> str:
        reason = self._channel.connection.blocked_reason if self._channel is not None else ""
        why = f": the broker blocks publishers, {reason}" if reason else ""
        return f"no confirm in {self._options.timeout_s:g} s{why}"

    def _failed(self, why: str) -> PublishError:
        self.close()
        place = f"{self._options.target} at {self._url}"
        return PublishError(
            f"publishing to {place}: {why}; {self.confirmed:,} rows of this task are confirmed"
        )

    # ---- connections ---------------------------------------------------------------------------

    def _send(self, rows: list[Row], size_bytes: int) -> None:
        messages = [(key, properties, body) for _, key, body, properties in rows]
        confirms = self._opened().publish_many(
            rows[0][0], messages, mandatory=self._options.is_mandatory
        )
        self._waiting.append(UnderWay(rows, size_bytes, confirms))
        self._waiting_rows += len(rows)
        self._waiting_bytes += size_bytes

    def _resend(self, error: PenstockError) -> None:
        """Send all unconfirmed rows again, on a new connection."""
        if isinstance(error, AMQPConnectionError) and error.code not in GOING_DOWN:
            raise self._failed(str(error))
        self._channel = None
        lost, self._waiting = self._waiting, deque()
        self._waiting_rows = self._waiting_bytes = 0
        for sent in lost:
            rows = self._count(sent)
            if rows:
                self._send(rows, sum(len(row[2]) for row in rows))

    def _opened(self) -> ClientChannel:
        if self._channel is None:
            self._channel = self._open()
        return self._channel

    def _open(self) -> ClientChannel:
        deadline = self._monotonic() + self._options.timeout_s
        while True:
            try:
                channel = connection_to(self._url).channel()
                channel.on_return = self._on_return
                channel.select_confirms()
                return channel
            except (UnreachableError, ConnectionLostError, AMQPConnectionError) as error:
                is_lasting = isinstance(error, AMQPConnectionError) and error.code not in GOING_DOWN
                if is_lasting or self._monotonic() >= deadline:
                    raise self._failed(str(error)) from None
            self._sleep(BACK_OFF_S)

    def _on_return(self, message: Received) -> None:
        """Note a returned message, in the thread that reads; its confirm follows."""
        self._returned = self._returned or message


def connection_to(url: AmqpUrl) -> ClientConnection:
    """Return this process's connection to that broker, a new one if there is none that works."""
    key = repr(url)
    connection = _connections.get(key)
    if connection is not None and connection.pid == os.getpid() and connection.is_open:
        return connection
    _connections[key] = connection = connect(url)
    return connection


_checked_targets: set[tuple[AmqpUrl, str]] = set()


def check_target(options: SinkOptions) -> None:
    """Check at the driver that the broker knows the user, that the target exists and, if the broker
    is Penstock, that the user may write to it; asks once in a process. A broker that does not
    answer is no error: tasks wait for it. Raises OptionError."""
    url = options.broker(os.environ)
    key = url, options.target
    if key in _checked_targets:
        return
    try:
        with connect(url) as connection:
            if options.exchange is not None:
                _check_target(connection.channel(), options, url)
    except AMQPConnectionError as error:
        if error.code in GOING_DOWN:
            return
        raise OptionError("url", str(url), f"a user and a vhost of that broker: {error}") from None
    except UnreachableError as error:
        if error.is_of_tls:
            expected = f"a broker that speaks TLS there, and is trusted: {error.reason}"
            raise OptionError("url", str(url), expected) from None
        return
    except (ConnectionLostError, TimeoutError):
        return
    _checked_targets.add(key)


def _check_target(channel: ClientChannel, options: SinkOptions, url: AmqpUrl) -> None:
    """Ask for the right to publish, and whether the queue or exchange exists. OptionError."""
    exchange, queue = options.exchange or "", options.queue
    option, given = ("exchange", exchange) if queue is None else ("queue", queue)
    try:
        if channel.connection.capability(CAPABILITY):
            asked: dict[str, object] = {"target": {"exchanges": [exchange]}}
            channel.call("check_target", asked).result(options.timeout_s)
        if queue is not None:
            channel.ask(QueueDeclare(queue=queue, passive=True)).result(options.timeout_s)
        elif exchange:
            found = channel.ask(ExchangeDeclare(exchange=exchange, passive=True))
            found.result(options.timeout_s)
    except ChannelError as error:
        expected = f"what exists at {url}"
        if error.code == ACCESS_REFUSED:
            expected = f"write permission for user {url.user!r} at {url}"
        raise OptionError(option, given, f"{expected}: {error}") from None
