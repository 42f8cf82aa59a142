"""What RabbitMQ's HTTP API changes, in a broker that runs: its codes, its errors, its forms.

The bodies are those that rabbitmqadmin, Terraform's provider and the HTTP clients send.
"""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pika
import pytest

from tests.helpers.http_caller import HttpCaller
from tests.helpers.live_broker import LiveBroker, wait_until
from tests.helpers.management_client import ManagementClient

pytestmark = pytest.mark.real

RECORDED = Path(__file__).parent / "recorded"


def recorded(name: str) -> Any:
    return json.loads((RECORDED / f"{name}.json").read_text())


def shape_of(value: Any) -> Any:
    """Types in the place of values; of a list, of its first element."""
    if isinstance(value, dict):
        return {name: shape_of(one) for name, one in value.items()}
    if isinstance(value, list):
        return [shape_of(one) for one in value[:1]]
    return type(value).__name__


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    directory = tmp_path_factory.mktemp("changes")
    environment = {"PENSTOCK_AUDIT_LOG": str(directory / "audit.log")}
    with LiveBroker(directory / "data", environment=environment, has_http=True) as live:
        live.control("await_startup")
        yield live
        assert live.stop() == 0


@pytest.fixture
def api(broker: LiveBroker) -> ManagementClient:
    return ManagementClient(broker)


@pytest.fixture
def manager(api: ManagementClient) -> ManagementClient:
    """A user with the tag management, who may do everything to what begins with "own"."""
    api.ask("PUT", "users/manager", {"password": "s3cret", "tags": "management"})
    own = {"configure": "^own", "write": "^own", "read": "^own"}
    api.ask("PUT", "permissions/%2F/manager", own)
    return ManagementClient(api.broker, "manager", "s3cret")


def parameters(broker: LiveBroker, user: str, password: str) -> pika.ConnectionParameters:
    credentials = pika.PlainCredentials(user, password)
    return pika.ConnectionParameters(broker.host, broker.port, "/", credentials)


# ---- queues --------------------------------------------------------------------------------------


def test_a_queue_is_made_found_and_deleted(api: ManagementClient) -> None:
    body = {"durable": "true", "auto_delete": "false", "arguments": {"x-max-length": 5}}
    assert api.ask("PUT", "queues/%2F/own.q", body).status == 201
    got = api.ask("PUT", "queues/%2F/own.q", body)
    assert (got.status, got.body) == (204, None)
    row = next(row for row in api.broker.control("list_queues", "/") if row["name"] == "own.q")
    assert (row["durable"], row["arguments"]) == (True, {"x-max-length": 5})
    assert api.ask("DELETE", "queues/%2F/own.q").status == 204
    got = api.ask("DELETE", "queues/%2F/own.q")
    assert (got.status, got.body["error"]) == (404, "Object Not Found")


def test_an_empty_list_is_an_empty_object(api: ManagementClient) -> None:
    """pyrabbit2, PHP and Erlang send one; RabbitMQ answers one for a message's properties."""
    assert api.ask("PUT", "exchanges/%2F/listed", {"type": "topic", "arguments": []}).status == 201
    body = {"properties": [], "routing_key": "q", "payload": "1", "payload_encoding": "string"}
    assert api.ask("POST", "exchanges/%2F/listed/publish", body).body == {"routed": False}
    assert api.ask("PUT", "exchanges/%2F/listed", {"arguments": [1]}).status == 400
    assert api.ask("DELETE", "exchanges/%2F/listed").status == 204


def test_an_empty_body_is_all_defaults(api: ManagementClient) -> None:
    assert api.ask("PUT", "queues/%2F/plain").status == 201
    row = next(row for row in api.broker.control("list_queues", "/") if row["name"] == "plain")
    assert (row["durable"], row["auto_delete"]) == (False, False)
    api.ask("DELETE", "queues/%2F/plain")


@pytest.mark.parametrize(
    ("path", "body", "status", "told"),
    [
        ("queues/%2F/there", {"durable": False}, 400,
         "inequivalent arg 'durable' for queue 'there' in vhost '/'"),
        ("queues/%2F/there", {"durable": True, "arguments": {"x-dead-letter-exchange": "dlx"}}, 400,
         "inequivalent arg 'x-dead-letter-exchange' for queue 'there' in vhost '/': received the "
         "value 'dlx' of type 'longstr' but current is none"),
        ("queues/%2F/bad", {"arguments": {"x-max-length": "many"}}, 400, "x-max-length"),
        ("queues/%2F/bad", {"durable": "yes please"}, 400, "yes please"),
        ("queues/%2F/bad", b"{", 400, "not_json"),
        ("queues/%2F/bad", [1], 400, "not_json"),
        ("queues/%2F/amq.mine", {}, 401, "amq.mine"),
        ("queues/none/q", {}, 404, "none"),
        ("exchanges/%2F/bad", {"type": "nope"}, 400, "unknown exchange type 'nope'"),
        ("exchanges/%2F/amq.mine", {}, 401, "amq.mine"),
        ("exchanges/%2F/amq.topic", {"type": "direct", "durable": True}, 400, "inequivalent arg"),
    ],
)  # fmt: skip
def test_a_declare_that_is_refused(
    api: ManagementClient, path: str, body: Any, status: int, told: str
) -> None:
    api.ask("PUT", "queues/%2F/there", {"durable": True})
    got = api.ask("PUT", path, body)
    assert got.status == status
    assert told in got.reason
    assert got.body["error"] == {
        400: "bad_request", 401: "not_authorised", 404: "Object Not Found"
    }[status]  # fmt: skip
    assert "www-authenticate" not in got.headers


