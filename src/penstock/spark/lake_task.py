"""What a task does with its rows for a table of a lake: chunks, pieces of one partition, files.

    batches of Arrow  ->  chunks of CHUNK_BYTES  ->  columns as the table has them  ->  a piece for
    each partition  ->  a Parquet file each, written and synced; the driver is told what is in it

A task holds one chunk, whatever the batch's size. Rows come sorted by partition, so a partition has
about one file of a task, and one more for each chunk that it goes on in.

A file that no commit names is nobody's: that of an attempt that failed, of a run that was killed.
Names are random, so a second attempt never meets a first one's file.

Not here: Spark, the table's log (delta_sink.py, iceberg_sink.py). This runs on executors.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

CHUNK_BYTES: Final = 64 << 20  # as Arrow has it; a file is mostly a third of that


def chunks(
    batches: "Iterable[pa.RecordBatch]", bytes_max: int = CHUNK_BYTES
) -> "Iterator[pa.Table]":
    """Batches together; the last chunk may be small. No rows: no chunk."""
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
    """With the columns of a table, in its order and of its types; nulls where the rows have none.
    The types fit (lake_schema.py)."""
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
    """For each row a number, the same for the same value, and the values; null is one too."""
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
    """The rows of each partition: the number of one of its rows, and all of them in their order.
    columns: of what divides them, as `codes_of` gives it."""
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
    """Of a path or a file: URL that of this machine; None: it is elsewhere."""
    if "://" not in place and not place.startswith("file:"):
        return place
    found = urlsplit(place)
    return unquote(found.path) if found.scheme == "file" else None


def sync(paths: Iterable[str]) -> None:
    """Files, and the directories that they are in: safe when this returns."""
    directories = set()
    for path in paths:
        _sync(path)
        directories.add(os.path.dirname(path))
    for directory in sorted(directories):
        _sync(directory)


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
