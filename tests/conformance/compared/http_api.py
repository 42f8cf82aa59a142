"""Ask RabbitMQ's management plugin and Penstock the same over HTTP, and show where they differ.

    python -m tests.conformance.compared.http_api

CALLS is one script for both: every endpoint of RabbitMQ's that the table has. Compared are the
status, the members of the JSON, and their types: what RabbitMQ has is there, with the types that it
has or fewer; more members are no difference. What differs is listed in DIFFERENCES, under words of
docs/reference/compatibility.md. Exit code 1 when something differs that is not listed, or something
is listed that does not differ.
"""

import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from pamqp import commands

from tests.conformance.compared.rabbitmq import RabbitMQ, is_installed
from tests.helpers.http_caller import HttpCaller
from tests.helpers.live_broker import Broker, LiveBroker, wait_until
from tests.helpers.wire import Wire

STATS_S: Final = 12.0  # RabbitMQ's queues tell their counts each 5 s, and channels are idle then


class Call(NamedTuple):
    """method, path: of the row of the table. names: in the path, besides NAMES. query: what follows
    the path. body: JSON."""

    method: str
    path: str
    body: object = None
    names: Mapping[str, str] = {}
    query: str = ""

    @property
    def id(self) -> str:
        """What DIFFERENCES call it."""
        names = ",".join(f"{name}={value}" for name, value in self.names.items())
        return f"{self.method} {self.path}{self.query}" + (f" ({names})" if names else "")


# What stands in paths for a name, unless the call says another one.
NAMES: Final[Mapping[str, str]] = {
    "vhost": "/", "queue": "q", "exchange": "x", "destination": "x2", "user": "ann", "name": "ann",
    "component": "operator_policy", "limit": "max-connections", "password": "secret",
    "protocol": "amqp", "within": "1", "unit": "weeks", "pattern": ".*",
}  # fmt: skip
NONE: Final = "none"
RIGHTS: Final = {"configure": ".*", "write": ".*", "read": ".*"}
POLICY: Final = {"pattern": "^x", "definition": {"max-length": 9}, "apply-to": "queues"}
TOPIC: Final = {"type": "topic", "durable": True}
OWN_VHOST: Final = {"vhost": "shop"}
CAP: Final = {"name": "cap"}
TTL: Final = {"name": "ttl"}


def got(path: str, **names: str) -> tuple[Call, Call]:
    """What is there, and the same of a name that there is not."""
    last = path.rpartition("{")[2].rstrip("}")
    return Call("GET", path, None, names), Call("GET", path, None, {**names, last: NONE})


