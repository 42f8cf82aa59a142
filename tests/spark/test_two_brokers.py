"""The program of docs/reference/scaling.md, unchanged: one query that reads two brokers."""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

import penstock
from tests.helpers.live_broker import LiveBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PAGE = Path(__file__).parent.parent.parent / "docs" / "reference" / "scaling.md"
COUNTS = {"east": 700, "west": 400}


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[dict[str, LiveBroker]]:
    with ExitStack() as stack:
        started = {}
        for name in COUNTS:
            (tmp_path / name).mkdir()
            broker = LiveBroker(tmp_path / name / "data", has_http=True)
            started[name] = stack.enter_context(broker)
        yield started


def append(broker: LiveBroker, first: int, last: int) -> None:
    with penstock.open(broker.url) as box:
        box.stream("orders").append_many([b"%d" % i for i in range(first, last)])


def test_one_query_reads_two_brokers(
    spark: "SparkSession", brokers: dict[str, LiveBroker], tmp_path: Path
) -> None:
    (program,) = re.findall(r"^```py\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    for name, broker in brokers.items():
        assert f"@{name}:15672/" in program
        program = program.replace(f"@{name}:15672/", f"@127.0.0.1:{broker.http_port}/")
    for place in ("state/orders", "lake/orders"):
        program = program.replace(place, str(tmp_path / place))

    def run() -> dict[str, tuple[int, int]]:
        """Once more, what there is by now: broker -> (last offset, rows)."""
        exec(compile(program, str(PAGE), "exec"), {})
        rows = spark.read.parquet(str(tmp_path / "lake" / "orders"))
        assert rows.select("broker", "partition", "offset").distinct().count() == rows.count()
        found = rows.groupBy("broker").agg({"offset": "max", "*": "count"})
        columns = ("broker", "`max(offset)`", "`count(1)`")
        return {row[0]: (row[1], row[2]) for row in found.selectExpr(*columns).collect()}

    for name, count in COUNTS.items():
        append(brokers[name], 0, count)
    assert run() == {"east": (699, 700), "west": (399, 400)}
    append(brokers["west"], 400, 450)
    assert run() == {"east": (699, 700), "west": (449, 450)}
