"""PenstockDataSource: `format("penstock")`, from which Spark makes readers and writers.

    spark.read.format("penstock")          spark.readStream.format("penstock")
    df.write.format("penstock")            df.writeStream.format("penstock")

Spark finds it by itself where penstock is installed with pip (through pyspark_penstock), and
everywhere after `register(spark)`.

The schema is that of arrow_batches.py: the default columns, those of the option `columns`, or any
of them in a user's `.schema(...)`, with fixed types. Only requested columns are made and sent from
Python to the JVM, because Spark does not prune the columns of a Python source by itself.

Importing this module raises SparkVersionError if Spark is too old.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.errors import OptionError
from penstock.options import check_known, names
from penstock.spark.error_text import reason_first
from penstock.spark.options import SOURCE_OPTIONS, parse_source_options, spelled
from penstock.spark.spark_version import (
    LIMIT_OPTIONS,
    LIMITS,
    SparkVersionError,
    check_spark,
    has_limits,
)

try:
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceReader,
        DataSourceStreamArrowWriter,
        DataSourceStreamReader,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType
except ImportError:
    check_spark()
    raise

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "penstock"

# Spark's names for the types of arrow_batches.
SQL_TYPES = {
    "queue": "string", "partition": "int", "offset": "bigint", "timestamp": "timestamp",
    "exchange": "string", "routing_key": "string", "message_id": "string", "value": "binary",
    "headers": "map<string,string>", "properties": "map<string,string>",
}  # fmt: skip
DEFAULT_COLUMNS = tuple(SQL_TYPES)[:8]


class PenstockDataSource(DataSource):
    """The data source. Its options and schema are checked when a reader or writer is made; the
    broker of a writer too, when a write is planned. is_sent: Spark has sent this object to another
    process, as it does to commit or abort a batch of a stream, but not to plan one."""

    is_sent = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "is_sent": True}

    @classmethod
    def name(cls) -> str:
        """Return the name for format(...)."""
        return NAME

    @reason_first
    def schema(self) -> str:
        """Return the columns for a user who gives no schema."""
        return ", ".join(f"`{name}` {SQL_TYPES[name]}" for name in given_columns(self.options))

    @reason_first
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch."""
        from penstock.spark.source import PenstockBatchReader, PenstockFilterReader
        from penstock.spark.task_worker import keep_imports

        keep_imports()
        options = parse_source_options(self.options, is_streaming=False)
        kind = PenstockFilterReader if options.has_pushdown else PenstockBatchReader
        return kind(options, columns_of(schema))

    @reason_first
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream. Raises SparkVersionError for limits on Spark 4.1."""
        options = parse_source_options(self.options, is_streaming=True)
        columns = columns_of(schema)
        if has_limits():
            from penstock.spark.limited_source import LimitedStreamReader

            return LimitedStreamReader(options, columns)
        from penstock.spark.source import UnlimitedStreamReader

        refuse_limits(self.options)
        return UnlimitedStreamReader(options, columns)

    @reason_first
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch."""
        from penstock.spark.sink import PenstockWriter

        made = PenstockWriter(self.options, schema, overwrite)
        made.check()
        writer: DataSourceWriter = made
        return writer

    @reason_first
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Return the writer of a stream."""
        from penstock.spark.sink import PenstockStreamWriter

        made = PenstockStreamWriter(self.options, schema, overwrite)
        if not self.is_sent:
            made.check()
        writer: DataSourceStreamArrowWriter = made
        return writer


def given_columns(options: Mapping[str, str]) -> Sequence[str]:
    """Return the columns that the options ask for. Raises OptionError."""
    options = spelled(options, SOURCE_OPTIONS)
    named = names().check(options.get("columns", ""))
    for name in named:
        check_known(name, name, SQL_TYPES)
    columns = list(named or DEFAULT_COLUMNS)
    for option, name in (("includeHeaders", "headers"), ("includeProperties", "properties")):
        if options.get(option, "").lower() == "true" and name not in columns:
            columns.append(name)
    return columns


def columns_of(schema: StructType) -> list[str]:
    """Return the columns of a requested schema. Raises OptionError for an unknown column or a wrong
    type."""
    for field in schema.fields:
        check_known(field.name, field.name, SQL_TYPES)
        expected = SQL_TYPES[field.name]
        given = field.dataType.simpleString()
        if given != expected:
            raise OptionError(f"schema: {field.name}", given, expected)
    return [field.name for field in schema.fields]


def refuse_limits(options: Mapping[str, str]) -> None:
    """Raise SparkVersionError for the first option that limits a batch."""
    given = spelled(options, SOURCE_OPTIONS)
    for name in LIMIT_OPTIONS:
        if name in given:
            raise SparkVersionError(f"option {name}", LIMITS)


def register(spark: "SparkSession") -> None:
    """Register `format("penstock")` with a session. Harmless if it is registered already."""
    source: Any = PenstockDataSource
    spark.dataSource.register(source)
