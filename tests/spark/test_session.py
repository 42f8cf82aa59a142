"""The session that Penstock makes: what its processes import, and how Spark writes a checkpoint.

What both save is measured, not tested: the programs that Spark runs, and the time to compile.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def imported(_: int) -> tuple[str, bool]:
    """Where a worker has Spark's Python from, and whether that is compiled."""
    import pyspark.serializers

    path = pyspark.serializers.__file__
    return path, Path(path).is_file()


def test_workers_import_spark_from_files(spark: "SparkSession") -> None:
    """In a zip each process compiles it anew."""
    assert "SPARK_HOME" not in os.environ  # it is Spark's alone
    ((path, is_file),) = spark.sparkContext.parallelize([0], 1).map(imported).collect()
    assert is_file, path


def test_a_query_goes_on_from_its_checkpoint(spark: "SparkSession", tmp_path: Path) -> None:
    name = spark.conf.get("spark.sql.streaming.checkpointFileManagerClass")
    assert name is not None
    assert name.endswith(".FileSystemBasedCheckpointFileManager")
    rows = spark.readStream.format("rate-micro-batch").options(rowsPerBatch="7").load()
    for batches in (1, 2):
        writing = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
        query = writing.trigger(once=True).start()
        assert query.awaitTermination(240)
        found = sorted(file.name for file in (tmp_path / "commits").glob("[0-9]*"))
        assert found == [str(batch) for batch in range(batches)]
