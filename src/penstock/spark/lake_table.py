"""LakeTable: what a pipeline needs of a Delta or Iceberg table, and what both kinds share.

    is_done(query, batch)          was this batch committed, by any run?
    write(rows, query, batch)      tasks write data files and the driver commits them, in one commit
                                   that names the query and the batch

The rows do not pass through the driver, which gets a few hundred bytes for each file. A run that
dies before the commit leaves files that no table names; one that dies after it finds the batch
done. A batch is never partly visible.

**Columns.** A table keeps the types of its columns. A batch may add columns, or fields of a struct;
columns that it lacks are null. A value may be narrower than its column, such as an int for a long,
and is widened. Anything else is a MisfitError that names the column. All types are Arrow's.

    partition_by = ["month", "day(timestamp)", "bucket(16, carrier)", "truncate(10, name)"]

Delta takes column names; Iceberg also takes year, month, day, hour, bucket and truncate.

**In a task**, on an executor, without Spark:

    Arrow batches  ->  chunks of CHUNK_BYTES  ->  the table's columns  ->  a piece for each
    partition  ->  a Parquet file each, written and synced; the driver gets its description

A task holds one chunk, whatever the batch's size. Rows arrive sorted by partition, so a task writes
about one file for a partition, and another one for each chunk in which the partition continues.
Names of files are random, so a second attempt never meets a file of the first.

The libraries are imported when a table is opened. delta_sink.py and iceberg_sink.py are the kinds.
"""

import importlib.util
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import unquote, urlsplit

from penstock.errors import PenstockError, install_advice
from penstock.spark.file_sink import sync_path

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from pyspark.sql import DataFrame

FILE_COLUMN: Final = "file"
QUERY: Final = "penstock.query"  # in the properties of a commit
BATCH: Final = "penstock.batch"
CHUNK_BYTES: Final = 64 << 20  # in Arrow; the file usually has a third of that
TRANSFORM: Final = re.compile(r"(\w+)\(\s*(?:(\d+)\s*,\s*)?([^(),]+?)\s*\)")
TIMES: Final = ("year", "month", "day", "hour")
WITH_WIDTH: Final = ("bucket", "truncate")
# Type of a value -> wider types that its column may have, by Arrow's names.
WIDER: Final = {
    "int8": ("int16", "int32", "int64"), "int16": ("int32", "int64"), "int32": ("int64",),
    "float": ("double",),
}  # fmt: skip


class LakeMissingError(PenstockError):
    """The library for a kind of table is not installed: which one, and how to get it."""


class LakeWriteError(PenstockError):
    """A task could not write its files."""


class MisfitError(PenstockError):
    """Rows do not fit a table: the column, the table's type and the given one."""


# ---- how a table is divided ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Division:
    """One entry of partition_by. transform: "identity" or one of Iceberg's. width: of a bucket
    (number of buckets) or truncate (letters, or steps of a number), else 0."""

    column: str
    transform: str = "identity"
    width: int = 0

    @classmethod
    def of(cls, text: str) -> "Division":
        """Parse an entry of a pipeline's file. Raises MisfitError."""
        found = TRANSFORM.fullmatch(text.strip())
        if found is None:
            if "(" in text:
                raise MisfitError(f"partition_by: {text!r}: expected a column, {_transforms()}")
            return cls(text.strip())
        name, width, column = found[1].rstrip("s"), int(found[2] or 0), found[3]
        if name not in (*TIMES, *WITH_WIDTH, "identity") or (name in WITH_WIDTH) != (width > 0):
            raise MisfitError(f"partition_by: {text!r}: expected a column, {_transforms()}")
        return cls(column, name, width)

    def __str__(self) -> str:
        if self.transform == "identity":
            return self.column
        width = f"{self.width}, " if self.width else ""
        return f"{self.transform}({width}{self.column})"


def divisions_of(texts: Iterable[str], *, has_transforms: bool = True) -> tuple[Division, ...]:
    """Parse `partition_by`. Raises MisfitError, also for a transform where has_transforms is
    false."""
    found = tuple(Division.of(text) for text in texts)
    for one in found:
        if one.transform != "identity" and not has_transforms:
            raise MisfitError(f"partition_by: {one}: Delta takes column names only")
    return found


