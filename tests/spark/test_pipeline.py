"""Pipelines, run by Spark: what goes where, what fails, what a crash or a stop leaves behind."""

import json
import re
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.client import connect
from penstock.codec.spec import ExchangeDeclare, QueueBind, QueueDeclare
from penstock.spark import pipeline as pipelines
from penstock.spark.file_sink import FileSink
from penstock.spark.pipeline import Pipeline, PipelineError, Tick
from penstock.spark.pipeline_file import PipelineFileError, PipelineSpec, parse_pipeline
from penstock.spark.pipeline_state import RunFacts, read_state
from tests.helpers.live_broker import LiveBroker
from tests.spark.stand_in import event, put, stream_of
from tests.spark.test_sink import http_url, received

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.real

TRANSFORM = """
[transform]
schema = "row INT, month INT, carrier STRING, delay INT"
sql = "SELECT *, delay > 15 AS late FROM source"
on_error = "dead-letter"
"""
LAKE = """
[[sink]]
parquet = "{dir}/lake"
partition_by = ["month", "carrier"]
"""
LATE = """
[[sink]]
queue = "{name}.late"
where = "late"
"""


class Rig:
    """A pipeline of a test: its directory, its stand-in for a stream, and its queues."""

    def __init__(
        self, spark: "SparkSession", broker: LiveBroker, directory: Path, name: str
    ) -> None:
        self.spark = spark
        self.broker = broker
        self.directory = directory
        self.name = name
        self.put_rows = 0

    def spec(self, text: str) -> PipelineSpec:
        head = '[pipeline]\nname = "{name}"\nstate = "{dir}/state"\n[source]\nqueue = "{name}"\n'
        head += 'url = "{url}"\nhttp_url = "{http}"\n'
        for key, value in (
            ("{dir}", str(self.directory)), ("{name}", self.name), ("{url}", self.broker.url),
            ("{http}", http_url(self.broker)),
        ):  # fmt: skip
            head, text = head.replace(key, value), text.replace(key, value)
        return parse_pipeline("p.toml", head + text, self.name)

    def put(self, *values: bytes | None) -> None:
        put(self.spark, self.directory / "in", self.put_rows, values)
        self.put_rows += len(values)

    def pipeline(self, text: str) -> Pipeline:
        return Pipeline(
            self.spec(text), self.spark, source=stream_of(self.spark, self.directory / "in")
        )

    def run(self, text: str) -> RunFacts:
        return self.pipeline(text).run()

    def lake(self, kind: str = "parquet") -> list[Any]:
        rows = self.spark.read.format(kind).load(f"{self.directory}/lake").collect()
        return sorted(rows, key=lambda row: row["row"])

    def messages(self, suffix: str) -> list[Any]:
        return received(self.broker, f"{self.name}{suffix}")


@pytest.fixture
def rig(
    spark: "SparkSession", broker: LiveBroker, tmp_path: Path, request: pytest.FixtureRequest
) -> Rig:
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.removeprefix("test_").lower())
    return Rig(spark, broker, tmp_path, name.strip("-"))


def test_rows_go_to_the_lake_the_late_ones_to_a_queue_the_bad_ones_to_their_grave(rig: Rig) -> None:
    rig.put(*[event(row) for row in range(100)], event(100)[:20], None)
    rig.put(*[event(row) for row in range(100, 200)], b'{"row": 200, "month": "May"}')
    facts = rig.run(TRANSFORM + LAKE + LATE)
    assert (facts.outcome, facts.batches, facts.rows, facts.failed) == ("done", 2, 203, 3)
    rows = rig.lake()
    assert [row["row"] for row in rows] == list(range(200))
    assert all(row["late"] == (row["delay"] > 15) for row in rows)
    late = sorted(json.loads(message.body)["row"] for message in rig.messages(".late"))
    assert late == [row for row in range(200) if row % 40 > 15]
    assert facts.sinks == {f"parquet {rig.directory}/lake": 200, f"queue {rig.name}.late": 120}
    dead = sorted(rig.messages(".dead"), key=lambda message: int(message.headers["offset"]))
    assert [(m.body, m.headers["offset"], m.headers["reason"]) for m in dead] == [
        (event(100)[:20], "100", "it is not JSON"),
        (b"", "101", "it is empty"),
        (b'{"row": 200, "month": "May"}', "202", "it does not fit the schema: month is not INT"),
    ]
    assert dead[0].headers["stream"] == "events"
    assert dead[0].headers["partition"] == "0"
    assert dead[0].headers["pipeline"] == rig.name


def test_a_second_run_takes_what_is_new(rig: Rig) -> None:
    rig.put(*[event(row) for row in range(10)])
    rig.run(TRANSFORM + LAKE)
    assert rig.run(TRANSFORM + LAKE).rows == 0
    rig.put(*[event(row) for row in range(10, 15)])
    facts = rig.run(TRANSFORM + LAKE)
    assert (facts.batches, facts.rows) == (1, 5)
    assert [row["row"] for row in rig.lake()] == list(range(15))
    state = read_state(f"{rig.directory}/state")
    assert state is not None
    assert (state.name, state.committed, state.is_running) == (rig.name, 1, False)
    assert state.facts["run"]["outcome"] == "done"