BEFORE: Final = (
    Call("PUT", "vhosts/{vhost}", {"description": "sells", "tags": "a,b"}, OWN_VHOST),
    Call("PUT", "vhosts/{vhost}", {}, OWN_VHOST),
    Call("POST", "vhosts/{vhost}/start/{node}", None, OWN_VHOST),
    Call("PUT", "users/{name}", {"password": "ann", "tags": "management"}),
    Call("PUT", "users/{name}", {"password": "ann", "tags": "management,policymaker"}),
    Call("PUT", "users/{name}", {"tags": ""}, {"name": "eve"}),
    Call("PUT", "users/{name}", {"password": "bob", "tags": ""}, {"name": "bob"}),
    Call("PUT", "permissions/{vhost}/{user}", RIGHTS),
    Call("PUT", "permissions/{vhost}/{user}", RIGHTS),
    Call("PUT", "permissions/{vhost}/{user}", {**RIGHTS, "read": "("}, {"user": "bob"}),
    Call("PUT", "permissions/{vhost}/{user}", {"read": ".*"}, {"user": "bob"}),
    Call("PUT", "permissions/{vhost}/{user}", RIGHTS, {"user": NONE}),
    Call("PUT", "permissions/{vhost}/{user}", RIGHTS, {"vhost": NONE}),
    Call(
        "PUT", "topic-permissions/{vhost}/{user}",
        {"exchange": "amq.topic", "write": ".*", "read": ".*"},
    ),
    Call("PUT", "user-limits/{user}/{limit}", {"value": 900}),
    Call("PUT", "vhost-limits/{vhost}/{limit}", {"value": 900}),
    Call("PUT", "vhost-limits/{vhost}/{limit}", {"value": 900}, {"limit": NONE}),
    Call("PUT", "policies/{vhost}/{name}", POLICY, TTL),
    Call("PUT", "policies/{vhost}/{name}", {"pattern": "^x", "definition": {}}, {"name": "empty"}),
    Call("PUT", "operator-policies/{vhost}/{name}", POLICY, CAP),
    Call("PUT", "global-parameters/{name}", {"value": {"a": 1}}),
    Call("PUT", "cluster-name", {"name": "lab"}),
    Call("PUT", "queues/{vhost}/{queue}", {"durable": True}),
    Call("PUT", "queues/{vhost}/{queue}", {"durable": True}),
    Call("PUT", "queues/{vhost}/{queue}", {"durable": False}),
    Call("PUT", "queues/{vhost}/{queue}", {"arguments": {"x-expires": "a"}}, {"queue": "bad"}),
    Call("PUT", "queues/{vhost}/{queue}", {}, {"vhost": NONE}),
    Call("PUT", "queues/{vhost}/{queue}", {}, {"queue": "plain"}),
    Call(
        "PUT", "queues/{vhost}/{queue}",
        {"durable": True, "arguments": {"x-queue-type": "quorum"}}, {"queue": "quorum"},
    ),
    Call(
        "PUT", "queues/{vhost}/{queue}",
        {"durable": True, "arguments": {"x-queue-type": "stream"}}, {"queue": "stream"},
    ),
    Call("PUT", "exchanges/{vhost}/{exchange}", TOPIC),
    Call("PUT", "exchanges/{vhost}/{exchange}", TOPIC, {"exchange": "x2"}),
    Call("PUT", "exchanges/{vhost}/{exchange}", {"type": "fanout"}),
    Call("PUT", "exchanges/{vhost}/{exchange}", {"type": "nonsense"}, {"exchange": "bad"}),
    Call("POST", "bindings/{vhost}/e/{exchange}/q/{queue}", {"routing_key": "k"}),
    Call("POST", "bindings/{vhost}/e/{exchange}/q/{queue}", {"routing_key": "k"}, {"queue": NONE}),
    Call("POST", "bindings/{vhost}/e/{exchange}/e/{destination}", {"routing_key": "k"}),
    Call(
        "POST", "exchanges/{vhost}/{exchange}/publish",
        {"properties": {}, "routing_key": "k", "payload": "a", "payload_encoding": "string"},
    ),
    Call(
        "POST", "exchanges/{vhost}/{exchange}/publish",
        {"properties": {}, "routing_key": NONE, "payload": "a", "payload_encoding": "string"},
    ),
    Call("POST", "exchanges/{vhost}/{exchange}/publish", {"payload": "a"}),
)  # fmt: skip

