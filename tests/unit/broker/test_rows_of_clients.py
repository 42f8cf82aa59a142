"""Rows of connections, channels, consumers, exchanges and bindings, beside RabbitMQ's."""

from typing import Any

import pytest

from penstock.access.permissions import Identity, everything
from penstock.broker.rates import INTERVAL_S
from penstock.codec.spec import (
    BasicAck,
    BasicConsume,
    BasicConsumeOk,
    BasicReject,
    ConfirmSelect,
    ConfirmSelectOk,
    ExchangeBind,
    ExchangeBindOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    TxSelect,
    TxSelectOk,
)
from tests.helpers.broker_rig import RigClient
from tests.helpers.operation_rig import OperationRig
from tests.helpers.recorded import check_like, recorded_answer


@pytest.fixture
def rig() -> OperationRig:
    return OperationRig()


@pytest.fixture
def c(rig: OperationRig) -> RigClient:
    return busy(rig, "ann")


def busy(rig: OperationRig, user: str) -> RigClient:
    """A client that publishes to its queue and consumes it, bound to an exchange of its own."""
    c = rig.client(everything(user)).open(1)
    c.call(1, ExchangeDeclare(exchange=f"x.{user}", type="topic", durable=True), ExchangeDeclareOk)
    c.call(1, QueueDeclare(queue=f"q.{user}", durable=True), QueueDeclareOk)
    bound = QueueBind(queue=f"q.{user}", exchange=f"x.{user}", routing_key="order.#")
    c.call(1, bound, QueueBindOk)
    c.call(1, BasicConsume(queue=f"q.{user}", consumer_tag=f"t.{user}"), BasicConsumeOk)
    for _ in range(10):
        c.publish(1, f"x.{user}", "order.eu", b"1")
    rig.turn()
    return c


def rows(rig: OperationRig, kind: str, channel: Any = None, **args: object) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = rig.result("list_rows", channel, kind=kind, **args)
    return found


def row(rig: OperationRig, kind: str, name: str, **args: object) -> dict[str, Any]:
    found: dict[str, Any] = rig.result("describe_row", kind=kind, name=name, **args)
    return found


def passes(rig: OperationRig) -> None:
    rig.tick(INTERVAL_S)


def as_user(name: str, *tags: str) -> dict[str, object]:
    return Identity(name, frozenset(tags), ".*", ".*", ".*").facts()


@pytest.mark.parametrize(
    ("kind", "name", "recorded"),
    [
        ("connections", "c0", "connection"), ("channels", "c0 (1)", "channel"),
        ("exchanges", "x.ann", "exchange"),
    ],
)  # fmt: skip
def test_one_has_what_the_recorded_one_has(
    rig: OperationRig, kind: str, name: str, recorded: str
) -> None:
    busy_client = rig.client(everything("ann"))
    busy_client.lose()
    rig = OperationRig()
    busy(rig, "ann")
    theirs = recorded_answer(recorded)
    theirs.pop("user_provided_name", None)  # of a client that has named its connection
    theirs.pop("client_properties", None)
    check_like(row(rig, kind, name), theirs)


@pytest.mark.parametrize("kind", ["connections", "channels", "consumers", "exchanges", "bindings"])
def test_a_list_has_what_the_recorded_one_has(rig: OperationRig, c: RigClient, kind: str) -> None:
    passes(rig)
    passes(rig)
    (theirs, *_) = recorded_answer(kind)
    theirs.pop("user_provided_name", None)
    theirs.pop("client_properties", None)
    ours = next(one for one in rows(rig, kind) if kind != "exchanges" or one["name"] == "x.ann")
    check_like(ours, theirs)


def test_a_connection(rig: OperationRig) -> None:
    client = rig.client(everything("ann"), **{"connection.blocked": True}).open(1).open(2)
    found = row(rig, "connections", "c0")
    assert (found["user"], found["channels"], found["state"]) == ("ann", 2, "running")
    assert found["recv_oct"] == client.handler.received_bytes > 0
    assert found["recv_cnt"] >= 2
    assert found["client_properties"]["capabilities"] == {"connection.blocked": True}
    assert (found["protocol"], found["auth_mechanism"]) == ("AMQP 0-9-1", "PLAIN")
    assert found["penstock"] == {"blocked_by": "", "blocked_since": ""}
    assert "user_provided_name" not in found
    for name in ("q", "x"):
        rig.vhost.monitor.disk_alarm(True)
        rig.vhost.update_alarms()
        client.publish(1, "", name, b"1")
    found = row(rig, "connections", "c0")["penstock"]
    assert found["blocked_by"] == "disk"
    assert found["blocked_since"].startswith("20")