def test_a_queue_that_is_not_empty_or_in_use_stays(
    api: ManagementClient, broker: LiveBroker
) -> None:
    api.ask("PUT", "queues/%2F/backlog", {"durable": True})
    published = {
        "properties": {}, "routing_key": "backlog", "payload": "1", "payload_encoding": "string"
    }  # fmt: skip
    assert api.ask("POST", "exchanges/%2F/amq.default/publish", published).body == {"routed": True}
    got = api.ask("DELETE", "queues/%2F/backlog?if-empty=true")
    assert (got.status, got.reason) == (400, "queue 'backlog' in vhost '/' not empty")
    with pika.BlockingConnection(parameters(broker, "guest", "guest")) as connection:
        connection.channel().basic_consume("backlog", print)
        got = api.ask("DELETE", "queues/%2F/backlog?if-unused=true")
        assert (got.status, got.reason) == (400, "queue 'backlog' in vhost '/' in use")
    assert api.ask("DELETE", "queues/%2F/backlog/contents").status == 204
    assert api.ask("DELETE", "queues/%2F/backlog?if-empty=true&if-unused=true").status == 204
    assert api.ask("DELETE", "queues/%2F/backlog/contents").status == 404


def test_mirrors_have_nothing_to_do(api: ManagementClient) -> None:
    api.ask("PUT", "queues/%2F/there", {"durable": True})
    assert api.ask("POST", "queues/%2F/there/actions", {"action": "sync"}).status == 204
    assert api.ask("POST", "queues/%2F/there/actions", {"action": "dance"}).status == 400
    assert api.ask("POST", "queues/%2F/none/actions", {"action": "sync"}).status == 404


# ---- exchanges and bindings ----------------------------------------------------------------------


def test_an_exchange_is_made_and_deleted(api: ManagementClient) -> None:
    assert api.ask("PUT", "exchanges/%2F/own.x", {"type": "topic", "durable": True}).status == 201
    assert api.ask("PUT", "exchanges/%2F/own.x", {"type": "topic", "durable": True}).status == 204
    api.ask("PUT", "queues/%2F/there", {"durable": True})
    assert api.ask("POST", "bindings/%2F/e/own.x/q/there", {}).status == 201
    got = api.ask("DELETE", "exchanges/%2F/own.x?if-unused=true")
    assert (got.status, got.reason) == (400, "exchange 'own.x' in vhost '/' in use")
    assert api.ask("DELETE", "exchanges/%2F/own.x").status == 204
    assert api.ask("DELETE", "exchanges/%2F/own.x").status == 404
    for name in ("amq.topic", "amq.default"):
        got = api.ask("DELETE", f"exchanges/%2F/{name}")
        assert (got.status, got.body["error"]) == (401, "not_authorised")


@pytest.mark.parametrize(
    ("body", "location"),
    [
        ({"routing_key": "order.#", "arguments": {}}, "there/order.%2523"),
        ({}, "there/~"),
        ({"routing_key": "a~b c/d"}, "there/a%257Eb%2Bc%252Fd"),
        ({"routing_key": "k", "arguments": {"x-match": "all", "n": 1}}, None),
    ],
)
def test_a_binding_has_an_address(
    api: ManagementClient, body: dict[str, Any], location: str | None
) -> None:
    api.ask("PUT", "queues/%2F/there", {"durable": True})
    path = "bindings/%2F/e/amq.topic/q/there"
    got = api.ask("POST", path, body)
    assert (got.status, got.body) == (201, None)
    where = got.headers["location"]
    assert location is None or where == location
    again = api.ask("POST", path, dict(reversed(body.items())))
    assert (again.status, again.headers["location"]) == (201, where)
    assert _from(api, "amq.topic") == [(body.get("routing_key", ""), body.get("arguments", {}))]
    props = where.rpartition("/")[2]
    if body.get("arguments"):
        assert unquote(props).startswith("k~")
        assert api.ask("DELETE", f"{path}/k").status == 404
    assert api.ask("DELETE", f"{path}/{props}").status == 204
    assert api.ask("DELETE", f"{path}/{props}").status == 404
    assert _from(api, "amq.topic") == []


def _from(api: ManagementClient, source: str) -> list[tuple[str, dict[str, Any]]]:
    rows = api.broker.control("list_bindings", "/")
    return [(r["routing_key"], r["arguments"]) for r in rows if r["source_name"] == source]


def test_names_of_any_bytes(api: ManagementClient) -> None:
    """Latin-1 in an address: names may be any bytes, as over AMQP."""
    assert api.ask("PUT", "queues/%2F/gr%FC%DFe", {"durable": True}).status == 201
    got = api.ask("POST", "bindings/%2F/e/amq.topic/q/gr%FC%DFe", {"routing_key": "k"})
    assert (got.status, got.headers["location"]) == (201, "gr%FC%DFe/k")
    assert api.ask("DELETE", "bindings/%2F/e/amq.topic/q/gr%FC%DFe/k").status == 204
    assert api.ask("DELETE", "queues/%2F/gr%FC%DFe").status == 204


def test_a_binding_between_exchanges(api: ManagementClient) -> None:
    got = api.ask("POST", "bindings/%2F/e/amq.fanout/e/amq.direct", {"routing_key": "k"})
    assert (got.status, got.headers["location"]) == (201, "amq.direct/k")
    assert _from(api, "amq.fanout") == [("k", {})]
    assert api.ask("DELETE", "bindings/%2F/e/amq.fanout/e/amq.direct/k").status == 204
    assert _from(api, "amq.fanout") == []


