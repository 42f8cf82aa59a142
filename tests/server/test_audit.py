"""The audit log of a broker: what clients, operators and HTTP have changed, and failed logins."""

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from pamqp import commands

from tests.helpers.live_broker import Broker, LiveBroker
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
