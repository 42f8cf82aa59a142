"""dead-letters: its options become a pipeline file, whose transform is here."""

import pytest

from penstock.errors import OptionError
from penstock.spark.built_in_pipelines import built_in
from penstock.spark.pipeline_file import PipelineSpec, parse_pipeline


def spec_of(**given: str) -> PipelineSpec:
    return parse_pipeline("dead-letters", built_in("dead-letters", given), "dead-letters")


def test_what_it_is_by_default() -> None:
    spec = spec_of(queue="flights.dead", into="lake/dead")
    assert (spec.name, spec.state) == (
        "dead-letters-flights.dead", "state/dead-letters-flights.dead",
    )  # fmt: skip
    assert (spec.source.name, spec.source.columns) == ("flights.dead", ("headers", "properties"))
    assert spec.transform.python == "penstock.spark.built_in_pipelines:dead_letter_rows"
    (sink,) = spec.sinks
    assert (sink.kind, sink.target, sink.partition_by) == ("parquet", "lake/dead", ("day",))


def test_into_a_table() -> None:
    spec = spec_of(queue="q", into="air.dead", format="iceberg", warehouse="w", by="none")
    (sink,) = spec.sinks
    assert (sink.kind, sink.target, sink.partition_by) == ("iceberg", "air.dead", ())
    assert spec.catalog == {"warehouse": "w"}
    assert spec_of(queue="q", into="d", format="delta").sinks[0].kind == "delta"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"into": "lake"}, "a value: -o queue=..."),
        ({"queue": "q"}, "a value: -o into=..."),
        ({"queue": "q", "into": "x", "format": "csv"}, "one of parquet, orc, json, delta, iceb"),
        ({"queue": "q", "into": "x", "by": "hour"}, "one of none, day"),
        ({"queue": "q", "into": "x", "warehouse": "w"}, "format=iceberg"),
        ({"queue": "q", "into": "x", "stream": "w"}, "unknown option 'stream'"),
    ],
)
def test_what_is_wrong_is_told(given: dict[str, str], told: str) -> None:
    with pytest.raises(OptionError) as caught:
        spec_of(**given)
    assert told in str(caught.value)