def test_who_has_declared_a_queue(rig: OperationRig, c: RigClient) -> None:
    assert row(rig, "queues", "q.ann")["user_who_performed_action"] == "ann"


def test_samples_of_the_totals(rig: OperationRig, c: RigClient) -> None:
    for _ in range(3):
        c.publish(1, "x.ann", "order.eu", b"1")
        rig.turn()
        passes(rig)
    asked = {"msg_rates_age": 60, "msg_rates_incr": 5, "lengths_age": 60, "data_rates_age": 60}
    totals = rig.result("vhost_totals", samples=asked)
    samples = totals["message_stats"]["publish_details"]["samples"]
    assert [one["sample"] for one in samples] == [13, 12, 11]
    assert totals["queue_totals"]["messages"] == 13
    assert totals["queue_totals"]["messages_details"]["samples"][0]["sample"] == 13
    assert totals["recv_oct_details"]["samples"]
    rig.result("purge_queue", queue="q.ann")
    assert (
        rig.result("vhost_totals")["queue_totals"]["messages"]
        == 13 - totals["queue_totals"]["messages_ready"]
    )


def test_lengths_of_all_queues_also_of_those_that_nobody_has_opened(rig: OperationRig) -> None:
    for name in ("a", "b", "gone"):
        rig.result("declare_queue", queue=name)
        rig.put(name, b"1", b"2")
    rig.result("lease_queue", queue="b", reader="r", messages=1)
    rig.result("delete_queue", queue="gone")
    rig.restart()
    found = rig.result("vhost_totals")["queue_totals"]
    numbers = [found[f"messages{kind}"] for kind in ("", "_ready", "_unacknowledged")]
    assert numbers == [4, 3, 1]


def test_rates_of_connections_channels_exchanges_and_all(rig: OperationRig, c: RigClient) -> None:
    passes(rig)
    passes(rig)
    for _ in range(50):
        c.publish(1, "x.ann", "order.eu", b"1")
    rig.turn()
    passes(rig)
    assert row(rig, "connections", "c0")["recv_oct_details"]["rate"] > 100
    stats = row(rig, "channels", "c0 (1)")["message_stats"]
    assert (stats["publish"], stats["publish_details"]) == (60, {"rate": 10.0})
    stats = row(rig, "exchanges", "x.ann")["message_stats"]
    assert (stats["publish_out"], stats["publish_out_details"]) == (60, {"rate": 10.0})
    totals = rig.result("vhost_totals")
    assert totals["message_stats"]["publish_details"] == {"rate": 10.0}
    assert totals["recv_oct_details"]["rate"] > 100
    assert totals["churn_rates"]["channel_created_details"] == {"rate": 0.0}
    passes(rig)
    assert row(rig, "channels", "c0 (1)")["message_stats"]["publish_details"] == {"rate": 0.0}


def test_a_channel_that_does_nothing_is_idle(rig: OperationRig, c: RigClient) -> None:
    passes(rig)
    c.publish(1, "x.ann", "order.eu", b"1")
    passes(rig)
    assert "idle_since" not in row(rig, "channels", "c0 (1)")
    passes(rig)
    passes(rig)
    assert row(rig, "channels", "c0 (1)")["idle_since"].startswith("20")


def test_a_channel(rig: OperationRig, c: RigClient) -> None:
    c.open(2)
    c.call(2, ConfirmSelect(), ConfirmSelectOk)
    c.open(3)
    c.call(3, TxSelect(), TxSelectOk)
    c.publish(3, "", "q.ann", b"1")
    found = {one["number"]: one for one in rows(rig, "channels")}
    assert found[1]["messages_unacknowledged"] == 10
    assert found[1]["message_stats"]["deliver"] == 10
    assert (found[2]["confirm"], "message_stats" in found[2]) == (True, False)
    assert (found[3]["transactional"], found[3]["messages_uncommitted"]) == (True, 1)
    assert found[1]["connection_details"]["name"] == "c0"
    c.send(3, BasicAck(delivery_tag=1))  # not of this channel: it ends
    rig.turn()
    assert len(rows(rig, "channels", of={"connection": "c0"})) == 2
    assert rows(rig, "channels", of={"connection": "other"}) == []
    (consumer,) = row(rig, "channels", "c0 (1)")["consumer_details"]
    assert consumer["consumer_tag"] == "t.ann"


