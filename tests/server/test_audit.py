"""The audit log of a broker: what clients, operators and HTTP have changed, and failed logins."""

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pika
import pytest
from pamqp import commands
from pika.exceptions import ChannelClosedByBroker, UnroutableError

from penstock.operation_table import AUDIT_STREAM
from tests.helpers.live_broker import Broker, LiveBroker, wait_until
from tests.helpers.wire import Wire

Exchange, Queue = commands.Exchange, commands.Queue


def test_who_did_what_from_where(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with LiveBroker(
        tmp_path / "data", environment={"PENSTOCK_AUDIT_LOG": str(path)}, has_http=True
    ) as broker:
        wire = Wire(broker).open()
        wire.channel()
        for _ in range(2):  # the second time there is nothing new
            wire.send(Queue.Declare(queue="q"), 1)
            wire.expect(Queue.DeclareOk, 1)
        wire.send(Exchange.Declare(exchange="x", exchange_type="topic"), 1)
        wire.expect(Exchange.DeclareOk, 1)
        wire.send(Queue.Bind(queue="q", exchange="x", routing_key="k"), 1)
        wire.expect(Queue.BindOk, 1)
        wire.publish(1, "q")
        wire.send(Queue.Purge(queue="q"), 1)
        wire.expect(Queue.PurgeOk, 1)
        wire.send(Queue.Delete(queue="q"), 1)
        wire.expect(Queue.DeleteOk, 1)
        host, port = wire.sock.getsockname()
        wire.sock.close()
        broker.control("declare_queue", "/", queue="mine")
        broker.control("add_user", name="ann", password="secret")
        broker.control("set_permissions", "/", user="ann", configure="", write="", read="")
        bad = Wire(Broker(broker.host, broker.port, "ann", "wrong"))
        bad.hello()
        bad.log_in(None, None)
        bad.expect(commands.Connection.Close)
        bad.sock.close()
        asked = urllib.request.Request(
            f"http://127.0.0.1:{broker.http_port}/api/streams/%2F",
            headers={"Authorization": "Bearer x"},
        )
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(asked)
        broker.stop()
    text = path.read_text()
    assert "secret" not in text
    found = [json.loads(line) for line in text.splitlines()]
    by_event: dict[str, list[dict[str, Any]]] = {}
    for entry in found:
        assert entry.pop("time")
        by_event.setdefault(entry.pop("event"), []).append(entry)
    who = {"user": "guest", "from": f"{host}:{port}", "vhost": "/"}
    operator = {"user": "operator", "from": "control socket"}
    assert by_event["declare_queue"][0] == {**who, "args": {"queue": "q"}}
    mine = by_event["declare_queue"][1]
    assert mine["args"]["queue"] == "mine"
    assert {name: mine[name] for name in operator} == operator
    assert len(by_event["declare_queue"]) == 2
    assert by_event["declare_exchange"] == [{**who, "args": {"exchange": "x", "type": "topic"}}]
    bound = {"queue": "q", "exchange": "x", "routing_key": "k"}
    assert by_event["bind_queue"] == [{**who, "args": bound}]
    assert by_event["purge_queue"] == [{**who, "args": {"queue": "q"}}]
    assert by_event["delete_queue"] == [{**who, "args": {"queue": "q"}}]
    assert by_event["add_user"] == [{**operator, "args": {"name": "ann"}}]
    assert by_event["set_permissions"] == [{**operator, "vhost": "/", "args": {"user": "ann"}}]
    amqp, http = by_event["login_failed"]
    assert amqp == {"user": "ann", "from": "127.0.0.1", "why": "invalid credentials"}
    assert http["from"] == "127.0.0.1"
    assert set(by_event) == {
        "declare_queue", "declare_exchange", "bind_queue", "purge_queue", "delete_queue",
        "add_user", "set_permissions", "login_failed",
    }  # fmt: skip


def entries_of(url: str, n: int) -> list[dict[str, Any]]:
    """The first n entries of the stream."""
    found: list[dict[str, Any]] = []
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=100)
        given = {"x-stream-offset": "first"}
        for method, properties, body in channel.consume(AUDIT_STREAM, arguments=given):
            channel.basic_ack(method.delivery_tag)
            found.append(json.loads(body))
            assert properties.content_type == "application/json"
            assert properties.type == found[-1]["event"]
            if len(found) == n:
                return found
    raise AssertionError(f"{n} entries are expected, the stream ended after {found}")


def test_the_stream_has_what_the_file_has_and_clients_cannot_change_it(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    settings = {"PENSTOCK_AUDIT_LOG": str(path), "PENSTOCK_AUDIT_VHOST": "/"}
    with LiveBroker(tmp_path / "data", environment=settings) as broker:
        broker.control("declare_queue", "/", queue="q")
        broker.control("add_user", name="ann", password="secret", tags=["administrator"])
        broker.control("delete_queue", "/", queue="q")
        found = entries_of(broker.url, 3)
        assert [one["event"] for one in found] == ["declare_queue", "add_user", "delete_queue"]
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            for forbidden in (
                lambda channel: channel.queue_delete(AUDIT_STREAM),
                lambda channel: channel.queue_bind(AUDIT_STREAM, "amq.fanout"),
            ):
                with pytest.raises(ChannelClosedByBroker, match="it can be read only"):
                    forbidden(connection.channel())
            channel = connection.channel()
            channel.confirm_delivery()
            with pytest.raises(UnroutableError):
                channel.basic_publish("", AUDIT_STREAM, b"forged", mandatory=True)
        broker.stop()
        assert found == [json.loads(line) for line in path.read_text().splitlines()]
        broker.start()
        broker.control("delete_user", name="ann")
        *first, last = entries_of(broker.url, 4)
        assert (first, last["event"]) == (found, "delete_user")


def test_a_vhost_that_cannot_take_entries_stops_nothing(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    settings = {"PENSTOCK_AUDIT_LOG": str(path), "PENSTOCK_AUDIT_VHOST": "audit"}
    with LiveBroker(tmp_path / "data", environment=settings) as broker:
        broker.control("declare_queue", "/", queue="q")  # the vhost is not there yet
        broker.control("add_vhost", name="audit")
        broker.control("set_permissions", "audit", user="guest", configure="", write="", read=".*")
        assert entries_of(broker.url_of("audit"), 2)[0]["left_out"] == 1
        broker.control("stop_vhost", name="audit")
        broker.control("delete_queue", "/", queue="q")

        def left_out() -> dict[str, int]:
            found: dict[str, int] = broker.control("node_metrics")["values"]["audit_left_out_total"]
            return found

        wait_until(lambda: left_out()["stream"] == 3)
        assert left_out()["file"] == 0
        broker.control("start_vhost", name="audit")
        assert entries_of(broker.url_of("audit"), 3)[2]["left_out"] == 2
        broker.stop()
    events = [json.loads(line)["event"] for line in path.read_text().splitlines()]
    assert events == [
        "declare_queue", "add_vhost", "set_permissions", "stop_vhost", "delete_queue",
        "start_vhost",
    ]  # fmt: skip
    assert "no such vhost" in broker.log_text()
