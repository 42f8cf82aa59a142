"""Metrics of a running broker: those of the node and of its processes."""

from collections.abc import Iterator

import pytest

from penstock.metric_table import METRICS
from tests.helpers.live_broker import LiveBroker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    with LiveBroker(tmp_path_factory.mktemp("metrics") / "data") as broker:
        yield broker


def test_node_and_vhost_together_have_every_row(broker: LiveBroker) -> None:
    node = broker.control("node_metrics")
    vhost = broker.control("metrics")["values"]
    assert node["vhosts"] == ["/"]
    assert set(node["values"]).isdisjoint(vhost)
    assert {*node["values"], *vhost} == {row.name for row in METRICS if row.group != "HTTP"}
    assert sum(vhost["loop_turn_seconds"][1:]) > 0
    assert ["/", "vhost", 1] in node["values"]["process_up"]
    rss = {
        (vhost, process): n for vhost, process, n in node["values"]["process_resident_memory_bytes"]
    }
    assert set(rss) == {("", "supervisor"), ("/", "vhost")}
    assert min(rss.values()) > 1 << 20
