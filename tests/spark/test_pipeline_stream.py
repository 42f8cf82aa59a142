"""Pipelines on real streams, by the command line's own verbs: check, run, status, archive, replay,
audit. The Spark session is the tests' one, in place of one for each command.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.cli import pipelines
from penstock.cli.main import main
from penstock.client import connect
from penstock.codec.properties import BasicProperties
from penstock.codec.spec import QueueDeclare
from tests.helpers.live_broker import LiveBroker
from tests.spark.stand_in import event
from tests.spark.test_sink import received

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.real

FILE = """
[source]
queue = "{name}"
records_max = 40
[transform]
schema = "row INT, month INT, carrier STRING, delay INT"
sql = "SELECT *, delay > 15 AS late FROM source"
on_error = "dead-letter"
[[sink]]
parquet = "lake"
partition_by = ["month"]
[[sink]]
queue = "{name}.late"
where = "late"
"""


class Desk:
    """A directory with a pipeline's file, a stream, and the command line."""

    def __init__(self, broker: LiveBroker, name: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.broker = broker
        self.name = name
        self._capsys = capsys
        self.file = Path("flights.toml")
        self.file.write_text(FILE.replace("{name}", name))

    def publish(self, *bodies: bytes, partitions: int = 0) -> None:
        arguments: dict[str, object] = {"x-queue-type": "stream"}
        if partitions:
            arguments["x-partitions"] = partitions
        with connect(self.broker.url) as connection:
            channel = connection.channel()
            declare = QueueDeclare(queue=self.name, durable=True, arguments=arguments)
            channel.ask(declare).result(120)
            channel.select_confirms()
            for future in [channel.publish("", self.name, body) for body in bodies]:
                assert future is not None
                assert future.result(120)

    def change(self, old: str, new: str) -> None:
        text = self.file.read_text()
        assert old in text
        self.file.write_text(text.replace(old, new))

    def __call__(self, *words: str) -> tuple[int, str]:
        """Exit code, and what it printed, stderr last."""
        places = ["--url", self.broker.url]
        if words[0] in ("run", "check"):
            places += ["--http-url", f"http://127.0.0.1:{self.broker.http_port}"]
        is_plain = words[0] == "list" or "audit" in words
        code = main(["pipeline", *words, *([] if is_plain else places)])
        told = self._capsys.readouterr()
        return code, told.out + told.err

    def json(self, *words: str) -> Any:
        code, text = self(*words, "--format", "json")
        assert code == 0, text
        return json.loads(text)


@pytest.fixture
def desk(
    spark: "SparkSession", broker: LiveBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str],
) -> Desk:  # fmt: skip
    @contextmanager
    def shared(*_: object) -> "Iterator[SparkSession]":
        yield spark

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pipelines, "session", shared)
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.removeprefix("test_").lower())
    return Desk(broker, name.strip("-"), capsys)


def test_a_stream_into_a_lake_and_a_queue(desk: Desk, spark: "SparkSession") -> None:
    desk.publish(*[event(row) for row in range(100)], b'{"row": 10', b"")
    code, text = desk("check", "flights.toml")
    assert code == 0
    assert "ok    columns: row, month, carrier, delay, late" in text
    assert f"ok    source: stream '{desk.name}', 102 records" in text
    assert f"2 of 102 rows fail: it is not JSON (the first at offset 100); they would go to "\
        f"'{desk.name}.dead'" in text  # fmt: skip
    facts = desk.json("run", "flights.toml")
    assert (facts["outcome"], facts["rows"], facts["failed"]) == ("done", 102, 2)
    assert facts["batches"] >= 3
    assert sorted(
        row["row"] for row in spark.read.parquet(str(Path("lake").resolve())).collect()
    ) == list(range(100))
    assert len(received(desk.broker, f"{desk.name}.late")) == 52
    dead = received(desk.broker, f"{desk.name}.dead")
    assert sorted(int(message.headers["offset"]) for message in dead) == [100, 101]  # type: ignore[call-overload]
    assert desk.json("status", "flights.toml")["lag"] == 0
    desk.publish(event(100), event(101))
    told = desk.json("status", "flights.toml")
    assert (told["lag"], told["offsets"]) == (2, {f"{desk.name}[0]": 102})
    code, text = desk("run", "flights.toml")
    assert code == 0
    assert "read\t" in text
    assert "flights: done, 1 batch in" in text
    assert spark.read.parquet(str(Path("lake").resolve())).count() == 102
    (row,) = desk.json("list")
    assert (row["name"], row["outcome"], row["rows"]) == ("flights", "done", 2)


@pytest.mark.parametrize(
    ("old", "new", "code", "told"),
    [
        ("SELECT *", "SELECT rwo", 64, "flights.toml: [transform]: sql: there is no column 'rwo'; "
         "there are row, month, carrier, delay"),
        ('"month"]', '"mont"]', 64, "flights.toml: [[sink]] 1: partition_by: there is no column"),
        ("where = ", "wher = ", 64, "flights.toml: [[sink]] 2: unknown key 'wher', did you mean"),
        ("month INT", "month DATE", 64, "[transform]: schema: does not fit the source: 20 of 20 "
         "rows fail: it does not fit the schema: month is not DATE (the first at offset 0): {"),
        ("{name}", "nowhere", 64, "[source]: queue: NOT_FOUND"),
        ("carrier STRING", "carier STRING", 0, "no row has carier; the first one has carrier, d"),
    ],
)  # fmt: skip
def test_a_check_finds_what_is_wrong(desk: Desk, old: str, new: str, code: int, told: str) -> None:
    desk.publish(*[event(row) for row in range(20)])
    if old == "{name}":
        old, new = f'queue = "{desk.name}"', f'queue = "{new}"'
    desk.change(old, new)
    found, text = desk("check", "flights.toml")
    assert told in text
    assert found == code


