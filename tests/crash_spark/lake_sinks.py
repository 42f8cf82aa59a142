"""Tables of Delta and Iceberg as sinks of a campaign: written by foreachBatch, as pipelines do.

    python -m tests.crash_spark.campaign --kills 8 --arguments '{"path": "/tmp/lake"}' \\
        --sink tests.crash_spark.lake_sinks:DeltaTarget

arguments: path, an absolute directory. The points of the kills: tasks have got a batch of Arrow
(in_task), have written their last file (after_write); the driver has all files and commits
(before_commit), has committed (after_commit). The table's commit follows the steps of
penstock.spark.pipeline: is it done, else write.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.spark import delta_sink, iceberg_sink
from penstock.spark.delta_sink import DeltaSink
from penstock.spark.iceberg_sink import IcebergSink
from penstock.spark.lake_table import by_tasks
from tests.crash_spark.kill_points import reached

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

NAME = "crash.out"
QUERY = "sql.streaming.queryId"


class PointedDelta(DeltaSink):
    """Delta's, which tells where it is."""

    def _commit(self, *given: Any) -> None:
        reached("before_commit")
        super()._commit(*given)
        reached("after_commit")


class PointedIceberg(IcebergSink):
    """Iceberg's, which tells where it is."""

    def _commit(self, *given: Any) -> bool:
        reached("before_commit")
        is_through = super()._commit(*given)
        reached("after_commit")
        return is_through


def pointed_tasks(
    rows: "DataFrame", write: Callable[[Iterable[Any]], Iterator[bytes]]
) -> list[bytes]:
    """by_tasks, whose tasks tell where they are."""

    def told(batches: Iterable[Any]) -> Iterator[bytes]:
        yield from write(pointed(batches))
        reached("after_write")

    return by_tasks(rows, told)


def pointed(batches: Iterable[Any]) -> Iterator[Any]:
    """The same, reaching in_task with each."""
    for batch in batches:
        reached("in_task")
        yield batch


class LakeTarget:
    """What both have."""

    is_ordered = False

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self.path = str(arguments["path"])

    def prepare(self) -> None:
        """The first batch makes the table."""
        Path(self.path).mkdir(parents=True, exist_ok=True)

    def table(self) -> Any:
        """The sink."""
        raise AssertionError("of a subclass")

    def start(self, rows: "DataFrame", checkpoint: Path) -> "StreamingQuery":
        """Batch by batch."""
        for module in (delta_sink, iceberg_sink):
            setattr(module, "by_tasks", pointed_tasks)  # noqa: B010 - it is not theirs to mypy

        def batch(data: "DataFrame", number: int) -> None:
            query = data.sparkSession.sparkContext.getLocalProperty(QUERY)
            table = self.table()
            if not table.is_done(query, number):
                table.write(data, query, number)

        writing = rows.writeStream.foreachBatch(batch)
        writing = writing.option("checkpointLocation", str(checkpoint))
        return writing.trigger(availableNow=True).start()

    def is_settled(self) -> bool:
        """What is committed can be seen."""
        return True


class DeltaTarget(LakeTarget):
    """A Delta table."""

    def table(self) -> DeltaSink:
        """The sink."""
        return PointedDelta(f"{self.path}/out")

    def bodies(self) -> list[bytes]:
        """Of all rows."""
        from deltalake import DeltaTable

        found: list[bytes] = DeltaTable(f"{self.path}/out").to_pyarrow_table()["value"].to_pylist()
        return found


class IcebergTarget(LakeTarget):
    """An Iceberg table, in a catalog of sqlite."""

    def table(self) -> IcebergSink:
        """The sink."""
        return PointedIceberg(NAME, catalog={"warehouse": self.path})

    def bodies(self) -> list[bytes]:
        """Of all rows."""
        found: list[bytes] = self.table()._opened().scan().to_arrow()["value"].to_pylist()
        return found
