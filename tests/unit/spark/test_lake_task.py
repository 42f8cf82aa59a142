"""What a task does with its rows for a table: chunks, columns, pieces of one partition."""

from pathlib import Path

import pytest

pa = pytest.importorskip("pyarrow")

from penstock.spark.lake_table import (  # noqa: E402 - only where Arrow is
    chunks,
    codes_of,
    conformed,
    local_path,
    pieces,
    sync,
)


def test_a_chunk_is_never_much_more_than_its_bytes() -> None:
    batches = [pa.record_batch({"a": pa.array(range(1000), pa.int64())}) for _ in range(10)]
    empty = batches[0].slice(0, 0)
    found = list(chunks([empty, *batches, empty], 20_000))
    assert [chunk.num_rows for chunk in found] == [3000, 3000, 3000, 1000]
    assert list(chunks([empty])) == []


def test_rows_get_the_columns_of_the_table() -> None:
    schema = pa.schema(
        [
            ("b", pa.int64()),
            ("a", pa.string()),
            ("s", pa.struct([("x", pa.int64()), ("y", pa.int8())])),
        ]
    )
    rows = pa.table({"s": [{"x": 1}, None], "b": pa.array([1, 2], pa.int16())})
    assert conformed(rows, schema).to_pylist() == [
        {"b": 1, "a": None, "s": {"x": 1, "y": None}}, {"b": 2, "a": None, "s": None},
    ]  # fmt: skip
    assert conformed(rows, schema).schema == schema


@pytest.mark.parametrize("is_sorted", [True, False])
def test_each_partition_is_one_piece(is_sorted: bool) -> None:
    months = [1, 1, 2, 2, None] if is_sorted else [2, None, 1, 2, 1]
    rows = pa.table({"month": months, "carrier": ["a", "a", "a", "b", "b"], "row": range(5)})
    columns = [codes_of(rows.column(name)) for name in ("month", "carrier")]
    found = {}
    for first, part in pieces(rows, columns):
        (key,) = {(row["month"], row["carrier"]) for row in part.to_pylist()}
        assert key == (rows["month"][first].as_py(), rows["carrier"][first].as_py())
        assert key not in found
        found[key] = part["row"].to_pylist()
    expected: dict[object, list[int]] = {}
    for row in rows.to_pylist():
        expected.setdefault((row["month"], row["carrier"]), []).append(row["row"])
    assert found == expected


def test_many_columns_of_many_values_do_not_overflow() -> None:
    rows = pa.table({f"c{i}": [(row * 7 + i) % 5000 for row in range(5000)] for i in range(9)})
    parts = list(pieces(rows, [codes_of(rows.column(name)) for name in rows.column_names]))
    assert len(parts) == 5000


def test_without_partitions_it_is_one_piece() -> None:
    rows = pa.table({"a": [1, 2]})
    assert [(first, part.num_rows) for first, part in pieces(rows, [])] == [(0, 2)]


def test_which_places_are_of_this_machine(tmp_path: Path) -> None:
    assert local_path("/a/b") == "/a/b"
    assert local_path("file:///a/b%20c") == "/a/b c"
    assert local_path("s3://bucket/a") is None
    (tmp_path / "f").write_text("x")
    sync([str(tmp_path / "f")])
    with pytest.raises(FileNotFoundError):
        sync([str(tmp_path / "g")])