def same_divisions(given: Sequence[Division], table: Sequence[Division], title: str) -> None:
    """Raise MisfitError if the given divisions differ from the table's. An empty `given` is any."""
    if given and list(given) != list(table):
        has = ", ".join(map(str, table)) or "nothing"
        wanted = ", ".join(map(str, given))
        raise MisfitError(
            f"partition_by: given {wanted}, expected {has}: {title} is already divided by that"
        )


def _transforms() -> str:
    times = ", ".join(f"{name}(column)" for name in TIMES)
    return f"{times}, bucket(16, column) or truncate(10, column)"


# ---- a table -------------------------------------------------------------------------------------


class LakeTable(Protocol):
    """A Delta or Iceberg table as a pipeline uses it. query: the id in Spark's checkpoint."""

    def check(self, batch: "pa.Schema") -> None:
        """Check that rows of these columns can be written. Changes nothing. Raises MisfitError."""

    def divisions(self) -> Sequence[Division]:
        """Return the table's divisions, or those that it will be created with."""

    def is_done(self, query: str, batch_id: int) -> bool:
        """Return whether this batch of this query, or a later one, is in the table."""

    def write(self, rows: "DataFrame", query: str, batch_id: int) -> int:
        """Write and commit a batch that is not done. Return the number of rows. Creates the table
        and adds columns as needed. Raises MisfitError."""


def needs(module: str, kind: str) -> None:
    """Raise LakeMissingError unless the module is installed."""
    if importlib.util.find_spec(module) is None:
        raise LakeMissingError(
            f"{kind} tables need the package {module}, which is not installed: "
            + install_advice("lake")
        )


