"""DeltaSink: a batch becomes one commit of a Delta table, by the package deltalake, without a jar.

    <table>/month=1/<query>-<batch>-<random>.parquet     written by tasks
    <table>/_delta_log/<version>.json                    one for each batch, written by the driver:
                                                         add ..., txn {appId: query, version: batch}

`txn` is Delta's application transaction, with Spark's query id and batch, as in Delta's own
streaming sink: a batch that the table has is not written again, and of two runs that commit the
same batch at once, one fails. The commit's info has `penstock.query` and `penstock.batch` too, for
people. New columns are added before that, in a commit of their own.

The log has statistics (rows, nulls, smallest and largest values), so that readers skip files.

A table is refused if its writers must do more than add rows: column mapping, constraints, generated
columns, identity columns, row tracking.
"""

import json
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from penstock.clock import SystemClock
from penstock.spark.lake_table import (
    BATCH,
    QUERY,
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
    import pyarrow as pa
    from pyspark.sql import DataFrame

QUERY_LETTERS: Final = 8  # of the query's id, in names of files
STATISTICS_COLUMNS: Final = 32  # Delta's default
TEXT_MAX: Final = 128  # longer smallest and largest texts are left out of the log
DIRECTORY_LETTERS: Final = 120  # of a value, in names of directories
# Features that need nothing of a writer that only adds rows.
FEATURES: Final = frozenset(
    ("appendOnly", "invariants", "timestampNtz", "deletionVectors", "changeDataFeed",
     "v2Checkpoint", "domainMetadata", "vacuumProtocolCheck", "typeWidening")
)  # fmt: skip
WRITER_MAX: Final = 4  # versions above 2 allow constraints, change data, generated columns
WRITER_FEATURES: Final = 7
NULL_DIRECTORY: Final = "__HIVE_DEFAULT_PARTITION__"


class DeltaSink(LakeTable):
    """One table. uri: a directory, or a URL of object storage. storage: deltalake's options for
    that. Raises LakeMissingError and MisfitError."""

    def __init__(
        self, uri: str, *, partition_by: Sequence[str] = (),
        storage: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        needs("deltalake", "Delta")
        self._uri = uri.rstrip("/")
        self._storage = dict(storage or {}) or None
        self._given = divisions_of(partition_by, has_transforms=False)
        self._title = f"delta {uri}"

    def check(self, batch: "pa.Schema") -> None:
        self._check_columns(batch)
        table = self._opened()
        if table is not None:
            self._check_table(table)
        added_fields(_schema([]) if table is None else _arrow(table), batch, self._title)

    def divisions(self) -> Sequence[Division]:
        table = self._opened()
        return self._given if table is None else _divisions(table)

    def is_done(self, query: str, batch_id: int) -> bool:
        table = self._opened()
        last = None if table is None else table.transaction_version(query)
        return last is not None and last >= batch_id

    def write(self, rows: "DataFrame", query: str, batch_id: int) -> int:
        batch = arrow_schema(rows.schema)
        table = self._ready(batch)
        writer = DeltaFiles(
            uri=self._uri,
            storage=self._storage,
            schema=_arrow(table),
            partition_by=tuple(table.metadata().partition_columns),
            prefix=f"{query[:QUERY_LETTERS]}-{batch_id:08d}",
        )
        files = [json.loads(raw) for raw in by_tasks(rows, writer.write)]
        if files:
            self._commit(table, files, query, batch_id)
        return sum(file["rows"] for file in files)

    # ---- the table ---------------------------------------------------------------------------

    def _opened(self) -> Any:
        from deltalake import DeltaTable

        if not DeltaTable.is_deltatable(self._uri, self._storage):
            return None
        return DeltaTable(self._uri, storage_options=self._storage)

    def _ready(self, batch: "pa.Schema") -> Any:
        """Return the table with all columns of the batch; creates it if there is none."""
        from deltalake import DeltaTable, Schema

        self._check_columns(batch)
        table = self._opened()
        if table is None:
            DeltaTable.create(
                self._uri, Schema.from_arrow(batch), mode="ignore",
                partition_by=[one.column for one in self._given], storage_options=self._storage,
            )  # fmt: skip
            table = self._opened()
        self._check_table(table)
        added = added_fields(_arrow(table), batch, self._title)
        if added:
            table.alter.add_columns(Schema.from_arrow(_schema(added)).fields)
            table = self._opened()
        return table

    def _check_columns(self, batch: "pa.Schema") -> None:
        for one in self._given:
            if one.column in batch.names and str(batch.field(one.column).type) == "binary":
                raise MisfitError(f"partition_by: column {one.column!r} is binary: cast it")

    def _check_table(self, table: Any) -> None:
        same_divisions(self._given, _divisions(table), self._title)
        protocol = table.protocol()
        features = set(protocol.writer_features or ())
        constraints = [
            name for name in table.metadata().configuration if name.startswith("delta.constraints.")
        ]
        words = ("delta.invariants", "delta.generationExpression")
        fields = table.schema().fields
        generated = [one.name for one in fields if any(word in one.metadata for word in words)]
        unknown = sorted(features - FEATURES)
        if protocol.min_writer_version not in (*range(WRITER_MAX + 1), WRITER_FEATURES) or unknown:
            needed = ", ".join(unknown) or f"writer version {protocol.min_writer_version}"
            raise MisfitError(f"{self._title} needs a writer with {needed}, which this one lacks")
        if constraints or generated:
            found = ", ".join([name.removeprefix("delta.constraints.") for name in constraints])
            found = found or ", ".join(generated)
            raise MisfitError(f"{self._title} has constraints or generated columns ({found}), "
                              "which this writer does not check")  # fmt: skip

    def _commit(self, table: Any, files: list[dict[str, Any]], query: str, batch_id: int) -> None:
        from deltalake import CommitProperties, Transaction
        from deltalake.transaction import AddAction

        now_ms = SystemClock().wall_ms()
        added = [
            AddAction(
                file["path"], file["size"], file["partition"], now_ms, True,
                json.dumps(file["statistics"]),
            )
            for file in files
        ]  # fmt: skip
        version = table.version()
        table.create_write_transaction(
            added, "append", table.schema(), table.metadata().partition_columns,
            commit_properties=CommitProperties(
                custom_metadata={QUERY: query, BATCH: str(batch_id)},
                app_transactions=[Transaction(query, batch_id)],
            ),
        )  # fmt: skip
        self._sync_log(version)

    def _sync_log(self, version: int) -> None:
        """Sync commits after this version, if the table is on this machine."""
        local = local_path(self._uri)
        if local is not None:
            log = Path(local) / "_delta_log"
            sync(str(path) for path in log.glob("*.json") if _version(path) > version)


def _version(path: Path) -> int:
    return int(path.stem) if path.stem.isdecimal() else -1


def _arrow(table: Any) -> "pa.Schema":
    import pyarrow as pa

    return pa.schema(table.schema().to_arrow())


def _schema(fields: "list[pa.Field]") -> "pa.Schema":
    import pyarrow as pa

    return pa.schema(fields)


def _divisions(table: Any) -> tuple[Division, ...]:
    return tuple(Division(name) for name in table.metadata().partition_columns)


# ---- in a task -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class DeltaFiles:
    """What a task needs to write files of a table. schema: the table's."""

    uri: str
    storage: Mapping[str, str] | None
    schema: "pa.Schema"
    partition_by: tuple[str, ...]
    prefix: str

    def write(self, batches: "Iterable[pa.RecordBatch]") -> Iterator[bytes]:
        """Write the rows. Yield {path, size, rows, partition, statistics} of each file, as JSON."""
        for chunk in chunks(batches):
            rows = conformed(chunk, self.schema)
            columns = [codes_of(rows.column(name)) for name in self.partition_by]
            for first, part in pieces(rows, columns):
                yield self._file(rows, first, part)

    def _file(self, rows: "pa.Table", first: int, part: "pa.Table") -> bytes:
        values = {name: rows.column(name)[first].as_py() for name in self.partition_by}
        texts = {name: partition_text(value) for name, value in values.items()}
        directory = "".join(
            f"{quote(name, safe='')}={directory_text(text)}/" for name, text in texts.items()
        )
        path = f"{directory}{self.prefix}-{uuid.uuid4().hex}.parquet"
        data = part.drop_columns(list(self.partition_by))
        size = self._put(path, data)
        statistics = statistics_of(data)
        fact = {
            "path": path, "size": size, "rows": part.num_rows, "partition": texts,
            "statistics": statistics,
        }  # fmt: skip
        return json.dumps(fact).encode()

    def _put(self, path: str, data: "pa.Table") -> int:
        import pyarrow.parquet as pq

        local = local_path(self.uri)
        if local is not None:
            target = f"{local}/{path}"
            os.makedirs(os.path.dirname(target), exist_ok=True)
            pq.write_table(data, target, compression="snappy")
            sync([target])
            return os.path.getsize(target)
        needs("deltalake", "Delta")
        from deltalake.fs import DeltaStorageHandler

        storage = None if self.storage is None else dict(self.storage)
        handler = DeltaStorageHandler(self.uri, storage)
        with handler.open_output_stream(path) as stream:
            pq.write_table(data, stream, compression="snappy")
        (info,) = handler.get_file_info([path])
        return int(info.size)


def partition_text(value: object) -> str | None:
    """Return a partition's value as Delta's log has it."""
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S.%f")
    return value.isoformat() if isinstance(value, date) else str(value)


def directory_text(text: str | None) -> str:
    """Return the name of a partition's directory. It is for people: the log says what is in
    a file."""
    return NULL_DIRECTORY if text is None else quote(text, safe=" ")[:DIRECTORY_LETTERS]


def statistics_of(data: "pa.Table") -> dict[str, Any]:
    """Return the statistics for Delta's log, of columns that are not nested."""
    import pyarrow.compute as pc
    import pyarrow.types as of

    least, most, nulls = {}, {}, {}
    for name in data.column_names[:STATISTICS_COLUMNS]:
        column = data.column(name)
        if of.is_nested(column.type):
            continue
        nulls[name] = column.null_count
        kind = column.type
        is_ordered = of.is_integer(kind) or of.is_date(kind) or of.is_timestamp(kind)
        if not (is_ordered or of.is_string(kind) or of.is_floating(kind)):
            continue
        if of.is_floating(kind) and not pc.all(pc.is_finite(column), skip_nulls=True).as_py():
            continue
        bounds = pc.min_max(column).as_py()
        low, high = bounds["min"], bounds["max"]
        if low is None or (isinstance(high, str) and max(len(low), len(high)) > TEXT_MAX):
            continue
        least[name], most[name] = _bound(low), _bound(high, is_most=True)
    return {
        "numRecords": data.num_rows, "minValues": least, "maxValues": most, "nullCount": nulls,
    }  # fmt: skip


def _bound(value: Any, *, is_most: bool = False) -> Any:
    """Return a bound for the log. Times are rounded outwards to milliseconds, as Delta asks."""
    if isinstance(value, datetime):
        if is_most and value.microsecond % 1000:
            value += timedelta(milliseconds=1)
        text = value.strftime("%Y-%m-%dT%H:%M:%S.") + f"{value.microsecond // 1000:03d}"
        return text if value.tzinfo is None else text + "Z"
    return value.isoformat() if isinstance(value, date) else value
