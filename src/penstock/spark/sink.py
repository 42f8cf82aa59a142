"""The Spark sink: rows of a DataFrame become messages of a queue or an exchange, at least once.

    df.write.format("penstock").option("queue", "flights.late").mode("append").save()
    df.writeStream.format("penstock").option("exchange", "flights").option(...).start()

Rows come as Arrow batches to the tasks, and each task publishes its own, with confirms
(sink_publisher.py). It succeeds when the broker has confirmed every row; else it fails, and Spark
runs it again or fails the job. What was confirmed stays published then: at least once, as with
Spark's sink for Kafka.

The writer is made at the driver, where options and columns are checked, and pickled to the tasks:
it holds no connection.

Not here: options and columns (sink_options.py).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import BinaryType, DataType, MapType, StringType, StructType

from penstock.codec.properties import BasicProperties
from penstock.errors import OptionError
from penstock.spark.sink_options import SinkOptions
from penstock.spark.sink_publisher import Publisher

if TYPE_CHECKING:
    from pyarrow import RecordBatch

COLUMNS: Final = "value binary|string, routing_key string, message_id string, headers map"
PERSISTENT: Final = 2
TRANSIENT: Final = 1


@dataclass
class Published(WriterCommitMessage):  # type: ignore[misc,unused-ignore]
    """What a task did: rows, all of them confirmed."""

    rows: int


class RowPublisher:
    """Publishes the rows of a task; what both writers share."""

    def __init__(self, options: Mapping[str, str], schema: StructType, is_overwrite: bool) -> None:
        if is_overwrite:
            raise OptionError(
                "mode", "overwrite", 'append: .mode("append"), or .outputMode("append") of a '
                "stream; a queue's messages are not replaced"
            )  # fmt: skip
        self.options = SinkOptions.of(options)
        self.names = checked_columns(schema)

    def publish(self, batches: "Iterator[RecordBatch]") -> Published:
        """All rows, and back when they are confirmed. PublishError."""
        publisher = Publisher(self.options)
        try:
            for batch in batches:
                self._publish(publisher, batch)
            publisher.finish()
        finally:
            publisher.close()
        return Published(publisher.confirmed)

    def _publish(self, publisher: Publisher, batch: "RecordBatch") -> None:
        options, rows = self.options, batch.num_rows
        nothing: list[Any] = [None] * rows
        values = batch.column("value").to_pylist()
        keys = nothing if options.routing_key is not None else self._column(batch, "routing_key")
        ids, headers = self._column(batch, "message_id"), self._column(batch, "headers")
        given = options.routing_key or ""
        plain = self._properties(None, None)
        for value, key, message_id, pairs in zip(
            values, keys or nothing, ids or nothing, headers or nothing, strict=True
        ):
            if value is None:
                raise OptionError("value", None, "a body in every row: the column has a null")
            body = value.encode() if isinstance(value, str) else value
            is_plain = message_id is None and pairs is None
            properties = plain if is_plain else self._properties(message_id, pairs)
            publisher.publish(key or given, body, properties)

    def _column(self, batch: "RecordBatch", name: str) -> list[Any] | None:
        return batch.column(name).to_pylist() if name in self.names else None

    def _properties(self, message_id: str | None, pairs: list[tuple[str, Any]] | None) -> bytes:
        return BasicProperties(
            content_type=self.options.content_type,
            headers=None if pairs is None else dict(pairs),
            delivery_mode=PERSISTENT if self.options.is_persistent else TRANSIENT,
            message_id=message_id,
        ).encode()


class PenstockWriter(DataSourceArrowWriter):
    """Of `df.write`. options as in sink_options.py; schema: of the rows. OptionError."""

    def __init__(self, options: Mapping[str, str], schema: StructType, is_overwrite: bool) -> None:
        self._rows = RowPublisher(options, schema, is_overwrite)

    def write(self, iterator: "Iterator[RecordBatch]") -> Published:
        """In a task: publish its rows."""
        return self._rows.publish(iterator)


class PenstockStreamWriter(DataSourceStreamArrowWriter):
    """Of `df.writeStream`, as PenstockWriter. A batch that is replayed is published again."""

    def __init__(self, options: Mapping[str, str], schema: StructType, is_overwrite: bool) -> None:
        self._rows = RowPublisher(options, schema, is_overwrite)

    def write(self, iterator: "Iterator[RecordBatch]") -> Published:
        """In a task: publish its rows."""
        return self._rows.publish(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """All tasks have published; nothing is left to do."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """A task has failed. What was confirmed stays published: that is at least once."""


def checked_columns(schema: StructType) -> frozenset[str]:
    """The names of the columns that are sent. OptionError: none that can be, or of a wrong type."""
    types = {field.name: field.dataType for field in schema.fields}
    if "value" not in types:
        raise OptionError("columns", ", ".join(types), COLUMNS)
    wanted: dict[str, tuple[type[DataType], ...]] = {
        "value": (BinaryType, StringType), "routing_key": (StringType,),
        "message_id": (StringType,), "headers": (MapType,),
    }  # fmt: skip
    for name, kinds in wanted.items():
        if name in types and not isinstance(types[name], kinds):
            raise OptionError(f"column {name}", types[name].simpleString(), COLUMNS)
    return frozenset(wanted) & types.keys()
