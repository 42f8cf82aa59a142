"""replay: its options become a pipeline file."""

import pytest

from penstock.errors import OptionError
from penstock.spark.built_in_pipelines import built_in
from penstock.spark.pipeline_file import PipelineSpec, parse_pipeline


def spec_of(given: dict[str, str]) -> PipelineSpec:
    return parse_pipeline("replay", built_in("replay", given), "replay")


def test_into_a_queue() -> None:
    spec = spec_of({"from": "lake", "queue": "again", "where": "day = 'x'"})
    assert (spec.source.kind, spec.source.name) == ("parquet", "lake")
    assert (spec.name, spec.sinks[0].kind, spec.sinks[0].target) == (
        "replay-again", "queue", "again",
    )  # fmt: skip
    assert spec.sinks[0].where == "day = 'x'"


def test_into_an_exchange() -> None:
    spec = spec_of(
        {"from": "lake", "exchange": "x", "routing_key": "k", "value": "v", "format": "json",
         "files_max": "3"}
    )  # fmt: skip
    assert (spec.source.kind, spec.source.records_max) == ("json", 3)
    sink = spec.sinks[0]
    assert (sink.kind, sink.target, sink.routing_key, sink.value) == ("exchange", "x", "k", "v")


def test_back_to_where_it_came_from() -> None:
    spec = spec_of({"from": "lake/dead", "back": "origin", "sql": "SELECT 7", "where": "x > 1"})
    assert (spec.name, spec.source.name) == ("replay-back-lake-dead", "lake/dead")
    (sink,) = spec.sinks
    assert (sink.kind, sink.target, sink.where) == ("exchange", "*", None)
    sql = spec.transform.sql or ""
    assert sql.startswith("SELECT original_exchange AS exchange, original_routing_key AS routing_")
    assert "FROM ( SELECT 7 ) WHERE original_exchange IS NOT NULL" in sql
    assert sql.endswith("AND (x > 1)")
    assert "'x-death'" in sql
    sql = spec_of({"from": "lake", "back": "queue"}).transform.sql or ""
    assert sql.startswith("SELECT '' AS exchange, first_queue AS routing_key")
    assert spec_of({"from": "l", "queue": "q", "sql": "SELECT 1"}).transform.sql == "SELECT 1"


@pytest.mark.parametrize(
    "given",
    [
        {"from": "lake", "back": "home"},
        {"from": "lake", "back": "origin", "queue": "q"},
        {"from": "lake", "back": "origin", "value": "x"},
        {"from": "lake", "back": "origin", "format": "json"},
        {"queue": "q"},
        {"from": "lake"},
        {"from": "lake", "queue": "q", "exchange": "x"},
        {"from": "lake", "queue": "q", "format": "orc"},
        {"from": "lake", "quue": "q"},
        {"from": "lake", "queue": "q", "routing_key": "k"},
    ],
)
def test_what_is_wrong_is_told(given: dict[str, str]) -> None:
    with pytest.raises(OptionError):
        spec_of(given)