def test_a_binding_of_what_is_not_there(api: ManagementClient) -> None:
    got = api.ask("POST", "bindings/%2F/e/amq.topic/q/nope", {})
    assert got.status == 404
    assert got.body == {"error": "not_found", "reason": "no queue 'nope' in vhost '/'"}
    assert api.ask("POST", "bindings/%2F/e/nope/q/nope", {}).status == 404
    assert api.ask("DELETE", "bindings/%2F/e/amq.topic/q/nope/k").status == 404


# ---- messages ------------------------------------------------------------------------------------


def test_all_properties_go_there_and_come_back(api: ManagementClient) -> None:
    api.ask("PUT", "queues/%2F/letters", {"durable": True})
    properties = {
        "content_type": "text/plain", "content_encoding": "gzip",
        "headers": {"n": 47, "f": 1.5, "b": True, "none": None, "deep": {"l": [1, "a"]}},
        "delivery_mode": 2, "priority": 3, "correlation_id": "c", "reply_to": "r",
        "expiration": "100000", "message_id": "m47", "timestamp": 1_795_373_666, "type": "t",
        "user_id": "guest", "app_id": "load", "cluster_id": "x",
    }  # fmt: skip
    body = {
        "properties": properties, "routing_key": "letters", "payload": "Grüße",
        "payload_encoding": "string",
    }  # fmt: skip
    assert api.ask("POST", "exchanges/%2F/amq.default/publish", body).body == {"routed": True}
    data = base64.b64encode(b"\xff\0").decode()
    bare = {**body, "properties": {}, "payload": data, "payload_encoding": "base64"}
    assert api.ask("POST", "exchanges/%2F/amq.default/publish", bare).body == {"routed": True}
    asked = {"count": "5", "ackmode": "ack_requeue_false", "encoding": "auto", "truncate": "50000"}
    rows = api.ask("POST", "queues/%2F/letters/get", asked).body
    assert [row["message_count"] for row in rows] == [1, 0]
    assert rows[0]["properties"] == properties
    assert (rows[0]["payload"], rows[0]["payload_bytes"]) == ("Grüße", 7)
    assert (rows[1]["properties"], rows[1]["payload"]) == ([], data)
    assert rows[1]["payload_encoding"] == "base64"
    (known,) = recorded("queue-get")[:1]
    assert shape_of({**rows[0], "properties": 0}) == shape_of({**known, "properties": 0})
    assert api.ask("POST", "queues/%2F/letters/get", asked).body == []


def test_a_large_message(api: ManagementClient) -> None:
    api.ask("PUT", "queues/%2F/letters", {"durable": True})
    body = {
        "properties": {}, "routing_key": "letters", "payload": "é\\" * 2_000_000,
        "payload_encoding": "string",
    }  # fmt: skip
    assert api.ask("POST", "exchanges/%2F/amq.default/publish", body).body == {"routed": True}
    asked = {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}
    (row,) = api.ask("POST", "queues/%2F/letters/get", asked).body
    assert row["payload"] == body["payload"]


def test_a_body_that_builds_much_is_refused(api: ManagementClient) -> None:
    body = b'{"routing_key": "x", "properties": ' + b"[" * 300_000 + b"]" * 300_000 + b"}"
    assert api.ask("POST", "exchanges/%2F/amq.default/publish", body).status == 400


@pytest.mark.parametrize(
    ("change", "status", "answer"),
    [
        ({"routing_key": "nobody"}, 200, {"routed": False}),
        ({"properties": {"prio": 1}}, 400, "unknown property 'prio'"),
        ({"properties": {"priority": "high"}}, 400, "property 'priority'"),
        ({"payload": "!!", "payload_encoding": "base64"}, 400, "base64"),
        ({"payload_encoding": "rot13"}, 400, "expected string or base64"),
        ({"payload": None, "properties": None}, 400, "[{key_missing,payload}]"),
    ],
)
def test_what_is_published_wrongly(
    api: ManagementClient, change: dict[str, Any], status: int, answer: Any
) -> None:
    body = {"properties": {}, "routing_key": "q", "payload": "1", "payload_encoding": "string"}
    got = api.ask("POST", "exchanges/%2F/amq.default/publish", {**body, **change})
    assert got.status == status
    assert got.body == answer if status == 200 else answer in got.reason


def test_an_unknown_exchange_and_queue(api: ManagementClient) -> None:
    body = {"properties": {}, "routing_key": "q", "payload": "1", "payload_encoding": "string"}
    got = api.ask("POST", "exchanges/%2F/nope/publish", body)
    assert (got.status, got.reason) == (400, "404 NOT_FOUND - no exchange 'nope' in vhost '/'")
    asked = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
    got = api.ask("POST", "queues/%2F/nope/get", asked)
    assert got.status == 404
    assert got.body == {"error": "not_found", "reason": "no queue 'nope' in vhost '/'"}
    assert api.ask("POST", "queues/%2F/nope/get", {**asked, "ackmode": "eat"}).status == 400
    got = api.ask("POST", "queues/%2F/nope/get", {})
    assert got.reason == "[{key_missing,count},{key_missing,ackmode},{key_missing,encoding}]"


