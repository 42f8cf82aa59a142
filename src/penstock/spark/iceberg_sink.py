"""IcebergSink: a batch becomes one snapshot of an Iceberg table, by the package pyiceberg.

Tasks write data files as the table's metadata asks, and describe each one for its manifest. The
driver commits all of them in one transaction, with any new columns:

    snapshot     appended files; summary  penstock.query = <query>, penstock.batch = <batch>
    property     penstock.batch.<query> = <batch>       of the table

Before a commit, and before each retry, the driver looks for both: a batch that is there is not
written again. The property is for tables whose snapshots are expired. pyiceberg's own retries are
off, because they do not look.

The catalog is any of pyiceberg's, by the properties in [catalog]; without a type or uri it is an
SQLite database in the warehouse's directory, `catalog.db`, beside the tables.
"""

import os
import pickle
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import PenstockError
from penstock.spark.file_sink import absolute
from penstock.spark.lake_table import (
    BATCH,
    QUERY,
    TIMES,
    Division,
    LakeTable,
    MisfitError,
    added_fields,
    arrow_schema,
    by_tasks,
    chunks,
    codes_of,
    conformed,
    divisions_of,
    local_path,
    needs,
    pieces,
    same_divisions,
    sync,
)

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from pyspark.sql import DataFrame

CATALOG: Final = "penstock"  # the name of a catalog without one
WAREHOUSE: Final = "warehouse"
DATABASE: Final = "catalog.db"
SQLITE: Final = "sqlite:///"
TRIES: Final = 8  # of a commit, while others commit to the same table
RETRIES: Final = "commit.retry.num-retries"  # a property of tables that pyiceberg reads


class IcebergCommitError(PenstockError):
    """All attempts to commit collided with other commits to the table."""


