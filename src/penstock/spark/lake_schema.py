"""Whether the rows of a batch fit a table of a lake, what it gets of them, how it is divided.

A table keeps the types of its columns. What a batch has beside them is added to the table, as
columns, or as fields of a struct; what it has not is null. A value may be narrower than its column,
such as an int for a long, and is widened. Anything else is a MisfitError that names the column.

    partition_by = ["month", "day(timestamp)", "bucket(16, carrier)", "truncate(10, name)"]

Plain names for Delta; Iceberg has transforms too: year, month, day, hour, bucket, truncate.

Types are Arrow's throughout: Spark, Delta and Iceberg all come to those.

Not here: Spark, tables (delta_sink.py, iceberg_sink.py), rows (lake_task.py).
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import PenstockError

if TYPE_CHECKING:
    import pyarrow as pa

TRANSFORM: Final = re.compile(r"(\w+)\(\s*(?:(\d+)\s*,\s*)?([^(),]+?)\s*\)")
TIMES: Final = ("year", "month", "day", "hour")
WITH_WIDTH: Final = ("bucket", "truncate")
# What a column may be given that is wider than the value: by the names of Arrow's types.
WIDER: Final = {
    "int8": ("int16", "int32", "int64"), "int16": ("int32", "int64"), "int32": ("int64",),
    "float": ("double",),
}  # fmt: skip


class MisfitError(PenstockError):
    """Rows do not fit a table: which column, what the table has, and what came."""


@dataclass(frozen=True, slots=True)
class Division:
    """One thing that a table is divided by. transform: "identity" or an Iceberg one; width: of a
    bucket (how many there are) or truncate (letters, or steps of a number), else 0."""

    column: str
    transform: str = "identity"
    width: int = 0

    @classmethod
    def of(cls, text: str) -> "Division":
        """As it stands in a pipeline's file. MisfitError: it is none."""
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
    """Of `partition_by`. MisfitError; also for a transform where there are none."""
    found = tuple(Division.of(text) for text in texts)
    for one in found:
        if one.transform != "identity" and not has_transforms:
            raise MisfitError(f"partition_by: {one}: Delta has columns alone, Iceberg such too")
    return found


def same_divisions(given: Sequence[Division], table: Sequence[Division], title: str) -> None:
    """MisfitError: they are not those of a table that is there. None given is any."""
    if given and list(given) != list(table):
        has = ", ".join(map(str, table)) or "nothing"
        told = ", ".join(map(str, given))
        raise MisfitError(
            f"partition_by: given {told}, expected {has}: {title} is divided by that already"
        )


def added_fields(table: "pa.Schema", batch: "pa.Schema", title: str) -> "list[pa.Field]":
    """The fields of a batch that a table has not, or not whole. title: the table's, for messages.
    MisfitError: a column has another type; or must have a value, and the batch has no such one."""
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
    """Whether the batch's type has fields which that of the table has not. MisfitError."""
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


def _transforms() -> str:
    times = ", ".join(f"{name}(column)" for name in TIMES)
    return f"{times}, bucket(16, column) or truncate(10, column)"


def arrow_schema(schema: Any) -> "pa.Schema":
    """Of a Spark schema; whatever is in it may be null, or a later batch could not leave it out.
    MisfitError: it has a type that tables have not."""
    import pyarrow as pa
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_type

    fields = []
    for field in schema.fields:
        try:
            kind = to_arrow_type(field.dataType, timezone="UTC")
        except PySparkException:
            text = field.dataType.simpleString()
            raise MisfitError(
                f"column {field.name!r} is {text}, which no table of a lake has: cast it"
            ) from None
        fields.append(pa.field(field.name, _nullable(kind)))
    return pa.schema(fields)


def _nullable(kind: "pa.DataType") -> "pa.DataType":
    """The type, with whatever is in it nullable, but the keys of maps."""
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
