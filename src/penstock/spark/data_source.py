"""PenstockDataSource: `format("penstock")`, what Spark makes readers and writers with.

    spark.read.format("penstock")          spark.readStream.format("penstock")
    df.write.format("penstock")            df.writeStream.format("penstock")

Spark finds it by itself where penstock is installed with pip (pyspark_penstock), and everywhere
after `register(spark)`.

The schema is that of arrow_batches.py: all default columns, those of the option `columns`, or
any of them in a user's `.schema(...)`, with the types that they have. Only what is asked for is
made and goes from Python to the JVM: Spark does not prune columns of a Python source by itself.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from penstock.errors import OptionError
from penstock.spark.options import lowered, parse_source_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "penstock"

# Spark's words for the types of arrow_batches.
SQL_TYPES = {
    "queue": "string", "partition": "int", "offset": "bigint", "timestamp": "timestamp",
    "exchange": "string", "routing_key": "string", "message_id": "string", "value": "binary",
    "headers": "map<string,string>", "properties": "map<string,string>",
}  # fmt: skip
DEFAULT_COLUMNS = tuple(SQL_TYPES)[:8]


class PenstockDataSource(DataSource):
    """See the head of this module."""

    @classmethod
    def name(cls) -> str:
        """What stands in format(...)."""
        return NAME

    def schema(self) -> str:
        """All columns that are given when the user names no schema."""
        return ", ".join(f"`{name}` {SQL_TYPES[name]}" for name in given_columns(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Of a batch."""
        from penstock.spark.source import PenstockBatchReader, PenstockFilterReader

        options = parse_source_options(self.options, is_streaming=False)
        kind = PenstockFilterReader if options.has_pushdown else PenstockBatchReader
        return kind(options, columns_of(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Of a stream."""
        from penstock.spark.source import PenstockStreamReader

        options = parse_source_options(self.options, is_streaming=True)
        return PenstockStreamReader(options, columns_of(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Of a batch."""
        from penstock.spark.sink import PenstockWriter

        writer: DataSourceWriter = PenstockWriter(self.options, schema, overwrite)
        return writer

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Of a stream."""
        from penstock.spark.sink import PenstockStreamWriter

        writer: DataSourceStreamWriter = PenstockStreamWriter(self.options, schema, overwrite)
        return writer


def given_columns(options: Mapping[str, str]) -> Sequence[str]:
    """The columns that options ask for. OptionError."""
    said = lowered(options)
    named = [name.strip() for name in said.get("columns", "").split(",") if name.strip()]
    for name in named:
        if name not in SQL_TYPES:
            raise OptionError(name, name, list(SQL_TYPES))
    columns = list(dict.fromkeys(named)) or list(DEFAULT_COLUMNS)
    for option, name in (("includeheaders", "headers"), ("includeproperties", "properties")):
        if said.get(option, "").lower() == "true" and name not in columns:
            columns.append(name)
    return columns


def columns_of(schema: StructType) -> list[str]:
    """The columns of a requested schema. OptionError for one that there is not, or that has another
    type."""
    for field in schema.fields:
        expected = SQL_TYPES.get(field.name)
        if expected is None:
            raise OptionError(field.name, field.name, list(SQL_TYPES))
        given = field.dataType.simpleString()
        if given != expected:
            raise OptionError(f"schema: {field.name}", given, expected)
    return [field.name for field in schema.fields]


def register(spark: "SparkSession") -> None:
    """Make `format("penstock")` known to a session; harmless where it is known already."""
    source: Any = PenstockDataSource
    spark.dataSource.register(source)