def test_a_manager_may_do_what_its_permissions_say(
    api: ManagementClient, manager: ManagementClient
) -> None:
    asked = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
    body = {"properties": {}, "routing_key": "q", "payload": "1", "payload_encoding": "string"}
    for name, status in (("own", 201), ("other", 401)):
        assert manager.ask("PUT", f"queues/%2F/{name}", {"durable": True}).status == status
        assert manager.ask("PUT", f"exchanges/%2F/{name}", {"type": "topic"}).status == status
        api.ask("PUT", f"queues/%2F/{name}", {"durable": True})
        api.ask("PUT", f"exchanges/%2F/{name}", {"type": "topic"})
        done = 200 if status == 201 else 401
        assert manager.ask("POST", f"bindings/%2F/e/{name}/q/{name}", {}).status == status
        assert manager.ask("POST", f"queues/%2F/{name}/get", asked).status == done
        assert manager.ask("POST", f"exchanges/%2F/{name}/publish", body).status == done
        gone = 204 if status == 201 else 401
        assert manager.ask("DELETE", f"bindings/%2F/e/{name}/q/{name}/~").status == gone
        assert manager.ask("DELETE", f"queues/%2F/{name}/contents").status == gone
        assert manager.ask("DELETE", f"queues/%2F/{name}").status == gone
        assert manager.ask("DELETE", f"exchanges/%2F/{name}").status == gone
    assert manager.ask("PUT", "queues/none/q", {}).status in (401, 404)
    for method, path in (
        ("PUT", "users/x"), ("DELETE", "users/guest"), ("GET", "users"), ("PUT", "vhosts/x"),
        ("PUT", "permissions/%2F/manager"), ("PUT", "policies/%2F/p"), ("POST", "definitions"),
        ("GET", "definitions"), ("PUT", "vhost-limits/%2F/max-queues"), ("GET", "parameters"),
    ):  # fmt: skip
        got = manager.ask(method, path, {})
        assert (got.status, got.body["error"]) == (401, "not_authorised"), path


def test_topic_permissions_of_one_exchange_are_cleared(api: ManagementClient) -> None:
    """As rabbit-hole does it."""
    api.ask("PUT", "users/topics", {"password": "x", "tags": ""})
    for exchange in ("amq.topic", "other"):
        rights = {"exchange": exchange, "write": "a", "read": "b"}
        assert api.ask("PUT", "topic-permissions/%2F/topics", rights).status == 201
    assert api.ask("DELETE", "topic-permissions/%2F/topics/other").status == 204
    (left,) = api.get("users/topics/topic-permissions")
    assert left["exchange"] == "amq.topic"
    assert api.ask("DELETE", "topic-permissions/%2F/topics/other").status == 404
    assert api.ask("DELETE", "users/topics").status == 204


def test_topic_permissions_hold_over_http(api: ManagementClient, manager: ManagementClient) -> None:
    api.ask("PUT", "exchanges/%2F/own.topic", {"type": "topic", "durable": True})
    only = {"exchange": "own.topic", "write": "^mine\\.", "read": ".*"}
    assert api.ask("PUT", "topic-permissions/%2F/manager", only).status == 201
    assert api.ask("PUT", "topic-permissions/%2F/manager", only).status == 204
    body = {"properties": {}, "payload": "1", "payload_encoding": "string"}
    for key, status in (("mine.x", 200), ("yours.x", 401)):
        got = manager.ask("POST", "exchanges/%2F/own.topic/publish", {**body, "routing_key": key})
        assert got.status == status
    assert api.get("topic-permissions/%2F/manager") == [{"user": "manager", "vhost": "/", **only}]
    assert api.ask("DELETE", "topic-permissions/%2F/manager").status == 204
    assert api.ask("DELETE", "topic-permissions/%2F/manager").status == 404


# ---- users and permissions -----------------------------------------------------------------------


def test_a_user_is_put_and_deleted(api: ManagementClient, broker: LiveBroker) -> None:
    assert api.ask("PUT", "users/ada", {"password": "s3cret", "tags": "monitoring"}).status == 201
    body = {"password": "s3cret", "tags": ["monitoring", "policymaker"], "limits": {}}
    assert api.ask("PUT", "users/ada", body).status == 204
    row = api.get("users/ada")
    own = row.pop("penstock")
    assert own["password_hash"].startswith("scrypt$")
    assert row == {
        "name": "ada", "password_hash": "", "hashing_algorithm": "rabbit_password_hashing_sha256",
        "tags": ["monitoring", "policymaker"], "limits": {},
    }  # fmt: skip
    assert api.get("users/without-permissions?columns=name") == [{"name": "ada"}]
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    assert api.ask("PUT", "permissions/%2F/ada", everything).status == 201
    assert api.ask("PUT", "permissions/%2F/ada", everything).status == 204
    with pika.BlockingConnection(parameters(broker, "ada", "s3cret")):
        pass
    assert ManagementClient(broker, "ada", "s3cret").get("whoami")["name"] == "ada"
    permission = {"user": "ada", "vhost": "/", **everything}
    assert api.get("permissions/%2F/ada") == permission
    assert api.get("users/ada/permissions") == [permission]
    assert permission in api.get("permissions")
    assert permission in api.get("vhosts/%2F/permissions")
    assert shape_of(api.get("permissions")) == shape_of(recorded("permissions"))
    assert api.ask("DELETE", "permissions/%2F/ada").status == 204
    assert api.ask("DELETE", "permissions/%2F/ada").status == 404
    assert api.ask("GET", "permissions/%2F/ada").status == 404
    assert api.ask("DELETE", "users/ada").status == 204
    assert api.ask("DELETE", "users/ada").status == 404
    assert api.ask("GET", "users/ada").status == 404


