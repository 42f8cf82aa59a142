"""The tutorial about Spark: its program, on the records of the one before."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

import penstock
from tests.helpers.live_broker import LiveBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.real]

PROGRAM = Path(__file__).parent.parent.parent / "examples" / "tutorials" / "stream_to_table.py"


def test_each_trip_is_in_the_table_once(
    spark: "SparkSession", broker: LiveBroker, tmp_path: Path
) -> None:
    text = PROGRAM.read_text(encoding="utf-8")
    text = text.replace("localhost:15672", f"localhost:{broker.http_port}")
    for name in ("lake", "state"):
        text = text.replace(f'"{name}/', f'"{tmp_path}/{name}/')
    days: list[int] = []
    for _ in range(2):
        with penstock.open(broker.url) as box:
            trips = [b'{"day": %d, "carrier": "UA", "delay": 7}' % day for day in range(5)]
            box.stream("trips").append_many(trips)
        exec(compile(text, str(PROGRAM), "exec"), {"__name__": "__main__"})
        days += range(5)
        found = spark.read.parquet(f"{tmp_path}/lake/trips").collect()
        assert sorted(row.day for row in found) == sorted(days)
