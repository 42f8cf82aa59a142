"""Connections, channels, consumers, exchanges and bindings over HTTP, of real clients (pika)."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pika
import pika.exceptions
import pytest

from tests.helpers.http_caller import HttpCaller
from tests.helpers.live_broker import LiveBroker
from tests.helpers.recorded import check_like, recorded_answer

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    path = tmp_path_factory.mktemp("clients")
    with LiveBroker(path / "data", has_http=True) as broker:
        broker.control("add_vhost", name="shop")
        broker.control(
            "set_permissions", "shop", user="guest", configure=".*", write=".*", read=".*"
        )
        yield broker


@pytest.fixture
def http(broker: LiveBroker) -> Iterator[HttpCaller]:
    with HttpCaller(broker) as http:
        yield http


@pytest.fixture
def client(broker: LiveBroker) -> Iterator[Any]:
    client = connected(broker)
    yield client
    if client.is_open:
        client.close()


def connected(broker: LiveBroker, vhost: str = "/", user: str = "guest") -> Any:
    return pika.BlockingConnection(
        pika.ConnectionParameters(
            "127.0.0.1", broker.port, vhost, pika.PlainCredentials(user, user),
            client_properties={"connection_name": "worker"},
        )
    )  # fmt: skip


def worker(client: Any, queue: str) -> Any:
    """A channel with a queue that is bound, and a consumer that has messages."""
    channel = client.channel()
    channel.confirm_delivery()
    channel.queue_declare(queue, durable=True)
    channel.exchange_declare("in", "direct")
    channel.exchange_declare("x", "topic", durable=True)
    channel.exchange_bind("x", "in", "order")
    channel.queue_bind(queue, "x", "order.#")
    for _ in range(3):
        channel.basic_publish("x", "order.eu", b"1")
    channel.basic_consume(queue, lambda *_: None, consumer_tag="t")
    client.process_data_events(0.1)
    return channel


def encoded(name: str) -> str:
    return quote(name, safe="")


def test_rows_are_like_those_that_were_recorded(http: HttpCaller, client: Any) -> None:
    worker(client, "q")
    (connection,) = http.json("GET", "connections")
    (channel,) = http.json("GET", "channels")
    assert connection["user_provided_name"] == "worker"
    assert channel["message_stats"]["confirm"] == channel["message_stats"]["publish"] == 3
    address = f"connections/{encoded(connection['name'])}"
    check_like(connection, without_capabilities(recorded_answer("connections")[0]))
    check_like(http.json("GET", address), without_capabilities(recorded_answer("connection")))
    check_like(channel, without(recorded_answer("channels")[0], "idle_since"))
    found = http.json("GET", f"channels/{encoded(channel['name'])}")
    check_like(found, recorded_answer("channel"))
    assert found["message_stats"]["publish_details"].keys() >= {"rate"}
    assert http.json("GET", f"{address}/channels?columns=name") == [{"name": channel["name"]}]
    (consumer,) = http.json("GET", "consumers/%2F")
    check_like(consumer, recorded_answer("consumers")[0])
    assert http.json("GET", "consumers/shop") == []
    assert http.json("GET", "vhosts/shop/connections") == []
    assert len(http.json("GET", "vhosts/%2F/channels")) == 1
    assert http.json("GET", "connections/username/nobody") == []
    assert len(http.json("GET", "connections/username/guest")) == 1
    http.json("GET", "connections/none", status=404)
    http.json("GET", "channels/none", status=404)


def without(row: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in names}


def without_capabilities(row: dict[str, Any]) -> dict[str, Any]:
    return without(row, "client_properties") | {"client_properties": {"product": ""}}


def test_exchanges_and_bindings(http: HttpCaller, client: Any) -> None:
    worker(client, "orders")
    check_like(http.json("GET", "exchanges/%2F/x"), recorded_answer("exchange"))
    found = {row["name"]: row for row in http.json("GET", "exchanges/%2F")}
    check_like(found["x"], recorded_answer("exchanges")[0])
    assert http.json("GET", "exchanges/%2F/amq.default?columns=name") == {"name": ""}
    both = http.json("GET", "exchanges?columns=vhost,name")
    assert {row["vhost"] for row in both if row["name"] == "amq.direct"} == {"/", "shop"}
    own = {
        "source": "x", "vhost": "/", "destination": "orders", "destination_type": "queue",
        "routing_key": "order.#", "arguments": {}, "properties_key": "order.%23",
    }  # fmt: skip
    behind = own | {
        "source": "in", "destination": "x", "destination_type": "exchange",
        "routing_key": "order", "properties_key": "order",
    }  # fmt: skip
    default = own | {"source": "", "routing_key": "orders", "properties_key": "orders"}
    assert http.json("GET", "queues/%2F/orders/bindings") == [default, own]
    assert own in http.json("GET", "exchanges/%2F/x/bindings/source")
    assert http.json("GET", "exchanges/%2F/x/bindings/destination") == [behind]
    assert default in http.json("GET", "exchanges/%2F/amq.default/bindings/source")
    assert http.json("GET", "bindings/%2F/e/x/q/orders") == [own]
    assert http.json("GET", "bindings/%2F/e/in/e/x") == [behind]
    for key in ("order.%2523", "order.%23"):
        assert http.json("GET", f"bindings/%2F/e/x/q/orders/{key}") == own
    assert http.json("GET", "bindings/%2F/e/in/e/x/order") == behind
    http.json("GET", "bindings/%2F/e/in/e/x/other", status=404)
    http.json("GET", "queues/%2F/none/bindings", status=404)
    http.json("GET", "exchanges/%2F/none/bindings/source", status=404)
    assert default in http.json("GET", "bindings")
    assert http.json("GET", "bindings/shop") == []
    assert set(own) == set(recorded_answer("bindings-one"))


def test_a_client_that_is_closed_gets_the_reason(http: HttpCaller, broker: LiveBroker) -> None:
    client, other = connected(broker, "shop"), connected(broker)
    name = http.json("GET", "vhosts/shop/connections")[0]["name"]
    http.headers["X-Reason"] = "for repairs"
    assert http.ask("DELETE", f"connections/{encoded(name)}") == (204, b"")
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as caught:
        client.process_data_events(10)
    assert (caught.value.reply_code, caught.value.reply_text) == (
        320, "CONNECTION_FORCED - for repairs",
    )  # fmt: skip
    http.json("DELETE", f"connections/{encoded(name)}", status=404)
    assert other.is_open
    del http.headers["X-Reason"]
    assert http.ask("DELETE", "connections/username/guest") == (204, b"")
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as caught:
        other.process_data_events(10)
    assert caught.value.reply_text == "CONNECTION_FORCED - Closed via management plugin"
    found = http.json("GET", "penstock/connections/closed")
    (first,) = [row for row in found if row["vhost"] == "shop"]
    assert (first["name"], first["code"], first["closed_by"]) == (name, 320, "server")
    assert first["text"].endswith("for repairs")


def test_who_sees_whose_connections(http: HttpCaller, broker: LiveBroker, client: Any) -> None:
    broker.control("add_user", name="eve", password="eve", tags=["management"])
    broker.control("set_permissions", "/", user="eve", configure="", write="", read="")
    name = encoded(http.json("GET", "connections")[0]["name"])
    with HttpCaller(broker, "eve") as eve:
        assert eve.json("GET", "connections") == eve.json("GET", "channels") == []
        eve.json("GET", f"connections/{name}", status=404)
        eve.json("DELETE", f"connections/{name}", status=404)
        eve.json("GET", "vhosts/shop/connections", status=401)
        own = connected(broker, user="eve")
        assert len(eve.json("GET", "connections")) == 1
        assert len(http.json("GET", "connections")) == 2
        own.close()
    assert client.is_open
