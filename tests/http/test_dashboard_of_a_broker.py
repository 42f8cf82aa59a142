"""The dashboard's server side of a broker that really runs: its session, events, and its end."""

import contextlib
import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.live_broker import LiveBroker

pytestmark = pytest.mark.real


@contextlib.contextmanager
def stream(broker: LiveBroker, topics: str, cookie: str) -> Iterator[Iterator[tuple[str, Any]]]:
    """The events of a stream: (topic, data)."""
    connection = http.client.HTTPConnection(broker.host, broker.http_port, timeout=120)
    with contextlib.closing(connection):
        address = f"/api/penstock/events?topics={topics}"
        connection.request("GET", address, headers={"Cookie": cookie})
        reply = connection.getresponse()
        assert reply.status == 200, reply.read()
        assert reply.headers["content-type"].startswith("text/event-stream")

        def events() -> Iterator[tuple[str, Any]]:
            topic = ""
            while line := reply.readline():
                name, _, value = line.decode().rstrip("\n").partition(": ")
                if name == "event":
                    topic = value
                elif name == "data":
                    yield topic, json.loads(value)

        yield events()


def login(broker: LiveBroker) -> str:
    """The cookie of guest."""
    connection = http.client.HTTPConnection(broker.host, broker.http_port, timeout=120)
    with contextlib.closing(connection):
        body = json.dumps({"username": "guest", "password": "guest"})
        connection.request("POST", "/api/login", body, {"Content-Type": "application/json"})
        reply = connection.getresponse()
        assert reply.status == 200, reply.read()
        return reply.headers["set-cookie"].partition(";")[0]


def test_events_follow_the_broker_until_it_stops(tmp_path: Path) -> None:
    with LiveBroker(tmp_path / "data", has_http=True) as broker:
        broker.control("add_vhost", name="shop")
        broker.control("declare_queue", "/", queue="q")
        with stream(broker, "overview,queue:%252F:q", login(broker)) as events:
            broker.control("publish", "/", routing_key="q", bodies=["a"] * 5, properties={})
            has_rate = is_seen = False
            said = ""
            while not (has_rate and is_seen and "no consumer" in said):
                topic, data = next(events)
                if topic == "overview":
                    assert data["vhosts"].keys() >= {"/"}
                    has_rate = has_rate or "published" in data["vhosts"]["/"]
                    said = data["problems"][0]["text"] if data["problems"] else ""
                    assert data["node"]["disk_free"] > 0
                else:
                    is_seen = is_seen or data["ready"] == 5
                    assert topic == "queue:%2F:q"
            assert said.startswith("queue 'q': 5 messages and no consumer")
            broker.stop()
            for _ in events:  # they have an end
                pass


def test_the_past_is_there_before_anybody_looks(tmp_path: Path) -> None:
    with LiveBroker(tmp_path / "data", has_http=True) as broker:
        headers = {"Cookie": login(broker)}
        connection = http.client.HTTPConnection(broker.host, broker.http_port, timeout=120)
        with contextlib.closing(connection):
            connection.request("GET", "/api/penstock/history/%2F", headers=headers)
            found = json.loads(connection.getresponse().read())
        assert found["step"] == 1
        assert all(one["ready"] == 0 for one in found["samples"])
