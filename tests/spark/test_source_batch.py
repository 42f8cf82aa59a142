"""spark.read.format("penstock") on a store's directories."""

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException

from penstock.codec.properties import BasicProperties
from penstock.queues.amqp_headers import FORMAT_BYTE
from tests.helpers.tiny_streams import in_vhost, retain, write_stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

COUNT = 3000
FIRST_US = 1_700_000_000_000_000
PROPS = BasicProperties(headers={"n": 7}, message_id="m", delivery_mode=2).encode()
METAS = [FORMAT_BYTE + b"\x02ex\x03k.%d" % i + PROPS for i in range(4)]


@pytest.fixture(scope="module")
def vhost(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """events: one partition; orders: two."""
    path = tmp_path_factory.mktemp("vhost")
    events = in_vhost(path, b"events", 1)
    values = [b"%d" % i for i in range(COUNT)]
    write_stream(events, values, metas=METAS, first_us=FIRST_US, page_bytes=1 << 15)
    for number in range(2):
        write_stream(in_vhost(path, b"orders\0p%d" % number, 2 + number), [b"o"] * (number + 5))
    return path


def load(spark: "SparkSession", path: Path, schema: str = "", **options: str) -> "DataFrame":
    reading = spark.read.format("penstock").option("path", str(path)).options(**options)
    return (reading.schema(schema) if schema else reading).load()


def offsets(rows: "DataFrame") -> list[int]:
    return sorted(row.offset for row in rows.select("offset").collect())


def failure(rows: "DataFrame") -> str:
    with pytest.raises(PySparkException) as caught:
        rows.collect()
    return str(caught.value)


def test_the_columns(spark: "SparkSession", vhost: Path) -> None:
    rows = load(spark, vhost, subscribe="events", includeHeaders="true", includeProperties="true")
    assert [f"{f.name} {f.dataType.simpleString()}" for f in rows.schema.fields] == [
        "queue string", "partition int", "offset bigint", "timestamp timestamp", "exchange string",
        "routing_key string", "message_id string", "value binary", "headers map<string,string>",
        "properties map<string,string>",
    ]  # fmt: skip
    found = rows.where("offset = 1234").selectExpr("*", "unix_micros(timestamp) us").first()
    assert found is not None
    row: dict[str, Any] = found.asDict()
    assert (row["queue"], row["partition"], row["offset"]) == ("events", 0, 1234)
    assert (row["exchange"], row["routing_key"], row["message_id"]) == ("ex", "k.2", "m")
    assert (bytes(row["value"]), row["headers"]) == (b"1234", {"n": "7"})
    assert row["properties"] == {"delivery_mode": "2", "message_id": "m"}
    assert row["us"] == FIRST_US + 1234 * 1000


def test_counts_and_sums(spark: "SparkSession", vhost: Path) -> None:
    rows = load(spark, vhost, subscribe="events")
    found = rows.selectExpr(
        "count(*)", "count(distinct offset)", "sum(offset)",
        "sum(cast(cast(value as string) as bigint))",
    ).first()  # fmt: skip
    assert found is not None
    assert tuple(found) == (COUNT, COUNT, sum(range(COUNT)), sum(range(COUNT)))


@pytest.mark.parametrize("schema", ["value binary", "`timestamp` timestamp, `offset` bigint"])
def test_a_schema_reads_only_its_columns(spark: "SparkSession", vhost: Path, schema: str) -> None:
    rows = load(spark, vhost, schema, subscribe="events")
    assert rows.count() == COUNT
    assert len(rows.columns) == schema.count(",") + 1


def test_columns_by_option(spark: "SparkSession", vhost: Path) -> None:
    rows = load(spark, vhost, subscribe="events", columns="offset, value")
    assert rows.columns == ["offset", "value"]
    assert bytes(rows.where("offset = 5").collect()[0].value) == b"5"


def test_each_column_passes_sparks_check_of_schemas(spark: "SparkSession") -> None:
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    from penstock.arrow_batches import COLUMNS, TYPES, schema_of
    from penstock.spark.data_source import DEFAULT_COLUMNS, SQL_TYPES

    assert tuple(TYPES) == tuple(SQL_TYPES)
    assert COLUMNS == DEFAULT_COLUMNS
    ddl = ", ".join(f"`{name}` {kind}" for name, kind in SQL_TYPES.items())
    given = inspect.signature(to_arrow_schema).parameters
    # Spark 4.1 knows no other zone.
    zone = {"timezone": "UTC"} if "timezone" in given else {}
    expected = to_arrow_schema(StructType.fromDDL(ddl), **zone)
    assert expected.equals(schema_of(tuple(TYPES)))


def test_a_wrong_schema_is_told_by_its_column(spark: "SparkSession", vhost: Path) -> None:
    rows = load(spark, vhost, "value string", subscribe="events")
    assert "option schema: value: given 'string', expected binary" in failure(rows)
    rows = load(spark, vhost, "ofset bigint", subscribe="events")
    assert "did you mean 'offset'?" in failure(rows)


def test_a_wrong_option_is_told_by_its_name(spark: "SparkSession", vhost: Path) -> None:
    assert "did you mean 'failOnDataLoss'?" in failure(
        load(spark, vhost, subscribe="events", failOnDataLos="true")
    )
    kafkas = {"kafka.bootstrap.servers": "h:9092"}
    assert "'url' of the broker" in failure(load(spark, vhost, subscribe="events", **kafkas))
    assert "streams of" in failure(load(spark, vhost, subscribe="none"))
    assert "did you mean 'offset'?" in _plan_failure(spark, vhost)


def _plan_failure(spark: "SparkSession", vhost: Path) -> str:
    with pytest.raises(PySparkException) as caught:
        load(spark, vhost, subscribe="events", columns="offst")
    return str(caught.value)


def test_streams_by_name_pattern_and_partition(spark: "SparkSession", vhost: Path) -> None:
    counted = load(spark, vhost, subscribePattern="e.*|orders").groupBy("queue", "partition")
    found = {(row.queue, row.partition): row["count"] for row in counted.count().collect()}
    assert found == {("events", 0): COUNT, ("orders", 0): 5, ("orders", 1): 6}
    assert load(spark, vhost, assign='{"orders": [1]}').count() == 6


def test_bounds_by_offset_and_time(spark: "SparkSession", vhost: Path) -> None:
    of = {"subscribe": "events"}
    starting = {"startingOffsets": '{"events": {"0": 10}}', "endingOffsets": '{"events":{"0":15}}'}
    assert offsets(load(spark, vhost, **of, **starting)) == [10, 11, 12, 13, 14]
    first_ms = FIRST_US // 1000
    times = {"startingTimestamp": str(first_ms + 20), "endingTimestamp": str(first_ms + 23)}
    assert offsets(load(spark, vhost, **of, **times)) == [20, 21, 22]
    by_partition = {"startingOffsetsByTimestamp": f'{{"events": {{"0": {first_ms + COUNT - 2}}}}}'}
    assert offsets(load(spark, vhost, **of, **by_partition)) == [COUNT - 2, COUNT - 1]
    with pytest.raises(PySparkException, match="option startingOffsets: given 'latest'"):
        offsets(load(spark, vhost, **of, startingOffsets="latest"))


def test_tasks_by_number_bytes_and_records(spark: "SparkSession", vhost: Path) -> None:
    def tasks(**options: str) -> int:
        return load(spark, vhost, subscribe="events", **options).rdd.getNumPartitions()

    assert tasks() == 1
    assert tasks(minPartitions="5") == 5
    assert tasks(maxBytesPerPartition="40000") >= 3
    assert tasks(maxRecordsPerPartition="1000") == 3
    assert tasks(minPartitions="5", maxBytesPerTask="0") == 5
    rows = load(spark, vhost, subscribe="events", minPartitions="7")
    assert offsets(rows) == list(range(COUNT))


def test_small_streams_and_partitions_share_a_task(spark: "SparkSession", vhost: Path) -> None:
    """In order, with every column."""
    of = {"subscribe": "events,orders", "includeHeaders": "true", "includeProperties": "true"}
    shared, alone = load(spark, vhost, **of), load(spark, vhost, **of, maxBytesPerTask="0")
    assert (shared.rdd.getNumPartitions(), alone.rdd.getNumPartitions()) == (1, 3)
    rows = shared.collect()
    assert rows == alone.collect()
    places = [(row.queue, row.partition, row.offset) for row in rows]
    assert len(places) == COUNT + 5 + 6
    assert places == sorted(places)
    assert load(spark, vhost, **of, minPartitions="2").rdd.getNumPartitions() == 2


def test_filters_are_taken_only_where_they_are_asked_for(
    spark: "SparkSession", vhost: Path
) -> None:
    condition = (
        f"offset >= 100 and offset < 400 and timestamp > timestamp_micros({FIRST_US + 200_000})"
        f" and timestamp <= timestamp_micros({FIRST_US + 203_000}) and routing_key != 'k.1'"
    )
    expected = [o for o in (201, 202, 203) if o % 4 != 1]
    plain = load(spark, vhost, subscribe="events").where(condition)
    pushed = load(spark, vhost, subscribe="events", pushdown="true").where(condition)
    assert offsets(plain) == offsets(pushed) == expected
    plan = pushed._jdf.queryExecution().executedPlan().toString()
    assert "routing_key" in plan.partition("Filter")[2]
    assert "offset#" not in plan.partition("Filter (")[2].partition(")\n")[0].replace(
        "isnotnull(offset#", ""
    )


def test_pushdown_needs_sparks_own_switch(spark: "SparkSession", vhost: Path) -> None:
    name = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(name, "false")
    try:
        assert load(spark, vhost, subscribe="events").where("offset < 3").count() == 3
        rows = load(spark, vhost, subscribe="events", pushdown="true").where("offset < 3")
        assert name in failure(rows)
    finally:
        spark.conf.set(name, "true")


def test_it_is_found_without_being_registered(spark: "SparkSession", vhost: Path) -> None:
    """In SQL, by the package pyspark_penstock."""
    spark.sql(
        "create or replace temporary view events_view using penstock "
        f"options (path '{vhost}', subscribe 'events')"
    )
    found = spark.sql("select count(*) from events_view").first()
    assert found is not None
    assert found[0] == COUNT


def test_the_lookup_imports_little() -> None:
    """Spark imports all pyspark_* packages at the first use of any Python source."""
    import subprocess
    import sys

    program = "import pyspark_penstock, sys; print(*(m for m in sys.modules if 'penstock' in m))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert set(done.stdout.split()) == {"pyspark_penstock"}


def test_nothing_to_read(spark: "SparkSession", tmp_path: Path) -> None:
    write_stream(tmp_path / "empty", [])
    assert load(spark, tmp_path / "empty").count() == 0


def test_a_limit_ends_the_tasks_early(spark: "SparkSession", vhost: Path) -> None:
    assert len(load(spark, vhost, subscribe="events", minPartitions="3").limit(5).collect()) == 5


def test_damage_is_never_delivered(spark: "SparkSession", tmp_path: Path) -> None:
    write_stream(tmp_path / "s", [b"%d" % i for i in range(500)])
    page = sorted((tmp_path / "s").glob("*.page"))[1]
    whole = page.read_bytes()
    for at in (70, len(whole) // 2, len(whole) - 1):
        page.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        text = failure(load(spark, tmp_path / "s"))
        assert "CorruptionError" in text
        assert page.name in text
    page.write_bytes(whole)
    index = page.with_suffix(".idx")
    raw = index.read_bytes()
    index.write_bytes(raw[:100] + bytes([raw[100] ^ 4]) + raw[101:])
    assert load(spark, tmp_path / "s").count() == 500
    index.unlink()
    assert load(spark, tmp_path / "s").count() == 500


def test_records_that_retention_took(spark: "SparkSession", tmp_path: Path) -> None:
    write_stream(tmp_path / "s", [b"%d" % i for i in range(500)])
    first = retain(tmp_path / "s", 100)
    assert 0 < first < 500
    assert offsets(load(spark, tmp_path / "s")) == list(range(first, 500))
    from_zero = {"startingOffsets": '{"s": {"0": 0}}'}
    assert "reclaimed by retention" in failure(load(spark, tmp_path / "s", **from_zero))
    lenient = load(spark, tmp_path / "s", failOnDataLoss="false", **from_zero)
    assert offsets(lenient) == list(range(first, 500))