def test_a_users_row_can_be_put_as_it_is(api: ManagementClient) -> None:
    for row in recorded("users"):
        if row["name"] != "guest":
            assert api.ask("PUT", f"users/{row['name']}", row).status == 201
    rows = api.get("users")
    for row in recorded("users"):
        if row["name"] != "guest":
            assert {**row, "penstock": {}} in rows
    assert ManagementClient(api.broker, "eve", "s3cret").get("whoami")["tags"] == ["management"]
    assert ManagementClient(api.broker, "nobody", "").ask("GET", "whoami").status == 401
    assert api.get("user-limits") == recorded("user-limits")
    assert api.get("user-limits/eve") == recorded("user-limits")
    names = [row["name"] for row in recorded("users") if row["name"] != "guest"]
    got = api.ask("POST", "users/bulk-delete", {"users": [*names, "x"]})
    assert (got.status, "x" in got.reason) == (400, True)
    assert api.get("users/eve")["name"] == "eve"
    assert api.ask("POST", "users/bulk-delete", {"users": names}).status == 204
    assert api.ask("GET", "users/eve").status == 404


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"password": "x"}, "tags_not_present"),
        ({"password": "x", "tags": 5}, "tags"),
        ({"password": "x", "password_hash": "y", "tags": ""}, "both_password_and_password_hash"),
        ({"password_hash": "!!", "tags": ""}, "!!"),
        ({"password": "x", "tags": "a b"}, "a b"),
        ({"password": "x", "tags": "", "limits": {"max-cats": 1}}, "max-cats"),
    ],
)
def test_a_user_that_is_wrong(api: ManagementClient, body: dict[str, Any], told: str) -> None:
    got = api.ask("PUT", "users/wrong", body)
    assert got.status == 400
    assert told in got.reason
    assert api.ask("GET", "users/wrong").status == 404


@pytest.mark.parametrize(
    ("path", "body", "told"),
    [
        ("permissions/%2F/guest", {"configure": ".*"}, "[{key_missing,write},{key_missing,read}]"),
        ("permissions/%2F/none", {"configure": "", "write": "", "read": ""},
         "vhost_or_user_not_found"),
        ("permissions/none/guest", {"configure": "", "write": "", "read": ""},
         "vhost_or_user_not_found"),
        ("permissions/%2F/guest", {"configure": "(", "write": "", "read": ""}, "configure"),
        ("topic-permissions/%2F/none", {"exchange": "x", "write": "", "read": ""},
         "vhost_or_user_not_found"),
    ],
)  # fmt: skip
def test_permissions_that_are_wrong(
    api: ManagementClient, path: str, body: dict[str, Any], told: str
) -> None:
    got = api.ask("PUT", path, body)
    assert got.status == 400
    assert told in got.reason


# ---- limits, policies, parameters ----------------------------------------------------------------


def test_limits(api: ManagementClient, manager: ManagementClient) -> None:
    assert api.ask("PUT", "vhost-limits/%2F/max-queues", {"value": 5000}).status == 204
    assert api.ask("PUT", "vhost-limits/%2F/max-connections", {"value": "100"}).status == 204
    assert api.ask("PUT", "user-limits/manager/max-channels", {"value": 20}).status == 204
    limits = [{"vhost": "/", "value": {"max-connections": 100, "max-queues": 5000}}]
    assert api.get("vhost-limits") == api.get("vhost-limits/%2F") == limits
    assert shape_of(limits) == shape_of(recorded("vhost-limits"))
    of_user = [{"user": "manager", "value": {"max-channels": 20}}]
    assert api.get("user-limits") == of_user
    assert manager.get("user-limits/manager") == manager.get("user-limits") == of_user
    assert manager.get("vhost-limits/%2F") == limits
    assert manager.ask("GET", "user-limits/guest").status == 401
    assert api.get("parameters/vhost-limits") == [
        {
            "value": {"max-connections": 100, "max-queues": 5000}, "vhost": "/",
            "component": "vhost-limits", "name": "limits",
        }
    ]  # fmt: skip
    for name in ("max-queues", "max-connections"):
        assert api.ask("DELETE", f"vhost-limits/%2F/{name}").status == 204
    assert api.ask("DELETE", "user-limits/manager/max-channels").status == 204
    assert api.get("vhost-limits") == api.get("user-limits") == []
    for path, value in (
        ("vhost-limits/%2F/nope", 1), ("vhost-limits/%2F/max-queues", "many"),
        ("user-limits/manager/max-channels", {}),
    ):  # fmt: skip
        got = api.ask("PUT", path, {"value": value})
        assert got.status == 400
        assert got.reason.startswith("Validation failed\n\n")
    assert api.ask("PUT", "vhost-limits/none/max-queues", {"value": 1}).status == 404
    assert api.ask("PUT", "user-limits/none/max-channels", {"value": 1}).status == 404


