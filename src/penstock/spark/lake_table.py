"""LakeTable: what a pipeline asks of a table of Delta or Iceberg; and how tasks write its files.

    is_done(query, batch)          was this batch committed, by any run?
    write(rows, query, batch)      tasks write data files, the driver commits them: one commit, that
                                   says whose batch it is

The rows never come to the driver: of each file it gets a few hundred bytes. A run that dies before
the commit leaves files that no table names; one that dies after it finds the batch done. Nothing of
a batch is ever seen by half.

The libraries are imported when a table is opened, and are needed by nothing else.

Not here: the two kinds (delta_sink.py, iceberg_sink.py), a task's work (lake_task.py).
"""

import importlib.util
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from penstock.errors import PenstockError
from penstock.spark.lake_schema import Division

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

FILE_COLUMN: Final = "file"
QUERY: Final = "penstock.query"  # in the properties of a commit
BATCH: Final = "penstock.batch"


class LakeMissingError(PenstockError):
    """The library for a kind of table is not installed: which one, and how to get it."""


class LakeWriteError(PenstockError):
    """A task could not write its files: what went wrong there."""


class LakeTable(Protocol):
    """See the head of this module. query: the id that Spark keeps in the checkpoint."""

    def check(self, batch: "pa.Schema") -> None:
        """Whether rows of these columns can be written; changes nothing. MisfitError."""
        ...

    def divisions(self) -> Sequence[Division]:
        """What it is divided by, or will be."""
        ...

    def is_done(self, query: str, batch_id: int) -> bool:
        """Whether this batch of this query, or a later one, is in the table."""
        ...

    def write(self, rows: "DataFrame", query: str, batch_id: int) -> int:
        """Write and commit a batch that is not done; how many rows. The table is made if it is not
        there, and gets the columns that it has not. MisfitError."""
        ...


def needs(module: str, kind: str) -> None:
    """LakeMissingError, unless it is installed."""
    if importlib.util.find_spec(module) is None:
        raise LakeMissingError(
            f"{kind} tables need the package {module}, which is not installed: "
            "pip install 'penstock[lake]'"
        )


def by_tasks(
    rows: "DataFrame", write: "Callable[[Iterable[pa.RecordBatch]], Iterator[bytes]]"
) -> list[bytes]:
    """What `write` tells of each file that it wrote, from all tasks that have succeeded."""

    def told(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa

        for fact in _told_plainly(write(batches)):
            yield pa.RecordBatch.from_pydict({FILE_COLUMN: pa.array([fact], pa.binary())})

    found = rows.mapInArrow(told, f"{FILE_COLUMN} BINARY").collect()
    return [bytes(row[FILE_COLUMN]) for row in found]


def _told_plainly(facts: Iterator[bytes]) -> Iterator[bytes]:
    """What goes wrong in a task is told in a line, and not as Python's and the JVM's stacks."""
    try:
        yield from facts
    except PenstockError:
        raise
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        raise LakeWriteError(f"writing files of a table: {text}") from error


def ordered(rows: "DataFrame", divisions: Sequence[Division], *, is_gathered: bool) -> "DataFrame":
    """Sorted in each task by what divides the table; is_gathered: a partition's rows in one
    task."""
    if not divisions:
        return rows
    keys = [_key(rows, one) for one in divisions]
    if is_gathered:
        tasks = rows.sparkSession.sparkContext.defaultParallelism
        rows = rows.repartition(tasks, *keys)
    return rows.sortWithinPartitions(*keys)


def _key(rows: "DataFrame", one: Division) -> Any:
    """Equal for rows of one partition, as far as Spark can say so."""
    from pyspark.sql import functions as F

    parts = [one.column] if one.column in rows.columns else one.column.split(".")
    column = F.col(".".join(f"`{part}`" for part in parts))  # of a struct: a.b
    if one.transform in ("year", "month", "day", "hour"):
        return F.date_trunc(one.transform, column)
    if one.transform == "bucket":
        return F.pmod(F.hash(column), F.lit(one.width))
    if one.transform == "truncate":
        kind = rows.select(column).schema[0].dataType.typeName()
        if kind in ("string", "binary"):
            return F.substring(column, 1, one.width)
        return column - F.pmod(column, F.lit(one.width))
    return column
