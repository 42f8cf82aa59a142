"""format("penstock") on a live broker: files and network, readers at the broker, kills."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import StreamingQueryException

import penstock
from tests.helpers.live_broker import LiveBroker, wait_until
from tests.helpers.tiny_http import Answer, TinyHttp
from tests.spark import lake_job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

EARLIEST = {"startingOffsets": "earliest"}


def amqp_url(broker: LiveBroker) -> str:
    return f"amqp://guest:guest@127.0.0.1:{broker.port}/"


def where(broker: LiveBroker, stream: str, **options: str) -> dict[str, str]:
    """Options that name a stream of the broker."""
    http_url = f"http://127.0.0.1:{broker.http_port}"
    return {"url": amqp_url(broker), "httpUrl": http_url, "subscribe": stream, **options}


def append(broker: LiveBroker, stream: str, values: list[bytes], **options: Any) -> None:
    with penstock.open(amqp_url(broker)) as box:
        made = box.stream(stream, **options)
        for at in range(0, len(values), 1000):
            keyed = [(value, {"key": f"k{value.split()[0].decode()}"}) for value in values]
            made.append_many(keyed[at : at + 1000])


def numbers(first: int, last: int, size: int = 0) -> list[bytes]:
    return [(b"%d" % i).ljust(size) for i in range(first, last)]


def load(spark: "SparkSession", options: dict[str, str]) -> "DataFrame":
    return spark.read.format("penstock").options(**options).load()


def facts(rows: "DataFrame") -> tuple[Any, ...]:
    found = rows.selectExpr(
        "count(*)", "count(distinct partition, offset)",
        "sum(cast(cast(value as string) as bigint))", "count(distinct routing_key)",
    ).first()  # fmt: skip
    assert found is not None
    return tuple(found)


@pytest.fixture(scope="module")
def events(broker: LiveBroker) -> LiveBroker:
    """A broker with 3000 records in `events`, of one partition, and in `orders`, of three."""
    append(broker, "events", numbers(0, 3000))
    append(broker, "orders", numbers(0, 3000), partitions=3)
    return broker


@pytest.mark.parametrize("access", ["auto", "file", "network"])
@pytest.mark.parametrize("stream", ["events", "orders"])
def test_a_stream_of_a_broker(
    spark: "SparkSession", events: LiveBroker, stream: str, access: str
) -> None:
    rows = load(spark, where(events, stream, access=access, minPartitions="4"))
    assert facts(rows) == (3000, 3000, sum(range(3000)), 3000)
    assert rows.select("partition").distinct().count() == (3 if stream == "orders" else 1)


def test_bounds_by_time(spark: "SparkSession", events: LiveBroker) -> None:
    rows = load(spark, where(events, "events"))
    moment = rows.where("offset = 2900").selectExpr("cast(timestamp as string) t").collect()[0].t
    later = load(spark, where(events, "events", startingTimestamp=f"{moment}Z"))
    first = later.selectExpr("min(offset)").collect()[0][0]
    assert first <= 2900
    assert rows.where(f"offset = {first - 1} and timestamp < '{moment}'").count() in (0, 1)


def test_who_may_not(spark: "SparkSession", events: LiveBroker) -> None:
    options = where(events, "events")
    options["url"] = options["url"].replace("guest:guest", "guest:sesame")
    with pytest.raises(Exception, match="wrong name or password") as caught:
        load(spark, options).collect()
    assert "sesame" not in str(caught.value)
    with pytest.raises(Exception, match=r"given 'no\.such\.stream'"):
        load(spark, where(events, "no.such.stream")).collect()


def run(
    spark: "SparkSession", options: dict[str, str], state: Path,
    sink: Callable[["DataFrame", int], object],
) -> None:  # fmt: skip
    rows = spark.readStream.format("penstock").options(**options).load()
    writing = rows.writeStream.foreachBatch(sink).option("checkpointLocation", str(state))
    lake_job.finish(writing.trigger(availableNow=True).start())


def reader_of(broker: LiveBroker, stream: str, reader: str) -> dict[str, Any]:
    found: dict[str, Any] = broker.control("describe_stream", "/", queue=stream)["readers"][reader]
    return found


@pytest.mark.limits
def test_the_broker_keeps_how_far_a_query_is(
    spark: "SparkSession", events: LiveBroker, tmp_path: Path
) -> None:
    options = where(events, "events", readerId="job", maxOffsetsPerTrigger="1000", **EARLIEST)
    seen: list[int] = []
    run(spark, options, tmp_path / "state", lambda rows, _: seen.append(rows.count()))
    assert seen == [1000, 1000, 1000]
    held = reader_of(events, "events", "job")
    assert (held["offsets"], held["kept_from"]) == ({"0": 3000}, {"0": 3000})
    run(spark, options, tmp_path / "state", lambda rows, _: seen.append(rows.count()))
    assert len(seen) == 3


@pytest.mark.limits
def test_a_failed_batch_is_held_for_its_replay(
    spark: "SparkSession", events: LiveBroker, tmp_path: Path
) -> None:
    options = where(events, "events", readerId="fails", maxOffsetsPerTrigger="1000", **EARLIEST)

    def fail(rows: "DataFrame", batch: int) -> None:
        if batch == 1:
            raise RuntimeError("the sink failed")

    with pytest.raises(StreamingQueryException, match="the sink failed"):
        run(spark, options, tmp_path / "state", fail)
    held = reader_of(events, "events", "fails")
    assert (held["offsets"], held["kept_from"]) == ({"0": 1000}, {"0": 1000})


def test_retention_leaves_what_a_batch_may_need_again(
    spark: "SparkSession", broker: LiveBroker, tmp_path: Path
) -> None:
    limits = {"max_records": 100, "page_bytes": "4 KiB"}
    append(broker, "short", numbers(0, 90), **limits)
    options = where(broker, "short", access="network", readerId="job", **EARLIEST)
    first = [-1, -1]

    def sink(rows: "DataFrame", batch: int) -> None:
        if batch == 0:  # what came meanwhile makes it all too old, but for the reader
            append(broker, "short", numbers(90, 2000))
            broker.control("checkpoint")
            broker.control("retain_stream", "/", queue="short")
        described = broker.control("describe_stream", "/", queue="short")
        first[batch] = described["partitions"][0]["first"]
        assert facts(rows)[:3] == (90, 90, sum(range(90)))

    run(spark, options, tmp_path / "state", sink)
    assert first[0] == 0
    broker.control("delete_stream_reader", "/", queue="short", reader="job")
    broker.control("retain_stream", "/", queue="short")
    described = broker.control("describe_stream", "/", queue="short")
    assert described["partitions"][0]["first"] > 90


@pytest.mark.limits
def test_a_query_waits_for_a_broker_that_is_started_again(
    spark: "SparkSession", tmp_path: Path
) -> None:
    """Its first questions meet a broker that is away, then twenty answers that break."""
    count = 3000
    with LiveBroker(tmp_path / "data", has_http=True) as broker:
        append(broker, "s", numbers(0, count, size=200))
        broker.kill()
        options = {**where(broker, "s", access="network"), "timeoutMs": "150000"}
        query = lake_job.start(spark, options, tmp_path / "lake", tmp_path / "state")
        broken = Answer(503, {"error": "unavailable", "reason": "vhost starts"}, cut_at=9)
        address = "GET /api/streams/%2F/s"
        assert broker.http_port is not None
        with TinyHttp({address: [broken]}, broker.http_port) as stand_in:
            wait_until(lambda: len(stand_in.asked) > 20, "questions of the driver", 150.0)
            assert query.isActive
        broker.start()
        lake_job.finish(query)
        total = sum(range(count))
        assert lake_job.lake_facts(spark, tmp_path / "lake") == (count, count, total, total)


@pytest.mark.limits
def test_a_broker_that_is_killed_in_the_middle_of_a_batch(
    spark: "SparkSession", tmp_path: Path
) -> None:
    count = 9000
    with LiveBroker(tmp_path / "data", has_http=True) as broker:
        append(broker, "s", numbers(0, count, size=2000))
        options = where(broker, "s", access="network", readerId="job")
        lake_job.over_a_kill(spark, broker, options, tmp_path)
        total = sum(range(count))
        assert lake_job.lake_facts(spark, tmp_path / "lake") == (count, count, total, total)
        assert reader_of(broker, "s", "job")["offsets"] == {"0": count}
