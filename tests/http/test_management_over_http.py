"""RabbitMQ's HTTP API of a broker that really runs: who may, what is audited, a vhost that is down.

The forms of answers, row by row: tests/unit/http/test_management.py.
"""

import json
from pathlib import Path

import pytest

from tests.helpers.http_caller import HttpCaller
from tests.helpers.live_broker import LiveBroker, wait_until

pytestmark = pytest.mark.real


def test_what_the_node_answers_and_changes(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with LiveBroker(
        tmp_path / "data", environment={"PENSTOCK_AUDIT_LOG": str(path)}, has_http=True
    ) as broker, HttpCaller(broker) as http:  # fmt: skip
        assert http.json("GET", "whoami") == {"name": "guest", "tags": ["administrator"]}
        assert http.ask("PUT", "cluster-name", {"name": "lab"}) == (204, b"")
        assert http.json("GET", "cluster-name") == {"name": "lab"}
        overview = http.json("GET", "overview")
        assert overview["cluster_name"] == "lab"
        ports = {one["protocol"]: one["port"] for one in overview["listeners"]}
        assert ports == {"amqp": broker.port, "http": broker.http_port}
        assert http.json("GET", "aliveness-test/%2F") == {"status": "ok"}
        for check in ("alarms", "virtual-hosts", f"port-listener/{broker.port}", "is-in-service"):
            assert http.json("GET", f"health/checks/{check}")["status"] == "ok"
        (node,) = http.json("GET", "nodes?columns=name,os_pid,mem_used,penstock.processes")
        kinds = [one["process"] for one in node["penstock"]["processes"]]
        assert kinds == ["supervisor", "vhost", "http"]
        assert http.json("GET", f"nodes/{node['name']}")["os_pid"] == node["os_pid"]
        http.json("GET", "nodes/rabbit@x", status=404)
        assert http.json("GET", "penstock/alarms") == []
        assert len(http.json("GET", "penstock/processes")) == 3
        assert http.json("GET", f"auth/attempts/{node['name']}")[0]["auth_attempts_failed"] == 0
        assert http.ask("POST", "rebalance/queues") == (204, b"")
        broker.control("declare_queue", "/", queue="q")
        assert [row["name"] for row in http.json("GET", "queues")] == ["q"]
        assert http.json("GET", "queues/%2F/q?columns=name,vhost") == {"name": "q", "vhost": "/"}
        reply = http.json("GET", "queues/%2F?page=2&page_size=1", status=400)
        assert reply == {
            "error": "page_out_of_range",
            "reason": "Page out of range, page: 2 page size: 1, expected at most page 1",
        }
        http.json("GET", "queues/%2F?page=1&name=(&use_regex=true", status=400)
        http.json("GET", "queues/%2F/none", status=404)
        broker.control("add_user", name="eve", password="eve", tags=["management"])
        with HttpCaller(broker, "eve") as eve:
            assert eve.json("GET", "vhosts") == []
            assert eve.json("PUT", "cluster-name", {"name": "mine"}, 401) == {
                "error": "not_authorised",
                "reason": "Not administrator user",
            }
            eve.json("GET", "aliveness-test/%2F", status=401)
        broker.stop()
    entry = next(
        one
        for one in map(json.loads, path.read_text().splitlines())
        if one["event"] == "set_global_parameter"
    )
    assert entry["user"] == "guest"
    assert entry["from"].startswith("127.0.0.1:")
    assert entry["args"] == {"name": "cluster_name", "value": "lab"}


def test_a_vhost_that_is_stopped_is_listed_with_its_reason(tmp_path: Path) -> None:
    with LiveBroker(tmp_path / "data", has_http=True) as broker, HttpCaller(broker) as http:
        broker.control("add_vhost", name="shop", description="sells", tags=["a"])
        broker.control("stop_vhost", name="shop")
        first, second = http.json("GET", "vhosts")
        assert (first["name"], list(first["cluster_state"].values())) == ("/", ["running"])
        assert (second["name"], list(second["cluster_state"].values())) == ("shop", ["stopped"])
        assert second["penstock"]["why"] == "stopped by an operator"
        assert second["metadata"] == {"description": "sells", "tags": ["a"]}
        found = http.json("GET", "vhosts?page=1&page_size=1&name=sho&columns=name")
        assert (found["items"], found["total_count"]) == ([{"name": "shop"}], 2)
        assert http.json("GET", "vhosts/shop") == second
        assert http.json("GET", "queues?page=1")["penstock"] == {"down": ["shop"]}
        assert http.json("GET", "overview")["object_totals"]["queues"] == 0
        http.json("GET", "queues/shop", status=503)
        broker.control("add_vhost", name="unopened")
        assert http.json("GET", "queues") == []
        assert http.json("GET", "vhosts")[2]["penstock"]["pid"] is None  # nobody has started it
        http.json("GET", "vhosts/none", status=404)


def test_queues_in_pages_their_messages_and_who_has_some(tmp_path: Path) -> None:
    with LiveBroker(tmp_path / "data", has_http=True) as broker, HttpCaller(broker) as http:
        broker.control("add_vhost", name="shop")
        for vhost, name in (("/", "orders"), ("/", "a b/c"), ("shop", "orders")):
            broker.control("declare_queue", vhost=vhost, queue=name)
        for n in range(3):
            broker.control("publish", routing_key="orders", bodies=[f"order {n}"], properties={})
        assert [row["name"] for row in http.json("GET", "queues")] == ["a b/c", "orders", "orders"]
        page = http.json("GET", "queues?page=1&page_size=1&sort=messages&sort_reverse=true")
        assert (page["items"][0]["messages"], page["total_count"]) == (3, 3)
        assert page["items"][0]["vhost"] == "/"
        assert http.json("GET", "queues/%2F/a%20b%2Fc?columns=name") == {"name": "a b/c"}
        http.json("GET", "queues/%2F/none", status=404)
        assert http.json("GET", "queues/%2F?page=9", status=400)["error"] == "page_out_of_range"
        broken = http.json("GET", "queues/%2F?page=1&name=(&use_regex=true", status=400)
        assert "expected a regular expression" in broken["reason"]
        ours = "penstock/queues/%2F/orders"
        found = http.json("GET", f"{ours}/messages?count=9&body=r%201")
        assert [one["payload"] for one in found["messages"]] == ["order 1"]
        assert (found["scanned"], found["is_end"]) == (3, True)
        assert http.json("GET", f"{ours}/unacked") == []
        assert http.json("GET", "queues/%2F/orders")["messages_ready"] == 3


def test_alarms_say_why_since_when_and_which_queues(tmp_path: Path) -> None:
    with LiveBroker(tmp_path / "data", has_http=True) as broker, HttpCaller(broker) as http:
        broker.control("declare_queue", "/", queue="q")
        broker.control("publish", "/", routing_key="q", bodies=["a" * 1000])
        broker.control("set_config", key="storage.disk_free_limit", value="8000 TB")
        wait_until(lambda: bool(http.json("GET", "penstock/alarms")), "an alarm")
        (alarm,) = http.json("GET", "penstock/alarms")
        assert (alarm["vhost"], alarm["reason"]) == ("/", "disk")
        assert alarm["since_ms"] > 1_700_000_000_000
        assert [row["name"] for row in alarm["largest"]] == ["q"]
        wait_until(lambda: http.ask("GET", "health/checks/alarms")[0] == 503, "the check")
        found = http.json("GET", "health/checks/local-alarms", status=503)
        assert found["alarms"][0]["resource"] == "disk"
        (node,) = http.json("GET", "nodes")
        assert (node["disk_free_alarm"], node["mem_alarm"]) == (True, False)