class IcebergSink(LakeTable):
    """One table. name: "namespace.table". catalog: pyiceberg's properties. Raises LakeMissingError
    and MisfitError."""

    def __init__(
        self, name: str, *, partition_by: Sequence[str] = (),
        catalog: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        needs("pyiceberg", "Iceberg")
        parts = name.split(".")
        if len(parts) < 2 or not all(parts):
            raise MisfitError(f'iceberg: given {name!r}, expected "namespace.table"')
        self._name = tuple(parts)
        self._title = f"iceberg {name}"
        self._given = divisions_of(partition_by)
        self._check_divisions(self._given)
        self._properties = catalog_properties(catalog or {})
        if len(parts) > 2 and self._properties.get("type") == "sql":
            raise MisfitError(
                f'iceberg: given {name!r}, expected "namespace.table": namespaces of a catalog of '
                "type sql have one name"
            )
        self._catalog_kept: Any = None

    def check(self, batch: "pa.Schema") -> None:
        import pyarrow as pa

        table = self._opened()
        if table is not None:
            self._check_divisions(_divisions(table.metadata))
            same_divisions(self._given, _divisions(table.metadata), self._title)
        there = pa.schema([]) if table is None else _arrow(table.schema())
        added_fields(there, batch, self._title)

    def divisions(self) -> Sequence[Division]:
        table = self._opened()
        return self._given if table is None else _divisions(table.metadata)

    def is_done(self, query: str, batch_id: int) -> bool:
        table = self._opened()
        return table is not None and _has_batch(table, query, batch_id)

    def write(self, rows: "DataFrame", query: str, batch_id: int) -> int:
        batch = arrow_schema(rows.schema)
        table = self._opened() or self._made(batch)
        _, metadata = self._evolved(table, batch)
        writer = IcebergFiles(
            metadata=metadata.model_copy(
                update={"snapshots": [], "snapshot_log": [], "metadata_log": [], "refs": {}}
            ),
            io=table.io,
        )
        files = [pickle.loads(raw) for raw in by_tasks(rows, writer.write)]  # noqa: S301
        if not files:
            return 0
        for _ in range(TRIES):
            if self._commit(table, batch, files, query, batch_id):
                return sum(file.record_count for file in files)
            table = self._opened()
            if _has_batch(table, query, batch_id):
                return 0
        raise IcebergCommitError(
            f"{self._title}: {TRIES} commits in a row collided with other commits to the table"
        )

    # ---- the table -------------------------------------------------------------------------------

    def _check_divisions(self, divisions: Sequence[Division]) -> None:
        columns = [one.column for one in divisions]
        for name in columns:
            if columns.count(name) > 1:
                raise MisfitError(f"partition_by: {self._title}: column {name!r} is given twice")

    def _catalog(self) -> Any:
        from pyiceberg.catalog import load_catalog

        if self._catalog_kept is None:
            properties = dict(self._properties)
            database = self._database()
            if database is not None:
                os.makedirs(os.path.dirname(database), exist_ok=True)
            self._catalog_kept = load_catalog(properties.pop("name", CATALOG), **properties)
        return self._catalog_kept

    def _database(self) -> str | None:
        """Return the file of a catalog that this sink made, or None for any other."""
        path = self._properties.get("uri", "").removeprefix(SQLITE)
        return path if path.endswith(f"/{DATABASE}") and path.startswith("/") else None

    def _opened(self) -> Any:
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        database = self._database()
        if database is not None and not os.path.exists(database):
            return None  # a check creates no database
        try:
            return self._catalog().load_table(self._name)
        except (NoSuchNamespaceError, NoSuchTableError):
            return None

    def _made(self, batch: "pa.Schema") -> Any:
        """Create the table with its partitions, at once or not at all."""
        from pyiceberg.exceptions import TableAlreadyExistsError

        catalog = self._catalog()
        catalog.create_namespace_if_not_exists(self._name[:-1])
        try:
            with (
                catalog.create_table_transaction(self._name, batch) as transaction,
                transaction.update_spec() as spec,
            ):
                for one in self._given:
                    title = None if one.transform == "identity" else f"{one.column}_{one.transform}"
                    spec.add_field(one.column, _transform(one), title or one.column)
        except TableAlreadyExistsError:
            pass
        return self._opened()

    def _evolved(self, table: Any, batch: "pa.Schema") -> tuple[Any, Any]:
        """Return a transaction that adds new columns, and the metadata as it will be."""
        import pyarrow as pa

        same_divisions(self._given, _divisions(table.metadata), self._title)
        added = added_fields(_arrow(table.schema()), batch, self._title)
        transaction = table.transaction()
        if added:
            with transaction.update_schema() as update:
                update.union_by_name(pa.schema(added))
        return transaction, transaction.table_metadata

    def _commit(
        self, table: Any, batch: "pa.Schema", files: list[Any], query: str, batch_id: int
    ) -> bool:
        """Commit, and return True; return False if another commit came first."""
        from pyiceberg.exceptions import CommitFailedException

        kept = table.metadata
        table.metadata = kept.model_copy(update={"properties": {**kept.properties, RETRIES: "0"}})
        transaction, _ = self._evolved(table, batch)
        transaction.set_properties({f"{BATCH}.{query}": str(batch_id)})
        summary = {QUERY: query, BATCH: str(batch_id)}
        with transaction.update_snapshot(snapshot_properties=summary).fast_append() as append:
            for file in files:
                append.append_data_file(file)
        try:
            committed = transaction.commit_transaction()
        except CommitFailedException:
            return False
        _sync_metadata(committed)
        return True


def catalog_properties(given: Mapping[str, str]) -> dict[str, str]:
    """Return the properties for pyiceberg. See the head of this module."""
    found = dict(given)
    warehouse = found.get("warehouse")
    if "type" not in found and "uri" not in found and "py-catalog-impl" not in found:
        root = absolute(warehouse or WAREHOUSE)
        if "://" in root:
            raise MisfitError(
                f"[catalog]: warehouse {root} is not on this machine: give type and uri of the "
                "catalog"
            )
        found |= {
            "type": "sql",
            "uri": f"{SQLITE}{root}/{DATABASE}",
            "warehouse": f"file://{root}",
        }
    elif warehouse is not None and "://" not in warehouse and warehouse.startswith((".", "/")):
        found["warehouse"] = f"file://{absolute(warehouse)}"
    return found


def _has_batch(table: Any, query: str, batch_id: int) -> bool:
    """Return whether the property or a snapshot of the query has the batch."""
    last = table.metadata.properties.get(f"{BATCH}.{query}")
    if last is not None and int(last) >= batch_id:
        return True
    return any(
        snapshot.summary is not None
        and snapshot.summary.get(QUERY) == query
        and int(snapshot.summary.get(BATCH, "-1")) >= batch_id
        for snapshot in table.metadata.snapshots
    )


def _arrow(schema: Any, *, has_ids: bool = False) -> "pa.Schema":
    """Return the Arrow schema. has_ids: with the fields' numbers, which files need."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    return schema_to_pyarrow(schema, include_field_ids=has_ids)


def _divisions(metadata: Any) -> tuple[Division, ...]:
    found = []
    for field in metadata.spec().fields:
        column = metadata.schema().find_column_name(field.source_id)
        name, _, width = str(field.transform).partition("[")
        found.append(Division(column, name, int(width.rstrip("]") or 0)))
    return tuple(one for one in found if one.transform != "void")


def _transform(one: Division) -> Any:
    from pyiceberg.transforms import parse_transform

    return parse_transform(f"{one.transform}[{one.width}]" if one.width else one.transform)


def _sync_metadata(table: Any) -> None:
    """Sync what a commit wrote on this machine: metadata, manifests, their list. Tasks synced data
    files."""
    paths = [table.metadata_location]
    snapshot = table.current_snapshot()
    if snapshot is not None:
        paths.append(snapshot.manifest_list)
        paths += [
            manifest.manifest_path
            for manifest in snapshot.manifests(table.io)
            if manifest.added_snapshot_id == snapshot.snapshot_id
        ]
    sync(local for local in map(local_path, paths) if local is not None)


# ---- in a task -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class IcebergFiles:
    """What a task needs to write files of a table: its metadata without history, and access to its
    files. pyiceberg's `write_file` is not used, because it writes null lists as empty ones."""

    metadata: Any
    io: Any

    def write(self, batches: "Iterable[pa.RecordBatch]") -> Iterator[bytes]:
        """Write the rows. Yield pyiceberg's DataFile of each file, pickled."""
        needs("pyiceberg", "Iceberg")
        schema = _arrow(self.metadata.schema(), has_ids=True)
        for chunk in chunks(batches):
            rows = conformed(chunk, schema)
            columns = [self._codes(rows, field) for field in self.metadata.spec().fields]
            for first, part in pieces(rows, columns):
                values = [kept[codes[first]] for codes, kept in columns]
                yield pickle.dumps(self._file(part, values))

    def _codes(self, rows: "pa.Table", field: Any) -> "tuple[np.ndarray[Any, Any], list[Any]]":
        """Return, for one field of the partition, a number for each row, equal for rows of one
        partition, and the partitions' values as Iceberg keeps them."""
        import numpy as np

        source = self.metadata.schema().find_field(field.source_id)
        column = _nested(rows, self.metadata.schema().find_column_name(field.source_id))
        codes, values = codes_of(_plain(column, str(field.transform)))
        transform = field.transform.transform(source.field_type)
        numbers: dict[Any, int] = {}
        of_value = [numbers.setdefault(transform(value), len(numbers)) for value in values]
        return np.array(of_value, dtype=np.int64)[codes], list(numbers)

    def _file(self, part: "pa.Table", values: list[Any]) -> Any:
        """Write one file and return its DataFile. values: the partition's, as Iceberg keeps
        them."""
        from pyiceberg.io.pyarrow import ParquetFormatModel
        from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
        from pyiceberg.partitioning import PartitionFieldValue, PartitionKey
        from pyiceberg.table.locations import load_location_provider
        from pyiceberg.typedef import Record

        metadata, schema, spec = self.metadata, self.metadata.schema(), self.metadata.spec()
        key = None
        if spec.fields:
            pairs = zip(spec.fields, values, strict=True)
            named = [PartitionFieldValue(field=field, value=value) for field, value in pairs]
            key = PartitionKey(field_values=named, partition_spec=spec, schema=schema)
        places = load_location_provider(metadata.location, metadata.properties)
        path = places.new_data_location(f"{uuid.uuid4()}.parquet", key)
        output = self.io.new_output(path)
        writer = ParquetFormatModel().create_writer(output, schema, metadata.properties)
        with writer:
            writer.write(part)
        local = local_path(path)
        if local is not None:
            sync([local])
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=path,
            file_format=FileFormat.PARQUET,
            partition=Record() if key is None else key.partition,
            file_size_in_bytes=len(output),
            sort_order_id=None,
            spec_id=metadata.default_spec_id,
            equality_ids=None,
            key_metadata=None,
            **writer.result().to_serialized_dict(),
        )


def _nested(rows: "pa.Table", name: str) -> "pa.ChunkedArray":
    """Return a column, or a field of structs: "a.b"."""
    import pyarrow.compute as pc

    first, *rest = name.split(".")
    column = rows.column(first)
    return pc.struct_field(column, rest) if rest else column


def _plain(column: "pa.ChunkedArray", transform: str) -> "pa.ChunkedArray":
    """Return the column as Iceberg's transforms take it: times as numbers, cut to the transform's
    unit, so that there are few different ones."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.types as of

    kind = column.type
    if of.is_timestamp(kind):
        if transform in TIMES:
            column = pc.floor_temporal(column, unit=transform)
        return column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
    if of.is_date(kind):
        return column.cast(pa.date32()).cast(pa.int32())
    return column
