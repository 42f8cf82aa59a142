"""RabbitMQ's own rabbitmqadmin, where it is installed, through the verbs that change something."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest

from tests.helpers.live_broker import LiveBroker

RABBITMQADMIN = shutil.which("rabbitmqadmin")

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(RABBITMQADMIN is None, reason="rabbitmqadmin is not installed"),
]

Run = Callable[..., str]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    with LiveBroker(tmp_path_factory.mktemp("admin") / "data", has_http=True) as live:
        live.control("await_startup")
        yield live


@pytest.fixture
def run(broker: LiveBroker, tmp_path: Path) -> Run:
    """Run rabbitmqadmin; return what it prints. It must succeed."""

    def ran(*words: str, stdin: str = "") -> str:
        assert RABBITMQADMIN is not None
        done = subprocess.run(
            [
                sys.executable, RABBITMQADMIN, "-H", broker.host, "-P", str(broker.http_port),
                *words,
            ],
            input=stdin, capture_output=True, text=True, cwd=tmp_path, check=False,
            env={**os.environ, "HOME": str(tmp_path)},
        )  # fmt: skip
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    return ran


def test_what_it_declares_it_deletes(run: Run, broker: LiveBroker) -> None:
    run("declare", "vhost", "name=shop", "tracing=false")
    run("declare", "user", "name=ada", "password=s3cret", "tags=management,policymaker")
    run("declare", "user", "name=ida", "password_hash=", "tags=")
    run("declare", "permission", "vhost=shop", "user=ada", "configure=.*", "write=.*", "read=.*")
    run("declare", "permission", "vhost=shop", "user=guest", "configure=.*", "write=.*", "read=.*")
    shop = ("-V", "shop")
    run(*shop, "declare", "queue", "name=orders", "durable=true", 'arguments={"x-max-length": 9}')
    run(*shop, "declare", "queue", "name=events", "queue_type=stream")
    run(*shop, "declare", "exchange", "name=in", "type=topic")
    run(*shop, "declare", "binding", "source=in", "destination=orders", "routing_key=a.#")
    policy = ('definition={"message-ttl": 60000}', "priority=1", "apply-to=queues")
    run(*shop, "declare", "policy", "name=ttl", "pattern=^orders$", *policy)
    limit = 'definition={"max-length": 100}'
    run(*shop, "declare", "operator_policy", "name=cap", "pattern=.*", limit)
    value = 'value={"src-uri": "amqp://", "dest-uri": "amqp://"}'
    run(*shop, "declare", "parameter", "component=shovel", "name=move", value)
    run("declare", "vhost_limit", "vhost=shop", "name=max-queues", "value=50")
    (orders,) = [q for q in broker.control("list_queues", "shop") if q["name"] == "orders"]
    assert orders["arguments"] == {"x-max-length": 9}
    assert (orders["policy"], orders["operator_policy"]) == ("ttl", "cap")

    def listed(*words: str) -> list[dict[str, object]]:
        found: list[dict[str, object]] = json.loads(run("-f", "raw_json", "list", *words))
        return found

    assert {row["name"] for row in listed("users")} == {"ada", "guest", "ida"}
    assert {row["name"] for row in listed("vhosts")} == {"/", "shop"}
    assert len(listed("permissions")) == 3
    assert [row["name"] for row in listed("policies")] == ["ttl"]
    assert [row["name"] for row in listed("operator_policies")] == ["cap"]
    assert {row["component"] for row in listed("parameters")} == {
        "operator_policy", "shovel", "vhost-limits"
    }  # fmt: skip
    assert listed("vhost_limits") == [{"vhost": "shop", "value": {"max-queues": 50}}]

    run(*shop, "export", "shop.json")
    run("export", "all.json")
    run("delete", "vhost_limit", "vhost=shop", "name=max-queues")
    run(*shop, "delete", "parameter", "component=shovel", "name=move")
    run(*shop, "delete", "operator_policy", "name=cap")
    run(*shop, "delete", "policy", "name=ttl")
    binding = ("source=in", "destination_type=queue", "destination=orders", "properties_key=a.%23")
    run(*shop, "delete", "binding", *binding)
    run(*shop, "delete", "exchange", "name=in")
    run(*shop, "delete", "queue", "name=orders")
    run("delete", "permission", "vhost=shop", "user=ada")
    run("delete", "user", "name=ida")
    run(*shop, "import", "shop.json")
    assert {q["name"] for q in broker.control("list_queues", "shop")} == {"orders", "events"}
    run("delete", "vhost", "name=shop")
    run("delete", "user", "name=ada")


def test_messages_come_and_go(run: Run) -> None:
    run("declare", "queue", "name=letters", "durable=true")
    properties = 'properties={"delivery_mode": 2, "headers": {"n": 1}}'
    said = run("publish", "routing_key=letters", "payload=hello", properties)
    assert "Message published" in said
    assert "NOT routed" in run("publish", "routing_key=nobody", "payload=x")
    run("publish", "exchange=amq.default", "routing_key=letters", stdin="from stdin")
    got = run("get", "queue=letters", "count=1", "ackmode=ack_requeue_true")
    assert "hello" in got
    run("get", "queue=letters", "ackmode=ack_requeue_false", "payload_file=one.txt")
    rows = json.loads(run("-f", "raw_json", "get", "queue=letters", "count=5"))
    assert [row["payload"] for row in rows] == ["from stdin"]
    run("purge", "queue", "name=letters")
    run("delete", "queue", "name=letters")


def test_what_it_lists_and_closes(run: Run, broker: LiveBroker) -> None:
    run("declare", "queue", "name=watched", "durable=true")
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        connection.channel().basic_consume("watched", print)
        connection.process_data_events(0)

        def listed(*words: str) -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = json.loads(run("-f", "raw_json", "list", *words))
            return found

        assert [row["name"] for row in listed("queues", "name")] == ["watched"]
        assert {row["name"] for row in listed("exchanges")} >= {"", "amq.topic"}
        assert [row["destination"] for row in listed("bindings")] == ["watched"]
        assert [row["queue"]["name"] for row in listed("consumers")] == ["watched"]
        assert len(listed("channels")) == len(listed("nodes")) == 1
        (one,) = listed("connections")
        assert "Penstock" in run("-f", "raw_json", "show", "overview")
        for kind in ("queues", "connections", "channels", "nodes", "vhosts"):
            assert "items" not in run("list", kind)  # its table, of the columns that it chooses
        run("close", "connection", f"name={one['name']}")
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker):
            connection.process_data_events(None)
    assert "declare queue" in run("help", "subcommands")


def test_a_limit_is_an_error(run: Run, broker: LiveBroker) -> None:
    run("declare", "vhost", "name=small")
    run("declare", "vhost_limit", "vhost=small", "name=max-queues", "value=1")
    run("-V", "small", "declare", "queue", "name=one")
    with pytest.raises(AssertionError, match="queue limit in vhost"):
        run("-V", "small", "declare", "queue", "name=two")
    run("delete", "vhost", "name=small")
