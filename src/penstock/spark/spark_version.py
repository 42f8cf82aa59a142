"""What each version of Spark offers to a source in Python, and the error for what this one lacks.

    4.1   batches; streams, of which a batch reaches to the newest record; the sink; pipelines
    4.2   limits of a batch, AvailableNow in several batches, the lag; classic queues as streams

The difference is the call latestOffset(). Spark 4.2 says where the batch begins and how much it may
have; 4.1 says neither, and a source that has just been started does not know. So there a batch has
no limit, and nothing can be leased, which needs both.

A feature is looked for where Spark has it, not by a version: a vendor's runtime may have features
of a later Spark than its number. The number is for the error only. This module imports no pyspark.
"""

import importlib.util
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from penstock.errors import MissingPackageError

LEAST: Final = "4.1"
LIMITS: Final = "4.2"
# Options of a stream that need a Spark which says where a batch begins, and how much it may have.
LIMIT_OPTIONS: Final = (
    "maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay",
)  # fmt: skip
LIMITS_MODULE: Final = "pyspark.sql.streaming.datasource"


class SparkVersionError(MissingPackageError):
    """This Spark is too old. what: what needs a newer one. least: the first version with it."""

    def __init__(self, what: str, least: str) -> None:
        super().__init__(f"{what}: needs Spark {least} or newer, and this is {spark_version()}")
        self.what = what
        self.least = least


def spark_version() -> str:
    """Return the version of PySpark, such as "4.3.0"."""
    try:
        return version("pyspark")
    except PackageNotFoundError:  # a runtime that has it without its metadata
        import pyspark

        return str(pyspark.__version__)


def has_limits() -> bool:
    """Return whether Spark asks a stream for offsets with a start and a limit."""
    return importlib.util.find_spec(LIMITS_MODULE) is not None


def check_spark() -> None:
    """Raise SparkVersionError if this PySpark is too old for the source and the sink."""
    try:
        from pyspark.sql.datasource import DataSourceStreamArrowWriter as _  # noqa: F401
    except ImportError as error:
        raise SparkVersionError("Penstock's source and sink", LEAST) from error
