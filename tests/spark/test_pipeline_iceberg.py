"""Iceberg tables as sinks of pipelines, in Spark: once, by partition, with new columns."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyiceberg")

from penstock.spark.iceberg_sink import IcebergSink
from penstock.spark.lake_table import ordered
from penstock.spark.pipeline import Pipeline
from penstock.spark.pipeline_file import PipelineFileError
from tests.spark.lake_rig import TRANSFORM, LakeRig, check_a_death

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.real

CATALOG = '[catalog]\nwarehouse = "{dir}/warehouse"\n'
SINK = (
    '[[sink]]\niceberg = "air.flights"\npartition_by = ["month", "bucket(4, carrier)"]\n' + CATALOG
)


@pytest.fixture
def rig(spark: "SparkSession", tmp_path: Path) -> LakeRig:
    return LakeRig(spark, tmp_path)


def sink_of(rig: LakeRig, name: str = "air.flights", *partition_by: str) -> IcebergSink:
    catalog = {"warehouse": f"{rig.directory}/warehouse"}
    return IcebergSink(name, partition_by=partition_by, catalog=catalog)


def table(rig: LakeRig, name: str = "air.flights") -> Any:
    return sink_of(rig, name)._opened()


def rows(rig: LakeRig) -> list[Any]:
    return sorted(table(rig).scan().to_arrow().to_pylist(), key=lambda row: row["row"])


def test_a_batch_is_a_snapshot(rig: LakeRig) -> None:
    rig.put(60)
    rig.put(40)
    facts = rig.run(TRANSFORM + SINK)
    assert facts.sinks == {"iceberg air.flights": 100}
    assert [row["row"] for row in rows(rig)] == list(range(100))
    assert (rig.directory / "warehouse" / "catalog.db").exists()
    found = table(rig)
    assert [one.summary["penstock.batch"] for one in found.snapshots()] == ["0", "1"]
    query = found.snapshots()[0].summary["penstock.query"]
    assert found.properties[f"penstock.batch.{query}"] == "1"
    assert [str(field.transform) for field in found.spec().fields] == ["identity", "bucket[4]"]
    assert found.scan(row_filter="delay = 39").to_arrow().num_rows == 2
    files = list(found.scan(row_filter="month = 1 and carrier = 'UA'").plan_files())
    assert len(files) == 2  # of 12 partitions, one of each batch


@pytest.mark.parametrize(
    ("owner", "name", "before"),
    [(IcebergSink, "_commit", True), (IcebergSink, "_commit", False), (Pipeline, "_batch", False)],
    ids=["between write and commit", "after the commit", "before the checkpoint"],
)
def test_a_crash_doubles_nothing(
    rig: LakeRig, monkeypatch: pytest.MonkeyPatch, owner: type[Any], name: str, before: bool
) -> None:
    check_a_death(rig, monkeypatch, SINK, rows, owner, name, before=before)
    assert len(table(rig).snapshots()) == 2


def test_new_columns_are_added_and_a_changed_one_is_told(rig: LakeRig) -> None:
    rig.put(10)
    rig.run(TRANSFORM + SINK)
    rig.put(10)
    more = TRANSFORM.replace("delay FROM", "struct(delay AS minutes, 'x' AS why) AS late FROM")
    assert rig.run(more + SINK).rows == 10
    found = rows(rig)
    assert (found[0]["delay"], found[0]["late"]) == (0, None)
    assert (found[19]["delay"], found[19]["late"]) == (None, {"minutes": 19, "why": "x"})
    assert len(table(rig).snapshots()) == 2  # columns and rows in one commit
    rig.put(10)
    for change in ("cast(delay AS STRING)", "cast(delay AS BIGINT)"):
        other = TRANSFORM.replace("delay FROM", f"{change} AS delay FROM")
        with pytest.raises(PipelineFileError, match=r"column 'delay' is \w+, and int32 in iceberg"):
            rig.run(other + SINK)
    with pytest.raises(PipelineFileError, match=r"given month, expected month, bucket\(4, carrier"):
        rig.run(TRANSFORM + SINK.replace(', "bucket(4, carrier)"', ""))
    narrow = TRANSFORM.replace("delay FROM", "cast(delay AS SMALLINT) AS delay FROM")
    assert rig.run(narrow + SINK).rows == 10
    assert len(rows(rig)) == 30


def test_of_two_runs_at_once_one_commits(rig: LakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that was taken for dead, and its successor: both have found the batch not done."""
    sink = sink_of(rig)
    data = rig.spark.range(20).selectExpr("id AS row")
    assert sink.write(data, "query-a", 0) == 20
    stale = table(rig)
    assert sink.write(data, "query-a", 1) == 20
    opened = sink._opened
    answers = [stale]
    monkeypatch.setattr(sink, "_opened", lambda: answers.pop() if answers else opened())
    assert sink.write(data, "query-a", 1) == 0
    assert len(rows(rig)) == 40
    # Another query meets the same, and comes after it.
    answers.append(stale)
    assert sink.write(data, "query-b", 0) == 20
    assert len(rows(rig)) == 60
    # Who expires snapshots does not make it forget.
    table(rig).maintenance.expire_snapshots().by_ids(
        [one.snapshot_id for one in table(rig).snapshots()[:2]]
    ).commit()
    assert sink.is_done("query-a", 1)
    assert not sink.is_done("query-a", 2)