def by_tasks(
    rows: "DataFrame", write: "Callable[[Iterable[pa.RecordBatch]], Iterator[bytes]]"
) -> list[bytes]:
    """Return what `write` yields for each file, from all tasks that succeeded."""

    def written(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa

        for fact in _in_one_line(write(batches)):
            yield pa.RecordBatch.from_pydict({FILE_COLUMN: pa.array([fact], pa.binary())})

    found = rows.mapInArrow(written, f"{FILE_COLUMN} BINARY").collect()
    return [bytes(row[FILE_COLUMN]) for row in found]


def _in_one_line(facts: Iterator[bytes]) -> Iterator[bytes]:
    """Turn an error of a task into one line, without Python's and the JVM's stacks."""
    try:
        yield from facts
    except PenstockError:
        raise
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        raise LakeWriteError(f"writing files of a table: {text}") from error


def ordered(rows: "DataFrame", divisions: Sequence[Division], *, is_gathered: bool) -> "DataFrame":
    """Sort rows in each task by the divisions. is_gathered: with a partition's rows in one task."""
    if not divisions:
        return rows
    keys = [_key(rows, one) for one in divisions]
    if is_gathered:
        rows = _gathered(rows, keys)
    return rows.sortWithinPartitions(*keys)


def _gathered(rows: "DataFrame", keys: Sequence[Any]) -> "DataFrame":
    """Return the rows with those of equal keys in one task: as many tasks as the cluster has cores,
    and in a session of Spark Connect, which does not know that, as many as Spark's shuffles."""
    from pyspark.errors import PySparkException

    try:
        tasks = rows.sparkSession.sparkContext.defaultParallelism
    except (AttributeError, PySparkException):
        return rows.repartition(*keys)
    return rows.repartition(tasks, *keys)


def _key(rows: "DataFrame", one: Division) -> Any:
    """Return a column that is equal for rows of one partition, as far as Spark can compute it."""
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


# ---- do the rows fit -----------------------------------------------------------------------------


def added_fields(table: "pa.Schema", batch: "pa.Schema", title: str) -> "list[pa.Field]":
    """Return the fields of a batch that the table lacks, or lacks in part. title: the table's, for
    messages.

    Raises MisfitError if a column has another type, or if the batch lacks one that is never null.
    """
    added = []
    names = {name.lower(): name for name in table.names}
    seen: set[str] = set()
    for field in batch:
        _check_name(field, names, seen, title)
        kind = table.field(field.name).type if field.name in table.names else None
        if kind is None or _grows(kind, field.type, field.name, title):
            added.append(field)
    for field in table:
        if not field.nullable and field.name not in batch.names:
            raise MisfitError(f"column {field.name!r} of {title} is never null, and no row has it")
    return added


def _check_name(field: "pa.Field", names: dict[str, str], seen: set[str], title: str) -> None:
    low = field.name.lower()
    if low in seen:
        raise MisfitError(f"two columns have the name {field.name!r}")
    seen.add(low)
    if low in names and names[low] != field.name:
        raise MisfitError(f"column {field.name!r}: {title} has {names[low]!r}: write it like that")
    if str(field.type) == "null":
        raise MisfitError(f"column {field.name!r} has no type: cast its null to one")


def _grows(table: "pa.DataType", batch: "pa.DataType", path: str, title: str) -> bool:
    """Return whether the batch's type has fields that the table's type lacks. Raises
    MisfitError."""
    import pyarrow.types as of

    if of.is_struct(table) and of.is_struct(batch):
        names = {table.field(i).name: table.field(i).type for i in range(table.num_fields)}
        grows = False
        for field in (batch.field(i) for i in range(batch.num_fields)):
            known = names.get(field.name)
            if known is None:
                grows = True
            else:
                grows |= _grows(known, field.type, f"{path}.{field.name}", title)
        return grows
    if of.is_map(table) and of.is_map(batch):
        keys = _grows(table.key_type, batch.key_type, f"{path}.key", title)
        return _grows(table.item_type, batch.item_type, f"{path}.value", title) or keys
    if _is_list(table) and _is_list(batch):
        return _grows(table.value_type, batch.value_type, f"{path}.element", title)
    if not _fits(table, batch):
        raise MisfitError(
            f"column {path!r} is {batch}, and {table} in {title}: a column keeps its type; "
            "cast it in sql, or write to another table"
        )
    return False


def _is_list(kind: "pa.DataType") -> bool:
    import pyarrow.types as of

    return bool(of.is_list(kind) or of.is_large_list(kind))


def _fits(table: "pa.DataType", batch: "pa.DataType") -> bool:
    import pyarrow.types as of

    if of.is_timestamp(table) and of.is_timestamp(batch):
        return (table.tz is None) == (batch.tz is None)
    if of.is_decimal(table) and of.is_decimal(batch):
        return bool(table.scale == batch.scale and table.precision >= batch.precision)
    kinds = [str(kind).removeprefix("large_") for kind in (table, batch)]
    return kinds[0] == kinds[1] or kinds[0] in WIDER.get(kinds[1], ())


def arrow_schema(schema: Any) -> "pa.Schema":
    """Return the Arrow schema of a Spark schema. Everything in it may be null, or a later batch
    could not leave it out. Raises MisfitError for a type that tables do not have."""
    import pyarrow as pa
    from pyspark.errors import PySparkException, PySparkTypeError
    from pyspark.sql.pandas.types import to_arrow_type

    # Spark 4.1 knows no other zone.
    zone: dict[str, Any] = {}
    if "timezone" in signature(to_arrow_type).parameters:
        zone["timezone"] = "UTC"
    fields = []
    for field in schema.fields:
        try:
            if has_variant(field.dataType):
                raise PySparkTypeError("tables get a Variant as text, and none within a column")
            kind = to_arrow_type(field.dataType, **zone)
        except PySparkException:
            text = field.dataType.simpleString()
            raise MisfitError(
                f"column {field.name!r} is {text}, which tables do not have: cast it"
            ) from None
        fields.append(pa.field(field.name, _nullable(kind)))
    return pa.schema(fields)


def variants_as_text(rows: "DataFrame") -> "DataFrame":
    """Return the rows with the JSON of each column that is a Variant: deltalake and pyiceberg have
    no such type, and would write two binary fields."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import VariantType

    names = [f.name for f in rows.schema.fields if isinstance(f.dataType, VariantType)]
    if not names:
        return rows
    return rows.withColumns({name: F.to_json(F.col(f"`{name}`")) for name in names})


def has_variant(kind: Any) -> bool:
    """Return whether this type of Spark is or contains a Variant."""
    from pyspark.sql.types import ArrayType, MapType, StructType, VariantType

    if isinstance(kind, StructType):
        return any(has_variant(field.dataType) for field in kind.fields)
    if isinstance(kind, ArrayType):
        return has_variant(kind.elementType)
    if isinstance(kind, MapType):
        return has_variant(kind.valueType)
    return isinstance(kind, VariantType)


def _nullable(kind: "pa.DataType") -> "pa.DataType":
    """Return the type with everything in it nullable, except keys of maps."""
    import pyarrow as pa
    import pyarrow.types as of

    if of.is_struct(kind):
        inner = (kind.field(i) for i in range(kind.num_fields))
        return pa.struct([pa.field(one.name, _nullable(one.type)) for one in inner])
    if of.is_map(kind):
        return pa.map_(_nullable(kind.key_type), _nullable(kind.item_type))
    if _is_list(kind):
        return pa.list_(_nullable(kind.value_type))
    return kind


# ---- in a task -----------------------------------------------------------------------------------


def chunks(
    batches: "Iterable[pa.RecordBatch]", bytes_max: int = CHUNK_BYTES
) -> "Iterator[pa.Table]":
    """Return tables of about `bytes_max` bytes. The last one may be smaller; no rows, no chunk."""
    import pyarrow as pa

    held: list[Any] = []
    size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        held.append(batch)
        size += batch.nbytes
        if size >= bytes_max:
            yield pa.Table.from_batches(held)
            held, size = [], 0
    if held:
        yield pa.Table.from_batches(held)


def conformed(rows: "pa.Table", schema: "pa.Schema") -> "pa.Table":
    """Return the rows with the columns of a table, in its order and types; nulls for columns that
    the rows lack. The types must fit (`added_fields`)."""
    import pyarrow as pa

    columns = []
    for field in schema:
        if field.name in rows.column_names:
            column = rows.column(field.name)
            columns.append(column if column.type == field.type else column.cast(field.type))
        else:
            columns.append(pa.nulls(rows.num_rows, field.type))
    return pa.table(columns, schema=schema)


def codes_of(column: "pa.ChunkedArray") -> "tuple[np.ndarray[Any, Any], list[Any]]":
    """Return a number for each row, equal for equal values, and the values; null is a value too."""
    import numpy as np
    import pyarrow as pa

    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks)
    found = array.dictionary_encode(null_encoding="encode")
    return found.indices.to_numpy(zero_copy_only=False).astype(
        np.int64
    ), found.dictionary.to_pylist()


def pieces(
    rows: "pa.Table", columns: "Sequence[tuple[np.ndarray[Any, Any], list[Any]]]"
) -> "Iterator[tuple[int, pa.Table]]":
    """Return the rows of each partition: the index of one of its rows, and all its rows in order.
    columns: `codes_of` for each column that divides the table."""
    import numpy as np

    if not columns:
        yield 0, rows
        return
    code = np.zeros(rows.num_rows, dtype=np.int64)
    for codes, values in columns:
        code = code * len(values) + codes
        code = np.unique(code, return_inverse=True)[1]  # else many columns would overflow
    order = np.argsort(code, kind="stable")
    borders = np.flatnonzero(np.diff(code[order])) + 1
    is_sorted = bool((order == np.arange(len(order))).all())
    for part in np.split(order, borders):
        first = int(part[0])
        yield first, rows.slice(first, len(part)) if is_sorted else rows.take(part)


def local_path(place: str) -> str | None:
    """Return the path of a file: URL or plain path; None if it is not on this machine."""
    if "://" not in place and not place.startswith("file:"):
        return place
    found = urlsplit(place)
    return unquote(found.path) if found.scheme == "file" else None


def sync(paths: Iterable[str]) -> None:
    """Sync files and their directories to disk."""
    directories = set()
    for path in paths:
        sync_path(path)
        directories.add(os.path.dirname(path))
    for directory in sorted(directories):
        sync_path(directory)