def test_acks_of_a_transaction(rig: OperationRig, c: RigClient) -> None:
    client = rig.client(everything("bob")).open(1)
    client.call(1, TxSelect(), TxSelectOk)
    c.send(1, BasicReject(delivery_tag=1, requeue=False))
    client.call(1, BasicConsume(queue="q.ann", consumer_tag="t"), BasicConsumeOk)
    for _ in range(4):
        client.publish(1, "x.ann", "order.eu", b"1")
    assert row(rig, "channels", "c1 (1)")["messages_uncommitted"] == 4
    assert row(rig, "channels", "c1 (1)")["acks_uncommitted"] == 0


def test_a_manager_sees_its_own_connections_and_channels(rig: OperationRig) -> None:
    for user in ("ann", "bob"):
        busy(rig, user)
    for kind in ("connections", "channels"):
        assert [one["user"] for one in rows(rig, kind, as_user=as_user("bob", "management"))] == [
            "bob"
        ]
        assert len(rows(rig, kind, as_user=as_user("bob", "monitoring"))) == 2
        name = rows(rig, kind)[0]["name"]
        error = rig.refusal(
            "describe_row", kind=kind, name=name, as_user=as_user("bob", "management")
        )
        assert error.code == 404
    assert len(rows(rig, "consumers", as_user=as_user("bob", "management"))) == 2


def test_lists_are_sorted_by_any_column(rig: OperationRig) -> None:
    for user in ("ann", "bob"):
        busy(rig, user)
    rig.clients[1].open(2)
    rig.clients[1].publish(1, "x.bob", "order.eu", b"1")
    rig.turn()
    by: dict[str, list[tuple[str, str]]] = {
        "connections": [("channels", "c1"), ("user", "c1"), ("recv_oct", "c1")],
        "channels": [("message_stats.publish", "c1 (1)"), ("number", "c1 (2)")],
        "exchanges": [("message_stats.publish_in", "x.bob"), ("name", "x.bob")],
    }
    for kind, columns in by.items():
        for column, first in columns:
            found = rows(rig, kind, sort=column, reverse=True)
            assert found[0]["name"] == first, (kind, column)
    for column in ("connected_at", "recv_oct_details.rate", "client_properties", "node"):
        assert len(rows(rig, "connections", sort=column)) == 2
    for column in ("message_stats.publish_details.rate", "connection_details.name"):
        assert len(rows(rig, "channels", sort=column)) == 3
    for column in ("message_stats.publish_in_details.rate", "type"):
        assert rows(rig, "exchanges", sort=column)
    found = rows(rig, "bindings", sort="routing_key", reverse=True)
    assert found[0]["routing_key"] == "q.bob"


def test_closed_connections(rig: OperationRig, c: RigClient) -> None:
    rig.client(everything("bob")).lose()
    rig.result("close_connections", name="c0", reason="enough")
    c.lose()
    first, second = rows(rig, "closed_connections")
    assert (first["name"], first["code"], first["closed_by"]) == ("c0", 320, "server")
    assert first["text"] == "CONNECTION_FORCED - enough"
    assert (second["name"], second["code"], second["closed_by"]) == ("c1", 0, "")
    found = rows(rig, "closed_connections", as_user=as_user("bob", "management"))
    assert [one["name"] for one in found] == ["c1"]
    (found,) = [rows(rig, "closed_connections", name="c1", page=1)]
    assert [one["name"] for one in found["items"]] == ["c1"]  # type: ignore[call-overload]


def test_consumers_of_a_queue(rig: OperationRig) -> None:
    for user in ("ann", "bob"):
        busy(rig, user)
    (found,) = rows(rig, "consumers", of={"queue": "q.bob"})
    assert (found["consumer_tag"], found["channel_details"]["user"]) == ("t.bob", "bob")
    assert found["penstock"] == {"delivered": 10, "unacked": 10, "priority": 0, "ack_s": None}
    assert rows(rig, "consumers", of={"queue": "none"}) == []