def test_policies(api: ManagementClient) -> None:
    (policy,) = recorded("policies")
    assert api.ask("PUT", "policies/%2F/ttl", policy).status == 201
    assert api.ask("PUT", "policies/%2F/ttl", {**policy, "priority": "1"}).status == 204
    assert api.get("policies") == api.get("policies/%2F") == [policy]
    assert api.get("policies/%2F/ttl") == policy
    (cap,) = recorded("operator-policies")
    assert api.ask("PUT", "operator-policies/%2F/cap", cap).status == 201
    assert api.get("operator-policies/%2F") == [cap]
    assert api.get("parameters/operator_policy/%2F/cap") == recorded("parameters")[0]
    assert api.ask("DELETE", "operator-policies/%2F/cap").status == 204
    assert api.ask("DELETE", "policies/%2F/ttl").status == 204
    for path in ("policies/%2F/ttl", "operator-policies/%2F/cap"):
        assert api.ask("DELETE", path).status == api.ask("GET", path).status == 404


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"definition": {"max-length": "z"}}, "max-length"),
        ({"definition": {"nope": 1}}, "nope"),
        ({"definition": {}}, "definition"),
        ({"pattern": "("}, "pattern"),
        ({"apply-to": "cats"}, "cats"),
    ],
)
def test_a_policy_that_is_wrong(api: ManagementClient, change: dict[str, Any], told: str) -> None:
    policy = {"pattern": ".*", "definition": {"max-length": 1}}
    got = api.ask("PUT", "policies/%2F/wrong", {**policy, **change})
    assert got.status == 400
    assert got.reason.startswith("Validation failed\n\n")
    assert told in got.reason
    got = api.ask("PUT", "policies/%2F/wrong", {})
    assert got.reason == "[{key_missing,pattern},{key_missing,definition}]"


def test_parameters(api: ManagementClient) -> None:
    shovel = recorded("parameters")[1]
    path = "parameters/shovel/%2F/to-shop"
    assert api.ask("PUT", path, shovel).status == 201
    assert api.ask("PUT", path, shovel).status == 204
    assert api.get(path) == shovel
    assert api.get("parameters") == api.get("parameters/shovel/%2F") == [shovel]
    assert api.ask("DELETE", path).status == 204
    assert api.ask("DELETE", path).status == api.ask("GET", path).status == 404
    got = api.ask("PUT", "parameters/nope/%2F/x", {"value": {}})
    assert got.status == 400
    assert got.reason.startswith("Validation failed\n\n")
    assert api.ask("PUT", path, {}).reason == "[{key_missing,value}]"
    for one in recorded("global-parameters")[::2]:
        assert api.ask("PUT", f"global-parameters/{one['name']}", one).status == 201
        assert api.ask("PUT", f"global-parameters/{one['name']}", one).status == 204
        assert api.get(f"global-parameters/{one['name']}") == one
    assert api.get("global-parameters") == recorded("global-parameters")[::2]
    for one in recorded("global-parameters")[::2]:
        assert api.ask("DELETE", f"global-parameters/{one['name']}").status == 204
        assert api.ask("DELETE", f"global-parameters/{one['name']}").status == 404


# ---- vhosts --------------------------------------------------------------------------------------


def test_a_vhost_is_put_restarted_and_deleted(api: ManagementClient) -> None:
    said = {"description": "sells", "tags": "a,b", "default_queue_type": "classic"}
    assert api.ask("PUT", "vhosts/shop", said).status == 201
    assert api.ask("PUT", "vhosts/shop", {"description": "buys", "tags": ["c"]}).status == 204
    assert api.ask("PUT", "vhosts/shop").status == 204
    row = api.get("vhosts/shop")
    assert (row["description"], row["tags"]) == ("buys", ["c"])
    assert api.get("permissions/shop/guest")["configure"] == ".*"  # who makes it may use it
    assert api.ask("PUT", "queues/shop/q", {"durable": True}).status == 201
    assert api.ask("PUT", "vhosts/shop", {"tracing": True}).status == 204
    assert api.ask("PUT", "vhosts/shop", {"tracing": "false"}).status == 204
    node = quote(api.get("overview")["node"], safe="")
    assert api.ask("POST", f"vhosts/shop/start/{node}").status == 204
    assert api.ask("POST", "vhosts/shop/start/other").status == 404
    assert api.ask("DELETE", "vhosts/shop").status == 204
    assert api.ask("DELETE", "vhosts/shop").status == 404
    assert api.ask("PUT", "queues/shop/q", {}).status == 404
    assert api.ask("PUT", "vhosts/bad", {"default_queue_type": "cats"}).status == 400


# ---- definitions ---------------------------------------------------------------------------------


