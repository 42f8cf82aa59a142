"""Delta tables as sinks of pipelines, in Spark: once, by partition, with the columns that come."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("deltalake")

import pyarrow.dataset as ds
from deltalake import DeltaTable

from penstock.spark.delta_sink import DeltaSink
from penstock.spark.lake_table import ordered
from penstock.spark.pipeline import Pipeline
from penstock.spark.pipeline_file import PipelineFileError
from tests.spark.lake_rig import TRANSFORM, LakeRig, check_a_death

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.real

SINK = '[[sink]]\ndelta = "{dir}/lake"\npartition_by = ["month", "carrier"]\n'


@pytest.fixture
def rig(spark: "SparkSession", tmp_path: Path) -> LakeRig:
    return LakeRig(spark, tmp_path)


def table(rig: LakeRig) -> Any:
    return DeltaTable(f"{rig.directory}/lake")


def rows(rig: LakeRig) -> list[Any]:
    return sorted(table(rig).to_pyarrow_table().to_pylist(), key=lambda row: row["row"])


def test_a_batch_is_a_commit(rig: LakeRig) -> None:
    rig.put(60)
    rig.put(40)
    facts = rig.run(TRANSFORM + SINK)
    assert facts.sinks == {f"delta {rig.directory}/lake": 100}
    found = rows(rig)
    assert [row["row"] for row in found] == list(range(100))
    assert all(
        (row["month"], row["delay"]) == (row["row"] % 12 + 1, row["row"] % 40) for row in found
    )
    assert table(rig).metadata().partition_columns == ["month", "carrier"]
    commits = [one for one in table(rig).history() if "penstock.batch" in one]
    assert [one["penstock.batch"] for one in commits] == ["1", "0"]
    assert table(rig).transaction_version(commits[0]["penstock.query"]) == 1
    # Readers find the files of a partition, and by the statistics those of a range.
    asked = "month = 1 and carrier = 'UA'"
    assert len(table(rig).file_uris(file_pruning_predicate=asked)) == 2
    data = table(rig).to_pyarrow_dataset()
    assert data.to_table(filter=ds.field("delay") == 39).num_rows == 2
    assert len(list(data.get_fragments(filter=ds.field("delay") == 39))) < len(
        table(rig).file_uris()
    )


def test_a_variant_becomes_text(rig: LakeRig) -> None:
    rig.put(3)
    sql = "SELECT row, parse_json(to_json(struct(delay, carrier))) AS rest FROM source"
    transform = TRANSFORM.replace("SELECT row, month, carrier, delay FROM source", sql)
    sink = '[[sink]]\ndelta = "{dir}/lake"\n'
    rig.run(transform + sink)
    (first, *_) = rows(rig)
    assert json.loads(first["rest"]) == {"delay": 0, "carrier": "UA"}
    rig.put(3)
    within = transform.replace("parse_json(", "array(parse_json(").replace(" AS rest", ") AS rest")
    with pytest.raises(PipelineFileError, match="'rest' is array<variant>, which tables do not"):
        rig.run(within + sink)


@pytest.mark.parametrize(
    ("owner", "name", "before"),
    [(DeltaSink, "_commit", True), (DeltaSink, "_commit", False), (Pipeline, "_batch", False)],
    ids=["between write and commit", "after the commit", "before the checkpoint"],
)
def test_a_crash_doubles_nothing(
    rig: LakeRig, monkeypatch: pytest.MonkeyPatch, owner: type[Any], name: str, before: bool
) -> None:
    check_a_death(rig, monkeypatch, SINK, rows, owner, name, before=before)
    assert len([one for one in table(rig).history() if "penstock.batch" in one]) == 2


def test_new_columns_are_added_and_a_changed_one_is_told(rig: LakeRig) -> None:
    rig.put(10)
    rig.run(TRANSFORM + SINK)
    rig.put(10)
    more = TRANSFORM.replace("delay FROM", "struct(delay AS minutes, 'x' AS why) AS late FROM")
    assert rig.run(more + SINK).rows == 10
    found = rows(rig)
    assert (found[0]["delay"], found[0]["late"]) == (0, None)
    assert (found[19]["delay"], found[19]["late"]) == (None, {"minutes": 19, "why": "x"})
    rig.put(10)
    other = TRANSFORM.replace("delay FROM", "cast(delay AS STRING) AS delay FROM")
    with pytest.raises(PipelineFileError) as caught:
        rig.run(other + SINK)
    assert str(caught.value) == (
        f"p.toml: [[sink]] 1: column 'delay' is string, and int32 in delta {rig.directory}/lake: a "
        "column keeps its type; cast it in sql, or write to another table"
    )
    with pytest.raises(PipelineFileError, match="given month, expected month, carrier: delta"):
        rig.run(TRANSFORM + SINK.replace(', "carrier"', ""))
    assert rig.run(TRANSFORM + SINK).rows == 10
    assert len(rows(rig)) == 30


def test_of_two_runs_at_once_one_commits(rig: LakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that was taken for dead, and its successor: both have found the batch not done."""
    sink = DeltaSink(f"{rig.directory}/lake")
    data = rig.spark.range(20).selectExpr("id AS row")
    assert sink.write(data, "query-a", 0) == 20
    opened = table(rig)
    assert sink.write(data, "query-a", 1) == 20
    monkeypatch.setattr(sink, "_opened", lambda: opened)
    with pytest.raises(Exception, match="Concurrent transaction"):
        sink.write(data, "query-a", 1)
    assert len(rows(rig)) == 40


def test_files_go_where_the_storage_of_deltalake_is(rig: LakeRig) -> None:
    """A URL of a kind that is no directory: the files go through deltalake's own storage."""
    import penstock.spark.delta_sink as module

    data = rig.spark.range(30).selectExpr("id AS row", "id % 3 AS part")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "local_path", lambda _: None)
        sink = DeltaSink(f"file://{rig.directory}/lake", partition_by=["part"])
        written = sink.write(ordered(data, sink.divisions(), is_gathered=True), "query-b", 0)
    assert written == 30
    assert [row["row"] for row in rows(rig)] == list(range(30))


def test_what_a_table_cannot_hold_is_told_before_anything_runs(rig: LakeRig) -> None:
    rig.put(1)
    for sql, told in (
        ("SELECT null AS x FROM source", "column 'x' has no type: cast its null to one"),
        ("SELECT row, row AS ROW FROM source", "two columns have the name 'ROW'"),
        (
            "SELECT INTERVAL 1 MONTH AS i FROM source",
            "column 'i' is interval month, which tables do not",
        ),
    ):
        text = TRANSFORM.replace("SELECT row, month, carrier, delay FROM source", sql)
        with pytest.raises(PipelineFileError) as caught:
            rig.run(text + '[[sink]]\ndelta = "{dir}/lake"\n')
        assert told in str(caught.value)
    with pytest.raises(
        PipelineFileError, match=r"partition_by: day\(row\): Delta takes column names only"
    ):
        rig.run(TRANSFORM + '[[sink]]\ndelta = "{dir}/lake"\npartition_by = ["day(row)"]\n')
    assert not (rig.directory / "lake").exists()