READ: Final = (
    *(
        Call("GET", path)
        for path in (
            "whoami", "overview", "cluster-name", "nodes", "nodes/{node}", "nodes/{node}/memory",
            "aliveness-test/{vhost}", "health/checks/alarms", "health/checks/local-alarms",
            "health/checks/virtual-hosts", "health/checks/node-is-quorum-critical",
            "health/checks/node-is-mirror-sync-critical", "health/checks/port-listener/{port}",
            "health/checks/protocol-listener/{protocol}", "health/checks/ready-to-serve-clients",
            "health/checks/is-in-service", "health/checks/certificate-expiration/{within}/{unit}",
            "health/checks/below-node-connection-limit", "health/checks/metadata-store/initialized",
            "health/checks/metadata-store/initialized/with-data",
            "health/checks/reached-target-cluster-size",
            "health/checks/quorum-queues-without-elected-leaders/all-vhosts/pattern/{pattern}",
            "healthchecks/node", "healthchecks/node/{node}", "extensions", "feature-flags",
            "deprecated-features", "deprecated-features/used", "shovels", "shovels/{vhost}",
            "federation-links", "federation-links/{vhost}", "stream/connections",
            "stream/connections/{vhost}", "config/effective", "auth", "auth/attempts/{node}",
            "auth/hash_password/{password}", "index.html", "version", "vhosts", "queues",
            "queues/detailed", "connections", "vhosts/{vhost}/connections",
            "connections/{connection}", "connections/{connection}/channels", "channels",
            "vhosts/{vhost}/channels", "channels/{channel}", "consumers", "exchanges", "bindings",
            "queues/{vhost}/{queue}/bindings", "bindings/{vhost}/e/{exchange}/q/{queue}",
            "exchanges/{vhost}/{exchange}/bindings/source",
            "exchanges/{vhost}/{exchange}/bindings/destination",
            "bindings/{vhost}/e/{exchange}/e/{destination}", "users", "users/without-permissions",
            "permissions", "vhosts/{vhost}/permissions", "users/{user}/permissions",
            "topic-permissions", "vhosts/{vhost}/topic-permissions",
            "users/{user}/topic-permissions", "vhost-limits", "user-limits", "policies",
            "operator-policies", "parameters", "parameters/{component}",
            "parameters/{component}/{vhost}", "global-parameters", "definitions",
        )
    ),
    *got("vhosts/{vhost}"), *got("queues/{vhost}"), *got("exchanges/{vhost}"),
    *got("bindings/{vhost}"), *got("consumers/{vhost}"), *got("queues/{vhost}/{queue}"),
    *got("exchanges/{vhost}/{exchange}"), *got("users/{name}"),
    *got("connections/username/{user}", user="guest"), *got("vhost-limits/{vhost}"),
    *got("user-limits/{user}"), *got("permissions/{vhost}/{user}"),
    *got("topic-permissions/{vhost}/{user}"), *got("policies/{vhost}"),
    *got("policies/{vhost}/{name}", name="ttl"), *got("operator-policies/{vhost}"),
    *got("operator-policies/{vhost}/{name}", name="cap"), *got("definitions/{vhost}"),
    *got("parameters/{component}/{vhost}/{name}", name="cap"), *got("global-parameters/{name}"),
    *got("bindings/{vhost}/e/{exchange}/q/{queue}/{properties_key}", properties_key="k"),
    *got("bindings/{vhost}/e/{exchange}/e/{destination}/{properties_key}", properties_key="k"),
    Call("GET", "queues/{vhost}/{queue}", None, {"queue": "quorum"}),
    Call("GET", "queues/{vhost}/{queue}", None, {"queue": "stream"}),
    Call("GET", "queues/{vhost}/{queue}", query="?lengths_age=60&lengths_incr=5"),
    Call("GET", "queues/{vhost}/{queue}", query="?msg_rates_age=60&msg_rates_incr=5"),
    Call("GET", "queues", query="?lengths_age=60&lengths_incr=5"),
    Call("GET", "queues", query="?page=1&page_size=2&columns=name,messages"),
    Call("GET", "queues", query="?page=99"),
    Call("GET", "queues", query="?page=0"),
    Call("GET", "queues", query="?page=1&page_size=501"),
    Call("GET", "queues", query="?page=1&name=(&use_regex=true"),
    Call("GET", "queues", query="?sort=messages&sort_reverse=true&columns=name"),
    Call("GET", "queues", query="?disable_stats=true&enable_queue_totals=true"),
    Call("GET", "exchanges", query="?page=1&name=amq"),
    Call("GET", "health/checks/port-listener/{port}", None, {"port": "1"}),
    Call("GET", "health/checks/protocol-listener/{protocol}", None, {"protocol": "mqtt"}),
)  # fmt: skip