def test_exchanges(rig: OperationRig, c: RigClient) -> None:
    default = row(rig, "exchanges", "")
    assert (default["type"], default["user_who_performed_action"]) == ("direct", "rmq-internal")
    assert "message_stats" not in default
    own = row(rig, "exchanges", "x.ann")
    assert own["user_who_performed_action"] == "ann"
    assert (own["incoming"], own["outgoing"], "policy" in own) == ([], [], False)
    rig.result("set_policy", name="p", pattern="^x", definition={"alternate-exchange": "ae"})
    assert row(rig, "exchanges", "x.ann")["policy"] == "p"
    c.publish(1, "x.ann", "nowhere", b"1")
    assert row(rig, "exchanges", "x.ann")["penstock"] == {"unroutable": 1}
    assert rig.refusal("describe_row", kind="exchanges", name="none").code == 404
    assert "message_stats" not in row(rig, "exchanges", "x.ann", rates=False)


def ways(found: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    return [(one["source"], one["destination"], one["properties_key"]) for one in found]


def test_bindings(rig: OperationRig, c: RigClient) -> None:
    c.call(1, ExchangeDeclare(exchange="y", type="headers"), ExchangeDeclareOk)
    behind = ExchangeBind(destination="y", source="x.ann", routing_key="")
    c.call(1, behind, ExchangeBindOk)
    for arguments in ({"b": 2, "a": 1}, {"a": 2}):
        bound = QueueBind(queue="q.ann", exchange="y", routing_key="k", arguments=arguments)
        c.call(1, bound, QueueBindOk)
    own = ("", "q.ann", "q.ann")
    topic = ("x.ann", "q.ann", "order.%23")
    assert ways(rows(rig, "bindings"))[0] == own
    assert len(rows(rig, "bindings")) == 5
    assert ways(rows(rig, "bindings", of={"exchange": ""})) == [own]
    assert ways(rows(rig, "bindings", of={"exchange": "x.ann"})) == [topic, ("x.ann", "y", "~")]
    assert ways(rows(rig, "bindings", of={"exchange": "x.ann", "queue": "q.ann"})) == [topic]
    assert ways(rows(rig, "bindings", of={"exchange": "x.ann", "destination": "y"})) == [
        ("x.ann", "y", "~")
    ]
    assert ways(rows(rig, "bindings", of={"destination": "y"})) == [("x.ann", "y", "~")]
    found = rows(rig, "bindings", of={"queue": "q.ann"})
    assert ways(found)[:2] == [own, topic]
    keys = [one["properties_key"] for one in found[2:]]
    assert all(key.startswith("k~") and len(key) > 8 for key in keys)
    assert len({*keys}) == 2
    pair = {"exchange": "y", "queue": "q.ann"}
    for key, arguments in zip(keys, ({"b": 2, "a": 1}, {"a": 2}), strict=True):
        assert row(rig, "bindings", key, of=pair)["arguments"] == arguments
    pair = {"exchange": "x.ann", "queue": "q.ann"}
    for key in ("order.%23", "order.#"):  # as it is listed, and decoded once more
        assert row(rig, "bindings", key, of=pair)["routing_key"] == "order.#"
    assert rig.refusal("describe_row", kind="bindings", name="other", of=pair).code == 404
    for key in ("a%23b", "a#b"):
        bound = QueueBind(queue="q.ann", exchange="x.ann", routing_key=key)
        c.call(1, bound, QueueBindOk)
    assert row(rig, "bindings", "a%23b", of=pair)["routing_key"] == "a#b"
    assert row(rig, "bindings", "a%2523b", of=pair)["routing_key"] == "a%23b"
    for of in ({"queue": "none"}, {"exchange": "none"}, {"destination": "none"}):
        assert rig.refusal("list_rows", kind="bindings", of=of).code == 404


def test_a_binding_is_found_by_its_routing_key(rig: OperationRig, c: RigClient) -> None:
    """As RabbitMQ finds it: its Java client unbinds so."""
    for key in ("a/b #", "c+d", "c d"):
        rig.result("bind_queue", queue="q.ann", exchange="x.ann", routing_key=key)
    pair = {"exchange": "x.ann", "queue": "q.ann"}
    assert row(rig, "bindings", "a/b #", of=pair)["routing_key"] == "a/b #"
    assert row(rig, "bindings", "c+d", of=pair)["routing_key"] == "c d"  # as it is listed
    rig.result("unbind_queue", queue="q.ann", exchange="x.ann", routing_key="c d")
    assert row(rig, "bindings", "c+d", of=pair)["routing_key"] == "c+d"
