"""DefaultSource: how Spark finds `format("penstock")` by itself.

Spark looks through all top-level packages that are called pyspark_* for a class of this name, and
imports each of them at the first use of any Python source. So nothing is imported here but Spark's
own base class; what the source does is loaded when it is used (penstock.spark.data_source).
"""

from typing import Any

from pyspark.sql.datasource import DataSource


class DefaultSource(DataSource):
    """Passes everything on to PenstockDataSource."""

    @classmethod
    def name(cls) -> str:
        """What stands in format(...)."""
        return "penstock"

    is_sent = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "is_sent": True}

    def _source(self) -> Any:
        from penstock.spark.data_source import PenstockDataSource

        source = PenstockDataSource(self.options)
        source.is_sent = self.is_sent
        return source

    def schema(self) -> Any:
        """The columns."""
        return self._source().schema()

    def reader(self, schema: Any) -> Any:
        """Of a batch."""
        return self._source().reader(schema)

    def streamReader(self, schema: Any) -> Any:
        """Of a stream."""
        return self._source().streamReader(schema)

    def writer(self, schema: Any, overwrite: bool) -> Any:
        """Of a batch."""
        return self._source().writer(schema, overwrite)

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        """Of a stream."""
        return self._source().streamWriter(schema, overwrite)