AFTER: Final = (
    Call(
        "POST", "queues/{vhost}/{queue}/get",
        {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}, {"queue": "plain"},
    ),
    Call(
        "POST", "queues/{vhost}/{queue}/get",
        {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}, {"queue": NONE},
    ),
    Call("POST", "queues/{vhost}/{queue}/get", {"count": 1}),
    Call("DELETE", "queues/{vhost}/{queue}/contents"),
    Call("DELETE", "queues/{vhost}/{queue}/contents", None, {"queue": NONE}),
    Call("POST", "queues/{vhost}/{queue}/actions", {"action": "sync"}),
    Call("POST", "queues/{vhost}/{queue}/actions", {"action": "nonsense"}),
    Call("DELETE", "queues/{vhost}/{queue}", query="?if-unused=true"),
    Call("DELETE", "connections/{connection}"),
    Call("DELETE", "connections/{connection}", None, {"connection": NONE}),
    Call("DELETE", "connections/username/{user}"),
    Call(
        "DELETE", "bindings/{vhost}/e/{exchange}/q/{queue}/{properties_key}", None,
        {"properties_key": "k"},
    ),
    Call(
        "DELETE", "bindings/{vhost}/e/{exchange}/q/{queue}/{properties_key}", None,
        {"properties_key": NONE},
    ),
    Call(
        "DELETE", "bindings/{vhost}/e/{exchange}/e/{destination}/{properties_key}", None,
        {"properties_key": "k"},
    ),
    Call("DELETE", "exchanges/{vhost}/{exchange}"),
    Call("DELETE", "exchanges/{vhost}/{exchange}"),
    Call("DELETE", "exchanges/{vhost}/{exchange}", None, {"exchange": "amq.topic"}),
    Call("DELETE", "queues/{vhost}/{queue}"),
    Call("DELETE", "queues/{vhost}/{queue}"),
    Call("POST", "rebalance/queues"),
    Call("DELETE", "policies/{vhost}/{name}", None, TTL),
    Call("DELETE", "policies/{vhost}/{name}", None, TTL),
    Call("DELETE", "operator-policies/{vhost}/{name}", None, CAP),
    Call("DELETE", "global-parameters/{name}"),
    Call("DELETE", "global-parameters/{name}"),
    Call("DELETE", "vhost-limits/{vhost}/{limit}"),
    Call("DELETE", "user-limits/{user}/{limit}"),
    Call("PUT", "parameters/{component}/{vhost}/{name}", {"value": {}}, {"component": NONE}),
    Call("DELETE", "parameters/{component}/{vhost}/{name}", None, {"component": NONE}),
    Call(
        "DELETE", "topic-permissions/{vhost}/{user}/{exchange}", None, {"exchange": "amq.topic"}
    ),
    Call("DELETE", "topic-permissions/{vhost}/{user}"),
    Call("DELETE", "permissions/{vhost}/{user}"),
    Call("POST", "definitions", {"users": [], "queues": []}),
    Call("POST", "definitions/{vhost}", {"queues": [{"name": "made", "durable": True}]}),
    Call("POST", "definitions", {"queues": 5}),
    Call("DELETE", "users/{name}"),
    Call("DELETE", "users/{name}"),
    Call("POST", "users/bulk-delete", {"users": ["bob"]}),
    Call("POST", "users/bulk-delete", {}),
    Call("DELETE", "vhosts/{vhost}", None, OWN_VHOST),
    Call("DELETE", "vhosts/{vhost}", None, OWN_VHOST),
)  # fmt: skip
CALLS: Final = (*BEFORE, *READ, *AFTER)

# Objects whose members are names that somebody chose.
OPEN: Final = (
    "*arguments", "*client_properties", "*definition", "*value", "*limits", "*headers",
    "*effective_policy_definition", "*partitions", "*metadata", "*cluster_state", "*readers",
    "*open_files",
)  # fmt: skip


class Answer(NamedTuple):
    """status: HTTP's. shape: member, with the members and lists around it -> its types."""

    status: int
    shape: dict[str, set[str]]


def shape_of(value: object, at: str = "", into: dict[str, set[str]] | None = None) -> Any:
    """The members of JSON and their types. Rows of a list count together."""
    found: dict[str, set[str]] = {} if into is None else into
    kind = "null" if value is None else type(value).__name__
    found.setdefault(at, set()).add("number" if kind in ("int", "float") else kind)
    if isinstance(value, dict) and not any(fnmatchcase(at, pattern) for pattern in OPEN):
        for name, inner in value.items():
            shape_of(inner, f"{at}.{name}" if at else name, found)
    elif isinstance(value, list):
        for one in value:
            shape_of(one, f"{at}[]", found)
    return found


