"""replay: its options become a pipeline file."""

import pytest

from penstock.errors import OptionError
from penstock.spark.pipeline_file import PipelineSpec, parse_pipeline
from penstock.spark.pipelines import built_in


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


@pytest.mark.parametrize(
    "given",
    [
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