def test_a_broker_that_is_not_there_is_named(
    desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["pipeline", "check", "flights.toml", "--url", "amqp://127.0.0.1:1"]
    assert main(words) == 69
    told = capsys.readouterr().out
    assert "flights.toml: [source]: the broker does not answer: no connection to amqp://" in told
    assert "127.0.0.1:1" in told
    words[1] = "run"
    assert main(words) == 69
    assert "no connection to amqp://guest@127.0.0.1:1" in capsys.readouterr().err


def test_archive_and_replay_are_ways_there_and_back(desk: Desk, spark: "SparkSession") -> None:
    desk.publish(*[b"%d" % i for i in range(30)], b"\xff\x00", partitions=2)
    options = ["-o", f"stream={desk.name}", "-o", "into=archive", "-o", "by=hour"]
    assert desk.json("run", "archive", *options)["rows"] == 31
    rows = spark.read.parquet(str(Path("archive").resolve()))
    assert {"day", "hour", "partition", "offset", "routing_key", "value"} <= set(rows.columns)
    assert rows.count() == 31
    code, text = desk("run", "replay", "-o", "from=archive", "-o", f"queue={desk.name}.again")
    assert code == 0, text
    again = sorted(message.body for message in received(desk.broker, f"{desk.name}.again"))
    assert again == sorted([*[b"%d" % i for i in range(30)], b"\xff\x00"])
    desk.publish(b"new", partitions=2)
    assert desk.json("run", "archive", *options)["rows"] == 1


def test_a_classic_queue_is_emptied_once(desk: Desk, spark: "SparkSession") -> None:
    with connect(desk.broker.url) as connection:
        channel = connection.channel()
        channel.ask(QueueDeclare(queue=desk.name, durable=True)).result(120)
        channel.select_confirms()
        kept = BasicProperties(delivery_mode=2)
        bodies = [*(event(row) for row in range(60)), b"{"]
        futures = [channel.publish("", desk.name, body, kept) for body in bodies]
        assert all(future is not None and future.result(120) for future in futures)
    code, text = desk("check", "flights.toml")
    assert code == 0, text
    assert f"ok    source: queue '{desk.name}', 61 messages" in text
    desk.change("records_max", 'start = "next"\nrecords_max')
    code, text = desk("check", "flights.toml")
    assert (code, "is a classic queue, which is read from its first message" in text) == (64, True)
    desk.change('start = "next"\n', "")
    facts = desk.json("run", "flights.toml")
    assert (facts["outcome"], facts["rows"], facts["failed"]) == ("done", 61, 1)
    assert facts["batches"] >= 2
    assert desk.json("run", "flights.toml")["rows"] == 0  # and acknowledges the last batch
    lake = spark.read.parquet(str(Path("lake").resolve()))
    assert sorted(row["row"] for row in lake.collect()) == list(range(60))
    (dead,) = received(desk.broker, f"{desk.name}.dead")
    assert (dead.body, dead.headers["stream"]) == (b"{", desk.name)
    late = received(desk.broker, f"{desk.name}.late")
    assert len(late) == sum(row % 40 > 15 for row in range(60))
    assert desk.json("status", "flights.toml")["lag"] == 0
    assert received(desk.broker, desk.name) == []


def test_a_store_is_read_beside_the_broker(desk: Desk, spark: "SparkSession") -> None:
    desk.publish(*[event(row) for row in range(50)])
    desk.change("records_max", f'path = "{desk.broker.data}"\nrecords_max')
    assert desk.json("run", "flights.toml")["rows"] == 50
    assert spark.read.parquet(str(Path("lake").resolve())).count() == 50


def test_an_audit_beside_a_running_broker(desk: Desk) -> None:
    desk.publish(*[b"x" * 100 for _ in range(500)])
    code, text = desk("run", "audit", "-o", f"data={desk.broker.data}")
    assert code == 0, text
    assert f"/\tstream\t{desk.name}\t500\t50000\t0" in text
    assert "its queues were not audited" in text
    assert "0 problems" in text


def test_an_audit_counts_what_is_damaged(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    with LiveBroker(tmp_path / "data", has_http=True) as broker:
        monkeypatch.chdir(tmp_path)
        desk = Desk(broker, "events", capsys)
        desk.publish(*[b"%0100d" % i for i in range(1000)])
        with connect(broker.url) as connection:
            channel = connection.channel()
            channel.ask(QueueDeclare(queue="jobs", durable=True)).result(120)
            channel.select_confirms()
            kept = BasicProperties(delivery_mode=2)
            futures = [channel.publish("", "jobs", b"job", kept) for _ in range(7)]
            assert all(future is not None and future.result(120) for future in futures)
        assert broker.stop() == 0

    @contextmanager
    def shared(*_: object) -> "Iterator[SparkSession]":
        yield spark

    monkeypatch.setattr(pipelines, "session", shared)
    words = ["run", "audit", "-o", f"data={broker.data}", "--format", "json"]
    told = desk.json(*words[:-2])
    found = {one["name"]: (one["messages"], one["damaged"]) for one in told["found"]}
    assert found == {"events": (1000, 0), "jobs": (7, 0)}
    assert told["problems"] == []
    (page,) = (tmp_path / "data").rglob("*.page")
    data = bytearray(page.read_bytes())
    at = data.index(b"%0100d" % 500)
    data[at] ^= 0xFF
    page.write_bytes(data)
    code, text = desk(*words)
    assert code == 65
    told = json.loads(text)
    (stream,) = (one for one in told["found"] if one["name"] == "events")
    assert stream["damaged"] >= 1
    assert stream["messages"] + stream["damaged"] == 1000
    assert str(page) in told["problems"][0]
