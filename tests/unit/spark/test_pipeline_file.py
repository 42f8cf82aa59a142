"""The pipeline file: what it says becomes a spec, and what is wrong in it is told by its place."""

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from penstock.cli.main import EX_USAGE, exit_code
from penstock.spark.pipeline_file import (
    PipelineFileError,
    PipelineSpec,
    SinkSpec,
    parse_pipeline,
    with_url,
)

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "examples").rglob("*.toml"))

FLIGHTS = """
[pipeline]
name = "flights"
trigger = "10 seconds"
state = "here/flights"
[source]
queue = "flights.events"
url = "amqp://somewhere"
bytes_max = "64MiB"
records_max = 50000
start = "2026-01-31T08:00:00Z"
[transform]
schema = "month INT, carrier STRING"
keep = ["timestamp"]
expect = ["month > 0"]
sql = "SELECT *, month > 6 AS late FROM source"
on_error = "dead-letter"
[[sink]]
parquet = "lake/flights"
partition_by = ["month", "carrier"]
gather = false
[[sink]]
queue = "flights.late"
where = "late"
[spark]
"spark.sql.shuffle.partitions" = 4
spark.ui.enabled = true
"""
LEAST = """
[source]
queue = "events"
[[sink]]
parquet = "lake"
"""


def parsed(text: str, **given: str) -> PipelineSpec:
    return parse_pipeline("dir/f.toml", text, "f", given)


def test_all_that_a_file_can_say() -> None:
    spec = parsed(FLIGHTS)
    assert (spec.name, spec.interval_ms, spec.state) == ("flights", 10_000, "here/flights")
    assert spec.trigger == "10 seconds"
    source = spec.source
    assert (source.kind, source.name, source.url) == ("queue", "flights.events", "amqp://somewhere")
    assert (source.bytes_max, source.records_max) == (64 << 20, 50_000)
    assert source.start == datetime(2026, 1, 31, 8, tzinfo=UTC)
    transform = spec.transform
    assert transform.schema == "month INT, carrier STRING"
    assert (transform.keep, transform.expect) == (("timestamp",), ("month > 0",))
    assert transform.python is None
    assert spec.dead_letter == "flights.events.dead"
    assert spec.sinks[0] == SinkSpec(
        "parquet", "lake/flights", partition_by=("month", "carrier"), is_gathered=False
    )
    assert spec.sinks[1] == SinkSpec("queue", "flights.late", where="late")
    assert spec.conf == {"spark.sql.shuffle.partitions": "4", "spark.ui.enabled": "true"}


def test_tables_and_deliveries() -> None:
    spec = parsed(
        '[pipeline]\ndelivery = "at-least-once"\n[source]\nqueue = "a"\ncolumns = ["headers"]\n'
        '[[sink]]\ndelta = "lake/a"\npartition_by = ["month"]\n'
        '[[sink]]\niceberg = "ns.a"\npartition_by = ["day(at)"]\ngather = false\n'
        '[[sink]]\nqueue = "b"\ndelivery = "exactly-once"\nhttp_url = "http://there"\n'
        '[[sink]]\nexchange = "*"\n'
        '[catalog]\nuri = "https://catalog"\ns3.region = "eu"\n[storage]\nAWS_S3_ALLOW = true\n'
    )
    assert spec.source.columns == ("headers",)
    delta, iceberg, queue, exchange = spec.sinks
    assert (delta.is_table, delta.is_files, delta.is_queue) == (True, False, False)
    assert (iceberg.kind, iceberg.partition_by, iceberg.is_gathered) == (
        "iceberg", ("day(at)",), False,
    )  # fmt: skip
    assert (queue.delivery, queue.http_url) == ("exactly-once", "http://there")
    assert (exchange.delivery, spec.delivery) == ("at-least-once", "at-least-once")
    assert spec.catalog == {"uri": "https://catalog", "s3.region": "eu"}
    assert spec.storage == {"AWS_S3_ALLOW": "true"}
    assert parsed(LEAST).delivery == "exactly-once"


def test_what_a_file_need_not_say() -> None:
    spec = parsed(LEAST)
    assert (spec.name, spec.state, spec.interval_ms) == ("f", "state/f", None)
    assert spec.trigger == "available-now"
    assert (spec.source.start, spec.source.bytes_max) == ("first", 256 << 20)
    assert spec.transform.on_error == "fail"
    assert spec.dead_letter is None


