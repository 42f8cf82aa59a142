"""archive: its options become a pipeline file."""

import pytest

from penstock.errors import OptionError
from penstock.spark.built_in_pipelines import built_in
from penstock.spark.pipeline_file import PipelineSpec, parse_pipeline


def spec_of(**given: str) -> PipelineSpec:
    return parse_pipeline("archive", built_in("archive", given), "archive")


def test_by_day() -> None:
    spec = spec_of(stream='my "stream"', into="lake")
    assert (spec.name, spec.state) == ("archive-my--stream", "state/archive-my--stream")
    assert spec.source.name == 'my "stream"'
    assert spec.interval_ms is None
    (sink,) = spec.sinks
    assert (sink.kind, sink.target, sink.partition_by, sink.is_gathered) == (
        "parquet", "lake", ("day",), False,
    )  # fmt: skip
    assert spec.transform.sql == (
        "SELECT *, date_format(timestamp, 'yyyy-MM-dd') AS day FROM source"
    )


def test_everything_else() -> None:
    spec = spec_of(
        stream="s", into="lake", by="hour", format="orc", start="next", trigger="1 minute",
        records_max="10", bytes_max="1MiB", state="here",
    )  # fmt: skip
    assert spec.sinks[0].partition_by == ("day", "hour")
    assert spec.sinks[0].kind == "orc"
    assert (spec.source.start, spec.interval_ms, spec.state) == ("next", 60_000, "here")
    assert (spec.source.records_max, spec.source.bytes_max) == (10, 1 << 20)
    assert spec_of(stream="s", into="lake", by="none").transform.sql == "SELECT * FROM source"


def test_into_a_table() -> None:
    spec = spec_of(stream="s", into="air.events", format="iceberg", warehouse="w")
    assert (spec.sinks[0].kind, spec.sinks[0].target) == ("iceberg", "air.events")
    assert (spec.sinks[0].partition_by, spec.catalog) == (("day",), {"warehouse": "w"})


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"into": "lake"}, "a value: -o stream=..."),
        ({"stream": "s"}, "a value: -o into=..."),
        ({"stream": "s", "into": "x", "bye": "day"}, "did you mean 'by'?"),
        ({"stream": "s", "into": "x", "by": "week"}, "one of none, day, hour"),
        (
            {"stream": "s", "into": "x", "format": "csv"},
            "one of parquet, orc, json, delta, iceberg",
        ),
        ({"stream": "s", "into": "x", "records_max": "few"}, "records_max: given 'few'"),
    ],
)
def test_what_is_wrong_is_told(given: dict[str, str], told: str) -> None:
    with pytest.raises(OptionError) as caught:
        spec_of(**given)
    assert told in str(caught.value)