def asked_all(broker: Broker) -> dict[str, Answer]:
    """What a broker answers to all calls, by their ids; to one that is there twice, " again"."""
    with HttpCaller(broker) as http, Wire(broker) as wire:
        found: dict[str, Answer] = {}
        names = dict(NAMES)
        names["node"] = http.json("GET", "nodes")[0]["name"]
        names["port"] = str(broker.port)
        names["properties_key"] = "k"

        def run(calls: tuple[Call, ...]) -> None:
            for call in calls:
                here = {**names, **call.names}
                quoted = {name: quote(value, safe="") for name, value in here.items()}
                address = call.path.format_map(quoted) + call.query
                status, data = http.ask(call.method, address, call.body)
                known = call.id
                while known in found:
                    known += " again"
                found[known] = Answer(status, shape_of(_read(data)))

        run(BEFORE)
        _live(wire)
        time.sleep(STATS_S)
        names["connection"] = wait_until(lambda: http.json("GET", "connections"))[0]["name"]
        names["channel"] = wait_until(lambda: http.json("GET", "channels"))[0]["name"]
        run(READ)
        run(AFTER)
    return found


def _read(data: bytes) -> object:
    """JSON; other bodies as what they are; nothing for none."""
    try:
        return json.loads(data) if data else {}
    except ValueError:
        return "not JSON"


def _live(wire: Wire) -> None:
    """A connection that publishes, gets and consumes, so that there is what is counted."""
    wire.open()
    wire.channel()
    wire.send(commands.Confirm.Select(), 1)
    wire.expect(commands.Confirm.SelectOk, 1)
    for queue in ("q", "plain", "quorum", "stream"):
        wire.publish(1, queue)
        wire.expect(commands.Basic.Ack, 1)
    wire.send(commands.Basic.Qos(prefetch_count=1), 1)
    wire.expect(commands.Basic.QosOk, 1)
    wire.send(commands.Basic.Consume(queue="q", consumer_tag="t"), 1)
    wire.expect(commands.Basic.ConsumeOk, 1)


def differences(theirs: Mapping[str, Answer], ours: Mapping[str, Answer]) -> Iterator[str]:
    """CALL | what differs."""
    for call, wanted in theirs.items():
        found = ours[call]
        if found.status != wanted.status:
            yield f"{call} | status {wanted.status}, not {found.status}"
            continue
        missing: set[str] = set()
        for member, kinds in wanted.shape.items():
            around = member.removesuffix("[]") if member[-2:] == "[]" else member.rpartition(".")[0]
            if member not in found.shape:
                if around not in missing:
                    yield f"{call} | {member} missing"
                missing.add(member)
            elif not found.shape[member] <= kinds:
                yield f"{call} | {member} {_words(kinds)}, not {_words(found.shape[member])}"


def _words(kinds: set[str]) -> str:
    return " or ".join(sorted(kinds))


def main() -> int:
    """Run."""
    from tests.conformance.compared.http_differences import reason, unused

    if not is_installed():
        raise SystemExit("The comparison needs RabbitMQ: `apt-get install rabbitmq-server`.")
    with tempfile.TemporaryDirectory(prefix="penstock-rabbitmq-") as directory:
        at = Path(directory)
        with RabbitMQ(at, has_http=True) as rabbitmq:
            rabbitmq.control("await_startup")
            theirs = asked_all(rabbitmq)
        with LiveBroker(at / "penstock", has_http=True) as penstock:
            ours = asked_all(penstock)
    found = list(differences(theirs, ours))
    wrong = [line for line in found if not reason(line)]
    wrong += [f"{pattern}: listed, and does not differ" for pattern in unused(found)]
    print("\n".join(wrong))
    print(f"{len(theirs)} calls, {len(found)} differences, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