class DeathError(Exception):
    """The driver dies here."""


@pytest.mark.parametrize(
    ("where", "delivery"),
    [
        ("begin", "exactly-once"), ("commit", "exactly-once"), ("after files", "exactly-once"),
        ("at the end", "exactly-once"), ("at the end", "at-least-once"),
    ],
)  # fmt: skip
def test_a_crash_in_a_batch_repeats_nothing(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, where: str, delivery: str
) -> None:
    """Wherever the second batch dies, the next run ends with each row once in the files and in the
    queue; of a queue at least once in it."""
    text = TRANSFORM + LAKE + LATE + f'delivery = "{delivery}"\n'
    rig.put(*[event(row) for row in range(50)])
    rig.put(*[event(row) for row in range(50, 100)])

    def die(*_: object) -> None:
        raise DeathError

    with monkeypatch.context() as patched:
        if where in ("begin", "commit"):
            real = getattr(FileSink, where)
            patched.setattr(
                FileSink, where,
                lambda self, batch: die() if batch == 1 else real(self, batch),
            )  # fmt: skip
        elif where == "after files":
            real_publish = pipelines.publish
            calls = Counter[str]()

            def publish(*given: Any) -> int:
                calls["n"] += 1
                if calls["n"] == 2:
                    die()
                return real_publish(*given)

            patched.setattr(pipelines, "publish", publish)
        else:
            real_batch = Pipeline._batch

            def batch(self: Pipeline, rows: Any, batch_id: int) -> None:
                real_batch(self, rows, batch_id)
                if batch_id == 1:
                    die()

            patched.setattr(Pipeline, "_batch", batch)
        with pytest.raises(PipelineError):
            rig.run(text)
    assert rig.run(text).outcome == "done"
    assert [row["row"] for row in rig.lake()] == list(range(100))
    assert sum(row["delay"] for row in rig.lake()) == sum(row % 40 for row in range(100))
    late = Counter(json.loads(message.body)["row"] for message in rig.messages(".late"))
    assert set(late) == {row for row in range(100) if row % 40 > 15}
    twice = {row for row, count in late.items() if count > 1}
    is_doubled = where == "at the end" and delivery == "at-least-once"
    assert twice == ({row for row in late if row >= 50} if is_doubled else set())