@pytest.mark.parametrize(
    ("trigger", "interval_ms"),
    [
        ("500 ms", 500), ("1 second", 1000), ("10s", 10_000), ("2 minutes", 120_000),
        ("1 min", 60_000), ("1 hour", 3_600_000), ("250 milliseconds", 250), ("1.5s", 1500),
        ("available-now", None),
    ],
)  # fmt: skip
def test_triggers(trigger: str, interval_ms: int | None) -> None:
    assert parsed(f'[pipeline]\ntrigger = "{trigger}"{LEAST}').interval_ms == interval_ms


def test_what_is_said_beside_the_file_wins() -> None:
    spec = parse_pipeline(
        "f.toml", FLIGHTS, "f",
        {"source.url": "amqp://other", "source.records_max": "7", "pipeline.state": "there"},
    )  # fmt: skip
    assert (spec.source.url, spec.source.records_max, spec.state) == ("amqp://other", 7, "there")


def test_a_url_comes_from_the_environment_when_the_file_has_none() -> None:
    spec = parsed(LEAST)
    assert with_url(spec, {"AMQP_URL": "amqp://a", "PENSTOCK_URL": "amqp://p"}).source.url == (
        "amqp://p"
    )
    assert with_url(spec, {"PENSTOCK_URL": ""}).source.url == "amqp://guest:guest@localhost:5672/"
    assert with_url(parsed(FLIGHTS), {"PENSTOCK_URL": "amqp://p"}).source.url == "amqp://somewhere"


def test_a_dead_letter_queue_may_have_a_name() -> None:
    text = LEAST + '[transform]\non_error = "dead-letter"\ndead_letter = "rejects"\n'
    assert parsed(text).dead_letter == "rejects"


