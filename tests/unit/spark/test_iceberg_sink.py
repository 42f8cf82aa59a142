"""Iceberg tables, written by tasks that run here: snapshots, once, catalogs."""

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("pyiceberg")
pytest.importorskip("pyspark")

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.spark import iceberg_sink
from penstock.spark.iceberg_sink import IcebergSink, catalog_properties
from penstock.spark.lake_table import LakeMissingError, MisfitError
from tests.unit.spark.lake_stand_in import rows_of, without_spark


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    without_spark(monkeypatch, iceberg_sink)


def sink_of(directory: Path, *partition_by: str) -> IcebergSink:
    return IcebergSink("a.t", partition_by=partition_by, catalog={"warehouse": str(directory)})


def test_a_batch_is_written_once(tmp_path: Path) -> None:
    sink = sink_of(tmp_path, "month")
    one = pa.table({"row": [1, 2, 3], "month": [1, None, 2]})
    two = pa.table({"row": [4], "month": [1]})
    assert not sink.is_done("q", 0)
    sink.check(one.schema)
    assert list(tmp_path.iterdir()) == []  # whoever only looks makes nothing
    assert sink.write(rows_of(one, two), "q", 0) == 4  # type: ignore[arg-type]
    assert (sink.is_done("q", 0), sink.is_done("q", 1), sink.is_done("r", 0)) == (
        True,
        False,
        False,
    )
    found = sink._opened()
    assert sorted(found.scan().to_arrow()["row"].to_pylist()) == [1, 2, 3, 4]
    assert found.inspect.files().num_rows == 4  # task one: three partitions; task two: one
    # A second sink, another process perhaps, finds all of it.
    assert sink_of(tmp_path).is_done("q", 0)
    assert [str(part) for part in sink_of(tmp_path).divisions()] == ["month"]


def test_an_empty_batch_commits_nothing(tmp_path: Path) -> None:
    sink = sink_of(tmp_path)
    assert sink.write(rows_of(pa.table({"row": pa.array([], pa.int64())})), "q", 0) == 0  # type: ignore[arg-type]
    assert sink._opened().current_snapshot() is None


def test_a_field_of_a_struct_divides(tmp_path: Path) -> None:
    sink = sink_of(tmp_path, "truncate(1, s.name)")
    rows = pa.table({"s": [{"name": "ab"}, {"name": "ac"}, {"name": "b"}, None]})
    assert sink.write(rows_of(rows), "q", 0) == 4  # type: ignore[arg-type]
    assert sink._opened().inspect.files().num_rows == 3


def test_what_is_nested_stands_in_the_files_as_it_came(tmp_path: Path) -> None:
    """Null lists too, of which pyiceberg's own writer makes empty ones."""
    lists = [None, [{"x": "a"}], [], [{"x": None}, {"x": "b"}]]
    rows = pa.table({
        "part": [1, 1, 2, 2], "list": lists, "s": [{"l": one} for one in lists],
        "m": pa.array([None, [("k", 1)], [], [("l", None)]], pa.map_(pa.string(), pa.int64())),
    })  # fmt: skip
    sink = sink_of(tmp_path, "part")
    assert sink.write(rows_of(rows), "q", 0) == 4  # type: ignore[arg-type]
    files = sorted(tmp_path.rglob("*.parquet"))
    assert len(files) == 2
    found = [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]
    assert sorted(found, key=str) == sorted(rows.to_pylist(), key=str)
    field = pq.ParquetFile(files[0]).schema_arrow.field("list").type.value_type.field(0)
    assert field.metadata[b"PARQUET:field_id"].isdigit()


def test_the_catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert catalog_properties({}) == {
        "type": "sql", "uri": f"sqlite:///{tmp_path}/warehouse/catalog.db",
        "warehouse": f"file://{tmp_path}/warehouse",
    }  # fmt: skip
    rest = {"uri": "https://there", "warehouse": "s3://lake", "token": "t"}
    assert catalog_properties(rest) == rest
    assert catalog_properties({"type": "sql", "uri": "sqlite:///x", "warehouse": "./w"})[
        "warehouse"
    ] == f"file://{tmp_path}/w"  # fmt: skip
    with pytest.raises(MisfitError, match="give type and uri of the catalog"):
        catalog_properties({"warehouse": "s3://lake"})


@pytest.mark.parametrize("name", ["t", ".t", "a..t", "a.b.t"])
def test_a_table_has_a_namespace(name: str) -> None:
    with pytest.raises(MisfitError, match=r"expected .namespace"):
        IcebergSink(name)


def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(LakeMissingError, match=r"pip install .*\[lake\]"):
        IcebergSink("a.t")
