"""examples/spark_state.py: state over batches and restarts, from a stream into a queue."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("google.protobuf")  # of the extra `connect`

from pyspark import cloudpickle

import penstock
from tests.helpers.live_broker import LiveBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.real]

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "spark_state.py"
CARRIERS = ("AA", "B6", "UA")


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("spark_state", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def test_totals_go_on_over_batches_and_runs(
    spark: "SparkSession", broker: LiveBroker, example: ModuleType, tmp_path: Path
) -> None:
    cloudpickle.register_pickle_by_value(example)
    http = f"http://127.0.0.1:{broker.http_port}"

    def run(first: int, last: int) -> dict[str, tuple[int, int]]:
        """These flights; the totals that came."""
        flights = [{"carrier": CARRIERS[i % 3], "dep_delay": i} for i in range(first, last)]
        with penstock.open(broker.url) as box:
            queue = box.queue(example.QUEUE)
            box.stream(example.STREAM).append_many([json.dumps(f).encode() for f in flights])
            query = example.start(spark, str(tmp_path / "state"), broker.url, http)
            assert query.awaitTermination(240)
            assert query.exception() is None
            jobs = queue.get_many(len(CARRIERS), timeout=120)
            found = [json.loads(job.body) for job in jobs]
            for job in jobs:
                job.ack()
            assert len(queue) == 0
        return {one["carrier"]: (one["flights"], one["delay"]) for one in found}

    def totals(last: int) -> dict[str, tuple[int, int]]:
        by_carrier = {name: range(n, last, 3) for n, name in enumerate(CARRIERS)}
        return {name: (len(of), sum(of)) for name, of in by_carrier.items()}

    provider = "spark.sql.streaming.stateStore.providerClass"
    try:
        assert run(0, 300) == totals(300)
        assert run(300, 390) == totals(390)  # the state of the run before
    finally:
        spark.conf.unset(provider)
        cloudpickle.unregister_pickle_by_value(example)
