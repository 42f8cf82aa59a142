"""Alerts of a broker that really runs: in its log, in `penstock list_alerts`, at a client."""

import contextlib
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.cli.main import main
from tests.helpers.live_broker import LiveBroker, wait_until

pika = pytest.importorskip("pika")
pytestmark = pytest.mark.real

EXCHANGE = "amq.penstock.alert"
WAIT_S = 120.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    """One for all tests; each has queues of its own."""
    with LiveBroker(tmp_path_factory.mktemp("alerts") / "data", "--memory", "64MiB") as live:
        yield live
        assert live.stop() == 0


@contextlib.contextmanager
def channel_of(broker: LiveBroker) -> Iterator[Any]:
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    try:
        yield connection.channel()
    finally:
        connection.close()


def bound(channel: Any, *keys: str) -> str:
    """A queue of its own to which these alerts come."""
    queue = str(channel.queue_declare("", exclusive=True).method.queue)
    for key in keys:
        channel.queue_bind(queue, EXCHANGE, key)
    return queue


def next_alert(channel: Any, queue: str) -> tuple[str, Any, dict[str, Any]]:
    """Its key, its properties and what its body says."""
    for method, properties, body in channel.consume(
        queue, auto_ack=True, inactivity_timeout=WAIT_S
    ):
        assert method is not None, f"no alert within {WAIT_S} s"
        channel.cancel()
        return method.routing_key, properties, json.loads(body)
    raise AssertionError("the consumer was canceled")


def listed(
    broker: LiveBroker, capsys: pytest.CaptureFixture[str], queue: str
) -> list[dict[str, Any]]:
    """Rows of the command about one queue."""
    assert (
        main(["list_alerts", "--vhost", "/", "--format", "json", "--data", str(broker.data)]) == 0
    )
    return [row for row in json.loads(capsys.readouterr().out) if row["queue"] == queue]


def test_a_threshold_comes_to_log_list_and_client(
    broker: LiveBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    with channel_of(broker) as channel:
        alerts = bound(channel, "#.jobs.#")
        channel.queue_declare("jobs.new", durable=True, arguments={"x-alert-count-up": 3})
        for _ in range(3):
            channel.basic_publish("", "jobs.new", b"x")
        key, properties, told = next_alert(channel, alerts)
        text = "queue 'jobs.new': count is 3, the alert threshold is 3"
        assert key == "count_up.jobs.new"
        assert properties.content_type == "application/json"
        assert properties.delivery_mode == 1
        assert {name: properties.headers[name] for name in ("vhost", "queue", "kind")} == {
            "vhost": "/", "queue": "jobs.new", "kind": "count_up",
        }  # fmt: skip
        assert (told["text"], told["is_on"], told["value"], told["threshold"]) == (text, True, 3, 3)
        assert f"WARNING vhost '/': count_up: {text}\n" in broker.log_text()
        (row,) = listed(broker, capsys, "jobs.new")
        assert row == told
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", row["time"])

        channel.queue_purge("jobs.new")
        key, _, told = next_alert(channel, alerts)
        assert (key, told["is_on"]) == ("count_down.jobs.new", None)
        assert [(row["kind"], row["is_on"]) for row in listed(broker, capsys, "jobs.new")] == [
            ("count_up", False), ("count_down", None),
        ]  # fmt: skip


def test_a_queue_that_flows_and_recovers(
    broker: LiveBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    with channel_of(broker) as channel:
        alerts = bound(channel, "flowed.#", "recovered.#")
        limit = {"x-queue-max-memory-bytes": 100_000}
        channel.queue_declare("flows", durable=True, arguments=limit)
        channel.confirm_delivery()
        for _ in range(40):
            channel.basic_publish("", "flows", bytes(10_000))
        key, _, told = next_alert(channel, alerts)
        assert (key, told["kind"], told["is_on"]) == ("flowed.flows", "flowed", True)
        assert f"flowed: {told['text']}\n" in broker.log_text()
        assert listed(broker, capsys, "flows") == [told]
        channel.queue_purge("flows")
        key, _, told = next_alert(channel, alerts)
        assert key == "recovered.flows"
        assert not any(row["is_on"] for row in listed(broker, capsys, "flows"))


def test_nobody_publishes_to_it_and_who_may_not_read_does_not_bind(broker: LiveBroker) -> None:
    with channel_of(broker) as channel:
        channel.confirm_delivery()
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="internal") as closed:
            channel.basic_publish(EXCHANGE, "flowed.q", b"forged")
        assert closed.value.reply_code == 403
    broker.control("add_user", name="ann", password="secret")
    broker.control("set_permissions", "/", user="ann", configure=".*", write=".*", read="^mine")
    url = broker.url.replace("guest:guest", "ann:secret")
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.queue_declare("mine")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
        channel.queue_bind("mine", EXCHANGE, "#")
    assert refused.value.reply_code == 403
    connection.close()


def test_what_is_bound_stays_bound(broker: LiveBroker) -> None:
    with channel_of(broker) as channel:
        channel.queue_declare("kept", durable=True)
        channel.queue_bind("kept", EXCHANGE, "count_up.more")
        pid = broker.control("list_vhosts")[0]["pid"]
    broker.control("restart_vhost", name="/")
    wait_until(lambda: broker.control("list_vhosts")[0]["state"] == "running")
    assert broker.control("list_vhosts")[0]["pid"] != pid
    with channel_of(broker) as channel:
        channel.queue_declare("more", arguments={"x-alert-count-up": 1})
        channel.basic_publish("", "more", b"x")
        assert next_alert(channel, "kept")[0] == "count_up.more"