SINK = '[[sink]]\nparquet = "lake"\n'
SOURCE = '[source]\nqueue = "a"\n'
WRONG = [
    ("[pipeline\n", "dir/f.toml: not TOML: "),
    (LEAST + "[sinks]\n", "dir/f.toml: unknown table 'sinks', did you mean 'sink'?"),
    (LEAST + "[pipeline]\nnmae = 'x'\n", "dir/f.toml: [pipeline]: unknown key 'nmae', did you"
     " mean 'name'?"),
    (SOURCE + SINK + "partiton_by = ['a']\n", "dir/f.toml: [[sink]] 1: unknown key 'partiton_by', "
     "did you mean 'partition_by'?"),
    (SOURCE + SINK + SINK.replace("lake", "two") + "wehre = 'x'", "2: unknown key 'wehre'"),
    (SOURCE + SINK + "zzzz = 1", "unknown key 'zzzz', known are parquet, orc"),
    (SINK, "dir/f.toml: no [source]: the file needs one"),
    (SOURCE, "dir/f.toml: no [[sink]]: the file needs one or more"),
    ("[source]\n" + SINK, "[source]: has none of queue, parquet, json: expected one"),
    ("[source]\nqueue = 'a'\nparquet = 'b'\n" + SINK, "[source]: has queue and parquet"),
    (SOURCE + "[[sink]]\nwhere = 'x'\n", "[[sink]] 1: has none of parquet, orc, json, delta"),
    (SOURCE + SINK + "[pipeline]\ntrigger = 'often'", "trigger: given 'often', expected "
     '"available-now", or a time such as "10 seconds"'),
    (SOURCE + SINK + "[pipeline]\ntrigger = '0 s'", "trigger: given '0 s'"),
    (SOURCE + SINK + "[pipeline]\ntrigger = '10'", "trigger: given '10'"),
    (SOURCE + SINK + "[pipeline]\nname = 'a/b'", "name: given 'a/b', expected letters"),
    (SOURCE + "start = 'soon'\n" + SINK, "[source]: start: given 'soon'"),
    (SOURCE + "records_max = 0\n" + SINK, "records_max: given 0, expected a whole number"),
    (SOURCE + "bytes_max = 'much'\n" + SINK, "bytes_max: given 'much'"),
    (SOURCE + "url = 7\n" + SINK, "url: given 7, expected a text"),
    (SOURCE + SINK + "[transform]\nsql = 'x'\npython = 'a:b'", "python: given 'a:b', expected "
     "either sql or python"),
    (SOURCE + SINK + "[transform]\npython = 'a.b'", "expected \"module:function\""),
    (SOURCE + SINK + "[transform]\non_error = 'skip'", "on_error: given 'skip', expected one of"),
    (SOURCE + SINK + "[transform]\ndead_letter = 'd'", "dead_letter: given 'd'"),
    (SOURCE + SINK + "[transform]\nkeep = ['offset']", "keep: given ('offset',), expected a "
     "schema"),
    (SOURCE + SINK + "[transform]\nschema = 'a INT'\nkeep = ['x']", "keep: given 'x', expected "
     "columns of a message"),
    (SOURCE + SINK + "[transform]\nexpect = [1]", "expect: given [1], expected a list of texts"),
    (SOURCE + "[[sink]]\nqueue = 'a'\npartition_by = ['x']", "partition_by: given ['x'], expected "
     "none: it is for parquet or orc or json or delta or iceberg"),
    (SOURCE + "[[sink]]\nqueue = 'a'\nrouting_key = 'x'", "routing_key: given 'x'"),
    (SOURCE + SINK + "value = 'x'", "value: given 'x', expected none: it is for queue"),
    (SOURCE + "[[sink]]\ndelta = 'a'\n[[sink]]\ndelta = 'a/'\n", "another sink writes to a/"),
    (SOURCE + "[[sink]]\niceberg = 'a.b'\nvalue = 'x'", "none: it is for queue or exchange"),
    (SOURCE + "[[sink]]\nqueue = 'a'\ndelivery = 'once'", "delivery: given 'once', expected one of "
     "exactly-once, idempotent, at-least-once"),
    (SOURCE + SINK + "delivery = 'exactly-once'", "none: it is for queue or exchange"),
    (SOURCE + "columns = ['value']\n" + SINK, "columns: given 'value', expected of headers, prop"),
    (SOURCE + SINK + SINK, "[[sink]] 2: parquet: another sink writes to lake"),
    (SOURCE + SINK + "gather = 1", "gather: given 1, expected true or false"),
    (SOURCE + SINK + "[spark]\nfoo = 1", "[spark]: foo: given 1"),
    ("[source]\nparquet = 'a'\nurl = 'amqp://b'\nstart = 'first'\n" + SINK, "start: given 'first', "
     "expected none: it is for queue"),
    ("[source]\nparquet = 'a'\n[transform]\nschema = 'a INT'\n" + SINK, "schema: given 'a INT'"),
    ("[source]\nparquet = 'a'\n[transform]\non_error = 'dead-letter'\n" + SINK, "on_error: given"),
    ("source = 1\n" + SINK, "source: given 1, expected a table [source]"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "told"), WRONG, ids=[told for _, told in WRONG])
def test_what_is_wrong_is_told_with_its_place(text: str, told: str) -> None:
    with pytest.raises(PipelineFileError) as caught:
        parsed(text)
    assert told in str(caught.value)
    assert str(caught.value).startswith("dir/f.toml: ")
    assert exit_code(caught.value) == EX_USAGE


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_are_right(path: Path) -> None:
    spec = parse_pipeline(str(path), path.read_text(), path.stem)
    assert spec.sinks


def test_the_file_of_the_documentation_is_right() -> None:
    page = (ROOT / "docs" / "guides" / "pipelines.md").read_text()
    (text,) = re.findall(r"^```toml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert parsed(text).name == "flights"


def test_the_file_of_the_lakehouse_is_right() -> None:
    page = (ROOT / "docs" / "guides" / "lakehouse.md").read_text()
    first, catalog = re.findall(r"^```toml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    spec = parsed(first)
    assert [sink.kind for sink in spec.sinks] == ["delta", "iceberg"]
    assert parsed(LEAST + catalog).catalog["s3.region"] == "eu-central-1"


@pytest.mark.parametrize("name", ["url", "sources.url", "source.ulr"])
def test_what_is_wrong_beside_the_file_is_told_too(name: str) -> None:
    with pytest.raises(PipelineFileError):
        parse_pipeline("f.toml", LEAST, "f", {name: "x"})