def test_definitions_go_out_and_come_back(api: ManagementClient) -> None:
    document = recorded("definitions")
    unknown = {"component": "unknown", "vhost": "/", "name": "n", "value": {}}
    document["parameters"].append(unknown)
    typed = {"Content-Type": "application/json"}
    got = api.ask("POST", "definitions", document)
    assert (got.status, got.body) == (415, None)
    got = api.ask("POST", "definitions", document, typed)
    assert (got.status, "leave_out" in got.reason) == (400, True)
    assert api.ask("GET", "vhosts/shop").status == 404  # nothing was done
    assert api.ask("POST", "definitions?leave_out=true", document, typed).status == 204
    got = api.ask("GET", "definitions?download=%E6%97%A5ours%0D%0A%22.json")
    assert got.headers["content-disposition"] == 'attachment; filename="ours.json"'
    ours = got.body
    assert list(ours)[:4] == list(recorded("definitions"))[:4]
    assert set(ours) == set(recorded("definitions"))
    assert {row["name"] for row in ours["vhosts"]} == {"/", "shop"}
    assert api.ask("POST", "definitions", ours, typed).status == 204
    of_vhost = api.get("definitions/shop")
    assert "users" not in of_vhost
    api.ask("PUT", "vhosts/copy")
    form = (
        b'--XY\r\nContent-Disposition: form-data; name="other"\r\n\r\n{"x": 1}\r\n'
        b'--XY\r\nContent-Disposition: form-data; name="file"; filename="a.json"\r\n'
        b"Content-Type: application/json\r\n\r\n"
        + json.dumps(of_vhost).encode()
        + b"\r\n--XY--\r\n"
    )
    multipart = {"Content-Type": "multipart/form-data; boundary=XY"}
    assert api.ask("POST", "definitions/copy", form, multipart).status == 204
    copied = api.get("definitions/copy")
    for section in ("queues", "exchanges", "bindings"):
        assert copied[section] == of_vhost[section]
    for body, header in (
        (b"{", typed), (b"\xff", typed), (form[:40], multipart),
        (form, {"Content-Type": "multipart/form-data"}),
    ):  # fmt: skip
        got = api.ask("POST", "definitions", body, header)
        assert (got.status, got.body["error"]) == (400, "bad_request")
    got = api.ask("POST", "definitions/copy", b"--XY\r\n" * 100 + form, multipart)
    assert (got.status, "of the first 100 parts" in got.body["reason"]) == (400, True)
    got = api.ask("POST", "definitions/none", b"{}", typed)
    assert got.status == 404
    for name in ("shop", "copy"):
        assert api.ask("DELETE", f"vhosts/{name}").status == 204


def test_a_number_that_is_a_text_of_many_digits(api: ManagementClient) -> None:
    """Python reads at most 4,300 digits."""
    many = "9" * 5000
    asked = {"ackmode": "ack_requeue_true", "encoding": "auto", "count": many}
    assert api.ask("POST", "queues/%2F/q/get", asked).status == 400
    policy = {"pattern": "x", "definition": {"max-length": 1}, "priority": many}
    assert api.ask("PUT", "policies/%2F/many", policy).status == 400
    assert api.ask("PUT", "vhost-limits/%2F/max-queues", {"value": many}).status == 400


def test_definitions_that_are_too_long(api: ManagementClient) -> None:
    typed = {"Content-Type": "application/json"}
    got = api.ask("POST", "definitions", b" " * 20_000_001, typed)
    assert got.status == 413


# ---- side by side --------------------------------------------------------------------------------

# What RabbitMQ answers otherwise: (method, path, body) -> our status, and why.
DIFFERS = {
    ("PUT", "users/u3", '{"password": "x", "tags": 5}'): (400, "it is wrong: a 500 there"),
    ("POST", "vhosts/v/start/nonode", "null"): (404, "there is no other node to ask"),
    ("POST", "queues/%2F/q/get", '{"count": 0, "ackmode": "ack_requeue_true", "encoding": "auto"}'):
        (400, "nothing is asked for"),
    ("POST", "queues/%2F/q/get",
     '{"count": -1, "ackmode": "ack_requeue_true", "encoding": "auto"}'):
        (400, "nothing is asked for"),
    ("PUT", "policies/%2F/p",
     '{"pattern": "a", "definition": {"max-length": 1}, "priority": "3"}'):
        (201, "numbers may be texts everywhere"),
    ("PUT", "policies/%2F/p", '{"pattern": "a", "definition": {"max-length": 1}}'):
        (204, "as it was made by the line before"),
    ("POST", "users/bulk-delete", '{"users": ["u", "u2", "u3"]}'):
        (204, "nothing was deleted by the first one, which failed"),
    ("PUT", "user-limits/none/max-channels", '{"value": 5}'): (404, "as for every unknown user"),
    ("DELETE", "user-limits/u/nope", "null"): (400, "a limit that there is not"),
}  # fmt: skip
NULL = "null_not_allowed"  # a header without a value: AMQP has it, and so have we


def test_requests_are_answered_as_rabbitmq_does(api: ManagementClient) -> None:
    """recorded/changes.json: requests in their order, with what RabbitMQ 3.10 answered."""
    wrong = []
    for row in recorded("changes"):
        body = row["body"]
        data = body.encode() if row.get("is_text") else None if body is None else body
        typed = {"Content-Type": "application/json"}
        got = api.ask(row["method"], row["path"], data, {} if row.get("is_untyped") else typed)
        key = (row["method"], row["path"], json.dumps(body))
        answer = row.get("answer")
        status = DIFFERS[key][0] if key in DIFFERS else row["status"]
        if isinstance(answer, dict) and answer.get("reason") == NULL:
            status = 200
        where = got.headers.get("location", "")
        theirs = row.get("location", "")
        if "~" in theirs and "routing_key" in json.dumps(body):  # another hash
            where, theirs = where.partition("~")[0], theirs.partition("~")[0]
        if (got.status, where) != (status, theirs):
            wrong.append((key, row["status"], theirs, got))
    assert wrong == []


# ---- the audit log -------------------------------------------------------------------------------


def test_each_change_names_the_user_and_the_address(
    api: ManagementClient, broker: LiveBroker
) -> None:
    api.ask("PUT", "users/audited", {"password": "s3cret", "tags": ""})
    api.ask("PUT", "queues/%2F/audited", {"durable": True})
    api.ask("PUT", "vhosts/%2F", {"tracing": True})
    api.ask("PUT", "vhosts/%2F", {"tracing": False})
    api.ask("DELETE", "users/audited")
    api.ask("DELETE", "queues/%2F/audited")
    log = broker.data.parent / "audit.log"

    def mine() -> list[dict[str, Any]]:
        entries = [json.loads(line) for line in log.read_text().splitlines()]
        return [
            one for one in entries
            if "audited" in json.dumps(one.get("args", {})) or one["event"].startswith("trace_")
        ]  # fmt: skip

    expected = {
        "declare_queue", "delete_queue", "delete_user", "put_user", "trace_on", "trace_off"
    }  # fmt: skip
    wait_until(lambda: {one["event"] for one in mine()} >= expected, "the entries of the vhost")
    assert "s3cret" not in log.read_text()
    assert {one["event"] for one in mine()} == expected
    assert {one["user"] for one in mine()} == {"guest"}
    assert all(one["from"].startswith("127.0.0.1:") for one in mine()), mine()


