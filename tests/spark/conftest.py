"""One Spark session for all tests here (local[2], no UI, UTC, quiet), and a live broker a module.

A test that needs other settings (retries of tasks) starts a process of its own. One that needs a
Spark with limits for batches has the marker `limits` and is skipped on Spark 4.1.
"""

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.helpers.live_broker import LiveBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from penstock.spark.spark_version import LIMITS, has_limits

HERE = Path(__file__).parent

# Spark 4.1 leaves the sockets of its Python workers to the garbage collector.
OPEN_SOCKETS = "ignore::pytest.PytestUnraisableExceptionWarning"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what this Spark does not have."""
    if has_limits():
        return
    for item in items:
        if not item.path.is_relative_to(HERE):
            continue
        item.add_marker(pytest.mark.filterwarnings(OPEN_SOCKETS))
        if item.get_closest_marker("limits") is not None:
            item.add_marker(pytest.mark.skip(reason=f"needs Spark {LIMITS}"))


@pytest.fixture(scope="session")
def spark(quick_spark: None) -> "Iterator[SparkSession]":
    """See the head of this module."""
    os.environ.setdefault("PENSTOCK_CHECK", "0")
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    from penstock.spark import session

    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.stopTimeout": "60s",
    }
    made = session(master="local[2]", app_name="penstock tests", conf=settings)
    made.sparkContext.setLogLevel("ERROR")
    yield made
    made.stop()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    """A live broker, with its HTTP port."""
    with LiveBroker(tmp_path_factory.mktemp("broker") / "data", has_http=True) as live:
        yield live
