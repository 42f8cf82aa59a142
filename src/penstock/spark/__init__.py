"""Penstock for Spark: the source and sink `penstock`, sessions, lag, pipelines.

    from penstock.spark import register, session

    spark = session()                            # or any session, and register(spark)
    spark.readStream.format("penstock").option("url", "http://localhost:15672").option(
        "subscribe", "events").load()

Guides: docs/guides/spark-source.md, docs/guides/sinks.md, docs/guides/clusters.md. Importing this
package imports no pyspark: a name is loaded at its first use. No other package of Penstock imports
pyspark.
"""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.spark.data_source import PenstockDataSource as PenstockDataSource
    from penstock.spark.data_source import register as register
    from penstock.spark.lag_listener import LagListener as LagListener
    from penstock.spark.spark_session import session as session
    from penstock.spark.spark_session import ship as ship

# Name -> the module that defines it.
_LAZY: Final = {
    "PenstockDataSource": "penstock.spark.data_source",
    "register": "penstock.spark.data_source",
    "LagListener": "penstock.spark.lag_listener",
    "session": "penstock.spark.spark_session",
    "ship": "penstock.spark.spark_session",
}

__all__ = ["LagListener", "PenstockDataSource", "register", "session", "ship"]


def __getattr__(name: str) -> object:
    """Import and return a name of this package at its first use."""
    if name not in _LAZY:
        raise AttributeError(f"module 'penstock.spark' has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(_LAZY[name]), name)
    globals()[name] = value
    return value