def test_messages_move_to_a_queue_and_back_to_where_they_died(api: ManagementClient) -> None:
    api.ask("PUT", "queues/%2F/dead", {"durable": True})
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    api.ask("PUT", "queues/%2F/lives", {"durable": True, "arguments": dead})
    api.ask("PUT", "queues/%2F/other", {"durable": True})
    published = {
        "properties": {}, "routing_key": "lives", "payload": "1", "payload_encoding": "string"
    }  # fmt: skip
    for _ in range(3):
        api.ask("POST", "exchanges/%2F/amq.default/publish", published)
    rejected = {"count": 2, "ackmode": "reject_requeue_false", "encoding": "auto"}
    assert len(api.ask("POST", "queues/%2F/lives/get", rejected).body) == 2
    back = "penstock/queues/%2F/dead/move"
    would = {"moved": 2, "by_queue": {"lives": 2}, "stays": 0, "why": ""}
    assert api.ask("POST", back, {"dry_run": True}).body == would
    assert api.ask("POST", back, {"count": 1}).body["moved"] == 1
    assert api.ask("POST", back, {"to": "other"}).body["by_queue"] == {"other": 1}
    assert [api.ask("GET", f"queues/%2F/{q}").body["messages"] for q in ("lives", "other")] == [
        2,
        1,
    ]
    assert api.ask("POST", "penstock/queues/%2F/lives/move", {"to": "none"}).status == 404
    gone = {"deleted": 1, "stays": 0, "why": ""}
    assert api.ask("POST", "penstock/queues/%2F/lives/delete", {"count": 1}).body == gone
    assert api.ask("GET", "queues/%2F/lives").body["messages"] == 1


def test_what_the_dashboard_asks_and_changes(tmp_path: Path) -> None:
    with LiveBroker(tmp_path / "data", has_http=True) as broker, HttpCaller(broker) as http:
        broker.control("declare_queue", "/", queue="q")
        found = http.json("POST", "penstock/exchanges/%2F/amq.default/route", {"routing_key": "q"})
        assert found == {"queues": ["q"]}

        broker.control("add_user", name="ada", password="ada", tags=["management"])
        test = "penstock/permissions/%2F/ada/test?verb=write&name=orders"
        assert http.json("GET", test) == {
            "is_allowed": False, "why": "user 'ada' has no permissions on vhost '/'",
        }  # fmt: skip
        broker.control("set_permissions", "/", user="ada", configure="", write="^ord", read="^x")
        broker.control(
            "set_topic_permissions", "/", user="ada", exchange="orders", write="^eu", read="",
        )  # fmt: skip
        for more, is_allowed, why in (
            ("", True, "write is '^ord', which allows 'orders'"),
            ("&routing_key=us.a", False,
             "write at 'orders' is for routing keys '^eu', which does not allow 'us.a'"),
            ("&routing_key=eu.a", True,
             "write at 'orders' is for routing keys '^eu', which allows 'eu.a'"),
            ("&verb=read", False, "read is '^x', which does not allow 'orders'"),
            ("&verb=configure", False, "configure is '', which does not allow 'orders'"),
        ):  # fmt: skip
            assert http.json("GET", test + more) == {"is_allowed": is_allowed, "why": why}
        http.json("GET", "penstock/permissions/%2F/nobody/test?verb=read", status=404)
        http.json("GET", "penstock/permissions/%2F/ada/test?verb=eat", status=400)

        tags = {"tags": ["monitoring"]}
        assert http.ask("PUT", "penstock/users/ada/tags", tags) == (204, b"")
        with HttpCaller(broker, "ada") as ada:  # the password is the same
            assert ada.json("GET", "whoami")["tags"] == ["monitoring"]
        assert http.ask("PUT", "penstock/users/ada/password", {"password": "new"}) == (204, b"")
        with HttpCaller(broker, "ada") as ada:
            ada.json("GET", "whoami", status=401)

        queue = {"vhost": "/", "auto_delete": False, "arguments": {}}
        given = {
            "users": [{"name": "eve", "password_hash": "", "tags": ""}],
            "vhosts": [{"name": "shop"}],
            "queues": [
                {**queue, "name": "q", "durable": False},
                {**queue, "name": "new", "durable": True},
            ],
        }
        would = http.json("POST", "penstock/definitions?dry_run=true", given)
        assert (would["users"], would["vhosts"], would["queues"]) == (1, 1, 1)
        assert [row["name"] for row in http.json("GET", "queues")] == ["q"]
        assert len(http.json("GET", "vhosts")) == 1
        assert http.json("POST", "penstock/definitions", given) == would
        assert [row["name"] for row in http.json("GET", "queues")] == ["new", "q"]
        again = http.json("POST", "penstock/definitions?dry_run=true", given)
        assert (again["users"], again["vhosts"], again["queues"]) == (0, 0, 0)
