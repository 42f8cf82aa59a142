"""A transform in Python, for with_python.toml: pages that took longer than a second."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def slow_pages(rows: DataFrame) -> DataFrame:
    """Which ones, and how long in seconds."""
    return rows.where("ms > 1000").withColumn("seconds", F.col("ms") / 1000).drop("ms")
