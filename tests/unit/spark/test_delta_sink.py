"""Delta tables, written by tasks that run here: the log, once, partitions, columns, refusals."""

import importlib.util
import json
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyspark")

import pyarrow as pa
from deltalake import DeltaTable

from penstock.spark import delta_sink
from penstock.spark.delta_sink import DeltaSink, directory_text, partition_text, statistics_of
from penstock.spark.lake_table import LakeMissingError, MisfitError
from tests.unit.spark.lake_stand_in import rows_of, without_spark


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    without_spark(monkeypatch, delta_sink)


def table(path: Path) -> Any:
    return DeltaTable(str(path))


def test_a_batch_is_written_once(tmp_path: Path) -> None:
    sink = DeltaSink(str(tmp_path / "t"), partition_by=["month"])
    one = pa.table({"row": [1, 2, 3], "month": [1, None, 2]})
    two = pa.table({"row": [4], "month": [1]})
    assert not sink.is_done("q", 0)
    assert [str(part) for part in sink.divisions()] == ["month"]
    assert sink.write(rows_of(one, two), "q", 0) == 4  # type: ignore[arg-type]
    assert (sink.is_done("q", 0), sink.is_done("q", 1), sink.is_done("r", 0)) == (
        True,
        False,
        False,
    )
    assert sorted(table(tmp_path / "t").to_pyarrow_table()["row"].to_pylist()) == [1, 2, 3, 4]
    log = (tmp_path / "t" / "_delta_log" / f"{1:020d}.json").read_text()
    actions = [json.loads(line) for line in log.splitlines()]
    assert {"txn": {"appId": "q", "version": 0}} in actions
    added = [action["add"] for action in actions if "add" in action]
    assert sorted(str(add["partitionValues"]["month"]) for add in added) == ["1", "1", "2", "None"]
    assert all((tmp_path / "t" / add["path"]).exists() for add in added)


def test_an_empty_batch_commits_nothing(tmp_path: Path) -> None:
    sink = DeltaSink(str(tmp_path / "t"))
    assert sink.write(rows_of(pa.table({"row": pa.array([], pa.int64())})), "q", 0) == 0  # type: ignore[arg-type]
    assert table(tmp_path / "t").version() == 0


def test_a_table_with_rules_that_nobody_would_check_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t"
    rows = pa.table({"row": [1]})
    DeltaSink(str(path)).write(rows_of(rows), "q", 0)  # type: ignore[arg-type]
    table(path).alter.add_constraint({"positive": "row > 0"})
    sink = DeltaSink(str(path))
    with pytest.raises(MisfitError, match="positive"):
        sink.check(rows.schema)
    with pytest.raises(MisfitError):
        sink.write(rows_of(rows), "q", 1)  # type: ignore[arg-type]
    log = path / "_delta_log" / f"{table(path).version() + 1:020d}.json"
    protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["rowTracking"]}
    log.write_text(json.dumps({"protocol": protocol}) + "\n")
    with pytest.raises(MisfitError, match="needs a writer with rowTracking"):
        sink.check(rows.schema)


def test_partitions_that_cannot_be(tmp_path: Path) -> None:
    sink = DeltaSink(str(tmp_path / "t"), partition_by=["raw"])
    with pytest.raises(MisfitError, match="column 'raw' is binary"):
        sink.check(pa.schema([("raw", pa.binary())]))


def test_texts_of_partitions() -> None:
    when = datetime(2026, 1, 31, 8, 0, 0, 5, tzinfo=UTC)
    values = [None, "", True, 7, "a/b", date(2026, 1, 31), when]
    assert [partition_text(value) for value in values] == [
        None, None, "true", "7", "a/b", "2026-01-31", "2026-01-31 08:00:00.000005",
    ]  # fmt: skip
    assert directory_text(None) == "__HIVE_DEFAULT_PARTITION__"
    assert directory_text("a/b c") == "a%2Fb c"
    assert len(directory_text("ä" * 500)) == 120


def test_statistics() -> None:
    when = [datetime(2026, 1, 31, 8, 0, 0, 1500, tzinfo=UTC), None]
    data = pa.table({
        "i": [3, -1], "s": ["b", "a"], "t": pa.array(when, pa.timestamp("us", tz="UTC")),
        "nan": [float("nan"), 1.0], "f": [0.5, None], "x": [b"1", None], "l": [[1], None],
        "long": ["x" * 200, "y"], "none": pa.array([None, None], pa.int64()),
    })  # fmt: skip
    assert statistics_of(data) == {
        "numRecords": 2,
        "minValues": {"i": -1, "s": "a", "t": "2026-01-31T08:00:00.001Z", "f": 0.5},
        "maxValues": {"i": 3, "s": "b", "t": "2026-01-31T08:00:00.002Z", "f": 0.5},
        "nullCount": {"i": 0, "s": 0, "t": 1, "nan": 0, "f": 1, "x": 1, "long": 0, "none": 2},
    }


def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(LakeMissingError, match=r"pip install .*\[lake\]"):
        DeltaSink("t")