def test_a_stop_ends_after_the_batch_and_the_next_run_goes_on(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = threading.Event()
    real_batch = Pipeline._batch

    def batch(self: Pipeline, rows: Any, batch_id: int) -> None:
        if batch_id == 1:  # the stop is asked for in the middle of it at the latest
            assert asked.wait(240)
        real_batch(self, rows, batch_id)

    monkeypatch.setattr(Pipeline, "_batch", batch)
    for first in range(0, 40, 10):
        rig.put(*[event(row) for row in range(first, first + 10)])
    job = rig.pipeline(TRANSFORM + LAKE)

    def on_tick(tick: Tick) -> None:
        if tick.facts.batches >= 1:
            job.ask_stop()
            asked.set()

    facts = job.run(on_tick)
    assert facts.outcome == "stopped"
    assert 1 <= facts.batches <= 2
    state = read_state(f"{rig.directory}/state")
    assert state is not None
    assert state.committed == facts.batches - 1
    rest = rig.run(TRANSFORM + LAKE)
    assert facts.rows + rest.rows == 40
    assert [row["row"] for row in rig.lake()] == list(range(40))


def test_an_interval_goes_on_until_it_is_stopped(rig: Rig) -> None:
    rig.put(*[event(row) for row in range(10)])
    spec = rig.spec(TRANSFORM + LAKE)
    spec = parse_pipeline(
        "p.toml", '[pipeline]\ntrigger = "100 ms"\n' + f'state = "{spec.state}"\n[source]\n'
        f'queue = "{rig.name}"\nurl = "{rig.broker.url}"\n'
        f'http_url = "{http_url(rig.broker)}"\n' + TRANSFORM
        + LAKE.replace("{dir}", str(rig.directory)), rig.name,
    )  # fmt: skip
    job = Pipeline(spec, rig.spark, source=stream_of(rig.spark, rig.directory / "in"))
    seen: list[int] = []

    def on_tick(tick: Tick) -> None:
        if tick.facts.batches == 1 and not seen:
            seen.append(1)
            rig.put(*[event(row) for row in range(10, 20)])
        if tick.facts.batches == 2:
            job.ask_stop()

    facts = job.run(on_tick)
    assert (facts.outcome, facts.rows) == ("stopped", 20)


def test_without_a_schema_rows_are_messages(rig: Rig) -> None:
    rig.put(b"one", b"two")
    with connect(rig.broker.url) as connection:
        channel = connection.channel()
        channel.ask(ExchangeDeclare(exchange=f"{rig.name}.x", type="fanout")).result(120)
        channel.ask(QueueDeclare(queue=f"{rig.name}.q", durable=True)).result(120)
        channel.ask(QueueBind(queue=f"{rig.name}.q", exchange=f"{rig.name}.x")).result(120)
    rig.run('[[sink]]\nexchange = "{name}.x"\nwhere = "offset = 1"\n')
    (message,) = rig.messages(".q")
    assert (message.body, message.routing_key) == (b"two", "k")


def test_a_path_with_a_scheme_goes_through_hadoop(rig: Rig) -> None:
    rig.put(*[event(row) for row in range(20)])
    rig.put(*[event(row) for row in range(20, 40)])
    text = TRANSFORM + LAKE.replace('"{dir}/lake"', '"file://{dir}/lake"')
    with pytest.MonkeyPatch.context() as patched:
        real_batch = Pipeline._batch

        def batch(self: Pipeline, rows: Any, batch_id: int) -> None:
            real_batch(self, rows, batch_id)
            raise DeathError

        patched.setattr(Pipeline, "_batch", batch)
        with pytest.raises(PipelineError):
            rig.run(text)
    rig.run(text)
    assert [row["row"] for row in rig.lake()] == list(range(40))
    names = {path.name for path in (rig.directory / "lake").rglob("*.parquet")}
    assert all(name.split("-")[1] in ("00000000", "00000001") for name in names)


def test_a_python_function_transforms(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    module = rig.directory / "double_rows.py"
    module.write_text(
        "from pyspark.sql import functions as F\n"
        "def double(rows):\n    return rows.withColumn('twice', F.col('row') * 2)\n"
        "def nothing(rows):\n    return None\n"
    )
    monkeypatch.syspath_prepend(str(rig.directory))
    rig.put(event(7))
    text = TRANSFORM.replace('sql = "SELECT *, delay > 15 AS late FROM source"', "{python}")
    orc = LAKE.replace("parquet", "orc")
    rig.run(text.replace("{python}", 'python = "double_rows:double"') + orc)
    assert rig.lake("orc")[0]["twice"] == 14
    with pytest.raises(
        PipelineFileError, match="double_rows:nothing returned None, expected a DataFr"
    ):
        rig.run(text.replace("{python}", 'python = "double_rows:nothing"') + orc)
    with pytest.raises(PipelineFileError, match="python: double_rows:no: "):
        rig.run(text.replace("{python}", 'python = "double_rows:no"') + orc)


def test_a_bad_row_may_end_the_run(rig: Rig) -> None:
    rig.put(event(0), b"{", b"[")
    text = TRANSFORM.replace("dead-letter", "fail")
    with pytest.raises(PipelineError) as caught:
        rig.run(text + LAKE)
    told = str(caught.value)
    assert "events, partition 0, offset 1: it is not JSON; 2 rows of the batch fail" in told
    state = read_state(f"{rig.directory}/state")
    assert state is not None
    assert state.facts["run"]["outcome"] == "failed"
    assert state.committed is None
    assert rig.run(text.replace('"fail"', '"drop"') + LAKE).failed == 2
    assert [row["row"] for row in rig.lake()] == [0]


def test_what_does_not_hold_is_a_bad_row_too(rig: Rig) -> None:
    rig.put(event(0), event(1), b'{"row": 2}')
    expect = "expect = [\"carrier = 'UA'\", \"month > 0\"]\nkeep = ['timestamp']\n"
    rig.run(TRANSFORM + expect + LAKE)
    assert [row["row"] for row in rig.lake()] == [0]
    assert rig.lake()[0]["timestamp"] is not None
    reasons = [message.headers["reason"] for message in rig.messages(".dead")]
    assert reasons == ["does not hold: carrier = 'UA'"] * 2


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("SELECT *", "SELECT monht"), "[transform]: sql: there is no column 'monht'; there are r"),
        (("SELECT *", "SELEC *"), "[transform]: sql: [PARSE_SYNTAX_ERROR]"),
        (("row INT", "row INTT"), "[transform]: schema: [UNSUPPORTED_DATATYPE]"),
        (('"month", "carrier"', '"mnth"'), "[[sink]] 1: partition_by: there is no column 'mnth'"),
        (('where = "late"', 'where = "lat"'), "[[sink]] 2: where: there is no column 'lat'; the"),
        (('where = "late"', 'value = "delay"'), "[[sink]] 2: value: it is int, expected a string"),
        (('where = "late"', 'value = "dlay"'), "[[sink]] 2: value or routing_key: there is no col"),
    ],
)  # fmt: skip
def test_what_is_not_there_is_told_before_anything_runs(
    rig: Rig, change: tuple[str, str], told: str
) -> None:
    rig.put(event(0))
    with pytest.raises(PipelineFileError) as caught:
        rig.run((TRANSFORM + LAKE + LATE).replace(*change))
    assert told in str(caught.value)
    assert not (rig.directory / "lake").exists()


def test_what_a_sink_says_is_the_error(rig: Rig) -> None:
    rig.put(event(0))
    with pytest.raises(PipelineError) as caught:
        rig.run(TRANSFORM + '[[sink]]\nexchange = "not.there"\n')
    told = str(caught.value)
    assert told.startswith(f"{rig.name}: committing batch 0 of query ")
    assert "to exchange 'not.there': " in told
    assert "NOT_FOUND - no exchange 'not.there' in vhost '/'" in told