def test_every_transform(rig: LakeRig) -> None:
    given = (
        "year(a)",
        "month(b)",
        "day(c)",
        "hour(d)",
        "truncate(2, name)",
        "truncate(10, row)",
        "st.x",
    )
    sink = sink_of(rig, "air.all", *given, "bucket(3, e)")
    data = rig.spark.range(90).selectExpr(
        "id AS row", "concat('k', id % 20) AS name",
        *(f"timestamp_seconds(id * 40000 - 900000) AS {name}" for name in "abd"),
        "date_add(date'2026-01-01', cast(id % 40 AS int)) AS c", "if(id % 7 = 0, null, id) AS e",
        "named_struct('x', id % 2) AS st",
    )  # fmt: skip
    for batch, is_gathered in enumerate((True, False)):
        assert (
            sink.write(ordered(data, sink.divisions(), is_gathered=is_gathered), "q", batch) == 90
        )
    found = table(rig, "air.all")
    assert sorted(found.scan().to_arrow()["row"].to_pylist()) == sorted([*range(90)] * 2)
    for condition, count in (
        ("row < 10", 10), ("name = 'k1'", 5), ("a < '1970-01-01T00:00:00+00:00'", 23),
        ("c = '2026-01-03'", 3), ("e = 8", 1), ("e is null", 13),
    ):  # fmt: skip
        assert found.scan(row_filter=condition).to_arrow().num_rows == 2 * count, condition
    assert [str(one) for one in sink.divisions()] == [*given, "bucket(3, e)"]


@pytest.mark.parametrize(
    ("sink", "told"),
    [
        ('iceberg = "flights"', "given 'flights', expected \"namespace.table\""),
        (
            'iceberg = "a.b"\npartition_by = ["week(row)"]',
            "'week(row)': expected a column, year(co",
        ),
        ('iceberg = "a.b"\npartition_by = ["bucket(row)"]', "'bucket(row)': expected a column"),
        (
            'iceberg = "a.b"\npartition_by = ["day(x)"]',
            "partition_by: there is no column 'x'; ther",
        ),
        ('iceberg = "a.b"\npartition_by = ["row", "bucket(2, row)"]', "'row' is given twice"),
        ('iceberg = "a.b"\n[catalog]\nwarehouse = "s3://bucket/lake"', "type and uri of the catal"),
    ],
)
def test_what_is_wrong_is_told_before_anything_runs(rig: LakeRig, sink: str, told: str) -> None:
    rig.put(1)
    with pytest.raises(PipelineFileError) as caught:
        rig.run(f"{TRANSFORM}[[sink]]\n{sink}\n")
    assert told in str(caught.value)
