"""/metrics of a running broker, as Prometheus scrapes it."""

from collections.abc import Iterator
from http.client import HTTPConnection

import pytest

import penstock
from penstock.metric_table import METRICS, RABBITMQ
from tests.helpers.asgi_client import basic
from tests.helpers.live_broker import LiveBroker
from tests.helpers.prometheus import families, promtool, series


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    environment = {"PENSTOCK_PROMETHEUS_PORT": "0"}
    place = tmp_path_factory.mktemp("metrics") / "data"
    with LiveBroker(place, environment=environment, has_http=True) as broker:
        yield broker


def scrape(
    broker: LiveBroker, address: str = "/metrics", accept: str = "", port: int = 0, user: str = ""
) -> tuple[int, str]:
    """What is answered, at prometheus_port unless another is given. user: its own password."""
    port = port or broker.control("status")["listeners"]["prometheus"]
    connection = HTTPConnection(broker.host, port, timeout=60)
    who = {"Authorization": basic(user, user)} if user else {}
    connection.request("GET", address, headers={"Accept": accept, **who})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def test_every_family_is_there_and_both_formats_are_right(broker: LiveBroker) -> None:
    status, text = scrape(broker)
    assert status == 200
    names = set(families(text))
    expected = {f"penstock_{row.name}" for row in METRICS}
    expected |= {f"rabbitmq_{row.name}" for row in RABBITMQ}
    assert {name.removesuffix("_total") for name in expected} <= names
    _, openmetrics = scrape(broker, accept="application/openmetrics-text; version=1.0.0")
    assert openmetrics.endswith("# EOF\n")
    assert set(families(openmetrics, is_openmetrics=True)) == names


def test_promtool_finds_no_error(broker: LiveBroker) -> None:
    _, text = scrape(broker)
    found = promtool("check", "metrics", given=text)
    wrong = [line for line in found.stderr.splitlines() if not line.startswith("rabbitmq_")]
    assert wrong == []


def test_what_is_published_and_got_is_counted(broker: LiveBroker) -> None:
    before = series(scrape(broker)[1])
    with penstock.open(broker.url) as box:
        queue = box.queue("counted")
        for n in range(10):
            queue.put(b"%d" % n)
        for _ in range(4):
            job = queue.get(timeout=60)
            job.ack()
    after = series(scrape(broker)[1])
    published = ("penstock_messages_published_total", frozenset({("vhost", "/")}))
    delivered = ("penstock_messages_delivered_total", frozenset({("vhost", "/")}))
    received = ("rabbitmq_global_messages_received_total", frozenset({("protocol", "amqp091")}))
    assert after[published] - before[published] == 10
    assert after[received] - before[received] == 10
    assert after[delivered] - before[delivered] >= 4
    syncs = ("penstock_sync_seconds_count", frozenset({("vhost", "/")}))
    assert after[syncs] > before[syncs]


def test_a_password_and_a_tag_are_needed_at_the_port_of_http(broker: LiveBroker) -> None:
    assert broker.http_port is not None
    assert scrape(broker, port=broker.http_port)[0] == 401
    assert scrape(broker, port=broker.http_port, user="guest")[0] == 200
    assert scrape(broker, "/api/whoami")[0] == 404
